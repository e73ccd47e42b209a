"""The changes between two states as data: encode and apply them; when to write a keyframe. Pure.

A delta is a list of operations on paths. Its bytes are the length of a header, the header (the operations as MessagePack) and
the encoded values one after the other, so applying a delta moves bytes and decodes nothing. `docs/format/delta.md` describes
the layout; `diff` finds deltas.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from savegame.encoding.raw import array_header, pack_raw, unpack_raw
from savegame.encoding.text import format_path
from savegame.encoding.tree import (
    Dict,
    Editing,
    List,
    Node,
    Path,
    Tail,
    array_count,
    items_of,
    size_of,
    to_bytes,
)
from savegame.errors import CorruptionError

SET, DELETE, APPEND, SPLICE, EDIT, ORDER = range(6)

_HEADER = struct.Struct("<I")
DEEP: Final = 64
"""Changes below this many keys replace the whole value there."""

_PIECE: Final = 4096
"""Larger containers are built from pieces."""

KEYFRAME_SLACK: Final = 64 * 1024
ROW_COST: Final = 1024
"""The fixed cost of reading a delta, in bytes that could be read in the same time."""

ROW_BYTES: Final = 180
"""The size of a row on disk without its delta."""


def keyframe_due(state_bytes: int, rows: int, delta_bytes: int) -> bool:
    """Whether a keyframe would speed up reading and, compressed, add at most about a quarter to the bytes written.

    A list that only grows never needs one, because its deltas are its state.
    """
    quicker = delta_bytes + rows * ROW_COST > state_bytes + KEYFRAME_SLACK
    return quicker and state_bytes < 0.6 * (delta_bytes + rows * ROW_BYTES)


class Op(NamedTuple):
    """One operation: code, path, encoded value and numbers."""

    code: int
    path: Path
    value: bytes = b""
    a: int = 0
    b: int = 0


# -- bytes -----------------------------------------------------------------------------------------


def dump(ops: list[Op]) -> bytes:
    """The bytes of a delta."""
    if len(ops) == 1:
        (op,) = ops
        header = pack_raw([[op.code, list(op.path), -1, op.a, op.b]])
        return _HEADER.pack(len(header)) + header + op.value
    header = pack_raw([[op.code, list(op.path), len(op.value), op.a, op.b] for op in ops])
    return _HEADER.pack(len(header)) + header + b"".join(op.value for op in ops)


@functools.lru_cache(maxsize=256)
def append_opening(name: str) -> tuple[bytes, bytes]:
    """The encoded name of a top-level list, and the bytes before the items in the `dump` of an append to it."""
    return pack_raw(name), dump([Op(APPEND, (name,))])


def parse(data: bytes) -> list[Op]:
    """The operations of a delta's bytes."""
    try:
        start = _HEADER.size + _HEADER.unpack_from(data)[0]
        ops = []
        for code, path, length, a, b in unpack_raw(data[_HEADER.size : start]):
            if len(path) > DEEP:
                raise ValueError(f"a path of {len(path)} keys")
            end = len(data) if length < 0 else start + length
            ops.append(Op(code, tuple(path), data[start:end], a, b))
            start = end
    except (struct.error, ValueError, TypeError) as error:
        raise CorruptionError(f"a stored delta cannot be read: {error}") from error
    return ops


# -- apply -----------------------------------------------------------------------------------------


def apply(node: Node | None, ops: Iterable[Op]) -> Node | None:
    """The state after some operations. Raises KeyError or TypeError if an operation does not fit the state."""
    editing = Editing(node)
    for op in ops:
        make(editing, op)
    return editing.node


def make(editing: Editing, op: Op) -> None:
    """Apply one operation to a tree that is being edited."""
    if op.code == SET and not op.path:
        editing.node = op.value
    elif op.code in (SET, DELETE):
        editing.change(op.path[:-1], lambda parent: _set_child(parent, op))
    else:
        editing.change(op.path, lambda target: _CHANGES[op.code](target, op))


def replay(deltas: Iterable[bytes], skip: int = 0, most: int | None = None) -> Node | None:
    """The state after some stored deltas, starting from nothing; fast if many append equal numbers of items to one list.

    Each delta starts after `skip` bytes. Raises CorruptionError for a state of more than `most` bytes.
    """
    editing = Editing(None)
    growing: List | None = None
    opening, tail = b"", Tail(0, 0, [])
    size = 0
    for data in deltas:
        if most is not None:
            size += len(data)
            if size > most:  # much may have been replaced: count what is left
                size = len(data) + sum(map(len, tail.bodies)) + (0 if editing.node is None else size_of(_resize(editing.node)))
                refuse_large(size, most)
        if growing is not None and data.startswith(opening):
            tail.bodies.append(data)
            continue
        if growing is not None:
            growing.extend(tail)
            tail = Tail(0, 0, [])
        ops = parse(data[skip:])
        make_stored(editing, ops)
        growing = None
        if len(ops) == 1 and ops[0].code == APPEND and editing.node is not None:
            growing = _list_at(editing.node, ops[0].path)
            tail = Tail(array_count(ops[0].value), len(data) - len(ops[0].value), [])
            opening = data[: tail.skip + len(array_header(tail.items))]
    if growing is not None:
        growing.extend(tail)
    return None if editing.node is None else _resize(editing.node)


