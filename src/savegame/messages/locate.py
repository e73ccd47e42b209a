"""Where the messages of a state are: under `messages`, or below `channel_values` in a LangGraph thread. Pure.

The one answer for every room: `find_messages` for decoded states, `find_messages_node` for encoded ones. What the messages
say is read by `transcript`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from savegame.encoding.plain import Plain
from savegame.encoding.tree import Node, child_of, is_list

PATHS: Final = (("messages",), ("channel_values", "messages"))
"""Paths to the list of messages; the first that leads to a list counts."""


def find_messages(state: Any) -> Sequence[Any] | None:
    """The messages of a decoded state, or None if it is not a conversation."""
    plain = state.to_dict() if isinstance(state, Plain) else state
    for path in PATHS:
        found = plain
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, (list, tuple)):
            return found
    return None


def find_messages_node(state: Node | None) -> Node | None:
    """The list of messages of an encoded state, or None if it is not a conversation."""
    for path in PATHS:
        found = state
        for name in path:
            found = None if found is None else child_of(found, name)
        if found is not None and is_list(found):
            return found
    return None
