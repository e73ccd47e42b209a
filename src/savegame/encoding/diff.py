"""Finds deltas: from a state to a new value, or for a user's update. Pure.

Values are encoded child by child and compared with the encoded tree, never by identity, so changes in place are detected;
equal parts stay the same node. `delta` describes and applies deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from savegame.encoding.codec import Codec
from savegame.encoding.delta import APPEND, DEEP, DELETE, EDIT, ORDER, SET, SPLICE, Op, make, text_of
from savegame.encoding.raw import join_array, pack_raw, unpack_raw
from savegame.encoding.text import format_path, repr_text
from savegame.encoding.tree import (
    PLAIN_KEYS,
    Dict,
    Editing,
    List,
    Names,
    Node,
    Path,
    Run,
    count_of,
    items_of,
    open_node,
    runs_of,
    size_of,
    split_runs,
    to_bytes,
    value_of,
)
from savegame.errors import InvalidInputError, InvalidState, SavegameError, UnsupportedError

_SMALL: Final = 128
"""Encoded values up to this size are replaced whole."""


def difference(codec: Codec, old: Node | None, value: Any) -> tuple[list[Op], Node]:
    """The operations that turn the state `old` into `value` (none if they are equal), and the new state."""
    if old is None:
        data = codec.encode(value)
        return [Op(SET, (), data)], open_node(data)
    return _Differ(codec).run(old, value)


class _Differ:
    """Walks an old tree and a new value in parallel, collects operations and builds the new tree."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.ops: list[Op] = []

    def run(self, old: Node, value: Any) -> tuple[list[Op], Node]:
        new = self.node(old, value, ())
        return self.ops, new

    def node(self, old: Node, value: Any, path: Path) -> Node:
        if isinstance(old, bytes):
            return self.leaf(old, value, path)
        if len(path) < DEEP:
            mark = len(self.ops)
            new = None
            if isinstance(old, List) and type(value) is list:
                new = self.items(old, value, path)
            elif isinstance(old, Dict):
                opened = self.codec.open(value)
                if opened is not None and opened[0] == old.tag:
                    new = self.fields(old, opened[1], path)
            if new is not None and self.cost(mark) <= size_of(new):
                return new
            del self.ops[mark:]
        return self.replace(value, path)

    def leaf(self, old: bytes, value: Any, path: Path) -> Node:
        data = self.pack(value, path)
        if data == old:
            return old
        data = self.codec.encode(value, path, len(path))
        if len(old) > _SMALL and len(data) > _SMALL:
            opened = open_node(old)
            if opened is not old:
                return self.node(opened, value, path)
            op = _text_change(old, data, path)
            if op is not None:
                self.ops.append(op)
                return data
        return self.replace(value, path)

    def replace(self, value: Any, path: Path) -> Node:
        data = self.codec.encode(value, path, len(path))
        self.ops.append(Op(SET, path, data))
        return open_node(data) if len(data) > _SMALL else data

    def fields(self, old: Dict, fields: dict[Any, Any], path: Path) -> Node | None:
        keys = {self.pack(key, (*path, key)): key for key in fields}
        if len(keys) != len(fields):  # two NaNs: equal bytes, but not equal
            return None
        self.ops += [Op(DELETE, (*path, unpack_raw(key))) for key in old.children if key not in keys]
        children: dict[bytes, Node] = {}
        changed = len(fields) != len(old.children)
        for (encoded, key), value in zip(keys.items(), fields.values(), strict=True):
            child = old.children.get(encoded)
            place = (*path, key if type(key) is str else unpack_raw(encoded))
            children[encoded] = self.replace(value, place) if child is None else self.node(child, value, place)
            changed = changed or children[encoded] is not child
        order = [key for key in old.children if key in children] + [key for key in children if key not in old.children]
        if order != list(children):
            self.ops.append(Op(ORDER, path, join_array(list(children))))
            changed = True
        return Dict(old.tag, children) if changed else old

    def items(self, old: List, value: list[Any], path: Path) -> Node:
        same: list[Run] = []
        position = 0
        changed = False
        runs = old.join()
        for count, data in runs:
            if position + count > len(value):
                break
            if isinstance(data, bytes):
                if self.pack_items(value[position : position + count], path, position) != data:
                    break
                same.append((count, data))
            else:
                mark = len(self.ops)
                item = self.node(data, value[position], (*path, position))
                if self.cost(mark) > size_of(data) // 2:
                    del self.ops[mark:]
                    break
                same.append((1, item if not isinstance(item, bytes) else b"\x91" + item))
                changed = changed or item is not data
            position += count
        if position == old.count == len(value):
            return List(same) if changed else old
        if position == old.count:
            data = encoded_items(self.codec, value[position:], path, position)
            self.ops.append(Op(APPEND, path, data))
            return List([*same, *split_runs(data)])
        return self.middle(same, items_of(runs[len(same) :]), value, position, path)

    def middle(self, same: list[Run], old: list[bytes], value: list[Any], start: int, path: Path) -> Node:
        """Compare the rest of a list item by item, from the first run that differs."""
        new = [self.pack(item, (*path, place)) for place, item in enumerate(value[start:], start)]
        head = _common(zip(old, new, strict=False))
        tail = _common(zip(reversed(old[head:]), reversed(new[head:]), strict=False))
        old_end, new_end = len(old) - tail, len(new) - tail
        nodes: list[Node] = list(new)
        for old_from, old_to, new_from, new_to in reversed(gaps(old, new, head, old_end, new_end)):
            if old_to - old_from == new_to - new_from:
                for index in range(new_to - new_from):
                    place = start + old_from + index
                    item = value[start + new_from + index]
                    nodes[new_from + index] = self.leaf(old[old_from + index], item, (*path, place))
                continue
            items = encoded_items(self.codec, value[start + new_from : start + new_to], path, start + new_from)
            if old_from == len(old):
                self.ops.append(Op(APPEND, path, items))
            else:
                self.ops.append(Op(SPLICE, path, items, start + old_from, old_to - old_from))
        return List([*same, *runs_of(nodes)])

    def pack(self, value: Any, path: Path) -> bytes:
        try:
            data = self.codec.pack(value)
        except (TypeError, RecursionError):
            return self.codec.encode(value, path, len(path))
        if type(value) not in _SCALARS and (0xC4 in data or 0xC5 in data or 0xC6 in data):  # bytes or a lookalike
            self.codec.refuse_lookalikes(value, path, len(path))
        return data

    def pack_items(self, items: list[Any], path: Path, start: int) -> bytes:
        try:
            return self.codec.pack(items)
        except (TypeError, RecursionError):
            return encoded_items(self.codec, items, path, start)

    def cost(self, mark: int) -> int:
        return sum(len(op.value) + 16 for op in self.ops[mark:]) if len(self.ops) > mark else 0


