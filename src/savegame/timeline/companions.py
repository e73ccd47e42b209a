"""Records beside a thread: their shapes, and what happens to them when the thread is forked, copied or removed.

A store keeps records as bytes, and its checksums only prove that these bytes were written. Code that acts on a record reads
it here: a wrong shape raises CorruptionError with the thread, the kind and the name. Unknown kinds are decoded without a
check. `policy_of` alone decides, by its kind, what happens to a record. Records of runs have policies here too; their entries
are read by `Engine.above.ledger`. Touches engine, frames, model, errors.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from savegame.encoding.codec import Codec
from savegame.encoding.frames import PLAIN, unwrap
from savegame.errors import CorruptionError
from savegame.model import Record, ThreadKey
from savegame.timeline.engine import Engine

COPIED: Final = "copied"
"""The kind of records that say how far a copy has got; each belongs to one copy."""

ASIDE: Final = "set aside"
"""The kind to which a repair moves records of the wrong shape."""

SPENT: Final = "spent"
"""The kind of the record with the cost of removed checkpoints."""

WRITES: Final = "writes "
"""The start of the kinds of a framework's pending writes; its id of the checkpoint follows."""
LEFT: Final = "left writes "
"""The start of the kinds of pending writes that a rewind undid; the ids of their checkpoint and of its successor follow."""

VECTORS: Final = "memory vectors"
"""The kind of the LangGraph adapter's records with the embeddings of a memory's items."""

CALL: Final = "call"
ANSWER: Final = "answer"
STEP: Final = "step"
SLEPT: Final = "slept"
RUN: Final = "run"
EFFECT: Final = "effect"
"""The kinds of records that runs keep: each tool call, a person's answers, steps, finished sleeps, the rest, and effects whose
call is not here."""

DUE: Final = "due"
INBOX: Final = "inbox"
SENT: Final = "sent"
"""The kinds of records about what a run waits for: the end of its sleep, messages (and a request to stop), and the keys of all
messages ever sent."""

SUBJECT: Final = "subject"
SOURCE: Final = "forked from"
FORK: Final = "forked as"
PARENT: Final = "child of"
CHILD: Final = "parent of"
DELETED: Final = "deleted"
"""The kind of records that keep deleted threads for agents, see `graveyard.py`."""
RESTORED: Final = "restored"
"""The kind of records that name the checkpoint that undoes the restore of a deleted thread."""

MARK: Final = PLAIN + b"\xc3"
"""The value of a subject or link: only its name matters."""


class Way(Enum):
    """Which records of a kind a fork or a copy gets."""

    DROP = auto()
    """Nothing."""
    CARRY = auto()
    """Those of the source; updating a copy also removes what the source no longer has."""
    ADD = auto()
    """Those of the source, in addition to its own."""
    SETTLED = auto()
    """Answers to calls that are settled in the copy."""
    LEDGER = auto()
    """Those that its ledger needs and has no newer version of."""
    SUM = auto()
    """Sums, which `spending` merges."""


class Follow(Enum):
    """Which removals of a thread also remove the threads that it names."""

    NEVER = auto()
    ERASE = auto()
    ALWAYS = auto()
    """Delete and erase."""


class Policy(NamedTuple):
    """What happens to a kind of records. `twin` is the kind of the other half where a record is one half of a link."""

    fork: Way = Way.DROP
    copy: Way = Way.CARRY
    follow: Follow = Follow.NEVER
    twin: str | None = None


