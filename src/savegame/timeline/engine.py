"""Saving and loading: states to frames and back, the cache between, keyframes. Handed a store; knows no users' verbs.

A save finds the delta against the cached tree of the head, appends one frame with the head that it built on as the
expected one, and only then changes the cache. A load takes the nearest sound keyframe and replays the deltas after it,
or catches up from the cache. Keyframes are written after the save was acknowledged; failing to write one costs time
at the next load, nothing else. Touches store, policy, frames, delta, tree, codec, model.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from weakref import WeakSet

from savegame.encoding import delta as deltas
from savegame.encoding.codec import Codec
from savegame.encoding.delta import APPEND, Op, keyframe_due
from savegame.encoding.frames import (
    BLOB_FROM,
    DIGEST_BYTES,
    PLAIN,
    STATE_TO,
    WITH_BLOBS,
    digest,
    load_meta,
    metadata_of,
    put_back_ops,
    take_out_ops,
    unwrap,
    wrap,
)
from savegame.encoding.tree import Dict, Editing, Node, size_of
from savegame.errors import Busy, CheckpointNotFound, ConflictError, CorruptionError, Fenced, InvalidState, SavegameError
from savegame.model import Chain, Frame, ThreadKey, ThreadRow
from savegame.store import ANY, Append, PutKeyframe, Store, StoreChange
from savegame.stores.refusals import head_moved
from savegame.timeline.policy import Retention
from savegame.waiting.retrying import TRIES

logger = logging.getLogger("savegame")

ENTRY_OVERHEAD = 2048
"""What an entry of the cache takes besides its encoded state."""

STRETCH = 64
"""So many neighbours are read at once, at most, where one state after the other is wanted."""

STRETCH_BYTES = 1 << 20
"""After a stretch with more than this they are read one by one again."""

STRIPES = 4096


class Point(NamedTuple):
    """A checkpoint with its state as a tree, as the cache keeps it. `rows` and `bytes` count since the last keyframe."""

    seq: int
    id: str
    step: int
    meta: bytes
    """As it is stored: the digest, then the packed fields."""
    node: Node | None
    rows: int
    bytes: int
    agent: str | None = None
    chosen: bool = False
    """Whether a user chose the id, which another checkpoint may get once this one is gone."""
    about: bool = False
    """Whether it says what listings show of its state; then so does what is saved on top of it."""


EMPTY = Point(0, "", 0, b"", None, 0, 0)
"""What the first save of a thread builds on."""


class Draft(NamedTuple):
    """What a save says besides the state, by the names of Meta. Without an id it gets a new one."""

    details: dict[str, Any]
    id: str | None = None
    note: bytes | None = None


class Cache:
    """The newest point of each thread, least recently put first out, bounded in bytes. May be shared between threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begin without points, with a lock that nobody holds."""
        self.bytes = 0
        self._points: dict[ThreadKey, Point] = {}
        self._sizes: OrderedDict[ThreadKey, int] = OrderedDict()
        self._lock = threading.RLock()  # a signal handler that saves may come while it is held
        self.get: Callable[[ThreadKey], Point | None] = self._points.get  # the point kept for a thread

    def put(self, key: ThreadKey, point: Point) -> None:
        """Keep a point instead of the thread's former one; forget others until all fit."""
        size = ENTRY_OVERHEAD + (0 if point.node is None else size_of(point.node) * 5 // 4)
        if size > self.limit:
            return self.forget(key)
        with self._lock:
            try:
                self._points[key] = point
                former = self._sizes.pop(key, 0)
                self.bytes += size - former  # in one step: a handler may put something, whenever a call returns
                self._sizes[key] = size
                while self.bytes > self.limit:
                    oldest, former = self._sizes.popitem(last=False)
                    self.bytes -= former
                    self._points.pop(oldest, None)
            except BaseException:  # Ctrl-C
                self.clear()
                raise

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._points.clear()
            self._sizes.clear()
            self.bytes = 0

    def forget(self, key: ThreadKey) -> None:
        """Keep nothing of a thread."""
        with self._lock:
            self._points.pop(key, None)
            former = self._sizes.pop(key, 0)
            self.bytes -= former


class Naming(NamedTuple):
    """A checkpoint of an agent that names another one."""

    agent_id: str
    checkpoint_id: str


class Pins:
    """Which checkpoints those of agents name, so that they stay; none, unless a vault puts its agents in the place of this."""

    def named(self, agents: Collection[str | None], but: Collection[ThreadKey] = ()) -> Mapping[str, frozenset[Naming]]:
        """What the checkpoints of these agents name, by id, and by which; `but` those whose own thread is among these."""
        return {}

    def let_go(self, gone: Mapping[ThreadKey, Collection[int] | None]) -> list[StoreChange]:
        """Frees the deleted threads that nothing names any more once these checkpoints (None: all) of these threads go."""
        return []


class Engine:
    """Saves to and loads from one store. May be shared between threads."""

    def __init__(self, store: Store, codec: Codec, retention: Retention, *, compress: bool, cache_bytes: int) -> None:
        self.store = store
        self.codec = codec
        self.retention = retention
        self.compress = compress
        self.cache = Cache(cache_bytes)
        self.after_keyframe: Callable[[Engine, ThreadKey, int | None], None] | None = None
        self.largest = STATE_TO + STATE_TO // 4
        """How many bytes a state may have that is loaded."""
        self.about: Callable[[Codec, bytes, Node], bytes] = lambda codec, base_meta, node: b""
        """What listings show of a state, encoded, on top of a checkpoint with this metadata."""
        self.pins = Pins()
        self._locks: dict[int, threading.RLock] = {}
        _engines.add(self)

    def without_cache(self) -> Engine:
        """The same engine, reading everything from the store."""
        return Engine(self.store, self.codec, self.retention, compress=self.compress, cache_bytes=0)

    def with_own_cache(self) -> Engine:
        """The same engine for going through many states of a thread: `remembered` ones are where the next may begin."""
        codec, size = self.codec.unlimited(), self.cache.limit
        return Engine(self.store, codec, self.retention, compress=self.compress, cache_bytes=size)

    def after_fork_in_child(self) -> None:
        """Forget locks and cache: threads that held or changed them do not exist in the child."""
        self._locks = {}
        self.cache.begin_anew()

    def alone(self, key: ThreadKey) -> AbstractContextManager[bool]:
        """Saves of one process to one thread go one after the other: they would only conflict.

        Not inside `connection()`, where who holds the lock may be waiting for us: there it gives False.
        """
        if self.store.borrowed():
            return nullcontext(enter_result=False)
        stripe = hash(key) % STRIPES  # threads that share a lock only wait a little longer
        return self._locks.get(stripe) or self._locks.setdefault(stripe, threading.RLock())

    # -- loading -----------------------------------------------------------------------------------

    def head(self, key: ThreadKey) -> Point:
        """The head of a thread as it is now; EMPTY if it has none."""
        seen: ThreadRow | None = None
        for _ in range(TRIES):
            row = self.store.thread(key)
            if row is None or row.head_id is None:
                return EMPTY
            try:
                point = self.point(key, row.head)
            except CheckpointNotFound as error:
                self.refuse_missing_head(row, seen, error)
                seen = row
                continue
            self.cache.put(key, point)
            return point
        raise ConflictError(f"thread {key.id!r}: its head was moved and removed {TRIES} times while it was read; try again")

    def refuse_missing_head(self, row: ThreadRow, seen: ThreadRow | None, error: CheckpointNotFound) -> None:
        """Between two looks a head may move on and be pruned; if it is still the head and is not there, it is damage."""
        if seen is not None and row.head_id == seen.head_id:
            place = f"frame {row.head} is missing"
            message = f"thread {row.key.id!r}: its head {row.head_id} is missing; run verify, then repair or restore a backup"
            raise CorruptionError(
                message, thread_id=row.key.id, checkpoint_id=row.head_id, place=place, seq=row.head
            ) from error

    def point(self, key: ThreadKey, seq: int, frame: Frame | None = None) -> Point:
        """The checkpoint with a sequence number, with its state. Raises CheckpointNotFound, CorruptionError."""
        cached = self.cache.get(key)
        if frame is None:
            frame = self.frame(key, seq)
        meta = load_meta(frame.meta)
        if cached is not None and cached.meta == frame.meta:  # its number may be another: deleted, and brought back since
            return cached if cached.seq == seq else cached._replace(seq=seq)
        if cached is not None and not self._still_there(key, cached, below=seq):
            cached = None
        try:
            chain = self.store.chain(key, seq, after=cached.seq if cached else 0)
            node = self._replay(key, chain, cached)
        except CorruptionError as error:
            raise _located(error, key, frame) from error
        begun = cached if cached and chain.keyframe_seq == cached.seq and chain.keyframe is None else EMPTY
        rows, read = begun.rows + len(chain.deltas), begun.bytes + sum(map(len, chain.deltas))
        chosen, about = meta.request is not None, bool(meta.about)
        return Point(seq, frame.id, meta.step, frame.meta, node, rows, read, meta.agent_id, chosen, about)

    def remembered(self, key: ThreadKey, seq: int, frame: Frame | None = None) -> Node:
        """The state of a checkpoint, put into the cache although it need not be the head's: see `with_own_cache`."""
        point = self.point(key, seq, frame)
        self.cache.put(key, point)
        assert point.node is not None
        return point.node

    def points(self, key: ThreadKey, frames: list[Frame]) -> Iterator[tuple[Frame, Point]]:
        """Checkpoints with their states, in the order given (oldest first); each found from one before where that helps."""
        node: Node | None = None
        before = 0
        read: dict[int, Frame] = {}
        stretch = 1
        for place, frame in enumerate(frames):
            if before and frame.base == before:
                meta = load_meta(frame.meta)
                if frame.seq not in read:
                    last = max(other.seq for other in frames[place : place + stretch] if other.seq < frame.seq + stretch)
                    read = self._stretch(key, frame.seq, last, with_deltas=True)
                    small = sum(len(other.delta or b"") for other in read.values()) < STRETCH_BYTES
                    stretch = min(2 * stretch, STRETCH) if small else 1
                stored = read.pop(frame.seq, None)
                if stored is None or stored.id != frame.id:
                    raise CheckpointNotFound(f"checkpoint not found: {frame.id!r} was deleted")
                try:
                    if stored.base == before:
                        node = deltas.apply_stored(node, deltas.parse(self._payload(key, stored.delta or b"")))
                    else:  # rebased meanwhile
                        node = self.point(key, frame.seq).node
                except CorruptionError as error:
                    raise _located(error, key, frame) from error
                chosen, about = meta.request is not None, bool(meta.about)
                point = Point(frame.seq, frame.id, meta.step, frame.meta, node, 0, 0, meta.agent_id, chosen, about)
            else:
                point = self.point(key, frame.seq, frame)
            node, before = point.node, frame.seq
            yield frame, point

    def _still_there(self, key: ThreadKey, cached: Point, *, below: int) -> bool:
        """Whether loading may begin at a cached point: its thread was not deleted and made anew meanwhile."""
        found = self.store.frames(key, low=cached.seq, high=cached.seq) if 0 < cached.seq < below else []
        return bool(found) and found[0].meta == cached.meta

    def find(self, namespace: str, checkpoint_id: str) -> tuple[ThreadKey, Frame] | None:
        """The frame of the checkpoint with an id. The store's index is not trusted: what it names must have that id."""
        found = self.store.find(namespace, checkpoint_id)
        frames = self.store.frames(found[0], low=found[1], high=found[1]) if found else []
        if found is None or not frames:
            return None
        if frames[0].id != checkpoint_id:
            raise CorruptionError(
                f"the index is damaged: {checkpoint_id} leads to {frames[0].id}; run verify", place="index of ids"
            )
        return found[0], frames[0]

    def frame(self, key: ThreadKey, seq: int) -> Frame:
        """One frame without its delta. Raises CheckpointNotFound."""
        return next(self.frames(key, [seq]))

    def frames(self, key: ThreadKey, seqs: Sequence[int]) -> Iterator[Frame]:
        """Some frames without their deltas, by sequence numbers in order. Raises CheckpointNotFound."""
        read: dict[int, Frame] = {}
        for seq in seqs:
            if seq not in read:
                last = seqs[bisect_left(seqs, seq + STRETCH) - 1]
                read = self._stretch(key, seq, last)
            if seq not in read:
                raise CheckpointNotFound(f"thread {key.id!r} has no frame {seq}")
            yield read[seq]

    def _stretch(self, key: ThreadKey, low: int, high: int, *, with_deltas: bool = False) -> dict[int, Frame]:
        """Neighbouring frames by their numbers; only the first if one of them is damaged, which the others are not."""
        try:
            found = self.store.frames(key, low=low, high=high, deltas=with_deltas)
        except CorruptionError:
            found = self.store.frames(key, low=low, high=low, deltas=with_deltas)
        return {frame.seq: frame for frame in found}

    def _replay(self, key: ThreadKey, chain: Chain, cached: Point | None) -> Node | None:
        if chain.keyframe is None and chain.keyframe_seq:
            assert cached is not None
            editing = Editing(cached.node)
            for body in chain.deltas:
                deltas.make_stored(editing, deltas.parse(self._payload(key, body)))
                deltas.refuse_large(0 if editing.node is None else size_of(editing.node), self.largest)
            return editing.node
        bodies = chain.deltas if chain.keyframe is None else [chain.keyframe, *chain.deltas]
        if all(body.startswith(PLAIN) for body in bodies):  # then it becomes no more than was read
            return deltas.replay(bodies, skip=len(PLAIN))
        plain = (body if body.startswith(PLAIN) else PLAIN + self._payload(key, body) for body in bodies)
        return deltas.replay(plain, skip=len(PLAIN), most=self.largest)

    def _payload(self, key: ThreadKey, body: bytes) -> bytes:
        """The logical delta of a stored body, with its large values put back."""
        flags, payload = unwrap(body)
        if not flags & WITH_BLOBS:
            return payload
        contents: dict[bytes, bytes] = {}
        size = len(payload)

        def fetch(name: bytes) -> bytes:
            nonlocal size
            content = contents.get(name)
            if content is None:
                content = contents[name] = self.large_value(key, name)
            size += len(content)
            deltas.refuse_large(size, self.largest)  # one of them may stand in many places
            return content

        return deltas.dump(put_back_ops(deltas.parse(payload), fetch))

    def large_value(self, key: ThreadKey, name: bytes) -> bytes:
        """A large value of a thread by its digest."""
        body = self.store.blob(key, name)
        if body is None:
            place = f"large value {name.hex()[:12]}"
            raise CorruptionError(f"a large value ({name.hex()[:12]}) is missing", place=place)
        return unwrap(body)[1]

    # -- saving ------------------------------------------------------------------------------------

    def append(
        self,
        key: ThreadKey,
        base: Point,
        ops: list[Op],
        node: Node,
        draft: Draft,
        *,
        expect: str | None,
        epoch: int | None = None,
        renew_us: int | None = None,
        beside: Sequence[StoreChange] = (),
    ) -> Point:
        """Save one frame on top of `base`, with `beside` in the same commit."""
        payload = deltas.dump(ops)
        blobs: dict[bytes, bytes] = {}
        if len(payload) >= BLOB_FROM:
            smaller, blobs = take_out_ops(ops)
            payload = deltas.dump(smaller)
        return self._append(key, base, payload, blobs, node, draft, expect, epoch, renew_us, beside)

    def append_items(self, key: ThreadKey, append: Mapping[Any, list[Any]], draft: Draft) -> Point | None:
        """What agents save most, items at the end of one list right inside the head's state: the short way to its payload.

        None, and nothing was written, where it is not as plain as that: then `save` does it, or says what is wrong.
        Its caller is `alone` with the thread.
        """
        base = self.cache.get(key)
        if base is None or base.chosen or type(base.node) is not Dict or type(append) is not dict or len(append) != 1:
            return None
        [(name, items)] = append.items()
        if type(name) is not str or type(items) is not list:
            return None
        try:
            data = self.codec.encode(items, depth=1)
            encoded_name, opening = deltas.append_opening(name)
        except (InvalidState, TypeError):  # it cannot be kept; TypeError: neither can the name
            return None
        node, payload = base.node.with_longer(encoded_name, data), opening + data
        if node is None:
            return None
        try:
            if len(payload) >= BLOB_FROM:
                return self.append(key, base, [Op(APPEND, (name,), data)], node, draft, expect=base.id)
            return self._append(key, base, payload, {}, node, draft, base.id, None, None, ())
        except (ConflictError, CheckpointNotFound) as error:
            if isinstance(error, (Busy, Fenced)):
                raise
            self.head(key)  # which `save` goes on from
            return None

    def _append(
        self,
        key: ThreadKey,
        base: Point,
        payload: bytes,
        blobs: dict[bytes, bytes],
        node: Node,
        draft: Draft,
        expect: str | None,
        epoch: int | None,
        renew_us: int | None,
        beside: Sequence[StoreChange],
    ) -> Point:
        """`append`, once its operations are bytes. Written with names of its own: every save comes along here."""
        store = self.store
        details, chosen_id, note = draft
        base_seq, base_id, base_step, base_meta, _, rows, read, base_agent, _, base_about = base
        agent = details.get("agent_id")
        if base_agent is not None and agent is None:
            agent = base_agent
            details = {**details, "agent_id": agent}
        if base_about and "about" not in details:
            details = {**details, "about": self.about(self.codec, base_meta, node)}
        step, size = base_step + 1, size_of(node)
        if size > STATE_TO:
            raise InvalidState(
                f"the state would have about {size} bytes, and one may have {STATE_TO}; keep large parts in files",
                path="",
            )
        packed = metadata_of(base_id, step, store.clock(), size, details, blobs)
        id = chosen_id or store.new_id(key)  # noqa: A001 - one word per idea
        meta = digest(base_meta[:DIGEST_BYTES], key.id, id, packed, payload) + packed
        plain = len(payload) < store.compress_from and not blobs
        body = PLAIN + payload if plain else self.wrap(payload, with_blobs=bool(blobs))
        kept, large = self.retention.max_checkpoints, self.wrapped(blobs) if blobs else ()
        fresh = chosen_id is None
        change = Append(key, id, base_seq, meta, body, note, expect, epoch, agent, kept, large, fresh, renew_us, base_id)
        seq = store.commit([change, *beside])[0]
        rows, read = rows + 1, read + len(body)
        point = Point(seq, id, step, meta, node, rows, read, agent, not fresh, bool(details.get("about")))
        if keyframe_due(size, rows, read):
            point = self._write_keyframe(key, point, epoch)
        self.cache.put(key, point)
        return point

    def wrapped(self, blobs: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
        """Large values by their digest, as they are stored."""
        return tuple([(name, self.wrap(content)) for name, content in blobs.items()])

    def _write_keyframe(self, key: ThreadKey, point: Point, epoch: int | None) -> Point:
        try:
            self.store.commit([PutKeyframe(key, point.seq, self.keyframe(point.node))])
            point = point._replace(rows=0, bytes=0)
            if self.after_keyframe is not None and not self.retention.keeps_all:
                self.after_keyframe(self, key, epoch)
        except SavegameError as error:  # the save itself is done; only the next load will be slower, or space stays taken
            logger.warning("thread %r: after the save of %s: %s", key.id, point.id, error)
        return point

    def keyframe(self, node: Node | None) -> bytes:
        """The stored body of a whole state; large values are inside, so that it needs nothing else."""
        assert node is not None
        return self.wrap(deltas.dump(deltas.whole(node)))

    def wrap(self, payload: bytes, *, with_blobs: bool = False) -> bytes:
        """The stored body of a fresh payload."""
        return wrap(payload, compress=self.compress, with_blobs=with_blobs, least=self.store.compress_from)

    def save(
        self,
        key: ThreadKey,
        make: Callable[[Node | None], tuple[list[Op], Node]],
        draft: Draft,
        *,
        expect: str | None,
        base: Point | None = None,
        epoch: int | None = None,
        renew_us: int | None = None,
        beside: Sequence[StoreChange] = (),
    ) -> Point:
        """Append what `make` makes of the state that the frame builds on; on top of whatever is there if expect is ANY.

        Its caller is `alone` with the thread.
        """
        point = base or self.cache.get(key) or self.head(key)
        if base is None and epoch is None and point.chosen:  # its id may be that of a thread that was made anew
            point = self.head(key)
        for _ in range(TRIES):
            if expect != ANY and base is None and (point.id or None) != expect:
                point = self.head(key)
                if (point.id or None) != expect:
                    raise head_moved(key, expect, point.id or None)
            try:
                ops, node = make(point.node)
            except Exception:
                newest = point if base is not None else self.head(key)
                if newest.id == point.id:
                    raise
                point = newest  # what could not be done to the remembered state may fit the newest
                continue
            wanted = expect if base is not None else (point.id or None)
            try:
                return self.append(key, point, ops, node, draft, expect=wanted, epoch=epoch, renew_us=renew_us, beside=beside)
            except CheckpointNotFound:
                newest = point if base is not None else self.head(key)
                if newest.seq == point.seq:
                    raise
                point = newest  # deleted, and brought back since: the same head has another number
            except ConflictError as error:
                if type(error) is not ConflictError or expect != ANY or base is not None:
                    raise
                point = self.head(key)
        raise ConflictError(f"thread {key.id!r}: others moved its head {TRIES} times in a row; try again")


_engines: WeakSet[Engine] = WeakSet()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _located(error: CorruptionError, key: ThreadKey, frame: Frame) -> CorruptionError:
    """The same error naming thread and checkpoint."""
    place = error.place or f"state of frame {frame.seq}"
    own = (error.thread_id, error.checkpoint_id) == (key.id, frame.id)
    return CorruptionError(
        str(error) if own else f"thread {key.id!r}: checkpoint {frame.id} cannot be loaded: {error}",
        thread_id=key.id,
        checkpoint_id=error.checkpoint_id or frame.id,
        place=place,
        seq=error.seq,
    )
