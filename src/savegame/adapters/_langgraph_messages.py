"""Reads what LangGraph's serializer wrote without it: chat messages, whose fields are set as unpickling would.

A long chat is loaded at every turn, and nearly all of its data is messages. LangGraph's serializer looks up their class and
validates every field again. Here a few known classes get their fields unchecked; anything that differs from what this version
writes is left to the serializer. For importers, `open_value` reads what the details of a checkpoint depend on.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

_HEADERS: Final = {0xC7: 3, 0xC8: 4, 0xC9: 6}
"""The length of a MessagePack extension's header by its first byte; the last byte of the header is the extension's code."""

_MODEL: Final = 5
"""The code of a pydantic model in LangGraph's serializer: module, name, fields, and a method."""

_PLAIN: Final = {
    (cls.__module__, cls.__name__): (cls, cls.model_fields.keys(), cls.model_config.get("extra") == "allow")
    for cls in (AIMessage, HumanMessage, SystemMessage, ToolMessage)
    if not cls.__private_attributes__ and cls.__pydantic_post_init__ is None  # they consist of fields only
}


def read_message(data: bytes) -> BaseMessage | None:
    """The message in serialized data; None for anything else, and for messages with other than plain values."""
    header = _HEADERS.get(data[0]) if len(data) > 6 else None
    return None if header is None or data[header - 1] != _MODEL else _message(data[header:])


def _message(body: bytes) -> BaseMessage | None:
    """The message in the body of an extension."""
    try:
        module, name, fields, _ = ormsgpack.unpackb(body, option=ormsgpack.OPT_NON_STR_KEYS)
        cls, names, has_extra = _PLAIN[module, name]
    except (ValueError, TypeError, KeyError):  # ValueError: a value that is not plain
        return None
    if type(fields) is not dict or fields.keys() != names:
        return None
    message = cls.__new__(cls)
    message.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": set(names),
            "__pydantic_extra__": {} if has_extra else None,
            "__pydantic_private__": None,
        }
    )
    return message


# -- without loading objects -----------------------------------------------------------------------

_ARGUMENTS: Final = (0, 1)
"""The codes of an object by its only argument, and by its arguments in order: module, name, argument or arguments."""


class Sent(NamedTuple):
    """A `Send`, of which only the node is read."""

    node: str


def open_value(data: bytes) -> Any:
    """A serialized value with its messages, sets and `Send`s; other objects are None. Loads no class that the data names."""
    return ormsgpack.unpackb(data, ext_hook=_open, option=ormsgpack.OPT_NON_STR_KEYS)


def _open(code: int, body: bytes) -> Any:
    if code == _MODEL:
        message = _message(body)
        if isinstance(message, AIMessage) and isinstance(message.id, str | None) and type(message.response_metadata) is dict:
            return message
        return None  # a message of another kind, or one that nothing has validated
    try:
        module, name, given = ormsgpack.unpackb(body, ext_hook=lambda *_: None, option=ormsgpack.OPT_NON_STR_KEYS)
        if code in _ARGUMENTS and (module, name) in (("builtins", "set"), ("builtins", "frozenset")):
            return set(given)
        if code in _ARGUMENTS and (module, name) == ("langgraph.types", "Send") and isinstance(given[0], str):
            return Sent(given[0])
    except (ValueError, TypeError, IndexError, KeyError):
        pass
    return None
