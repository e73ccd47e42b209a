"""A state in its encoded form, opened only as far as somebody needed to look inside.

A node is `bytes` (an encoded value that nobody opened), a `Dict` (a dict, or an object by its fields) or a `List`
(runs of encoded items). Saving compares new values with these bytes, loading joins them and decodes once, and both
share whatever did not change. Nodes are never changed in place except by a caller that made them (`own`).
Touches codec and errors.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import ormsgpack

from savegame.codec import Codec, array_header, join_array, map_header, object_ext, open_ext, pack_raw, unpack_raw
from savegame.errors import CorruptionError
from savegame.leaves import MAP, RawExt

RUN_ITEMS: Final = 64
RUN_BYTES: Final = 128 * 1024

Path: TypeAlias = tuple[Any, ...]


class Dict:
    """A dict by its encoded keys, in order. `tag` names the registered class of an object and is empty for a dict."""

    __slots__ = ("children", "size", "tag")

    def __init__(self, tag: bytes, children: dict[bytes, Node]) -> None:
        self.tag = tag
        self.children = children
        self.size = len(tag) + 5 + sum(len(key) + size_of(child) for key, child in children.items())

    def copy(self) -> Dict:
        """A second Dict over the same children."""
        twin = Dict.__new__(Dict)
        twin.tag, twin.children, twin.size = self.tag, dict(self.children), self.size
        return twin

    def with_longer(self, key: bytes, data: bytes) -> Dict | None:
        """A second Dict whose list at `key` has the items of an encoded list more; None if there is no list there."""
        child = self.children.get(key)
        if type(child) is not List:
            return None
        longer = child.grown(data)
        twin = Dict.__new__(Dict)
        twin.tag, twin.children = self.tag, {**self.children, key: longer}
        twin.size = self.size + longer.size - child.size
        return twin

    def put(self, key: bytes, child: Node) -> None:
        """Set one child, keeping its place if the key is there."""
        old = self.children.get(key)
        self.size += size_of(child) - (-len(key) if old is None else size_of(old))
        self.children[key] = child

    def drop(self, key: bytes) -> None:
        """Remove one child."""
        self.size -= len(key) + size_of(self.children.pop(key))


class Tail(NamedTuple):
    """The end of a list as it came out of a store: encoded lists of `items` items each, `skip` bytes into each body."""

    items: int
    skip: int
    bodies: list[bytes]


class List:
    """A list as runs: (count, encoded list of that many items), or (1, node) for an item that was opened.

    Versions of a growing list share one list of runs, of which each sees the first few: appending costs no copy. What
    loading put behind them becomes runs when somebody asks for them: to decode it, nobody has to. All that changes in
    one assignment, since others may be reading.
    """

    __slots__ = ("_view", "count", "size")

    def __init__(self, runs: list[Run]) -> None:
        self._view: tuple[list[Run], int, Tail | None] = (runs, len(runs), None)
        self.count = sum(count for count, _ in runs)
        self.size = 5 + sum(size_of(data) for _, data in runs)

    @property
    def runs(self) -> list[Run]:
        """The runs of this version."""
        runs, seen = self._settled()
        return runs[:seen]

    def _settled(self) -> tuple[list[Run], int]:
        runs, seen, tail = self._view
        if tail is None:
            return runs, seen
        runs = runs[:seen]
        step, opening = max(1, RUN_ITEMS // tail.items), tail.skip + len(array_header(tail.items))
        for at in range(0, len(tail.bodies), step):
            chunk = [body[opening:] for body in tail.bodies[at : at + step]]
            runs.append((tail.items * len(chunk), array_header(tail.items * len(chunk)) + b"".join(chunk)))
        self._view = (runs, len(runs), None)
        return runs, len(runs)

    def parts(self) -> tuple[list[Run], Tail | None]:
        """The runs of this version, and what has not become runs yet."""
        runs, seen, tail = self._view
        return runs[:seen], tail

    def grow(self, data: bytes) -> None:
        """Add the items of an encoded list at the end of this very version, which nobody else has yet."""
        longer = self.grown(data, join=False)
        self._view, self.count, self.size = longer._view, longer.count, longer.size

    def extend(self, tail: Tail) -> None:
        """Add what a store has kept at the end of this very version."""
        if tail.items and tail.bodies:
            self._view = (*self._settled(), tail)
            self.count += tail.items * len(tail.bodies)
            self.size += sum(map(len, tail.bodies)) - tail.skip * len(tail.bodies)

    def grown(self, data: bytes, *, join: bool = True) -> List:
        """A second version with the items of an encoded list at the end."""
        first = data[0]
        added = first & 0x0F if 0x90 <= first <= 0x9F else array_count(data)
        if not added:
            return self
        runs, seen, tail = self._view
        if tail is not None:
            runs, seen = self._settled()
        run = added, data
        if len(runs) == seen:
            runs.append(run)
        if runs[seen] is not run:  # another version has grown from here
            runs = [*runs[:seen], run]
        twin = List.__new__(List)
        twin._view, twin.count, twin.size = (runs, seen + 1, None), self.count + added, self.size + len(data)
        if join and seen >= 2 * (twin.count // RUN_ITEMS) + RUN_ITEMS:
            twin.join()
        return twin

    def join(self) -> list[Run]:
        """The runs with neighbours joined up to a good size; remembered, since it changes nothing."""
        if self._settled()[1] > 2 * (self.count // RUN_ITEMS) + 8:
            runs = _coalesce(self.runs)
            self._view = (runs, len(runs), None)
        return self.runs

    def split(self, at: int) -> tuple[list[Run], list[Run]]:
        """The runs before and from item `at`."""
        position = 0
        runs = self.runs
        for index, (count, data) in enumerate(runs):
            if position == at:
                return runs[:index], runs[index:]
            if position + count > at:
                items = unpack_raw(data) if type(data) is bytes else []
                cut = at - position
                left, right = pack_raw(items[:cut]), pack_raw(items[cut:])
                return [*runs[:index], (cut, left)], [(count - cut, right), *runs[index + 1 :]]
            position += count
        return runs[:], []


Node: TypeAlias = bytes | Dict | List
Run: TypeAlias = tuple[int, Node]


def size_of(node: Node) -> int:
    """About how many bytes a node has when encoded."""
    return len(node) if type(node) is bytes else node.size  # type: ignore[union-attr]


def to_bytes(node: Node) -> bytes:
    """The encoded value, exactly as the codec would write it."""
    if isinstance(node, bytes):
        return node
    if isinstance(node, List):
        return array_header(node.count) + b"".join(body_of(run) for run in node.runs)
    parts = [part for key, child in node.children.items() for part in (key, to_bytes(child))]
    if all(map(_is_text, node.children)):
        data = map_header(len(node.children)) + b"".join(parts)
    else:
        data = ormsgpack.packb(ormsgpack.Ext(MAP, join_array(parts)))
    return ormsgpack.packb(object_ext(node.tag, data)) if node.tag else data


Shared: TypeAlias = dict[int, tuple[bytes, list[Any]]]
"""Decoded runs by the identity of their bytes, which are kept so that no others get it."""


def value_of(codec: Codec, node: Node, shared: Shared | None = None) -> Any:
    """The decoded value; with `shared`, runs of items that were decoded with it before are the same objects again.

    The garbage collector rests meanwhile: everything that is made stays alive, looking is in vain.
    """
    global _resting
    collecting = gc.isenabled()
    try:
        _resting = _resting or collecting
        gc.disable()
        return _decoded(codec, node, shared)
    finally:
        if collecting:
            gc.enable()
            _resting = False


_resting = False
"""Whether the garbage collector rests because of us."""


def _collect_again() -> None:
    if _resting:
        gc.enable()


if hasattr(os, "register_at_fork"):  # who was decoding is not there in the child
    os.register_at_fork(after_in_child=_collect_again)


def _decoded(codec: Codec, node: Node, shared: Shared | None) -> Any:
    if isinstance(node, bytes):
        return codec.decode(node)
    if isinstance(node, List):
        return _decoded_items(codec, node, shared)
    fields = {codec.decode(key): _decoded(codec, child, shared) for key, child in node.children.items()}
    return codec.close(node.tag, fields) if node.tag else fields


def _decoded_items(codec: Codec, node: List, shared: Shared | None) -> list[Any]:
    runs, tail = node.parts() if shared is None else (node.join(), None)
    items: list[Any] = []
    for _, data in runs:
        if type(data) is not bytes:
            items.append(_decoded(codec, data, shared))
        elif shared is None:
            items += codec.decode(data)
        else:
            found = shared.get(id(data))
            if found is None:
                found = shared[id(data)] = (data, codec.decode(data))
            items += found[1]
    return items if tail is None else items + codec.decode_lists(tail.bodies, tail.skip)


def open_node(node: Node) -> Node:
    """The same node, opened one level if it is a container; a leaf stays as it is."""
    if not isinstance(node, bytes):
        return node
    first = node[0]
    if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
        return List(chunked(node))
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        return _opened(node, b"", unpack_raw(node))
    if 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8:
        ext = unpack_raw(node)
        opened = open_ext(ext) if isinstance(ext, RawExt) else None
        if opened is not None:
            return _opened(node, *opened)
    return node


def _opened(node: bytes, tag: bytes, fields: dict[Any, Any]) -> Node:
    children: dict[bytes, Node] = {pack_raw(key): pack_raw(child) for key, child in fields.items()}
    return Dict(tag, children) if len(children) == len(fields) else node  # two keys may be NaN: then it stays closed


def child_of(node: Node, name: str) -> Node | None:
    """What a dict has under a name; None if it has nothing there, or is no dict."""
    opened = open_node(node)
    return opened.children.get(pack_raw(name)) if isinstance(opened, Dict) else None


def count_of(node: Node) -> int | None:
    """How many items a list has; None if it is none."""
    opened = node if isinstance(node, List) else open_node(node)
    return opened.count if isinstance(opened, List) else None


def edit(node: Node, path: Path, change: Callable[[Node], Node], *, own: bool) -> Node:
    """The tree with `change` applied at `path`; nodes on the way are copied unless `own`ed. Raises KeyError."""
    if not path:
        return change(node)
    opened = open_node(node)
    own = own or opened is not node
    if isinstance(opened, Dict):
        key = pack_raw(path[0])
        child = edit(opened.children[key], path[1:], change, own=own)
        target = opened if own else opened.copy()
        target.put(key, child)
        return target
    if isinstance(opened, List):
        at = checked_index(opened, path[0])
        before, rest = opened.split(at)
        item, after = rest[0], rest[1:]
        if item[0] > 1:
            (item,), others = List([item]).split(1)
            after = [*others, *after]
        inner = item[1] if not isinstance(item[1], bytes) else body_of(item)
        child = edit(inner, path[1:], change, own=own)
        return List([*before, (1, join_array([child]) if isinstance(child, bytes) else child), *after])
    raise KeyError(path[0])


def checked_index(node: List, index: Any) -> int:
    """A list index that is there. KeyError if it is not."""
    if type(index) is not int or not 0 <= index < node.count:
        raise KeyError(index)
    return index


def items_of(runs: Iterable[Run]) -> list[bytes]:
    """Every item of some runs, encoded."""
    items: list[bytes] = []
    for _, data in runs:
        items += map(pack_raw, unpack_raw(data)) if isinstance(data, bytes) else (to_bytes(data),)
    return items


def runs_of(items: list[bytes]) -> list[Run]:
    """Encoded items as runs of a good size."""
    return _coalesce([(1, b"\x91" + item) for item in items])


def chunked(data: bytes) -> list[Run]:
    """An encoded list as runs of a good size."""
    count = array_count(data)
    if count <= RUN_ITEMS:
        return [(count, data)] if count else []
    items = unpack_raw(data)
    chunks = [items[at : at + RUN_ITEMS] for at in range(0, count, RUN_ITEMS)]
    return [(len(chunk), pack_raw(chunk)) for chunk in chunks]


def body_of(run: Run) -> bytes:
    """The encoded items of a run, without the header of the list."""
    data = run[1]
    return data[_header_length(data[0]) :] if isinstance(data, bytes) else to_bytes(data)


def array_count(data: bytes) -> int:
    """How many items an encoded list has."""
    first = data[0]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    if first in (0xDC, 0xDD):
        return int.from_bytes(data[1 : _header_length(first)], "big")
    raise CorruptionError("stored items are not a list")


def _header_length(first: int) -> int:
    return 3 if first == 0xDC else 5 if first == 0xDD else 1


def _coalesce(runs: Iterable[Run]) -> list[Run]:
    out: list[Run] = []
    group: list[Run] = []
    count = size = 0
    for run in runs:
        fits = isinstance(run[1], bytes) and count + run[0] <= RUN_ITEMS and size + len(run[1]) <= RUN_BYTES
        if group and not (fits and isinstance(group[0][1], bytes)):
            out.append((count, _join_runs(group)) if len(group) > 1 else group[0])
            group, count, size = [], 0, 0
        group.append(run)
        count += run[0]
        size += size_of(run[1])
    if group:
        out.append((count, _join_runs(group)) if len(group) > 1 else group[0])
    return out


def _join_runs(runs: list[Run]) -> bytes:
    return array_header(sum(count for count, _ in runs)) + b"".join(map(body_of, runs))


def _is_text(key: bytes) -> bool:
    first = key[0]
    return 0xA0 <= first <= 0xBF or 0xD9 <= first <= 0xDB
