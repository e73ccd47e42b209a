"""Threads in one SQLite file, through apsw: WAL, one writer at a time, many readers, several processes.

One connection writes, in transactions that callers share (`_group.py`); a small pool of connections
reads (`_sqlite_connections.py`). What a change does to the rows is in `_sqlite_changes.py`. The file itself is made and
checked in `_sqlite_file.py`, damage is found and set aside in `_sqlite_upkeep.py`, the statements are in
sql/sqlite/queries.sql. Touches store, frames, _rows and those.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final

import apsw

from savegame.encoding.frames import checksum, pack_id, thread_salt, unpack_id
from savegame.errors import (
    AlreadyExistsError,
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    OutOfSpace,
    SavegameError,
    UnavailableError,
    UnsupportedError,
    of_system,
)
from savegame.model import Chain, Frame, Lease, Page, Problem, Record, ThreadKey, ThreadRow
from savegame.store import Append, Capability, Rewrite, Store, StoreChange, fingerprint, write_inside
from savegame.stores import sqlite_file as file
from savegame.stores.fts import FtsIndex
from savegame.stores.rows import (
    SEQ_MASK,
    Row,
    Stretch,
    check_order,
    placed_id,
    read_frame,
    read_thread,
    record_page,
    sound_blob,
    sound_deltas,
    thread_page,
    unknown_outcome,
    whole_chain,
)
from savegame.stores.sqlite import upkeep as sqlite_upkeep
from savegame.stores.sqlite.changes import Changes, find, space_names
from savegame.stores.sqlite.connections import Connections
from savegame.stores.sqlite.group import Group, Pending
from savegame.stores.sqlite_file import SQL, all_rows, id_of, one_row

_REFUSALS: Final = (
    ConflictError,
    AlreadyExistsError,
    CheckpointNotFound,
    InvalidInputError,
    CorruptionError,
    UnsupportedError,
)
"""What goes wrong with one caller's changes alone; the others of its group are written."""

SYNCHRONOUS: Final = {"power": 2, "process": 1}

PURGE_MS: Final = 2_000
"""How long removed bytes wait for a reader to finish, while nobody can write: longer than our own readers ever take."""


def open_url(url: str, *, durability: str = "power", read_only: bool = False) -> SQLiteStore:
    """A store from `sqlite:PATH` or a bare path."""
    return SQLiteStore(url.removeprefix("sqlite:"), durability=durability, read_only=read_only)