_POLICIES: Final = {
    SUBJECT: Policy(fork=Way.CARRY, copy=Way.ADD),
    SOURCE: Policy(copy=Way.ADD, twin=FORK),
    FORK: Policy(copy=Way.ADD, twin=SOURCE, follow=Follow.ERASE),
    PARENT: Policy(copy=Way.ADD, twin=CHILD),
    CHILD: Policy(copy=Way.ADD, twin=PARENT, follow=Follow.ALWAYS),
    CALL: Policy(fork=Way.LEDGER, copy=Way.LEDGER),
    ANSWER: Policy(fork=Way.LEDGER, copy=Way.SETTLED),
    STEP: Policy(fork=Way.LEDGER, copy=Way.LEDGER),
    SLEPT: Policy(fork=Way.LEDGER, copy=Way.LEDGER),
    RUN: Policy(fork=Way.LEDGER, copy=Way.LEDGER),
    DUE: Policy(),
    INBOX: Policy(),
    SENT: Policy(copy=Way.ADD),
    EFFECT: Policy(fork=Way.LEDGER, copy=Way.LEDGER),
    SPENT: Policy(copy=Way.SUM),
    VECTORS: Policy(fork=Way.CARRY),
    COPIED: Policy(copy=Way.DROP),
    ASIDE: Policy(copy=Way.DROP),
    DELETED: Policy(copy=Way.DROP),
    RESTORED: Policy(copy=Way.DROP),
}
"""All kinds but those of users and adapters, which forks drop and copies carry."""


WITH_DELETE: Final = frozenset(kind for kind, policy in _POLICIES.items() if policy.follow is Follow.ALWAYS)
"""The kinds of links to threads that go when a thread is deleted."""
WITH_ERASE: Final = frozenset(kind for kind, policy in _POLICIES.items() if policy.follow is not Follow.NEVER)
"""The kinds of links to threads that go when a thread is erased."""


def policy_of(kind: str) -> Policy:
    """What happens to the records of a kind."""
    return _POLICIES.get(kind, Policy())


def twin_of(kind: str) -> str:
    """The kind of the other half of a link."""
    twin = policy_of(kind).twin
    assert twin is not None, kind
    return twin


def is_checked(engine: Engine, kind: str) -> bool:
    """Whether the shape of a kind is known."""
    return kind in engine.above.ledger.kinds or _shaped(kind) in _SHAPES


def read(engine: Engine, codec: Codec, key: ThreadKey, record: Record) -> Any:
    """The value of a record. Raises CorruptionError if it does not decode or has the wrong shape for its kind."""
    try:
        value = codec.decode(unwrap(record.value)[1])
        _check(engine, codec, record, value)
    except (CorruptionError, ValueError) as error:
        raise CorruptionError(
            f"thread {key.id!r}: record {record.name!r} of kind {record.kind!r} is damaged: {error}; "
            "run repair, which sets it aside",
            thread_id=key.id,
            place=f"record {record.kind} {record.name}",
        ) from error
    return value


def _check(engine: Engine, codec: Codec, record: Record, value: Any) -> None:
    if record.kind in engine.above.ledger.kinds:
        engine.above.ledger.check(codec, record, value)
        return
    fits, what = _SHAPES.get(_shaped(record.kind), (None, ""))
    if fits is not None and not fits(value):
        raise ValueError(f"expected {what}")


def _shaped(kind: str) -> str:
    """The name under which the shape of a kind is listed."""
    return WRITES if kind.startswith((WRITES, LEFT)) else kind


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


def _are_vectors(value: Any) -> bool:
    """An item's key, when it was put, and its vectors by path."""
    if not isinstance(value, list) or list(map(type, value)) != [str, dt.datetime, dict]:
        return False
    return all(isinstance(path, str) and isinstance(vector, bytes) for path, vector in value[2].items())


def _is_due(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and type(value.get("until")) is int


def _is_mail(value: Any) -> bool:
    """A message, or a request to stop the run with an epoch."""
    if not isinstance(value, dict):
        return False
    if "epoch" in value:
        kinds = {"epoch": int, "reason": str, "at": int, "mail": int}
        return all(type(value.get(name)) is kind for name, kind in kinds.items())
    return isinstance(value.get("key"), str) and type(value.get("sent_at")) is int and "content" in value


_SHAPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    COPIED: (_is_mark, "how far a thread was copied"),
    SPENT: (_is_spending, "what removed checkpoints cost"),
    WRITES: (_are_writes, "what a task wrote"),
    VECTORS: (_are_vectors, "the vectors of an item"),
    DUE: (_is_due, "when a sleep ends"),
    INBOX: (_is_mail, "a message"),
}
"""What a record of a kind must look like, and its description."""
