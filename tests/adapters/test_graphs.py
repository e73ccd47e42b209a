"""LangGraph for real: what a graph gives, its state and its history are the same as with LangGraph's own saver."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.types import Command, Overwrite, interrupt
from scripted import (
    Colour,
    Flaky,
    Machine,
    Part,
    Recipe,
    Step,
    branches,
    chat,
    config,
    dataclass_state,
    deltas,
    kept,
    nested,
    outer,
    person,
    pydantic_state,
    told,
    tool_loop,
    trip,
)

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.errors import InvalidInputError
from savegame.vault import Vault

Saver = BaseCheckpointSaver[Any]
Opener = Callable[..., Vault]


def same(story: Callable[[Saver], Any], saver: SavegameSaver, *, but: Sequence[str] = ()) -> Any:
    """Tell a story with both savers; both must tell the same. Gives what they told."""
    theirs = InMemorySaver()
    expected, found = story(theirs), story(saver)
    assert found == expected
    assert kept(saver, but=but) == kept(theirs, but=but)
    assert saver.vault.verify().ok
    return found


# -- stories ---------------------------------------------------------------------------------------


def test_a_tool_loop(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = tool_loop(saver)
        results = [graph.invoke(person(text, number), config()) for number, text in enumerate(("weather and add", "hi", "add"))]
        return results, told(graph)

    results, (state, *_) = same(story, saver)
    messages = results[-1]["messages"]
    assert len(messages) == 12
    assert messages[-1].text.startswith("it is: ")
    assert isinstance(messages[1], AIMessage)
    assert messages[1].tool_calls[0]["args"] == {"city": "Ölüdeniz"}
    assert state["values"]["messages"] == messages


def test_two_interrupts_in_one_node(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = trip(saver)
        first = graph.invoke({"log": ["start"], "city": ""}, config())
        asked = told(graph)
        second = graph.invoke(Command(resume="Rome"), config())
        again = told(graph)
        third = graph.invoke(Command(resume="May"), config())
        values = [[one.value for one in result.get("__interrupt__", [])] for result in (first, second, third)]
        return values, asked, again, third, told(graph)

    values, _, _, third, _ = same(story, saver)
    assert values == [[{"question": "where to?", "so far": ["start", "planned"]}], ["when?"], []]
    assert third["log"] == ["start", "planned", "asked: Rome May", "booked Rome"]


def test_static_breakpoints(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = chat(saver)
        graph.interrupt_before_nodes = ["model"]
        stopped = graph.invoke(person("hi", 1), config())
        before = told(graph)
        graph.update_state(config(), {"messages": [HumanMessage("changed", id="human 1")]})
        return stopped, before, graph.invoke(None, config()), told(graph)

    result = same(story, saver)[2]
    assert [message.text for message in result["messages"]] == ["changed", "hello"]


NEW_PROCESS = """
import json, sys
import savegame
from savegame.adapters.langgraph import SavegameSaver
from langgraph.types import Command
from scripted import config, trip
with savegame.open(sys.argv[1]) as vault:
    graph = trip(SavegameSaver(vault))
    what = json.loads(sys.argv[2])
    given = Command(resume=what["resume"]) if "resume" in what else what
    result = graph.invoke(given, config())
    snapshot = graph.get_state(config())
    print(json.dumps([result["log"], [one.value for one in snapshot.interrupts], snapshot.next,
                      len(list(graph.get_state_history(config())))]))
