"""Which threads derive from which: forks, copies, and the child threads that a framework keeps for its subgraphs.

A link is a pair of records, one beside each thread, that name each other. It is followed only if both exist, so that a
re-created thread is not mistaken for the deleted one. Links are data: following them does not need the adapter that made
them. The commit that creates the deriving thread writes them. Touches graveyard, companions, lineage, engine and below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import blake3

from savegame.encoding.frames import load_meta
from savegame.errors import ThreadNotFound
from savegame.model import Frame, ThreadKey
from savegame.store import Expect, PutRecord, StoreChange
from savegame.timeline.companions import (
    CHILD,
    FORK,
    MARK,
    PARENT,
    SOURCE,
    SUBJECT,
    WITH_DELETE,
    WRITES,
    Way,
    policy_of,
    twin_of,
)
from savegame.timeline.engine import Engine
from savegame.timeline.graveyard import is_kept, name_of, named_by
from savegame.timeline.lineage import Lineage

T = TypeVar("T")

SEPARATOR: Final = "\u241f"
"""Stands between the id of a LangGraph thread and a namespace in it, in the id of the thread for that namespace."""

NOTED: Final = "namespaces"
"""The kind of records that earlier versions wrote for the namespaces of a LangGraph thread, instead of links."""

DOWN: Final = (FORK, CHILD)
UP: Final = (SOURCE, PARENT)

Named = Mapping[str, frozenset[str]]
"""The names of the threads that a thread lists as deriving from it, by the kind of link; half links too."""


def named(thread: Lineage) -> dict[str, frozenset[str]]:
    """The names that a thread lists as deriving from it."""
    return {kind: thread.names(kind) for kind in DOWN}


def linked(thread: Lineage, kind: str, there: Collection[str] | None = None) -> list[ThreadKey]:
    """The threads at the other ends of a thread's links of a kind; `there` are the names, if known."""
    found = thread.names(kind) if there is None else there
    others = (named_by(thread.key, name) for name in sorted(found))
    return [other for other in others if name_of(thread.key) in thread.at(other).names(twin_of(kind))]


def below(thread: Lineage, kinds: Collection[str], there: Named) -> list[ThreadKey]:
    """The threads that derive from a thread directly, by links of these kinds."""
    found = [other for kind in kinds for other in linked(thread, kind, there[kind])]
    return found + (_noted_children(thread) if CHILD in kinds else [])


def above(thread: Lineage) -> list[tuple[str, ThreadKey]]:
    """The threads that a thread derives from directly, each with the kind of its own half of the link."""
    found = [(kind, other) for kind in UP for other in linked(thread, kind)]
    return found + [(PARENT, parent) for parent in _noting_parents(thread)]


def parent_of(thread: Lineage) -> str | None:
    """The id of the thread whose child a thread is."""
    named_parents = thread.names(PARENT)
    parents = [named_by(thread.key, name) for name in sorted(named_parents)] or _noting_parents(thread)
    return parents[0].id if parents else None


def family(
    engine: Engine,
    keys: Collection[ThreadKey],
    kinds: Collection[str],
    only: Callable[[ThreadKey], bool] = lambda key: True,
) -> dict[ThreadKey, Named]:
    """Threads and all that derive from them by links of these kinds, each with the names that it lists.

    Only links to threads that satisfy `only` are followed.
    """
    found: dict[ThreadKey, Named] = {}
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in found:
            thread = Lineage(engine, key)
            found[key] = named(thread)
            waiting += filter(only, below(thread, kinds, found[key]))
    return found


def unchanged(key: ThreadKey, there: Named, frame: tuple[int, str] | None = None) -> list[StoreChange]:
    """Expectations that fail a commit if other threads derive from this one by now, or it was re-created."""
    return [Expect(key, frame, kind, found) for kind, found in there.items()]


def a_frame(thread: Lineage) -> tuple[int, str] | None:
    """A frame that distinguishes a thread from one re-created under its id; None if it has no frames."""
    row = thread.row()
    if row is not None and row.head_id is not None:
        return row.head, row.head_id
    frames = thread.store.frames(thread.key, limit=1)
    return (frames[0].seq, frames[0].id) if frames else None


def with_children(engine: Engine, keys: Collection[ThreadKey], *, deleted: bool = False) -> dict[ThreadKey, Named]:
    """Threads and their child threads: the live ones, or the `deleted` ones that are kept for agents."""
    return family(engine, keys, WITH_DELETE, lambda child: is_kept(child) == deleted)


# -- making links ----------------------------------------------------------------------------------


def link(key: ThreadKey, kind: str, other: ThreadKey) -> list[PutRecord]:
    """Both halves of a link: `key` names `other` by a record of this kind."""
    return [PutRecord(key, kind, name_of(other), MARK), PutRecord(other, twin_of(kind), name_of(key), MARK)]


