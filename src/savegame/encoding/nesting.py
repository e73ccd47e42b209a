"""Rebuilding nested values without recursion, at any depth. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final

LEAF_TYPES: Final = frozenset((str, int, float, bool, bytes, type(None)))
"""Types without contents."""


def inside_out(
    value: Any,
    open_value: Callable[[Any], tuple[Any, Any]],
    close_value: Callable[[Any, Any], Any],
    deepest: int,
    *,
    passed: Container[Any] = LEAF_TYPES,
) -> Any:
    """Rebuild a value, its parts before the whole. Raises RecursionError if it is nested deeper than `deepest`.

    `open_value(value)` returns how to close the value (None: not at all) and its parts. If these are a list or a dict, it is
    changed in place, and its contents are opened next, except for the types in `passed`. `close_value(how, parts)` returns
    the new value.
    """
    root = [value]
    waiting: list[tuple[Any, Any, int]] = [(root, 0, 0)]
    found: list[tuple[Any, Any, Any]] = []
    while waiting:
        holder, place, depth = waiting.pop()
        if depth > deepest:
            raise RecursionError
        how, parts = open_value(holder[place])
        holder[place] = parts
        if how is not None:
            found.append((holder, place, how))
        if type(parts) is list:
            waiting += [(parts, at, depth + 1) for at, part in enumerate(parts) if type(part) not in passed][::-1]
        elif type(parts) is dict:
            waiting += [(parts, key, depth + 1) for key, part in parts.items() if type(part) not in passed][::-1]
    for holder, place, how in reversed(found):
        holder[place] = close_value(how, holder[place])
    return root[0]
