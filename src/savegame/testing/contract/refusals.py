"""Why a change is refused, and in which order that is checked: the same in every store, word for word.

A store that leaves decisions to `stores/rules.py` passes without writing a word of its own. Touches the contract and
its helpers only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ConflictError,
    Fenced,
    InvalidInputError,
    SavegameError,
    ThreadNotFound,
)
from savegame.model import ThreadKey
from savegame.store import DeleteThread, Expect, MoveHead, PutNote, PutRecord, Rewrite, Store, StoreChange
from savegame.testing.contract.helpers import MINUTE, SPACE, A, B, C, Contract, appended, everything, grown, row_of

GONE: Final = ThreadKey(SPACE, "gone")
"""A thread that does not exist."""

FIRST: Final[dict[str, tuple[StoreChange, type[SavegameError]]]] = {
    "append: fence before head": (appended(A, 9, epoch=77, expect="a-1"), Fenced),
    "append: lease before head": (appended(B, 9, expect="b-1"), Busy),
    "append: head before base": (appended(A, 9, 77, expect="a-1"), ConflictError),
    "append: base before id": (appended(A, 1, 77), CheckpointNotFound),
    "append: fence before everything in no thread": (appended(GONE, 9, 77, epoch=1, expect="x"), Fenced),
    "move: fence before head": (MoveHead(A, 1, expect="a-1", epoch=77), Fenced),
    "move: head before frame": (MoveHead(A, 77, expect="a-1"), ConflictError),
    "move: fence before thread": (MoveHead(GONE, 1, epoch=1), Fenced),
    "move: head before thread": (MoveHead(GONE, 1, expect="gone-1"), ConflictError),
    "record: fence before record": (PutRecord(A, "kind", "name", b"", epoch=77, absent=True), Fenced),
    "rewrite: fence before head": (Rewrite(A, drop=(), expect="a-1", epoch=77), Fenced),
    "rewrite: lease before head": (Rewrite(B, drop=(), expect="b-1"), Busy),
    "rewrite: fence before thread": (Rewrite(GONE, drop=(), epoch=1), Fenced),
    "rewrite: head before thread": (Rewrite(GONE, drop=(), expect="gone-1"), ConflictError),
    "rewrite: newer frames before its head": (Rewrite(A, drop=(2,), newest=2, seen=3), ConflictError),
    "rewrite: its head before what is gone": (Rewrite(A, drop=(77, 2)), InvalidInputError),
    "rewrite: what is gone before what is rebased": (Rewrite(A, drop=(77,), rebase=((78, 0, b""),)), ConflictError),
}
"""Changes that break two rules, and the error of the one that is checked first."""

LIST: Final = "list them with thread.history()"
RETRY: Final = "read it again and retry"
WORDINGS: Final[dict[str, tuple[StoreChange, str]]] = {
    "busy": (appended(B, 9), "thread 'b' is leased to 'me' (epoch N); wait until that run ends, then retry"),
    "fenced": (appended(A, 9, epoch=77), "thread 'a': the lease with epoch N was released or taken over; stop this run"),
    "head": (MoveHead(A, 1, expect="a-1"), f"thread 'a': the head is a-2, expected a-1; {RETRY}"),
    "no head": (appended(GONE, 1, expect="x"), f"thread 'gone': the head is (none), expected x; {RETRY}"),
    "id": (appended(A, 1), "checkpoint id 'a-1' is taken in namespace 'default'; choose another"),
    "record": (
        PutRecord(A, "kind", "name", b"", absent=True),
        "thread 'a': record kind 'name' exists already; choose another name",
    ),
    "base": (appended(A, 9, 77), f"thread 'a' has no checkpoint number 77; {LIST}"),
    "base id": (appended(A, 9, 2, base_id="a-1"), f"thread 'a' has no checkpoint a-1 at number 2; {LIST}"),
    "frame": (MoveHead(A, 77), f"thread 'a' has no checkpoint number 77; {LIST}"),
    "note": (PutNote(GONE, 1, None, expect=None), f"thread 'gone' has no checkpoint number 1; {LIST}"),
    "thread": (Rewrite(GONE, drop=()), "thread 'gone' has no checkpoints; list threads with vault.threads()"),
    "frame that is expected": (
        Expect(A, frame=(1, "a-2")),
        "thread 'a': checkpoint number 1 is not a-2 any more; read the thread again and retry",
    ),
}


def words(call: Callable[[], object]) -> str:
    """How a call is refused, with N for the epoch."""
    with pytest.raises(SavegameError) as caught:
        call()
    return re.sub(r"epoch \d+", "epoch N", str(caught.value))


class Refusals(Contract):
    """Which rule refuses a change, and how it says so."""

    @pytest.fixture
    def ruled(self, store: Store) -> Store:
        """A store with a free thread, a leased one, and a record."""
        for key in (A, B):
            grown(store, key, 2)
        store.commit([PutRecord(A, "kind", "name", b"old")])
        store.lease(B, "me", MINUTE)
        return store

    @pytest.mark.parametrize("rules", FIRST)
    def test_rules_are_checked_in_one_order(self, ruled: Store, rules: str) -> None:
        """A change that breaks two of them is refused by the first."""
        change, error = FIRST[rules]
        with pytest.raises(error) as caught:
            ruled.commit([change])
        assert type(caught.value) is error
        assert ruled.thread(GONE) is None

    @pytest.mark.parametrize("rule", WORDINGS)
    def test_a_refusal_has_one_wording(self, ruled: Store, rule: str) -> None:
        """It names the thing and the next step."""
        change, expected = WORDINGS[rule]
        assert words(lambda: ruled.commit([change])) == expected

    def test_other_verbs_refuse_in_the_same_words(self, ruled: Store) -> None:
        """Taking a lease that is held, prolonging one that is not, loading a frame that does not exist."""
        assert words(lambda: ruled.lease(B, "you", MINUTE)) == WORDINGS["busy"][1]
        assert words(lambda: ruled.renew(A, 77, MINUTE)) == WORDINGS["fenced"][1]
        assert words(lambda: ruled.chain(A, 77)) == WORDINGS["frame"][1]

    def test_a_thread_without_frames_has_nothing_to_rewrite_and_no_head_to_lose(self, store: Store) -> None:
        """Whether it has never existed, or has records or a lease."""
        store.commit([PutRecord(A, "kind", "name", b"")])
        lease = store.lease(C, "me", MINUTE)
        for key, epoch in ((A, None), (B, None), (C, lease.epoch)):
            changes: list[StoreChange] = [Rewrite(key, drop=(), epoch=epoch), MoveHead(key, 0, epoch=epoch)]
            for change in changes:
                with pytest.raises(ThreadNotFound):
                    store.commit([change])
        assert store.thread(B) is None

    def test_a_thread_that_does_not_exist_is_deleted_by_any_epoch(self, store: Store) -> None:
        """So that a delete may be retried."""
        assert store.commit([DeleteThread(A, epoch=1)]) == [0]

    def test_a_record_that_must_be_absent_is_not_removed_either(self, ruled: Store) -> None:
        """`absent` means the same with and without a value."""
        with pytest.raises(AlreadyExistsError):
            ruled.commit([PutRecord(A, "kind", "name", None, absent=True)])
        assert [record.value for record in ruled.records(A, "kind").items] == [b"old"]
        ruled.commit([PutRecord(A, "kind", "other", None, absent=True)])

    def test_epoch_0_is_of_no_lease(self, store: Store) -> None:
        """Neither before the first lease of a thread nor in no thread at all."""
        grown(store, A, 1)
        changes: list[StoreChange] = [
            appended(A, 2, 1, epoch=0),
            appended(A, 2, 1, id=store.new_id(A), fresh=True, expect="a-1", epoch=0),
            PutRecord(A, "kind", "name", b"", epoch=0),
            MoveHead(A, 1, epoch=0),
            appended(B, 1, epoch=0),
        ]
        for change in changes:
            with pytest.raises(Fenced):
                store.commit([change])
        with pytest.raises(Fenced):
            store.renew(A, 0, MINUTE)

    def test_the_id_of_the_base_counts_on_top_of_the_head_too(self, store: Store) -> None:
        """Also for an append that a store could make without looking."""
        grown(store, A, 2)
        before = everything(store, A)
        change = appended(A, 3, 2, id=store.new_id(A), fresh=True, expect="a-2", base_id="a-1")
        with pytest.raises(CheckpointNotFound):
            store.commit([change])
        assert everything(store, A) == before
        assert store.commit([change._replace(base_id="a-2")]) == [3]

    def test_only_the_lease_of_its_own_epoch_is_prolonged(self, store: Store) -> None:
        """Not that of another run, which has expired."""
        lease = store.lease(A, "gone", 1)
        self.wait_until(store, lease.expires)
        store.commit([appended(A, 1, renew_us=MINUTE), PutRecord(A, "kind", "name", b"", renew_us=MINUTE)])
        assert row_of(store, A).lease == lease

    def test_a_lease_that_goes_along_with_a_rewrite_stays_prolonged(self, store: Store) -> None:
        """The rewrite of the row does not undo it."""
        grown(store, A, 2)
        lease = store.lease(A, "me", MINUTE)

        def along(metas: Sequence[bytes]) -> list[PutRecord | Expect]:
            return [PutRecord(A, "kind", "name", b"", lease.epoch, renew_us=10 * MINUTE)]

        store.commit([Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),), epoch=lease.epoch, along=along)])
        longer = row_of(store, A).lease
        assert longer is not None
        assert longer.expires >= lease.expires + 5 * MINUTE

    def test_a_released_lease_is_not_shown(self, store: Store) -> None:
        """Its epoch is the newest all the same, until another is taken."""
        grown(store, A, 1)
        lease = store.lease(A, "me", MINUTE)
        store.renew(A, lease.epoch, 0)
        assert row_of(store, A).lease is None
        assert [row.lease for row in store.threads(SPACE).items] == [None]
        assert store.commit([appended(A, 2, 1, epoch=lease.epoch)]) == [2]
        assert row_of(store, A).lease is None

    def test_new_blobs_are_kept_without_being_named(self, store: Store) -> None:
        """`keep_blobs` is about those that were there before."""
        store.commit([appended(A, 1, blobs=((b"x", b"old x"), (b"y", b"old y")))])
        store.commit([Rewrite(A, drop=(), new_blobs=((b"z", b"new z"),), keep_blobs=frozenset((b"y",)))])
        assert [store.blob(A, digest) for digest in (b"x", b"y", b"z")] == [None, b"old y", b"new z"]
