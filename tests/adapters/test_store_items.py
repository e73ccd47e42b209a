"""What LangGraph's long-term memory promises of items and namespaces, on every store and in both colours."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from recalling import Calls, calls_on, keys

from savegame import InvalidInputError, InvalidState
from savegame.vault import Vault

Opener = Callable[..., Vault]
ME = ("users", "1")


def test_an_item_is_what_was_put(calls: Calls) -> None:
    value = {"theme": "dark", "numbers": [1, 2.5, None, True], "nested": {"a": {"b": "ü 🎲"}}, "": {}}
    before = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    calls.put(ME, "prefs", value)
    item = calls.get(ME, "prefs")
    assert (item.value, item.key, item.namespace) == (value, "prefs", ME)
    assert before < item.created_at == item.updated_at < dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    assert calls.get(ME, "other") is None
    assert calls.get(("users",), "prefs") is None
    assert calls.get(("users", "1", "more"), "prefs") is None


def test_a_second_put_replaces_the_value_and_keeps_the_time_of_the_first(calls: Calls) -> None:
    calls.put(ME, "prefs", {"a": 1, "b": {"c": 2}})
    first = calls.get(ME, "prefs")
    calls.put(ME, "prefs", {"b": {"d": 3}})
    second = calls.get(ME, "prefs")
    assert second.value == {"b": {"d": 3}}
    assert second.created_at == first.created_at == first.updated_at < second.updated_at


def test_a_deleted_item_is_gone_and_deleting_nothing_does_nothing(calls: Calls) -> None:
    calls.delete(ME, "prefs")
    assert calls.names() == []
    calls.put(ME, "prefs", {"a": 1})
    calls.put(ME, "more", {"a": 2})
    calls.delete(ME, "prefs")
    calls.delete(ME, "prefs")
    assert calls.get(ME, "prefs") is None
    assert keys(calls.search(())) == ["more"]


def test_what_a_caller_does_to_a_value_stays_with_the_caller(calls: Calls) -> None:
    given = {"list": [1]}
    calls.put(ME, "a", given)
    given["list"].append(2)
    calls.get(ME, "a").value["list"].append(3)
    calls.search(ME)[0].value["list"].append(4)
    assert calls.get(ME, "a").value == {"list": [1]}


@pytest.mark.parametrize("key", ["", " ", "a.b", "../x", "items", "value", "ü␟🎲", "k" * 5000, "\n"])
def test_any_text_is_a_key(vault: Vault, key: str) -> None:
    calls = calls_on(vault)
    calls.put(ME, key, {"n": 1})
    calls.put(ME, "next", {"n": 2})
    assert calls.get(ME, key).value == {"n": 1}
    assert calls.search(ME)[1].key == key
    calls.delete(ME, key)
    assert keys(calls.search(ME)) == ["next"]


LABELS = [("a",), ("a", "b"), ("ab",), ("a/b",), ("a␟b",), ("a b", "c"), ("ü",), ("a*",), ("*",), ("a%b",), ("A",), ("a\n",)]


def test_any_labels_are_a_namespace(calls: Calls) -> None:
    long = [
        ("x" * 300, "y" * 300),
        ("x" * 300, "y" * 300, "z"),
        ("x" * 300, "z" * 300),
        ("x" * 399,),
        ("x" * 400,),
        ("x" * 401,),
    ]
    for number, namespace in enumerate([*LABELS, *long]):
        calls.put(namespace, "k", {"n": number})
    for number, namespace in enumerate([*LABELS, *long]):
        assert calls.get(namespace, "k").value == {"n": number}
    assert calls.names() == sorted([*LABELS, *long])
    assert {item.namespace for item in calls.search(("x" * 300,))} == set(long[:3])
    assert {item.namespace for item in calls.search(long[0])} == set(long[:2])
    assert {item.namespace for item in calls.search(("a",))} == {("a",), ("a", "b")}
    assert calls.names(prefix=long[0]) == long[:2]


@pytest.mark.parametrize("namespace", [(), ("a.b",), ("",), ("a", ""), ("a", 1), ("langgraph", "x")])
def test_what_langgraph_refuses_as_a_namespace_is_refused_with_its_error(calls: Calls, namespace: Any) -> None:
    with pytest.raises(InvalidNamespaceError):
        calls.put(namespace, "k", {"a": 1})
    assert calls.names() == []


def test_a_batch_refuses_what_the_verbs_refuse_and_then_does_nothing(calls: Calls) -> None:
    good = PutOp(ME, "good", {"a": 1})
    wrong: list[tuple[Any, type[Exception]]] = [
        (PutOp((), "k", {"a": 1}), InvalidNamespaceError),
        (PutOp(("a.b",), "k", {"a": 1}), InvalidNamespaceError),
        (GetOp((), "k"), InvalidNamespaceError),
        (SearchOp(("a.b",)), InvalidNamespaceError),
        (ListNamespacesOp((MatchCondition("prefix", ("a.b",)),)), InvalidNamespaceError),
        (PutOp(ME, 1, {"a": 1}), InvalidInputError),  # type: ignore[arg-type]
        (PutOp(ME, "\ud800", {"a": 1}), InvalidInputError),
        (PutOp(ME, "k", [1]), InvalidInputError),  # type: ignore[arg-type]
        (PutOp(ME, "k", {"a": 1}, ttl=float("inf")), InvalidInputError),
        (PutOp(("other",), "k", {"a": object()}), InvalidState),
        (SearchOp((), filter={"a": {"$near": 1}}), InvalidInputError),
        (ListNamespacesOp((MatchCondition("middle", ("a",)),)), InvalidInputError),  # type: ignore[arg-type]
        ("put", InvalidInputError),
    ]
    calls.put(("some",), "thing", {"a": 1})
    for op, error in wrong:
        with pytest.raises(error):
            calls.batch([good, op])
    assert calls.names() == [("some",)]


def test_reads_of_a_batch_see_what_was_before_it_and_the_last_put_wins(calls: Calls) -> None:
    calls.put(ME, "a", {"n": 1})
    calls.put(ME, "b", {"n": 1})
    found = calls.batch(
        [
            PutOp(ME, "a", {"n": 2}),
            GetOp(ME, "a"),
            SearchOp(ME, filter={"n": 2}),
            PutOp(("new",), "c", {"n": 3}),
            ListNamespacesOp(),
            GetOp(("new",), "c"),
            PutOp(ME, "a", {"n": 4}),
            PutOp(ME, "b", None),
            PutOp(ME, "d", {"n": 5}),
            PutOp(ME, "d", None),
        ]
    )
    assert found[1].value == {"n": 1}  # type: ignore[union-attr]
    assert [found[place] for place in (0, 2, 3, 4, 5, 6, 7, 8, 9)] == [None, [], None, [ME], None, None, None, None, None]
    assert [(item.namespace, item.key, item.value) for item in calls.search(())] == [
        (("new",), "c", {"n": 3}),
        (ME, "a", {"n": 4}),
    ]
    assert calls.batch([]) == []


def test_all_puts_of_a_batch_to_one_namespace_are_one_checkpoint(vault: Vault) -> None:
    calls = calls_on(vault)
    calls.batch([PutOp(ME, f"k{number}", {"n": number}) for number in range(50)])
    newest = vault.thread("memory:users.1").latest()
    assert newest is not None
    assert newest.step == 1
    assert len(calls.search(ME, limit=100)) == 50


def test_a_search_returns_the_newest_first_in_pages(calls: Calls) -> None:
    for number in range(5):
        calls.put(("users", str(number % 2)), f"k{number}", {"n": number})
    calls.put(("users", "0"), "k0", {"n": 0})
    calls.put(("other",), "k", {"n": 0})
    assert keys(calls.search(("users",))) == ["k0", "k4", "k3", "k2", "k1"]
    assert keys(calls.search(("users",), limit=2)) == ["k0", "k4"]
    assert keys(calls.search(("users",), limit=2, offset=2)) == ["k3", "k2"]
    assert keys(calls.search(("users",), offset=4)) == ["k1"]
    assert calls.search(("users",), limit=0) == calls.search(("users",), offset=9) == calls.search(("user",)) == []
    assert len(calls.search(())) == 6
    assert all(item.score is None for item in calls.search(()))


def test_namespaces_are_listed_by_prefix_suffix_wildcard_and_depth(calls: Calls) -> None:
    every = [
        ("a", "docs", "public"),
        ("a", "docs", "secret"),
        ("a", "pictures", "public"),
        ("b", "docs", "deep", "er", "public"),
        ("b", "docs", "publics"),
    ]
    for namespace in reversed(every):
        calls.put(namespace, "k", {"n": 1})
    assert calls.names() == every
    assert calls.names(prefix=("a",)) == every[:3]
    assert calls.names(prefix=("a", "doc")) == []
    assert calls.names(prefix=("*", "docs")) == [*every[:2], *every[3:]]
    assert calls.names(prefix=("b", "*", "deep")) == [every[3]]
    assert calls.names(suffix=("public",)) == [every[0], every[2], every[3]]
    assert calls.names(suffix=("docs", "*")) == [every[0], every[1], every[4]]
    assert calls.names(prefix=("a",), suffix=("public",)) == [every[0], every[2]]
    assert calls.names(prefix=("a", "docs", "public", "*")) == []
    assert calls.names(max_depth=2) == [("a", "docs"), ("a", "pictures"), ("b", "docs")]
    assert calls.names(max_depth=1, prefix=("a",)) == [("a",)]
    assert calls.names(max_depth=2, limit=1, offset=1) == [("a", "pictures")]
    calls.delete(every[1], "k")
    assert calls.names(prefix=("a",)) == [every[0], every[2]]


def test_more_namespaces_than_a_page(vault: Vault) -> None:
    calls = calls_on(vault)
    calls.batch([PutOp(("many", f"{number:03}"), "k", {"n": number}) for number in range(230)])
    vault.thread("memory:many.1150").save({"not": "a memory"})
    assert calls.names(prefix=("many",), limit=1000) == [("many", f"{number:03}") for number in range(230)]
    assert len(calls.search(("many",), limit=1000)) == 230
    assert calls.names(offset=228) == [("many", "228"), ("many", "229")]


def test_items_survive_and_other_vaults_see_them(in_database: Opener) -> None:
    one, two = calls_on(in_database()), calls_on(in_database())
    one.put(ME, "a", {"n": 1})
    assert two.get(ME, "a").value == {"n": 1}
    two.put(ME, "b", {"n": 2})
    one.put(ME, "c", {"n": 3})
    two.delete(ME, "a")
    assert keys(one.search(())) == keys(two.search(())) == ["c", "b"]
