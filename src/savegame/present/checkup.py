"""What could put a vault at risk: the SQLite library, the disk, files and their modes, a server's settings, the clock.

Every cause that SQLite's "how to corrupt" lists and that can be seen from outside is looked for, and every setting by which
PostgreSQL would promise less than it says. Nothing is changed, nothing is read through (`verify` does that), and no
database file is opened but by its store. Touches opening, vault and the stores.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from savegame.errors import SavegameError, StoreNotFound
from savegame.opening import open_vault
from savegame.present.text import size_text
from savegame.stores.sql_files import queries
from savegame.stores.sqlite_file import NETWORK_FILE_SYSTEMS, file_system, has_wal_reset_bug
from savegame.vault import Vault

LARGE_WAL: Final = 256 * 1024 * 1024
"""The write-ahead log is written back long before, unless somebody holds it."""

CLOCK_SLACK: Final = dt.timedelta(seconds=5)

_CUT_SHORT: Final = "it cuts compact, repair and long searches short"
_CUT_BLOCK: Final = "it ends transaction tools and blocks of connection() that take longer"
SESSION: Final = {
    "synchronous_commit": (
        "(?!off).*",
        'savegame turns it on for each of its commits, unless opened with durability="process"',
    ),
    "standard_conforming_strings": ("on", "savegame does not depend on it, but SQL of your own may"),
    "default_transaction_isolation": ("read committed", "savegame asks for read committed where it matters"),
    "default_transaction_read_only": ("off", "nothing can be saved"),
    "statement_timeout": ("0", _CUT_SHORT),
    "lock_timeout": ("0", _CUT_SHORT),
    "transaction_timeout": ("0", _CUT_BLOCK),
    "idle_in_transaction_session_timeout": ("0", _CUT_BLOCK),
}
"""Settings that every session may have changed: a pattern of what is usual, and what comes of anything else."""

SQL: Final = queries(resources.files("savegame.stores") / "sql" / "postgres" / "checkup.sql")


class Level(StrEnum):
    """What to make of a finding."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """One thing that was looked at; `advice` says what to do about it."""

    check: str
    level: Level
    found: str
    advice: str | None = None


def examine(address: str, namespace: str) -> Iterator[Finding]:
    """Look at a vault and what it stands on. One that cannot be opened is a finding, not an error; none is made."""
    path = _path_of(address)
    if path is not None:  # the file store's search index is an SQLite file, too
        yield sqlite_library(apsw.sqlite_lib_version())
    if path is not None and not path.is_dir():
        yield sqlite_elsewhere(sqlite3.sqlite_version)
    if path is not None and path.exists():
        yield from disk(path)
    try:
        open_vault(address, read_only=True).close()  # what is not there is not made
        with open_vault(address, namespace=namespace) as vault:
            layout = vault.store.layout
            yield Finding("store", Level.OK, f"{vault.store.scheme} opens" + (f", layout {layout.now}" if layout else ""))
            if vault.store.scheme == "postgresql":
                yield from server(vault)
            yield from contents(vault)
    except StoreNotFound as error:
        found, _, _ = str(error).partition("; ")  # how a program would make it helps nobody here
        yield Finding("store", Level.PROBLEM, found, "check the address; a program makes the vault when it first opens it")
    except SavegameError as error:
        found, _, advice = str(error).partition("; ")  # errors say what is wrong; what to do
        yield Finding("store", Level.PROBLEM, found, advice or None)


def _path_of(address: str) -> Path | None:
    """The file or directory of an SQLite or file store; None for others."""
    scheme, colon, rest = address.partition(":")
    if colon and scheme in ("sqlite", "file"):
        return Path(os.path.realpath(rest))
    return None if colon and scheme.isalnum() and len(scheme) > 1 else Path(os.path.realpath(address))


# -- the machine -----------------------------------------------------------------------------------


def sqlite_library(version: str) -> Finding:
    """The SQLite that savegame uses."""
    if has_wal_reset_bug(version):
        return Finding("SQLite", Level.PROBLEM, f"{version} can lose data (WAL-reset bug)", "pip install --upgrade apsw")
    return Finding("SQLite", Level.OK, version)


def sqlite_elsewhere(version: str) -> Finding:
    """The SQLite of this Python, which other programs on the machine are likely to use."""
    if has_wal_reset_bug(version):
        advice = "do not let other programs open the vault's file; read it with savegame, or a backup of it"
        return Finding("SQLite of the system", Level.NOTE, f"{version} can lose data (WAL-reset bug)", advice)
    return Finding("SQLite of the system", Level.OK, version)


def disk(path: Path) -> Iterator[Finding]:
    """Where the files lie, who may read them, whether they are whole as a group, how much room there is."""
    yield on_file_system(file_system(os.fspath(path / "x" if path.is_dir() else path)))
    yield _modes(path)
    if path.is_file():
        yield from _sqlite_files(path)
    free = shutil.disk_usage(path).free
    size = sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    if free < 2 * size:
        told = f"{size_text(free)} free beside {size_text(size)}"
        yield Finding("space", Level.NOTE, told, "compact may need twice the size of the file; make room first")
    else:
        yield Finding("space", Level.OK, f"{size_text(free)} free")


def on_file_system(kind: str | None) -> Finding:
    """The kind of file system that files lie on."""
    if kind in NETWORK_FILE_SYSTEMS:
        advice = "locks and flushes are not to be relied on there: use a local disk, or PostgreSQL"
        return Finding("file system", Level.PROBLEM, f"{kind} is a network file system", advice)
    return Finding("file system", Level.OK, kind or "of unknown kind")


def _modes(path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    right = 0o700 if path.is_dir() else 0o600
    around = path.parent.stat().st_mode
    if mode & 0o077:
        return Finding("modes", Level.PROBLEM, f"others may read or write it: mode {mode:04o}", f"chmod {right:o} {path}")
    if around & stat.S_IWOTH and not around & stat.S_ISVTX:
        advice = f"chmod o-w {path.parent}"
        return Finding("modes", Level.PROBLEM, "anybody may replace it: its directory is writable for all", advice)
    return Finding("modes", Level.OK, f"{mode:04o}")


def _sqlite_files(path: Path) -> Iterator[Finding]:
    if path.stat().st_nlink > 1:
        advice = "keep one name: each name has a -wal of its own, and writers under two names destroy the file"
        yield Finding("links", Level.PROBLEM, f"the file has {path.stat().st_nlink} names (hard links)", advice)
    lost = sorted(_holders_of_lost_files(path))
    if lost:
        told = f"process {', '.join(map(str, lost))} writes to a file that was deleted or replaced"
        advice = "what it saves is lost: stop it, then start it again, and find out who removed the file, its -wal or its -shm"
        yield Finding("write-ahead log", Level.PROBLEM, told, advice)
        return
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > LARGE_WAL:
        advice = "somebody reads for very long: end that, then run savegame compact"
        yield Finding("write-ahead log", Level.NOTE, size_text(size), advice)
    else:
        yield Finding("write-ahead log", Level.OK, size_text(size))


def _holders_of_lost_files(path: Path) -> Iterator[int]:
    """Processes with an open file of this store that has no name any more, as far as we may look."""
    lost = {f"{path}{suffix} (deleted)" for suffix in ("", "-wal", "-shm")}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is somebody else's
            if any(os.readlink(handle) in lost for handle in (process / "fd").iterdir()):
                yield int(process.name)


# -- PostgreSQL ------------------------------------------------------------------------------------


def server(vault: Vault) -> Iterator[Finding]:
    """What a PostgreSQL server promises by its settings."""
    with vault.connection() as db:
        settings = dict(db.execute(SQL["settings"]).fetchall())
        replicas = db.execute(SQL["replicas"]).fetchall()
        ((clock, local, encrypted, sessions),) = db.execute(SQL["session"]).fetchall()
    here = dt.datetime.now(dt.UTC)
    yield Finding("server", Level.OK, f"PostgreSQL {settings['server_version']}")
    yield from server_settings(settings)
    yield from session_settings(settings)
    yield replication(settings["synchronous_standby_names"], [state for _, state in replicas])
    yield clocks(dt.datetime.fromtimestamp(clock, dt.UTC), here)
    if local or encrypted:
        yield Finding("connection", Level.OK, "encrypted" if encrypted else "on this machine")
    else:
        yield Finding("connection", Level.PROBLEM, "over the network, not encrypted", "add sslmode=verify-full to the URL")
    yield connections(int(sessions), int(settings["max_connections"]), vault.store.width)


def server_settings(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Settings without which a crash of the server loses or damages what was saved."""
    for name, risk in (
        ("fsync", "a crash of the server's machine can destroy the database"),
        ("full_page_writes", "a crash in the middle of a write can leave torn pages"),
    ):
        if settings[name] == "on":
            yield Finding(name, Level.OK, "on")
        else:
            yield Finding(name, Level.PROBLEM, f"off: {risk}", f"set {name} = on in postgresql.conf, then reload")
    if settings["data_checksums"] == "on":
        yield Finding("data_checksums", Level.OK, "on")
    else:
        advice = "savegame checks its own rows; for the rest: pg_checksums --enable while the server is stopped"
        yield Finding("data_checksums", Level.NOTE, "off", advice)


