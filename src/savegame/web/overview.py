"""What is known of all threads at once: read in the background, again only where something changed. Touches vault, model.

Pages ask for a `Snapshot` and never wait long for one. While the first reading of a large store goes on they show what was
read so far. Nobody asking means that nothing is read.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Literal, TypeVar

from savegame.errors import CorruptionError, SavegameError
from savegame.model import ThreadInfo
from savegame.runs.ledger import CallEntry
from savegame.runs.runner import RunInfo
from savegame.timeline.usage import Usage
from savegame.vault import Stats, Vault

S = TypeVar("S")
T = TypeVar("T")

logger = logging.getLogger("savegame")

PATIENCE_S: Final = 0.2
"""How long a page waits for the first reading."""

GLANCE_S: Final = 0.05
"""How long it waits for another, if readings take long: what was read last is there to be shown."""

SLICE_S: Final = 0.01
"""How long threads are read without a pause."""

PAUSE_S: Final = 0.002

MANY: Final = 100
"""If more threads than this have changed, those of all are listed, in pages: quicker than one by one."""

PAGE: Final = 500

SILENCE_S: Final = 5.0
"""A store that has not answered for so long is said to be silent."""

PATIENCE_AT_END_S: Final = 5.0

REST: Final = 10
"""A reading that took long is followed by so many times as long without one."""

RETRY_S: Final = 1.0
"""How long after a reading that failed there is another: whoever is back is to be seen soon, however long that one took."""

QUICK_S: Final = 0.1
"""A reading that took no longer is done whenever a page asks."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that is not settled: it may need a person."""

    thread_id: str
    agent_id: str | None
    call: CallEntry

    def need(self, held: Collection[str]) -> Literal["answer", "outcome"] | None:
        """What a person has to give now, if live runs hold these threads."""
        return self.call.needs(held=self.thread_id in held)


