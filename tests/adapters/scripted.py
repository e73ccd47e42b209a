"""Graphs for the tests: their models are scripted functions that say the same whenever they are asked the same."""

from __future__ import annotations

import dataclasses
import enum
import operator
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, StateSnapshot, interrupt
from pydantic import BaseModel, Field

Graph = CompiledStateGraph[Any, Any, Any, Any]


def config(thread_id: str = "t", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id, **more}}


# -- what two savers must agree on -----------------------------------------------------------------


def shown(snapshot: StateSnapshot, numbers: dict[str, int]) -> dict[str, Any]:
    """A snapshot without what differs from run to run: ids become numbers in order of appearance, times go."""

    def number(found: Any) -> Any:
        if found is None:
            return None
        names = found["configurable"]
        place = names.get("checkpoint_ns", "").split(":")[0]
        return place, numbers.setdefault(names.get("checkpoint_id", "none"), len(numbers))

    metadata = dict(snapshot.metadata or {})
    metadata["parents"] = sorted(name.split(":")[0] for name in metadata.get("parents", {}))
    return {
        "values": snapshot.values,
        "next": snapshot.next,
        "metadata": metadata,
        "is": number(snapshot.config),
        "parent": number(snapshot.parent_config),
        "interrupts": [one.value for one in snapshot.interrupts],
        "tasks": [
            (task.name, task.error, [one.value for one in task.interrupts], task.result, inner(task.state, numbers))
            for task in snapshot.tasks
        ],
    }


def inner(state: Any, numbers: dict[str, int]) -> Any:
    """What a task has of a subgraph: its state, or only that there is one."""
    if isinstance(state, StateSnapshot):
        return shown(state, numbers)
    return None if state is None else "a subgraph"


def told(graph: Graph, thread_id: str = "t", **more: Any) -> list[dict[str, Any]]:
    """The state and the whole history of a thread, in a form that can be compared."""
    numbers: dict[str, int] = {}
    history = list(graph.get_state_history(config(thread_id, **more)))
    for snapshot in reversed(history):
        shown(snapshot, numbers)
    return [
        shown(graph.get_state(config(thread_id, **more), subgraphs=True), numbers),
        *(shown(snapshot, numbers) for snapshot in history),
    ]


def kept(saver: BaseCheckpointSaver[Any], thread_id: str = "t", *, but: Sequence[str] = ()) -> list[Any]:
    """Every checkpoint that a saver lists for a thread, with its pending writes but without ids; `but` these channels."""
    return [
        (
            found.config["configurable"]["checkpoint_ns"].split(":")[0],
            found.metadata["step"],
            found.checkpoint["channel_values"].keys() - set(but),
            len(found.checkpoint["channel_versions"]),
            {name: sorted(seen) for name, seen in found.checkpoint["versions_seen"].items()},
            sorted(channel for _, channel, _ in found.pending_writes or ()),
            found.parent_config is None,
        )
        for found in sorted(
            saver.list(config(thread_id)), key=lambda one: (one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"])
        )
    ]


# -- a tool loop -----------------------------------------------------------------------------------


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


@tool
def add(a: int, b: int) -> dict[str, Any]:
    """The sum of two numbers."""
    return {"sum": a + b, "of": [a, b]}


def scripted_model(state: MessagesState) -> dict[str, Any]:
    """Asks for the tools that the person names, then answers with what they said."""
    messages = state["messages"]
    last = messages[-1]
    if isinstance(last, HumanMessage):
        calls = []
        if "weather" in last.text:
            calls += [{"name": "weather", "args": {"city": city}, "id": f"{last.id} {city}"} for city in ("Ölüdeniz", "Bonn")]
        if "add" in last.text:
            calls += [{"name": "add", "args": {"a": 2, "b": 3}, "id": f"{last.id} add"}]
        answer = AIMessage("let me see 🔧" if calls else "hello", id=f"ai {len(messages)}", tool_calls=calls)
    else:
        answer = AIMessage(
            f"it is: {last.text}",
            id=f"ai {len(messages)}",
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            response_metadata={"model": "scripted"},
        )
    return {"messages": [answer]}


def named(answer: dict[str, Any]) -> dict[str, Any]:
    """What tools said, with ids that are the same in every run."""
    for message in answer["messages"]:
        message.id = f"answer to {message.tool_call_id}"
    return answer


def tool_loop(saver: BaseCheckpointSaver[Any]) -> Graph:
    builder = StateGraph(MessagesState)
    builder.add_node("model", scripted_model)
    builder.add_node("tools", ToolNode([weather, add]) | named)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def chat(saver: BaseCheckpointSaver[Any], state: type[Any] = MessagesState) -> Graph:
    builder = StateGraph(state)
    builder.add_node("model", scripted_model)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


def person(text: str, number: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=f"human {number}")]}


