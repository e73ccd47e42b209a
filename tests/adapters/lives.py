"""Lives: a function that runs again and again in new processes, each forked from one that has imported everything."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from savegame.testing.faults import Child, Line, Mouth


class Log:
    """Lines that are in the file when `say` returns, whatever happens to the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(self, what: str, item: str) -> None:
        os.write(self._file, f"{what} {item}\n".encode())


def nursery(mouth: Mouth, live: Callable[..., None], *args: Any) -> None:
    """The child: forks a process that runs `live(mouth, *args)` whenever it hears; never two at once.

    Such a process must not hear: its ear is the nursery's.
    """
    while True:
        mouth.hear()
        pid = os.fork()
        if not pid:
            try:
                live(mouth, *args)
            except BaseException:  # noqa: BLE001 - told to the parent, which fails the test
                mouth.say("error", traceback.format_exc()[-3000:])
            os._exit(0)
        mouth.say("pid", pid)
        mouth.hear()  # until then it is not reaped, so that its id is not reused
        os.waitpid(pid, 0)
        mouth.say("gone")


class Life:
    """One process of a nursery, from its beginning to its end."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.lines: list[Line] = []
        child.go()
        self.pid = self.until("pid")[1]

    def until(self, *begin: Any) -> Line:
        """Wait for a line that begins so; returns it."""
        while True:
            for line in self.lines:
                if tuple(line[: len(begin)]) == begin:
                    return line
            self.lines.append(self._child.next())

    def end(self, *, kill: bool = False) -> list[Line]:
        """Wait for its end, or kill it first; returns what it said."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        self._child.go()
        self.until("gone")
        return [line for line in self.lines if line[0] not in ("pid", "gone")]
