"""Memories that expire: times to live, reads that prolong them, sweeps by hand and in the background."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

import pytest
from homes import Home
from langgraph.store.base import PutOp
from recalling import Calls, keys

import savegame
from savegame import InvalidInputError
from savegame.adapters.langgraph import SavegameStore

ME = ("users", "1")
MINUTE = 60_000_000


class Clock:
    """Microseconds since 1970, which pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_900_000_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now

    def wait(self, minutes: float) -> None:
        self.now += int(minutes * MINUTE)


class Timed(Calls):
    """A store whose clock is the test's."""

    def __init__(self, home: Home, awaited: bool, **ttl: Any) -> None:
        self.clock = Clock()
        self.memory = SavegameStore(home.with_clock(self.clock), ttl=ttl or None)  # type: ignore[arg-type]
        super().__init__(self.memory, awaited=awaited)


Make = Callable[..., Timed]


@pytest.fixture
def timed(home: Home, awaited: bool) -> Make:
    return lambda **ttl: Timed(home, awaited, **ttl)


def test_what_has_expired_is_there_until_it_is_swept(timed: Make) -> None:
    calls = timed(default_ttl=10)
    calls.put(ME, "default", {"n": 1})
    calls.put(ME, "short", {"n": 2}, ttl=1)
    calls.put(ME, "for ever", {"n": 3}, ttl=None)
    calls.clock.wait(2)
    assert calls.get(ME, "short").value == {"n": 2}
    assert calls.memory.sweep_ttl() == 1
    assert sorted(keys(calls.search(()))) == ["default", "for ever"]
    assert calls.memory.sweep_ttl() == 0
    calls.clock.wait(9)
    assert calls.memory.sweep_ttl() == 1
    assert keys(calls.search(())) == ["for ever"]


def test_without_a_configuration_a_time_to_live_can_still_be_given(timed: Make) -> None:
    calls = timed()
    calls.put(ME, "short", {"n": 1}, ttl=0.5)
    calls.put(ME, "for ever", {"n": 1})
    calls.put(("only", "short"), "short", {"n": 1}, ttl=0.5)
    calls.clock.wait(1)
    assert calls.memory.sweep_ttl() == 2
    assert keys(calls.search(())) == ["for ever"]
    assert calls.names() == [ME]


def test_a_put_begins_a_new_life(timed: Make) -> None:
    calls = timed(default_ttl=10)
    calls.put(ME, "k", {"n": 1})
    calls.clock.wait(9)
    calls.put(ME, "k", {"n": 2})
    calls.clock.wait(9)
    assert calls.memory.sweep_ttl() == 0
    calls.put(ME, "k", {"n": 3}, ttl=None)
    calls.clock.wait(99)
    assert calls.memory.sweep_ttl() == 0


@pytest.mark.parametrize("how", ["get", "search"])
def test_reads_prolong_a_life_only_if_configured_and_asked(timed: Make, how: str) -> None:
    def read(key: str, **options: bool) -> None:
        if how == "get":
            assert calls.get(ME, key, **options) is not None
        else:
            assert keys(calls.search(ME, filter={"key": key}, **options)) == [key]

    for configured, prolonged in ((True, ["used"]), (False, ["asked"]), (None, [])):
        calls = timed(default_ttl=10, **({} if configured is None else {"refresh_on_read": configured}))
        for key in ("used", "unused", "asked"):
            calls.put(ME, key, {"key": key})
        calls.clock.wait(8)
        read("used")
        read("asked", refresh_ttl=configured is None)
        calls.clock.wait(8)
        left = [] if configured is False else prolonged
        assert calls.memory.sweep_ttl() == 3 - len(left)
        assert keys(calls.search(ME)) == left
        for key in left:
            calls.delete(ME, key)


