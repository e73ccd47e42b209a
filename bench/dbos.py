"""DBOS as the contestant for runs: one workflow whose steps return the steps of the corpus.

`dbos` is its SQLite default, a rollback journal with synchronous=FULL; `dbos_wal` uses a file in WAL mode, like the other
contestants, which shows how much of the difference is due to the journal.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy
from dbos import DBOS

from bench import corpus
from bench.measure import settle, summary, timed
from bench.sizes import Sizes

JOURNALS = {"dbos": "delete", "dbos_wal": "wal"}


@contextmanager
def launched(path: Path, journal: str) -> Iterator[None]:
    """DBOS on a file with this journal; checks its journal and flush settings."""
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA journal_mode = {journal}")
    db.close()
    dbos = DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    DBOS.launch()
    try:
        with dbos._sys_db.engine.connect() as connection:
            found = [connection.scalar(sqlalchemy.text(f"PRAGMA {name}")) for name in ("journal_mode", "synchronous")]
        assert found == [journal, 2], found
        yield
    finally:
        DBOS.destroy()


def step(journal: str, directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Steps of one workflow, after those of another."""

    @DBOS.step()
    def give(pair: corpus.Pair) -> corpus.Pair:
        return pair

    samples: list[tuple[float, float]] = []

    @DBOS.workflow()
    def work(thread: str, count: int) -> None:
        samples[:] = timed(partial(give, pair) for pair in corpus.steps(1, count, thread))

    with launched(directory / "step.db", journal):
        work("warm-up", sizes.warmup)
        settle()
        work("main", sizes.steps)
    return {"step": summary(samples)}


def tasks(name: str) -> dict[str, Callable[[Path, Sizes], dict[str, Any]]]:
    """What a contestant does."""
    return {"step": partial(step, JOURNALS[name])}
