"""An agent's restore moves many threads at once; SIGKILL in the middle of it finds all of them moved, or none."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from addresses import LASTING

import savegame
from savegame import AgentState, Conversation, Message
from savegame.testing.faults import Child, Mouth

OLD, LATE = [f"c{number:02}" for number in range(12)], ["d1", "d2", "d3"]


def prepared(url: str) -> tuple[str, str]:
    """An agent with two checkpoints: in the second each conversation has a message more, and three more were begun."""
    with savegame.open(url) as vault:
        vault.save_agent(AgentState("helper", "Helper", "scripted"))
        for name in OLD:
            vault.save_conversation(Conversation("helper", id=name, messages=[Message.user("one")]))
        first = vault.checkpoint_agent("helper", "first")
        for name in OLD:
            vault.add_message(name, Message.user("two"))
        for name in LATE:
            vault.save_conversation(Conversation("helper", id=name))
        return first.id, vault.checkpoint_agent("helper", "second").id


def restore_for_ever(mouth: Mouth, url: str, first: str, second: str) -> None:
    with savegame.open(url) as vault:
        mouth.say("begins")
        while True:
            vault.restore_agent(first)
            mouth.say("first")
            vault.restore_agent(second)
            mouth.say("second")


def moment(vault: savegame.Vault) -> str:
    """Which checkpoint everything that belongs to the agent is at; fails if not all of it is at the same."""
    counts = {info.id: info.message_count for info in vault.conversations("helper")}
    first, second = dict.fromkeys(OLD, 1), dict.fromkeys(OLD, 2) | dict.fromkeys(LATE, 0)
    assert counts in (first, second)
    for name, count in counts.items():
        found = vault.load_conversation(name)
        assert found is not None
        assert found.message_count() == count
    return "first" if counts == first else "second"


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=[pytest.mark.campaign, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("store", LASTING)
def test_a_killed_restore_is_whole_or_not_there(store: str, rounds: int, address_of: Callable[..., str]) -> None:
    address = address_of(store)
    first, second = prepared(address)
    chance = random.Random()
    seen = set()
    for number in range(300):
        if number >= rounds and len(seen) == 2:  # on a busy machine it may take longer to see both
            break
        with Child(restore_for_ever, address, first, second) as child:
            assert child.next() == ["begins"]
            time.sleep(chance.uniform(0, 0.1))
            child.kill()
        with savegame.open(address) as vault:
            seen.add(moment(vault))
            assert vault.verify().ok
    assert seen == {"first", "second"}
