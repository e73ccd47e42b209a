"""`vault.connection()`: a transaction for own tables and saves, a block inside a block, and who ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from addresses import Opener, placeholder

from savegame import Toolbox, Vault
from tests.runs.test_runs import calling, contents, ledger, play


@pytest.fixture
def vault(in_database: Opener) -> Vault:
    vault = in_database()
    with vault.connection() as db:
        db.execute("CREATE TABLE note (text TEXT)")
    vault.thread("t").save("before")
    return vault


def note(vault: Vault, db: Any, text: str) -> None:
    """Write to a table of one's own, and save, in the block that we are in."""
    db.execute(f"INSERT INTO note VALUES ({placeholder(vault)})", (text,))
    thread = vault.thread("t")
    thread.latest()
    thread.save(text)


def kept(vault: Vault) -> tuple[list[str], Any]:
    with vault.connection() as db:
        return [text for (text,) in db.execute("SELECT text FROM note ORDER BY text").fetchall()], vault.thread("t").state()


def failing(vault: Vault, *texts: str) -> None:
    """Blocks inside each other, of which the innermost is left by an exception."""
    with vault.connection() as db:
        note(vault, db, texts[0])
        if len(texts) > 1:
            failing(vault, *texts[1:])
        raise ZeroDivisionError


@pytest.mark.parametrize("texts", [("inner",), ("inner", "innermost")])
def test_a_block_inside_another_that_is_left_by_an_exception_is_undone_by_itself(vault: Vault, texts: tuple[str, ...]) -> None:
    with vault.connection() as db:
        note(vault, db, "1 outer")
        with pytest.raises(ZeroDivisionError):
            failing(vault, *texts)
        assert vault.thread("t").state() == "1 outer"
        note(vault, db, "2 after")
    assert kept(vault) == (["1 outer", "2 after"], "2 after")
    assert vault.verify().ok
    assert [checkpoint.load().state for checkpoint in vault.thread("t").history()] == ["2 after", "1 outer", "before"]


def test_a_block_that_is_left_in_order_belongs_to_the_one_around_it(vault: Vault) -> None:
    def fail() -> None:
        with vault.connection() as outer:
            with vault.connection() as db:
                note(vault, db, "inner")
            note(vault, outer, "outer")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert kept(vault) == ([], "before")
    with vault.connection(), vault.connection() as db:
        note(vault, db, "inner")
    assert kept(vault) == (["inner"], "inner")


def test_an_exception_that_nobody_catches_undoes_every_block(vault: Vault) -> None:
    with pytest.raises(ZeroDivisionError):
        failing(vault, "outer", "inner", "innermost")
    assert kept(vault) == ([], "before")


def test_what_fails_inside_a_block_does_not_spoil_the_one_around_it(vault: Vault) -> None:
    def fail() -> None:
        with vault.connection() as db:
            note(vault, db, "inner")
            db.execute("INSERT INTO nowhere VALUES (1)")

    with vault.connection() as db:
        note(vault, db, "outer")
        with pytest.raises(Exception, match="nowhere"):
            fail()
        note(vault, db, "still outer")
    assert kept(vault) == (["outer", "still outer"], "still outer")


# -- a transaction that is ended inside ------------------------------------------------------------

ENDINGS = ["COMMIT", "ROLLBACK", "END", "BEGIN", "  -- done\n commit", "/* done */ ROLLBACK;"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_block_cannot_end_its_transaction(vault: Vault, ending: str) -> None:
    def end() -> None:
        with vault.connection() as db:
            note(vault, db, "inner")
            db.execute(ending)

    with pytest.raises(Exception):  # noqa: B017 - the driver's, or ours
        end()
    assert kept(vault) == ([], "before")
    with vault.connection() as db:
        note(vault, db, "kept")
        with pytest.raises(Exception):  # noqa: B017
            db.execute(ending)
        db.execute("SAVEPOINT mine")
        note(vault, db, "undone")
        db.execute("ROLLBACK TO SAVEPOINT mine")
    assert kept(vault) == (["kept"], "kept")


def ended(execute: Callable[[str], Any]) -> None:
    for statement in ("COMMIT", "BEGIN"):
        execute(statement)


def swallowed(execute: Callable[[str], Any]) -> None:
    for statement in ("COMMIT", "BEGIN"):
        with contextlib.suppress(Exception):  # as careless tools do
            execute(statement)


def test_a_tool_that_would_end_its_transaction_fails_and_nothing_of_it_is_kept(in_database: Opener) -> None:
    vault, box, made = in_database(), Toolbox(), []
    with vault.connection() as db:
        db.execute("CREATE TABLE note (text TEXT)")

    def tool(call: Any, do: Callable[[Callable[[str], Any]], None]) -> str:
        made.append(do)
        call.db.execute("INSERT INTO note VALUES ('by a tool')")
        do(call.db.execute)
        return "noted"

    box.tool(transaction=True, name="ends")(lambda call: tool(call, ended))
    box.tool(transaction=True, name="swallows")(lambda call: tool(call, swallowed))
    assert play(vault, box, calling(("ends", {}), ("swallows", {})), "done") == "done"
    assert made == [ended, swallowed]
    assert {name: entry.status for name, entry in ledger(vault).items()} == {"ends": "failed", "swallows": "done"}
    assert contents(vault)[3] == "noted"
    with vault.connection() as db:
        assert db.execute("SELECT text FROM note").fetchall() == [("by a tool",)]
