"""The scripted agent in an asynchronous program, and a hand that cancels its task at a given moment."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from agents import Agent

from savegame import AsyncVault, Paused, Unknown
from savegame.testing.faults import PATIENCE_S
from savegame.testing.provider import check_openai


class AsyncAgent(Agent):
    """The same agent, awaited: it looks up and mails on the loop, its other tools run in threads."""

    def to_the_end(self, say: Callable[..., None]) -> None:
        asyncio.run(self.until_the_end(say))

    async def until_the_end(self, say: Callable[..., None]) -> None:
        """`to_the_end`, as a task can do it."""
        vault = AsyncVault(self.vault)
        while True:
            try:
                await self._work(vault)
            except Paused as paused:
                await vault.answer(self.thread_id, paused.call, True)
            except Unknown as unknown:
                say("unknown", self.thread_id, unknown.call.name)
                await vault.resolve(self.thread_id, unknown.call, **self._found_out(unknown.call))
            else:
                return

    async def _work(self, vault: AsyncVault) -> None:
        async with vault.run(self.thread_id, tools=self.tools(), lease=self.lease) as run:
            await run.user("Where is my order?", key="click")
            while not run.done:
                await run.tools(at_once=self.at_once)
                check_openai(run.openai_messages())
                await run.model(self._awaited(self._reply))

    def _in_colour(self, tool: Callable[..., Any]) -> Callable[..., Any]:
        return self._awaited(tool)

    @staticmethod
    def _awaited(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """An asynchronous function that may be cancelled before it does anything, and after it."""

        @functools.wraps(function)
        async def awaited(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            made = function(*given, **named)
            await asyncio.sleep(0)
            return made

        return awaited


class Hand:
    """Cancels a task at one of its moments, by number or by name, wherever that is: on the loop, in a worker, in a tool.

    At the `endless` moment, which must not be on the loop, nothing goes on before that, and the task is not cancelled before
    it is reached. One that `insists` cancels the task at every moment from then on, also while it is being left.
    """

    def __init__(self, chosen: int | str, endless: str = "", *, insists: bool = False) -> None:
        self._chosen, self._endless, self._insists = chosen, endless, insists
        self._numbers = itertools.count(1)
        self._cancelled = threading.Event()
        self._ready = not endless
        self.reached: str | None = None

    def guide(self, work: Coroutine[Any, Any, None]) -> str | None:
        """Do some work in a loop of its own; the moment at which it was cancelled, None if it came to its end.

        A tool in a thread cannot be cancelled: it is waited for.
        """
        asyncio.run(self._guided(work))
        for thread in threading.enumerate():
            if thread.name == "tool":
                thread.join(PATIENCE_S)
        return self.reached

    async def _guided(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        self._home = threading.get_ident()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()
        assert self._task.cancelled() == (self.reached is not None)

    def moment(self, name: str) -> None:
        """One moment at which the task may be cancelled; it goes on when the task knows."""
        is_chosen = self._chosen in (name, next(self._numbers)) and self._ready
        if is_chosen or (self._insists and self.reached is not None):
            self.reached = self.reached or name
            if threading.get_ident() == self._home:
                self._cancel()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._cancel)
                assert self._cancelled.wait(PATIENCE_S)
        if self._endless == name:
            self._ready = True
            assert self._cancelled.wait(PATIENCE_S)

    def _cancel(self) -> None:
        self._task.cancel()
        self._cancelled.set()
