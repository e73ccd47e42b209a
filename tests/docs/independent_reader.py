"""A second reader of the SQLite format, written from docs/format alone. Nothing of savegame is used here."""

from __future__ import annotations

import copy
import datetime as dt
import sqlite3
import struct
import zlib
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
import zstandard

PATHS = {"posix": Path, "windows": PureWindowsPath, "pure-posix": PurePosixPath, "pure-windows": PureWindowsPath}


class Point(NamedTuple):
    id: str
    seq: int
    base: int
    digest: bytes
    meta: bytes  # as packed, without the digest
    note: Any
    payload: bytes  # the logical delta
    state: Any


class Object(dict):  # the fields of an object; not a dict of the user's
    pass


class Key(NamedTuple):  # one that Python might find equal to another key, told apart by its bytes
    encoded: bytes
    value: Any


def decode(data: bytes, blobs: dict[bytes, bytes]) -> Any:  # docs/format/values.md
    def zone(stored: Any) -> dt.tzinfo | None:
        if isinstance(stored, int):
            return dt.timezone(dt.timedelta(microseconds=stored))
        return ZoneInfo(stored[0]) if stored else None

    def moment(cls: Any, body: bytes) -> Any:
        text, fold, stored = ormsgpack.unpackb(body)
        return cls.fromisoformat(text).replace(tzinfo=zone(stored), fold=fold)

    def inner(body: bytes) -> Any:
        return ormsgpack.unpackb(body, ext_hook=extension)

    def pairs(body: bytes) -> dict[Any, Any]:
        flat = raw(body)
        return {told_apart(key): inner(ormsgpack.packb(item)) for key, item in zip(flat[::2], flat[1::2], strict=True)}

    def large(body: bytes) -> Any:
        return blobs[body[1:]].decode() if body[:1] == b"s" else blobs[body[1:]]

    readers = {
        1: lambda body: tuple(inner(body)),
        2: lambda body: set(inner(body)),
        3: lambda body: frozenset(inner(body)),
        4: lambda body: moment(dt.datetime, body),
        5: lambda body: dt.date.fromisoformat(body.decode()),
        6: lambda body: moment(dt.time, body),
        7: lambda body: dt.timedelta(*ormsgpack.unpackb(body)),
        8: lambda body: Decimal(body.decode()),
        9: lambda body: UUID(bytes=body),
        10: lambda body: int.from_bytes(body, "big", signed=True),
        11: lambda body: PATHS[ormsgpack.unpackb(body)[0]](ormsgpack.unpackb(body)[1]),
        12: pairs,
        13: lambda body: Object(inner(body)[1]),
        14: lambda body: inner(body)[1],
        15: large,
    }

    def extension(tag: int, body: bytes) -> Any:
        return readers[tag](body)

    return inner(data)


def raw(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext)


def told_apart(key: Any) -> Any:  # docs/format/delta.md#paths
    value = decode(ormsgpack.packb(key), {})
    return value if type(value) in (str, int, bytes, type(None)) else Key(ormsgpack.packb(key), value)


def apply(state: Any, payload: bytes, blobs: dict[bytes, bytes]) -> Any:  # docs/format/delta.md
    root = [state]  # so that the whole state is a place like any other
    start = 4 + struct.unpack_from("<I", payload)[0]
    for code, path, length, a, b in raw(payload[4:start]):
        data = payload[start:] if length < 0 else payload[start : start + length]
        start += len(data)
        holder: Any = root
        *way, last = (0, *map(told_apart, path))
        for key in way:
            holder = holder[key]
        if code == 0:
            holder[last] = decode(data, blobs)
        elif code == 1:
            del holder[last]
        elif code == 2:
            holder[last] += decode(data, blobs)
        elif code == 3:
            holder[last][a : a + b] = decode(data, blobs)
        elif code == 4:
            old = holder[last].encode() if isinstance(holder[last], str) else holder[last]
            new = old[:a] + data + old[len(old) - b :]
            holder[last] = new.decode() if isinstance(holder[last], str) else new
        elif code == 5:
            holder[last] = type(holder[last])((key, holder[last][key]) for key in map(told_apart, raw(data)))
    return root[0]


