"""The connections of one process to one SQLite file: one that writes, a few that read, none across a fork.

Keeps three promises: a transaction ends or is rolled back, whatever happens inside; nobody is told that a write is
durable after the files were taken away or replaced under us (where a directory further up was moved, that is noticed within
a tenth of a second); a child of a fork never uses, or closes, a connection of its parent.
Touches _sqlite_file, _directory, store and errors.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import apsw

from savegame.errors import ClosedError, UnavailableError
from savegame.store import write_inside
from savegame.stores import _sqlite_file as file
from savegame.stores._directory import SETTLED_NS, Directory
from savegame.stores._forking import Still, leave_alone, take_along
from savegame.stores._sqlite_file import SQL

IDLE_READERS: Final = 4
READER_KIB: Final = 256
"""Of pages that a reader keeps: a load goes through a thread once, and memory that was just used is quicker than fresh."""

FORK_WAIT_S: Final = 10.0


class Connections:
    """Lends connections. `lock` is held by whoever writes."""

    def __init__(self, path: str, *, read_only: bool, synchronous: int) -> None:
        self.path = path
        self.read_only = read_only
        self._synchronous = synchronous
        self.closed = False
        self.lost = False
        """Whether the files were once taken away under us."""
        self.after_fork: Callable[[], None] = lambda: None
        """What else begins anew in the child of a fork."""
        self.left_open: Callable[[], None] = lambda: None
        """What else is to be done about a transaction that was left open, and is rolled back by the next."""
        self._begin_life()
        take_along(self)

    def _begin_life(self) -> None:
        """Locks and connections of this process: at the start, and again in the child of a fork."""
        self.lock = threading.RLock()
        self.borrowed_by: int | None = None
        self.inside: set[int] = set()
        """The threads in the middle of a write. One that is here writes nothing else: it would wait for itself."""
        self._writer: file.Connection | None = None
        self._files: tuple[int | None, ...] = ()
        self._directory: Directory | None = None
        self._directory_changed = 0
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
        """Close every connection, now or when it is given back."""
        with self.lock:
            self.closed = True
            self.drop()
        leave_alone(self)

    def drop(self) -> None:
        """Close what is not lent; what is needed again is opened again."""
        with self._guard:
            readers, self._readers = self._readers, []
        for db in (*readers, self._writer):
            if db is not None:
                db.close()
        self._writer = self._directory = None

    # -- writing -----------------------------------------------------------------------------------

    def writer(self) -> file.Connection:
        """The connection that writes; its user holds `lock`."""
        if self._writer is None:
            self.check_open()  # closed meanwhile, by another thread
            db = self._connect()
            try:
                db.execute(SQL["make_appending"])
            except BaseException:
                db.close()
                raise
            self._writer = db
        return self._writer

    @contextlib.contextmanager
    def writing(self) -> Iterator[file.Connection]:
        """A transaction of its own. Errors inside pass as they are."""
        self.check_open()
        here = threading.get_ident()
        with self.lock:
            db = None
            try:
                self.inside.add(here)
                with file.translated(self.path):
                    db = self.begin()
                yield db
                if self._writer is not db:
                    raise ClosedError(f"{self.path}: this process was forked inside the transaction; open the vault again")
                self.commit(db)
            except BaseException:
                if self._writer is db:
                    self.roll_back()
                raise
            finally:
                self.inside.discard(here)

    def refuse_inside(self) -> None:
        """Raise if this very thread is `inside` a write: a signal handler or a finaliser has interrupted it."""
        if threading.get_ident() in self.inside:
            raise write_inside(self.path)

    def idle(self) -> file.Connection:
        """The connection that writes, in no transaction; its user holds `lock`."""
        db = self._writer or self.writer()
        if db.in_transaction:  # a second Ctrl-C came while the one before was being rolled back
            self.roll_back()
            self.left_open()
        return db

    def begin(self) -> file.Connection:
        """The connection that writes, in a transaction; its user holds `lock`."""
        db = self.idle()
        db.run("BEGIN IMMEDIATE")
        return db

    def commit(self, db: file.Connection) -> None:
        """End the transaction. Raises UnavailableError with `unknown` if nobody can tell whether it is durable."""
        try:
            db.run("COMMIT")
        except apsw.Error as error:
            self.roll_back()
            raise self.in_doubt(error) from error
        self.look()

    def in_doubt(self, error: apsw.Error) -> UnavailableError:
        """The error for a write that failed while it was being made durable."""
        return UnavailableError(f"{self.path}: the write may or may not have happened ({error}); read it back", unknown=True)

    def look(self) -> None:
        """After a write: raise UnavailableError if the files are not those any more that were opened."""
        directory = self._directory
        if directory is None:  # the first write
            self._files, self._directory = file.identity(self.path), Directory(os.path.dirname(self.path))
            self._directory_changed = 0
            return
        changed = directory.changed_ns()
        if changed != self._directory_changed:
            self._check_files(changed)

    def roll_back(self) -> None:
        """End the transaction, if one is open, without a trace."""
        if self._writer is not None and self._writer.in_transaction:
            with contextlib.suppress(apsw.Error):  # SQLite has rolled back by itself; the first error is the one to tell
                self._writer.run("ROLLBACK")

    def _check_files(self, changed: int) -> None:
        """Raise if the files are not those that were opened, since what was written is not in them."""
        if file.identity(self.path) != self._files:
            self.lost = True
            self.drop()
            raise UnavailableError(
                f"{self.path}, its -wal or its -shm was removed, moved or replaced by somebody while the vault was open; "
                f"saves since then may be lost. Nothing but savegame may touch these files (docs/concepts/durability.md)",
                unknown=True,
            )
        self._directory_changed = changed if time.time_ns() - changed > SETTLED_NS else 0

    # -- reading -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self, *, snapshot: bool = False) -> Iterator[file.Connection]:
        """A connection to read from; with `snapshot`, everything is read at one moment."""
        self.check_open()
        if self.borrowed_by == threading.get_ident():
            with file.translated(self.path):
                yield self.writer()
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
        """Begin anew; refuse to go on if a connection was in use, and never close one that is the parent's."""
        if self._writer is not None or self._reading:
            _abandoned.extend((self._writer, *self._readers))
            self.closed = True
        self._begin_life()
        self.after_fork()


_abandoned: list[file.Connection | None] = []
