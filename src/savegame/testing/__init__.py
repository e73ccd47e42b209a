"""What savegame is tested with, for stores and vaults of others too. Needs pytest.

Subclass `StoreContract` and give it a store: whoever passes keeps every promise of `savegame.store`.
"""

import pytest

# Before the import, so that a failing promise shows its values in the test run of a third party too.
pytest.register_assert_rewrite("savegame.testing.contract")

from savegame.testing.contract import StoreContract  # noqa: E402

__all__ = ["StoreContract"]
