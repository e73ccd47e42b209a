"""Checksums of what SQL stores keep, and the error for a row that does not match its own. Touches frames, errors, model.

Each checksum covers what a row is found by, too, so that a row that strayed to another place is damage.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

from ormsgpack import packb

from savegame.encoding.frames import checksum, thread_salt
from savegame.errors import CorruptionError
from savegame.model import Problem, ThreadKey

_PLACE: Final = struct.Struct("<QQ")


def thread_sum(key: ThreadKey, row: Sequence[Any], head_id: str | bytes | None) -> int:
    """The checksum of a thread's row, whose head's id is stored as `head_id`."""
    return zlib.crc32(packb([*row[:3], head_id, *row[4:]]), thread_salt(*key))


def meta_checksum(salt: int, seq: int, base: int, run: int, space: int | None, stored_id: str | bytes, meta: bytes) -> int:
    """The checksum of a frame's metadata; its id and its place in the thread are under it too."""
    try:
        named = stored_id if isinstance(stored_id, bytes) else stored_id.encode()
        return checksum(_PLACE.pack(run, space or 0) + named + meta, salt, seq, base)
    except (TypeError, AttributeError, struct.error):  # damage has changed the type of a column
        return -1


def record_checksum(key: ThreadKey, kind: str, name: str, value: bytes) -> int:
    """The checksum of a record; its kind and name are under it too."""
    return checksum(value, zlib.crc32(f"{kind}\0{name}".encode(), thread_salt(*key)))


def blob_checksum(key: ThreadKey, digest: bytes, body: bytes) -> int:
    """The checksum of a large value; the digest that it is found by is under it too."""
    return checksum(body, checksum(digest, thread_salt(*key)))


def space_checksum(number: int, name: str) -> int:
    """The checksum of a namespace's row."""
    return checksum(name.encode() if isinstance(name, str) else name, 0, number)


def damaged(key: ThreadKey, checkpoint_id: str | None, place: str, seq: int | None = None) -> CorruptionError:
    """The error for a row whose bytes do not match its checksum."""
    what = f"checkpoint {checkpoint_id}" if checkpoint_id else "the thread"
    return CorruptionError(
        f"thread {key.id!r}: {what} is damaged ({place}); run verify, then repair or restore a backup",
        thread_id=key.id,
        checkpoint_id=checkpoint_id,
        place=place,
        seq=seq,
    )


def problem(error: CorruptionError) -> Problem:
    """A damaged row as `check` reports it."""
    return Problem(error.thread_id, error.checkpoint_id, error.place or "store", str(error))
