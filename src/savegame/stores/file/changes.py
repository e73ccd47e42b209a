"""What each kind of change does to a journal: checked against the index in memory, then said as lines to be written.

A `Draft` collects the lines of one thread in one commit. Most changes only add lines; after a Rewrite the journal is
written anew, and after a DeleteThread it begins a new life. Changes are made to the index at once, so that later ones of a
commit see them: when a commit fails, its threads are forgotten and read again.
Touches store, model, _file_journal, _file_lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from savegame.encoding.json_form import from_text, to_text
from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ConflictError,
    Fenced,
    InvalidInputError,
    ThreadNotFound,
)
from savegame.model import Frame, Lease, ThreadKey, ThreadRow
from savegame.store import (
    ANY,
    Append,
    DeleteThread,
    Expect,
    MoveHead,
    PutKeyframe,
    PutNote,
    PutRecord,
    Rewrite,
    StoreChange,
    caught_up,
    check_base,
    check_expected,
    head_moved,
    headless,
)
from savegame.stores.file.journal import Entry, Journal, Reader, new_journal
from savegame.stores.file.lines import Op, Place, first_line, save_op


@dataclass(slots=True)
class Draft:
    """What a commit does to one thread."""

    journal: Journal
    there: bool
    """Whether the thread has a directory."""
    lines: list[Place] = field(default_factory=list)
    whole: bool = False
    """Whether the journal has to be written anew."""
    gone: bool = False
    reborn: bool = False
    """Whether it was deleted on the way: nothing beside the journal stays."""
    keyframes: dict[int, bytes | None] = field(default_factory=dict)
    aside: list[Place] = field(default_factory=list)
    """Lines of the old journal that are kept although they are taken out."""
    new_ids: list[str] = field(default_factory=list)
    recode: Callable[[bytes], bytes] | None = None
    """What to make of every delta on the way."""

    def say(self, op: Op) -> None:
        """Add a line."""
        place = Place(op=op)
        self.lines.append(place)  # first: whoever is interrupted now must see that the index may have changed
        self.journal.apply(op, place)


class Changes:
    """One commit in the making. `look` gives the journal of a thread, `elsewhere` those in which an id may be."""

    def __init__(
        self,
        clock: Callable[[], int],
        look: Callable[[ThreadKey], Journal | None],
        directory: Callable[[ThreadKey], str],
        elsewhere: Callable[[str, str], Iterable[Journal]],
    ) -> None:
        self._clock = clock
        self._look = look
        self._directory = directory
        self._elsewhere = elsewhere
        self.drafts: dict[ThreadKey, Draft] = {}

    def make(self, changes: Sequence[StoreChange]) -> list[int]:
        """Check and take in every change; gives the sequence numbers that they make."""
        return [_MAKE[type(change)](self, change) for change in changes]

    def lease(
        self, key: ThreadKey, owner: str, ttl_us: int, instead_of: int | None, next_epoch: Callable[[int, int], int]
    ) -> Lease:
        """`Store.lease`."""
        draft = self._draft(key)
        held = draft.journal.row.lease
        now = self._clock()
        if held and held.epoch != instead_of and held.expires > now:
            raise _busy(key, held)
        epoch = next_epoch(held.epoch if held else 0, now)
        return _say_lease(draft, Lease(epoch, owner, self._clock() + ttl_us))

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        """`Store.renew`."""
        draft = self._draft(key)
        self._check_epoch(draft.journal.row, epoch)
        held = draft.journal.row.lease
        if held is None or not held.expires:
            raise _fenced(key, epoch)
        # What was given back stays as the newest epoch, so that an older one still finds itself fenced.
        return _say_lease(draft, held._replace(expires=self._clock() + ttl_us if ttl_us else 0))

    def _draft(self, key: ThreadKey) -> Draft:
        if key not in self.drafts:
            found = self._look(key)
            self.drafts[key] = Draft(found or new_journal(key, self._directory(key)), there=found is not None)
        return self.drafts[key]

    # -- kinds of changes --------------------------------------------------------------------------

    def _append(self, change: Append) -> int:
        draft = self._draft(change.key)
        journal = draft.journal
        self._check_head(journal.row, change.epoch, change.expect)
        base = journal.entries.get(change.base)
        check_base(change, None if base is None else base.id)
        if not change.fresh or change.id in journal.ids:
            self._refuse_taken(change.key, change.id)
        seq = journal.row.last + 1
        floor = 0 if change.keep_newest is None else _floor(journal, seq, change.keep_newest)
        for digest, content in change.blobs:
            if digest not in journal.blobs:
                draft.say({"large": digest.hex(), "text": to_text("content", content)})
        if change.agent not in (None, journal.row.agent):  # a line of its own: damage to a save does not hide whose it is
            draft.say({"head": journal.row.head, "agent": change.agent})
        draft.say(save_op(Frame(seq, change.id, change.base, change.meta, change.note, change.delta), floor))
        self._renew(draft, change.renew_us)
        draft.new_ids.append(change.id)
        draft.gone = False
        return seq

    def _refuse_taken(self, key: ThreadKey, name: str) -> None:
        drafts = [draft.journal for its, draft in self.drafts.items() if its.namespace == key.namespace]
        others = (found for found in self._elsewhere(key.namespace, name) if found.key not in self.drafts)
        if any(name in journal.ids for journal in (*drafts, *others)):
            raise AlreadyExistsError(f"a checkpoint with the id {name!r} exists already in namespace {key.namespace!r}")

    def _move_head(self, change: MoveHead) -> int:
        draft = self._draft(change.key)
        self._check_head(draft.journal.row, change.epoch, change.expect)
        if change.seq:
            _entry(draft.journal, change.seq)
        elif not draft.journal.entries:
            raise CheckpointNotFound(f"thread {change.key.id!r} has no checkpoints")
        draft.say({"head": change.seq} | ({} if change.agent is None else {"agent": change.agent}))
        return 0

    def _put_note(self, change: PutNote) -> int:
        draft = self._draft(change.key)
        if _entry(draft.journal, change.seq).note != change.expect:
            raise ConflictError(f"thread {change.key.id!r}: somebody else changed the label or tags of frame {change.seq}")
        draft.say({"note": change.seq, "text": None if change.note is None else to_text("note", change.note)})
        return 0

    def _put_record(self, change: PutRecord) -> int:
        draft = self._draft(change.key)
        self._check_epoch(draft.journal.row, change.epoch)
        there = (change.kind, change.name) in draft.journal.records
        if change.absent and there:
            raise AlreadyExistsError(f"thread {change.key.id!r}: the record {change.kind} {change.name!r} exists already")
        if change.value is not None or there:
            text = None if change.value is None else to_text("value", change.value)
            draft.say({"record": change.name, "kind": change.kind, "text": text})
            draft.gone = False
        self._renew(draft, change.renew_us)
        return 0

    def _renew(self, draft: Draft, renew_us: int | None) -> None:
        lease = draft.journal.row.lease
        if renew_us is not None and lease is not None and lease.expires:
            _say_lease(draft, lease._replace(expires=self._clock() + renew_us))

    def _put_keyframe(self, change: PutKeyframe) -> int:
        draft = self._draft(change.key)
        if change.seq in draft.journal.entries:
            draft.keyframes[change.seq] = change.body
        return 0

    def _rewrite(self, change: Rewrite) -> int:
        draft = self._draft(change.key)
        journal = draft.journal
        self._check_head(journal.row, change.epoch, change.expect)
        if not journal.entries:
            raise ThreadNotFound(f"thread {change.key.id!r} has no checkpoints to rewrite")
        newer = [] if change.newest is None else _newer(journal, change.newest)
        if change.newest is not None:
            change = caught_up(change, journal.row.frames, [(frame.seq, frame.base, frame.delta or b"") for frame in newer])
        if change.along is not None:
            for beside in change.along([frame.meta for frame in newer] if change.drop_newer else []):
                _MAKE[type(beside)](self, beside)
        draft.whole = True
        for seq in change.drop:
            if seq in journal.entries:
                _drop(draft, change, seq)
            elif not change.aside:
                raise ConflictError(f"thread {change.key.id!r}: somebody removed frame {seq} meanwhile")
        for seq, base, delta in change.rebase:
            _rebase(journal, seq, base, delta)
        for digest in () if change.keep_blobs is None else journal.blobs.keys() - change.keep_blobs:
            place = journal.blobs.pop(digest)
            draft.aside += [place] if change.aside else []
        for digest, content in change.new_blobs:
            journal.blobs[digest] = Place(op={"large": digest.hex(), "text": to_text("content", content)})
        head = journal.row.head if change.head is None else change.head
        journal.row = _with_head(journal, change, head)
        return 0

    def _expect(self, change: Expect) -> int:
        journal = self._draft(change.key).journal
        entry = None if change.frame is None else journal.entries.get(change.frame[0])
        names = (name for kind, name in journal.records if kind == change.kind)
        check_expected(change, None if entry is None else entry.id, names)
        return 0

    def _delete(self, change: DeleteThread) -> int:
        draft = self._draft(change.key)
        draft.reborn = True
        if draft.there or draft.lines:
            self._check_head(draft.journal.row, change.epoch, ANY)
            draft.journal = new_journal(change.key, draft.journal.directory)
            draft.lines, draft.aside, draft.keyframes, draft.new_ids = [], [], {}, []
            draft.whole = draft.gone = True
        return 0

    # -- guards ------------------------------------------------------------------------------------

    def _check_head(self, row: ThreadRow, epoch: int | None, expect: str | None) -> None:
        self._check_epoch(row, epoch)
        if epoch is None and row.lease and row.lease.expires > self._clock():
            raise _busy(row.key, row.lease)
        if expect not in (ANY, row.head_id):
            raise head_moved(row.key, expect, row.head_id)

    def _check_epoch(self, row: ThreadRow, epoch: int | None) -> None:
        # A lease that ran out but that nobody took since still is the newest: its holder was slow, not replaced.
        if epoch is not None and (row.lease is None or row.lease.epoch != epoch):
            raise _fenced(row.key, epoch)


_MAKE: Final[dict[type, Callable[[Changes, Any], int]]] = {
    Append: Changes._append,
    MoveHead: Changes._move_head,
    PutNote: Changes._put_note,
    PutRecord: Changes._put_record,
    PutKeyframe: Changes._put_keyframe,
    Rewrite: Changes._rewrite,
    Expect: Changes._expect,
    DeleteThread: Changes._delete,
}


def said_now(journal: Journal, reader: Reader, recode: Callable[[bytes], bytes] | None) -> Iterator[Op | bytes]:
    """What the lines of a journal say that holds only what is true now; a damaged line of a frame stays as it is."""
    row = journal.row
    yield first_line(journal.key, journal.life)
    for place in journal.blobs.values():
        yield reader.op(place)
    for _, entry in sorted(journal.entries.items()):
        yield reader.raw(entry.place) if entry.broken else _frame_now(reader.op(entry.place), entry, recode)
    for place in journal.records.values():
        yield reader.op(place)
    if row.lease:
        yield _lease_op(row.lease)
    if row.last:
        yield {"head": row.head, "last": row.last, "floor": row.floor} | ({} if row.agent is None else {"agent": row.agent})


def _frame_now(op: Op, entry: Entry, recode: Callable[[bytes], bytes] | None) -> Op:
    front = {"save": op["save"], "id": op["id"], "base": entry.base}
    if entry.note is not None:
        front["note"] = to_text("note", entry.note)
    op = front | {name: value for name, value in op.items() if name not in (*front, "note")}
    return op if recode is None else op | {"delta": to_text("delta", recode(from_text("delta", op["delta"])))}


def _lease_op(lease: Lease) -> Op:
    return {"lease": lease.epoch, "owner": lease.owner, "expires": lease.expires}


def _say_lease(draft: Draft, lease: Lease) -> Lease:
    draft.say(_lease_op(lease))
    return lease


def _entry(journal: Journal, seq: int) -> Entry:
    if seq not in journal.entries:
        raise CheckpointNotFound(f"thread {journal.key.id!r} has no frame {seq}")
    return journal.entries[seq]


def _floor(journal: Journal, last: int, keep_newest: int) -> int:
    """The oldest of so many newest frames, the one that is being added among them; 0 if there are not so many."""
    seqs = (seq for seq in range(last, 0, -1) if seq == last or seq in journal.entries)
    newest = list(islice(seqs, keep_newest))
    return newest[-1] if newest and len(newest) == keep_newest else 0


def _drop(draft: Draft, change: Rewrite, seq: int) -> None:
    entry = draft.journal.entries[seq]
    if entry.note is not None and seq not in change.noted and not change.aside:
        raise ConflictError(f"thread {change.key.id!r}: somebody labelled or tagged frame {seq} meanwhile")
    draft.aside += [entry.place] if change.aside else []
    del draft.journal.entries[seq]
    draft.journal.ids.pop(entry.id, None)
    draft.keyframes[seq] = None


def _rebase(journal: Journal, seq: int, base: int, delta: bytes) -> None:
    entry = _entry(journal, seq)
    if base:
        _entry(journal, base)
    if base >= seq:
        raise InvalidInputError(f"thread {journal.key.id!r}: frame {seq} cannot build on the newer frame {base}")
    with journal.reading() as reader:
        op = reader.op(entry.place) | {"base": base, "delta": to_text("delta", delta)}
    journal.entries[seq] = entry._replace(base=base, place=Place(op=op))


def _newer(journal: Journal, newest: int) -> list[Frame]:
    """The frames after one, with their deltas."""
    newer = sorted(seq for seq in journal.entries if seq > newest)
    if not newer:
        return []
    with journal.reading() as reader:
        return [journal.frame(reader, seq, delta=True) for seq in newer]


def _with_head(journal: Journal, change: Rewrite, head: int) -> ThreadRow:
    """The row after a rewrite. No head is right only for a thread that has nothing left, or that had none."""
    if head not in journal.entries and (head or (journal.entries and journal.row.head)):
        raise headless(change, head)
    head_id = journal.entries[head].id if head else None
    return journal.row._replace(head=head, head_id=head_id, frames=len(journal.entries))


def _fenced(key: ThreadKey, epoch: int) -> Fenced:
    return Fenced(f"thread {key.id!r}: the lease with epoch {epoch} was lost or given back; stop")


def _busy(key: ThreadKey, lease: Lease) -> Busy:
    return Busy(f"thread {key.id!r} is held by {lease.owner} (epoch {lease.epoch}); wait until its run is done")
