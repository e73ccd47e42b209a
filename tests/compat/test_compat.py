"""Stores of every earlier format, in git: read by the code of today and by a reader that knows nothing of it."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import savegame
from tests.compat import story
from tests.compat.independent_reader import read, read_files, read_postgres

HERE = Path(__file__).parent
FILES = {"sqlite": "vault.db", "file": "files", "postgres": "postgres.sql"}
KEPT = [(path.parent.name, store) for store, name in FILES.items() for path in sorted(HERE.glob(f"format-*/{name}"))]
"""A new format of one kind of store has stores of that kind only."""

Place = Callable[[str, str], str]


@pytest.fixture
def place(tmp_path: Path, address_of: Callable[..., str]) -> Place:
    """Puts a copy of a store where it can be opened; its address."""

    def put(format_name: str, store: str) -> str:
        kept, address = HERE / format_name, address_of(store)
        if store == "sqlite":
            shutil.copy(kept / FILES[store], tmp_path / "vault.db")
        elif store == "file":
            shutil.copytree(kept / FILES[store], tmp_path / "vault.db")
        else:
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute((kept / FILES[store]).read_bytes())
        return address

    return put


def expected(format_name: str, store: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / format_name / "expected.json").read_text())[store]
    return found


@pytest.mark.parametrize(("format_name", "store"), KEPT)
def test_everything_is_read_as_it_was_written(format_name: str, store: str, place: Place) -> None:
    address = place(format_name, store)
    assert story.facts(partial(savegame.open, address)) == expected(format_name, store)
    with savegame.open(address) as vault:
        report = vault.verify()
        assert report.ok, report.problems


@pytest.mark.parametrize(("format_name", "store"), KEPT)
def test_it_can_be_gone_on_with(format_name: str, store: str, place: Place) -> None:
    with savegame.open(place(format_name, store)) as vault:
        vault.thread("edits").update(append={"messages": [{"role": "user", "content": "and on"}]})
        vault.thread("types").rewind("every type")
        vault.thread("../branches 🎲").prune(keep=2)
        vault.thread("pruned").fork("new")
        vault.compact()
        assert vault.thread("edits").state()["messages"][-1]["content"] == "and on"
        assert vault.thread("types").state()["tuple"] == (1, ("two", [3]))
        assert vault.verify().ok
        vault.repair()
        assert vault.erase("person-7").complete


@pytest.mark.parametrize("verb", ["delete", "erase"])
@pytest.mark.parametrize(("format_name", "store"), KEPT)
def test_the_subgraphs_of_a_graph_go_with_it(format_name: str, store: str, verb: str, place: Place) -> None:
    """Early versions noted them beside the graph's thread instead of linking both."""
    with savegame.open(place(format_name, store)) as vault:
        nested = [info.id for info in vault.threads() if info.id.startswith("graph␟")]
        assert nested
        vault.thread("graph␟of a user").save({"text": "not LangGraph's"})
        if verb == "delete":
            vault.thread("graph").delete()
        else:
            vault.thread("graph").attach_subject("ann")
            assert vault.thread(nested[0]).subjects() == ["ann"]
            erased = vault.erase("ann")
            assert erased.threads == ("graph", *nested)
            assert [what.partition(":")[0] for what in erased.unreached] == [
                "thread 'graph␟of a user' may be a child of an erased thread, 'graph'"
            ]
        left = [thread_id for thread_id, _ in vault.store.heads("default") if thread_id.startswith("graph")]
        assert left == ["graph␟of a user"]


def test_a_file_store_of_the_first_format_keeps_its_directories(place: Place) -> None:
    """Threads that are there stay where they are; new ones get readable names, and earlier versions are kept out then."""
    address = place("format-1", "file")
    root = Path(address.removeprefix("file:"))
    before = sorted(root.glob("*/*/journal.jsonl"))
    with savegame.open(address) as vault:
        for name in ("edits", "types", "pruned", "../branches 🎲"):
            vault.thread(name).save({"gone": "on"})
        assert (sorted(root.glob("*/*/journal.jsonl")), '"format": 1' in (root / "savegame.json").read_text()) == (before, True)
        vault.thread("a new one").save(1)
        (new,) = {*root.glob("*/*/journal.jsonl")} - {*before}
        assert new.parent.name.endswith("-a-new-one")
        assert '"format": 2' in (root / "savegame.json").read_text()
        assert vault.verify().ok


@pytest.mark.parametrize(("format_name", "store"), KEPT)
def test_the_other_reader_finds_the_same(format_name: str, store: str, place: Place) -> None:
    address = place(format_name, store)
    readers = {"sqlite": read, "file": lambda path: read_files(Path(path)), "postgres": read_postgres}
    found = readers[store](address.removeprefix(f"{store}:"))
    wanted = expected(format_name, store)
    for (namespace, name), (head, points) in found.items():
        if name == "graph" or name.startswith("graph␟"):
            continue  # it holds leaves that LangGraph's serializer wrote
        thread = wanted[namespace][name]
        assert head == thread["head"]
        there = {point.id: (point.digest.hex(), point.note[0], point.note[1], story.summary(point.state)) for point in points}
        for id, _, digest, _, _, label, tags, *_, state in thread["checkpoints"]:  # noqa: A001 - one word per idea
            assert there[id] == (digest, label, tags, state), (name, id)
    assert len(found) == sum(len(wanted[namespace]) for namespace in ("default", "other"))


@pytest.mark.parametrize("format_name", sorted(path.parent.name for path in HERE.glob("format-*/export.jsonl")))
def test_exports_are_taken_in(format_name: str) -> None:
    with savegame.open("memory:") as vault:
        vault.import_(HERE / format_name / "export.jsonl")
        wanted = expected(format_name, "sqlite")["default"]
        assert {info.id for info in vault.threads(limit=1000)} == set(wanted)
        for name, thread in wanted.items():
            states = {checkpoint[0]: checkpoint[-1] for checkpoint in thread["checkpoints"]}
            assert vault.thread(name).load().id == thread["head"]
            assert story.summary(vault.thread(name).state()) == states[thread["head"]]
        assert vault.verify().ok


def test_pickles_of_checkpoints_are_read() -> None:
    """Made when the class was in another module, and had more fields: one with its state, one without."""
    with (HERE / "format-1/checkpoints.pickle").open("rb") as file:
        whole, listed = pickle.load(file)
    assert (whole.id, whole.label, whole.state) == ("first", "x", {"a": (1, 2)})
    assert (listed.id, listed.label) == ("first", "x")
    with pytest.raises(savegame.InvalidInputError, match="without its state"):
        _ = listed.state
    assert pickle.loads(pickle.dumps(whole)).state == {"a": (1, 2)}


@pytest.mark.parametrize(("format_name", "store"), KEPT)
def test_what_earlier_versions_did_is_not_repeated_silently(format_name: str, store: str, place: Place) -> None:
    """Their entries do not tell the kind of tool, and no head that they moved left a mark."""
    tools = savegame.Toolbox()
    made = []

    @tools.tool
    def wire(cents: int) -> None:
        made.append(cents)

    asks = {"id": "new", "name": "wire", "arguments": {"cents": 5}}
    with savegame.open(place(format_name, store)) as vault:
        assert ("wire", "done", False) in [(one.name, one.status, one.left) for one in vault.effects("run")]
        vault.thread("run").rewind(1)
        with vault.run("run", tools=tools) as run:
            run.model(lambda _: {"role": "assistant", "content": "", "tool_calls": [asks]})
            with pytest.raises(savegame.Paused, match="was done on a line that was left"):
                run.tools()
        assert made == []
        assert vault.verify().ok
