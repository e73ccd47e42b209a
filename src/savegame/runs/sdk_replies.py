"""Replies as the SDKs of OpenAI and Anthropic return them, objects or dicts, read as assistant messages. Pure.

No SDK is imported: an object is read by its `model_dump`. Calls become `tool_calls`. What the API needs back (thoughts with
their signatures, reasoning, the work of server tools) stays in the content, in its place. Touches blocks, domain and errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from savegame.errors import InvalidInputError
from savegame.messages.blocks import ANTHROPIC, API, CALL_IDS, RESPONSES, SERVER_CALLS, STOP_REASON, call_in, kind_of
from savegame.messages.domain import Message

_CUT: Final = frozenset({
    "length", "max_tokens", "max_output_tokens", "model_context_window_exceeded", "content_filter", "refusal", "incomplete",
})  # fmt: skip
"""Why a model stopped, if that was before its end."""
_REPLIES: Final = ("role", "choices", "output")
"""The fields by which objects of SDKs are known as replies."""
_UNFINISHED: Final = ("queued", "in_progress", "cancelled", "failed")
"""The status of a response that is no reply."""
_PARSED: Final = ("parsed", "parsed_arguments", "parsed_output")
"""Fields that the SDKs add to what their API sent; it refuses them when they come back."""
_NOTED: Final[tuple[str, ...]] = ("model", STOP_REASON, "container")
"""Fields of Anthropic's messages that are stored besides the content."""
_COUNTS: Final = (
    ("input_tokens", "prompt_tokens"),
    ("output_tokens", "completion_tokens"),
    ("cache_creation_input_tokens",),
    ("cache_read_input_tokens",),
)
"""What adds up to the tokens of a reply without a total. Anthropic counts cached tokens apart, OpenAI among the others."""


def read_reply(reply: Any) -> Any:
    """A reply of an SDK as an assistant message; anything else unchanged. Raises InvalidInputError if it is not whole."""
    given = reply.to_dict() if isinstance(reply, Message) else _plain(reply)
    if given is not reply and isinstance(given, Mapping) and given.keys().isdisjoint(_REPLIES):
        given = reply.model_dump(mode="json", by_alias=True, warnings=False)  # of a class with defaults for its fields
    if not isinstance(given, Mapping) or (given is not reply and given.keys().isdisjoint(_REPLIES)):
        return reply
    if given.get("role") is not None:
        message = _of_message(given)
    elif "choices" in given:
        message = _of_completion(given)
    elif given.get("object") == "response" or isinstance(given.get("output"), list):
        message = _of_response(given)
    else:
        raise InvalidInputError(
            "the model's reply is in no known form: it has no role; return {'role': 'assistant', 'content', 'tool_calls'}"
        )
    reason = message.get(STOP_REASON) or message.get("finish_reason")
    if isinstance(reason, str) and reason in _CUT and message.get("tool_calls"):
        raise InvalidInputError(
            f"the model's reply was cut off ({reason}) and asks for calls, which may not be whole; "
            f"allow more output and ask again"
        )
    return message


def usage_of(reply: Any) -> Mapping[str, Any] | None:
    """The token counts in a reply; None if it has none."""
    if isinstance(reply, (str, Message)):
        return None
    try:
        return _mapping(reply.get("usage") if isinstance(reply, Mapping) else getattr(reply, "usage", None)) or None
    except InvalidInputError:  # counts that cannot be read do not cost the reply
        return None


def tokens_in(usage: Mapping[str, Any] | None) -> int | None:
    """The tokens of a reply, in and out; None if they were not counted."""
    counts = usage or {}
    total = _count(counts, "total_tokens")
    if total is not None:
        return total
    found = [next((n for name in names if (n := _count(counts, name)) is not None), None) for names in _COUNTS]
    return None if found[0] is found[1] is None else sum(count or 0 for count in found)


def _count(counts: Mapping[str, Any], name: str) -> int | None:
    found = counts.get(name)
    return found if type(found) is int and 0 <= found < 2**63 else None


def _plain(value: Any) -> Any:
    """An object of an SDK as the plain data that its API sent."""
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type):
        return value
    try:
        return dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    except Exception as error:  # the object's own code may raise anything
        raise InvalidInputError(f"a {type(value).__name__} cannot be read: its model_dump raised {error!r}") from error


