"""Many processes on few threads and fewer leases: every history is one line without a gap, and a lease has one holder."""

from __future__ import annotations

import random
import time
from itertools import groupby

import pytest

import savegame
from savegame import Busy
from savegame.testing.faults import Mouth, together
from savegame.testing.postgres import Cluster

LEASES = 4
TENURE = 3
"""How often a holder of a lease saves before it gives it back."""


def append_and_fight(mouth: Mouth, url: str, who: int, threads: int, seconds: float) -> None:
    """Append to threads at random, and now and then work under a lease; say how often each was done."""
    chance = random.Random(who)
    done = dict.fromkeys([f"open {number}" for number in range(threads)], 0)
    tenures = 0
    with savegame.open(url) as vault:
        mouth.say("ready")
        mouth.hear()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name = f"open {chance.randrange(threads)}"
            vault.thread(name).update(append={"items": [[who, done[name]]]})
            done[name] += 1
            tenures += chance.random() < 0.2 and held(vault, f"leased {chance.randrange(LEASES)}", [who, tenures])
    mouth.say(who, tenures, list(done.values()))


def held(vault: savegame.Vault, name: str, tenure: list[int]) -> bool:
    """Work under a lease, unless another process does."""
    try:
        with vault.run(name) as run:
            for number in range(TENURE):
                run.state["items"] = [*run.state.get("items", []), [*tenure, number]]
                run.save()
    except Busy:
        return False
    return True


def items_of_one_line(vault: savegame.Vault, name: str) -> list[list[int]]:
    """What was appended to a thread, one by each checkpoint; fails if it is not one line without a gap."""
    entries = list(vault.thread(name).history(newest_first=False, branches=True))
    assert [entry.step for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])][: len(entries)]
    items: list[list[int]] = (vault.thread(name).state() or {"items": []})["items"]
    assert len(items) == len(entries)
    return items


def fought(url: str, processes: int, threads: int, seconds: float) -> int:
    """Let processes work at once and check what they left; the number of appends."""
    savegame.open(url).close()
    told = [lines[-1] for lines in together(append_and_fight, [(url, who, threads, seconds) for who in range(processes)])]
    with savegame.open(url) as vault:
        for place in range(threads):
            items = items_of_one_line(vault, f"open {place}")
            for who, _, counts in told:
                assert [number for one, number in items if one == who] == list(range(counts[place]))
        tenures = []
        for place in range(LEASES):
            items = items_of_one_line(vault, f"leased {place}")
            runs = [list(group) for _, group in groupby(items, key=lambda item: item[:2])]
            assert all([number for *_, number in run] == list(range(TENURE)) for run in runs), "two held a lease at once"
            tenures += [run[0][:2] for run in runs]
        assert sorted(tenures) == [[who, number] for who, count, _ in told for number in range(count)]
        assert vault.verify().ok
    return sum(sum(counts) for *_, counts in told)


def test_8_processes_append_to_8_threads_and_fight_for_4_leases(cluster: Cluster) -> None:
    assert fought(cluster.url(), 8, 8, 5.0) > 100


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_32_processes_append_to_32_threads_and_fight_for_4_leases(cluster: Cluster) -> None:
    print({"appends": fought(cluster.url(), 32, 32, 60.0)})
