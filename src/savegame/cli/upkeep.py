"""`savegame prune`, `erase`, `compact` and `backup`.

Commands that delete list first what would go, and ask; with `--dry-run` they only list. The vault counts and deletes.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.text import Text

from savegame.checkpoint import Checkpoint
from savegame.cli import json_output
from savegame.cli.printing import (
    ago,
    bar,
    confirm_deletion,
    one_line,
    plural,
    print_json,
    print_lines,
    print_table,
    say,
    warn,
)
from savegame.cli.rendering import MAX_LISTED, deletion_lines
from savegame.cli.vaults import (
    AsJson,
    DryRun,
    Namespace,
    Store,
    Yes,
    complete_thread,
    get_thread,
    new_file,
    store_name,
    use_vault,
)
from savegame.errors import CorruptionError, InvalidInputError
from savegame.opening import BUILT_IN
from savegame.present.checkup import bytes_on_disk
from savegame.present.text import size_text
from savegame.thread import Thread
from savegame.vault import Vault

UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def duration(text: str) -> dt.timedelta:
    """Parse a duration: 45s, 30min, 12h, 30d, 2w. Raises InvalidInputError."""
    found = re.fullmatch(r"(\d{1,9})(s|min|h|d|w)", text)
    if found is None:
        raise InvalidInputError(f"{text!r} is not a duration; write a number with a unit, such as 30min, 12h, 30d or 2w")
    try:
        return dt.timedelta(seconds=int(found[1]) * UNITS[found[2]])
    except OverflowError as error:
        raise InvalidInputError(f"duration {text!r} is too long; a thousand years are 52000w") from error


def prune(
    thread: Annotated[
        str | None,
        typer.Argument(metavar="THREAD", help="Prune only this thread.", autocompletion=complete_thread),
    ] = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Keep the newest N checkpoints of each thread.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete only checkpoints older than this: 30min, 12h, 30d, 2w.")
    ] = None,
    include_labelled: Annotated[
        bool,
        typer.Option("--include-labelled", help="Also delete labelled checkpoints and those of agent checkpoints."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints.

    Keeps the head, the newest --keep, recent and labelled checkpoints with their states. Lists the others and asks first.

    Example: savegame prune --keep 50 --older-than 30d --dry-run
    """
    if keep is None and older_than is None:
        raise InvalidInputError("pass --keep, --older-than or both to choose what to delete")
    rule = _Rule(keep, None if older_than is None else duration(older_than), include_labelled)
    with use_vault(store, namespace, change=True) as vault:
        found = None if thread is None else get_thread(vault, thread, whole=True)
        going = _list_prunable(vault, found, rule)
        count = sum(map(len, going.values()))
        where = "of all threads" if found is None else f"of {one_line(found.id)}"
        if not as_json and not yes:
            _print_prunable(going, one=found is not None)
        if count and not dry_run:
            asked_at = dt.datetime.now(dt.UTC)
            confirm_deletion(
                f"{plural(count, 'checkpoint')} {where}",
                _ids(going),
                lambda: _ids(_list_prunable(vault, found, rule.since(asked_at))),
                yes=yes,
            )
            count = (found or vault).prune(**rule.since(asked_at)._asdict())
    done: json_output.PruneOutput = {
        "removed": count,
        "threads": {name: len(entries) for name, entries in going.items()},
        "done": not dry_run,
    }
    if as_json:
        print_json(done)
    else:
        say(f"{plural(count, 'checkpoint')} {where} {'would be deleted' if dry_run else 'deleted'}")


class _Rule(NamedTuple):
    """Parameters of `Thread.prune`."""

    keep: int | None
    older_than: dt.timedelta | None
    include_labelled: bool

    def since(self, listed: dt.datetime) -> _Rule:
        """The rule now: checkpoints that were too young when `listed` still are."""
        return self if self.older_than is None else self._replace(older_than=self.older_than + dt.datetime.now(dt.UTC) - listed)


def _list_prunable(vault: Vault, one: Thread | None, rule: _Rule) -> dict[str, list[Checkpoint]]:
    """The checkpoints that prune would delete, by thread. Skips damaged threads, as prune does."""
    threads = [one] if one is not None else [vault.thread(name) for name, _ in vault.store.heads(vault.namespace)]
    going: dict[str, list[Checkpoint]] = {}
    for thread in threads:
        try:
            going[thread.id] = thread.prunable(**rule._asdict())
        except CorruptionError as error:
            warn(f"skipped {one_line(thread.id)}, which is damaged: {one_line(error)}")
    return {name: entries for name, entries in going.items() if entries}


