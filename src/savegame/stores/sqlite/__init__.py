"""The SQLite store, the embedded default. `store.py` has SQLiteStore."""

from savegame.stores.sqlite.store import SQLiteStore, open_url

__all__ = ["SQLiteStore", "open_url"]
