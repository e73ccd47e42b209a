"""Values as JSON that fits into an answer. Pure.

Long values are cut at the end: the last characters of a text, items of a list, keys of an object. A Cut records each loss:
where, how much is shown, how much there is. Places in a value are JSON pointers, `/messages/3/content`.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from savegame.encoding.classes import fields_of
from savegame.encoding.plain import Plain
from savegame.encoding.text import key_text, number_text, written
from savegame.errors import InvalidInputError

T = TypeVar("T")

MORE: Final = "…"
"""The end of a text that was cut."""

WHOLE: Final = 2**62
LEVELS: Final = ((WHOLE, WHOLE, WHOLE), (4000, 200, 60), (1000, 50, 30), (250, 12, 10), (60, 4, 5), (20, 1, 3), (0, 0, 1))
"""From loose to tight: characters of a text, entries of a list or object, levels of nesting. The first that fits is used."""

LONGEST_PATH: Final = 300
_SAFE_INT: Final = 2**63


class Cut(BaseModel):
    """A shortened value. Read the rest with thread_load: this path, and start = shown."""

    path: str = Field(description="JSON pointer into the state; path of thread_load.")
    shown: int = Field(description="Number of characters, items or keys shown.")
    total: int = Field(description="Number of them in the state.")


class Part(NamedTuple):
    """The shown part of a value; `following` is where the next part starts, None at the end."""

    value: Any
    total: int | None
    following: int | None
    cuts: list[Cut]


class _NoRoom(Exception):
    """The value does not fit."""


def length(value: Any) -> int:
    """The number of characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def cut_text(text: str, most: int) -> str:
    """A text, or its beginning if it is longer."""
    return text if len(text) <= most else text[:most] + MORE


def cut_fields(values: Mapping[str, Any], room: int, path: str = "") -> tuple[dict[str, Any], list[Cut]]:
    """All of these fields, their values cut so that everything fits into `room` characters."""
    return _try_levels(lambda excerpt: {name: excerpt.field(name, value, path) for name, value in values.items()}, room - 2)


def _try_levels(show: Callable[[_Excerpt], T], room: int) -> tuple[T, list[Cut]]:
    for level in LEVELS:
        excerpt = _Excerpt(level, room)
        try:
            return show(excerpt), excerpt.cuts
        except _NoRoom:
            continue
    raise InvalidInputError(f"{room} characters are too few for an answer")


def read_part(state: Any, path: str, start: int, limit: int, room: int) -> Part:
    """The value at a path of a state, from character, item or key `start` on (from the end if negative).

    A list shows the items that fit uncut, at most `limit`; if not even the first one fits, it is cut. Raises
    InvalidInputError if the path does not exist.
    """
    opened = _to_json(_at(state, path))
    if not isinstance(opened, str | list | dict):
        return Part(opened, None, None, [])
    total = len(opened)
    first = min(start if start >= 0 else max(0, total + start), total)
    if isinstance(opened, str):
        text = _cut_to_room(opened[first:], room)
        return Part(text, total, _following(first + len(text), total), [])
    if isinstance(opened, dict):
        return _keys(opened, path, first, room)
    items, cuts = _items(opened[first : first + limit], path, first, room - 2)
    return Part(items, total, _following(first + len(items), total), cuts)


def _items(items: list[Any], path: str, first: int, room: int) -> tuple[list[Any], list[Cut]]:
    parts: list[Any] = []
    for place, item in enumerate(items, first):
        whole = _Excerpt(LEVELS[0], room)
        try:
            parts.append(whole.show(item, f"{path}/{place}", 1))
        except _NoRoom:
            if parts:
                break
            found, cuts = cut_fields({str(place): item}, room, path)
            return [found[str(place)]], cuts
        room = whole.room
    return parts, []


def _keys(opened: dict[str, Any], path: str, first: int, room: int) -> Part:
    rest = dict(list(opened.items())[first:])
    excerpts, cuts = _try_levels(lambda excerpt: excerpt.show(rest, path, 0), room)
    own = [cut for cut in cuts if cut.path == path]
    following = first + max(1, own[0].shown) if own else None
    return Part(excerpts, len(opened), following, [cut for cut in cuts if cut not in own])


def _following(end: int, total: int) -> int | None:
    return end if end < total else None


