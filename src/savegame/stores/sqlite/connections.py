"""The connections of one process to one SQLite file: one that writes, a few that read, one per block of a user's.

Keeps four promises: a transaction ends or is rolled back, whatever happens inside; no write counts as durable, and nothing
is read, once the files were removed or replaced (a move of a directory further up is noticed within a tenth of a
second); what a user does to a connection ends with the block that it was lent for; the child of a fork never uses, or
closes, a connection of its parent.
Touches sqlite_file, directory, store and errors.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import apsw

from savegame.errors import ClosedError, InvalidInputError, OutOfSpace, TransactionFailed, UnavailableError
from savegame.stores import sqlite_file as file
from savegame.stores.directory import SETTLED_NS, Directory
from savegame.stores.refusals import ended_inside, refused_ending, write_inside
from savegame.stores.sqlite_file import SQL
from savegame.waiting.forking import Still, leave_alone, take_along
from savegame.waiting.undoing import on_failure

IDLE_READERS: Final = 4
READER_KIB: Final = 256
"""Of pages that a reader keeps: a load goes through a thread once, and memory that was just used is quicker than fresh."""

FORK_WAIT_S: Final = 10.0

_USER_SETTINGS: Final = ("authorizer", "convert_binding", "convert_jsonb", "exec_trace", "row_trace")
"""What a user can set on a connection that would change what our statements do or read."""


class Connections:
    """Lends connections. The writer holds `lock`."""

    def __init__(self, path: str, *, read_only: bool, synchronous: int) -> None:
        self.path = path
        self.read_only = read_only
        self._synchronous = synchronous
        self.closed = False
        self.after_fork: Callable[[], None] = lambda: None
        """What else starts afresh in the child of a fork."""
        self.forget: Callable[[], None] = lambda: None
        """Called when rows may not be what they were: a transaction was left open, or the files were replaced."""
        self._begin_life()
        take_along(self)

    def _begin_life(self) -> None:
        """Locks and connections of this process: at the start, and again in the child of a fork."""
        self.lock = threading.RLock()
        self.borrowed_by: int | None = None
        self.inside: set[int] = set()
        """The threads in the middle of a write. One that is here writes nothing else: it would wait for itself."""
        self._writer: file.Connection | None = None
        self.lent: file.Connection | None = None
        """The connection of the current block of `connection()`, if there is one."""
        self._directory: Directory | None = None
        self._readers: list[file.Connection] = []
        self._reading = 0
        self._forking = False
        self._guard = threading.RLock()  # entered by itself: entering a Condition could be interrupted half-way
        self._changed = threading.Condition(self._guard)

    def _connect(self, **options: int) -> file.Connection:
        return file.connect(self.path, read_only=self.read_only, synchronous=self._synchronous, **options)

    def check_open(self) -> None:
        """Raise ClosedError if it is closed."""
        if self.closed:
            raise ClosedError(f"{self.path}: the vault is closed; open it again")

    def close(self) -> None:
        """Close every connection, now or when it is returned."""
        with self.lock:
            self.closed = True
            self.drop()
        leave_alone(self)

    def drop(self) -> None:
        """Close every connection that is not in use; those needed again are opened again."""
        self._drop_readers()
        if self._writer is not None:
            self._writer.close()
        self._writer = self._directory = None

    def _drop_readers(self) -> None:
        with self._guard:
            readers, self._readers = self._readers, []
        for db in readers:
            db.close()

    def _drop_stale(self) -> None:
        """After a read that found other files: drop what has the old ones open. A write that is under way looks itself."""
        self._drop_readers()
        if threading.get_ident() not in self.inside and self.lock.acquire(blocking=False):
            try:
                self.drop()
            finally:
                self.lock.release()

    # -- writing -----------------------------------------------------------------------------------

    def writer(self) -> file.Connection:
        """The connection that writes; its user holds `lock`."""
        if self._writer is None:
            self._writer = self._connect_to_write()
        return self._writer

    def _connect_to_write(self) -> file.Connection:
        self.check_open()  # closed meanwhile, by another thread
        db = self._connect()
        with on_failure(db.close):
            db.execute(SQL["make_appending"])
        return db

    @contextlib.contextmanager
    def writing(self) -> Iterator[file.Connection]:
        """A transaction of its own. Errors inside pass as they are."""
        db = None
        with self._alone():
            try:
                with file.translated(self.path):
                    db = self.begin()
                yield db
                if self._writer is not db:
                    raise self._forked_inside()
                self.commit(db)
            except BaseException:
                if self._writer is db:
                    self.roll_back()
                raise

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread writes meanwhile, and this one is `inside`."""
        self.check_open()
        here = threading.get_ident()
        with self.lock:
            try:
                self.inside.add(here)
                yield
            finally:
                self.inside.discard(here)

    def _forked_inside(self) -> ClosedError:
        return ClosedError(f"{self.path}: this process was forked inside the transaction; open the vault again")

    @contextlib.contextmanager
    def lending(self) -> Iterator[file.Connection]:
        """A transaction of a user's, on a connection of its own: whatever is done to that one ends with the block.

        Meanwhile this thread reads from it too, so that it sees what it has written. Errors inside pass as they are.
        """
        db = None
        with self._alone():
            try:
                with file.translated(self.path):
                    db = self.lent = self._connect_to_write()
                    db.run("BEGIN IMMEDIATE")
                    db.run("SAVEPOINT savegame_block")  # gone at the end if the block has ended the transaction
                db.authorizer = _refuse_transactions
                db.lent = True
                self.borrowed_by = threading.get_ident()
                yield db
                if self.lent is not db:
                    raise self._forked_inside()
                with file.translated(self.path):
                    self._end_block(db)
            finally:
                self.borrowed_by = None
                if db is not None and self.lent is db:
                    self.lent = None
                    db.lent = False
                    db.close(force=True)

    def _end_block(self, db: file.Connection) -> None:
        """Commit a block, unless it has ended its transaction itself: then the savepoint from its beginning is gone."""
        try:
            for name in _USER_SETTINGS:
                setattr(db, name, None)
            db.run("RELEASE savegame_block")
        except apsw.BusyError as error:
            raise TransactionFailed(
                f"{self.path}: a writing statement of the block was not read to its end, so nothing was kept; fetch its rows"
            ) from error
        except apsw.SQLError as error:
            raise ended_inside() from error
        self.commit(db)

    @contextlib.contextmanager
    def ours(self) -> Iterator[file.Connection]:
        """The connection of this thread's block, for statements of ours: without what the user has set on it.

        Raises InvalidInputError if a temporary table or trigger of the user's comes between them and our tables.
        """
        db = self.lent
        assert db is not None
        theirs = [(name, value) for name in _USER_SETTINGS if (value := getattr(db, name)) not in (None, _refuse_transactions)]
        try:
            for name, _ in theirs:
                setattr(db, name, None)
            db.pragma("secure_delete", 1)
            hidden = db.run(SQL["hidden"]).fetchall()
            for kind, hiding in hidden:
                raise InvalidInputError(f"{self.path}: the temporary {kind} {hiding!r} hides a table of ours; rename it")
            yield db
        finally:
            for name, value in theirs:
                setattr(db, name, value)

    def refuse_inside(self) -> None:
        """Raise if this very thread is `inside` a write: a signal handler or a finaliser has interrupted it."""
        if threading.get_ident() in self.inside:
            raise write_inside(self.path)

    def idle(self) -> file.Connection:
        """The connection that writes, in no transaction; its user holds `lock`."""
        db = self._writer or self.writer()
        if db.in_transaction:  # a second Ctrl-C came while the one before was being rolled back
            self.roll_back()
            self.forget()
        return db

    def begin(self) -> file.Connection:
        """The connection that writes, in a transaction; its user holds `lock`."""
        db = self.idle()
        db.run("BEGIN IMMEDIATE")
        return db

    def commit(self, db: file.Connection) -> None:
        """End the transaction. Raises UnavailableError with `unknown` if it may or may not be durable."""
        try:
            db.run("COMMIT")
        except apsw.Error as error:
            self.roll_back()
            raise self.in_doubt(error) from error
        self.look(db)

    def in_doubt(self, error: apsw.Error) -> UnavailableError:
        """The error for a write that failed while it was being made durable.

        A full disk leaves no doubt: the last page written is the one that makes a transaction count.
        """
        if isinstance(error, apsw.FullError):
            return OutOfSpace(f"{self.path}: the disk is full: nothing was saved; make room and retry")
        return UnavailableError(f"{self.path}: the write may or may not have happened ({error}); read it back", unknown=True)

    def look(self, db: file.Connection, *, written: bool = True) -> None:
        """After a write: raise UnavailableError if the files that `db` has open were removed or replaced.

        With `written=False`, after one that was refused: perhaps because of what those files say.
        """
        if not self._is_current(db):
            self.drop()
            raise self._replaced(unknown=written)

    def _is_current(self, db: file.Connection) -> bool:
        """Whether the files that a connection has open are still the ones with their names."""
        directory = self._directory
        if directory is None:
            directory = self._directory = Directory(os.path.dirname(self.path))
        changed = directory.changed_ns()
        if changed == db.looked:
            return True
        found = file.identity(self.path)
        if not file.same_files(db.files, found):
            return False
        db.files = found
        db.looked = changed if time.time_ns() - changed > SETTLED_NS else 0
        return True

    def _replaced(self, *, unknown: bool) -> UnavailableError:
        self.forget()
        lost = "saves since then may be lost" if unknown else "the next call uses the files that are there now"
        return UnavailableError(
            f"{self.path}, its -wal or its -shm was removed, moved or replaced while the vault was open; {lost}. "
            f"Nothing but savegame may touch these files (docs/concepts/durability.md)",
            unknown=unknown,
        )

    def roll_back(self) -> None:
        """End the writer's transaction, if one is open, without a trace."""
        if self._writer is not None and self._writer.in_transaction:
            with contextlib.suppress(apsw.Error):  # SQLite has rolled back by itself; the first error is the one to raise
                self._writer.run("ROLLBACK")

    # -- reading -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self, *, snapshot: bool = False) -> Iterator[file.Connection]:
        """A connection to read from; with `snapshot`, everything is read at one moment."""
        self.check_open()
        if self.borrowed_by == threading.get_ident():
            with file.translated(self.path), self.ours() as lent:
                yield lent
            return
        db, counted = None, 0
        try:
            with self._guard:
                self._changed.wait_for(lambda: not self._forking)
                db = self._readers.pop() if self._readers else None
                self._reading += 1
                counted = 1
            with file.translated(self.path):
                db = db or self._connect(cache_kib=READER_KIB)
                if not self._is_current(db):
                    stale, db = db, None
                    stale.close()
                    self._drop_stale()
                    raise self._replaced(unknown=False)
                if snapshot:
                    db.run("BEGIN")
                yield db
        finally:
            with self._guard:
                self._reading -= counted
                if db is not None:
                    self._give_back(db)
                self._changed.notify_all()

    def _give_back(self, db: file.Connection) -> None:
        if self.closed or len(self._readers) >= IDLE_READERS:
            db.close()
            return
        db.run("ROLLBACK" if db.in_transaction else "")  # ends what an interrupt or damage left half read, too
        self._readers.append(db)

    # -- fork --------------------------------------------------------------------------------------

    def still(self) -> Still:
        """Close every connection, so that the child inherits none: SQLite's locks do not survive a fork.

        Afterwards they are opened again when they are needed.
        """
        with self.lock:
            try:
                with self._guard:
                    self._forking = True
                    self._changed.wait_for(lambda: self._reading == 0, FORK_WAIT_S)
                if self.borrowed_by is None and not self._reading:
                    self.drop()
                yield
            finally:
                self._forking = False
                with self._guard:
                    self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Start afresh; refuse to go on if a connection was in use, and never close one of the parent's."""
        if self._writer is not None or self.lent is not None or self._reading:
            _abandoned.extend((self._writer, self.lent, *self._readers))
            self.closed = True
        self._begin_life()
        self.after_fork()


def _refuse_transactions(
    operation: int, argument: str | None, _second: str | None, _database: str | None, _trigger: str | None
) -> int:
    """An authorizer for blocks of users: the transaction is ours to begin and to end."""
    if operation == apsw.SQLITE_TRANSACTION:
        raise refused_ending(str(argument))
    return apsw.SQLITE_OK


_abandoned: list[file.Connection | None] = []
