"""Whose data a thread holds, and erasing it. Touches upkeep, engine and what is below them.

A subject is a record beside a thread. A fork gets its source's subjects, those of now and those that are attached later:
source and fork name each other in records of theirs, and only if both do is the one followed to the other, so that a
thread that was deleted and made anew is not taken for the former one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from savegame import upkeep
from savegame.engine import Engine
from savegame.errors import InvalidInputError
from savegame.frames import PLAIN
from savegame.model import ThreadKey, checked_id
from savegame.store import PutRecord

logger = logging.getLogger("savegame")

SUBJECT: Final = "subject"
SOURCE: Final = "forked from"
FORK: Final = "forked as"
MARK: Final = PLAIN + b"\xc3"
"""The value of such a record: only its name matters."""


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
    engine.store.commit([PutRecord(one, SUBJECT, name, MARK) for one in _with_forks(engine, [key]) for name in names])


def subjects_of(engine: Engine, key: ThreadKey) -> list[str]:
    """The subjects of a thread, by name."""
    return list(_names(engine, key, SUBJECT))


def inherited(engine: Engine, source: ThreadKey, key: ThreadKey) -> list[PutRecord]:
    """What a fork and its source keep of each other, and the subjects that go along."""
    links = [PutRecord(key, SOURCE, source.id, MARK), PutRecord(source, FORK, key.id, MARK)]
    return links + [PutRecord(key, SUBJECT, name, MARK) for name in _names(engine, source, SUBJECT)]


def erase(engine: Engine, namespace: str, subject: str, *, dry_run: bool) -> Erased:
    """Delete every thread of a subject and all that were forked from them, all or none; what comes meanwhile too."""
    checked_id(subject, "a subject")
    gone: list[str] = []
    left: tuple[str, ...] = ()
    while keys := _with_forks(engine, _threads_of(engine, namespace, subject)):
        gone += [key.id for key in keys]
        if dry_run:
            return Erased(tuple(sorted(gone)), ())
        left += upkeep.delete(engine, keys).left
    logger.info("erased %d threads of one subject", len(gone))
    return Erased(tuple(sorted(gone)), tuple(dict.fromkeys(left)))


def _threads_of(engine: Engine, namespace: str, subject: str) -> list[ThreadKey]:
    keys = (ThreadKey(namespace, thread_id) for thread_id, _ in engine.store.heads(namespace))
    return [key for key in keys if subject in _names(engine, key, SUBJECT)]


def _with_forks(engine: Engine, keys: list[ThreadKey]) -> list[ThreadKey]:
    """Threads, and all that were forked from them."""
    found = dict.fromkeys(keys)
    waiting = list(keys)
    while waiting:
        source = waiting.pop()
        forks = (ThreadKey(source.namespace, name) for name in _names(engine, source, FORK))
        new = [key for key in forks if key not in found and source.id in _names(engine, key, SOURCE)]
        found.update(dict.fromkeys(new))
        waiting += new
    return list(found)


def _names(engine: Engine, key: ThreadKey, kind: str) -> Iterator[str]:
    return (record.name for record in upkeep.records(engine, key, kind))
