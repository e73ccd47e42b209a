"""save, update, modify: what is written, and who is refused."""

from __future__ import annotations

import copy
import datetime as dt
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pydantic
import pytest
from homes import Home

import savegame
from savegame import AlreadyExistsError, CheckpointNotFound, ConflictError, InvalidInputError, InvalidState, Status
from savegame.model import ThreadKey
from savegame.testing import same
from savegame.thread import Thread
from savegame.vault import Vault
from tests.descriptors import needs_listing, open_under


@pytest.mark.requirement("A01", "A02", "A04", "A06", "A07", "A26", "A61", "A64", "A66", "A85", "B02", "B05", "B11", "B15")
@pytest.mark.requirement("B37", "B40", "B43", "B44", "B53", "B57", "B58", "B65", "B67", "C01", "C03", "C04", "C05a", "C06a")
@pytest.mark.requirement("C15", "C26", "C27", "D25b", "E02f", "E03", "E05", "E16", "E17", "E31", "E32", "E33a", "W07", "X11")
@pytest.mark.requirement("X24", "Z46")
def test_the_first_steps(vault: Vault) -> None:
    thread = vault.thread("t", agent="helper")
    assert (thread.id, thread.head, thread.step) == ("t", None, None)
    assert thread.latest() is None
    assert thread.state() is None
    assert list(thread.history()) == []
    before = dt.datetime.now(dt.UTC)
    first = thread.save({"n": 1}, label="start", tags=["a", "b", "a"], metadata={"user": "u1", "deep": (1, 2)})
    assert (first.step, first.parent_id, first.thread_id, first.agent_id) == (1, None, "t", "helper")
    assert (first.label, first.tags, first.metadata) == ("start", ("a", "b"), {"user": "u1", "deep": (1, 2)})
    assert (first.kind, first.status, first.seq) == ("manual", "in_progress", 1)
    assert before - dt.timedelta(seconds=1) <= first.created_at <= dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    assert first.size_bytes > 0
    assert (len(bytes.fromhex(first.digest)), len(bytes.fromhex(first.id))) == (32, 16)
    second = thread.save({"n": 2})
    assert (second.step, second.parent_id) == (2, first.id)
    assert (thread.head, thread.step) == (second.id, 2)
    latest = thread.latest()
    assert latest == second
    assert latest is not None
    assert latest.state == {"n": 2}


@pytest.mark.requirement("A01", "A02", "A04", "A05", "A07", "A08", "A55", "A61", "A62", "A74", "A80", "B08", "B10", "B12")
@pytest.mark.requirement("B41", "B50", "B56", "C01", "C02", "C03", "C04", "C05a", "C06a", "C07", "C09d", "C26", "C31", "C32")
@pytest.mark.requirement(
    "D25b", "E01a", "E01b", "E01d", "E01e", "E01f", "E01g", "E01h", "E01i", "E01k", "E02d", "E02e", "E16", "E29"
)
@pytest.mark.requirement("E32", "E33e", "W03", "X11", "X22", "Z11")
def test_every_detail_comes_back(vault: Vault) -> None:
    thread = vault.thread("t")
    given: dict[str, Any] = {
        "label": "l", "description": "d", "tags": ["x"], "metadata": {"k": [1]}, "kind": "tool_call",
        "status": "failed(no luck)", "iteration": 7, "tokens_used": 100, "cost": 0.25, "resume_hint": "go on", "id": "my-id",
    }  # fmt: skip
    for cp in (thread.save(None, **given), thread.load("my-id"), next(iter(thread.history()))):
        assert (cp.label, cp.description, cp.tags, cp.metadata) == ("l", "d", ("x",), {"k": [1]})
        assert (cp.kind, cp.status, cp.status.reason) == ("tool_call", "failed", "no luck")
        assert repr(cp.status) == "failed(no luck)"
        assert (cp.iteration, cp.tokens_used, cp.cost, cp.resume_hint, cp.id) == (7, 100, 0.25, "go on", "my-id")


@pytest.mark.requirement("E28", "E30", "Z66")
@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "x" * 65}, {"status": "nonsense"}, {"status": "completed(why)"}, {"iteration": -1}, {"iteration": True},
        {"iteration": 1.5}, {"tokens_used": "5"}, {"cost": -1}, {"cost": float("nan")}, {"cost": float("inf")},
        {"iteration": 2**63},
        {"label": ""}, {"label": "x" * 513}, {"label": 5}, {"tags": "text"}, {"tags": [""]}, {"tags": [1]}, {"id": ""},
        {"tags": 5}, {"id": "a\0b"},
        {"id": "x" * 513}, {"id": 5}, {"description": 5}, {"resume_hint": b"x"}, {"metadata": {"f": print}},
        {"metadata": {"s": "\ud800"}},
        {"description": "\ud800"}, {"resume_hint": "\ud800"}, {"status": "failed(\ud800)"}, {"label": "\ud800"},
        {"tags": ["\ud800"]},
        {"expect": ""}, {"expect": 5}, {"expect": "a\0b"},
    ],
    ids=repr,
)  # fmt: skip
def test_wrong_details_are_refused_and_nothing_is_saved(vault: Vault, wrong: dict[str, Any]) -> None:
    thread = vault.thread("t")
    thread.save(1)
    for handle in (thread, vault.thread("fresh")):
        with pytest.raises(InvalidInputError):
            handle.save(2, **wrong)
    assert len(list(thread.history(branches=True))) == 1
    assert [info.id for info in vault.threads()] == ["t"]


