"""A vault on each store that outlives a process, and a log of what was done to the world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import LASTING
from agents import Agent, Log, prepare
from async_agents import AsyncAgent
from faces import FACES, Face


@pytest.fixture(params=LASTING)
def address(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> str:
    """Where a vault is that an agent can work in."""
    return prepare(address_of(request.param))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "effects")


@pytest.fixture(params=[Agent, AsyncAgent], ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> type[Agent]:
    """An agent of each colour."""
    found: type[Agent] = request.param
    return found


@pytest.fixture(params=FACES.values(), ids=FACES.keys())
def face(request: pytest.FixtureRequest) -> type[Face]:
    """A run of each colour behind one face."""
    found: type[Face] = request.param
    return found
