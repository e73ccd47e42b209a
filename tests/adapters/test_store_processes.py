"""Several processes on one memory lose no item, a killed one nothing that it acknowledged; stored data executes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ormsgpack
from homes import Home
from langgraph.store.base import PutOp
from recalling import Letters, calls_on, keys

import savegame
from savegame.adapters.langgraph import SavegameStore
from savegame.encoding.foreign import Foreign
from savegame.testing.faults import Child, Mouth
from savegame.vault import Vault

Opener = Callable[..., Vault]
ME = ("users", "1")
PUTS = 60


def put_own(mouth: Mouth, url: str, name: str) -> None:
    """Put items of one's own and a shared one, and delete some."""
    with savegame.open(url, durability="process") as vault:
        store = SavegameStore(vault, index=Letters().index("text"))  # type: ignore[arg-type]
        mouth.say("ready")
        mouth.hear()
        for number in range(PUTS):
            store.put(ME, f"{name} {number}", {"text": f"{name} {number}"})
            store.put(ME, "shared", {"text": name, "number": number})
            if number % 3 == 0:
                store.delete(ME, f"{name} {number}")
            store.put(("other", name), "k", {"n": number})
            store.delete(("other", name), "k")
    mouth.say("done")


def test_two_processes_that_put_and_delete_at_once_lose_nothing(lasting: Home) -> None:
    url = lasting.url
    with Child(put_own, url, "one") as one, Child(put_own, url, "two") as two:
        for child in (one, two):
            assert child.next() == ["ready"]
        for child in (one, two):
            child.go()
        assert one.rest() == two.rest() == [["done"]]
    vault = lasting.open()
    calls = calls_on(vault, index=Letters().index("text"))
    wanted = {f"{name} {number}" for name in ("one", "two") for number in range(PUTS) if number % 3}
    assert set(keys(calls.search(ME, limit=1000))) == {*wanted, "shared"}
    assert calls.get(ME, "shared").value["number"] == PUTS - 1
    assert calls.names() == [ME]
    assert all(item.score is not None for item in calls.search(ME, query="one", limit=1000))
    assert vault.verify().ok


def put_for_ever(mouth: Mouth, where: str) -> None:
    store = SavegameStore(savegame.open(where))
    number = 0
    while True:
        store.batch([PutOp(ME, f"k{number}", {"n": number}), PutOp(ME, f"k{number - 5}", None)])
        mouth.say("stored", number)
        number += 1


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    for life, count in enumerate((1, 40, 90)):
        path = tmp_path / f"{life}.db"
        with Child(put_for_ever, str(path)) as child:
            lines = [child.next() for _ in range(count)]
            child.kill()
            lines += child.lines()
        last = lines[-1][1]
        with savegame.open(path) as vault:
            there = set(keys(calls_on(vault).search(ME, limit=1000)))
            expected = {f"k{number}" for number in range(max(0, last - 4), last + 1)}
            another = {f"k{number}" for number in range(max(0, last - 3), last + 2)}  # stored, and killed before it said so
            assert there in (expected, another)
            assert vault.verify().ok


def test_many_tasks_and_threads_at_once(opened: Opener) -> None:
    store = SavegameStore(opened())

    async def work(task: int) -> None:
        for number in range(5):
            await store.aput(ME, f"{task} {number}", {"n": number})
            await asyncio.to_thread(store.put, ("threads", str(task)), f"{number}", {"n": number})
            if number:
                await store.adelete(ME, f"{task} {number - 1}")

    async def run() -> None:
        await asyncio.gather(*map(work, range(8)))

    asyncio.run(run())
    assert sorted(keys(store.search(ME, limit=100))) == [f"{task} 4" for task in range(8)]
    assert len(store.search(("threads",), limit=100)) == 40


def test_writers_that_empty_a_namespace_again_and_again_do_not_disturb_each_other(opened: Opener) -> None:
    store = SavegameStore(opened())

    def work(task: int) -> None:
        for number in range(15):
            store.put(ME, f"{task}", {"n": number})
            assert store.get(ME, f"{task}").value == {"n": number}  # type: ignore[union-attr]
            store.delete(ME, f"{task}")
            assert store.get(ME, f"{task}") is None
        store.put(ME, f"{task}", {"n": "last"})

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert sorted(keys(store.search(ME))) == [str(task) for task in range(6)]
    assert store.vault.verify().ok


def test_stored_data_executes_nothing(vault: Vault, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    inside = ormsgpack.packb(["os", "system", f"touch {canary}"])
    leaves: dict[str, Any] = {
        "call": Foreign("msgpack", ormsgpack.packb(ormsgpack.Ext(0, inside))),
        "constructor": Foreign("json", b'{"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["touch canary"]}'),
        "pickle": Foreign("pickle", b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."),
    }
    store = SavegameStore(vault, index=Letters().index("text"))  # type: ignore[arg-type]
    store.put(ME, "k", {"text": "abc", "lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {}})
    vault.thread("memory:users.1").update(set={("items", "k", "value", name): leaf for name, leaf in leaves.items()})
    assert store.get(ME, "k").value["id"] == ["os", "system"]  # type: ignore[union-attr]
    for query in (None, "abc", "os system"):
        assert keys(store.search(ME, query=query, filter={"lc": 2})) == ["k"]
    store.put(ME, "k", {"text": "abc"})
    assert not canary.exists()
