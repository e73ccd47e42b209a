"""Pages of lists: which entries an answer holds, and the cursors (`next`, given back as `after`) by which lists continue.

A cursor is the id or the number of the last entry; conversations, whose order changes, continue after a time and an id.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from itertools import dropwhile, islice
from typing import TypeVar

from pydantic import BaseModel

from savegame.errors import InvalidInputError
from savegame.messages.conversations import ConversationInfo

T = TypeVar("T")
E = TypeVar("E", bound=BaseModel)


def fill_page(items: Iterable[T], limit: int, entry: Callable[[T], E], room: int) -> tuple[list[E], bool]:
    """The first entries, and whether more follow: at most `limit`, as many as fit into `room` characters, at least one."""
    page: list[E] = []
    for item in items:
        new = entry(item)
        room -= len(new.model_dump_json()) + 1
        if len(page) == limit or (page and room < 0):
            return page, True
        page.append(new)
    return page, False


def skip_past(items: Iterator[T], after: str | None, name: Callable[[T], str]) -> Iterator[T]:
    """The items after the one with this name. Raises InvalidInputError if it is not among them."""
    if after is None:
        return items
    rest = dropwhile(lambda item: name(item) != after, items)
    if not list(islice(rest, 1)):
        raise InvalidInputError(f"after: {after!r} is no longer in the list; start again without it")
    return rest


def skip_newer(items: Iterator[ConversationInfo], after: str | None) -> Iterator[ConversationInfo]:
    """The items after a place in a list sorted by time, even if the one at that place has moved."""
    if after is None:
        return items
    time, _, last = after.partition(" ")
    try:
        moment = dt.datetime.fromisoformat(time)
    except ValueError as error:
        raise _unknown_cursor(after) from error
    if moment.tzinfo is None:
        raise _unknown_cursor(after)
    return (info for info in items if info.last_message_at < moment or (info.last_message_at == moment and info.id > last))


def parse_number(after: str | None) -> int:
    """A cursor that is the number of entries before it; 0 without a cursor."""
    if after is None:
        return 0
    if not after.isdecimal() or len(after) > 18:
        raise _unknown_cursor(after)
    return int(after)


def _unknown_cursor(after: str) -> InvalidInputError:
    return InvalidInputError(f"after: {after!r} is not the next of an earlier answer; start again without it")
