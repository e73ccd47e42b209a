"""An encoded state, opened only where needed. (Over 500 lines: dicts, lists and their pieces are defined by each other.)

A node is `bytes` (an unopened encoded value), a `Dict` (a dict, or an object by its fields) or a `List` (runs of encoded
items). Saving compares new values with these bytes, loading joins them and decodes once, and both share what did not change.
Only the `Editing` that created a node changes it in place.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, cast

import ormsgpack

from savegame.encoding.codec import Codec
from savegame.encoding.extensions import MAP, RawExt
from savegame.encoding.raw import array_header, join_array, map_header, object_ext, open_ext, pack_raw, unpack_raw
from savegame.errors import CorruptionError
from savegame.waiting.forking import call_in_child

RUN_ITEMS: Final = 64
RUN_BYTES: Final = 128 * 1024

PLAIN_KEYS: Final = bytes(
    (*range(0x80), *range(0xA0, 0xC1), 0xC4, 0xC5, 0xC6, *range(0xCC, 0xD4), *range(0xD9, 0xDC), *range(0xE0, 0x100))
)
"""First bytes of encoded texts, whole numbers, bytes and None: these are equal if and only if their bytes are."""

Path: TypeAlias = tuple[Any, ...]
Names: TypeAlias = tuple[bytes, ...]
"""Encoded keys that lead to a place."""


class Dict:
    """A dict by its encoded keys, in order. `tag` is the registered class of an object, empty for a dict."""

    __slots__ = ("_plain", "children", "maker", "size", "tag")

    def __init__(self, tag: bytes, children: dict[bytes, Node], maker: object = None) -> None:
        self.tag = tag
        self.children = children
        self.size = len(tag) + 5 + sum(len(key) + size_of(child) for key, child in children.items())
        self.maker = maker
        self._plain: bool | None = None

    @property
    def plain(self) -> bool:
        """Whether two keys are equal only if their bytes are."""
        if self._plain is None:
            self._plain = not bytes(map(itemgetter(0), self.children)).translate(None, PLAIN_KEYS)
        return self._plain

    def copy(self, maker: object = None) -> Dict:
        """Another Dict with the same children."""
        twin = Dict.__new__(Dict)
        twin.tag, twin.children, twin.size, twin.maker, twin._plain = (
            self.tag,
            dict(self.children),
            self.size,
            maker,
            self._plain,
        )
        return twin

    def with_longer(self, key: bytes, data: bytes) -> Dict | None:
        """Another Dict with the items of an encoded list appended to the list at `key`; None if that needs a closer look."""
        child = self.children.get(key)
        if type(child) is not List or not self.plain:
            return None
        longer = child.with_items(data)
        twin = Dict.__new__(Dict)
        twin.tag, twin.children, twin.maker, twin._plain = self.tag, {**self.children, key: longer}, None, True
        twin.size = self.size + longer.size - child.size
        return twin

    def find(self, key: Any) -> bytes:
        """The encoded form of an existing key. Raises KeyError."""
        encoded = pack_raw(key)
        if encoded not in self.children:
            raise KeyError(key)
        return encoded

    def get(self, key: bytes) -> Node:
        """The child at an existing key."""
        return self.children[key]

    def replace(self, key: bytes, child: Node) -> None:
        """Replace an existing child; the caller updates the size."""
        self.children[key] = child

    def put(self, key: bytes, child: Node) -> None:
        """Set a child; an existing key keeps its place."""
        old = self.children.get(key)
        self.size += size_of(child) - (-len(key) if old is None else size_of(old))
        self.children[key] = child
        if old is None and key[0] not in PLAIN_KEYS:
            self._plain = False

    def drop(self, key: bytes) -> None:
        """Remove a child."""
        self.size -= len(key) + size_of(self.children.pop(key))


class Tail(NamedTuple):
    """The end of a list as stored: encoded lists of `items` items each, starting after `skip` bytes of each body."""

    items: int
    skip: int
    bodies: list[bytes]

    def runs(self) -> Iterator[Run]:
        """The items as runs of a good size."""
        step, opening = max(1, RUN_ITEMS // self.items), self.skip + len(array_header(self.items))
        for at in range(0, len(self.bodies), step):
            chunk = [body[opening:] for body in self.bodies[at : at + step]]
            yield self.items * len(chunk), array_header(self.items * len(chunk)) + b"".join(chunk)


class List:
    """A list as runs: (count, encoded list of that many items), or (1, node) for an opened item.

    Versions of a growing list share one list of runs, of which each sees a prefix, so appending does not copy. The stored
    tail of a loaded list becomes runs only on demand, which decoding does not need; so do the `Pieces` of a list that was
    changed in the middle. All of it changes in one assignment, because other threads may be reading.
    """

    __slots__ = ("_view", "count", "maker", "size")

    def __init__(self, runs: list[Run], maker: object = None) -> None:
        self._view: tuple[list[Run], int, Tail | None] | Pieces = (runs, len(runs), None)
        self.count = sum(count for count, _ in runs)
        self.size = 5 + sum(size_of(data) for _, data in runs)
        self.maker = maker

    @property
    def runs(self) -> list[Run]:
        """The runs of this version."""
        runs, seen = self._settle()
        return runs[:seen]

    def _settle(self) -> tuple[list[Run], int]:
        view = self._view
        if isinstance(view, Pieces):
            runs = view.runs()
            runs = _coalesce(runs, RUN_BYTES) if len(runs) > self._enough() else runs
        else:
            runs, seen, tail = view
            if tail is None:
                return runs, seen
            runs = [*runs[:seen], *tail.runs()]
        self._view = (runs, len(runs), None)
        return runs, len(runs)

    def parts(self) -> tuple[list[Run], Tail | None]:
        """The runs of this version, and the tail that is not runs yet."""
        view = self._view
        return (self.runs, None) if isinstance(view, Pieces) else (view[0][: view[1]], view[2])

    def copy(self, maker: object = None) -> List:
        """Another version with the same items."""
        twin = List.__new__(List)
        twin._view, twin.count, twin.size, twin.maker = (*self._settle(), None), self.count, self.size, maker
        return twin

    def grow(self, data: bytes) -> None:
        """Append the items of an encoded list in place, to a version that is not shared yet."""
        if isinstance(self._view, Pieces):
            self._add((array_count(data), data))
        else:
            longer = self.with_items(data)
            self._view, self.count, self.size = longer._view, longer.count, longer.size

    def extend(self, tail: Tail) -> None:
        """Append stored items in place, to a version that is not shared yet."""
        if not tail.items or not tail.bodies:
            return
        view = self._view
        if isinstance(view, Pieces):
            for run in tail.runs():
                self._add(run)
            return
        runs, seen, before = view
        runs = runs if len(runs) == seen else runs[:seen]
        if before is not None:
            runs.extend(before.runs())
        self._view = (runs, len(runs), tail)
        self.count += tail.items * len(tail.bodies)
        self.size += sum(map(len, tail.bodies)) - tail.skip * len(tail.bodies)

    def _add(self, run: Run) -> None:
        if run[0]:
            self._pieces().add(run)
            self.count += run[0]
            self.size += size_of(run[1])

    def with_items(self, data: bytes) -> List:
        """Another version with the items of an encoded list appended."""
        first = data[0]
        added = first & 0x0F if 0x90 <= first <= 0x9F else array_count(data)
        if not added:
            return self
        runs, seen = self._settle()
        run = added, data
        if len(runs) == seen:
            runs.append(run)
        if runs[seen] is not run:  # another version has grown from here
            runs = [*runs[:seen], run]
        twin = List.__new__(List)
        twin._view, twin.count, twin.size, twin.maker = (runs, seen + 1, None), self.count + added, self.size + len(data), None
        if seen >= twin._enough() + RUN_ITEMS:
            runs = [*runs[: seen - RUN_ITEMS], *_coalesce(runs[seen - RUN_ITEMS : seen + 1])]
            twin._view = (runs, len(runs), None)
        return twin

    def join(self) -> list[Run]:
        """The runs, after joining neighbours up to a good size."""
        if self._settle()[1] > self._enough():
            runs = _coalesce(self.runs, RUN_BYTES)
            self._view = (runs, len(runs), None)
        return self.runs

    def _enough(self) -> int:
        """A number of runs above which iterating is slow; `_coalesce` never leaves more."""
        return 2 * (self.count // RUN_ITEMS) + 4 * (self.size // RUN_BYTES) + 8

    # The following methods change this version in place; it must not be shared yet.

    def _pieces(self) -> Pieces:
        if not isinstance(self._view, Pieces):
            self._view = Pieces(self.runs)
        return self._view

    def find(self, index: Any) -> int:
        """An existing index. Raises KeyError."""
        if type(index) is not int or not 0 <= index < self.count:
            raise KeyError(index)
        return index

    def get(self, index: int) -> Node:
        """The item at an existing index."""
        block, offset = self._pieces().find(index)
        return block[offset]

    def replace(self, index: int, item: Node) -> None:
        """Replace an existing item; the caller updates the size."""
        block, offset = self._pieces().find(index)
        block[offset] = item

    def splice(self, start: int, deleted: int, items: list[Node]) -> None:
        """Replace `deleted` existing items by others."""
        pieces = self._pieces()
        self.size += sum(map(size_of, items)) - pieces.remove(start, deleted)
        self.count += len(items) - deleted
        if items:
            pieces.insert(start, items)


class Pieces:
    """The runs of a list that is changed in many places: finds, adds and removes any item in a few steps.

    A block is a run, or the items of an opened run. The sums are a Fenwick tree over the lengths of the blocks.
    """

    __slots__ = ("_blocks", "_sums")

    def __init__(self, runs: list[Run]) -> None:
        self._blocks: list[Run | list[Node]] = list(runs)
        self._add_up()

    def runs(self) -> list[Run]:
        """All blocks as runs."""
        found: list[Run] = []
        for block in self._blocks:
            found += [block] if isinstance(block, tuple) else runs_of(block)
        return found

    def find(self, index: int) -> tuple[list[Node], int]:
        """The opened block with an item, and the item's index there."""
        _, block, offset = self._open(index)
        return block, offset

    def add(self, run: Run) -> None:
        """Add a run at the end."""
        self._blocks.append(run)
        number = len(self._blocks)
        low, total, below = number - (number & -number), run[0], number - 1
        while below > low:
            total += self._sums[below]
            below -= below & -below
        self._sums.append(total)

    def remove(self, start: int, count: int) -> int:
        """Remove items and return their size."""
        size = 0
        while count:
            at, offset = self._place(start)
            block = self._blocks[at]
            if offset == 0 and isinstance(block, tuple) and block[0] <= count:
                taken, self._blocks[at] = block[0], []
                size += size_of(block[1])
            else:
                at, items, offset = self._open(start)
                gone = items[offset : offset + count]
                del items[offset : offset + count]
                taken = len(gone)
                size += sum(map(size_of, gone))
            self._lengthen(at, -taken)
            count -= taken
        return size

    def insert(self, start: int, items: list[Node]) -> None:
        """Insert items before the one at `start`, or at the end."""
        at, block, offset = self._open(start)
        block[offset:offset] = items
        self._lengthen(at, len(items))
        if len(block) > 2 * RUN_ITEMS:
            self._break(at, block)

    def _place(self, index: int) -> tuple[int, int]:
        """The block and offset of an item; for the end of the list, the place behind the last block."""
        at, step = 0, 1 << len(self._blocks).bit_length()
        while step := step >> 1:
            if at + step < len(self._sums) and self._sums[at + step] <= index:
                at += step
                index -= self._sums[at]
        return at, index

    def _open(self, index: int) -> tuple[int, list[Node], int]:
        """`_place`, with the items of the block, which it opens."""
        at, offset = self._place(index)
        if at == len(self._blocks):
            self.add((0, b"\x90"))
        block = self._blocks[at]
        if isinstance(block, list):
            return at, block, offset
        items: list[Node] = [*items_of([block])] if isinstance(block[1], bytes) else [block[1]]
        self._blocks[at] = items
        if len(items) <= 2 * RUN_ITEMS:
            return at, items, offset
        self._break(at, items)
        return self._open(index)

    def _break(self, at: int, items: list[Node]) -> None:
        """Split a long block into short ones, and recompute all sums, which is rare enough."""
        self._blocks[at : at + 1] = [items[low : low + RUN_ITEMS] for low in range(0, len(items), RUN_ITEMS)]
        self._add_up()

    def _lengthen(self, at: int, more: int) -> None:
        """Add to the length of a block in the sums."""
        at += 1
        while at < len(self._sums):
            self._sums[at] += more
            at += at & -at

    def _add_up(self) -> None:
        counts = (block[0] if isinstance(block, tuple) else len(block) for block in self._blocks)
        before = list(accumulate(counts, initial=0))
        self._sums = [before[number] - before[number - (number & -number)] for number in range(len(before))]


