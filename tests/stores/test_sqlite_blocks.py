"""`connection()` on SQLite: whatever a block does to its connection, the vault's own work is as safe after it as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import savegame
from savegame import Toolbox
from savegame.errors import InvalidInputError

SECRET = "zebra-crossing-4711"


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[savegame.Vault]:
    with savegame.open(tmp_path / "v.db") as vault:
        vault.thread("t").save({"items": []})
        with vault.connection() as db:
            db.execute("CREATE TABLE app_own (x)")
        yield vault


def own_rows(vault: savegame.Vault) -> list[Any]:
    with vault.connection() as db:
        return [x for (x,) in db.execute("SELECT x FROM app_own ORDER BY x")]


def no_secure_delete(db: apsw.Connection) -> None:
    assert db.execute("PRAGMA secure_delete=OFF").fetchall() == [(0,)]


def half_read(db: apsw.Connection) -> None:
    KEPT.append(db.execute("SELECT x FROM app_own UNION ALL SELECT 2 UNION ALL SELECT 3"))
    next(KEPT[-1])


def hide_frames(db: apsw.Connection) -> None:
    db.execute("CREATE TEMP TABLE frame (key, id, delta)")


def row_trace(db: apsw.Connection) -> None:
    db.row_trace = lambda cursor, row: {"row": row}


def exec_trace(db: apsw.Connection) -> None:
    db.exec_trace = lambda cursor, sql, bindings: False


def blind(db: apsw.Connection) -> None:
    db.authorizer = lambda operation, *_: apsw.SQLITE_IGNORE if operation == apsw.SQLITE_READ else apsw.SQLITE_OK


def convert_jsonb(db: apsw.Connection) -> None:
    db.convert_jsonb = lambda cursor, column, value: "converted"


def impatient(db: apsw.Connection) -> None:
    db.set_busy_timeout(0)
    db.set_progress_handler(lambda: True, 10_000_000)


def attached(db: apsw.Connection) -> None:
    db.execute("ATTACH ':memory:' AS main2; CREATE TABLE main2.frame (x)")


KEPT: list[Any] = []
"""Cursors that outlive their block."""

HABITS = [no_secure_delete, half_read, hide_frames, row_trace, exec_trace, blind, convert_jsonb, impatient, attached]


@pytest.mark.parametrize("habit", HABITS)
def test_what_a_block_does_to_its_connection_ends_with_it(habit: Callable[[Any], None], vault: savegame.Vault) -> None:
    path = Path(vault.store.path)
    with vault.connection() as db:
        db.execute("INSERT INTO app_own VALUES (1)")
        habit(db)
    with savegame.open(path) as other:
        other.thread("t").update(append={"items": ["other"]})
    vault.thread("t").update(append={"items": ["mine"]})
    assert vault.thread("t").state() == {"items": ["other", "mine"]}
    assert own_rows(vault) == [1]
    person = vault.thread("person")
    for number in range(30):  # each too small to be compressed
        person.update(append={"items": [f"{SECRET} {number}"]})
    person.attach_subject("someone")
    erased = vault.erase(subject="someone")
    assert erased.complete
    assert vault.verify().ok
    assert [name for name in path.parent.iterdir() if SECRET.encode() in name.read_bytes()] == []


@pytest.mark.parametrize("habit", [half_read, row_trace, blind, convert_jsonb, no_secure_delete, impatient, attached])
def test_saves_inside_the_block_do_not_see_what_it_did_either(habit: Callable[[Any], None], vault: savegame.Vault) -> None:
    with vault.connection() as db:
        habit(db)
        vault.thread("t").update(append={"items": ["inside"]})
        assert vault.thread("t").state() == {"items": ["inside"]}
        assert db.row_trace is None or db.row_trace(None, (1,)) == {"row": (1,)}  # it is the block's again
    assert vault.thread("t").state() == {"items": ["inside"]}
    assert vault.verify().ok


@pytest.mark.parametrize(
    "hide",
    [
        "CREATE TEMP TABLE frame (key, id, base, run, space, meta, meta_sum, note, note_sum, delta, delta_sum)",
        "CREATE TEMP VIEW THREAD AS SELECT 1",
        "CREATE TEMP TRIGGER mine AFTER INSERT ON main.frame BEGIN DELETE FROM frame; END",
    ],
)
def test_a_save_inside_a_block_that_hides_our_tables_is_refused(hide: str, vault: savegame.Vault) -> None:
    with vault.connection() as db:
        db.execute(hide)
        for work in (lambda: vault.thread("t").save({"items": [1]}), lambda: vault.thread("t").state()):
            with pytest.raises(InvalidInputError, match="hides a table of ours"):
                work()
        db.execute("INSERT INTO app_own VALUES (1)")
    assert own_rows(vault) == [1]
    assert vault.thread("t").state() == {"items": []}


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END", "COMMIT; BEGIN", "commit transaction; begin immediate"])
def test_the_transaction_is_not_the_blocks_to_end(statement: str, vault: savegame.Vault) -> None:
    with vault.connection() as db:
        db.execute("INSERT INTO app_own VALUES (1)")
        with pytest.raises(InvalidInputError, match="was refused: leave COMMIT and ROLLBACK"):
            db.execute(statement)
        db.execute("INSERT INTO app_own VALUES (2)")
    assert own_rows(vault) == [1, 2]


@pytest.mark.parametrize("statement", ["COMMIT", "COMMIT; BEGIN", "COMMIT; BEGIN; SAVEPOINT mine", "ROLLBACK; BEGIN"])
def test_a_block_that_ends_the_transaction_all_the_same_is_told(statement: str, vault: savegame.Vault) -> None:
    def leave() -> None:
        with vault.connection() as db:
            db.execute("INSERT INTO app_own VALUES (1)")
            db.authorizer = None
            db.execute(statement)
            if "BEGIN" in statement:
                db.execute("INSERT INTO app_own VALUES (2)")

    with pytest.raises(InvalidInputError, match="ended inside the block"):
        leave()
    assert 2 not in own_rows(vault)
    vault.thread("t").update(append={"items": [1]})


def test_a_block_cannot_close_its_connection(vault: savegame.Vault) -> None:
    with vault.connection() as db:
        db.execute("INSERT INTO app_own VALUES (1)")
        for force in (False, True):
            with pytest.raises(InvalidInputError, match=r"close\(\) inside the block"):
                db.close(force)
        vault.thread("t").save({"items": ["kept"]})
    assert own_rows(vault) == [1]
    assert vault.thread("t").state() == {"items": ["kept"]}


def test_a_block_that_interrupts_its_own_end_raises_an_error_of_ours(vault: savegame.Vault) -> None:
    def interrupt() -> None:
        with vault.connection() as db:
            db.execute("INSERT INTO app_own VALUES (1)")
            db.set_progress_handler(lambda: True, 1)

    with pytest.raises(savegame.UnavailableError, match="interrupted"):
        interrupt()
    assert own_rows(vault) == []


def test_rows_that_a_writing_statement_still_has_are_told(vault: savegame.Vault) -> None:
    def leave() -> None:
        with vault.connection() as db:
            KEPT.append(db.execute("INSERT INTO app_own VALUES (1), (2) RETURNING x"))
            next(KEPT[-1])

    with pytest.raises(InvalidInputError, match="fetch its rows"):
        leave()
    assert own_rows(vault) == []


def test_savepoints_of_the_blocks_own(vault: savegame.Vault) -> None:
    with vault.connection() as db:
        db.execute("INSERT INTO app_own VALUES (1)")
        with pytest.raises(apsw.SQLError), db:  # apsw's own way to undo a part
            db.execute("INSERT INTO app_own VALUES (2); INSERT INTO missing VALUES (1)")
        db.execute("INSERT INTO app_own VALUES (3)")
    assert own_rows(vault) == [1, 3]


def test_a_transaction_tool_that_commits_is_told_and_undone(vault: savegame.Vault) -> None:
    tools = Toolbox()

    @tools.tool(transaction=True)
    def note(call: Any) -> str:
        call.db.execute("INSERT INTO app_own VALUES (1)")
        call.db.execute("COMMIT; BEGIN")
        return "noted"

    wanted = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "note", "arguments": {}}]}
    with vault.run("agent", tools=tools) as run:
        run.user("hi")
        run.model(lambda messages: wanted)
        run.tools()
        assert "COMMIT inside the block of connection() was refused" in run.messages[-1]["content"]
    assert own_rows(vault) == []
    assert [entry.status for entry in vault.calls("agent")] == ["failed"]
