"""The frozen types that travel between the rooms: what users see, and what stores keep. Touches errors only.

For users: ThreadInfo, Change, Report, Problem, Kind, Status; Checkpoint is in `checkpoint.py`. For stores: ThreadKey,
ThreadRow, Frame, Chain, Record, Lease, Page; there ids are text and everything else is bytes and numbers.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, Generic, NamedTuple, NewType, TypeVar

from savegame.errors import InvalidInputError

CheckpointId = NewType("CheckpointId", str)
Digest = NewType("Digest", str)

MAX_ID: Final = 512
MAX_KIND: Final = 64

T = TypeVar("T")


NEW_ID: Final = "\0new"
"""Where no id is given; no id can be like it. None is not that: a variable that was never set is a mistake."""


def checked_text(value: object, what: str) -> str:
    """Text that is valid Unicode. Raises InvalidInputError."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{what} contains a lone surrogate, which is not valid Unicode") from error
    return str(value)


def checked_id(text: object, what: str, longest: int = MAX_ID) -> str:
    """An id as it was given, if it is safe in every store. Raises InvalidInputError."""
    text = checked_text(text, what)
    if not text:
        raise InvalidInputError(f"{what} must not be empty")
    if len(text) > longest:
        raise InvalidInputError(f"{what} has {len(text)} characters, at most {longest} are allowed")
    if "\0" in text:
        raise InvalidInputError(f"{what} must not contain a NUL character")
    return text


def checked_or_new_id(given: str) -> str:
    """The id of a thread as it was given, or a new one for NEW_ID. Raises InvalidInputError."""
    return str(uuid.uuid4()) if given is NEW_ID else checked_id(given, "a thread's id")


def checked_path(path: object) -> str:
    """A path as text. Raises InvalidInputError."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise InvalidInputError(f"a path is text or a Path, not {path!r}")
    try:
        if b"\0" not in os.fsencode(text):
            return text
    except UnicodeEncodeError:
        pass
    raise InvalidInputError(f"no file can be named {text!r}")


def checked_limit(limit: object) -> int | None:
    """The maximum number of entries in a listing, None for all; never more than stores can count. Raises InvalidInputError."""
    if limit is None:
        return None
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return min(limit, sys.maxsize)
    raise InvalidInputError(f"limit must be a whole number, not negative, or None for all; not {limit!r}")


def checked_number(value: Any, what: str, *, whole: bool = True) -> Any:
    """A number from 0 on that every store can keep. Raises InvalidInputError."""
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise InvalidInputError(f"{what} must be a {'whole ' if whole else ''}number, not {value!r}")
    if not 0 <= value < 2**63:
        raise InvalidInputError(f"{what} must be at least 0 and below 2**63")
    return value


def checked_duration(value: object, what: str) -> dt.timedelta:
    """A timedelta above zero. Raises InvalidInputError."""
    if not isinstance(value, dt.timedelta):
        raise InvalidInputError(f"{what} must be a timedelta, for example timedelta(minutes=5), not {value!r}")
    if value <= dt.timedelta(0):
        raise InvalidInputError(f"{what} must be longer than zero, not {value}")
    return value


class Kind(StrEnum):
    """Why a checkpoint was made: the kinds that mean something to savegame. Any other text is a kind too."""

    MANUAL = "manual"
    AUTOMATIC = "automatic"
    PRE_OPERATION = "pre_operation"
    RECOVERY = "recovery"
    TOOL_CALL = "tool_call"
    LLM_RESPONSE = "llm_response"
    ITERATION = "iteration"

    @classmethod
    def of(cls, value: str) -> str:
        """A kind from its text: one of these where it is one, else the text. Raises InvalidInputError."""
        known = cls._value2member_map_.get(value) if isinstance(value, str) else None
        return known if isinstance(known, Kind) else checked_id(value, "a kind", MAX_KIND)


class Status(str):
    """How far the work of a thread is: `in_progress`, `completed`, `failed(reason)`, `halted(reason)`.

    Equal to its text; two statuses are equal if their reasons are equal too.
    """

    __slots__ = ("reason",)
    NAMES: Final = ("in_progress", "completed", "failed", "halted")
    reason: str | None

    def __new__(cls, name: str, reason: str | None = None) -> Status:
        """From a name and a reason, from `"failed(reason)"`, or from another status."""
        if not isinstance(name, str):
            raise InvalidInputError(f"a status is text, not {type(name).__name__}; one of: {', '.join(cls.NAMES)}")
        if reason is None and str.__str__(name) in _PLAIN_STATUSES and not isinstance(name, Status):
            return _PLAIN_STATUSES[str.__str__(name)]
        if isinstance(name, Status):
            reason = name.reason if reason is None else reason
            name = str.__str__(name)
        match = re.fullmatch(r"(\w+)\((.*)\)", name, re.DOTALL)
        if match and reason is None:
            name, reason = match.groups()
        if name not in cls.NAMES:
            raise InvalidInputError(
                f"status {name!r} is unknown; one of: in_progress, completed, failed(reason), halted(reason)"
            )
        if reason is not None and name in ("in_progress", "completed"):
            raise InvalidInputError(f"status {name!r} has no reason")
        status: Status = super().__new__(cls, name)
        status.reason = reason
        return status

    @classmethod
    def failed(cls, reason: str) -> Status:
        """Ended by an error."""
        return cls("failed", reason)

    @classmethod
    def halted(cls, reason: str) -> Status:
        """Stopped on purpose, for example by a loop detector."""
        return cls("halted", reason)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Status):
            return str.__eq__(self, other) and self.reason == other.reason
        return str.__eq__(self, other) if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Status, (str.__str__(self), self.reason)

    def __repr__(self) -> str:
        name = str.__str__(self)
        return f"{name}({self.reason})" if self.reason is not None else name


IN_PROGRESS: Final = "in_progress"
"""What a save says by itself."""

_PLAIN_STATUSES: dict[str, Status] = {}
_PLAIN_STATUSES.update({name: Status(name) for name in Status.NAMES})
"""Made once: most statuses have no reason."""


class _Missing:
    """The value of a place that is not there."""

    def __repr__(self) -> str:
        return "(nothing)"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()


class Change(NamedTuple):
    """One difference between two states; MISSING stands for a place that one of them does not have."""

    path: tuple[Any, ...]
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread as a listing shows it. If its head is damaged, `damage` says so and nothing but the id is known."""

    id: str
    agent_id: str | None
    head: CheckpointId
    step: int
    checkpoints: int
    """How many `Thread.history(branches=True)` lists: on all branches, without what retention hides."""
    size_bytes: int
    status: Status
    created_at: dt.datetime
    updated_at: dt.datetime
    forked_from: str | None = None
    damage: str | None = None
    child_of: str | None = None
    """The thread of the graph, for that of a subgraph."""

    @classmethod
    def damaged(cls, thread_id: str, damage: str) -> ThreadInfo:
        """A thread that cannot be read."""
        never = dt.datetime.fromtimestamp(0, dt.UTC)
        return cls(thread_id, None, CheckpointId(""), 0, 0, 0, Status("in_progress"), never, never, damage=damage)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that `verify` found wrong."""

    thread_id: str | None
    checkpoint_id: str | None
    place: str
    message: str

    def __str__(self) -> str:
        where = " ".join(part for part in (self.thread_id and f"thread {self.thread_id!r}", self.checkpoint_id) if part)
        return f"{where or 'store'}: {self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` or `repair` found; `repaired` says what repair did about it."""

    problems: tuple[Problem, ...] = ()
    threads: int = 0
    checkpoints: int = 0
    repaired: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything is intact."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok


