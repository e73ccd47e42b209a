"""One connection to a PostgreSQL database, that never waits longer for the server than its user asked for.

A warning that comes with a commit is not overlooked. There is no session state: every connection is as good as another,
also behind PgBouncer in transaction mode. What users get by `connection()` is a connection of their own, since they may
change anything in its session. Touches refusals, errors.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, NoReturn, Self, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.abc import Params, PQGen, Query
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic, error_from_result
from psycopg.postgres import register_default_adapters, register_default_types
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row
from psycopg.sql import Composable
from psycopg.types import TypesRegistry
from psycopg.types.array import ListBinaryDumper
from psycopg.waiting import Ready, Wait

from savegame.errors import ClosedError, SavegameError, lacks_descriptors
from savegame.stores.postgres.errors import NoAnswer, TookTooLong, is_full
from savegame.stores.refusals import refused_ending

T = TypeVar("T")
L = TypeVar("L", bound="Link")
Rows = list[tuple[Any, ...]]

WARNING: Final = "01000"
"""What a commit is answered with when its wait for a standby was cut short: it may get lost with the primary."""

PING_S: Final = 2
"""How long a server has to show that it is alive; libpq's shortest limit for connecting."""

CANCEL_S: Final = 1.0
"""How long a server has to take a cancellation, and then to say what came of it."""

LONGEST_PAUSE_S: Final = 1.0
LONGEST_S: Final = 6 * 3600.0
"""How long a server that is alive may take for what reads or rewrites whole tables."""


class Permit:
    """The right to have one connection. It ends with its owner, also if that was interrupted at a bad moment."""

    __slots__ = ("__weakref__",)


