"""Frames and chains read from an SQLite file, each row against its checksum, on a connection that sees one moment.

Touches frames, rows, sums and sqlite_file.
"""

from __future__ import annotations

from savegame.encoding.frames import checksum, thread_salt
from savegame.model import Chain, Frame, ThreadKey
from savegame.stores.rows import FrameRange, Row, Stretch, check_order, read_frame, sound_deltas, whole_chain
from savegame.stores.rules import MAX_SEQ
from savegame.stores.sqlite_file import Connection, all_rows, id_of, one_row


def read_frames(db: Connection, key: ThreadKey, row: Row, span: FrameRange) -> list[Frame]:
    """`Store.frames` of a thread with this row. Raises CorruptionError."""
    low, high, limit, newest_first, noted, deltas = span
    if low > MAX_SEQ:
        return []
    name = f"{'noted' if noted else 'frames'}_{'down' if newest_first else 'up'}"
    bounds = (row.key(max(low, 0)), row.key(MAX_SEQ if high is None else min(high, MAX_SEQ)))
    frames = [read_frame(key, columns) for columns in all_rows(db, name, *bounds, -1 if limit is None else limit)]
    check_order("frames", [low - 1, *(frame.seq for frame in frames[:: -1 if newest_first else 1])], key.id)
    if not deltas:
        return frames
    return [frame._replace(delta=_deltas(db, key, row, 0, frame.seq, frame.seq)[1][0]) for frame in frames]


def read_chain(db: Connection, key: ThreadKey, row: Row, seq: int, after: int, meta: bytes | None) -> Chain | None:
    """`Store.chain` of a thread with this row; None if there is no such frame. Raises CorruptionError."""

    def stretch(high: int) -> Stretch | None:
        place = one_row(db, "frame_place", row.key(high))
        if place is None or (high == seq and meta not in (None, place[3])):
            return None
        run = min(place[1], high)
        start, body = _start(db, key, row, run, high, after)
        return Stretch(start, body, *_deltas(db, key, row, start, start + 1 if start else run, high))

    return whole_chain(key, seq, stretch)


def _start(db: Connection, key: ThreadKey, row: Row, run: int, seq: int, after: int) -> tuple[int, bytes | None]:
    """Where loading may begin inside an unbroken line: after what the caller has, or at a sound keyframe."""
    if run <= after <= seq:
        return after, None
    salt = thread_salt(*key)
    for frame_key, body, total in all_rows(db, "keyframes_down", row.key(run), row.key(seq)):
        if checksum(body, salt, frame_key & MAX_SEQ) == total:
            return frame_key & MAX_SEQ, body
    return 0, None


def _deltas(db: Connection, key: ThreadKey, row: Row, start: int, low: int, high: int) -> tuple[int, list[bytes]]:
    found = all_rows(db, "deltas", row.key(low), row.key(high))
    return sound_deltas(key, start, high, found, lambda seq: id_of(db, row.key(seq)))
