"""The messages for a model as input items of OpenAI's responses. Pure, like the other views; touches turns and blocks.

A reply that came from that API goes back as the items that it sent, in their order: the API refuses reasoning without the item
after it, and an item without its reasoning. If one of its calls was removed meanwhile, its texts and calls go back as new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from savegame.messages.blocks import API, REASONING, RESPONSES, kind_of
from savegame.messages.turns import (
    FAILED,
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
    turns_of,
)
from savegame.messages.views import INTERRUPTED

_ID_LENGTH: Final = 64
_SPOKEN: Final = ("text", "refusal")


def input_items(
    messages: Iterable[Plain], note: str = INTERRUPTED, *, notes: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The closed messages as input items for OpenAI's responses.

    Call ids that are too long or used twice are replaced, the same way each time.
    """
    used: set[str] = set()
    items: list[dict[str, Any]] = []
    for turn in turns_of(messages):
        names = [fresh(NOT_IN_NAMES.sub("_", call.get("id") or ""), used, _ID_LENGTH) for call in turn.calls]
        items += _reply_items(turn, names) if turn.message["role"] == "assistant" else _input_message(turn.message)
        for name, answer in zip(names, answers_to(turn, note, notes or {}), strict=True):
            output = _text(answer) or (FAILED if has_failed(answer) else "")
            items.append({"type": "function_call_output", "call_id": name, "output": output})
    return items


def _input_message(message: Plain) -> list[dict[str, Any]]:
    """A message of the user or the system; images of the user are included."""
    role = message["role"]
    image = _input_image if role == "user" else named_image
    parts = message_parts(message, frozenset(), image)
    if all(part["type"] == "text" for part in parts):
        return [{"role": role, "content": text}] if (text := "\n".join(part["text"] for part in parts)) else []
    named = [{"type": "input_text", "text": part["text"]} if part["type"] == "text" else part for part in parts]
    return [{"role": role, "content": named}]


def _input_image(address: str) -> Part:
    return {"type": "input_image", "image_url": address, "detail": "auto"}


def _text(message: Plain) -> str:
    return "\n".join(part["text"] for part in message_parts(message, frozenset(), named_image))


def _reply_items(turn: Turn, names: list[str]) -> list[dict[str, Any]]:
    """A reply: as the items that OpenAI sent if they are whole, else as a text and calls."""
    calls = [
        {"type": "function_call", "call_id": name, "name": name_in(call), "arguments": arguments_in(call)}
        for name, call in zip(names, turn.calls, strict=True)
    ]
    content = turn.message.get("content")
    if turn.message.get(API) == RESPONSES and isinstance(content, list):
        items = _given_items(turn, content, calls)
        if items is not None:
            return items
    text = _text(turn.message)
    return [*([{"role": "assistant", "content": text}] if text else []), *calls]


def _given_items(turn: Turn, content: list[Any], calls: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The items with each call in place of its part; None if a part has no call."""
    waiting = list(range(len(calls)))
    items: list[dict[str, Any]] = []
    for item, parts in groupby(content, key=lambda part: part.get("item") if kind_of(part) in _SPOKEN else None):
        if item is not None:
            items += _output_message(item, list(parts))
            continue
        for part in parts:
            if kind_of(part) == "function_call":
                index = next((n for n in waiting if turn.calls[n].get("id") == part.get("call_id")), None)
                if index is None:
                    return None
                waiting.remove(index)
                items.append({**part, **calls[index]})
            elif kind_of(part) in _SPOKEN:
                items += _output_message({}, [part])
            elif kind_of(part) is not None:
                items.append(dict(part))
    while items and items[-1].get("type") == REASONING and not waiting:  # nothing follows it
        items.pop()
    return items + [calls[index] for index in waiting]


def _output_message(item: Plain, parts: list[Plain]) -> Iterator[dict[str, Any]]:
    """The message that these texts were, or a plain one if it is not known which."""
    if "id" not in item:
        if text := "".join(str(part.get("text", part.get("refusal", ""))) for part in parts):
            yield {"role": "assistant", "content": text}
        return
    content = [
        {"type": "refusal", "refusal": part["refusal"]}
        if kind_of(part) == "refusal"
        else {"type": "output_text", "text": part.get("text", ""), "annotations": part.get("annotations", [])}
        for part in parts
    ]
    yield {"type": "message", "role": "assistant", "status": "completed", **item, "content": content}
