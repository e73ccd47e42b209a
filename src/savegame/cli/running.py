"""Runs one command, from its arguments to its exit code. A SavegameError becomes one line, or a document with `--json`.

This is the only place that turns errors into exit codes, and that knows of Ctrl-C and closed pipes. Touches app, printing and
json_output.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Any, Final

import typer

from savegame.cli.app import build_app
from savegame.cli.json_output import error_output
from savegame.cli.printing import err, json_text, one_line, warn
from savegame.errors import InvalidInputError, SavegameError, needs_descriptors

WRONG_USE: Final[Any] = typer.BadParameter.__mro__[2]
"""The exception for unknown options and the like: click's UsageError, which typer may bundle and does not export."""


class _WarningPrinter(logging.Handler):
    """Prints what the library logs, escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(self.format(record))


class _ReaderGone(Exception):
    """The reader of our output closed the pipe, as `head` does."""


class _StandardOutput(io.FileIO):
    """Standard output that raises _ReaderGone for a closed pipe: rich and typer would exit with 1 on BrokenPipeError."""

    def write(self, data: Any, /) -> Any:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise _ReaderGone from error


def run() -> None:
    """Run the command line and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        raw = io.BufferedWriter(_StandardOutput(sys.stdout.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(raw, sys.stdout.encoding, line_buffering=sys.stdout.line_buffering)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters that the terminal's encoding lacks
    logging.getLogger("savegame").addHandler(_WarningPrinter(logging.WARNING))
    as_json = "--json" in sys.argv
    try:
        try:
            with needs_descriptors("savegame"):  # the command's module is imported here
                sys.exit(build_app(next(iter(sys.argv[1:]), None))(standalone_mode=not as_json))
        finally:
            sys.stdout.flush()  # here, where a failure is still handled
    except SavegameError as error:
        _exit_with(error, as_json=as_json)
    except WRONG_USE as error:  # only with --json: otherwise typer prints it in a box
        _exit_with(InvalidInputError(error.format_message()), as_json=as_json)
    except _ReaderGone:
        _drop_output()
        sys.exit(0)
    except OSError as error:  # for example, standard output is a file on a full disk
        _drop_output()
        _exit_with(SavegameError(f"{error.filename or 'standard output'}: {error.strerror or error}"), as_json=as_json)


def _drop_output() -> None:
    """Discard buffered output, which Python would try to flush again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _exit_with(error: SavegameError, *, as_json: bool) -> None:
    if as_json:
        sys.stderr.write(f"{json_text(error_output(error))}\n")
    else:
        err.print(f"savegame: {one_line(error)}", markup=False, style="red")
    sys.exit(error.exit_code)
