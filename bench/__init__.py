"""How fast and how small: savegame beside a bare SQLite insert and LangGraph's SqliteSaver. See README.md."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code says whether a contestant crashed (or, with --check, a limit was missed)."""
    from bench.cli import run  # importing the package must stay free of cost and of extras

    return run(argv)


__all__ = ["main"]
