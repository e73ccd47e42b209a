"""Which stores there are to test, by the names that tests are listed under, and how to open vaults on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import savegame
from savegame.vault import Vault

Opener = Callable[..., Vault]
Addresses = Callable[..., str]

ALL = ("memory", "file", "sqlite", "postgres")
LASTING = tuple(store for store in ALL if store != "memory")
"""Those that outlive a process."""
IN_DATABASES = tuple(store for store in LASTING if store != "file")
"""Those where users can have tables of their own."""


def placeholder(vault: Vault) -> str:
    """What stands for a value in the SQL of a vault's own connection."""
    return "?" if vault.store.scheme == "sqlite" else "%s"


def opening(store: str, address_of: Addresses) -> Iterator[Opener]:
    """A function that opens vaults on a store with the options given; all are closed at the end."""
    with ExitStack() as made:

        def open_one(name: str = "vault.db", **options: Any) -> Vault:
            return made.enter_context(savegame.open(address_of(store, name), **options))

        yield open_one
