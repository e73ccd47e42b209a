"""PostgreSQL: savegame, the floor and LangGraph's PostgresSaver on one local server, each in a database of its own.

The server is private, started for the benchmark by `rounds.py`, with fsync and synchronous_commit on; its address is in
the environment. The floor is one bare fenced INSERT: the row goes in if the lease is still ours, committed.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

import savegame
from bench import corpus
from bench.measure import Call, settle, summarise, summary, timed
from bench.ours import saves, updates
from bench.pages import pages
from bench.sizes import Sizes

ADDRESS = "SAVEGAME_BENCH_POSTGRES"
_SIZE = """
SELECT sum(pg_total_relation_size(oid)) FROM pg_class
WHERE relkind = 'r' AND relnamespace::regnamespace::text IN ('public', 'savegame')
"""
_INSERT = """
INSERT INTO step (thread, seq, body) SELECT %s, %s, %s
WHERE EXISTS (SELECT 1 FROM lease WHERE thread = %s AND epoch = %s)
"""


@contextmanager
def database() -> Iterator[str]:
    """The URL of a new database on the server, dropped at the end."""
    server, name = os.environ[ADDRESS], f"bench_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as db:
        settings = [db.execute(SQL("SHOW {}").format(Identifier(name))).fetchone() for name in ("fsync", "synchronous_commit")]
        assert settings == [("on",), ("on",)], settings
        db.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        try:
            yield server.rpartition("/")[0] + f"/{name}"
        finally:
            db.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


# -- the floor ---------------------------------------------------------------------------------------


def floor_update(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Fenced inserts around step 1,000."""
    with database() as url, psycopg.connect(url, autocommit=True, prepare_threshold=None) as db:
        db.execute("CREATE TABLE lease (thread text PRIMARY KEY, epoch bigint)")
        db.execute("CREATE TABLE step (thread text, seq bigint, body bytea, PRIMARY KEY (thread, seq))")
        db.execute("INSERT INTO lease VALUES ('warm-up', 1), ('main', 1)")
        for call in _inserts(db, "warm-up", corpus.steps(1, sizes.warmup, "warm-up")):
            call()
        calls = _inserts(db, "main", corpus.steps(1, sizes.at + sizes.around))
        return {"update": _around(calls, sizes)}


def _inserts(db: psycopg.Connection[Any], thread: str, pairs: Any) -> Iterator[Call]:
    for number, pair in enumerate(pairs, 1):
        yield partial(db.execute, _INSERT, (thread, number, corpus.packed(pair), thread, 1))


def _around(calls: Iterator[Call], sizes: Sizes) -> dict[str, float]:
    settle()
    timed(next(calls) for _ in range(sizes.at - sizes.around))
    return summary(timed(calls))


# -- savegame ----------------------------------------------------------------------------------------


def our_update(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """update() around step 1,000."""
    with database() as url, savegame.open(url) as vault:
        for call in updates(vault.thread("warm-up"), corpus.steps(1, sizes.warmup, "warm-up")):
            call()
        return {"update": _around(updates(vault.thread("main"), corpus.steps(1, sizes.at + sizes.around)), sizes)}


def our_save(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """save() of the whole grown state with one pair of messages more each time."""
    messages = corpus.messages(2 * sizes.grow)
    with database() as url, savegame.open(url) as vault:
        thread = vault.thread("main")
        timed(saves(thread, messages, sizes.grow + 1, sizes.grow + 5))
        return {"save": summarise(saves(thread, messages, sizes.grow + 6, sizes.grow + 5 + sizes.saves))}


def our_size(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """All tables and indexes after 1,000 steps."""
    pairs = list(corpus.steps(1, sizes.grow))
    with database() as url, savegame.open(url) as vault:
        timed(updates(vault.thread("main"), pairs))
        return {"bytes": _bytes(url), "content_bytes": sum(len(corpus.packed(pair)) for pair in pairs)}


def our_at_once(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Saves per second of 64 tasks of one loop, and of one alone, in turn."""
    with database() as url:
        return asyncio.run(_rates(url, sizes))


async def _rates(url: str, sizes: Sizes) -> dict[str, Any]:
    rates: list[tuple[float, float]] = []
    async with savegame.open_async(url) as vault:
        for burst in range(sizes.bursts + 1):
            one = await _rate(vault, f"alone {burst}", 1, sizes.alone // 3)
            rates.append((one, await _rate(vault, f"together {burst}", sizes.threads, sizes.per_thread)))
    counted = rates[1:]  # the first opened the connections
    return {
        "alone_per_s": statistics.median(one for one, _ in counted),
        "together_per_s": statistics.median(all_ for _, all_ in counted),
        "ratio": statistics.median(all_ / one for one, all_ in counted),
    }


async def _rate(vault: savegame.AsyncVault, name: str, tasks: int, each: int) -> float:
    pairs = list(corpus.steps(1, each, name))
    threads = [vault.thread(f"{name} {number}") for number in range(tasks)]
    await asyncio.gather(*(_append_all(thread, pairs[:1]) for thread in threads))  # that begins them
    settle()
    began = time.perf_counter()
    await asyncio.gather(*(_append_all(thread, pairs) for thread in threads))
    return tasks * each / (time.perf_counter() - began)


async def _append_all(thread: savegame.AsyncThread, pairs: list[corpus.Pair]) -> None:
    for pair in pairs:
        await thread.update(append={"messages": list(pair)})


def our_pages(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Every page of the web page."""
    with database() as url:
        return pages(url, sizes)


def _bytes(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("VACUUM")
        found = db.execute(_SIZE).fetchone()
        assert found is not None
        return int(found[0])


# -- LangGraph ---------------------------------------------------------------------------------------


@contextmanager
def _saver() -> Iterator[tuple[str, Any]]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with database() as url, PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        yield url, saver


def _puts(saver: Any, messages: list[Any], first: int, last: int) -> Iterator[Call]:
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6

    where: dict[str, Any] = {"configurable": {"thread_id": "main", "checkpoint_ns": ""}}
    config, version = where, None
    for number in range(first, last + 1):
        messages = messages + list(corpus.step(number))  # a new list at each step, as a reducer makes it
        version = saver.get_next_version(version, None)
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=number))
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"messages": messages}, {"messages": version}
        yield partial(saver.put, config, checkpoint, {"source": "loop", "step": number, "parents": {}}, {"messages": version})
        config = {"configurable": {**where["configurable"], "checkpoint_id": checkpoint["id"]}}


def their_save(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """put() of the whole grown state with one pair of messages more each time."""
    with _saver() as (_, saver):
        calls = _puts(saver, corpus.messages(2 * sizes.grow), sizes.grow + 1, sizes.grow + 5 + sizes.saves)
        timed(next(calls) for _ in range(5))
        return {"save": summarise(calls)}


def their_size(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """All tables and indexes after 1,000 steps."""
    with _saver() as (url, saver):
        timed(_puts(saver, [], 1, sizes.grow))
        return {"bytes": _bytes(url)}


_TASKS: dict[str, dict[str, Callable[[Path, Sizes], dict[str, Any]]]] = {
    "pg_floor": {"pg_update": floor_update},
    "pg_savegame": {
        "pg_update": our_update,
        "pg_save": our_save,
        "pg_size": our_size,
        "pg_at_once": our_at_once,
        "pages": our_pages,
    },
    "pg_saver": {"pg_save": their_save, "pg_size": their_size},
}


def tasks(name: str) -> dict[str, Callable[[Path, Sizes], dict[str, Any]]]:
    """What a contestant does."""
    return _TASKS[name]
