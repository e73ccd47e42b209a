"""Looking after what is stored: removing, checking, repairing. Touches beside, runs.ledger, engine, lineage and what is below.

Whatever is removed, every checkpoint that stays keeps its id, its metadata and its whole state: if the frame that it
builds on goes, its delta is written anew against the nearest ancestor that stays.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from savegame.encoding import delta as deltas
from savegame.encoding import diff
from savegame.encoding.codec import unpack_raw
from savegame.encoding.frames import DIGEST_BYTES, PLAIN, digest, load_meta, references, take_out_ops, unwrap
from savegame.encoding.tree import Shared, to_bytes
from savegame.errors import CheckpointNotFound, ConflictError, CorruptionError, SavegameError, ThreadNotFound
from savegame.model import Frame, Problem, Record, Report, ThreadKey, ThreadRow
from savegame.runs import ledger
from savegame.runs.keys import digest_of
from savegame.runs.ledger import (
    ANSWER,
    CALL,
    LEDGER,
    ROOT,
    RUN,
    STEP,
    CallStatus,
    is_journaled,
    is_settled,
    replies_in,
    reply_of,
    stand_ins,
)
from savegame.store import ANY, Capability, DeleteThread, Expect, PutRecord, Rewrite, StoreChange
from savegame.timeline import companions, spending
from savegame.timeline.companions import ASIDE
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import CHOSEN, PAGE, everything, messages_in, visible

logger = logging.getLogger("savegame")

COPY_TRIES: Final = 20
"""How often a thread is read again that is pruned while it is copied or exported."""

Progress = Callable[[int, int], None]


def thread_rows(
    engine: Engine, namespace: str, damaged: set[str] | None = None, *, thread_id: str | None = None
) -> Iterator[ThreadRow]:
    """Every thread of a namespace that has a checkpoint, those without a head too; or one alone.

    Raises CorruptionError for one whose row is damaged; with `damaged`, its id is put there, and the others are gone through.
    """
    for key in _keys(engine, namespace, thread_id):
        try:
            row = engine.store.thread(key)
        except CorruptionError:
            if damaged is None:
                raise
            damaged.add(key.id)
            continue
        if row is not None and row.frames:
            yield row


def _keys(engine: Engine, namespace: str, thread_id: str | None = None) -> list[ThreadKey]:
    """Every thread of a namespace, or one alone. Raises CorruptionError if they cannot be listed."""
    if thread_id is not None:
        return [ThreadKey(namespace, thread_id)]
    return [ThreadKey(namespace, name) for name, _ in engine.store.heads(namespace)]


def records(engine: Engine, key: ThreadKey, kind: str) -> Iterator[Record]:
    """Every record of a kind beside a thread; pages underneath."""
    page = engine.store.records(key, kind)
    while True:
        yield from page.items
        if page.next is None:
            return
        page = engine.store.records(key, kind, after=page.next)


def _ledger(engine: Engine, key: ThreadKey, kind: str) -> dict[str, Any]:
    """What a run has kept of one kind, by name."""
    return {record.name: _value(engine, key, record) for record in records(engine, key, kind)}


def _value(engine: Engine, key: ThreadKey, record: Record) -> Any:
    return companions.read(engine.codec, key, record)


def gives_way(engine: Engine, key: ThreadKey, record: Record, given: bytes | None) -> bool:
    """Whether a record of a thread may become what a copy of that thread says of it; None: nothing."""
    kind, name, _ = record
    if kind not in LEDGER:
        return True
    calls = (call.name for call in records(engine, key, CALL))
    there, new = (None if one is None else _value(engine, key, record._replace(value=one)) for one in (record.value, given))
    return ledger.gives_way(kind, name, there, new, calls, engine.codec.encode)


def carried_answers(
    engine: Engine, key: ThreadKey, answers: Mapping[str, bytes], batch: Iterable[StoreChange]
) -> list[PutRecord]:
    """The answers to put into a copy: those to calls that are settled there once `batch` is written.

    As for forks, an answer to an unsettled call stays in the source: otherwise the source and every copy would make the call
    on one approval.
    """
    there = {record.name for record in records(engine, key, ANSWER)} if answers else set()
    wanted = answers.keys() - there
    calls = {record.name: record.value for record in (records(engine, key, CALL) if wanted else ()) if record.name in wanted}
    for change in batch:
        if isinstance(change, PutRecord) and change.kind == CALL and change.name in wanted and change.value is not None:
            calls[change.name] = change.value
    known = [name for name, value in calls.items() if is_settled(_value(engine, key, Record(CALL, name, value)))]
    for name in known:
        _value(engine, key, Record(ANSWER, name, answers[name]))  # raises for what is no answer
    return [PutRecord(key, ANSWER, name, answers[name]) for name in known]


# -- removing --------------------------------------------------------------------------------------


def remove(
    engine: Engine,
    key: ThreadKey,
    frames: list[Frame],
    drop: set[int],
    *,
    expect: str | None = ANY,
    head: int | None = None,
    epoch: int | None = None,
    with_ledger: bool = False,
    drop_newer: bool = False,
    along: Callable[[Sequence[bytes]], Sequence[PutRecord | Expect]] | None = None,
) -> int:
    """Remove frames so that the others keep their states; free their bytes. Returns how many there were.

    `frames` are all of the thread as they were when `drop` was chosen. What was appended since stays too, or goes with
    `drop_newer`. ConflictError if a frame that goes was removed, labelled or built upon meanwhile. With `with_ledger`, what
    runs have kept of these frames goes too, as far as no checkpoint that stays can ever need it. What they cost stays known,
    unless `along` says what goes into the same commit instead.
    """
    if not drop:
        return 0
    try:
        change = _removal(engine, key, sorted(frames), drop)
        noted = frozenset(drop) if drop_newer else change.noted
        along = along or spending.removal(engine, key, frames, drop, drop_newer=drop_newer)
        change = change._replace(expect=expect, epoch=epoch, head=head, noted=noted, drop_newer=drop_newer, along=along)
        unneeded = _unneeded(engine, key, sorted(frames), drop, drop_newer=drop_newer) if with_ledger else ()
        let_go = engine.pins.let_go({key: drop})
        engine.store.commit([change, *unneeded, *let_go])
    except CheckpointNotFound as error:  # the thread is not the one that was planned for
        raise ConflictError(f"thread {key.id!r}: {error}; if nothing else removes checkpoints, run verify") from error
    freed(engine, [key, *deleted_by(let_go)])
    return len(drop)


def deleted_by(changes: Iterable[StoreChange]) -> list[ThreadKey]:
    """The threads that changes delete."""
    return [change.key for change in changes if isinstance(change, DeleteThread)]


def _removal(engine: Engine, key: ThreadKey, frames: list[Frame], drop: set[int]) -> Rewrite:
    """Removes frames and rebases what is built on them. Depends on nothing but those frames."""
    bases = {frame.seq: frame.base for frame in frames}
    for frame in frames:
        if frame.base and frame.base not in bases and engine.frame(key, frame.seq).base != frame.base:
            raise ConflictError(f"thread {key.id!r}: another writer removed frame {frame.base} while it was read; try again")
    rebase: list[tuple[int, int, bytes]] = []
    new_blobs: dict[bytes, bytes] = {}
    reader = engine.with_own_cache()
    for frame in frames:
        if frame.seq not in drop and frame.base in drop:
            base = _surviving(bases, drop, frame.base)
            body, blobs = _delta_between(reader, key, base, frame)
            rebase.append((frame.seq, base, body))
            new_blobs |= blobs
    keep = set(new_blobs)
    rewritten = {seq for seq, _, _ in rebase}
    keep.update(_references(engine, key, [f for f in frames if f.seq not in drop and f.seq not in rewritten]))
    for _, _, body in rebase:
        keep.update(references(body))
    noted = frozenset(frame.seq for frame in frames if frame.seq in drop and frame.note is not None)
    newest = max((frame.seq for frame in frames), default=0)
    new = engine.wrapped(new_blobs)
    gone, kept = tuple(sorted(drop)), frozenset(keep)
    return Rewrite(key, gone, tuple(rebase), new, kept, noted=noted, newest=newest, seen=len(frames), refers=references)


def _unneeded(engine: Engine, key: ThreadKey, frames: list[Frame], drop: set[int], *, drop_newer: bool) -> list[PutRecord]:
    """Takes calls and answers out whose reply no remaining checkpoint holds, and steps on lines that are gone."""
    try:
        calls = [record for kind in (CALL, ANSWER) for record in records(engine, key, kind)]
        steps = [(step, _value(engine, key, step).get("at")) for step in records(engine, key, STEP)]
        dead = _dead(frames, drop) if steps else set()
        left = [frame for frame in frames if frame.seq not in drop]
        if not drop_newer:  # a reply is saved before its calls are recorded: those just read are in what is read now
            left += everything(engine, key, low=max(frame.seq for frame in frames) + 1, newest_first=False)
        gone = {_reply(record) for record in calls}
        root = str(_ledger(engine, key, RUN).get(ROOT, ""))
        for said in _conversations(engine, key, left) if gone else ():
            gone -= {reply for _, reply in replies_in(said, lambda: root, engine.codec.encode)}
            if not gone:
                break
    except CorruptionError as error:
        logger.warning("thread %r keeps its ledger, since not all can be read that may need it: %s", key.id, error)
        return []
    unneeded = [record for record in calls if _reply(record) in gone] + [step for step, at in steps if at in dead]
    return [PutRecord(key, record.kind, record.name, None) for record in unneeded]


def _reply(record: Record) -> str:
    """What the key of a call, or of its answer, begins with."""
    return record.name.partition(":")[0]


def _dead(frames: list[Frame], drop: set[int]) -> set[str]:
    """The ids of those that go and that nothing builds on that stays."""
    alive: set[int] = set()
    for frame in reversed(frames):
        if frame.seq not in drop or frame.seq in alive:
            alive |= {frame.seq, frame.base}
    return {frame.id for frame in frames if frame.seq not in alive}


def _conversations(engine: Engine, key: ThreadKey, frames: list[Frame]) -> Iterator[list[Any]]:
    """Conversations that together hold every message of these checkpoints, newest first: most states need not be read.

    A run only adds to the conversation that it goes on from; whoever else saves may have left something out.
    """
    ids = {frame.seq: frame.id for frame in frames}
    metas = [(frame.base, load_meta(frame.meta)) for frame in frames]
    held = {
        base
        for base, meta in metas
        if meta.about and meta.parent_id == ids.get(base) and CHOSEN in engine.codec.decode(meta.about)
    }
    for frame in reversed(frames):
        if frame.seq not in held:
            yield messages_in(engine, engine.point(key, frame.seq, frame).node)


def freed(engine: Engine, keys: Sequence[ThreadKey]) -> tuple[str, ...]:
    """After something of these threads was removed: make its bytes leave the files. Says what could not be reached."""
    left = (
        []
        if engine.store.purge()
        else ["somebody still reads, or the disk is full; the removed bytes leave the files when that is over"]
    )
    left += _forget_words(engine, keys)
    names = ", ".join(repr(key.id) for key in keys[:3]) + (", ..." if len(keys) > 3 else "")
    for what in left:
        logger.warning("thread %s: %s", names or "(deleted before)", what)
    return tuple(left)


def _forget_words(engine: Engine, keys: Sequence[ThreadKey]) -> list[str]:
    """Take threads out of the search index, unless only their heads are in it; says what could not be reached."""
    if Capability.SEARCH not in engine.store.capabilities:
        return []
    rows = {key: engine.store.thread(key) for key in keys}
    try:
        engine.store.index().forget({key: row.head_id if row else None for key, row in rows.items()})
    except SavegameError as error:  # what was asked for is done: only the derived words are left
        return [f"removed words stay in the search index until the next search: {error}"]
    return []


def free_hidden(engine: Engine, key: ThreadKey, epoch: int | None) -> None:
    """Remove what retention hides: done at a natural keyframe, when the deltas outweigh the state."""
    row = engine.store.thread(key)
    if row is not None and row.head:
        frames = list(everything(engine, key))
        drop = {frame.seq for frame in frames if not visible(engine, row, frame)}
        remove(engine, key, frames, unpinned(engine, row, frames, drop), epoch=epoch)


def unpinned(engine: Engine, row: ThreadRow, frames: list[Frame], drop: set[int]) -> set[int]:
    """What of `drop` no agent's checkpoint names: of whichever agent it was."""
    agents = {load_meta(frame.meta).agent_id for frame in frames if frame.seq in drop} | {row.agent}
    pinned = engine.pins.named(agents, but=[row.key]) if drop else {}
    return {frame.seq for frame in frames if frame.seq in drop and frame.id not in pinned}


