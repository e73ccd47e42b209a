"""Numbers as bars and lines: coordinates for SVG drawings. Pure; touches shown.

Drawings have no styles of their own, since the page allows none: everything is an attribute, colours come by class.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from savegame.runs.ledger import CallEntry
from savegame.web.shown import exact, lasting

WIDTH, HEIGHT, FOOT, HEAD = 360, 116, 18, 16
FEWEST_DAYS: Final = 14
MOST_DAYS: Final = 90


class Bar(NamedTuple):
    """One bar of a plot and what it says."""

    x: float
    y: float
    width: float
    height: float
    said: str


class Plot(NamedTuple):
    """A titled plot: bars, or the points of a line, and its labels."""

    title: str
    bars: list[Bar]
    line: str
    top: str
    first: str
    last: str
    total: str


class Span(NamedTuple):
    """A call in a waterfall: where its bar begins and how wide it is, in percent; `open` if it has not ended."""

    entry: CallEntry
    x: float
    width: float
    took: str
    open: bool


def by_day(
    title: str,
    numbers: Mapping[dt.date, float],
    today: dt.date,
    shown: Callable[[float], str],
    *,
    growing: bool = False,
) -> Plot:
    """A plot of the newest days: a bar for each, or with `growing` a line of all up to each."""
    first = min(numbers, default=today)
    count = min(MOST_DAYS, max(FEWEST_DAYS, (today - first).days + 1))
    days = [today - dt.timedelta(days=back) for back in reversed(range(count))]
    values = [numbers.get(day, 0.0) for day in days]
    if growing:
        before = sum(value for day, value in numbers.items() if day < days[0])
        values = [before := before + value for value in values]
    most = max(values) or 1.0
    room = WIDTH / count
    heights = [value / most * (HEIGHT - FOOT - HEAD) for value in values]
    bars = [
        Bar(number * room + room * 0.15, HEIGHT - FOOT - height, room * 0.7, height, f"{day:%d %b}: {shown(value)}")
        for number, (day, value, height) in enumerate(zip(days, values, heights, strict=True))
    ]
    between = WIDTH / (count - 1)
    points = " ".join(f"{number * between:.1f},{HEIGHT - FOOT - height:.1f}" for number, height in enumerate(heights))
    total = values[-1] if growing else sum(values)
    labels = (shown(most) if max(values) else "", f"{days[0]:%d %b}", f"{days[-1]:%d %b}", shown(total))
    return Plot(title, [] if growing else bars, points if growing else "", *labels)


def waterfall(entries: Sequence[CallEntry], now: dt.datetime) -> list[Span]:
    """Calls over the time from the beginning of the first to the end of the last."""
    begun = [entry.started_at for entry in entries if entry.started_at is not None]
    low = min(begun, default=now)
    high = max([low, *(_end(entry, now) for entry in entries)])
    whole = (high - low).total_seconds() or 1.0
    return [_span(entry, low, whole, now) for entry in entries]


def ticks(entries: Iterable[CallEntry], now: dt.datetime) -> tuple[str, str]:
    """When a waterfall begins, and how long all of it took."""
    known = [entry for entry in entries if entry.started_at is not None]
    if not known:
        return "", ""
    low = min(entry.started_at for entry in known if entry.started_at is not None)
    return exact(low), lasting((max(_end(entry, now) for entry in known) - low).total_seconds())


def _span(entry: CallEntry, low: dt.datetime, whole: float, now: dt.datetime) -> Span:
    if entry.started_at is None:
        return Span(entry, 0.0, 0.0, "", open=False)
    took = (_end(entry, now) - entry.started_at).total_seconds()
    x = (entry.started_at - low).total_seconds() / whole * 100
    return Span(entry, round(min(x, 99.2), 3), round(max(took / whole * 100, 0.8), 3), lasting(took), entry.ended_at is None)


def _end(entry: CallEntry, now: dt.datetime) -> dt.datetime:
    if entry.ended_at is not None:
        return entry.ended_at
    return now if entry.status == "started" else entry.started_at or now
