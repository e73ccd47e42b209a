"""Stopping a run from outside: seen at the next boundary and by long tools; what is known is kept."""

from __future__ import annotations

import datetime as dt
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from addresses import Opener
from clocks import CLOCKED, HOUR_US, Clock, clocked

from savegame import CallEntry, Fenced, InvalidInputError, Paused, Stopped, ThreadNotFound, Toolbox, Unknown, Vault
from savegame.model import ThreadKey
from savegame.runs import inbox
from savegame.runs.stopping import briefly
from savegame.testing.provider import check_messages


def calls(*names: str) -> dict[str, Any]:
    made = [{"id": f"c{number}", "name": name, "arguments": {}} for number, name in enumerate(names)]
    return {"role": "assistant", "content": "", "tool_calls": made}


def ledger(vault: Vault) -> dict[str, CallEntry]:
    return {entry.name: entry for entry in vault.calls("t")}


def status(vault: Vault) -> Any:
    newest = vault.thread("t").latest()
    assert newest is not None
    return newest.status


def stale(vault: Vault) -> list[tuple[str, str]]:
    return [(run.thread_id, run.reason) for run in vault.stale()]


def answers(vault: Vault) -> list[Any]:
    return [message["content"] for message in vault.thread("t").state()["messages"] if message["role"] == "tool"]


STOPPED = "error: the run was stopped before this call had a result: user pressed stop"


# -- a run that is live ----------------------------------------------------------------------------


def test_the_model_is_not_asked_any_more(opened: Opener) -> None:
    vault = opened()
    other = vault if vault.store.scheme == "memory" else opened()
    with pytest.raises(Stopped) as stopped, vault.run("t") as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        assert other.stop("t", "user pressed stop")
        run.model(lambda _: pytest.fail("the model was asked"))
    assert (stopped.value.reason, stopped.value.kind, stopped.value.call) == ("user pressed stop", "stopped", None)
    assert repr(status(vault)) == "halted(user pressed stop)"
    assert (stale(vault), list(vault.runs())) == ([], [])
    assert not vault.stop("t", "again"), "it is halted already"
    with vault.run("t") as run:
        assert run.done


@pytest.mark.parametrize("at_once", [False, True])
def test_no_further_call_is_begun_and_known_results_are_kept(vault: Vault, at_once: bool) -> None:
    tools = Toolbox()
    done: list[str] = []

    @tools.tool
    def first(call: Any) -> str:
        vault.stop("t", "user pressed stop")
        while call.alive():
            time.sleep(0.05)
        done.append("first")
        return "kept"

    @tools.tool(read_only=True)
    def second() -> str:
        done.append("second")
        return "too late"

    @tools.tool(ask=True)
    def third() -> str:
        raise AssertionError

    replies = calls("first", *(["first"] * 7 if at_once else []), "second", "third")
    with pytest.raises(Stopped), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        run.model(lambda _: replies)
        run.tools(at_once=at_once)
    assert "second" not in done
    assert answers(vault)[-2:] == [STOPPED, STOPPED]
    assert set(answers(vault)) == {"kept", STOPPED}
    entries = list(vault.calls("t"))
    assert {(entry.name, entry.status.value, entry.attempt) for entry in entries} >= {
        ("first", "done", 1), ("second", "failed", 0), ("third", "failed", 0),
    }  # fmt: skip
    assert not vault.answer("t", entries[-1], True)
    check_messages(vault.thread("t").state()["messages"])
    newest = vault.thread("t").history(limit=1)
    assert next(iter(newest)).status.reason == "user pressed stop", "all of it in one commit"


def test_a_retry_is_not_begun_either(vault: Vault) -> None:
    tools = Toolbox()
    tries: list[int] = []

    @tools.tool(read_only=True, retries=5, backoff=dt.timedelta(milliseconds=250))
    def flaky(call: Any) -> str:
        tries.append(call.attempt)
        vault.stop("t", "user pressed stop")
        raise ValueError("no luck")

    with pytest.raises(Stopped), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        run.model(lambda _: calls("flaky"))
        run.tools()
    assert len(tries) <= 2
    assert answers(vault) == ["error: ValueError: no luck"]


