"""Values as JSON that fits into an answer. Pure; touches objects, plain, showing and errors.

What is too long loses its end: a text its last characters, a list its last items, an object its last keys. Every loss is
named by a Cut: where, how much is shown, how much there is. A place inside a value is a JSON pointer, `/messages/3/content`.
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
"""How a text ends that was cut."""

WHOLE: Final = 2**62
LEVELS: Final = ((WHOLE, WHOLE, WHOLE), (4000, 200, 60), (1000, 50, 30), (250, 12, 10), (60, 4, 5), (20, 1, 3), (0, 0, 1))
"""Ever shorter: characters of a text, entries of a list or object, levels of nesting. The first that fits is taken."""

LONGEST_PATH: Final = 300
_SAFE_INT: Final = 2**63


class Cut(BaseModel):
    """A place that is not shown whole. Read on with thread_load: this path, and start = shown."""

    path: str = Field(description="JSON pointer into the state; what thread_load takes as path.")
    shown: int = Field(description="How many characters, items or keys are shown.")
    total: int = Field(description="How many there are.")


class Part(NamedTuple):
    """What is shown of one place of a value; `following` is where to read on, None at the end."""

    value: Any
    total: int | None
    following: int | None
    cuts: list[Cut]


class _Full(Exception):
    """There is no room for more."""


def length(value: Any) -> int:
    """How many characters a JSON value takes."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def short(text: str, most: int) -> str:
    """A text, or its beginning if it is longer."""
    return text if len(text) <= most else text[:most] + MORE


def fields(values: Mapping[str, Any], room: int, path: str = "") -> tuple[dict[str, Any], list[Cut]]:
    """Every one of these fields, its value cut as far as needed for all to take no more than `room` characters."""
    return _fitted(lambda shower: {name: shower.field(name, value, path) for name, value in values.items()}, room - 2)


def _fitted(show: Callable[[_Shower], T], room: int) -> tuple[T, list[Cut]]:
    for level in LEVELS:
        shower = _Shower(level, room)
        try:
            return show(shower), shower.cuts
        except _Full:
            continue
    raise InvalidInputError(f"nothing can be shown in {room} characters")


def part(state: Any, path: str, start: int, limit: int, room: int) -> Part:
    """What is at a path of a state, from its `start`-th character, item or key on (from the end if negative).

    Of a list as many items are shown as fit whole, at most `limit`; the first one is cut if it does not fit. Raises
    InvalidInputError for a path that leads nowhere.
    """
    opened = _opened(_at(state, path))
    if not isinstance(opened, str | list | dict):
        return Part(opened, None, None, [])
    total = len(opened)
    first = min(start if start >= 0 else max(0, total + start), total)
    if isinstance(opened, str):
        text = _fitting(opened[first:], room)
        return Part(text, total, _following(first + len(text), total), [])
    if isinstance(opened, dict):
        return _keys(opened, path, first, room)
    items, cuts = _items(opened[first : first + limit], path, first, room - 2)
    return Part(items, total, _following(first + len(items), total), cuts)


def _items(items: list[Any], path: str, first: int, room: int) -> tuple[list[Any], list[Cut]]:
    shown: list[Any] = []
    for place, item in enumerate(items, first):
        whole = _Shower(LEVELS[0], room)
        try:
            shown.append(whole.show(item, f"{path}/{place}", 1))
        except _Full:
            if shown:
                break
            found, cuts = fields({str(place): item}, room, path)
            return [found[str(place)]], cuts
        room = whole.room
    return shown, []


def _keys(opened: dict[str, Any], path: str, first: int, room: int) -> Part:
    rest = dict(list(opened.items())[first:])
    shown, cuts = _fitted(lambda shower: shower.show(rest, path, 0), room)
    own = [cut for cut in cuts if cut.path == path]
    following = first + max(1, own[0].shown) if own else None
    return Part(shown, len(opened), following, [cut for cut in cuts if cut not in own])


