"""Reading the lines of an exported file, each checked as far as possible by itself. Pure except for the file.

Each line becomes one of the types below, with its bytes in stored form; a line whose checksum, shape, ids, types or large
value are wrong raises CorruptionError naming the line. `docs/format/export.md` has every kind of line. Nothing is imported or
constructed because a line names it. Touches exporting (the checksum), text, frames, delta, codec, model.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple, get_type_hints

import blake3

from savegame.encoding import delta as deltas
from savegame.encoding.delta import DELETE, EDIT
from savegame.encoding.frames import (
    COMPRESSED,
    DIGEST_BYTES,
    MOVED_TO,
    Meta,
    dump_note,
    load_meta,
    load_note,
    pack_meta,
    unwrap,
)
from savegame.encoding.json_form import from_text
from savegame.encoding.raw import check_nesting
from savegame.errors import (
    CorruptionError,
    SavegameError,
    StoreNotFound,
    UnsupportedError,
    of_system,
)
from savegame.model import Kind, Status, checked_id
from savegame.timeline.verify import Progress
from savegame.transfer.exporting import EXPORT_FORMAT, Line, sum_of

FIRST_LINE: Final = 16 * 1024
"""Maximum length of the first line, so that a foreign file is not read into memory to identify it."""

TOLD_EVERY: Final = 1024 * 1024
"""Bytes between two calls of `progress`."""

_SUM_BYTES: Final = len(',"sum":""}\n') + 32
_META: Final = get_type_hints(Meta) | {"blobs": list, "cost": int | float | None}
_WRONG: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, SavegameError)
"""What reading a malformed line may raise."""


class Header(NamedTuple):
    """Begins a thread."""

    id: str
    agent: str | None


class Large(NamedTuple):
    """A large value of the thread, which later checkpoints may refer to."""

    name: bytes
    body: bytes


class CheckpointLine(NamedTuple):
    """A checkpoint; its delta with a plain envelope."""

    id: str
    base: str | None
    meta: bytes
    note: bytes | None
    delta: bytes


class Beside(NamedTuple):
    """A record."""

    name: str
    kind: str
    value: bytes


class Head(NamedTuple):
    """Ends a thread."""

    id: str | None


class End(NamedTuple):
    """Ends the file."""

    counts: tuple[int, int, int]


Part = Large | CheckpointLine | Beside | Head
Item = Header | Part | End


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file of an export. Raises StoreNotFound, UnsupportedError for a live database, UnavailableError."""
    real = os.path.realpath(path)
    if not os.path.isfile(real):
        raise StoreNotFound(f"{path}: the file does not exist; pass the path of an export")
    stem = real.removesuffix("-wal").removesuffix("-shm")
    if any(os.path.exists(stem + suffix) for suffix in ("-wal", "-shm")):  # opening it here could drop SQLite's locks
        raise UnsupportedError(f"{path} is a live SQLite database, not an export; use copy_to, or export it first")
    try:
        with open(real, "rb") as file:
            yield file
    except OSError as error:
        raise of_system(error, f"{path} cannot be read", "check the disk and the permissions") from error


class LineReader:
    """Reads lines in order and verifies their checksums; errors name the line. `turn` counts readings, for `progress`."""

    def __init__(self, file: BinaryIO, path: str, progress: Progress, turn: int) -> None:
        self._file, self._path, self._progress = file, path, progress
        self.size = os.fstat(file.fileno()).st_size
        self._turn = turn
        self._before = ""
        self._number = self._told = 0
        self.start = 0
        """Where the line begins that was read last."""
        self._counts: Counter[type[Item]] = Counter()
        file.seek(0)
        self._check_first(file.readline(FIRST_LINE))

    def threads(self) -> Iterator[tuple[Header, Iterator[Part]]]:
        """Every thread: its header, and its items, the last of which is its head."""
        for item in self._items():
            if isinstance(item, Header):
                items = self._rest()
                yield item, items
                for _ in items:
                    pass  # of a thread that is passed over
            elif isinstance(item, End):
                self._check_end(item)
                return
            else:
                raise self.damaged("it belongs to no thread")
        raise self.damaged("the file was cut off here: its last line is missing")

    def _rest(self) -> Iterator[Part]:
        for item in self._items():
            if isinstance(item, (Header, End)):
                raise self.damaged("the thread before it has no end")
            yield item
            if isinstance(item, Head):
                return

    def _items(self) -> Iterator[Item]:
        self.start = self._file.tell()
        while text := self._file.readline():
            with self._locating():
                item = _item(self._line(text))
            self._counts[type(item)] += 1
            yield item
            self.start = self._file.tell()
            self._tell()

    def _line(self, text: bytes) -> Line:
        """The content of the next line. Raises ValueError."""
        self._number += 1
        content, end = text[:-_SUM_BYTES], text[-_SUM_BYTES:]
        total = sum_of(content, self._before)
        if end != b',"sum":"%s"}\n' % total.encode():
            raise ValueError("its checksum does not match: it was changed, or lines before it are missing, repeated or swapped")
        self._before = total
        return _parse(content + b"}")

    def large(self, offset: int) -> Large:
        """Read a large value again, at the offset of its line. Does not disturb the order of reading."""
        here = self._file.tell()
        self._file.seek(offset)
        item = _item(_parse(self._file.readline()))
        self._file.seek(here)
        assert isinstance(item, Large)
        return item

    def _check_first(self, text: bytes) -> None:
        try:
            version = _parse(text)["savegame-export"]
        except _WRONG as error:
            raise UnsupportedError(f"{self._path} is not an export of savegame: line 1 does not say so") from error
        if type(version) is int and version > EXPORT_FORMAT:
            raise UnsupportedError(
                f"{self._path} has format {version}, this savegame reads up to {EXPORT_FORMAT}; install a newer savegame"
            )
        with self._locating():
            self._line(text)
        if type(version) is not int or version != EXPORT_FORMAT:
            raise self.damaged(f"format {version!r} does not exist")

    def _check_end(self, end: End) -> None:
        if self._file.read(1):
            raise self.damaged("more follows after the end")
        if end.counts != tuple(self._counts[kind] for kind in (Header, CheckpointLine, Beside)):
            raise self.damaged("its counts of threads, checkpoints and records do not match the file")
        self._progress((self._turn + 1) * self.size, 2 * self.size)

    @contextlib.contextmanager
    def _locating(self) -> Iterator[None]:
        try:
            yield
        except _WRONG as error:
            raise self.damaged(str(error) or type(error).__name__) from error

    def damaged(self, what: str) -> CorruptionError:
        """An error that names the file and the line."""
        place = f"line {self._number}"
        return CorruptionError(f"{self._path}: {place}: {what}; copy the file again, or export again", place=place)

    def _tell(self) -> None:
        if self.start - self._told >= TOLD_EVERY:
            self._told = self.start
            self._progress(self._turn * self.size + self._told, 2 * self.size)


