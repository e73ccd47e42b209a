"""Summaries of all threads, read in the background; threads are read again only when they change.

Pages ask for a `Snapshot` and never wait long for it. During the first read of a large store they show what is read so far.
Nothing is read while no page asks.
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
from savegame.present.sleeping import Sleeping, list_sleeping
from savegame.runs.ledger import CallEntry
from savegame.runs.runner import RunInfo
from savegame.timeline.usage import Usage
from savegame.vault import Stats, Vault

S = TypeVar("S")
T = TypeVar("T")

logger = logging.getLogger("savegame")

FIRST_READ_S: Final = 0.2
"""How long a page waits for the first read."""

GLANCE_S: Final = 0.05
"""How long it waits for later reads when they are slow: it can show the previous value."""

SLICE_S: Final = 0.01
"""How long threads are read without a pause."""

PAUSE_S: Final = 0.002

LISTED_FROM: Final = 100
"""If more threads than this have changed, all are listed in pages, which is quicker than reading them one by one."""

SUMMARIES_AT_ONCE: Final = 500

UNANSWERED_S: Final = 5.0
"""A store that does not answer for this long is reported."""

PATIENCE_AT_END_S: Final = 5.0

REST_FACTOR: Final = 10
"""After a slow read, the pause before the next one is this many times as long."""

RETRY_S: Final = 1.0
"""Pause after a failed read, however long it took, so that a recovered store reappears quickly."""

QUICK_S: Final = 0.1
"""A value that takes no longer to read is read on every request."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """An unsettled call, which may need a person."""

    thread_id: str
    agent_id: str | None
    call: CallEntry

    def need(self, held: Collection[str]) -> Literal["answer", "outcome"] | None:
        """What the call needs from a person, given the threads that live runs hold."""
        return self.call.needs(held=self.thread_id in held)


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """A thread of the lists; `mark` is its fingerprint when it was read.

    All infos are read first, tags and calls afterwards: `detailed` is whether this has happened.
    """

    mark: bytes
    info: ThreadInfo | None
    tags: frozenset[str] = frozenset()
    open_calls: tuple[OpenCall, ...] = ()
    detailed: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All threads as of the last read; during the first read, those read so far."""

    entries: tuple[ThreadSummary, ...]
    total: int | None
    """The number of threads; None until it is known."""

    @property
    def complete(self) -> bool:
        """Whether all threads are included."""
        return self.total is not None and len(self.entries) >= self.total

    @property
    def detailed(self) -> bool:
        """Whether the tags and calls of all threads are included."""
        return self.complete and all(entry.detailed for entry in self.entries)

    @property
    def open_calls(self) -> list[OpenCall]:
        """All unsettled calls."""
        return [call for entry in self.entries for call in entry.open_calls]


class BackgroundValue(Generic[T]):
    """A value that is slow to read: returns the last one, and reads a new one in the background on request."""

    def __init__(self, read: Callable[[], T], value: T, logged: dict[str, object]) -> None:
        self._read, self._value = read, value
        self._logged = logged  # errors in the log: shared, because one cause usually hits all values
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

    def get(self, patience: float = FIRST_READ_S) -> T:
        """The value, up to date if reading takes no longer than `patience` seconds."""
        with self._lock:
            if self._idle.is_set() and time.monotonic() >= self._next:
                self._idle.clear()
                self.moved()
                threading.Thread(target=self._work, name="savegame ui reads", daemon=True).start()
        hopeless = self.ready and (self._slow or self.trouble() is not None)
        self._idle.wait(min(patience, GLANCE_S) if hopeless else patience)
        return self._value

    def moved(self) -> None:
        """Note that the store answered."""
        self._moved = time.monotonic()

    def trouble(self) -> str | None:
        """Why the value may be out of date: the error of the last read, or a store that does not answer."""
        if not self._idle.is_set() and time.monotonic() - self._moved > UNANSWERED_S:
            return "the store does not answer"
        return None if self.error is None else str(self.error)

    def forget(self) -> None:
        """Read again on the next request, however recent the value is."""
        self._next = 0.0

    def rest(self) -> None:
        """Stop reading; waits a few seconds for a read in progress."""
        self._next = float("inf")
        self._idle.wait(PATIENCE_AT_END_S)

    def _work(self) -> None:
        begun = time.monotonic()
        try:
            before, self._value = self._value, self._read()
            self.changes += before != self._value
            self._logged.pop(str(self.error), None)
            self.error, self.ready, self.read_at = None, True, dt.datetime.now(dt.UTC)
        except Exception as error:  # shown by the pages, which would otherwise wait forever
            first = object()
            if self._logged.setdefault(str(error), first) is first:
                known = isinstance(error, SavegameError)
                logger.warning("the page cannot read the store: %s", error, exc_info=not known)
            self.error = error
        finally:
            ended = time.monotonic()
            took = ended - begun
            self._slow = took > QUICK_S
            rest = RETRY_S if self.error is not None else took * REST_FACTOR if self._slow else 0.0
            self._next = max(self._next, ended + rest)
            self._idle.set()


