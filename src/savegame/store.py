"""The Store contract: what keeps frames and records durably. It understands bytes and order, never what they mean.

A store holds threads. A thread is a row (head, lease, counts), its frames in the order of their sequence numbers,
derived keyframes, records and blobs. All writing goes through one verb, `commit`, which takes a list of changes, to
one or several threads, and makes all of them durable or none.

Every store may be shared between threads. Every write that returned survives what the store's durability promises.
A write that raised left nothing behind, unless the error has `unknown` set. Damaged bytes raise CorruptionError naming
the place; they are never returned. Touches index, model and errors.
"""

from __future__ import annotations

import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from savegame.errors import (
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    TransactionFailed,
    UnavailableError,
    UnsupportedError,
)
from savegame.index import Index
from savegame.model import Chain, Frame, Lease, Page, Problem, Record, ThreadKey, ThreadRow

ANY = "\0any"
"""Expect whatever head there is (no id contains NUL); `expect=None` means that there must be none."""


class Capability(StrEnum):
    """What only some stores can do; ask `store.capabilities`, never guess."""

    DURABLE = "durable"
    CONNECTION = "connection"
    BACKUP = "backup"
    SEARCH = "search"


class Append(NamedTuple):
    """Add a frame and make it the head. The store gives it the next sequence number.

    `expect` is the id of the head that must be there (None: the thread must be empty, ANY: whichever). `base` must be a
    frame of the thread, with the id `base_id` if that is given, or 0. `keep_newest` sets the thread's floor to the oldest of
    that many newest frames. `fresh` says that the id comes from `Store.new_id`, so that nobody can have it yet. `renew_us`
    prolongs the lease that `epoch` is of.
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
    """Make another frame the head; 0 for none: the thread leaves the listings, its frames stay. Otherwise as Append."""

    key: ThreadKey
    seq: int
    expect: str | None = ANY
    epoch: int | None = None
    agent: str | None = None


class PutNote(NamedTuple):
    """Replace the note of a frame, if it still is `expect`; else ConflictError."""

    key: ThreadKey
    seq: int
    note: bytes | None
    expect: bytes | None


class PutRecord(NamedTuple):
    """Set a record, or remove it with `value=None`. With `absent`, AlreadyExistsError if there is one.

    `renew_us` prolongs the lease that `epoch` is of.
    """

    key: ThreadKey
    kind: str
    name: str
    value: bytes | None
    epoch: int | None = None
    absent: bool = False
    renew_us: int | None = None


class PutKeyframe(NamedTuple):
    """Set the keyframe of a frame, or drop it with `body=None`. Quietly does nothing if the frame is gone."""

    key: ThreadKey
    seq: int
    body: bytes | None


class Rewrite(NamedTuple):
    """Remove frames (their keyframes too) and give others a new base and delta, keeping their place, id and meta.

    The head must survive, or `head` names another; 0 is right where no frame is left or there was no head. `keep_blobs`
    lists every blob that the thread needs afterwards (`new_blobs` included); the others are removed. With `aside`, what is
    removed is kept in a place of its own, as it is: repair never deletes. Without it, ConflictError for a frame of `drop`
    that is gone, or has a note and is not in `noted`: somebody removed it, or gave it that note, meanwhile.

    `newest` is the largest number of a frame that the caller saw, `seen` how many there were. Frames appended since do not
    stand in the way, so that a busy thread can be pruned: they stay, with the blobs that `refers(delta)` names for each, or
    go with `drop_newer`. ConflictError if one of them builds on a frame that goes, if somebody removed frames meanwhile, or
    if the head has moved to where it would go.

    `along(metas)` returns changes to records and expectations that belong to the same commit; `metas` is the metadata of the
    newer frames that go. It is called before anything is removed, and may be called more than once.
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

    `frame` is the number and id of one of its frames: if it is there, the thread was neither deleted nor begun again.
    With `kind`, the records of that kind must have exactly these `names`.
    """

    key: ThreadKey
    frame: tuple[int, str] | None = None
    kind: str | None = None
    names: frozenset[str] = frozenset()


class DeleteThread(NamedTuple):
    """Remove a thread and everything beside it; nothing happens if there is none."""

    key: ThreadKey
    epoch: int | None = None


class Layout(NamedTuple):
    """The version of a store's tables that was found when it was opened (0: none, they were made), and today's."""

    found: int
    now: int


StoreChange = Append | MoveHead | PutNote | PutRecord | PutKeyframe | Rewrite | Expect | DeleteThread


class Store(ABC):
    """Keeps frames and records. About fifteen verbs; `memory.py` is the one to read first."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    scheme: ClassVar[str]
    path: str = ""
    """Where it is, as `repr` of a vault shows it: never with a password."""
    readable: ClassVar[bool] = False
    """Whether people read what it keeps, so that nothing in it should be compressed."""
    compress_from: ClassVar[int] = 4096
    """Fresh bodies below this size stay as they are, which loads quicker; `compact` compresses them all."""
    width: ClassVar[int] = 1
    """How many operations can really run at once: what an asynchronous caller makes its pool as wide as."""
    layout: Layout | None = None
    """Which version of the layout opening found, and brought up to date; None where layouts have no numbers."""

    # -- writing -----------------------------------------------------------------------------------

    @abstractmethod
    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        """Make every change or none, durably. Gives, for each change, the sequence number it made (0: none).

        Raises ConflictError (with both heads), Busy or Fenced (see `lease`), AlreadyExistsError (an id that is taken in
        the namespace), NotFoundError (a base or frame that is not there), UnavailableError.
        """

    def new_id(self, key: ThreadKey) -> str:
        """An id for the next frame of a thread: 32 hexadecimal digits that nobody has. May help the store to find it."""
        return os.urandom(16).hex()

    @abstractmethod
    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        """Take the lease on a thread, which need not exist yet. Its epoch is larger than any given before.

        Raises Busy while somebody else's lease has not run out, unless `instead_of` names its epoch (its holder is
        known to be gone). While a lease is live, every head-moving change without its epoch raises Busy; a change with
        an epoch that is not the newest raises Fenced.
        """

    @abstractmethod
    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        """Prolong a lease; a `ttl_us` of 0 gives it back. Raises Fenced if it is not the newest any more."""

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def thread(self, key: ThreadKey) -> ThreadRow | None:
        """What is known of a thread; None if nothing was ever written to it."""

    @abstractmethod
    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        """Threads that have a head, by id."""

    @abstractmethod
    def heads(self, namespace: str, *, agent: str | None = None) -> list[tuple[str, str | None]]:
        """The id and the head's id of every thread, those without a head too, by id: all as they were at one moment.

        Quick, and therefore unchecked: who goes on from here reads the rows.
        """

    @abstractmethod
    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - one word per idea
        """Where the checkpoint with this id is, in the whole namespace."""

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
        """Where the unbroken line up to a frame begins: each of its frames builds on the one numbered right before it.

        Quick and unchecked: the caller reads the frames. Raises CheckpointNotFound.
        """
        bases = {frame.seq: frame.base for frame in self.frames(key, high=seq)}
        if seq not in bases:
            raise CheckpointNotFound(f"thread {key.id!r} has no frame {seq}")
        while bases[seq] == seq - 1 and seq - 1 in bases:
            seq -= 1
        return seq

    def head_frames(self, rows: Sequence[ThreadRow]) -> list[Frame | None]:
        """The frames of the heads that rows tell of, without their deltas; None for one that is gone meanwhile."""
        return [next(iter(self.frames(row.key, low=row.head, high=row.head)), None) for row in rows]

    def fingerprints(self, keys: Sequence[ThreadKey]) -> list[bytes]:
        """For each thread a few bytes, others whenever frames came, or its head, agent, a note or a record changed.

        Only comparable with what the same store gave earlier. Empty for a thread that is not there or is damaged.
        """
        return [self._fingerprint(key) for key in keys]

    def _fingerprint(self, key: ThreadKey) -> bytes:
        try:
            row = self.thread(key)
            notes = [(frame.seq, frame.note) for frame in self.frames(key, noted=True)]
            records = [self.records(key, kind, limit=2**31).items for kind in self.kinds(key)]
        except CorruptionError:
            return b""
        return b"" if row is None else fingerprint(row, notes, records)

    @abstractmethod
    def chain(self, key: ThreadKey, seq: int, *, after: int = 0) -> Chain:
        """What brings the state at `seq` back, read at one moment; begins after `after` if that lies on the way.

        A damaged keyframe is passed over. Raises CorruptionError for a damaged or missing frame on the way.
        """

    @abstractmethod
    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        """Records of one kind, by name."""

    @abstractmethod
    def kinds(self, key: ThreadKey) -> list[str]:
        """The kinds of records that a thread has, in order."""

    @abstractmethod
    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        """The bytes of a blob of a thread."""

    def await_change(self, key: ThreadKey, seconds: float) -> None:
        """Wait until something may have been written to a thread, for so long at most. A hint: look in any case."""
        time.sleep(seconds)

    # -- looking after -----------------------------------------------------------------------------

    @abstractmethod
    def clock(self) -> int:
        """Now, in microseconds since 1970: what leases and times of checkpoints go by."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """How many bytes each kind of row takes, and the files as a whole (`total`)."""

    @abstractmethod
    def check(self, namespace: str, thread_id: str | None = None) -> Iterator[Problem]:
        """Read every byte and report what is damaged, row by row; with `thread_id`, only what belongs to that thread."""

    @abstractmethod
    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        """Store every delta as `recode(delta)`, drop keyframes, give free space back."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections. A second call does nothing."""

    def purge(self) -> bool:
        """After something was deleted: make its bytes leave every file. False if a reader still holds them."""
        return True

    def mend(self, namespace: str) -> list[str]:
        """Set damaged rows beside the frames aside, as they are, and build rows of threads anew; says what was done."""
        return []

    # -- what only some can do ---------------------------------------------------------------------

    def backup(self, path: str, progress: Callable[[int, int], None]) -> None:
        """Copy the whole store to a new file, consistently, while others write."""
        raise UnsupportedError(f"a {self.scheme} store has no backup; copy it to another store (savegame copy, or copy_to)")

    def index(self) -> Index:
        """The index of words beside this store, always the same one. Nothing is made before something is put into it."""
        raise UnsupportedError(f"a {self.scheme} store has no search")

    def borrowed(self) -> bool:
        """Whether the calling thread is inside `connection()`: nobody else can write until it leaves."""
        return False

    def connection(self) -> AbstractContextManager[Any]:
        """A transaction on the store's own database, for tables of the user's; writes of the same thread belong to it.

        Inside another one it is a part of that: left by an exception, it alone is undone. Raises TransactionFailed, on
        leaving, if the block spoilt its transaction, with `unknown` if it ended it.
        What a block does to its connection ends with the block.
        """
        raise UnsupportedError(f"a {self.scheme} store has no database connection")


