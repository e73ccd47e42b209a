"""The Store contract: what keeps frames and records durably. It understands bytes and order, never what they mean.

A store holds threads. A thread is a row (head, lease, counts), its frames in the order of their sequence numbers,
derived keyframes, records and blobs. All writing goes through one verb, `commit`, which takes a list of changes, to
one or several threads, and makes all of them durable or none. What a change may do is decided in `stores/rules.py`, which a
store uses by bringing a `Transaction`.

Every store may be shared between Python threads. Every write that returned survives what the store's durability promises.
A write that raised left nothing behind, unless the error has `unknown` set. Damaged bytes raise CorruptionError naming
the place; they are never returned. Touches index, model and errors.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, ClassVar, Final, NamedTuple

from savegame.errors import CheckpointNotFound, CorruptionError, UnsupportedError
from savegame.index import Index
from savegame.model import Chain, Frame, Lease, Page, Problem, Record, ThreadKey, ThreadRow

ANY = "\0any"
"""Expect any head or none (no id contains NUL); `expect=None` expects none."""

SOUGHT: Final = ("due", "inbox")
"""Kinds of records by which threads are looked for again and again: `Store.threads_with` should be quick for them."""


class Capability(StrEnum):
    """What only some stores can do: look it up in `store.capabilities`."""

    DURABLE = "durable"
    CONNECTION = "connection"
    BACKUP = "backup"
    SEARCH = "search"


class Append(NamedTuple):
    """Add a frame and make it the head. The store gives it the next sequence number.

    `expect` is the id of the head (None: there must be none, ANY: any). `base` is a frame of the thread, with the id
    `base_id` if that is given, or 0. `keep_newest` raises the thread's floor to the oldest of that many newest frames.
    `fresh` says that the id comes from `Store.new_id`, so that it cannot be taken. `renew_us` prolongs the lease of `epoch`.

    Checked in this order: fence (Fenced, Busy), head (ConflictError), base (CheckpointNotFound), id (AlreadyExistsError).
    """

    key: ThreadKey
    id: str
    base: int
    meta: bytes
    delta: bytes
    note: bytes | None = None
    expect: str | None = ANY
    epoch: int | None = None
    agent: str | None = None
    keep_newest: int | None = None
    blobs: tuple[tuple[bytes, bytes], ...] = ()
    fresh: bool = False
    renew_us: int | None = None
    base_id: str | None = None


class MoveHead(NamedTuple):
    """Make another frame the head; 0 for none: the thread leaves the listings, its frames stay.

    Checked in this order: fence, head, frame (CheckpointNotFound; for 0, ThreadNotFound if the thread has no frames).
    """

    key: ThreadKey
    seq: int
    expect: str | None = ANY
    epoch: int | None = None
    agent: str | None = None


class PutNote(NamedTuple):
    """Replace the note of a frame (CheckpointNotFound), if it still is `expect` (ConflictError)."""

    key: ThreadKey
    seq: int
    note: bytes | None
    expect: bytes | None


class PutRecord(NamedTuple):
    """Set a record, or remove it with `value=None`. Needs no lease, but an `epoch` that is given must be the newest.

    With `absent`, AlreadyExistsError if it exists, whatever the value. `renew_us` prolongs the lease of `epoch`.
    """

    key: ThreadKey
    kind: str
    name: str
    value: bytes | None
    epoch: int | None = None
    absent: bool = False
    renew_us: int | None = None


class PutKeyframe(NamedTuple):
    """Set the keyframe of a frame, or drop it with `body=None`. Does nothing if the frame does not exist."""

    key: ThreadKey
    seq: int
    body: bytes | None


class Rewrite(NamedTuple):
    """Remove frames and their keyframes, and give others a new base and delta; those keep their number, id and meta.

    `head` names another head; without it, the head must survive. No head (0) is right only where no frame is left, or there
    was none before. `keep_blobs` lists all blobs that the thread needs afterwards, besides `new_blobs`; the others are
    removed. With `aside`, what is removed is kept in a place of its own: repair never deletes. Without it, ConflictError for a
    frame of `drop` that does not exist, or has a note and is not in `noted`: that changed since the rewrite was planned.

    `newest` is the largest number of a frame that the caller saw, `seen` how many frames. Frames appended since do not stand
    in the way, so that a busy thread can be pruned: they stay, with the blobs that `refers(delta)` names for each, or go
    with `drop_newer`. ConflictError if one of them builds on a frame that goes, if frames were removed meanwhile, or if the
    head moved to a frame that goes.

    `along(metas)` returns changes to records, and expectations, of the same thread for the same commit; `metas` is the
    metadata of the newer frames that go. It is called before anything is removed, and may be called more than once.

    Checked in this order: fence, head, thread (ThreadNotFound if it has no frames), newer frames, changes that go along, the
    head afterwards (InvalidInputError; ConflictError with `newest`), dropped frames, rebased frames (CheckpointNotFound).
    """

    key: ThreadKey
    drop: tuple[int, ...]
    rebase: tuple[tuple[int, int, bytes], ...] = ()
    new_blobs: tuple[tuple[bytes, bytes], ...] = ()
    keep_blobs: frozenset[bytes] | None = None
    expect: str | None = ANY
    epoch: int | None = None
    head: int | None = None
    aside: bool = False
    noted: frozenset[int] = frozenset()
    newest: int | None = None
    seen: int | None = None
    refers: Callable[[bytes], Iterable[bytes]] | None = None
    drop_newer: bool = False
    along: Callable[[Sequence[bytes]], Sequence[PutRecord | Expect]] | None = None


class Expect(NamedTuple):
    """Change nothing; ConflictError unless the thread is still what the caller saw.

    `frame` is the number and id of one of its frames: if it exists, the thread was not deleted meanwhile. With `kind`, the
    records of that kind must have exactly these `names`.
    """

    key: ThreadKey
    frame: tuple[int, str] | None = None
    kind: str | None = None
    names: frozenset[str] = frozenset()


class DeleteThread(NamedTuple):
    """Remove a thread and everything beside it. Checks the fence, unless the thread does not exist: a retry succeeds."""

    key: ThreadKey
    epoch: int | None = None


class Layout(NamedTuple):
    """The version of the tables when a store was opened (0: they were created), and today's."""

    found: int
    now: int