def with_delta(engine: Engine, key: ThreadKey, seq: int) -> Frame:
    """One frame with its delta. Raises CheckpointNotFound."""
    found = engine.store.frames(key, low=seq, high=seq, deltas=True)
    if not found:
        raise CheckpointNotFound(f"thread {key.id!r} has no frame {seq}")
    return found[0]


def _surviving(bases: dict[int, int], drop: set[int], seq: int) -> int:
    while seq in drop:
        seq = bases.get(seq, 0)
    return seq


def _delta_between(reader: Engine, key: ThreadKey, base: int, frame: Frame) -> tuple[bytes, dict[bytes, bytes]]:
    """The stored delta of a frame against an older ancestor (0: the whole state), and the large values that it needs."""
    before = reader.remembered(key, base) if base else None
    after = reader.remembered(key, frame.seq, frame)
    ops = deltas.whole(after) if before is None else diff.difference(reader.codec, before, unpack_raw(to_bytes(after)))[0]
    smaller, blobs = take_out_ops(ops)
    return reader.wrap(deltas.dump(smaller), with_blobs=bool(blobs)), blobs


def _references(engine: Engine, key: ThreadKey, frames: list[Frame]) -> Iterator[bytes]:
    """The large values that frames refer to, read from their deltas where there may be any."""
    for frame in frames:
        meta = load_meta(frame.meta)
        if meta.blobs or meta.parent_id is None or _is_rebased(engine, key, frame, meta.parent_id):
            yield from references(with_delta(engine, key, frame.seq).delta or PLAIN)


