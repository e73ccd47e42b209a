"""What every command prints with: lines and tables for people, JSON for programs, bars, questions. Touches showing, errors.

Stored text never reaches a terminal as it is: control characters, ends of lines other than the newline, and marks that turn
the direction of writing are shown as escapes, for people and in JSON. Bars and questions go to standard error, so that
standard output is only ever the answer.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from savegame.encoding.text import written
from savegame.errors import ConflictError, InvalidInputError, SavegameError
from savegame.present.text import ago as text_of_age

PIPED_WIDTH: Final = 1000
"""Trees are not wrapped for programs that read what people would."""

AT_ONCE: Final = 200
"""Lines that are printed together: one by one is slow, all at once keeps people waiting."""

NARROWEST: Final = 12
"""What is left of the first column of a table that has no room."""

LAST: Final = 14
"""What is left at least of the last one: a status."""

NARROW: Final = 64
"""Terminals with fewer columns are told less of each checkpoint."""

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tabs and newlines
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # what turns the direction of writing, or changes how letters are shaped
    "\u2028\u2029\ufff9-\ufffb]"  # other ends of lines and paragraphs; notes between the lines
)

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = Console(highlight=False, soft_wrap=True, stderr=True)


def safe(text: object) -> str:
    """A stored text as a terminal may show it: what would move the cursor, end a line or turn the text round, as an escape."""
    return _UNSAFE.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else f"\\u{ord(found[0]):04x}", written(text)
    )


def one_line(text: object, width: int = 0) -> str:
    """A stored text on one line, cut at `width` characters if there is one."""
    flat = safe(text).replace("\n", "⏎").replace("\t", " ")
    return flat if not width or len(flat) <= width else f"{flat[: width - 1]}…"


def clipped(text: object, width: int) -> str:
    """A stored text on one line, for people cut at `width` characters; programs that read it get all of it."""
    return one_line(text, width if out.is_terminal else 0)


def say(*parts: str | Text | tuple[str, str], hang: int = 0) -> None:
    """One line for people, of texts and (text, style); nothing in them is markup, and nothing moves the cursor."""
    line = Text()
    for part in parts:
        if isinstance(part, Text):
            line.append_text(part)
        else:
            text, style = (part, "") if isinstance(part, str) else part
            line.append(safe(text), style)
    print_lines([line], hang=hang)


def warn(line: str) -> None:
    """One line for people that is no part of the answer: on standard error."""
    err.print(safe(line), style="yellow", markup=False)


def print_lines(lines: Iterable[Text], *, cut: bool = False, hang: int = 0) -> None:
    """Lines for people as they come, on a terminal cut at its width or else wrapped; in a pipe whole and without colours.

    With `hang`, what is wrapped goes on below so many characters.
    """
    if not out.is_terminal:
        sys.stdout.writelines(f"{line.plain}\n" for line in lines)
        return
    waiting = (_hanging(line, hang) for line in lines) if hang else iter(lines)
    while some := list(islice(waiting, AT_ONCE)):
        out.print(Text("\n").join(some), soft_wrap=not cut, no_wrap=cut, overflow="ellipsis" if cut else None)


def _hanging(text: Text, indent: int) -> Text:
    below = Text(" " * indent)
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        if line.cell_len <= out.width:
            lines.append(line)
            continue
        start, rest = line.divide([indent])
        first, *others = rest.wrap(out, max(out.width - indent, NARROWEST))
        lines += [start + first, *(below + part for part in others)]
    return Text("\n").join(lines)


def is_narrow() -> bool:
    """Whether somebody looks on at less than fits on a line."""
    return out.is_terminal and out.width < NARROW


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    nothing: str = "",
    head: bool = True,
    spare: Sequence[str] = (),
) -> None:
    """Rows below the names of their columns, those with `>` to the right; or what is said where there are no rows.

    On a terminal that is too narrow the last column is cut; then the columns `spare` are left out, first things first; then
    the first one is cut.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    if not cells:
        say((nothing, "dim"))
        return
    if head:
        cells.insert(0, [Text(column.lstrip(">"), "dim") for column in columns])
    widths = [max(row[place].cell_len for row in cells) for place in range(len(columns))]
    shown = list(range(len(columns)))
    if spare and out.is_terminal:
        widths[-1] = min(widths[-1], LAST)
        shown = fitting(columns, widths, spare, out.width)
        widths[0] = min(widths[0], max(NARROWEST, out.width - sum(widths[place] + 2 for place in shown[1:]) - 2))
        for row in cells:
            row[0].truncate(widths[0], overflow="ellipsis")
    names, widths = [columns[place] for place in shown], [widths[place] for place in shown]
    print_lines((_in_columns([row[place] for place in shown], names, widths) for row in cells), cut=True)


