"""The web page `savegame ui`: threads, timelines, runs and the store in a browser on this machine. Needs `savegame[web]`.

`serve` runs it until it is stopped; `Server` is the same as a context manager. Everything about safety is in `guard.py`,
one middleware around all routes. The rooms here show what the vault's verbs give and call its verbs; they keep nothing.
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