"""


def test_an_interrupt_is_resumed_in_a_new_process(tmp_path: Path) -> None:
    def elsewhere(what: Any) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", NEW_PROCESS, str(tmp_path / "vault.db"), json.dumps(what)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    memory = InMemorySaver()
    theirs = trip(memory)
    question = {"question": "where to?", "so far": ["start", "planned"]}
    theirs.invoke({"log": ["start"], "city": ""}, config())
    assert elsewhere({"log": ["start"], "city": ""}) == [["start", "planned"], [question], ["ask"], 3]
    theirs.invoke(Command(resume="Rome"), config())
    assert elsewhere({"resume": "Rome"}) == [["start", "planned"], ["when?"], ["ask"], 3]
    theirs.invoke(Command(resume="May"), config())
    log = ["start", "planned", "asked: Rome May", "booked Rome"]
    assert elsewhere({"resume": "May"}) == [log, [], [], 5]
    with savegame.open(tmp_path / "vault.db") as vault:
        saver = SavegameSaver(vault)
        assert told(trip(saver)) == told(theirs)
        assert kept(saver) == kept(memory)


def test_history_with_filter_before_and_limit(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = chat(saver)
        for number in range(6):
            graph.invoke(person("hi", number), config())
        history = list(graph.get_state_history(config()))
        middle = history[7].config
        return [
            [snapshot.metadata for snapshot in graph.get_state_history(config(), **how)]
            for how in (
                {"limit": 3},
                {"limit": 0},
                {"filter": {"source": "input"}},
                {"filter": {"source": "loop", "step": 4}},
                {"filter": {"source": "nobody"}},
                {"before": middle},
                {"before": middle, "limit": 2, "filter": {"source": "input"}},
            )
        ]

    found = same(story, saver)
    assert [len(one) for one in found] == [3, 0, 6, 1, 0, 10, 2]
    assert len(list(saver.list(config(), limit=10**30))) == 18
    with pytest.raises(InvalidInputError, match="limit"):
        next(saver.list(config(), limit="3"))  # type: ignore[arg-type]


def test_get_tuple_inside_a_list_loop(saver: SavegameSaver) -> None:
    graph = chat(saver)
    for number in range(40):
        graph.invoke(person("hi", number), config())
    seen = 0
    for found in saver.list(config()):
        again = saver.get_tuple(found.config)
        assert again is not None
        assert again.checkpoint == found.checkpoint
        assert again.metadata == found.metadata
        assert again.pending_writes == found.pending_writes
        assert again.parent_config == found.parent_config
        seen += 1
    assert seen == 120


def test_writing_inside_a_list_loop(saver: SavegameSaver) -> None:
    """A listing is not in the way of a run, and shows at least what was there when it began."""
    graph = chat(saver)
    for number in range(30):
        graph.invoke(person("hi", number), config())
    steps = []
    for number, found in enumerate(saver.list(config())):
        steps.append(found.metadata["step"])
        if number % 20 == 0:
            graph.invoke(person("hi", 100 + number), config())
    assert steps == sorted(steps, reverse=True)
    assert set(range(-1, 89)) <= set(steps)


def test_a_fork_by_update_state(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = tool_loop(saver)
        for number in range(3):
            graph.invoke(person("weather", number), config())
        old = [one for one in graph.get_state_history(config()) if one.next == ("tools",)][1]
        changed = AIMessage(
            "changed",
            id=old.values["messages"][-1].id,
            tool_calls=[{"name": "add", "args": {"a": 4, "b": 5}, "id": "forked"}],
        )
        forked = graph.update_state(old.config, {"messages": [changed]})
        at = told(graph)
        result = graph.invoke(None, forked)
        more = graph.invoke(person("hi", 9), config())
        return at, result, more, told(graph), len(list(graph.get_state_history(config())))

    _, result, more, _, _ = same(story, saver)
    assert json.loads(result["messages"][-2].text) == {"sum": 9, "of": [4, 5]}
    assert len(more["messages"]) == len(result["messages"]) + 2


def test_a_replay_from_an_old_checkpoint(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = tool_loop(saver)
        for number in range(2):
            graph.invoke(person("weather add", number), config())
        old = [one for one in graph.get_state_history(config()) if one.next == ("model",)][-1]
        result = graph.invoke(None, old.config)
        other = graph.invoke(person("something else", 7), old.config)
        return result, other, told(graph)

    same(story, saver)


def test_update_state_on_an_empty_thread_as_a_node_and_in_bulk(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = trip(saver)
        graph.update_state(config(), {"log": ["given"], "city": "Rome"}, as_node="ask")
        first = told(graph)
        result = graph.invoke(None, config())
        graph.update_state(config(), {"log": Overwrite(["new"])}, as_node="plan")
        return first, result, told(graph)

    assert same(story, saver)[1]["log"] == ["given", "booked Rome"]


def test_removed_and_changed_messages(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = chat(saver)
        for number in range(5):
            graph.invoke(person("hi", number), config())
        graph.update_state(config(), {"messages": [RemoveMessage(id="human 2"), HumanMessage("other", id="human 3")]})
        removed = graph.get_state(config()).values["messages"]
        result = graph.invoke(person("after", 9), config())
        graph.update_state(config(), {"messages": [RemoveMessage(id="__remove_all__")]})
        return removed, result, told(graph)

    removed, _, (state, *_) = same(story, saver)
    assert "human 2" not in [message.id for message in removed]
    assert state["values"] == {"messages": []}


@pytest.mark.parametrize("remember", [False, True])
def test_a_subgraph_with_its_own_state(remember: bool, saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = outer(saver, remember=remember)
        found = []
        for topic in ("rain", "snow"):
            graph.invoke({"topic": topic}, config())
            found.append(told(graph))
            found.append(graph.invoke(Command(resume=f"yes, {topic}"), config()))
        return found, told(graph)

    found, _ = same(story, saver)
    reports = [result["report"] for result in found[1::2]]
    assert reports[0] == "about RAIN / checked: yes, rain."
    old = "about RAIN / checked: yes, rain / " if remember else ""
    assert reports[1] == old + "about SNOW / checked: yes, snow."
    names = [info.id for info in saver.vault.threads()]
    assert len(names) == (2 if remember else 3)


def test_subgraphs_as_nodes_and_a_change_inside(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = nested(saver)
        graph.invoke({"topic": "rain", "notes": []}, config())
        stopped = told(graph)
        low = graph.get_state(config(), subgraphs=True).tasks[0].state.tasks[0].state
        assert low.values == {"topic": "rain", "notes": ["about rain"]}
        graph.update_state(low.config, {"notes": ["by hand"]})
        changed = told(graph)
        result = graph.invoke(Command(resume="yes"), config())
        return stopped, changed, result, told(graph), [one.values for one in graph.get_state_history(low.config)]

    same(story, saver)


def test_time_travel_into_a_subgraph(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = nested(saver)
        graph.invoke({"topic": "rain", "notes": []}, config())
        graph.invoke(Command(resume="yes"), config())
        old = next(one for one in graph.get_state_history(config()) if one.next == ("middle",))
        again = graph.invoke(None, old.config)
        asked = [one.value for one in again["__interrupt__"]]
        return asked, graph.invoke(Command(resume="no"), config()), told(graph)

    assert same(story, saver)[1]["notes"][-1] == "checked: no"


def test_parallel_branches_and_sends(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = branches(saver, Flaky())
        results = [graph.invoke({"seen": [], "total": 100}, config()) for _ in range(3)]
        return results, told(graph)

    results, _ = same(story, saver)
    assert results[0]["total"] == 100 + 1 + 10 + sum(range(5))
    assert sorted(results[0]["seen"][:2]) == ["left", "right"]


def test_a_branch_that_failed_is_the_only_one_to_run_again(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        flaky = Flaky(failures=2)
        graph = branches(saver, flaky)
        with pytest.raises(RuntimeError, match="not today"):
            graph.invoke({"seen": [], "total": 0}, config(), durability="sync")
        failed = graph.get_state(config())
        with pytest.raises(RuntimeError, match="not today"):
            graph.invoke(None, config(), durability="sync")
        result = graph.invoke(None, config(), durability="sync")
        return sorted(flaky.ran), [(one.name, one.error) for one in failed.tasks], result, told(graph)

    ran, tasks, result, _ = same(story, saver)
    assert ran == ["left", "right", "right", "right"]
    assert tasks == [("left", None), ("right", "RuntimeError('not today')")]
    assert result["total"] == 21


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_durability(durability: Any, saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = tool_loop(saver)
        for number in range(3):
            graph.invoke(person("weather", number), config(), durability=durability)
        nest = nested(saver)
        nest.invoke({"topic": "rain", "notes": []}, config("nested"), durability=durability)
        stopped = told(nest, "nested")
        result = nest.invoke(Command(resume="yes"), config("nested"), durability=durability)
        flaky = Flaky(failures=1)
        broken = branches(saver, flaky)
        with pytest.raises(RuntimeError, match="not today"):
            broken.invoke({"seen": [], "total": 0}, config("broken"), durability=durability)
        mended = broken.invoke(None, config("broken"), durability=durability)
        return told(graph), stopped, result, told(nest, "nested"), sorted(flaky.ran), mended, told(broken, "broken")

    history, *_ = same(story, saver)
    assert len(history) == 1 + (3 if durability == "exit" else 15)


def test_a_delta_channel(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = deltas(saver)
        results = [graph.invoke(person(f"say {number}", number), config()) for number in range(15)]
        whole = told(graph)
        old = list(graph.get_state_history(config()))[17]
        forked = graph.update_state(old.config, {"messages": [RemoveMessage(id="human 3")], "items": [-1]}, as_node="grow")
        values = graph.get_state(forked).values
        result = graph.invoke(person("forked", 99), config())
        return results, whole, values, result, told(graph)

    # LangGraph's saver looks values up by version, so it shows a snapshot also where a checkpoint has none of its own.
    results, _, _, result, _ = same(story, saver, but=["messages", "items"])
    assert results[-1]["items"] == [value for number in range(15) for value in (number, number * 10)]
    assert len(results[-1]["messages"]) == 30
    assert "human 3" not in [message.id for message in result["messages"]]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_delta_channel_survives_a_new_start_a_prune_and_a_copy(durability: Any, on_disk: Opener) -> None:
    graph = deltas(SavegameSaver(on_disk()))
    for number in range(7):
        graph.invoke(person(f"say {number}", number), config(), durability=durability)
    expected = graph.get_state(config()).values
    assert len(expected["messages"]) == 14
    saver = SavegameSaver(on_disk())
    again = deltas(saver)
    assert again.get_state(config()).values == expected
    saver.copy_thread("t", "copy")
    saver.prune(["t"])
    assert again.get_state(config()).values == expected
    assert again.get_state(config("copy")).values == expected
    for thread_id in ("t", "copy"):
        result = again.invoke(person("more", 99), config(thread_id), durability=durability)
        assert result["messages"][:14] == expected["messages"]
        assert result["items"] == [*expected["items"], 7, 70]
        assert again.get_state(config(thread_id)).values == result


def test_pydantic_state(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = pydantic_state(saver)
        graph.interrupt_before_nodes = ["polish"]
        graph.invoke(Machine(name="car"), config())
        return graph.get_state(config()).values, graph.invoke(None, config()), told(graph)

    stopped, result, _ = same(story, saver)
    assert stopped["main"] == Part(name="engine")
    assert stopped["colour"] is Colour.BLUE
    assert result["name"] == "car in blue"
    assert result["parts"] == [Part(name="wheel", size=2)]


def test_dataclass_state(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        graph = dataclass_state(saver)
        graph.interrupt_before_nodes = ["serve"]
        graph.invoke(Recipe(title="soup"), config())
        return graph.get_state(config()).values, graph.invoke(None, config()), told(graph)

    stopped, result, _ = same(story, saver)
    assert stopped["now"] == Step("boil")
    assert result["title"] == "soup in 2 steps"
    assert result["steps"] == [Step("cut"), Step("boil", done=True)]


def turns(graph: Any, start: int, end: int) -> None:
    for number in range(start, end):
        graph.invoke(person("weather" if number % 10 == 0 else "hi", number), config())


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.campaign)])
def test_many_turns(saver: SavegameSaver, count: int) -> None:
    graph, stock = tool_loop(saver), tool_loop(InMemorySaver())
    turns(graph, 0, count)
    turns(stock, 0, count)
    assert told(graph) == told(stock)
    messages = graph.get_state(config()).values["messages"]
    assert len(messages) == count * 2 + count // 10 * 3
    assert saver.vault.thread("t").state()["channel_values"]["messages"][0]["content"] == "weather"
    assert saver.vault.verify().ok


def test_200_turns_with_a_new_start_every_50(on_disk: Opener) -> None:
    stock = tool_loop(InMemorySaver())
    turns(stock, 0, 200)
    for start in range(0, 200, 50):
        graph = tool_loop(SavegameSaver(on_disk()))
        turns(graph, start, start + 50)
    assert told(graph) == told(stock)


# -- both colours ----------------------------------------------------------------------------------


def test_awaited(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        async def run() -> Any:
            graph = tool_loop(saver)
            first = await graph.ainvoke(person("weather add", 1), config())
            parts = [part async for part in graph.astream(person("add", 2), config(), stream_mode="updates")]
            state = await graph.aget_state(config())
            history = [one.values async for one in graph.aget_state_history(config())]
            old = [one async for one in graph.aget_state_history(config()) if one.next == ("model",)][-1]
            forked = await graph.aupdate_state(old.config, person("instead", 1))
            return first, parts, state.values, history, await graph.ainvoke(None, forked)

        return asyncio.run(run()), told(tool_loop(saver))

    (_, parts, _, _, result), _ = same(story, saver)
    assert [list(part) for part in parts] == [["model"], ["tools"], ["model"]]
    assert [message.text for message in result["messages"]] == ["instead", "hello"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_awaited_interrupts_subgraphs_and_deltas(durability: Any, saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        async def run() -> Any:
            graph, growing = nested(saver), deltas(saver)
            await graph.ainvoke({"topic": "rain", "notes": []}, config(), durability=durability)
            stopped = (await graph.aget_state(config())).next
            grown = [
                await growing.ainvoke(person("say", number), config("deltas"), durability=durability) for number in range(9)
            ]
            return stopped, await graph.ainvoke(Command(resume="yes"), config(), durability=durability), grown

        return asyncio.run(run()), told(nested(saver)), told(deltas(saver), "deltas")

    same(story, saver)


def test_a_put_that_was_begun_is_done_also_if_cancelled(saver: SavegameSaver) -> None:
    """No outcome stays unknown: the cancellation is delivered when the write has ended."""

    async def run() -> None:
        checkpoint = {**empty_checkpoint(), "channel_values": {"n": 1}, "channel_versions": {"n": 1}}
        put = asyncio.create_task(saver.aput(config(), checkpoint, {"source": "loop", "step": 1}, {"n": 1}))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": 1}

    asyncio.run(run())


def test_many_threads_at_once(saver: SavegameSaver) -> None:
    async def run() -> list[Any]:
        graph = tool_loop(saver)
        return await asyncio.gather(*(graph.ainvoke(person("weather", 1), config(f"thread {n}")) for n in range(20)))

    results = asyncio.run(run())
    assert all(result == results[0] for result in results)
    theirs = tool_loop(InMemorySaver())
    theirs.invoke(person("weather", 1), config())
    graph = tool_loop(saver)
    for number in range(20):
        assert told(graph, f"thread {number}") == told(theirs)


# -- the functional interface ----------------------------------------------------------------------


def test_the_functional_interface(saver: SavegameSaver) -> None:
    def story(saver: Saver) -> Any:
        ran: list[str] = []

        @task
        def double(number: int) -> int:
            ran.append(f"double {number}")
            return number * 2

        @entrypoint(checkpointer=saver)
        def flow(number: int, *, previous: Any = None) -> Any:
            first, second = double(number), double(number + 1)
            total = first.result() + second.result() + (previous or 0)
            return entrypoint.final(value=[total, interrupt("more?")], save=total)

        found = []
        for number in (1, 10):
            asked = flow.invoke(number, config())
            found += [[one.value for one in asked["__interrupt__"]], flow.invoke(Command(resume="yes"), config())]
        return found, sorted(ran)

    found, ran = same(story, saver)
    assert found == [["more?"], [6, "yes"], ["more?"], [48, "yes"]]
    assert ran == ["double 1", "double 10", "double 11", "double 2"]


# -- the vault and the graph -----------------------------------------------------------------------


def test_a_rewind_of_the_vault_is_where_the_graph_goes_on(saver: SavegameSaver) -> None:
    graph = chat(saver)
    for number in range(4):
        graph.invoke(person("hi", number), config())
    second = [one for one in graph.get_state_history(config()) if not one.next][2]
    thread = saver.vault.thread("t")
    entry = next(one for one in thread.history() if one.external_id == second.config["configurable"]["checkpoint_id"])
    thread.rewind(entry.id)
    assert graph.get_state(config()).values == second.values
    result = graph.invoke(person("instead", 9), config())
    assert [message.id for message in result["messages"]] == ["human 0", "ai 1", "human 1", "ai 3", "human 9", "ai 5"]
    assert graph.get_state(config()).values == result
    assert saver.vault.verify().ok
