"""From the signature of a tool to a JSON schema for the model, and from the model's arguments to Python. Touches errors.

A Shape is one annotated type: its schema, and `read`, which converts the model's value for the function. Both come from the
same annotation. Reading creates Enum members, dataclasses and pydantic models where the signature asks for them, and a float
from a whole number; nothing else is coerced. Values that do not fit raise InvalidInputError with a text for the model: it
names the place, `order.lines[2].cents`, in terms of JSON.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from savegame.errors import InvalidInputError

_SCALARS: Final = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_JSON: Final = {**_SCALARS, list: "array", dict: "object"}
_SUPPORTED: Final = (
    "str, int, float, bool, None, list, dict with text keys, Literal, "
    "a union, an Enum, a dataclass, a TypedDict or a pydantic model"
)


class Shape(NamedTuple):
    """One type: its JSON schema, and `read(value, place)`, which returns the value as that type or raises InvalidInputError."""

    schema: dict[str, Any]
    read: Callable[[Any, str], Any]


class Parameters(NamedTuple):
    """The parameters of a function: whether it takes a `call` first, the schema of the others, and how to read them.

    `read` returns all of them by name, omitted ones with their defaults.
    """

    takes_call: bool
    schema: dict[str, Any]
    read: Callable[[Any], dict[str, Any]]


class _Field(NamedTuple):
    shape: Shape
    required: bool


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """The parameters of a function. Raises InvalidInputError naming one that a model could not pass."""
    taken = dict(inspect.signature(function).parameters)
    takes_call = next(iter(taken), None) == "call"
    own = dict(list(taken.items())[takes_call:])
    if "call" in own:
        raise InvalidInputError("the parameter call must come first")
    for parameter in taken.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidInputError(f"its parameter {parameter.name!r} cannot be passed by name; do not use *, ** or /")
    shapes = _Shapes()
    hints = _parameter_hints(function, own)
    descriptions = _descriptions(function, own)
    fields = {}
    for name, parameter in own.items():
        try:
            shape = shapes.of(hints.get(name, Any))
        except InvalidInputError as error:
            raise InvalidInputError(f"its parameter {name!r}: {error}") from error
        fields[name] = _Field(
            _with_details(shape, descriptions.get(name), parameter.default), parameter.default is parameter.empty
        )
    whole = _object(fields, dict)
    defaults = {name: item.default for name, item in own.items() if item.default is not item.empty}
    schema = {**whole.schema, "$defs": shapes.defs} if shapes.defs else whole.schema
    return Parameters(takes_call, schema, lambda arguments: {**defaults, **whole.read(arguments, "")})


def _parameter_hints(function: Callable[..., Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The types of these parameters only: those of `call` and of the result need not exist at run time."""
    plain = inspect.unwrap(function)
    wanted = {name: hint for name, hint in plain.__annotations__.items() if name in own}
    return _hints(SimpleNamespace(__annotations__=wanted), getattr(plain, "__globals__", {}))


