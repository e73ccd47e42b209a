"""A vault on each store, and LangGraph's saver on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from addresses import ALL
from recalling import Calls, calls_on

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.vault import Vault

Opener = Callable[..., Vault]


@pytest.fixture(params=ALL)
def vault(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> Iterator[Vault]:
    with savegame.open(address_of(request.param)) as vault:
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


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def awaited(request: pytest.FixtureRequest) -> bool:
    """Whether the verbs of a store are awaited."""
    colour: bool = request.param
    return colour


@pytest.fixture
def calls(vault: Vault, awaited: bool) -> Calls:
    """LangGraph's long-term memory on each store, in both colours."""
    return calls_on(vault, awaited=awaited)


@pytest.fixture
def on_memory() -> Iterator[Vault]:
    """A vault that costs nothing to open."""
    with savegame.open("memory:") as vault:
        yield vault
