"""What surfaces ask before they act: threads and checkpoints with a prefix, and what a rewind would leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, takewhile
from typing import Final

from savegame.checkpoint import Checkpoint
from savegame.errors import CorruptionError
from savegame.thread import Thread
from savegame.vault import Vault

MOST_COMPLETED: Final = 100
"""How many checkpoints completion covers."""


def exists(thread: Thread) -> bool:
    """Whether a thread has a checkpoint, even without a head. Damaged threads count as existing."""
    try:
        return any(True for _ in thread.history(branches=True, limit=1))
    except CorruptionError:
        return True


def matching_threads(vault: Vault, prefix: str) -> Iterator[str]:
    """The ids of threads with a prefix, in order; an exact match comes first."""
    if prefix and exists(vault.thread(prefix)):
        yield prefix
    ids = (info.id for info in vault.threads(after=prefix or None, limit=None))
    yield from takewhile(lambda found: found.startswith(prefix), ids)


def matching_checkpoints(thread: Thread, prefix: str, characters: int | None = None) -> list[str]:
    """Names with a prefix: `head`, labels of the newest checkpoints, and their ids, cut to `characters`."""
    newest = list(thread.history(branches=True, limit=MOST_COMPLETED))
    names = ["head", *(point.label for point in newest if point.label), *(point.id[:characters] for point in newest)]
    return [name for name in dict.fromkeys(names) if name.startswith(prefix)]


def list_left_behind(thread: Thread, target: Checkpoint, *, branches: bool = False) -> Iterator[Checkpoint]:
    """Checkpoints that are not ancestors of the target, newest first: on the head's line, or with `branches` anywhere."""
    way = chain([target], thread.history(before=target))
    at = next(way, None)
    for entry in thread.history(branches=branches):
        while at is not None and at.seq > entry.seq:
            at = next(way, None)
        if at is None or at.id != entry.id:
            yield entry
        elif not branches:  # from here on, both lines are the same
            return
