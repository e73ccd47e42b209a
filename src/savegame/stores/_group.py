"""Group commit: callers that want to write at the same moment share one flush. Touches errors.

The first caller leads: it takes everything that is waiting, writes it, and wakes the others with their outcome. Who
comes meanwhile waits; one of those is woken to lead the next group. Nobody waits on a timer, so a lone caller pays nothing.
Every step can be taken twice: an interrupt (Ctrl-C) at any moment is raised only after its caller's job was finished.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from savegame.errors import UnavailableError

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class Pending(Generic[Job, Outcome]):
    """One caller's job and, once it is done, its outcome or error."""

    __slots__ = ("done", "error", "job", "leads", "outcome", "queued", "wake")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.queued = self.leads = self.done = False
        self.wake = threading.Lock()

    @property
    def settled(self) -> bool:
        """Whether a flush has dealt with it."""
        return self.outcome is not None or self.error is not None


class Group(Generic[Job, Outcome]):
    """Runs jobs in groups through `flush`, which sets the outcome or error of every pending job that it is given."""

    def __init__(self, flush: Callable[[list[Pending[Job, Outcome]]], None]) -> None:
        self._flush = flush
        self._mutex = threading.Lock()
        self._queue: list[Pending[Job, Outcome]] = []
        self._current: list[Pending[Job, Outcome]] = []
        self._led = False

    def run(self, job: Job) -> Outcome:
        """Do one job, alone or with others. Raises what went wrong with this one."""
        mine: Pending[Job, Outcome] = Pending(job)
        interrupted: BaseException | None = None
        while not self._is_over(mine):
            try:
                self._carry_out(mine)
            except BaseException as error:  # noqa: BLE001 - raised below, once the outcome is known
                interrupted = None if isinstance(error, Exception) else error
        if interrupted is not None:
            raise interrupted
        if mine.error is not None:
            raise mine.error
        return mine.outcome  # type: ignore[return-value]

    def _is_over(self, mine: Pending[Job, Outcome]) -> bool:
        return mine.done and not mine.leads

    def _carry_out(self, mine: Pending[Job, Outcome]) -> None:
        with self._mutex:
            if not mine.queued:
                mine.wake.acquire(blocking=False)
                self._queue.append(mine)
                mine.queued = True
                if not self._led:
                    mine.leads = self._led = True
        while not self._is_over(mine):
            if mine.leads:
                self._lead(mine)
            else:
                mine.wake.acquire()

    def _lead(self, mine: Pending[Job, Outcome]) -> None:
        with self._mutex:
            if not self._current:
                self._current, self._queue = self._queue, []
        waiting = [pending for pending in self._current if not pending.settled]
        try:
            if waiting:
                self._flush(waiting)
        except BaseException as error:
            theirs = error  # but Ctrl-C in the leader is not the others' affair
            if not isinstance(error, Exception):
                theirs = UnavailableError("the write was interrupted; it may have happened", unknown=True)
            for pending in waiting:
                if not pending.settled:
                    pending.error = theirs
            raise
        finally:
            self._hand_over(mine)

    def _hand_over(self, mine: Pending[Job, Outcome]) -> None:
        with self._mutex:
            for pending in self._current:
                pending.done = True
                _wake(pending)
            if self._queue:
                self._queue[0].leads = True
                _wake(self._queue[0])
            else:
                self._led = False
            self._current = []
            mine.leads = False


def _wake(pending: Pending[Job, Outcome]) -> None:
    if pending.wake.locked():
        pending.wake.release()
