"""When a directory was last changed, cheaply enough to ask after every write. Touches nothing."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

SETTLED_NS: Final = 50_000_000
"""A directory that was last changed longer ago than this has a time of change that the next change will differ from."""

BY_NAME_S: Final = 0.1
"""How often a directory is looked at by its name. In between a descriptor is enough, which shows everything but that a
directory further up was moved."""


class Directory:
    """Looks at a directory; holds a descriptor of it where the system has such that are good for nothing else."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._held: int | None = None
        self._by_name_after = 0.0
        if hasattr(os, "O_PATH"):
            with contextlib.suppress(OSError):  # too many files are open: it is looked at by its name, then
                self._held = os.open(path, os.O_PATH | os.O_DIRECTORY)

    def changed_ns(self) -> int:
        """When something in it was last added, removed or renamed, or it was moved itself; -1 if it is not there."""
        now = time.monotonic()
        try:
            if now < self._by_name_after and self._held is not None:
                return os.stat(self._held).st_ctime_ns
            self._by_name_after = now + BY_NAME_S
            return os.stat(self._path).st_ctime_ns
        except OSError:
            return -1

    def __del__(self) -> None:
        if self._held is not None:
            os.close(self._held)
