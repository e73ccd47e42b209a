"""The lines of a journal: JSON with a checksum over the text, the thread and the place in the file.

What a line says is an `Op`, whose first key is its kind: thread, save, head, note, record, large or lease. The lines of one
commit are written at once, and all but the last say `more`. `docs/format/journal.md` has every key.
Touches text, frames, model, disk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from savegame.encoding.frames import checksum, thread_salt
from savegame.encoding.json_form import to_text
from savegame.model import Frame, ThreadKey
from savegame.stores.file.disk import hash_in, hashed

LINE_FORMAT: Final = 1
"""Of the lines; that of the directory counts by itself."""

Op = dict[str, Any]
"""What a line says: the first key is its kind."""

_to_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SUM: Final = re.compile(rb',"sum":"([0-9a-f]{8})"\}\n')
_SUM_BYTES: Final = 19
_END: Final = re.compile(rb',"sum":"[0-9a-f]{8}"\}.', re.DOTALL)
_LONGEST_FIRST: Final = 8192


@dataclass(slots=True, eq=False)
class Place:
    """Where a line is. Until it is written, or if its newline is damaged, `op` is what it says."""

    offset: int = 0
    length: int = 0
    op: Op | None = None


def dump_line(op: Op, key: ThreadKey, offset: int) -> bytes:
    """A line for its place."""
    text = _to_json(op)[:-1].encode()
    return b'%s,"sum":"%08x"}\n' % (text, checksum(text, thread_salt(*key), offset))


def dump_commit(places: list[Place], key: ThreadKey, offset: int) -> bytes:
    """The lines of a commit, from a place on; each `Place` learns where its line will be."""
    parts = []
    for place in places:
        more = {} if place is places[-1] else {"more": True}
        line = dump_line((place.op or {}) | more, key, offset)
        place.offset, place.length = offset, len(line)
        offset += len(line)
        parts.append(line)
    return b"".join(parts)


def dump_journal(ops: Iterable[Op | bytes], key: ThreadKey) -> Iterator[bytes]:
    """The lines of a whole journal, each a commit of its own; bytes are lines that stay as they are."""
    offset = 0
    for op in ops:
        line = op if isinstance(op, bytes) else dump_line({name: op[name] for name in op if name != "more"}, key, offset)
        offset += len(line)
        yield line


def parse_line(line: bytes, key: ThreadKey, offset: int) -> Op | None:
    """What a line says; None if it is damaged."""
    found = _SUM.fullmatch(line[-_SUM_BYTES:])
    text = line[:-_SUM_BYTES]
    if found is None or checksum(text, thread_salt(*key), offset) != int(found[1], 16):
        return None
    try:
        op: Op = json.loads(text + b"}")
    except (ValueError, RecursionError):  # made up, with a sum that fits
        return None
    return op


def split_line(line: bytes, key: ThreadKey, offset: int) -> Iterator[tuple[bytes, Op | None]]:
    """The lines that stand in one, and what each says: where only a newline is damaged, two have become one.

    What is damaged otherwise comes last, and says None.
    """
    while line:
        ends = [found.end() for found in _END.finditer(line)]
        tried = ((end, parse_line(line[: end - 1] + b"\n", key, offset)) for end in ends)
        end, op = next((one for one in tried if one[1] is not None), (len(line), None))
        yield line[:end], op
        line, offset = line[end:], offset + end


def first_line(key: ThreadKey, life: str) -> Op:
    """How a journal begins. `life` is another one after a delete, `copy` whenever it is rewritten."""
    return {"thread": key.id, "namespace": key.namespace, "format": LINE_FORMAT, "life": life, "copy": os.urandom(8).hex()}


def read_first(line: bytes, directory: str) -> Op | None:
    """What the first line of a journal says, if the directory's name bears it out; else None.

    Only this line names the thread, so a damaged one is tried with each bit flipped: the hashes in
    the directory's name leave no doubt about the right one. Where its newline is damaged, it ends with its sum.
    """
    end = _END.search(line)
    line = line[: end.end() - 1] if end else line
    tried = (_borne_out(one, directory) for one in chain([line], _one_bit_off(line)))
    return next(filter(None, tried), None)


def _borne_out(line: bytes, directory: str) -> Op | None:
    try:
        op: Op = json.loads(line)
        names = [hashed(op["namespace"]), hashed(op["thread"])]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return op if list(map(hash_in, directory.split(os.sep)[-2:])) == names else None


def _one_bit_off(line: bytes) -> Iterator[bytes]:
    for at in range(min(len(line), _LONGEST_FIRST)):
        for bit in range(8):
            yield line[:at] + bytes((line[at] ^ 1 << bit,)) + line[at + 1 :]


def save_op(frame: Frame, floor: int) -> Op:
    """A frame. `floor` is the thread's after it."""
    op: Op = {"save": frame.seq, "id": frame.id, "base": frame.base}
    if frame.note is not None:
        op["note"] = to_text("note", frame.note)
    if floor:
        op["floor"] = floor
    return op | {"meta": to_text("meta", frame.meta), "delta": to_text("delta", frame.delta or b"")}