@pytest.mark.parametrize("name", ["look", "pay"])
def test_what_was_tried_before_a_stop_is_an_effect_unless_it_only_reads(vault: Vault, name: str) -> None:
    """Nothing is noted of a call that may run again before it ends; a stop notes it as any other."""
    tools = Toolbox()

    def interrupted() -> str:
        raise KeyboardInterrupt

    tools.tool(name="look", read_only=True)(interrupted)
    tools.tool(name="pay", idempotent=True, same=lambda: 7)(interrupted)
    with pytest.raises(Stopped), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        run.model(lambda _: calls(name, "pay"))
        with pytest.raises(KeyboardInterrupt):
            run.tools()
        vault.stop("t", "user pressed stop")
        run.tools()
    first, second = vault.calls("t")
    kind = "read_only" if name == "look" else "idempotent"
    assert (first.status, first.attempt, first.kind, first.same is None) == ("failed", 1, kind, name == "look")
    assert first.started_at is not None
    assert (second.status, second.attempt) == ("failed", 0)
    assert list(vault.effects("t")) == ([first] if name == "pay" else [])


@pytest.mark.parametrize("by", ["a person", "its next run"])
def test_what_a_crashed_run_may_have_tried_is_an_effect_unless_it_only_reads(vault: Vault, by: str) -> None:
    tools = Toolbox()
    crash: list[str] = []

    def work(call: Any) -> str:
        if call.name in crash:
            raise KeyboardInterrupt
        return "made"

    tools.tool(name="look", read_only=True)(work)
    tools.tool(name="pay", idempotent=True, same=lambda: 7)(work)
    tools.tool(name="mail")(work)
    with vault.run("t", tools=tools) as run:
        run.user("hi")
        run.model(lambda _: calls("look", "pay", "mail"))
        run.tools()
        run.model(lambda _: calls("look", "mail"))
    crash.append("look")
    with pytest.raises(KeyboardInterrupt), vault.run("t", tools=tools) as run:
        run.tools()
    before = len(list(vault.effects("t")))
    if by == "a person":
        assert vault.stop("t", "user pressed stop")
    else:
        with pytest.raises(Stopped), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
            vault.stop("t", "user pressed stop")
            run.tools()
    newest = list(vault.calls("t"))[-2:]
    assert [(entry.name, entry.kind, entry.attempt) for entry in newest] == [("look", "read_only", 1), ("mail", None, 0)]
    assert len(list(vault.effects("t"))) == before


def test_only_a_later_message_reopens(vault: Vault) -> None:
    with pytest.raises(Stopped), vault.run("t") as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        vault.stop("t", "user pressed stop")
        vault.send("t", "early")
        run.model(lambda _: "no")
    assert stale(vault) == []
    vault.send("t", "late")
    assert stale(vault) == [("t", "mail")]
    with vault.run("t") as run:
        run.model(lambda _: "well")
    assert [message["content"] for message in vault.thread("t").state()["messages"]] == ["hi", "early", "late", "well"]


def test_a_stop_that_the_run_did_not_see_halts_the_thread_when_it_ends(vault: Vault) -> None:
    """The block was left with work to do: the request is not lost."""
    with vault.run("t") as run:
        run.user("hi")
        assert vault.stop("t", "user pressed stop")
    assert status(vault).reason == "user pressed stop"
    with vault.run("t") as run:
        run.user("go on")
        run.model(lambda _: "well")
    assert status(vault) == "completed"


def test_a_run_that_completes_before_it_sees_the_stop_stays_completed(vault: Vault) -> None:
    def llm(_: Any) -> str:
        vault.send("t", "early")
        assert vault.stop("t", "user pressed stop")
        return "done"

    with vault.run("t") as run:
        run.user("hi")
        run.model(llm)
        assert run.done
    assert status(vault) == "completed"
    assert stale(vault) == [], "the message waited when the stop was said"
    assert not vault.stop("t", "again")
    vault.send("t", "late")
    assert stale(vault) == [("t", "mail")]
    with vault.run("t") as run:
        run.model(lambda _: "well")
        assert run.done, "a stop counts for the run that was live, and no other"
    assert [record.name for record in vault.thread("t").timeline.records("inbox")] == []


def test_a_stop_of_an_earlier_run_counts_no_more(vault: Vault) -> None:
    thread = vault.thread("t").timeline
    with vault.run("t") as run:
        run.user("hi")
        row = thread.row()
        assert row is not None
        assert row.lease is not None
        old = {"epoch": row.lease.epoch - 1, "reason": "old", "at": 0, "mail": 0}
        thread.commit([thread.put("inbox", inbox.STOP, old)])
        run.model(lambda _: "done")
    assert (status(vault), list(thread.records("inbox"))) == ("completed", [])


