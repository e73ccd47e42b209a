"""One thread as its journal says: an index of places in memory; bodies stay in the file until they are read.

A commit counts whole or not at all; what stands after the last whole one is a torn tail. A line that does not match its sum
is damage: if it still shows which frame it was, only that frame is lost; else nothing of the thread is returned that may be
wrong. Touches text, model, sums, disk, lines.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from savegame.encoding.json_form import from_text
from savegame.errors import CorruptionError, UnsupportedError
from savegame.model import Frame, Lease, ThreadKey, ThreadRow
from savegame.stores.file.disk import JOURNAL, READ, opened, read_at
from savegame.stores.file.lines import Op, Place, dump_line, parse_line, read_first, split_line
from savegame.stores.sums import damaged

Signature = tuple[int, int, int]
"""Which file it is, how long, and when it was changed: the same as long as nothing was written."""

_SAVED: Final = re.compile(rb'\{"save":(\d{1,10}),"id":("(?:[^"\\]|\\.)*"),"base":(\d{1,10}),')


class JournalFrame(NamedTuple):
    """A frame as the index knows it. `broken`: its line is damaged."""

    id: str
    base: int
    note: bytes | None
    place: Place
    broken: bool = False


@dataclass(slots=True)
class Journal:
    """What is known of a thread after reading its lines up to `end`."""

    key: ThreadKey
    directory: str
    life: str
    row: ThreadRow
    entries: dict[int, JournalFrame] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    records: dict[tuple[str, str], Place] = field(default_factory=dict)
    blobs: dict[bytes, Place] = field(default_factory=dict)
    damage: list[Place] = field(default_factory=list)
    worn: list[Place] = field(default_factory=list)
    """Lines of which only the newline is damaged: nothing is lost, but nothing can be added either."""
    sizes: Counter[str] = field(default_factory=Counter)
    first: bytes = b""
    """The first line, which is another one whenever the journal is rewritten."""
    end: int = 0
    signature: Signature | None = None

    @property
    def weight(self) -> int:
        """How many things it remembers."""
        return 8 + len(self.entries) + len(self.records) + len(self.blobs)

    def torn(self) -> int:
        """Bytes after the last whole commit."""
        return self.signature[1] - self.end if self.signature else 0

    def check(self) -> Journal:
        """Raise CorruptionError if lines are damaged that may be about the thread as a whole."""
        if self.damage:
            raise damaged(self.key, None, f"line at byte {self.damage[0].offset} of {JOURNAL}")
        return self

    def apply(self, op: Op, place: Place) -> None:
        """Take in what a line says."""
        _APPLY[next(iter(op))](self, op, place)

    def count(self, op: Op, length: int) -> None:
        """Add a line to the sizes."""
        noted = len(json.dumps(op["note"])) if "save" in op and "note" in op else 0
        self.sizes["notes"] += noted
        self.sizes[_SIZES.get(next(iter(op)), "rows")] += length - noted

    # -- bodies ------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[JournalReader]:
        """Reads lines by their places."""
        reader = JournalReader(self)
        try:
            yield reader
        finally:
            reader.close()

    def frame(self, reader: JournalReader, seq: int, *, delta: bool) -> Frame:
        """One frame, with or without its delta. Raises CorruptionError."""
        entry = self.entries[seq]
        meta, *body = self.bodies(reader, seq, *(("meta", "delta") if delta else ("meta",)))
        return Frame(seq, entry.id, entry.base, meta, entry.note, body[0] if delta else None)

    def bodies(self, reader: JournalReader, seq: int, *kinds: str) -> list[bytes]:
        """Stored bytes of one frame, each of a kind. Raises CorruptionError."""
        entry = self.entries[seq]
        try:
            if entry.broken:
                raise CorruptionError("its line is damaged")
            op = reader.op(entry.place)
            return [from_text(kind, op[kind]) for kind in kinds]
        except (CorruptionError, KeyError) as error:
            raise damaged(self.key, entry.id, f"line of frame {seq}", seq) from error


class JournalReader:
    """Reads lines of a journal. The file is opened when the first one is asked for."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._handle: int | None = None

    def op(self, place: Place) -> Op:
        """What a line says. Raises CorruptionError."""
        if place.op is not None:
            return place.op
        op = parse_line(self.raw(place), self._journal.key, place.offset)
        if op is None:
            raise damaged(self._journal.key, None, f"line at byte {place.offset} of {JOURNAL}")
        return op

    def raw(self, place: Place) -> bytes:
        """A line as it is, sound or not."""
        if place.op is not None:
            return dump_line(place.op, self._journal.key, place.offset)
        return read_at(self.handle(), place.offset, place.length)

    def handle(self) -> int:
        """The file."""
        if self._handle is None:
            self._handle = os.open(os.path.join(self._journal.directory, JOURNAL), READ)
        return self._handle

    def close(self) -> None:
        """Let go of the file."""
        if self._handle is not None:
            os.close(self._handle)


def new_journal(key: ThreadKey, directory: str) -> Journal:
    """A thread of which nothing is written yet."""
    row = ThreadRow(key, agent=None, head=0, head_id=None, last=0, floor=0, frames=0)
    return Journal(key, directory, os.urandom(4).hex(), row)


# -- reading a journal -----------------------------------------------------------------------------


def load(directory: str, known: Journal | None, key: ThreadKey | None) -> Journal | None:
    """A thread as its journal says now; only what is new is read. None if there is no journal.

    `key` is the thread that is asked for; without it, the journal says whose it is. Raises CorruptionError if it cannot.
    """
    path = os.path.join(directory, JOURNAL)
    try:
        if known is not None and known.signature == signature_of_stat(os.lstat(path)):
            return known
        refuse_links(directory)
        with opened(path) as handle:
            signature = signature_of(handle)
            with os.fdopen(os.dup(handle), "rb") as lines:
                first = lines.readline()
                if known is None or known.first != first or signature[1] < known.end:
                    known = _begin(first, directory, key)
                lines.seek(known.end)
                _read_on(known, lines)
            known.signature = signature
            return known
    except FileNotFoundError:
        return None