Node: TypeAlias = bytes | Dict | List
Run: TypeAlias = tuple[int, Node]


def size_of(node: Node) -> int:
    """The approximate encoded size of a node."""
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
"""Decoded runs by the id() of their bytes, which are kept alive so that the id stays theirs."""


def value_of(codec: Codec, node: Node, shared: Shared | None = None) -> Any:
    """The decoded value; with `shared`, runs that were decoded with it before return the same objects.

    Pauses the garbage collector, which would find nothing: all new objects stay alive.
    """
    global _resting
    collecting = gc.isenabled()
    try:
        _resting = _resting or collecting
        gc.disable()
        return _decode(codec, node, shared)
    finally:
        if collecting:
            gc.enable()
            _resting = False


_resting = False
"""Whether we have paused the garbage collector."""


def _collect_again() -> None:
    if _resting:
        gc.enable()


call_in_child(_collect_again)  # the thread that was decoding does not exist in the child


def _decode(codec: Codec, node: Node, shared: Shared | None) -> Any:
    if isinstance(node, bytes):
        return codec.decode(node)
    if isinstance(node, List):
        return _decode_items(codec, node, shared)
    fields = {codec.decode(key): _decode(codec, child, shared) for key, child in node.children.items()}
    return codec.close(node.tag, fields) if node.tag else fields


