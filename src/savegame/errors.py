"""The whole error tree, grouped by what the person catching an error does next. Touches nothing.

SavegameError
├── NotFoundError           ask for something else          CheckpointNotFound, ThreadNotFound, StoreNotFound
├── AlreadyExistsError      choose another name
├── ConflictError           re-read, then try again         Busy, Fenced
├── OutcomeError            ask or look before going on     Unknown, Paused
├── UnavailableError        wait, make room, then retry     OutOfSpace
├── CorruptionError         stop; run verify
├── UnsupportedError        upgrade, or use another store
├── InvalidInputError       fix the call                    InvalidState, TransactionFailed
└── ClosedError             open it first

`kind` is a stable code and append-only; `exit_code` and `http_status` are what the command line and the web page answer with.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

TOO_MANY_FILES: Final = "too many files are open; close some, or raise the limit with ulimit -n"


class SavegameError(Exception):
    """Base of everything that savegame raises on purpose."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500


class NotFoundError(SavegameError, LookupError):
    """There is no such thing: ask for something else."""

    kind = "not-found"
    exit_code = 3
    http_status = 404


class CheckpointNotFound(NotFoundError):
    """No checkpoint answers to that id, prefix, label, step or time."""

    kind = "checkpoint-not-found"


class ThreadNotFound(NotFoundError):
    """The thread has no checkpoint, so it does not exist."""

    kind = "thread-not-found"


class StoreNotFound(NotFoundError):
    """Nothing is stored at that address, or no store speaks its scheme."""

    kind = "store-not-found"


class AlreadyExistsError(SavegameError):
    """The name or id is taken by something else: choose another."""

    kind = "already-exists"
    exit_code = 4
    http_status = 409


class ConflictError(SavegameError):
    """Somebody moved the head first: re-read, then try again. `expected` and `found` are checkpoint ids."""

    kind = "conflict"
    exit_code = 5
    http_status = 409

    def __init__(self, message: str, *, expected: str | None = None, found: str | None = None) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found


class Busy(ConflictError):
    """Somebody else holds the lease on this thread: wait for the end of its run."""

    kind = "busy"


class Fenced(ConflictError):
    """The lease was lost to somebody else: stop, nothing more can be written under it."""

    kind = "fenced"


class OutcomeError(SavegameError):
    """A call cannot simply go on: ask or look first. `call` is its entry in the ledger."""

    kind = "outcome"
    exit_code = 6
    http_status = 409

    def __init__(self, message: str, *, call: Any = None) -> None:
        super().__init__(message)
        self.call = call


class Unknown(OutcomeError):
    """An effect may or may not have happened: find out, then resolve it."""

    kind = "unknown"


class Paused(OutcomeError):
    """A call waits for a person's answer."""

    kind = "paused"


class UnavailableError(SavegameError):
    """The store cannot answer now: wait and retry. With `unknown`, the write may have happened: look for `checkpoint_id`."""

    kind = "unavailable"
    exit_code = 7
    http_status = 503

    def __init__(self, message: str, *, unknown: bool = False, checkpoint_id: str | None = None) -> None:
        super().__init__(message)
        self.unknown = unknown
        self.checkpoint_id = checkpoint_id


class OutOfSpace(UnavailableError):
    """The disk is full: nothing was saved; make room, then retry."""

    kind = "out-of-space"


class CorruptionError(SavegameError):
    """Stored bytes are damaged and were not returned. `newest_sound` is the newest checkpoint that still loads."""

    kind = "corruption"
    exit_code = 8
    http_status = 500

    def __init__(
        self,
        message: str,
        *,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
        place: str | None = None,
        seq: int | None = None,
    ) -> None:
        super().__init__(message)
        self.seq = seq
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.place = place
        self.newest_sound: Any = None


class UnsupportedError(SavegameError):
    """This store, format version or installation cannot do that: upgrade, or use another."""

    kind = "unsupported"
    exit_code = 9
    http_status = 501


class InvalidInputError(SavegameError, ValueError):
    """The call itself is wrong: fix it. If it is about a model's reply, `reply` is what the model's function returned."""

    kind = "invalid-input"
    exit_code = 2
    http_status = 400
    reply: Any = None


class InvalidState(InvalidInputError):
    """A state holds something that cannot be kept; `path` names the place."""

    kind = "invalid-state"

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class TransactionFailed(InvalidInputError):
    """A block of `connection()` spoilt its own transaction: nothing of it is kept.

    With `unknown`, the block ended the transaction itself, so that a part of it may have been committed: look.
    """

    kind = "transaction-failed"

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


class ClosedError(SavegameError):
    """The vault was closed: open it again."""

    kind = "closed"
    exit_code = 10
    http_status = 503


def lacks_descriptors(error: Exception) -> bool:
    """Whether something failed because too many files are open. An ImportError only says so in its message."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return isinstance(error, ImportError) and os.strerror(errno.EMFILE) in str(error)


def of_system(error: OSError, what: str, advice: str) -> SavegameError:
    """Our error for one of the system's, about `what` failed: OutOfSpace for a full disk, else UnavailableError."""
    if lacks_descriptors(error):
        advice = TOO_MANY_FILES
    kind = OutOfSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
    return kind(f"{what} ({error.strerror}); {advice}")


@contextmanager
def needs_descriptors(what: str) -> Iterator[None]:
    """Raise UnavailableError about `what` if it fails because too many files are open; importing modules opens some, too."""
    try:
        yield
    except (OSError, ImportError) as error:
        if not lacks_descriptors(error):
            raise
        raise UnavailableError(f"{what}: {TOO_MANY_FILES}") from error
