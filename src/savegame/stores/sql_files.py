"""Statements and migrations from .sql files: SQL lives there, named, and never in Python. Touches nothing."""

from __future__ import annotations

import re
from importlib.resources.abc import Traversable


def queries(source: Traversable) -> dict[str, str]:
    """The named statements of a file."""
    parts = re.split(r"^-- name: (\w+)$", source.read_text(), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def migrations(directory: Traversable) -> list[tuple[int, str]]:
    """Every step of a layout, as (version, SQL), oldest first."""
    found = [entry for entry in directory.iterdir() if entry.name.endswith(".sql")]
    return sorted((int(entry.name[:4]), entry.read_text()) for entry in found)