def inherited(source: Lineage, at: Frame, key: ThreadKey) -> list[StoreChange]:
    """Changes that make `key` a fork of `source` at a frame: the link, and the records that go along."""
    return _derives(key, SOURCE, source, (at.seq, at.id))


def ties(thread: Lineage, origins: Mapping[str, ThreadKey]) -> list[StoreChange]:
    """Changes that make a thread derive from others, by the kind of its half of the link; existing links are skipped.

    A parent need not have checkpoints yet. Raises ThreadNotFound for a source without any.
    """
    changes: list[StoreChange] = []
    for kind, origin in origins.items():
        if origin not in linked(thread, kind, thread.names(kind) & {name_of(origin)}):
            source = thread.at(origin)
            frame = a_frame(source)
            if frame is None and kind == SOURCE:
                raise ThreadNotFound(
                    f"thread not found: {origin.id!r}, the source to record for {thread.id!r}, has no checkpoints"
                )
            changes += _derives(thread.key, kind, source, frame)
    return changes


def tying(
    thread: Lineage, origins: Mapping[str, ThreadKey], edit: Callable[[Any], T]
) -> tuple[Callable[[Any], T], list[StoreChange]]:
    """An edit, and the changes that link its thread to those it derives from, which each call of the edit reads again."""
    changes: list[StoreChange] = []

    def tying_edit(node: Any) -> T:
        changes[:] = ties(thread, origins)
        return edit(node)

    return (tying_edit if origins else edit), changes


def held(thread: Lineage, origins: Mapping[str, ThreadKey]) -> list[StoreChange]:
    """Like `ties`, for a commit that adds no checkpoint: it fails if the existing links are gone by then."""
    there = {kind: thread.names(kind) for kind in origins}
    return [*unchanged(thread.key, there), *ties(thread, origins)]


def _derives(key: ThreadKey, kind: str, origin: Lineage, frame: tuple[int, str] | None) -> list[StoreChange]:
    """The link, and what goes along; fails if the origin was re-created or its subjects changed meanwhile."""
    kinds = [its for its in origin.kinds() if policy_of(its).fork is Way.CARRY]
    carried = [record for its in kinds for record in origin.records(its)]
    subjects = frozenset(record.name for record in carried if record.kind == SUBJECT)
    same = Expect(origin.key, frame, SUBJECT, subjects)
    return [same, *link(key, kind, origin.key), *(PutRecord(key, *record) for record in carried)]


# -- children without links ------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def framework_id(thread_id: str, namespace: str, external_id: str) -> str:
    """The id of the checkpoint that LangGraph calls `external_id`, in a namespace of a LangGraph thread."""
    return blake3.blake3("\0".join((thread_id, namespace, external_id)).encode()).hexdigest(length=16)


def unescaped(root: str) -> str:
    """LangGraph's id of a thread, from our id, in which literal separators are escaped."""
    return root.replace("\u241b1", SEPARATOR).replace("\u241b0", "\u241b")


def _noted_children(thread: Lineage) -> list[ThreadKey]:
    """The children that an earlier version noted beside a thread, if they certainly are its children."""
    names = sorted(thread.names(NOTED))
    noted = (ThreadKey(thread.key.namespace, f"{thread.id}{SEPARATOR}{name}") for name in names)
    return [child for child in noted if _is_namespace(thread.at(child))]


def _noting_parents(thread: Lineage) -> list[ThreadKey]:
    """The thread beside which an earlier version noted this one, if it certainly is its parent."""
    root, _, namespace = thread.id.partition(SEPARATOR)
    parent = ThreadKey(thread.key.namespace, root)
    noted = bool(namespace) and namespace in thread.at(parent).names(NOTED)
    return [parent] if noted and _is_namespace(thread) else []


def _is_namespace(thread: Lineage) -> bool:
    """Whether LangGraph saved a thread: a checkpoint id encodes its place, or it has nothing but pending writes.

    Threads with links do not need this.
    """
    root, _, namespace = thread.id.partition(SEPARATOR)
    kinds = thread.kinds()
    if PARENT in kinds:
        return False
    metas = ((frame.id, load_meta(frame.meta).external_id) for frame in thread.everything())
    matches = (own == framework_id(unescaped(root), namespace, other) for own, other in metas if other is not None)
    row = thread.row()
    return any(matches) if row is not None and row.frames else any(kind.startswith(WRITES) for kind in kinds)


def external_ids(thread: Lineage) -> Iterator[str]:
    """A framework's ids of a thread's checkpoints, newest first; empty if the oldest has none."""
    oldest = thread.store.frames(thread.key, limit=1)
    if oldest and load_meta(oldest[0].meta).external_id is not None:
        found = (load_meta(frame.meta).external_id for frame in thread.everything())
        yield from (external_id for external_id in found if external_id is not None)