def head_moved(key: ThreadKey, expected: str | None, found: str | None) -> ConflictError:
    """The error for a change that expects another head than there is."""
    return ConflictError(
        f"thread {key.id!r}: the head is {found or '(none)'}, expected {expected or '(none)'}; read it again and retry",
        expected=expected,
        found=found,
    )


def check_base(change: Append, found: str | None) -> None:
    """Refuse an append that does not continue from the frame it was made for: `found` is the id at its `base`, if any."""
    if change.base and (found is None or change.base_id not in (None, found)):
        raise CheckpointNotFound(f"thread {change.key.id!r} has no frame {change.base} to continue from")


def caught_up(change: Rewrite, count: int, newer: Sequence[tuple[int, int, bytes]]) -> Rewrite:
    """A rewrite that also covers the frames appended since it was planned, given as (number, base, delta).

    `count` is how many frames there are now. Raises ConflictError.
    """
    if change.seen is not None and change.seen + len(newer) != count:
        raise ConflictError(f"thread {change.key.id!r}: another writer removed checkpoints meanwhile; try again")
    if change.drop_newer:
        seqs = [seq for seq, _, _ in newer]
        return change._replace(drop=(*change.drop, *seqs), noted=change.noted.union(seqs))
    gone, needed = frozenset(change.drop), set[bytes]()
    for seq, base, delta in newer:
        if base in gone:
            raise ConflictError(f"thread {change.key.id!r}: frame {seq}, added meanwhile, builds on frame {base}; try again")
        needed.update(() if change.refers is None else change.refers(delta))
    return change if change.keep_blobs is None else change._replace(keep_blobs=change.keep_blobs | needed)


