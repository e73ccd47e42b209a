"""Which stores there are to test, by the names that tests are listed under."""

from __future__ import annotations

from savegame.vault import Vault

ALL = ("memory", "file", "sqlite", "postgres")
LASTING = tuple(store for store in ALL if store != "memory")
"""Those that outlive a process."""
IN_DATABASES = tuple(store for store in LASTING if store != "file")
"""Those where users can have tables of their own."""


def placeholder(vault: Vault) -> str:
    """What stands for a value in the SQL of a vault's own connection."""
    return "?" if vault.store.scheme == "sqlite" else "%s"
