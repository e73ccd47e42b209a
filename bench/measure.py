"""Stopwatch and scales: wall and CPU time per call, percentiles, resident memory, size of a database with its WAL."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Summary = dict[str, float]
Call = Callable[[], Any]


def timed(calls: Iterable[Call]) -> list[tuple[float, float]]:
    """Wall and CPU microseconds of each call, without the time that the iterable takes to prepare it."""
    samples: list[tuple[float, float]] = []
    turn = int(os.environ.get("SAVEGAME_BENCH_TURN", "0"))
    for number, call in enumerate(calls):
        if turn and number % turn == 0:
            _take_turn()
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        result = call()
        samples.append(((time.perf_counter_ns() - wall) / 1000, (time.process_time_ns() - cpu) / 1000))
        del result  # taking a big state apart is not part of loading it
    return samples


def _take_turn() -> None:
    """End this contestant's turn, and wait for its next one (bench.rounds)."""
    print(flush=True)
    sys.stdin.readline()


def settle() -> None:
    """Freeze existing objects, so that the garbage collector does not scan the harness while the contestant runs."""
    gc.collect()
    gc.freeze()


def summary(samples: list[tuple[float, float]]) -> Summary:
    """Median, p99, mean and worst of the wall time, mean CPU time; microseconds."""
    walls = sorted(wall for wall, _ in samples)
    return {
        "median_us": statistics.median(walls),
        "p99_us": walls[min(len(walls) - 1, int(len(walls) * 0.99))],
        "mean_us": statistics.fmean(walls),
        "max_us": walls[-1],
        "cpu_us": statistics.fmean(cpu for _, cpu in samples),
        "samples": len(walls),
    }


def summarise(calls: Iterable[Call]) -> Summary:
    """`summary(timed(calls))`, from a settled start."""
    settle()
    return summary(timed(calls))


def rss_bytes() -> int:
    """Resident memory of this process now (or its maximum so far, where the system only exposes that)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def disk_bytes(path: Path) -> int:
    """The size of the database with its -wal and -shm, without opening them."""
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))


def marks(last: int) -> list[int]:
    """Steps at which growth is looked at: 10, 20, 50, 100, ... up to and with `last`."""
    found = [base * 10**power for power in range(1, 6) for base in (1, 2, 5)]
    return [mark for mark in found if mark < last] + [last]
