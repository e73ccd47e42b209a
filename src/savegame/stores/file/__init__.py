"""The file store: a directory of JSON journals that people can read. `store.py` has FileStore."""

from savegame.stores.file.store import FileStore, open_url

__all__ = ["FileStore", "open_url"]
