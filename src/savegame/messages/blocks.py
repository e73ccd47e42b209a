"""The parts of a reply that only the API that made it can read: whose they are, and the calls among them. Pure.

A reply in parts is stored as its API sent it, so that thoughts, reasoning and the work of server tools can go back to that API
in their place. Other APIs, and people, are shown the texts and the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

API: Final = "api"
"""The field of a reply in parts for the API that made it."""
ANTHROPIC, RESPONSES = "anthropic", "openai-responses"

STOP_REASON: Final = "stop_reason"
"""The field of a reply for why the model stopped, in the words of its API."""
PAUSED_TURN: Final = "pause_turn"
"""Anthropic's reason for a reply that is to be continued: the model wants to be asked again."""

THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
REASONING: Final = "reasoning"
CALL_IDS: Final = {"tool_use": "id", "function_call": "call_id"}
"""The types of parts that ask for a call of ours, and the field with the call's id."""
TIED_TO_CALLS: Final = THOUGHTS | {REASONING} | CALL_IDS.keys()
"""Parts that mean nothing without their calls."""

_COMMON: Final = frozenset({"text", "refusal", "image", "image_url", "input_audio", "file", "document", "search_result"})
"""Parts that every view understands or writes as text."""
_OF_ANTHROPIC: Final = frozenset({
    "tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result",
    "code_execution_tool_result", "bash_code_execution_tool_result", "text_editor_code_execution_tool_result",
    "tool_search_tool_result", "container_upload",
}) | THOUGHTS  # fmt: skip
SERVER_USES: Final = frozenset({"server_tool_use", "mcp_tool_use"})
"""Calls among Anthropic's blocks that Anthropic makes itself; a block with the result names the call."""
SERVER_CALLS: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
)
"""Calls among the items of OpenAI's responses that OpenAI makes itself."""
_OF_RESPONSES: Final = SERVER_CALLS | {REASONING, "function_call", "mcp_list_tools"}


def kind_of(part: Any) -> str | None:
    """The type of a part; None if it has none."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else None


def api_of(part: Any, message: Mapping[str, Any]) -> str | None:
    """The API that alone can read this part of a reply; None if the part is for everyone."""
    kind = kind_of(part)
    if kind is None or kind in _COMMON or message.get("role") != "assistant":
        return None
    if kind in _OF_ANTHROPIC:
        return ANTHROPIC
    if kind in _OF_RESPONSES:
        return RESPONSES
    api = message.get(API)
    return api if isinstance(api, str) else None


def call_in(part: Any) -> dict[str, Any] | None:
    """The call that a part asks for, as an item of `tool_calls`; None if it asks for none."""
    match part:
        case {"type": "tool_use"}:
            given, arguments = part.get("id"), part.get("input")
        case {"type": "function_call", "call_id": given}:
            arguments = part.get("arguments")
        case _:
            return None
    return {"id": given, "name": part.get("name"), "arguments": arguments}


def unlisted_call(message: Mapping[str, Any]) -> str | None:
    """Name the first part of a reply that asks for a call missing in its `tool_calls`; None if all are listed."""
    content, listed = message.get("content"), message.get("tool_calls") or ()
    ids = {call.get("id") for call in listed if isinstance(call, Mapping)}
    for part in content if isinstance(content, list) else ():
        call = call_in(part)
        if call is not None and call["id"] not in ids:
            return f"{part['type']} {call['id']!r} of {call['name']!r}"
    return None


def spoken(content: Any) -> Any:
    """What a reply says: the text of content in parts, None without any; other content as it is."""
    if not isinstance(content, list) or not content or any(kind_of(part) is None for part in content):
        return content
    text, open_line = "", False
    for part in content:  # texts side by side are one text: some APIs split it at every citation
        words = part.get("text", part.get("refusal")) if part["type"] in ("text", "refusal") else None
        if isinstance(words, str):
            text += words if open_line or not text else f"\n{words}"
        open_line = isinstance(words, str)
    return text or None
