"""The database of LangGraph's PostgresSaver or AsyncPostgresSaver as a source of `langgraph_import`. Needs psycopg.

A checkpoint there is a JSON document with its plain values inside; the other values are blobs, one per channel and
version. Each thread is read in one REPEATABLE READ, READ ONLY transaction of its own, with all of its namespaces. It takes
no lock that a running application waits for. One transaction for the whole import would show nothing more, because threads
do not refer to each other, but would hold up VACUUM and the migrations of `setup()` until the end.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import psycopg
from langgraph.checkpoint.serde.types import TASKS
from psycopg.conninfo import conninfo_to_dict

from savegame.adapters._langgraph_places import GraphPlace
from savegame.adapters._langgraph_sources import SEALED, OldCheckpoint, ThreadSource, place_name
from savegame.errors import CorruptionError, UnavailableError, UnsupportedError
from savegame.stores.postgres.errors import translate
from savegame.stores.postgres.pool import CONNECT_S
from savegame.stores.postgres.store import libpq_address

NEWEST_MIGRATION: Final = 9
"""The highest number in `checkpoint_migrations` that this module knows."""

OLD_SENDS: Final = 4
"""Checkpoints before this version have their tasks among the writes of their parents."""

FIRST_VERSION: Final = f"{1:032}.0"

_COLUMNS: Final = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
_MIGRATION: Final = "SELECT coalesce(max(v), 0) FROM checkpoint_migrations"
_THREADS: Final = "SELECT thread_id, count(*) FROM checkpoints GROUP BY 1 ORDER BY 1"
_PLACES: Final = "SELECT checkpoint_ns, count(*) FROM checkpoints WHERE thread_id = %s GROUP BY 1 ORDER BY 1"
_IDS: Final = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s ORDER BY checkpoint_id"
_CHECKPOINT: Final = """
SELECT parent_checkpoint_id, checkpoint::text, metadata::text FROM checkpoints
WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s
"""
_BLOBS: Final = """
SELECT v.key, b.type, b.blob
FROM checkpoints c
CROSS JOIN jsonb_each_text(
    CASE jsonb_typeof(c.checkpoint -> 'channel_versions') WHEN 'object' THEN c.checkpoint -> 'channel_versions' ELSE '{}' END
) v
CROSS JOIN LATERAL (
    SELECT type, blob FROM checkpoint_blobs
    WHERE thread_id = c.thread_id AND checkpoint_ns = c.checkpoint_ns AND channel = v.key AND version = v.value
    LIMIT 1
) b
WHERE c.thread_id = %s AND c.checkpoint_ns = %s AND c.checkpoint_id = %s
"""
"""Each blob is looked up by its key: a join might read all blobs of a long thread for each checkpoint."""

_WRITES: Final = """
SELECT task_id, task_path, idx, channel, type, blob FROM checkpoint_writes
WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s
"""
_SENDS: Final = """
SELECT type, blob FROM checkpoint_writes
WHERE thread_id = %s AND checkpoint_id = %s AND channel = %s ORDER BY task_path, task_id, idx
"""
_NEEDED: Final = {
    "checkpoints": {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint", "metadata"},
    "checkpoint_blobs": {"thread_id", "checkpoint_ns", "channel", "version", "type", "blob"},
    "checkpoint_writes": {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "blob"},
}


class PostgresDatabase(ThreadSource):
    """The tables of the stock PostgresSaver in the search path of a connection."""

    saver = "PostgresSaver"
    kind = "database"

    def __init__(self, address: str) -> None:
        conninfo, name = libpq_address(address, read_only=True)
        super().__init__(name)
        timeout: Any = conninfo_to_dict(conninfo).get("connect_timeout") or CONNECT_S
        try:
            self._db = psycopg.connect(conninfo, connect_timeout=timeout, prepare_threshold=None)
        except psycopg.Error as error:
            raise translate(error, name) from error
        try:
            self._db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._db.read_only = True
            self._check_tables()
        except BaseException:  # also Ctrl-C: nothing else would close it
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def threads(self) -> list[tuple[str, int]]:
        return self._rows("the list of threads", _THREADS)

    def places(self, thread_id: str) -> list[tuple[GraphPlace, int]]:
        where = place_name(GraphPlace(thread_id, ""))
        self._end_snapshot()
        return [(GraphPlace(thread_id, namespace), count) for namespace, count in self._rows(where, _PLACES, thread_id)]

    def ids(self, place: GraphPlace) -> list[str]:
        return [row[0] for row in self._rows(place_name(place), _IDS, *place)]

    def read(self, place: GraphPlace, external_id: str) -> OldCheckpoint:
        where, key = place_name(place, external_id), (*place, external_id)
        parent, text, metadata = self._rows(where, _CHECKPOINT, *key)[0]
        checkpoint = self.from_json(where, "checkpoint", text)
        checkpoint["channel_values"] = self._values(where, checkpoint.get("channel_values") or {}, key)
        checkpoint = self.checkpoint(where, external_id, checkpoint)
        self._add_sends(where, place, parent, checkpoint)
        try:
            SEALED.dumps_typed({key: value for key, value in checkpoint.items() if key != "channel_values"})
        except TypeError as error:
            raise self.damage(where, f"LangGraph's serializer cannot write the checkpoint ({error})") from error
        writes = self.writes(where, self._rows(where, self._writes, *key))
        return OldCheckpoint(checkpoint, self.from_json(where, "metadata", metadata), parent or None, writes)

    def _values(self, where: str, plain: Any, key: tuple[str, ...]) -> dict[str, Any]:
        """The values of a checkpoint. A blob counts more than a plain value, which may be only the mark that it exists."""
        if type(plain) is not dict:
            raise self.damage(where, "its channel_values are not a JSON object")
        blobs = {
            channel: self.value(f"{where}, channel {channel!r}", kind, data)
            for channel, kind, data in self._rows(where, _BLOBS, *key)
            if kind != "empty"
        }
        return {**plain, **blobs}

    def _add_sends(self, where: str, place: GraphPlace, parent: str | None, checkpoint: dict[str, Any]) -> None:
        """Make the tasks of an old checkpoint a channel, as newer ones have them."""
        if type(checkpoint.get("v")) is not int:
            raise self.damage(where, "it has no version")
        if checkpoint["v"] >= OLD_SENDS or not parent:
            return
        rows = self._rows(where, self._sends, place.thread_id, parent, TASKS)
        if not rows:
            return
        versions = checkpoint["channel_versions"]
        checkpoint["channel_values"][TASKS] = [self.value(f"{where}, a task of its parent", *row) for row in rows]
        try:
            versions[TASKS] = max(versions.values(), default=FIRST_VERSION)
        except TypeError as error:
            raise self.damage(where, f"its channel_versions have no order ({error})") from error

    def _check_tables(self) -> None:
        for table, needed in _NEEDED.items():
            if missing := needed - self._columns(table):
                raise UnsupportedError(
                    f"{self.name} has no tables of LangGraph's PostgresSaver that this user can see, or those of the shallow "
                    f"saver: table {table!r} has no {', '.join(sorted(missing))}. If they are in another schema, add "
                    f"?options=-csearch_path%3DSCHEMA to the address"
                )
        if "v" in self._columns("checkpoint_migrations"):
            ((newest,),) = self._rows("checkpoint_migrations", _MIGRATION)
            if newest > NEWEST_MIGRATION:
                raise UnsupportedError(
                    f"{self.name} was changed by a newer langgraph-checkpoint-postgres: migration {newest}, of which this "
                    f"version of savegame knows {NEWEST_MIGRATION}; upgrade savegame"
                )
        path = "task_path" if "task_path" in self._columns("checkpoint_writes") else "''::text"  # older than 2025
        self._writes, self._sends = _WRITES.replace("task_path", path), _SENDS.replace("task_path", path)

    def _columns(self, table: str) -> set[str]:
        return {row[0] for row in self._rows(f"table {table!r}", _COLUMNS, table)}

    def _rows(self, where: str, statement: Any, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._db.cursor(binary=True).execute(statement, values).fetchall()
        except psycopg.errors.InsufficientPrivilege as error:
            raise UnavailableError(
                f"{self.name}: {where}: a right is missing ({error}); as the owner: GRANT USAGE ON SCHEMA s TO u; "
                f"GRANT SELECT ON ALL TABLES IN SCHEMA s TO u"
            ) from error
        except psycopg.Error as error:
            self._end_snapshot()
            raise translate(error, f"{self.name}: {where}") from error
        except UnicodeDecodeError as error:
            raise CorruptionError(f"{self.name}: {where}: a text is not UTF-8 ({error}); repair the row") from error

    def _end_snapshot(self) -> None:
        """The next statement begins a new one."""
        with contextlib.suppress(psycopg.OperationalError):  # a lost connection, which that statement reports
            self._db.rollback()
