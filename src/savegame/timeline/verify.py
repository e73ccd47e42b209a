"""Reading everything that is stored, and reporting damage: checksums, structure, digests, states, records.

Also checks deleted threads that are kept for agents. Touches graveyard, companions, listing, lineage and below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from savegame.encoding import delta as deltas
from savegame.encoding.frames import DIGEST_BYTES, PLAIN, digest, load_meta, references, unwrap
from savegame.errors import CheckpointNotFound, CorruptionError, ThreadNotFound
from savegame.model import Frame, Problem, Record, Report, ThreadKey, ThreadRow
from savegame.timeline import companions, graveyard
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import FRAMES_AT_ONCE, Lineage
from savegame.timeline.listing import thread_keys, thread_rows

Progress = Callable[[int, int], None]


def ignore(done: int, total: int) -> None:
    """Progress that is not reported."""


def verify(engine: Engine, namespace: str, progress: Progress, thread_id: str | None = None) -> Report:
    """Check one thread, or all of a namespace and, without counting them, the deleted ones that are kept for agents.

    Raises ThreadNotFound if the thread does not exist.
    """
    if thread_id is not None:
        _refuse_unknown(engine, ThreadKey(namespace, thread_id))
        return check(engine, namespace, progress, thread_id)
    return with_yards(check, engine, namespace, progress)


def with_yards(look: Callable[[Engine, str, Progress], Report], engine: Engine, namespace: str, progress: Progress) -> Report:
    """What `look` reports about a namespace and about its yards."""
    report = look(engine, namespace, progress)
    try:
        yards = graveyard.yards(engine, namespace)
    except CorruptionError:  # which the report says
        return report
    for yard in yards:
        found = look(engine, yard, ignore)
        problems = tuple(replace(problem, place=f"{problem.place} of a deleted thread") for problem in found.problems)
        report = replace(report, problems=report.problems + problems, repaired=report.repaired + found.repaired)
    return report


def check(engine: Engine, namespace: str, progress: Progress, thread_id: str | None = None) -> Report:
    """Read every byte of one thread or of all: checksums, structure, digests, and whether every state loads."""
    engine = engine.without_cache()  # the cache would hide damage
    problems: list[Problem] = []
    try:
        problems.extend(engine.store.check(namespace, thread_id))
    except CorruptionError as error:  # so badly damaged that the store cannot check the rest
        problems.append(Problem(error.thread_id, error.checkpoint_id, error.place or "store", str(error)))
    broken = {(problem.thread_id, problem.checkpoint_id) for problem in problems}
    rows = _sound_rows(engine, namespace, problems, thread_id)
    problems += misshapen(engine, namespace, thread_id).values()
    checkpoints = 0
    for done, row in enumerate(rows, 1):
        checkpoints += row.frames
        found: list[Problem] = []
        try:
            found.extend(_check_history(Lineage(engine, row.key)))
        except CorruptionError as error:  # its frames cannot even be listed
            found.append(Problem(row.key.id, error.checkpoint_id, error.place or "frames", str(error)))
        problems += [problem for problem in found if (problem.thread_id, problem.checkpoint_id) not in broken]
        progress(done, len(rows))
    return Report(tuple(problems), len(rows), checkpoints)


def _refuse_unknown(engine: Engine, key: ThreadKey) -> None:
    """Raise ThreadNotFound if nothing was written to a thread. Damaged threads count as existing."""
    with suppress(CorruptionError):
        if engine.store.thread(key) is None:
            raise ThreadNotFound(f"thread not found: {key.id!r}; list threads with vault.threads()")


def misshapen(engine: Engine, namespace: str, thread_id: str | None = None) -> dict[tuple[ThreadKey, Record], Problem]:
    """Records with sound bytes but the wrong shape for their kind, also beside threads without checkpoints."""
    found: dict[tuple[ThreadKey, Record], Problem] = {}
    try:
        keys = thread_keys(engine, namespace, thread_id)
    except CorruptionError:  # not even the threads can be listed, which the store's own check reports
        return found
    for key in keys:
        thread = Lineage(engine, key)
        try:
            kinds = [kind for kind in thread.kinds() if companions.is_checked(engine, kind)]
            for record in (record for kind in kinds for record in thread.records(kind)):
                try:
                    thread.read(record)
                except CorruptionError as error:
                    found[key, record] = Problem(key.id, None, str(error.place), str(error.__cause__))
        except CorruptionError:  # damaged bytes, which the store's own check reports
            continue
    return found


def _sound_rows(engine: Engine, namespace: str, problems: list[Problem], thread_id: str | None) -> list[ThreadRow]:
    """The rows of threads that can be read; the others already have a problem, or get one."""
    damaged: set[str] = set()
    try:
        rows = list(thread_rows(engine, namespace, damaged, thread_id=thread_id))
    except CorruptionError:  # the threads cannot even be listed
        if problems:
            return []
        raise
    known = {problem.thread_id for problem in problems}
    problems += [Problem(name, None, "thread row", "it cannot be read") for name in sorted(damaged - known)]
    return rows


def _check_history(thread: Lineage) -> Iterator[Problem]:
    """Digests against metadata and deltas, frame by frame; the state at the end of every line."""
    digests: dict[str, bytes] = {}
    ids: dict[int, str] = {}
    ends: dict[int, Frame] = {}
    for seq in sequence_numbers(thread):
        try:
            frame = thread.frame(seq, delta=True)
            meta = load_meta(frame.meta)
            payload = unwrap(frame.delta or b"")[1]
            deltas.parse(payload)
        except CheckpointNotFound:  # pruned meanwhile
            continue
        except CorruptionError as error:
            yield Problem(thread.id, error.checkpoint_id, error.place or f"frame {seq}", str(error))
            continue
        ids[seq], digests[frame.id] = frame.id, meta.digest
        ends.pop(frame.base, None)
        ends[seq] = frame
        whole = ids.get(frame.base) == meta.parent_id and meta.forked_from is None
        parent = digests.get(meta.parent_id, b"") if meta.parent_id else b""
        yield from _check_large_values(thread, frame)
        packed = frame.meta[DIGEST_BYTES:]
        if whole and digest(parent, thread.id, frame.id, packed, payload) != meta.digest:
            yield Problem(thread.id, frame.id, f"digest of frame {seq}", "its history does not match its digest")
    for frame in ends.values():
        try:
            thread.point(frame.seq, frame)
        except CheckpointNotFound:
            continue
        except CorruptionError as error:
            yield Problem(thread.id, error.checkpoint_id, error.place or f"frame {frame.seq}", str(error))


def _check_large_values(thread: Lineage, frame: Frame) -> Iterator[Problem]:
    for name in references(frame.delta or PLAIN):
        place = f"large value {name.hex()[:12]}"
        try:
            if thread.store.blob(thread.key, name) is None:
                yield Problem(thread.id, frame.id, place, "it is missing")
        except CorruptionError as error:
            yield Problem(thread.id, frame.id, place, str(error))


def sequence_numbers(thread: Lineage) -> Iterator[int]:
    """The sequence numbers of every frame, including damaged ones."""
    low = 1
    while True:
        try:
            found = [frame.seq for frame in thread.store.frames(thread.key, low=low, limit=FRAMES_AT_ONCE)]
        except CorruptionError as error:
            if error.seq is None or error.seq < low:
                raise
            yield from [frame.seq for frame in thread.store.frames(thread.key, low=low, high=error.seq - 1)]
            yield error.seq
            low = error.seq + 1
            continue
        yield from found
        if len(found) < FRAMES_AT_ONCE:
            return
        low = found[-1] + 1