class SQLiteStore(Store):
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
        self._connections.after_fork = self._begin_group  # in the child, nobody is here who waited in the group
        self._begin_group()
        self._changes = Changes(self.clock)
        self._connections.forget = self._changes.forget
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
            return self._inside_borrowed(changes)
        if here in own.inside:
            raise write_inside(self.path)
        alone = not own.inside  # then there is nobody to share a flush with
        try:
            own.inside.add(here)
            return self._write(changes) if alone else self._group.run(changes)
        finally:
            own.inside.discard(here)

    def new_id(self, key: ThreadKey) -> str:
        row = self._changes.rows.get(key)
        return super().new_id(key) if row is None else placed_id(row.no << 32 | row.last + 1)

    def _write(self, changes: Sequence[StoreChange]) -> list[int]:
        """Write one caller's changes in a transaction of their own."""
        own = self._connections
        with own.lock:
            try:
                made = self._at_once(changes)
                if made:
                    return made
                db = own.begin()
                try:
                    made = [self._changes.apply(db, change) for change in changes]
                except _REFUSALS as error:
                    refusal = error
                    self._changes.undone()
                    own.roll_back()
                    own.look(db, written=False)
                else:
                    own.commit(db)
                    self._changes.committed()
                    return made
            except BaseException as error:
                self._changes.forget()
                own.roll_back()
                ours = self._failure(changes, error) if isinstance(error, Exception) else error
                if ours is error:
                    raise
                raise ours from (error.__cause__ or error)
        raise refusal

    def _flush(self, group: list[Pending[Sequence[StoreChange], list[int]]]) -> None:
        """Write a group in one transaction; a change that does not fit undoes only its own caller's."""
        with self._connections.lock:
            try:
                single = [pending.job[0] for pending in group if len(pending.job) == 1]
                made = self._at_once(single) if len(single) == len(group) else []
                if made:
                    for pending, seq in zip(group, made, strict=True):
                        pending.outcome = [seq]
                    return
                db = self._connections.begin()
                outcomes = [self._try(db, pending) for pending in group]
                if all(outcome is None for outcome in outcomes):
                    self._connections.roll_back()
                    self._changes.undone()
                    self._connections.look(db, written=False)
                    return
                self._connections.commit(db)
                self._changes.committed()
                for pending, outcome in zip(group, outcomes, strict=True):
                    pending.outcome = outcome
            except apsw.TooBigError:  # raised by no COMMIT: nothing is written yet, and it is the fault of one
                self._changes.forget()
                self._connections.roll_back()
                self._one_by_one(group)
            except BaseException as error:
                self._failed(group, error)
                if not isinstance(error, Exception):
                    raise

    def _one_by_one(self, group: list[Pending[Sequence[StoreChange], list[int]]]) -> None:
        """Write each of a group in a transaction of its own."""
        for pending in group:
            pending.error = None
            try:
                pending.outcome = self._write(pending.job)
            except Exception as error:  # noqa: BLE001 - its caller raises it
                pending.error = error

    def _at_once(self, changes: Sequence[StoreChange]) -> list[int]:
        """Write plain appends with one statement, which is a transaction by itself; else write nothing, and give nothing."""
        own, db = self._connections, self._connections.idle()
        try:
            if len(changes) == 1:
                seq = self._changes.append_next(db, changes[0])
                made = [seq] if seq else []
            else:
                made = self._changes.append_together(db, changes)
        except (apsw.FullError, apsw.IOError, apsw.NoMemError) as error:  # perhaps after it was in the file
            raise own.in_doubt(error) from error
        if made:
            own.look(db)
        return made

    def _try(self, db: file.Connection, pending: Pending[Sequence[StoreChange], list[int]]) -> list[int] | None:
        """Make the changes of one of a group, and give what it will be told once they are committed."""
        job = pending.job
        single = len(job) == 1 and type(job[0]) is not Rewrite  # then there is nothing to undo
        try:
            return [self._changes.apply(db, job[0])] if single else self._all_or_none(db, job)
        except _REFUSALS as error:
            pending.error = error
            return None

    def _all_or_none(self, db: file.Connection, job: Sequence[StoreChange]) -> list[int]:
        db.run("SAVEPOINT one")
        try:
            made = [self._changes.apply(db, change) for change in job]
        except _REFUSALS:
            db.run("ROLLBACK TO one")
            db.run("RELEASE one")
            self._changes.undone()
            raise
        db.run("RELEASE one")
        return made

    def _failed(self, group: list[Pending[Sequence[StoreChange], list[int]]], error: BaseException) -> None:
        """Nothing of the group was written, unless what flushes it failed: then each is looked for by its id."""
        self._changes.forget()
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
            error = UnavailableError(f"{self.path}: the write was interrupted ({error!r}); look, then try again", unknown=True)
        appended = next((change for change in job if isinstance(change, Append)), None)
        if appended is None or not getattr(error, "unknown", False):
            return error
        return unknown_outcome(error, job)

    # -- leases ------------------------------------------------------------------------------------

    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        with self._writing() as db:
            return self._changes.lease(db, key, owner, ttl_us, instead_of)

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        with self._writing() as db:
            return self._changes.renew(db, key, epoch, ttl_us)

    # -- reading -----------------------------------------------------------------------------------

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        with self._reading() as db:
            row = self._changes.row(db, key)
            return None if row is None else row.public(key)

    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        with self._reading() as db:
            space = self._changes.space(db, namespace)
            if agent is None:
                rows = all_rows(db, "threads", space, after or "", limit + 1)
            else:
                rows = all_rows(db, "threads_of_agent", space, agent, after or "", limit + 1)
        found = [read_thread(key := ThreadKey(namespace, columns[-1]), columns).public(key) for columns in rows]
        check_order("threads", [after or "", *(row.key.id for row in found)])
        return thread_page(found, limit)

    def heads(self, namespace: str, *, agent: str | None = None) -> list[tuple[str, str | None]]:
        with self._reading() as db:
            space = self._changes.space(db, namespace)
            rows = all_rows(db, "heads", space) if agent is None else all_rows(db, "heads_of_agent", space, agent)
        sound = [(id, head_id) for id, head_id in rows if isinstance(id, str)]  # noqa: A001 - one word per idea
        return [(id, None if head_id is None else unpack_id(head_id)) for id, head_id in sound]  # noqa: A001 - one word per idea

    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - the contract's name
        with self._reading() as db:
            return find(db, self._changes.space(db, namespace), namespace, pack_id(id))

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
        with self._reading(snapshot=deltas) as db:
            row = self._changes.row(db, key)
            if row is None or low > SEQ_MASK:
                return []
            name = f"{'noted' if noted else 'frames'}_{'down' if newest_first else 'up'}"
            bounds = (row.key(max(low, 0)), row.key(SEQ_MASK if high is None else min(high, SEQ_MASK)))
            found = all_rows(db, name, *bounds, -1 if limit is None else limit)
            frames = [read_frame(key, columns) for columns in found]
            check_order("frames", [low - 1, *(frame.seq for frame in frames[:: -1 if newest_first else 1])], key.id)
            if not deltas:
                return frames
            return [frame._replace(delta=self._deltas(db, key, row, 0, frame.seq, frame.seq)[1][0]) for frame in frames]

    def head_frames(self, rows: Sequence[ThreadRow]) -> list[Frame | None]:
        with self._reading(snapshot=True) as db:
            found = [
                one_row(db, "head_frame", row.head, self._changes.space(db, row.key.namespace), row.key.id) for row in rows
            ]
        return [None if columns is None else read_frame(row.key, columns) for row, columns in zip(rows, found, strict=True)]

    def fingerprints(self, keys: Sequence[ThreadKey]) -> list[bytes]:
        with self._reading(snapshot=True) as db:
            return [self._fingerprint_in(db, key) for key in keys]

    def _fingerprint_in(self, db: file.Connection, key: ThreadKey) -> bytes:
        try:
            row = self._changes.row(db, key)
        except CorruptionError:
            return b""
        if row is None:
            return b""
        notes, records = all_rows(db, "note_sums", row.low(), row.high()), all_rows(db, "record_sums", row.no)
        return fingerprint(row.public(key), notes, records)

    def chain(self, key: ThreadKey, seq: int, *, after: int = 0) -> Chain:
        with self._reading(snapshot=True) as db:
            row = self._changes.row(db, key)

            def stretch(high: int) -> Stretch | None:
                place = None if row is None else one_row(db, "frame_place", row.key(high))
                if row is None or place is None:
                    return None
                run = min(place[1], high)
                start, body = self._start(db, key, row, run, high, after)
                return Stretch(start, body, *self._deltas(db, key, row, start, start + 1 if start else run, high))

            found = whole_chain(key, seq, stretch)
        if found is None:
            raise CheckpointNotFound(f"thread {key.id!r} has no frame {seq}")
        return found

    def _start(self, db: file.Connection, key: ThreadKey, row: Row, run: int, seq: int, after: int) -> tuple[int, bytes | None]:
        """Where loading may begin inside an unbroken line: after what the caller has, or at a sound keyframe."""
        if run <= after <= seq:
            return after, None
        salt = thread_salt(*key)
        for frame_key, body, total in all_rows(db, "keyframes_down", row.key(run), row.key(seq)):
            if checksum(body, salt, frame_key & SEQ_MASK) == total:
                return frame_key & SEQ_MASK, body
        return 0, None

    def _deltas(
        self, db: file.Connection, key: ThreadKey, row: Row, start: int, low: int, high: int
    ) -> tuple[int, list[bytes]]:
        found = all_rows(db, "deltas", row.key(low), row.key(high))
        return sound_deltas(key, start, high, found, lambda seq: id_of(db, row.key(seq)))

    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        with self._reading() as db:
            row = self._changes.row(db, key)
            found = [] if row is None else all_rows(db, "records", row.no, kind, after, limit + 1)
        page = record_page(key, kind, found, limit)
        check_order("records", [after, *(record.name for record in page.items)], key.id)
        return page

    def kinds(self, key: ThreadKey) -> list[str]:
        with self._reading() as db:
            row = self._changes.row(db, key)
            return [] if row is None else [kind for (kind,) in all_rows(db, "kinds", row.no)]

    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        with self._reading() as db:
            row = self._changes.row(db, key)
            found = None if row is None else one_row(db, "blob", row.no, digest)
        return sound_blob(key, digest, found)

    # -- looking after -----------------------------------------------------------------------------

    def clock(self) -> int:
        if self._connections.closed:
            self._check_open()
        return time.time_ns() // 1000

    def sizes(self) -> dict[str, int]:
        with self._reading() as db:
            return sqlite_upkeep.sizes(db, self.path)

    def check(self, namespace: str, thread_id: str | None = None) -> Iterator[Problem]:
        with self._reading(snapshot=True) as db:
            if thread_id is None:
                yield from sqlite_upkeep.check(db, namespace)
            else:
                yield from sqlite_upkeep.check_thread(db, ThreadKey(namespace, thread_id))

    def mend(self, namespace: str) -> list[str]:
        with self._writing() as db:
            self._changes.forget()
            done = sqlite_upkeep.mend_places(db, namespace)
            return [*done, *sqlite_upkeep.mend(db, namespace, self._changes.space(db, namespace), self.clock())]

    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        self._refuse_borrowed("compact")
        try:
            self._recode(recode, progress)
        except UnavailableError as error:
            if not isinstance(error.__cause__, apsw.FullError):
                raise
            # Whether the last page was written does not matter: it says the same either way.
            raise OutOfSpace(
                f"{self.path}: the disk is full: every checkpoint is as it was; make room and try again"
            ) from error
        self._shrink()

    def _recode(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        total = self.sizes()["count"]
        done = key = 0
        while True:
            with self._writing() as db:
                page = all_rows(db, "recode_page", key)
                if not page:
                    db.run(SQL["drop_keyframes"])
                    break
                check_order("frames", [key, *(columns[0] for columns in page)])
                names = space_names(db)
                for key, base, delta, delta_sum, space, thread_id in page:
                    salt = thread_salt(names.get(space, ""), thread_id)
                    if checksum(delta, salt, key & SEQ_MASK, base) != delta_sum:
                        continue  # damaged: a new checksum would make it look sound
                    smaller = recode(delta)
                    if len(smaller) < len(delta):
                        db.run(SQL["set_delta"], (smaller, checksum(smaller, salt, key & SEQ_MASK, base), key))
            done += len(page)
            progress(done, total)

    def _shrink(self) -> None:
        """Give free space back and empty the -wal, so that what was deleted is in no file."""
        with self._connections.lock, file.translated(self.path):
            self._connections.writer().execute("VACUUM")
            self.purge()

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
        target = os.path.realpath(os.fspath(path))
        if os.path.exists(target):
            raise AlreadyExistsError(f"{target}: exists already; a backup never overwrites")
        fresh = file.beside(target)  # not in the way of the next, if this one is killed
        progress(0, 1)
        try:
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            try:
                with self._reading() as db:
                    db.execute("VACUUM INTO ?", (fresh,))
                _sync_file(fresh)
                os.link(fresh, target)
            finally:
                for made in (fresh, f"{fresh}-journal"):  # which SQLite leaves when the disk is full
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(made)
            file.sync_directory(os.path.dirname(target))
        except OSError as error:
            raise of_system(error, f"{target}: the backup cannot be written", "make room, or choose another place") from error
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
                self._changes.forget()

    def index(self) -> FtsIndex:
        self._check_open()
        return self._index

    def borrowed(self) -> bool:
        return self._connections.borrowed_by == threading.get_ident()

    def _refuse_borrowed(self, verb: str) -> None:
        if self.borrowed():
            raise InvalidInputError(f"{self.path}: {verb} cannot be part of a transaction; call it outside connection()")

    def _inside_borrowed(self, changes: Sequence[StoreChange]) -> list[int]:
        """Changes made while this thread holds `connection()`: part of its transaction."""
        with file.translated(self.path), self._part() as db:
            return [self._changes.apply(db, change) for change in changes]

    @contextlib.contextmanager
    def _part(self) -> Iterator[file.Connection]:
        """Changes of ours as a part of the transaction that this thread holds."""
        with self._connections.ours() as db, self._undone_on_error(db):
            yield db

    @contextlib.contextmanager
    def _undone_on_error(self, db: file.Connection) -> Iterator[None]:
        """A part of the transaction that this thread holds, undone by itself if it fails.

        Nothing is remembered of it: the user may take back what was done, all of it or up to a savepoint.
        """
        self._changes.forget()
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
            self._changes.forget()

    def close(self) -> None:
        self._connections.close()
        self._index.close()

    def _check_open(self, *, writing: bool = False) -> None:
        self._connections.check_open()
        if writing and self.read_only:
            raise UnsupportedError(f"{self.path}: was opened with read_only=True")

    def _reading(self, *, snapshot: bool = False) -> AbstractContextManager[file.Connection]:
        if self.borrowed():
            self._changes.forget()
        return self._connections.reading(snapshot=snapshot)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[file.Connection]:
        """A transaction; rows that were written in it are remembered once it is committed."""
        self._connections.refuse_inside()
        with self._connections.lock:
            try:
                with self._connections.writing() as db:
                    yield db
            except BaseException:
                self._changes.forget()
                raise
            self._changes.committed()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[file.Connection]:
        """A transaction of its own; inside `connection()`, part of that one. SQLite's errors become ours."""
        self._check_open(writing=True)
        with file.translated(self.path), self._part() if self.borrowed() else self._transaction() as db:
            yield db


def _sync_file(path: str) -> None:
    """Flush a finished copy that no connection has open."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
