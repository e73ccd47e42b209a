"""SIGKILL at every moment of a run: before and after each write, inside each tool and the model. Another process finishes it.

The moments of a process are counted by its store and its tools, so the loop ends with one that nothing killed. A lease is
held for 30 seconds, but a holder that is gone is replaced at once.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence

import pytest
from agents import PLAIN, Agent, Log, around, broken_promises, die_at_each, finished, in_doubt, killed, moments_at

from savegame.testing.faults import Child

Kind = type[Agent]


@pytest.mark.requirement("Z56")
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
def test_a_run_that_was_killed_at_any_moment_is_finished_by_another_process(
    address: str, log: Log, kind: Kind, at_once: bool
) -> None:
    """By number, until a process finds no such moment; by name if calls run at once, whose moments have no fixed order."""
    wanted = moments_at(address)
    moments: Sequence[int | str] = sorted(wanted) if at_once else range(1, 1000)
    with Child(die_at_each, address, moments, log, at_once, kind) as child:
        ends = child.rest()
    assert {end[1] for end in ends if end[0] == "dies"} >= wanted
    assert at_once or ends[-1] == ["finished"]
    threads = [f"killed {moment}" for moment in moments[: len(ends)]]
    doubtful = in_doubt(address, threads)
    assert {name for _, name in doubtful} == {*PLAIN}
    assert finished(address, threads, log, kind=kind) == doubtful
    assert broken_promises(address, threads, log) == []


def test_an_effect_that_nobody_can_know_of_is_said_to_be_unknown(address: str, log: Log, kind: Kind) -> None:
    moments = [*around("the effect of mail", "the effect of wire")]
    for moment in moments:
        assert killed(address, moment, log, moment, kind=kind) == moment
    assert finished(address, moments, log, kind=kind) == [(moment, moment.split()[-1]) for moment in moments]
    assert broken_promises(address, moments, log) == []


def test_whoever_resumes_may_be_killed_too(address: str, log: Log, kind: Kind) -> None:
    """While it takes over, while it says that an outcome is unknown, and while a person says what it was."""
    moments = [*around("run", "unknown", "done"), "after lease"]
    for moment in moments:
        assert killed(address, moment, log, "after the effect of mail", kind=kind)
        assert killed(address, moment, log, moment, kind=kind) == moment
    finished(address, moments, log, kind=kind)
    assert broken_promises(address, moments, log) == []


@pytest.mark.parametrize("moment", ["before renewal", "after renewal"])
def test_a_process_may_be_killed_while_it_renews_its_lease(moment: str, address: str, log: Log, kind: Kind) -> None:
    fate = (moment, "after the effect of mail", dt.timedelta(seconds=0.6))
    assert killed(address, "t", log, *fate, kind=kind) == moment
    assert finished(address, ["t"], log, kind=kind) == [("t", "mail")]
    assert broken_promises(address, ["t"], log) == []


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_a_run_that_is_killed_over_and_over_gets_to_its_end(address: str, log: Log, kind: Kind) -> None:
    chance = random.Random()
    threads = [f"often {number}" for number in range(50)]
    kills = 0
    for thread_id in threads:
        while killed(address, thread_id, log, chance.randrange(5, 30), kind=kind):
            kills += 1
    print(f"{len(threads)} runs were killed {kills} times")
    assert broken_promises(address, threads, log) == []
