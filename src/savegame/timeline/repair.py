"""Repairing what `verify` finds: damaged rows are set aside, never deleted; every state that can be recovered is kept.

Touches verify, removal, companions, listing, lineage and below.
"""

from __future__ import annotations

from savegame.encoding.frames import load_meta
from savegame.errors import ConflictError, CorruptionError
from savegame.model import Frame, Report, ThreadRow
from savegame.store import Expect, PutRecord, Rewrite
from savegame.timeline.companions import ASIDE
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import Lineage
from savegame.timeline.listing import thread_rows
from savegame.timeline.removal import delta_between
from savegame.timeline.verify import Progress, check, ignore, misshapen, sequence_numbers, with_yards


def repair(engine: Engine, namespace: str, progress: Progress) -> Report:
    """Set damaged rows aside, keep the states that a keyframe can still recover, move heads to sound checkpoints."""
    return with_yards(_repair, engine, namespace, progress)


def _repair(engine: Engine, namespace: str, progress: Progress) -> Report:
    before = check(engine, namespace, ignore)
    if before.ok:
        return before
    beside = {problem.thread_id for problem in before.problems if problem.checkpoint_id is None}
    done = engine.store.mend(namespace)
    for (key, record), problem in misshapen(engine, namespace).items():
        moved = PutRecord(key, ASIDE, f"{record.kind} {record.name}", record.value)
        engine.store.commit([moved, PutRecord(key, record.kind, record.name, None)])
        done.append(f"thread {key.id!r}: set aside: {problem.place}: {problem.message}")
    rows = list(thread_rows(engine, namespace))
    for number, row in enumerate(rows, 1):
        engine.cache.forget(row.key)
        thread = Lineage(engine, row.key)
        try:
            done += _mend_thread(thread, row)
            if beside & {row.key.id, None}:  # a record may have been lost, and it is unknown which
                done += engine.above.ledger.mend(thread)
        except (CorruptionError, ConflictError) as error:  # its frames cannot even be listed, or others changed them meanwhile
            done.append(f"thread {row.key.id!r}: not repaired: {error}")
        progress(number, len(rows))
    after = check(engine, namespace, ignore)
    return Report(after.problems, after.threads, after.checkpoints, tuple(done))


def _mend_thread(thread: Lineage, row: ThreadRow) -> list[str]:
    """Set aside what does not load; keep what loads although its base is damaged."""
    frames: dict[int, Frame] = {}
    rebase: list[tuple[int, int, bytes]] = []
    lost: list[int] = []
    blobs: dict[bytes, bytes] = {}
    reader = Lineage(thread.engine.with_own_cache(), thread.key)
    for seq in list(sequence_numbers(thread)):
        try:
            found = thread.store.frames(thread.key, low=seq, high=seq, deltas=True)
            if not found:
                continue
            frame = found[0]
            reader.remember(seq, frame)
        except CorruptionError:
            lost.append(seq)
            continue
        frames[seq] = frame
        if frame.base and frame.base not in frames:
            base = _grandparent(frames, frame)
            body, more = delta_between(reader, base, frame)
            blobs |= more
            rebase.append((seq, base, body))
    if not lost and not rebase:
        return []
    head = row.head if row.head in frames or not row.head else _newest_sound(row, frames)
    new = thread.engine.wrap_blobs(blobs)
    same = [Expect(thread.key, (seq, frame.id)) for seq, frame in list(frames.items())[-1:]]
    thread.store.commit([*same, Rewrite(thread.key, tuple(lost), tuple(rebase), new, head=head, aside=True)])
    moved = f"; the head is now {frames[head].id if head else '(none)'}" if head != row.head else ""
    return [f"thread {thread.id!r}: {len(lost)} checkpoints set aside, {len(rebase)} kept by joining the gap{moved}"]


def _grandparent(frames: dict[int, Frame], orphan: Frame) -> int:
    """The frame that a damaged parent very likely continued from, so that its line stays one; 0 if none fits."""
    step = load_meta(orphan.meta).step - 2
    older = (seq for seq, frame in frames.items() if seq < orphan.base and load_meta(frame.meta).step == step)
    return max(older, default=0)


def _newest_sound(row: ThreadRow, frames: dict[int, Frame]) -> int:
    """The newest sound checkpoint before a lost head, else the newest of all; 0 if there is none."""
    return max((seq for seq in frames if seq < row.head), default=max(frames, default=0))
