"""Stored bytes as readable JSON, and back, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import savegame
from savegame.encoding.codec import Codec
from savegame.encoding.delta import SET, Op, dump
from savegame.encoding.frames import PLAIN, Meta, dump_note, pack_meta, wrap
from savegame.encoding.json_form import from_text, to_text
from savegame.errors import CorruptionError
from savegame.model import ThreadKey
from savegame.testing import strategies

KINDS = ("delta", "value", "content", "meta", "note")


def through_json(kind: str, data: bytes) -> Any:
    """What `to_text` makes of bytes, after it was written to a file and read again."""
    text = json.loads(json.dumps(to_text(kind, data), allow_nan=False))
    assert from_text(kind, text) == data
    return text


def text_of(value: Any) -> Any:
    """How a value is written."""
    return through_json("value", PLAIN + Codec().encode(value))["value"]


def delta_of(value: Any) -> bytes:
    return wrap(dump([Op(SET, (), Codec().encode(value))]), compress=False)


@given(strategies.values(large=True))
def test_every_value_is_written_out(value: Any) -> None:
    assert "value" in through_json("value", PLAIN + Codec().encode(value))
    assert isinstance(through_json("delta", delta_of(value)), list)


@given(st.lists(strategies.states(), min_size=1, max_size=4))
def test_whatever_an_engine_writes_is_written_out(states: list[Any]) -> None:
    """Deltas of every kind, metadata, notes and large values of real saves."""
    vault = savegame.open("memory:", compress=False)
    thread = vault.thread("t", agent="a")
    for number, state in enumerate(states):
        thread.save(state, label=f"{number}", tags=["x"], metadata={"n": (number,)}, status="failed(why)", cost=0.5)
    for frame in vault.store.frames(ThreadKey("default", "t"), deltas=True):
        assert "base64" not in through_json("delta", frame.delta or b"")
        assert through_json("meta", frame.meta)["digest"] == frame.meta[:32].hex()
        assert through_json("note", frame.note or b"")["tags"] == ["x"]


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes_come_back(kind: str, data: bytes) -> None:
    through_json(kind, data)
    through_json(kind, PLAIN + data)


@pytest.mark.parametrize("how", [(70, str), (20_000, hex)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_of_any_length_is_written_out(how: tuple[int, Callable[[int], str]], sign: int) -> None:
    bits, write = how
    value = sign * 2**bits
    assert text_of({"n": value, "keys": {value: 1}}) == {
        "n": {"$int": write(value)},
        "keys": {"$map": [{"$int": write(value)}, 1]},
    }


def test_a_long_number_that_was_written_in_decimal_digits_is_read() -> None:
    assert from_text("value", {"value": {"$int": str(10**4000)}}) == PLAIN + Codec().encode(10**4000)


def test_what_a_person_reads() -> None:
    thread = savegame.open("memory:", compress=False).thread("t")
    thread.save({"messages": ["hello"], "plan": None})
    thread.update(append={"messages": ["wörld"]}, set={"plan": 1.5}, delete=[])
    frames = thread.timeline.engine.store.frames(ThreadKey("default", "t"), deltas=True)
    assert [to_text("delta", frame.delta or b"") for frame in frames] == [
        [["set", [], {"messages": ["hello"], "plan": None}]],
        [["set", ["plan"], 1.5], ["append", ["messages"], ["wörld"]]],
    ]


@pytest.mark.parametrize(
    "value",
    [{"$tuple": [1]}, {"$plain": {"$plain": 1}}, {"$": None}, {"$unknown": []}, {"base64": "eA=="}, {"$tuple": 1, "$set": 2}],
)
def test_a_users_dict_that_looks_like_a_tag_stays_a_dict(value: Any) -> None:
    assert Codec().decode(from_text("value", {"value": text_of(value)})[2:]) == value


def test_a_user_cannot_make_a_tag() -> None:
    assert text_of({"$tuple": [1]}) == {"$plain": {"$tuple": [1]}}
    assert text_of((1,)) == {"$tuple": [1]}


def test_deep_values_need_no_deep_stack_to_be_read() -> None:
    value: Any = 0
    for _ in range(240):
        value = [value]
    text = json.dumps(text_of(value))
    assert text.count("[") <= 40


@pytest.mark.parametrize("kind", KINDS)
def test_compressed_bytes_are_kept_as_they_are(kind: str) -> None:
    body = wrap(dump([Op(SET, (), Codec().encode("x" * 10_000))]), compress=True)
    assert through_json(kind, body).keys() == {"base64"}


def test_metadata_names_its_fields() -> None:
    meta = Meta("p" * 3, 2, 1_700_000_000_000_001, 9, "manual", "in_progress", description="why", digest=b"d" * 32)
    text = through_json("meta", meta.digest + pack_meta(meta))
    assert (text["at"], text["step"], text["description"]) == ("2023-11-14T22:13:20.000001Z", 2, "why")
    assert "cost" not in text


def test_a_note_is_a_label_and_tags() -> None:
    assert through_json("note", dump_note("before", ("a", "b")) or b"") == {"label": "before", "tags": ["a", "b"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [None, 1, "x", [], [[]], {}, {"base64": 1}, {"value": {"$no": 1}}, [["jump", []]], {"at": 3}])
def test_other_json_is_damage(kind: str, text: Any) -> None:
    if (kind, text) == ("delta", []):
        return  # nothing changed: a delta like any other
    with pytest.raises(CorruptionError, match=kind):
        from_text(kind, text)
