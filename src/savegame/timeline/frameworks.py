"""What a rewind, a fork or a removal means for what a framework keeps beside a thread: pending writes and child threads.

Pending writes are records of the checkpoint after which their task ran. Child threads hold the subgraphs that ran inside the
thread's steps. Both follow the thread by data alone: the framework need not be installed. Touches derived, companions,
lineage, frames.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from savegame.encoding.frames import Meta, load_meta
from savegame.errors import UnsupportedError
from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.store import MoveHead, PutRecord, StoreChange
from savegame.timeline import derived
from savegame.timeline.companions import CHILD, LEFT, WRITES
from savegame.timeline.derived import SEPARATOR
from savegame.timeline.lineage import Lineage

_TASK: Final = ":"
"""Separates the name of a node from the id of its task in a namespace that belongs to one task."""


class Moment(NamedTuple):
    """A checkpoint of a thread as its child threads see it: what they did after it is undone by going back to it."""

    external_id: str
    before: frozenset[str]
    """The framework's ids of its ancestors."""

    @classmethod
    def of(cls, thread: Lineage, frame: Frame, external_id: str) -> Moment:
        """The moment of a checkpoint."""
        ids = (load_meta(older.meta).external_id for older in thread.line(frame.base))
        return cls(external_id, frozenset(found for found in ids if found is not None))

    def is_after(self, thread: Lineage, meta: Meta) -> bool:
        """Whether a checkpoint of a child thread was not made yet.

        A framework's checkpoint names the parent's checkpoint that it was made under. Without that name the framework's ids
        decide, which grow with time.
        """
        metadata = thread.engine.codec.decode(meta.metadata) if meta.metadata else {}
        parents = metadata.get("parents")
        under = parents.get("") if isinstance(parents, dict) else None
        return under not in self.before if under else (meta.external_id or "") >= self.external_id


class ChildAt(NamedTuple):
    """A child thread, and the checkpoint that was its newest at a moment of its parent; None if there was none yet."""

    thread: Lineage
    row: ThreadRow
    frame: Frame | None


def children_at(thread: Lineage, frame: Frame) -> Iterator[ChildAt]:
    """The child threads of a thread as they were at one of its checkpoints."""
    external_id = load_meta(frame.meta).external_id
    below = [] if external_id is None else derived.below(thread, [CHILD], derived.named(thread))
    if external_id is None or not below:
        return
    moment = Moment.of(thread, frame, external_id)
    for key in below:
        child = thread.at(key)
        row = child.row()
        if row is not None and row.frames:
            older = (one for one in child.everything() if not moment.is_after(child, load_meta(one.meta)))
            yield ChildAt(child, row, next(older, None))


# -- going back ------------------------------------------------------------------------------------


def going_back(thread: Lineage, frame: Frame) -> list[StoreChange]:
    """Changes for the commit that makes an older checkpoint the head: its undone writes, and the heads of child threads."""
    changes: list[StoreChange] = [*_undone_writes(thread, frame)]
    for child, row, older in children_at(thread, frame):
        seq = 0 if older is None else older.seq
        if seq != row.head:
            changes.append(MoveHead(child.key, seq, row.head_id, agent=row.agent))
            changes += [] if older is None else _undone_writes(child, older)
    return changes


def _undone_writes(thread: Lineage, frame: Frame) -> Iterator[PutRecord]:
    """Changes that set aside the pending writes from which later checkpoints were made.

    They get a kind that also names the newest of these checkpoints, whose line may need them. The writes of a checkpoint
    without successors are not undone: its step was never finished.
    """
    external_id = load_meta(frame.meta).external_id
    writes = [] if external_id is None else list(thread.records(f"{WRITES}{external_id}"))
    after = (later for later in thread.everything(low=frame.seq + 1) if later.base == frame.seq) if writes else iter(())
    for later in after:
        kind = f"{LEFT}{external_id} {later.id}"
        done = any(True for _ in thread.records(kind))  # what was written since belongs to a step that was never finished
        yield from (PutRecord(thread.key, kind, write.name, write.value) for write in writes if not done)
        yield from (PutRecord(thread.key, write.kind, write.name, None) for write in writes)
        return


# -- forks -----------------------------------------------------------------------------------------


def forked_children(source: Lineage, frame: Frame, key: ThreadKey) -> Iterator[tuple[ThreadKey, Frame, ThreadKey]]:
    """The child threads that go along with a fork, each at which frame, and the key of its own fork.

    Those of single tasks stay: their tasks have ended, or begin again in the fork.
    """
    for child, _, at in children_at(source, frame):
        root, separator, namespace = child.id.partition(SEPARATOR)
        if at is not None and separator and root == source.id and _TASK not in namespace:
            yield child.key, at, key._replace(id=f"{key.id}{SEPARATOR}{namespace}")


def forked_id(source: ThreadKey, frame: Frame, key: ThreadKey) -> str | None:
    """The id of a fork's first checkpoint: the one under which the framework looks for it, None for any."""
    external_id = load_meta(frame.meta).external_id
    if external_id is None or frame.id != _id_in(source, external_id):
        return None
    return _id_in(key, external_id)


def _id_in(key: ThreadKey, external_id: str) -> str:
    root, _, namespace = key.id.partition(SEPARATOR)
    return derived.framework_id(derived.unescaped(root), namespace, external_id)


def refuse_deltas(thread: Lineage, frame: Frame) -> None:
    """Raise UnsupportedError for a checkpoint whose channels are rebuilt from its ancestors, which a fork does not have."""
    meta = load_meta(frame.meta)
    metadata = thread.engine.codec.decode(meta.metadata) if meta.metadata and meta.external_id is not None else {}
    if metadata.get("counters_since_delta_snapshot"):
        raise UnsupportedError(
            f"thread {thread.id!r}: checkpoint {frame.id} has delta channels: their values are in its ancestors, which a fork "
            "does not have; copy the thread with the framework (SavegameSaver.copy_thread), then rewind the copy"
        )


# -- removals --------------------------------------------------------------------------------------


def orphaned_writes(thread: Lineage, frames: Collection[Frame], drop: Collection[int]) -> list[PutRecord]:
    """Changes that remove the pending writes of checkpoints that go."""
    kinds = [kind for kind in thread.kinds() if kind.startswith((WRITES, LEFT))]
    if not kinds:
        return []
    ids = {frame.seq: load_meta(frame.meta).external_id for frame in frames}
    gone = {ids[seq] for seq in drop} - {external_id for seq, external_id in ids.items() if seq not in drop}
    orphans = [kind for kind in kinds if kind.removeprefix(LEFT).removeprefix(WRITES).partition(" ")[0] in gone]
    return [PutRecord(thread.key, kind, record.name, None) for kind in orphans for record in thread.records(kind)]
