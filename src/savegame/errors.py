"""The error tree, grouped by what the person who catches an error does next.

SavegameError
├── NotFoundError           ask for something else          CheckpointNotFound, ThreadNotFound, StoreNotFound
├── AlreadyExistsError      choose another name
├── ConflictError           re-read, then try again         Busy, Fenced
├── OutcomeError            ask or look before going on     Unknown, Paused, Stopped, UndoFailed, UndoUnfinished
├── UnavailableError        wait, make room, then retry     OutOfSpace
├── CorruptionError         stop; run verify
├── UnsupportedError        upgrade, or use another store
├── InvalidInputError       fix the call                    InvalidState, TransactionFailed
└── ClosedError             open it first

`kind` is a stable code and append-only; `exit_code` and `http_status` are what the command line and the web page answer with.
"""

from __future__ import annotations

import datetime as dt
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

TOO_MANY_FILES: Final = "too many open files; close some, or raise the limit with ulimit -n"


class SavegameError(Exception):
    """Base of all errors that savegame raises on purpose."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500


class NotFoundError(SavegameError, LookupError):
    """It does not exist: ask for something else."""

    kind = "not-found"
    exit_code = 3
    http_status = 404


class CheckpointNotFound(NotFoundError):
    """No checkpoint has that id, prefix, label, step or time."""

    kind = "checkpoint-not-found"


class ThreadNotFound(NotFoundError):
    """The thread has no checkpoint, so it does not exist."""

    kind = "thread-not-found"


class StoreNotFound(NotFoundError):
    """There is no vault at that address, or no store for its scheme."""

    kind = "store-not-found"


class AlreadyExistsError(SavegameError):
    """The name or id is already taken: choose another."""

    kind = "already-exists"
    exit_code = 4
    http_status = 409


class ConflictError(SavegameError):
    """Another writer moved the head first: re-read, then try again. `expected` and `found` are checkpoint ids."""

    kind = "conflict"
    exit_code = 5
    http_status = 409

    def __init__(self, message: str, *, expected: str | None = None, found: str | None = None) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found


class Busy(ConflictError):
    """Another process holds the lease on this thread: wait until its run ends."""

    kind = "busy"


class Fenced(ConflictError):
    """Another process has taken over the lease: stop, nothing can be written under the old one."""

    kind = "fenced"


class OutcomeError(SavegameError):
    """A run cannot continue: ask or look first. `call` is the ledger's entry of the call that it is about, if any."""

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
    """A call waits for a person's answer; or the run sleeps, then `call` is None and `until` says for how long."""

    kind = "paused"

    def __init__(self, message: str, *, call: Any = None, until: dt.datetime | None = None) -> None:
        super().__init__(message, call=call)
        self.until = until


class Stopped(OutcomeError):
    """The run was stopped from outside, for a `reason`: the thread is halted until the next message."""

    kind = "stopped"
    exit_code = 11

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class UndoFailed(OutcomeError):
    """Taking a call back failed: see why, then undo again. `undone` was taken back, `left` not yet; `call` is the undo."""

    kind = "undo-failed"

    def __init__(self, message: str, *, call: Any = None, undone: tuple[Any, ...] = (), left: tuple[Any, ...] = ()) -> None:
        super().__init__(message, call=call)
        self.undone = undone
        self.left = left


class UndoUnfinished(OutcomeError):
    """An undo on this thread is not finished: undo to the same checkpoint again. `to` is its id."""

    kind = "undo-unfinished"

    def __init__(self, message: str, *, to: str = "") -> None:
        super().__init__(message)
        self.to = to


class UnavailableError(SavegameError):
    """The store does not answer now: wait and retry. With `unknown`, the write may have happened: look for `checkpoint_id`."""

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
    """Stored data is damaged and was not returned. `newest_sound` is the newest checkpoint that still loads."""

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
    """This store, format version or installation does not support it: upgrade, or use another."""

    kind = "unsupported"
    exit_code = 9
    http_status = 501


class InvalidInputError(SavegameError, ValueError):
    """The call is wrong: fix it. If a model's reply is wrong, `reply` is what the model's function returned."""

    kind = "invalid-input"
    exit_code = 2
    http_status = 400
    reply: Any = None


class InvalidState(InvalidInputError):
    """A state contains a value that cannot be stored, at `path`."""

    kind = "invalid-state"

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class TransactionFailed(InvalidInputError):
    """A block of `connection()` broke its own transaction, and nothing of it was saved.

    With `unknown`, the block ended the transaction itself, and a part may have been committed: look.
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
    """Whether an error means too many open files. An ImportError only has it in its message."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return isinstance(error, ImportError) and os.strerror(errno.EMFILE) in str(error)


def of_system(error: OSError, what: str, advice: str) -> SavegameError:
    """Our error for an OSError, about `what`: OutOfSpace for a full disk, otherwise UnavailableError."""
    if lacks_descriptors(error):
        advice = TOO_MANY_FILES
    kind = OutOfSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
    return kind(f"{what} ({error.strerror}); {advice}")


@contextmanager
def needs_descriptors(what: str) -> Iterator[None]:
    """Raise UnavailableError about `what` if the block fails because of too many open files, even in an import."""
    try:
        yield
    except (OSError, ImportError) as error:
        if not lacks_descriptors(error):
            raise
        raise UnavailableError(f"{what}: {TOO_MANY_FILES}") from error
