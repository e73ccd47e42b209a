"""A vault fixture for tests of agents. Needs pytest.

`from savegame.testing import vault` in a conftest.py makes it available to the tests there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from savegame.opening import open_vault
from savegame.vault import Vault


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    """An empty vault on a real SQLite file. After a test that passes, the vault must verify."""
    with open_vault(tmp_path / "vault.db", durability="process") as opened:
        yield opened
        report = opened.verify()
        assert report.ok, "; ".join(map(str, report.problems))
