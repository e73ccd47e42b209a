"""SIGKILL of the postmaster under writers: nothing that was acknowledged is lost, nothing is doubled, writers carry on."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable

import pytest
from writers import writing

import savegame
from savegame.errors import UnavailableError
from savegame.testing.faults import Child, Mouth
from savegame.testing.postgres import Cluster
from savegame.vault import Vault


@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=[pytest.mark.campaign, pytest.mark.timeout(3600)])])
@pytest.mark.slow
def test_a_server_that_is_killed_over_and_over_loses_nothing(kills: int, cluster: Cluster) -> None:
    chance = random.Random()
    with writing(cluster.url()) as writers:
        for _ in range(kills):
            writers.go_on()
            time.sleep(chance.uniform(0, 0.1))
            cluster.kill()
            time.sleep(chance.uniform(0, 0.5))
            cluster.start()
        writers.go_on()
        writers.stop()
    with savegame.open(cluster.url()) as vault:
        writers.check(vault)
    print(json.dumps({"kills": kills} | writers.figures))


def test_one_that_is_restarted_in_order_disturbs_nobody(cluster: Cluster) -> None:
    with writing(cluster.url(), 2) as writers:
        for _ in range(3):
            cluster.restart()
            writers.go_on()
        writers.stop()
    with savegame.open(cluster.url()) as vault:
        writers.check(vault)


def test_errors_that_somebody_keeps_hold_no_connections(cluster: Cluster) -> None:
    """Their frames have what was to be a connection; the page, for one, shows the last error until it reads again."""
    kept: list[UnavailableError] = []
    gc.disable()  # which would close unreferenced ones
    try:
        with savegame.open(f"{cluster.url()}?deadline=1&connections=2") as vault:
            vault.thread("t").save(1)
            cluster.stop()
            for _ in range(4):
                with pytest.raises(UnavailableError) as raised:
                    vault.thread("t").state()
                assert "in use" not in str(raised.value)
                kept.append(raised.value)
            cluster.start()
            assert vault.thread("t").state() == 1
    finally:
        gc.enable()


def turn_off_and_save(vault: Vault) -> None:
    with vault.connection() as db:
        db.execute("SET synchronous_commit TO off")
        vault.thread("t").update(append={"items": ["inside"]})


def turn_off_for_one_transaction(vault: Vault) -> None:
    with vault.connection() as db:
        vault.thread("t").update(append={"items": ["inside"]})
        db.execute("SET LOCAL synchronous_commit TO off")


@pytest.mark.parametrize("block", [turn_off_and_save, turn_off_for_one_transaction])
def test_no_block_can_make_what_was_acknowledged_be_lost(block: Callable[[Vault], None]) -> None:
    """The server flushes writes that no client waits for only every ten seconds: a commit that did not wait is gone with it."""
    with Cluster(fsync="on", wal_writer_delay="10s") as cluster:
        for _ in range(3):
            with savegame.open(cluster.url()) as vault:
                block(vault)
                cluster.kill()
                cluster.start()
                block(vault)
                for number in range(5):
                    vault.thread("t").update(append={"items": [number]})
                cluster.kill()
                cluster.start()
            with savegame.open(cluster.url()) as vault:
                assert vault.thread("t").state()["items"][-7:] == ["inside", "inside", 0, 1, 2, 3, 4]


def say_before_saving(mouth: Mouth, url: str) -> None:
    with savegame.open(url) as vault:
        for number in range(1_000_000):
            mouth.say(f"lie {number}")
            vault.thread("t").update(append={"items": [number]}, id=f"lie {number}")


def test_a_writer_that_lies_is_caught(cluster: Cluster) -> None:
    """The negative control: what was said before it was saved is missing after some kills, and that is seen."""
    for _ in range(20):
        with Child(say_before_saving, cluster.url()) as child:
            said = [child.next() for _ in range(5)]
            cluster.kill()
            child.kill()
            said += child.lines()
        cluster.start()
        with savegame.open(cluster.url()) as vault:
            if any(vault.find(name) is None for (name,) in said):
                return
            vault.thread("t").delete()
    pytest.fail("none of 20 kills found the lie out")
