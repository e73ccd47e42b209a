"""Runs: the loop, the kinds of tools, what is kept of each call, people's answers, and going on where it stopped."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from addresses import Opener, placeholder

from savegame import (
    Busy,
    CallEntry,
    ClosedError,
    ConflictError,
    Conversation,
    Fenced,
    InvalidInputError,
    Message,
    NotFoundError,
    OutOfSpace,
    Paused,
    Retention,
    Toolbox,
    UnavailableError,
    Unknown,
    UnsupportedError,
    Vault,
)
from savegame.model import ThreadKey
from savegame.runs.run import AT_ONCE
from savegame.store import Capability
from savegame.testing.provider import check_messages

SECOND = dt.timedelta(seconds=1)


def calling(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"id": f"c{number}", "name": name, "arguments": given} for number, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": "", "tool_calls": made}


def scripted(*replies: Any) -> Callable[[list[dict[str, Any]]], Any]:
    """A model that says one thing after the other, and refuses what a provider would."""

    def llm(messages: list[dict[str, Any]]) -> Any:
        check_messages(messages)
        return replies[sum(message["role"] == "assistant" for message in messages)]

    return llm


def play(vault: Vault, tools: Toolbox, *replies: Any, text: str | None = "hi", key: str | None = "first", **how: Any) -> Any:
    """The loop of every agent: call it again to resume."""
    llm = scripted(*replies)
    with vault.run("t", tools=tools, agent="helper") as run:
        if text is not None:
            run.user(text, key=key)
        while not run.done:
            run.tools(**how)
            run.model(llm)
        return run.reply


def ledger(vault: Vault) -> dict[str, CallEntry]:
    return {entry.name: entry for entry in vault.calls("t")}


def contents(vault: Vault) -> list[Any]:
    return [message["content"] for message in vault.thread("t").state()["messages"]]


class Effects:
    """Tools that note what they did."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.box = Toolbox()

    def add(self, name: str, *, fails: int = 0, **kind: Any) -> Effects:
        def tool(call: Any, n: int = 0) -> str:
            self.made.append((name, call.key))
            if len([one for one, _ in self.made if one == name]) <= fails:
                raise ConnectionError("not now")
            return f"{name} {n}"

        self.box.tool(name=name, **kind)(tool)
        return self


@pytest.fixture
def effects() -> Effects:
    return Effects()


# -- the loop --------------------------------------------------------------------------------------


def test_a_run_goes_from_a_question_to_a_reply(vault: Vault, effects: Effects) -> None:
    effects.add("look", read_only=True).add("pay", idempotent=True).add("mail")
    assert play(vault, effects.box, calling(("look", {"n": 1}), ("pay", {})), calling(("mail", {})), "done") == "done"
    assert contents(vault) == ["hi", "", "look 1", "pay 0", "", "mail 0", "done"]
    history = list(vault.thread("t").history(newest_first=False))
    assert [str(entry.kind) for entry in history] == [
        "manual", "llm_response", "tool_call", "tool_call", "llm_response", "tool_call", "llm_response",
    ]  # fmt: skip
    assert [str(entry.status) for entry in history] == ["in_progress"] * 6 + ["completed"]
    assert {entry.agent_id for entry in history} == {"helper"}
    assert [info.message_count for info in vault.conversations("helper")] == [7]


def test_tools_are_a_toolbox(vault: Vault) -> None:
    with pytest.raises(InvalidInputError, match="Toolbox"), vault.run("t", tools=[print]):  # type: ignore[arg-type]
        pass


def test_a_finished_run_is_not_run_again_until_the_user_says_more(vault: Vault, effects: Effects) -> None:
    effects.add("mail")
    replies = (calling(("mail", {})), "done", "more")
    assert play(vault, effects.box, *replies) == "done"
    assert play(vault, effects.box, *replies, text=None) == "done"
    assert play(vault, effects.box, *replies) == "done"  # the same key: taken once
    assert len(effects.made) == 1
    assert play(vault, effects.box, *replies, text="and now?", key="second") == "more"


def test_the_conversation_may_begin_elsewhere(vault: Vault) -> None:
    vault.save_conversation(Conversation("helper", id="t", messages=[{"role": "user", "content": "hi"}]))
    before = next(vault.conversations())
    assert play(vault, Toolbox(), "hello", text=None) == "hello"
    assert next(vault.conversations()).last_message_at > before.last_message_at
    vault.thread("odd").save({"messages": "none"})
    with pytest.raises(InvalidInputError, match="holds no conversation"), vault.run("odd"):
        pass
    with vault.run("odd2") as run:  # nothing was kept of the refused one
        assert run.messages == []


def test_calls_of_a_conversation_from_elsewhere_are_settled_once(vault: Vault, effects: Effects) -> None:
    """Replies without ids have keys of their own, and what is answered already is not called again."""
    effects.add("mail")
    said = [
        {"role": "user", "content": "hi"},
        calling(("mail", {"n": 1})),
        {"role": "tool", "tool_call_id": "c0", "content": "sent long ago"},
        {**calling(("mail", {"n": 2}), ("mail", {"n": 3})), "content": "again"},
        {"role": "tool", "tool_call_id": "c0", "content": "sent too"},
    ]
    vault.thread("t").save({"messages": said})
    with vault.run("t", tools=effects.box) as run:
        run.tools()
        run.tools()
        assert run.messages[-1]["content"] == "mail 3"
    vault.thread("t").rewind("head~1")
    with vault.run("t", tools=effects.box) as run:
        run.tools()
    assert len(effects.made) == 1


