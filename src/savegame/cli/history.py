"""`savegame log` and `savegame tail`: the checkpoints of one thread, stored ones and new ones as they arrive.

Both read in pages and print as they go, so that a pipe to `head` ends early. Touches vault, printing, rendering and graph.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from savegame.checkpoint import Checkpoint
from savegame.cli.graph import GraphRow, draw_rows
from savegame.cli.printing import one_line, print_json_line, print_json_list, print_lines, say, warn
from savegame.cli.rendering import TEXT_COLUMN, checkpoint_line, message_text
from savegame.cli.vaults import AnyThread, AsJson, Namespace, Store, command, get_thread, use_vault
from savegame.errors import CheckpointNotFound, CorruptionError
from savegame.messages.locate import find_messages
from savegame.messages.transcript import summary
from savegame.present.families import as_listed
from savegame.thread import Thread

MESSAGES_READ: Final = 100
"""Checkpoints whose messages are read at a time."""

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
    with use_vault(store, namespace) as vault:
        found = get_thread(vault, thread)
        head = next((entry.id for entry in found.history(limit=1)), None)
        entries = _list_entries(found, strict=as_json, branches=branches or graph, limit=number, tag=tag, label=label)
        if as_json:
            print_json_list({**entry.to_dict(), "head": entry.id == head} for entry in entries)
            return
        rows = _with_messages(found, as_listed(vault, found.id, entries))
        if graph:
            _print_graph(list(rows), head)
        else:
            print_lines((checkpoint_line(entry, head=entry.id == head, message=message) for entry, message in rows), hang=10)


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
    with use_vault(store, namespace) as vault:
        found = get_thread(vault, thread)
        entries = list(_list_entries(found, strict=as_json, branches=True, limit=number))[::-1]
        since = entries[-1] if entries else None
        printer = _Printer(as_json=as_json)
        for entry in found.replay(entries):
            printer.print(entry)
        if follow:
            for entry in found.watch(since=since):
                with suppress(CheckpointNotFound):  # pruned before it could be loaded
                    printer.print(entry.load())


class _Printer:
    """Prints checkpoints, each with the new messages of its conversation."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: str | None = None
        self._count = 0

    def print(self, entry: Checkpoint) -> None:
        """Print one checkpoint: its line, and the messages since the previous one if that is its parent, else the last."""
        if self._as_json:
            print_json_line(entry.to_dict(state=True))
            return
        say(checkpoint_line(entry, head=False))
        messages = find_messages(entry.state) or ()
        for message in messages[self._count :] if entry.parent_id == self._last else messages[-1:]:
            say(message_text(message, full=False), hang=TEXT_COLUMN)
        self._last, self._count = entry.id, len(messages)
        sys.stdout.flush()


def _list_entries(thread: Thread, *, strict: bool, branches: bool, **filters: Any) -> Iterable[Checkpoint]:
    """Checkpoints as `history` lists them; if a branch is damaged, only the line of the head, unless `strict`."""
    if strict or not branches:
        return thread.history(branches=branches, **filters)
    try:
        return list(thread.history(branches=True, **filters))
    except CorruptionError as error:
        line = list(thread.history(**filters))
        warn(f"{one_line(error)}\nshowing the head's line without branches; run {one_line(command('verify'))}")
        return line


def _with_messages(thread: Thread, entries: Iterable[Checkpoint]) -> Iterator[tuple[Checkpoint, str | None]]:
    """Entries, newest first, each with the newest message of its conversation if LangGraph made it and it can be read."""
    rest = iter(entries)
    while page := list(islice(rest, MESSAGES_READ)):
        graphs, newest = [entry for entry in page if entry.external_id is not None], {}
        with suppress(CorruptionError, CheckpointNotFound):  # `verify` reports the one, the other was pruned meanwhile
            for loaded in thread.replay(graphs):
                messages = find_messages(loaded.state)
                newest[loaded.id] = summary(messages[-1]) if messages else None
        yield from ((entry, newest.get(entry.id)) for entry in page)


def _print_graph(entries: list[tuple[Checkpoint, str | None]], head: str | None) -> None:
    """Print checkpoints beside their tree; all texts begin in the same column."""
    rows = list(draw_rows([(entry.id, entry.parent_id) for entry, _ in entries], head))
    width = max((len(row.line) for row in rows), default=0) + 2
    texts = (checkpoint_line(entry, head=entry.id == head, message=message) for entry, message in entries)
    print_lines((_graph_line(row, width, text) for row, text in zip(rows, texts, strict=True)), cut=True)


def _graph_line(row: GraphRow, width: int, text: Text) -> Text:
    joins = f"{row.joins}\n" if row.joins else ""
    return Text().append(f"{joins}{row.line:{width}}", "blue").append_text(text)
