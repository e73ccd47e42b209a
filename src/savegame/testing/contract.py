"""The promises of `savegame.store` as tests, one each. A store is one when it passes them all.

    class TestMine(StoreContract):
        @pytest.fixture
        def store(self, tmp_path): ...          # a fresh, empty store
        def reopen(self, store): ...            # another one on the same data

Only the public contract is used. Deltas here are pieces of text, so that a state is its keyframe with the deltas after it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from savegame.encoding import frames as bodies
from savegame.encoding.words import terms_of
from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ClosedError,
    ConflictError,
    CorruptionError,
    Fenced,
    InvalidInputError,
    NotFoundError,
    SavegameError,
    UnsupportedError,
)
from savegame.index import Entry, Index, Said
from savegame.model import Frame, Page, Record, ThreadKey, ThreadRow
from savegame.store import (
    ANY,
    Append,
    Capability,
    DeleteThread,
    Expect,
    MoveHead,
    PutKeyframe,
    PutNote,
    PutRecord,
    Rewrite,
    Store,
)
from savegame.store import StoreChange as Change

T = TypeVar("T")

SPACE: Final = "default"
A, B, C, D, E = (ThreadKey(SPACE, name) for name in "abcde")
MINUTE: Final = 60_000_000

HOSTILE_IDS: Final = (
    "../../x", "/etc/x", "a/b", "a_b", "a\\b", ".", "..", "latest", "head", "x.json", "CON", "-rf", "%2e%2e", " ", "two words",
    "trailing ", "line\nbreak", "🎲", "Twin", "twin", "\u00e9", "e\u0301", "'; DROP TABLE frame;--", '"quoted"', "x" * 512,
    "🎲" * 512,
)  # fmt: skip


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
    """What the calls give or raise when all start at the same moment, each in a thread of its own."""
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


FAILURES: Final[dict[str, tuple[Change, type[SavegameError]]]] = {
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

VERBS: Final[dict[str, Callable[[Store], object]]] = {
    "commit": lambda store: store.commit([appended(A, 1)]),
    "lease": lambda store: store.lease(A, "me", MINUTE),
    "renew": lambda store: store.renew(A, 1, MINUTE),
    "thread": lambda store: store.thread(A),
    "threads": lambda store: store.threads(SPACE),
    "heads": lambda store: store.heads(SPACE),
    "find": lambda store: store.find(SPACE, "a-1"),
    "frames": lambda store: store.frames(A),
    "chain": lambda store: store.chain(A, 1),
    "records": lambda store: store.records(A, "kind"),
    "kinds": lambda store: store.kinds(A),
    "blob": lambda store: store.blob(A, b"x"),
    "clock": lambda store: store.clock(),
    "sizes": lambda store: store.sizes(),
    "check": lambda store: list(store.check(SPACE)),
    "compact": lambda store: store.compact(bytes, no_progress),
}


class StoreContract:
    """What every store promises. Override `store`, and `reopen` where data outlives the store object."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A fresh store."""
        raise NotImplementedError("override the fixture `store`")

    def reopen(self, store: Store) -> Store | None:
        """Another store on the same data, after closing the first; None where nothing outlives a store."""
        return None

    # -- appending and heads -----------------------------------------------------------------------

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
        """The error tells what was expected and what is there."""
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
        """An id is made before anybody knows who appends first."""
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
        made = [store.new_id(A) for _ in range(500)]
        grown(store, A, 1)
        made += [store.new_id(A) for _ in range(500)]
        assert len(set(made)) == 1000
        assert all(re.fullmatch("[0-9a-f]{32}", name) for name in made)

    def test_a_new_id_is_taken_like_any_other(self, store: Store) -> None:
        """Who chooses it a second time is refused, in the thread and in others."""
        grown(store, A, 1)
        name = store.new_id(A)
        store.commit([appended(A, 2, 1, id=name, fresh=True)])
        for change in (appended(A, 3, 2, id=name), appended(B, 1, id=name)):
            with pytest.raises(AlreadyExistsError):
                store.commit([change])
        assert store.thread(B) is None
        assert store.commit([appended(ThreadKey("other", "a"), 1, id=name)]) == [1]

    def test_many_threads_append_at_once(self, store: Store) -> None:
        """Each to a thread of its own, on top of its own head; one of them with a wrong expectation, round after round."""
        keys = [ThreadKey(SPACE, f"many {number}") for number in range(12)]
        heads: dict[ThreadKey, str | None] = dict.fromkeys(keys)
        for turn in range(1, 9):
            ids = {key: store.new_id(key) for key in keys}
            wrong = keys[turn]
            changes = [
                appended(key, turn, turn - 1, id=ids[key], fresh=True, expect="nobody" if key == wrong else heads[key])
                for key in keys
            ]
            results = at_once(*[partial(store.commit, [change]) for change in changes])
            for change, result in zip(changes, results, strict=True):
                if change.expect == "nobody":
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

    def test_heads_tells_of_every_thread(self, store: Store) -> None:
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

    # -- batches -----------------------------------------------------------------------------------

    def test_a_batch_gives_one_number_per_change(self, store: Store) -> None:
        """0 for a change that makes no frame; later changes see earlier ones."""
        batch: list[Change] = [
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
        store.lease(E, "somebody", MINUTE)
        fresh = ThreadKey(SPACE, "fresh")
        before = [everything(store, key) for key in (A, B, C, D, E, fresh)]
        change, error = FAILURES[failure]
        batch: list[Change] = [
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
        """Two frames per batch: nobody ever counts an odd number."""
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

    # -- notes and frames --------------------------------------------------------------------------

    def test_a_note_is_changed_by_compare_and_swap(self, store: Store) -> None:
        """From nothing to something, to something else and to nothing."""
        grown(store, A, 1)
        for old, new in ((None, b"one"), (b"one", b"two"), (b"two", None)):
            assert store.commit([PutNote(A, 1, new, expect=old)]) == [0]
            assert store.frames(A)[0].note == new

    def test_a_note_that_changed_meanwhile_is_a_conflict(self, store: Store) -> None:
        """The other note stays."""
        store.commit([appended(A, 1, note=b"theirs")])
        for expect in (None, b"mine"):
            with pytest.raises(ConflictError):
                store.commit([PutNote(A, 1, b"new", expect=expect)])
        assert store.frames(A)[0].note == b"theirs"

    def test_noted_frames_are_listed_alone(self, store: Store) -> None:
        """In either order, within a range, and no longer once the note is gone."""
        for number in range(1, 7):
            store.commit([appended(A, number, note=None if number % 2 else b"note")])
        assert seqs(store.frames(A, noted=True)) == [2, 4, 6]
        assert seqs(store.frames(A, noted=True, newest_first=True, limit=2)) == [6, 4]
        assert seqs(store.frames(A, noted=True, low=3, high=5)) == [4]
        store.commit([PutNote(A, 4, None, expect=b"note"), PutNote(A, 1, b"note", expect=None)])
        assert seqs(store.frames(A, noted=True)) == [1, 2, 6]

    def test_frames_are_read_by_range(self, store: Store) -> None:
        """Both ends belong to it; a limit counts from where the reading begins."""
        grown(store, A, 5)
        assert seqs(store.frames(A)) == [1, 2, 3, 4, 5]
        assert seqs(store.frames(A, low=2, high=4)) == [2, 3, 4]
        assert seqs(store.frames(A, low=4)) == [4, 5]
        assert seqs(store.frames(A, high=2)) == [1, 2]
        assert seqs(store.frames(A, high=99, limit=2)) == [1, 2]
        assert seqs(store.frames(A, newest_first=True)) == [5, 4, 3, 2, 1]
        assert seqs(store.frames(A, high=4, limit=2, newest_first=True)) == [4, 3]
        assert store.frames(A, low=6) == store.frames(A, low=3, high=2) == store.frames(A, limit=0) == []

    def test_deltas_come_only_when_asked_for(self, store: Store) -> None:
        """Listings stay small."""
        grown(store, A, 2)
        assert [frame.delta for frame in store.frames(A)] == [None, None]
        assert [frame.delta for frame in store.frames(A, deltas=True)] == [b"1.", b"2."]

    def test_empty_and_large_bytes_come_back_as_they_were(self, store: Store) -> None:
        """Everywhere that bytes are kept; empty is not the same as absent."""
        for key, data in ((A, b""), (B, os.urandom(2_000_000)), (C, b"\0" * 2_000_000)):
            frame = appended(key, 1, meta=data, delta=data, note=data, blobs=((b"x", data),))
            store.commit([frame, PutRecord(key, "kind", "name", data)])
            assert store.frames(key, deltas=True) == [Frame(1, frame.id, 0, data, data, data)]
            assert len(store.frames(key, noted=True)) == 1
            assert store.chain(key, 1) == (0, None, [data])
            assert store.blob(key, b"x") == data
            assert store.records(key, "kind").items == [Record("kind", "name", data)]
            store.commit([PutKeyframe(key, 1, data)])
            assert store.chain(key, 1) == (1, data, [])

    # -- chains and keyframes ----------------------------------------------------------------------

    def test_a_chain_goes_back_to_the_beginning(self, store: Store) -> None:
        """Without keyframes: every delta, oldest first."""
        grown(store, A, 4)
        assert store.chain(A, 4) == (0, None, [b"1.", b"2.", b"3.", b"4."])
        assert store.chain(A, 1) == (0, None, [b"1."])

    def test_a_chain_begins_at_the_nearest_keyframe(self, store: Store) -> None:
        """At or below the frame; one that is newer is of no use."""
        grown(store, A, 5)
        store.commit([PutKeyframe(A, 1, b"1."), PutKeyframe(A, 3, b"1.2.3.")])
        assert store.chain(A, 5) == (3, b"1.2.3.", [b"4.", b"5."])
        assert store.chain(A, 3) == (3, b"1.2.3.", [])
        assert store.chain(A, 2) == (1, b"1.", [b"2."])

    def test_keyframes_are_replaced_and_dropped(self, store: Store) -> None:
        """Dropping one that is not there does nothing. They are derived: what they were made from is still there."""
        grown(store, A, 3)
        store.commit([PutKeyframe(A, 2, b"old")])
        store.commit([PutKeyframe(A, 2, b"1.2.")])
        assert store.chain(A, 3) == (2, b"1.2.", [b"3."])
        store.commit([PutKeyframe(A, 2, None), PutKeyframe(A, 3, None)])
        assert store.chain(A, 3) == (0, None, [b"1.", b"2.", b"3."])

    def test_a_keyframe_of_a_missing_frame_is_ignored(self, store: Store) -> None:
        """It comes late, after a delete; it makes nothing, and does not show when the number comes to be."""
        grown(store, A, 1)
        assert store.commit([PutKeyframe(A, 2, b"stray"), PutKeyframe(B, 1, b"stray")]) == [0, 0]
        assert store.thread(B) is None
        store.commit([appended(A, 2, 1), appended(B, 1)])
        assert store.chain(A, 2).keyframe is None
        assert store.chain(B, 1).keyframe is None

    def test_a_chain_begins_after_what_the_caller_has(self, store: Store) -> None:
        """If that lies on the way; a keyframe at or before it is not needed then."""
        grown(store, A, 5)
        assert store.chain(A, 5, after=3) == (3, None, [b"4.", b"5."])
        assert store.chain(A, 5, after=5) == (5, None, [])
        store.commit([PutKeyframe(A, 2, b"1.2."), PutKeyframe(A, 3, b"1.2.3.")])
        assert store.chain(A, 5, after=3) == (3, None, [b"4.", b"5."])
        assert store.chain(A, 5, after=4) == (4, None, [b"5."])

    def test_a_keyframe_newer_than_what_the_caller_has_may_be_used(self, store: Store) -> None:
        """Or not: either way the chain says where it begins."""
        grown(store, A, 5)
        store.commit([PutKeyframe(A, 4, b"1.2.3.4.")])
        assert store.chain(A, 5, after=2) in ((4, b"1.2.3.4.", [b"5."]), (2, None, [b"3.", b"4.", b"5."]))

    def test_a_chain_follows_its_own_branch(self, store: Store) -> None:
        """Bases, not numbers; neither a keyframe nor an `after` of another branch is on the way."""
        grown(store, A, 3)
        store.commit([appended(A, 4, 1), appended(A, 5, 4), PutKeyframe(A, 3, b"1.2.3.")])
        assert store.chain(A, 5) == (0, None, [b"1.", b"4.", b"5."])
        assert store.chain(A, 5, after=3) == (0, None, [b"1.", b"4.", b"5."])
        assert store.chain(A, 5, after=1) == (1, None, [b"4.", b"5."])

    def test_a_chain_of_an_unknown_frame_is_not_found(self, store: Store) -> None:
        """Not there yet, in no thread, or number 0."""
        grown(store, A, 1)
        for key, seq in ((A, 2), (B, 1), (A, 0)):
            with pytest.raises(CheckpointNotFound):
                store.chain(key, seq)

    def test_a_chain_with_a_hole_is_never_given(self, store: Store) -> None:
        """A store refuses to make the hole, or reports it naming the thread."""
        grown(store, A, 3)
        try:
            store.commit([Rewrite(A, drop=(1,))])
        except (InvalidInputError, NotFoundError):
            assert state(store, A, 3) == b"1.2.3."
            return
        with pytest.raises(CorruptionError) as caught:
            store.chain(A, 3)
        assert caught.value.thread_id == "a"
        assert [problem.thread_id for problem in store.check(SPACE)] == ["a"]
        assert [problem.thread_id for problem in store.check(SPACE, "a")] == ["a"]
        assert list(store.check(SPACE, "b")) == []

    # -- rewriting ---------------------------------------------------------------------------------

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

    def test_a_rewrite_of_what_somebody_else_removed_is_a_conflict(self, store: Store) -> None:
        """Nothing is changed then; repair, which sets aside, goes on without it."""
        grown(store, A, 4)
        store.commit([Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),))])
        with pytest.raises(ConflictError):
            store.commit([Rewrite(A, drop=(1, 2), rebase=((3, 0, b"1.2.3."),))])
        assert seqs(store.frames(A)) == [2, 3, 4]
        store.commit([Rewrite(A, drop=(1, 2), rebase=((3, 0, b"1.2.3."),), aside=True)])
        assert seqs(store.frames(A)) == [3, 4]

    def test_a_rewrite_by_somebody_who_missed_that_frames_were_removed_is_a_conflict(self, store: Store) -> None:
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
        """Appends at the head, by somebody who goes on and on, are no reason to plan again: neither head nor frames differ."""
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
        """Whoever discards all that is not an ancestor need not know what came meanwhile, with or without a note."""
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
        """Also under somebody's lease, and for a thread that never was."""
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

    # -- records and blobs -------------------------------------------------------------------------

    def test_records_come_by_name(self, store: Store) -> None:
        """Of one kind; a second value replaces the first."""
        for name in ("b", "B", "ä", "a", "🎲"):
            store.commit([PutRecord(A, "kind", name, b"first"), PutRecord(A, "kind", name, name.encode())])
        store.commit([PutRecord(A, "other", "z", b"other")])
        assert store.records(A, "kind") == Page([Record("kind", name, name.encode()) for name in ("B", "a", "b", "ä", "🎲")])
        assert store.records(A, "other").items == [Record("other", "z", b"other")]

    def test_kinds_of_records_are_told(self, store: Store) -> None:
        """Each once, in order; those of this thread only."""
        store.commit([PutRecord(A, kind, name, b"1") for kind, name in (("b", "x"), ("a", "y"), ("b", "z"))])
        assert (store.kinds(A), store.kinds(B)) == (["a", "b"], [])
        store.commit([PutRecord(A, "a", "y", None)])
        assert store.kinds(A) == ["b"]

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

    # -- deleting ----------------------------------------------------------------------------------

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

    def test_a_deleted_thread_may_begin_anew(self, store: Store) -> None:
        """At number 1, with its old ids, and nothing of its former life."""
        grown(store, A, 3)
        store.commit([PutKeyframe(A, 2, b"1.2."), appended(A, 4, 3, agent="x", keep_newest=1)])
        store.commit([DeleteThread(A)])
        assert store.commit([appended(A, 2, expect=None), appended(A, 1, 1, expect="a-2")]) == [1, 2]
        assert store.chain(A, 2) == (0, None, [b"2.", b"1."])
        row = row_of(store, A)
        assert (row.agent, row.last, row.floor, row.frames) == (None, 2, 0, 2)

    # -- leases ------------------------------------------------------------------------------------

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
        """Nobody moves the head without its epoch, whatever they expect; nobody takes the lease, by the same name either."""
        grown(store, A, 2)
        store.lease(A, "me", MINUTE)
        moves: list[Change] = [
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
        beside: list[Change] = [
            PutNote(A, 1, b"note", expect=None),
            PutRecord(A, "kind", "name", b""),
            PutKeyframe(A, 1, b"1."),
        ]
        assert store.commit([*beside, appended(B, 1)]) == [0, 0, 0, 1]

    def test_the_holder_of_a_lease_writes_with_its_epoch(self, store: Store) -> None:
        """Every kind of change that takes one."""
        epoch = store.lease(A, "me", MINUTE).epoch
        batch: list[Change] = [
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
            changes: list[Change] = [
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

    def test_a_lease_runs_out_by_the_clock_of_the_store(self, store: Store) -> None:
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
        """Also one that ran out, if nobody took it."""
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

    def test_a_lease_is_given_back(self, store: Store) -> None:
        """At once free for others, to write and to take."""
        lease = store.lease(A, "me", MINUTE)
        assert store.renew(A, lease.epoch, 0).expires <= store.clock()
        store.commit([appended(A, 1)])
        with pytest.raises(Fenced):  # it is not his any more, although nobody has taken it yet
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

    def wait_until(self, store: Store, moment: int) -> None:
        """Wait until the clock of the store is past a moment."""
        deadline = time.monotonic() + 10
        while store.clock() <= moment:
            assert time.monotonic() < deadline, "the clock of the store stands still"
            time.sleep(0.01)

    # -- names -------------------------------------------------------------------------------------

    def test_any_id_is_a_thread_of_its_own(self, store: Store) -> None:
        """Nothing in an id means anything: not as thread, checkpoint, record, agent or namespace."""
        keys = [ThreadKey(SPACE, name) for name in HOSTILE_IDS]
        for number, key in enumerate(keys):
            frame = appended(key, 1, id=key.id, delta=b"%d" % number, agent=key.id, blobs=((b"x", b"%d" % number),))
            store.commit([frame, PutRecord(key, key.id, key.id, b"%d" % number)])
        for number, key in enumerate(keys):
            assert store.chain(key, 1).deltas == [b"%d" % number]
            assert store.find(SPACE, key.id) == (key, 1)
            assert store.records(key, key.id).items == [Record(key.id, key.id, b"%d" % number)]
            assert store.blob(key, b"x") == b"%d" % number
            assert [row.key for row in store.threads(SPACE, agent=key.id).items] == [key]
            assert store.thread(ThreadKey(key.id, key.id)) is None
        assert [row.key.id for row in store.threads(SPACE).items] == sorted(HOSTILE_IDS)
        for key in keys[::2]:
            store.commit([DeleteThread(key)])
        assert [row.key.id for row in store.threads(SPACE).items] == sorted(HOSTILE_IDS[1::2])

    def test_any_namespace_is_one_of_its_own(self, store: Store) -> None:
        """Hostile names are just names there too."""
        for name in HOSTILE_IDS:
            store.commit([appended(ThreadKey(name, "a"), 1)])
        for name in HOSTILE_IDS:
            assert [row.key for row in store.threads(name).items] == [ThreadKey(name, "a")]

    def test_namespaces_do_not_cross(self, store: Store) -> None:
        """The same thread and checkpoint ids in two of them are two things, in every verb."""
        here, there = ThreadKey("here", "a"), ThreadKey("there", "a")
        for key in (here, there):
            name = key.namespace.encode()
            store.commit(
                [appended(key, 1, delta=name, agent=key.namespace, blobs=((b"x", name),)), PutRecord(key, "kind", "name", name)]
            )
        store.commit([appended(there, 2, 1), PutKeyframe(there, 1, b"there")])
        row = row_of(store, here)
        assert (row.key, row.head_id, row.frames, row.agent) == (here, "a-1", 1, "here")
        assert [row.key for row in store.threads("here").items] == [here]
        assert store.threads("here", agent="there").items == []
        assert store.find("here", "a-1") == (here, 1)
        assert store.find("here", "a-2") is None
        assert [frame.delta for frame in store.frames(here, deltas=True)] == [b"here"]
        assert store.chain(here, 1) == (0, None, [b"here"])
        assert store.records(here, "kind").items == [Record("kind", "name", b"here")]
        assert store.blob(here, b"x") == b"here"
        store.lease(there, "me", MINUTE)
        store.commit([DeleteThread(here)])
        assert store.find("there", "a-1") == (there, 1)
        assert state(store, there, 2) == b"there2."
        assert list(store.check("nowhere")) == []

    def test_threads_come_by_id_in_pages(self, store: Store) -> None:
        """Each once; only a page that others follow says where they begin."""
        names = ["a", "b", "B", "ä", "🎲", "10"]
        for name in names:
            store.commit([appended(ThreadKey(SPACE, name), 1)])
        found = pages(lambda after: store.threads(SPACE, after=after, limit=2), None)
        ids = [[row.key.id for row in page] for page in found]
        assert ids == [["10", "B"], ["a", "b"], ["ä", "🎲"]]
        assert [row.key.id for row in store.threads(SPACE, after="aa").items] == ["b", "ä", "🎲"]

    def test_threads_are_listed_by_agent(self, store: Store) -> None:
        """In pages too."""
        for number in range(6):
            agent = ("x", "y", None)[number % 3]
            store.commit([appended(ThreadKey(SPACE, str(number)), 1, agent=agent)])
        assert [row.key.id for row in store.threads(SPACE, agent="x").items] == ["0", "3"]
        found = pages(lambda after: store.threads(SPACE, after=after, limit=1, agent="y"), None)
        assert [[row.key.id for row in page] for page in found] == [["1"], ["4"]]
        assert len(store.threads(SPACE).items) == 6

    def test_a_listed_thread_is_the_thread(self, store: Store) -> None:
        """The listing and the single look agree, lease and all."""
        grown(store, A, 2)
        store.lease(A, "me", MINUTE)
        assert store.threads(SPACE).items == [store.thread(A)]

    # -- looking after -----------------------------------------------------------------------------

    def test_the_clock_moves_forward_in_microseconds(self, store: Store) -> None:
        """Since 1970."""
        before = store.clock()
        time.sleep(0.02)
        assert 10_000 <= store.clock() - before <= 10_000_000
        assert abs(before - time.time() * 1_000_000) < 24 * 60 * MINUTE

    def test_sizes_tell_what_is_held(self, store: Store) -> None:
        """By kind, and in all."""
        assert set(store.sizes()) >= {"frames", "keyframes", "notes", "records", "blobs", "total"}
        parts = [os.urandom(1000 * number) for number in range(1, 6)]
        frame = appended(A, 1, delta=parts[4], note=parts[0], blobs=((b"x", parts[1]),))
        store.commit([frame, PutRecord(A, "kind", "name", parts[2])])
        store.commit([PutKeyframe(A, 1, parts[3])])
        sizes = store.sizes()
        least = {"frames": 5000, "keyframes": 4000, "notes": 1000, "records": 3000, "blobs": 2000, "total": 15000}
        assert {kind: size for kind, size in least.items() if sizes[kind] < size} == {}

    def test_a_sound_store_has_no_problems(self, store: Store) -> None:
        """After everything that may happen to a thread."""
        self.fill(store)
        assert list(store.check(SPACE)) == []
        assert list(store.check("other")) == []

    @pytest.mark.parametrize("recode", [bytes, bodies.recode], ids=["as it is", "compressed"])
    def test_compact_keeps_every_state(self, store: Store, recode: Callable[[bytes], bytes]) -> None:
        """Each delta becomes what `recode` makes of it, keyframes go, everything else stays."""
        before = self.filled_with_bodies(store)
        told: list[tuple[int, int]] = []
        store.compact(recode, lambda done, total: told.append((done, total)))
        after = store.frames(A, deltas=True)
        assert [frame.delta for frame in after] == [recode(frame.delta or b"") for frame in before]
        assert [frame._replace(delta=None) for frame in after] == [frame._replace(delta=None) for frame in before]
        assert store.chain(A, 4) == (0, None, [frame.delta for frame in after])
        assert (store.blob(A, b"x"), store.records(A, "kind").items) == (b"blob", [Record("kind", "name", b"value")])
        assert all(0 <= done <= total for done, total in told)
        assert told == sorted(told)
        assert list(store.check(SPACE)) == []
        assert store.commit([appended(A, 5, 4, expect="a-4")]) == [5]

    def test_compact_that_fails_keeps_every_state(self, store: Store) -> None:
        """What a delta says is the same before and after, so that half a compaction does no harm."""
        before = self.filled_with_bodies(store)
        calls = iter(range(100))

        def recode(body: bytes) -> bytes:
            if next(calls) == 2:
                raise CorruptionError("damaged")
            return bodies.recode(body)

        with pytest.raises(CorruptionError):
            store.compact(recode, no_progress)
        store.commit([PutKeyframe(A, 3, None)])
        payloads = [bodies.unwrap(delta)[1] for delta in store.chain(A, 4).deltas]
        assert payloads == [bodies.unwrap(frame.delta or b"")[1] for frame in before]
        assert list(store.check(SPACE)) == []

    def filled_with_bodies(self, store: Store) -> list[Frame]:
        """Four frames whose deltas are wrapped as a vault does it, with something of every kind beside them."""
        for number in range(1, 5):
            delta = bodies.wrap(b"%d. " % number * 1000, compress=False)
            store.commit([appended(A, number, number - 1, delta=delta, note=b"note", blobs=((b"x", b"blob"),))])
        store.commit([PutKeyframe(A, 3, b"keyframe"), PutRecord(A, "kind", "name", b"value")])
        return store.frames(A, deltas=True)

    # -- searching ---------------------------------------------------------------------------------

    def index_of(self, store: Store) -> Index:
        """The index of a store that has one, with a thread of each of two agents, and one of another namespace."""
        if Capability.SEARCH not in store.capabilities:
            pytest.skip("this store has no search")
        index = store.index()
        said = [Said("user", "Refund the café"), Said(None, "a refund, 申请退款")]
        index.put([Entry(A, "a-1", "x", 1, said), Entry(B, "b-1", "y", 2, said[:1])])
        index.put([Entry(ThreadKey("other", "a"), "a-1", None, 3, said)])
        return index

    def test_an_index_finds_threads_by_words(self, store: Store) -> None:
        """All of them in one message, best first; a message has a place, a role and its text as it was."""
        index = self.index_of(store)
        best = index.find(SPACE, terms_of("REFUND"))
        assert {(found.thread_id, found.head, found.matches) for found in best} == {("a", "a-1", 2), ("b", "b-1", 1)}
        assert best[0].score >= best[1].score > 0
        (found,) = index.find(SPACE, terms_of("cafe refun"), limit=1)
        assert found[:6] == ("b", "y", "b-1", 0, "user", "Refund the café")
        (found,) = index.find(SPACE, terms_of("退款"))
        assert (found.thread_id, found.message, found.role, found.matches) == ("a", 1, None, 1)
        assert index.find(SPACE, terms_of('"the refund"')) == []
        assert [found.thread_id for found in index.find(SPACE, terms_of("refund"), agent="x")] == ["a"]
        assert len(index.find("other", terms_of("refund"))) == 1

    def test_an_index_finds_threads_by_a_piece_of_text(self, store: Store) -> None:
        """Newest first, as many as are wanted."""
        index = self.index_of(store)
        assert [found[:5] for found in index.contains(SPACE, "D THE C")] == [
            ("b", "y", "b-1", 0, "user"),
            ("a", "x", "a-1", 0, "user"),
        ]
        assert [(found.thread_id, found.matches) for found in index.contains(SPACE, "", agent="x")] == [("a", 2)]
        assert [found.thread_id for found in index.contains(SPACE, "efund", limit=1)] == ["b"]
        assert len(index.contains(SPACE, "", limit=-1)) == len(index.find(SPACE, terms_of("refund"), limit=-1)) == 2

    def test_an_index_tells_what_it_holds(self, store: Store) -> None:
        """By thread, with the head that was indexed; a thread that is put again is as it was put last."""
        index = self.index_of(store)
        assert index.heads(SPACE) == {"a": "a-1", "b": "b-1"}
        assert index.heads(SPACE, agent="y") == {"b": "b-1"}
        index.put([Entry(A, "a-2", "y", 4, [Said("user", "another text")])])
        assert index.heads(SPACE, agent="y") == {"a": "a-2", "b": "b-1"}
        assert [found.thread_id for found in index.find(SPACE, terms_of("refund"))] == ["b"]
        assert [found.head for found in index.find(SPACE, terms_of("another"))] == ["a-2"]
        assert index.size() > 0

    def test_an_index_forgets(self, store: Store) -> None:
        """Single threads, unless they are indexed at the head that is named; or everything."""
        index = self.index_of(store)
        index.forget({A: None, B: "b-1", C: None})
        assert index.heads(SPACE) == {"b": "b-1"}
        assert [found.thread_id for found in index.find(SPACE, terms_of("refund"))] == ["b"]
        assert index.heads("other") == {"a": "a-1"}
        index.drop()
        assert index.size() == 0
        index.forget({B: None})
        assert index.size() == 0
        assert (index.heads(SPACE), index.contains(SPACE, "")) == ({}, [])

    def test_a_store_has_one_index_and_none_when_it_is_closed(self, store: Store) -> None:
        """Or says that it has none."""
        if Capability.SEARCH not in store.capabilities:
            with pytest.raises(UnsupportedError):
                store.index()
            return
        assert store.index() is store.index()
        store.close()
        with pytest.raises(ClosedError):
            store.index()

    # -- closing and lasting -----------------------------------------------------------------------

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_closed_store_refuses(self, store: Store, verb: str) -> None:
        """Every verb but close."""
        grown(store, A, 1)
        store.close()
        with pytest.raises(ClosedError):
            VERBS[verb](store)

    def test_closing_twice_does_nothing(self, store: Store) -> None:
        """So that a finally never fails."""
        store.close()
        store.close()

    def test_what_was_written_is_there_after_reopening(self, store: Store) -> None:
        """Every thread, lease, record, keyframe and blob; and what was removed is not."""
        keys = self.fill(store)
        before = [everything(store, key) for key in keys]
        again = self.reopened(store)
        assert [everything(again, key) for key in keys] == before
        assert list(again.check(SPACE)) == []
        again.close()

    def test_numbers_ids_and_epochs_go_on_after_reopening(self, store: Store) -> None:
        """What was given once stays given."""
        grown(store, A, 3)
        store.commit([MoveHead(A, 1), Rewrite(A, drop=(3,))])
        lease = store.lease(B, "me", MINUTE)
        store.commit([DeleteThread(B, epoch=lease.epoch)])
        again = self.reopened(store)
        assert again.commit([appended(A, 4, 1, expect="a-1")]) == [4]
        with pytest.raises(AlreadyExistsError):
            again.commit([appended(B, 1, id="a-2")])
        assert again.lease(B, "me", MINUTE).epoch > lease.epoch
        again.close()

    def test_only_a_durable_store_is_reopened(self, store: Store) -> None:
        """What a store says of itself is what it does."""
        durable = Capability.DURABLE in store.capabilities
        again = self.reopen(store)
        assert (again is not None) == durable
        if again is not None:
            again.close()

    def reopened(self, store: Store) -> Store:
        """Another store on the same data; skips where there is none."""
        again = self.reopen(store)
        if again is None:
            pytest.skip("nothing outlives this store")
        return again

    def fill(self, store: Store) -> list[ThreadKey]:
        """A thread in every condition there is; gives their keys."""
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
