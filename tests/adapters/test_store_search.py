"""Finding memories: filters, words without an index, and meaning with one."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.store.base import PutOp
from recalling import ALPHABET, Calls, Letters, calls_on, keys

from savegame import InvalidInputError, UnsupportedError
from savegame.adapters import _langgraph_matching as matching
from savegame.vault import Vault

ME = ("users", "1")


# -- filters ---------------------------------------------------------------------------------------

PEOPLE: dict[str, dict[str, Any]] = {
    "ann": {"age": 30, "name": "Ann", "tags": ["a", "b"], "home": {"city": "Oslo", "zip": 150}, "ok": True},
    "bob": {"age": 25.5, "name": "Bob", "tags": ["a"], "home": {"city": "Rome", "zip": 9}, "ok": False},
    "eve": {"name": "Eve", "tags": [], "age": None, "access-level": 3, "home.city": "Paris"},
}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "ann bob eve"),
        ({"name": "Ann"}, "ann"),
        ({"name": "Ann", "age": 25.5}, ""),
        ({"ok": True}, "ann"),
        ({"ok": False}, "bob"),
        ({"age": None}, "eve"),
        ({"missing": None}, "ann bob eve"),
        ({"age": {"$gt": 25.5}}, "ann"),
        ({"age": {"$gte": 25.5}}, "ann bob"),
        ({"age": {"$lt": 30}}, "bob"),
        ({"age": {"$lte": 30}}, "ann bob"),
        ({"age": {"$gt": 20, "$lt": 28}}, "bob"),
        ({"age": {"$lt": float("inf")}}, "ann bob"),
        ({"age": {"$lt": 10**100}}, "ann bob"),
        ({"age": {"$eq": float("nan")}}, ""),
        ({"age": {"$gt": "1"}}, ""),
        ({"name": {"$gt": "Ann"}}, "bob eve"),
        ({"name": {"$eq": "Ann"}}, "ann"),
        ({"name": {"$ne": "Ann"}}, "bob eve"),
        ({"age": {"$ne": 30}}, "bob eve"),
        ({"tags": ["a"]}, "bob"),
        ({"tags": ["a", {"$ne": "c"}]}, "ann"),
        ({"tags": []}, "eve"),
        ({"home": {"city": "Oslo"}}, "ann"),
        ({"home": {"zip": {"$lt": 100}}}, "bob"),
        ({"home": {"city": "Oslo", "zip": 9}}, ""),
        ({"home.zip": 150}, "ann"),
        ({"home.city": "Paris"}, "eve"),
        ({"home.city.x": "Oslo"}, ""),
        ({"access-level": {"$gte": 3}}, "eve"),
        ({"name') = 'Ann' OR ('1'='1": "x"}, ""),
        ({"name": "Ann' OR '1'='1"}, ""),
    ],
)
def test_filters(on_memory: Vault, wanted: dict[str, Any], found: str) -> None:
    calls = calls_on(on_memory)
    calls.batch([PutOp(ME, key, value) for key, value in PEOPLE.items()])
    assert sorted(keys(calls.search((), filter=wanted))) == found.split()


def test_filters_on_every_store(calls: Calls) -> None:
    for key, value in PEOPLE.items():
        calls.put(ME, key, value)
    assert keys(calls.search((), filter={"age": {"$gte": 25}}, limit=1)) == ["bob"]
    assert keys(calls.search((), filter={"age": {"$gte": 25}}, limit=1, offset=1)) == ["ann"]
    with pytest.raises(InvalidInputError, match=r"\$near.* one of: \$eq"):
        calls.search((), filter={"age": {"$near": 25}})


# -- words -----------------------------------------------------------------------------------------


def test_words_rank_items_and_hide_none(calls: Calls) -> None:
    calls.put(ME, "food", {"text": "The person loves pizza with extra cheese."})
    calls.put(ME, "pet", {"text": "The person has a dog.", "tags": ["animals", {"kind": "pets"}]})
    calls.put(ME, "work", {"text": "The person writes software.", "since": 2019})
    calls.put(("users", "2"), "food", {"text": "pizza"})
    found = calls.search(ME, query="which pizza does the person like?")
    assert keys(found) == ["food", "work", "pet"]
    assert found[0].score is not None
    assert found[1].score is not None
    assert 1 > found[0].score > found[1].score > 0
    assert keys(calls.search(ME, query="2019"))[0] == "work"
    assert keys(calls.search(ME, query="PETS", limit=1)) == ["pet"]
    assert [item.score for item in calls.search(ME, query="cheese dog")] == [0.5, 0.5, None]
    assert [item.score for item in calls.search(ME, query="nothing of that")] == [None] * 3
    assert [item.score for item in calls.search(ME, query="?!")] == [None] * 3
    assert keys(calls.search(ME, query="pizza", filter={"since": 2019})) == ["work"]
    assert keys(calls.search(ME, query="pizza", limit=1, offset=1)) == ["work"]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("refund", 0),
        ("refu", 0),  # the beginning of a word
        ("re", None),  # too short for that
        ("fund", None),
        ('"second helping"', 1),
        ('"helping second"', None),
        ("cafe", 2),
        ("CAFÉ", 2),
        ("中文", 3),
        ("theme", 4),  # keys count
        ("dark", 4),
    ],
)
def test_which_words_are_found(query: str, best: int | None) -> None:
    values = [
        {"text": "refunds"},
        {"a": ["one", "a second helping", "second"]},
        {"text": "Café"},
        {"text": "这是中文"},
        {"ui_theme": "dark"},
    ]
    scores = matching.score_words(query, values)
    assert [place for place, score in enumerate(scores) if score is not None] == ([] if best is None else [best])
    assert best is None or scores[best] == pytest.approx(1)


def test_rare_words_weigh_more() -> None:
    values = [{"text": "the the the"}, {"text": "zebra"}, {"text": "the"}, {"text": "the"}]
    scores = matching.score_words("the zebra", values)
    assert scores[1] is not None
    assert scores[0] is not None
    assert scores[1] > scores[0]


# -- meaning ---------------------------------------------------------------------------------------


def test_the_nearest_vectors_come_first(vault: Vault, awaited: bool) -> None:
    letters = Letters()
    calls = calls_on(vault, awaited=awaited, index=letters.index("text"))
    calls.put(ME, "ab", {"text": "ab"})
    calls.put(ME, "a", {"text": "aaa"})
    calls.put(ME, "z", {"text": "z"})
    calls.put(ME, "none", {"other": "a"})
    calls.put(ME, "unsearched", {"text": "a"}, index=False)
    found = calls.search((), query="a")
    assert [(item.key, item.score) for item in found[:2]] == [("a", pytest.approx(1)), ("ab", pytest.approx(2**-0.5))]
    assert [(item.key, item.score) for item in found[2:]] == [("z", 0), ("unsearched", None), ("none", None)]
    assert keys(calls.search((), query="a", filter={"text": "z"})) == ["z"]
    assert keys(calls.search((), query="a", limit=1, offset=1)) == ["ab"]
    assert all(item.score is None for item in calls.search(()))


def test_an_item_counts_by_its_best_text(vault: Vault, awaited: bool) -> None:
    calls = calls_on(vault, awaited=awaited, index=Letters().index("title", "notes[*].text"))
    calls.put(ME, "one", {"title": "xyz", "notes": [{"text": "q"}, {"text": "abc"}]})
    calls.put(ME, "two", {"title": "abd", "notes": []})
    found = calls.search(ME, query="abc")
    assert [item.key for item in found] == ["one", "two"]
    assert found[0].score == pytest.approx(1)
    calls.put(ME, "three", {"title": "q", "summary": "abc"}, index=["summary"])
    assert calls.search(ME, query="abc")[0].key == "three"
    assert calls.search(ME, query="q")[0].key == "one"


def test_only_changed_texts_are_embedded_and_each_once(vault: Vault, awaited: bool) -> None:
    letters = Letters()
    calls = calls_on(vault, awaited=awaited, index=letters.index("a", "b"))
    calls.put(ME, "k", {"a": "first", "b": "second"})
    assert letters.take() == ["first", "second"]
    calls.put(ME, "k", {"a": "first", "b": "changed", "c": "not searched"})
    assert letters.take() == ["changed"]
    calls.put(ME, "k", {"a": "first", "b": "changed", "c": 1})
    calls.put(ME, "k", {"c": 2}, index=False)
    calls.delete(ME, "k")
    calls.batch([PutOp(ME, "x", {"a": "same"}), PutOp(ME, "y", {"a": "same", "b": "more"}), PutOp(ME, "x", {"a": "same"})])
    assert letters.take() == ["same", "more"]
    calls.search(ME, query="same")
    assert letters.take() == ["same"]
    assert calls.search(ME, query="same")[0].score == pytest.approx(1)


def test_a_replaced_value_is_not_found_by_its_old_meaning(vault: Vault) -> None:
    calls, plain = calls_on(vault, index=Letters().index("text")), calls_on(vault)
    calls.put(ME, "k", {"text": "aaa"})
    plain.put(ME, "k", {"text": "zzz"})
    assert [item.score for item in calls.search(ME, query="a")] == [None]
    assert vault.thread("memory:users.1").records("memory vectors") == {}
    calls.put(ME, "k", {"text": "zzz"})
    assert [item.score for item in calls.search(ME, query="a")] == [0]


def test_functions_of_either_colour(vault: Vault) -> None:
    async def embed(texts: list[str]) -> list[list[float]]:
        return letters(texts)

    letters = Letters()
    calls = calls_on(vault, awaited=True, index=letters.index("text", embed=embed))
    calls.put(ME, "k", {"text": "abc"})
    assert calls.search(ME, query="abc")[0].score == pytest.approx(1)
    with pytest.raises(ValueError, match="async"):
        calls_on(vault, index=letters.index("text", embed=embed)).put(ME, "k", {"text": "new"})


@pytest.mark.parametrize("wrong", [[1.0], [float("nan")] * 26, [float("inf")] * 26])
def test_vectors_that_cannot_be_compared_are_refused(vault: Vault, awaited: bool, wrong: list[float]) -> None:
    calls = calls_on(vault, awaited=awaited, index=Letters().index(embed=lambda texts: [wrong for _ in texts]))
    with pytest.raises(InvalidInputError, match="dims=26"):
        calls.put(ME, "k", {"text": "abc"})
    with pytest.raises(InvalidInputError, match="dims=26"):
        calls.search(ME, query="abc")
    assert calls.names() == []


def test_a_function_that_loses_texts_and_unknown_distances_are_refused(vault: Vault) -> None:
    calls = calls_on(vault, index=Letters().index("a", "b", embed=lambda texts: [[1.0] * 26]))
    with pytest.raises(InvalidInputError, match="1 vectors for 2 texts"):
        calls.put(ME, "k", {"a": "x", "b": "y"})
    with pytest.raises(UnsupportedError, match="l2"):
        calls_on(vault, index={**Letters().index(), "distance_type": "l2"})


def test_another_model_does_not_see_the_vectors_of_the_first(vault: Vault) -> None:
    calls_on(vault, index=Letters().index("text")).put(ME, "k", {"text": "abc"})
    other = calls_on(vault, index={"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts], "fields": ["text"]})
    assert [item.score for item in other.search(ME, query="abc")] == [None]
    other.put(ME, "k", {"text": "abc"})
    assert [item.score for item in other.search(ME, query="abc")] == [1]


@pytest.mark.parametrize("with_numpy", [False, True])
def test_cosines(monkeypatch: pytest.MonkeyPatch, with_numpy: bool) -> None:
    if with_numpy:
        pytest.importorskip("numpy")
    else:
        monkeypatch.setattr(matching, "_numpy", lambda: None)
    packed = [matching.pack_vector(vector, 2) for vector in ([3.0, 0.0], [1e200, 1e200], [-1.0, 0.0], [0.0, 0.0])]
    assert matching.cosines(packed[0], packed) == pytest.approx([1, 2**-0.5, -1, 0])
    assert matching.cosines(packed[0], []) == []
    assert len(ALPHABET) * 4 == len(matching.pack_vector([1.0] * 26, None))
