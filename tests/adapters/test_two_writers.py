"""Two at once on one thread: one wins, the other is told so, and nothing that was kept is lost. Time travel makes a branch."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, StateGraph
from scripted import Graph, chat, config, person

import savegame
from savegame import ConflictError, InvalidInputError
from savegame.adapters.langgraph import SavegameSaver
from savegame.testing.faults import Child, Mouth, together
from savegame.vault import Vault

Opener = Callable[..., Vault]


def with_items(items: list[Any], version: int) -> Checkpoint:
    return {
        **empty_checkpoint(),
        "id": str(uuid6()),
        "channel_values": {"items": items},
        "channel_versions": {"items": version},
    }


def put(saver: SavegameSaver, on: dict[str, Any], items: list[Any], version: int) -> dict[str, Any]:
    return dict(saver.put(on, with_items(items, version), {"source": "loop", "step": version}, {"items": version}))


def newest(saver: SavegameSaver, **more: Any) -> CheckpointTuple:
    found = saver.get_tuple(config(**more))
    assert found is not None
    return found


def items(saver: SavegameSaver, at: dict[str, Any] | None = None) -> Any:
    found = saver.get_tuple(at or config())
    assert found is not None
    return found.checkpoint["channel_values"]["items"]


def two(on_disk: Opener) -> tuple[SavegameSaver, SavegameSaver]:
    return SavegameSaver(on_disk()), SavegameSaver(on_disk())


def test_of_two_savers_one_wins(on_disk: Opener) -> None:
    a, b = two(on_disk)
    put(a, config(), ["first"], 1)
    base_a, base_b = newest(a).config, newest(b).config
    assert base_a == base_b
    won = put(a, base_a, ["first", "a"], 2)
    with pytest.raises(ConflictError, match="'t'") as caught:
        put(b, base_b, ["first", "b"], 2)
    assert caught.value.expected != caught.value.found
    assert items(a) == items(b) == ["first", "a"]
    assert len(list(a.list(config()))) == 2
    assert a.get_tuple(won) == b.get_tuple(won)
    again = put(b, newest(b).config, ["first", "a", "b"], 3)
    assert items(a, again) == items(b, again) == ["first", "a", "b"]
    assert on_disk().verify().ok


def test_the_loser_may_have_written_before(on_disk: Opener) -> None:
    """Also a saver that remembers what it put itself does not write over what came after."""
    a, b = two(on_disk)
    mine = put(a, config(), ["first"], 1)
    mine = put(a, mine, ["first", "a"], 2)
    put(b, newest(b).config, ["first", "a", "b"], 3)
    with pytest.raises(ConflictError):
        put(a, mine, ["first", "a", "c"], 3)
    assert items(a) == items(b) == ["first", "a", "b"]


def test_of_two_who_begin_the_same_thread_one_wins(on_disk: Opener) -> None:
    a, b = two(on_disk)
    assert a.get_tuple(config()) is None
    assert b.get_tuple(config()) is None
    put(a, config(), ["a"], 1)
    with pytest.raises(ConflictError):
        put(b, config(), ["b"], 1)
    assert items(a) == items(b) == ["a"]


def test_of_two_who_begin_the_same_thread_with_one_saver_one_wins(saver: SavegameSaver) -> None:
    """A server with one saver gets two requests for a thread that is not there yet."""
    assert saver.get_tuple(config()) is None
    assert saver.get_tuple(config()) is None
    put(saver, config(), ["a"], 1)
    with pytest.raises(ConflictError):
        put(saver, config(), ["b"], 1)
    assert items(saver) == ["a"]


def test_of_two_in_one_saver_one_wins(saver: SavegameSaver) -> None:
    put(saver, config(), ["first"], 1)
    base, same_base = newest(saver).config, newest(saver).config
    put(saver, base, ["first", "a"], 2)
    with pytest.raises(ConflictError):
        put(saver, same_base, ["first", "b"], 2)
    assert items(saver) == ["first", "a"]


def test_what_one_saver_does_one_after_the_other_is_time_travel(saver: SavegameSaver) -> None:
    first = put(saver, config(), ["first"], 1)
    lines = [put(saver, first, ["first", name], 2) for name in ("a", "b")]
    assert items(saver) == ["first", "b"]
    assert [items(saver, at) for at in lines] == [["first", "a"], ["first", "b"]]
    more = put(saver, lines[0], ["first", "a", "more"], 3)
    assert items(saver) == items(saver, more) == ["first", "a", "more"]
    assert len(list(saver.list(config()))) == 4
    assert saver.vault.verify().ok


def test_another_saver_that_went_on_from_there_is_a_conflict_and_both_lines_stay(on_disk: Opener) -> None:
    a, b = two(on_disk)
    first = put(a, config(), ["first"], 1)
    mine = put(a, first, ["first", "a"], 2)
    theirs = put(b, newest(b).config, ["first", "a", "b"], 3)
    with pytest.raises(ConflictError):
        put(a, mine, ["first", "a", "c"], 3)
    with pytest.raises(ConflictError):
        put(a, first, ["first", "d"], 2)
    assert a.get_tuple(first) is not None  # asked for: a branch is wanted
    branch = put(a, first, ["first", "d"], 2)
    assert items(b, theirs) == ["first", "a", "b"]
    assert items(b) == items(b, branch) == ["first", "d"]


def test_a_thread_of_something_else_is_refused(saver: SavegameSaver) -> None:
    thread = saver.vault.thread("t")
    thread.save({"mine": 1})
    with pytest.raises(InvalidInputError, match="'t' is not a LangGraph thread"):
        chat(saver).invoke(person("hi", 1), config())
    assert thread.state() == {"mine": 1}


def test_namespaces_do_not_stand_in_each_others_way(on_disk: Opener) -> None:
    a, b = two(on_disk)
    put(a, config(), ["first"], 1)
    put(a, config(checkpoint_ns="inner"), ["inner"], 1)
    base = newest(b, checkpoint_ns="inner").config
    put(a, newest(a).config, ["first", "a"], 2)
    put(b, base, ["inner", "b"], 2)
    assert items(a) == ["first", "a"]
    assert items(a, config(checkpoint_ns="inner")) == ["inner", "b"]


def test_putting_the_same_again_is_no_conflict(on_disk: Opener) -> None:
    """A retry after a reply that was lost: the checkpoint has the same id, so it is there once."""
    a, b = two(on_disk)
    base = put(a, config(), ["first"], 1)
    checkpoint = with_items(["first", "second"], 2)
    for saver in (a, a, b):
        saver.put(base, checkpoint, {"source": "loop", "step": 2}, {"items": 2})
    assert len(list(a.list(config()))) == 2
    assert items(a) == ["first", "second"]


# -- time travel -----------------------------------------------------------------------------------


def test_time_travel_makes_a_branch(on_disk: Opener) -> None:
    a, b = two(on_disk)
    first = put(a, config(), ["first"], 1)
    second = put(a, first, ["first", "second"], 2)
    old = b.get_tuple(first)
    assert old is not None
    branch = put(b, old.config, ["first", "other"], 2)
    assert items(a) == items(b) == ["first", "other"]
    assert items(a, second) == ["first", "second"]
    assert items(a, branch) == ["first", "other"]
    found = a.get_tuple(branch)
    assert found is not None
    assert found.parent_config == old.config
    assert len(list(a.list(config()))) == 3
    assert a.vault.verify().ok


def test_many_branches_from_one_checkpoint(saver: SavegameSaver) -> None:
    first = put(saver, config(), ["first"], 1)
    made = []
    for number in range(5):
        old = saver.get_tuple(first)
        assert old is not None
        branch = put(saver, old.config, ["first", number], 2)
        made.append(put(saver, branch, ["first", number, "more"], 3))
    assert [items(saver, at) for at in made] == [["first", number, "more"] for number in range(5)]
    assert items(saver) == ["first", 4, "more"]
    assert len(list(saver.list(config()))) == 11


def test_a_branch_is_guarded_like_every_line(on_disk: Opener) -> None:
    a, b = two(on_disk)
    first = put(a, config(), ["first"], 1)
    put(a, first, ["first", "second"], 2)
    old = a.get_tuple(first)
    assert old is not None
    branch = put(a, old.config, ["first", "branch"], 2)
    put(b, newest(b).config, ["first", "branch", "b"], 3)
    with pytest.raises(ConflictError):
        put(a, branch, ["first", "branch", "a"], 3)
    assert items(a) == ["first", "branch", "b"]


def test_a_look_at_the_newest_ends_time_travel(on_disk: Opener) -> None:
    """A caller that asked for a checkpoint by its id, and later for the newest, the same one, is guarded again."""
    a, b = two(on_disk)
    first = put(a, config(), ["first"], 1)
    assert a.get_tuple(first) is not None
    base = newest(a).config
    put(b, newest(b).config, ["first", "b"], 2)
    with pytest.raises(ConflictError):
        put(a, base, ["first", "a"], 2)


def test_somebody_looking_on_does_not_take_the_guard_away(on_disk: Opener) -> None:
    """A page that shows checkpoints by their ids, in the same process, while a graph runs."""
    a, b = two(on_disk)
    put(a, config(), ["first"], 1)
    base = newest(a).config
    assert a.get_tuple(base) is not None  # the page
    put(b, newest(b).config, ["first", "b"], 2)
    with pytest.raises(ConflictError):
        put(a, base, ["first", "a"], 2)
    assert items(a) == ["first", "b"]


# -- processes -------------------------------------------------------------------------------------


def put_on_top(mouth: Mouth, path: str, name: str, rounds: int) -> None:
    """Read the newest, wait for the other, put on top; the loser reads again and adds its item to what is there."""
    with savegame.open(path) as vault:
        saver = SavegameSaver(vault)
        newest(saver)
        mouth.say("ready")
        mouth.hear()
        for number in range(rounds):
            while True:
                found = newest(saver)
                there = found.checkpoint["channel_values"]["items"]
                version = found.checkpoint["channel_versions"]["items"] + 1
                try:
                    put(saver, dict(found.config), [*there, f"{name} {number}"], version)
                    break
                except ConflictError as error:
                    mouth.say("lost", str(error))
            mouth.say("won")


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        put(SavegameSaver(vault), config(), [], 1)
    said = together(put_on_top, [(str(path), name, 40) for name in ("a", "b")])
    assert [lines.count(["won"]) for lines in said] == [40, 40]
    assert all("'t'" in line[1] for lines in said for line in lines if line[0] == "lost")
    with savegame.open(path) as vault:
        saver = SavegameSaver(vault)
        assert sorted(items(saver)) == sorted(f"{name} {number}" for name in ("a", "b") for number in range(40))
        found = list(saver.list(config()))
        assert len(found) == 81
        for younger, older in itertools.pairwise(found):
            assert younger.parent_config == older.config
            assert younger.checkpoint["channel_values"]["items"][:-1] == older.checkpoint["channel_values"]["items"]
        assert vault.verify().ok


class Counted(TypedDict):
    steps: Annotated[list[str], operator.add]


def counting(saver: SavegameSaver, name: str) -> Graph:
    builder = StateGraph(Counted)
    builder.add_sequence([(f"{number}", lambda _, number=number: {"steps": [f"{name} {number}"]}) for number in range(5)])
    builder.add_edge(START, "0")
    return builder.compile(checkpointer=saver)


CASES = [
    (begun, durability, number) for begun in (True, False) for durability in ("sync", "async", "exit") for number in range(3)
]


def run_graphs(mouth: Mouth, path: str, name: str) -> None:
    """Run a graph some times on each thread; the other does the same at the same moment."""
    with savegame.open(path) as vault:
        graph = counting(SavegameSaver(vault), name)
        for case in CASES:
            mouth.say("ready")
            mouth.hear()
            for number in range(5):
                try:
                    graph.invoke({"steps": [f"{name} run {number}"]}, config(str(case)), durability=case[1])  # type: ignore[arg-type]
                    mouth.say("won", number)
                except ConflictError:
                    mouth.say("lost", number)


def test_two_processes_run_a_graph_on_one_thread(tmp_path: Path) -> None:
    """A run that ended without an error is in the thread with all its steps; no run is mixed into another."""
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        for case in CASES:
            if case[0]:
                counting(SavegameSaver(vault), "first").invoke({"steps": []}, config(str(case)))
    said: dict[str, dict[Any, list[Any]]] = {"a": {}, "b": {}}
    with Child(run_graphs, str(path), "a") as a, Child(run_graphs, str(path), "b") as b:
        for case in CASES:
            assert [a.next(), b.next()] == [["ready"], ["ready"]]
            a.go()
            b.go()
            for name, child in (("a", a), ("b", b)):
                said[name][case] = [child.next() for _ in range(5)]
        assert a.rest() == b.rest() == []
    lost = []
    with savegame.open(path) as vault:
        graph = counting(SavegameSaver(vault), "a")
        for case, name in itertools.product(CASES, said):
            steps = graph.get_state(config(str(case))).values["steps"]
            for what, number in said[name][case]:
                begin = f"{name} run {number}"
                if what == "won" and begin not in steps:
                    lost.append((case, begin))
                elif what == "won":
                    start = steps.index(begin)
                    assert steps[start + 1 : start + 6] == [f"{name} {step}" for step in range(5)]
        assert vault.verify().ok
    assert lost == []


def test_a_loser_can_simply_run_again(on_disk: Opener) -> None:
    a, b = two(on_disk)
    first, second = chat(a), chat(b)
    first.invoke(person("hi", 1), config())
    stale = newest(b).config
    first.invoke(person("hi", 2), config())
    with pytest.raises(ConflictError):
        put(b, dict(stale), ["x"], 9)
    result = second.invoke(person("hi", 3), config())
    assert [message.id for message in result["messages"]] == ["human 1", "ai 1", "human 2", "ai 3", "human 3", "ai 5"]
    assert first.get_state(config()).values == result
