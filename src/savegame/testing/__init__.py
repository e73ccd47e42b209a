"""What savegame is tested with, for stores and vaults of others too. Needs pytest and hypothesis.

Subclass `StoreContract` and give it a store: whoever passes keeps every promise of `savegame.store`. Subclass
`VaultMachine` and give it a vault: Hypothesis drives it against a plain model.
"""

import pytest

# Before the import, so that a failing promise shows its values in the test run of a third party too.
pytest.register_assert_rewrite("savegame.testing.contract", "savegame.testing.machine")

from savegame.testing.contract import StoreContract  # noqa: E402
from savegame.testing.machine import VaultMachine  # noqa: E402
from savegame.testing.model import ModelVault, same  # noqa: E402

__all__ = ["ModelVault", "StoreContract", "VaultMachine", "same"]