_SCALARS: Final = frozenset((str, int, float, bool, bytes, type(None)))
"""Types that always come back unchanged."""


def encoded_items(codec: Codec, items: list[Any], path: Path, start: int) -> bytes:
    """Encode items of the list at `path`, from index `start` on. Raises InvalidState with the index of the item."""
    try:
        return codec.encode(items, path, len(path))
    except InvalidState:
        for place, item in enumerate(items, start):
            codec.encode(item, (*path, place), len(path) + 1)
        raise


def _common(pairs: Iterable[tuple[bytes, bytes]]) -> int:
    count = 0
    for left, right in pairs:
        if left != right:
            break
        count += 1
    return count


def gaps(old: list[bytes], new: list[bytes], head: int, old_end: int, new_end: int) -> list[tuple[int, int, int, int]]:
    """The ranges in which two lists differ between `head` and their ends, by greedily matching equal items in order."""
    places: dict[bytes, list[int]] = {}
    for index in range(old_end - 1, head - 1, -1):
        places.setdefault(old[index], []).append(index)
    found = []
    old_at = new_at = head
    for index in range(head, new_end):
        candidates = places.get(new[index], [])
        while candidates and candidates[-1] < old_at:
            candidates.pop()
        if not candidates:
            continue
        match = candidates.pop()
        if match > old_at or index > new_at:
            found.append((old_at, match, new_at, index))
        old_at, new_at = match + 1, index + 1
    if old_at < old_end or new_at < new_end:
        found.append((old_at, old_end, new_at, new_end))
    return found


def _text_change(old: bytes, new: bytes, path: Path) -> Op | None:
    """One edit that turns a text into another, or None if they have too little in common."""
    before, after = text_of(old), text_of(new)
    if before is None or after is None or before[0] is not after[0]:
        return None
    a, b = before[1], after[1]
    prefix = _common_prefix(a, b)
    suffix = _common_prefix(a[prefix:][::-1], b[prefix:][::-1])
    middle = b[prefix : len(b) - suffix]
    return Op(EDIT, path, middle, prefix, suffix) if len(middle) < len(b) // 2 else None


def _common_prefix(a: bytes, b: bytes) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# -- user's updates ----------------------------------------------------------------------------------


