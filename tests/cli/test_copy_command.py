"""`savegame copy` and `savegame migrate` as a user runs them: real processes, real exit codes, one of them killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from commands import run, typed

import savegame

COMMAND = [sys.executable, "-m", "savegame"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory with a vault of four threads in old.db, one of them in another namespace."""
    with savegame.open(tmp_path / "old.db", durability="process") as vault:
        for name in "abc":
            vault.thread(name).save({"name": name}, label=f"label of {name}")
    with savegame.open(tmp_path / "old.db", namespace="other") as vault:
        vault.thread("d").save({"name": "d"})
    return tmp_path


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_copied_and_copied_again(old: Path, scheme: str) -> None:
    target = f"{scheme}:new"
    done = run("copy", "old.db", target, cwd=old)
    assert done.code == 0
    assert done.err.splitlines() == [f"copying 'default': {number} of 3 threads" for number in (1, 2, 3)]
    assert done.out == "namespace 'default': 3 checkpoints copied; new data compared with the source\n"
    assert run("copy", "old.db", target, cwd=old).out.splitlines()[-1].startswith("namespace 'default': nothing new")
    done = run("copy", "old.db", target, "--full", cwd=old)
    assert done.out.splitlines()[-1] == "namespace 'default': nothing new; everything compared with the source"
    with savegame.open(f"{scheme}:{old}/new") as vault:
        assert vault.thread("a").load("label of a").state == {"name": "a"}
        assert vault.verify().ok


def test_namespaces_are_named(old: Path) -> None:
    done = run("copy", "old.db", "new.db", "--namespace", "default", "--namespace", "other", cwd=old)
    assert done.out.splitlines() == [
        "namespace 'default': 3 checkpoints copied; new data compared with the source",
        "namespace 'other': 1 checkpoint copied; new data compared with the source",
    ]
    assert run("copy", "old.db", "new.db", "--namespace", "other", "--into", "third", cwd=old).code == 0
    for namespace, count in (("default", 3), ("other", 1), ("third", 1)):
        with savegame.open(old / "new.db", namespace=namespace) as vault:
            assert vault.stats().checkpoints == count


def test_errors_are_one_line_and_their_exit_code(old: Path) -> None:
    (old / "mine").write_text("mine")
    with savegame.open(old / "apart.db") as vault:
        vault.thread("b").save("its own way")
    for arguments, error in (
        (("copy", "missing.db", "new.db"), savegame.StoreNotFound),
        (("copy", "old.db", "mine"), savegame.UnsupportedError),
        (("copy", "old.db", "apart.db"), savegame.ConflictError),
        (("copy", "old.db", "new.db", "--into", "x", "--namespace", "a", "--namespace", "b"), savegame.InvalidInputError),
        (("migrate", "mine"), savegame.UnsupportedError),
        (("migrate", "nothing:here"), savegame.StoreNotFound),
    ):
        done = run(*arguments, cwd=old)
        assert done.code == error.exit_code, done.out + done.err
        assert done.err.splitlines()[-1].startswith("savegame: ")
    assert (old / "mine").read_text() == "mine"
    assert not (old / "new.db").exists()
    with savegame.open(old / "apart.db") as vault:
        assert vault.thread("c").state() == {"name": "c"}, "the others arrived"


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_killed_and_started_again_it_carries_on(tmp_path: Path, scheme: str) -> None:
    address = f"{scheme}:{tmp_path}/new"
    with savegame.open(tmp_path / "old.db", durability="process") as vault:
        for name in range(60):
            for number in range(5):
                vault.thread(f"{name}").update(append={"l": [number]}, id=f"{name}-{number}")
        for _ in range(3):
            with subprocess.Popen(
                [*COMMAND, "copy", tmp_path / "old.db", address], stderr=subprocess.PIPE, text=True
            ) as process:
                assert process.stderr is not None
                assert "of 60 threads" in process.stderr.readline()
                process.kill()
            with savegame.open(address) as copy:
                for info in copy.threads():
                    assert copy.thread(info.id).state() == {"l": [0, 1, 2, 3, 4]}
        done = run("copy", tmp_path / "old.db", address, cwd=tmp_path)
        assert done.code == 0, done.err
        with savegame.open(address) as copy:
            assert [cp.id for name in range(60) for cp in copy.thread(f"{name}").history(newest_first=False)] == [
                f"{name}-{number}" for name in range(60) for number in range(5)
            ]
            assert copy.stats().checkpoints == 300
            assert copy.verify().ok


def test_people_see_a_bar(old: Path) -> None:
    done = typed("copy", old / "old.db", old / "new.db")
    assert done.code == 0
    assert "━" in done.out
    assert "of 3 threads" not in done.out


def test_migrating_says_from_where_to_where(tmp_path: Path) -> None:
    assert run("migrate", "new.db", cwd=tmp_path).out == "tables created: layout version 1\n"
    assert run("migrate", "new.db", cwd=tmp_path).out == "up to date: layout version 1\n"
    assert run("migrate", "memory:", cwd=tmp_path).out == "nothing to do: memory stores have no layout version\n"
    with savegame.open(tmp_path / "new.db") as vault:
        vault.thread("t").save(1)
    with contextlib.closing(apsw.Connection(str(tmp_path / "new.db"))) as db:
        db.pragma("user_version", 99)
    done = run("migrate", "new.db", cwd=tmp_path)
    assert (done.code, "has format 99" in done.err) == (savegame.UnsupportedError.exit_code, True)


def test_into_a_database_and_its_tables_first(old: Path, postgres_url: str) -> None:
    assert run("migrate", postgres_url, cwd=old).out.startswith("tables created: layout version ")
    assert run("migrate", postgres_url, cwd=old).out.startswith("up to date: layout version ")
    done = run("copy", "old.db", postgres_url, cwd=old)
    assert done.out.splitlines()[-1] == "namespace 'default': 3 checkpoints copied; new data compared with the source"
    assert run("copy", postgres_url, "back.db", cwd=old).out.splitlines()[-1].startswith("namespace 'default': 3 checkpoints")
    with savegame.open(old / "old.db") as first, savegame.open(old / "back.db") as back:
        assert [info.head for info in back.threads()] == [info.head for info in first.threads()]
        assert back.verify().ok
