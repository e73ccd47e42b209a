"""LangGraph's SqliteSaver as it comes from PyPI, at the durability of the others; the whole state is put at each step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

from bench import corpus
from bench.measure import Call, disk_bytes, marks, summarise, summary, timed
from bench.sizes import Sizes


class Saver:
    """A SqliteSaver and where its one thread stands."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, check_same_thread=False)
        self.saver = SqliteSaver(self.db)
        self.saver.setup()
        self.db.execute("PRAGMA synchronous = FULL")
        settings = [self.db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert settings == ["wal", 2], settings
        self.config: Any = {"configurable": {"thread_id": "main", "checkpoint_ns": ""}}

    def putting(self, messages: list[corpus.Message], step: int) -> Call:
        """A call that puts this state as the next checkpoint; all that a graph would have ready is ready."""
        versions: Any = {"messages": f"{step:032}.0"}
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=step))
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"messages": messages}, versions
        metadata: Any = {"source": "loop", "step": step, "parents": {}}
        return partial(self._put, checkpoint, metadata, versions)

    def get(self) -> list[corpus.Message]:
        """The newest state."""
        found = self.saver.get_tuple({"configurable": {"thread_id": "main"}})
        assert found is not None
        return list(found.checkpoint["channel_values"]["messages"])

    def list(self, limit: int) -> list[Any]:
        """The newest checkpoints; the namespace is given, as a graph does, since without it SQLite sorts the whole table."""
        return list(self.saver.list({"configurable": {"thread_id": "main", "checkpoint_ns": ""}}, limit=limit))

    def _put(self, checkpoint: Any, metadata: Any, versions: Any) -> None:
        self.config = self.saver.put(self.config, checkpoint, metadata, versions)


@contextmanager
def opened(path: Path) -> Iterator[Saver]:
    """A saver, closed at the end."""
    saver = Saver(path)
    try:
        yield saver
    finally:
        saver.db.close()


def grow(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Time and disk against steps."""
    path, done, points = directory / "grow.db", 0, []
    messages: list[corpus.Message] = []
    for mark in marks(sizes.grow):
        with opened(path) as saver:
            samples = timed(_growing(saver, messages, done + 1, mark))
        points.append({"step": mark, "disk_bytes": disk_bytes(path), **summary(samples[-20:])})
        done = mark
    return {"points": points, "disk_bytes": disk_bytes(path), "content_bytes": len(corpus.packed(messages))}


def load(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """get_tuple of the grown thread by a saver that was just made; and with the making counted in."""
    path = directory / "grow.db"

    def once() -> int:
        with opened(path) as saver:
            return len(saver.get())

    def fresh() -> Iterator[Call]:
        for _ in range(sizes.loads):
            with opened(path) as saver:
                yield saver.get

    assert once() == 2 * sizes.grow
    return {"load": summarise(fresh()), "open_load": summarise(once for _ in range(sizes.loads - 1))}


def history(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """list(limit=50) of the grown thread."""
    with opened(directory / "grow.db") as saver:
        assert len(saver.list(sizes.history)) == sizes.history
        return {"history": summarise(partial(saver.list, sizes.history) for _ in range(max(3, sizes.histories // 10)))}


def save(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """put of the whole grown state with one pair of messages more each time."""
    messages = corpus.messages(2 * sizes.grow)
    with opened(directory / "save.db") as saver:
        for call in _growing(saver, messages, sizes.grow + 1, sizes.grow + 5):
            call()
        return {"save": summarise(_growing(saver, messages, sizes.grow + 6, sizes.grow + 5 + sizes.saves))}


TASKS = {"grow": grow, "load": load, "history": history, "save": save}


def _growing(saver: Saver, messages: list[corpus.Message], first: int, last: int) -> Iterator[Call]:
    for number in range(first, last + 1):
        messages += corpus.step(number)
        yield saver.putting(messages, number)
