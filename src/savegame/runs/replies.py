"""Replies of models: which are refused, with the reply in the error, and how the others are stored. Pure.

`sdk_replies` has read them before. A reply whose calls are in another form would count as a final answer, and its calls would
never be made. Touches codec, domain and errors.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from savegame.encoding.text import repr_text
from savegame.errors import InvalidInputError, InvalidState
from savegame.messages.domain import Message, Role, ToolCall
from savegame.model import checked_id
from savegame.waiting.awaiting import plain_result

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
_BESIDE: Final = ("toolCalls", *_NAMED)
"""Keys of a message, beside its content, under which other libraries put calls."""
_STOPPED: Final = frozenset(("tool_use", "tool_calls", "function_call"))
"""Why a model stopped, if it waits for the results of calls."""
_NEXT: Final = "list its calls as tool_calls=[{'id', 'name', 'arguments'}] of the message that your function returns"


def refuse_unread(reply: Any) -> None:
    """Raise InvalidInputError if this is not a reply, or has calls outside `tool_calls`."""
    if inspect.isgenerator(reply) or inspect.isasyncgen(reply):
        raise InvalidInputError(
            "the model's function is a generator; join the pieces and return the whole reply, or use run.stream"
        )
    if not isinstance(reply, (str, Mapping)):
        raise InvalidInputError(
            f"a model's reply must be text, a Message, an assistant message as a dict, or a reply of the SDKs of OpenAI and "
            f"Anthropic, not {type(reply).__name__}; convert it in the function that calls the model"
            + (", or use run.stream for a stream" if hasattr(reply, "__iter__") or hasattr(reply, "__aiter__") else "")
        )
    unread = None if isinstance(reply, str) else _unread(reply)
    if unread is not None:
        raise InvalidInputError(f"the model's reply asks for a call that cannot be read ({unread}); {_NEXT}")


def plain_reply(reply: Any) -> Any:
    """What the model's function returned. Raises InvalidInputError for an awaitable."""
    if not inspect.isawaitable(reply):
        return reply
    with quoting(reply):
        return plain_result(reply, "the model's function")


@contextmanager
def quoting(reply: Any) -> Iterator[None]:
    """Put the reply into an error about it: whole as `.reply`, its beginning in the message."""
    try:
        yield
    except InvalidInputError as error:
        text = repr_text(reply)
        error.reply = reply
        error.args = (f"{error}; the reply was not saved: {text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}",)
        raise


def _unread(reply: Mapping[str, Any]) -> str | None:
    """Describe a request for a call outside `tool_calls`; None if there is none."""
    listed = reply.get("tool_calls") or ()
    known = {_text(call, "id") for call in listed} if isinstance(listed, (list, tuple)) else set()
    for part in _parts(reply.get("content")):
        if _text(part, "type") in _CALLS and known.isdisjoint((_text(part, "id"), _text(part, "call_id"))):
            return f"a content part of type {_text(part, 'type')!r}"
        named = next((name for name in _NAMED if _field(part, name) is not None), None)
        if named is not None:
            return f"a content part with {named!r}"
    extra = reply.get("additional_kwargs")
    for where, names in (
        (reply, _BESIDE),
        (extra if isinstance(extra, Mapping) and not listed else {}, ("tool_calls", *_BESIDE)),
    ):
        named = next((name for name in names if where.get(name)), None)
        if named is not None:
            return repr(named)
    stopped = {_text(reply, name) for name in ("stop_reason", "finish_reason")} & _STOPPED
    return f"it stopped with {stopped.pop()!r} and has no tool_calls" if stopped and not listed else None


def _parts(content: Any) -> Iterator[Any]:
    """Every part of a content, also of parts that have parts themselves."""
    waiting = [content]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple)):
            waiting += reversed(part)
            continue
        yield part
        if isinstance(part, Mapping):
            waiting += [part[name] for name in ("content", "parts") if isinstance(part.get(name), (list, tuple))]


def _field(part: Any, name: str) -> Any:
    """A field of a dict, or of an object of a provider's library."""
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _text(part: Any, name: str) -> str | None:
    found = _field(part, name)
    return found if isinstance(found, str) else None


# -- replies as they are stored --------------------------------------------------------------------


def as_reply(given: Any) -> dict[str, Any]:
    """The stored form of a model's reply. Unreadable calls are stored unchanged: the model gets an error that says why."""
    reply = {"role": "assistant", "content": given} if isinstance(given, str) else given
    calls = _calls_of(reply)
    try:
        message = Message.from_dict(reply)
    except InvalidInputError:
        if not calls:
            raise
        text = as_reply({"content": None, **reply, "tool_calls": []})
        return text | {"tool_calls": [_call_with_id(call, number) for number, call in enumerate(calls)]}
    if message.role != Role.ASSISTANT:
        raise InvalidInputError(f"a model's reply must have the role assistant, not {message.role}")
    return message.to_dict()


def _call_with_id(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A call with a valid id; an unreadable call is otherwise unchanged."""
    given = call.get("id")
    try:
        named = {**call, "id": checked_id(given, "a call's id")}
    except InvalidInputError:
        named = {**call, "id": f"call-{number}"} | ({"given_id": storable_text(str(given))} if given else {})
    try:
        return ToolCall.from_dict({"arguments": {}, **named}).to_dict()
    except InvalidInputError:
        return named


def _calls_of(reply: Any) -> list[Mapping[str, Any]]:
    """The calls of a reply, if they are a list of dicts."""
    calls = reply.get("tool_calls") if isinstance(reply, Mapping) else None
    return calls if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls) else []


def storable_reply(reply: Any, encode: Callable[[Any], bytes]) -> Any:
    """A storable variant of a reply: texts escaped, calls that cannot be stored made unreadable; None if nothing changed."""
    if isinstance(reply, str):
        return None if (text := storable_text(reply)) == reply else text
    if not isinstance(reply, Mapping):
        return None
    texts = {name: value if name == "tool_calls" else _storable(value) for name, value in reply.items()}
    calls = [_storable_call(call, encode) for call in _calls_of(reply)]
    storable = {**texts, "tool_calls": calls} if calls else texts
    return None if storable == reply else storable


def _storable(value: Any) -> Any:
    """A value with its texts escaped, also those in the fields of a content's parts."""
    if isinstance(value, str):
        return storable_text(value)
    if type(value) is list:
        return [
            {name: storable_text(text) if isinstance(text, str) else text for name, text in part.items()}
            if type(part) is dict
            else part
            for part in value
        ]
    return value


def _storable_call(call: Mapping[str, Any], encode: Callable[[Any], bytes]) -> Mapping[str, Any]:
    try:
        encode(dict(call))
        encode(_call_with_id(call, 0))
    except InvalidState as error:
        inner = call.get("function")
        named = {**call, **inner} if isinstance(inner, Mapping) else call
        texts = {name: storable_text(str(named[name])) for name in ("id", "name") if named.get(name)}
        return {**texts, "arguments": f"(they could not be saved: {error})"}
    return call


def number_twins(calls: Sequence[dict[str, Any]]) -> None:
    """Give calls of one reply with the same id different ids, so that each is made and answered."""
    taken = {call["id"] for call in calls}
    seen: set[str] = set()
    for call in calls:
        if call["id"] in seen:
            call["id"] = next(new for new in (f"{call['id']}-{number}" for number in itertools.count(2)) if new not in taken)
            taken.add(call["id"])
        seen.add(call["id"])


def storable_text(error: str) -> str:
    """A storable text: lone surrogates are escaped."""
    return error.encode("utf-8", "backslashreplace").decode()
