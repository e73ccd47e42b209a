"""Whose data a thread holds, deleting and erasing. Touches derived, upkeep, beside, engine and below.

A subject is a record beside a thread. What derives from a thread gets its subjects, those of now and those that are
attached later. A delete takes child threads along; an erase also takes forks and copies, at any depth. A thread that is
deleted hands its links on: what was forked from it counts as forked from what it derived from itself. All of that is
written in the commit that attaches or deletes, which fails, and is planned again, if one of the threads is not what it was
when its links were read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from savegame import derived, upkeep
from savegame.beside import CHILD, FORK, MARK, SOURCE, SUBJECT, WITH_DELETE, WITH_ERASE
from savegame.derived import NOTED, SEPARATOR, Named
from savegame.engine import Engine
from savegame.errors import CorruptionError, InvalidInputError, SavegameError
from savegame.model import ThreadKey, checked_id
from savegame.retrying import PLANS, retried
from savegame.store import Capability, DeleteThread, Expect, PutRecord, StoreChange

logger = logging.getLogger("savegame")

ROUNDS: Final = 20
"""How often `erase` looks for threads of the subject that were begun while it deleted the others."""


class Deleted(NamedTuple):
    """How many threads with checkpoints were deleted, and what could not be reached."""

    threads: int
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Erased:
    """What `erase` removed, and what it could not reach."""

    threads: tuple[str, ...]
    unreached: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing was left that the store can reach."""
        return not self.unreached


def attach(engine: Engine, key: ThreadKey, subjects: tuple[str, ...]) -> None:
    """Say that a thread holds data of these subjects, and so does everything that derives from it."""
    if not subjects:
        raise InvalidInputError("name at least one subject")
    wanted = [checked_id(subject, "a subject") for subject in subjects]

    def attempt() -> None:
        family = derived.family(engine, [key], WITH_ERASE)
        same = [
            change for one, named in family.items() for change in derived.unchanged(one, named, derived.a_frame(engine, one))
        ]
        engine.store.commit([*same, *(PutRecord(one, SUBJECT, name, MARK) for one in family for name in wanted)])

    retried(attempt, tries=PLANS)


def subjects_of(engine: Engine, key: ThreadKey) -> list[str]:
    """The subjects of a thread, by name."""
    return sorted(derived.names(engine, key, SUBJECT))


# -- deleting --------------------------------------------------------------------------------------


def delete(engine: Engine, keys: Collection[ThreadKey]) -> Deleted:
    """Delete threads with everything beside them and their child threads, all or none; links are handed on."""

    def attempt() -> Deleted:
        lost: list[str] = []
        return _delete(engine, _with_children(engine, keys, lost), lost)

    return retried(attempt, tries=PLANS)


def _with_children(engine: Engine, keys: Collection[ThreadKey], lost: list[str]) -> frozenset[ThreadKey]:
    """Threads and their child threads; `lost` gets what cannot be read of that."""
    found: set[ThreadKey] = set()
    for key in keys:
        try:
            found |= derived.family(engine, [key], WITH_DELETE).keys()
        except CorruptionError as error:  # the damaged thread can be deleted nevertheless
            found.add(key)
            lost.append(f"thread {key.id!r}: its child threads cannot be read and may be left, look for them: {error}")
    return frozenset(found)


def _delete(engine: Engine, keys: frozenset[ThreadKey], lost: list[str]) -> Deleted:
    rows = [engine.store.thread(key) for key in keys]
    handed = _handed_on(engine, keys, lost)
    engine.store.commit([*handed, *(DeleteThread(key) for key in sorted(keys))])
    for key in keys:
        engine.cache.forget(key)
    for what in lost:
        logger.warning("%s", what)
    return Deleted(sum(row is not None and row.frames > 0 for row in rows), (*lost, *upkeep.freed(engine, sorted(keys))))


def _handed_on(engine: Engine, gone: frozenset[ThreadKey], lost: list[str]) -> list[StoreChange]:
    """What links the forks of threads that go to what those derived from; `lost` gets what could not be read for that.

    Nothing that stays names a thread that goes.
    """
    same: dict[ThreadKey, list[StoreChange]] = {}
    links: dict[tuple[ThreadKey, str, str], bytes | None] = {}
    for key in gone:
        try:
            named = derived.named(engine, key)
            forks = [fork for fork in derived.linked(engine, key, FORK, named[FORK]) if fork not in gone]
            outer = _outside(engine, key, gone)
            touched = {key: derived.unchanged(key, named)}
            touched |= {one: [Expect(one, derived.a_frame(engine, one))] for one in (*forks, *outer)}
        except CorruptionError as error:  # the damaged thread can be deleted nevertheless
            lost.append(f"thread {key.id!r}: which threads were forked from it cannot be read, look at them: {error}")
            continue
        same |= touched
        links |= {(fork, SOURCE, key.id): None for fork in forks}
        links |= {(origin, kind, key.id): None for origin in outer for kind in (FORK, CHILD)}
        links |= {(origin, NOTED, key.id.partition(SEPARATOR)[2]): None for origin in outer if SEPARATOR in key.id}
        new = [change for fork in forks for origin in outer for change in derived.link(fork, SOURCE, origin)]
        links |= {(change.key, change.kind, change.name): change.value for change in new}
    return [
        *(change for changes in same.values() for change in changes),
        *(PutRecord(*at, value) for at, value in links.items()),
    ]


