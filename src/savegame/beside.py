"""What records beside a thread say, decoded and checked in one place. Touches runs.ledger, codec, frames, model, errors.

A store keeps records as bytes, and its checksums say only that these are the bytes that were written. Code that acts on a
record reads it here: a wrong shape raises CorruptionError with the thread, the kind and the name. Unknown kinds are decoded
without a check.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from savegame.codec import Codec
from savegame.errors import CorruptionError
from savegame.frames import unwrap
from savegame.model import Record, ThreadKey
from savegame.runs import ledger

COPIED: Final = "copied"
"""The kind of records by which a copy knows what it has; they belong to that one copy, and are neither copied nor exported."""

ASIDE: Final = "set aside"
"""The kind to which a repair moves records of the wrong shape; neither copied nor exported."""

STAY: Final = frozenset((COPIED, ASIDE))
"""Kinds that describe this store: neither copied, exported nor imported."""

SPENT: Final = "spent"
"""The kind of the record that keeps what removed checkpoints cost; copies add it up in a way of their own."""

WRITES: Final = "writes "
"""The start of the kinds of the LangGraph adapter's pending writes; the checkpoint's id follows."""


def is_checked(kind: str) -> bool:
    """Whether the shape of a kind is known."""
    return kind in ledger.LEDGER or kind in (COPIED, SPENT) or kind.startswith(WRITES)


def read(codec: Codec, key: ThreadKey, record: Record) -> Any:
    """The value of a record. Raises CorruptionError if it does not decode or has the wrong shape for its kind."""
    try:
        value = codec.decode(unwrap(record.value)[1])
        _check(codec, record.kind, record.name, value)
    except (CorruptionError, ValueError) as error:
        raise CorruptionError(
            f"thread {key.id!r}: record {record.name!r} of kind {record.kind!r} is damaged: {error}; "
            "run repair, which sets it aside",
            thread_id=key.id,
            place=f"record {record.kind} {record.name}",
        ) from error
    return value


def _check(codec: Codec, kind: str, name: str, value: Any) -> None:
    if kind in ledger.LEDGER:
        ledger.check(kind, name, value, codec.encode)
    elif kind == COPIED and not _is_mark(value):
        raise ValueError("expected how far a thread was copied")
    elif kind == SPENT and not _is_spending(value):
        raise ValueError("expected what removed checkpoints cost")
    elif kind.startswith(WRITES) and not _are_writes(value):
        raise ValueError("expected what a task wrote")


def _is_mark(value: Any) -> bool:
    kinds = (bytes, int, str | None, int, str | None)
    return isinstance(value, list) and len(value) >= 5 and all(isinstance(*pair) for pair in zip(value, kinds, strict=False))


def _is_spending(value: Any) -> bool:
    """Rows of an agent's id, a date, tokens, cost, and the times of the first and the last checkpoint."""
    kinds = (str | None, str, int, float, int, int)
    if not isinstance(value, list):
        return False
    rows = [row for row in value if isinstance(row, list) and len(row) == 6 and all(map(isinstance, row, kinds))]
    for row in rows:
        dt.date.fromisoformat(row[1])
    return len(rows) == len(value)


def _are_writes(value: Any) -> bool:
    """A task's id, its path, and a list of writes: number, channel, value."""
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
        return False
    writes = all(isinstance(one, list) and len(one) == 3 and list(map(type, one[:2])) == [int, str] for one in value[2])
    return writes and all(isinstance(text, str) for text in value[:2])