@pytest.mark.requirement("B14", "B18", "B20", "B34", "B38", "C14", "D43d", "Z13", "Z15", "Z23")
def test_an_unkeepable_state_saves_nothing(vault: Vault) -> None:
    thread = vault.thread("t")
    with pytest.raises(InvalidState) as caught:
        thread.save({"messages": [0, 1, 2, {"content": print}]})
    assert caught.value.path == "messages[3].content"
    assert thread.latest() is None
    assert list(vault.threads()) == []
    thread.save({"messages": [{"content": "x" * 500}]})
    with pytest.raises(InvalidState) as caught:
        thread.save({"messages": [{"content": "x" * 500, "more": {"deep": [lambda: 1]}}]})
    assert caught.value.path == "messages[0].more.deep[0]"
    assert thread.step == 1


def test_none_is_a_state(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save(None)
    latest = vault.thread("t").latest()
    assert latest is not None
    assert latest.state is None
    with pytest.raises(InvalidInputError):
        thread.update(set={"a": 1})
    thread.save({})
    thread.update(set={"a": 1})
    assert thread.state() == {"a": 1}


@pytest.mark.requirement("A03", "A31", "E21")
def test_returned_objects_are_copies(vault: Vault) -> None:
    thread = vault.thread("t")
    state: dict[str, Any] = {"list": [1, {"a": 1}], "meta": {}}
    metadata = {"tags": ["m"]}
    saved = thread.save(state, metadata=metadata)
    state["list"].append("outside")
    metadata["tags"].append("outside")
    saved.state["list"][1]["a"] = "outside"
    saved.metadata["tags"].append("outside")
    found = thread.latest()
    assert found is not None
    assert found.state == {"list": [1, {"a": 1}], "meta": {}}
    assert found.metadata == {"tags": ["m"]}
    found.state.clear()
    assert thread.state() == {"list": [1, {"a": 1}], "meta": {}}
    thread.save(thread.state() | {"n": 1})
    assert thread.state("head~1") == {"list": [1, {"a": 1}], "meta": {}}


def test_a_change_in_place_is_saved(vault: Vault) -> None:
    thread = vault.thread("t")
    state: dict[str, Any] = {"messages": [{"content": "x" * 300, "n": 0}]}
    for number in range(5):
        state["messages"][0]["n"] = number
        state["messages"].append({"number": number})
        thread.save(state)
    assert [len(thread.state(step)["messages"]) for step in range(1, 6)] == [2, 3, 4, 5, 6]
    assert [thread.state(step)["messages"][0]["n"] for step in range(1, 6)] == [0, 1, 2, 3, 4]


@pytest.mark.requirement("B06", "B45", "B59")
def test_an_unchanged_state_costs_a_metadata_row(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"big": "x" * 4000, "list": list(range(1000))})
    before = vault.stats().sizes["frames"]
    for _ in range(10):
        thread.save({"big": "x" * 4000, "list": list(range(1000))})
    assert vault.stats().sizes["frames"] - before < 10 * (350 if vault.store.readable else 200)
    assert thread.step == 11


# -- update ----------------------------------------------------------------------------------------


