"""A clock that tests set, and stores that go by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from savegame import Vault
from savegame.store import Store
from savegame.stores.file import FileStore
from savegame.stores.memory import MemoryStore
from savegame.stores.sqlite import SQLiteStore

HOUR_US = 3_600_000_000
CLOCKED = ("memory", "file", "sqlite")
"""The stores whose clock a test can set."""


class Clock:
    """Microseconds since 1970, as a test sets them."""

    now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now


def clocked(store: str, place: Path, clock: Clock) -> Callable[[], Vault]:
    """Opens vaults on what one store keeps, by one clock."""

    class Clocked(SQLiteStore):
        def clock(self) -> int:
            return clock()

    memory = MemoryStore(clock=clock)
    openers: dict[str, Callable[[], Store]] = {
        "memory": lambda: memory,
        "file": lambda: FileStore(str(place / "v"), clock=clock),
        "sqlite": lambda: Clocked(str(place / "v.db")),
    }
    return lambda: Vault(openers[store]())
