"""The command `savegame`: the only room that reads the environment, prints and exits.

Nothing is imported before `main` is called, so that Ctrl-C during an import ends quietly too.
"""

from __future__ import annotations

import os
import sys
from typing import Final

INTERRUPTED_CODE: Final = 130


def main() -> None:
    """Run the command line; an interrupt ends it without a traceback."""
    try:
        with open(os.devnull, "w") as nowhere:
            sys.stdout = sys.stdout or nowhere  # None if the parent process closed it
            from savegame.cli.running import run

            run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_CODE)
