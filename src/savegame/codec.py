"""Values to bytes and back, exactly: what goes in comes out equal and of the same type, or is refused by name.

Plain data stays inside `ormsgpack`, in C; every other type reaches `_extend`, which writes it as a MessagePack
extension with one of the tags below. User data can never look like a tag, because a tag is not a dict. Nothing is
imported or called because stored bytes name it: objects come back only as classes registered in this process.
`encode(value)` is deterministic, so equal bytes mean an equal value; the delta room builds on that.
Touches errors and foreign.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime as dt
import decimal
import pathlib
import threading
import types
import typing
import uuid
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn

import ormsgpack

from savegame.errors import CorruptionError, InvalidInputError, InvalidState, SavegameError, UnsupportedError
from savegame.foreign import Foreign, readable

TUPLE, SET, FROZENSET, DATETIME, DATE, TIME, TIMEDELTA, DECIMAL, UUID, BIGINT, PATH, MAP, OBJECT, ENUM, BLOB, FOREIGN = range(
    1, 17
)

MAX_DEPTH: Final = 250
"""Levels of nesting that a state may have; ormsgpack itself refuses more than 254."""

_SUSPECT: Final = (0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8)
"""How bytes and extensions begin: only where one of these stands can a lookalike of them be."""

_FREE_HOOKS: Final = 8
"""Nested extensions that are encoded without counting the depth of the whole value first."""

_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_REST: Final = "\0rest"
"""Key beside the fields of a stored pydantic model: which were unset, which are extra, what is private."""

Upcast = Callable[[dict[str, Any], int], dict[str, Any]]
"""`upcast(fields, version)` turns the fields of an object stored as `version` into those of today's class."""


class _Working(threading.local):
    """What one thread is in the middle of."""

    depth = 0
    unlimited = False
    overflow = False
    """Whether extensions were nested too deeply to go on without counting."""
    cause: BaseException | None = None
    """What a hook raised: ormsgpack hides it behind an error of its own."""


class Registered(NamedTuple):
    """A class whose objects are given back as objects."""

    cls: type
    name: str
    version: int
    upcast: Upcast | None
    tag: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class RawExt:
    """An extension that was not decoded."""

    tag: int
    data: bytes