def signature_of(handle: int) -> Signature:
    """The signature of an open file."""
    return signature_of_stat(os.fstat(handle))


def signature_at(path: str) -> Signature | None:
    """The signature of a file; None if there is none."""
    try:
        return signature_of_stat(os.lstat(path))
    except FileNotFoundError:
        return None


def signature_of_stat(found: os.stat_result) -> Signature:
    """The signature of a file that the system says this of."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def refuse_links(directory: str) -> None:
    """Raise UnsupportedError if a thread's directory, or the one above it, is a symbolic link."""
    for path in (os.path.dirname(directory), directory):
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise UnsupportedError(f"{path}: is a symbolic link, which savegame did not create; remove it")


def _begin(line: bytes, directory: str, key: ThreadKey | None) -> Journal:
    op = read_first(line, directory)
    if op is None and key is None:
        raise CorruptionError(
            f"{directory}: its first line is damaged, so that its thread is unknown; run repair, which sets it aside",
            place=f"first line of {JOURNAL}",
        )
    key = key or ThreadKey(op["namespace"], op["thread"])  # type: ignore[index]
    journal = new_journal(key, directory)
    part, content = next(split_line(line, key, 0), (line, None))
    if content is None or op is None:
        journal.damage.append(Place(0, len(part)))
    elif not part.endswith(b"\n"):
        journal.worn.append(Place(0, len(part)))
    journal.life = str((op or {}).get("life", ""))
    journal.first, journal.end = line, len(part)
    return journal


def _read_on(journal: Journal, lines: Any) -> None:
    """Take in every whole commit after `end`."""
    offset = journal.end
    waiting: list[tuple[Op, Place]] = []
    for found in lines:
        whole = parse_line(found, journal.key, offset)
        for line, op in split_line(found, journal.key, offset) if whole is None else ((found, whole),):
            ended = line.endswith(b"\n")
            if not ended and op is None:
                return
            place = Place(offset, len(line), None if ended else op)
            offset += len(line)
            journal.worn += [] if ended else [Place(place.offset, place.length)]
            if op is None:
                _take(journal, waiting)
                _take_damaged(journal, line, place)
            else:
                waiting.append((op, place))
                if op.get("more"):
                    continue
                _take(journal, waiting)
            journal.end = offset


def _take(journal: Journal, commit: list[tuple[Op, Place]]) -> None:
    for op, place in commit:
        try:
            journal.apply(op, place)
            journal.count(op, place.length)
        except (KeyError, TypeError, ValueError, AttributeError, CorruptionError):  # a sound line of an unknown shape
            journal.damage.append(place)
    commit.clear()


def _take_damaged(journal: Journal, line: bytes, place: Place) -> None:
    """A damaged line: the frame that it held is known to be lost, if the line still shows which one that was."""
    found = _SAVED.match(line)
    seq = int(found[1]) if found else 0
    if found is None or seq <= journal.row.last or int(found[3]) not in (0, *journal.entries):
        journal.damage.append(place)
        return
    try:
        name = str(json.loads(found[2]))
    except ValueError:
        name = found[2].decode(errors="replace")
    _add(journal, seq, JournalFrame(name, int(found[3]), None, place, broken=True))


# -- kinds of lines --------------------------------------------------------------------------------


def _save(journal: Journal, op: Op, place: Place) -> None:
    note = op.get("note")
    entry = JournalFrame(op["id"], op["base"], None if note is None else from_text("note", note), place)
    _add(journal, op["save"], entry)
    journal.row = journal.row._replace(floor=max(journal.row.floor, op.get("floor", 0)))


def _add(journal: Journal, seq: int, entry: JournalFrame) -> None:
    former = journal.entries.get(seq)
    if former is not None and former.broken:  # the damage is in its number: which frame it was is unknown
        journal.damage.append(former.place)
        journal.ids.pop(former.id, None)
    journal.entries[seq] = entry
    journal.ids[entry.id] = seq
    journal.row = journal.row._replace(head=seq, head_id=entry.id, last=max(journal.row.last, seq), frames=len(journal.entries))


def _head(journal: Journal, op: Op, place: Place) -> None:
    seq = op["head"]
    journal.row = journal.row._replace(
        head=seq,
        head_id=journal.entries[seq].id if seq else None,
        last=op.get("last", journal.row.last),
        floor=op.get("floor", journal.row.floor),
        agent=op.get("agent", journal.row.agent),
    )


def _note(journal: Journal, op: Op, place: Place) -> None:
    note = op["text"]
    entry = journal.entries[op["note"]]
    journal.entries[op["note"]] = entry._replace(note=None if note is None else from_text("note", note))


def _record(journal: Journal, op: Op, place: Place) -> None:
    name = (op["kind"], op["record"])
    if op["text"] is None:
        journal.records.pop(name, None)
    else:
        journal.records[name] = place


def _blob(journal: Journal, op: Op, place: Place) -> None:
    journal.blobs[bytes.fromhex(op["large"])] = place


def _lease(journal: Journal, op: Op, place: Place) -> None:
    journal.row = journal.row._replace(lease=Lease(op["lease"], op["owner"], op["expires"]))


_APPLY: Final[dict[str, Callable[[Journal, Op, Place], None]]] = {
    "save": _save,
    "head": _head,
    "note": _note,
    "record": _record,
    "large": _blob,
    "lease": _lease,
}
_SIZES: Final = {"save": "frames", "note": "notes", "record": "records", "large": "blobs"}
