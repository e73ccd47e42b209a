"""A value as a tree that is opened step by step, and two values side by side. Pure; touches codec, model.

A place in a value is told by the numbers of the children on the way to it, `0.12.3`: keys may be anything, and need not be
put into addresses.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from savegame.codec import format_path
from savegame.errors import InvalidInputError
from savegame.model import MISSING, Change
from savegame.web.shown import MOST_TEXT, plain

PAGE: Final = 100
"""Children that are shown at once."""

OPENED: Final = 12
"""Containers with at most so many children are shown open at the top."""

MOST_COMPARED: Final = 2_000
"""Characters of two texts up to which the changed words are marked."""


class Branch(NamedTuple):
    """A value in a tree: `children` are there if it is shown open, `size` tells how many it has; None for a leaf."""

    name: str
    place: str
    kind: str
    text: str
    size: int | None = None
    children: list[Branch] | None = None


class Piece(NamedTuple):
    """A piece of a text, and whether it differs from the other side."""

    text: str
    marked: bool


class Difference(NamedTuple):
    """One change: `old` or `new` is None where there is nothing."""

    kind: str
    path: str
    old: list[Piece] | None
    new: list[Piece] | None


def at_place(value: Any, place: str) -> Any:
    """The value at a place. Raises InvalidInputError if there is none."""
    for step in place.split(".") if place else []:
        children = list(_children(value)) if _count(value) is not None else []
        if not step.isascii() or not step.isdecimal() or int(step) >= len(children):
            raise InvalidInputError(f"the state has no place {place!r}; reload the page")
        value = children[int(step)][1]
    return value


def branches(value: Any, place: str = "", first: int = 0, *, depth: int = 0) -> list[Branch]:
    """The children of a value from a number on, a page at most; down to `depth`, small containers are open."""
    shown = islice(enumerate(_children(value)), first, first + PAGE)
    return [_branch(name, child, f"{place}.{number}" if place else str(number), depth) for number, (name, child) in shown]


def count_of(value: Any) -> int:
    """How many children a value has."""
    return _count(value) or 0


def differences(changes: list[Change]) -> list[Difference]:
    """Changes for people, with the words marked that changed inside a text."""
    return [_difference(change) for change in changes]


def _branch(name: str, value: Any, place: str, depth: int) -> Branch:
    count = _count(value)
    if count is None:
        return Branch(name, place, _kind(value), _text(value))
    children = branches(value, place, depth=depth - 1) if depth and count <= OPENED else None
    return Branch(name, place, _kind(value), "", count, children)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((key if isinstance(key, str) else repr(key), child) for key, child in value.items())
    elif dataclasses.is_dataclass(value):
        yield from ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
    else:
        yield from ((str(number), child) for number, child in enumerate(value))


def _count(value: Any) -> int | None:
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return len(value)
    return len(dataclasses.fields(value)) if dataclasses.is_dataclass(value) and not isinstance(value, type) else None


def _text(value: Any) -> str:
    """Containers, truth values and bytes as JSON shows them, anything else as it is written."""
    return plain(value if _count(value) is not None or isinstance(value, (bool, bytes)) else str(value))


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _difference(change: Change) -> Difference:
    path = format_path(change.path) or "(the state)"
    if change.old is MISSING:
        return Difference("added", path, None, [Piece(_text(change.new), marked=False)])
    if change.new is MISSING:
        return Difference("removed", path, [Piece(_text(change.old), marked=False)], None)
    old, new = _text(change.old), _text(change.new)
    if max(len(old), len(new)) > min(MOST_COMPARED, MOST_TEXT):
        return Difference("changed", path, [Piece(old, marked=False)], [Piece(new, marked=False)])
    return Difference("changed", path, *_marked(old, new))


def _marked(old: str, new: str) -> tuple[list[Piece], list[Piece]]:
    left, right = _words(old), _words(new)
    before: list[Piece] = []
    after: list[Piece] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        before += [Piece("".join(left[a:b]), kind != "equal")] if b > a else []
        after += [Piece("".join(right[c:d]), kind != "equal")] if d > c else []
    return before, after


def _words(text: str) -> list[str]:
    """A text in pieces: words, and what stands between them."""
    pieces: list[str] = []
    for character in text:
        if pieces and character.isalnum() and pieces[-1][-1].isalnum():
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces
