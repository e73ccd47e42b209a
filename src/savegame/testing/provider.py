"""The strictness of providers without a provider: checks that reject what the real services answer with status 400.

Call one at the start of a scripted model, and a test fails where a conversation would be stuck for good: a tool call without
a result, a result without a call, anything between the two, duplicate ids, empty content, a moved thought. Thoughts carry
signatures that only Anthropic can make, so a scripted model that thinks signs its content with `signed`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIELDS: Final = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
_PARTS: Final = {"user": {"text", "image_url", "input_audio", "file"}}
_THOUGHTS: Final = {"thinking", "redacted_thinking"}
_BLOCKS: Final = {
    "user": {"text", "image", "document", "search_result", "tool_result"},
    "assistant": {"text", "tool_use", "server_tool_use", "web_search_tool_result"} | _THOUGHTS,
}
_RESULTS: Final = {"text", "image", "document", "search_result"}
_NEEDED: Final = {
    "image_url": {"image_url"},
    "input_audio": {"input_audio"},
    "file": {"file"},
    "image": {"source"},
    "document": {"source"},
    "search_result": {"source", "title", "content"},
    "tool_result": {"tool_use_id"},
    "tool_use": {"id", "name", "input"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
}
"""The required fields of each part; a thought may have no others."""
_SIGNED: Final = "signed after: "


class Rejected(ValueError):
    """The provider would reject these messages; the text names the place and the reason."""


def signed(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The content of an assistant's message with signed thoughts: the signature covers what comes before them.

    `check_anthropic` rejects thoughts at another place than where they were signed.
    """
    result: list[dict[str, Any]] = []
    for block in blocks:
        field = {"thinking": "signature", "redacted_thinking": "data"}.get(block["type"])
        result.append({**block, field: _signature(result)} if field else dict(block))
    return result


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise Rejected unless each call in our plain messages has exactly one result, before any other message."""
    _refuse(not messages, "messages", "is empty")
    open_calls: list[Any] = []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if message.get("role") == "tool":
            _refuse(message.get("tool_call_id") not in open_calls, where, "answers no call of the message before")
            open_calls.remove(message.get("tool_call_id"))
            continue
        _refuse(bool(open_calls), where, f"comes before the results of {open_calls}")
        open_calls = [call.get("id") for call in message.get("tool_calls") or ()]
    _refuse(bool(open_calls), "messages", f"end without the results of {open_calls}")


def check_openai(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise Rejected unless OpenAI's chat completions would accept the messages."""
    check_messages(messages)
    _check_json(messages)
    for place, message in enumerate(messages):
        where, role = f"messages[{place}]", message.get("role")
        _refuse(role not in _FIELDS, f"{where}.role", f"is {role!r}")
        unknown = message.keys() - _FIELDS[str(role)]
        _refuse(bool(unknown), where, f"has unknown fields: {unknown}")
        calls = message.get("tool_calls")
        if calls is not None:
            _check_openai_calls(calls, f"{where}.tool_calls")
        content = message.get("content")
        if role == "tool":
            _refuse(not isinstance(content, str), f"{where}.content", "is not text")
        elif content is not None or not calls:
            _check_content(content, _PARTS.get(str(role), {"text"}), f"{where}.content")


