"""Values to bytes and back: equal, of the same type, or refused by name. Damaged bytes are told, and import nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import math
import os
import pathlib
import sys
import threading
import uuid
import zoneinfo
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec
import ormsgpack
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import savegame
from savegame.encoding.codec import Codec
from savegame.encoding.raw import pack_raw, unpack_raw
from savegame.encoding.text import format_path
from savegame.encoding.tree import open_node, to_bytes, value_of
from savegame.errors import CorruptionError, InvalidInputError, InvalidState, UnsupportedError
from savegame.testing import same, strategies

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T")


@pytest.fixture
def codec() -> Codec:
    return Codec()


def trip(codec: Codec, value: Any) -> Any:
    data = codec.encode(value)
    assert codec.encode(value) == data, "encoding is not deterministic"
    return codec.decode(data)


# -- plain values ----------------------------------------------------------------------------------

UTC = dt.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")

PLAIN: list[Any] = [
    None, True, False, 0, 1, -1, 127, 128, -32, -33, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400,
    0.0, -0.0, 1.0, 1e308, 5e-324, math.nan, math.inf, -math.inf,
    "", "a", "ü🎲\0\n", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 65536, "e\u0301", "\ufeff",
    b"", b"\0\xff", b"x" * 255, b"x" * 256, b"x" * 65536,
    [], [[]], [None] * 15, [None] * 16, [None] * 65536, (), (1,), ((),), [()], (1, 1.0, True),
    {}, {"": 0}, {"b": 1, "a": 2}, {"a": 1, "b": 2}, {1: "a", "1": "b", None: "c", b"1": "d", (1,): "e", 1.5: "f"},
    {frozenset((1, 2)): 1, dt.date(2020, 1, 1): 2, uuid.UUID(int=5): 3, 2**70: 4, decimal.Decimal("1.0"): 5, True: 6},
    {str(number): number for number in range(70000)},
    set(), {1, "a", None, (1, 2)}, frozenset(), frozenset((1.5, b"x")), {frozenset((frozenset((1,)),))},
    dt.datetime(2024, 2, 29, 23, 59, 59, 999999), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, tzinfo=UTC),
    dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN), dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=-1, microseconds=1))),
    dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.time(0), dt.time(23, 59, 59, 1, tzinfo=UTC), dt.time(1, fold=1, tzinfo=BERLIN),
    dt.timedelta(0), dt.timedelta.max, dt.timedelta.min, dt.timedelta(microseconds=-1),
    decimal.Decimal("1.10"), decimal.Decimal("-0"), decimal.Decimal("1E+400"), decimal.Decimal("NaN123"),
    decimal.Decimal("-sNaN"), decimal.Decimal("-Infinity"), uuid.UUID(int=0), uuid.UUID(int=2**128 - 1),
    pathlib.Path("/a/../b c"), pathlib.Path(), pathlib.PurePosixPath("//x"), pathlib.PureWindowsPath(r"C:\a\b"),
]  # fmt: skip


def name_of(value: Any) -> str:
    """The same in every process, also of sets, whose order is another in each."""
    shown = repr(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
    return f"{type(value).__name__} {shown[:30]}"


@pytest.mark.parametrize("value", PLAIN, ids=name_of)
def test_plain_values_come_back_exactly(codec: Codec, value: Any) -> None:
    for shaped in (value, [value], (value, value), {"k": value}, {7: value}):
        assert same(trip(codec, shaped), shaped)


@given(strategies.values(large=True))
@settings(max_examples=400, deadline=None)
def test_anything_comes_back_exactly(value: Any) -> None:
    codec = Codec()
    data = codec.encode(value)
    assert same(codec.decode(data), value)
    assert codec.encode(codec.decode(data)) == data
    assert pack_raw(unpack_raw(data)) == data


@given(strategies.values(large=True))
@settings(max_examples=200, deadline=None)
def test_an_opened_tree_is_the_same_value(value: Any) -> None:
    codec = Codec()
    data = codec.encode(value)
    assert to_bytes(open_node(data)) == data
    assert same(value_of(codec, open_node(data)), value)


def test_two_nan_keys_are_two_keys(codec: Codec) -> None:
    value = {float("nan"): 1, float("nan"): 2}
    assert len(value) == 2
    assert same(value_of(codec, open_node(codec.encode(value))), value)


def test_the_name_of_a_fixed_zone_is_kept(codec: Codec) -> None:
    named = dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET"))
    assert trip(codec, named).tzname() == "CET"


def test_an_unknown_zone_keeps_the_instant(codec: Codec) -> None:
    moment = dt.datetime(2024, 7, 1, 12, tzinfo=BERLIN)
    data = codec.encode(moment).replace(b"Europe/Berlin", b"Mars0/Olympus")
    found = codec.decode(data)
    assert found == moment.astimezone(UTC)
    assert found.utcoffset() == dt.timedelta(hours=2)
    assert found.tzname() == "Mars0/Olympus"


# -- depth -----------------------------------------------------------------------------------------

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "lists": lambda inner: [inner],
    "dicts": lambda inner: {"k": inner},
    "tuples": lambda inner: (inner,),
    "number keys": lambda inner: {1: inner},
    "frozensets": lambda inner: frozenset((inner,)),
    "values of a long dict": lambda inner: {"a": "x" * 200, "k": inner},
}


def nested(levels: int, wrap: Callable[[Any], Any], leaf: Any = 1) -> Any:
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


def mixed(levels: int, leaf: Any = 1) -> Any:
    wraps = list(WRAPPERS.values())[:4]
    for level in range(levels):
        leaf = wraps[level % 4](leaf)
    return leaf


@pytest.mark.parametrize("leaf", [1, "x" * 20_000], ids=["small", "large"])
@pytest.mark.parametrize("kind", [*WRAPPERS, "mixed"])
def test_200_levels(kind: str, leaf: Any) -> None:
    value = mixed(200, leaf) if kind == "mixed" else nested(200, WRAPPERS[kind], leaf)
    other = mixed(200, "other") if kind == "mixed" else nested(200, WRAPPERS[kind], "other")
    assert Codec().decode(Codec().encode(value)) == value
    with savegame.open("memory:", cache_bytes=0) as vault:
        thread = vault.thread("deep")
        for state in (value, other, {"beside": value}, value):
            thread.save(state)
            assert thread.state() == state
        assert len(thread.diff(1, 2)) == 1
        assert len(thread.diff(2, 1)) == 1
        assert vault.verify().ok
        thread.prune(keep=1)
        thread.fork("copy")
        assert vault.thread("copy").state() == value


@pytest.mark.parametrize("levels", [300, 1000, 100_000])
@pytest.mark.parametrize("kind", ["lists", "dicts", "tuples", "number keys"])
def test_deeper_is_an_error_and_not_a_crash(codec: Codec, kind: str, levels: int) -> None:
    value: Any = nested(levels, WRAPPERS[kind])
    with pytest.raises(InvalidState, match="nested deeper"):
        codec.encode({"deep": value})
    while isinstance(value, (list, dict, tuple)):  # take it apart slowly: freeing it at once is not our business
        (value,) = value.values() if isinstance(value, dict) else value


def test_what_contains_itself_is_refused(codec: Codec) -> None:
    ring: list[Any] = []
    ring += [ring, ring]
    loop: dict[str, Any] = {}
    loop["self"] = {"inner": [loop]}
    for value in (ring, loop, {"a": (ring,)}):
        with pytest.raises(InvalidState, match="contains itself"):
            codec.encode(value)


def test_updates_cannot_nest_deeper_than_a_save_may() -> None:
    with savegame.open("memory:", cache_bytes=0) as vault:
        thread = vault.thread("deep")
        thread.save(nested(200, WRAPPERS["dicts"]))
        try:
            thread.update(set={("k",) * 60: nested(240, WRAPPERS["dicts"])})
        except InvalidInputError:
            assert thread.state() == nested(200, WRAPPERS["dicts"])
            return
        # It was taken: then everything must go on working with it.
        thread.save(thread.state())
        thread.update(set={"beside": 1})
        thread.fork("copy")
        assert vault.verify().ok


# -- what is refused -------------------------------------------------------------------------------


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Floating(float):
    pass


Pair = namedtuple("Pair", "a b")


class Zone(dt.tzinfo):
    def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(0)

    dst = utcoffset

    def tzname(self, when: dt.datetime | None) -> str:
        return "own"


def refused() -> dict[str, Any]:
    return {
        "lone surrogate": "a\ud800b",
        "function": print,
        "lambda": lambda: 1,
        "class": int,
        "object": object(),
        "module": os,
        "generator": iter([]),
        "bytearray": bytearray(b"x"),
        "memoryview": memoryview(b"x"),
        "OrderedDict": OrderedDict(a=1),
        "defaultdict": defaultdict(list),
        "namedtuple": Pair(1, 2),
        "str subclass": Text("x"),
        "int subclass": Number(1),
        "float subclass": Floating(1),
        "complex": 1j,
        "range": range(3),
        "own zone": dt.datetime(2024, 1, 1, tzinfo=Zone()),
        "exception": ValueError("x"),
        "ellipsis": ...,
        "path that is not text": pathlib.Path(os.fsdecode(b"\xff")),
        "missing": dataclasses.MISSING,
    }


@pytest.mark.parametrize("name", list(refused()))
def test_what_cannot_be_kept_is_refused_by_place(codec: Codec, name: str) -> None:
    value = refused()[name]
    with pytest.raises(InvalidState) as caught:
        codec.encode({"messages": [{}, {}, {}, {"content": value}]})
    assert caught.value.path == "messages[3].content"
    assert "messages[3].content" in str(caught.value)
    for shaped in ([value], (value,), {"k": (1, [value])}, {1: value}):
        with pytest.raises(InvalidState):
            codec.encode(shaped)


@pytest.mark.parametrize("name", list(refused()))
@pytest.mark.parametrize("before", [b"y", "x", 1, {"a": 1}, b"x" * 400, [1, 2]], ids=lambda before: repr(before)[:8])
def test_it_is_refused_whatever_was_there_before(name: str, before: Any) -> None:
    with savegame.open("memory:") as vault:
        thread = vault.thread("t")
        first = thread.save({"messages": [{"content": before, "more": "x" * 300}]})
        with pytest.raises(InvalidState):
            thread.save({"messages": [{"content": refused()[name], "more": "x" * 300}]})
        with pytest.raises(InvalidInputError):
            thread.update(set={("messages", 0, "content"): refused()[name]})
        with pytest.raises(InvalidInputError):
            thread.update(append={"messages": [refused()[name]]})
        latest = thread.latest()
        assert latest is not None
        assert latest.id == first.id


def test_a_grown_bytearray_does_not_become_bytes() -> None:
    with savegame.open("memory:") as vault:
        thread = vault.thread("t")
        thread.save({"data": b"abc" * 200})
        with pytest.raises(InvalidState, match="bytearray"):
            thread.save({"data": bytearray(b"abc" * 200 + b"x")})


@pytest.mark.parametrize("key", ["\ud800", Text("x"), Number(3), print, Pair(1, 2)], ids=lambda key: type(key).__name__)
def test_keys_that_cannot_be_kept_are_refused(codec: Codec, key: Any) -> None:
    for value in ({"a": {key: 1}}, {"a": [{1: 2, key: 1}]}, {"a": {(key,): 1}}):
        with pytest.raises(InvalidState) as caught:
            codec.encode(value)
        assert caught.value.path.startswith("a")


def test_an_open_file_is_refused(codec: Codec) -> None:
    with open(os.devnull) as handle, pytest.raises(InvalidState, match="log"):
        codec.encode({"log": handle})


def test_paths_are_written_as_people_write_them() -> None:
    assert format_path(("messages", 3, "content")) == "messages[3].content"
    assert format_path(("two words", "a", 0)) == "['two words'].a[0]"
    assert format_path(()) == ""


# -- dicts that look like tags ---------------------------------------------------------------------

LOOKALIKES: list[dict[str, Any]] = [
    {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
    {"__type__": "datetime", "value": "2020-01-01"},
    {"$type": "System.Diagnostics.Process"},
    {"py/object": "os.system"},
    {"py/reduce": [{"py/type": "os.system"}, {"py/tuple": ["true"]}]},
    {"__class__": "Point", "__module__": "os"},
    {"__pydantic_fields_set__": ["a"], "\0rest": {"unset": []}},
    {"\0rest": {"private": {"a": 1}}},
    {"__ext__": 13, "data": "x"},
    {"tag": 4, "data": b"x"},
    {"set": {}, "append": {}, "delete": []},
    {"Ext": [4, "2020"]},
]


@pytest.mark.parametrize("value", LOOKALIKES, ids=lambda value: next(iter(value)).strip("\0"))
def test_a_dict_that_looks_like_a_tag_stays_a_dict(codec: Codec, value: dict[str, Any]) -> None:
    assert same(trip(codec, value), value)
    with savegame.open("memory:", cache_bytes=0) as vault:
        thread = vault.thread("t")
        for state in (value, [value], {"x": "y" * 400, "inner": value}, {"x": "y" * 400, "inner": [value, value]}):
            thread.save(state)
            assert same(thread.state(), state)


# -- classes ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int
    y: Any = 2
    tags: list[str] = dataclasses.field(default_factory=list)
    kind: ClassVar[str] = "point"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    inner: Point
    made: str = dataclasses.field(init=False, default="made")


@dataclasses.dataclass
class Late:
    a: int
    b: int = dataclasses.field(init=False)
    c: dataclasses.InitVar[int] = 3

    def __post_init__(self, c: int) -> None:
        if self.a == 0:
            self.b = c


class Color(enum.Enum):
    RED = "red"
    BLUE = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Struct(msgspec.Struct, kw_only=True):
    a: int
    b: list[int] = msgspec.field(default_factory=list)


class FrozenStruct(msgspec.Struct, frozen=True, rename="camel"):
    some_name: int
    other: Struct


class Inner(pydantic.BaseModel):
    n: int = 0


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", populate_by_name=True)
    calls: ClassVar[int] = 0

    name: str = pydantic.Field(alias="theName")
    inner: Inner = pydantic.Field(default_factory=Inner)
    level: Level = Level.LOW
    _secret: int = pydantic.PrivateAttr(default=7)

    @pydantic.field_validator("name")
    @classmethod
    def shouted(cls, value: str) -> str:
        cls.calls += 1
        return value.upper()


class Root(pydantic.RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class Checked:
    x: int


OBJECTS: list[Any] = [
    Point(1), Point(1, {"a": (1,)}, ["t"]), Frozen(1, Point(2)), Color.RED, Color.BLUE, Level.LOW, Word.YES,
    Rights.READ | Rights.WRITE, Rights(0), Struct(a=1), FrozenStruct(1, Struct(a=2, b=[3])), Inner(n=4),
    Root([1, 2]), Checked(x=1),
]  # fmt: skip


@pytest.mark.parametrize("value", OBJECTS, ids=repr)
def test_registered_objects_come_back_as_objects(codec: Codec, value: Any) -> None:
    codec.register(type(value))
    found = trip(codec, {"value": [value]})["value"][0]
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)
    again = value_of(codec, open_node(codec.encode(value)))
    assert type(again) is type(value)
    assert again == value


PLAINLY: list[tuple[Any, Any]] = [
    (Point(1), {"x": 1, "y": 2, "tags": []}),
    (Frozen(1, Point(2, 3)), {"a": 1, "inner": {"x": 2, "y": 3, "tags": []}, "made": "made"}),
    (Color.RED, "red"),
    (Color.BLUE, (1, 2)),
    (Level.LOW, 1),
    (Word.YES, "yes"),
    (Rights.READ | Rights.WRITE, 3),
    (Struct(a=1, b=[2]), {"a": 1, "b": [2]}),
    (FrozenStruct(1, Struct(a=2)), {"some_name": 1, "other": {"a": 2, "b": []}}),
    (Inner(n=4), {"n": 4}),
]


@pytest.mark.parametrize(("value", "plain"), PLAINLY, ids=repr)
def test_unregistered_objects_come_back_as_plain_values(codec: Codec, value: Any, plain: Any) -> None:
    for shaped, wanted in ((value, plain), ([value], [plain]), ({"k": (value,)}, {"k": (plain,)})):
        assert same(trip(codec, shaped), wanted)


def test_pydantic_models_keep_everything(codec: Codec) -> None:
    codec.register(Model)
    value = Model.model_validate({"theName": "ann", "inner": {"n": 3}, "extra_one": (1, 2)})
    value._secret = 99
    calls = Model.calls
    found = trip(codec, value)
    assert Model.calls == calls, "a validator ran again"
    assert type(found) is Model
    assert found == value
    assert (found.name, found.inner, found._secret, found.model_extra) == ("ANN", Inner(n=3), 99, {"extra_one": (1, 2)})
    assert found.model_fields_set == value.model_fields_set == {"name", "inner", "extra_one"}
    assert type(found.inner) is Inner
    assert type(found.level) is Level
    invalid = Model.model_construct(name=5)
    assert trip(codec, invalid).name == 5


def test_a_pydantic_model_that_was_made_in_part_comes_back_in_part(codec: Codec) -> None:
    codec.register(Model)
    partial = Model.model_construct(level=Level.LOW)
    found = trip(codec, [partial])[0]
    assert found == partial
    assert found.model_fields_set == {"level"}
    assert not hasattr(found, "name")
    codec.register(Model, schema_version=2, upcast=lambda fields, version: fields)
    with pytest.raises(UnsupportedError, match="no value for the field 'name'"):
        codec.decode(_at_first(Model).encode(partial))


def _at_first(cls: type) -> Codec:
    """A codec that knows a class in its first version."""
    codec = Codec()
    codec.register(cls)
    return codec


def test_pydantic_private_attributes_are_named_when_refused(codec: Codec) -> None:
    codec.register(Model)
    value = Model.model_validate({"theName": "x"})
    value._secret = print  # type: ignore[assignment]
    with pytest.raises(InvalidState) as caught:
        codec.encode({"model": value})
    assert "model" in caught.value.path
    assert "nested" not in str(caught.value)
    value._secret = bytearray(b"x")  # type: ignore[assignment]
    with pytest.raises(InvalidState, match="bytearray"):
        codec.encode({"model": value})


def test_a_field_that_was_never_set_stays_unset(codec: Codec) -> None:
    codec.register(Late)
    found = trip(codec, Late(1))
    assert found.a == 1
    assert not hasattr(found, "b")
    assert trip(codec, Late(0)) == Late(0)


@dataclasses.dataclass(frozen=True)
class Key:
    a: int


@pytest.mark.parametrize(
    "value",
    [{"s": {Key(1)}}, {Key(1): 1}, {"s": frozenset((Key(1),))}, {"k": {(Key(1),): 1}}],
    ids=["set", "key", "frozenset", "tuple"],
)
def test_unregistered_objects_where_only_hashable_values_fit(codec: Codec, value: Any) -> None:
    """They would come back as dicts, which cannot be there: refused when saved, not found out when loaded."""
    with pytest.raises(InvalidState):
        codec.encode(value)
    codec.register(Key)
    assert trip(codec, value) == value


def test_keys_that_would_become_one_are_refused(codec: Codec) -> None:
    with pytest.raises(InvalidState):
        codec.encode({Color.RED: 1, "red": 2})
    codec.register(Color)
    assert trip(codec, {Color.RED: 1, "red": 2}) == {Color.RED: 1, "red": 2}


def test_register_refuses_other_things(codec: Codec) -> None:
    things: list[Any] = [int, dict, print, 5, list[int]]
    for thing in things:
        with pytest.raises(InvalidInputError):
            codec.register(thing)


def test_two_classes_cannot_have_one_name(codec: Codec) -> None:
    codec.register(Point)
    other = dataclasses.make_dataclass("Point", ["x"])
    other.__module__ = "elsewhere"  # newer Pythons take no module from the namespace
    with pytest.raises(InvalidInputError, match="two classes"):
        codec.register(other)
    codec.register(other, name="OtherPoint")
    assert type(trip(codec, other(1))) is other
    assert type(trip(codec, Point(1))) is Point


# -- shapes that change ----------------------------------------------------------------------------


def shape(version: int) -> tuple[type, Codec]:
    made = dataclasses.make_dataclass("State", [(f"v{version}", int)], namespace={"__module__": __name__})
    codec = Codec()
    return made, codec


@pytest.mark.parametrize(
    "options",
    [
        {"schema_version": "1"},
        {"schema_version": -1},
        {"schema_version": 1.5},
        {"schema_version": 2**70},
        {"upcast": 3},
        {"name": ""},
        {"name": 3},
        {"name": "\ud800"},
    ],
    ids=ascii,
)
def test_a_class_cannot_be_registered_in_a_way_that_could_not_be_read_back(codec: Codec, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        codec.register(Point, **options)
    assert not codec.knows(Point)


def test_an_object_is_no_class() -> None:
    with savegame.open("memory:") as vault, pytest.raises(InvalidInputError, match="cannot be registered"):
        vault.thread("t", type=Point(1))  # type: ignore[arg-type]


def test_upcast_brings_old_objects_to_todays_shape() -> None:
    old, before = shape(1)
    before.register(old)
    data = before.encode({"s": [old(5)]})
    new, after = shape(2)
    after.register(new, schema_version=2)
    with pytest.raises(UnsupportedError, match="schema_version 1"):
        after.decode(data)
    seen: list[int] = []

    def upcast(fields: dict[str, Any], version: int) -> dict[str, Any]:
        seen.append(version)
        return {"v2": fields["v1"] + 1}

    after.register(new, schema_version=2, upcast=upcast)
    assert after.decode(data) == {"s": [new(6)]}
    assert seen == [1]
    with pytest.raises(UnsupportedError, match="schema_version 2"):
        before.decode(after.encode(new(1)))


@dataclasses.dataclass
class Album:
    width: Fraction  # known to type checkers only
    system: os.NoSuchName  # type: ignore[name-defined]
    places: list[Point]


class Box(pydantic.BaseModel, Generic[T]):
    item: T


def test_classes_in_annotations_are_registered_beside_ones_that_nobody_can_resolve(codec: Codec) -> None:
    codec.register(Album)
    album = Album(1, 2, [Point(3)])  # type: ignore[arg-type]
    assert same(trip(codec, album).places, [Point(3)])


def test_classes_that_stand_for_a_type_variable_are_registered(codec: Codec) -> None:
    codec.register(Box[Box[int]])
    box = Box[Box[int]](item=Box[int](item=1))
    assert type(trip(codec, box).item) is Box[int]
    assert trip(codec, box) == box


@pytest.mark.parametrize("given", [None, 5, [("v2", 1)]], ids=repr)
def test_an_upcast_that_gives_no_fields_is_not_taken_for_damage(given: Any) -> None:
    old, before = shape(1)
    before.register(old)
    new, after = shape(2)
    after.register(new, schema_version=2, upcast=lambda fields, version: given)
    with pytest.raises(UnsupportedError, match="not a dict of fields"):
        after.decode(before.encode(old(5)))


class Positive(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("below zero")


def test_what_a_class_raises_when_its_object_is_made_is_not_taken_for_damage(codec: Codec) -> None:
    codec.register(Positive)
    changed = Positive(1)
    changed.number = -1
    with pytest.raises(UnsupportedError, match="below zero"):
        codec.decode(codec.encode([changed]))

    def no_default() -> int:
        raise LookupError("ask somebody")

    old, before = shape(1)
    before.register(old)
    new = dataclasses.make_dataclass("State", [("v2", int, dataclasses.field(default_factory=no_default))])
    codec.register(new)
    with pytest.raises(UnsupportedError, match="ask somebody"):
        codec.decode(before.encode(old(5)))


def test_a_field_without_a_value_says_so() -> None:
    old, before = shape(1)
    before.register(old)
    new, after = shape(2)
    after.register(new)
    with pytest.raises(UnsupportedError, match="v2"):
        after.decode(before.encode(old(1)))


def test_an_enum_value_of_yesterday_is_not_corruption(codec: Codec) -> None:
    codec.register(Color)
    data = codec.encode(Color.RED).replace(b"red", b"rot")
    with pytest.raises(UnsupportedError):
        codec.decode(data)


def test_type_on_a_thread() -> None:
    with savegame.open("memory:", cache_bytes=0) as vault:
        vault.thread("t").save({"x": 1, "y": 5, "tags": ["old"]})
        typed = vault.thread("t", type=Point)
        assert typed.state() == Point(1, 5, ["old"])
        typed.save(Point(2))
        found = typed.latest()
        assert found is not None
        assert found.state == Point(2)
        assert vault.thread("t").state() == Point(2)
        typed.update(set={"x": 9}, append={"tags": ["n"]})
        assert typed.state() == Point(9, 2, ["n"])
        assert [str(line) for line in str(typed.diff(2, 3)).splitlines()] == ["~ x: 2 -> 9", "+ tags[0] = 'n'"]
        with pytest.raises(InvalidInputError):
            vault.thread("t", type=int)


def test_objects_share_structure_and_survive_without_their_class(tmp_path: pathlib.Path) -> None:
    with savegame.open(tmp_path / "v.db") as vault:
        thread = vault.thread("t", type=Point)
        state = Point(1, {"big": "x" * 4000})
        thread.save(state)
        state.x = 2
        thread.save(state)
        assert vault.stats().sizes["deltas"] < 5000
    with savegame.open(tmp_path / "v.db") as vault:
        assert vault.thread("t").state() == {"x": 2, "y": {"big": "x" * 4000}, "tags": []}
        assert vault.thread("t", type=Point).state() == state


# -- damaged bytes ---------------------------------------------------------------------------------


def harmless(codec: Codec, data: bytes) -> None:
    """Decoding gives a value or one of our errors, and imports nothing."""
    before = set(sys.modules)
    with contextlib.suppress(CorruptionError, UnsupportedError):
        codec.decode(data)
    assert set(sys.modules) == before


def all_registered() -> Codec:
    codec = Codec()
    for value in OBJECTS:
        codec.register(type(value))
    codec.register(Model)
    return codec


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_random_bytes(data: bytes) -> None:
    harmless(all_registered(), data)


@given(st.sampled_from([*OBJECTS, Model.model_validate({"theName": "x", "more": 1})]) | strategies.values(), st.data())
@settings(max_examples=500, deadline=None)
def test_mutated_bytes(value: Any, data: st.DataObject) -> None:
    codec = all_registered()
    whole = bytearray(codec.encode([value]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    harmless(codec, bytes(whole))
    harmless(codec, bytes(whole[: data.draw(st.integers(0, len(whole)))]))


@given(st.integers(0, 127), st.binary(max_size=40) | strategies.values(max_leaves=4).map(lambda value: Codec().encode(value)))
@settings(max_examples=500, deadline=None)
def test_random_extensions(tag: int, body: bytes) -> None:
    harmless(all_registered(), ormsgpack.packb([ormsgpack.Ext(tag, body)]))


def test_stored_names_import_nothing() -> None:
    imported: list[str] = []
    watching = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "import":
            imported.append(arguments[0])

    sys.addaudithook(hook)
    codec = all_registered()
    packed = ormsgpack.packb
    try:
        for name in ("os.system", "subprocess:Popen", "this", "antigravity", "tests.encoding", "Point", "xml.dom.minidom"):
            for body in ([[name, 1], {"a": 1}], [name, 1], [name, name], ["posix", name]):
                for tag in range(1, 16):
                    harmless(codec, packed(ormsgpack.Ext(tag, packed(body))))
            moment = ["2024-01-01T00:00:00", 0, [name.replace(".", "/"), 0]]
            harmless(codec, packed(ormsgpack.Ext(4, packed(moment))))
    finally:
        watching.clear()
    assert imported == []


def test_deeply_nested_damage_is_no_crash(codec: Codec) -> None:
    for first in (b"\x91", b"\x81\xa1k", b"\xc7"):
        with pytest.raises(CorruptionError):
            codec.decode(first * 100_000)
    data = b"\x90"
    for _ in range(2000):
        data = ormsgpack.packb(ormsgpack.Ext(1, b"\x91" + data))
    with pytest.raises(CorruptionError):
        codec.decode(data)


# -- odd values ------------------------------------------------------------------------------------


def test_tuples_around_dicts_with_other_keys_are_packed_once_per_level(codec: Codec) -> None:
    """Each level was tried the quick way again inside every other one: with 30 levels that took hours."""
    value: Any = 0
    for _ in range(80):
        value = {"a": (value,), "b": {1: 2}}
    assert same(trip(codec, value), value)


@dataclasses.dataclass(frozen=True)
class _Place:
    x: int


class _Direction(_Place, enum.Enum):
    UP = 1


class _Limit(enum.Enum):
    NONE = math.nan


class _ByObject(enum.Enum):
    A = _Place(1)


@pytest.mark.parametrize("member", [_Direction.UP, _Limit.NONE, _ByObject.A], ids=repr)
def test_a_member_that_its_value_would_not_lead_back_to_is_refused(codec: Codec, member: enum.Enum) -> None:
    codec.register(type(member))
    with pytest.raises(InvalidState, match=r"a\.b: .*cannot be loaded by its value") as raised:
        codec.encode({"a": {"b": member}})
    assert raised.value.path == "a.b"


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": _Text("x")}, r"a: _Text would come back as a plain str; convert it with str\(...\) yourself"),
        ({"a": {_Text("k"): 1}}, "would come back as a plain str"),
        ({"a": "\ud800"}, "lone surrogate"),
    ],
    ids=["a text of another class", "as a key", "a lone surrogate"],
)
def test_what_is_wrong_with_a_text_is_said(codec: Codec, value: Any, said: str) -> None:
    with pytest.raises(InvalidState, match=said):
        codec.encode(value)


def test_a_number_too_long_to_write_is_no_reason_for_another_error(codec: Codec) -> None:
    with pytest.raises(InvalidState, match="too many digits to show"):
        codec.encode({10**5000: print})


@dataclasses.dataclass
class _Late:
    a: int
    late: int = dataclasses.field(init=False)


class _Open(pydantic.BaseModel):
    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="allow")
    a: int = 1
    _private: int = pydantic.PrivateAttr(default=5)

    @functools.cached_property
    def dear(self) -> object:
        return threading.Lock()


@dataclasses.dataclass
class _AlsoADict(dict[str, int]):
    a: int = 1


def test_what_an_update_adds_to_an_object_comes_back() -> None:
    with savegame.open("memory:") as vault:
        late = vault.thread("late", type=_Late)
        late.save(_Late(1))
        late.update(set={"late": 7})
        assert late.state().late == 7
        extra = vault.thread("open", type=_Open)
        extra.save(_Open(a=1, z=2))
        extra.update(set={"y": 3})
        assert extra.state() == _Open(a=1, z=2, y=3)


def test_a_key_that_is_no_text_is_no_end_to_an_object() -> None:
    with savegame.open("memory:") as vault:
        thread = vault.thread("t")
        vault.register(_Late)
        thread.save({"late": _Late(1)})
        thread.update(set={("late", 5): "five"})
        thread.update(set={"n": 1})
        thread.prune(keep=1)
        vault.rooms.engine.cache.clear()
        thread.update(set={("late", "late"): 7, ("late", 5): "six"})
        assert thread.state()["late"].late == 7
        thread.save({"late": _Late(2)})
        thread.prune(keep=1)
        assert thread.state()["late"].a == 2


def test_a_plain_dict_as_a_model_has_its_private_defaults(codec: Codec) -> None:
    codec.register(_Open)
    assert codec.restore(_Open, {"a": 3})._private == 5


def test_a_cached_property_is_no_field(codec: Codec) -> None:
    codec.register(_Open)
    used = _Open(a=2)
    _ = used.dear
    found = trip(codec, used)
    assert (found.a, found.model_fields_set) == (2, {"a"})
    assert trip(Codec(), used) == {"a": 2}


@dataclasses.dataclass
class _AlsoAnError(Exception):
    code: int


def test_an_object_that_is_also_an_exception_is_refused(codec: Codec) -> None:
    with pytest.raises(InvalidInputError, match="cannot be registered"):
        codec.register(_AlsoAnError)
    with pytest.raises(InvalidState, match="_AlsoAnError cannot be stored"):
        codec.encode({"x": _AlsoAnError(5)})


class _Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not ready")


def test_a_faulty_repr_does_not_hide_what_is_refused(codec: Codec) -> None:
    with pytest.raises(InvalidState, match="_Unshowable cannot be stored") as caught:
        codec.encode({"x": {_Unshowable(): 1}})
    assert caught.value.path == "x[<_Unshowable whose repr raises RuntimeError>]"


def test_an_object_that_is_also_a_dict_is_refused(codec: Codec) -> None:
    with pytest.raises(InvalidState, match="would come back as a plain dict"):
        codec.encode({"x": _AlsoADict()})
    with pytest.raises(InvalidInputError, match="cannot be registered"):
        codec.register(_AlsoADict)


def test_what_an_error_says_does_not_depend_on_values_before() -> None:
    codec, deep, key = Codec(), [], ()
    for _ in range(300):
        deep = [deep]
    for _ in range(260):
        key = (key,)
    with pytest.raises(InvalidState):
        codec.encode({key: 1})
    with pytest.raises(InvalidState, match="a: a value of type object cannot be stored"):
        codec.encode({"a": object(), "b": deep})
