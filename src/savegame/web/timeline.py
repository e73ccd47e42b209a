"""Checkpoints as a timeline with branches: a row each, with the lines that run through it. Pure.

Lanes are those of `savegame log --graph` (`present/lanes.py`); here they become lines of an SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from savegame.checkpoint import Checkpoint
from savegame.present.lanes import MOST_LANES, place_checkpoint

LANE, HEIGHT, MARGIN = 14, 52, 12
MIDDLE: Final = HEIGHT // 2


class Line(NamedTuple):
    """A line in a row as an SVG path, in the colour of a lane."""

    lane: int
    path: str


class TimelineRow(NamedTuple):
    """A checkpoint in its lane, with the lines that run through its row."""

    checkpoint: Checkpoint
    lane: int
    x: int
    lines: tuple[Line, ...]


class Drawing(NamedTuple):
    """Rows, their width, and what the lanes below them wait for."""

    rows: list[TimelineRow]
    width: int
    waiting: list[str]


def draw(checkpoints: Iterable[Checkpoint], waiting: Sequence[str]) -> Drawing:
    """Draw checkpoints, newest first, below lanes that wait for some of them."""
    lanes = list(waiting[:MOST_LANES])
    rows = [_row(checkpoint, lanes) for checkpoint in checkpoints]
    used = max([len(lanes), *(row.lane + 1 for row in rows)])
    return Drawing(rows, 2 * MARGIN + (used - 1) * LANE, lanes)


def _row(checkpoint: Checkpoint, lanes: list[str]) -> TimelineRow:
    parent = None if checkpoint.forked_from is not None else checkpoint.parent_id
    place = place_checkpoint(checkpoint.id, parent, lanes)
    lines = [Line(other, f"M{_x(other)} 0V{HEIGHT}") for other in place.passing]
    lines += [Line(other, _joining(other, place.lane)) for other in place.joining]
    if place.goes_on:
        lines.append(Line(place.lane, f"M{_x(place.lane)} {MIDDLE}V{HEIGHT}"))
    return TimelineRow(checkpoint, place.lane, _x(place.lane), tuple(lines))


def _joining(lane: int, into: int) -> str:
    """The path from the top of a row to its checkpoint."""
    if lane == into:
        return f"M{_x(lane)} 0V{MIDDLE}"
    return f"M{_x(lane)} 0C{_x(lane)} {MIDDLE - 6} {_x(lane)} {MIDDLE} {_x(into)} {MIDDLE}"


def _x(lane: int) -> int:
    return MARGIN + lane * LANE
