"""New checkpoints of one thread as they appear, from any writer.

`Watcher.look` does not wait, so that the synchronous and the asynchronous face can wait in their own ways. Checkpoints come in
the order of their numbers, each once, and none is skipped unless retention hides it. Touches timeline and what is below it.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

from savegame.checkpoint import Checkpoint
from savegame.errors import InvalidInputError
from savegame.model import Frame, ThreadRow, checked_duration
from savegame.timeline.lineage import FRAMES_AT_ONCE, Ref
from savegame.timeline.timeline import Timeline


class Watcher:
    """The checkpoints added since the last look; at first, since a given checkpoint or else the current newest."""

    def __init__(self, thread: Timeline, since: Ref | None) -> None:
        self._thread = thread
        self._row: ThreadRow | None = None
        self._seq, self._id = self._begin(since)
        self.behind = False
        """Whether the last look did not reach the newest checkpoint: look again without waiting."""
        self._news = False
        self._quiet_since: float | None = None

    def _begin(self, since: Ref | None) -> tuple[int, str | None]:
        if since is None:
            newest = self._thread.store.frames(self._thread.key, limit=1, newest_first=True)
            return (newest[0].seq, newest[0].id) if newest else (0, None)
        if isinstance(since, Checkpoint):  # not looked up: it may have been pruned since
            if since.thread_id != self._thread.id:
                raise InvalidInputError(f"{since!r} belongs to another thread than {self._thread.id!r}; watch that thread")
            return since.seq, since.id
        frame = self._thread.resolve(since)
        return frame.seq, frame.id

    def look(self) -> list[Checkpoint]:
        """Up to a page of new checkpoints without their states, oldest first; also those of a re-created thread."""
        before, row = self._row, self._thread.row()
        self._row = row
        if row is None or row.last < self._seq:  # deleted: everything is new
            self._seq, self._id = 0, None
        if row is None or (before and not self.behind and (row.last, row.head_id) == (before.last, before.head_id)):
            self.behind = self._news = False
            return []
        frames = self._frames()
        self.behind = len(frames) == FRAMES_AT_ONCE
        new = [frame for frame in frames if frame.seq > self._seq]
        self._news = bool(new)
        if frames:
            self._seq, self._id = frames[-1].seq, frames[-1].id
        return [self._thread.checkpoint(frame) for frame in new if self._thread.visible(row, frame)]

    def pause(self, poll: dt.timedelta, timeout: dt.timedelta | None) -> float | None:
        """Seconds to wait before the next look; None if nothing was new for `timeout`. Call it after each look."""
        now = time.monotonic()
        if self._news or self._quiet_since is None:  # time the caller spent on them does not count
            self._quiet_since = now
        if self.behind:
            return 0.0
        left = poll if timeout is None else timeout - dt.timedelta(seconds=now - self._quiet_since)
        return None if left <= dt.timedelta(0) else min(poll, left).total_seconds()

    def wait(self, seconds: float) -> None:
        """Wait until something may be new, but at most that many seconds."""
        self._thread.store.await_change(self._thread.key, seconds)

    def _frames(self) -> list[Frame]:
        """The last seen frame, if it still exists, and those after it."""
        frames = self._thread.store.frames(self._thread.key, low=self._seq, limit=FRAMES_AT_ONCE)
        if self._id is None or not frames or frames[0].seq > self._seq or frames[0].id == self._id:
            return frames
        self._seq = 0  # another frame has its number: the thread was re-created between two looks
        return self._thread.store.frames(self._thread.key, limit=FRAMES_AT_ONCE)


def follow(watcher: Watcher, poll: dt.timedelta, timeout: dt.timedelta | None) -> Iterator[Checkpoint]:
    """What a watcher sees, looking every `poll`; ends after `timeout` without anything new."""
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
