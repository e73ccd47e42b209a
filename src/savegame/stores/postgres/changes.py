"""The primitives of the rules on PostgreSQL's tables, and the one short way past them: a plain append as one statement.

A `Work` is one transaction: it locks the rows of its threads in order, so that writers never wait for each other in a
circle, keeps them in memory while changes are made, and writes each once at the end. Writes are sent without waiting for
their answers; only a question costs a round trip. Touches rules, frames, rows, sums, pool and reading.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from savegame.encoding.frames import checksum, pack_id, thread_salt
from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.store import Append, DeleteThread, PutRecord, StoreChange
from savegame.stores.postgres.link import Link
from savegame.stores.postgres.reading import find, read_frames, read_row, row_sum
from savegame.stores.rows import EMPTY_ROW, FrameRange, Row, continues, place_in, placed_id, remember
from savegame.stores.rules import Blobs, Pin, Transaction, floor_after
from savegame.stores.sums import blob_checksum, meta_checksum, record_checksum

LOCKS: Final = 64
"""How many locks the ids that users chose share in a namespace: a transaction can hold only a limited number."""

EPOCH_BITS: Final = 16
"""How many bits of a lease's number are random: a server that lost commits issues the number before them again."""

_random = random.SystemRandom()


@lru_cache(maxsize=4096)
def tag_of(key: ThreadKey) -> int:
    """A number from 1 to 2**31 - 1 that stands for a thread inside ids; several may have the same."""
    return zlib.crc32(f"{key.id}\0{key.namespace}".encode()) % 0x7FFFFFFF + 1


def new_version() -> int:
    """A version that no row of the thread ever had, also not in a history that was lost with a server."""
    return _random.getrandbits(61) + 1


