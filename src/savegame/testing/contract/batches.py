"""What one commit of several changes promises: all of them or none, also for those who read or write meanwhile."""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

import pytest

from savegame.errors import AlreadyExistsError, Busy, ConflictError, Fenced, InvalidInputError, NotFoundError, SavegameError
from savegame.model import ThreadKey
from savegame.store import DeleteThread, Expect, MoveHead, PutKeyframe, PutNote, PutRecord, Rewrite, Store, StoreChange
from savegame.testing.contract.helpers import (
    MINUTE,
    SPACE,
    A,
    B,
    C,
    Contract,
    D,
    E,
    appended,
    at_once,
    everything,
    grown,
    seqs,
    state,
)

FAILURES: Final[dict[str, tuple[StoreChange, type[SavegameError]]]] = {
    "append: stale head": (appended(B, 9, expect="b-1"), ConflictError),
    "append: head where none is expected": (appended(B, 9, expect=None), ConflictError),
    "append: taken id": (appended(B, 9, id="a-1"), AlreadyExistsError),
    "append: unknown base": (appended(B, 9, base=77), NotFoundError),
    "append: another base": (appended(B, 9, 1, base_id="b-2"), NotFoundError),
    "append: another head": (appended(B, 9, 2, base_id="b-1"), NotFoundError),
    "append: leased": (appended(E, 9), Busy),
    "append: wrong epoch": (appended(B, 9, epoch=77), Fenced),
    "move: stale head": (MoveHead(B, 1, expect="b-1"), ConflictError),
    "move: unknown frame": (MoveHead(B, 77), NotFoundError),
    "move: leased": (MoveHead(E, 1), Busy),
    "move: wrong epoch": (MoveHead(B, 1, epoch=77), Fenced),
    "note: stale": (PutNote(B, 1, b"new", expect=b"never there"), ConflictError),
    "note: unknown frame": (PutNote(B, 77, b"new", expect=None), NotFoundError),
    "record: there already": (PutRecord(B, "kind", "name", b"new", absent=True), AlreadyExistsError),
    "record: wrong epoch": (PutRecord(B, "kind", "name", b"new", epoch=77), Fenced),
    "rewrite: stale head": (Rewrite(B, drop=(1,), rebase=((2, 0, b"1.2."),), expect="b-1"), ConflictError),
    "rewrite: drops the head": (Rewrite(B, drop=(2,)), InvalidInputError),
    "rewrite: unknown frame": (Rewrite(B, drop=(), rebase=((77, 0, b""),)), NotFoundError),
    "rewrite: unknown base": (Rewrite(B, drop=(), rebase=((2, 77, b""),)), NotFoundError),
    "rewrite: the head was moved to what goes": (Rewrite(B, drop=(2,), newest=2), ConflictError),
    "rewrite: its head was removed": (Rewrite(B, drop=(), head=77, newest=2), ConflictError),
    "rewrite: fewer frames than were seen": (Rewrite(B, drop=(), newest=2, seen=3), ConflictError),
    "rewrite: leased": (Rewrite(E, drop=()), Busy),
    "rewrite: wrong epoch": (Rewrite(B, drop=(), epoch=77), Fenced),
    "expect: another frame": (Expect(B, frame=(1, "b-2")), ConflictError),
    "expect: a frame that is gone": (Expect(B, frame=(77, "b-77")), ConflictError),
    "expect: a thread that is gone": (Expect(ThreadKey(SPACE, "gone"), frame=(1, "gone-1")), ConflictError),
    "expect: a record more": (Expect(B, kind="kind", names=frozenset()), ConflictError),
    "expect: a record less": (Expect(B, kind="kind", names=frozenset(("name", "other"))), ConflictError),
    "delete: leased": (DeleteThread(E), Busy),
    "delete: wrong epoch": (DeleteThread(B, epoch=77), Fenced),
}