@pytest.mark.parametrize("store", CLOCKED)
def test_a_holder_whose_lease_was_taken_over_is_fenced_not_stopped(store: str, tmp_path: Path) -> None:
    """As one that was frozen: the other holder is not stopped by what was said to this one."""
    clock = Clock()
    vault = clocked(store, tmp_path, clock)()
    with pytest.raises(Fenced), vault.run("t") as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        assert vault.stop("t", "to the first")
        clock.now += HOUR_US
        with vault.run("t") as taker:
            with pytest.raises(Fenced):
                run.model(lambda _: "no")
            taker.model(lambda _: "done")
            assert taker.done
        run.user("too late")
    assert status(vault) == "completed"


# -- a thread that no run holds --------------------------------------------------------------------


def test_a_thread_without_a_run_is_halted_at_once(vault: Vault) -> None:
    tools = Toolbox()

    @tools.tool(ask=True)
    def wire() -> str:
        raise AssertionError

    @tools.tool(read_only=True)
    def look() -> str:
        raise AssertionError

    with pytest.raises(Paused), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        run.model(lambda _: calls("wire", "look"))
        run.tools()
    assert vault.stop("t", "user pressed stop")
    assert not vault.stop("t", "again")
    assert answers(vault) == [STOPPED, STOPPED]
    assert {(entry.status, entry.attempt) for entry in vault.calls("t")} == {("failed", 0)}
    assert status(vault).reason == "user pressed stop"
    with pytest.raises(ThreadNotFound):
        vault.stop("nowhere", "why")
    for reason in ("", 7):
        with pytest.raises(InvalidInputError):
            vault.stop("t", reason)  # type: ignore[arg-type]


def test_what_a_crashed_run_may_have_done_is_said(vault: Vault) -> None:
    """An unmarked call stays unknown; one that may run again leaves no entry, so it counts as tried."""
    tools = Toolbox()

    @tools.tool(idempotent=True)
    def pay() -> str:
        raise KeyboardInterrupt

    @tools.tool
    def mail() -> str:
        raise KeyboardInterrupt

    for name, other, attempt in (("pay", "mail", 1), ("mail", "pay", 1)):
        vault.thread("t").delete()
        with pytest.raises(KeyboardInterrupt), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
            run.user("hi")
            run.model(lambda _, name=name, other=other: calls(name, other))
            run.tools()
        assert stale(vault) == [("t", "crashed")]
        assert vault.stop("t", "user pressed stop")
        assert stale(vault) == []
        entries = ledger(vault)
        assert (entries["pay"].status, entries["pay"].attempt) == ("failed", attempt)
        assert entries["mail"].status == ("failed" if name == "pay" else "started")
        assert entries["mail"].needs(held=False) == ("outcome" if name == "mail" else None)
        if name == "mail":
            with vault.run("t", tools=tools) as run:
                run.user("go on")
                with pytest.raises(Unknown):
                    run.tools()


def test_a_finished_thread_stays_as_it_is(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        run.model(lambda _: "done")
    before = vault.thread("t").head
    assert not vault.stop("t", "why")
    assert (status(vault), vault.thread("t").head) == ("completed", before)


def test_a_stop_while_the_lease_changes_hands_is_never_lost(vault: Vault) -> None:
    """A run is entered and left over and over while another thread stops it: it says True, and the thread is halted."""
    for _ in range(20):
        vault.thread("t").delete()
        with vault.run("t") as run:
            run.user("hi")
        told: list[bool] = []
        stopper = threading.Thread(target=lambda told=told: told.append(vault.stop("t", "why")))
        with vault.run("t"):
            stopper.start()
        stopper.join()
        assert (told, str.__str__(status(vault))) == ([True], "halted")


def test_a_holder_of_a_moment_passes_a_stop_on(vault: Vault) -> None:
    """`resolve` takes the lease for a moment; a stop said meanwhile is obeyed when it gives it back."""
    tools = Toolbox()

    @tools.tool
    def mail() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        run.model(lambda _: calls("mail"))
        run.tools()
    with briefly(vault.thread("t").timeline):
        assert vault.stop("t", "user pressed stop")
    assert status(vault).reason == "user pressed stop"
    row = vault.store.thread(ThreadKey("default", "t"))
    assert row is not None
    assert row.lease is None
