"""Ctrl-C, or a signal handler that raises, in the middle of what the PostgreSQL store does: nothing half done is committed,
no connection goes back to the pool that is still busy, and the interrupt is what the caller sees.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.pq import PipelineStatus

from savegame.errors import UnavailableError
from savegame.model import ThreadKey
from savegame.store import Append, PutRecord
from savegame.stores.postgres import PostgresStore, open_url
from savegame.stores.postgres.changes import Work
from savegame.stores.postgres.link import Link, Patience
from savegame.testing.faults import PATIENCE_S
from tests.stores.test_sqlite import interrupted_at_every_step

A = ThreadKey("default", "a")


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = open_url(f"{postgres_url}?deadline=5")
    store.commit([Append(A, "one", 0, b"meta", b"1.")])
    yield store
    store.close()


def busy(store: PostgresStore) -> list[Link]:
    """Connections that wait to be lent, but are not ready for it."""
    links = store._work.pool._idle
    return [link for link in links if link.in_transaction or link.info.pipeline_status != PipelineStatus.OFF]


# -- saves inside connection() ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_a_save_that_was_interrupted_inside_a_transaction_undoes_only_itself(
    kind: type[BaseException], store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(work: Work) -> None:
        raise kind

    with store.connection() as db:
        db.execute("CREATE TABLE app (text text)")
        with monkeypatch.context() as patch:
            patch.setattr(Work, "finish", interrupt)
            with pytest.raises(kind):
                store.commit([Append(A, "two", 1, b"meta", b"2.")])
        db.execute("INSERT INTO app VALUES (%s)", ("kept",))
        store.commit([Append(A, "three", 1, b"meta", b"3.")])
    with store.connection() as db:
        assert db.execute("SELECT text FROM app").fetchall() == [("kept",)]
    assert [frame.id for frame in store.frames(A)] == ["one", "three"]
    assert list(store.check("default")) == []


def test_a_save_that_could_not_be_undone_is_not_committed(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, and again while the first one is being answered."""

    tell = Link.tell

    def interrupt(work: Work) -> None:
        raise KeyboardInterrupt

    def told(link: Link, name: str, *values: object) -> object:
        if name == "rollback_to":
            raise KeyboardInterrupt
        return tell(link, name, *values)

    def save_twice() -> None:
        with store.connection() as db:
            db.execute("CREATE TABLE app (text text)")
            with monkeypatch.context() as patch:
                patch.setattr(Work, "finish", interrupt)
                patch.setattr(Link, "tell", told)
                with pytest.raises(KeyboardInterrupt):
                    store.commit([Append(A, "two", 1, b"meta", b"2.")])
            with pytest.raises(UnavailableError, match="cut short"):
                store.commit([Append(A, "three", 1, b"meta", b"3.")])

    with pytest.raises(UnavailableError, match=r"cut short.*do it again"):
        save_twice()
    assert [frame.id for frame in store.frames(A)] == ["one"]
    with store.connection() as db:
        db.execute("CREATE TABLE app (text text)")  # it is not there
        store.commit([Append(A, "four", 1, b"meta", b"4.")])
    assert list(store.check("default")) == []


def test_ctrl_c_at_any_step_of_a_save_inside_a_transaction_leaves_it_whole_or_undone(store: PostgresStore) -> None:
    saves = 0

    def save() -> None:
        nonlocal saves
        saves += 1
        with contextlib.suppress(UnavailableError), store.connection(), contextlib.suppress(KeyboardInterrupt):
            store.commit([PutRecord(A, "kind", "name", b"%d" % saves), Append(A, f"save {saves}", 1, b"meta", b"2.")])

    assert interrupted_at_every_step(save, "postgres/work", "postgres/changes", "postgres/pool", "postgres/link") > 50
    assert store.frames(A)[-1].id == f"save {saves}"
    assert list(store.check("default")) == []


TIMED = """
import random, signal, sys
import savegame

armed = False

def strike(*_):
    if armed:
        raise TimeoutError

signal.signal(signal.SIGALRM, strike)
vault = savegame.open(sys.argv[1])
thread = vault.thread("t")
chance = random.Random(int(sys.argv[2]))
cut, steps = 0, []
for step in range(600):
    inside = False
    try:
        with vault.connection():
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0003, 0.004))
                thread.save({"step": step}, force=True)
                inside = True
            except TimeoutError:
                cut += 1
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        steps += [step] * inside
    except savegame.UnavailableError as error:
        assert "nothing of" in str(error), error
    except TimeoutError:
        cut += 1
found = [checkpoint.load().state["step"] for checkpoint in thread.history(branches=True)]
assert cut > 20 and set(steps) <= set(found), (cut, steps, found)
assert vault.verify().ok
vault.close()
"""


def test_a_time_limit_that_strikes_at_any_moment_leaves_saves_inside_transactions_whole(postgres_url: str) -> None:
    """A handler that raises TimeoutError, which psycopg does not take for an interrupt; its caller continues."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", TIMED, f"{postgres_url}?deadline=5", "1"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]


# -- the pool --------------------------------------------------------------------------------------


def test_a_connection_that_was_interrupted_in_a_pipeline_is_not_lent_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = psycopg.Pipeline.__enter__

    def interrupt(pipeline: psycopg.Pipeline) -> psycopg.Pipeline:
        enter(pipeline)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Pipeline, "__enter__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.commit([PutRecord(A, "kind", "name", b"value")])
    assert busy(store) == []
    link = store._work.pool.take(Patience(PATIENCE_S))
    link.pgconn.enter_pipeline_mode()
    store._work.pool.give_back(link)
    assert busy(store) == []
    assert store.commit([Append(A, "two", 1, b"meta", b"2.")]) == [2]


def test_ctrl_c_at_any_step_of_a_read_is_what_the_caller_sees(store: PostgresStore) -> None:
    there, seen = store.fingerprints([A]), 0

    def read() -> None:
        nonlocal seen
        try:
            assert store.fingerprints([A]) == there
        except KeyboardInterrupt:
            seen += 1
            raise

    steps = interrupted_at_every_step(read, "postgres/pool", "postgres/link", "postgres/work", "postgres/store")
    assert steps == seen > 50
    assert busy(store) == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_is_not_hidden_by_the_disorder_that_it_left(
    kind: type[BaseException], store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted between two of its own steps, psycopg may fail to leave the pipeline, with any error."""
    leave = psycopg.Pipeline.__exit__

    def left(*args: object) -> None:
        leave(*args)  # type: ignore[arg-type]
        raise IndexError("pop from an empty deque")

    def interrupted(link: Link) -> None:
        with link.sending():
            raise kind

    monkeypatch.setattr(psycopg.Pipeline, "__exit__", left)
    with pytest.raises(kind):
        store._read(interrupted)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_is_not_hidden_by_what_comes_of_it(
    kind: type[BaseException], store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was interrupted takes no more statements, not even the end of its transaction."""
    tell = Link.tell

    def told(link: Link, name: str, *values: object) -> object:
        if name != "rollback":
            return tell(link, name, *values)
        raise psycopg.OperationalError("another command is already in progress")

    def interrupted(link: Link) -> None:
        with link.snapshot():
            raise kind

    monkeypatch.setattr(Link, "tell", told)
    with pytest.raises(kind):
        store._read(interrupted)
