"""The private servers themselves: what is shipped for the tests of others has to work."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from savegame.errors import UnavailableError
from savegame.testing.postgres import Cluster, PostgresServer
from savegame.testing.proxy import Proxy


def test_it_keeps_what_was_committed_through_stop_kill_and_other_settings(cluster: Cluster) -> None:
    cluster.execute("CREATE TABLE kept (x INTEGER)")
    cluster.execute("INSERT INTO kept VALUES (%s)", 1)
    cluster.kill()
    with pytest.raises(psycopg.OperationalError):
        cluster.execute("SELECT 1")
    cluster.start()
    cluster.restart(work_mem="5MB")
    assert cluster.execute("SELECT x, current_setting('work_mem') FROM kept") == [(1, "5MB")]


def test_a_standby_follows_and_can_be_promoted(cluster: Cluster) -> None:
    cluster.execute("CREATE TABLE kept (x INTEGER)")
    with cluster.standby() as standby:
        assert standby.execute("SELECT count(*) FROM kept") == [(0,)]
        assert standby.execute("SELECT pg_promote()") == [(True,)]
        standby.execute("INSERT INTO kept VALUES (1)")


def test_nothing_is_left_of_it() -> None:
    with Cluster() as cluster:
        pid, data = cluster.pid, cluster.data
        assert data.is_dir()
    assert not data.parent.exists()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(UnavailableError):
        _ = cluster.pid


def test_one_that_cannot_start_says_why_and_leaves_nothing() -> None:
    cluster = Cluster(no_such_setting="on")
    with pytest.raises(UnavailableError, match="no_such_setting"), cluster:
        pass
    assert not cluster.data.parent.exists()


def test_a_database_for_each(postgres_server: PostgresServer) -> None:
    with postgres_server.fresh_database() as one, postgres_server.fresh_database() as other:
        assert one != other
        PostgresServer(one).execute("CREATE TABLE mine (x INTEGER)")
        PostgresServer(other).execute("CREATE TABLE mine (x INTEGER)")
        connection = psycopg.connect(one)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(one)
    with postgres_server.fresh_database() as another:
        assert PostgresServer(another).execute("SELECT count(*) FROM pg_tables WHERE tablename = 'mine'") == [(0,)]


@pytest.mark.parametrize(("what", "rows"), [("reply", [(1,)]), ("request", [])])
def test_a_proxy_loses_what_it_is_told_to(what: str, rows: list[tuple[int]], url: str, proxied: str, proxy: Proxy) -> None:
    PostgresServer(url).execute("CREATE TABLE kept (x INTEGER)")
    lose = {"reply": proxy.lose_reply, "request": proxy.lose_request}[what]
    with psycopg.connect(proxied, autocommit=True) as connection:
        lose(b"INSERT", skip=1)
        connection.execute("INSERT INTO kept VALUES (0)")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO kept VALUES (1)")
    assert PostgresServer(url).execute("SELECT x FROM kept WHERE x > 0") == rows
    assert proxy.losses == 1
