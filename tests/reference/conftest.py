"""A vault on each store, and damage to what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from addresses import ALL, LASTING
from damage import overwrite

import savegame
from savegame import Vault

Opener = Callable[..., Vault]

Addresses = Callable[..., str]


def opening(address: str) -> Iterator[Opener]:
    """A function that opens vaults with the options given, the same one every time unless it is in memory."""
    with ExitStack() as made:

        def open_one(**options: Any) -> Vault:
            return made.enter_context(savegame.open(address, **options))

        yield open_one


@pytest.fixture(params=ALL)
def opened(request: pytest.FixtureRequest, address_of: Addresses) -> Iterator[Opener]:
    yield from opening(address_of(request.param))


@pytest.fixture(params=LASTING)
def lasting(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def on_disk(lasting: str, address_of: Addresses) -> Iterator[Opener]:
    """Like `opened`, where a closed vault can be opened again."""
    yield from opening(address_of(lasting))


@pytest.fixture
def vault(opened: Opener) -> Vault:
    return opened()


@pytest.fixture
def in_sqlite(address_of: Addresses) -> Iterator[Vault]:
    for open_one in opening(address_of("sqlite")):
        yield open_one()


@pytest.fixture
def in_files(address_of: Addresses) -> Iterator[Vault]:
    for open_one in opening(address_of("file", "vault")):
        yield open_one()


@pytest.fixture
def damage(lasting: str, address_of: Addresses, tmp_path: Path) -> Callable[[str], None]:
    """Overwrites a text wherever it stands. Every vault must be closed: nobody else may touch an open one's files."""

    def spoil(text: str) -> None:
        old, new = text.encode(), b"#" * len(text.encode())
        if lasting == "postgres":
            assert overwrite(address_of(lasting), old, new), f"{text!r} is in no row"
            return
        found = [path for path in tmp_path.rglob("*") if path.is_file() and old in path.read_bytes()]
        assert found, f"{text!r} is in no file"
        for path in found:
            path.write_bytes(path.read_bytes().replace(old, new))

    return spoil