class Codec:
    """Encodes and decodes values; knows the registered classes. May be shared between threads."""

    def __init__(self) -> None:
        self._by_class: dict[type, Registered] = {}
        self._by_name: dict[str, Registered] = {}
        self._local = _Working()
        self._foreign: Callable[[str, bytes], Any] = readable

    # -- classes ---------------------------------------------------------------------------------

    def register(self, cls: type, *, schema_version: int = 1, upcast: Upcast | None = None, name: str | None = None) -> None:
        """Let objects of `cls`, and of the classes its annotations name, be given back as objects."""
        if not _is_class_with_fields(cls) and not (isinstance(cls, type) and issubclass(cls, Enum)):
            raise InvalidInputError(
                f"{cls!r} cannot be registered: give a dataclass, a pydantic model, a msgspec struct or an Enum class"
            )
        name = name or cls.__qualname__.rpartition("<locals>.")[2]
        taken = self._by_name.get(name)
        if taken is not None and (taken.cls.__module__, taken.cls.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInputError(
                f"two classes want the name {name!r}: {taken.cls.__module__} and {cls.__module__}; "
                f"register one of them with another name=..."
            )
        entry = Registered(cls, name, schema_version, upcast, ormsgpack.packb([name, schema_version]))
        self._by_name[name] = self._by_class[cls] = entry
        for reachable in _classes_in_annotations(cls):
            if reachable not in self._by_class:
                self.register(reachable)

    def reading(self, foreign: Callable[[str, bytes], Any]) -> Codec:
        """The same codec, with foreign leaves decoded by somebody who can."""
        twin = copy.copy(self)
        twin._foreign = foreign
        return twin

    def knows(self, cls: type) -> bool:
        """Whether a class is registered."""
        return cls in self._by_class

    def restore(self, cls: type, value: Any) -> Any:
        """Give a plain dict of fields back as an object of `cls`; anything else stays as it is."""
        if type(value) is dict and _is_class_with_fields(cls):
            entry = self._by_class[cls]
            return _construct(entry, value, entry.version, None)
        return value

    # -- bytes -----------------------------------------------------------------------------------

    def encode(self, value: Any, path: tuple[Any, ...] = ()) -> bytes:
        """The bytes of a value. Raises InvalidState naming the place of what cannot be kept."""
        self._local.overflow = False
        try:
            data = self.pack(value)
        except (TypeError, RecursionError) as error:
            again = self._encode_deep if self._local.overflow else self._encode_again
            data = again(value, path, error)
        for mark in _SUSPECT:
            if mark in data:
                self._refuse_lookalikes(value, path)
                break
        return data

    def pack(self, value: Any) -> bytes:
        """The bytes of a value without the checks of `encode`: for values that were encoded before."""
        try:
            return ormsgpack.packb(value, self._extend, _OPTIONS)
        except TypeError as error:
            self._raise_hidden()
            if "Dict key must be str" not in str(error):
                raise
        return ormsgpack.packb(_with_any_keys(self, value, 0), self._extend, _OPTIONS)

    def decode(self, data: bytes) -> Any:
        """The value of bytes made by `encode`. Damaged bytes raise CorruptionError, never anything else."""
        self._local.cause = None
        try:
            return ormsgpack.unpackb(data, ext_hook=self._hook)
        except ValueError as error:
            self._refuse(error)

    def decode_lists(self, bodies: list[bytes], skip: int) -> list[Any]:
        """The items of encoded lists, which begin after `skip` bytes of each body, as one list."""
        items: list[Any] = []
        self._local.cause = None
        try:
            for body in bodies:
                items += ormsgpack.unpackb(body[skip:], ext_hook=self._hook)
        except ValueError as error:
            self._refuse(error)
        return items

    def _refuse(self, error: ValueError) -> NoReturn:
        self._raise_hidden()
        raise CorruptionError(f"stored bytes do not decode: {self._local.cause or error}") from error

    def _hook(self, tag: int, body: bytes) -> Any:
        try:
            if tag == FOREIGN:
                return self._foreign(*ormsgpack.unpackb(body))
            return self._revive(tag, body)
        except BaseException as error:
            self._local.cause = self._local.cause or error
            raise

    # -- one value -------------------------------------------------------------------------------

    def _raise_hidden(self) -> None:
        """Raise what interrupted a hook: ormsgpack turns everything into an error of its own."""
        hidden = self._local.cause
        if isinstance(hidden, (SavegameError, RecursionError, MemoryError)) or not isinstance(hidden, Exception | None):
            self._local.cause = None
            raise hidden from None

    def _extend(self, value: Any) -> Any:
        try:
            return self._extended(value)
        except BaseException as error:
            self._local.cause = error
            raise

    def _extended(self, value: Any) -> Any:
        writer = _WRITERS.get(type(value))
        if writer is not None:
            return writer(value)
        nested = _SEQUENCES.get(type(value))
        if nested is not None:
            with self._one_deeper():
                items = list(map(self.pack, value))
                if nested != TUPLE:
                    self.refuse_unhashable(items)
                    items.sort()
                return ormsgpack.Ext(nested, join_array(items))
        if isinstance(value, Enum):
            entry = self._by_class.get(type(value))
            plain = value.value
            return ormsgpack.Ext(ENUM, self.pack([entry.name, plain])) if entry else plain
        if isinstance(value, pathlib.PurePath):
            return _write_path(value)
        fields = fields_of(value)
        if fields is None:
            raise TypeError(f"{type(value).__qualname__} cannot be kept")
        entry = self._by_class.get(type(value))
        if entry is None:
            return fields
        with self._one_deeper():
            return object_ext(entry.tag, self.pack(with_rest(value, fields)))

    def refuse_unhashable(self, items: list[bytes]) -> None:
        """Refuse what cannot be an item of a set or a key once it is plain data, or what would fall together there."""
        if len({self.decode(item) for item in items}) != len(items):
            raise TypeError("two items would become one")

    def tag_of(self, value: Any) -> bytes:
        """Which registered class an object belongs to, as bytes; empty for everything that is kept as plain data."""
        entry = self._by_class.get(type(value))
        return b"" if entry is None else entry.tag

    def open(self, value: Any) -> tuple[bytes, dict[Any, Any]] | None:
        """A dict, or an object kept by its fields, as (tag, fields) without going deeper; None for everything else."""
        if type(value) is dict:
            return b"", value
        if type(value) is RawExt:
            return open_ext(value)
        fields = None if type(value) in _PLAIN else fields_of(value)
        if fields is None:
            return None
        tag = self.tag_of(value)
        return tag, with_rest(value, fields) if tag else fields

    def close(self, tag: bytes, fields: dict[Any, Any]) -> Any:
        """The opposite of `open` for an object: its tag and decoded fields as an object, or as a dict if unregistered."""
        name, version = unpack_raw(tag)
        rest = fields.pop(_REST, None)
        entry = self._by_name.get(name)
        return fields if entry is None else _construct(entry, fields, version, rest)

    def _revive(self, tag: int, body: bytes) -> Any:
        with self._one_deeper(MAX_DEPTH):
            if tag in _READERS:
                return _READERS[tag](body)
            parts = ormsgpack.unpackb(body, ext_hook=self._hook)
            if tag == TUPLE:
                return tuple(parts)
            if tag == SET:
                return set(parts)
            if tag == FROZENSET:
                return frozenset(parts)
            if tag == MAP:
                return dict(zip(parts[::2], parts[1::2], strict=True))
            if tag == OBJECT:
                return self.close(pack_raw(parts[0]), parts[1])
            if tag == ENUM:
                name, plain = parts
                entry = self._by_name.get(name)
                return plain if entry is None else _member(entry, plain)
            raise ValueError(f"unknown extension {tag}")

    @contextlib.contextmanager
    def _one_deeper(self, limit: int = _FREE_HOOKS) -> Iterator[None]:
        depth = self._local.depth
        if depth >= limit and not (depth < MAX_DEPTH and self._local.unlimited):
            self._local.overflow = True
            raise TypeError("nested too deeply")
        self._local.depth = depth + 1
        try:
            yield
        finally:
            self._local.depth = depth

    # -- refusals --------------------------------------------------------------------------------

    def _explain(self, value: Any, path: tuple[Any, ...]) -> InvalidState | None:
        for place, leaf, depth in self._walk(value, path):
            if depth > MAX_DEPTH:
                return _too_deep(path)
            try:
                self.pack(leaf)
            except (TypeError, RecursionError):
                where = format_path(place) or "the state itself"
                if isinstance(leaf, str):
                    return InvalidState(
                        f"{where}: the text holds a lone surrogate, which is not valid Unicode; "
                        f"clean it with .encode(errors='replace').decode()",
                        path=format_path(place),
                    )
                return InvalidState(f"{where}: {_cannot_keep(leaf)}", path=format_path(place))
        return None

    def _encode_again(self, value: Any, path: tuple[Any, ...], error: BaseException) -> bytes:
        """Say what is wrong with a value that could not be encoded; if nothing is, it was an interrupt that ormsgpack hid."""
        problem = _too_deep(path) if isinstance(error, RecursionError) else self._explain(value, path)
        if problem is not None:
            raise problem from error
        self._local.cause = None
        try:
            return self.pack(value)
        except (TypeError, RecursionError) as second:
            where = format_path(path) or "the state"
            raise InvalidState(f"{where}: {self._local.cause or second}", path=format_path(path)) from second

    def _encode_deep(self, value: Any, path: tuple[Any, ...], error: BaseException) -> bytes:
        """Encode a value whose extensions are nested deeply, after counting its levels: the C stack is not endless."""
        if any(depth > MAX_DEPTH for _, _, depth in self._walk(value, path)):
            raise _too_deep(path) from error
        self._local.unlimited = True
        try:
            return self.pack(value)
        except (TypeError, RecursionError) as second:
            return self._encode_again(value, path, second)
        finally:
            self._local.unlimited = False

    def _refuse_lookalikes(self, value: Any, path: tuple[Any, ...]) -> None:
        """Refuse what ormsgpack writes without asking although it would come back as something else."""
        for place, leaf, _ in self._walk(value, path):
            if isinstance(leaf, (bytearray, memoryview, ormsgpack.Ext)):
                where = format_path(place) or "the state itself"
                raise InvalidState(
                    f"{where}: {type(leaf).__name__} would come back as something else; pass bytes(...) yourself",
                    path=format_path(place),
                )

    def _walk(self, value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, int]]:
        """Every leaf and every dict key of a value with its path and depth; goes no deeper than MAX_DEPTH + 1."""
        stack = [(path, value, 0)]
        while stack:
            place, node, depth = stack.pop()
            children = self._children(node) if depth <= MAX_DEPTH else None
            if children is None:
                yield place, node, depth
                continue
            if isinstance(node, dict):
                yield from (((*place, key), key, depth) for key in node)
            stack.extend(((*place, key), child, depth + 1) for key, child in reversed(children))

    def _children(self, node: Any) -> list[tuple[Any, Any]] | None:
        if type(node) is dict:
            return list(node.items())
        if type(node) in _CONTAINERS:
            return list(enumerate(node))
        opened = None if type(node) in _PLAIN else self.open(node)
        return None if opened is None else list(opened[1].items())


