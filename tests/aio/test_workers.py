"""The workers: the loop goes on meanwhile, there are never more than the store can use, and they belong to no loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from held import PATIENCE_S, HeldStore, on_a_loop

import savegame
from savegame import AsyncVault
from savegame.store import Store
from savegame.testing import StoreContract

user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


class TestHeldStore(StoreContract):
    """What these tests stand on is a store like any other."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = HeldStore()
        yield store
        store.close()


@pytest.mark.requirement("Z65")
@on_a_loop
async def test_the_loop_goes_on_while_the_store_waits(slow: AsyncVault, store: HeldStore) -> None:
    thread = slow.thread("t")
    await thread.save(1)
    for verb in (thread.save(2), thread.latest(), anext(thread.history()), slow.stats(), thread.modify(lambda n: n)):
        store.go.clear()
        waiting = asyncio.ensure_future(verb)
        await store.entered()
        for _ in range(100):  # a blocked loop would never get here
            await asyncio.sleep(0)
        assert not waiting.done()
        store.go.set()
        await waiting


@on_a_loop
async def test_no_more_at_once_than_the_store_is_wide(slow: AsyncVault, store: HeldStore) -> None:
    store.go.clear()
    saves = [asyncio.create_task(slow.thread(f"t{number}").save(number)) for number in range(50)]
    await store.entered(store.width)
    store.go.set()
    await asyncio.gather(*saves)
    assert store.most == store.width
    assert threading.get_ident() not in store.threads_seen
    assert len([info async for info in slow.threads(limit=None)]) == 50


@on_a_loop
async def test_a_listing_holds_no_worker_between_its_pages(slow: AsyncVault) -> None:
    await slow.call(lambda vault: [vault.thread(f"t{number}").save(number) for number in range(120)])
    listings = [slow.threads(limit=None) for _ in range(10)]
    for listing in listings:
        assert (await anext(listing)).id == "t0"
    assert (await slow.stats()).threads == 120


@on_a_loop
async def test_a_thousand_tasks_save_a_thousand_times(in_database: AsyncVault) -> None:
    async def work(number: int) -> None:
        await in_database.thread(f"own {number % 100}").update(append={"items": [number]})

    await asyncio.gather(*(work(number) for number in range(1000)))
    states = [await in_database.thread(info.id).state() async for info in in_database.threads(limit=None)]
    assert sorted(item for state in states for item in state["items"]) == list(range(1000))
    assert (await in_database.stats()).checkpoints == 1000
    assert (await in_database.verify()).ok


@on_a_loop
async def test_context_variables_reach_the_worker(vault: AsyncVault) -> None:
    async def who(name: str) -> tuple[str, str]:
        user.set(name)
        return name, await vault.call(lambda _: user.get())

    assert all(given == found for given, found in await asyncio.gather(*(who(f"user {number}") for number in range(20))))
    assert user.get() == "nobody"


@on_a_loop
async def test_a_write_that_failed_keeps_nothing_alive(tmp_path: Path) -> None:
    class Change:
        def __call__(self, state: object) -> object:
            raise ValueError("refused")

    async with savegame.open_async(tmp_path / "a.db") as vault:
        change = Change()
        seen = weakref.ref(change)
        gc.disable()
        try:
            with pytest.raises(ValueError, match="refused"):
                await vault.thread("t").modify(change)
            del change
            assert seen() is None, "what was written is held by its error, until the garbage collector comes"
        finally:
            gc.enable()


@on_a_loop
async def test_a_memory_store_is_used_where_it_is_called() -> None:
    async with savegame.open_async("memory:") as vault:
        saving = asyncio.create_task(vault.thread("t").save(1))
        await asyncio.sleep(0)
        assert saving.done()


def test_a_vault_belongs_to_no_loop(in_database: AsyncVault) -> None:
    thread = in_database.thread("t")

    async def work() -> list[int]:
        return [made.step for made in await asyncio.gather(*(thread.save(number) for number in range(3)))]

    assert [asyncio.run(work()) for _ in range(3)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_two_loops_at_once_share_a_vault(in_database: AsyncVault) -> None:
    async def work(name: str) -> None:
        await asyncio.gather(*(in_database.thread(f"{name} {number}").save(number) for number in range(50)))

    loops = [threading.Thread(target=lambda name=name: asyncio.run(work(name))) for name in ("a", "b")]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(PATIENCE_S)
    assert in_database.sync.stats().threads == 100


@on_a_loop
async def test_closing_waits_for_what_was_begun(slow: AsyncVault, store: HeldStore) -> None:
    store.go.clear()
    saves = [asyncio.create_task(slow.thread(f"t{number}").save(number)) for number in range(10)]
    await store.entered(store.width)
    closing = asyncio.create_task(slow.close())
    await asyncio.sleep(0)
    with pytest.raises(savegame.ClosedError):
        await slow.thread("late").save(1)
    assert not closing.done()
    store.go.set()
    await closing
    assert [save.result().step for save in saves] == [1] * 10


def test_the_child_of_a_fork_has_workers_of_its_own(tmp_path: Path) -> None:
    script = """
        import asyncio, os, signal, sys, warnings
        import savegame

        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about forking with threads
        vault = savegame.AsyncVault(savegame.open(sys.argv[1]))

        async def save(name):
            await asyncio.gather(*(vault.thread(f"{name} {number}").save(number) for number in range(20)))

        asyncio.run(save("before"))
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            asyncio.run(save("child"))
            os._exit(0)
        asyncio.run(save("parent"))
        assert os.waitpid(pid, 0)[1] == 0, "the child hung or failed"
        assert vault.sync.stats().threads == 60
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "v.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


def test_a_program_that_never_closes_ends(tmp_path: Path) -> None:
    script = """
        import asyncio, sys
        import savegame

        async def main():
            vault = await savegame.open_async(sys.argv[1])
            await vault.thread("t").save(1)

        asyncio.run(main())
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(tmp_path / "v.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with savegame.open(tmp_path / "v.db") as vault:
        assert vault.thread("t").state() == 1
