"""Stored bytes that name a class or a callable run nothing, odd names stay apart, and filters are only values.

The exploits are those that were published against LangGraph's savers (CVE-2025-64439, CVE-2026-28277, CVE-2026-27794,
CVE-2025-67644). `test_the_exploits_are_real` is the control: with LangGraph's default serializer the same bytes do run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import RESUME
from pydantic import BaseModel
from scripted import chat, config, person, pydantic_state

import savegame
from savegame import CorruptionError, InvalidInputError
from savegame.adapters.langgraph import GraphPlace, SavegameSaver, _writes_kind
from savegame.encoding.foreign import Foreign
from savegame.vault import Vault

SINGLE_ARG, POS_ARGS, KW_ARGS, METHOD, PYDANTIC_1, PYDANTIC_2, NUMPY, SNAPSHOT = range(8)


def packed(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def extension(code: int, *body: Any) -> bytes:
    return packed(ormsgpack.Ext(code, packed(list(body))))


class Bomb:
    """An object whose pickle runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        import os

        return os.system, (self.command,)


def commands(canary: Path) -> dict[str, Foreign]:
    """Leaves that would make the canary file, if anybody did what they say."""
    command = f"touch {canary}"
    code = f"open({str(canary)!r}, 'w').close()"
    popen = {"args": ["touch", str(canary)]}
    inside = ormsgpack.Ext(SINGLE_ARG, packed(["os", "system", command]))
    message = {"content": "hi", "type": "human", "additional_kwargs": {"x": inside}}
    return {
        name: Foreign("msgpack", data)
        for name, data in {
            "os.system": extension(SINGLE_ARG, "os", "system", command),
            "posix.system": extension(SINGLE_ARG, "posix", "system", command),
            "builtins.eval": extension(SINGLE_ARG, "builtins", "eval", code),
            "builtins.exec": extension(SINGLE_ARG, "builtins", "exec", code),
            "positional": extension(POS_ARGS, "subprocess", "call", [["touch", str(canary)]]),
            "keywords": extension(KW_ARGS, "subprocess", "run", popen),
            "method": extension(METHOD, "subprocess", "os", command, "system"),
            "pydantic 1": extension(PYDANTIC_1, "subprocess", "run", popen),
            "pydantic 2": extension(PYDANTIC_2, "subprocess", "run", popen, "model_validate_json"),
            "in a snapshot": packed(ormsgpack.Ext(SNAPSHOT, packed([inside]))),
            "in a set": extension(SINGLE_ARG, "builtins", "set", [inside]),
            "in a message": extension(PYDANTIC_2, "langchain_core.messages.human", "HumanMessage", message, "x"),
            "in a dict": packed({"a": [{"b": inside}], 1: inside}),
            "as a key's value of a blocked class": extension(KW_ARGS, "no.such.module", "Thing", {"x": inside}),
        }.items()
    }


