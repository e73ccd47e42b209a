"""usage: sums of what checkpoints say they cost."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from addresses import ALL, Addresses, Opener
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import savegame
from savegame import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError, Retention, Thread, Usage, Vault
from savegame.model import ThreadKey
from savegame.store import Rewrite, StoreChange
from savegame.stores.memory import MemoryStore
from savegame.timeline.companions import SPENT

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


def test_namespaces_are_apart(in_database: Opener) -> None:
    one, other = in_database(namespace="one"), in_database(namespace="other")
    one.thread("t").save(1, tokens_used=7)
    assert other.usage() == []
    assert one.usage()[0].tokens_used == 7


@pytest.mark.parametrize("wrong", ["", "Agent", "month", None])
def test_another_grouping_is_refused_and_the_choices_are_named(vault: Vault, wrong: str) -> None:
    with pytest.raises(InvalidInputError, match="agent, day, thread"):
        vault.usage(by=wrong)


def test_by_thread(vault: Vault) -> None:
    first = vault.thread("b", agent="x").save(1, tokens_used=1)
    last = vault.thread("b", agent="y").save(2, tokens_used=2)
    other = vault.thread("a").save(1)
    assert vault.usage(by="thread") == [
        Usage("a", 1, 0, 0.0, 1, other.created_at, other.created_at, 1),
        Usage("b", 2, 3, 0.0, 1, first.created_at, last.created_at, 2),
    ]


# -- what is gone ------------------------------------------------------------------------------------


def spent(vault: Vault, by: str = "thread") -> dict[Any, tuple[int, float]]:
    return {used.key: (used.tokens_used, used.cost) for used in vault.usage(by=by)}


def saved(vault: Vault, count: int = 4, name: str = "t", **details: Any) -> Thread:
    """A thread whose checkpoints cost 1, 10, 100, ... tokens."""
    thread = vault.thread(name, **details)
    for number in range(count):
        thread.update(append={"l": [number]}, tokens_used=10**number, cost=0.25)
    return thread


@pytest.mark.requirement("E01i")
def test_what_is_pruned_stays_spent_and_is_no_checkpoint_any_more(vault: Vault) -> None:
    thread = saved(vault, agent="a")
    (before,) = vault.usage()
    assert thread.prune(keep=1) == 3
    (after,) = vault.usage()
    assert after == replace(before, checkpoints=1, state_bytes=after.state_bytes)
    assert (after.tokens_used, after.cost, after.threads) == (1111, 1.0, 1)
    saved(vault, 1, agent="a")
    thread.prune(keep=1)
    for by in ("agent", "day", "thread"):
        assert list(spent(vault, by).values()) == [(1112, 1.25)]


def test_what_retention_hides_or_frees_stays_spent(opened: Opener) -> None:
    vault = opened(retention=Retention(max_checkpoints=2))
    thread = vault.thread("t")
    for number in range(600):
        thread.update(append={"l": [number] * 8}, tokens_used=1)
        assert spent(vault) == {"t": (number + 1, 0.0)} or number % 50
    row = vault.store.thread(ThreadKey("default", "t"))
    assert row is not None
    assert row.frames < 600, "nothing was freed"
    (used,) = vault.usage()
    assert (used.checkpoints, used.tokens_used) == (2, 600)


def test_what_is_removed_or_discarded_stays_spent(vault: Vault) -> None:
    thread = saved(vault)
    thread.rewind("head~2", discard=True)
    assert spent(vault) == {"t": (1111, 1.0)}
    thread.remove("head")
    assert spent(vault) == {"t": (1111, 1.0)}
    thread.remove("head")
    assert (thread.latest(), spent(vault)) == (None, {"t": (1111, 1.0)})
    thread.save(1, tokens_used=5)
    assert spent(vault) == {"t": (1116, 1.0)}


def test_what_is_discarded_unseen_stays_spent(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = saved(vault, 3)
    commit = vault.store.commit
    pending = [4, 5]

    def commit_later(changes: Sequence[StoreChange]) -> list[int]:
        if pending and any(isinstance(change, Rewrite) for change in changes):
            vault.thread("t").save(pending.pop(), tokens_used=1000)
        return commit(changes)

    monkeypatch.setattr(vault.store, "commit", commit_later)
    thread.rewind("head~2", discard=True)
    assert len(pending) == 1
    assert [entry.tokens_used for entry in thread.history(branches=True)] == [1]
    assert spent(vault) == {"t": (1111, 0.75)}


def test_what_two_remove_at_once_counts_once(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(vault, 5)
    commit = vault.store.commit
    others = [lambda: vault.thread("t").prune(keep=3), lambda: vault.thread("t").rewind("head~1", discard=True)]

    def commit_later(changes: Sequence[StoreChange]) -> list[int]:
        if others and any(isinstance(change, Rewrite) for change in changes):
            others.pop()()
        return commit(changes)

    monkeypatch.setattr(vault.store, "commit", commit_later)
    vault.thread("t").prune(keep=1)
    assert not others
    assert spent(vault) == {"t": (11111, 1.25)}


def test_delete_and_erase_remove_it_and_a_new_thread_begins_at_zero(vault: Vault) -> None:
    saved(vault).prune(keep=1)
    vault.thread("t").delete()
    assert spent(vault) == {}
    saved(vault, 2).prune(keep=1)
    assert spent(vault) == {"t": (11, 0.5)}
    vault.thread("t").attach_subject("somebody")
    vault.erase("somebody")
    assert spent(vault) == {}


def test_a_fork_begins_at_zero(vault: Vault) -> None:
    thread = saved(vault)
    thread.prune(keep=2)
    fork = thread.fork("f")
    assert spent(vault) == {"t": (1111, 1.0), "f": (0, 0.0)}
    fork.save(1, tokens_used=7)
    fork.fork("g")
    fork.prune(keep=1)
    assert spent(vault) == {"t": (1111, 1.0), "f": (7, 0.0), "g": (0, 0.0)}


def test_a_misshapen_record_leaves_its_thread_out_until_it_is_repaired(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    saved(vault).prune(keep=1)
    saved(vault, 1, "other")
    (record,) = vault.thread("t").records(SPENT)
    vault.thread("t").put_records({(SPENT, record): [["a", "no date", 1, 1.0, 1, 1]]})
    assert spent(vault) == {"other": (1, 0.25)}
    assert "leaves out damaged threads: t" in caplog.text
    assert [problem.place for problem in vault.verify().problems] == [f"record spent {record}"]
    vault.repair()
    assert spent(vault) == {"other": (1, 0.25), "t": (1000, 0.25)}


# -- copies ------------------------------------------------------------------------------------------


@pytest.fixture
def copies(opened: Opener) -> tuple[Vault, Vault]:
    return opened(), opened("copy.db")


def test_a_copy_carries_it_once(copies: tuple[Vault, Vault], tmp_path: Path) -> None:
    source, target = copies
    thread = saved(source)
    thread.prune(keep=3)
    source.copy_to(target)
    assert spent(target) == spent(source) == {"t": (1111, 1.0)}
    thread.prune(keep=1)  # what the copy has still
    source.copy_to(target)
    target.thread("t").prune(keep=1)
    source.copy_to(target)
    source.copy_to(target, full=True)
    source.export(tmp_path / "export")
    target.import_(tmp_path / "export")
    assert spent(target) == spent(source) == {"t": (1111, 1.0)}
    thread.update(set={"n": 1}, tokens_used=5)
    thread.prune(keep=1)
    source.copy_to(target)
    target.copy_to(source)
    assert spent(target) == spent(source) == {"t": (1116, 1.0)}


def test_what_was_pruned_in_the_copy_and_comes_again_counts_once(copies: tuple[Vault, Vault], tmp_path: Path) -> None:
    source, target = copies
    saved(source)
    source.copy_to(target)
    source.export(tmp_path / "export")
    for bring in (lambda: source.copy_to(target, full=True), lambda: target.import_(tmp_path / "export")):
        removed = target.thread("t").prune(keep=1)
        assert bring() == removed > 0
        assert spent(target) == {"t": (1111, 1.0)}


def test_an_import_carries_it_once(copies: tuple[Vault, Vault], tmp_path: Path) -> None:
    source, target = copies
    thread = saved(source)
    thread.prune(keep=2)
    source.export(tmp_path / "one")
    for _ in range(2):
        target.import_(tmp_path / "one")
        assert spent(target) == {"t": (1111, 1.0)}
    thread.update(set={"n": 1}, tokens_used=5)
    thread.remove("head")  # of which the file has nothing but the cost
    source.export(tmp_path / "two")
    assert target.import_(tmp_path / "two") == 0
    assert spent(target) == {"t": (1116, 1.0)}
    target.import_(tmp_path / "one")
    assert spent(target) == {"t": (1116, 1.0)}


def test_a_copy_that_was_killed_carries_it_once(copies: tuple[Vault, Vault], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = copies
    thread = source.thread("t")
    for number in range(200):
        thread.update(set={"n": number}, tokens_used=1)
    source.copy_to(target)
    assert target.thread("t").prune(keep=1) == 199
    thread.prune(keep=190)
    commit, left = target.store.commit, iter(range(2))

    def commit_twice(changes: Sequence[StoreChange]) -> list[int]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return commit(changes)

    with monkeypatch.context() as patched:
        patched.setattr(target.store, "commit", commit_twice)
        with pytest.raises(KeyboardInterrupt):
            source.copy_to(target, full=True)
    assert spent(target) == {"t": (200, 0.0)}
    source.copy_to(target, full=True)
    assert target.usage()[0].checkpoints == 190
    assert spent(target) == {"t": (200, 0.0)}


ACTIONS = st.one_of(
    st.tuples(st.just("save"), st.integers(0, 2), st.integers(0, 9), st.integers(0, 3)),
    st.tuples(st.just("prune"), st.integers(0, 2), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("remove"), st.integers(0, 2), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("rewind"), st.integers(0, 2), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("fork"), st.integers(0, 2), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("copy"), st.just(0), st.just(0), st.booleans()),
    st.tuples(st.just("export"), st.just(0), st.just(0), st.just(0)),
)


class Spenders:
    """A vault and a copy of it; the model knows what every checkpoint cost that there ever was."""

    def __init__(self, source: Vault, target: Vault, path: Path) -> None:
        self.vaults, self.path = (source, target), path
        self.ever: tuple[dict[str, dict[str, tuple[int, float]]], ...] = ({}, {})

    def save(self, name: str, tokens: int, quarters: int) -> None:
        made = self.vaults[0].thread(name).update(append={"l": [tokens]}, tokens_used=tokens, cost=quarters / 4)
        self.ever[0].setdefault(name, {})[made.id] = tokens, quarters / 4

    def prune(self, name: str, keep: int, in_copy: bool) -> None:
        self.vaults[in_copy].thread(name).prune(keep=keep)

    def remove(self, name: str, back: int, in_copy: bool) -> None:
        with suppress(NotFoundError):
            self.vaults[in_copy].thread(name).remove(f"head~{back}")

    def rewind(self, name: str, back: int, discard: bool) -> None:
        with suppress(NotFoundError):
            self.vaults[0].thread(name).rewind(f"head~{back}", discard=discard)

    def fork(self, name: str, number: int, _: int) -> None:
        with suppress(NotFoundError, AlreadyExistsError):
            self.vaults[0].thread(name).fork(f"fork {number}")
            self.ever[0][f"fork {number}"] = {}

    def copy(self, _name: str, _: int, full: bool) -> None:
        with suppress(ConflictError):
            self.vaults[0].copy_to(self.vaults[1], full=full)
            self._carried()

    def export(self, _name: str, _: int, __: int) -> None:
        self.path.unlink(missing_ok=True)
        self.vaults[0].export(self.path)
        with suppress(ConflictError):
            self.vaults[1].import_(self.path)
            self._carried()

    def _carried(self) -> None:
        for name, costs in self.ever[0].items():
            self.ever[1].setdefault(name, {}).update(costs)

    def check(self) -> None:
        for vault, ever in zip(self.vaults, self.ever, strict=True):
            wanted = {
                name: (sum(t for t, _ in costs.values()), sum(c for _, c in costs.values())) for name, costs in ever.items()
            }
            assert spent(vault) == wanted


@pytest.mark.requirement("E01j")
@pytest.mark.parametrize("store", ALL)
@pytest.mark.parametrize("most", [None, 2])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, max_size=25))
def test_whatever_is_removed_and_copied_every_cost_counts_once(
    actions: list[tuple[str, int, Any, Any]], store: str, most: int | None, address_of: Addresses, tmp_path: Path
) -> None:
    options = {"durability": "process", "namespace": uuid.uuid4().hex}
    with (
        savegame.open(address_of(store, "source.db"), retention=Retention(max_checkpoints=most), **options) as source,
        savegame.open(address_of(store, "target.db"), **options) as target,
    ):
        spenders = Spenders(source, target, tmp_path / "export")
        for verb, thread, *how in actions:
            getattr(spenders, verb)(f"t{thread}", *how)
            spenders.check()