# -- encoded bytes, without decoding ---------------------------------------------------------------


def unpack_raw(data: bytes) -> Any:
    """Decode plain data only: extensions stay `RawExt`, so that packing again gives the same bytes."""
    try:
        return ormsgpack.unpackb(data, ext_hook=RawExt)
    except ValueError as error:
        raise CorruptionError(f"stored bytes do not decode: {error}") from error


def pack_raw(value: Any) -> bytes:
    """Bytes of what `unpack_raw` gave."""
    return ormsgpack.packb(value, _write_raw, _OPTIONS)


def join_array(items: list[bytes]) -> bytes:
    """The encoded list of encoded items."""
    return array_header(len(items)) + b"".join(items)


def array_header(count: int) -> bytes:
    """The bytes that open an encoded list."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 65536 else b"\xdd" + count.to_bytes(4, "big")


def map_header(count: int) -> bytes:
    """The bytes that open an encoded dict with text keys."""
    if count < 16:
        return bytes((0x80 | count,))
    return b"\xde" + count.to_bytes(2, "big") if count < 65536 else b"\xdf" + count.to_bytes(4, "big")


def open_ext(ext: RawExt) -> tuple[bytes, dict[Any, Any]] | None:
    """An encoded object, or dict with any keys, as (tag, fields); None for other extensions."""
    if ext.tag == OBJECT:
        tag, fields = unpack_raw(ext.data)
        return pack_raw(tag), fields
    if ext.tag == MAP:
        flat = unpack_raw(ext.data)
        return b"", dict(zip(flat[::2], flat[1::2], strict=True))
    return None


def object_ext(tag: bytes, fields: bytes) -> ormsgpack.Ext:
    """The extension of an object of a registered class."""
    return ormsgpack.Ext(OBJECT, b"\x92" + tag + fields)


def format_path(path: tuple[Any, ...]) -> str:
    """`("messages", 3, "content")` as people write it: `messages[3].content`."""
    out = ""
    for part in path:
        if isinstance(part, str) and part.isidentifier():
            out += f".{part}" if out else part
        else:
            out += f"[{part!r}]"
    return out


def fields_of(value: Any) -> dict[Any, Any] | None:
    """The fields of a dataclass, pydantic model or msgspec struct, without going deeper; None for everything else."""
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(cls) if hasattr(value, field.name)}
    if hasattr(cls, "__pydantic_fields__"):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if hasattr(cls, "__struct_fields__"):
        return {name: getattr(value, name) for name in cls.__struct_fields__}
    return None


# -- helpers ---------------------------------------------------------------------------------------


def _is_class_with_fields(cls: Any) -> bool:
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls) or hasattr(cls, "__pydantic_fields__") or hasattr(cls, "__struct_fields__")
    )


def _classes_in_annotations(cls: type) -> Iterator[type]:
    try:
        hints = list(typing.get_type_hints(cls).values())
    except NameError:  # a forward reference that only the user's module can resolve: take what is already a class
        hints = [hint for hint in cls.__annotations__.values() if not isinstance(hint, str)]
    while hints:
        hint = hints.pop()
        hints.extend(typing.get_args(hint))
        if not isinstance(hint, types.GenericAlias) and (
            _is_class_with_fields(hint) or (isinstance(hint, type) and issubclass(hint, Enum))
        ):
            yield hint


def with_rest(value: Any, fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields of a registered object and, for a pydantic model, what it holds besides them."""
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        unset = [field.name for field in dataclasses.fields(cls) if field.name not in fields]
        return {**fields, _REST: {"unset": unset}} if unset else fields
    if not hasattr(cls, "__pydantic_fields__"):
        return fields
    rest: dict[str, Any] = {}
    unset = [name for name in cls.__pydantic_fields__ if name not in value.__pydantic_fields_set__]
    if unset:
        rest["unset"] = unset
    if value.__pydantic_extra__:
        rest["extra"] = list(value.__pydantic_extra__)
    if value.__pydantic_private__:
        rest["private"] = dict(value.__pydantic_private__)
    return {**fields, _REST: rest} if rest else fields


