"""Any operations on LangGraph's InMemoryStore and on ours show the same.

Left out is where its stores differ from each other: the order of results that have the same score or none, and namespaces
whose last item was deleted, which it goes on listing.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from recalling import Calls, Letters

import savegame
from savegame.adapters.langgraph import SavegameStore

ALL = 1000

LABELS = st.sampled_from(["a", "b", "ab", "*", "ü␟"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
PREFIXES = st.lists(LABELS, max_size=2).map(tuple)
KEYS = st.sampled_from(["k", "l", "", "k.l", "items"])
FEW = st.lists(st.integers(0, 2), max_size=2)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["x", "y"]), FEW)
NUMBERS = st.one_of(st.integers(-3, 3), st.floats(-3, 3))
TEXTS = st.text("abcz ", min_size=1, max_size=4)
VALUES = st.fixed_dictionaries(
    {"n": NUMBERS, "text": TEXTS}, optional={"any": PLAIN | st.dictionaries(st.sampled_from(["in", "out"]), PLAIN)}
)
ORDERS = st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte", "$eq", "$ne"]), NUMBERS, min_size=1, max_size=2)
NESTED = st.fixed_dictionaries({"in": PLAIN | st.fixed_dictionaries({"$ne": PLAIN})})
FILTERS = st.none() | st.fixed_dictionaries({}, optional={"n": NUMBERS | ORDERS, "any": PLAIN | NESTED})


def made(kind: type[Any], *fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*fields).map(lambda given: kind(*given))


CONDITIONS = st.lists(made(MatchCondition, st.sampled_from(["prefix", "suffix"]), PREFIXES), max_size=2).map(tuple)
PUTS = made(PutOp, NAMESPACES, KEYS, st.none() | VALUES)
READS = st.one_of(
    made(GetOp, NAMESPACES, KEYS),
    made(SearchOp, PREFIXES, FILTERS, st.just(ALL), st.just(0), st.none() | TEXTS),
    made(ListNamespacesOp, CONDITIONS, st.none(), st.just(ALL)),
)
BATCHES = st.lists(st.lists(st.one_of(PUTS, READS), min_size=1, max_size=6), max_size=8)
FINALLY: list[Op] = [SearchOp((), limit=ALL), SearchOp((), limit=ALL, query="ab"), ListNamespacesOp(limit=ALL)]


def visible(op: Op, result: Any, living: set[tuple[str, ...]]) -> Any:
    """What an operation showed, without times and order."""
    if isinstance(op, GetOp):
        return result and (result.namespace, result.key, result.value)
    if isinstance(op, SearchOp):
        shown = sorted((item.namespace, item.key, repr(item.value)) for item in result)
        assert len(set(shown)) == len(shown)
        return shown
    if isinstance(op, ListNamespacesOp):
        return [namespace for namespace in result if namespace in living]
    return result


def scores(op: Op, result: Any) -> dict[Any, float | None]:
    return {(item.namespace, item.key): item.score for item in result} if isinstance(op, SearchOp) else {}


def compare(batches: list[list[Op]], *, index: bool, awaited: bool) -> None:
    letters = Letters()
    options: dict[str, Any] = {"index": letters.index("text")} if index else {}
    with savegame.open("memory:") as vault:
        ours = Calls(SavegameStore(vault, **options), awaited=awaited)
        theirs = InMemoryStore(**options)
        for ops in [*batches, FINALLY]:
            living = {item.namespace for item in theirs.search((), limit=ALL)}
            expected, found = theirs.batch(ops), ours.batch(ops)
            assert [visible(*both, living) for both in zip(ops, found, strict=True)] == [
                visible(*both, living) for both in zip(ops, expected, strict=True)
            ]
            for op, mine, other in zip(ops, found, expected, strict=True):
                assert not isinstance(op, ListNamespacesOp) or set(mine) <= living  # type: ignore[arg-type]
                if index and isinstance(op, SearchOp):
                    assert scores(op, mine) == pytest.approx(scores(op, other), abs=1e-6)
                    ordered = [item.score for item in mine if item.score is not None]  # type: ignore[union-attr]
                    assert ordered == sorted(ordered, reverse=True)


@given(BATCHES)
def test_any_batches(batches: list[list[Op]]) -> None:
    compare(batches, index=False, awaited=False)


@given(BATCHES)
def test_any_batches_awaited(batches: list[list[Op]]) -> None:
    compare(batches, index=False, awaited=True)


ONE_BY_ONE = st.lists(st.one_of(PUTS, READS).map(lambda op: [op]), max_size=20)
"""InMemoryStore refuses a batch in which a text is put twice."""


@given(ONE_BY_ONE)
def test_any_operations_with_an_index(batches: list[list[Op]]) -> None:
    compare(batches, index=True, awaited=False)


@given(ONE_BY_ONE)
def test_any_operations_with_an_index_awaited(batches: list[list[Op]]) -> None:
    compare(batches, index=True, awaited=True)
