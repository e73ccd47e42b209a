"""A vault on each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from addresses import ALL, IN_DATABASES

import savegame
from savegame.vault import Vault

Opener = Callable[..., Vault]
Addresses = Callable[..., str]


def opening(store: str, address_of: Addresses) -> Iterator[Opener]:
    """A function that opens vaults on a store with the options given; all are closed at the end."""
    with ExitStack() as made:

        def open_one(name: str = "vault.db", **options: Any) -> Vault:
            return made.enter_context(savegame.open(address_of(store, name), **options))

        yield open_one


@pytest.fixture(params=ALL)
def opened(request: pytest.FixtureRequest, address_of: Addresses) -> Iterator[Opener]:
    """Opens vaults on the store of the day."""
    yield from opening(request.param, address_of)


@pytest.fixture
def vault(opened: Opener) -> Vault:
    return opened()


@pytest.fixture
def on_disk(address_of: Addresses) -> Iterator[Opener]:
    """Like `opened`, on SQLite only."""
    yield from opening("sqlite", address_of)


@pytest.fixture(params=IN_DATABASES)
def in_database(request: pytest.FixtureRequest, address_of: Addresses) -> Iterator[Opener]:
    """Like `opened`, where several vaults share their data, and users can have tables beside it."""
    yield from opening(request.param, address_of)
