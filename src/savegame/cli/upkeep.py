"""`savegame prune`, `erase`, `compact` and `backup`: what takes something away, or makes a copy. Touches vault.

What deletes says first how much, and asks; `--dry-run` says it only. The vault counts and deletes.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from savegame.cli import shapes
from savegame.cli.printing import ask, bar, one_line, plural, print_json, say, size, warn
from savegame.cli.vaults import (
    AsJson,
    DryRun,
    Namespace,
    Store,
    Yes,
    complete_thread,
    opened,
    shown_address,
    thread_named,
)
from savegame.errors import InvalidInputError

UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def duration(text: str) -> dt.timedelta:
    """A length of time: 45s, 30min, 12h, 30d, 2w. Raises InvalidInputError."""
    found = re.fullmatch(r"(\d{1,9})(s|min|h|d|w)", text)
    if found is None:
        raise InvalidInputError(f"{text!r} is no length of time; a number and a unit, for example 30min, 12h, 30d or 2w")
    return dt.timedelta(seconds=int(found[1]) * UNITS[found[2]])


def prune(
    thread: Annotated[
        str | None, typer.Argument(metavar="THREAD", help="This thread only; else every one.", autocompletion=complete_thread)
    ] = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Keep the newest so many of each thread.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete only what is older: 30min, 12h, 30d, 2w.")
    ] = None,
    include_labelled: Annotated[
        bool, typer.Option("--include-labelled", help="Labelled ones too, and those that checkpoints of agents name.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints.

    The head, the newest --keep, younger and labelled ones stay, with their whole states. Says how many go and asks first.

    Example: savegame prune --keep 50 --older-than 30d --dry-run
    """
    age = None if older_than is None else duration(older_than)
    with opened(store, namespace, change=True) as vault:
        pruned = vault if thread is None else thread_named(vault, thread, whole=True)
        where = "of all threads" if thread is None else f"of {one_line(thread)}"
        count = pruned.prune(keep=keep, older_than=age, include_labelled=include_labelled, dry_run=True)
        if count and not dry_run:
            ask(f"{plural(count, 'checkpoint')} {where} will be deleted for good. Go on?", yes=yes)
            count = pruned.prune(keep=keep, older_than=age, include_labelled=include_labelled)
    done: shapes.Pruned = {"removed": count, "done": not dry_run}
    if as_json:
        print_json(done)
    else:
        say(f"{plural(count, 'checkpoint')} {where} {'would be deleted' if dry_run else 'deleted'}")


def erase(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The person or customer, as attached to threads.")],
    yes: Yes = False,
    dry_run: DryRun = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Delete everything about a person.

    Every thread of the subject, and all that were forked from them. Lists them and asks first; says what is out of reach.

    Example: savegame erase customer-7 --dry-run
    """
    with opened(store, namespace, change=True) as vault:
        erased = vault.erase(subject, dry_run=True)
        if not as_json:
            for thread_id in erased.threads:
                say("  ", (one_line(thread_id), "red"))
        if erased.threads and not dry_run:
            ask(f"{plural(len(erased.threads), 'thread')} of {one_line(subject)} will be deleted for good. Go on?", yes=yes)
            erased = vault.erase(subject)
    done: shapes.Erased = {
        "subject": subject,
        "threads": list(erased.threads),
        "unreached": list(erased.unreached),
        "done": not dry_run,
    }
    if as_json:
        print_json(done)
        return
    say(f"{plural(len(erased.threads), 'thread')} of {one_line(subject)} {'would be deleted' if dry_run else 'deleted'}")
    for what in erased.unreached:
        warn(f"not reached: {what}")


def compact(store: Store = None, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Make the store as small as it can be.

    Every checkpoint stays. May need twice the size of the store as free space meanwhile.

    Example: savegame compact --store agents.db
    """
    with opened(store, namespace, change=True) as vault:
        before = vault.store.sizes()["total"]
        with bar("compacting") as progress:
            vault.compact(progress)
        after = vault.store.sizes()["total"]
    done: shapes.Sizes = {"before_bytes": before, "after_bytes": after}
    if as_json:
        print_json(done)
    else:
        say(f"{shown_address(store)}: {size(before)} → {size(after)}")


def backup(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The new file; never overwritten.")],
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Copy the whole store to a new one of its kind.

    All namespaces, of one consistent moment, while others write. The copy opens like any other vault.

    Example: savegame backup /backups/agents-monday.db
    """
    with opened(store, namespace) as vault, bar("backing up") as progress:
        vault.backup(str(path), progress)
    done: shapes.Written = {"path": str(path), "size_bytes": written_bytes(path), "checkpoints": None}
    if as_json:
        print_json(done)
    else:
        say(f"{path}: {size(done['size_bytes'])}")


def written_bytes(path: Path) -> int:
    """The size of a file, or of all files in a directory."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
