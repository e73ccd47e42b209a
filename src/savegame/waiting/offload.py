"""Worker threads for calls that may wait, and what happens to such a call when its caller is cancelled. Touches errors.

A write that a worker has begun is waited for, and only then is the cancellation delivered: nobody is left not knowing. One
that no worker has begun is dropped, so it did not happen. A read may be abandoned: its worker ends it, nobody gets the
result. Never more calls at once than the width. No event loop is started, and none is remembered between calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from savegame.errors import ClosedError

T = TypeVar("T")


class Offload:
    """Runs calls in at most `width` threads of its own. May be used from any event loop, one after the other or at once."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._closed = False
        self._begin_life()
        _open.add(self)

    def _begin_life(self) -> None:
        """Threads of this process: at the start, and again in the child of a fork, which has none of its parent's."""
        self._pool = ThreadPoolExecutor(self._width, thread_name_prefix="savegame")

    async def read(self, call: Callable[[], T]) -> T:
        """What `call` gives; if the caller is cancelled, nobody waits for it."""
        return await asyncio.wrap_future(self._submit(partial(_told, call)))

    async def write(self, call: Callable[[], T]) -> T:
        """What `call` gives; if the caller is cancelled after a worker began it, it ends first."""
        outcome: _Outcome[T] = _Outcome()
        outcome.work = self._submit(partial(_deliver, call, outcome))
        try:
            return await outcome
        except asyncio.CancelledError as error:
            cause = None if outcome.cancelled() else outcome.exception()
            if cause is None or cause is error:
                raise
            raise error from cause
        finally:
            del outcome, call  # an error that is raised holds this frame, and must not hold what it came of

    async def close(self, last: Callable[[], None]) -> None:
        """Take no more calls, let those that were taken end, then do `last`. A second call does it again."""
        self._closed = True
        doorman = ThreadPoolExecutor(1, thread_name_prefix="savegame-close")  # whoever waits for the workers is none of them
        closing = doorman.submit(self._shut, last)
        doorman.shutdown(wait=False)
        await undisturbed(asyncio.wrap_future(closing))

    def _shut(self, last: Callable[[], None]) -> None:
        self._pool.shutdown()
        last()

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        try:
            return self._pool.submit(contextvars.copy_context().run, call)
        except RuntimeError as error:
            if not self._closed:
                raise
            raise ClosedError("the vault is closed; open it again") from error

    def after_fork_in_child(self) -> None:
        """Begin anew, unless it was closed."""
        if not self._closed:
            self._begin_life()


class _Outcome(asyncio.Future[T]):
    """What a worker will have to say. It is cancelled only if no worker has begun: else its task hears of it afterwards."""

    work: Future[None]

    def cancel(self, msg: Any = None) -> bool:
        return self.work.cancel() and super().cancel(msg)


def _deliver(call: Callable[[], T], outcome: _Outcome[T]) -> None:
    """Make a call in a worker, and tell the loop what came of it."""
    try:
        tell = partial(outcome.set_result, _told(call))
    except BaseException as error:  # noqa: BLE001 - whoever awaits it gets it
        tell = partial(outcome.set_exception, error)
    try:
        outcome.get_loop().call_soon_threadsafe(tell)
    except RuntimeError:  # the loop was closed: nobody waits any more
        return
    finally:
        del call, outcome, tell  # as above


def _told(call: Callable[[], T]) -> T:
    try:
        return call()
    except StopIteration as error:  # a future cannot hold it: whoever awaits would wait for ever
        raise RuntimeError("what was called in a worker raised StopIteration") from error


async def undisturbed(ended: asyncio.Future[T]) -> T:
    """What a future gives. A cancellation waits for its end; its cause is what the future raised, if it did."""
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from ended.exception()
    return ended.result()


_open: weakref.WeakSet[Offload] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for offload in list(_open):
        offload.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
