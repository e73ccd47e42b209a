"""`savegame import langgraph`: files that the stock SqliteSaver wrote for real graphs, imported by the real command."""

from __future__ import annotations

import datetime as dt
import json
import operator
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import commands
import ormsgpack
import pytest
from commands import Done, fits

import savegame
from savegame.cli.json_output import OUTPUTS

pytest.importorskip("langgraph.graph")
pytest.importorskip("langgraph.checkpoint.sqlite")

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from savegame.adapters.langgraph import SavegameSaver
from savegame.adapters.langgraph_import import import_threads


@dataclass
class Order:
    number: int
    state: str


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[Any], operator.add]
    order: Order | None
    odd: Any


class Inner(TypedDict):
    log: Annotated[list[Any], operator.add]
    answer: str


def model(state: Chat) -> dict[str, Any]:
    last = state["messages"][-1]
    if isinstance(last, HumanMessage):
        call = {"id": f"c{len(state['messages'])}", "name": "find_order", "args": {"order": 1017}}
        return {"messages": [AIMessage("Ich schaue nach…", tool_calls=[call])], "log": [{"step": len(state["messages"])}]}
    return {"messages": [AIMessage(f"It is {last.content}.")], "odd": {1: {2, 3}, "bytes": b"\0\xff", "float": 0.5}}


def tool(state: Chat) -> dict[str, Any]:
    last = state["messages"][-1]
    assert isinstance(last, AIMessage)
    return {"messages": [ToolMessage("lost", tool_call_id=last.tool_calls[0]["id"])], "order": Order(1017, "lost")}


def chat_graph(saver: Any) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tool" if state["messages"][-1].tool_calls else END, ["tool", END])
    builder.add_edge("tool", "model")
    return builder.compile(checkpointer=saver)


def ask(state: Inner) -> dict[str, Any]:
    return {"answer": interrupt({"question": "refund?", "amount": 49}), "log": ["asked"]}


