"""What the clock, sizes, check and compact promise."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from savegame.encoding import frames as bodies
from savegame.errors import CorruptionError
from savegame.model import Frame, Record
from savegame.store import PutKeyframe, PutRecord, Store
from savegame.testing.contract.helpers import MINUTE, SPACE, A, Contract, appended, no_progress


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