def _cut_to_room(text: str, room: int) -> str:
    """The beginning of a text that fits into `room` characters as JSON; at least one character."""
    text = text[:room]
    while len(text) > 1 and (size := length(text)) > room:
        text = text[: max(1, len(text) * room // size - 1)]
    return text


class _Excerpt:
    """One attempt to fit a value into the limits of a level and the room left."""

    def __init__(self, level: tuple[int, int, int], room: int) -> None:
        self._max_text, self._entries, self._depth = level
        self.room = room
        self.cuts: list[Cut] = []

    def show(self, value: Any, path: str, depth: int) -> Any:
        """A value as JSON. Raises _NoRoom."""
        opened = _to_json(value)
        if isinstance(opened, str):
            return self._text_value(opened, path)
        if isinstance(opened, dict | list) and depth > self._depth:
            self._cut(path, 0, len(opened))
            return self._spend_on(MORE)
        if isinstance(opened, dict):
            excerpt: dict[str, Any] = {}
            for key, item in self._first(opened.items(), len(opened), path):
                name = _unique_name(self._name(key, path), excerpt)
                excerpt[name] = self.show(item, f"{path}/{_escape(key)}", depth + 1)
            return excerpt
        if isinstance(opened, list):
            places = enumerate(self._first(opened, len(opened), path))
            return [self.show(item, f"{path}/{place}", depth + 1) for place, item in places]
        return self._spend_on(opened)

    def field(self, name: str, value: Any, path: str) -> Any:
        """The value of a field that must be shown."""
        self._spend_on(name)
        return self.show(value, f"{path}/{_escape(name)}", 1)

    def _name(self, key: str, path: str) -> str:
        if len(key) > LONGEST_PATH and self._max_text != WHOLE:
            self._cut(f"{path}/{_escape(key)}", LONGEST_PATH, len(key))
            key = cut_text(key, LONGEST_PATH)
        return str(self._spend_on(key))

    def _text_value(self, text: str, path: str) -> str:
        if len(text) <= self._max_text:
            return str(self._spend_on(text))
        self._cut(path, self._max_text, len(text))
        return str(self._spend_on(text[: self._max_text] + MORE))

    def _first(self, entries: Iterable[Any], total: int, path: str) -> Iterable[Any]:
        self._spend(2)
        if total > self._entries:
            self._cut(path, self._entries, total)
        return islice(entries, self._entries)

    def _cut(self, path: str, count: int, total: int) -> None:
        cut = Cut(path=cut_text(path, LONGEST_PATH), shown=count, total=total)
        self.cuts.append(cut)
        self._spend(len(cut.model_dump_json()) + 1)

    def _spend_on(self, value: Any) -> Any:
        self._spend(length(value) + 1)
        return value

    def _spend(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise _NoRoom


def _to_json(value: Any) -> Any:
    """A value as JSON, one level deep: a scalar, a text, a list, or a dict with distinct text keys."""
    if value is None or isinstance(value, bool | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, int):
        return int(value) if -_SAFE_INT <= value < _SAFE_INT else number_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=key_text)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Plain):
        return value.to_dict()
    mapping = value if isinstance(value, Mapping) else fields_of(value)
    return written(value) if mapping is None else _text_keys(mapping)


def _text_keys(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key, value in mapping.items():
        named[_unique_name(key_text(key), named)] = value
    return named


def _unique_name(name: str, taken: Mapping[str, Any]) -> str:
    """A name that is not taken: 1 and "1" are two keys, and so are long keys with the same beginning."""
    while name in taken:
        name += MORE
    return name


def _at(value: Any, path: str) -> Any:
    if path and not path.startswith("/"):
        raise InvalidInputError(f"path {path!r} must begin with '/', as in '/messages/3/content'; '' is the whole state")
    for token in path.split("/")[1:]:
        opened = _to_json(value)
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(opened, dict) and name in opened:
            value = opened[name]
        elif isinstance(opened, list) and name.isdecimal() and len(name) <= len(str(len(opened))) and int(name) < len(opened):
            value = opened[int(name)]
        else:
            present = f"has: {', '.join(list(opened)[:20])}" if isinstance(opened, dict) else f"is a {type(opened).__name__}"
            place, missing = cut_text(path, LONGEST_PATH), cut_text(name, LONGEST_PATH)
            raise InvalidInputError(f"path {place!r}: {missing!r} does not exist; the value there {cut_text(present, 500)}")
    return value


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
