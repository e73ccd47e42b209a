"""One lock around a whole file store: a mutex in the process, flock between processes, none across a fork.

A writer is alone; readers share the store. A child of a fork never touches the lock of
its parent: it would be the same lock to the system. Touches errors, store and disk.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from savegame.errors import ClosedError, UnavailableError
from savegame.stores.file.disk import LOCK, translated
from savegame.stores.refusals import write_inside
from savegame.waiting.forking import Still, leave_alone, take_along
from savegame.waiting.retrying import OPENINGS

BUSY_S: Final = 30.0
"""How long to wait for another process."""


class Lock:
    """The lock of one store in this process. `make` prepares the directory that its file lies in."""

    def __init__(self, root: str, make: Callable[[], None] | None) -> None:
        self.root = root
        self.closed = False
        self._path = os.path.join(root, LOCK)
        self._make = make
        self._begin_life()
        take_along(self)

    def _begin_life(self) -> None:
        self._mutex = threading.RLock()
        self._handle: int | None = None
        self._holder: int = 0
        """Whether it is held, and how: LOCK_SH, LOCK_EX or 0."""

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        """Hold the lock; to read inside itself it stays as it is. Where there is no file to lock, only the process is alone."""
        with self._mutex:
            self.check_open()
            if self._holder:
                if alone:
                    raise write_inside(self.root)
                yield
                return
            wanted = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
            try:
                self._holder = wanted
                self._lock(wanted)
                yield
            finally:
                self._holder = 0
                try:
                    self._unlock()
                except BaseException:  # also an interrupt: other processes must not wait for this one's next operation
                    self._drop()
                    raise

    def check_open(self) -> None:
        """Raise ClosedError if it is closed."""
        if self.closed:
            raise ClosedError(f"{self.root}: the vault is closed; open it again")

    def close(self) -> None:
        """Close the file, once no other thread of this process uses it. A second call does nothing."""
        with self._mutex:
            self.closed = True
            self._drop()
        leave_alone(self)

    def _drop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _lock(self, how: int) -> None:
        with translated(self.root):
            for _ in range(OPENINGS):
                if self._handle is None:
                    self._handle = self._opened(alone=how == fcntl.LOCK_EX)
                if self._handle is None:
                    return
                self._wait(self._handle, how)
                if self._is_there(self._handle):
                    return
                self._drop()  # the directory was taken away or replaced meanwhile
            raise UnavailableError(f"{self._path}: keeps being replaced; stop what replaces it, then retry")

    def _unlock(self) -> None:
        if self._handle is not None:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_UN)
            except OSError:  # closing the file does it too
                self._drop()

    def _opened(self, *, alone: bool) -> int | None:
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        if alone and self._make is not None:
            self._make()
            return os.open(self._path, os.O_RDWR | os.O_CREAT | flags, 0o600)
        with suppress(FileNotFoundError):
            return os.open(self._path, os.O_RDONLY | flags)
        return None

    def _wait(self, handle: int, how: int) -> None:
        deadline, pause = time.monotonic() + BUSY_S, 0.0002
        while True:
            try:
                fcntl.flock(handle, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"{self.root}: another process holds the store; retry") from None
            time.sleep(pause)
            pause = min(pause * 2, 0.005)

    def _is_there(self, handle: int) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(handle), os.stat(self._path))
        return False

    # -- fork --------------------------------------------------------------------------------------

    def still(self) -> Still:
        """Wait until no operation is under way."""
        with self._mutex:
            yield

    def after_fork_in_child(self) -> None:
        """Start afresh; refuse to go on if the fork happened inside an operation, which is the parent's."""
        self.closed = self.closed or bool(self._holder)
        self._drop()
        self._begin_life()
