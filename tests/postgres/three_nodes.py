"""Three PostgreSQL servers under Patroni, with three etcd, all on loopback: one primary, strictly synchronous, that is replaced
when it dies. Needs Debian's postgresql, patroni and etcd-server; as root, everything runs as the user `postgres`.

It speaks etcd's older protocol: by the newer one, Patroni before 3.0.3 (Debian 12) takes the lock back by force after it stood
still, and what the new primary had accepted is lost (patroni/patroni#2689).
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from savegame.testing.postgres import free_port

NODES = (0, 1, 2)
PATIENCE_S = 180.0
PASSWORD = "only-on-loopback"


def why_no_patroni() -> str | None:
    """Why it cannot run here; None if it can."""
    missing = [name for name in ("patroni", "etcd") if shutil.which(name) is None]
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        missing.append("postgresql")
    return f"{', '.join(missing)} not installed (Debian: apt-get install postgresql patroni etcd-server)" if missing else None


def until(true: Callable[[], Any]) -> Any:
    """Wait until something is there; what it is."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := true()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


class Patroni:
    """The cluster; `with` starts and ends it."""

    def __init__(self) -> None:
        self._etcd, self._peers, self._servers, self._rest = ([free_port() for _ in NODES] for _ in range(4))
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Patroni:
        with ExitStack() as stack:
            self._home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="savegame-patroni-")))
            stack.callback(self._end)
            if self._is_root:
                shutil.chown(self._home, "postgres", "postgres")
            for node in NODES:
                self._start_etcd(node)
            for node in NODES:
                self.start(node)
            until(lambda: self.is_whole() or None)
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    @property
    def url(self) -> str:
        """Whichever of the three is the primary."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._servers)
        return f"postgresql://postgres:{PASSWORD}@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=2"

    def url_of(self, node: int) -> str:
        """One of the three, whatever it is."""
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self._servers[node]}/postgres?connect_timeout=2"

    def primary(self) -> int | None:
        """Which one says that it is the primary."""
        return next((node for node in NODES if self._ask(node, "primary") is not None), None)

    def replaced(self, node: int) -> int | None:
        """Which other one says that it is the primary."""
        return next((other for other in NODES if other != node and self._ask(other, "primary") is not None), None)

    def is_whole(self) -> bool:
        """Whether all three run, one of them as the synchronous standby."""
        members = [self._ask(node, "cluster") for node in NODES]
        if any(found is None for found in members):
            return False
        each = members[0]["members"]
        up = [member for member in each if member["state"] in ("running", "streaming")]
        return len(up) == 3 and any(member["role"] == "sync_standby" for member in each)

    def start(self, node: int) -> None:
        """Start one of the three, as after a boot of its machine."""
        settings = self._home / f"{node}.json"
        settings.write_text(json.dumps(self._settings(node)))
        self._run(f"patroni {node}", ["patroni", str(settings)])

    def kill(self, node: int) -> None:
        """Its machine is gone: SIGKILL for everything on it."""
        self._signal(node, signal.SIGKILL)
        self._running.pop(f"patroni {node}").wait()

    @contextmanager
    def frozen(self, node: int) -> Iterator[None]:
        """Its machine stands still, and goes on afterwards where it was."""
        self._signal(node, signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(node, signal.SIGCONT)

    def _signal(self, node: int, what: signal.Signals) -> None:
        roots = [self._running[f"patroni {node}"].pid, *self._postmaster(node)]
        for pid in {one for root in roots for one in _tree(root)}:
            try:
                os.kill(pid, what)
            except ProcessLookupError:
                continue

    def _postmaster(self, node: int) -> list[int]:
        try:
            return [int((self._home / f"data{node}/postmaster.pid").read_text().split("\n", 1)[0])]
        except (FileNotFoundError, ValueError):
            return []

    def _ask(self, node: int, what: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._rest[node]}/{what}", timeout=2) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, json.JSONDecodeError):
            return None

    @property
    def _is_root(self) -> bool:
        return os.geteuid() == 0

    def _run(self, name: str, command: list[str]) -> None:
        as_user = {"user": "postgres", "group": pwd.getpwnam("postgres").pw_gid, "extra_groups": []} if self._is_root else {}
        with (self._home / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, cwd=self._home, stdout=log, stderr=log, **as_user)

    def _end(self) -> None:
        for node in NODES:
            if f"patroni {node}" in self._running:
                self.kill(node)
        for process in self._running.values():
            process.kill()
            process.wait()

    def _start_etcd(self, node: int) -> None:
        client, peer = (f"http://127.0.0.1:{ports[node]}" for ports in (self._etcd, self._peers))
        members = ",".join(f"e{other}=http://127.0.0.1:{self._peers[other]}" for other in NODES)
        options = {
            "name": f"e{node}",
            "data-dir": f"etcd{node}",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": members,
            "heartbeat-interval": "100",
            "election-timeout": "1000",
            "enable-v2": "true",
        }
        self._run(f"etcd {node}", ["etcd", *(f"--{name}={value}" for name, value in options.items())])

    def _settings(self, node: int) -> dict[str, Any]:
        rest, server = (f"127.0.0.1:{ports[node]}" for ports in (self._rest, self._servers))
        newest = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        logins = {who: {"username": name, "password": PASSWORD} for who, name in LOGINS.items()}
        return {
            "scope": "savegame",
            "name": f"n{node}",
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd": {"hosts": [f"127.0.0.1:{port}" for port in self._etcd]},
            "bootstrap": {"dcs": DCS, "initdb": [{"encoding": "UTF8"}, "data-checksums"], "pg_hba": HBA},
            "postgresql": {
                "listen": server,
                "connect_address": server,
                "data_dir": str(self._home / f"data{node}"),
                "bin_dir": str(newest),
                "pgpass": str(self._home / f"pgpass{node}"),
                "authentication": logins,
                "parameters": {"unix_socket_directories": str(self._home)},
            },
        }


LOGINS = {"superuser": "postgres", "replication": "repl", "rewind": "rewind"}
HBA = ["host replication repl 127.0.0.1/32 scram-sha-256", "host all all 127.0.0.1/32 scram-sha-256"]
DCS = {
    "ttl": 10,
    "loop_wait": 2,
    "retry_timeout": 3,
    "maximum_lag_on_failover": 1 << 20,
    "synchronous_mode": True,
    "synchronous_mode_strict": True,
    "postgresql": {
        "use_pg_rewind": True,
        "parameters": {
            "wal_level": "replica",
            "hot_standby": "on",
            "wal_log_hints": "on",
            "max_wal_senders": 10,
            "max_connections": 60,
            "shared_buffers": "32MB",
        },
    },
}


def _tree(pid: int) -> list[int]:
    """A process and all that came from it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(one for child in children for one in _tree(int(child)))]
