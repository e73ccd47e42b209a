"""The command `savegame`. The one room that reads the environment, prints and exits. Touches opening, vault, errors.

Nothing is imported before `main` is called: somebody may press Ctrl-C meanwhile.
"""

from __future__ import annotations

import os
import sys
from typing import Final

INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line; interrupted, it ends without a word."""
    try:
        with open(os.devnull, "w") as nowhere:
            sys.stdout = sys.stdout or nowhere  # None where whoever started us has closed it
            from savegame.cli.running import run

            run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