@dataclass(frozen=True, slots=True)
class Entry:
    """A thread as the lists show it; `mark` is its fingerprint at that time.

    Infos are read first, tags and calls after those of all threads: `detailed` tells whether they were.
    """

    mark: bytes
    info: ThreadInfo | None
    tags: frozenset[str] = frozenset()
    pending: tuple[Pending, ...] = ()
    detailed: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All threads as they were read last; while the first reading goes on, those that were reached of `total`."""

    entries: tuple[Entry, ...]
    total: int | None
    """How many there are; None while not even that is known."""

    @property
    def complete(self) -> bool:
        """Whether every thread is among them."""
        return self.total is not None and len(self.entries) >= self.total

    @property
    def detailed(self) -> bool:
        """Whether the tags and calls of every thread are known, too."""
        return self.complete and all(entry.detailed for entry in self.entries)

    @property
    def pending(self) -> list[Pending]:
        """Every call that is not settled."""
        return [call for entry in self.entries for call in entry.pending]


class Kept(Generic[T]):
    """A value that takes a while to read: the one read last, read again in the background whenever somebody asks for it."""

    def __init__(self, read: Callable[[], T], value: T, told: dict[str, object]) -> None:
        self._read, self._value = read, value
        self._told = told  # what the log was told of: shared, because one trouble meets all
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._next = 0.0
        self._slow = False
        self.error: Exception | None = None
        self.ready = False
        self.read_at: dt.datetime | None = None
        self.changes = 0
        self._moved = time.monotonic()

    def get(self, patience: float = PATIENCE_S) -> T:
        """The value, new if that does not take longer than `patience` seconds."""
        with self._lock:
            if self._idle.is_set() and time.monotonic() >= self._next:
                self._idle.clear()
                self.moved()
                threading.Thread(target=self._work, name="savegame ui reads", daemon=True).start()
        hopeless = self.ready and (self._slow or self.trouble() is not None)
        self._idle.wait(min(patience, GLANCE_S) if hopeless else patience)
        return self._value

    def moved(self) -> None:
        """Reading goes on: the store answered."""
        self._moved = time.monotonic()

    def trouble(self) -> str | None:
        """Why the value may be old: what the last reading raised, or that the store is silent."""
        if not self._idle.is_set() and time.monotonic() - self._moved > SILENCE_S:
            return "the store does not answer"
        return None if self.error is None else str(self.error)

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
            before, self._value = self._value, self._read()
            self.changes += before != self._value
            self._told.pop(str(self.error), None)
            self.error, self.ready, self.read_at = None, True, dt.datetime.now(dt.UTC)
        except Exception as error:  # pages say it; else they would wait for ever
            first = object()
            if self._told.setdefault(str(error), first) is first:
                known = isinstance(error, SavegameError)
                logger.warning("the page could not read what it shows: %s", error, exc_info=not known)
            self.error = error
        finally:
            ended = time.monotonic()
            took = ended - begun
            self._slow = took > QUICK_S
            rest = RETRY_S if self.error is not None else took * REST if self._slow else 0.0
            self._next = max(self._next, ended + rest)
            self._idle.set()


class Overview:
    """What the pages know of a whole vault."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._entries: dict[str, Entry] = {}
        self._total: int | None = None
        self._changes = 0
        told: dict[str, object] = {}
        self._threads: Kept[None] = Kept(self._catch_up, None, told)
        self._runs: Kept[list[RunInfo]] = Kept(lambda: list(vault.runs()), [], told)
        self._usage: Kept[list[Usage]] = Kept(lambda: vault.usage(by="day"), [], told)
        self._stats: Kept[Stats | None] = Kept(vault.stats, None, told)

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
        return Snapshot(entries, None if self._total is None else max(self._total, len(entries)))

    def version(self, patience: float = PATIENCE_S) -> object:
        """Another one whenever something was read that is new: threads, tags, calls, runs, or that reading fails."""
        self._threads.get(patience)
        self._runs.get(min(patience, GLANCE_S))
        return self._changes, self._runs.changes, self.trouble()

    def trouble(self) -> tuple[dt.datetime | None, str] | None:
        """Since when threads were not read (None: never), and why; None if all is well."""
        why = self._threads.trouble()
        return None if why is None else (self._threads.read_at, why)

    def forks(self, thread_id: str) -> list[str]:
        """The threads that were forked from one, as far as is known."""
        known = self._entries.copy().values()
        return sorted(entry.info.id for entry in known if entry.info is not None and entry.info.forked_from == thread_id)

    def runs(self, patience: float = GLANCE_S) -> list[RunInfo]:
        """Runs that are not done."""
        return self._runs.get(patience)

    def held(self, patience: float = GLANCE_S) -> set[str]:
        """Threads that live runs hold."""
        return {run.thread_id for run in self.runs(patience) if not run.stale}

    def usage(self) -> tuple[list[Usage], bool]:
        """What work cost by day, and whether it was read already."""
        return self._usage.get(GLANCE_S), self._usage.ready

    def stats(self) -> tuple[Stats | None, bool]:
        """How much there is, and whether it was read already."""
        return self._stats.get(GLANCE_S), self._stats.ready

    def uncounted(self) -> str | None:
        """Why usage or sizes were not read; None if all is well."""
        return self._stats.trouble() or self._usage.trouble()

    def forget(self) -> None:
        """The page changed something: look again."""
        for kept in (self._threads, self._runs):
            kept.forget()

    def rest(self) -> None:
        """The server ends: read nothing any more."""
        for kept in (self._threads, self._runs, self._usage, self._stats):
            kept.rest()

    def _catch_up(self) -> None:
        """Read what changed: infos first, so that lists are whole soon, then tags and calls, the newest threads first."""
        marks = self._vault.fingerprints()
        for gone in self._entries.keys() - marks.keys():
            del self._entries[gone]
            self._changes += 1
        self._changes += self._total != len(marks)
        self._total = len(marks)
        changed = {name: mark for name, mark in marks.items() if not mark or not self._knows(name, mark)}
        for name, info in self._gently(self._infos(changed)):
            self._keep(name, _listed(self._entries.get(name), marks[name], info))
        left = [info for entry in self._entries.values() if not entry.detailed and (info := entry.info) is not None]
        bare = self._bare() if len(left) > MANY else set()
        for info in self._gently(sorted(left, key=lambda info: info.updated_at, reverse=True)):
            self._keep(info.id, _detailed(self._vault, self._entries[info.id], info, bare))

    def _keep(self, thread_id: str, entry: Entry) -> None:
        self._changes += self._entries.get(thread_id) != entry
        self._entries[thread_id] = entry

    def _knows(self, thread_id: str, mark: bytes) -> bool:
        known = self._entries.get(thread_id)
        return known is not None and known.mark == mark

    def _infos(self, wanted: Mapping[str, bytes]) -> Iterator[tuple[str, ThreadInfo | None]]:
        if len(wanted) <= MANY:
            yield from ((name, self._vault.info(name)) for name in wanted)
            return
        missing = dict.fromkeys(wanted)
        for info in self._vault.threads(limit=None):
            if info.id in missing:
                del missing[info.id]
                yield info.id, info
        yield from missing.items()  # those without a head

    def _bare(self) -> set[bytes]:
        """The marks of threads with neither notes nor records: nothing of these needs to be read, and most are so."""
        marks: set[bytes] = set()
        after: str | None = ""
        while after is not None:
            try:
                found = self._vault.store.threads(self._vault.namespace, after=after, limit=PAGE)
            except CorruptionError:  # a damaged row: those after it are read one by one
                break
            marks.update(row.fingerprint((), ()) for row in found.items)
            self._threads.moved()
            after = found.next
        return marks

    def _gently(self, items: Iterable[S]) -> Iterator[S]:
        """Items with short pauses: whoever waits for a page goes first."""
        begun = time.monotonic()
        for item in items:
            yield item
            self._threads.moved()
            if time.monotonic() - begun > SLICE_S:
                time.sleep(PAUSE_S)
                begun = time.monotonic()


def _listed(known: Entry | None, mark: bytes, info: ThreadInfo | None) -> Entry:
    """A thread whose info was read; its tags and calls, if it can have any, are those known before until they are read."""
    if info is None or info.damage is not None:
        return Entry(mark, info, detailed=True)
    return Entry(mark, info) if known is None else replace(known, mark=mark, info=info, detailed=False)


def _detailed(vault: Vault, entry: Entry, info: ThreadInfo, bare: Collection[bytes]) -> Entry:
    if entry.mark in bare:
        return Entry(entry.mark, info, detailed=True)
    try:
        tags = frozenset(tag for noted in vault.thread(info.id).noted() for tag in noted.tags)
    except CorruptionError:  # its page says what is damaged; the other threads are read
        tags = frozenset()
    try:
        calls = [call for call in vault.calls(info.id) if not call.settled]
    except CorruptionError as error:  # listed as damaged: nobody can tell what it needs of a person
        return Entry(entry.mark, replace(info, damage=str(error)), tags, detailed=True)
    pending = tuple(Pending(info.id, info.agent_id, call) for call in calls)
    return Entry(entry.mark, info, tags, pending, detailed=True)


def needing(pending: Iterable[Pending], what: Literal["answer", "outcome"], held: Collection[str]) -> list[Pending]:
    """Those that need this of a person, the oldest first."""
    return _sorted(one for one in pending if one.need(held) == what)


def _sorted(pending: Iterable[Pending]) -> list[Pending]:
    never = dt.datetime.max.replace(tzinfo=dt.UTC)
    return sorted(pending, key=lambda one: (one.call.started_at or never, one.thread_id, one.call.key))
