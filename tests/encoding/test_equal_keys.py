"""Keys that are equal in Python are one key, whatever their bytes: a vault does what a dict would do."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import enum
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import savegame
from savegame.encoding.delta import SET, Op, apply
from savegame.errors import InvalidInputError, InvalidState
from savegame.testing import same
from savegame.thread import Thread
from savegame.vault import Vault


class Role(enum.StrEnum):
    USER = "user"


class Number(enum.IntEnum):
    ONE = 1


class Color(enum.Enum):
    """Its members are equal to nothing else."""

    RED = "red"


@dataclasses.dataclass(frozen=True)
class Place:
    x: int


ENUMS = (Role, Number, Color)
NOON = dt.datetime(2026, 11, 15, 12, tzinfo=dt.UTC)
LATER = NOON.astimezone(dt.timezone(dt.timedelta(hours=1)))

FAMILIES: list[list[Any]] = [
    [1, True, 1.0, Decimal(1), Decimal("1.00"), Number.ONE],
    [0, False, 0.0, -0.0, Decimal("-0")],
    [2**70, float(2**70), Decimal(2**70)],
    [2**64 - 1, Decimal(2**64 - 1)],
    ["user", Role.USER],
    ["red"],
    [b"user"],
    [None],
    [0.5, Decimal("0.5")],
    [math.inf, Decimal("inf")],
    [(1,), (True,), (1.0,), (Number.ONE,), (Decimal(1),)],
    [(Role.USER, (0,)), ("user", (False,))],
    [frozenset((1, 2)), frozenset((True, Decimal(2)))],
    [NOON, LATER],
    [NOON.date()],
    [uuid.UUID(int=1)],
    [PurePosixPath("a"), PurePosixPath("a/")],
]
"""Keys that are equal to each other and to none of another family."""

PAIRS = [(left, right) for family in FAMILIES for left in family for right in family]
POOL = [key for family in FAMILIES for key in family]


def begun(vault: Vault, *, known: bool) -> Thread:
    """A thread of a vault that knows the Enum classes, or does not."""
    for cls in ENUMS if known else ():
        vault.register(cls)
    return vault.thread("t")


def plain(key: Any) -> Any:
    """A key as a vault keeps it that does not know the Enum classes."""
    if isinstance(key, (tuple, frozenset)):
        return type(key)(map(plain, key))
    return key.value if isinstance(key, enum.Enum) else key


def cold(thread: Thread) -> Any:
    """The state as it is read from the store."""
    thread.timeline.engine.cache.forget(thread.timeline.key)
    return thread.state()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("first", "other"), PAIRS, ids=repr)
def test_an_update_means_the_entry_that_is_there(first: Any, other: Any, known: bool) -> None:
    with savegame.open("memory:") as vault:
        thread = begun(vault, known=known)
        kept = first if known else plain(first)
        thread.save({"deep": [{first: "one"}], "x": 0})
        for key, value in ((other, "two"), (first, "three"), (other, ["four"])):
            thread.update(set={("deep", 0, key): value})
            assert same(cold(thread), {"deep": [{kept: value}], "x": 0})
        thread.update(append={("deep", 0, other): [5]})
        assert same(cold(thread), {"deep": [{kept: ["four", 5]}], "x": 0})
        thread.update(set={("deep", 0, other): {}, ("deep", 0, first, other): 1, ("deep", 0, other, first): 2})
        inner = other if known else plain(other)
        assert same(cold(thread), {"deep": [{kept: {inner: 2}}], "x": 0})
        thread.update(delete=[("deep", 0, other, first)])
        thread.update(delete=[("deep", 0, other)])
        assert same(cold(thread), {"deep": [{}], "x": 0})
        assert vault.verify().ok


@pytest.mark.parametrize(("first", "other"), [pair for pair in PAIRS if not isinstance(pair[0], tuple)], ids=repr)
def test_right_inside_the_state(first: Any, other: Any) -> None:
    with savegame.open("memory:") as vault:
        thread = begun(vault, known=True)
        thread.save({first: []})
        for number in range(4):
            thread.update(append={other: [number]})
        assert same(cold(thread), {first: [0, 1, 2, 3]})
        thread.update(delete=[other])
        assert cold(thread) == {}


def test_on_each_store(opened: Callable[..., Vault]) -> None:
    vault = opened()
    thread = begun(vault, known=True)
    thread.save({1: "one", Role.USER: []})
    thread.update(set={True: "two"}, append={"user": ["x"]})
    assert same(cold(thread), {1: "two", Role.USER: ["x"]})
    thread.update(delete=[1.0])
    thread.save({"user": ["x"]})
    assert same(cold(thread), {"user": ["x"]})
    assert [str(change) for change in thread.diff("head~1", "head")] != []
    assert same(thread.state("head~2"), {1: "two", Role.USER: ["x"]})
    assert vault.verify().ok


# -- a dict as the model ---------------------------------------------------------------------------

KEYS = st.sampled_from(POOL)
VALUES = st.sampled_from(("a", ["b"], {"c": 1}, 7, "x" * 300))


@st.composite
def updates(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "set": draw(st.dictionaries(KEYS, VALUES, max_size=3)),
        "append": draw(st.dictionaries(KEYS, st.lists(st.integers(0, 3), max_size=2), max_size=2)),
        "delete": draw(st.lists(KEYS, max_size=2)),
    }


def updated(state: dict[Any, Any], change: dict[str, Any], name: Callable[[Any], Any]) -> dict[Any, Any] | None:
    """What Python makes of the state; None where the change does not fit it."""
    state = copy.deepcopy(state)
    if any(key in change["set"] or key in change["append"] for key in change["delete"]):
        return None
    for key, value in change["set"].items():
        state[name(key)] = copy.deepcopy(value)
    for key, items in change["append"].items():
        if type(state.setdefault(name(key), [])) is not list:
            return None
        state[name(key)] += items
    for key in change["delete"]:
        if name(key) not in state:
            return None
        del state[name(key)]
    return state


@given(
    st.booleans(),
    st.lists(updates() | st.dictionaries(KEYS, VALUES, max_size=6).map(lambda state: {"save": state}), max_size=12),
)
@settings(max_examples=150)
def test_a_vault_does_what_a_dict_does(known: bool, changes: list[dict[str, Any]]) -> None:
    def name(key: Any) -> Any:
        return key if known else plain(key)

    with savegame.open("memory:") as vault:
        thread = begun(vault, known=known)
        model: dict[Any, Any] = {}
        thread.save({"d": model, "pad": "y" * 300})
        for change in changes:
            if "save" in change:
                model = {name(key): value for key, value in change["save"].items()}
                thread.save({"d": change["save"], "pad": "y" * 300})
            else:
                wanted = updated(model, change, name)
                placed = {verb: {("d", key): value for key, value in change[verb].items()} for verb in ("set", "append")}
                deleted = [("d", key) for key in change["delete"]]
                if wanted is None:
                    with pytest.raises(InvalidInputError):
                        thread.update(**placed, delete=deleted)
                else:
                    thread.update(**placed, delete=deleted)
                    model = wanted
            assert same(thread.state()["d"], model)
            assert same(cold(thread)["d"], model)
        assert vault.verify().ok


# -- what earlier versions wrote -------------------------------------------------------------------


def with_two(vault: Vault) -> Thread:
    """A thread whose state has entries that are equal in Python: an update once wrote keys as they were given."""
    thread = begun(vault, known=True)
    thread.save({"d": {1: "one", "user": ["u"]}, "pad": "y" * 300})
    encode = thread.timeline.codec.encode
    ops = [
        Op(SET, ("d", True), encode("two")),
        Op(SET, ("d", 1.0), encode(["three"])),
        Op(SET, ("d", Role.USER), encode(["v"])),
    ]
    raw = [op._replace(path=("d", savegame.encoding.raw.unpack_raw(encode(op.path[1])))) for op in ops]

    def make(node: Any) -> Any:
        return raw, apply(node, raw), {}

    thread.timeline.change(make)
    return thread


TWO = {1: ["three"], "user": ["v"]}


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"set": {("d", 1): "x"}}, {1: "x", "user": ["v"]}),
        ({"set": {("d", True): "x"}}, {1: "x", "user": ["v"]}),
        ({"set": {("d", Decimal(1)): "x"}}, {1: "x", "user": ["v"]}),
        ({"set": {("d", "user"): "x", ("d", 1.0): 0}}, {1: 0, "user": "x"}),
        ({"set": {("d", "new"): "x"}}, TWO | {"new": "x"}),
        ({"append": {("d", True): [4]}}, {1: ["three", 4], "user": ["v"]}),
        ({"append": {("d", "user"): ["w"]}}, {1: ["three"], "user": ["v", "w"]}),
        ({"set": {("d", 1, 0): "x"}}, {1: ["x"], "user": ["v"]}),
        ({"delete": [("d", 1.0)]}, {"user": ["v"]}),
        ({"delete": [("d", 1), ("d", Role.USER)]}, {}),
    ],
    ids=repr,
)
def test_two_equal_keys_of_the_past(change: dict[str, Any], wanted: dict[Any, Any]) -> None:
    with savegame.open("memory:") as vault:
        thread = with_two(vault)
        assert same(cold(thread)["d"], TWO)
        thread.update(**change)
        assert same(thread.state()["d"], wanted)
        assert same(cold(thread)["d"], wanted)
        thread.save({"d": wanted, "pad": "y" * 300})
        assert same(cold(thread)["d"], wanted)


def test_two_equal_keys_of_the_past_wherever_they_go(opened: Callable[..., Vault], tmp_path: Any) -> None:
    vault = opened()
    thread = with_two(vault)
    for number in range(3):  # also closed again, inside a keyframe or an item of a list
        thread.update(append={"list": [{"n": number}]})
    assert same(cold(thread)["d"], TWO)
    vault.export(str(tmp_path / "x.jsonl"))
    with savegame.open("memory:") as other:
        begun(other, known=True)
        other.import_(str(tmp_path / "x.jsonl"))
        assert same(other.thread("t").state()["d"], TWO)
    thread.fork("f")
    forked = vault.thread("f")
    assert same(forked.state()["d"], TWO)
    forked.update(set={("d", True): 1}, delete=[("d", "user")])
    assert same(cold(forked)["d"], {1: 1})
    thread.remove("head~2")
    assert same(cold(thread)["d"], TWO)
    assert [change.path for change in thread.diff("head~1", "head")] == [("list", 2)]
    assert vault.verify().ok


# -- what is equal to nothing, or no key -----------------------------------------------------------


def test_nan_is_the_entry_with_the_same_bytes(vault: Vault) -> None:
    """In Python it is equal to nothing, not even to itself: that entry could never be changed."""
    thread = vault.thread("t")
    thread.save({"d": {math.nan: 1, (math.nan,): 1}, "n": 0})
    thread.update(set={("d", float("nan")): 2, ("d", (float("nan"),)): 2, "n": 1})
    assert same(cold(thread), {"d": {math.nan: 2, (math.nan,): 2}, "n": 1})
    assert [(str(change.path), change.old, change.new) for change in thread.diff("head~1", "head")] == [
        ("('d', nan)", 1, 2),
        ("('d', (nan,))", 1, 2),
        ("('n',)", 0, 1),
    ]
    thread.update(set={"n": 2})
    assert [change.path for change in thread.diff("head~1", "head")] == [("n",)]
    thread.update(delete=[("d", math.nan)])
    assert same(cold(thread)["d"], {(math.nan,): 2})
    thread.save({"d": {float("nan"): 1, float("nan"): 2}})  # two of them cannot be told apart: only a whole dict is set
    assert same(list(cold(thread)["d"].values()), [1, 2])
    with pytest.raises(InvalidInputError, match="distinct keys"):
        thread.update(set={("d", math.nan): 3})


def test_what_cannot_be_a_key_once_it_is_plain_data_is_refused(vault: Vault) -> None:
    thread = vault.thread("t")
    for key in (Place(1), (Place(1), 2)):
        with pytest.raises(InvalidState, match="cannot be a key"):
            thread.update(set={("d", key): 1})
        with pytest.raises(InvalidState):
            thread.save({"d": {key: 1}})
    vault.register(Place)
    thread.update(set={("d", Place(1)): 1, ("d", (Place(1), 2)): 1})
    thread.update(set={("d", Place(True)): 2})
    assert same(cold(thread), {"d": {Place(1): 2, (Place(1), 2): 1}})


def test_members_that_the_class_of_today_does_not_have_are_in_nobodys_way(vault: Vault) -> None:
    thread = begun(vault, known=True)
    thread.save({Color.RED: 1, "x": 1})

    class Changed(enum.Enum):
        BLUE = "blue"

    vault.rooms.engine.codec._by_name["Color"] = vault.rooms.engine.codec._by_name["Color"]._replace(cls=Changed)
    thread.update(set={"x": 2, True: 3})
    vault.rooms.engine.codec._by_name["Color"] = vault.rooms.engine.codec._by_name["Color"]._replace(cls=Color)
    assert same(cold(thread), {Color.RED: 1, "x": 2, True: 3})
