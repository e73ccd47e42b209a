"""The PostgreSQL store, for more than one machine. `store.py` has PostgresStore."""

from savegame.stores.postgres.store import PostgresStore, open_url

__all__ = ["PostgresStore", "open_url"]
