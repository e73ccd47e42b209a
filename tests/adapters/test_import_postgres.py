"""Threads that the stock PostgresSaver wrote for real graphs, imported: every checkpoint equals what PostgresSaver reads."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

pytest.importorskip("langgraph.checkpoint.postgres")

import psycopg
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Command, Send
from scripted import (
    Colour,
    Flaky,
    Graph,
    Machine,
    Part,
    Recipe,
    Step,
    branches,
    chat,
    config,
    dataclass_state,
    deltas,
    nested,
    outer,
    person,
    pydantic_state,
    told,
    tool_loop,
    trip,
)

from savegame.adapters.langgraph import SavegameSaver
from savegame.adapters.langgraph_import import ImportOutcome, import_threads, open_source
from savegame.errors import ConflictError, CorruptionError, UnavailableError, UnsupportedError
from savegame.testing.postgres import Cluster
from savegame.vault import Vault

Saver = BaseCheckpointSaver[Any]
ODD = ("../up", "100% 'quoted' \"twice\" %s", "back\\slash \\x41", "🙂 Ölüdeniz", "a␟b", " ")


@pytest.fixture
def stock(postgres_url: str) -> Iterator[PostgresSaver]:
    with PostgresSaver.from_conn_string(postgres_url) as saver:
        saver.setup()
        yield saver


def our_saver(vault: Vault) -> SavegameSaver:
    return SavegameSaver(vault, allow=[Colour, Machine, Part, Recipe, Step])


def imported(url: str, vault: Vault) -> list[ImportOutcome]:
    """The outcomes of an import in which nothing failed."""
    found = list(import_threads(url, vault))
    assert [outcome.error for outcome in found] == [None] * len(found)
    return found


def execute(url: str, statement: Any, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as db:
        done = db.execute(statement, values)
        assert done.description or done.rowcount
        return done.fetchall() if done.description else []


def assert_equal(url: str, vault: Vault) -> None:
    """Both savers read the same: each place as a list, its newest checkpoint, and each checkpoint by its id."""
    ours = our_saver(vault)
    with PostgresSaver.from_conn_string(url) as stock:
        for thread_id, namespace in execute(url, "SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints"):
            place = config(thread_id, checkpoint_ns=namespace)
            wanted = list(stock.list(place))
            assert list(ours.list(place)) == wanted
            assert ours.get_tuple(place) == stock.get_tuple(place) == wanted[0]
            for found in wanted[:50]:
                assert ours.get_tuple(found.config) == stock.get_tuple(found.config) == found
    assert vault.verify().ok


def tell(stock: Saver) -> dict[str, Callable[[Saver], Graph]]:
    """Run graphs of every kind; the graphs by their threads. Some end in an interrupt, one in an error."""
    graphs: dict[str, Callable[[Saver], Graph]] = {
        "tools": tool_loop,
        "trip": trip,
        "branches": lambda saver: branches(saver, Flaky(1)),
        "outer": partial(outer, remember=False),
        "outer that remembers": partial(outer, remember=True),
        "nested": nested,
        "pydantic": pydantic_state,
        "dataclass": dataclass_state,
        "deltas": deltas,
        **dict.fromkeys(ODD, chat),
    }
    made = {thread: make(stock) for thread, make in graphs.items()}
    for number, text in enumerate(("weather and add", "hi", "add")):
        made["tools"].invoke(person(text, number), config("tools"))
    earlier = list(made["tools"].get_state_history(config("tools")))[4]
    made["tools"].update_state(earlier.config, person("a fork", 9))
    made["trip"].invoke({"log": ["begun"], "city": ""}, config("trip"))
    made["trip"].invoke(Command(resume="Rome"), config("trip"))
    with pytest.raises(RuntimeError, match="not today"):
        made["branches"].invoke({"seen": [], "total": 0, "failures": 0}, config("branches"))
    made["outer"].invoke({"topic": "cats"}, config("outer"))
    made["outer that remembers"].invoke({"topic": "cats"}, config("outer that remembers"))
    made["outer that remembers"].invoke(Command(resume="yes"), config("outer that remembers"))
    made["nested"].invoke({"topic": "dogs", "notes": []}, config("nested"))
    made["pydantic"].invoke(Machine(name="bike"), config("pydantic"))
    made["dataclass"].invoke(Recipe("soup"), config("dataclass"))
    for number in range(7):
        made["deltas"].invoke(person("hi", number), config("deltas"))
    for thread in ODD:
        made[thread].invoke(person("hi", 1), config(thread))
    return graphs


def test_graphs_of_every_kind(stock: PostgresSaver, postgres_url: str, vault: Vault) -> None:
    graphs = tell(stock)
    found = imported(postgres_url, vault)
    assert {outcome.place.thread_id for outcome in found} == set(graphs)
    assert len({outcome.place for outcome in found}) > len(graphs)  # namespaces of subgraphs
    assert_equal(postgres_url, vault)
    ours = our_saver(vault)
    for thread, make in graphs.items():
        assert told(make(ours), thread) == told(make(stock), thread)
    assert imported(postgres_url, vault) == [outcome._replace(new=0) for outcome in found]


def test_graphs_go_on_after_the_import(stock: PostgresSaver, postgres_url: str, vault: Vault) -> None:
    graphs = tell(stock)
    imported(postgres_url, vault)
    ours = our_saver(vault)
    for thread, answer in (("trip", "May"), ("outer", "yes"), ("nested", "yes")):
        results = [
            make(saver).invoke(Command(resume=answer), config(thread)) for saver in (stock, ours) for make in [graphs[thread]]
        ]
        assert results[0] == results[1]
        assert "__interrupt__" not in results[1]
    flaky = Flaky(0)
    assert branches(ours, flaky).invoke(None, config("branches")) == branches(stock, Flaky(0)).invoke(None, config("branches"))
    assert flaky.ran == ["right"]  # the writes of the task that succeeded came over
    for thread in ("tools", "deltas", *ODD):
        for saver in (stock, ours):
            graphs[thread](saver).invoke(person("add", 20), config(thread))
    for thread, make in graphs.items():
        assert told(make(ours), thread) == told(make(stock), thread)
    found = list(import_threads(postgres_url, vault))  # both went on
    assert {outcome.place.thread_id for outcome in found if isinstance(outcome.error, ConflictError)} >= {"tools", "trip", *ODD}


def test_threads_of_the_asynchronous_saver(postgres_url: str, vault: Vault) -> None:
    async def run() -> list[dict[str, Any]]:
        async with AsyncPostgresSaver.from_conn_string(postgres_url) as saver:
            await saver.setup()
            await trip(saver).ainvoke({"log": ["begun"], "city": ""}, config())
            return [found async for found in saver.alist(config())]

    wanted = asyncio.run(run())
    imported(postgres_url, vault)
    assert list(our_saver(vault).list(config())) == wanted
    assert_equal(postgres_url, vault)


def put(stock: PostgresSaver, values: dict[str, Any], parent: Any = None, metadata: Any = None, **changes: Any) -> Any:
    """Put a checkpoint whose values are all new; returns its config."""
    versions = changes.pop("versions", {channel: stock.get_next_version(None, None) for channel in values})
    checkpoint = {**empty_checkpoint(), "id": str(uuid6()), "v": 4, "channel_values": values, "channel_versions": versions}
    where = parent or config(checkpoint_ns="")
    return stock.put(where, {**checkpoint, **changes}, metadata or {"step": 1}, versions)  # type: ignore[typeddict-item]


VALUES = {
    "none": None,
    "text": "a \"quoted\" 'text' \\ % 🙂",
    "empty": "",
    "true": True,
    "zero": 0,
    "large": 2**70,
    "larger": -(10**40),
    "unsigned": 2**64 - 1,
    "float": 0.1 + 0.2,
    "whole": 1e20,  # which comes back as an integer
    "tiny": 5e-324,
    "bytes": b"\0\xff",
    "bytearray": bytearray(b"x"),
    "infinite": [float("inf"), -0.0],
    "keys": {1: {2, 3}, None: (4,), "🙂": b"x"},
    "message": [HumanMessage("Wo ist 'das' %s?"), AIMessage("🙂")],
}


def test_values_of_every_kind(stock: PostgresSaver, postgres_url: str, vault: Vault) -> None:
    first = put(stock, VALUES, metadata={"nul": "a\0b", "deep": {"a": [1, 2.5, None]}, "large": 2**70, "writes": {"gone": 1}})
    second = put(
        stock, {"true": False, "text": ["now a list"], "bytes": None}, first, versions={"true": 7, "text": 1.5, "bytes": "x"}
    )
    third = put(
        stock, {"gone": 1}, second, versions={"gone": "1", "never": "2", "true": 7, "text": 1.5, "bytes": "x", "float": "y"}
    )
    stock.put_writes(third, [("a", None), ("__interrupt__", "stop"), ("b", b"\0\xff"), ("a", bytearray(b"x"))], "task-2", "~1")
    stock.put_writes(third, [("__error__", "late")], "task-1", "~2")
    stock.put_writes(third, [("c", {1: float("inf")}), ("__resume__", [1])], "task-2 🙂", "~0")
    stock.put_writes({"configurable": {**third["configurable"], "checkpoint_id": "not there yet"}}, [("a", 1)], "task")
    values = ("t", "", "never", "2", "empty", None)
    execute(postgres_url, "INSERT INTO checkpoint_blobs VALUES (%s, %s, %s, %s, %s, %s)", *values)
    (outcome,) = imported(postgres_url, vault)
    assert (outcome.checkpoints, outcome.new) == (3, 3)
    assert_equal(postgres_url, vault)
    newest, _, oldest = our_saver(vault).list(config())
    assert oldest.metadata["nul"] == "ab"  # type: ignore[typeddict-item]
    assert {channel: type(value) for channel, value in oldest.checkpoint["channel_values"].items()} == {
        channel: int if channel == "whole" else type(value) for channel, value in VALUES.items()
    }
    assert newest.checkpoint["channel_values"].keys() == {"text", "gone"}
    assert len(newest.pending_writes or ()) == 7


def test_a_channel_that_is_a_large_number_stays_usable(stock: PostgresSaver, postgres_url: str, vault: Vault) -> None:
    parent = put(stock, {"large": 2**70, "log": ["a"]})
    imported(postgres_url, vault)
    ours = our_saver(vault)
    newest = ours.get_tuple(config())
    assert newest is not None
    log = {"log": stock.get_next_version(newest.checkpoint["channel_versions"]["log"], None)}
    values = {**newest.checkpoint["channel_values"], "log": ["a", "b"]}
    versions = {**newest.checkpoint["channel_versions"], **log}
    next_one: Any = {**newest.checkpoint, "id": str(uuid6()), "channel_values": values, "channel_versions": versions}
    ours.put(parent, next_one, {"step": 2}, log)
    found = ours.get_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"large": 2**70, "log": ["a", "b"]}


@pytest.mark.parametrize("versions", [{}, {"a": 3, "b": 2}, {"a": "2", "b": "10"}], ids=["none", "numbers", "texts"])
def test_tasks_of_old_checkpoints(stock: PostgresSaver, postgres_url: str, vault: Vault, versions: dict[str, Any]) -> None:
    """Before version 4, tasks were writes of the parent, and each saver made them a channel on reading."""
    parent = put(stock, dict.fromkeys(versions, "x"), v=1, versions=versions)
    sends = [Send("item", {"n": number}) for number in range(4)]
    stock.put_writes(parent, [("__pregel_tasks", sends[3])], "task-0", "~2")
    stock.put_writes(parent, [("__pregel_tasks", sends[1]), ("a", 1), ("__pregel_tasks", sends[2])], "task-2", "~1")
    stock.put_writes(parent, [("__pregel_tasks", sends[0])], "task-1", "~1")
    put(stock, {channel: [1] for channel in versions}, parent, v=2, versions=versions)
    put(stock, {}, parent, v=4, versions={})
    imported(postgres_url, vault)
    ours = our_saver(vault)
    (_, mine, _), (_, theirs, _) = list(ours.list(config())), list(stock.list(config()))
    assert mine.checkpoint["channel_values"]["__pregel_tasks"] == sends
    if versions:
        assert_equal(postgres_url, vault)
    else:  # PostgresSaver draws a version at every reading
        for drawn in (mine, theirs):
            assert drawn.checkpoint["channel_versions"].pop("__pregel_tasks").startswith(f"{1:032}.")
        assert mine == theirs


def test_tables_before_values_were_in_the_json_and_writes_had_paths(
    stock: PostgresSaver, postgres_url: str, vault: Vault
) -> None:
    """Earlier releases stored every value as a blob, and "empty" ones for channels without a value."""
    for number, text in enumerate(("weather", "hi")):
        tool_loop(stock).invoke(person(text, number), config("tools"))
    rows = execute(postgres_url, "SELECT thread_id, checkpoint_id, checkpoint FROM checkpoints")
    insert = "INSERT INTO checkpoint_blobs VALUES (%s, '', %s, %s, %s, %s) ON CONFLICT DO NOTHING"
    for thread_id, checkpoint_id, found in rows:
        values = found.pop("channel_values")
        with psycopg.connect(postgres_url) as db:
            for channel, version in found["channel_versions"].items():
                blob = stock.serde.dumps_typed(values[channel]) if channel in values else ("empty", None)
                db.execute(insert, (thread_id, channel, version, *blob))
            given = (psycopg.types.json.Jsonb(found), thread_id, checkpoint_id)
            db.execute("UPDATE checkpoints SET checkpoint = %s WHERE thread_id = %s AND checkpoint_id = %s", given)
    execute(postgres_url, "UPDATE checkpoint_writes SET task_path = ''")
    wanted = list(stock.list(config("tools")))
    assert any(found.checkpoint["channel_values"].get("branch:to:model", 1) is None for found in wanted)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("ALTER TABLE checkpoint_writes DROP COLUMN task_path")
        db.execute("DELETE FROM checkpoint_migrations WHERE v > 5")
    imported(postgres_url, vault)
    assert list(our_saver(vault).list(config("tools"))) == wanted


# -- a database in use -----------------------------------------------------------------------------


def test_an_application_that_goes_on_between_two_imports(stock: PostgresSaver, postgres_url: str, vault: Vault) -> None:
    graph = trip(stock)
    graph.invoke({"log": ["begun"], "city": ""}, config("trip"))
    chat(stock).invoke(person("hi", 1), config("chat"))
    assert {outcome.place.thread_id: outcome.new for outcome in imported(postgres_url, vault)} == {"chat": 3, "trip": 3}
    graph.invoke(Command(resume="Rome"), config("trip"))  # only writes of the newest checkpoint: there is a second question
    chat(stock).invoke(person("hi", 2), config("chat"))
    chat(stock).invoke(person("hi", 1), config("new"))
    found = {outcome.place.thread_id: outcome.new for outcome in imported(postgres_url, vault)}
    assert found == {"chat": 3, "trip": 0, "new": 3}
    assert_equal(postgres_url, vault)
    resumed = trip(our_saver(vault)).invoke(Command(resume="May"), config("trip"))
    assert resumed == graph.invoke(Command(resume="May"), config("trip"))


def test_a_database_that_was_pruned_between_two_imports(
    stock: PostgresSaver, postgres_url: str, on_disk: Callable[..., Vault]
) -> None:
    """The vault keeps what it has, and new checkpoints come along as long as it has none of its own."""
    vault = on_disk()
    graph = tool_loop(stock)
    for number in range(2):
        graph.invoke(person("hi", number), config())
    imported(postgres_url, vault)
    stock.prune(["t"])
    assert [outcome.new for outcome in imported(postgres_url, vault)] == [0]
    graph.invoke(person("hi", 3), config())
    (outcome,) = imported(postgres_url, vault)
    assert (outcome.checkpoints, outcome.new) == (4, 3)
    assert [info.checkpoints for info in vault.threads()] == [9]
    ours = our_saver(vault)
    assert ours.get_tuple(config()) == stock.get_tuple(config())
    tool_loop(ours).invoke(person("hi", 4), config())
    imported(postgres_url, vault)
    graph.invoke(person("hi", 4), config())
    (outcome,) = import_threads(postgres_url, vault)
    assert isinstance(outcome.error, ConflictError)


def test_a_connection_that_is_cut_off(stock: PostgresSaver, postgres_url: str, on_disk: Callable[..., Vault]) -> None:
    for thread in "abc":
        chat(stock).invoke(person("hi", 1), config(thread))

    def cut(done: int, total: int) -> None:
        if done == total // 2:
            execute(postgres_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'savegame'")

    vault = on_disk()
    outcomes = import_threads(postgres_url, vault, cut)
    assert next(outcomes).error is None
    with pytest.raises(UnavailableError, match="try again"):
        list(outcomes)
    assert {outcome.place.thread_id: outcome.checkpoints for outcome in imported(postgres_url, vault)} == dict.fromkeys(
        "abc", 3
    )
    assert_equal(postgres_url, vault)


def test_an_application_that_writes_during_the_import(stock: PostgresSaver, postgres_url: str, vault: Vault) -> None:
    """It does not wait, and each thread is imported as it was when it was begun."""
    graph = outer(stock, remember=False)
    for thread in "ab":
        graph.invoke({"topic": "cats"}, config(thread))
    chat(stock).invoke(person("hi", 1), config("c"))
    before = list(stock.list(config("a", checkpoint_ns="")))
    seen: list[tuple[int, int]] = []

    def write(done: int, total: int) -> None:
        seen.append((done, total))
        if len(seen) == 1:  # all are counted, none is begun
            graph.invoke(Command(resume="yes"), config("b"))
            stock.delete_thread("c")
        elif len(seen) == 2:
            graph.invoke(Command(resume="yes"), config("a"))

    outcomes = list(import_threads(postgres_url, vault, write))
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    assert {outcome.place.thread_id for outcome in outcomes} == {"a", "b"}
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {seen[-1][0]}
    ours = our_saver(vault)
    assert list(ours.list(config("a", checkpoint_ns=""))) == before
    assert told(outer(ours, remember=False), "b") == told(graph, "b")
    imported(postgres_url, vault)
    assert_equal(postgres_url, vault)


def test_a_thread_of_a_thousand_checkpoints_is_read_one_by_one(postgres_url: str, on_disk: Callable[..., Vault]) -> None:
    """What the source holds of it in memory does not grow with its length: all lists together have 10 MB."""
    with PostgresSaver.from_conn_string(postgres_url) as stock:
        stock.setup()
        parent = None
        for number in range(1000):
            parent = put(stock, {"log": [f"{number} {'x' * 500}"] * 20, "count": number}, parent)
    tracemalloc.start()
    try:
        with open_source(postgres_url) as source:
            ((place, count),) = source.places("t")
            for external_id in source.ids(place):
                source.read(place, external_id)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 1000
    assert peak < 1_000_000
    vault = on_disk()
    (outcome,) = imported(postgres_url, vault)
    assert outcome.new == 1000
    assert_equal(postgres_url, vault)


def test_no_class_is_constructed_because_the_database_names_it(
    stock: PostgresSaver, postgres_url: str, on_disk: Callable[..., Vault], tmp_path: Path
) -> None:
    mark = tmp_path / "executed"
    put(stock, {"odd": ["x"]})
    call = ormsgpack.packb([ormsgpack.Ext(0, ormsgpack.packb(["os", "system", f"touch {mark}"]))])
    execute(postgres_url, "UPDATE checkpoint_blobs SET blob = %s", call)
    vault = on_disk()
    imported(postgres_url, vault)
    found = our_saver(vault).get_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"]["odd"] == [f"touch {mark}"]  # the data, never the call
    assert not mark.exists()


# -- what is refused -------------------------------------------------------------------------------


class Scrambled:
    """A cipher of the form that EncryptedSerializer takes."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x55 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return self.encrypt(ciphertext)[1]