class Work(Transaction):
    """One transaction on one connection: the rows of the threads that it locked, as they will be."""

    def __init__(self, link: Link, epochs: str) -> None:
        self.link = link
        self.rows: dict[ThreadKey, Row | None] = {}
        self.written: dict[ThreadKey, Row] = {}
        self.time = 0
        self._epochs = epochs
        self._watched: set[ThreadKey] = set()

    def lock(self, keys: Collection[ThreadKey], new: Collection[ThreadKey], ids: Iterable[tuple[str, str]]) -> None:
        """Lock the rows of threads, then ids that users chose. Those of `made` that are missing are inserted."""
        self.rows = dict.fromkeys(keys)
        self._read(keys)
        missing = sorted(key for key in new if self.rows[key] is None)
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
        for *columns, namespace, thread_id, watched, time in found:
            key = ThreadKey(namespace, thread_id)
            self.time = max(self.time, time)
            if columns != [*EMPTY_ROW._replace(no=tag_of(key)), 0]:  # that one was just inserted
                self.rows[key] = read_row(key, columns)
            if watched:
                self._watched.add(key)

    def write(self, key: ThreadKey, row: Row) -> None:
        """Have the row of a thread written at the end, with another version."""
        self.rows[key] = self.written[key] = row._replace(version=new_version())

    def finish(self) -> None:
        """Write the rows."""
        for key, row in self.written.items():
            self.link.tell("put_thread", *key, *row, row_sum(key, row))
            if key in self._watched and row.head_id is not None:
                self.link.tell("notify", row.head_id)

    # -- threads -----------------------------------------------------------------------------------------

    def now(self) -> int:
        return self.time

    def next_epoch(self, newest: int) -> int:
        number: int = self.link.ask("next_epoch", self._epochs)[0][0]
        return max(number, (newest >> EPOCH_BITS) + 1) << EPOCH_BITS | _random.getrandbits(EPOCH_BITS)

    def row(self, key: ThreadKey) -> ThreadRow | None:
        row = self.rows[key]
        return None if row is None else row.ruled(key)

    def add_thread(self, key: ThreadKey) -> ThreadRow:
        self.write(key, EMPTY_ROW._replace(no=tag_of(key)))
        return EMPTY_ROW.ruled(key)

    def put_row(self, row: ThreadRow) -> None:
        self.write(row.key, (self.rows[row.key] or EMPTY_ROW).after(row))

    def delete_thread(self, key: ThreadKey) -> None:
        for kind in ("frames", "keyframes", "records", "blobs", "aside", "thread"):
            self.link.tell(f"delete_{kind}", *key)
        self.rows[key] = None
        self.written.pop(key, None)

    # -- frames ------------------------------------------------------------------------------------------

    def is_taken(self, change: Append) -> bool:
        return not change.fresh and find(self.link, change.key.namespace, change.id) is not None

    def add_frame(self, row: ThreadRow, frame: Frame) -> None:
        before = self.rows[row.key] or EMPTY_ROW
        new = before.after(row)._replace(run=_run_after(before, frame.base))
        listed = _is_listed(new, frame.id)
        self.link.tell("add_frame", *row.key, new.last, listed, *_frame_columns(row.key, new, frame, listed=listed))
        self.write(row.key, new)

    def pins(self, key: ThreadKey, seqs: Collection[int]) -> dict[int, Pin]:
        return {seq: Pin(id, note) for seq, id, note in self.link.ask("pins", *key, list(seqs))}  # noqa: A001 - one word per idea

    def frames_after(self, key: ThreadKey, seq: int) -> list[Frame]:
        return read_frames(self.link, key, FrameRange(low=seq + 1, deltas=True))

    def nth_newest(self, key: ThreadKey, number: int) -> int | None:
        row = self.rows[key] or EMPTY_ROW
        if row.frames == row.last:  # none was ever removed
            return row.last - number
        found = self.link.ask("nth_newest", *key, number)
        return found[0][0] if found else None

    def count(self, key: ThreadKey) -> int:
        return self.count_and_newest(key)[0]

    def count_and_newest(self, key: ThreadKey) -> tuple[int, int]:
        """How many frames a thread has, and the largest of their numbers."""
        count, newest = self.link.ask("count_frames", *key)[0]
        return count, newest

    def put_note(self, key: ThreadKey, seq: int, note: bytes | None) -> None:
        self.link.tell("set_note", *key, seq, note, None if note is None else checksum(note, thread_salt(*key), seq))

    def rebase(self, key: ThreadKey, frames: Sequence[tuple[int, int, bytes]]) -> None:
        salt = thread_salt(*key)
        found = {seq: columns for seq, *columns in self.link.ask("frame_metas", *key, [seq for seq, _, _ in frames])}
        for seq, base, delta in frames:
            stored_id, meta, run, listed = found[seq]
            meta_sum = meta_checksum(salt, seq, base, run, listed, stored_id, meta)
            self.link.tell("set_base", *key, seq, base, meta_sum, delta, checksum(delta, salt, seq, base))

    def drop_frames(self, key: ThreadKey, seqs: Sequence[int], *, aside: bool) -> None:
        for name in (*(("frames_aside",) if aside else ()), "drop_frames", "drop_keyframes"):
            self.link.tell(name, *key, list(seqs))
        row = self.rows[key]
        if row is not None and row.last in seqs:  # the next frame begins a run of its own
            self.rows[key] = row._replace(run=0)

    # -- records, keyframes, blobs -----------------------------------------------------------------------

    def record_names(self, key: ThreadKey, kind: str) -> list[str]:
        return [name for (name,) in self.link.ask("record_names", *key, kind)]

    def has_record(self, key: ThreadKey, kind: str, name: str) -> bool:
        return bool(self.link.ask("record", *key, kind, name))

    def put_record(self, key: ThreadKey, kind: str, name: str, value: bytes | None) -> None:
        if value is None:
            self.link.tell("delete_record", *key, kind, name)
        else:
            self.link.tell("put_record", *key, kind, name, value, record_checksum(key, kind, name, value))

    def put_keyframe(self, key: ThreadKey, seq: int, body: bytes | None) -> None:
        if body is None:
            self.link.tell("delete_keyframe", *key, seq)
        else:
            self.link.tell("put_keyframe", *key, seq, body, checksum(body, thread_salt(*key), seq))

    def put_blobs(self, key: ThreadKey, blobs: Blobs) -> None:
        for digest, body in blobs:
            self.link.tell("put_blob", *key, digest, body, blob_checksum(key, digest, body))

    def keep_blobs(self, key: ThreadKey, digests: Collection[bytes], *, aside: bool) -> None:
        for name in (*(("blobs_aside",) if aside else ()), "keep_blobs"):
            self.link.tell(name, *key, list(digests))


