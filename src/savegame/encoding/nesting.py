"""Going through nested values without recursion, however deep they are. Pure; touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final

PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None)))
"""Types that have nothing inside."""


def inside_out(
    value: Any,
    opened: Callable[[Any], tuple[Any, Any]],
    closed: Callable[[Any, Any], Any],
    deepest: int,
    *,
    passed: Container[Any] = PLAIN,
) -> Any:
    """A value made anew, its parts before the whole. Raises RecursionError for what is nested deeper than `deepest`.

    `opened(value)` gives how the value is to be closed (None: not at all), and what stands for it until then. If that is a
    list or a dict, it is changed in place, and what is inside it comes next, but for the types that are `passed` over.
    `closed(how, parts)` gives what takes the place of both.
    """
    root = [value]
    waiting: list[tuple[Any, Any, int]] = [(root, 0, 0)]
    found: list[tuple[Any, Any, Any]] = []
    while waiting:
        holder, place, depth = waiting.pop()
        if depth > deepest:
            raise RecursionError
        how, parts = opened(holder[place])
        holder[place] = parts
        if how is not None:
            found.append((holder, place, how))
        if type(parts) is list:
            waiting += [(parts, at, depth + 1) for at, part in enumerate(parts) if type(part) not in passed][::-1]
        elif type(parts) is dict:
            waiting += [(parts, key, depth + 1) for key, part in parts.items() if type(part) not in passed][::-1]
    for holder, place, how in reversed(found):
        holder[place] = closed(how, holder[place])
    return root[0]
