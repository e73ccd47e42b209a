"""Which replies of a model cannot be read for certain: they are refused, and the error holds the reply. Pure.

A reply whose calls are in a provider's own spelling would otherwise pass for the model's last word, and its calls would
never be made. Touches codec, domain and errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from savegame.encoding.codec import shown
from savegame.errors import InvalidInputError
from savegame.messages.domain import Message

SHOWN: Final = 200
"""Characters of a reply that an error message quotes."""

_CALLS: Final = frozenset(
    (
        "tool_use", "tool_call", "tool-call", "toolCall", "function_call", "custom_tool_call", "computer_call",
        "local_shell_call", "shell_call", "apply_patch_call", "mcp_approval_request",
    )
)  # fmt: skip
"""Types of content parts that ask for a call, by provider."""
_NAMED: Final = ("toolUse", "functionCall", "function_call")
"""Keys under which other providers put a call."""
_STOPPED: Final = frozenset(("tool_use", "tool_calls", "function_call"))
"""Why a model stopped, if it waits for the results of calls."""
_NEXT: Final = "list its calls as tool_calls=[{'id', 'name', 'arguments'}] of the message that your function returns"


def refuse_unread(reply: Any) -> None:
    """Raise InvalidInputError for what is no reply, and for one with calls that `tool_calls` does not list."""
    if inspect.isgenerator(reply) or inspect.isasyncgen(reply):
        raise InvalidInputError("the model's function yields pieces; join them, and return the whole reply")
    given = reply.to_dict() if isinstance(reply, Message) else reply
    if not isinstance(given, (str, Mapping)):
        raise InvalidInputError(
            f"a model's reply is text, a Message or an assistant's message as a dict, not {type(reply).__name__}; "
            f"convert it in the function that calls the model"
        )
    unread = None if isinstance(given, str) else _unread(given)
    if unread is not None:
        raise InvalidInputError(f"the model's reply asks for a call that cannot be read ({unread}); {_NEXT}")


@contextmanager
def quoting(reply: Any) -> Iterator[None]:
    """Put the reply into an error about it: whole as `.reply`, its beginning in the message."""
    try:
        yield
    except InvalidInputError as error:
        text = shown(reply)
        error.reply = reply
        error.args = (f"{error}; nothing was kept of the reply {text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}",)
        raise


def _unread(reply: Mapping[str, Any]) -> str | None:
    """What asks for a call in another place than `tool_calls`."""
    listed = reply.get("tool_calls") or ()
    known = {_text(call, "id") for call in listed} if isinstance(listed, (list, tuple)) else set()
    content = reply.get("content")
    for part in content if isinstance(content, (list, tuple)) else [content]:
        if _text(part, "type") in _CALLS and known.isdisjoint((_text(part, "id"), _text(part, "call_id"))):
            return f"a content part of type {_text(part, 'type')!r}"
        named = next((name for name in _NAMED if _field(part, name) is not None), None)
        if named is not None:
            return f"a content part with {named!r}"
    if reply.get("function_call") is not None:
        return "'function_call'"
    stopped = {_text(reply, name) for name in ("stop_reason", "finish_reason")} & _STOPPED
    return f"it stopped with {stopped.pop()!r} and has no tool_calls" if stopped and not listed else None


def _field(part: Any, name: str) -> Any:
    """A field of a dict, or of an object of a provider's library."""
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _text(part: Any, name: str) -> str | None:
    found = _field(part, name)
    return found if isinstance(found, str) else None
