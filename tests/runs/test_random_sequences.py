"""Random sequences of runs, crashes, goings back, answers and undos: no effect is made twice unless that was allowed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from addresses import ALL
from broken_stores import Mortal
from effects_player import AsyncPlayer, BrokenPromise, Move, Player
from effects_world import World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from savegame.store import Store
from savegame.stores.file import FileStore
from savegame.stores.memory import MemoryStore
from savegame.stores.postgres import PostgresStore
from savegame.stores.sqlite import SQLiteStore

WEIGHTS = {
    "run": 6, "crash": 4, "rewind": 6, "fork": 2, "restore": 2, "carry": 1, "prune": 1, "remove": 1, "delete": 1, "retain": 1,
    "answer": 2, "resolve": 2, "stop": 1, "send": 1, "differ": 1, "undo": 3,
}  # fmt: skip
NAMES = tuple(name for name, weight in WEIGHTS.items() for _ in range(weight))
STORES: dict[str, Any] = {"memory": MemoryStore, "file": FileStore, "sqlite": SQLiteStore, "postgres": PostgresStore}

numbers = st.integers(0, 63)
moves = st.tuples(st.sampled_from(NAMES), numbers, numbers, numbers)
plans = st.lists(moves, min_size=4, max_size=12)
long_plans = st.lists(moves, min_size=6, max_size=30)
SHORT = settings(max_examples=100, print_blob=True, suppress_health_check=list(HealthCheck))
FEW = settings(SHORT, max_examples=10)
LONG = settings(SHORT, max_examples=1000)


def random_plan(seed: int) -> list[Move]:
    chance = random.Random(seed)
    begin: Move = ("run", 0, 3, 1)
    return [begin, *((chance.choice(NAMES), *(chance.randrange(64) for _ in range(3))) for _ in range(15))]


@pytest.fixture(scope="module", params=ALL)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One store for all sequences: each has namespaces of its own in it."""
    kind = type("MortalStore", (Mortal, STORES[request.param]), {})
    path = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        where = [str(path / "vault")]
        if request.param == "postgres":
            where = [stack.enter_context(request.getfixturevalue("postgres_server").fresh_database())]
        store = kind() if request.param == "memory" else kind(*where, durability="process")
        yield Stage(stack.enter_context(closing(store)), path)


class Stage:
    """Where sequences are played."""

    def __init__(self, store: Store, path: Path) -> None:
        self.store, self.path = store, path

    def play(self, plan: Sequence[Move], kind: type[Player] = Player, **everywhere: Any) -> None:
        world = World()
        self.store.moment = world.moment  # type: ignore[attr-defined]
        kind(self.store, uuid.uuid4().hex, self.path, world, **everywhere).play(plan)


@SHORT
@given(plan=plans)
def test_no_effect_is_made_twice_unless_that_was_allowed(stage: Stage, plan: list[Move]) -> None:
    stage.play(plan)


@pytest.mark.campaign
@pytest.mark.timeout(0)
@LONG
@given(plan=long_plans)
def test_no_effect_is_made_twice_in_a_thousand_long_sequences(stage: Stage, plan: list[Move]) -> None:
    stage.play(plan)


@FEW
@given(plan=plans)
def test_nor_in_an_asynchronous_program(stage: Stage, plan: list[Move]) -> None:
    stage.play(plan, AsyncPlayer)


@pytest.mark.campaign
@pytest.mark.timeout(0)
@LONG
@given(plan=long_plans)
def test_nor_in_a_thousand_asynchronous_ones(stage: Stage, plan: list[Move]) -> None:
    stage.play(plan, AsyncPlayer)


def test_the_control_sees_what_happened_before_there_were_these_promises(stage: Stage) -> None:
    """The same world, and tools that say of themselves that they may be repeated: then they are."""
    seen = [seed for seed in range(20) if "intentions on its line" in broken_promise(stage, seed, repeat="run")]
    assert len(seen) > 5


def broken_promise(stage: Stage, seed: int, **everywhere: Any) -> str:
    try:
        stage.play(random_plan(seed), **everywhere)
    except BrokenPromise as broken:
        return str(broken)
    return ""
