"""Threads in one SQLite file, through apsw: WAL, one writer, many readers, several processes. (Over 500 lines: the contract.)

One connection writes, in transactions that callers share (`group.py`); a small pool of connections reads
(`connections.py`). The primitives of the rules are in `changes.py`, reading in `reading.py`; the file itself is made and
checked in `sqlite_file.py`, damage is found and set aside in `upkeep.py`, the statements are in sql/sqlite/queries.sql.
Touches store, rules, frames, rows and those.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final, TypeAlias, TypeVar

import apsw

from savegame.encoding.frames import pack_id, unpack_id
from savegame.errors import CorruptionError, InvalidInputError, OutOfSpace, SavegameError, UnavailableError
from savegame.model import Chain, Frame, Page, Problem, Record, ThreadKey, ThreadRow
from savegame.store import SOUGHT, Append, Capability, Rewrite, StoreChange
from savegame.stores import sqlite_file as file
from savegame.stores.fts import FtsIndex
from savegame.stores.refusals import no_checkpoint, read_only, unknown_outcome, write_inside
from savegame.stores.rows import (
    EMPTY_ROW,
    FrameRange,
    Row,
    check_order,
    placed_id,
    read_frame,
    read_thread,
    record_page,
    sound_blob,
    thread_page,
)
from savegame.stores.rules import REFUSALS, RuledStore
from savegame.stores.sqlite import upkeep
from savegame.stores.sqlite.changes import Committed, SQLiteTransaction, find
from savegame.stores.sqlite.connections import Connections
from savegame.stores.sqlite.group import Group, Ticket
from savegame.stores.sqlite.reading import read_chain, read_frames
from savegame.stores.sqlite_file import all_rows, one_row
from savegame.waiting.undoing import on_failure

_REFUSALS: Final[tuple[type[SavegameError], ...]] = (*REFUSALS, CorruptionError)
"""What goes wrong with one caller's changes alone; the others of its group are written."""

T = TypeVar("T")
Waiting: TypeAlias = Ticket[Sequence[StoreChange], list[int]]

SYNCHRONOUS: Final = {"power": 2, "process": 1}

PURGE_MS: Final = 2_000
"""How long removed bytes wait for a reader to finish, while writers have to wait: longer than our own readers ever take."""


def open_url(url: str, *, durability: str = "power", read_only: bool = False) -> SQLiteStore:
    """A store from `sqlite:PATH` or a bare path."""
    return SQLiteStore(url.removeprefix("sqlite:"), durability=durability, read_only=read_only)


