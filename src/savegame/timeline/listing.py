"""Every thread of a namespace: by id with its head, or as rows. Touches lineage, engine, model.

Read in pages, so that a namespace may be large and change meanwhile: a thread that exists throughout is listed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from savegame.errors import CorruptionError
from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import FRAMES_AT_ONCE


class Listed(NamedTuple):
    """A thread in a listing: its row and the frame of its head, or the damage found there."""

    id: str
    row: ThreadRow | None
    head: Frame | None
    damage: CorruptionError | None = None


def listed(
    engine: Engine, namespace: str, *, agent: str | None = None, after: str | None = None, page: int = FRAMES_AT_ONCE
) -> Iterator[Listed]:
    """Threads that have a head, by id, read in pages. A damaged thread does not hide the others."""
    store = engine.store
    while True:
        try:
            found = store.threads(namespace, after=after, limit=page, agent=agent)
            heads = store.head_frames(found.items)
        except CorruptionError:
            yield from _one_by_one(engine, namespace, agent, after)
            return
        for row, head in zip(found.items, heads, strict=True):
            if head is not None:
                yield Listed(row.key.id, row, head)
        if found.next is None:
            return
        after = found.next


def _one_by_one(engine: Engine, namespace: str, agent: str | None, after: str | None) -> Iterator[Listed]:
    for thread_id, head_id in engine.store.heads(namespace, agent=agent):
        if head_id is None or thread_id <= (after or ""):
            continue
        try:
            row = engine.store.thread(ThreadKey(namespace, thread_id))
            head = engine.store.head_frames([row])[0] if row is not None and row.head else None
        except CorruptionError as error:
            yield Listed(thread_id, None, None, error)
            continue
        if head is not None:
            yield Listed(thread_id, row, head)


def thread_keys(engine: Engine, namespace: str, thread_id: str | None = None) -> list[ThreadKey]:
    """The keys of all threads of a namespace, or of one. Raises CorruptionError if they cannot be listed."""
    if thread_id is not None:
        return [ThreadKey(namespace, thread_id)]
    return [ThreadKey(namespace, name) for name, _ in engine.store.heads(namespace)]


def thread_rows(
    engine: Engine, namespace: str, damaged: set[str] | None = None, *, thread_id: str | None = None
) -> Iterator[ThreadRow]:
    """The rows of all threads of a namespace that have a checkpoint, even without a head; or of one thread.

    Raises CorruptionError for a damaged row; with `damaged`, adds its id to that set and continues instead.
    """
    for key in thread_keys(engine, namespace, thread_id):
        try:
            row = engine.store.thread(key)
        except CorruptionError:
            if damaged is None:
                raise
            damaged.add(key.id)
            continue
        if row is not None and row.frames:
            yield row