class Patience:
    """How long a call keeps trying. A server that froze may not use it up: there must be time for another."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self._pause = 0.01

    def left(self) -> float:
        """How many seconds there still are."""
        return max(self.until - time.monotonic(), 0.0)

    def look_after(self) -> float:
        """After how many seconds without an answer it is looked whether the server is still alive."""
        return self.seconds / 3

    def pause(self) -> bool:
        """Wait before the next try, longer every time. False if there is no time for one."""
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - so that not all come back at the same moment
        if pause >= self.left():
            return False
        time.sleep(pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)
        return True


class Notices:
    """What a server says unasked: whether there was a warning among it."""

    warned = False

    def __call__(self, notice: Diagnostic) -> None:
        """Take one in."""
        self.warned = self.warned or notice.sqlstate == WARNING


def _own_adapters() -> AdaptersMap:
    """How values travel: psycopg's ways, whatever a program made of its defaults. Arrays in binary too.

    As text, an array of bytes means something else to a server with `standard_conforming_strings = off`.
    """
    types = TypesRegistry()
    register_default_types(types)
    adapters = AdaptersMap(types=types)
    register_default_adapters(adapters)
    adapters.register_dumper(list, ListBinaryDumper)
    return adapters


_ADAPTERS: Final = _own_adapters()


class Statement(RawCursor[tuple[Any, ...]]):
    """A cursor for the store's own statements, which nothing that was set on its connection has a say in."""

    @property
    def adapters(self) -> AdaptersMap:
        """Ours, not the connection's."""
        return _ADAPTERS


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection that knows the store's statements by name, stops waiting at `until`, and notes warnings.

    A statement that has no answer after `look_after` seconds goes on only while the server answers elsewhere. At `until`
    it is cancelled: TookTooLong if the server says that it was, and nothing was done; NoAnswer is a lost connection.
    """

    conninfo: str
    sql: dict[str, str]
    pid: int
    notices: Notices
    slot: Permit | None = None
    until: float | None = None
    look_after: float = math.inf
    cancelled = False

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.info.transaction_status != TransactionStatus.IDLE

    @property
    def in_pipeline(self) -> bool:
        """Whether statements are sent without waiting for their answers."""
        return self.info.pipeline_status != PipelineStatus.OFF

    def ask(self, name: str, *values: Any) -> Rows:
        """The rows of a named statement."""
        return self.tell(name, *values).fetchall()

    def ask_all(self, *questions: tuple[str, Sequence[Any]]) -> list[Rows]:
        """The rows of several statements, read at one moment, for one round trip."""
        with self.snapshot():
            cursors = [self.tell(name, *values) for name, values in questions]
            return [cursor.fetchall() for cursor in cursors]

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Statements inside are sent without waiting for their answers. What fails first is raised, the rest is silent."""
        failed: BaseException | None = None
        before, outermost = sys.exc_info()[1], not self.in_pipeline
        try:
            with self.pipeline():
                try:
                    yield
                except BaseException as error:  # noqa: BLE001 - raised below; psycopg would log what comes after it
                    failed = _interrupt(error, before) or error
        except BaseException as error:  # noqa: BLE001 - raised below
            if failed is None or isinstance(failed, (psycopg.Error, SavegameError)) or not isinstance(error, Exception):
                failed = _interrupt(error, before) or failed or error  # else it comes of the interrupt: psycopg is in disorder
        if failed is not None:
            if outermost and self.in_pipeline:
                self.hang_up()  # an interrupt kept it from being left: answers that come now have no reader
            raise failed

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything inside is read at one moment; inside a transaction, as that sees it."""
        # Inside a pipeline the status is still that before its BEGIN; here every pipeline is a transaction.
        own = not self.in_pipeline and not self.in_transaction
        with self.sending():
            if own:
                self.tell("begin_snapshot")
            try:
                yield
            except BaseException:
                with contextlib.suppress(psycopg.Error):  # what came first is raised
                    if own:
                        self.tell("rollback")
                raise
            if own:
                self.tell("rollback")

    def tell(self, name: str, *values: Any) -> Statement:
        """Run a named statement; inside a pipeline, without waiting for it."""
        statement = self.sql[name].encode()
        return Statement(self, row_factory=tuple_row).execute(statement, values or None, binary=True, prepare=False)

    def call(self, name: str, *values: Any) -> int | None:
        """The number that a named function returns: the quicker `ask` for the most frequent call, without cursors."""
        number = self.wait(_answer(self.pgconn, self.sql[name].encode(), values)).get_value(0, 0)
        return None if number is None else int.from_bytes(number, signed=True)

    __del__ = object.__hash__  # type: ignore[assignment]
    """Does nothing: libpq's part closes itself, in the process that made it. psycopg would warn, but it is no mistake.

    A function of C, because an interrupt that strikes inside one of Python would be printed and lost.
    """

    def hang_up(self) -> None:
        """Close the connection."""
        super().close()

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        self.check_process()
        before = sys.exc_info()[1]
        given = {} if timeout is None else {"timeout": timeout}  # which older versions do not have
        limited = gen if self.until is None or given else _Limited(gen, self, self.until)
        try:
            return super().wait(limited, interval, **given)
        except UnicodeEncodeError as error:
            raise psycopg.DataError(str(error)) from error
        except BaseException as error:
            with contextlib.suppress(psycopg.Error, RuntimeError):  # else said on stderr, when it is forgotten
                gen.close()
            if not isinstance(error, psycopg.Error):
                raise
            interrupt = _interrupt(error, before)
            if interrupt is not None:
                raise interrupt from error
            if isinstance(error, NoAnswer):
                self.hang_up()  # an answer that comes now has no reader
            if self.cancelled and isinstance(error, psycopg.errors.QueryCanceled):
                raise TookTooLong("the statement was cancelled") from error
            raise

    def look(self, until: float) -> float:
        """Decide whether to wait on. Gives when to look again; raises NoAnswer."""
        if self.cancelled or (time.monotonic() < until and not self.is_alive()):
            raise NoAnswer("the server does not answer")
        if time.monotonic() >= until:
            self.cancelled = True
            with contextlib.suppress(psycopg.Error):  # then no answer comes either
                self.cancel_safe(timeout=CANCEL_S)
            return time.monotonic() + CANCEL_S
        return min(until, time.monotonic() + self.look_after)

    def is_alive(self) -> bool:
        """Whether the server that this is a connection to answers on another one."""
        given = conninfo_to_dict(self.conninfo)
        there: dict[str, Any] = {"host": self.info.host, "port": self.info.port}
        if given.get("hostaddr"):
            there["hostaddr"] = self.info.hostaddr
        try:
            with contextlib.closing(connect(Link, make_conninfo("", **{**given, **there}), self.sql, PING_S)) as other:
                other.until = time.monotonic() + PING_S
                other.tell("ping")
        except psycopg.Error as error:
            return is_full(error)
        except OSError as error:
            return lacks_descriptors(error)  # then nothing is known of the server
        return True

    def roll_back(self) -> None:
        """End the transaction, if one is open, without a trace."""
        if self.pid == os.getpid() and not self.closed and self.in_transaction:
            self.until = time.monotonic() + PING_S  # an interrupt may have left it waiting for what never comes
            with contextlib.suppress(psycopg.Error):  # then the connection is closed when it is returned
                self.tell("rollback")

    def check_process(self) -> None:
        """Raise ClosedError in the child of a fork."""
        if self.pid != os.getpid():
            raise ClosedError("this process was forked inside a transaction; open the vault again")


_ENDS_TRANSACTION: Final = re.compile(
    r"(?:\s|;|--[^\n]*\n|/\*.*?\*/)*"
    r"(ABORT|BEGIN|COMMIT|END|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)|START\s+TRANSACTION)\b",
    re.IGNORECASE | re.DOTALL,
)
"""How statements begin that a block must leave to `connection()`. Those that stand behind others are noticed at its end."""


class Lent(Link):
    """A connection that a user has for one block of `connection()`; it is not used again."""

    torn = False
    """Whether half a save may be in the transaction, which therefore must not be committed."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.cursor_factory = _LentCursor

    def commit(self) -> NoReturn:
        """Raises InvalidInputError: leaving the block commits."""
        raise refused_ending("commit()")

    def rollback(self) -> NoReturn:
        """Raises InvalidInputError: leaving the block by an exception rolls back."""
        raise refused_ending("rollback()")

    def close(self) -> NoReturn:
        """Raises InvalidInputError: it is closed when the block is left."""
        raise refused_ending("close()")


