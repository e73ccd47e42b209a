"""A site on each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from addresses import ALL
from pages_site import Site, fill, site_on

import savegame
from savegame.vault import Vault


@pytest.fixture(params=ALL)
def vault(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> Iterator[Vault]:
    with savegame.open(address_of(request.param)) as opened:
        yield opened


@pytest.fixture
def site(vault: Vault) -> Iterator[Site]:
    fill(vault)
    with site_on(vault) as made:
        yield made


@pytest.fixture
def quick_vault() -> Iterator[Vault]:
    """In memory, for what does not depend on the store."""
    with savegame.open("memory:") as opened:
        yield opened


@pytest.fixture
def quick_site(quick_vault: Vault) -> Iterator[Site]:
    fill(quick_vault)
    with site_on(quick_vault) as made:
        yield made
