"""A run in an asynchronous program: the same core, driven from the loop.

An asynchronous tool runs on the loop, any other in a thread of its own, however long it takes; a transaction, together with
its result, in one of the vault's workers. What is kept is kept there too, one write after the other, and a write that has
begun ends also if the run is cancelled. A plain tool that was under way then stands in the ledger as started: it is never
silently made twice. Touches run, core, toolbox, tracing, _offload, model, errors.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from savegame._offload import Offload, _told
from savegame.errors import OutcomeError, SavegameError, Unknown
from savegame.model import Checkpoint, Kind, Status, checked_id
from savegame.runs import tracing
from savegame.runs.core import MISSING, Go, Known, RunCore
from savegame.runs.lease import Hold
from savegame.runs.run import AT_ONCE, AnyRun, Outcome, TimedOut, Usage, in_thread, takes_long
from savegame.runs.toolbox import delays
from savegame.store import Store

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("savegame")


async def settled(value: Any) -> Any:
    """What a function gave that may be asynchronous."""
    return await value if inspect.isawaitable(value) else value


async def called(function: Callable[..., Any], *given: Any) -> Any:
    """What a user's function gives. An asynchronous one is called on the loop, any other in a thread of its own."""
    if inspect.iscoroutinefunction(function):
        return await function(*given)
    return await settled(await asyncio.wrap_future(in_thread(partial(_told, partial(function, *given)))))


class AsyncRun(AnyRun):
    """What `vault.run` of an AsyncVault gives inside its `async with` block: a Run whose verbs are awaited.

    Functions that are handed in may be asynchronous. Others are called in a thread of their own, so they may wait.
    """

    def __init__(self, offload: Offload, core: RunCore, hold: Hold, store: Store, thread_id: str) -> None:
        super().__init__(core, hold, store, thread_id)
        self._offload = offload
        self._turn = asyncio.Lock()

    async def user(self, content: Any, key: str | None = None) -> bool:
        """`Run.user`."""
        checked = None if key is None else checked_id(key, "a key")
        return await self._do(self._saving, Kind.MANUAL, self._core.user, content, checked)

    async def model(self, llm: Callable[[list[dict[str, Any]]], Any], *, usage: Usage | None = None, **shown: Any) -> Any:
        """`Run.model`. `usage` is called in a worker."""
        question = self._question(shown)
        with tracing.chat(self._thread_id) as span:
            reply = await called(llm, question)
            span.used(reply)
        return await self._do(self._journal, reply, usage)

    async def tools(self, *, at_once: bool = False) -> None:
        """`Run.tools`. If it is cancelled, so is an asynchronous tool; any other goes on, and nobody hears its result."""
        if at_once:
            await self._all_at_once()
            return
        for pending in self._core.pending():
            await self._settle(await self._do(self._core.prepare, pending))

    async def step(self, name: str, work: Callable[[], T | Awaitable[T]]) -> T:
        """`Run.step`."""
        found = await self._do(self._core.step, checked_id(name, "a step's name"))
        if found is MISSING:
            found = await called(work)
            await self._do(self._core.keep_step, name, found)
        value: T = found
        return value

    async def save(self, label: str | None = None) -> Checkpoint:
        """`Run.save`."""
        return await self._do(self._saving, Kind.MANUAL, self._core.save, label, None)

    async def halt(self, reason: str, *, resume_hint: str | None = None) -> Checkpoint:
        """`Run.halt`."""
        return await self._do(self._saving, Kind.MANUAL, self._core.save, None, Status.halted(reason), resume_hint)

    async def _do(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """One thing after the other in a worker: the core is not made for several at once."""
        async with self._turn:
            return await self._offload.write(lambda: work(*given, **named))

    # -- calling tools -----------------------------------------------------------------------------

    async def _all_at_once(self) -> None:
        places = asyncio.Semaphore(AT_ONCE)
        waiting: list[tuple[Go, asyncio.Task[Outcome]]] = []
        try:
            await self._begin_all(waiting, places)
        except OutcomeError:  # one waits for a person: what the others do must not be lost
            await self._collect(waiting)
            raise
        else:
            await self._collect(waiting)
        finally:
            await self._leave(waiting)

    async def _begin_all(self, waiting: list[tuple[Go, asyncio.Task[Outcome]]], places: asyncio.Semaphore) -> None:
        for pending in self._core.pending():
            found = await self._do(self._core.prepare, pending)
            if takes_long(found):
                waiting.append((found, asyncio.create_task(self._in_place(found, places))))
            else:
                await self._collect(waiting)  # answers stand in the model's order
                await self._settle(found)

    async def _collect(self, waiting: list[tuple[Go, asyncio.Task[Outcome]]]) -> None:
        """Keep every outcome, in the model's order; only then raise that of one nobody knows it."""
        unknown: list[Unknown] = []
        while waiting:
            go, task = waiting[0]
            await asyncio.wait([task])
            del waiting[0]
            try:
                await self._do(self._keep, go, task.result())
            except Unknown as error:
                unknown.append(error)
        if unknown:
            raise unknown[0]

    async def _leave(self, waiting: list[tuple[Go, asyncio.Task[Outcome]]]) -> None:
        """Stop what still runs. What is known already is kept, if it can be: something else is being raised."""
        for _, task in waiting:
            task.cancel()
        for go, task in waiting:
            await asyncio.wait([task])
            if task.cancelled():
                continue
            try:
                await self._do(self._keep, go, task.result())
            except SavegameError as error:
                logger.warning("the outcome of call %s of %r is not known: %s", go.entry.key, go.entry.name, error)

    async def _settle(self, found: Go | Known) -> None:
        if takes_long(found):
            outcome = await self._outcome(found)
            await self._do(self._keep, found, outcome)
        else:
            await self._do(self._settle_now, found)

    async def _in_place(self, go: Go, places: asyncio.Semaphore) -> Outcome:
        async with places:
            return await self._outcome(go)

    async def _outcome(self, go: Go) -> Outcome:
        waits = delays(go.tool)
        with self._calling(go) as span:
            while True:
                try:
                    return True, await self._invoked(go)
                except Exception as error:  # noqa: BLE001 - a tool may raise anything: it is kept, and told to the model
                    pause = next(waits, None)
                    if pause is None or not self.alive:
                        span.failed(error)
                        return False, error
                    await asyncio.sleep(pause.total_seconds())

    async def _invoked(self, go: Go) -> Any:
        """What a tool gives, if it does so in time: one that is asynchronous is cancelled then."""
        timeout = go.tool.timeout
        limit = asyncio.timeout(None if timeout is None else timeout.total_seconds())
        try:
            async with limit:
                return await (self._invoke(go) if go.tool.is_async else called(self._invoke, go))
        except TimeoutError as error:
            if timeout is None or not limit.expired():  # the tool's own
                raise
            raise TimedOut(timeout) from error