class _LentCursor(psycopg.Cursor[tuple[Any, ...]]):
    def execute(self, query: Query, params: Params | None = None, **options: Any) -> Self:
        if isinstance(query, (str, bytes, Composable)):
            text = query.as_string(self) if isinstance(query, Composable) else query
            found = _ENDS_TRANSACTION.match(text if isinstance(text, str) else text.decode(errors="replace"))
            if found is not None:
                raise refused_ending(found[1].upper())
        return super().execute(query, params, **options)  # type: ignore[arg-type]  # its overloads are one function


class _Limited(Generator[Wait, Ready | int, T]):
    """What psycopg waits for, as long as it may take. Not a function that yields: that could not go on after Ctrl-C."""

    def __init__(self, gen: PQGen[T], link: Link, until: float) -> None:
        self._gen, self._link, self._until = gen, link, until
        self._begun = False
        self._look = min(until, time.monotonic() + link.look_after)

    def send(self, ready: Any) -> Wait:
        """Go on; what is waited for next. After Ctrl-C psycopg sends nothing, which a generator rejects."""
        wanted = self._gen.send(Ready.NONE if ready is None and self._begun else ready)
        self._begun = True
        if time.monotonic() >= self._look:
            self._look = self._link.look(self._until)
        return wanted

    def throw(self, *error: Any) -> Wait:
        """Go on with an error."""
        return self._gen.throw(*error)


def _binary(value: Any) -> bytes | None:
    """A parameter as it travels: integers as `bigint`, which is what functions take. Exact types only."""
    if type(value) is int:
        return value.to_bytes(8, signed=True)
    if type(value) is str:
        return value.encode()
    return (b"\1" if value else b"\0") if type(value) is bool else value


def _answer(pgconn: PGconn, statement: bytes, values: Sequence[Any]) -> PQGen[PGresult]:
    """Send a statement, and read its rows and what follows them: what goes wrong with its commit comes last."""
    given = [_binary(value) for value in values]
    pgconn.send_query_params(statement, given, None, (Format.BINARY,) * len(given), Format.BINARY)
    while pgconn.flush():
        if (yield Wait.RW) in (Ready.R, Ready.RW):
            pgconn.consume_input()
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            break
        results.append(result)
    for result in results:
        if result.status != ExecStatus.TUPLES_OK:
            raise error_from_result(result, encoding="utf-8")
    return results[0]


def connect(kind: type[L], conninfo: str, sql: dict[str, str], limit: Any) -> L:
    """A new connection with these statements."""
    os.close(os.open(os.devnull, os.O_RDONLY))  # OSError without a descriptor, where libpq would say nothing of use
    link = kind.connect(conninfo, autocommit=True, prepare_threshold=None, connect_timeout=limit)
    link.pid, link.conninfo, link.sql = os.getpid(), conninfo, sql
    link.notices = Notices()  # not the link itself: it would keep itself alive
    link.add_notice_handler(link.notices)
    return link


def _interrupt(error: BaseException | None, before: BaseException | None) -> BaseException | None:
    """What interrupted psycopg (Ctrl-C, or a signal handler that raises), if an error came of that: it must not be hidden.

    `before` is what was being handled already when the statement began.
    """
    while isinstance(error, psycopg.Error) and error.__cause__ is None and error is not before:
        error = error.__context__
    return None if error is before or isinstance(error, psycopg.Error) else error
