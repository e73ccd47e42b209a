"""What all tests share: vaults on each store; long campaigns run only when asked for, and only they draw new
random examples. The default run draws the same every time, so that it says something about the change being tested.
"""

from __future__ import annotations

import gc
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest
from addresses import ALL, IN_DATABASES, LASTING, Addresses, Opener, opening
from homes import IN_FILES, Home, at_home

from savegame.testing import StoreContract
from savegame.testing.postgres import postgres_server, postgres_url
from savegame.vault import Vault

__all__ = ["postgres_server", "postgres_url"]

hypothesis.settings.register_profile("steady", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("campaign", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("campaign" if "--campaign" in sys.argv else "steady")

gc.disable()  # until all tests are collected: nothing of those is garbage, and half of the time would go into looking

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a script: what tests start must hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


def lines_of_the_contract() -> dict[str, list[str]]:
    """The requirements that tests of the store contract show: those are shipped, so they carry no markers of ours."""
    lines: dict[str, list[str]] = {}
    for row in (Path(__file__).parents[1] / "docs" / "requirements.md").read_text(encoding="utf-8").splitlines():
        for test in re.findall(r"`testing/contract/\w+\.py::(\w+)`", row):
            lines.setdefault(test, []).append(row.split()[1])
    return lines


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is on memory or SQLite, or on no store, and takes no time worth mentioning."""
    if item.get_closest_marker("slow") or item.path.name.startswith(("test_file", "test_postgres")):
        return False
    callspec = getattr(item, "callspec", None)
    on = {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()
    return not on & {"file", "postgres"} and not {"postgres_server", "postgres_url"} & set(getattr(item, "fixturenames", ()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign", action="store_true", help="run the long crash, power-cut, fault and history campaigns too")
    parser.addoption("--quick", action="store_true", help="leave out what needs a server, files of the file store, or long")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shipped = lines_of_the_contract()
    for item in items:
        if isinstance(item, pytest.Function) and item.cls and issubclass(item.cls, StoreContract):
            for line in shipped.get(item.originalname, ()):
                item.add_marker(pytest.mark.requirement(line))
    if config.getoption("--quick"):
        items[:] = [item for item in items if is_quick(item)]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # first, so that none of them is left alone at the end
    if config.getoption("--campaign"):
        return
    skip = pytest.mark.skip(reason="a long campaign: run with --campaign")
    for item in items:
        if item.get_closest_marker("campaign"):
            item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is there now stays to the end: the collector looks at what tests make, not at all of them each time."""
    hypothesis.given(hypothesis.strategies.none())(lambda _: None)()  # makes what it later looks for among what is not frozen
    gc.collect()
    gc.freeze()
    gc.enable()


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


@pytest.fixture(params=ALL)
def home(request: pytest.FixtureRequest, tmp_path: Path, address_of: Addresses) -> Iterator[Home]:
    """Where the vaults of a test live, on each store."""
    yield from at_home(request.param, tmp_path / "home", address_of)


@pytest.fixture(params=LASTING)
def lasting(request: pytest.FixtureRequest, tmp_path: Path, address_of: Addresses) -> Iterator[Home]:
    """Like `home`, on stores that outlive a process."""
    yield from at_home(request.param, tmp_path / "home", address_of)


@pytest.fixture(params=IN_FILES)
def disk(request: pytest.FixtureRequest, tmp_path: Path, address_of: Addresses) -> Iterator[Home]:
    """Like `home`, on stores whose files a test looks at."""
    yield from at_home(request.param, tmp_path / "home", address_of)
