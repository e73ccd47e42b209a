"""Group commit: callers that want to write at the same moment share one flush. Touches errors.

The first caller leads: it takes everything that is waiting, writes it, and wakes the others with their outcome. Callers
that come meanwhile wait; one of them is woken to lead the next group. There is no timer, so a lone caller pays nothing.
Those whose job is done wake each other one after the other: only one thread can run Python at a time, and sixty that
are woken at once spend their time on taking turns.
Every step can be taken twice: an interrupt (Ctrl-C) at any moment is raised only after its caller's job was finished.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from savegame.errors import UnavailableError

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class Ticket(Generic[Job, Outcome]):
    """One caller's job and, once it is done, its outcome or error, and whom its caller has to wake."""

    __slots__ = ("done", "error", "job", "leads", "next", "outcome", "queued", "wake")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.queued = self.leads = self.done = False
        self.wake: threading.Lock | None = None
        self.next: Ticket[Job, Outcome] | None = None

    def result(self) -> Outcome:
        """The outcome, once it is there. Raises what went wrong."""
        if self.error is not None:
            raise self.error
        return self.outcome  # type: ignore[return-value]


class Group(Generic[Job, Outcome]):
    """Runs jobs in groups through `flush`, which sets the outcome or error of every pending job that it is given."""

    def __init__(self, flush: Callable[[list[Ticket[Job, Outcome]]], None]) -> None:
        self._flush = flush
        self._mutex = threading.Lock()
        self._queue: list[Ticket[Job, Outcome]] = []
        self._current: list[Ticket[Job, Outcome]] = []
        self._led = False

    def run(self, job: Job) -> Outcome:
        """Do one job, alone or with others. Raises what went wrong with this one."""
        mine: Ticket[Job, Outcome] = Ticket(job)
        self._run(mine)
        return mine.result()

    def _run(self, mine: Ticket[Job, Outcome]) -> None:
        interrupted: BaseException | None = None
        while True:
            try:
                while mine.leads or mine.next or not mine.done:
                    if not mine.queued:
                        self._enter(mine)
                    if mine.leads:
                        self._lead(mine)
                    elif not mine.done and mine.wake is not None:
                        mine.wake.acquire()
                    if mine.next is not None:
                        _wake(mine.next)
                        mine.next = None
                break
            except BaseException as error:  # noqa: BLE001 - raised below, once the outcome is known
                interrupted = None if isinstance(error, Exception) else error
        if interrupted is not None:
            raise interrupted

    def _enter(self, mine: Ticket[Job, Outcome]) -> None:
        with self._mutex:
            if not self._led:
                self._current = [mine]
                mine.leads = self._led = True
            elif not mine.leads:  # an interrupt may have come before `queued` was set
                mine.wake = threading.Lock()
                mine.wake.acquire()
                if mine not in self._queue:
                    self._queue.append(mine)
            mine.queued = True

    def _lead(self, mine: Ticket[Job, Outcome]) -> None:
        with self._mutex:
            if not self._current:
                self._current, self._queue = self._queue, []
        waiting = [pending for pending in self._current if pending.outcome is None and pending.error is None]
        try:
            if waiting:
                self._flush(waiting)
        except BaseException as error:
            for pending in waiting:
                if pending.outcome is None and pending.error is None:
                    if isinstance(error, Exception):
                        pending.error = copy.copy(error)
                    else:  # Ctrl-C in the leader is not the others' affair
                        pending.error = UnavailableError("the write was interrupted; it may have happened", unknown=True)
            raise
        finally:
            self._hand_over(mine)

    def _hand_over(self, mine: Ticket[Job, Outcome]) -> None:
        with self._mutex:
            before = mine
            for pending in self._current:
                if pending is not mine:
                    before.next = before = pending
                pending.done = True
            if self._queue:
                self._queue[0].leads = True
                _wake(self._queue[0])
            else:
                self._led = False
            self._current = []
            mine.leads = False


def _wake(pending: Ticket[Job, Outcome]) -> None:
    if pending.wake is not None and pending.wake.locked():
        pending.wake.release()
