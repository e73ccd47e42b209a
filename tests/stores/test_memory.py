"""The memory store against the contract, and what is its own: the clock it is given, and what it finds wrong with itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from savegame.errors import Busy, CorruptionError, InvalidInputError, UnavailableError
from savegame.model import ThreadKey
from savegame.store import Append, DeleteThread, PutRecord, Rewrite, Store
from savegame.stores.memory import MemoryStore, open_url
from savegame.testing import StoreContract

KEY = ThreadKey("default", "t")


def store_of(count: int) -> MemoryStore:
    store = MemoryStore()
    store.commit([Append(KEY, f"id-{seq}", seq - 1, b"meta", b"delta") for seq in range(1, count + 1)])
    return store


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = MemoryStore()
        yield store
        store.close()


def test_a_write_inside_a_write_is_refused() -> None:
    """By a signal handler, or whatever else comes in between: here the clock, which a lease asks in the middle."""
    refused = []

    def clock() -> int:
        for write in (lambda: store.commit([DeleteThread(KEY)]), lambda: store.renew(KEY, 1, 0)):
            with pytest.raises(UnavailableError, match="a write inside a write"):
                write()
            refused.append(store.thread(KEY))
        return 1000

    store = MemoryStore(clock=clock)
    store.commit([Append(KEY, "id-1", 0, b"meta", b"delta")])
    assert store.lease(KEY, "me", 10).epoch == 1
    assert [row is not None for row in refused] == [True, True]


def test_leases_go_by_the_clock_that_was_given() -> None:
    now = 1000
    store = MemoryStore(clock=lambda: now)
    assert store.lease(KEY, "me", 10).expires == 1010
    now = 1009
    with pytest.raises(Busy):
        store.lease(KEY, "you", 10)
    now = 1010
    assert store.lease(KEY, "you", 10).expires == 1020
    assert store.clock() == 1010


def test_it_opens_by_its_url() -> None:
    store = open_url("memory:", durability="power", read_only=True)
    assert store.threads("default").items == []
    assert store.scheme == "memory"
    with pytest.raises(InvalidInputError, match="memory:name"):
        open_url("memory:name")


def test_two_stores_share_nothing() -> None:
    store_of(2)
    assert MemoryStore().thread(KEY) is None


def test_an_interrupt_in_the_middle_of_a_batch_takes_it_back() -> None:
    store = store_of(1)

    class Interrupting(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.commit([PutRecord(KEY, "kind", "name", b""), Append(KEY, Interrupting("id-2"), 1, b"", b"")])
    assert store.records(KEY, "kind").items == []
    assert list(store.check("default")) == []


def test_sizes_are_the_bytes_held() -> None:
    store = store_of(2)
    store.commit(
        [
            Append(KEY, "id-3", 2, b"12", b"345", note=b"6789", blobs=((b"x", b"blob"),)),
            PutRecord(KEY, "kind", "name", b"value"),
        ]
    )
    expected = {"frames": 2 * 9 + 5, "keyframes": 0, "notes": 4, "records": 5, "blobs": 4}
    assert store.sizes() == expected | {"total": 36}


def test_what_was_put_aside_is_kept_until_the_thread_is_deleted() -> None:
    store = store_of(3)
    before = store.sizes()["total"]
    store.commit([Rewrite(KEY, drop=(3,), head=2, aside=True)])
    (aside,) = store._tables.threads[KEY].aside
    assert (aside[0], aside[1]) == (3, "id-3")
    assert store.sizes()["total"] == before
    store.commit([DeleteThread(KEY)])
    assert store.sizes()["total"] == 0


def test_check_names_what_does_not_fit() -> None:
    store = store_of(4)
    thread = store._tables.threads[KEY]
    thread.frames[3] = thread.frames[3]._replace(base=3)
    thread.frames[9] = thread.frames[4]._replace(seq=9)
    thread.keyframes[7] = b"stray"
    del thread.frames[4], thread.frames[1]
    assert [str(problem) for problem in store.check("default")] == [
        "thread 't' id-4: head: number 4 is missing",
        "thread 't': row: counts 4 checkpoints, there are 3",
        "thread 't' id-2: frame: checkpoint number 2 is based on number 1, which is missing",
        "thread 't' id-3: frame: checkpoint number 3 is based on number 3, which is not older",
        "thread 't' id-4: frame: number 9 is beyond the last one, 4",
        "thread 't': keyframe: belongs to number 7, which is missing",
    ]


def test_a_chain_that_would_go_in_circles_is_damage() -> None:
    store = store_of(2)
    frames = store._tables.threads[KEY].frames
    frames[1] = frames[1]._replace(base=2)
    with pytest.raises(CorruptionError, match=r"'t'.*not older"):
        store.chain(KEY, 2)


def test_a_rewrite_never_bases_a_frame_on_a_newer_one() -> None:
    store = store_of(3)
    with pytest.raises(InvalidInputError, match="cannot build on number 3"):
        store.commit([Rewrite(KEY, drop=(), rebase=((2, 3, b""),))])
