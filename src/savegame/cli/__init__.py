"""The command `savegame`. The one room that reads the environment, prints and exits. Touches opening, vault, errors.

Nothing is imported before `main` is called: somebody may press Ctrl-C meanwhile.
"""

from __future__ import annotations

import sys
from typing import Final

INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line; interrupted, it ends without a word."""
    try:
        from savegame.cli.running import run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
