"""The SQLite file itself: creating it, checking that it is ours, opening connections, translating SQLite's errors.

No code here or anywhere in savegame opens the database file, its -wal or its -shm except SQLite: closing such a
descriptor would drop the locks of every connection in the process and lose committed data without a word.
Touches store, errors, frames, sql_files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
import time
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final, TypeAlias

import apsw

from savegame.encoding.frames import unpack_id
from savegame.errors import (
    ClosedError,
    CorruptionError,
    InvalidInputError,
    OutOfSpace,
    SavegameError,
    StoreNotFound,
    UnavailableError,
    UnsupportedError,
    of_system,
)
from savegame.store import Layout
from savegame.stores import sql_files
from savegame.stores.refusals import newer_format, refused_ending
from savegame.waiting.retrying import OPENINGS
from savegame.waiting.undoing import on_failure

APPLICATION_ID: Final = 0x53415645
PAGE_SIZE: Final = 8192
BUSY_MS: Final = 30_000
NETWORK_FILE_SYSTEMS: Final = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ncpfs"))

_SQL = resources.files("savegame.stores") / "sql" / "sqlite"
SQL: Final = sql_files.queries(_SQL / "queries.sql")
MIGRATIONS: Final = sql_files.migrations(_SQL / "migrations")
"""Every step of the layout, as (version, SQL), oldest first. Read at import: a process may run out of descriptors later."""

NEWEST_LAYOUT: Final = MIGRATIONS[-1][0]

Identity: TypeAlias = tuple[tuple[int, int] | None, ...]
"""Which files a name stands for: device and inode of the database, its -wal and its -shm; None for one that is missing."""


@functools.cache
def repeated(name: str, count: int) -> str:
    """A named statement with the row of VALUES at its end that many times."""
    before, row = SQL[name].split("VALUES ")
    return f"{before}VALUES {', '.join([row] * count)}"


class Connection(apsw.Connection):
    """A connection with a cursor that it keeps: `execute` makes a new one for each statement, which takes longer than many do.

    `run` is `execute` on that cursor, for statements whose rows, if they have any, are all fetched before the next; one that
    an exception left half read is ended by the next. `files` are those that it has open; `looked` is the directory's time of
    change when they were last seen to be the ones with their names. While `lent` to a block of a user's, it cannot be closed.
    """

    def __init__(self, path: str, *, flags: int) -> None:
        super().__init__(path, flags=flags, statementcachesize=100)
        self.run = self.cursor().execute
        self.files: Identity = ()
        self.looked = 0
        self.lent = False

    def close(self, force: bool = False) -> None:  # noqa: FBT001, FBT002 - as apsw has it
        """Close it, unless it is `lent`."""
        if self.lent:
            raise refused_ending("close()")
        super().close(force)


def all_rows(db: Connection, name: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a named statement."""
    return db.run(SQL[name], values).fetchall()


def one_row(db: Connection, name: str, *values: Any) -> tuple[Any, ...] | None:
    """The first row of a named statement, or None."""
    rows = db.run(SQL[name], values).fetchall()
    return rows[0] if rows else None


def id_of(db: Connection, frame_key: int) -> str | None:
    """The id of the frame with a key."""
    place = one_row(db, "frame_place", frame_key)
    return None if place is None else unpack_id(place[2])


def has_wal_reset_bug(version: str) -> bool:
    """Whether an SQLite of this version can lose committed data when two connections share a file in WAL mode."""
    number = tuple(int(part) for part in version.split("."))
    fixed = number >= (3, 51, 3) or (3, 50, 7) <= number < (3, 51) or (3, 44, 6) <= number < (3, 45)
    return not fixed


def check_library() -> None:
    """Refuse an SQLite with the WAL-reset bug, which loses data without any crash."""
    if has_wal_reset_bug(apsw.sqlite_lib_version()):
        raise UnsupportedError(
            f"apsw brings SQLite {apsw.sqlite_lib_version()}, which can lose data (WAL-reset bug); "
            f"install a current one: pip install -U apsw"
        )


