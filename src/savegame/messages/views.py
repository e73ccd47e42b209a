"""The messages for a model: views of a conversation that a provider accepts, in our form, OpenAI's and Anthropic's.

Pure functions over plain messages; neither what is stored nor the given messages change. In every view each call of an
assistant message is answered by exactly one tool message, directly after it and in the order of the calls. What a provider
does not accept becomes text or is left out, so that every conversation can be continued, wherever it crashed. Touches domain,
text and errors.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeGuard

from savegame.encoding.text import written
from savegame.errors import InvalidInputError
from savegame.messages.domain import Attachment, AttachmentType, Conversation, Message, Role, ToolCall, json_text

INTERRUPTED: Final = "interrupted; outcome unknown"
"""The result shown for a call without one."""
FAILED: Final = "failed; nothing more is known"
"""The reason shown for a failure without one; Anthropic refuses an error without text."""
OPENING: Final = "(the conversation continues)"
"""The user message put first for Anthropic if the conversation does not start with one."""

_ROLES: Final = frozenset(role.value for role in Role)
_OPENAI_ID_LENGTH: Final = 40
_ANTHROPIC_ID_LENGTH: Final = 64
_NAME_LENGTH: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,(.+)", re.DOTALL)

_OUTCOME: Final = ("status", "result", "error")
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
_HIDDEN_PARTS: Final = _THOUGHTS | {"tool_use", "tool_result"}
"""Parts that only their own provider can read, and calls in its form, which `tool_calls` already has."""
_OPENAI_PARTS: Final = {"user": frozenset({"image_url", "input_audio", "file"})}
_ANTHROPIC_PARTS: Final = {
    "user": frozenset({"document", "search_result"}),
    "tool": frozenset({"document", "search_result"}),
    "assistant": _THOUGHTS | {"tool_use"},
}
"""The parts besides text that each provider knows by our names, by the role that may send them."""
_NEEDED: Final = {
    "input_audio": {"input_audio"},
    "file": {"file"},
    "document": {"source"},
    "search_result": {"source", "title", "content"},
}
"""The fields without which a provider refuses a part that it knows."""

Plain = Mapping[str, Any]
Part = dict[str, Any]


class _Turn(NamedTuple):
    """A message that is not a tool result, its calls, and the answer to each or None."""

    message: Plain
    calls: Sequence[Plain]
    answers: list[Plain | None]


def closed(
    messages: Iterable[Plain], note: str = INTERRUPTED, *, notes: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The messages with every tool call answered, once, directly after its message and in the order of the calls.

    A late answer moves up to its call: the nearest call before it with its id and no answer yet, since providers reuse ids. An
    answer without such a call (a second one, for example) is left out. A call without an answer gets the outcome stored in the
    call itself, else the note for its id in `notes`, else `note`.

    Empty messages (blank content, no calls, no attachments) are left out, since Anthropic refuses them. System messages and
    consecutive messages of one role stay: OpenAI accepts them, `anthropic_messages` joins them. The dicts are new; the values
    in them are shared with the given messages.
    """
    return [dict(message) for turn in _turns(messages) for message in (turn.message, *_answers(turn, note, notes or {}))]


def select_messages(
    messages: Iterable[Plain],
    *,
    budget: int | None = None,
    strategy: str | None = None,
    keep_recent: int = 10,
    summary: str | None = None,
    note: str = INTERRUPTED,
    notes: Mapping[str, str] | None = None,
    **unknown: Any,
) -> list[dict[str, Any]]:
    """The messages that fit a budget of tokens or remain after a strategy of `Conversation.compact`, closed; else all.

    Calls and results stay together, and the newest are kept even over budget: a model needs something to answer. Messages keep
    all their fields; one that became a note, or lost its calls, keeps those that are not about calls.
    """
    if unknown:
        options = "budget, strategy, keep_recent, summary"
        raise InvalidInputError(f"{', '.join(unknown)}: unknown; messages for a model are selected by {options}")
    if budget is None and strategy is None:
        return closed(messages, note, notes=notes)
    pairs = [pair for place, turn in enumerate(_turns(messages)) for pair in _weighed(place, turn)]
    conversation = Conversation(messages=[message for message, _ in pairs])
    if strategy is not None:
        window = conversation.compact(strategy, budget=budget, keep_recent=keep_recent, summary=summary)
    else:
        window = conversation.context_window(budget)
        if all(message.role == Role.SYSTEM for message in window):
            window = conversation.compact("sliding_window", budget=budget)
    known = {message.id: (message, given) for message, given in pairs}
    return closed([_given(message, *known.get(message.id, (None, {}))) for message in window], note, notes=notes)


