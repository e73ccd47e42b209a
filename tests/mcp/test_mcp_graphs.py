"""LangGraph threads over MCP: nodes and status, subgraphs with their graphs, diffs without bookkeeping."""

from __future__ import annotations

from desk import Desk
from graphs import chat, config, human, team, trip
from langgraph.types import Command

import savegame


def test_subgraphs_are_named_with_their_graph(vault: savegame.Vault, desk: Desk) -> None:
    team(vault).invoke({"log": []}, config("t"))
    vault.thread("t-other").save(1)
    listed = desk.give("thread_list")["threads"]
    assert [(one["thread_id"], one["status"], len(one["children"])) for one in listed] == [
        ("t", "halted", 1),
        ("t-other", "in_progress", 0),
    ]
    (child,) = listed[0]["children"]
    assert desk.give("thread_history", thread_id=child)["checkpoints"][0]["kind"] == "look"
    filtered = desk.give("thread_list", status="halted")["threads"]
    assert [(one["thread_id"], one["child_of"]) for one in filtered] == [("t", None), (child, "t")]


def test_the_head_of_a_graph_that_asks_is_halted(vault: savegame.Vault, desk: Desk) -> None:
    trip(vault).invoke({"log": []}, config("t"))
    newest, *older = desk.give("thread_history", thread_id="t")["checkpoints"]
    assert (newest["kind"], newest["status"], newest["reason"]) == ("__start__", "halted", "ask waits for a person")
    assert {one["status"] for one in older} == {"in_progress"}


def test_diffs_are_of_messages_unless_all_is_wanted(vault: savegame.Vault, desk: Desk) -> None:
    chat(vault).invoke(human("hello"), config("t"))
    found = desk.give("thread_diff", thread_id="t")
    assert [change["path"] for change in found["changes"]] == ["channel_values.messages[1]"]
    assert (found["total"], found["next"]) == (1, None)
    whole = desk.give("thread_diff", thread_id="t", bookkeeping=True)
    assert whole["folded"] == 0
    assert {"ts", "id", "channel_versions.messages"} <= {change["path"] for change in whole["changes"]}
    fields = {change["path"].partition(".")[0].partition("[")[0] for change in whole["changes"]} - {"channel_values"}
    assert found["folded"] == len(fields) + 1, "and the channel that started the node"
    assert desk.give("thread_diff", thread_id="t", old=1, new=1)["folded"] == 0


def test_a_graph_is_rewound_and_forked(vault: savegame.Vault, desk: Desk) -> None:
    graph = team(vault)
    graph.invoke({"log": []}, config("t"))
    done = graph.invoke(Command(resume="yes"), config("t"))
    start = next(one for one in desk.give("thread_history", thread_id="t")["checkpoints"] if one["kind"] == "__start__")
    desk.give("thread_fork", thread_id="t", new_thread_id="what-if", at=start["id"])
    desk.give("thread_rewind", thread_id="t", to=start["id"])
    for thread_id in ("t", "what-if"):
        assert graph.get_state(config(thread_id)).next == ("helper",)
        assert graph.invoke(None, config(thread_id))["__interrupt__"]
        assert graph.invoke(Command(resume="yes"), config(thread_id)) == done
