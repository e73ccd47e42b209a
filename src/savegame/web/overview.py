"""What is known of all threads at once: read in the background, again only where something changed. Touches vault, model.

Pages ask for a `Snapshot` and never wait long for one. While the first reading of a large store goes on they show what was
read so far. Nobody asking means that nothing is read.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from savegame.errors import SavegameError
from savegame.model import ThreadInfo
from savegame.runner import RunInfo
from savegame.runs.ledger import ANSWER, CallEntry, CallStatus
from savegame.usage import Usage
from savegame.vault import Stats, Vault

T = TypeVar("T")

logger = logging.getLogger("savegame")

PATIENCE_S: Final = 0.3
"""How long a page waits for the first reading."""

GLANCE_S: Final = 0.05
"""How long it waits for another, if readings take long: what was read last is there to be shown."""

SLICE_S: Final = 0.01
"""How long threads are read without a pause."""

PATIENCE_AT_END_S: Final = 5.0

REST: Final = 10
"""A reading that took long is followed by so many times as long without one."""

QUICK_S: Final = 0.1
"""A reading that took no longer is done whenever a page asks."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that needs a person: it waits for an answer (`answered` if it got one), or nobody knows its outcome."""

    thread_id: str
    agent_id: str | None
    call: CallEntry
    answered: bool

    @property
    def needed(self) -> bool:
        """Whether a person has to do something now, whoever holds the thread."""
        return self.call.status == CallStatus.UNKNOWN or (self.call.status == CallStatus.WAITING and not self.answered)


@dataclass(frozen=True, slots=True)
class Entry:
    """A thread as the lists show it; `mark` is its fingerprint at that time."""

    mark: bytes
    info: ThreadInfo | None
    tags: frozenset[str]
    pending: tuple[Pending, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All threads as they were read last; while the first reading goes on, those that were reached of `total`."""

    entries: tuple[Entry, ...]
    total: int

    @property
    def complete(self) -> bool:
        """Whether every thread is among them."""
        return len(self.entries) >= self.total

    @property
    def pending(self) -> list[Pending]:
        """Every call that needs a person."""
        return [call for entry in self.entries for call in entry.pending]


class Kept(Generic[T]):
    """A value that takes a while to read: the one read last, read again in the background whenever somebody asks for it."""

    def __init__(self, read: Callable[[], T], value: T) -> None:
        self._read, self._value = read, value
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._next = 0.0
        self._slow = False
        self.error: SavegameError | None = None
        self.ready = False

    def get(self, patience: float = PATIENCE_S) -> T:
        """The value, new if that does not take longer than `patience` seconds."""
        with self._lock:
            if self._idle.is_set() and time.monotonic() >= self._next:
                self._idle.clear()
                threading.Thread(target=self._work, name="savegame ui reads", daemon=True).start()
        self._idle.wait(min(patience, GLANCE_S) if self._slow and self.ready else patience)
        return self._value

    def forget(self) -> None:
        """Read again at the next look, however recent the value is."""
        self._next = 0.0

    def rest(self) -> None:
        """Read nothing any more; what is being read ends first, if it ends soon."""
        self._next = float("inf")
        self._idle.wait(PATIENCE_AT_END_S)

    def _work(self) -> None:
        begun = time.monotonic()
        try:
            self._value = self._read()
            self.error, self.ready = None, True
        except SavegameError as error:
            logger.warning("the page could not read what it shows: %s", error)
            self.error = error
        finally:
            ended = time.monotonic()
            took = ended - begun
            self._slow = took > QUICK_S
            self._next = max(self._next, ended + took * REST * self._slow)
            self._idle.set()


class Overview:
    """What the pages know of a whole vault."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._entries: dict[str, Entry] = {}
        self._total = 0
        self._threads: Kept[None] = Kept(self._catch_up, None)
        self._runs: Kept[list[RunInfo]] = Kept(lambda: list(vault.runs()), [])
        self._usage: Kept[list[Usage]] = Kept(lambda: vault.usage(by="day"), [])
        self._stats: Kept[Stats | None] = Kept(vault.stats, None)

    def snapshot(self) -> Snapshot:
        """All threads. Raises what reading them raised, if there is nothing to show."""
        found = self.known(PATIENCE_S)
        if self._threads.error is not None and not found.entries:
            raise self._threads.error
        return found

    def known(self, patience: float = 0.0) -> Snapshot:
        """All threads as far as they were read; new if that does not take longer than `patience` seconds."""
        self._threads.get(patience)
        entries = tuple(self._entries.copy().values())
        return Snapshot(entries, max(self._total, len(entries)))

    def runs(self, patience: float = GLANCE_S) -> list[RunInfo]:
        """Runs that are not done."""
        return self._runs.get(patience)

    def usage(self) -> tuple[list[Usage], bool]:
        """What work cost by day, and whether it was read already."""
        return self._usage.get(GLANCE_S), self._usage.ready

    def stats(self) -> tuple[Stats | None, bool]:
        """How much there is, and whether it was read already."""
        return self._stats.get(GLANCE_S), self._stats.ready

    def forget(self) -> None:
        """The page changed something: look again."""
        for kept in (self._threads, self._runs):
            kept.forget()

    def rest(self) -> None:
        """The server ends: read nothing any more."""
        for kept in (self._threads, self._runs, self._usage, self._stats):
            kept.rest()

    def _catch_up(self) -> None:
        marks = self._vault.fingerprints()
        self._total = len(marks)
        for gone in self._entries.keys() - marks.keys():
            del self._entries[gone]
        begun = time.monotonic()
        for thread_id, mark in marks.items():
            known = self._entries.get(thread_id)
            if known is None or known.mark != mark or not mark:
                self._entries[thread_id] = _entry(self._vault, thread_id, mark)
            if time.monotonic() - begun > SLICE_S:  # whoever waits for a page goes first
                time.sleep(SLICE_S)
                begun = time.monotonic()


def _entry(vault: Vault, thread_id: str, mark: bytes) -> Entry:
    info = vault.info(thread_id)
    if info is not None and info.damage is not None:
        return Entry(mark, info, frozenset(), ())
    thread = vault.thread(thread_id)
    tags = frozenset(tag for noted in thread.noted() for tag in noted.tags)
    calls = [call for call in vault.calls(thread_id) if not call.settled]
    answers = thread.records(ANSWER) if calls else {}
    agent = None if info is None else info.agent_id
    return Entry(mark, info, tags, tuple(Pending(thread_id, agent, call, call.key in answers) for call in calls))


def waiting(pending: Iterable[Pending]) -> list[Pending]:
    """Those that wait for a person's answer, the oldest first."""
    return _sorted(one for one in pending if one.call.status == CallStatus.WAITING and not one.answered)


def unknown(pending: Iterable[Pending], held: Iterable[str]) -> list[Pending]:
    """Those whose outcome nobody knows: begun, and no run holds the thread that could still tell."""
    busy = set(held)
    fit = (one for one in pending if one.call.status in (CallStatus.UNKNOWN, CallStatus.STARTED))
    return _sorted(one for one in fit if one.call.status == CallStatus.UNKNOWN or one.thread_id not in busy)


def _sorted(pending: Iterable[Pending]) -> list[Pending]:
    never = dt.datetime.max.replace(tzinfo=dt.UTC)
    return sorted(pending, key=lambda one: (one.call.started_at or never, one.thread_id, one.call.key))
