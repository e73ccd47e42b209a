"""Automatic saves: a loop that saves what a function returns, at once and then at a fixed interval.

An autosave saves through the handle that it was started on, as if its owner had called `save`: their saves build on each
other, and an autosave never hides what other writers saved. It writes nothing while the state stays the same, and nothing
after `stop()` returned. Every error is logged, collected and passed to `on_error`; only a closed vault or a deleted thread
ends the loop. Touches timeline and what is below it.
"""

from __future__ import annotations

import atexit
import datetime as dt
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, Self, Unpack

from savegame.details import Details
from savegame.encoding.codec import Codec
from savegame.encoding.frames import load_meta, load_note
from savegame.encoding.tree import Node
from savegame.errors import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    InvalidInputError,
    ThreadNotFound,
)
from savegame.model import Frame, Kind, ThreadKey, checked_duration, checked_number
from savegame.store import ANY
from savegame.timeline import removal
from savegame.timeline.engine import Engine
from savegame.timeline.timeline import Timeline
from savegame.waiting.awaiting import plain_result
from savegame.waiting.forking import call_in_child

logger = logging.getLogger("savegame")

ERRORS_KEPT: Final = 100
EXIT_WAIT_S: Final = 2.0
"""How long the end of the interpreter waits for a save that is under way."""


class Reporting:
    """Errors that no caller can catch: logged, collected and passed to `on_error`."""

    def __init__(
        self, name: str, every: dt.timedelta, keep: int | None, on_error: Callable[[Exception], object] | None
    ) -> None:
        checked_duration(every, "every")
        if keep is not None and checked_number(keep, "keep") < 1:
            raise InvalidInputError(f"keep must be at least 1, not {keep}: the newest automatic checkpoint stays")
        self.saved = 0
        """Number of checkpoints it saved."""
        self._name = name
        self._pause = min(every.total_seconds(), threading.TIMEOUT_MAX)
        self._keep = keep
        self._on_error = on_error
        self._errors: deque[Exception] = deque(maxlen=ERRORS_KEPT)

    @property
    def errors(self) -> tuple[Exception, ...]:
        """Up to a hundred of the newest errors, oldest first."""
        return tuple(self._errors)

    @property
    def last_error(self) -> Exception | None:
        """The newest error; None if there was none."""
        return self._errors[-1] if self._errors else None

    def _report(self, error: Exception) -> None:
        logger.warning("%s: an automatic save failed: %r", self._name, error, exc_info=error)
        self._errors.append(error)
        try:
            if self._on_error is not None:
                plain_result(self._on_error(error), "on_error", "pass an ordinary function")
        except Exception:
            logger.exception("%s: on_error of its autosave failed", self._name)
        traceback.clear_frames(error.__traceback__)  # they hold states


class Handle(Protocol):
    """What an autosave needs of a Thread. `step` is None while the handle knows no head."""

    @property
    def timeline(self) -> Timeline:
        """The thread itself."""

    @property
    def head(self) -> str | None:
        """The head that it knows."""

    @property
    def step(self) -> int | None:
        """The step of that head."""

    def latest(self) -> object:
        """Read the head."""

    def save(self, state: Any, *, expect: str | None, **details: Unpack[Details]) -> object:
        """Save a state on top of a head."""


Holds = Callable[[Codec, str, Node | None, Any], bool]
"""Whether a stored state of the thread with this id is the one that would be saved."""


class AutomaticSaves(Reporting):
    """The automatic saves of one thread, one at a time. A subclass decides how to wait between them."""

    def __init__(
        self,
        thread: Handle,
        holds: Holds,
        *,
        every: dt.timedelta,
        keep: int | None,
        on_error: Callable[[Exception], object] | None,
        **details: Unpack[Details],
    ) -> None:
        self._thread, self._timeline, self._holds = thread, thread.timeline, holds
        super().__init__(f"thread {self._timeline.id!r}", every, keep, on_error)
        self._details: Details = {"kind": Kind.AUTOMATIC, "description": "Automatic checkpoint", **details}
        if thread.step is None:  # from now on, other writers' saves must not be hidden
            thread.latest()
        claim(self._timeline.engine, [self._timeline.key], self)

    def _known(self) -> str | None:
        """The head that the handle knows; ANY if it knows none because it saved in a transaction."""
        return ANY if self._thread.step is None else self._thread.head

    def _head(self) -> str | None:
        """The current head."""
        return self._timeline.head().id or None

    def _save(self, state: Any, expected: str | None) -> bool:
        """Save a state taken when the head was `expected`. False if the thread or the vault is gone."""
        try:
            with self._timeline.engine.alone(self._timeline.key):
                checkpoint = self._save_changed(state, expected)
            if checkpoint and self._keep is not None:
                prune_automatic(self._timeline, self._keep)
        except (ClosedError, ThreadNotFound) as error:
            self._report(error)
            return False
        except Exception as error:  # noqa: BLE001 - no caller can catch it: it is reported, and the loop continues
            self._report(error)
        return True

    def _save_changed(self, state: Any, expected: str | None) -> bool:
        known = self._known()
        if known not in (expected, ANY):  # the handle saved or moved meanwhile: the head is newer than `state`
            return False
        timeline, head = self._timeline, self._timeline.head()
        if not head.id and (known == ANY or expected is not None):
            raise ThreadNotFound(
                f"thread {timeline.id!r} was deleted, which ended its autosave; start a new one to re-create it"
            )
        if (head.id or None) == expected and self._holds(timeline.engine.codec, timeline.id, head.node, state):
            return False
        try:
            self._thread.save(state, expect=expected, **self._details)
        except ConflictError:
            if self._known() == expected:
                raise
            return False  # the handle's own transaction was committed meanwhile
        self.saved += 1
        return True