def test_update(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.update(append={"messages": ["a"]}, set={"plan": {"steps": [1]}})
    thread.update(append={"messages": ["b", "c"], ("plan", "steps"): [2]}, set={("files", "a.py"): "src", "n": 1})
    thread.update(set={("messages", 0): "A", ("plan", "steps", 1): 9}, delete=["n", ("plan", "steps", 0)])
    cp = thread.update(delete="plan", label="end")
    assert thread.state() == {"messages": ["A", "b", "c"], "files": {"a.py": "src"}}
    assert (cp.label, cp.step) == ("end", 4)
    assert cp.state == thread.state()
    assert thread.state(2) == {"messages": ["a", "b", "c"], "plan": {"steps": [1, 2]}, "files": {"a.py": "src"}, "n": 1}


@dataclass
class Needs:
    n: int
    word: str = "default"


class ModelNeeds(pydantic.BaseModel):
    n: int
    word: str = "default"


class StructNeeds(msgspec.Struct):
    n: int
    word: str = "default"


@pytest.mark.parametrize("cls", [Needs, ModelNeeds, StructNeeds])
def test_a_field_that_an_object_needs_is_not_deleted(cls: type, vault: Vault) -> None:
    vault.register(cls)
    thread = vault.thread("t")
    thread.save({"inner": cls(n=1, word="other")})
    thread.update(delete=[("inner", "word")])
    assert thread.state() == {"inner": cls(n=1)}
    with pytest.raises(InvalidInputError, match=r"inner\.n.* cannot be deleted"):
        thread.update(delete=[("inner", "n")])
    assert thread.state() == {"inner": cls(n=1)}
    assert thread.step == 2


@pytest.mark.requirement("B20", "B34", "D25g", "D26", "D43d", "D85", "E01d", "E29", "Z13")
def test_a_kind_is_any_short_text(vault: Vault) -> None:
    """The kinds that mean something come back as members of Kind."""
    thread = vault.thread("t")
    thread.save(1, kind="tool_call")
    thread.save(2, kind="periodic")
    thread.save(3, kind="ü" * 64)
    kinds = [checkpoint.kind for checkpoint in thread.history(newest_first=False)]
    assert kinds == ["tool_call", "periodic", "ü" * 64]
    assert kinds[0] is savegame.Kind.TOOL_CALL
    for wrong in ("", "x" * 65, "a\0b", "\ud800", 5, None):
        with pytest.raises(InvalidInputError, match="a kind"):
            thread.save(4, kind=wrong)  # type: ignore[arg-type]
    assert thread.step == 3


@pytest.mark.parametrize("place", ["kind", ("kind",), ("kind", "name", "more"), 5, ("", "name"), ("kind", 5)])
def test_a_record_has_a_kind_and_a_name(place: Any, vault: Vault) -> None:
    with pytest.raises(InvalidInputError):
        vault.thread("t").put_records({place: 1})


def test_an_update_that_does_not_fit_saves_nothing(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"text": "x", "items": [1]})
    misfits: list[dict[str, Any]] = [
        {"append": {"text": [1]}},
        {"set": {("items", 5): 1}},
        {"delete": ["missing"]},
        {"append": {"items": "abc"}},
        {"set": {"good": 1}, "delete": ["missing"]},
        {"append": ["items"]},
        {"set": "text"},
        {"set": [], "id": "chosen"},
        {"delete": 5},
        {"delete": [["text"]]},
        {"delete": [("items", [0])], "id": "chosen"},
    ]
    for misfit in misfits:
        with pytest.raises(InvalidInputError):
            thread.update(**misfit)
    assert thread.state() == {"text": "x", "items": [1]}
    assert len(list(thread.history(branches=True))) == 1


def test_update_applies_to_the_head_as_it_is(vault: Vault) -> None:
    one, other = vault.thread("t"), vault.thread("t")
    one.update(append={"l": [1]})
    other.update(append={"l": [2]})
    one.update(append={"l": [3]})
    assert one.state() == {"l": [1, 2, 3]}


# -- who is refused --------------------------------------------------------------------------------


def heads(vault: Vault) -> tuple[Thread, Thread, str, str]:
    """Two handles that read the same head; the second moved it."""
    one, other = vault.thread("t"), vault.thread("t")
    first = one.save({"n": 1})
    other.latest()
    second = other.save({"n": 2})
    return one, other, first.id, second.id


@pytest.mark.requirement("Z15")
def test_a_save_that_is_behind_is_refused_with_both_heads(vault: Vault) -> None:
    one, _, first, second = heads(vault)
    with pytest.raises(ConflictError) as caught:
        one.save({"n": 3})
    assert (caught.value.expected, caught.value.found) == (first, second)
    with pytest.raises(ConflictError):
        one.save({"n": 3})
    assert len(list(one.history(branches=True))) == 2
    assert one.state() == {"n": 2}
    assert one.save({"n": 3}).parent_id == second


def test_what_a_handle_remembers(vault: Vault) -> None:
    remembering: dict[str, Callable[[Thread], object]] = {
        "latest": lambda handle: handle.latest(),
        "state": lambda handle: handle.state(),
        "save": lambda handle: handle.save(0, force=True),
        "update": lambda handle: handle.update(set={"a": 1}),
        "rewind": lambda handle: handle.rewind("head~1"),
        "modify": lambda handle: handle.modify(lambda state: state),
    }
    forgetting: dict[str, Callable[[Thread], object]] = {
        "nothing": lambda handle: None,
        "load": lambda handle: handle.load("head"),
        "state of a ref": lambda handle: handle.state("head"),
        "history": lambda handle: list(handle.history()),
        "label": lambda handle: handle.label("head", "x"),
        "delete": lambda handle: handle.delete(),
    }
    for number, (name, act) in enumerate([*remembering.items(), *forgetting.items()]):
        vault.thread(f"t{number}").save({"n": 1})
        vault.thread(f"t{number}").save({"n": 2})
        handle = vault.thread(f"t{number}")
        act(handle)
        vault.thread(f"t{number}").update(set={"elsewhere": 1}) if name != "save" else vault.thread(f"t{number}").save(5)
        if name in remembering:
            with pytest.raises(ConflictError):
                handle.save("mine")
        else:
            handle.save("mine")


