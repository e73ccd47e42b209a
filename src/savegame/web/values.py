"""A value as a tree that is expanded step by step, and changes side by side. Pure.

A place in a value is written as the indexes of the children on the way to it, `0.12.3`, because keys may be anything.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from savegame.encoding.text import format_path, key_text, written
from savegame.errors import InvalidInputError
from savegame.model import MISSING, Change
from savegame.web.formatting import clip, limited_text

CHILDREN: Final = 100
"""Children shown at once."""

OPENED: Final = 12
"""Containers with at most this many children are expanded at the top."""

MOST_COMPARED: Final = 20_000
"""Maximum cost (pairs of equal words) of marking the changed words of one text."""

MOST_ON_A_PAGE: Final = 100_000
"""Maximum cost for all texts of a page together."""


class Branch(NamedTuple):
    """A value in a tree. `size` is the number of its children, None for a leaf; `children` are set if it is expanded."""

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


class ChangeView(NamedTuple):
    """One change; `old` or `new` is None on the side without a value."""

    kind: str
    path: str
    old: list[Piece] | None
    new: list[Piece] | None


def at_place(value: Any, place: str) -> Any:
    """The container at a place. Raises InvalidInputError if there is none."""
    for step in place.split(".") if place else []:
        children = list(_children(value)) if _count(value) is not None else []
        if not step.isascii() or not step.isdecimal() or len(step) > 18 or int(step) >= len(children):
            raise _no_place(place)
        value = children[int(step)][1]
    if _count(value) is None:
        raise _no_place(place)
    return value


def branches(value: Any, place: str = "", first: int = 0, *, depth: int = 0) -> list[Branch]:
    """A page of the children of a value, starting with `first`; small containers are expanded down to `depth`."""
    page = islice(enumerate(_children(value)), first, first + CHILDREN)
    return [_branch(name, child, f"{place}.{number}" if place else str(number), depth) for number, (name, child) in page]


def count_of(value: Any) -> int:
    """The number of children of a value."""
    return _count(value) or 0


def change_views(changes: list[Change]) -> list[ChangeView]:
    """Changes with the changed words of texts marked, within the budget of a page."""
    budget = _Budget()
    return [_change_view(change, budget) for change in changes]


def _no_place(place: str) -> InvalidInputError:
    return InvalidInputError(f"the state has no container at {clip(place, 40)!r}; reload the page")


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
    """Containers, booleans and bytes as JSON shows them, other values as `str` does."""
    return limited_text(value if _count(value) is not None or isinstance(value, (bool, bytes)) else written(value))


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


class _Budget:
    """The remaining cost of comparisons on a page."""

    def __init__(self) -> None:
        self.left = MOST_ON_A_PAGE

    def covers(self, left: list[str], right: list[str]) -> bool:
        """Whether comparing two texts fits into the budget; if so, its cost is spent."""
        there = Counter(word for word in right if not word.isspace())
        cost = len(left) + len(right) + sum(there[word] for word in left)
        if cost > min(self.left, MOST_COMPARED):
            return False
        self.left -= cost
        return True


def _change_view(change: Change, budget: _Budget) -> ChangeView:
    path = format_path(change.path) or "(the state)"
    if change.old is MISSING:
        return ChangeView("added", path, None, [Piece(_text(change.new), marked=False)])
    if change.new is MISSING:
        return ChangeView("removed", path, [Piece(_text(change.old), marked=False)], None)
    return ChangeView("changed", path, *_mark_changes(_words(_text(change.old)), _words(_text(change.new)), budget))


def _mark_changes(left: list[str], right: list[str], budget: _Budget) -> tuple[list[Piece], list[Piece]]:
    """Both texts in pieces with the changes marked; common beginnings and ends are not compared."""
    start = _alike(left, right)
    end = _alike(left[start:][::-1], right[start:][::-1])
    middles = left[start : len(left) - end], right[start : len(right) - end]
    compared = (
        _compare(*middles) if budget.covers(*middles) else tuple([Piece("".join(side), marked=False)] for side in middles)
    )
    ends = Piece("".join(left[:start]), marked=False), Piece("".join(left[len(left) - end :]), marked=False)
    before, after = ([piece for piece in (ends[0], *side, ends[1]) if piece.text] for side in compared)
    return before, after


def _alike(left: list[str], right: list[str]) -> int:
    """The number of pieces that both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def _compare(left: list[str], right: list[str]) -> tuple[list[Piece], list[Piece]]:
    before: list[Piece] = []
    after: list[Piece] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(str.isspace, left, right, autojunk=False).get_opcodes():
        before += [Piece("".join(left[a:b]), kind != "equal")] if b > a else []
        after += [Piece("".join(right[c:d]), kind != "equal")] if d > c else []
    return before, after


def _words(text: str) -> list[str]:
    """The pieces of a text: words and single other characters."""
    return re.findall(r"[^\W_]+|[\W_]", text)
