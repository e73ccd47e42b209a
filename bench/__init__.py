"""Speed and size: savegame compared with a bare SQLite insert and LangGraph's SqliteSaver. See README.md."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark. The exit code is 1 if a contestant crashed (or, with --check, missed a limit)."""
    from bench.cli import run  # importing the package must stay free of cost and of extras

    return run(argv)


__all__ = ["main"]
