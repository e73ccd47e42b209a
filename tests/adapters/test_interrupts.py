"""Interrupts as calls that wait for a person: listed, answered, and resumed as by `Command(resume=...)`."""

from __future__ import annotations

import asyncio
import json
import operator
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from graphs import config, team, trip
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.errors import CorruptionError, InvalidInputError, NotFoundError, UnsupportedError
from savegame.runs.ledger import CallEntry
from savegame.vault import Vault

Opener = Callable[..., Vault]


@pytest.fixture
def quick() -> Iterator[Vault]:
    """In memory, for what does not depend on the store."""
    with savegame.open("memory:") as vault:
        yield vault


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


def only(vault: Vault, thread_id: str = "t") -> CallEntry:
    (call,) = vault.calls(thread_id)
    return call


def status(vault: Vault, thread_id: str = "t") -> str:
    info = vault.info(thread_id)
    assert info is not None
    return repr(info.status)


def asking(saver: SavegameSaver, *nodes: str) -> Any:
    """A graph whose nodes run in one step and log what they were answered."""
    builder = StateGraph(Log)
    for name in nodes:
        builder.add_node(name, lambda state, name=name: {"log": [f"{name}: {interrupt(f'{name}?')}"]})
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


def test_an_answer_resumes_the_graph(vault: Vault) -> None:
    graph = trip(vault)
    (asked,) = graph.invoke({"log": []}, config("t"))["__interrupt__"]
    call = only(vault)
    assert (call.key, call.name, call.status, call.answered, call.interrupt) == (asked.id, "ask", "waiting", False, True)
    assert (call.asked, call.arguments) == (None, {"question": "where to?"})
    assert call.needs(held=False) == "answer"
    assert status(vault) == "halted(ask waits for a person)"

    assert vault.answer("t", call, "Rome") is True
    assert only(vault).answered
    assert only(vault).needs(held=False) is None
    assert status(vault) == "in_progress"

    graph.invoke(None, config("t"))
    call = only(vault)
    assert (call.asked, call.arguments, call.answered) == ("when?", {}, False)
    assert vault.answer("t", call.key, "May") is True
    assert graph.invoke(None, config("t")) == {"log": ["Rome May", "booked"]}
    assert list(vault.calls("t")) == []
    assert status(vault) == "completed"
    assert vault.verify().ok


