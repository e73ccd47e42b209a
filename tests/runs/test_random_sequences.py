"""Random sequences of runs, crashes, goings back, answers and undos: no effect is made twice unless that was allowed.

The oracle and its words are in `effects_world`, the moves in `effects_player`. A sequence that breaks a promise is made as
short as it can be before it is shown; `play` plays it again.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from addresses import ALL
from broken_stores import Mortal
from effects_player import AsyncPlayer, BrokenPromise, Move, Player
from effects_world import World

from savegame.store import Store
from savegame.stores.file import FileStore
from savegame.stores.memory import MemoryStore
from savegame.stores.postgres import PostgresStore
from savegame.stores.sqlite import SQLiteStore

WEIGHTS = {
    "run": 6, "crash": 4, "rewind": 6, "fork": 2, "split": 2, "restore": 2, "carry": 1, "undo": 3,
    "prune": 1, "remove": 1, "delete": 1, "retain": 1, "answer": 2, "resolve": 2, "stop": 1, "send": 1, "differ": 1,
}  # fmt: skip
NAMES = tuple(name for name, weight in WEIGHTS.items() for _ in range(weight))
STORES: dict[str, Any] = {"memory": MemoryStore, "file": FileStore, "sqlite": SQLiteStore, "postgres": PostgresStore}
NUMBERS = range(64)
SHORT, LONG = 9, 20
IN_SHORT = 100
"""The number of short sequences in the default run."""


def random_plan(seed: Any, length: int) -> list[Move]:
    """A first run, then anything."""
    chance = random.Random(seed)
    begin: list[Move] = [("begin", 0, chance.choice(NUMBERS), chance.choice(NUMBERS)), ("run", 0, 3, 1)]
    return [*begin, *((chance.choice(NAMES), *(chance.choice(NUMBERS) for _ in range(3))) for _ in range(length))]


class Stage:
    """Where sequences are played: one store, in which each has namespaces of its own."""

    def __init__(self, name: str, store: Store, path: Path) -> None:
        self.name, self.store, self.path = name, store, path

    def play(self, plan: Sequence[Move], kind: type[Player] = Player, **everywhere: Any) -> None:
        world = World()
        self.store.moment = world.moment  # type: ignore[attr-defined]
        kind(self.store, uuid.uuid4().hex, self.path, world, **everywhere).play(plan)

    def broken(self, plan: Sequence[Move], kind: type[Player] = Player, **everywhere: Any) -> str | None:
        """Which promise a sequence breaks."""
        try:
            self.play(plan, kind, **everywhere)
        except BrokenPromise as broken:
            return str(broken)
        return None

    def play_many(self, count: int, length: int, kind: type[Player] = Player) -> None:
        """Sequences that are the same every time for a short length, others every time for a long one."""
        first = 0 if length == SHORT else random.SystemRandom().randrange(2**32)
        for seed in range(first, first + count):
            plan = random_plan(seed, length)
            if self.broken(plan, kind):
                shortest = shortened(plan, lambda one: self.broken(one, kind) is not None)
                pytest.fail(f"seed {seed} of length {length}, shortened:\n{shortest}\n{self.broken(shortest, kind)}")


def shortened(plan: list[Move], is_wrong: Callable[[list[Move]], bool]) -> list[Move]:
    """The plan without the moves, and with smaller numbers, that are not needed for it to go wrong."""
    candidates = [
        *(plan[:place] + plan[place + 1 :] for place in range(len(plan))),
        *(
            [*plan[:place], (*move[:at], number, *move[at + 1 :]), *plan[place + 1 :]]
            for place, move in enumerate(plan)
            for at in (1, 2, 3)
            for number in (0, 1, move[at] // 2)
            if number < move[at]
        ),
    ]
    better = next((one for one in candidates if is_wrong(one)), None)
    return plan if better is None else shortened(better, is_wrong)


@pytest.fixture(scope="module", params=ALL)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A store in which a process may end before and after each write."""
    kind = type("MortalStore", (Mortal, STORES[request.param]), {})
    path = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        where = [str(path / "vault")]
        if request.param == "postgres":
            where = [stack.enter_context(request.getfixturevalue("postgres_server").fresh_database())]
        store = kind() if request.param == "memory" else kind(*where, durability="process")
        yield Stage(request.param, stack.enter_context(closing(store)), path)


def test_no_effect_is_made_twice_unless_that_was_allowed(stage: Stage) -> None:
    stage.play_many(IN_SHORT, SHORT)


def test_nor_in_an_asynchronous_program(stage: Stage) -> None:
    stage.play_many(IN_SHORT // 5, SHORT, AsyncPlayer)


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", [Player, AsyncPlayer], ids=["sync", "async"])
def test_nor_in_a_thousand_long_sequences(stage: Stage, kind: type[Player]) -> None:
    stage.play_many(1000, LONG, kind)


def test_the_control_sees_what_happened_before_there_were_these_promises(stage: Stage) -> None:
    """The same sequences with tools that say of themselves that they may be repeated: then they are, and that is noticed."""
    found = [stage.broken(random_plan(seed, LONG), repeat="run") or "" for seed in range(6)]
    assert sum("intentions on its line" in one for one in found) > 1
