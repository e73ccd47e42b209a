"""The cache of points: who goes first, and that its bytes are counted right, also when a signal handler saves meanwhile."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame.model import ThreadKey
from savegame.timeline.engine import ENTRY_OVERHEAD, Cache, Point


def key(name: str) -> ThreadKey:
    return ThreadKey("", name)


def point(size: int) -> Point:
    return Point(1, "id", 1, b"", b"n" * size, 0, 0)


def counted(cache: Cache) -> int:
    """What the points that are kept take, counted again."""
    assert set(cache._points) == set(cache._sizes)
    return sum(ENTRY_OVERHEAD + len(found.node) * 5 // 4 for found in cache._points.values() if isinstance(found.node, bytes))


def test_least_recently_put_goes_first() -> None:
    cache = Cache(3 * (ENTRY_OVERHEAD + 1000))
    for name in ("a", "b", "c", "a", "d"):
        cache.put(key(name), point(800))
    assert [name for name in "abcd" if cache.get(key(name))] == ["a", "c", "d"]
    assert cache.bytes == counted(cache) == cache.limit
    cache.forget(key("c"))
    cache.forget(key("never"))
    assert cache.bytes == counted(cache)


def test_what_does_not_fit_at_all_evicts_nobody_else() -> None:
    cache = Cache(10_000)
    cache.put(key("a"), point(1000))
    cache.put(key("b"), point(1000))
    cache.put(key("a"), point(100_000))
    assert (cache.get(key("a")), cache.get(key("b"))) == (None, point(1000))
    assert cache.bytes == counted(cache)


@pytest.mark.parametrize("size", [1000, 30_000])
@pytest.mark.parametrize("verb", ["put", "forget"])
def test_a_handler_puts_another_point_in_the_middle(verb: str, size: int) -> None:
    """It runs when a call returns; the one that it puts may evict others, also the one that is being put."""
    cache = Cache(45_000)

    class Handled(OrderedDict[ThreadKey, int]):
        armed = False

        def pop(self, *args: Any) -> Any:
            found = super().pop(*args)
            if self.armed:
                self.armed = False
                cache.put(key("handler"), point(size))
            return found

    cache._sizes = handled = Handled()
    for name in "abcdef":
        cache.put(key(name), point(4000))
    handled.armed = True
    if verb == "put":
        cache.put(key("a"), point(5000))
    else:
        cache.forget(key("a"))
    assert cache.bytes == counted(cache) <= cache.limit


def test_an_interrupt_in_the_middle_leaves_it_empty() -> None:
    cache = Cache(45_000)
    cache.put(key("a"), point(4000))

    class Interrupted(OrderedDict[ThreadKey, int]):
        def __setitem__(self, name: ThreadKey, size: int) -> None:
            raise KeyboardInterrupt

    cache._sizes = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        cache.put(key("b"), point(4000))
    assert (cache.bytes, counted(cache)) == (0, 0)


def test_a_closed_vault_keeps_no_states(tmp_path: Path) -> None:
    """They would stay in memory until the garbage collector comes by: vaults are parts of reference cycles."""
    vault = savegame.open(tmp_path / "v.db")
    vault.thread("t").save({"messages": ["x" * 10_000]})
    cache = vault.rooms.engine.cache
    assert cache.bytes > 10_000
    vault.close()
    assert (cache.bytes, counted(cache), cache.get(vault.thread("t").timeline.key)) == (0, 0, None)
