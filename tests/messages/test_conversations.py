"""Conversations: plain threads, no message lost, listed without being read."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

import pytest
from addresses import Opener

from savegame import Attachment, Conversation, Message
from savegame.errors import AlreadyExistsError, ConflictError, InvalidInputError, ThreadNotFound
from savegame.messages.views import openai_messages
from savegame.vault import Vault


@pytest.mark.requirement("D13e", "D13f", "D13i", "D17f", "D17g", "D30", "D49", "D78")
def test_a_conversation_comes_back_as_it_was_saved(vault: Vault) -> None:
    conversation = Conversation("helper", title="Refund", tags=["vip"], max_context_tokens=1000, metadata={"k": "v"})
    conversation.add_message(Message.user("hello", attachments=[Attachment("code", "a.py", "text/x-python", "print()")]))
    conversation.add_message(Message.assistant("", tool_calls=[{"id": "c1", "name": "find", "arguments": {"n": 1}}]))
    conversation.add_message(Message.tool_result("c1", {"found": [1, 2.0, None]}))
    vault.save_conversation(conversation)
    assert vault.load_conversation(conversation.id) == conversation
    assert vault.load_conversation("nothing") is None


def test_it_is_a_thread(vault: Vault) -> None:
    """Everything that threads can do is there, and the other way round."""
    conversation = Conversation("helper", messages=[{"role": "user", "content": "hi"}])
    vault.save_conversation(conversation)
    thread = vault.thread(conversation.id)
    assert thread.state()["messages"][0]["content"] == "hi"
    thread.update(append={"messages": [{"role": "assistant", "content": "hello"}]})
    assert [message.text for message in vault.load_conversation(conversation.id).messages] == ["hi", "hello"]  # type: ignore[union-attr]
    assert [(info.id, info.message_count) for info in vault.conversations()] == [(conversation.id, 2)]
    thread.rewind("head~1")
    assert [info.message_count for info in vault.conversations()] == [1]


def test_a_plain_thread_with_messages_is_a_conversation(vault: Vault) -> None:
    vault.thread("plain", agent="helper").save({"messages": [{"role": "user", "content": "hi"}], "scratch": 1})
    found = vault.load_conversation("plain")
    assert found is not None
    assert (found.id, found.agent_id, found.messages[0].text) == ("plain", "helper", "hi")
    assert [info.id for info in vault.conversations("helper")] == ["plain"]
    vault.thread("other").save({"n": 1})
    with pytest.raises(InvalidInputError, match="thread 'other' holds no conversation"):
        vault.load_conversation("other")
    assert [info.id for info in vault.conversations()] == ["plain"]


BAD_CALLS: list[tuple[dict[str, Any], tuple[str, dict[str, Any]]]] = [
    ({"id": "c", "name": "find", "arguments": '{"n":'}, ("find", {"arguments": '{"n":'})),
    ({"id": "c", "function": {"name": "find", "arguments": "[1]"}, "index": 0}, ("find", {"arguments": [1]})),
    ({"id": "c", "arguments": {"n": 1}}, ("unknown", {"n": 1})),
    ({"name": "find", "arguments": {"n": 1}}, ("find", {"n": 1})),
    ({"id": "c", "name": "find", "arguments": {}, "status": "completed"}, ("find", {})),
]


@pytest.mark.parametrize(("call", "wanted"), BAD_CALLS)
def test_calls_that_nobody_can_read_are_loaded_as_the_model_was_shown_them(
    vault: Vault, call: dict[str, Any], wanted: tuple[str, dict[str, Any]]
) -> None:
    """A run keeps them as they are and goes on; its conversation can be loaded, added to and saved again."""
    replies = iter([{"role": "assistant", "content": None, "tool_calls": [call]}, "done"])
    with vault.run("talk") as run:
        run.user("hi")
        while not run.done:
            run.tools()
            run.model(lambda _: next(replies))
        shown = run.messages
    found = vault.load_conversation("talk")
    assert found is not None
    (read,) = found.messages[1].tool_calls
    assert (read.name, read.arguments) == wanted
    assert read.id == found.messages[2].tool_call_id
    found.add_message(Message.user("thanks"))
    vault.save_conversation(found)
    vault.add_message("talk", Message.user("bye"))
    with vault.run("talk") as run:
        assert openai_messages(run.messages)[:4] == openai_messages(shown)
    assert vault.load_conversation("talk").messages[1].tool_calls == [read]  # type: ignore[union-attr]


@pytest.mark.requirement("D50", "Z43")
def test_messages_that_many_add_at_once_are_all_there(vault: Vault) -> None:
    conversation = Conversation("helper")
    vault.save_conversation(conversation)

    def add(who: int) -> None:
        for number in range(25):
            vault.add_message(conversation.id, Message.user(f"{who}:{number}"))

    threads = [threading.Thread(target=add, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = vault.load_conversation(conversation.id)
    assert found is not None
    assert sorted(message.text for message in found.messages) == sorted(f"{who}:{n}" for who in range(8) for n in range(25))
    assert [info.message_count for info in vault.conversations()] == [200]


def test_a_message_added_again_with_the_same_id_is_there_once(vault: Vault) -> None:
    conversation = Conversation("helper", messages=[{"role": "user", "content": "hi"}])
    vault.save_conversation(conversation)
    first = vault.add_message(conversation.id, {"role": "user", "content": "again"}, id="webhook-1")
    for again in ({"role": "user", "content": "again"}, Message.user("again")):  # re-created: another id, another time
        assert vault.add_message(conversation.id, again, id="webhook-1").id == first.id
    assert len(vault.load_conversation(conversation.id).messages) == 2  # type: ignore[union-attr, arg-type]
    with pytest.raises(AlreadyExistsError):
        vault.add_message(conversation.id, Message.user("other"), id="webhook-1")


@pytest.mark.requirement("D50", "D51", "D56", "D59", "X17")
def test_an_unknown_conversation_gets_no_message(vault: Vault) -> None:
    with pytest.raises(ThreadNotFound, match="Conversation not found: 'nothing'"):
        vault.add_message("nothing", Message.user("hi"))
    assert vault.load_conversation("nothing") is None
    vault.thread("odd").save({"messages": "none"})
    with pytest.raises(InvalidInputError, match="messages"):
        vault.add_message("odd", Message.user("hi"))
    with pytest.raises(InvalidInputError, match="role"):
        vault.add_message("odd", {"role": "nobody", "content": "hi"})


def test_a_loaded_conversation_does_not_overwrite_what_somebody_added_since(vault: Vault) -> None:
    conversation = Conversation("helper")
    vault.save_conversation(conversation)
    mine = vault.load_conversation(conversation.id)
    assert mine is not None
    vault.add_message(conversation.id, Message.user("theirs"))
    mine.title = "mine"
    with pytest.raises(ConflictError):
        vault.save_conversation(mine)
    vault.save_conversation(mine, force=True)
    assert vault.load_conversation(conversation.id).message_count() == 0  # type: ignore[union-attr]
    vault.save_conversation(mine)


@pytest.mark.requirement("D50", "Z43")
def test_the_last_message_has_its_own_time(vault: Vault) -> None:
    """A message that was said earlier does not move the clock back, one from the future is believed."""
    begun = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    conversation = Conversation("helper", created_at=begun)
    vault.save_conversation(conversation)
    for day, newest in ((5, 5), (3, 5), (9, 9)):
        vault.add_message(conversation.id, Message.user("x", timestamp=begun.replace(day=day)))
        assert [info.last_message_at.day for info in vault.conversations()] == [newest]
        assert vault.load_conversation(conversation.id).last_message_at.day == newest  # type: ignore[union-attr]


@pytest.mark.requirement("D30", "D49", "D78")
def test_conversations_are_listed_by_their_last_message(vault: Vault) -> None:
    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    for number in range(6):
        conversation = Conversation(
            "even" if number % 2 == 0 else "odd",
            id=f"c{number}",
            title=f"number {number}",
            created_at=day.replace(day=number + 1),
            archived=number == 5,
            tags=["low"] if number < 3 else [],
        )
        vault.save_conversation(conversation)
    vault.add_message("c1", Message.user("late"))

    def ids(**wanted: object) -> list[str]:
        return [info.id for info in vault.conversations(**wanted)]  # type: ignore[arg-type]

    assert ids() == ["c1", "c5", "c4", "c3", "c2", "c0"]
    assert ids(limit=2) == ["c1", "c5"]
    assert ids(agent="even") == ["c4", "c2", "c0"]
    assert ids(tag="low") == ["c1", "c2", "c0"]
    assert (ids(archived=True), ids(archived=False, limit=1), ids(limit=0)) == (["c5"], ["c1"], [])
    first = next(vault.conversations())
    assert (first.title, first.message_count, first.tags, first.agent_id) == ("number 1", 1, ("low",), "odd")
    assert ids(limit=10**30) == ids()
    with pytest.raises(InvalidInputError, match="limit"):
        vault.conversations(limit=-1)


@pytest.mark.requirement("D38", "Z40")
def test_listing_reads_no_states(on_disk: Opener) -> None:
    """A conversation whose state is damaged is listed all the same."""
    vault = on_disk()
    conversation = Conversation("helper", title="readable")
    vault.save_conversation(conversation)
    vault.add_message(conversation.id, Message.user("hi"))
    with vault.connection() as db:
        db.execute("UPDATE frame SET delta = x'00'")
    assert [info.title for info in on_disk().conversations()] == ["readable"]


@pytest.mark.requirement("D30", "D49", "D50", "D51", "D56", "D59", "D78", "X17")
def test_deleting_a_conversation(vault: Vault) -> None:
    conversation = Conversation("helper")
    vault.save_conversation(conversation)
    assert vault.delete_conversation(conversation.id) is True
    assert vault.delete_conversation(conversation.id) is False
    assert vault.load_conversation(conversation.id) is None


def test_an_attachment_that_returns_is_kept_once(on_disk: Opener) -> None:
    vault = on_disk(compress=False)
    picture = bytes(range(256)) * 4096
    conversation = Conversation("helper")
    vault.save_conversation(conversation)
    for number in range(5):
        attachment = Attachment("image", f"{number}.png", "image/png", picture)
        vault.add_message(conversation.id, Message.user("look", attachments=[attachment]))
    found = vault.load_conversation(conversation.id)
    assert found is not None
    assert [message.attachments[0].content for message in found.messages] == [picture] * 5
    assert len(picture) <= vault.stats().sizes["blobs"] < 2 * len(picture)


@pytest.mark.requirement("B25", "B26", "B27", "X05", "Z21")
def test_a_checkpoint_is_deleted_by_its_id(vault: Vault) -> None:
    thread = vault.thread("t")
    first = thread.save({"n": 1})
    thread.save({"n": 2})
    assert vault.delete_checkpoint(first.id) is True
    assert vault.delete_checkpoint(first.id) is False
    assert [entry.step for entry in thread.history()] == [2]


def test_an_agents_own_thread_is_no_conversation(vault: Vault) -> None:
    vault.save_agent({"agent_id": "bob", "name": "Bob", "agent_type": "t"})
    for attempt in (
        lambda: vault.add_message("agent:bob", Message.user("hi")),
        lambda: vault.save_conversation(Conversation(id="agent:bob")),
        lambda: vault.load_conversation("agent:bob"),
        lambda: vault.delete_conversation("agent:bob"),
    ):
        with pytest.raises(InvalidInputError, match="thread of an agent"):
            attempt()
    assert vault.load_agent("bob") is not None


def test_a_thread_of_something_else_does_not_become_a_conversation(vault: Vault) -> None:
    vault.thread("plan").save({"plan": 1})
    for attempt in (
        lambda: vault.add_message("plan", Message.user("hi")),
        lambda: vault.save_conversation(Conversation(id="plan")),
    ):
        with pytest.raises(InvalidInputError, match="holds no conversation"):
            attempt()
    assert vault.thread("plan").state() == {"plan": 1}


@pytest.mark.parametrize(
    "state",
    [
        {"messages": [], "last_message_at": "2024-05-05T00:00:00Z", "title": 7, "tags": "no", "archived": "maybe"},
        {"messages": [], "last_message_at": dt.datetime(2024, 5, 5), "created_at": []},
    ],
)
def test_odd_states_do_not_stop_the_listings(vault: Vault, state: dict[str, object]) -> None:
    vault.save_agent({"agent_id": "bob", "name": "Bob", "agent_type": "t"})
    thread = vault.thread("odd", agent="bob")
    thread.save(state, metadata={"conversation": {"tags": 7}, "agent": 1, "heads": 2})
    vault.save_conversation(Conversation("bob", id="sound"))
    assert {info.id for info in vault.conversations("bob")} == {"odd", "sound"}
    assert (vault.stats().agents, vault.load_agent("bob").active_conversations) == (1, ["sound"])  # type: ignore[union-attr]
    vault.add_message("odd", Message.user("hi"))
    assert next(vault.conversations()).id == "odd"


def test_what_a_state_has_besides_stays(vault: Vault) -> None:
    """Fields of the state and of messages that a conversation has no name for."""
    said = {"role": "assistant", "content": "hi", "reasoning": "because", "name": "Ann"}
    vault.thread("plain").save({"messages": [said], "plan": [1, 2]})
    conversation = vault.load_conversation("plain")
    assert conversation is not None
    conversation.title = "new"
    vault.save_conversation(conversation)
    vault.add_message("plain", {**said, "content": "again"})
    state = vault.thread("plain").state()
    assert (state["plan"], state["title"]) == ([1, 2], "new")
    assert [(one["reasoning"], one["name"]) for one in state["messages"]] == [("because", "Ann")] * 2
    conversation = vault.load_conversation("plain")
    assert conversation is not None
    conversation.title = None
    vault.save_conversation(conversation)
    assert "title" not in vault.thread("plain").state()
