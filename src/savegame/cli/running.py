"""One command from its arguments to its exit code: errors of ours end it with one line. Touches app, printing, errors."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Any, Final

import typer

from savegame.cli.app import made
from savegame.cli.printing import err, json_text, one_line, warn
from savegame.cli.shapes import failure
from savegame.errors import InvalidInputError, SavegameError, needs_descriptors

WRONG_USE: Final[Any] = typer.BadParameter.__mro__[2]
"""What is raised for options that there are not, and the like; typer does not give it a name, and may bring its own click."""


class _Warned(logging.Handler):
    """What the library logs, as lines for people: nothing in them moves the cursor."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(self.format(record))


class _ReaderGone(Exception):
    """The program that read our output has seen enough, as `head` does."""


class _Output(io.FileIO):
    """Standard output. Its BrokenPipeError has a name of its own: rich and typer would end with 1 on the other."""

    def write(self, data: Any, /) -> Any:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise _ReaderGone from error


def run() -> None:
    """Run the command line; errors of ours become one line, with `--json` a document, and their exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        raw = io.BufferedWriter(_Output(sys.stdout.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(raw, sys.stdout.encoding, line_buffering=sys.stdout.line_buffering)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where the terminal has no such letter
    logging.getLogger("savegame").addHandler(_Warned(logging.WARNING))
    as_json = "--json" in sys.argv
    try:
        try:
            with needs_descriptors("savegame"):  # commands are imported when they are asked for
                sys.exit(made(next(iter(sys.argv[1:]), None))(standalone_mode=not as_json))
        finally:
            sys.stdout.flush()  # here an error can still be told
    except SavegameError as error:
        _end(error, as_json=as_json)
    except WRONG_USE as error:  # else shown by typer, with a box around it
        _end(InvalidInputError(error.format_message()), as_json=as_json)
    except _ReaderGone:
        _drop_output()
        sys.exit(0)
    except OSError as error:  # the disk that our output goes to is full, and the like
        _drop_output()
        _end(SavegameError(f"{error.filename or 'standard output'}: {error.strerror or error}"), as_json=as_json)


def _drop_output() -> None:
    """What is still to be written goes nowhere, else Python would try once more as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _end(error: SavegameError, *, as_json: bool) -> None:
    if as_json:
        sys.stderr.write(f"{json_text(failure(error))}\n")
    else:
        err.print(f"savegame: {one_line(error)}", markup=False, style="red")
    sys.exit(error.exit_code)
