"""Doing something again when somebody else was quicker. Touches errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from savegame.errors import Busy, CheckpointNotFound, ConflictError, Fenced

T = TypeVar("T")

TRIES: Final = 1000
"""How often a read-modify-write is tried again when others keep moving the head."""

LOOKS: Final = 3
"""How often something is looked for that somebody may just have removed: what is not there then never was."""


def retried(attempt: Callable[[], T], *, gone: bool = False, moved: bool = True) -> T:
    """What `attempt` gives; done again if the head `moved` and, with `gone`, if a checkpoint went away meanwhile."""
    looks = LOOKS
    for _ in range(TRIES):
        try:
            return attempt()
        except (Busy, Fenced):
            raise
        except CheckpointNotFound:
            looks -= 1
            if not gone or not looks:
                raise
        except ConflictError as error:
            if not moved:
                raise
            last = error
    raise last
