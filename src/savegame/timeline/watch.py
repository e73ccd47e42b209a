"""New checkpoints of one thread as they appear, whoever saves them.

`Watcher.look` does not wait, so that the synchronous and the asynchronous face can each wait in their own way. Order is
that of the sequence numbers: nothing is shown twice, and nothing that retention still shows is left out. Touches
timeline and what is below it.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

from savegame.checkpoint import Checkpoint
from savegame.errors import InvalidInputError
from savegame.model import Frame, ThreadRow, checked_duration
from savegame.timeline.lineage import PAGE, Ref
from savegame.timeline.timeline import Timeline


class Watcher:
    """What is new on a thread since the last look, or since a checkpoint; else since the newest there is now."""

    def __init__(self, thread: Timeline, since: Ref | None) -> None:
        self._thread = thread
        self._row: ThreadRow | None = None
        self._seq, self._id = self._begin(since)
        self.behind = False
        """Whether the last look did not reach the newest: look again without waiting."""
        self._news = False
        self._quiet_since: float | None = None

    def _begin(self, since: Ref | None) -> tuple[int, str | None]:
        if since is None:
            newest = self._thread.store.frames(self._thread.key, limit=1, newest_first=True)
            return (newest[0].seq, newest[0].id) if newest else (0, None)
        if isinstance(since, Checkpoint):  # taken at its word: it may have been pruned since
            if since.thread_id != self._thread.id:
                raise InvalidInputError(f"{since!r} is not of thread {self._thread.id!r}; watch the thread that it is of")
            return since.seq, since.id
        frame = self._thread.resolve(since)
        return frame.seq, frame.id

    def look(self) -> list[Checkpoint]:
        """New checkpoints without their states, oldest first, a page at most; those of a thread that was begun again too."""
        before, row = self._row, self._thread.row()
        self._row = row
        if row is None or row.last < self._seq:  # deleted: whatever there is now is new
            self._seq, self._id = 0, None
        if row is None or (before and not self.behind and (row.last, row.head_id) == (before.last, before.head_id)):
            self.behind = self._news = False
            return []
        frames = self._frames()
        self.behind = len(frames) == PAGE
        new = [frame for frame in frames if frame.seq > self._seq]
        self._news = bool(new)
        if frames:
            self._seq, self._id = frames[-1].seq, frames[-1].id
        return [self._thread.checkpoint(frame) for frame in new if self._thread.visible(row, frame)]

    def pause(self, poll: dt.timedelta, timeout: dt.timedelta | None) -> float | None:
        """How many seconds to wait before the next look; None if it was quiet for `timeout`. Asked after each look."""
        now = time.monotonic()
        if self._news or self._quiet_since is None:  # how long the caller took over them is not silence
            self._quiet_since = now
        if self.behind:
            return 0.0
        left = poll if timeout is None else timeout - dt.timedelta(seconds=now - self._quiet_since)
        return None if left <= dt.timedelta(0) else min(poll, left).total_seconds()

    def wait(self, seconds: float) -> None:
        """Wait before the next look, until something may be new or for so long."""
        self._thread.store.await_change(self._thread.key, seconds)

    def _frames(self) -> list[Frame]:
        """The frame that was seen last, if it is still there, and those after it."""
        frames = self._thread.store.frames(self._thread.key, low=self._seq, limit=PAGE)
        if self._id is None or not frames or frames[0].seq > self._seq or frames[0].id == self._id:
            return frames
        self._seq = 0  # another has its number: the thread was deleted and begun again between two looks
        return self._thread.store.frames(self._thread.key, limit=PAGE)


def follow(watcher: Watcher, poll: dt.timedelta, timeout: dt.timedelta | None) -> Iterator[Checkpoint]:
    """What a watcher sees, looking again every `poll`; ends after `timeout` without anything new."""
    checked_duration(poll, "poll")
    if timeout is not None and timeout != dt.timedelta(0):
        checked_duration(timeout, "timeout")
    return _following(watcher, poll, timeout)


def _following(watcher: Watcher, poll: dt.timedelta, timeout: dt.timedelta | None) -> Iterator[Checkpoint]:
    while True:
        yield from watcher.look()
        pause = watcher.pause(poll, timeout)
        if pause is None:
            return
        watcher.wait(pause)
