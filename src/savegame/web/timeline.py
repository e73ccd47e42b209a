"""Checkpoints as a timeline with branches: which lane each stands in, and which lines run past it. Pure; touches model.

Rows go from the newest to the oldest. A lane waits for the id of the checkpoint that it leads down to; where several wait
for one, they join there. What the lanes wait for at the end of a page is handed on to the next, so that no page needs to
know the ones above it. The first lane is that of the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from savegame.model import Checkpoint

MOST_LANES: Final = 8
"""Further branches share the last lane."""

LANE, HEIGHT, MARGIN = 14, 52, 12
MIDDLE: Final = HEIGHT // 2

_RESERVED: Final = "~"
"""Begins what a lane waits for if nothing above leads there: the head's, before the head is met."""


class Line(NamedTuple):
    """A line in a row, as an SVG path, in the colour of a lane."""

    lane: int
    path: str


class Row(NamedTuple):
    """A checkpoint in its lane, with the lines that run through its row."""

    checkpoint: Checkpoint
    lane: int
    x: int
    lines: tuple[Line, ...]


class Drawing(NamedTuple):
    """Rows, how wide they are, and what the lanes below them wait for."""

    rows: list[Row]
    width: int
    waiting: list[str]


def start(head: str | None) -> list[str]:
    """What the lanes wait for above the newest checkpoint."""
    return [_RESERVED + head] if head else []


def draw(checkpoints: Iterable[Checkpoint], waiting: Sequence[str]) -> Drawing:
    """Draw checkpoints, newest first. An empty text in `waiting` is a free lane."""
    lanes = list(waiting[:MOST_LANES])
    rows = [_row(checkpoint, lanes) for checkpoint in checkpoints]
    used = max([len(lanes), *(row.lane + 1 for row in rows)])
    return Drawing(rows, 2 * MARGIN + (used - 1) * LANE, lanes)


def _row(checkpoint: Checkpoint, lanes: list[str]) -> Row:
    """One row; moves the lanes on to what they wait for below it."""
    above = [bool(wanted) and not wanted.startswith(_RESERVED) for wanted in lanes]
    mine = [lane for lane, wanted in enumerate(lanes) if wanted.removeprefix(_RESERVED) == checkpoint.id]
    lane = mine[0] if mine else _free(lanes)
    passing = [other for other, wanted in enumerate(lanes) if wanted and other not in mine and above[other]]
    for other in mine:
        lanes[other] = ""
    parent = None if checkpoint.forked_from is not None else checkpoint.parent_id
    lines = [Line(other, f"M{_x(other)} 0V{HEIGHT}") for other in passing if other != lane or mine]
    lines += [Line(other, _joining(other, lane)) for other in mine if above[other]]
    if parent:
        lines.append(Line(lane, f"M{_x(lane)} {MIDDLE}V{HEIGHT}"))
    lanes[lane] = parent or ""
    while lanes and not lanes[-1]:
        lanes.pop()
    return Row(checkpoint, lane, _x(lane), tuple(lines))


def _free(lanes: list[str]) -> int:
    for lane, wanted in enumerate(lanes):
        if not wanted:
            return lane
    if len(lanes) < MOST_LANES:
        lanes.append("")
    return len(lanes) - 1


def _joining(lane: int, into: int) -> str:
    """From the top of a row to its checkpoint."""
    if lane == into:
        return f"M{_x(lane)} 0V{MIDDLE}"
    return f"M{_x(lane)} 0C{_x(lane)} {MIDDLE - 6} {_x(lane)} {MIDDLE} {_x(into)} {MIDDLE}"


def _x(lane: int) -> int:
    return MARGIN + lane * LANE
