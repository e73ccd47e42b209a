"""`savegame ui` and `savegame mcp`: the two servers. Each is imported only when its command runs.

Their extras may not be installed; then the error names the extra. Touches opening, vaults and printing.
"""

from __future__ import annotations

from importlib import import_module
from itertools import chain, repeat
from typing import Annotated

import typer

from savegame.cli.printing import err, out
from savegame.cli.vaults import Namespace, Store, store_name, use_vault

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

    Runs until Ctrl-C. Needs the extra web.

    Example: savegame ui --store agents.db
    """
    serve = import_module("savegame.web").serve
    hints = chain(["Open this link, which works once. Ctrl-C stops."], repeat("The link was used. To open another browser:"))
    with use_vault(store, namespace, change=not read_only) as vault:
        serve(
            vault,
            say=lambda link: _print_link(next(hints), link),
            host=host,
            port=port,
            name=store_name(store),
            read_only=read_only,
            open_browser=browser,
        )


def _print_link(hint: str, link: str) -> None:
    """Print a link on standard output, and the hint on standard error."""
    err.print(hint, style="dim")
    out.print(link, markup=False, style="bold cyan")


def mcp(
    answer_chars: Annotated[int, typer.Option(min=16_000, help="Maximum characters per answer; the rest is paged.")] = 40_000,
    read_only: ReadOnly = False,
    store: Store = None,
    namespace: Namespace = "default",
) -> None:
    """Serve the vault to an MCP client.

    Uses standard input and output; creates the vault if missing. Needs the extra mcp.

    Example: savegame mcp --store agents.db
    """
    serve = import_module("savegame.mcp").serve
    with use_vault(store, namespace, make=not read_only) as vault:
        serve(vault, read_only=read_only, answer_chars=answer_chars)
