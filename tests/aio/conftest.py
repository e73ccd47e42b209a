"""Asynchronous vaults on each store, and on one that waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from addresses import ALL, IN_DATABASES
from held import HeldStore

import savegame
from savegame import AsyncVault, Vault


@pytest.fixture(params=ALL)
def vault(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> Iterator[AsyncVault]:
    with savegame.open(address_of(request.param)) as opened:
        yield AsyncVault(opened)


@pytest.fixture(params=IN_DATABASES)
def in_database(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> Iterator[AsyncVault]:
    """Where users can have tables of their own, and saving takes a while."""
    with savegame.open(address_of(request.param)) as opened:
        yield AsyncVault(opened)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[AsyncVault]:
    with savegame.open(tmp_path / "vault.db") as opened:
        yield AsyncVault(opened)


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
def slow(store: HeldStore) -> Iterator[AsyncVault]:
    """A vault on the store that waits."""
    with Vault(store) as opened:
        yield AsyncVault(opened)
        store.go.set()