def others(canary: Path) -> dict[str, Foreign]:
    """Leaves in forms that the saver never writes."""
    command = f"touch {canary}"
    constructor = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [command], "method": [None]}
    first = {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": command}}
    return {
        "json lc 2": Foreign("json", json.dumps(constructor).encode()),
        "json lc 1": Foreign("json", json.dumps(first).encode()),
        "json inside": Foreign("json", json.dumps([{"a": constructor}]).encode()),
        "json exception": Foreign("json", json.dumps({"__exc_type__": "os.system", "__exc_args__": [command]}).encode()),
        "json reduce": Foreign("json", json.dumps({"py/reduce": [{"py/function": "os.system"}, [command]]}).encode()),
        "yaml": Foreign("yaml", f"!!python/object/apply:os.system ['{command}']".encode()),
        "pickle": Foreign("pickle", pickle.dumps(Bomb(command))),
        "pickle with another name": Foreign("msgpack+aes", pickle.dumps(Bomb(command))),
    }


NAMES = list(commands(Path("x")))
OTHERS = list(others(Path("x")))
PLACES = ["channel", "item", "value of a dict", "write", "answer", "metadata", "version"]


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def forge(vault: Vault, leaf: Foreign, where: str) -> None:
    """A thread of a real graph, whose newest checkpoint is then followed by one that holds the leaf."""
    chat(SavegameSaver(vault)).invoke(person("hi", 1), config())
    place = GraphPlace("t", "")
    thread = vault.thread(place.id, foreign=Foreign)
    head = thread.latest()
    assert head is not None
    external_id = str(uuid6())
    changes: dict[Any, Any] = {
        "channel": {("channel_values", "messages"): leaf},
        "item": {("channel_values", "messages", 0): leaf},
        "value of a dict": {("channel_values", "extra"): {"a": leaf}},
        "version": {("channel_versions", "messages"): leaf},
    }.get(where, {})
    thread.update(
        set={"id": external_id, "parent_id": head.external_id, **changes},
        id=place.checkpoint(external_id),
        external_id=external_id,
        metadata={**head.metadata, **({"evil": leaf} if where == "metadata" else {})},
    )
    if where in ("write", "answer"):
        channel = "messages" if where == "write" else RESUME
        SavegameSaver(vault).put_writes(place.config(external_id), [(channel, Path("to be replaced"))], "task")
        kind = _writes_kind(external_id)
        ((name, record),) = thread.records(kind).items()
        forged = replaced(record, leaf)
        assert forged != record
        thread.put_records({(kind, name): forged})


def replaced(value: Any, leaf: Foreign) -> Any:
    """A value with every leaf in it replaced."""
    if isinstance(value, list):
        return [replaced(one, leaf) for one in value]
    if isinstance(value, dict):
        return {key: replaced(one, leaf) for key, one in value.items()}
    return leaf if isinstance(value, Foreign) else value


def readers(vault: Vault) -> Iterator[Callable[[], Any]]:
    """Every way to read a thread."""
    saver = SavegameSaver(vault, allow=[Machine])
    graph = chat(saver)
    thread = vault.thread("t")
    newest = next(iter(thread.history()))
    for one in (saver, graph.checkpointer):
        assert isinstance(one, SavegameSaver)
        yield lambda one=one: one.get_tuple(config())
        yield lambda one=one: one.get_tuple(config(checkpoint_id=newest.external_id))
        yield lambda one=one: list(one.list(config()))
        yield lambda one=one: list(one.list(None, filter={"evil": 1}))
        yield lambda one=one: one.get_delta_channel_history(config=config(), channels=["messages", "extra"])
    yield lambda: graph.get_state(config())
    yield lambda: list(graph.get_state_history(config()))
    yield lambda: saver.copy_thread("t", "copy")
    yield lambda: saver.prune(["copy"])
    yield lambda: saver.delete_for_runs(["x"])
    yield lambda: graph.invoke(None, config())
    yield lambda: thread.state()
    yield lambda: [one.load().metadata for one in thread.history(branches=True)]
    yield lambda: str(thread.diff("head~1", "head"))
    yield lambda: thread.records("writes " + str(newest.external_id))
    yield lambda: vault.verify()
    yield lambda: vault.load(newest.id)


class Machine(BaseModel):
    name: str


# -- exploits --------------------------------------------------------------------------------------


def read_in_every_way(vault: Vault, canary: Path) -> None:
    for number, read in enumerate(readers(vault)):
        with contextlib.suppress(Exception):  # what comes back is not what a graph expects; it must only run nothing
            read()
        assert not canary.exists(), f"reader {number} ran it"


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_that_names_a_callable_runs_nothing(name: str, canary: Path) -> None:
    for where in PLACES:
        with savegame.open("memory:") as vault:
            forge(vault, commands(canary)[name], where)
            read_in_every_way(vault, canary)
            saver = SavegameSaver(vault)
            assert saver.get_tuple(config()) is not None
            assert len(list(saver.list(config()))) >= 4
            assert vault.thread("t").state() is not None
        assert not canary.exists()


@pytest.mark.parametrize("name", OTHERS)
def test_other_forms_are_refused(name: str, canary: Path) -> None:
    for where in PLACES:
        with savegame.open("memory:") as vault:
            forge(vault, others(canary)[name], where)
            read_in_every_way(vault, canary)
            with pytest.raises(CorruptionError, match="never writes"):
                SavegameSaver(vault).get_tuple(config())
            with pytest.raises(CorruptionError, match="never writes"):
                list(SavegameSaver(vault).list(config()))
            assert vault.thread("t").state() is not None
        assert not canary.exists()


def test_all_of_them_in_a_file(tmp_path: Path, canary: Path) -> None:
    leaves = {**commands(canary), **others(canary)}
    for number, leaf in enumerate(leaves.values()):
        with savegame.open(tmp_path / f"{number}.db") as vault:
            forge(vault, leaf, PLACES[number % len(PLACES)])
        with savegame.open(tmp_path / f"{number}.db") as vault:
            read_in_every_way(vault, canary)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "method"])
def test_the_exploits_are_real(name: str, canary: Path) -> None:
    """The control: LangGraph's serializer, as its own savers use it, does what the bytes say."""
    leaf = commands(canary)[name]
    with contextlib.suppress(Exception):
        JsonPlusSerializer(allowed_msgpack_modules=True).loads_typed((leaf.kind, leaf.data))
    assert canary.exists()