class CommittedRows:
    """Rows of threads as they were last seen committed: a guess, which versions decide on."""

    def __init__(self) -> None:
        self._rows: dict[ThreadKey, Row] = {}

    def remember(self, rows: dict[ThreadKey, Row]) -> None:
        """Rows that are committed."""
        remember(self._rows, rows)

    def forget(self, keys: Iterable[ThreadKey]) -> None:
        """Rows that may have changed."""
        for key in keys:
            self._rows.pop(key, None)

    def forget_all(self) -> None:
        """Every row may have changed."""
        self._rows.clear()

    def new_id(self, key: ThreadKey) -> str:
        """An id that contains the place of the thread's next frame, unless another writer appends first."""
        row = self._rows.get(key)
        return placed_id(tag_of(key) << 32 | (row.last + 1 if row else 1))

    def plain_append(self, change: Append) -> tuple[Row, tuple[Any, ...]] | None:
        """The next row and the parameters of `append`, if the remembered row says that the rules have nothing to look up."""
        key, row = change.key, self._rows.get(change.key)
        if row is None or change.blobs or not change.fresh or not continues(change, row):
            return None
        if change.keep_newest is not None and change.keep_newest > 1 and row.frames != row.last:
            return None  # frames were removed: the oldest to keep has to be looked up
        floor = floor_after(row.last, row.frames, row.floor, change.keep_newest, lambda number: row.last - number)
        new = Row(
            row.no, row.agent, row.last + 1, change.id, row.last + 1, floor, _run_after(row, change.base), row.frames + 1,
            row.epoch, row.owner, row.expires, new_version(),
        )  # fmt: skip
        listed = _is_listed(new, change.id)
        before, after = (row.version, row.head_id), (new.version, new.last, floor, row_sum(key, new))
        renew = None if row.owner is None else change.renew_us
        return new, (*key, *before, *after, renew, listed, *_frame_columns(key, new, change, listed=listed))


def begins_thread(change: StoreChange) -> bool:
    """Whether a change inserts the row of its thread if it is missing: to write it, or so that others do not meanwhile."""
    return isinstance(change, (Append, DeleteThread)) or (isinstance(change, PutRecord) and change.value is not None)


def _frame_columns(key: ThreadKey, row: Row, frame: Append | Frame, *, listed: bool) -> tuple[Any, ...]:
    """The columns of a frame from its id on; `row` is the one of its thread after it."""
    seq, base, meta, note, delta, salt = row.last, frame.base, frame.meta, frame.note, frame.delta or b"", thread_salt(*key)
    meta_sum = meta_checksum(salt, seq, base, row.run, 1 if listed else None, frame.id, meta)
    note_sum = None if note is None else checksum(note, salt, seq)
    return frame.id, base, row.run, meta, meta_sum, note, note_sum, delta, checksum(delta, salt, seq, base)


def _run_after(row: Row, base: int) -> int:
    """Where the unbroken line begins that ends in the next frame."""
    return row.run if row.run and base == row.last else row.last + 1


def _is_listed(row: Row, checkpoint_id: str) -> bool:
    """Whether the id of the newest frame has to be looked up, since it does not contain its place."""
    return place_in(pack_id(checkpoint_id)) != row.key(row.last)


def _lock_of(namespace: str, id: str) -> tuple[int, int]:  # noqa: A002 - one word per idea
    return zlib.crc32(f"savegame ids {namespace}".encode()) - 2**31, zlib.crc32(id.encode()) % LOCKS
