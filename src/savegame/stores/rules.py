"""The rules of a commit, once for every store: what a change may do, in which order it is checked, and how a refusal reads.

A store brings a `Transaction`: about twenty reads and writes, without policy. `make`, `take_lease` and `renew_lease` are
everything else; `RuledStore` has the verbs over them. All changes are checked in one order: fence (Fenced, Busy), head
(ConflictError), thread, base or frame (NotFoundError), id or record (AlreadyExistsError), and then what the kind of change
asks for. A change may fail after it has written something; its store undoes that. Touches store, model and errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from savegame.errors import (
    AlreadyExistsError,
    CheckpointNotFound,
    ConflictError,
    InvalidInputError,
    SavegameError,
    ThreadNotFound,
    UnsupportedError,
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
    Store,
    StoreChange,
)
from savegame.stores.refusals import busy, fenced, head_moved, no_checkpoint, no_thread

MAX_SEQ: Final = 0xFFFFFFFF
"""The largest sequence number."""

Blobs = Iterable[tuple[bytes, bytes]]


class Pin(NamedTuple):
    """What the rules need to know of a frame: its id, and the note pinned on it."""

    id: str
    note: bytes | None


class Transaction(ABC):
    """The reads and writes that a store brings. Each sees what those before it wrote.

    A thread that does not exist has no frames and no records. Rows have a lease with `expires` 0 once it was released, so
    that its epoch is still known.
    """

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def now(self) -> int:
        """The time that leases go by, in microseconds since 1970."""

    @abstractmethod
    def next_epoch(self, newest: int) -> int:
        """A number for a lease, larger than any before; `newest` is the thread's own."""

    @abstractmethod
    def row(self, key: ThreadKey) -> ThreadRow | None:
        """The row of a thread, or None."""

    @abstractmethod
    def pins(self, key: ThreadKey, seqs: Collection[int]) -> dict[int, Pin]:
        """The id and note of those frames that exist."""

    @abstractmethod
    def frames_after(self, key: ThreadKey, seq: int) -> list[Frame]:
        """The frames with larger numbers, in order, with their deltas. Raises CorruptionError."""

    @abstractmethod
    def nth_newest(self, key: ThreadKey, number: int) -> int | None:
        """The sequence number of the newest frame (0), the one before it (1), and so on."""

    @abstractmethod
    def count(self, key: ThreadKey) -> int:
        """How many frames a thread has."""

    @abstractmethod
    def is_taken(self, change: Append) -> bool:
        """Whether a frame of the namespace has the id of this one. A `fresh` id may be trusted to be free."""

    @abstractmethod
    def has_record(self, key: ThreadKey, kind: str, name: str) -> bool:
        """Whether a record exists."""

    @abstractmethod
    def record_names(self, key: ThreadKey, kind: str) -> Iterable[str]:
        """The names of all records of a kind."""

    # -- writing -----------------------------------------------------------------------------------

    @abstractmethod
    def add_thread(self, key: ThreadKey) -> ThreadRow:
        """Begin a thread; returns its empty row."""

    @abstractmethod
    def put_row(self, row: ThreadRow) -> None:
        """Replace the row of a thread that exists."""

    @abstractmethod
    def add_frame(self, row: ThreadRow, frame: Frame) -> None:
        """Add a frame and replace its thread's row."""

    @abstractmethod
    def put_note(self, key: ThreadKey, seq: int, note: bytes | None) -> None:
        """Replace the note of a frame."""

    @abstractmethod
    def rebase(self, key: ThreadKey, frames: Sequence[tuple[int, int, bytes]]) -> None:
        """Replace base and delta of frames, given as (number, base, delta)."""

    @abstractmethod
    def drop_frames(self, key: ThreadKey, seqs: Sequence[int], *, aside: bool) -> None:
        """Remove those frames that exist, with ids and keyframes; with `aside`, keep a copy elsewhere."""

    @abstractmethod
    def put_keyframe(self, key: ThreadKey, seq: int, body: bytes | None) -> None:
        """Set the keyframe of a frame, if that exists, or remove it (None)."""

    @abstractmethod
    def put_record(self, key: ThreadKey, kind: str, name: str, value: bytes | None) -> None:
        """Set a record, or remove it (None)."""

    @abstractmethod
    def put_blobs(self, key: ThreadKey, blobs: Blobs) -> None:
        """Keep blobs by their digests."""

    @abstractmethod
    def keep_blobs(self, key: ThreadKey, digests: Collection[bytes], *, aside: bool) -> None:
        """Remove all other blobs; with `aside`, keep a copy elsewhere."""

    @abstractmethod
    def delete_thread(self, key: ThreadKey) -> None:
        """Remove a thread with everything beside it, and what was set aside of one that does not exist any more."""


