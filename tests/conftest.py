"""What all tests share: vaults on each store; long campaigns run only when asked for, and only they draw new
random examples. The default run draws the same every time, so that it says something about the change being tested.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest
from addresses import ALL, IN_DATABASES, Addresses, Opener, opening

from savegame.testing.postgres import postgres_server, postgres_url
from savegame.vault import Vault

__all__ = ["postgres_server", "postgres_url"]

hypothesis.settings.register_profile("steady", derandomize=True, database=None)
if "--campaign" not in sys.argv:
    hypothesis.settings.load_profile("steady")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a script: what tests start must hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign", action="store_true", help="run the long crash, power-cut, fault and history campaigns too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--campaign"):
        return
    skip = pytest.mark.skip(reason="a long campaign: run with --campaign")
    for item in items:
        if item.get_closest_marker("campaign"):
            item.add_marker(skip)


@pytest.fixture
def address_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Addresses]:
    """Where a store's vault of some name is, in this test. PostgreSQL is started when it is first asked for."""
    databases: dict[str, str] = {}
    with ExitStack() as stack:

        def address(store: str, name: str = "vault.db") -> str:
            if store != "postgres":
                return {"memory": "memory:", "file": f"file:{tmp_path / name}", "sqlite": f"sqlite:{tmp_path / name}"}[store]
            if name not in databases:
                databases[name] = stack.enter_context(request.getfixturevalue("postgres_server").fresh_database())
            return databases[name]

        yield address


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
