"""Serializers of one's own: what they write is kept as they wrote it, all of it, and they alone read it."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from scripted import Machine, Part, config, kept, person, pydantic_state, told, tool_loop

from savegame.adapters.langgraph import SavegameSaver, _writes_kind
from savegame.vault import Vault


class Scrambled:
    """Stands for an encrypting serializer: LangGraph's own, and then every byte changed."""

    def __init__(self) -> None:
        self.inner = JsonPlusSerializer()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = self.inner.dumps_typed(obj)
        return f"{kind}+scrambled", bytes(byte ^ 0x55 for byte in data)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, scrambled = data
        assert kind.endswith("+scrambled")
        return self.inner.loads_typed((kind.removesuffix("+scrambled"), bytes(byte ^ 0x55 for byte in scrambled)))


class Odd:
    """Something that only pickle can keep."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)


def put(saver: SavegameSaver, values: dict[str, Any]) -> Any:
    checkpoint: Any = {
        **empty_checkpoint(),
        "id": str(uuid6()),
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
    }
    return saver.put(config(), checkpoint, {"source": "loop", "step": 1}, dict.fromkeys(values, 1))  # type: ignore[arg-type]


def test_a_graph_with_a_serializer_of_ones_own(vault: Vault) -> None:
    saver, theirs = SavegameSaver(vault, serde=Scrambled()), InMemorySaver()
    for one in (saver, theirs):
        for number in range(3):
            tool_loop(one).invoke(person("weather add", number), config())
    assert told(tool_loop(saver)) == told(tool_loop(theirs))
    assert kept(saver) == kept(theirs)


def test_an_encrypting_serializer_leaves_nothing_readable(vault: Vault) -> None:
    """Also short plain texts go through it: those are what people encrypt."""
    saver = SavegameSaver(vault, serde=Scrambled())
    secret = "secret-token-123"
    messages: list[AnyMessage] = [HumanMessage(secret)]
    at = put(saver, {"text": secret, "list": [secret, {"a": secret}], "dict": {"a": secret}, "messages": messages})
    saver.put_writes(at, [("text", secret), ("list", [secret])], "task")
    thread = vault.thread("t")
    found = saver.get_tuple(at)
    assert found is not None
    assert found.checkpoint["channel_values"]["text"] == secret
    assert secret not in repr(thread.state()["channel_values"])
    assert secret not in repr(thread.records(_writes_kind(found.checkpoint["id"])))


def test_a_permissive_serializer_makes_its_own_rules(vault: Vault) -> None:
    saver = SavegameSaver(vault, serde=JsonPlusSerializer(allowed_msgpack_modules=True))
    values = {"machine": Machine(name="car", main=Part(name="engine")), "list": [Part(name="wheel")]}
    found = saver.get_tuple(put(saver, values))
    assert found is not None
    assert found.checkpoint["channel_values"] == values
    graph = pydantic_state(saver)
    assert graph.invoke(Machine(name="car"), config("graph"))["name"] == "car in blue"


def test_a_serializer_that_may_pickle_reads_what_it_wrote(vault: Vault) -> None:
    saver = SavegameSaver(vault, serde=JsonPlusSerializer(pickle_fallback=True))
    values = {"odd": Odd(1), "list": [Odd(2), "x"], "dict": {"a": Odd(3)}}
    at = put(saver, values)
    found = saver.get_tuple(at)
    assert found is not None
    assert found.checkpoint["channel_values"] == values


def test_a_savers_serializer_is_not_asked_by_others(vault: Vault) -> None:
    """Who has another serializer, or none, sees what cannot be read as such and runs nothing."""
    put(SavegameSaver(vault, serde=Scrambled()), {"list": [HumanMessage("hi")]})
    (leaf,) = vault.thread("t").state()["channel_values"]["list"]
    assert leaf.kind == "msgpack+scrambled"
