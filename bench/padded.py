"""A simulated slow disk: a default VFS for this process whose flushes take a minimum time, with the GIL released."""

from __future__ import annotations

import time
from typing import Any

import apsw


class PaddedFile(apsw.VFSFile):
    """A file of the system's own VFS; only its flush takes longer."""

    def __init__(self, vfs: PaddedVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.vfs = vfs
        super().__init__(vfs.base, name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        """Flush for real, then sleep away what is missing."""
        self.vfs.flushes += 1
        until = time.perf_counter() + self.vfs.seconds
        super().xSync(flags)
        time.sleep(max(0.0, until - time.perf_counter()))

    def xLock(self, level: int) -> None:  # noqa: N802 - SQLite's name
        """A read-only file cannot be locked to be checkpointed on close; SQLite minds as little as if it were busy."""
        try:
            super().xLock(level)
        except apsw.IOError as error:
            raise apsw.BusyError from error


class PaddedVFS(apsw.VFS):
    """The system's own VFS with padded files; keep a reference for as long as databases are open."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.flushes = seconds, 0
        self.base = apsw.vfs_names()[0]  # the first is the default one
        super().__init__("padded", self.base, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:  # noqa: N802 - SQLite's name
        """Every file, the WAL among them."""
        return PaddedFile(self, name, flags)
