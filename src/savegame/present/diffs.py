"""The changes between two values for people: one line per change, nothing that stayed the same.

Paths and values read as they do in Python. `savegame diff`, `vault.diff` and the page show the same lines. Touches codec, diff
and text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

from savegame.encoding.classes import fields_of
from savegame.encoding.codec import Codec
from savegame.encoding.diff import gaps
from savegame.encoding.text import format_path, repr_text
from savegame.model import MISSING, Change


class Diff(Sequence[Change]):
    """The changes from one state to another. Iterate over it, or print it."""

    def __init__(self, changes: list[Change]) -> None:
        self._changes = changes

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        return self._changes[index]

    def __len__(self) -> int:
        return len(self._changes)

    def __str__(self) -> str:
        return "\n".join(map(line_of, self._changes)) or "no changes"

    def __repr__(self) -> str:
        return f"<Diff of {len(self)} changes>"


def line_of(change: Change, width: int = 100) -> str:
    """One change on one line: `+ path = new`, `- path = old`, `~ path: old -> new`."""
    path = format_path(change.path) or "(the state)"
    if change.old is MISSING:
        return f"+ {path} = {_short(change.new, width)}"
    if change.new is MISSING:
        return f"- {path} = {_short(change.old, width)}"
    return f"~ {path}: {_short(change.old, width // 2)} -> {_short(change.new, width // 2)}"


def changes_between(codec: Codec, old: Any, new: Any) -> Diff:
    """The changes from one value to another; equal values of different types count as changed."""
    changes: list[Change] = []
    waiting = [_compare(codec, old, new, ())]
    while waiting:  # an explicit stack, because nested generators use a lot of the interpreter's
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
        elif isinstance(found, Change):
            changes.append(found)
        else:
            waiting.append(found)
    return Diff(changes)


Comparison: TypeAlias = Iterator["Change | Comparison"]
"""Changes, and further comparisons in their place."""


def _compare(codec: Codec, old: Any, new: Any, path: tuple[Any, ...]) -> Comparison:
    if _same(codec, old, new):
        return
    left, right = _mapping(old), _mapping(new)
    if left is not None and right is not None and type(old) is type(new):
        for key, before, after in _pair_keys(codec, left, right):
            if before is MISSING or after is MISSING:
                yield Change((*path, key), before, after)
            else:
                yield _compare(codec, before, after, (*path, key))
        if [codec.encode(key) for key in left if key in right] != [codec.encode(key) for key in right if key in left]:
            yield Change((*path, "(keys)"), list(left), list(right))
    elif type(old) is list and type(new) is list:
        yield _compare_lists(codec, old, new, path)
    else:
        yield Change(path, old, new)


def _pair_keys(codec: Codec, left: dict[Any, Any], right: dict[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """All keys with both values. Equal keys are the same key; NaN, which equals nothing, is matched by its bytes."""
    others = {codec.encode(key): key for key in right if key not in left}
    for key, before in left.items():
        twin = key if key in right else others.pop(codec.encode(key), MISSING)
        yield key, before, MISSING if twin is MISSING else right[twin]
    for key in others.values():
        yield key, MISSING, right[key]


def _compare_lists(codec: Codec, old: list[Any], new: list[Any], path: tuple[Any, ...]) -> Comparison:
    """Skip items that stayed; in the gaps between them, compare equal numbers of items, else report removals and additions."""
    left, right = list(map(codec.encode, old)), list(map(codec.encode, new))
    for old_from, old_to, new_from, new_to in gaps(left, right, 0, len(left), len(right)):
        if old_to - old_from == new_to - new_from:
            for index in range(new_to - new_from):
                yield _compare(codec, old[old_from + index], new[new_from + index], (*path, new_from + index))
            continue
        for index in range(old_from, old_to):
            yield Change((*path, index), old[index], MISSING)
        for index in range(new_from, new_to):
            yield Change((*path, index), MISSING, new[index])


def _same(codec: Codec, old: Any, new: Any) -> bool:
    return codec.pack(old) == codec.pack(new)


def _mapping(value: Any) -> dict[Any, Any] | None:
    return value if type(value) is dict else fields_of(value)


def _short(value: Any, width: int) -> str:
    text = repr_text(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"
