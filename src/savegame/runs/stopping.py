"""Stopping a run from outside, and holding a thread for a moment without running it.

A run that is live is asked by a record with its epoch; otherwise the thread is halted at once, under a lease of our own. Every
holder looks for such a record once more when it has released its lease, and a caller of `stop` looks at the lease once more:
so one of the two sees the other. Touches core, inbox, idle, lease, timeline and what is below them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from savegame.errors import Busy, ConflictError, Fenced, SavegameError, ThreadNotFound
from savegame.runs import inbox
from savegame.runs.boundary import OVER
from savegame.runs.core import RunCore
from savegame.runs.idle import is_held
from savegame.runs.lease import Hold
from savegame.runs.toolbox import Toolbox
from savegame.timeline.companions import INBOX
from savegame.timeline.policy import Strategy
from savegame.timeline.timeline import Timeline
from savegame.waiting.retrying import TRIES, gave_up

logger = logging.getLogger("savegame")

MOMENT_US: Final = 30_000_000
"""For how many microseconds a lease is taken to write to a thread outside of a run."""


@contextmanager
def briefly(thread: Timeline) -> Iterator[Hold]:
    """Hold a thread to write to it outside of a run. What was stale stays stale, unless it is released inside."""
    hold = Hold(thread.store, thread.key, MOMENT_US)
    try:
        yield hold
    finally:
        leave(thread, hold, stale=hold.taken_from is not None)


def leave(thread: Timeline, hold: Hold, *, stale: bool) -> None:
    """Release a lease, or let it expire. If a stop came too late to be seen before, the thread is halted now."""
    hold.release(stale=stale)
    try:
        request = None if hold.left_running else inbox.read_stop(thread)
        if request is not None and request.epoch == hold.epoch:
            stop_now(thread, request.reason)
    except Busy:  # the caller of `stop`, who finds the lease released, or the next run
        return
    except SavegameError as error:  # it must not hide how the run ended
        logger.warning("thread %r: whether it was asked to stop is unknown: %s", thread.id, error)


def stop(thread: Timeline, reason: str) -> bool:
    """`Vault.stop`."""
    last = ConflictError(f"thread {thread.id!r}: its runs change too quickly to stop one")
    asked = False
    for _ in range(TRIES):
        row = thread.row()
        if row is None or not (row.head or row.lease):
            raise ThreadNotFound(f"thread not found: {thread.id!r} has no checkpoints and no run")
        try:
            if not is_held(row, thread.store.clock()):
                before = stop_now(thread, reason)
                return before not in OVER or (asked and before == "halted")  # a holder that we asked obeyed meanwhile
            if row.lease is not None and _ask(thread, row.lease.epoch, reason):
                return True
            asked = True
        except (Busy, Fenced) as error:  # the lease changed hands
            last = error
    raise gave_up(last, TRIES) from last


def _ask(thread: Timeline, epoch: int, reason: str) -> bool:
    """Ask the run with an epoch to stop. Returns False if it ended before that."""
    asked = {"epoch": epoch, "reason": reason, "at": thread.store.clock(), "mail": inbox.read(thread).newest}
    thread.commit([thread.put(INBOX, inbox.STOP, asked, epoch=epoch)])
    row = thread.row()
    return row is not None and row.lease is not None and row.lease.epoch == epoch


def stop_now(thread: Timeline, reason: str) -> str:
    """Halt a thread that no run holds, unless it has ended. Returns the status that it had. Raises Busy."""
    hold = Hold(thread.store, thread.key, MOMENT_US)
    done = False
    try:
        core = RunCore(thread, Toolbox(), hold, Strategy("after_tool_call"))
        before = str.__str__(core.status)
        if before not in OVER:
            core.stop(reason)
        done = True
        return before
    finally:
        hold.release(stale=hold.taken_from is not None and not done)