def _is_rebased(engine: Engine, key: ThreadKey, frame: Frame, parent_id: str) -> bool:
    if not frame.base:
        return True
    found = engine.store.frames(key, low=frame.base, high=frame.base)
    return not found or found[0].id != parent_id


# -- checking --------------------------------------------------------------------------------------


def verify(engine: Engine, namespace: str, progress: Progress, thread_id: str | None = None) -> Report:
    """Read every byte: checksums, structure, digests, and that every state comes back; of one thread, or of all.

    Raises ThreadNotFound if there is no such thread.
    """
    engine = engine.without_cache()  # what is in memory says nothing about what is stored
    if thread_id is not None:
        _refuse_unknown(engine, ThreadKey(namespace, thread_id))
    problems: list[Problem] = []
    try:
        problems.extend(engine.store.check(namespace, thread_id))
    except CorruptionError as error:  # so badly damaged that not even the rest can be looked at
        problems.append(Problem(error.thread_id, error.checkpoint_id, error.place or "store", str(error)))
    broken = {(problem.thread_id, problem.checkpoint_id) for problem in problems}
    rows = _sound_rows(engine, namespace, problems, thread_id)
    problems += _misshapen(engine, namespace, thread_id).values()
    checkpoints = 0
    for done, row in enumerate(rows, 1):
        checkpoints += row.frames
        found: list[Problem] = []
        try:
            found.extend(_check_history(engine, row.key))
        except CorruptionError as error:  # its frames cannot even be listed
            found.append(Problem(row.key.id, error.checkpoint_id, error.place or "frames", str(error)))
        problems += [problem for problem in found if (problem.thread_id, problem.checkpoint_id) not in broken]
        progress(done, len(rows))
    return Report(tuple(problems), len(rows), checkpoints)


