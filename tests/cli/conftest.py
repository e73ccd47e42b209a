"""A vault with a bit of everything on each store that outlives a process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from addresses import IN_DATABASES, LASTING
from filled import fill


@pytest.fixture(params=LASTING)
def any_store(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> str:
    """The address of a filled vault on any store that outlives a process."""
    address = address_of(request.param)
    fill(address)
    return address


@pytest.fixture(params=IN_DATABASES)
def store(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> str:
    """The same in a database: what holds in both is taken to hold in files."""
    address = address_of(request.param)
    fill(address)
    return address


@pytest.fixture
def on_disk(address_of: Callable[..., str]) -> str:
    """The address of a filled vault in an SQLite file, for what does not depend on the store."""
    address = address_of("sqlite")
    fill(address)
    return address
