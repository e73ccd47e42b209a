"""Graphs, driven step by step on a vault and on LangGraph's own InMemorySaver: both must always tell the same.

Runs, answers, replays and changes of any checkpoint, failures, copies, new starts; and between them the verbs of the vault,
which must mean for a graph what they say: the oracle does by hand what their definition is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, StateSnapshot
from scripted import Graph, config, shown
from travelling import Nodes, Player

import savegame
from savegame.adapters.langgraph import GraphPlace, SavegameSaver
from savegame.vault import Vault

Saver = BaseCheckpointSaver[Any]
MOST_THREADS = 5
MOST_CHECKPOINTS = 60


# -- graphs ----------------------------------------------------------------------------------------


def flat(nodes: Nodes, saver: Saver) -> Graph:
    """Two nodes side by side, then a question."""
    builder = StateGraph(nodes.state("value"))
    for name in ("plan", "left", "right", "ask?", "end"):
        builder.add_node(name, nodes.node(name, "value"))
    builder.add_edge(START, "plan").add_edge("plan", "left").add_edge("plan", "right")
    builder.add_edge(["left", "right"], "ask?").add_edge("ask?", "end")
    return builder.compile(checkpointer=saver)


def remembering(nodes: Nodes, saver: Saver) -> Graph:
    """A subgraph that asks, and remembers from run to run."""
    sub = nodes.line("s", "check?", "work", key="own", saver=True)
    return nodes.line("plan", ("sub", sub), "end", saver=saver)


def deep(nodes: Nodes, saver: Saver) -> Graph:
    """A question two levels down, without a memory, and another subgraph with one."""
    low = nodes.line("work", "deep?")
    return nodes.line(
        "plan", ("top", nodes.line("x", ("low", low))), ("memory", nodes.line("m", key="own", saver=True)), "end", saver=saver
    )


GRAPHS: dict[str, Callable[[Nodes, Saver], Graph]] = {"flat": flat, "remembering": remembering, "deep": deep}
NODES = {
    "flat": ["plan", "left", "right", "ask?", "end"],
    "remembering": ["plan", "sub", "end"],
    "deep": ["plan", "top", "end"],
}

words = st.sampled_from(("a", "b", "c"))
durabilities = st.sampled_from(("sync", "sync", "async", "exit"))


# -- the oracle ------------------------------------------------------------------------------------


class Oracle(InMemorySaver):
    """LangGraph's saver, with what the vault's verbs do."""

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """All checkpoints and pending writes, under another id."""
        for namespace, checkpoints in self.storage[source_thread_id].items():
            self.storage[target_thread_id][namespace] = dict(checkpoints)
        for place in [place for place in self.writes if place[0] == source_thread_id]:
            self.writes[target_thread_id, *place[1:]] = deepcopy(self.writes[place])
        for blob in [blob for blob in self.blobs if blob[0] == source_thread_id]:
            self.blobs[target_thread_id, *blob[1:]] = self.blobs[blob]

    def go_back(self, thread_id: str, checkpoint_id: str, *, waits: bool) -> None:
        """Make a thread what it was when a checkpoint was saved: without what came later, and what later ones were made from.

        Of subgraphs, what they did on the way to it stays. If it has not been continued, it `waits` on.
        """
        before, one = set(), self.storage[thread_id][""][checkpoint_id][2]
        while one:
            before.add(one)
            one = self.storage[thread_id][""][one][2] if one in self.storage[thread_id][""] else None
        for namespace, checkpoints in self.storage[thread_id].items():
            continued = {parent for _, _, parent in checkpoints.values()}
            for later, (_, metadata, _) in list(checkpoints.items()):
                under = self.serde.loads_typed(metadata).get("parents", {}).get("")
                if later > checkpoint_id or (namespace and under and under not in before):
                    del checkpoints[later]
                    self.writes.pop((thread_id, namespace, later), None)
            newest = max(checkpoints, default=None)
            if newest in continued or not waits:
                self.writes.pop((thread_id, namespace, str(newest)), None)


# -- what is compared ------------------------------------------------------------------------------


def at(snapshot: StateSnapshot) -> str:
    return str(snapshot.config["configurable"]["checkpoint_id"])


class Side:
    """Graphs on one of the two savers."""

    def __init__(self, runner: asyncio.Runner | None) -> None:
        self.nodes = Nodes()
        self._runner = runner
        self.left: set[tuple[str, str]] = set()
        """Checkpoints that the thread has left behind by a rewind."""

    def use(self, saver: Any) -> None:
        self.saver = saver
        self.players = {name: Player(make(self.nodes, saver), self._runner) for name, make in GRAPHS.items()}

    def history(self, graph: str, thread_id: str) -> list[StateSnapshot]:
        found = self.players[graph].history(config(thread_id))
        return [one for one in found if (thread_id, at(one)) not in self.left]

    def told(self, graph: str, thread_id: str, whole: bool, hidden: int = 0) -> list[dict[str, Any]]:
        """The state and the history, with numbers for ids; without `whole` only what a fork has of it."""
        numbers: dict[str, int] = {}
        history = self.history(graph, thread_id)
        if whole:
            found = [shown(one, numbers) for one in reversed(history)]
            return [*found, shown(self.players[graph].state(config(thread_id)), numbers)]
        history = history[: len(history) - hidden]
        places = {at(one): number for number, one in enumerate(history)}
        above = [one.parent_config and places.get(one.parent_config["configurable"]["checkpoint_id"]) for one in history]
        state = self.players[graph].state(config(thread_id))
        return [*map(without_places, [*history, state]), {"above": above}]

    def kept(self, thread_id: str) -> list[tuple[Any, ...]]:
        """Every checkpoint in every namespace with its pending writes, from the first on."""
        found = sorted(self.saver.list(config(thread_id)), key=lambda one: one.checkpoint["id"])
        found = [one for one in found if (thread_id, one.checkpoint["id"]) not in self.left]
        numbers = {one.checkpoint["id"]: number for number, one in enumerate(found)}
        return [
            (
                [part.split(":")[0] for part in one.config["configurable"]["checkpoint_ns"].split("|")],
                one.metadata["source"],
                one.metadata["step"],
                one.checkpoint["channel_values"],
                sorted(one.checkpoint["channel_versions"]),
                {name: sorted(seen) for name, seen in one.checkpoint["versions_seen"].items()},
                sorted(channel for _, channel, _ in one.pending_writes or ()),
                one.parent_config and numbers.get(one.parent_config["configurable"]["checkpoint_id"]),
            )
            for one in found
        ]


def without_places(snapshot: StateSnapshot) -> dict[str, Any]:
    """What is shown of a snapshot, here and in subgraphs, but for where it is."""

    def strip(told: Any) -> Any:
        if not isinstance(told, dict) or "is" not in told:
            return told
        tasks = [(*task[:-1], strip(task[-1])) for task in told["tasks"]]
        return {**told, "is": None, "parent": None, "tasks": tasks}

    return strip(shown(snapshot, {}))


def same(found: Any, expected: Any, where: str) -> None:
    """Fail with the first difference of two lists."""
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        assert one == other, f"{where}, {number} of {len(expected)}:\n  ours   {one}\n  theirs {other}"
    assert len(found) == len(expected), f"{where}: {len(found)} instead of {len(expected)}"


def outcome(act: Callable[[Side], Any], side: Side) -> Any:
    """What comes of it: an answer without ids, or the class of the error."""
    try:
        found = act(side)
    except Exception as error:  # noqa: BLE001 - compared with that of the other side
        note(f"{type(error).__name__}: {error}")
        return type(error).__name__
    if isinstance(found, Mapping) and "configurable" in found:
        return "a place"
    if isinstance(found, Mapping) and "__interrupt__" in found:
        return {**found, "__interrupt__": [one.value for one in found["__interrupt__"]]}
    return found


# -- the machine -----------------------------------------------------------------------------------


class GraphMachine(RuleBasedStateMachine):
    """Does the same on both sides, and looks at both."""

    def make_vault(self) -> Vault:
        raise NotImplementedError

    def reopen(self, vault: Vault) -> Vault | None:
        return None

    @initialize(awaited=st.booleans())
    def begin(self, awaited: bool) -> None:
        self.runner = asyncio.Runner() if awaited else None
        self.vault = self.make_vault()
        self.theirs, self.ours = Side(self.runner), Side(self.runner)
        self.theirs.use(Oracle())
        self.ours.use(SavegameSaver(self.vault))
        self.graph_of = {name: name for name in GRAPHS}
        self.hidden: dict[str, int] = {}
        """How many checkpoints a fork does not have of its source."""
        self.made_from: dict[str, str] = {}
        self.touched: set[str] = set()
        self.count: dict[str, int] = {}
        """How many checkpoints a thread has."""
        self.waiting: set[str] = set()
        """Threads in which a subgraph is running."""
        for thread_id in GRAPHS:
            self.both(
                thread_id, lambda side, thread_id=thread_id: self.run(side, thread_id, {"value": ["begin"]}, config(thread_id))
            )

    def teardown(self) -> None:
        if not hasattr(self, "vault"):
            return
        try:
            assert self.vault.verify().ok
            self.touched |= self.graph_of.keys()
            self.look()
            self.look_at_a_copy_of_the_vault()
        finally:
            self.vault.close()
            if self.runner is not None:
                self.runner.close()

    def both(self, thread_id: str, act: Callable[[Side], Any]) -> Any:
        """Do it on both sides; both must give the same and run the same nodes."""
        self.touched.add(thread_id)
        found = []
        for side in (self.theirs, self.ours):
            side.nodes.forget()
            found.append((outcome(act, side), side.nodes.saw))
        same(found[1], found[0], f"what came of it in {thread_id}")
        return found[0][0]

    def draw_thread(self, data: st.DataObject, *, among: Sequence[str] | None = None) -> str:
        return data.draw(st.sampled_from(sorted(self.graph_of if among is None else among)), label="thread")

    def draw_point(self, data: st.DataObject, among: Sequence[str], *, least: int = 0) -> tuple[str, int]:
        """A thread, and the number of one of its checkpoints, from the newest on."""
        thread_id = self.draw_thread(data, among=among)
        return thread_id, data.draw(st.integers(least, self.count[thread_id] - 1), label="point")

    def filled(self, least: int = 1) -> list[str]:
        """The threads with so many checkpoints, and not too many to look at."""
        return [thread_id for thread_id, count in self.count.items() if least <= count < MOST_CHECKPOINTS]

    def to_replay(self, least: int = 1) -> list[str]:
        """Those that a graph can replay as InMemorySaver would, which knows no rewinds.

        In a replay LangGraph takes a subgraph's newest checkpoint by time, also one that a rewind undid.
        """
        left = {thread_id for thread_id, _ in self.ours.left if self.graph_of[thread_id] != "flat"}
        return [one for one in self.filled(least) if one not in left]

    def point(self, side: Side, thread_id: str, number: int) -> StateSnapshot:
        return side.history(self.graph_of[thread_id], thread_id)[number]

    def run(self, side: Side, thread_id: str, given: Any, where: Any, durability: str = "sync") -> Any:
        player = side.players[self.graph_of[thread_id]]
        return player.invoke(given, {**where, "max_concurrency": 1}, durability=durability)

    def inside(self, side: Side, thread_id: str) -> Any:
        """Where the innermost subgraph of the running task is."""
        found: Any = side.players[self.graph_of[thread_id]].state(config(thread_id))
        where = None
        while found.tasks and isinstance(found.tasks[0].state, StateSnapshot):
            found = found.tasks[0].state
            where = found.config
        return where

    # -- what people do with graphs ----------------------------------------------------------------

    @rule(data=st.data(), word=words, durability=durabilities)
    def start(self, data: st.DataObject, word: str, durability: str) -> None:
        """A new run, on top of whatever there is."""
        thread_id = self.draw_thread(data)
        self.both(thread_id, lambda side: self.run(side, thread_id, {"value": [word]}, config(thread_id), durability))

    @rule(data=st.data(), word=words, durability=durabilities)
    def answer(self, data: st.DataObject, word: str, durability: str) -> None:
        thread_id = self.draw_thread(data)
        self.both(thread_id, lambda side: self.run(side, thread_id, Command(resume=word), config(thread_id), durability))

    @rule(data=st.data(), durability=durabilities)
    def go_on(self, data: st.DataObject, durability: str) -> None:
        thread_id = self.draw_thread(data)
        self.both(thread_id, lambda side: self.run(side, thread_id, None, config(thread_id), durability))

    @precondition(lambda self: self.to_replay())
    @rule(data=st.data(), given=st.sampled_from((None, None, "run", "answer")))
    def replay(self, data: st.DataObject, given: str | None) -> None:
        """From any checkpoint of the history."""
        thread_id, number = self.draw_point(data, self.to_replay())
        what = {None: None, "run": {"value": ["again"]}, "answer": Command(resume="again")}[given]
        self.both(thread_id, lambda side: self.run(side, thread_id, what, self.point(side, thread_id, number).config))

    @precondition(lambda self: self.to_replay())
    @rule(data=st.data(), word=st.none() | words, newest=st.booleans(), then=st.booleans())
    def change(self, data: st.DataObject, word: str | None, newest: bool, then: bool) -> None:
        """`update_state` at any checkpoint, as any node or as a copy, and then perhaps a run from there."""
        thread_id, number = self.draw_point(data, self.to_replay())
        if newest:
            thread_id, number = self.draw_thread(data, among=self.to_replay(0)), None
        graph = self.graph_of[thread_id]
        node = data.draw(st.sampled_from([None, None, "__copy__", START, *NODES[graph]]), label="as")
        values = None if word is None or node == "__copy__" else {"value": [word]}

        def act(side: Side) -> Any:
            where = config(thread_id) if number is None else self.point(side, thread_id, number).config
            changed = side.players[graph].update(where, values, node)
            return self.run(side, thread_id, None, changed) if then else changed

        self.both(thread_id, act)

    @precondition(lambda self: self.waiting.intersection(self.to_replay()))
    @rule(data=st.data(), word=st.none() | words, given=st.sampled_from((None, "answer", "look")))
    def change_inside(self, data: st.DataObject, word: str | None, given: str | None) -> None:
        """Change or replay the innermost subgraph that is running, or answer there."""
        thread_id = self.draw_thread(data, among=list(self.waiting.intersection(self.to_replay())))

        def act(side: Side) -> Any:
            where = self.inside(side, thread_id)
            if word is not None:
                key = "own" if self.graph_of[thread_id] == "remembering" else "value"
                where = side.players[self.graph_of[thread_id]].update(where, {key: [word]})
            return "" if given == "look" else self.run(side, thread_id, given and Command(resume="inside"), where)

        self.both(thread_id, act)

    @rule(name=st.sampled_from(("right", "work", "end")))
    def break_or_mend(self, name: str) -> None:
        """From now on, a node fails, or does so no more."""
        for side in (self.theirs, self.ours):
            side.nodes.broken ^= {name}

    @rule(data=st.data(), by=st.sampled_from(("saver", "thread")))
    def delete(self, data: st.DataObject, by: str) -> None:
        thread_id = self.draw_thread(data)
        self.theirs.saver.delete_thread(thread_id)
        if by == "saver":
            self.ours.saver.delete_thread(thread_id)
        else:
            self.vault.thread(thread_id).delete()
        self.forget(thread_id)

    def forget(self, thread_id: str) -> None:
        """A thread is gone; another may begin under its name."""
        self.touched.add(thread_id)
        self.ours.left = {one for one in self.ours.left if one[0] != thread_id}
        self.hidden.pop(thread_id, None)
        self.made_from = {made: source for made, source in self.made_from.items() if thread_id not in (made, source)}

    @precondition(lambda self: self.filled() and len(self.graph_of) < MOST_THREADS)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """Through the saver: a thread with the same checkpoints."""
        thread_id, new = self.draw_thread(data, among=self.filled()), f"copy {len(self.graph_of)}"
        for side in (self.theirs, self.ours):
            side.saver.copy_thread(thread_id, new)
        self.ours.left |= {(new, one) for where, one in self.ours.left if where == thread_id}
        self.add(new, thread_id)

    def add(self, new: str, source: str) -> None:
        self.graph_of[new] = self.graph_of[source]
        self.made_from[new] = source
        if source in self.hidden:
            self.hidden[new] = self.hidden[source]
        self.touched.add(new)

    @rule(data=st.data())
    def open_again(self, data: st.DataObject) -> None:
        """A saver that remembers nothing; where the vault outlives a process, in a new vault."""
        self.vault = self.reopen(self.vault) or self.vault
        self.ours.use(SavegameSaver(self.vault))

    # -- what the vault does to them ---------------------------------------------------------------

    def vaults_id(self, thread_id: str, number: int) -> str:
        return GraphPlace(thread_id, "").checkpoint(at(self.point(self.ours, thread_id, number)))

    @precondition(lambda self: self.filled())
    @rule(data=st.data(), name=st.none() | words)
    def label_and_verify(self, data: st.DataObject, name: str | None) -> None:
        """Changes nothing for the graph."""
        thread_id, number = self.draw_point(data, self.filled())
        self.vault.thread(thread_id).label(self.vaults_id(thread_id, number), name)
        assert self.vault.verify().ok
        self.touched.add(thread_id)

    @precondition(lambda self: self.filled(2))
    @rule(data=st.data(), given=st.sampled_from((None, None, "run", "answer")))
    def rewind(self, data: st.DataObject, given: str | None) -> None:
        """The state is that of then, what was written there is not applied, and the next node runs again."""
        thread_id, number = self.draw_point(data, self.filled(2), least=1)  # at the head there is nothing to take back
        self.back(thread_id, thread_id, number, waits=True)
        there = self.vaults_id(thread_id, number)
        self.leave(thread_id, at(self.point(self.ours, thread_id, number)))
        self.vault.thread(thread_id).rewind(there)
        self.go_on_from_there(thread_id, given)

    @precondition(lambda self: self.filled() and len(self.graph_of) < MOST_THREADS)
    @rule(data=st.data(), given=st.sampled_from((None, None, "run", "answer")))
    def fork(self, data: st.DataObject, given: str | None) -> None:
        """A thread of its own that begins with a checkpoint of another."""
        (thread_id, number), new = self.draw_point(data, self.filled()), f"fork {len(self.graph_of)}"
        self.theirs.saver.copy_thread(thread_id, new)
        self.back(thread_id, new, number, waits=False)
        self.vault.thread(thread_id).fork(new, at=self.vaults_id(thread_id, number))
        self.add(new, thread_id)
        self.hidden[new] = len(self.theirs.history(self.graph_of[new], new)) - 1
        assert len(self.ours.history(self.graph_of[new], new)) == 1
        self.go_on_from_there(new, given)

    @precondition(lambda self: self.filled())
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        """Takes a thread, and all that were copied or forked from it."""
        thread_id = self.draw_thread(data, among=self.filled())
        self.vault.thread(thread_id).attach_subject("ann")
        family = {thread_id}
        while more := {made for made, source in self.made_from.items() if source in family} - family:
            family |= more
        erased = self.vault.erase("ann")
        assert family <= set(erased.threads)
        relatives = {one for pair in self.made_from.items() for one in pair} - family  # they share checkpoint ids
        assert all(message.split("'")[1].partition("␟")[0] in relatives for message in erased.unreached), erased.unreached
        for one in sorted(family):
            self.theirs.saver.delete_thread(one)
            self.forget(one)

    def leave(self, thread_id: str, point: str) -> None:
        """From now on, do not look at what a rewind to this checkpoint undoes."""
        listed = list(self.ours.saver.list(config(thread_id)))
        above = {one.checkpoint["id"]: one.parent_config for one in listed if not one.config["configurable"]["checkpoint_ns"]}
        before, place = set(), above[point]
        while place:
            before.add(place["configurable"]["checkpoint_id"])
            place = above.get(place["configurable"]["checkpoint_id"])
        for one in listed:
            under = one.metadata["parents"].get("")
            if one.checkpoint["id"] > point or (under and under not in before):
                self.ours.left.add((thread_id, one.checkpoint["id"]))

    def back(self, source: str, thread_id: str, number: int, *, waits: bool) -> None:
        """What the definition of going back to a checkpoint of a thread is, done to the oracle's thread."""
        self.theirs.saver.go_back(thread_id, at(self.point(self.theirs, source, number)), waits=waits)

    def go_on_from_there(self, thread_id: str, given: str | None) -> None:
        """The state is that of the checkpoint; then the graph goes on."""
        graph = self.graph_of[thread_id]
        theirs, ours = (side.players[graph].state(config(thread_id)) for side in (self.theirs, self.ours))
        assert (ours.values, ours.next) == (theirs.values, theirs.next)
        assert [(ours.metadata or {}).get(name) for name in ("source", "step")] == [
            (theirs.metadata or {}).get(name) for name in ("source", "step")
        ]
        what = {None: None, "run": {"value": ["on"]}, "answer": Command(resume="on")}[given]
        self.both(thread_id, lambda side: self.run(side, thread_id, what, config(thread_id)))

    # -- looking -----------------------------------------------------------------------------------

    @invariant()
    def look(self) -> None:
        """Both tell the same of the threads that were touched."""
        for thread_id in sorted(getattr(self, "touched", ())):
            self.look_at(thread_id, self.ours)
            self.count[thread_id] = len(self.ours.history(self.graph_of[thread_id], thread_id))
            self.waiting.discard(thread_id)
            self.waiting |= {thread_id} if self.inside(self.ours, thread_id) else set()
        self.touched = set()

    def look_at(self, thread_id: str, ours: Side) -> None:
        graph, hidden = self.graph_of[thread_id], self.hidden.get(thread_id)
        told = self.theirs.told(graph, thread_id, hidden is None, hidden or 0)
        same(ours.told(graph, thread_id, hidden is None), told, f"the history of {thread_id}")
        if hidden is None:
            same(ours.kept(thread_id), self.theirs.kept(thread_id), f"what is kept of {thread_id}")

    def look_at_a_copy_of_the_vault(self) -> None:
        """What `copy_to` wrote tells the same to a new saver."""
        with savegame.open("memory:") as other:
            self.vault.copy_to(other)
            copied = Side(self.runner)
            copied.use(SavegameSaver(other))
            copied.left = self.ours.left
            for thread_id in self.graph_of:
                self.look_at(thread_id, copied)
