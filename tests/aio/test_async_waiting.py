"""watch and autosave on a loop: they wait there, never in a worker."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from held import HeldStore, on_a_loop

import savegame
from savegame import AsyncVault

NOW = dt.timedelta(0)
OFTEN = dt.timedelta(milliseconds=1)
HOUR = dt.timedelta(hours=1)


async def until(happened: Callable[[], Any]) -> None:
    while not happened():
        await asyncio.sleep(0.001)


@on_a_loop
async def test_watch_shows_what_others_save(vault: AsyncVault) -> None:
    async def watch() -> list[int]:
        found = []
        async for checkpoint in vault.thread("t").watch(since=begun, poll=OFTEN):
            found.append(checkpoint.step)
            if len(found) == 20:
                break
        return found

    begun = await vault.thread("t").save(0)
    watching = asyncio.create_task(watch())
    for number in range(20):
        await vault.thread("t").save(number)
    assert await watching == list(range(2, 22))


@on_a_loop
async def test_watch_ends_after_its_timeout_and_shows_more_than_a_page(vault: AsyncVault) -> None:
    begun = await vault.thread("t").save(0)
    await vault.call(lambda sync: [sync.thread("t").save(number) for number in range(300)])
    assert [one.step async for one in vault.thread("t").watch(timeout=NOW)] == []
    assert [one.step async for one in vault.thread("t").watch(since=begun, timeout=NOW)] == list(range(2, 302))


@pytest.mark.parametrize("wrong", [{"poll": NOW}, {"timeout": -HOUR}])
@on_a_loop
async def test_watch_refuses_what_nobody_can_wait_for(vault: AsyncVault, wrong: dict[str, Any]) -> None:
    with pytest.raises(savegame.InvalidInputError):
        await anext(vault.thread("t").watch(**wrong))


@on_a_loop
async def test_many_who_watch_hold_no_worker(slow: AsyncVault, store: HeldStore) -> None:
    watching = [asyncio.ensure_future(anext(slow.thread("t").watch(poll=OFTEN))) for _ in range(10 * store.width)]
    await until(lambda: store.most)
    await slow.thread("t").save(1)
    for one in watching:
        one.cancel()
    ends = await asyncio.gather(*watching, return_exceptions=True)
    assert all(isinstance(end, (savegame.Checkpoint, asyncio.CancelledError)) for end in ends)


@on_a_loop
async def test_autosave_saves_what_changed(vault: AsyncVault) -> None:
    async def state() -> Any:
        await asyncio.sleep(0)
        return {"n": number}

    number = 1
    thread = vault.thread("t")
    async with await thread.autosave(state, OFTEN) as autosave:
        await until(lambda: autosave.saved == 1)
        number = 2
        await until(lambda: autosave.saved == 2)
        assert autosave.running
    assert not autosave.running
    assert [(one.kind, one.step) async for one in thread.history()] == [("automatic", 2), ("automatic", 1)]
    assert (await thread.state(), thread.step) == ({"n": 2}, 2)


@on_a_loop
async def test_beginning_an_autosave_does_not_block_the_loop(slow: AsyncVault, store: HeldStore) -> None:
    store.go.clear()
    beginning = asyncio.create_task(slow.thread("t").autosave(lambda: "state", HOUR))
    await store.entered()  # a blocked loop would never say go
    store.go.set()
    await (await beginning).stop()
    assert await slow.thread("t").state() == "state"


@on_a_loop
async def test_a_block_that_is_left_at_once_has_saved_once(vault: AsyncVault) -> None:
    thread = vault.thread("t")
    async with await thread.autosave(lambda: "state", HOUR):
        pass
    assert await thread.state() == "state"


@on_a_loop
async def test_saves_by_hand_and_by_itself_follow_one_another(vault: AsyncVault) -> None:
    state = {"n": 0}
    thread = vault.thread("t")
    async with await thread.autosave(lambda: dict(state), OFTEN) as autosave:
        for number in range(50):
            state["n"] = number
            await thread.save(dict(state))
    assert autosave.errors == ()
    assert await thread.state() == {"n": 49}


@on_a_loop
async def test_what_somebody_else_saved_is_never_covered_up(vault: AsyncVault) -> None:
    told: list[Exception] = []
    state = "first"
    thread = vault.thread("t")
    async with await thread.autosave(lambda: state, OFTEN, on_error=told.append) as autosave:
        await until(lambda: autosave.saved)
        await vault.thread("t").save("somebody else's")
        state = "second"
        await until(lambda: told)
    assert isinstance(told[0], savegame.ConflictError)
    assert await vault.thread("t").state() == "somebody else's"


@on_a_loop
async def test_a_function_that_fails_is_reported_and_asked_again(vault: AsyncVault) -> None:
    def state() -> Any:
        if not autosave.errors:
            raise LookupError("not yet")
        return "state"

    autosave = await vault.thread("t").autosave(state, OFTEN)
    await until(lambda: autosave.saved)
    await autosave.stop()
    await autosave.stop()
    assert isinstance(autosave.last_error, LookupError)


@on_a_loop
async def test_it_can_be_stopped_from_inside(vault: AsyncVault) -> None:
    async def state() -> Any:
        await autosave.stop()
        return "last"

    autosave = await vault.thread("t").autosave(state, OFTEN)
    await until(lambda: not autosave.running)
    assert await vault.thread("t").state() == "last"


@pytest.mark.parametrize("url", ["memory:", "vault.db"])
@on_a_loop
async def test_a_closed_vault_ends_it(url: str, tmp_path: Path) -> None:
    vault = await savegame.open_async(url if url == "memory:" else tmp_path / url)
    autosave = await vault.thread("t").autosave(lambda: "state", OFTEN)
    await vault.close()
    await until(lambda: not autosave.running)
    assert isinstance(autosave.last_error, savegame.ClosedError)


def test_the_end_of_the_loop_ends_it_and_another_may_begin(in_database: AsyncVault) -> None:
    async def begin(state: str) -> None:
        autosave = await in_database.thread("t").autosave(lambda: state, HOUR)
        await until(lambda: autosave.saved)

    for state in ("first", "second"):
        asyncio.run(begin(state))
    assert in_database.sync.thread("t").state() == "second"


@on_a_loop
async def test_a_thread_takes_no_second_one(vault: AsyncVault) -> None:
    async with await vault.thread("t").autosave(lambda: 1, HOUR):
        with pytest.raises(savegame.AlreadyExistsError):
            await vault.thread("t").autosave(lambda: 1, HOUR)


@on_a_loop
async def test_agents_are_saved_by_a_task(vault: AsyncVault) -> None:
    await vault.save_agent({"agent_id": "helper", "name": "Helper", "agent_type": "scripted"})
    async with await vault.autosave_agents(["helper", "nobody"], OFTEN) as saving:
        await until(lambda: saving.saved == 1)
        await vault.save_conversation({"id": "c", "agent_id": "helper", "messages": []})
        await until(lambda: saving.saved == 2)
        with pytest.raises(savegame.AlreadyExistsError):
            await vault.autosave_agents(["helper"], HOUR)
    assert not saving.running
    assert [str(entry.kind) async for entry in vault.agent_checkpoints("helper")] == ["automatic", "automatic"]
