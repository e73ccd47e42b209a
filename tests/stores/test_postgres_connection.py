"""What users do with the connection that they are lent: nothing of it reaches the store's own, and no save depends on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import dict_row
from psycopg.sql import SQL
from psycopg.types.string import TextLoader

import savegame
from savegame import Toolbox, Unknown, Vault
from savegame.errors import InvalidInputError, TransactionFailed
from savegame.testing.postgres import PostgresServer
from tests.runs.test_runs import calling, contents, ledger, play

SESSION = """
SELECT name || ' = ' || setting FROM pg_settings WHERE name <> 'transaction_isolation'
UNION ALL SELECT 'role ' || current_user || ' of ' || session_user
UNION ALL SELECT 'lock ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL SELECT 'table ' || relname FROM pg_catalog.pg_class WHERE relnamespace = pg_my_temp_schema()
UNION ALL SELECT 'channel ' || pg_listening_channels()
UNION ALL SELECT 'prepared ' || name FROM pg_prepared_statements
UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable
ORDER BY 1
"""


@pytest.fixture
def vault(postgres_url: str) -> Iterator[Vault]:
    with savegame.open(postgres_url) as vault:
        with vault.connection() as db:
            db.execute("CREATE TABLE note (text text)")
        vault.thread("t").save("before")
        yield vault


def notes(vault: Vault) -> list[str]:
    with vault.connection() as db:
        return [text for (text,) in db.execute("SELECT text FROM note ORDER BY text").fetchall()]


# -- sessions --------------------------------------------------------------------------------------


class Shouting(TextLoader):
    def load(self, data: Any) -> Any:
        return "changed by a user"


CHANGES: dict[str, Callable[[Any], object]] = {
    "synchronous_commit": lambda db: db.execute("SET synchronous_commit TO off"),
    "local": lambda db: db.execute("SET LOCAL synchronous_commit TO off"),
    "set_config": lambda db: db.execute("SELECT set_config('standard_conforming_strings', 'off', false)"),
    "search_path": lambda db: db.execute("SET search_path TO pg_temp"),
    "read_only": lambda db: db.execute("SET default_transaction_read_only TO on"),
    "isolation": lambda db: db.execute("SET default_transaction_isolation TO serializable"),
    "client_encoding": lambda db: db.execute("SET client_encoding TO latin1"),
    "bytea_output": lambda db: db.execute("SET bytea_output TO escape"),
    "row_security": lambda db: db.execute("SET row_security TO off"),
    "role": lambda db: db.execute("SET ROLE pg_monitor"),
    "authorization": lambda db: db.execute("SET SESSION AUTHORIZATION pg_monitor"),
    "temp": lambda db: [
        db.execute(f"CREATE TEMP TABLE {name} (x int)") for name in ("thread", "frame", "record", "pg_class", "landed")
    ],
    "listen": lambda db: db.execute("LISTEN somebody"),
    "lock": lambda db: db.execute("SELECT pg_advisory_lock(7)"),
    "prepare": lambda db: db.execute("PREPARE mine AS SELECT 1"),
    "hold": lambda db: db.execute("DECLARE mine CURSOR WITH HOLD FOR SELECT 1"),
    "row_factory": lambda db: setattr(db, "row_factory", dict_row),
    "threshold": lambda db: setattr(db, "prepare_threshold", 0),
    "loader": lambda db: [db.adapters.register_loader(name, Shouting) for name in ("text", "bytea", "int8", "int4")],
    "notices": lambda db: db.add_notice_handler(print),
}
BEFORE_SAVING = CHANGES.keys() - {"role", "authorization"}  # whose rights to our tables are not there


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_that_a_block_changes_outlives_it(vault: Vault, change: str) -> None:
    def session() -> tuple[list[Any], list[Any]]:
        ours = vault.store._read(lambda link: link.execute(SESSION).fetchall())  # type: ignore[attr-defined]
        with vault.connection() as db:
            return ours, db.execute(SESSION).fetchall()

    before = session()
    with vault.connection() as db:
        CHANGES[change](db)
    assert session() == before
    with contextlib.suppress(ZeroDivisionError), vault.connection() as db:
        CHANGES[change](db)
        raise ZeroDivisionError
    assert session() == before
    vault.thread("t").save("after")
    assert vault.verify().ok


@pytest.mark.parametrize("change", sorted(BEFORE_SAVING))
def test_a_save_inside_a_block_goes_where_it_belongs_whatever_was_changed_before(vault: Vault, change: str) -> None:
    if change == "client_encoding":
        state = {"text": "é" * 50}
    else:
        state = {"text": "€" * 50_000, "bytes": bytes(range(256)) * 50}
    with vault.connection() as db:
        CHANGES[change](db)
        vault.thread("t").save(state)
        assert vault.thread("t").state() == state
        vault.thread("other").save(state, label="new")
    assert vault.thread("t").state() == vault.thread("other").state() == state
    assert vault.verify().ok


def test_who_kept_the_connection_or_a_cursor_of_it_has_nothing_in_his_hands(vault: Vault) -> None:
    with vault.connection() as db:
        cursor = db.cursor()
    for late in (db, cursor):
        with pytest.raises(psycopg.OperationalError, match="closed"):
            late.execute("INSERT INTO note VALUES ('late')")
    assert notes(vault) == []


def test_blocks_take_no_more_connections_than_were_allowed(postgres_url: str) -> None:
    with savegame.open(f"{postgres_url}?connections=2") as vault:
        vault.thread("t").save(0)
        pool = vault.store._work.pool  # type: ignore[attr-defined]
        with pool.lent(savegame.stores.postgres.link.Patience(5)), vault.connection() as db:
            vault.thread("t").save(1)
            ((sessions,),) = db.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").fetchall()
        assert sessions == 2
        for number in range(5):
            with vault.connection():
                vault.thread("t").save(number)
        assert len(pool._idle) <= 2


COMMITS = """
CREATE TABLE level (level text);
CREATE FUNCTION level() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.level VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
CREATE CONSTRAINT TRIGGER level AFTER INSERT ON savegame.{} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION level()
"""


@pytest.mark.parametrize("table", ["frame", "record"])
@pytest.mark.parametrize(
    ("level", "durability", "used"),
    [("off", "power", "on"), ("local", "power", "local"), ("remote_apply", "power", "remote_apply"), ("off", "process", "off")],
)
def test_commits_wait_for_the_disk_whatever_the_session_says(
    postgres_url: str, table: str, level: str, durability: str, used: str
) -> None:
    """Read when the transaction ends: a trigger that was put off until then."""
    savegame.open(postgres_url).close()
    PostgresServer(postgres_url).execute(SQL(COMMITS.format(table)))  # type: ignore[arg-type]
    with savegame.open(f"{postgres_url}?options=-csynchronous_commit%3D{level}", durability=durability) as vault:
        for number in range(3):
            vault.thread("t").save(number)
            with vault.run("r") as run:
                run.step(f"step {number}", lambda: 1)
    levels = {found for (found,) in PostgresServer(postgres_url).execute("SELECT level FROM level")}
    assert levels == {used}


# -- transactions that are spoilt or ended inside --------------------------------------------------


def commit_and_begin(db: Any) -> None:
    db.execute("INSERT INTO note VALUES ('early'); COMMIT; BEGIN")
    db.execute("INSERT INTO note VALUES ('late')")


def commit_and_go_on(db: Any) -> None:
    db.execute("INSERT INTO note VALUES ('early'); COMMIT")


def commit_and_raise(db: Any) -> None:
    commit_and_begin(db)
    raise ZeroDivisionError


def commit_and_fail(db: Any) -> None:
    commit_and_begin(db)
    with contextlib.suppress(psycopg.Error):
        db.execute("SELECT nothing")


def commit_by_another_cursor(db: Any) -> None:
    commit_and_begin(db)
    psycopg.ClientCursor(db).execute("COMMIT")
    psycopg.ClientCursor(db).execute("BEGIN")


ENDING = [commit_and_begin, commit_and_go_on, commit_and_raise, commit_and_fail, commit_by_another_cursor]


@pytest.mark.parametrize("end", ENDING)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_block_that_ended_its_transaction_is_told_that_nobody_knows(
    vault: Vault, end: Callable[[Any], None], depth: int
) -> None:
    def block(depth: int) -> None:
        with vault.connection() as db:
            if depth > 1:
                block(depth - 1)
            else:
                end(db)

    with pytest.raises(TransactionFailed, match="COMMIT and ROLLBACK") as raised:
        block(depth)
    assert raised.value.unknown
    assert "early" in notes(vault)


def test_a_block_around_one_that_ended_the_transaction_is_told_too(vault: Vault) -> None:
    def swallow() -> None:
        with vault.connection(), contextlib.suppress(TransactionFailed), vault.connection() as db:
            commit_and_begin(db)

    with pytest.raises(TransactionFailed) as raised:
        swallow()
    assert raised.value.unknown
    assert notes(vault) == ["early"]


def test_an_interrupt_is_not_hidden_by_what_the_block_did(vault: Vault) -> None:
    def interrupt() -> None:
        with vault.connection() as db:
            commit_and_begin(db)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()


def fail_and_go_on(db: Any) -> None:
    db.execute("INSERT INTO note VALUES ('never')")
    with contextlib.suppress(psycopg.Error):
        db.execute("SELECT nothing")


def put_off(db: Any) -> None:
    db.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    db.execute("CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    db.execute("INSERT INTO child VALUES (7)")


def become_another(db: Any) -> None:
    db.execute("SET LOCAL ROLE pg_monitor")


def read_only(db: Any) -> None:
    db.execute("SET TRANSACTION READ ONLY")


SPOILING = [(fail_and_go_on, "a statement in the transaction had failed"), (put_off, "child_id_fkey")]


@pytest.mark.parametrize(("spoil", "why"), SPOILING)
def test_a_block_that_cannot_be_committed_by_its_own_doing_is_told_so(
    vault: Vault, spoil: Callable[[Any], None], why: str
) -> None:
    def block() -> None:
        with vault.connection() as db:
            spoil(db)

    with pytest.raises(TransactionFailed, match=why) as raised:
        block()
    assert not raised.value.unknown
    assert notes(vault) == []


@pytest.mark.parametrize(
    "end",
    [
        lambda db: db.commit(),
        lambda db: db.rollback(),
        lambda db: db.close(),
        lambda db: db.__exit__(None, None, None),
        lambda db: db.execute(SQL("COMMIT")),
        lambda db: db.cursor(row_factory=dict_row).execute(b"rollback work"),
        lambda db: db.execute("START TRANSACTION"),
        lambda db: db.execute("PREPARE TRANSACTION 'mine'"),
    ],
)
def test_what_would_end_the_transaction_is_refused(vault: Vault, end: Callable[[Any], object]) -> None:
    with vault.connection() as db:
        db.execute("INSERT INTO note VALUES ('kept')")
        with pytest.raises(InvalidInputError, match="refused"):
            end(db)
        with pytest.raises(ZeroDivisionError), db.transaction():  # noqa: PT012 - psycopg's own way to savepoints
            db.execute("INSERT INTO note VALUES ('undone')")
            raise ZeroDivisionError
        db.execute("SELECT 'COMMIT'")
        db.execute("SAVEPOINT mine")
        db.execute("ROLLBACK TO mine")
        db.execute("ROLLBACK WORK TO SAVEPOINT mine")
    assert notes(vault) == ["kept"]


# -- tools that are transactions -------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDING)
def test_a_tool_that_ended_its_transaction_is_called_once_and_somebody_has_to_tell(
    vault: Vault, end: Callable[[Any], None]
) -> None:
    box, made = Toolbox(), []

    @box.tool(transaction=True)
    def tool(call: Any) -> str:
        made.append(call.key)
        end(call.db)
        return "noted"

    vault.thread("t").delete()
    for _ in range(3):
        with pytest.raises(Unknown) as told:
            play(vault, box, calling(("tool", {})), "done")
    assert (len(made), ledger(vault)["tool"].status) == (1, "unknown")
    assert not list(vault.stale())
    vault.resolve("t", told.value.call, "noted, as I see")
    assert play(vault, box, calling(("tool", {})), "done") == "done"
    assert (len(made), contents(vault)[2]) == (1, "noted, as I see")


@pytest.mark.parametrize(
    ("spoil", "why"), [*SPOILING, (become_another, "permission denied"), (read_only, "read-only transaction")]
)
def test_a_tool_whose_transaction_cannot_be_committed_fails_and_the_model_is_told(
    vault: Vault, spoil: Callable[[Any], None], why: str
) -> None:
    box, made = Toolbox(), []

    @box.tool(transaction=True)
    def tool(call: Any) -> str:
        made.append(call.key)
        spoil(call.db)
        return "noted"

    vault.thread("t").delete()
    assert play(vault, box, calling(("tool", {})), "done") == "done"
    assert (len(made), ledger(vault)["tool"].status, notes(vault)) == (1, "failed", [])
    assert why in contents(vault)[2]


def test_isolation_and_modes_are_refused_by_psycopg_itself(vault: Vault) -> None:
    with vault.connection() as db:
        for name, value in (("autocommit", False), ("isolation_level", IsolationLevel.SERIALIZABLE), ("read_only", True)):
            with pytest.raises(psycopg.ProgrammingError):
                setattr(db, name, value)
