"""Copying every thread of a vault to another one, between any stores. Touches importing, removal, lineage, engine, frames.

A thread is copied in batches that leave its head where it was; the head moves last, so that a thread appears or advances
whole. Then the copy is read back and compared with the source. After that it gets a *mark*, a record in the copy: the next
call skips threads whose fingerprint is still the marked one, and reads only new parts of the others. A mark is also written
with every move of the head: a copy that still has that head has not diverged, so it follows the source, even if that was
pruned. A killed copy is continued, because existing checkpoints are recognised by id. Only labels, tags and records that the
source no longer has are removed from the copy; outcomes known to a ledger stay. A person's answer to an unsettled call is not
copied: the copy asks again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

import blake3

from savegame.encoding.frames import PLAIN, WITH_BLOBS, load_meta, references, unwrap
from savegame.encoding.raw import pack_raw
from savegame.encoding.tree import to_bytes
from savegame.errors import (
    AlreadyExistsError,
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    SavegameError,
)
from savegame.model import Frame, Record, ThreadKey, ThreadRow
from savegame.store import Append, MoveHead, PutNote, PutRecord, Store, StoreChange
from savegame.timeline import companions
from savegame.timeline.companions import ANSWER, COPIED, MARK, Way, policy_of
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import FRAMES_AT_ONCE, Lineage
from savegame.timeline.removal import Removal, remove
from savegame.timeline.spending import Carrying
from savegame.timeline.verify import Progress
from savegame.transfer.importing import BATCH_BYTES, ITEMS_AT_ONCE
from savegame.waiting.retrying import PLANS

logger = logging.getLogger("savegame")

COPIES: Final = "savegame:copied"
"""The thread beside which marks are stored; without checkpoints, so that no listing shows it."""


class Mark(NamedTuple):
    """How far a thread was copied. `seen` is the fingerprint of the source, empty if it was not compared yet.

    `last` is the newest frame of the source, `copy_last` that of the copy; `head` is the head of the copy.
    `address` identifies the place of the source; earlier versions did not write it.
    """

    seen: bytes
    last: int
    last_id: str | None
    copy_last: int
    head: str | None
    address: bytes = b""


def copy(source: Engine, target: Engine, namespace: str, target_namespace: str, progress: Progress, *, full: bool) -> int:
    """Copy every thread; with `full`, ignore marks. Returns the number of copied checkpoints.

    A thread that is damaged or has diverged does not stop the others; the first such error is raised at the end.
    """
    copying = _Copying(source, target, namespace, target_namespace)
    copying.run(progress, full=full)
    if copying.failed:
        raise copying.failed[0]
    return copying.copied


class _Copying:
    """One call: which threads have changed, and their marks."""

    def __init__(self, source: Engine, target: Engine, namespace: str, target_namespace: str) -> None:
        self._source, self._target = source.without_cache(), target.without_cache()
        self._cache = target.cache
        self._from, self._to = namespace, target_namespace
        self._marks: list[PutRecord] = []
        self.copied = 0
        self.failed: list[SavegameError] = []

    def run(self, progress: Progress, *, full: bool) -> None:
        ids = [thread_id for thread_id, _ in self._source.store.heads(self._from)]
        there = dict(self._target.store.heads(self._to))
        marks = Lineage(self._target, self._mark_key()).values(COPIED)
        for start in range(0, len(ids), FRAMES_AT_ONCE):
            keys = [ThreadKey(self._from, thread_id) for thread_id in ids[start : start + FRAMES_AT_ONCE]]
            for done, (key, seen) in enumerate(zip(keys, self._source.store.fingerprints(keys), strict=True), start + 1):
                mark = _read_mark(marks.get(_name(key.id))) if key.id in there else None
                if full or mark is None or not seen or (mark.seen, mark.head) != (seen, there[key.id]):
                    self._bring(key, seen, _anew(mark) if full and mark else mark)
                progress(done, len(ids))
            self._write_marks()
        gone = marks.keys() - {_name(thread_id) for thread_id in (*ids, *there)}
        self._marks += [PutRecord(self._mark_key(), COPIED, name, None) for name in gone]
        self._write_marks()

    def _bring(self, key: ThreadKey, seen: bytes, mark: Mark | None) -> None:
        """Copy one thread that may have changed. Its errors are raised after the others are done."""
        copy_key = ThreadKey(self._to, key.id)
        try:
            outcome = self._steadily(key, copy_key, seen, mark)
        except (ConflictError, CorruptionError, AlreadyExistsError, InvalidInputError) as error:
            logger.warning("thread %r was not copied: %s", key.id, error)
            self.failed.append(error)
        else:
            if outcome is not None:
                self._marks.append(_marked(copy_key, outcome))
        finally:
            self._cache.forget(copy_key)

    def _steadily(self, key: ThreadKey, copy_key: ThreadKey, seen: bytes, mark: Mark | None) -> Mark | None:
        """Copy a thread as it is at one moment; starts over, without its mark, if frames are removed meanwhile."""
        for _ in range(PLANS):
            row = self._source.store.thread(key)
            if row is None:
                return None
            work = _ThreadCopy(Lineage(self._source, key), row, Lineage(self._target, copy_key), mark)
            try:
                return work.bring(seen)
            except CheckpointNotFound:
                mark = work.mark if work.mark is None else _anew(work.mark)
            finally:
                self.copied += work.brought
        raise ConflictError(f"thread {key.id!r} keeps being pruned while it is copied; try again later, or run verify")

    def _write_marks(self) -> None:
        if self._marks:
            self._target.store.commit(self._marks)
            self._marks = []

    def _mark_key(self) -> ThreadKey:
        return ThreadKey(self._to, COPIES)


def _name(thread_id: str) -> str:
    """The name of a thread's mark: a hash, so that nothing of its id remains after an erase."""
    return blake3.blake3(thread_id.encode()).hexdigest(length=16)


