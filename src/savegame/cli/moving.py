"""`savegame rewind`, `fork` and `label`: move the head, start new threads, annotate checkpoints.

Only `rewind --discard` deletes anything; it lists that first and asks. A rewind and a fork name the effects that stay in the
world before they act. Touches vault, printing, rendering and effects.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from savegame.cli import json_output
from savegame.cli.effects import print_staying
from savegame.cli.printing import ask, confirm_deletion, one_line, plural, print_json, print_lines, say, short
from savegame.cli.rendering import checkpoint_line, deletion_lines, label_and_tags
from savegame.cli.vaults import (
    REFERENCE,
    AsJson,
    DryRun,
    Namespace,
    RefName,
    Store,
    ThreadName,
    Yes,
    command,
    complete_ref,
    get_thread,
    resolve_reference,
    use_vault,
)
from savegame.errors import InvalidInputError
from savegame.present.completion import list_left_behind
from savegame.present.effects import staying_effects

ASKS: Final = "A run asks before it makes one of these calls again"
RERUNS: Final = "--rerun-tools counts as your answer: a run makes these calls again without asking"


def rewind(
    thread: ThreadName,
    ref: RefName,
    discard: Annotated[bool, typer.Option("--discard", help="Delete all later checkpoints and branches.")] = False,
    rerun_tools: Annotated[
        bool,
        typer.Option(
            "--rerun-tools",
            help="Re-run tool calls made after this point instead of reusing their results. No run asks before it does.",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Move the head back to a checkpoint; the next save continues from there.

    Later checkpoints stay as a branch. Only --discard deletes them, and asks first. What tools did after this point is not
    undone: it is listed, and on a terminal you are asked.

    Example: savegame rewind support-42 "before refund"
    """
    with use_vault(store, namespace, change=True) as vault:
        found = get_thread(vault, thread, whole=True)
        old = next(found.history(limit=1), None)
        target = resolve_reference(found, ref, found.load)
        going = list(list_left_behind(found, target, branches=discard))
        left = len(going)
        staying = staying_effects(vault, found.id, target)
        if not as_json:
            print_staying(staying, found.id, target.id, RERUNS if rerun_tools else ASKS)
        if discard and not as_json and not yes:
            print_lines(deletion_lines(going))
        if discard and left and not dry_run:
            what = f"{plural(left, 'checkpoint')} of {one_line(found.id)}"

            def current() -> list[str]:
                return [entry.id for entry in list_left_behind(found, target, branches=True)]

            confirm_deletion(what, [entry.id for entry in going], current, yes=yes)
        elif staying and not dry_run and not as_json and sys.stdin.isatty():  # nothing is lost, so scripts need not agree
            ask(f"{plural(len(staying), 'effect')} will stay in the world. Continue?", yes=yes)
        if not dry_run:
            target = found.rewind(target, discard=discard, rerun_tools=rerun_tools, expect=old)
        if as_json:
            print_json(
                {
                    "thread_id": found.id,
                    "old": None if old is None else old.to_dict(),
                    "new": target.to_dict(),
                    "left": left,
                    "discarded": discard,
                    "done": not dry_run,
                    "effects": [json_output.effect_output(vault.codec, found.id, entry) for entry in staying],
                }
            )
            return
        say(checkpoint_line(target, head=not dry_run), hang=10)
        say(
            f"{plural(left, 'checkpoint')} {_fate(left, discard=discard, dry_run=dry_run)}"
            if left
            else "no checkpoint is left behind"
        )
        if old is not None and left and not discard and not dry_run:
            say((f"undo: {one_line(command('rewind', found.id, short(old.id)))}", "dim"))


def _fate(left: int, *, discard: bool, dry_run: bool) -> str:
    if discard:
        return "would be deleted" if dry_run else "deleted"
    return "would stay as a branch" if dry_run else f"stay{'s' if left == 1 else ''} as a branch"


def fork(
    thread: ThreadName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Id of the new thread.")],
    at: Annotated[str, typer.Option(metavar="REF", help=REFERENCE, autocompletion=complete_ref)] = "head",
    yes: Yes = False,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Start a new thread from a checkpoint.

    The source thread stays unchanged and can be deleted later. What its tools did after this point is listed, and on a
    terminal you are asked.

    Example: savegame fork support-42 what-if --at "before refund"
    """
    with use_vault(store, namespace, change=True) as vault:
        source = get_thread(vault, thread, whole=True)
        origin = resolve_reference(source, at, source.load)
        staying = staying_effects(vault, source.id, origin)
        if not as_json:
            print_staying(staying, source.id, origin.id, ASKS)
            if staying and sys.stdin.isatty():
                ask(f"{plural(len(staying), 'effect')} will stay in the world. Continue?", yes=yes)
        first = next(source.fork(new, at=origin).history())
        if as_json:
            effects = [json_output.effect_output(vault.codec, source.id, entry) for entry in staying]
            print_json(
                {
                    "thread_id": new,
                    "forked_from": source.id,
                    "at": origin.id,
                    "checkpoint": first.to_dict(),
                    "effects": effects,
                }
            )
            return
        say((one_line(new), "bold"), f" starts at step {origin.step} of {one_line(source.id)}")
        say(checkpoint_line(first, head=True), hang=10)


def label(
    thread: ThreadName,
    ref: RefName,
    name: Annotated[str | None, typer.Argument(metavar="LABEL", help="New label; replaces an existing one.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the label.")] = False,
    tag: Annotated[list[str] | None, typer.Option(help="Add a tag; repeatable.")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="Remove a tag; repeatable.")] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Add or remove the label and tags of a checkpoint.

    prune keeps labelled checkpoints.

    Example: savegame label support-42 head~1 "before refund" --tag risky
    """
    if (name is None) == (not remove) and not tag and not untag:
        raise InvalidInputError("nothing to do; pass a label, --remove, --tag or --untag")
    if name is not None and remove:
        raise InvalidInputError("pass a label or --remove, not both")
    with use_vault(store, namespace, change=True) as vault:
        found = get_thread(vault, thread, whole=True)

        def change(label: str | None, tags: tuple[str, ...]) -> tuple[str | None, list[str]]:
            rest = [old for old in tags if old not in (untag or ())]
            return name if name is not None or remove else label, [*rest, *(tag or ())]

        changed = resolve_reference(found, ref, lambda checkpoint: found.note(checkpoint, change))
        if as_json:
            print_json(changed.to_dict())
        else:
            notes = label_and_tags(changed)
            say((short(changed.id), "yellow"), f"  step {changed.step}  ", notes if notes else ("no label, no tags", "dim"))
