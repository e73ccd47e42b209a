"""What a checkpoint costs is what is new in it, every change is noticed, and everybody can read a LangGraph thread."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from pydantic import BaseModel
from scripted import chat, config, person, tool_loop

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.vault import Vault

Make = Callable[[int], Any]
Opener = Callable[..., Vault]


def text(number: int) -> str:
    """Something to say that cannot be compressed much, the same for the same number."""
    return f"{number}: {random.Random(number).randbytes(150).hex()}"


def plain(number: int) -> Any:
    return {"role": "user", "content": text(number), "extra": {"n": number, "list": [1, 2.5, None]}}


def message(number: int) -> Any:
    if number % 3 == 0:
        return HumanMessage(text(number), id=f"m{number}")
    if number % 3 == 1:
        calls = [{"name": "f", "args": {"n": number}, "id": f"c{number}"}]
        return AIMessage(text(number), id=f"m{number}", tool_calls=calls)
    return ToolMessage(text(number), id=f"m{number}", tool_call_id=f"c{number - 1}")


@dataclasses.dataclass
class Note:
    number: int
    text: str


class Card(BaseModel):
    number: int
    text: str


KINDS: list[Make] = [plain, message, lambda n: Card(number=n, text=text(n)), lambda n: Note(n, text(n)), lambda n: (n, text(n))]
kinds = pytest.mark.parametrize("make", KINDS, ids=["dicts", "messages", "models", "dataclasses", "tuples"])


def deltas(vault: Vault) -> int:
    """The bytes of all deltas; a memory store does not tell."""
    return vault.stats().sizes.get("deltas", 0)


class Line:
    """One thread, put step by step as a graph does it: each checkpoint on top of the last."""

    def __init__(self, saver: SavegameSaver, thread_id: str = "t") -> None:
        self.saver = saver
        self.at: Any = config(thread_id)
        self.versions: dict[str, int] = {}
        self.step = 0

    def put(self, values: dict[str, Any], *changed: str) -> int:
        """Put a checkpoint; the channels named (all, if none are) have a new version. The bytes that it cost."""
        self.step += 1
        new = dict.fromkeys(changed or values, self.step)
        self.versions |= new
        checkpoint: Checkpoint = {
            **empty_checkpoint(),
            "id": str(uuid6()),
            "channel_values": values,
            "channel_versions": dict(self.versions),
        }
        before = deltas(self.saver.vault)
        self.at = self.saver.put(self.at, checkpoint, {"source": "loop", "step": self.step}, new)
        return deltas(self.saver.vault) - before

    def values(self) -> dict[str, Any]:
        """What is stored, read without a cache."""
        fresh = SavegameSaver(self.saver.vault, allow=[Note, Card])
        found = fresh.get_tuple(self.at)
        assert found is not None
        assert [found] == list(fresh.list(self.at))
        return found.checkpoint["channel_values"]


def as_read(value: Any) -> Any:
    """LangGraph's serializer makes lists of tuples."""
    return json.loads(json.dumps(value)) if isinstance(value, tuple) else value


def all_as_read(values: list[Any]) -> list[Any]:
    return [as_read(value) for value in values]


# -- what it costs ---------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_two_more_items_cost_two_items(count: int, make: Make, on_disk: Opener) -> None:
    line, other = Line(SavegameSaver(on_disk())), Line(SavegameSaver(on_disk("other.db")))
    items = [make(number) for number in range(count)]
    line.put({"messages": items})
    for _ in range(4):
        more = [make(len(items)), make(len(items) + 1)]
        alone = other.put({"messages": more})
        items = [*items, *more]
        assert line.put({"messages": items}) < alone + 200
        assert line.values() == {"messages": all_as_read(items)}


@kinds
def test_two_more_items_in_the_same_list_object(make: Make, on_disk: Opener) -> None:
    """Graphs that append to the list that they were given."""
    line = Line(SavegameSaver(on_disk()))
    items = [make(number) for number in range(100)]
    first = line.put({"messages": items})
    for number in range(100, 110, 2):
        items += [make(number), make(number + 1)]
        assert line.put({"messages": items}) < first / 8
        assert line.values() == {"messages": all_as_read(items)}


@kinds
def test_after_a_new_start_only_what_is_new_is_written(make: Make, on_disk: Opener) -> None:
    line = Line(SavegameSaver(on_disk()))
    items = [make(number) for number in range(100)]
    first = line.put({"messages": items})
    line.saver = SavegameSaver(on_disk())
    items = [*items, make(100), make(101)]
    assert line.put({"messages": items}) < first / 8
    assert line.values() == {"messages": all_as_read(items)}