def _hints(owner: Any, names: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return get_type_hints(owner, names, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidInputError(f"a type cannot be resolved: {error}; import or define it at the top of the module") from error


def _descriptions(function: Callable[..., Any], own: Mapping[str, Any]) -> dict[str, str]:
    """The descriptions of parameters in the docstring: `name: text`, `name (type): text` or `:param name: text`."""
    lines = re.findall(r"^\s*(?::param\s+)?(\w+)(?:\s*\(.*?\))?:[ \t]+(\S.*)$", inspect.getdoc(function) or "", re.MULTILINE)
    return {name: text.strip() for name, text in lines if name in own}


def _with_details(shape: Shape, description: str | None, default: Any) -> Shape:
    details = {} if description is None else {"description": description}
    defaults = {"default": default} if type(default) in _SCALARS else {}
    return shape._replace(schema={**shape.schema, **details, **defaults})


class _Shapes:
    """The shapes of one signature. `defs` are the definitions of its pydantic models, `within` the classes being visited."""

    def __init__(self) -> None:
        self.defs: dict[str, Any] = {}
        self.within: list[type] = []

    def of(self, annotation: Any) -> Shape:
        """The shape of an annotated type. Raises InvalidInputError for one that JSON cannot express."""
        if annotation is Any:
            return Shape({}, lambda value, place: value)
        make = self._BY_ORIGIN.get(get_origin(annotation) or _bare(annotation))
        if make is not None:
            return make(self, get_args(annotation))
        if not isinstance(annotation, type) or get_origin(annotation) is not None:
            raise InvalidInputError(f"{annotation!r} is not supported; use {_SUPPORTED}")
        return self._class(annotation)

    def _class(self, cls: Any) -> Shape:
        if cls in _SCALARS:
            return _scalar(cls)
        if issubclass(cls, Enum):
            return _choice([(member.value, member) for member in cls], f"the Enum {cls.__name__}")
        if hasattr(cls, "model_json_schema"):
            return self._pydantic(cls)
        if not dataclasses.is_dataclass(cls) and not hasattr(cls, "__required_keys__"):
            raise InvalidInputError(f"{cls.__name__} is not supported; use {_SUPPORTED}")
        if cls in self.within:
            raise InvalidInputError(f"{cls.__name__} refers to itself; use a pydantic model for that")
        self.within.append(cls)
        shape = self._dataclass(cls) if dataclasses.is_dataclass(cls) else self._typed_dict(cls)
        self.within.pop()
        return shape

    def _dataclass(self, cls: Any) -> Shape:
        hints = _hints(cls)
        fields = {
            item.name: _Field(
                self.of(hints[item.name]),
                item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING,
            )
            for item in dataclasses.fields(cls)
            if item.init
        }
        return _object(fields, cls)

    def _typed_dict(self, cls: Any) -> Shape:
        # __required_keys__ does not see a NotRequired that is written as text, as under `from __future__ import annotations`
        says = {Required: True, NotRequired: False}
        fields = {
            name: _Field(self.of(hint), says.get(get_origin(hint), name in cls.__required_keys__))
            for name, hint in _hints(cls).items()
        }
        return _object(fields, dict)

    def _pydantic(self, cls: Any) -> Shape:
        schema = cls.model_json_schema()
        for name, found in schema.pop("$defs", {}).items():
            if self.defs.setdefault(name, found) != found:
                raise InvalidInputError(f"two models are called {name!r}; rename one of them")
        return Shape(schema, lambda value, place: _read_pydantic(cls, value, place))

    def _wrapped(self, args: tuple[Any, ...]) -> Shape:
        descriptions = [item for item in args[1:] if isinstance(item, str)]
        return _with_details(self.of(args[0]), descriptions[0] if descriptions else None, inspect.Parameter.empty)

    def _literal(self, args: tuple[Any, ...]) -> Shape:
        return _choice([(value, value) for value in args], f"Literal{list(args)}")

    def _union(self, args: tuple[Any, ...]) -> Shape:
        shapes = [self.of(arg) for arg in args]

        def read(value: Any, place: str) -> Any:
            problems = []
            for shape in shapes:
                try:
                    return shape.read(value, place)
                except InvalidInputError as error:
                    problems.append(str(error))
            raise InvalidInputError(", or ".join(problems))

        return Shape({"anyOf": [shape.schema for shape in shapes]}, read)

    def _list(self, args: tuple[Any, ...]) -> Shape:
        item = self.of(args[0] if args else Any)

        def read(value: Any, place: str) -> Any:
            if not isinstance(value, list):
                raise _wrong(place, "array", value)
            return [item.read(found, f"{place}[{index}]") for index, found in enumerate(value)]

        return Shape({"type": "array", "items": item.schema}, read)

    def _dict(self, args: tuple[Any, ...]) -> Shape:
        if args and args[0] is not str:
            raise InvalidInputError("the keys of a dict must be str, as in JSON")
        item = self.of(args[1] if args else Any)

        def read(value: Any, place: str) -> Any:
            if not isinstance(value, dict):
                raise _wrong(place, "object", value)
            return {key: item.read(found, f"{place}.{_short(key)}") for key, found in value.items()}

        return Shape({"type": "object", "additionalProperties": item.schema}, read)

    _BY_ORIGIN: ClassVar[dict[Any, Callable[[_Shapes, tuple[Any, ...]], Shape]]] = {
        Annotated: _wrapped,
        Required: _wrapped,
        NotRequired: _wrapped,
        Literal: _literal,
        Union: _union,
        UnionType: _union,
        list: _list,
        dict: _dict,
    }


def _bare(annotation: Any) -> Any:
    """A `list` or `dict` without item types."""
    return annotation if annotation is list or annotation is dict else None


def _scalar(cls: type) -> Shape:
    def read(value: Any, place: str) -> Any:
        if type(value) is cls:
            return value
        if cls is not float or type(value) is not int:
            raise _wrong(place, _SCALARS[cls], value)
        try:
            return float(value)
        except OverflowError as error:
            raise InvalidInputError(f"{place} is too large a number") from error

    return Shape({"type": _SCALARS[cls]}, read)


def _choice(choices: Sequence[tuple[Any, Any]], what: str) -> Shape:
    values = [value for value, _ in choices]
    kinds = {type(value) for value in values}
    if not values or not kinds <= _SCALARS.keys():
        raise InvalidInputError(f"{what} must have values that JSON has: text, numbers, True, False or None")

    def read(value: Any, place: str) -> Any:
        for known, meaning in choices:
            if type(known) is type(value) and known == value:  # 1 == True, but not in JSON
                return meaning
        raise InvalidInputError(f"{place} must be one of {', '.join(map(json.dumps, values))}; not {reprlib.repr(value)}")

    kind = {"type": _SCALARS[kinds.pop()]} if len(kinds) == 1 else {}
    return Shape({**kind, "enum": values}, read)


def _object(fields: Mapping[str, _Field], make: Callable[..., Any]) -> Shape:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(place or "the arguments", "object", value)
        within = f"{place}." if place else ""
        problems = [f"{within}{name} is missing" for name, field in fields.items() if field.required and name not in value]
        problems += [_unknown(within, name, list(fields)) for name in value if name not in fields]
        given = {}
        for name in (name for name in fields if name in value):
            try:
                given[name] = fields[name].shape.read(value[name], f"{within}{name}")
            except InvalidInputError as error:
                problems.append(str(error))
        if problems:
            raise InvalidInputError("; ".join(problems))
        try:
            return make(**given)
        except ValueError as error:  # the type's own check
            raise InvalidInputError(f"{place}: {error}") from error

    schema = {
        "type": "object",
        "properties": {name: field.shape.schema for name, field in fields.items()},
        "required": [name for name, field in fields.items() if field.required],
        "additionalProperties": False,
    }
    return Shape(schema, read)


def _read_pydantic(cls: Any, value: Any, place: str) -> Any:
    """The model, read strictly as JSON is: text may become a time there, but not a number."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{place} is not JSON: {error}") from error
    try:
        return cls.model_validate_json(text, strict=True)
    except ValueError as error:
        details: Callable[..., Sequence[Mapping[str, Any]]] = error.errors  # type: ignore[attr-defined]
        found = details(include_url=False, include_context=False, include_input=False)
        problems = [f"{'.'.join([place, *map(str, item['loc'])])}: {item['msg']}" for item in found]
        raise InvalidInputError("; ".join(problems)) from error


def _unknown(within: str, name: Any, known: Sequence[str]) -> str:
    return f"{within}{_short(name)} is unknown; expected: {', '.join(known) or 'no arguments'}"


def _wrong(place: str, wanted: str, value: Any) -> InvalidInputError:
    found = _JSON.get(type(value), type(value).__name__)
    return InvalidInputError(f"{place} must be {_with_article(wanted)}, not {_with_article(found)}")


def _with_article(word: str) -> str:
    return word if word == "null" else f"{'an' if word[0] in 'aeio' else 'a'} {word}"


def _short(value: Any) -> str:
    """A name chosen by a model, shortened for an error message."""
    return value if isinstance(value, str) and value.isidentifier() and len(value) <= 40 else reprlib.repr(value)
