"""Random lives of a thread, with our saver and with LangGraph's own: both must always tell the same."""

from __future__ import annotations

import datetime as dt
import decimal
import pathlib
import uuid
from collections import deque
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Interrupt, Overwrite, Send
from scripted import config

import savegame
from savegame.adapters.langgraph import SavegameSaver

texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["\ud800", "a\udfffb", "\0", "é", "🦜", "__start__", "lc"]),
    st.sampled_from([300, 70_000]).map(lambda length: "x" * length),
)
numbers = st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(-3, 3), st.floats(allow_nan=False))
simple = st.one_of(st.none(), st.booleans(), numbers, texts, st.binary(max_size=5))
objects = st.one_of(
    st.builds(HumanMessage, texts.map(lambda text: text.encode(errors="replace").decode()), id=st.sampled_from("abc")),
    st.builds(
        AIMessage,
        st.sampled_from(["hi", "", "ö"]),
        id=st.sampled_from("abc"),
        additional_kwargs=st.dictionaries(st.sampled_from("xy"), simple, max_size=2),
        tool_calls=st.lists(
            st.fixed_dictionaries({"name": st.just("f"), "args": st.fixed_dictionaries({"x": numbers}), "id": st.just("1")}),
            max_size=1,
        ),
    ),
    st.builds(ToolMessage, st.just("said"), tool_call_id=st.just("1"), artifact=simple),
    st.builds(SystemMessage, st.sampled_from(["be good", "be quick"])),
    st.sampled_from("abc").map(lambda name: RemoveMessage(id=name)),
    simple.map(lambda value: Send("node", value)),
    simple.map(lambda value: Interrupt(value, id="i")),
    simple.map(Overwrite),
    st.datetimes(timezones=st.sampled_from([dt.UTC, None])),
    st.dates(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sets(st.integers(0, 5)),
    st.frozensets(texts.filter(str.isascii), max_size=3),
    st.lists(st.integers(0, 5), max_size=3).map(deque),
    st.sampled_from([pathlib.Path("a/b"), uuid.UUID(int=1), decimal.Decimal("1.10")]),
)
names = texts.filter(lambda text: not any("\ud800" <= letter <= "\udfff" for letter in text))  # as keys these are refused
keys = st.one_of(names, st.integers(-3, 3), st.booleans(), st.none())
values = st.recursive(
    st.one_of(simple, objects),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(names, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=12,
)
channels = st.sampled_from(["messages", "data", "__start__", "branch:to:x", "é"])
tasks = st.sampled_from(["task 1", "task 2", "00000000-0000-0000-0000-000000000000"])
special = st.sampled_from(["__error__", "__interrupt__", "__resume__", "__scheduled__"])
namespaces = st.sampled_from(["", "inner", "inner:1|more"])
threads = st.sampled_from(["t", "u"])


def told(found: CheckpointTuple | None) -> Any:
    """A tuple in a form in which also types count."""
    if found is None:
        return None
    checkpoint = {key: value for key, value in found.checkpoint.items() if key != "channel_values"}
    return (
        found.config["configurable"],
        typed(checkpoint),
        {channel: typed(value) for channel, value in sorted(found.checkpoint["channel_values"].items())},
        typed(dict(found.metadata)),
        None if found.parent_config is None else found.parent_config["configurable"],
        sorted((task, channel, repr(typed(value))) for task, channel, value in found.pending_writes or ()),
    )


def typed(value: Any) -> Any:
    if isinstance(value, dict):
        return [dict, [(typed(key), typed(one)) for key, one in value.items()]]
    if isinstance(value, list):
        return [list, [typed(one) for one in value]]
    if isinstance(value, set | frozenset):
        return [type(value), sorted(map(repr, value))]
    return [type(value), repr(value)]


class Lives(RuleBasedStateMachine):
    """Puts, writes, branches, prunes and deletions, in two savers."""

    @initialize(url=st.just("memory:"))
    def begin(self, url: str) -> None:
        self.vault = savegame.open(url)
        self.ours = SavegameSaver(self.vault)
        self.theirs = InMemorySaver()
        self.heads: dict[tuple[str, str], dict[str, Any]] = {}
        self.known: list[dict[str, Any]] = []
        self.content: dict[str, tuple[dict[str, Any], dict[str, int]]] = {}
        self.version = 0

    def teardown(self) -> None:
        if hasattr(self, "vault"):
            assert self.vault.verify().ok
            self.vault.close()

    def _put(self, on: dict[str, Any], change: dict[str, Any], gone: set[str], grow: list[Any]) -> None:
        parent = on["configurable"].get("checkpoint_id")
        before, versions = self.content.get(parent or "", ({}, {}))
        value = before.get("messages")
        if grow and isinstance(value, list):
            change = {**change, "messages": value + grow}
        self.version += 1
        kept = {channel: one for channel, one in {**before, **change}.items() if channel not in gone}
        new = dict.fromkeys({*change, *(gone & set(before))}, self.version)
        checkpoint: Checkpoint = {
            **empty_checkpoint(),
            "id": str(uuid6()),
            "channel_values": kept,
            "channel_versions": {**versions, **new},
            "versions_seen": {"node": {**versions}},
        }
        metadata: Any = {"source": "loop", "step": self.version, "run_id": f"run {self.version % 3}"}
        expected = self.theirs.put(on, checkpoint, metadata, new)  # type: ignore[arg-type]
        assert self.ours.put(on, checkpoint, metadata, new) == expected  # type: ignore[arg-type]
        names = expected["configurable"]
        self.content[checkpoint["id"]] = (kept, dict(checkpoint["channel_versions"]))
        self.heads[names["thread_id"], names["checkpoint_ns"]] = dict(expected)
        self.known.append(dict(expected))

    @rule(
        thread=threads,
        namespace=namespaces,
        change=st.dictionaries(channels, values, max_size=3),
        gone=st.sets(channels, max_size=1),
        grow=st.lists(st.one_of(simple, objects), max_size=3),
    )
    def put(self, thread: str, namespace: str, change: dict[str, Any], gone: set[str], grow: list[Any]) -> None:
        head = self.heads.get((thread, namespace))
        self._put(head or config(thread, checkpoint_ns=namespace), change, gone, grow)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), change=st.dictionaries(channels, values, max_size=2), grow=st.lists(simple, max_size=2))
    def travel(self, data: st.DataObject, change: dict[str, Any], grow: list[Any]) -> None:
        """Go back to some checkpoint, by its id, and go on from there."""
        at = data.draw(st.sampled_from(self.known))
        assert told(self.ours.get_tuple(at)) == told(self.theirs.get_tuple(at))  # type: ignore[arg-type]
        self._put(at, change, set(), grow)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), task=tasks, plain=st.lists(st.tuples(channels, values), max_size=3), odd=st.booleans())
    def write(self, data: st.DataObject, task: str, plain: list[tuple[str, Any]], odd: bool) -> None:
        at = data.draw(st.sampled_from(self.known))
        writes = [(data.draw(special), "special")] if odd else plain
        for saver in (self.theirs, self.ours):
            saver.put_writes(at, writes, task)  # type: ignore[arg-type]

    @rule()
    def start_again(self) -> None:
        """A saver that remembers nothing."""
        self.ours = SavegameSaver(self.vault)

    @rule(thread=threads)
    def delete(self, thread: str) -> None:
        for saver in (self.theirs, self.ours):
            saver.delete_thread(thread)
        self.known = [one for one in self.known if one["configurable"]["thread_id"] != thread]
        self.heads = {place: head for place, head in self.heads.items() if place[0] != thread}

    @rule(thread=threads, limit=st.one_of(st.none(), st.integers(0, 3)), run=st.integers(0, 3), data=st.data())
    def search(self, thread: str, limit: int | None, run: int, data: st.DataObject) -> None:
        before = data.draw(st.sampled_from([None, *self.known]))
        for namespace in ("", "inner"):
            where = config(thread, checkpoint_ns=namespace)
            how: Any = {"limit": limit, "before": before, "filter": {"run_id": f"run {run}"} if run < 3 else None}
            assert [told(one) for one in self.ours.list(where, **how)] == [told(one) for one in self.theirs.list(where, **how)]  # type: ignore[arg-type]

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "vault"):
            return
        for at in ({}, *(head["configurable"] for head in self.heads.values())):
            for where in (at, {key: value for key, value in at.items() if key != "checkpoint_id"}):
                if where:
                    asked: Any = {"configurable": where}
                    assert told(self.ours.get_tuple(asked)) == told(self.theirs.get_tuple(asked))
        ours = sorted((told(one) for one in self.ours.list(None)), key=repr)
        assert ours == sorted((told(one) for one in self.theirs.list(None)), key=repr)


TestLives = Lives.TestCase
TestLives.settings = hypothesis.settings(
    max_examples=60,
    stateful_step_count=15,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
