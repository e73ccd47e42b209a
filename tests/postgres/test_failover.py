"""A three-node Patroni cluster whose primary is killed or stands still under writers: nothing is lost, nothing doubled."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from three_nodes import Patroni, until, why_no_patroni
from writers import writing

import savegame
from savegame.errors import UnavailableError
from savegame.testing.faults import Child, Mouth

KILLED, FROZEN = 10, 3

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(why_no_patroni() is not None, reason=str(why_no_patroni())),
]


@pytest.fixture
def patroni() -> Iterator[Patroni]:
    with Patroni() as patroni:
        yield patroni


def whole(patroni: Patroni) -> int:
    """Wait until all nodes are there; which one is the primary."""
    until(lambda: patroni.is_whole() or None)
    primary: int = until(patroni.primary)
    return primary


def test_a_primary_that_is_killed_10_times_loses_nothing(patroni: Patroni) -> None:
    replaced = []
    with writing(patroni.url) as writers:
        for _ in range(KILLED):
            writers.go_on()
            primary = whole(patroni)
            killed = time.monotonic()
            patroni.kill(primary)
            until(lambda primary=primary: patroni.replaced(primary))
            writers.go_on()
            replaced.append(round(time.monotonic() - killed, 1))
            patroni.start(primary)
        whole(patroni)
        writers.stop()
    with savegame.open(patroni.url) as vault:
        writers.check(vault)
    print(json.dumps({"kills": KILLED, "lost": 0, "doubled": 0, "seconds until all wrote again": replaced} | writers.figures))


def save_to_one_server(mouth: Mouth, url: str, name: str) -> None:
    """Save to one server only, whatever becomes of it, until it fails or has long been one that may."""
    with savegame.open(url) as vault:
        mouth.say("open", vault.thread(name).save(0).id)
        mouth.hear()
        for number in range(1, 1_000):
            mouth.say("begins", number)
            try:
                saved = vault.thread(name).save(number)
            except UnavailableError as error:
                mouth.say("failed", error.checkpoint_id)
                return
            mouth.say("saved", saved.id)


def test_a_primary_that_stood_still_3_times_accepts_nothing_afterwards(patroni: Patroni) -> None:
    accepted = []
    with writing(patroni.url) as writers:
        for number in range(FROZEN):
            writers.go_on()
            primary = whole(patroni)
            with Child(save_to_one_server, f"{patroni.url_of(primary)}&deadline=20", f"frozen {number}") as loyal:
                accepted.append(loyal.next()[1])
                with patroni.frozen(primary):
                    until(lambda primary=primary: patroni.replaced(primary))
                    writers.go_on()
                    loyal.go()
                said = loyal.rest()
            accepted += [checkpoint_id for what, checkpoint_id in said if what == "saved"]
            whole(patroni)
        writers.go_on()
        writers.stop()
    with savegame.open(patroni.url) as vault:
        writers.check(vault)
        assert [vault.find(one) is not None for one in accepted] == [True] * len(accepted), "the frozen one accepted a save"
    print(json.dumps({"freezes": FROZEN, "lost": 0, "accepted by the frozen one": len(accepted) - FROZEN} | writers.figures))
