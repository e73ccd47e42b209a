"""Export and import: everything comes back, once, into any store; no reader ever sees half of a file or of a thread."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept import filled, kept

import savegame
from savegame.errors import (
    AlreadyExistsError,
    Busy,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    OutOfSpace,
    ThreadNotFound,
    UnavailableError,
    UnsupportedError,
)
from savegame.model import ThreadKey
from savegame.testing import same, strategies
from savegame.testing.faults import remount, tiny_disk, why_no_disks
from savegame.vault import Vault

Opener = Callable[..., Vault]


def one_thread(vault: Vault, count: int = 3) -> savegame.Thread:
    thread = vault.thread("t")
    for number in range(count):
        thread.update(append={"l": [number]}, id=f"t-{number}")
    return thread


# -- what comes back -------------------------------------------------------------------------------


@pytest.mark.requirement("A63")
@pytest.mark.parametrize("target", ["memory:", "sqlite:{}/other.db", "file:{}/other"])
def test_everything_comes_back_once(opened: Opener, target: str, tmp_path: Path) -> None:
    vault = filled(opened())
    before = kept(vault)
    count = vault.export(tmp_path / "all.jsonl")
    assert count == sum(len(frames) for _, _, frames, _ in before.values())
    assert any(head is None for _, head, frames, _ in before.values() if frames), "a thread without a head is among them"
    with savegame.open(target.format(tmp_path), namespace="there") as other:
        assert other.import_(tmp_path / "all.jsonl") == count
        assert kept(other) == before == kept(vault)
        assert other.verify().ok
        for info in vault.threads():
            ours, theirs = vault.thread(info.id), other.thread(info.id)
            for a, b in zip(ours.history(branches=True), theirs.history(branches=True), strict=True):
                assert (a, a.label, a.tags, a.parent_id, a.created_at) == (b, b.label, b.tags, b.parent_id, b.created_at)
                assert same(a.load().state, b.load().state)
        assert other.thread("../chat 🎲").subjects() == ["somebody"]
        assert other.load_agent("helper") == vault.load_agent("helper")
        assert other.import_(tmp_path / "all.jsonl") == 0
        assert kept(other) == before


def test_an_export_of_an_import_says_the_same(vault: Vault, tmp_path: Path) -> None:
    filled(vault).export(tmp_path / "first.jsonl")
    with savegame.open("memory:") as other:
        other.import_(tmp_path / "first.jsonl")
        other.export(tmp_path / "second.jsonl")
    first, second = (said(tmp_path / name) for name in ("first.jsonl", "second.jsonl"))
    assert first[1:] == second[1:]
    assert {next(iter(line)) for line in first} == {"savegame-export", "thread", "large", "checkpoint", "record", "head", "end"}


def said(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [{name: value for name, value in line.items() if name != "sum"} for line in lines]


@settings(max_examples=40)
@given(st.data())
def test_states_of_every_type_come_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("export") / "e.jsonl"
    with savegame.open("memory:") as vault, savegame.open("memory:") as other:
        thread = vault.thread(data.draw(strategies.ids()))
        state = data.draw(strategies.states())
        for _ in range(3):
            thread.save(state, metadata={"value": data.draw(strategies.scalars())})
            state = data.draw(strategies.edits(state))
        vault.export(path)
        assert other.import_(path) == 3
        assert kept(other) == kept(vault)
        assert other.verify().ok
        assert same(other.thread(thread.id).state(), thread.state())


def test_a_lease_stays_where_it_is(vault: Vault, tmp_path: Path) -> None:
    one_thread(vault)
    vault.store.lease(ThreadKey("default", "t"), "me", 60_000_000)
    vault.store.lease(ThreadKey("default", "only leased"), "me", 60_000_000)
    vault.export(tmp_path / "e.jsonl")
    with savegame.open("memory:") as other:
        other.import_(tmp_path / "e.jsonl")
        assert list(kept(other)) == ["t"]
        other.thread("t").save("free")


# -- what is exported ------------------------------------------------------------------------------


def test_threads_are_chosen_by_id_or_by_agent(vault: Vault, tmp_path: Path) -> None:
    for name, agent in (("a", "one"), ("b", "two"), ("c", "one")):
        vault.thread(name, agent=agent).save(name)
    assert vault.export(tmp_path / "named.jsonl", threads=["c", "b", "c"]) == 2
    assert vault.export(tmp_path / "agent.jsonl", agent="one") == 2
    assert vault.export(tmp_path / "nothing.jsonl", agent="nobody") == 0
    for name, wanted in {"named": ["c", "b"], "agent": ["a", "c"], "nothing": []}.items():
        assert [line["thread"] for line in said(tmp_path / f"{name}.jsonl") if "thread" in line] == wanted
    with pytest.raises(ThreadNotFound, match="missing"):
        vault.export(tmp_path / "e.jsonl", threads=["a", "missing"])
    for wrong in ({"threads": "a"}, {"threads": ["a"], "agent": "one"}, {"threads": [""]}, {"agent": ""}):
        with pytest.raises(InvalidInputError):
            vault.export(tmp_path / "e.jsonl", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "e.jsonl").exists()


def test_a_file_appears_whole_and_private_and_is_never_overwritten(opened: Opener, tmp_path: Path) -> None:
    vault, place = opened(), tmp_path / "exports"
    one_thread(vault)
    place.mkdir()
    vault.export(place / "e.jsonl")
    assert stat.S_IMODE((place / "e.jsonl").stat().st_mode) == 0o600
    (place / "mine").write_text("mine")
    for name in ("e.jsonl", "mine"):
        with pytest.raises(AlreadyExistsError, match=name):
            vault.export(place / name)
    with pytest.raises(UnavailableError):
        vault.export(tmp_path / "missing" / "e.jsonl")

    def fail(done: int, total: int) -> None:
        assert not (place / "failed.jsonl").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vault.export(place / "failed.jsonl", progress=fail)
    assert (place / "mine").read_text() == "mine"
    assert sorted(path.name for path in place.iterdir()) == ["e.jsonl", "mine"]


@pytest.mark.skipif(why_no_disks() is not None, reason=str(why_no_disks()))
def test_a_full_disk_leaves_nothing_and_an_import_carries_on_with_room(vault: Vault, tmp_path: Path) -> None:
    for number in range(300):
        vault.thread("t").save({"picture": os.urandom(9000), "number": number})
    vault.export(tmp_path / "e.jsonl")
    with tiny_disk(tmp_path / "disk", 2048) as disk:
        with pytest.raises(OutOfSpace):
            vault.export(disk / "e.jsonl")
        assert list(disk.iterdir()) == []
        with savegame.open(disk / "v.db") as other:
            with pytest.raises(OutOfSpace):
                other.import_(tmp_path / "e.jsonl")
            assert list(other.threads()) == []
            remount(disk, "size=32768k")
            assert 0 < other.import_(tmp_path / "e.jsonl") < 300
            assert kept(other) == kept(vault)


def test_a_damaged_vault_is_not_exported(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk()
    one_thread(vault)
    with vault.connection() as db:
        db.execute("UPDATE frame SET delta = zeroblob(length(delta)) WHERE key & 4294967295 = 2")
    with pytest.raises(CorruptionError) as caught:
        vault.export(tmp_path / "e.jsonl")
    assert (caught.value.thread_id, caught.value.checkpoint_id) == ("t", "t-1")
    assert not list(tmp_path.glob("e.jsonl*"))


def test_each_thread_is_as_it_was_at_one_moment(opened: Opener, tmp_path: Path) -> None:
    """Others save, prune, rewind and re-create the thread all the while."""
    vault = opened(durability="process")
    done = threading.Event()

    def keep_changing() -> None:
        thread, number = vault.thread("busy"), 0
        while not done.is_set():
            number += 1
            thread.update(append={"l": [number]}, set={"n": number, "big": f"{number % 3}" * 9000})
            if number % 7 == 0:
                thread.prune(keep=3)
            if number % 40 == 0:
                thread.delete()
                number = 0

    worker = threading.Thread(target=keep_changing)
    worker.start()
    try:
        found = 0
        while found < 20:
            path = tmp_path / f"{time.monotonic_ns()}.jsonl"
            try:
                vault.export(path)
            except ConflictError:  # it could not get hold of one moment, and says so
                continue
            with savegame.open("memory:") as other:
                found += other.import_(path) > 0
                assert other.verify().ok
                for checkpoint in other.thread("busy").history(branches=True):
                    state = checkpoint.load().state
                    assert state["l"] == list(range(1, state["n"] + 1))
    finally:
        done.set()
        worker.join()


def test_progress_goes_to_the_end(vault: Vault, tmp_path: Path) -> None:
    for name in "abc":
        vault.thread(name).save({"text": name * 700_000})
    told: list[tuple[int, int]] = []
    vault.export(tmp_path / "e.jsonl", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    told.clear()
    with savegame.open("memory:") as other:
        other.import_(tmp_path / "e.jsonl", progress=lambda done, total: told.append((done, total)))
    size = (tmp_path / "e.jsonl").stat().st_size
    assert told == sorted(told)
    assert len(told) > 2
    assert told[-1] == (2 * size, 2 * size)


# -- what is there already -------------------------------------------------------------------------


def test_a_later_export_brings_only_what_is_new(opened: Opener, tmp_path: Path) -> None:
    vault, other = opened("a.db"), opened("b.db")
    thread = one_thread(vault)
    vault.export(tmp_path / "1.jsonl")
    assert other.import_(tmp_path / "1.jsonl") == 3
    thread.rewind(1)
    thread.update(append={"l": ["branch"]}, set={"big": "x" * 9000})
    thread.label(2, "noted later")
    thread.attach_subject("somebody")
    vault.export(tmp_path / "2.jsonl")
    assert other.thread("t").state()["l"] == [0, 1, 2]
    assert other.import_(tmp_path / "2.jsonl") == 1
    assert kept(other) == kept(vault)
    assert other.thread("t").state()["l"] == [0, "branch"]
    thread.rewind("t-2")
    vault.export(tmp_path / "3.jsonl")
    assert other.import_(tmp_path / "3.jsonl") == 0
    assert other.thread("t").load().id == "t-2"
    assert other.verify().ok


def test_a_thread_that_went_on_is_passed_over_and_one_that_went_its_own_way_changes_nothing(
    opened: Opener, tmp_path: Path
) -> None:
    vault, other = opened("a.db"), opened("b.db")
    thread = one_thread(vault)
    vault.export(tmp_path / "1.jsonl")
    other.import_(tmp_path / "1.jsonl")
    other.thread("t").update(append={"l": ["mine"]}, label="mine")
    before = kept(other)
    assert other.import_(tmp_path / "1.jsonl") == 0
    assert kept(other) == before
    thread.save("theirs")
    vault.thread("a new one").save(1)
    vault.export(tmp_path / "2.jsonl")
    with pytest.raises(ConflictError, match="'t' has diverged") as caught:
        other.import_(tmp_path / "2.jsonl")
    assert (caught.value.expected, caught.value.found) == (thread.head, other.thread("t").load().id)
    assert kept(other) == before


def test_what_was_labelled_here_stays_when_nothing_new_comes(vault: Vault, tmp_path: Path) -> None:
    one_thread(vault).label(1, "old")
    vault.export(tmp_path / "e.jsonl")
    vault.thread("t").label(1, "new")
    assert vault.import_(tmp_path / "e.jsonl") == 0
    assert vault.thread("t").load("new").step == 1


def test_a_chosen_id_with_other_content_is_a_conflict(vault: Vault, tmp_path: Path) -> None:
    one_thread(vault)
    vault.export(tmp_path / "e.jsonl")
    with savegame.open("memory:") as other:
        other.thread("t").save("something else", id="t-2")
        before = kept(other)
        with pytest.raises(ConflictError, match="'t' has diverged"):
            other.import_(tmp_path / "e.jsonl")
        assert kept(other) == before


def test_an_id_that_another_thread_has_changes_nothing(vault: Vault, tmp_path: Path) -> None:
    one_thread(vault)
    vault.export(tmp_path / "e.jsonl")
    with savegame.open("memory:") as other:
        other.thread("another").save("x", id="t-1")
        before = kept(other)
        with pytest.raises(AlreadyExistsError, match="'another'"):
            other.import_(tmp_path / "e.jsonl")
        assert kept(other) == before


def test_a_thread_that_somebody_works_on_is_left_alone(opened: Opener, tmp_path: Path) -> None:
    vault, other = opened("a.db"), opened("b.db")
    one_thread(vault)
    vault.export(tmp_path / "e.jsonl")
    other.store.lease(ThreadKey("default", "t"), "me", 60_000_000)
    with pytest.raises(Busy):
        other.import_(tmp_path / "e.jsonl")
    assert kept(other) == {}


def test_a_vault_that_is_only_read_is_exported_but_not_imported_into(on_disk: Opener, tmp_path: Path) -> None:
    one_thread(on_disk())
    reader = on_disk(read_only=True)
    assert reader.export(tmp_path / "e.jsonl") == 3
    assert reader.import_(tmp_path / "e.jsonl") == 0
    on_disk("empty.db").close()
    with pytest.raises(UnsupportedError):
        on_disk("empty.db", read_only=True).import_(tmp_path / "e.jsonl")


# -- killed ----------------------------------------------------------------------------------------

KILLED_IMPORT = """
import os, signal, sys
import savegame
from savegame.stores.sqlite import SQLiteStore

