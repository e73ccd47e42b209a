"""Leaves that a framework's own serializer wrote: kept as they are, shown as plain data, never brought to life here.

Only the framework's adapter, which has the framework's serializer, turns one back into an object. Everybody else
(`thread.state()`, `diff`, the command line) sees what `readable` makes of it, also where the framework is not
installed: the data inside, without its classes. Nothing is imported because these bytes name it. Touches nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import ormsgpack

NAMED: Final = 3
"""An extension whose body is an array that begins with two names and a value stands for an object with that value."""


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
    return ormsgpack.unpackb(data, ext_hook=_plain, option=ormsgpack.OPT_NON_STR_KEYS)


def _plain(_: int, body: bytes) -> Any:
    """The data of an object instead of the object: LangGraph writes its module, its class and its fields or arguments."""
    parts = _unpacked(body)
    named = isinstance(parts, list) and len(parts) >= NAMED and isinstance(parts[0], str) and isinstance(parts[1], str)
    return parts[2] if named else parts
