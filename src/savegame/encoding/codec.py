"""Values to bytes and back, exactly: a value comes back equal and of the same type, or is refused with its place.

Plain data stays inside `ormsgpack`, in C; every other type reaches `_extend`, which writes it as a MessagePack extension with
one of the tags of `extensions`. User data cannot look like a tag, because a tag is not a dict. Stored bytes never cause an
import or a call: objects are loaded only as classes registered in this process. `encode` is deterministic: equal bytes mean
an equal value, which deltas depend on.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import pathlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final

import ormsgpack

from savegame.encoding.classes import (
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
from savegame.encoding.extensions import (
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
)
from savegame.encoding.foreign import readable
from savegame.encoding.nesting import LEAF_TYPES, inside_out
from savegame.encoding.raw import (
    DEEPEST_STORED,
    LEAVES,
    MAX_DEPTH,
    OPTIONS,
    join_array,
    object_ext,
    open_ext,
    open_raw,
    pack_raw,
    unpack_raw,
)
from savegame.encoding.stack import PACKED, SPARE, UNPACKED, PackingState, rooms
from savegame.encoding.text import format_path
from savegame.errors import CorruptionError, InvalidInputError, InvalidState, SavegameError
from savegame.model import checked_id, checked_number


class Codec:
    """Encodes and decodes values; knows the registered classes. May be shared between threads."""

    def __init__(self) -> None:
        self._by_class: dict[type, Registered] = {}
        self._by_name: dict[str, Registered] = {}
        self._local = PackingState()
        self._foreign: Callable[[str, bytes], Any] = readable
        self._deepest = MAX_DEPTH

    # -- classes ---------------------------------------------------------------------------------

    def register(self, cls: type, *, schema_version: int = 1, upcast: Upcast | None = None, name: str | None = None) -> None:
        """Load objects of `cls`, and of the classes in its annotations, as objects."""
        if not has_fields(cls) and not (isinstance(cls, type) and issubclass(cls, Enum)):
            raise InvalidInputError(
                f"{cls!r} cannot be registered; pass a dataclass, a pydantic model, a msgspec struct or an Enum class"
            )
        checked_number(schema_version, "schema_version")
        if upcast is not None and not callable(upcast):
            raise InvalidInputError(f"upcast must be a function of (fields, version), not {upcast!r}")
        name = cls.__qualname__.rpartition("<locals>.")[2] if name is None else checked_id(name, "the name of a class")
        taken = self._by_name.get(name)
        if taken is not None and (taken.cls.__module__, taken.cls.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInputError(
                f"two classes have the name {name!r}, in {taken.cls.__module__} and {cls.__module__}; "
                f"register one of them with another name=..."
            )
        entry = Registered(cls, name, schema_version, upcast, ormsgpack.packb([name, schema_version]))
        self._by_name[name] = self._by_class[cls] = entry
        for reachable in classes_in_annotations(cls):
            if reachable not in self._by_class:
                self.register(reachable)

    def reading(self, foreign: Callable[[str, bytes], Any]) -> Codec:
        """The same codec with another decoder of foreign leaves."""
        twin = Codec.__new__(Codec)  # quicker than copy.copy: adapters make many
        twin.__dict__.update(self.__dict__)
        twin._foreign = foreign
        return twin

    def unlimited(self) -> Codec:
        """The same codec for stored values, which may be nested a little deeper: earlier versions accepted that."""
        twin = copy.copy(self)
        twin._deepest = DEEPEST_STORED
        return twin

    def knows(self, cls: type) -> bool:
        """Whether a class is registered."""
        return isinstance(cls, type) and cls in self._by_class

    def restore(self, cls: type, value: Any) -> Any:
        """Turn a dict of fields into an object of `cls`; return other values unchanged."""
        if type(value) is dict and has_fields(cls):
            entry = self._by_class[cls]
            return construct(entry, value, entry.version, None)
        return value

    # -- bytes -----------------------------------------------------------------------------------

    def encode(self, value: Any, path: tuple[Any, ...] = (), depth: int = 0) -> bytes:
        """The bytes of a value inside `depth` others. Raises InvalidState with the place of a value that cannot be stored."""
        skip = depth + SPARE
        if self._deepest > MAX_DEPTH:
            skip, inside = 0, value
        elif depth == 0:  # so that one level too many for us is one too many for ormsgpack
            inside = [[[[[value]]]]]
        elif depth == 1:
            inside = [[[[[[value]]]]]]
        else:
            inside = value
            for _ in range(skip):
                inside = [inside]
        try:
            data = ormsgpack.packb(inside, self._extend, OPTIONS)
        except TypeError as error:
            return self._encode_slowly(value, path, depth, error)
        if (  # first bytes of bytes and extensions: without them there are no lookalikes
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
            self.refuse_lookalikes(value, path, depth)
        return data[skip:]

    def pack(self, value: Any) -> bytes:
        """The bytes of a value without the checks of `encode`, for values that were encoded before."""
        try:
            return ormsgpack.packb(value, self._extend, OPTIONS)
        except TypeError:
            self._raise_hidden()
            return ormsgpack.packb(self._pack_slowly(value), self._extend, OPTIONS)

    def _encode_slowly(self, value: Any, path: tuple[Any, ...], depth: int, error: TypeError) -> bytes:
        """Encode what ormsgpack refused, or raise InvalidState."""
        try:
            with contextlib.suppress(RecursionError):
                self._raise_hidden()
            data = ormsgpack.packb(self._pack_slowly(value), self._extend, OPTIONS)
        except (TypeError, RecursionError) as second:
            problem = self._explain(value, path, depth)
            where = format_path(path) or "the state"
            raise problem or InvalidState(f"{where}: {self._local.cause or second}", path=format_path(path)) from error
        self.refuse_lookalikes(value, path, depth)
        return data

    def _pack_slowly(self, value: Any) -> Any:
        """The value as plain data with packed extensions, inner ones first; allows any keys and any nesting."""
        depth, self._local.depth = self._local.depth, 0
        try:
            return inside_out(value, self._take_apart, self._extension, DEEPEST_STORED)
        finally:
            self._local.depth = depth

    def _take_apart(self, value: Any) -> tuple[Any, Any]:
        while True:
            if type(value) is list:
                return None, list(value)
            if type(value) is dict and all(type(key) is str for key in value):
                return None, dict(value)
            if type(value) is dict:
                return (MAP, value), [part for pair in value.items() for part in pair]
            parts = None if type(value) in WRITERS else self._parts(value)
            if parts is None:
                return None, value
            if parts[0]:
                return (parts[0], value), parts[1]
            value = parts[1]  # stored in its place

    def decode(self, data: bytes) -> Any:
        """The value of bytes made by `encode`. Damaged bytes raise CorruptionError, never anything else."""
        self._local.cause = None
        try:
            return ormsgpack.unpackb(data, ext_hook=self._hook)
        except ValueError:
            self._raise_hidden()
        try:  # deeply nested extensions; or the bytes are fine, and ormsgpack hid a Ctrl-C
            return inside_out(unpack_raw(data), open_raw, self._revive, DEEPEST_STORED)
        except (SavegameError, MemoryError):
            raise
        except Exception as error:
            raise CorruptionError(f"stored bytes do not decode: {self._local.cause or error}") from error

    def decode_lists(self, bodies: list[bytes], skip: int) -> list[Any]:
        """The items of encoded lists as one list; each list starts after `skip` bytes of its body."""
        items: list[Any] = []
        hook = self._hook
        for body in bodies:
            try:
                items += ormsgpack.unpackb(body[skip:], ext_hook=hook)
            except ValueError:
                items += self.decode(body[skip:])
        return items

    def _hook(self, tag: int, body: bytes) -> Any:
        local = self._local
        try:
            if tag in LEAVES:
                return self._revive(tag, body)
            if local.depth >= UNPACKED:
                raise ValueError("too many nested extensions")
            local.depth += 1
            try:
                return self._revive(tag, ormsgpack.unpackb(body, ext_hook=self._hook))
            finally:
                local.depth -= 1
        except BaseException as error:  # ormsgpack replaces even Ctrl-C by its own error
            local.cause = local.cause or error
            raise

    # -- one value -------------------------------------------------------------------------------

    def _raise_hidden(self) -> None:
        """Raise what interrupted a hook, which ormsgpack has replaced by its own error."""
        hidden = self._local.cause
        if isinstance(hidden, (SavegameError, RecursionError, MemoryError)) or not isinstance(hidden, Exception | None):
            self._local.cause = None
            raise hidden from None

    def _extend(self, value: Any) -> Any:
        try:
            return self._write(value)
        except BaseException as error:  # as in _hook
            self._local.cause = error
            raise

    def _write(self, value: Any) -> Any:
        writer = WRITERS.get(type(value))
        if writer is not None:
            return writer(value)
        if isinstance(value, pathlib.PurePath):
            return write_path(value)
        opened = self._parts(value)
        if opened is None:
            raise TypeError(f"{type(value).__qualname__} cannot be stored")
        tag, parts = opened
        if not tag:
            return parts
        local = self._local
        if local.depth >= PACKED:
            raise TypeError("too many nested extensions")
        local.depth += 1
        try:
            return self._extension((tag, value), parts)
        except TypeError:
            if local.depth > 1:
                raise
            self._raise_hidden()
            return self._pack_slowly(value)
        finally:
            local.depth -= 1

    def _parts(self, value: Any) -> tuple[int, Any] | None:
        """The tag and the parts of a value's extension; 0 and the value to store in its place; or None for a leaf."""
        tag = _SEQUENCES.get(type(value))
        if tag is not None:
            return tag, list(value)
        entry = self._by_class.get(type(value))
        if isinstance(value, Enum):
            return (0, value.value) if entry is None else (ENUM, [entry.name, value.value])
        fields = fields_of(value)
        if fields is None:
            return None
        return (0, fields) if entry is None else (OBJECT, with_rest(value, fields))

    def _extension(self, how: tuple[int, Any], parts: Any) -> ormsgpack.Ext:
        """The extension of a value, from its tag, the value and its parts."""
        tag, value = how
        if tag in (SET, FROZENSET):
            items = sorted(map(self._pack_part, parts))
            self.refuse_unhashable(items)
            return ormsgpack.Ext(tag, join_array(items))
        if tag == MAP:
            self.refuse_unhashable([self._pack_part(key) for key in parts[::2]])
        if tag == ENUM and not is_member(self._by_class[type(value)], self.decode(self._pack_part(parts[1])), value):
            raise TypeError(_refusal(value))
        data = self._pack_part(parts)
        return object_ext(self.tag_of(value), data) if tag == OBJECT else ormsgpack.Ext(tag, data)

    def _pack_part(self, part: Any) -> bytes:
        depth = self._local.depth
        inside = part if type(part) is list else part.values() if type(part) is dict else (part,)
        if not depth or LEAF_TYPES.issuperset(map(type, inside)):
            return ormsgpack.packb(part, self._extend, OPTIONS)
        return rooms.all[depth].pack(part, self._extend)

    def refuse_unhashable(self, items: list[bytes]) -> None:
        """Refuse items of a set, or keys, that are unhashable or equal once they are plain data."""
        if len({self.decode(item) for item in items}) != len(items):
            raise TypeError("two items would become one")

    def tag_of(self, value: Any) -> bytes:
        """The encoded name of an object's registered class; empty for plain data."""
        entry = self._by_class.get(type(value))
        return b"" if entry is None else entry.tag

    def open(self, value: Any) -> tuple[bytes, dict[Any, Any]] | None:
        """A dict, or an object with fields, as (tag, fields), one level deep; None for other values."""
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
        """The reverse of `open` for an object: an object of the tag's class, or a dict if that is not registered."""
        name, version = unpack_raw(tag)
        rest = fields.pop(REST, None)
        entry = self._by_name.get(name)
        return fields if entry is None else construct(entry, fields, version, rest)

    def _revive(self, tag: int, parts: Any) -> Any:
        """The value of an extension, from its decoded parts, or from its bytes if it is a leaf."""
        if tag in READERS:
            return READERS[tag](parts)
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
        if tag == FOREIGN:
            return self._foreign(*ormsgpack.unpackb(parts))
        raise ValueError(f"unknown extension {tag}")

    # -- refusals --------------------------------------------------------------------------------

    def _explain(self, value: Any, path: tuple[Any, ...], depth: int) -> InvalidState | None:
        for place, leaf, deep in self._walk(value, path, depth):
            if deep > self._deepest:
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
                return InvalidState(f"{where}: {_refusal(leaf)}", path=format_path(place))
        return None

    def refuse_lookalikes(self, value: Any, path: tuple[Any, ...], depth: int) -> None:
        """Refuse types that ormsgpack writes by itself but that would come back as another type, and too deep nesting."""
        if self._is_simple(value, depth):
            return
        for place, leaf, deep in self._walk(value, path, depth):
            if deep > self._deepest:
                raise _too_deep(path)
            if isinstance(leaf, (bytearray, memoryview, ormsgpack.Ext)):
                where = format_path(place) or "the state itself"
                raise InvalidState(
                    f"{where}: {type(leaf).__name__} would come back as something else; pass bytes(...) yourself",
                    path=format_path(place),
                )

    def _is_simple(self, value: Any, depth: int) -> bool:
        """Whether a value has only exact builtin types and is not too deep, so that it needs no closer look."""
        waiting = [(value, depth)]
        while waiting:
            node, deep = waiting.pop()
            parts: Any = node
            if type(node) is dict and _TEXT.issuperset(map(type, node)):
                parts = node.values()
            elif type(node) in WRITERS or type(node) in LEAF_TYPES or type(node) is ormsgpack.Fragment:
                continue
            elif type(node) is not list and type(node) not in _SEQUENCES:
                return False
            if deep >= self._deepest:
                return False
            waiting += [(part, deep + 1) for part in parts if type(part) not in LEAF_TYPES]
        return True

    def _walk(self, value: Any, path: tuple[Any, ...], depth: int) -> Iterator[tuple[tuple[Any, ...], Any, int]]:
        """Every leaf and dict key of a value with its path and depth, down to one level below the maximum."""
        stack = [(path, value, depth)]
        while stack:
            place, node, depth = stack.pop()
            children = self._children(node) if depth <= self._deepest else None
            if not children:
                yield place, node, depth + (children is not None)  # an empty container is a level too
                continue
            stack.extend(((*place, key), child, depth + 1) for key, child in reversed(children))
            if isinstance(node, dict):
                yield from (((*place, key), key, depth) for key in node if type(key) is str)
                stack.extend(((*place, key), key, depth + 1) for key in reversed(node) if type(key) is not str)

    def _children(self, node: Any) -> list[tuple[Any, Any]] | None:
        if type(node) is dict:
            return list(node.items())
        if type(node) in _CONTAINERS:
            return list(enumerate(node))
        opened = None if type(node) in _PLAIN else self.open(node)
        return None if opened is None else list(opened[1].items())