class Overview:
    """What the pages show of a whole vault."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._entries: dict[str, ThreadSummary] = {}
        self._total: int | None = None
        self._changes = 0
        logged: dict[str, object] = {}
        self._threads: BackgroundValue[None] = BackgroundValue(self._catch_up, None, logged)
        self._runs: BackgroundValue[list[RunInfo]] = BackgroundValue(lambda: list(vault.runs()), [], logged)
        self._sleeping: BackgroundValue[list[Sleeping]] = BackgroundValue(lambda: list_sleeping(vault), [], logged)
        self._usage: BackgroundValue[list[Usage]] = BackgroundValue(lambda: vault.usage(by="day"), [], logged)
        self._stats: BackgroundValue[Stats | None] = BackgroundValue(vault.stats, None, logged)

    def snapshot(self) -> Snapshot:
        """All threads. Raises the error of the last read if there is nothing to show."""
        found = self.known(FIRST_READ_S)
        if self._threads.error is not None and not found.entries:
            raise self._threads.error
        return found

    def known(self, patience: float = 0.0) -> Snapshot:
        """The threads read so far, up to date if reading takes no longer than `patience` seconds."""
        self._threads.get(patience)
        entries = tuple(self._entries.copy().values())
        return Snapshot(entries, None if self._total is None else max(self._total, len(entries)))

    def version(self, patience: float = FIRST_READ_S) -> object:
        """A value that changes with every change of threads, tags, calls, runs or the state of the store."""
        self._threads.get(patience)
        self._runs.get(min(patience, GLANCE_S))
        return self._changes, self._runs.changes, self.trouble()

    def trouble(self) -> tuple[dt.datetime | None, str] | None:
        """When threads were last read (None: never), and why not since; None if all is well."""
        why = self._threads.trouble()
        return None if why is None else (self._threads.read_at, why)

    def forks(self, thread_id: str) -> list[str]:
        """The known threads that were forked from this one."""
        known = self._entries.copy().values()
        return sorted(entry.info.id for entry in known if entry.info is not None and entry.info.forked_from == thread_id)

    def runs(self, patience: float = GLANCE_S) -> list[RunInfo]:
        """Unfinished runs."""
        return self._runs.get(patience)

    def sleeping(self) -> list[Sleeping]:
        """Threads that sleep."""
        return self._sleeping.get(GLANCE_S)

    def held(self, patience: float = GLANCE_S) -> set[str]:
        """Threads that live runs hold."""
        return {run.thread_id for run in self.runs(patience) if not run.stale}

    def usage(self) -> tuple[list[Usage], bool]:
        """Usage by day, and whether it was read yet."""
        return self._usage.get(GLANCE_S), self._usage.ready

    def stats(self) -> tuple[Stats | None, bool]:
        """Counts and sizes, and whether they were read yet."""
        return self._stats.get(GLANCE_S), self._stats.ready

    def uncounted(self) -> str | None:
        """Why usage or sizes could not be read; None if all is well."""
        return self._stats.trouble() or self._usage.trouble()

    def forget(self) -> None:
        """Read threads and runs again, because the page changed something."""
        self._threads.forget()
        self._runs.forget()
        self._sleeping.forget()

    def rest(self) -> None:
        """Stop reading, because the server ends."""
        for value in (self._threads, self._runs, self._sleeping, self._usage, self._stats):
            value.rest()

    def _catch_up(self) -> None:
        """Read what changed: infos first, so that lists are soon complete, then tags and calls, newest threads first."""
        marks = self._vault.fingerprints()
        for gone in self._entries.keys() - marks.keys():
            del self._entries[gone]
            self._changes += 1
        self._changes += self._total != len(marks)
        self._total = len(marks)
        changed = {name: mark for name, mark in marks.items() if not mark or not self._knows(name, mark)}
        for name, info in self._gently(self._infos(changed)):
            self._set(name, _with_info(self._entries.get(name), marks[name], info))
        left = [info for entry in self._entries.values() if not entry.detailed and (info := entry.info) is not None]
        bare = self._bare() if len(left) > LISTED_FROM else set()
        for info in self._gently(sorted(left, key=lambda info: info.updated_at, reverse=True)):
            self._set(info.id, _with_details(self._vault, self._entries[info.id], info, bare))

    def _set(self, thread_id: str, entry: ThreadSummary) -> None:
        self._changes += self._entries.get(thread_id) != entry
        self._entries[thread_id] = entry

    def _knows(self, thread_id: str, mark: bytes) -> bool:
        known = self._entries.get(thread_id)
        return known is not None and known.mark == mark

    def _infos(self, wanted: Mapping[str, bytes]) -> Iterator[tuple[str, ThreadInfo | None]]:
        if len(wanted) <= LISTED_FROM:
            yield from ((name, self._vault.info(name)) for name in wanted)
            return
        missing = dict.fromkeys(wanted)
        for info in self._vault.threads(limit=None):
            if info.id in missing:
                del missing[info.id]
                yield info.id, info
        yield from missing.items()  # those without a head

    def _bare(self) -> set[bytes]:
        """The marks of threads without notes and records, usually most of them: they have no details to read."""
        marks: set[bytes] = set()
        after: str | None = ""
        while after is not None:
            try:
                found = self._vault.store.threads(self._vault.namespace, after=after, limit=SUMMARIES_AT_ONCE)
            except CorruptionError:  # a damaged row: the threads after it are read one by one
                break
            marks.update(row.fingerprint((), ()) for row in found.items)
            self._threads.moved()
            after = found.next
        return marks

    def _gently(self, items: Iterable[S]) -> Iterator[S]:
        """Yield items with short pauses, so that requests go first."""
        begun = time.monotonic()
        for item in items:
            yield item
            self._threads.moved()
            if time.monotonic() - begun > SLICE_S:
                time.sleep(PAUSE_S)
                begun = time.monotonic()


def _with_info(known: ThreadSummary | None, mark: bytes, info: ThreadInfo | None) -> ThreadSummary:
    """A summary with new info; previous tags and calls stay until they are read again."""
    if info is None or info.damage is not None:
        return ThreadSummary(mark, info, detailed=True)
    return ThreadSummary(mark, info) if known is None else replace(known, mark=mark, info=info, detailed=False)


def _with_details(vault: Vault, entry: ThreadSummary, info: ThreadInfo, bare: Collection[bytes]) -> ThreadSummary:
    if entry.mark in bare:
        return ThreadSummary(entry.mark, info, detailed=True)
    try:
        tags = frozenset(tag for noted in vault.thread(info.id).noted() for tag in noted.tags)
    except CorruptionError:  # shown on the thread's own page
        tags = frozenset()
    try:
        calls = [call for call in vault.calls(info.id) if not call.settled]
    except CorruptionError as error:  # listed as damaged: what its calls need is unknown
        return ThreadSummary(entry.mark, replace(info, damage=str(error)), tags, detailed=True)
    pending = tuple(OpenCall(info.id, info.agent_id, call) for call in calls)
    return ThreadSummary(entry.mark, info, tags, pending, detailed=True)


def select_needing(pending: Iterable[OpenCall], what: Literal["answer", "outcome"], held: Collection[str]) -> list[OpenCall]:
    """Calls that need this from a person, oldest first."""
    return _by_age(one for one in pending if one.need(held) == what)


def _by_age(pending: Iterable[OpenCall]) -> list[OpenCall]:
    never = dt.datetime.max.replace(tzinfo=dt.UTC)
    return sorted(pending, key=lambda one: (one.call.started_at or never, one.thread_id, one.call.key))
