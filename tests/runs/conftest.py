"""A vault on each store that outlives a process, and a log of what was done to the world."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents import Log, prepare


@pytest.fixture(params=["file", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a vault is that an agent can work in."""
    return prepare(f"{request.param}:{tmp_path / 'v.db'}")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "effects")
