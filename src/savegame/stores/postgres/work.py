"""Carrying reads and writes to their end, whatever happens to connections and servers meanwhile.

A read that failed is retried within the deadline. A write whose connection was lost, or whose commit came with a
warning, may have happened or not: that is found out on a new connection, by a transaction that leaves the write no way to
happen later. Only when no server can be reached until the deadline, the error says that the outcome is unknown.
Touches store, rules, errors and the other modules of this store.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus

from savegame.errors import SavegameError, UnavailableError
from savegame.model import ThreadKey
from savegame.store import StoreChange
from savegame.stores.postgres.changes import CommittedRows, Work, tag_of
from savegame.stores.postgres.errors import ENDED, is_lost, may_work_later, refused_inside, spoilt, translate
from savegame.stores.postgres.link import LONGEST_S, Lent, Link, Patience
from savegame.stores.postgres.pool import Pool
from savegame.stores.refusals import ended_inside, unknown_outcome

T = TypeVar("T")
Mark = tuple[str, str, bytes]
FORGET_CHANCE: Final = 1 / 200
"""How often a write removes up to 1,000 marks that are older than an hour: more than come along meanwhile."""

LONGEST_WRITE_S: Final = 600.0
"""How long a server that is alive may take for a write that is not hurried."""

CLOCK_KEPT_US: Final = 60_000_000


class Clock:
    """The server's clock, without asking: this machine's, with the difference that answers showed. Never ahead of it."""

    def __init__(self) -> None:
        self._ahead = 0
        self._learnt = -CLOCK_KEPT_US

    def now(self) -> int:
        """Now, in microseconds since 1970."""
        return time.monotonic_ns() // 1000 + self._ahead

    def learn(self, server: int) -> None:
        """What the server's clock was at some moment before now; the quickest answer of a while counts."""
        here = time.monotonic_ns() // 1000
        if server - here > self._ahead or here - self._learnt > CLOCK_KEPT_US:
            self._ahead, self._learnt = server - here, here


class Doubt(Exception):
    """A commit that may have happened: then `outcome` is its result."""

    def __init__(self, outcome: Any = None) -> None:
        super().__init__("the reply to a commit was lost")
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Task(Generic[T]):
    """Something to do in a transaction that has locked the threads `keys` and made those of `made`.

    `ids` are those that users chose, with their namespaces. What is not `marked` can be done twice without harm. What is
    not `hurried` may take longer than the deadline, as long as the server is alive.
    """

    keys: Collection[ThreadKey]
    job: Callable[[Work], T]
    creates: Collection[ThreadKey] = ()
    ids: Collection[tuple[str, str]] = ()
    marked: bool = True
    hurried: bool = True
    changes: Sequence[StoreChange] = ()


