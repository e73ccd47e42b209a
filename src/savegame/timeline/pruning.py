"""Which checkpoints of a thread to remove on request; `removal` removes them. Touches removal, lineage, policy.

Each verb reads the thread once and plans from that. Appends meanwhile do not disturb the plan; it is made again only if
another writer labelled, removed, built upon or went back to a checkpoint that was about to go.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from savegame.encoding.frames import load_meta, load_note
from savegame.errors import CheckpointNotFound, InvalidInputError, UndoUnfinished
from savegame.model import Frame, ThreadRow, checked_duration
from savegame.store import ANY, StoreChange
from savegame.timeline import deleting, frameworks, removal
from savegame.timeline.lineage import Lineage, Ref
from savegame.timeline.policy import spared_by_prune
from savegame.timeline.removal import Removal
from savegame.waiting.retrying import PLANS, retried


class Rule(NamedTuple):
    """What an explicit prune keeps."""

    keep: int | None
    older_than: dt.timedelta | None
    include_labelled: bool

    @classmethod
    def checked(cls, keep: int | None, older_than: dt.timedelta | None, *, include_labelled: bool) -> Rule:
        """A valid rule. Raises InvalidInputError."""
        if keep is None and older_than is None:
            raise InvalidInputError("prune needs keep=, older_than= or both")
        if keep is not None and (type(keep) is not int or keep < 1):
            raise InvalidInputError(f"keep must be at least 1, not {keep!r}; delete() removes a whole thread")
        if older_than is not None and older_than != dt.timedelta(0):
            checked_duration(older_than, "older_than")
        return cls(keep, older_than, include_labelled)


def remove(thread: Lineage, refs: Sequence[Ref]) -> int:
    """`Thread.remove`."""
    wanted: set[str] = set()

    def attempt() -> int:
        row = thread.existing()
        if not wanted:  # once: on a busy thread, "head" is another one at the next attempt
            wanted.update(thread.resolve(ref, row=row).id for ref in refs)
        frames = list(thread.everything())
        needed = thread.engine.above.ledger.needed(thread)
        if needed in wanted:
            raise UndoUnfinished(
                f"thread {thread.id!r}: an undo to checkpoint {needed} is not finished; finish it first with "
                f"vault.undo({thread.id!r}, to={needed!r}, tools=tools)",
                to=needed,
            )
        drop = {frame.seq for frame in frames if frame.id in wanted}
        if len(drop) < len(wanted):
            missing = min(wanted - {frame.id for frame in frames})
            raise CheckpointNotFound(f"checkpoint not found: {missing!r} was removed from thread {thread.id!r} meanwhile")
        if row.head not in drop:
            return removal.remove(thread, frames, drop, Removal(with_ledger=True))
        head = _head_without(row.head, frames, drop)
        return removal.remove(thread, frames, drop, Removal(row.head_id, head, with_ledger=True))

    return retried(attempt, gone=True, tries=PLANS)


def prune(thread: Lineage, rule: Rule, *, dry_run: bool) -> int:
    """`Thread.prune`."""

    def attempt() -> int:
        row, frames, drop = _choose(thread, rule)
        if row is None or dry_run:
            return len(drop)
        return removal.remove(thread, frames, drop, Removal(with_ledger=True))

    return retried(attempt, tries=PLANS)


def prunable(thread: Lineage, rule: Rule) -> list[Frame]:
    """`Thread.prunable`."""
    _, frames, drop = _choose(thread, rule)
    return [frame for frame in frames if frame.seq in drop]


def _choose(thread: Lineage, rule: Rule) -> tuple[ThreadRow | None, list[Frame], set[int]]:
    """The thread's row, all its frames newest first, and which of them go."""
    row = thread.row()
    if row is None or not row.frames:
        return None, [], set()
    age = rule.older_than
    cutoff = None if age is None else thread.store.clock() - age // dt.timedelta(microseconds=1)
    frames = list(thread.everything())
    needed = thread.engine.above.ledger.needed(thread)
    drop = {
        frame.seq
        for rank, frame in enumerate(frames)
        if frame.seq != row.head
        and frame.id != needed
        and not spared_by_prune(
            rank,
            load_meta(frame.meta).created_us,
            labelled=load_note(frame.note)[0] is not None,
            keep=rule.keep,
            cutoff_us=cutoff,
            include_labelled=rule.include_labelled,
        )
    }
    return row, frames, drop if rule.include_labelled else removal.unpinned(thread, row, frames, drop)


def discard_all_but(thread: Lineage, head: Frame, *, expect: str | None, beside: Sequence[StoreChange] = ()) -> bool:
    """Make a checkpoint the head and remove all but its ancestors, including what is appended meanwhile.

    `beside` is written in the same commit.

    Returns False and does nothing if there is nothing to remove.
    """
    frames = list(thread.everything())
    drop = {frame.seq for frame in frames} - {frame.seq for frame in thread.line(head.seq)}
    if drop:
        removal.remove(thread, frames, drop, Removal(expect, head.seq, with_ledger=True, drop_newer=True, beside=beside))
    return bool(drop)


def discard_children(thread: Lineage, head: Frame) -> None:
    """Remove from the child threads what they did after a checkpoint of their parent; those without an earlier one go."""
    for child, _, at in frameworks.children_at(thread, head):
        if at is None:
            deleting.delete(thread.engine, [child.key])
        else:
            discard_all_but(child, at, expect=ANY)


def _head_without(head: int, frames: list[Frame], drop: set[int]) -> int:
    """The head of a thread once some of its frames are gone; 0 if it had none, or nothing is left."""
    bases = {frame.seq: frame.base for frame in frames}
    nearest = head
    while nearest in drop:
        nearest = bases.get(nearest, 0)
    return nearest if nearest or not head else max(bases.keys() - drop, default=0)