def test_state_and_labels_are_saved_on_request(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        run.state["plan"] = ["look"]
        run.save(label="planned")
    with vault.run("t") as run:
        run.state["plan"].append("pay")  # in place: noticed all the same
        assert run.save().state["plan"] == ["look", "pay"]
        run.state.pop("plan")
        run.save()
    assert "plan" not in vault.thread("t").state()
    assert vault.thread("t").load("planned").state["plan"] == ["look"]


def test_a_halted_run_is_over_and_says_why(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        halted = run.halt("a loop was detected", resume_hint="ask again")
        assert run.done
    assert (halted.status.reason, halted.resume_hint) == ("a loop was detected", "ask again")
    with vault.run("t") as run:
        assert run.done
        run.user("go on")
        assert not run.done


def test_the_model_is_shown_what_fits_and_the_vault_keeps_all(vault: Vault) -> None:
    seen: list[int] = []

    def llm(messages: list[dict[str, Any]]) -> str:
        seen.append(len(messages))
        return "ok"

    with vault.run("t") as run:
        for number in range(20):
            run.user("x" * 400 + str(number))
        run.model(llm, budget=500)
        run.user("again")
        run.model(llm, strategy="summarize", keep_recent=2, summary="a lot of x")
    assert seen[0] < 6
    assert seen[1] <= 4
    assert len(contents(vault)) == 23


def test_tokens_and_cost_are_kept(vault: Vault) -> None:
    with vault.run("t", agent="helper") as run:
        run.user("hi")
        run.model(
            lambda messages: {"role": "assistant", "content": "hi", "usage": 7}, usage=lambda reply: (reply["usage"], 0.5)
        )
    (usage,) = vault.usage()
    assert (usage.tokens_used, usage.cost) == (7, 0.5)


def test_a_tool_may_say_what_it_cost(vault: Vault) -> None:
    box = Toolbox()

    @box.tool(read_only=True)
    def summarise(call: Any) -> str:
        call.spend(tokens_used=30, cost=0.25)
        call.spend(tokens_used=12)
        return "short"

    replies = (calling(("summarise", {})), "done")
    play(vault, box, *replies)
    assert (ledger(vault)["summarise"].tokens_used, ledger(vault)["summarise"].cost) == (42, 0.25)
    vault.thread("t").rewind(2)
    play(vault, box, *replies, text=None)  # taken again, not paid again
    (usage,) = vault.usage()
    assert (usage.tokens_used, usage.cost) == (42, 0.25)


def test_a_model_is_not_asked_while_calls_are_open(vault: Vault, effects: Effects) -> None:
    effects.add("look", read_only=True)
    with vault.run("t", tools=effects.box) as run:
        run.user("hi")
        run.model(scripted(calling(("look", {}))))
        with pytest.raises(InvalidInputError, match=r"run.tools\(\)"):
            run.model(scripted("no"))
        assert [message["role"] for message in run.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("reply", [{"role": "user", "content": "x"}, 7, {"role": "assistant"}, None])
def test_what_is_no_reply_is_refused_and_nothing_is_kept(vault: Vault, reply: Any) -> None:
    with vault.run("t") as run:
        run.user("hi")
        with pytest.raises(InvalidInputError):
            run.model(lambda messages: reply)
    assert contents(vault) == ["hi"]


# -- tools -----------------------------------------------------------------------------------------


def test_keys_are_stable_and_every_call_has_its_own(vault: Vault, effects: Effects) -> None:
    effects.add("pay", idempotent=True, fails=2, backoff=dt.timedelta(milliseconds=1))
    play(vault, effects.box, calling(("pay", {}), ("pay", {})), "done")
    keys = [key for _, key in effects.made]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert keys[0].rpartition(":")[0] == keys[3].rpartition(":")[0]


def test_calls_of_one_reply_with_the_same_id_are_told_apart(vault: Vault, effects: Effects) -> None:
    effects.add("look", read_only=True)
    twice = calling(("look", {"n": 1}), ("look", {"n": 2}), ("look", {"n": 3}))
    for call, given in zip(twice["tool_calls"], ("x", "x", "x-2"), strict=True):
        call["id"] = given
    play(vault, effects.box, twice, "done")
    assert contents(vault)[2:5] == ["look 1", "look 2", "look 3"]
    answers = [message["tool_call_id"] for message in vault.thread("t").state()["messages"][2:5]]
    assert answers == ["x", "x-3", "x-2"]


def test_a_domain_key_is_passed_on(vault: Vault) -> None:
    box, keys = Toolbox(), []

    @box.tool(idempotent=lambda order: f"refund-{order}")
    def refund(call: Any, order: int) -> None:
        keys.append(call.key)

    play(vault, box, calling(("refund", {"order": 7})), calling(("refund", {"order": 7})), "done")
    assert keys == ["refund-7", "refund-7"]


def test_a_tool_that_fails_is_told_to_the_model(vault: Vault, effects: Effects) -> None:
    effects.add("look", read_only=True, fails=9, backoff=dt.timedelta(milliseconds=1)).add("mail", fails=9)
    assert play(vault, effects.box, calling(("look", {}), ("mail", {})), "sorry") == "sorry"
    assert [name for name, _ in effects.made] == ["look"] * 3 + ["mail"]
    assert {entry.status for entry in vault.calls("t")} == {"failed"}
    assert contents(vault)[2:4] == ["error: ConnectionError: not now"] * 2


def test_calls_that_cannot_be_made_are_told_to_the_model(vault: Vault, effects: Effects) -> None:
    effects.add("look", read_only=True)
    reply = calling(("nothing", {}), ("look", {"n": "seven"}), ("look", {"m": 1}))
    assert play(vault, effects.box, reply, "sorry") == "sorry"
    assert effects.made == []
    said = contents(vault)[2:5]
    assert "tool 'nothing' does not exist" in said[0]
    assert "n" in said[1]
    assert "m" in said[2]


def test_a_result_that_cannot_be_kept_is_said_and_not_done_again(vault: Vault) -> None:
    box, made = Toolbox(), []

    @box.tool
    def odd() -> Any:
        made.append(1)
        return threading.Lock()

    assert play(vault, box, calling(("odd", {})), "well") == "well"
    assert made == [1]
    assert "its result cannot be saved" in contents(vault)[2]


def test_a_tool_that_hangs_is_left(vault: Vault) -> None:
    """One that may run again has failed; the outcome of another is unknown."""
    box, hang = Toolbox(), threading.Event()
    box.tool(read_only=True, timeout=dt.timedelta(milliseconds=20), retries=0, name="slow")(lambda: hang.wait(30))
    box.tool(timeout=dt.timedelta(milliseconds=20), name="odd")(lambda: hang.wait(30))
    try:
        with pytest.raises(Unknown) as told:
            play(vault, box, calling(("slow", {}), ("odd", {})), "done")
    finally:
        hang.set()
    assert (ledger(vault)["slow"].status, told.value.call.status) == ("failed", "unknown")
    assert "did not return within" in contents(vault)[2]
    with pytest.raises(Unknown):
        play(vault, box, calling(("slow", {}), ("odd", {})), "done")
    vault.resolve("t", told.value.call, "it had worked")
    assert play(vault, box, calling(("slow", {}), ("odd", {})), "done") == "done"
    assert contents(vault)[3] == "it had worked"


def test_calls_of_one_reply_run_at_once_and_are_answered_in_order(vault: Vault) -> None:
    box, met = Toolbox(), threading.Barrier(3, timeout=60)

    @box.tool(read_only=True)
    def meet(n: int) -> int:
        met.wait()
        time.sleep(0.01 * (3 - n))
        return n

    play(vault, box, calling(*(("meet", {"n": n}) for n in range(3))), "done", at_once=True)
    assert contents(vault)[2:5] == [0, 1, 2]


def test_what_was_done_at_once_is_kept_also_if_one_of_them_waits(vault: Vault, effects: Effects) -> None:
    effects.add("mail").add("wire", ask=True)
    replies = (calling(("mail", {}), ("nothing", {}), ("wire", {})), "done")
    with pytest.raises(Paused) as told:
        play(vault, effects.box, *replies, at_once=True)
    assert [name for name, _ in effects.made] == ["mail"]
    assert contents(vault)[2] == "mail 0"
    vault.answer("t", told.value.call, True)
    assert play(vault, effects.box, *replies, at_once=True) == "done"
    assert [name for name, _ in effects.made] == ["mail", "wire"]


def test_what_was_done_at_once_is_kept_also_if_one_of_them_is_lost(vault: Vault, effects: Effects) -> None:
    hang = threading.Event()
    effects.add("mail").box.tool(timeout=dt.timedelta(milliseconds=20), name="odd")(lambda: hang.wait(30))
    try:
        with pytest.raises(Unknown):
            play(vault, effects.box, calling(("odd", {}), ("mail", {})), "done", at_once=True)
    finally:
        hang.set()
    assert (ledger(vault)["odd"].status, ledger(vault)["mail"].status) == ("unknown", "done")


def test_a_transaction_commits_with_its_result_or_not_at_all(in_database: Opener) -> None:
    vault, box, fail = in_database(), Toolbox(), [True]
    with vault.connection() as db:
        db.execute("CREATE TABLE note (text TEXT)")

    @box.tool(transaction=True)
    def note(call: Any, text: str) -> str:
        call.db.execute(f"INSERT INTO note VALUES ({placeholder(vault)})", (text,))
        if fail:
            fail.clear()
            raise ValueError("no")
        return "noted"

    play(vault, box, calling(("note", {"text": "one"})), calling(("note", {"text": "two"})), "done")
    with vault.connection() as db:
        assert db.execute("SELECT text FROM note").fetchall() == [("two",)]
    assert [contents(vault)[2], contents(vault)[4]] == ["error: ValueError: no", "noted"]


def test_a_transaction_that_closes_its_connection_is_settled(in_database: Opener) -> None:
    vault, box, made = in_database(), Toolbox(), []

    @box.tool(transaction=True)
    def note(call: Any) -> None:
        made.append(call.key)
        call.db.close()

    play(vault, box, calling(("note", {})), "done")
    assert len(made) == 1
    assert "close() inside the block" in contents(vault)[2]
    assert ledger(vault)["note"].status == "failed"


def test_a_transaction_that_was_late_is_undone(in_database: Opener) -> None:
    vault, box = in_database(), Toolbox()
    with vault.connection() as db:
        db.execute("CREATE TABLE note (text TEXT)")

    @box.tool(transaction=True, timeout=dt.timedelta(milliseconds=1))
    def note(call: Any) -> str:
        call.db.execute("INSERT INTO note VALUES ('late')")
        time.sleep(0.01)
        return "noted"

    play(vault, box, calling(("note", {})), "done")
    with vault.connection() as db:
        assert db.execute("SELECT text FROM note").fetchall() == []
    assert contents(vault)[2] == "error: it did not return within 0.001 s"
    assert ledger(vault)["note"].status == "failed"


def test_a_store_without_transactions_refuses_such_tools_before_anything_is_done(vault: Vault) -> None:
    box = Toolbox()
    box.tool(transaction=True, name="note")(lambda call: None)
    if Capability.CONNECTION in vault.store.capabilities:
        with vault.run("t", tools=box) as run:
            assert not run.done
        return
    with pytest.raises(UnsupportedError, match="note"), vault.run("t", tools=box):
        pass
    assert vault.store.thread(ThreadKey(vault.namespace, "t")) is None


# -- people ----------------------------------------------------------------------------------------


def waiting(vault: Vault, effects: Effects, *replies: Any) -> CallEntry:
    with pytest.raises(Paused) as told:
        play(vault, effects.box, *replies)
    assert isinstance(told.value.call, CallEntry)
    return told.value.call


def test_a_person_is_asked_and_the_first_answer_wins(vault: Vault, effects: Effects) -> None:
    effects.add("wire", ask=True)
    replies = (calling(("wire", {"n": 5})), "done")
    call = waiting(vault, effects, *replies)
    assert waiting(vault, effects, *replies).key == call.key  # still unanswered: asked once, waits on
    assert (effects.made, ledger(vault)["wire"].status) == ([], "waiting")
    assert vault.answer("t", call, True, comment="agreed on the phone") is True
    assert vault.answer("t", call.key, "no") is False
    assert play(vault, effects.box, *replies) == "done"
    assert len(effects.made) == 1
    assert ledger(vault)["wire"].comment == "agreed on the phone"
    assert vault.answer("t", call, True) is False


def test_a_refusal_is_told_to_the_model(vault: Vault, effects: Effects) -> None:
    effects.add("wire", ask=True)
    replies = (calling(("wire", {})), "sorry")
    vault.answer("t", waiting(vault, effects, *replies), "too much money")
    assert play(vault, effects.box, *replies) == "sorry"
    assert (effects.made, contents(vault)[2]) == ([], "error: a person refused: too much money")


def test_answers_and_outcomes_need_a_call(vault: Vault, effects: Effects) -> None:
    effects.add("look", read_only=True)
    play(vault, effects.box, calling(("look", {})), "done")
    for verb in (vault.answer, vault.resolve):
        with pytest.raises(NotFoundError, match="has no call"):
            verb("t", "nothing", "x")
    with pytest.raises(InvalidInputError, match="nothing to resolve"):
        vault.resolve("t", ledger(vault)["look"], "x")


# -- steps -----------------------------------------------------------------------------------------


def test_a_step_is_done_once(vault: Vault) -> None:
    done: list[str] = []
    for _ in range(2):
        with vault.run("t") as run:
            for name, value in (("one", {"a": 1}), ("none", None)):
                assert run.step(name, lambda name=name, value=value: (done.append(name), value)[1]) == value
    assert done == ["one", "none"]
    with vault.run("t") as run:
        with pytest.raises(ZeroDivisionError):
            run.step("fails", lambda: 1 // 0)
        with pytest.raises(InvalidInputError):
            run.step("odd", threading.Lock)
        assert run.step("fails", lambda: 7) == 7


# -- who works -------------------------------------------------------------------------------------


@pytest.mark.requirement("A25", "Z61")
def test_one_runs_the_others_are_busy(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        with pytest.raises(Busy), vault.run("t"):
            pass
        with pytest.raises(Busy):
            vault.thread("t").save({})
        with vault.run("another"):
            pass
    with vault.run("t"):
        pass


def test_whoever_lost_the_lease_makes_nothing_more(vault: Vault, effects: Effects) -> None:
    effects.add("mail", idempotent=True)
    with vault.run("t", tools=effects.box, lease=dt.timedelta(milliseconds=1)) as run:
        run.user("hi")
        run.model(scripted(calling(("mail", {}))))
        vault.store.lease(ThreadKey(vault.namespace, "t"), "another", 60_000_000, instead_of=run._hold.epoch)
        with pytest.raises(Fenced):
            run.save()
        assert not run.alive
        with pytest.raises(Fenced):
            run.tools()
        with pytest.raises(Fenced):
            run.step("more", lambda: effects.made.append(("step", "")))
        with pytest.raises(Fenced):
            run.model(lambda messages: effects.made.append(("model", "")))
    assert effects.made == []
    with pytest.raises(ClosedError):
        run.tools()
    assert effects.made == []


def test_whoever_lost_the_lease_writes_nothing_more(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        row = vault.store.thread(ThreadKey(vault.namespace, "t"))
        assert row is not None
        assert row.lease is not None
        vault.store.lease(row.key, "another", 60_000_000, instead_of=row.lease.epoch)
        for attempt in (lambda: run.user("more"), lambda: run.step("s", lambda: 1), lambda: run.halt("x")):
            with pytest.raises(Fenced):
                attempt()
    assert contents(vault) == ["hi"]


def test_a_live_run_keeps_its_lease_beyond_its_time(vault: Vault) -> None:
    with vault.run("t", lease=dt.timedelta(milliseconds=300)) as run:
        run.user("hi")
        time.sleep(1)
        with pytest.raises(Busy), vault.run("t"):
            pass
        run.user("more")


@pytest.mark.parametrize("attempts", [2, 1])
def test_what_a_tool_does_to_its_arguments_changes_nothing_else(attempts: int, vault: Vault) -> None:
    box, seen = Toolbox(), []

    @box.tool(idempotent=True, retries=attempts - 1)
    def spend(call: Any, lines: list[int]) -> int:
        seen.append(list(lines))
        lines.clear()
        call.arguments.clear()
        if len(seen) < attempts:
            raise ConnectionError("not now")
        return len(seen)

    play(vault, box, calling(("spend", {"lines": [1, 2]})), "done")
    assert seen == [[1, 2]] * attempts
    assert ledger(vault)["spend"].arguments == {"lines": [1, 2]}
    assert vault.thread("t").state()["messages"][1]["tool_calls"][0]["arguments"] == {"lines": [1, 2]}


BAD_CALLS: list[dict[str, Any]] = [
    {"id": "c", "type": "custom", "function": None},
    {"id": "c", "function": "look", "arguments": "{"},
    {"id": "c", "name": "look", "arguments": '{"n": "\\ud800"}'},
    {"id": "c", "name": "look", "arguments": {"n": "\ud800"}},
    {"id": "c", "name": "look", "arguments": '{"n": ' + "[" * 400 + "]" * 400 + "}"},
    {"id": "c", "name": "\ud800", "arguments": {}},
]


@pytest.mark.parametrize("call", BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_a_call_that_cannot_be_kept_is_told_to_the_model_and_the_run_goes_on(
    call: dict[str, Any], vault: Vault, effects: Effects
) -> None:
    effects.add("look", read_only=True)
    assert play(vault, effects.box, {"role": "assistant", "content": None, "tool_calls": [call]}, "bye") == "bye"
    assert effects.made == []
    assert "error: " in contents(vault)[2]


@pytest.mark.parametrize("given", [5, ["x"], "c" * 600, "a\0b", "\ud800", None, ""])
def test_a_call_whose_id_is_none_gets_one(given: Any, vault: Vault, effects: Effects) -> None:
    effects.add("look", read_only=True)
    call = {"id": given, "name": "look", "arguments": {"n": 3}}
    assert play(vault, effects.box, {"role": "assistant", "content": None, "tool_calls": [call]}, "bye") == "bye"
    assert contents(vault) == ["hi", None, "look 3", "bye"]


@pytest.mark.parametrize("reply", ["bad \ud800", {"role": "assistant", "content": "bad \ud800"}])
def test_a_reply_that_is_not_unicode_is_kept_so_that_it_can_be_said(reply: Any, vault: Vault) -> None:
    asked = []

    def llm(messages: list[dict[str, Any]]) -> Any:
        asked.append(messages)
        return reply

    with vault.run("t") as run:
        run.user("hi")
        assert run.model(llm) == "bad \\ud800"
        assert run.done
    assert len(asked) == 1


# -- going back ------------------------------------------------------------------------------------


@pytest.mark.requirement("Z56")
def test_after_a_rewind_results_are_taken_again_and_not_made_again(vault: Vault, effects: Effects) -> None:
    effects.add("mail")
    replies = (calling(("mail", {})), "done")
    play(vault, effects.box, *replies)
    vault.thread("t").rewind(2)  # after the reply, before the result
    assert play(vault, effects.box, *replies, text=None) == "done"
    assert (len(effects.made), contents(vault)) == (1, ["hi", "", "mail 0", "done"])
    vault.thread("t").rewind(2, rerun_tools=True)
    assert play(vault, effects.box, *replies, text=None) == "done"
    assert len({key for _, key in effects.made}) == 2


def test_calls_are_made_anew_only_where_that_was_asked_for(vault: Vault, effects: Effects) -> None:
    """A rewind with `rerun_tools` is about the reply that it goes back to, and is over after a rewind without."""
    effects.add("mail")
    replies = (calling(("mail", {})), "done")
    play(vault, effects.box, *replies)
    thread = vault.thread("t")
    before, reply = thread.load(1), thread.load(2)
    for back in (before, reply):
        thread.rewind(back, rerun_tools=True)
        thread.fork(f"fork at {back.step}", at=reply)
        with vault.run(f"fork at {back.step}", tools=effects.box) as run:
            run.tools()
        thread.rewind(reply)
        play(vault, effects.box, *replies, text=None)
    assert len(effects.made) == 1
    thread.rewind(reply, rerun_tools=True)
    play(vault, effects.box, *replies, text=None)
    thread.rewind(reply)
    play(vault, effects.box, *replies, text=None)
    assert len(effects.made) == 2


@pytest.mark.requirement("Z56")
def test_a_call_whose_outcome_nobody_knows_stays_so_whatever_was_rewound_and_undone(vault: Vault, effects: Effects) -> None:
    def strike(call: Any) -> None:
        effects.made.append(("mail", call.key))
        raise KeyboardInterrupt

    effects.box.tool(name="mail")(strike)
    with pytest.raises(KeyboardInterrupt):
        play(vault, effects.box, calling(("mail", {})))
    thread = vault.thread("t")
    head = thread.latest()
    assert head is not None
    thread.rewind(1, rerun_tools=True)
    thread.rewind(head)
    with pytest.raises(Unknown):
        play(vault, effects.box, calling(("mail", {})), text=None)
    assert len(effects.made) == 1


def test_a_fork_takes_the_results_along_also_when_its_source_is_gone(vault: Vault, effects: Effects) -> None:
    effects.add("mail")
    replies = (calling(("mail", {})), "done")
    play(vault, effects.box, *replies)
    vault.thread("t").fork("copy", at=2)
    vault.thread("t").delete()
    with vault.run("copy", tools=effects.box) as run:
        run.tools()
        run.model(scripted(*replies))
        assert run.reply == "done"
    assert len(effects.made) == 1


def test_the_strategy_says_what_retention_keeps(opened: Opener, effects: Effects) -> None:
    effects.add("look", read_only=True)
    replies = [calling(("look", {"n": n})) for n in range(12)]
    for strategy, kept in (("after_tool_call", "tool_call"), ("after_llm_response", "llm_response")):
        vault = opened(f"{strategy}.db", retention=Retention(max_checkpoints=4))
        with vault.run("t", tools=effects.box, strategy=strategy) as run:
            run.user("hi")
            for _ in range(12):
                run.model(scripted(*replies))
                run.tools()
        shown = [str(entry.kind) for entry in vault.thread("t").history()]
        newest, older = shown[:4], shown[4:]
        assert newest == ["tool_call", "llm_response"] * 2
        assert set(older) == {kept}
        assert shown.count(kept) == 4
        assert vault.info("t").checkpoints == len(shown)
        assert len(contents(vault)) == 25  # the conversation itself is whole


def test_an_answered_call_is_not_made_again_whatever_was_made_anew_before(vault: Vault, effects: Effects) -> None:
    effects.add("pay")
    replies = (calling(("pay", {})), "done")
    play(vault, effects.box, *replies)
    answered = vault.thread("t").load(3)
    vault.thread("t").rewind(2, rerun_tools=True)
    play(vault, effects.box, *replies, text=None)
    vault.thread("t").rewind(answered)
    play(vault, effects.box, *replies, text=None)
    assert len(effects.made) == 2


def test_an_approval_is_for_one_line_only(vault: Vault, effects: Effects) -> None:
    effects.add("wire", ask=True)
    replies = (calling(("wire", {})), "done")
    call = waiting(vault, effects, *replies)
    vault.answer("t", call, True)
    vault.thread("t").fork("copy")
    assert play(vault, effects.box, *replies) == "done"
    with pytest.raises(Paused), vault.run("copy", tools=effects.box) as run:
        run.tools()
    assert len(effects.made) == 1


def test_a_key_is_taken_once_on_each_line(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("one", key="k1")
        run.user("two", key="k2")
    vault.thread("t").fork("copy", at=1)
    with vault.run("copy") as run:
        assert (run.user("one", key="k1"), run.user("two", key="k2")) == (False, True)


def test_a_holder_whose_lease_ran_out_writes_on_no_head_that_it_never_saw(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("one")
        run.user("two")
        row = vault.store.thread(ThreadKey(vault.namespace, "t"))
        assert row is not None
        assert row.lease is not None
        vault.store.renew(row.key, row.lease.epoch, 1)
        time.sleep(0.001)
        vault.thread("t").rewind(1)
        with pytest.raises(ConflictError):
            run.user("three")
    assert contents(vault) == ["one"]


def test_a_run_that_is_over_writes_nothing(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("one")
    for attempt in (lambda: run.user("two"), lambda: run.step("s", lambda: 1), lambda: run.save()):
        with pytest.raises(ClosedError, match="has ended"):
            attempt()
    with vault.run("t"):
        pass


def test_errors_and_results_that_cannot_be_kept_do_not_stop_the_run(vault: Vault) -> None:
    box = Toolbox()
    deep: list[Any] = []
    for _ in range(253):
        deep = [deep]

    @box.tool(read_only=True, retries=0)
    def odd() -> None:
        raise ValueError("bad \udcff")

    box.tool(name="deep")(lambda: deep)
    assert play(vault, box, calling(("odd", {}), ("deep", {})), "done") == "done"
    assert "bad \\udcff" in contents(vault)[2]


def test_keys_of_replies_from_elsewhere_stay_when_the_conversation_is_saved_again(vault: Vault, effects: Effects) -> None:
    effects.add("mail", fails=1)
    asked = calling(("mail", {"n": 3}))
    vault.thread("t").save({"messages": [{"role": "user", "content": "hi"}, asked]})
    with vault.run("t", tools=effects.box) as run:
        run._core.prepare(run._core.pending()[0])  # it begins, and nothing more is heard of it
    found = vault.load_conversation("t")
    found.title = "Mail"
    vault.save_conversation(found)
    with pytest.raises(Unknown), vault.run("t", tools=effects.box) as run:
        run.tools()
    assert effects.made == []


def test_the_ledger_is_in_the_order_of_the_calls(vault: Vault, effects: Effects) -> None:
    effects.add("look", read_only=True)
    many = calling(*(("look", {"n": number}) for number in range(12)))
    play(vault, effects.box, many, calling(("look", {"n": 12})), "done")
    assert [entry.arguments["n"] for entry in vault.calls("t")] == list(range(13))


def test_a_tool_knows_which_attempt_it_is(vault: Vault) -> None:
    box, attempts = Toolbox(), []

    @box.tool(read_only=True, backoff=dt.timedelta(microseconds=1))
    def look(call: Any) -> str:
        attempts.append(call.attempt)
        if len(attempts) < 3:
            raise ConnectionError
        return "seen"

    play(vault, box, calling(("look", {})), "done")
    assert attempts == [1, 2, 3]
    assert ledger(vault)["look"].attempt == 3


def test_what_only_stands_in_a_queue_is_not_written_down_as_started(vault: Vault) -> None:
    box, begun, go = Toolbox(), threading.Semaphore(0), threading.Event()

    @box.tool
    def mail() -> None:
        begun.release()
        assert go.wait(30)

    with vault.run("t", tools=box) as run:
        run.user("hi")
        run.model(scripted(calling(*[("mail", {})] * 12)))
        calling_all = threading.Thread(target=run.tools, kwargs={"at_once": True})
        calling_all.start()
        for _ in range(AT_ONCE):
            assert begun.acquire(timeout=30)
        assert [entry.status for entry in vault.calls("t")] == ["started"] * AT_ONCE
        go.set()
        calling_all.join()
    assert [entry.status for entry in vault.calls("t")] == ["done"] * 12


def test_a_message_that_is_given_is_the_users(vault: Vault) -> None:
    with vault.run("t") as run:
        assert run.user(Message.user("hi"))
        for role in ("assistant", "tool"):
            with pytest.raises(InvalidInputError):
                run.user({"role": role, "content": "me", "tool_call_id": "c"})
    assert contents(vault) == ["hi"]


def test_keys_of_replies_from_elsewhere_differ_between_threads(vault: Vault, effects: Effects) -> None:
    effects.add("pay", idempotent=True)
    said = [{"role": "user", "content": "hi"}, {**calling(("pay", {})), "id": "2"}]
    for name in ("a", "b"):
        vault.thread(name).save({"messages": said})
        with vault.run(name, tools=effects.box) as run:
            run.tools()
    vault.thread("a").rewind(1)
    vault.thread("a").fork("of a")
    with vault.run("of a", tools=effects.box) as run:
        run.tools()
    assert len(effects.made) == len({key for _, key in effects.made}) == 2


@pytest.mark.parametrize("messages", [["hi"], [7], [None]])
def test_a_conversation_of_something_else_is_refused(vault: Vault, messages: list[Any]) -> None:
    vault.thread("t").save({"messages": messages})
    with pytest.raises(InvalidInputError, match="holds no conversation"), vault.run("t"):
        pass


def test_what_is_done_at_once_is_kept_also_if_one_is_interrupted(vault: Vault, effects: Effects) -> None:
    effects.add("mail")

    @effects.box.tool
    def boom() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(vault, effects.box, calling(("boom", {}), ("mail", {})), "done", at_once=True)
    assert (ledger(vault)["boom"].status, ledger(vault)["mail"].status) == ("started", "done")


def test_a_transaction_that_cannot_commit_is_not_told_as_done(on_disk: Opener) -> None:
    vault, box, refuse = on_disk(), Toolbox(), [True]
    with vault.connection() as db:
        db.execute("CREATE TABLE note (text TEXT)")

    @box.tool(transaction=True)
    def note(call: Any) -> str:
        call.db.execute("INSERT INTO note VALUES ('x')")
        call.db.set_commit_hook((lambda: refuse.pop() if refuse else False) if refuse else None)
        return "noted"

    with vault.run("t", tools=box) as run:
        run.user("hi")
        run.model(scripted(calling(("note", {}))))
        with pytest.raises(UnavailableError):
            run.tools()
        assert run.messages[-1]["content"] != "noted"
        run.tools()
        assert run.messages[-1]["content"] == "noted"
    with vault.connection() as db:
        assert db.execute("SELECT count(*) FROM note").fetchall() == [(1,)]


def test_a_transaction_whose_result_finds_no_room_is_made_again(on_disk: Opener) -> None:
    vault, box, full = on_disk(), Toolbox(), [True]
    with vault.connection() as db:
        db.execute("CREATE TABLE note (text TEXT)")

    @box.tool(transaction=True)
    def note(call: Any) -> bytes:
        call.db.execute("INSERT INTO note VALUES ('x')")
        call.db.execute(f"PRAGMA max_page_count={1 if full else 100_000}").fetchall()
        return os.urandom(300_000)

    with vault.run("t", tools=box) as run:
        run.user("hi")
        run.model(scripted(calling(("note", {}))))
        with pytest.raises(OutOfSpace):
            run.tools()
        full.clear()
        run.tools()
    with vault.connection() as db:
        assert db.execute("SELECT count(*) FROM note").fetchall() == [(1,)]
    assert ledger(vault)["note"].status == "done"


def test_a_run_under_retention_frees_as_it_goes(in_database: Opener) -> None:
    vault = in_database(retention=Retention(max_checkpoints=3))
    with vault.run("t") as run:
        for number in range(200):
            run.state["scratch"] = str(number) * 500
            run.save()
    assert vault.stats().checkpoints < 120


def test_marks_of_the_strategy_outlive_a_save_by_somebody_else(opened: Opener, effects: Effects) -> None:
    effects.add("look", read_only=True)
    vault = opened(retention=Retention(max_checkpoints=3))
    replies = [calling(("look", {})) for _ in range(8)]
    with vault.run("t", tools=effects.box) as run:
        run.user("hi")
        for _ in range(8):
            run.model(scripted(*replies))
            run.tools()
    before = [entry.id for entry in vault.thread("t").history()]
    vault.thread("t").update(set={"title": "x"})
    after = [entry.id for entry in vault.thread("t").history()]
    assert len(set(before) & set(after)) >= len(before) - 1


# -- resuming what went stale ----------------------------------------------------------------------


def leave(vault: Vault, thread_id: str, *, owner: str = "somebody who is gone") -> None:
    """A thread whose holder never gave its lease back."""
    with vault.run(thread_id) as run:
        run.user("hi")
    vault.store.lease(ThreadKey(vault.namespace, thread_id), owner, 1)
    time.sleep(0.001)


def ids(runs: Iterable[Any]) -> list[str]:
    return [run.thread_id for run in runs]


def test_what_went_stale_is_told(vault: Vault) -> None:
    for name in ("a", "b", "done"):
        leave(vault, name)
    with vault.run("done") as run:
        run.model(scripted("done"))
    with vault.run("b"):
        assert ids(vault.stale()) == ["a"]
    assert ids(vault.stale()) == ["a"]  # who gives a lease back has not gone stale


def test_a_run_that_only_made_steps_goes_stale_too(vault: Vault) -> None:
    with vault.run("t", agent="helper") as run:
        run.step("first", lambda: 1)
    assert ids(vault.stale()) == []
    vault.store.lease(ThreadKey(vault.namespace, "t"), "gone", 1)
    time.sleep(0.001)
    assert ids(vault.stale()) == ["t"]


def test_a_run_that_an_error_ended_is_resumed(vault: Vault) -> None:
    def play_until(thread_id: str, error: type[BaseException]) -> None:
        with vault.run(thread_id) as run:
            run.user("hi")
            raise error

    for thread_id, error in (("error", ConnectionError), ("ctrl-c", KeyboardInterrupt)):
        with pytest.raises(error):
            play_until(thread_id, error)
    assert ids(vault.stale()) == ["ctrl-c", "error"]


def test_what_cannot_be_entered_is_as_it_was(vault: Vault) -> None:
    vault.thread("t").save({"messages": "no conversation"})
    with pytest.raises(InvalidInputError), vault.run("t"):
        pass
    assert ids(vault.stale()) == []


@pytest.mark.parametrize("entered", [False, True])
def test_a_supervisor_gives_up_on_what_fails_every_time(vault: Vault, entered: bool) -> None:
    leave(vault, "t")
    tries = []

    def resume(thread_id: str) -> None:
        tries.append(thread_id)
        if not entered:
            raise ConnectionError("no model")
        with vault.run(thread_id):
            raise ConnectionError("no model")

    for _ in range(8):
        vault.supervise(resume, once=True, give_up_after=3)
    assert tries == ["t"] * 3
    stuck = vault.thread("t").latest()
    assert stuck is not None
    assert stuck.status.reason == "stuck: taken over 3 times without progress"


def test_a_thread_that_is_no_conversation_does_not_end_a_supervisor(vault: Vault) -> None:
    vault.thread("odd").save({"messages": "no conversation"})
    leave(vault, "t")
    vault.store.lease(ThreadKey(vault.namespace, "odd"), "gone", 1)
    time.sleep(0.001)
    seen = []
    for _ in range(5):
        vault.supervise(seen.append, once=True, give_up_after=1)
    assert "t" in seen


def test_a_supervisor_resumes_and_gives_up_on_what_is_stuck(vault: Vault) -> None:
    for name in ("good", "bad"):
        leave(vault, name)

    def resume(thread_id: str) -> None:
        with vault.run(thread_id) as run:
            if thread_id == "good":
                run.model(scripted("done"))
        if thread_id == "bad":  # it dies with the lease, every time
            vault.store.lease(ThreadKey(vault.namespace, thread_id), "gone", 1)
            time.sleep(0.001)

    for _ in range(6):
        vault.supervise(resume, once=True, give_up_after=3)
    assert str(vault.thread("good").latest().status) == "completed"  # type: ignore[union-attr]
    stuck = vault.thread("bad").latest()
    assert stuck is not None
    assert (str(stuck.status), stuck.status.reason) == ("failed", "stuck: taken over 3 times without progress")
    assert ids(vault.stale()) == []


def test_steps_are_progress(vault: Vault) -> None:
    leave(vault, "t")
    for number in range(6):
        with vault.run("t") as run:
            run.step(f"step {number}", lambda number=number: number)
        vault.store.lease(ThreadKey(vault.namespace, "t"), "gone", 1)
        time.sleep(0.001)
    assert [run.takeovers for run in vault.stale()] == [0]


def test_a_call_that_is_resolved_leaves_the_run_to_be_resumed(vault: Vault, effects: Effects) -> None:
    effects.add("mail")
    leave(vault, "t")
    with pytest.raises(NotFoundError):
        vault.resolve("t", "nothing", 1)
    assert ids(vault.stale()) == ["t"]
    with vault.run("t", tools=effects.box) as run:
        run.model(lambda messages: calling(("mail", {})))
        run._core.prepare(run._core.pending()[0])  # it begins, and nothing more is heard of it
    vault.store.lease(ThreadKey(vault.namespace, "t"), "gone", 1)
    time.sleep(0.001)
    vault.resolve("t", ledger(vault)["mail"], "sent")
    assert ids(vault.stale()) == ["t"]
    assert play(vault, effects.box, calling(("mail", {})), "done", text=None) == "done"
    assert effects.made == []


def test_nobody_resolves_a_call_while_a_run_may_be_making_it(vault: Vault, effects: Effects) -> None:
    effects.add("mail")
    with vault.run("t", tools=effects.box) as run:
        run.user("hi")
        run.model(lambda messages: calling(("mail", {})))
        run._core.prepare(run._core.pending()[0])
        with pytest.raises(Busy):
            vault.resolve("t", ledger(vault)["mail"], "sent")


def test_a_heartbeat_tells_that_the_lease_was_lost(vault: Vault) -> None:
    with vault.run("t", lease=dt.timedelta(milliseconds=30)) as run:
        vault.store.lease(ThreadKey(vault.namespace, "t"), "another", 60_000_000, instead_of=run._hold.epoch)
        assert run._hold.lost.wait(30)
        assert not run.alive


def test_every_write_renews_the_lease(vault: Vault) -> None:
    def expires() -> int:
        row = vault.store.thread(ThreadKey(vault.namespace, "t"))
        assert row is not None
        assert row.lease is not None
        return row.lease.expires

    with vault.run("t", lease=60 * SECOND) as run:
        for write in (lambda: run.user("hi"), lambda: run.step("one", lambda: 1), run.save):
            before = expires()
            time.sleep(0.001)
            write()
            assert expires() > before


def test_what_lost_its_lease_is_not_tried_again(vault: Vault) -> None:
    box, tries = Toolbox(), []

    @box.tool(read_only=True, backoff=dt.timedelta(microseconds=1), retries=5)
    def look(call: Any) -> None:
        tries.append(call.alive())
        vault.store.lease(ThreadKey(vault.namespace, "t"), "another", 60_000_000, instead_of=run._hold.epoch)
        assert run._hold.lost.wait(30)
        raise ConnectionError

    with vault.run("t", tools=box, lease=dt.timedelta(milliseconds=60)) as run:
        run.user("hi")
        run.model(lambda messages: calling(("look", {})))
        with pytest.raises(Fenced):
            run.tools()
    assert tries == [True]


def test_a_tool_knows_its_deadline(vault: Vault) -> None:
    box, told = Toolbox(), []
    box.tool(name="look", timeout=60 * SECOND, read_only=True)(lambda call: told.append(call.deadline))
    play(vault, box, calling(("look", {})), "done")
    left = told[0] - dt.datetime.now(dt.UTC)
    assert dt.timedelta(0) < left <= 60 * SECOND


def test_a_model_is_told_that_a_call_waits_for_a_person(vault: Vault, effects: Effects) -> None:
    effects.add("pay", ask=True)
    with pytest.raises(Paused):
        play(vault, effects.box, calling(("pay", {})), "done")
    with vault.run("t", tools=effects.box) as run:
        assert "waiting for a person" in str(run.messages[-1]["content"])


def test_a_fork_takes_only_the_steps_that_led_to_it(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        run.step("before", lambda: 1)
        early = run.save()
        run.user("more")
        run.step("after", lambda: 2)
    vault.thread("t").fork("early", at=early.id)
    with vault.run("early") as run:
        assert run.step("before", lambda: "again") == 1
        assert run.step("after", lambda: "again") == "again"


def test_a_supervisor_stops_when_told(vault: Vault) -> None:
    stop = threading.Event()
    worker = threading.Thread(target=lambda: vault.supervise(lambda thread_id: None, stop=stop, poll=60 * SECOND))
    worker.start()
    stop.set()
    worker.join(60)
    assert not worker.is_alive()


def test_the_same_input_is_taken_once_whoever_is_first(vault: Vault) -> None:
    with vault.run("t") as run:
        assert (run.user("hi", key="k"), run.user("hi", key="k"), run.user("hi")) == (True, False, True)
    assert contents(vault) == ["hi", "hi"]


def test_a_lease_has_an_end(vault: Vault) -> None:
    with pytest.raises(InvalidInputError, match="at most 365 days"), vault.run("t", lease=dt.timedelta.max):
        pass
    assert list(vault.runs()) == []
