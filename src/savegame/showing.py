"""Stored values, ages and sizes in the words that every surface uses for them. Pure; touches nothing.

Any value that can be stored has a text, whatever its keys are and however long its numbers. Nothing here is safe for a
terminal or a page by itself: who shows it escapes it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

_STEPS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))
_MONTH_S: Final = 30 * 86_400
_SKEW_S: Final = 5
"""By so much clocks may differ: what happened just now on another machine is not in the future."""
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


def ago(when: dt.datetime, now: dt.datetime) -> str:
    """How long ago: `just now`, `5 min ago`, `3 h ago`, `12 d ago`, then the date. In the future: `in 25 s`, `in 5 min`."""
    seconds = (now - when).total_seconds()
    far = abs(seconds)
    if far < 60:
        return f"in {far:.0f} s" if seconds < -_SKEW_S else "just now"
    if far >= _MONTH_S:
        return f"{when.day} {when:%b}" if when.year == now.year else f"{when.day} {when:%b %Y}"
    unit, name = next(step for step in _STEPS if far >= step[0])
    return f"{far // unit:.0f} {name} ago" if seconds > 0 else f"in {far // unit:.0f} {name}"


def size_text(count: float) -> str:
    """Bytes with three digits: `812 B`, `1.20 kB`, `34.5 MB`."""
    number, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 999.5:
            break
        number, unit = number / 1000, larger
    digits = 0 if unit == "B" or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {unit}"


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
