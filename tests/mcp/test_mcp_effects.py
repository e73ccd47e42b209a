"""Agents at work, over MCP: messages to them, stop, and what their tools did in the world when a model goes back."""

from __future__ import annotations

from typing import Any

import pytest
from desk import Desk, desk_at

import savegame
from savegame.mcp.server import server_on
from savegame.mcp.tools import HINTS

made: list[int] = []
tools = savegame.Toolbox()


@tools.tool
def refund(cents: int, note: str = "") -> str:
    made.append(cents)
    return f"refunded {cents}{note}"


def model(messages: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] == "tool":
        return "done"
    return {"role": "assistant", "tool_calls": [{"id": f"c{len(made)}", "name": "refund", "arguments": {"cents": 4900}}]}


def work(vault: savegame.Vault, thread_id: str, text: str = "Refund me.", agent: str | None = None) -> Any:
    with vault.run(thread_id, tools=tools, agent=agent) as run:
        run.user(text)
        while not run.done:
            run.tools()
            run.model(model)
        return run.reply


@pytest.fixture
def paid(vault: savegame.Vault) -> savegame.Checkpoint:
    """The checkpoint before a refund."""
    made.clear()
    first = vault.thread("order").save({"messages": [{"role": "user", "content": "Hello"}]}, label="asked")
    work(vault, "order")
    return first


def test_effects_are_listed_in_pages(desk: Desk, vault: savegame.Vault, paid: savegame.Checkpoint) -> None:
    work(vault, "order", "Once more.")
    page = desk.give("thread_effects", thread_id="order", limit=1)
    (one,) = page["effects"]
    assert (one["tool"], one["arguments"], one["result"], one["status"]) == ("refund", {"cents": 4900}, "refunded 4900", "done")
    assert (one["left"], one["undone_at"]) == (False, None)
    rest = desk.give("thread_effects", thread_id="order", after=page["next"])
    assert (len(rest["effects"]), rest["next"]) == (1, None)
    assert desk.give("thread_effects", thread_id="order", since="head")["effects"] == []
    assert "thread-not-found" in desk.refuse("thread_effects", thread_id="nothing")
    assert "checkpoint-not-found" in desk.refuse("thread_effects", thread_id="order", since="nothing")


def test_a_rewind_and_a_fork_say_what_stays_in_the_world(desk: Desk, paid: savegame.Checkpoint) -> None:
    fork = desk.give("thread_fork", thread_id="order", new_thread_id="second", at="asked")
    back = desk.give("thread_rewind", thread_id="order", to="asked")
    for answer in (fork, back):
        assert (answer["total_effects"], [one["tool"] for one in answer["effects"]]) == (1, ["refund"])
    assert [one["left"] for one in desk.give("thread_effects", thread_id="order")["effects"]] == [True]
    assert desk.give("thread_rewind", thread_id="order", to=back["undo"])["effects"] == []


def test_a_restore_says_what_stays_in_the_world(desk: Desk, vault: savegame.Vault) -> None:
    desk.give("agent_save", agent_id="helper", name="Helper", agent_type="some-model")
    desk.give("conversation_save", conversation_id="order", agent_id="helper", messages=[{"role": "user", "content": "Hello"}])
    before = desk.give("checkpoint_create", agent_id="helper")
    work(vault, "order", agent="helper")
    work(vault, "born later", agent="helper")
    restored = desk.give("checkpoint_restore", checkpoint_id=before["id"])
    assert {one["thread_id"] for one in restored["effects"]} >= {"order"}
    assert restored["total_effects"] == len(restored["effects"])
    assert desk.give("checkpoint_restore", checkpoint_id=restored["undo"])["effects"] == []


def test_long_effects_fit_into_an_answer(vault: savegame.Vault, paid: savegame.Checkpoint) -> None:
    def asks(messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return "done"
        calls = [
            {"id": f"c{number}", "name": "refund", "arguments": {"cents": number, "note": "x" * 5000}} for number in range(40)
        ]
        return {"role": "assistant", "tool_calls": calls}

    with vault.run("order", tools=tools) as run:
        run.user("All of them.")
        run.model(asks)
        run.tools()
    with desk_at(server_on(vault, answer_chars=16_000)) as desk:
        back = desk.give("thread_rewind", thread_id="order", to="asked")
        assert 0 < len(back["effects"]) < back["total_effects"] == 41
        assert len(str(back)) < 20_000


def test_messages_reach_a_run_once(desk: Desk, vault: savegame.Vault) -> None:
    sent = {"thread_id": "order", "content": "Also, the wrong colour.", "key": "msg-77"}
    assert desk.give("message_send", **sent) == {"thread_id": "order", "new": True}
    assert desk.give("message_send", **sent) == {"thread_id": "order", "new": False}
    with vault.run("order") as run:
        assert [message["content"] for message in run.messages] == ["Also, the wrong colour."]
    assert not desk.give("message_send", **sent)["new"]
    vault.thread("plain").save(["no conversation"])
    assert "holds no conversation" in desk.refuse("message_send", **sent | {"thread_id": "plain"})


def test_a_model_cannot_use_up_the_key_of_another_sender(desk: Desk, vault: savegame.Vault) -> None:
    desk.give("message_send", thread_id="order", content="Nothing.", key="webhook-1")
    assert vault.send("order", "The real one.", key="webhook-1")
    with vault.run("order") as run:
        assert run.user("Another.", key="webhook-2")
        assert [message["content"] for message in run.messages] == ["Nothing.", "The real one.", "Another."]


def test_a_run_is_stopped(desk: Desk, vault: savegame.Vault) -> None:
    with vault.run("order") as run:
        run.user("Go on.")
        stopped = desk.give("thread_stop", thread_id="order", reason="enough")
        assert (stopped["stopped"], stopped["status"]) == (True, "in_progress")
        with pytest.raises(savegame.Stopped, match="enough"):
            run.model(lambda _: "never")
    again = desk.give("thread_stop", thread_id="order", reason="enough")
    assert (again["stopped"], again["status"]) == (False, "halted")
    assert "thread-not-found" in desk.refuse("thread_stop", thread_id="nothing", reason="x")


def test_no_tool_lets_a_model_agree_to_its_own_calls() -> None:
    assert not [name for name in HINTS if "answer" in name or "resolve" in name or "approve" in name]
    assert not HINTS["message_send"].destroys
    assert HINTS["thread_effects"].reads
