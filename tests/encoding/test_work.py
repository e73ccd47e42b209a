"""How much work a change is: it grows with what there is and with what is changed, never with the product of both.

Work is counted in calls of functions, Python's and C's, which are the same in every run and on every machine.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import savegame
from savegame.encoding import delta, diff
from savegame.encoding.codec import Codec
from savegame.encoding.delta import APPEND, DELETE, SET, SPLICE, Op
from savegame.encoding.json_form import from_text, to_text
from savegame.encoding.tree import Node, to_bytes, value_of
from savegame.present.diffs import changes_between

CODEC = Codec()
SMALL, LARGE = 500, 2000


def work(function: Callable[[], Any]) -> int:
    """How many calls it takes."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def rows(count: int) -> list[Any]:
    return [{"id": number, "flag": False, "text": f"row {number} " * 20} for number in range(count)]


def begun(value: Any) -> Node:
    return diff.difference(CODEC, None, value)[1]


def replaying(state: Any, *steps: list[Op]) -> Callable[[], Any]:
    """A load: the whole state, then the deltas, then the value."""
    dumps = [delta.dump([Op(SET, (), CODEC.encode(state))]), *map(delta.dump, steps)]
    return lambda: value_of(CODEC, delta.replay(dumps) or b"")


def updating(state: Any, **change: Any) -> Callable[[], Any]:
    node = begun(state)
    return lambda: to_bytes(diff.update(CODEC, node, **{"append": {}, "set": {}, "delete": [], **change})[1])


def every_second_flag(count: int) -> Callable[[], Any]:
    return replaying(rows(count), [Op(SET, (number, "flag"), b"\xc3") for number in range(0, count, 2)])


def a_flag_per_delta(count: int) -> Callable[[], Any]:
    places = random.Random(1).choices(range(count), k=count)
    return replaying(rows(count), *([Op(SET, (place, "flag"), b"\xc3")] for place in places))


def inserts_anywhere(count: int) -> Callable[[], Any]:
    places = [random.Random(number).randrange(count + number) for number in range(count)]
    return replaying(rows(count), [Op(SPLICE, (), CODEC.encode([1, 2]), place, 1) for place in places])


def deletes_anywhere(count: int) -> Callable[[], Any]:
    return replaying(rows(count), [Op(DELETE, (random.Random(left).randrange(left),)) for left in range(count, 0, -1)])


def deletes_and_inserts_at_both_ends(count: int) -> Callable[[], Any]:
    pairs = ([Op(DELETE, (count - 1,)), Op(SPLICE, (), b"\x91\x01", 0, 0)] for _ in range(count))
    return replaying(rows(count), *pairs)


def appends_and_flags(count: int) -> Callable[[], Any]:
    item = CODEC.encode([{"flag": False}])
    steps = ([Op(APPEND, ("m",), item)] * 2 + [Op(SET, ("m", number, "flag"), b"\xc3")] for number in range(count))
    return replaying({"m": []}, *([op] for ops in steps for op in ops))


def appends_to_two_lists_in_turn(count: int) -> Callable[[], Any]:
    return replaying({"a": [], "b": []}, *([Op(APPEND, (name,), b"\x91\x01")] for _ in range(count) for name in "aab"))


