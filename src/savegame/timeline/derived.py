"""Which threads derive from which: forks, copies, and the child threads that a framework keeps for its subgraphs.

A link is a pair of records, one beside each thread, that name each other. It is followed only if both are there, so that a
thread that was deleted and made again is not mistaken for the former one. Links are data: following them needs nothing of
the adapter that made them. They are written in the commit that makes the thread which derives.
Touches graveyard, upkeep, beside, lineage, engine and below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import blake3

from savegame.encoding.frames import load_meta
from savegame.errors import ThreadNotFound
from savegame.model import Frame, ThreadKey
from savegame.store import Expect, PutRecord, StoreChange
from savegame.timeline import upkeep
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
from savegame.timeline.lineage import everything

SEPARATOR: Final = "\u241f"
"""Stands between the id of a LangGraph thread and a namespace in it, in the id of the thread for that namespace."""

NOTED: Final = "namespaces"
"""The kind of records by which earlier versions noted the namespaces of a LangGraph thread, instead of links."""

DOWN: Final = (FORK, CHILD)
UP: Final = (SOURCE, PARENT)

Named = Mapping[str, frozenset[str]]
"""What a thread names as deriving from it, by the kind of link; halves of links too."""


def names(engine: Engine, key: ThreadKey, kind: str) -> frozenset[str]:
    """The names of a thread's records of a kind."""
    return frozenset(record.name for record in upkeep.records(engine, key, kind))


def named(engine: Engine, key: ThreadKey) -> dict[str, frozenset[str]]:
    """What a thread names as deriving from it."""
    return {kind: names(engine, key, kind) for kind in DOWN}


def linked(engine: Engine, key: ThreadKey, kind: str, there: Collection[str] | None = None) -> list[ThreadKey]:
    """The threads at the other ends of a thread's links of a kind; `there` are the names, if they are known."""
    found = names(engine, key, kind) if there is None else there
    others = (named_by(key, name) for name in sorted(found))
    return [other for other in others if name_of(key) in names(engine, other, twin_of(kind))]


def below(engine: Engine, key: ThreadKey, kinds: Collection[str], there: Named) -> list[ThreadKey]:
    """The threads that derive from a thread directly, by links of these kinds."""
    found = [other for kind in kinds for other in linked(engine, key, kind, there[kind])]
    return found + (_noted_children(engine, key) if CHILD in kinds else [])


def above(engine: Engine, key: ThreadKey) -> list[tuple[str, ThreadKey]]:
    """The threads that a thread derives from directly, each with the kind of its own half of the link."""
    found = [(kind, other) for kind in UP for other in linked(engine, key, kind)]
    return found + [(PARENT, parent) for parent in _noting_parents(engine, key)]


def family(
    engine: Engine,
    keys: Collection[ThreadKey],
    kinds: Collection[str],
    only: Callable[[ThreadKey], bool] = lambda key: True,
) -> dict[ThreadKey, Named]:
    """Threads and all that derive from them by links of these kinds, each with what it names.

    Links to other threads than `only` says are not followed.
    """
    found: dict[ThreadKey, Named] = {}
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in found:
            found[key] = named(engine, key)
            waiting += filter(only, below(engine, key, kinds, found[key]))
    return found


def unchanged(key: ThreadKey, there: Named, frame: tuple[int, str] | None = None) -> list[StoreChange]:
    """Refuses a commit that was planned for a thread if something else derives from it by now, or it was made again."""
    return [Expect(key, frame, kind, found) for kind, found in there.items()]


def a_frame(engine: Engine, key: ThreadKey) -> tuple[int, str] | None:
    """A frame that tells a thread from one that is made again under its id; None if it has none."""
    row = engine.store.thread(key)
    if row is not None and row.head_id is not None:
        return row.head, row.head_id
    frames = engine.store.frames(key, limit=1)
    return (frames[0].seq, frames[0].id) if frames else None


def with_children(engine: Engine, keys: Collection[ThreadKey], *, kept: bool = False) -> dict[ThreadKey, Named]:
    """Threads and their child threads: those that are there, or those that were deleted and are `kept`."""
    return family(engine, keys, WITH_DELETE, lambda child: is_kept(child) == kept)


# -- making links ----------------------------------------------------------------------------------


def link(key: ThreadKey, kind: str, other: ThreadKey) -> list[PutRecord]:
    """Both halves of a link: `key` names `other` by a record of this kind."""
    return [PutRecord(key, kind, name_of(other), MARK), PutRecord(other, twin_of(kind), name_of(key), MARK)]