def test_nothing_is_imported() -> None:
    assert "this" not in sys.modules
    for code in (SINGLE_ARG, POS_ARGS, KW_ARGS, METHOD, PYDANTIC_1, PYDANTIC_2):
        leaf = Foreign("msgpack", extension(code, "this", "s", {"a": 1}, "method"))
        with savegame.open("memory:") as fresh:
            forge(fresh, leaf, "value of a dict")
            for read in readers(fresh):
                with contextlib.suppress(Exception):
                    read()
            found = SavegameSaver(fresh).get_tuple(config())
            assert found is not None
            assert found.checkpoint["channel_values"]["extra"] == {"a": {"a": 1}}
    assert "this" not in sys.modules


@pytest.mark.parametrize("where", ["write", "answer"])
@pytest.mark.parametrize("name", NAMES)
def test_writes_that_a_rewind_or_a_copy_sets_aside_run_nothing(name: str, where: str, canary: Path) -> None:
    """Nor when the line that they belong to is gone back to, forked, exported or shown again."""
    with savegame.open("memory:") as vault, savegame.open("memory:") as other:
        forge(vault, commands(canary)[name], where)
        thread = vault.thread("t")
        forged = thread.latest()
        assert forged is not None
        graph = chat(SavegameSaver(vault))
        with contextlib.suppress(Exception):
            graph.invoke(person("more", 2), config())
        assert thread.latest() != forged
        thread.rewind(forged.id)
        read_in_every_way(vault, canary)
        thread.rewind("head~1")
        SavegameSaver(vault).copy_thread("t", "a copy")
        thread.fork("a fork", at=forged.id)
        vault.copy_to(other)
        for one in (vault, other):
            for thread_id in ("a copy", "a fork", "t"):
                with contextlib.suppress(Exception):
                    chat(SavegameSaver(one)).invoke(None, config(thread_id))
                assert len(list(SavegameSaver(one).list(config(thread_id)))) >= 1
        assert not canary.exists()


def test_text_that_cannot_be_encoded_opens_no_other_format(saver: SavegameSaver) -> None:
    """A lone surrogate once made LangGraph's serializer write JSON, whose reader calls what it names."""
    constructor = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["true"], "text": "\ud800"}
    at = put(saver, config(), {"a": constructor, "b": ["\ud800", constructor]})
    saver.put_writes(at, [("a", constructor)], "task")
    found = SavegameSaver(saver.vault).get_tuple(at)
    assert found is not None
    values, writes = found.checkpoint["channel_values"], found.pending_writes
    assert writes is not None
    for one in (values["a"], values["b"][1], writes[0][2]):
        assert {key: one[key] for key in ("lc", "id", "args")} == {key: constructor[key] for key in ("lc", "id", "args")}


def test_damaged_bytes_are_corruption(vault: Vault) -> None:
    forge(vault, Foreign("msgpack", b"\xc1\xff"), "channel")
    with pytest.raises(CorruptionError):
        SavegameSaver(vault).get_tuple(config())
    assert vault.thread("t").state()["channel_values"]["messages"] == Foreign("msgpack", b"\xc1\xff")


