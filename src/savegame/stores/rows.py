"""Rows to model and back: what the SQL stores share. Touches store, rules, sums, frames and model.

A thread's row has one checksum over all its columns; a frame's metadata, note and delta have one each, so that a
listing need not read deltas and loading need not read metadata.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from savegame.encoding.frames import PLACE_STEP, checksum, pack_id, place_sum, thread_salt, unpack_id
from savegame.errors import CorruptionError
from savegame.model import Chain, Frame, Lease, Page, Record, ThreadKey, ThreadRow
from savegame.store import Append
from savegame.stores.rules import MAX_SEQ
from savegame.stores.sums import blob_checksum, damaged, meta_checksum, record_checksum, thread_sum
from savegame.waiting.forking import call_in_child


class Row(NamedTuple):
    """A thread's row as SQL stores keep it. `version` is another after every write of it."""

    no: int
    agent: str | None
    head: int
    head_id: str | None
    last: int
    floor: int
    run: int
    frames: int
    epoch: int
    owner: str | None
    expires: int
    version: int

    def ruled(self, key: ThreadKey) -> ThreadRow:
        """The row as the rules know it. A lease that was released keeps its epoch only."""
        owner, expires = ("", 0) if self.owner is None else (self.owner, self.expires)
        lease = Lease(self.epoch, owner, expires) if self.epoch else None
        return ThreadRow(key, self.agent, self.head, self.head_id, self.last, self.floor, self.frames, lease)

    def public(self, key: ThreadKey) -> ThreadRow:
        """The row as the contract shows it."""
        return self.ruled(key).public()

    def after(self, row: ThreadRow) -> Row:
        """The row once the rules made this of it."""
        epoch, owner, expires = row.lease or Lease(0, "", 0)
        return Row(
            self.no, row.agent, row.head, row.head_id, row.last, row.floor, self.run, row.frames,
            epoch, owner if expires else None, expires, self.version,
        )  # fmt: skip

    def low(self) -> int:
        """Below every key of the thread's frames."""
        return self.no << 32

    def key(self, seq: int) -> int:
        """The key of one frame."""
        return self.no << 32 | seq

    def high(self) -> int:
        """Above every key of the thread's frames."""
        return self.no << 32 | MAX_SEQ


EMPTY_ROW = Row(0, None, 0, None, 0, 0, 0, 0, 0, None, 0, 0)
"""A thread that has no row yet."""


def continues(change: Append, row: Row) -> bool:
    """Whether the rules surely accept an append to a thread whose row is still this one, if its id is free.

    If not, they decide: this never refuses anything.
    """
    _, agent, head, head_id, last, _, _, _, newest, owner, _, _ = row  # every save comes along here
    _, _, base, _, _, _, expect, epoch, wanted_agent, _, _, _, _, base_id = change
    free = owner is None if epoch is None else epoch == newest != 0
    on_head = expect == head_id and base == head and base_id in (None, head_id)
    return free and on_head and wanted_agent in (None, agent) and last < MAX_SEQ


def remember(rows: dict[ThreadKey, Row], new: dict[ThreadKey, Row], most: int = 1024) -> None:
    """Take committed rows into those that are remembered, which stay few."""
    if len(rows) > most:
        rows.clear()
    rows.update(new)


def thread_values(key: ThreadKey, row: Row) -> tuple[Any, ...]:
    """The parameters of `set_thread`, which leaves the agent as it is: its index need not be written then."""
    head_id = None if row.head_id is None else pack_id(row.head_id)
    return (row.head, head_id, *row[4:], thread_sum(key, row, head_id), row.no)


def read_thread(key: ThreadKey, columns: tuple[Any, ...]) -> Row:
    """A thread's row from its columns. Raises CorruptionError."""
    *values, found = columns[: len(Row._fields) + 1]
    head_id = values[3]
    row = Row._make(values)._replace(head_id=None if head_id is None else unpack_id(head_id))
    try:
        sound = thread_sum(key, row, head_id) == found
    except (TypeError, ValueError, AttributeError):  # damage has changed the type of a column
        sound = False
    if not sound:
        raise damaged(key, None, "thread row")
    return row


class FrameRange(NamedTuple):
    """Which frames are read: the parameters of `Store.frames`."""

    low: int = 0
    high: int | None = None
    limit: int | None = None
    newest_first: bool = False
    noted: bool = False
    deltas: bool = False


class Stretch(NamedTuple):
    """Where reading up to a frame begins, the keyframe there if that is where, and the deltas after it."""

    start: int
    keyframe: bytes | None
    base: int
    """What the first of the deltas builds on: `start`, or another frame, at which reading has to go on."""
    deltas: list[bytes]