# -- what stores keep ------------------------------------------------------------------------------


class ThreadKey(NamedTuple):
    """Names a thread everywhere below the vault."""

    namespace: str
    id: str


class Lease(NamedTuple):
    """The right to move the head of a thread. `epoch` fences every write; `expires` is in microseconds by the store's clock."""

    epoch: int
    owner: str
    expires: int


class ThreadRow(NamedTuple):
    """What a store knows of a thread. Without a head it was only leased, has only records, or its head was removed."""

    key: ThreadKey
    agent: str | None
    head: int
    head_id: str | None
    last: int
    floor: int
    frames: int
    lease: Lease | None = None

    def public(self) -> ThreadRow:
        """The row as `Store.thread` returns it: stores remember the epoch of a lease that was released."""
        return self if self.lease is None or self.lease.expires else self._replace(lease=None)

    def fingerprint(self, notes: Iterable[object], records: Iterable[object]) -> bytes:
        """What `Store.fingerprints` returns for a thread, from its row and whatever stands for its notes and records."""
        text = repr((self.agent, self.head_id, self.last, list(notes), list(records)))
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


class Frame(NamedTuple):
    """How a checkpoint is kept. `base` is the frame that the delta applies to (0: none); bytes are opaque to the store."""

    seq: int
    id: str
    base: int
    meta: bytes
    note: bytes | None
    delta: bytes | None
    """None in listings."""


class Chain(NamedTuple):
    """What rebuilds one checkpoint: a keyframe (or none) and the deltas after it, oldest first."""

    keyframe_seq: int
    keyframe: bytes | None
    deltas: list[bytes]


class Record(NamedTuple):
    """A small keyed value beside a thread."""

    kind: str
    name: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a listing, and where the next page begins (None: there is none)."""

    items: list[T]
    next: Any = None


def __getattr__(name: str) -> Any:
    """Pickles of earlier versions name the class Checkpoint, and what stands for a state that is not loaded, here."""
    if name in ("Checkpoint", "_State"):
        return getattr(import_module("savegame.checkpoint"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
