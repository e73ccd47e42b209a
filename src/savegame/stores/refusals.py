"""How stores refuse: one wording each, naming the thing and the next step. Touches store, model and errors.

A contract test compares the wording on every store (`testing/contract/refusals.py`), so a store never words a refusal itself.
The functions return errors and raise none.
"""

from __future__ import annotations

from collections.abc import Sequence

from savegame.errors import (
    Busy,
    CheckpointNotFound,
    ConflictError,
    Fenced,
    InvalidInputError,
    ThreadNotFound,
    TransactionFailed,
    UnavailableError,
    UnsupportedError,
)
from savegame.model import Lease, ThreadKey
from savegame.store import Append, StoreChange


def busy(key: ThreadKey, lease: Lease) -> Busy:
    """The thread is leased to another run."""
    return Busy(f"thread {key.id!r} is leased to {lease.owner!r} (epoch {lease.epoch}); wait until that run ends, then retry")


def fenced(key: ThreadKey, epoch: int) -> Fenced:
    """The epoch is not that of the newest lease."""
    return Fenced(f"thread {key.id!r}: the lease with epoch {epoch} was released or taken over; stop this run")


def head_moved(key: ThreadKey, expected: str | None, found: str | None) -> ConflictError:
    """The head is another one than expected."""
    return ConflictError(
        f"thread {key.id!r}: the head is {found or '(none)'}, expected {expected or '(none)'}; read it again and retry",
        expected=expected,
        found=found,
    )


def no_thread(key: ThreadKey) -> ThreadNotFound:
    """The thread has no frames."""
    return ThreadNotFound(f"thread {key.id!r} has no checkpoints; list threads with vault.threads()")


def no_checkpoint(key: ThreadKey, seq: int, wanted: str | None = None) -> CheckpointNotFound:
    """A thread has no frame with this number, or not the one with the id that is `wanted`."""
    name = f"number {seq}" if wanted is None else f"{wanted} at number {seq}"
    return CheckpointNotFound(f"thread {key.id!r} has no checkpoint {name}; list them with thread.history()")


def read_only(place: str) -> UnsupportedError:
    """A write to a store that was opened for reading."""
    return UnsupportedError(f"{place}: opened with read_only=True; open it for writing to change it")


def newer_format(place: str, version: int, newest: int) -> UnsupportedError:
    """A store written by a newer savegame."""
    return UnsupportedError(
        f"{place}: has format {version}, this savegame knows up to {newest}; nothing was changed, install a newer savegame"
    )


def write_inside(place: str) -> UnavailableError:
    """A write that interrupted a write of the same Python thread: it would wait for itself, or mix with it."""
    return UnavailableError(
        f"{place}: a write inside a write, by a signal handler or a finaliser; nothing was written: "
        f"let the handler set a flag, and save when the first is done"
    )


def refused_ending(verb: str) -> InvalidInputError:
    """A block of `connection()` tried to end its transaction. Models may read this: it names no place."""
    return InvalidInputError(
        f"{verb} inside the block of connection() was refused: leave COMMIT and ROLLBACK to the block, and use savepoints, or "
        f"another connection() inside it, to undo a part"
    )


def ended_inside() -> TransactionFailed:
    """A block of `connection()` has ended its transaction. Models may read this: it names no place."""
    return TransactionFailed(
        "the transaction was ended inside the block of connection(): a part of what was done there may have been kept; find "
        "out, and leave COMMIT and ROLLBACK to the block",
        unknown=True,
    )


def unknown_outcome(error: Exception, changes: Sequence[StoreChange]) -> UnavailableError:
    """A write may have happened or not: how to find out."""
    appended = next((change for change in changes if isinstance(change, Append)), None)
    if appended is None:
        return UnavailableError(f"{error}; the write may or may not have happened: read it back", unknown=True)
    return UnavailableError(
        f"{error}; look for it with vault.find({appended.id!r}), or save again with id={appended.id!r}, which is safe",
        unknown=True,
        checkpoint_id=appended.id,
    )
