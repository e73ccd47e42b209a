"""Making a fork: a new thread that begins with a copy of one checkpoint, and its child threads with it, in one commit.

Touches timeline, frameworks, derived, companions, details, delta, frames.
"""

from __future__ import annotations

from typing import NamedTuple

from savegame.details import Draft
from savegame.encoding.delta import Op, whole
from savegame.encoding.frames import details_of, load_meta
from savegame.encoding.tree import Node
from savegame.model import Frame, ThreadKey
from savegame.store import StoreChange
from savegame.timeline import derived, frameworks
from savegame.timeline.companions import PARENT
from savegame.timeline.engine import EMPTY, Point
from savegame.timeline.timeline import Terms, Timeline


class Start(NamedTuple):
    """The first checkpoint of a fork as `Timeline.append` takes it, and what is written in the same commit."""

    base: Point
    ops: list[Op]
    node: Node
    draft: Draft
    terms: Terms


def fork(source: Timeline, frame: Frame, key: ThreadKey) -> Point:
    """Make a fork of a thread at one of its checkpoints. Raises ConflictError if either thread changed meanwhile."""
    children: list[StoreChange] = []
    for child, at, child_key in frameworks.forked_children(source, frame, key):
        start = _start(source.at(child), at, child_key)
        children += [source.at(child_key).appending(*start), *start.terms.beside, *derived.link(child_key, PARENT, key)]
    base, ops, node, draft, terms = _start(source, frame, key)
    return source.at(key).append(base, ops, node, draft, terms._replace(beside=[*terms.beside, *children]))


def _start(source: Timeline, frame: Frame, key: ThreadKey) -> Start:
    frameworks.refuse_deltas(source, frame)
    target, meta, point = source.at(key), load_meta(frame.meta), source.point(frame.seq, frame)
    assert point.node is not None
    drafted = Draft(details_of(meta) | {"forked_from": source.id}, frameworks.forked_id(source.key, frame, key), frame.note)
    records = source.engine.above.ledger.for_fork(source, point)
    beside = [*derived.inherited(source, frame, key), *target.put_all(records)]
    return Start(
        EMPTY._replace(id=point.id, meta=point.meta), whole(point.node), point.node, drafted, Terms(None, beside=beside)
    )
