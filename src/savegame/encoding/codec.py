"""Values to bytes and back, exactly: what goes in comes out equal and of the same type, or is refused by name.

Plain data stays inside `ormsgpack`, in C; every other type reaches `_extend`, which writes it as a MessagePack
extension with one of the tags of `leaves`. User data can never look like a tag, because a tag is not a dict. Nothing is
imported or called because stored bytes name it: objects come back only as classes registered in this process.
`encode(value)` is deterministic, so equal bytes mean an equal value; the delta room builds on that.
Touches leaves, objects, foreign, nesting, model and errors.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import pathlib
import threading
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
    write_raw,
)
from savegame.encoding.foreign import readable
from savegame.encoding.nesting import PLAIN, inside_out
from savegame.errors import CorruptionError, InvalidInputError, InvalidState, SavegameError
from savegame.model import checked_id, checked_number

MAX_DEPTH: Final = 250
"""Levels of nesting that a state may have."""

_DEEPEST_STORED: Final = 2 * MAX_DEPTH
"""More than any state ever had: it is made up."""

_SPARE: Final = 5
"""Levels that ormsgpack takes more than we do."""

_PACKED, _UNPACKED = 3, 8
"""Extensions inside each other that are left to ormsgpack, which calls us for each: that takes a lot of the stack."""

_LITTLE: Final = 31
"""Levels of plain data that ormsgpack packs inside each of them, for the same reason: a stack of 256 KB is enough."""

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
    """How many extensions are being packed or unpacked, each inside the one before."""
    cause: BaseException | None = None
    """What a hook raised: ormsgpack hides it behind an error of its own."""


class _Room:
    """A list nested so deeply that ormsgpack takes only a few levels more inside it."""

    LEVELS: Final = MAX_DEPTH + _SPARE - _LITTLE

    def __init__(self) -> None:
        self._inner: list[Any] = [None]
        self._outer = self._inner
        for _ in range(self.LEVELS - 1):
            self._outer = [self._outer]

    def pack(self, value: Any, hook: Callable[[Any], Any]) -> bytes:
        """The bytes of a value. Raises TypeError."""
        self._inner[0] = value
        try:
            return ormsgpack.packb(self._outer, hook, _OPTIONS)[self.LEVELS :]
        finally:
            self._inner[0] = None


class _Rooms(threading.local):
    """One for each extension that may be inside another."""

    def __init__(self) -> None:
        self.all = [_Room() for _ in range(_PACKED + 1)]


_rooms: Final = _Rooms()


class Codec:
    """Encodes and decodes values; knows the registered classes. May be shared between threads."""

    def __init__(self) -> None:
        self._by_class: dict[type, Registered] = {}
        self._by_name: dict[str, Registered] = {}
        self._local = _Working()
        self._foreign: Callable[[str, bytes], Any] = readable
        self._deepest = MAX_DEPTH

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

    def unlimited(self) -> Codec:
        """The same codec for values out of a store: earlier versions took some that are nested a little deeper."""
        twin = copy.copy(self)
        twin._deepest = _DEEPEST_STORED
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

    def encode(self, value: Any, path: tuple[Any, ...] = (), depth: int = 0) -> bytes:
        """The bytes of a value that is inside so many others. Raises InvalidState naming the place of what cannot be kept."""
        skip = depth + _SPARE
        if self._deepest > MAX_DEPTH:
            skip, inside = 0, value
        elif depth == 0:  # one level more than we take is one more than ormsgpack takes
            inside = [[[[[value]]]]]
        elif depth == 1:
            inside = [[[[[[value]]]]]]
        else:
            inside = value
            for _ in range(skip):
                inside = [inside]
        try:
            data = ormsgpack.packb(inside, self._extend, _OPTIONS)
        except TypeError as error:
            return self._encode_slowly(value, path, depth, error)
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
            self.refuse_lookalikes(value, path, depth)
        return data[skip:]

    def pack(self, value: Any) -> bytes:
        """The bytes of a value without the checks of `encode`: for values that were encoded before."""
        try:
            return ormsgpack.packb(value, self._extend, _OPTIONS)
        except TypeError:
            self._raise_hidden()
            return ormsgpack.packb(self._pack_slowly(value), self._extend, _OPTIONS)

    def _encode_slowly(self, value: Any, path: tuple[Any, ...], depth: int, error: TypeError) -> bytes:
        """Encode what ormsgpack did not take as it is, or say what is wrong with it."""
        try:
            with contextlib.suppress(RecursionError):
                self._raise_hidden()
            data = ormsgpack.packb(self._pack_slowly(value), self._extend, _OPTIONS)
        except (TypeError, RecursionError) as second:
            problem = self._explain(value, path, depth)
            where = format_path(path) or "the state"
            raise problem or InvalidState(f"{where}: {self._local.cause or second}", path=format_path(path)) from error
        self.refuse_lookalikes(value, path, depth)
        return data

    def _pack_slowly(self, value: Any) -> Any:
        """The same value in plain data, its extensions packed, the inner ones first: any keys, any nesting."""
        depth, self._local.depth = self._local.depth, 0
        try:
            return inside_out(value, self._taken_apart, self._extension, _DEEPEST_STORED)
        finally:
            self._local.depth = depth

    def _taken_apart(self, value: Any) -> tuple[Any, Any]:
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
            value = parts[1]  # what is kept instead

    def decode(self, data: bytes) -> Any:
        """The value of bytes made by `encode`. Damaged bytes raise CorruptionError, never anything else."""
        self._local.cause = None
        try:
            return ormsgpack.unpackb(data, ext_hook=self._hook)
        except ValueError:
            self._raise_hidden()
        try:  # many extensions inside each other; or nothing is wrong with it, and it was Ctrl-C that ormsgpack hid
            return inside_out(unpack_raw(data), _opened_ext, self._revived, _DEEPEST_STORED)
        except (SavegameError, MemoryError):
            raise
        except Exception as error:
            raise CorruptionError(f"stored bytes do not decode: {self._local.cause or error}") from error

    def decode_lists(self, bodies: list[bytes], skip: int) -> list[Any]:
        """The items of encoded lists, which begin after `skip` bytes of each body, as one list."""
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
            if tag in _LEAVES:
                return self._revived(tag, body)
            if local.depth >= _UNPACKED:
                raise ValueError("too many extensions inside each other")
            local.depth += 1
            try:
                return self._revived(tag, ormsgpack.unpackb(body, ext_hook=self._hook))
            finally:
                local.depth -= 1
        except BaseException as error:
            local.cause = local.cause or error
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
        writer = WRITERS.get(type(value))
        if writer is not None:
            return writer(value)
        if isinstance(value, pathlib.PurePath):
            return write_path(value)
        opened = self._parts(value)
        if opened is None:
            raise TypeError(f"{type(value).__qualname__} cannot be kept")
        tag, parts = opened
        if not tag:
            return parts
        local = self._local
        if local.depth >= _PACKED:
            raise TypeError("too many extensions inside each other")
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
        """The tag of the extension for a value and what goes into it; 0 and what is kept instead; or None: it is a leaf."""
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
        """The extension for a value: its tag, the value, and what goes into it."""
        tag, value = how
        if tag in (SET, FROZENSET):
            items = sorted(map(self._packed_part, parts))
            self.refuse_unhashable(items)
            return ormsgpack.Ext(tag, join_array(items))
        if tag == MAP:
            self.refuse_unhashable([self._packed_part(key) for key in parts[::2]])
        if tag == ENUM and not is_member(self._by_class[type(value)], self.decode(self._packed_part(parts[1])), value):
            raise TypeError(_cannot_keep(value))
        data = self._packed_part(parts)
        return object_ext(self.tag_of(value), data) if tag == OBJECT else ormsgpack.Ext(tag, data)

    def _packed_part(self, part: Any) -> bytes:
        depth = self._local.depth
        inside = part if type(part) is list else part.values() if type(part) is dict else (part,)
        if not depth or PLAIN.issuperset(map(type, inside)):
            return ormsgpack.packb(part, self._extend, _OPTIONS)
        return _rooms.all[depth].pack(part, self._extend)

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

    def _revived(self, tag: int, parts: Any) -> Any:
        """The value of an extension: of its decoded parts, or of its bytes where it is a leaf."""
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
                return InvalidState(f"{where}: {_cannot_keep(leaf)}", path=format_path(place))
        return None

    def refuse_lookalikes(self, value: Any, path: tuple[Any, ...], depth: int) -> None:
        """Refuse what ormsgpack writes without asking although it would come back as something else, or is too deep."""
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
        """Whether it needs no closer look: leaves that come back as they are in containers of Python's, not too deep."""
        waiting = [(value, depth)]
        while waiting:
            node, deep = waiting.pop()
            parts: Any = node
            if type(node) is dict and _TEXT.issuperset(map(type, node)):
                parts = node.values()
            elif type(node) in WRITERS or type(node) in PLAIN:
                continue
            elif type(node) is not list and type(node) not in _SEQUENCES:
                return False
            if deep >= self._deepest:
                return False
            waiting += [(part, deep + 1) for part in parts if type(part) not in PLAIN]
        return True

    def _walk(self, value: Any, path: tuple[Any, ...], depth: int) -> Iterator[tuple[tuple[Any, ...], Any, int]]:
        """Every leaf and every dict key of a value with its path and depth; goes one level deeper than it may be."""
        stack = [(path, value, depth)]
        while stack:
            place, node, depth = stack.pop()
            children = self._children(node) if depth <= self._deepest else None
            if not children:
                yield place, node, depth + (children is not None)  # what is empty is a level nevertheless
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


def check_nesting(data: bytes) -> None:
    """Raise CorruptionError for an encoded value that is nested deeper than any that was ever kept."""
    try:
        inside_out(unpack_raw(data), _opened_ext, lambda tag, parts: None, _DEEPEST_STORED)
    except RecursionError as error:
        raise CorruptionError("a stored value is nested too deeply") from error


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


def _opened_ext(value: Any) -> tuple[int | None, Any]:
    """For `inside_out`: what is inside an extension that was not decoded, or the bytes of a leaf."""
    if type(value) is not RawExt:
        return None, value
    return value.tag, value.data if value.tag in _LEAVES else unpack_raw(value.data)


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
_LEAVES: Final = frozenset((*READERS, FOREIGN))
_TEXT: Final = frozenset((str,))
