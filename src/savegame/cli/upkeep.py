"""`savegame prune`, `erase`, `compact` and `backup`: what takes something away, or makes a copy. Touches vault.

What deletes says first how much, and asks; `--dry-run` says it only. The vault counts and deletes.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.text import Text

from savegame.checkpoint import Checkpoint
from savegame.cli import shapes
from savegame.cli.printing import (
    ago,
    ask,
    bar,
    one_line,
    plural,
    print_json,
    print_lines,
    print_table,
    refuse_other,
    say,
    warn,
)
from savegame.cli.rendering import GOING, going_lines
from savegame.cli.vaults import (
    AsJson,
    DryRun,
    Namespace,
    Store,
    Yes,
    complete_thread,
    new_file,
    opened,
    shown,
    thread_named,
)
from savegame.errors import CorruptionError, InvalidInputError
from savegame.opening import BUILT_IN
from savegame.present.text import size_text
from savegame.thread import Thread
from savegame.vault import Vault

UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def duration(text: str) -> dt.timedelta:
    """A length of time: 45s, 30min, 12h, 30d, 2w. Raises InvalidInputError."""
    found = re.fullmatch(r"(\d{1,9})(s|min|h|d|w)", text)
    if found is None:
        raise InvalidInputError(f"{text!r} is no length of time; a number and a unit, for example 30min, 12h, 30d or 2w")
    try:
        return dt.timedelta(seconds=int(found[1]) * UNITS[found[2]])
    except OverflowError as error:
        raise InvalidInputError(f"{text!r} is longer than can be reckoned with; a thousand years are 52000w") from error


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

    Keeps the head, the newest --keep, recent and labelled checkpoints, with their full states. Lists what goes and asks first.

    Example: savegame prune --keep 50 --older-than 30d --dry-run
    """
    if keep is None and older_than is None:
        raise InvalidInputError("say what may go: --keep, --older-than or both")
    rule = _Rule(keep, None if older_than is None else duration(older_than), include_labelled)
    with opened(store, namespace, change=True) as vault:
        found = None if thread is None else thread_named(vault, thread, whole=True)
        going = _going(vault, found, rule)
        count = sum(map(len, going.values()))
        where = "of all threads" if found is None else f"of {one_line(found.id)}"
        if not as_json and not yes:
            _show(going, one=found is not None)
        if count and not dry_run:
            asked = dt.datetime.now(dt.UTC)
            ask(f"{plural(count, 'checkpoint')} {where} will be deleted for good. Go on?", yes=yes)
            if not yes:
                rule = rule.later(dt.datetime.now(dt.UTC) - asked)
                refuse_other(_ids(_going(vault, found, rule)), _ids(going))
            count = (found or vault).prune(**rule._asdict())
    done: shapes.Pruned = {
        "removed": count,
        "threads": {name: len(entries) for name, entries in going.items()},
        "done": not dry_run,
    }
    if as_json:
        print_json(done)
    else:
        say(f"{plural(count, 'checkpoint')} {where} {'would be deleted' if dry_run else 'deleted'}")


class _Rule(NamedTuple):
    """What `Thread.prune` takes."""

    keep: int | None
    older_than: dt.timedelta | None
    include_labelled: bool

    def later(self, waited: dt.timedelta) -> _Rule:
        """The same after a while: what was too young when it was shown still is."""
        return self if self.older_than is None else self._replace(older_than=self.older_than + waited)


def _going(vault: Vault, one: Thread | None, rule: _Rule) -> dict[str, list[Checkpoint]]:
    """What would go, by thread. A damaged one is left, as when it is done."""
    threads = [one] if one is not None else [vault.thread(name) for name, _ in vault.store.heads(vault.namespace)]
    going: dict[str, list[Checkpoint]] = {}
    for thread in threads:
        try:
            going[thread.id] = thread.prunable(**rule._asdict())
        except CorruptionError as error:
            warn(f"{one_line(thread.id)} is left, because it is damaged: {one_line(error)}")
    return {name: entries for name, entries in going.items() if entries}


def _ids(going: dict[str, list[Checkpoint]]) -> set[str]:
    return {entry.id for entries in going.values() for entry in entries}


def _show(going: dict[str, list[Checkpoint]], *, one: bool) -> None:
    """What goes: of one thread each, of several how many of each and of which steps and ages."""
    if one:
        print_lines(going_lines([entry for entries in going.values() for entry in entries]))
        return
    rows = [_cells(name, entries) for name, entries in going.items()]
    if rows:
        print_table(("thread", ">goes", "steps", "from", "until"), rows[:GOING], spare=("steps", "from"))
    if len(rows) > GOING:
        say((f"… and of {plural(len(rows) - GOING, 'other thread')}", "dim"))


def _cells(name: str, entries: list[Checkpoint]) -> tuple[str | Text, ...]:
    steps = sorted(entry.step for entry in entries)
    said = f"{steps[0]} to {steps[-1]}" if steps[0] != steps[-1] else str(steps[0])
    return Text(one_line(name, 60), "bold"), f"{len(entries):,}", said, ago(entries[-1].created_at), ago(entries[0].created_at)


def erase(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Subject (person, customer) attached to threads.")],
    yes: Yes = False,
    dry_run: DryRun = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Delete everything about a person.

    Every thread of the subject, and all that derive from them: forks, copies, subgraphs. Lists them and asks first; says
    what is out of reach.

    Example: savegame erase customer-7 --dry-run
    """
    with opened(store, namespace, change=True) as vault:
        erased = vault.erase(subject, dry_run=True)
        if not as_json:
            for thread_id in erased.threads:
                say("  ", (one_line(thread_id), "red"))
        if erased.threads and not dry_run:
            ask(f"{plural(len(erased.threads), 'thread')} of {one_line(subject)} will be deleted for good. Go on?", yes=yes)
            if not yes:
                refuse_other(vault.erase(subject, dry_run=True).threads, erased.threads)
        if not dry_run and (erased.threads or yes):  # without threads, too: it frees what a killed call has left
            erased = vault.erase(subject)
    done: shapes.Erased = {
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
        say(f"agents' checkpoints that {'would lose' if dry_run else 'lost'} something of it: {names}")
    for what in erased.unreached:
        warn(f"not reached: {what}")


def compact(store: Store = None, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Compress the store and free unused space.

    Keeps every checkpoint. May need free disk space of twice the store's size.

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
        say(f"{shown(store)}: {size_text(before)} → {size_text(after)}")


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
    with opened(store, namespace) as vault, bar("backing up") as progress:
        target = new_file(_path_in(path, vault.store.scheme))
        vault.backup(str(target), progress)
    done: shapes.Written = {"path": str(target), "size_bytes": written_bytes(target), "checkpoints": None}
    if as_json:
        print_json(done)
    else:
        say(f"{target}: {size_text(done['size_bytes'])}")


def _path_in(text: str, kind: str) -> Path:
    """The path of a backup, which may be given as the address under which it will open. Raises InvalidInputError."""
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in BUILT_IN:
        return Path(text)
    if scheme != kind:
        raise InvalidInputError(f"a backup of a {kind} store is one too, not {scheme}; savegame copy goes to any other")
    return Path(rest)


def written_bytes(path: Path) -> int:
    """The size of a file, or of all files in a directory."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
