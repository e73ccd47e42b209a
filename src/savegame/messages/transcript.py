"""What the messages of a state say, whichever framework wrote them: who, what, which calls, which files. Pure.

Reads our messages, those of providers and those of LangGraph, and takes nothing for granted: a state may hold anything.
Nothing is cut, and nothing is left out because it is of no known kind. Touches plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from savegame.encoding.plain import Plain

PATHS: Final = (("messages",), ("channel_values", "messages"))
"""Where messages are in a state: in ours, and in those of LangGraph threads."""

ROLES: Final = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system"}
"""What other frameworks call whom."""

FILES: Final = ("image", "image_url", "document", "file", "input_audio")
"""Parts of a content that are no text but a file."""


class Call(NamedTuple):
    """A tool call; `result` is None where its message does not tell it, and its error if it failed."""

    id: str | None
    name: str
    arguments: Any
    result: Any
    failed: bool


class Said(NamedTuple):
    """A message: `parts` are its texts and whatever else it says, `answers` is the call that it is the result of."""

    role: str
    parts: list[Any]
    calls: list[Call]
    files: list[Mapping[str, Any]]
    answers: str | None
    failed: bool


def messages_in(state: Any) -> Sequence[Any] | None:
    """The messages of a state, None if it holds no conversation."""
    for path in PATHS:
        found = state.to_dict() if isinstance(state, Plain) else state
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, (list, tuple)):
            return found
    return None


def said_in(message: Any) -> Said:
    """What a message says."""
    if isinstance(message, Plain):
        message = message.to_dict()
    if not isinstance(message, Mapping):
        return Said("message", [message], [], [], None, failed=False)
    content = message.get("content", message.get("text"))
    parts = list(content) if isinstance(content, (list, tuple)) else [] if content in (None, "") else [content]
    given = [part for part in parts if _of(part, "tool_use")]
    listed = message.get("tool_calls")
    role, answers = message.get("role", message.get("type")), message.get("tool_call_id")
    metadata = message.get("metadata")
    return Said(
        ROLES.get(role, role) if isinstance(role, str) else "message",
        [_spoken(part) for part in parts if not _of(part, "tool_use", *FILES)],
        list(map(_call, listed if isinstance(listed, (list, tuple)) and listed else given)),
        files_of(message),
        answers if isinstance(answers, str) else None,
        failed=bool(message.get("is_error") or (isinstance(metadata, Mapping) and metadata.get("is_error"))),
    )


def files_of(message: Any) -> list[Mapping[str, Any]]:
    """What is attached to a message, and the parts of its content that are files."""
    if not isinstance(message, Mapping):
        return []
    content, attachments = message.get("content"), message.get("attachments")
    parts = [part for part in content if _of(part, *FILES)] if isinstance(content, list) else []
    return parts + ([part for part in attachments if isinstance(part, Mapping)] if isinstance(attachments, list) else [])


def file_name(file: Mapping[str, Any], place: int) -> str:
    """What an attached file is called, or which of its message it is."""
    name = file.get("name", file.get("filename"))
    return name if isinstance(name, str) and name else f"attachment {place + 1}"


def file_kind(file: Mapping[str, Any]) -> str:
    """What an attached file is said to be."""
    kind = file.get("mime_type", file.get("attachment_type", file.get("type")))
    return kind if isinstance(kind, str) else "file"


def _of(part: Any, *kinds: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") in kinds


def _spoken(part: Any) -> Any:
    """Providers write texts as they are, or as a dict with `text`."""
    found = part.get("text", part.get("thinking")) if isinstance(part, Mapping) else None
    return part if found is None else found


def _call(call: Any) -> Call:
    """Providers put a call's name and arguments beside its id, or one level below."""
    outer = call if isinstance(call, Mapping) else {"arguments": call}
    inner = outer.get("function")
    known = {**outer, **inner} if isinstance(inner, Mapping) else outer
    given, name, error = known.get("id"), known.get("name", known.get("tool_name")), known.get("error")
    return Call(
        given if isinstance(given, str) else None,
        name if isinstance(name, str) else "call",
        known.get("arguments", known.get("args", known.get("input"))),
        known.get("result") if error is None else error,
        failed=known.get("status") == "failed" or known.get("success") is False,
    )
