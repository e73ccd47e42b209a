"""`savegame doctor` against planted faults: each is reported with what to do, and a sound vault has none."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run

import savegame
from savegame.present import checkup
from savegame.present.checkup import (
    Level,
    clocks,
    connections,
    on_file_system,
    replication,
    server_settings,
    sqlite_elsewhere,
    sqlite_library,
)
from savegame.stores.memory import MemoryStore
from savegame.testing.postgres import Cluster
from savegame.vault import Vault

SOUND = {"fsync": "on", "full_page_writes": "on", "data_checksums": "on"}
NOW = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)


def problems(address: str) -> dict[str, str]:
    """What doctor calls a problem, with its advice; the exit code says whether there is one."""
    done = run("doctor", "--store", address, "--json")
    found = json.loads(done.out)
    wrong = {one["check"]: f"{one['found']}; {one['advice']}" for one in found["findings"] if one["level"] == "problem"}
    assert (done.code, found["ok"]) == ((1, False) if wrong else (0, True))
    return wrong


@pytest.fixture
def path(on_disk: str) -> Path:
    return Path(on_disk.removeprefix("sqlite:"))


def test_a_sound_vault_has_no_problem(any_store: str) -> None:
    assert problems(any_store).keys() <= {"fsync"}, "the server of tests does not flush"
    told = run("doctor", "--store", any_store).out
    assert "✓ store" in told
    assert "! runs" in told, "one is stale"
    assert ("SQLite of the system" in told) == any_store.startswith("sqlite:"), "of the store that is looked at, only"


def test_what_others_may_read_is_a_problem(path: Path) -> None:
    path.chmod(0o644)
    assert f"chmod 600 {path}" in problems(str(path))["modes"]
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert "chmod o-w" in problems(str(path))["modes"]


def test_two_names_of_one_file_are_a_problem(path: Path) -> None:
    os.link(path, path.with_name("other.db"))
    assert "2 names" in problems(str(path))["links"]


def test_a_process_that_writes_to_a_deleted_log_is_named(path: Path) -> None:
    script = "import sys, savegame; v = savegame.open(sys.argv[1]); v.thread('t').save(1); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        Path(f"{path}-wal").unlink()
        assert f"process {process.pid} writes to a file that was deleted" in problems(str(path))["write-ahead log"]
        process.kill()


def test_what_cannot_be_opened_is_told(tmp_path: Path, path: Path) -> None:
    (tmp_path / "text.db").write_text("This is no database at all.\n" * 20)
    (tmp_path / "text.db").chmod(0o600)
    assert "is not a savegame file" in problems(str(tmp_path / "text.db"))["store"]
    missing = problems(str(tmp_path / "no.db"))["store"]
    assert "the file does not exist; check the address" in missing
    assert "read_only" not in missing
    assert not (tmp_path / "no.db").exists()


def test_damage_is_told(path: Path) -> None:
    with savegame.open(path) as vault, vault.connection() as db:
        db.execute("UPDATE frame SET meta = zeroblob(length(meta)) WHERE key = (SELECT max(key) FROM frame)")
    told = problems(str(path))["damage"]
    assert "savegame repair" in told
    assert "threads" not in told


def test_a_clock_that_was_set_back_is_noticed() -> None:
    now = [1_800_000_000_000_000]
    with Vault(MemoryStore(clock=lambda: now[0])) as vault:
        vault.thread("t").save(1)
        assert not [one for one in checkup.contents(vault) if one.level == Level.PROBLEM]
        now[0] -= 3_600_000_000
        assert [one.check for one in checkup.contents(vault) if one.level == Level.PROBLEM] == ["clock"]


@pytest.mark.parametrize(("name", "value"), [("fsync", "off"), ("full_page_writes", "off")])
def test_a_server_that_promises_less_is_a_problem(name: str, value: str) -> None:
    assert all(one.level == Level.OK for one in server_settings(SOUND))
    wrong = [one.check for one in server_settings(SOUND | {name: value}) if one.level == Level.PROBLEM]
    assert wrong == [name]


def test_the_settings_of_a_real_server_are_read() -> None:
    with Cluster(full_page_writes="off") as cluster, cluster.fresh_database() as url:
        savegame.open(url).close()
        assert problems(url).keys() == {"fsync", "full_page_writes"}


def test_settings_that_savegame_would_not_choose_are_listed_with_what_comes_of_them(postgres_url: str) -> None:
    def listed(address: str) -> dict[str, tuple[str, str]]:
        found = json.loads(run("doctor", "--store", address, "--json").out)["findings"]
        return {one["check"]: (one["level"], one["found"]) for one in found}

    savegame.open(postgres_url).close()
    level, told = listed(postgres_url)["session settings"]
    assert level == "ok"
    for name in checkup.SESSION.keys() - {"transaction_timeout"}:  # which only newer servers have
        assert name in told
    unusual = {"synchronous_commit": "off", "standard_conforming_strings": "off", "lock_timeout": "70000"}
    options = "%20".join(f"-c{name}%3D{value}" for name, value in unusual.items())
    found = listed(f"{postgres_url}?options={options}")
    assert {name: found[name][0] for name in unusual} == dict.fromkeys(unusual, "note")
    assert "turns it on" in found["synchronous_commit"][1]


def test_what_only_shows_elsewhere() -> None:
    """Faults that cannot be planted here: other libraries, network disks, replicas, a full server."""
    assert sqlite_library("3.40.1").level == Level.PROBLEM
    assert [sqlite_elsewhere(version).level for version in ("3.40.1", "3.51.2", "3.44.6", "3.50.7", "3.51.3")] == [
        Level.NOTE,
        Level.NOTE,
        Level.OK,
        Level.OK,
        Level.OK,
    ]
    assert [on_file_system(kind).level for kind in ("nfs4", "ext4", None)] == [Level.PROBLEM, Level.OK, Level.OK]
    assert replication("", ["async"]).level == Level.NOTE
    assert replication("a, b", ["sync", "async"]).level == replication("", []).level == Level.OK
    assert clocks(NOW, NOW + dt.timedelta(minutes=1)).level == Level.NOTE
    assert connections(95, 100, 10).level == Level.NOTE
