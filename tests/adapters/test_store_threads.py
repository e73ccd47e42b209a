"""A memory is a thread: readable, small, deletable, copyable; and threads of other kinds are left alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import PutOp
from recalling import Letters, calls_on, keys
from scripted import chat, config

import savegame
from savegame import CorruptionError, InvalidInputError
from savegame.adapters.langgraph import SavegameSaver, SavegameStore
from savegame.model import ThreadKey
from savegame.vault import Vault

Opener = Callable[..., Vault]
ME = ("users", "1")
HERE = "memory:users.1"


def test_a_memory_is_readable_without_langgraph(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk()
    calls_on(vault).put(ME, "prefs", {"theme": "dark"}, ttl=5)
    state = vault.thread(HERE).state()
    assert state["memory"] == ["users", "1"]
    newest = vault.thread(HERE).latest()
    assert newest is not None
    assert (newest.kind, newest.status) == ("put", "completed")
    item = state["items"]["prefs"]
    assert item["value"] == {"theme": "dark"}
    assert list(item) == ["value", "created_at", "updated_at", "ttl", "expires_at"]
    for command, expected in ((["show", HERE], ["theme", "dark"]), (["ls"], [HERE])):
        line = [sys.executable, "-m", "savegame", *command, "--store", vault.store.path]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        assert all(word in done.stdout for word in expected), done.stdout


def test_items_can_be_changed_by_a_relative_update(vault: Vault) -> None:
    calls = calls_on(vault)
    calls.put(ME, "prefs", {"theme": "dark", "size": 1})
    vault.thread(HERE).update(set={("items", "prefs", "value", "theme"): "light"})
    assert calls.get(ME, "prefs").value == {"theme": "light", "size": 1}
    assert calls.names() == [ME]
    vault.thread(HERE).update(delete=[("items", "prefs")])
    assert calls.names() == []


def test_ten_thousand_updates_take_the_space_of_a_few(on_disk: Opener) -> None:
    vault = on_disk(durability="process")
    store = SavegameStore(vault)
    size = {}
    for number in range(10_001):
        store.put(ME, "counter", {"number": number, "text": f"{number} " * 20})
        size[number] = vault.stats().total_bytes if number in (1000, 10_000) else 0
    assert len(vault.store.frames(ThreadKey("default", HERE))) < 500
    assert size[10_000] < 2 * size[1000]
    assert vault.verify().ok


def test_a_put_writes_its_item_however_many_there_are(vault: Vault) -> None:
    def written() -> int:
        store.put(ME, "one", {"text": "always as long"})
        (newest,) = vault.store.frames(ThreadKey("default", HERE), newest_first=True, limit=1, deltas=True)
        return len(newest.delta or b"")

    store = SavegameStore(vault)
    alone = written()
    store.batch([PutOp(ME, f"k{number}", {"text": f"{number} " * 50}) for number in range(2000)])
    assert written() <= alone + 50


def test_deleted_items_leave_no_bytes(on_disk: Opener) -> None:
    vault = on_disk()
    calls = calls_on(vault, index=Letters().index())
    for number in range(20):
        calls.put(ME, "secret", {"text": f"my passphrase {number}"})
        calls.put(ME, "other", {"text": f"harmless {number}"})
    calls.put(("short",), "secret", {"text": "passphrase, too"})
    calls.delete(ME, "secret")
    calls.delete(("short",), "secret")
    files = b"".join(path.read_bytes() for path in Path(vault.store.path).parent.iterdir())
    assert b"passphrase" not in files
    assert b"harmless 19" in files
    assert vault.thread(HERE).records("memory vectors").keys() != set()
    assert [info.id for info in vault.threads()] == [HERE]
    assert vault.verify().ok


def test_an_empty_memory_goes_unless_something_is_attached_to_it(vault: Vault) -> None:
    calls = calls_on(vault)
    for namespace in (ME, ("subject",), ("label",)):
        calls.put(namespace, "k", {"n": 1})
    vault.thread("memory:subject").attach_subject("person 7")
    vault.thread("memory:label").label("head", "before")
    for namespace in (ME, ("subject",), ("label",)):
        calls.delete(namespace, "k")
    assert calls.names() == []
    assert [info.id for info in vault.threads()] == ["memory:label", "memory:subject"]
    calls.put(("subject",), "k", {"n": 2})
    assert vault.erase("person 7").threads == ("memory:subject",)
    assert calls.get(("subject",), "k") is None
    vault.thread("memory:label").rewind("before")
    assert calls.get(("label",), "k").value == {"n": 1}


def test_an_erased_subject_takes_the_memory_and_its_vectors(vault: Vault) -> None:
    calls = calls_on(vault, index=Letters().index())
    calls.put(ME, "k", {"text": "abc"})
    vault.thread(HERE).attach_subject("person 1")
    vault.thread(HERE).fork("memory:users.2")
    assert calls.search(("users", "2"), query="abc")[0].score == calls.search(ME, query="abc")[0].score != 0
    calls.put(("users", "2"), "more", {"text": "def"})
    assert keys(calls.search(ME)) == ["k"]
    assert sorted(vault.erase("person 1").threads) == [HERE, "memory:users.2"]
    assert calls.names() == []
    assert vault.thread(HERE).records("memory vectors") == {}


def test_copies_and_exports_are_memories_too(vault: Vault, tmp_path: Path) -> None:
    letters = Letters()
    calls = calls_on(vault, index=letters.index("text"))
    calls.put(ME, "k", {"text": "abc"})
    calls.put(ME, "l", {"text": "xyz"})
    vault.export(tmp_path / "all.jsonl")
    with savegame.open("memory:") as copied, savegame.open("memory:") as imported:
        vault.copy_to(copied)
        imported.import_(tmp_path / "all.jsonl")
        letters.take()
        for other in (copied, imported):
            there = calls_on(other, index=letters.index("text"))
            assert [(item.value, item.score) for item in there.search((), query="abc")] == [
                (item.value, item.score) for item in calls.search((), query="abc")
            ]
        assert letters.take() == ["abc"] * 4


def test_namespaces_of_vaults_do_not_see_each_other(on_disk: Opener) -> None:
    one, two = calls_on(on_disk()), calls_on(on_disk(namespace="other"))
    one.put(ME, "k", {"n": 1})
    assert two.names() == []
    two.put(ME, "k", {"n": 2})
    assert one.get(ME, "k").value == {"n": 1}


# -- threads of other kinds ------------------------------------------------------------------------


def test_a_thread_of_another_kind_is_refused_by_name_and_passed_over_in_listings(vault: Vault, awaited: bool) -> None:
    calls = calls_on(vault, awaited=awaited)
    graph = chat(SavegameSaver(vault))
    graph.invoke({"messages": [HumanMessage("hello")]}, config(HERE))
    vault.thread("memory:list").save([1, 2])
    vault.thread("memory:odd").save({"memory": ["odd"], "items": [1]})
    for namespace in (ME, ("list",), ("odd",)):
        for call in (
            lambda: calls.get(namespace, "k"),  # noqa: B023
            lambda: calls.put(namespace, "k", {"n": 1}),  # noqa: B023
            lambda: calls.delete(namespace, "k"),  # noqa: B023
        ):
            with pytest.raises(InvalidInputError, match="something else than the items of a SavegameStore; use another"):
                call()
    assert calls.names() == calls.search(()) == []
    assert len(graph.get_state(config(HERE)).values["messages"]) == 2


def test_a_damaged_item_is_reported_and_not_returned(vault: Vault) -> None:
    calls = calls_on(vault)
    calls.put(ME, "k", {"n": 1})
    calls.put(ME, "sound", {"n": 2})
    for wrong in ({"value": {"n": 1}}, {"value": 1, "created_at": 1, "updated_at": 1}, 7, None):
        vault.thread(HERE).update(set={("items", "k"): wrong})
        with pytest.raises(CorruptionError, match="item 'k' is not what a store writes"):
            calls.get(ME, "k")
        with pytest.raises(CorruptionError, match=r"memory:users\.1"):
            calls.search(ME)
        assert calls.get(ME, "sound").value == {"n": 2}
    calls.delete(ME, "k")
    assert keys(calls.search(ME)) == ["sound"]
    vault.thread(HERE).update(set={("items", "k"): 7})
    calls.put(ME, "k", {"n": 3})
    assert keys(calls.search(ME)) == ["k", "sound"]


@pytest.mark.parametrize("wrong", [7, ["k"], ["k", 1, {}], ["k", None, {"$": "text"}]])
def test_damaged_vectors_are_reported_and_not_used(on_memory: Vault, wrong: Any) -> None:
    calls = calls_on(on_memory, index=Letters().index())
    calls.put(ME, "k", {"text": "abc"})
    thread = on_memory.thread(HERE)
    (name,) = thread.records("memory vectors")
    thread.put_records({("memory vectors", name): wrong})
    with pytest.raises(CorruptionError, match="expected the vectors of an item"):
        calls.search(ME, query="abc")
    assert calls.get(ME, "k").value == {"text": "abc"}
