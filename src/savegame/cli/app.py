"""The commands and their options; what they do is in a file of each command's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

import savegame
from savegame.cli import demo as demo_command
from savegame.cli import export_command, import_command

app = typer.Typer(
    name="savegame",
    help="Save games for AI agents: every step durable, rewindable, forkable, resumable.",
    no_args_is_help=True,
    add_completion=True,
)
import_app = typer.Typer(no_args_is_help=True)
app.add_typer(
    import_app,
    name="import",
    help="Bring in an exported file (savegame import file), or what LangGraph's SqliteSaver kept (savegame import langgraph).",
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


@app.command()
def export(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The vault to export from, a path or URL; it is only read.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The new file of JSON lines; never overwritten.")],
    thread: Annotated[list[str] | None, typer.Option(help="Export this thread only; may be given several times.")] = None,
    agent: Annotated[str | None, typer.Option(help="Export the threads of this agent only.")] = None,
    namespace: Annotated[str, typer.Option(help="The namespace to export.")] = "default",
) -> None:
    """Write threads with their whole history to one checksummed file that people and other programs can read."""
    export_command.export(store, path, thread, agent, namespace)


@import_app.callback()
def import_root() -> None:
    """Bring in an exported file, or what other checkpointers kept."""


@import_app.command("file")
def import_file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that savegame export wrote; it is only read.")],
    store: Annotated[
        str, typer.Option("--store", "-s", metavar="URL", help="The vault to import into; made if it is not there.")
    ],
    namespace: Annotated[str, typer.Option(help="The namespace to import into.")] = "default",
) -> None:
    """Check a whole exported file, then bring its threads; run again after a crash, it carries on."""
    export_command.import_file(path, store, namespace)


@import_app.command("langgraph")
def import_langgraph(
    old: Annotated[Path, typer.Argument(metavar="OLD.db", help="A file of LangGraph's SqliteSaver; it is only read.")],
    store: Annotated[
        str, typer.Option("--store", "-s", metavar="URL", help="The vault to import into; made if it is not there.")
    ],
) -> None:
    """Import every thread of a file of LangGraph's SqliteSaver and compare it; run again after a crash, it carries on."""
    adapter = importlib.import_module("savegame.adapters.langgraph_import")  # here, because the extra may not be installed
    raise typer.Exit(import_command.langgraph(adapter, old, store))
