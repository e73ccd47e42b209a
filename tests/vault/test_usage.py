"""usage: sums of what checkpoints say they cost."""

from __future__ import annotations

import datetime as dt

import pytest

from savegame import InvalidInputError, Retention, Usage, Vault
from savegame.stores.memory import MemoryStore
from tests.vault.conftest import Opener

DAY_US = 24 * 3600 * 10**6


def at(us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=us)


def test_an_empty_vault_used_nothing(vault: Vault) -> None:
    assert vault.usage() == vault.usage(by="day") == []


def test_by_agent(vault: Vault) -> None:
    one, two = vault.thread("1", agent="b"), vault.thread("2", agent="b")
    first = one.save(1, tokens_used=10, cost=0.5)
    two.save(1, tokens_used=5)
    last = two.save(2, cost=0.25)
    alone = vault.thread("3", agent="a").save(1, tokens_used=2**62)
    nobody = vault.thread("4").save(1)
    assert vault.usage(by="agent") == [
        Usage("a", 1, 2**62, 0.0, 1, alone.created_at, alone.created_at, 1),
        Usage("b", 3, 15, 0.75, 2, first.created_at, last.created_at, 3),
        Usage(None, 1, 0, 0.0, 1, nobody.created_at, nobody.created_at, 1),
    ]


def test_by_day_in_utc() -> None:
    times = [DAY_US - 1, DAY_US, DAY_US + 1, 5 * DAY_US]
    clock = iter(times)
    vault = Vault(MemoryStore(lambda: next(clock)))
    for number in range(4):
        vault.thread(f"thread {number % 2}").save(number, tokens_used=1, cost=1)
    assert vault.usage(by="day") == [
        Usage(dt.date(1970, 1, 1), 1, 1, 1.0, 1, at(times[0]), at(times[0]), 1),
        Usage(dt.date(1970, 1, 2), 2, 2, 2.0, 2, at(times[1]), at(times[2]), 2),
        Usage(dt.date(1970, 1, 6), 1, 1, 1.0, 1, at(times[3]), at(times[3]), 1),
    ]


def test_branches_count_and_what_a_fork_begins_with_does_not(vault: Vault) -> None:
    thread = vault.thread("t")
    first = thread.save(1, tokens_used=1, cost=1)
    thread.save(2, tokens_used=10, cost=10)
    thread.save(3, tokens_used=100, cost=100, parent=first)
    fork = thread.fork("f")
    fork.save(4, tokens_used=1000, cost=1000)
    (found,) = vault.usage()
    assert (found.checkpoints, found.threads, found.tokens_used, found.cost) == (5, 2, 1111, 1111.0)


def test_a_thread_that_several_agents_worked_on_counts_for_each(vault: Vault) -> None:
    for agent in ("a", "b", "a"):
        vault.thread("t", agent=agent).update(set={"by": agent}, tokens_used=1)
    assert [(found.key, found.checkpoints, found.threads) for found in vault.usage()] == [("a", 2, 1), ("b", 1, 1)]


def test_many_pages_of_one_thread(vault: Vault) -> None:
    thread = vault.thread("t")
    for number in range(600):
        thread.update(set={"n": number}, tokens_used=number)
    assert [(found.checkpoints, found.tokens_used) for found in vault.usage()] == [(600, sum(range(600)))]


def test_what_retention_hides_does_not_count(opened: Opener) -> None:
    vault = opened(retention=Retention(max_checkpoints=2))
    for number in range(5):
        vault.thread("t").save(number, tokens_used=1)
    assert vault.usage()[0].tokens_used == 2


def test_namespaces_are_apart(in_database: Opener) -> None:
    one, other = in_database(namespace="one"), in_database(namespace="other")
    one.thread("t").save(1, tokens_used=7)
    assert other.usage() == []
    assert one.usage()[0].tokens_used == 7


@pytest.mark.parametrize("wrong", ["", "Agent", "month", None])
def test_another_grouping_is_refused_and_the_choices_are_named(vault: Vault, wrong: str) -> None:
    with pytest.raises(InvalidInputError, match="agent, day"):
        vault.usage(by=wrong)
