"""Trying again after a conflict, a bounded number of times. Touches errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from savegame.errors import Busy, CheckpointNotFound, ConflictError, Fenced

T = TypeVar("T")

TRIES: Final = 1000
"""How often a read-modify-write is tried when others keep moving the head."""

PLANS: Final = 20
"""How often something is tried that reads a whole thread, or several: appends alone do not make it fail."""

LOOKS: Final = 3
"""How often something is looked for that somebody may just have removed: what is not there then never was."""


def retried(attempt: Callable[[], T], *, gone: bool = False, moved: bool = True, tries: int = TRIES) -> T:
    """The result of `attempt`, retried if the head `moved` and, with `gone`, if a checkpoint was removed meanwhile.

    Raises ConflictError after that many `tries`.
    """
    looks = LOOKS
    for _ in range(tries):
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
    raise gave_up(last, tries) from last


def gave_up(last: Exception, tries: int) -> ConflictError:
    """The error after the last of so many attempts."""
    expected, found = (last.expected, last.found) if isinstance(last, ConflictError) else (None, None)
    message = f"{last}; gave up after {tries} attempts: try again when fewer others write to it"
    return ConflictError(message, expected=expected, found=found)
