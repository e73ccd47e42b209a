"""Walking a thread's checkpoints: its lines, what retention hides, what a reference means.

Touches reading, engine, checkpoint, frames, model.
"""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from savegame.checkpoint import Checkpoint
from savegame.encoding.frames import Meta, load_meta, load_note
from savegame.errors import CheckpointNotFound, ConflictError, CorruptionError, InvalidInputError
from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.timeline.reading import Reader
from savegame.waiting.retrying import PLANS

FRAMES_AT_ONCE: Final = 256
"""Frames in one read of a listing."""

CHOSEN: Final = "chosen"
SHORTEST_PREFIX: Final = 6

Ref = str | int | Checkpoint
T = TypeVar("T")


class Lineage(Reader):
    """A thread's frames in the order of their lines."""

    def at(self, key: ThreadKey) -> Lineage:
        """Another thread of the same store."""
        return Lineage(self.engine, key)

    def line(self, seq: int, *, page: int = FRAMES_AT_ONCE, tries: int = PLANS) -> Iterator[Frame]:
        """The frame with a sequence number and its ancestors, newest first, read in pages that grow from `page`.

        Raises ConflictError if other writers keep removing frames while it is read.
        """
        if not tries:
            raise ConflictError(f"thread {self.id!r} keeps being pruned while it is read; try again later")
        start, last = seq, None
        while seq:
            try:
                frames = self.store.frames(self.key, high=seq, limit=page, newest_first=True)
            except CorruptionError:  # of this one, or of one on another line that does not matter here
                frames = self.store.frames(self.key, low=seq, high=seq)
            page = min(2 * page, FRAMES_AT_ONCE)
            for frame in frames:
                if frame.seq == seq:
                    last, seq = frame, frame.base
                    yield frame
            if seq and (not frames or seq >= frames[-1].seq):
                if last is not None and self.store.frames(self.key, low=last.seq, high=last.seq) != [last]:  # pruned meanwhile
                    again = self.line(start, page=page, tries=tries - 1)
                    yield from (frame for frame in again if frame.seq < last.seq)
                return

    def everything(self, *, low: int = 0, high: int | None = None, newest_first: bool = True) -> Iterator[Frame]:
        """Every frame of the thread, including branches, in order of numbers, read in pages."""
        while True:
            frames = self.store.frames(self.key, low=low, high=high, limit=FRAMES_AT_ONCE, newest_first=newest_first)
            yield from frames
            if len(frames) < FRAMES_AT_ONCE:
                return
            if newest_first:
                high = frames[-1].seq - 1
            else:
                low = frames[-1].seq + 1

    # -- what retention hides ----------------------------------------------------------------------

    def visible(self, row: ThreadRow, frame: Frame) -> bool:
        """Whether retention still shows a checkpoint."""
        retention = self.engine.retention
        if retention.keeps_all or frame.seq == row.head:
            return True
        meta = load_meta(frame.meta)
        return not retention.hides(
            below_floor=frame.seq < row.floor and not self._chosen(row, meta),
            labelled=load_note(frame.note)[0] is not None,
            created_us=meta.created_us,
            now_us=self.store.clock(),
        )

    def count_visible(self, row: ThreadRow) -> int:
        """Number of checkpoints that retention still shows, on all branches. Reads only those that it may hide.

        If one of these is damaged, all are counted.
        """
        if self.engine.retention.keeps_all:
            return row.frames
        high = row.floor - 1 if self.engine.retention.ttl is None else None
        try:
            frames = self.everything(high=high) if high is None or high > 0 else ()
            return row.frames - sum(not self.visible(row, frame) for frame in frames)
        except CorruptionError:
            return row.frames

    def _chosen(self, row: ThreadRow, meta: Meta) -> bool:
        """Whether a checkpoint was chosen by a run's strategy and is among the newest chosen ones."""
        mark, most = self._mark(meta), self.engine.retention.max_checkpoints
        if mark is None or not mark[1] or most is None:
            return False
        newest = self.newest_mark(row.head)
        return newest is not None and bool(newest[0] - mark[0] < most)

    def newest_mark(self, seq: int) -> list[Any] | None:
        """The mark of the newest checkpoint on a line that a run saved; other writers may have saved since."""
        marks = (self._mark(load_meta(frame.meta)) for frame in self.line(seq, page=8))
        return next((mark for mark in marks if mark is not None), None)

    def _mark(self, meta: Meta) -> list[Any] | None:
        """Number of checkpoints chosen by a run's strategy so far, and whether this is one of them."""
        found: list[Any] | None = self.about(meta).get(CHOSEN)
        return found

    def about(self, meta: Meta) -> dict[str, Any]:
        """What a checkpoint says about its state, for listings."""
        found: dict[str, Any] = self.engine.codec.decode(meta.about) if meta.about else {}
        return found

    # -- references --------------------------------------------------------------------------------

    def resolve(self, ref: Ref | None = None, *, at: dt.datetime | None = None, row: ThreadRow | None = None) -> Frame:
        """The checkpoint that a reference means. Raises CheckpointNotFound; InvalidInputError for an ambiguous prefix."""
        row = row or self.existing()
        frame = self._find(row, ref, at)
        if frame is None or not self.visible(row, frame):
            what = f"at or before {at.isoformat()}" if at is not None else repr(ref)
            raise CheckpointNotFound(f"checkpoint not found: {what} in thread {self.id!r}; thread.history() lists them")
        return frame

    def _find(self, row: ThreadRow, ref: Any, at: dt.datetime | None) -> Frame | None:
        if at is not None:
            return self._at_time(row, ref, at)
        if isinstance(ref, Checkpoint):
            ref = ref.id
        if isinstance(ref, bool) or not isinstance(ref, (str, int)):
            raise InvalidInputError(f"a reference is an id, a prefix, a label, 'head~n', a step or a checkpoint, not {ref!r}")
        if isinstance(ref, int):
            return self._at_step(row, ref)
        try:
            ref.encode()
        except UnicodeEncodeError:  # no id, label or prefix has lone surrogates
            return None
        found = self.engine.find(self.key.namespace, ref)
        if found is not None and found[0] == self.key:
            return found[1]
        back = re.fullmatch(r"head(?:~(\d{1,12}))?", ref)
        if back:
            return self._back(row, int(back[1] or 0))
        try:
            labelled = self.fitting(row, lambda frame: load_note(frame.note)[0] == ref, noted=True)
        except CorruptionError:  # a damaged one may have the label
            if len(ref) < SHORTEST_PREFIX:
                raise
            labelled = []
        return labelled[0] if labelled else self._by_prefix(row, ref)

    def _at_time(self, row: ThreadRow, ref: Any, at: dt.datetime) -> Frame | None:
        if ref is not None:
            raise InvalidInputError("pass a reference or at=, not both")
        if not isinstance(at, dt.datetime) or at.tzinfo is None:
            raise InvalidInputError("at= needs a time with a zone, for example datetime.now(timezone.utc)")
        return next((frame for frame in self.line(row.head) if load_meta(frame.meta).created_at <= at), None)

    def _back(self, row: ThreadRow, number: int) -> Frame | None:
        """The checkpoint that many before the head."""
        if row.frames < row.last:  # some are missing, so that numbers do not count them
            return next(islice(self.line(row.head, page=min(FRAMES_AT_ONCE, number + 1)), number, None), None)
        try:
            high = row.head
            while high and number > high - (low := self.store.unbroken(self.key, high)):
                number -= high - low + 1
                high = self.frame(low).base
            return self.frame(high - number) if high else None
        except CheckpointNotFound:  # pruned meanwhile
            return next(islice(self.line(row.head), number, None), None)

    def _at_step(self, row: ThreadRow, step: int) -> Frame | None:
        """The checkpoint of the head's line with a step. Only the places where the line is broken are visited."""
        try:
            high = row.head
            while high:
                low = self.store.unbroken(self.key, high)
                start = self.frame(low)
                if load_meta(start.meta).step <= step:
                    return self._between(low, high, step)
                high = start.base
            return None
        except CheckpointNotFound:  # pruned meanwhile
            return next((frame for frame in self.line(row.head) if load_meta(frame.meta).step == step), None)

    def _between(self, low: int, high: int, step: int) -> Frame | None:
        """The frame with a step on an unbroken line, along which steps grow: by one, unless checkpoints are missing."""

        def step_of(seq: int) -> int:
            return load_meta(self.frame(seq).meta).step

        guess = max(low, high - (step_of(high) - step))
        place = guess if guess <= high and step_of(guess) == step else low + bisect_left(range(low, high), step, key=step_of)
        found = self.frame(place)
        return found if load_meta(found.meta).step == step else None

    def fitting(self, row: ThreadRow, fits: Callable[[Frame], bool], *, noted: bool = False) -> list[Frame]:
        """The frames that fit, newest first. Skips damaged ones if others fit; otherwise raises CorruptionError."""
        try:
            frames = self.store.frames(self.key, newest_first=True, noted=True) if noted else self.everything()
            return [frame for frame in frames if fits(frame)]
        except CorruptionError:
            found = [frame for seq in range(row.last, 0, -1) for frame in self._sound(seq, noted=noted) if fits(frame)]
            if not found:
                raise
            return found

    def _sound(self, seq: int, *, noted: bool) -> list[Frame]:
        try:
            return self.store.frames(self.key, low=seq, high=seq, noted=noted)
        except CorruptionError:
            return []

    def _by_prefix(self, row: ThreadRow, prefix: str) -> Frame | None:
        if len(prefix) < SHORTEST_PREFIX:
            return None
        matches = self.fitting(row, lambda frame: frame.id.startswith(prefix))
        if len(matches) > 1:
            ids = ", ".join(frame.id for frame in matches[:5])
            raise InvalidInputError(f"{prefix!r} is ambiguous: {ids}; use more digits of the id")
        return matches[0] if matches else None


def by_text(text: str, verb: Callable[[Ref], T]) -> T:
    """Call a verb with a reference written by a person or a model: an id, label or `head~n`, else a step; `latest` is `head`.

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