def _decode_items(codec: Codec, node: List, shared: Shared | None) -> list[Any]:
    runs, tail = node.parts() if shared is None else (node.join(), None)
    items: list[Any] = []
    for _, data in runs:
        if type(data) is not bytes:
            items.append(_decode(codec, data, shared))
        elif shared is None:
            items += codec.decode(data)
        else:
            found = shared.get(id(data))
            if found is None:
                found = shared[id(data)] = (data, codec.decode(data))
            items += found[1]
    return items if tail is None else items + codec.decode_lists(tail.bodies, tail.skip)


def open_node(node: Node) -> Node:
    """The node, opened one level if it is a container."""
    if not isinstance(node, bytes):
        return node
    if is_list(node):
        return List(split_runs(node))
    first = node[0]
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        return _open_fields(node, b"", unpack_raw(node).items())
    if 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8:
        ext = unpack_raw(node)
        opened = open_ext(ext) if isinstance(ext, RawExt) else None
        if opened is not None:
            return _open_fields(node, *opened)
    return node


def _open_fields(node: bytes, tag: bytes, fields: Collection[tuple[Any, Any]]) -> Node:
    children: dict[bytes, Node] = {pack_raw(key): pack_raw(child) for key, child in fields}
    return Dict(tag, children) if len(children) == len(fields) else node  # two NaN keys: the node stays closed


