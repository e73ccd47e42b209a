"""Chat messages out of what LangGraph's serializer wrote, the way unpickling would make them: from their fields.

A long chat is loaded at each of its turns, and nearly all of that is its messages: LangGraph's serializer looks up their
class and validates every field, which were valid when they were dumped. Here a handful of classes, known beforehand, get
their fields as they are. Whatever differs from what this very version writes is left to the serializer. Touches nothing.
"""

from __future__ import annotations

from typing import Final

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

_HEADERS: Final = {0xC7: 3, 0xC8: 4, 0xC9: 6}
"""How long the header of an extension in MessagePack is, by its first byte; the last one is the extension's code."""

_MODEL: Final = 5
"""The code that LangGraph's serializer gives a pydantic model: its module, its name, its fields, and a method."""

_PLAIN: Final = {
    (cls.__module__, cls.__name__): (cls, cls.model_fields.keys(), cls.model_config.get("extra") == "allow")
    for cls in (AIMessage, HumanMessage, SystemMessage, ToolMessage)
    if not cls.__private_attributes__ and cls.__pydantic_post_init__ is None  # there is nothing to them but fields
}


def message(data: bytes) -> BaseMessage | None:
    """The message in serialized data; None if it is something else, or a message with more than plain values in it."""
    header = _HEADERS.get(data[0]) if len(data) > 6 else None
    if header is None or data[header - 1] != _MODEL:
        return None
    try:
        module, name, fields, _ = ormsgpack.unpackb(data[header:], option=ormsgpack.OPT_NON_STR_KEYS)
        cls, names, has_extra = _PLAIN[module, name]
    except (ValueError, TypeError, KeyError):  # the first of what is not plain
        return None
    if type(fields) is not dict or fields.keys() != names:
        return None
    made = cls.__new__(cls)
    made.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": set(names),
            "__pydantic_extra__": {} if has_extra else None,
            "__pydantic_private__": None,
        }
    )
    return made