def _construct(entry: Registered, fields: Any, version: int, rest: Any) -> Any:
    """An object of a registered class from stored fields, without running its validators or `__post_init__`."""
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
    cls: Any = entry.cls
    if dataclasses.is_dataclass(cls):
        made: Any = object.__new__(entry.cls)
        for field in dataclasses.fields(cls):
            if field.name not in (rest or {}).get("unset", ()):
                object.__setattr__(made, field.name, fields[field.name] if field.name in fields else _default(entry, field))
        return made
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
        if name not in fields and info.is_required():
            raise _shape_changed(entry, f"no value for the field {name!r}")
        values[name] = fields[name] if name in fields else info.get_default(call_default_factory=True)
    model: Any = cls.__new__(cls)
    model.__setstate__(
        {
            "__dict__": values,
            "__pydantic_extra__": {name: fields[name] for name in rest.get("extra", ())}
            if cls.model_config.get("extra") == "allow"
            else None,
            "__pydantic_fields_set__": {name for name in fields if name not in rest.get("unset", ())},
            "__pydantic_private__": rest.get("private", {}) if cls.__private_attributes__ else None,
        }
    )
    return model


def _member(entry: Registered, plain: Any) -> Any:
    """The member of a registered Enum with a stored value."""
    try:
        return entry.cls(plain)
    except ValueError as error:
        raise _shape_changed(entry, str(error)) from error


