"""What the clock, sizes, check and compact promise, and what closing and opening again does.

Tests that open a store again are skipped where nothing outlives it (`Contract.reopen`). Touches the contract and its helpers
only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import pytest

from savegame.encoding import frames as bodies
from savegame.errors import AlreadyExistsError, ClosedError, CorruptionError
from savegame.model import Frame, Record
from savegame.store import Capability, DeleteThread, MoveHead, PutKeyframe, PutRecord, Rewrite, Store
from savegame.testing.contract.helpers import MINUTE, SPACE, A, B, Contract, appended, everything, grown, no_progress


class Upkeep(Contract):
    """Looking after a store."""

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
        steps: list[tuple[int, int]] = []
        store.compact(recode, lambda done, total: steps.append((done, total)))
        after = store.frames(A, deltas=True)
        assert [frame.delta for frame in after] == [recode(frame.delta or b"") for frame in before]
        assert [frame._replace(delta=None) for frame in after] == [frame._replace(delta=None) for frame in before]
        assert store.chain(A, 4) == (0, None, [frame.delta for frame in after])
        assert (store.blob(A, b"x"), store.records(A, "kind").items) == (b"blob", [Record("kind", "name", b"value")])
        assert all(0 <= done <= total for done, total in steps)
        assert steps == sorted(steps)
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
    "threads_with": lambda store: store.threads_with(SPACE, "kind"),
    "blob": lambda store: store.blob(A, b"x"),
    "clock": lambda store: store.clock(),
    "sizes": lambda store: store.sizes(),
    "check": lambda store: list(store.check(SPACE)),
    "compact": lambda store: store.compact(bytes, no_progress),
}


class Closing(Contract):
    """Closing and lasting."""

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
