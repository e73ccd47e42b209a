"""How deep a value may be nested: the same for every way into a vault, and never a matter of the stack."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import ormsgpack
import pytest

import savegame
from savegame.encoding import delta, frames, json_form
from savegame.encoding.codec import Codec
from savegame.encoding.delta import SET, Op
from savegame.encoding.extensions import FOREIGN, TUPLE
from savegame.encoding.foreign import Foreign
from savegame.encoding.raw import MAX_DEPTH
from savegame.errors import CorruptionError, InvalidState
from savegame.present.diffs import changes_between


@dataclasses.dataclass(frozen=True)
class Kept:
    inner: Any


@dataclasses.dataclass(frozen=True)
class Plain:
    inner: Any


WRAPS: dict[str, Callable[[Any], Any]] = {
    "lists": lambda inner: [inner],
    "dicts": lambda inner: {"k": inner},
    "tuples": lambda inner: (inner,),
    "frozensets": lambda inner: frozenset((inner,)),
    "number keys": lambda inner: {1: inner},
    "objects": Kept,
    "objects as plain data": Plain,
}
KINDS = [*WRAPS, "mixed", "stretches", "keys"]


def nested(kind: str, levels: int, leaf: Any = 1) -> Any:
    """A value with `levels` containers around a leaf."""
    if kind == "keys":  # as deep inside the key as the value is
        return {nested("tuples", levels - 1, leaf): nested("lists", levels - 1, leaf)}
    wraps = list(WRAPS.values())
    for level in range(levels):
        if kind == "mixed":
            wrap = wraps[(1, 4, 0, 2, 5)[level % 5]]
        elif kind == "stretches":  # much plain data between extensions
            wrap = wraps[2 if level % 40 == 39 else 1]
        else:
            wrap = WRAPS[kind]
        leaf = wrap(leaf)
    return leaf


def opened() -> savegame.Vault:
    vault = savegame.open("memory:")
    vault.register(Kept)
    return vault


def saved(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels)
    vault.thread("t").save(value)
    return value


def saved_over_another(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels - 2)
    for state in (nested(kind, 3), value):
        vault.thread("t").save({"a": [1, state], "pad": "x" * 300})
    return value


def set_at_a_name(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels - 1)
    vault.thread("t").update(set={"a": value})
    return value


def set_again(vault: savegame.Vault, kind: str, levels: int) -> Any:
    vault.thread("t").update(set={"a": nested(kind, 5, "x" * 300)})
    return set_at_a_name(vault, kind, levels)


def set_at_a_path(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels - 3)
    vault.thread("t").update(set={("a", "b", "c"): value})
    return value


def set_in_a_list(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels - 2)
    vault.thread("t").save({"a": [1, 2]})
    vault.thread("t").update(set={("a", 1): value})
    return value


def appended(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels - 2)
    vault.thread("t").update(append={"a": [value]})
    return value


def appended_the_short_way(vault: savegame.Vault, kind: str, levels: int) -> Any:
    for number in range(2):
        vault.thread("t").update(append={"a": [number]})
    return appended(vault, kind, levels)


def updated_with_an_id(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels - 1)
    vault.thread("t").update(set={"a": value}, id="chosen")
    return value


def in_metadata(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels - 1)
    vault.thread("t").save(1, metadata={"a": value})
    return value


def in_a_record(vault: savegame.Vault, kind: str, levels: int) -> Any:
    value = nested(kind, levels)
    vault.thread("t").save(1)
    vault.thread("t").put_records({("kind", "name"): value})
    return value


WAYS = [
    saved, saved_over_another, set_at_a_name, set_again, set_at_a_path, set_in_a_list, appended, appended_the_short_way,
    updated_with_an_id, in_metadata, in_a_record,
]  # fmt: skip


def assert_kept(vault: savegame.Vault, value: Any) -> None:
    """Its bytes must be part of those of everything that is read back."""
    vault.rooms.engine.cache.clear()
    found = vault.thread("t").latest()
    assert found is not None
    pack = vault.rooms.engine.codec.pack
    assert pack(value) in pack(found.state) + pack(found.metadata) + pack(vault.thread("t").records("kind"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_limit_is_the_same_everywhere(way: Callable[..., Any], kind: str) -> None:
    with opened() as vault:
        assert_kept(vault, way(vault, kind, MAX_DEPTH))
        assert vault.verify().ok
    with opened() as vault, pytest.raises(InvalidState, match="nested deeper than 250 levels"):
        way(vault, kind, MAX_DEPTH + 1)


def test_what_is_empty_is_a_level(codec: Codec) -> None:
    for kind in ("lists", "tuples", "mixed"):
        codec.encode(nested(kind, MAX_DEPTH - 1, []))
        with pytest.raises(InvalidState, match="nested deeper"):
            codec.encode(nested(kind, MAX_DEPTH, []))


@pytest.mark.parametrize(
    "deep", [nested("lists", 254), nested("dicts", 254), nested("lists", 240, (nested("lists", 240),)), nested("lists", 255)],
    ids=["lists", "dicts", "a tuple between", "one more, by an update"],
)  # fmt: skip
def test_what_earlier_versions_took_stays_usable(codec: Codec, deep: Any) -> None:
    """They counted less exactly."""
    with opened() as vault:
        thread = vault.thread("t")
        data = codec.unlimited().encode(deep)
        for number in range(3):
            ops = [Op(SET, (), b"\x80"), Op(SET, ("n",), bytes((number,))), Op(SET, ("deep",), data)]
            thread.timeline.change(lambda node, ops=ops: (ops, delta.apply(node, ops), {}))
        vault.rooms.engine.cache.clear()
        assert thread.state()["deep"] == deep
        if nested("lists", 255) != deep:  # that could never be compared
            assert [change.path for change in thread.diff("head~1", "head")] == [("n",)]
        thread.update(set={"n": 5})
        thread.remove("head~1")
        assert thread.state() == {"n": 5, "deep": deep}
        assert vault.verify().ok


@pytest.fixture
def codec() -> Codec:
    made = Codec()
    made.register(Kept)
    return made


# -- the stack -------------------------------------------------------------------------------------


def everything_there_is(levels: int) -> None:
    """Every direction that values go, for every kind; what is too deep must be refused."""
    for kind in KINDS:
        for way in WAYS:
            with opened() as vault, contextlib.suppress(InvalidState):
                assert_kept(vault, way(vault, kind, levels))
        codec = Codec()
        codec.register(Kept)
        try:
            data = codec.encode(nested(kind, levels))
        except InvalidState:
            continue
        codec.decode(data)
        Codec().decode(codec.encode(nested("lists", 3, Plain(1))))
        changes_between(codec, nested(kind, levels), nested(kind, levels, 2))
        frames.take_out(codec.encode([nested(kind, levels - 1), "x" * frames.BLOB_FROM]))
        body = b"\0\0" + delta.dump([Op(SET, (), data)])
        assert json_form.from_text("delta", json_form.to_text("delta", body)) == body
        with savegame.open("memory:") as vault:
            thread = vault.thread("t", type=Kept)
            thread.save(Kept(nested(kind, levels - 1)))
            assert type(thread.state()) is Kept


def on_a_small_stack() -> None:
    threading.stack_size(256 * 1024)
    finished = []

    def work() -> None:
        for levels in (200, MAX_DEPTH, MAX_DEPTH + 1, 2000):
            everything_there_is(levels)
        finished.append(True)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert finished


def test_a_small_stack_is_enough() -> None:
    """A process of its own: what does not fit on a stack takes the interpreter with it."""
    command = "import sys; sys.path.insert(0, 'tests/encoding'); import test_depth; test_depth.on_a_small_stack()"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


@pytest.mark.parametrize(("levels", "times"), [(1000, 9), (1000, 200), (1, 502), (1, 5000), (100, 100)])
def test_made_up_bytes_are_corruption(codec: Codec, levels: int, times: int) -> None:
    data = b"\x01"
    for _ in range(times):
        data = ormsgpack.packb(ormsgpack.Ext(TUPLE, b"\x91" + b"\x91" * (levels - 1) + data))
    for look in (codec.decode, Codec().decode):
        with pytest.raises(CorruptionError):
            look(data)
    with pytest.raises(CorruptionError):
        frames.put_back(data, lambda name: b"")
    leaf = ormsgpack.packb(ormsgpack.Ext(FOREIGN, ormsgpack.packb(["msgpack", data])))
    assert codec.decode(leaf) == Foreign("msgpack", data)