def _default(entry: Registered, field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise _shape_changed(entry, f"no value for the field {field.name!r}")


def _shape_changed(entry: Registered, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"a stored {entry.name} does not fit the class of today: {what}; "
        f"give the field a default, or raise schema_version and register with upcast=..."
    )


def _with_any_keys(codec: Codec, value: Any, depth: int) -> Any:
    """The same value with every dict that has keys other than text turned into a MAP extension."""
    if depth > MAX_DEPTH:
        raise RecursionError
    if type(value) is list:
        return [_with_any_keys(codec, item, depth + 1) for item in value]
    if type(value) is not dict:
        return value
    if all(type(key) is str for key in value):
        return {key: _with_any_keys(codec, item, depth + 1) for key, item in value.items()}
    with codec._one_deeper():
        keys = [codec.pack(key) for key in value]
        codec.refuse_unhashable(keys)
        pairs = [part for key, item in zip(keys, value.values(), strict=True) for part in (key, codec.pack(item))]
    return ormsgpack.Ext(MAP, join_array(pairs))


def _too_deep(path: tuple[Any, ...]) -> InvalidState:
    where = format_path(path) or "the state"
    return InvalidState(f"{where} is nested deeper than {MAX_DEPTH} levels (or contains itself)", path=format_path(path))


def _cannot_keep(leaf: Any) -> str:
    name = type(leaf).__qualname__
    if isinstance(leaf, (dict, list, tuple, set, frozenset, str, int, float, bytes)) and type(leaf) not in _CONTAINERS:
        base = next(b.__name__ for b in type(leaf).__mro__ if b.__module__ == "builtins")
        return f"{name} would come back as a plain {base}; convert it with {base}(...) yourself"
    if isinstance(leaf, (dt.datetime, dt.time)):
        return f"the time zone {leaf.tzinfo!r} cannot be kept; use datetime.timezone or zoneinfo.ZoneInfo"
    return f"a value of type {name} cannot be kept; keep plain data, a dataclass or a model instead"


_PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None), list, tuple, set, frozenset))
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_SEQUENCES: Final[dict[type, int]] = {tuple: TUPLE, set: SET, frozenset: FROZENSET}


