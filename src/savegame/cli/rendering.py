"""Checkpoints, conversations, states and differences as people read them. Pure: gives texts that the commands print.

Whatever was stored passes through `safe` or `one_line`. Touches printing, showing, transcript, codec, model.
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
from savegame.cli.printing import ago, clipped, is_narrow, one_line, plural, safe, short
from savegame.encoding.codec import format_path
from savegame.encoding.text import plain_text, written
from savegame.messages.transcript import Call, file_kind, file_name, said_in
from savegame.model import MISSING, Change, Status

WIDTH: Final = 100
"""Where values on one line are cut."""

LINES: Final = 12
"""Lines of a text, and items of a list, that are shown unless everything is asked for."""

SAID: Final = 12
"""The column in which messages say something."""

GOING: Final = 20
"""How much of what is about to be deleted is listed."""

ROLES: Final = {"user": "bold cyan", "assistant": "bold green", "tool": "magenta", "system": "dim"}
STATUSES: Final = {"completed": ("✓ completed", "green"), "failed": ("✗ failed", "red"), "halted": ("■ halted", "yellow")}
SIGNS: Final = {"+": "green", "-": "red", "@": "cyan"}


def status_text(status: Status) -> Text:
    """How far the work is, and why it ended."""
    said, style = STATUSES.get(str.__str__(status), ("… in progress", "dim"))
    return Text(said + (f": {one_line(status.reason, 60)}" if status.reason else ""), style)


def checkpoint_line(found: Checkpoint, *, head: bool) -> Text:
    """A checkpoint on one line; where that is short, without its kind."""
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
    if spent := costs(found):
        line.append(f"{spent} ", "dim")
    if found.forked_from is not None:
        line.append(f"forked from {clipped(found.forked_from, 40)}", "cyan")
    line.rstrip()
    return line


def going_lines(entries: Sequence[Checkpoint]) -> Iterator[Text]:
    """What is about to be deleted, of many only the first."""
    yield from (Text("  ").append_text(checkpoint_line(entry, head=False)) for entry in entries[:GOING])
    if len(entries) > GOING:
        yield Text(f"  … {len(entries) - GOING:,} more", "dim")


def label_and_tags(found: Checkpoint) -> Text:
    """The notes pinned on a checkpoint, each followed by a space."""
    text = Text()
    if found.label:
        text.append(f"«{clipped(found.label, 60)}» ", "bold yellow")
    for tag in found.tags:
        text.append(f"#{clipped(tag, 30)} ", "blue")
    return text


def costs(found: Checkpoint) -> str:
    """What a checkpoint cost, if it says so."""
    parts = [] if found.tokens_used is None else [f"{found.tokens_used:,} tokens"]
    return ", ".join(parts if found.cost is None else [*parts, f"${found.cost:.4f}"])


# -- conversations ---------------------------------------------------------------------------------


def message_text(message: Any, *, full: bool) -> Text:
    """One message: who, what, which calls with what outcome, which files."""
    said = said_in(message)
    role = one_line(said.role, 20)
    text = Text.assemble((f"{role:>{SAID - 2}}  ", ROLES.get(role, "bold")))
    lines = [(value_text(part, full=full), "red" if said.failed else "") for part in said.parts]
    lines += [(f"→ {call_text(call, full=full)}", "red" if call.failed else "magenta") for call in said.calls]
    names = [f"{file_name(file, place)} ({file_kind(file)})" for place, file in enumerate(said.files)]
    lines += [(f"+ {one_line(name, 0 if full else WIDTH)}", "blue") for name in names]
    below = "\n" + " " * SAID
    for place, (line, style) in enumerate(lines):
        text.append((below if place else "") + line.replace("\n", below), style)
    return text


def call_text(call: Call, *, full: bool) -> str:
    """A tool call as a function call, and what it gave."""
    given = {} if call.arguments is None else call.arguments
    each = (
        [f"{written(key)}={value_text(value, full=full)}" for key, value in given.items()]
        if isinstance(given, Mapping)
        else [written(given)]
    )
    outcome = "" if call.result is None else f" {'✗' if call.failed else '='} {value_text(call.result, full=full)}"
    return one_line(f"{call.name}({', '.join(each)}){outcome}", 0 if full else WIDTH)


def value_text(value: Any, *, full: bool) -> str:
    """A value: text as it is, other things as JSON where that can be; cut unless everything is asked for."""
    if isinstance(value, str):
        return safe(value) if full else _cut_lines(safe(value))
    if isinstance(value, (bytes, bytearray)):
        return f"({plural(len(value), 'byte')})"
    return one_line(plain_text(value), 0 if full else WIDTH)


def _cut_lines(text: str) -> str:
    lines = text.split("\n")
    cut = [line if len(line) <= 400 else f"{line[:399]}…" for line in lines[:LINES]]
    return "\n".join(cut if len(lines) <= LINES else [*cut, f"… {len(lines) - LINES} more lines"])


# -- states ----------------------------------------------------------------------------------------


def state_tree(state: Any, *, full: bool, without: tuple[str, ...] = ()) -> Tree:
    """A state as a tree; of long lists and deep places only the beginning, unless everything is asked for."""
    tree = Tree(Text("state", "bold"), guide_style="dim")
    shown = {name: value for name, value in state.items() if name not in without} if isinstance(state, dict) else state
    _grow(tree, shown, 0, full=full)
    return tree


def _grow(tree: Tree, value: Any, depth: int, *, full: bool) -> None:
    entries: list[tuple[Any, Any]] = list(value.items() if isinstance(value, dict) else enumerate(value))
    for name, item in entries if full else entries[:LINES]:
        label = Text.assemble((one_line(name, 60), "cyan"))
        if isinstance(item, (dict, list)) and item and (full or depth < 4):
            _grow(tree.add(label), item, depth + 1, full=full)
        else:
            shown = value_text(item, full=full)
            tree.add(label.append(f"  {shown if full else one_line(shown, WIDTH)}", "default"))
    if not full and len(entries) > LINES:
        tree.add(Text(f"… {len(entries) - LINES} more", "dim"))


# -- differences -----------------------------------------------------------------------------------


def change_lines(change: Change, *, full: bool) -> Iterator[Text]:
    """One difference: its place and what is gone or new there; of long texts only the lines that differ."""
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
    if isinstance(value, Mapping) and "role" in value and "content" in value:
        shown = re.sub(r"\s*\n\s*", " ", message_text(value, full=full).plain.strip())
    else:
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value_text(value, full=full)
    return one_line(shown, 0 if full else WIDTH)


def _text_lines(old: str, new: str) -> Iterator[Text]:
    lines = difflib.unified_diff(safe(old).splitlines(), safe(new).splitlines(), lineterm="", n=2)
    for line in list(lines)[2:]:
        yield Text(f"    {line}", SIGNS.get(line[:1], "dim"))
