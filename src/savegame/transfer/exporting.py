"""Writing threads to one file of JSON lines that people and other programs can read. Touches lineage, text, engine, frames.

Every line ends with a checksum over itself and the checksum of the line before, so that a changed, missing, repeated or
swapped line is noticed; the last line counts the others. `docs/format/export.md` has every kind of line; `importing.py` reads
them. A file is written beside its target and appears whole or not at all. The checkpoints of each thread are those of one
moment.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

from savegame.encoding.frames import PLAIN, WITH_BLOBS, movable, references, unwrap, wrap
from savegame.encoding.json_form import to_text
from savegame.errors import (
    AlreadyExistsError,
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    ThreadNotFound,
    of_system,
)
from savegame.model import Frame, ThreadKey, ThreadRow, checked_id
from savegame.timeline import companions, derived
from savegame.timeline.companions import Way, policy_of
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import Lineage
from savegame.timeline.verify import Progress
from savegame.waiting.retrying import PLANS

EXPORT_FORMAT: Final = 1

Line = dict[str, Any]
"""The content of a line: its first key is its kind."""

Place = tuple[int, str, int]
"""Sequence number, id and base of a frame."""


def sum_of(text: bytes, before: str) -> str:
    """The checksum of a line: over that of the line before and the text of this one up to its own checksum."""
    return hashlib.sha256(before.encode() + text).hexdigest()[:32]


def export(
    engine: Engine, namespace: str, path: str, *, threads: Sequence[str] | None, agent: str | None, progress: Progress
) -> int:
    """Write threads to a new file: those named, those of an agent, or all. Returns the number of checkpoints."""
    keys = _chosen(engine, namespace, threads, agent)
    with _new_file(os.path.realpath(path)) as file:
        writer = _Writer(file)
        now = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=engine.store.clock())
        created_at = now.isoformat().replace("+00:00", "Z")
        writer.write({"savegame-export": EXPORT_FORMAT, "namespace": namespace, "created_at": created_at})
        for done, key in enumerate(keys, 1):
            _write_steadily(Lineage(engine, key), writer)
            progress(done, len(keys))
        counts = writer.counts
        checkpoints = counts["checkpoint"]
        writer.write({"end": True, "threads": counts["thread"], "checkpoints": checkpoints, "records": counts["record"]})
    return checkpoints


def _chosen(engine: Engine, namespace: str, threads: Sequence[str] | None, agent: str | None) -> list[ThreadKey]:
    if threads is None:
        wanted = None if agent is None else checked_id(agent, "the agent's id")
        return [ThreadKey(namespace, thread_id) for thread_id, _ in engine.store.heads(namespace, agent=wanted)]
    if agent is not None:
        raise InvalidInputError("pass either threads= or agent=, not both")
    if isinstance(threads, str):
        raise InvalidInputError(f"threads= takes a list of ids; write [{threads!r}] for one")
    keys = [ThreadKey(namespace, name) for name in dict.fromkeys(checked_id(name, "a thread's id") for name in threads)]
    for key in keys:
        if not _is_worth_it(Lineage(engine, key)):
            raise ThreadNotFound(f"thread not found: {key.id!r}; nothing was exported")
    return list(dict.fromkeys(one for key in keys for one in derived.with_children(engine, [key])))


def _is_worth_it(thread: Lineage) -> bool:
    """Whether a thread has anything besides a lease, which is not exported."""
    row = thread.row()
    return row is not None and bool(row.frames or _kinds(thread))


def _kinds(thread: Lineage) -> list[str]:
    """The kinds of records beside a thread that are exported."""
    return [kind for kind in thread.kinds() if policy_of(kind).copy is not Way.DROP]


# -- files -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _new_file(target: str) -> Iterator[BinaryIO]:
    """A file that appears at its target, flushed, if the block succeeds; otherwise nothing remains."""
    if os.path.lexists(target):
        raise _taken(target)
    fresh = f"{target}.{secrets.token_hex(16)}.partial"  # a killed export does not block the next one
    try:
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.link(fresh, target)
            finally:
                os.unlink(fresh)
        _flush_names(os.path.dirname(target))
    except FileExistsError as error:
        raise _taken(target) from error
    except OSError as error:
        raise of_system(error, f"{target}: the export cannot be written", "free some space, or choose another place") from error


def _taken(target: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"{target} already exists; an export never overwrites a file, choose another name")


def _flush_names(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Writer:
    """Writes lines, each with its checksum, and counts them by kind."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._before = ""
        self.counts: Counter[str] = Counter()

    def write(self, line: Line) -> None:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))[:-1].encode()
        self._before = sum_of(text, self._before)
        self._file.write(b'%s,"sum":"%s"}\n' % (text, self._before.encode()))
        self.counts[next(iter(line))] += 1

    def mark(self) -> tuple[int, str, Counter[str]]:
        """The current position, for `back_to`."""
        return self._file.tell(), self._before, self.counts.copy()

    def back_to(self, mark: tuple[int, str, Counter[str]]) -> None:
        """Discard what was written since a mark."""
        start, self._before, self.counts = mark
        self._file.seek(start)
        self._file.truncate()


