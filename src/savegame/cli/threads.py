"""`savegame ls` and `savegame search`: list threads, and find them by the text of their messages.

Search brings its index up to date first, and shows progress meanwhile. Touches vault, printing and rendering.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Final

import typer
from rich.text import Text

from savegame.cli import json_output
from savegame.cli.printing import (
    ago,
    bar,
    clip,
    one_line,
    out,
    plural,
    print_json,
    print_json_list,
    print_table,
    say,
    warn,
)
from savegame.cli.rendering import status_text
from savegame.cli.vaults import AsJson, Namespace, Store, command, use_vault
from savegame.model import ThreadInfo, checked_limit
from savegame.present.families import nested, short_name
from savegame.present.text import size_text

MATCH_MARKS: Final = ("\ue000", "\ue001")
"""Marks around matches until they are coloured: private-use characters, so no searched text contains them."""

NO_HITS: Final = "no messages found; only the messages at the head of each thread are searched"

Agent = Annotated[str | None, typer.Option(help="Filter by agent.")]


def ls(
    agent: Agent = None,
    status: Annotated[
        str | None, typer.Option(help="Filter by status of the head: in_progress, completed, failed or halted.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Filter by tag of any checkpoint.")] = None,
    recent: Annotated[bool, typer.Option("--recent", "-r", help="Sort by most recently saved.")] = False,
    number: Annotated[int | None, typer.Option("--number", "-n", min=0, help="Maximum number of threads.")] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List the threads of a vault, those of subgraphs below their graphs.

    Shows steps, checkpoints, size of the newest state, status and last activity.

    Example: savegame ls --agent helper --recent -n 10
    """
    with use_vault(store, namespace) as vault:
        found: Iterable[ThreadInfo] = vault.threads(agent=agent, status=status, tag=tag, limit=None if recent else number)
        if recent:
            found = islice(sorted(found, key=lambda info: info.updated_at, reverse=True), checked_limit(number))
        if as_json:
            print_json_list(map(json_output.thread_output, found))
            return
        columns = ("thread", "agent", ">steps", ">saved", ">state", "last activity", "status")
        threads = list(nested(found, lambda info: info))
        nothing = "no threads" if agent is status is tag is None else "no thread matches the filters"
        rows = (_cells(info, below=below) for info, below in threads)
        print_table(columns, rows, nothing=nothing, spare=(">state", ">saved", "agent", ">steps"))
        if any(info.damage is not None for info, _ in threads):
            warn(f"some threads are damaged; run {command('verify')}")


def _cells(info: ThreadInfo, *, below: bool) -> list[str | Text]:
    name = Text(f"  └ {clip(short_name(info), 56)}" if below else clip(info.id, 60), "bold")
    if info.damage is not None:
        return [name, "", "", "", "", "", Text("✗ damaged", "bold red")]
    return [
        name,
        clip(info.agent_id or "", 30),
        f"{info.step:,}",
        f"{info.checkpoints:,}",
        size_text(info.size_bytes),
        ago(info.updated_at),
        status_text(info.status),
    ]


def search(
    query: Annotated[str, typer.Argument(metavar="WORDS", help='Words or word prefixes; "quoted words" match as a phrase.')],
    match: Annotated[
        str, typer.Option(metavar="words|substring", help="Match whole words and prefixes, or the text anywhere.")
    ] = "words",
    agent: Agent = None,
    number: Annotated[int, typer.Option("--number", "-n", min=0, help="Maximum number of threads.")] = 20,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Search the messages of all threads.

    Searches the messages at the head of every thread, best match first. Updates the search index first.

    Example: savegame search "refund parcel"
    """
    logging.getLogger("savegame").addFilter(lambda record: "not searched" not in str(record.msg))  # printed below
    with use_vault(store, namespace, change=True) as vault:  # to write the index
        with bar("indexing") as progress:
            marks = ("[", "]") if as_json else MATCH_MARKS
            hits = vault.search(query, agent=agent, limit=number, match=match, markers=marks, progress=progress)
        if as_json:
            print_json({"hits": [json_output.hit_output(hit) for hit in hits], "skipped": list(hits.skipped)})
            return
        for hit in hits:
            more = f"  {plural(hit.matches, 'message')}" if hit.matches > 1 else ""
            say((one_line(hit.thread_id), "bold"), (f"  message {hit.message + 1}  {one_line(hit.role or '')}{more}", "dim"))
            say("    ", _colour(hit.snippet), hang=4)
        if not hits:
            say((NO_HITS, "dim"))
        for thread_id in hits.skipped:
            warn(f"not searched because damaged: {one_line(thread_id)}; run {one_line(command('verify'))}")


def _colour(snippet: str) -> Text:
    """A snippet with its matches coloured, or in brackets where the output is no terminal."""
    begin, end = MATCH_MARKS
    if not out.is_terminal:
        return Text(one_line(snippet.replace(begin, "[").replace(end, "]")))
    text = Text()
    for place, part in enumerate(one_line(snippet).split(begin)):
        found, _, rest = part.partition(end) if place else ("", "", part)
        text.append(found, "bold yellow").append(rest)
    return text
