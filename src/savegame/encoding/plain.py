"""What the domain types are made of: plain data and JSON to dataclasses and back, and the checks of their fields.

Each check gives the value as it is kept, or raises InvalidInputError; the message begins with the name of the field, so
that one inside another only puts its place in front: `messages[3].tool_calls[0].arguments`. Touches errors only.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Final, Self, TypeVar

from savegame.errors import InvalidInputError

MAX_JSON_DEPTH: Final = 250

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
R = TypeVar("R", bound="Plain")


@dataclass(slots=True)
class Plain:
    """What the domain types share: to plain data and JSON, and back. Only fields that the constructor takes are written.

    What data has besides is kept in `extra` and written back as it was, so that a provider's own fields are not lost.
    """

    extra: dict[str, Any] = field(default_factory=dict, kw_only=True)

    _ALWAYS: ClassVar[frozenset[str]] = frozenset()
    """Fields that are written also while they are empty."""
    _WIRE: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """How fields that JSON cannot hold are written there."""
    _UNSTATED: ClassVar[Mapping[str, Any]] = {}
    """What fields are that the data does not have, if not what they are in something made just now."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read plain data, ours or a provider's. Unknown fields go to `extra`; None stands for a field that is not there.

        Ids that are not there are made up, times may be ISO text or seconds since 1970. Takes what `dataclasses.asdict`
        returns, too. Raises InvalidInputError naming the field that is missing or wrong.
        """
        if not isinstance(data, Mapping):
            raise InvalidInputError(f"a {cls.__name__} is read from a dict, not from {type(data).__name__}")
        known = cls._renamed(_flattened(cls, data))
        given = {}
        for item in _kept(cls):
            if known.get(item.name) is not None:
                given[item.name] = known[item.name]
            elif item.default is MISSING and item.default_factory is MISSING:
                raise InvalidInputError(f"{item.name} is missing")
        extra = {name: value for name, value in known.items() if name not in {item.name for item in _kept(cls)}}
        return cls(**{**cls._UNSTATED, **given}, extra=extra)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back as an equal object; what is empty is left out. Times stay datetimes.

        The values inside (content, arguments, metadata) are shared with this object, not copied.
        """
        return self._plain(wire=False)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read what `to_json` wrote. Raises InvalidInputError for anything else."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"a {cls.__name__} cannot be read, this is not JSON: {error}") from error
        _check_json(found, "")
        return cls.from_dict(found)

    def to_json(self) -> bytes:
        """Compact JSON in UTF-8. Times are RFC 3339 text, bytes of an attachment `{"base64": text}`.

        Raises InvalidInputError for what JSON cannot hold or would change: NaN, lone surrogates, tuples, keys other than text.
        """
        plain = self._plain(wire=True)
        _check_json(plain, "")
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def _renamed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data by our field names; raises for what is missing besides fields without a default."""
        return data

    def _plain(self, *, wire: bool) -> dict[str, Any]:
        kept = _kept(type(self))
        checked = type(self)(**{item.name: getattr(self, item.name) for item in kept})  # fields may have been set to anything
        plain: dict[str, Any] = {}
        for item in kept:
            value = getattr(checked, item.name)
            empty = value is item.default or (item.default_factory in (list, dict) and not value)
            if not empty or item.name in self._ALWAYS:
                plain[item.name] = self._written(item.name, value, wire=wire)
        own = {item.name for item in kept}
        return plain | {name: value for name, value in self.extra.items() if name not in own}

    def _written(self, name: str, value: Any, *, wire: bool) -> Any:
        if wire and name in self._WIRE and value is not None:
            return self._WIRE[name](value)
        if isinstance(value, StrEnum):
            return value.value
        if isinstance(value, list):
            return [
                inside(f"{name}[{place}]", partial(item._plain, wire=wire)) if isinstance(item, Plain) else item
                for place, item in enumerate(value)
            ]
        return value


def _kept(cls: type[Plain]) -> tuple[Field[Any], ...]:
    return tuple(item for item in fields(cls) if item.init and item.name != "extra")


def _flattened(cls: type[Plain], data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Data that holds every field of the class by its name, with `extra` merged in and without fields that are never written.

    `dataclasses.asdict` returns such data, and states saved by earlier versions hold it.
    """
    extra = data.get("extra")
    if not isinstance(extra, Mapping) or any(item.name not in data for item in fields(cls)):
        return data
    internal = {item.name for item in fields(cls)} - {item.name for item in _kept(cls)}
    return {**extra, **{name: value for name, value in data.items() if name not in internal}}


