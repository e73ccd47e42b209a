"""Which thread has the checkpoint with an id: the id itself says it, or a small index beside the threads.

An id that savegame makes for a thread contains the first half of the hash in the name of its directory. Any other id is
entered in the index before its frame is written, so that the index never lacks one; it only gives hints, and what it names
must be looked at. It is derived: `compact` and `mend` rebuild it. Touches frames, rows, disk.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from typing import Final

from savegame.encoding.frames import pack_id
from savegame.stores.file.disk import Disk, hash_in, hashed, opened, read_file, write_at
from savegame.stores.rows import place_in, placed_id

INDEX: Final = "ids"
_LINE: Final = 32 + 1 + 32 + 1 + 8 + 1


def new_id(directory_name: str) -> str:
    """An id that says in which directory its thread is."""
    return placed_id(int(directory_name[:16], 16))


def prefix_in(checkpoint_id: str) -> str:
    """How the name of a thread's directory begins, if the id says it."""
    return f"{place_in(pack_id(checkpoint_id)):016x}"


def names_directory(checkpoint_id: str, directory_name: str) -> bool:
    """Whether an id leads to a thread's directory without the index."""
    return directory_name.startswith(prefix_in(checkpoint_id))


class IdIndex:
    """The index of one namespace: sixteen files of lines `hash of the id, hash of the thread's id, checksum`."""

    def __init__(self, disk: Disk, space: str) -> None:
        self._disk = disk
        self._space = space
        self._directory = os.path.join(space, INDEX)

    def find(self, checkpoint_id: str) -> list[str]:
        """How the names of directories begin in which the checkpoint may be."""
        name = hashed(checkpoint_id)
        data = read_file(os.path.join(self._directory, name[0])) or b""
        found = []
        at = data.find(name.encode())
        while at >= 0:
            if at % _LINE == 0 and _is_sound(line := data[at : at + _LINE]):
                found.append(line[33:65].decode())
            at = data.find(name.encode(), at + 1)
        return found

    def add(self, entries: Iterable[tuple[str, str]]) -> None:
        """Enter (id, directory name), flushed, where the id itself does not name it."""
        lines: dict[str, list[bytes]] = {}
        for checkpoint_id, directory_name in entries:
            if not names_directory(checkpoint_id, directory_name):
                name = hashed(checkpoint_id)
                lines.setdefault(name[0], []).append(_line(name, directory_name))
        if lines and not os.path.isdir(self._directory):
            self._disk.make_directory(self._directory)
        for shard, added in lines.items():
            self._append(os.path.join(self._directory, shard), b"".join(added))

    def _append(self, path: str, data: bytes) -> None:
        new = not os.path.exists(path)
        with opened(path, write=True, make=True) as handle:
            size = os.fstat(handle).st_size
            write_at(handle, size - size % _LINE, data)  # over what a killed writer left of a line
            self._disk.flush(handle)
        if new:
            self._disk.flush_names(self._directory)

    def rebuild(self, entries: Iterable[tuple[str, str]]) -> None:
        """Enter all that there is, instead of whatever was there."""
        lines: dict[str, list[bytes]] = {f"{number:x}": [] for number in range(16)}
        for checkpoint_id, directory_name in entries:
            if not names_directory(checkpoint_id, directory_name):
                name = hashed(checkpoint_id)
                lines[name[0]].append(_line(name, directory_name))
        for shard, found in lines.items():
            path = os.path.join(self._directory, shard)
            if found or os.path.exists(path):
                self._disk.make_directory(self._directory)
                self._disk.put(path, b"".join(found))


def _line(name: str, directory_name: str) -> bytes:
    text = f"{name} {hash_in(directory_name)} ".encode()
    return b"%s%08x\n" % (text, zlib.crc32(text))


def _is_sound(line: bytes) -> bool:
    return len(line) == _LINE and line[66:74] == b"%08x" % zlib.crc32(line[:66])
