"""What each kind of change does to the rows of PostgreSQL, inside a transaction or, for a plain append, as one statement.

A `Work` is one transaction: it locks the rows of its threads in order, so that nobody waits for somebody who waits for
it, keeps them in memory while changes are made, and writes each once at the end. Writes are sent without waiting for
their answers; only what has to be looked at costs a round trip. Touches store, frames, _rows, _row_changes, _postgres_pool.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from savegame.encoding.frames import checksum, pack_id, thread_salt
from savegame.model import ThreadKey
from savegame.store import Append, DeleteThread, PutRecord, StoreChange
from savegame.stores.postgres.pool import Link, Rows
from savegame.stores.row_changes import Blobs, RowChanges, floor_after, is_next, remember
from savegame.stores.rows import (
    EMPTY_ROW,
    SEQ_MASK,
    Row,
    Stretch,
    blob_checksum,
    damaged,
    meta_checksum,
    place_told_by,
    placed_id,
    read_frame,
    sound_deltas,
    thread_sum,
)

COLUMNS: Final = len(Row._fields)
KEYFRAME, DELTA = 1, 2
"""Kinds of rows that the statement `chain` gives."""

LOCKS: Final = 64
"""How many locks the ids that users chose share in a namespace: a transaction can hold only so many."""

EPOCH_BITS: Final = 16
"""How many bits of a lease's number are random: a server that lost commits gives the number before them again."""

_random = random.SystemRandom()


@lru_cache(maxsize=4096)
def tag_of(key: ThreadKey) -> int:
    """A number from 1 to 2**31 - 1 that stands for a thread inside ids; several may have the same."""
    return zlib.crc32(f"{key.id}\0{key.namespace}".encode()) % 0x7FFFFFFF + 1


def new_version() -> int:
    """A version that no row of the thread ever had, also not in a history that was lost with a server."""
    return _random.getrandbits(61) + 1


def read_row(key: ThreadKey, columns: Sequence[Any]) -> Row:
    """A thread's row from its columns. Raises CorruptionError."""
    row = Row._make(columns[:COLUMNS])
    if row_sum(key, row) != columns[COLUMNS]:
        raise damaged(key, None, "thread row")
    return row


def row_sum(key: ThreadKey, row: Row) -> int:
    """The checksum of a row; not over the time at which its lease runs out, which the server sets."""
    return thread_sum(key, row._replace(expires=0), row.head_id)


