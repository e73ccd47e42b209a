"""The table of commands. Each is a function in the file of its family: its signature is its options, its docstring its help."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer

from savegame.cli import (
    checkpoints,
    doctor,
    health,
    history,
    importing,
    moving,
    runs,
    serving,
    threads,
    transfer,
    trying,
    upkeep,
)
from savegame.cli.printing import say

COMMANDS: Final[dict[str, tuple[Callable[..., None], ...]]] = {
    "Look": (threads.ls, history.log, checkpoints.show, checkpoints.diff, history.tail, threads.search, health.stats),
    "Go back, try again": (moving.rewind, moving.fork, moving.label),
    "Runs": (runs.stale, runs.calls, runs.answer, runs.resolve),
    "Look after it": (
        health.verify, health.repair, doctor.doctor, upkeep.prune, upkeep.erase, upkeep.compact, upkeep.backup,
    ),
    "Move": (transfer.export, transfer.copy, transfer.migrate),
    "Serve": (serving.ui, serving.mcp),
    "Try": (trying.demo,),
}  # fmt: skip
"""By the panel of the help that they are shown in."""

PASSED_ON: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="savegame",
    help="Save games for AI agents: every step durable, rewindable, forkable, resumable.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command(rich_help_panel="Try", context_settings=PASSED_ON)(trying.bench)
app.add_typer(
    importing.import_app,
    name="import",
    rich_help_panel="Move",
    help="Bring in an exported file, or what LangGraph's SqliteSaver kept.",
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"savegame {version('savegame')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """Save games for AI agents: every step durable, rewindable, forkable, resumable."""
