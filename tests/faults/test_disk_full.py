"""A full disk: an error of ours, everything saved before still loads, no litter, and it works again with room."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame.errors import OutOfSpace, SavegameError, UnavailableError
from savegame.model import ThreadKey
from savegame.store import DeleteThread
from savegame.stores.fts import FtsIndex
from savegame.testing.faults import PATIENCE_S, fingerprint, remount, tiny_disk, why_no_disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    reason = why_no_disks()
    if reason:
        pytest.skip(reason)
    try:
        with tiny_disk(tmp_path / "disk", 2048) as disk:
            yield disk
    except OSError as error:
        pytest.skip(f"no tmpfs here: {error}")


def fill(thread: savegame.Thread, *, least: int = 1) -> tuple[dict[str, str], SavegameError]:
    """Save until it fails: what was saved, and the error."""
    chance = random.Random(1)
    saved: dict[str, str] = {}
    while True:
        try:
            one = thread.update(append={"items": [chance.randbytes(9_000).hex()]}, set={"number": len(saved)})
        except SavegameError as error:
            assert len(saved) >= least
            return saved, error
        saved[one.id] = fingerprint(one.state)


def assert_all_there(vault: savegame.Vault, saved: dict[str, str]) -> None:
    for checkpoint_id, total in saved.items():
        assert fingerprint(vault.load(checkpoint_id).state) == total
    assert vault.verify().ok


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"v.db-wal", "v.db-shm"}


@pytest.mark.requirement("B19")
def test_saving(scheme: str, disk: Path) -> None:
    with savegame.open(f"{scheme}:{disk}/v.db") as vault:
        saved, error = fill(vault.thread("t"))
        assert isinstance(error, OutOfSpace)
        assert "full" in str(error)
        assert not error.unknown
        assert len(list(vault.thread("t").history())) == len(saved)  # what raised left nothing behind
        assert_all_there(vault, saved)
        with pytest.raises(UnavailableError):
            vault.thread("t").update(append={"items": [random.randbytes(600_000).hex()]})
        assert_all_there(vault, saved)
        remount(disk, "size=8m")
        again = vault.thread("t").update(append={"items": ["room"]})
        saved[again.id] = fingerprint(again.state)
        assert_all_there(vault, saved)
    with savegame.open(f"{scheme}:{disk}/v.db") as vault:
        assert_all_there(vault, saved)
    assert names(disk) == {"v.db"}


def test_reopening_a_full_disk_and_deleting_makes_room(scheme: str, disk: Path) -> None:
    with savegame.open(f"{scheme}:{disk}/v.db") as vault:
        vault.thread("small").save({"kept": True})
        vault.thread("big").save({"text": random.randbytes(300_000).hex()})
        saved, _ = fill(vault.thread("t"), least=0)
    try:
        vault = savegame.open(f"{scheme}:{disk}/v.db")
    except UnavailableError:  # no room even for the -shm
        remount(disk, "size=2560k")
        vault = savegame.open(f"{scheme}:{disk}/v.db")
    with vault:
        assert_all_there(vault, saved)
        assert vault.thread("small").state() == {"kept": True}
        remount(disk, "size=8m")
        vault.thread("big").delete()
        vault.compact()
        vault.thread("small").save({"kept": True, "more": "x" * 1000})
        assert_all_there(vault, saved)


def test_compacting(scheme: str, disk: Path) -> None:
    with savegame.open(f"{scheme}:{disk}/v.db") as vault:
        saved, _ = fill(vault.thread("t"))
        got = _attempt(vault.compact)
        assert got is None or isinstance(got, OutOfSpace)
        assert_all_there(vault, saved)
        assert names(disk) == {"v.db"}
        remount(disk, "size=16m")
        vault.compact()
        assert_all_there(vault, saved)
        vault.thread("t").update(append={"items": ["afterwards"]})
    assert names(disk) == {"v.db"}


@pytest.mark.parametrize("what", ["prune", "delete", "rewind", "label", "fork", "repair", "copy_to"])
def test_everything_else(scheme: str, what: str, disk: Path) -> None:
    with savegame.open(f"{scheme}:{disk}/v.db") as vault, savegame.open(f"{scheme}:{disk}/other.db") as other:
        thread = vault.thread("t")
        saved, _ = fill(thread, least=2)
        work: dict[str, Callable[[], Any]] = {
            "prune": lambda: thread.prune(keep=2),
            "delete": thread.delete,
            "rewind": lambda: thread.rewind("head~1", discard=True),
            "label": lambda: thread.label("head", "x" * 400),
            "fork": lambda: thread.fork("copy"),
            "repair": vault.repair,
            "copy_to": lambda: vault.copy_to(other),
        }
        got = _attempt(work[what])
        if isinstance(got, SavegameError):
            assert isinstance(got, OutOfSpace), got
            assert not got.unknown
            assert_all_there(vault, saved)
        remount(disk, "size=32m")
        work[what]()
        assert vault.verify().ok
        thread.update(append={"items": ["afterwards"]}, force=True)
    assert names(disk) <= {"v.db", "other.db"}


def test_backing_up(scheme: str, disk: Path, tmp_path: Path) -> None:
    with savegame.open(f"{scheme}:{tmp_path}/v.db") as vault:
        for _ in range(80):
            vault.thread("t").update(append={"items": [random.randbytes(40_000).hex()]})
        with pytest.raises(OutOfSpace):
            vault.backup(str(disk / "copy.db"))
        assert list(disk.iterdir()) == []
        assert vault.verify().ok
        remount(disk, "size=32m")
        vault.backup(str(disk / "copy.db"))
    with savegame.open(f"{scheme}:{disk}/copy.db") as copy:
        assert copy.verify().ok
    assert [path.name for path in disk.iterdir()] == ["copy.db"]


@pytest.mark.parametrize("left", [0, 4, 8, 16, 24, 40, 60])
def test_making_a_vault(scheme: str, left: int, disk: Path) -> None:
    (disk / "ballast").write_bytes(b"x" * (2048 - left) * 1024)
    got = _attempt(lambda: savegame.open(f"{scheme}:{disk}/v.db"))
    if isinstance(got, SavegameError):
        assert isinstance(got, UnavailableError)
        assert names(disk) - {"v.db"} == {"ballast"}
    else:
        got.close()
    (disk / "ballast").unlink()
    with savegame.open(f"{scheme}:{disk}/v.db") as vault:
        vault.thread("t").save(1)
        assert vault.verify().ok
    assert names(disk) == {"v.db"}


@pytest.mark.parametrize("left", [0, 1])
def test_deleting_where_no_file_can_be_made_locks_nobody_out(left: int, disk: Path) -> None:
    """Several threads need two: what was begun is taken back, and everybody reads and writes as before."""
    with savegame.open(f"file:{disk}/v.db") as vault:
        for name in ("a", "b", "c"):
            vault.thread(name).save({"name": name})
        about = os.statvfs(disk)
        remount(disk, f"nr_inodes={about.f_files - about.f_ffree + left}")
        doomed = [DeleteThread(ThreadKey("default", name)) for name in ("a", "b")]
        for changes in [doomed] if left else [doomed[:1], doomed]:
            with pytest.raises(OutOfSpace) as caught:
                vault.store.commit(changes)
            assert not caught.value.unknown
            with savegame.open(f"file:{disk}/v.db") as other:
                assert [thread.id for thread in other.threads()] == ["a", "b", "c"]
                other.thread("c").save({"again": len(changes)})
        remount(disk, "nr_inodes=1000")
        vault.store.commit(doomed)
        assert [thread.id for thread in vault.threads()] == ["c"]


def test_a_search_index_that_cannot_be_removed_is_an_error_of_ours(disk: Path) -> None:
    index = FtsIndex(str(disk / "search.db"))
    index.put([])
    remount(disk, "ro")
    with pytest.raises(UnavailableError, match="search index cannot be removed"):
        index.drop()
    remount(disk, "rw")
    index.drop()
    assert list(disk.iterdir()) == []


LIMITED = """
import json, random, resource, sys
import savegame
from savegame.errors import SavegameError, UnavailableError
chance = random.Random(1)
vault = savegame.open(sys.argv[1])
thread = vault.thread("t")
thread.save({"items": []})
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
saved, failed = [], 0
while failed < 3:
    try:
        saved.append(thread.update(append={"items": [chance.randbytes(9_000).hex()]}).id)
    except UnavailableError as error:
        failed += 1
for work in (vault.compact, lambda: vault.backup(vault.store.path + ".copy")):
    try:
        work()
    except UnavailableError:
        failed += 1
assert all(vault.find(one) is not None for one in saved)
assert vault.verify().ok
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
saved.append(thread.update(append={"items": ["room"]}).id)
assert vault.verify().ok
vault.close()
print(json.dumps([saved, failed]))
"""


def test_a_file_that_may_not_grow(scheme: str, tmp_path: Path) -> None:
    """The same without root: a limit on the size of files; Python ignores the signal, so that writes fail."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, f"{scheme}:{tmp_path}/v.db"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    saved, failed = json.loads(done.stdout)
    assert failed >= (3 if scheme == "file" else 4)  # rewritten journals are small enough
    with savegame.open(f"{scheme}:{tmp_path}/v.db") as vault:
        assert all(vault.find(one) is not None for one in saved)
        assert len(list(vault.thread("t").history())) == len(saved) + 1
        assert vault.verify().ok
    assert names(tmp_path) <= {"v.db", "v.db.copy"}


def _attempt(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except SavegameError as error:
        return error
