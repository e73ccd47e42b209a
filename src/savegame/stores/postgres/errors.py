"""What PostgreSQL's errors mean: whether the connection is gone, whether to try again, and which error of ours to raise.

Libpq has no code for a connection that was refused, so those are recognised by their text. Touches refusals and errors.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from savegame.errors import (
    CorruptionError,
    InvalidInputError,
    OutOfSpace,
    SavegameError,
    StoreNotFound,
    TransactionFailed,
    UnavailableError,
    UnsupportedError,
)
from savegame.stores.refusals import ended_inside

SHUT_DOWN: Final = frozenset(("57P01", "57P02", "57P03", "57P05", "25P03", "25P04"))
"""A session that was ended: by an administrator, or by a limit to how long it may idle or a transaction may take."""

NOT_DONE: Final = frozenset(("25006", "40001", "40P01", "53300"))
"""Read-only, a clash with another transaction, too many connections: nothing happened, a retry may work."""

ENDED: Final = frozenset(("3B001", "25P01"))
"""No such savepoint, no transaction: the user of the connection ended the transaction that it was lent in."""

SPOILT: Final = ("22", "23", "42", "44", "P0")
"""What a constraint or a trigger that was put off until the end says: trying again does not help."""

_GRANTS: Final = (
    "a right is missing; as the owner: GRANT USAGE ON SCHEMA s TO u; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN "
    "SCHEMA s TO u; GRANT USAGE ON ALL SEQUENCES IN SCHEMA s TO u (s: the schema, u: the user); for tables that come later, as "
    "who makes them: ALTER DEFAULT PRIVILEGES IN SCHEMA s GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO u"
)
_READ_ONLY: Final = (
    "the server takes no writes (a standby?); name the primary, or all servers as host1,host2, or open with read_only=True"
)
_FULL: Final = "the server has no connection left; raise max_connections, or put PgBouncer in front of it"
_FOREIGN: Final = "these tables are not savegame's; nothing was changed, name another schema with schema="
_TAKEN: Final = "the row of a thread does not count all of its frames; run verify, then repair"
_LATE: Final = (
    "it took longer than deadline= allows and was cancelled: nothing was written; allow more, or see who holds a lock"
)
_FAILED: Final = (
    "a statement in the transaction had failed, and its error was caught: nothing of the transaction was written; let the "
    "error out of the block, or undo the statement with a savepoint"
)
_REFUSED: Final[list[tuple[str, type[SavegameError], str]]] = [
    (
        r"authentication failed|no password supplied|role .* does not exist",
        UnavailableError,
        "the user or password is not right; check the URL, or ~/.pgpass",
    ),
    (r"database .* does not exist", StoreNotFound, "there is no such database; make it with createdb, or name another"),
    (r"no pg_hba\.conf entry", UnavailableError, "the server's pg_hba.conf does not let this user in from here; add a line"),
    (r"permission denied for database", UnavailableError, "the right to connect is missing: GRANT CONNECT ON DATABASE d TO u"),
]
_CODES: Final[list[tuple[str, type[SavegameError], str]]] = [
    ("42501", UnavailableError, _GRANTS),
    ("25006", UnavailableError, _READ_ONLY),
    ("53100", OutOfSpace, "the server's disk is full: nothing was saved; make room and try again"),
    ("53300", UnavailableError, _FULL),
    ("53", UnavailableError, "the server is short of something; try again"),
    ("57014", UnavailableError, "the server cancelled the statement, perhaps by its statement_timeout; try again"),
    ("57", UnavailableError, "the server was stopped or is starting; try again"),
    ("55P03", UnavailableError, "another session holds a lock for too long; retry"),
    ("40", UnavailableError, "others keep writing the same rows; try again"),
    ("54000", InvalidInputError, "a name is too long: namespace, thread, kind and name of a record have 2,600 bytes together"),
    ("22021", InvalidInputError, "a text holds a character that PostgreSQL cannot keep"),
    ("22P05", InvalidInputError, "a text holds a character that PostgreSQL cannot keep"),
    ("42P06", UnsupportedError, _FOREIGN),
    ("42P07", UnsupportedError, _FOREIGN),
    ("42710", UnsupportedError, _FOREIGN),
    ("42723", UnsupportedError, _FOREIGN),
    ("42P01", CorruptionError, "the tables are not those of savegame; restore a backup, or name another schema"),
    ("42703", CorruptionError, "the tables are not those of savegame; restore a backup, or name another schema"),
    ("42883", CorruptionError, "the functions are not those of savegame; restore a backup, or name another schema"),
    ("XX001", CorruptionError, "the server found damaged data; restore a backup"),
    ("XX002", CorruptionError, "the server found a damaged index; REINDEX it, then run verify"),
    ("58", UnavailableError, "the server could not read or write its files; look into its log"),
    ("0A000", UnsupportedError, "the server cannot do that"),
]


class NoAnswer(psycopg.OperationalError):
    """No answer comes on a connection, which is therefore given up."""


class TookTooLong(psycopg.errors.QueryCanceled):
    """The server cancelled a statement because we asked it to: nothing of it was done."""


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone: what was under way on it may have happened or not."""
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code in SHUT_DOWN or code.startswith("08")


