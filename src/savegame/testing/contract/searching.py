"""What the search index of a store promises.

Only for stores with `Capability.SEARCH`; others skip it. Touches the contract and its helpers only.
"""

from __future__ import annotations

import pytest

from savegame.encoding.words import terms_of
from savegame.errors import ClosedError, UnsupportedError
from savegame.index import Entry, Index, Said
from savegame.model import ThreadKey
from savegame.store import Capability, Store
from savegame.testing.contract.helpers import SPACE, A, B, C, Contract


class Searching(Contract):
    """The index of words."""

    def index_of(self, store: Store) -> Index:
        """The index of a store that has one, with a thread of each of two agents, and one of another namespace."""
        if Capability.SEARCH not in store.capabilities:
            pytest.skip("this store has no search")
        index = store.index()
        messages = [Said("user", "Refund the café"), Said(None, "a refund, 申请退款")]
        index.put([Entry(A, "a-1", "x", 1, messages), Entry(B, "b-1", "y", 2, messages[:1])])
        index.put([Entry(ThreadKey("other", "a"), "a-1", None, 3, messages)])
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

    def test_an_index_lists_what_it_holds(self, store: Store) -> None:
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
