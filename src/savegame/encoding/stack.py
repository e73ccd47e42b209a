"""Packing nested extensions without using up the stack: how deep ormsgpack may go before `codec` takes over. Pure.

ormsgpack calls back for every extension, and extensions may be inside each other; a stack of 256 KB must be enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import ormsgpack

from savegame.encoding.raw import MAX_DEPTH, OPTIONS

SPARE: Final = 5
"""Levels that ormsgpack accepts beyond our maximum."""

PACKED, UNPACKED = 3, 8
"""Nested extensions left to ormsgpack. It calls back for each, which uses a lot of the stack."""

PLAIN_LEVELS: Final = 31
"""Levels of plain data that ormsgpack packs inside each extension, so that a stack of 256 KB is enough."""


class PackingState(threading.local):
    """The state of the calls of one thread."""

    depth = 0
    """How many nested extensions are being packed or unpacked."""
    cause: BaseException | None = None
    """What a hook raised: ormsgpack replaces it by its own error."""


class Room:
    """A list nested so deeply that ormsgpack accepts only a few more levels inside it."""

    LEVELS: Final = MAX_DEPTH + SPARE - PLAIN_LEVELS

    def __init__(self) -> None:
        self._inner: list[Any] = [None]
        self._outer = self._inner
        for _ in range(self.LEVELS - 1):
            self._outer = [self._outer]

    def pack(self, value: Any, hook: Callable[[Any], Any]) -> bytes:
        """The bytes of a value. Raises TypeError."""
        self._inner[0] = value
        try:
            return ormsgpack.packb(self._outer, hook, OPTIONS)[self.LEVELS :]
        finally:
            self._inner[0] = None


class _Rooms(threading.local):
    """One room per level of nested extensions."""

    def __init__(self) -> None:
        self.all = [Room() for _ in range(PACKED + 1)]


rooms: Final = _Rooms()
