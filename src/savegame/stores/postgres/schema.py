"""The tables of the PostgreSQL store: its statements for one schema, and bringing the layout up to date.

Opening does that by itself, under a lock, whole or not at all, as many processes as may start at once; where nothing is
to be done, it only looks. Nothing is changed in a schema that a newer savegame wrote. Touches store, errors, sql_files.
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from importlib import resources
from typing import Final

import psycopg
from psycopg.sql import Identifier

from savegame.errors import InvalidInputError, SavegameError, StoreNotFound, UnavailableError, UnsupportedError
from savegame.store import Layout
from savegame.stores.postgres.link import LONGEST_S, Link
from savegame.stores.refusals import newer_format
from savegame.stores.sql_files import migrations, queries
from savegame.waiting.undoing import on_failure

OLDEST_SERVER: Final = 130000
DURABLY: Final = "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
"""Holds for the transaction that it is in, and no longer. A level other than `off` that was chosen stays."""

logger = logging.getLogger("savegame")

_SQL = resources.files("savegame.stores") / "sql" / "postgres"


def checked_schema(name: str) -> str:
    """The name of a schema, if PostgreSQL can have one. Raises InvalidInputError."""
    if not re.fullmatch(r"[\w-]+", name) or len(name.encode()) > 63 or name.startswith("pg_"):
        raise InvalidInputError(f"schema {name!r}: use up to 63 letters, digits, _ and -, not beginning with pg_")
    return name


def statements(schema: str, *, durable: bool) -> dict[str, str]:
    """Every statement by its name, for one schema. `durable`: commits wait for the disk, whatever the session says."""
    named = {**queries(_SQL / "queries.sql"), **queries(_SQL / "search.sql")}
    durably = DURABLY if durable else "NULL"
    return {name: _inside(schema, text).replace(":durably", durably) for name, text in named.items()}


def _inside(schema: str, text: str) -> str:
    return re.sub(r":schema\b", lambda _: quoted(schema), text)


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return Identifier(name).as_string(None)


def prepare(link: Link, schema: str, where: str, *, read_only: bool) -> Layout:
    """Check the server, make the tables or bring them up to date. Gives the versions before and after."""
    _check_server(link, where)
    _, standby, kept_out, there, sought = link.ask("has_layout", schema)[0]
    if standby and not read_only:
        raise psycopg.errors.ReadOnlySqlTransaction("the server is a standby")  # or was one a moment ago: tried again
    if kept_out and not read_only:
        raise UnsupportedError(
            f"{where}: default_transaction_read_only is on for this user; ALTER ROLE ... SET default_transaction_read_only = "
            f"off, or open with read_only=True"
        )
    steps = migrations(_SQL / "migrations")
    newest = steps[-1][0]
    found = int(link.ask("layout")[0][0]) if there else 0
    if found > newest:
        raise newer_format(f"{where}: schema {schema!r}", found, newest)
    if found == newest and not sought and not read_only:
        _make_index(link, schema, where)
    if found == newest or (read_only and there):
        return Layout(found, found)
    if read_only:
        raise StoreNotFound(f"{where}: schema {schema!r} contains no vault; omit read_only=True to create one")
    try:
        return Layout(_migrate(link, schema, steps), newest)
    except psycopg.errors.InsufficientPrivilege as error:
        raise _missing_right(link, schema, where, error) from error


def _check_server(link: Link, where: str) -> None:
    version, encoding = link.info.server_version, link.info.parameter_status("server_encoding")
    if version < OLDEST_SERVER:
        raise UnsupportedError(f"{where}: the server is PostgreSQL {version // 10000}; 13 or newer is needed, upgrade it")
    if encoding != "UTF8":
        raise UnsupportedError(
            f"{where}: the database has the encoding {encoding}; create one with UTF8: CREATE DATABASE ... ENCODING 'UTF8' "
            f"TEMPLATE template0"
        )


def _migrate(link: Link, schema: str, steps: list[tuple[int, str]]) -> int:
    """Take every step that is missing, in one transaction. Gives the version that was there."""
    until, link.until = link.until, time.monotonic() + LONGEST_S  # others may be at it; a large table takes its time
    link.tell("begin")  # by name: who waited for the lock has to see what the others made
    with on_failure(link.roll_back):
        link.tell("lock_layout", zlib.crc32(f"savegame layout {schema}".encode()))
        has_schema, _, _, there, _ = link.ask("has_layout", schema)[0]
        if not has_schema:
            link.tell("make_schema")
        if not there:
            link.tell("make_layout")
        found = int(link.ask("layout")[0][0])
        for number, text in steps:
            if number > found:
                step = _inside(schema, text).encode()
                link.execute(step)
                link.tell("set_layout", number)
        link.tell("make_sought")
        link.tell("durably")
        link.tell("commit")
    link.until = until
    return found


def _make_index(link: Link, schema: str, where: str) -> None:
    """Add the index of looked-for records to tables of an earlier version, if we may. Without it, looking is slower."""
    try:
        _migrate(link, schema, [])
    except psycopg.errors.InsufficientPrivilege as error:
        logger.warning(
            "%s: schema %r has no index record_sought, which its owner makes by opening it: %s", where, schema, error
        )


def _missing_right(link: Link, schema: str, where: str, error: psycopg.Error) -> SavegameError:
    user, database = quoted(link.info.user), quoted(link.info.dbname)
    return UnavailableError(
        f"{where}: the right to create tables is missing; as an administrator: GRANT CREATE ON DATABASE {database} TO {user}, "
        f"or, if the schema is there already: GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {user} (PostgreSQL: {error})"
    )
