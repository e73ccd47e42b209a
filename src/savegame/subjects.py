"""Whose data a thread holds, which threads were forked from it, deleting and erasing. Touches upkeep, engine and below.

A subject is a record beside a thread. A fork gets its source's subjects, those of now and those that are attached later:
source and fork name each other in records of theirs, and only if both do is the one followed to the other, so that a
thread that was deleted and made anew is not taken for the former one. A thread that is deleted hands its links on: what was
forked from it counts as forked from what it was forked from. All of that is written in the commit that forks, attaches or
deletes, which fails, and is planned again, if one of the threads is not what it was when its links were read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from savegame import upkeep
from savegame.engine import Engine
from savegame.errors import CorruptionError, InvalidInputError, SavegameError
from savegame.frames import PLAIN
from savegame.model import Frame, ThreadKey, checked_id
from savegame.retrying import PLANS, retried
from savegame.store import Capability, DeleteThread, Expect, PutRecord, StoreChange
from savegame.upkeep import FORK, SOURCE, SUBJECT

logger = logging.getLogger("savegame")

MARK: Final = PLAIN + b"\xc3"
"""The value of such a record: only its name matters."""
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
    """Say that a thread holds data of these subjects, and so do all that were forked from it."""
    if not subjects:
        raise InvalidInputError("name at least one subject")
    names = [checked_id(subject, "a subject") for subject in subjects]

    def attempt() -> None:
        family = _with_forks(engine, [key])
        same = [Expect(one, _a_frame(engine, one), FORK, forks) for one, forks in family.items()]
        engine.store.commit([*same, *(PutRecord(one, SUBJECT, name, MARK) for one in family for name in names)])

    retried(attempt, tries=PLANS)


def subjects_of(engine: Engine, key: ThreadKey) -> list[str]:
    """The subjects of a thread, by name."""
    return sorted(_names(engine, key, SUBJECT))


def inherited(engine: Engine, source: ThreadKey, at: Frame, key: ThreadKey) -> list[StoreChange]:
    """What a fork and its source keep of each other, and the subjects that go along; `at` is where it is forked."""
    subjects = _names(engine, source, SUBJECT)
    links = [PutRecord(key, SOURCE, source.id, MARK), PutRecord(source, FORK, key.id, MARK)]
    same = Expect(source, (at.seq, at.id), SUBJECT, subjects)
    return [same, *links, *(PutRecord(key, SUBJECT, name, MARK) for name in sorted(subjects))]


# -- deleting --------------------------------------------------------------------------------------


def delete(engine: Engine, keys: Sequence[ThreadKey]) -> Deleted:
    """Delete threads with everything beside them, all or none; their links are handed on in the same commit."""
    return retried(partial(_delete, engine, keys), tries=PLANS)


def _delete(engine: Engine, keys: Sequence[ThreadKey]) -> Deleted:
    rows = [engine.store.thread(key) for key in keys]
    handed, lost = _handed_on(engine, frozenset(keys))
    engine.store.commit([*handed, *(DeleteThread(key) for key in keys)])
    for key in keys:
        engine.cache.forget(key)
    for what in lost:
        logger.warning("%s", what)
    return Deleted(sum(row is not None and row.frames > 0 for row in rows), (*lost, *upkeep.freed(engine, keys)))


def _handed_on(engine: Engine, gone: frozenset[ThreadKey]) -> tuple[list[StoreChange], list[str]]:
    """What links the forks of threads that go to what those were forked from, and what could not be read for that.

    Nothing that stays names a thread that goes.
    """
    same: dict[ThreadKey, StoreChange] = {}
    links: dict[tuple[ThreadKey, str, str], bytes | None] = {}
    lost: list[str] = []
    for key in gone:
        try:
            named = _names(engine, key, FORK)
            forks = [fork for fork in _forks(engine, key, named) if fork not in gone]
            outer = _sources_outside(engine, key, gone)
            touched = {key: Expect(key, None, FORK, named)} | {
                one: Expect(one, _a_frame(engine, one)) for one in (*forks, *outer)
            }
        except CorruptionError as error:  # the damaged thread can be deleted nevertheless
            lost.append(f"thread {key.id!r}: which threads were forked from it cannot be read, look at them: {error}")
            continue
        same |= touched
        links |= {(fork, SOURCE, key.id): None for fork in forks} | {(source, FORK, key.id): None for source in outer}
        links |= {(fork, SOURCE, source.id): MARK for fork in forks for source in outer}
        links |= {(source, FORK, fork.id): MARK for fork in forks for source in outer}
    return [*same.values(), *(PutRecord(*place, value) for place, value in links.items())], lost


def _sources_outside(engine: Engine, key: ThreadKey, gone: frozenset[ThreadKey]) -> list[ThreadKey]:
    """The nearest threads that stay, among those that a thread was forked from."""
    found, seen, waiting = [], {key}, [key]
    while waiting:
        for source in _sources(engine, waiting.pop()):
            if source not in gone:
                found.append(source)
            elif source not in seen:
                seen.add(source)
                waiting.append(source)
    return found


# -- erasing ---------------------------------------------------------------------------------------


def erase(engine: Engine, namespace: str, subject: str, *, dry_run: bool) -> Erased:
    """Delete every thread of a subject and all that were forked from them, all or none; what comes meanwhile too."""
    checked_id(subject, "a subject")
    gone: list[str] = []
    left: list[str] = []

    def attempt() -> bool:
        family = _with_forks(engine, _threads_of(engine, namespace, subject))
        cut_off = _cut_off(engine, namespace, family)
        if family and not dry_run:
            left.extend(_delete(engine, list(family)).left)
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
    return [key for key in _every(engine, namespace) if subject in _names(engine, key, SUBJECT)]


def _cut_off(engine: Engine, namespace: str, family: dict[ThreadKey, frozenset[str]]) -> list[str]:
    """Threads that may derive from these, by way of one that is gone and handed no links on, as earlier versions deleted."""
    lost = {name for key, names in family.items() for name in names if ThreadKey(namespace, name) not in family}
    if not lost:
        return []
    return [
        f"thread {key.id!r} was forked from {source!r}, which is gone and was a fork of an erased thread: whether it holds the "
        f"same data cannot be told; look at it, and delete it or attach the subject to it"
        for key in _every(engine, namespace)
        if key not in family
        for source in sorted(lost & _names(engine, key, SOURCE))
        if key.id not in _names(engine, ThreadKey(namespace, source), FORK)
    ]


# -- links -----------------------------------------------------------------------------------------


def _with_forks(engine: Engine, keys: list[ThreadKey]) -> dict[ThreadKey, frozenset[str]]:
    """Threads and all that were forked from them, each with the names of its own forks, also of those that are gone."""
    found: dict[ThreadKey, frozenset[str]] = {}
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in found:
            found[key] = _names(engine, key, FORK)
            waiting += _forks(engine, key, found[key])
    return found


def _forks(engine: Engine, key: ThreadKey, names: frozenset[str]) -> list[ThreadKey]:
    """Those of the forks that a thread names which name it as their source."""
    forks = (ThreadKey(key.namespace, name) for name in sorted(names))
    return [fork for fork in forks if key.id in _names(engine, fork, SOURCE)]


def _sources(engine: Engine, key: ThreadKey) -> list[ThreadKey]:
    """Those of the sources that a thread names which name it as their fork: one, unless copies have met."""
    sources = (ThreadKey(key.namespace, name) for name in sorted(_names(engine, key, SOURCE)))
    return [source for source in sources if key.id in _names(engine, source, FORK)]


def _a_frame(engine: Engine, key: ThreadKey) -> tuple[int, str] | None:
    """A frame that tells a thread from one that is made anew under its id; None if it has none."""
    row = engine.store.thread(key)
    if row is not None and row.head_id is not None:
        return row.head, row.head_id
    frames = engine.store.frames(key, limit=1)
    return (frames[0].seq, frames[0].id) if frames else None


def _names(engine: Engine, key: ThreadKey, kind: str) -> frozenset[str]:
    return frozenset(record.name for record in upkeep.records(engine, key, kind))


def _every(engine: Engine, namespace: str) -> list[ThreadKey]:
    return [ThreadKey(namespace, thread_id) for thread_id, _ in engine.store.heads(namespace)]
