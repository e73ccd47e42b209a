"""Stored bytes as readable JSON and back, byte for byte. Pure.

There are five kinds of stored bytes: `delta` and `value` (an envelope around operations or an encoded value), `content` (an
envelope around a large text), `meta` and `note`. A value without a JSON type becomes a dict with one key that starts with
`$`; a user's dict of that form is wrapped in `$plain`. Bytes that would not come back exactly, such as compressed ones, are
written as base64. `docs/format/journal.md` has the complete list.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final

from savegame.encoding import extensions, frames
from savegame.encoding.delta import APPEND, DELETE, EDIT, ORDER, SET, SPLICE, Op, dump, parse
from savegame.encoding.extensions import RawExt
from savegame.encoding.frames import Meta
from savegame.encoding.raw import pack_raw, unpack_raw
from savegame.encoding.text import number_text
from savegame.errors import CorruptionError, SavegameError

DEEPEST_JSON: Final = 40
"""Levels of nesting written as JSON; deeper levels are packed, so that no reader needs a deep stack."""

_FLOAT: Final = struct.Struct(">d")
_ODD: Final = (
    ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError, struct.error, SavegameError,
)  # fmt: skip
"""What unexpected bytes or JSON may raise."""


def to_text(kind: str, data: bytes) -> Any:
    """The JSON form of stored bytes of a kind; `from_text` returns exactly these bytes."""
    write, read = _KINDS[kind]
    try:
        text = write(data)
        if read(text) == data:
            return text
    except _ODD:
        pass  # foreign, compressed or encrypted bytes, which are not readable
    return {"base64": _base64(data)}


def from_text(kind: str, text: Any) -> bytes:
    """The bytes of the result of `to_text`. Raises CorruptionError for other JSON."""
    try:
        if type(text) is dict and text.keys() == {"base64"}:
            return b64decode(text["base64"], validate=True)
        return _KINDS[kind][1](text)
    except _ODD as error:
        raise CorruptionError(f"the {kind} cannot be read: {error!r}") from error


# -- values ----------------------------------------------------------------------------------------


def _open(value: Any, depth: int = 0) -> Any:
    """The JSON form of a result of `unpack_raw`."""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return {"$float": _open_float(value)}
    if kind is bytes:
        return {"$bytes": _base64(value)}
    if kind not in (list, dict, RawExt):
        return value
    if depth == DEEPEST_JSON:
        return {"$packed": _base64(pack_raw(value))}
    if kind is list:
        return [_open(item, depth + 1) for item in value]
    if kind is RawExt:
        name, write, _ = _EXTENSIONS[value.tag]
        return {name: write(value.data, depth + 1)}
    found = {key: _open(item, depth + 1) for key, item in value.items()}
    return {"$plain": found} if _is_tag(found) else found


def _close(text: Any) -> Any:
    """The reverse of `_open`."""
    kind = type(text)
    if kind is list:
        return [_close(item) for item in text]
    if kind is not dict:
        return text
    if _is_tag(text):
        ((name, inner),) = text.items()
        return _TAGS[name](inner)
    return {key: _close(item) for key, item in text.items()}


def _open_float(value: float) -> str:
    """`inf`, `-inf` or `nan`; the bytes of other NaNs."""
    text = str(value)
    return text if _FLOAT.pack(float(text)) == _FLOAT.pack(value) else f"0x{_FLOAT.pack(value).hex()}"


def _close_float(text: str) -> float:
    return float(_FLOAT.unpack(bytes.fromhex(text[2:]))[0]) if text.startswith("0x") else float(text)


def _is_tag(found: dict[str, Any]) -> bool:
    return len(found) == 1 and next(iter(found)).startswith("$")


def _open_nested(data: bytes, depth: int) -> Any:
    return _open(unpack_raw(data), depth)


def _close_nested(tag: int) -> Callable[[Any], RawExt]:
    return lambda inner: RawExt(tag, pack_raw(_close(inner)))


def _open_words(data: bytes, depth: int) -> str:
    return data.decode()


def _close_words(tag: int) -> Callable[[str], RawExt]:
    return lambda words: RawExt(tag, words.encode())


def _open_int(data: bytes, depth: int) -> str:
    return number_text(int.from_bytes(data, "big", signed=True))


def _close_int(words: str) -> RawExt:
    number = int(words, 0)
    return RawExt(extensions.BIGINT, number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


Opened = tuple[str, Callable[[bytes, int], Any], Callable[[Any], Any]]

_EXTENSIONS: Final[dict[int, Opened]] = {
    **{
        tag: (name, _open_nested, _close_nested(tag))
        for name, tag in {
            "$tuple": extensions.TUPLE,
            "$set": extensions.SET,
            "$frozenset": extensions.FROZENSET,
            "$datetime": extensions.DATETIME,
            "$time": extensions.TIME,
            "$timedelta": extensions.TIMEDELTA,
            "$path": extensions.PATH,
            "$map": extensions.MAP,
            "$object": extensions.OBJECT,
            "$enum": extensions.ENUM,
            "$foreign": extensions.FOREIGN,
        }.items()
    },
    extensions.DATE: ("$date", _open_words, _close_words(extensions.DATE)),
    extensions.DECIMAL: ("$decimal", _open_words, _close_words(extensions.DECIMAL)),
    extensions.UUID: (
        "$uuid",
        lambda data, depth: str(uuid.UUID(bytes=data)),
        lambda words: RawExt(extensions.UUID, uuid.UUID(words).bytes),
    ),
    extensions.BIGINT: ("$int", _open_int, _close_int),
    extensions.BLOB: (
        "$large",
        lambda data, depth: [data[:1].decode(), data[1:].hex()],
        lambda inner: RawExt(extensions.BLOB, inner[0].encode() + bytes.fromhex(inner[1])),
    ),
}

_TAGS: Final[dict[str, Callable[[Any], Any]]] = {
    "$plain": lambda inner: {key: _close(item) for key, item in inner.items()},
    "$float": _close_float,
    "$bytes": lambda words: b64decode(words, validate=True),
    "$packed": lambda words: unpack_raw(b64decode(words, validate=True)),
    **{name: read for name, _, read in _EXTENSIONS.values()},
}


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


# -- deltas ----------------------------------------------------------------------------------------

_NAMES: Final = {SET: "set", DELETE: "delete", APPEND: "append", SPLICE: "splice", EDIT: "edit", ORDER: "order"}
_CODES: Final = {name: code for code, name in _NAMES.items()}


def _open_delta(body: bytes) -> Any:
    flags, payload = frames.unwrap(body)
    ops = [_open_op(op) for op in parse(payload)]
    return {"large": ops} if flags & frames.WITH_BLOBS else ops


def _open_op(op: Op) -> list[Any]:
    head = [_NAMES[op.code], _open(list(op.path))]
    if op.code == DELETE:
        return head
    if op.code == EDIT:
        return [*head, op.a, op.b, _open_middle(op.value)]
    numbers = [op.a, op.b] if op.code == SPLICE else []
    return [*head, *numbers, _open_nested(op.value, 0)]


def _open_middle(data: bytes) -> Any:
    """The new middle of a text, or bytes if it splits a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _open(data)


