"""The command `savegame`. The one room that reads the environment, prints and exits. Touches opening, vault, errors."""

from __future__ import annotations

import io
import sys

from savegame.cli.app import app
from savegame.cli.printing import err, json_text, one_line
from savegame.cli.shapes import failure
from savegame.errors import SavegameError


def main() -> None:
    """Run the command line; errors of ours become one line, with `--json` a document, and their exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where the terminal has no such letter
    try:
        app()
    except SavegameError as error:
        if "--json" in sys.argv:
            sys.stderr.write(f"{json_text(failure(error))}\n")
        else:
            err.print(f"savegame: {one_line(error)}", markup=False, style="red")
        sys.exit(error.exit_code)
