"""Power cuts, for real: a file system in a file is shut down without flushing anything, mounted again, and looked at.

Only what the child had said *before* the cut counts as promised. Measured on 100 cuts each: `durability="power"` loses
nothing; `durability="process"` of an SQLite file stays whole but may lose the newest saves; without any flush nearly
every cut loses saves, which is the control that shows that these tests can fail.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import savegame
from savegame.errors import SavegameError
from savegame.model import ThreadKey
from savegame.store import MoveHead, PutRecord
from savegame.testing.faults import Child, LoopDisk, Mouth, Oracle, save_for_ever, why_no_disks

pytestmark = pytest.mark.campaign


@dataclass(frozen=True)
class Ground:
    """A disk, and which store to try on it."""

    disk: LoopDisk
    scheme: str

    def address(self, *names: str) -> str:
        """Where a vault may be."""
        return f"{self.scheme}:{self.disk.mounted_on.joinpath(*names)}"


@pytest.fixture(params=["sqlite-ext4", "file-ext4", "file-xfs"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    scheme, kind = request.param.split("-")
    reason = why_no_disks(kind)
    if reason:
        pytest.skip(reason)
    try:
        disk = LoopDisk(tmp_path, 320 if kind == "xfs" else 96, kind=kind)
    except OSError as error:
        pytest.skip(f"no loop mounts here: {error}")
    with disk:
        yield Ground(disk, scheme)


def cut_over_and_over(ground: Ground, cuts: int, *, mode: str, only: str = "") -> dict[str, int]:
    """Start a writer, cut the power at a random moment, mount again, compare, carry on."""
    figures = {"cuts": 0, "acked": 0, "cuts_with_loss": 0, "lost": 0, "damaged": 0, "unasked": 0}
    chance = random.Random()
    disk = ground.disk
    path = ground.address("new", "directories", "v.db")
    oracle = Oracle()
    for number in range(1, cuts + 1):
        with Child(save_for_ever, path, 2, mode, only) as child:
            oracle.hear([child.next()])
            time.sleep(chance.uniform(0.01, 0.25))
            promised = child.lines()
            disk.cut()
            child.kill()
        oracle.hear(promised)
        disk.restore()
        try:
            with savegame.open(path) as vault:
                oracle.check(vault, whole=number % 5 == 0 or number == cuts, surprises=1_000_000)
        except (SavegameError, AssertionError):
            if mode == "power":
                raise
            figures["damaged"] += 1
            path = ground.address("new", "directories", f"v{number}.db")
            oracle = Oracle(acked=oracle.acked, surprises=oracle.surprises)
        figures["cuts"] += 1
        figures["cuts_with_loss"] += bool(oracle.lost)
        figures["lost"] += len(oracle.lost)
        oracle.lost.clear()
    figures |= {"acked": oracle.acked, "unasked": oracle.surprises}
    print(json.dumps({"mode": mode, "only": only, **figures}))
    return figures


@pytest.mark.timeout(3600)
def test_100_power_cuts_lose_nothing(ground: Ground) -> None:
    figures = cut_over_and_over(ground, 100, mode="power")
    assert figures["acked"] > 2 * figures["cuts"], "writers were cut off in the middle of their work"
    assert (figures["lost"], figures["damaged"]) == (0, 0)


@pytest.mark.parametrize("what", ["compact", "prune", "delete"])
@pytest.mark.timeout(3600)
def test_power_cuts_in_the_middle_of(what: str, ground: Ground) -> None:
    figures = cut_over_and_over(ground, 25, mode="power", only=what)
    assert (figures["lost"], figures["damaged"]) == (0, 0)


@pytest.mark.timeout(3600)
def test_a_power_cut_right_after_the_first_save_in_new_directories(ground: Ground) -> None:
    """The names of new directories and of the file must be as durable as what is in it."""
    for number in range(20):
        path = ground.address(f"a{number}", "b", "c", "v.db")
        with Child(_save_once, path) as child:
            assert child.next() == ["saved"]
            ground.disk.cut()
        ground.disk.restore()
        with savegame.open(path) as vault:
            assert vault.thread("t").state() == {"saved": True}


def _save_once(mouth: Mouth, path: str) -> None:
    vault = savegame.open(path)
    vault.thread("t").save({"saved": True})
    mouth.say("saved")
    time.sleep(60)


@pytest.mark.timeout(3600)
def test_a_commit_to_several_threads_is_whole_after_a_power_cut(ground: Ground) -> None:
    """All heads move, or none; and what was acknowledged has happened."""
    path = ground.address("v.db")
    with savegame.open(path) as vault:
        for name in SEVERAL:
            for number in (1, 2):
                vault.thread(name).save(number)
    chance = random.Random()
    for _ in range(25):
        with Child(_move_heads, path) as child:
            assert child.next() == ["open"]
            time.sleep(chance.uniform(0.0, 0.1))
            promised = [line[1] for line in child.lines()]
            ground.disk.cut()
            child.kill()
        ground.disk.restore()
        with savegame.open(path) as vault:
            (state,) = {vault.thread(name).state() for name in SEVERAL}
            assert vault.verify().ok
            turns = vault.store.records(ThreadKey("default", SEVERAL[0]), "turn").items
            assert not promised or int(turns[0].value) >= promised[-1]
            assert not turns or state == 1 + int(turns[0].value) % 2


SEVERAL = ("a", "b", "c", "d")


def _move_heads(mouth: Mouth, path: str) -> None:
    store = savegame.open(path).store
    keys = [ThreadKey("default", name) for name in SEVERAL]
    turns = store.records(keys[0], "turn").items
    mouth.say("open")
    for turn in range(int(turns[0].value) + 1 if turns else 0, 1_000_000):
        moves = [MoveHead(key, 1 + turn % 2) for key in keys]
        store.commit([*moves, PutRecord(keys[0], "turn", "last", b"%d" % turn)])
        mouth.say("moved", turn)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ground", ["sqlite-ext4"], indirect=True)
def test_durability_process_stays_whole(ground: Ground) -> None:
    """What `durability="process"` does not promise may be lost; but no more than that, and nothing is damaged.

    A file store has no order without flushing: there it promises nothing about a power cut.
    """
    assert cut_over_and_over(ground, 30, mode="process")["damaged"] == 0


@pytest.mark.timeout(3600)
def test_without_flushing_the_cuts_are_noticed(ground: Ground) -> None:
    """The negative control: the same writer without flushing must lose saves, or the tests above prove nothing."""
    figures = cut_over_and_over(ground, 10, mode="off")
    assert figures["cuts_with_loss"] + figures["damaged"] > 0
