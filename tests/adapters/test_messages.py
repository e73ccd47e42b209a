"""Messages that are made from their fields are those that LangGraph's serializer makes, and nothing else is made so."""

from __future__ import annotations

import datetime as dt
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from scripted import chat, config, person, told

from savegame.adapters._langgraph_messages import read_message
from savegame.adapters.langgraph import SavegameSaver
from savegame.vault import Vault

STOCK = JsonPlusSerializer(allowed_msgpack_modules=None)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=2),
    max_leaves=5,
)
some = st.dictionaries(st.text(max_size=3), plain, max_size=3)
parts = st.text(max_size=3) | st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=3)})
contents = st.text(max_size=20) | st.lists(parts, max_size=2)
ids = st.none() | st.text(max_size=4)
calls = st.lists(st.builds(dict, name=st.text(max_size=3), args=some, id=ids), max_size=2)
usages = st.none() | st.builds(dict, input_tokens=st.integers(0, 9), output_tokens=st.just(2), total_tokens=st.integers(2, 11))
usual = {"content": contents, "id": ids, "name": ids, "response_metadata": some}
messages = st.one_of(
    st.builds(HumanMessage, additional_kwargs=some, **usual),
    st.builds(SystemMessage, **usual),
    st.builds(AIMessage, tool_calls=calls, invalid_tool_calls=st.just([]), usage_metadata=usages, **usual),
    st.builds(
        ToolMessage, tool_call_id=st.text(max_size=3), artifact=plain, status=st.sampled_from(["success", "error"]), **usual
    ),
)


def everything(made: Any) -> Any:
    """A message down to what pydantic keeps of it."""
    hidden = (made.__pydantic_fields_set__, made.__pydantic_extra__, made.__pydantic_private__)
    return type(made), [(name, type(value), value) for name, value in vars(made).items()], hidden


def dumped(value: Any) -> bytes:
    kind, data = STOCK.dumps_typed(value)
    assert kind == "msgpack"
    return data


@given(messages)
def test_they_are_what_the_serializer_makes(one: Any) -> None:
    data = dumped(one)
    assert everything(read_message(data)) == everything(STOCK.loads_typed(("msgpack", data)))


def test_they_can_be_used_like_any() -> None:
    one = read_message(dumped(AIMessage("hi", id="a", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "1"}])))
    assert isinstance(one, AIMessage)
    assert one.model_copy(update={"content": "ho"}).content == "ho"
    assert one == AIMessage.model_validate(one.model_dump())
    one.content = "changed"
    assert (one.text, one.tool_calls[0]["args"]) == ("changed", {"x": 1})


@pytest.mark.parametrize(
    "value",
    [
        HumanMessage("one with a field of its own", colour="red"),
        HumanMessage("one with more than plain values", additional_kwargs={"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}),
        AIMessageChunk("one of another class"),
        RemoveMessage(id="a"),
        [HumanMessage("a list")],
        "langchain_core.messages.human",
        ["langchain_core.messages.human", "HumanMessage", {}, "model_validate_json"],
    ],
    ids=str,
)
def test_the_rest_is_left_to_the_serializer(value: Any) -> None:
    assert read_message(dumped(value)) is None


@pytest.mark.parametrize(
    "body",
    [
        "langchain_core.messages.human",
        ["langchain_core.messages.human", "HumanMessage", ["content"], ""],
        ["langchain_core.messages.human", "HumanMessage", {"content": "fields of another version"}, ""],
        ["langchain_core.messages.human", ["HumanMessage"], {}, ""],
        ["langchain_core.messages.human", "HumanMessage", {}],
        ["langchain_core.messages.human", "BaseMessage", {"content": "hi"}, ""],
        ["langchain_core.messages.evil", "HumanMessage", {"content": "hi"}, ""],
    ],
    ids=str,
)
def test_what_was_never_written_is_left_to_the_serializer(body: Any) -> None:
    for code in (1, 5):
        assert read_message(ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(body)))) is None


@pytest.mark.parametrize("data", [b"", b"\xc7", b"\xc9\0\0\0\0", dumped(HumanMessage("cut short"))[:-1]], ids=str)
def test_what_is_too_short_is_left_to_the_serializer(data: bytes) -> None:
    assert read_message(data) is None


def test_a_chat_is_loaded_without_the_serializer(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chat(SavegameSaver(vault))
    for number in range(3):
        graph.invoke(person(f"text {number}", number), config())
    expected = told(graph)
    saver = SavegameSaver(vault)
    asked: list[bytes] = []

    def counted(data: tuple[str, bytes], loads: Any = saver.serde.loads_typed) -> Any:
        asked.append(data[1])
        return loads(data)

    monkeypatch.setattr(saver.serde, "loads_typed", counted)
    assert told(chat(saver)) == expected
    assert not [data for data in asked if read_message(data) is not None]
