"""The table of commands. Each is a function in the module of its family: its signature is its options, its docstring its help.

Only the module of the requested command is imported, because import time is felt at the prompt.
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
    "Runs": "runs.stale runs.calls runs.answer runs.resolve "
    "messaging.send messaging.inbox messaging.unsend messaging.stop effects.effects",
    "Look after it": "health.verify health.repair doctor.doctor upkeep.prune upkeep.erase upkeep.compact upkeep.backup",
    "Move": "transfer.export transfer.copy transfer.migrate importing.import_",
    "Serve": "serving.ui serving.mcp",
    "Try": "trying.demo trying.bench",
}
"""Commands by panel of `savegame --help`: module and function."""

PASSED_ON: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True}


def build_app(command_name: str | None = None) -> typer.Typer:
    """Return the command line with all commands, or with only the named one if it exists."""
    app = typer.Typer(
        name="savegame",
        help="Save games for AI agents: every step durable, rewindable, forkable, resumable.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(root)
    rows = [(panel, *name.split(".")) for panel, names in COMMANDS.items() for name in names.split()]
    for panel, module, name in [row for row in rows if row[2].rstrip("_") == command_name] or rows:
        command = getattr(import_module(f"savegame.cli.{module}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name.rstrip("_"), rich_help_panel=panel)
        else:
            app.command(rich_help_panel=panel, context_settings=PASSED_ON if name == "bench" else None)(command)
    return app


def _print_version(requested: bool) -> None:
    if requested:
        say(f"savegame {version('savegame')}")
        raise typer.Exit


def _refuse_early(_: typer.Context, parameter: typer.CallbackParam, value: str | None) -> None:
    if value is not None:
        option = f"--{str(parameter.name).strip('_')}"
        raise InvalidInputError(f"{option} goes after the command: savegame ls {option} …")


def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    _store: Annotated[str | None, typer.Option("--store", "-s", hidden=True, callback=_refuse_early, is_eager=True)] = None,
    _namespace: Annotated[str | None, typer.Option("--namespace", hidden=True, callback=_refuse_early, is_eager=True)] = None,
) -> None:
    """Save games for AI agents: every step durable, rewindable, forkable, resumable."""
