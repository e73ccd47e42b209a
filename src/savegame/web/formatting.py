"""Times, counts and texts as a page shows them; most are filters of the templates. Pure.

Each function returns text, which the templates escape. Touches nothing but text.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from savegame.encoding.text import plain_text

MOST_TEXT: Final = 100_000
"""Maximum number of characters of one text on a page."""


def exact_time(when: dt.datetime) -> str:
    """A time to the second, in UTC."""
    return f"{when.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def short_number(count: float) -> str:
    """A number with at most three digits: `950`, `1.2k`, `34k`, `1.5M`."""
    for unit, least in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= least * 0.9995:
            return f"{count / least:.2g}{unit}" if count < least * 9.95 else f"{count / least:.0f}{unit}"
    return f"{count:.0f}"


def money_text(cost: float) -> str:
    """A cost in the user's currency, with as many digits as matter."""
    return f"{cost:,.2f}" if cost >= 0.095 or cost == 0 else f"{cost:.2g}" if cost >= 0.0001 else f"{cost:.1e}"


def duration(seconds: float) -> str:
    """A duration: `12 ms`, `3.4 s`, `5 min 12 s`, `2 h 5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def clip(text: str, most: int) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: most * 2].split())
    return line if len(line) <= most and len(text) <= most * 2 else f"{line[: most - 1]}…"


def limited_text(value: Any) -> str:
    """Any stored value as text, cut at MOST_TEXT characters."""
    text = full_text(value)
    return (
        text
        if len(text) <= MOST_TEXT
        else f"{text[:MOST_TEXT]}\n… and {len(text) - MOST_TEXT:,} more characters; use Export to get all"
    )


def full_text(value: Any) -> str:
    """Any stored value as text, however long."""
    return plain_text(value, indent=2)


def holder_name(owner: str | None) -> str:
    """Machine and process, if known, of the owner of a lease; empty for a run that no process held."""
    machine, *rest = (owner or "").split("/")
    return f"{machine} process {rest[1]}" if len(rest) > 1 else machine
