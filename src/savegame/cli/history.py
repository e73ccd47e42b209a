"""`savegame log` and `savegame tail`: the checkpoints of one thread, as they are and as they come. Touches vault."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.text import Text

from savegame.checkpoint import Checkpoint
from savegame.cli.graph import Row, drawn
from savegame.cli.printing import one_line, print_json_line, print_json_list, print_lines, say, warn
from savegame.cli.rendering import SAID, checkpoint_line, message_text
from savegame.cli.vaults import AnyThread, AsJson, Namespace, Store, command, opened, thread_named
from savegame.errors import CheckpointNotFound, CorruptionError
from savegame.messages.transcript import messages_in
from savegame.thread import Thread

Count = Annotated[int | None, typer.Option("--number", "-n", min=0, help="Show only the newest N checkpoints.")]


def log(
    thread: AnyThread,
    graph: Annotated[bool, typer.Option("--graph", "-g", help="Draw the tree, with branches.")] = False,
    branches: Annotated[bool, typer.Option("--branches", "-b", help="Include branches left behind by rewind.")] = False,
    number: Count = None,
    tag: Annotated[str | None, typer.Option(help="Filter by tag.")] = None,
    label: Annotated[str | None, typer.Option(help="Filter by label.")] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a thread, newest first.

    Shows id, step, age, kind, label, tags, status and cost.

    Example: savegame log support-42 --graph
    """
    with opened(store, namespace) as vault:
        found = thread_named(vault, thread)
        head = _head_of(found)
        entries = _entries(found, whole=as_json, branches=branches or graph, limit=number, tag=tag, label=label)
        if as_json:
            print_json_list({**entry.to_dict(), "head": entry.id == head} for entry in entries)
        elif graph:
            _draw(list(entries), head)
        else:
            print_lines((checkpoint_line(entry, head=entry.id == head) for entry in entries), hang=10)


def tail(
    thread: AnyThread,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new checkpoints until interrupted.")] = False,
    number: Annotated[int, typer.Option("--number", "-n", min=0, help="Start with the newest N checkpoints.")] = 10,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show the latest messages of a thread, and follow it.

    Prints the newest checkpoints, oldest first, each with its new messages. With -f, waits for more.

    Example: savegame tail support-42 -f
    """
    with opened(store, namespace) as vault:
        found = thread_named(vault, thread)
        entries = list(_entries(found, whole=as_json, branches=True, limit=number))[::-1]
        since = entries[-1] if entries else None
        told = _Told(as_json=as_json)
        for entry in found.replay(entries):
            told.tell(entry)
        if follow:
            for entry in found.watch(since=since):
                with suppress(CheckpointNotFound):  # pruned before anybody could look
                    told.tell(entry.load())


class _Told:
    """Shows checkpoints with what is new in their conversation."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: str | None = None
        self._count = 0

    def tell(self, entry: Checkpoint) -> None:
        """One checkpoint: its line, and the messages that came since its parent, or else the last one."""
        if self._as_json:
            print_json_line(entry.to_dict(state=True))
            return
        say(checkpoint_line(entry, head=False))
        messages = messages_in(entry.state) or ()
        for message in messages[self._count :] if entry.parent_id == self._last else messages[-1:]:
            say(message_text(message, full=False), hang=SAID)
        self._last, self._count = entry.id, len(messages)
        sys.stdout.flush()


def _entries(thread: Thread, *, whole: bool, branches: bool, **wanted: Any) -> Iterable[Checkpoint]:
    """Checkpoints as `history` lists them; of a thread with a damaged branch the line of its head, unless `whole`."""
    if whole or not branches:
        return thread.history(branches=branches, **wanted)
    try:
        return list(thread.history(branches=True, **wanted))
    except CorruptionError as error:
        line = list(thread.history(**wanted))
        warn(f"{one_line(error)}\nbranches are left out; {one_line(command('verify'))} says more")
        return line


def _head_of(thread: Thread) -> str | None:
    return next((entry.id for entry in thread.history(limit=1)), None)


def _draw(entries: list[Checkpoint], head: str | None) -> None:
    """Checkpoints beside their tree; all texts begin in the same column."""
    rows = list(drawn([(entry.id, entry.parent_id) for entry in entries], head))
    width = max((len(row.line) for row in rows), default=0) + 2
    lines = (_drawn(row, entry, width, head=entry.id == head) for row, entry in zip(rows, entries, strict=True))
    print_lines(lines, cut=True)


def _drawn(row: Row, entry: Checkpoint, width: int, *, head: bool) -> Text:
    lanes_drawn = f"{row.joins}\n" if row.joins else ""
    return Text().append(f"{lanes_drawn}{row.line:{width}}", "blue").append_text(checkpoint_line(entry, head=head))
