"""The SQLite store against the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from savegame.store import Store
from savegame.stores.sqlite import SQLiteStore
from savegame.testing import StoreContract


class TestSQLiteStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SQLiteStore(str(tmp_path / "store.db"))
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, SQLiteStore)
        store.close()
        return SQLiteStore(store.path)