# -- helpers ---------------------------------------------------------------------------------------


def _too_deep(path: tuple[Any, ...]) -> InvalidState:
    where = format_path(path) or "the state"
    return InvalidState(f"{where} is nested deeper than {MAX_DEPTH} levels (or contains itself)", path=format_path(path))


def _refusal(leaf: Any) -> str:
    name = type(leaf).__qualname__
    if isinstance(leaf, (dict, list, tuple, set, frozenset, str, int, float, bytes)) and type(leaf) not in _CONTAINERS:
        base = next(b.__name__ for b in type(leaf).__mro__ if b.__module__ == "builtins")
        return f"{name} would come back as a plain {base}; convert it with {base}(...) yourself"
    if isinstance(leaf, Enum):
        return f"{leaf!r} cannot be loaded by its value; store its name, or give it a plain value"
    if type(leaf) in (dt.datetime, dt.time):
        return f"the time zone {leaf.tzinfo!r} cannot be stored; use datetime.timezone or zoneinfo.ZoneInfo"
    return f"a value of type {name} cannot be stored; use plain data, a dataclass or a model instead"


_PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None), list, tuple, set, frozenset))
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_SEQUENCES: Final[dict[type, int]] = {tuple: TUPLE, set: SET, frozenset: FROZENSET}
_TEXT: Final = frozenset((str,))