def test_the_first_answer_wins(vault: Vault) -> None:
    graph = asking(SavegameSaver(vault), "ask")
    graph.invoke({"log": []}, config("t"))
    call, results = only(vault), []
    threads = [threading.Thread(target=lambda n=n: results.append((vault.answer("t", call, n), n))) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    ((_, first),) = [found for found in results if found[0]]
    assert graph.invoke(None, config("t")) == {"log": [f"ask: {first}"]}


def test_what_no_longer_waits_is_refused(vault: Vault) -> None:
    graph = asking(SavegameSaver(vault), "ask")
    graph.invoke({"log": []}, config("t"))
    call = only(vault)
    graph.invoke(Command(resume="quicker"), config("t"))
    with pytest.raises(NotFoundError, match=r"its graph has gone on; vault.calls\('t'\)"):
        vault.answer("t", call, "late")
    with pytest.raises(NotFoundError, match="has no call 'x'"):
        vault.answer("never", "x", "?")


def test_an_answer_outlives_the_process_and_waits_for_the_graph(on_disk: Opener) -> None:
    asking(SavegameSaver(on_disk()), "ask").invoke({"log": []}, config("t"))
    with on_disk() as vault:
        vault.answer("t", only(vault), {"decisions": [{"type": "approve"}]})
    found = asyncio.run(asking(SavegameSaver(on_disk()), "ask").ainvoke(None, config("t")))
    assert found == {"log": ["ask: {'decisions': [{'type': 'approve'}]}"]}


@pytest.mark.parametrize("value", [None, False, "", 0, [1, "two"], {"a": {"b": None}}])
def test_any_value_is_an_answer(quick: Vault, value: Any) -> None:
    graph = asking(SavegameSaver(quick), "ask")
    graph.invoke({"log": []}, config("t"))
    quick.answer("t", only(quick), value)
    assert graph.invoke(None, config("t")) == {"log": [f"ask: {value}"]}


def test_damaged_writes_hide_no_thread(quick: Vault) -> None:
    asking(SavegameSaver(quick), "ask").invoke({"log": []}, config("t"))
    thread = quick.thread("t")
    newest = thread.latest()
    assert newest is not None
    thread.put_records({(f"writes {newest.external_id}", "x"): "no writes"})
    assert [(info.id, str(info.status), info.damage) for info in quick.threads()] == [("t", "in_progress", None)]
    with pytest.raises(CorruptionError, match="run repair, which sets it aside"):
        quick.calls("t")
    assert quick.repair().ok
    assert only(quick).name == "ask"


def test_a_comment_has_no_place(quick: Vault) -> None:
    asking(SavegameSaver(quick), "ask").invoke({"log": []}, config("t"))
    with pytest.raises(InvalidInputError, match="put the comment into it"):
        quick.answer("t", only(quick), True, comment="fine")
    assert not only(quick).answered


def test_several_of_one_step_are_answered_one_by_one(vault: Vault) -> None:
    graph = asking(SavegameSaver(vault), "a", "b")
    graph.invoke({"log": []}, config("t"))
    a, b = vault.calls("t")
    assert (a.name, b.name) == ("a", "b")
    vault.answer("t", b, 2)
    assert [call.answered for call in vault.calls("t")] == [False, True]
    assert status(vault) == "halted(a waits for a person)"
    assert graph.invoke(None, config("t"))["log"] == ["b: 2"]
    assert [call.key for call in vault.calls("t")] == [a.key], "the other one still waits"
    vault.answer("t", a, 1)
    assert graph.invoke(None, config("t")) == {"log": ["a: 1", "b: 2"]}


def test_tasks_of_one_node_are_told_apart(quick: Vault) -> None:
    builder = StateGraph(Log)
    builder.add_node("item", lambda state: {"log": [f"{state['n']}: {interrupt(state['n'])}"]})
    builder.add_conditional_edges(START, lambda _: [Send("item", {"n": number}) for number in range(3)], ["item"])
    graph = builder.compile(checkpointer=SavegameSaver(quick))
    graph.invoke({"log": []}, config("t"))
    for call in list(quick.calls("t")):
        quick.answer("t", call, call.arguments["value"] * 10)
    assert graph.invoke(None, config("t")) == {"log": ["0: 0", "1: 10", "2: 20"]}


def test_a_subgraph_asks_once_and_gets_its_answer(vault: Vault) -> None:
    graph = team(vault)
    graph.invoke({"log": []}, config("t"))
    inner = next(info.id for info in vault.threads() if info.id != "t")
    call = only(vault)
    assert (call.name, call.asked) == ("check", "fine?")
    assert list(vault.calls(inner)) == [], "it is listed with the graph"
    assert vault.answer(inner, call, "yes") is True
    assert vault.answer("t", call, "no") is False
    assert {str(info.status) for info in vault.threads()} == {"in_progress"}
    assert graph.invoke(None, config("t")) == {"log": ["looked", "checked: yes"]}
    assert vault.verify().ok


def test_an_answer_in_a_subgraph_changes_what_watches_the_graph(quick: Vault) -> None:
    team(quick).invoke({"log": []}, config("t"))
    before = quick.fingerprints()["t"]
    quick.answer("t", only(quick), "yes")
    assert quick.fingerprints()["t"] != before


def test_a_task_that_asks_is_told_apart_from_its_caller(quick: Vault) -> None:
    @task
    def add(number: int) -> int:
        return number + interrupt("add what?")

    @entrypoint(checkpointer=SavegameSaver(quick))
    def work(number: int) -> list[int]:
        first = add(number).result()
        return [first, interrupt("and what else?")]

    work.invoke(3, config("t"))
    quick.answer("t", only(quick), 10)
    work.invoke(None, config("t"))
    assert only(quick).asked == "and what else?"
    quick.answer("t", only(quick), 100)
    assert work.invoke(None, config("t")) == [13, 100]


def test_earlier_answers_keep_their_types(quick: Vault) -> None:
    """The graph runs the node again with all of its answers; those that LangGraph kept are left as they are."""
    builder = StateGraph(Log)
    builder.add_node("ask", lambda state: {"log": [type(interrupt("a?")).__name__, interrupt("b?")]})
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=SavegameSaver(quick))
    graph.invoke({"log": []}, config("t"))
    graph.invoke(Command(resume={1, 2}), config("t"))
    quick.answer("t", only(quick), "b")
    assert graph.invoke(None, config("t")) == {"log": ["set", "b"]}


def test_what_a_command_answered_waits_no_more(quick: Vault) -> None:
    """The caller's answer is kept before the node runs: after a crash there, the graph only has to be resumed."""
    tries = []

    def ask(state: Log) -> dict[str, Any]:
        found = interrupt("fine?")
        tries.append(found)
        if len(tries) == 1:
            raise KeyboardInterrupt
        return {"log": [found]}

    builder = StateGraph(Log)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=SavegameSaver(quick))
    graph.invoke({"log": []}, config("t"))
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(Command(resume="yes"), config("t"), durability="sync")
    assert only(quick).answered
    assert quick.answer("t", only(quick), "no") is False
    assert graph.invoke(None, config("t")) == {"log": ["yes"]}


