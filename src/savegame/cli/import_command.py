"""`savegame import langgraph`: what it shows meanwhile and how it ends. The work is done by the adapter, which is handed in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import savegame


def langgraph(adapter: Any, old: Path, store: str) -> int:
    """Import a file of LangGraph's SqliteSaver; the exit code. A bar on a terminal, else a line per thread."""
    with adapter.OldFile(old):
        pass  # what is not such a file is refused before a new store is made
    console = Console(highlight=False)
    columns = (TextColumn("importing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    threads = checkpoints = new = 0
    failed: list[savegame.SavegameError] = []
    with savegame.open(store) as vault, bar:
        task = bar.add_task("importing", total=None)
        for outcome in adapter.import_file(old, vault, lambda done, total: bar.update(task, completed=done, total=total)):
            if outcome.error is not None:
                failed.append(outcome.error)
                continue
            threads, checkpoints, new = threads + 1, checkpoints + outcome.checkpoints, new + outcome.new
            if not console.is_terminal:
                _say(console, f"{_name(outcome.place)}: {outcome.checkpoints} checkpoints, {outcome.new} imported")
    for error in failed:
        print(f"savegame: {error}", file=sys.stderr)
    _say(
        console,
        f"{checkpoints} checkpoints of {threads} threads and namespaces: {new} imported, {checkpoints - new} there before",
    )
    if failed:
        _say(console, f"NOT imported, see above: {len(failed)} threads or namespaces")
        return failed[0].exit_code
    _say(console, "each was read back and is equal to the old one")
    return 0


def _name(place: Any) -> str:
    return f"thread {place.thread_id!r}" + (f" (namespace {place.namespace!r})" if place.namespace else "")


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
    console.file.flush()
