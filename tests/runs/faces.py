"""A run of each colour behind one face, so that a test is written once: plain, on a loop, on a loop with plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import savegame
from savegame import AsyncRun, Run, Vault

Pieces = list[Any]


class Face:
    """A run whose verbs are plain calls, whichever colour it has."""

    run: Any

    def __init__(self, run: Run) -> None:
        self.run = run

    def user(self, text: str) -> None:
        self.run.user(text)

    def model(self, reply: Any, **how: Any) -> Any:
        return self.run.model(lambda _: reply, **how)

    def tools(self) -> None:
        self.run.tools()

    def halt(self, reason: str) -> None:
        self.run.halt(reason)

    def source(self, pieces: Pieces, shown: list[Any] | None = None) -> Any:
        """A model that yields these pieces, and raises those that are exceptions."""

        def llm(messages: Any) -> Iterator[Any]:
            if shown is not None:
                shown.append(messages)
            for piece in pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece

        return llm

    def stream(self, llm: Any, leave: int | None = None, **how: Any) -> Pieces:
        """The pieces of a stream, left after some of them."""
        found: Pieces = []
        for piece in self.run.stream(llm, **how):
            found.append(piece)
            if len(found) == leave:
                break
        return found


class LoopFace(Face):
    def __init__(self, run: AsyncRun, do: Callable[[Any], Any]) -> None:
        self.run, self._do = run, do

    def user(self, text: str) -> None:
        self._do(self.run.user(text))

    def model(self, reply: Any, **how: Any) -> Any:
        async def llm(_: Any) -> Any:
            return reply

        return self._do(self.run.model(llm, **how))

    def tools(self) -> None:
        self._do(self.run.tools())

    def halt(self, reason: str) -> None:
        self._do(self.run.halt(reason))

    def source(self, pieces: Pieces, shown: list[Any] | None = None) -> Any:
        plain = super().source(pieces, shown)

        async def llm(messages: Any) -> Any:
            for piece in plain(messages):
                await asyncio.sleep(0)
                yield piece

        return llm

    def stream(self, llm: Any, leave: int | None = None, **how: Any) -> Pieces:
        async def read() -> Pieces:
            found: Pieces = []
            async for piece in self.run.stream(llm, **how):
                found.append(piece)
                if len(found) == leave:
                    break
            return found

        found: Pieces = self._do(read())
        self._do(asyncio.sleep(0))  # a stream that was left is closed by the loop
        return found


class ThreadFace(LoopFace):
    """On a loop, with a model's function that is not asynchronous."""

    def source(self, pieces: Pieces, shown: list[Any] | None = None) -> Any:
        return Face.source(self, pieces, shown)


FACES = {"plain": Face, "loop": LoopFace, "thread": ThreadFace}


@contextmanager
def entered(kind: type[Face], address: Any, thread: str = "t", **how: Any) -> Iterator[Face]:
    """A run on a thread of the vault there."""
    if kind is Face:
        with savegame.open(address) as vault, vault.run(thread, **how) as run:
            yield Face(run)
        return
    with asyncio.Runner() as runner:
        vaults = savegame.open_async(address)
        vault = runner.run(_entered(vaults))
        try:
            running = vault.run(thread, **how)
            found = runner.run(_entered(running))
            try:
                yield kind(found, runner.run)
            except BaseException as error:
                runner.run(_left(running, error))
                raise
            else:
                runner.run(_left(running, None))
        finally:
            runner.run(_left(vaults, None))


async def _entered(manager: Any) -> Any:
    return await manager.__aenter__()


async def _left(manager: Any, error: BaseException | None) -> None:
    await manager.__aexit__(type(error) if error else None, error, None)


def look(address: Any, work: Callable[[Vault], Any]) -> Any:
    """The result of `work` on the vault there."""
    with savegame.open(address) as vault:
        return work(vault)
