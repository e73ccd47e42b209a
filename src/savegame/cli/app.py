"""The table of commands. Each is a function in the file of its family: its signature is its options, its docstring its help.

Only the file of the command that is asked for is imported: whoever types one feels what an import takes.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer

from savegame.cli.printing import say
from savegame.errors import InvalidInputError

COMMANDS: Final = {
    "Look": "threads.ls history.log checkpoints.show checkpoints.diff history.tail threads.search health.stats",
    "Go back, try again": "moving.rewind moving.fork moving.label",
    "Runs": "runs.stale runs.calls runs.answer runs.resolve",
    "Look after it": "health.verify health.repair doctor.doctor upkeep.prune upkeep.erase upkeep.compact upkeep.backup",
    "Move": "transfer.export transfer.copy transfer.migrate importing.import_",
    "Serve": "serving.ui serving.mcp",
    "Try": "trying.demo trying.bench",
}
"""By the panel of the help that they are shown in: the file, and the function that is the command."""

PASSED_ON: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True}


def made(asked: str | None = None) -> typer.Typer:
    """The command line: with every command, or only with the one that is asked for, if there is such a one."""
    app = typer.Typer(
        name="savegame",
        help="Save games for AI agents: every step durable, rewindable, forkable, resumable.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(root)
    listed = [(panel, *name.split(".")) for panel, names in COMMANDS.items() for name in names.split()]
    for panel, file, name in [one for one in listed if one[2].rstrip("_") == asked] or listed:
        command = getattr(import_module(f"savegame.cli.{file}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name.rstrip("_"), rich_help_panel=panel)
        else:
            app.command(rich_help_panel=panel, context_settings=PASSED_ON if name == "bench" else None)(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        say(f"savegame {version('savegame')}")
        raise typer.Exit


def _misplaced(_: typer.Context, parameter: typer.CallbackParam, value: str | None) -> None:
    if value is not None:
        option = f"--{str(parameter.name).strip('_')}"
        raise InvalidInputError(f"put {option} and what follows it after the command, as in: savegame ls {option} …")


def root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")] = False,
    _store: Annotated[str | None, typer.Option("--store", "-s", hidden=True, callback=_misplaced, is_eager=True)] = None,
    _namespace: Annotated[str | None, typer.Option("--namespace", hidden=True, callback=_misplaced, is_eager=True)] = None,
) -> None:
    """Save games for AI agents: every step durable, rewindable, forkable, resumable."""
