"""What reading promises: frames, notes and chains, with and without keyframes; ids and namespaces mean nothing.

Deltas are pieces of text here, so that the state at a frame is what `state` joins. Touches the contract and its helpers only.
"""

from __future__ import annotations

import os

import pytest

from savegame.errors import CheckpointNotFound, ConflictError, CorruptionError, InvalidInputError, NotFoundError, SavegameError
from savegame.model import Frame, Record, ThreadKey
from savegame.store import DeleteThread, PutKeyframe, PutNote, PutRecord, Rewrite, Store, StoreChange
from savegame.testing.contract.helpers import (
    MINUTE,
    SPACE,
    A,
    B,
    C,
    Contract,
    appended,
    at_once,
    grown,
    pages,
    row_of,
    seqs,
    state,
)
from savegame.testing.hostile import HOSTILE_IDS


class Reading(Contract):
    """Reading frames and chains."""

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

    def test_an_unbroken_line_is_all_of_one_line(self, store: Store) -> None:
        """Whatever number a store names: from there on every frame builds on the one before it."""
        grown(store, A, 3)
        store.commit([appended(A, 4, 1), appended(A, 5, 4)])
        assert store.unbroken(A, 3) in (1, 2, 3)
        assert store.unbroken(A, 5) in (4, 5)
        for key, seq in ((A, 6), (B, 1), (A, 0)):
            with pytest.raises(CheckpointNotFound):
                store.unbroken(key, seq)

    def test_a_chain_is_that_of_the_frame_that_was_read(self, store: Store) -> None:
        """Its metadata says which one is meant: a re-created thread has other frames with the same numbers."""
        grown(store, A, 3)
        store.commit([appended(A, 4, 1)])
        for _ in range(2):
            assert store.chain(A, 3, meta=b"meta 3").deltas[-1:] in ([b"3."], [])
            assert store.chain(A, 4, meta=b"meta 4").deltas[-1:] == [b"4."]
            for seq, meta in ((3, b"meta 4"), (4, b""), (5, b"meta 5")):
                with pytest.raises(CheckpointNotFound):
                    store.chain(A, seq, meta=meta)
            store.commit([PutKeyframe(A, 3, b"1.2.3.")])

    def test_a_chain_is_read_at_one_moment(self, store: Store) -> None:
        """Never half of what a commit replaced: here a thread is re-created again and again."""

        def version(name: bytes) -> list[StoreChange]:
            frames = [appended(A, seq, seq - 1, delta=name * seq) for seq in (1, 2, 3, 4)]
            return [DeleteThread(A), *frames, PutKeyframe(A, 2, name * 3)]

        def write() -> set[bytes]:
            for turn in range(20):
                store.commit(version(b"xy"[turn % 2 :][:1]))
            return set()

        def read() -> set[bytes]:
            return {state(store, A, 4) for _ in range(60)}

        store.commit(version(b"x"))
        results = at_once(write, read, read)
        assert set[bytes]().union(*(found for found in results if isinstance(found, set))) <= {b"x" * 10, b"y" * 10}
        assert not [error for error in results if isinstance(error, SavegameError)]

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


class Names(Contract):
    """Ids, namespaces and listings by them."""

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
