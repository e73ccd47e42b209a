"""Worker threads for blocking calls of asynchronous code, and what cancelling such a call means.

A write that has started runs to its end before the cancellation is delivered, so its outcome is always known. A write that
has not started is dropped. A read may be abandoned: its worker finishes, and the result is discarded. At most `width` calls
run at once. No event loop is started, and none is remembered between calls.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from savegame.errors import ClosedError
from savegame.waiting.forking import renew_in_child

T = TypeVar("T")


class Offload:
    """Runs calls in at most `width` threads. May be used from several event loops, even at the same time."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._closed = False
        self._begin_life()
        renew_in_child(self)

    def _begin_life(self) -> None:
        """Create the thread pool: at the start, and in the child of a fork, which inherits no threads."""
        self._pool = ThreadPoolExecutor(self._width, thread_name_prefix="savegame")

    async def read(self, call: Callable[[], T]) -> T:
        """Return the result of `call`; a cancelled caller does not wait for it."""
        return await asyncio.wrap_future(self._submit(partial(run_call, call)))

    async def write(self, call: Callable[[], T]) -> T:
        """Return the result of `call`; a cancelled caller waits for it if it has started."""
        outcome: _WriteFuture[T] = _WriteFuture()
        outcome.work = self._submit(partial(_deliver, call, outcome))
        try:
            return await outcome
        except asyncio.CancelledError as error:
            cause = None if outcome.cancelled() else outcome.exception()
            if cause is None or cause is error:
                raise
            raise error from cause
        finally:
            del outcome, call  # a raised error references this frame, which must not keep the call alive

    async def close(self, last: Callable[[], None]) -> None:
        """Refuse new calls, finish running ones, then call `last`. May be called again."""
        self._closed = True
        closer = ThreadPoolExecutor(1, thread_name_prefix="savegame-close")  # a worker cannot wait for the workers
        closing = closer.submit(self._shut, last)
        closer.shutdown(wait=False)
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
        """Create new threads, unless it was closed."""
        if not self._closed:
            self._begin_life()


class _WriteFuture(asyncio.Future[T]):
    """The result of a write. Cancelling it works only until a worker starts the write."""

    work: Future[None]

    def cancel(self, msg: Any = None) -> bool:
        return self.work.cancel() and super().cancel(msg)


def _deliver(call: Callable[[], T], outcome: _WriteFuture[T]) -> None:
    """Run a call in a worker, and set its outcome in the loop."""
    try:
        deliver = partial(outcome.set_result, run_call(call))
    except BaseException as error:  # noqa: BLE001 - raised again by the await
        deliver = partial(outcome.set_exception, error)
    try:
        outcome.get_loop().call_soon_threadsafe(deliver)
    except RuntimeError:  # the loop is closed: nothing awaits the outcome
        return
    finally:
        del call, outcome, deliver  # as above


def run_call(call: Callable[[], T]) -> T:
    """Run a call whose result goes into a future."""
    try:
        return call()
    except StopIteration as error:  # a future cannot hold it, and the await would never return
        raise RuntimeError("a call in a worker raised StopIteration") from error


async def undisturbed(future: asyncio.Future[T]) -> T:
    """Return the result of a future. A cancellation is raised only when it is done, caused by its error if there is one."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from future.exception()
    return future.result()
