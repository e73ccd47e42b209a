"""Deleting threads: which threads go along, which are only hidden, and what happens to their links.

A delete includes child threads. A thread that an agent checkpoint names is kept for it, see `graveyard.py`; the others are
freed. A deleted thread passes its links on: its forks count as forks of its own source; a thread that moves keeps its links.
All of this is one commit; if one of the threads changed since it was read, the commit fails and is planned again. Touches
derived, graveyard, removal, engine and below.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from savegame.encoding.frames import load_meta
from savegame.errors import AlreadyExistsError, CorruptionError
from savegame.model import ThreadKey
from savegame.store import DeleteThread, Expect, PutRecord, StoreChange
from savegame.timeline import derived, graveyard, removal
from savegame.timeline.companions import DELETED, MARK, SOURCE, twin_of
from savegame.timeline.derived import DOWN, NOTED, SEPARATOR, UP
from savegame.timeline.engine import Engine, Naming
from savegame.timeline.graveyard import Move, name_of
from savegame.timeline.lineage import Lineage
from savegame.waiting.retrying import PLANS, retried

logger = logging.getLogger("savegame")


class Deleted(NamedTuple):
    """The number of deleted threads with checkpoints, and messages about what could not be reached."""

    threads: int
    left: tuple[str, ...]


def delete(engine: Engine, keys: Collection[ThreadKey]) -> Deleted:
    """Delete threads with their records and child threads, all or none.

    Those that an agent checkpoint names, and their child threads, are kept for it.
    """

    def attempt() -> Deleted:
        lost: list[str] = []
        gone = _with_children(engine, keys, lost)
        return take_out(engine, gone, lost, for_agents=_agents_naming(engine, gone, lost))

    return retried(attempt, tries=PLANS)


def _with_children(engine: Engine, keys: Collection[ThreadKey], lost: list[str]) -> frozenset[ThreadKey]:
    """Threads and their child threads; unreadable parts are reported to `lost`."""
    found: set[ThreadKey] = set()
    for key in keys:
        try:
            found |= derived.with_children(engine, [key]).keys()
        except CorruptionError as error:  # a damaged thread can still be deleted
            found.add(key)
            lost.append(f"thread {key.id!r}: its child threads cannot be read and may remain, look for them: {error}")
    return frozenset(found)


def _agents_naming(engine: Engine, gone: frozenset[ThreadKey], lost: list[str]) -> dict[ThreadKey, frozenset[str]]:
    """Those of the threads that agent checkpoints name, and their child threads, each with these agents."""
    found: dict[ThreadKey, frozenset[str]] = {}
    for key in gone:
        try:
            agents = frozenset(naming.agent_id for naming in namings(engine, key, but=gone))
            children = derived.with_children(engine, [key]) if agents else ()
        except CorruptionError as error:
            lost.append(_loss_of(key, error))
            continue
        found |= {child: found.get(child, frozenset()) for child in children}
        found |= {key: agents} if agents else {}
    return found


def namings(engine: Engine, key: ThreadKey, *, but: Collection[ThreadKey] = ()) -> frozenset[Naming]:
    """The agent checkpoints that name a checkpoint of a thread, except those in the threads `but`."""
    named = engine.above.named(_agents(engine, key), but)
    frames = Lineage(engine, key).everything() if named else ()
    return frozenset(naming for frame in frames for naming in named.get(frame.id, ()))


def _agents(engine: Engine, key: ThreadKey) -> Collection[str | None]:
    """The agents whose checkpoints may name a thread: those that it belonged to or is kept for."""
    if graveyard.is_kept(key):
        return Lineage(engine, key).names(DELETED)
    row = engine.store.thread(key)
    if row is None or row.agent is None:  # it never had one
        return ()
    return {row.agent, *(load_meta(frame.meta).agent_id for frame in Lineage(engine, key).everything())}


def take_out(
    engine: Engine, gone: frozenset[ThreadKey], lost: list[str], *, for_agents: Mapping[ThreadKey, frozenset[str]] | None = None
) -> Deleted:
    """Delete exactly these threads; those of `for_agents` move to a yard, where they are kept for these agents."""
    for_agents = for_agents or {}
    found = sum(row is not None and row.frames > 0 for row in map(engine.store.thread, gone))
    gone = gone.union(removal.deleted_by(engine.above.let_go(dict.fromkeys(gone))))
    yard = 0
    while True:
        yard = graveyard.free_yard(engine, for_agents, yard) if for_agents else yard
        moves = {key: graveyard.in_yard(key, yard) for key in for_agents}
        try:
            engine.store.commit(plan_deletion(engine, gone, moves, for_agents, lost).changes)
            break
        except AlreadyExistsError:  # a checkpoint in that yard has an id that a user chose: take the next yard
            if not for_agents:
                raise
    for key in gone:
        engine.cache.forget(key)
    left = tuple(dict.fromkeys(lost))
    for what in left:
        logger.warning("%s", what)
    return Deleted(found, (*left, *removal.free(engine, sorted(gone))))


# -- one commit ------------------------------------------------------------------------------------


class DeletionPlan(NamedTuple):
    """Changes that delete and move threads; `numbers` are the new numbers of the checkpoints of each moved thread."""

    changes: list[StoreChange]
    numbers: dict[ThreadKey, dict[int, int]]


def plan_deletion(
    engine: Engine,
    gone: Collection[ThreadKey],
    moves: Mapping[ThreadKey, ThreadKey],
    names: Mapping[ThreadKey, frozenset[str]],
    lost: list[str],
) -> DeletionPlan:
    """Plan to delete threads and to move others to keys that are free by then; those moved to a yard are kept for agents.

    A thread in both is deleted only if it is too damaged to be moved. `lost` gets messages about unreadable parts.
    """
    going: dict[ThreadKey, Move] = {}
    for key, to in moves.items():
        row = engine.store.thread(key)
        try:
            going |= {key: graveyard.moved(Lineage(engine, key), row, to, (*DOWN, *UP))} if row is not None else {}
        except CorruptionError as error:
            if key not in gone:
                raise
            lost.append(_loss_of(key, error))
    left = frozenset(gone) - going.keys()
    same, links = _relinked(engine, left, {key: moves[key] for key in going}, lost)
    agents = [PutRecord(moves[key], DELETED, name, MARK) for key in going for name in sorted(names.get(key, ()))]
    changes = [
        *same,
        *(change for move in going.values() for change in move.leave),
        *(DeleteThread(key) for key in sorted(left)),
        *(change for move in going.values() for change in move.come),
        *graveyard.opened([moves[key] for key in going]),
        *agents,
        *links.changes(),
    ]
    return DeletionPlan(changes, {key: move.numbers for key, move in going.items()})


class Links(NamedTuple):
    """Changes of links: records to remove, by thread, kind and name, and records to put."""

    drop: list[tuple[ThreadKey, str, str]]
    put: list[PutRecord]

    def changes(self) -> list[PutRecord]:
        """Both as changes. A put wins: an id may belong to a thread that goes and to one that comes."""
        found = {place: PutRecord(*place, None) for place in self.drop}
        return list((found | {(record.key, record.kind, record.name): record for record in self.put}).values())


def _relinked(
    engine: Engine, gone: frozenset[ThreadKey], moves: Mapping[ThreadKey, ThreadKey], lost: list[str]
) -> tuple[list[StoreChange], Links]:
    """Expectations for the commit, and the changes of links of threads that go or move."""
    same: dict[ThreadKey, Sequence[StoreChange]] = {}
    links = Links([], [])
    for key in (*gone, *moves):
        try:
            thread = Lineage(engine, key)
            named = derived.named(thread)
            near = [(kind, other) for kind in DOWN for other in derived.below(thread, [kind], named)]
            near += derived.above(thread) if key in moves else _outside(thread, gone)
            touched = {other: [Expect(other, derived.a_frame(thread.at(other)))] for _, other in near}
            halves = _halves(thread, near) if key in moves else []
        except CorruptionError as error:  # a damaged thread can still be deleted
            if key in moves:
                raise
            lost.append(f"thread {key.id!r}: the list of its forks cannot be read, look for them: {error}")
            continue
        same = {**touched, **same, key: derived.unchanged(key, named)}
        near = [(kind, moves.get(other, other)) for kind, other in near if other not in gone]
        links.drop.extend((other, twin_of(kind), name_of(key)) for kind, other in near)
        if key in moves:
            links.put.extend(PutRecord(moves[key], kind, name, MARK) for kind, name in halves)
            links.put.extend(change for kind, other in near for change in derived.link(moves[key], kind, other))
        else:
            _hand_on(key, near, links)
    return [change for changes in same.values() for change in changes], links


def _hand_on(key: ThreadKey, near: list[tuple[str, ThreadKey]], links: Links) -> None:
    """Link what derives from a deleted thread to that thread's own origins, and remove every link to it."""
    below = [other for kind, other in near if kind in DOWN]
    above = [other for kind, other in near if kind in UP]
    links.drop.extend((origin, kind, name_of(key)) for origin in above for kind in DOWN)
    links.drop.extend((origin, NOTED, key.id.partition(SEPARATOR)[2]) for origin in above if SEPARATOR in key.id)
    links.put.extend(change for other in below for origin in above for change in derived.link(other, SOURCE, origin))


def _halves(thread: Lineage, near: list[tuple[str, ThreadKey]]) -> list[tuple[str, str]]:
    """Kind and name of each half link: a thread that this one names, but that does not name it."""
    whole = {(kind, name_of(other)) for kind, other in near}
    named = [(kind, name) for kind in (*DOWN, *UP) for name in sorted(thread.names(kind))]
    return [half for half in named if half not in whole]


def _outside(thread: Lineage, gone: frozenset[ThreadKey]) -> list[tuple[str, ThreadKey]]:
    """The nearest remaining threads that a thread derives from."""
    found, seen, waiting = [], {thread.key}, [thread.key]
    while waiting:
        for kind, origin in derived.above(thread.at(waiting.pop())):
            if origin not in gone:
                found.append((kind, origin))
            elif origin not in seen:
                seen.add(origin)
                waiting.append(origin)
    return found


def _loss_of(key: ThreadKey, error: CorruptionError) -> str:
    return f"thread {key.id!r} was deleted without a copy for its agents' checkpoints, because it is damaged: {error}"
