"""What listings say of LangGraph's checkpoints: the nodes that made them, how the graph fares, and what it spent."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from graphs import chat, config, human, spent, team, trip
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels import EphemeralValue, LastValue
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, Send, interrupt

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.vault import Vault

Opener = Callable[..., Vault]


@pytest.fixture
def quick() -> Iterator[SavegameSaver]:
    """In memory, for what does not depend on the store."""
    with savegame.open("memory:") as vault:
        yield SavegameSaver(vault)


def listed(vault: Vault, thread_id: str = "t") -> list[tuple[str, str]]:
    """Kind and status of each checkpoint, oldest first."""
    return [(found.kind, str(found.status)) for found in vault.thread(thread_id).history(newest_first=False)]


def tokens(vault: Vault, thread_id: str = "t") -> list[int | None]:
    return [found.tokens_used for found in vault.thread(thread_id).history(newest_first=False)]


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


def said(text: str) -> Callable[[Any], dict[str, Any]]:
    return lambda state: {"log": [text]}


def built(saver: SavegameSaver, edges: list[tuple[Any, str]], **options: Any) -> Any:
    """A graph of nodes that write their names."""
    builder = StateGraph(Log)
    for name in {name for _, name in edges}:
        builder.add_node(name, said(name), **options.get(name, {}))
    for start, end in edges:
        builder.add_edge(START if start == "" else start, end)
    return builder.compile(checkpointer=saver)


# -- kinds -----------------------------------------------------------------------------------------


def test_checkpoints_are_named_after_their_nodes_and_the_last_one_is_completed(vault: Vault) -> None:
    graph = chat(vault)
    for text in ("hello", "again"):
        graph.invoke(human(text), config("t"))
    turn = [("input", "in_progress"), ("__start__", "in_progress"), ("model", "completed")]
    assert listed(vault) == turn * 2
    assert str(vault.info("t").status) == "completed"  # type: ignore[union-attr]


def test_an_asynchronous_graph_says_the_same(vault: Vault) -> None:
    asyncio.run(chat(vault).ainvoke(human("hello"), config("t")))
    assert listed(vault) == [("input", "in_progress"), ("__start__", "in_progress"), ("model", "completed")]
    assert tokens(vault) == [None, None, 10]


def test_nodes_of_one_step_are_joined_and_waited_for(quick: SavegameSaver) -> None:
    graph = built(quick, [("", "left"), ("", "right"), (["left", "right"], "both"), ("both", "end")])
    graph.invoke({"log": []}, config("t"))
    assert [kind for kind, _ in listed(quick.vault)] == ["input", "__start__", "left+right", "both", "end"]
    assert [status for _, status in listed(quick.vault)] == ["in_progress"] * 4 + ["completed"]


def test_a_node_that_others_are_waited_for_is_not_the_end(quick: SavegameSaver) -> None:
    graph = built(quick, [("", "slow"), ("slow", "slower"), ("", "quick"), (["slower", "quick"], "both")])
    graph.invoke({"log": []}, config("t"))
    assert listed(quick.vault)[2:] == [("quick+slow", "in_progress"), ("slower", "in_progress"), ("both", "completed")] or (
        listed(quick.vault)[2:] == [("slow+quick", "in_progress"), ("slower", "in_progress"), ("both", "completed")]
    )


def test_a_deferred_node_is_still_to_come(quick: SavegameSaver) -> None:
    graph = built(quick, [("", "now"), ("", "later"), ("now", "then")], later={"defer": True})
    graph.invoke({"log": []}, config("t"))
    assert listed(quick.vault)[2:] == [("now", "in_progress"), ("then", "in_progress"), ("later", "completed")]


def test_sends_name_the_node_every_time(quick: SavegameSaver) -> None:
    builder = StateGraph(Log)
    builder.add_node("item", lambda state: {"log": [state["n"]]})
    builder.add_node("more", said("more"))
    spread = lambda state: [Send("item", {"n": number}) for number in range(2)] if len(state["log"]) < 4 else "more"  # noqa: E731
    builder.add_conditional_edges(START, spread, ["item", "more"])
    builder.add_conditional_edges("item", spread, ["item", "more"])
    builder.compile(checkpointer=quick).invoke({"log": []}, config("t"))
    assert [kind for kind, _ in listed(quick.vault)] == ["input", "__start__", "item", "item", "item", "more"]
    assert listed(quick.vault)[-1] == ("more", "completed")


def test_many_nodes_fit_into_a_kind(quick: SavegameSaver) -> None:
    graph = built(quick, [("", f"node number {number} of many") for number in range(9)])
    graph.invoke({"log": []}, config("t"))
    kind, status = listed(quick.vault)[-1]
    assert len(kind) == 64
    assert kind.startswith("node number ")
    assert kind.endswith("…")
    assert status == "completed"


def test_updates_and_forks_say_so(vault: Vault) -> None:
    graph = chat(vault)
    graph.invoke(human("hello"), config("t"))
    graph.update_state(config("t"), human("by hand"), as_node="model")
    graph.update_state(config("t"), None, as_node="__copy__")
    assert [kind for kind, _ in listed(vault)][-2:] == ["update", "fork"] or listed(vault)[-1][0] == "fork"
    assert {status for _, status in listed(vault)[-2:]} == {"completed"}


def test_a_loop_names_its_node_in_every_round_also_in_another_process(on_disk: Opener) -> None:
    def graph(vault: Vault) -> Any:
        builder = StateGraph(Log)
        builder.add_node("round", lambda state: {"log": [interrupt("go on?")]})
        builder.add_conditional_edges("round", lambda state: "round" if len(state["log"]) < 3 else "__end__")
        builder.add_edge(START, "round")
        return builder.compile(checkpointer=SavegameSaver(vault))

    graph(on_disk()).invoke({"log": []}, config("t"))
    for _ in range(3):  # as in a process of its own: nothing is remembered
        graph(on_disk()).invoke(Command(resume="yes"), config("t"))
    assert listed(on_disk())[2:] == [("round", "in_progress")] * 2 + [("round", "completed")]


def test_the_functional_api_ends_too(quick: SavegameSaver) -> None:
    @task
    def double(number: int) -> int:
        return number * 2

    @entrypoint(checkpointer=quick)
    def work(number: int) -> int:
        return double(number).result() + 1

    assert work.invoke(3, config("t")) == 7
    assert listed(quick.vault) == [("input", "in_progress"), ("work", "completed")]


def test_only_what_is_known_is_said_of_graphs_built_by_hand(quick: SavegameSaver) -> None:
    """Their nodes are started by any channel, so that a saver cannot see what comes next."""
    node = NodeBuilder().subscribe_only("a").do(lambda text: text * 2).write_to("b")
    channels = {"a": EphemeralValue(str), "b": LastValue(str)}
    graph = Pregel(nodes={"n": node}, channels=channels, input_channels="a", output_channels="b", checkpointer=quick)
    assert graph.invoke("x", config("t")) == "xx"
    assert listed(quick.vault) == [("input", "in_progress"), ("n", "in_progress")]


def test_a_run_that_saves_at_its_end_names_all_its_nodes(quick: SavegameSaver) -> None:
    graph = built(quick, [("", "one"), ("one", "two")])
    graph.invoke({"log": []}, config("t"), durability="exit")
    assert listed(quick.vault) == [("one+two", "completed")]


@pytest.mark.parametrize("value", [["a", "b", "c"], (), "text", None, {"a": 1}, [None], ({1}, 2)])
def test_channels_of_users_may_have_any_name(quick: SavegameSaver, value: Any) -> None:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"join:a:b": value, "branch": value, "__pregel_tasks": value}
    checkpoint["channel_versions"] = {"join:a:b": 1}
    place = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    quick.put(place, checkpoint, {"source": "loop", "step": 0}, {"join:a:b": 1})  # type: ignore[typeddict-item]
    assert listed(quick.vault) == [("iteration", "in_progress")], "nothing tells that a node ran"


def test_copies_keep_kind_and_status(vault: Vault) -> None:
    chat(vault).invoke(human("hello"), config("t"))
    SavegameSaver(vault).copy_thread("t", "copy")
    assert listed(vault, "copy") == listed(vault)
    assert tokens(vault, "copy") == [None, None, None], "what was spent was spent once"


def test_a_put_that_is_repeated_says_the_same(vault: Vault) -> None:
    saver, checkpoint = SavegameSaver(vault), empty_checkpoint()
    checkpoint["channel_values"] = {"messages": [AIMessage("hello", id="m", **spent(10))]}
    checkpoint["channel_versions"] = {"messages": 1}
    place = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for _ in range(2):
        saver.put(place, checkpoint, {"source": "loop", "step": 0}, {"messages": 1})  # type: ignore[typeddict-item]
    SavegameSaver(vault).put(place, checkpoint, {"source": "loop", "step": 0}, {"messages": 1})
    assert tokens(vault) == [10]


# -- status ----------------------------------------------------------------------------------------


def test_a_graph_that_asks_is_halted_and_one_that_failed_has_failed(vault: Vault) -> None:
    graph = trip(vault)
    graph.invoke({"log": []}, config("asks"))

    def fail(state: Any) -> None:
        raise ValueError("no luck")

    builder = StateGraph(Log)
    builder.add_node("bad", fail)
    builder.add_edge(START, "bad")
    with pytest.raises(ValueError, match="no luck"):
        builder.compile(checkpointer=SavegameSaver(vault)).invoke({"log": []}, config("fails"))
    found = {info.id: info.status for info in vault.threads()}
    assert (str(found["asks"]), found["asks"].reason) == ("halted", "ask waits for a person")
    assert str(found["fails"]) == "failed"
    assert "no luck" in (found["fails"].reason or "")
    assert [info.id for info in vault.threads(status="halted")] == ["asks"]


def test_a_subgraph_that_asks_halts_its_graph(vault: Vault) -> None:
    team(vault).invoke({"log": []}, config("t"))
    assert {str(info.status) for info in vault.threads()} == {"halted"}
    team(vault).invoke(Command(resume="yes"), config("t"))
    assert {str(info.status) for info in vault.threads()} == {"completed"}


# -- tokens and cost -------------------------------------------------------------------------------


def test_new_messages_are_counted_and_only_once(vault: Vault) -> None:
    graph = chat(vault)
    for text in ("hello", "again"):
        graph.invoke(human(text), config("t"))
    assert tokens(vault) == [None, None, 10, None, None, 10]
    (used,) = vault.usage(by="thread")
    assert (used.tokens_used, used.cost) == (20, 0.5)


def test_another_process_does_not_count_what_is_there(on_disk: Opener) -> None:
    for text in ("hello", "again", "and again"):
        chat(on_disk()).invoke(human(text), config("t"))
    assert sum(found or 0 for found in tokens(on_disk())) == 30


def test_another_process_that_resumes_counts_only_what_is_new(on_disk: Opener) -> None:
    def graph(vault: Vault) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("model", lambda state: {"messages": [AIMessage("first", **spent(10))]})
        builder.add_node("ask", lambda state: {"messages": [AIMessage(interrupt("fine?"), **spent(5))]})
        builder.add_edge(START, "model")
        builder.add_edge("model", "ask")
        return builder.compile(checkpointer=SavegameSaver(vault))

    graph(on_disk()).invoke(human("hello"), config("t"))
    graph(on_disk()).invoke(Command(resume="yes"), config("t"))
    assert tokens(on_disk()) == [None, None, 10, 5]


def test_replaced_and_removed_messages_are_not_counted_again(quick: SavegameSaver) -> None:
    script = iter(
        [
            [AIMessage("one", id="1", **spent(10))],
            [AIMessage("one, corrected", id="1", **spent(10))],
            [RemoveMessage(id="1"), AIMessage("two", id="2", **spent(7))],
            [HumanMessage("hm"), AIMessage("unknown")],
        ]
    )
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": next(script)})
    builder.add_edge(START, "model")
    graph = builder.compile(checkpointer=quick)
    for _ in range(4):
        graph.invoke(human("go on"), config("t"))
    assert tokens(quick.vault)[2::3] == [10, None, 7, None]


def test_what_stands_before_kept_messages_is_counted(quick: SavegameSaver) -> None:
    def compact(state: MessagesState) -> dict[str, Any]:
        kept = state["messages"][-1]
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), AIMessage("so far", **spent(4)), kept]}

    builder = StateGraph(MessagesState)
    builder.add_node("compact", compact)
    builder.add_edge(START, "compact")
    graph = builder.compile(checkpointer=quick)
    for _ in range(3):
        graph.invoke(human("go on"), config("t"))
    assert tokens(quick.vault)[2::3] == [4, 4, 4]


def test_messages_of_a_subgraph_count_once(quick: SavegameSaver) -> None:
    inner = StateGraph(MessagesState)
    inner.add_node("model", lambda state: {"messages": [AIMessage("from within", **spent(10))]})
    inner.add_edge(START, "model")
    outer = StateGraph(MessagesState)
    outer.add_node("first", lambda state: {"messages": [AIMessage("first", **spent(3))]})
    outer.add_node("helper", inner.compile())
    outer.add_edge(START, "first")
    outer.add_edge("first", "helper")
    found = outer.compile(checkpointer=quick).invoke(human("hello"), config("t"))
    assert len(found["messages"]) == 3
    assert {used.key.partition("␟")[2].partition(":")[0]: used.tokens_used for used in quick.vault.usage(by="thread")} == {
        "": 3,
        "helper": 10,
    }


@pytest.mark.parametrize(
    ("beside", "cost"),
    [
        ({"cost": 0.5}, 0.5),
        ({"token_usage": {"cost": 0.25, "total_cost": 9.0}}, 0.25),
        ({"usage": {"total_cost": 2}}, 2.0),
        ({"cost": "much"}, None),
        ({"cost": float("nan")}, None),
        ({"cost": -1}, None),
        ({"cost": True}, None),
        ({"token_usage": None}, None),
        ({}, None),
    ],
)
def test_a_cost_is_kept_where_the_provider_tells_one(quick: SavegameSaver, beside: dict[str, Any], cost: float | None) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage("hello", **spent(10, **beside))]})
    builder.add_edge(START, "model")
    builder.compile(checkpointer=quick).invoke(human("hello"), config("t"))
    newest = quick.vault.thread("t").latest()
    assert newest is not None
    assert (newest.tokens_used, newest.cost) == (10, cost)


def test_details_add_no_write(on_disk: Opener) -> None:
    vault = on_disk()
    graph = chat(vault)
    graph.invoke(human("hello"), config("t"))
    assert vault.stats().checkpoints == 3
    assert vault.rooms.engine.store.kinds(vault.thread("t").timeline.key) == [
        f"writes {found.external_id}"
        for found in sorted(vault.thread("t").history(), key=lambda found: found.external_id or "")
        if found.kind != "model"
    ], "only what LangGraph itself wrote"
