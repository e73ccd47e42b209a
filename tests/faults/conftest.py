"""Which store to break: the schemes of those that keep files, and addresses on all that outlive a process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from addresses import LASTING


@pytest.fixture(params=["file", "sqlite"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LASTING)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(store: str, address_of: Callable[..., str]) -> str:
    """Where a vault may be."""
    return address_of(store)
