"""Databases, roles and URLs with settings that savegame would not choose: it works there as everywhere, or says why not."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

import savegame
from savegame import UnsupportedError
from savegame.store import Store
from savegame.stores.postgres import open_url
from savegame.testing import StoreContract
from savegame.testing.postgres import PostgresServer

SETTINGS = {
    "standard_conforming_strings": "off",
    "escape_string_warning": "on",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "client_encoding": "latin1",
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "TimeZone": "Asia/Kathmandu",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "row_security": "off",
    "quote_all_identifiers": "on",
    "default_tablespace": "pg_default",
    "enable_indexscan": "off",
    "enable_seqscan": "off",
}
SHADOWS = ("thread", "frame", "record", "landed", "layout", "pg_class", "pg_namespace")
PATH = "shadows, pg_catalog"


@pytest.fixture
def hostile(postgres_url: str) -> Iterator[str]:
    """A database with such settings, and tables that are named like ours where a name is looked for first."""
    name = Identifier(urlsplit(postgres_url).path[1:])
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA shadows")
        for table in SHADOWS:
            db.execute(SQL("CREATE TABLE shadows.{} (x int)").format(Identifier(table)))
        db.execute(SQL("ALTER DATABASE {} SET search_path = shadows, pg_catalog").format(name))
        for setting, value in SETTINGS.items():
            db.execute(SQL("ALTER DATABASE {} SET {} = {}").format(name, SQL(setting), Literal(value)))  # type: ignore[arg-type]
    yield postgres_url
    PostgresServer(postgres_url).execute(SQL("ALTER DATABASE {} RESET ALL").format(name))


class TestHostileSettings(StoreContract):
    @pytest.fixture
    def store(self, hostile: str) -> Iterator[Store]:
        self.url = hostile
        store = open_url(hostile)
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        store.close()
        return open_url(self.url)


def test_the_settings_are_in_force(hostile: str) -> None:
    """The control: users' own statements are subject to them."""
    with psycopg.connect(hostile) as db:
        for setting, value in {**SETTINGS, "search_path": PATH}.items():
            ((found,),) = db.execute(SQL("SHOW {}").format(SQL(setting))).fetchall()  # type: ignore[arg-type]
            assert found.lower() == value.lower(), setting


def large_values(url: str) -> None:
    """Prune keeps every large value that is still needed, and no other."""
    with savegame.open(url) as vault:
        thread, texts = vault.thread("t"), [os.urandom(20_000).hex() for _ in range(4)]
        for text in texts:
            thread.save({"text": text, "always": texts[0]})
        thread.prune(keep=2)
        assert [checkpoint.load().state["text"] for checkpoint in thread.history()] == [texts[3], texts[2]]
        assert thread.state()["always"] == texts[0]
        with vault.connection() as db:
            assert db.execute("SELECT count(*) FROM savegame.blob").fetchall() == [(3,)]
        assert vault.verify().ok


def test_prune_keeps_the_large_values_that_are_needed(hostile: str) -> None:
    large_values(hostile)


@pytest.mark.parametrize("setting", ["standard_conforming_strings=off", "bytea_output=escape", "array_nulls=off"])
def test_prune_keeps_them_too_with_settings_in_the_url(postgres_url: str, setting: str) -> None:
    large_values(f"{postgres_url}?options={quote(f'-c {setting}')}")


def test_what_is_saved_and_searched_is_what_was_said(hostile: str) -> None:
    said = "Grüße, 東京 – 'quoted' \\ backslash \\x00 and E'\\\\' at €5"
    state: dict[str, Any] = {
        "messages": [{"role": "user", "content": said}, {"role": "assistant", "content": "NULL"}],
        "bytes": bytes(range(256)),
        "at": dt.datetime(2024, 5, 17, 23, 59, 59, 123456, dt.UTC),
        "float": 0.1 + 0.2,
    }
    with savegame.open(hostile) as vault:
        vault.thread("größe").save(state)
        vault.thread("größe").update(append={"messages": [{"role": "user", "content": "Straße"}]})
    with savegame.open(hostile) as vault:
        assert [hit.thread_id for hit in vault.search("東京")] == ["größe"]
        assert [(hit.thread_id, hit.agent_id, hit.role) for hit in vault.search("Straße")] == [("größe", None, "user")]
        assert vault.thread("größe").state() | {"messages": 0} == state | {"messages": 0}
        assert vault.thread("größe").state()["messages"][:2] == state["messages"]


@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii", "euc_jp"])
def test_texts_travel_as_utf_8_whatever_a_url_says(postgres_url: str, encoding: str) -> None:
    for given in (f"options=-cclient_encoding%3D{encoding}", f"client_encoding={encoding}"):
        with savegame.open(f"{postgres_url}?{given}") as vault:
            vault.thread("größe").save({"text": "€"})
            vault.thread("größe").save({"text": "東京"}, label="naïve")
            assert vault.thread("größe").latest().label == "naïve"  # type: ignore[union-attr]
    with savegame.open(postgres_url) as vault:
        assert vault.thread("größe").state() == {"text": "東京"}


def test_a_database_that_only_reads_is_refused_with_the_setting(postgres_url: str) -> None:
    name = Identifier(urlsplit(postgres_url).path[1:])
    savegame.open(postgres_url).close()
    PostgresServer(postgres_url).execute(SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    try:
        with pytest.raises(UnsupportedError, match="default_transaction_read_only"):
            savegame.open(postgres_url)
        with savegame.open(postgres_url, read_only=True) as vault:
            assert list(vault.threads()) == []
    finally:
        with psycopg.connect(postgres_url, autocommit=True, options="-c default_transaction_read_only=off") as db:
            db.execute(SQL("ALTER DATABASE {} RESET ALL").format(name))
