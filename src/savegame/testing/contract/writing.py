"""What commits promise: numbers, expectations, ids, bases, agents and the floor; all changes of a commit or none.

Each test gets a fresh `store` and commits to it; a change that is refused must leave nothing behind. Touches the contract and
its helpers only.
"""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import Final

import pytest

from savegame.errors import AlreadyExistsError, Busy, ConflictError, Fenced, InvalidInputError, NotFoundError, SavegameError
from savegame.model import Frame, Page, ThreadKey
from savegame.store import ANY, DeleteThread, Expect, MoveHead, PutKeyframe, PutNote, PutRecord, Rewrite, Store, StoreChange
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
    row_of,
    seqs,
    state,
)


class Appending(Contract):
    """Appending frames and moving heads."""

    def test_an_unknown_thread_is_empty(self, store: Store) -> None:
        """Reading what is not there is not an error, except for a chain."""
        assert store.thread(A) is None
        assert store.threads(SPACE) == Page([], None)
        assert store.find(SPACE, "a-1") is None
        assert store.frames(A) == []
        assert store.records(A, "kind") == Page([], None)
        assert store.blob(A, b"x") is None

    def test_appends_give_rising_sequence_numbers(self, store: Store) -> None:
        """From 1, per thread; the newest frame is the head."""
        assert [store.commit([appended(A, number, number - 1)]) for number in (1, 2, 3)] == [[1], [2], [3]]
        assert store.commit([appended(B, 1)]) == [1]
        row = row_of(store, A)
        assert (row.key, row.head, row.head_id, row.last, row.frames, row.floor, row.lease) == (A, 3, "a-3", 3, 3, 0, None)

    def test_a_frame_comes_back_as_it_was(self, store: Store) -> None:
        """Every field."""
        store.commit([appended(A, 1, note=b"note")])
        assert store.frames(A, deltas=True) == [Frame(1, "a-1", 0, b"meta 1", b"note", b"1.")]

    def test_an_append_may_expect_the_head(self, store: Store) -> None:
        """None expects an empty thread, an id that head, ANY whichever."""
        store.commit([appended(A, 1, expect=None)])
        store.commit([appended(A, 2, 1, expect="a-1")])
        store.commit([appended(A, 3, 2, expect=ANY)])
        assert store.commit([appended(A, 4, 3)]) == [4]

    @pytest.mark.parametrize("expect", [None, "a-1", "a-77"])
    def test_a_wrong_expectation_is_a_conflict_with_both_heads(self, store: Store, expect: str | None) -> None:
        """The error has what was expected and what was found."""
        grown(store, A, 2)
        with pytest.raises(ConflictError) as caught:
            store.commit([appended(A, 3, 2, expect=expect)])
        assert (caught.value.expected, caught.value.found) == (expect, "a-2")
        assert not isinstance(caught.value, Busy | Fenced)
        assert seqs(store.frames(A)) == [1, 2]

    def test_an_expected_head_on_an_empty_thread_is_a_conflict(self, store: Store) -> None:
        """There is no head, which is found as None; nothing is made."""
        with pytest.raises(ConflictError) as caught:
            store.commit([appended(A, 1, expect="a-0")])
        assert (caught.value.expected, caught.value.found) == ("a-0", None)
        assert store.thread(A) is None

    def test_of_two_writers_with_one_expectation_exactly_one_wins(self, store: Store) -> None:
        """Many rounds, since a race is not lost every time."""
        grown(store, A, 1)
        for turn in range(2, 22):
            expect = store.frames(A, newest_first=True, limit=1)[0].id
            changes = [appended(A, turn, turn - 1, id=f"{turn}-{who}", expect=expect) for who in range(2)]
            results = at_once(*[partial(store.commit, [change]) for change in changes])
            (lost,) = (result for result in results if isinstance(result, SavegameError))
            won = next(change for change, result in zip(changes, results, strict=True) if result == [turn])
            assert isinstance(lost, ConflictError)
            assert (lost.expected, lost.found) == (expect, won.id)

    def test_an_id_is_taken_once_in_a_namespace(self, store: Store) -> None:
        """In the thread itself, in another and in the same batch."""
        grown(store, A, 1)
        for batch in ([appended(A, 1)], [appended(B, 1, id="a-1")], [appended(B, 1), appended(C, 1, id="b-1")]):
            with pytest.raises(AlreadyExistsError):
                store.commit(batch)
        assert store.thread(B) is None
        assert store.find(SPACE, "a-1") == (A, 1)

    def test_of_two_threads_racing_for_an_id_exactly_one_wins(self, store: Store) -> None:
        """An id is unique across threads, also at the same moment."""
        for turn in range(10):
            keys = [ThreadKey(SPACE, f"{turn}-{who}") for who in range(2)]
            changes = [appended(key, 1, id=f"same {turn}") for key in keys]
            results = at_once(*[partial(store.commit, [change]) for change in changes])
            assert {type(result) for result in results} == {list, AlreadyExistsError}

    def test_new_ids_are_found_wherever_their_frame_went(self, store: Store) -> None:
        """An id is made before it is known which writer appends first."""
        grown(store, A, 1)
        early, late = store.new_id(A), store.new_id(A)
        store.commit([appended(A, 2, 1, id=late, fresh=True)])
        store.commit([appended(A, 3, 2, id=early, fresh=True)])
        strange = store.new_id(A)
        store.commit([appended(B, 1, id=strange, fresh=True)])
        assert [store.find(SPACE, name) for name in (late, early, strange)] == [(A, 2), (A, 3), (B, 1)]
        assert store.find("other", late) is None

    def test_new_ids_are_all_different(self, store: Store) -> None:
        """32 hexadecimal digits, whether the thread is there or not."""
        ids = [store.new_id(A) for _ in range(500)]
        grown(store, A, 1)
        ids += [store.new_id(A) for _ in range(500)]
        assert len(set(ids)) == 1000
        assert all(re.fullmatch("[0-9a-f]{32}", name) for name in ids)

    def test_a_new_id_is_taken_like_any_other(self, store: Store) -> None:
        """A second use is refused, in the thread and in others."""
        grown(store, A, 1)
        name = store.new_id(A)
        store.commit([appended(A, 2, 1, id=name, fresh=True)])
        for change in (appended(A, 3, 2, id=name), appended(B, 1, id=name)):
            with pytest.raises(AlreadyExistsError):
                store.commit([change])
        assert store.thread(B) is None
        assert store.commit([appended(ThreadKey("other", "a"), 1, id=name)]) == [1]

    def test_a_taken_id_is_refused_on_top_of_the_head_too(self, store: Store) -> None:
        """The usual append, for which a store may have a short way: ids of the thread and of others, chosen and new ones."""
        grown(store, A, 2)
        grown(store, B, 1)
        name = store.new_id(B)
        store.commit([appended(B, 2, 1, id=name, fresh=True)])
        for taken in ("a-1", "a-2", "b-1", name):
            with pytest.raises(AlreadyExistsError):
                store.commit([appended(A, 3, 2, id=taken, expect="a-2")])
        for number in range(3, 6):
            before = f"a-{number - 1}"
            assert store.commit([appended(A, number, number - 1, id=f"a-{number}", expect=before)]) == [number]
            assert store.find(SPACE, f"a-{number}") == (A, number)
        assert [frame.id for frame in store.frames(A)] == ["a-1", "a-2", "a-3", "a-4", "a-5"]

    def test_many_threads_append_at_once(self, store: Store) -> None:
        """Each to a thread of its own, on top of its own head; one of them with a wrong expectation, round after round."""
        keys = [ThreadKey(SPACE, f"many {number}") for number in range(12)]
        heads: dict[ThreadKey, str | None] = dict.fromkeys(keys)
        for turn in range(1, 9):
            ids = {key: store.new_id(key) for key in keys}
            wrong = keys[turn]
            changes = [
                appended(key, turn, turn - 1, id=ids[key], fresh=True, expect="wrong" if key == wrong else heads[key])
                for key in keys
            ]
            results = at_once(*[partial(store.commit, [change]) for change in changes])
            for change, result in zip(changes, results, strict=True):
                if change.expect == "wrong":
                    assert isinstance(result, ConflictError)
                    assert store.commit([change._replace(expect=heads[change.key])]) == [turn]
                else:
                    assert result == [turn]
                heads[change.key] = change.id
        for key in keys:
            assert state(store, key, 8) == b"1.2.3.4.5.6.7.8."
            assert row_of(store, key).head_id == heads[key]

    def test_a_base_need_not_be_the_head(self, store: Store) -> None:
        """A frame may build on any older one, or on none."""
        grown(store, A, 3)
        store.commit([appended(A, 4, 1), appended(A, 5, 0)])
        assert [frame.base for frame in store.frames(A)] == [0, 1, 2, 1, 0]

    def test_an_unknown_base_is_refused(self, store: Store) -> None:
        """Neither a frame of another thread nor the frame itself is a base."""
        grown(store, A, 1)
        grown(store, B, 3)
        for base in (2, 3):
            with pytest.raises(NotFoundError):
                store.commit([appended(A, 2, base)])
        assert seqs(store.frames(A)) == [1]

    def test_the_head_moves_to_any_frame(self, store: Store) -> None:
        """What came after stays, and the next frame gets a new number."""
        grown(store, A, 3)
        assert store.commit([MoveHead(A, 1, expect="a-3")]) == [0]
        row = row_of(store, A)
        assert (row.head, row.head_id, row.last, row.frames) == (1, "a-1", 3, 3)
        assert store.commit([appended(A, 4, 1, expect="a-1")]) == [4]

    def test_a_thread_may_be_left_without_a_head(self, store: Store) -> None:
        """It leaves the listings; its frames stay, nothing is wrong with it, and it goes on from any of them."""
        grown(store, A, 3)
        assert store.commit([MoveHead(A, 0, expect="a-3")]) == [0]
        row = row_of(store, A)
        assert (row.head, row.head_id, row.last, row.frames) == (0, None, 3, 3)
        assert store.threads(SPACE).items == []
        assert store.heads(SPACE) == [(A.id, None)]
        assert seqs(store.frames(A)) == [1, 2, 3]
        assert list(store.check(SPACE)) == []
        with pytest.raises(ConflictError):
            store.commit([MoveHead(A, 1, expect="a-3")])
        store.commit([Rewrite(A, drop=(3,))])
        assert (row_of(store, A).head, row_of(store, A).frames) == (0, 2)
        store.commit([MoveHead(A, 2, expect=None)])
        assert row_of(store, A).head_id == "a-2"
        with pytest.raises(NotFoundError):
            store.commit([MoveHead(B, 0)])

    def test_an_append_may_prolong_the_lease(self, store: Store) -> None:
        """Only that of its epoch; without being asked to, none does."""
        lease = store.lease(A, "me", 60_000_000)
        store.commit([appended(A, 1, epoch=lease.epoch)])
        assert row_of(store, A).lease == lease
        store.commit([appended(A, 2, 1, epoch=lease.epoch, renew_us=600_000_000)])
        renewed = row_of(store, A).lease
        assert renewed is not None
        assert (renewed.epoch, renewed.owner) == (lease.epoch, "me")
        assert renewed.expires >= lease.expires + 500_000_000
        store.commit([PutRecord(A, "kind", "name", b"x", lease.epoch, renew_us=1_200_000_000)])
        longest = row_of(store, A).lease
        assert longest is not None
        assert longest.expires >= renewed.expires + 500_000_000
        assert row_of(store, A).head_id == "a-2"

    def test_a_moved_head_may_bring_another_agent(self, store: Store) -> None:
        """None says nothing about it."""
        store.commit([appended(A, 1, agent="x"), appended(A, 2, 1, agent="y")])
        store.commit([MoveHead(A, 1, expect="a-2", agent="x")])
        assert store.heads(SPACE, agent="x") == [(A.id, "a-1")]
        store.commit([MoveHead(A, 2, expect="a-1")])
        assert (row_of(store, A).agent, store.heads(SPACE, agent="y")) == ("x", [])

    def test_heads_lists_every_thread(self, store: Store) -> None:
        """By id; those of one agent if asked for."""
        store.commit([appended(B, 1, agent="x")])
        grown(store, A, 2)
        store.lease(ThreadKey(SPACE, "c"), "me", 1_000_000)
        store.commit([appended(ThreadKey("elsewhere", "a"), 1, agent="x", id="other")])
        assert store.heads(SPACE) == [(A.id, "a-2"), (B.id, "b-1"), ("c", None)]
        assert store.heads(SPACE, agent="x") == [(B.id, "b-1")]
        assert store.heads("nowhere") == []

    def test_an_agent_stays_until_another_is_named(self, store: Store) -> None:
        """None says nothing about the agent."""
        agents = []
        for number, agent in enumerate((None, "x", None, "y"), 1):
            store.commit([appended(A, number, agent=agent)])
            agents.append(row_of(store, A).agent)
        assert agents == [None, "x", "x", "y"]

    def test_keep_newest_hides_older_frames(self, store: Store) -> None:
        """By raising the floor to the n-th newest frame, noted or not. Frames stay, the floor never sinks."""
        notes = {2: b"noted", 4: b"noted"}
        floors = []
        for number, keep in enumerate((3, 3, 3, 3, 3, 3, 5, None), 1):
            store.commit([appended(A, number, number - 1, note=notes.get(number), keep_newest=keep)])
            floors.append(row_of(store, A).floor)
        assert floors == [0, 0, 1, 2, 3, 4, 4, 4]
        assert seqs(store.frames(A)) == [1, 2, 3, 4, 5, 6, 7, 8]


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
