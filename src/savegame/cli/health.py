"""`savegame stats`, `verify` and `repair`: counts and sizes, the integrity check, and repairing damage.

Only `repair` writes; it lists the damage first and asks. Exit codes are those of the errors. Touches vault and printing.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.text import Text

from savegame.cli import json_output
from savegame.cli.printing import ago, ask, bar, one_line, out, plural, print_json, print_table, say, warn
from savegame.cli.vaults import (
    AsJson,
    DryRun,
    Namespace,
    Store,
    Yes,
    command,
    complete_thread,
    get_thread,
    store_name,
    use_vault,
)
from savegame.errors import CorruptionError, ThreadNotFound
from savegame.model import Problem, Report
from savegame.present.text import size_text
from savegame.timeline.usage import Usage
from savegame.vault import Stats

BAR: Final = 24
PARTS: Final = ("deltas", "keyframes", "blobs", "metadata", "notes", "records", "aside")
"""The sizes that people see; `--json` has all."""


def stats(
    by: Annotated[
        str | None,
        typer.Option(metavar="agent|day|thread", help="Also show tokens and cost by agent, day (UTC) or thread."),
    ] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show counts and sizes.

    Counts are for the namespace, sizes for the whole store.

    Example: savegame stats --by agent
    """
    with use_vault(store, namespace) as vault:
        counted = vault.stats()
        used = [] if by is None else vault.usage(by=by)
    if as_json:
        print_json(json_output.stats_output(counted, store_name(store), used))
        return
    search = counted.sizes.get("search", 0)
    index = f", plus a search index of {size_text(search)}" if search else ""
    say((store_name(store), "bold"), f"  {size_text(counted.total_bytes)}{index}")
    _print_counts(counted)
    _print_sizes(counted)
    if by is not None:
        _print_usage(used, by)


def _print_counts(counted: Stats) -> None:
    counts = [plural(counted.threads, "thread"), plural(counted.checkpoints, "checkpoint")]
    if counted.agents:  # only those saved as agents or conversations: messages in other threads are not counted
        counts.append(plural(counted.agents, "agent"))
    if counted.conversations:
        counts.append(f"{plural(counted.conversations, 'conversation')} with {plural(counted.messages, 'message')}")
    say("  ", "   ".join(counts), hang=2)
    if counted.damaged:
        warn(f"not counted because damaged: {plural(counted.damaged, 'thread')}; run {one_line(command('verify'))}")


def _print_sizes(counted: Stats) -> None:
    parts = {name: counted.sizes[name] for name in PARTS if counted.sizes.get(name)}
    largest, longest = max(parts.values(), default=1), min(BAR, out.width - BAR)
    rows = [
        (f"  {name}", size_text(count), Text("█" * max(1, round(longest * count / largest)), "blue"))
        for name, count in sorted(parts.items(), key=lambda part: -part[1])
    ]
    print_table(("part", ">size", "share"), rows, nothing="  empty", head=False)


def _print_usage(used: list[Usage], by: str) -> None:
    say("")
    columns = (by, ">checkpoints", ">threads", ">tokens", ">cost", "last activity")
    print_table(
        columns, map(_usage_cells, used), nothing="nothing saved yet", spare=(">threads", ">checkpoints", "last activity")
    )


def _usage_cells(usage: Usage) -> tuple[str | Text, ...]:
    key = Text("(none)", "dim") if usage.key is None else Text(one_line(usage.key), "bold")
    counts = (f"{count:,}" for count in (usage.checkpoints, usage.threads, usage.tokens_used))
    return key, *counts, f"${usage.cost:.4f}", ago(usage.last_at)


def verify(
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            show_default="all threads",
            help="Check only this thread: its id, or a unique prefix.",
            autocompletion=complete_thread,
        ),
    ] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Read and check all stored data.

    Exits with 8 if data is damaged.

    Example: savegame verify --store agents.db
    """
    with use_vault(store, namespace) as vault, bar("verifying") as progress:
        try:
            report = vault.verify(thread, progress)
        except ThreadNotFound:  # a prefix of an id, or no thread at all: then the error names the command to use
            report = vault.verify(get_thread(vault, thread or "").id, progress)
    _print_report(report, command("repair", "--dry-run"), as_json=as_json)


def repair(
    yes: Yes = False, dry_run: DryRun = False, store: Store = None, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Set damaged data aside and keep the rest.

    Deletes nothing. Lists the damage and asks first. Make a backup before you repair.

    Example: savegame repair --dry-run
    """
    with use_vault(store, namespace, change=not dry_run) as vault:
        with bar("verifying") as progress:
            report = vault.verify(progress=progress)
        if not report.ok and not dry_run:
            _print_problems(report)
            ask(f"{plural(len(report.problems), 'damaged place')} will be set aside. Continue?", yes=yes)
            with bar("repairing") as progress:
                report = vault.repair(progress)
    _print_report(report, command("repair") if dry_run else "restore a backup", as_json=as_json)


def _print_report(report: Report, next_step: str, *, as_json: bool) -> None:
    """Print what verify or repair found; exit with 8 if something is damaged."""
    if as_json:
        print_json(json_output.verify_output(report))
    else:
        for what in report.repaired:
            say(("✓ ", "green"), one_line(what))
        if report.ok:
            counts = f"{plural(report.checkpoints, 'checkpoint')} of {plural(report.threads, 'thread')}"
            say(("✓ intact  ", "bold green"), counts)
        else:
            _print_problems(report)
            say(("✗ damaged  ", "bold red"), f"{plural(len(report.problems), 'place')}; next: {one_line(next_step)}")
    if not report.ok:
        raise typer.Exit(CorruptionError.exit_code)


def _print_problems(report: Report) -> None:
    for problem in report.problems:
        warn(one_line(_problem_text(problem)))


def _problem_text(problem: Problem) -> str:
    """The place of a problem and its message, without naming the place twice."""
    text = str(problem)
    return text.removesuffix(f": {problem.message}") if f"({problem.place})" in problem.message else text
