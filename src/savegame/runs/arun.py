"""A run in an asynchronous program: the same core, driven from the loop.

An asynchronous tool runs on the loop, any other in its own thread; a transaction, together with its result, in one of the
vault's workers. Writes also happen there, one after the other, and a started write finishes even if the run is cancelled. A
plain tool that was running then stays in the ledger as started, so it is never silently repeated. If a function is still
running in its thread, the lease is not released but expires. Touches run, core, toolbox, tracing, offload, model, errors.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from savegame.checkpoint import Checkpoint
from savegame.errors import OutcomeError, SavegameError, Unknown
from savegame.model import Kind, Status, checked_id
from savegame.runs import tracing
from savegame.runs.boundary import checked_moment, checked_pause
from savegame.runs.budget import Usage
from savegame.runs.conversation import NO_RESULT
from savegame.runs.core import Go, KnownCall, PendingCall, RunCore
from savegame.runs.lease import Hold
from savegame.runs.listener import StopListener
from savegame.runs.run import AT_ONCE, LOOK_S, AnyRun, CutShort, Outcome, TimedOut, in_thread, takes_long
from savegame.runs.sdk_replies import usage_of
from savegame.runs.streams import END, StreamPieces, closers, receiving, source_of
from savegame.runs.toolbox import delays
from savegame.store import Store
from savegame.waiting.offload import Offload, run_call, undisturbed

P = ParamSpec("P")
T = TypeVar("T")

GRACE_S: Final = 5.0
"""For how long an asynchronous tool that must not run twice may come to its end once the run is asked to stop."""

logger = logging.getLogger("savegame")


async def settled(value: Any) -> Any:
    """The result of a function that may have returned an awaitable."""
    return await value if inspect.isawaitable(value) else value


async def begun(function: Callable[..., Any], *given: Any) -> Any:
    """Call a user's function: an asynchronous one on the loop, any other in its own thread. May return an awaitable."""
    if inspect.iscoroutinefunction(function):
        return function(*given)
    return await asyncio.wrap_future(in_thread(partial(run_call, partial(function, *given))))


async def called(function: Callable[..., Any], *given: Any) -> Any:
    """The result of a user's function."""
    return await settled(await begun(function, *given))


