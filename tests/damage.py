"""Damage behind the back of a store: a text overwritten wherever PostgreSQL keeps it; records of a thread in any store."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import psycopg
from psycopg.sql import SQL, Identifier

COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'savegame' AND data_type = 'bytea'"
)
OVERWRITE = SQL("UPDATE savegame.{0} SET {1} = overlay({1} PLACING %(new)s FROM position(%(old)s IN {1})) WHERE position(%(old)s IN {1}) > 0")  # fmt: skip  # noqa: E501


def overwrite(url: str, old: bytes, new: bytes) -> int:
    """Replace bytes by others of the same length in every row of the schema; how many rows had them."""
    with psycopg.connect(url) as connection:
        columns = connection.execute(COLUMNS).fetchall()
        texts = {"old": old, "new": new}
        return sum(connection.execute(OVERWRITE.format(*map(Identifier, column)), texts).rowcount for column in columns)


def spoil(address: str, thread_id: str, kind: str) -> int:
    """Damage every record of a kind beside a thread, in a vault that is not open; return their number."""
    scheme, _, path = address.partition(":")
    if scheme == "file":
        journals = [journal for journal in Path(path).rglob("journal.jsonl") if _is_of(journal, thread_id)]
        return sum(_spoil_lines(journal, f'"kind":"{kind}"'.encode()) for journal in journals)
    if scheme == "sqlite":
        db = apsw.Connection(path)
        db.execute(
            "UPDATE record SET value = CAST(value || x'00' AS BLOB) WHERE kind = ? AND thread = "
            "(SELECT no FROM thread WHERE id = ?)",
            (kind, thread_id),
        )
        changed = db.changes()
        db.close()
        return changed
    with psycopg.connect(address) as connection:
        spoiled = r"UPDATE savegame.record SET value = value || '\\x00'::bytea WHERE kind = %s AND thread = %s"
        return connection.execute(spoiled, (kind, thread_id)).rowcount


def _is_of(journal: Path, thread_id: str) -> bool:
    return bool(json.loads(journal.read_bytes().splitlines()[0])["thread"] == thread_id)


def _spoil_lines(journal: Path, what: bytes) -> int:
    lines = journal.read_bytes().splitlines(keepends=True)
    found = [line for line in lines if what in line]
    journal.write_bytes(b"".join(line.replace(what, what.swapcase()) for line in lines))
    return len(found)