def test_the_next_question_after_a_command_waits(quick: Vault) -> None:
    trip(quick).invoke({"log": []}, config("t"))
    trip(quick).invoke(Command(resume="Rome"), config("t"))
    inner = StateGraph(Log)
    inner.add_node("ask", lambda state: {"log": [interrupt("a?"), interrupt("b?")]})
    inner.add_edge(START, "ask")
    outer = StateGraph(Log)
    outer.add_node("helper", inner.compile())
    outer.add_edge(START, "helper")
    graph = outer.compile(checkpointer=SavegameSaver(quick))
    graph.invoke({"log": []}, config("nested"))
    graph.invoke(Command(resume="A"), config("nested"))
    for thread_id, node, question in (("t", "ask", "when?"), ("nested", "helper", "b?")):
        assert (only(quick, thread_id).asked, only(quick, thread_id).answered) == (question, False)
        assert status(quick, thread_id) == f"halted({node} waits for a person)"
    quick.answer("nested", only(quick, "nested"), "B")
    assert status(quick, "nested") == "in_progress"
    assert graph.invoke(None, config("nested")) == {"log": ["A", "B"]}


def test_going_back_asks_again(quick: Vault) -> None:
    graph = asking(SavegameSaver(quick), "ask")
    graph.invoke({"log": []}, config("t"))
    asked_at = graph.get_state(config("t")).config
    quick.answer("t", only(quick), "first")
    graph.invoke(None, config("t"))
    assert "__interrupt__" in graph.invoke(None, asked_at)
    assert not only(quick).answered
    quick.answer("t", only(quick), "second")
    assert graph.invoke(None, config("t")) == {"log": ["ask: second"]}


@pytest.mark.parametrize("build", [trip, team])
def test_a_rewind_undoes_answers(quick: Vault, build: Callable[[Vault], Any]) -> None:
    graph = build(quick)
    graph.invoke({"log": []}, config("t"))
    asked_at = quick.thread("t").head or next(quick.thread("t").history(limit=1)).id
    while list(quick.calls("t")):
        quick.answer("t", only(quick), "first")
        graph.invoke(None, config("t"))
    quick.thread("t").rewind(asked_at)
    assert list(quick.calls("t")) == []
    graph.invoke(None, config("t"))
    assert only(quick).answered is False
    while list(quick.calls("t")):
        quick.answer("t", only(quick), "second")
        graph.invoke(None, config("t"))
    assert "second" in repr(graph.get_state(config("t")).values)
    assert "first" not in repr(graph.get_state(config("t")).values)


class Scrambled:
    """As a serializer that encrypts: nothing else reads what it wrote."""

    inner = JsonPlusSerializer()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = self.inner.dumps_typed(obj)
        return f"{kind}+scrambled", bytes(byte ^ 0x55 for byte in data)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, scrambled = data
        return self.inner.loads_typed((kind.removesuffix("+scrambled"), bytes(byte ^ 0x55 for byte in scrambled)))


def test_an_unreadable_interrupt_is_listed_and_answered_by_its_task(quick: Vault) -> None:
    builder = StateGraph(Log)
    builder.add_node("ask", lambda state: {"log": [interrupt("a?"), interrupt("b?")]})
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=SavegameSaver(quick, serde=Scrambled()))
    graph.invoke({"log": []}, config("t"))
    assert only(quick).name == "ask"
    assert only(quick).asked == "(a question in the format 'msgpack+scrambled', which only the graph reads)"
    quick.answer("t", only(quick), "A")
    graph.invoke(None, config("t"))
    with pytest.raises(UnsupportedError, match="earlier answers of 'ask' cannot be read here"):
        quick.answer("t", only(quick), "B")
    assert graph.invoke(Command(resume="B"), config("t")) == {"log": ["A", "B"]}


ELSEWHERE = """
import sys
sys.modules["langgraph"] = sys.modules["langchain_core"] = None
import json, savegame
from savegame.cli import main
with savegame.open(sys.argv[1]) as vault:
    (call,) = vault.calls("t")
    found = [vault.info("t").status.reason, call.name, call.asked, [info.child_of for info in vault.threads()]]
    found += [vault.answer("t", call, "from elsewhere"), vault.info("t").status]
    before, after = list(vault.thread("t").history(limit=2, newest_first=False))
print(json.dumps(found))
sys.argv = ["savegame", "diff", "t", before.id, after.id, "--store", sys.argv[1]]
main()
"""


def test_none_of_it_needs_langgraph(on_disk: Opener, tmp_path: Path) -> None:
    with on_disk() as vault:
        team(vault).invoke({"log": ["begun"]}, config("t"))
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, tmp_path / "vault.db"], capture_output=True, text=True, timeout=120, check=False
    )
    found, _, shown = done.stdout.partition("\n")
    assert done.returncode == 0, done.stderr
    assert json.loads(found) == ["helper waits for a person", "check", "fine?", [None, "t"], True, "in_progress"]
    assert "channel_values.log" in shown
    assert "channel_versions" not in shown
    assert "bookkeeping fields; --all shows them" in shown
    assert team(on_disk()).invoke(None, config("t"))["log"][-1] == "checked: from elsewhere"
