"""Imports files of LangGraph's stock SqliteSaver into a vault: `import_file(path, vault)`. Prints nothing.

The old file is opened read-only and read in one snapshot. No object in it is loaded: values are copied as the bytes that
LangGraph's serializer wrote. Each thread is checked completely before any of it is saved, saved oldest first, then read back
and compared. Existing checkpoints are skipped, so a killed import can be run again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

import apsw
import ormsgpack

from savegame.adapters._langgraph_places import GraphPlace
from savegame.adapters.langgraph import SavegameSaver
from savegame.errors import (
    ConflictError,
    CorruptionError,
    InvalidInputError,
    InvalidState,
    SavegameError,
    StoreNotFound,
    UnavailableError,
    UnsupportedError,
)
from savegame.model import Kind
from savegame.opening import shown_address
from savegame.thread import Thread
from savegame.vault import Vault

BUSY_MS: Final = 30_000
PHASES: Final = 3
"""Each checkpoint is checked, saved and compared."""

_COLUMNS: Final = "SELECT name FROM pragma_table_info(?)"
_PLACES: Final = "SELECT thread_id, checkpoint_ns, count(*) FROM checkpoints GROUP BY 1, 2 ORDER BY 1, 2"
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
_OF_ONE_THREAD: Final = (CorruptionError, UnsupportedError, ConflictError, InvalidInputError)
"""Errors of one thread, which do not stop the import of the others."""

_Progress = Callable[[int, int], None]


class ImportOutcome(NamedTuple):
    """The result for one thread or subgraph namespace; with an error, do not use it."""

    place: GraphPlace
    checkpoints: int
    new: int
    error: SavegameError | None


def import_file(
    path: str | os.PathLike[str], vault: Vault, progress: _Progress = lambda done, total: None
) -> Iterator[ImportOutcome]:
    """Import all threads of a file, and yield an outcome per thread and namespace. Calls `progress(done, total)`.

    Raises StoreNotFound or UnsupportedError if it is not a SqliteSaver file, UnavailableError if it or the vault cannot be
    read.
    """
    with OldFile(path) as old:
        places = old.places()
        work = _WorkCounter(PHASES * sum(count for _, count in places), progress)
        mover = _Mover(old, vault, work)
        for place, count in places:
            goal = work.done + PHASES * count
            try:
                outcome = ImportOutcome(place, count, mover.move(place), None)
            except _OF_ONE_THREAD as error:
                outcome = ImportOutcome(place, count, 0, error)
            work.step(goal - work.done)
            yield outcome


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
    """A checkpoint of the old file, without loaded objects, and its pending writes in order."""

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    parent: str | None
    writes: list[Write]


class OldFile:
    """A read-only snapshot of a file of the stock SqliteSaver. Leaving the `with` block closes it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if "://" in self.path:
            raise UnsupportedError(
                f"{shown_address(self.path)} is not a file, and only files of LangGraph's SqliteSaver can be imported; first "
                f"copy the threads into one, with put and put_writes for everything that list of the other saver returns"
            )
        if not Path(self.path).is_file():
            raise StoreNotFound(f"{self.path} is not an existing file; pass the path of one of LangGraph's SqliteSaver")
        with self._errors("the file"):
            self._db = self._open()
            self._writes = _WRITES if "task_path" in self._columns("writes") else _WRITES_WITHOUT_PATH

    def __enter__(self) -> OldFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def places(self) -> list[tuple[GraphPlace, int]]:
        """All threads and namespaces, with their numbers of checkpoints."""
        with self._errors("the list of threads"):
            return [(GraphPlace(thread, namespace), count) for thread, namespace, count in self._db.execute(_PLACES)]

    def ids(self, place: GraphPlace) -> list[str]:
        """LangGraph's checkpoint ids at a place, oldest first."""
        with self._errors(_name(place)):
            return [row[0] for row in self._db.execute(_IDS, place)]

    def read(self, place: GraphPlace, external_id: str) -> OldCheckpoint:
        """One checkpoint. Raises CorruptionError if it is damaged, UnsupportedError if its format cannot be read safely."""
        where, statement = _name(place, external_id), self._writes
        with self._errors(where):
            row: tuple[Any, ...] = self._db.execute(_CHECKPOINT, (*place, external_id)).fetchall()[0]
            rows: list[tuple[Any, ...]] = self._db.execute(statement, (*place, external_id)).fetchall()
        parent, kind, data, metadata = row
        checkpoint = self._value(where, kind, data)
        if type(checkpoint) is not dict or checkpoint.get("id") != external_id:
            raise self._damage(where, "the row does not contain this checkpoint")
        for part in _PARTS:
            if type(checkpoint.get(part)) is not dict:
                raise self._damage(where, f"it has no {part}")
        writes = [
            Write(task, path, number, channel, self._value(f"{where}, write {number} of task {task!r}", form, value))
            for task, path, number, channel, form, value in rows
        ]
        writes.sort(key=lambda write: (write.task_path, write.task_id, write.number))
        return OldCheckpoint(checkpoint, self._metadata(where, metadata), parent or None, writes)

    def _open(self) -> apsw.Connection:
        try:
            return self._snapshot(apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READONLY))
        except (apsw.CantOpenError, apsw.ReadOnlyError):
            wal = Path(f"{self.path}-wal")
            if wal.exists() and wal.stat().st_size:
                raise
        # SQLite may not create its files here, and there are none, so no process has the file open: read it without them.
        url = f"file:{quote(os.path.abspath(self.path))}?immutable=1"
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
                        f"{self.path} is not a file of LangGraph's SqliteSaver, or older than 2024: table {table!r} has no "
                        f"{', '.join(sorted(missing))}"
                    )
        except BaseException:  # also Ctrl-C: nothing else would close it
            db.close()
            raise
        return db

    def _columns(self, table: str) -> set[str]:
        return {row[0] for row in self._db.execute(_COLUMNS, (table,))}

    def _value(self, where: str, kind: str | None, data: Any) -> Any:
        if kind not in _KINDS:
            raise UnsupportedError(
                f"{self.path}: {where}: the format {kind!r} is not supported, because it can name any class or function. If "
                f"you trust the file, copy it with the stock SqliteSaver (put and put_writes for all that list returns, into a "
                f"new file, which then has 'msgpack'), and import the copy"
            )
        if not isinstance(data, bytes):
            raise self._damage(where, f"the value is {type(data).__name__}, not bytes")
        try:
            return SEALED.loads_typed((kind, data))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damage(where, f"the value does not decode ({error})") from error

    def _metadata(self, where: str, data: Any) -> dict[str, Any]:
        try:
            found = {} if data is None else json.loads(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damage(where, f"the metadata does not decode ({error})") from error
        if type(found) is not dict:
            raise self._damage(where, "the metadata is not a JSON object")
        return found

    def _damage(self, where: str, what: str) -> CorruptionError:
        return CorruptionError(
            f"{self.path}: {where}: {what}; nothing of this thread was imported. "
            f"Restore a backup, or delete the row in a copy of the file and import that"
        )

    @contextlib.contextmanager
    def _errors(self, where: str) -> Iterator[None]:
        try:
            yield
        except apsw.NotADBError as error:
            raise UnsupportedError(f"{self.path} is not an SQLite file; pass a file of LangGraph's SqliteSaver") from error
        except (apsw.CorruptError, UnicodeDecodeError) as error:
            raise CorruptionError(f"{self.path}: {where}: the file is damaged ({error}); restore a backup") from error
        except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
            raise UnavailableError(
                f"cannot open {self.path} ({error}); copy it with its -wal file to a directory that you can write to"
            ) from error
        except apsw.Error as error:
            raise UnavailableError(f"{self.path}: {where}: cannot be read ({error}); try again") from error


class _WorkCounter:
    """Counts steps and reports progress."""

    def __init__(self, total: int, progress: _Progress) -> None:
        self.done = 0
        self.total = total
        self._progress = progress

    def step(self, count: int = 1) -> None:
        self.done += count
        self._progress(self.done, self.total)


class _Mover:
    """Imports places of an old file into a vault."""

    def __init__(self, old: OldFile, vault: Vault, work: _WorkCounter) -> None:
        self._old = old
        self._vault = vault
        self._work = work
        self._saver = SavegameSaver(vault, serde=SEALED)

    def move(self, place: GraphPlace) -> int:
        """Import one place and compare it. Returns the number of new checkpoints."""
        thread = self._vault.thread(
            place.id, foreign=lambda kind, data: SEALED.loads_typed((kind, data)), child_of=place.parent
        )
        wanted = self._old.ids(place)
        there = {entry.external_id for entry in thread.history(branches=True)}
        gone_on = bool(there - set(wanted))
        new = [external_id for external_id in wanted if external_id not in there]
        if new and (gone_on or there != set(wanted[: len(there)])):
            raise ConflictError(
                f"{self._old.path}: {_name(place)}: the vault and the old file have diverged "
                f"(continued or pruned in the vault, and continued in the file); import into another store"
            )
        for external_id in new:
            self._old.read(place, external_id)  # so that a thread with a damaged row is not imported at all
            self._work.step()
        for external_id in new:
            try:
                self._put(thread, place, external_id, there)
            except InvalidState as error:
                raise UnsupportedError(f"{self._old.path}: {_name(place, external_id)}: {error}") from error
            there.add(external_id)
            self._work.step()
        self._compare(place, set(wanted), set(wanted) - set(new), gone_on=gone_on)
        return len(new)

    def _put(self, thread: Thread, place: GraphPlace, external_id: str, there: set[str | None]) -> None:
        """Save a checkpoint after its writes, so that an existing checkpoint has all of them."""
        found = self._old.read(place, external_id)
        self._put_writes(place, external_id, found.writes)
        thread.save(
            self._saver.full_state(place, found.parent, cast(Any, found.checkpoint), {}),
            id=place.checkpoint(external_id),
            external_id=external_id,
            kind=Kind.ITERATION,
            metadata=found.metadata,
            parent=place.checkpoint(found.parent) if found.parent and found.parent in there else None,
            force=True,
            created_at=_time_of(found.checkpoint),
        )

    def _put_writes(self, place: GraphPlace, external_id: str, writes: list[Write]) -> None:
        """Put the writes of each task with their old numbers.

        A saver numbers writes by their position, but stores special ones under negative numbers. So each missing number
        belonged to a special write, and any of these can fill the gap.
        """
        config = place.config(external_id)
        for (path, task), group in groupby(writes, key=lambda write: (write.task_path, write.task_id)):
            numbered = {write.number: (write.channel, write.value) for write in group}
            special = [write for number, write in numbered.items() if number < 0]
            last = max(numbered)
            if special:
                self._saver.put_writes(config, special, task, path)
            if last >= 0:
                filled = [numbered.get(number, special[0] if special else None) for number in range(last + 1)]
                self._saver.put_writes(config, [write for write in filled if write is not None], task, path)

    def _compare(self, place: GraphPlace, wanted: set[str], before: set[str], *, gone_on: bool) -> None:
        """Read everything back as a graph would. Raises CorruptionError for the first checkpoint that differs."""
        left = set(wanted)
        for found in self._saver.list(place.config(None)):
            external_id = found.checkpoint["id"]
            if external_id not in left:
                continue
            left.discard(external_id)
            old = self._old.read(place, external_id)
            parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
            pairs: list[tuple[str, Any, Any]] = [
                ("the metadata", old.metadata, dict(found.metadata)),
                ("the parent", old.parent, parent),
                *((key, old.checkpoint.get(key), value) for key, value in found.checkpoint.items()),
                ("its parts", sorted(old.checkpoint), sorted(found.checkpoint)),
            ]
            differs = [what for what, a, b in pairs if not _same(a, b)]
            writes = [[write.task_id, write.channel, write.value] for write in old.writes if write.number >= 0 or not gone_on]
            if not gone_on and external_id in before and not _among(writes, found.pending_writes, more=True):
                self._put_writes(place, external_id, old.writes)  # the old file has new writes since the last import
                found = self._saver.get_tuple(found.config) or found
            if not _among(writes, found.pending_writes, more=external_id in before):
                differs.append("the pending writes")
            if differs:
                raise CorruptionError(
                    f"{_name(place, external_id)}: the imported checkpoint differs from {self._old.path} in "
                    f"{', '.join(differs)}; do not use this thread of the vault, and import into another store"
                )
            self._work.step()
        if left:
            raise CorruptionError(f"{_name(place, min(left))}: cannot be read back; import into another store")


def _time_of(checkpoint: Mapping[str, Any]) -> dt.datetime | None:
    """When LangGraph made a checkpoint; None if the time or its zone is unknown."""
    try:
        time = dt.datetime.fromisoformat(checkpoint["ts"])
        return time.astimezone(dt.UTC) if time.tzinfo is not None else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _among(wanted: Sequence[Any], found: Sequence[Any] | None, *, more: bool) -> bool:
    """Whether all wanted writes were found, in order; with `more`, others may be between them."""
    found = found or ()
    if not more and len(wanted) != len(found):
        return False
    rest = iter(found)
    return all(any(_same(write, list(other)) for other in rest) for write in wanted)


def _same(a: Any, b: Any) -> bool:
    """Whether two sealed values are equal and of the same types; the order of dict keys does not matter."""
    try:
        if SEALED.dumps_typed(a) == SEALED.dumps_typed(b):
            return True
    except TypeError:  # whole numbers of more than 64 bits, in metadata
        pass
    if type(a) is not type(b):
        return False
    if type(a) is dict:
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if type(a) is list:
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is int and a == b


def _name(place: GraphPlace, external_id: str | None = None) -> str:
    """The name of a place, or of a checkpoint there, in messages."""
    namespace = f" (namespace {place.namespace!r})" if place.namespace else ""
    checkpoint = "" if external_id is None else f", checkpoint {external_id!r}"
    return f"thread {place.thread_id!r}{namespace}{checkpoint}"