def _ids(going: dict[str, list[Checkpoint]]) -> set[str]:
    return {entry.id for entries in going.values() for entry in entries}


def _print_prunable(going: dict[str, list[Checkpoint]], *, one: bool) -> None:
    """Print each checkpoint of one thread; of several threads, the count, steps and ages of each."""
    if one:
        print_lines(deletion_lines([entry for entries in going.values() for entry in entries]))
        return
    rows = [_cells(name, entries) for name, entries in going.items()]
    if rows:
        print_table(("thread", ">delete", "steps", "from", "until"), rows[:MAX_LISTED], spare=("steps", "from"))
    if len(rows) > MAX_LISTED:
        say((f"… and checkpoints of {plural(len(rows) - MAX_LISTED, 'other thread')}", "dim"))


def _cells(name: str, entries: list[Checkpoint]) -> tuple[str | Text, ...]:
    steps = sorted(entry.step for entry in entries)
    span = f"{steps[0]} to {steps[-1]}" if steps[0] != steps[-1] else str(steps[0])
    return Text(one_line(name, 60), "bold"), f"{len(entries):,}", span, ago(entries[-1].created_at), ago(entries[0].created_at)


def erase(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Subject of the threads: a person or customer.")],
    yes: Yes = False,
    dry_run: DryRun = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Delete everything about a person.

    Deletes all threads of the subject with derived forks, copies and subgraphs. Asks first; reports what it cannot reach.

    Example: savegame erase customer-7 --dry-run
    """
    with use_vault(store, namespace, change=True) as vault:
        erased = vault.erase(subject, dry_run=True)
        if not as_json:
            for thread_id in erased.threads:
                say("  ", (one_line(thread_id), "red"))
        if erased.threads and not dry_run:
            what = f"{plural(len(erased.threads), 'thread')} of {one_line(subject)}"
            confirm_deletion(what, erased.threads, lambda: vault.erase(subject, dry_run=True).threads, yes=yes)
        if not dry_run and (erased.threads or yes):  # without threads too: it removes leftovers of a killed erase
            erased = vault.erase(subject)
    done: json_output.EraseOutput = {
        "subject": subject,
        "threads": list(erased.threads),
        "unreached": list(erased.unreached),
        "emptied": list(erased.emptied),
        "done": not dry_run,
    }
    if as_json:
        print_json(done)
        return
    say(f"{plural(len(erased.threads), 'thread')} of {one_line(subject)} {'would be deleted' if dry_run else 'deleted'}")
    if erased.emptied:
        names = ", ".join(erased.emptied)
        say(f"agent checkpoints that {'would lose' if dry_run else 'lost'} conversations: {names}")
    for what in erased.unreached:
        warn(f"not erased: {what}")


def compact(store: Store = None, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Compress the store and free unused space.

    Keeps every checkpoint. May need free disk space of twice the store's size.

    Example: savegame compact --store agents.db
    """
    with use_vault(store, namespace, change=True) as vault:
        before = vault.store.sizes()["total"]
        with bar("compacting") as progress:
            vault.compact(progress)
        after = vault.store.sizes()["total"]
    done: json_output.CompactOutput = {"before_bytes": before, "after_bytes": after}
    if as_json:
        print_json(done)
    else:
        say(f"{store_name(store)}: {size_text(before)} → {size_text(after)}")


def backup(
    path: Annotated[str, typer.Argument(metavar="FILE", help="New file or directory; never overwrites.")],
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Back up the whole store.

    Copies all namespaces at one consistent moment, while others write. The backup opens like any vault.

    Example: savegame backup /backups/agents-monday.db
    """
    with use_vault(store, namespace) as vault, bar("backing up") as progress:
        target = new_file(_path_in(path, vault.store.scheme))
        vault.backup(str(target), progress)
    done: json_output.FileOutput = {"path": str(target), "size_bytes": bytes_on_disk(target), "checkpoints": None}
    if as_json:
        print_json(done)
    else:
        say(f"{target}: {size_text(done['size_bytes'])}")


def _path_in(text: str, kind: str) -> Path:
    """The path of a backup, which may be written as the address that opens it. Raises InvalidInputError."""
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in BUILT_IN:
        return Path(text)
    if scheme != kind:
        raise InvalidInputError(f"cannot back up a {kind} store as {scheme}; use savegame copy to change the kind of store")
    return Path(rest)