class Loop(Reporting, ABC):
    """A background thread that saves at once and then at an interval, until `stop()` or the end of its `with` block."""

    def _begin(self) -> None:
        self._stopping = threading.Event()
        self._worker = threading.Thread(target=self._run, name=f"autosave of {self._name}", daemon=True)
        try:
            self._worker.start()
        except RuntimeError:  # no more threads
            release(self)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}: {'running' if self.running else 'ended'}, {self.saved} saved>"

    @property
    def running(self) -> bool:
        """Whether it may still save."""
        return self._worker.is_alive()

    def stop(self) -> None:
        """End it: wait for a save that is under way; nothing is saved afterwards. A second call does nothing."""
        self._stopping.set()
        if threading.current_thread() is not self._worker:
            self._worker.join()

    def stop_by(self, deadline: float) -> None:
        """End it, but wait for a save that is under way only until a time of the monotonic clock."""
        self._stopping.set()
        self._worker.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        try:
            while self._tick() and not self._stopping.wait(self._pause):
                pass
        finally:
            release(self)

    @abstractmethod
    def _tick(self) -> bool:
        """Save once. False ends the loop."""


class Autosave(AutomaticSaves, Loop):
    """A background thread that saves automatically until `stop()`, the end of its `with` block, or of the program.

    A closed vault or a deleted thread also ends it at its next save, and is its `last_error`.
    """

    def __init__(self, thread: Handle, holds: Holds, get_state: Callable[[], Any], **how: Any) -> None:
        super().__init__(thread, holds, **how)
        self._get_state = get_state
        self._begin()

    def _tick(self) -> bool:
        try:
            known = self._known()
            expected = self._head() if known == ANY else known  # first: later saves must not be hidden
            state = plain_result(self._get_state(), "get_state")
        except ClosedError as error:
            self._report(error)
            return False
        except Exception as error:  # noqa: BLE001 - the caller's function: whatever it raises is reported
            self._report(error)
            return True
        return self._save(state, expected)


def prune_automatic(timeline: Timeline, keep: int) -> None:
    """Remove all but the newest automatic checkpoints of a thread; labelled ones and the head stay."""
    row = timeline.row()
    frames = list(timeline.everything())
    drop = {frame.seq for frame in list(filter(_automatic, frames))[keep:]}
    if row is None or not drop:
        return
    try:
        removal.remove(timeline, frames, removal.unpinned(timeline, row, frames, drop - {row.head}))
    except ConflictError as error:  # another writer labelled, pruned or went back to one of them meanwhile
        logger.debug("thread %r: old automatic checkpoints stay until the next save: %s", timeline.id, error)


def claim(engine: Engine, keys: Sequence[ThreadKey], loop: Reporting) -> None:
    """Reserve the automatic saves of these threads until `release`. Raises AlreadyExistsError."""
    for key in keys:
        if _loops.setdefault((id(engine), key), loop) is not loop:
            release(loop)
            raise AlreadyExistsError(f"thread {key.id!r} already has a running autosave; stop that one first")


def release(loop: Reporting) -> None:
    """Allow another autosave of its threads."""
    for place in [place for place, owner in list(_loops.items()) if owner is loop]:
        _loops.pop(place, None)


_loops: dict[tuple[int, ThreadKey], Reporting] = {}
"""The running ones, by engine and thread: one each."""


def _automatic(frame: Frame) -> bool:
    return load_meta(frame.meta).kind == Kind.AUTOMATIC and load_note(frame.note)[0] is None


@atexit.register
def _end_all() -> None:
    """Wait for saves that are under way, but not for one that hangs."""
    running = {loop for loop in _loops.values() if isinstance(loop, Loop)}
    deadline = time.monotonic() + EXIT_WAIT_S
    for loop in running:
        loop.stop_by(0.0)
    for loop in running:
        loop.stop_by(deadline)


call_in_child(_loops.clear)  # their threads do not exist in the child
