"""What changed between two states, as data: write it down, apply it; when to write a keyframe. Pure.

A delta is a list of operations over paths. In bytes it is the length of a header, the header (the operations as
MessagePack) and the values that they carry, encoded and one after the other, so that applying a delta moves bytes
and decodes nothing. `docs/format/delta.md` has the layout; `differ` finds deltas. Touches tree, codec and errors.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from savegame.encoding.codec import array_header, format_path, pack_raw, unpack_raw
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
"""Paths longer than this are not looked into: what lies below is replaced whole."""

_PIECE: Final = 4096
"""Containers larger than this are built from pieces."""

KEYFRAME_SLACK: Final = 64 * 1024
ROW_COST: Final = 1024
"""Reading a delta costs about as much time as this many bytes more than it has."""

ROW_BYTES: Final = 180
"""What a row takes on disk besides its delta."""


def keyframe_due(state_bytes: int, rows: int, delta_bytes: int) -> bool:
    """Whether a keyframe would make reading quicker and, compressed, add at most about a quarter to what was written.

    A list that only grows never needs one: its deltas are its state.
    """
    quicker = delta_bytes + rows * ROW_COST > state_bytes + KEYFRAME_SLACK
    return quicker and state_bytes < 0.6 * (delta_bytes + rows * ROW_BYTES)


class Op(NamedTuple):
    """One operation: what to do, where, with which numbers and which encoded value."""

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
    """The encoded name of a list right inside the state, and what `dump` writes before the items of an append to it."""
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
    """The state after some operations. Raises KeyError or TypeError where an operation does not fit the state."""
    editing = Editing(node)
    for op in ops:
        make(editing, op)
    return editing.node


def make(editing: Editing, op: Op) -> None:
    """`apply` for one operation on a tree that is being changed."""
    if op.code == SET and not op.path:
        editing.node = op.value
    elif op.code in (SET, DELETE):
        editing.change(op.path[:-1], lambda parent: _set_child(parent, op))
    else:
        editing.change(op.path, lambda target: _CHANGES[op.code](target, op))


def replay(deltas: Iterable[bytes], skip: int = 0, most: int | None = None) -> Node | None:
    """The state after some stored deltas, from nothing on; quick where many of them append as many items to one list.

    `skip` is how many bytes stand before each delta. Raises CorruptionError for a state of more than `most` bytes.
    """
    editing = Editing(None)
    growing: List | None = None
    opening, tail = b"", Tail(0, 0, [])
    size = 0
    for data in deltas:
        if most is not None:
            size += len(data)
            if size > most:  # much of it may have been replaced: count what there is
                size = len(data) + sum(map(len, tail.bodies)) + (0 if editing.node is None else size_of(_resized(editing.node)))
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
    return None if editing.node is None else _resized(editing.node)


def whole(node: Node) -> list[Op]:
    """The operations that build a state from nothing: in pieces, so that applying them decodes nothing large."""
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
    """`apply` for operations that came out of a store: what does not fit is corruption."""
    editing = Editing(node)
    make_stored(editing, ops)
    return editing.node


def refuse_large(size: int, most: int) -> None:
    """Raise CorruptionError for a state of more bytes than there may be."""
    if size > most:
        raise CorruptionError(f"the state would have {size} bytes: it was not written by savegame")


def make_stored(editing: Editing, ops: Iterable[Op]) -> None:
    """`make` for operations that came out of a store: what does not fit is corruption."""
    try:
        for op in ops:
            make(editing, op)
    except (KeyError, TypeError, IndexError) as error:
        raise CorruptionError(f"a stored delta does not fit the state before it: {error}") from error


def _list_at(node: Node, path: Path) -> List | None:
    """The list at `path` if only dicts lie on the way, so that it can grow in place."""
    for key in path:
        child = node.children.get(pack_raw(key)) if isinstance(node, Dict) else None
        if child is None:
            return None
        node = child
    return node if isinstance(node, List) else None


def _resized(node: Node) -> Node:
    """Count sizes again after lists grew behind the back of the nodes above them."""
    if isinstance(node, Dict):
        for child in node.children.values():
            _resized(child)
        node.size = len(node.tag) + 5 + sum(len(key) + size_of(child) for key, child in node.children.items())
    return node


def _set_child(parent: Node, op: Op) -> Node:
    key = op.path[-1]
    if isinstance(parent, List):
        parent.splice(parent.find(key), 1, [op.value] if op.code == SET else [])
    elif not isinstance(parent, Dict):
        raise TypeError(f"{format_path(op.path[:-1])} is neither a list nor a dict whose keys can be told apart")
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
    """A text or bytes leaf as (how to write its header, its content); None for everything else."""
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
