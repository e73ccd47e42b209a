"""What every store in this directory holds, and what a reader sees of it: the same through today's code as through any later.

`write` uses every verb that leaves something of its own kind on disk. `facts` is what a user can read back, without what
later versions may count or show in another way. Nothing here may change for a format that is written already; a new format
gets a story of its own if it has something new to tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import pathlib
import random
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

import savegame
from savegame import AgentState, Conversation, Message, Paused, Retention, Toolbox, Unknown
from savegame.adapters.langgraph import SavegameSaver


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Plan:
    title: str
    steps: list[str]
    colour: Colour = Colour.RED


EVERY_TYPE: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63, -(2**63), 2**64, 10**40],
    "floats": [0.0, -0.0, 1.5, float("inf")],
    "text": ["", "é", "🎲" * 40, "x" * 300],
    "bytes": [b"", b"\x00\xff", b"b" * 9000],
    "tuple": (1, ("two", [3])),
    "sets": [{1, 2, 3}, frozenset(("a", "b")), set()],
    "times": [
        dt.datetime(2026, 11, 15, 9, 30, 1, 5),
        dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
        dt.date(2026, 11, 15),
        dt.time(9, 30, tzinfo=dt.timezone(dt.timedelta(hours=-3))),
        dt.timedelta(days=-1, microseconds=7),
    ],
    "decimal": decimal.Decimal("1.10"),
    "uuid": uuid.UUID(int=5),
    "path": pathlib.PurePosixPath("/x"),
    "keys": {1: "one", (2, "b"): "tuple", None: "none", 1.5: "float", b"k": "bytes"},
    "looks like a tag": {"$tuple": [1]},
    "objects": [Plan("a", ["b"]), Colour.RED],
}


def write(open_vault: Callable[..., savegame.Vault]) -> None:
    """Fill a new store."""
    with open_vault() as vault:
        vault.register(Plan)
        vault.register(Colour)
        _types(vault.thread("types"))
        _edits(vault.thread("edits", agent="helper"))
        _branches(vault.thread("../branches 🎲"))
        _pruned(vault.thread("pruned"))
        _agents(vault)
        _run(vault)
        _graph(vault)
        vault.thread("edits").attach_subject("person-7")
    with open_vault(retention=Retention(max_checkpoints=5)) as vault:
        for number in range(12):
            vault.thread("retained").update(append={"items": [number]}, tokens_used=10)
    with open_vault(namespace="other") as vault:
        vault.thread("types").save({"namespace": "other"})


def _types(thread: savegame.Thread) -> None:
    thread.save(EVERY_TYPE, label="every type", tags=["a", "ü"])
    thread.update(set={("keys", (2, "b")): "changed", ("objects", 0, "title"): "changed too", ("keys", 7): "new"})
    thread.update(append={("objects", 0, "steps"): ["c"]}, delete=[("keys", None)])
    thread.save(None)


def _edits(thread: savegame.Thread) -> None:
    chance = random.Random(5)
    words = [f"wörd{number}" for number in range(200)]
    state: dict[str, Any] = {"messages": [], "text": " ".join(words), "picture": chance.randbytes(9000).hex(), "a": 1, "b": 2}
    for number in range(40):
        state["messages"] += [{"role": "user", "content": " ".join(chance.choices(words, k=20)), "n": number}]
        if number % 10 == 3:
            state["text"] = state["text"].replace(words[number], "chängéd")
        if number % 20 == 7:
            state["messages"][2 : len(state["messages"]) // 2] = [{"role": "system", "content": "a summary"}]
        if number % 20 == 9:
            state["messages"][1]["content"] += " more"
        if number % 30 == 11:
            state = dict(sorted(state.items(), reverse=number == 11))
        state["scratch"] = chance.randbytes(400)
        thread.save(state, iteration=number, tokens_used=5, cost=0.5, metadata={"when": dt.date(2026, 1, 1)})


def _branches(thread: savegame.Thread) -> None:
    for number in range(6):
        thread.save({"n": number, "large": "x" * 9000}, id=f"chosen-{number}")
    thread.rewind(3)
    thread.save({"n": "branch", "large": "x" * 9000})
    thread.save({"n": "from the first"}, parent=1)
    thread.fork("forked", at="chosen-4").update(set={"n": "forked"})


def _pruned(thread: savegame.Thread) -> None:
    for number in range(20):
        thread.save({"items": list(range(number)), "text": "t" * 9000 + str(number)}, label="kept" if number == 4 else None)
    thread.prune(keep=3)


def _agents(vault: savegame.Vault) -> None:
    vault.save_agent(AgentState("helper", "Helper", "scripted", system_prompt="Be kind."))
    for name in ("talk-1", "talk-2"):
        vault.save_conversation(Conversation("helper", id=name, messages=[Message.user(f"hello from {name}")]))
    vault.checkpoint_agent("helper", "before")
    vault.add_message("talk-1", Message.assistant("hello back"))
    vault.restore_agent(vault.checkpoint_agent("helper", "after").id)


def _run(vault: savegame.Vault) -> None:
    """A run with a call of each outcome: done, failed, refused by a person, unknown, and one that waits."""
    tools = Toolbox()

    @tools.tool(read_only=True)
    def find(call: Any, order: int) -> Any:
        return {"order": order}

    @tools.tool(idempotent=True)
    def fail(call: Any) -> Any:
        raise ValueError("no such order")

    @tools.tool(ask=True)
    def wire(call: Any, cents: int) -> Any:
        return f"sent {cents}"

    @tools.tool
    def mail(call: Any) -> Any:
        raise KeyboardInterrupt

    def calling(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        made = [{"id": f"c{number}", "name": name, "arguments": given} for number, (name, given) in enumerate(calls)]
        return {"role": "assistant", "content": "", "tool_calls": made}

    replies = [
        calling(("find", {"order": 7}), ("fail", {})),
        calling(("wire", {"cents": 5})),
        calling(("wire", {"cents": 9})),
        "Done.",
    ]

    def play(thread_id: str, *said: Any) -> None:
        with vault.run(thread_id, tools=tools, agent="helper") as run:
            run.user("Please.", key="webhook-1")
            run.step("look", lambda: {"looked": True})
            while not run.done:
                run.tools()
                run.model(lambda messages: said[sum(message["role"] == "assistant" for message in messages)])

    with contextlib.suppress(Paused):
        play("run", *replies)
    vault.answer("run", next(entry for entry in vault.calls("run") if entry.name == "wire"), True)
    with contextlib.suppress(Paused):
        play("run", *replies)
    vault.thread("run").fork("run-forked")
    with contextlib.suppress(KeyboardInterrupt):
        play("run-unknown", calling(("mail", {})), "Done.")
    with contextlib.suppress(Unknown):
        play("run-unknown", calling(("mail", {})), "Done.")


def _graph(vault: savegame.Vault) -> None:
    """A LangGraph thread with a subgraph that has asked a person."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("It is on its way.", id="a1")]}

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("May I?"), id="a2")]}

    inner = StateGraph(MessagesState)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    outer = StateGraph(MessagesState)
    outer.add_node("answer", answer)
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "answer")
    outer.add_edge("answer", "sub")
    outer.add_edge("sub", END)
    graph = outer.compile(checkpointer=SavegameSaver(vault))
    graph.invoke({"messages": [HumanMessage("Where is my parcel?", id="h1")]}, CONFIG)


