"""What every surface asks before it acts: which threads and checkpoints begin with what somebody has typed so far, and what a
rewind would leave behind. Touches vault, thread, model, errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, takewhile
from typing import Final

from savegame.checkpoint import Checkpoint
from savegame.errors import CorruptionError
from savegame.thread import Thread
from savegame.vault import Vault

NEWEST: Final = 100
"""Of so many checkpoints the names are offered."""


def is_there(thread: Thread) -> bool:
    """Whether a thread has a checkpoint, be it without a head. What is damaged is there: what can be read of it, others say."""
    try:
        return any(True for _ in thread.history(branches=True, limit=1))
    except CorruptionError:
        return True


def threads_named(vault: Vault, begun: str) -> Iterator[str]:
    """The ids of threads that begin so, by id; the one whose whole id it is comes first."""
    if begun and is_there(vault.thread(begun)):
        yield begun
    ids = (info.id for info in vault.threads(after=begun or None, limit=None))
    yield from takewhile(lambda found: found.startswith(begun), ids)


def checkpoints_named(thread: Thread, begun: str, characters: int | None = None) -> list[str]:
    """What begins so of: `head`, the labels of the newest checkpoints, their ids, of which so many characters."""
    newest = list(thread.history(branches=True, limit=NEWEST))
    names = ["head", *(point.label for point in newest if point.label), *(point.id[:characters] for point in newest)]
    return [name for name in dict.fromkeys(names) if name.startswith(begun)]


def left_behind(thread: Thread, target: Checkpoint, *, branches: bool = False) -> Iterator[Checkpoint]:
    """What is not on the way to a checkpoint, newest first: of the head's line, or with `branches` of all."""
    way = chain([target], thread.history(before=target))
    at = next(way, None)
    for entry in thread.history(branches=branches):
        while at is not None and at.seq > entry.seq:
            at = next(way, None)
        if at is None or at.id != entry.id:
            yield entry
        elif not branches:  # from here on both lines are one
            return
