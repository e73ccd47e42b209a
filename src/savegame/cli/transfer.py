"""`savegame export`, `copy` and `migrate`: write threads to a file or another store, upgrade a store's tables.

`copy` and `migrate` can be repeated; an export never overwrites a file. Touches vault, opening and printing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import savegame
from savegame.cli import json_output
from savegame.cli.printing import bar, plural, print_json, say
from savegame.cli.vaults import ENVIRONMENT, AsJson, Namespace, Store, complete_thread, new_file, use_vault
from savegame.opening import open_store
from savegame.present.text import size_text
from savegame.vault import Vault


def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="New file; never overwrites.")],
    thread: Annotated[
        list[str] | None,
        typer.Option(help="Export only this thread; repeatable.", autocompletion=complete_thread),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Export only threads of this agent.")] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Export threads with their full history to a file.

    Writes checksummed JSON lines that other programs can read.

    Example: savegame export all.jsonl --store agents.db
    """
    with use_vault(store, namespace) as vault, bar("exporting") as progress:
        count = vault.export(new_file(path), threads=thread or None, agent=agent, progress=progress)
    done: json_output.FileOutput = {"path": str(path), "size_bytes": path.stat().st_size, "checkpoints": count}
    if as_json:
        print_json(done)
    else:
        say(f"{path}: {plural(count, 'checkpoint')} exported, {size_text(done['size_bytes'])}")


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Source vault: a path or URL; opened read-only.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Target vault, on any store; created if missing.")],
    namespace: Annotated[list[str] | None, typer.Option(help="Namespace to copy; repeatable.", show_default="default")] = None,
    into: Annotated[str | None, typer.Option(help="Namespace in the target.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Compare everything again, not only new data.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy all threads from one store to another.

    Compares the copy with the source. Run it again to copy what is new, or to resume after a crash.

    Example: savegame copy agents.db postgresql://localhost/agents
    """
    names = namespace or ["default"]
    if into is not None and len(names) > 1:
        raise savegame.InvalidInputError("--into needs a single --namespace; without it, each namespace keeps its name")
    copied: dict[str, int] = {}
    with use_vault(source, "default") as old, savegame.open(target) as new:
        for name in names:
            with bar(f"copying {name!r}", "threads") as progress:
                destination = Vault(new.store, namespace=into or name)
                copied[name] = Vault(old.store, namespace=name).copy_to(destination, progress, full=full)
            if not as_json:
                count = f"{plural(copied[name], 'checkpoint')} copied" if copied[name] else "nothing new"
                say(f"namespace {name!r}: {count}; {'everything' if full else 'new data'} compared with the source")
    done: json_output.CopyOutput = {"namespaces": copied}
    if as_json:
        print_json(done)


def migrate(
    address: Annotated[str, typer.Argument(metavar="STORE", envvar=ENVIRONMENT, help="Path or URL of the store.")],
    as_json: AsJson = False,
) -> None:
    """Create or upgrade the tables of a store.

    Opening a store does the same; use this to do it ahead of time.

    Example: savegame migrate agents.db
    """
    store = open_store(address)
    store.close()
    found, now = store.layout or (None, None)
    done: json_output.MigrateOutput = {"scheme": store.scheme, "found": found, "now": now}
    if as_json:
        print_json(done)
    elif found is None:
        say(f"nothing to do: {store.scheme} stores have no layout version")
    elif found == now:
        say(f"up to date: layout version {now}")
    else:
        say(f"upgraded from layout version {found} to {now}" if found else f"tables created: layout version {now}")
