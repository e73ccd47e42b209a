"""Whose data a thread holds, and erasing it. Touches deleting, derived, removal, companions, engine and below.

A subject is a record beside a thread. Threads that derive from it get its subjects, including those attached later. An erase
includes child threads, forks and copies, at any depth, and deleted threads that are kept for an agent checkpoint.
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
"""Maximum number of rounds in which `erase` looks for threads of the subject that were created meanwhile."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What `erase` removed, and what it could not reach.

    `emptied` lists the agent checkpoints that name erased data: restoring them cannot bring it back.
    """

    threads: tuple[str, ...]
    unreached: tuple[str, ...]
    emptied: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether everything within reach of the store was erased."""
        return not self.unreached


def attach(thread: Lineage, subjects: tuple[str, ...]) -> None:
    """Record that a thread, and everything that derives from it, holds data of these subjects."""
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
    """The subjects of a thread, sorted."""
    return sorted(thread.names(SUBJECT))


# -- erasing ---------------------------------------------------------------------------------------


def erase(engine: Engine, namespace: str, subject: str, *, dry_run: bool) -> Erased:
    """Delete every thread of a subject and all that derive from them, all or none; also those created meanwhile."""
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


def _naming(engine: Engine, family: Mapping[ThreadKey, Named], left: list[str]) -> set[str]:
    """The agent checkpoints outside these threads that name one of their checkpoints; `left` gets messages about damage."""
    found: set[str] = set()
    for key in family:
        try:
            found |= {naming.checkpoint_id for naming in deleting.namings(engine, key, but=family)}
        except CorruptionError as error:
            left.append(f"thread {key.id!r}: the agent checkpoints that name it cannot be read: {error}")
    return found


def _forget_the_deleted(engine: Engine, namespace: str) -> tuple[str, ...]:
    """Free what a killed call left of deleted threads in the search index; returns what could not be reached."""
    there = set(_every(engine, namespace))
    try:
        words = Capability.SEARCH in engine.store.capabilities
        indexed = engine.store.index().heads(namespace) if words else {}
    except SavegameError as error:  # the erase is done: only derived words may remain
        return (f"removed words may stay in the search index until the next search: {error}",)
    return removal.free(engine, [key for name in indexed if (key := ThreadKey(namespace, name)) not in there])


def _threads_of(engine: Engine, namespace: str, subject: str) -> list[ThreadKey]:
    return [key for key in _every(engine, namespace) if subject in Lineage(engine, key).names(SUBJECT)]


def _cut_off(engine: Engine, namespace: str, family: Mapping[ThreadKey, Named]) -> Iterator[str]:
    """Messages about threads that may derive from these without links: parts of exports, data of earlier versions."""
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
    relatives = _relatives(engine, family) if shared else set()
    for key in _every(engine, namespace):
        if key not in family:
            yield from _suspicions(Lineage(engine, key), ids, named, set() if key in relatives else shared)


def _relatives(engine: Engine, family: Mapping[ThreadKey, Named]) -> set[ThreadKey]:
    """The threads that links show to share an origin with these, which explains what they have in common."""
    found: set[ThreadKey] = set()
    waiting = list(family)
    while waiting:
        try:
            origins = {origin for _, origin in derived.above(Lineage(engine, waiting.pop()))} - found - family.keys()
            found |= derived.family(engine, origins, WITH_ERASE).keys()
        except CorruptionError:  # what a damaged one leads to stays suspicious
            continue
        waiting += origins
    return found


def _suspicions(thread: Lineage, ids: set[str], named: Named, shared: set[str]) -> Iterator[str]:
    """Why a thread may derive from the threads with these ids, which list `named` and share these framework ids."""
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
    """Every thread, including deleted ones that are kept."""
    spaces = (namespace, *graveyard.yards(engine, namespace))
    return [ThreadKey(space, thread_id) for space in spaces for thread_id, _ in engine.store.heads(space)]