class SQLiteStore(RuledStore):
    """Keeps frames in an SQLite file. May be shared between threads; safe for several processes; survives `os.fork`."""

    scheme = "sqlite"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        (Capability.DURABLE, Capability.CONNECTION, Capability.BACKUP, Capability.SEARCH)
    )
    width = 4

    def __init__(self, path: str, *, durability: str = "power", read_only: bool = False) -> None:
        if durability not in SYNCHRONOUS:
            raise InvalidInputError(f"durability {durability!r} is unknown; one of: {', '.join(SYNCHRONOUS)}")
        self.path = file.checked_path(path)
        self.read_only = read_only
        self.layout = file.prepare(self.path, read_only=read_only)
        self._index = FtsIndex(self.path + "-search", read_only=read_only)
        self._connections = Connections(self.path, read_only=read_only, synchronous=SYNCHRONOUS[durability])
        self._connections.after_fork = self._begin_group  # in the child, the threads that waited in the group do not exist
        self._begin_group()
        self._committed = Committed(self.clock)
        self._connections.forget = self._committed.forget
        with self._reading():
            pass

    def _begin_group(self) -> None:
        self._group: Group[Sequence[StoreChange], list[int]] = Group(self._flush)

    # -- writing -----------------------------------------------------------------------------------

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        if self._connections.closed or self.read_only:
            self._check_open(writing=True)
        own, here = self._connections, threading.get_ident()
        if own.borrowed_by == here:
            with file.translated(self.path), self._part() as transaction:
                return [transaction.make(change) for change in changes]
        if here in own.inside:
            raise write_inside(self.path)
        alone = not own.inside  # then there is no other to share a flush with
        try:
            own.inside.add(here)
            return self._write(changes) if alone else self._group.run(changes)
        finally:
            own.inside.discard(here)

    def new_id(self, key: ThreadKey) -> str:
        row = self._committed.rows.get(key)
        return super().new_id(key) if row is None else placed_id(row.no << 32 | row.last + 1)

    def _write(self, changes: Sequence[StoreChange]) -> list[int]:
        """Write one caller's changes in a transaction of their own."""
        own = self._connections
        with own.lock:
            try:
                seqs = self._at_once(changes)
                if seqs:
                    return seqs
                db = own.begin()
                transaction = SQLiteTransaction(db, self._committed)
                try:
                    seqs = [transaction.make(change) for change in changes]
                except _REFUSALS as error:
                    refusal = error
                    own.roll_back()
                    own.look(db, written=False)
                else:
                    own.commit(db)
                    transaction.committed()
                    return seqs
            except BaseException as error:
                self._committed.forget()
                own.roll_back()
                ours = self._failure(changes, error) if isinstance(error, Exception) else error
                if ours is error:
                    raise
                raise ours from (error.__cause__ or error)
        raise refusal

    def _flush(self, group: list[Waiting]) -> None:
        """Write a group in one transaction; a change that does not fit undoes only its own caller's."""
        with self._connections.lock:
            try:
                single = [pending.job[0] for pending in group if len(pending.job) == 1]
                seqs = self._at_once(single) if len(single) == len(group) else []
                if seqs:
                    for pending, seq in zip(group, seqs, strict=True):
                        pending.outcome = [seq]
                    return
                db = self._connections.begin()
                transaction = SQLiteTransaction(db, self._committed)
                outcomes = [self._try(db, transaction, pending) for pending in group]
                if all(outcome is None for outcome in outcomes):
                    self._connections.roll_back()
                    self._connections.look(db, written=False)
                    return
                self._connections.commit(db)
                transaction.committed()
                for pending, outcome in zip(group, outcomes, strict=True):
                    pending.outcome = outcome
            except apsw.TooBigError:  # raised by no COMMIT: nothing is written yet, and it is the fault of one
                self._committed.forget()
                self._connections.roll_back()
                self._one_by_one(group)
            except BaseException as error:
                self._failed(group, error)
                if not isinstance(error, Exception):
                    raise

    def _one_by_one(self, group: list[Waiting]) -> None:
        """Write each of a group in a transaction of its own."""
        for pending in group:
            pending.error = None
            try:
                pending.outcome = self._write(pending.job)
            except Exception as error:  # noqa: BLE001 - its caller raises it
                pending.error = error

    def _at_once(self, changes: Sequence[StoreChange]) -> list[int]:
        """Write plain appends, or a new record, with one statement, a transaction by itself; else write and return nothing."""
        own, db = self._connections, self._connections.idle()
        try:
            if len(changes) == 1:
                seqs = self._committed.make_next(db, changes[0])
            else:
                seqs = self._committed.append_together(db, changes)
        except (apsw.FullError, apsw.IOError, apsw.NoMemError) as error:  # perhaps after it was in the file
            raise own.in_doubt(error) from error
        if seqs:
            own.look(db)
        return seqs

    def _try(self, db: file.Connection, transaction: SQLiteTransaction, pending: Waiting) -> list[int] | None:
        """Make the changes of one of a group; returns the outcome that it has once they are committed."""
        job = pending.job
        # These are refused before they have written anything, if at all.
        simple = len(job) == 1 and type(job[0]) is not Rewrite and not (isinstance(job[0], Append) and job[0].blobs)
        try:
            if simple:
                return [transaction.make(job[0])]
            db.run("SAVEPOINT one")
            try:
                seqs = [transaction.make(change) for change in job]
            except _REFUSALS:
                db.run("ROLLBACK TO one")
                db.run("RELEASE one")
                transaction.undone()
                raise
            db.run("RELEASE one")
            return seqs
        except _REFUSALS as error:
            pending.error = error
            return None

    def _failed(self, group: list[Waiting], error: BaseException) -> None:
        """Nothing of the group was written, unless what flushes it failed: then each is looked for by its id."""
        self._committed.forget()
        self._connections.roll_back()
        for pending in group:
            if pending.outcome is None and pending.error is None:
                ours = self._failure(pending.job, error)
                if ours is error:  # each raises one of its own
                    ours = copy.copy(ours)
                    ours.__cause__ = error
                pending.error = ours

    def _failure(self, job: Sequence[StoreChange], error: BaseException) -> Exception:
        """Our error for a write that failed; if what flushes it did, it says how to find out whether it is there after all."""
        if isinstance(error, apsw.Error):
            return file.translate(error, self.path) or error
        if not isinstance(error, SavegameError):  # Ctrl-C, memory that ran out, a mistake in a change
            error = UnavailableError(
                f"{self.path}: the write was interrupted ({error!r}); look for it, then retry", unknown=True
            )
        appended = next((change for change in job if isinstance(change, Append)), None)
        if appended is None or not getattr(error, "unknown", False):
            return error
        return unknown_outcome(error, job)

    # -- reading -----------------------------------------------------------------------------------

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        with self._reading() as db:
            row = self._committed.row(db, key)
            return None if row is None else row.public(key)

    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        with self._reading() as db:
            space = self._committed.space(db, namespace)
            if agent is None:
                rows = all_rows(db, "threads", space, after or "", limit + 1)
            else:
                rows = all_rows(db, "threads_of_agent", space, agent, after or "", limit + 1)
        found = [read_thread(key := ThreadKey(namespace, columns[-1]), columns).public(key) for columns in rows]
        check_order("threads", [after or "", *(row.key.id for row in found)])
        return thread_page(found, limit)

    def heads(self, namespace: str, *, agent: str | None = None) -> list[tuple[str, str | None]]:
        with self._reading() as db:
            space = self._committed.space(db, namespace)
            rows = all_rows(db, "heads", space) if agent is None else all_rows(db, "heads_of_agent", space, agent)
        sound = [(id, head_id) for id, head_id in rows if isinstance(id, str)]  # noqa: A001 - one word per idea
        return [(id, None if head_id is None else unpack_id(head_id)) for id, head_id in sound]  # noqa: A001 - one word per idea

    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - the contract's name
        with self._reading() as db:
            return find(db, self._committed.space(db, namespace), namespace, pack_id(id))

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
        span = FrameRange(low, high, limit, newest_first, noted, deltas)
        with self._reading(snapshot=deltas) as db:
            return self._by_number(db, key, lambda row: read_frames(db, key, row, span))

    def _by_number(self, db: file.Connection, key: ThreadKey, read: Callable[[Row], list[T]]) -> list[T]:
        """What is stored under the number of a thread's row. Numbers are never used again, so a remembered one may be tried."""
        known = self._committed.rows.get(key)
        found = [] if known is None else read(known)
        if found:
            return found
        row = self._committed.row(db, key)
        return [] if row is None or (known is not None and known.no == row.no) else read(row)

    def head_frames(self, rows: Sequence[ThreadRow]) -> list[Frame | None]:
        with self._reading(snapshot=True) as db:
            found = [
                one_row(db, "head_frame", row.head, self._committed.space(db, row.key.namespace), row.key.id) for row in rows
            ]
        return [None if columns is None else read_frame(row.key, columns) for row, columns in zip(rows, found, strict=True)]

    def fingerprints(self, keys: Sequence[ThreadKey]) -> list[bytes]:
        with self._reading(snapshot=True) as db:
            return [self._fingerprint_in(db, key) for key in keys]

    def _fingerprint_in(self, db: file.Connection, key: ThreadKey) -> bytes:
        try:
            row = self._committed.row(db, key)
        except CorruptionError:
            return b""
        if row is None:
            return b""
        notes, records = all_rows(db, "note_sums", row.low(), row.high()), all_rows(db, "record_sums", row.no)
        return row.public(key).fingerprint(notes, records)

    def chain(self, key: ThreadKey, seq: int, *, after: int = 0, meta: bytes | None = None) -> Chain:
        with self._reading(snapshot=True) as db:
            found = read_chain(db, key, self._committed.row(db, key) or EMPTY_ROW, seq, after, meta)
        if found is None:
            raise no_checkpoint(key, seq)
        return found

    def unbroken(self, key: ThreadKey, seq: int) -> int:
        with self._reading() as db:
            row = self._committed.row(db, key)
            place = None if row is None else one_row(db, "frame_place", row.key(seq))
        if place is None:
            raise no_checkpoint(key, seq)
        return min(int(place[1]), seq)

    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        with self._reading() as db:
            found = self._by_number(db, key, lambda row: all_rows(db, "records", row.no, kind, after, limit + 1))
        page = record_page(key, kind, found, limit)
        check_order("records", [after, *(record.name for record in page.items)], key.id)
        return page

    def kinds(self, key: ThreadKey) -> list[str]:
        with self._reading() as db:
            row = self._committed.row(db, key)
            return [] if row is None else [kind for (kind,) in all_rows(db, "kinds", row.no)]

    def threads_with(self, namespace: str, kind: str) -> list[str]:
        name = "threads_sought" if kind in SOUGHT else "threads_with"
        with self._reading() as db:
            return [thread_id for (thread_id,) in all_rows(db, name, kind, self._committed.space(db, namespace))]

    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        with self._reading() as db:
            row = self._committed.row(db, key)
            found = None if row is None else one_row(db, "blob", row.no, digest)
        return sound_blob(key, digest, found)

    # -- looking after -----------------------------------------------------------------------------

    def clock(self) -> int:
        if self._connections.closed:
            self._check_open()
        return time.time_ns() // 1000

    def sizes(self) -> dict[str, int]:
        with self._reading() as db:
            return upkeep.sizes(db, self.path)

    def check(self, namespace: str, thread_id: str | None = None) -> Iterator[Problem]:
        with self._reading(snapshot=True) as db:
            if thread_id is None:
                yield from upkeep.check(db, namespace)
            else:
                yield from upkeep.check_thread(db, ThreadKey(namespace, thread_id))

    def mend(self, namespace: str) -> list[str]:
        with self.transaction() as transaction:
            db = transaction.db
            self._committed.forget()
            done = upkeep.mend_places(db, namespace)
            return [*done, *upkeep.mend(db, namespace, self._committed.space(db, namespace), self.clock())]

    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        self._refuse_borrowed("compact")
        try:
            self._recode(recode, progress)
        except UnavailableError as error:
            if not isinstance(error.__cause__, apsw.FullError):
                raise
            # Whether the last page was written does not matter: it says the same either way.
            raise OutOfSpace(f"{self.path}: the disk is full: every checkpoint is as it was; make room and retry") from error
        with self._connections.lock, file.translated(self.path):  # so that what was deleted is in no file
            self._connections.writer().execute("VACUUM")
            self.purge()

    def _recode(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        total = self.sizes()["count"]
        done = key = 0
        while True:
            with self.transaction() as transaction:
                count, key = upkeep.recode_page(transaction.db, key, recode)
            if not count:
                break
            done += count
            progress(done, total)

    def purge(self) -> bool:
        if self.borrowed():  # nothing is removed before the block is left
            return False
        try:
            with self._connections.lock, file.translated(self.path):
                db = self._connections.writer()
                db.set_busy_timeout(PURGE_MS)
                try:
                    blocked, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
                finally:
                    db.set_busy_timeout(file.BUSY_MS)
                return not blocked
        except UnavailableError:  # what was removed is removed; its bytes leave the files when the disk has room again
            return False

    def backup(self, path: str, progress: Callable[[int, int], None]) -> None:
        self._refuse_borrowed("backup")
        progress(0, 1)
        with self._reading() as db:
            upkeep.backup(db, os.path.realpath(os.fspath(path)))
        progress(1, 1)

    @contextlib.contextmanager
    def connection(self) -> Iterator[apsw.Connection]:
        """A transaction on a connection of its own; saves of this thread inside it commit with it."""
        self._check_open(writing=True)
        own = self._connections
        if self.borrowed() and own.lent is not None:
            with self._undone_on_error(own.lent):
                yield own.lent
            return
        own.refuse_inside()
        with own.lending() as db:
            try:
                yield db
            finally:
                self._committed.forget()

    def index(self) -> FtsIndex:
        self._check_open()
        return self._index

    def borrowed(self) -> bool:
        return self._connections.borrowed_by == threading.get_ident()

    def _refuse_borrowed(self, verb: str) -> None:
        if self.borrowed():
            raise InvalidInputError(f"{self.path}: {verb} cannot be part of a transaction; call it outside connection()")

    @contextlib.contextmanager
    def _part(self) -> Iterator[SQLiteTransaction]:
        """Changes of ours as a part of the transaction that this thread holds."""
        with self._connections.ours() as db, self._undone_on_error(db):
            yield SQLiteTransaction(db, self._committed)

    @contextlib.contextmanager
    def _undone_on_error(self, db: file.Connection) -> Iterator[None]:
        """A part of the transaction that this thread holds, undone by itself if it fails.

        Nothing is remembered of it: the user may take back what was done, all of it or up to a savepoint.
        """
        self._committed.forget()
        try:
            db.run("SAVEPOINT part")
            yield
            db.run("RELEASE part")
        except BaseException:
            # Without such a savepoint SQLite has rolled back everything; so it has if the user closed the connection.
            with contextlib.suppress(apsw.SQLError, apsw.ConnectionClosedError):
                db.run("ROLLBACK TO part")
                db.run("RELEASE part")
            raise
        finally:
            self._committed.forget()

    def close(self) -> None:
        self._connections.close()
        self._index.close()

    def _check_open(self, *, writing: bool = False) -> None:
        self._connections.check_open()
        if writing and self.read_only:
            raise read_only(self.path)

    def _reading(self, *, snapshot: bool = False) -> AbstractContextManager[file.Connection]:
        if self.borrowed():
            self._committed.forget()
        return self._connections.reading(snapshot=snapshot)

    @contextlib.contextmanager
    def _own_transaction(self) -> Iterator[SQLiteTransaction]:
        """A transaction of its own; rows that were written in it are remembered once it is committed."""
        self._connections.refuse_inside()
        with self._connections.lock:
            with on_failure(self._committed.forget), self._connections.writing() as db:
                transaction = SQLiteTransaction(db, self._committed)
                yield transaction
            transaction.committed()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[SQLiteTransaction]:
        """A transaction of its own; inside `connection()`, part of that one. SQLite's errors become ours."""
        self._check_open(writing=True)
        with file.translated(self.path), self._part() if self.borrowed() else self._own_transaction() as transaction:
            yield transaction
