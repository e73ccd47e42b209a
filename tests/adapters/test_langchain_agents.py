"""LangChain's `create_agent` and deepagents on a vault: people approve tool calls, and processes are killed and go on.

What LangGraph promises with `durability="sync"`: a task that has finished is not run again. A tool that was running when its
process was killed has not finished, and runs again; the model is not asked again for what it has said, nor a person for what
was answered, unless the answer was to one of several questions. The models are scripted; everything else is real.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Interrupt
from lives import Life, Log, nursery
from scripted import Graph, config

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.testing.faults import PATIENCE_S, Child, Mouth

Saver = BaseCheckpointSaver[Any]
Say = Callable[..., None]

ASK = {"messages": [HumanMessage("Refund order 17, please.", id="human")]}
APPROVE = {"type": "approve"}
COLOURS = ["sync", "async"]


# -- agents ----------------------------------------------------------------------------------------


class Scripted(BaseChatModel):
    """Fixed replies: which one depends on how many there are in the conversation that it is shown."""

    who: str
    replies: list[AIMessage]
    say: Say

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        count = sum(isinstance(message, AIMessage) for message in messages)
        self.say("model", f"{self.who} {count}")
        return ChatResult(generations=[ChatGeneration(message=self.replies[count].model_copy(deep=True))])


def reply(number: int, text: str, *calls: tuple[str, dict[str, Any]]) -> AIMessage:
    return AIMessage(
        text,
        id=f"{text} {number}",
        tool_calls=[ToolCall(name=name, args=args, id=f"{name} {number}") for name, args in calls],
        usage_metadata={"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
    )


class World:
    """Where tools act: a log of what was done, and, in a process that will be killed, a tool in which it stops."""

    def __init__(self, say: Say, stop: Say | None = None) -> None:
        self.say, self._stop = say, stop

    def tools(self) -> list[BaseTool]:
        """A tool that only looks, and one with an effect, each also awaited."""

        def find_order(number: int) -> str:
            """Look an order up."""
            self.say("found", str(number))
            return f"order {number}: 5 euros"

        def refund(number: int, cents: int) -> str:
            """Pay for an order back."""
            self.say("refunding", f"{number} {cents}")
            if self._stop:
                self._stop("inside")
                time.sleep(PATIENCE_S)
            self.say("refunded", f"{number} {cents}")
            return f"paid {cents}"

        async def find_order_soon(number: int) -> str:
            return find_order(number)

        async def refund_soon(number: int, cents: int) -> str:
            if self._stop:
                self.say("refunding", f"{number} {cents}")
                self._stop("inside")
                await asyncio.sleep(PATIENCE_S)
            return refund(number, cents)

        return [
            StructuredTool.from_function(find_order, find_order_soon, name="find_order"),
            StructuredTool.from_function(refund, refund_soon, name="refund"),
        ]


CALLS = (("find_order", {"number": 17}), ("refund", {"number": 17, "cents": 500}))


def simple(saver: Saver, world: World, **how: Any) -> Graph:
    """An agent that looks an order up and pays it back; the latter needs a person."""
    model = Scripted(who="model", replies=[reply(0, "let me see", *CALLS), reply(1, "done")], say=world.say)
    people = HumanInTheLoopMiddleware({"refund": True}, **how)
    return create_agent(model, world.tools(), middleware=[people], checkpointer=saver)


def one_by_one(saver: Saver, world: World) -> Graph:
    """As `simple`, but a person is asked call by call, while other calls run."""
    return simple(saver, world, interrupt_mode="per_call")


def deep(saver: Saver, world: World) -> Graph:
    """A deep agent that makes a note and has a subagent do the rest."""
    note = ("write_file", {"file_path": "/notes.md", "content": "order 17"})
    order = ("task", {"description": "Refund order 17.", "subagent_type": "clerk"})
    replies = [reply(0, "a note", note), reply(1, "over to the clerk", order), reply(2, "done")]
    model = Scripted(who="model", replies=replies, say=world.say)
    clerk = Scripted(who="clerk", replies=[reply(10, "let me see", *CALLS), reply(11, "paid back")], say=world.say)
    subagent: Any = {"name": "clerk", "description": "Pays back.", "system_prompt": "You pay back.", "model": clerk}
    return create_deep_agent(
        model, [], subagents=[{**subagent, "tools": world.tools()}], interrupt_on={"refund": True}, checkpointer=saver
    )


AGENTS = {"create_agent": simple, "one by one": one_by_one, "deepagents": deep}
DONE = {
    "create_agent": ["model 0", "model 1"],
    "one by one": ["model 0", "model 1"],
    "deepagents": ["model 0", "model 1", "clerk 0", "clerk 1", "model 2"],
}
"""What the models say, each once."""


def run(graph: Graph, colour: str, given: Any) -> dict[str, Any]:
    if colour == "sync":
        return graph.invoke(given, config(), durability="sync")
    return asyncio.run(graph.ainvoke(given, config(), durability="sync"))


def decided(asked: Sequence[Interrupt], *decisions: dict[str, Any]) -> Command[Any]:
    """The answer of a person: for all calls at once, or one for each interrupt."""
    if "action_requests" in asked[0].value:
        return Command(resume={"decisions": list(decisions)})
    return Command(resume={one.id: decision for one, decision in zip(asked, decisions, strict=True)})


def wanted(asked: Sequence[Interrupt]) -> list[tuple[str, Any]]:
    """The calls that wait for a person."""
    return [(call["name"], call["args"]) for one in asked for call in one.value.get("action_requests", [one.value])]


def spoken(messages: Sequence[BaseMessage]) -> list[tuple[Any, ...]]:
    """A conversation without the ids that LangGraph draws."""
    return [(message.type, message.text, getattr(message, "tool_calls", None)) for message in messages]


def whole(graph: Graph) -> list[Any]:
    """The history of a conversation, in a form that can be compared."""
    return [
        (
            one.next,
            (one.metadata or {})["source"],
            (one.metadata or {})["step"],
            spoken(one.values.get("messages", [])),
            {path: file["content"] for path, file in one.values.get("files", {}).items()},
            wanted(one.interrupts),
        )
        for one in graph.get_state_history(config())
    ]


# -- without a crash -------------------------------------------------------------------------------

EDIT = {"type": "edit", "edited_action": {"name": "refund", "args": {"number": 17, "cents": 250}}}
DECISIONS: list[dict[str, Any]] = [
    APPROVE,
    EDIT,
    {"type": "reject", "message": "too much"},
    {"type": "respond", "message": "ok"},
]
PAID = {"approve": ["17 500"], "edit": ["17 250"], "reject": [], "respond": []}


def after(decision: dict[str, Any], agent: str, colour: str, saver: BaseCheckpointSaver[Any]) -> Any:
    """What was said and done, and the history, when a person has decided."""
    done: list[tuple[str, str]] = []
    graph = AGENTS[agent](saver, World(lambda *what: done.append(what)))
    asked = run(graph, colour, ASK)["__interrupt__"]
    assert wanted(asked) == [CALLS[1]]
    assert wanted(graph.get_state(config()).interrupts) == [CALLS[1]]
    result = run(graph, colour, decided(asked, decision))
    assert [what for kind, what in done if kind == "refunded"] == PAID[decision["type"]]
    assert Counter(what for kind, what in done if kind == "model") == Counter(DONE[agent])
    told = spoken(result["messages"]), sorted(done), whole(graph)
    saver.delete_thread("t")
    return told


@cache
def with_langgraph(agent: str, colour: str) -> list[Any]:
    """The same with its own saver, once for all stores."""
    return [after(decision, agent, colour, InMemorySaver()) for decision in DECISIONS]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_person_decides(agent: str, colour: str, saver: SavegameSaver) -> None:
    """Each decision has the same consequences as with LangGraph's own saver, and leaves the same history."""
    assert [after(decision, agent, colour, saver) for decision in DECISIONS] == with_langgraph(agent, colour)
    assert saver.vault.verify().ok


