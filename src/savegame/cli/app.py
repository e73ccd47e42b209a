"""The commands and their options; what they do is in a file of each command's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

import savegame
from savegame.cli import demo as demo_command

app = typer.Typer(
    name="savegame",
    help="Save games for AI agents: every step durable, rewindable, forkable, resumable.",
    no_args_is_help=True,
    add_completion=True,
)


@app.callback()
def root() -> None:
    """Save games for AI agents: every step durable, rewindable, forkable, resumable."""


@app.command()
def demo(
    keep: Annotated[Path | None, typer.Option(help="Keep the demo's file in this directory, to look at afterwards.")] = None,
) -> None:
    """Watch an agent being killed, carry on, and be rewound, forked and compared; takes a few seconds."""
    raise typer.Exit(demo_command.play(keep))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure savegame against LangGraph's SqliteSaver and the bare database (in a checkout of the repository)."""
    checkout = Path(savegame.__file__).resolve().parents[2]
    if not (checkout / "bench" / "__main__.py").is_file():
        raise savegame.UnsupportedError(
            "the benchmarks are not part of the installed package: clone the repository, then ./dev bench"
        )
    sys.path.insert(0, str(checkout))
    measure = importlib.import_module("bench").main
    raise typer.Exit(measure(context.args))
