"""What removing and rebasing frames promises, also if others append or remove meanwhile.

Pruning, erasing and repair are made of these changes, which must never lose what another writer saved meanwhile. Touches the
contract and its helpers only.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from savegame.errors import CheckpointNotFound, ConflictError, InvalidInputError
from savegame.model import Frame
from savegame.store import Expect, MoveHead, PutKeyframe, PutNote, PutRecord, Rewrite, Store
from savegame.testing.contract.helpers import MINUTE, SPACE, A, B, Contract, appended, everything, grown, row_of, seqs, state


class Rewriting(Contract):
    """Rewriting, and expectations that go along."""

    def test_a_rewrite_drops_and_rebases(self, store: Store) -> None:
        """What stays keeps its number, id, meta and note; what goes takes its id and keyframe along."""
        grown(store, A, 4)
        store.commit([PutNote(A, 3, b"note", expect=None), PutKeyframe(A, 2, b"1.2.")])
        assert store.commit([Rewrite(A, drop=(1, 2), rebase=((3, 0, b"1.2.3."),), expect="a-4")]) == [0]
        assert store.frames(A, deltas=True) == [
            Frame(3, "a-3", 0, b"meta 3", b"note", b"1.2.3."),
            Frame(4, "a-4", 3, b"meta 4", None, b"4."),
        ]
        row = row_of(store, A)
        assert (row.head, row.last, row.frames) == (4, 4, 2)
        assert store.chain(A, 4) == (0, None, [b"1.2.3.", b"4."])
        assert store.find(SPACE, "a-1") is None
        with pytest.raises(CheckpointNotFound):
            store.chain(A, 2)
        assert list(store.check(SPACE)) == []

    def test_a_rewrite_of_what_another_writer_removed_is_a_conflict(self, store: Store) -> None:
        """Nothing is changed then; repair, which sets aside, goes on without it."""
        grown(store, A, 4)
        store.commit([Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),))])
        with pytest.raises(ConflictError):
            store.commit([Rewrite(A, drop=(1, 2), rebase=((3, 0, b"1.2.3."),))])
        assert seqs(store.frames(A)) == [2, 3, 4]
        store.commit([Rewrite(A, drop=(1, 2), rebase=((3, 0, b"1.2.3."),), aside=True)])
        assert seqs(store.frames(A)) == [3, 4]

    def test_a_rewrite_of_what_was_labelled_meanwhile_is_a_conflict(self, store: Store) -> None:
        """Unless it names the frame as `noted`, or sets aside."""
        grown(store, A, 4)
        store.commit([PutNote(A, 1, b"note", expect=None)])
        planned = Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),))
        with pytest.raises(ConflictError):
            store.commit([planned])
        assert seqs(store.frames(A)) == [1, 2, 3, 4]
        store.commit([planned._replace(noted=frozenset((1,)))])
        assert seqs(store.frames(A)) == [2, 3, 4]

    def test_a_rewrite_planned_before_frames_were_removed_is_a_conflict(self, store: Store) -> None:
        """Also of others than it removes: what it says of the blobs may be wrong by now. Appends do not make up for them."""
        grown(store, A, 4)
        planned = Rewrite(A, drop=(2,), rebase=((3, 1, b"2.3."),), keep_blobs=frozenset(), newest=4, seen=4)
        store.commit([Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),)), appended(A, 5, 4)])
        with pytest.raises(ConflictError):
            store.commit([planned])
        assert state(store, A, 5) == b"1.2.3.4.5."

    def test_a_rewrite_that_would_cut_a_newer_frame_off_is_a_conflict(self, store: Store) -> None:
        """Although the head is the expected one again: the frame that was added builds on one that would go."""
        grown(store, A, 4)
        store.commit([appended(A, 5, 2), MoveHead(A, 4)])
        blind = Rewrite(A, drop=(1, 2), rebase=((3, 0, b"1.2.3."),), expect="a-4", newest=4)
        with pytest.raises(ConflictError):
            store.commit([blind])
        assert [state(store, A, seq) for seq in (4, 5)] == [b"1.2.3.4.", b"1.2.5."]
        store.commit([blind._replace(rebase=(*blind.rebase, (5, 0, b"1.2.5.")), newest=5)])
        assert [state(store, A, seq) for seq in (4, 5)] == [b"1.2.3.4.", b"1.2.5."]

    def test_a_rewrite_lets_newer_frames_be(self, store: Store) -> None:
        """A writer that goes on appending at the head is no reason to plan again: neither head nor frames differ."""
        grown(store, A, 4)
        planned = Rewrite(A, drop=(1, 2), rebase=((3, 0, b"1.2.3."),), newest=4, seen=4)
        store.commit([appended(A, 5, 4), appended(A, 6, 5), MoveHead(A, 3), appended(A, 7, 3)])
        store.commit([planned])
        row = row_of(store, A)
        assert (row.head, row.last, row.frames) == (7, 7, 5)
        assert [state(store, A, seq) for seq in (6, 7)] == [b"1.2.3.4.5.6.", b"1.2.3.7."]
        assert list(store.check(SPACE)) == []
        assert store.commit([appended(A, 8, 7, expect="a-7")]) == [8]

    def test_a_rewrite_keeps_the_blobs_of_newer_frames(self, store: Store) -> None:
        """Those that `refers` names for their deltas, also if only frames that go had them before."""
        store.commit([appended(A, 1, blobs=((b"x", b"old x"), (b"y", b"old y")))])
        store.commit([appended(A, 2, 1)])
        planned = Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),), keep_blobs=frozenset(), newest=2)
        store.commit([appended(A, 3, 2, delta=b"x", blobs=((b"x", b"old x"),)), appended(A, 4, 3)])
        store.commit([planned._replace(refers=lambda delta: [delta] if delta == b"x" else [])])
        assert (store.blob(A, b"x"), store.blob(A, b"y")) == (b"old x", None)

    def test_a_rewrite_may_take_newer_frames_along(self, store: Store) -> None:
        """Discarding all that is not an ancestor includes what came meanwhile, with or without a note."""
        grown(store, A, 3)
        store.commit([appended(A, 4, 3, note=b"note"), appended(A, 5, 1)])
        store.commit([Rewrite(A, drop=(2, 3), head=1, keep_blobs=frozenset(), newest=3, seen=3, drop_newer=True)])
        row = row_of(store, A)
        assert (row.head, row.last, row.frames, seqs(store.frames(A))) == (1, 5, 1, [1])
        assert store.find(SPACE, "a-4") is None
        assert list(store.check(SPACE)) == []

    def test_a_rewrite_takes_changes_of_records_along(self, store: Store) -> None:
        """What `along` returns belongs to the same commit. It sees the metadata of newer frames only if they go too."""
        grown(store, A, 3)
        store.commit([PutRecord(A, "kind", "old", b"1"), appended(A, 4, 3), appended(A, 5, 4)])
        seen: list[list[bytes]] = []

        def along(metas: Sequence[bytes]) -> list[PutRecord | Expect]:
            seen.append(sorted(metas))
            return [Expect(A, kind="kind", names=frozenset(("old",))), PutRecord(A, "kind", "old", None)]

        store.commit([Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),), newest=3, seen=3, along=along)])
        assert (seen[-1], store.kinds(A)) == ([], [])
        with pytest.raises(ConflictError):
            store.commit([Rewrite(A, drop=(3,), head=2, newest=3, seen=2, drop_newer=True, along=along)])
        assert (seen[-1], seqs(store.frames(A))) == ([b"meta 4", b"meta 5"], [2, 3, 4, 5])

    def test_what_is_expected_and_so_changes_nothing(self, store: Store) -> None:
        """Also under the lease of another run, and for a thread that never existed."""
        grown(store, A, 2)
        store.commit([PutRecord(A, "kind", "name", b"1"), PutRecord(A, "other", "more", b"1")])
        store.lease(A, "me", MINUTE)
        before = everything(store, A)
        named = Expect(A, (1, "a-1"), "kind", frozenset(("name",)))
        assert store.commit([named, Expect(A), Expect(B, kind="kind"), Expect(A, (2, "a-2"))]) == [0, 0, 0, 0]
        assert everything(store, A) == before
        assert store.thread(B) is None

    def test_what_is_expected_is_what_the_changes_before_it_left(self, store: Store) -> None:
        """All changes of a commit are made in order."""
        store.commit([appended(A, 1), PutRecord(A, "kind", "name", b"1"), Expect(A, (1, "a-1"), "kind", frozenset(("name",)))])
        with pytest.raises(ConflictError):
            store.commit([PutRecord(A, "kind", "name", None), Expect(A, kind="kind", names=frozenset(("name",)))])
        assert len(store.records(A, "kind").items) == 1

    def test_a_rewrite_keeps_keyframes_of_what_stays(self, store: Store) -> None:
        """The state at a frame is the same, whatever it is based on."""
        grown(store, A, 3)
        store.commit([PutKeyframe(A, 2, b"1.2.")])
        store.commit([Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),))])
        assert store.chain(A, 3) == (2, b"1.2.", [b"3."])
        store.commit([PutKeyframe(A, 2, None)])
        assert store.chain(A, 3) == (0, None, [b"1.2.", b"3."])

    def test_a_dropped_id_is_free_but_its_number_is_not(self, store: Store) -> None:
        """Numbers are never used again while the thread lives."""
        grown(store, A, 3)
        store.commit([MoveHead(A, 1), Rewrite(A, drop=(2, 3))])
        assert store.commit([appended(A, 2, 1, expect="a-1")]) == [4]
        assert store.find(SPACE, "a-2") == (A, 4)

    def test_a_rewrite_keeps_the_blobs_that_are_named(self, store: Store) -> None:
        """Without a list it keeps all of them."""
        store.commit([appended(A, 1, blobs=((b"x", b"old x"), (b"y", b"old y")))])
        store.commit([Rewrite(A, drop=())])
        assert (store.blob(A, b"x"), store.blob(A, b"y")) == (b"old x", b"old y")
        store.commit([Rewrite(A, drop=(), new_blobs=((b"z", b"new z"),), keep_blobs=frozenset((b"y", b"z")))])
        assert [store.blob(A, digest) for digest in (b"x", b"y", b"z")] == [None, b"old y", b"new z"]
        store.commit([Rewrite(A, drop=(), keep_blobs=frozenset())])
        assert [store.blob(A, digest) for digest in (b"x", b"y", b"z")] == [None, None, None]

    def test_a_rewrite_may_name_another_head(self, store: Store) -> None:
        """So that what is not an ancestor of it can go."""
        grown(store, A, 3)
        store.commit([Rewrite(A, drop=(2, 3), head=1)])
        row = row_of(store, A)
        assert (row.head, row.head_id, row.last, row.frames) == (1, "a-1", 3, 1)

    @pytest.mark.parametrize("drop,head", [((3,), None), ((1, 2, 3), None), ((2,), 2), ((), 77), ((), 0), ((3,), 0)])
    def test_a_rewrite_must_keep_its_head(self, store: Store, drop: tuple[int, ...], head: int | None) -> None:
        """The head that is there, or the one that it names; no head is right only where nothing is left."""
        grown(store, A, 3)
        with pytest.raises(InvalidInputError):
            store.commit([Rewrite(A, drop, head=head)])
        assert seqs(store.frames(A)) == [1, 2, 3]

    def test_what_is_put_aside_is_gone_from_reading(self, store: Store) -> None:
        """And the thread carries on."""
        grown(store, A, 3)
        store.commit([Rewrite(A, drop=(2, 3), head=1, aside=True, keep_blobs=frozenset())])
        assert seqs(store.frames(A)) == [1]
        assert store.find(SPACE, "a-2") is None
        assert list(store.check(SPACE)) == []
        assert store.commit([appended(A, 4, 1, expect="a-1")]) == [4]

    def test_a_thread_may_lose_everything_to_repair(self, store: Store) -> None:
        """With head 0 it becomes a row without a head; its numbers go on."""
        grown(store, A, 2)
        store.commit([Rewrite(A, drop=(1, 2), head=0, aside=True)])
        row = row_of(store, A)
        assert (row.head, row.head_id, row.frames) == (0, None, 0)
        assert store.threads(SPACE).items == []
        assert list(store.check(SPACE)) == []
        assert store.commit([appended(A, 3, expect=None)]) == [3]
