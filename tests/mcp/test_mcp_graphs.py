"""LangGraph threads over MCP: nodes and status, subgraphs with their graphs, diffs without bookkeeping."""

from __future__ import annotations

from desk import Desk
from graphs import chat, config, human, team, trip

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
