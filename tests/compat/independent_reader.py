"""A second reader of what the stores keep, written from docs/format alone. Nothing of savegame is used here."""

from __future__ import annotations

import base64
import copy
import datetime as dt
import json
import re
import sqlite3
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import blake3
import ormsgpack
import psycopg
import zstandard

HEX = re.compile("[0-9a-f]{32}")
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


def zone(stored: Any) -> dt.tzinfo | None:
    if isinstance(stored, int):
        return dt.timezone(dt.timedelta(microseconds=stored))
    return ZoneInfo(stored[0]) if stored else None


def moment(cls: Any, stored: list[Any]) -> Any:
    text, fold, at = stored
    return cls.fromisoformat(text).replace(tzinfo=zone(at), fold=fold)


def decode(data: bytes, blobs: dict[bytes, bytes]) -> Any:  # docs/format/values.md
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
        4: lambda body: moment(dt.datetime, ormsgpack.unpackb(body)),
        5: lambda body: dt.date.fromisoformat(body.decode()),
        6: lambda body: moment(dt.time, ormsgpack.unpackb(body)),
        7: lambda body: dt.timedelta(*ormsgpack.unpackb(body)),
        8: lambda body: Decimal(body.decode()),
        9: lambda body: UUID(bytes=body),
        10: lambda body: int.from_bytes(body, "big", signed=True),
        11: lambda body: PATHS[ormsgpack.unpackb(body)[0]](ormsgpack.unpackb(body)[1]),
        12: pairs,
        13: lambda body: Object(inner(body)[1]),
        14: lambda body: inner(body)[1],
        15: large,
        16: lambda body: tuple(ormsgpack.unpackb(body)),
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
        if code == 5:
            value: Any = list(map(told_apart, raw(data)))
        else:
            value = data if code == 4 else decode(data, blobs) if data else None
        change(root, code, list(map(told_apart, path)), a, b, value)
    return root[0]


def change(root: list[Any], code: int, path: list[Any], a: int, b: int, value: Any) -> None:
    holder: Any = root
    *way, last = (0, *path)
    for key in way:
        holder = holder[key]
    if code == 0:
        holder[last] = value
    elif code == 1:
        del holder[last]
    elif code == 2:
        holder[last] += value
    elif code == 3:
        holder[last][a : a + b] = value
    elif code == 4:
        old = holder[last].encode() if isinstance(holder[last], str) else holder[last]
        new = old[:a] + value + old[len(old) - b :]
        holder[last] = new.decode() if isinstance(holder[last], str) else new
    elif code == 5:
        holder[last] = type(holder[last])((key, holder[last][key]) for key in value)


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
    low, high = thread << 32, thread << 32 | 0xFFFFFFFF
    return _replayed(
        salt,
        db.execute("SELECT digest, body, sum FROM blob WHERE thread = ?", (thread,)),
        db.execute("SELECT key & 0xFFFFFFFF, body, sum FROM keyframe WHERE key BETWEEN ? AND ?", (low, high)),
        db.execute(
            "SELECT key & 0xFFFFFFFF, id, base, run, space, meta, meta_sum, note, note_sum, delta, delta_sum FROM frame "
            "WHERE key BETWEEN ? AND ? ORDER BY key",
            (low, high),
        ),
        lambda seq, name: isinstance(name, bytes) and low | seq == _told(name),
    )


def _replayed(salt: int, blob_rows: Any, keyframe_rows: Any, frame_rows: Any, tells: Callable[[int, Any], bool]) -> list[Point]:
    blobs = {digest: unwrap(checked(total, body, zlib.crc32(digest, salt))) for digest, body, total in blob_rows}
    keyframes = {seq: apply(None, unwrap(checked(total, body, salt, seq)), {}) for seq, body, total in keyframe_rows}
    states: dict[int, Any] = {0: None}
    points = []
    for seq, name, base, run, space, meta, meta_sum, note, note_sum, delta, delta_sum in frame_rows:
        place = run.to_bytes(8, "little") + (space or 0).to_bytes(8, "little")
        assert bool(space) != tells(seq, name), "an id that does not tell its place"
        checked(meta_sum, place + (name if isinstance(name, bytes) else name.encode()) + meta, salt, seq, base)
        payload = unwrap(checked(delta_sum, delta, salt, seq, base))
        notes = ormsgpack.unpackb(checked(note_sum, note, salt, seq)) if note is not None else [None, []]
        states[seq] = apply(copy.deepcopy(states[base]), payload, blobs)
        assert seq not in keyframes or plain(keyframes[seq]) == plain(states[seq])
        points.append(Point(_id(name), seq, base, meta[:32], meta[32:], notes, payload, plain(states[seq])))
    return points


def read_postgres(url: str) -> dict[tuple[str, str], tuple[str, list[Point]]]:  # docs/format/postgres.md
    """The same of the tables of a PostgreSQL database."""
    found = {}
    with psycopg.connect(url) as db:
        for space, name, tag, *row, total in db.execute(
            "SELECT namespace, id, tag, agent, head, head_id, last, floor, run, count, epoch, owner, 0, version, sum "
            "FROM savegame.thread"
        ).fetchall():
            salt = zlib.crc32(f"{space}\0{name}".encode())
            checked(total, ormsgpack.packb([tag, *row]), salt)
            of = "FROM savegame.{} WHERE namespace = %s AND thread = %s"
            columns = "seq, id, base, run, listed::int, meta, meta_sum, note, note_sum, delta, delta_sum"
            frames = db.execute(f"SELECT {columns} {of.format('frame')} ORDER BY seq", (space, name))
            points = _replayed(
                salt,
                db.execute(f"SELECT digest, body, sum {of.format('blob')}", (space, name)).fetchall(),
                db.execute(f"SELECT seq, body, sum {of.format('keyframe')}", (space, name)).fetchall(),
                frames.fetchall(),
                lambda seq, id, tag=tag: bool(HEX.fullmatch(id)) and tag << 32 | seq == _told(bytes.fromhex(id)),  # noqa: A006
            )
            found[space, name] = (_id(row[2]), points)
    return found