class Workings:
    """Reads and writes on the connections of a pool. `borrowed` is the connection that this thread has for itself."""

    def __init__(self, pool: Pool, deadline: float, epochs: str) -> None:
        self.pool = pool
        self.clock = Clock()
        self.committed = CommittedRows()
        self.deadline = deadline
        self._epochs = epochs
        self._local = threading.local()

    def borrowed(self) -> Lent | None:
        """The connection that the calling thread has by `connection()`. Raises ClosedError in the child of a fork."""
        link: Lent | None = getattr(self._local, "link", None)
        if link is not None:
            link.check_process()
        return link

    # -- reading -----------------------------------------------------------------------------------

    def read(self, job: Callable[[Link], T], *, hurried: bool = True) -> T:
        """What `job` reads. If not `hurried`, a try may take longer than the deadline, as long as the server is alive."""
        lent = self.borrowed()
        if lent is not None:
            with self._translated():
                return job(lent)
        patience = Patience(self.deadline)
        while True:
            try:
                with self.pool.lent(patience) as link:
                    link.until = link.until if hurried else time.monotonic() + LONGEST_S
                    return job(link)
            except psycopg.Error as error:
                self.again(error, patience)

    def again(self, error: psycopg.Error, patience: Patience) -> None:
        """Wait before the next try, or raise what went wrong."""
        if is_lost(error) or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            self.lose()
        if not may_work_later(error) or not patience.pause():
            raise translate(error, self.pool.where) from error

    def lose(self) -> None:
        """A connection was lost: the others are too, and who answers next may know less than is remembered here."""
        self.pool.drop()
        self.committed.forget_all()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translate(error, self.pool.where) from error

    # -- writing -----------------------------------------------------------------------------------

    def write(self, task: Task[T], patience: Patience | None = None) -> T:
        """The result of a task, once it is committed."""
        lent = self.borrowed()
        if lent is not None:
            return self._write_inside(lent, task)
        patience = patience or Patience(self.deadline)
        while True:
            mark = _new_mark(task.keys) if task.marked else None
            try:
                with self.pool.lent(patience) as link:
                    link.until = link.until if task.hurried else time.monotonic() + LONGEST_WRITE_S
                    outcome = self._transact(link, task, mark)
                    if mark is not None and random.random() < FORGET_CHANCE:  # noqa: S311 - any will do
                        _forget_marks(link)
                    return outcome
            except Doubt as doubt:
                self.lose()
                left = patience if task.hurried else Patience(self.deadline)
                if mark is not None and self._landed(mark, left, task.changes):
                    return cast(T, doubt.outcome)
                if not patience.pause():
                    raise self._given_up(doubt, task, mark) from doubt
            except psycopg.Error as error:
                self.again(error, patience)

    def _given_up(self, doubt: Doubt, task: Task[T], mark: Mark | None) -> UnavailableError:
        if mark is None:
            return unknown_outcome(doubt, task.changes)
        return UnavailableError(f"{self.pool.where}: the connection was lost; nothing was written; retry")

    def _transact(self, link: Link, task: Task[T], mark: Mark | None) -> T:
        """One try of a task. Raises Doubt if it may have happened; whatever else it raises, nothing was written."""
        work = Work(link, self._epochs)
        with self._committed(link, mark) as outcomes:
            link.tell("begin")
            outcomes.append(_done(work, task))
        if work.time:
            self.clock.learn(work.time)
        self.committed.forget(task.keys)
        self.committed.remember(work.written)
        outcome: T = outcomes[0]
        return outcome

    @contextlib.contextmanager
    def _committed(self, link: Link, mark: Mark | None) -> Iterator[list[Any]]:
        """Commit what is done inside, with a mark to look for if the reply gets lost; roll back if something goes wrong.

        Raises Doubt, with the first of what the caller put into the list, if the reply was lost or came with a warning.
        """
        outcomes: list[Any] = []
        sent = False
        try:
            with link.sending():
                yield outcomes
                if mark is not None:
                    link.tell("mark", *mark)
                link.tell("durably")
                link.notices.warned, sent = False, True
                link.tell("commit")
        except BaseException as error:
            if sent and isinstance(error, psycopg.Error) and is_lost(error):
                raise Doubt(*outcomes) from error
            link.roll_back()
            raise
        if link.notices.warned:
            raise Doubt(*outcomes)

    def _landed(self, mark: Mark, patience: Patience, changes: Sequence[StoreChange] = ()) -> bool:
        """Whether a write made its mark. If not, ours is there now, which it would stumble over: it never will."""
        try:
            while True:
                try:
                    with self.pool.lent(patience) as link:
                        link.notices.warned = False
                        done: bool = link.ask("settle", *mark)[0][0]
                        if not link.notices.warned:
                            return done
                    self.lose()
                    if not patience.pause():
                        raise UnavailableError(f"{self.pool.where}: no standby confirms what the server wrote")
                except psycopg.Error as error:
                    self.again(error, patience)
        except SavegameError as error:
            raise unknown_outcome(error, changes) from error

    # -- connection() --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def connection(self) -> Iterator[Lent]:
        """A transaction for the caller's own statements and for saves; inside another one, a part of it."""
        outer = self.borrowed()
        if outer is not None:
            with self._translated(), self._hurried(outer):
                outer.tell("begin_block")
            with self._block(outer, ("end_block",)):
                yield outer
            return
        link = self._begun()
        try:
            link.until = None  # how long it takes is the caller's affair
            self._local.link = link
            try:
                with self._block(link, ("check_constraints", "end_block")):
                    yield link
            except BaseException:
                link.roll_back()
                raise
            finally:
                self._local.link = None
            self._commit_block(link)
        finally:
            self.pool.give_back(link)

    def _begun(self) -> Lent:
        """A connection with a transaction that has begun."""
        patience = Patience(self.deadline)
        while True:
            try:
                link = self.pool.take_new(patience)
                try:
                    with link.sending():
                        link.tell("begin")
                        link.tell("begin_block")
                except BaseException:
                    self.pool.give_back(link)
                    raise
                return link
            except psycopg.Error as error:
                self.again(error, patience)

    @contextlib.contextmanager
    def _block(self, link: Lent, ending: Sequence[str]) -> Iterator[None]:
        """What is done inside, up to and including the statements `ending`, happens as a whole or not at all.

        Its savepoint is there as long as the transaction is the one that it began in: one that was ended inside is noticed.
        """
        torn, piped = link.torn, link.in_pipeline
        try:
            yield
            link.check_process()
            self._check_whole(link)
            self._end_block(link, ending)
        except BaseException as error:
            code = self._undo(link, "undo_block", "end_block", piped=piped)
            if code is None:
                link.torn = torn
            elif code in ENDED and isinstance(error, Exception):
                raise ended_inside() from error
            raise

    def _end_block(self, link: Lent, ending: Sequence[str]) -> None:
        try:
            with self._hurried(link), link.sending():
                for name in ending:
                    link.tell(name)
        except psycopg.Error as error:
            raise self._not_committed(error) from error

    def _commit_block(self, link: Lent) -> None:
        """Commit what a user did, as durably as a save, and leave no settings behind in the session."""
        patience, mark = Patience(self.deadline), _new_mark(())
        try:
            with self._hurried(link), self._committed(link, mark):
                for name in ("reset_user", "reset_role", "reset_settings"):
                    link.tell(name)
        except Doubt as doubt:
            self.lose()
            if not self._landed(mark, patience):
                raise self._not_committed(psycopg.OperationalError()) from doubt
        except psycopg.Error as error:
            raise self._not_committed(error) from error

    def _not_committed(self, error: psycopg.Error) -> SavegameError:
        """Our error for what kept a block from being committed."""
        if not is_lost(error):
            return spoilt(error, self.pool.where)
        return UnavailableError(
            f"{self.pool.where}: the connection was lost before the transaction was committed; nothing of it was written, do "
            f"it again"
        )

    @contextlib.contextmanager
    def _hurried(self, link: Lent) -> Iterator[None]:
        """Within the deadline, on a connection that its user may keep for as long as it likes."""
        patience = Patience(self.deadline)
        link.until, link.look_after = patience.until, patience.look_after()
        try:
            yield
        finally:
            link.until = None

    def _write_inside(self, link: Lent, task: Task[T]) -> T:
        """A task inside `connection()`: part of its transaction, but undone by itself whatever goes wrong."""
        self._check_whole(link)
        self.committed.forget(task.keys)
        piped = link.in_pipeline
        link.torn = link.info.transaction_status == TransactionStatus.INTRANS  # one that has failed takes nothing more
        try:
            with link.sending():
                link.tell("savepoint")
                outcome = _done(Work(link, self._epochs), task)
                link.tell("release")
        except BaseException as error:
            if self._undo(link, "rollback_to", "release", piped=piped) is None:
                link.torn = False
            if isinstance(error, psycopg.Error):
                raise (refused_inside if task.changes else translate)(error, self.pool.where) from error
            raise
        link.torn = False
        return outcome

    def _undo(self, link: Lent, *names: str, piped: bool) -> str | None:
        """Go back to a savepoint. Returns None if that was possible, else PostgreSQL's code for why not, if it has one.

        `piped` is whether a pipeline was open before what is undone. If it was not and one is open now, an interrupt struck
        before the pipeline could be left: whether the statements in it failed would stay unknown, so the connection is closed.
        """
        if link.pid == os.getpid() and link.in_pipeline and not piped:
            link.hang_up()
        if link.pid != os.getpid() or link.closed:
            return ""
        try:
            with self._hurried(link):
                for name in names:
                    link.tell(name)
        except psycopg.Error as error:
            return error.sqlstate or ""
        return None

    def _check_whole(self, link: Lent) -> None:
        """Raise UnavailableError if half a save is in the transaction."""
        if link.torn and not link.closed:
            raise UnavailableError(
                f"{self.pool.where}: a save inside the transaction was cut short and could not be undone; nothing of the "
                f"transaction was written, do it again"
            )


def _done(work: Work, task: Task[T]) -> T:
    """Do a task; what it wrote may still be under way."""
    work.lock(task.keys, task.creates, task.ids)
    outcome = task.job(work)
    work.finish()
    return outcome


def _forget_marks(link: Link) -> None:
    """Remove some of the marks that will not be looked for any more."""
    with contextlib.suppress(psycopg.Error):  # the write is done; a later one will
        link.tell("forget_marks")


def _new_mark(keys: Collection[ThreadKey]) -> Mark:
    """A mark beside one of the threads; not by its id, which must not be found here after it was erased."""
    first = min(keys, default=None)
    return ("", "", os.urandom(16)) if first is None else (first.namespace, str(tag_of(first)), os.urandom(16))
