"""`savegame demo` and `savegame bench`: watch it work, measure what it costs."""

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
    """Watch an agent crash, resume and travel in time.

    Kills a scripted agent, resumes it, then rewinds, forks and compares its thread. Takes a few seconds.

    Example: savegame demo --keep try-it
    """
    raise typer.Exit(demo_command.play(keep))


def bench(context: typer.Context) -> None:
    """Measure savegame against others and the bare database.

    Runs only in a checkout of the repository. Passes all options on; list them with savegame bench -- --help.

    Example: savegame bench --quick
    """
    checkout = Path(savegame.__file__).resolve().parents[2]
    if not (checkout / "bench" / "__main__.py").is_file():
        raise savegame.UnsupportedError("the installed package has no benchmarks; clone the repository and run ./dev bench")
    sys.path.insert(0, str(checkout))
    measure = importlib.import_module("bench").main
    raise typer.Exit(measure(context.args))