class RuledStore(Store):
    """A store whose writing verbs are the rules: `transaction` begins what they write, and commits or undoes it."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """Commits what is written inside, durably; undoes everything if the block is left by an error."""

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        with self.transaction() as tx:
            return [make(tx, change) for change in changes]

    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        with self.transaction() as tx:
            return take_lease(tx, key, owner, ttl_us, instead_of)

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        with self.transaction() as tx:
            return renew_lease(tx, key, epoch, ttl_us)


# -- changes ---------------------------------------------------------------------------------------


def make(transaction: Transaction, change: StoreChange) -> int:
    """Make one change. Returns the sequence number of the frame that it added, or 0."""
    return _RULES[type(change)](transaction, change) or 0


def _append(tx: Transaction, change: Append) -> int:
    key = change.key
    row = _row(tx, key)
    _check_fence(tx, row, change.epoch)
    _check_head(row, change.expect)
    if change.base:
        found = row.head_id if change.base == row.head else _id(tx, key, change.base)
        if found is None or change.base_id not in (None, found):
            raise no_checkpoint(key, change.base, change.base_id)
    if row.last == MAX_SEQ:
        raise UnsupportedError(f"thread {key.id!r} has had {MAX_SEQ} checkpoints and takes no more; fork it to go on")
    if tx.is_taken(change):
        raise AlreadyExistsError(f"checkpoint id {change.id!r} is taken in namespace {key.namespace!r}; choose another")
    row = tx.row(key) or tx.add_thread(key)
    if change.blobs:
        tx.put_blobs(key, change.blobs)
    seq = row.last + 1
    floor = floor_after(row.last, row.frames, row.floor, change.keep_newest, lambda number: tx.nth_newest(key, number))
    agent = row.agent if change.agent is None else change.agent
    lease = _prolonged(tx, row, change.epoch, change.renew_us)
    row = ThreadRow(key, agent, seq, change.id, seq, floor, row.frames + 1, lease)
    tx.add_frame(row, Frame(seq, change.id, change.base, change.meta, change.note, change.delta))
    return seq


def _move_head(tx: Transaction, change: MoveHead) -> None:
    key = change.key
    row = _row(tx, key)
    _check_fence(tx, row, change.epoch)
    _check_head(row, change.expect)
    if not change.seq and not row.frames:
        raise no_thread(key)
    head_id = _id(tx, key, change.seq)
    if change.seq and head_id is None:
        raise no_checkpoint(key, change.seq)
    agent = row.agent if change.agent is None else change.agent
    tx.put_row(row._replace(head=change.seq, head_id=head_id, agent=agent))


def _put_note(tx: Transaction, change: PutNote) -> None:
    key, seq = change.key, change.seq
    pin = tx.pins(key, (seq,)).get(seq)
    if pin is None:
        raise no_checkpoint(key, seq)
    if pin.note != change.expect:
        raise ConflictError(
            f"thread {key.id!r}: label or tags of checkpoint {pin.id} changed meanwhile; read it again and retry"
        )
    tx.put_note(key, seq, change.note)


def _put_record(tx: Transaction, change: PutRecord) -> None:
    key, kind, name = change.key, change.kind, change.name
    row = tx.row(key)
    _check_epoch(row or _no_row(key), change.epoch)
    if change.absent and tx.has_record(key, kind, name):
        raise AlreadyExistsError(f"thread {key.id!r}: record {kind} {name!r} exists already; choose another name")
    if row is None and change.value is not None:
        row = tx.add_thread(key)
    if row is None:
        return
    tx.put_record(key, kind, name, change.value)
    lease = _prolonged(tx, row, change.epoch, change.renew_us)
    if lease != row.lease:
        tx.put_row(row._replace(lease=lease))


def _put_keyframe(tx: Transaction, change: PutKeyframe) -> None:
    tx.put_keyframe(change.key, change.seq, change.body)


def _expect(tx: Transaction, change: Expect) -> None:
    key = change.key
    if change.frame is not None:
        seq, wanted = change.frame
        found = _id(tx, key, seq)
        if found != wanted:
            raise ConflictError(
                f"thread {key.id!r}: checkpoint number {seq} is not {wanted} any more; read the thread again and retry",
                expected=wanted,
                found=found,
            )
    if change.kind is not None and change.names != frozenset(tx.record_names(key, change.kind)):
        raise ConflictError(f"thread {key.id!r}: records {change.kind!r} changed meanwhile; read them again and retry")


def _delete_thread(tx: Transaction, change: DeleteThread) -> None:
    row = tx.row(change.key)
    if row is not None:
        _check_fence(tx, row, change.epoch)
    tx.delete_thread(change.key)


# -- rewriting -------------------------------------------------------------------------------------


def _rewrite(tx: Transaction, change: Rewrite) -> None:
    key = change.key
    row = _row(tx, key)
    _check_fence(tx, row, change.epoch)
    _check_head(row, change.expect)
    if not row.frames:
        raise no_thread(key)
    change = _caught_up(tx, change, row)
    row = _row(tx, key)  # changes that go along may have prolonged its lease
    head = row.head if change.head is None else change.head
    if head in change.drop:
        raise _headless(change, head)
    if not change.aside:
        _check_dropped(tx, change)
    if change.drop:
        tx.drop_frames(key, change.drop, aside=change.aside)
    if change.rebase:
        _check_rebased(tx, change)
        tx.rebase(key, change.rebase)
    if change.keep_blobs is not None:
        tx.keep_blobs(key, change.keep_blobs.union(digest for digest, _ in change.new_blobs), aside=change.aside)
    tx.put_blobs(key, change.new_blobs)
    count, head_id = tx.count(key), _id(tx, key, head)
    if head_id is None and (head or (count and row.head)):
        raise _headless(change, head)
    tx.put_row(row._replace(head=head, head_id=head_id, frames=count))


def _caught_up(tx: Transaction, change: Rewrite, row: ThreadRow) -> Rewrite:
    """A rewrite that covers the frames appended since it was planned, once the changes that go along with it are made."""
    newer: list[Frame] = []
    if change.newest is not None:
        newer = tx.frames_after(change.key, change.newest) if row.last > change.newest else []
        if change.seen is not None and change.seen + len(newer) != row.frames:
            raise ConflictError(f"thread {change.key.id!r}: another writer removed checkpoints meanwhile; retry")
        change = _with_newer(change, newer)
    if change.along is not None:
        for beside in change.along([frame.meta for frame in newer] if change.drop_newer else []):
            make(tx, beside)
    return change


def _with_newer(change: Rewrite, newer: Sequence[Frame]) -> Rewrite:
    if change.drop_newer:
        seqs = [frame.seq for frame in newer]
        return change._replace(drop=(*change.drop, *seqs), noted=change.noted.union(seqs))
    gone, needed = frozenset(change.drop), set[bytes]()
    for frame in newer:
        if frame.base in gone:
            raise ConflictError(
                f"thread {change.key.id!r}: checkpoint {frame.id}, added meanwhile, builds on number {frame.base}, which would "
                f"be removed; retry"
            )
        needed.update(() if change.refers is None else change.refers(frame.delta or b""))
    return change if change.keep_blobs is None else change._replace(keep_blobs=change.keep_blobs | needed)


def _check_dropped(tx: Transaction, change: Rewrite) -> None:
    pins = tx.pins(change.key, change.drop) if change.drop else {}
    for seq in change.drop:
        if seq not in pins:
            raise ConflictError(f"thread {change.key.id!r}: checkpoint number {seq} was removed meanwhile; retry")
        if pins[seq].note is not None and seq not in change.noted:
            raise ConflictError(f"thread {change.key.id!r}: checkpoint {pins[seq].id} was labelled or tagged meanwhile; retry")


def _check_rebased(tx: Transaction, change: Rewrite) -> None:
    key = change.key
    pins = tx.pins(key, {seq for frame in change.rebase for seq in frame[:2]} - {0})
    for seq, base, _ in change.rebase:
        for number in (seq, base):
            if number and number not in pins:
                raise no_checkpoint(key, number)
        if base >= seq:
            raise InvalidInputError(
                f"thread {key.id!r}: checkpoint number {seq} cannot build on number {base}, which is not older"
            )


def _headless(change: Rewrite, head: int) -> ConflictError | InvalidInputError:
    """A rewrite would leave the thread without its head: moved meanwhile, or never right."""
    where = f"thread {change.key.id!r}: its head cannot be {f'number {head}' if head else '(none)'} after this rewrite"
    if change.newest is None:
        return InvalidInputError(where)
    return ConflictError(f"{where}: another writer moved or removed it meanwhile; retry")


_RULES: Final[dict[type, Callable[[Transaction, Any], int | None]]] = {
    Append: _append,
    MoveHead: _move_head,
    PutNote: _put_note,
    PutRecord: _put_record,
    PutKeyframe: _put_keyframe,
    Rewrite: _rewrite,
    Expect: _expect,
    DeleteThread: _delete_thread,
}


# -- leases ----------------------------------------------------------------------------------------


def take_lease(tx: Transaction, key: ThreadKey, owner: str, ttl_us: int, instead_of: int | None) -> Lease:
    """`Store.lease`."""
    row = tx.row(key) or tx.add_thread(key)
    former = row.lease
    if former is not None and former.epoch != instead_of and former.expires > tx.now():
        raise busy(key, former)
    lease = Lease(tx.next_epoch(0 if former is None else former.epoch), owner, tx.now() + ttl_us)
    tx.put_row(row._replace(lease=lease))
    return lease


def renew_lease(tx: Transaction, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
    """`Store.renew`."""
    row = _row(tx, key)
    lease = _check_epoch(row, epoch)
    if lease is None or not lease.expires:
        raise fenced(key, epoch)
    lease = lease._replace(expires=tx.now() + ttl_us if ttl_us else 0)
    tx.put_row(row._replace(lease=lease))
    return lease


def _prolonged(tx: Transaction, row: ThreadRow, epoch: int | None, renew_us: int | None) -> Lease | None:
    if renew_us is None or epoch is None or row.lease is None or not row.lease.expires:
        return row.lease
    return row.lease._replace(expires=tx.now() + renew_us)


# -- checks ----------------------------------------------------------------------------------------


def _row(tx: Transaction, key: ThreadKey) -> ThreadRow:
    return tx.row(key) or _no_row(key)


def _no_row(key: ThreadKey) -> ThreadRow:
    return ThreadRow(key, agent=None, head=0, head_id=None, last=0, floor=0, frames=0)


def _id(tx: Transaction, key: ThreadKey, seq: int) -> str | None:
    pin = tx.pins(key, (seq,)).get(seq) if seq else None
    return None if pin is None else pin.id


def _check_fence(tx: Transaction, row: ThreadRow, epoch: int | None) -> None:
    lease = _check_epoch(row, epoch)
    if epoch is None and lease is not None and lease.expires > tx.now():
        raise busy(row.key, lease)


def _check_epoch(row: ThreadRow, epoch: int | None) -> Lease | None:
    # A lease that expired and was not taken since is still the newest: its holder was slow, not replaced.
    if epoch is not None and (row.lease is None or row.lease.epoch != epoch):
        raise fenced(row.key, epoch)
    return row.lease


def _check_head(row: ThreadRow, expect: str | None) -> None:
    if expect not in (ANY, row.head_id):
        raise head_moved(row.key, expect, row.head_id)


def floor_after(last: int, frames: int, floor: int, keep_newest: int | None, nth_newest: Callable[[int], int | None]) -> int:
    """The floor after an append to a thread with this last number, count and floor: it never sinks."""
    if not keep_newest or frames + 1 < keep_newest:
        return floor
    oldest = last + 1 if keep_newest == 1 else nth_newest(keep_newest - 2)
    return floor if oldest is None else max(floor, oldest)


REFUSALS: Final[tuple[type[SavegameError], ...]] = (
    ConflictError,
    AlreadyExistsError,
    CheckpointNotFound,
    ThreadNotFound,
    InvalidInputError,
    UnsupportedError,
)
"""What the rules refuse a change with: it concerns one caller's changes alone."""