def session_settings(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Settings that this user, or everybody in this database, has from the start: what savegame does about them."""
    given = {name: settings[name] for name in SESSION if name in settings}  # older servers do not have all
    unusual = {name: value for name, value in given.items() if not re.fullmatch(SESSION[name][0], value)}
    for name, value in unusual.items():
        advice = f"ALTER ROLE ... RESET {name}, or ALTER DATABASE ... RESET {name}, if it is not wanted"
        yield Finding(name, Level.NOTE, f"{value}: {SESSION[name][1]}", advice)
    usual = ", ".join(f"{name} {value}" for name, value in given.items() if name not in unusual)
    if usual:
        yield Finding("session settings", Level.OK, usual)


def replication(names: str, states: list[str]) -> Finding:
    """Whether a fail-over can lose what was saved."""
    if not states:
        return Finding("replication", Level.OK, "no replicas")
    if names and any(state in ("sync", "quorum") for state in states):
        return Finding("replication", Level.OK, f"{len(states)} replicas, synchronous")
    advice = "set synchronous_standby_names, or accept that a fail-over can lose the newest saves"
    return Finding("replication", Level.NOTE, f"{len(states)} replicas, all asynchronous", advice)


def clocks(there: dt.datetime, here: dt.datetime) -> Finding:
    """The server's clock beside ours: times of checkpoints and leases go by the server's."""
    apart = abs(there - here)
    if apart > CLOCK_SLACK:
        return Finding("clock", Level.NOTE, f"{apart.total_seconds():.0f} s apart from the server's", "synchronise both (NTP)")
    return Finding("clock", Level.OK, "the same as the server's")


def connections(used: int, allowed: int, width: int) -> Finding:
    """Whether the server has room for another process with a full pool."""
    told = f"{used} of {allowed} connections in use, a vault takes up to {width}"
    if used + width > allowed:
        return Finding("connections", Level.NOTE, told, "raise max_connections, or put PgBouncer in between")
    return Finding("connections", Level.OK, told)


# -- what is kept ----------------------------------------------------------------------------------


def contents(vault: Vault) -> Iterator[Finding]:
    """What the threads show without being read through: damage, times in the future, stale runs, what was set aside."""
    threads = list(vault.threads(limit=None))
    damaged = [info.id for info in threads if info.damage is not None]
    if damaged:
        told = f"thread {damaged[0]!r}" + (f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else "")
        yield Finding("damage", Level.PROBLEM, told, "savegame verify, then savegame repair or a backup")
    newest = max((info.updated_at for info in threads), default=None)
    now = dt.datetime.fromtimestamp(vault.store.clock() / 1e6, dt.UTC)
    if newest is not None and newest > now + CLOCK_SLACK:
        advice = "the clock was set back: leases, retention and prune go by it; synchronise it (NTP)"
        yield Finding("clock", Level.PROBLEM, f"something was saved in the future: {newest:%Y-%m-%d %H:%M:%S} UTC", advice)
    stale = sum(1 for _ in vault.stale())
    if stale:
        yield Finding("runs", Level.NOTE, f"{stale} stale", "savegame stale lists them; call the agent again for each")
    aside: Any = vault.store.sizes().get("aside", 0)
    if aside:
        yield Finding("set aside", Level.NOTE, f"{aside:,} bytes by an earlier repair", "compare with a backup")
    yield Finding("threads", Level.OK, f"{len(threads):,}, of which {len(threads) - len(damaged):,} can be listed")
