"""Many conversations: is everything as fast with ten times as many of them?

The same work on a vault with a tenth of the conversations and on one with all, with equal numbers per agent: list one agent's
conversations, add a message, search right after adding a message, checkpoint an agent.
`savegame` is on SQLite, `savegame_file` on the readable file store.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import savegame
from bench import corpus
from bench.measure import Call, settle, summarise, summary, timed
from bench.sizes import Sizes

CHARS = 200
SAMPLES = 60


def many(scheme: str, directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Figures for a tenth (`few`) and for all (`many`), with the time that building and indexing took."""
    return {
        f"{name}_{what}": value
        for name, count in (("few", sizes.conversations // 10), ("many", sizes.conversations))
        for what, value in _measured(scheme, directory / name, count, sizes).items()
    }


def _measured(scheme: str, path: Path, count: int, sizes: Sizes) -> dict[str, Any]:
    agents = [f"agent-{number:03}" for number in range(max(1, count // sizes.per_agent))]
    chance = Random(f"{corpus.SEED}:{count}")
    with savegame.open(f"{scheme}:{path}") as vault:
        for agent in agents:
            vault.save_agent(savegame.AgentState(agent, agent, "scripted"))
        saves = summary(timed(partial(vault.save_conversation, one) for one in _conversations(agents, count, sizes)))
        ((first_us, _),) = timed([partial(vault.search, "needle")])  # indexes everything
        settle()
        return {
            "save": saves,
            "list": summarise(partial(_listed, vault, chance.choice(agents), sizes.per_agent) for _ in range(SAMPLES)),
            "add_message": summarise(_additions(vault, chance, count)),
            "search": summarise(_searches(vault, chance, count)),
            "checkpoint_agent": summarise(partial(vault.checkpoint_agent, chance.choice(agents)) for _ in range(SAMPLES)),
            "index_us": first_us,
            "search_bytes": vault.stats().sizes["search"],
            "disk_bytes": vault.stats().total_bytes,
        }


def _conversations(agents: list[str], count: int, sizes: Sizes) -> Iterator[savegame.Conversation]:
    for number in range(count):
        words = Random(f"{corpus.SEED}:conversation:{number}")
        roles = ("user", "assistant")
        messages = [{"role": roles[turn % 2], "content": corpus.text(words, CHARS)} for turn in range(sizes.said)]
        yield savegame.Conversation(agents[number % len(agents)], messages=messages, id=_name(number))  # type: ignore[arg-type]


def _name(number: int) -> str:
    return f"conversation-{number:06}"


def _listed(vault: savegame.Vault, agent: str, wanted: int) -> None:
    assert len(list(vault.conversations(agent))) <= wanted


def _additions(vault: savegame.Vault, chance: Random, count: int) -> Iterator[Call]:
    for _ in range(SAMPLES):
        name = _name(chance.randrange(count))
        vault.thread(name).latest()  # users read a conversation before they add to it
        yield partial(vault.add_message, name, savegame.Message.user(corpus.text(chance, CHARS)))


def _searches(vault: savegame.Vault, chance: Random, count: int) -> Iterator[Call]:
    """Each search finds the message that was just added, in any conversation."""
    for number in range(SAMPLES):
        name = _name(chance.randrange(count))
        vault.add_message(name, savegame.Message.user(f"needle{number:04} {corpus.text(chance, CHARS)}"))
        yield partial(_found, vault, f"needle{number:04}", name)


def _found(vault: savegame.Vault, word: str, name: str) -> None:
    assert [hit.thread_id for hit in vault.search(word)] == [name]


TASKS = {"many": partial(many, "file")}
