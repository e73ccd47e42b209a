"""What each kind of change does to the rows of an SQLite file, inside the transaction that its caller has open.

An append to a thread whose row is remembered from the last commit does not read that row again: it writes the next one
only if the version on disk is still the remembered one, and else starts over with what is there. A single change fails
before it has written; a Rewrite and a list of changes need a savepoint around them.
Touches store, frames, _rows and _sqlite_file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw

from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    Fenced,
    InvalidInputError,
    UnsupportedError,
)
from savegame.frames import checksum, pack_id, thread_salt, unpack_id
from savegame.model import Lease, ThreadKey
from savegame.store import ANY, Append, DeleteThread, MoveHead, PutKeyframe, PutNote, PutRecord, Rewrite, StoreChange
from savegame.stores._rows import (
    EMPTY_ROW,
    SEQ_MASK,
    Row,
    blob_checksum,
    meta_checksum,
    place_told_by,
    placed_id,
    read_frame,
    read_thread,
    record_checksum,
    space_checksum,
    thread_sum,
    thread_values,
)
from savegame.stores._sqlite_file import SQL, all_rows, one_row, repeated

MANY_ROWS: Final = 1024
TOGETHER: Final = 64
"""How many appends one statement makes at most."""

NO_KEY: Final = 1 << 63
"""Keys of rows are smaller."""


class Changes:
    """Makes changes, and remembers rows of threads and numbers of namespaces that were committed."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._rows: dict[ThreadKey, Row] = {}
        self._new_rows: dict[ThreadKey, Row] = {}
        self._spaces: dict[str, int] = {}
        self._new_spaces: dict[str, int] = {}

    def committed(self) -> None:
        """What was written since the last call is there to stay."""
        if len(self._rows) > MANY_ROWS:
            self._rows.clear()
        self._rows.update(self._new_rows)
        self._new_rows.clear()
        if self._new_spaces:
            self._spaces.update(self._new_spaces)
            self._new_spaces.clear()

    def undone(self) -> None:
        """What was written since the last `committed` may be gone again, in part or whole."""
        self._new_rows.clear()
        self._new_spaces.clear()

    def forget(self) -> None:
        """Remember nothing: rows may have been put right by other hands."""
        self.undone()
        self._rows.clear()
        self._spaces.clear()

    def apply(self, db: apsw.Connection, change: StoreChange) -> int:
        """Make one change. Gives the sequence number that it made, or 0."""
        key = change.key
        if type(change) is Append:
            known = self._new_rows.get(key) or self._rows.get(key)
            if known is not None and _is_next(change, known):
                seq = self._add_frame(db, change, known, bytes.fromhex(change.id))
                if seq:
                    return seq
        row = self.row(db, key)
        if row is None:
            if not isinstance(change, (Append, PutRecord)):
                return _missing(change)
            row = EMPTY_ROW
        _check_fence(change, row, self._clock)
        make: Callable[[Changes, apsw.Connection, Any, Row], int] = _MAKE[type(change)]
        return make(self, db, change, row)

    def new_id(self, key: ThreadKey) -> str | None:
        """An id that tells the place of the thread's next frame, unless somebody else appends first; None if unknown."""
        row = self._rows.get(key)
        return None if row is None else placed_id(row.no << 32 | row.last + 1)

    # -- rows of threads -----------------------------------------------------------------------------

    def row(self, db: apsw.Connection, key: ThreadKey) -> Row | None:
        """The row of a thread as it is in the file."""
        found = one_row(db, "thread", self.space(db, key.namespace), key.id)
        return None if found is None else read_thread(key, found)

    def _add(self, db: apsw.Connection, key: ThreadKey) -> Row:
        """The row of a new thread."""
        (no,) = all_rows(db, "add_thread", self.space(db, key.namespace, add=True), key.id)[0]
        return self._set(db, key, EMPTY_ROW._replace(no=no))

    def _set(self, db: apsw.Connection, key: ThreadKey, row: Row) -> Row:
        """Write a row, with the next version."""
        row = row._replace(version=row.version + 1)
        db.execute(SQL["set_thread"], thread_values(key, row))
        self._new_rows[key] = row
        return row

    def lease(self, db: apsw.Connection, key: ThreadKey, owner: str, ttl_us: int, instead_of: int | None) -> Lease:
        """`Store.lease`."""
        row = self.row(db, key) or self._add(db, key)
        if row.owner is not None and row.expires > self._clock() and row.epoch != instead_of:
            raise Busy(f"thread {key.id!r} is held by {row.owner} (epoch {row.epoch}); wait until it is done")
        (epoch,) = all_rows(db, "next_epoch")[0]
        row = self._set(db, key, row._replace(epoch=epoch, owner=owner, expires=self._clock() + ttl_us))
        return Lease(epoch, owner, row.expires)

    def renew(self, db: apsw.Connection, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        """`Store.renew`."""
        row = self.row(db, key)
        if row is None or row.epoch != epoch or row.owner is None:
            raise Fenced(f"thread {key.id!r}: the lease with epoch {epoch} is not the newest any more; stop")
        lease = Lease(epoch, row.owner, self._clock() + ttl_us)
        self._set(db, key, row._replace(expires=lease.expires, owner=row.owner if ttl_us else None))
        return lease

    # -- namespaces ----------------------------------------------------------------------------------

    def space(self, db: apsw.Connection, namespace: str, *, add: bool = False) -> int:
        """The number of a namespace; 0, which nothing has, if there is none yet."""
        number = self._spaces.get(namespace) or self._new_spaces.get(namespace)
        if number is None:
            spaces = {name: no for no, name in space_names(db).items()}
            number = spaces.get(namespace, 0)
            if not number and add:
                number = max(spaces.values(), default=0) + 1
                db.execute(SQL["add_space"], (number, namespace, space_checksum(number, namespace)))
            if number:  # what was added in this transaction may yet be rolled back
                (self._new_spaces if db.in_transaction else self._spaces)[namespace] = number
        return number

    # -- kinds of changes ----------------------------------------------------------------------------

    def _append(self, db: apsw.Connection, change: Append, row: Row) -> int:
        key = change.key
        _check_head(change, row)
        if change.base not in (0, row.head) and not one_row(db, "frame_place", row.key(change.base)):
            raise CheckpointNotFound(f"thread {key.id!r} has no frame {change.base} to continue from")
        if row.last == SEQ_MASK:
            raise UnsupportedError(f"thread {key.id!r} is full: it has had {SEQ_MASK} checkpoints")
        stored_id = pack_id(change.id)
        if find(db, self.space(db, key.namespace), key.namespace, stored_id):
            raise AlreadyExistsError(f"a checkpoint with the id {change.id!r} exists already")
        return self._add_frame(db, change, row if row.no else self._add(db, key), stored_id)

    def _add_frame(self, db: apsw.Connection, change: Append, row: Row, stored_id: str | bytes) -> int:
        """Add the frame after those that `row` tells of. Gives 0, and writes nothing, if the row in the file is another."""
        new, thread_columns, frame_columns = self._next(db, change, row, stored_id)
        db.execute(SQL["advance_thread"], thread_columns)
        if not db.changes():
            return 0
        db.execute(SQL["add_frame"], frame_columns)
        if new.agent != row.agent:
            db.execute(SQL["set_agent"], (new.agent, row.no))
        if change.blobs:
            _put_blobs(db, change.key, row, change.blobs)
        self._new_rows[change.key] = new
        return new.last

    def append_together(self, db: apsw.Connection, changes: Sequence[StoreChange]) -> list[int]:
        """Append to many threads in a few statements, where each is plainly the next; else gives nothing.

        If it gives nothing something may have been written, which the caller takes back.
        """
        known = [self._rows.get(change.key) for change in changes]
        made: list[tuple[Row, tuple[Any, ...], tuple[Any, ...]]] = []
        for change, row in zip(changes, known, strict=True):
            if type(change) is not Append or change.blobs or row is None or not _is_next(change, row):
                return []
            made.append(self._next(db, change, row, bytes.fromhex(change.id)))
        at = 0
        while at < len(made):
            size = min(len(made) - at, TOGETHER)
            size -= size % 8 if size > 8 else 0  # so that there are few statements to prepare
            part, at = made[at : at + size], at + size
            db.execute(repeated("advance_threads", size), [value for _, columns, _ in part for value in columns])
            if db.changes() != size:
                return []
            db.execute(repeated("add_frame", size), [value for _, _, columns in part for value in columns])
        self._new_rows.update((change.key, new) for change, (new, _, _) in zip(changes, made, strict=True))
        return [new.last for new, _, _ in made]

    def _next(
        self, db: apsw.Connection, change: Append, row: Row, stored_id: str | bytes
    ) -> tuple[Row, tuple[Any, ...], tuple[Any, ...]]:
        """The row of a thread after an append, with the parameters of `advance_thread` and `add_frame`."""
        no, agent, _, _, last, floor, run, frames, epoch, owner, expires, version = row
        key, base, seq = change.key, change.base, last + 1
        agent = change.agent or agent
        run = run if run and base == last else seq
        if change.keep_newest is not None:
            floor = _floor(db, row, change.keep_newest)
        if change.renew_us is not None and owner is not None:
            expires = self._clock() + change.renew_us
        new = Row(no, agent, seq, change.id, seq, floor, run, frames + 1, epoch, owner, expires, version + 1)
        total = thread_sum(key, new, stored_id)
        frame_key = no << 32 | seq
        space = None if place_told_by(stored_id) == frame_key else self.space(db, key.namespace)
        salt = thread_salt(*key)
        meta_sum = meta_checksum(salt, seq, base, run, space, stored_id, change.meta)
        note_sum = None if change.note is None else checksum(change.note, salt, seq)
        delta_sum = checksum(change.delta, salt, seq, base)
        return (
            new,
            (seq, stored_id, seq, floor, run, frames + 1, expires, version + 1, total, no, version),
            (frame_key, space, stored_id, base, run, change.meta, meta_sum, change.note, note_sum, change.delta, delta_sum),
        )

    def _move_head(self, db: apsw.Connection, change: MoveHead, row: Row) -> int:
        _check_head(change, row)
        found = one_row(db, "frame_place", row.key(change.seq)) if change.seq else None
        if change.seq and found is None:
            raise CheckpointNotFound(f"thread {change.key.id!r} has no frame {change.seq}")
        agent = row.agent if change.agent is None else change.agent
        if agent != row.agent:
            db.execute(SQL["set_agent"], (agent, row.no))
        head_id = None if found is None else unpack_id(found[2])
        self._set(db, change.key, row._replace(agent=agent, head=change.seq, head_id=head_id))
        return 0

    def _put_note(self, db: apsw.Connection, change: PutNote, row: Row) -> int:
        found = one_row(db, "note", row.key(change.seq))
        if found is None:
            raise CheckpointNotFound(f"thread {change.key.id!r} has no frame {change.seq}")
        if found[0] != change.expect:
            raise ConflictError(f"thread {change.key.id!r}: somebody else changed the label or tags of frame {change.seq}")
        total = None if change.note is None else checksum(change.note, thread_salt(*change.key), change.seq)
        db.execute(SQL["set_note"], (change.note, total, row.key(change.seq)))
        return 0

    def _put_record(self, db: apsw.Connection, change: PutRecord, row: Row) -> int:
        if change.value is None:
            db.execute(SQL["delete_record"], (row.no, change.kind, change.name))
            return 0
        if change.absent and one_row(db, "record", row.no, change.kind, change.name):
            raise AlreadyExistsError(f"thread {change.key.id!r}: the record {change.kind} {change.name!r} exists already")
        row = row if row.no else self._add(db, change.key)
        total = record_checksum(change.key, change.kind, change.name, change.value)
        db.execute(SQL["put_record"], (row.no, change.kind, change.name, change.value, total))
        return 0

    def _put_keyframe(self, db: apsw.Connection, change: PutKeyframe, row: Row) -> int:
        if change.body is None:
            db.execute(SQL["delete_keyframe"], (row.key(change.seq),))
        else:
            total = checksum(change.body, thread_salt(*change.key), change.seq)
            db.execute(SQL["put_keyframe"], (row.key(change.seq), change.body, total))
        return 0

    def _rewrite(self, db: apsw.Connection, change: Rewrite, row: Row) -> int:
        _check_head(change, row)
        head = row.head if change.head is None else change.head
        if head in change.drop:
            raise InvalidInputError(f"thread {change.key.id!r}: its head {head} cannot be removed")
        _put_blobs(db, change.key, row, change.new_blobs)
        for seq in change.drop:
            note = one_row(db, "note", row.key(seq))
            if note is None and not change.aside:
                raise ConflictError(f"thread {change.key.id!r}: somebody removed frame {seq} meanwhile")
            if note is not None and note[0] is not None and seq not in change.noted and not change.aside:
                raise ConflictError(f"thread {change.key.id!r}: somebody labelled or tagged frame {seq} meanwhile")
            self._drop(db, change, row.key(seq))
        for seq, base, delta in change.rebase:
            _rebase(db, change.key, row, seq, base, delta)
        if change.keep_blobs is not None:
            for (digest,) in all_rows(db, "blob_digests", row.no):
                if digest not in change.keep_blobs:
                    db.execute(SQL["delete_blob"], (row.no, digest))
        return self._after_rewrite(db, change, row, head)

    def _drop(self, db: apsw.Connection, change: Rewrite, key: int) -> None:
        if change.aside:
            db.execute(SQL["frame_aside"], (self._clock(), change.key.id, key))
        db.execute(SQL["delete_frame"], (key,))
        db.execute(SQL["delete_keyframe"], (key,))

    def _after_rewrite(self, db: apsw.Connection, change: Rewrite, row: Row, head: int) -> int:
        count, newest = all_rows(db, "count_frames", row.low(), row.high())[0]
        found = one_row(db, "frame_place", row.key(head)) if head else None
        if found is None and (head or (count and row.head)):
            raise InvalidInputError(f"thread {change.key.id!r}: its head cannot be {head or '(none)'} after that")
        last_is_there = newest is not None and newest & SEQ_MASK == row.last
        run = row.run if last_is_there else 0
        self._set(
            db, change.key, row._replace(head=head, head_id=unpack_id(found[2]) if found else None, frames=count, run=run)
        )
        return 0

    def _delete_thread(self, db: apsw.Connection, change: DeleteThread, row: Row) -> int:
        for name in ("delete_frames", "delete_keyframes"):
            db.execute(SQL[name], (row.low(), row.high()))
        for name in ("delete_records", "delete_blobs", "delete_thread"):
            db.execute(SQL[name], (row.no,))
        db.execute(SQL["delete_aside"], (change.key.id, self.space(db, change.key.namespace)))
        self._new_rows.pop(change.key, None)
        return 0


_MAKE: Final[dict[type, Callable[..., int]]] = {
    Append: Changes._append,
    MoveHead: Changes._move_head,
    PutNote: Changes._put_note,
    PutRecord: Changes._put_record,
    PutKeyframe: Changes._put_keyframe,
    Rewrite: Changes._rewrite,
    DeleteThread: Changes._delete_thread,
}


def space_names(db: apsw.Connection) -> dict[int, str]:
    """Every namespace by its number. Raises CorruptionError."""
    rows = all_rows(db, "spaces")
    for number, name, total in rows:
        if space_checksum(number, name) != total:
            raise CorruptionError(f"{db.filename}: the row of namespace {name!r} is damaged", place="namespace row")
    return {number: name for number, name, _ in rows}


def find(db: apsw.Connection, space: int, namespace: str, stored_id: str | bytes) -> tuple[ThreadKey, int] | None:
    """Where the frame with an id is: where the id says, or where the index says. Raises CorruptionError."""
    told = place_told_by(stored_id)
    at = one_row(db, "frame_at", told, space) if told < NO_KEY else None
    if at is not None:
        key = ThreadKey(namespace, at[1])
        if at[0] == stored_id:
            return key, told & SEQ_MASK
        read_frame(key, all_rows(db, "frames_up", told, told, 1)[0])  # it has another id: is that one sound?
    found = one_row(db, "find_frame", stored_id, space)
    return None if found is None else (ThreadKey(namespace, found[1]), found[0] & SEQ_MASK)


def _is_next(change: Append, row: Row) -> bool:
    """Whether an append continues a remembered row so plainly that nothing else has to be looked at."""
    held = row.owner is not None if change.epoch is None else change.epoch != row.epoch
    same = change.expect == row.head_id and change.base == row.head and change.agent in (None, row.agent)
    return change.fresh and same and row.last < SEQ_MASK and not held


def _missing(change: StoreChange) -> int:
    """A change to a thread that is not there: nothing to do, or nothing to find."""
    if isinstance(change, (PutKeyframe, DeleteThread)):
        return 0
    raise CheckpointNotFound(f"thread {change.key.id!r} has no checkpoints")


def _check_fence(change: StoreChange, row: Row, clock: Callable[[], int]) -> None:
    epoch = getattr(change, "epoch", None)
    if epoch is not None and epoch != row.epoch:
        raise Fenced(f"thread {change.key.id!r}: the lease with epoch {epoch} was lost to epoch {row.epoch}; stop")
    heads = isinstance(change, (Append, MoveHead, Rewrite, DeleteThread))
    if epoch is None and heads and row.owner is not None and row.expires > clock():
        raise Busy(f"thread {change.key.id!r} is held by {row.owner} (epoch {row.epoch}); wait until its run is done")


def _check_head(change: Append | MoveHead | Rewrite, row: Row) -> None:
    if change.expect not in (ANY, row.head_id):
        raise ConflictError(
            f"thread {change.key.id!r}: the head is {row.head_id or '(none)'}, expected {change.expect or '(none)'}; "
            f"read it again and retry",
            expected=change.expect,
            found=row.head_id,
        )


def _floor(db: apsw.Connection, row: Row, keep_newest: int) -> int:
    """The oldest of the newest frames that retention keeps, with the one that is being added."""
    if row.frames + 1 < keep_newest:
        return row.floor
    if keep_newest == 1:
        return row.last + 1
    found = one_row(db, "nth_newest", row.low(), row.high(), keep_newest - 2)
    return max(row.floor, found[0] & SEQ_MASK) if found else row.floor


def _put_blobs(db: apsw.Connection, key: ThreadKey, row: Row, blobs: Sequence[tuple[bytes, bytes]]) -> None:
    for digest, body in blobs:
        db.execute(SQL["put_blob"], (row.no, digest, body, blob_checksum(key, digest, body)))


def _rebase(db: apsw.Connection, key: ThreadKey, row: Row, seq: int, base: int, delta: bytes) -> None:
    found = one_row(db, "frame_meta", row.key(seq))
    if found is None or (base and one_row(db, "frame_place", row.key(base)) is None):
        raise CheckpointNotFound(f"thread {key.id!r} has no frame {base if found else seq}")
    if base >= seq:
        raise InvalidInputError(f"thread {key.id!r}: frame {seq} cannot build on the newer frame {base}")
    salt = thread_salt(*key)
    stored_id, meta, run, space = found
    total = meta_checksum(salt, seq, base, run, space, stored_id, meta)
    db.execute(SQL["rebase"], (base, total, delta, checksum(delta, salt, seq, base), row.key(seq)))
