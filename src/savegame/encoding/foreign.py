"""Leaves that a framework's serializer wrote: stored unchanged, shown as plain data, never loaded as objects here.

Only the framework's adapter, with the framework's serializer, turns them back into objects. All other code (`thread.state()`,
`diff`, the command line) uses `readable`: the data inside without its classes, even if the framework is not installed. These
bytes never cause an import.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import ormsgpack

from savegame.encoding.nesting import inside_out

NAMED: Final = 3
"""An extension stands for an object if its body is an array of at least this length: two names, a value, and more."""

DEEPEST: Final = 500
"""Maximum levels of nesting."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value serialized by a framework: the serializer's name for the format, and the bytes."""

    kind: str
    data: bytes


def readable(kind: str, data: bytes) -> Any:
    """The contents of a leaf as plain data; the leaf itself if its format is unknown."""
    try:
        if kind == "msgpack":
            return inside_out(_unpack(data), _open_object, _data_of, DEEPEST)
        if kind == "json":
            return json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return Foreign(kind, data)
    if kind == "null":
        return None
    return data if kind in ("bytes", "bytearray") else Foreign(kind, data)


def _unpack(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=lambda _, body: _Object(body), option=ormsgpack.OPT_NON_STR_KEYS)


class _Object(NamedTuple):
    """An object that is not opened yet."""

    body: bytes


def _open_object(value: Any) -> tuple[bool | None, Any]:
    return (True, _unpack(value.body)) if isinstance(value, _Object) else (None, value)


def _data_of(_: bool, parts: Any) -> Any:  # noqa: FBT001
    """The data of an object, of which LangGraph writes the module, the class and the fields or arguments."""
    named = isinstance(parts, list) and len(parts) >= NAMED and isinstance(parts[0], str) and isinstance(parts[1], str)
    return parts[2] if named else parts
