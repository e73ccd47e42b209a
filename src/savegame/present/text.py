"""Ages and sizes as text. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Final

_STEPS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))
_MONTH_S: Final = 30 * 86_400
_SKEW_S: Final = 5
"""Clocks of machines may differ by this much; within it, nothing is in the future."""


def ago(when: dt.datetime, now: dt.datetime) -> str:
    """An age: `just now`, `5 min ago`, `3 h ago`, `12 d ago`, then the date. In the future: `in 25 s`, `in 5 min`."""
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
