"""An imported thread shows in listings what the same graph shows that ran on SavegameSaver: nodes, its end, tokens and cost."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

pytest.importorskip("langgraph.checkpoint.sqlite")

from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from scripted import Flaky, Graph, branches, chat, config, nested, outer, person, tool_loop, trip

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.adapters.langgraph_import import import_threads
from savegame.vault import Vault

Saver = BaseCheckpointSaver[Any]


def says(name: str, tokens: int, cost: float) -> Callable[[MessagesState], dict[str, Any]]:
    usage: Any = {"input_tokens": tokens - 1, "output_tokens": 1, "total_tokens": tokens}

    def node(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [
                AIMessage(name, id=f"{name} {len(state['messages'])}", usage_metadata=usage, response_metadata={"cost": cost})
            ]
        }

    return node


def team(saver: Saver) -> Graph:
    """A graph whose subgraph returns the messages that it has already paid for; a node that waits for two, and a late one."""
    inner = StateGraph(MessagesState)
    inner.add_node("think", says("think", 100, 0.5))
    inner.add_node("write", says("write", 7, 0.25))
    inner.add_edge(START, "think")
    inner.add_edge("think", "write")
    around = StateGraph(MessagesState)
    around.add_node("helper", inner.compile())
    around.add_node("left", says("left", 20, 0))
    around.add_node("both", says("both", 3, 1))
    around.add_node("late", says("late", 4, 0), defer=True)
    around.add_edge(START, "helper")
    around.add_edge(START, "left")
    around.add_edge(START, "late")
    around.add_edge(["helper", "left"], "both")
    return around.compile(checkpointer=saver)


def run_all(saver: Saver) -> None:
    """Graphs with tools, interrupts, `Send`s, joins, subgraphs, an error and a fork; two of them do not end."""
    loop = tool_loop(saver)
    for number, text in enumerate(("weather and add", "hi")):
        loop.invoke(person(text, number), config("tools"))
    loop.update_state(list(loop.get_state_history(config("tools")))[4].config, person("a fork", 9))
    loop.invoke(None, config("tools"))
    trip(saver).invoke({"log": ["begun"], "city": ""}, config("trip"))
    trip(saver).invoke(Command(resume="Rome"), config("trip"))
    branches(saver, Flaky()).invoke({"seen": [], "total": 0, "failures": 0}, config("branches"))
    with pytest.raises(RuntimeError, match="not today"):
        branches(saver, Flaky(1)).invoke({"seen": [], "total": 0, "failures": 0}, config("failed"))
    for thread, make in {"outer": partial(outer, remember=True), "nested": nested}.items():
        make(saver).invoke({"topic": "cats"}, config(thread))
        make(saver).invoke(Command(resume="yes"), config(thread))
    team(saver).invoke(person("go", 1), config("team"))
    team(saver).invoke(person("on", 2), config("team"))


def listed(vault: Vault) -> dict[str, list[Any]]:
    """What listings show, by thread; ids of tasks in namespaces, and the order in which nodes of a step ended, differ."""
    shown: dict[str, list[Any]] = {}
    for info in vault.threads(limit=None):
        root, _, namespace = info.id.partition("\u241f")
        place = "|".join([root, *(part.split(":")[0] for part in namespace.split("|"))])
        shown.setdefault(place, []).extend(
            ("+".join(sorted(found.kind.split("+"))), str(found.status), found.tokens_used, found.cost)
            for found in vault.thread(info.id).history(newest_first=False, branches=True)
        )
    return shown


@pytest.fixture(params=["sqlite", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "old.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def stock(source: str) -> contextlib.AbstractContextManager[Any]:
    return (PostgresSaver if "://" in source else SqliteSaver).from_conn_string(source)


def bring(source: str, vault: Vault) -> None:
    assert [outcome.error for outcome in import_threads(source, vault) if outcome.error is not None] == []


def test_an_imported_thread_shows_what_one_shows_that_ran_here(source: str) -> None:
    with stock(source) as saver:
        saver.setup()
        run_all(saver)
    with savegame.open("memory:") as wanted, savegame.open("memory:") as vault:
        run_all(SavegameSaver(wanted))
        bring(source, vault)
        found = listed(vault)
        assert found == listed(wanted)
        assert found["tools|"][:3] == [
            ("input", "in_progress", None, None),
            ("__start__", "in_progress", None, None),
            ("model", "in_progress", None, None),
        ]
        assert sum(tokens or 0 for _, _, tokens, _ in found["team|"] + found["team|helper"]) == 2 * (100 + 7 + 20 + 3 + 4)
        assert {str(vault.info(name).status) for name in ("tools", "branches", "team")} == {"completed"}  # type: ignore[union-attr]


def test_what_comes_with_a_second_import_is_counted_once(source: str) -> None:
    with stock(source) as saver, savegame.open("memory:") as vault:
        saver.setup()
        team(saver).invoke(person("go", 1), config("team"))
        bring(source, vault)
        team(saver).invoke(person("on", 2), config("team"))
        bring(source, vault)
        with savegame.open("memory:") as wanted:
            for number, text in enumerate(("go", "on"), 1):
                team(SavegameSaver(wanted)).invoke(person(text, number), config("team"))
            assert listed(vault) == listed(wanted)


@pytest.mark.parametrize(
    "odd",
    [
        {"usage_metadata": "many", "response_metadata": None},
        {"usage_metadata": {"total_tokens": "many"}, "response_metadata": {"cost": []}, "id": None},
        {"usage_metadata": {"total_tokens": 3}, "id": [7]},
        {"type": None},
    ],
)
def test_messages_of_odd_forms_count_nothing(tmp_path: Path, odd: dict[str, Any]) -> None:
    source = str(tmp_path / "old.db")
    with stock(source) as saver:
        chat(saver).invoke(person("hi", 1), config())
    with closing(sqlite3.connect(source)) as db, db:
        row, data = db.execute("SELECT checkpoint_id, checkpoint FROM checkpoints ORDER BY 1 DESC LIMIT 1").fetchone()
        sealed = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext)
        fields = {**AIMessage("x").model_dump(), **odd}
        body = ["langchain_core.messages.ai", "AIMessage", fields, "model_validate_json"]
        sealed["channel_values"]["messages"][-1] = ormsgpack.Ext(5, ormsgpack.packb(body))
        db.execute("UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = ?", (ormsgpack.packb(sealed), row))
    with savegame.open("memory:") as vault:
        bring(source, vault)
        assert listed(vault)["t|"][-1] == ("model", "completed", None, None)
