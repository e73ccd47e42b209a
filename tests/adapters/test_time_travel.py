"""Time travel: replays, forks and copies of a checkpoint, also with nested, parallel and looped subgraphs, in both colours.

Every test runs with LangGraph's own InMemorySaver too, so what it states is what LangGraph does.
"""

from __future__ import annotations

import asyncio
import operator
import uuid
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from addresses import ALL
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StateUpdate
from scripted import Graph, config
from travelling import Nodes, Player, number, parent, shape, told, tree

import savegame
from savegame.adapters.langgraph import SavegameSaver

Saver = BaseCheckpointSaver[Any]
Plays = Callable[[Graph], Player]

THEIRS = "InMemorySaver"
everywhere = pytest.mark.parametrize("saver", [THEIRS, *ALL], indirect=True)


@pytest.fixture(params=[THEIRS, "sqlite"])
def saver(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> Iterator[Saver]:
    if request.param == THEIRS:
        yield InMemorySaver()
        return
    with savegame.open(address_of(request.param)) as vault:
        yield SavegameSaver(vault)
        assert vault.verify().ok


@pytest.fixture(params=["sync", "async"])
def play(request: pytest.FixtureRequest) -> Iterator[Plays]:
    with asyncio.Runner() as runner:
        yield lambda graph: Player(graph, runner if request.param == "async" else None)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


EMPTY: dict[str, list[str]] = {"value": []}


# -- replays and forks -----------------------------------------------------------------------------


@everywhere
def test_a_replay_runs_what_comes_after_and_leaves_the_old_branch(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nodes.line("a", "b#", "c", saver=saver))
    assert graph.invoke(EMPTY) == {"value": ["a", "b1", "c"]}
    old = graph.history()
    (point,) = graph.before("b#")
    nodes.forget()
    assert graph.invoke(None, point.config) == {"value": ["a", "b2", "c"]}
    assert nodes.ran == ["b#", "c"]
    history = graph.history()
    assert told(history) == [
        ("loop", (), ["a", "b2", "c"]),
        ("loop", ("c",), ["a", "b2"]),
        ("fork", ("b#",), ["a"]),
        ("loop", (), ["a", "b1", "c"]),
        ("loop", ("c",), ["a", "b1"]),
        ("loop", ("b#",), ["a"]),
        ("loop", ("a",), []),
        ("input", ("__start__",), []),
    ]
    assert list(map(number, history[3:])) == list(map(number, old))
    assert parent(history[2]) == number(point)
    assert graph.state().values == {"value": ["a", "b2", "c"]}


def test_a_replay_of_the_end_runs_nothing(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nodes.line("a", saver=saver))
    graph.invoke(EMPTY)
    nodes.forget()
    assert graph.invoke(None, graph.state().config) == {"value": ["a"]}
    assert nodes.ran == []


@everywhere
def test_a_fork_runs_with_the_changed_state_and_leaves_the_old_branch(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nodes.line("a", "b#", "c", saver=saver))
    graph.invoke(EMPTY)
    old = graph.history()
    (point,) = graph.before("b#")
    nodes.forget()
    assert graph.invoke(None, graph.update(point.config, {"value": ["x"]})) == {"value": ["a", "x", "b2", "c"]}
    assert nodes.ran == ["b#", "c"]
    history = graph.history()
    assert told(history[:3]) == [
        ("loop", (), ["a", "x", "b2", "c"]),
        ("loop", ("c",), ["a", "x", "b2"]),
        ("update", ("b#",), ["a", "x"]),
    ]
    assert list(map(number, history[3:])) == list(map(number, old))
    assert parent(history[2]) == number(point)
    assert graph.state().values == {"value": ["a", "x", "b2", "c"]}


def test_forks_of_one_checkpoint_do_not_see_each_other(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nodes.line("a", "b", saver=saver))
    graph.invoke(EMPTY)
    (point,) = graph.before("b")
    for name in ("first", "second"):
        assert graph.invoke(None, graph.update(point.config, {"value": [name]})) == {"value": ["a", name, "b"]}


def test_a_fork_does_not_apply_what_the_node_wrote_before(nodes: Nodes, saver: Saver, play: Plays) -> None:
    """The change takes the place of what the node wrote."""
    graph = play(nodes.line("a", "b", saver=saver))
    graph.invoke({"value": ["given"]})
    (point,) = graph.before("a")
    nodes.forget()
    forked = graph.update(point.config, {"value": ["instead"]}, "a")
    assert graph.invoke(None, forked) == {"value": ["given", "instead", "b"]}
    assert nodes.ran == ["b"]


# -- questions -------------------------------------------------------------------------------------


@everywhere
def test_a_replay_asks_again_and_goes_on_with_a_new_answer(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nodes.line("a", "ask?", "b", saver=saver))
    graph.invoke(EMPTY)
    graph.invoke(Command(resume="old"))
    old = told(graph.history())
    (point,) = graph.before("ask?")
    nodes.forget()
    found = graph.invoke(None, point.config)
    assert (found["value"], [one.value for one in found["__interrupt__"]]) == (["a"], ["ask?"])
    assert nodes.ran == ["ask?"]
    assert told(graph.history()) == [("fork", ("ask?",), ["a"]), *old]
    nodes.forget()
    assert graph.invoke(Command(resume="new")) == {"value": ["a", "ask:new", "b"]}
    assert nodes.ran == ["ask?", "b"]
    new = [("loop", (), ["a", "ask:new", "b"]), ("loop", ("b",), ["a", "ask:new"]), ("fork", ("ask?",), ["a"])]
    assert told(graph.history()) == [*new, *old]


def test_every_replay_asks_the_same(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nodes.line("a", "ask?", "b", saver=saver))
    graph.invoke(EMPTY)
    graph.invoke(Command(resume="kept"))
    (point,) = graph.before("ask?")
    for _ in range(3):
        found = graph.invoke(None, point.config)
        assert (found["value"], [one.value for one in found["__interrupt__"]]) == (["a"], ["ask?"])


@pytest.mark.parametrize("how", ["update", "nothing", "copy"])
def test_a_fork_asks_again_and_goes_on_with_a_new_answer(how: str, nodes: Nodes, saver: Saver, play: Plays) -> None:
    """Whether the state changed, did not, or the checkpoint was copied."""
    graph = play(nodes.line("a", "ask?", "b", saver=saver))
    graph.invoke(EMPTY)
    graph.invoke(Command(resume="old"))
    (point,) = graph.before("ask?")
    assert [one.value for task in point.tasks for one in task.interrupts] == ["ask?"]
    values = {"value": ["forked"]} if how == "update" else None
    forked = graph.update(point.config, values, "__copy__" if how == "copy" else None)
    found = graph.state(forked)
    assert (found.metadata or {})["source"] == ("fork" if how == "copy" else "update")
    assert parent(found) == (parent(point) if how == "copy" else number(point)), "a copy is a sibling"
    assert graph.asked(None, forked) == ["ask?"]
    more = ["forked"] if how == "update" else []
    assert graph.invoke(Command(resume="new"), forked) == {"value": ["a", *more, "ask:new", "b"]}


def test_a_fork_between_two_questions_keeps_the_first_answer(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nodes.line("a", "one?", "two?", "b", saver=saver))
    assert graph.asked(EMPTY) == ["one?"]
    assert graph.asked(Command(resume="1")) == ["two?"]
    assert graph.invoke(Command(resume="2")) == {"value": ["a", "one:1", "two:2", "b"]}
    (first,), (second,) = graph.before("one?"), graph.before("two?")
    forked = graph.update(second.config, {"value": ["x"]})
    assert graph.asked(None, forked) == ["two?"]
    assert graph.invoke(Command(resume="new"), forked) == {"value": ["a", "one:1", "x", "two:new", "b"]}
    nodes.forget()
    assert graph.asked(None, first.config) == ["one?"]
    assert nodes.ran == ["one?"]


def test_two_questions_of_one_node_are_asked_from_the_first_again(saver: Saver, play: Plays) -> None:
    from langgraph.types import interrupt

    def ask(state: Any) -> dict[str, list[str]]:
        return {"value": [f"1:{interrupt('first?')}", f"2:{interrupt('second?')}"]}

    builder = StateGraph(Nodes().state("value")).add_node("ask", ask).add_edge(START, "ask")
    graph = play(builder.compile(checkpointer=saver))
    assert graph.asked(EMPTY) == ["first?"]
    assert graph.asked(Command(resume="a"), graph.state().config) == ["second?"]
    assert graph.invoke(Command(resume="b"), graph.state().config) == {"value": ["1:a", "2:b"]}
    assert graph.asked(None, graph.before("ask")[-1].config) == ["first?"]


# -- a subgraph ------------------------------------------------------------------------------------


def with_subgraph(nodes: Nodes, saver: Saver, *steps: str, remember: bool | None = None) -> Graph:
    """A subgraph of these steps between two nodes."""
    return nodes.line("before", ("sub", nodes.line(*steps, saver=remember)), "after", saver=saver)


@pytest.mark.parametrize("how", ["replay", "fork"])
def test_from_before_a_subgraph(how: str, nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(with_subgraph(nodes, saver, "x#", "y"))
    graph.invoke(EMPTY)
    old = graph.history()
    (point,) = graph.before("sub")
    nodes.forget()
    more = ["forked"] if how == "fork" else []
    at = graph.update(point.config, {"value": more}) if more else point.config
    assert graph.invoke(None, at) == {"value": ["before", *more, "before", *more, "x2", "y", "after"]}
    assert nodes.ran == ["x#", "y", "after"]
    history = graph.history()
    assert list(map(number, history[-len(old) :])) == list(map(number, old))
    new = history[: -len(old)]
    assert [one.next for one in new] == [(), ("after",), ("sub",)]
    assert parent(new[-1]) == number(point)


@pytest.mark.parametrize("remember", [True, None])
@everywhere
def test_a_replay_of_a_subgraph_that_asks(remember: bool | None, nodes: Nodes, saver: Saver, play: Plays) -> None:
    """It begins with its first node; the graph then goes to its end with the new answer."""
    graph = play(with_subgraph(nodes, saver, "x", "ask?", "y", remember=remember))
    assert graph.asked(EMPTY) == ["ask?"]
    assert graph.state().tasks[0].state is not None
    graph.invoke(Command(resume="old"))
    old = shape(graph.history())
    assert [then for _, then in old] == [(), ("after",), ("sub",), ("before",), ("__start__",)]
    (point,) = graph.before("sub")
    assert point.tasks[0].interrupts
    nodes.forget()
    assert graph.asked(None, point.config) == ["ask?"]
    assert nodes.ran == ["x", "ask?"]
    history = graph.history()
    assert shape(history) == [("fork", ("sub",)), *old]
    assert parent(history[0]) == number(point)
    nodes.forget()
    found = graph.invoke(Command(resume="new"))
    assert found == {"value": ["before", "before", "x", "ask:new", "y", "after"]}
    assert nodes.ran == ["ask?", "y", "after"]
    assert shape(graph.history()) == [("loop", ()), ("loop", ("after",)), ("fork", ("sub",)), *old]


def test_an_answer_with_the_id_of_the_newest_checkpoint_goes_on_in_the_subgraph(
    nodes: Nodes, saver: Saver, play: Plays
) -> None:
    graph = play(nodes.line(("sub", nodes.line("x", "ask?", "y", saver=True)), saver=saver))
    assert graph.asked(EMPTY) == ["ask?"]
    nodes.forget()
    newest = number(graph.state())
    found = graph.invoke(Command(resume="yes"), config(checkpoint_id=newest, checkpoint_ns=""))
    assert found == {"value": ["x", "ask:yes", "y"]}
    assert nodes.ran == ["ask?", "y"]


@pytest.mark.parametrize("how", ["replay", "fork"])
def test_from_a_checkpoint_of_the_subgraph_itself(how: str, nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(with_subgraph(nodes, saver, "x", "ask?", "y", remember=True))
    assert graph.asked(EMPTY) == ["ask?"]
    at = graph.inside()
    more = ["forked"] if how == "fork" else []
    if more:
        at = graph.update(at, {"value": more})
    assert graph.asked(None, at) == ["ask?"]
    nodes.forget()
    found = graph.invoke(Command(resume="new"), at)
    assert found == {"value": ["before", "before", "x", *more, "ask:new", "y", "after"]}
    assert nodes.ran == ["ask?", "y", "after"]


def test_a_fork_before_a_subgraph_without_memory(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(with_subgraph(nodes, saver, "x", "ask?", "y"))
    graph.invoke(EMPTY)
    graph.invoke(Command(resume="old"))
    forked = graph.update(graph.before("sub")[-1].config, {"value": ["forked"]})
    assert graph.asked(None, forked) == ["ask?"]
    found = graph.invoke(Command(resume="new"), forked)
    assert found["value"][-3:] == ["ask:new", "y", "after"]


# -- back to a question inside ---------------------------------------------------------------------


def nested(nodes: Nodes, saver: Saver, depth: int) -> Graph:
    """Two questions in a subgraph, which may be inside another."""
    inner = nodes.line("x", "one?", "two?", saver=True)
    for level in range(1, depth):
        inner = nodes.line((f"level {level}", inner), saver=True)
    return nodes.line(("top", inner), saver=saver)


@pytest.mark.parametrize("depth", [1, 2])
@everywhere
def test_back_to_the_first_question_and_forward_again(depth: int, nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nested(nodes, saver, depth))
    assert graph.asked(EMPTY) == ["one?"]
    at = graph.inside(depth)
    assert graph.asked(Command(resume="1")) == ["two?"]
    graph.invoke(Command(resume="2"))
    old = told(graph.history())
    assert old == [("loop", (), ["x", "one:1", "two:2"]), ("loop", ("top",), []), ("input", ("__start__",), [])]
    nodes.forget()
    assert graph.asked(None, at) == ["one?"]
    assert nodes.ran == ["one?"]
    history = graph.history()
    assert told(history) == [("fork", ("top",), []), *old]
    assert parent(history[0]) == at["configurable"]["checkpoint_map"][""]
    nodes.forget()
    assert graph.asked(Command(resume="new 1")) == ["two?"]
    assert graph.invoke(Command(resume="new 2")) == {"value": ["x", "one:new 1", "two:new 2"]}
    assert nodes.ran == ["one?", "two?", "two?"]
    assert told(graph.history()) == [("loop", (), ["x", "one:new 1", "two:new 2"]), ("fork", ("top",), []), *old]


@pytest.mark.parametrize("depth", [1, 2])
def test_back_to_the_second_question_keeps_the_first_answer(depth: int, nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nested(nodes, saver, depth))
    graph.invoke(EMPTY)
    graph.invoke(Command(resume="1"))
    at = graph.inside(depth)
    graph.invoke(Command(resume="2"))
    old = told(graph.history())
    nodes.forget()
    assert graph.asked(None, at) == ["two?"]
    assert nodes.ran == ["two?"]
    assert told(graph.history()) == [("fork", ("top",), []), *old]
    assert graph.invoke(Command(resume="new")) == {"value": ["x", "one:1", "two:new"]}
    assert told(graph.history()) == [("loop", (), ["x", "one:1", "two:new"]), ("fork", ("top",), []), *old]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("question", ["one?", "two?"])
def test_a_fork_inside_asks_only_what_is_open(question: str, depth: int, nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nested(nodes, saver, depth))
    graph.invoke(EMPTY)
    if question == "two?":
        graph.invoke(Command(resume="1"))
    at = graph.inside(depth)
    while graph.state().next:
        graph.invoke(Command(resume="on"))
    nodes.forget()
    assert graph.asked(None, graph.update(at, {"value": ["forked"]})) == [question]
    assert nodes.ran == [question]


def test_from_the_end_nothing_inside_runs_again(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nested(nodes, saver, 1))
    graph.invoke(EMPTY)
    graph.invoke(Command(resume="1"))
    graph.invoke(Command(resume="2"))
    nodes.forget()
    end = graph.state()
    assert end.tasks == ()
    assert graph.invoke(None, end.config) == {"value": ["x", "one:1", "two:2"]}
    assert nodes.ran == []


def test_a_middle_graph_that_asks_too(nodes: Nodes, saver: Saver, play: Plays) -> None:
    inner = nodes.line("x", "deep?", saver=True)
    graph = play(nodes.line(("top", nodes.line("pre?", ("inner", inner), saver=True)), saver=saver))
    assert graph.asked(EMPTY) == ["pre?"]
    at_pre = graph.inside()
    assert graph.asked(Command(resume="p")) == ["deep?"]
    at_deep = graph.inside()
    graph.invoke(Command(resume="d"))
    for at, question, never in ((at_pre, "pre?", "x"), (at_deep, "deep?", "pre?")):
        for change in (None, {"value": ["forked"]}):
            nodes.forget()
            assert graph.asked(None, graph.update(at, change) if change else at) == [question]
            assert question in nodes.ran
            assert never not in nodes.ran


# -- what subgraphs remember -----------------------------------------------------------------------


def twice(nodes: Nodes, saver: Saver, *steps: str, remember: bool | None = True) -> Graph:
    """A graph whose subgraph has a list of its own."""
    return nodes.line("p", ("sub", nodes.line(*steps, key="own", saver=remember)), key="results", saver=saver)


NONE: dict[str, list[str]] = {"results": []}


@pytest.mark.parametrize("remember", [True, None])
@pytest.mark.parametrize("how", ["replay", "fork"])
@everywhere
def test_a_subgraph_sees_what_it_knew_then(remember: bool | None, how: str, nodes: Nodes, saver: Saver, play: Plays) -> None:
    """One that remembers sees the end of the first run, not of the second; one that does not, nothing."""
    graph = play(twice(nodes, saver, "one?", "two?", remember=remember))
    for run in ("1", "2"):
        graph.invoke(NONE)
        graph.invoke(Command(resume=f"a{run}"))
        graph.invoke(Command(resume=f"b{run}"))
    known = ["one:a1", "two:b1"] if remember else []
    point = graph.before("sub")[0]
    at = graph.update(point.config, {"results": ["forked"]}) if how == "fork" else point.config
    nodes.forget()
    assert graph.asked(None, at) == ["one?"]
    assert nodes.saw == [("one?", known)]
    nodes.forget()
    assert graph.asked(Command(resume="a3")) == ["two?"]
    assert nodes.saw == [("one?", known), ("two?", [*known, "one:a3"])]
    assert graph.invoke(Command(resume="b3"))["results"] == ["p", "p"] + (["forked"] if how == "fork" else [])
    nodes.forget()
    graph.invoke(NONE)
    assert nodes.saw[-1] == ("one?", [*known, "one:a3", "two:b3"] if remember else [])


@pytest.mark.parametrize("runs", [1, 2])
def test_a_replay_of_the_first_run_sees_an_empty_subgraph(runs: int, nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(twice(nodes, saver, "s"))
    for _ in range(runs):
        graph.invoke(NONE)
    nodes.forget()
    graph.invoke(None, graph.before("sub")[-1].config)
    assert nodes.saw == [("s", [])]


def test_the_next_run_goes_on_from_the_replay(nodes: Nodes, saver: Saver, play: Plays) -> None:
    """Also if the subgraph runs some steps after the checkpoint that was replayed."""
    sub = nodes.line("s", key="own", saver=True)
    graph = play(nodes.line("a", "b", ("sub", sub), key="results", saver=saver))
    graph.invoke(NONE)
    graph.invoke(NONE)
    assert [seen for name, seen in nodes.saw if name == "s"] == [[], ["s"]]
    nodes.forget()
    graph.invoke(None, graph.before("a")[0].config)
    graph.invoke(NONE)
    assert [seen for name, seen in nodes.saw if name == "s"] == [["s"], ["s", "s"]]


@pytest.mark.parametrize("how", ["replay", "fork"])
@everywhere
def test_three_levels_remember(how: str, nodes: Nodes, saver: Saver, play: Plays) -> None:
    inner = nodes.line("deep", key="inner", saver=True)
    middle = nodes.line("mid", ("in", inner), key="middle", saver=True)
    graph = play(nodes.line("p", ("sub", middle), key="results", saver=saver))
    for known in (0, 1):
        nodes.forget()
        graph.invoke(NONE)
        assert nodes.saw[1:] == [("mid", ["mid"] * known), ("deep", ["deep"] * known)]
    point = graph.before("p")[0].config
    nodes.forget()
    graph.invoke(None, graph.update(point, {"results": ["forked"]}) if how == "fork" else point)
    assert nodes.saw[-2:] == [("mid", ["mid"]), ("deep", ["deep"])]
    nodes.forget()
    graph.invoke(NONE)
    assert nodes.saw[1:] == [("mid", ["mid"] * 2), ("deep", ["deep"] * 2)]


@everywhere
def test_parallel_subgraphs_remember_each_for_itself(nodes: Nodes, saver: Saver, play: Plays) -> None:
    builder = StateGraph(nodes.state("results")).add_node("p", nodes.node("p", "results")).add_edge(START, "p")
    for name in ("left", "right"):
        builder.add_node(name, nodes.line(f"in {name}", key=name, saver=True)).add_edge("p", name)
    graph = play(builder.compile(checkpointer=saver))

    def seen() -> dict[str, int]:
        return {name: len(seen) for name, seen in nodes.saw if name.startswith("in")}

    for known in (0, 1):
        nodes.forget()
        graph.invoke(NONE)
        assert seen() == {"in left": known, "in right": known}
    nodes.forget()
    graph.invoke(None, graph.before("p")[0].config)
    assert seen() == {"in left": 1, "in right": 1}
    nodes.forget()
    graph.invoke(NONE)
    assert seen() == {"in left": 2, "in right": 2}


class Counting(TypedDict):
    count: int
    results: Annotated[list[str], operator.add]


@everywhere
def test_a_subgraph_in_a_loop_remembers_its_rounds(nodes: Nodes, saver: Saver, play: Plays) -> None:
    builder = StateGraph(Counting).add_node("more", lambda state: {"count": state["count"] + 1})
    builder.add_node("sub", nodes.line("s", key="own", saver=True))
    builder.add_edge(START, "more").add_edge("more", "sub")
    builder.add_conditional_edges("sub", lambda state: "more" if state["count"] < 2 else END, ["more", END])
    graph = play(builder.compile(checkpointer=saver))

    def rounds(given: Any, at: Any = None) -> list[int]:
        nodes.forget()
        graph.invoke(given, at)
        return [len(seen) for _, seen in nodes.saw]

    start = {"count": 0, "results": []}
    assert [rounds(start), rounds(start)] == [[0, 1], [2, 3]]
    history = graph.before("more")
    first, second = (next(one for one in history if one.values["count"] == count) for count in (0, 1))
    assert rounds(None, first.config) == [2, 3]
    assert rounds(None, second.config) == [3]


# -- copies of a checkpoint ------------------------------------------------------------------------


class Named(TypedDict):
    name: Annotated[str, lambda old, new: f"{old} > {new}" if old else new]


def sending(saver: Saver) -> Graph:
    """One, which sends to two and also leads to it; then three."""
    builder = StateGraph(Named)
    builder.add_node("one", lambda state: Command(goto=[Send("two", {})], update={"name": "one"}))
    builder.add_node("two", lambda state: {"name": "two"})
    builder.add_node("three", lambda state: {"name": "three"})
    builder.add_edge(START, "one").add_edge("one", "two").add_edge("two", "three")
    return builder.compile(checkpointer=saver)


def at(graph: Player, name: str) -> Any:
    return next(one for one in graph.history() if one.values["name"] == name).config


def points(tree_of: list[Any]) -> list[Any]:
    """A tree with only the names."""
    found: list[Any] = []
    for one in tree_of:
        if isinstance(one, list):
            found.append([points(branch) for branch in one])
        elif isinstance(one, tuple):
            found.append(f"{one[0]}: {one[1]['name']}")
        else:
            found.append(one["name"])
    return found


TWO = ["start > one", "two: two", "two: two"]
END_OF = ["start > one > two > two", "three: three", "start > one > two > two > three"]


@everywhere
def test_a_copy_takes_other_results_of_tasks(saver: Saver, play: Plays) -> None:
    """A copy of a checkpoint gets results of tasks from a person; they count as if the tasks had run."""
    graph = play(sending(saver))
    graph.invoke({"name": "start"})
    first = ["", "__start__: start", "start", "one: one", *TWO, *END_OF]
    assert points(tree(graph.history())) == first

    copied = graph.update(graph.history()[-1].config, [StateUpdate({"name": "other"}, "__start__")], "__copy__")
    graph.invoke(None, copied)
    other = ["", "__start__: other", "other", "one: one", "other > one", "two: two", "two: two"]
    rest = ["other > one > two > two", "three: three", "other > one > two > two > three"]
    assert points(tree(graph.history())) == [[first, [*other, *rest]]], "a copy of the first is a first one too"

    copied = graph.update(at(graph, "other"), [StateUpdate({"name": "1"}, "one")], "__copy__")
    graph.invoke(None, copied)
    changed = ["other", "one: 1", "other > 1", "two: two", "other > 1 > two", "three: three", "other > 1 > two > three"]
    branches = [[*other[2:], *rest], changed]
    assert points(tree(graph.history())) == [[first, [*other[:2], branches]]], "what it sent is gone"


@everywhere
def test_copies_of_copies(saver: Saver, play: Plays) -> None:
    graph = play(sending(saver))
    graph.invoke({"name": "start"})
    begin = ["", "__start__: start", "start", "one: one"]
    both = [StateUpdate({"name": "two"}, "two")] * 2
    graph.invoke(None, graph.update(at(graph, "start > one"), both, "__copy__"))
    assert points(tree(graph.history())) == [*begin, [[*TWO, *END_OF], [*TWO, *END_OF]]]

    newest = at(graph, END_OF[0])
    graph.invoke(None, graph.update(newest, [StateUpdate({"name": "3"}, "three")], "__copy__"))
    changed = [END_OF[0], "three: 3", f"{END_OF[0]} > 3"]
    assert points(tree(graph.history())) == [*begin, [[*TWO, *END_OF], [*TWO, [END_OF, changed]]]]

    graph.invoke(None, graph.update(newest, None, "__copy__"))
    assert points(tree(graph.history())) == [*begin, [[*TWO, *END_OF], [*TWO, [END_OF, changed, END_OF]]]]


# -- what can be seen ------------------------------------------------------------------------------


def test_a_subgraph_that_waits_can_be_seen(nodes: Nodes, saver: Saver, play: Plays) -> None:
    graph = play(nodes.line(("sub", nodes.line("ask?")), saver=saver))
    graph.invoke({"value": ["given"]})
    (task,) = graph.state().tasks
    assert task.state is not None
    assert task.state.values == {"value": ["given"]}  # type: ignore[union-attr]
    assert task.state.config["configurable"]["thread_id"] == "t"  # type: ignore[index, union-attr]


def test_a_subgraph_knows_where_it_is(saver: Saver, play: Plays) -> None:
    found: list[Any] = []

    def look(state: Any, config: RunnableConfig) -> dict[str, list[str]]:
        found.append({name: config["configurable"].get(name) for name in ("thread_id", "checkpoint_ns")})
        return {"value": []}

    nodes = Nodes()
    inner = StateGraph(nodes.state("value")).add_node("look", look).add_edge(START, "look").compile()
    play(nodes.line(("sub", inner), saver=saver)).invoke(EMPTY)
    assert found[0]["thread_id"] == "t"
    assert found[0]["checkpoint_ns"].startswith("sub:")


class Bare(TypedDict):
    __root__: Annotated[list[Any], add_messages]


def test_a_saver_draws_no_ids_that_a_graph_would_get(
    address_of: Callable[..., str], play: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages without ids get drawn ones; who draws from a fixed source gets the same with every saver."""
    builder = StateGraph(Bare).add_node("model", lambda messages: AIMessage(f"{len(messages)}")).add_edge(START, "model")

    def ids(saver: Saver) -> list[str]:
        graph = play(builder.compile(checkpointer=saver, interrupt_before=["model"]))
        graph.invoke(HumanMessage("hi"))
        graph.update(config(), HumanMessage("more"))
        return [message.id for message in graph.invoke(None)]

    def fixed() -> Callable[[], uuid.UUID]:
        numbers = iter(range(1000))
        return lambda: uuid.UUID(int=next(numbers), version=4)

    monkeypatch.setattr(uuid, "uuid4", fixed())
    expected = ids(InMemorySaver())
    monkeypatch.setattr(uuid, "uuid4", fixed())
    with savegame.open(address_of("sqlite")) as vault:
        assert ids(SavegameSaver(vault)) == expected
    assert len(set(expected)) == 3