def _mapping(value: Any) -> Mapping[str, Any]:
    plain = _plain(value)
    return plain if isinstance(plain, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _stated(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the API sent and that say something."""
    return {name: item for name, item in value.items() if item is not None and name not in _PARSED}


def _of_message(given: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant message of any API; its calls may be parts of its content."""
    message = _stated(given) | {name: given[name] for name in ("content",) if name in given}
    listed = message.get("tool_calls")
    if isinstance(listed, (list, tuple)):
        message["tool_calls"] = [_call(_plain(call)) for call in listed]
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        content = [_plain(part) for part in content]
        message["content"] = content = [_stated(part) if kind_of(part) else part for part in content]
        if any(kind_of(part) == "output_text" for part in content):
            return _of_response({"output": [given]})
        if given.get("type") == "message" and not listed:  # Anthropic's
            noted = {name: message[name] for name in _NOTED if name in message}
            message = {"role": message.get("role"), API: ANTHROPIC} | noted | _content(content)
        if not listed:
            message |= _calls(content)
    elif message.get("refusal") and not content:
        message |= {"content": message.pop("refusal"), STOP_REASON: "refusal"}
    return message


def _call(call: Any) -> Any:
    if kind_of(call) == "custom" and isinstance(call.get("custom"), Mapping):
        raise InvalidInputError(
            "the model's reply calls a custom tool, which takes no arguments by name; offer it functions only"
        )
    inner = call.get("function") if isinstance(call, Mapping) else None
    return {**call, "function": _stated(inner)} if isinstance(inner, Mapping) else call


def _content(parts: list[Any]) -> dict[str, Any]:
    """Parts as a content; a single text without anything to give back is just text."""
    if not parts:
        return {"content": ""}
    only = _mapping(parts[0])
    is_bare = only.keys() <= {"type", "text", "item"} and _mapping(only.get("item")).keys() <= {"id", "status"}
    if len(parts) == 1 and is_bare and kind_of(only) == "text" and isinstance(only.get("text"), str):
        return {"content": only["text"]}
    return {"content": parts}


def _calls(parts: Sequence[Any]) -> dict[str, Any]:
    calls = [call for part in parts if (call := call_in(part)) is not None]
    return {"tool_calls": calls} if calls else {}


def _of_completion(given: Mapping[str, Any]) -> dict[str, Any]:
    """The message of an OpenAI chat completion."""
    choices = _list(given["choices"])
    if len(choices) != 1:
        raise InvalidInputError(f"the model's reply has {len(choices)} choices; return one of them, as choices[n].message")
    choice = _mapping(choices[0])
    message = _mapping(choice.get("message"))
    if not message:
        raise InvalidInputError("the model's reply has no message, only a piece of one; run.stream takes the pieces of text")
    reason = choice.get("finish_reason")
    return {STOP_REASON: reason, **_of_message(message)} if reason is not None else _of_message(message)


def _of_response(given: Mapping[str, Any]) -> dict[str, Any]:
    """The output of an OpenAI response as one message: texts, and the other items as parts."""
    status = given.get("status")
    if status in _UNFINISHED:
        why = _mapping(given.get("error")).get("message") or "there is no whole output"
        raise InvalidInputError(f"the model's reply has the status {status!r}: {why}; ask again")
    parts: list[Any] = []
    for item in _list(given.get("output")):
        plain = _mapping(item)
        kind = kind_of(plain)
        if kind is None:
            raise InvalidInputError("the model's reply has an output item without a type; return the response as it came")
        if kind == "message":
            parts += _texts(_stated(plain))
        elif kind.endswith("_call") and kind not in SERVER_CALLS | CALL_IDS.keys():
            raise InvalidInputError(f"the model's reply asks for a {kind}, which a run cannot make; offer it functions only")
        else:
            parts.append(_stated(plain))
    message = {"role": "assistant", API: RESPONSES, **_stated({"model": given.get("model")}), **_content(parts)}
    if any(kind_of(part) == "refusal" for part in parts):
        message[STOP_REASON] = "refusal"
    if status == "incomplete":
        message[STOP_REASON] = _mapping(given.get("incomplete_details")).get("reason") or status
    return message | _calls(parts)


def _texts(item: dict[str, Any]) -> list[dict[str, Any]]:
    """The texts of a message item, each with what is needed to put the item together again."""
    about = {name: value for name, value in item.items() if name not in ("type", "role", "content")}
    found = []
    for given in _list(item.get("content")):
        part = _stated(_mapping(given))
        if part.get("type") == "refusal":
            found.append({"type": "refusal", "refusal": part.get("refusal"), "item": about})
        else:
            notes = {"annotations": part["annotations"]} if part.get("annotations") else {}
            found.append({"type": "text", "text": part.get("text"), "item": about, **notes})
    return found
