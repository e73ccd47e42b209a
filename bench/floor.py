"""The floor: one bare apsw insert of the step's bytes, committed and flushed. Nothing durable on SQLite is quicker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from bench import corpus
from bench.measure import Call, disk_bytes, marks, settle, summarise, summary, timed
from bench.sizes import Sizes


def connect(path: Path) -> apsw.Connection:
    """A database at the durability of the others: WAL, synchronous=FULL."""
    db = apsw.Connection(str(path))
    for name, value in (("page_size", 8192), ("journal_mode", "wal"), ("synchronous", 2)):
        db.pragma(name, value)
        assert db.pragma(name) == value, name
    db.execute("CREATE TABLE IF NOT EXISTS step (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    return db


def update(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Inserts around step 1,000 with the WAL grown; and a bare write and flush of one page, to judge the disk."""
    db = connect(directory / "update.db")
    for call in _inserts(db, corpus.steps(1, sizes.warmup, "warm-up")):
        call()
    calls = _inserts(db, corpus.steps(1, sizes.at + sizes.around))
    settle()
    before = timed(next(calls) for _ in range(sizes.at - sizes.around))
    window = timed(calls)
    db.close()
    result = {"update": summary(window), "update_from_1": summary(before + window)}
    return {**result, "flush": summarise(_flushes(directory / "flush.bin", 300))}


def grow(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Time and disk against steps."""
    path = directory / "grow.db"
    points, done = [], 0
    for mark in marks(sizes.grow):
        db = connect(path)
        samples = timed(_inserts(db, corpus.steps(done + 1, mark)))
        db.close()
        points.append({"step": mark, "disk_bytes": disk_bytes(path), **summary(samples[-20:])})
        done = mark
    return {"points": points, "disk_bytes": disk_bytes(path)}


def step(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Inserts of what the steps of a run give."""
    db = connect(directory / "step.db")
    for call in _inserts(db, corpus.steps(1, sizes.warmup, "warm-up")):
        call()
    result = summarise(_inserts(db, corpus.steps(1, sizes.steps)))
    db.close()
    return {"step": result}


TASKS = {"update": update, "grow": grow, "step": step}


def _inserts(db: apsw.Connection, pairs: list[corpus.Pair]) -> Iterator[Call]:
    for body in [corpus.packed(pair) for pair in pairs]:
        yield partial(db.execute, "INSERT INTO step (body) VALUES (?)", (body,))


def _flushes(path: Path, count: int) -> Iterator[Call]:
    page, sync = os.urandom(8192), getattr(os, "fdatasync", os.fsync)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(file, page * count)
        os.fsync(file)

        def flush(offset: int) -> None:
            os.pwrite(file, page, offset)
            sync(file)

        for number in range(count):
            yield partial(flush, number * len(page))
    finally:
        os.close(file)
