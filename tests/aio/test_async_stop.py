"""A stopped run on a loop: what is awaited is cancelled, with grace for what must not run twice; other cancellations stay."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from held import on_a_loop

from savegame import AsyncVault, CallEntry, Stopped, Toolbox
from savegame.runs import arun

STOPPED = "error: the run was stopped before this call had a result: user pressed stop"


def calls(*names: str) -> dict[str, Any]:
    made = [{"id": f"c{number}", "name": name, "arguments": {}} for number, name in enumerate(names)]
    return {"role": "assistant", "content": "", "tool_calls": made}


async def ledger(vault: AsyncVault) -> dict[str, CallEntry]:
    return {entry.name: entry async for entry in vault.calls("t")}


async def answers(vault: AsyncVault) -> list[Any]:
    messages = (await vault.thread("t").state())["messages"]
    return [message["content"] for message in messages if message["role"] == "tool"]


async def status(vault: AsyncVault) -> Any:
    newest = await vault.thread("t").latest()
    assert newest is not None
    return newest.status


@on_a_loop
async def test_a_model_that_is_awaited_is_cancelled(vault: AsyncVault) -> None:
    """The test has a minute, the model would take an hour."""

    async def llm(_: Any) -> str:
        assert await vault.stop("t", "user pressed stop")
        await asyncio.sleep(3600)
        return "too late"

    for ask in (llm, lambda messages: llm(messages)):
        await vault.thread("t").delete()
        with pytest.raises(Stopped) as stopped:  # noqa: PT012 - it leaves the run
            async with vault.run("t") as run:
                await run.user("hi")
                await run.model(ask)
        assert (stopped.value.reason, repr(await status(vault))) == ("user pressed stop", "halted(user pressed stop)")
        async with vault.run("t") as run:
            assert run.done, "the lease was released"


@on_a_loop
async def test_a_model_in_a_thread_is_waited_for(vault: AsyncVault) -> None:
    """It cannot be cancelled, and its reply is paid for: it is kept, and no call of it is begun."""

    def llm(_: Any) -> dict[str, Any]:
        vault.sync.stop("t", "user pressed stop")
        time.sleep(0.7)
        return calls("mail")

    tools = Toolbox()

    @tools.tool
    async def mail() -> str:
        raise AssertionError

    with pytest.raises(Stopped):  # noqa: PT012 - it leaves the run
        async with vault.run("t", tools=tools) as run:
            await run.user("hi")
            await run.model(llm)
            await run.tools()
    assert await answers(vault) == [STOPPED]
    async with vault.run("t"):
        pass


@pytest.mark.parametrize("at_once", [False, True])
@on_a_loop
async def test_tools_that_may_run_again_are_cancelled_and_others_have_a_grace(vault: AsyncVault, at_once: bool) -> None:
    tools = Toolbox()
    seen: list[str] = []
    blocking = threading.Event()

    @tools.tool
    async def quick() -> str:
        await asyncio.sleep(0)
        return "kept"

    @tools.tool(idempotent=True)
    async def pay() -> str:
        while at_once and not blocking.is_set():
            await asyncio.sleep(0.01)
        await vault.stop("t", "user pressed stop")
        await asyncio.sleep(3600)
        return "too late"

    @tools.tool
    async def mail(call: Any) -> str:
        try:
            while call.alive():
                await asyncio.sleep(0.05)
            seen.append("it was told")
            await asyncio.sleep(3600)
        finally:
            seen.append("it was cancelled")
        return "too late"

    @tools.tool
    def blocks(call: Any) -> str:
        blocking.set()
        while call.alive():
            time.sleep(0.05)
        return "its own end"

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):  # noqa: PT012 - it leaves the run
        patch.setattr(arun, "GRACE_S", 0.3)
        async with vault.run("t", tools=tools) as run:
            await run.user("hi")
            await run.model(lambda _: calls("quick", "pay", "mail", "blocks"))
            await run.tools(at_once=at_once)
    entries = await ledger(vault)
    assert (entries["quick"].result, entries["pay"].status, entries["pay"].attempt) == ("kept", "failed", 1)
    if at_once:
        assert seen == ["it was told", "it was cancelled"]
        assert (entries["mail"].status, entries["blocks"].result) == ("unknown", "its own end")
        assert await answers(vault) == ["kept", "its own end", STOPPED]
    else:
        assert (seen, entries["mail"].status, entries["mail"].attempt) == ([], "failed", 0)
        assert await answers(vault) == ["kept", STOPPED, STOPPED, STOPPED]
    assert repr(await status(vault)) == "halted(user pressed stop)"
    async with vault.run("t"):
        pass


@on_a_loop
async def test_a_tool_that_ends_within_its_grace_is_kept(on_disk: AsyncVault) -> None:
    tools = Toolbox()

    @tools.tool
    async def mail(call: Any) -> str:
        await on_disk.stop("t", "user pressed stop")
        while call.alive():
            await asyncio.sleep(0.05)
        return "rolled back"

    with pytest.raises(Stopped):  # noqa: PT012 - it leaves the run
        async with on_disk.run("t", tools=tools) as run:
            await run.user("hi")
            await run.model(lambda _: calls("mail"))
            await run.tools()
    assert await answers(on_disk) == ["rolled back"]


@on_a_loop
async def test_a_cancellation_from_outside_is_no_stop(on_disk: AsyncVault) -> None:
    begun = asyncio.Event()

    async def llm(_: Any) -> str:
        begun.set()
        await asyncio.sleep(3600)
        return "too late"

    async def work() -> None:
        async with on_disk.run("t") as run:
            await run.user("hi")
            await run.model(llm)

    task = asyncio.create_task(work())
    await begun.wait()
    await asyncio.sleep(0.6)  # the listener has looked
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await status(on_disk) == "in_progress"
    assert [run.reason async for run in on_disk.stale()] == ["crashed"]


@on_a_loop
async def test_a_timeout_of_the_models_own_is_no_stop(on_disk: AsyncVault) -> None:
    async def llm(_: Any) -> str:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(3600)
        return "never"

    with pytest.raises(TimeoutError):  # noqa: PT012 - it leaves the run
        async with on_disk.run("t") as run:
            await run.user("hi")
            await run.model(llm)
    assert await status(on_disk) == "in_progress"