# -- killed ----------------------------------------------------------------------------------------


class Witness(SavegameSaver):
    """A saver that says whose answers it has kept, once it has."""

    def __init__(self, vault: savegame.Vault, say: Say) -> None:
        super().__init__(vault)
        self._say = say

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        for _, value in writes:
            for message in value if isinstance(value, list) else ():
                if isinstance(message, ToolMessage):
                    self._say("kept", message.name)


def live(mouth: Mouth, there: str) -> None:
    """Run an agent as the file says: from the beginning, with an answer, or on; in the tool it may stop."""
    where = Path(there)
    life = json.loads((where / "life.json").read_text())
    world = World(Log(where / "log").say, mouth.say if life["stop"] else None)
    with savegame.open(life["address"]) as vault:
        graph = AGENTS[life["agent"]](Witness(vault, mouth.say), world)
        given = {"begin": ASK, "go on": None}.get(life["what"])
        if life["what"] == "approve":
            given = decided(graph.get_state(config()).interrupts, APPROVE)
        found = run(graph, life["colour"], given)
        mouth.say("asked" if "__interrupt__" in found else "done")
        if "__interrupt__" in found:
            time.sleep(PATIENCE_S)


def once(agent: str) -> list[str]:
    return [f"model {what}" for what in DONE[agent]]


@pytest.mark.parametrize("store", ["sqlite", "file"])
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("agent", AGENTS)
def test_killed_while_a_person_decides_and_in_the_tool(
    agent: str, colour: str, store: str, tmp_path: Path, address_of: Callable[..., str]
) -> None:
    address = address_of(store)

    def begin(child: Child, what: str, *, stop: bool) -> Life:
        life = {"agent": agent, "colour": colour, "address": address, "what": what, "stop": stop}
        (tmp_path / "life.json").write_text(json.dumps(life))
        return Life(child)

    def look() -> Any:
        with savegame.open(address) as vault:
            assert vault.verify().ok
            return whole(AGENTS[agent](SavegameSaver(vault), World(print)))

    with Child(nursery, live, str(tmp_path)) as child:
        life = begin(child, "begin", stop=False)
        life.until("asked")
        life.end(kill=True)
        assert look()[0][-1] == [CALLS[1]], "it still waits"

        life = begin(child, "approve", stop=True)
        life.until("inside")
        if agent != "one by one":
            life.until("kept", "find_order")  # the calls run side by side; one by one, it ran while the person was asked
        life.end(kill=True)

        life = begin(child, "go on", stop=False)
        if agent == "one by one":  # LangGraph keeps an answer to one of several questions only with the end of its task
            life.until("asked")
            life.end(kill=True)
            life = begin(child, "approve", stop=False)
        life.until("done")
        assert ["asked"] not in life.end()

    log = (tmp_path / "log").read_text().splitlines()
    twice = ["refunding 17 500"] * 2  # it had not finished when it was killed
    assert Counter(log) == Counter([*once(agent), "found 17", *twice, "refunded 17 500"])
    expected = AGENTS[agent](InMemorySaver(), World(lambda *_: None))
    run(expected, colour, ASK)
    run(expected, colour, decided(expected.get_state(config()).interrupts, APPROVE))
    assert [one[:5] for one in look()] == [one[:5] for one in whole(expected)]
