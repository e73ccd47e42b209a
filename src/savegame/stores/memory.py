"""A store in memory: a dict and a lock. The reference to read first, and what the other stores are measured by.

A thread is one `_Thread`; everything that a verb returns is immutable. A commit changes things in place and records, before
each change, how to undo it; if it fails, everything is undone, newest first. Nothing outlives the process.
Touches store, rules, fts, forking, model and errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import RLock
from typing import Any, ClassVar, TypeVar

from savegame.errors import ClosedError, CorruptionError, InvalidInputError
from savegame.model import Chain, Frame, Page, Problem, Record, ThreadKey, ThreadRow
from savegame.store import Append, Capability, line_start
from savegame.stores.fts import FtsIndex
from savegame.stores.refusals import no_checkpoint, read_only, write_inside
from savegame.stores.rules import Blobs, Pin, RuledStore, Transaction
from savegame.waiting.forking import Still, take_along

K = TypeVar("K")
V = TypeVar("V")


def open_url(url: str, *, read_only: bool = False, **options: Any) -> MemoryStore:
    """An empty store for the URL `memory:`. Other options are ignored: they are about disks."""
    if url != "memory:":
        raise InvalidInputError(f"{url!r} is not a memory store; its only URL is 'memory:'")
    return MemoryStore(read_only=read_only)


@dataclass(slots=True)
class _Thread:
    """Everything that is kept of one thread."""

    row: ThreadRow
    frames: dict[int, Frame] = field(default_factory=dict)
    keyframes: dict[int, bytes] = field(default_factory=dict)
    records: dict[tuple[str, str], bytes] = field(default_factory=dict)
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    aside: tuple[Frame | tuple[bytes, bytes], ...] = ()
    """Frames and blobs that a repair took out."""


@dataclass(slots=True)
class _Tables:
    """Everything that is kept."""

    threads: dict[ThreadKey, _Thread] = field(default_factory=dict)
    ids: dict[tuple[str, str], tuple[ThreadKey, int]] = field(default_factory=dict)
    epoch: int = 0

    def look(self, key: ThreadKey) -> _Thread:
        """A thread to read from; an empty one if it does not exist."""
        return self.threads.get(key) or _empty(key)


class _Undoable(ExitStack):
    """Changes that are undone, newest first, if it is left by an error; `pop_all` makes them final."""

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        if key in table:
            self.callback(table.__setitem__, key, table[key])
        else:
            self.callback(table.pop, key, None)
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> None:
        if key in table:
            self.callback(table.__setitem__, key, table[key])
            del table[key]

    def set(self, thing: object, name: str, value: object) -> None:
        self.callback(setattr, thing, name, getattr(thing, name))
        setattr(thing, name, value)


class _Commit(Transaction):
    """The primitives of the rules, on dicts."""

    def __init__(self, tables: _Tables, undoable: _Undoable, clock: Callable[[], int]) -> None:
        self._tables = tables
        self._undoable = undoable
        self._look = tables.look
        self._clock = clock

    def now(self) -> int:
        return self._clock()

    def next_epoch(self, newest: int) -> int:
        self._undoable.set(self._tables, "epoch", self._tables.epoch + 1)
        return self._tables.epoch

    def row(self, key: ThreadKey) -> ThreadRow | None:
        return self._look(key).row if key in self._tables.threads else None

    def pins(self, key: ThreadKey, seqs: Collection[int]) -> dict[int, Pin]:
        frames = self._look(key).frames
        return {seq: Pin(frames[seq].id, frames[seq].note) for seq in seqs if seq in frames}

    def frames_after(self, key: ThreadKey, seq: int) -> list[Frame]:
        return [frame for number, frame in sorted(self._look(key).frames.items()) if number > seq]

    def nth_newest(self, key: ThreadKey, number: int) -> int | None:
        frames, last = self._look(key).frames, self._look(key).row.last
        return next(islice((seq for seq in range(last, 0, -1) if seq in frames), number, None), None)

    def count(self, key: ThreadKey) -> int:
        return len(self._look(key).frames)

    def is_taken(self, change: Append) -> bool:
        return (change.key.namespace, change.id) in self._tables.ids

    def has_record(self, key: ThreadKey, kind: str, name: str) -> bool:
        return (kind, name) in self._look(key).records

    def record_names(self, key: ThreadKey, kind: str) -> Iterator[str]:
        return (name for its, name in self._look(key).records if its == kind)

    def add_thread(self, key: ThreadKey) -> ThreadRow:
        self._undoable.put(self._tables.threads, key, _empty(key))
        return self._look(key).row

    def put_row(self, row: ThreadRow) -> None:
        self._undoable.set(self._look(row.key), "row", row)

    def add_frame(self, row: ThreadRow, frame: Frame) -> None:
        self._undoable.put(self._look(row.key).frames, frame.seq, frame)
        self._undoable.put(self._tables.ids, (row.key.namespace, frame.id), (row.key, frame.seq))
        self.put_row(row)

    def put_note(self, key: ThreadKey, seq: int, note: bytes | None) -> None:
        frames = self._look(key).frames
        self._undoable.put(frames, seq, frames[seq]._replace(note=note))

    def rebase(self, key: ThreadKey, frames: Sequence[tuple[int, int, bytes]]) -> None:
        table = self._look(key).frames
        for seq, base, delta in frames:
            self._undoable.put(table, seq, table[seq]._replace(base=base, delta=delta))

    def drop_frames(self, key: ThreadKey, seqs: Sequence[int], *, aside: bool) -> None:
        thread = self._look(key)
        gone = [thread.frames[seq] for seq in seqs if seq in thread.frames]
        for frame in gone:
            self._undoable.drop(thread.frames, frame.seq)
            self._undoable.drop(thread.keyframes, frame.seq)
            self._undoable.drop(self._tables.ids, (key.namespace, frame.id))
        if aside:
            self._undoable.set(thread, "aside", (*thread.aside, *gone))

    def put_keyframe(self, key: ThreadKey, seq: int, body: bytes | None) -> None:
        thread = self._look(key)
        if body is None:
            self._undoable.drop(thread.keyframes, seq)
        elif seq in thread.frames:
            self._undoable.put(thread.keyframes, seq, body)

    def put_record(self, key: ThreadKey, kind: str, name: str, value: bytes | None) -> None:
        records = self._look(key).records
        if value is None:
            self._undoable.drop(records, (kind, name))
        else:
            self._undoable.put(records, (kind, name), value)

    def put_blobs(self, key: ThreadKey, blobs: Blobs) -> None:
        for digest, content in blobs:
            self._undoable.put(self._look(key).blobs, digest, content)

    def keep_blobs(self, key: ThreadKey, digests: Collection[bytes], *, aside: bool) -> None:
        thread = self._look(key)
        gone = [(digest, content) for digest, content in thread.blobs.items() if digest not in digests]
        for digest, _ in gone:
            self._undoable.drop(thread.blobs, digest)
        if aside:
            self._undoable.set(thread, "aside", (*thread.aside, *gone))

    def delete_thread(self, key: ThreadKey) -> None:
        for frame in self._look(key).frames.values():
            self._undoable.drop(self._tables.ids, (key.namespace, frame.id))
        self._undoable.drop(self._tables.threads, key)

    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        """`Store.compact`."""
        total, done = sum(len(thread.frames) for thread in self._tables.threads.values()), 0
        for thread in list(self._tables.threads.values()):
            self._undoable.set(thread, "keyframes", {})
            for frame in list(thread.frames.values()):
                self._undoable.put(thread.frames, frame.seq, frame._replace(delta=recode(frame.delta or b"")))
            done += len(thread.frames)
            progress(done, total)


class MemoryStore(RuledStore):
    """Keeps everything in this process and forgets it on `close`. `clock` returns microseconds since 1970."""

    scheme: ClassVar[str] = "memory"
    capabilities: ClassVar[frozenset[Capability]] = frozenset((Capability.SEARCH,))

    def __init__(self, clock: Callable[[], int] | None = None, *, read_only: bool = False) -> None:
        self.read_only = read_only
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._lock = RLock()
        self._in_write = False
        self._closed = False
        self._tables = _Tables()
        self._index = FtsIndex()
        take_along(self)

    def still(self) -> Still:
        """Wait until no change is half done: the child could never finish it."""
        with self._lock:
            yield

    def after_fork_in_child(self) -> None:
        """Go on with what the parent had."""

    @contextmanager
    def _locked(self) -> Iterator[_Tables]:
        with self._lock:
            if self._closed:
                raise ClosedError("this memory store was closed; open a new one")
            yield self._tables

    @contextmanager
    def transaction(self) -> Iterator[_Commit]:
        """Changes that are undone by an error."""
        with self._locked() as tables:
            if self.read_only:
                raise read_only("memory:")
            if self._in_write:  # by the thread that holds the lock
                raise write_inside("memory:")
            try:
                self._in_write = True
                with _Undoable() as undoable:
                    yield _Commit(tables, undoable, self._clock)
                    undoable.pop_all()
            finally:
                self._in_write = False

    # -- reading -----------------------------------------------------------------------------------

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        """What is known of a thread."""
        with self._locked() as tables:
            return tables.threads[key].row.public() if key in tables.threads else None

    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        """Threads that have a head, by id."""
        rows = self._rows(namespace)
        wanted = (
            row.public() for row in rows if row.head and agent in (None, row.agent) and (after is None or row.key.id > after)
        )
        return _page(wanted, limit, lambda row: row.key.id)

    def heads(self, namespace: str, *, agent: str | None = None) -> list[tuple[str, str | None]]:
        """The id and the head's id of every thread."""
        return [(row.key.id, row.head_id) for row in self._rows(namespace) if agent in (None, row.agent)]

    def _rows(self, namespace: str) -> list[ThreadRow]:
        with self._locked() as tables:
            return [tables.threads[key].row for key in sorted(tables.threads) if key.namespace == namespace]

    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - as in the contract
        """Where the checkpoint with this id is."""
        with self._locked() as tables:
            return tables.ids.get((namespace, id))

    def frames(
        self,
        key: ThreadKey,
        *,
        low: int = 0,
        high: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        noted: bool = False,
        deltas: bool = False,
    ) -> list[Frame]:
        """Frames of a range, in order."""
        with self._locked() as tables:
            thread = tables.look(key)
            table, last = thread.frames, thread.row.last
            seqs = range(max(low, 1), min(last if high is None else high, last) + 1)
            found = (table[seq] for seq in (reversed(seqs) if newest_first else seqs) if seq in table)
            wanted = islice((frame for frame in found if not noted or frame.note is not None), limit)
            return [frame if deltas else frame._replace(delta=None) for frame in wanted]

    def chain(self, key: ThreadKey, seq: int, *, after: int = 0, meta: bytes | None = None) -> Chain:
        """The nearest keyframe on the way from `seq` to its root, and the deltas since."""
        with self._locked() as tables:
            thread = tables.look(key)
            if seq not in thread.frames or meta not in (None, thread.frames[seq].meta):
                raise no_checkpoint(key, seq)
            deltas: list[bytes] = []
            at = seq
            while at and at != after:
                if at in thread.keyframes:
                    return Chain(at, thread.keyframes[at], deltas[::-1])
                frame = thread.frames[at]
                deltas.append(frame.delta or b"")
                if problem := _base_problem(thread, frame):
                    raise CorruptionError(f"thread {key.id!r}: {problem}", thread_id=key.id, checkpoint_id=frame.id)
                at = frame.base
            return Chain(at, None, deltas[::-1])

    def unbroken(self, key: ThreadKey, seq: int) -> int:
        with self._locked():
            frames = self._tables.look(key).frames
            if seq not in frames:
                raise no_checkpoint(key, seq)
            return line_start(lambda number: frames[number].base if number in frames else None, seq)

    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        """Records of one kind, by name."""
        with self._locked() as tables:
            rows = sorted(tables.look(key).records.items())
        wanted = (Record(kind, name, value) for (its, name), value in rows if its == kind and name > after)
        return _page(wanted, limit, lambda record: record.name)

    def kinds(self, key: ThreadKey) -> list[str]:
        """The kinds of records that a thread has."""
        with self._locked() as tables:
            return sorted({kind for kind, _ in tables.look(key).records})

    def threads_with(self, namespace: str, kind: str) -> list[str]:
        """The ids of the threads that have records of a kind."""
        with self._locked() as tables:
            threads = [(key, thread) for key, thread in tables.threads.items() if key.namespace == namespace]
            return sorted(key.id for key, thread in threads if any(its == kind for its, _ in thread.records))

    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        """The bytes of a blob of a thread."""
        with self._locked() as tables:
            return tables.look(key).blobs.get(digest)

    # -- looking after -----------------------------------------------------------------------------

    def clock(self) -> int:
        """Now, in microseconds since 1970."""
        with self._locked():
            return self._clock()

    def sizes(self) -> dict[str, int]:
        """How many bytes are held, by kind; `total` counts what was set aside too."""
        with self._locked() as tables:
            threads = tables.threads.values()
            frames = [frame for thread in threads for frame in thread.frames.values()]
            sizes = {
                "frames": sum(len(frame.meta) + len(frame.delta or b"") for frame in frames),
                "keyframes": sum(len(body) for thread in threads for body in thread.keyframes.values()),
                "notes": sum(len(frame.note or b"") for frame in frames),
                "records": sum(len(value) for thread in threads for value in thread.records.values()),
                "blobs": sum(len(content) for thread in threads for content in thread.blobs.values()),
            }
            aside = (part for thread in threads for taken in thread.aside for part in taken if isinstance(part, bytes))
            return sizes | {"total": sum(sizes.values()) + sum(map(len, aside))}

    def check(self, namespace: str, thread_id: str | None = None) -> Iterator[Problem]:
        """Report what does not fit together. The bytes themselves cannot rot here."""
        with self._locked() as tables:
            if thread_id is not None:
                return iter(_problems(tables.look(ThreadKey(namespace, thread_id))))
            threads = [thread for key, thread in sorted(tables.threads.items()) if key.namespace == namespace]
            return iter([problem for thread in threads for problem in _problems(thread)])

    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        """Recode every delta and drop keyframes; all of it or, if `recode` fails, nothing."""
        with self.transaction() as transaction:
            transaction.compact(recode, progress)

    def index(self) -> FtsIndex:
        """An index in memory."""
        with self._locked():
            return self._index

    def close(self) -> None:
        """Forget everything. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._tables = _Tables()
        self._index.close()


def _empty(key: ThreadKey) -> _Thread:
    return _Thread(ThreadRow(key, agent=None, head=0, head_id=None, last=0, floor=0, frames=0))


def _base_problem(thread: _Thread, frame: Frame) -> str | None:
    if frame.base and frame.base not in thread.frames:
        return f"checkpoint number {frame.seq} is based on number {frame.base}, which is missing"
    if frame.base >= frame.seq:
        return f"checkpoint number {frame.seq} is based on number {frame.base}, which is not older"
    return None


def _problems(thread: _Thread) -> Iterator[Problem]:
    row = thread.row
    if row.head and row.head not in thread.frames:
        yield Problem(row.key.id, row.head_id, "head", f"number {row.head} is missing")
    if row.frames != len(thread.frames):
        yield Problem(row.key.id, None, "row", f"counts {row.frames} checkpoints, there are {len(thread.frames)}")
    for seq, frame in sorted(thread.frames.items()):
        if not 0 < seq <= row.last:
            yield Problem(row.key.id, frame.id, "frame", f"number {seq} is beyond the last one, {row.last}")
        if problem := _base_problem(thread, frame):
            yield Problem(row.key.id, frame.id, "frame", problem)
    for seq in sorted(thread.keyframes.keys() - thread.frames.keys()):
        yield Problem(row.key.id, None, "keyframe", f"belongs to number {seq}, which is missing")


def _page(found: Iterator[V], limit: int, cursor: Callable[[V], str]) -> Page[V]:
    # One more than the limit shows whether there is a next page.
    items = list(islice(found, limit + 1))
    return Page(items[:limit], cursor(items[limit - 1]) if len(items) > limit else None)
