"""SIGKILL at every moment of a run: before and after each write, inside each tool and the model. Another process finishes it.

The moments of a process are counted by its store and its tools, so the loop ends with one that nothing killed. A lease is
held for 30 seconds, but a holder that is gone is replaced at once.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence

import pytest
from agents import PLAIN, Log, broken_promises, die_at_each, finished, killed
from broken_stores import opened

from savegame import CallStatus
from savegame.testing.faults import Child


def around(*names: str) -> set[str]:
    return {f"{when} {name}" for when in ("before", "after") for name in names}


EFFECTS = around("the effect of refund", "the effect of mail", "the effect of wire")
WRITES = around("lease", "checkpoint", "checkpoint and done", "started", "waiting", "answer", "release")
EVERYWHERE = EFFECTS | WRITES | {"inside the model", "inside find_order"}
TRANSACTIONS = around("transaction", "the effect of note")


def in_doubt(address: str, thread_ids: list[str]) -> list[tuple[str, str]]:
    """The calls that must not be made twice and were begun, with nothing known of their end."""
    with opened(address) as vault:
        calls = [(thread_id, call) for thread_id in thread_ids for call in vault.calls(thread_id) if call.name in PLAIN]
        return [(thread_id, call.name) for thread_id, call in calls if call.status == CallStatus.STARTED]


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
def test_a_run_that_was_killed_at_any_moment_is_finished_by_another_process(address: str, log: Log, at_once: bool) -> None:
    """By number, until a process finds no such moment; by name if calls run at once, whose moments have no fixed order."""
    wanted = EVERYWHERE | TRANSACTIONS if address.startswith("sqlite") else EVERYWHERE
    moments: Sequence[int | str] = sorted(wanted) if at_once else range(1, 1000)
    with Child(die_at_each, address, moments, log, at_once) as child:
        ends = child.rest()
    assert {end[1] for end in ends if end[0] == "dies"} >= wanted
    assert at_once or ends[-1] == ["finished"]
    threads = [f"killed {moment}" for moment in moments[: len(ends)]]
    doubtful = in_doubt(address, threads)
    assert {name for _, name in doubtful} == {*PLAIN}
    assert finished(address, threads, log) == doubtful
    assert broken_promises(address, threads, log) == []


def test_an_effect_that_nobody_can_know_of_is_said_to_be_unknown(address: str, log: Log) -> None:
    moments = [*around("the effect of mail", "the effect of wire")]
    for moment in moments:
        assert killed(address, moment, log, moment) == moment
    assert finished(address, moments, log) == [(moment, moment.split()[-1]) for moment in moments]
    assert broken_promises(address, moments, log) == []


def test_whoever_resumes_may_be_killed_too(address: str, log: Log) -> None:
    """While it takes over, while it says that an outcome is unknown, and while a person says what it was."""
    moments = [*around("run", "unknown", "done"), "after lease"]
    for moment in moments:
        assert killed(address, moment, log, "after the effect of mail")
        assert killed(address, moment, log, moment) == moment
    finished(address, moments, log)
    assert broken_promises(address, moments, log) == []


@pytest.mark.parametrize("moment", ["before renewal", "after renewal"])
def test_a_process_may_be_killed_while_it_renews_its_lease(moment: str, address: str, log: Log) -> None:
    fate = (moment, "after the effect of mail", dt.timedelta(seconds=0.6))
    assert killed(address, "t", log, *fate) == moment
    assert finished(address, ["t"], log) == [("t", "mail")]
    assert broken_promises(address, ["t"], log) == []


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_a_run_that_is_killed_over_and_over_gets_to_its_end(address: str, log: Log) -> None:
    chance = random.Random()
    threads = [f"often {number}" for number in range(50)]
    for thread_id in threads:
        while killed(address, thread_id, log, chance.randrange(5, 30)):
            pass
    assert broken_promises(address, threads, log) == []