def test_encrypted_values_are_refused_by_thread(stock: PostgresSaver, postgres_url: str, vault: Vault) -> None:
    chat(stock).invoke(person("hi", 1), config("open"))
    chat(PostgresSaver(stock.conn, serde=EncryptedSerializer(Scrambled()))).invoke(person("hi", 1), config("secret"))
    found = {outcome.place.thread_id: outcome.error for outcome in import_threads(postgres_url, vault)}
    assert found["open"] is None
    assert isinstance(found["secret"], UnsupportedError)
    assert "'msgpack+xor' is not supported, because it is encrypted" in str(found["secret"])
    assert [info.id for info in vault.threads()] == ["open"]


NEWEST = "checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = 'bad')"
BLOB = "(thread_id, version) IN (SELECT thread_id, max(version) FROM checkpoint_blobs WHERE thread_id = 'bad' GROUP BY 1)"
CHANGE = "UPDATE checkpoints SET checkpoint ="
DAMAGE = {
    "blob": (f"UPDATE checkpoint_blobs SET blob = '\\x92a1' WHERE {BLOB}", CorruptionError, "channel 'messages'"),
    "no blob": (f"UPDATE checkpoint_blobs SET blob = NULL WHERE {BLOB}", CorruptionError, "channel 'messages'"),
    "pickle": (f"UPDATE checkpoint_blobs SET type = 'pickle' WHERE {BLOB}", UnsupportedError, "stock PostgresSaver"),
    "json": (f"UPDATE checkpoint_blobs SET type = 'json' WHERE {BLOB}", UnsupportedError, "channel 'messages'"),
    "write": ("UPDATE checkpoint_writes SET blob = '\\xc1' WHERE thread_id = 'bad'", CorruptionError, "write 0 of task"),
    "type": ("UPDATE checkpoint_writes SET type = NULL WHERE thread_id = 'bad'", UnsupportedError, "the format None"),
    "list": (f"{CHANGE} '[1]' WHERE {NEWEST}", CorruptionError, "not a JSON object"),
    "values": ("'{channel_values}', '[1]'", CorruptionError, "channel_values are not a JSON object"),
    "versions": ("'{channel_versions}', '[1]'", CorruptionError, "it has no channel_versions"),
    "large version": ("'{channel_versions}', '{\"a\": 1e40}'", CorruptionError, "cannot write the checkpoint"),
    "seen": ("'{versions_seen}', '1'", CorruptionError, "it has no versions_seen"),
    "id": ("'{id}', '\"another\"'", CorruptionError, "does not contain this checkpoint"),
    "v": ("'{v}', '\"4\"'", CorruptionError, "it has no version"),
    "metadata": (f"UPDATE checkpoints SET metadata = '1' WHERE {NEWEST}", CorruptionError, "metadata is not a JSON object"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_row_is_named_and_its_thread_not_begun(
    stock: PostgresSaver, postgres_url: str, on_disk: Callable[..., Vault], what: str
) -> None:
    for thread in ("bad", "good"):
        chat(stock).invoke(person("hi", 1), config(thread))
    statement, kind, reason = DAMAGE[what]
    if not statement.startswith("UPDATE"):
        statement = f"{CHANGE} jsonb_set(checkpoint, {statement}) WHERE {NEWEST}"
    execute(postgres_url, statement)
    vault = on_disk()
    for _ in range(2):  # the second run is no kinder
        found = {outcome.place.thread_id: outcome.error for outcome in import_threads(postgres_url, vault)}
        assert type(found["bad"]) is kind
        assert reason in str(found["bad"])
        assert "thread 'bad', checkpoint '1" in str(found["bad"])
        assert found["good"] is None
    assert [info.id for info in vault.threads()] == ["good"]


def test_what_differs_from_the_database_is_found(
    stock: PostgresSaver, postgres_url: str, on_disk: Callable[..., Vault]
) -> None:
    """The negative control of the comparison: each part is changed in the database after the import."""
    chat(stock).invoke(person("hi", 1), config("bad"))
    vault = on_disk()
    imported(postgres_url, vault)
    other = f"'\\x{ormsgpack.packb(['another']).hex()}'"
    for what, statement in {
        "the pending writes": f"UPDATE checkpoint_writes SET blob = {other} WHERE channel = 'messages' AND idx = 0",
        "channel_values": f"UPDATE checkpoint_blobs SET blob = {other} WHERE {BLOB}",
        "channel_versions": f"{CHANGE} checkpoint #- '{{channel_versions,__start__}}' WHERE {NEWEST}",
        "versions_seen": f"{CHANGE} jsonb_set(checkpoint, '{{versions_seen}}', '{{}}') WHERE {NEWEST}",
        "the metadata": f"UPDATE checkpoints SET metadata = '{{}}' WHERE {NEWEST}",
        "the parent": f"UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE {NEWEST}",
    }.items():
        execute(postgres_url, statement)
        (outcome,) = import_threads(postgres_url, vault)
        assert isinstance(outcome.error, CorruptionError)
        assert what in str(outcome.error)


def test_a_page_that_the_server_finds_damaged(on_disk: Callable[..., Vault]) -> None:
    """Its thread is not imported; the transaction, which the server has ended, does not stop the others."""
    with Cluster() as cluster:
        with PostgresSaver.from_conn_string(cluster.url()) as stock:
            stock.setup()
            for thread, size in (("a", 1), ("b", 50_000), ("c", 1)):
                put(stock, {"log": [random_text(size)]}, config(thread, checkpoint_ns=""))
                put(stock, {"log": ["x"]}, config(thread, checkpoint_ns="inner"))
        toast = "SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE relname = 'checkpoint_blobs'"
        ((path,),) = cluster.execute(toast)
        cluster.stop()
        with (cluster.data / path).open("r+b") as file:
            file.seek(4096)
            file.write(b"damage" * 100)
        cluster.start()
        vault = on_disk()
        found = {tuple(outcome.place): outcome.error for outcome in import_threads(cluster.url(), vault)}
    assert len(found) == 6
    assert isinstance(found.pop(("b", "")), CorruptionError)
    assert set(found.values()) == {None}


def random_text(size: int) -> str:
    """A text that does not compress."""
    return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))
