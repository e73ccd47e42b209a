"""`savegame ui` and `savegame mcp`: the two servers, on a vault that is opened here. They are only imported when asked for."""

from __future__ import annotations

from importlib import import_module
from itertools import chain, repeat
from typing import Annotated

import typer

from savegame.cli.printing import err, out
from savegame.cli.vaults import Namespace, Store, opened, shown

ReadOnly = Annotated[bool, typer.Option("--read-only", help="Disable everything that makes changes.")]


def ui(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 picks a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address; must be local.")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
    read_only: ReadOnly = False,
    store: Store = None,
    namespace: Namespace = "default",
) -> None:
    """Open the vault as a web page on this machine.

    Runs until Ctrl-C. Needs the web extra: pip install 'savegame[web]'.

    Example: savegame ui --store agents.db
    """
    serve = import_module("savegame.web").serve
    hints = chain(["Open this, it works once. Ctrl-C stops."], repeat("Opened. The next one needs another link:"))
    with opened(store, namespace, change=not read_only) as vault:
        serve(
            vault,
            say=lambda link: _tell(next(hints), link),
            host=host,
            port=port,
            name=shown(store),
            read_only=read_only,
            open_browser=browser,
        )


def _tell(hint: str, link: str) -> None:
    """A link is the answer; what to do with it is for people only."""
    err.print(hint, style="dim")
    out.print(link, markup=False, style="bold cyan")


def mcp(
    answer_chars: Annotated[int, typer.Option(min=16_000, help="Maximum characters per answer; the rest is paged.")] = 40_000,
    read_only: ReadOnly = False,
    store: Store = None,
    namespace: Namespace = "default",
) -> None:
    """Serve the vault to an MCP client.

    Uses standard input and output; creates the vault if missing. Needs the mcp extra: pip install 'savegame[mcp]'.

    Example: savegame mcp --store agents.db
    """
    serve = import_module("savegame.mcp").serve
    with opened(store, namespace, make=not read_only) as vault:
        serve(vault, read_only=read_only, answer_chars=answer_chars)