class Work:
    """One transaction on one connection: the rows of the threads that it locked, as they will be."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.rows: dict[ThreadKey, Row | None] = {}
        self.written: dict[ThreadKey, Row] = {}
        self.now = 0
        self._watched: set[ThreadKey] = set()

    def lock(self, keys: Collection[ThreadKey], made: Collection[ThreadKey], ids: Iterable[tuple[str, str]]) -> None:
        """Lock the rows of threads, then ids that users chose. Those of `made` that are missing are made."""
        self.rows = dict.fromkeys(keys)
        self._read(keys)
        missing = sorted(key for key in made if self.rows[key] is None)
        for key in missing:
            self.link.tell("add_thread", *key, tag_of(key))
        if missing:
            self._read(missing)
        for place in sorted({_lock_of(*id) for id in ids}):  # noqa: A001 - one word per idea
            self.link.tell("lock_id", *place)

    def _read(self, keys: Collection[ThreadKey]) -> None:
        if len(keys) == 1:
            found = self.link.ask("lock_thread", *next(iter(keys)))
        else:
            found = self.link.ask("lock_threads", [key.namespace for key in keys], [key.id for key in keys])
        for *columns, namespace, thread_id, watched, now in found:
            key = ThreadKey(namespace, thread_id)
            self.now = max(self.now, now)
            if columns != [*EMPTY_ROW._replace(no=tag_of(key)), 0]:  # that one we have just made
                self.rows[key] = read_row(key, columns)
            if watched:
                self._watched.add(key)

    def write(self, key: ThreadKey, row: Row) -> None:
        """Have the row of a thread written at the end."""
        self.rows[key] = self.written[key] = row

    def delete(self, key: ThreadKey) -> None:
        """The row of a thread is deleted."""
        self.rows[key] = None
        self.written.pop(key, None)

    def finish(self) -> None:
        """Write the rows."""
        for key, row in self.written.items():
            self.link.tell("put_thread", *key, *row, row_sum(key, row))
            if key in self._watched and row.head_id is not None:
                self.link.tell("notify", row.head_id)


class Changes(RowChanges[Work]):
    """Makes changes, and remembers rows of threads as they were last seen: a guess, which the version decides on."""

    def __init__(self, epochs: str) -> None:
        self._epochs = epochs
        self._rows: dict[ThreadKey, Row] = {}

    def apply(self, work: Work, change: StoreChange) -> int:
        """Make one change. Gives the sequence number that it made, or 0."""
        row = work.rows[change.key]
        if row is None and isinstance(change, DeleteThread):
            self.delete_thread(work, change.key, EMPTY_ROW)  # what repair set aside of it, or a lost row left behind
            return 0
        return self.make(work, change, row)

    def remember(self, rows: dict[ThreadKey, Row]) -> None:
        """Rows that are committed."""
        remember(self._rows, rows)

    def forget(self, keys: Iterable[ThreadKey]) -> None:
        """Rows that may be others by now."""
        for key in keys:
            self._rows.pop(key, None)

    def forget_all(self) -> None:
        """Every row may be another by now."""
        self._rows.clear()

    def new_id(self, key: ThreadKey) -> str:
        """An id that tells the place of the thread's next frame, unless somebody else appends first."""
        row = self._rows.get(key)
        return placed_id(tag_of(key) << 32 | (row.last + 1 if row else 1))

    def plain_append(self, change: Append) -> tuple[Row, tuple[Any, ...]] | None:
        """The next row and the parameters of `append`, if the remembered row says that nothing else has to be looked at."""
        row = self._rows.get(change.key)
        if row is None or change.blobs or not is_next(change, row):
            return None
        if change.keep_newest is not None and change.keep_newest > 1 and row.frames != row.last:
            return None  # frames were removed: which one is the oldest to keep has to be looked up
        floor = floor_after(row, change.keep_newest, lambda number: row.last - number)
        listed = _is_listed(change, row)
        new, columns = _after_append(change, row, floor, row.expires, 1 if listed else None)
        new = new._replace(version=new_version())
        renew = None if row.owner is None else change.renew_us
        before, after = (row.version, row.head_id), (new.version, new.last, floor, row_sum(change.key, new))
        return new, (*change.key, *before, *after, renew, listed, *columns)

    # -- rows --------------------------------------------------------------------------------------------

    def now(self, db: Work) -> int:
        return db.now

    def next_epoch(self, db: Work, held: int) -> int:
        number: int = db.link.ask("next_epoch", self._epochs)[0][0]
        return max(number, (held >> EPOCH_BITS) + 1) << EPOCH_BITS | _random.getrandbits(EPOCH_BITS)

    def add_row(self, db: Work, key: ThreadKey) -> Row:
        row = EMPTY_ROW._replace(no=tag_of(key), version=new_version())
        db.write(key, row)
        return row

    def write_row(self, db: Work, key: ThreadKey, row: Row) -> None:
        db.write(key, row._replace(version=new_version()))

    def delete_thread(self, db: Work, key: ThreadKey, row: Row) -> None:
        for kind in ("frames", "keyframes", "records", "blobs", "aside", "thread"):
            db.link.tell(f"delete_{kind}", *key)
        db.delete(key)

    # -- frames ------------------------------------------------------------------------------------------

    def is_taken(self, db: Work, change: Append) -> bool:
        return not change.fresh and find(db.link, change.key.namespace, change.id) is not None

    def add_frame(self, db: Work, change: Append, row: Row) -> int:
        key, listed = change.key, _is_listed(change, row)
        floor = floor_after(row, change.keep_newest, partial(_nth_newest, db.link, key, row))
        expires = row.expires if change.renew_us is None or row.owner is None else db.now + change.renew_us
        new, columns = _after_append(change, row, floor, expires, 1 if listed else None)
        db.link.tell("add_frame", *key, new.last, listed, *columns)
        self.put_blobs(db, key, row, change.blobs)
        self.write_row(db, key, new)
        return new.last

    def ids(self, db: Work, key: ThreadKey, row: Row, seqs: Collection[int]) -> dict[int, str]:
        return dict(db.link.ask("frame_ids", *key, list(seqs)))

    def notes(self, db: Work, key: ThreadKey, row: Row, seqs: Collection[int]) -> dict[int, bytes | None]:
        return dict(db.link.ask("frame_notes", *key, list(seqs)))

    def metas(
        self, db: Work, key: ThreadKey, row: Row, seqs: Collection[int]
    ) -> dict[int, tuple[str | bytes, bytes, int, int | None]]:
        found = db.link.ask("frame_metas", *key, list(seqs))
        return {seq: (stored_id, meta, run, listed) for seq, stored_id, meta, run, listed in found}

    def set_note(self, db: Work, key: ThreadKey, row: Row, seq: int, note: bytes | None, total: int | None) -> None:
        db.link.tell("set_note", *key, seq, note, total)

    def set_base(
        self, db: Work, key: ThreadKey, row: Row, seq: int, base: int, meta_sum: int, delta: bytes, delta_sum: int
    ) -> None:
        db.link.tell("set_base", *key, seq, base, meta_sum, delta, delta_sum)

    def drop_frames(self, db: Work, key: ThreadKey, row: Row, seqs: Sequence[int], *, aside: bool) -> None:
        if aside:
            db.link.tell("frames_aside", *key, list(seqs))
        db.link.tell("drop_frames", *key, list(seqs))
        db.link.tell("drop_keyframes", *key, list(seqs))

    def count(self, db: Work, key: ThreadKey, row: Row) -> tuple[int, int]:
        count, newest = db.link.ask("count_frames", *key)[0]
        return count, newest

    def newer(self, db: Work, key: ThreadKey, row: Row, seq: int) -> list[tuple[int, int, bytes, int]]:
        return [(seq, base, delta, total) for seq, base, delta, total in db.link.ask("newer_frames", *key, seq)]

    # -- records, keyframes, large values ----------------------------------------------------------------

    def record_names(self, db: Work, key: ThreadKey, row: Row, kind: str) -> list[str]:
        return [name for (name,) in db.link.ask("record_names", *key, kind)]

    def has_record(self, db: Work, key: ThreadKey, row: Row, kind: str, name: str) -> bool:
        return bool(db.link.ask("record", *key, kind, name))

    def put_record(self, db: Work, key: ThreadKey, row: Row, kind: str, name: str, value: bytes, total: int) -> None:
        db.link.tell("put_record", *key, kind, name, value, total)

    def delete_record(self, db: Work, key: ThreadKey, row: Row, kind: str, name: str) -> None:
        db.link.tell("delete_record", *key, kind, name)

    def put_keyframe(self, db: Work, key: ThreadKey, row: Row, seq: int, body: bytes, total: int) -> None:
        db.link.tell("put_keyframe", *key, seq, body, total)

    def delete_keyframe(self, db: Work, key: ThreadKey, row: Row, seq: int) -> None:
        db.link.tell("delete_keyframe", *key, seq)

    def put_blobs(self, db: Work, key: ThreadKey, row: Row, blobs: Blobs) -> None:
        for digest, body in blobs:
            db.link.tell("put_blob", *key, digest, body, blob_checksum(key, digest, body))

    def keep_blobs(self, db: Work, key: ThreadKey, row: Row, keep: Collection[bytes]) -> None:
        db.link.tell("keep_blobs", *key, list(keep))


