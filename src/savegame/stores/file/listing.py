"""What listings need of every thread, kept in one file per namespace, so that not every journal is read to list them.

Derived: a row counts only as long as its journal has the same signature; else, or if the file is missing or damaged, the
journal is read. It is never flushed, and may be taken away at any time. Touches model, disk, journal.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from savegame.model import Lease, ThreadKey, ThreadRow
from savegame.stores.file.disk import Disk, read_file
from savegame.stores.file.journal import Signature

logger = logging.getLogger("savegame")

LISTING: Final = "listing.json"


class Summary(NamedTuple):
    """What listings need of a thread. `sound`: nothing is damaged that may be about the thread as a whole."""

    signature: Signature | None
    row: ThreadRow
    sizes: dict[str, int]
    sound: bool = True
    sought: frozenset[str] | None = None
    """The kinds of SOUGHT of which it has records; None if an earlier version kept the listing."""


def read_listing(space: str) -> dict[str, Summary]:
    """What is kept of the threads of a namespace, by their directories; nothing if it cannot be read."""
    data = read_file(os.path.join(space, LISTING)) or b""
    total, _, text = data.partition(b"\n")
    if total != _sum(text):
        return {}
    return {os.path.join(space, name): _summary(*parts) for name, *parts in json.loads(text)}


def write_listing(space: str, summaries: Iterable[tuple[str, Summary]]) -> None:
    """Keep what is known; failing to do so costs time at the next listing, nothing else."""
    rows = [
        [os.path.basename(directory), _stamp(found), *found.row.key, *found.row[1:7], found.row.lease, found.sizes]
        for directory, found in summaries
        if found.sound
    ]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()
    fresh = os.path.join(space, f"{LISTING}.{os.urandom(8).hex()}")  # others may write theirs at the same time
    try:
        Disk(space, flush=False).put(os.path.join(space, LISTING), _sum(text) + b"\n" + text, by=fresh)
    except OSError as error:
        logger.warning("%s: the listing could not be written: %s", space, error)


def _summary(signature: list[Any], namespace: str, name: str, *rest: Any) -> Summary:
    *columns, lease, sizes = rest
    row = ThreadRow._make([ThreadKey(namespace, name), *columns, Lease(*lease) if lease else None])
    first, second, third, *more = signature
    return Summary((first, second, third), row, sizes, sought=frozenset(more[0]) if more else None)


def _stamp(found: Summary) -> list[Any]:
    """The signature, followed by what earlier versions pass over."""
    return [*(found.signature or ()), *([] if found.sought is None else [sorted(found.sought)])]


def _sum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