# -- an interrupt ----------------------------------------------------------------------------------


class Trip(TypedDict):
    log: Annotated[list[str], operator.add]
    city: str


def ask(state: Trip) -> dict[str, Any]:
    where = interrupt({"question": "where to?", "so far": state["log"]})
    when = interrupt("when?")
    return {"city": where, "log": [f"asked: {where} {when}"]}


def plan(state: Trip) -> dict[str, Any]:
    return {"log": ["planned"]}


def book(state: Trip) -> dict[str, Any]:
    return {"log": [f"booked {state['city']}"]}


def trip(saver: BaseCheckpointSaver[Any], **more: Any) -> Graph:
    builder = StateGraph(Trip)
    builder.add_sequence([plan, ask, book])
    builder.add_edge(START, "plan")
    return builder.compile(checkpointer=saver, **more)


# -- branches --------------------------------------------------------------------------------------


class Branches(TypedDict):
    seen: Annotated[list[str], operator.add]
    total: Annotated[int, operator.add]
    failures: int


class Flaky:
    """A node that fails as often as it is told, and counts how often each node ran."""

    def __init__(self, failures: int = 0) -> None:
        self.left = failures
        self.ran: list[str] = []
        self.left_one_ended = threading.Event()

    def right(self, state: Branches) -> dict[str, Any]:
        self.ran.append("right")
        if self.left:
            self.left -= 1
            self.left_one_ended.wait(10)
            time.sleep(0.05)  # LangGraph takes the result of the other node before this one fails
            raise RuntimeError("not today")
        return {"seen": ["right"], "total": 10}

    def left_one(self, state: Branches) -> dict[str, Any]:
        self.ran.append("left")
        self.left_one_ended.set()
        return {"seen": ["left"], "total": 1}


def item(state: dict[str, Any]) -> dict[str, Any]:
    return {"seen": [f"item {state['n']}"], "total": state["n"]}


def fan_out(state: Branches) -> list[Send]:
    return [Send("item", {"n": number}) for number in range(5)]


def branches(saver: BaseCheckpointSaver[Any], flaky: Flaky) -> Graph:
    builder = StateGraph(Branches)
    builder.add_node("left", flaky.left_one)
    builder.add_node("right", flaky.right)
    builder.add_node("join", lambda state: {"seen": [f"joined {len(state['seen'])}"]})
    builder.add_node("item", item)
    builder.add_node("end", lambda state: Command(update={"seen": ["end"]}, goto=END))
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "join")
    builder.add_conditional_edges("join", fan_out, ["item"])
    builder.add_edge("item", "end")
    return builder.compile(checkpointer=saver)


# -- a subgraph ------------------------------------------------------------------------------------


class Inner(TypedDict):
    topic: str
    notes: Annotated[list[str], operator.add]


class Outer(TypedDict):
    topic: str
    report: str


def research(state: Inner) -> dict[str, Any]:
    return {"notes": [f"about {state['topic']}"]}


def check(state: Inner) -> dict[str, Any]:
    return {"notes": [f"checked: {interrupt('fine?')}"]}