def test_an_empty_thread_that_was_read_is_expected_to_be_empty(vault: Vault) -> None:
    one = vault.thread("t")
    assert one.latest() is None
    other = vault.thread("t").save(1)
    with pytest.raises(ConflictError) as caught:
        one.save(2)
    assert (caught.value.expected, caught.value.found) == (None, other.id)


def test_a_deleted_thread_is_a_conflict_for_who_had_read_it(vault: Vault) -> None:
    one = vault.thread("t")
    first = one.save(1)
    vault.thread("t").delete()
    with pytest.raises(ConflictError) as caught:
        one.save(2)
    assert (caught.value.expected, caught.value.found) == (first.id, None)
    assert one.latest() is None
    assert one.save(2).step == 1


def test_expect_and_force(vault: Vault) -> None:
    one, other, first, second = heads(vault)
    for expected in (first, one.load(first), "no such checkpoint"):
        with pytest.raises(ConflictError):
            other.save({"n": 9}, expect=expected)
        with pytest.raises(ConflictError):
            other.update(set={"n": 9}, expect=expected)
    third = one.save({"n": 3}, expect=second)
    assert third.parent_id == second
    assert one.update(set={"n": 4}, expect=third).step == 4
    assert other.save({"n": 5}, force=True).step == 5
    with pytest.raises(ConflictError):
        vault.thread("empty").save(1, expect="something")
    assert vault.thread("empty").latest() is None


@pytest.mark.requirement("A05", "A34", "A36", "A54", "B29", "C01", "C12", "E09", "E23", "X07", "Z05", "Z10", "Z44")
def test_retries_by_id(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"l": [0]})
    first = thread.save({"l": [0, 1]}, id="retry-1", metadata={"m": 1})
    again = vault.thread("t").save({"l": [0, 1]}, id="retry-1", metadata={"m": 1})
    assert (again.id, again.seq, again.digest) == (first.id, first.seq, first.digest)
    assert again.state == {"l": [0, 1]}
    second = thread.update(append={"l": [2]}, id="retry-2")
    assert thread.update(append={"l": [2]}, id="retry-2") == second
    assert thread.state() == {"l": [0, 1, 2]}
    thread.update(append={"l": [3]})
    assert thread.update(append={"l": [2]}, id="retry-2") == second
    assert vault.thread("t").save({"l": [0, 1]}, id="retry-1", metadata={"m": 1}) == first
    assert thread.state() == {"l": [0, 1, 2, 3]}
    acts: list[Callable[[], object]] = [
        lambda: thread.save({"l": [9]}, id="retry-1"),
        lambda: thread.save({"l": [0, 1]}, id="retry-1"),
        lambda: thread.update(append={"l": [9]}, id="retry-2"),
        lambda: vault.thread("other").save({"l": [0, 1]}, id="retry-1"),
    ]
    for act in acts:
        with pytest.raises(AlreadyExistsError):
            act()
    assert vault.thread("other").latest() is None
    assert len(list(thread.history(branches=True))) == 4


def test_a_retry_after_an_unrelated_prune(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"l": [0]})
    saved = thread.save({"l": [0, 1]}, id="retry")
    thread.prune(keep=1)
    assert thread.save({"l": [0, 1]}, id="retry") == saved
    thread.update(append={"l": [2]}, id="relative")
    thread.prune(keep=1)
    assert thread.update(append={"l": [2]}, id="relative").id == "relative"
    assert thread.state() == {"l": [0, 1, 2]}


def test_parent_branches(vault: Vault) -> None:
    thread = vault.thread("t")
    one = thread.save(1)
    two = thread.save(2)
    three = thread.save(3, parent=one)
    assert (three.parent_id, three.step) == (one.id, 2)
    assert [cp.id for cp in thread.history()] == [three.id, one.id]
    assert [cp.id for cp in thread.history(branches=True)] == [three.id, two.id, one.id]
    four = vault.thread("t").save(4, parent=2)
    assert four.parent_id == three.id
    five = thread.update(parent=thread.save({"l": []}, parent=one), append={"l": [5]})
    assert five.state == {"l": [5]}
    four = thread.rewind(four)
    assert thread.load(two.id).state == 2
    for wrong in ("nothing", 99, "head~9"):
        with pytest.raises(CheckpointNotFound):
            thread.save(5, parent=wrong, force=True)
    with pytest.raises(ConflictError):
        thread.save(5, parent=one, expect=two)
    assert thread.save(5, parent=one, expect=four).step == 2


def test_modify(vault: Vault) -> None:
    thread, other = vault.thread("t"), vault.thread("t")
    seen: list[Any] = []

    def change(state: Any) -> Any:
        seen.append(state)
        if len(seen) == 2:
            other.update(set={"other": True})
        return {"n": (state or {}).get("n", 0) + 1, **({"other": True} if state and "other" in state else {})}

    assert thread.modify(change, label="first").label == "first"
    thread.modify(change)
    assert seen == [None, {"n": 1}, {"n": 1, "other": True}]
    assert thread.state() == {"n": 2, "other": True}
    with pytest.raises(ZeroDivisionError):
        thread.modify(lambda state: 1 / 0)


