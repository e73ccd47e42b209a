"""What `langgraph_import` reads from: `open_source(address)`. Here is what all sources share, and the files of SqliteSaver.

A source is only read. No object in it is loaded: values are copied as the bytes that LangGraph's serializer wrote, and
formats that could name any class are refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import apsw
import ormsgpack

from savegame.adapters._langgraph_places import GraphPlace
from savegame.errors import CorruptionError, InvalidInputError, StoreNotFound, UnavailableError, UnsupportedError
from savegame.opening import shown_address

BUSY_MS: Final = 30_000
POSTGRES: Final = ("postgresql://", "postgres://")
_OPTIONS: Final = re.compile(r"\s*(dbname|host|hostaddr|password|port|service|user)\s*=")
"""How libpq's other form of an address begins."""

_COLUMNS: Final = "SELECT name FROM pragma_table_info(?)"
_THREADS: Final = "SELECT thread_id, count(*) FROM checkpoints GROUP BY 1 ORDER BY 1"
_PLACES: Final = "SELECT checkpoint_ns, count(*) FROM checkpoints WHERE thread_id = ? GROUP BY 1 ORDER BY 1"
_IDS: Final = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id"
_CHECKPOINT: Final = """
SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints
WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?
"""
_WRITES: Final = """
SELECT task_id, task_path, idx, channel, type, value FROM writes
WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?
"""
_WRITES_WITHOUT_PATH: Final = """
SELECT task_id, '', idx, channel, type, value FROM writes
WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?
"""
_NEEDED: Final = {
    "checkpoints": {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"},
    "writes": {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "value"},
}
_KINDS: Final = ("msgpack", "null", "bytes", "bytearray")
_PARTS: Final = ("channel_values", "channel_versions", "versions_seen")


def open_source(address: str | os.PathLike[str]) -> ThreadSource:
    """The threads of a SqliteSaver file, or of the PostgresSaver database at a postgresql:// address.

    Raises StoreNotFound, UnsupportedError or UnavailableError if there is none, and InvalidInputError for a wrong address.
    """
    text = os.fspath(address)
    if text.startswith(POSTGRES):
        try:
            from savegame.adapters._langgraph_postgres import PostgresDatabase
        except ImportError as error:
            raise UnsupportedError(
                f'{shown_address(text)} needs psycopg ({error}): pip install "savegame[langgraph,postgres]"'
            ) from error
        return PostgresDatabase(text)
    if _OPTIONS.match(text) and not Path(text).is_file():
        raise InvalidInputError("write the address as a URL, postgresql://user@host:5432/database; name=value is not supported")
    if "://" in text:
        raise UnsupportedError(
            f"{shown_address(text)} is neither a file nor a postgresql:// address, and only LangGraph's SqliteSaver and "
            f"PostgresSaver can be imported; first copy the threads into a file of SqliteSaver, with put and put_writes for "
            f"everything that list of the other saver returns"
        )
    return SqliteFile(text)


class Sealed:
    """A serializer that loads no objects: extensions, in which LangGraph names classes, stay bytes."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The bytes that LangGraph's serializer wrote for this value."""
        if obj is None:
            return "null", b""
        if isinstance(obj, (bytes, bytearray)):
            return type(obj).__name__, bytes(obj)
        return "msgpack", ormsgpack.packb(obj, option=ormsgpack.OPT_NON_STR_KEYS)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value with its objects as extensions. Raises ValueError for bytes that do not decode."""
        kind, body = data
        if kind == "msgpack":
            return ormsgpack.unpackb(body, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)
        if kind == "null":
            return None
        return bytearray(body) if kind == "bytearray" else body


SEALED: Final = Sealed()


class Write(NamedTuple):
    """A pending write of a task."""

    task_id: str
    task_path: str
    number: int
    channel: str
    value: Any


class OldCheckpoint(NamedTuple):
    """A checkpoint of a source, without loaded objects, and its pending writes in order."""

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    parent: str | None
    writes: list[Write]


class ThreadSource(ABC):
    """The threads of a stock saver. `name` is its address without secrets. Leaving the `with` block closes it."""

    saver: str
    kind: str

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    @abstractmethod
    def threads(self) -> list[tuple[str, int]]:
        """All threads, with their numbers of checkpoints in all namespaces."""

    @abstractmethod
    def places(self, thread_id: str) -> list[tuple[GraphPlace, int]]:
        """The namespaces of a thread, with their numbers of checkpoints. What is read next of the thread is as of now."""

    @abstractmethod
    def ids(self, place: GraphPlace) -> list[str]:
        """LangGraph's checkpoint ids at a place, oldest first."""

    @abstractmethod
    def read(self, place: GraphPlace, external_id: str) -> OldCheckpoint:
        """One checkpoint. Raises CorruptionError if it is damaged, UnsupportedError if its format cannot be read safely."""

    def value(self, where: str, kind: str | None, data: Any) -> Any:
        """A stored value, sealed."""
        if kind not in _KINDS:
            reason = "it is encrypted" if "+" in (kind or "") else "it can name any class or function"
            raise UnsupportedError(
                f"{self.name}: {where}: the format {kind!r} is not supported, because {reason}. If you trust the {self.kind}, "
                f"copy it with the stock {self.saver} (put and put_writes for all that list returns, into a new {self.kind}, "
                f"which then has 'msgpack'), and import the copy"
            )
        if not isinstance(data, bytes):
            raise self.damage(where, f"the value is {type(data).__name__}, not bytes")
        try:
            return SEALED.loads_typed((kind, data))
        except (ValueError, TypeError, RecursionError) as error:
            raise self.damage(where, f"the value does not decode ({error})") from error

    def from_json(self, where: str, what: str, data: Any) -> dict[str, Any]:
        """A JSON object."""
        try:
            found = {} if data is None else json.loads(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise self.damage(where, f"the {what} does not decode ({error})") from error
        if type(found) is not dict:
            raise self.damage(where, f"the {what} is not a JSON object")
        return found

    def checkpoint(self, where: str, external_id: str, found: Any) -> dict[str, Any]:
        """The checkpoint of a row, if it is that one."""
        if type(found) is not dict or found.get("id") != external_id:
            raise self.damage(where, "the row does not contain this checkpoint")
        for part in _PARTS:
            if type(found.get(part)) is not dict:
                raise self.damage(where, f"it has no {part}")
        for node, seen in found["versions_seen"].items():
            if type(node) is not str or type(seen) is not dict or not all(type(channel) is str for channel in seen):
                raise self.damage(where, "its versions_seen are not the versions of channels by node")
        return found

    def writes(self, where: str, rows: Iterable[tuple[Any, ...]]) -> list[Write]:
        """Pending writes in LangGraph's order."""
        writes = [
            Write(task, path, number, channel, self.value(f"{where}, write {number} of task {task!r}", form, value))
            for task, path, number, channel, form, value in rows
        ]
        return sorted(writes, key=lambda write: (write.task_path, write.task_id, write.number))

    def damage(self, where: str, what: str) -> CorruptionError:
        """The error for a damaged row."""
        return CorruptionError(
            f"{self.name}: {where}: {what}; nothing of this thread was imported. "
            f"Restore a backup, or delete the row in a copy of the {self.kind} and import that"
        )


class SqliteFile(ThreadSource):
    """A read-only snapshot of a file of the stock SqliteSaver."""

    saver = "SqliteSaver"
    kind = "file"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if not Path(path).is_file():
            raise StoreNotFound(f"{path} is not an existing file; pass the path of one of LangGraph's SqliteSaver")
        with self._errors("the file"):
            self._db = self._open()
            self._writes = _WRITES if "task_path" in self._columns("writes") else _WRITES_WITHOUT_PATH

    def close(self) -> None:
        self._db.close()

    def threads(self) -> list[tuple[str, int]]:
        return self._rows("the list of threads", _THREADS)

    def places(self, thread_id: str) -> list[tuple[GraphPlace, int]]:
        rows = self._rows(place_name(GraphPlace(thread_id, "")), _PLACES, thread_id)
        return [(GraphPlace(thread_id, namespace), count) for namespace, count in rows]

    def ids(self, place: GraphPlace) -> list[str]:
        return [row[0] for row in self._rows(place_name(place), _IDS, *place)]

    def read(self, place: GraphPlace, external_id: str) -> OldCheckpoint:
        where, key = place_name(place, external_id), (*place, external_id)
        parent, kind, data, metadata = self._rows(where, _CHECKPOINT, *key)[0]
        checkpoint = self.checkpoint(where, external_id, self.value(where, kind, data))
        writes = self.writes(where, self._rows(where, self._writes, *key))
        return OldCheckpoint(checkpoint, self.from_json(where, "metadata", metadata), parent or None, writes)

    def _rows(self, where: str, statement: str, *values: str) -> list[tuple[Any, ...]]:
        with self._errors(where):
            return self._db.execute(statement, values).fetchall()

    def _open(self) -> apsw.Connection:
        try:
            return self._snapshot(apsw.Connection(self.name, flags=apsw.SQLITE_OPEN_READONLY))
        except (apsw.CantOpenError, apsw.ReadOnlyError):
            wal = Path(f"{self.name}-wal")
            if wal.exists() and wal.stat().st_size:
                raise
        # SQLite may not create its files here, and there are none, so no process has the file open: read it without them.
        url = f"file:{quote(os.path.abspath(self.name))}?immutable=1"
        return self._snapshot(apsw.Connection(url, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI))

    def _snapshot(self, db: apsw.Connection) -> apsw.Connection:
        """Start a read transaction: later writes of others are invisible."""
        self._db = db
        try:
            db.set_busy_timeout(BUSY_MS)
            db.execute("BEGIN")
            for table, needed in _NEEDED.items():
                if missing := needed - self._columns(table):
                    raise UnsupportedError(
                        f"{self.name} is not a file of LangGraph's SqliteSaver, or older than 2024: table {table!r} has no "
                        f"{', '.join(sorted(missing))}"
                    )
        except BaseException:  # also Ctrl-C: nothing else would close it
            db.close()
            raise
        return db

    def _columns(self, table: str) -> set[str]:
        return {row[0] for row in self._db.execute(_COLUMNS, (table,))}

    @contextlib.contextmanager
    def _errors(self, where: str) -> Iterator[None]:
        try:
            yield
        except apsw.NotADBError as error:
            raise UnsupportedError(f"{self.name} is not an SQLite file; pass a file of LangGraph's SqliteSaver") from error
        except (apsw.CorruptError, UnicodeDecodeError) as error:
            raise CorruptionError(f"{self.name}: {where}: the file is damaged ({error}); restore a backup") from error
        except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
            raise UnavailableError(
                f"cannot open {self.name} ({error}); copy it with its -wal file to a directory that you can write to"
            ) from error
        except apsw.Error as error:
            raise UnavailableError(f"{self.name}: {where}: cannot be read ({error}); try again") from error


def place_name(place: GraphPlace, external_id: str | None = None) -> str:
    """The name of a place, or of a checkpoint there, in messages."""
    namespace = f" (namespace {place.namespace!r})" if place.namespace else ""
    checkpoint = "" if external_id is None else f", checkpoint {external_id!r}"
    return f"thread {place.thread_id!r}{namespace}{checkpoint}"
