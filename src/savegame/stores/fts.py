"""An index in an SQLite file of its own, by FTS5: `FtsIndex(path)`; without a path, in memory.

Beside a store's own file, never inside it: it is dropped by removing the file. Each verb opens a connection and closes it
again, so that nothing is held across a fork or a drop. With the rollback journal and both kinds of secure delete, what was
forgotten is in no file afterwards. A file that is not ours is refused, never removed. The statements are in sql/fts.
Touches index, words, sqlite_file, sql_files, errors.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import apsw

from savegame.encoding.words import Term, spaced
from savegame.errors import CorruptionError, SavegameError, UnavailableError, UnsupportedError, of_system
from savegame.index import Entry, Found, Index, Said, damaged, rearranged
from savegame.model import ThreadKey
from savegame.stores import sqlite_file as file
from savegame.stores.sql_files import queries
from savegame.waiting.undoing import on_failure

INDEX_ID: Final = 0x53415657
VERSION: Final = 1
"""Of the schema and of how text is cut into words: after a change of either, every index is rebuilt."""

NUMBER_BITS: Final = 32
"""Of a message's number; the others are that of its thread."""

DEAR: Final = 500
"""Taking a character's words out of their places takes as long as rewriting this many bytes of the file (measured)."""

Row = tuple[Any, ...]
_HEADER: Final = slice(68, 72)
"""Where the application id stands in an SQLite file."""

_SQL_FILES = resources.files("savegame.stores") / "sql" / "fts"
SQL: Final = queries(_SQL_FILES / "queries.sql")