def is_refused(error: psycopg.Error) -> bool:
    """Whether a connection was refused for good: waiting does not help."""
    return error.sqlstate is None and _refusal(str(error)) is not None


def is_full(error: psycopg.Error) -> bool:
    """Whether a server, or a PgBouncer, is there but has no connection left."""
    pattern = r"too many (clients|connections)|connection slots are reserved|no more connections allowed"
    return error.sqlstate == "53300" or re.search(pattern, str(error)) is not None


def may_work_later(error: psycopg.Error) -> bool:
    """Whether to try again: on another connection, perhaps to another server."""
    return (is_lost(error) and not is_refused(error)) or error.sqlstate in NOT_DONE


def translate(error: psycopg.Error, where: str) -> SavegameError:
    """Our error for one of PostgreSQL's."""
    text = " ".join(str(error).split())
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return InvalidInputError(f"{where}: a text holds what PostgreSQL cannot keep ({text})")
    if is_lost(error):
        kind, advice = _refusal(text) or (UnavailableError, "there is no answer; check that the server runs, then try again")
        if "read-only" in text or "hot standby" in text:
            advice = _READ_ONLY
        if is_full(error):
            advice = _FULL
        return kind(f"{where}: {advice} (PostgreSQL: {text})")
    if isinstance(error, TookTooLong):
        return UnavailableError(f"{where}: {_LATE}")
    if isinstance(error, psycopg.errors.UniqueViolation) and error.diag.constraint_name == "frame_pkey":
        return CorruptionError(f"{where}: {_TAKEN} (PostgreSQL: {text})")
    if error.sqlstate in ENDED:
        return ended_inside()
    if isinstance(error, psycopg.errors.InFailedSqlTransaction):
        return TransactionFailed(_FAILED)
    for code, ours, advice in _CODES:
        if error.sqlstate is not None and error.sqlstate.startswith(code):
            return ours(f"{where}: {advice} (PostgreSQL: {text})")
    return UnavailableError(f"{where}: PostgreSQL refused it: {text}")


def spoilt(error: psycopg.Error, where: str) -> SavegameError:
    """Our error for one that came when a block of `connection()` was to be committed."""
    ours = translate(error, where)
    if not isinstance(ours, TransactionFailed) and (error.sqlstate or "").startswith(SPOILT):
        text = " ".join(str(error).split())
        return TransactionFailed(f"PostgreSQL refused the transaction: nothing of it was written ({text})")
    return ours


def refused_inside(error: psycopg.Error, where: str) -> SavegameError:
    """Our error for one that a save inside a block of `connection()` met."""
    if not isinstance(error, (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)):
        return translate(error, where)
    return TransactionFailed(
        f"a save inside the block of connection() was refused, and undone; if the block has changed its role or made the "
        f"transaction read-only, change that back first (PostgreSQL: {' '.join(str(error).split())})"
    )


def _refusal(text: str) -> tuple[type[SavegameError], str] | None:
    return next(((ours, advice) for pattern, ours, advice in _REFUSED if re.search(pattern, text)), None)