def begins_thread(change: StoreChange) -> bool:
    """Whether a change makes the row of its thread if it is not there: to write it, or so that nobody else does meanwhile."""
    return isinstance(change, (Append, DeleteThread)) or (isinstance(change, PutRecord) and change.value is not None)


def find(link: Link, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - one word per idea
    """Where the frame with an id is: where the id says, or where the index says. Raises CorruptionError."""
    told = place_told_by(pack_id(id))
    tag, seq = told >> 32, told & SEQ_MASK
    for *columns, thread_id in link.ask("frames_at_tag", namespace, tag, seq) if 0 < tag <= 0x7FFFFFFF else ():
        key = ThreadKey(namespace, thread_id)
        if columns[1] == id:
            return key, seq
        read_frame(key, tuple(columns))  # it has another id: is that one sound?
    listed = link.ask("find_listed", namespace, id)
    return (ThreadKey(namespace, listed[0][0]), listed[0][1]) if listed else None


class NotAtOnce(Exception):
    """A chain cannot be read with one statement."""


class ChainReader:
    """Reads a chain stretch by stretch; with `once`, raises NotAtOnce where that takes more than one statement."""

    def __init__(self, link: Link, key: ThreadKey, after: int, *, once: bool) -> None:
        self._link, self._key, self._after = link, key, after
        self._once = once
        self._asked = False

    def stretch(self, high: int) -> Stretch | None:
        """What leads up to a frame inside its unbroken line; None if there is no such frame."""
        key, newest = self._key, high
        while True:
            rows = self._ask(high, newest)
            if not rows:
                return None
            start, body = (self._after, None) if rows[0][1] <= self._after <= high else (0, None)
            if len(rows) > 1 and rows[1][0] == KEYFRAME:
                _, start, _, body, total = rows[1]
                if checksum(body, thread_salt(*key), start) != total:
                    newest = start - 1  # damaged: an older one will do
                    continue
            deltas = [(seq, base, delta, total) for kind, seq, base, delta, total in rows if kind == DELTA]
            return Stretch(start, body, *sound_deltas(key, start, high, deltas, partial(id_of, self._link, key)))

    def _ask(self, high: int, newest: int) -> Rows:
        if self._asked and self._once:
            raise NotAtOnce
        self._asked = True
        return self._link.ask("chain", *self._key, high, newest, self._after)


def id_of(link: Link, key: ThreadKey, seq: int) -> str | None:
    """The id of a frame."""
    found = link.ask("frame_ids", *key, [seq])
    return found[0][1] if found else None


def _after_append(change: Append, row: Row, floor: int, expires: int, listed: int | None) -> tuple[Row, tuple[Any, ...]]:
    """The row of a thread after an append, and the columns of the new frame from its id on."""
    key, id, base, meta, delta, note, _, _, wanted_agent, *_ = change  # noqa: A001 - one word per idea
    no, agent, _, _, last, _, run, frames, epoch, owner, _, version = row
    seq, salt = last + 1, thread_salt(*key)
    run = run if run and base == last else seq
    new = Row(no, wanted_agent or agent, seq, id, seq, floor, run, frames + 1, epoch, owner, expires, version + 1)
    meta_sum, delta_sum = meta_checksum(salt, seq, base, run, listed, id, meta), checksum(delta, salt, seq, base)
    note_sum = None if note is None else checksum(note, salt, seq)
    return new, (id, base, run, meta, meta_sum, note, note_sum, delta, delta_sum)


def _is_listed(change: Append, row: Row) -> bool:
    """Whether the id of a frame has to be looked up, since it does not tell its place."""
    return place_told_by(pack_id(change.id)) != row.no << 32 | row.last + 1


def _nth_newest(link: Link, key: ThreadKey, row: Row, number: int) -> int | None:
    if row.frames == row.last:  # none was ever removed
        return row.last - number
    found = link.ask("nth_newest", *key, number)
    return found[0][0] if found else None


def _lock_of(namespace: str, id: str) -> tuple[int, int]:  # noqa: A002 - one word per idea
    return zlib.crc32(f"savegame ids {namespace}".encode()) - 2**31, zlib.crc32(id.encode()) % LOCKS
