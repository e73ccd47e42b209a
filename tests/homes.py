"""Where the vaults of one test live: opened again as another program would, with a clock of the test's, damaged on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from addresses import Addresses
from damage import overwrite

import savegame
from savegame.store import Store
from savegame.stores.file import FileStore
from savegame.stores.memory import MemoryStore
from savegame.stores.postgres import PostgresStore
from savegame.stores.sqlite import SQLiteStore
from savegame.vault import Vault

IN_FILES = ("sqlite", "file")


class Home:
    """Vaults on one store: all that it opens have the same data."""

    def __init__(self, store: str, path: Path, database: str = "") -> None:
        self.store = store
        self.path = path
        self.url = {"memory": "memory:", "sqlite": str(path / "v.db"), "file": f"file:{path}", "postgres": database}[store]
        self._memory: Store | None = None
        self._opened: list[Vault] = []

    def open(self, **options: Any) -> Vault:
        if self.store != "memory":
            return self._kept(savegame.open(self.url, **options))
        self._memory = self._memory or MemoryStore()
        return self._kept(Vault(self._memory, **options))

    def with_clock(self, clock: Callable[[], int]) -> Vault:
        """A vault whose clock is the test's, in microseconds since 1970."""
        return self._kept(Vault(_CLOCKED[self.store](self, clock)))

    def _kept(self, vault: Vault) -> Vault:
        self._opened.append(vault)
        return vault

    def close(self) -> None:
        for vault in self._opened:
            vault.close()
        self._opened.clear()

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file())

    def damage(self, text: bytes) -> None:
        """Change one letter of a text that the store holds once. Closes every vault."""
        self.close()
        wrong = text[:-1] + bytes((text[-1] ^ 1,))
        if self.store == "postgres":
            assert overwrite(self.url, text, wrong) == 1
            return
        (found,) = [path for path in self.files() if text in path.read_bytes()]
        data = found.read_bytes()
        assert data.count(text) == 1
        found.write_bytes(data.replace(text, wrong))


def _clocked(store: Any, home: Home, clock: Callable[[], int]) -> Store:
    clocked: Store = type("Clocked", (store,), {"clock": lambda _: clock()})(home.url)
    return clocked


_CLOCKED: dict[str, Callable[[Home, Callable[[], int]], Store]] = {
    "memory": lambda _, clock: MemoryStore(clock),
    "sqlite": partial(_clocked, SQLiteStore),
    "file": lambda home, clock: FileStore(str(home.path), clock=clock),
    "postgres": partial(_clocked, PostgresStore),
}


def at_home(store: str, path: Path, address_of: Addresses) -> Iterator[Home]:
    home = Home(store, path, address_of(store) if store == "postgres" else "")
    yield home
    home.close()
