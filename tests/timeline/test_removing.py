"""prune, retention, delete: what goes is gone, what stays keeps its state."""

from __future__ import annotations

import datetime as dt
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from homes import IN_FILES, Home

from savegame import Busy, CheckpointNotFound, InvalidInputError, OutOfSpace, Retention
from savegame.store import Rewrite, StoreChange
from savegame.stores.memory import MemoryStore
from savegame.testing import same
from savegame.thread import Thread
from savegame.vault import Vault

Opener = Callable[..., Vault]


def states(thread: Thread, **how: Any) -> list[Any]:
    return [cp.load().state for cp in thread.history(**how)]


def steps(thread: Thread, **how: Any) -> list[int]:
    return [cp.step for cp in thread.history(**how)]


def grown(vault: Vault, count: int, name: str = "t") -> Thread:
    thread = vault.thread(name)
    for number in range(1, count + 1):
        thread.update(append={"l": [number]}, set={"pad": "x" * 500})
    return thread


# -- prune -----------------------------------------------------------------------------------------


@pytest.mark.requirement("A29", "A30", "A38", "A48", "A58", "A68", "A83", "Z09")
def test_prune(vault: Vault) -> None:
    thread = grown(vault, 10)
    thread.label(2, "kept")
    digests = {cp.id: cp.digest for cp in thread.history()}
    assert thread.prune(keep=3) == 6
    assert steps(thread) == [10, 9, 8, 2]
    assert [state["l"] for state in states(thread)] == [list(range(1, n + 1)) for n in (10, 9, 8, 2)]
    assert {cp.id: cp.digest for cp in thread.history()}.items() <= digests.items()
    assert thread.prune(keep=3) == 0
    assert thread.prune(keep=3, include_labelled=True) == 1
    assert thread.prune(keep=1) == 2
    assert steps(thread) == [10]
    assert thread.save({"n": 1}).step == 11
    assert vault.verify().ok
    with pytest.raises(CheckpointNotFound):
        thread.load(3)


class Interrupted(MemoryStore):
    """Something else happens just before frames are removed."""

    meanwhile: Callable[[], object] | None = None

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        if self.meanwhile is not None and any(isinstance(change, Rewrite) for change in changes):
            act, self.meanwhile = self.meanwhile, None
            act()
        return super().commit(changes)


def test_a_branch_that_somebody_begins_and_leaves_meanwhile_keeps_its_state() -> None:
    """The head is what it was, but what is to go has got a descendant."""
    store = Interrupted()
    vault = Vault(store)
    thread = grown(vault, 5)

    def branch() -> None:
        other = vault.thread("t")
        other.update(append={"l": ["branch"]}, parent=3)
        other.rewind(thread.head or "")

    store.meanwhile = branch
    thread.prune(keep=2)
    assert vault.verify().ok
    assert [state["l"] for state in states(thread, branches=True)] == [[1, 2, 3, "branch"], [1, 2, 3, 4, 5]]


def test_prune_with_branches_keeps_the_head(vault: Vault) -> None:
    thread = grown(vault, 6)
    thread.rewind(2)
    assert thread.prune(keep=2) == 3
    assert [cp.step for cp in thread.history(branches=True)] == [6, 5, 2]
    assert steps(thread) == [2]
    assert [len(state["l"]) for state in states(thread, branches=True)] == [6, 5, 2]
    thread.update(append={"l": ["branch"]})
    assert thread.state() == {"l": [1, 2, "branch"], "pad": "x" * 500}
    assert vault.verify().ok


@pytest.mark.requirement("A30", "B42", "D55", "D60", "X13", "Z16")
@pytest.mark.parametrize("wrong", [{}, {"keep": 0}, {"keep": -1}, {"keep": "3"}, {"keep": 1.5}, {"keep": True}], ids=repr)
def test_prune_refuses(vault: Vault, wrong: dict[str, Any]) -> None:
    thread = grown(vault, 3)
    with pytest.raises(InvalidInputError):
        thread.prune(**wrong)
    with pytest.raises(InvalidInputError):
        vault.prune(**wrong)
    assert len(steps(thread)) == 3


