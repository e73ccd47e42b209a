"""A conversation as a page shows it: messages with calls, results and files; images only if their bytes are images. Pure.

`messages.transcript` reads the messages; here their parts become text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from savegame.encoding.text import written
from savegame.messages.locate import find_messages
from savegame.messages.transcript import MessageCall, file_kind, file_name, files_of, read_message, summary
from savegame.web.formatting import clip, full_text

IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""Image formats that a page shows, by their first bytes, never by their declared type."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call; `result` is None until there is one."""

    id: str | None
    name: str
    arguments: str
    result: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class FileView:
    """An attachment; `place` is its index in the message, `here` whether its bytes are stored, `image` whether to show it."""

    place: int
    name: str
    kind: str
    size: int | None
    here: bool
    image: bool
    url: str | None


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message; `place` is its index in the conversation."""

    place: int
    role: str
    text: str
    calls: tuple[CallView, ...] = ()
    files: tuple[FileView, ...] = ()
    failed: bool = False
    tokens: int | None = None
    time: str | None = None
    answers: str | None = None
    """The id of the call whose result this message is."""


def view_messages(messages: Sequence[Any], first: int, end: int) -> list[MessageView]:
    """Messages from `first` up to `end`; a result is merged into its call if that is among them.

    It belongs to the oldest earlier call with its id and without a result: providers reuse ids.
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
    messages = find_messages(state)
    return clip(summary(messages[-1]), 130) if messages else None


def get_attachment(messages: Sequence[Any], message: int, place: int) -> tuple[str, bytes] | None:
    """Name and bytes of an attachment, or None if they are not stored."""
    parts = files_of(messages[message]) if 0 <= message < len(messages) else []
    data = _bytes_of(parts[place]) if 0 <= place < len(parts) else None
    return None if data is None else (file_name(parts[place], place), data)


def image_type(data: bytes) -> str | None:
    """The media type of an image format that cannot hold scripts; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in IMAGES.items() if data.startswith(start)), None)


def _view(message: Any, place: int) -> MessageView:
    transcript = read_message(message)
    known = message if isinstance(message, Mapping) else {}
    time, tokens = known.get("timestamp"), known.get("tokens")
    return MessageView(
        place,
        transcript.role,
        "\n".join(map(full_text, transcript.parts)),
        tuple(map(_call, transcript.calls)),
        tuple(_file(part, number) for number, part in enumerate(transcript.files)),
        transcript.failed,
        _count(tokens),
        None if time is None else written(time),
        transcript.answers,
    )


def _with_result(view: MessageView, number: int, answer: MessageView) -> MessageView:
    calls = list(view.calls)
    calls[number] = replace(calls[number], result=answer.text, failed=answer.failed)
    return replace(view, calls=tuple(calls))


def _call(call: MessageCall) -> CallView:
    arguments, result = (None if value is None else full_text(value) for value in (call.arguments, call.result))
    return CallView(call.id, call.name, arguments or "", result, call.failed)


def _count(value: Any) -> int | None:
    """A count, or None for any other value."""
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _file(part: Mapping[str, Any], place: int) -> FileView:
    data = _bytes_of(part)
    url, length = part.get("url"), part.get("size")
    return FileView(
        place,
        file_name(part, place),
        file_kind(part),
        _count(length) if data is None else len(data),
        data is not None,
        data is not None and image_type(data) is not None,
        url if isinstance(url, str) and data is None else None,
    )


def _bytes_of(part: Mapping[str, Any]) -> bytes | None:
    """The content of an attachment of ours, Anthropic's or OpenAI's, or of a data: URL."""
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
