"""The primitives of the rules on the tables of an SQLite file, and the one short way past them.

An append that continues a thread whose row is remembered from the last commit is one statement, which commits by itself:
it writes the thread's next row only if the version on disk is still the remembered one. So is a record that must be absent,
beside such a thread. Everything else goes by the rules, inside the transaction that the caller has open. There a single
change is refused before it has written; a Rewrite, an append with blobs and a list of changes may not be, and need a
savepoint where several callers share the transaction.
Touches rules, frames, rows, sums and sqlite_file.
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
from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.store import Append, PutRecord, StoreChange
from savegame.stores.rows import (
    EMPTY_ROW,
    FrameRange,
    Row,
    continues,
    place_in,
    read_frame,
    read_thread,
    remember,
    thread_values,
)
from savegame.stores.rules import MAX_SEQ, Blobs, Pin, Transaction, floor_after, make
from savegame.stores.sqlite.reading import read_frames
from savegame.stores.sqlite_file import SQL, Connection, all_rows, one_row, repeated
from savegame.stores.sums import blob_checksum, damaged, meta_checksum, record_checksum, space_checksum, thread_sum

ONE_STATEMENT: Final = 256
"""The largest number of appends in one statement: apsw keeps no statements that are longer."""

AT_ONCE_BYTES: Final = 8 << 20
"""The largest size of their deltas together: SQLite copies them once more."""

MOST_THREADS: Final = (1 << 31) - 1
"""The largest number that a thread can have: keys of its frames must fit 63 bits."""

NO_KEY: Final = 1 << 63
"""Keys of rows are smaller."""


class Committed:
    """Rows of threads and numbers of namespaces as they were last committed: a guess, which versions decide on."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.rows: dict[ThreadKey, Row] = {}
        self.spaces: dict[str, int] = {}

    def forget(self) -> None:
        """Remember nothing: rows may have been changed in another way."""
        self.rows.clear()
        self.spaces.clear()

    def space(self, db: Connection, namespace: str) -> int:
        """The number of a namespace; 0, which none has, if it does not exist."""
        number = self.spaces.get(namespace)
        if number is None:
            number = _find_space(db, namespace)
            if number and not db.in_transaction:  # what was added in a transaction may yet be rolled back
                self.spaces[namespace] = number
        return number

    def row(self, db: Connection, key: ThreadKey) -> Row | None:
        """The row of a thread as it is in the file."""
        return _read_row(db, self.space(db, key.namespace), key)

    # -- the short way -------------------------------------------------------------------------------

    def make_next(self, db: Connection, change: StoreChange) -> list[int]:
        """Make one change with one statement that commits by itself, if it is plainly what can come next.

        Returns its number, or nothing, and nothing was written, where it is not that plain.
        """
        if type(change) is PutRecord:
            return [0] if change.absent and self._put_absent(db, change) else []
        seq = self._append_next(db, change)
        return [seq] if seq else []

    def _put_absent(self, db: Connection, change: PutRecord) -> bool:
        """Put a record beside a thread whose row is the remembered one. False, and nothing was written, if it exists."""
        key, kind, name, value, epoch, _, renew_us = change
        row = self.rows.get(key)
        if row is None or value is None or epoch is not None or renew_us is not None:
            return False
        try:
            db.run(SQL["put_absent"], (kind, name, value, record_checksum(key, kind, name, value), row.no, row.version))
        except apsw.ConstraintError:
            return False
        return db.changes() > 0

    def _append_next(self, db: Connection, change: StoreChange) -> int:
        """Append with one statement. Returns 0, and nothing was written, if it does not continue the remembered row."""
        key = change.key
        row = self.rows.get(key)
        if row is None or type(change) is not Append or not _is_plain(change, row):
            return 0
        if not change.fresh and self._may_be_taken(db, change):
            return 0
        new, columns = self.next_row(db, change, row)
        if not _inserted(db, columns, 1):
            self.rows.pop(key, None)
            return 0
        remember(self.rows, {key: new})
        return new.last

    def _may_be_taken(self, db: Connection, change: Append) -> bool:
        """Whether a frame that another id would lead to may have a chosen id; of chosen ids, no two rows can have one."""
        place = place_in(pack_id(change.id))
        return place < NO_KEY and one_row(db, "frame_place", place) is not None

    def append_together(self, db: Connection, changes: Sequence[StoreChange]) -> list[int]:
        """`make_next` for appends to many threads, with one statement for all. Returns nothing where one is not that plain."""
        if not 0 < len(changes) <= ONE_STATEMENT:
            return []
        new: dict[ThreadKey, Row] = {}
        columns: list[Any] = []
        size = 0
        for change in changes:
            row = self.rows.get(change.key)
            if row is None or type(change) is not Append or not _is_plain(change, row) or size > AT_ONCE_BYTES:
                return []
            if not change.fresh:
                return []
            new[change.key], more = self.next_row(db, change, row)
            columns += more
            size += len(change.delta)
        if not _inserted(db, columns, len(changes)):
            for key in new:
                self.rows.pop(key, None)
            return []
        remember(self.rows, new)
        return [row.last for row in new.values()]

    def next_row(self, db: Connection, change: Append, row: Row) -> tuple[Row, tuple[Any, ...]]:
        """The row of a thread after an append that continues it, with the parameters of `append`.

        Every save comes along here: taking both apart is quicker than asking for each field, and the sums which `_columns`
        asks for are written out.
        """
        key, id, base, meta, delta, note, _, _, _, keep_newest, _, _, renew_us, _ = change  # noqa: A001 - one word per idea
        no, agent, _, _, last, floor, run, frames, epoch, owner, expires, version = row
        seq, stored_id, salt = last + 1, pack_id(id), thread_salt(*key)
        place = (salt + seq * SEQ_FACTOR + base * BASE_FACTOR) & 0xFFFFFFFF
        frames, version = frames + 1, version + 1
        run = run if run and base == last else seq
        if keep_newest is not None:
            floor = floor_after(last, frames - 1, floor, keep_newest, partial(_nth_newest, db, row))
        if renew_us is not None and owner is not None:
            expires = self.clock() + renew_us
        space = None if place_in(stored_id) == no << 32 | seq else self.space(db, key.namespace)
        new = Row(no, agent, seq, id, seq, floor, run, frames, epoch, owner, expires, version)
        total = crc32(packb([no, agent, seq, stored_id, seq, floor, run, frames, epoch, owner, expires, version]), salt)
        named = stored_id if isinstance(stored_id, bytes) else stored_id.encode()
        meta_sum = crc32(((space or 0) << 64 | run).to_bytes(16, "little") + named + meta, place)
        note_sum = None if note is None else checksum(note, salt, seq)
        columns = (no, version, seq, stored_id, base, run, floor, frames, expires, total)
        return new, (*columns, space, meta, meta_sum, note, note_sum, delta, crc32(delta, place))


