"""Several processes that want one thread: at the same moment, or while its holder is stopped. What must be true of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import time
from typing import Any

from agents import Agent, Log, broken_promises
from broken_stores import Stopping, opened

from savegame import Busy, Fenced, SavegameError
from savegame.store import Store
from savegame.testing.faults import PATIENCE_S, Child, Mouth

Broken = tuple[type[Store], ...]
SHORT = dt.timedelta(seconds=0.5)


def leave_behind(mouth: Mouth, address: str, thread_ids: list[str], log: Log) -> None:
    """Begin runs on some threads, and hold them until killed."""
    with contextlib.ExitStack() as stack:
        vault = stack.enter_context(opened(address))
        for thread_id in thread_ids:
            agent = Agent(vault, thread_id, log, asks=False)
            run = stack.enter_context(vault.run(thread_id, tools=agent.tools()))
            run.user("Where is my order?", key="click")
            agent.ask_model(run)
        mouth.say("held")
        mouth.hear()


def resume_each(mouth: Mouth, address: str, thread_ids: list[str], log: Log, broken: Broken) -> None:
    """Resume threads, each when the parent says so; what came of it."""
    with opened(address, *broken) as vault:
        for thread_id in thread_ids:
            mouth.say("ready")
            mouth.hear()
            try:
                outcome = Agent(vault, thread_id, log, asks=False).work()
            except SavegameError as error:
                outcome = type(error).__name__
            mouth.say(outcome)


def raced(address: str, log: Log, *, rounds: int, workers: int, broken: Broken = ()) -> list[str]:
    """Let processes resume threads of a killed one, all at the same moment; what was wrong with it."""
    threads = [f"raced {number}" for number in range(rounds)]
    with Child(leave_behind, address, threads, log) as child:
        assert child.next() == ["held"]
    wrong = []
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(resume_each, address, threads, log, broken)) for _ in range(workers)]
        for thread_id in threads:
            assert all(child.next() == ["ready"] for child in children)
            for child in children:
                child.go()
            outcomes = sorted(child.next()[0] for child in children)
            if outcomes.count("ran") != 1 or set(outcomes) - {"ran", "finished", "Busy"}:
                wrong.append(f"{thread_id}: {outcomes}")
    return wrong or broken_promises(address, threads, log, crashed=False)


def stop_at(mouth: Mouth, address: str, log: Log, moment: str, broken: Broken) -> None:
    """Run an agent that stops at a moment and goes on after it; what came of its next write."""
    with opened(address, Stopping, *broken) as vault:
        store: Any = vault.store

        def reached(name: str) -> None:
            if name == moment:
                store.stop(mouth)

        try:
            Agent(vault, "t", log, reached, SHORT).to_the_end(mouth.say)
        except Fenced:
            mouth.say("fenced")


def overtaken(address: str, log: Log, moment: str, broken: Broken = ()) -> tuple[str, bool]:
    """Stop an agent, let another finish its thread, let it go on: "fenced" or "wrote", and whether something changed."""
    with Child(stop_at, address, log, moment, broken) as child, opened(address) as vault:
        what, stopped = child.next()
        assert what == "stops"
        _when_free(Agent(vault, "t", log))
        before = _everything(address)
        deadline = time.monotonic() + PATIENCE_S
        while not (said := child.lines()) and time.monotonic() < deadline:
            os.kill(stopped, signal.SIGCONT)
            time.sleep(0.01)
        return said[0][0], _everything(address) != before


def _when_free(agent: Agent) -> None:
    """Run an agent as soon as no other process does."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            agent.to_the_end(_unheard)
        except Busy:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


def _unheard(*words: Any) -> None:
    """No process listens."""


def _everything(address: str) -> Any:
    """All that is kept of the thread, except for its lease."""
    with opened(address) as vault:
        thread = vault.thread("t")
        checkpoints = [(one.id, one.load().state) for one in thread.history(branches=True)]
        return checkpoints, list(vault.calls("t")), thread.records("answer"), thread.records("run")
