"""A vault on each store, and LangGraph's saver on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.vault import Vault

Opener = Callable[..., Vault]


@pytest.fixture(params=["memory", "file", "sqlite"])
def vault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Vault]:
    path = tmp_path / "vault.db"
    with savegame.open({"memory": "memory:", "file": f"file:{path}", "sqlite": str(path)}[request.param]) as vault:
        yield vault


@pytest.fixture
def saver(vault: Vault) -> SavegameSaver:
    return SavegameSaver(vault)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Opener]:
    """Opens vaults on one SQLite file; all are closed at the end."""
    made: list[Vault] = []

    def open_one(name: str = "vault.db", **options: Any) -> Vault:
        made.append(savegame.open(tmp_path / name, **options))
        return made[-1]

    yield open_one
    for vault in made:
        vault.close()
