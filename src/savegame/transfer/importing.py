"""Importing files of `exporting.py` into any store. Touches export_lines, removal, lineage, engine, frames.

A file is read twice. First every line is checked by itself, each history against its digests, and each thread against the
existing one; nothing is written unless everything is valid. Then, thread by thread, checkpoints are appended in batches that
leave the head where it was, their states are loaded once, and the head moves last. So a new thread appears whole, and an
interrupted import is continued. A person's answer to an unsettled call is not imported: the imported thread asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from savegame.encoding.frames import DIGEST_BYTES, WITH_BLOBS, Meta, digest, load_meta, most_from, references, unwrap
from savegame.errors import AlreadyExistsError, ConflictError, CorruptionError
from savegame.model import Frame, Record, ThreadKey
from savegame.store import Append, MoveHead, PutNote, PutRecord, StoreChange
from savegame.timeline import companions
from savegame.timeline.companions import SPENT, Way, policy_of
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import Lineage
from savegame.timeline.removal import Removal, remove
from savegame.timeline.spending import Carrying, Spending, of_record, spent_by, together
from savegame.timeline.verify import Progress
from savegame.transfer.export_lines import Beside, CheckpointLine, Head, Large, LineReader, Part, opened

ITEMS_AT_ONCE: Final = 64
BATCH_BYTES: Final = 8 * 1024 * 1024


class ImportPlan(NamedTuple):
    """A thread whose lines were checked: its head in the store, and whether the file has anything new.

    `spent` is the cost of the thread in the file, including removed checkpoints if it `is_pruned`.
    """

    head: str | None
    is_behind: bool
    spent: Spending
    is_pruned: bool


def import_file(engine: Engine, namespace: str, path: str, progress: Progress) -> int:
    """Import every thread of a file, skipping existing checkpoints. Returns the number of imported checkpoints."""
    with opened(path) as file:
        plans: dict[str, ImportPlan] = {}
        reader = LineReader(file, path, progress, 0)
        for thread, items in reader.threads():
            if thread.id in plans:
                raise reader.damaged(f"thread {thread.id!r} appears twice")
            plans[thread.id] = _check(Lineage(engine, ThreadKey(namespace, thread.id)), items, reader)
        imported = 0
        reader = LineReader(file, path, progress, 1)
        for thread, items in reader.threads():
            target, plan = Lineage(engine, ThreadKey(namespace, thread.id)), plans[thread.id]
            if plan.is_behind:
                imported += _ThreadImport(target, thread.agent, plan, reader).bring(items)
            else:
                _add_beside(target, plan, items)
        return imported


def check_first_line(path: str) -> None:
    """Raise the error of `import_file` for a file that is missing, foreign or of a newer format."""
    with opened(path) as file:
        LineReader(file, path, lambda done, total: None, 0)


def _add_beside(thread: Lineage, plan: ImportPlan, items: Iterator[Part]) -> None:
    """Add subjects, links and spending to a thread that is otherwise unchanged.

    `erase` follows them: a fork that was deleted here may be imported again.
    """
    given = [item for item in items if isinstance(item, Beside) and policy_of(item.kind).copy is Way.ADD]
    there = {(kind, record.name) for kind in {item.kind for item in given} for record in thread.records(kind)}
    new: list[StoreChange] = [
        PutRecord(thread.key, item.kind, item.name, item.value) for item in given if (item.kind, item.name) not in there
    ]
    new += _carrying(thread, plan).changes(is_last=True)
    if new:
        thread.store.commit(new)


def _carrying(thread: Lineage, plan: ImportPlan) -> Carrying:
    return Carrying(thread, lambda: plan.spent, needed=plan.is_pruned)


# -- checking --------------------------------------------------------------------------------------


def _check(thread: Lineage, items: Iterator[Part], reader: LineReader) -> ImportPlan:
    """Check one thread against itself and against the store."""
    key = thread.key
    there = {frame.id: frame.meta[:DIGEST_BYTES] for frame in thread.everything()}  # the newest first
    digests: dict[str | None, bytes] = {None: b""}
    large: set[bytes] = set()
    head: str | None = None
    is_after = False
    spent: Spending = {}
    removed: Spending = {}
    for item in items:
        if is_after and isinstance(item, (Large, CheckpointLine)):
            raise reader.damaged("it comes after a record; checkpoints must come before records")
        match item:
            case Large():
                large.add(item.name)
            case CheckpointLine():
                spent = together(spent, spent_by([_check_point(key, item, digests, large, reader)]))
                _check_place(thread, item, there.get(item.id))
            case Beside():
                is_after = True
                _check_record(thread, item, reader)
                if item.kind == SPENT:
                    removed = together(removed, of_record(thread, Record(item.kind, item.name, item.value)))
            case Head():
                head = item.id
    if head not in digests:
        raise reader.damaged(f"the head {head} is not a checkpoint of the thread")
    row = thread.row()
    found = row.head_id if row else None
    missing = digests.keys() - there.keys() - {None}
    if missing and found not in digests:
        raise ConflictError(
            f"thread {key.id!r} has diverged: its head {found} is not in the file, and {len(missing)} checkpoints of the "
            "file are not in it; nothing was imported, use another namespace to have both",
            expected=head,
            found=found,
        )
    went_on = next(iter(there), None) not in digests  # if its head is in the file, it was moved back there
    moved = found in digests and found != head and head is not None and not went_on
    is_behind = bool(missing) or found is None or moved
    return ImportPlan(found, is_behind, together(spent, removed), bool(removed))


def _check_point(
    key: ThreadKey, point: CheckpointLine, digests: dict[str | None, bytes], large: set[bytes], reader: LineReader
) -> Meta:
    if point.id in digests:
        raise reader.damaged(f"checkpoint {point.id} appears twice")
    if point.base not in digests:
        raise reader.damaged(f"checkpoint {point.id} builds on {point.base}, which does not come before it")
    if not large.issuperset(references(point.delta)):
        raise reader.damaged(f"a large value of checkpoint {point.id} does not come before it")
    meta = load_meta(point.meta)
    packed, payload = point.meta[DIGEST_BYTES:], unwrap(point.delta)[1]
    is_original = point.base == meta.parent_id and meta.forked_from is None
    if is_original and digest(digests[point.base], key.id, point.id, packed, payload) != meta.digest:
        raise reader.damaged(f"the history of checkpoint {point.id} does not match its digest")
    digests[point.id] = meta.digest
    return meta


def _check_record(thread: Lineage, record: Beside, reader: LineReader) -> None:
    if companions.is_checked(thread.engine, record.kind):
        try:
            thread.read(Record(record.kind, record.name, record.value))
        except CorruptionError as error:
            raise reader.damaged(str(error.__cause__)) from error


def _check_place(thread: Lineage, point: CheckpointLine, there: bytes | None) -> None:
    """Refuse a checkpoint whose id another one has; `there` is the digest of the existing checkpoint of the thread."""
    key = thread.key
    if there is not None:
        if there != point.meta[:DIGEST_BYTES]:
            raise ConflictError(
                f"thread {key.id!r} has diverged: checkpoint {point.id} is another one than in the file; "
                "nothing was imported, use another namespace to have both",
                expected=point.id,
                found=point.id,
            )
        return
    found = thread.store.find(key.namespace, point.id)
    if found is not None and found[0] != key:
        raise AlreadyExistsError(
            f"checkpoint {point.id} of thread {key.id!r} already exists in thread {found[0].id!r}; "
            "nothing was imported, use another namespace"
        )


# -- bringing --------------------------------------------------------------------------------------


class _ThreadImport:
    """Imports one thread whose lines were checked."""

    def __init__(self, thread: Lineage, agent: str | None, plan: ImportPlan, reader: LineReader) -> None:
        self._thread, self._agent, self._reader = thread, agent, reader
        self._engine, self._key = thread.engine, thread.key
        row = thread.row()
        self._head, self._head_id, self._last = (row.head, row.head_id, row.last) if row else (0, None, 0)
        if self._head_id != plan.head:
            raise _changed(thread.key, plan.head, self._head_id)
        self._there = {frame.id: frame for frame in thread.everything()}
        self._numbers: dict[str | None, int] = {None: 0} | {name: frame.seq for name, frame in self._there.items()}
        self._large: dict[bytes, int] = {}
        self._ends: dict[str | None, int] = {}
        self._notes: list[PutNote] = []
        self._records: dict[str, dict[str, Record]] = {}
        self._answers: dict[str, bytes] = {}
        self._batch: list[StoreChange] = []
        self._bytes, self._before = 0, self._head_id
        self._new: dict[str, int] = {}
        self._spending = _carrying(thread, plan)
        self._ledger = thread.engine.above.ledger

    def bring(self, items: Iterator[Part]) -> int:
        """Append what is missing, load new states, set notes and records, move the head. Returns the number of new ones."""
        for item in items:
            if len(self._batch) >= ITEMS_AT_ONCE or self._bytes >= BATCH_BYTES:
                self._flush()
            match item:
                case Large():
                    self._large[item.name] = self._reader.start
                case CheckpointLine() if item.id in self._there:
                    self._compare_note(self._there[item.id], item)
                case CheckpointLine():
                    self._append(item)
                case Beside():
                    if self._ends or self._notes:
                        self._settle()
                    self._put_record(item)
                case Head():
                    self._settle()
                    self._batch.extend(self._ledger.settled_answers(self._thread, self._answers, self._batch))
                    self._batch.extend(self._spending.changes(is_last=True))
                    self._finish(item.id)
        return len(self._new)

    def _append(self, point: CheckpointLine) -> None:
        flags, payload = unwrap(point.delta)
        body = self._engine.wrap(payload, with_blobs=bool(flags & WITH_BLOBS))
        contents = {name: unwrap(self._reader.large(self._large[name]).body)[1] for name in references(point.delta)}
        base, blobs, expect = self._numbers[point.base], self._engine.wrap_blobs(contents), self._before
        change = Append(self._key, point.id, base, point.meta, body, point.note, expect, agent=self._agent, blobs=blobs)
        self._put(change, len(body) + sum(map(len, contents.values())))
        self._spending.bring(point.meta, is_new=False)
        self._before = point.id
        self._last += 1
        self._numbers[point.id] = self._new[point.id] = self._ends[point.id] = self._last
        self._ends.pop(point.base, None)

    def _compare_note(self, frame: Frame, point: CheckpointLine) -> None:
        if frame.note != point.note:
            self._notes.append(PutNote(self._key, frame.seq, point.note, frame.note))

    def _put_record(self, record: Beside) -> None:
        kind, way = record.kind, policy_of(record.kind).copy
        if way is Way.SETTLED:  # decided when all calls are known
            self._answers[record.name] = record.value
        if way in (Way.SETTLED, Way.DROP, Way.SUM):
            return
        if kind not in self._records:
            self._records[kind] = {found.name: found for found in self._thread.records(kind)}
        there = self._records[kind].get(record.name)
        if there is None or (there.value != record.value and self._ledger.yields(self._thread, there, record.value)):
            self._put(PutRecord(self._key, kind, record.name, record.value), len(record.value))

    def _put(self, change: StoreChange, size: int) -> None:
        self._batch.append(change)
        self._bytes += size

    def _flush(self) -> None:
        """Make the batch durable, with the head back where it was: nothing is visible before everything is written."""
        appended = [change.id for change in self._batch if isinstance(change, Append)]
        if appended:
            self._batch += [MoveHead(self._key, self._head, self._before), *self._spending.changes()]
        if self._batch:
            seqs = self._engine.store.commit(self._batch)
            if [seq for seq in seqs if seq] != [self._new[name] for name in appended]:  # their bases are wrong, too
                self._take_away()
                raise _changed(self._key, self._head_id, None)
        self._batch, self._bytes, self._before = [], 0, self._head_id

    def _settle(self) -> None:
        """After the last checkpoint, load the state at the end of every new line. If one fails, remove all new ones."""
        self._flush()
        engine = self._engine.without_cache()
        engine.largest = min(engine.largest, most_from(self._reader.size))
        try:
            for seq in self._ends.values():
                Lineage(engine, self._key).point(seq)
        except CorruptionError as error:
            self._take_away()
            raise self._reader.damaged(f"the thread before it does not load: {error}") from error
        self._batch.extend(self._notes)
        self._ends, self._notes = {}, []

    def _take_away(self) -> None:
        frames = list(self._thread.everything())
        new = {frame.seq for frame in frames if frame.id in self._new}
        undo = self._spending.undo()
        remove(self._thread, frames, new, Removal(self._head_id, along=lambda _: undo))

    def _finish(self, head: str | None) -> None:
        self._flush()
        if head not in (None, self._head_id):
            self._engine.store.commit([MoveHead(self._key, self._numbers[head], self._head_id)])
        self._engine.cache.forget(self._key)


def _changed(key: ThreadKey, expected: str | None, found: str | None) -> ConflictError:
    message = f"thread {key.id!r} was changed while it was imported; import again to continue"
    return ConflictError(message, expected=expected, found=found)
