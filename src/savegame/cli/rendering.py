"""Checkpoints, conversations, states and changes as rich texts that the commands print. Pure.

All stored text passes through `escape` or `one_line`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text
from rich.tree import Tree

from savegame.checkpoint import Checkpoint
from savegame.cli.printing import ago, clip, escape, is_narrow, one_line, plural, short
from savegame.encoding.text import format_path, plain_text, written
from savegame.messages.transcript import MessageCall, file_kind, file_name, is_message, read_message
from savegame.model import MISSING, Change, Status
from savegame.present.effects import began_at, call_name, standing
from savegame.runs.ledger import CallEntry

VALUE_WIDTH: Final = 100
"""Maximum length of a value on one line."""

LINES: Final = 12
"""Maximum number of lines of a text, and of items of a list, without --full."""

TEXT_COLUMN: Final = 12
"""The column in which the text of a message starts."""

MAX_LISTED: Final = 20
"""Maximum number of listed checkpoints that are about to be deleted."""

ROLE_STYLES: Final = {"user": "bold cyan", "assistant": "bold green", "tool": "magenta", "system": "dim"}
STATUSES: Final = {"completed": ("✓ completed", "green"), "failed": ("✗ failed", "red"), "halted": ("■ halted", "yellow")}
FATES: Final = {"unknown outcome": "bold red", "failed": "red", "left": "yellow", "undone": "green"}
SIGNS: Final = {"+": "green", "-": "red", "@": "cyan"}


def status_text(status: Status) -> Text:
    """A status with its reason."""
    text, style = STATUSES.get(str.__str__(status), ("… in progress", "dim"))
    return Text(text + (f": {one_line(status.reason, 60)}" if status.reason else ""), style)


def checkpoint_line(found: Checkpoint, *, head: bool, message: str | None = None) -> Text:
    """A checkpoint on one line, with its newest `message` if that is given; on narrow terminals without its kind."""
    line = Text.assemble((f"{short(found.id):8}  ", "yellow"))
    if is_narrow():
        line.append(f"{found.step:<4}", "bold").append(f"{ago(found.created_at):12}", "dim")
    else:
        line.append(f"step {found.step:<6}", "bold").append(f"{ago(found.created_at):12}", "dim")
        line.append(f"{one_line(found.kind, 30):13} ")
    if head:
        line.append("← head ", "bold green")
    line.append(label_and_tags(found))
    if found.status != "in_progress":
        line.append_text(Text.assemble(status_text(found.status), " "))
    if spent := cost_text(found):
        line.append(f"{spent} ", "dim")
    if found.forked_from is not None:
        line.append(f"forked from {clip(found.forked_from, 40)} ", "cyan")
    if message is not None:
        line.append(one_line(message, 60), "italic")
    line.rstrip()
    return line


def deletion_lines(entries: Sequence[Checkpoint]) -> Iterator[Text]:
    """The first of the checkpoints that are about to be deleted, and how many more there are."""
    yield from (Text("  ").append_text(checkpoint_line(entry, head=False)) for entry in entries[:MAX_LISTED])
    if len(entries) > MAX_LISTED:
        yield Text(f"  … {len(entries) - MAX_LISTED:,} more", "dim")


def label_and_tags(found: Checkpoint) -> Text:
    """Label and tags of a checkpoint, each followed by a space."""
    text = Text()
    if found.label:
        text.append(f"«{clip(found.label, 60)}» ", "bold yellow")
    for tag in found.tags:
        text.append(f"#{clip(tag, 30)} ", "blue")
    return text


def cost_text(found: Checkpoint) -> str:
    """Tokens and cost of a checkpoint, as far as known."""
    parts = [] if found.tokens_used is None else [f"{found.tokens_used:,} tokens"]
    return ", ".join(parts if found.cost is None else [*parts, f"${found.cost:.4f}"])


# -- conversations ---------------------------------------------------------------------------------


def message_text(message: Any, *, full: bool) -> Text:
    """One message: role, text, tool calls with their results, files."""
    transcript = read_message(message)
    role = one_line(transcript.role, 20)
    text = Text.assemble((f"{role:>{TEXT_COLUMN - 2}}  ", ROLE_STYLES.get(role, "bold")))
    lines = [(value_text(part, full=full), "red" if transcript.failed else "") for part in transcript.parts]
    lines += [(f"→ {call_text(call, full=full)}", "red" if call.failed else "magenta") for call in transcript.calls]
    names = [f"{file_name(file, place)} ({file_kind(file)})" for place, file in enumerate(transcript.files)]
    lines += [(f"+ {one_line(name, 0 if full else VALUE_WIDTH)}", "blue") for name in names]
    below = "\n" + " " * TEXT_COLUMN
    for place, (line, style) in enumerate(lines):
        text.append((below if place else "") + line.replace("\n", below), style)
    return text


def call_text(call: MessageCall, *, full: bool) -> str:
    """A tool call written as a function call, with its result."""
    given = {} if call.arguments is None else call.arguments
    each = (
        [f"{written(key)}={value_text(value, full=full)}" for key, value in given.items()]
        if isinstance(given, Mapping)
        else [written(given)]
    )
    outcome = "" if call.result is None else f" {'✗' if call.failed else '='} {value_text(call.result, full=full)}"
    return one_line(f"{call.name}({', '.join(each)}){outcome}", 0 if full else VALUE_WIDTH)


def entry_text(entry: CallEntry) -> str:
    """A call of the ledger on one line, with its result or error."""
    outcome = entry.error or entry.result
    call = MessageCall(entry.key, call_name(entry), entry.arguments, outcome, failed=entry.error is not None)
    return call_text(call, full=False)


def effect_line(effect: CallEntry, indent: int = 0) -> Text:
    """An effect on one line: when it was begun, the call with its result, and what became of it."""
    began = began_at(effect)
    line = Text.assemble(" " * indent, ("" if began is None else f"{ago(began)}").ljust(12), entry_text(effect))
    for word in standing(effect):
        line.append(f"  {word}", FATES[word])
    if effect.made_in is not None:
        line.append(f"  in {clip(effect.made_in, 40)}", "cyan")
    return line.append(f"  {one_line(effect.key)}", "dim")


def value_text(value: Any, *, full: bool) -> str:
    """A value: text unquoted, anything else as JSON where possible; cut unless `full`."""
    if isinstance(value, str):
        return escape(value) if full else _cut_lines(escape(value))
    if isinstance(value, (bytes, bytearray)):
        return f"({plural(len(value), 'byte')})"
    return one_line(plain_text(value), 0 if full else VALUE_WIDTH)


def _cut_lines(text: str) -> str:
    lines = text.split("\n")
    cut = [line if len(line) <= 400 else f"{line[:399]}…" for line in lines[:LINES]]
    return "\n".join(cut if len(lines) <= LINES else [*cut, f"… {len(lines) - LINES} more lines"])


# -- states ----------------------------------------------------------------------------------------


def state_tree(state: Any, *, full: bool) -> Tree:
    """A state as a tree; long lists and deep branches are cut unless `full`."""
    tree = Tree(Text("state", "bold"), guide_style="dim")
    _grow(tree, state, 0, full=full)
    return tree


def _grow(tree: Tree, value: Any, depth: int, *, full: bool) -> None:
    entries: list[tuple[Any, Any]] = list(value.items() if isinstance(value, dict) else enumerate(value))
    for name, item in entries if full else entries[:LINES]:
        label = Text.assemble((one_line(name, 60), "cyan"))
        if isinstance(item, (dict, list)) and item and (full or depth < 4):
            _grow(tree.add(label), item, depth + 1, full=full)
        else:
            text = value_text(item, full=full)
            tree.add(label.append(f"  {text if full else one_line(text, VALUE_WIDTH)}", "default"))
    if not full and len(entries) > LINES:
        tree.add(Text(f"… {len(entries) - LINES} more", "dim"))


# -- differences -----------------------------------------------------------------------------------


def change_lines(change: Change, *, full: bool) -> Iterator[Text]:
    """One change: its path with the old and the new value; of long texts only the lines that differ."""
    path = one_line(format_path(change.path) or "(the state)")
    if change.old is MISSING:
        yield Text.assemble(("+ ", "bold green"), (path, "bold"), (f"  {_side(change.new, full=full)}", "green"))
    elif change.new is MISSING:
        yield Text.assemble(("- ", "bold red"), (path, "bold"), (f"  {_side(change.old, full=full)}", "red"))
    elif isinstance(change.old, str) and isinstance(change.new, str) and "\n" in change.old + change.new:
        yield Text.assemble(("~ ", "bold yellow"), (path, "bold"))
        yield from _text_lines(change.old, change.new)
    else:
        old, new = (_side(side, full=full) for side in (change.old, change.new))
        yield Text.assemble(("~ ", "bold yellow"), (path, "bold"), "  ", (old, "red"), (" → ", "dim"), (new, "green"))


def _side(value: Any, *, full: bool) -> str:
    if is_message(value):
        text = re.sub(r"\s*\n\s*", " ", message_text(value, full=full).plain.strip())
    else:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value_text(value, full=full)
    return one_line(text, 0 if full else VALUE_WIDTH)


def _text_lines(old: str, new: str) -> Iterator[Text]:
    lines = difflib.unified_diff(escape(old).splitlines(), escape(new).splitlines(), lineterm="", n=2)
    for line in list(lines)[2:]:
        yield Text(f"    {line}", SIGNS.get(line[:1], "dim"))
