"""Threads of subgraphs below the threads of their graphs, as lists show them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from savegame.model import ThreadInfo
from savegame.timeline.derived import SEPARATOR

T = TypeVar("T")

_UUID: Final = re.compile(r":([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def nested(threads: Iterable[T], info_of: Callable[[T], ThreadInfo]) -> Iterator[tuple[T, bool]]:
    """Threads in their order, but each child after its parent if both are among them; and whether it is such a child."""
    listed = list(threads)
    ids = {info_of(one).id for one in listed}
    children: dict[str | None, list[T]] = {}
    for one in listed:
        parent = info_of(one).child_of
        children.setdefault(parent if parent in ids else None, []).append(one)
    waiting = [(one, False) for one in reversed(children.pop(None, []))]
    while waiting:
        one, below = waiting.pop()
        yield one, below
        waiting += [(child, True) for child in reversed(children.pop(info_of(one).id, []))]
    yield from ((one, False) for rest in children.values() for one in rest)  # damaged links may form a circle


def short_name(info: ThreadInfo) -> str:
    """The name of a child below its parent: without the parent's id, and with its ids cut short."""
    return _UUID.sub(r":\1", info.id.removeprefix(f"{info.child_of}{SEPARATOR}"))
