"""The inbox: messages that come while a run works or none does; each key once, in order, never between calls and answers."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from addresses import Opener
from clocks import CLOCKED, HOUR_US, Clock, clocked

import savegame
from savegame import Conversation, InvalidInputError, Message, Paused, ThreadNotFound, Toolbox, Unknown, Vault
from savegame.model import ThreadKey
from savegame.runs.ledger import INPUT_KEY
from savegame.store import PutRecord, StoreChange
from savegame.stores.sqlite import SQLiteStore
from savegame.testing.provider import check_messages

CALLS = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "look", "arguments": {}}]}


def tools_of(*functions: Any, **how: Any) -> Toolbox:
    tools = Toolbox()
    for function in functions:
        tools.tool(**how)(function) if how else tools.tool(function)
    return tools


def said(vault: Vault, thread_id: str = "t") -> list[Any]:
    return [message["content"] for message in vault.thread(thread_id).state()["messages"]]


def waiting(vault: Vault, thread_id: str = "t") -> list[Any]:
    return [message.content for message in vault.inbox(thread_id)]


def stale(vault: Vault) -> list[tuple[str, str]]:
    return [(run.thread_id, run.reason) for run in vault.stale()]


def assert_valid_everywhere(vault: Vault, thread_id: str = "t") -> None:
    """At every checkpoint, nothing stands between the calls of a reply and their answers."""
    for checkpoint in vault.thread(thread_id).history(branches=True):
        messages = checkpoint.load().state["messages"]
        open_calls = 0
        for message in messages:
            assert not open_calls or message["role"] == "tool", messages
            open_calls += len(message.get("tool_calls", ())) if message["role"] == "assistant" else -(message["role"] == "tool")
        if not open_calls:
            check_messages(messages)


# -- sending ---------------------------------------------------------------------------------------


def test_a_message_is_sent_while_a_run_holds_the_thread_and_taken_in_before_the_model_answers(opened: Opener) -> None:
    vault = opened()
    other = vault if vault.store.scheme == "memory" else opened()
    asked: list[list[Any]] = []

    def llm(messages: list[dict[str, Any]]) -> str:
        check_messages(messages)
        asked.append([message["content"] for message in messages])
        return "yes"

    with vault.run("t") as run:
        run.user("first")
        assert other.send("t", "second", key="k")
        assert other.send("t", {"role": "user", "content": [{"type": "text", "text": "third"}]})
        assert next(vault.inbox("t")).key == "k"
        run.model(llm)
        assert run.done
    assert asked == [["first", "second", [{"type": "text", "text": "third"}]]]
    assert (waiting(vault), stale(vault)) == ([], [])
    assert vault.thread("t").state()["messages"][1][INPUT_KEY] == "k"


def test_each_key_counts_once_for_ever(vault: Vault) -> None:
    assert vault.send("t", "one", key="k")
    assert not vault.send("t", "one", key="k")
    with vault.run("t") as run:
        assert not run.user("one", key="k"), "it was taken in on entering"
        assert not vault.send("t", "one", key="k")
        assert run.user("two", key="from a run")
        assert not vault.send("t", "two", key="from a run")
        run.save(label="both")
        run.user("three")
    vault.thread("t").rewind(1)
    assert not vault.send("t", "one", key="k"), "also when the message is on a line that was left"
    assert vault.send("t", "two", key="from a run"), "that key counts on the head's line only"
    assert vault.send("t", "same text") and vault.send("t", "same text"), "without a key, each message counts"  # noqa: PT018
    assert waiting(vault) == ["two", "same text", "same text"]


def test_a_key_that_waits_is_known_to_run_user(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        vault.send("t", "again", key="k")
        assert not run.user("again", key="k")
        assert [message["content"] for message in run.messages] == ["hi", "again"]


def test_a_message_that_was_taken_back_is_not_taken_in_and_its_key_stays_used(vault: Vault) -> None:
    vault.send("t", "one", key="1")
    vault.send("t", "two", key="2")
    assert vault.unsend("t", "1")
    assert not vault.unsend("t", "1")
    assert not vault.unsend("nowhere", "1")
    with vault.run("t") as run:
        assert [message["content"] for message in run.messages] == ["two"]
        assert not vault.unsend("t", "2"), "it was taken in"
    assert not vault.send("t", "one", key="1")


@pytest.mark.parametrize(
    "content", [Message.assistant("no"), {"role": "tool", "content": "", "tool_call_id": "x"}, {"role": "?"}]
)
def test_what_a_run_would_refuse_is_refused(vault: Vault, content: Any) -> None:
    with pytest.raises(InvalidInputError):
        vault.send("t", content)
    with pytest.raises(InvalidInputError):
        vault.send("t", "a text", key="")
    with pytest.raises(savegame.InvalidState):
        vault.send("t", object())
    vault.thread("numbers").save({"messages": 7})
    vault.thread("number").save(7)
    for thread_id in ("numbers", "number"):
        with pytest.raises(InvalidInputError, match="holds no conversation"):
            vault.send(thread_id, "hi")
    assert list(vault.stale()) == []


def test_a_conversation_of_any_form_takes_messages(vault: Vault) -> None:
    conversation = Conversation(id="c")
    conversation.add_message(Message.user("old", metadata={}))
    vault.save_conversation(conversation)
    vault.thread("empty").save({"plan": "none"})
    for thread_id in ("c", "empty"):
        assert vault.send(thread_id, Message.user("new"))
        with vault.run(thread_id) as run:
            assert [message["content"] for message in run.messages][-1] == "new"


def test_a_message_to_a_thread_that_does_not_exist_begins_one_that_only_stale_and_inbox_show(vault: Vault) -> None:
    before = vault.stats()
    assert vault.send("t", "hi", key="k")
    assert (stale(vault), waiting(vault)) == ([("t", "mail")], ["hi"])
    run = next(iter(vault.stale()))
    assert (run.owner, run.expired_at, run.takeovers, run.damage) == (None, None, 0, None)
    assert (list(vault.threads()), list(vault.conversations()), vault.thread("t").latest()) == ([], [], None)
    assert (vault.stats().threads, vault.stats().messages) == (before.threads, before.messages)
    assert vault.verify().ok
    with pytest.raises(ThreadNotFound):
        vault.stop("t", "no run")
    vault.thread("t").delete()
    assert (stale(vault), waiting(vault)) == ([], [])
    assert vault.store.thread(ThreadKey("default", "t")) is None
    assert vault.send("t", "hi", key="k"), "its keys went with it"


def test_forks_carry_no_mail_and_copies_do(vault: Vault, tmp_path: Path) -> None:
    with vault.run("t") as run:
        run.user("hi")
    vault.send("t", "waits", key="k")
    vault.send("only mail", "begins")
    vault.thread("t").fork("fork")
    assert waiting(vault, "fork") == []
    assert vault.send("fork", "its own", key="k")
    with savegame.open("memory:") as other:
        vault.copy_to(other)
        assert (waiting(other), waiting(other, "only mail")) == (["waits"], ["begins"])
        assert not other.send("t", "again", key="k")
    vault.export(tmp_path / "export.jsonl", threads=["t", "only mail"])
    with savegame.open("memory:") as other:
        other.import_(tmp_path / "export.jsonl")
        assert (waiting(other), waiting(other, "only mail")) == (["waits"], ["begins"])
        assert not other.send("t", "again", key="k")


# -- taking in -------------------------------------------------------------------------------------


def test_messages_wait_while_a_call_has_no_answer(vault: Vault) -> None:
    def look() -> str:
        vault.send("t", "from inside the tool")
        return "seen"

    with vault.run("t", tools=tools_of(look)) as run:
        run.user("hi")
        run.model(lambda _: CALLS)
        vault.send("t", "between reply and tools", key="k")
        assert not run.user("again", key="k")
        run.tools()
        assert not run.done
        run.model(lambda _: "done")
    assert said(vault) == ["hi", "", "seen", "between reply and tools", "from inside the tool", "done"]
    assert_valid_everywhere(vault)


def test_mail_of_a_thread_that_waits_for_a_person_waits_too(vault: Vault) -> None:
    """Else a supervisor would resume it again and again."""

    def wire(iban: str) -> str:
        return "sent"

    tools = tools_of(wire, ask=True)
    with pytest.raises(Paused) as paused, vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
        run.user("pay")
        run.model(lambda _: {**CALLS, "tool_calls": [{"id": "c1", "name": "wire", "arguments": {"iban": "DE00"}}]})
        run.tools()
    assert paused.value.until is None
    vault.send("t", "and hurry")
    assert stale(vault) == []
    with pytest.raises(Paused), vault.run("t", tools=tools) as run:
        run.tools()
    assert waiting(vault) == ["and hurry"]
    vault.answer("t", paused.value.call, True)
    assert stale(vault) == [("t", "mail")]
    with vault.run("t", tools=tools) as run:
        run.tools()
        run.model(lambda _: "done")
    assert said(vault) == ["pay", "", "sent", "and hurry", "done"]
    assert_valid_everywhere(vault)


def test_mail_of_a_thread_whose_call_is_unknown_waits_until_it_is_resolved(vault: Vault) -> None:
    def look() -> str:
        raise KeyboardInterrupt

    tools = tools_of(look)
    with pytest.raises(KeyboardInterrupt), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        run.model(lambda _: CALLS)
        run.tools()
    vault.send("t", "well?")
    assert stale(vault) == [("t", "crashed")], "it crashed, and has mail"
    with pytest.raises(Unknown) as unknown, vault.run("t", tools=tools) as run:
        run.tools()
    assert stale(vault) == []
    vault.resolve("t", unknown.value.call, "found out")
    assert stale(vault) == [("t", "mail")]


def test_a_finished_thread_is_reopened_by_later_mail(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        run.model(lambda _: "hello")
        vault.send("t", "one more thing")
        assert run.done, "it says what the looks saw"
    assert vault.thread("t").latest().status == "completed"  # type: ignore[union-attr]
    assert stale(vault) == [("t", "mail")]
    with vault.run("t") as run:
        assert not run.done
        run.model(lambda _: "yes?")
    assert stale(vault) == []


def test_what_was_taken_in_stays_on_its_line(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        run.save(label="before")
        vault.send("t", "mail", key="k")
        run.model(lambda _: "hello")
    vault.thread("t").rewind("before")
    assert (said(vault), waiting(vault), stale(vault)) == (["hi"], [], [])
    with vault.run("t") as run:
        run.model(lambda _: "hello again")
    assert said(vault) == ["hi", "hello again"]


def test_a_message_that_a_run_took_meanwhile_is_dropped(vault: Vault) -> None:
    """`send` looked before `run.user` wrote: the dedupe is under the lease."""
    with vault.run("t") as run:
        run.user("hi", key="k")
    thread = vault.thread("t").timeline
    value = {"key": "k", "content": "hi", "sent_at": vault.store.clock()}
    thread.commit([thread.put("inbox", f"{1:020d}", value)])
    with vault.run("t") as run:
        assert [message["content"] for message in run.messages] == ["hi"]
    assert waiting(vault) == []


def test_mail_that_waited_when_a_run_was_ended_does_not_reopen_it(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        vault.send("t", "early")
        run.halt("enough")
    assert stale(vault) == []
    with vault.run("t") as run:
        assert run.done
    assert waiting(vault) == ["early"]
    vault.send("t", "late")
    assert stale(vault) == [("t", "mail")]
    with vault.run("t") as run:
        assert not run.done
        run.model(lambda _: "well")
    assert said(vault) == ["hi", "early", "late", "well"]


def test_a_message_of_run_user_reopens_a_halted_thread_with_all_that_waits(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        vault.send("t", "early")
        run.halt("enough")
        run.user("go on")
        assert not run.done
    assert said(vault) == ["hi", "early", "go on"]


# -- commits ---------------------------------------------------------------------------------------


class Counting(SQLiteStore):
    """Notes the kinds of changes of every commit."""

    def __init__(self, path: str) -> None:
        self.commits: list[list[str]] = []
        super().__init__(path)

    def commit(self, changes: list[StoreChange]) -> list[int]:  # type: ignore[override]
        made = super().commit(changes)
        self.commits.append([change.kind if isinstance(change, PutRecord) else type(change).__name__ for change in changes])
        return made


def test_a_batch_of_messages_is_one_checkpoint_and_one_commit_and_a_run_without_any_commits_no_more(tmp_path: Path) -> None:
    store = Counting(str(tmp_path / "v.db"))
    vault = Vault(store)

    def look() -> str:
        return "seen"

    def turn(text: str) -> list[list[str]]:
        store.commits.clear()
        with vault.run("t", tools=tools_of(look, read_only=True)) as run:
            run.user(text)
            run.step("step", lambda: 1)
            run.model(lambda _: CALLS)
            run.tools()
            run.model(lambda _: "done")
        return store.commits.copy()

    assert turn("one") == [["Append"], ["step"], ["Append"], ["Append", "call"], ["Append"]]
    for number in range(3):
        vault.send("t", f"mail {number}", key=str(number))
    assert store.commits[-1] == ["inbox", "sent"]
    commits = turn("two")
    assert commits[0] == ["Append", "Expect", *["inbox"] * 3], "on entering"
    assert commits[1:] == [["Append"], ["Append"], ["Append", "call"], ["Append"]]
    store.commits.clear()
    with vault.run("t") as run:
        assert run.done
    assert store.commits == []


# -- clocks and rivals -----------------------------------------------------------------------------


@pytest.mark.parametrize("store", CLOCKED)
def test_the_order_survives_clocks_that_jump(store: str, tmp_path: Path) -> None:
    clock = Clock()
    vault = clocked(store, tmp_path, clock)()
    for number, jump in enumerate((0, -HOUR_US, 0, 3 * HOUR_US, -5 * HOUR_US, 1)):
        clock.now += jump
        vault.send("t", str(number), key=str(number))
    assert waiting(vault) == list("012345")
    with vault.run("t") as run:
        assert [message["content"] for message in run.messages] == list("012345")
        assert run.messages[0]["timestamp"] > run.messages[1]["timestamp"], "when it was sent, as far as that is known"
    assert isinstance(vault.thread("t").state()["messages"][0]["timestamp"], dt.datetime)


def test_an_inbox_that_is_written_to_all_the_time_stops_no_run(tmp_path: Path) -> None:
    """What cannot be taken in now waits for the next look; nothing is lost."""

    class Flooded(SQLiteStore):
        flood: Any = None

        def commit(self, changes: list[StoreChange]) -> list[int]:  # type: ignore[override]
            if self.flood is not None:
                self.flood()
            return super().commit(changes)

    store = Flooded(str(tmp_path / "v.db"))
    with Vault(store) as vault, savegame.open(tmp_path / "v.db") as other, vault.run("t") as run:
        numbers = iter(range(1000))
        other.send("t", "first")
        store.flood = lambda: other.send("t", str(next(numbers)))
        assert run.user("hi", key="k")
        run.model(lambda _: "hello")
        store.flood = None
        run.tools()
        heard = [message["content"] for message in run.messages]
    assert heard == ["hi", "hello", "first", *map(str, range(next(numbers)))]


def test_a_message_taken_back_at_the_moment_it_is_taken_in_is_one_or_the_other(tmp_path: Path) -> None:
    """Every way that the two commits can follow each other: `unsend` tells the truth about what the conversation has."""

    class Beaten(SQLiteStore):
        rival: Any = None

        def commit(self, changes: list[StoreChange]) -> list[int]:  # type: ignore[override]
            rival, self.rival = self.rival, None
            if rival is not None and not rival():
                raise AssertionError
            return super().commit(changes)

    store = Beaten(str(tmp_path / "v.db"))
    with Vault(store) as vault, savegame.open(tmp_path / "v.db") as other, vault.run("t") as run:
        run.user("hi")
        other.send("t", "one", key="1")
        other.send("t", "two", key="2")
        store.rival = lambda: other.unsend("t", "1")
        run.model(lambda _: "hello")
        assert said(other) == ["hi", "two", "hello"]
        other.send("t", "three", key="3")
        store.rival = lambda: other.send("t", "four", key="4")
        run.tools()
        assert said(other)[3:] == ["three", "four"]
