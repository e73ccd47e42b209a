"""Deleting and erasing LangGraph's threads: subgraphs and copies go along, also where LangGraph is not installed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.model import ThreadKey
from savegame.store import PutRecord
from savegame.timeline.companions import CHILD, FORK, PARENT, SOURCE, SUBJECT
from savegame.timeline.derived import NOTED
from savegame.timeline.subjects import Erased
from savegame.vault import Vault
from tests.adapters.scripted import Graph, config

Opener = Callable[..., Vault]

SECRET = "Zanzibar-Quux"


def nested(saver: SavegameSaver) -> Graph:
    """A graph with a subgraph that has a subgraph; the inner ones keep what they said."""

    def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(SECRET)]}

    innermost = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say").compile(checkpointer=True)
    inner = StateGraph(MessagesState).add_node("say", say).add_node("deep", innermost)
    inner = inner.add_edge(START, "say").add_edge("say", "deep").compile(checkpointer=True)
    outer = StateGraph(MessagesState).add_node("sub", inner).add_edge(START, "sub")
    return outer.compile(checkpointer=saver)


def told(saver: SavegameSaver, thread_id: str = "u7") -> None:
    nested(saver).invoke({"messages": [HumanMessage(SECRET)]}, config(thread_id))


def everything_in(vault: Vault) -> list[str]:
    return [thread_id for thread_id, _ in vault.store.heads(vault.namespace)]


ALL = ["u7", "u7-copy", "u7-copy␟sub", "u7-copy␟sub|deep", "u7␟sub", "u7␟sub|deep"]


def test_an_erase_reaches_subgraphs_and_copies(vault: Vault, saver: SavegameSaver) -> None:
    told(saver)
    vault.thread("u7").attach_subject("ann")
    saver.copy_thread("u7", "u7-copy")
    vault.thread("u7-more").save({})
    assert everything_in(vault) == sorted([*ALL, "u7-more"])
    assert {tuple(vault.thread(name).subjects()) for name in ALL} == {("ann",)}
    assert vault.erase("ann", dry_run=True) == Erased(tuple(ALL), ())
    assert vault.erase("ann") == Erased(tuple(ALL), ())
    assert everything_in(vault) == ["u7-more"]


def test_a_subgraph_that_comes_later_is_reached(vault: Vault, saver: SavegameSaver) -> None:
    """Also with a saver that has put something there before the thread was deleted by other means."""
    told(saver)
    for _ in range(2):
        vault.thread("u7").delete()
        assert everything_in(vault) == []
        told(saver)
        vault.thread("u7").attach_subject("ann")
        assert vault.erase("ann").threads == ("u7", "u7␟sub", "u7␟sub|deep")


@pytest.mark.parametrize("by", ["thread", "conversation", "saver", "prune"])
def test_a_delete_takes_subgraphs_and_leaves_copies(vault: Vault, saver: SavegameSaver, by: str) -> None:
    told(saver)
    saver.copy_thread("u7", "u7-copy")
    match by:
        case "thread":
            assert vault.thread("u7").delete()
        case "conversation":
            assert vault.delete_conversation("u7")
        case "saver":
            saver.delete_thread("u7")
        case "prune":
            saver.prune(["u7"], strategy="delete")
    assert everything_in(vault) == ["u7-copy", "u7-copy␟sub", "u7-copy␟sub|deep"]
    told(saver)
    assert len(nested(saver).get_state(config("u7")).values["messages"]) == 3, "started over"


WITHOUT_LANGGRAPH = """
import sys
sys.modules["langgraph"] = sys.modules["langchain_core"] = None
from savegame.cli import main
main()
"""


def test_without_langgraph(on_disk: Opener, tmp_path: Path) -> None:
    with on_disk() as vault:
        told(SavegameSaver(vault))
        SavegameSaver(vault).copy_thread("u7", "u7-copy")
        vault.thread("u7").attach_subject("ann")
    command = [sys.executable, "-c", WITHOUT_LANGGRAPH, "erase", "ann", "--yes", "--store", str(tmp_path / "vault.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "6 threads of ann deleted" in done.stdout, done.stderr
    assert everything_in(on_disk()) == []
    assert all(SECRET.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_awaited(tmp_path: Path) -> None:
    async def erased() -> Erased:
        async with savegame.open_async(tmp_path / "vault.db") as vault:
            saver = SavegameSaver(vault._sync)
            await nested(saver).ainvoke({"messages": [HumanMessage(SECRET)]}, config("u7"))
            await saver.acopy_thread("u7", "u7-copy")
            await vault.thread("u7").attach_subject("ann")
            return await vault.erase("ann")

    assert asyncio.run(erased()) == Erased(tuple(ALL), ())


def as_early_versions_wrote_it(vault: Vault) -> None:
    """Without links; the namespaces are noted beside the graph's thread."""
    changes = []
    for name in everything_in(vault):
        key, thread = ThreadKey(vault.namespace, name), vault.thread(name)
        changes += [PutRecord(key, kind, one, None) for kind in (CHILD, PARENT, FORK, SOURCE) for one in thread.records(kind)]
        if name not in ("u7", "u7-copy"):
            changes.append(PutRecord(key, SUBJECT, "ann", None))
    for name in ("u7", "u7-copy"):
        vault.thread(name).put_records({(NOTED, namespace): True for namespace in ("sub", "sub|deep")})
    vault.store.commit(changes)