# -- at once ---------------------------------------------------------------------------------------


def together(count: int, act: Callable[[int], None]) -> None:
    """Run something in several threads; what they raise is raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            act(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "still running: a deadlock"
    if errors:
        raise errors[0]


@pytest.mark.requirement("A24", "A87", "B05", "B38", "B40", "B67", "X24", "Z15")
def test_updates_of_many_threads_are_all_there_once(opened: Callable[..., Vault]) -> None:
    vault = opened(durability="process")

    def act(number: int) -> None:
        handle = vault.thread("t")
        for index in range(25):
            handle.update(append={"items": [(number, index)]})

    together(6, act)
    items = vault.thread("t").state()["items"]
    assert sorted(items) == [(number, index) for number in range(6) for index in range(25)]
    for number in range(6):
        assert [index for owner, index in items if owner == number] == list(range(25))
    line = list(vault.thread("t").history(newest_first=False, branches=True))
    assert [entry.parent_id for entry in line] == [None, *(entry.id for entry in line[:-1])]
    assert vault.verify().ok


def test_of_saves_with_one_expectation_one_wins(vault: Vault) -> None:
    first = vault.thread("t").save(0)
    outcomes: list[str] = []

    def act(number: int) -> None:
        try:
            vault.thread("t").save(number, expect=first)
            outcomes.append("won")
        except ConflictError:
            outcomes.append("lost")

    together(8, act)
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns very often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_readers_see_whole_states_while_others_append(opened: Callable[..., Vault]) -> None:
    vault = opened(durability="process")
    vault.thread("t").save({"n": 0, "items": [], "deep": {"items": []}})
    done = threading.Event()

    def act(number: int) -> None:
        handle = vault.thread("t")
        if number == 0:
            try:
                for count in range(1, 801):
                    handle.update(set={"n": count}, append={"items": [count], ("deep", "items"): ["x" * 50]})
            finally:
                done.set()
            return
        while not done.is_set():
            cp = handle.latest()
            assert cp is not None
            state = cp.state
            assert state["items"] == list(range(1, state["n"] + 1)), "a reader saw half a save"
            assert len(state["deep"]["items"]) == state["n"]

    together(4, act)


def test_modify_keeps_its_tags_when_somebody_was_quicker(vault: Vault) -> None:
    thread, other = vault.thread("t"), vault.thread("t")
    thread.save(0)
    seen: list[int] = []

    def change(state: int) -> int:
        seen.append(state)
        if len(seen) == 1:
            other.save(5)
        return state + 1

    assert thread.modify(change, tags=(tag for tag in "ab")).tags == ("a", "b")
    assert (seen, thread.state()) == ([0, 5], 6)


def test_modify_counts_right(opened: Callable[..., Vault]) -> None:
    vault = opened(durability="process")

    def act(number: int) -> None:
        for _ in range(10):
            vault.thread("t").modify(lambda state: (state or 0) + 1)

    together(4, act)
    assert vault.thread("t").state() == 40
    assert same(list(range(40, 0, -1)), [cp.load().state for cp in vault.thread("t").history()])


@pytest.mark.requirement("B01", "D01", "W06")
@pytest.mark.parametrize("value", ["", "a\0b", "x" * 513, 5, None, "\ud800"])
def test_ids_that_are_refused(vault: Vault, value: Any) -> None:
    with pytest.raises(InvalidInputError):
        vault.thread(value)
    if value is not None:
        with pytest.raises(InvalidInputError):
            vault.thread("t", agent=value)
    vault.thread("t").save(1)
    with pytest.raises(InvalidInputError):
        vault.thread("t").fork(value)


@pytest.mark.requirement("A40", "D34", "E07", "Z01")
def test_hostile_ids_are_each_their_own_thread(vault: Vault) -> None:
    from savegame.testing.hostile import HOSTILE_IDS

    for number, name in enumerate(HOSTILE_IDS):
        vault.thread(name).save({"number": number}, label=name, tags=[name], id=name)
    for number, name in enumerate(HOSTILE_IDS):
        thread = vault.thread(name)
        assert thread.state() == {"number": number}
        assert thread.load(name).thread_id == name
        assert vault.load(name).state == {"number": number}
        assert [cp.label for cp in thread.history()] == [name]
    assert {info.id for info in vault.threads()} == set(HOSTILE_IDS)
    assert [info.id for info in vault.threads(limit=None)] == sorted(HOSTILE_IDS, key=lambda name: name.encode())
    for name in HOSTILE_IDS[::2]:
        assert vault.thread(name).delete()
    assert {info.id for info in vault.threads()} == set(HOSTILE_IDS[1::2])
    assert vault.verify().ok


def test_public_names() -> None:
    for name in savegame.__all__:
        assert hasattr(savegame, name)


# -- odd values and odd moments --------------------------------------------------------------------


def chat(vault: Vault) -> tuple[Thread, list[dict[str, Any]]]:
    """A thread with 200 messages, some of them saved at once."""
    messages = [{"role": "user", "content": f"message {number} " * 5} for number in range(200)]
    thread = vault.thread("chat")
    thread.save({"messages": messages[:-1]})
    thread.update(append={"messages": messages[-1:]})
    return thread, [dict(message) for message in messages]


@pytest.mark.parametrize("bad", [print, "\ud800"], ids=["a function", "a lone surrogate"])
def test_a_message_that_cannot_be_kept_is_named_by_its_place_in_the_conversation(vault: Vault, bad: Any) -> None:
    thread, messages = chat(vault)
    changed = [dict(message) for message in messages]
    changed[150]["content"] = bad
    shorter = [dict(message) for message in messages]
    del shorter[3]
    shorter[100]["content"] = bad
    more = [*messages, {"role": "user", "content": "fine"}, {"role": "user", "content": bad}]
    for state, place in ((changed, 150), (shorter, 100), (more, 201)):
        with pytest.raises(InvalidState) as raised:
            thread.save({"messages": state})
        assert raised.value.path == f"messages[{place}].content"
    with pytest.raises(InvalidState) as raised:
        thread.update(append={"messages": [{"content": "fine"}, {"content": bad}]})
    assert raised.value.path == "messages[201].content"
    assert same(thread.state(), {"messages": messages})


def test_keys_that_only_look_alike_stay_two(opened: Callable[..., Vault]) -> None:
    state = {Decimal("NaN"): 1, Decimal("NaN"): 2, "k": 0}
    vault = opened()
    thread = vault.thread("t")
    assert len(thread.save(state).state) == 3
    assert len(thread.fork("f").state()) == 3
    thread.save({"inside": {**{(float("nan"),): text * 200 for text in "xy"}, "k": 0}})
    with pytest.raises(InvalidInputError, match="a dict with distinct keys"):
        thread.update(set={("inside", "k"): 5})
    thread.prune(keep=1)
    assert len(thread.state()["inside"]) == 3
    assert vault.verify().ok


def test_bytes_of_another_kind_are_refused_also_where_equal_bytes_are(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"d": {"b": b"y"}, "t": (b"z",), "m": b"v"})
    for state in ({"d": {"b": memoryview(b"y")}}, {"t": (bytearray(b"z"),)}, {"m": bytearray(b"v")}):
        with pytest.raises(InvalidState, match="would come back as something else"):
            thread.save({**thread.state(), **state})


def test_an_update_cannot_go_deeper_than_a_save(vault: Vault) -> None:
    value: Any = 0
    for _ in range(240):
        value = (value,)
    thread = vault.thread("t")
    thread.save({})
    for keyword in ({"set": {("p",) * 60: value}}, {"append": {("p",) * 60: [value]}}):
        with pytest.raises(InvalidState, match="nested deeper"):
            thread.update(**keyword)
    thread.update(set={("p", "p"): value})
    thread.prune(keep=1)
    assert same(thread.state(), {"p": {"p": value}})


@pytest.mark.parametrize(
    "details",
    [{"status": 5}, {"status": None}, {"kind": ["x"]}, {"iteration": 10**5000}, {"cost": 10**5000}, {"external_id": "\ud800"}],
    ids=lambda details: next(iter(details)),
)
def test_details_that_are_no_such_thing(vault: Vault, details: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        vault.thread("t").save({}, **details)


def test_a_copied_status_leaves_the_others_alone() -> None:
    failed = Status.failed("the net is down")
    for twin in (copy.deepcopy(failed), copy.copy(failed), pickle.loads(pickle.dumps(failed))):
        assert (twin, twin.reason) == (failed, "the net is down")
    assert Status("failed").reason is None


def test_a_checkpoint_can_be_pickled_and_copied() -> None:
    with savegame.open("memory:") as vault:
        thread = vault.thread("t")
        saved = thread.save({"list": [1]}, label="first", metadata={"by": ["me"]})
        for found in (saved, thread.latest(), thread.load("first")):
            assert found is not None
            twin = pickle.loads(pickle.dumps(found))
            assert (twin, twin.label, twin.metadata, twin.state) == (found, "first", {"by": ["me"]}, {"list": [1]})
            assert twin.load() is twin
            deep = copy.deepcopy(found)
            deep.state["list"].append(2)
            assert (deep, found.state, copy.copy(found)) == (found, {"list": [1]}, found)
        (listed,) = thread.history()
        assert (copy.copy(listed).load().state, copy.deepcopy(listed).load().state) == ({"list": [1]}, {"list": [1]})
        twin = pickle.loads(pickle.dumps(listed))
        assert (twin.id, twin.step) == (saved.id, 1)
        with pytest.raises(InvalidInputError, match="load it from its vault"):
            _ = twin.load().state


def test_an_id_that_was_used_again_is_not_taken_for_the_old_one(in_database: Callable[..., Vault]) -> None:
    mine, theirs = in_database(), in_database()
    mine.thread("t").save({"list": [1, 2]}, id="first")
    theirs.thread("t").delete()
    theirs.thread("t").save({"b": 2}, id="first")
    assert mine.thread("t").state() == {"b": 2}
    with pytest.raises(InvalidInputError):
        mine.thread("t").update(append={"b": [3]})
    mine.thread("t").update(append={"list": [3]})
    assert in_database().thread("t").state() == {"b": 2, "list": [3]}
    assert mine.verify().ok


def test_a_thread_made_anew_keeps_its_new_agent(in_database: Callable[..., Vault]) -> None:
    mine, theirs = in_database(), in_database()
    mine.thread("t", agent="old").save({})
    theirs.thread("t").delete()
    theirs.thread("t", agent="new").save({})
    assert mine.thread("t").update(set={"a": 1}).agent_id == "new"


def test_a_change_is_not_tried_again_where_it_expects_another_head(vault: Vault) -> None:
    calls: list[Any] = []
    vault.thread("t").save({})
    with pytest.raises(ConflictError):
        vault.thread("t").modify(lambda state: calls.append(state) or {}, expect="another")
    assert len(calls) == 1


def test_a_retry_may_name_what_to_delete_in_any_order(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"a": 1, "b": 2, "c": 3})
    names = {"a", "b", "c"}
    first = thread.update(delete=names, id="mine")
    for order in (["c", "a", "b"], ["b", "c", "a"]):
        assert vault.thread("t").update(delete=dict.fromkeys(order).keys(), id="mine") == first


@pytest.mark.parametrize("chosen", ["0123456789abcdef" * 2, "chosen"])
def test_a_chosen_id_that_another_took_meanwhile_is_not_built_upon(in_database: Callable[..., Vault], chosen: str) -> None:
    """One worker's transaction failed, another did the job again under the same id."""
    mine, other = in_database(), in_database()
    mine.thread("t").save({"log": ["begin"]})
    with pytest.raises(ZeroDivisionError), mine.connection():  # noqa: PT012 - the block is what is rolled back
        mine.thread("t").update(append={"log": ["mine"]}, set={"by": "me"}, id=chosen)
        raise ZeroDivisionError
    other.thread("t").update(append={"log": ["theirs"]}, set={"total": 7}, id=chosen)
    assert mine.thread("t").update(append={"log": ["next"]}).state == {"log": ["begin", "theirs", "next"], "total": 7}
    wanted = {"log": ["begin", "mine", "next"], "by": "me", "total": None}
    mine.thread("t").save(wanted, force=True)
    assert other.thread("t").state() == wanted
    assert other.verify().ok


