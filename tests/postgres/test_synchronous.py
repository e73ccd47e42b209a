"""Synchronous replication: a save is acknowledged when a standby has it, also if the wait for it was cancelled.

PostgreSQL answers a cancelled wait with success and a warning, although a fail-over would lose the commit.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

import savegame
from savegame.errors import UnavailableError
from savegame.testing.faults import PATIENCE_S
from savegame.testing.postgres import Cluster

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[tuple[Cluster, Cluster]]:
    """A primary and its synchronous standby."""
    with cluster.standby() as standby:
        cluster.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        cluster.execute("SELECT pg_reload_conf()")
        until(lambda: cluster.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        yield cluster, standby


def until(true: Callable[[], Any]) -> Any:
    """Wait until something is so; what it is."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@contextmanager
def receiving_nothing(standby: Cluster) -> Iterator[int]:
    """Stop the process of a standby that takes what the primary sends; its id."""
    ((pid,),) = until(lambda: standby.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'"))
    os.kill(pid, signal.SIGSTOP)
    try:
        yield int(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def cancel_the_wait(primary: Cluster) -> int:
    """Cancel one wait for the standby; the process that waited."""
    ((pid,), *_) = until(lambda: primary.execute(WAITING))
    primary.execute("SELECT pg_cancel_backend(%s)", pid)
    until(lambda: (pid,) not in primary.execute(WAITING))
    return int(pid)


def failing_save(thread: savegame.Thread, state: str) -> tuple[threading.Thread, list[UnavailableError]]:
    """A save that must fail, in a thread of its own, and where its error will be."""
    told: list[UnavailableError] = []

    def save() -> None:
        with pytest.raises(UnavailableError) as raised:
            thread.save(state)
        told.append(raised.value)

    worker = threading.Thread(target=save, daemon=True)
    worker.start()
    return worker, told


def test_a_save_whose_wait_was_cancelled_is_not_acknowledged_before_the_standby_has_it(pair: tuple[Cluster, Cluster]) -> None:
    primary, standby = pair
    with savegame.open(primary.url()) as vault:
        thread = vault.thread("t")
        thread.save("first")
        saved: list[savegame.Checkpoint] = []
        with receiving_nothing(standby):
            worker = threading.Thread(target=lambda: saved.append(thread.save("second")), daemon=True)
            worker.start()
            cancel_the_wait(primary)
            until(lambda: primary.execute(WAITING))
            assert saved == [], "acknowledged although no standby has it"
        worker.join(PATIENCE_S)
        assert [one.state for one in saved] == ["second"]
        assert [entry.load().state for entry in thread.history(branches=True)] == ["second", "first"]
    primary.kill()
    standby.execute("SELECT pg_promote()")
    with savegame.open(standby.url()) as vault:
        assert vault.load(saved[0].id).state == "second"


def test_one_that_no_standby_gets_in_time_is_unknown(pair: tuple[Cluster, Cluster]) -> None:
    primary, standby = pair
    with savegame.open(f"{primary.url()}?deadline=2") as vault:
        thread = vault.thread("t")
        thread.save("first")
        with receiving_nothing(standby):
            worker, told = failing_save(thread, "second")
            while worker.is_alive():
                for (pid,) in primary.execute(WAITING):
                    primary.execute("SELECT pg_cancel_backend(%s)", pid)
                time.sleep(0.02)
        assert [error.unknown for error in told] == [True]
        found = vault.find(str(told[0].checkpoint_id))
        assert found is not None
        assert found.state == "second"


def test_one_whose_server_is_shut_down_at_once_while_it_waits_is_unknown(pair: tuple[Cluster, Cluster]) -> None:
    """The rows have come already then, and that there was no commit comes after them."""
    primary, standby = pair
    with savegame.open(f"{primary.url()}?deadline=2") as vault:
        thread = vault.thread("t")
        thread.save("first")
        with receiving_nothing(standby):
            worker, told = failing_save(thread, "second")
            until(lambda: primary.execute(WAITING))
            primary.stop(signal.SIGQUIT)
            worker.join(PATIENCE_S)
        assert [error.unknown for error in told] == [True]


def test_without_listening_to_the_warning_a_commit_is_acknowledged_and_lost(pair: tuple[Cluster, Cluster]) -> None:
    """The negative control: what the tests above are about does happen to a client that takes success for success."""
    primary, standby = pair
    primary.execute("CREATE TABLE told (x INTEGER)")
    with receiving_nothing(standby) as receiver:
        worker = threading.Thread(target=primary.execute, args=("INSERT INTO told VALUES (1)",), daemon=True)
        worker.start()
        cancel_the_wait(primary)
        worker.join(PATIENCE_S)
        assert not worker.is_alive(), "it was told that all is well"
        primary.kill()
        standby.kill()
        os.kill(receiver, signal.SIGKILL)
    standby.start()
    standby.execute("SELECT pg_promote()")
    assert standby.execute("SELECT x FROM told") == []
    with pytest.raises(psycopg.OperationalError):
        primary.execute("SELECT 1")