def is_list(node: Node) -> bool:
    """Whether a node is a list."""
    return isinstance(node, List) or (isinstance(node, bytes) and (0x90 <= node[0] <= 0x9F or node[0] in (0xDC, 0xDD)))


def child_of(node: Node, name: str) -> Node | None:
    """The child of a dict under a name; None if it is missing or the node is not a dict."""
    opened = open_node(node)
    return opened.children.get(pack_raw(name)) if isinstance(opened, Dict) else None


def count_of(node: Node) -> int | None:
    """The number of items of a list; None for other nodes."""
    opened = node if isinstance(node, List) else open_node(node)
    return opened.count if isinstance(opened, List) else None


class Editing:
    """A tree that is being changed: nodes of its own are changed in place, others are copied first.

    Any number of changes costs one copy of each dict and list they touch, and other trees never see them.
    """

    def __init__(self, node: Node | None) -> None:
        self.node = node
        self.maker = object()

    def change(self, path: Path, change: Callable[[Node], Node], find: Callable[[Dict | List, Any], Any] | None = None) -> None:
        """Replace the node at `path` by what `change` returns for it; it may change the node in place. Raises KeyError.

        `find` returns the key or index of a part of the path in the dict or list it leads into.
        """
        if self.node is None:
            raise KeyError("there is no state yet")
        node = self.node
        way: list[tuple[Dict | List, Any, int]] = []
        for key in path:
            parent = self._own(node)
            if isinstance(parent, bytes):
                raise KeyError(key)
            place: Any = parent.find(key) if find is None else find(parent, key)
            node = parent.get(place)
            way.append((parent, place, size_of(node)))
        node = change(self._own(node))
        for parent, place, before in reversed(way):
            parent.replace(place, node)
            parent.size += size_of(node) - before
            node = parent
        self.node = node

    def put(self, path: Path, child: Node) -> None:
        """Set an entry of the dict that the path before its last part leads to."""
        key = pack_raw(path[-1])

        def put_child(parent: Node) -> Node:
            cast(Dict, parent).put(key, child)
            return parent

        if len(path) == 1 and self.node is not None:
            self.node = put_child(self._own(self.node))
        else:
            self.change(path[:-1], put_child)

    def entry(self, path: Path) -> tuple[Names, Dict] | None:
        """The encoded names of a path of one or two, and the dict around the last, if only dicts with plain keys are in it."""
        node = self.node
        if type(node) is not Dict or not node.plain or len(path) > 2 or type(path[0]) is not str:
            return None
        if len(path) == 1:
            return (pack_name(path[0]),), node
        first = pack_name(path[0])
        inner = node.children.get(first)
        if type(inner) is not Dict or not inner.plain or type(path[1]) is not str:
            return None
        return (first, pack_name(path[1])), inner

    def put_entry(self, names: Names, child: Node | None) -> None:
        """Set a place that `entry` has found, or remove it with None."""
        self.node = node = cast(Dict, self._own(cast(Dict, self.node)))
        parent = node
        if len(names) == 2:
            parent = cast(Dict, self._own(node.children[names[0]]))
            node.children[names[0]] = parent
            node.size -= parent.size
        if child is None:
            parent.drop(names[-1])
        else:
            parent.put(names[-1], child)
        if parent is not node:
            node.size += parent.size

    def _own(self, node: Node) -> Node:
        """The node, opened if it is a container, and ours to change."""
        if isinstance(node, bytes):
            node = open_node(node)
            if not isinstance(node, bytes):
                node.maker = self.maker
        elif node.maker is not self.maker:
            node = node.copy(self.maker)
        return node


