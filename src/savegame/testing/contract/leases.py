"""What leases promise: who may write, until when, and which epoch is the newest.

Time is the store's own (`clock`), so the tests wait by it and not by ours. Touches the contract and its helpers only.
"""

from __future__ import annotations

from functools import partial

import pytest

from savegame.errors import Busy, ConflictError, Fenced
from savegame.model import ThreadKey
from savegame.store import DeleteThread, MoveHead, PutKeyframe, PutNote, PutRecord, Rewrite, Store, StoreChange
from savegame.testing.contract.helpers import MINUTE, SPACE, A, B, Contract, appended, at_once, grown, row_of, seqs


class Leases(Contract):
    """Leases and fencing."""

    def test_a_lease_says_who_holds_it(self, store: Store) -> None:
        """In the thread's row, until when by the store's clock."""
        before = store.clock()
        lease = store.lease(A, "me", MINUTE)
        assert before + MINUTE <= lease.expires <= store.clock() + MINUTE
        row = row_of(store, A)
        assert row.lease == lease
        assert lease.owner == "me"

    def test_a_thread_that_was_only_leased_has_no_head(self, store: Store) -> None:
        """It is not listed; its first frame is expected to find nothing."""
        lease = store.lease(A, "me", MINUTE)
        row = row_of(store, A)
        assert (row.head, row.head_id, row.last, row.frames) == (0, None, 0, 0)
        assert store.threads(SPACE).items == []
        assert store.frames(A) == []
        assert store.commit([appended(A, 1, expect=None, epoch=lease.epoch)]) == [1]
        assert [row.key for row in store.threads(SPACE).items] == [A]

    def test_a_live_lease_keeps_others_out(self, store: Store) -> None:
        """No head moves without its epoch, whatever is expected; the lease cannot be taken, by the same name either."""
        grown(store, A, 2)
        store.lease(A, "me", MINUTE)
        moves: list[StoreChange] = [
            appended(A, 3, 2),
            appended(A, 3, 2, expect="a-2"),
            MoveHead(A, 1),
            Rewrite(A, drop=()),
            DeleteThread(A),
        ]
        for change in moves:
            with pytest.raises(Busy):
                store.commit([change])
        for owner in ("you", "me"):
            with pytest.raises(Busy):
                store.lease(A, owner, MINUTE)

    def test_a_lease_leaves_what_moves_no_head(self, store: Store) -> None:
        """Notes, records and keyframes need no epoch; neither do other threads."""
        grown(store, A, 2)
        store.lease(A, "me", MINUTE)
        beside: list[StoreChange] = [
            PutNote(A, 1, b"note", expect=None),
            PutRecord(A, "kind", "name", b""),
            PutKeyframe(A, 1, b"1."),
        ]
        assert store.commit([*beside, appended(B, 1)]) == [0, 0, 0, 1]

    def test_the_holder_of_a_lease_writes_with_its_epoch(self, store: Store) -> None:
        """Every kind of change that takes one."""
        epoch = store.lease(A, "me", MINUTE).epoch
        batch: list[StoreChange] = [
            appended(A, 1, epoch=epoch),
            appended(A, 2, 1, epoch=epoch, expect="a-1"),
            PutRecord(A, "kind", "name", b"", epoch=epoch),
            MoveHead(A, 1, epoch=epoch),
            Rewrite(A, drop=(2,), epoch=epoch),
        ]
        assert store.commit(batch) == [1, 2, 0, 0, 0]
        with pytest.raises(ConflictError) as caught:
            store.commit([appended(A, 3, 1, epoch=epoch, expect="a-2")])
        assert not isinstance(caught.value, Busy | Fenced)
        assert store.commit([DeleteThread(A, epoch=epoch)]) == [0]
        assert store.thread(A) is None

    def test_an_epoch_that_is_not_the_newest_is_fenced(self, store: Store) -> None:
        """Older, never given, or of another thread; for every change that has one."""
        grown(store, A, 2)
        old = store.lease(A, "me", MINUTE)
        new = store.lease(A, "you", MINUTE, instead_of=old.epoch)
        foreign = store.lease(B, "me", MINUTE)
        for epoch in (old.epoch, new.epoch + 77, foreign.epoch):
            changes: list[StoreChange] = [
                appended(A, 3, 2, epoch=epoch),
                MoveHead(A, 1, epoch=epoch),
                PutRecord(A, "kind", "name", b"", epoch=epoch),
                Rewrite(A, drop=(), epoch=epoch),
                DeleteThread(A, epoch=epoch),
            ]
            for change in changes:
                with pytest.raises(Fenced):
                    store.commit([change])
            with pytest.raises(Fenced):
                store.renew(A, epoch, MINUTE)
        assert seqs(store.frames(A)) == [1, 2]

    def test_an_epoch_on_a_thread_without_a_lease_is_fenced(self, store: Store) -> None:
        """Whether there is such a thread or not."""
        grown(store, A, 1)
        for key in (A, B):
            with pytest.raises(Fenced):
                store.commit([appended(key, 9, epoch=1)])
            with pytest.raises(Fenced):
                store.renew(key, 1, MINUTE)
        assert store.thread(B) is None

    def test_a_lease_is_taken_from_one_who_is_known_to_be_gone(self, store: Store) -> None:
        """By naming its epoch, which only the first of two can do."""
        old = store.lease(A, "gone", MINUTE)
        new = store.lease(A, "me", MINUTE, instead_of=old.epoch)
        assert new.epoch > old.epoch
        with pytest.raises(Busy):
            store.lease(A, "you", MINUTE, instead_of=old.epoch)
        row = row_of(store, A)
        assert row.lease == new

    def test_a_lease_expires_by_the_clock_of_the_store(self, store: Store) -> None:
        """Then others write and take it; until they took it, the late holder may still write."""
        lease = store.lease(A, "slow", 50_000)
        self.wait_until(store, lease.expires)
        store.commit([appended(A, 1, epoch=lease.epoch)])
        store.commit([appended(A, 2, 1)])
        new = store.lease(A, "next", MINUTE)
        assert new.epoch > lease.epoch
        with pytest.raises(Fenced):
            store.commit([appended(A, 3, 2, epoch=lease.epoch)])

    def test_a_lease_is_prolonged(self, store: Store) -> None:
        """Also one that expired, if it was not taken since."""
        lease = store.lease(A, "me", 50_000)
        longer = store.renew(A, lease.epoch, MINUTE)
        assert (longer.epoch, longer.owner) == (lease.epoch, "me")
        self.wait_until(store, lease.expires)
        with pytest.raises(Busy):
            store.commit([appended(A, 1)])
        self.wait_until(store, store.renew(A, lease.epoch, 50_000).expires)
        store.renew(A, lease.epoch, MINUTE)
        with pytest.raises(Busy):
            store.commit([appended(A, 1)])

    def test_a_lease_is_released(self, store: Store) -> None:
        """At once free for others, to write and to take."""
        lease = store.lease(A, "me", MINUTE)
        assert store.renew(A, lease.epoch, 0).expires <= store.clock()
        store.commit([appended(A, 1)])
        with pytest.raises(Fenced):  # released, although it was not taken since
            store.renew(A, lease.epoch, MINUTE)
        assert store.lease(A, "you", MINUTE).epoch > lease.epoch

    def test_of_two_who_want_a_lease_exactly_one_gets_it(self, store: Store) -> None:
        """The other gets Busy."""
        for turn in range(10):
            key = ThreadKey(SPACE, str(turn))
            results = at_once(*[partial(store.lease, key, owner, MINUTE) for owner in ("me", "you")])
            assert sum(isinstance(result, Busy) for result in results) == 1

    def test_an_epoch_is_never_given_twice(self, store: Store) -> None:
        """Not after a delete, and not for another thread: a holder of old is fenced for ever."""
        first = store.lease(A, "me", MINUTE)
        store.commit([DeleteThread(A, epoch=first.epoch)])
        with pytest.raises(Fenced):
            store.commit([appended(A, 1, epoch=first.epoch)])
        assert store.thread(A) is None
        second = store.lease(A, "you", MINUTE)
        third = store.lease(B, "you", MINUTE)
        assert first.epoch < second.epoch < third.epoch
        with pytest.raises(Fenced):
            store.commit([appended(A, 1, epoch=first.epoch)])
