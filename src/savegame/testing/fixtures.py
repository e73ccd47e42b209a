"""A vault for the tests of people who use savegame. Needs pytest. Touches opening.

`from savegame.testing import vault` in a conftest.py makes it known to the tests beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from savegame.opening import open_vault
from savegame.vault import Vault


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    """An empty vault on a real SQLite file of its own. If the test succeeds, everything in it has to be intact."""
    with open_vault(tmp_path / "vault.db", durability="process") as opened:
        yield opened
        report = opened.verify()
        assert report.ok, "; ".join(map(str, report.problems))