def test_copies_that_early_versions_made_are_said_to_be_out_of_reach(vault: Vault, saver: SavegameSaver) -> None:
    told(saver)
    told(saver, "other")
    saver.copy_thread("u7", "u7-copy")
    as_early_versions_wrote_it(vault)
    vault.thread("u7").attach_subject("ann")
    erased = vault.erase("ann")
    assert erased.threads == ("u7", "u7␟sub", "u7␟sub|deep")
    assert [what.split("'")[1] for what in erased.unreached] == ["u7-copy", "u7-copy␟sub", "u7-copy␟sub|deep"]
    assert all("may be a copy of it" in what for what in erased.unreached)
    vault.thread("u7-copy").attach_subject("ann")
    assert vault.erase("ann") == Erased(("u7-copy", "u7-copy␟sub", "u7-copy␟sub|deep"), ())
    assert {name.partition("␟")[0] for name in everything_in(vault)} == {"other"}


def test_erasing_only_what_was_made_from_a_thread_suspects_neither_that_nor_its_other_copies(
    vault: Vault, saver: SavegameSaver
) -> None:
    told(saver)
    for name in ("one", "other"):
        saver.copy_thread("u7", name)
    vault.thread("u7").fork("fork")
    saver.copy_thread("one", "copy of one")
    for name in ("copy of one", "fork", "other"):
        vault.thread(name).attach_subject(name)
        assert vault.erase(name, dry_run=True).unreached == ()
        assert vault.erase(name) == Erased((name, f"{name}␟sub", f"{name}␟sub|deep"), ())
    assert {name.partition("␟")[0] for name in everything_in(vault)} == {"u7", "one"}
    assert len(nested(saver).get_state(config("u7")).values["messages"]) == 3


def test_a_copy_without_a_link_is_still_suspected_beside_those_with_one(vault: Vault, saver: SavegameSaver) -> None:
    told(saver)
    for name in ("early", "late"):
        saver.copy_thread("u7", name)
    vault.store.commit(
        [
            PutRecord(ThreadKey(vault.namespace, found), SOURCE, origin, None)
            for found in everything_in(vault)
            if found.startswith("early")
            for origin in vault.thread(found).records(SOURCE)
        ]
    )
    vault.thread("late").attach_subject("ann")
    assert [what.split("'")[1] for what in vault.erase("ann").unreached] == ["early", "early␟sub", "early␟sub|deep"]


def test_a_graph_that_goes_on_links_what_early_versions_wrote(vault: Vault, saver: SavegameSaver) -> None:
    told(saver)
    as_early_versions_wrote_it(vault)
    told(SavegameSaver(vault))
    assert list(vault.thread("u7").records(CHILD)) == ["u7␟sub", "u7␟sub|deep"]
    vault.thread("u7").delete()
    assert [name for name in everything_in(vault) if name.startswith("u7␟")] == []


def test_an_id_with_the_sign_is_not_a_subgraph(vault: Vault, saver: SavegameSaver) -> None:
    """Neither without a note, nor with one but with nothing in it that LangGraph made."""
    vault.thread("u7").put_records({(NOTED, "mine"): True})
    vault.thread("u7").save({})
    for name in ("u7␟mine", "u7␟yours"):
        vault.thread(name).save({"text": "of a user"})
    vault.thread("u7").attach_subject("ann")
    erased = vault.erase("ann")
    assert (erased.threads, len(erased.unreached)) == (("u7",), 2)
    assert everything_in(vault) == ["u7␟mine", "u7␟yours"]
