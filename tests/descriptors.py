"""Which files this process holds open, as the system tells it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

needs_listing = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="the system does not tell which descriptors are open"
)


def open_under(directory: Path) -> list[str]:
    """What is held open in a directory, itself included: not what the garbage of other tests still holds elsewhere."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed, as the listing's own is
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if Path(path).is_relative_to(directory)]
