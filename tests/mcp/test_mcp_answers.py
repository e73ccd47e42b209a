"""Answers are of limited length, whatever is stored; everything can be read nevertheless, page by page and place by place."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from desk import Desk, desk_at

import savegame
from savegame.mcp.server import FEWEST_CHARS, server_on

LONG = "word " * 20_000


@pytest.fixture
def terse(vault: savegame.Vault) -> Iterator[Desk]:
    """A client whose server answers as shortly as it can."""
    with desk_at(server_on(vault, answer_chars=FEWEST_CHARS)) as desk:
        yield desk


def short(answer: dict[str, Any]) -> dict[str, Any]:
    assert len(json.dumps(answer, ensure_ascii=False, separators=(",", ":"))) <= FEWEST_CHARS
    return answer


def pages(desk: Desk, tool: str, entries: str, **arguments: Any) -> list[dict[str, Any]]:
    """Every entry of a list, page by page."""
    found: list[dict[str, Any]] = []
    after: dict[str, Any] = {}
    while True:
        answer = short(desk.give(tool, **arguments, **after))
        found += answer[entries]
        if answer["next"] is None:
            return found
        assert answer[entries], "a page that is not the last one has entries"
        after = {"after": answer["next"]}


def test_a_limit_below_what_answers_need_is_refused(vault: savegame.Vault) -> None:
    with pytest.raises(savegame.InvalidInputError, match="answer_chars"):
        server_on(vault, answer_chars=FEWEST_CHARS - 1)


def test_every_list_is_read_in_pages_without_loss(terse: Desk, vault: savegame.Vault) -> None:
    for number in range(7):
        vault.save_agent(savegame.AgentState(f"agent-{number}", "x" * 3000, "some-model"))
        vault.save_conversation(savegame.Conversation("agent-0", [savegame.Message.user("needle")], title=LONG))
        vault.checkpoint_agent("agent-0", f"point {number}", description=LONG)
    assert len({entry["agent_id"] for entry in pages(terse, "agent_list", "agents")}) == 7
    talks = pages(terse, "conversation_list", "conversations", agent_id="agent-0", limit=2)
    assert len({entry["conversation_id"] for entry in talks}) == len(talks) == 7
    assert talks == sorted(talks, key=lambda entry: entry["last_message_at"], reverse=True)
    assert (
        len({entry["conversation_id"] for entry in pages(terse, "conversation_search", "hits", query="needle", limit=3)}) == 7
    )
    points = pages(terse, "checkpoint_list", "checkpoints", agent_id="agent-0", limit=3)
    assert [point["label"] for point in points] == [f"point {number}" for number in reversed(range(7))]
    history = pages(terse, "thread_history", "checkpoints", thread_id="agent:agent-0", limit=3)
    assert [point["step"] for point in history] == list(range(8, 0, -1))
    assert len({entry["thread_id"] for entry in pages(terse, "thread_list", "threads", limit=4)}) == 14


def test_a_conversation_that_gets_a_message_between_pages_is_not_lost(terse: Desk, vault: savegame.Vault) -> None:
    for name in ("a", "b", "c"):
        vault.save_conversation(savegame.Conversation(None, [savegame.Message.user("x")], id=name))
    first = terse.give("conversation_list", limit=2)
    vault.add_message(first["conversations"][1]["conversation_id"], savegame.Message.user("y"))
    rest = terse.give("conversation_list", limit=2, after=first["next"])
    assert [entry["conversation_id"] for entry in rest["conversations"]] == ["a"]


def test_conversations_of_one_moment_are_all_listed(terse: Desk, vault: savegame.Vault) -> None:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for name in "abcde":
        message = savegame.Message.user("x", timestamp=moment)
        vault.save_conversation(savegame.Conversation(None, [message], id=name, created_at=moment))
    assert [entry["conversation_id"] for entry in pages(terse, "conversation_list", "conversations", limit=2)] == list("abcde")


def test_a_long_conversation_is_read_in_pages(terse: Desk, vault: savegame.Vault) -> None:
    texts = [f"{number} {'x' * 500}" for number in range(100)]
    vault.save_conversation(savegame.Conversation(None, [savegame.Message.user(text) for text in texts], id="talk"))
    found: list[str] = []
    start: int | None = 0
    while start is not None:
        answer = short(terse.give("conversation_load", conversation_id="talk", start=start, limit=30))
        found += [message["content"] for message in answer["messages"]]
        start = answer["next_start"]
    assert found == texts
    last = terse.give("conversation_load", conversation_id="talk", start=-2)
    assert ([message["content"] for message in last["messages"]], last["start"]) == (texts[-2:], 98)
    assert terse.give("conversation_load", conversation_id="talk", start=500)["messages"] == []


def test_what_was_cut_is_read_on_where_the_answer_says(terse: Desk, vault: savegame.Vault) -> None:
    vault.save_conversation(savegame.Conversation(None, [savegame.Message.user(LONG), savegame.Message.user("b")], id="talk"))
    answer = short(terse.give("conversation_load", conversation_id="talk"))
    assert len(answer["messages"]) == 1
    place = next(cut for cut in answer["cut"] if cut["path"] == "/messages/0/content")
    assert place["total"] == len(LONG)
    text = answer["messages"][0]["content"][: place["shown"]]
    start: int | None = place["shown"]
    while start is not None:
        more = short(terse.give("thread_load", thread_id="talk", path=place["path"], start=start))
        text += more["value"]
        start = more["next_start"]
    assert text == LONG


def test_a_big_agent_is_shown_in_all_its_fields(terse: Desk, vault: savegame.Vault) -> None:
    agent = savegame.AgentState("big", "Big", "some-model", LONG, [f"skill {number}" for number in range(5000)])
    agent.custom_state = {f"key {number}": {"deep": [LONG]} for number in range(500)}
    vault.save_agent(agent)
    answer = short(terse.give("agent_load", agent_id="big"))
    assert answer["system_prompt"].startswith("word")
    assert answer["capabilities"]
    assert answer["custom_state"]
    keys = next(cut for cut in answer["cut"] if cut["path"] == "/agent/custom_state")
    assert keys["total"] == 500
    rest = short(terse.give("thread_load", thread_id=answer["thread_id"], path=keys["path"], start=keys["shown"]))
    assert f"key {keys['shown']}" in rest["value"]


def test_names_beside_entries_may_be_long_too(terse: Desk, vault: savegame.Vault) -> None:
    agent = "a" * 512
    vault.save_agent(savegame.AgentState(agent, LONG, LONG))
    message = savegame.Message.user("needle", id="m" * 512)
    vault.save_conversation(savegame.Conversation(agent, [message] * 50, id="c" * 512, tags=["t" * 500] * 50, title=LONG))
    thread = vault.thread("c" * 512)
    thread.update(set={"x": 1}, label="l" * 512, tags=["t" * 512] * 9, metadata={LONG: LONG}, status=f"failed({LONG})")
    assert len(pages(terse, "agent_list", "agents")) == 1
    assert short(terse.give("agent_load", agent_id=agent))["name"].startswith("word")
    assert len(pages(terse, "conversation_list", "conversations")) == 1
    short(terse.give("conversation_load", conversation_id=thread.id))
    assert len(pages(terse, "conversation_search", "hits", query="needle")) == 1
    history = pages(terse, "thread_history", "checkpoints", thread_id=thread.id)
    assert [entry["status"] for entry in history] == ["failed", "in_progress"]
    short(terse.give("thread_load", thread_id=thread.id))
    short(terse.give("checkpoint_label", thread_id=thread.id, label="k" * 512))
    assert len(terse.refuse("thread_load", thread_id=thread.id, path=f"/{LONG}")) < FEWEST_CHARS
    assert "does not exist" in terse.refuse("thread_load", thread_id=thread.id, path=f"/messages/{'9' * 5000}")


def test_big_differences_are_cut_and_paged(terse: Desk, vault: savegame.Vault) -> None:
    thread = vault.thread("t")
    thread.save({f"key {number}": LONG for number in range(30)})
    thread.save({f"key {number}": LONG.upper() for number in range(30)})
    changes = pages(terse, "thread_diff", "changes", thread_id="t", limit=20)
    assert len({change["path"] for change in changes}) == 30
    assert all(change["old"].startswith("word") and change["new"].startswith("WORD") for change in changes)


def test_values_that_json_does_not_have_are_readable(desk: Desk, vault: savegame.Vault) -> None:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    odd = {"at": moment, "pair": (1, 2), "set": {3}, "money": Decimal("1.50"), "bytes": b"ab", "path": Path("a/b"), 1: "one",
           "1": "text one", "nan": float("nan"), "big": 10**50, "huge": 10**9000}  # fmt: skip
    vault.thread("odd").save(odd)
    assert desk.give("thread_load", thread_id="odd")["value"] == {
        "at": "2026-01-01T00:00:00Z", "pair": [1, 2], "set": [3], "money": "1.50", "bytes": {"base64": "YWI="}, "path": "a/b",
        "1": "one", "1…": "text one", "nan": "NaN", "big": "1" + "0" * 50, "huge": hex(10**9000),
    }  # fmt: skip
    assert desk.give("thread_load", thread_id="odd", path="/bytes/base64")["value"] == "YWI="


def test_appending_at_the_same_time_loses_nothing(desk: Desk) -> None:
    desk.give("conversation_save", conversation_id="talk", messages=[{"role": "user", "content": "first"}])

    async def all_at_once() -> None:
        async with anyio.create_task_group() as group:
            for number in range(20):
                message = {"role": "user", "content": str(number)}
                group.start_soon(desk.client.call_tool, "conversation_save", {"conversation_id": "talk", "append": [message]})

    desk.ask(all_at_once)
    messages = desk.give("conversation_load", conversation_id="talk")["messages"]
    assert sorted(message["content"] for message in messages[1:]) == sorted(map(str, range(20)))
