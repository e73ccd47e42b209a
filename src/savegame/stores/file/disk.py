"""The directory of a file store: its names, writing that lasts, and what the system's errors mean.

Every name inside the directory is made here. A directory is found by the hash of an id; what follows the hash is there for
people, and has only letters, digits and a few signs of the id. Files are 0600, directories 0700, and no symbolic link inside
is followed. A whole file comes to be under another name, is flushed, and is renamed to its place; then its directory is
flushed. Touches errors and model.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import blake3

from savegame.errors import (
    TOO_MANY_FILES,
    InvalidInputError,
    OutOfSpace,
    SavegameError,
    StoreNotFound,
    UnavailableError,
    UnsupportedError,
    lacks_descriptors,
)
from savegame.model import ThreadKey
from savegame.stores.refusals import newer_format

DIRECTORY_FORMAT: Final = 2
"""Since 2, directories may have a readable part in their names, by which earlier versions would not find them."""

MARKER: Final = "savegame.json"
LOCK: Final = "lock"
JOURNAL: Final = "journal.jsonl"
FRESH: Final = "journal.new"
ASIDE_FILE: Final = "aside.jsonl"
ASIDE_DIRECTORY: Final = "aside"
TRASH: Final = "trash"
SEARCH: Final = "search.db"

_HASH: Final = 32
_READABLE: Final = 40
"""How many characters of an id are in the name of its directory, at most."""

_NAME: Final = re.compile(rf"[0-9a-f]{{{_HASH}}}(-[A-Za-z0-9_.-]{{1,{_READABLE}}})?")
_ABOUT: Final = (
    "Save games of AI agents. Each directory two levels down is a thread: a hash of its id, and what can be read of the id. "
    "Its journal.jsonl begins with the whole id. "
    'Find one with: grep -l \'"thread":"ID"\' */*/journal.jsonl'
)
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_PIECE: Final = 1 << 20
READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


# -- names -----------------------------------------------------------------------------------------


def hashed(text: str) -> str:
    """What stands for an id on disk: 32 hexadecimal digits."""
    return blake3.blake3(text.encode()).hexdigest(length=16)


@lru_cache(maxsize=4096)
def directory_name(text: str) -> str:
    """The name of a new directory for an id: its hash, and what can be read of the id in ASCII, if anything.

    It must be the same for ever: so it depends on no table of characters, which newer versions of Python extend.
    """
    readable = re.sub(r"\.{2,}", ".", re.sub("[^A-Za-z0-9_.]+", "-", text))
    readable = readable.strip("-.")[:_READABLE].strip("-.")
    return f"{hashed(text)}-{readable}" if readable else hashed(text)


def hash_in(name: str) -> str:
    """The hash in the name of a directory, which alone says what it belongs to."""
    return name[:_HASH]


def directory_in(parent: str, text: str) -> str:
    """The directory for an id: the one that exists, else the one to make.

    Earlier versions named directories by the hash alone. Such a directory stays as it is, and no other is made beside it.
    """
    path = os.path.join(parent, directory_name(text))
    if not os.path.lexists(path):
        bare = os.path.join(parent, hashed(text))
        return bare if os.path.lexists(bare) else path
    return path


def thread_directory(root: str, key: ThreadKey) -> str:
    """Where a thread is kept, or would be."""
    path = os.path.join(root, directory_name(key.namespace), directory_name(key.id))
    return path if os.path.lexists(path) else directory_in(directory_in(root, key.namespace), key.id)


def name_aside(directory: str) -> str:
    """How the name begins under which a thread's directory is set aside."""
    return "-".join(map(hash_in, directory.split(os.sep)[-2:]))


def is_readable(directory: str) -> bool:
    """Whether the name of a thread's directory, or of the one above it, is more than a hash."""
    return any(len(name) > _HASH for name in directory.split(os.sep)[-2:])


def is_hashed(name: str) -> bool:
    """Whether a name may be that of a namespace or thread."""
    return _NAME.fullmatch(name) is not None


def names_in(directory: str) -> list[str]:
    """What is in a directory; nothing if there is none."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def hashed_in(directory: str) -> list[str]:
    """The paths of namespaces in a root, or of threads in a namespace, in order."""
    return [os.path.join(directory, name) for name in sorted(names_in(directory)) if is_hashed(name)]


def files_below(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """The path below a root of every regular file, and what the system says of it; what vanishes meanwhile is passed over."""
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode):
                    yield os.path.relpath(path, root), about


# -- errors ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn the system's errors into ours, with the place and the next step."""
    try:
        yield
    except OSError as error:
        raise translate(error, path) from error


def translate(error: OSError, path: str) -> SavegameError:
    """Our error for one of the system's."""
    where = error.filename or path
    if lacks_descriptors(error):
        return UnavailableError(f"{where}: {TOO_MANY_FILES}")
    if error.errno in _FULL:
        return OutOfSpace(f"{path}: the disk is full: nothing was saved; make room and retry")
    if error.errno == errno.EROFS:
        return UnsupportedError(f"{path}: is on a read-only file system; open it with read_only=True")
    if error.errno in (errno.EACCES, errno.EPERM):
        return UnavailableError(f"{where}: access was denied; check the permissions")
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return UnsupportedError(f"{where}: another file is in the way; move it away")
    return UnavailableError(f"{where}: reading or writing failed ({error.strerror}); check the disk")


# -- reading and writing ---------------------------------------------------------------------------


