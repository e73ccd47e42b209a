"""What savegame is tested with, for others too. Needs pytest; `VaultMachine` needs hypothesis besides.

Import `vault` in a conftest.py: a fixture with an empty vault for every test. Subclass `StoreContract` and supply a
store: if it passes, it keeps every promise of `savegame.store`. Subclass `VaultMachine` and supply a vault: Hypothesis
drives it against a plain model.
"""

from typing import TYPE_CHECKING, Any

import pytest

# Before the import, so that a failing promise shows its values in the test run of a third party too.
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
