"""Opening: what is not ours is refused and left as it is; what is made is private; every setting is as it was asked for."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import savegame
from savegame.errors import InvalidInputError, SavegameError, StoreNotFound, UnavailableError, UnsupportedError
from savegame.stores import sqlite_file as file
from savegame.stores.sqlite import SQLiteStore
from savegame.testing.faults import PATIENCE_S, Mouth, remount, tiny_disk, together, why_no_disks
from tests.addresses import ALL


def tree(directory: Path) -> dict[str, tuple[int, str]]:
    """Every name below a directory with its mode and contents."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(directory))] = (status.st_mode, content)
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- not ours --------------------------------------------------------------------------------------


def text_file(path: Path) -> None:
    path.write_text("dear diary\n" * 500)


def short_text_file(path: Path) -> None:
    path.write_text("x")


def foreign_database(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    db.close()


def foreign_wal_database(path: Path) -> None:
    foreign_database(path)
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.execute("INSERT INTO theirs VALUES (2)")
    db.close()


def newer_format(path: Path) -> None:
    savegame.open(path).close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", 999)
    db.close()


def other_application(path: Path) -> None:
    savegame.open(path).close()
    db = apsw.Connection(str(path))
    db.pragma("application_id", 0x12345678)
    db.close()


def directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.requirement("C10", "C34")
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "make",
    [text_file, short_text_file, foreign_database, foreign_wal_database, newer_format, other_application, directory, pipe],
)
def test_what_is_not_ours_is_refused_and_stays_as_it_is(make, read_only: bool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "theirs"
    make(path)
    before = tree(tmp_path)
    with pytest.raises(UnsupportedError) as refused:
        savegame.open(path, read_only=read_only)
    assert str(path) in str(refused.value)
    assert tree(tmp_path) == before


@pytest.mark.requirement("E10", "X25", "Z54")
def test_a_newer_format_says_which(tmp_path: Path) -> None:
    newer_format(tmp_path / "v.db")
    with pytest.raises(UnsupportedError, match=r"format 999.*newer savegame"):
        savegame.open(tmp_path / "v.db")


def test_a_format_that_says_it_is_older_than_its_tables(tmp_path: Path) -> None:
    """A damaged version number must not run old migrations over live tables, and is an error of ours."""
    with savegame.open(tmp_path / "v.db") as vault:
        vault.thread("t").save(1)
    db = apsw.Connection(str(tmp_path / "v.db"))
    db.pragma("user_version", 0)
    db.close()
    with pytest.raises(SavegameError):
        savegame.open(tmp_path / "v.db")


@pytest.mark.parametrize(
    "options",
    [
        {"namespace": ""},
        {"namespace": 5},
        {"retention": 5},
        {"retention": {"max_checkpoints": 5}},
        {"cache_bytes": -1},
        {"cache_bytes": "1 MB"},
        {"cache_bytes": None},
        {"durability": "none"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("address", ["v.db", "file:v"])
def test_what_a_vault_cannot_be_opened_with_makes_no_vault(address: str, options: dict[str, Any], tmp_path: Path) -> None:
    scheme, colon, name = address.rpartition(":")
    with pytest.raises(InvalidInputError):
        savegame.open(f"{scheme}{colon}{tmp_path / name}", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("C11", "Z26")
@pytest.mark.parametrize("address", [None, 5, b"v.db", "", []], ids=repr)
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(InvalidInputError, match="a vault's address"):
        savegame.open(address)


def test_an_empty_file_becomes_a_vault(tmp_path: Path) -> None:
    (tmp_path / "v.db").touch()
    with savegame.open(tmp_path / "v.db") as vault:
        vault.thread("t").save(1)
    with savegame.open(tmp_path / "v.db") as vault:
        assert vault.thread("t").state() == 1


def test_an_empty_file_that_becomes_a_vault_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "v.db").touch(0o644)
    with savegame.open(tmp_path / "v.db") as vault:
        vault.thread("t").save(1)
        assert {mode(path) for path in tmp_path.iterdir()} == {0o600}


def test_an_empty_file_is_left_alone_when_reading_only(tmp_path: Path) -> None:
    (tmp_path / "v.db").touch()
    with pytest.raises(StoreNotFound, match="is empty"):
        savegame.open(tmp_path / "v.db", read_only=True)
    assert (tmp_path / "v.db").stat().st_size == 0


def test_a_missing_file_is_not_made_when_reading_only(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        savegame.open(tmp_path / "deep" / "v.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b.db", "\udcff.db", "x" * 300 + ".db"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(SavegameError):
        savegame.open(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "with space.db",
        "q?mode=memory&x=1.db",
        "#hash.db",
        "100%25.db",
        "Ünïcode 🎲.db",
        "🎲" * 50,
        "'quote\".db",
        "-rf",
        "a:b.db",
    ],
)
def test_names_that_files_can_have(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with savegame.open(path) as vault:
        vault.thread("t").save(1)
        vault.backup(str(tmp_path / "copy"))
    assert {entry.name for entry in tmp_path.iterdir()} == {name, "copy"}
    with savegame.open(path) as vault:
        assert vault.thread("t").state() == 1


@pytest.mark.requirement("C10", "C34")
def test_a_file_in_the_way_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    before = tree(tmp_path)
    with pytest.raises(UnavailableError):
        savegame.open(tmp_path / "file" / "v.db")
    assert tree(tmp_path) == before


# -- read-only places ------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    reason = why_no_disks()
    if reason:
        pytest.skip(reason)
    try:
        with tiny_disk(tmp_path / "disk", 4096) as disk:
            yield disk
    except OSError as error:
        pytest.skip(f"no tmpfs here: {error}")


def test_a_read_only_directory(disk: Path) -> None:
    with savegame.open(disk / "v.db") as vault:
        vault.thread("t").save(1)
    remount(disk, "ro")
    before = tree(disk)
    for path in (disk / "new.db", disk / "deep" / "new.db"):
        with pytest.raises(SavegameError) as refused:
            savegame.open(path)
        assert str(path.parent) in str(refused.value)
    with pytest.raises(SavegameError) as refused, savegame.open(disk / "v.db") as vault:
        vault.thread("t").save(2)
    assert str(disk / "v.db") in str(refused.value)
    assert tree(disk) == before
    remount(disk, "rw")
    with savegame.open(disk / "v.db") as vault:
        assert vault.thread("t").state() == 1
        vault.thread("t").save(2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UnavailableError):
        savegame.open(tmp_path / "closed" / "v.db")
    assert list((tmp_path / "closed").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_empty_file_without_permission(tmp_path: Path) -> None:
    (tmp_path / "v.db").touch()
    (tmp_path / "v.db").chmod(0)
    with pytest.raises(SavegameError, match=re.escape(str(tmp_path / "v.db"))):
        savegame.open(tmp_path / "v.db")


# -- what is made ----------------------------------------------------------------------------------

PRIVATE = """
import os, sys, savegame
os.umask(0)
vault = savegame.open(sys.argv[1])
vault.thread("t").save(1)
vault.backup(sys.argv[1] + ".copy")
folder = os.path.dirname(sys.argv[1])
for name in sorted(os.listdir(folder)):
    print(name, oct(os.stat(os.path.join(folder, name)).st_mode & 0o777))
"""


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "v.db"
    done = subprocess.run([sys.executable, "-c", PRIVATE, str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    modes = dict(line.split() for line in done.stdout.splitlines())
    assert modes == dict.fromkeys(("v.db", "v.db-shm", "v.db-wal", "v.db.copy"), "0o600")
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700


def test_directories_that_exist_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    savegame.open(tmp_path / "there" / "new" / "v.db").close()
    assert mode(tmp_path / "there") == 0o755
    assert mode(tmp_path / "there" / "new") == 0o700


def test_a_symlink_and_its_target_are_the_same_vault(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real" / "v.db")
    with savegame.open(link) as one, savegame.open(tmp_path / "real" / "v.db") as two:  # the target is made
        one.thread("t").save(1)
        assert two.thread("t").state() == 1
        two.thread("t").save(2, force=True)
        assert one.thread("t").state() == 2
        assert {path.name for path in tmp_path.iterdir()} == {"real", "link.db"}
    assert link.is_symlink()


def make_it(mouth: Mouth, path: str, who: int) -> None:
    mouth.say("ready")
    mouth.hear()
    with savegame.open(path) as vault:
        vault.thread(f"thread {who}").save(who)


@pytest.mark.parametrize("empty", [False, True])
def test_two_processes_make_the_same_file_at_once(empty: bool, tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}" / "v.db"
        if empty:
            path.parent.mkdir()
            path.touch()
        together(make_it, [(str(path), who) for who in range(2)])
        with savegame.open(path) as vault:
            assert [vault.thread(f"thread {who}").state() for who in range(2)] == [0, 1]
            assert vault.verify().ok
        assert [entry.name for entry in path.parent.iterdir()] == ["v.db"]


def test_a_backup_opens_for_reading_only(tmp_path: Path) -> None:
    with savegame.open(tmp_path / "v.db") as vault:
        vault.thread("t").save(1)
        vault.backup(str(tmp_path / "copy.db"))
    before = hashlib.sha256((tmp_path / "copy.db").read_bytes()).digest()
    with savegame.open(tmp_path / "copy.db", read_only=True) as copy:
        assert copy.thread("t").state() == 1
        assert copy.verify().ok
        for work in (lambda: copy.thread("t").save(2), copy.compact, copy.thread("t").delete, copy.repair):
            if work == copy.repair:
                assert copy.repair().ok
                continue
            with pytest.raises(UnsupportedError):
                work()
    assert hashlib.sha256((tmp_path / "copy.db").read_bytes()).digest() == before


def test_a_reader_beside_a_writer_changes_nothing_and_sees_everything(tmp_path: Path) -> None:
    with savegame.open(tmp_path / "v.db") as writer, savegame.open(tmp_path / "v.db", read_only=True) as reader:
        for number in range(5):
            writer.thread("t").save(number)
            assert reader.thread("t").state() == number
        with pytest.raises(UnsupportedError):
            reader.thread("t").save(9)
        writer.compact()
        assert reader.thread("t").state() == 4


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.requirement("A49", "A52", "Z10")
@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
def test_every_setting_is_as_wanted_on_every_connection(durability: str, synchronous: int, tmp_path: Path) -> None:
    store = SQLiteStore(str(tmp_path / "v.db"), durability=durability)
    with store._reading() as reader, store.transaction() as transaction:
        for db in (reader, transaction.db):
            assert db.pragma("journal_mode") == "wal"
            assert db.pragma("synchronous") == synchronous
            assert db.pragma("trusted_schema") == 0
            assert db.pragma("cell_size_check") == 1
            assert db.pragma("secure_delete") == 1
            assert db.pragma("mmap_size") in (0, None)
            assert db.pragma("temp_store") == 2
            assert db.pragma("busy_timeout") == file.BUSY_MS
            assert db.pragma("page_size") == file.PAGE_SIZE
            assert db.pragma("application_id") == file.APPLICATION_ID
            assert db.pragma("user_version") == file.NEWEST_LAYOUT
            assert db.pragma("encoding") == "UTF-8"
    store.close()


def test_the_library_is_one_without_the_wal_reset_bug() -> None:
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= (3, 51, 3)
    file.check_library()


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://me:s3cret@host/db", "PostgreSQL://me:s3cret@host/db", "redis://:s3cret@host"]
)
def test_a_url_that_no_store_knows_is_refused_without_its_password(url: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(StoreNotFound, match="use postgresql://") as told:
        savegame.open(url)
    assert "s3cret" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("store", ALL)
def test_a_vault_says_where_it_is_without_a_password(store: str, address_of: Callable[[str], str]) -> None:
    address = address_of(store)
    with savegame.open(address) as vault, savegame.open(address, namespace="team") as team:
        where = re.sub(":[^/@]*@", "@", address) if store == "postgres" else address.removeprefix(f"{store}:") or address
        assert repr(vault) == f"<Vault {where!r}>"
        assert repr(team) == f"<Vault {where!r} namespace 'team'>"
        assert repr(savegame.AsyncVault(team)) == f"<AsyncVault {where!r} namespace 'team'>"