def _refuse_unknown(engine: Engine, key: ThreadKey) -> None:
    """Raise ThreadNotFound if nothing was ever written to a thread; one that is damaged is there."""
    with suppress(CorruptionError):
        if engine.store.thread(key) is None:
            raise ThreadNotFound(f"thread not found: {key.id!r}; list threads with vault.threads()")


def _misshapen(engine: Engine, namespace: str, thread_id: str | None = None) -> dict[tuple[ThreadKey, Record], Problem]:
    """Records with sound bytes and the wrong shape for their kind, also beside threads without checkpoints."""
    found: dict[tuple[ThreadKey, Record], Problem] = {}
    try:
        keys = _keys(engine, namespace, thread_id)
    except CorruptionError:  # not even the threads can be listed, which the store's own check reports
        return found
    for key in keys:
        try:
            kinds = [kind for kind in engine.store.kinds(key) if companions.is_checked(kind)]
            for record in (record for kind in kinds for record in records(engine, key, kind)):
                try:
                    companions.read(engine.codec, key, record)
                except CorruptionError as error:
                    found[key, record] = Problem(key.id, None, str(error.place), str(error.__cause__))
        except CorruptionError:  # damaged bytes, which the store's own check reports
            continue
    return found


def _sound_rows(engine: Engine, namespace: str, problems: list[Problem], thread_id: str | None) -> list[ThreadRow]:
    """The rows of threads that can be looked into; of the others there is a problem already, or is now."""
    damaged: set[str] = set()
    try:
        rows = list(thread_rows(engine, namespace, damaged, thread_id=thread_id))
    except CorruptionError:  # it cannot even be told which threads there are
        if problems:
            return []
        raise
    told = {problem.thread_id for problem in problems}
    problems += [Problem(name, None, "thread row", "it cannot be read") for name in sorted(damaged - told)]
    return rows


