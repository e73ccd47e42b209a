"""DBOS as the contestant for runs: one workflow whose steps each give what one step of the corpus says.

`dbos` is its SQLite default as it comes, a rollback journal with synchronous=FULL; `dbos_wal` the same on a file that was
in WAL mode before, as the others are: so that what is ours can be told from what is the journal's.
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
    """DBOS on a file with this journal; what it says about that and about its flushes is checked."""
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
