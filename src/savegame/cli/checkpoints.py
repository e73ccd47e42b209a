"""`savegame show` and `savegame diff`: one checkpoint with its state, and the changes between two.

Both read only. Long values are shortened for the terminal, never with `--full` or `--json`. Touches vault, printing and
rendering.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from savegame.checkpoint import Checkpoint
from savegame.cli import json_output
from savegame.cli.printing import ago, one_line, out, plural, print_json, print_lines, say
from savegame.cli.rendering import (
    TEXT_COLUMN,
    change_lines,
    checkpoint_line,
    cost_text,
    label_and_tags,
    message_text,
    state_tree,
    status_text,
    value_text,
)
from savegame.cli.vaults import (
    REFERENCE,
    AsJson,
    Namespace,
    Store,
    complete_ref,
    complete_thread,
    get_checkpoint,
    use_vault,
)
from savegame.errors import ThreadNotFound
from savegame.messages.locate import beside_messages, find_messages, fold, is_graph
from savegame.present.diffs import changes_between
from savegame.present.families import as_listed
from savegame.present.text import size_text
from savegame.vault import Vault

Full = Annotated[bool, typer.Option("--full", help="Do not shorten long texts and lists.")]
ThreadOrCheckpoint = Annotated[
    str,
    typer.Argument(metavar="THREAD", help="Thread id, or the full id of any checkpoint.", autocompletion=complete_thread),
]


def show(
    thread: ThreadOrCheckpoint,
    ref: Annotated[str | None, typer.Argument(metavar="REF", help=REFERENCE, autocompletion=complete_ref)] = None,
    full: Full = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show a checkpoint: details, conversation, state.

    REF defaults to the head.

    Example: savegame show support-42 head~2
    """
    with use_vault(store, namespace) as vault:
        found = get_checkpoint(vault, thread, ref)
        if as_json:
            print_json(found.to_dict(state=True))
            return
        _print_details(next(as_listed(vault, found.thread_id, [found])))
        messages = find_messages(found.state)
        print_lines((message_text(message, full=full) for message in messages or ()), hang=TEXT_COLUMN)
        rest, folded = (found.state, 0) if full and is_graph(found.state) else beside_messages(found.state)
        if not isinstance(found.state, (dict, list)):
            say(("state  ", "bold"), value_text(found.state, full=full))
        elif rest or not messages:
            out.print(state_tree(rest, full=full), soft_wrap=False)
        if folded:
            say((f"+ {plural(folded, 'bookkeeping field')}; --full shows them", "dim"))


def _print_details(found: Checkpoint) -> None:
    say((one_line(found.thread_id), "bold"), f"  step {found.step}  ", label_and_tags(found), hang=2)
    facts: list[tuple[str, str | Text]] = [
        ("id", found.id),
        ("parent", found.parent_id or ""),
        ("forked from", found.forked_from or ""),
        ("agent", found.agent_id or ""),
        ("saved", f"{found.created_at:%Y-%m-%d %H:%M:%S} UTC, {ago(found.created_at)}"),
        ("kind", found.kind + ("" if found.iteration is None else f", iteration {found.iteration}")),
        ("status", status_text(found.status)),
        ("cost", cost_text(found)),
        ("description", found.description or ""),
        ("resume hint", found.resume_hint or ""),
        ("metadata", value_text(dict(found.metadata), full=False) if found.metadata else ""),
        ("external id", found.external_id or ""),
        ("size", f"about {size_text(found.size_bytes)}"),
        ("digest", found.digest),
    ]
    for name, fact in facts:
        if fact:
            say((f"  {name:12}", "dim"), fact if isinstance(fact, Text) else one_line(fact), hang=14)
    say("")


def diff(
    thread: ThreadOrCheckpoint,
    old: Annotated[
        str | None,
        typer.Argument(metavar="FROM", help=f"{REFERENCE} Default: before the head.", autocompletion=complete_ref),
    ] = None,
    new: Annotated[
        str | None, typer.Argument(metavar="TO", help="Same forms as FROM. Defaults to the head.", autocompletion=complete_ref)
    ] = None,
    full: Full = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include the bookkeeping fields of LangGraph.")] = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show what changed between two checkpoints, by path.

    To compare checkpoints of different threads, pass their full ids instead of a thread. JSON has all changes.

    Example: savegame diff support-42 "before refund" head
    """
    with use_vault(store, namespace) as vault:
        before, after = _get_both(vault, thread, old, new)
        found = changes_between(vault.codec, before.state, after.state)
        changes, folded = fold(found, before.state, after.state, everything=everything)
        if as_json:
            items = [json_output.change_output(vault.codec, change) for change in found]
            print_json({"old": before.to_dict(), "new": after.to_dict(), "changes": items})
            return
        say(("--- ", "red"), checkpoint_line(before, head=False), f" {one_line(before.thread_id)}", hang=4)
        say(("+++ ", "green"), checkpoint_line(after, head=False), f" {one_line(after.thread_id)}", hang=4)
        for change in changes:
            for line in change_lines(change, full=full):
                say(line, hang=4)
        say((plural(len(changes), "change") if changes else "no changes", "dim"))
        if folded:
            say((f"+ {plural(folded, 'bookkeeping field')}; --all shows them", "dim"))


def _get_both(vault: Vault, thread: str, old: str | None, new: str | None) -> tuple[Checkpoint, Checkpoint]:
    """Both checkpoints of a diff: of one thread, or of any two by full id."""
    try:
        return get_checkpoint(vault, thread, old or "head~1"), get_checkpoint(vault, thread, new or "head")
    except ThreadNotFound:
        one, other = vault.find(thread), vault.find(old) if old is not None and new is None else None
        if one is None or other is None:
            raise
        return one, other
