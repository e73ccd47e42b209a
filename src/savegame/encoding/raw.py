"""Encoded values taken apart and put together without decoding them: extensions stay `RawExt`. Pure.

Deltas, trees and frames work on these bytes; packing what was unpacked returns the same bytes. `codec` decodes values.
"""

from __future__ import annotations

from typing import Any, Final

import ormsgpack

from savegame.encoding.extensions import FOREIGN, MAP, OBJECT, READERS, RawExt, write_raw
from savegame.encoding.nesting import inside_out
from savegame.errors import CorruptionError

MAX_DEPTH: Final = 250
"""Maximum levels of nesting in a state."""

DEEPEST_STORED: Final = 2 * MAX_DEPTH
"""More levels than any stored state ever had."""

LEAVES: Final = frozenset((*READERS, FOREIGN))
"""Extensions without encoded values inside."""

OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


def unpack_raw(data: bytes) -> Any:
    """Decode plain data only: extensions stay `RawExt`, so that packing again returns the same bytes."""
    try:
        return ormsgpack.unpackb(data, ext_hook=RawExt)
    except ValueError:  # or ormsgpack hid a Ctrl-C in the hook: then the second attempt succeeds
        pass
    try:
        return ormsgpack.unpackb(data, ext_hook=RawExt)
    except ValueError as error:
        raise CorruptionError(f"stored bytes do not decode: {error}") from error


def pack_raw(value: Any) -> bytes:
    """The bytes of a result of `unpack_raw`."""
    try:
        return ormsgpack.packb(value, write_raw, OPTIONS)
    except TypeError:  # ormsgpack hid a Ctrl-C in the hook
        return ormsgpack.packb(value, write_raw, OPTIONS)


def check_nesting(data: bytes) -> None:
    """Raise CorruptionError for an encoded value that is nested deeper than any stored state."""
    try:
        inside_out(unpack_raw(data), open_raw, lambda tag, parts: None, DEEPEST_STORED)
    except RecursionError as error:
        raise CorruptionError("a stored value is nested too deeply") from error


def join_array(items: list[bytes]) -> bytes:
    """The encoded list of encoded items."""
    return array_header(len(items)) + b"".join(items)


def array_header(count: int) -> bytes:
    """The header of an encoded list."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 65536 else b"\xdd" + count.to_bytes(4, "big")


def map_header(count: int) -> bytes:
    """The header of an encoded dict with text keys."""
    if count < 16:
        return bytes((0x80 | count,))
    return b"\xde" + count.to_bytes(2, "big") if count < 65536 else b"\xdf" + count.to_bytes(4, "big")


def open_ext(ext: RawExt) -> tuple[bytes, list[tuple[Any, Any]]] | None:
    """An encoded object, or dict with any keys, as (tag, fields); None for other and malformed extensions."""
    if ext.tag == OBJECT:
        parts = unpack_raw(ext.data)
        if type(parts) is not list or len(parts) != 2 or not _is_tag(parts[0]):
            return None
        tag, fields = parts
        if type(fields) is RawExt and fields.tag == MAP:  # with keys that are not text
            pairs = _pairs(fields)
        else:
            pairs = list(fields.items()) if type(fields) is dict else None
        return None if pairs is None else (pack_raw(tag), pairs)
    pairs = _pairs(ext) if ext.tag == MAP else None
    return None if pairs is None else (b"", pairs)


def _is_tag(tag: Any) -> bool:
    return type(tag) is list and [type(part) for part in tag] == [str, int]


def _pairs(ext: RawExt) -> list[tuple[Any, Any]] | None:
    """The items of a dict with any keys; None for malformed ones: a key without a value, or an unhashable key."""
    flat = unpack_raw(ext.data)
    if type(flat) is not list or len(flat) % 2 or any(type(key) in (list, dict) for key in flat[::2]):
        return None
    return list(zip(flat[::2], flat[1::2], strict=True))


def object_ext(tag: bytes, fields: bytes) -> ormsgpack.Ext:
    """The extension of an object of a registered class."""
    return ormsgpack.Ext(OBJECT, b"\x92" + tag + fields)


def open_raw(value: Any) -> tuple[int | None, Any]:
    """For `inside_out`: the tag and the contents of an extension, or the bytes of a leaf."""
    if type(value) is not RawExt:
        return None, value
    return value.tag, value.data if value.tag in LEAVES else unpack_raw(value.data)
