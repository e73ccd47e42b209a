"""What each kind of change does to the rows of a thread: the part that SQLite and PostgreSQL have in common.

`RowChanges` makes the checks and decides, in the order that the contract asks for; the SQL is its subclasses'. A change
may fail after it has written something: who calls takes that back. Touches store, errors, frames and _rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from savegame.encoding.frames import checksum, thread_salt
from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ConflictError,
    Fenced,
    InvalidInputError,
    UnsupportedError,
)
from savegame.model import Lease, ThreadKey
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
from savegame.stores.rows import EMPTY_ROW, SEQ_MASK, Row, damaged, meta_checksum, record_checksum

Db = TypeVar("Db")
Blobs = Sequence[tuple[bytes, bytes]]


class RowChanges(ABC, Generic[Db]):
    """Makes changes through `db`, which is whatever the statements of a subclass need."""

    def make(self, db: Db, change: StoreChange, row: Row | None) -> int:
        """Make one change to a thread whose row is as given. Gives the sequence number that it made, or 0."""
        if row is None:
            if not isinstance(change, (Append, PutRecord, Expect)):
                return _missing(change)
            row = EMPTY_ROW
        self._check_fence(db, change, row)
        made: int = _MAKE[type(change)](self, db, change, row)
        return made

    def leased(self, db: Db, key: ThreadKey, row: Row | None, owner: str, ttl_us: int, instead_of: int | None) -> Lease:
        """`Store.lease`."""
        row = row or self.add_row(db, key)
        now = self.now(db)
        if row.owner is not None and row.expires > now and row.epoch != instead_of:
            raise Busy(f"thread {key.id!r} is held by {row.owner} (epoch {row.epoch}); wait until it is done")
        row = row._replace(epoch=self.next_epoch(db, row.epoch), owner=owner, expires=now + ttl_us)
        self.write_row(db, key, row)
        return Lease(row.epoch, owner, row.expires)

    def renewed(self, db: Db, key: ThreadKey, row: Row | None, epoch: int, ttl_us: int) -> Lease:
        """`Store.renew`."""
        if row is None or row.epoch != epoch or row.owner is None:
            raise Fenced(f"thread {key.id!r}: the lease with epoch {epoch} is not the newest any more; stop")
        lease = Lease(epoch, row.owner, self.now(db) + ttl_us)
        self.write_row(db, key, row._replace(expires=lease.expires, owner=row.owner if ttl_us else None))
        return lease

    # -- kinds of changes ----------------------------------------------------------------------------

    def _append(self, db: Db, change: Append, row: Row) -> int:
        key = change.key
        _check_head(change, row)
        there = row.head_id if change.base in (0, row.head) else self.ids(db, key, row, (change.base,)).get(change.base)
        check_base(change, there)
        if row.last == SEQ_MASK:
            raise UnsupportedError(f"thread {key.id!r} is full: it has had {SEQ_MASK} checkpoints")
        if self.is_taken(db, change):
            raise AlreadyExistsError(f"a checkpoint with the id {change.id!r} exists already")
        return self.add_frame(db, change, row if row.no else self.add_row(db, key))

    def _move_head(self, db: Db, change: MoveHead, row: Row) -> int:
        _check_head(change, row)
        found = self.ids(db, change.key, row, (change.seq,)) if change.seq else {}
        if change.seq and not found:
            raise CheckpointNotFound(f"thread {change.key.id!r} has no frame {change.seq}")
        agent = row.agent if change.agent is None else change.agent
        self.write_row(db, change.key, row._replace(agent=agent, head=change.seq, head_id=found.get(change.seq)))
        return 0

    def _put_note(self, db: Db, change: PutNote, row: Row) -> int:
        found = self.notes(db, change.key, row, (change.seq,))
        if change.seq not in found:
            raise CheckpointNotFound(f"thread {change.key.id!r} has no frame {change.seq}")
        if found[change.seq] != change.expect:
            raise ConflictError(f"thread {change.key.id!r}: somebody else changed the label or tags of frame {change.seq}")
        total = None if change.note is None else checksum(change.note, thread_salt(*change.key), change.seq)
        self.set_note(db, change.key, row, change.seq, change.note, total)
        return 0

    def _put_record(self, db: Db, change: PutRecord, row: Row) -> int:
        key, kind, name, value = change.key, change.kind, change.name, change.value
        if change.absent and value is not None and self.has_record(db, key, row, kind, name):
            raise AlreadyExistsError(f"thread {key.id!r}: the record {kind} {name!r} exists already")
        if change.renew_us is not None and row.owner is not None:
            self.write_row(db, key, row._replace(expires=self.now(db) + change.renew_us))
        if value is None:
            self.delete_record(db, key, row, kind, name)
            return 0
        row = row if row.no else self.add_row(db, key)
        self.put_record(db, key, row, kind, name, value, record_checksum(key, kind, name, value))
        return 0

    def _put_keyframe(self, db: Db, change: PutKeyframe, row: Row) -> int:
        key, seq, body = change.key, change.seq, change.body
        if body is None:
            self.delete_keyframe(db, key, row, seq)
        else:
            self.put_keyframe(db, key, row, seq, body, checksum(body, thread_salt(*key), seq))
        return 0

    def _rewrite(self, db: Db, change: Rewrite, row: Row) -> int:
        key = change.key
        _check_head(change, row)
        newer: list[tuple[int, int, bytes]] = []
        if change.newest is not None:
            newer = list(self._newer(db, key, row, change.newest)) if row.last > change.newest else []
            change = caught_up(change, row.frames, newer)
        if change.along is not None:
            gone = self.metas(db, key, row, [seq for seq, _, _ in newer]) if newer and change.drop_newer else {}
            for beside in change.along([meta for _, meta, _, _ in gone.values()]):
                self.make(db, beside, row)
        head = row.head if change.head is None else change.head
        if head in change.drop:
            raise headless(change, head)
        if not change.aside:
            _check_dropped(change, self.notes(db, key, row, change.drop))
        self.put_blobs(db, key, row, change.new_blobs)
        if change.drop:
            self.drop_frames(db, key, row, change.drop, aside=change.aside)
        self._rebase(db, change, row)
        if change.keep_blobs is not None:
            self.keep_blobs(db, key, row, change.keep_blobs)
        return self._after_rewrite(db, change, row, head)

    def _newer(self, db: Db, key: ThreadKey, row: Row, newest: int) -> Iterator[tuple[int, int, bytes]]:
        """Number, base and delta of the frames after one. Raises CorruptionError."""
        for seq, base, delta, total in self.newer(db, key, row, newest):
            if checksum(delta, thread_salt(*key), seq, base) != total:
                raise damaged(key, self.ids(db, key, row, (seq,)).get(seq), f"delta of frame {seq}", seq)
            yield seq, base, delta

    def _rebase(self, db: Db, change: Rewrite, row: Row) -> None:
        key, salt = change.key, thread_salt(*change.key)
        there = self.ids(db, key, row, {base for _, base, _ in change.rebase if base}) if change.rebase else {}
        metas = self.metas(db, key, row, [seq for seq, _, _ in change.rebase]) if change.rebase else {}
        for seq, base, delta in change.rebase:
            if seq not in metas or (base and base not in there):
                raise CheckpointNotFound(f"thread {key.id!r} has no frame {base if seq in metas else seq}")
            if base >= seq:
                raise InvalidInputError(f"thread {key.id!r}: frame {seq} cannot build on the newer frame {base}")
            stored_id, meta, run, space = metas[seq]
            meta_sum = meta_checksum(salt, seq, base, run, space, stored_id, meta)
            self.set_base(db, key, row, seq, base, meta_sum, delta, checksum(delta, salt, seq, base))

    def _after_rewrite(self, db: Db, change: Rewrite, row: Row, head: int) -> int:
        key = change.key
        count, newest = self.count(db, key, row)
        found = self.ids(db, key, row, (head,)) if head else {}
        if not found and (head or (count and row.head)):
            raise headless(change, head)
        run = row.run if newest == row.last else 0
        self.write_row(db, key, row._replace(head=head, head_id=found.get(head), frames=count, run=run))
        return 0

    def _expect(self, db: Db, change: Expect, row: Row) -> int:
        key, frame = change.key, change.frame
        found = None if frame is None else self.ids(db, key, row, (frame[0],)).get(frame[0])
        check_expected(change, found, () if change.kind is None else self.record_names(db, key, row, change.kind))
        return 0

    def _delete_thread(self, db: Db, change: DeleteThread, row: Row) -> int:
        self.delete_thread(db, change.key, row)
        return 0

    def _check_fence(self, db: Db, change: StoreChange, row: Row) -> None:
        epoch = getattr(change, "epoch", None)
        if epoch is not None and epoch != row.epoch:
            raise Fenced(f"thread {change.key.id!r}: the lease with epoch {epoch} was lost to epoch {row.epoch}; stop")
        heads = isinstance(change, (Append, MoveHead, Rewrite, DeleteThread))
        if epoch is None and heads and row.owner is not None and row.expires > self.now(db):
            raise Busy(f"thread {change.key.id!r} is held by {row.owner} (epoch {row.epoch}); wait until its run is done")

    # -- what the subclasses' statements do ------------------------------------------------------------

    @abstractmethod
    def now(self, db: Db) -> int:
        """The time that leases go by, in microseconds since 1970."""

    @abstractmethod
    def next_epoch(self, db: Db, held: int) -> int:
        """A number for a lease, larger than any that was given before; `held` is the thread's newest."""

    @abstractmethod
    def add_row(self, db: Db, key: ThreadKey) -> Row:
        """Make the row of a new thread."""

    @abstractmethod
    def write_row(self, db: Db, key: ThreadKey, row: Row) -> None:
        """Write a thread's row, with the next version."""

    @abstractmethod
    def delete_thread(self, db: Db, key: ThreadKey, row: Row) -> None:
        """Delete a thread's row and everything beside it."""

    @abstractmethod
    def is_taken(self, db: Db, change: Append) -> bool:
        """Whether some frame of the namespace has the id already, while nobody else can take it."""

    @abstractmethod
    def add_frame(self, db: Db, change: Append, row: Row) -> int:
        """Add the frame after those that `row` tells of, with its blobs, and write the row; gives its number."""

    @abstractmethod
    def ids(self, db: Db, key: ThreadKey, row: Row, seqs: Collection[int]) -> dict[int, str]:
        """The ids of those of the frames that are there."""

    @abstractmethod
    def notes(self, db: Db, key: ThreadKey, row: Row, seqs: Collection[int]) -> dict[int, bytes | None]:
        """The notes of those of the frames that are there."""

    @abstractmethod
    def metas(
        self, db: Db, key: ThreadKey, row: Row, seqs: Collection[int]
    ) -> dict[int, tuple[str | bytes, bytes, int, int | None]]:
        """The stored id, metadata, run and space of those of the frames that are there."""

    @abstractmethod
    def set_note(self, db: Db, key: ThreadKey, row: Row, seq: int, note: bytes | None, total: int | None) -> None:
        """Replace a note."""

    @abstractmethod
    def set_base(
        self, db: Db, key: ThreadKey, row: Row, seq: int, base: int, meta_sum: int, delta: bytes, delta_sum: int
    ) -> None:
        """Give a frame another base and delta."""

    @abstractmethod
    def drop_frames(self, db: Db, key: ThreadKey, row: Row, seqs: Sequence[int], *, aside: bool) -> None:
        """Remove frames with their keyframes; with `aside`, keep them there."""

    @abstractmethod
    def count(self, db: Db, key: ThreadKey, row: Row) -> tuple[int, int]:
        """How many frames a thread has, and the largest of their numbers."""

    @abstractmethod
    def newer(self, db: Db, key: ThreadKey, row: Row, seq: int) -> Iterable[tuple[int, int, bytes, int]]:
        """Number, base, delta and its checksum of every frame after one, in order."""

    @abstractmethod
    def record_names(self, db: Db, key: ThreadKey, row: Row, kind: str) -> list[str]:
        """The names of the records of a kind."""

    @abstractmethod
    def has_record(self, db: Db, key: ThreadKey, row: Row, kind: str, name: str) -> bool:
        """Whether there is such a record."""

    @abstractmethod
    def put_record(self, db: Db, key: ThreadKey, row: Row, kind: str, name: str, value: bytes, total: int) -> None:
        """Set a record."""

    @abstractmethod
    def delete_record(self, db: Db, key: ThreadKey, row: Row, kind: str, name: str) -> None:
        """Remove a record, if it is there."""

    @abstractmethod
    def put_keyframe(self, db: Db, key: ThreadKey, row: Row, seq: int, body: bytes, total: int) -> None:
        """Set the keyframe of a frame, if that is there."""

    @abstractmethod
    def delete_keyframe(self, db: Db, key: ThreadKey, row: Row, seq: int) -> None:
        """Remove the keyframe of a frame."""

    @abstractmethod
    def put_blobs(self, db: Db, key: ThreadKey, row: Row, blobs: Blobs) -> None:
        """Keep large values by their digests."""

    @abstractmethod
    def keep_blobs(self, db: Db, key: ThreadKey, row: Row, keep: Collection[bytes]) -> None:
        """Remove the large values with other digests."""


