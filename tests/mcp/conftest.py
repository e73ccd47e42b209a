"""Clients over standard input and output on every store that lasts, and in this process on a memory store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from addresses import LASTING
from desk import Desk, command, desk_at

import savegame
from savegame.mcp import server_on


@pytest.fixture(params=LASTING)
def store(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> str:
    return address_of(request.param)


@pytest.fixture
def stdio(store: str) -> Iterator[Desk]:
    """A client that started `savegame mcp` on the store of the day."""
    with desk_at(command(store)) as desk:
        yield desk


@pytest.fixture
def vault() -> Iterator[savegame.Vault]:
    with savegame.open("memory:") as vault:
        yield vault


@pytest.fixture
def desk(vault: savegame.Vault) -> Iterator[Desk]:
    """A client in this process, for what does not depend on the way."""
    with desk_at(server_on(vault)) as desk:
        yield desk
