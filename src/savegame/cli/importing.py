"""`savegame import file` and `savegame import langgraph`: threads that come in. The vault and the adapter do the work."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from savegame.cli import shapes
from savegame.cli.printing import bar, err, one_line, plural, print_json, say, warn
from savegame.cli.vaults import AsJson, Namespace, Store, opened
from savegame.errors import SavegameError
from savegame.transfer.importing import check_first_line

import_ = typer.Typer(no_args_is_help=True, help="Import an exported file, or a LangGraph SqliteSaver file.")


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
    check_first_line(str(path))  # what is no export is refused before a new store is made
    with opened(store, namespace, make=True) as vault, bar("importing") as progress:
        count = vault.import_(path, progress=progress)
    done: shapes.Imported = {"path": str(path), "checkpoints": count}
    if as_json:
        print_json(done)
    else:
        say(f"{path}: {plural(count, 'checkpoint')} imported" + ("" if count else ", everything was there before"))


@import_.command("langgraph")
def import_langgraph(
    old: Annotated[str, typer.Argument(metavar="OLD.db", help="LangGraph SqliteSaver file; opened read-only.")],
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Import all threads of a LangGraph SqliteSaver file.

    Compares each thread with the source. Run it again to resume after a crash.

    Example: savegame import langgraph checkpoints.sqlite --store agents.db
    """
    adapter = import_module("savegame.adapters.langgraph_import")  # here, because the extra may not be installed
    with adapter.OldFile(old):
        pass  # what is not such a file is refused before a new store is made
    done: shapes.ImportedGraphs = {"path": old, "threads": 0, "checkpoints": 0, "imported": 0, "failed": []}
    failed: list[SavegameError] = []
    with opened(store, namespace, make=True) as vault, bar("importing") as progress:
        for outcome in adapter.import_file(old, vault, progress):
            if outcome.error is not None:
                failed.append(outcome.error)
                continue
            done["threads"] += 1
            done["checkpoints"] += outcome.checkpoints
            done["imported"] += outcome.new
            if not as_json and not err.is_terminal:
                say(f"{_name(outcome.place)}: {outcome.checkpoints} checkpoints, {outcome.new} imported")
    done["failed"] = [str(error) for error in failed]
    _end(done, as_json=as_json)
    if failed:
        raise typer.Exit(failed[0].exit_code)


def _end(done: shapes.ImportedGraphs, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    for message in done["failed"]:
        warn(f"savegame: {one_line(message)}")
    before = done["checkpoints"] - done["imported"]
    counts = f"{done['checkpoints']} checkpoints of {done['threads']} threads and namespaces"
    say(f"{counts}: {done['imported']} imported, {before} there before")
    if done["failed"]:
        say((f"NOT imported, see above: {len(done['failed'])} threads or namespaces", "bold red"))
    else:
        say("each was read back and is equal to the old one")


def _name(place: Any) -> str:
    return f"thread {place.thread_id!r}" + (f" (namespace {place.namespace!r})" if place.namespace else "")
