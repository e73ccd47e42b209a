"""Whose data a thread holds, and erasing it. Touches deleting, derived, removal, companions, engine and below.

A subject is a record beside a thread. What derives from a thread gets its subjects, those of now and those that are
attached later. An erase takes child threads, forks and copies, at any depth, and what was deleted but is kept for a
checkpoint of an agent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from savegame.errors import CorruptionError, InvalidInputError, SavegameError
from savegame.model import ThreadKey, checked_id
from savegame.store import Capability, PutRecord
from savegame.timeline import deleting, derived, graveyard, removal
from savegame.timeline.companions import CHILD, FORK, MARK, SOURCE, SUBJECT, WITH_ERASE
from savegame.timeline.derived import SEPARATOR, Named
from savegame.timeline.engine import Engine
from savegame.timeline.graveyard import home, name_of, named_by
from savegame.timeline.lineage import Lineage
from savegame.waiting.retrying import PLANS, retried

logger = logging.getLogger("savegame")

ROUNDS: Final = 20
"""How often `erase` looks for threads of the subject that were begun while it deleted the others."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What `erase` removed, and what it could not reach.

    `emptied` are the checkpoints of agents that name something of it: a restore cannot bring that back.
    """

    threads: tuple[str, ...]
    unreached: tuple[str, ...]
    emptied: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing was left that the store can reach."""
        return not self.unreached


def attach(thread: Lineage, subjects: tuple[str, ...]) -> None:
    """Say that a thread holds data of these subjects, and so does everything that derives from it."""
    if not subjects:
        raise InvalidInputError("name at least one subject")
    wanted = [checked_id(subject, "a subject") for subject in subjects]

    def attempt() -> None:
        family = derived.family(thread.engine, [thread.key], WITH_ERASE)
        same = [
            change for one, named in family.items() for change in derived.unchanged(one, named, derived.a_frame(thread.at(one)))
        ]
        thread.store.commit([*same, *(PutRecord(one, SUBJECT, name, MARK) for one in family for name in wanted)])

    retried(attempt, tries=PLANS)


def subjects_of(thread: Lineage) -> list[str]:
    """The subjects of a thread, by name."""
    return sorted(thread.names(SUBJECT))


# -- erasing ---------------------------------------------------------------------------------------


def erase(engine: Engine, namespace: str, subject: str, *, dry_run: bool) -> Erased:
    """Delete every thread of a subject and all that derive from them, all or none; what comes meanwhile too."""
    checked_id(subject, "a subject")
    gone: set[str] = set()
    emptied: set[str] = set()
    left: list[str] = []

    def attempt() -> bool:
        family = derived.family(engine, _threads_of(engine, namespace, subject), WITH_ERASE)
        cut_off = list(_cut_off(engine, namespace, family))
        named = _naming(engine, family, cut_off)
        if family and not dry_run:
            left.extend(deleting.take_out(engine, frozenset(family), []).left)
        gone.update(home(key).id for key in family)
        emptied.update(named)
        left.extend(cut_off)
        return bool(family) and not dry_run

    for _ in range(ROUNDS):
        if not retried(attempt, tries=PLANS):
            break
    else:
        left.append(f"new threads of {subject!r} keep appearing; stop their writers, then erase again")
    if not dry_run:
        left.extend(_forget_the_deleted(engine, namespace))
        logger.info("erased %d threads of one subject", len(gone))
    return Erased(tuple(sorted(gone)), tuple(dict.fromkeys(left)), tuple(sorted(emptied)))


def _naming(engine: Engine, family: Mapping[ThreadKey, Named], untold: list[str]) -> set[str]:
    """The checkpoints of agents that name something of these threads, and are not in them; `untold` gets what is damaged."""
    found: set[str] = set()
    for key in family:
        try:
            found |= {naming.checkpoint_id for naming in deleting.namings(engine, key, but=family)}
        except CorruptionError as error:
            untold.append(f"thread {key.id!r}: the agent checkpoints that name it cannot be read: {error}")
    return found


def _forget_the_deleted(engine: Engine, namespace: str) -> tuple[str, ...]:
    """Free what a call that was killed after its commit has left of threads that are gone; what could not be reached."""
    there = set(_every(engine, namespace))
    try:
        words = Capability.SEARCH in engine.store.capabilities
        indexed = engine.store.index().heads(namespace) if words else {}
    except SavegameError as error:  # what was asked for is done: only derived words may be left
        return (f"removed words may stay in the search index until the next search: {error}",)
    return removal.free(engine, [key for name in indexed if (key := ThreadKey(namespace, name)) not in there])


def _threads_of(engine: Engine, namespace: str, subject: str) -> list[ThreadKey]:
    return [key for key in _every(engine, namespace) if subject in Lineage(engine, key).names(SUBJECT)]


def _cut_off(engine: Engine, namespace: str, family: Mapping[ThreadKey, Named]) -> Iterator[str]:
    """Threads that may derive from these although no link says so: parts of exports, and data of earlier versions."""
    if not family:
        return
    ids = {name_of(key) for key in family}
    named = {kind: frozenset().union(*(there[kind] for there in family.values())) - ids for kind in derived.DOWN}
    shared: set[str] = set()
    for key in family:
        try:
            shared.update(derived.external_ids(Lineage(engine, key)))
        except CorruptionError as error:
            yield f"thread {key.id!r}: it is damaged, so copies made by an earlier version cannot be found: {error}"
    for key in _every(engine, namespace):
        if key not in family:
            yield from _suspicions(Lineage(engine, key), ids, named, shared)


def _suspicions(thread: Lineage, ids: set[str], named: Named, shared: set[str]) -> Iterator[str]:
    """Why a thread may derive from those with these ids, which name these and have these checkpoints of a framework."""
    key = thread.key
    for source in sorted(named[FORK] & thread.names(SOURCE) if named[FORK] else ()):
        if name_of(key) not in thread.at(named_by(key, source)).names(FORK):
            yield _untold(key, f"was forked from {source!r}, which is gone and was a fork of an erased thread")
    root = key.id.partition(SEPARATOR)[0]
    if name_of(key) in named[CHILD]:
        yield _untold(key, "was a child of an erased thread")
    elif root != key.id and root in ids:
        yield _untold(key, f"may be a child of an erased thread, {root!r}")
    elif shared:
        try:
            if not shared.isdisjoint(derived.external_ids(thread)):
                yield _untold(key, "shares a framework's checkpoint id with an erased thread, and may be a copy of it")
        except CorruptionError as error:
            yield _untold(key, f"is damaged, and may be a copy of an erased thread ({error})")


def _untold(key: ThreadKey, what: str) -> str:
    return f"thread {key.id!r} {what}: it may hold the same data; look at it, and delete it or attach the subject to it"


def _every(engine: Engine, namespace: str) -> list[ThreadKey]:
    """Every thread, those that were deleted and are kept too."""
    spaces = (namespace, *graveyard.yards(engine, namespace))
    return [ThreadKey(space, thread_id) for space in spaces for thread_id, _ in engine.store.heads(space)]