def headless(change: Rewrite, head: int) -> ConflictError | InvalidInputError:
    """The error for a rewrite that leaves the thread without its head: moved meanwhile, or never right."""
    where = f"thread {change.key.id!r}: its head cannot be {head or '(none)'} after that"
    if change.newest is None:
        return InvalidInputError(where)
    return ConflictError(f"{where}: another writer moved or removed it meanwhile; try again")


def check_expected(change: Expect, found: str | None, names: Iterable[str]) -> None:
    """Refuse what was planned for another thread, or for other records: `found` is the id of its frame, if that is there."""
    if change.frame is not None and found != change.frame[1]:
        raise ConflictError(
            f"thread {change.key.id!r}: frame {change.frame[0]} is not {change.frame[1]} any more; try again",
            expected=change.frame[1],
            found=found,
        )
    if change.kind is not None and change.names != frozenset(names):
        raise ConflictError(f"thread {change.key.id!r}: another writer added or removed a record {change.kind!r}; try again")


def write_inside(place: str) -> UnavailableError:
    """The error for a write by whoever has interrupted a write of the same thread: it would wait for itself, or mix with it."""
    return UnavailableError(
        f"{place}: a write inside a write, by a signal handler or a finaliser; nothing was written: "
        f"let the handler set a flag, and save when the first is done"
    )


def refused_ending(verb: str) -> InvalidInputError:
    """The error for a block of `connection()` that would end its transaction. Models may see it: it names no place."""
    return InvalidInputError(
        f"{verb} inside the block of connection() was refused: leave COMMIT and ROLLBACK to the block, and use savepoints, or "
        f"another connection() inside it, to undo a part"
    )


def ended_inside() -> TransactionFailed:
    """The error for a block of `connection()` that has ended its transaction. Models may see it: it names no place."""
    return TransactionFailed(
        "the transaction was ended inside the block of connection(): a part of what was done there may have been kept; find "
        "out, and leave COMMIT and ROLLBACK to the block",
        unknown=True,
    )


def fingerprint(row: ThreadRow, notes: Iterable[object], records: Iterable[object]) -> bytes:
    """What `Store.fingerprints` gives for a thread, of its row and whatever stands for its notes and records."""
    said = repr((row.agent, row.head_id, row.last, list(notes), list(records)))
    return hashlib.blake2b(said.encode(), digest_size=16).digest()
