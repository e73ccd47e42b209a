"""What lists show of graphs: the threads of subgraphs below those of their graphs, and the status of their heads.

Parents and children are known by links in the vault, so LangGraph is not needed. Children that are listed without their parent
stand by themselves. Touches vault, derived, companions, checkpoint, model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from savegame.checkpoint import Checkpoint
from savegame.model import ThreadInfo
from savegame.timeline.companions import CHILD
from savegame.timeline.derived import SEPARATOR
from savegame.vault import Vault

T = TypeVar("T")

MOST_CHILDREN: Final = 20

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


def children_of(vault: Vault, info: ThreadInfo) -> list[str]:
    """The ids of the first threads of a graph's subgraphs."""
    return [] if info.damage is not None else sorted(vault.thread(info.id).records(CHILD))[:MOST_CHILDREN]


def as_listed(vault: Vault, thread_id: str, entries: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
    """Checkpoints of a thread, the head with the status of lists: that of a graph does not say whether it waits or failed.

    That one comes without its state.
    """
    info = vault.info(thread_id)
    for entry in entries:
        is_head = info is not None and info.damage is None and entry.id == info.head
        yield replace(entry, status=info.status) if info is not None and is_head else entry