def _check_history(engine: Engine, key: ThreadKey) -> Iterator[Problem]:
    """Digests against metadata and deltas, frame by frame; the state at the end of every line."""
    digests: dict[str, bytes] = {}
    ids: dict[int, str] = {}
    ends: dict[int, Frame] = {}
    for seq in _sequence_numbers(engine, key):
        try:
            frame = with_delta(engine, key, seq)
            meta = load_meta(frame.meta)
            payload = unwrap(frame.delta or b"")[1]
            deltas.parse(payload)
        except CheckpointNotFound:  # pruned meanwhile
            continue
        except CorruptionError as error:
            yield Problem(key.id, error.checkpoint_id, error.place or f"frame {seq}", str(error))
            continue
        ids[seq], digests[frame.id] = frame.id, meta.digest
        ends.pop(frame.base, None)
        ends[seq] = frame
        whole = ids.get(frame.base) == meta.parent_id and meta.forked_from is None
        parent = digests.get(meta.parent_id, b"") if meta.parent_id else b""
        yield from _check_large_values(engine, key, frame)
        packed = frame.meta[DIGEST_BYTES:]
        if whole and digest(parent, key.id, frame.id, packed, payload) != meta.digest:
            yield Problem(key.id, frame.id, f"digest of frame {seq}", "its history does not add up to its digest")
    for frame in ends.values():
        try:
            engine.point(key, frame.seq, frame)
        except CheckpointNotFound:
            continue
        except CorruptionError as error:
            yield Problem(key.id, error.checkpoint_id, error.place or f"frame {frame.seq}", str(error))


def _check_large_values(engine: Engine, key: ThreadKey, frame: Frame) -> Iterator[Problem]:
    for name in references(frame.delta or PLAIN):
        place = f"large value {name.hex()[:12]}"
        try:
            if engine.store.blob(key, name) is None:
                yield Problem(key.id, frame.id, place, "it is missing")
        except CorruptionError as error:
            yield Problem(key.id, frame.id, place, str(error))


def _sequence_numbers(engine: Engine, key: ThreadKey) -> Iterator[int]:
    """Those of every frame, damaged ones too."""
    low = 1
    while True:
        try:
            found = [frame.seq for frame in engine.store.frames(key, low=low, limit=PAGE)]
        except CorruptionError as error:
            if error.seq is None or error.seq < low:
                raise
            yield from [frame.seq for frame in engine.store.frames(key, low=low, high=error.seq - 1)]
            yield error.seq
            low = error.seq + 1
            continue
        yield from found
        if len(found) < PAGE:
            return
        low = found[-1] + 1


# -- repairing -------------------------------------------------------------------------------------


def repair(engine: Engine, namespace: str, progress: Progress) -> Report:
    """Set damaged rows aside, keep whatever a keyframe still brings back, move heads to sound checkpoints."""
    before = verify(engine, namespace, lambda done, total: None)
    if before.ok:
        return before
    beside = {problem.thread_id for problem in before.problems if problem.checkpoint_id is None}
    done = engine.store.mend(namespace)
    for (key, record), problem in _misshapen(engine, namespace).items():
        moved = PutRecord(key, ASIDE, f"{record.kind} {record.name}", record.value)
        engine.store.commit([moved, PutRecord(key, record.kind, record.name, None)])
        done.append(f"thread {key.id!r}: set aside: {problem.place}: {problem.message}")
    rows = list(thread_rows(engine, namespace))
    for number, row in enumerate(rows, 1):
        engine.cache.forget(row.key)
        try:
            done += _mend_thread(engine, row)
            if beside & {row.key.id, None}:  # a record may have been lost, and nobody knows which
                done += _mend_ledger(engine, row.key)
        except CorruptionError as error:  # its frames cannot even be listed: the others are put right nevertheless
            done.append(f"thread {row.key.id!r}: left as it is: {error}")
        progress(number, len(rows))
    after = verify(engine, namespace, lambda done, total: None)
    return Report(after.problems, after.threads, after.checkpoints, tuple(done))


