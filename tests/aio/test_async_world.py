"""Messages and sleeps on a loop: the same core, awaited; a supervisor that waits until the next sleep is over."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest
from held import on_a_loop

from savegame import AsyncVault, InvalidInputError, Paused

HOUR = dt.timedelta(hours=1)


async def contents(vault: AsyncVault) -> list[Any]:
    return [message["content"] for message in (await vault.thread("t").state())["messages"]]


@on_a_loop
async def test_messages_are_taken_in(vault: AsyncVault) -> None:
    async with vault.run("t") as run:
        await run.user("hi")
        assert await vault.send("t", "wait", key="k")
        assert not await vault.send("t", "wait", key="k")
        assert [message.content async for message in vault.inbox("t")] == ["wait"]
        assert not await run.user("wait", key="k")
        await vault.send("t", "more", key="m")
        assert await vault.unsend("t", "m")

        async def llm(messages: list[dict[str, Any]]) -> str:
            await vault.send("t", "late")
            return "hello"

        await run.model(llm)
        assert run.done
    assert await contents(vault) == ["hi", "wait", "hello"]
    assert [(run.thread_id, run.reason) async for run in vault.stale()] == [("t", "mail")]


@on_a_loop
async def test_a_supervisor_resumes_sleepers_when_they_are_due_and_threads_with_mail(vault: AsyncVault) -> None:
    """Its poll is an hour, and the test has a minute."""
    stop = asyncio.Event()
    resumed: list[str] = []

    async def work(thread_id: str) -> None:
        async with vault.run(thread_id) as run:
            await run.user("hi", key="start")
            await run.sleep(dt.timedelta(milliseconds=300), name="nap")
            await run.model(lambda _: "done")
            resumed.append(thread_id)
        if len(resumed) == 2:
            stop.set()

    with pytest.raises(Paused) as paused:
        await work("t")
    assert paused.value.until is not None
    await vault.send("mail", "hello")
    assert await vault.supervise(work, poll=HOUR, stop=stop) == 2
    assert sorted(resumed) == ["mail", "t"]
    async with vault.run("t") as run:
        await run.sleep(HOUR, name="nap")
        await run.sleep_until(dt.datetime.now(dt.UTC) - HOUR, name="past")
        with pytest.raises(InvalidInputError):
            await run.sleep_until(dt.datetime(2030, 1, 1), name="naive")