def whole_chain(key: ThreadKey, seq: int, stretch: Callable[[int], Stretch | None]) -> Chain | None:
    """The chain of a frame, stretch by stretch; None if there is no such frame. Raises CorruptionError."""
    found = stretch(seq)
    if found is None:
        return None
    parts = [found.deltas]
    while found.base not in (found.start, 0):  # 0: a rewrite made a frame after `start` whole
        if found.base >= seq:
            raise damaged(key, None, f"frame {seq} names {found.base} as its base", seq)
        seq, found = found.base, stretch(found.base)
        if found is None:
            raise damaged(key, None, f"frame {seq} is missing", seq)
        parts.append(found.deltas)
    deltas = [delta for part in reversed(parts) for delta in part]
    return Chain(found.base, found.keyframe if found.base == found.start else None, deltas)


def sound_deltas(
    key: ThreadKey, start: int, high: int, rows: Iterable[tuple[int, int, bytes, int]], id_of: Callable[[int], str | None]
) -> tuple[int, list[bytes]]:
    """The deltas that lead up to frame `high` without a gap, each checked, and the base of the first of them.

    `rows` are (key or number, base, delta, checksum). Frames between that are not on the way (a rewrite may have given a frame
    another base) are passed over.
    """
    salt = thread_salt(*key)
    before, base_of_first, steady, begin = start, start, False, 0
    deltas: list[bytes] = []
    for frame_key, base, delta, total in rows:
        seq = frame_key & MAX_SEQ
        if base != before:
            base_of_first, steady = base, False
            deltas.clear()
        if type(delta) is not bytes or type(base) is not int:
            raise damaged(key, id_of(seq), f"frame {seq}", seq)
        begin = begin + PLACE_STEP & 0xFFFFFFFF if steady and base + 1 == seq else place_sum(salt, seq, base)
        if zlib.crc32(delta, begin) != total:
            raise damaged(key, id_of(seq), f"delta of frame {seq}", seq)
        steady = base + 1 == seq
        deltas.append(delta)
        before = seq
    if before != high:
        raise damaged(key, None, f"frame {high} is missing", high)
    return base_of_first, deltas


class FrameRow(NamedTuple):
    """A frame's row without its delta. `place` is its number, or the key that ends in it."""

    place: int
    id: str | bytes
    base: int
    run: int
    space: int | None
    meta: bytes
    meta_sum: int
    note: bytes | None
    note_sum: int | None


def read_frame(key: ThreadKey, columns: Iterable[Any]) -> Frame:
    """A frame without its delta from its columns. Raises CorruptionError."""
    row = FrameRow._make(columns)
    seq, frame_id, salt = row.place & MAX_SEQ, unpack_id(row.id), thread_salt(*key)
    if row.meta_sum != meta_checksum(salt, seq, row.base, row.run, row.space, row.id, row.meta):
        raise damaged(key, frame_id, f"metadata of frame {seq}", seq)
    if row.note_sum != (None if row.note is None else checksum(row.note, salt, seq)):
        raise damaged(key, frame_id, f"label and tags of frame {seq}", seq)
    return Frame(seq, frame_id, row.base, row.meta, row.note, None)


def placed_id(key: int) -> str:
    """A new id that contains the key of its frame: 64 random bits, then the key mixed with them."""
    noise = _random.getrandbits(64)
    return (noise << 64 | noise ^ key).to_bytes(16).hex()


def place_in(stored_id: str | bytes) -> int:
    """The key that an id contains; whether that frame has this id must be looked up. 0 for an id that a user chose."""
    if not isinstance(stored_id, bytes):
        return 0
    number = int.from_bytes(stored_id)
    return number >> 64 ^ number & 0xFFFFFFFFFFFFFFFF


_random = random.Random()  # noqa: S311 - ids are no secrets, and asking the system for each costs time
call_in_child(_random.seed)


def check_order(what: str, places: Iterable[Any], thread_id: str | None = None) -> None:
    """Refuse a listing whose places do not grow: pages of the file were mixed up, and reading on would go in circles."""
    if any(before >= after for before, after in pairwise(places)):
        where = "" if thread_id is None else f"thread {thread_id!r}: "
        message = f"{where}the {what} are out of order; run verify, then restore a backup"
        raise CorruptionError(message, thread_id=thread_id, place=f"order of {what}")


def record_page(key: ThreadKey, kind: str, rows: list[tuple[Any, ...]], limit: int) -> Page[Record]:
    """A page of records from rows of (name, value, sum), one more than the page has if others follow."""
    for name, value, total in rows:
        if record_checksum(key, kind, name, value) != total:
            raise damaged(key, None, f"record {kind} {name!r}")
    items = [Record(kind, name, value) for name, value, _ in rows[:limit]]
    return Page(items, items[-1].name if len(rows) > limit else None)


def thread_page(rows: list[ThreadRow], limit: int) -> Page[ThreadRow]:
    """A page of threads from their rows, one more than the page has if others follow."""
    return Page(rows[:limit], rows[limit - 1].key.id if len(rows) > limit else None)


def sound_blob(key: ThreadKey, digest: bytes, found: tuple[Any, ...] | None) -> bytes | None:
    """A large value from its row of (body, sum). Raises CorruptionError."""
    if found is None:
        return None
    body: bytes
    body, total = found
    if blob_checksum(key, digest, body) != total:
        raise damaged(key, None, f"large value {digest.hex()[:12]}")
    return body