CONFIG: Any = {"configurable": {"thread_id": "graph"}}


# -- reading ---------------------------------------------------------------------------------------


def described(value: Any) -> Any:
    """A value as JSON in which no two types look the same; objects as dicts of their fields."""
    if isinstance(value, dict):
        return ["dict", [[described(key), described(item)] for key, item in value.items()]]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, sorted(map(repr, value))]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [described(item) for item in value]]
    return [type(value).__name__, value.hex() if isinstance(value, bytes) else repr(value)]


def summary(value: Any) -> str:
    """A few digits that stand for a value and its types."""
    return hashlib.sha256(repr(described(value)).encode()).hexdigest()[:16]


def facts(open_vault: Callable[..., savegame.Vault]) -> dict[str, Any]:
    """What can be read back, as JSON."""
    found: dict[str, Any] = {}
    for namespace in ("default", "other"):
        with open_vault(namespace=namespace) as vault:
            found[namespace] = {info.id: _thread(vault.thread(info.id)) for info in vault.threads(limit=1000)}
    with open_vault() as vault:
        names = ("run", "run-unknown", "run-forked")
        found["calls"] = {name: [[entry.name, str(entry.status), entry.key] for entry in vault.calls(name)] for name in names}
        talks = (vault.load_conversation(info.id) for info in vault.conversations("helper"))
        found["talks"] = {
            talk.id: summary([message.content for message in talk.messages]) for talk in talks if talk is not None
        }
        found["agents"] = [info.agent_id for info in vault.agents()]
        found["moments"] = [checkpoint.label for checkpoint in vault.agent_checkpoints("helper")]
        found["subject"] = list(vault.erase("person-7", dry_run=True).threads)
        kept = SavegameSaver(vault).get_tuple(CONFIG)
        assert kept is not None
        found["graph"] = [message.content for message in kept.checkpoint["channel_values"]["messages"]]
    return found


def _thread(thread: savegame.Thread) -> dict[str, Any]:
    history = thread.history(branches=True, newest_first=False)
    return {"head": thread.load().id, "checkpoints": [_checkpoint(checkpoint) for checkpoint in history]}


def _checkpoint(checkpoint: savegame.Checkpoint) -> list[Any]:
    about = [checkpoint.step, checkpoint.label, list(checkpoint.tags), str(checkpoint.kind), str(checkpoint.status)]
    spent = [checkpoint.tokens_used, checkpoint.cost, checkpoint.iteration, checkpoint.agent_id]
    at = checkpoint.created_at.isoformat()
    return [checkpoint.id, checkpoint.parent_id, checkpoint.digest, at, *about, *spent, summary(checkpoint.load().state)]