@contextlib.contextmanager
def opened(path: str, *, write: bool = False, make: bool = False) -> Iterator[int]:
    """A file's handle. Symbolic links are refused."""
    handle = os.open(path, (_WRITE if write else READ) | (os.O_CREAT if make else 0), 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def read_file(path: str) -> bytes | None:
    """The bytes of a file; None if there is none."""
    try:
        with opened(path) as handle:
            return read_at(handle, 0, os.fstat(handle).st_size)
    except FileNotFoundError:
        return None


def read_at(handle: int, offset: int, length: int) -> bytes:
    """Up to `length` bytes from a place; fewer only at the end of the file."""
    parts = []
    while length and (part := os.pread(handle, length, offset)):
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_at(handle: int, offset: int, data: bytes) -> None:
    """Write all of some bytes at a place."""
    rest = memoryview(data)
    while rest:
        done = os.pwrite(handle, rest, offset)
        offset, rest = offset + done, rest[done:]


def copied(handle: int, end: int, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file from one place to another, in pieces."""
    for at in range(start, end, _PIECE):
        yield read_at(handle, at, min(_PIECE, end - at))


def _gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer parts."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= _PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


class Disk:
    """Writes below a root. Without `flush`, what is written survives a killed process, not a power cut."""

    def __init__(self, root: str, *, flush: bool) -> None:
        self.root = root
        self._flush = flush

    def flush(self, handle: int) -> None:
        """Make the contents of a file durable."""
        if not self._flush:
            return
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync leaves the data in the drive's cache
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(handle)

    def flush_names(self, directory: str) -> None:
        """Make the names in a directory durable."""
        if self._flush:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def write_fresh(self, path: str, parts: Iterable[bytes]) -> None:
        """A flushed file under a name that does not count yet; if it fails, nothing is left there."""
        try:
            with opened(path, write=True, make=True) as handle:
                os.ftruncate(handle, 0)
                size = 0
                for part in _gathered(parts):
                    write_at(handle, size, part)
                    size += len(part)
                self.flush(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(path)
            raise

    def put(self, path: str, data: bytes, *, by: str | None = None, lasting_name: bool = True) -> None:
        """A whole file, instead of whatever had its name, or nothing; if its name may be lost, with one flush less.

        `by` is the name to write it under first: one of its own if others may write the same file.
        """
        fresh = by or f"{path}.new"
        self.write_fresh(fresh, [data])
        os.replace(fresh, path)
        if lasting_name:
            self.flush_names(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        """Give a file its place; the name is flushed."""
        os.replace(source, target)
        self.flush_names(os.path.dirname(target))

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens if there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it; each name is flushed."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            self.flush_names(os.path.dirname(path))

    def make_trash(self) -> None:
        """Make the place that `throw_away` moves things to, which takes room; moving them takes none."""
        self.make_directory(os.path.join(self.root, TRASH))

    def throw_away(self, directory: str) -> None:
        """Make a directory disappear, whole or not at all; its bytes go with the next `empty_trash`."""
        if os.path.lexists(directory):
            self.make_trash()
            os.rename(directory, os.path.join(self.root, TRASH, secrets.token_hex(16)))

    def empty_trash(self) -> None:
        """Free the space of what was thrown away, including leftovers from a killed process."""
        trash = os.path.join(self.root, TRASH)
        for name in names_in(trash):
            shutil.rmtree(os.path.join(trash, name))
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(trash)


# -- the root --------------------------------------------------------------------------------------


def checked_root(path: str, *, read_only: bool) -> str:
    """The real path of a store's root, if it is ours or can be made. Changes nothing."""
    text = os.fspath(path)
    if not text or "\0" in text or text != text.encode(errors="replace").decode():
        raise InvalidInputError(f"{text!r} is not the path of a directory; use one, for example file:saves/")
    root = os.path.realpath(text)
    with translated(root):
        try:
            found = os.stat(root)
        except FileNotFoundError:
            if read_only:
                raise StoreNotFound(f"{root}: the directory does not exist; omit read_only=True to create it") from None
            return root
        if not stat.S_ISDIR(found.st_mode):
            raise UnsupportedError(f"{root}: is not a directory; a file store needs one of its own")
        _check_marker(root)
    return root


def _check_marker(root: str) -> None:
    """Refuse a directory of another program, or of a newer savegame."""
    data = read_file(os.path.join(root, MARKER))
    if data is None:
        if any(name != LOCK and not name.startswith(f"{MARKER}.") for name in os.listdir(root)):
            raise UnsupportedError(f"{root}: is not a savegame directory, nor empty; nothing was changed, choose another")
        return
    version = _version(data)
    if version is None:
        raise UnsupportedError(f"{root}: its {MARKER} cannot be read; nothing was changed, restore it from a backup")
    if version > DIRECTORY_FORMAT:
        raise newer_format(root, version, DIRECTORY_FORMAT)


def _version(marker: bytes) -> int | None:
    try:
        found: Any = json.loads(marker)["format"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if type(found) is int else None


def make_root(disk: Disk) -> None:
    """Make the root with its marker, unless it is there."""
    disk.make_directory(disk.root)
    if not os.path.exists(os.path.join(disk.root, MARKER)):
        _put_marker(disk)


def raise_format(disk: Disk) -> None:
    """Make earlier versions refuse the store, before something is made that they would not find.

    Raises UnsupportedError if a newer version has raised it further since the store was opened.
    """
    _check_marker(disk.root)
    if _version(read_file(os.path.join(disk.root, MARKER)) or b"") != DIRECTORY_FORMAT:
        _put_marker(disk)


def _put_marker(disk: Disk) -> None:
    marker = os.path.join(disk.root, MARKER)
    text = json.dumps({"format": DIRECTORY_FORMAT, "about": _ABOUT}, indent=2)
    disk.put(marker, text.encode() + b"\n", by=f"{marker}.{secrets.token_hex(16)}")