def update(
    codec: Codec,
    old: Node | None,
    *,
    append: Mapping[Any, list[Any]],
    set: Mapping[Any, Any],  # noqa: A002 - the public name
    delete: list[Any],
) -> tuple[list[Op], Node]:
    """The operations of `Thread.update` on a state, and the new state. Raises InvalidInputError if they do not fit."""
    try:
        both = [name for name in delete if name in set or name in append]
    except TypeError as error:
        raise InvalidInputError(f"a place must be a name or a tuple of names ({error})") from error
    if both:
        raise InvalidInputError(f"{both[0]!r} is both changed and deleted in one update; choose one")
    work = _Update(codec, old)
    path: Path = ()
    try:
        for name, value in set.items():
            path = _path(codec, name)
            work.set(path, value)
        for name, items in append.items():
            path = _path(codec, name)
            work.append(path, items)
        for name in delete:
            path = _path(codec, name)
            work.delete(path)
        work.refuse_incomplete()
    except KeyError as error:
        raise InvalidInputError(f"the state has no {format_path(path)!r} ({error.args[0]!r} is missing)") from error
    except TypeError as error:
        raise InvalidInputError(f"cannot change {format_path(path)!r}: {error}") from error
    assert work.editing.node is not None
    return work.ops, work.editing.node


def _path(codec: Codec, name: Any) -> Path:
    if type(name) is str:
        return (name,)
    path = name if isinstance(name, tuple) else (name,)
    if not path or len(path) > DEEP:
        raise InvalidInputError(f"a path needs 1 to {DEEP} parts, not {len(path)}")
    return tuple(_raw_key(codec, part, depth) for depth, part in enumerate(path, 1))


def _raw_key(codec: Codec, key: Any, depth: int) -> Any:
    """A dict key as paths contain it: text and whole numbers unchanged, other keys undecoded."""
    if type(key) is str or (type(key) is int and -(2**63) <= key < 2**63):
        return key
    data = codec.encode(key, (key,), depth)
    try:
        hash(codec.decode(data))
    except TypeError as error:
        raise InvalidState(
            f"{repr_text(key)} cannot be a key once it is plain data ({error})", path=format_path((key,))
        ) from error
    return unpack_raw(data)


