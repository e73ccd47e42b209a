"""A store in memory: a dict and a lock. The reference to read first, and what the other stores are measured by.

A thread is one `_Thread`; everything that a verb gives back is immutable. A batch changes things in place and notes, before
each change, how to take it back; if it fails, everything is taken back, newest first. Nothing outlives the process.
Touches store, _fts, _forking, model and errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import RLock
from typing import Any, ClassVar, TypeVar

from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ClosedError,
    ConflictError,
    CorruptionError,
    Fenced,
    InvalidInputError,
    ThreadNotFound,
    UnsupportedError,
)
from savegame.model import Chain, Frame, Lease, Page, Problem, Record, ThreadKey, ThreadRow
from savegame.store import (
    ANY,
    Append,
    Capability,
    DeleteThread,
    Expect,
    MoveHead,
    PutKeyframe,
    PutNote,
    PutRecord,
    Rewrite,
    Store,
    StoreChange,
    caught_up,
    check_base,
    check_expected,
    head_moved,
    headless,
    write_inside,
)
from savegame.stores.forking import Still, take_along
from savegame.stores.fts import FtsIndex

K = TypeVar("K")
V = TypeVar("V")


def open_url(url: str, *, read_only: bool = False, **options: Any) -> MemoryStore:
    """An empty store for the URL `memory:`. Other options are ignored: there is no disk that they could be about."""
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
    aside: list[Frame | tuple[bytes, bytes]] = field(default_factory=list)
    """Frames and blobs that a repair took out."""


class _Batch(ExitStack):
    """Changes that can be taken back: leaving it by an error does so, newest first; `pop_all` makes them final."""

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


class MemoryStore(Store):
    """Keeps everything in this process and forgets it on `close`. `clock` gives microseconds since 1970."""

    scheme: ClassVar[str] = "memory"
    capabilities: ClassVar[frozenset[Capability]] = frozenset((Capability.SEARCH,))

    def __init__(self, clock: Callable[[], int] | None = None, *, read_only: bool = False) -> None:
        self.read_only = read_only
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._lock = RLock()
        self._in_write = False
        self._closed = False
        self._threads: dict[ThreadKey, _Thread] = {}
        self._ids: dict[tuple[str, str], tuple[ThreadKey, int]] = {}
        self._epoch = 0
        self._index = FtsIndex()
        take_along(self)

    def still(self) -> Still:
        """Wait until nobody is in the middle of a change: the child could never end it."""
        with self._lock:
            yield

    def after_fork_in_child(self) -> None:
        """Go on with what the parent had."""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise ClosedError("this memory store was closed; open a new one")
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._locked():
            if self._in_write:  # by the thread that holds the lock
                raise write_inside("memory:")
            try:
                self._in_write = True
                yield
            finally:
                self._in_write = False

    # -- writing -----------------------------------------------------------------------------------

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        """Make every change or none."""
        if self.read_only:
            raise UnsupportedError("this memory store was opened with read_only=True")
        with self._writing(), _Batch() as batch:
            made = [self._apply(batch, change) for change in changes]
            batch.pop_all()
            return made

    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        """Take the lease on a thread, with an epoch larger than any before."""
        with self._writing():
            held = self._look(key).row.lease
            if held and held.epoch != instead_of and held.expires > self._clock():
                raise _busy(key, held)
            self._epoch += 1
            return self._set_lease(key, Lease(self._epoch, owner, self._clock() + ttl_us))

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        """Prolong a lease, or give it back."""
        with self._writing():
            held = self._look(key).row.lease
            if held is None or held.epoch != epoch or not held.expires:
                raise _fenced(key, epoch)
            # What was given back stays as the newest epoch, so that an older one still finds itself fenced.
            return self._set_lease(key, held._replace(expires=self._clock() + ttl_us if ttl_us else 0))

    def _set_lease(self, key: ThreadKey, lease: Lease) -> Lease:
        thread = self._threads.setdefault(key, _empty(key))
        thread.row = thread.row._replace(lease=lease)
        return lease

    def _apply(self, batch: _Batch, change: StoreChange) -> int:
        match change:
            case Append():
                return self._append(batch, change)
            case MoveHead():
                self._move_head(batch, change)
            case PutNote():
                self._put_note(batch, change)
            case PutRecord():
                self._put_record(batch, change)
            case PutKeyframe():
                self._put_keyframe(batch, change)
            case Rewrite():
                self._rewrite(batch, change)
            case Expect():
                self._expect(change)
            case DeleteThread():
                self._delete(batch, change)
        return 0

    def _append(self, batch: _Batch, change: Append) -> int:
        self._guard_head(change.key, change.epoch, change.expect)
        if (change.key.namespace, change.id) in self._ids:
            raise AlreadyExistsError(f"checkpoint id {change.id!r} is taken in namespace {change.key.namespace!r}")
        thread = self._made(batch, change.key)
        base = thread.frames.get(change.base)
        check_base(change, None if base is None else base.id)
        seq = thread.row.last + 1
        batch.put(thread.frames, seq, Frame(seq, change.id, change.base, change.meta, change.note, change.delta))
        batch.put(self._ids, (change.key.namespace, change.id), (change.key, seq))
        for digest, content in change.blobs:
            batch.put(thread.blobs, digest, content)
        row = thread.row._replace(head=seq, head_id=change.id, last=seq, frames=len(thread.frames))
        if change.agent is not None:
            row = row._replace(agent=change.agent)
        if change.keep_newest is not None:
            row = row._replace(floor=_floor(thread, seq, change.keep_newest))
        if change.renew_us is not None:
            row = self._renewed(row, change.renew_us)
        batch.set(thread, "row", row)
        return seq

    def _renewed(self, row: ThreadRow, renew_us: int) -> ThreadRow:
        if row.lease is None or not row.lease.expires:
            return row
        return row._replace(lease=row.lease._replace(expires=self._clock() + renew_us))

    def _move_head(self, batch: _Batch, change: MoveHead) -> None:
        self._guard_head(change.key, change.epoch, change.expect)
        thread = self._look(change.key)
        if change.seq or change.key not in self._threads:
            head_id: str | None = _frame(thread, change.seq).id
        else:
            head_id = None
        agent = thread.row.agent if change.agent is None else change.agent
        batch.set(thread, "row", thread.row._replace(head=change.seq, head_id=head_id, agent=agent))

    def _put_note(self, batch: _Batch, change: PutNote) -> None:
        thread = self._look(change.key)
        frame = _frame(thread, change.seq)
        if frame.note != change.expect:
            raise ConflictError(f"the note on checkpoint {frame.id!r} of thread {change.key.id!r} was changed meanwhile")
        batch.put(thread.frames, change.seq, frame._replace(note=change.note))

    def _put_record(self, batch: _Batch, change: PutRecord) -> None:
        self._guard_epoch(change.key, change.epoch)
        thread = self._threads.get(change.key)
        place = (change.kind, change.name)
        if change.absent and thread and place in thread.records:
            raise AlreadyExistsError(f"thread {change.key.id!r} already has a {change.kind} record {change.name!r}")
        if change.value is not None:
            batch.put(self._made(batch, change.key).records, place, change.value)
        elif thread:
            batch.drop(thread.records, place)
        if thread and change.renew_us is not None:
            batch.set(thread, "row", self._renewed(thread.row, change.renew_us))

    def _put_keyframe(self, batch: _Batch, change: PutKeyframe) -> None:
        thread = self._threads.get(change.key)
        if thread is None or change.seq not in thread.frames:
            return
        if change.body is None:
            batch.drop(thread.keyframes, change.seq)
        else:
            batch.put(thread.keyframes, change.seq, change.body)

    def _rewrite(self, batch: _Batch, change: Rewrite) -> None:
        self._guard_head(change.key, change.epoch, change.expect)
        thread = self._look(change.key)
        if not thread.frames:
            raise ThreadNotFound(f"thread {change.key.id!r} has no checkpoints to rewrite")
        change = self._caught_up(batch, thread, change)
        aside = [*thread.aside]
        for seq in change.drop:
            if seq in thread.frames:
                if thread.frames[seq].note is not None and seq not in change.noted and not change.aside:
                    raise ConflictError(f"thread {change.key.id!r}: somebody labelled or tagged frame {seq} meanwhile")
                aside.append(self._drop_frame(batch, thread, seq))
            elif not change.aside:
                raise ConflictError(f"thread {change.key.id!r}: somebody removed frame {seq} meanwhile")
        for seq, base, delta in change.rebase:
            _check_base(thread, seq, base)
            batch.put(thread.frames, seq, _frame(thread, seq)._replace(base=base, delta=delta))
        for digest in () if change.keep_blobs is None else thread.blobs.keys() - change.keep_blobs:
            aside.append((digest, thread.blobs[digest]))
            batch.drop(thread.blobs, digest)
        for digest, content in change.new_blobs:
            batch.put(thread.blobs, digest, content)
        if change.aside:
            batch.set(thread, "aside", aside)
        head = thread.row.head if change.head is None else change.head
        batch.set(thread, "row", _with_head(thread, change, head))

    def _caught_up(self, batch: _Batch, thread: _Thread, change: Rewrite) -> Rewrite:
        """A rewrite that covers newer frames too; makes the changes that go along."""
        newest = thread.row.last if change.newest is None else change.newest
        newer = [frame for seq, frame in sorted(thread.frames.items()) if seq > newest]
        if change.newest is not None:
            deltas = [(frame.seq, frame.base, frame.delta or b"") for frame in newer]
            change = caught_up(change, thread.row.frames, deltas)
        for beside in change.along([frame.meta for frame in newer] if change.drop_newer else []) if change.along else ():
            self._apply(batch, beside)
        return change

    def _drop_frame(self, batch: _Batch, thread: _Thread, seq: int) -> Frame:
        frame = thread.frames[seq]
        batch.drop(thread.frames, seq)
        batch.drop(thread.keyframes, seq)
        batch.drop(self._ids, (thread.row.key.namespace, frame.id))
        return frame

    def _expect(self, change: Expect) -> None:
        thread = self._look(change.key)
        frame = None if change.frame is None else thread.frames.get(change.frame[0])
        names = (name for kind, name in thread.records if kind == change.kind)
        check_expected(change, None if frame is None else frame.id, names)

    def _delete(self, batch: _Batch, change: DeleteThread) -> None:
        thread = self._threads.get(change.key)
        if thread is None:
            return
        self._guard_head(change.key, change.epoch, ANY)
        for frame in thread.frames.values():
            batch.drop(self._ids, (change.key.namespace, frame.id))
        batch.drop(self._threads, change.key)

    def _guard_head(self, key: ThreadKey, epoch: int | None, expect: str | None) -> None:
        row = self._look(key).row
        self._guard_epoch(key, epoch)
        if epoch is None and row.lease and row.lease.expires > self._clock():
            raise _busy(key, row.lease)
        if expect not in (ANY, row.head_id):
            raise head_moved(key, expect, row.head_id)

    def _guard_epoch(self, key: ThreadKey, epoch: int | None) -> None:
        # A lease that ran out but that nobody took since still is the newest: its holder was slow, not replaced.
        lease = self._look(key).row.lease
        if epoch is not None and (lease is None or lease.epoch != epoch):
            raise _fenced(key, epoch)

    def _look(self, key: ThreadKey) -> _Thread:
        """A thread to read from; for one that is not there, an empty one that nobody keeps."""
        return self._threads.get(key) or _empty(key)

    def _made(self, batch: _Batch, key: ThreadKey) -> _Thread:
        if key not in self._threads:
            batch.put(self._threads, key, _empty(key))
        return self._threads[key]

    # -- reading -----------------------------------------------------------------------------------

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        """What is known of a thread."""
        with self._locked():
            return self._threads[key].row if key in self._threads else None

    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        """Threads that have a head, by id."""
        with self._locked():
            rows = [self._threads[key].row for key in sorted(self._threads) if key.namespace == namespace]
        wanted = (row for row in rows if row.head and agent in (None, row.agent) and (after is None or row.key.id > after))
        return _page(wanted, limit, lambda row: row.key.id)

    def heads(self, namespace: str, *, agent: str | None = None) -> list[tuple[str, str | None]]:
        """The id and the head's id of every thread."""
        with self._locked():
            rows = [self._threads[key].row for key in sorted(self._threads) if key.namespace == namespace]
        return [(row.key.id, row.head_id) for row in rows if agent in (None, row.agent)]

    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - as in the contract
        """Where the checkpoint with this id is."""
        with self._locked():
            return self._ids.get((namespace, id))

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
        with self._locked():
            thread = self._look(key)
            kept, last = thread.frames, thread.row.last
            seqs = range(max(low, 1), min(last if high is None else high, last) + 1)
            found = (kept[seq] for seq in (reversed(seqs) if newest_first else seqs) if seq in kept)
            wanted = islice((frame for frame in found if not noted or frame.note is not None), limit)
            return [frame if deltas else frame._replace(delta=None) for frame in wanted]

    def chain(self, key: ThreadKey, seq: int, *, after: int = 0) -> Chain:
        """The nearest keyframe on the way from `seq` to its root, and the deltas since."""
        with self._locked():
            thread = self._look(key)
            deltas: list[bytes] = []
            at = _frame(thread, seq).seq
            while at and at != after:
                if at in thread.keyframes:
                    return Chain(at, thread.keyframes[at], deltas[::-1])
                frame = thread.frames[at]
                deltas.append(frame.delta or b"")
                if problem := _base_problem(thread, frame):
                    raise CorruptionError(f"thread {key.id!r}: {problem}", thread_id=key.id, checkpoint_id=frame.id)
                at = frame.base
            return Chain(at, None, deltas[::-1])

    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        """Records of one kind, by name."""
        with self._locked():
            kept = sorted(self._look(key).records.items())
        wanted = (Record(kind, name, value) for (its, name), value in kept if its == kind and name > after)
        return _page(wanted, limit, lambda record: record.name)

    def kinds(self, key: ThreadKey) -> list[str]:
        """The kinds of records that a thread has."""
        with self._locked():
            return sorted({kind for kind, _ in self._look(key).records})

    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        """The bytes of a blob of a thread."""
        with self._locked():
            return self._look(key).blobs.get(digest)

    # -- looking after -----------------------------------------------------------------------------

    def clock(self) -> int:
        """Now, in microseconds since 1970."""
        with self._locked():
            return self._clock()

    def sizes(self) -> dict[str, int]:
        """How many bytes are held, by kind; `total` counts what was put aside too."""
        with self._locked():
            threads = self._threads.values()
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
        with self._locked():
            if thread_id is not None:
                return iter(_problems(self._look(ThreadKey(namespace, thread_id))))
            threads = [thread for key, thread in sorted(self._threads.items()) if key.namespace == namespace]
            return iter([problem for thread in threads for problem in _problems(thread)])

    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        """Recode every delta and drop keyframes; all of it or, if `recode` fails, nothing."""
        with self._writing(), _Batch() as batch:
            total, done = sum(len(thread.frames) for thread in self._threads.values()), 0
            for thread in list(self._threads.values()):
                batch.set(thread, "keyframes", {})
                for frame in list(thread.frames.values()):
                    batch.put(thread.frames, frame.seq, frame._replace(delta=recode(frame.delta or b"")))
                done += len(thread.frames)
                progress(done, total)
            batch.pop_all()

    def index(self) -> FtsIndex:
        """An index in memory."""
        with self._locked():
            return self._index

    def close(self) -> None:
        """Forget everything. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._threads, self._ids = {}, {}
        self._index.close()


def _empty(key: ThreadKey) -> _Thread:
    return _Thread(ThreadRow(key, agent=None, head=0, head_id=None, last=0, floor=0, frames=0))


def _frame(thread: _Thread, seq: int) -> Frame:
    if seq not in thread.frames:
        raise CheckpointNotFound(f"thread {thread.row.key.id!r} has no checkpoint number {seq}")
    return thread.frames[seq]


def _floor(thread: _Thread, last: int, keep_newest: int) -> int:
    """The oldest of so many newest frames; never lower than it was: what was hidden stays so."""
    newest = list(islice((seq for seq in range(last, 0, -1) if seq in thread.frames), keep_newest))
    return max(thread.row.floor, newest[-1]) if newest and len(newest) == keep_newest else thread.row.floor


def _check_base(thread: _Thread, seq: int, base: int) -> None:
    if base:
        _frame(thread, base)
    if base >= seq:
        raise InvalidInputError(f"checkpoint number {seq} of thread {thread.row.key.id!r} cannot be based on number {base}")


def _with_head(thread: _Thread, change: Rewrite, head: int) -> ThreadRow:
    """The row after a rewrite. No head is right only for a thread that has nothing left."""
    if head not in thread.frames and (head or (thread.frames and thread.row.head)):
        raise headless(change, head)
    head_id = thread.frames[head].id if head else None
    return thread.row._replace(head=head, head_id=head_id, frames=len(thread.frames))


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
    # One more than asked for tells whether there is a next page.
    items = list(islice(found, limit + 1))
    return Page(items[:limit], cursor(items[limit - 1]) if len(items) > limit else None)


def _busy(key: ThreadKey, lease: Lease) -> Busy:
    return Busy(f"thread {key.id!r} is leased to {lease.owner!r}: wait for the end of its run")


def _fenced(key: ThreadKey, epoch: int) -> Fenced:
    return Fenced(f"the lease {epoch} on thread {key.id!r} was lost: nothing more can be written under it")
