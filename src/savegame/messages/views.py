"""The messages for a model: views of a conversation that a provider accepts, in our form, OpenAI's and Anthropic's.

Pure functions over plain messages; neither what is stored nor the given messages change. In every view each call of an
assistant message is answered by exactly one tool message, directly after it and in the order of the calls. What a provider
does not accept becomes text or is left out, so that every conversation can be continued, wherever it crashed. Touches domain,
text and errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from savegame.encoding.text import written
from savegame.errors import InvalidInputError
from savegame.messages.blocks import ANTHROPIC, SERVER_USES, THOUGHTS
from savegame.messages.domain import Conversation, Message, Role, ToolCall
from savegame.messages.turns import FAILED as FAILED
from savegame.messages.turns import (
    NOT_IN_NAMES,
    Part,
    Plain,
    Turn,
    answers_to,
    arguments_in,
    fresh,
    has_failed,
    message_parts,
    name_in,
    named_image,
    spelled,
    text_part,
    turns_of,
)

INTERRUPTED: Final = "interrupted; outcome unknown"
"""The result shown for a call without one."""
OPENING: Final = "(the conversation continues)"
"""The user message put first for Anthropic if the conversation does not start with one."""

_OPENAI_ID_LENGTH: Final = 40
_ANTHROPIC_ID_LENGTH: Final = 64
_DATA_URL: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,(.+)", re.DOTALL)

_OUTCOME: Final = ("status", "result", "error")
_OPENAI_PARTS: Final = {"user": frozenset({"image_url", "input_audio", "file"})}
_ANTHROPIC_PARTS: Final = {
    "user": frozenset({"document", "search_result"}),
    "tool": frozenset({"document", "search_result"}),
    "assistant": THOUGHTS | {"tool_use"},
}
"""The parts besides text that each provider knows by our names, by the role that may send them."""
_GIVEN_BACK: Final = ("reasoning_details", "reasoning_content")
"""Fields of a message with calls that OpenAI-compatible APIs sent and want back."""


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
    return [dict(message) for turn in turns_of(messages) for message in (turn.message, *answers_to(turn, note, notes or {}))]


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
    pairs = [pair for place, turn in enumerate(turns_of(messages)) for pair in _weighed(place, turn)]
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
        others = {name: value for name, value in spelled(call).items() if name not in ("function", *_OUTCOME)}
        known = {"id": written(call.get("id") or otherwise), "name": name_in(call), "arguments": json.loads(arguments_in(call))}
        return ToolCall.from_dict(others | known)


def openai_messages(
    messages: Iterable[Plain], note: str = INTERRUPTED, *, notes: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The closed messages in the form of OpenAI's chat completions, without our own fields.

    Images, attached or as parts of either provider, are included in user messages (PNG, JPEG, GIF, WebP, or a web address);
    other attachments are named. Call ids that are too long or used twice are replaced, the same way each time.
    """
    used: set[str] = set()
    found = (_openai_turn(turn, answers_to(turn, note, notes or {}), used) for turn in turns_of(messages))
    return [message for turn in found for message in turn]