def inside(place: str, work: Callable[[], T]) -> T:
    """What `work` gives; if it raises, the field is named by its whole path."""
    try:
        return work()
    except InvalidInputError as error:
        raise InvalidInputError(f"{place}.{error}") from error


def maybe(check: Callable[[Any, str], T], value: Any, name: str) -> T | None:
    """None, or what passed the check."""
    return None if value is None else check(value, name)


def checked_text(value: Any, name: str) -> str:
    """Text that is valid Unicode."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{name} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{name} holds a lone surrogate, which is not valid Unicode") from error
    return str(value)


def checked_count(value: Any, name: str, *, least: int = 0) -> int:
    """A whole number that is not too small, and fits 63 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise InvalidInputError(f"{name} must be a whole number from {least} to 2**63 - 1, not {value!r}")
    return value


def checked_member(cls: type[E], value: Any, name: str) -> E:
    """A member of an Enum from its text, in any case."""
    try:
        return cls(value.lower())
    except (AttributeError, ValueError) as error:
        raise InvalidInputError(f"{name} {value!r} is unknown; one of: {', '.join(cls)}") from error


def checked_time(value: Any, name: str) -> dt.datetime:
    """A datetime with a zone, ISO text with one, or seconds since 1970 (before it: negative), in UTC."""
    try:
        if isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            value = _EPOCH + dt.timedelta(seconds=value)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value.astimezone(dt.UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f"{name} is not a time between the years 1 and 9999: {value!r}") from error
    raise InvalidInputError(f"{name} must be a datetime or ISO text with a time zone, or seconds since 1970, not {value!r}")


def _items(values: Any, name: str) -> Sequence[Any]:
    if not isinstance(values, (list, tuple)):
        raise InvalidInputError(f"{name} must be a list, not {type(values).__name__}")
    return values


def checked_texts(values: Any, name: str, check: Callable[[Any, str], str] = checked_text) -> list[str]:
    """A list of texts."""
    return [check(value, f"{name}[{place}]") for place, value in enumerate(_items(values, name))]


def checked_mapping(value: Any, name: str) -> dict[str, Any]:
    """A dict with text keys."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{name} must be a dict, not {type(value).__name__}")
    return {checked_text(key, f"{name}'s key {key!r}"): item for key, item in value.items()}


def checked_parts(cls: type[R], values: Any, name: str) -> list[R]:
    """A list of such objects; dicts are read."""
    return [_part(cls, value, f"{name}[{place}]") for place, value in enumerate(_items(values, name))]


def _part(cls: type[R], value: Any, place: str) -> R:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{place} must be a {cls.__name__} or a dict, not {type(value).__name__}")
    return inside(place, partial(cls.from_dict, value))


def _check_json(value: Any, path: str, depth: int = 0) -> None:
    """Refuse what JSON cannot hold or would give back as something else."""
    if depth > MAX_JSON_DEPTH:
        raise InvalidInputError(f"{path[:80]}... is nested more than {MAX_JSON_DEPTH} levels deep")
    if type(value) is dict:
        for key, item in value.items():
            checked_text(key, f"{path}'s key {key!r}")
            _check_json(item, f"{path}.{key}" if path else key, depth + 1)
    elif type(value) is list:
        for place, item in enumerate(value):
            _check_json(item, f"{path}[{place}]", depth + 1)
    elif type(value) is str:
        checked_text(value, path)
    elif type(value) is float and not math.isfinite(value):
        raise InvalidInputError(f"{path} is {value!r}, which JSON cannot hold")
    elif type(value) not in (int, float, bool, type(None)):
        raise InvalidInputError(f"{path} is of type {type(value).__name__}, which JSON cannot hold; make it plain data first")