def _following(end: int, total: int) -> int | None:
    return end if end < total else None


def _fitting(text: str, room: int) -> str:
    """The beginning of a text that takes no more than `room` characters as JSON; at least one character."""
    text = text[:room]
    while len(text) > 1 and (size := length(text)) > room:
        text = text[: max(1, len(text) * room // size - 1)]
    return text


class _Shower:
    """One attempt to show a value within the caps of a level and the room that there is."""

    def __init__(self, level: tuple[int, int, int], room: int) -> None:
        self._text, self._entries, self._depth = level
        self.room = room
        self.cuts: list[Cut] = []

    def show(self, value: Any, path: str, depth: int) -> Any:
        """A value as JSON; raises _Full."""
        opened = _opened(value)
        if isinstance(opened, str):
            return self._told(opened, path)
        if isinstance(opened, dict | list) and depth > self._depth:
            self._cut(path, 0, len(opened))
            return self._taken(MORE)
        if isinstance(opened, dict):
            shown: dict[str, Any] = {}
            for key, item in self._first(opened.items(), len(opened), path):
                name = _unused(self._name(key, path), shown)
                shown[name] = self.show(item, f"{path}/{_escaped(key)}", depth + 1)
            return shown
        if isinstance(opened, list):
            places = enumerate(self._first(opened, len(opened), path))
            return [self.show(item, f"{path}/{place}", depth + 1) for place, item in places]
        return self._taken(opened)

    def field(self, name: str, value: Any, path: str) -> Any:
        """One of the fields that are all shown."""
        self._taken(name)
        return self.show(value, f"{path}/{_escaped(name)}", 1)

    def _name(self, key: str, path: str) -> str:
        if len(key) > LONGEST_PATH and self._text != WHOLE:
            self._cut(f"{path}/{_escaped(key)}", LONGEST_PATH, len(key))
            key = short(key, LONGEST_PATH)
        return str(self._taken(key))

    def _told(self, text: str, path: str) -> str:
        if len(text) <= self._text:
            return str(self._taken(text))
        self._cut(path, self._text, len(text))
        return str(self._taken(text[: self._text] + MORE))

    def _first(self, entries: Iterable[Any], total: int, path: str) -> Iterable[Any]:
        self._take(2)
        if total > self._entries:
            self._cut(path, self._entries, total)
        return islice(entries, self._entries)

    def _cut(self, path: str, shown: int, total: int) -> None:
        cut = Cut(path=short(path, LONGEST_PATH), shown=shown, total=total)
        self.cuts.append(cut)
        self._take(len(cut.model_dump_json()) + 1)

    def _taken(self, value: Any) -> Any:
        self._take(length(value) + 1)
        return value

    def _take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise _Full


def _opened(value: Any) -> Any:
    """A value as JSON knows it, without going deeper: a scalar, a text, a list, or a dict with text keys, each another."""
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
    return written(value) if mapping is None else _named(mapping)


def _named(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key, value in mapping.items():
        named[_unused(key_text(key), named)] = value
    return named


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """A name that is not taken: 1 and "1" are two keys, and so are long ones that begin alike."""
    while name in taken:
        name += MORE
    return name


def _at(value: Any, path: str) -> Any:
    if path and not path.startswith("/"):
        raise InvalidInputError(f"path {path!r} must begin with '/', as in '/messages/3/content'; '' is the whole state")
    for token in path.split("/")[1:]:
        opened = _opened(value)
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(opened, dict) and name in opened:
            value = opened[name]
        elif isinstance(opened, list) and name.isdecimal() and len(name) <= len(str(len(opened))) and int(name) < len(opened):
            value = opened[int(name)]
        else:
            there = ", ".join(list(opened)[:20]) if isinstance(opened, dict) else f"{type(opened).__name__} here"
            place, missing = short(path, LONGEST_PATH), short(name, LONGEST_PATH)
            raise InvalidInputError(f"path {place!r}: there is no {missing!r}; there is: {short(there, 500)}")
    return value


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
