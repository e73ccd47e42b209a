"""What each kind of change does to the rows of an SQLite file.

An append to a thread whose row is remembered from the last commit does not read that row again: it writes the next one
only if the version on disk is still the remembered one. If that is all there is to write, it is one statement, which
commits by itself. All else happens inside the transaction that the caller has open. There a single change fails before it
has written; a Rewrite and a list of changes do not, and who shares a transaction needs a savepoint around them.
Touches store, frames, _rows, _row_changes and _sqlite_file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final
from zlib import crc32

import apsw
from ormsgpack import packb

from savegame.encoding.frames import BASE_FACTOR, SEQ_FACTOR, checksum, pack_id, thread_salt, unpack_id
from savegame.errors import CorruptionError
from savegame.model import Lease, ThreadKey
from savegame.store import Append, StoreChange
from savegame.stores.row_changes import Blobs, RowChanges, floor_after, is_next, remember
from savegame.stores.rows import (
    EMPTY_ROW,
    SEQ_MASK,
    Row,
    blob_checksum,
    damaged,
    place_told_by,
    read_frame,
    read_thread,
    space_checksum,
    thread_values,
)
from savegame.stores.sqlite_file import SQL, Connection, all_rows, one_row, repeated

AT_ONCE: Final = 256
"""How many appends one statement makes at most: apsw keeps no statements that are longer."""

AT_ONCE_BYTES: Final = 8 << 20
"""How large their deltas are together, at most: SQLite copies them once more."""

MOST_THREADS: Final = (1 << 31) - 1
"""The largest number that a thread can have: keys of its frames must fit 63 bits."""

NO_KEY: Final = 1 << 63
"""Keys of rows are smaller."""


class Changes(RowChanges[Connection]):
    """Makes changes, and remembers rows of threads and numbers of namespaces that were committed."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.rows: dict[ThreadKey, Row] = {}
        self._new_rows: dict[ThreadKey, Row] = {}
        self._spaces: dict[str, int] = {}
        self._new_spaces: dict[str, int] = {}

    def committed(self) -> None:
        """What was written since the last call is there to stay."""
        remember(self.rows, self._new_rows)
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
        self.rows.clear()
        self._spaces.clear()

    def apply(self, db: Connection, change: StoreChange) -> int:
        """Make one change. Gives the sequence number that it made, or 0."""
        key = change.key
        if type(change) is Append:
            known = self._new_rows.get(key) or self.rows.get(key)
            if known is not None and is_next(change, known):
                seq = self._add(db, change, known)
                if seq:
                    return seq
        return self.make(db, change, self.row(db, key))

    # -- rows of threads -----------------------------------------------------------------------------

    def row(self, db: Connection, key: ThreadKey) -> Row | None:
        """The row of a thread as it is in the file."""
        found = one_row(db, "thread", self.space(db, key.namespace), key.id)
        return None if found is None else read_thread(key, found)

    def now(self, db: Connection) -> int:
        return self._clock()

    def next_epoch(self, db: Connection, held: int) -> int:
        epoch: int = all_rows(db, "next_epoch", max(self._clock(), held), held)[0][0]
        return epoch

    def add_row(self, db: Connection, key: ThreadKey) -> Row:
        if all_rows(db, "newest_number")[0][0] >= MOST_THREADS:  # its frames would lie among those of another thread
            raise CorruptionError(
                f"{db.filename}: the number of a thread is damaged, and no new one can be given; run repair", place="thread row"
            )
        (no,) = all_rows(db, "add_thread", self.space(db, key.namespace, add=True), key.id)[0]
        self.write_row(db, key, EMPTY_ROW._replace(no=no))
        return self._new_rows[key]

    def write_row(self, db: Connection, key: ThreadKey, row: Row) -> None:
        row = row._replace(version=row.version + 1)
        db.run(SQL["set_thread"], thread_values(key, row))
        db.run(SQL["set_agent"], (row.agent, row.no, row.agent))
        self._new_rows[key] = row

    def lease(self, db: Connection, key: ThreadKey, owner: str, ttl_us: int, instead_of: int | None) -> Lease:
        """`Store.lease`."""
        return self.leased(db, key, self.row(db, key), owner, ttl_us, instead_of)

    def renew(self, db: Connection, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        """`Store.renew`."""
        return self.renewed(db, key, self.row(db, key), epoch, ttl_us)

    # -- namespaces ----------------------------------------------------------------------------------

    def space(self, db: Connection, namespace: str, *, add: bool = False) -> int:
        """The number of a namespace; 0, which nothing has, if there is none yet."""
        number = self._spaces.get(namespace) or self._new_spaces.get(namespace)
        if number is None:
            rows = all_rows(db, "spaces")
            damaged = [name for no, name, total in rows if space_checksum(no, name) != total]
            number = next((no for no, name, _ in rows if name == namespace and name not in damaged), 0)
            if not number and damaged:  # it may be ours
                raise CorruptionError(
                    f"{db.filename}: the row of namespace {damaged[0]!r} is damaged; run repair", place="namespace row"
                )
            if not number and add:
                number = max((no for no, _, _ in rows), default=0) + 1
                db.run(SQL["add_space"], (number, namespace, space_checksum(number, namespace)))
            if number:  # what was added in this transaction may yet be rolled back
                (self._new_spaces if db.in_transaction else self._spaces)[namespace] = number
        return number

    # -- frames --------------------------------------------------------------------------------------

    def is_taken(self, db: Connection, change: Append) -> bool:
        namespace = change.key.namespace
        return find(db, self.space(db, namespace), namespace, pack_id(change.id)) is not None

    def add_frame(self, db: Connection, change: Append, row: Row) -> int:
        seq = self._add(db, change, row)
        if not seq:  # although the row was just read
            raise damaged(change.key, None, f"frame {row.last + 1} is there already", row.last + 1)
        return seq

    def _add(self, db: Connection, change: Append, row: Row) -> int:
        """`add_frame` for a row that may have changed: gives 0, and nothing was written, if it has."""
        new, columns = self._next(db, change, row)
        if not _inserted(db, columns, 1):
            return 0
        if new.agent != row.agent:
            db.run(SQL["set_agent"], (new.agent, row.no, new.agent))
        if change.blobs:
            self.put_blobs(db, change.key, row, change.blobs)
        self._new_rows[change.key] = new
        return new.last

    def append_next(self, db: Connection, change: StoreChange) -> int:
        """Make one change with one statement that commits by itself, if it is plainly the next append to its thread.

        Gives 0, and nothing was written, where it is not as plain as that.
        """
        key = change.key
        row = self.rows.get(key)
        if row is None or type(change) is not Append or not _is_plain(change, row):
            return 0
        new, columns = self._next(db, change, row)
        if not _inserted(db, columns, 1):
            self.rows.pop(key, None)
            return 0
        remember(self.rows, {key: new})
        return new.last

    def append_together(self, db: Connection, changes: Sequence[StoreChange]) -> list[int]:
        """`append_next` for many threads, with one statement for all. Gives nothing where one of them is not as plain."""
        if not 0 < len(changes) <= AT_ONCE:
            return []
        new: dict[ThreadKey, Row] = {}
        columns: list[Any] = []
        size = 0
        for change in changes:
            row = self.rows.get(change.key)
            if row is None or type(change) is not Append or not _is_plain(change, row) or size > AT_ONCE_BYTES:
                return []
            new[change.key], more = self._next(db, change, row)
            columns += more
            size += len(change.delta)
        if not _inserted(db, columns, len(changes)):
            for key in new:
                self.rows.pop(key, None)
            return []
        remember(self.rows, new)
        return [row.last for row in new.values()]

    def _next(self, db: Connection, change: Append, row: Row) -> tuple[Row, tuple[Any, ...]]:
        """The row of a thread after an append, with the parameters of `append`.

        Every save comes along here, so that the sums which `thread_sum` and `read_frame` check are written out.
        """
        key, id, base, meta, delta, note, _, _, wanted_agent, keep_newest, _, _, renew_us, _ = change  # noqa: A001 - one word per idea
        no, agent, _, _, last, floor, run, count, epoch, owner, expires, version = row
        seq, stored_id, salt = last + 1, pack_id(id), thread_salt(*key)
        frame_key, place = no << 32 | seq, (salt + seq * SEQ_FACTOR + base * BASE_FACTOR) & 0xFFFFFFFF
        agent, count, version = wanted_agent or agent, count + 1, version + 1
        run = run if run and base == last else seq
        if keep_newest is not None:
            floor = floor_after(row, keep_newest, partial(_nth_newest, db, row))
        if renew_us is not None and owner is not None:
            expires = self._clock() + renew_us
        space = None if place_told_by(stored_id) == frame_key else self.space(db, key.namespace)
        new = Row(no, agent, seq, id, seq, floor, run, count, epoch, owner, expires, version)
        total = crc32(packb([no, agent, seq, stored_id, seq, floor, run, count, epoch, owner, expires, version]), salt)
        named = stored_id if isinstance(stored_id, bytes) else stored_id.encode()
        summed = ((space or 0) << 64 | run).to_bytes(16, "little") + named + meta
        note_sum = None if note is None else checksum(note, salt, seq)
        meta_sum, delta_sum = crc32(summed, place), crc32(delta, place)
        columns = (no, version, seq, stored_id, base, run, floor, count, expires, total)
        return new, (*columns, space, meta, meta_sum, note, note_sum, delta, delta_sum)

    def ids(self, db: Connection, key: ThreadKey, row: Row, seqs: Collection[int]) -> dict[int, str]:
        found = ((seq, one_row(db, "frame_place", row.key(seq))) for seq in seqs)
        return {seq: unpack_id(place[2]) for seq, place in found if place is not None}

    def notes(self, db: Connection, key: ThreadKey, row: Row, seqs: Collection[int]) -> dict[int, bytes | None]:
        found = ((seq, one_row(db, "note", row.key(seq))) for seq in seqs)
        return {seq: note[0] for seq, note in found if note is not None}

    def metas(
        self, db: Connection, key: ThreadKey, row: Row, seqs: Collection[int]
    ) -> dict[int, tuple[str | bytes, bytes, int, int | None]]:
        found = ((seq, one_row(db, "frame_meta", row.key(seq))) for seq in seqs)
        return {seq: (meta[0], meta[1], meta[2], meta[3]) for seq, meta in found if meta is not None}

    def set_note(self, db: Connection, key: ThreadKey, row: Row, seq: int, note: bytes | None, total: int | None) -> None:
        db.run(SQL["set_note"], (note, total, row.key(seq)))

    def set_base(
        self, db: Connection, key: ThreadKey, row: Row, seq: int, base: int, meta_sum: int, delta: bytes, delta_sum: int
    ) -> None:
        db.run(SQL["rebase"], (base, meta_sum, delta, delta_sum, row.key(seq)))

    def drop_frames(self, db: Connection, key: ThreadKey, row: Row, seqs: Sequence[int], *, aside: bool) -> None:
        for frame_key in map(row.key, seqs):
            if aside:
                db.run(SQL["frame_aside"], (self._clock(), key.id, frame_key))
            db.run(SQL["delete_frame"], (frame_key,))
            db.run(SQL["delete_keyframe"], (frame_key,))

    def count(self, db: Connection, key: ThreadKey, row: Row) -> tuple[int, int]:
        count, newest = all_rows(db, "count_frames", row.low(), row.high())[0]
        return count, newest & SEQ_MASK if count else 0

    def newer(self, db: Connection, key: ThreadKey, row: Row, seq: int) -> list[tuple[int, int, bytes, int]]:
        found = all_rows(db, "newer_frames", row.key(seq), row.high())
        return [(frame_key & SEQ_MASK, base, delta, total) for frame_key, base, delta, total in found]

    def delete_thread(self, db: Connection, key: ThreadKey, row: Row) -> None:
        for name in ("delete_frames", "delete_keyframes"):
            db.run(SQL[name], (row.low(), row.high()))
        for name in ("delete_records", "delete_blobs", "delete_thread"):
            db.run(SQL[name], (row.no,))
        db.run(SQL["delete_aside"], (key.id, self.space(db, key.namespace)))
        self._new_rows.pop(key, None)

    # -- records, keyframes, large values --------------------------------------------------------------

    def record_names(self, db: Connection, key: ThreadKey, row: Row, kind: str) -> list[str]:
        return [name for (name,) in all_rows(db, "record_names", row.no, kind)]

    def has_record(self, db: Connection, key: ThreadKey, row: Row, kind: str, name: str) -> bool:
        return one_row(db, "record", row.no, kind, name) is not None

    def put_record(self, db: Connection, key: ThreadKey, row: Row, kind: str, name: str, value: bytes, total: int) -> None:
        db.run(SQL["put_record"], (row.no, kind, name, value, total))

    def delete_record(self, db: Connection, key: ThreadKey, row: Row, kind: str, name: str) -> None:
        db.run(SQL["delete_record"], (row.no, kind, name))

    def put_keyframe(self, db: Connection, key: ThreadKey, row: Row, seq: int, body: bytes, total: int) -> None:
        db.run(SQL["put_keyframe"], (row.key(seq), body, total))

    def delete_keyframe(self, db: Connection, key: ThreadKey, row: Row, seq: int) -> None:
        db.run(SQL["delete_keyframe"], (row.key(seq),))

    def put_blobs(self, db: Connection, key: ThreadKey, row: Row, blobs: Blobs) -> None:
        for digest, body in blobs:
            db.run(SQL["put_blob"], (row.no, digest, body, blob_checksum(key, digest, body)))

    def keep_blobs(self, db: Connection, key: ThreadKey, row: Row, keep: Collection[bytes]) -> None:
        for (digest,) in all_rows(db, "blob_digests", row.no):
            if digest not in keep:
                db.run(SQL["delete_blob"], (row.no, digest))


def space_names(db: Connection) -> dict[int, str]:
    """Every namespace by its number, unchecked: sums of the rows in it are over its name."""
    return {number: name for number, name, _ in all_rows(db, "spaces")}


def find(db: Connection, space: int, namespace: str, stored_id: str | bytes) -> tuple[ThreadKey, int] | None:
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


def _is_plain(change: Append, row: Row) -> bool:
    """Whether an append continues a remembered row, and writes nothing that has to wait until nobody else writes."""
    return not change.blobs and change.renew_us is None and is_next(change, row)


def _inserted(db: Connection, columns: Sequence[Any], count: int) -> bool:
    """Run `append` for so many threads.

    Gives False, and nothing was written, if the row of one has another version, or a frame is in the way.
    """
    if count == 1:
        statement = SQL["append"]
    else:  # rows of NULL fill it up to one of a few sizes, so that there are few statements to prepare
        size = count + -count % 8 if count <= 64 else 1 << (count - 1).bit_length()
        statement, columns = repeated("append", size), [*columns, *[None] * (len(columns) // count * (size - count))]
    try:
        db.run(statement, columns)
    except apsw.ConstraintError:
        return False
    return True


def _nth_newest(db: Connection, row: Row, number: int) -> int | None:
    found = one_row(db, "nth_newest", row.low(), row.high(), number)
    return None if found is None else found[0] & SEQ_MASK
