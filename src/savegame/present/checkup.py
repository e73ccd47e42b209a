"""What puts a vault at risk: the SQLite library, the disk, files and their modes, a server's settings, the clock.

Checks every cause from SQLite's "How To Corrupt" page that is visible from outside, and every setting that weakens what
PostgreSQL promises. Changes nothing, reads no data in full (`verify` does that), and opens database files only through
their store.
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
"""The write-ahead log is written back long before this size, unless a reader blocks that."""

CLOCK_SLACK: Final = dt.timedelta(seconds=5)

_CUT_SHORT: Final = "compact, repair and long searches may be aborted"
_CUT_BLOCK: Final = "longer transaction tools and blocks of connection() are aborted"
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
"""Settings that a role or database may override: a pattern of usual values, and the effect of others."""

SQL: Final = queries(resources.files("savegame.stores") / "sql" / "postgres" / "checkup.sql")


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """The result of one check; `advice` is what to do about it."""

    check: str
    level: Level
    found: str
    advice: str | None = None


def examine(address: str, namespace: str) -> Iterator[Finding]:
    """Check a vault and its environment. A vault that cannot be opened is a finding, not an error; none is created."""
    path = _path_of(address)
    if path is not None:  # the file store's search index is an SQLite file too
        yield sqlite_library(apsw.sqlite_lib_version())
    if path is not None and not path.is_dir():
        yield sqlite_elsewhere(sqlite3.sqlite_version)
    if path is not None and path.exists():
        yield from disk(path)
    try:
        open_vault(address, read_only=True).close()  # raises for a missing vault instead of creating it
        with open_vault(address, namespace=namespace) as vault:
            layout = vault.store.layout
            yield Finding("store", Level.OK, f"{vault.store.scheme} opens" + (f", layout {layout.now}" if layout else ""))
            if vault.store.scheme == "postgresql":
                yield from server(vault)
            yield from contents(vault)
    except StoreNotFound as error:
        found, _, _ = str(error).partition("; ")  # without the advice, which is for programs
        yield Finding("store", Level.PROBLEM, found, "check the address; a vault is created when a program first opens it")
    except SavegameError as error:
        found, _, advice = str(error).partition("; ")  # messages have the form: problem; advice
        yield Finding("store", Level.PROBLEM, found, advice or None)


def _path_of(address: str) -> Path | None:
    """The file or directory of an SQLite or file store; None for other stores."""
    scheme, colon, rest = address.partition(":")
    if colon and scheme in ("sqlite", "file"):
        return Path(os.path.realpath(rest))
    return None if colon and scheme.isalnum() and len(scheme) > 1 else Path(os.path.realpath(address))


# -- the machine -----------------------------------------------------------------------------------


def sqlite_library(version: str) -> Finding:
    """The SQLite library of savegame."""
    if has_wal_reset_bug(version):
        return Finding("SQLite", Level.PROBLEM, f"{version} can lose data (WAL-reset bug)", "pip install --upgrade apsw")
    return Finding("SQLite", Level.OK, version)


def sqlite_elsewhere(version: str) -> Finding:
    """The SQLite library of this Python, which other programs on the machine are likely to use."""
    if has_wal_reset_bug(version):
        advice = "open the vault's file only with savegame; let other programs read a backup"
        return Finding("SQLite of the system", Level.NOTE, f"{version} can lose data (WAL-reset bug)", advice)
    return Finding("SQLite of the system", Level.OK, version)


def disk(path: Path) -> Iterator[Finding]:
    """File system, permissions, missing or replaced files, free space."""
    yield on_file_system(file_system(os.fspath(path / "x" if path.is_dir() else path)))
    yield _modes(path)
    if path.is_file():
        yield from _sqlite_files(path)
    free = shutil.disk_usage(path).free
    size = bytes_on_disk(path)
    if free < 2 * size:
        found = f"{size_text(free)} free for a vault of {size_text(size)}"
        yield Finding("space", Level.NOTE, found, "compact may need twice the size of the file; free some space first")
    else:
        yield Finding("space", Level.OK, f"{size_text(free)} free")


def bytes_on_disk(path: Path) -> int:
    """Size of a file, or of all files in a directory."""
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


def on_file_system(kind: str | None) -> Finding:
    """The kind of file system of the vault."""
    if kind in NETWORK_FILE_SYSTEMS:
        advice = "its locks and flushes are unreliable; use a local disk or PostgreSQL"
        return Finding("file system", Level.PROBLEM, f"{kind} is a network file system", advice)
    return Finding("file system", Level.OK, kind or "unknown")


def _modes(path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    right = 0o700 if path.is_dir() else 0o600
    around = path.parent.stat().st_mode
    if mode & 0o077:
        return Finding("modes", Level.PROBLEM, f"other users can read or write it: mode {mode:04o}", f"chmod {right:o} {path}")
    if around & stat.S_IWOTH and not around & stat.S_ISVTX:
        advice = f"chmod o-w {path.parent}"
        return Finding("modes", Level.PROBLEM, "any user can replace it: its directory is world-writable", advice)
    return Finding("modes", Level.OK, f"{mode:04o}")


def _sqlite_files(path: Path) -> Iterator[Finding]:
    if path.stat().st_nlink > 1:
        advice = "remove all names but one: each name has its own -wal, and writers under two names corrupt the file"
        yield Finding("links", Level.PROBLEM, f"the file has {path.stat().st_nlink} names (hard links)", advice)
    lost = sorted(_holders_of_lost_files(path))
    if lost:
        found = f"process {', '.join(map(str, lost))} writes to a file that was deleted or replaced"
        advice = "its saves are lost: restart it, and find out what removed the file, its -wal or its -shm"
        yield Finding("write-ahead log", Level.PROBLEM, found, advice)
        return
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > LARGE_WAL:
        advice = "a reader has been open for very long; end it, then run savegame compact"
        yield Finding("write-ahead log", Level.NOTE, size_text(size), advice)
    else:
        yield Finding("write-ahead log", Level.OK, size_text(size))


def _holders_of_lost_files(path: Path) -> Iterator[int]:
    """Processes that have deleted files of this store open, among those we may inspect."""
    lost = {f"{path}{suffix} (deleted)" for suffix in ("", "-wal", "-shm")}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or belongs to another user
            if any(os.readlink(handle) in lost for handle in (process / "fd").iterdir()):
                yield int(process.name)


# -- PostgreSQL ------------------------------------------------------------------------------------


def server(vault: Vault) -> Iterator[Finding]:
    """The settings and state of a PostgreSQL server."""
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
    """Settings without which a crash of the server loses or damages saved data."""
    for name, risk in (
        ("fsync", "a crash of the server's machine can destroy the database"),
        ("full_page_writes", "a crash during a write can leave torn pages"),
    ):
        if settings[name] == "on":
            yield Finding(name, Level.OK, "on")
        else:
            yield Finding(name, Level.PROBLEM, f"off: {risk}", f"set {name} = on in postgresql.conf, then reload")
    if settings["data_checksums"] == "on":
        yield Finding("data_checksums", Level.OK, "on")
    else:
        advice = "savegame checks its own rows; for everything else, run pg_checksums --enable while the server is stopped"
        yield Finding("data_checksums", Level.NOTE, "off", advice)


def session_settings(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Settings that the role or database overrides, and their effect on savegame."""
    given = {name: settings[name] for name in SESSION if name in settings}  # older servers lack some
    unusual = {name: value for name, value in given.items() if not re.fullmatch(SESSION[name][0], value)}
    for name, value in unusual.items():
        advice = f"unless intended, run ALTER ROLE ... RESET {name} or ALTER DATABASE ... RESET {name}"
        yield Finding(name, Level.NOTE, f"{value}: {SESSION[name][1]}", advice)
    usual = ", ".join(f"{name} {value}" for name, value in given.items() if name not in unusual)
    if usual:
        yield Finding("session settings", Level.OK, usual)