class SQLiteTransaction(Transaction):
    """The primitives, inside a transaction of `db`."""

    def __init__(self, db: Connection, before: Committed) -> None:
        self.db = db
        self._before = before
        self._rows: dict[ThreadKey, Row | None] = {}
        self._written: dict[ThreadKey, Row] = {}
        self._spaces: dict[str, int] = {}

    def make(self, change: StoreChange) -> int:
        """Make one change, the short way if it is plainly the next append. Returns the number that it made, or 0."""
        if type(change) is Append:
            known = self._written.get(change.key) or self._before.rows.get(change.key)
            if known is not None and change.fresh and continues(change, known):
                new, columns = self._before.next_row(self.db, change, known)
                if _inserted(self.db, columns, 1):
                    self._keep(change.key, new)
                    self.put_blobs(change.key, change.blobs)
                    return new.last
        return make(self, change)

    def committed(self) -> None:
        """What was written is in the file."""
        remember(self._before.rows, self._written)
        self._before.spaces.update(self._spaces)

    def undone(self) -> None:
        """What was written may be undone, in part or whole."""
        for known in (self._rows, self._written, self._spaces):
            known.clear()

    def now(self) -> int:
        return self._before.clock()

    def next_epoch(self, newest: int) -> int:
        epoch: int = all_rows(self.db, "next_epoch", max(self.now(), newest), newest)[0][0]
        return epoch

    # -- threads -------------------------------------------------------------------------------------

    def _row(self, key: ThreadKey) -> Row:
        """The row of a thread; EMPTY_ROW, whose number no thread has, if it does not exist."""
        if key not in self._rows:
            self._rows[key] = _read_row(self.db, self._space(key.namespace), key)
        return self._rows[key] or EMPTY_ROW

    def _space(self, namespace: str) -> int:
        return self._spaces.get(namespace) or self._before.space(self.db, namespace)

    def _keep(self, key: ThreadKey, row: Row) -> None:
        self._rows[key] = self._written[key] = row

    def row(self, key: ThreadKey) -> ThreadRow | None:
        row = self._row(key)
        return row.ruled(key) if row.no else None

    def add_thread(self, key: ThreadKey) -> ThreadRow:
        db = self.db
        if all_rows(db, "newest_number")[0][0] >= MOST_THREADS:  # its frames would lie among those of another thread
            raise CorruptionError(
                f"{db.filename}: the number of a thread is damaged, so that no new thread can have one; run repair",
                place="thread row",
            )
        space = self._space(key.namespace)
        if not space:
            space = max((no for no, _, _ in all_rows(db, "spaces")), default=0) + 1
            db.run(SQL["add_space"], (space, key.namespace, space_checksum(space, key.namespace)))
            self._spaces[key.namespace] = space
        (no,) = all_rows(db, "add_thread", space, key.id)[0]
        return self._write(key, EMPTY_ROW._replace(no=no)).ruled(key)

    def put_row(self, row: ThreadRow) -> None:
        self._write(row.key, self._row(row.key).after(row))

    def _write(self, key: ThreadKey, row: Row) -> Row:
        row = row._replace(version=row.version + 1)
        self.db.run(SQL["set_thread"], thread_values(key, row))
        self.db.run(SQL["set_agent"], (row.agent, row.no, row.agent))
        self._keep(key, row)
        return row

    def delete_thread(self, key: ThreadKey) -> None:
        row = self._row(key)
        if row.no:
            for name in ("delete_frames", "delete_keyframes"):
                self.db.run(SQL[name], (row.low(), row.high()))
            for name in ("delete_records", "delete_blobs", "delete_thread"):
                self.db.run(SQL[name], (row.no,))
        self.db.run(SQL["delete_aside"], (key.id, self._space(key.namespace)))
        self._rows[key] = None
        self._written.pop(key, None)

    # -- frames --------------------------------------------------------------------------------------

    def is_taken(self, change: Append) -> bool:
        namespace = change.key.namespace
        return find(self.db, self._space(namespace), namespace, pack_id(change.id)) is not None

    def add_frame(self, row: ThreadRow, frame: Frame) -> None:
        key, before = row.key, self._row(row.key)
        run = before.run if before.run and frame.base == before.last else frame.seq
        new = before.after(row)._replace(run=run, version=before.version + 1)
        space = None if place_in(pack_id(frame.id)) == new.key(frame.seq) else self._space(key.namespace)
        if not _inserted(self.db, _columns(key, new, frame, space), 1):
            raise damaged(key, None, f"frame {frame.seq} exists already", frame.seq)  # although its row was just read
        if new.agent != before.agent:
            self.db.run(SQL["set_agent"], (new.agent, new.no, new.agent))
        self._keep(key, new)

    def pins(self, key: ThreadKey, seqs: Collection[int]) -> dict[int, Pin]:
        row = self._row(key)
        found = ((seq, one_row(self.db, "pin", row.key(seq))) for seq in seqs)
        return {seq: Pin(unpack_id(columns[0]), columns[1]) for seq, columns in found if columns is not None}

    def frames_after(self, key: ThreadKey, seq: int) -> list[Frame]:
        return read_frames(self.db, key, self._row(key), FrameRange(low=seq + 1, deltas=True))

    def nth_newest(self, key: ThreadKey, number: int) -> int | None:
        return _nth_newest(self.db, self._row(key), number)

    def count(self, key: ThreadKey) -> int:
        row = self._row(key)
        count: int = all_rows(self.db, "count_frames", row.low(), row.high())[0][0]
        return count

    def put_note(self, key: ThreadKey, seq: int, note: bytes | None) -> None:
        total = None if note is None else checksum(note, thread_salt(*key), seq)
        self.db.run(SQL["set_note"], (note, total, self._row(key).key(seq)))

    def rebase(self, key: ThreadKey, frames: Sequence[tuple[int, int, bytes]]) -> None:
        salt, row = thread_salt(*key), self._row(key)
        for seq, base, delta in frames:
            ((stored_id, meta, run, space),) = all_rows(self.db, "frame_meta", row.key(seq))
            meta_sum = meta_checksum(salt, seq, base, run, space, stored_id, meta)
            self.db.run(SQL["rebase"], (base, meta_sum, delta, checksum(delta, salt, seq, base), row.key(seq)))

    def drop_frames(self, key: ThreadKey, seqs: Sequence[int], *, aside: bool) -> None:
        row = self._row(key)
        for frame_key in map(row.key, seqs):
            if aside:
                self.db.run(SQL["frame_aside"], (self.now(), key.id, frame_key))
            self.db.run(SQL["delete_frame"], (frame_key,))
            self.db.run(SQL["delete_keyframe"], (frame_key,))
        if row.last in seqs:  # the next frame begins a run of its own
            self._rows[key] = row._replace(run=0)

    # -- records, keyframes, blobs -------------------------------------------------------------------

    def record_names(self, key: ThreadKey, kind: str) -> list[str]:
        return [name for (name,) in all_rows(self.db, "record_names", self._row(key).no, kind)]

    def has_record(self, key: ThreadKey, kind: str, name: str) -> bool:
        return one_row(self.db, "record", self._row(key).no, kind, name) is not None

    def put_record(self, key: ThreadKey, kind: str, name: str, value: bytes | None) -> None:
        no = self._row(key).no
        if value is None:
            self.db.run(SQL["delete_record"], (no, kind, name))
        else:
            self.db.run(SQL["put_record"], (no, kind, name, value, record_checksum(key, kind, name, value)))

    def put_keyframe(self, key: ThreadKey, seq: int, body: bytes | None) -> None:
        frame_key = self._row(key).key(seq)
        if body is None:
            self.db.run(SQL["delete_keyframe"], (frame_key,))
        else:
            self.db.run(SQL["put_keyframe"], (frame_key, body, checksum(body, thread_salt(*key), seq)))

    def put_blobs(self, key: ThreadKey, blobs: Blobs) -> None:
        for digest, body in blobs:
            self.db.run(SQL["put_blob"], (self._row(key).no, digest, body, blob_checksum(key, digest, body)))

    def keep_blobs(self, key: ThreadKey, digests: Collection[bytes], *, aside: bool) -> None:
        no = self._row(key).no
        for (digest,) in all_rows(self.db, "blob_digests", no):
            if digest not in digests:
                if aside:
                    self.db.run(SQL["blob_aside"], (self.now(), key.id, no, digest))
                self.db.run(SQL["delete_blob"], (no, digest))