class Dying(SQLiteStore):
    left = int(sys.argv[3])
    def commit(self, changes):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return super().commit(changes)

savegame.Vault(Dying(sys.argv[1])).import_(sys.argv[2])
"""

KILLED_EXPORT = """
import os, signal, sys
import savegame

def die(done, total):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

savegame.open(sys.argv[1], read_only=True).export(sys.argv[2], progress=die)
"""


def run(script: str, *arguments: Any) -> int:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, timeout=60, check=False).returncode


def test_an_import_that_was_killed_shows_whole_threads_only_and_carries_on(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk(durability="process")
    one_thread(vault, 150)  # three batches
    vault.thread("t").rewind(100)
    vault.thread("t").attach_subject("somebody")
    vault.thread("u").save(1)
    vault.export(tmp_path / "e.jsonl")
    ends = []
    for commits in range(20):
        path = tmp_path / f"killed-{commits}.db"
        ends.append(run(KILLED_IMPORT, path, tmp_path / "e.jsonl", commits))
        with savegame.open(path, durability="process") as other:
            assert {info.id for info in other.threads()} <= {"t", "u"}
            for info in other.threads():
                assert kept(other)[info.id] == kept(vault)[info.id]
            assert other.verify().ok
            other.import_(tmp_path / "e.jsonl")
            assert kept(other) == kept(vault)
            assert other.verify().ok
        if ends[-1] == 0:
            break
    assert len(ends) > 4
    assert ends == [-signal.SIGKILL] * (len(ends) - 1) + [0]


def test_an_export_that_was_killed_left_no_file(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk()
    for name in "abc":
        vault.thread(name).save(name)
    assert run(KILLED_EXPORT, tmp_path / "vault.db", tmp_path / "e.jsonl") == -signal.SIGKILL
    assert not (tmp_path / "e.jsonl").exists()
    assert vault.export(tmp_path / "e.jsonl") == 3
