"""Messages of any framework as role, texts, calls and files. Pure.

Reads our messages, those of providers and of LangGraph, and assumes nothing: a state may contain any value. Nothing is cut,
and parts of unknown kinds are kept. `locate` finds the messages of a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from savegame.encoding.plain import Plain
from savegame.encoding.text import plain_text
from savegame.messages.blocks import CALL_IDS, REASONING

ROLES: Final = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system"}
"""Names of roles in other frameworks."""

FILES: Final = ("image", "image_url", "document", "file", "input_audio")
"""Parts of a content that are files."""


class MessageCall(NamedTuple):
    """A tool call in a message; `result` is None if the message does not have it, and the error if the call failed."""

    id: str | None
    name: str
    arguments: Any
    result: Any
    failed: bool


class Transcript(NamedTuple):
    """A message: `parts` are its texts and other contents, `answers` is the id of the call whose result it is."""

    role: str
    parts: list[Any]
    calls: list[MessageCall]
    files: list[Mapping[str, Any]]
    answers: str | None
    failed: bool


def read_message(message: Any) -> Transcript:
    """The contents of a message."""
    if isinstance(message, Plain):
        message = message.to_dict()
    if not isinstance(message, Mapping):
        return Transcript("message", [message], [], [], None, failed=False)
    content = message.get("content", message.get("text"))
    parts = list(content) if isinstance(content, (list, tuple)) else [] if content in (None, "") else [content]
    given = [part for part in parts if _of(part, *CALL_IDS)]
    listed = message.get("tool_calls")
    role, answers = message.get("role", message.get("type")), message.get("tool_call_id")
    metadata = message.get("metadata")
    return Transcript(
        ROLES.get(role, role) if isinstance(role, str) else "message",
        [spoken for part in parts if not _of(part, *CALL_IDS, *FILES) if (spoken := _spoken(part)) != ""],
        list(map(_call, listed if isinstance(listed, (list, tuple)) and listed else given)),
        files_of(message),
        answers if isinstance(answers, str) else None,
        failed=bool(message.get("is_error") or (isinstance(metadata, Mapping) and metadata.get("is_error"))),
    )


def is_message(value: Any) -> bool:
    """Whether a value looks like a message of any framework."""
    if not isinstance(value, Mapping) or "content" not in value:
        return False
    return "role" in value or value.get("type") in (*ROLES, "tool", "system")


def summary(message: Any) -> str:
    """A message in one text, for lists: its role, and its texts, or what it calls or carries."""
    found = read_message(message)
    text = "\n".join(map(plain_text, found.parts)) or ", ".join(f"{call.name}(…)" for call in found.calls)
    text = text or ", ".join(map(file_name, found.files, range(len(found.files))))
    return f"{found.role}: {text}" if text else found.role


def files_of(message: Any) -> list[Mapping[str, Any]]:
    """The attachments of a message, and the parts of its content that are files."""
    if not isinstance(message, Mapping):
        return []
    content, attachments = message.get("content"), message.get("attachments")
    parts = [part for part in content if _of(part, *FILES)] if isinstance(content, list) else []
    return parts + ([part for part in attachments if isinstance(part, Mapping)] if isinstance(attachments, list) else [])


def file_name(file: Mapping[str, Any], place: int) -> str:
    """The name of an attached file, or its number in the message."""
    name = file.get("name", file.get("filename"))
    return name if isinstance(name, str) and name else f"attachment {place + 1}"


def file_kind(file: Mapping[str, Any]) -> str:
    """The declared type of an attached file."""
    kind = file.get("mime_type", file.get("attachment_type", file.get("type")))
    return kind if isinstance(kind, str) else "file"


def _of(part: Any, *kinds: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") in kinds


def _spoken(part: Any) -> Any:
    """The text of a part, which providers write directly or as a dict with `text`."""
    found = part.get("text", part.get("thinking", part.get("refusal"))) if isinstance(part, Mapping) else None
    if found is None and _of(part, REASONING) and isinstance(part.get("summary"), list):
        return "\n".join(str(text["text"]) for text in part["summary"] if isinstance(text, Mapping) and "text" in text)
    return part if found is None else found


def _call(call: Any) -> MessageCall:
    """A tool call; providers write its name and arguments next to its id, or one level deeper."""
    outer = call if isinstance(call, Mapping) else {"arguments": call}
    inner = outer.get("function")
    known = {**outer, **inner} if isinstance(inner, Mapping) else outer
    given, name, error = known.get("id"), known.get("name", known.get("tool_name")), known.get("error")
    return MessageCall(
        given if isinstance(given, str) else None,
        name if isinstance(name, str) else "call",
        known.get("arguments", known.get("args", known.get("input"))),
        known.get("result") if error is None else error,
        failed=known.get("status") == "failed" or known.get("success") is False,
    )
