"""Group commit: callers that want to write at the same moment share one flush. Touches errors.

The first caller leads: it takes everything that is waiting, writes it, and wakes the others with their outcome. Who
comes meanwhile waits; one of those is woken to lead the next group. Nobody waits on a timer, so a lone caller pays nothing.
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

    __slots__ = ("done", "error", "job", "outcome", "wake")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.done = False
        self.wake = threading.Lock()


class Group(Generic[Job, Outcome]):
    """Runs jobs in groups through `flush`, which sets the outcome or error of every pending job that it is given."""

    def __init__(self, flush: Callable[[list[Pending[Job, Outcome]]], None]) -> None:
        self._flush = flush
        self._mutex = threading.Lock()
        self._queue: list[Pending[Job, Outcome]] = []
        self._led = False

    def run(self, job: Job) -> Outcome:
        """Do one job, alone or with others. Raises what went wrong with this one."""
        mine: Pending[Job, Outcome] = Pending(job)
        with self._mutex:
            self._queue.append(mine)
            lead, self._led = not self._led, True
            if not lead:
                mine.wake.acquire()
        interrupted = None if lead else self._wait(mine)
        if not mine.done:
            self._lead(mine)
        if interrupted is not None:
            raise interrupted
        if mine.error is not None:
            raise mine.error
        return mine.outcome  # type: ignore[return-value]

    def _wait(self, mine: Pending[Job, Outcome]) -> BaseException | None:
        """Wait to be done or to lead. An interrupt (Ctrl-C) is kept until the job's outcome is known."""
        interrupted: BaseException | None = None
        while True:
            try:
                mine.wake.acquire()
                return interrupted
            except BaseException as error:  # noqa: BLE001 - raised again by run()
                interrupted = error

    def _lead(self, mine: Pending[Job, Outcome]) -> None:
        with self._mutex:
            group, self._queue = self._queue, []
        try:
            self._flush(group)
        except BaseException as error:
            theirs = error  # but Ctrl-C in the leader is not the others' affair
            if not isinstance(error, Exception):
                theirs = UnavailableError("the write was interrupted; it may have happened", unknown=True)
            for other in group:
                other.error = other.error or theirs
            raise
        finally:
            with self._mutex:
                if self._queue:
                    self._queue[0].wake.release()
                else:
                    self._led = False
            for other in group:
                other.done = True
                if other is not mine:
                    other.wake.release()
