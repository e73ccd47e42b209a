"""Retries after a conflict, a bounded number of times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from savegame.errors import Busy, CheckpointNotFound, ConflictError, Fenced

T = TypeVar("T")

TRIES: Final = 1000
"""Attempts of a read-modify-write while other writers move the head."""

PLANS: Final = 20
"""Attempts of operations that read whole threads; appends alone do not make them fail."""

OPENINGS: Final = 20
"""Attempts to open or lock files that others keep replacing or removing meanwhile."""

LOOKS: Final = 3
"""Attempts to find a checkpoint before concluding that it never existed."""


def retried(attempt: Callable[[], T], *, gone: bool = False, moved: bool = True, tries: int = TRIES) -> T:
    """Return the result of `attempt`; retry it if the head `moved` and, with `gone`, if a checkpoint was removed.

    Raises ConflictError after `tries` attempts.
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
    """The error after the last attempt."""
    expected, found = (last.expected, last.found) if isinstance(last, ConflictError) else (None, None)
    message = f"{last}; gave up after {tries} attempts; try again when fewer processes write to it"
    return ConflictError(message, expected=expected, found=found)
