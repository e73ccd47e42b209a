"""Graphs for time travel: their nodes say what they saw; and a player that runs them in one colour or the other."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.types import StateSnapshot, interrupt
from scripted import Graph, config

Step = str | tuple[str, Graph]
"""The name of a node, or a subgraph with its name. `ask?` asks a person, `work#` adds how often it has run."""


class Nodes:
    """Makes the nodes of a test, and knows which of them ran and what they saw."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.saw: list[tuple[str, list[str]]] = []
        self.broken: set[str] = set()
        self._runs: Counter[str] = Counter()

    def forget(self) -> None:
        """Count the nodes that run from now on."""
        self.ran.clear()
        self.saw.clear()

    def state(self, key: str) -> Any:
        """A schema with one list that grows."""
        return TypedDict(f"Of_{key}", {key: Annotated[list[str], operator.add]})  # type: ignore[operator]

    def node(self, name: str, key: str) -> Any:
        """The function of a node."""

        def act(state: dict[str, list[str]]) -> dict[str, list[str]]:
            self.ran.append(name)
            self.saw.append((name, list(state[key])))
            self._runs[name] += 1
            if name in self.broken:
                raise RuntimeError(f"{name} is broken")
            if name.endswith("?"):
                return {key: [f"{name[:-1]}:{interrupt(name)}"]}
            return {key: [f"{name[:-1]}{self._runs[name]}" if name.endswith("#") else name]}

        return act

    def line(self, *steps: Step, key: str = "value", saver: BaseCheckpointSaver[Any] | bool | None = None) -> Graph:
        """Nodes one after the other. With `saver=True`, a subgraph that remembers from run to run."""
        builder: Any = StateGraph(self.state(key))
        before = START
        for step in steps:
            name, what = (step, self.node(step, key)) if isinstance(step, str) else step
            builder.add_node(name, what)
            builder.add_edge(before, name)
            before = name
        return builder.compile(checkpointer=saver)


class Player:
    """A graph, run in one colour; without a place, in the newest checkpoint of thread "t"."""

    def __init__(self, graph: Graph, runner: asyncio.Runner | None) -> None:
        self.graph, self._runner = graph, runner

    def invoke(self, given: Any, at: Any = None, **how: Any) -> Any:
        """Run until it ends or asks."""
        if self._runner is None:
            return self.graph.invoke(given, at or config(), **how)
        return self._runner.run(self.graph.ainvoke(given, at or config(), **how))

    def asked(self, given: Any, at: Any = None) -> list[Any]:
        """Run it; what it asks."""
        return [one.value for one in self.invoke(given, at).get("__interrupt__", ())]

    def state(self, at: Any = None) -> StateSnapshot:
        """The state, with those of subgraphs."""
        if self._runner is None:
            return self.graph.get_state(at or config(), subgraphs=True)
        return self._runner.run(self.graph.aget_state(at or config(), subgraphs=True))

    def inside(self, depth: int = 1) -> Any:
        """Where the subgraph of the running task is, or the one inside it."""
        found: Any = self.state()
        for _ in range(depth):
            found = found.tasks[0].state
        return found.config

    def history(self, at: Any = None) -> list[StateSnapshot]:
        """All checkpoints, newest first."""
        if self._runner is None:
            return list(self.graph.get_state_history(at or config()))

        async def collect() -> list[StateSnapshot]:
            return [one async for one in self.graph.aget_state_history(at or config())]

        return self._runner.run(collect())

    def before(self, *names: str) -> list[StateSnapshot]:
        """The checkpoints after which these nodes run, newest first."""
        return [one for one in self.history() if one.next == names]

    def update(self, at: Any, values: Any, as_node: str | None = None) -> Any:
        """Change the state at a checkpoint; where that is then."""
        if self._runner is None:
            return self.graph.update_state(at, values, as_node)
        return self._runner.run(self.graph.aupdate_state(at, values, as_node))


def told(history: Iterable[StateSnapshot], key: str = "value") -> list[tuple[Any, ...]]:
    """Of each checkpoint: why it was made, what runs next, and its list."""
    return [((one.metadata or {})["source"], one.next, one.values.get(key, [])) for one in history]


def shape(history: Iterable[StateSnapshot]) -> list[tuple[Any, ...]]:
    """Of each checkpoint: why it was made, and what runs next."""
    return [((one.metadata or {})["source"], one.next) for one in history]


def number(snapshot: StateSnapshot | None) -> str | None:
    return None if snapshot is None else snapshot.config["configurable"]["checkpoint_id"]


def parent(snapshot: StateSnapshot) -> str | None:
    return snapshot.parent_config["configurable"]["checkpoint_id"] if snapshot.parent_config else None


def tree(history: list[StateSnapshot]) -> list[Any]:
    """Checkpoints and the results of their tasks, from the first on; where there are several next ones, a list of each."""
    children: dict[str | None, list[StateSnapshot]] = {}
    for one in reversed(history):
        children.setdefault(parent(one), []).append(one)

    def below(above: str | None) -> list[Any]:
        branches = [
            [one.values, *((task.name, task.result) for task in one.tasks), *below(number(one))]
            for one in children.get(above, ())
        ]
        return branches[0] if len(branches) == 1 else [branches] if branches else []

    return below(None)