@pytest.mark.parametrize(
    "value",
    [
        {"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "HumanMessage"], "kwargs": {"content": "x"}},
        {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["true"]},
        {"lc": 1, "type": "secret", "id": ["HOME"]},
        {"__type__": "os.system", "$ref": "x"},
        ["os", "system", "true"],
        {"kind": "pickle", "data": b"\x80"},
    ],
)
def test_data_that_looks_like_an_object_stays_data(value: Any, saver: SavegameSaver) -> None:
    at = put(saver, config(), {"a": value, "b": [value], "c": {"d": value}})
    found = SavegameSaver(saver.vault).get_tuple(at)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": value, "b": [value], "c": {"d": value}}


# -- classes ---------------------------------------------------------------------------------------


class Mood(enum.Enum):
    GOOD = "good"


@dataclasses.dataclass
class Point:
    x: int
    y: int


def put(saver: SavegameSaver, on: dict[str, Any], values: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    checkpoint = {
        **empty_checkpoint(),
        "id": str(uuid6()),
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
    }
    return dict(saver.put(on, checkpoint, {"source": "loop", "step": 1, **metadata}, dict.fromkeys(values, 1)))  # type: ignore[typeddict-item]


OBJECTS = {"model": Machine(name="m"), "data": Point(1, 2), "mood": Mood.GOOD, "all": [Machine(name="n"), Point(3, 4)]}
PLAIN = {"model": {"name": "m"}, "data": {"x": 1, "y": 2}, "mood": "good", "all": [{"name": "n"}, {"x": 3, "y": 4}]}


def test_unknown_classes_come_back_as_plain_data(saver: SavegameSaver) -> None:
    at = put(saver, config(), OBJECTS, why=Point(5, 6))
    saver.put_writes(at, [("data", Point(7, 8))], "task")
    for found in (saver.get_tuple(at), *saver.list(config())):
        assert found is not None
        assert found.checkpoint["channel_values"] == PLAIN
        assert not isinstance(found.checkpoint["channel_values"]["model"], Machine)
        assert found.metadata["why"] == {"x": 5, "y": 6}  # type: ignore[typeddict-item]
        assert found.pending_writes == [("task", "data", {"x": 7, "y": 8})]


def test_allowed_classes_come_back_as_objects(saver: SavegameSaver) -> None:
    at = put(saver, config(), OBJECTS)
    saver.put_writes(at, [("data", Point(7, 8))], "task")
    friendly = SavegameSaver(saver.vault, allow=[Machine, Point, Mood])
    for found in (friendly.get_tuple(at), *friendly.list(config())):
        assert found is not None
        assert found.checkpoint["channel_values"] == OBJECTS
        assert found.pending_writes == [("task", "data", Point(7, 8))]
    some = SavegameSaver(saver.vault, allow=[Point]).get_tuple(at)
    assert some is not None
    assert some.checkpoint["channel_values"] == {
        **PLAIN,
        "data": Point(1, 2),
        "all": [{"name": "n"}, Point(3, 4)],
    }


def test_safe_classes_come_back_without_asking(saver: SavegameSaver) -> None:
    values = {"message": HumanMessage("hi", id="1"), "set": {1, 2}, "path": Path("x/y")}
    found = saver.get_tuple(put(saver, config(), values))
    assert found is not None
    assert found.checkpoint["channel_values"] == values


def test_the_types_of_a_graphs_schema_come_back_to_that_graph_only(saver: SavegameSaver) -> None:
    import scripted

    graph = pydantic_state(saver)
    graph.invoke(scripted.Machine(name="car"), config())
    assert isinstance(graph.get_state(config()).values["main"], scripted.Part)
    found = saver.get_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"]["main"] == {"name": "engine", "size": 1.0}


# -- names -----------------------------------------------------------------------------------------

ODD = [
    "t",
    "../../x",
    "/etc/passwd",
    "a/b",
    "a",
    "b",
    "a|b",
    "a:b",
    "|",
    "␟",
    "␛",
    "␛0",
    "␛1",
    "␛1x",
    "a␟b",
    "a␛1b",
    "a␛0b",
    "␟b",
    "b␟",
    "🦜🔗",
    "e\u0301",
    "\u00e9",
    "' OR 1=1 --",
    "%",
    "_",
    "*",
    " ",
    "\n",
    "T",
    "t ",
    "\u202e",
]


def test_odd_thread_ids_and_namespaces_do_not_mix(saver: SavegameSaver) -> None:
    places = [(thread_id, namespace) for thread_id in ODD for namespace in ("", *ODD[::4], "a␟b", "␟", "␛1")]
    places = list(dict.fromkeys(places))
    for number, (thread_id, namespace) in enumerate(places):
        at = put(saver, config(thread_id, checkpoint_ns=namespace), {"n": number})
        saver.put_writes(at, [("n", number)], f"task {number}")
    fresh = SavegameSaver(saver.vault)
    for number, (thread_id, namespace) in enumerate(places):
        where = config(thread_id, checkpoint_ns=namespace)
        (listed,) = fresh.list(where)
        found = fresh.get_tuple(where)
        assert found == listed
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": number}
        assert found.pending_writes == [(f"task {number}", "n", number)]
        assert found.config["configurable"]["thread_id"] == thread_id
        assert found.config["configurable"]["checkpoint_ns"] == namespace
    for thread_id in ODD:
        mine = sorted(number for number, place in enumerate(places) if place[0] == thread_id)
        assert sorted(found.checkpoint["channel_values"]["n"] for found in fresh.list(config(thread_id))) == mine
    assert len(list(fresh.list(None))) == len(places)
    fresh.delete_thread("a")
    left = {number for number, place in enumerate(places) if place[0] != "a"}
    assert {found.checkpoint["channel_values"]["n"] for found in fresh.list(None)} == left


names = st.text(st.sampled_from("ab01␟␛|/:.🦜"), max_size=6)


@given(names, names, names, names)
def test_places_have_ids_of_their_own(thread_id: str, namespace: str, other_id: str, other_namespace: str) -> None:
    place, other = GraphPlace(thread_id, namespace), GraphPlace(other_id, other_namespace)
    assert GraphPlace.from_id(place.id) == place
    assert (place.id == other.id) == (place == other)
    assert (place.checkpoint("x") == other.checkpoint("x")) == (place == other)


@pytest.mark.parametrize("bad", ["", "\0", "a\0b", "\ud800", "x" * 600])
def test_names_that_no_store_can_keep_are_refused(bad: str, saver: SavegameSaver) -> None:
    for use in (
        lambda: put(saver, config(bad), {"n": 1}),
        lambda: saver.get_tuple(config(bad)),
        lambda: list(saver.list(config(bad))),
        lambda: saver.delete_thread(bad),
    ):
        with pytest.raises(InvalidInputError):
            use()
    for missing in ({}, {"configurable": {}}):
        with pytest.raises(InvalidInputError, match="thread_id"):
            saver.get_tuple(missing)  # type: ignore[arg-type]


# -- filters ---------------------------------------------------------------------------------------

KEYS = ["x') OR 1=1 --", "x", "x.y", "$", "$.x", "'", '"', ";drop table frames;", "%", "a b", "é", ""]


@pytest.mark.parametrize("key", KEYS)
def test_filter_keys_are_only_keys(key: str, saver: SavegameSaver) -> None:
    for number, other in enumerate(KEYS):
        put(saver, config(f"thread {number}"), {"n": number}, **{other: "here"})
    put(saver, config("none"), {"n": -1})
    for where in (None, config(f"thread {KEYS.index(key)}")):
        found = list(saver.list(where, filter={key: "here"}))
        assert [one.checkpoint["channel_values"]["n"] for one in found] == [KEYS.index(key)]
        assert list(saver.list(where, filter={key: "' OR '1'='1"})) == []
        assert list(saver.list(where, filter={key: "here", "more": 1})) == []
        assert list(saver.list(where, filter={f"{key} ": "here"})) == []


def test_filter_values_are_compared_as_they_are(saver: SavegameSaver) -> None:
    values: list[Any] = [1, "1", {"a": 1}, [1, 2], "%", "x' --", True, None]
    for number, value in enumerate(values):
        put(saver, config(f"thread {number}"), {"n": number}, key=value)
    for value in ("1", {"a": 1}, [1, 2], "%", "x' --"):
        (found,) = saver.list(None, filter={"key": value})
        assert found.metadata["key"] == value  # type: ignore[typeddict-item]


# -- threads of others -----------------------------------------------------------------------------


def test_threads_that_are_not_langgraphs_are_passed_over(saver: SavegameSaver) -> None:
    saver.vault.thread("plain").save({"a": 1})
    saver.vault.thread("of another framework").save({"a": 1}, external_id="1")
    put(saver, config("ours"), {"n": 1})
    for other in ("plain", "of another framework"):
        assert saver.get_tuple(config(other)) is None
        assert list(saver.list(config(other))) == []
    assert [found.config["configurable"]["thread_id"] for found in saver.list(None)] == ["ours"]


def test_threads_that_are_not_langgraphs_are_neither_pruned_nor_copied(saver: SavegameSaver) -> None:
    others = saver.vault.thread("plain"), saver.vault.thread("of another framework")
    for number in range(3):
        others[0].save({"messages": [number]})
        others[1].save({"messages": [number]}, external_id=str(number))
    put(saver, config("ours"), {"n": 1})
    saver.vault.thread("ours").save({"a": 1})
    saver.prune([thread.id for thread in (*others, saver.vault.thread("ours"))])
    for thread in others:
        saver.copy_thread(thread.id, "copy")
    assert [(info.id, info.checkpoints) for info in saver.vault.threads()] == [
        ("of another framework", 3),
        ("ours", 2),
        ("plain", 3),
    ]


def test_only_langgraphs_checkpoints_are_deleted_for_runs(saver: SavegameSaver) -> None:
    """Other people's checkpoints may have a run_id in their metadata too."""
    saver.vault.thread("plain").save({"a": 1}, metadata={"run_id": "r"})
    saver.vault.thread("of another framework").save({"a": 1}, external_id="1", metadata={"run_id": "r"})
    put(saver, config("ours"), {"n": 1}, run_id="r")
    saver.delete_for_runs(["r"])
    assert [info.id for info in saver.vault.threads()] == ["of another framework", "plain"]
