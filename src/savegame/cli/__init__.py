"""The command `savegame`. The one room that reads the environment, prints and exits. Touches opening, vault, errors."""

from __future__ import annotations

import sys

from savegame.cli.app import app
from savegame.errors import SavegameError


def main() -> None:
    """Run the command line; errors of ours become one line and their exit code."""
    try:
        app()
    except SavegameError as error:
        print(f"savegame: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
