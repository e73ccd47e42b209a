"""Growth as a picture: time of a save and size on disk against steps, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.rounds import Results

# contestant, task, label, colour (Okabe and Ito's, told apart by everybody), marker
_SERIES = (
    ("sqlitesaver", "grow", "LangGraph SqliteSaver.put", "#D55E00", "s"),
    ("savegame", "grow_save", "savegame save(whole state)", "#56B4E9", "^"),
    ("savegame", "grow", "savegame update()", "#0072B2", "o"),
    ("floor", "grow", "floor: one bare insert", "#999999", "x"),
)


def draw(results: Results, path: Path) -> None:
    """Write the picture as PNG (or what the name's ending says)."""
    import matplotlib as mpl  # an extra, and slow to import

    mpl.use("Agg")
    from matplotlib import pyplot

    panels: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
        ("time of one save, ms", lambda point: point["median_us"] / 1000),
        ("size on disk, MB", lambda point: point["disk_bytes"] / 1e6),
    )
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for axis, (title, value) in zip(axes, panels, strict=True):
        for contestant, task, label, colour, marker in _SERIES:
            entries = results.get(contestant, task)
            if entries:
                points = entries[0]["points"]
                steps, values = [point["step"] for point in points], [value(point) for point in points]
                axis.plot(steps, values, label=label, color=colour, marker=marker, markersize=5)
        axis.set(xscale="log", yscale="log", xlabel="steps (two messages of 1 KB each)", title=title)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter("{x:g}")
            side.set_minor_formatter("")
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
