"""LangGraph's own conformance suite, every test of it, on each store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from addresses import ALL
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.spec import (
    test_copy_thread,
    test_delete_for_runs,
    test_delete_thread,
    test_get_tuple,
    test_list,
    test_prune,
    test_put,
    test_put_writes,
)

import savegame
from savegame.adapters.langgraph import SavegameSaver

ConformanceTest = Callable[[SavegameSaver], Awaitable[None]]

SUITE: dict[Capability, list[ConformanceTest]] = {
    Capability.PUT: test_put.ALL_PUT_TESTS,
    Capability.PUT_WRITES: test_put_writes.ALL_PUT_WRITES_TESTS,
    Capability.GET_TUPLE: test_get_tuple.ALL_GET_TUPLE_TESTS,
    Capability.LIST: test_list.ALL_LIST_TESTS,
    Capability.DELETE_THREAD: test_delete_thread.ALL_DELETE_THREAD_TESTS,
    Capability.DELETE_FOR_RUNS: test_delete_for_runs.ALL_DELETE_FOR_RUNS_TESTS,
    Capability.COPY_THREAD: test_copy_thread.ALL_COPY_THREAD_TESTS,
    Capability.PRUNE: test_prune.ALL_PRUNE_TESTS,
}
del test_copy_thread, test_delete_for_runs, test_delete_thread, test_get_tuple, test_list, test_prune, test_put, test_put_writes


def each() -> list[Any]:
    return [
        pytest.param(conformance_test, id=f"{capability.value}-{conformance_test.__name__}")
        for capability, tests in SUITE.items()
        for conformance_test in tests
    ]


@pytest.mark.parametrize("conformance_test", each())
def test_conforms(conformance_test: ConformanceTest, saver: SavegameSaver) -> None:
    async def run() -> None:
        await conformance_test(saver)

    asyncio.run(run())


def test_there_are_81_tests_of_8_capabilities() -> None:
    """So that none is left out without a word when the suite changes."""
    assert set(SUITE) == set(Capability)
    assert len(Capability) == 8
    assert sum(map(len, SUITE.values())) == 81


@pytest.mark.parametrize("store", ALL)
def test_the_suite_says_full(store: str, address_of: Callable[..., str]) -> None:
    """The suite's own runner, which uses one saver for all tests of a capability, finds all eight and no failure."""
    numbers = iter(range(1000))

    async def factory() -> AsyncGenerator[SavegameSaver, None]:
        with savegame.open(address_of(store, f"{next(numbers)}.db")) as vault:
            yield SavegameSaver(vault)

    report = asyncio.run(validate(RegisteredCheckpointer("SavegameSaver", factory)))
    assert [name for result in report.results.values() for name in result.failures] == []
    assert sum(result.tests_passed for result in report.results.values()) == 81
    assert all(result.detected for result in report.results.values())
    assert report.conformance_level() == "FULL"