def replication(names: str, states: list[str]) -> Finding:
    """Whether a failover can lose saved data."""
    if not states:
        return Finding("replication", Level.OK, "no replicas")
    if names and any(state in ("sync", "quorum") for state in states):
        return Finding("replication", Level.OK, f"{len(states)} replicas, synchronous")
    advice = "set synchronous_standby_names, or accept that a failover can lose the newest saves"
    return Finding("replication", Level.NOTE, f"{len(states)} replicas, all asynchronous", advice)


def clocks(there: dt.datetime, here: dt.datetime) -> Finding:
    """The difference between the server's clock, which dates checkpoints and leases, and ours."""
    apart = abs(there - here)
    if apart > CLOCK_SLACK:
        found = f"differs from the server's by {apart.total_seconds():.0f} s"
        return Finding("clock", Level.NOTE, found, "synchronize both clocks (NTP)")
    return Finding("clock", Level.OK, "same as the server's")


def connections(used: int, allowed: int, width: int) -> Finding:
    """Whether the server has enough connections for another process."""
    found = f"{used} of {allowed} connections in use, a vault uses up to {width}"
    if used + width > allowed:
        return Finding("connections", Level.NOTE, found, "raise max_connections, or use PgBouncer")
    return Finding("connections", Level.OK, found)


# -- the data --------------------------------------------------------------------------------------


def contents(vault: Vault) -> Iterator[Finding]:
    """What the list of threads shows: damage, times in the future, stale runs, data set aside."""
    threads = list(vault.threads(limit=None))
    damaged = [info.id for info in threads if info.damage is not None]
    if damaged:
        found = f"thread {damaged[0]!r}" + (f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else "")
        yield Finding("damage", Level.PROBLEM, found, "run savegame verify, then savegame repair, or restore a backup")
    newest = max((info.updated_at for info in threads), default=None)
    now = dt.datetime.fromtimestamp(vault.store.clock() / 1e6, dt.UTC)
    if newest is not None and newest > now + CLOCK_SLACK:
        advice = "the clock was set back; leases, retention and prune depend on it; synchronize it (NTP)"
        yield Finding("clock", Level.PROBLEM, f"a checkpoint is in the future: {newest:%Y-%m-%d %H:%M:%S} UTC", advice)
    stale = sum(1 for _ in vault.stale())
    if stale:
        yield Finding("runs", Level.NOTE, f"{stale} stale", "list them with savegame stale, and call each agent again")
    aside: Any = vault.store.sizes().get("aside", 0)
    if aside:
        yield Finding("set aside", Level.NOTE, f"{aside:,} bytes by an earlier repair", "compare with a backup")
    yield Finding("threads", Level.OK, f"{len(threads):,}, {len(threads) - len(damaged):,} of them readable")
