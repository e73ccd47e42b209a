"""What is read of PostgreSQL's tables on one connection, each row against its checksum. Touches frames, rows, sums, pool.

Every row is compared with its checksum before it is returned; damage raises CorruptionError naming the place. A chain takes
one statement wherever its line is unbroken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from savegame.encoding.frames import checksum, pack_id, thread_salt
from savegame.model import Frame, ThreadKey
from savegame.stores.postgres.link import Link, Rows
from savegame.stores.rows import FrameRange, FrameRow, Row, Stretch, place_in, read_frame, sound_deltas
from savegame.stores.rules import MAX_SEQ
from savegame.stores.sums import damaged, thread_sum

COLUMNS: Final = len(Row._fields)
FRAME_COLUMNS: Final = len(FrameRow._fields)
KEYFRAME, DELTA = 1, 2
"""Kinds of rows that the statement `chain` returns."""


def read_row(key: ThreadKey, columns: Sequence[Any]) -> Row:
    """A thread's row from its columns. Raises CorruptionError."""
    row = Row._make(columns[:COLUMNS])
    if row_sum(key, row) != columns[COLUMNS]:
        raise damaged(key, None, "thread row")
    return row


def row_sum(key: ThreadKey, row: Row) -> int:
    """The checksum of a row; not over the time at which its lease runs out, which the server sets."""
    return thread_sum(key, row._replace(expires=0), row.head_id)


def find(link: Link, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - one word per idea
    """Where the frame with an id is: where the id says, or where the index says. Raises CorruptionError."""
    place = place_in(pack_id(id))
    tag, seq = place >> 32, place & MAX_SEQ
    for *columns, thread_id in link.ask("frames_at_tag", namespace, tag, seq) if 0 < tag <= 0x7FFFFFFF else ():
        key = ThreadKey(namespace, thread_id)
        if columns[1] == id:
            return key, seq
        read_frame(key, tuple(columns))  # it has another id: is that one sound?
    listed = link.ask("find_listed", namespace, id)
    return (ThreadKey(namespace, listed[0][0]), listed[0][1]) if listed else None


def read_frames(link: Link, key: ThreadKey, span: FrameRange) -> list[Frame]:
    """`Store.frames`. Raises CorruptionError."""
    low, high, limit, newest_first, noted, deltas = span
    if low > MAX_SEQ:
        return []
    last = MAX_SEQ if high is None else min(high, MAX_SEQ)
    name = "frames_down" if newest_first else "frames_up"
    found = link.ask(name, *key, max(low, 0), last, limit, not noted, deltas)
    frames = [read_frame(key, columns[:FRAME_COLUMNS]) for columns in found]
    if not deltas:
        return frames
    ids = {frame.seq: frame.id for frame in frames}
    rows = ((frame, columns[FRAME_COLUMNS:]) for frame, columns in zip(frames, found, strict=True))
    return [
        frame._replace(delta=sound_deltas(key, 0, frame.seq, [(frame.seq, frame.base, *columns)], ids.get)[1][0])
        for frame, columns in rows
    ]


class NotAtOnce(Exception):
    """A chain cannot be read with one statement."""


class ChainReader:
    """Reads a chain stretch by stretch; with `once`, raises NotAtOnce where that takes more than one statement."""

    def __init__(self, link: Link, key: ThreadKey, wanted: tuple[int, bytes | None], after: int, *, once: bool) -> None:
        self._link, self._key, self._wanted, self._after = link, key, wanted, after
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
        seq, meta = self._wanted
        return self._link.ask("chain", *self._key, high, newest, self._after, meta if high == seq else None)


def id_of(link: Link, key: ThreadKey, seq: int) -> str | None:
    """The id of a frame."""
    found = link.ask("frame_ids", *key, [seq])
    return found[0][1] if found else None
