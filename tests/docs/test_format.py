"""docs/format is enough to write another reader: a file read by one that uses nothing of ours, against savegame itself."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import random
import uuid
import zoneinfo
from typing import Any

import blake3
import ormsgpack
import pydantic
import pytest

import savegame
from savegame.encoding.delta import DELETE, SET, Op, apply
from savegame.testing import same
from tests.compat.independent_reader import Point, read


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Plan:
    title: str
    steps: list[str]
    colour: Colour = Colour.RED


class Order(pydantic.BaseModel):
    number: int
    note: str = "none"


EVERY_TYPE: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63, -(2**63), 2**64, -(2**64), 10**40],
    "floats": [0.0, -0.0, 1.5, float("inf")],
    "text": ["", "é", "🎲" * 40, "x" * 300],
    "bytes": [b"", b"\x00\xff", b"b" * 70_000],
    "tuple": (1, ("two", [3])),
    "sets": [{1, 2, 3}, frozenset(("a", "b")), set()],
    "times": [
        dt.datetime(2026, 11, 15, 9, 30, 1, 5),
        dt.datetime(2026, 11, 15, 9, 30, tzinfo=dt.UTC),
        dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
        dt.date(2026, 11, 15),
        dt.time(9, 30),
        dt.time(9, 30, tzinfo=dt.timezone(dt.timedelta(hours=-3))),
        dt.timedelta(days=-1, microseconds=7),
    ],
    "decimal": decimal.Decimal("1.10"),
    "uuid": uuid.UUID(int=5),
    "paths": [pathlib.Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("c:/x")],
    "keys": {1: "one", (2, "b"): "tuple", None: "none", 1.5: "float", b"k": "bytes"},
    "looks like a tag": {"__type__": "tuple", "items": [1]},
    "objects": [Plan("a", ["b"]), Order(number=1), Colour.RED],
}


@pytest.fixture(scope="module", params=["as written", "compacted", "uncompressed"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with about everything in it."""
    path = str(tmp_path_factory.mktemp("format") / "all.db")
    with savegame.open(path, compress=request.param != "uncompressed") as vault:
        vault.register(Plan)
        vault.register(Order)
        _types(vault.thread("types"))
        _edits(vault.thread("edits", agent="helper"))
        _branches(vault.thread("../branches 🎲"))
        _pruned(vault.thread("pruned"))
        if request.param == "compacted":
            vault.compact()
        else:
            assert vault.stats().sizes["keyframes"] > 0
    with savegame.open(path, namespace="other") as vault:
        vault.thread("types").save({"namespace": "other"})
    return path


def _types(thread: savegame.Thread) -> None:
    thread.save(EVERY_TYPE, label="every type", tags=["a", "ü"])
    thread.update(set={("keys", (2, "b")): "changed", ("objects", 0, "title"): "changed too", ("keys", 7): "new"})
    thread.update(append={("objects", 0, "steps"): ["c"]}, set={("objects", 1, "note"): "set"}, delete=[("keys", None)])
    thread.save({"keys": {1: "one", 0.0: "zero", (1,): "tuple"}})
    thread.update(set={("keys", True): "still one", ("keys", (1.0,)): "still a tuple"})
    thread.save({"keys": {True: "another key", -0.0: "zero", (True,): "still a tuple"}})
    thread.timeline.change(_two_keys_that_are_equal)
    thread.latest()
    thread.save(Plan("a whole object", []))
    thread.save(Plan("a whole object", ["a step"]))
    thread.save(None)


def _two_keys_that_are_equal(node: Any) -> Any:
    """As an update once wrote them: one takes the place of another, one stands beside it."""
    ops = [Op(SET, ("keys", 1), b"\xa5added"), Op(DELETE, ("keys", True)), Op(SET, ("keys", 0), b"\xa5added")]
    return ops, apply(node, ops), {}


