"""`savegame import file` and `savegame import langgraph`. The vault and the LangGraph adapter do the work."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from savegame.cli import json_output
from savegame.cli.printing import bar, err, one_line, plural, print_json, say, warn
from savegame.cli.vaults import AsJson, Namespace, Store, use_vault
from savegame.errors import SavegameError
from savegame.opening import shown_address
from savegame.transfer.importing import check_first_line

import_ = typer.Typer(no_args_is_help=True, help="Import an exported file, or LangGraph threads.")


@import_.command("file")
def import_file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File written by savegame export; opened read-only.")],
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Import the threads of an exported file.

    Checks the whole file first; creates the vault if missing. Run it again to resume after a crash.

    Example: savegame import file all.jsonl --store elsewhere.db
    """
    check_first_line(str(path))  # before use_vault creates a store for a file that is no export
    with use_vault(store, namespace, make=True) as vault, bar("importing") as progress:
        count = vault.import_(path, progress=progress)
    done: json_output.ImportOutput = {"path": str(path), "checkpoints": count}
    if as_json:
        print_json(done)
    else:
        say(f"{path}: {plural(count, 'checkpoint')} imported" + ("" if count else ", all were imported before"))


@import_.command("langgraph")
def import_langgraph(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="LangGraph SqliteSaver file, or postgresql:// address of a PostgresSaver.")
    ],
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Import all threads of a LangGraph SqliteSaver file or PostgresSaver database.

    Only reads the source, and compares each thread with it. Run it again to resume after a crash.

    Example: savegame import langgraph checkpoints.sqlite --store agents.db
    """
    adapter = import_module("savegame.adapters.langgraph_import")  # here, because the extra may not be installed
    with adapter.open_source(old):
        pass  # before use_vault creates a store for a source that is none
    done: json_output.GraphImportOutput = {
        "path": shown_address(old),
        "threads": 0,
        "checkpoints": 0,
        "imported": 0,
        "failed": [],
    }
    failed: list[SavegameError] = []
    with use_vault(store, namespace, make=True) as vault, bar("importing") as progress:
        for outcome in adapter.import_threads(old, vault, progress):
            if outcome.error is not None:
                failed.append(outcome.error)
                continue
            done["threads"] += 1
            done["checkpoints"] += outcome.checkpoints
            done["imported"] += outcome.new
            if not as_json and not err.is_terminal:
                say(f"{_name(outcome.place)}: {outcome.checkpoints} checkpoints, {outcome.new} imported")
    done["failed"] = [str(error) for error in failed]
    _print_result(done, as_json=as_json)
    if failed:
        raise typer.Exit(failed[0].exit_code)


def _print_result(done: json_output.GraphImportOutput, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    for message in done["failed"]:
        warn(f"savegame: {one_line(message)}")
    before = done["checkpoints"] - done["imported"]
    counts = f"{done['checkpoints']} checkpoints of {done['threads']} threads and namespaces"
    say(f"{counts}: {done['imported']} imported, {before} already in the vault")
    if done["failed"]:
        say((f"NOT imported, see above: {len(done['failed'])} threads or namespaces", "bold red"))
    else:
        say("all were read back and equal their source")


def _name(place: Any) -> str:
    return f"thread {place.thread_id!r}" + (f" (namespace {place.namespace!r})" if place.namespace else "")
