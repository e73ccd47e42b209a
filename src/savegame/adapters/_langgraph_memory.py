"""A namespace of LangGraph's long-term memory as a thread of the vault: its id, reading it, the one way to change it.

Such a thread is readable without LangGraph: in its state, `memory` is the namespace, and `items` maps each key to a value with
its times. Vectors are records beside the thread, set in the commit of their item. A change is relative and repeated if another
writer was faster, so no item is lost. Earlier states are freed when they outweigh the newest one, and by every delete; those
with a label stay.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import blake3

from savegame.details import EPOCH, MICROSECOND
from savegame.encoding.delta import DELETE, SET, Op, make
from savegame.encoding.frames import load_meta
from savegame.encoding.raw import pack_raw
from savegame.encoding.tree import Dict, Editing, Node, child_of, open_node, value_of
from savegame.errors import ConflictError, CorruptionError, InvalidInputError, ThreadNotFound
from savegame.model import ThreadKey, ThreadRow
from savegame.store import DeleteThread, Expect, MoveHead, StoreChange
from savegame.thread import Thread
from savegame.timeline import removal
from savegame.timeline.companions import SUBJECT, VECTORS
from savegame.timeline.derived import DOWN
from savegame.timeline.policy import Retention
from savegame.timeline.timeline import Terms, Timeline
from savegame.vault import Vault

logger = logging.getLogger("savegame")

Namespace = tuple[str, ...]

ROOT: Final = "memory:"
"""The start of the ids of these threads; the labels of the namespace follow, with dots between them."""

LONGEST: Final = 400
"""Namespaces with more characters end in a hash, so that the id is not too long."""

MEMORY: Final = "memory"
ITEMS: Final = "items"


def thread_id(namespace: Namespace) -> str:
    """The id of the thread of a namespace. Labels contain no dots, so that no two namespaces share one."""
    text = ".".join(namespace)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…{blake3.blake3(text.encode(errors='surrogatepass')).hexdigest()}"
    return ROOT + text


class Stored(NamedTuple):
    """An item as it is stored. `ttl` is its time to live in minutes."""

    value: dict[str, Any]
    created_at: dt.datetime
    updated_at: dt.datetime
    ttl: float | None = None
    expires_at: dt.datetime | None = None

    def expired(self, now: dt.datetime) -> bool:
        """Whether its time to live is over."""
        return self.expires_at is not None and self.expires_at <= now

    def fields(self) -> dict[str, Any]:
        """What is stored: the fields that have a value."""
        return {name: field for name, field in self._asdict().items() if field is not None}


class Put(NamedTuple):
    """What to store under a key: the value, its time to live in minutes, and its vectors by the path of their text."""

    value: dict[str, Any]
    ttl: float | None
    vectors: Mapping[str, bytes]


class MemoryChange(NamedTuple):
    """What to do to a namespace: store or (None) delete items, prolong the life of others, delete those that have expired."""

    puts: Mapping[str, Put | None] = {}
    refresh: Collection[str] = ()
    sweep: bool = False


class Memory:
    """The items of one namespace at one moment."""

    def __init__(self, namespace: Namespace, timeline: Timeline, items: Dict | None) -> None:
        self.namespace = namespace
        self.timeline = timeline
        self._items = items

    def __len__(self) -> int:
        return 0 if self._items is None else len(self._items.children)

    def __contains__(self, key: str) -> bool:
        return self._items is not None and pack_raw(key) in self._items.children

    def get(self, key: str) -> Stored | None:
        """The item with a key; decodes nothing else. Raises CorruptionError."""
        node = None if self._items is None else self._items.children.get(pack_raw(key))
        return None if node is None else self._stored(key, value_of(self.timeline.codec, node))

    def items(self) -> Iterator[tuple[str, Stored]]:
        """All items with their keys, last put first; decodes each when it is its turn. Raises CorruptionError."""
        codec = self.timeline.codec
        for encoded, node in reversed(({} if self._items is None else self._items.children).items()):
            key = codec.decode(encoded)
            yield key, self._stored(key, value_of(codec, node))

    def vectors(self) -> dict[str, tuple[dt.datetime, dict[str, bytes]]]:
        """The vectors of all items by key, each with the time at which their item was put."""
        return {key: (put_at, found) for key, put_at, found in self.timeline.values(VECTORS).values()}

    def vectors_of(self, key: str, item: Stored) -> dict[str, bytes]:
        """The vectors of one item; reads no others."""
        name = _record_name(key)
        page = self.timeline.store.records(self.timeline.key, VECTORS, after=name[:-1], limit=1)
        found = [self.timeline.read(record) for record in page.items if record.name == name]
        return found[0][2] if found and found[0][1] == item.updated_at else {}

    def _stored(self, key: str, fields: Any) -> Stored:
        try:
            item = Stored(**fields)
            times = (item.created_at, item.updated_at, item.expires_at or item.created_at)
            sound = isinstance(item.value, dict) and isinstance(item.ttl, float | int | None)
            if not sound or not all(isinstance(time, dt.datetime) and time.tzinfo for time in times):
                raise TypeError("its fields have other types")
        except TypeError as error:
            raise CorruptionError(
                f"thread {self.timeline.id!r}: item {key!r} is not what a store writes ({error}); put or delete it",
                thread_id=self.timeline.id,
                place=f"item {key}",
            ) from error
        return item


class Memories:
    """The namespaces of one vault."""

    def __init__(self, vault: Vault) -> None:
        engine = vault.rooms.engine
        self.vault = Vault(
            vault.store,
            namespace=vault.namespace,
            retention=Retention(max_checkpoints=1),
            compress=engine.compress,
            cache_bytes=engine.cache.limit,
        )
        """The same store with the retention of memories."""

    def now(self) -> dt.datetime:
        """The time of the store."""
        return EPOCH + self.vault.store.clock() * MICROSECOND

    # -- reading -----------------------------------------------------------------------------------

    def read(self, namespace: Namespace) -> Memory:
        """The items of a namespace. Raises InvalidInputError if a thread of another kind has its id."""
        timeline = self._timeline(thread_id(namespace))
        point = timeline.head()
        if point.node is None:
            return Memory(namespace, timeline, None)
        items = child_of(point.node, ITEMS)
        if isinstance(items, bytes):  # open it once for all that follow
            editing = Editing(point.node)
            editing.change((ITEMS,), lambda node: node)
            assert editing.node is not None
            timeline.engine.cache.put(timeline.key, point._replace(node=editing.node))
            items = child_of(editing.node, ITEMS)
        return Memory(namespace, timeline, self._checked(timeline, point.node, items))

    def below(self, prefix: Namespace) -> Iterator[Memory]:
        """The namespaces that begin with these labels and have items."""
        for page in self._pages(prefix):
            yield from filter(None, (self._listed(row, prefix) for row in page))

    def names(self, prefix: Namespace) -> Iterator[Namespace]:
        """The names of those; reads no items unless it must."""
        for page in self._pages(prefix):
            for row, frame in zip(page, self.vault.store.head_frames(page), strict=True):
                text = row.key.id.removeprefix(ROOT)
                timeline = self._timeline(row.key.id)
                count = None if frame is None else timeline.about(load_meta(frame.meta)).get(ITEMS)
                labels = tuple(text.split("."))
                if type(count) is int and len(text) <= LONGEST and all(labels):
                    yield from [labels] if count else []
                else:
                    yield from (memory.namespace for memory in [self._listed(row, prefix)] if memory)

    def _pages(self, prefix: Namespace) -> Iterator[list[ThreadRow]]:
        """Rows of the threads whose ids begin like those of namespaces below a prefix, and of the one of the prefix itself."""
        store, name = self.vault.store, self.vault.namespace
        own = ThreadKey(name, thread_id(prefix))
        row = store.thread(own) if prefix else None
        if row is not None and row.head:
            yield [row]
        stem = ROOT + "".join(f"{label}." for label in prefix)[:LONGEST]
        after: str | None = stem
        while after is not None:
            page = store.threads(name, after=after)
            yield [row for row in page.items if row.key.id.startswith(stem) and row.key != own]
            after = page.next if page.items and page.items[-1].key.id.startswith(stem) else None

    def _listed(self, row: ThreadRow, prefix: Namespace) -> Memory | None:
        """The items of a thread that was found by its id; None if it is of another kind, empty, or not below the prefix."""
        text = row.key.id.removeprefix(ROOT)
        namespace: Namespace = tuple(text.split("."))
        timeline = self._timeline(row.key.id)
        if len(text) > LONGEST:
            node = timeline.head().node
            stored = None if node is None else child_of(node, MEMORY)
            named = None if stored is None else value_of(timeline.codec, stored)
            namespace = tuple(named) if isinstance(named, list) and all(isinstance(label, str) for label in named) else ()
        if not all(namespace) or thread_id(namespace) != row.key.id or namespace[: len(prefix)] != prefix:
            return None
        try:
            return self.read(namespace) or None
        except InvalidInputError:  # of another kind: refused where it is named, passed over in listings
            return None

    def _timeline(self, id: str) -> Timeline:  # noqa: A002 - one word per idea
        return self.vault.thread(id).timeline

    def _checked(self, timeline: Timeline, node: Node, items: Node | None) -> Dict:
        if child_of(node, MEMORY) is None or not isinstance(items, Dict):
            raise InvalidInputError(
                f"thread {timeline.id!r} holds something else than the items of a SavegameStore; "
                "use another namespace, or give that thread another id"
            )
        return items

    # -- changing ----------------------------------------------------------------------------------

    def change(self, namespace: Namespace, change: MemoryChange) -> int:
        """Change the items of a namespace in one commit. Returns the number of deleted items, whose bytes are freed."""
        thread = self.vault.thread(thread_id(namespace))
        timeline = thread.timeline
        beside: list[StoreChange] = []
        left, gone = 0, list[str]()

        def revise(node: Node | None) -> tuple[list[Op], Node, Mapping[str, Any]]:
            nonlocal left, gone
            items = None if node is None else open_node(child_of(node, ITEMS) or b"\xc0")
            known = Memory(namespace, timeline, None if node is None else self._checked(timeline, node, items))
            edits = _Edits(known, node, change, self.now())
            beside[:] = [timeline.put(VECTORS, _record_name(key), value) for key, value in edits.vectors.items()]
            left, gone = len(known) + edits.added - len(edits.gone), edits.gone
            assert edits.editing.node is not None
            return edits.ops, edits.editing.node, {ITEMS: left}

        kind = "put" if any(change.puts.values()) else "delete" if change.puts or change.sweep else "read"
        saved = timeline.change(revise, {"kind": kind, "status": "completed"}, terms=Terms(beside=beside))
        dropped = not left and self._dropped(timeline, saved.id)
        if gone and not dropped:
            self._free(thread)
        return len(gone)

    def check(self, puts: Mapping[str, Put | None]) -> None:
        """Raise InvalidState for a value that cannot be stored."""
        for key, put in puts.items():
            if put is not None:
                self.vault.codec.encode(put.value, (ITEMS, key, "value"), 3)

    def _free(self, thread: Thread) -> None:
        """Free the bytes of deleted items."""
        try:
            thread.prune(keep=1)
        except ThreadNotFound:  # another writer has deleted the last item, and with it the thread
            return
        except ConflictError as error:  # the items are deleted, whatever happens to their bytes now
            logger.warning("thread %r: the bytes of deleted items are freed by the next delete: %s", thread.id, error)

    def _dropped(self, timeline: Timeline, head_id: str) -> bool:
        """Delete the thread of an empty namespace, unless anything else is attached to it or another writer was faster."""
        key, store = timeline.key, timeline.store
        if set(timeline.kinds()) - {VECTORS} or store.frames(key, noted=True, limit=1):
            return False
        alone = [Expect(key, None, kind, frozenset()) for kind in (*DOWN, SUBJECT)]
        try:
            store.commit([MoveHead(key, 0, head_id), *alone, DeleteThread(key)])
        except ConflictError:  # it is in use again
            return False
        timeline.engine.cache.forget(key)
        removal.free(timeline.engine, [key])
        return True


class _Edits:
    """What a change does to the items of a namespace as they are now. An item that is put moves to the end."""

    def __init__(self, known: Memory, node: Node | None, change: MemoryChange, now: dt.datetime) -> None:
        self.editing = Editing(node)
        self.ops: list[Op] = []
        self.gone: list[str] = []
        self.vectors: dict[str, Any] = {}
        self.added = 0
        self._codec = known.timeline.codec
        if node is None:
            self._set((), {MEMORY: list(known.namespace), ITEMS: {}})
        for key, put in change.puts.items():
            if key in known:
                self._do(Op(DELETE, (ITEMS, key)))
                self.vectors[key] = None
                self.gone += [key] if put is None else []
            if put is not None:
                created = self._created(known, key) or now
                self._set((ITEMS, key), Stored(put.value, created, now, put.ttl, expiry(now, put.ttl)).fields())
                self.added += key not in known
                self.vectors |= {key: [key, now, dict(put.vectors)]} if put.vectors else {}
        for key in change.refresh:
            item = None if key in change.puts else known.get(key)
            if item is not None and item.ttl is not None:
                self._set((ITEMS, key, "expires_at"), expiry(now, item.ttl))
        if change.sweep:
            for key in [key for key, item in known.items() if item.expired(now)]:
                self._do(Op(DELETE, (ITEMS, key)))
                self.vectors[key] = None
                self.gone.append(key)

    def _created(self, known: Memory, key: str) -> dt.datetime | None:
        try:
            item = known.get(key)
        except CorruptionError:  # replacing it is the cure
            return None
        return None if item is None else item.created_at

    def _set(self, path: tuple[str, ...], value: Any) -> None:
        self._do(Op(SET, path, self._codec.encode(value, path, len(path))))

    def _do(self, op: Op) -> None:
        self.ops.append(op)
        make(self.editing, op)


def expiry(now: dt.datetime, ttl: float | None) -> dt.datetime | None:
    """When an item with a time to live in minutes expires. Raises InvalidInputError."""
    try:
        return None if ttl is None else now + dt.timedelta(minutes=ttl)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"ttl must be a number of minutes, or None for no end, not {ttl!r}") from error


def _record_name(key: str) -> str:
    """The name of the record with the vectors of an item: of equal length for all, so that one can be read alone."""
    return blake3.blake3(key.encode()).hexdigest(length=16) + "."
