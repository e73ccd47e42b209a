"""What records and blobs promise, and what deleting a thread takes along.

Records are small and keyed, blobs large and named by their digest; both belong to one thread. Touches the contract and its
helpers only.
"""

from __future__ import annotations

from functools import partial

import pytest

from savegame.errors import AlreadyExistsError
from savegame.model import Page, Record, ThreadKey
from savegame.store import SOUGHT, DeleteThread, PutKeyframe, PutRecord, Store
from savegame.testing.contract.helpers import SPACE, A, B, C, Contract, D, appended, at_once, everything, grown, pages, row_of


class Records(Contract):
    """Records, blobs and deleting."""

    def test_records_come_by_name(self, store: Store) -> None:
        """Of one kind; a second value replaces the first."""
        for name in ("b", "B", "ä", "a", "🎲"):
            store.commit([PutRecord(A, "kind", name, b"first"), PutRecord(A, "kind", name, name.encode())])
        store.commit([PutRecord(A, "other", "z", b"other")])
        assert store.records(A, "kind") == Page([Record("kind", name, name.encode()) for name in ("B", "a", "b", "ä", "🎲")])
        assert store.records(A, "other").items == [Record("other", "z", b"other")]

    def test_kinds_of_records_are_listed(self, store: Store) -> None:
        """Each once, in order; those of this thread only."""
        store.commit([PutRecord(A, kind, name, b"1") for kind, name in (("b", "x"), ("a", "y"), ("b", "z"))])
        assert (store.kinds(A), store.kinds(B)) == (["a", "b"], [])
        store.commit([PutRecord(A, "a", "y", None)])
        assert store.kinds(A) == ["b"]

    @pytest.mark.parametrize("kind", ["kind", *SOUGHT])
    def test_threads_are_found_by_the_kinds_of_their_records(self, store: Store, kind: str) -> None:
        """By id, each once, with a head or without; those of this namespace, as long as they have such a record."""
        for key, name in ((B, "x"), (B, "y"), (A, "x"), (ThreadKey("other", "z"), "x")):
            store.commit([PutRecord(key, kind, name, b"1")])
        store.commit([appended(A, 1), appended(C, 1), PutRecord(C, "another", kind, b"1")])
        assert (store.threads_with(SPACE, kind), store.threads_with("other", kind)) == (["a", "b"], ["z"])
        store.commit([PutRecord(B, kind, "x", None), DeleteThread(A)])
        assert store.threads_with(SPACE, kind) == ["b"]
        store.commit([PutRecord(B, kind, "y", None)])
        assert store.threads_with(SPACE, kind) == store.threads_with("nowhere", kind) == []
        store.commit([PutRecord(D, kind, "x", b"1")])
        again = self.reopen(store)
        assert again is None or again.threads_with(SPACE, kind) == ["d"]

    def test_records_come_in_pages(self, store: Store) -> None:
        """Each once; only a page that others follow says where they begin."""
        names = [f"{number:03}" for number in range(6)]
        store.commit([PutRecord(A, "kind", name, b"") for name in names])
        found = pages(lambda after: store.records(A, "kind", after=after, limit=3), "")
        assert [[record.name for record in page] for page in found] == [names[:3], names[3:]]
        assert [record.name for record in store.records(A, "kind", after="004").items] == ["005"]

    def test_a_record_that_must_be_absent_is_set_once(self, store: Store) -> None:
        """Also when two try at the same moment."""
        for turn in range(10):
            changes = [PutRecord(A, "kind", str(turn), who, absent=True) for who in (b"0", b"1")]
            results = at_once(*[partial(store.commit, [change]) for change in changes])
            (winner,) = (number for number, result in enumerate(results) if result == [0])
            assert isinstance(results[1 - winner], AlreadyExistsError)
            assert store.records(A, "kind", limit=100).items[turn].value == b"%d" % winner

    def test_a_record_is_removed(self, store: Store) -> None:
        """Quietly if it is not there; its name is free again."""
        store.commit([PutRecord(A, "kind", "name", b"value")])
        store.commit([PutRecord(key, "kind", name, None) for key, name in ((A, "name"), (A, "never"), (B, "name"))])
        assert store.records(A, "kind").items == []
        store.commit([PutRecord(A, "kind", "name", b"again", absent=True)])

    def test_records_belong_to_their_thread(self, store: Store) -> None:
        """Which needs no head for them, and is not listed because of them."""
        store.commit([PutRecord(A, "kind", "name", b"a"), PutRecord(B, "kind", "name", b"b", absent=True)])
        assert store.records(A, "kind").items == [Record("kind", "name", b"a")]
        store.commit([PutRecord(A, "kind", "name", None)])
        assert store.records(B, "kind").items == [Record("kind", "name", b"b")]
        assert store.threads(SPACE).items == []
        assert store.commit([appended(A, 1, expect=None)]) == [1]

    def test_blobs_belong_to_their_thread(self, store: Store) -> None:
        """The same digest may come again."""
        store.commit([appended(A, 1, blobs=((b"x", b"content"), (b"y", b"more")))])
        store.commit([appended(A, 2, 1, blobs=((b"x", b"content"),))])
        assert (store.blob(A, b"x"), store.blob(A, b"y"), store.blob(A, b"z")) == (b"content", b"more", None)
        assert store.blob(B, b"x") is None

    def test_delete_takes_everything(self, store: Store) -> None:
        """Other threads stay as they are; a second time nothing happens."""
        for key in (A, B):
            grown(store, key, 2)
            blob = appended(key, 3, 2, note=b"note", blobs=((b"x", b"content"),))
            store.commit([blob, PutRecord(key, "kind", "name", b"value"), PutKeyframe(key, 2, b"1.2.")])
        other = everything(store, B)
        assert store.commit([DeleteThread(A)]) == store.commit([DeleteThread(A)]) == [0]
        assert (store.thread(A), store.frames(A), store.records(A, "kind").items, store.blob(A, b"x")) == (None, [], [], None)
        assert [store.find(SPACE, f"a-{number}") for number in (1, 2, 3)] == [None, None, None]
        assert [row.key for row in store.threads(SPACE).items] == [B]
        assert everything(store, B) == other

    def test_a_deleted_thread_may_begin_again(self, store: Store) -> None:
        """At number 1, with its old ids, and nothing of its former life."""
        grown(store, A, 3)
        store.commit([PutKeyframe(A, 2, b"1.2."), appended(A, 4, 3, agent="x", keep_newest=1)])
        store.commit([DeleteThread(A)])
        assert store.commit([appended(A, 2, expect=None), appended(A, 1, 1, expect="a-2")]) == [1, 2]
        assert store.chain(A, 2) == (0, None, [b"2.", b"1."])
        row = row_of(store, A)
        assert (row.agent, row.last, row.floor, row.frames) == (None, 2, 0, 2)
