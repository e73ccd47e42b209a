"""Detects what changed in a list channel without serializing it: hashes of its slices, compared with those of the last put."""

from __future__ import annotations

from typing import Any, Final

import blake3
import ormsgpack
from pydantic import BaseModel

SLICE: Final = 64
"""Items of a list that are hashed together."""

SMALL: Final = 16
"""Entries of a dict that is looked at one by one."""

Hashes = tuple[int, list[bytes]]
"""The length of a list, and a hash of each slice."""

_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


def is_simple(value: Any) -> bool:
    """Whether LangGraph's serializer and our codec surely write a value in the same way."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is dict:
        return len(value) <= SMALL and all(type(key) is str and is_simple(key) and is_simple(one) for key, one in value.items())
    return value is None or kind is bool or kind is float


def is_plain(data: bytes) -> bool:
    """Whether encoded data has no extensions, so that every decoder reads it in the same way."""
    try:
        ormsgpack.unpackb(data)
    except ValueError:
        return False
    return True


def hash_slices(value: Any, before: Hashes | None) -> Hashes | None:
    """The length of a list and a hash of each slice; None for values that cannot be compared without serializing them.

    If the list is longer than `before`, the last hash is of the slice in which it used to end, up to that end.
    """
    if type(value) is not list:
        return None
    count = 0 if before is None or before[0] >= len(value) else before[0]
    old_end: list[bytes] = []
    hashes = []
    try:
        for at in range(0, len(value), SLICE):
            hasher = blake3.blake3()
            if at < count < at + SLICE:
                hasher.update(_pack(value[at:count]))
                old_end.append(hasher.digest(length=16))
                hasher.update(_pack(value[count : at + SLICE]))
            else:
                hasher.update(_pack(value[at : at + SLICE]))
            hashes.append(hasher.digest(length=16))
    except (TypeError, ormsgpack.MsgpackEncodeError):
        return None
    return len(value), hashes + old_end


def has_grown(before: Hashes, after: Hashes) -> bool:
    """Whether a list is unchanged, except perhaps for new items at the end."""
    count, hashes = before
    if after[0] < count:
        return False
    whole, rest = divmod(count, SLICE)
    if hashes[:whole] != after[1][:whole]:
        return False
    return not rest or hashes[whole] == after[1][-1 if after[0] > count else whole]


def _pack(items: list[Any]) -> bytes:
    """The packed items without the header of their list, so that two lists packed one after the other are like one."""
    data = ormsgpack.packb(items, _model_fields, _OPTIONS)
    return data[1:] if len(items) < 16 else data[3:]


def _model_fields(value: Any) -> Any:
    """The class and fields of a model, which is all that LangGraph's serializer stores of it. Raises TypeError for others."""
    if isinstance(value, BaseModel):
        return [type(value).__module__, type(value).__qualname__, value.__dict__, value.__pydantic_extra__]
    raise TypeError(f"{type(value).__qualname__} must be serialized to be compared")
