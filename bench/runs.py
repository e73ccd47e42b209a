"""Runs of savegame: the cost of a durable step, and the time to resume a long run.

The resumed conversation comes from a run with a tool call in every turn, so that it has a full ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import savegame
from bench import corpus
from bench.measure import Call, settle, summarise, summary, timed
from bench.sizes import Sizes

TOOLS = savegame.Toolbox()


@TOOLS.tool(read_only=True)
def look(call: savegame.Call, query: str, limit: int, exact: bool) -> str:
    """What every call of the conversation calls."""
    return corpus.text(Random(query))


def step(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """run.step() under a new name each time, after the steps of another run."""
    with savegame.open(directory / "step.db") as vault:
        with vault.run("warm-up") as run:
            for call in _steps(run, corpus.steps(1, sizes.warmup, "warm-up")):
                call()
        with vault.run("main") as run:
            return {"step": summarise(_steps(run, corpus.steps(1, sizes.steps)))}


def resume(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """From entering a run to its first call of the model, with and without a tool call left open; latest() in turn."""
    path = directory / "resume.db"
    _converse(path, sizes.grow)
    tasks = {"load": _load, "resume": _ask, "resume_open": _settle_and_ask}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    settle()
    for pair in corpus.steps(1, sizes.loads, "resumed"):
        for name, task in tasks.items():
            if name == "resume_open":
                _leave_open(path, pair)
            with savegame.open(path) as vault, ExitStack() as stack:  # left after the clock has stopped
                samples[name] += timed([partial(task, vault, stack)])
    return {name: summary(found[1:]) for name, found in samples.items()}


def _steps(run: savegame.Run, pairs: Iterable[corpus.Pair]) -> Iterator[Call]:
    for number, pair in enumerate(pairs, 1):
        yield partial(run.step, f"step {number}", partial(list, pair))


def _converse(path: Path, turns: int) -> None:
    """Twice as many messages: the user's at both ends, calls and their results between them."""
    with savegame.open(path) as vault, vault.run("main", tools=TOOLS) as run:
        run.user("Begin.")
        for pair in corpus.steps(1, turns - 1):
            run.model(partial(_reply, pair))
            run.tools()
        run.user("Go on.")
        assert len(run.messages) == 2 * turns


def _leave_open(path: Path, pair: corpus.Pair) -> None:
    with savegame.open(path) as vault, vault.run("main", tools=TOOLS) as run:
        run.model(partial(_reply, pair))


def _reply(pair: corpus.Pair, _: list[Any]) -> corpus.Message:
    return {**pair[0], "tool_calls": [{**call, "name": "look"} for call in pair[0]["tool_calls"]]}


def _load(vault: savegame.Vault, _: ExitStack) -> Any:
    return vault.thread("main").latest()


class _Asked(Exception):
    """The model was called."""


def _model(messages: list[Any]) -> Any:
    raise _Asked


def _ask(vault: savegame.Vault, stack: ExitStack) -> None:
    with suppress(_Asked):
        stack.enter_context(vault.run("main", tools=TOOLS)).model(_model)


def _settle_and_ask(vault: savegame.Vault, stack: ExitStack) -> None:
    run = stack.enter_context(vault.run("main", tools=TOOLS))
    run.tools()
    with suppress(_Asked):
        run.model(_model)