def _outside(engine: Engine, key: ThreadKey, gone: frozenset[ThreadKey]) -> list[ThreadKey]:
    """The nearest threads that stay, among those that a thread derives from."""
    found, seen, waiting = [], {key}, [key]
    while waiting:
        for origin in derived.above(engine, waiting.pop()):
            if origin not in gone:
                found.append(origin)
            elif origin not in seen:
                seen.add(origin)
                waiting.append(origin)
    return found


# -- erasing ---------------------------------------------------------------------------------------


def erase(engine: Engine, namespace: str, subject: str, *, dry_run: bool) -> Erased:
    """Delete every thread of a subject and all that derive from them, all or none; what comes meanwhile too."""
    checked_id(subject, "a subject")
    gone: list[str] = []
    left: list[str] = []

    def attempt() -> bool:
        family = derived.family(engine, _threads_of(engine, namespace, subject), WITH_ERASE)
        cut_off = list(_cut_off(engine, namespace, family))
        if family and not dry_run:
            left.extend(_delete(engine, frozenset(family), []).left)
        gone.extend(key.id for key in family)
        left.extend(cut_off)
        return bool(family) and not dry_run

    for _ in range(ROUNDS):
        if not retried(attempt, tries=PLANS):
            break
    else:
        left.append(f"threads of {subject!r} keep being begun; stop what begins them, and erase again")
    if not dry_run:
        left.extend(_forget_the_deleted(engine, namespace))
        logger.info("erased %d threads of one subject", len(gone))
    return Erased(tuple(sorted(set(gone))), tuple(dict.fromkeys(left)))


def _forget_the_deleted(engine: Engine, namespace: str) -> tuple[str, ...]:
    """Free what a call that was killed after its commit has left of threads that are gone; what could not be reached."""
    there = set(_every(engine, namespace))
    try:
        words = Capability.SEARCH in engine.store.capabilities
        indexed = engine.store.index().heads(namespace) if words else {}
    except SavegameError as error:  # what was asked for is done: only derived words may be left
        return (f"removed words may stay in the search index until the next search: {error}",)
    return upkeep.freed(engine, [key for name in indexed if (key := ThreadKey(namespace, name)) not in there])


def _threads_of(engine: Engine, namespace: str, subject: str) -> list[ThreadKey]:
    return [key for key in _every(engine, namespace) if subject in derived.names(engine, key, SUBJECT)]


def _cut_off(engine: Engine, namespace: str, family: Mapping[ThreadKey, Named]) -> Iterator[str]:
    """Threads that may derive from these although no link says so: parts of exports, and data of earlier versions."""
    if not family:
        return
    others = [key for key in _every(engine, namespace) if key not in family]
    ids = {key.id for key in family}
    named = {kind: frozenset().union(*(there[kind] for there in family.values())) - ids for kind in derived.DOWN}
    shared = {found for key in family for found in derived.external_ids(engine, key)}
    for key in others:
        sources = named[FORK] & derived.names(engine, key, SOURCE) if named[FORK] else ()
        for source in sorted(sources):
            if key.id not in derived.names(engine, ThreadKey(namespace, source), FORK):
                yield _untold(key, f"was forked from {source!r}, which is gone and was a fork of an erased thread")
        root = key.id.partition(SEPARATOR)[0]
        if key.id in named[CHILD] or (root != key.id and root in ids):
            yield _untold(
                key, f"may be a child of an erased thread, {root!r}" if root in ids else "was a child of an erased thread"
            )
        elif shared and not shared.isdisjoint(derived.external_ids(engine, key)):
            yield _untold(
                key, "has a checkpoint of the same name in its framework as an erased thread, and may be a copy of it"
            )


def _untold(key: ThreadKey, what: str) -> str:
    return (
        f"thread {key.id!r} {what}: whether it holds the same data cannot be told; look at it, and delete it or attach the "
        f"subject to it"
    )


def _every(engine: Engine, namespace: str) -> list[ThreadKey]:
    return [ThreadKey(namespace, thread_id) for thread_id, _ in engine.store.heads(namespace)]
