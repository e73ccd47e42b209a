"""Processes that append until they are killed, each to a thread of its own and to one that all share, and what must be there
afterwards: every append that was acknowledged, once, in order; at most the last of each besides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import savegame
from savegame.testing.faults import PATIENCE_S, Child, Mouth

SHARED = "shared"


def append_for_ever(mouth: Mouth, url: str, who: int) -> None:
    """What a writer does: no handling of errors whatever, the store has to see to it."""
    with savegame.open(url) as vault:
        own, shared = vault.thread(f"own {who}"), vault.thread(SHARED)
        for number in count():
            for thread in (own, shared):
                saved = thread.update(append={"items": [[who, number]]})
                mouth.say(thread.id, saved.id, time.monotonic())


@dataclass
class Writer:
    """One of the processes, and what it said: the ids of its checkpoints, by thread."""

    who: int
    child: Child
    acked: dict[str, list[str]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)

    def listen(self) -> None:
        """Take what it said since the last time."""
        for thread_id, checkpoint_id, when in self.child.lines():
            self.acked.setdefault(thread_id, []).append(checkpoint_id)
            self.times.append(when)

    @property
    def gap(self) -> float:
        """The longest time between two of its saves."""
        return max(after - before for before, after in pairwise(self.times))


class Writers:
    """All of them, and a thread that listens, so that no writer is held up for lack of one."""

    def __init__(self, each: list[Writer]) -> None:
        self.each = each
        self._failed: AssertionError | None = None
        self._over = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        try:
            while not self._over.wait(0.01):
                for writer in self.each:
                    writer.listen()
        except AssertionError as error:
            self._failed = error

    def go_on(self, more: int = 10) -> None:
        """Wait until each has saved `more` times."""
        goals = [len(writer.times) + more for writer in self.each]
        deadline = time.monotonic() + PATIENCE_S
        while any(len(writer.times) < goal for writer, goal in zip(self.each, goals, strict=True)):
            if self._failed is not None:
                raise self._failed
            assert time.monotonic() < deadline, "a writer does not carry on"
            time.sleep(0.01)

    def stop(self) -> None:
        """SIGKILL; what they said before counts."""
        self.leave()
        for writer in self.each:
            writer.child.kill()
            writer.listen()

    def leave(self) -> None:
        """Listen no more."""
        self._over.set()
        self._listener.join()

    @property
    def figures(self) -> dict[str, Any]:
        """How much they saved, and how long it ever took one of them to go on."""
        return {
            "acked": sum(len(writer.times) for writer in self.each),
            "longest gap": round(max(writer.gap for writer in self.each), 1),
        }

    def check(self, vault: savegame.Vault) -> None:
        """Fails if something that was acknowledged is not there, or anything is there twice or in another order."""
        for writer in self.each:
            _check_thread(vault, f"own {writer.who}", [writer])
        _check_thread(vault, SHARED, self.each)
        report = vault.verify()
        assert report.ok, report.problems


def _check_thread(vault: savegame.Vault, thread_id: str, writers: list[Writer]) -> None:
    entries = list(vault.thread(thread_id).history(newest_first=False, branches=True))
    assert [entry.step for entry in entries] == list(range(1, len(entries) + 1)), "the history is one line without a gap"
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    items = vault.thread(thread_id).state()["items"]
    assert len(items) == len(entries)
    for writer in writers:
        mine = [(entry.id, number) for entry, (who, number) in zip(entries, items, strict=True) if who == writer.who]
        assert [number for _, number in mine] == list(range(len(mine))), f"{thread_id}: something is missing or doubled"
        acked = writer.acked.get(thread_id, [])
        assert [checkpoint_id for checkpoint_id, _ in mine][: len(acked)] == acked, f"{thread_id}: acknowledged and not there"
        assert len(mine) - len(acked) <= 1, f"{thread_id}: more is there than the one that was under way"


@contextmanager
def writing(url: str, processes: int = 4) -> Iterator[Writers]:
    """Start some writers, and wait until each has saved; none outlives the block."""
    with ExitStack() as stack:
        savegame.open(url).close()
        made = [Writer(who, stack.enter_context(Child(append_for_ever, url, who))) for who in range(processes)]
        writers = Writers(made)
        stack.callback(writers.leave)
        writers.go_on(1)
        yield writers
