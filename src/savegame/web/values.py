"""A value as a tree that is opened step by step, and two values side by side. Pure; touches codec, showing, model.

A place in a value is told by the numbers of the children on the way to it, `0.12.3`: keys may be anything, and need not be
put into addresses.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from savegame.encoding.codec import format_path
from savegame.encoding.text import key_text, written
from savegame.errors import InvalidInputError
from savegame.model import MISSING, Change
from savegame.web.shown import clipped, plain

PAGE: Final = 100
"""Children that are shown at once."""

OPENED: Final = 12
"""Containers with at most so many children are shown open at the top."""

MOST_COMPARED: Final = 20_000
"""Pairs of equal words in two texts up to which the changed words are marked: what finding them costs."""

MOST_ON_A_PAGE: Final = 100_000
"""The same for all texts of a page together."""


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
    """The value at a place, which has children. Raises InvalidInputError if there is none."""
    for step in place.split(".") if place else []:
        children = list(_children(value)) if _count(value) is not None else []
        if not step.isascii() or not step.isdecimal() or len(step) > 18 or int(step) >= len(children):
            raise _no_place(place)
        value = children[int(step)][1]
    if _count(value) is None:
        raise _no_place(place)
    return value


def branches(value: Any, place: str = "", first: int = 0, *, depth: int = 0) -> list[Branch]:
    """The children of a value from a number on, a page at most; down to `depth`, small containers are open."""
    shown = islice(enumerate(_children(value)), first, first + PAGE)
    return [_branch(name, child, f"{place}.{number}" if place else str(number), depth) for number, (name, child) in shown]


def count_of(value: Any) -> int:
    """How many children a value has."""
    return _count(value) or 0


def differences(changes: list[Change]) -> list[Difference]:
    """Changes for people, with the words marked that changed inside a text, as far as a page's work allows."""
    budget = _Budget()
    return [_difference(change, budget) for change in changes]


def _no_place(place: str) -> InvalidInputError:
    return InvalidInputError(f"the state has nothing to open at {clipped(place, 40)!r}; reload the page")


def _branch(name: str, value: Any, place: str, depth: int) -> Branch:
    count = _count(value)
    if count is None:
        return Branch(name, place, _kind(value), _text(value))
    children = branches(value, place, depth=depth - 1) if depth and count <= OPENED else None
    return Branch(name, place, _kind(value), "", count, children)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((key_text(key), child) for key, child in value.items())
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
    return plain(value if _count(value) is not None or isinstance(value, (bool, bytes)) else written(value))


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


class _Budget:
    """How much comparing a page may still do."""

    def __init__(self) -> None:
        self.left = MOST_ON_A_PAGE

    def covers(self, left: list[str], right: list[str]) -> bool:
        """Whether two texts can be compared; if so, that is spent."""
        there = Counter(word for word in right if not word.isspace())
        cost = len(left) + len(right) + sum(there[word] for word in left)
        if cost > min(self.left, MOST_COMPARED):
            return False
        self.left -= cost
        return True


def _difference(change: Change, budget: _Budget) -> Difference:
    path = format_path(change.path) or "(the state)"
    if change.old is MISSING:
        return Difference("added", path, None, [Piece(_text(change.new), marked=False)])
    if change.new is MISSING:
        return Difference("removed", path, [Piece(_text(change.old), marked=False)], None)
    return Difference("changed", path, *_marked(_words(_text(change.old)), _words(_text(change.new)), budget))


def _marked(left: list[str], right: list[str], budget: _Budget) -> tuple[list[Piece], list[Piece]]:
    """Both texts in pieces; what both begin and end with is not compared."""
    start = _alike(left, right)
    end = _alike(left[start:][::-1], right[start:][::-1])
    middles = left[start : len(left) - end], right[start : len(right) - end]
    compared = (
        _compared(*middles) if budget.covers(*middles) else tuple([Piece("".join(side), marked=False)] for side in middles)
    )
    ends = Piece("".join(left[:start]), marked=False), Piece("".join(left[len(left) - end :]), marked=False)
    before, after = ([piece for piece in (ends[0], *side, ends[1]) if piece.text] for side in compared)
    return before, after


def _alike(left: list[str], right: list[str]) -> int:
    """How many pieces both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def _compared(left: list[str], right: list[str]) -> tuple[list[Piece], list[Piece]]:
    before: list[Piece] = []
    after: list[Piece] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(str.isspace, left, right, autojunk=False).get_opcodes():
        before += [Piece("".join(left[a:b]), kind != "equal")] if b > a else []
        after += [Piece("".join(right[c:d]), kind != "equal")] if d > c else []
    return before, after


def _words(text: str) -> list[str]:
    """A text in pieces: words, and what stands between them."""
    return re.findall(r"[^\W_]+|[\W_]", text)
