"""Stores that die, stop or break a promise on purpose, mixed into the real ones; the library has no hooks for any of it."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from savegame.encoding.codec import Codec
from savegame.encoding.frames import unwrap
from savegame.errors import Fenced
from savegame.model import Lease, ThreadKey
from savegame.runs.ledger import CALL
from savegame.store import ANY, Append, PutRecord, Store, StoreChange
from savegame.stores.file import FileStore
from savegame.stores.postgres import PostgresStore
from savegame.stores.sqlite import SQLiteStore
from savegame.testing.faults import Mouth
from savegame.vault import Vault

STORES = {"file": FileStore, "sqlite": SQLiteStore, "postgresql": PostgresStore}
Moment = Callable[[str], None]


def store_at(address: str, *mixed_in: type[Store]) -> Store:
    """A store of the address's scheme, with other behaviour mixed in."""
    scheme, _, path = address.partition(":")
    store: Store = type("Mixed", (*mixed_in, STORES[scheme]), {})(address if scheme == "postgresql" else path)
    return store


def opened(address: str, *mixed_in: type[Store]) -> Vault:
    """A vault on such a store."""
    return Vault(store_at(address, *mixed_in))


def nothing(moment: str) -> None:
    """A moment at which nothing happens."""


class Fate:
    """Counts the moments of a process and kills it at one of them, by number or by name.

    At the `endless` moment it waits for ever, and it dies only once that has been reached: renewals come when they like.
    """

    def __init__(self, mouth: Mouth, deadly: int | str = 0, endless: str = "") -> None:
        self._mouth, self._deadly, self._endless = mouth, deadly, endless
        self._armed = not endless
        self._numbers = itertools.count(1)  # one step for all threads: no number is passed over

    def moment(self, name: str) -> None:
        """One moment at which a process may die."""
        if self._deadly in (name, next(self._numbers)) and self._armed:
            self._mouth.say("dies", name)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._endless == name:
            self._armed = True
            threading.Event().wait()


class Mortal(Store):
    """Has a moment before and after every write, lease, renewal and transaction."""

    moment: Moment = staticmethod(nothing)

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        with self._moments(" and ".join(told(change) for change in changes)):
            return super().commit(changes)

    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        with self._moments("lease"):
            return super().lease(key, owner, ttl_us, instead_of=instead_of)

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        with self._moments("renewal" if ttl_us > 1 else "release"):
            return super().renew(key, epoch, ttl_us)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        with self._moments("transaction"), super().connection() as db:
            yield db

    @contextmanager
    def _moments(self, what: str) -> Iterator[None]:
        self.moment(f"before {what}")
        yield
        self.moment(f"after {what}")


class Stopping(Store):
    """Can stop its own process, between two renewals: a stopped process that holds a lock would hold up everybody."""

    def __init__(self, path: str) -> None:
        self._still = threading.Lock()
        self._mouth: Mouth | None = None
        super().__init__(path)

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        made = super().commit(changes)
        if self._mouth is not None:
            self._mouth.say("wrote")
        return made

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        with self._still:
            return super().renew(key, epoch, ttl_us)

    def stop(self, mouth: Mouth) -> None:
        """SIGSTOP, until the parent sends SIGCONT. From then on, whatever is written is told."""
        with self._still:
            mouth.say("stops", os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)
        self._mouth = mouth


class Unfenced(Store):
    """Broken: every write counts as one of the present holder of the lease, on top of any head; a renewal too."""

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        row = self.thread(key)
        try:
            return super().renew(key, row.lease.epoch if row and row.lease else epoch, ttl_us)
        except Fenced:  # it was given back: that passes too
            return Lease(epoch, "", 0)

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        return super().commit([self._passed_off(change) for change in changes])

    def _passed_off(self, change: StoreChange) -> StoreChange:
        if not isinstance(change, Append | PutRecord) or change.epoch is None:
            return change
        row = self.thread(change.key)
        now = row.lease.epoch if row and row.lease else None
        return change._replace(epoch=now, expect=ANY) if isinstance(change, Append) else change._replace(epoch=now)


class Unleased(Store):
    """Broken: every request for a lease succeeds, even while it is held."""

    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        row = self.thread(key)
        return super().lease(key, owner, ttl_us, instead_of=row.lease.epoch if row and row.lease else None)


class Forgetful(Store):
    """Broken: keeps no record of a call that has begun."""

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        kept = [change for change in changes if told(change) != "started"]
        return super().commit(kept) if kept else [0]


def told(change: StoreChange) -> str:
    """What a change is in the words of a run."""
    if isinstance(change, PutRecord):
        return change.kind if change.kind != CALL or change.value is None else _status(change.value)
    return "checkpoint" if isinstance(change, Append) else type(change).__name__


def _status(value: bytes) -> str:
    status: str = Codec().decode(unwrap(value)[1])["status"]
    return status
