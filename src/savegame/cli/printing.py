"""Output of all commands: lines and tables for people, JSON for programs, progress bars, questions.

Stored text never reaches a terminal raw: control characters, line separators other than the newline, and marks that change
the writing direction are escaped, for people and in JSON. Bars and questions go to standard error, so standard output holds
only the answer.
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
"""Width of trees in a pipe, where nothing should wrap."""

BATCH_LINES: Final = 200
"""Lines per print: one by one is slow, all at once keeps people waiting."""

FIRST_COLUMN: Final = 12
"""Minimum width of the first column of a table."""

LAST_COLUMN: Final = 14
"""Minimum width of the last column: a status."""

NARROW: Final = 64
"""Terminals with fewer columns show less of each checkpoint."""

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # marks that change the writing direction or the shape of letters
    "\u2028\u2029\ufff9-\ufffb]"  # line and paragraph separators, interlinear annotations
)

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = Console(highlight=False, soft_wrap=True, stderr=True)


def escape(text: object) -> str:
    """A stored text with everything escaped that would move the cursor, end a line or change the writing direction."""
    return _UNSAFE.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else f"\\u{ord(found[0]):04x}", written(text)
    )


def one_line(text: object, width: int = 0) -> str:
    """A stored text on one line, cut at `width` characters unless that is 0."""
    flat = escape(text).replace("\n", "⏎").replace("\t", " ")
    return flat if not width or len(flat) <= width else f"{flat[: width - 1]}…"


def clip(text: object, width: int) -> str:
    """A stored text on one line, cut at `width` characters on a terminal; a pipe gets all of it."""
    return one_line(text, width if out.is_terminal else 0)


def say(*parts: str | Text | tuple[str, str], hang: int = 0) -> None:
    """Print one line of texts and (text, style). Markup is not interpreted, and nothing moves the cursor."""
    line = Text()
    for part in parts:
        if isinstance(part, Text):
            line.append_text(part)
        else:
            text, style = (part, "") if isinstance(part, str) else part
            line.append(escape(text), style)
    print_lines([line], hang=hang)


def warn(line: str) -> None:
    """Print one line that is not part of the answer, on standard error."""
    err.print(escape(line), style="yellow", markup=False)


def print_lines(lines: Iterable[Text], *, cut: bool = False, hang: int = 0) -> None:
    """Print lines as they arrive: wrapped or `cut` at the width of a terminal, or whole and without colours in a pipe.

    Continuation lines are indented by `hang` characters.
    """
    if not out.is_terminal:
        sys.stdout.writelines(f"{line.plain}\n" for line in lines)
        return
    waiting = (_hang_indent(line, hang) for line in lines) if hang else iter(lines)
    while batch := list(islice(waiting, BATCH_LINES)):
        out.print(Text("\n").join(batch), soft_wrap=not cut, no_wrap=cut, overflow="ellipsis" if cut else None)


def _hang_indent(text: Text, indent: int) -> Text:
    below = Text(" " * indent)
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        if line.cell_len <= out.width:
            lines.append(line)
            continue
        start, rest = line.divide([indent])
        first, *others = rest.wrap(out, max(out.width - indent, FIRST_COLUMN))
        lines += [start + first, *(below + part for part in others)]
    return Text("\n").join(lines)


def is_narrow() -> bool:
    """Whether the output is a terminal with few columns."""
    return out.is_terminal and out.width < NARROW


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    nothing: str = "",
    head: bool = True,
    spare: Sequence[str] = (),
) -> None:
    """Print rows below their column names, those with `>` right-aligned; or the text `nothing` if there are no rows.

    On a terminal that is too narrow the last column is cut, then the columns `spare` are dropped in order, then the first
    column is cut.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    if not cells:
        say((nothing, "dim"))
        return
    if head:
        cells.insert(0, [Text(column.lstrip(">"), "dim") for column in columns])
    widths = [max(row[place].cell_len for row in cells) for place in range(len(columns))]
    chosen = list(range(len(columns)))
    if spare and out.is_terminal:
        widths[-1] = min(widths[-1], LAST_COLUMN)
        chosen = choose_columns(columns, widths, spare, out.width)
        widths[0] = min(widths[0], max(FIRST_COLUMN, out.width - sum(widths[place] + 2 for place in chosen[1:]) - 2))
        for row in cells:
            row[0].truncate(widths[0], overflow="ellipsis")
    names, widths = [columns[place] for place in chosen], [widths[place] for place in chosen]
    print_lines((_join_cells([row[place] for place in chosen], names, widths) for row in cells), cut=True)