@pytest.mark.parametrize("grown", [0, 2], ids=["as it was", "with a branch"])
@pytest.mark.parametrize("verb", ["append", "set", "save", "parent"])
def test_a_thread_that_was_deleted_and_brought_back_goes_on(
    in_database: Callable[..., Vault], tmp_path: Path, verb: str, grown: int
) -> None:
    """Its head is the same checkpoint as before, with another number: that of another one, if it has grown since."""
    mine, other = in_database(), in_database()
    thread = mine.thread("t")
    for number in range(5):
        thread.update(append={"log": [number]})
    thread.prune(keep=3)
    found = thread.update(append={"log": ["head"]})
    other.export(tmp_path / "exported")
    other.thread("t").delete()
    other.import_(tmp_path / "exported")
    branch = other.thread("t")
    for number in range(grown):
        branch.update(append={"log": [f"branch {number}"]})
    branch.rewind(found.id)
    state = {"log": [*range(5), "head", "next"]}
    if verb == "save":
        thread.save(state)
    elif verb == "parent":
        thread.update(append={"log": ["next"]}, set={}, parent=found.id, expect=found.id)
    else:
        thread.update(append={"log": ["next"]}, **({"set": {"n": 1}} if verb == "set" else {}))
    assert other.thread("t").state()["log"] == state["log"]
    assert thread.state()["log"] == state["log"]
    assert other.verify().ok


