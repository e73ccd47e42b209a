"""A backup of a file store while others write: in passes, the last of which holds the lock and has little left to copy.

As long as the first line of a journal stays, only more is added to it, so that a later pass copies what was added. Every
other file is copied again if it changed. Links, and whatever else is no file, are passed over.
Touches directory, disk, journal, listing, threads, write.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Final, NamedTuple

from savegame.errors import AlreadyExistsError, InvalidInputError
from savegame.stores.directory import SETTLED_NS
from savegame.stores.file.disk import (
    JOURNAL,
    LOCK,
    MARKER,
    SEARCH,
    TRASH,
    Disk,
    copied,
    files_below,
    opened,
    translated,
    write_at,
)
from savegame.stores.file.journal import Signature, signature_of_stat
from savegame.stores.file.listing import LISTING
from savegame.stores.file.write import BATCH
from savegame.waiting.undoing import on_failure

_DERIVED: Final = (LISTING, SEARCH, f"{MARKER}.")
"""How names begin that a copy leaves out: they may be written at any time."""


def backup(
    root: str, target: str, reading: Callable[[], AbstractContextManager[None]], progress: Callable[[int, int], None]
) -> None:
    """Copy every file to a new directory, flushed, under another name until all are there."""
    if os.path.lexists(target):
        raise AlreadyExistsError(f"{target}: exists already; a backup never overwrites")
    if os.path.commonpath((root, target)) == root:
        raise InvalidInputError(f"{target}: is inside the store itself; choose a place outside of {root}")
    fresh = f"{target}.{os.urandom(8).hex()}.partial"  # not in the way of the next, if this one is killed
    copy = Copy(root, fresh, reading)
    with on_failure(lambda: shutil.rmtree(fresh, ignore_errors=True)):
        for done, total in copy.catch_up():
            copy.flush()
            progress(done, total)
        list(copy.catch_up())  # what came during the first pass, which took long
        with reading():
            list(copy.catch_up())
        copy.flush()
        copy.give_name(target)


class SeenFile(NamedTuple):
    """A file while no writer was at it. `settled`: the next change changes its signature."""

    signature: Signature
    settled: bool
    length: int
    first: bytes
    """The first line of a journal."""


class Copy:
    """A copy in the making. `reading` keeps writers out."""

    def __init__(self, root: str, fresh: str, reading: Callable[[], AbstractContextManager[None]]) -> None:
        self._root = root
        self._reading = reading
        self._disk = Disk(fresh, flush=False)
        self._copied: dict[str, SeenFile] = {}
        self._unflushed: set[str] = set()

    def catch_up(self) -> Iterator[tuple[int, int]]:
        """Copy what changed since it was copied; returns how many files are done, and how many there are.

        Without the lock, what is copied may be newer than it was at the moment that is remembered: the next pass sees it.
        """
        with translated(self._disk.root):
            self._disk.make_directory(self._disk.root)
        with self._reading():
            found = {path: self._look(path, about) for path, about in files_below(self._root) if _is_needed(path)}
        with translated(self._disk.root):
            for path in self._copied.keys() - found.keys():
                self._forget(path)
        for done, (path, known) in enumerate(found.items(), 1):
            if known is not self._copied.get(path):
                with translated(self._disk.root):
                    self._copy(path, known)
            yield done, len(found)

    def _look(self, path: str, about: os.stat_result) -> SeenFile:
        """How a file is now; the same object if it is as it was when it was copied."""
        copied = self._copied.get(path)
        signature = signature_of_stat(about)
        if copied is not None and copied.settled and copied.signature == signature:
            return copied
        first = b""
        if os.path.basename(path) == JOURNAL:
            with opened(os.path.join(self._root, path)) as handle, os.fdopen(handle, "rb", closefd=False) as source:
                first = source.readline()
        return SeenFile(signature, time.time_ns() - about.st_mtime_ns > SETTLED_NS, about.st_size, first)

    def _copy(self, path: str, known: SeenFile) -> None:
        start = 0
        copied = self._copied.get(path)
        if copied is not None and known.first == copied.first != b"" and copied.length <= known.length:
            start = copied.length
        try:
            with opened(os.path.join(self._root, path)) as handle:
                self._write(path, handle, start, known.length)
        except FileNotFoundError:
            self._forget(path)
        else:
            self._copied[path] = known

    def _write(self, path: str, source: int, start: int, end: int) -> None:
        place = os.path.join(self._disk.root, path)
        self._disk.make_directory(os.path.dirname(place))
        self._unflushed.add(path)
        with opened(place, write=True, make=True) as handle:
            os.ftruncate(handle, start)
            for part in copied(source, end, start):
                write_at(handle, start, part)
                start += len(part)

    def _forget(self, path: str) -> None:
        self._disk.remove(os.path.join(self._disk.root, path))
        self._copied.pop(path, None)
        self._unflushed.discard(path)

    def flush(self) -> None:
        """Make the contents of what was copied durable."""
        disk = Disk(self._disk.root, flush=True)
        with translated(disk.root):
            while self._unflushed:
                with opened(os.path.join(disk.root, self._unflushed.pop()), write=True) as handle:
                    disk.flush(handle)

    def give_name(self, target: str) -> None:
        """Make the names durable, without directories of what is gone meanwhile, and the copy known by its own."""
        disk = Disk(self._disk.root, flush=True)
        with translated(target):
            for directory, _, _ in os.walk(disk.root, topdown=False):
                if directory != disk.root:
                    with suppress(OSError):  # something is in it
                        os.rmdir(directory)
                        continue
                disk.flush_names(directory)
            os.rename(disk.root, target)
            disk.flush_names(os.path.dirname(target))


def _is_needed(path: str) -> bool:
    name = os.path.basename(path)
    return (
        path not in (LOCK, BATCH) and not path.startswith(TRASH) and not name.startswith(_DERIVED) and not name.endswith(".new")
    )
