"""The connections of one process to one PostgreSQL database: lent and returned, dropped when one breaks.

A child of a fork never uses, or closes, a connection of its parent. Touches forking, link, errors.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from psycopg.conninfo import conninfo_to_dict

from savegame.errors import ClosedError, UnavailableError, needs_descriptors
from savegame.stores.postgres.link import Lent, Link, Patience, Permit, connect
from savegame.waiting.forking import Still, leave_alone, take_along

L = TypeVar("L", bound=Link)

CONNECT_S: Final = 5


class Pool:
    """Lends connections, at most `size` at a time; `where` names the database in errors, without a password."""

    def __init__(self, conninfo: str, where: str, sql: dict[str, str], size: int) -> None:
        self.where = where
        self.size = size
        self.closed = False
        self._conninfo = conninfo
        self._sql = sql
        self.after_fork: Callable[[], None] = lambda: None
        """What else starts afresh in the child of a fork."""
        self._begin_life()
        take_along(self)

    def _begin_life(self) -> None:
        """Locks and connections of this process: at the start, and again in the child of a fork."""
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._idle: list[Link] = []
        self._slots: list[weakref.ref[Permit]] = []

    def check_open(self) -> None:
        """Raise ClosedError if it is closed."""
        if self.closed:
            raise ClosedError(f"{self.where}: the vault is closed; open it again")

    @contextlib.contextmanager
    def lent(self, patience: Patience) -> Iterator[Link]:
        """A connection, for as long as the block runs."""
        link = self.take(patience)
        try:
            yield link
        finally:
            self.give_back(link)

    def take(self, patience: Patience) -> Link:
        """A connection for the caller alone. Raises what psycopg raises, and UnavailableError if all stay lent for long."""
        return self._with_slot(patience, lambda: self._idle_one(0) or self.connect(patience, Link))

    def take_new(self, patience: Patience) -> Lent:
        """A connection for a user's own statements: a new one, which is closed when it is returned."""

        def connect() -> Lent:
            if spare := self._idle_one(self.size - len(self._slots) + 1):
                spare.hang_up()
            return self.connect(patience, Lent)

        return self._with_slot(patience, connect)

    def _with_slot(self, patience: Patience, connect: Callable[[], L]) -> L:
        with self._guard:
            if not self._changed.wait_for(lambda: self.closed or self._has_room(), patience.left()):
                raise UnavailableError(f"{self.where}: all {self.size} connections are in use; retry, or allow more")
            self.check_open()
            slot = Permit()
            self._slots.append(weakref.ref(slot))
        try:
            link = connect()
        except BaseException:
            del slot  # a caller that keeps the error keeps this frame
            with self._guard:
                self._changed.notify()
            raise
        link.slot, link.until, link.look_after = slot, patience.until, patience.look_after()
        return link

    def _idle_one(self, fewest: int) -> Link | None:
        """An idle one, if there are at least that many."""
        with self._guard:
            return self._idle.pop() if self._idle and len(self._idle) >= fewest else None

    def _has_room(self) -> bool:
        self._slots = [slot for slot in self._slots if slot() is not None]
        return len(self._slots) < self.size

    def give_back(self, link: Link) -> None:
        """Take a connection back; one that broke, is still busy with something, or was a user's, is closed."""
        if link.pid != os.getpid():
            return
        link.slot = link.until = None
        busy = link.cancelled or link.in_transaction or link.in_pipeline  # a cancellation may be on its way
        if link.closed or busy or isinstance(link, Lent):
            link.hang_up()
        with self._guard:
            if self.closed:  # meanwhile
                link.hang_up()
            if not link.closed:
                self._idle.append(link)
            self._changed.notify()

    def connect(self, patience: Patience, kind: type[L]) -> L:
        """A new connection, which is not one of those that are lent. Its user closes it if the pool was closed meanwhile."""
        self.check_open()
        given = conninfo_to_dict(self._conninfo)
        limit = given.get("connect_timeout") or max(2, min(CONNECT_S, int(patience.left())))
        with needs_descriptors(f"{self.where}: no connection can be made"):
            return connect(kind, self._conninfo, self._sql, limit)

    def drop(self) -> None:
        """Close what is not lent: where one connection broke, the others did too."""
        with self._guard:
            idle, self._idle = self._idle, []
        for link in idle:
            link.hang_up()

    def close(self) -> None:
        """Close every connection, now or when it is returned."""
        with self._guard:
            self.closed = True
            self._changed.notify_all()
        self.drop()
        leave_alone(self)

    # -- fork --------------------------------------------------------------------------------------

    def still(self) -> Still:
        """Nothing has to rest: the child takes nothing over."""
        yield

    def after_fork_in_child(self) -> None:
        """Start afresh; the parent's connections are kept, so that nothing closes them, and never used."""
        _abandoned.extend(self._idle)
        self._begin_life()
        self.after_fork()


_abandoned: list[Link] = []


def abandon(link: Link) -> None:
    """Never use a parent's connection, and never close it."""
    _abandoned.append(link)