class Odd(str):
    """A text that is equal to nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


ODD_VALUES = [mock.ANY, 5, b"manual", ["manual"]]


@pytest.mark.parametrize(
    ("detail", "value"),
    [*itertools.product(("kind", "status"), [*ODD_VALUES, None]), *itertools.product(("metadata",), ODD_VALUES)],
)
def test_a_detail_of_another_type_is_refused(vault: Vault, detail: str, value: Any) -> None:
    with pytest.raises(InvalidInputError):
        vault.thread("t").save(1, **{detail: value})


def test_a_status_that_is_equal_to_nothing_is_a_text(vault: Vault) -> None:
    assert vault.thread("t").save(1, status=Odd("completed")).status == "completed"


def test_a_copy_of_a_checkpoint_has_its_state_or_says_that_it_has_none(vault: Vault) -> None:
    saved = vault.thread("t").save({"n": 1})
    for copied in (copy.deepcopy(saved), copy.copy(saved)):
        assert copied.state == {"n": 1}
    (listed,) = vault.thread("t").history()
    with pytest.raises(InvalidInputError, match=r"call \.load"):
        _ = copy.deepcopy(listed).state


def test_inside_a_transaction_nothing_is_known_of_the_head(in_database: Callable[..., Vault]) -> None:
    vault = in_database()
    thread = vault.thread("t")
    with vault.connection():
        thread.save({})
    assert (thread.head, thread.step) == (None, None)


@needs_listing
def test_a_vault_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        savegame.open(tmp_path / "v.db", namespace="\0")
    assert open_under(tmp_path) == []


def test_two_threads_may_look_at_one_checkpoint(vault: Vault) -> None:
    thread = vault.thread("t")
    for number in range(200):
        saved, wrong = thread.save({"n": number}), []
        barrier = threading.Barrier(4)

        def look(saved: Any = saved, barrier: Any = barrier, wrong: list[BaseException] = wrong) -> None:
            barrier.wait()
            try:
                assert saved.id
            except BaseException as error:  # noqa: BLE001 - told below
                wrong.append(error)

        lookers = [threading.Thread(target=look) for _ in range(4)]
        for looker in lookers:
            looker.start()
        for looker in lookers:
            looker.join()
        assert wrong == []


@pytest.mark.requirement("A35", "A37", "A38", "A54", "A55", "B04", "C08", "D25h", "E01c", "X01", "X10", "Z03")
def test_checkpoints_of_one_moment_keep_their_order(home: Home) -> None:
    vault = home.with_clock(lambda: 1_700_000_000_123_456)
    thread = vault.thread("t")
    for number in range(10):
        thread.save({"n": number}, iteration=number)
    newest = thread.latest()
    assert newest is not None
    assert (newest.iteration, newest.created_at.microsecond) == (9, 123_456)
    assert thread.prune(keep=3) == 7
    assert [entry.iteration for entry in thread.history()] == [9, 8, 7]


@pytest.mark.requirement("A35", "A47", "C19", "X06", "Z04")
def test_a_clock_that_steps_back_changes_no_order(home: Home) -> None:
    times = itertools.count(1_700_000_000_000_000, -1_000_000)
    vault = home.with_clock(lambda: next(times))
    thread = vault.thread("t")
    saved = [thread.save({"n": number}) for number in range(5)]
    assert saved[0].created_at > saved[-1].created_at
    newest = thread.latest()
    assert newest is not None
    assert newest.id == next(thread.history()).id == saved[-1].id
    assert thread.prune(keep=1) == 4
    assert thread.state() == {"n": 4}


@pytest.mark.requirement("B03", "B30", "Z20")
def test_a_checkpoint_belongs_to_the_thread_it_is_saved_to(home: Home) -> None:
    vault = home.open()
    theirs = vault.thread("theirs").save({"n": 1})
    mine = vault.thread("mine")
    assert mine.save({"n": 2}, metadata={"thread_id": "theirs"}).thread_id == "mine"
    with pytest.raises(CheckpointNotFound):
        mine.save({"n": 3}, parent=theirs)
    with pytest.raises(CheckpointNotFound):
        mine.rewind(theirs)
    assert [[entry.step for entry in thread.history()] for thread in (vault.thread("theirs"), mine)] == [[1], [1]]


@pytest.mark.requirement("Z53")
def test_a_checkpoint_costs_what_it_changed_and_listings_come_in_pages(home: Home) -> None:
    vault = home.open(compress=False)
    thread = vault.thread("t")
    for number in range(300):
        thread.update(append={"messages": [{"role": "user", "content": f"{number:03} " + "x" * 200}]})
    sizes = vault.stats().sizes
    assert sizes["total"] - sizes.get("wal", 0) < 1_000_000  # a whole copy each would be ten times that
    with pytest.raises(savegame.InvalidInputError, match="without its state"):
        _ = next(thread.history()).state
    page = vault.store.frames(ThreadKey("default", "t"), limit=2, newest_first=True)
    assert [(frame.seq, frame.delta) for frame in page] == [(300, None), (299, None)]
    for name in "abc":
        vault.thread(name).save({})
    assert [info.id for info in vault.threads(limit=2, after="a")] == ["b", "c"]


@pytest.mark.requirement("D54", "E33d", "Z29")
def test_the_order_of_keys_is_kept_and_breaks_no_sum(home: Home) -> None:
    vault = home.open()
    keys = [f"key {number}" for number in range(30)]
    orders = [keys, keys[::-1], sorted(keys)]
    digests = [vault.thread("t").save(dict.fromkeys(order, float("nan"))).digest for order in orders]
    again = home.open(cache_bytes=0)
    entries = [entry.load() for entry in again.thread("t").history(newest_first=False)]
    assert [list(entry.state) for entry in entries] == orders
    assert [entry.digest for entry in entries] == digests
    assert again.verify().ok