class AsyncRun(AnyRun):
    """What `vault.run` of an AsyncVault returns in its `async with` block: a Run whose verbs are awaited.

    Functions passed in may be asynchronous. Others are called in a thread of their own, so they may block.
    """

    def __init__(self, offload: Offload, core: RunCore, hold: Hold, store: Store, thread_id: str, **more: Any) -> None:
        super().__init__(core, hold, store, thread_id, **more)
        self._offload = offload
        self._turn = asyncio.Lock()
        self._listener = StopListener(self._ask_store)
        self._steps: dict[str, asyncio.Lock] = {}

    async def user(self, content: Any, key: str | None = None) -> bool:
        """`Run.user`."""
        checked = None if key is None else checked_id(key, "a key")
        return await self._do(self._saving, Kind.MANUAL, self._core.user, content, checked)

    async def model(
        self,
        llm: Callable[[list[dict[str, Any]]], Any],
        *,
        system: str | None = None,
        usage: Usage | None = None,
        **options: Any,
    ) -> Any:
        """`Run.model`. `usage` is called in a worker."""
        known = self._unkept_reply()
        if known is not None:
            return await self._do(self._journal, *known)
        question = await self._do(self._question, system, options)
        if question is None:
            return None
        with tracing.chat(self._thread_id) as span:
            try:
                reply = await self._called(llm, question, within=self._until_stopped())
            except CutShort:
                await self._do(self._core.look)
                raise
            span.used(usage_of(reply))
        return await self._do(self._journal, reply, usage)

    async def stream(
        self,
        llm: Callable[[list[dict[str, Any]]], Any],
        *,
        system: str | None = None,
        usage: Usage | None = None,
        **options: Any,
    ) -> AsyncGenerator[str, None]:
        """`Run.stream`, iterated with `async for`. An iterable that is not asynchronous is iterated in a thread."""
        known = self._unkept_reply()
        if known is not None:
            await self._do(self._journal, *known)
            return
        question = await self._do(self._question, system, options)
        if question is None:
            return
        with receiving(self._thread_id) as pieces:
            asked = len(self._core.messages)
            with pieces.span.current():
                stream = await self._called(llm, question)
            source = source_of(stream, awaits=True)
            try:
                while (piece := await self._next_piece(source, pieces)) is not END:
                    text = pieces.take(piece)
                    if text is not None:  # a message that has arrived is whole: it is saved
                        self._between_pieces()
                        yield text
            except CutShort:
                await self._do(self._core.look)
                raise
            finally:
                await self._close(stream, source)
            reply = pieces.reply()
        await self._do(self._journal, reply, usage, asked)

    async def tools(self, *, at_once: bool = False) -> None:
        """`Run.tools`. Cancelling it cancels asynchronous tools; others keep running, and their results are lost."""
        if at_once:
            await self._all_at_once()
        else:
            for pending in await self._do(self._core.open_calls):
                found = await self._do(self._next, pending)
                if found is None:
                    break
                await self._settle(found)
        await self._do(self._core.look)

    async def step(self, name: str, work: Callable[[], T | Awaitable[T]]) -> T:
        """`Run.step`."""
        async with self._steps.setdefault(checked_id(name, "a step's name"), asyncio.Lock()):
            found = await self._do(self._core.step, name)
            if found is NO_RESULT:
                found = await self._called(work)
                await self._do(self._core.keep_step, name, found)
            value: T = found
            return value

    async def sleep(self, duration: dt.timedelta, *, name: str) -> None:
        """`Run.sleep`."""
        await self._do(self._core.sleep, checked_id(name, "a sleep's name"), checked_pause(duration))

    async def sleep_until(self, when: dt.datetime, *, name: str) -> None:
        """`Run.sleep_until`."""
        await self._do(self._core.sleep, checked_id(name, "a sleep's name"), None, checked_moment(when))

    async def save(self, label: str | None = None) -> Checkpoint:
        """`Run.save`."""
        return await self._do(self._saving, Kind.MANUAL, self._core.save, label, None)

    async def halt(self, reason: str, *, resume_hint: str | None = None) -> Checkpoint:
        """`Run.halt`."""
        return await self._do(self._saving, Kind.MANUAL, self._core.save, None, Status.halted(reason), resume_hint)

    async def _do(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Run one thing at a time in a worker: the core is not thread-safe."""
        async with self._turn:
            return await self._offload.write(lambda: work(*given, **named))

    # -- being stopped ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _until_stopped(self, grace: float = 0.0) -> AsyncIterator[None]:
        """Cancel what the block awaits, after some seconds of grace, once the run is asked to stop. Then raises CutShort."""
        try:
            async with asyncio.timeout(None) as limit:
                with self._listener.telling(limit, grace):
                    yield
        except TimeoutError as error:
            if not limit.expired():  # the block's own
                raise
            raise CutShort from error

    async def _ask_store(self) -> bool:
        """Whether the run was asked to stop."""
        self._stopped = self._stopped or await self._offload.read(self._core.is_stopped)
        return self._stopped

    async def _look_now_and_then(self) -> None:
        """Raise CutShort if the run was asked to stop; for pieces that come more often than the listener looks."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            if await self._ask_store():
                raise CutShort

    def _still_on(self, go: Go) -> Callable[[], bool]:
        """On the loop, what the listener knows has to do: reading would block it."""
        return (lambda: self.alive and not self._stopped) if go.tool.is_async else self._goes_on

    # -- calling tools -----------------------------------------------------------------------------

    def _next(self, pending: PendingCall) -> Go | KnownCall | None:
        """What to do about a call; None if the run was asked to stop."""
        return None if self._core.is_stopped() else self._core.prepare(pending)

    async def _all_at_once(self) -> None:
        waiting: list[asyncio.Task[Outcome]] = []
        try:
            await self._begin_all(waiting)
        except OutcomeError:  # one waits for a person: the outcomes of the others must not be lost
            await self._collect(waiting)
            raise
        else:
            await self._collect(waiting)
        finally:
            await self._leave(waiting)

    async def _begin_all(self, waiting: list[asyncio.Task[Outcome]]) -> None:
        for pending in await self._do(self._core.open_calls):
            running = [task for task in waiting if not task.done()]
            if len(running) >= AT_ONCE:  # a call that is only queued is not recorded as started
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            found = await self._do(self._next, pending)
            if found is None:
                break
            if takes_long(found):
                waiting.append(asyncio.create_task(self._outcome(found)))
            else:
                await self._collect(waiting)  # answers keep the model's order
                await self._settle(found)

    async def _collect(self, waiting: list[asyncio.Task[Outcome]]) -> None:
        """Save every outcome, in the model's order; then raise Unknown if one of them is unknown."""
        unknown: list[Unknown] = []
        while waiting:
            task = waiting[0]
            await asyncio.wait([task])
            del waiting[0]
            try:
                await self._settle_outcome(task.result())
            except Unknown as error:
                unknown.append(error)
        if unknown:
            raise unknown[0]

    async def _leave(self, waiting: list[asyncio.Task[Outcome]]) -> None:
        """Stop what is still running, and save known outcomes if possible; called while an exception is propagating."""
        for task in waiting:
            task.cancel()
        cancelled: asyncio.CancelledError | None = None
        for task in waiting:
            try:
                await asyncio.wait([task])
                if not task.cancelled():
                    await self._settle_outcome(task.result())
            except asyncio.CancelledError as error:  # again: the other outcomes must still be saved
                cancelled = error
            except SavegameError as error:
                entry = task.result().go.entry
                logger.warning("the outcome of call %s of %r is unknown: %s", entry.key, entry.name, error)
        if cancelled is not None:
            raise cancelled

    async def _settle_outcome(self, outcome: Outcome) -> None:
        """Save the outcome of a call, even if the run is cancelled before a worker is free."""
        await undisturbed(asyncio.create_task(self._do(self._keep, outcome)))

    async def _settle(self, found: Go | KnownCall) -> None:
        if takes_long(found):
            await self._settle_outcome(await self._outcome(found))
        else:
            await self._do(self._settle_now, found)

    async def _outcome(self, go: Go) -> Outcome:
        waits = delays(go.tool)
        grace = 0.0 if go.tool.may_run_again else GRACE_S
        with self._calling(go) as span:
            while True:
                try:
                    if not go.tool.is_async:
                        return Outcome(go, done=True, value=await self._invoked(go))
                    async with self._until_stopped(grace):
                        return Outcome(go, done=True, value=await self._invoked(go))
                except CutShort as error:
                    return Outcome(go, done=False, value=error)
                except Exception as error:  # noqa: BLE001 - a tool may raise anything: it is saved, and the model gets it
                    pause = next(waits, None)
                    if pause is None or not self.alive or self._stopped:
                        span.failed(error)
                        return Outcome(go, done=False, value=error)
                    await asyncio.sleep(pause.total_seconds())
                    go = go.again()

    async def _invoked(self, go: Go) -> Any:
        """The result of a tool within its timeout; an asynchronous tool is cancelled at the timeout."""
        timeout = go.tool.timeout
        limit = asyncio.timeout(None if timeout is None else timeout.total_seconds())
        try:
            async with limit:
                return await (self._invoke(go) if go.tool.is_async else called(self._invoke, go))
        except TimeoutError as error:
            if timeout is None or not limit.expired():  # the tool's own
                raise
            raise TimedOut(timeout) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._hold.left_running |= not go.tool.is_async
                raise
            raise RuntimeError("the tool cancelled itself") from error

    async def _next_piece(self, source: Any, pieces: StreamPieces) -> Any:
        with pieces.span.current():
            if isinstance(source, AsyncIterator):
                await self._look_now_and_then()
                async with self._until_stopped():
                    return await anext(source, END)
            return await self._called(self._pulled, source)

    def _pulled(self, source: Any) -> Any:
        """The next piece of an iterable that is not asynchronous; called in its thread, which cannot be cancelled."""
        if not self._goes_on():
            raise CutShort
        return next(source, END)

    async def _close(self, stream: Any, source: Any) -> None:
        """End a stream that was read, or left."""
        if isinstance(source, AsyncIterator):
            for close in (*closers(stream, source, "aclose"), *closers(stream, source, "close")):
                await settled(close())
        elif not self._hold.left_running:  # else its thread is still reading it
            for close in closers(stream, source, "close"):
                await self._called(close)

    async def _called(
        self, function: Callable[..., Any], *given: Any, within: AbstractAsyncContextManager[None] | None = None
    ) -> Any:
        """Call a user's function. If it is cancelled in its thread, it keeps running: then the lease is left to expire.

        An awaitable that it returns is awaited inside `within`.
        """
        try:
            found = await begun(function, *given)
        except asyncio.CancelledError:
            self._hold.left_running |= not inspect.iscoroutinefunction(function)
            raise
        async with within or nullcontext():
            return await settled(found)
