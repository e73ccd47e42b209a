"""A write that has begun is waited for, one that has not is dropped, a read may be abandoned; the handle tells which it was."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from held import PATIENCE_S, HeldStore, on_a_loop

import savegame
from savegame import AsyncVault
from savegame.aio import Opening
from savegame.model import ThreadKey


async def ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def every_worker_is_free(vault: AsyncVault, store: HeldStore) -> None:
    meeting = threading.Barrier(store.width, timeout=PATIENCE_S)
    await asyncio.gather(*(vault.call(lambda _: meeting.wait()) for _ in range(store.width)))


@on_a_loop
async def test_a_save_that_has_begun_ends_before_the_cancellation_is_delivered(slow: AsyncVault, store: HeldStore) -> None:
    thread = slow.thread("t")
    store.go.clear()
    saving = asyncio.create_task(thread.save({"n": 1}, id="the-save"))
    await store.entered()
    saving.cancel("enough")
    await ticks()
    saving.cancel("really enough")
    await ticks()
    assert not saving.done()
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert thread.head == "the-save"
    assert await thread.state() == {"n": 1}
    assert (await thread.save({"n": 1}, id="the-save")).step == 1


@on_a_loop
async def test_a_save_that_has_not_begun_does_not_happen(slow: AsyncVault, store: HeldStore) -> None:
    store.go.clear()
    others = [asyncio.create_task(slow.thread(f"other {number}").save(number)) for number in range(store.width)]
    await store.entered(store.width)
    thread = slow.thread("t")
    saving = asyncio.create_task(thread.save({"n": 1}, id="the-save"))
    await ticks()
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    store.go.set()
    await asyncio.gather(*others)
    assert thread.head is None
    assert await thread.latest() is None
    assert (await thread.save({"n": 1}, id="the-save")).step == 1


@on_a_loop
async def test_a_cancelled_save_that_failed_says_why(slow: AsyncVault, store: HeldStore) -> None:
    thread = slow.thread("t")
    await thread.latest()
    await slow.thread("t").save("somebody else's")
    store.go.clear()
    saving = asyncio.create_task(thread.save("mine"))
    await store.entered()
    saving.cancel()
    await ticks()
    store.go.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await saving
    assert isinstance(caught.value.__cause__, savegame.ConflictError)
    assert await thread.state() == "somebody else's"


@on_a_loop
async def test_a_timeout_waits_for_a_write(slow: AsyncVault, store: HeldStore) -> None:
    store.go.clear()
    thread = slow.thread("t")
    asyncio.get_running_loop().call_later(0.2, store.go.set)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(thread.save(1), 0.02)
    assert await thread.state() == 1


@on_a_loop
async def test_a_read_is_abandoned_and_moves_nothing(slow: AsyncVault, store: HeldStore) -> None:
    """A handle that has not seen what others saved must not count as one that has."""
    thread = slow.thread("t")
    seen = await thread.save("mine")
    await slow.thread("t").save("somebody else's")
    store.go.clear()
    reading = asyncio.create_task(thread.latest())
    await store.entered()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    store.go.set()
    await every_worker_is_free(slow, store)
    assert thread.head == seen.id
    with pytest.raises(savegame.ConflictError):
        await thread.save("on top of mine")


@on_a_loop
async def test_a_listing_can_be_left_early_or_cancelled(slow: AsyncVault, store: HeldStore) -> None:
    thread = slow.thread("t")
    for number in range(5):
        await thread.save(number)
    async for entry in thread.history():
        assert entry.step == 5
        break
    store.go.clear()
    waiting = asyncio.create_task(anext(thread.history()))
    await store.entered()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    store.go.set()
    assert len([entry async for entry in thread.history()]) == 5


@on_a_loop
async def test_a_cancelled_opening_leaves_nothing_open(tmp_path: Path, store: HeldStore) -> None:
    made: list[savegame.Vault] = []

    def make() -> savegame.Vault:
        made.append(savegame.open(tmp_path / "v.db"))
        store.thread(ThreadKey("default", "t"))  # waits
        return made[0]

    async def opened() -> AsyncVault:
        return await Opening(make)

    store.go.clear()
    opening = asyncio.create_task(opened())
    await store.entered()
    opening.cancel()
    await ticks()
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(savegame.ClosedError):
        made[0].thread("t").latest()


@on_a_loop
async def test_a_cancelled_close_still_closes(slow: AsyncVault, store: HeldStore) -> None:
    store.go.clear()
    thread = slow.thread("t")
    saving = asyncio.create_task(thread.save(1))
    await store.entered()
    closing = asyncio.create_task(slow.close())
    await ticks()
    closing.cancel()
    await ticks()
    assert not closing.done()
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert (await saving).step == 1
    with pytest.raises(savegame.ClosedError):
        slow.sync.stats()
