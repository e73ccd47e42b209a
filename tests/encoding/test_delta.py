"""Differences: exact, small, and the same however they are applied."""

from __future__ import annotations

import contextlib
import copy
import random
from typing import Any

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from savegame.encoding import delta, diff
from savegame.encoding.codec import Codec
from savegame.encoding.delta import APPEND, DELETE, EDIT, ORDER, SET, SPLICE, Op
from savegame.encoding.extensions import MAP, OBJECT
from savegame.encoding.tree import Dict, List, Node, open_node, size_of, to_bytes, value_of
from savegame.errors import CorruptionError, InvalidInputError, InvalidState
from savegame.testing import same, strategies
from savegame.testing.model import Misfit, apply_update

CODEC = Codec()
RANDOM = random.Random(7)


def text(length: int) -> str:
    """Text that does not compress away."""
    return RANDOM.randbytes(length // 2 + 1).hex()[:length]


def replay(first: bytes, dumps: list[bytes]) -> bytes:
    """The bytes of a state after some deltas, replayed as a load does it."""
    node = delta.replay([delta.dump([Op(SET, (), first)]), *dumps])
    assert node is not None
    assert size_of(node) > 0
    return to_bytes(node)


def begun(value: Any) -> Node:
    return diff.difference(CODEC, None, value)[1]


def changed(node: Node, value: Any) -> tuple[bytes, Node]:
    """The dump of a difference and the new tree, after every way to get there was compared."""
    before = to_bytes(node)
    ops, after = diff.difference(CODEC, node, value)
    wanted = CODEC.encode(value)
    assert to_bytes(node) == before, "the old tree was changed"
    assert to_bytes(after) == wanted
    dumped = delta.dump(ops)
    assert delta.parse(dumped) == ops
    for start in (node, before):
        applied = delta.apply(start, delta.parse(dumped))
        assert applied is not None
        assert to_bytes(applied) == wanted
        assert size_of(applied) > 0
    assert to_bytes(node) == before, "the old tree was changed"
    assert replay(before, [dumped]) == wanted
    return dumped, after


# -- properties ------------------------------------------------------------------------------------


@given(strategies.states(), strategies.states())
@settings(max_examples=100)
def test_any_two_states(old: Any, new: Any) -> None:
    changed(begun(old), new)


@given(st.data())
@settings(max_examples=50)
def test_a_line_of_edits(data: st.DataObject) -> None:
    """Step by step, all at once, and from a keyframe in between: always the same bytes."""
    state = data.draw(strategies.states(), label="first")
    dumps = [delta.dump(diff.difference(CODEC, None, state)[0])]
    node, states = begun(state), [CODEC.encode(state)]
    for _ in range(data.draw(st.integers(1, 5))):
        state = data.draw(strategies.edits(state), label="next")
        dumped, node = changed(node, state)
        dumps.append(dumped)
        states.append(CODEC.encode(state))
        assert same(value_of(CODEC, node), state)
    for index in range(len(dumps)):
        assert replay(states[index], dumps[index + 1 :]) == states[-1]
    assert to_bytes(delta.replay(dumps) or b"") == states[-1]
    assert to_bytes(delta.apply(None, delta.whole(node)) or b"") == states[-1]


@given(st.data())
@settings(max_examples=100)
def test_update_does_what_python_would(data: st.DataObject) -> None:
    state = data.draw(st.dictionaries(st.text(max_size=3), strategies.values(max_leaves=10), max_size=5), label="state")
    names = st.sampled_from(list(state)) if state else st.just("fresh")
    paths = st.tuples(names | st.text(max_size=2)) | st.tuples(names, st.integers(0, 3)) | st.tuples(names, st.text(max_size=2))
    values = strategies.values(max_leaves=3)
    sets = data.draw(st.dictionaries(paths, values, max_size=2), label="set")
    appends = data.draw(st.dictionaries(paths, st.lists(values, max_size=3), max_size=2), label="append")
    deletes = data.draw(st.lists(paths, max_size=2), label="delete")
    node = begun(state)
    try:
        wanted = apply_update(state, set_=sets, append=appends, delete=deletes)
    except Misfit:
        with pytest.raises(InvalidInputError):
            diff.update(CODEC, node, append=appends, set=sets, delete=deletes)
        return
    ops, after = diff.update(CODEC, node, append=appends, set=sets, delete=deletes)
    assert to_bytes(after) == CODEC.encode(wanted)
    assert same(value_of(CODEC, node), state)
    assert replay(to_bytes(node), [delta.dump(ops)]) == CODEC.encode(wanted)


def test_versions_of_a_growing_list_do_not_see_each_other() -> None:
    base = begun({"items": list(range(100))})
    versions = [base]
    for number in range(200):
        node = versions[number if number % 3 else number // 2]
        before = to_bytes(node)
        _, after = diff.update(CODEC, node, append={"items": [number]}, set={}, delete=[])
        assert to_bytes(node) == before
        assert value_of(CODEC, after) == {"items": [*value_of(CODEC, node)["items"], number]}
        versions.append(after)
    assert value_of(CODEC, base) == {"items": list(range(100))}


def test_growing_in_place_does_not_go_through_all_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large items stay runs of their own; loading many of them would take quadratic time."""
    monkeypatch.setattr(List, "join", lambda self: pytest.fail("joined"))
    items = List([])
    for _ in range(200):
        items.grow(CODEC.encode(["x" * 70_000]))
    assert items.count == len(items.runs) == 200


def test_who_reads_a_list_does_not_see_it_grow() -> None:
    """A reader in another thread goes through the runs while a save adds one to the next version."""
    _, node = diff.update(CODEC, begun({}), append={"items": [1]}, set={}, delete=[])
    for number in range(5):
        assert isinstance(node, Dict)
        (items,) = node.children.values()
        if isinstance(items, List):
            reading = items.runs
            before = list(reading)
            items.with_items(CODEC.encode([number]))
            assert list(reading) == before
        _, node = diff.update(CODEC, node, append={"items": [number]}, set={}, delete=[])


@given(st.data())
@settings(max_examples=150)
def test_many_appends_replay_as_they_were_made(data: st.DataObject) -> None:
    """Appends of equal and of changing length, to one list and another, with an edit now and then."""
    state: Any = {"a": [], "b": {"c": [1]}, "n": 0}
    node = begun(state)
    first, dumps = to_bytes(node), []
    for _ in range(data.draw(st.integers(1, 30))):
        path, target = data.draw(st.sampled_from(((("a",), state["a"]), (("b", "c"), state["b"]["c"]))))
        count = data.draw(st.sampled_from((0, 1, 1, 1, 2, 15, 16, 17, 70)))
        sets: dict[Any, Any] = {("n",): 1} if data.draw(st.integers(0, 9)) == 0 else {}
        if target and data.draw(st.integers(0, 5)) == 0:
            at = data.draw(st.integers(0, len(target) - 1))
            sets = {(*path, at): [at]}
        ops, node = diff.update(CODEC, node, append={path: [count] * count}, set=sets, delete=())
        for place, value in sets.items():
            if place == ("n",):
                state["n"] = value
            else:
                target[place[-1]] = value
        target += [count] * count
        dumps.append(delta.dump(ops))
    assert CODEC.decode(replay(first, dumps)) == state
    assert to_bytes(node) == CODEC.encode(state)


def sizes(node: Node) -> int:
    """The size of a tree, counted anew."""
    if not isinstance(node, Dict):
        return size_of(node)
    assert node.size == len(node.tag) + 5 + sum(len(key) + sizes(child) for key, child in node.children.items())
    return node.size


@given(st.data())
@settings(max_examples=300)
def test_updates_of_entries_and_of_entries_of_entries(data: st.DataObject) -> None:
    """The tree, its size, the delta and the tree before: whether the inner dicts are opened already or not."""
    names = st.sampled_from(("a", "b", "c"))
    value = st.one_of(st.integers(), st.text(max_size=200), st.dictionaries(names, st.text(max_size=90), max_size=3))
    state: dict[str, Any] = data.draw(st.dictionaries(names, value))
    node = begun(copy.deepcopy(state))
    for _ in range(data.draw(st.integers(1, 6))):
        before = to_bytes(node)
        inner = [(outer, name) for outer, found in state.items() if type(found) is dict for name in "abc"]
        places = [*state, *(path for path in inner if path[1] in state[path[0]])]
        gone = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=2)) if places else []
        gone = [one for one in gone if type(one) is str or one[0] not in gone]
        outside = [one for one in ["a", "b", "c", *inner] if not {one, one[0]} & {*gone, *(path[0] for path in gone)}]
        sets = {
            path: data.draw(value) for path in (data.draw(st.lists(st.sampled_from(outside), unique=True)) if outside else [])
        }
        sets = {path: found for path, found in sets.items() if type(path) is str or path[0] not in sets}
        ops, after = diff.update(CODEC, node, append={}, set=sets, delete=gone)
        for path, found in sets.items():
            if type(path) is str:
                state[path] = found
            else:
                state[path[0]][path[1]] = found
        for path in gone:
            if type(path) is str:
                del state[path]
            else:
                del state[path[0]][path[1]]
        assert value_of(CODEC, after) == state
        assert to_bytes(node) == before, "the old tree was changed"
        assert to_bytes(delta.apply(node, delta.parse(delta.dump(ops))) or b"") == to_bytes(after)
        assert sizes(after) > 0
        node = after


def test_empty_appends_leave_no_hole() -> None:
    deltas = []
    node = begun({"items": [{"x": 0}]})
    first = to_bytes(node)
    changes: list[tuple[dict[Any, Any], dict[Any, Any]]] = [
        ({"items": []}, {}),
        ({"items": [{"x": 1}]}, {}),
        ({"items": []}, {}),
        ({}, {("items", 1, "x"): 5}),
    ]
    for append, sets in changes:
        ops, node = diff.update(CODEC, node, append=append, set=sets, delete=[])
        deltas.append(delta.dump(ops))
    assert CODEC.decode(replay(first, deltas)) == value_of(CODEC, node) == {"items": [{"x": 0}, {"x": 5}]}


# -- sizes -----------------------------------------------------------------------------------------


def message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": text(1000), "number": number}


def test_an_append_costs_the_item() -> None:
    state = {"messages": [message(number) for number in range(400)], "plan": text(5000)}
    node = begun(state)
    for number in range(5):
        more = message(number)
        state["messages"].append(more)  # type: ignore[attr-defined]
        dumped, node = changed(node, state)
        assert len(dumped) < len(CODEC.encode(more)) + 100


def test_one_file_of_200() -> None:
    files = {f"src/file_{number}.py": text(5000) for number in range(200)}
    state = {"files": files, "n": 1}
    node = begun(state)
    for number in range(5):
        name = f"src/file_{number * 31}.py"
        old = files[name]
        files[name] = old[:1000] + text(300) + old[1300:]
        dumped, node = changed(node, state)
        assert len(dumped) < 300 + 200
        files[name] = text(5000)
        dumped, node = changed(node, state)
        assert len(dumped) < 5000 + 200


def test_a_summary_of_the_first_half_of_400_messages() -> None:
    messages = [message(number) for number in range(400)]
    node = begun({"messages": messages})
    summary = {"role": "system", "content": text(2000)}
    dumped, node = changed(node, {"messages": [summary, *messages[200:]]})
    assert len(dumped) < 2000 + 300
    dumped, node = changed(node, {"messages": [summary, *messages[200:300], *messages[301:]]})
    assert len(dumped) < 500


def test_a_window_over_the_newest_messages() -> None:
    """The oldest goes, a new one comes: as long as before, and yet nearly the same."""
    messages = [message(number) for number in range(110)]
    node = begun({"messages": messages[:100]})
    for number in range(1, 10):
        dumped, node = changed(node, {"messages": messages[number : number + 100]})
        assert len(dumped) < 1000 + 500


def test_a_counter_in_a_big_state() -> None:
    state = {"counter": 0, "documents": {str(number): {"text": text(10_000)} for number in range(100)}, "log": ["x"] * 1000}
    node = begun(state)
    for number in range(3):
        state["counter"] = number + 1
        dumped, node = changed(node, state)
        assert len(dumped) < 100


def test_deep_inside_lists_and_dicts() -> None:
    state: Any = {"a": [{"b": [{"c": text(3000), "d": [text(500) for _ in range(20)]} for _ in range(10)]} for _ in range(10)]}
    node = begun(state)
    state["a"][7]["b"][3]["d"][11] = "changed"
    dumped, node = changed(node, state)
    assert len(dumped) < 700
    state["a"][7]["b"][3]["d"].append("more")
    dumped, node = changed(node, state)
    assert len(dumped) < 200


def test_an_unchanged_state_costs_nothing() -> None:
    state = {"messages": [message(number) for number in range(50)]}
    ops, after = diff.difference(CODEC, begun(state), copy.deepcopy(state))
    assert ops == []
    assert to_bytes(after) == CODEC.encode(state)


def test_a_change_in_place_is_noticed() -> None:
    inner = {"deep": [1, 2, 3]}
    state = {"a": inner, "b": [inner, "x" * 500]}
    node = begun(state)
    inner["deep"][1] = 9
    _, after = changed(node, state)
    assert value_of(CODEC, after) == {"a": {"deep": [1, 9, 3]}, "b": [{"deep": [1, 9, 3]}, "x" * 500]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (1, True), (1, 1.0), (0.0, -0.0), ([1], (1,)), ({"a": 1}, {"a": True}), ({1: 0}, {True: 0}), ({1: 0}, {1.0: 0}),
        ("1", b"1"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1}, frozenset((1,))), (None, False), ([], ()), ({}, []),
        ("x" * 300, b"x" * 300),
        ([1] * 100, [1] * 99 + [True]), ({"k": "x" * 300, "l": 1}, {"l": 1, "k": "x" * 300}),
        (["same"] * 3, ["same"] * 5), ([1, 2, 3, 4, 5, 6] * 40, [6, 5, 4, 3, 2, 1] * 41),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_equal_but_not_the_same(old: Any, new: Any) -> None:
    for left, right in ((old, new), ({"pad": "y" * 300, "v": old}, {"pad": "y" * 300, "v": new}), ([old] * 3, [old, new, old])):
        _, after = changed(begun(left), right)
        assert same(value_of(CODEC, after), right)


# -- updates that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"append": {"text": [1]}}, {"append": {"missing": "abc"}}, {"append": {"tuple": [1]}},
        {"append": {("text", "x"): [1]}},
        {"append": {"items": {"a": 1}}}, {"set": {("items", 9, "x"): 1}}, {"set": {("items", 9): 1}},
        {"set": {("items", -1): 1}},
        {"set": {("items", "0"): 1}}, {"set": {("text", 0): 1}}, {"set": {(): 1}}, {"set": {("a",) * 65: 1}},
        {"delete": ["nope"]},
        {"delete": [("items", 5)]}, {"delete": [()]}, {"set": {("items", True): 1}}, {"set": {("tuple", 0): 1}},
    ],
    ids=repr,
)  # fmt: skip
def test_updates_that_do_not_fit(change: dict[str, Any]) -> None:
    node = begun({"text": "x", "items": [1, 2], "tuple": (1,)})
    with pytest.raises(InvalidInputError):
        diff.update(CODEC, node, append=change.get("append", {}), set=change.get("set", {}), delete=change.get("delete", ()))
    assert value_of(CODEC, node) == {"text": "x", "items": [1, 2], "tuple": (1,)}


def test_an_update_names_the_place_of_what_cannot_be_kept() -> None:
    node = begun({"a": [{"b": 1}]})
    with pytest.raises(InvalidState) as caught:
        diff.update(CODEC, node, append={}, set={("a", 0, "b"): [1, {"c": print}]}, delete=())
    assert caught.value.path == "a[0].b[1].c"
    with pytest.raises(InvalidState) as caught:
        diff.update(CODEC, node, append={"a": [1, "\ud800"]}, set={}, delete=())
    assert caught.value.path.startswith("a[")


@pytest.mark.parametrize("key", [2**70, -(2**70), (1, 2), None, True, 1.5, b"x", frozenset((1,))], ids=repr)
def test_updates_by_any_key(key: Any) -> None:
    node = begun({"m": {key: [1]}, "n": 0})
    _, node = diff.update(CODEC, node, append={("m", key): [2]}, set={}, delete=())
    assert same(value_of(CODEC, node), {"m": {key: [1, 2]}, "n": 0})
    _, node = diff.update(CODEC, node, append={}, set={("m", key): "x"}, delete=())
    assert same(value_of(CODEC, node), {"m": {key: "x"}, "n": 0})
    _, node = diff.update(CODEC, node, append={}, set={}, delete=[("m", key)])
    assert same(value_of(CODEC, node), {"m": {}, "n": 0})


# -- damage ----------------------------------------------------------------------------------------


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_random_bytes_are_no_delta(data: bytes) -> None:
    with contextlib.suppress(CorruptionError):
        delta.parse(data)


@given(st.data())
@settings(max_examples=50)
def test_a_delta_that_does_not_fit_is_corruption(data: st.DataObject) -> None:
    state = data.draw(strategies.states())
    paths = st.lists(st.sampled_from(("messages", "files", 0, 1, "content", "a.py")), max_size=3).map(tuple)
    op = Op(
        data.draw(st.sampled_from((SET, DELETE, APPEND, SPLICE, EDIT))),
        data.draw(paths),
        CODEC.encode(data.draw(strategies.values(max_leaves=3))),
        data.draw(st.integers(0, 5)),
        data.draw(st.integers(0, 5)),
    )
    for damaged in ([op], [Op(9, ("messages",))], [Op(SET, ("messages", -1), b"\xc0")], [Op(DELETE, ())]):
        with contextlib.suppress(CorruptionError):
            delta.apply_stored(begun(state), damaged)


def made_up(tag: int, *parts: Any) -> bytes:
    """An extension that no codec writes."""
    return ormsgpack.packb(ormsgpack.Ext(tag, ormsgpack.packb(parts[0] if len(parts) == 1 else list(parts))))


ODD_CONTAINERS = {
    "an object that is a number": made_up(OBJECT, 1),
    "an object of three": made_up(OBJECT, ["P", 1], {"a": 1}, 2),
    "an object without a name": made_up(OBJECT, 5, {"a": 1}),
    "an object with a list of fields": made_up(OBJECT, ["P", 1], [1, 2]),
    "an object in place of fields": made_up(OBJECT, ["P", 1], ormsgpack.Ext(OBJECT, b"\x92\x92\xa1P\x01\x80")),
    "a dict that is a number": made_up(MAP, 1),
    "a key without a value": made_up(MAP, [1, 2, 3]),
    "a key that is a list": made_up(MAP, [[1], 2]),
}


@pytest.mark.parametrize("name", ODD_CONTAINERS)
def test_made_up_containers_are_corruption_wherever_somebody_looks(name: str) -> None:
    node = begun({"odd": 0})
    stored = delta.apply_stored(node, [Op(SET, ("odd",), ODD_CONTAINERS[name])])
    assert stored is not None
    for op in (Op(SET, ("odd", "a"), b"\x01"), Op(DELETE, ("odd", 1)), Op(APPEND, ("odd", "a"), b"\x90"), Op(ORDER, ("odd",))):
        with pytest.raises(CorruptionError):
            delta.apply_stored(stored, [op])


@pytest.mark.parametrize(("a", "b"), [(-1, 0), (0, -1), (-3, 5), (5, -300)])
def test_numbers_below_zero_are_corruption(a: int, b: int) -> None:
    node = begun({"list": [1, 2, 3], "text": "x" * 300})
    for op in (Op(SPLICE, ("list",), b"\x90", a, b), Op(EDIT, ("text",), b"y", a, b)):
        with pytest.raises(CorruptionError):
            delta.apply_stored(node, [op])


def test_an_item_that_was_opened_is_whole_again() -> None:
    state = {"list": [{"k": "x" * 300, "n": 0}, 1, 2]}
    node = begun(state)
    for number in range(50):
        state["list"][0]["n"] = number + 1  # type: ignore[index]
        dumped, node = changed(node, state)
        assert len(dumped) < 120
        state["list"].append(number)
        dumped, node = changed(node, state)
        assert len(dumped) < 120
    assert to_bytes(open_node(to_bytes(node))) == CODEC.encode(state)