def test_prune_by_age() -> None:
    now = [1_000_000_000_000_000]
    with Vault(MemoryStore(clock=lambda: now[0])) as vault:
        thread = vault.thread("t")
        for number in range(1, 7):
            thread.save(number)
            now[0] += 60_000_000
        assert thread.prune(older_than=dt.timedelta(minutes=3.5), keep=4) == 2
        assert steps(thread) == [6, 5, 4, 3]
        assert thread.prune(older_than=dt.timedelta(minutes=2.5)) == 2
        assert steps(thread) == [6, 5]
        assert thread.prune(older_than=dt.timedelta(0)) == 1
        assert states(thread) == [6]


def test_prune_all_threads_leaves_those_that_a_run_holds(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        grown(vault, 4, name)
    with vault.run("b"), caplog.at_level(logging.INFO, "savegame"):
        with pytest.raises(Busy):
            vault.thread("b").prune(keep=1)
        assert vault.prune(keep=1) == 6
        assert "not pruned: thread 'b' is" in caplog.text
    assert [len(steps(vault.thread(name))) for name in "abc"] == [1, 4, 1]
    assert vault.prune(keep=1) == 3


def test_prune_all_threads(vault: Vault) -> None:
    for name in "abc":
        grown(vault, 4, name)
    seen: list[tuple[int, int]] = []
    assert vault.prune(keep=1, progress=lambda done, total: seen.append((done, total))) == 9
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert all(steps(vault.thread(name)) == [4] for name in "abc")


# -- retention -------------------------------------------------------------------------------------


@pytest.mark.requirement("B31", "B42", "B62", "D45")
def test_max_3_of_five_saved(opened: Opener) -> None:
    """B62."""
    vault = opened(retention=Retention(max_checkpoints=3))
    thread = vault.thread("t")
    ids = [thread.save({"n": number}).id for number in range(1, 6)]
    assert steps(thread, newest_first=False) == [3, 4, 5]
    assert steps(thread, branches=True) == [5, 4, 3]
    for hidden in (ids[0], ids[1][:8], 1, 2, "head~3"):
        with pytest.raises(CheckpointNotFound):
            thread.load(hidden)
    assert vault.find(ids[0]) is None
    with pytest.raises(CheckpointNotFound):
        vault.load(ids[1])
    assert states(thread) == [{"n": 5}, {"n": 4}, {"n": 3}]
    assert vault.verify().ok


@pytest.mark.requirement("D55", "D60")
@pytest.mark.parametrize("noted", [{"tags": ["x"]}, {"label": "x"}, {}], ids=["tagged", "labelled", "bare"])
def test_retention_counts_every_unlabelled_checkpoint(opened: Opener, noted: dict[str, Any]) -> None:
    thread = opened(retention=Retention(max_checkpoints=3)).thread("t")
    for number in range(6):
        thread.save(number, **noted)
    assert steps(thread) == ([6, 5, 4, 3, 2, 1] if "label" in noted else [6, 5, 4])
    blunt = opened("blunt.db", retention=Retention(max_checkpoints=3, keep_labelled=False)).thread("t")
    for number in range(6):
        blunt.save(number, **noted)
    assert steps(blunt) == [6, 5, 4]


@pytest.mark.requirement("B42", "D55", "D60", "X12", "X13", "Z16")
def test_retention_keeps_labelled_and_the_head(opened: Opener) -> None:
    vault = opened(retention=Retention(max_checkpoints=2))
    thread = vault.thread("t")
    for number in range(1, 7):
        thread.save(number, label="mark" if number == 2 else None)
    assert 2 in steps(thread)
    assert steps(thread)[:2] == [6, 5]
    assert thread.load("mark").state == 2
    thread.rewind("mark")
    assert thread.state() == 2
    thread.save("on")
    assert states(thread)[:2] == ["on", 2]


@pytest.mark.requirement("B20", "B34", "D43d", "Z13")
def test_retention_by_age() -> None:
    now = [1_000_000_000_000_000]
    with Vault(MemoryStore(clock=lambda: now[0]), retention=Retention(ttl=dt.timedelta(minutes=5))) as vault:
        thread = vault.thread("t")
        for number in range(1, 5):
            thread.save(number, label="mark" if number == 1 else None)
            now[0] += 60_000_000
        assert steps(thread) == [4, 3, 2, 1]
        now[0] += 150_000_000
        assert steps(thread) == [4, 3, 1]
        now[0] += 10**12
        assert steps(thread) == [4, 1]
        assert thread.state() == 4
        with pytest.raises(CheckpointNotFound):
            thread.load(3)


@pytest.mark.requirement("B42", "Z65")
def test_retention_frees_space_in_time(opened: Opener) -> None:
    vault = opened(retention=Retention(max_checkpoints=3), durability="process")
    thread = vault.thread("t")
    sizes = []
    for number in range(1, 601):
        thread.save({"number": number, "content": os.urandom(1500).hex()})
        if number % 200 == 0:
            sizes.append(vault.stats().sizes["frames"] + vault.stats().sizes["keyframes"])
    assert sizes[-1] < 600 * 3000 / 2, sizes
    assert steps(thread) == [600, 599, 598]
    assert [state["number"] for state in states(thread)] == [600, 599, 598]
    assert vault.verify().ok


@pytest.mark.requirement("B27")
@pytest.mark.parametrize(
    "retention",
    [
        Retention(),
        Retention(max_checkpoints=3),
        Retention(max_checkpoints=3, keep_labelled=False),
        Retention(max_checkpoints=5, ttl=dt.timedelta(days=1)),
    ],
    ids=["all", "newest", "blunt", "young"],
)
def test_listings_count_what_history_lists(opened: Opener, retention: Retention) -> None:
    vault = opened(retention=retention, durability="process")
    thread = vault.thread("t")

    def counted() -> int:
        count = len(list(thread.history(branches=True)))
        (info,) = [info for info in vault.threads() if info.id == "t"]
        used = {one.key: one.checkpoints for one in vault.usage(by="thread")}
        assert (info.checkpoints, vault.info("t"), used["t"]) == (count, info, count)
        assert vault.stats().checkpoints == sum(info.checkpoints for info in vault.threads())
        return count

    for number in range(20):
        thread.update(append={"l": [number]}, label="mark" if number % 7 == 1 else None)
        counted()
    thread.update(set={"branch": 1}, parent="head~1")
    counted()
    thread.rewind("head~1")
    counted()
    thread.fork("f")
    thread.prune(keep=2)
    assert counted() < 8
    assert (vault.info("f").checkpoints, len(list(vault.thread("f").history(branches=True)))) == (1, 1)


# -- delete ----------------------------------------------------------------------------------------


@pytest.mark.requirement("B52", "B63", "C23", "C29", "X27")
def test_delete(vault: Vault) -> None:
    thread = grown(vault, 3)
    grown(vault, 2, "other")
    first = thread.load(1).id
    assert thread.delete() is True
    assert thread.delete() is False
    assert (thread.head, thread.step, thread.latest(), list(thread.history(branches=True))) == (None, None, None, [])
    assert vault.find(first) is None
    assert [info.id for info in vault.threads()] == ["other"]
    again = thread.save({"n": 1}, id=first)
    assert (again.step, again.parent_id, again.seq) == (1, None, 1)
    assert vault.verify().ok
    stats = vault.stats()
    assert (stats.threads, stats.checkpoints) == (2, 3)


# -- large values ----------------------------------------------------------------------------------


def test_a_large_value_is_kept_once(opened: Opener) -> None:
    vault = opened(compress=False)
    thread = vault.thread("t")
    image = os.urandom(50_000)
    text = os.urandom(30_000).hex()
    for number in range(5):
        thread.save({"n": number, "image": image, "text": text})
        thread.save({"n": number})
        thread.save({"deep": [{"image": (image,)}, text]})
    assert 110_000 <= vault.stats().sizes["blobs"] < 130_000  # text takes a third more than the bytes of an image
    assert vault.stats().sizes["frames"] < 20_000
    assert same(thread.state(4), {"n": 1, "image": image, "text": text})
    thread.prune(keep=2)
    assert 110_000 <= vault.stats().sizes["blobs"] < 130_000
    cold = Vault(vault.store, cache_bytes=0).thread("t")
    assert same(states(cold), [{"deep": [{"image": (image,)}, text]}, {"n": 4}])
    vault.compact()
    assert same(states(cold), [{"deep": [{"image": (image,)}, text]}, {"n": 4}])
    assert vault.verify().ok
    thread.save({"n": "end"})
    thread.prune(keep=1)
    assert vault.stats().sizes["blobs"] == 0
    thread.save({"image": image})
    thread.delete()
    assert vault.stats().sizes["blobs"] == 0


def test_large_values_of_one_thread_do_not_need_another(vault: Vault) -> None:
    image = os.urandom(20_000)
    one = vault.thread("one")
    one.save({"image": image})
    fork = one.fork("two")
    other = vault.thread("three")
    other.save({"image": image})
    one.delete()
    assert fork.state() == other.state() == {"image": image}
    cold = Vault(vault.store, cache_bytes=0)
    assert cold.thread("two").state() == cold.thread("three").state() == {"image": image}


# -- bytes that are gone ---------------------------------------------------------------------------

SEARCH = """
import sys
for path in sys.argv[2:]:
    try:
        data = open(path, "rb").read()
    except FileNotFoundError:
        continue
    if sys.argv[1].encode() in data:
        print(path)
"""


def found_in(directory: Path, needle: str) -> list[str]:
    """Which files hold some bytes; looked up by another process, since this process must not open a live database."""
    files = [str(path) for path in directory.rglob("*") if path.is_file()]
    done = subprocess.run([sys.executable, "-c", SEARCH, needle, *files], capture_output=True, text=True, check=True)
    return done.stdout.split()


SECRET = "s3cret-8c1f0b5e"


@pytest.mark.requirement("A48", "A76")
@pytest.mark.parametrize("size", [1, 200, 9000], ids=["small", "medium", "large"])
@pytest.mark.parametrize("how", ["prune", "discard", "delete", "vault prune"])
def test_removed_bytes_leave_the_files(on_disk: Opener, tmp_path: Path, how: str, size: int) -> None:
    vault = on_disk(compress=False, durability="process")
    thread = vault.thread("t")
    thread.save({"n": 0, "list": list(range(200))})
    thread.save(
        {"n": 1, "list": list(range(200)), "secret": f"{SECRET} " * size},
        description=SECRET,
        metadata={SECRET: 1},
        tags=[SECRET],
    )
    for number in range(150):
        thread.update(set={"n": number, "noise": os.urandom(600).hex()})
    thread.update(delete=["secret"])
    thread.save({"n": 2, "list": list(range(200))})
    assert found_in(tmp_path, SECRET)
    if how == "prune":
        thread.prune(keep=1)
    elif how == "vault prune":
        vault.prune(keep=1)
    elif how == "discard":
        thread.rewind(1, discard=True)
    else:
        thread.delete()
    assert found_in(tmp_path, SECRET) == []
    vault.close()
    assert found_in(tmp_path, SECRET) == []


def test_a_deleted_thread_leaves_no_name_behind(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk(compress=False)
    thread = vault.thread(SECRET, agent=SECRET + "agent")
    thread.save({}, label=SECRET + "label", id=SECRET + "id")
    vault.thread("other").save(1)
    thread.delete()
    assert found_in(tmp_path, SECRET) == []


@pytest.mark.requirement("B23", "B27", "B28", "C16", "C36", "E19", "X27", "Z21", "Z22")
def test_removing_single_checkpoints(vault: Vault) -> None:
    """The newest that is left becomes the head; where none is left the thread is empty and can be begun again."""
    thread = vault.thread("t")
    one, two, three = (thread.save({"n": number, "items": list(range(number))}) for number in (1, 2, 3))
    assert thread.remove(three, one) == 2
    assert [found.id for found in thread.history(branches=True)] == [two.id]
    assert thread.state() == {"n": 2, "items": [0, 1]}
    assert thread.remove(two) == 1
    assert thread.latest() is None
    assert list(vault.threads()) == []
    assert thread.save("again").step == 1
    assert thread.state() == "again"
    assert vault.verify().ok


def test_a_handle_that_removed_its_head_goes_on(vault: Vault) -> None:
    thread = grown(vault, 3)
    thread.remove("head")
    assert thread.head is None
    thread.save({"n": "next"})
    assert steps(thread) == [3, 2, 1]


@pytest.mark.requirement("Z09")
def test_nothing_is_counted_twice() -> None:
    store = Interrupted()
    for number in range(20):
        Vault(store).thread("t").save({"n": number})
    counts: list[int] = []
    store.meanwhile = lambda: counts.append(Vault(store).thread("t").prune(keep=4))
    counts.append(Vault(store).thread("t").prune(keep=2))
    assert sum(counts) == 18


SESSIONS = ["a", "a_b", "a_1", "latest", "a_latest", "my latest work", "a.json"]


@pytest.mark.requirement("A69", "A84", "C12", "C22", "C23", "C30", "Z24")
def test_a_thread_is_matched_by_its_whole_id(home: Home) -> None:
    vault = home.open()
    for session in SESSIONS:
        for number in range(3):
            vault.thread(session).save({"of": session, "n": number})
    assert vault.thread("a").prune(keep=1) == 2
    assert vault.thread("latest").delete()
    assert not vault.thread("my").delete()
    kept = {info.id: info.checkpoints for info in vault.threads()}
    assert kept == {session: 1 if session == "a" else 3 for session in SESSIONS if session != "latest"}
    assert vault.thread("a_latest").state() == {"of": "a_latest", "n": 2}


@pytest.mark.requirement("A45", "C23", "Z27")
def test_only_checkpoints_are_counted(home: Home) -> None:
    vault = home.open()
    thread = vault.thread("t")
    for number in range(5):
        thread.save({"n": number})
    thread.put_records({("note", "beside"): 1})
    if home.store in IN_FILES:
        (home.path / "t_99.json").write_text("somebody else's")
    assert thread.prune(keep=2) == 3
    assert thread.remove("head") == 1
    assert (thread.delete(), thread.delete()) == (True, False)
    if home.store in IN_FILES:
        assert (home.path / "t_99.json").read_text() == "somebody else's"


class NoRoomToCleanUp(MemoryStore):
    """Saves, but cannot remove anything."""

    refused = 0

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        if any(isinstance(change, Rewrite) for change in changes):
            self.refused += 1
            raise OutOfSpace("no room to rewrite anything")
        return super().commit(changes)


@pytest.mark.requirement("Z58")
def test_a_clean_up_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = NoRoomToCleanUp()
    vault = Vault(store, retention=Retention(max_checkpoints=2))
    thread = vault.thread("t")
    for number in range(200):
        thread.save({"n": number, "text": os.urandom(200).hex()})
    assert store.refused > 0
    assert "no room to rewrite anything" in caplog.text
    assert thread.step == 200
    assert len(list(thread.history())) == 2
