"""The turns of a conversation: a message, its calls and an answer to each; and the parts of a message, for the views.

Pure. Each view writes turns in the form of one API. Touches blocks, domain, text and errors.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeGuard

from savegame.encoding.text import written
from savegame.errors import InvalidInputError
from savegame.messages.blocks import ANTHROPIC, API, THOUGHTS, TIED_TO_CALLS, api_of, kind_of
from savegame.messages.domain import Attachment, AttachmentType, Role, json_text

FAILED: Final = "failed; nothing more is known"
"""The reason shown for a failure without one; Anthropic refuses an error without text."""

NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ROLES: Final = frozenset(role.value for role in Role)
_NAME_LENGTH: Final = 64
_HIDDEN_PARTS: Final = TIED_TO_CALLS | {"tool_result"}
"""Parts that only their own API can read, and calls in its form, which `tool_calls` already has."""
_NEEDED: Final = {
    "input_audio": {"input_audio"},
    "file": {"file"},
    "document": {"source"},
    "search_result": {"source", "title", "content"},
}
"""The fields without which a provider refuses a part that it knows."""

Plain = Mapping[str, Any]
Part = dict[str, Any]


class Turn(NamedTuple):
    """A message that is not a tool result, its calls, and the answer to each or None."""

    message: Plain
    calls: Sequence[Plain]
    answers: list[Plain | None]


def turns_of(messages: Iterable[Plain]) -> list[Turn]:
    """The turns of a conversation: answers are with their calls, and messages that say nothing are left out."""
    turns: list[Turn] = []
    waiting: defaultdict[str | None, list[tuple[list[Plain | None], int]]] = defaultdict(list)
    for place, message in enumerate(messages):
        role = _role(message, place)
        if role == "tool":
            if unanswered := waiting[_id(message, "tool_call_id", f"messages[{place}]")]:
                answers, index = unanswered.pop()
                answers[index] = message
            continue
        calls = _calls(message, place) if role == "assistant" else []
        if not calls and _is_silent(message):
            continue
        turns.append(Turn(message, calls, [None] * len(calls)))
        for index in reversed(range(len(calls))):  # so that the first of two calls with one id is answered first
            name = _id(calls[index], "id", f"messages[{place}].tool_calls[{index}]")
            waiting[name].append((turns[-1].answers, index))
    return turns


def _role(message: Plain, place: int) -> str:
    if not isinstance(message, Mapping):
        raise InvalidInputError(f"messages[{place}] must be a dict, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidInputError(f"messages[{place}].role {role!r} is unknown; one of: {', '.join(Role)}")
    return role


def _calls(message: Plain, place: int) -> Sequence[Plain]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, (list, tuple)) or not all(isinstance(call, Mapping) for call in calls):
        raise InvalidInputError(f"messages[{place}].tool_calls must be a list of dicts")
    return calls


def _id(value: Plain, field: str, place: str) -> str | None:
    """An id, or None: calls of some local models have none."""
    found = value.get(field)
    if found is not None and not isinstance(found, str):
        raise InvalidInputError(f"{place}.{field} must be text, not {type(found).__name__}")
    return found


def _is_silent(message: Plain) -> bool:
    content = message.get("content")
    if isinstance(content, str) and content.strip():  # the usual case, without making parts
        return False
    items = content if _is_parts(content) else []
    if any(api_of(item, message) is not None and kind_of(item) not in TIED_TO_CALLS for item in items):  # a server tool's work
        return False
    return not message.get("attachments") and not message_parts(message, frozenset(), named_image)


def answers_to(turn: Turn, note: str, notes: Mapping[str, str]) -> list[Plain]:
    """The answer to each call of a turn; for a call without one its outcome, its text in `notes`, or `note`."""
    return [
        _closing(call, note, notes) if answer is None else answer for call, answer in zip(turn.calls, turn.answers, strict=True)
    ]


def _closing(call: Plain, note: str, notes: Mapping[str, str]) -> dict[str, Any]:
    """The answer shown for a call that no message answers."""
    answer = {"role": "tool", "tool_call_id": call.get("id")}
    if call.get("status") == "completed":
        return answer | {"content": call.get("result")}
    if call.get("status") == "failed":
        return answer | {"content": call.get("error") or FAILED, "metadata": {"is_error": True}}
    return answer | {"content": notes.get(call.get("id") or "", note)}


def has_failed(message: Plain) -> bool:
    """Whether a message answers a call with an error."""
    return bool(message.get("is_error") or (message.get("metadata") or {}).get("is_error"))


def message_parts(message: Plain, known: frozenset[str], image: Callable[[str], Part], api: str | None = None) -> list[Part]:
    """The content and the attachments as parts: non-blank text, images by `image`, `known` ones and those of `api` unchanged.

    Parts that only another API can read are left out.
    """
    content = message.get("content")
    items: list[Any] = content if _is_parts(content) else [content]
    found = [
        _part(item, known, image)
        if (of := api_of(item, message)) is None or kind_of(item) in TIED_TO_CALLS
        else _own(item, of, api)
        for item in items
    ]
    if api == message.get(API) == ANTHROPIC:
        found = [_cited(part, item) for part, item in zip(found, items, strict=True)]
    found += [_attached(item, image) for item in message.get("attachments") or ()]
    return [part for part in found if part is not None and (part["type"] != "text" or part["text"].strip())]


def _own(item: Plain, of: str, api: str | None) -> Part | None:
    return dict(item) if of == api else None


def _cited(part: Part | None, item: Any) -> Part | None:
    """A text with the citations that Anthropic wants back."""
    is_cited = part is not None and part["type"] == "text" and isinstance(item, Mapping) and item.get("citations")
    return {**part, "citations": item["citations"]} if part is not None and is_cited else part


def _is_parts(content: Any) -> TypeGuard[list[Plain]]:
    return isinstance(content, list) and all(
        isinstance(item, Mapping) and isinstance(item.get("type"), str) for item in content
    )


def _part(item: Any, known: frozenset[str], image: Callable[[str], Part]) -> Part | None:
    kind = item.get("type") if isinstance(item, Mapping) else None
    if item is None or (isinstance(kind, str) and kind in _HIDDEN_PARTS - known):
        return None
    if isinstance(kind, str) and kind in known and _NEEDED.get(kind, set()) <= item.keys():
        return _thought(item) if kind in THOUGHTS else dict(item)
    if kind == "text" and isinstance(item.get("text"), str):
        return text_part(item["text"])
    if kind == "refusal" and isinstance(item.get("refusal"), str):
        return text_part(item["refusal"])
    if (address := _image_address(item)) is not None:
        return image(address)
    return text_part(item if isinstance(item, str) else json_text(item))


def _thought(item: Plain) -> Part | None:
    """A thought as signed by its provider, without fields added by others; None if it is not signed."""
    match item:
        case {"type": "thinking", "signature": str(signature)} if signature:
            text = item.get("thinking")  # some have a signature but no text
            return {"type": "thinking", "thinking": text if isinstance(text, str) else "", "signature": signature}
        case {"type": "redacted_thinking", "data": str(data)} if data:
            return {"type": "redacted_thinking", "data": data}
    return None


def _image_address(item: Any) -> str | None:
    """The address of a part's image, a data URL if the part has the bytes; None if it is not an image of a known form."""
    match item:
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "image", "source": {"url": str(url)}}:
            return url
        case {"type": "image", "source": {"media_type": str(kind), "data": str(data)}}:
            return f"data:{kind};base64,{data}"
        case {"type": "image", "mimeType": str(kind), "data": str(data)}:
            return f"data:{kind};base64,{data}"
    return None