@lru_cache(maxsize=1024)
def pack_name(name: str) -> bytes:
    """The encoded form of a name that occurs again and again."""
    return pack_raw(name)


def items_of(runs: Iterable[Run]) -> list[bytes]:
    """The encoded items of runs."""
    items: list[bytes] = []
    for _, data in runs:
        items += map(pack_raw, unpack_raw(data)) if isinstance(data, bytes) else (to_bytes(data),)
    return items


def runs_of(items: Iterable[Node]) -> list[Run]:
    """Items as runs of a good size."""
    return _coalesce((1, b"\x91" + item if isinstance(item, bytes) else item) for item in items)


def split_runs(data: bytes) -> list[Run]:
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
    """The number of items of an encoded list. Raises CorruptionError for other values."""
    first = data[0]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    if first in (0xDC, 0xDD):
        count = int.from_bytes(data[1 : _header_length(first)], "big")
        if count < len(data):  # each item has at least one byte
            return count
    raise CorruptionError("stored items are not a list")


def _header_length(first: int) -> int:
    return 3 if first == 0xDC else 5 if first == 0xDD else 1


def _coalesce(runs: Iterable[Run], closed: int = 0) -> list[Run]:
    """The runs with neighbours joined up to a good size; closes opened items of at most `closed` bytes for that."""
    out: list[Run] = []
    group: list[Run] = []
    count = size = 0
    for run in runs:
        if closed and not isinstance(run[1], bytes) and run[1].size <= closed:
            run = 1, b"\x91" + to_bytes(run[1])
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
