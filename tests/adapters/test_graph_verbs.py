"""Verbs of a vault on LangGraph's threads mean for the graph what they say, also where LangGraph is not installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command
from scripted import Flaky, Graph, branches, config, deltas, nested, outer, person, tool_loop, trip
from travelling import Nodes

import savegame
from savegame import CorruptionError, UnsupportedError
from savegame.adapters.langgraph import SavegameSaver
from savegame.timeline.companions import LEFT, WRITES
from savegame.vault import Vault

Opener = Callable[..., Vault]


def values(graph: Graph, thread_id: str = "t") -> Any:
    return graph.get_state(config(thread_id)).values


def checkpoints(vault: Vault, thread_id: str = "t") -> list[str]:
    """The ids of a thread's line, oldest first."""
    return [found.id for found in vault.thread(thread_id).history(newest_first=False)]


def pending(vault: Vault, thread_id: str = "t") -> list[str]:
    return [kind for kind in vault.thread(thread_id).timeline.kinds() if kind.startswith((WRITES, LEFT))]


def memory(graph: Graph, thread_id: str = "t") -> list[str]:
    """What a subgraph with a memory of its own says in the next run; it stops at its question."""
    graph.invoke({"topic": "again"}, config(thread_id))
    found = graph.invoke(Command(resume="yes"), config(thread_id))["report"]
    return list(str(found).rstrip(".").split(" / "))


# -- rewind ----------------------------------------------------------------------------------------


def test_after_a_rewind_the_graph_is_where_it_was_and_runs_the_next_node_again(vault: Vault, saver: SavegameSaver) -> None:
    flaky = Flaky()
    graph = branches(saver, flaky)
    done = graph.invoke({"seen": [], "total": 0, "failures": 0}, config())
    snapshots = list(graph.get_state_history(config()))[::-1]
    for number, (checkpoint, snapshot) in enumerate(zip(checkpoints(vault), snapshots, strict=True)):
        flaky.ran.clear()
        head = vault.thread("t").rewind(checkpoint)
        assert head.external_id == snapshot.config["configurable"]["checkpoint_id"]
        found = graph.get_state(config())
        assert (found.values, found.next) == (snapshot.values, snapshot.next)
        assert [task.result for task in found.tasks] == [None] * len(found.tasks)
        if snapshot.next:
            assert graph.invoke(None, config()) == done
        assert flaky.ran == ["left", "right"] * (number <= 1)
        assert values(graph) == done
    assert vault.verify().ok


def test_a_rewind_to_the_head_undoes_nothing(vault: Vault, saver: SavegameSaver) -> None:
    flaky = Flaky(failures=1)
    graph = branches(saver, flaky)
    with pytest.raises(RuntimeError, match="not today"):
        graph.invoke({"seen": [], "total": 0, "failures": 0}, config())
    vault.thread("t").rewind("head")
    assert graph.invoke(None, config())["total"] == 21
    assert flaky.ran == ["left", "right", "right"]


def test_a_line_that_was_left_waits_for_its_answer_when_it_is_the_head_again(vault: Vault, saver: SavegameSaver) -> None:
    graph = trip(saver)
    graph.invoke({"log": []}, config())
    graph.invoke(Command(resume="Rome"), config())
    thread = vault.thread("t")
    asked = thread.latest()
    assert asked is not None
    thread.rewind("head~1")
    assert graph.get_state(config()).next == ("plan",)
    thread.rewind(asked)
    assert [one.value for one in graph.get_state(config()).interrupts] == ["when?"]
    assert graph.invoke(Command(resume="May"), config())["log"] == ["planned", "asked: Rome May", "booked Rome"]


def test_a_copy_of_the_first_checkpoint_is_no_successor_of_the_head(vault: Vault, saver: SavegameSaver) -> None:
    """It stands beside the first one, in a copy of the thread too: a rewind to what was the head undoes nothing there."""
    graph = trip(saver)
    graph.invoke({"log": []}, config())
    asked = vault.thread("t").latest()
    assert asked is not None
    oldest = list(graph.get_state_history(config()))[-1]
    graph.update_state(oldest.config, None, as_node="__copy__")
    saver.copy_thread("t", "copy")
    for thread_id in ("t", "copy"):
        thread = vault.thread(thread_id)
        roots = [found for found in thread.history(branches=True) if found.parent_id is None]
        assert len(roots) == 2
        thread.rewind(next(found for found in thread.history(branches=True) if found.external_id == asked.external_id))
        assert [one.value for one in graph.get_state(config(thread_id)).interrupts] == [
            {"question": "where to?", "so far": ["planned"]}
        ]
    assert vault.verify().ok


def test_a_rewind_past_an_answer_asks_again(vault: Vault, saver: SavegameSaver) -> None:
    graph = trip(saver)
    graph.invoke({"log": []}, config())
    before = vault.thread("t").latest()
    assert before is not None
    for city in ("Rome", "Oslo"):
        graph.invoke(Command(resume=city), config())
        done = graph.invoke(Command(resume="May"), config())
        assert done["log"] == ["planned", f"asked: {city} May", f"booked {city}"]
        vault.thread("t").rewind(before)
        state = graph.get_state(config())
        assert state.next == ("ask",)
        assert state.interrupts == ()
        again = graph.invoke(None, config())
        assert [one.value for one in again["__interrupt__"]] == [{"question": "where to?", "so far": ["planned"]}]


