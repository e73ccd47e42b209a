"""`savegame export` and `savegame import file`: what they show meanwhile and how they end. The vault does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

import savegame
from savegame.importing import check_first_line


def export(store: str, path: Path, threads: list[str] | None, agent: str | None, namespace: str) -> None:
    """Write threads of a store, which is only read, to a new file."""
    with savegame.open(store, namespace=namespace, read_only=True) as vault, _bar("exporting") as progress:
        count = vault.export(path, threads=threads or None, agent=agent, progress=progress)
    _say(f"{path}: {count} checkpoints exported, {path.stat().st_size} bytes")


def import_file(path: Path, store: str, namespace: str) -> None:
    """Bring the threads of an exported file into a store."""
    check_first_line(str(path))  # what is no export is refused before a new store is made
    with savegame.open(store, namespace=namespace) as vault, _bar("importing") as progress:
        count = vault.import_(path, progress=progress)
    _say(f"{path}: {count} checkpoints imported" + ("" if count else ", everything was there before"))


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, else nothing."""
    console = Console(highlight=False)
    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _say(line: str) -> None:
    Console(highlight=False).print(line, markup=False, soft_wrap=True)