StoreChange = Append | MoveHead | PutNote | PutRecord | PutKeyframe | Rewrite | Expect | DeleteThread


class Store(ABC):
    """Keeps frames and records. About fifteen verbs; read `stores/memory.py` first."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    scheme: ClassVar[str]
    path: str = ""
    """Its place, as `repr` of a vault shows it: never with a password."""
    readable: ClassVar[bool] = False
    """Whether people read its files, so that nothing in them should be compressed."""
    compress_from: ClassVar[int] = 4096
    """Bodies below this size are saved uncompressed, which loads quicker; `compact` compresses them all."""
    width: ClassVar[int] = 1
    """How many operations can run at once: the width of the pool of an asynchronous caller."""
    layout: Layout | None = None
    """The version of the layout that opening found and upgraded; None where layouts have no numbers."""

    # -- writing -----------------------------------------------------------------------------------

    @abstractmethod
    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        """Make every change or none, durably, in their order. Returns for each the number of the frame that it added (0: none).

        Each sees what those before it changed. A change that breaks several rules is refused by the first in this order:

        1. fence: Fenced for an `epoch` that is not the newest; Busy without one while a lease is live (see `lease`)
        2. head: ConflictError, with both heads, unless `expect` is met
        3. what it names: CheckpointNotFound for a base or frame, ThreadNotFound for a thread without frames
        4. what it adds: AlreadyExistsError for an id that is taken in the namespace, or a record that must be absent

        Raises UnavailableError if the store cannot write.
        """

    def new_id(self, key: ThreadKey) -> str:
        """A new id for the next frame of a thread: 32 hexadecimal digits. May help the store to find the frame."""
        return os.urandom(16).hex()

    @abstractmethod
    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        """Take the lease on a thread, which need not exist yet. Its epoch is larger than any before.

        Raises Busy while another lease has not expired, unless `instead_of` names its epoch (its holder is known to be
        gone). While a lease is live, every head-moving change without its epoch raises Busy; a change with an epoch that is
        not the newest raises Fenced. A lease that expired and was not taken since is still the newest.
        """

    @abstractmethod
    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        """Prolong a lease; a `ttl_us` of 0 releases it. Raises Fenced if it was released or is not the newest any more."""

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def thread(self, key: ThreadKey) -> ThreadRow | None:
        """The row of a thread; None if nothing was ever written to it. A lease that was released is not shown."""

    @abstractmethod
    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        """Threads that have a head, by id."""

    @abstractmethod
    def heads(self, namespace: str, *, agent: str | None = None) -> list[tuple[str, str | None]]:
        """The id and the head's id of every thread, those without a head too, by id: a snapshot.

        Quick, and therefore unchecked: read the rows of threads before relying on it.
        """

    @abstractmethod
    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - one word per idea
        """The thread and number of the frame with this id, in the whole namespace."""

    @abstractmethod
    def frames(
        self,
        key: ThreadKey,
        *,
        low: int = 0,
        high: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        noted: bool = False,
        deltas: bool = False,
    ) -> list[Frame]:
        """Frames with `low <= seq <= high`, in order; without deltas unless asked for; `noted`: only those with a note."""

    def unbroken(self, key: ThreadKey, seq: int) -> int:
        """A number from which on the frames up to `seq` are one line, each built on the one before it; the smaller the better.

        Quick and unchecked: callers check the frames that they read. Raises CheckpointNotFound.
        """
        bases = {frame.seq: frame.base for frame in self.frames(key, high=seq)}
        if seq not in bases:
            raise CheckpointNotFound(f"thread {key.id!r} has no checkpoint number {seq}")
        return line_start(bases.get, seq)

    def head_frames(self, rows: Sequence[ThreadRow]) -> list[Frame | None]:
        """The frame of the head in each of these rows, without its delta; None for one that was removed meanwhile."""
        return [next(iter(self.frames(row.key, low=row.head, high=row.head)), None) for row in rows]

    def fingerprints(self, keys: Sequence[ThreadKey]) -> list[bytes]:
        """For each thread a few bytes that change with its frames, head, agent, notes and records.

        Comparable with earlier ones of the same store only. Empty for a thread that does not exist or is damaged.
        """
        return [self._fingerprint(key) for key in keys]

    def _fingerprint(self, key: ThreadKey) -> bytes:
        try:
            row = self.thread(key)
            notes = [(frame.seq, frame.note) for frame in self.frames(key, noted=True)]
            records = [self.records(key, kind, limit=2**31).items for kind in self.kinds(key)]
        except CorruptionError:
            return b""
        return b"" if row is None else row.fingerprint(notes, records)

    @abstractmethod
    def chain(self, key: ThreadKey, seq: int, *, after: int = 0, meta: bytes | None = None) -> Chain:
        """What rebuilds the state at `seq`, read in one snapshot; begins after `after` if that lies on the way.

        With `meta`, a frame with other metadata counts as missing: its thread was re-created since the caller read it. Skips
        damaged keyframes. Raises CheckpointNotFound; CorruptionError for a damaged or missing frame on the way.
        """

    @abstractmethod
    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        """Records of one kind, by name."""

    @abstractmethod
    def kinds(self, key: ThreadKey) -> list[str]:
        """The kinds of records that a thread has, in order."""

    def threads_with(self, namespace: str, kind: str) -> list[str]:
        """The ids of the threads that have records of a kind, by id: a snapshot.

        Quick, and therefore unchecked. For a kind of SOUGHT the cost should be that of what is found, not of all threads.
        """
        ids = [thread_id for thread_id, _ in self.heads(namespace)]
        return [thread_id for thread_id in ids if kind in self.kinds(ThreadKey(namespace, thread_id))]

    @abstractmethod
    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        """The bytes of a blob of a thread."""

    def await_change(self, key: ThreadKey, seconds: float) -> None:
        """Wait until something may have been written to a thread, or time is up. A hint only."""
        time.sleep(seconds)

    # -- looking after -----------------------------------------------------------------------------

    @abstractmethod
    def clock(self) -> int:
        """The time in microseconds since 1970, by which leases expire and checkpoints are dated."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The size in bytes of `frames`, `keyframes`, `notes`, `records` and `blobs`, and of all files (`total`)."""

    @abstractmethod
    def check(self, namespace: str, thread_id: str | None = None) -> Iterator[Problem]:
        """Read every byte and report what is damaged, row by row; with `thread_id`, only what belongs to that thread."""

    @abstractmethod
    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        """Store every delta as `recode(delta)`, drop keyframes, return free space to the disk."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections; other verbs then raise ClosedError. A second call does nothing."""

    def purge(self) -> bool:
        """After a delete: remove the bytes from every file. False if a reader still holds them."""
        return True

    def mend(self, namespace: str) -> list[str]:
        """Set damaged rows beside the frames aside, as they are, and rebuild rows of threads. Returns what was done."""
        return []

    # -- what only some can do ---------------------------------------------------------------------

    def backup(self, path: str, progress: Callable[[int, int], None]) -> None:
        """Copy the whole store to a new file, consistently, while others write."""
        raise UnsupportedError(f"a {self.scheme} store has no backup; copy it to another store (savegame copy, or copy_to)")

    def index(self) -> Index:
        """The index of words beside this store, always the same one. It is created when something is put into it."""
        raise UnsupportedError(f"a {self.scheme} store has no search; copy it to one that has (savegame copy)")

    def borrowed(self) -> bool:
        """Whether the calling thread is inside `connection()`, so that its writes belong to that transaction."""
        return False

    def connection(self) -> AbstractContextManager[Any]:
        """A transaction on the store's own database, for tables of the user's; saves of the same thread belong to it.

        Inside another one it is a part of it: an exception undoes that part alone. Raises TransactionFailed, on leaving, if
        the block broke its transaction, with `unknown` if it ended it. Settings of the connection end with the block.
        """
        raise UnsupportedError(f"a {self.scheme} store has no database; use SQLite or PostgreSQL for connection()")


def line_start(base_of: Callable[[int], int | None], seq: int) -> int:
    """Where the frames begin that lead to `seq` without a gap, by their bases."""
    while base_of(seq) == seq - 1 > 0:
        seq -= 1
    return seq
