"""Every tool over standard input and output, on every store that lasts: what it does, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from desk import Desk, desk_at

import savegame
from savegame.mcp.server import server_on

OF_D65 = (
    "agent_save", "agent_load", "agent_delete", "agent_list", "conversation_save", "conversation_load", "conversation_delete",
    "conversation_list", "conversation_search", "checkpoint_create", "checkpoint_restore", "checkpoint_list",
    "checkpoint_delete", "persistence_stats",
)  # fmt: skip
TIME_TRAVEL = ("thread_history", "thread_diff", "thread_fork", "thread_rewind", "checkpoint_label")
TO_LOOK = ("thread_list", "thread_load")
AT_WORK = ("thread_effects", "message_send", "thread_stop")


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.requirement(
    "D65a", "D65b", "D65c", "D65d", "D65e", "D65f", "D65g", "D65h", "D65j", "D65k", "D65l", "D65m", "D65n", "E29"
)
def test_an_agent_lives_through_every_tool(stdio: Desk) -> None:
    agent_is_saved_and_loaded(stdio)
    conversation_is_saved_and_loaded(stdio)
    checkpoints_bring_everything_back(stdio)
    a_thread_travels_in_time(stdio)
    all_is_deleted(stdio)


def agent_is_saved_and_loaded(desk: Desk) -> None:
    first = desk.give("agent_save", agent_id="helper", name="Helper", agent_type="some-model", custom_state={"a": 1, "b": 2})
    assert (first["version"], first["created"]) == (1, True)
    second = desk.give("agent_save", agent_id="helper", custom_state={"b": None, "c": [3]}, expect_revision=first["revision"])
    assert (second["version"], second["created"]) == (2, False)
    agent = desk.give("agent_load", agent_id="helper")
    assert agent["revision"] == second["revision"] != first["revision"]
    assert (agent["name"], agent["custom_state"], agent["thread_id"]) == ("Helper", {"a": 1, "c": [3]}, "agent:helper")
    assert [entry["agent_id"] for entry in desk.give("agent_list")["agents"]] == ["helper"]


def conversation_is_saved_and_loaded(desk: Desk) -> None:
    made = desk.give("conversation_save", conversation_id="order-1", agent_id="helper", messages=said("Where is my refund?"))
    assert made["created"]
    more = desk.give(
        "conversation_save",
        conversation_id="order-1",
        append=[
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "find", "arguments": {"order": 1}}]},
            {"role": "tool", "content": "lost", "tool_call_id": "c1"},
        ],
        tags=["money"],
        metadata={"channel": "mail"},
        expect_head=made["head"],
    )
    assert (more["message_count"], more["created"]) == (3, False)
    loaded = desk.give("conversation_load", conversation_id="order-1")
    assert [message["role"] for message in loaded["messages"]] == ["user", "assistant", "tool"]
    assert loaded["messages"][1]["tool_calls"][0]["arguments"] == {"order": 1}
    assert (loaded["title"], loaded["tags"], loaded["metadata"]) == ("Where is my refund?", ["money"], {"channel": "mail"})
    assert loaded["head"] == more["head"]
    unnamed = desk.give("conversation_save", agent_id="helper", messages=said("Something else"))["conversation_id"]
    listed = desk.give("conversation_list", agent_id="helper")["conversations"]
    assert {entry["conversation_id"] for entry in listed} == {unnamed, "order-1"}
    assert [entry["conversation_id"] for entry in desk.give("conversation_list", tag="money")["conversations"]] == ["order-1"]


def checkpoints_bring_everything_back(desk: Desk) -> None:
    before = desk.give("checkpoint_create", agent_id="helper", name="before", kind="pre_operation", description="risky")
    assert (before["label"], before["kind"], before["description"]) == ("before", "pre_operation", "risky")
    desk.give("agent_save", agent_id="helper", custom_state={"a": 99})
    desk.give("conversation_save", conversation_id="order-1", append=said("You get it twice!"))
    restored = desk.give("checkpoint_restore", checkpoint_id=before["id"])
    assert desk.give("agent_load", agent_id="helper")["custom_state"]["a"] == 1
    assert desk.give("conversation_load", conversation_id="order-1")["message_count"] == 3
    desk.give("checkpoint_restore", checkpoint_id=restored["undo"])
    assert desk.give("conversation_load", conversation_id="order-1")["message_count"] == 4
    listed = desk.give("checkpoint_list", agent_id="helper")["checkpoints"]
    assert [entry["kind"] for entry in listed] == ["recovery", "recovery", "pre_operation"]
    for kind in ("periodic", "error", "k" * 64, "before Ω"):
        assert desk.give("checkpoint_create", agent_id="helper", kind=kind)["kind"] == kind
    assert desk.give("checkpoint_list", agent_id="helper")["checkpoints"][0]["kind"] == "before Ω"
    assert desk.give("checkpoint_delete", checkpoint_id=listed[0]["id"]) == {"deleted": True}
    assert desk.give("checkpoint_delete", checkpoint_id=listed[0]["id"]) == {"deleted": False}
    stats = desk.give("persistence_stats")
    assert (stats["agents"], stats["conversations"], stats["messages"]) == (1, 2, 5)
    assert stats["total_bytes"] == stats["sizes"]["total"] > 0


def a_thread_travels_in_time(desk: Desk) -> None:
    history = desk.give("thread_history", thread_id="order-1")
    assert [entry["step"] for entry in history["checkpoints"]] == [3, 2, 1]
    assert history["head"] == history["checkpoints"][0]["id"]
    labelled = desk.give("checkpoint_label", thread_id="order-1", checkpoint="head~1", label="found")
    assert (labelled["checkpoint"]["label"], labelled["was"]) == ("found", None)
    assert desk.give("checkpoint_label", thread_id="order-1", checkpoint="found", label="lost")["was"] == "found"
    (change,) = desk.give("thread_diff", thread_id="order-1", old=2)["changes"][:1]
    assert (change["path"], change["change"], change["new"]["content"]) == ("messages[3]", "added", "You get it twice!")
    fork = desk.give("thread_fork", thread_id="order-1", new_thread_id="what-if", at="lost")
    assert fork["forked_from"] == "order-1"
    assert desk.give("conversation_load", conversation_id="what-if")["message_count"] == 3
    across = desk.give("thread_diff", thread_id="order-1", old="lost", new="head", new_thread_id="what-if")
    assert (across["new"], across["changes"]) == (fork["head"], [])
    back = desk.give("thread_rewind", thread_id="order-1", to="lost")
    assert (back["head"]["step"], back["undo"]) == (2, history["head"])
    assert len(desk.give("thread_history", thread_id="order-1")["checkpoints"]) == 2
    assert len(desk.give("thread_history", thread_id="order-1", branches=True)["checkpoints"]) == 3
    assert desk.give("thread_rewind", thread_id="order-1", to=back["undo"])["head"]["id"] == history["head"]
    listed = {entry["thread_id"]: entry["step"] for entry in desk.give("thread_list", agent_id="helper")["threads"]}
    assert (listed["order-1"], "agent:helper" in listed) == (3, True)
    first = desk.give("thread_load", thread_id="order-1", at=1, path="/messages/0/content")
    assert (first["value"], first["checkpoint"]["step"]) == ("Where is my refund?", 1)


def all_is_deleted(desk: Desk) -> None:
    assert desk.give("conversation_delete", conversation_id="what-if") == {"deleted": True}
    assert desk.give("conversation_delete", conversation_id="what-if") == {"deleted": False}
    assert desk.give("agent_delete", agent_id="helper") == {"deleted": True}
    assert desk.give("agent_delete", agent_id="helper") == {"deleted": False}
    stats = desk.give("persistence_stats")
    assert (stats["agents"], stats["conversations"], stats["threads"], stats["checkpoints"]) == (0, 0, 0, 0)


@pytest.mark.requirement("D65i")
def test_conversations_are_found_by_their_words(stdio: Desk) -> None:
    for number, text in enumerate(("Where is my refund?", "Where is my parcel?")):
        stdio.give("conversation_save", conversation_id=f"order-{number}", agent_id="helper", messages=said("Hello", text))
    (hit,) = stdio.give("conversation_search", query="refund", agent_id="helper")["hits"]
    assert (hit["conversation_id"], hit["message"], hit["snippet"]) == ("order-0", 1, "Where is my [refund]?")
    assert stdio.give("conversation_search", query="refund", agent_id="somebody else")["hits"] == []
    assert len(stdio.give("conversation_search", query="efun", match="substring")["hits"]) == 1


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("agent_save", {}, "invalid-input: agent_id: Missing"),
    ("agent_save", {"agent_id": "new"}, "invalid-input: name is missing"),
    ("agent_save", {"agent_id": "helper", "expect_revision": "old"}, "conflict: agent 'helper' was saved or restored"),
    ("agent_save", {"agent_id": "x", "name": "x", "agent_type": "x", "expect_revision": "old"}, "conflict: agent 'x' was"),
    ("agent_save", {"agent_id": "helper", "custom_state": "text"}, "invalid-input: custom_state: "),
    ("agent_load", {"agent_id": "nobody"}, "not-found: agent 'nobody' does not exist\nNext: List the agents with agent_list"),
    ("agent_delete", {"agent_id": ""}, "invalid-input: the agent's id must not be empty"),
    ("agent_list", {"limit": 1000}, "invalid-input: limit: Input should be less than or equal to 200"),
    ("agent_list", {"after": "gone"}, "invalid-input: after: 'gone' is no longer in the list"),
    ("conversation_save", {"append": [{"role": "robot", "content": "?"}]}, "invalid-input: append[0].role 'robot' is unknown"),
    ("conversation_save", {"messages": [{"role": "user"}]}, "invalid-input: messages[0].content is missing"),
    ("conversation_save", {"conversation_id": "talk", "expect_head": "0" * 32}, "conflict: "),
    ("conversation_load", {"conversation_id": "nothing"}, "thread-not-found: conversation 'nothing' does not exist"),
    ("conversation_load", {"conversation_id": "talk", "start": "x"}, "invalid-input: start: "),
    ("conversation_delete", {"conversation_id": "agent:helper"}, "invalid-input: 'agent:helper' is the thread of an agent"),
    ("conversation_list", {"after": "yesterday"}, "invalid-input: after: 'yesterday' is not the next of"),
    ("conversation_list", {"after": "2026-01-01 x"}, "invalid-input: after: "),
    ("conversation_search", {"query": 7}, "invalid-input: query: "),
    ("conversation_search", {"query": "x", "match": "prefix"}, "invalid-input: match: "),
    ("conversation_search", {"query": "x", "after": "-1"}, "invalid-input: after: '-1' is not the next of"),
    ("checkpoint_create", {"agent_id": "nobody"}, "not-found: Agent not found: 'nobody'"),
    ("checkpoint_create", {"agent_id": "helper", "kind": "k" * 65}, "invalid-input: kind: String should have at most 64"),
    ("checkpoint_create", {"agent_id": "helper", "kind": ""}, "invalid-input: a kind must not be empty"),
    ("checkpoint_restore", {"checkpoint_id": "0" * 32}, "checkpoint-not-found: "),
    ("checkpoint_list", {}, "invalid-input: agent_id: Missing"),
    ("checkpoint_delete", {"checkpoint_id": "a\0b"}, "invalid-input: a checkpoint's id must not contain a NUL"),
    ("persistence_stats", {"of": "all"}, "invalid-input: of: Unexpected"),
    ("thread_history", {"thread_id": "nothing"}, "thread-not-found: "),
    ("thread_history", {"thread_id": "talk", "after": "0" * 32}, "checkpoint-not-found: "),
    ("thread_diff", {"thread_id": "talk", "old": "head~9"}, "checkpoint-not-found: "),
    ("thread_fork", {"thread_id": "talk", "new_thread_id": "talk"}, "already-exists: "),
    ("thread_rewind", {"thread_id": "talk", "to": None}, "invalid-input: to"),
    ("thread_rewind", {"thread_id": "talk", "to": "nowhere"}, "checkpoint-not-found: "),
    ("checkpoint_label", {"thread_id": "talk"}, "invalid-input: label: Missing"),
    ("checkpoint_label", {"thread_id": "talk", "label": ""}, "invalid-input: a label must not be empty"),
    ("thread_list", {"status": "tired"}, "invalid-input: status 'tired' is unknown"),
    ("thread_load", {"thread_id": "talk", "path": "messages"}, "invalid-input: path 'messages' must begin with '/'"),
    ("thread_load", {"thread_id": "talk", "path": "/messages/5"}, "invalid-input: path '/messages/5': '5' does not exist"),
    ("thread_effects", {"thread_id": "talk", "since": "nowhere"}, "checkpoint-not-found: "),
    ("thread_effects", {"thread_id": "talk", "after": "x"}, "invalid-input: after: 'x' is not the next of"),
    ("message_send", {"thread_id": "talk", "content": "x"}, "invalid-input: key: Missing"),
    ("message_send", {"thread_id": "", "content": "x", "key": "k"}, "invalid-input: a thread's id must not be empty"),
    ("thread_stop", {"thread_id": "nothing", "reason": "x"}, "thread-not-found: "),
]  # fmt: skip


@pytest.mark.requirement(
    "D65a", "D65b", "D65c", "D65d", "D65e", "D65f", "D65g", "D65h", "D65i", "D65j", "D65k", "D65l", "D65m", "D65n"
)
def test_bad_arguments_are_refused_with_the_next_step_and_change_nothing(stdio: Desk) -> None:
    stdio.give("agent_save", agent_id="helper", name="Helper", agent_type="some-model")
    stdio.give("conversation_save", conversation_id="talk", agent_id="helper", messages=said("Hello"))
    before = stdio.give("persistence_stats")
    for tool, arguments, wanted in BAD:
        assert stdio.refuse(tool, **arguments).startswith(wanted), (tool, arguments)
    after = stdio.give("persistence_stats")
    assert (after["threads"], after["checkpoints"]) == (before["threads"], before["checkpoints"])


def test_every_tool_is_tried_with_bad_arguments() -> None:
    assert {tool for tool, _, _ in BAD} == {*OF_D65, *TIME_TRAVEL, *TO_LOOK, *AT_WORK}


@pytest.mark.requirement("D65", "D83")
def test_the_fourteen_come_first_in_their_order(desk: Desk) -> None:
    assert tuple(desk.tools) == (*OF_D65, *TIME_TRAVEL, *TO_LOOK, *AT_WORK)
    assert all(tool.title and tool.description for tool in desk.tools.values())


def test_annotations_tell_what_reads_what_destroys_and_what_may_be_repeated(desk: Desk) -> None:
    hints = {name: tool.annotations for name, tool in desk.tools.items() if tool.annotations is not None}
    assert len(hints) == len(desk.tools)
    assert {name for name, hint in hints.items() if hint.destructive_hint} == {
        "agent_delete", "conversation_delete", "checkpoint_delete",
    }  # fmt: skip
    changing = {name for name, hint in hints.items() if not hint.read_only_hint}
    assert changing == {
        "agent_save", "agent_delete", "conversation_save", "conversation_delete", "checkpoint_create", "checkpoint_restore",
        "checkpoint_delete", "thread_fork", "thread_rewind", "checkpoint_label", "message_send", "thread_stop",
    }  # fmt: skip
    assert {name for name in changing if hints[name].idempotent_hint} == {
        "agent_delete", "conversation_delete", "checkpoint_delete", "checkpoint_label", "message_send", "thread_stop",
    }  # fmt: skip
    assert not any(hint.open_world_hint for hint in hints.values())


def test_two_writers_of_one_conversation_notice_each_other(desk: Desk) -> None:
    head = desk.give("conversation_save", conversation_id="talk", messages=said("one"))["head"]
    desk.give("conversation_save", conversation_id="talk", append=said("two"), expect_head=head)
    told = desk.refuse("conversation_save", conversation_id="talk", append=said("other"), expect_head=head)
    assert "Load it again" in told
    assert desk.give("conversation_load", conversation_id="talk")["message_count"] == 2


def test_a_restored_agent_is_not_taken_for_the_one_that_had_the_same_version(desk: Desk) -> None:
    desk.give("agent_save", agent_id="helper", name="Helper", agent_type="some-model")
    made = desk.give("checkpoint_create", agent_id="helper")
    left = desk.give("agent_save", agent_id="helper", custom_state={"a": 1})
    desk.give("checkpoint_restore", checkpoint_id=made["id"])
    again = desk.give("agent_save", agent_id="helper", custom_state={"b": 2})
    assert left["version"] == again["version"]
    assert desk.refuse("agent_save", agent_id="helper", name="x", expect_revision=left["revision"]).startswith("conflict: ")


def test_a_deleted_conversation_comes_back(desk: Desk) -> None:
    desk.give("agent_save", agent_id="helper", name="Helper", agent_type="some-model")
    desk.give("conversation_save", conversation_id="gone", agent_id="helper", messages=said("x"))
    made = desk.give("checkpoint_create", agent_id="helper")
    desk.give("conversation_delete", conversation_id="gone")
    assert desk.give("conversation_list")["conversations"] == []
    desk.give("checkpoint_restore", checkpoint_id=made["id"])
    assert [one["conversation_id"] for one in desk.give("conversation_list")["conversations"]] == ["gone"]


def test_an_erased_conversation_is_told_and_can_be_passed_over(desk: Desk, vault: savegame.Vault) -> None:
    desk.give("agent_save", agent_id="helper", name="Helper", agent_type="some-model")
    desk.give("conversation_save", conversation_id="gone", agent_id="helper", messages=said("x"))
    made = desk.give("checkpoint_create", agent_id="helper")
    vault.thread("gone").attach_subject("ann")
    vault.erase("ann")
    assert "skip_missing" in desk.refuse("checkpoint_restore", checkpoint_id=made["id"])
    assert desk.give("checkpoint_restore", checkpoint_id=made["id"], skip_missing=True)["agent_id"] == "helper"


def test_an_archived_conversation_keeps_what_is_not_named(desk: Desk) -> None:
    desk.give("conversation_save", conversation_id="talk", messages=said("one"), title="A title", metadata={"a": 1, "b": 2})
    desk.give("conversation_save", conversation_id="talk", archived=True, metadata={"a": None})
    loaded = desk.give("conversation_load", conversation_id="talk")
    assert (loaded["title"], loaded["archived"], loaded["metadata"]) == ("A title", True, {"b": 2})
    assert desk.give("conversation_list", archived=False)["conversations"] == []


def test_a_thread_that_somebody_works_on_is_told_as_busy(desk: Desk, vault: savegame.Vault) -> None:
    with vault.run("talk") as run:
        run.user("Hello")
        assert desk.refuse("conversation_save", conversation_id="talk", append=said("x")).startswith("busy: ")


def test_a_read_only_server_offers_what_changes_nothing(vault: savegame.Vault) -> None:
    with desk_at(server_on(vault, read_only=True)) as desk:
        assert "thread_load" in desk.tools
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in desk.tools.values())


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "latest", "head", "🎮", "'; DROP TABLE frames", "?after=1", "%2e%2e", "x" * 512]
)
def test_any_id_is_safe(desk: Desk, name: str) -> None:
    desk.give("agent_save", agent_id=name, name=name, agent_type=name)
    desk.give("conversation_save", conversation_id=name, agent_id=name, messages=said(name))
    assert desk.give("conversation_load", conversation_id=name)["messages"][0]["content"] == name
    (listed,) = desk.give("conversation_list", agent_id=name)["conversations"]
    assert listed["conversation_id"] == name
    assert desk.give("agent_delete", agent_id=name) == {"deleted": True}


def test_what_is_no_conversation_is_found_and_can_be_looked_at(desk: Desk, vault: savegame.Vault) -> None:
    vault.thread("odd").save({"messages": [{"type": "human", "content": "Where is my refund?"}]})
    vault.thread("plain").save({"count": 1})
    (hit,) = desk.give("conversation_search", query="refund")["hits"]
    for name in (hit["conversation_id"], "plain"):
        for tool, more in (("conversation_load", {}), ("conversation_save", {"append": said("x")})):
            told = desk.refuse(tool, conversation_id=name, **more)
            assert "\nNext: Read it with thread_load" in told
    assert desk.give("thread_load", thread_id=hit["conversation_id"], path="/messages/0/type")["value"] == "human"
    assert "Correct the arguments" in desk.refuse("conversation_load", conversation_id="")


def test_messages_without_ids_get_lasting_ones(desk: Desk, vault: savegame.Vault) -> None:
    vault.thread("talk").save({"messages": said("one", "two")})
    first, second = (desk.give("conversation_load", conversation_id="talk")["messages"] for _ in range(2))
    assert first == second
    assert len({message["id"] for message in first}) == 2
    for text in ("three", "four"):
        desk.give("conversation_save", conversation_id="talk", append=said(text))
    changed = [change["path"] for change in desk.give("thread_diff", thread_id="talk")["changes"]]
    assert not [path for path in changed if path.startswith(("messages[0]", "messages[1]", "messages[2]"))]
    assert desk.give("conversation_load", conversation_id="talk")["messages"][:2] == first


def test_a_conversation_with_a_call_that_nobody_can_read_is_loaded_and_appended_to(desk: Desk, vault: savegame.Vault) -> None:
    call = {"id": "c", "name": "find", "arguments": "{"}
    vault.thread("talk").save({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]})
    desk.give("conversation_save", conversation_id="talk", append=said("thanks"))
    (read,) = desk.give("conversation_load", conversation_id="talk")["messages"][0]["tool_calls"]
    assert read["arguments"] == {"arguments": "{"}


def test_numbers_of_any_length_are_shown(desk: Desk, vault: savegame.Vault) -> None:
    long = 10**5000
    vault.thread("odd").save({"messages": [{"role": "user", "content": ["needle", 1]}], "keys": 0, "set": 0})
    vault.thread("odd").update(set={("messages", 0, "content"): ["needle", long], "keys": {long: 1}, "set": {long, (long,)}})
    assert desk.give("conversation_search", query="needle")["hits"]
    assert desk.give("conversation_load", conversation_id="odd")["messages"][0]["content"] == ["needle", hex(long)]
    assert hex(long) in desk.give("thread_load", thread_id="odd", path="/keys")["value"]
    assert len(desk.give("thread_diff", thread_id="odd")["changes"]) == 3


def test_checkpoints_are_named_as_on_the_command_line(desk: Desk) -> None:
    for text in ("one", "two", "three"):
        desk.give("conversation_save", conversation_id="talk", append=said(text))
    newest = desk.give("thread_load", thread_id="talk", at="latest")["checkpoint"]
    assert (newest["step"], desk.give("thread_load", thread_id="talk", at="2")["checkpoint"]["step"]) == (3, 2)
    assert desk.give("thread_diff", thread_id="talk", old="2", new="latest")["new"] == newest["id"]
    assert desk.give("thread_fork", thread_id="talk", new_thread_id="fork", at="2")["forked_from"] == "talk"
    assert desk.give("checkpoint_label", thread_id="talk", checkpoint="latest", label="1")["checkpoint"]["step"] == 3
    assert desk.give("thread_rewind", thread_id="talk", to="1")["head"]["step"] == 3, "a label comes before a step"
    assert desk.give("thread_rewind", thread_id="talk", to="2")["head"]["step"] == 2
    assert desk.refuse("thread_load", thread_id="talk", at="9").startswith("checkpoint-not-found: ")