# -- errors ----------------------------------------------------------------------------------------

_OUT_OF_SPACE = "the disk is full: nothing was saved; make room and retry"
_MAPPING: Final[list[tuple[type[Exception], type[SavegameError], str]]] = [
    (apsw.FullError, OutOfSpace, _OUT_OF_SPACE),
    (apsw.BusyError, UnavailableError, "another process holds the file; retry"),
    (apsw.ProtocolError, UnavailableError, "other writers were quicker for seconds on end; retry"),
    (apsw.LockedError, UnavailableError, "another statement holds the table; retry"),
    (apsw.InterruptError, UnavailableError, "the statement was interrupted; retry"),
    (apsw.NoMemError, UnavailableError, "SQLite ran out of memory; retry"),
    (apsw.CorruptError, CorruptionError, "the database file is damaged; run verify, then restore a backup"),
    (apsw.ConstraintError, CorruptionError, "a stored row is damaged; run verify, then restore a backup"),
    (apsw.NotADBError, CorruptionError, "the file is not an SQLite database; restore a backup"),
    (apsw.ReadOnlyError, UnsupportedError, "the file or its directory is read-only"),
    (
        apsw.CantOpenError,
        UnavailableError,
        "the file cannot be opened; check its directory, its mode, and the limit of open files (ulimit -n)",
    ),
    (apsw.PermissionsError, UnavailableError, "access was denied; check the permissions"),
    (apsw.AuthError, UnavailableError, "access was denied; check the permissions"),
    (apsw.TooBigError, UnsupportedError, "a value is larger than SQLite can keep (about 1 GB)"),
    (apsw.ConnectionClosedError, ClosedError, "the vault is closed; open it again"),
    (apsw.CursorClosedError, ClosedError, "the vault is closed; open it again"),
    (apsw.SQLError, CorruptionError, "the tables are not those of a savegame file; run verify, then restore a backup"),
    (apsw.IOError, UnavailableError, "reading or writing the file failed; check the disk"),
]


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn SQLite's errors into ours, with the file and the next step."""
    try:
        yield
    except apsw.Error as error:
        ours = translate(error, path)
        if ours is None:
            raise
        raise ours from error
    except (UnicodeDecodeError, OverflowError) as error:  # a text that is none, a number that is too large
        raise CorruptionError(
            f"{path}: a stored value is damaged; run verify, then repair or restore a backup ({error})"
        ) from error


def translate(error: apsw.Error, path: str) -> SavegameError | None:
    """Our error for one of SQLite's; None for what only a mistake of ours can cause."""
    for theirs, ours, advice in _MAPPING:
        if isinstance(error, theirs):
            return ours(f"{path}: {advice} (SQLite: {error})")
    return None