def _write_raw(ext: RawExt) -> ormsgpack.Ext:
    return ormsgpack.Ext(ext.tag, ext.data)


def _small(tag: int, parts: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(tag, ormsgpack.packb(parts))


def _zone(value: dt.datetime | dt.time) -> Any:
    zone = value.tzinfo
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        micros = offset // dt.timedelta(microseconds=1)
        return [*name, micros, True] if name else micros
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key is not None:
        offset = value.utcoffset()
        return [zone.key, 0 if offset is None else offset // dt.timedelta(microseconds=1)]
    raise TypeError(f"unknown time zone {zone!r}")


def _read_zone(zone: Any) -> dt.tzinfo | None:
    if zone is None:
        return None
    if type(zone) is int:
        return dt.timezone(dt.timedelta(microseconds=zone))
    key, offset, *fixed = zone
    if fixed:
        return dt.timezone(dt.timedelta(microseconds=offset), key)
    try:
        return zoneinfo.ZoneInfo(key)
    except (zoneinfo.ZoneInfoNotFoundError, OSError):  # this machine does not know the zone: keep the instant
        return dt.timezone(dt.timedelta(microseconds=offset), key)


def _write_datetime(value: dt.datetime) -> ormsgpack.Ext:
    return _small(DATETIME, [value.replace(tzinfo=None).isoformat(), value.fold, _zone(value)])


def _read_datetime(body: bytes) -> dt.datetime:
    text, fold, zone = ormsgpack.unpackb(body)
    return dt.datetime.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)


def _write_time(value: dt.time) -> ormsgpack.Ext:
    return _small(TIME, [value.replace(tzinfo=None).isoformat(), value.fold, _zone(value)])


def _read_time(body: bytes) -> dt.time:
    text, fold, zone = ormsgpack.unpackb(body)
    return dt.time.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)


def _write_path(value: pathlib.PurePath) -> ormsgpack.Ext:
    kind = next((name for name, cls in _PATHS.items() if type(value) is cls), None)
    if kind is None:
        raise TypeError(f"{type(value).__qualname__} cannot be kept")
    return _small(PATH, [kind, str(value)])


def _read_path(body: bytes) -> pathlib.PurePath:
    kind, text = ormsgpack.unpackb(body)
    cls: type[pathlib.PurePath] = _PATHS[kind]
    foreign = {"posix": pathlib.PurePosixPath, "windows": pathlib.PureWindowsPath}
    if kind in foreign and cls is not type(pathlib.Path()):  # a path of the other system
        cls = foreign[kind]
    return cls(text)


_PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    "posix": pathlib.PosixPath,
    "windows": pathlib.WindowsPath,
    "pure-posix": pathlib.PurePosixPath,
    "pure-windows": pathlib.PureWindowsPath,
}

_WRITERS: Final[dict[type, Callable[[Any], ormsgpack.Ext]]] = {
    dt.datetime: _write_datetime,
    dt.date: lambda value: ormsgpack.Ext(DATE, value.isoformat().encode()),
    dt.time: _write_time,
    dt.timedelta: lambda value: _small(TIMEDELTA, [value.days, value.seconds, value.microseconds]),
    decimal.Decimal: lambda value: ormsgpack.Ext(DECIMAL, str(value).encode()),
    RawExt: _write_raw,
    Foreign: lambda value: _small(FOREIGN, [value.kind, value.data]),
    uuid.UUID: lambda value: ormsgpack.Ext(UUID, value.bytes),
    int: lambda value: ormsgpack.Ext(BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)),
}

_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    DATETIME: _read_datetime,
    DATE: lambda body: dt.date.fromisoformat(body.decode()),
    TIME: _read_time,
    TIMEDELTA: lambda body: dt.timedelta(*ormsgpack.unpackb(body)),
    DECIMAL: lambda body: decimal.Decimal(body.decode()),
    UUID: lambda body: uuid.UUID(bytes=body),
    BIGINT: lambda body: int.from_bytes(body, "big", signed=True),
    PATH: _read_path,
}
