"""A state as a conversation: who said what, which tools were called with what outcome, what came along. Pure; touches search.

Reads our messages, those of providers and those of LangGraph, and takes nothing for granted: a state may hold anything.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from savegame.search import PATHS
from savegame.web.shown import clipped, plain

ROLES: Final = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system"}
"""What other frameworks call whom."""

IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""The pictures that a page shows, by how their bytes begin: never by what somebody called them."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call: `result` is None while there is none."""

    id: str | None
    name: str
    arguments: str
    result: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class FileView:
    """Something attached to a message; `place` is its number there. `image` if it is a picture that can be shown."""

    place: int
    name: str
    kind: str
    size: int | None
    here: bool
    image: bool
    url: str | None


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message; `place` is its number in the conversation."""

    place: int
    role: str
    text: str
    calls: tuple[CallView, ...] = ()
    files: tuple[FileView, ...] = ()
    failed: bool = False
    tokens: int | None = None
    time: str | None = None
    answers: str | None = None
    """The id of the call that it is the result of."""


def messages_in(state: Any) -> Sequence[Any] | None:
    """The messages of a state, None if it holds no conversation."""
    for path in PATHS:
        found = state
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, (list, tuple)):
            return found
    return None


def viewed(messages: Sequence[Any], first: int, end: int) -> list[MessageView]:
    """Messages from `first` up to `end`; a result is shown at its call, if that is among them.

    It belongs to the oldest call before it that has its id and no result yet: providers use ids again.
    """
    views: list[MessageView] = []
    waiting: dict[str | None, list[tuple[int, int]]] = {}
    for place, message in enumerate(messages[first:end], first):
        view = _view(message, place)
        calls = waiting.get(view.answers, []) if view.answers is not None else []
        if calls:
            index, number = calls.pop(0)
            views[index] = _with_result(views[index], number, view)
            continue
        for number, call in enumerate(view.calls):
            waiting.setdefault(call.id, []).append((len(views), number))
        views.append(view)
    return views


def preview(state: Any) -> str | None:
    """The newest message on one line, for lists."""
    messages = messages_in(state)
    if not messages:
        return None
    view = _view(messages[-1], 0)
    said = view.text or ", ".join(f"{call.name}(…)" for call in view.calls) or ", ".join(file.name for file in view.files)
    return f"{view.role}: {clipped(said, 120)}" if said else view.role


def attached(messages: Sequence[Any], message: int, place: int) -> tuple[str, bytes] | None:
    """The name and the bytes of something attached to a message; None if they are not there."""
    parts = _file_parts(messages[message]) if 0 <= message < len(messages) else []
    data = _bytes_of(parts[place]) if 0 <= place < len(parts) else None
    return None if data is None else (_name_of(parts[place], place), data)


def image_type(data: bytes) -> str | None:
    """The type of a picture that browsers show and that cannot hold scripts; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in IMAGES.items() if data.startswith(start)), None)


def _view(message: Any, place: int) -> MessageView:
    if not isinstance(message, Mapping):
        return MessageView(place, "message", plain(message))
    role = message.get("role", message.get("type"))
    given = role if isinstance(role, str) else "message"
    answers = message.get("tool_call_id")
    time, tokens = message.get("timestamp"), message.get("tokens")
    return MessageView(
        place,
        ROLES.get(given, given),
        _text(message.get("content", message.get("text"))),
        tuple(_calls(message)),
        tuple(_file(part, number) for number, part in enumerate(_file_parts(message))),
        _has_failed(message),
        tokens if isinstance(tokens, int) else None,
        None if time is None else str(time),
        answers if isinstance(answers, str) else None,
    )


def _with_result(view: MessageView, number: int, answer: MessageView) -> MessageView:
    calls = list(view.calls)
    calls[number] = replace(calls[number], result=answer.text, failed=answer.failed)
    return replace(view, calls=tuple(calls))


def _text(content: Any) -> str:
    """What is said: text, or the texts among the parts of a content; anything else as it is."""
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        texts = [part.get("text", part.get("thinking")) for part in content if not _is_file(part) and not _is_call(part)]
        return "\n".join(plain(text) for text in texts if text is not None)
    return plain(content)


def _calls(message: Mapping[str, Any]) -> Iterator[CallView]:
    """The calls of a message, which some providers tell among the parts of its content."""
    calls, content = message.get("tool_calls"), message.get("content")
    listed = calls if isinstance(calls, (list, tuple)) else []
    parts = content if isinstance(content, list) and not listed else []
    return (_call(call) for call in (*listed, *filter(_is_call, parts)) if isinstance(call, Mapping))


def _call(call: Mapping[str, Any]) -> CallView:
    inner = call.get("function")
    known = {**call, **inner} if isinstance(inner, Mapping) else call
    given, name = known.get("id"), known.get("name")
    arguments = known.get("arguments", known.get("args", known.get("input")))
    result = known.get("result") if known.get("error") is None else known["error"]
    return CallView(
        given if isinstance(given, str) else None,
        name if isinstance(name, str) else "call",
        "" if arguments is None else plain(arguments),
        None if result is None else plain(result),
        known.get("status") == "failed",
    )


def _is_call(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_use"


def _is_file(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url", "document", "file", "input_audio")


def _file_parts(message: Any) -> list[Mapping[str, Any]]:
    """What is attached to a message, and the parts of its content that are files."""
    if not isinstance(message, Mapping):
        return []
    content, attachments = message.get("content"), message.get("attachments")
    parts = [part for part in content if _is_file(part)] if isinstance(content, list) else []
    return parts + ([part for part in attachments if isinstance(part, Mapping)] if isinstance(attachments, list) else [])


def _file(part: Mapping[str, Any], place: int) -> FileView:
    data = _bytes_of(part)
    kind = part.get("mime_type", part.get("attachment_type", part.get("type")))
    url, length = part.get("url"), part.get("size")
    return FileView(
        place,
        _name_of(part, place),
        kind if isinstance(kind, str) else "file",
        len(data) if data is not None else length if isinstance(length, int) else None,
        data is not None,
        data is not None and image_type(data) is not None,
        url if isinstance(url, str) and data is None else None,
    )


def _name_of(part: Mapping[str, Any], place: int) -> str:
    name = part.get("name", part.get("filename"))
    return name if isinstance(name, str) and name else f"attachment {place + 1}"


def _bytes_of(part: Mapping[str, Any]) -> bytes | None:
    """The content of an attachment: ours, Anthropic's, OpenAI's, or a data: address."""
    content, source, url = part.get("content"), part.get("source"), part.get("image_url", part.get("url"))
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode(errors="replace")
    encoded = content.get("base64") if isinstance(content, Mapping) else None
    if isinstance(source, Mapping):
        encoded = source.get("data")
    link = url.get("url") if isinstance(url, Mapping) else url
    if isinstance(link, str) and link.startswith("data:"):
        encoded = link.partition(";base64,")[2] or None
    try:
        return base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else None
    except ValueError:
        return None


def _has_failed(message: Mapping[str, Any]) -> bool:
    metadata = message.get("metadata")
    return bool(message.get("is_error") or (isinstance(metadata, Mapping) and metadata.get("is_error")))
