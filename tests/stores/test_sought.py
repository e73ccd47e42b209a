"""Threads found by the kinds of their records: an index that older stores get when they are opened, and that may be missing."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import apsw
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from savegame.model import ThreadKey
from savegame.store import SOUGHT, PutRecord, Store
from savegame.stores.file import FileStore
from savegame.stores.file.threads import WORTH_KEEPING
from savegame.stores.postgres import PostgresStore
from savegame.stores.sqlite import SQLiteStore
from savegame.stores.sqlite_file import SQL
from savegame.testing.contract.helpers import SPACE, A, B, appended


def fill(store: Store) -> None:
    store.commit([appended(A, 1), appended(B, 1), PutRecord(B, "inbox", "1", b"x"), PutRecord(A, "call", "1", b"x")])


def indexes(path: Path) -> list[str]:
    db = apsw.Connection(str(path))
    try:
        return [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE name = 'record_sought'")]
    finally:
        db.close()


def test_an_sqlite_file_without_the_index_gets_it(tmp_path: Path) -> None:
    """The layout has the same number before and after, so that earlier versions open it."""
    path = tmp_path / "v.db"
    store = SQLiteStore(str(path))
    fill(store)
    store.close()
    db = apsw.Connection(str(path))
    db.execute("DROP INDEX record_sought")
    version = db.pragma("user_version")
    db.close()
    reading = SQLiteStore(str(path), read_only=True)
    assert reading.threads_with(SPACE, "inbox") == ["b"], "without the index too"
    reading.close()
    assert indexes(path) == []
    store = SQLiteStore(str(path))
    assert (store.threads_with(SPACE, "inbox"), store.layout.found) == (["b"], version)  # type: ignore[union-attr]
    store.close()
    assert indexes(path) == ["record_sought"]


@pytest.mark.parametrize("kind", SOUGHT)
def test_sqlite_looks_into_the_index_only(tmp_path: Path, kind: str) -> None:
    store = SQLiteStore(str(tmp_path / "v.db"))
    fill(store)
    store.close()
    db = apsw.Connection(str(tmp_path / "v.db"))
    plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + SQL["threads_sought"], (kind, 1))]
    db.close()
    assert any("record_sought" in step for step in plan), plan
    assert not any(step.startswith("SCAN record") for step in plan), plan


def test_a_schema_without_the_index_gets_it_from_its_owner(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    fill(store)
    store.close()
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("DROP INDEX savegame.record_sought")
        db.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        db.execute("GRANT USAGE ON SCHEMA savegame TO guest")
        db.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA savegame TO guest")
        db.execute("GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA savegame TO guest")
        try:
            guest = PostgresStore(make_conninfo(postgres_url, user="guest", password="guest"))
            assert guest.threads_with(SPACE, "inbox") == ["b"], "without the index too"
            guest.commit([PutRecord(ThreadKey(SPACE, "c"), "due", "1", b"x")])
            guest.close()
            store = PostgresStore(postgres_url)
            assert store.threads_with(SPACE, "due") == ["c"]
            store.close()
            rows = db.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'record_sought'").fetchall()
            assert len(rows) == 1
        finally:
            db.execute("DROP OWNED BY guest")
            db.execute("DROP ROLE guest")


def test_a_listing_of_an_earlier_version_is_read_on(tmp_path: Path) -> None:
    """It says nothing of the kinds of records: then the journals do."""
    store = FileStore(str(tmp_path / "v"), durability="process")
    fill(store)
    for number in range(WORTH_KEEPING):
        key = ThreadKey(SPACE, f"{number:04}")
        store.commit([appended(key, 1, id=store.new_id(key))])
    store.heads(SPACE)
    store.close()
    (listing,) = (tmp_path / "v").glob("*/listing.json")
    kept = json.loads(listing.read_bytes().partition(b"\n")[2])
    kinds = {row[3]: row[1][3:] for row in kept}
    assert (kinds["a"], kinds["b"]) == ([[]], [["inbox"]])
    for row in kept:
        del row[1][3:]
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
    listing.write_bytes(b"%08x\n" % crc32(text) + text)
    store = FileStore(str(tmp_path / "v"))
    assert (store.threads_with(SPACE, "inbox"), store.threads_with(SPACE, "due")) == (["b"], [])
    store.close()