# -- what lines say --------------------------------------------------------------------------------


def _parse(text: bytes) -> Line:
    line = json.loads(text.decode(), parse_constant=_refuse)
    if type(line) is not dict:
        raise ValueError("it is not an object")
    return line


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _item(line: Line) -> Item:
    """The item of a line, checked as far as possible by itself."""
    match line:
        case {"thread": thread_id, "agent": agent}:
            return Header(checked_id(thread_id, "a thread's id"), None if agent is None else checked_id(agent, "an agent's id"))
        case {"large": name, "content": content}:
            return _large(bytes.fromhex(name), from_text("content", content))
        case {"checkpoint": checkpoint_id, "base": base, "meta": meta, "note": note, "delta": delta}:
            return CheckpointLine(
                checked_id(checkpoint_id, "a checkpoint's id"),
                None if base is None else checked_id(base, "a base's id"),
                _meta(from_text("meta", meta)),
                None if note is None else _note(from_text("note", note)),
                _delta(from_text("delta", delta)),
            )
        case {"record": str(name), "kind": str(kind), "value": value}:
            return Beside(_text(name), _text(kind), _record(from_text("value", value)))
        case {"head": head}:
            return Head(None if head is None else checked_id(head, "the head's id"))
        case {"end": True, "threads": int(threads), "checkpoints": int(checkpoints), "records": int(found)}:
            return End((threads, checkpoints, found))
    raise ValueError("its kind is unknown")


def _text(text: str) -> str:
    text.encode()  # raises for lone surrogates
    return text


def _large(name: bytes, body: bytes) -> Large:
    flags, content = _plain(body)
    if flags or blake3.blake3(content).digest() != name:
        raise ValueError("the large value does not match its name")
    return Large(name, body)


def _delta(body: bytes) -> bytes:
    for op in deltas.parse(_plain(body)[1]):
        if op.code not in (DELETE, EDIT):
            check_nesting(op.value)
    return body


def _record(body: bytes) -> bytes:
    """The body of a record, which may have any content but a decompression bomb."""
    if len(body) > 2 and body[0] <= COMPRESSED and not body[1]:
        check_nesting(unwrap(body, MOVED_TO)[1])
    return body


def _plain(body: bytes) -> tuple[int, bytes]:
    """Flags and payload of a body. A compressed one is refused unread: an export has none, and it could be a bomb."""
    if not body or body[0] & COMPRESSED:
        raise ValueError("it holds compressed bytes")
    return unwrap(body)


def _meta(data: bytes) -> bytes:
    """Stored metadata with fields of the right types, so that listings can show it."""
    meta = load_meta(data)
    for name, kind in _META.items():
        if not isinstance(getattr(meta, name), kind):
            raise TypeError(f"the {name} of the checkpoint cannot be {getattr(meta, name)!r:.40}")
    for encoded in (meta.metadata, meta.about):
        check_nesting(encoded or b"\xc0")
    Kind.of(meta.kind)
    Status(meta.status, meta.reason)
    meta.created_at.isoformat()
    if len(meta.digest) != DIGEST_BYTES or meta.digest + pack_meta(meta) != data:
        raise ValueError("the metadata is not as savegame writes it")
    return data


def _note(data: bytes) -> bytes:
    label, tags = load_note(data)
    if not all(isinstance(text, str) for text in (label or "", *tags)) or dump_note(label, tags) != data:
        raise TypeError("the label or a tag is not text")
    return data
