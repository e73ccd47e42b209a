"""Who does what in which order: rounds of tasks, each contestant in its own process, the contestants taking turns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from bench.sizes import Sizes

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Task:
    """A task, who does it, how often in a round, and whether one round is enough because it counts bytes and not time.

    With a `turn`, all are there at the same time, and each makes `turn` calls, then the next: what the machine does
    besides is the same for all.
    """

    name: str
    contestants: tuple[str, ...] = ("savegame",)
    times: int = 1
    once: bool = False
    turn: int = 0


PLAN = (
    Task("update", ("floor", "savegame"), times=5, turn=40),  # the narrowest of all limits
    Task("flat"),
    Task("grow", ("floor", "savegame", "sqlitesaver")),
    Task("load", ("savegame", "sqlitesaver"), times=3, turn=1),
    Task("older"),
    Task("history", ("savegame", "sqlitesaver")),
    Task("save", ("savegame", "sqlitesaver")),
    Task("step", ("floor", "savegame", "dbos", "dbos_wal")),
    Task("resume"),
    Task("disk"),
    Task("pg_update", ("pg_floor", "pg_savegame")),
    Task("pg_save", ("pg_savegame", "pg_saver")),
    Task("pg_at_once", ("pg_savegame",)),
    Task("pg_size", ("pg_savegame", "pg_saver"), once=True),
    Task("threads"),
    Task("padded_threads"),
    Task("grow_save", once=True),
    Task("edits", once=True),
    Task("memory", once=True),
    Task("memory_uncached", once=True),
    Task("saver_dicts", ("saver_savegame", "saver_sqlite"), once=True),
    Task("saver_messages", ("saver_savegame", "saver_sqlite"), once=True),
    Task("many", ("savegame", "savegame_file"), once=True),
    Task("work", once=True),
    Task("pages", ("savegame", "pg_savegame"), once=True),
    Task("chat", ("saver_savegame", "saver_sqlite", "saver_delta"), once=True, turn=5),
    Task("short_chats", ("saver_savegame", "saver_sqlite", "saver_memory"), turn=1),
)
TURNS = {task.name: task.turn for task in PLAN if task.turn}
GROWN = frozenset(("load", "older", "history", "disk"))
"""These use what `grow`, which comes before them, left behind."""


@dataclass(slots=True)
class Results:
    """What the contestants measured, by contestant and task, one entry per round; and who crashed."""

    found: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    crashes: list[str] = field(default_factory=list)

    def get(self, contestant: str, task: str) -> list[dict[str, Any]]:
        """One entry per round; none if the contestant is not there."""
        return self.found.get((contestant, task), [])


class Turn(NamedTuple):
    """One contestant at one task in one round, for the first time in it or again."""

    round: int
    task: str
    contestant: str
    again: int


def turns(rounds: int, contestants: set[str], only: set[str], *, quick: bool) -> list[Turn]:
    """Whose turn it is, and at what, from the first to the last."""
    only = only | {"grow"} if only & GROWN else only
    return [
        Turn(number, task.name, name, again)
        for number in range(1, rounds + 1)
        for task in PLAN
        if (not only or task.name in only) and (number == 1 or not task.once)
        for again in range(1 if quick else task.times)
        for name in task.contestants
        if name in contestants
    ]


def play(order: list[Turn], sizes: Sizes, where: Path | None, say: Callable[[Turn], None]) -> Results:
    """Run everything in a temporary directory on a real disk, which is removed afterwards."""
    results = Results()
    with workplace(where) as work, _postgres({turn.contestant for turn in order}) as server:
        for number, round_ in groupby(order, key=lambda turn: turn.round):
            room = work / f"round-{number}"

            def begun(turn: Turn, room: Path = room) -> Run:
                say(turn)
                place = f"{turn.contestant}-{turn.again}" if turn.again and turn.task not in GROWN else turn.contestant
                return Run(turn.contestant, turn.task, room / place, sizes, server)

            for (task, _), at_it in groupby(round_, key=lambda turn: (turn.task, turn.again)):
                if task in TURNS:
                    _in_turns([begun(turn) for turn in at_it], results)
                else:
                    for turn in at_it:
                        begun(turn).to_its_end(results)
            shutil.rmtree(room, ignore_errors=True)
    return results


@contextmanager
def workplace(where: Path | None) -> Iterator[Path]:
    """A temporary directory that is not in memory: under `where`, or the first fitting of the usual places."""
    if where is None:
        places = [Path(tempfile.gettempdir()), Path("/var/tmp"), ROOT / "bench" / "results"]
        where = next((place for place in places if filesystem(place) not in ("tmpfs", "ramfs")), places[-1])
    where.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="savegame-bench-", dir=where))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def filesystem(place: Path) -> str:
    """The type of the filesystem that a path is on; "unknown" where the system does not tell."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, point, found, *_ = line.split()
        if len(point) >= len(best) and place.resolve().is_relative_to(point):
            best, kind = point, found
    return kind


@contextmanager
def _postgres(contestants: set[str]) -> Iterator[dict[str, str]]:
    """What tells the contestants where a PostgreSQL server is, if there are any: one at full durability, on loopback."""
    if "pg_savegame" not in contestants:
        yield {}
        return
    from savegame.testing.postgres import Cluster

    with Cluster(fsync="on", shared_buffers="128MB", max_wal_size="2GB") as cluster:
        yield {"SAVEGAME_BENCH_POSTGRES": cluster.url()}


class Run:
    """One contestant at one task, in a process of its own."""

    def __init__(self, name: str, task: str, directory: Path, sizes: Sizes, server: dict[str, str]) -> None:
        os.sync()  # what the one before left to be written is not for this one to wait for
        self.name, self.task, self._said = name, task, ""
        turn = {"SAVEGAME_BENCH_TURN": str(TURNS.get(task, 0))}
        path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.contestant", name, task, str(directory), sizes.to_text()],
            cwd=ROOT,
            env={**os.environ, **server, **turn, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wants_turn(self) -> bool:
        """Wait until its step is done. Returns whether it wants another turn."""
        assert self.process.stdout is not None
        self._said = self.process.stdout.readline()
        return self._said == "\n"

    def take_turn(self) -> bool:
        """Let it work for one turn. Returns whether it wants another."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed, which the end of its output shows
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        return self.wants_turn()

    def to_its_end(self, results: Results) -> None:
        """Wait until it is done, and take down what it measured."""
        try:
            out, errors = self.process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            results.crashes.append(f"{self.name} {self.task}: took longer than {TIMEOUT_S} s")
            return
        if self.process.returncode == 0:
            results.found[self.name, self.task].append(json.loads((self._said + out).splitlines()[-1]))
        else:
            results.crashes.append(f"{self.name} {self.task}: exit code {self.process.returncode}\n{errors[-3000:].strip()}")


def _in_turns(runs: list[Run], results: Results) -> None:
    """Let contestants work one after the other, a turn each, until all are done."""
    watch = threading.Timer(TIMEOUT_S, lambda: [run.process.kill() for run in runs])
    watch.start()
    try:
        going = [run for run in runs if run.wants_turn()]
        while going:
            going = [run for run in going if run.take_turn()]
    finally:
        watch.cancel()
    for run in runs:
        run.to_its_end(results)
