"""`savegame effects`: what tools did in the world; and the same list before a rewind or a fork. Touches vault and rendering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from savegame.cli import json_output
from savegame.cli.printing import plural, print_json_list, print_lines, say
from savegame.cli.rendering import effect_line
from savegame.cli.vaults import (
    REFERENCE,
    AnyThread,
    AsJson,
    Namespace,
    Store,
    complete_ref,
    get_thread,
    resolve_reference,
    use_vault,
)
from savegame.present.effects import undo_command
from savegame.runs.ledger import CallEntry


def effects(
    thread: AnyThread,
    after: Annotated[
        str | None,
        typer.Option(metavar="REF", help=f"Only effects begun after this checkpoint. {REFERENCE}", autocompletion=complete_ref),
    ] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List what the tools of a thread did in the world, oldest first.

    Calls of read-only tools are not among them. `left`: on a line that a rewind or restore left, and still in the world.
    `undone`: taken back with vault.undo.

    Example: savegame effects support-42 --after "before refund"
    """
    with use_vault(store, namespace) as vault:
        found = get_thread(vault, thread)
        point = None if after is None else resolve_reference(found, after, found.load)
        entries = vault.effects(found.id, after=point)
        if as_json:
            print_json_list(json_output.effect_output(vault.codec, found.id, entry) for entry in entries)
            return
        lines = [effect_line(entry) for entry in entries]
    print_lines(lines, hang=12)
    if not lines:
        say(("no effects" if after is None else "no effects after this checkpoint", "dim"))


def print_staying(staying: Sequence[CallEntry], thread_id: str, to: str, then: str) -> None:
    """Name the effects that going back leaves in the world, what runs do about them, and how to undo them."""
    if not staying:
        return
    stays = "stays" if len(staying) == 1 else "stay"
    say((f"{plural(len(staying), 'effect')} after this point {stays} in the world:", "yellow"))
    print_lines((effect_line(entry, indent=2) for entry in staying), hang=14)
    say((then, "dim"))
    say((f"to undo what was done, go back in Python instead: {undo_command(thread_id, to)}", "dim"), hang=4)
