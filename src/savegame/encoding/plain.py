"""The base of the domain types: plain data and JSON to dataclasses and back, and the checks of their fields.

Each check returns the value to store or raises InvalidInputError. Messages start with the name of the field, so that outer
objects only prepend their place: `messages[3].tool_calls[0].arguments`.
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
from savegame.model import checked_text

MAX_JSON_DEPTH: Final = 250

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
R = TypeVar("R", bound="Plain")


@dataclass(slots=True)
class Plain:
    """Conversion to plain data and JSON, and back. Only fields that the constructor takes are written.

    Unknown fields are kept in `extra` and written back unchanged, so that a provider's own fields are not lost.
    """

    extra: dict[str, Any] = field(default_factory=dict, kw_only=True)

    _ALWAYS: ClassVar[frozenset[str]] = frozenset()
    """Fields that are written even if empty."""
    _WIRE: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Converters of fields that JSON cannot express."""
    _UNSTATED: ClassVar[Mapping[str, Any]] = {}
    """Values of fields missing in the data, if they differ from those of a new object."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read plain data, ours or a provider's. Unknown fields go to `extra`; None means a missing field.

        Missing ids are generated; times may be ISO text or seconds since 1970. Also takes the result of
        `dataclasses.asdict`. Raises InvalidInputError naming the missing or wrong field.
        """
        if not isinstance(data, Mapping):
            raise InvalidInputError(f"a {cls.__name__} must be read from a dict, not from {type(data).__name__}")
        known = cls._renamed(_flatten(cls, data))
        given = {}
        for item in _init_fields(cls):
            if known.get(item.name) is not None:
                given[item.name] = known[item.name]
            elif item.default is MISSING and item.default_factory is MISSING:
                raise InvalidInputError(f"{item.name} is missing")
        extra = {name: value for name, value in known.items() if name not in {item.name for item in _init_fields(cls)}}
        return cls(**{**cls._UNSTATED, **given}, extra=extra)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back as an equal object, without empty fields. Times stay datetimes.

        The values inside (content, arguments, metadata) are shared with this object, not copied.
        """
        return self._plain(wire=False)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read the result of `to_json`. Raises InvalidInputError for other data."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"a {cls.__name__} must be read from JSON: {error}") from error
        _check_json(found, "")
        return cls.from_dict(found)

    def to_json(self) -> bytes:
        """Compact JSON in UTF-8. Times are RFC 3339 text, bytes of an attachment `{"base64": text}`.

        Raises InvalidInputError for values that JSON cannot express exactly: NaN, lone surrogates, tuples, non-text keys.
        """
        plain = self._plain(wire=True)
        _check_json(plain, "")
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def _renamed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data by our field names. May raise InvalidInputError for missing fields."""
        return data

    def _plain(self, *, wire: bool) -> dict[str, Any]:
        items = _init_fields(type(self))
        checked = type(self)(**{item.name: getattr(self, item.name) for item in items})  # checks fields that were set later
        plain: dict[str, Any] = {}
        for item in items:
            value = getattr(checked, item.name)
            empty = value is item.default or (item.default_factory in (list, dict) and not value)
            if not empty or item.name in self._ALWAYS:
                plain[item.name] = self._write(item.name, value, wire=wire)
        own = {item.name for item in items}
        return plain | {name: value for name, value in self.extra.items() if name not in own}

    def _write(self, name: str, value: Any, *, wire: bool) -> Any:
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


def _init_fields(cls: type[Plain]) -> tuple[Field[Any], ...]:
    return tuple(item for item in fields(cls) if item.init and item.name != "extra")


def _flatten(cls: type[Plain], data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of `dataclasses.asdict` with `extra` merged in and without internal fields; other data unchanged.

    States saved by earlier versions contain such data.
    """
    extra = data.get("extra")
    if not isinstance(extra, Mapping) or any(item.name not in data for item in fields(cls)):
        return data
    internal = {item.name for item in fields(cls)} - {item.name for item in _init_fields(cls)}
    return {**extra, **{name: value for name, value in data.items() if name not in internal}}


def inside(place: str, work: Callable[[], T]) -> T:
    """The result of `work`; prepends the place to the message of its InvalidInputError."""
    try:
        return work()
    except InvalidInputError as error:
        raise InvalidInputError(f"{place}.{error}") from error


def maybe(check: Callable[[Any, str], T], value: Any, name: str) -> T | None:
    """None, or the checked value."""
    return None if value is None else check(value, name)


def checked_count(value: Any, name: str, *, least: int = 0) -> int:
    """A whole number of at least `least` that fits into 63 bits."""
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
    """A list of these objects, or of dicts to read them from."""
    return [_part(cls, value, f"{name}[{place}]") for place, value in enumerate(_items(values, name))]


def _part(cls: type[R], value: Any, place: str) -> R:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{place} must be a {cls.__name__} or a dict, not {type(value).__name__}")
    return inside(place, partial(cls.from_dict, value))


def _check_json(value: Any, path: str, depth: int = 0) -> None:
    """Refuse values that JSON cannot express or would return as another type."""
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
        raise InvalidInputError(f"{path} is {value!r}, which JSON cannot express")
    elif type(value) not in (int, float, bool, type(None)):
        raise InvalidInputError(f"{path} has type {type(value).__name__}, which JSON cannot express; convert it to plain data")