def inherited(engine: Engine, source: ThreadKey, at: Frame, key: ThreadKey) -> list[StoreChange]:
    """What makes `key` a fork of `source` at a frame: the link, and the records that go along."""
    return _derives(engine, key, SOURCE, source, (at.seq, at.id))


def ties(engine: Engine, key: ThreadKey, origins: Mapping[str, ThreadKey]) -> list[StoreChange]:
    """What makes a thread derive from others, given by the kind of its half of the link; nothing where it does already.

    A parent need not have checkpoints yet. Raises ThreadNotFound for a source without any.
    """
    changes: list[StoreChange] = []
    for kind, origin in origins.items():
        if origin not in linked(engine, key, kind, names(engine, key, kind) & {name_of(origin)}):
            frame = a_frame(engine, origin)
            if frame is None and kind == SOURCE:
                raise ThreadNotFound(
                    f"thread not found: {origin.id!r}, which {key.id!r} is to be a copy of, has no checkpoints"
                )
            changes += _derives(engine, key, kind, origin, frame)
    return changes


def held(engine: Engine, key: ThreadKey, origins: Mapping[str, ThreadKey]) -> list[StoreChange]:
    """`ties`, where the rest of the commit adds no checkpoint: refuses it if links that are there are gone by then."""
    there = {kind: names(engine, key, kind) for kind in origins}
    return [*unchanged(key, there), *ties(engine, key, origins)]


def _derives(engine: Engine, key: ThreadKey, kind: str, origin: ThreadKey, frame: tuple[int, str] | None) -> list[StoreChange]:
    """The link, and what goes along; refused if the origin is not what it was, or gets other subjects meanwhile."""
    kinds = [its for its in engine.store.kinds(origin) if policy_of(its).fork is Way.CARRY]
    carried = [record for its in kinds for record in upkeep.records(engine, origin, its)]
    subjects = frozenset(record.name for record in carried if record.kind == SUBJECT)
    same = Expect(origin, frame, SUBJECT, subjects)
    return [same, *link(key, kind, origin), *(PutRecord(key, *record) for record in carried)]


# -- children without links ------------------------------------------------------------------------


def framework_id(thread_id: str, namespace: str, external_id: str) -> str:
    """The id of the checkpoint that LangGraph calls `external_id`, in a namespace of a thread of LangGraph's."""
    return blake3.blake3("\0".join((thread_id, namespace, external_id)).encode()).hexdigest(length=16)


def unescaped(root: str) -> str:
    """LangGraph's id of a thread, from that of ours, in which the separator stands for nothing else."""
    return root.replace("\u241b1", SEPARATOR).replace("\u241b0", "\u241b")


def _noted_children(engine: Engine, key: ThreadKey) -> list[ThreadKey]:
    """The children that an earlier version noted beside a thread, and that are certain to be what the notes say."""
    noted = (ThreadKey(key.namespace, f"{key.id}{SEPARATOR}{name}") for name in sorted(names(engine, key, NOTED)))
    return [child for child in noted if _is_namespace(engine, child)]


def _noting_parents(engine: Engine, key: ThreadKey) -> list[ThreadKey]:
    """The thread that an earlier version noted this one beside, if it is certain to be what the note says."""
    root, _, namespace = key.id.partition(SEPARATOR)
    parent = ThreadKey(key.namespace, root)
    return [parent] if namespace and namespace in names(engine, parent, NOTED) and _is_namespace(engine, key) else []


def _is_namespace(engine: Engine, key: ThreadKey) -> bool:
    """Whether LangGraph saved a thread: by the id of a checkpoint, which tells its place, or by writes and nothing else.

    One that has links does not need this.
    """
    root, _, namespace = key.id.partition(SEPARATOR)
    kinds = engine.store.kinds(key)
    if PARENT in kinds:
        return False
    metas = ((frame.id, load_meta(frame.meta).external_id) for frame in everything(engine, key))
    made = (own == framework_id(unescaped(root), namespace, other) for own, other in metas if other is not None)
    row = engine.store.thread(key)
    return any(made) if row is not None and row.frames else any(kind.startswith(WRITES) for kind in kinds)


def external_ids(engine: Engine, key: ThreadKey) -> Iterator[str]:
    """A framework's ids of a thread's checkpoints, newest first; nothing if the oldest has none."""
    oldest = engine.store.frames(key, limit=1)
    if oldest and load_meta(oldest[0].meta).external_id is not None:
        found = (load_meta(frame.meta).external_id for frame in everything(engine, key))
        yield from (external_id for external_id in found if external_id is not None)
