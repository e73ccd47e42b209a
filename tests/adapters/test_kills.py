"""SIGKILL in the middle of a graph: it goes on where it was, and no task whose writes were kept runs again.

Every task tells a log when it has run, and the saver when it has kept what a task wrote. A task may run again only if
the kill came before the second line.
"""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.graph import END, START, StateGraph
from lives import Life, Log, nursery
from scripted import Graph, config

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.testing.faults import Child, Mouth
from savegame.vault import Vault

ROUNDS = 30
NAP_S = 0.012


class Witness(SavegameSaver):
    """A saver that tells the log what it has kept, once it has. A liar tells, but forgets what tasks wrote."""

    def __init__(self, vault: Vault, log: Log, *, lies: bool) -> None:
        super().__init__(vault)
        self.log = log
        self.lies = lies

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        if not self.lies:
            super().put_writes(config, writes, task_id, task_path)
        for item in [item for channel, value in writes if channel == "done" for item in value]:
            self.log.say("kept", item)

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        found = super().put(config, checkpoint, metadata, new_versions)
        for item in checkpoint["channel_values"].get("done", [])[-2:]:
            self.log.say("kept", item)
        return found


class Work(TypedDict):
    done: Annotated[list[str], operator.add]
    round: int


def graph_of(saver: SavegameSaver, log: Log) -> Graph:
    """Rounds of two tasks side by side, a quick and a slow one, and one that counts the rounds."""

    def work(name: str, nap_s: float, state: Work) -> dict[str, Any]:
        item = f"{name} {state['round']}"
        time.sleep(nap_s)
        log.say("ran", item)
        return {"done": [item]}

    def count(state: Work) -> dict[str, Any]:
        item = f"count {state['round']}"
        log.say("ran", item)
        return {"done": [item], "round": state["round"] + 1}

    builder = StateGraph(Work)
    builder.add_node("quick", lambda state: work("quick", 0, state))
    builder.add_node("slow", lambda state: work("slow", NAP_S, state))
    builder.add_node("count", count)
    builder.add_edge(START, "quick")
    builder.add_edge(START, "slow")
    builder.add_conditional_edges("count", lambda state: ["quick", "slow"] if state["round"] < ROUNDS else END)
    builder.add_edge(["quick", "slow"], "count")
    return builder.compile(checkpointer=saver)


def run(mouth: Mouth, there: str, lies: bool) -> None:
    """Begin the graph of the day, or go on with it; say so at the end."""
    where = Path(there)
    thread_id = (where / "now").read_text()
    log = Log(where / f"{thread_id}.log")
    saver = Witness(savegame.open(where / "vault.db"), log, lies=lies)
    graph = graph_of(saver, log)
    at = {**config(thread_id), "recursion_limit": 10 * ROUNDS}
    begun = saver.get_tuple(at) is not None
    mouth.say("open")
    graph.invoke(None if begun else {"done": [], "round": 0}, at, durability="sync")
    mouth.say("done")


@dataclass
class Figures:
    """What happened: kills that came in time, tasks that ran again, and those that should not have."""

    kills: int = 0
    finished: int = 0
    again: int = 0
    wrong: list[str] = field(default_factory=list)


def look(figures: Figures, vault: Vault, log_path: Path, thread_id: str) -> None:
    """Read the log of a finished thread, and its state."""
    ran: set[str] = set()
    kept: set[str] = set()
    for line in log_path.read_text().splitlines():
        what, item = line.split(" ", 1)
        if what == "kept":
            assert item in ran, f"{item} was kept, but never ran"
            kept.add(item)
            continue
        figures.again += item in ran
        if item in kept:
            figures.wrong.append(item)
        ran.add(item)
    figures.finished += 1
    done = vault.thread(thread_id).state()["channel_values"]["done"]
    assert sorted(done) == sorted(f"{name} {number}" for name in ("quick", "slow", "count") for number in range(ROUNDS))
    assert set(done) == ran


def one_life(child: Child, kill_after_s: float | None, *, early: bool) -> bool:
    """Let the graph run until it is killed, or to its end; whether it was done."""
    life = Life(child)
    if not early:
        life.until("open")
    if kill_after_s is None:
        life.until("done")
    else:
        time.sleep(kill_after_s)
    return ["done"] in life.end(kill=kill_after_s is not None)


def kill_over_and_over(where: Path, kills: int, *, lies: bool = False) -> Figures:
    """Run graphs, one after the other, and kill each at random moments until it is done or there were enough kills."""
    figures, chance = Figures(), random.Random()
    with Child(nursery, run, str(where), lies) as child:
        while figures.kills < kills:
            thread_id = f"thread {figures.finished}"
            (where / "now").write_text(thread_id)
            finished = False
            while not finished:
                early = figures.kills < kills and chance.random() < 0.1  # perhaps while it opens
                wait_s = chance.uniform(0, 0.05 if early else 0.5) if figures.kills < kills else None
                finished = one_life(child, wait_s, early=early)
                figures.kills += not finished
            with savegame.open(where / "vault.db") as vault:
                look(figures, vault, where / f"{thread_id}.log", thread_id)
    with savegame.open(where / "vault.db") as vault:
        assert vault.verify().ok
    print(figures)
    return figures


def test_10_kills_and_no_finished_task_runs_again(tmp_path: Path) -> None:
    figures = kill_over_and_over(tmp_path, 10)
    assert figures.wrong == []
    assert figures.again <= 2 * figures.kills  # two run side by side


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_300_kills_and_no_finished_task_runs_again(tmp_path: Path) -> None:
    figures = kill_over_and_over(tmp_path, 300)
    assert figures.wrong == []
    assert 0 < figures.again <= 2 * figures.kills


def test_a_saver_that_forgets_is_caught(tmp_path: Path) -> None:
    """The negative control: a saver that says that it kept what a task wrote, and did not."""
    assert kill_over_and_over(tmp_path, 12, lies=True).wrong