def _attached(item: Plain, image: Callable[[str], Part]) -> Part:
    found = Attachment.from_dict(item)
    address = found.url
    if isinstance(found.content, bytes):
        address = f"data:{found.mime_type};base64,{base64.b64encode(found.content).decode()}"
    part = image(address) if address and found.attachment_type == AttachmentType.IMAGE else None
    return part if part and part["type"] != "text" else text_part(f"[attachment: {found.name}, {found.mime_type}]")


def named_image(address: str) -> Part:
    """An image as text, where none can be shown."""
    return text_part("[image]" if address.startswith("data:") else f"[image: {address}]")


def text_part(text: str) -> Part:
    """A text as a part."""
    return {"type": "text", "text": text}


def fresh(wanted: str, used: set[str], longest: int) -> str:
    """An id that no earlier call has, close to the wanted one; it only depends on earlier calls."""
    name = wanted[:longest] or "call"
    count = len(used)
    while name in used:
        name = f"{wanted[: longest - 8] or 'call'}_{count}"
        count += 1
    used.add(name)
    return name


def spelled(call: Plain) -> Plain:
    """A call with its name and arguments at the top."""
    inner = call.get("function")  # some providers nest the name and the arguments
    return {**call, **inner} if isinstance(inner, Mapping) else call


def name_in(call: Plain) -> str:
    """The name of a called tool, in characters that every provider takes."""
    given = spelled(call)
    return NOT_IN_NAMES.sub("_", written(given.get("name") or given.get("tool_name") or "unknown"))[:_NAME_LENGTH]


def arguments_in(call: Plain) -> str:
    """The arguments as the JSON text of an object; invalid ones become its only field, as text."""
    given = spelled(call).get("arguments")
    strict = partial(json.dumps, ensure_ascii=False, allow_nan=False, default=str)
    try:
        found = json.loads(given or "{}") if isinstance(given, str) else given or {}
        return strict(found if isinstance(found, Mapping) else {"arguments": found})
    except (TypeError, ValueError, RecursionError):
        return strict({"arguments": given if isinstance(given, str) else json_text(given)})
