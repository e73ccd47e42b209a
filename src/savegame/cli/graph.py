"""The tree of a thread in text, as `git log --graph` draws it. Pure; the lanes come from `present.lanes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from savegame.present.lanes import LanePosition, place_checkpoint, start_lanes

NODE: Final = "●"


class GraphRow(NamedTuple):
    """The drawing left of one checkpoint: the line where lanes join above it (empty if none do), and its own line."""

    joins: str
    line: str


def draw_rows(points: Sequence[tuple[str, str | None]], head: str | None = None) -> Iterator[GraphRow]:
    """A row for each checkpoint, given as (id, parent id), newest first. A parent that is not among them ends its lane."""
    known = {id_ for id_, _ in points}
    lanes = start_lanes(head if head in known else None)
    for id_, parent in points:
        place = place_checkpoint(id_, parent if parent in known else None, lanes)
        marks = dict.fromkeys(place.passing, "│") | {place.lane: NODE}
        yield GraphRow(_joins(place), " ".join(marks.get(lane, " ") for lane in range(max(marks) + 1)))


def _joins(place: LanePosition) -> str:
    """The line on which lanes bend left and end in that of the checkpoint."""
    ends = [lane for lane in place.joining if lane != place.lane]
    if not ends:
        return ""
    marks = dict.fromkeys(place.passing, "│") | dict.fromkeys(range(place.lane + 1, ends[-1]), "─")
    marks |= {lane: "┼" for lane in place.passing if place.lane < lane < ends[-1]} | dict.fromkeys(ends, "┴")
    marks |= {place.lane: "├" if place.lane in place.joining else "╭", ends[-1]: "╯"}
    gaps = ("─" if place.lane <= lane < ends[-1] else " " for lane in range(max(marks) + 1))
    return "".join(marks.get(lane, " ") + gap for lane, gap in enumerate(gaps)).rstrip()
