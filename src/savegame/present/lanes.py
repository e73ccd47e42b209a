"""The tree of a thread in lanes, newest checkpoint first: where each stands, which lanes join there. Pure; touches nothing.

Every checkpoint is younger than its parent, so one pass suffices: a lane waits for the id of the checkpoint that it leads
down to; where several wait for one, they join. What they wait for at the end can be handed on, so that no page needs to
know the ones above it. The first lane is the head's. An empty text is a free lane.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_LANES: Final = 8
"""Further branches share the last lane: a thread that was rewound to one place a thousand times has a picture that fits."""

_RESERVED: Final = "~"
"""Begins what a lane waits for if nothing above leads there: the head's, before the head is met."""


class Place(NamedTuple):
    """A checkpoint in its lane, the lanes from above that lead to it, those that run past, and whether its own goes on."""

    lane: int
    joining: tuple[int, ...]
    passing: tuple[int, ...]
    goes_on: bool


def start(head: str | None) -> list[str]:
    """What the lanes wait for above the newest checkpoint."""
    return [_RESERVED + head] if head else []


def placed(checkpoint_id: str, parent: str | None, lanes: list[str]) -> Place:
    """Where the next checkpoint stands; moves the lanes on to what they wait for below it."""
    mine = [lane for lane, wanted in enumerate(lanes) if wanted.removeprefix(_RESERVED) == checkpoint_id]
    lane = mine[0] if mine else _free(lanes)
    led = [other for other, wanted in enumerate(lanes) if wanted and not wanted.startswith(_RESERVED)]
    passing = tuple(other for other in led if other not in mine and other != lane)
    for other in mine:
        lanes[other] = ""
    lanes[lane] = parent or ""
    while lanes and not lanes[-1]:
        lanes.pop()
    return Place(lane, tuple(other for other in mine if other in led), passing, bool(parent))


def _free(lanes: list[str]) -> int:
    if "" in lanes:
        return lanes.index("")
    if len(lanes) < MOST_LANES:
        lanes.append("")
    return len(lanes) - 1
