"""SIGKILL at every moment of sending, taking in, stopping and sleeping; many senders at once; a holder that is frozen."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import signal
import time

import pytest
from agents import Log, around, die_at_each, finished
from broken_stores import opened
from worldly import WorldAgent, answer_all, broken_conversation, freeze, send_each_twice

from savegame.runs.ledger import INPUT_KEY
from savegame.testing.faults import Child

LEASE = dt.timedelta(seconds=0.5)


def test_an_agent_that_was_killed_at_any_moment_goes_on(address: str, log: Log) -> None:
    """Every message is taken in once and in order, sleeps end, a stop halts; and that whatever was killed."""
    with Child(die_at_each, address, range(1, 1000), log, False, WorldAgent) as child:
        ends = child.rest()
    assert ends[-1] == ["finished"]
    moments = {end[1] for end in ends if end[0] == "dies"}
    taken_in = "checkpoint and Expect and inbox"
    stopped = "checkpoint and failed and inbox"
    assert moments >= around("inbox and sent", taken_in, "due", "due and slept", "inbox", stopped, "lease", "release")
    threads = [f"killed {number}" for number in range(1, len(ends) + 1)]
    finished(address, threads, log, kind=WorldAgent)
    with opened(address) as vault:
        wrong = {thread_id: WorldAgent(vault, thread_id, log).broken_promises() for thread_id in threads}
    assert {thread_id: found for thread_id, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("senders", "count"), [(3, 6), pytest.param(8, 25, marks=[pytest.mark.campaign, pytest.mark.timeout(3600)])]
)
def test_what_many_send_twice_to_a_thread_whose_runs_are_killed_arrives_once(address: str, senders: int, count: int) -> None:
    chance = random.Random(7)
    names = [f"s{number}" for number in range(senders)]
    kills = 0
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(send_each_twice, address, name, count)) for name in names]
        assert all(child.next() == ["ready"] for child in children)
        for child in children:
            child.go()
        while True:
            with Child(answer_all, address, senders * count, chance.randrange(3, 12 if kills < 3 else 40)) as child:
                line = child.next()
            if line == ["finished"]:
                break
            kills += 1
        assert all(child.next() == ["sent"] for child in children)
    assert kills > 0
    with opened(address) as vault:
        keys = [message[INPUT_KEY] for message in vault.thread("t").state()["messages"] if INPUT_KEY in message]
        for name in names:
            assert [key for key in keys if key.startswith(f"{name}-")] == [f"{name}-{number}" for number in range(count)]
        assert len(keys) == senders * count
        assert broken_conversation(vault, "t") == []
        assert (list(vault.inbox("t")), list(vault.stale())) == ([], [])


def test_a_frozen_holder_is_fenced_and_its_stop_does_not_reach_the_next(address: str) -> None:
    with opened(address) as vault, Child(freeze, address, LEASE) as child:
        word, pid = child.next()
        assert word == "stops"
        assert vault.stop("t", "user pressed stop")
        deadline = time.monotonic() + 60
        while not [run for run in vault.stale() if run.reason == "crashed"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with vault.run("t") as run:
            run.model(lambda _: "done")
            os.kill(pid, signal.SIGCONT)
            while (line := child.next()) == ["wrote"]:
                pass
            assert line == ["fenced"]
            assert run.done
        newest = vault.thread("t").latest()
    assert newest is not None
    assert newest.status == "completed"
