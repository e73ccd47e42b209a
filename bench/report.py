"""The tables that people read and the JSON that programs do."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import apsw
from rich import box
from rich.console import Console
from rich.table import Table

from bench.rounds import Results
from bench.rows import Row, time_text
from bench.sizes import Sizes

_STATES = {True: "[green]ok[/]", False: "[bold red]MISSED[/]", None: ""}
_PACKAGES = ("savegame", "apsw", "ormsgpack", "zstandard", "langgraph-checkpoint-sqlite", "dbos")


def limits_table(found: list[Row]) -> Table:
    """The rows with a limit, kept or missed, and those beside them."""
    table = Table(title="How fast and how small", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("", "savegame", "beside it", "ratio", "over the rounds", "limit", ""):
        table.add_column(name, justify="right" if name in ("savegame", "ratio", "over the rounds") else "left")
    for row in found:
        ratio = "" if row.ratio is None else number_text(row.ratio)
        spread = "" if row.spread is None else " to ".join(number_text(value) for value in row.spread)
        table.add_row(row.what, row.ours, row.other, ratio, spread, row.limit, _STATES[row.ok])
    return table


def timings_table(results: Results) -> Table:
    """Everything that was timed: medians over the rounds."""
    table = Table(title="Every timing (medians over the rounds)", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("task", "what", "contestant", "median", "p99", "mean", "CPU per call"):
        table.add_column(name, justify="left" if name in ("task", "what", "contestant") else "right")
    for (contestant, task), entries in results.found.items():
        for what, value in entries[0].items():
            if isinstance(value, dict) and "median_us" in value:
                columns = [
                    time_text(statistics.median(entry[what][key] for entry in entries))
                    for key in ("median_us", "p99_us", "mean_us", "cpu_us")
                ]
                table.add_row(task, what, contestant, *columns)
    return table


def number_text(value: float) -> str:
    """A ratio with as many digits as are worth reading."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def print_report(console: Console, found: list[Row], results: Results, corpus: dict[str, float], *, timings: bool) -> None:
    """All tables, the corpus, and who crashed."""
    if timings:
        console.print(timings_table(results))
    console.print(limits_table(found))
    console.print(
        f"corpus: {corpus['bytes_per_step']:.0f} bytes per step of two messages; zstd ratio {corpus['zstd_ratio_whole']:.2f} "
        f"on the whole, {corpus['zstd_ratio_per_step']:.2f} step by step",
        highlight=False,
    )
    for crash in results.crashes:
        console.print(f"crashed: {crash}", style="red", markup=False, highlight=False)


def write_json(path: Path, found: list[Row], results: Results, corpus: dict[str, float], sizes: Sizes, rounds: int) -> None:
    """Everything, so that two runs can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": _machine(),
        "corpus": corpus,
        "sizes": asdict(sizes),
        "rounds": rounds,
        "rows": [asdict(row) for row in found],
        "results": {f"{name}/{task}": entries for (name, task), entries in results.found.items()},
        "crashes": results.crashes,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _machine() -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "sqlite": apsw.sqlite_lib_version(),
        "packages": versions,
    }