def choose_columns(columns: Sequence[str], widths: Sequence[int], spare: Sequence[str], room: int) -> list[int]:
    """Indexes of the columns that fit into `room`; drops as few of the `spare` ones as possible."""
    chosen = list(range(len(columns)))
    for name in spare:
        if min(widths[0], FIRST_COLUMN) + sum(widths[place] + 2 for place in chosen[1:]) <= room:
            break
        chosen.remove(columns.index(name))
    return chosen


def _join_cells(row: Sequence[Text], columns: Sequence[str], widths: Sequence[int]) -> Text:
    line = Text()
    for cell, column, width in zip(row, columns, widths, strict=True):
        space = " " * (width - cell.cell_len)
        line.append(space if column.startswith(">") else "").append_text(cell)
        line.append("  " if column.startswith(">") else f"{space}  ")
    line.rstrip()
    return line


# -- words -----------------------------------------------------------------------------------------


def short(id: str | None) -> str:  # noqa: A002 - one word per idea
    """The first 8 characters of a generated id; an id chosen by the user stays whole."""
    return "" if id is None else id[:8] if re.fullmatch(r"[0-9a-f]{32}", id) else one_line(id)


def ago(then: dt.datetime) -> str:
    """How long ago something happened."""
    return text_of_age(then, dt.datetime.now(dt.UTC))


def plural(count: int, one: str) -> str:
    """A count with its noun."""
    return f"{count:,} {one}" + ("" if count == 1 else "es" if one.endswith("s") else "s")


# -- for programs ----------------------------------------------------------------------------------


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON with unsafe characters escaped; without `indent`, on one line whatever a reader takes for the end of a line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any) -> None:
    """Print one document."""
    sys.stdout.write(f"{json_text(value, 2)}\n")


def print_json_list(values: Iterable[Any]) -> None:
    """Print a list, one item per line as they arrive."""
    before = "["
    for value in values:
        sys.stdout.write(before + json_text(value))
        before = ",\n "
    sys.stdout.write("[]\n" if before == "[" else "]\n")


def print_json_line(value: Any) -> None:
    """Print one document on its own line, and flush."""
    sys.stdout.write(f"{json_text(value)}\n")
    sys.stdout.flush()


# -- progress and questions ------------------------------------------------------------------------


@contextmanager
def bar(what: str, unit: str | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error: a bar on a terminal; elsewhere, with a unit, one line per tenth."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # few commands need it

    columns = (TextColumn(what, markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    tenths = 0
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as display:
        task = display.add_task(what, total=None)

        def progress(done: int, total: int) -> None:
            nonlocal tenths
            display.update(task, completed=done, total=total)
            if unit is not None and not err.is_terminal and total and done * 10 // total > tenths:
                tenths = done * 10 // total
                err.print(f"{what}: {done} of {total} {unit}", markup=False)

        yield progress


def ask(question: str, *, yes: bool) -> None:
    """Return if the user agrees, or passed `--yes`; raise SavegameError otherwise, InvalidInputError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInputError(f"{question} Cannot ask without a terminal; pass --yes to confirm or --dry-run to preview")
    err.print(f"{escape(question)} [y/N] ", end="", markup=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SavegameError("not confirmed; nothing was changed")


def confirm_deletion(what: str, listed: object, current: Callable[[], object], *, yes: bool) -> None:
    """Ask whether to delete `what`. Raises ConflictError if it is no longer what was `listed` before the question."""
    ask(f"{what} will be deleted for good. Continue?", yes=yes)
    if not yes and current() != listed:
        raise ConflictError("the data changed while you were asked, and nothing was deleted; run the command again")
