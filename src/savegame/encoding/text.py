"""Any stored value as text. Pure; touches nothing.

Any value that can be stored has a text, whatever its keys are and however long its numbers. Nothing here is safe for a
terminal or a page by itself: who shows it escapes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

_LONG_INT: Final = 10_000
"""Bits of a number that is not written with decimal digits any more: Python refuses that for numbers that are much longer."""


class _Key(str):
    """A key that was no text: never the same as one that is, so that no entry hides another."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def plain_text(value: Any, *, indent: int | None = None) -> str:
    """Any stored value as text: texts as they are, other values as JSON for people, on one line or indented."""
    return value if isinstance(value, str) else json.dumps(_sayable(value), ensure_ascii=False, indent=indent)


def number_text(number: int) -> str:
    """A whole number as text: decimal digits, or hexadecimal ones (`0x…`) where there are thousands."""
    return hex(number) if _is_long(number) else str(number)


def written(value: Any, write: Callable[[Any], str] = str) -> str:
    """What `str` or `repr` says of a value, also where that is, or holds, a number with more digits than Python writes."""
    if type(value) is int:
        return number_text(value)
    try:
        return write(value)
    except ValueError:
        return f"<{type(value).__qualname__} with too many digits to show>"


def key_text(key: Any) -> str:
    """A key of a dict as text."""
    return key if isinstance(key, str) else written(key, repr)


def _sayable(value: Any) -> Any:
    """A value in the words of JSON."""
    if isinstance(value, int) and _is_long(value):
        return number_text(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _Key(key_text(key)): _sayable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_sayable(item) for item in value]
    return f"({len(value)} bytes)" if isinstance(value, (bytes, bytearray)) else written(value)


def _is_long(number: int) -> bool:
    return number.bit_length() >= _LONG_INT