def _mend_thread(engine: Engine, row: ThreadRow) -> list[str]:
    """Set aside what does not load; keep what loads although the frame that it builds on is damaged."""
    key = row.key
    frames: dict[int, Frame] = {}
    rebase: list[tuple[int, int, bytes]] = []
    lost: list[int] = []
    blobs: dict[bytes, bytes] = {}
    reader = engine.with_own_cache()
    for seq in list(_sequence_numbers(engine, key)):
        try:
            found = engine.store.frames(key, low=seq, high=seq, deltas=True)
            if not found:
                continue
            frame = found[0]
            reader.remembered(key, seq, frame)
        except CorruptionError:
            lost.append(seq)
            continue
        frames[seq] = frame
        if frame.base and frame.base not in frames:
            base = _grandparent(frames, frame)
            body, more = _delta_between(reader, key, base, frame)
            blobs |= more
            rebase.append((seq, base, body))
    if not lost and not rebase:
        return []
    head = row.head if row.head in frames or not row.head else _newest_sound(row, frames)
    engine.store.commit([Rewrite(key, tuple(lost), tuple(rebase), engine.wrapped(blobs), head=head, aside=True)])
    moved = f"; the head is now {frames[head].id if head else '(none)'}" if head != row.head else ""
    return [f"thread {key.id!r}: {len(lost)} checkpoints set aside, {len(rebase)} kept by joining the gap{moved}"]


def _mend_ledger(engine: Engine, key: ThreadKey) -> list[str]:
    """Where a call may have been made of which the ledger knows nothing any more, let it say that nobody knows."""
    kept = {kind: _ledger(engine, key, kind) for kind in LEDGER}
    row = engine.store.thread(key)
    head = None if row is None else row.head
    root = kept[RUN].get(ROOT) or os.urandom(8).hex()
    now = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=engine.store.clock())
    encode = engine.codec.encode
    asked = {name: digest_of(value["name"], value["arguments"], encode) for name, value in kept[CALL].items()}
    new: dict[tuple[str, str], Any] = {}
    shared: Shared = {}
    for frame, point in engine.points(key, list(everything(engine, key, newest_first=False))):
        said = messages_in(engine, point.node, shared)
        place, reply = reply_of(said, lambda: root, encode) or (0, "")
        if reply and (is_journaled(said[place]) or (frame.seq == head and any(kept.values()))):  # else no run was there
            known = {name: digest for name, digest in asked.items() if name.startswith(f"{reply}:")}
            found = stand_ins(kept, said, place, reply, now, known, encode)
            new |= {
                at: value for at, value in found.items() if at not in new or ledger.gives_way(*at, new[at], value, (), encode)
            }
            asked |= {
                name: digest_of(new[CALL, name]["name"], new[CALL, name]["arguments"], encode)
                for kind, name in found
                if kind == CALL
            }
    if not new:
        return []
    new[RUN, ROOT] = root
    changes = [(kind, name, engine.wrap(engine.codec.encode(value))) for (kind, name), value in new.items()]
    engine.store.commit([PutRecord(key, *change) for change in changes])
    lost = [name for (kind, name), value in new.items() if kind == CALL and value["status"] == CallStatus.UNKNOWN]
    return [f"thread {key.id!r}: nobody knows any more whether call {name} was made; resolve it" for name in lost]


def _grandparent(frames: dict[int, Frame], orphan: Frame) -> int:
    """The frame that a damaged parent very likely continued from, so that its line stays one; 0 if none fits."""
    step = load_meta(orphan.meta).step - 2
    older = (seq for seq, frame in frames.items() if seq < orphan.base and load_meta(frame.meta).step == step)
    return max(older, default=0)


def _newest_sound(row: ThreadRow, frames: dict[int, Frame]) -> int:
    """The newest sound checkpoint before a lost head, else the newest at all; 0 if there is none."""
    return max((seq for seq in frames if seq < row.head), default=max(frames, default=0))
