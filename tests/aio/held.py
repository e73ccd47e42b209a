"""A store that waits until it is told to go on, and counts who is inside; and a way to write tests as coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.store import StoreChange
from savegame.stores.memory import MemoryStore

P = ParamSpec("P")

PATIENCE_S = 60.0


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE_S))

    return run


class HeldStore(MemoryStore):
    """A memory store that lets its callers wait for `go`, three at once at most."""

    width = 3

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.most = 0
        self.threads_seen: set[int] = set()
        self._inside: list[int] = []
        self._changed = threading.Condition()

    @contextmanager
    def _visit(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._changed:
            self._inside.append(me)
            self.threads_seen.add(me)
            self.most = max(self.most, len(set(self._inside)))
            self._changed.notify_all()
        try:
            assert self.go.wait(PATIENCE_S), "no go was given"
            yield
        finally:
            with self._changed:
                self._inside.remove(me)

    async def entered(self, count: int = 1) -> None:
        """Until that many callers are inside, without waiting on the loop."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: len(set(self._inside)) >= count, PATIENCE_S)

        assert await asyncio.to_thread(wait), f"{len(self._inside)} came, not {count}"

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        with self._visit():
            return super().commit(changes)

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        with self._visit():
            return super().thread(key)

    def frames(self, key: ThreadKey, **which: Any) -> list[Frame]:
        with self._visit():
            return super().frames(key, **which)