_MAKE: Final[dict[type, Callable[..., int]]] = {
    Append: RowChanges._append,
    MoveHead: RowChanges._move_head,
    PutNote: RowChanges._put_note,
    PutRecord: RowChanges._put_record,
    PutKeyframe: RowChanges._put_keyframe,
    Rewrite: RowChanges._rewrite,
    Expect: RowChanges._expect,
    DeleteThread: RowChanges._delete_thread,
}


def is_next(change: Append, row: Row) -> bool:
    """Whether an append continues a remembered row so plainly that nothing else has to be looked at."""
    _, _, base, _, _, _, expect, epoch, agent, _, _, fresh, _, _ = change
    _, agent_now, head, head_id, last, _, _, _, epoch_now, owner, _, _ = row
    held = owner is not None if epoch is None else epoch != epoch_now
    return fresh and expect == head_id and base == head and agent in (None, agent_now) and last < SEQ_MASK and not held


def floor_after(row: Row, keep_newest: int | None, nth_newest: Callable[[int], int | None]) -> int:
    """The oldest of the newest frames that retention keeps, with the one that is being added.

    `nth_newest` gives the number of the newest frame but so many.
    """
    if keep_newest is None or row.frames + 1 < keep_newest:
        return row.floor
    found = row.last + 1 if keep_newest == 1 else nth_newest(keep_newest - 2)
    return row.floor if found is None else max(row.floor, found)


def remember(rows: dict[ThreadKey, Row], new: dict[ThreadKey, Row], most: int = 1024) -> None:
    """Take rows that were committed into those that are remembered, which stay few."""
    if len(rows) > most:
        rows.clear()
    rows.update(new)


def _missing(change: StoreChange) -> int:
    """A change to a thread that is not there: nothing to do, or nothing to find."""
    if isinstance(change, (PutKeyframe, DeleteThread)):
        return 0
    raise CheckpointNotFound(f"thread {change.key.id!r} has no checkpoints")


def _check_head(change: Append | MoveHead | Rewrite, row: Row) -> None:
    if change.expect not in (ANY, row.head_id):
        raise head_moved(change.key, change.expect, row.head_id)


def _check_dropped(change: Rewrite, notes: dict[int, Any]) -> None:
    for seq in change.drop:
        if seq not in notes:
            raise ConflictError(f"thread {change.key.id!r}: somebody removed frame {seq} meanwhile")
        if notes[seq] is not None and seq not in change.noted:
            raise ConflictError(f"thread {change.key.id!r}: somebody labelled or tagged frame {seq} meanwhile")