def _close_delta(text: Any) -> bytes:
    ops, large = (text, False) if type(text) is list else (text["large"], True)
    return frames.wrap(dump([_close_op(*parts) for parts in ops]), compress=False, with_blobs=large)


def _close_op(name: str, path: Any, *rest: Any) -> Op:
    code, keys = _CODES[name], tuple(_close(path))
    if code == DELETE:
        return Op(code, keys)
    *numbers, inner = rest
    value = _close(inner)
    if code == EDIT:
        return Op(code, keys, value.encode() if type(value) is str else value, *numbers)
    return Op(code, keys, pack_raw(value), *numbers)


# -- other kinds -----------------------------------------------------------------------------------


def _open_value(body: bytes) -> dict[str, Any]:
    return {"value": _open_nested(frames.unwrap(body)[1], 0)}


def _close_value(text: dict[str, Any]) -> bytes:
    return frames.PLAIN + pack_raw(_close(text["value"]))


def _open_content(body: bytes) -> dict[str, str]:
    return {"text": frames.unwrap(body)[1].decode()}


def _close_content(text: dict[str, str]) -> bytes:
    return frames.PLAIN + text["text"].encode()


_META_HEX: Final = ("request", "digest")
_META_ENCODED: Final = ("metadata", "about")


def _open_meta(data: bytes) -> dict[str, Any]:
    meta = frames.load_meta(data)
    fields = {name: getattr(meta, name) for name in Meta.__slots__}
    found: dict[str, Any] = {"at": meta.created_at.isoformat().replace("+00:00", "Z")}
    del fields["created_us"]
    fields |= {name: _open_nested(fields[name], 0) if fields[name] else None for name in _META_ENCODED}
    fields["blobs"] = [name.hex() for name in meta.blobs] or None
    fields |= {name: fields[name].hex() for name in _META_HEX if fields[name] is not None}
    return found | {name: value for name, value in fields.items() if value is not None}


def _close_meta(text: dict[str, Any]) -> bytes:
    fields = {"parent_id": None} | text
    since = dt.datetime.fromisoformat(fields.pop("at")) - dt.datetime.fromtimestamp(0, dt.UTC)
    fields |= {name: bytes.fromhex(fields[name]) for name in _META_HEX if name in fields}
    fields["blobs"] = [bytes.fromhex(name) for name in fields.get("blobs", ())]
    fields |= {name: pack_raw(_close(fields[name])) for name in _META_ENCODED if name in fields}
    meta = Meta(created_us=since // dt.timedelta(microseconds=1), **fields)
    return meta.digest + frames.pack_meta(meta)


def _open_note(data: bytes) -> dict[str, Any]:
    label, tags = frames.load_note(data)
    return {"label": label, "tags": list(tags)}


def _close_note(text: dict[str, Any]) -> bytes:
    return frames.dump_note(text["label"], tuple(text["tags"])) or b""


_KINDS: Final[dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]]] = {
    "delta": (_open_delta, _close_delta),
    "value": (_open_value, _close_value),
    "content": (_open_content, _close_content),
    "meta": (_open_meta, _close_meta),
    "note": (_open_note, _close_note),
}
