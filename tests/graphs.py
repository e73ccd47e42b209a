"""LangGraph graphs for the tests of listings and surfaces; their models say what is written here."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import interrupt

from savegame.adapters.langgraph import SavegameSaver
from savegame.vault import Vault

Graph = CompiledStateGraph[Any, Any, Any, Any]


def config(thread_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id}}


def human(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def spent(tokens: int, **beside: Any) -> dict[str, Any]:
    """What a message says of its use."""
    usage = {"input_tokens": tokens - 1, "output_tokens": 1, "total_tokens": tokens}
    return {"usage_metadata": usage, "response_metadata": beside}


def model(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"You said: {state['messages'][-1].text}", **spent(10, cost=0.25))]}


def chat(vault: Vault) -> Graph:
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=SavegameSaver(vault))


class Trip(TypedDict):
    log: Annotated[list[str], operator.add]


def ask(state: Trip) -> dict[str, Any]:
    where = interrupt({"question": "where to?"})
    when = interrupt("when?")
    return {"log": [f"{where} {when}"]}


def trip(vault: Vault) -> Graph:
    """A node that asks twice, and one after it."""
    builder = StateGraph(Trip)
    builder.add_node("ask", ask)
    builder.add_node("book", lambda state: {"log": ["booked"]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "book")
    return builder.compile(checkpointer=SavegameSaver(vault))


def team(vault: Vault) -> Graph:
    """A graph whose node `helper` is a subgraph that asks."""
    inner = StateGraph(Trip)
    inner.add_node("look", lambda state: {"log": ["looked"]})
    inner.add_node("check", lambda state: {"log": [f"checked: {interrupt('fine?')}"]})
    inner.add_edge(START, "look")
    inner.add_edge("look", "check")
    outer = StateGraph(Trip)
    outer.add_node("helper", inner.compile())
    outer.add_edge(START, "helper")
    return outer.compile(checkpointer=SavegameSaver(vault))
