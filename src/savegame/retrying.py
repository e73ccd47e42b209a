"""Doing something again when somebody else was quicker. Touches errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from savegame.errors import Busy, CheckpointNotFound, ConflictError, Fenced

T = TypeVar("T")

TRIES: Final = 1000
"""How often a read-modify-write is tried again when others keep moving the head."""


def retried(attempt: Callable[[], T], *, gone: bool = False) -> T:
    """What `attempt` gives; done again after a conflict and, with `gone`, when a checkpoint went away meanwhile."""
    for _ in range(TRIES):
        try:
            return attempt()
        except (Busy, Fenced):
            raise
        except (ConflictError, CheckpointNotFound) as error:
            if isinstance(error, CheckpointNotFound) and not gone:
                raise
            last = error
    raise last