def check_anthropic(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise Rejected unless Anthropic's messages API would accept the messages; roles must alternate."""
    _refuse(not messages, "messages", "is empty")
    _check_json(messages)
    used: set[str] = set()
    open_calls: list[str] = []
    for place, message in enumerate(messages):
        where, role = f"messages[{place}]", message.get("role")
        _refuse(role != ("user", "assistant")[place % 2], f"{where}.role", f"is {role!r}: roles alternate and the user begins")
        _refuse(message.keys() != {"role", "content"}, where, "has other fields than role and content")
        content = message["content"]
        _check_content(content, _BLOCKS[str(role)], f"{where}.content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        _check_results(blocks, open_calls, where)
        open_calls = _check_uses(blocks, used, where)
        if role == "assistant":
            _check_thoughts(blocks, where)
            results = {block.get("tool_use_id") for block in blocks}
            is_open = any(block["type"] == "server_tool_use" and block["id"] not in results for block in blocks)
            _refuse(is_open and place < len(messages) - 1, where, "has a server tool's call without its result")
    _refuse(bool(open_calls), "messages", f"end without the results of {open_calls}")
    end = blocks[-1].get("text", "")
    _refuse(role == "assistant" and end != end.rstrip(), "messages", "end with white space of the assistant")


def check_openai_input(items: Sequence[Mapping[str, Any]]) -> None:
    """Raise Rejected unless OpenAI's responses would accept the items: calls have outputs, reasoning has its next item."""
    _refuse(not items, "input", "is empty")
    _check_json(items)
    open_calls: list[str] = []
    used: set[str] = set()
    for place, (item, after) in enumerate(zip(items, [*items[1:], {}], strict=True)):
        where, kind = f"input[{place}]", item.get("type", "message")
        if kind == "function_call":
            call_id = item["call_id"]
            _refuse(
                call_id in used or not 1 <= len(call_id) <= 64, f"{where}.call_id", f"{call_id!r} is used twice or too long"
            )
            _refuse(not _is_json_object(item.get("arguments")), f"{where}.arguments", "are not the JSON of an object")
            used.add(call_id)
            open_calls.append(call_id)
        elif kind == "function_call_output":
            _refuse(item["call_id"] not in open_calls, where, "answers no call before it")
            open_calls.remove(item["call_id"])
        elif kind == "message":
            _refuse(not item.get("content"), f"{where}.content", "is empty")
            _refuse("type" in item and item["role"] == "assistant" and "id" not in item, where, "is an output without its id")
        elif kind == "reasoning":
            is_last = after.get("role", "assistant") != "assistant" or after.get("type") in (None, "function_call_output")
            _refuse(is_last and "role" not in after, where, "has no item after it")
        _refuse(any(value is None for value in item.values()), where, "has a field without a value")
    _refuse(bool(open_calls), "input", f"ends without the outputs of {open_calls}")


def _refuse(wrong: bool, where: str, why: str) -> None:  # noqa: FBT001 - reads as a sentence
    if wrong:
        raise Rejected(f"{where} {why}")


def _check_json(messages: Any) -> None:
    try:
        json.dumps(messages, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise Rejected(f"messages cannot be sent as JSON: {error}") from error


def _check_content(content: Any, kinds: set[str], where: str) -> None:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    _refuse(not isinstance(parts, list) or not parts, where, "is empty")
    for index, part in enumerate(parts):
        _refuse(part.get("type") not in kinds, f"{where}[{index}].type", f"is {part.get('type')!r}; allowed here: {kinds}")
        _refuse(_is_blank(part), f"{where}[{index}].text", "is blank")
        missing = _NEEDED.get(part["type"], set()) - part.keys()
        _refuse(bool(missing), f"{where}[{index}]", f"has no {missing}")
        is_insecure = part["type"] == "image" and str(part["source"].get("url", "https://"))[:8] != "https://"
        _refuse(is_insecure, f"{where}[{index}].source.url", "is not https")


def _is_blank(part: Mapping[str, Any]) -> bool:
    return part["type"] == "text" and not str(part.get("text", "")).strip()


def _signature(before: Sequence[Mapping[str, Any]]) -> str:
    return _SIGNED + " ".join(block["type"] for block in before if not _is_blank(block))


def _check_thoughts(blocks: Sequence[Mapping[str, Any]], where: str) -> None:
    _refuse(blocks[-1]["type"] in _THOUGHTS, where, "ends with a thought")
    kinds = {block["type"] for block in blocks}
    is_continued = bool(kinds & _THOUGHTS) and "tool_use" in kinds and blocks[-1]["type"] != "tool_use"
    _refuse(is_continued, where, "has thoughts and calls, and does not end with a call")
    for place, block in enumerate(blocks):
        if block["type"] not in _THOUGHTS:
            continue
        here = f"{where}.content[{place}]"
        unknown = block.keys() - _NEEDED[block["type"]] - {"type"}
        _refuse(bool(unknown), here, f"has unknown fields: {unknown}")
        signature = block["signature"] if block["type"] == "thinking" else block["data"]
        _refuse(not isinstance(signature, str) or not signature, here, "is not signed")
        known = {_signature(blocks[start:place]) for start in range(place + 1)}  # messages of one role may have been joined
        is_moved = signature.startswith(_SIGNED) and signature not in known
        _refuse(is_moved, here, "is a thought that was moved; it cannot be modified")


def _check_openai_calls(calls: Sequence[Mapping[str, Any]], where: str) -> None:
    _refuse(not calls, where, "is empty")
    for index, call in enumerate(calls):
        here = f"{where}[{index}]"
        _refuse(call.keys() != {"id", "type", "function"} or call["type"] != "function", here, "is not id, type and function")
        _refuse(not 1 <= len(call["id"]) <= 40, f"{here}.id", "is empty or longer than 40 characters")
        function = call["function"]
        _refuse(_NAME.fullmatch(str(function.get("name"))) is None, f"{here}.function.name", "is not a name")
        _refuse(not _is_json_object(function.get("arguments")), f"{here}.function.arguments", "are not the JSON of an object")
    names = [call["id"] for call in calls]
    _refuse(len(set(names)) < len(names), where, f"use an id twice: {names}")


def _is_json_object(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _check_results(blocks: Sequence[Mapping[str, Any]], open_calls: list[str], where: str) -> None:
    kinds = [block["type"] for block in blocks]
    results = [str(block.get("tool_use_id")) for block in blocks if block["type"] == "tool_result"]
    _refuse(kinds[: len(results)] != ["tool_result"] * len(results), where, "says something before its tool results")
    _refuse(sorted(results) != sorted(open_calls), where, f"has results of {results}, where {open_calls} are wanted")
    for block in blocks:
        if block["type"] != "tool_result":
            continue
        if block.get("is_error"):
            _check_content(block.get("content"), {"text"}, f"{where}.tool_result (is_error)")
        elif "content" in block:
            _check_content(block["content"], _RESULTS, f"{where}.tool_result")


def _check_uses(blocks: Sequence[Mapping[str, Any]], used: set[str], where: str) -> list[str]:
    uses = [block for block in blocks if block["type"] == "tool_use"]
    names = [str(use.get("id")) for use in uses]
    for use, name in zip(uses, names, strict=True):
        _refuse(_ID.fullmatch(name) is None, f"{where}.tool_use.id", f"{name!r} holds other characters than a-z, 0-9, _, -")
        _refuse(name in used, f"{where}.tool_use.id", f"{name!r} is used twice")
        _refuse(_NAME.fullmatch(str(use.get("name"))) is None, f"{where}.tool_use.name", f"is {use.get('name')!r}")
        _refuse(not isinstance(use.get("input"), dict), f"{where}.tool_use.input", "is not an object")
        used.add(name)
    return names
