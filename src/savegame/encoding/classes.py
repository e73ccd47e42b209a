"""Objects of users' classes: their fields, and rebuilding them from stored fields without running the users' code.

Dataclasses, pydantic models and msgspec structs. Only classes registered in this process come back as objects. Domain types
(Message, ToolCall, ...) are stored as what their `to_dict` returns.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple

from savegame.encoding.plain import Plain
from savegame.errors import UnsupportedError

REST: Final = "\0rest"
"""Key beside the fields of a stored object: which fields were unset and, for a pydantic model, its private attributes."""

Upcast = Callable[[dict[str, Any], int], dict[str, Any]]
"""`upcast(fields, version)` converts the fields of an object stored as `version` to those of the current class."""


class Registered(NamedTuple):
    """A class whose objects are loaded as objects."""

    cls: type
    name: str
    version: int
    upcast: Upcast | None
    tag: bytes


def fields_of(value: Any) -> dict[Any, Any] | None:
    """The fields of a dataclass, pydantic model or msgspec struct, one level deep; None for other values."""
    cls = type(value)
    if isinstance(value, Plain):
        return value.to_dict()
    if isinstance(value, _BUILTINS):  # it has more content than its fields
        return None
    if dataclasses.is_dataclass(cls):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(cls) if hasattr(value, field.name)}
    if hasattr(cls, "__pydantic_fields__"):
        own = {name: item for name, item in value.__dict__.items() if name in cls.__pydantic_fields__}
        return {**own, **(value.__pydantic_extra__ or {})}
    if hasattr(cls, "__struct_fields__"):
        return {name: getattr(value, name) for name in cls.__struct_fields__}
    return None


def has_fields(cls: Any) -> bool:
    """Whether the objects of a class are stored by their fields."""
    found = isinstance(cls, type) and not issubclass(cls, _BUILTINS)
    return found and (dataclasses.is_dataclass(cls) or hasattr(cls, "__pydantic_fields__") or hasattr(cls, "__struct_fields__"))


_BUILTINS: Final = (dict, list, tuple, set, frozenset, str, bytes, int, float, BaseException)
"""Bases with content of their own: objects of their subclasses are more than their fields."""


def classes_in_annotations(cls: type) -> Iterator[type]:
    """The classes with fields, and the Enums, in the annotations of a class, at any depth."""
    hints = [hint for base in cls.__mro__ for hint in _hints(base)]
    while hints:
        hint = hints.pop()
        hints.extend(typing.get_args(hint))
        if not isinstance(hint, types.GenericAlias) and (
            has_fields(hint) or (isinstance(hint, type) and issubclass(hint, Enum))
        ):
            yield hint


def _hints(cls: type) -> Iterator[Any]:
    """The annotations of a class without its bases; unresolvable ones are skipped."""
    for info in vars(cls).get("__pydantic_fields__", {}).values():  # these have type variables filled in
        yield info.annotation
    module = sys.modules.get(cls.__module__)
    for name, hint in inspect.get_annotations(cls).items():
        one = types.SimpleNamespace(__annotations__={name: hint})
        found: dict[str, Any] = {}
        with suppress(Exception):  # imported for type checkers only, or not a type
            found = typing.get_type_hints(one, dict(vars(cls)), vars(module) if module else None)
        yield from found.values()


def with_rest(value: Any, fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields of a registered object with what else is needed to rebuild it."""
    cls = type(value)
    if isinstance(value, Plain):
        return fields
    if dataclasses.is_dataclass(cls):
        unset = [field.name for field in dataclasses.fields(cls) if field.name not in fields]
        return {**fields, REST: {"unset": unset}} if unset else fields
    if not hasattr(cls, "__pydantic_fields__"):
        return fields
    rest: dict[str, Any] = {}
    unset = [name for name in cls.__pydantic_fields__ if name not in value.__pydantic_fields_set__]
    if unset:
        rest["unset"] = unset
    if value.__pydantic_private__:
        rest["private"] = dict(value.__pydantic_private__)
    return {**fields, REST: rest} if rest else fields


