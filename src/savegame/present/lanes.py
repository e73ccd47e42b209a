"""The tree of a thread in lanes, newest checkpoint first: the lane of each checkpoint, and which lanes join there. Pure.

A checkpoint is newer than its parent, so one pass is enough: each lane waits for the id of the checkpoint it leads down to,
and lanes that wait for the same one join. The lanes after one page are the start of the next, so a page does not need those
above it. The first lane is the head's. An empty string is a free lane.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_LANES: Final = 8
"""Further branches share the last lane, so that a thread with a thousand rewinds still fits on a page."""

_RESERVED: Final = "~"
"""Prefix of an id that no checkpoint above leads to: the head's, until the head is reached."""


class LanePosition(NamedTuple):
    """The lane of a checkpoint, the lanes that join there, those that pass by, and whether its own continues below."""

    lane: int
    joining: tuple[int, ...]
    passing: tuple[int, ...]
    goes_on: bool


def start_lanes(head: str | None) -> list[str]:
    """The lanes above the newest checkpoint."""
    return [_RESERVED + head] if head else []


def place_checkpoint(checkpoint_id: str, parent: str | None, lanes: list[str]) -> LanePosition:
    """Return the position of the next checkpoint, and update `lanes` to what they wait for below it."""
    mine = [lane for lane, wanted in enumerate(lanes) if wanted.removeprefix(_RESERVED) == checkpoint_id]
    lane = mine[0] if mine else _free(lanes)
    led = [other for other, wanted in enumerate(lanes) if wanted and not wanted.startswith(_RESERVED)]
    passing = tuple(other for other in led if other not in mine and other != lane)
    for other in mine:
        lanes[other] = ""
    lanes[lane] = parent or ""
    while lanes and not lanes[-1]:
        lanes.pop()
    return LanePosition(lane, tuple(other for other in mine if other in led), passing, bool(parent))


def _free(lanes: list[str]) -> int:
    if "" in lanes:
        return lanes.index("")
    if len(lanes) < MOST_LANES:
        lanes.append("")
    return len(lanes) - 1