def _address(store: Store, namespace: str) -> bytes:
    """Identifies a place of threads; a store in memory has only its own identity."""
    place = os.path.realpath(store.path) if os.path.exists(store.path) else store.path or hex(id(store))
    return blake3.blake3(f"{store.scheme}\0{place}\0{namespace}".encode()).digest(length=8)


def _marked(key: ThreadKey, mark: Mark) -> PutRecord:
    return PutRecord(ThreadKey(key.namespace, COPIES), COPIED, _name(key.id), PLAIN + pack_raw(list(mark)))


def _anew(mark: Mark) -> Mark:
    """A mark after which everything is read and compared again, but that still identifies the source."""
    return mark._replace(seen=b"")


def _read_mark(value: list[Any] | None) -> Mark | None:
    return None if value is None else Mark(*value)


# -- one thread ------------------------------------------------------------------------------------


class _ThreadCopy:
    """Copies what is new in one thread, up to its row; `head` is that of the copy, `brought` counts checkpoints."""

    def __init__(self, source: Lineage, row: ThreadRow, target: Lineage, mark: Mark | None) -> None:
        self._source, self._target, self._row, self._key = source, target, row, target.key
        self._there = target.row()
        there = self._there
        self._head, self.head, self._last = (there.head, there.head_id, there.last) if there else (0, None, 0)
        self.mark = mark
        self._address = _address(source.store, row.key.namespace)
        self._covered = 0 if mark is None else mark.copy_last
        self._numbers = {0: 0}
        self._large: set[bytes] = set()
        self._batch: list[StoreChange] = []
        self._appended: list[int] = []
        self._bytes, self._before = 0, self.head
        self._spending = Carrying.from_thread(target, source, row.last)
        self._ledger = target.engine.above.ledger
        self.brought = 0

    def bring(self, seen: bytes) -> Mark:
        """Append what is missing, set notes and records, move the head, compare."""
        self._refuse_stranger()
        since = self._since()
        newest: tuple[int, str | None] = (since.last, since.last_id)
        there = self._unmarked(since) if self._there is not None else {}
        for frame in chain.from_iterable(self._new(since)):
            newest = frame.seq, frame.id
            if frame.id in there:
                self._recognise(frame, there[frame.id])
            else:
                self._append(frame)
        self._put_notes()
        self._put_records()
        went_on = self._went_on()
        if went_on:
            self._commit()
        else:
            self._move_head(newest)
        self._compare(since)
        return Mark(seen, *newest, self._covered if went_on else self._last, self.head, self._address)

    def _refuse_stranger(self) -> None:
        """Raise ConflictError unless the head of the copy came from the source: then the copy has not diverged."""
        if self.head is None or self._is_in_source(self.head):
            return
        if self.mark is not None and self.mark.head == self.head and self._goes_on(self.mark):
            return
        if any(load_meta(frame.meta).parent_id == self.head for frame in self._source.everything()):
            return
        there = (frame.id for frame in self._target.everything())
        common = next((name for name in there if self._is_in_source(name)), None)
        back = (
            f"; to follow the source, rewind the copy to {common} first, which keeps its own part as a branch" if common else ""
        )
        raise ConflictError(
            f"thread {self._key.id!r} has diverged in the copy: its head {self.head} did not come from the source, "
            f"and nothing was changed; to have both, copy into another namespace{back}",
            expected=self._row.head_id,
            found=self.head,
        )

    def _is_in_source(self, checkpoint_id: str) -> bool:
        found = self._source.store.find(self._row.key.namespace, checkpoint_id)
        return found is not None and found[0] == self._row.key

    def _goes_on(self, mark: Mark) -> bool:
        """Whether the source is still the marked thread, even if pruned, and not a re-created one.

        If a marked frame is left, the copy has it. If all were pruned, the place must be the same, and the numbers must not be
        smaller: they only grow while a thread lives.
        """
        before = [frame.id for frame in self._source.everything(high=mark.last)]
        if before:
            return any(map(self._find, before))
        return mark.address in (b"", self._address) and self._row.last >= mark.last

    def _since(self) -> Mark:
        """The mark, if it is still true of the source and what it covers was compared."""
        nothing = Mark(b"", 0, None, 0, None)
        if self.mark is None or self._there is None or not self.mark.seen:
            return nothing
        found = self._source.store.frames(self._row.key, low=self.mark.last, high=self.mark.last)
        return self.mark if [frame.id for frame in found] == [self.mark.last_id] else nothing

    def _unmarked(self, since: Mark) -> dict[str, Frame]:
        """The frames of the copy that the mark does not cover, by id."""
        return {frame.id: frame for frame in self._target.everything(low=since.copy_last + 1, newest_first=False)}

    def _new(self, since: Mark) -> Iterator[list[Frame]]:
        """Pages of the source's frames that the mark does not cover, with their deltas."""
        return _pages(self._source, since.last + 1, self._row.last)

    def _recognise(self, frame: Frame, copy: Frame) -> None:
        if copy.meta != frame.meta:
            raise ConflictError(
                f"thread {self._key.id!r}: checkpoint {frame.id} is another one in the copy, and nothing was changed; "
                "to have both, copy into another namespace",
                expected=frame.id,
                found=frame.id,
            )
        self._numbers[frame.seq] = copy.seq

    def _append(self, frame: Frame) -> None:
        self._make_room()
        delta = frame.delta or b""
        blobs = tuple((name, self._large_value(frame, name)) for name in references(delta) if name not in self._large)
        self._large.update(name for name, _ in blobs)
        base, body = self._number(frame.base), self._stored(delta)
        change = Append(
            self._key, frame.id, base, frame.meta, body, frame.note, self._before, agent=self._row.agent, blobs=blobs
        )
        self._put(change, len(body) + sum(len(content) for _, content in blobs))
        self._spending.bring(frame.meta, is_new=self.mark is not None and frame.seq > self.mark.last)
        self._before = frame.id
        self._last += 1
        self._numbers[frame.seq] = self._last
        self._appended.append(self._last)

    def _number(self, seq: int) -> int:
        """The number that a frame of the source has in the copy. Raises CheckpointNotFound."""
        if seq not in self._numbers:
            copy = self._find(self._source.frame(seq).id)
            if copy is None:
                raise CheckpointNotFound(f"thread {self._key.id!r}: frame {seq} of the source is not in the copy")
            self._numbers[seq] = copy.seq
        return self._numbers[seq]

    def _find(self, checkpoint_id: str) -> Frame | None:
        """A frame of the copy by its id."""
        found = self._target.engine.find(self._key.namespace, checkpoint_id)
        return found[1] if found is not None and found[0] == self._key else None

    def _large_value(self, frame: Frame, name: bytes) -> bytes:
        body = self._source.store.blob(self._row.key, name)
        if body is None:
            if self._source.store.frames(self._row.key, low=frame.seq, high=frame.seq, deltas=True) != [frame]:
                raise CheckpointNotFound(f"thread {self._key.id!r}: frame {frame.seq} of the source was pruned meanwhile")
            raise CorruptionError(
                f"thread {self._key.id!r}: a large value of checkpoint {frame.id} is missing; run verify",
                thread_id=self._key.id,
                checkpoint_id=frame.id,
                place=f"large value {name.hex()[:12]}",
            )
        return self._stored(body)

    def _stored(self, body: bytes) -> bytes:
        """A body in the form of the target store: some stores are readable by people."""
        if self._source.store.readable == self._target.store.readable:
            return body
        flags, payload = unwrap(body)
        return self._target.engine.wrap(payload, with_blobs=bool(flags & WITH_BLOBS))

    # -- beside the frames ---------------------------------------------------------------------------

    def _put_notes(self) -> None:
        """Set the source's labels and tags, and remove those that it no longer has."""
        if self._there is None:
            return
        theirs = {frame.id: frame.note for frame in self._source.store.frames(self._row.key, high=self._row.last, noted=True)}
        ours = {frame.id: frame for frame in self._target.store.frames(self._key, noted=True)}
        new = {change.id for change in self._batch if isinstance(change, Append)}
        for checkpoint_id in theirs.keys() - new:
            copy = ours.get(checkpoint_id) or self._find(checkpoint_id)
            if copy is not None and copy.note != theirs[checkpoint_id]:
                self._put(PutNote(self._key, copy.seq, theirs[checkpoint_id], copy.note), 0)
        for checkpoint_id in ours.keys() - theirs.keys():
            if self._source.store.find(self._row.key.namespace, checkpoint_id) is not None:
                self._put(PutNote(self._key, ours[checkpoint_id].seq, None, ours[checkpoint_id].note), 0)

    def _put_records(self) -> None:
        kinds = {*self._source.kinds(), *(self._target.kinds() if self._there else ())}
        theirs = self._source.records(ANSWER) if ANSWER in kinds else ()
        answers = {record.name: record.value for record in theirs}
        for kind in sorted(kind for kind in kinds if policy_of(kind).copy not in (Way.DROP, Way.SETTLED, Way.SUM)):
            ours = {record.name: record for record in self._target.records(kind)} if self._there else {}
            for record in self._source.records(kind):
                copy = ours.pop(record.name, None)
                if copy is None or copy.value != record.value:
                    self._put_record(record, copy)
            for name, copy in ({} if policy_of(kind).copy is Way.ADD else ours).items():
                if self._ledger.yields(self._target, copy, None):
                    self._put(PutRecord(self._key, kind, name, None), 0)
        for change in self._ledger.settled_answers(self._target, answers, self._batch):
            self._put(change, len(change.value or b""))
        self._batch += self._spending.changes(is_last=True)

    def _put_record(self, record: Record, copy: Record | None) -> None:
        """Put a record that is new, or differs from the copy's."""
        if companions.is_checked(self._source.engine, record.kind):
            self._source.read(record)
        if copy is None or self._ledger.yields(self._target, copy, record.value):
            self._make_room()
            self._put(PutRecord(self._key, record.kind, record.name, record.value), len(record.value))
            self._put_other_half(record.kind, record.name)

    def _put_other_half(self, kind: str, name: str) -> None:
        """A link between two threads is two records: in the copy, either thread may have been deleted since."""
        half = policy_of(kind).twin
        other = ThreadKey(self._key.namespace, name)
        if half is not None and self._target.store.thread(other) is not None:
            twin = ThreadKey(self._row.key.namespace, name)
            if self._key.id in self._source.at(twin).names(half):
                self._put(PutRecord(other, half, self._key.id, MARK), 0)

    def _went_on(self) -> bool:
        """Whether nothing is new and the copy has checkpoints of its own: then its head was moved back in the copy."""
        if self._appended or self.brought or self._there is None or self._last == self._covered:
            return False
        newest = self._target.store.frames(self._key, low=self._covered + 1, limit=1, newest_first=True)
        return bool(newest) and self._source.store.find(self._row.key.namespace, newest[0].id) is None

    def _move_head(self, newest: tuple[int, str | None]) -> None:
        """Write the last batch, which makes everything visible, with a mark that identifies the source."""
        is_there = self._there is not None or self.brought or self._appended
        agent = self._row.agent if self._appended or self.brought else self._there.agent if self._there else None
        if is_there and (self._before, agent) != (self._row.head_id, self._row.agent or agent):
            head = self._number(self._row.head)
            self._put(MoveHead(self._key, head, self._before, agent=self._row.agent), 0)
        mark = Mark(b"", *newest, self._last, self._row.head_id, self._address)
        if self._batch:
            self._put(_marked(self._key, mark), 0)
        self._commit()
        self._head, self.head, self.mark = self._numbers.get(self._row.head, 0), self._row.head_id, mark

    # -- writing -------------------------------------------------------------------------------------

    def _put(self, change: StoreChange, size: int) -> None:
        self._batch.append(change)
        self._bytes += size

    def _make_room(self) -> None:
        """Make a full batch durable, with the head back where it was: nothing is visible before everything is written."""
        if len(self._batch) >= ITEMS_AT_ONCE or self._bytes >= BATCH_BYTES:
            if self._appended:
                self._batch += [MoveHead(self._key, self._head, self._before), *self._spending.changes()]
            self._commit()
            self._before = self.head

    def _commit(self) -> None:
        seqs = self._target.store.commit(self._batch) if self._batch else []
        appended, self._appended = self._appended, []
        self._batch, self._bytes = [], 0
        self.brought += len(appended)
        found = {seq for seq in seqs if seq}
        if found != set(appended):  # another writer appended and went back meanwhile: the bases of ours are wrong
            self._target.store.commit([MoveHead(self._key, self._head)])
            remove(self._target, list(self._target.everything()), found, Removal(self.head))
            raise ConflictError(f"thread {self._key.id!r} was changed in the copy meanwhile; copy again to continue")

    # -- comparing -----------------------------------------------------------------------------------

    def _compare(self, since: Mark) -> None:
        """Read the copy back: what was copied, or found there without a mark, must equal the source."""
        checked: set[bytes] = set()
        for page in self._new(since):
            wanted = {frame.id for frame in page}
            numbers = [self._numbers[frame.seq] for frame in page]
            copies = chain.from_iterable(_pages(self._target, min(numbers), max(numbers)))
            found = {copy.id: copy for copy in copies if copy.id in wanted}
            for frame in page:
                if frame.id not in found:
                    raise self._differs(frame, "it is missing")
                self._compare_frame(frame, found[frame.id], checked)

    def _compare_frame(self, frame: Frame, copy: Frame, checked: set[bytes]) -> None:
        if copy.meta != frame.meta:
            raise self._differs(frame, "its digest or metadata")
        if self._numbers.get(frame.base) == copy.base:
            same = unwrap(copy.delta or b"")[1] == unwrap(frame.delta or b"")[1]
        else:  # one of them was pruned since
            same = self._is_same_state(frame, copy)
        if not same:
            raise self._differs(frame, "its delta")
        for name in references(copy.delta or b""):
            if name not in checked:
                checked.add(name)
                body = self._target.store.blob(self._key, name)
                if body is None or blake3.blake3(unwrap(body)[1]).digest() != name:
                    raise self._differs(frame, f"its large value {name.hex()[:12]}")

    def _is_same_state(self, frame: Frame, copy: Frame) -> bool:
        try:
            theirs = self._source.point(frame.seq).node
        except CheckpointNotFound:  # pruned meanwhile
            return True
        ours = self._target.point(copy.seq).node
        return theirs is not None and ours is not None and to_bytes(theirs) == to_bytes(ours)

    def _differs(self, frame: Frame, what: str) -> CorruptionError:
        return CorruptionError(
            f"thread {self._key.id!r}: checkpoint {frame.id} differs in the copy: {what}; "
            "run verify on both and repair the damaged one, or copy into another namespace",
            thread_id=self._key.id,
            checkpoint_id=frame.id,
            place=f"copy of frame {frame.seq}",
        )


def _pages(thread: Lineage, low: int, high: int) -> Iterator[list[Frame]]:
    """Frames of a range with their deltas, oldest first."""
    while low <= high and (page := thread.store.frames(thread.key, low=low, high=high, limit=ITEMS_AT_ONCE, deltas=True)):
        yield page
        low = page[-1].seq + 1
