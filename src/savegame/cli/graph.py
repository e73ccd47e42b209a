"""The tree of a thread as lanes beside its checkpoints, newest first, as `git log --graph` draws them. Pure.

Every checkpoint is younger than its parent, so one pass suffices: a lane waits for the parent of what was drawn last in it,
and lanes that wait for the same one join above it. Beyond MOST_LANES, branches share the last one: a thread that was
rewound to one place a thousand times has a picture that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

NODE: Final = "●"
MOST_LANES: Final = 12


class Row(NamedTuple):
    """What stands to the left of one checkpoint: lanes that join above it (empty if none do), and its own line."""

    joins: str
    line: str


def lanes(points: Sequence[tuple[str, str | None]]) -> Iterator[Row]:
    """A row for each checkpoint, given as (id, parent's id), newest first. A parent that is not there ends its lane."""
    known = {id_ for id_, _ in points}
    waiting: list[str | None] = []
    for id_, parent in points:
        mine = [lane for lane, wanted in enumerate(waiting) if wanted == id_]
        if not mine:
            mine = [waiting.index(None) if None in waiting else min(len(waiting), MOST_LANES - 1)]
            waiting[mine[0] : mine[0] + 1] = [id_]
        own, *others = mine
        joins = _joins(waiting, own, others) if others else ""
        for lane in others:
            waiting[lane] = None
        yield Row(joins, _line(waiting, own))
        waiting[own] = parent if parent in known else None
        while waiting and waiting[-1] is None:
            waiting.pop()


def _line(waiting: list[str | None], own: int) -> str:
    marks = (NODE if lane == own else "│" if wanted is not None else " " for lane, wanted in enumerate(waiting))
    return " ".join(marks).rstrip()


def _joins(waiting: list[str | None], own: int, others: list[int]) -> str:
    """The line on which the lanes `others` end in the lane `own`, to their left."""
    drawn = ""
    for lane, wanted in enumerate(waiting):
        inside = own < lane < others[-1]
        if lane == own:
            drawn += "├"
        elif lane in others:
            drawn += "╯" if lane == others[-1] else "┴"
        elif wanted is not None:
            drawn += "┼" if inside else "│"
        else:
            drawn += "─" if inside else " "
        drawn += "─" if own <= lane < others[-1] else " "
    return drawn.rstrip()
