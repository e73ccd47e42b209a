"""Servers that are slow, busy, full or frozen: one that is alive is waited for, one that is not leaves time for another."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

import savegame
from savegame.errors import UnavailableError
from savegame.testing.faults import PATIENCE_S
from savegame.testing.postgres import Cluster, PostgresServer
from savegame.testing.proxy import Proxy

SLOW = """CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.3); RETURN coalesce(NEW, OLD); END $$"""
REFUSING = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'at the commit' USING ERRCODE = '40001'; END $$"""
AT_COMMIT = """CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON savegame.frame DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse()"""
ONE_ROW, READY = b"SELECT 1\0", b"Z\0\0\0\5I"
"""How an answer says that it had one row, and that it is over."""

LOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@contextlib.contextmanager
def frozen(server: Cluster) -> Iterator[None]:
    """A server whose processes all stand still."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.pid)], capture_output=True, text=True, check=True)
    pids = [server.pid, *map(int, children.stdout.split())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_delete_may_take_longer_than_the_deadline(url: str) -> None:
    with savegame.open(f"{url}?deadline=1") as vault:
        for number in range(5):
            vault.thread("t").update(append={"items": [number]})
        PostgresServer(url).execute(SLOW)
        PostgresServer(url).execute("CREATE TRIGGER slow BEFORE DELETE ON savegame.frame FOR EACH ROW EXECUTE FUNCTION slow()")
        vault.thread("t").delete()
        assert list(vault.thread("t").history(branches=True)) == []


def test_a_save_may_take_as_long_as_the_deadline(url: str) -> None:
    with savegame.open(f"{url}?deadline=4") as vault:
        vault.thread("t").save("first")
        PostgresServer(url).execute(SLOW.replace("0.3", "2"))
        PostgresServer(url).execute("CREATE TRIGGER slow BEFORE INSERT ON savegame.frame FOR EACH ROW EXECUTE FUNCTION slow()")
        vault.thread("t").save("second")
        assert [entry.load().state for entry in vault.thread("t").history(branches=True)] == ["second", "first"]


def test_what_fails_at_the_commit_itself_is_not_overlooked(url: str) -> None:
    """PostgreSQL tells of the rows first, and of the commit after them."""
    with savegame.open(f"{url}?deadline=1") as vault:
        thread = vault.thread("t")
        thread.save("first")
        PostgresServer(url).execute(REFUSING)
        PostgresServer(url).execute(AT_COMMIT)
        with pytest.raises(UnavailableError):
            thread.save("second")
        PostgresServer(url).execute("DROP TRIGGER refuse ON savegame.frame")
        assert [entry.load().state for entry in vault.thread("t").history(branches=True)] == ["first"]
        assert thread.save("second").step == 2


def test_an_answer_whose_end_never_comes_does_not_outlast_the_deadline(url: str) -> None:
    server = urlsplit(url)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(str(server.hostname), server.port or 5432))
        vault = stack.enter_context(savegame.open(f"{url.replace(str(server.port), str(proxy.port))}?deadline=1"))
        thread = vault.thread("t")
        thread.save("first")
        proxy.rewrite = lambda reply: reply.removesuffix(READY) if ONE_ROW in reply else reply
        with pytest.raises(UnavailableError) as raised:
            thread.save("second")
        assert raised.value.unknown
        proxy.rewrite = bytes


@pytest.mark.parametrize("known", [True, False])
def test_a_save_that_took_longer_than_the_deadline_did_not_happen_and_nobody_waits_for_it(url: str, known: bool) -> None:
    with savegame.open(url) as other, savegame.open(f"{url}?deadline=1") as vault:
        (vault if known else other).thread("t").save("first")
        with other.connection():
            other.thread("t").put_records({("kind", "name"): 1})  # which locks the thread
            with pytest.raises(UnavailableError, match="longer than deadline=") as told:
                vault.thread("t").save("second", force=True)
            assert PostgresServer(url).execute(LOCKED) == [(0,)]
        assert not told.value.unknown
        assert [entry.load().state for entry in vault.thread("t").history(branches=True)] == ["first"]


@pytest.mark.parametrize("verb", ["verify", "stats"])
def test_a_frozen_server_is_told_of_also_by_what_takes_long(cluster: Cluster, verb: str) -> None:
    with savegame.open(f"{cluster.url()}?deadline=1") as vault:
        vault.thread("t").save(1)
        with frozen(cluster), pytest.raises(UnavailableError):
            getattr(vault, verb)()
        assert vault.thread("t").state() == 1


def saved(vault: savegame.Vault) -> None:
    vault.thread("t").save("second")
    assert [entry.load().state for entry in vault.thread("t").history(branches=True)] == ["second", "first"]


def deleted(vault: savegame.Vault) -> None:
    vault.thread("t").delete()
    assert list(vault.thread("t").history(branches=True)) == []


@pytest.mark.parametrize("write", [saved, deleted])
def test_a_frozen_server_leaves_time_for_another(cluster: Cluster, write: Callable[[savegame.Vault], None]) -> None:
    with cluster.standby() as standby:
        cluster.restart(synchronous_standby_names="*")
        parts = urlsplit(cluster.url())
        both = parts._replace(netloc=f"{parts.netloc},127.0.0.1:{standby.port}").geturl()
        with savegame.open(f"{both}?deadline=8") as vault:
            vault.thread("t").save("first")
            with frozen(cluster):
                standby.execute("SELECT pg_promote()")
                write(vault)


def test_opening_waits_for_a_server_that_is_being_started(cluster: Cluster) -> None:
    cluster.kill()
    starting = threading.Timer(6.0, cluster.start)
    starting.start()
    with savegame.open(f"{cluster.url()}?deadline={PATIENCE_S}") as vault:
        vault.thread("t").save(1)
    starting.join()


def test_a_server_without_a_connection_left_says_what_to_do(cluster: Cluster) -> None:
    cluster.restart(max_connections="5", superuser_reserved_connections="0", reserved_connections="0", max_wal_senders="0")
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(psycopg.connect(cluster.url()))
        with pytest.raises(UnavailableError, match="raise max_connections, or put PgBouncer"):
            savegame.open(f"{cluster.url()}?deadline=1")
        freed = threading.Timer(0.5, stack.close)
        freed.start()
        savegame.open(f"{cluster.url()}?deadline={PATIENCE_S}").close()
        freed.join()
