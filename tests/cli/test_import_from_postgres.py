"""`savegame import langgraph postgresql://…`: databases that the stock PostgresSaver wrote, imported by the real command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from commands import fits, run, typed

pytest.importorskip("langgraph.graph")
pytest.importorskip("langgraph.checkpoint.postgres")

import psycopg
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from psycopg.sql import SQL, Identifier, Literal

import savegame
from savegame.adapters.langgraph import SavegameSaver
from savegame.cli.json_output import OUTPUTS

SECRET = "s3cr%et@/x:y"


def config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def talk(saver: Any, thread_id: str, turns: int) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(f"It is {state['messages'][-1].text}.")]})
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    graph = builder.compile(checkpointer=saver)
    for turn in range(turns):
        graph.invoke({"messages": [HumanMessage(f"parcel {turn}")]}, config(thread_id))


@pytest.fixture
def url(postgres_url: str) -> str:
    """The address of a database with two threads."""
    with PostgresSaver.from_conn_string(postgres_url) as saver:
        saver.setup()
        talk(saver, "chat", 2)
        talk(saver, "../odd 'id' %s", 1)
    return postgres_url


@pytest.fixture
def reader(url: str) -> Iterator[str]:
    """The same as a user who may only read, with a password."""
    name = f"reader{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(Identifier(name), Literal(SECRET)))
        try:
            db.execute(SQL("GRANT USAGE ON SCHEMA public TO {}").format(Identifier(name)))
            yield as_user(url, name, SECRET)
        finally:
            db.execute(SQL("DROP OWNED BY {}").format(Identifier(name)))
            db.execute(SQL("DROP ROLE {}").format(Identifier(name)))


def as_user(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{parts.hostname}:{parts.port}").geturl()


def grant(url: str, reader: str, what: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"GRANT SELECT ON {what} TO {urlsplit(reader).username}".encode())


def everything(url: str) -> list[Any]:
    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations")
    with psycopg.connect(url) as db:
        return [db.execute(f"SELECT t::text, xmin::text FROM {table} t ORDER BY 1".encode()).fetchall() for table in tables]


def assert_equal(url: str, store: object, *threads: str) -> None:
    with PostgresSaver.from_conn_string(url) as stock, savegame.open(str(store)) as vault:
        for thread in threads:
            wanted = list(stock.list(config(thread)))
            assert wanted
            assert list(SavegameSaver(vault).list(config(thread))) == wanted


def test_everything_comes_over_with_no_right_but_to_read(url: str, reader: str, tmp_path: Path) -> None:
    new, before = tmp_path / "new.db", everything(url)
    done = run("import", "langgraph", reader, "-s", new)
    assert done.code == savegame.UnavailableError.exit_code
    assert "GRANT SELECT" in done.err
    assert not new.exists()
    grant(url, reader, "ALL TABLES IN SCHEMA public")
    done = run("import", "langgraph", reader, "--store", new)
    assert done.code == 0, done.err
    assert "thread 'chat': 6 checkpoints, 6 imported" in done.out
    assert "all were read back and equal their source" in done.out
    assert everything(url) == before
    assert_equal(url, new, "chat", "../odd 'id' %s")
    again = run("import", "langgraph", reader, "-s", new, "--json").json
    assert fits(again, OUTPUTS["import langgraph"].of)
    assert (again["checkpoints"], again["imported"], again["failed"]) == (9, 0, [])
    assert SECRET not in str(again)
    assert quote(SECRET, safe="") not in str(again)


def test_people_see_a_bar(url: str, tmp_path: Path) -> None:
    shown = typed("import", "langgraph", url, "-s", tmp_path / "new.db", COLUMNS="100")
    assert shown.code == 0
    assert "importing" in shown.out
    assert "9 checkpoints of 2 threads" in shown.out


def test_a_vault_in_the_same_database_and_tables_in_another_schema(url: str) -> None:
    assert run("import", "langgraph", url, "-s", url).code == 0
    assert_equal(url, url, "chat", "../odd 'id' %s")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute('CREATE SCHEMA "My graphs"')
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations"):
            db.execute(f'ALTER TABLE {table} SET SCHEMA "My graphs"'.encode())
    done = run("import", "langgraph", url, "-s", url)
    assert done.code == savegame.UnsupportedError.exit_code
    assert "?options=-csearch_path%3D" in done.err
    elsewhere = f"{url}?options=-csearch_path%3D%22My%5C%20graphs%22"
    found = run("import", "langgraph", elsewhere, "-s", url, "--json").json
    assert (found["checkpoints"], found["imported"], found["failed"]) == (9, 0, [])


def test_a_damaged_row_stops_only_its_thread(url: str, tmp_path: Path) -> None:
    with psycopg.connect(url) as db:
        db.execute("UPDATE checkpoint_writes SET blob = '\\xc1' WHERE thread_id = 'chat'")
    new = tmp_path / "new.db"
    done = run("import", "langgraph", url, "-s", new)
    assert done.code == savegame.CorruptionError.exit_code
    assert "thread 'chat', checkpoint" in done.err
    assert "NOT imported, see above: 1" in done.out
    assert "thread 'chat'" not in done.out
    assert_equal(url, new, "../odd 'id' %s")
    with savegame.open(new) as vault:
        assert vault.thread("chat").latest() is None


def test_killed_half_way_and_run_again_gives_the_same(url: str, tmp_path: Path) -> None:
    with PostgresSaver.from_conn_string(url) as saver:
        talk(saver, "long", 60)
    for attempt in range(20):
        new = tmp_path / f"new-{attempt}.db"
        there = kill_when_begun(url, new)
        if 0 < there < 180:
            break
    else:
        pytest.fail("no kill hit the middle")
    done = run("import", "langgraph", url, "-s", new)
    assert done.code == 0, done.err
    assert f"thread 'long': 180 checkpoints, {180 - there} imported" in done.out
    assert_equal(url, new, "long", "chat", "../odd 'id' %s")


def kill_when_begun(url: str, new: Path) -> int:
    """Start an import and kill it when some of it is there; the number of checkpoints that are."""
    command = [sys.executable, "-m", "savegame", "import", "langgraph", url, "-s", str(new)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and count(new) < 20:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    return count(new)


def count(path: Path) -> int:
    try:
        with savegame.open(path, read_only=True) as vault:
            return len(list(vault.thread("long").history(branches=True)))
    except savegame.SavegameError:  # not there yet, or in the making
        return 0


def test_what_cannot_be_read_is_refused_and_no_store_is_made(url: str, reader: str, tmp_path: Path) -> None:
    new, user = tmp_path / "new.db", urlsplit(reader).username
    grant(url, reader, "ALL TABLES IN SCHEMA public")
    there = urlsplit(reader)
    for address, error, word in (
        (reader.replace("3cr", "4cr"), savegame.UnavailableError, "password"),
        (there._replace(path="/missing").geturl(), savegame.StoreNotFound, "createdb"),
        (there._replace(netloc=f"{user}:{SECRET}@127.0.0.1").geturl(), savegame.InvalidInputError, "libpq"),  # not escaped
        (f"{reader}?schema=public", savegame.InvalidInputError, "libpq"),
        (f"{reader}?host=127.0.0.1&port=1", savegame.UnavailableError, "there is no answer"),
        (f"host=127.0.0.1 user={user} password={SECRET}", savegame.InvalidInputError, "postgresql://"),
        (there._replace(scheme="postgresql+psycopg").geturl(), savegame.UnsupportedError, "postgresql://"),
    ):
        for more in ((), ("--json",)):
            done = run("import", "langgraph", address, "-s", new, *more)
            assert done.code == error.exit_code, done
            assert word in done.err
            assert not any(secret in done.err + done.out for secret in (SECRET, quote(SECRET, safe=""), "3cr", "4cr"))
            assert not new.exists()
    for change, reason in (
        ("INSERT INTO checkpoint_migrations VALUES (10)", "migration 10"),
        ("ALTER TABLE checkpoints DROP COLUMN checkpoint_id CASCADE", "shallow"),
        ("DROP TABLE checkpoints, checkpoint_blobs, checkpoint_writes, checkpoint_migrations", "search_path"),
    ):
        with psycopg.connect(url) as db:
            db.execute(change)  # type: ignore[arg-type]
        done = run("import", "langgraph", reader, "-s", new)
        assert done.code == savegame.UnsupportedError.exit_code
        assert reason in done.err
        assert not new.exists()


def test_without_psycopg_it_says_what_to_install(url: str, tmp_path: Path) -> None:
    script = "import sys; sys.modules['psycopg'] = None; from savegame.cli import main; main()"
    command = [sys.executable, "-c", script, "import", "langgraph", url, "-s", str(tmp_path / "new.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == savegame.UnsupportedError.exit_code
    assert 'pip install "savegame[langgraph,postgres]"' in done.stderr
    assert str(urlsplit(url).password) not in done.stderr
    assert "Traceback" not in done.stderr
