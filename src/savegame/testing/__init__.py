"""Savegame's test tools, for other projects too. Needs pytest; `VaultMachine` also needs hypothesis.

Import the fixture `vault` in a conftest.py to get an empty vault per test. Subclass `StoreContract` with your store: if it
passes, it keeps every promise of `savegame.store`. Subclass `VaultMachine` with your vault: Hypothesis compares it with a
plain model.
"""

from typing import TYPE_CHECKING, Any

import pytest

# Before the imports, so that failing asserts show their values in test runs of other projects too.
pytest.register_assert_rewrite("savegame.testing.contract", "savegame.testing.machine", "savegame.testing.fixtures")

from savegame.testing.contract import StoreContract  # noqa: E402
from savegame.testing.fixtures import vault  # noqa: E402
from savegame.testing.model import ModelVault, same  # noqa: E402

if TYPE_CHECKING:
    from savegame.testing.machine import VaultMachine

__all__ = ["ModelVault", "StoreContract", "VaultMachine", "same", "vault"]


def __getattr__(name: str) -> Any:
    if name == "VaultMachine":
        from savegame.testing.machine import VaultMachine

        return VaultMachine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