def fitting(columns: Sequence[str], widths: Sequence[int], spare: Sequence[str], room: int) -> list[int]:
    """The places of the columns that are shown in so much room: of those that can be spared, as few as need be are left out."""
    shown = list(range(len(columns)))
    for name in spare:
        if min(widths[0], NARROWEST) + sum(widths[place] + 2 for place in shown[1:]) <= room:
            break
        shown.remove(columns.index(name))
    return shown


def _in_columns(row: Sequence[Text], columns: Sequence[str], widths: Sequence[int]) -> Text:
    line = Text()
    for cell, column, width in zip(row, columns, widths, strict=True):
        space = " " * (width - cell.cell_len)
        line.append(space if column.startswith(">") else "").append_text(cell)
        line.append("  " if column.startswith(">") else f"{space}  ")
    line.rstrip()
    return line


# -- words -----------------------------------------------------------------------------------------


def short(id: str | None) -> str:  # noqa: A002 - one word per idea
    """An id of ours as people read it; one that somebody chose stays whole."""
    return "" if id is None else id[:8] if re.fullmatch(r"[0-9a-f]{32}", id) else one_line(id)


def ago(then: dt.datetime) -> str:
    """How long ago something was."""
    return text_of_age(then, dt.datetime.now(dt.UTC))


def plural(count: int, one: str) -> str:
    """A number of things."""
    return f"{count:,} {one}" + ("" if count == 1 else "es" if one.endswith("s") else "s")


# -- for programs ----------------------------------------------------------------------------------


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which nothing can move a cursor; without `indent`, one line for every reader, whatever it takes to end a line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any) -> None:
    """One document."""
    sys.stdout.write(f"{json_text(value, 2)}\n")


def print_json_list(values: Iterable[Any]) -> None:
    """A list, an item on each line as they come."""
    before = "["
    for value in values:
        sys.stdout.write(before + json_text(value))
        before = ",\n "
    sys.stdout.write("[]\n" if before == "[" else "]\n")


def print_json_line(value: Any) -> None:
    """One document on a line of its own, at once."""
    sys.stdout.write(f"{json_text(value)}\n")
    sys.stdout.flush()


# -- meanwhile and beforehand ----------------------------------------------------------------------


@contextmanager
def bar(what: str, unit: str | None = None) -> Iterator[Callable[[int, int], None]]:
    """Progress of long work on standard error: a bar if a person watches; else, with a unit, a line for every tenth done."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # few commands need it

    columns = (TextColumn(what, markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    tenths = 0
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as shown:
        task = shown.add_task(what, total=None)

        def progress(done: int, total: int) -> None:
            nonlocal tenths
            shown.update(task, completed=done, total=total)
            if unit is not None and not err.is_terminal and total and done * 10 // total > tenths:
                tenths = done * 10 // total
                err.print(f"{what}: {done} of {total} {unit}", markup=False)

        yield progress


def ask(question: str, *, yes: bool) -> None:
    """Go on only if a person agrees, or said so with `--yes`; else SavegameError. Where nobody can be asked, InvalidInputError.

    Ctrl-C at the question interrupts the command, as it does anywhere else.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInputError(f"{question} Nobody is there to answer: give --yes to do it, or --dry-run to look only")
    err.print(f"{safe(question)} [y/N] ", end="", markup=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SavegameError("you did not say yes: nothing was done")


def refuse_other(now: object, shown: object) -> None:
    """What a person agreed to is what is done: ConflictError if it is something else by now."""
    if now != shown:
        raise ConflictError("something changed since you were shown what goes: nothing was deleted; look again")