def outer(saver: BaseCheckpointSaver[Any], *, remember: bool) -> Graph:
    """A graph with a subgraph inside; with `remember`, that has a memory of its own from run to run."""
    builder = StateGraph(Inner)
    builder.add_sequence([research, check])
    builder.add_edge(START, "research")
    subgraph = builder.compile(checkpointer=True if remember else None)

    def call(state: Outer) -> dict[str, Any]:
        found = subgraph.invoke({"topic": state["topic"]})
        return {"report": " / ".join(found["notes"])}

    around = StateGraph(Outer)
    around.add_node("before", lambda state: {"topic": state["topic"].upper()})
    around.add_node("inner", call)
    around.add_node("after", lambda state: {"report": state["report"] + "."})
    around.add_edge(START, "before")
    around.add_edge("before", "inner")
    around.add_edge("inner", "after")
    return around.compile(checkpointer=saver)


class Shared(TypedDict):
    topic: str
    notes: Annotated[list[str], operator.add]


def nested(saver: BaseCheckpointSaver[Any]) -> Graph:
    """A graph in a graph in a graph, as nodes, which share their state's keys."""
    lowest = StateGraph(Shared)
    lowest.add_sequence([research, check])
    lowest.add_edge(START, "research")
    middle = StateGraph(Shared)
    middle.add_node("lowest", lowest.compile())
    middle.add_edge(START, "lowest")
    top = StateGraph(Shared)
    top.add_node("middle", middle.compile())
    top.add_edge(START, "middle")
    return top.compile(checkpointer=saver)


# -- kinds of state --------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    name: str
    size: float = 1.0


class Machine(BaseModel):
    name: str
    colour: Colour = Colour.RED
    parts: Annotated[list[Part], operator.add] = Field(default_factory=list)
    main: Part | None = None


def build(state: Machine) -> dict[str, Any]:
    return {"parts": [Part(name="wheel", size=2)], "main": Part(name="engine"), "colour": Colour.BLUE}


def polish(state: Machine) -> dict[str, Any]:
    assert isinstance(state, Machine)
    assert all(isinstance(part, Part) for part in state.parts)
    assert isinstance(state.main, Part)
    return {"name": f"{state.name} in {state.colour.value}"}


def pydantic_state(saver: BaseCheckpointSaver[Any]) -> Graph:
    builder = StateGraph(Machine)
    builder.add_sequence([build, polish])
    builder.add_edge(START, "build")
    return builder.compile(checkpointer=saver)


@dataclasses.dataclass
class Step:
    name: str
    done: bool = False


@dataclasses.dataclass
class Recipe:
    title: str = ""
    steps: Annotated[list[Step], operator.add] = dataclasses.field(default_factory=list)
    now: Step | None = None


def cook(state: Recipe) -> dict[str, Any]:
    return {"steps": [Step("cut"), Step("boil", done=True)], "now": Step("boil")}


def serve(state: Recipe) -> dict[str, Any]:
    assert isinstance(state.now, Step)
    assert all(isinstance(step, Step) for step in state.steps)
    return {"title": f"{state.title} in {len(state.steps)} steps"}


def dataclass_state(saver: BaseCheckpointSaver[Any]) -> Graph:
    builder = StateGraph(Recipe)
    builder.add_sequence([cook, serve])
    builder.add_edge(START, "cook")
    return builder.compile(checkpointer=saver)


# -- delta channels --------------------------------------------------------------------------------


def joined(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*state, *(one for write in writes for one in write)]


class Deltas(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=4)]
    items: Annotated[list[int], DeltaChannel(joined, snapshot_frequency=1000)]
    count: int


def grow(state: Deltas) -> dict[str, Any]:
    count = state.get("count", 0)
    answer = AIMessage(f"answer {count} to {state['messages'][-1].text}", id=f"answer {count}")
    return {"messages": [answer], "items": [count, count * 10], "count": count + 1}


def deltas(saver: BaseCheckpointSaver[Any]) -> Graph:
    builder = StateGraph(Deltas)
    builder.add_node("grow", grow)
    builder.add_edge(START, "grow")
    return builder.compile(checkpointer=saver)