def test_a_dict_channel_costs_the_keys_that_changed(on_disk: Opener) -> None:
    line = Line(SavegameSaver(on_disk()))
    values = {f"key {number}": message(number) for number in range(100)}
    first = line.put({"by name": values})
    values = {**values, "key 50": message(1000), "one more": message(1001)}
    del values["key 7"]
    assert line.put({"by name": values}) < first / 8
    assert line.values() == {"by name": values}


@kinds
def test_a_channel_with_the_same_version_is_not_written_again(make: Make, on_disk: Opener) -> None:
    line = Line(SavegameSaver(on_disk()))
    items = [make(number) for number in range(100)]
    line.put({"messages": items, "count": 0})
    for number in range(1, 4):
        assert line.put({"messages": items, "count": number}, "count") < 600
    assert line.values() == {"messages": all_as_read(items), "count": 3}


def test_a_chat_costs_what_is_said(on_disk: Opener) -> None:
    """A real graph: the second half of 100 turns costs what the first half did, not three times as much."""
    vault = on_disk()
    graph = chat(SavegameSaver(vault))
    sizes = [0]
    for number in range(100):
        graph.invoke(person(text(number), number), config())
        sizes.append(deltas(vault))
    first, second = sizes[50] - sizes[0], sizes[100] - sizes[50]
    assert second < 1.5 * first


# -- every change is noticed -----------------------------------------------------------------------


CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "the text of one": lambda items: setattr(items[3], "content", "changed"),
    "deep inside one": lambda items: items[4].tool_calls[0]["args"].update(n="changed"),
    "a new keyword": lambda items: items[3].additional_kwargs.update(new=[1]),
    "the text of the last": lambda items: setattr(items[-1], "content", "changed"),
    "one replaced": lambda items: items.__setitem__(10, message(999)),
    "another class": lambda items: items.__setitem__(3, AIMessage(items[3].content, id=items[3].id)),
    "removed from the middle": lambda items: items.pop(50),
    "the first removed": lambda items: items.pop(0),
    "the last removed": lambda items: items.pop(),
    "inserted": lambda items: items.insert(20, message(999)),
    "turned round": lambda items: items.reverse(),
    "emptied": lambda items: items.clear(),
    "cut and grown": lambda items: items.__setitem__(slice(30, None), [message(number) for number in range(500, 600)]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("count", [64, 101])
@pytest.mark.parametrize("more", [0, 2])
def test_a_change_in_place_is_noticed(change: Callable[[list[Any]], Any], count: int, more: int, saver: SavegameSaver) -> None:
    """Also if the list has grown at the same time, and also the next time."""
    line = Line(saver)
    items: list[AnyMessage] = [message(number) for number in range(count)]
    line.put({"messages": items})
    before = copy.deepcopy(items)
    first = line.at
    change(items)
    items += [message(number) for number in range(2000, 2000 + more)]
    assert items != before
    line.put({"messages": items})
    assert line.values() == {"messages": items}
    items.append(message(3000))
    line.put({"messages": items})
    assert line.values() == {"messages": items}
    line.at = first
    assert line.values() == {"messages": before}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (1, 1.0),
        (1, True),
        (0, False),
        ("1", 1),
        (None, "None"),
        ("", None),
        (b"x", "x"),
        ([], {}),
        ({"a": 1}, {"a": 1.0}),
        (0.0, -0.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_a_change_of_type_is_noticed(old: Any, new: Any, saver: SavegameSaver) -> None:
    line = Line(saver)
    line.put({"list": [0, old], "dict": {"a": old}, "value": old})
    line.put({"list": [0, new], "dict": {"a": new}, "value": new})
    assert repr(line.values()) == repr({"list": [0, new], "dict": {"a": new}, "value": new})
    line.put({"list": [0, old, "more"], "dict": {"a": old}, "value": old})
    assert repr(line.values()) == repr({"list": [0, old, "more"], "dict": {"a": old}, "value": old})


def test_channels_come_and_go_and_change_their_shape(saver: SavegameSaver) -> None:
    line = Line(saver)
    shapes: list[Any] = [[1], {"a": [1]}, "text", [message(1)], None, [], {}, {1: 2}, message(2), [[1], [2]], (1, 2), b"x"]
    for number, shape in enumerate(shapes):
        values: dict[str, Any] = {"always": shape}
        if number % 2:
            values["sometimes"] = [shape]
        line.put(values)
        assert line.values() == {channel: as_read(value) for channel, value in values.items() if channel == "always"} | (
            {"sometimes": [as_read(shape)]} if number % 2 else {}
        )


def test_what_comes_back_belongs_to_the_caller(saver: SavegameSaver) -> None:
    """Changing what get_tuple gave changes neither the store nor what others are given."""
    line = Line(saver)
    line.put({"messages": [message(0), message(1)], "data": {"a": [1]}})
    mine = saver.get_tuple(line.at)
    assert mine is not None
    mine.checkpoint["channel_values"]["messages"][0].content = "changed"
    mine.checkpoint["channel_values"]["data"]["a"].append(2)
    mine.checkpoint["channel_versions"].clear()
    mine.metadata["step"] = 99
    assert line.values() == {"messages": [message(0), message(1)], "data": {"a": [1]}}
    again = saver.get_tuple(line.at)
    assert again is not None
    assert again.metadata["step"] == 1
    assert again.checkpoint["channel_versions"] == {"messages": 1, "data": 1}


# -- everybody can read it -------------------------------------------------------------------------


def test_a_thread_is_readable(vault: Vault) -> None:
    graph = tool_loop(SavegameSaver(vault))
    graph.invoke(person("weather", 1), config("trip"))
    graph.invoke(person("hi", 2), config("trip"))
    (info,) = vault.threads()
    assert (info.id, info.checkpoints) == ("trip", 8)
    thread = vault.thread("trip")
    assert [entry.metadata["step"] for entry in thread.history()] == [6, 5, 4, 3, 2, 1, 0, -1]
    assert [entry.external_id for entry in thread.history()] == [
        snapshot.config["configurable"]["checkpoint_id"] for snapshot in graph.get_state_history(config("trip"))
    ]
    messages = thread.state()["channel_values"]["messages"]
    assert [one["type"] for one in messages] == ["human", "ai", "tool", "tool", "ai", "human", "ai"]
    assert messages[1]["tool_calls"][0]["args"] == {"city": "Ölüdeniz"}
    assert thread.state("head~3")["channel_values"]["messages"] == messages[:5]
    diff = thread.diff("head~1", "head")
    added = [change for change in diff if change.path[:2] == ("channel_values", "messages")]
    assert [(change.path[2], change.new["content"]) for change in added] == [(6, "hello")]
    assert "hello" in str(diff)


WITHOUT = """
import importlib.abc, json, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("langgraph", "langchain_core", "pydantic", "langsmith"):
            raise ImportError(f"{name} is not here")
        return None

sys.meta_path.insert(0, Blocker())
import savegame

try:
    import savegame.adapters.langgraph
    refused = None
except savegame.UnsupportedError as error:
    refused = str(error)

with savegame.open(sys.argv[1]) as vault:
    thread = vault.thread("trip")
    print(json.dumps({
        "refused": refused,
        "threads": [info.id for info in vault.threads()],
        "steps": [entry.metadata["step"] for entry in thread.history()],
        "messages": thread.state()["channel_values"]["messages"],
        "loaded": [len(entry.load().state["channel_values"].get("messages", [])) for entry in thread.history()],
        "diff": str(thread.diff("head~1", "head")),
        "sound": vault.verify().ok,
        "modules": [name for name in sys.modules if name.split(".")[0] in ("langgraph", "langchain_core", "pydantic")],
    }))
    forked = thread.fork("what if", at="head~3")
    thread.label("head", "the end")
    thread.rewind("head~4")
"""


def test_a_thread_is_readable_without_langgraph(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        graph = tool_loop(SavegameSaver(vault))
        graph.invoke(person("weather", 1), config("trip"))
        graph.invoke(person("hi", 2), config("trip"))
        expected = vault.thread("trip").state()["channel_values"]["messages"]
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert 'pip install "savegame[langgraph]"' in seen["refused"]
    assert seen["threads"] == ["trip"]
    assert seen["steps"] == [6, 5, 4, 3, 2, 1, 0, -1]
    assert seen["messages"] == expected
    assert seen["messages"][-1]["content"] == "hello"
    assert seen["loaded"] == [7, 6, 5, 5, 4, 2, 1, 0]
    assert "hello" in seen["diff"]
    assert seen["sound"]
    assert seen["modules"] == []
    with savegame.open(path) as vault:
        graph = tool_loop(SavegameSaver(vault))
        result = graph.invoke(None, config("trip"))  # from where it was rewound to
        assert [one.type for one in result["messages"]] == ["human", "ai", "tool", "tool", "ai"]
        assert isinstance(result["messages"][0], HumanMessage)


@pytest.mark.parametrize("again", [False, True])
def test_a_field_that_a_checkpoint_no_longer_has_is_gone(vault: Vault, again: bool) -> None:
    """Whatever its parent had: checkpoints of other versions of LangGraph have other fields."""
    saver = SavegameSaver(vault)
    first, second = empty_checkpoint(), empty_checkpoint()
    first["extra"] = [1]  # type: ignore[typeddict-unknown-key]
    place: Any = saver.put({"configurable": {"thread_id": "fields", "checkpoint_ns": ""}}, first, {}, {})
    saver = SavegameSaver(vault) if again else saver
    found = saver.get_tuple(saver.put(place, second, {}, {}))
    assert found is not None
    assert set(found.checkpoint) == set(second)
