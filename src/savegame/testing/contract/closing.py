"""What closing and opening again promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from savegame.errors import AlreadyExistsError, ClosedError
from savegame.store import Capability, DeleteThread, MoveHead, Rewrite, Store
from savegame.testing.contract.helpers import MINUTE, SPACE, A, B, Contract, appended, everything, grown, no_progress

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
