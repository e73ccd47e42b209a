"""`savegame demo` and `savegame bench`: see what it does, measure what it costs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

import savegame
from savegame.cli import demo as demo_command


def demo(
    keep: Annotated[Path | None, typer.Option(help="Keep the demo's vault in this directory.")] = None,
) -> None:
    """Watch an agent crash, carry on, and travel in time.

    The agent is killed, resumes, is rewound, forked and compared. Takes a few seconds.

    Example: savegame demo --keep try-it
    """
    raise typer.Exit(demo_command.play(keep))


def bench(context: typer.Context) -> None:
    """Measure savegame against others and the bare database.

    In a checkout of the repository; other options go to the benchmark: savegame bench -- --help lists them.

    Example: savegame bench --quick
    """
    checkout = Path(savegame.__file__).resolve().parents[2]
    if not (checkout / "bench" / "__main__.py").is_file():
        raise savegame.UnsupportedError(
            "the benchmarks are not part of the installed package: clone the repository, then ./dev bench"
        )
    sys.path.insert(0, str(checkout))
    measure = importlib.import_module("bench").main
    raise typer.Exit(measure(context.args))
