"""A step, and `head~n`, without walking the line: whatever was branched off or removed, it is the checkpoint of the line."""

from __future__ import annotations

import random

import pytest

import savegame
from savegame.errors import CheckpointNotFound
from savegame.vault import Vault


def check_every_step(vault: Vault) -> None:
    thread = vault.thread("t")
    line = list(thread.history())
    for place, entry in enumerate(line):
        assert thread.load(entry.step).id == entry.id
        assert thread.load(f"head~{place}").id == entry.id
    for missing in {*range(line[0].step + 2)} - {entry.step for entry in line}:
        with pytest.raises(CheckpointNotFound):
            thread.load(missing)
    with pytest.raises(CheckpointNotFound):
        thread.load(f"head~{len(line)}")


@pytest.mark.parametrize("seed", range(4))
def test_steps_are_found_on_a_tree_with_holes(vault: Vault, seed: int) -> None:
    chance = random.Random(seed)
    thread = vault.thread("t")
    for number in range(40):
        thread.update(append={"items": [number]})
        if chance.random() < 0.2:
            thread.rewind(chance.choice(list(thread.history())).step)
    check_every_step(vault)
    for entry in chance.sample(list(thread.history(branches=True)), 6):
        thread.remove(entry)
    check_every_step(vault)


def test_steps_are_found_in_a_copy_of_a_pruned_thread(vault: Vault) -> None:
    thread = vault.thread("t")
    for number in range(6):
        thread.update(append={"items": [number]})
    thread.rewind(1)
    thread.update(append={"items": ["a branch"]})
    thread.rewind("head~1")
    thread.load(1)
    thread.rewind(next(entry for entry in thread.history(branches=True) if entry.step == 6))
    for step in (2, 3, 4):
        thread.remove(step)
    with savegame.open("memory:") as other:
        vault.copy_to(other)
        check_every_step(other)
