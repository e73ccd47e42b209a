"""Values to bytes and back, exactly: what goes in comes out equal and of the same type, or is refused by name.

Plain data stays inside `ormsgpack`, in C; every other type reaches `_extend`, which writes it as a MessagePack
extension with one of the tags of `leaves`. User data can never look like a tag, because a tag is not a dict. Nothing is
imported or called because stored bytes name it: objects come back only as classes registered in this process.
`encode(value)` is deterministic, so equal bytes mean an equal value; the delta room builds on that.
Touches leaves, objects, foreign, model and errors.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import pathlib
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, Final, NoReturn

import ormsgpack

from savegame.errors import CorruptionError, InvalidInputError, InvalidState, SavegameError
from savegame.foreign import readable
from savegame.leaves import (
    ENUM,
    FOREIGN,
    FROZENSET,
    MAP,
    OBJECT,
    READERS,
    SET,
    TUPLE,
    WRITERS,
    RawExt,
    write_path,
    write_raw,
)
from savegame.model import checked_id, checked_number
from savegame.objects import (
    REST,
    Registered,
    Upcast,
    classes_in_annotations,
    construct,
    fields_of,
    has_fields,
    is_member,
    member,
    with_rest,
)

MAX_DEPTH: Final = 250
"""Levels of nesting that a state may have; ormsgpack itself refuses more than 254."""

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


class _Working(threading.local):
    """What one thread is in the middle of."""

    depth = 0
    unlimited = False
    overflow = False
    """Whether extensions were nested too deeply to go on without counting."""
    cause: BaseException | None = None
    """What a hook raised: ormsgpack hides it behind an error of its own."""


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
        if not has_fields(cls) and not (isinstance(cls, type) and issubclass(cls, Enum)):
            raise InvalidInputError(
                f"{cls!r} cannot be registered: give a dataclass, a pydantic model, a msgspec struct or an Enum class"
            )
        checked_number(schema_version, "schema_version")
        if upcast is not None and not callable(upcast):
            raise InvalidInputError(f"upcast must be a function of (fields, version), not {upcast!r}")
        name = cls.__qualname__.rpartition("<locals>.")[2] if name is None else checked_id(name, "the name of a class")
        taken = self._by_name.get(name)
        if taken is not None and (taken.cls.__module__, taken.cls.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInputError(
                f"two classes want the name {name!r}: {taken.cls.__module__} and {cls.__module__}; "
                f"register one of them with another name=..."
            )
        entry = Registered(cls, name, schema_version, upcast, ormsgpack.packb([name, schema_version]))
        self._by_name[name] = self._by_class[cls] = entry
        for reachable in classes_in_annotations(cls):
            if reachable not in self._by_class:
                self.register(reachable)

    def reading(self, foreign: Callable[[str, bytes], Any]) -> Codec:
        """The same codec, with foreign leaves decoded by somebody who can."""
        twin = copy.copy(self)
        twin._foreign = foreign
        return twin

    def knows(self, cls: type) -> bool:
        """Whether a class is registered."""
        return isinstance(cls, type) and cls in self._by_class

    def restore(self, cls: type, value: Any) -> Any:
        """Give a plain dict of fields back as an object of `cls`; anything else stays as it is."""
        if type(value) is dict and has_fields(cls):
            entry = self._by_class[cls]
            return construct(entry, value, entry.version, None)
        return value

    # -- bytes -----------------------------------------------------------------------------------

    def encode(self, value: Any, path: tuple[Any, ...] = ()) -> bytes:
        """The bytes of a value. Raises InvalidState naming the place of what cannot be kept."""
        try:
            data = ormsgpack.packb(value, self._extend, _OPTIONS)
        except TypeError as error:
            data = self._encode_otherwise(value, path, error)
        if (  # how bytes and extensions begin: only where one of these stands can a lookalike of them be
            0xC4 in data
            or 0xC5 in data
            or 0xC6 in data
            or 0xC7 in data
            or 0xC8 in data
            or 0xC9 in data
            or 0xD4 in data
            or 0xD5 in data
            or 0xD6 in data
            or 0xD7 in data
            or 0xD8 in data
        ):
            self.refuse_lookalikes(value, path)
        return data

    def pack(self, value: Any) -> bytes:
        """The bytes of a value without the checks of `encode`: for values that were encoded before."""
        try:
            return ormsgpack.packb(value, self._extend, _OPTIONS)
        except TypeError as error:
            return self._pack_otherwise(value, error)

    def _pack_otherwise(self, value: Any, error: TypeError) -> bytes:
        self._raise_hidden()
        if "Dict key must be str" not in str(error):
            raise error
        return self._pack_any(value)

    def _encode_otherwise(self, value: Any, path: tuple[Any, ...], error: TypeError) -> bytes:
        with contextlib.suppress(TypeError, RecursionError):
            return self._pack_otherwise(value, error)
        self._local.overflow = False  # it may be another value's
        try:
            return self.pack(value)
        except (TypeError, RecursionError) as second:
            again = self._encode_deep if self._local.overflow else self._encode_again
            return again(value, path, second)

    def _pack_any(self, value: Any) -> bytes:
        """`pack` for a value that has dicts with other keys than text: what is inside is not tried the quick way again."""
        return ormsgpack.packb(_with_any_keys(self, value, 0), partial(self._extend, pack=self._pack_any), _OPTIONS)

    def decode(self, data: bytes) -> Any:
        """The value of bytes made by `encode`. Damaged bytes raise CorruptionError, never anything else."""
        self._local.cause = None
        try:
            return ormsgpack.unpackb(data, ext_hook=self._hook)
        except ValueError:
            self._raise_hidden()
        try:  # if nothing is wrong with it, it was Ctrl-C that ormsgpack hid
            return ormsgpack.unpackb(data, ext_hook=self._hook)
        except ValueError as error:
            self._refuse(error)

    def decode_lists(self, bodies: list[bytes], skip: int) -> list[Any]:
        """The items of encoded lists, which begin after `skip` bytes of each body, as one list."""
        items: list[Any] = []
        hook = self._hook
        self._local.cause = None
        try:
            for body in bodies:
                items += ormsgpack.unpackb(body[skip:], ext_hook=hook)
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

    def _extend(self, value: Any, pack: Callable[[Any], bytes] | None = None) -> Any:
        try:
            return self._extended(value, pack or self.pack)
        except BaseException as error:
            self._local.cause = error
            raise

    def _extended(self, value: Any, pack: Callable[[Any], bytes]) -> Any:
        writer = WRITERS.get(type(value))
        if writer is not None:
            return writer(value)
        nested = _SEQUENCES.get(type(value))
        if nested is not None:
            with self._one_deeper():
                items = list(map(pack, value))
                if nested != TUPLE:
                    self.refuse_unhashable(items)
                    items.sort()
                return ormsgpack.Ext(nested, join_array(items))
        if isinstance(value, Enum):
            entry = self._by_class.get(type(value))
            plain = value.value
            if entry is None:
                return plain
            if not is_member(entry, self.decode(pack(plain)), value):
                raise TypeError(_cannot_keep(value))
            return ormsgpack.Ext(ENUM, pack([entry.name, plain]))
        if isinstance(value, pathlib.PurePath):
            return write_path(value)
        fields = fields_of(value)
        if fields is None:
            raise TypeError(f"{type(value).__qualname__} cannot be kept")
        entry = self._by_class.get(type(value))
        if entry is None:
            return fields
        with self._one_deeper():
            return object_ext(entry.tag, pack(with_rest(value, fields)))

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
            opened = open_ext(value)
            raw = {} if opened is None else dict(opened[1])
            return None if opened is None or len(raw) != len(opened[1]) else (opened[0], raw)
        fields = None if type(value) in _PLAIN or isinstance(value, Enum) else fields_of(value)
        if fields is None:
            return None
        tag = self.tag_of(value)
        return tag, with_rest(value, fields) if tag else fields

    def close(self, tag: bytes, fields: dict[Any, Any]) -> Any:
        """The opposite of `open` for an object: its tag and decoded fields as an object, or as a dict if unregistered."""
        name, version = unpack_raw(tag)
        rest = fields.pop(REST, None)
        entry = self._by_name.get(name)
        return fields if entry is None else construct(entry, fields, version, rest)

    def _revive(self, tag: int, body: bytes) -> Any:
        with self._one_deeper(MAX_DEPTH):
            if tag in READERS:
                return READERS[tag](body)
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
                return plain if entry is None else member(entry, plain)
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
                if type(leaf) is str:
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

    def refuse_deep(self, value: Any, path: tuple[Any, ...]) -> None:
        """Refuse a value that is too deep for its place, though not by itself."""
        if any(len(path) + depth > MAX_DEPTH for _, _, depth in self._walk(value, path)):
            raise _too_deep(path)

    def refuse_lookalikes(self, value: Any, path: tuple[Any, ...]) -> None:
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
    except ValueError:  # or Ctrl-C in the hook, which ormsgpack hides
        pass
    try:
        return ormsgpack.unpackb(data, ext_hook=RawExt)
    except ValueError as error:
        raise CorruptionError(f"stored bytes do not decode: {error}") from error


def pack_raw(value: Any) -> bytes:
    """Bytes of what `unpack_raw` gave."""
    try:
        return ormsgpack.packb(value, write_raw, _OPTIONS)
    except TypeError:  # Ctrl-C in the hook, which ormsgpack hides
        return ormsgpack.packb(value, write_raw, _OPTIONS)


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


def open_ext(ext: RawExt) -> tuple[bytes, list[tuple[Any, Any]]] | None:
    """An encoded object, or dict with any keys, as (tag, fields); None for other extensions, and for what is neither inside."""
    if ext.tag == OBJECT:
        parts = unpack_raw(ext.data)
        if type(parts) is not list or len(parts) != 2 or not _is_tag(parts[0]):
            return None
        tag, fields = parts
        if type(fields) is RawExt and fields.tag == MAP:  # somebody put a key into it that is no text
            pairs = _pairs(fields)
        else:
            pairs = list(fields.items()) if type(fields) is dict else None
        return None if pairs is None else (pack_raw(tag), pairs)
    pairs = _pairs(ext) if ext.tag == MAP else None
    return None if pairs is None else (b"", pairs)


def _is_tag(tag: Any) -> bool:
    return type(tag) is list and [type(part) for part in tag] == [str, int]


def _pairs(ext: RawExt) -> list[tuple[Any, Any]] | None:
    """The keys and values of a dict with any keys; None for what somebody made up: a key without a value, or that is a list."""
    flat = unpack_raw(ext.data)
    if type(flat) is not list or len(flat) % 2 or any(type(key) in (list, dict) for key in flat[::2]):
        return None
    return list(zip(flat[::2], flat[1::2], strict=True))


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
            out += f"[{shown(part)}]"
    return out


def shown(value: Any) -> str:
    """`repr`, also of what holds an int with more digits than Python writes, or of what has a faulty one."""
    try:
        return repr(value)
    except ValueError:
        return f"<{type(value).__qualname__} with too many digits to show>"
    except Exception as error:  # noqa: BLE001 - it is shown in a message about something else, which must not be lost
        return f"<{type(value).__qualname__} whose repr raises {type(error).__name__}>"


# -- helpers ---------------------------------------------------------------------------------------


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
        pairs = [part for key, item in zip(keys, value.values(), strict=True) for part in (key, codec._pack_any(item))]
    return ormsgpack.Ext(MAP, join_array(pairs))


def _too_deep(path: tuple[Any, ...]) -> InvalidState:
    where = format_path(path) or "the state"
    return InvalidState(f"{where} is nested deeper than {MAX_DEPTH} levels (or contains itself)", path=format_path(path))


def _cannot_keep(leaf: Any) -> str:
    name = type(leaf).__qualname__
    if isinstance(leaf, (dict, list, tuple, set, frozenset, str, int, float, bytes)) and type(leaf) not in _CONTAINERS:
        base = next(b.__name__ for b in type(leaf).__mro__ if b.__module__ == "builtins")
        return f"{name} would come back as a plain {base}; convert it with {base}(...) yourself"
    if isinstance(leaf, Enum):
        return f"{leaf!r} would not be found again by its value; keep its name, or give it a plain value"
    if type(leaf) in (dt.datetime, dt.time):
        return f"the time zone {leaf.tzinfo!r} cannot be kept; use datetime.timezone or zoneinfo.ZoneInfo"
    return f"a value of type {name} cannot be kept; keep plain data, a dataclass or a model instead"


_PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None), list, tuple, set, frozenset))
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_SEQUENCES: Final[dict[type, int]] = {tuple: TUPLE, set: SET, frozenset: FROZENSET}