def anthropic_messages(
    messages: Iterable[Plain], note: str = INTERRUPTED, *, notes: Mapping[str, str] | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """The system text, and the closed messages as Anthropic's content blocks; roles alternate and the user begins.

    All system messages are joined into Anthropic's single system text, which may be empty. A call stays where its `tool_use`
    part was, else comes last, and no thought moves: Anthropic signs thoughts together with what precedes them. Thoughts that
    nothing follows, without a signature, or whose calls are not included are left out. What server tools did stays in its
    place, and so do citations.

    The results of a message's calls come in the one user message after it, before the user's own content. If the user does
    not begin, a user message with `OPENING` comes first. A view that ends with the assistant asks Anthropic to continue that
    text. Ids that are used twice or have characters that Anthropic refuses are replaced, the same way each time.
    """
    used: set[str] = set()
    systems: list[str] = []
    merged: list[dict[str, Any]] = []
    for turn in turns_of(messages):
        if turn.message["role"] == "system":
            systems += [text] if (text := _openai_content(turn.message)) else []
            continue
        for role, blocks in _anthropic_turn(turn, answers_to(turn, note, notes or {}), used):
            _add(merged, role, blocks)
    merged = _without_open_work(merged)
    if not merged or merged[0]["role"] != "user":
        merged.insert(0, {"role": "user", "content": [text_part(OPENING)]})
    last = merged[-1]["content"][-1]
    if merged[-1]["role"] == "assistant" and last["type"] == "text":
        last["text"] = last["text"].rstrip()  # Anthropic refuses trailing white space in a text to continue
    return "\n\n".join(systems), merged


def _weighed(place: int, turn: Turn) -> Iterator[tuple[Message, Plain]]:
    """The messages of a turn as domain objects, with places as ids and unique call ids; and as given."""
    calls = [
        ToolCall(f"{place}.{index}", name_in(call), json.loads(arguments_in(call))) for index, call in enumerate(turn.calls)
    ]
    yield _domain_message(turn.message, str(place), tool_calls=calls), turn.message
    for call, answer in zip(calls, turn.answers, strict=True):
        if answer is not None:
            yield _domain_message(answer, f"{call.id}=", tool_call_id=call.id), answer


def _domain_message(message: Plain, name: str, **about_calls: Any) -> Message:
    known = {"id": name, "timestamp": None, "tokens": message.get("tokens"), **about_calls}
    return Message(message["role"], message.get("content"), metadata={"is_error": has_failed(message)}, **known)


def _given(message: Message, before: Message | None, given: Plain) -> Plain:
    if message is before:
        return given
    rest = {name: value for name, value in given.items() if name not in ("tool_calls", "tool_call_id", "tokens")}
    return {**rest, "role": message.role.value, "content": message.content}


def _openai_turn(turn: Turn, answers: Iterable[Plain], used: set[str]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": turn.message["role"], "content": _openai_content(turn.message)}
    if not turn.calls:
        return [message] if message["content"] else []
    names = [fresh(call.get("id") or "", used, _OPENAI_ID_LENGTH) for call in turn.calls]
    message["tool_calls"] = [
        {"id": name, "type": "function", "function": {"name": name_in(call), "arguments": arguments_in(call)}}
        | ({"extra_content": call["extra_content"]} if call.get("extra_content") else {})  # Gemini signs calls there
        for name, call in zip(names, turn.calls, strict=True)
    ]
    message |= {name: turn.message[name] for name in _GIVEN_BACK if turn.message.get(name)}
    results = [
        {"role": "tool", "tool_call_id": name, "content": _openai_content(answer) or (FAILED if has_failed(answer) else "")}
        for name, answer in zip(names, answers, strict=True)
    ]
    return [message, *results]


def _openai_content(message: Plain) -> Any:
    """Text, or parts if some are not text; None if empty."""
    role = message["role"]
    parts = message_parts(message, _OPENAI_PARTS.get(role, frozenset()), _openai_image if role == "user" else named_image)
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts) or None
    return parts


def _anthropic_turn(turn: Turn, answers: Iterable[Plain], used: set[str]) -> Iterator[tuple[str, list[Part]]]:
    names = [fresh(NOT_IN_NAMES.sub("_", call.get("id") or ""), used, _ANTHROPIC_ID_LENGTH) for call in turn.calls]
    uses = [
        {"type": "tool_use", "id": name, "name": name_in(call), "input": json.loads(arguments_in(call))}
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
    return found if is_whole else [block for block in found if block["type"] not in THOUGHTS]


def _calls_last(blocks: list[Part]) -> list[Part]:
    """The blocks without a thought at the end, and with text after the last calls moved before them.

    Anthropic refuses a message that ends with a thought; one with thoughts and calls must end with calls.
    """
    end = 1 + max((n for n, block in enumerate(blocks) if block["type"] not in THOUGHTS), default=-1)
    last = 1 + max((n for n, block in enumerate(blocks) if block["type"] == "tool_use"), default=end - 1)
    first = last
    while first and blocks[first - 1]["type"] == "tool_use":
        first -= 1
    behind = [block for block in blocks[last:end] if block["type"] not in THOUGHTS]
    return blocks[:first] + behind + blocks[first:last]


def _tool_result(name: str, answer: Plain) -> Part:
    result: Part = {"type": "tool_result", "tool_use_id": name}
    if has_failed(answer):  # an error may only contain text
        return result | {"content": message_parts(answer, frozenset(), named_image) or [text_part(FAILED)], "is_error": True}
    if blocks := _anthropic_blocks(answer):
        result["content"] = blocks
    return result


def _anthropic_blocks(message: Plain) -> list[Part]:
    role = message["role"]
    image = named_image if role == "assistant" else _anthropic_image
    return message_parts(message, _ANTHROPIC_PARTS.get(role, frozenset()), image, ANTHROPIC)


def _without_open_work(merged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without what a server tool began and did not end, except in the last: Anthropic goes on with that one."""
    found: list[dict[str, Any]] = []
    for message in merged:
        blocks = message["content"]
        if message["role"] == "assistant" and message is not merged[-1]:
            ended = {block.get("tool_use_id") for block in blocks}
            whole = [block for block in blocks if block["type"] not in SERVER_USES or block.get("id") in ended]
            blocks = blocks if len(whole) == len(blocks) else [block for block in whole if block["type"] not in THOUGHTS]
        _add(found, message["role"], blocks)
    return found


def _add(merged: list[dict[str, Any]], role: str, blocks: list[Part]) -> None:
    if blocks and merged and merged[-1]["role"] == role:
        merged[-1]["content"] += blocks
    elif blocks:
        merged.append({"role": role, "content": blocks})


def _openai_image(address: str) -> Part:
    is_shown = address.startswith(("https://", "http://")) or _DATA_URL.fullmatch(address)
    return {"type": "image_url", "image_url": {"url": address}} if is_shown else named_image(address)


def _anthropic_image(address: str) -> Part:
    if data := _DATA_URL.fullmatch(address):
        return {"type": "image", "source": {"type": "base64", "media_type": data[1], "data": data[2]}}
    is_shown = address.startswith("https://")
    return {"type": "image", "source": {"type": "url", "url": address}} if is_shown else named_image(address)
