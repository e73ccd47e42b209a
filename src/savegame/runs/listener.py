"""Hears on the loop that a run was asked to stop while something of it is awaited. Touches nothing but errors.

While a block awaits a model or a tool, a task asks the store twice a second; once the run is asked to stop, it ends the block
as `asyncio.timeout` does, so that it is never taken for a cancellation from outside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from savegame.errors import ClosedError, SavegameError

logger = logging.getLogger("savegame")

EVERY_S: Final = 0.5
"""Seconds between two looks."""


class StopListener:
    """Asks `is_stopped` as long as there is a block to tell."""

    def __init__(self, is_stopped: Callable[[], Awaitable[bool]]) -> None:
        self._is_stopped = is_stopped
        self._blocks: dict[asyncio.Timeout, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @contextmanager
    def telling(self, block: asyncio.Timeout, grace: float) -> Iterator[None]:
        """End a block, so many seconds after the run was asked to stop."""
        self._blocks[block] = grace
        if self._stopped:
            self._tell(block, grace)
        elif self._task is None:
            self._task = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            del self._blocks[block]
            if not self._blocks and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _listen(self) -> None:
        while not self._stopped:
            await asyncio.sleep(EVERY_S)
            try:
                self._stopped = await self._is_stopped()
            except ClosedError:
                return
            except SavegameError as error:  # the next look, or the next write, will show it
                logger.warning("whether the run is to stop cannot be read: %s", error)
        for block, grace in self._blocks.items():
            self._tell(block, grace)

    def _tell(self, block: asyncio.Timeout, grace: float) -> None:
        block.reschedule(asyncio.get_running_loop().time() + grace)