class FtsIndex(Index):
    """Words in one side file. With `read_only`, the file is left as it is, and a copy in memory is brought up to date."""

    def __init__(self, path: str | None = None, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._lock = threading.RLock()
        self._kept: apsw.Connection | None = None
        """The index in memory, once there is one."""

    def heads(self, namespace: str, *, agent: str | None = None) -> dict[str, str]:
        with self._reading() as db:
            if agent is None:
                return dict(_rows(db, SQL["heads"], namespace))
            return dict(_rows(db, SQL["heads_of_agent"], namespace, agent))

    def put(self, entries: Iterable[Entry]) -> None:
        with self._writing() as db:
            _put(db, entries)

    def forget(self, heads: Mapping[ThreadKey, str | None]) -> None:
        if not self.size():
            return
        try:
            with self._writing() as db:
                _forget(db, heads)
        except CorruptionError:
            self.drop()

    def find(self, namespace: str, terms: Sequence[Term], *, agent: str | None = None, limit: int = 20) -> list[Found]:
        with self._reading() as db:
            return [Found(*row) for row in _rows(db, SQL["find"], _match(terms), namespace, agent, limit)]

    def contains(self, namespace: str, text: str, *, agent: str | None = None, limit: int = 20) -> list[Found]:
        wanted = text.casefold()
        found: list[Found] = []
        with self._reading() as db:
            for no, thread_id, agent_id, head in _rows(db, SQL["newest_threads"], namespace, agent):
                if len(found) == limit:
                    break
                rows = [row for row in _messages(db, no) if wanted in row[-1].casefold()]
                if rows:
                    _, place, role, content = rows[0]
                    found.append(Found(thread_id, agent_id, head, place, role, content, 0.0, len(rows)))
        return found

    def size(self) -> int:
        with self._lock:
            if self._kept is not None:
                return int(self._kept.pragma("page_count")) * int(self._kept.pragma("page_size"))
        try:
            return os.stat(self.path).st_size if self.path else 0
        except FileNotFoundError:
            return 0

    def drop(self) -> None:
        self.close()
        if self.path is None or not os.path.exists(self.path):
            return
        if self.read_only:
            raise UnsupportedError(f"{self.path}: cannot change the search index: the vault was opened with read_only=True")
        if not _is_ours(self.path):
            raise _foreign(self.path)
        for name in (self.path + "-journal", self.path):  # in this order: no journal may be left to a newer file
            try:
                os.unlink(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _failed(self.path, "removed", error) from error

    def close(self) -> None:
        with self._lock:
            if self._kept is not None:
                self._kept.close()
                self._kept = None

    # -- connections -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        """A connection on an index that is laid out; its errors become ours."""
        if self.path is None or self.read_only:
            with self._lock:
                self._kept = self._kept or self._in_memory()
                yield self._kept
            return
        with _translated(self.path), contextlib.closing(_opened(self.path)) as db:
            yield db

    @contextlib.contextmanager
    def _writing(self) -> Iterator[apsw.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _in_memory(self) -> apsw.Connection:
        """A new index in memory; a copy of the file's, if there is one that can be read."""
        db = apsw.Connection(":memory:")
        if self.path is not None and os.path.exists(self.path) and _is_ours(self.path):
            with contextlib.suppress(CorruptionError, UnavailableError), _translated(self.path):  # then it is made from nothing
                _copy(self.path, db)
                if db.pragma("user_version") == VERSION:
                    return db
            db.close()
            db = apsw.Connection(":memory:")
        _lay_out(db)
        return db


def _opened(path: str) -> apsw.Connection:
    if not os.path.exists(path):
        _create(path)
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    with on_failure(db.close):
        db.set_busy_timeout(file.BUSY_MS)
        for name, value in (("secure_delete", 1), ("synchronous", 1), ("temp_store", 2), ("cache_size", -16_000)):
            db.pragma(name, value)
        if (db.pragma("application_id"), db.pragma("user_version")) != (INDEX_ID, VERSION):
            _lay_out(db)
    return db


def _create(path: str) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:  # another process created it meanwhile
        return
    except OSError as error:
        raise _failed(path, "made", error) from error


def _failed(path: str, what: str, error: OSError) -> SavegameError:
    return of_system(error, f"{path}: the search index cannot be {what}", "check the directory")


def _lay_out(db: apsw.Connection) -> None:
    """Make the tables of an empty file. Raises CorruptionError for another version of ours, UnsupportedError for a stranger."""
    db.execute("BEGIN IMMEDIATE")
    application, version = db.pragma("application_id"), db.pragma("user_version")
    if _rows(db, SQL["is_empty"]) == [(1,)]:
        db.execute(_SCHEMA)
        db.pragma("application_id", INDEX_ID)
        db.pragma("user_version", VERSION)
    elif application != INDEX_ID:
        raise _foreign(db.filename)
    elif version != VERSION:  # else another process has laid it out meanwhile
        raise damaged(db.filename, f"version {version}, not {VERSION}")
    db.execute("COMMIT")


_SCHEMA: Final = (_SQL_FILES / "schema.sql").read_text()


def _copy(path: str, target: apsw.Connection) -> None:
    with contextlib.closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as source:
        source.set_busy_timeout(file.BUSY_MS)
        with target.backup("main", source, "main") as backup:
            backup.step()


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    with file.translated(path):
        try:
            yield
        except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, UnicodeDecodeError) as error:
            if not _is_ours(path):
                raise _foreign(path) from error
            raise damaged(path, error) from error
        except (apsw.ReadOnlyError, apsw.CantOpenError) as error:
            moved = getattr(error, "extendedresult", None) == apsw.SQLITE_READONLY_DBMOVED
            if not moved and os.path.exists(path):
                raise
            raise damaged(path, "dropped by another process meanwhile") from error


def _is_ours(path: str) -> bool:
    """Whether a file is an index, or was one before it was damaged. An empty file is neither."""
    try:
        if not os.stat(path).st_size:
            return True
        with file.translated(path), contextlib.closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as db:
            db.set_busy_timeout(file.BUSY_MS)
            return bool(db.pragma("application_id") == INDEX_ID)
    except CorruptionError:
        with open(path, "rb") as stream:  # SQLite cannot hold locks on it, which closing it would drop
            return int.from_bytes(stream.read(_HEADER.stop)[_HEADER], "big") == INDEX_ID
    except FileNotFoundError:
        return True


def _foreign(path: str) -> UnsupportedError:
    return UnsupportedError(f"{path}: expected a search index here, found another file; nothing was changed, move it away")


# -- rows ------------------------------------------------------------------------------------------


def _put(db: apsw.Connection, entries: Iterable[Entry]) -> None:
    doomed: list[Row] = []
    for entry in entries:
        ((no,),) = _rows(db, SQL["put_thread"], *entry.key, entry.agent, entry.head, entry.updated_us)
        doomed += _replace(db, no, entry.messages)
    _erase(db, doomed)


def _forget(db: apsw.Connection, heads: Mapping[ThreadKey, str | None]) -> None:
    doomed: list[Row] = []
    for key, head in heads.items():
        for (no,) in _rows(db, SQL["thread_no"], *key, head):
            doomed += _messages(db, no)
            db.execute(SQL["delete_thread"], (no,))
    _erase(db, doomed)


def _replace(db: apsw.Connection, no: int, messages: Sequence[Said]) -> list[Row]:
    """Make the messages of a thread those; what is there already only moves to its place. Gives what is left over."""
    rows = {row[0]: row for row in _messages(db, no)}
    moved, new, left = rearranged([(key, place, Said(*message)) for key, place, *message in rows.values()], messages)
    for key, place in moved:
        db.execute(SQL["move_message"], (place, key))
    for key, place in enumerate(new, max(rows, default=no << NUMBER_BITS) + 1):
        db.execute(SQL["put_message"], (key, place, *messages[place]))
        db.execute(SQL["put_words"], (key, spaced(messages[place].text)))
    return [rows[key] for key in left]


def _erase(db: apsw.Connection, doomed: list[Row]) -> None:
    """Remove messages and their words, leaving no trace: FTS5 takes out word by word, or rewrites all others."""
    if not doomed:
        return
    whole = sum(len(row[-1]) for row in doomed) * DEAR > db.pragma("page_count") * db.pragma("page_size")
    db.execute(SQL["set_secure_delete"], (not whole,))
    for key, *_, text in doomed:
        db.execute(SQL["delete_words"], (key, spaced(text)))
        db.execute(SQL["delete_message"], (key,))
    if whole:
        db.execute(SQL["rewrite_words"])


def _messages(db: apsw.Connection, no: int) -> list[Row]:
    """Those of a thread, in order: number, place, role, text."""
    return _rows(db, SQL["messages"], no << NUMBER_BITS, (no + 1 << NUMBER_BITS) - 1)


def _rows(db: apsw.Connection, statement: str, *values: Any) -> list[Row]:
    return db.execute(statement, values).fetchall()


def _match(terms: Sequence[Term]) -> str:
    """FTS5's expression for terms. Each is quoted, so that nothing in it is syntax."""
    return " AND ".join(_quoted(term) for term in terms)


def _quoted(term: Term) -> str:
    text = term.text.translate({0: " ", ord('"'): " "}).strip()
    # `c++` is a word c, not the beginning of any word.
    return f'"{text}"*' if term.open and text[-1].isalnum() else f'"{text}"'
