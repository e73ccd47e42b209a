"""The files of an SQLite store replaced or linked under a vault: no acknowledged save vanishes, no verb goes on for ever."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame.errors import Busy, ConflictError, SavegameError, UnavailableError, UnsupportedError
from savegame.stores import sqlite_file as file
from savegame.testing.faults import Child, Mouth, together


def backed_up(path: Path) -> Path:
    """A store with one thread, and a backup of it; the store has gone on since."""
    backup = path.with_name("backup.db")
    with savegame.open(path) as vault:
        vault.thread("t").save({"items": []})
        vault.backup(backup)
        vault.thread("t").update(append={"items": ["after the backup"]})
    return backup


def put_in_place(backup: Path, path: Path) -> None:
    """What a person does who restores a backup: copy it, rename it over the file, remove what belongs to the old one."""
    shutil.copy(backup, f"{path}.restored")
    os.replace(f"{path}.restored", path)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def conflict(vault: savegame.Vault) -> None:
    thread = vault.thread("t")
    thread.latest()
    with savegame.open(vault.store.path) as other:
        other.thread("t").save({})
    with pytest.raises(ConflictError):
        thread.save({"mine": 1})


def busy(vault: savegame.Vault) -> None:
    with savegame.open(vault.store.path) as other, other.run("t"), pytest.raises(Busy):
        vault.thread("t").save({})


def rolled_back(vault: savegame.Vault) -> None:
    with contextlib.suppress(ZeroDivisionError), vault.connection() as db:
        db.execute("CREATE TABLE own (x)")
        raise ZeroDivisionError


def leased(vault: savegame.Vault) -> None:
    with vault.run("t"):
        pass


def nothing(vault: savegame.Vault) -> None:
    pass


def read(vault: savegame.Vault) -> None:
    assert vault.thread("t").state() is not None


@pytest.mark.parametrize("first", [conflict, busy, rolled_back, leased, read, nothing])
def test_saves_after_a_restore_are_there_or_raise(first: Callable[[savegame.Vault], None], tmp_path: Path) -> None:
    """Whatever the process did before the file was replaced."""
    path = tmp_path / "v.db"
    backup = backed_up(path)
    kept: list[int] = []
    errors = []
    with savegame.open(path) as vault:
        first(vault)
        put_in_place(backup, path)
        thread = vault.thread("t")
        for number in range(20):
            try:
                thread.update(append={"items": [number]})
            except UnavailableError as error:
                errors.append(error)
            else:
                kept.append(number)
        assert vault.verify().ok
    assert len(errors) <= 2
    with savegame.open(path) as vault:
        assert vault.thread("t").state() == {"items": kept}


@pytest.mark.parametrize(
    "verb",
    [
        lambda vault: vault.thread("t").update(append={"items": [1]}),
        lambda vault: vault.thread("t").save({"items": [1]}),
        lambda vault: vault.thread("t").modify(lambda state: {"items": [1]}),
        lambda vault: vault.thread("t").rewind("head~0"),
        lambda vault: vault.thread("t").label("head", "here"),
        lambda vault: vault.thread("t").latest(),
        lambda vault: vault.verify(),
        lambda vault: list(vault.threads()),
    ],
    ids=["update", "save", "modify", "rewind", "label", "latest", "verify", "threads"],
)
def test_a_vault_that_has_only_read_is_told_once_and_goes_on(verb: Callable[[savegame.Vault], Any], tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    backup = backed_up(path)
    with savegame.open(path) as vault:
        assert vault.thread("t").state() == {"items": ["after the backup"]}
        put_in_place(backup, path)
        with pytest.raises(UnavailableError, match="replaced while the vault was open") as raised:
            verb(vault)
        assert not raised.value.unknown
        assert vault.thread("t").state() == {"items": []}  # what is in the file now
        verb(vault)
        assert vault.verify().ok


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_vault_goes_on_when_a_file_beside_its_own_was_removed(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        vault.thread("t").save({"n": 1})
    with savegame.open(path) as vault:
        leased(vault)  # the connection that writes has pages in the log
        Path(f"{path}{suffix}").unlink()
        with pytest.raises(UnavailableError, match="the next call uses"):
            vault.thread("t").state()
        vault.thread("t").save({"n": 2})
    with savegame.open(path) as vault:
        assert vault.thread("t").state() == {"n": 2}
        assert vault.verify().ok


def test_a_read_that_finds_another_file_speaks_for_the_writer_too(tmp_path: Path) -> None:
    """The writer would still have the old file, whose head a reader of the new one does not know."""
    path = tmp_path / "v.db"
    backup = backed_up(path)
    with savegame.open(path) as vault:
        thread = vault.thread("t")
        thread.update(append={"items": ["old"]})
        put_in_place(backup, path)
        with pytest.raises(UnavailableError):
            vault.thread("t").state()
        assert vault.thread("t").state() == {"items": []}
        vault.thread("t").update(append={"items": ["new"]})
        assert vault.thread("t").state() == {"items": ["new"]}
    with savegame.open(path) as vault:
        assert vault.thread("t").state() == {"items": ["new"]}


def test_namespaces_of_a_replaced_file_are_looked_up_again(tmp_path: Path) -> None:
    """Namespaces have numbers, which differ from file to file."""
    path, other = tmp_path / "v.db", tmp_path / "other.db"
    for name, spaces in ((path, "ab"), (other, "ba")):
        for space in spaces:
            with savegame.open(name, namespace=space) as vault:
                vault.thread("t").save(f"{space} in {name.name}")
    with savegame.open(path, namespace="a") as vault:
        assert vault.thread("t").state() == "a in v.db"
        put_in_place(other, path)
        with pytest.raises(UnavailableError):
            vault.thread("t").state()
        assert vault.thread("t").state() == "a in other.db"


def test_a_file_that_is_replaced_for_ever_is_not_opened_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savegame.open(tmp_path / "v.db").close()
    numbers = iter(range(10_000))
    monkeypatch.setattr(file, "_inode", lambda path: (0, next(numbers)))
    with pytest.raises(UnavailableError, match="being replaced"):
        savegame.open(tmp_path / "v.db")


# -- hard links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_with_two_names_is_refused_by_both(read_only: bool, tmp_path: Path) -> None:
    path, other = tmp_path / "v.db", tmp_path / "elsewhere" / "w.db"
    other.parent.mkdir()
    with savegame.open(path) as vault:
        vault.thread("t").save(1)
        os.link(path, other)
        vault.thread("t").save(2)  # a vault that had it open continues: the other name cannot be opened
        for name in (path, other):
            with pytest.raises(UnsupportedError, match="2 names") as refused:
                savegame.open(name, read_only=read_only)
            assert str(name) in str(refused.value)
    other.unlink()
    with savegame.open(path) as vault:
        assert vault.thread("t").state() == 2


@pytest.mark.parametrize("name", ["v.db", "🎲" * 50])
def test_a_creator_that_was_killed_after_the_link_is_cleaned_up_after(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with savegame.open(path) as vault:
        vault.thread("t").save(1)
    os.link(path, file.beside(str(path)))
    with savegame.open(path) as vault:
        assert vault.thread("t").state() == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_only_looks_like_ours_is_left_alone(tmp_path: Path) -> None:
    with savegame.open(tmp_path / "v.db") as vault:
        vault.thread("t").save(1)
    (tmp_path / ".v.db.notes.new").write_text("mine")
    os.link(tmp_path / "v.db", tmp_path / "w.db")
    with pytest.raises(UnsupportedError, match="2 names"):
        savegame.open(tmp_path / "v.db")
    assert (tmp_path / ".v.db.notes.new").read_text() == "mine"


def open_while_it_is_made(mouth: Mouth, path: str) -> None:
    mouth.say("ready")
    mouth.hear()
    with savegame.open(path) as vault:
        vault.thread(f"by {os.getpid()}").save(1)


def test_nobody_is_refused_while_the_file_is_being_made(tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / str(number) / "v.db"
        together(open_while_it_is_made, [(str(path),)] * 4)
        with savegame.open(path) as vault:
            assert len(list(vault.threads())) == 4
        assert [entry.name for entry in path.parent.iterdir()] == ["v.db"]


def save_by(mouth: Mouth, path: str) -> None:
    try:
        with savegame.open(path) as vault:
            for number in range(20):
                vault.thread("t").update(append={"items": [number]})
                mouth.say(number)
    except SavegameError as error:
        mouth.say(type(error).__name__)


def test_two_processes_by_two_names_lose_nothing(tmp_path: Path) -> None:
    path, other = tmp_path / "v.db", tmp_path / "w.db"
    savegame.open(path).close()
    os.link(path, other)
    for name in (path, other):
        with Child(save_by, str(name)) as child:
            assert child.next() == ["UnsupportedError"]
