"""What people read: one line per change, nothing that stayed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from savegame.encoding.codec import Codec
from savegame.model import MISSING, Change
from savegame.present.diffs import Diff, changes_between
from savegame.testing import same, strategies

CODEC = Codec()


def lines(old: Any, new: Any) -> list[str]:
    return str(changes_between(CODEC, old, new)).splitlines()


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ({"a": 1}, {"a": 1}, ["no changes"]),
        ({"a": 1}, {"a": 2}, ["~ a: 1 -> 2"]),
        ({"a": 1}, {"a": 1, "b": [2]}, ["+ b = [2]"]),
        ({"a": 1, "b": 2}, {"a": 1}, ["- b = 2"]),
        ({"a": {"b": [1, {"c": "x"}]}}, {"a": {"b": [1, {"c": "y"}]}}, ["~ a.b[1].c: 'x' -> 'y'"]),
        ([1, 2, 3], [1, 2, 3, 4], ["+ [3] = 4"]),
        ([1, 2, 3], [2, 3], ["- [0] = 1"]),
        ([1, 2, 3], [1, 9, 2, 3], ["+ [1] = 9"]),
        (1, True, ["~ (the state): 1 -> True"]),
        ({"n": 1}, {"n": 1.0}, ["~ n: 1 -> 1.0"]),
        ({"n": 0.0}, {"n": -0.0}, ["~ n: 0.0 -> -0.0"]),
        ({"n": math.nan}, {"n": math.nan}, ["no changes"]),
        ({"n": [1]}, {"n": (1,)}, ["~ n: [1] -> (1,)"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ["~ ['(keys)']: ['a', 'b'] -> ['b', 'a']"]),
        ({"p": Point(1, 2)}, {"p": Point(1, 3)}, ["~ p.y: 2 -> 3"]),
        ({"two words": 1}, {"two words": 2}, ["~ ['two words']: 1 -> 2"]),
        ({1: "a"}, {1: "b"}, ["~ [1]: 'a' -> 'b'"]),
        (None, {}, ["~ (the state): None -> {}"]),
    ],
)
def test_lines(old: Any, new: Any, wanted: list[str]) -> None:
    assert lines(old, new) == wanted


def test_unchanged_siblings_are_never_shown() -> None:
    messages = [{"id": number, "text": f"message {number}"} for number in range(50)]
    edited = [*messages[:7], {"id": 7, "text": "edited"}, *messages[8:], {"id": 50, "text": "more"}]
    assert lines(
        {"messages": messages, "files": {"a": "A", "b": "B"}}, {"messages": edited, "files": {"a": "A", "b": "C"}}
    ) == [
        "~ messages[7].text: 'message 7' -> 'edited'",
        "+ messages[50] = {'id': 50, 'text': 'more'}",
        "~ files.b: 'B' -> 'C'",
    ]


def test_items_that_stayed_in_the_middle_of_a_list_are_not_shown() -> None:
    shown = changes_between(
        CODEC, ["first", "stays 1", "stays 2", "stays 3", "last"], ["other", "stays 1", "stays 2", "stays 3"]
    )
    assert not [change for change in shown if "stays" in str(change)]


def test_a_window_over_messages() -> None:
    items = [f"message {number}" for number in range(20)]
    assert lines(items[:15], items[1:16]) == ["- [0] = 'message 0'", "+ [14] = 'message 15'"]


def test_long_values_are_cut() -> None:
    (line,) = lines({"a": "x" * 10_000}, {"a": "y" * 10_000})
    assert len(line) < 130
    assert "\n" not in str(changes_between(CODEC, {"a": "x\ny"}, {"a": "z\n" * 50}))


def test_a_diff_is_a_sequence_of_changes() -> None:
    diff = changes_between(CODEC, {"a": 1, "b": 2}, {"a": 2, "c": 3})
    assert isinstance(diff, Diff)
    assert list(diff) == [Change(("a",), 1, 2), Change(("b",), 2, MISSING), Change(("c",), MISSING, 3)]
    assert (len(diff), diff[0].path, diff[-1].new) == (3, ("a",), 3)
    assert diff[:1] == [Change(("a",), 1, 2)]
    assert not changes_between(CODEC, 1, 1)
    assert not MISSING


def test_deep_values() -> None:
    old: Any = "x"
    new: Any = "y"
    for _ in range(100):
        old, new = (old,), (new,)
    assert len(changes_between(CODEC, old, new)) == 1
    assert len(changes_between(CODEC, {"k": [old, 1]}, {"k": [old, 2]})) == 1


@given(strategies.values(), st.data())
@settings(max_examples=100)
def test_changes_lead_from_one_to_the_other(old: Any, data: st.DataObject) -> None:
    new = data.draw(strategies.edits(old))
    diff = changes_between(CODEC, old, new)
    assert bool(diff) is not same(old, new)
    assert len(str(diff).splitlines()) >= 1
    for change in diff:
        assert not same(change.old, change.new)