def readable_call(call: Plain, otherwise: str) -> ToolCall:
    """A call that ToolCall accepts; unreadable parts become text. `otherwise` is the id of a call without one."""
    try:
        return ToolCall.from_dict({**call, "id": call.get("id") or otherwise})
    except InvalidInputError:
        others = {name: value for name, value in _spelled(call).items() if name not in ("function", *_OUTCOME)}
        known = {"id": written(call.get("id") or otherwise), "name": _name(call), "arguments": json.loads(_arguments(call))}
        return ToolCall.from_dict(others | known)


def openai_messages(
    messages: Iterable[Plain], note: str = INTERRUPTED, *, notes: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The closed messages in the form of OpenAI's chat completions, without our own fields.

    Images, attached or as parts of either provider, are included in user messages (PNG, JPEG, GIF, WebP, or a web address);
    other attachments are named. Call ids that are too long or used twice are replaced, the same way each time.
    """
    used: set[str] = set()
    found = (_openai_turn(turn, _answers(turn, note, notes or {}), used) for turn in _turns(messages))
    return [message for turn in found for message in turn]


def anthropic_messages(
    messages: Iterable[Plain], note: str = INTERRUPTED, *, notes: Mapping[str, str] | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """The system text, and the closed messages as Anthropic's content blocks; roles alternate and the user begins.

    All system messages are joined into Anthropic's single system text, which may be empty. A call stays where its `tool_use`
    part was, else comes last, and no thought moves: Anthropic signs thoughts together with what precedes them. Thoughts that
    nothing follows, without a signature, or whose calls are not included are left out.

    The results of a message's calls come in the one user message after it, before the user's own content. If the user does
    not begin, a user message with `OPENING` comes first. A view that ends with the assistant asks Anthropic to continue that
    text. Ids that are used twice or have characters that Anthropic refuses are replaced, the same way each time.
    """
    used: set[str] = set()
    systems: list[str] = []
    merged: list[dict[str, Any]] = []
    for turn in _turns(messages):
        if turn.message["role"] == "system":
            systems += [text] if (text := _openai_content(turn.message)) else []
            continue
        for role, blocks in _anthropic_turn(turn, _answers(turn, note, notes or {}), used):
            _add(merged, role, blocks)
    if not merged or merged[0]["role"] != "user":
        merged.insert(0, {"role": "user", "content": [_text(OPENING)]})
    last = merged[-1]["content"][-1]
    if merged[-1]["role"] == "assistant" and last["type"] == "text":
        last["text"] = last["text"].rstrip()  # Anthropic refuses trailing white space in a text to continue
    return "\n\n".join(systems), merged


def _turns(messages: Iterable[Plain]) -> list[_Turn]:
    turns: list[_Turn] = []
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
        turns.append(_Turn(message, calls, [None] * len(calls)))
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
    return not message.get("attachments") and not _parts(message, frozenset(), _named_image)


def _answers(turn: _Turn, note: str, notes: Mapping[str, str]) -> list[Plain]:
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


def _weighed(place: int, turn: _Turn) -> Iterator[tuple[Message, Plain]]:
    """The messages of a turn as domain objects, with places as ids and unique call ids; and as given."""
    calls = [ToolCall(f"{place}.{index}", _name(call), json.loads(_arguments(call))) for index, call in enumerate(turn.calls)]
    yield _domain_message(turn.message, str(place), tool_calls=calls), turn.message
    for call, answer in zip(calls, turn.answers, strict=True):
        if answer is not None:
            yield _domain_message(answer, f"{call.id}=", tool_call_id=call.id), answer


def _domain_message(message: Plain, name: str, **about_calls: Any) -> Message:
    known = {"id": name, "timestamp": None, "tokens": message.get("tokens"), **about_calls}
    return Message(message["role"], message.get("content"), metadata={"is_error": _has_failed(message)}, **known)


def _given(message: Message, before: Message | None, given: Plain) -> Plain:
    if message is before:
        return given
    rest = {name: value for name, value in given.items() if name not in ("tool_calls", "tool_call_id", "tokens")}
    return {**rest, "role": message.role.value, "content": message.content}


def _has_failed(message: Plain) -> bool:
    return bool(message.get("is_error") or (message.get("metadata") or {}).get("is_error"))


def _openai_turn(turn: _Turn, answers: Iterable[Plain], used: set[str]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": turn.message["role"], "content": _openai_content(turn.message)}
    if not turn.calls:
        return [message] if message["content"] else []
    names = [_fresh(call.get("id") or "", used, _OPENAI_ID_LENGTH) for call in turn.calls]
    message["tool_calls"] = [
        {"id": name, "type": "function", "function": {"name": _name(call), "arguments": _arguments(call)}}
        for name, call in zip(names, turn.calls, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": name, "content": _openai_content(answer) or (FAILED if _has_failed(answer) else "")}
        for name, answer in zip(names, answers, strict=True)
    ]
    return [message, *results]


def _openai_content(message: Plain) -> Any:
    """Text, or parts if some are not text; None if empty."""
    role = message["role"]
    parts = _parts(message, _OPENAI_PARTS.get(role, frozenset()), _openai_image if role == "user" else _named_image)
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts) or None
    return parts


def _anthropic_turn(turn: _Turn, answers: Iterable[Plain], used: set[str]) -> Iterator[tuple[str, list[Part]]]:
    names = [_fresh(_NOT_IN_NAMES.sub("_", call.get("id") or ""), used, _ANTHROPIC_ID_LENGTH) for call in turn.calls]
    uses = [
        {"type": "tool_use", "id": name, "name": _name(call), "input": json.loads(_arguments(call))}
        for name, call in zip(names, turn.calls, strict=True)
    ]
    yield turn.message["role"], _calls_last(_placed(_anthropic_blocks(turn.message), turn.calls, uses))
    yield "user", [_tool_result(name, answer) for name, answer in zip(names, answers, strict=True)]


def _placed(blocks: list[Part], calls: Sequence[Plain], uses: list[Part]) -> list[Part]:
    """The blocks with each call in place of its part, or at the end; without thoughts if a part has no call."""
    waiting = list(range(len(calls)))
    found: list[Part] = []
    is_whole = True
    for block in blocks:
        if block["type"] != "tool_use":
            found.append(block)
        elif (index := next((n for n in waiting if calls[n].get("id") == block.get("id")), None)) is not None:
            waiting.remove(index)
            found.append(uses[index])
        else:
            is_whole = False
    found += [uses[index] for index in waiting]
    return found if is_whole else [block for block in found if block["type"] not in _THOUGHTS]


def _calls_last(blocks: list[Part]) -> list[Part]:
    """The blocks without a thought at the end, and with text after the last calls moved before them.

    Anthropic refuses a message that ends with a thought; one with thoughts and calls must end with calls.
    """
    end = 1 + max((n for n, block in enumerate(blocks) if block["type"] not in _THOUGHTS), default=-1)
    last = 1 + max((n for n, block in enumerate(blocks) if block["type"] == "tool_use"), default=end - 1)
    first = last
    while first and blocks[first - 1]["type"] == "tool_use":
        first -= 1
    behind = [block for block in blocks[last:end] if block["type"] not in _THOUGHTS]
    return blocks[:first] + behind + blocks[first:last]


def _tool_result(name: str, answer: Plain) -> Part:
    result: Part = {"type": "tool_result", "tool_use_id": name}
    if _has_failed(answer):  # an error may only contain text
        return result | {"content": _parts(answer, frozenset(), _named_image) or [_text(FAILED)], "is_error": True}
    if blocks := _anthropic_blocks(answer):
        result["content"] = blocks
    return result


def _anthropic_blocks(message: Plain) -> list[Part]:
    role = message["role"]
    image = _named_image if role == "assistant" else _anthropic_image
    return _parts(message, _ANTHROPIC_PARTS.get(role, frozenset()), image)


def _add(merged: list[dict[str, Any]], role: str, blocks: list[Part]) -> None:
    if blocks and merged and merged[-1]["role"] == role:
        merged[-1]["content"] += blocks
    elif blocks:
        merged.append({"role": role, "content": blocks})


def _parts(message: Plain, known: frozenset[str], image: Callable[[str], Part]) -> list[Part]:
    """The content and the attachments as parts: non-blank text, images by `image`, `known` ones unchanged."""
    content = message.get("content")
    items: list[Any] = content if _is_parts(content) else [content]
    found = [_part(item, known, image) for item in items]
    found += [_attached(item, image) for item in message.get("attachments") or ()]
    return [part for part in found if part is not None and (part["type"] != "text" or part["text"].strip())]


def _is_parts(content: Any) -> TypeGuard[list[Plain]]:
    return isinstance(content, list) and all(
        isinstance(item, Mapping) and isinstance(item.get("type"), str) for item in content
    )


def _part(item: Any, known: frozenset[str], image: Callable[[str], Part]) -> Part | None:
    kind = item.get("type") if isinstance(item, Mapping) else None
    if item is None or (isinstance(kind, str) and kind in _HIDDEN_PARTS - known):
        return None
    if isinstance(kind, str) and kind in known and _NEEDED.get(kind, set()) <= item.keys():
        return _thought(item) if kind in _THOUGHTS else dict(item)
    if kind == "text" and isinstance(item.get("text"), str):
        return _text(item["text"])
    if (address := _image_address(item)) is not None:
        return image(address)
    return _text(item if isinstance(item, str) else json_text(item))


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
    return part if part and part["type"] != "text" else _text(f"[attachment: {found.name}, {found.mime_type}]")


def _openai_image(address: str) -> Part:
    is_shown = address.startswith(("https://", "http://")) or _DATA_URL.fullmatch(address)
    return {"type": "image_url", "image_url": {"url": address}} if is_shown else _named_image(address)


def _anthropic_image(address: str) -> Part:
    if data := _DATA_URL.fullmatch(address):
        return {"type": "image", "source": {"type": "base64", "media_type": data[1], "data": data[2]}}
    is_shown = address.startswith("https://")
    return {"type": "image", "source": {"type": "url", "url": address}} if is_shown else _named_image(address)


def _named_image(address: str) -> Part:
    return _text("[image]" if address.startswith("data:") else f"[image: {address}]")


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _fresh(wanted: str, used: set[str], longest: int) -> str:
    """An id that no earlier call has, close to the wanted one; it only depends on earlier calls."""
    name = wanted[:longest] or "call"
    count = len(used)
    while name in used:
        name = f"{wanted[: longest - 8] or 'call'}_{count}"
        count += 1
    used.add(name)
    return name


def _spelled(call: Plain) -> Plain:
    inner = call.get("function")  # some providers nest the name and the arguments
    return {**call, **inner} if isinstance(inner, Mapping) else call


def _name(call: Plain) -> str:
    spelled = _spelled(call)
    return _NOT_IN_NAMES.sub("_", written(spelled.get("name") or spelled.get("tool_name") or "unknown"))[:_NAME_LENGTH]


def _arguments(call: Plain) -> str:
    """The arguments as the JSON text of an object; invalid ones become its only field, as text."""
    given = _spelled(call).get("arguments")
    strict = partial(json.dumps, ensure_ascii=False, allow_nan=False, default=str)
    try:
        found = json.loads(given or "{}") if isinstance(given, str) else given or {}
        return strict(found if isinstance(found, Mapping) else {"arguments": found})
    except (TypeError, ValueError, RecursionError):
        return strict({"arguments": given if isinstance(given, str) else json_text(given)})