class _Update:
    """The operations of one update, each applied to the tree at once.

    A key means the entry with an equal key in Python, whatever its bytes: `True` and `1.0` mean the entry of `1`, which keeps
    its key. NaN, which equals nothing, means the entry with the same bytes.
    """

    def __init__(self, codec: Codec, node: Node | None) -> None:
        self.codec = codec
        self.ops: list[Op] = []
        self.editing = Editing(node)
        self._indexes: dict[int, tuple[Dict, dict[Any, list[bytes]]]] = {}
        self._reduced: dict[int, tuple[Dict, Dict, list[Path]]] = {}
        if node is None:
            self._make(Op(SET, (), b"\x80"))

    def _make(self, op: Op) -> None:
        self.ops.append(op)
        make(self.editing, op)

    def set(self, path: Path, value: Any) -> None:
        """Set one place, with as small a delta as its old value allows. Creates missing dicts on the path."""
        path, parent, names = self._resolve(path, missing=True)
        child = parent.children.get(names[-1] if names else pack_raw(path[-1])) if isinstance(parent, Dict) else None
        data = self.codec.encode(value, path, len(path))
        if data == child:
            return
        if child is None or (len(data) <= _SMALL and type(child) is bytes):
            new: Node = data
            ops = [Op(SET, path, data)]
        else:
            differ = _Differ(self.codec)
            new = differ.node(child, value, path)
            ops = differ.ops
        if isinstance(parent, Dict):
            self.ops += ops
            if names:
                self.editing.put_entry(names, new)
            else:
                self.editing.put(path, new)
        else:
            for op in ops:
                self._make(op)

    def append(self, path: Path, items: Any) -> None:
        """Add items to the list at one place. Creates the list, and dicts on the path, if missing."""
        if type(items) not in (list, tuple):
            raise InvalidInputError(f"append needs a list of items for {format_path(path)!r}, not {type(items).__name__}")
        items = items if type(items) is list else list(items)
        if len(path) == 1 and not self.ops and self._append_at_once(path, items):
            return
        path, parent, names = self._resolve(path, missing=True)
        child = parent.children.get(names[-1] if names else pack_raw(path[-1])) if isinstance(parent, Dict) else None
        data = self._encode(path, items, child)
        self._make(Op(SET if isinstance(parent, Dict) and child is None else APPEND, path, data))

    def _append_at_once(self, path: Path, items: list[Any]) -> bool:
        """Append to a top-level list as the first operation, the usual case, without a walk. Returns whether it applied."""
        node, name = self.editing.node, pack_raw(path[0])
        child = node.children.get(name) if type(node) is Dict and node.plain else None
        if type(node) is not Dict or type(child) is not List:
            return False
        data = self._encode(path, items, child)
        self.ops.append(Op(APPEND, path, data))
        self.editing.node = node.with_longer(name, data)
        return True

    def _encode(self, path: Path, items: list[Any], child: Node | None) -> bytes:
        """Encode items for the list `child` at a path. Raises InvalidState with the index of the item there."""
        try:
            return self.codec.encode(items, path, len(path))
        except InvalidState:
            encoded_items(self.codec, items, path, 0 if child is None else count_of(child) or 0)
            raise

    def delete(self, path: Path) -> None:
        """Remove one place, which must exist."""
        path, parent, names = self._resolve(path, missing=False)
        if names:
            self.ops.append(Op(DELETE, path))
            self.editing.put_entry(names, None)
            return
        if isinstance(parent, Dict) and parent.tag:
            self._reduced.setdefault(id(parent), (parent, parent.copy(), []))[2].append(path)
        self._make(Op(DELETE, path))

    def refuse_incomplete(self) -> None:
        """Refuse deletions of fields without which their object could not be loaded."""
        for parent, before, paths in self._reduced.values():
            if self._load_error(parent) is None or self._load_error(before) is not None:  # it could not be loaded before either
                continue
            for path in paths:
                before.drop(pack_raw(path[-1]))
                error = self._load_error(before)
                if error is not None:
                    message = f"{format_path(path)!r} cannot be deleted: its object cannot be loaded without it ({error})"
                    raise InvalidInputError(message) from error

    def _load_error(self, node: Node) -> UnsupportedError | None:
        try:
            value_of(self.codec, node)
        except UnsupportedError as error:
            return error
        return None

    # -- places ------------------------------------------------------------------------------------

    def _resolve(self, path: Path, *, missing: bool) -> tuple[Path, Node, Names]:
        """The path with the keys of the state, and the opened node around its last part. Raises KeyError.

        With `missing`, creates missing dicts on the path. The names are for `Editing.put_entry`; empty if that does not do.
        """
        entry = None if self._indexes else self.editing.entry(path)
        if entry is not None and (missing or (entry[0][-1] in entry[1].children and not entry[1].tag)):
            return path, entry[1], entry[0]  # the usual case, without a walk
        way: list[Any] = []
        found: list[Node] = []

        def find(parent: Dict | List, key: Any) -> Any:
            if isinstance(parent, List):
                way.append(parent.find(key))
                return key
            place = self._key(parent, key, way)
            if place not in parent.children:
                if not missing:
                    raise KeyError(key)
                self.ops.append(Op(SET, (*way, key), b"\x80"))
                parent.put(place, b"\x80")
            way.append(unpack_raw(place))
            return place

        def look(parent: Node) -> Node:
            way.append(unpack_raw(self._key(parent, path[-1], way)) if isinstance(parent, Dict) else path[-1])
            found.append(parent)
            return parent

        self.editing.change(path[:-1], look, find)
        return tuple(way), found[0], ()

    def _key(self, parent: Dict, key: Any, way: list[Any]) -> bytes:
        """The encoded key of an entry, existing or new."""
        encoded = pack_raw(key)
        if encoded[0] in PLAIN_KEYS and parent.plain and id(parent) not in self._indexes:
            return encoded
        equal = self._equal(parent, encoded)
        if len(equal) > 1:  # written by an earlier version: as in Python, the first key gets the last value
            value = parent.children[equal[-1]]
            self.ops.append(Op(SET, (*way, unpack_raw(equal[0])), to_bytes(value)))
            self.ops += [Op(DELETE, (*way, unpack_raw(other))) for other in equal[1:]]
            parent.put(equal[0], value)
            for other in equal[1:]:
                parent.drop(other)
        return equal[0] if equal else encoded

    def _equal(self, parent: Dict, encoded: bytes) -> list[bytes]:
        """The keys of a dict that equal the given one, in order. Remembers that key, which may be added."""
        if id(parent) not in self._indexes:
            index: dict[Any, list[bytes]] = {}
            for key in parent.children:
                with suppress(TypeError, SavegameError):  # unhashable here: found only by its bytes
                    index.setdefault(self.codec.decode(key), []).append(key)
            self._indexes[id(parent)] = parent, index
        known = self._indexes[id(parent)][1].setdefault(self.codec.decode(encoded), [])
        if encoded not in known:
            known.append(encoded)
        return [key for key in known if key in parent.children]
