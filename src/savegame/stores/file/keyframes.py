"""Keyframes of a thread as files beside its journal, one each. Derived: any of them may be taken away at any time.

The name contains the life of the thread and the frame, so that a leftover of a deleted thread is never taken for one of its
successor. The first line of a file is a checksum, the stored body follows. Touches frames, disk.
"""

from __future__ import annotations

import os
import re
from typing import Final

from savegame.encoding.frames import checksum, thread_salt
from savegame.errors import CorruptionError
from savegame.stores.file.disk import Disk, names_in, read_file
from savegame.stores.file.journal import Journal
from savegame.stores.sums import damaged

_NAME: Final = re.compile(r"keyframe\.([0-9a-f]{8})\.([0-9]+)")


def keyframes_of(journal: Journal) -> dict[int, str]:
    """The path of every keyframe of a frame that is there."""
    found = {}
    for name in names_in(journal.directory):
        match = _NAME.fullmatch(name)
        if match and match[1] == journal.life and int(match[2]) in journal.entries:
            found[int(match[2])] = os.path.join(journal.directory, name)
    return found


def read_keyframe(journal: Journal, seq: int, path: str) -> bytes:
    """The body of a keyframe. Raises CorruptionError."""
    total, _, body = (read_file(path) or b"").partition(b"\n")
    if total != b"%08x" % _sum(journal, seq, body):
        raise damaged(journal.key, journal.entries[seq].id, f"keyframe of frame {seq}", seq)
    return body


def put_keyframe(disk: Disk, journal: Journal, seq: int, body: bytes | None) -> None:
    """Write a keyframe, or take it away."""
    path = os.path.join(journal.directory, f"keyframe.{journal.life}.{seq}")
    if body is None:
        disk.remove(path)
    else:
        disk.put(path, b"%08x\n%s" % (_sum(journal, seq, body), body), lasting_name=False)


def is_sound(journal: Journal, seq: int, path: str) -> bool:
    """Whether a keyframe matches its sum."""
    try:
        read_keyframe(journal, seq, path)
    except CorruptionError:
        return False
    return True


def clear_strangers(disk: Disk, journal: Journal) -> None:
    """Take away keyframes of frames or lives that are gone."""
    ours = set(keyframes_of(journal).values())
    for name in names_in(journal.directory):
        path = os.path.join(journal.directory, name)
        if name.startswith("keyframe.") and path not in ours:
            disk.remove(path)


def _sum(journal: Journal, seq: int, body: bytes) -> int:
    return checksum(body, thread_salt(*journal.key), seq)