def _edits(thread: savegame.Thread) -> None:
    chance = random.Random(5)
    words = [f"wörd{number}" for number in range(500)]
    state: dict[str, Any] = {"messages": [], "text": " ".join(words), "picture": chance.randbytes(9000), "a": 1, "b": 2}
    for number in range(120):
        state["messages"] += [{"role": "user", "content": " ".join(chance.choices(words, k=40)), "n": number}]
        if number % 10 == 3:
            state["text"] = state["text"].replace(words[number], "chängéd")
        if number % 20 == 7:
            state["messages"][2 : len(state["messages"]) // 2] = [{"role": "system", "content": "a summary"}]
        if number % 20 == 9:
            state["messages"][1]["content"] += " more"
        if number % 30 == 11:
            state = dict(sorted(state.items(), reverse=number % 60 == 11))
        if number % 40 == 13:
            state["picture"] = chance.randbytes(9000)
        state["scratch"] = chance.randbytes(1500)
        thread.save(state, iteration=number, cost=0.5, metadata={"when": dt.date(2026, 1, 1)})


def _branches(thread: savegame.Thread) -> None:
    for number in range(6):
        thread.save({"n": number, "large": "x" * 9000}, id=f"chosen-{number}")
    thread.rewind(3)
    thread.save({"n": "branch", "large": "x" * 9000})
    thread.save({"n": "from the first"}, parent=1)
    thread.fork("forked", at="chosen-4").update(set={"n": "forked"})


def _pruned(thread: savegame.Thread) -> None:
    for number in range(20):
        thread.save({"items": list(range(number)), "text": "t" * 9000 + str(number)}, label="kept" if number == 4 else None)
    thread.prune(keep=3)


@pytest.mark.requirement("A49", "X26")
def test_the_other_reader_finds_the_same(path: str) -> None:
    found = read(path)
    assert {name for _, name in found} == {"types", "edits", "../branches 🎲", "forked", "pruned"}
    for (namespace, name), (head, points) in found.items():
        with savegame.open(path, namespace=namespace) as vault:
            thread = vault.thread(name)
            ours = list(thread.history(branches=True, newest_first=False))
            assert [point.id for point in points] == [checkpoint.id for checkpoint in ours]
            assert head == thread.load().id
            for point, checkpoint in zip(points, ours, strict=True):
                assert same(point.state, checkpoint.load().state), (name, point.seq)
                assert (point.note[0], tuple(point.note[1])) == (checkpoint.label, checkpoint.tags)
                assert point.digest.hex() == checkpoint.digest


def test_metadata_is_laid_out_as_described(path: str) -> None:
    _, points = read(path)["default", "edits"]
    fields = ormsgpack.unpackb(points[9].meta, ext_hook=lambda tag, body: (tag, body))
    with savegame.open(path) as vault:
        ours = vault.load(points[9].id)
    parent, step, created, size, kind, status, reason, iteration, tokens, cost, description, hint, agent, forked, data = fields
    assert (parent.hex(), step, size, kind) == (ours.parent_id, ours.step, ours.size_bytes, ours.kind)
    assert (status, reason, iteration, tokens, cost) == ("in_progress", None, 9, None, 0.5)
    assert (description, hint, agent, forked) == (None, None, "helper", None)
    assert dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=created) == ours.created_at
    assert ormsgpack.unpackb(data, ext_hook=lambda tag, body: (tag, body)) == {"when": (5, b"2026-01-01")}


@pytest.mark.requirement("D25j", "D54", "Z28")
def test_digests_add_up_as_described(path: str) -> None:
    """Over the parent's digest, the ids, the metadata and the logical delta; not where pruning rewrote a delta."""
    for (_, name), (_, points) in read(path).items():
        by_id = {point.id: point for point in points}
        for point in points if name != "pruned" else ():
            parent = ormsgpack.unpackb(point.meta)[0]
            parent_id = parent.hex() if isinstance(parent, bytes) else parent
            before = by_id[parent_id].digest if parent_id in by_id else b""
            if name == "forked" and point.seq == 1:
                before = _find(path, parent_id).digest
            head = ormsgpack.packb([before, name, point.id, point.meta])
            assert blake3.blake3(head + point.payload).digest() == point.digest, (name, point.seq)


def _find(path: str, wanted: str) -> Point:
    return next(point for _, points in read(path).values() for point in points if point.id == wanted)


@pytest.mark.requirement("Z57")
def test_the_documentation_says_what_checksums_cannot_do() -> None:
    said = pathlib.Path(__file__).parents[2].joinpath("docs/decisions/0002-two-sums.md").read_text(encoding="utf-8")
    assert "Neither sum has a key. They reveal accidents, not attacks." in said
