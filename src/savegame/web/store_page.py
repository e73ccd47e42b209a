"""The page of the store: counts, sizes, growth, largest threads, and the integrity check.

The check runs in a thread of its own (`checking.py`); this page shows its progress and report. Touches usage, plots and ui.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from starlette.responses import Response

from savegame.present.text import size_text
from savegame.timeline.usage import Usage
from savegame.web import formatting
from savegame.web.plots import Plot, by_day
from savegame.web.ui import Params, Ui

BIGGEST: Final = 10


def show(ui: Ui, params: Params) -> Response:
    """Sizes, plots and the check; the page reloads until everything is counted."""
    found = ui.overview.snapshot()
    stats, counted = ui.overview.stats()
    usage, summed = ui.overview.usage()
    infos = [entry.info for entry in found.entries if entry.info is not None]
    return ui.show(
        "store.html",
        stats=stats,
        ready=counted and summed and found.complete,
        plots=_plots(usage, ui.now().date()) if usage else [],
        whole=sum(one.state_bytes for one in usage),
        tokens=sum(one.tokens_used for one in usage),
        cost=sum(one.cost for one in usage),
        biggest=sorted(infos, key=lambda info: info.size_bytes, reverse=True)[:BIGGEST],
        longest=sorted(infos, key=lambda info: info.checkpoints, reverse=True)[:BIGGEST],
        check=ui.checking.now,
        uncounted=ui.overview.uncounted(),
        beside=0 if stats is None else stats.sizes.get("search", 0),
        sizes=[] if stats is None else _parts(dict(stats.sizes)),
    )


def check(ui: Ui, params: Params) -> Response:
    """The progress of the check."""
    return ui.show("check.html", check=ui.checking.now)


def start_check(ui: Ui, params: Params) -> Response:
    """Start a check."""
    ui.checking.start()
    return ui.go("store")


def _parts(sizes: dict[str, int]) -> list[tuple[str, int, float]]:
    """The parts of the store, largest first: name, bytes, and percentage of the largest."""
    wanted = ("deltas", "keyframes", "blobs", "metadata", "notes", "records", "aside", "wal")
    parts = sorted(((name, sizes[name]) for name in wanted if sizes.get(name)), key=lambda part: part[1], reverse=True)
    most = max((count for _, count in parts), default=1)
    return [(name, count, round(count / most * 100, 2)) for name, count in parts]


def _plots(usage: list[Usage], today: dt.date) -> list[Plot]:
    days = {one.key: one for one in usage if isinstance(one.key, dt.date)}
    counts = {day: float(one.checkpoints) for day, one in days.items()}
    plots = [
        by_day("Checkpoints per day", counts, today, formatting.short_number),
        by_day("Checkpoints in total", counts, today, formatting.short_number, growing=True),
        by_day(
            "Size of all states", {day: float(one.state_bytes) for day, one in days.items()}, today, size_text, growing=True
        ),
        by_day("Tokens per day", {day: float(one.tokens_used) for day, one in days.items()}, today, formatting.short_number),
        by_day("Cost per day", {day: one.cost for day, one in days.items()}, today, formatting.money_text),
    ]
    return [plot for plot in plots if plot.top]
