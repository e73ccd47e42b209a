"""The web page `savegame ui`: threads, timelines, runs and the store in a browser on this machine. Needs `savegame[web]`.

`serve` runs until it is stopped; `Server` is the same as a context manager. All access control is in `guard.py`, a
middleware around every route. Pages call the verbs of the vault and store nothing themselves.
"""

from __future__ import annotations

from savegame.errors import UnsupportedError

try:
    from savegame.web.server import Server, serve
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("savegame"):
        raise
    raise UnsupportedError('the web page is not installed: pip install "savegame[web]"') from error

__all__ = ["Server", "serve"]