def test_subgraphs_go_back_with_their_graph(vault: Vault, saver: SavegameSaver) -> None:
    """One with a memory of its own forgets what it did after that moment; so does one that was stopped in the middle."""
    graph = outer(saver, remember=True)
    first = memory(graph)
    end = vault.thread("t").latest()
    assert end is not None
    second = memory(graph)
    assert second[: len(first)] == first
    assert len(second) > len(first)
    vault.thread("t").rewind(end)
    assert memory(graph) == second  # not what a third run would say
    vault.thread("t").rewind(1)
    assert graph.invoke(None, config())["__interrupt__"]
    assert graph.invoke(Command(resume="yes"), config())["report"].rstrip(".").split(" / ") == first
    assert vault.verify().ok


def test_a_rewind_into_the_middle_begins_the_subgraph_anew(vault: Vault, saver: SavegameSaver) -> None:
    graph = nested(saver)
    graph.invoke({"topic": "tea", "notes": []}, config())
    done = graph.invoke(Command(resume="yes"), config())
    vault.thread("t").rewind(2)
    assert graph.get_state(config()).next == ("middle",)
    assert [one.value for one in graph.invoke(None, config())["__interrupt__"]] == ["fine?"]
    assert graph.invoke(Command(resume="yes"), config()) == done


def test_discarding_removes_the_writes_and_the_subgraphs_of_what_was_undone(vault: Vault, saver: SavegameSaver) -> None:
    graph = outer(saver, remember=True)
    first = memory(graph)
    end = vault.thread("t").latest()
    assert end is not None
    subgraph = len(checkpoints(vault, "t␟inner"))
    memory(graph)
    vault.thread("t").rewind(end, discard=True)
    kept = {found.external_id for found in vault.thread("t").history(branches=True)}
    assert {kind.removeprefix(WRITES) for kind in pending(vault)} <= kept
    assert len(list(vault.thread("t␟inner").history(branches=True))) == subgraph
    assert memory(graph)[: len(first)] == first
    vault.thread("t").rewind(1, discard=True)
    assert [info.id for info in vault.threads()] == ["t"]
    assert vault.verify().ok


def test_delta_channels_keep_their_values_on_every_line(vault: Vault, saver: SavegameSaver) -> None:
    graph = deltas(saver)
    for number in range(3):
        graph.invoke(person("hi", number), config())
    ends = [found.id for found in vault.thread("t").history()]
    there = values(graph)
    vault.thread("t").rewind("head~3")
    assert len(values(graph)["items"]) == 4
    for number in range(5, 8):
        graph.invoke(person("ho", number), config())
    other = values(graph)
    assert other["items"][:4] == there["items"][:4]
    tip = vault.thread("t").head or checkpoints(vault)[-1]
    vault.thread("t").rewind(ends[0])
    assert values(graph) == there
    vault.thread("t").rewind(tip)
    assert values(graph) == other


def test_delta_channels_whose_checkpoints_were_pruned_are_damage(vault: Vault, saver: SavegameSaver) -> None:
    graph = deltas(saver)
    for number in range(3):
        graph.invoke(person("hi", number), config())
    vault.thread("t").prune(keep=1)
    with pytest.raises(CorruptionError, match=r"'items' cannot be rebuilt: .* was removed"):
        graph.get_state(config())


def test_writes_of_removed_checkpoints_go_with_them(vault: Vault, saver: SavegameSaver) -> None:
    graph = tool_loop(saver)
    graph.invoke(person("weather", 1), config())
    vault.thread("t").rewind("head~1")
    graph.invoke(None, config())
    assert any(kind.startswith(LEFT) for kind in pending(vault))
    vault.thread("t").prune(keep=1)
    assert pending(vault) == []


# -- fork ------------------------------------------------------------------------------------------


def test_the_graph_goes_on_in_a_fork(vault: Vault, saver: SavegameSaver) -> None:
    graph = tool_loop(saver)
    graph.invoke(person("weather", 1), config())
    snapshots = list(graph.get_state_history(config()))[::-1]
    for number, snapshot in enumerate(snapshots[1:], 2):
        vault.thread("t").fork(f"fork {number}", at=number)
        found = graph.get_state(config(f"fork {number}"))
        assert (found.values, found.next) == (snapshot.values, snapshot.next)
        assert len(list(graph.get_state_history(config(f"fork {number}")))) == 1
        assert found.parent_config is None
    vault.thread("t").delete()
    for number in range(2, len(snapshots)):
        graph.invoke(None, config(f"fork {number}"))
        assert len(values(graph, f"fork {number}")["messages"]) == len(snapshots[-1].values["messages"])
    graph.invoke(person("hi", 2), config("fork 2"))
    assert len(values(graph, "fork 2")["messages"]) == 7
    again = vault.thread("fork 2").fork("again")
    assert values(graph, again.id) == values(graph, "fork 2")
    assert vault.verify().ok


