"""Frames to append, threads to fill and ways to compare: what the tests of the contract are written in.

Deltas here are pieces of text, so that a state is its keyframe with the deltas after it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from savegame.errors import SavegameError
from savegame.model import Frame, Page, ThreadKey, ThreadRow
from savegame.store import Append, DeleteThread, MoveHead, PutKeyframe, PutNote, PutRecord, Rewrite, Store

T = TypeVar("T")

SPACE: Final = "default"
A, B, C, D, E = (ThreadKey(SPACE, name) for name in "abcde")
MINUTE: Final = 60_000_000


def appended(key: ThreadKey, number: int, base: int = 0, **more: Any) -> Append:
    """An Append with the id `<thread>-<number>` and the delta `<number>.`, to be changed by `more`."""
    fields: dict[str, Any] = {"id": f"{key.id}-{number}", "meta": b"meta %d" % number, "delta": b"%d." % number}
    return Append(key, base=base, **(fields | more))


def grown(store: Store, key: ThreadKey, count: int) -> None:
    """Append a line of frames with the numbers 1 to `count` to an empty thread."""
    for number in range(1, count + 1):
        store.commit([appended(key, number, number - 1)])


def state(store: Store, key: ThreadKey, seq: int) -> bytes:
    """What the chain of a frame adds up to."""
    chain = store.chain(key, seq)
    return (chain.keyframe or b"") + b"".join(chain.deltas)


def row_of(store: Store, key: ThreadKey) -> ThreadRow:
    """The row of a thread that is there."""
    row = store.thread(key)
    assert row is not None
    return row


def seqs(frames: list[Frame]) -> list[int]:
    """The sequence numbers of frames."""
    return [frame.seq for frame in frames]


def everything(store: Store, key: ThreadKey) -> tuple[Any, ...]:
    """All that can be read of a thread, to compare before and after."""
    frames = store.frames(key, deltas=True)
    return (
        store.thread(key),
        frames,
        [store.chain(key, frame.seq) for frame in frames],
        [store.find(key.namespace, frame.id) for frame in frames],
        store.records(key, "kind").items,
        [store.blob(key, digest) for digest in (b"x", b"y", b"z")],
    )


def pages(read: Callable[[Any], Page[T]], start: Any) -> list[list[T]]:
    """All pages of a listing."""
    page = read(start)
    found = [page.items]
    while page.next is not None:
        page = read(page.next)
        found.append(page.items)
    return found


def at_once(*calls: Callable[[], T]) -> list[T | SavegameError]:
    """What the calls return or raise when all start at the same moment, each in a thread of its own."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T | SavegameError:
        start.wait()
        try:
            return call()
        except SavegameError as error:
            return error

    # Threads that take turns this often meet in the middle of things that are not protected.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(run, calls))
    finally:
        sys.setswitchinterval(interval)


def no_progress(done: int, total: int) -> None:
    """For calls whose progress is not looked at."""


class Contract:
    """What the promises have in common: a store, and another one on the same data."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A fresh store."""
        raise NotImplementedError("override the fixture `store`")

    def reopen(self, store: Store) -> Store | None:
        """Another store on the same data, after closing the first; None where nothing outlives a store."""
        return None

    def reopened(self, store: Store) -> Store:
        """Another store on the same data; skips where there is none."""
        again = self.reopen(store)
        if again is None:
            pytest.skip("nothing outlives this store")
        return again

    def fill(self, store: Store) -> list[ThreadKey]:
        """A thread in every condition; returns their keys."""
        keys = [A, B, C, D, E, ThreadKey("other", "a")]
        for key in keys:
            grown(store, key, 4)
            store.commit(
                [PutNote(key, 2, b"note", expect=None), PutKeyframe(key, 3, b"1.2.3."), PutRecord(key, "kind", "name", b"")]
            )
            store.commit([appended(key, 5, 2, agent="agent", keep_newest=2, blobs=((b"x", b"blob"), (b"y", b"blob")))])
        store.commit([MoveHead(B, 1)])
        store.commit([Rewrite(C, drop=(1,), rebase=((2, 0, b"1.2."),), keep_blobs=frozenset((b"y",)))])
        store.commit([DeleteThread(D)])
        store.lease(E, "me", 60 * MINUTE)
        leased = ThreadKey(SPACE, "leased")
        store.lease(leased, "me", 60 * MINUTE)
        return [*keys, leased]

    def wait_until(self, store: Store, moment: int) -> None:
        """Wait until the clock of the store is past a moment."""
        deadline = time.monotonic() + 10
        while store.clock() <= moment:
            assert time.monotonic() < deadline, "the clock of the store stands still"
            time.sleep(0.01)