def _columns(key: ThreadKey, row: Row, frame: Frame, space: int | None) -> tuple[Any, ...]:
    """The parameters of `append` for a frame, and the row of its thread after it."""
    seq, base, delta, stored_id, salt = frame.seq, frame.base, frame.delta or b"", pack_id(frame.id), thread_salt(*key)
    meta_sum = meta_checksum(salt, seq, base, row.run, space, stored_id, frame.meta)
    note_sum = None if frame.note is None else checksum(frame.note, salt, seq)
    total = thread_sum(key, row, stored_id)
    columns = (row.no, row.version, seq, stored_id, base, row.run, row.floor, row.frames, row.expires, total)
    return (*columns, space, frame.meta, meta_sum, frame.note, note_sum, delta, checksum(delta, salt, seq, base))


def space_names(db: Connection) -> dict[int, str]:
    """Every namespace by its number, unchecked: sums of the rows in it are over its name."""
    return {number: name for number, name, _ in all_rows(db, "spaces")}


def _find_space(db: Connection, namespace: str) -> int:
    rows = all_rows(db, "spaces")
    bad = [name for no, name, total in rows if space_checksum(no, name) != total]
    number: int = next((no for no, name, _ in rows if name == namespace and name not in bad), 0)
    if not number and bad:  # it may be ours
        raise CorruptionError(f"{db.filename}: the row of namespace {bad[0]!r} is damaged; run repair", place="namespace row")
    return number