# -- threads ---------------------------------------------------------------------------------------


def _write_steadily(thread: Lineage, writer: _Writer) -> None:
    """Write a thread as it is at one moment; starts over if frames are removed or rewritten meanwhile."""
    for _ in range(PLANS):
        row = thread.row()
        if row is None or not _is_worth_it(thread):
            return
        places = _places(thread, row)
        if not _are_all(row, places):
            continue
        mark = writer.mark()
        try:
            _write_thread(thread, row, places, writer)
        except (CheckpointNotFound, CorruptionError):
            if _places(thread, row) == places:
                raise
        else:
            if _places(thread, row) == places:
                return
        writer.back_to(mark)
    raise ConflictError(f"thread {thread.id!r} keeps being pruned while it is exported; try again later, or run verify")


def _are_all(row: ThreadRow, places: list[Place]) -> bool:
    """Whether these are exactly the frames of the row, with none removed or added since."""
    heads = {checkpoint_id for seq, checkpoint_id, _ in places if seq == row.head}
    return len(places) == row.frames and heads == ({row.head_id} if row.head else set())


def _places(thread: Lineage, row: ThreadRow) -> list[Place]:
    """The remaining frames of those that existed when the row was read."""
    return [(frame.seq, frame.id, frame.base) for frame in thread.everything(high=row.last, newest_first=False)]


def _write_thread(thread: Lineage, row: ThreadRow, places: list[Place], writer: _Writer) -> None:
    writer.write({"thread": row.key.id, "agent": row.agent})
    ids: dict[int, str | None] = {0: None}
    large: set[bytes] = set()
    for seq, checkpoint_id, base in places:
        frame = thread.frame(seq, delta=True)
        if base not in ids:
            raise CorruptionError(
                f"thread {row.key.id!r}: checkpoint {checkpoint_id} builds on frame {base}, which is missing; run verify",
                thread_id=row.key.id,
                checkpoint_id=checkpoint_id,
                place=f"base {base} of frame {seq}",
            )
        ids[seq] = frame.id
        _write_frame(thread, frame, ids[base], large, writer)
    for kind in _kinds(thread):
        for record in thread.records(kind):
            if companions.is_checked(thread.engine, kind):
                thread.read(record)
            writer.write({"record": record.name, "kind": kind, "value": to_text("value", movable(record.value))})
    writer.write({"head": row.head_id})


def _write_frame(thread: Lineage, frame: Frame, base: str | None, large: set[bytes], writer: _Writer) -> None:
    """Write a checkpoint, after those of its large values that were not written for the thread yet."""
    flags, payload = unwrap(frame.delta or b"")
    body = wrap(payload, compress=False, with_blobs=bool(flags & WITH_BLOBS))
    for name in references(body):
        if name not in large:
            large.add(name)
            writer.write({"large": name.hex(), "content": to_text("content", PLAIN + thread.large_value(name))})
    writer.write(
        {
            "checkpoint": frame.id,
            "base": base,
            "meta": to_text("meta", frame.meta),
            "note": None if frame.note is None else to_text("note", frame.note),
            "delta": to_text("delta", body),
        }
    )
