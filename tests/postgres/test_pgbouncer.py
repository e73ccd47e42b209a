"""The whole contract behind PgBouncer in transaction mode: clients without a session, and more of them than connections."""

from __future__ import annotations

import datetime as dt
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from writers import writing

import savegame
from savegame.opening import open_store
from savegame.store import Store
from savegame.testing import StoreContract
from savegame.testing.faults import PATIENCE_S
from savegame.testing.postgres import Cluster, free_port

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)")

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
auth_type = plain
auth_file = {home}/users
"""


@pytest.fixture(scope="module")
def bouncer(shared_cluster: Cluster) -> Iterator[int]:
    """The port of a PgBouncer in front of the server."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="savegame-pgbouncer-") as name:
        home, port = Path(name), free_port()
        login = urlsplit(shared_cluster.url())
        (home / "users").write_text(f'"{login.username}" "{login.password}"\n')
        (home / "settings").write_text(SETTINGS.format(server=shared_cluster.port, port=port, home=home))
        if root := os.geteuid() == 0:
            for path in (home, *home.iterdir()):
                shutil.chown(path, "nobody")
        nobody = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if root else {}
        with subprocess.Popen([PROGRAM, "-q", home / "settings"], stderr=subprocess.DEVNULL, **nobody) as process:
            wait_for(port)
            yield port
            process.terminate()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


@pytest.fixture
def bounced(url: str, shared_cluster: Cluster, bouncer: int) -> str:
    """An empty database, through PgBouncer."""
    return url.replace(f":{shared_cluster.port}/", f":{bouncer}/")


class TestBehindPgBouncer(StoreContract):
    @pytest.fixture
    def store(self, bounced: str) -> Iterator[Store]:
        self.url = bounced
        store = open_store(bounced, durability="power", read_only=False)
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        store.close()
        return open_store(self.url, durability="power", read_only=False)


def test_four_processes_share_three_connections(bounced: str) -> None:
    with writing(bounced) as writers:
        writers.go_on(30)
        writers.stop()
    with savegame.open(bounced) as vault:
        writers.check(vault)


def test_own_tables_commit_with_a_save(bounced: str) -> None:
    with savegame.open(bounced) as vault:
        with vault.connection() as db:
            db.execute("CREATE TABLE mine (x INTEGER)")
            vault.thread("t").save("with it")
        with pytest.raises(ZeroDivisionError), vault.connection() as db:  # noqa: PT012 - the block is what is rolled back
            db.execute("INSERT INTO mine VALUES (1)")
            vault.thread("t").save("never")
            raise ZeroDivisionError
        with vault.connection() as db:
            assert list(db.execute("SELECT x FROM mine")) == []
        assert vault.thread("t").state() == "with it"


SETTINGS_OF_A_BLOCK = {
    "synchronous_commit": "off",
    "statement_timeout": "60000",
    "default_transaction_read_only": "on",
    "role": "pg_monitor",
}


def test_no_block_leaves_settings_to_who_gets_its_session_next(bounced: str) -> None:
    """Those that a program sets itself it has to set for one transaction: PgBouncer hands sessions from one to another."""

    def seen() -> set[tuple[str, ...]]:
        found = set()
        for _ in range(6):
            with vault.connection() as db:
                found.add(tuple(db.execute(f"SHOW {name}").fetchall()[0][0] for name in SETTINGS_OF_A_BLOCK))
        return found

    with savegame.open(bounced) as vault:
        before = seen()
        for name, value in SETTINGS_OF_A_BLOCK.items():
            with vault.connection() as db:
                db.execute(f"SET {name} TO {value}")
        assert seen() == before
        assert len(before) == 1


def test_commits_wait_for_the_disk_in_sessions_that_others_have_changed(
    bounced: str, url: str, shared_cluster: Cluster
) -> None:
    """Read when the transaction ends: a trigger that was put off until then."""
    with savegame.open(bounced) as vault:
        vault.thread("t").save(0)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("CREATE TABLE level (level text)")
            db.execute("""CREATE FUNCTION level() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO public.level VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$""")
            db.execute("""CREATE CONSTRAINT TRIGGER level AFTER INSERT ON savegame.frame DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION level()""")
            others = [psycopg.connect(bounced) for _ in range(3)]
            for other in others:  # each in a session of the server at the same moment
                other.execute("SET synchronous_commit TO off")
            for other in others:
                other.commit()
                other.close()
            for number in range(10):
                vault.thread("t").save(number)
                vault.thread(f"t{number}").save(number)
            assert db.execute("SELECT DISTINCT level FROM level").fetchall() == [("on",)]


def test_what_another_process_saves_is_seen(bounced: str) -> None:
    """Hints do not come through PgBouncer; looking now and then does."""
    with savegame.open(bounced) as here, savegame.open(bounced) as there:
        seen = here.thread("t").watch(timeout=dt.timedelta(seconds=PATIENCE_S))
        there.thread("t").save("news")
        assert next(seen).load().state == "news"
