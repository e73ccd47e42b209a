"""Which checkpoints of a thread go when somebody asks for it; upkeep takes them out. Touches lineage, upkeep, policy.

Each verb reads the thread once and plans by what it read. Appends meanwhile do not disturb the plan; it is made again only if
somebody labelled, removed, built upon or went back to a checkpoint that was to go.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from savegame.encoding.frames import load_meta, load_note
from savegame.errors import CheckpointNotFound, InvalidInputError
from savegame.model import Frame, ThreadKey, ThreadRow, checked_duration
from savegame.timeline import lineage, upkeep
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import Ref
from savegame.timeline.policy import spared_by_prune
from savegame.waiting.retrying import PLANS, retried


def remove(engine: Engine, key: ThreadKey, refs: Sequence[Ref]) -> int:
    """`Thread.remove`."""
    wanted: set[str] = set()

    def attempt() -> int:
        row = lineage.existing(engine, key)
        if not wanted:  # once: on a busy thread, "head" is another one at the next attempt
            wanted.update(lineage.resolve(engine, key, ref).id for ref in refs)
        frames = list(lineage.everything(engine, key))
        drop = {frame.seq for frame in frames if frame.id in wanted}
        if len(drop) < len(wanted):
            missing = min(wanted - {frame.id for frame in frames})
            raise CheckpointNotFound(f"checkpoint not found: {missing!r} was removed from thread {key.id!r} meanwhile")
        if row.head not in drop:
            return upkeep.remove(engine, key, frames, drop, with_ledger=True)
        head = _head_without(row.head, frames, drop)
        return upkeep.remove(engine, key, frames, drop, expect=row.head_id, head=head, with_ledger=True)

    return retried(attempt, gone=True, tries=PLANS)


def prune(
    engine: Engine,
    key: ThreadKey,
    *,
    keep: int | None,
    older_than: dt.timedelta | None,
    include_labelled: bool,
    dry_run: bool,
) -> int:
    """`Thread.prune`."""
    _check(keep, older_than)

    def attempt() -> int:
        row, frames, drop = _chosen(engine, key, keep, older_than, include_labelled=include_labelled)
        if row is None or dry_run:
            return len(drop)
        return upkeep.remove(engine, key, frames, drop, with_ledger=True)

    return retried(attempt, tries=PLANS)


def prunable(
    engine: Engine, key: ThreadKey, *, keep: int | None, older_than: dt.timedelta | None, include_labelled: bool
) -> list[Frame]:
    """`Thread.prunable`."""
    _check(keep, older_than)
    _, frames, drop = _chosen(engine, key, keep, older_than, include_labelled=include_labelled)
    return [frame for frame in frames if frame.seq in drop]


def _check(keep: int | None, older_than: dt.timedelta | None) -> None:
    if keep is None and older_than is None:
        raise InvalidInputError("prune needs keep=, older_than= or both")
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InvalidInputError(f"keep must be at least 1, not {keep!r}; delete() removes a whole thread")
    if older_than is not None and older_than != dt.timedelta(0):
        checked_duration(older_than, "older_than")


def _chosen(
    engine: Engine, key: ThreadKey, keep: int | None, older_than: dt.timedelta | None, *, include_labelled: bool
) -> tuple[ThreadRow | None, list[Frame], set[int]]:
    """A thread as it is, all its frames newest first, and which of them go."""
    row = engine.store.thread(key)
    if row is None or not row.frames:
        return None, [], set()
    cutoff = None if older_than is None else engine.store.clock() - older_than // dt.timedelta(microseconds=1)
    frames = list(lineage.everything(engine, key))
    drop = {
        frame.seq
        for rank, frame in enumerate(frames)
        if frame.seq != row.head
        and not spared_by_prune(
            rank,
            load_meta(frame.meta).created_us,
            labelled=load_note(frame.note)[0] is not None,
            keep=keep,
            cutoff_us=cutoff,
            include_labelled=include_labelled,
        )
    }
    return row, frames, drop if include_labelled else upkeep.unpinned(engine, row, frames, drop)


def discard_all_but(engine: Engine, key: ThreadKey, head: Frame, *, expect: str | None) -> bool:
    """Make a checkpoint the head and remove what is not among its ancestors, whatever is appended meanwhile.

    False, and nothing done, if there is nothing else.
    """
    frames = list(lineage.everything(engine, key))
    drop = {frame.seq for frame in frames} - {frame.seq for frame in lineage.line(engine, key, head.seq)}
    if drop:
        upkeep.remove(engine, key, frames, drop, expect=expect, head=head.seq, with_ledger=True, drop_newer=True)
    return bool(drop)


def _head_without(head: int, frames: list[Frame], drop: set[int]) -> int:
    """Where the head of a thread is once some of its frames are gone; 0 if there was none, or nothing is left."""
    bases = {frame.seq: frame.base for frame in frames}
    nearest = head
    while nearest in drop:
        nearest = bases.get(nearest, 0)
    return nearest if nearest or not head else max(bases.keys() - drop, default=0)
