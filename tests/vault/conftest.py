"""A vault on each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame.vault import Vault

Opener = Callable[..., Vault]


@pytest.fixture(params=["memory", "file", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens vaults with the options given, on the store of the day; all are closed at the end."""
    made: list[Vault] = []

    def open_one(name: str = "vault.db", **options: Any) -> Vault:
        url = {"memory": "memory:", "file": f"file:{tmp_path / name}", "sqlite": str(tmp_path / name)}[request.param]
        made.append(savegame.open(url, **options))
        return made[-1]

    yield open_one
    for vault in made:
        vault.close()


@pytest.fixture
def vault(opened: Opener) -> Vault:
    return opened()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Opener]:
    """Like `opened`, on SQLite only."""
    made: list[Vault] = []

    def open_one(name: str = "vault.db", **options: Any) -> Vault:
        made.append(savegame.open(tmp_path / name, **options))
        return made[-1]

    yield open_one
    for vault in made:
        vault.close()
