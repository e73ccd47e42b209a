"""LangGraph's checkpointers as contestants: the saver alone, and a chat of many turns through a real graph.

`saver_savegame` is SavegameSaver, `saver_sqlite` the stock SqliteSaver, `saver_delta` the stock one under a DeltaChannel,
LangGraph's own answer to growth. All flush every write to the disk.
"""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages

import savegame
from bench import corpus
from bench.measure import Call, disk_bytes, settle, summarise, summary, timed
from bench.sizes import Sizes
from savegame.adapters.langgraph import SavegameSaver

CONFIG: Any = {"configurable": {"thread_id": "main", "checkpoint_ns": ""}}
LAST = 30
"""Puts and turns at the end that count."""


class Chat(TypedDict):
    """The state of the usual chat."""

    messages: Annotated[list[Any], add_messages]


class DeltaChat(TypedDict):
    """The same with a channel that stores what was written instead of what it holds."""

    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]


@contextmanager
def opened(name: str, path: Path) -> Iterator[Any]:
    """A contestant's saver on a file of its own; LangGraph's in memory keeps nothing."""
    if name == "saver_memory":
        yield InMemorySaver()
        return
    if name == "saver_savegame":
        with savegame.open(path) as vault:
            yield SavegameSaver(vault)
        return
    db = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(db)
    saver.setup()
    db.execute("PRAGMA synchronous = FULL")
    assert [db.execute(f"PRAGMA {setting}").fetchone()[0] for setting in ("journal_mode", "synchronous")] == ["wal", 2]
    try:
        yield saver
    finally:
        db.close()


def alone(name: str, convert: Callable[[corpus.Pair], list[Any]], directory: Path, sizes: Sizes) -> dict[str, Any]:
    """put() of the whole state at each step; the time of the last ones, get_tuple, list, and the size."""
    path = directory / "alone.db"
    directory.mkdir(parents=True, exist_ok=True)
    with opened(name, path) as saver:
        samples = timed(_puts(saver, [convert(pair) for pair in corpus.steps(1, sizes.grow)]))
        assert len(saver.get_tuple(CONFIG).checkpoint["channel_values"]["messages"]) == 2 * sizes.grow
        get = summarise(partial(saver.get_tuple, CONFIG) for _ in range(5))
    return {"put": summary(samples[-LAST:]), "get_tuple": get, "disk_bytes": disk_bytes(path)}


def _puts(saver: Any, steps: list[list[Any]]) -> Iterator[Call]:
    config, messages = CONFIG, []
    version = None
    for number, new in enumerate(steps, 1):
        messages = messages + new  # a new list at each step, as a reducer makes it
        version = saver.get_next_version(version, None)
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=number))
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"messages": messages}, {"messages": version}
        metadata: Any = {"source": "loop", "step": number, "parents": {}}
        yield partial(saver.put, config, checkpoint, metadata, {"messages": version})
        config = {"configurable": {**CONFIG["configurable"], "checkpoint_id": checkpoint["id"]}}


def chat(name: str, directory: Path, sizes: Sizes) -> dict[str, Any]:
    """A graph of one node, a message in and one out at each turn; the last turns, the history, and the size."""
    path = directory / "chat.db"
    directory.mkdir(parents=True, exist_ok=True)
    questions = [HumanMessage(corpus.text(Random(f"{corpus.SEED}:question:{turn}"), 1000)) for turn in range(sizes.turns)]
    config: Any = {"configurable": {"thread_id": "main"}}
    with opened(name, path) as saver:
        graph = _answering(name, saver)
        samples = timed(partial(graph.invoke, {"messages": [question]}, config) for question in questions)
        assert len(graph.get_state(config).values["messages"]) == 2 * sizes.turns
        settle()
        history = summarise(partial(_history, graph, config) for _ in range(3))
    return {"turn": summary(samples[-LAST:]), "history": history, "disk_bytes": disk_bytes(path)}


def short_chats(name: str, directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Chats of few turns, each from its beginning: the time of a turn, averaged over its chat."""
    directory.mkdir(parents=True, exist_ok=True)
    question = HumanMessage(corpus.text(Random(f"{corpus.SEED}:short"), 1000))
    found: dict[str, Any] = {}
    with opened(name, directory / "short.db") as saver:
        graph = _answering(name, saver)

        def chats(turns: int, count: int) -> Iterator[Call]:
            for number in range(count):
                config: Any = {"configurable": {"thread_id": f"{turns} {number}"}}
                yield partial(_talk, graph, config, question, turns)

        for what, turns, count in (("short", sizes.short, sizes.shorts), ("middle", sizes.middle, sizes.middles)):
            settle()
            found[what] = summary([(wall / turns, cpu / turns) for wall, cpu in timed(chats(turns, count + 1))[1:]])
    return found


def _talk(graph: Any, config: Any, question: HumanMessage, turns: int) -> None:
    for _ in range(turns):
        graph.invoke({"messages": [question.model_copy()]}, config)


def _answering(name: str, saver: Any) -> Any:
    """A graph of one node, which answers with a thousand characters."""
    words = Random(f"{corpus.SEED}:chat")
    builder: Any = StateGraph(DeltaChat if name == "saver_delta" else Chat)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(corpus.text(words, 1000))]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def _history(graph: Any, config: Any) -> float:
    return statistics.fmean(len(found.values["messages"]) for found in graph.get_state_history(config, limit=50))


def _messages(pair: corpus.Pair) -> list[Any]:
    asked, answer = pair
    calls = [{"id": call["id"], "name": call["name"], "args": call["arguments"]} for call in asked["tool_calls"]]
    return [AIMessage(asked["content"], tool_calls=calls), ToolMessage(answer["content"], tool_call_id=answer["tool_call_id"])]


def tasks(name: str) -> dict[str, Callable[[Path, Sizes], dict[str, Any]]]:
    """What a contestant does."""
    return {
        "saver_dicts": partial(alone, name, list),
        "saver_messages": partial(alone, name, _messages),
        "chat": partial(chat, name),
        "short_chats": partial(short_chats, name),
    }