def construct(entry: Registered, fields: Any, version: int, rest: Any) -> Any:
    """An object of a registered class from stored fields, without running the user's validators or `__post_init__`."""
    if type(fields) is not dict:
        raise ValueError(f"fields of {entry.name} are not a dict")
    if version != entry.version:
        if version > entry.version or entry.upcast is None:
            raise UnsupportedError(
                f"{entry.name} was stored with schema_version {version}, this program has {entry.version}; "
                f"register the class with upcast=..."
            )
        try:
            fields = entry.upcast(fields, version)
        except Exception as error:
            raise UnsupportedError(f"upcast of {entry.name} from schema_version {version} failed: {error!r}") from error
        if not isinstance(fields, Mapping):
            raise UnsupportedError(
                f"upcast of {entry.name} from schema_version {version} returned {fields!r}, not a dict of fields"
            )
    try:
        return _build(entry, fields, version, rest)
    except (UnsupportedError, RecursionError, MemoryError):
        raise
    except Exception as error:  # in a default factory or a struct's __post_init__: the stored bytes are sound
        raise _shape_changed(entry, repr(error)) from error


def _build(entry: Registered, fields: Mapping[str, Any], version: int, rest: Any) -> Any:
    cls: Any = entry.cls
    if issubclass(cls, Plain):
        return cls.from_dict(fields)
    if dataclasses.is_dataclass(cls):
        new: Any = object.__new__(entry.cls)
        for field in dataclasses.fields(cls):
            if field.name in fields or field.name not in (rest or {}).get("unset", ()):
                object.__setattr__(new, field.name, fields[field.name] if field.name in fields else _default(entry, field))
        return new
    if hasattr(cls, "__struct_fields__"):
        known = {name: fields[name] for name in cls.__struct_fields__ if name in fields}
        try:
            return cls(**known)
        except TypeError as error:
            raise _shape_changed(entry, str(error)) from error
    rest = rest or {}
    model_fields: Mapping[str, Any] = cls.__pydantic_fields__
    values = {}
    for name, info in model_fields.items():
        if name in fields:
            values[name] = fields[name]
        elif not info.is_required():
            values[name] = info.get_default(call_default_factory=True)
        elif version != entry.version or name not in rest.get("unset", ()):  # unset ones came from model_construct
            raise _shape_changed(entry, f"no value for the field {name!r}")
    model: Any = cls.__new__(cls)
    model.__setstate__(
        {
            "__dict__": values,
            "__pydantic_extra__": {name: value for name, value in fields.items() if name not in model_fields}
            if cls.model_config.get("extra") == "allow"
            else None,
            "__pydantic_fields_set__": {name for name in fields if name not in rest.get("unset", ())},
            "__pydantic_private__": {**_private(cls), **rest.get("private", {})} if cls.__private_attributes__ else None,
        }
    )
    return model


def _private(cls: Any) -> dict[str, Any]:
    """The private attributes of a pydantic model that have a default."""
    found = {name: attribute.get_default() for name, attribute in cls.__private_attributes__.items()}
    return {name: value for name, value in found.items() if type(value).__name__ != "PydanticUndefinedType"}


def member(entry: Registered, plain: Any) -> Any:
    """The member of a registered Enum with a stored value."""
    try:
        return entry.cls(plain)
    except ValueError as error:
        raise _shape_changed(entry, str(error)) from error


def is_member(entry: Registered, plain: Any, value: Any) -> bool:
    """Whether a stored value would be loaded as this member of a registered Enum."""
    try:
        return entry.cls(plain) is value
    except ValueError:
        return False


def _default(entry: Registered, field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise _shape_changed(entry, f"no value for the field {field.name!r}")


def _shape_changed(entry: Registered, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"a stored {entry.name} does not fit the current class: {what}; "
        f"give the field a default, or raise schema_version and register with upcast=..."
    )
