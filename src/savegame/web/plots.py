"""Bar charts, lines and waterfalls as coordinates for SVG. Pure.

The Content-Security-Policy forbids inline styles: geometry is in attributes, colours come from classes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from savegame.runs.ledger import CallEntry
from savegame.web.formatting import duration, exact_time

WIDTH, HEIGHT, FOOT, HEAD = 360, 116, 18, 16
FEWEST_DAYS: Final = 14
MOST_DAYS: Final = 90


class Bar(NamedTuple):
    """One bar of a plot with its tooltip."""

    x: float
    y: float
    width: float
    height: float
    tooltip: str


class Plot(NamedTuple):
    """A plot: bars or the points of a line, with labels."""

    title: str
    bars: list[Bar]
    line: str
    top: str
    first: str
    last: str
    total: str


class CallBar(NamedTuple):
    """A call in a waterfall: start and width of its bar in percent; `open` if it has not ended."""

    entry: CallEntry
    x: float
    width: float
    took: str
    open: bool


def by_day(
    title: str,
    numbers: Mapping[dt.date, float],
    today: dt.date,
    text_of: Callable[[float], str],
    *,
    growing: bool = False,
) -> Plot:
    """A plot of the newest days: a bar per day, or with `growing` a line of running totals."""
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
        Bar(number * room + room * 0.15, HEIGHT - FOOT - height, room * 0.7, height, f"{day:%d %b}: {text_of(value)}")
        for number, (day, value, height) in enumerate(zip(days, values, heights, strict=True))
    ]
    between = WIDTH / (count - 1)
    points = " ".join(f"{number * between:.1f},{HEIGHT - FOOT - height:.1f}" for number, height in enumerate(heights))
    total = values[-1] if growing else sum(values)
    labels = (text_of(most) if max(values) else "", f"{days[0]:%d %b}", f"{days[-1]:%d %b}", text_of(total))
    return Plot(title, [] if growing else bars, points if growing else "", *labels)


def waterfall(entries: Sequence[CallEntry], now: dt.datetime) -> list[CallBar]:
    """Bars on a time axis from the start of the first call to the end of the last."""
    begun = [entry.started_at for entry in entries if entry.started_at is not None]
    low = min(begun, default=now)
    high = max([low, *(_end(entry, now) for entry in entries)])
    whole = (high - low).total_seconds() or 1.0
    return [_call_bar(entry, low, whole, now) for entry in entries]


def ticks(entries: Iterable[CallEntry], now: dt.datetime) -> tuple[str, str]:
    """When a waterfall starts, and how long it lasts."""
    known = [entry for entry in entries if entry.started_at is not None]
    if not known:
        return "", ""
    low = min(entry.started_at for entry in known if entry.started_at is not None)
    return exact_time(low), duration((max(_end(entry, now) for entry in known) - low).total_seconds())


def _call_bar(entry: CallEntry, low: dt.datetime, whole: float, now: dt.datetime) -> CallBar:
    if entry.started_at is None:
        return CallBar(entry, 0.0, 0.0, "", open=False)
    took = (_end(entry, now) - entry.started_at).total_seconds()
    x = (entry.started_at - low).total_seconds() / whole * 100
    return CallBar(
        entry, round(min(x, 99.2), 3), round(max(took / whole * 100, 0.8), 3), duration(took), entry.ended_at is None
    )


def _end(entry: CallEntry, now: dt.datetime) -> dt.datetime:
    if entry.ended_at is not None:
        return entry.ended_at
    return now if entry.status == "started" else entry.started_at or now
