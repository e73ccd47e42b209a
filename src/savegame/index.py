"""The Index contract: the words of messages beside a store, so that they are found quickly.

An index is derived: everything in it can be made again from the store, so it may be dropped at any time, and is when it
is damaged. It keeps, for each thread, the messages of one checkpoint. What a message is, and when an index is behind its
store, is for `search.py`. Touches words, model and errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from savegame.encoding.words import Term
from savegame.errors import CorruptionError
from savegame.model import ThreadKey

PLACE: Final = "search index"


def damaged(path: str | None, why: object) -> CorruptionError:
    """The error for an index that must be rebuilt."""
    return CorruptionError(f"{path or 'memory'}: the search index is damaged ({why}); drop it", place=PLACE)


class Said(NamedTuple):
    """A message as an index keeps it."""

    role: str | None
    text: str


class Entry(NamedTuple):
    """What is indexed of a thread: the messages at one checkpoint, which was made at `updated_us`."""

    key: ThreadKey
    head: str
    agent: str | None
    updated_us: int
    messages: Sequence[Said]


class Found(NamedTuple):
    """A thread that was found, with its best message (counted from 0) and how many matched."""

    thread_id: str
    agent_id: str | None
    head: str
    message: int
    role: str | None
    text: str
    score: float
    matches: int


class Rearranged(NamedTuple):
    """How a list of messages becomes another: numbers with their new places, places of what is new, numbers of what is left."""

    moved: list[tuple[int, int]]
    new: list[int]
    left: list[int]


def rearranged(there: Iterable[tuple[int, int, Hashable]], wanted: Sequence[Hashable]) -> Rearranged:
    """What to do so that `wanted` are there, given what is: numbers, places and messages, or something that stands for them.

    What is there already only moves to its place.
    """
    free: dict[Hashable, deque[tuple[int, int]]] = {}
    for number, place, message in there:
        free.setdefault(message, deque()).append((number, place))
    found = Rearranged([], [], [])
    for place, message in enumerate(wanted):
        if not free.get(message):
            found.new.append(place)
            continue
        number, before = free[message].popleft()
        if before != place:
            found.moved.append((number, place))
    found.left.extend(number for places in free.values() for number, _ in places)
    return found


class Index(ABC):
    """Finds threads by the words of their messages. May be shared between threads, and by several processes.

    Every verb raises CorruptionError with the place `PLACE` if the index must be dropped and rebuilt.
    """

    @abstractmethod
    def heads(self, namespace: str, *, agent: str | None = None) -> dict[str, str]:
        """The threads that are indexed, each with the id of the checkpoint it was indexed at."""

    @abstractmethod
    def put(self, entries: Iterable[Entry]) -> None:
        """Replace threads in the index, all or none; only messages that differ are written."""

    @abstractmethod
    def forget(self, heads: Mapping[ThreadKey, str | None]) -> None:
        """Remove threads, except those that were indexed at the head that is given for them; their bytes leave every file.

        An index that is damaged is dropped; one that was never made is not made now.
        """

    @abstractmethod
    def find(self, namespace: str, terms: Sequence[Term], *, agent: str | None = None, limit: int = 20) -> list[Found]:
        """Threads with a message that has every term, best first, newer first among equals. Higher scores are better."""

    @abstractmethod
    def contains(self, namespace: str, text: str, *, agent: str | None = None, limit: int = 20) -> list[Found]:
        """Threads with a message that has this text somewhere, whatever the case, newest first; reads no more than it needs."""

    @abstractmethod
    def size(self) -> int:
        """How many bytes it takes; 0 if there is none."""

    @abstractmethod
    def drop(self) -> None:
        """Remove all of it; the next `put` creates it again."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held in memory. A second call does nothing."""
