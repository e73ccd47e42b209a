"""The tree of a thread drawn with letters beside its checkpoints, as `git log --graph` draws it. Pure; touches lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from savegame.present.lanes import Place, placed, start

NODE: Final = "●"


class Row(NamedTuple):
    """What stands to the left of one checkpoint: lanes that join above it (empty if none do), and its own line."""

    joins: str
    line: str


def drawn(points: Sequence[tuple[str, str | None]], head: str | None = None) -> Iterator[Row]:
    """A row for each checkpoint, given as (id, parent's id), newest first. A parent that is not there ends its lane."""
    known = {id_ for id_, _ in points}
    lanes = start(head if head in known else None)
    for id_, parent in points:
        place = placed(id_, parent if parent in known else None, lanes)
        marks = dict.fromkeys(place.passing, "│") | {place.lane: NODE}
        yield Row(_joins(place), " ".join(marks.get(lane, " ") for lane in range(max(marks) + 1)))


def _joins(place: Place) -> str:
    """The line on which lanes end in that of the checkpoint, to their left."""
    ends = [lane for lane in place.joining if lane != place.lane]
    if not ends:
        return ""
    marks = dict.fromkeys(place.passing, "│") | dict.fromkeys(range(place.lane + 1, ends[-1]), "─")
    marks |= {lane: "┼" for lane in place.passing if place.lane < lane < ends[-1]} | dict.fromkeys(ends, "┴")
    marks |= {place.lane: "├" if place.lane in place.joining else "╭", ends[-1]: "╯"}
    gaps = ("─" if place.lane <= lane < ends[-1] else " " for lane in range(max(marks) + 1))
    return "".join(marks.get(lane, " ") + gap for lane, gap in enumerate(gaps)).rstrip()
