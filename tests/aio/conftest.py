"""Asynchronous vaults on each store, and on one that waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from held import HeldStore

import savegame
from savegame import AsyncVault, Vault


@pytest.fixture(params=["memory", "sqlite"])
def vault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AsyncVault]:
    with savegame.open("memory:" if request.param == "memory" else tmp_path / "vault.db") as opened:
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
