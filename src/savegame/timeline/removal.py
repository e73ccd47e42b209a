"""Removing checkpoints from a thread, so that each remaining one keeps its id, its metadata and its whole state.

If the frame that a checkpoint builds on goes, its delta is rewritten against the nearest remaining ancestor. Touches
spending, lineage, engine, delta, diff, tree, store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from savegame.encoding import delta as deltas
from savegame.encoding import diff
from savegame.encoding.frames import PLAIN, load_meta, references, take_out_ops
from savegame.encoding.raw import unpack_raw
from savegame.encoding.tree import to_bytes
from savegame.errors import CheckpointNotFound, ConflictError, SavegameError
from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.store import ANY, Capability, DeleteThread, Expect, PutRecord, Rewrite, StoreChange
from savegame.timeline import frameworks, spending
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import Lineage

logger = logging.getLogger("savegame")

Along = Callable[[Sequence[bytes]], Sequence[PutRecord | Expect]]


@dataclass(frozen=True, slots=True)
class Removal:
    """How to remove frames.

    `expect` and `head` are those of a Rewrite. `with_ledger`: also remove what runs recorded about these frames, unless a
    remaining checkpoint may need it. `drop_newer`: also remove frames appended meanwhile. `along`: changes for the same
    commit, instead of recording what the frames cost. `beside`: changes to other threads in the same commit.
    """

    expect: str | None = ANY
    head: int | None = None
    epoch: int | None = None
    with_ledger: bool = False
    drop_newer: bool = False
    along: Along | None = None
    beside: Sequence[StoreChange] = ()


def remove(thread: Lineage, frames: list[Frame], drop: set[int], terms: Removal = Removal()) -> int:
    """Remove frames so that the others keep their states; free their bytes. Returns the number of removed frames.

    `frames` are all frames of the thread at the time `drop` was chosen; later ones stay. Raises ConflictError if a frame of
    `drop` was removed, labelled or built upon meanwhile.
    """
    if not drop:
        return 0
    frames, newer = sorted(frames), terms.drop_newer
    try:
        change = _rewrite(thread, frames, drop)
        noted = frozenset(drop) if newer else change.noted
        along = terms.along or spending.removal(thread, frames, drop, drop_newer=newer)
        change = change._replace(
            expect=terms.expect, epoch=terms.epoch, head=terms.head, noted=noted, drop_newer=newer, along=along
        )
        ledger, above = thread.engine.above.ledger, thread.engine.above
        unneeded = ledger.unneeded(thread, frames, drop, drop_newer=newer) if terms.with_ledger else ()
        evidence = ledger.evidence(thread, frames, drop, _head_after(thread, terms.head))
        let_go = above.let_go({thread.key: drop})
        orphans = frameworks.orphaned_writes(thread, frames, drop)
        same = Expect(thread.key, (frames[-1].seq, frames[-1].id))  # not deleted and begun again, with the same numbers
        thread.store.commit([same, change, *unneeded, *evidence, *orphans, *let_go, *terms.beside])
    except CheckpointNotFound as error:  # the thread is not the one that was planned for
        raise ConflictError(f"thread {thread.id!r}: {error}; if nothing else removes checkpoints, run verify") from error
    free(thread.engine, [thread.key, *deleted_by(let_go)])
    return len(drop)


def _head_after(thread: Lineage, head: int | None) -> int:
    row = thread.row() if head is None else None
    return head or (0 if row is None else row.head)


def remove_hidden(thread: Lineage, epoch: int | None) -> None:
    """Remove what retention hides. Called at a natural keyframe, when the deltas outweigh the state."""
    row = thread.row()
    if row is not None and row.head:
        frames = list(thread.everything())
        drop = {frame.seq for frame in frames if not thread.visible(row, frame)}
        remove(thread, frames, unpinned(thread, row, frames, drop), Removal(epoch=epoch))


def unpinned(thread: Lineage, row: ThreadRow, frames: list[Frame], drop: set[int]) -> set[int]:
    """Those of `drop` that no agent checkpoint names, of any agent that the thread belonged to, and no undo needs."""
    agents = {load_meta(frame.meta).agent_id for frame in frames if frame.seq in drop} | {row.agent}
    pinned = thread.engine.above.named(agents, but=[row.key]) if drop else {}
    needed = thread.engine.above.ledger.needed(thread) if drop else None
    return {frame.seq for frame in frames if frame.seq in drop and frame.id not in pinned and frame.id != needed}


def deleted_by(changes: Iterable[StoreChange]) -> list[ThreadKey]:
    """The threads that these changes delete."""
    return [change.key for change in changes if isinstance(change, DeleteThread)]


# -- planning --------------------------------------------------------------------------------------


def _rewrite(thread: Lineage, frames: list[Frame], drop: set[int]) -> Rewrite:
    """A rewrite that removes frames and rebases what builds on them. Depends only on these frames."""
    bases = {frame.seq: frame.base for frame in frames}
    for frame in frames:
        if frame.base and frame.base not in bases and thread.frame(frame.seq).base != frame.base:
            raise ConflictError(f"thread {thread.id!r}: another writer removed frame {frame.base} while it was read; try again")
    rebase: list[tuple[int, int, bytes]] = []
    new_blobs: dict[bytes, bytes] = {}
    reader = Lineage(thread.engine.with_own_cache(), thread.key)
    for frame in frames:
        if frame.seq not in drop and frame.base in drop:
            base = _surviving(bases, drop, frame.base)
            body, blobs = delta_between(reader, base, frame)
            rebase.append((frame.seq, base, body))
            new_blobs |= blobs
    rewritten = {seq for seq, _, _ in rebase}
    keep = {*new_blobs, *_references(thread, [one for one in frames if one.seq not in drop and one.seq not in rewritten])}
    for _, _, body in rebase:
        keep.update(references(body))
    noted = frozenset(frame.seq for frame in frames if frame.seq in drop and frame.note is not None)
    newest = max((frame.seq for frame in frames), default=0)
    return Rewrite(
        thread.key,
        tuple(sorted(drop)),
        tuple(rebase),
        thread.engine.wrap_blobs(new_blobs),
        frozenset(keep),
        noted=noted,
        newest=newest,
        seen=len(frames),
        refers=references,
    )


def _surviving(bases: dict[int, int], drop: set[int], seq: int) -> int:
    while seq in drop:
        seq = bases.get(seq, 0)
    return seq


def delta_between(reader: Lineage, base: int, frame: Frame) -> tuple[bytes, dict[bytes, bytes]]:
    """The stored delta of a frame against an older ancestor (0: the whole state), and the large values that it needs.

    `reader` has a cache of its own.
    """
    before = reader.remember(base) if base else None
    after = reader.remember(frame.seq, frame)
    codec = reader.engine.codec
    ops = deltas.whole(after) if before is None else diff.difference(codec, before, unpack_raw(to_bytes(after)))[0]
    smaller, blobs = take_out_ops(ops)
    return reader.engine.wrap(deltas.dump(smaller), with_blobs=bool(blobs)), blobs


def _references(thread: Lineage, frames: list[Frame]) -> Iterator[bytes]:
    """The large values that frames refer to, read from their deltas where there may be any."""
    for frame in frames:
        meta = load_meta(frame.meta)
        if meta.blobs or meta.parent_id is None or _is_rebased(thread, frame, meta.parent_id):
            yield from references(thread.frame(frame.seq, delta=True).delta or PLAIN)


def _is_rebased(thread: Lineage, frame: Frame, parent_id: str) -> bool:
    if not frame.base:
        return True
    found = thread.store.frames(thread.key, low=frame.base, high=frame.base)
    return not found or found[0].id != parent_id


# -- freeing ---------------------------------------------------------------------------------------


def free(engine: Engine, keys: Sequence[ThreadKey]) -> tuple[str, ...]:
    """Free the bytes of what was removed from these threads. Returns messages about what could not be reached."""
    left = (
        []
        if engine.store.purge()
        else ["a reader is still active, or the disk is full; the removed bytes leave the files later"]
    )
    left += _forget_words(engine, keys)
    names = ", ".join(repr(key.id) for key in keys[:3]) + (", ..." if len(keys) > 3 else "")
    for what in left:
        logger.warning("thread %s: %s", names or "(deleted before)", what)
    return tuple(left)


def _forget_words(engine: Engine, keys: Sequence[ThreadKey]) -> list[str]:
    """Remove threads from the search index, unless only their heads are in it; returns what could not be reached."""
    if Capability.SEARCH not in engine.store.capabilities:
        return []
    rows = {key: engine.store.thread(key) for key in keys}
    try:
        engine.store.index().forget({key: row.head_id if row else None for key, row in rows.items()})
    except SavegameError as error:  # the removal is done: only derived words remain
        return [f"removed words stay in the search index until the next search: {error}"]
    return []
