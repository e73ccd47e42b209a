"""Whose data a thread holds, and erasing it. Touches upkeep, engine and what is below them.

A subject is a record beside a thread. A fork takes its source's subjects along and remembers its source in a record of
its own, so that erasing finds it whatever was pruned or deleted since.
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
MARK: Final = PLAIN + b"\xc3"
"""The value of such a record: only its name matters."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What `erase` removed, and what it could not reach."""

    threads: tuple[str, ...]
    unreached: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every byte left the store."""
        return not self.unreached


def attach(engine: Engine, key: ThreadKey, subjects: tuple[str, ...]) -> None:
    """Say that a thread holds data of these subjects."""
    if not subjects:
        raise InvalidInputError("name at least one subject")
    names = [checked_id(subject, "a subject") for subject in subjects]
    engine.store.commit([PutRecord(key, SUBJECT, name, MARK) for name in names])


def subjects_of(engine: Engine, key: ThreadKey) -> list[str]:
    """The subjects of a thread, by name."""
    return list(_names(engine, key, SUBJECT))


def inherited(engine: Engine, source: ThreadKey, key: ThreadKey) -> list[PutRecord]:
    """What a fork keeps of where it comes from."""
    own = PutRecord(key, SOURCE, source.id, MARK)
    return [own, *(PutRecord(key, SUBJECT, name, MARK) for name in _names(engine, source, SUBJECT))]


def erase(engine: Engine, namespace: str, subject: str) -> Erased:
    """Delete every thread of a subject and all that were forked from them, all or none."""
    checked_id(subject, "a subject")
    sources: dict[str, list[str]] = {}
    found: set[str] = set()
    for thread_id, _ in engine.store.heads(namespace):
        key = ThreadKey(namespace, thread_id)
        sources[thread_id] = list(_names(engine, key, SOURCE))
        if subject in _names(engine, key, SUBJECT):
            found.add(thread_id)
    while forks := {fork for fork, of in sources.items() if fork not in found and not found.isdisjoint(of)}:
        found |= forks
    if not found:
        return Erased((), ())
    keys = [ThreadKey(namespace, thread_id) for thread_id in sorted(found)]
    left = upkeep.delete(engine, keys).left
    logger.info("erased %d threads of one subject", len(keys))
    return Erased(tuple(key.id for key in keys), left)


def _names(engine: Engine, key: ThreadKey, kind: str) -> Iterator[str]:
    return (record.name for record in upkeep.records(engine, key, kind))