def test_a_read_changes_no_time_but_the_end(timed: Make) -> None:
    calls = timed(default_ttl=10, refresh_on_read=True)
    calls.put(ME, "k", {"n": 1})
    before = calls.get(ME, "k")
    calls.clock.wait(5)
    assert calls.get(ME, "k") == before
    thread = calls.memory.vault.thread("memory:users.1")
    item = thread.state()["items"]["k"]
    assert item["updated_at"] == before.updated_at
    assert dt.timedelta(minutes=15) < item["expires_at"] - before.updated_at < dt.timedelta(minutes=16)
    calls.put(ME, "lasting", {"n": 2}, ttl=None)
    step = thread.latest().step  # type: ignore[union-attr]
    calls.get(ME, "lasting")
    assert thread.latest().step == step  # type: ignore[union-attr]


def test_expired_items_can_be_left_out_of_every_read(timed: Make) -> None:
    calls = timed(default_ttl=10, omit_expired=True, refresh_on_read=True)
    calls.batch([PutOp(ME, key, {"n": 1}, ttl=ttl) for key, ttl in (("a", None), ("b", 1), ("c", 10), ("d", 1))])
    calls.put(("gone",), "k", {"n": 1}, ttl=1)
    calls.clock.wait(2)
    assert calls.get(ME, "b") is None
    assert keys(calls.search(())) == ["c", "a"]
    assert keys(calls.search((), limit=1, offset=1)) == ["a"]
    assert calls.names() == [ME]
    assert calls.memory.sweep_ttl() == 3


def test_a_sweep_spares_what_was_prolonged_meanwhile(timed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = timed(default_ttl=10)
    other = SavegameStore(calls.memory.vault, ttl={"default_ttl": 10})
    calls.put(ME, "a", {"n": 1})
    calls.put(ME, "b", {"n": 1})
    calls.clock.wait(11)
    known = list(calls.memory.search(ME))
    assert len(known) == 2
    other.put(ME, "b", {"n": 2})
    assert calls.memory.sweep_ttl() == 1
    assert keys(calls.search(ME)) == ["b"]


@pytest.mark.parametrize("ttl", [float("nan"), float("inf"), 1e300, "soon"])
def test_a_time_to_live_without_an_end_is_refused(timed: Make, ttl: Any) -> None:
    calls = timed()
    with pytest.raises(InvalidInputError, match="ttl must be a number of minutes"):
        calls.put(ME, "k", {"n": 1}, ttl=ttl)
    assert calls.names() == []


class Watched(SavegameStore):
    """A store that says when it sweeps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.swept = threading.Semaphore(0)

    def sweep_ttl(self) -> int:
        found = super().sweep_ttl()
        self.swept.release()
        return found


@pytest.fixture
def watched() -> Any:
    with savegame.open("memory:") as vault:
        store = Watched(vault, ttl={"default_ttl": 0, "sweep_interval_minutes": 0.0005})
        yield store
        store.stop_ttl_sweeper()


def test_the_sweeper_sweeps_until_it_is_stopped(watched: Watched) -> None:
    watched.put(ME, "k", {"n": 1})
    future = watched.start_ttl_sweeper()
    again = watched.start_ttl_sweeper()
    for _ in range(3):
        assert watched.swept.acquire(timeout=60)
    assert watched.search(ME) == []
    assert watched.stop_ttl_sweeper()
    assert watched.stop_ttl_sweeper()
    assert future.result(60) is None
    assert not again.done()
    future = watched.start_ttl_sweeper(0.0005)
    assert watched.swept.acquire(timeout=60)
    assert future.cancel()
    assert watched.stop_ttl_sweeper(60)


def test_the_sweeper_ends_with_its_vault_and_needs_a_configuration(watched: Watched) -> None:
    plain = SavegameStore(watched.vault)
    assert plain.start_ttl_sweeper().done()
    assert plain.stop_ttl_sweeper()
    future = watched.start_ttl_sweeper()
    watched.vault.close()
    assert future.result(60) is None
