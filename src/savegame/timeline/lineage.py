"""Walking a thread's checkpoints: its lines, what retention hides, what a reference means. Touches engine, frames, model."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from savegame.checkpoint import Checkpoint
from savegame.encoding.frames import Meta, load_meta, load_note
from savegame.encoding.tree import Node, Shared, child_of, count_of, value_of
from savegame.errors import CheckpointNotFound, ConflictError, CorruptionError, InvalidInputError, ThreadNotFound
from savegame.messages.domain import plain_messages
from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.timeline.engine import Engine
from savegame.waiting.retrying import PLANS

PAGE: Final = 256
CHOSEN: Final = "chosen"
SHORTEST_PREFIX: Final = 6

Ref = str | int | Checkpoint
T = TypeVar("T")


def line(engine: Engine, key: ThreadKey, seq: int, *, page: int = PAGE, tries: int = PLANS) -> Iterator[Frame]:
    """The frame with a sequence number and its ancestors, newest first; pages underneath.

    Raises ConflictError if frames on the way are removed over and over while it is read.
    """
    if not tries:
        raise ConflictError(f"thread {key.id!r} keeps being pruned while it is read; try again later")
    start, last = seq, None
    while seq:
        try:
            frames = engine.store.frames(key, high=seq, limit=page, newest_first=True)
        except CorruptionError:  # of this one, or of one on another line that does not matter here
            frames = engine.store.frames(key, low=seq, high=seq)
        for frame in frames:
            if frame.seq == seq:
                yield frame
                last, seq = frame, frame.base
        if seq and (not frames or seq >= frames[-1].seq):
            if last is not None and engine.store.frames(key, low=last.seq, high=last.seq) != [last]:  # pruned meanwhile
                again = line(engine, key, start, page=page, tries=tries - 1)
                yield from (frame for frame in again if frame.seq < last.seq)
            return


def messages_in(engine: Engine, node: Node | None, shared: Shared | None = None) -> list[Any]:
    """What was said in a state, as plain data; nothing if it is no conversation."""
    messages = None if node is None else child_of(node, "messages")
    return [] if messages is None or count_of(messages) is None else plain_messages(value_of(engine.codec, messages, shared))


def everything(
    engine: Engine, key: ThreadKey, *, low: int = 0, high: int | None = None, newest_first: bool = True
) -> Iterator[Frame]:
    """Every frame of a thread, branches too, in order; pages underneath."""
    while True:
        frames = engine.store.frames(key, low=low, high=high, limit=PAGE, newest_first=newest_first)
        yield from frames
        if len(frames) < PAGE:
            return
        if newest_first:
            high = frames[-1].seq - 1
        else:
            low = frames[-1].seq + 1


def visible(engine: Engine, row: ThreadRow, frame: Frame) -> bool:
    """Whether retention still shows a checkpoint."""
    if engine.retention.keeps_all or frame.seq == row.head:
        return True
    meta = load_meta(frame.meta)
    return not engine.retention.hides(
        below_floor=frame.seq < row.floor and not _chosen(engine, row, meta),
        labelled=load_note(frame.note)[0] is not None,
        created_us=meta.created_us,
        now_us=engine.store.clock(),
    )


def shown(engine: Engine, row: ThreadRow) -> int:
    """How many checkpoints of a thread retention still shows, on all branches. Reads only those that it may hide.

    Where one of these is damaged, all are counted.
    """
    if engine.retention.keeps_all:
        return row.frames
    high = row.floor - 1 if engine.retention.ttl is None else None
    try:
        frames = everything(engine, row.key, high=high) if high is None or high > 0 else ()
        return row.frames - sum(not visible(engine, row, frame) for frame in frames)
    except CorruptionError:
        return row.frames


def _chosen(engine: Engine, row: ThreadRow, meta: Meta) -> bool:
    """Whether the strategy of a run chose a checkpoint, and it is one of the newest so many that were chosen."""
    mark = _mark(engine, meta)
    if mark is None or not mark[1] or engine.retention.max_checkpoints is None:
        return False
    newest = newest_mark(engine, row.key, row.head)
    return newest is not None and bool(newest[0] - mark[0] < engine.retention.max_checkpoints)


def newest_mark(engine: Engine, key: ThreadKey, seq: int) -> list[Any] | None:
    """The mark of the newest checkpoint on a line that a run has made: others may have saved since."""
    marks = (_mark(engine, load_meta(frame.meta)) for frame in line(engine, key, seq, page=8))
    return next((mark for mark in marks if mark is not None), None)


def _mark(engine: Engine, meta: Meta) -> list[Any] | None:
    """How many checkpoints the strategy of a run had chosen up to one, and whether that is one of them."""
    found: list[Any] | None = engine.codec.decode(meta.about).get(CHOSEN) if meta.about else None
    return found


class Listed(NamedTuple):
    """A thread as a listing meets it: its row and the frame of its head, or what is wrong with them."""

    id: str
    row: ThreadRow | None
    head: Frame | None
    damage: CorruptionError | None = None


def listed(
    engine: Engine, namespace: str, *, agent: str | None = None, after: str | None = None, page: int = PAGE
) -> Iterator[Listed]:
    """Threads that have a head, by id; pages underneath. One that is damaged does not stop the listing of the others."""
    store = engine.store
    while True:
        try:
            found = store.threads(namespace, after=after, limit=page, agent=agent)
            heads = store.head_frames(found.items)
        except CorruptionError:
            yield from _one_by_one(engine, namespace, agent, after)
            return
        for row, head in zip(found.items, heads, strict=True):
            if head is not None:
                yield Listed(row.key.id, row, head)
        if found.next is None:
            return
        after = found.next


def _one_by_one(engine: Engine, namespace: str, agent: str | None, after: str | None) -> Iterator[Listed]:
    for thread_id, head_id in engine.store.heads(namespace, agent=agent):
        if head_id is None or thread_id <= (after or ""):
            continue
        try:
            row = engine.store.thread(ThreadKey(namespace, thread_id))
            head = engine.store.head_frames([row])[0] if row is not None and row.head else None
        except CorruptionError as error:
            yield Listed(thread_id, None, None, error)
            continue
        if head is not None:
            yield Listed(thread_id, row, head)


def existing(engine: Engine, key: ThreadKey) -> ThreadRow:
    """The row of a thread that has a checkpoint, be it without a head. Raises ThreadNotFound."""
    row = engine.store.thread(key)
    if row is None or not row.frames:
        raise ThreadNotFound(f"thread not found: {key.id!r} has no checkpoints")
    return row


def resolve(engine: Engine, key: ThreadKey, ref: Ref | None = None, *, at: dt.datetime | None = None) -> Frame:
    """The checkpoint that a reference means. Raises CheckpointNotFound; InvalidInputError for an ambiguous prefix."""
    row = existing(engine, key)
    frame = _find(engine, key, row, ref, at)
    if frame is None or not visible(engine, row, frame):
        what = f"at or before {at.isoformat()}" if at is not None else repr(ref)
        raise CheckpointNotFound(f"checkpoint not found: {what} in thread {key.id!r}; thread.history() lists them")
    return frame


def by_text(text: str, verb: Callable[[Ref], T]) -> T:
    """What a verb gives for what people and models write: an id, label or `head~n`, else a step, `latest` like `head`.

    Raises CheckpointNotFound.
    """
    meanings: list[Ref] = [text]
    if text.isdecimal() and text.isascii():
        meanings.append(int(text))
    elif text == "latest":
        meanings.append("head")
    for meaning in meanings[:-1]:
        try:
            return verb(meaning)
        except CheckpointNotFound:
            continue
    return verb(meanings[-1])


def _find(engine: Engine, key: ThreadKey, row: ThreadRow, ref: Any, at: dt.datetime | None) -> Frame | None:
    if at is not None:
        if ref is not None:
            raise InvalidInputError("give a reference or at=, not both")
        if not isinstance(at, dt.datetime) or at.tzinfo is None:
            raise InvalidInputError("at= needs a time with a zone, for example datetime.now(timezone.utc)")
        frames = line(engine, key, row.head)
        return next((frame for frame in frames if load_meta(frame.meta).created_at <= at), None)
    if isinstance(ref, Checkpoint):
        ref = ref.id
    if isinstance(ref, bool) or not isinstance(ref, (str, int)):
        raise InvalidInputError(f"a reference is an id, a prefix, a label, 'head~n', a step or a checkpoint, not {ref!r}")
    if isinstance(ref, int):
        return next((frame for frame in line(engine, key, row.head) if load_meta(frame.meta).step == ref), None)
    try:
        ref.encode()
    except UnicodeEncodeError:  # no id, label or prefix can be like that
        return None
    found = engine.find(key.namespace, ref)
    if found is not None and found[0] == key:
        return found[1]
    back = re.fullmatch(r"head(?:~(\d{1,12}))?", ref)
    if back:
        return _nth(line(engine, key, row.head, page=min(PAGE, int(back[1] or 0) + 1)), int(back[1] or 0))
    try:
        labelled = fitting(engine, row, lambda frame: load_note(frame.note)[0] == ref, noted=True)
    except CorruptionError:  # a damaged one may have the label
        if len(ref) < SHORTEST_PREFIX:
            raise
        labelled = []
    return labelled[0] if labelled else _by_prefix(engine, row, ref)


def fitting(engine: Engine, row: ThreadRow, fits: Callable[[Frame], bool], *, noted: bool = False) -> list[Frame]:
    """The frames that fit, newest first. Damaged ones are passed over if others fit; else CorruptionError."""
    try:
        frames = engine.store.frames(row.key, newest_first=True, noted=True) if noted else everything(engine, row.key)
        return [frame for frame in frames if fits(frame)]
    except CorruptionError:
        found = [frame for seq in range(row.last, 0, -1) for frame in _sound(engine, row.key, seq, noted) if fits(frame)]
        if not found:
            raise
        return found


def _sound(engine: Engine, key: ThreadKey, seq: int, noted: bool) -> list[Frame]:  # noqa: FBT001 - internal
    try:
        return engine.store.frames(key, low=seq, high=seq, noted=noted)
    except CorruptionError:
        return []


def _nth(frames: Iterator[Frame], number: int) -> Frame | None:
    return next((frame for index, frame in enumerate(frames) if index == number), None)


def _by_prefix(engine: Engine, row: ThreadRow, prefix: str) -> Frame | None:
    if len(prefix) < SHORTEST_PREFIX:
        return None
    matches = fitting(engine, row, lambda frame: frame.id.startswith(prefix))
    if len(matches) > 1:
        raise InvalidInputError(f"{prefix!r} is ambiguous: {', '.join(frame.id for frame in matches[:5])}; give more of the id")
    return matches[0] if matches else None