def plain(value: Any) -> Any:  # objects as dicts of their fields, without what pydantic holds besides
    if isinstance(value, dict):
        shown = {key: item for key, item in value.items() if not (type(value) is Object and key == "\0rest")}
        return {key.value if type(key) is Key else key: plain(item) for key, item in shown.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def checked(total: int, body: bytes, salt: int, a: int = 0, b: int = 0) -> bytes:  # docs/format/sqlite.md
    begin = (salt + (a ^ a >> 32) * 0x9E3779B1 + (b ^ b >> 32) * 0x85EBCA6B) % 2**32
    assert total == zlib.crc32(body, begin), "damaged"
    return body


def unwrap(body: bytes) -> bytes:
    assert body[0] < 4
    assert body[1] == 0
    assert not body[0] & 1 or zstandard.frame_content_size(body[2:]) <= max(256 << 20, 100 * (len(body) - 2)), "made up"
    return zstandard.ZstdDecompressor().decompress(body[2:]) if body[0] & 1 else body[2:]


def read(path: str) -> dict[tuple[str, str], tuple[str, list[Point]]]:
    """The head's id and every checkpoint, in order, of every thread."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert db.execute("PRAGMA application_id").fetchone() == (0x53415645,)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    spaces = dict(db.execute("SELECT no, name FROM namespace"))
    found = {}
    for space, name, *row, total in db.execute(
        "SELECT space, id, no, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum FROM thread"
    ):
        salt = zlib.crc32(f"{spaces[space]}\0{name}".encode())
        checked(total, ormsgpack.packb(row), salt)
        found[spaces[space], name] = (_id(row[3]), _points(db, row[0], salt))
    db.close()
    return found


def _points(db: sqlite3.Connection, thread: int, salt: int) -> list[Point]:
    rows = db.execute("SELECT digest, body, sum FROM blob WHERE thread = ?", (thread,))
    blobs = {digest: unwrap(checked(total, body, zlib.crc32(digest, salt))) for digest, body, total in rows}
    low, high = thread << 32, thread << 32 | 0xFFFFFFFF
    keyframes = {
        key & 0xFFFFFFFF: apply(None, unwrap(checked(total, body, salt, key & 0xFFFFFFFF)), {})
        for key, body, total in db.execute("SELECT key, body, sum FROM keyframe WHERE key BETWEEN ? AND ?", (low, high))
    }
    states: dict[int, Any] = {0: None}
    points = []
    for key, name, base, run, space, meta, meta_sum, note, note_sum, delta, delta_sum in db.execute(
        "SELECT key, id, base, run, space, meta, meta_sum, note, note_sum, delta, delta_sum FROM frame "
        "WHERE key BETWEEN ? AND ? ORDER BY key",
        (low, high),
    ):
        seq = key & 0xFFFFFFFF
        place = run.to_bytes(8, "little") + (space or 0).to_bytes(8, "little")
        assert (space is None) == (isinstance(name, bytes) and key == _told(name)), "an id that does not tell its place"
        checked(meta_sum, place + (name if isinstance(name, bytes) else name.encode()) + meta, salt, seq, base)
        payload = unwrap(checked(delta_sum, delta, salt, seq, base))
        notes = ormsgpack.unpackb(checked(note_sum, note, salt, seq)) if note is not None else [None, []]
        states[seq] = apply(copy.deepcopy(states[base]), payload, blobs)
        assert seq not in keyframes or plain(keyframes[seq]) == plain(states[seq])
        points.append(Point(_id(name), seq, base, meta[:32], meta[32:], notes, payload, plain(states[seq])))
    return points


def _told(name: bytes) -> int:
    return int.from_bytes(name[:8]) ^ int.from_bytes(name[8:])


def _id(stored: str | bytes) -> str:
    return stored.hex() if isinstance(stored, bytes) else stored