class Batches(Contract):
    """Several changes in one commit."""

    def test_a_batch_returns_one_number_per_change(self, store: Store) -> None:
        """0 for a change that makes no frame; later changes see earlier ones."""
        batch: list[StoreChange] = [
            appended(A, 1, expect=None),
            PutNote(A, 1, b"note", expect=None),
            appended(A, 2, 1, expect="a-1"),
            PutRecord(A, "kind", "name", b"value"),
            PutKeyframe(A, 2, b"1.2."),
            MoveHead(A, 1, expect="a-2"),
            appended(B, 1),
            DeleteThread(B),
            appended(B, 1, expect=None),
        ]
        assert store.commit(batch) == [1, 0, 2, 0, 0, 0, 1, 0, 1]
        assert store.find(SPACE, "a-2") == (A, 2)
        assert store.find(SPACE, "b-1") == (B, 1)

    def test_an_empty_batch_does_nothing(self, store: Store) -> None:
        """And is not an error."""
        assert store.commit([]) == []

    @pytest.mark.parametrize("failure", FAILURES)
    def test_a_batch_that_fails_leaves_nothing_behind(self, store: Store, failure: str) -> None:
        """Whatever its last change fails by, in every thread that it touched."""
        for key in (A, B, C, D, E):
            grown(store, key, 2)
            record, keyframe = PutRecord(key, "kind", "name", b"old"), PutKeyframe(key, 2, b"1.2.")
            store.commit([record, keyframe, appended(key, 3, 2, blobs=((b"x", b"old"),)), MoveHead(key, 2)])
        store.lease(E, "another run", MINUTE)
        fresh = ThreadKey(SPACE, "fresh")
        before = [everything(store, key) for key in (A, B, C, D, E, fresh)]
        change, error = FAILURES[failure]
        batch: list[StoreChange] = [
            appended(A, 4, 2, keep_newest=1, agent="new", blobs=((b"x", b"new"), (b"y", b"new"))),
            PutNote(A, 1, b"new", expect=None),
            PutRecord(A, "kind", "name", b"new"),
            PutRecord(A, "kind", "other", b"new"),
            PutKeyframe(A, 2, None),
            PutKeyframe(A, 4, b"1.2.4."),
            PutRecord(B, "kind", "more", b"new"),
            MoveHead(C, 1),
            Rewrite(C, drop=(2, 3), rebase=((1, 0, b"new"),), new_blobs=((b"z", b"new"),), keep_blobs=frozenset((b"z",))),
            DeleteThread(D),
            appended(D, 1),
            appended(fresh, 1),
            change,
        ]
        with pytest.raises(error) as caught:
            store.commit(batch)
        assert type(caught.value) is error or not isinstance(caught.value, ConflictError)
        assert [everything(store, key) for key in (A, B, C, D, E, fresh)] == before
        assert list(store.check(SPACE)) == []

    def test_a_reader_never_sees_half_a_batch(self, store: Store) -> None:
        """Two frames per batch: a reader never counts an odd number."""
        over = threading.Event()
        counts: set[int] = set()

        def read() -> None:
            while not over.is_set():
                row = store.thread(A)
                counts.update((row.frames if row else 0, len(store.frames(A))))

        def write() -> None:
            for number in range(1, 81, 2):
                store.commit([appended(A, number), appended(A, number + 1)])
            over.set()

        assert at_once(read, write) == [None, None]
        assert [count for count in counts if count % 2] == []

    def test_threads_are_written_by_many_at_once(self, store: Store) -> None:
        """A store may be shared: 8 real threads with 50 appends each."""
        keys = [ThreadKey(SPACE, f"busy {number}") for number in range(8)]
        assert at_once(*[partial(grown, store, key, 50) for key in keys]) == [None] * 8
        for key in keys:
            assert seqs(store.frames(key)) == list(range(1, 51))
            assert state(store, key, 50) == b"".join(b"%d." % number for number in range(1, 51))
