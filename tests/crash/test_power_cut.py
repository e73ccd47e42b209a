"""Power cuts, for real: an ext4 in a file is shut down without flushing anything, mounted again, and looked at.

Only what the child had said *before* the cut counts as promised. Measured on 100 cuts each: `durability="power"` loses
nothing; `durability="process"` (synchronous=NORMAL) stays whole but may lose the newest saves; without any flush nearly
every cut loses saves, which is the control that shows that these tests can fail.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import savegame
from savegame.errors import SavegameError
from savegame.testing.faults import Child, LoopDisk, Mouth, Oracle, save_for_ever, why_no_disks

pytestmark = pytest.mark.campaign


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    reason = why_no_disks()
    if reason:
        pytest.skip(reason)
    try:
        disk = LoopDisk(tmp_path)
    except OSError as error:
        pytest.skip(f"no loop mounts here: {error}")
    with disk:
        yield disk


def cut_over_and_over(disk: LoopDisk, cuts: int, *, mode: str, only: str = "") -> dict[str, int]:
    """Start a writer, cut the power at a random moment, mount again, compare, carry on."""
    figures = {"cuts": 0, "acked": 0, "cuts_with_loss": 0, "lost": 0, "damaged": 0, "unasked": 0}
    chance = random.Random()
    path = disk.mounted_on / "new" / "directories" / "v.db"
    oracle = Oracle()
    for number in range(1, cuts + 1):
        with Child(save_for_ever, str(path), 2, mode, only) as child:
            oracle.hear([child.next()])
            time.sleep(chance.uniform(0.01, 0.25))
            promised = child.said()
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
            path = path.with_name(f"v{number}.db")
            oracle = Oracle(acked=oracle.acked, surprises=oracle.surprises)
        figures["cuts"] += 1
        figures["cuts_with_loss"] += bool(oracle.lost)
        figures["lost"] += len(oracle.lost)
        oracle.lost.clear()
    figures |= {"acked": oracle.acked, "unasked": oracle.surprises}
    print(json.dumps({"mode": mode, "only": only, **figures}))
    return figures


@pytest.mark.timeout(3600)
def test_100_power_cuts_lose_nothing(disk: LoopDisk) -> None:
    figures = cut_over_and_over(disk, 100, mode="power")
    assert figures["acked"] > 500
    assert (figures["lost"], figures["damaged"]) == (0, 0)


@pytest.mark.parametrize("what", ["compact", "prune", "delete"])
@pytest.mark.timeout(3600)
def test_power_cuts_in_the_middle_of(what: str, disk: LoopDisk) -> None:
    figures = cut_over_and_over(disk, 25, mode="power", only=what)
    assert (figures["lost"], figures["damaged"]) == (0, 0)


@pytest.mark.timeout(3600)
def test_a_power_cut_right_after_the_first_save_in_new_directories(disk: LoopDisk) -> None:
    """The names of new directories and of the file must be as durable as what is in it."""
    for number in range(20):
        path = disk.mounted_on / f"a{number}" / "b" / "c" / "v.db"
        with Child(_save_once, str(path)) as child:
            assert child.next() == ["saved"]
            disk.cut()
        disk.restore()
        with savegame.open(path) as vault:
            assert vault.thread("t").state() == {"saved": True}


def _save_once(mouth: Mouth, path: str) -> None:
    vault = savegame.open(path)
    vault.thread("t").save({"saved": True})
    mouth.say("saved")
    time.sleep(60)


@pytest.mark.timeout(3600)
def test_durability_process_stays_whole(disk: LoopDisk) -> None:
    """What `durability="process"` does not promise may be lost; but no more than that, and nothing is damaged."""
    assert cut_over_and_over(disk, 30, mode="process")["damaged"] == 0


@pytest.mark.timeout(3600)
def test_without_flushing_the_cuts_are_noticed(disk: LoopDisk) -> None:
    """The negative control: the same writer with synchronous=OFF must lose saves, or the tests above prove nothing."""
    figures = cut_over_and_over(disk, 10, mode="off")
    assert figures["cuts_with_loss"] + figures["damaged"] > 0
