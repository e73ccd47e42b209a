"""Group commit: each caller gets its own outcome, and none is left waiting."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from savegame.stores.sqlite.group import Group, Ticket

Jobs = list[Ticket[int, int]]
WAIT = 20


def doubled(group: Jobs) -> None:
    for pending in group:
        if pending.job < 0:
            pending.error = ValueError(str(pending.job))
        else:
            pending.outcome = pending.job * 2


class Gate:
    """A flush that can be held up, and that notes its groups."""

    def __init__(self, flush: Callable[[Jobs], None] = doubled) -> None:
        self.flush = flush
        self.groups: list[list[int]] = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, group: Jobs) -> None:
        self.groups.append([pending.job for pending in group])
        self.entered.release()
        assert self.open.wait(WAIT)
        self.flush(group)


def queued(group: Group[int, int], count: int) -> None:
    """Wait until this number of callers wait for the next group."""
    done = threading.Event()
    while len(group._queue) < count:
        done.wait(0.001)


def test_alone() -> None:
    group = Group(doubled)
    assert [group.run(number) for number in range(3)] == [0, 2, 4]
    with pytest.raises(ValueError, match="-1"):
        group.run(-1)
    assert group.run(5) == 10


def test_many_callers_share_a_flush_and_get_their_own_outcome() -> None:
    gate = Gate()
    group = Group(gate)
    with ThreadPoolExecutor(21) as pool:
        first = pool.submit(group.run, 100)
        assert gate.entered.acquire(timeout=WAIT)
        numbers = [*range(10), *range(-10, 0)]
        others = [pool.submit(group.run, number) for number in numbers]
        queued(group, 20)
        gate.open.set()
        assert first.result(WAIT) == 200
        for number, other in zip(numbers, others, strict=True):
            if number < 0:
                assert str(other.exception(WAIT)) == str(number)
            else:
                assert other.result(WAIT) == number * 2
    assert sorted(map(len, gate.groups)) == [1, 20]
    assert group.run(1) == 2


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_flush_that_breaks_leaves_nobody_waiting(kind: type[BaseException]) -> None:
    def broken(group: Jobs) -> None:
        if any(pending.job == 13 for pending in group):
            raise kind("broken")
        doubled(group)

    gate = Gate(broken)
    group = Group(gate)
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(group.run, 1)
        assert gate.entered.acquire(timeout=WAIT)
        others = [pool.submit(group.run, number) for number in (2, 13, 4)]
        queued(group, 3)
        gate.open.set()
        assert first.result(WAIT) == 2
        errors = [other.exception(WAIT) for other in others]
        assert all(error is not None for error in errors)
    assert group.run(6) == 12


def test_an_interrupt_of_one_is_not_raised_in_the_threads_of_others() -> None:
    """Ctrl-C reaches the thread that leads; the others are told that their outcome is unknown, by an Exception."""

    def broken(group: Jobs) -> None:
        if len(group) > 1:
            raise KeyboardInterrupt
        doubled(group)

    gate = Gate(broken)
    group = Group(gate)
    raised: list[BaseException | None] = []

    def run(number: int) -> None:
        try:
            group.run(number)
        except BaseException as error:  # noqa: BLE001 - that is the question
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    threads[0].start()
    assert gate.entered.acquire(timeout=WAIT)
    for thread in threads[1:]:
        thread.start()
    queued(group, 3)
    gate.open.set()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    interrupted = [error for error in raised if isinstance(error, KeyboardInterrupt)]
    assert len(interrupted) == 1
    assert len(raised) == 3


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_while_waiting_is_raised_after_the_outcome(times: int) -> None:
    """However often Ctrl-C is pressed: the job is done, the others go on, and the interrupt is raised."""
    gate = Gate()
    group = Group(gate)
    others: dict[int, int] = {}

    def run(number: int) -> None:
        others[number] = group.run(number)

    def press() -> None:
        queued(group, 1)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        callers[1].start()
        queued(group, 2)
        gate.open.set()

    callers = [threading.Thread(target=run, args=(number,), daemon=True) for number in (1, 3)]
    callers[0].start()
    assert gate.entered.acquire(timeout=WAIT)
    presser = threading.Thread(target=press, daemon=True)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        group.run(7)
    for thread in (presser, *callers):
        thread.join(WAIT / 4)
        assert not thread.is_alive(), "left waiting"
    assert others == {1: 2, 3: 6}
    assert 7 in [job for jobs in gate.groups for job in jobs], "the job of the interrupted one was not done"
    assert group.run(8) == 16


def test_hammered() -> None:
    group = Group(doubled)
    with ThreadPoolExecutor(16) as pool:
        for number, outcome in enumerate(pool.map(group.run, range(5000))):
            assert outcome == number * 2
