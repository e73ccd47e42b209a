"""Times, sizes, counts and texts as people read them. Pure; touches nothing."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

MOST_TEXT: Final = 100_000
"""How much of one text a page shows."""

_STEPS: Final = ((60, 60, "min"), (3600, 3600, "h"), (86400, 86400, "d"))


def ago(when: dt.datetime, now: dt.datetime) -> str:
    """How long ago: `just now`, `5 min ago`, `3 h ago`, `12 d ago`, then the date. In the future: `in 5 min`."""
    seconds = (now - when).total_seconds()
    far = abs(seconds)
    if far < 60:
        return "just now"
    if far >= 30 * 86400:
        return f"{when.day} {when:%b}" if when.year == now.year else f"{when.day} {when:%b %Y}"
    unit, name = next((unit, name) for least, unit, name in reversed(_STEPS) if far >= least)
    return f"{far // unit:.0f} {name} ago" if seconds > 0 else f"in {far // unit:.0f} {name}"


def exact(when: dt.datetime) -> str:
    """The same time to the second."""
    return f"{when.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: int) -> str:
    """Bytes with three digits: `812 B`, `1.20 kB`, `34.5 MB`."""
    number, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 999.5:
            break
        number, unit = number / 1000, larger
    digits = 0 if unit == "B" or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {unit}"


def brief(count: float) -> str:
    """A number with at most three digits: `950`, `1.2k`, `34k`, `1.5M`."""
    for unit, least in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= least * 0.9995:
            return f"{count / least:.2g}{unit}" if count < least * 9.95 else f"{count / least:.0f}{unit}"
    return f"{count:.0f}"


def money(cost: float) -> str:
    """A cost, in whatever currency it is counted: as many digits as matter."""
    return f"{cost:,.2f}" if cost >= 0.095 or cost == 0 else f"{cost:.2g}" if cost >= 0.0001 else f"{cost:.1e}"


def lasting(seconds: float) -> str:
    """A duration: `12 ms`, `3.4 s`, `5 min 12 s`, `2 h 5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def clipped(text: str, most: int) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: most * 2].split())
    return line if len(line) <= most and len(text) <= most * 2 else f"{line[: most - 1]}…"


def plain(value: Any) -> str:
    """Any stored value as text: texts as they are, other values as JSON for people."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=_unusual)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n… and {len(text) - MOST_TEXT} characters more"


def _unusual(value: Any) -> Any:
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return f"({len(value)} bytes)"
    return str(value)
