"""Showing values within a limit, without a server: any value fits, and nothing is lost on the way through its pages."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from savegame.mcp import excerpts

ROOM = 2000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | texts.map(lambda text: text * 200) | st.binary(max_size=500),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts | texts.map(lambda t: t * 100), inner, max_size=6),
    max_leaves=60,
)


@given(values)
def test_any_value_fits_into_its_room(value: Any) -> None:
    shown, cuts = excerpts.cut_fields({"value": value}, ROOM)
    assert excerpts.length(shown) <= ROOM
    if not cuts:
        assert excerpts.read_part({"value": value}, "/value", 0, 10**9, 10**9).value == shown["value"]


@given(st.lists(values, max_size=30))
def test_the_pages_of_a_list_make_the_list(items: list[Any]) -> None:
    whole = excerpts.read_part(items, "", 0, 10**9, 10**9).value
    start, found = 0, []
    while True:
        part = excerpts.read_part(items, "", start, 7, ROOM)
        assert excerpts.length(part.value) <= ROOM
        found += whole[start : start + len(part.value)] if part.cuts else part.value
        if part.following is None:
            break
        assert part.following > start
        start = part.following
    assert found == whole


@given(texts.map(lambda text: text * 100))
def test_the_pages_of_a_text_make_the_text(text: str) -> None:
    start: int | None = 0
    found = ""
    while start is not None:
        part = excerpts.read_part(text, "", start, 1, ROOM)
        assert len(json.dumps(part.value, ensure_ascii=False)) <= ROOM
        found += part.value
        start = part.following
    assert found == text


@given(values)
def test_every_cut_names_a_place_that_can_be_read(value: Any) -> None:
    _, cuts = excerpts.cut_fields({"value": value}, ROOM)
    for cut in cuts:
        if len(cut.path) <= excerpts.LONGEST_PATH:
            assert excerpts.read_part({"value": value}, cut.path, cut.shown, 1, ROOM).total == cut.total


def test_keys_with_slashes_and_tildes_are_found_by_their_pointers() -> None:
    state = {"a/b": {"~": "found"}}
    assert excerpts.read_part(state, "/a~1b/~0", 0, 1, ROOM).value == "found"
