"""LangGraph's long-term memory in both colours: the same calls, made directly or awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from langgraph.store.base import BaseStore, Op, Result, SearchItem

from savegame.adapters.langgraph import SavegameStore
from savegame.vault import Vault


class Calls:
    """A store's verbs; each runs to its end before it returns, whatever its colour."""

    def __init__(self, store: BaseStore, *, awaited: bool) -> None:
        self.store = store
        self._awaited = awaited

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if not self._awaited:
            return getattr(self.store, name)(*args, **kwargs)

        async def run() -> Any:
            return await getattr(self.store, f"a{name}")(*args, **kwargs)

        return asyncio.run(run())

    def put(self, *args: Any, **kwargs: Any) -> None:
        self._call("put", *args, **kwargs)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("get", *args, **kwargs)

    def delete(self, *args: Any) -> None:
        self._call("delete", *args)

    def search(self, *args: Any, **kwargs: Any) -> list[SearchItem]:
        found: list[SearchItem] = self._call("search", *args, **kwargs)
        return found

    def names(self, **kwargs: Any) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = self._call("list_namespaces", **kwargs)
        return found

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        found: list[Result] = self._call("batch", ops)
        return found


def keys(found: Iterable[SearchItem]) -> list[str]:
    return [item.key for item in found]


def calls_on(vault: Vault, *, awaited: bool = False, **options: Any) -> Calls:
    return Calls(SavegameStore(vault, **options), awaited=awaited)


ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Letters:
    """An embedding function: how often each letter occurs in a text. Remembers every text that it was called with."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.seen += texts
        return [[float(text.count(letter)) for letter in ALPHABET] for text in texts]

    def index(self, *fields: str, embed: Callable[..., Any] | None = None) -> dict[str, Any]:
        return {"dims": len(ALPHABET), "embed": embed or self, **({"fields": list(fields)} if fields else {})}

    def take(self) -> list[str]:
        """The texts since the last call."""
        seen, self.seen = self.seen, []
        return seen