def _read_row(db: Connection, space: int, key: ThreadKey) -> Row | None:
    found = one_row(db, "thread", space, key.id)
    return None if found is None else read_thread(key, found)


def find(db: Connection, space: int, namespace: str, stored_id: str | bytes) -> tuple[ThreadKey, int] | None:
    """Where the frame with an id is: where the id says, or where the index says. Raises CorruptionError."""
    place = place_in(stored_id)
    at = one_row(db, "frame_at", place, space) if place < NO_KEY else None
    if at is not None:
        key = ThreadKey(namespace, at[1])
        if at[0] == stored_id:
            return key, place & MAX_SEQ
        read_frame(key, all_rows(db, "frames_up", place, place, 1)[0])  # it has another id: is that one sound?
    found = one_row(db, "find_frame", stored_id, space)
    return None if found is None else (ThreadKey(namespace, found[1]), found[0] & MAX_SEQ)


def _is_plain(change: Append, row: Row) -> bool:
    """Whether an append continues a remembered row, and writes nothing that has to wait until other writers are done."""
    return not change.blobs and change.renew_us is None and continues(change, row)


def _inserted(db: Connection, columns: Sequence[Any], count: int) -> bool:
    """Run `append` for this many threads.

    Returns False, and nothing was written, if the row of one has another version, or a frame is in the way.
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
    return None if found is None else found[0] & MAX_SEQ