def appends_of_large_items(count: int) -> Callable[[], Any]:
    def grow() -> None:
        node = begun({"m": []})
        for _ in range(count // 4):
            _, node = diff.update(CODEC, node, append={"m": ["x" * 70_000]}, set={}, delete=[])

    return grow


def nested_lists(count: int) -> Callable[[], Any]:
    side = math.isqrt(count)
    table = [[{"flag": False, "pad": "y" * 50} for _ in range(side)] for _ in range(side)]
    cells = [(row, column) for row in range(side) for column in range(side)]
    random.Random(2).shuffle(cells)
    return replaying(table, [Op(SET, (*cell, "flag"), b"\xc3") for cell in cells])


def many_places_in_a_dict(count: int) -> Callable[[], Any]:
    state = {"d": {f"k{number}": number for number in range(4 * count)}}
    sets = {("d", f"k{3 * number}"): "x" for number in range(count)} | {("d", f"new {number}"): 1 for number in range(count)}
    return updating(state, set=sets, delete=[("d", f"k{3 * number + 1}") for number in range(count)])


def many_keys_that_are_no_text(count: int) -> Callable[[], Any]:
    state = {"d": {(number, "k"): number for number in range(count)}}
    return updating(state, set={("d", (number, "k")): 0 for number in range(0, count, 2)}, delete=[("d", (1.0, "k"))])


def many_places_in_a_list(count: int) -> Callable[[], Any]:
    places = random.Random(3).sample(range(count), count // 2)
    return updating({"rows": rows(count)}, set={("rows", place, "flag"): True for place in places})


def many_lists(count: int) -> Callable[[], Any]:
    return updating({f"k{number}": [1] for number in range(count)}, append={f"k{number}": [2] for number in range(count)})


def edited(count: int) -> tuple[Any, Any]:
    """Rows, and the same after flags were flipped, and some were taken out and put in."""
    after = [row | {"flag": number % 2 == 0} for number, row in enumerate(rows(count)) if number % 7]
    return {"rows": rows(count)}, {
        "rows": [row for old in after for row in ([old, {"new": 1}] if old["id"] % 5 == 0 else [old])]
    }


def saving(count: int) -> Callable[[], Any]:
    old, new = edited(count)
    node = begun(old)
    return lambda: diff.difference(CODEC, node, new)


def saving_a_dict_in_another_order(count: int) -> Callable[[], Any]:
    node = begun({f"k{number}": number for number in range(count)})
    return lambda: diff.difference(CODEC, node, {f"k{number}": number for number in range(count + 50, 50, -1)})


def what_people_see(count: int) -> Callable[[], Any]:
    return lambda: changes_between(CODEC, *edited(count))


def the_text_form(count: int) -> Callable[[], Any]:
    old, new = edited(count)
    body = b"\0\0" + delta.dump(diff.difference(CODEC, begun(old), new)[0])
    return lambda: from_text("delta", to_text("delta", body))


def pruning(count: int) -> Callable[[], Any]:
    thread = savegame.open("memory:").thread("t")
    thread.save({"rows": rows(20)})
    made = [thread.update(set={("rows", number % 20, "flag"): number}) for number in range(count // 4)]
    return lambda: thread.remove(*made[::2])


def catching_up(count: int) -> Callable[[], Any]:
    """Of what another process saved, deltas are applied to the state that is in the cache."""
    node = begun({"rows": rows(count)})
    return lambda: delta.apply_stored(node, [Op(SET, ("rows", number, "flag"), b"\xc3") for number in range(count)])


CASES = [
    every_second_flag, a_flag_per_delta, inserts_anywhere, deletes_anywhere, deletes_and_inserts_at_both_ends,
    appends_and_flags, appends_to_two_lists_in_turn, appends_of_large_items, nested_lists, many_places_in_a_dict,
    many_keys_that_are_no_text, many_places_in_a_list, many_lists, saving, saving_a_dict_in_another_order, what_people_see,
    the_text_form, pruning, catching_up,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_four_times_as_much_is_about_four_times_the_work(case: Callable[[int], Callable[[], Any]]) -> None:
    small, large = work(case(SMALL)), work(case(LARGE))
    assert large < 1.5 * (LARGE // SMALL) * small


@given(
    st.integers(1, 1500),
    st.lists(
        st.tuples(st.sampled_from(("set", "inside", "delete", "insert", "append")), st.floats(0, 1)), min_size=1, max_size=30
    ),
    st.integers(1, 60),
    st.booleans(),
)
@settings(max_examples=60)
def test_any_edits_of_a_list(count: int, pattern: list[tuple[str, float]], times: int, apart: bool) -> None:
    """A pattern of edits over and over, in one delta or in many; each place is chosen for the list as it then is."""
    ops = []
    model: list[Any] = [{"n": number} for number in range(count)]
    for number, (verb, where) in enumerate(pattern * times):
        place = int(where * max(len(model) - 1, 0))
        if verb == "append" or not model:
            ops.append(Op(APPEND, (), CODEC.encode([{"n": number}])))
            model.append({"n": number})
        elif verb == "insert":
            ops.append(Op(SPLICE, (), CODEC.encode([{"n": -number}] * 3), place, 1))
            model[place : place + 1] = [{"n": -number} for _ in range(3)]
        elif verb == "delete":
            ops.append(Op(DELETE, (place,)))
            del model[place]
        else:
            model[place] = {"n": number}
            ops.append(
                Op(SET, (place, "n"), CODEC.encode(number))
                if verb == "inside"
                else Op(SET, (place,), CODEC.encode(model[place]))
            )
    found: list[Any] = []
    load = replaying([{"n": number} for number in range(count)], *([op] for op in ops) if apart else [ops])
    steps = work(lambda: found.append(load()))
    assert found == [model]
    assert steps < 20 * count + 120 * len(ops) + 1000
