"""A run whose task is cancelled at any moment: before and after each write, inside each tool and the model.

Its lease is free then, unless something goes on in a thread, so that it can be resumed at once by the same process; what was
under way is known, or said to be unknown. Each moment waits until the task was cancelled, so that this comes while it lasts.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Iterable

import pytest
from agents import LEASE, PLAIN, Log, around, broken_promises, in_doubt, moments_at
from async_agents import AsyncAgent, Hand
from broken_stores import Mortal, nothing, opened

from savegame import Vault
from savegame.model import ThreadKey

IN_THREADS = around("the effect of refund", "the effect of wire")
"""Moments in functions that cannot be stopped: the lease on their run may last as if nothing had happened."""


def cancelled(
    vault: Vault,
    thread_id: str,
    log: Log,
    chosen: int | str,
    *,
    at_once: bool = False,
    insists: bool = False,
    endless: str = "",
    lease: dt.timedelta = LEASE,
) -> str | None:
    """Run an agent until it is cancelled; where that was, or None if it came to its end. The lease is free then."""
    hand = Hand(chosen, endless, insists=insists)
    agent = AsyncAgent(vault, thread_id, log, hand.moment, lease, at_once=at_once)
    held: list[int] = []

    async def work() -> None:
        try:
            await agent.until_the_end(lambda *words: None)
        finally:
            held.extend(holders(vault, thread_id))

    vault.store.moment = hand.moment  # type: ignore[attr-defined]
    reached = hand.guide(work())
    vault.store.moment = nothing  # type: ignore[attr-defined]
    assert not held or endless or at_once or reached in IN_THREADS, f"cancelled at {reached!r}, it keeps its lease"
    for epoch in held:  # the lease runs out
        vault.store.renew(ThreadKey(vault.namespace, thread_id), epoch, 1)
    return reached


def holders(vault: Vault, thread_id: str) -> list[int]:
    """The epoch of the lease on a thread, if it is held."""
    row = vault.store.thread(ThreadKey(vault.namespace, thread_id))
    return [row.lease.epoch] if row and row.lease and row.lease.expires > vault.store.clock() else []


def resumed(vault: Vault, thread_ids: Iterable[str], log: Log) -> list[tuple[str, str]]:
    """Finish runs in this process; the threads and names of calls whose outcome was unknown."""
    told: list[tuple[str, str]] = []
    for thread_id in thread_ids:
        AsyncAgent(vault, thread_id, log).to_the_end(lambda _, *which: told.append(which))
    return told


@pytest.mark.parametrize("insists", [False, True], ids=["once", "again and again"])
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
def test_a_run_that_was_cancelled_at_any_moment_is_finished_by_the_same_process(
    address: str, log: Log, at_once: bool, insists: bool
) -> None:
    """By number, until a run has no such moment; by name if calls run at once, whose moments have no fixed order."""
    wanted = moments_at(address)
    with opened(address, Mortal) as vault:
        reached = {}
        for chosen in sorted(wanted) if at_once else itertools.count(1):
            thread_id = f"cancelled {chosen}"
            reached[thread_id] = cancelled(vault, thread_id, log, chosen, at_once=at_once, insists=insists)
            if reached[thread_id] is None:
                break
        assert set(reached.values()) - {None} >= wanted
        assert at_once == (None not in reached.values())
        doubtful = in_doubt(address, reached)
        assert {name for _, name in doubtful} == {*PLAIN}
        assert resumed(vault, reached, log) == doubtful
    assert broken_promises(address, reached, log) == []


def test_whoever_resumes_may_be_cancelled_too(address: str, log: Log) -> None:
    """While it says that an outcome is unknown, and while a person says what it was."""
    moments = around("unknown", "done", "lease", "release")
    with opened(address, Mortal) as vault:
        for moment in moments:
            assert cancelled(vault, moment, log, "after the effect of mail")
            assert cancelled(vault, moment, log, moment) == moment
        resumed(vault, moments, log)
    assert broken_promises(address, moments, log) == []


@pytest.mark.parametrize("moment", ["before renewal", "after renewal"])
def test_a_run_may_be_cancelled_while_it_renews_its_lease(moment: str, address: str, log: Log) -> None:
    with opened(address, Mortal) as vault:
        short = dt.timedelta(seconds=0.6)
        assert cancelled(vault, "t", log, moment, endless="after the effect of wire", lease=short) == moment
        assert resumed(vault, ["t"], log) == [("t", "wire")]
    assert broken_promises(address, ["t"], log) == []


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
def test_a_run_that_is_cancelled_over_and_over_gets_to_its_end(address: str, log: Log, at_once: bool) -> None:
    chance = random.Random()
    threads = [f"often {number}" for number in range(200)]
    cancellations = 0
    with opened(address, Mortal) as vault:
        for thread_id in threads:
            while cancelled(vault, thread_id, log, chance.randrange(5, 30), at_once=at_once):
                cancellations += 1
    print(f"{len(threads)} runs were cancelled {cancellations} times")
    assert broken_promises(address, threads, log) == []
