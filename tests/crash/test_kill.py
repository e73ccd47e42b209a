"""SIGKILL at random moments: what returned is there and equal, half a save is never seen, and life goes on."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from addresses import LASTING
from homes import Home

import savegame
from savegame.testing.faults import Child, Mouth, Oracle, a_state, fingerprint, save_for_ever


@pytest.fixture(params=LASTING)
def address(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> str:
    """Where a vault may be, for each store that outlives a process."""
    return address_of(request.param)


def wait_for_the_server(url: str) -> None:
    """Until nothing is left of a killed client: the server may yet commit what that had sent, a save or a removal."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(others).fetchall() != [(0,)]:
            assert time.monotonic() < deadline, "the server goes on working for a client that was killed"
            time.sleep(0.002)


def kill_over_and_over(path: str, rounds: int, *, mode: str = "power", only: str = "") -> Oracle:
    """Start a writer on one vault, hear of a few saves, kill it at a random moment after them, compare, carry on."""
    oracle = Oracle()
    chance = random.Random()
    for number in range(1, rounds + 1):
        with Child(save_for_ever, path, 3, mode, only) as child:
            enough = oracle.acked + number % 11
            while oracle.acked < enough:  # every eleventh is not waited for: it may be killed while it opens
                oracle.hear([child.next()])
            if only:
                while (line := child.next())[0] != "begins":
                    oracle.hear([line])
            time.sleep(chance.uniform(0, 0.12))
            child.kill()
            oracle.hear(child.lines())
        if path.startswith("postgres"):
            wait_for_the_server(path)
        with savegame.open(path) as vault:
            oracle.check(vault, whole=number % 10 == 0)
            again = vault.thread("after the crash")
            state = again.state() or a_state(0, [])
            saved = again.save(a_state(state["count"] + 1, []))
            oracle.hear([["saved", again.id, saved.id, fingerprint(saved.state), None]])
        if oracle.lost:
            break
    print(json.dumps({"rounds": rounds, "acked": oracle.acked, "lost": len(oracle.lost), "unasked": oracle.surprises}))
    return oracle


@pytest.mark.requirement("A42", "E13", "Z02")
def test_40_kills_lose_nothing(address: str) -> None:
    oracle = kill_over_and_over(address, 40)
    assert not oracle.lost
    assert oracle.acked > 200


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_1000_kills_lose_nothing(address: str) -> None:
    oracle = kill_over_and_over(address, 1000)
    assert not oracle.lost
    assert oracle.acked > 5000


def test_a_writer_that_lies_is_caught(address: str) -> None:
    """The negative control: a writer that says "saved" before it saves must be found out, or the tests above prove nothing."""
    assert kill_over_and_over(address, 60, mode="liar").lost


@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=[pytest.mark.campaign, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("what", ["compact", "backup", "prune", "delete"])
def test_kills_in_the_middle_of(what: str, kills: int, address: str, tmp_path: Path) -> None:
    if what == "backup" and address.startswith("postgresql:"):
        pytest.skip("PostgreSQL has backups of its own")
    oracle = kill_over_and_over(address, kills, only=what)
    assert not oracle.lost
    backups = sorted(tmp_path.glob("*.backup-*-*"))
    for backup in backups:
        if backup.suffix in (".partial", ".new") or backup.name.endswith(("-wal", "-shm", "-journal")):
            continue
        with savegame.open(
            f"file:{backup}" if backup.is_dir() else backup
        ) as copy:  # a backup has its name only when it is whole
            assert copy.verify().ok


def test_a_killed_backup_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        for number in range(40):
            vault.thread("t").save({"number": number, "text": random.randbytes(60_000).hex()})
    wanted = tmp_path / "copy.db"
    for _ in range(10):
        with Child(_back_up, str(path), str(wanted)) as child:
            assert child.next() == ["begins"]
            time.sleep(random.uniform(0, 0.02))
            child.kill()
        if not wanted.exists():
            with savegame.open(path) as vault:
                vault.backup(str(wanted))
        with savegame.open(wanted) as copy:
            assert copy.verify().ok
            assert copy.thread("t").state()["number"] == 39
        wanted.unlink()


def _back_up(mouth: Mouth, path: str, target: str) -> None:
    with savegame.open(path) as vault:
        mouth.say("begins")
        vault.backup(target)


def discard_for_ever(mouth: Mouth, url: str) -> None:
    with savegame.open(url, durability="process") as vault:
        for number in itertools.count():
            thread = vault.thread(f"{number}")
            for step in range(12):
                thread.save({"step": step})
            mouth.say(number)
            thread.rewind(3, discard=True)


@pytest.mark.requirement("Z18")
def test_a_discard_that_is_killed_leaves_no_gap(lasting: Home) -> None:
    for _ in range(6):
        with Child(discard_for_ever, lasting.url) as child:
            while child.next()[0] < 1:
                pass
            time.sleep(random.uniform(0, 0.02))
        vault = lasting.open()
        lines = [[entry.step for entry in vault.thread(info.id).history(branches=True)] for info in vault.threads()]
        assert all(line == list(range(len(line), 0, -1)) for line in lines)
        assert sorted(lines, key=len)[0] in ([3, 2, 1], [2, 1], [1])
        assert vault.verify().ok
        for info in vault.threads():
            vault.thread(info.id).delete()
