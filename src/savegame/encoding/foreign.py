"""Leaves that a framework's own serializer wrote: kept as they are, shown as plain data, never brought to life here.

Only the framework's adapter, which has the framework's serializer, turns one back into an object. Everybody else
(`thread.state()`, `diff`, the command line) sees what `readable` makes of it, also where the framework is not
installed: the data inside, without its classes. Nothing is imported because these bytes name it. Touches nesting.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import ormsgpack

from savegame.encoding.nesting import inside_out

NAMED: Final = 3
"""An extension whose body is an array that begins with two names and a value stands for an object with that value."""

DEEPEST: Final = 500
"""Levels of nesting that are shown."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value as a framework serialised it: the serializer's name for the form, and the bytes."""

    kind: str
    data: bytes


def readable(kind: str, data: bytes) -> Any:
    """Plain data that shows what is inside a leaf; the leaf itself if nobody can tell."""
    try:
        if kind == "msgpack":
            return _unpacked(data)
        if kind == "json":
            return json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return Foreign(kind, data)
    if kind == "null":
        return None
    return data if kind in ("bytes", "bytearray") else Foreign(kind, data)


def _unpacked(data: bytes) -> Any:
    return inside_out(_unpacked_once(data), _opened, _plain, DEEPEST)


def _unpacked_once(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=lambda _, body: _Object(body), option=ormsgpack.OPT_NON_STR_KEYS)


class _Object(NamedTuple):
    """An object that was not looked into."""

    body: bytes


def _opened(value: Any) -> tuple[bool | None, Any]:
    return (True, _unpacked_once(value.body)) if isinstance(value, _Object) else (None, value)


def _plain(_: bool, parts: Any) -> Any:  # noqa: FBT001
    """The data of an object instead of the object: LangGraph writes its module, its class and its fields or arguments."""
    named = isinstance(parts, list) and len(parts) >= NAMED and isinstance(parts[0], str) and isinstance(parts[1], str)
    return parts[2] if named else parts