def whole(node: Node) -> list[Op]:
    """The operations that build a state from nothing, in pieces, so that applying them decodes nothing large."""
    ops: list[Op] = []
    _build(node, (), ops)
    return ops


def _build(node: Node, path: Path, ops: list[Op]) -> None:
    if isinstance(node, bytes) or size_of(node) <= _PIECE or len(path) >= DEEP:
        ops.append(Op(SET, path, to_bytes(node)))
    elif isinstance(node, List):
        ops.append(Op(SET, path, b"\x90"))
        ops += [Op(APPEND, path, to_bytes(List([run]))) for run in node.join()]
    else:
        ops.append(Op(SET, path, to_bytes(Dict(node.tag, {}))))
        for key, child in node.children.items():
            _build(child, (*path, unpack_raw(key)), ops)


def apply_stored(node: Node | None, ops: Iterable[Op]) -> Node | None:
    """`apply` for stored operations. Raises CorruptionError if they do not fit."""
    editing = Editing(node)
    make_stored(editing, ops)
    return editing.node


def refuse_large(size: int, most: int) -> None:
    """Raise CorruptionError for a state of more than `most` bytes."""
    if size > most:
        raise CorruptionError(f"the state would have {size} bytes: it was not written by savegame")


def make_stored(editing: Editing, ops: Iterable[Op]) -> None:
    """`make` for stored operations. Raises CorruptionError if they do not fit."""
    try:
        for op in ops:
            make(editing, op)
    except (KeyError, TypeError, IndexError) as error:
        raise CorruptionError(f"a stored delta does not fit the state before it: {error}") from error


def _list_at(node: Node, path: Path) -> List | None:
    """The list at `path` if the path leads through dicts only, so that it can grow in place."""
    for key in path:
        child = node.children.get(pack_raw(key)) if isinstance(node, Dict) else None
        if child is None:
            return None
        node = child
    return node if isinstance(node, List) else None


def _resize(node: Node) -> Node:
    """Update the sizes of dicts after lists below them have grown in place."""
    if isinstance(node, Dict):
        for child in node.children.values():
            _resize(child)
        node.size = len(node.tag) + 5 + sum(len(key) + size_of(child) for key, child in node.children.items())
    return node


def _set_child(parent: Node, op: Op) -> Node:
    key = op.path[-1]
    if isinstance(parent, List):
        parent.splice(parent.find(key), 1, [op.value] if op.code == SET else [])
    elif not isinstance(parent, Dict):
        raise TypeError(f"{format_path(op.path[:-1])} is neither a list nor a dict with distinct keys")
    elif op.code == SET:
        parent.put(pack_raw(key), op.value)
    else:
        parent.drop(parent.find(key))
    return parent


def _append(target: Node, op: Op) -> Node:
    if not isinstance(target, List):
        raise TypeError(f"{format_path(op.path)} is not a list")
    target.grow(op.value)
    return target


def _splice(target: Node, op: Op) -> Node:
    if not isinstance(target, List) or min(op.a, op.b) < 0 or op.a + op.b > target.count:
        raise TypeError(f"{format_path(op.path)} is not a list of {op.a + op.b} items")
    target.splice(op.a, op.b, [*items_of([(0, op.value)])])
    return target


def _edit_text(target: Node, op: Op) -> Node:
    text = text_of(target)
    if text is None or min(op.a, op.b) < 0 or op.a + op.b > len(text[1]):
        raise TypeError(f"{format_path(op.path)} is not a text of {op.a + op.b} bytes")
    header, old = text
    return header(len(old[: op.a]) + len(op.value) + op.b) + old[: op.a] + op.value + old[len(old) - op.b :]


def _order(target: Node, op: Op) -> Node:
    if not isinstance(target, Dict):
        raise TypeError(f"{format_path(op.path)} is not a dict")
    return Dict(target.tag, {key: target.children[key] for key in items_of([(0, op.value)])}, target.maker)


_CHANGES: Final = {APPEND: _append, SPLICE: _splice, EDIT: _edit_text, ORDER: _order}


# -- text ------------------------------------------------------------------------------------------


def text_of(node: Node) -> tuple[Callable[[int], bytes], bytes] | None:
    """A text or bytes leaf as (function for its header, content); None for other nodes."""
    if not isinstance(node, bytes):
        return None
    first = node[0]
    if 0xA0 <= first <= 0xBF:
        return _text_header, node[1:]
    if first in _TEXT_HEADERS:
        return (_bytes_header if first < 0xD0 else _text_header), node[_TEXT_HEADERS[first] :]
    return None


_TEXT_HEADERS: Final = {0xC4: 2, 0xC5: 3, 0xC6: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5}


def _text_header(length: int) -> bytes:
    return bytes((0xA0 | length,)) if length < 32 else _long_header(0xD9, length)


def _bytes_header(length: int) -> bytes:
    return _long_header(0xC4, length)


def _long_header(first: int, length: int) -> bytes:
    if length < 256:
        return bytes((first, length))
    return (
        bytes((first + 1,)) + length.to_bytes(2, "big") if length < 65536 else bytes((first + 2,)) + length.to_bytes(4, "big")
    )