def test_a_fork_of_an_interrupted_graph_asks_for_itself(vault: Vault, saver: SavegameSaver) -> None:
    graph = trip(saver)
    graph.invoke({"log": []}, config())
    vault.thread("t").fork("f")
    assert graph.get_state(config("f")).next == ("ask",)
    graph.invoke(None, config("f"))
    for thread_id, city in (("f", "Rome"), ("t", "Oslo")):
        graph.invoke(Command(resume=city), config(thread_id))
        assert graph.invoke(Command(resume="May"), config(thread_id))["city"] == city


def test_a_fork_has_the_memory_of_subgraphs_as_it_was(vault: Vault, saver: SavegameSaver) -> None:
    graph = outer(saver, remember=True)
    memory(graph)
    end = vault.thread("t").latest()
    assert end is not None
    second = memory(graph)
    vault.thread("t").attach_subject("ann")
    vault.thread("t").fork("f", at=end)
    assert memory(graph, "f") == second
    assert vault.thread("f").delete()
    assert [info.id for info in vault.threads()] == ["t", "t␟inner"]
    vault.thread("t").fork("g", at=end)
    assert vault.erase("ann").threads == ("g", "g␟inner", "t", "t␟inner")
    assert list(vault.threads()) == []


def test_a_fork_that_would_lose_delta_channels_is_refused(vault: Vault, saver: SavegameSaver) -> None:
    graph = deltas(saver)
    graph.invoke(person("hi", 1), config())
    with pytest.raises(UnsupportedError, match=r"delta channels.*copy_thread"):
        vault.thread("t").fork("f")
    assert [info.id for info in vault.threads()] == ["t"]
    saver.copy_thread("t", "copy")
    vault.thread("copy").rewind("head~1")
    graph.invoke(None, config("copy"))
    assert values(graph, "copy") == values(graph)


# -- copies, exports -------------------------------------------------------------------------------


def test_a_copy_is_where_its_source_was_rewound_to(vault: Vault, saver: SavegameSaver) -> None:
    graph = outer(saver, remember=True)
    memory(graph)
    end = vault.thread("t").latest()
    assert end is not None
    second = memory(graph)
    vault.thread("t").rewind(end)
    saver.copy_thread("t", "copy")
    assert graph.get_state(config("copy")).config["configurable"]["checkpoint_id"] == end.external_id
    assert memory(graph, "copy") == second


def test_copies_and_exports_go_on(vault: Vault, saver: SavegameSaver, tmp_path: Path) -> None:
    graph = outer(saver, remember=True)
    memory(graph)
    end = vault.thread("t").latest()
    assert end is not None
    graph.invoke({"topic": "more"}, config())  # waits in the subgraph
    vault.export(tmp_path / "t.jsonl", threads=["t"])
    wanted = graph.invoke(Command(resume="yes"), config())
    with savegame.open("memory:") as imported, savegame.open("memory:") as copied:
        imported.import_(tmp_path / "t.jsonl")
        assert outer(SavegameSaver(imported), remember=True).invoke(Command(resume="yes"), config()) == wanted
        vault.copy_to(copied)
        vault.thread("t").rewind(end)
        vault.copy_to(copied)
        assert memory(outer(SavegameSaver(copied), remember=True)) == memory(graph)


WITHOUT_LANGGRAPH = """
import sys
sys.modules["langgraph"] = sys.modules["langchain_core"] = None
from savegame.cli import main
sys.argv = ["savegame", *sys.argv[1:]]
main()
"""


def test_the_command_line_rewinds_and_forks_without_langgraph(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk("vault.db")
    graph = outer(SavegameSaver(vault), remember=True)
    memory(graph)
    end = vault.thread("t").latest()
    assert end is not None
    second = memory(graph)
    for command in (["rewind", "t", end.id, "--yes"], ["fork", "t", "f"]):
        subprocess.run(
            [sys.executable, "-c", WITHOUT_LANGGRAPH, *command, "--store", str(tmp_path / "vault.db")],
            check=True,
            capture_output=True,
            timeout=60,
        )
    assert memory(graph) == memory(graph, "f") == second


def test_a_fork_that_is_forked_or_rewound_remembers_what_its_subgraphs_knew(saver: SavegameSaver) -> None:
    nodes = Nodes()
    graph = nodes.line("p", ("sub", nodes.line("s", key="own", saver=True)), key="results", saver=saver)
    graph.invoke({"results": []}, config())
    first = saver.vault.thread("t").fork("fork").latest()
    assert first is not None
    saver.vault.thread("fork").fork("again")
    graph.invoke({"results": []}, config("fork"))
    saver.vault.thread("fork").rewind(first.id)
    for thread_id in ("fork", "again"):
        graph.invoke({"results": []}, config(thread_id))
        assert nodes.saw[-1] == ("s", ["s"])
