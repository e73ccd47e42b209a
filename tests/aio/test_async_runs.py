"""Runs on a loop: the promises of a run, with tools that are awaited, cancellation, and a loop that is never held up."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime as dt
import logging
import threading
from typing import Any

import pytest
from addresses import placeholder
from held import PATIENCE_S, HeldStore, on_a_loop

import savegame
from savegame import AsyncVault, Busy, CallEntry, ConflictError, InvalidInputError, Paused, Toolbox, Unknown, UnsupportedError
from savegame.model import ThreadKey
from savegame.testing.provider import check_messages

SECOND = dt.timedelta(seconds=1)
SHORT = dt.timedelta(milliseconds=20)
LONG = dt.timedelta(seconds=PATIENCE_S)


def calling(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"id": f"c{number}", "name": name, "arguments": given} for number, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": "", "tool_calls": made}


async def play(
    vault: AsyncVault, tools: Toolbox, *replies: Any, key: str = "first", lease: dt.timedelta = 30 * SECOND, **how: Any
) -> Any:
    """The loop of every agent: call it again to resume. The model answers from a script, as strict as a provider."""

    async def llm(messages: list[dict[str, Any]]) -> Any:
        await asyncio.sleep(0)
        check_messages(messages)
        return replies[sum(message["role"] == "assistant" for message in messages)]

    async with vault.run("t", agent="helper", tools=tools, lease=lease) as run:
        await run.user("hi", key=key)
        while not run.done:
            await run.tools(**how)
            await run.model(llm)
        return run.reply


async def ledger(vault: AsyncVault) -> dict[str, CallEntry]:
    return {entry.name: entry async for entry in vault.calls("t")}


async def contents(vault: AsyncVault) -> list[Any]:
    return [message["content"] for message in (await vault.thread("t").state())["messages"]]


async def is_free(vault: AsyncVault) -> bool:
    """Whether the lease of the thread is free."""
    row = await vault.call(lambda sync: sync.store.thread(ThreadKey(sync.namespace, "t")))
    return row is None or row.lease is None or row.lease.expires <= await vault.call(lambda sync: sync.store.clock())


async def run_out(vault: AsyncVault) -> None:
    """Let the lease of the thread end now instead of at its time."""

    def end(sync: savegame.Vault) -> None:
        key = ThreadKey(sync.namespace, "t")
        row = sync.store.thread(key)
        assert row is not None
        assert row.lease is not None
        sync.store.renew(key, row.lease.epoch, 1)

    await vault.call(end)


# -- the loop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
@on_a_loop
async def test_a_run_goes_from_a_question_to_a_reply(vault: AsyncVault, at_once: bool) -> None:
    box, mailed = Toolbox(), []

    @box.tool(read_only=True)
    async def look(order: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"order": order}

    @box.tool
    def mail(call: Any, to: str) -> str:
        mailed.append((to, call.key))
        return "sent"

    replies = (calling(("look", {"order": 7}), ("nothing", {})), calling(("mail", {"to": "a"}), ("mail", {"to": "b"})), "done")
    assert await play(vault, box, *replies, at_once=at_once) == "done"
    assert await play(vault, box, *replies) == "done"  # it is over, and the key is taken once
    assert [to for to, _ in sorted(mailed)] == ["a", "b"]
    assert len({key for _, key in mailed}) == 2
    said = await contents(vault)
    assert (said[2], said[5:]) == ({"order": 7}, ["sent", "sent", "done"])
    assert [str(entry.status) async for entry in vault.calls("t")].count("done") == 3
    assert [info.message_count async for info in vault.conversations("helper")] == [8]
    assert await is_free(vault)


@on_a_loop
async def test_a_step_that_is_asked_for_twice_at_once_is_done_once(vault: AsyncVault) -> None:
    done = []

    async def work() -> int:
        done.append(1)
        await asyncio.sleep(0.01)
        return len(done)

    async with vault.run("t") as run:
        assert await asyncio.gather(*(run.step("same", work) for _ in range(3))) == [1, 1, 1]


@on_a_loop
async def test_state_steps_usage_and_halting(vault: AsyncVault) -> None:
    async def slow() -> int:
        await asyncio.sleep(0)
        return 2

    async with vault.run("t", agent="helper") as run:
        assert await run.user("hi", key="k")
        assert not await run.user("hi", key="k")
        assert [await run.step("sync", lambda: 1), await run.step("async", slow)] == [1, 2]
        assert await run.model(lambda messages: "hello", usage=lambda reply: (len(reply), 0.5)) == run.reply == "hello"
        run.state["plan"] = ["look"]
        saved = await run.save(label="planned")
        assert (run.checkpoint, run.alive) == (saved, True)
        assert (await run.halt("enough", resume_hint="ask")).resume_hint == "ask"
    async with vault.run("t") as run:
        assert (run.done, run.state["plan"]) == (True, ["look"])
        assert [message["role"] for message in run.messages] == ["user", "assistant"]
        again = await asyncio.gather(run.step("sync", lambda: 3), run.step("async", lambda: 4), run.step("new", lambda: 5))
        assert again == [1, 2, 5]
    assert [usage.tokens_used for usage in await vault.usage()] == [5]


@on_a_loop
async def test_one_runs_the_others_are_busy(vault: AsyncVault) -> None:
    async with vault.run("t") as run:
        await run.user("hi")
        with pytest.raises(Busy):
            async with vault.run("t"):
                pass
        with pytest.raises(ConflictError):
            await vault.thread("t").save({})
        async with vault.run("another"):
            pass
    with pytest.raises(KeyError, match="the caller's"):
        async with vault.run("t"):
            raise KeyError("the caller's")
    assert await is_free(vault)


# -- tools -----------------------------------------------------------------------------------------


@on_a_loop
async def test_calls_at_once_overlap_and_are_answered_in_order(vault: AsyncVault) -> None:
    box, asked, answered = Toolbox(), asyncio.Event(), asyncio.Event()
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    @box.tool
    async def ask() -> str:
        asked.set()
        await answered.wait()
        return "ask"

    @box.tool
    async def answer() -> str:
        await asked.wait()
        answered.set()
        return "answer"

    @box.tool
    def meet() -> str:
        meeting.wait()
        return "meet"

    names = ["ask", "meet", "answer", "meet"]
    assert await play(vault, box, calling(*((name, {}) for name in names)), "done", at_once=True) == "done"
    assert (await contents(vault))[2:-1] == names


@on_a_loop
async def test_a_slow_tool_holds_up_neither_the_loop_nor_the_vault(slow: AsyncVault, store: HeldStore) -> None:
    box, go, inside = Toolbox(), threading.Event(), threading.Barrier(store.width + 2, timeout=PATIENCE_S)

    @box.tool(read_only=True)
    def wait(call: Any) -> bool:
        inside.wait()
        return go.wait(PATIENCE_S)

    many = store.width + 1
    playing = asyncio.create_task(play(slow, box, calling(*[("wait", {})] * many), "done", at_once=True))
    await asyncio.to_thread(inside.wait)
    for number in range(many):
        await slow.thread("other").save(number)
    assert not playing.done()
    go.set()
    assert await playing == "done"


@on_a_loop
async def test_tools_see_the_context_of_their_caller(in_database: AsyncVault) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    box = Toolbox()

    @box.tool
    async def on_the_loop() -> str:
        return who.get()

    box.tool(name="in_a_thread")(lambda: who.get())
    box.tool(name="in_a_transaction", transaction=True)(lambda call: who.get())
    who.set("alice")
    await play(in_database, box, calling(("on_the_loop", {}), ("in_a_thread", {}), ("in_a_transaction", {})), "done")
    assert (await contents(in_database))[2:5] == ["alice"] * 3


@on_a_loop
async def test_a_tool_that_fails_is_tried_again_and_told_to_the_model(vault: AsyncVault) -> None:
    box, tries = Toolbox(), []

    @box.tool(read_only=True, backoff=SHORT)
    async def look() -> str:
        tries.append("look")
        raise TimeoutError("the tool's own")

    @box.tool
    def mail() -> str:
        tries.append("mail")
        raise StopIteration

    assert await play(vault, box, calling(("look", {}), ("mail", {})), "sorry") == "sorry"
    assert tries == ["look"] * 3 + ["mail"]
    assert (await contents(vault))[2] == "error: TimeoutError: the tool's own"
    assert {entry.status for entry in (await ledger(vault)).values()} == {"failed"}


@pytest.mark.parametrize("at_once", [False, True])
@on_a_loop
async def test_a_tool_that_hangs_is_left(vault: AsyncVault, at_once: bool) -> None:
    """One that may run again has failed; the outcome of another is unknown, and what ran beside it is kept."""
    box, hang, cancelled = Toolbox(), threading.Event(), []

    @box.tool(read_only=True, timeout=SHORT, retries=0)
    async def look() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("look")
            raise

    box.tool(timeout=SHORT, name="odd")(lambda: hang.wait(PATIENCE_S))
    box.tool(name="even")(lambda: "even")
    replies = (calling(("look", {}), ("odd", {}), ("even", {})), "done")
    with pytest.raises(Unknown) as told:
        await play(vault, box, *replies, at_once=at_once)
    hang.set()
    assert cancelled == ["look"]
    known = {name: entry.status for name, entry in (await ledger(vault)).items()}
    assert known == {"look": "failed", "odd": "unknown"} | ({"even": "done"} if at_once else {})
    await vault.resolve("t", told.value.call, "it had worked")
    assert await play(vault, box, *replies, at_once=at_once) == "done"


@on_a_loop
async def test_a_transaction_commits_with_its_result_or_not_at_all(in_database: AsyncVault) -> None:
    def rows(vault: savegame.Vault, sql: str) -> list[Any]:
        with vault.connection() as db:
            done = db.execute(sql)
            return done.fetchall() if sql.startswith("SELECT") else []

    box, fail = Toolbox(), [True]
    await in_database.call(lambda sync: rows(sync, "CREATE TABLE note (text TEXT)"))

    @box.tool(transaction=True)
    def note(call: Any, text: str) -> str:
        call.db.execute(f"INSERT INTO note VALUES ({placeholder(in_database.sync)})", (text,))
        if fail:
            fail.clear()
            raise ValueError("no")
        return "noted"

    box.tool(name="look", read_only=True)(lambda: "looked")
    calls = calling(("look", {}), ("note", {"text": "one"}), ("note", {"text": "two"}), ("look", {}))
    assert await play(in_database, box, calls, "done", at_once=True) == "done"
    assert await in_database.call(lambda sync: rows(sync, "SELECT text FROM note")) == [("two",)]
    assert (await contents(in_database))[2:6] == ["looked", "error: ValueError: no", "noted", "looked"]


@on_a_loop
async def test_a_transaction_that_ended_itself_is_called_once_and_one_that_spoilt_itself_fails(postgres_url: str) -> None:
    box, made = Toolbox(), []

    @box.tool(transaction=True)
    def spoils(call: Any) -> str:
        made.append(call.name)
        with contextlib.suppress(Exception):
            call.db.execute("SELECT nothing")
        return "done, it thinks"

    @box.tool(transaction=True)
    def ends(call: Any) -> str:
        made.append(call.name)
        call.db.execute("SELECT 1; COMMIT; BEGIN")
        return "done"

    async with savegame.open_async(postgres_url) as vault:
        for at_once in (False, True, False):
            with pytest.raises(Unknown) as told:
                await play(vault, box, calling(("spoils", {}), ("ends", {})), "done", at_once=at_once)
        assert {name: entry.status for name, entry in (await ledger(vault)).items()} == {"spoils": "failed", "ends": "unknown"}
        await vault.resolve("t", told.value.call, "I looked")
        assert await play(vault, box, calling(("spoils", {}), ("ends", {})), "done") == "done"
        assert "a statement in the transaction had failed" in (await contents(vault))[2]
    assert made == ["spoils", "ends"]


@on_a_loop
async def test_what_cannot_run_is_refused_before_anything_is_done(slow: AsyncVault, store: HeldStore) -> None:
    async def note(call: Any) -> None: ...

    with pytest.raises(InvalidInputError, match="must not await"):
        Toolbox().tool(transaction=True)(note)
    box = Toolbox()
    box.tool(transaction=True, name="note")(lambda call: None)
    with pytest.raises(UnsupportedError, match="note"):
        async with slow.run("t", tools=box):
            pass
    box = Toolbox()
    box.tool(note)
    with pytest.raises(InvalidInputError, match="open_async"), slow.sync.run("t", tools=box):
        pass
    assert store.thread(ThreadKey("default", "t")) is None


# -- people ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
@on_a_loop
async def test_a_person_is_asked_and_what_ran_meanwhile_is_kept(vault: AsyncVault, at_once: bool) -> None:
    box, made = Toolbox(), []

    @box.tool
    async def mail() -> None:
        while at_once and "wire" not in await ledger(vault):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # the run knows by now that it has to wait
        made.append("mail")

    @box.tool(ask=True)
    async def wire() -> None:
        made.append("wire")

    replies = (calling(("mail", {}), ("wire", {})), "done")
    for _ in range(2):
        with pytest.raises(Paused) as told:
            await play(vault, box, *replies, at_once=at_once)
    assert made == ["mail"]
    assert await vault.answer("t", told.value.call, True) is True
    assert await vault.answer("t", told.value.call, "no") is False
    assert await play(vault, box, *replies, at_once=at_once) == "done"
    assert made == ["mail", "wire"]


@pytest.mark.parametrize("at_once", [False, True])
@on_a_loop
async def test_an_approval_is_for_what_was_shown(vault: AsyncVault, at_once: bool) -> None:
    box, made = Toolbox(), []

    @box.tool(ask=True)
    async def wire(iban: str) -> None:
        made.append(iban)

    replies = (calling(("wire", {"iban": "GOOD"})), "done")
    with pytest.raises(Paused) as told:
        await play(vault, box, *replies, at_once=at_once)
    state = await vault.thread("t").state()
    state["messages"][-1]["tool_calls"][0]["arguments"] = {"iban": "EVIL"}
    await vault.thread("t").save(state, force=True)
    assert await vault.answer("t", told.value.call, True) is True
    with pytest.raises(Paused) as other:
        await play(vault, box, *replies, at_once=at_once)
    assert made == []
    assert other.value.call is not None
    assert other.value.call.arguments == {"iban": "EVIL"}
    assert await vault.answer("t", other.value.call, True) is True
    assert await play(vault, box, *replies, at_once=at_once) == "done"
    assert made == ["EVIL"]


@pytest.mark.parametrize("at_once", [False, True])
@on_a_loop
async def test_what_was_begun_is_not_forgotten_when_the_call_is_changed(vault: AsyncVault, at_once: bool) -> None:
    box, made = Toolbox(), []

    @box.tool(timeout=SHORT)
    async def mail(to: str) -> None:
        made.append(to)
        if to == "first":
            await asyncio.sleep(PATIENCE_S)

    replies = (calling(("mail", {"to": "first"})), "done")
    with pytest.raises(Unknown):
        await play(vault, box, *replies, at_once=at_once)
    state = await vault.thread("t").state()
    state["messages"][-1]["tool_calls"][0]["arguments"] = {"to": "second"}
    await vault.thread("t").save(state, force=True)
    with pytest.raises(Unknown) as told:
        await play(vault, box, *replies, at_once=at_once)
    assert told.value.call is not None
    assert (made, told.value.call.arguments) == (["first"], {"to": "first"})
    await vault.resolve("t", told.value.call, error="never sent")
    assert await play(vault, box, *replies, at_once=at_once) == "done"
    assert made == ["first", "second"]


# -- cancellation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
@on_a_loop
async def test_a_tool_whose_run_is_cancelled_is_not_silently_made_again(
    vault: AsyncVault,
    at_once: bool,
    awaited: bool,
) -> None:
    box, begun, go = Toolbox(), threading.Semaphore(0), threading.Event()

    async def on_the_loop() -> None:
        begun.release()
        await asyncio.Event().wait()

    def in_a_thread() -> None:
        begun.release()
        assert go.wait(PATIENCE_S)

    box.tool(name="mail")(on_the_loop if awaited else in_a_thread)
    playing = asyncio.create_task(play(vault, box, calling(("mail", {})), "done", at_once=at_once))
    await asyncio.to_thread(begun.acquire)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert (await ledger(vault))["mail"].status == "started"
    assert await is_free(vault) is awaited  # what goes on in a thread keeps everybody else out until the lease has run out
    if not awaited:
        await run_out(vault)
    with pytest.raises(Unknown) as told:
        await play(vault, box, calling(("mail", {})), "done")
    go.set()
    assert not begun.acquire(blocking=False)
    await vault.resolve("t", told.value.call, error="it had not worked")
    assert await play(vault, box, calling(("mail", {})), "done") == "done"


@on_a_loop
async def test_what_is_known_is_kept_when_the_calls_beside_it_are_cancelled(vault: AsyncVault) -> None:
    box, quick = Toolbox(), asyncio.Event()

    @box.tool
    async def hang() -> None:
        await asyncio.Event().wait()

    @box.tool
    async def mail() -> str:
        quick.set()
        return "sent"

    playing = asyncio.create_task(play(vault, box, calling(("hang", {}), ("mail", {})), "done", at_once=True))
    await quick.wait()
    await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert {name: entry.status for name, entry in (await ledger(vault)).items()} == {"hang": "started", "mail": "done"}


@on_a_loop
async def test_whoever_is_cancelled_while_entering_holds_no_lease(slow: AsyncVault, store: HeldStore) -> None:
    async def enter() -> None:
        async with slow.run("t"):
            pytest.fail("it was cancelled before")

    store.go.clear()
    entering = asyncio.create_task(enter())
    await store.entered()
    for _ in range(3):
        entering.cancel()
        await asyncio.sleep(0)
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    async with slow.run("t") as run:
        assert run.alive


# -- resuming --------------------------------------------------------------------------------------


async def leave_stale(vault: AsyncVault, *names: str) -> None:
    def leave(sync: savegame.Vault) -> None:
        for name in names:
            thread = sync.thread(name)
            thread.save({"messages": [{"role": "user", "content": "hi"}]})
            sync.store.lease(ThreadKey(sync.namespace, name), "somebody", 1)

    await vault.call(leave)
    while len([run async for run in vault.stale()]) < len(names):
        await asyncio.sleep(0.001)


@on_a_loop
async def test_what_went_stale_is_resumed_until_it_is_told_to_stop(vault: AsyncVault) -> None:
    await leave_stale(vault, "a", "b")
    stop, resumed = asyncio.Event(), []

    async def resume(thread_id: str) -> None:
        async with vault.run(thread_id) as run:
            await run.model(lambda messages: "done")
        resumed.append(thread_id)
        if len(resumed) == 3:
            stop.set()

    supervising = asyncio.create_task(vault.supervise(resume, poll=SHORT, stop=stop))
    while len(resumed) < 2:
        await asyncio.sleep(0.001)
    await leave_stale(vault, "c")
    assert await supervising == 3
    assert sorted(resumed) == ["a", "b", "c"]


@on_a_loop
async def test_a_supervisor_survives_what_it_resumes_and_can_be_cancelled(
    vault: AsyncVault, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_stale(vault, "a", "b")
    tried: list[str] = []

    def resume(thread_id: str) -> None:
        tried.append(thread_id)
        raise Busy("quicker") if thread_id == "a" else RuntimeError("broken")

    with caplog.at_level(logging.INFO, "savegame"):
        assert await vault.supervise(resume, once=True) == 0
    assert sorted(tried) == ["a", "b"]
    assert sorted(record.levelname for record in caplog.records if "resum" in record.message) == ["ERROR", "INFO"]
    supervising = asyncio.create_task(vault.supervise(resume, poll=LONG))
    while len(tried) < 4:
        await asyncio.sleep(0.001)
    supervising.cancel()
    with pytest.raises(asyncio.CancelledError):
        await supervising
