"""update() that only appends to a list of the state has a way of its own: it writes what the long way writes, byte for byte."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import savegame
from savegame import Busy, Retention, SavegameError
from savegame.encoding.codec import Codec
from savegame.encoding.tree import List, to_bytes
from savegame.store import Append, StoreChange
from savegame.testing import strategies
from savegame.timeline.timeline import Timeline
from savegame.vault import Vault

NAMES = st.sampled_from(("items", "more", "text", "nothing", 7, ("deep", "list"), ("deep",), b"k", "\ud800"))
ITEMS = st.one_of(
    st.lists(strategies.values(max_leaves=5), max_size=20),
    st.lists(st.sampled_from(strategies.LARGE), max_size=2),
    st.sampled_from(((1, 2), "text", None, [object()], [1, "\ud800"], [bytearray(b"x")], {"a": 1})),
)
DETAILS = st.just({}) | st.sampled_from(
    ({"label": "l"}, {"tags": ["t"]}, {"label": ""}, {"cost": 1}, {"delete": ""}, {"set": {"n": 1}})
)


class Watched:
    """A vault in memory whose clock and ids can be foretold, and what was committed to its store."""

    def __init__(self, *, agent: str | None, keep: int | None, short: bool) -> None:
        self.vault = savegame.open("memory:", retention=Retention(max_checkpoints=keep))
        self.thread = self.vault.thread("t", agent=agent)
        self.committed: list[Sequence[StoreChange]] = []
        engine = self.thread.timeline.engine
        commit, numbers = engine.store.commit, itertools.count(1)
        mock.patch.multiple(  # no other test has this store: it may stay so
            engine.store,
            clock=lambda: 1_000_000,
            new_id=lambda key: f"{next(numbers):032x}",
            commit=lambda changes: (self.committed.append(changes), commit(changes))[1],
        ).start()
        if not short:
            mock.patch.object(self.thread.timeline, "append_items", return_value=None).start()

    def outcome(self, change: Callable[[Any], Any]) -> tuple[Any, ...]:
        try:
            made = change(self.thread)
        except (SavegameError, TypeError) as error:
            return type(error), str(error)
        return made.id, made.digest, made.step, made.label, self.thread.head, self.thread.step


@given(st.sampled_from((None, "helper")), st.sampled_from((None, 3)), st.lists(st.tuples(NAMES, ITEMS, DETAILS), max_size=12))
def test_both_ways_write_the_same(agent: str | None, keep: int | None, updates: list[tuple[Any, Any, dict[str, Any]]]) -> None:
    short, long = (Watched(agent=agent, keep=keep, short=short) for short in (True, False))
    begin = {"items": [], "text": "not a list", "deep": {"list": [1]}, 7: [], b"k": []}
    for watched in (short, long):
        watched.outcome(lambda thread: thread.save(begin))
    for name, items, details in updates:
        told = [watched.outcome(lambda thread: thread.update(append={name: items}, **details)) for watched in (short, long)]  # noqa: B023
        assert told[0] == told[1]
    assert short.committed == long.committed
    assert to_bytes_of(short.vault) == to_bytes_of(long.vault)


def to_bytes_of(vault: Vault) -> bytes:
    """The state of the thread as the cache has it."""
    thread = vault.thread("t")
    point = thread.timeline.engine.cache.get(thread.timeline.key)
    assert point is not None
    assert point.node is not None
    return to_bytes(point.node)


def test_most_updates_go_the_short_way(opened: Callable[..., Vault]) -> None:
    thread = opened().thread("t", agent="helper")
    with mock.patch.object(Timeline, "save", autospec=True, side_effect=Timeline.save) as long:
        thread.update(append={"messages": [1]})  # there is no state yet
        thread.update(append={"messages": [2]})  # the list is there, but was not opened yet
        assert long.call_count == 2
        for number in range(3, 100):
            thread.update(append={"messages": [number]})
        assert long.call_count == 2
        thread.update(append={"messages": ["x" * 20_000]})
        assert long.call_count == 2
        thread.update(append={"messages": [100]}, label="said")
        assert long.call_count == 3
    assert thread.state() == {"messages": [*range(1, 100), "x" * 20_000, 100]}
    assert [found.agent_id for found in thread.history(limit=3)] == ["helper"] * 3


def test_another_writer_was_quicker(in_database: Callable[..., Vault]) -> None:
    mine, theirs = (in_database().thread("t") for _ in range(2))
    for number in range(0, 40, 2):
        mine.update(append={"items": [number]})
        theirs.update(append={"items": [number + 1]})
        with mock.patch.object(mine.timeline.engine.store, "chain", side_effect=mine.timeline.engine.store.chain) as read:
            mine.update(append={"others": [number]})
        assert [call.kwargs["after"] for call in read.call_args_list] == [3 * number // 2 + 1]  # only what is new
    assert mine.state() == {"items": list(range(40)), "others": list(range(0, 40, 2))}


def test_what_is_large_is_encoded_once(vault: Vault) -> None:
    thread = vault.thread("t")
    for number in range(3):
        thread.update(append={"items": [number]})
    codec = thread.timeline.engine.codec
    with mock.patch.object(codec, "encode", side_effect=codec.encode) as encode:
        thread.update(append={"items": ["x" * 20_000]})
    assert encode.call_count == 1


def test_a_lease_refuses_it(opened: Callable[..., Vault]) -> None:
    vault = opened()
    thread = vault.thread("t")
    for number in range(3):
        thread.update(append={"items": [number]})
    thread.timeline.engine.store.lease(thread.timeline.key, "somebody", 60_000_000)
    with pytest.raises(Busy, match="somebody"):
        thread.update(append={"items": [3]})
    assert thread.state() == {"items": [0, 1, 2]}


def test_versions_that_grow_at_the_same_moment() -> None:
    """Many threads append to the same version of a list; each gets a list of its own, and the version stays as it is."""
    codec, grown = Codec(), dict[tuple[int, int], List]()
    versions = [List([(1, codec.encode([0]))])]
    for number in range(200):
        versions.append(versions[-1].with_items(codec.encode([number])))
    start = threading.Barrier(4)

    def grow(worker: int) -> None:
        start.wait()
        for number, version in enumerate(versions):
            grown[worker, number] = version.with_items(codec.encode([-worker]))

    before, interval = [to_bytes(version) for version in versions], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=grow, args=(worker,)) for worker in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert [to_bytes(version) for version in versions] == before
    for (worker, number), longer in grown.items():
        assert codec.decode(to_bytes(longer)) == [*codec.decode(before[number]), -worker]


def test_what_is_handed_to_the_store(opened: Callable[..., Vault]) -> None:
    thread = opened().thread("t")
    for number in range(3):
        thread.update(append={"items": [number]})
    store = thread.timeline.engine.store
    with mock.patch.object(store, "commit", side_effect=store.commit) as commit:
        made = thread.update(append={"items": [3]})
    ((changes,), _) = commit.call_args
    assert len(changes) == 1
    assert type(changes[0]) is Append
    assert (changes[0].id, changes[0].base, changes[0].fresh) == (made.id, 3, True)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"id": ""}, savegame.InvalidInputError),
        ({"expect": ""}, savegame.InvalidInputError),
        ({"parent": 0}, savegame.CheckpointNotFound),
        ({"parent": ""}, savegame.CheckpointNotFound),
    ],
)
def test_what_is_falsy_is_not_passed_over(opened: Callable[..., Vault], given: dict[str, Any], error: type[Exception]) -> None:
    thread = opened().thread("t")
    for _ in range(3):
        thread.update(append={"messages": [1]})
    with pytest.raises(error):
        thread.update(append={"messages": [2]}, **given)
    assert thread.state() == {"messages": [1, 1, 1]}