def outer_graph(saver: Any) -> Any:
    inner = StateGraph(Inner)
    inner.add_node("look", lambda state: {"log": ["looked"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "look")
    inner.add_edge("look", "ask")
    outer = StateGraph(Inner)
    outer.add_node("before", lambda state: {"log": ["before"]})
    outer.add_node("inner", inner.compile())
    outer.add_node("beside", lambda state: {"log": ["beside"]})
    outer.add_edge(START, "before")
    outer.add_edge("before", "inner")
    outer.add_edge("before", "beside")
    return outer.compile(checkpointer=saver)


def config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def talk(saver: Any, thread_id: str, turns: int) -> Any:
    graph = chat_graph(saver)
    for turn in range(turns):
        found = graph.invoke({"messages": [HumanMessage(f"Where is parcel {turn}?")]}, config(thread_id))
    return found


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Two chats, one of them with a fork, and an interrupted graph with a subgraph."""
    path = tmp_path / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        talk(saver, "chat", 3)
        talk(saver, "../odd 'id'", 1)
        graph = chat_graph(saver)
        earlier = list(graph.get_state_history(config("chat")))[4]
        graph.update_state(earlier.config, {"log": ["forked"]})
        outer_graph(saver).invoke({"log": ["begin"]}, config("asked"))
    return path


def run(*arguments: str | Path, cwd: Path) -> Done:
    return commands.run("import", "langgraph", *arguments, cwd=cwd)


@contextmanager
def both(old: Path, new: Path) -> Iterator[tuple[SqliteSaver, SavegameSaver]]:
    """The two savers; the old one on a copy, so that nothing touches the original."""
    copy = old.with_name("copy-to-compare.db")
    shutil.copy(old, copy)
    with SqliteSaver.from_conn_string(str(copy)) as stock, savegame.open(new) as vault:
        yield stock, SavegameSaver(vault, allow=[Order])


def assert_equal(old: Path, new: Path) -> None:
    with both(old, new) as (stock, ours):
        for thread_id in ("chat", "../odd 'id'"):
            before = list(chat_graph(stock).get_state_history(config(thread_id)))
            assert before
            assert list(chat_graph(ours).get_state_history(config(thread_id))) == before
            assert chat_graph(ours).get_state(config(thread_id)) == chat_graph(stock).get_state(config(thread_id))
        asked = outer_graph(stock).get_state(config("asked"), subgraphs=True)
        assert asked.next == ("inner",)
        assert asked.interrupts
        assert outer_graph(ours).get_state(config("asked"), subgraphs=True) == asked
        assert list(ours.list(None, limit=0)) == []
        key = lambda item: sorted(item.config["configurable"].items())  # noqa: E731
        assert sorted(ours.list(None), key=key) == sorted(stock.list(None), key=key)


def test_everything_comes_over_and_the_old_file_stays_as_it_is(old: Path, tmp_path: Path) -> None:
    bytes_before = old.read_bytes()
    new = tmp_path / "new.db"
    done = run(old, "--store", new, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert "thread 'chat': 16 checkpoints, 16 imported" in done.out
    assert "namespace 'inner:" in done.out
    assert "all were read back and equal" in done.out
    again = json.loads(run(old, "-s", new, "--json", cwd=tmp_path).out)
    assert fits(again, OUTPUTS["import langgraph"].of)
    assert (again["imported"], again["failed"]) == (0, [])
    assert old.read_bytes() == bytes_before
    assert_equal(old, new)
    with savegame.open(new) as vault:
        assert vault.verify().ok
        state = vault.thread("chat").state()
        assert state["channel_values"]["messages"][0]["content"] == "Where is parcel 0?"  # plain, without LangGraph
        for entry in vault.thread("chat").history(branches=True):  # each as old as it was
            assert entry.created_at == dt.datetime.fromisoformat(entry.load().state["ts"])


def test_graphs_carry_on_where_they_were(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    assert run(old, "-s", new, cwd=tmp_path).code == 0
    with both(old, new) as (stock, ours):
        assert outer_graph(ours).invoke(Command(resume="yes"), config("asked")) == outer_graph(stock).invoke(
            Command(resume="yes"), config("asked")
        )
        after, wanted = talk(ours, "chat", 2), talk(stock, "chat", 2)
        assert [message.content for message in after["messages"]] == [message.content for message in wanted["messages"]]
        assert after["order"] == Order(1017, "lost")
        assert len(list(ours.list(config("chat")))) == len(list(stock.list(config("chat"))))
        old_point = list(chat_graph(ours).get_state_history(config("chat")))[-1]
        chat_graph(ours).invoke(None, old_point.config)  # time travel to before the import


def test_a_second_run_imports_nothing_also_after_the_graph_went_on(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    assert run(old, "-s", new, cwd=tmp_path).code == 0
    again = run(old, "-s", new, cwd=tmp_path)
    assert again.code == 0, again.err
    assert ": 0 imported" in again.out
    assert_equal(old, new)
    with savegame.open(new) as vault:
        outer_graph(SavegameSaver(vault)).invoke(Command(resume="yes"), config("asked"))
        ended = outer_graph(SavegameSaver(vault)).get_state(config("asked"))
        count = vault.stats().checkpoints
    once_more = run(old, "-s", new, cwd=tmp_path)
    assert once_more.code == 0, once_more.err
    assert ": 0 imported" in once_more.out
    with savegame.open(new) as vault:
        assert vault.stats().checkpoints == count
        assert outer_graph(SavegameSaver(vault)).get_state(config("asked")) == ended


def test_an_old_file_that_went_on_is_brought_up_to_date(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    assert run(old, "-s", new, cwd=tmp_path).code == 0
    with SqliteSaver.from_conn_string(str(old)) as saver:
        talk(saver, "chat", 1)
    done = run(old, "-s", new, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "thread 'chat': 21 checkpoints, 5 imported" in done.out
    assert_equal(old, new)


def test_two_that_went_different_ways_are_not_mixed(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    assert run(old, "-s", new, cwd=tmp_path).code == 0
    with savegame.open(new) as vault:
        talk(SavegameSaver(vault, allow=[Order]), "chat", 1)
        head = vault.thread("chat").latest()
    with SqliteSaver.from_conn_string(str(old)) as saver:
        talk(saver, "chat", 1)
    done = run(old, "-s", new, cwd=tmp_path)
    assert done.code == savegame.ConflictError.exit_code
    assert "thread 'chat'" in done.err
    with savegame.open(new) as vault:
        assert vault.thread("chat").latest() == head


def test_writes_of_every_form_keep_their_order_and_their_numbers(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    writes: list[tuple[str, Any]] = [
        ("a", None),
        ("__interrupt__", "stop"),
        ("b", b"\0\xff"),
        ("a", bytearray(b"x")),
        ("c", {1: float("inf"), "ü": [Order(1, "lost")]}),
        ("__resume__", [1]),
        ("a", "last"),
    ]
    with SqliteSaver.from_conn_string(str(old)) as stock:
        talk(stock, "chat", 1)
        there = stock.get_tuple(config("chat"))
        assert there is not None
        stock.put_writes(there.config, writes, "task-2", "~1")
        stock.put_writes(there.config, [("__error__", "late")], "task-1", "~2")
        stock.put_writes(there.config, [("a", 1), ("b", 2)], "task-3")
        there = stock.get_tuple(config("chat"))
    assert there is not None
    assert there.pending_writes is not None
    assert len(there.pending_writes) == 10
    done = run(old, "-s", new, cwd=tmp_path)
    assert done.code == 0, done.err
    with savegame.open(new) as vault:
        ours = SavegameSaver(vault, allow=[Order])
        assert ours.get_tuple(config("chat")) == there
        ours.put_writes(there.config, writes, "task-2", "~1")  # a task that is run again writes nothing twice
        assert ours.get_tuple(config("chat")) == there


def test_killed_half_way_and_run_again_gives_the_same(tmp_path: Path) -> None:
    old, whole = tmp_path / "old.db", tmp_path / "whole.db"
    with SqliteSaver.from_conn_string(str(old)) as saver:
        talk(saver, "chat", 60)
        total = len(list(saver.list(config("chat"))))
    assert run(old, "-s", whole, cwd=tmp_path).code == 0
    for attempt in range(20):
        new = tmp_path / f"new-{attempt}.db"
        there = kill_when_begun(old, new, tmp_path)
        if 0 < there < total:
            break
    else:
        pytest.fail("no kill hit the middle")
    done = run(old, "-s", new, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert f"thread 'chat': {total} checkpoints, {total - there} imported" in done.out
    with savegame.open(new) as vault, savegame.open(whole) as other:
        assert vault.verify().ok
        assert list(SavegameSaver(vault).list(config("chat"))) == list(SavegameSaver(other).list(config("chat")))
        ids = [checkpoint.id for checkpoint in vault.thread("chat").history(branches=True)]
        assert ids == [checkpoint.id for checkpoint in other.thread("chat").history(branches=True)]


def kill_when_begun(old: Path, new: Path, cwd: Path) -> int:
    """Start an import and kill it when some of it is there; the number of checkpoints that are."""
    command = [sys.executable, "-m", "savegame", "import", "langgraph", str(old), "-s", str(new)]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and count(new) < 20:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    return count(new)


def count(path: Path) -> int:
    try:
        with savegame.open(path, read_only=True) as vault:
            return len(list(vault.thread("chat").history(branches=True)))
    except savegame.SavegameError:  # not there yet, or in the making
        return 0


def change(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement, values).rowcount == 1


def newest(path: Path, thread_id: str) -> str:
    with closing(sqlite3.connect(path)) as db:
        found: str = db.execute("SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?", (thread_id,)).fetchone()[0]
    return found


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("checkpoint", b"\x85\xa1v", savegame.CorruptionError),
        ("checkpoint", ormsgpack.packb({"id": "another"}), savegame.CorruptionError),
        ("checkpoint", None, savegame.CorruptionError),
        ("metadata", b"{", savegame.CorruptionError),
        ("metadata", b"[1]", savegame.CorruptionError),
        ("type", "json", savegame.UnsupportedError),
        ("type", "pickle", savegame.UnsupportedError),
        ("type", "msgpack+aes", savegame.UnsupportedError),
        ("type", None, savegame.UnsupportedError),
    ],
)
def test_a_bad_row_is_named_and_its_thread_not_begun(old: Path, tmp_path: Path, column: str, value: Any, error: Any) -> None:
    row = newest(old, "chat")
    change(old, f"UPDATE checkpoints SET {column} = ? WHERE thread_id = 'chat' AND checkpoint_id = ?", value, row)
    new = tmp_path / "new.db"
    for _ in range(2):  # the second run is no kinder
        done = run(old, "-s", new, cwd=tmp_path)
        assert done.code == error.exit_code, done.out + done.err
        assert "'chat'" in done.err
        assert row in done.err
        assert "Traceback" not in done.err
        assert "NOT imported" in done.out
        assert "thread 'chat'" not in done.out
        assert "equal their source" not in done.out
    with savegame.open(new) as vault:
        assert vault.thread("chat").latest() is None
        assert vault.thread("../odd 'id'").latest() is not None  # the others came over


def test_a_bad_write_is_named(old: Path, tmp_path: Path) -> None:
    statement = (
        "UPDATE writes SET type = 'pickle' WHERE thread_id = 'asked' AND checkpoint_ns = '' AND channel = '__interrupt__'"
    )
    change(old, statement)
    done = run(old, "-s", tmp_path / "new.db", cwd=tmp_path)
    assert done.code == savegame.UnsupportedError.exit_code
    assert "'asked'" in done.err
    assert "write -3 of task" in done.err
    assert "stock SqliteSaver" in done.err  # what to do


def test_what_differs_from_the_old_file_is_found(old: Path, tmp_path: Path) -> None:
    """The negative control of the comparison: each part is changed in the old file after the import."""
    new = tmp_path / "new.db"
    assert run(old, "-s", new, cwd=tmp_path).code == 0
    row = newest(old, "chat")
    with closing(sqlite3.connect(old)) as db:
        data = db.execute("SELECT checkpoint FROM checkpoints WHERE checkpoint_id = ?", (row,)).fetchone()[0]
    sealed = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)
    values, versions = sealed["channel_values"], sealed["channel_versions"]
    message = ormsgpack.Ext(5, ormsgpack.packb(["langchain_core.messages.human", "HumanMessage", {"content": "x"}, "x"]))
    wrong = {
        "channel_values": {"channel_values": {**values, "messages": [message, *values["messages"][1:]]}},
        "channel_versions": {"channel_versions": {**versions, "messages": "1.5"}},
        "versions_seen": {"versions_seen": {}},
    }
    for what, part in wrong.items():
        damaged = tmp_path / f"{what}.db"
        shutil.copy(old, damaged)
        data = ormsgpack.packb({**sealed, **part}, option=ormsgpack.OPT_NON_STR_KEYS)
        change(damaged, "UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = ?", data, row)
        assert_differs(damaged, new, row, what)
    damaged = tmp_path / "metadata.db"
    shutil.copy(old, damaged)
    change(damaged, "UPDATE checkpoints SET metadata = ? WHERE checkpoint_id = ?", b'{"step": 99}', row)
    assert_differs(damaged, new, row, "the metadata")
    damaged = tmp_path / "parent.db"
    shutil.copy(old, damaged)
    change(damaged, "UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE checkpoint_id = ?", row)
    assert_differs(damaged, new, row, "the parent")
    damaged = tmp_path / "writes.db"
    shutil.copy(old, damaged)
    statement = "SELECT checkpoint_id, task_id FROM writes WHERE thread_id = 'chat' AND channel = 'log' LIMIT 1"
    with closing(sqlite3.connect(damaged)) as db:
        row, task = db.execute(statement).fetchone()
    statement = "UPDATE writes SET value = ? WHERE channel = 'log' AND checkpoint_id = ? AND task_id = ?"
    change(damaged, statement, ormsgpack.packb(["another"]), row, task)
    assert_differs(damaged, new, row, "the pending writes")
    done = run(damaged, "-s", new, cwd=tmp_path)
    assert done.code == savegame.CorruptionError.exit_code, done.out + done.err
    assert "the pending writes" in done.err
    assert "equal their source" not in done.out


def assert_differs(old: Path, new: Path, row: str, what: str) -> None:
    with savegame.open(new) as vault:
        (error,) = (outcome.error for outcome in import_threads(old, vault) if outcome.error is not None)
    assert isinstance(error, savegame.CorruptionError)
    assert f"thread 'chat', checkpoint '{row}'" in str(error)
    assert what in str(error)


def test_no_class_is_constructed_because_the_old_file_names_it(old: Path, tmp_path: Path) -> None:
    row, mark = newest(old, "chat"), tmp_path / "executed"
    with closing(sqlite3.connect(old)) as db:
        data = db.execute("SELECT checkpoint FROM checkpoints WHERE checkpoint_id = ?", (row,)).fetchone()[0]
    sealed = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)
    sealed["channel_values"]["odd"] = [ormsgpack.Ext(0, ormsgpack.packb(["os", "system", f"touch {mark}"]))]
    data = ormsgpack.packb(sealed, option=ormsgpack.OPT_NON_STR_KEYS)
    change(old, "UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = ?", data, row)
    new = tmp_path / "new.db"
    done = run(old, "-s", new, cwd=tmp_path)
    assert done.code == 0, done.err
    with savegame.open(new) as vault:
        found = SavegameSaver(vault, allow=[Order]).get_tuple(config("chat"))
        assert found is not None
        assert found.checkpoint["channel_values"]["odd"] == [f"touch {mark}"]  # the data, never the call
    assert not mark.exists()


def test_a_file_of_before_task_paths(old: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(old)) as db, db:
        db.execute("ALTER TABLE writes DROP COLUMN task_path")
    bytes_before = old.read_bytes()
    new = tmp_path / "new.db"
    done = run(old, "-s", new, cwd=tmp_path)
    assert done.code == 0, done.err
    assert old.read_bytes() == bytes_before
    assert_equal(old, new)


def test_a_file_that_somebody_has_open_is_read_as_it_is_now(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    with SqliteSaver.from_conn_string(str(old)) as saver:
        talk(saver, "chat", 2)
        wal = Path(f"{old}-wal")
        assert wal.stat().st_size > 0
        before = old.read_bytes(), wal.read_bytes()
        done = run(old, "-s", new, cwd=tmp_path)
        assert done.code == 0, done.err
        assert (old.read_bytes(), wal.read_bytes()) == before
        with savegame.open(new) as vault:
            ours = SavegameSaver(vault, allow=[Order])
            assert list(ours.list(config("chat"))) == list(saver.list(config("chat")))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user who may not write")
def test_a_file_where_nobody_may_write(old: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys, savegame\n"
        "from savegame.adapters.langgraph_import import import_threads\n"
        "vault = savegame.open('memory:')\n"
        "os.setuid(65534)\n"
        "found = list(import_threads(sys.argv[1], vault))\n"
        "sys.exit(not found or any(item.error for item in found))\n"
    )
    place = Path(tempfile.mkdtemp())  # pytest's own directories are private to root
    try:
        shutil.copy(old, place / "old.db")
        os.chmod(place, 0o555)
        done = subprocess.run(
            [sys.executable, "-c", script, str(place / "old.db")], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert [path.name for path in place.iterdir()] == ["old.db"]
    finally:
        shutil.rmtree(place)


def test_what_is_no_such_file_is_refused_and_no_store_is_made(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    text, other = tmp_path / "text.db", tmp_path / "other.db"
    text.write_text("This is no database at all, but long enough to be looked at.\n" * 20)
    with closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE checkpoints (thread_id TEXT, thread_ts TEXT, checkpoint BLOB)")
    for path, error in (
        (tmp_path / "missing.db", savegame.StoreNotFound),
        (tmp_path, savegame.StoreNotFound),
        ("mysql://127.0.0.1/graphs", savegame.UnsupportedError),
        (text, savegame.UnsupportedError),
        (other, savegame.UnsupportedError),
    ):
        done = run(path, "-s", new, cwd=tmp_path)
        assert done.code == error.exit_code, done.out + done.err
        assert done.err.startswith(f"savegame: {path}")
        assert "Traceback" not in done.err
        assert not new.exists()
    before = old.read_bytes()
    done = run(old, "-s", old, cwd=tmp_path)  # into itself
    assert done.code == savegame.UnsupportedError.exit_code
    assert old.read_bytes() == before


def test_without_langgraph_it_says_what_to_install(old: Path, tmp_path: Path) -> None:
    script = "import sys; sys.modules['langgraph'] = None; from savegame.cli import main; main()"
    command = [sys.executable, "-c", script, "import", "langgraph", str(old), "-s", str(tmp_path / "new.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == savegame.UnsupportedError.exit_code
    assert 'pip install "savegame[langgraph]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_every_level_has_help(tmp_path: Path) -> None:
    for arguments in (["import"], ["import", "langgraph"]):
        command = [sys.executable, "-m", "savegame", *arguments, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
        assert done.returncode == 0
        assert "SqliteSaver" in done.stdout
