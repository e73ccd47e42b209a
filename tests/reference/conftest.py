"""A vault on each store, and damage to what it keeps on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame import Vault

Opener = Callable[..., Vault]

ADDRESSES = {"memory": "memory:", "sqlite": "{}/vault.db", "file": "file:{}/vault"}
STORES = ("memory", "sqlite", "file")
ON_DISK = tuple(name for name in STORES if name != "memory")


def opening(store: str, root: Path) -> Iterator[Opener]:
    """A function that opens vaults on a store with the options given, the same one every time unless it is in memory."""
    with ExitStack() as made:

        def open_one(**options: Any) -> Vault:
            return made.enter_context(savegame.open(ADDRESSES[store].format(root), **options))

        yield open_one


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    yield from opening(request.param, tmp_path)


@pytest.fixture(params=ON_DISK)
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Like `opened`, where a closed vault can be opened again."""
    yield from opening(request.param, tmp_path)


@pytest.fixture
def vault(opened: Opener) -> Vault:
    return opened()


@pytest.fixture
def in_sqlite(tmp_path: Path) -> Iterator[Vault]:
    for open_one in opening("sqlite", tmp_path):
        yield open_one()


@pytest.fixture
def in_files(tmp_path: Path) -> Iterator[Vault]:
    for open_one in opening("file", tmp_path):
        yield open_one()


@pytest.fixture
def damage(tmp_path: Path) -> Callable[[str], None]:
    """Overwrites a text wherever it stands on disk. Every vault must be closed: nobody else may touch an open one's files."""

    def overwrite(text: str) -> None:
        found = [path for path in tmp_path.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
        assert found, f"{text!r} is in no file"
        for path in found:
            path.write_bytes(path.read_bytes().replace(text.encode(), b"#" * len(text.encode())))

    return overwrite