def checked_path(path: str) -> str:
    """The real path of a file, if SQLite can have one there. Raises InvalidInputError."""
    text = os.fspath(path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{text!r} is not valid Unicode; choose another path") from error
    if "\0" in text:
        raise InvalidInputError(f"{text!r} contains a NUL character; choose another path")
    if text == ":memory:":
        raise InvalidInputError("a vault in memory is savegame.open('memory:'), without SQLite")
    return os.path.realpath(text)


# -- files -----------------------------------------------------------------------------------------


def prepare(path: str, *, read_only: bool) -> Layout:
    """Make the file if it is missing, whole or not at all; else check that it is ours and of a version that we know."""
    check_library()
    status = _stat(path)
    if status is None:
        if read_only:
            raise StoreNotFound(f"{path}: the file does not exist; omit read_only=True to create it")
        _make_directories(os.path.dirname(path))
        _check_file_system(path)
        _create(path)
        return Layout(0, NEWEST_LAYOUT)
    if not stat.S_ISREG(status.st_mode):
        raise UnsupportedError(f"{path}: is not a file; use the path of a file, for example {path}/agents.db")
    _check_file_system(path)
    if status.st_nlink > 1:
        _refuse_hard_links(path)
    if status.st_size == 0:
        if read_only:
            raise StoreNotFound(f"{path}: is empty; omit read_only=True to create a vault in it")
        with contextlib.suppress(PermissionError):  # it belongs to another user, who has given us access
            os.chmod(path, stat.S_IMODE(status.st_mode) & 0o600)
        with translated(path), contextlib.closing(apsw.Connection(path)) as db:
            db.set_busy_timeout(BUSY_MS)
            _lay_out(db)
    found = _check_ours(path, read_only=read_only)
    return Layout(found if status.st_size else 0, found if read_only else NEWEST_LAYOUT)


def connect(path: str, *, read_only: bool, synchronous: int, cache_kib: int = 2000) -> Connection:
    """A connection with every setting made and read back, which knows which files it has open."""
    for _ in range(OPENINGS):
        before = identity(path)
        db = _connect(path, read_only=read_only, synchronous=synchronous, cache_kib=cache_kib)
        db.files = identity(path)
        if same_files(before, db.files):
            return db
        db.close()
    raise UnavailableError(f"{path}: kept being replaced while it was opened; stop what replaces it, then retry")


def _connect(path: str, *, read_only: bool, synchronous: int, cache_kib: int) -> Connection:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    with translated(path):
        db = Connection(path, flags=flags)
        with on_failure(db.close):
            db.set_busy_timeout(BUSY_MS)
            for name, value in (
                ("journal_mode", "wal"),
                ("synchronous", synchronous),
                ("trusted_schema", 0),
                ("cell_size_check", 1),
                ("secure_delete", 1),
                ("mmap_size", 0),
                ("temp_store", 2),
                ("cache_size", -cache_kib),
            ):
                _set(db, name, value, read_only=read_only)
    return db


def _set(db: apsw.Connection, name: str, value: str | int, *, read_only: bool) -> None:
    if read_only and name == "journal_mode":
        return  # a backup that was never written to is not in WAL mode, and need not be for reading
    _set_patiently(db, name, value)
    found = db.pragma(name)
    if found != value and not (name == "mmap_size" and found is None):
        raise UnsupportedError(f"{db.filename}: SQLite set {name}={found!r} instead of {value!r}")


def _set_patiently(db: apsw.Connection, name: str, value: str | int) -> None:
    """Make a setting. For the switch to WAL SQLite does not wait for others by itself, whatever the busy timeout is."""
    deadline = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            db.pragma(name, value)
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:  # unreadable is not missing: a fresh start over live data would be worse
        raise UnavailableError(f"{path}: cannot be inspected ({error.strerror}); check the permissions") from error


def _make_directories(directory: str) -> None:
    missing = []
    while directory and not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise UnavailableError(f"{path}: is not a directory; move it away") from None
        except OSError as error:
            raise UnavailableError(f"{path}: the directory cannot be created ({error.strerror})") from error


def _create(path: str) -> None:
    """Lay out a new file beside its place and link it there: no process ever sees half of one."""
    fresh = beside(path)
    try:
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            with translated(path), contextlib.closing(apsw.Connection(fresh)) as db:
                _lay_out(db)
            with contextlib.suppress(FileExistsError):  # another process created it meanwhile: that one will do
                os.link(fresh, path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # a process that opened the new file has removed it
                os.unlink(fresh)
        sync_directory(os.path.dirname(path))
    except OSError as error:
        raise of_system(error, f"{path}: the file cannot be made", "check the directory") from error
    _check_ours(path, read_only=False)


def _lay_out(db: apsw.Connection) -> None:
    db.pragma("page_size", PAGE_SIZE)
    db.pragma("synchronous", 2)
    _migrate(db)
    _set_patiently(db, "journal_mode", "wal")


def _migrate(db: apsw.Connection) -> None:
    """Bring the layout and its indexes from whatever version they have to today's, whole or not at all."""
    db.execute("BEGIN EXCLUSIVE")
    version = int(db.pragma("user_version"))
    for number, text in MIGRATIONS:
        if number > version:
            db.execute(text)
            db.pragma("user_version", number)
    db.execute(SQL["make_sought"])
    db.pragma("application_id", APPLICATION_ID)
    db.execute("COMMIT")


def sync_directory(directory: str) -> None:
    """Make names in a directory durable."""
    handle = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_ours(path: str, *, read_only: bool) -> int:
    """Refuse a file that is not ours or is newer than we are; bring an older one up to date. Gives the version found."""
    try:
        # Only a connection that may write takes the -wal and -shm that it makes away again; an existing -wal is left alone.
        flags = apsw.SQLITE_OPEN_READONLY if os.path.exists(path + "-wal") else apsw.SQLITE_OPEN_READWRITE
        with contextlib.closing(apsw.Connection(path, flags=flags)) as db:
            db.set_busy_timeout(BUSY_MS)
            application, version = db.pragma("application_id"), db.pragma("user_version")
            is_ours = application == APPLICATION_ID and version <= NEWEST_LAYOUT
            is_whole = is_ours and version == NEWEST_LAYOUT and bool(db.execute(SQL["has_sought"]).fetchall()[0][0])
    except apsw.NotADBError as error:
        raise UnsupportedError(f"{path}: is not a savegame file (not an SQLite database); nothing was changed") from error
    except apsw.Error as error:
        raise translate(error, path) or error from error
    if application != APPLICATION_ID:
        raise UnsupportedError(f"{path}: is an SQLite database of another program; nothing was changed, choose another path")
    if version > NEWEST_LAYOUT:
        raise newer_format(path, version, NEWEST_LAYOUT)
    if not is_whole and not read_only:
        with translated(path), contextlib.closing(apsw.Connection(path)) as db:
            db.set_busy_timeout(BUSY_MS)
            _migrate(db)
    return int(version)


def _check_file_system(path: str) -> None:
    """Refuse network file systems: several machines cannot share the memory that WAL needs."""
    kind = file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise UnsupportedError(f"{path}: lies on {kind}, where SQLite's WAL is not safe; use a local disk, or PostgreSQL")


def file_system(path: str) -> str | None:
    """The type of the file system that a path lies on; None where the system does not say (no /proc)."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            mounts = [line.split(" - ") for line in lines]
    except OSError:
        return None
    real = os.path.realpath(os.path.dirname(path) or ".")
    best: tuple[int, str | None] = (-1, None)
    for left, right in (mount for mount in mounts if len(mount) == 2):
        point = left.split()[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best[0]:
            best = (len(point), right.split()[0])
    return best[1]


def beside(path: str) -> str:
    """A new name in the same directory, for a file that is linked to its own name once it is whole."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name[:64]}.{secrets.token_hex(16)}.new")


def _refuse_hard_links(path: str) -> None:
    """Refuse a file with several names: each would have a write-ahead log of its own, and saves would vanish.

    A second name from `beside` does not count: the creator of the file is about to remove it, or was killed before it could.
    """
    directory, name = os.path.split(path)
    try:
        for other in os.listdir(directory):
            if other.startswith(f".{name[:64]}.") and other.endswith(".new"):
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samefile(os.path.join(directory, other), path):
                        os.unlink(os.path.join(directory, other))
        links = os.stat(path).st_nlink
    except OSError as error:
        raise UnavailableError(f"{path}: its directory cannot be searched ({error.strerror}); check the permissions") from error
    if links > 1:
        raise UnsupportedError(
            f"{path}: has {links} names (hard links), and saves through one would destroy those through another; "
            f"remove the other names, or open a copy of the file"
        )


def identity(path: str) -> Identity:
    """Which files the database, its -wal and its -shm are, without opening them."""
    return tuple(_inode(path + suffix) for suffix in ("", "-wal", "-shm"))


def same_files(before: Identity, now: Identity) -> bool:
    """Whether all files that existed before are still the ones with their names."""
    return all(was in (None, found) for was, found in zip(before, now, strict=True))


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
