"""Where the messages of a state are: under `messages`, or below `channel_values` in a LangGraph thread. Pure.

The one answer for every room: `find_messages` for decoded states, `find_messages_node` for encoded ones. What the messages
say is read by `transcript`. Also what else of a state people look for: not the fields and channels by which LangGraph works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from savegame.encoding.plain import Plain
from savegame.encoding.tree import Node, child_of, is_list
from savegame.model import Change

PATHS: Final = (("messages",), ("channel_values", "messages"))
"""Paths to the list of messages; the first that leads to a list counts."""


CHANNELS: Final = "channel_values"
_GRAPH: Final = (CHANNELS, "channel_versions", "versions_seen")
"""Fields of every state that LangGraph made."""

START: Final = "__start__"
SENDS: Final = "__pregel_tasks"
BRANCH: Final = "branch:to:"
JOIN: Final = "join:"
"""Names, and starts of names, of the channels that start the nodes of a graph. The others are the user's."""


def find_messages(state: Any) -> Sequence[Any] | None:
    """The messages of a decoded state, or None if it is not a conversation."""
    found = _located(state)
    return None if found is None else found[1]


def _located(state: Any) -> tuple[tuple[str, ...], Sequence[Any]] | None:
    plain = state.to_dict() if isinstance(state, Plain) else state
    for path in PATHS:
        found = plain
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, (list, tuple)):
            return path, found
    return None


def is_graph(state: Any) -> bool:
    """Whether LangGraph made a decoded state."""
    return isinstance(state, Mapping) and all(isinstance(state.get(name), Mapping) for name in _GRAPH)


def is_bookkeeping(path: Sequence[Any]) -> bool:
    """Whether a place in a state that LangGraph made is for LangGraph alone: anything but the user's channels."""
    if not path or path[0] != CHANNELS:
        return bool(path)
    channel = path[1] if len(path) > 1 else ""
    return isinstance(channel, str) and (channel in (START, SENDS) or channel.startswith((BRANCH, JOIN)))


class Folded(NamedTuple):
    """The changes that people look for, and how many fields changed that only LangGraph works with."""

    changes: Sequence[Change]
    fields: int


def fold(changes: Sequence[Change], old: Any, new: Any, *, everything: bool = False) -> Folded:
    """The changes between two states without the bookkeeping of LangGraph, unless `everything` is wanted."""
    if everything or not is_graph(old) or not is_graph(new):
        return Folded(changes, 0)
    aside = {change.path[: 2 if change.path[0] == CHANNELS else 1] for change in changes if is_bookkeeping(change.path)}
    return Folded([change for change in changes if not is_bookkeeping(change.path)], len(aside))


def beside_messages(state: Any) -> tuple[Any, int]:
    """A decoded state without its messages, and without the bookkeeping of LangGraph; and how many fields that is."""
    found, graph = _located(state), is_graph(state)
    if not isinstance(state, Mapping) or (found is None and not graph):
        return state, 0
    without = () if found is None else found[0]
    top = {name: value for name, value in state.items() if (name,) != without}
    if not graph:
        return top, 0
    channels = {name: value for name, value in top[CHANNELS].items() if (CHANNELS, name) != without}
    visible = {name: value for name, value in channels.items() if not is_bookkeeping((CHANNELS, name))}
    return {CHANNELS: visible} if visible else {}, len(top) - 1 + len(channels) - len(visible)


def find_messages_node(state: Node | None) -> Node | None:
    """The list of messages of an encoded state, or None if it is not a conversation."""
    for path in PATHS:
        found = state
        for name in path:
            found = None if found is None else child_of(found, name)
        if found is not None and is_list(found):
            return found
    return None
