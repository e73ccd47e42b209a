"""The page of the store: how much there is, how it grew, what is biggest, whether it is intact. Touches ui, plots, vault."""

from __future__ import annotations

import datetime as dt
from typing import Final

from starlette.responses import Response

from savegame.present.text import size_text
from savegame.timeline.usage import Usage
from savegame.web import shown
from savegame.web.plots import Plot, by_day
from savegame.web.ui import Asked, Ui

BIGGEST: Final = 10


def show(ui: Ui, asked: Asked) -> Response:
    """Sizes, plots and the check; what is still being counted is asked for again."""
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


def check(ui: Ui, asked: Asked) -> Response:
    """How far the check is."""
    return ui.show("check.html", check=ui.checking.now)


def start_check(ui: Ui, asked: Asked) -> Response:
    """Begin a check."""
    ui.checking.start()
    return ui.go("store")


def _parts(sizes: dict[str, int]) -> list[tuple[str, int, float]]:
    """What the store is made of, the largest first: name, bytes, and its share of the largest."""
    wanted = ("deltas", "keyframes", "blobs", "metadata", "notes", "records", "aside", "wal")
    parts = sorted(((name, sizes[name]) for name in wanted if sizes.get(name)), key=lambda part: part[1], reverse=True)
    most = max((count for _, count in parts), default=1)
    return [(name, count, round(count / most * 100, 2)) for name, count in parts]


def _plots(usage: list[Usage], today: dt.date) -> list[Plot]:
    days = {one.key: one for one in usage if isinstance(one.key, dt.date)}
    counts = {day: float(one.checkpoints) for day, one in days.items()}
    made = [
        by_day("Checkpoints a day", counts, today, shown.brief),
        by_day("Checkpoints in all", counts, today, shown.brief, growing=True),
        by_day(
            "Size of all states", {day: float(one.state_bytes) for day, one in days.items()}, today, size_text, growing=True
        ),
        by_day("Tokens a day", {day: float(one.tokens_used) for day, one in days.items()}, today, shown.brief),
        by_day("Cost a day", {day: one.cost for day, one in days.items()}, today, shown.money),
    ]
    return [plot for plot in made if plot.top]