# -- a file store ------------------------------------------------------------------------------------

CODES = {"set": 0, "delete": 1, "append": 2, "splice": 3, "edit": 4, "order": 5}


def read_files(root: Path) -> dict[tuple[str, str], tuple[str, list[Point]]]:  # docs/format/journal.md
    """The same of a directory of journals."""
    assert json.loads((root / "savegame.json").read_bytes())["format"] <= 2
    found = {}
    for path in root.glob("*/*/journal.jsonl"):
        names, thread = _journal(path.read_bytes())
        assert [path.parent.parent.name, path.parent.name] in (list(map(_bare, names)), list(map(_name, names)))
        found[names] = thread
    return found


def _bare(text: str) -> str:
    return blake3.blake3(text.encode()).hexdigest(length=16)


def _name(text: str) -> str:  # docs/format/journal.md#names
    readable = re.sub(r"\.\.+", ".", re.sub("[^A-Za-z0-9_.]+", "-", text)).strip("-.")[:40].strip("-.")
    return f"{_bare(text)}-{readable}" if readable else _bare(text)


def _journal(data: bytes) -> tuple[tuple[str, str], tuple[str, list[Point]]]:
    first = json.loads(data.partition(b"\n")[0])
    salt = zlib.crc32(f"{first['namespace']}\0{first['thread']}".encode())
    frames: dict[int, dict[str, Any]] = {}
    notes: dict[int, Any] = {}
    blobs: dict[str, str] = {}
    head = offset = 0
    for line in data.splitlines(keepends=True):
        text, _, total = line.rpartition(b',"sum":"')
        checked(int(total[:8], 16), text, salt, offset)
        offset += len(line)
        said = json.loads(line)
        kind = next(iter(said))
        if kind == "save":
            frames[said["save"]], head = said, said["save"]
            notes[head] = said.get("note")
        elif kind == "head":
            head = said["head"]
        elif kind == "note":
            notes[said["note"]] = said["text"]
        elif kind == "large":
            blobs[said["large"]] = said["text"]["text"]
    states: dict[int, Any] = {0: None}
    points = []
    for seq, said in frames.items():
        ops = said["delta"]["large"] if isinstance(said["delta"], dict) else said["delta"]
        holder = [copy.deepcopy(states[said["base"]])]
        for name, path, *rest in ops:
            a, b = rest[:2] if len(rest) == 3 else (0, 0)
            if name == "order":
                value: Any = list(map(_key, rest[0]))
            else:
                value = _value(rest[-1], blobs) if rest else None
            change(holder, CODES[name], list(map(_key, path)), a, b, _raw(value) if name == "edit" else value)
        states[seq] = holder[0]
        note = notes.get(seq) or {"label": None, "tags": []}
        digest = bytes.fromhex(said["meta"]["digest"])
        points.append(Point(said["id"], seq, said["base"], digest, b"", list(note.values()), b"", plain(holder[0])))
    return (first["namespace"], first["thread"]), (frames[head]["id"], points)


def _key(said: Any) -> Any:
    value = _value(said, {})
    return value if type(value) in (str, int, bytes, type(None)) else Key(json.dumps(said).encode(), value)


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _value(said: Any, blobs: dict[str, str]) -> Any:
    if isinstance(said, list):
        return [_value(item, blobs) for item in said]
    if not isinstance(said, dict):
        return said
    tag = next(iter(said), "")
    if len(said) != 1 or not tag.startswith("$"):
        return {key: _value(item, blobs) for key, item in said.items()}
    body = said[tag]
    inner = _value(body, blobs) if isinstance(body, list) else body
    readers: dict[str, Callable[[], Any]] = {
        "$bytes": lambda: base64.b64decode(body),
        "$float": lambda: float(body),
        "$int": lambda: int(body, 0),
        "$tuple": lambda: tuple(inner),
        "$set": lambda: set(inner),
        "$frozenset": lambda: frozenset(inner),
        "$map": lambda: dict(zip(map(_key, body[::2]), inner[1::2], strict=True)),
        "$datetime": lambda: moment(dt.datetime, body),
        "$time": lambda: moment(dt.time, body),
        "$timedelta": lambda: dt.timedelta(*body),
        "$path": lambda: PATHS[body[0]](body[1]),
        "$object": lambda: Object(inner[1]),
        "$enum": lambda: inner[1],
        "$foreign": lambda: tuple(inner),
        "$date": lambda: dt.date.fromisoformat(body),
        "$decimal": lambda: Decimal(body),
        "$uuid": lambda: UUID(body),
        "$large": lambda: blobs[body[1]] if body[0] == "s" else blobs[body[1]].encode(),
        "$plain": lambda: {key: _value(item, blobs) for key, item in body.items()},
    }
    return readers[tag]()


def _told(name: bytes) -> int:
    return int.from_bytes(name[:8]) ^ int.from_bytes(name[8:])


def _id(stored: str | bytes) -> str:
    return stored.hex() if isinstance(stored, bytes) else stored
