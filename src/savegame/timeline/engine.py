"""What the timelines of one store share: its codec and retention, the cache of newest states, the locks of their writers.

Also the decisions that upper rooms make for timelines without being imported by them: what listings show of a state, which
checkpoints agents name, and what happens to the records of runs. Touches store, policy, frames, delta, tree, model.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from savegame.encoding import delta as deltas
from savegame.encoding.codec import Codec
from savegame.encoding.frames import STATE_TO, Meta, wrap
from savegame.encoding.tree import Node, size_of
from savegame.errors import CorruptionError
from savegame.model import Frame, Record, ThreadKey
from savegame.store import PutRecord, Store, StoreChange
from savegame.timeline.policy import Retention
from savegame.waiting.forking import renew_in_child

if TYPE_CHECKING:
    from savegame.timeline.lineage import Lineage

ENTRY_OVERHEAD: Final = 2048
"""Bytes that an entry of the cache takes besides its encoded state."""

STRIPES: Final = 4096
"""Number of locks that the threads of a store share."""

RECORD_COMPRESS_FROM: Final = 512
"""Values of records are compressed from this size on."""


class Point(NamedTuple):
    """A checkpoint with its state as a tree, as the cache keeps it. `rows` and `bytes` count since the last keyframe."""

    seq: int
    id: str
    step: int
    meta: bytes
    """As stored: the digest, then the packed fields."""
    node: Node | None
    rows: int
    bytes: int
    agent: str | None = None
    chosen: bool = False
    """Whether a user chose the id, which may be reused once this checkpoint is gone."""
    about: bool = False
    """Whether it says what listings show of its state; then so do the checkpoints that follow it."""

    @classmethod
    def at(cls, frame: Frame, meta: Meta, node: Node | None, rows: int, read: int) -> Point:
        """The point of a stored frame, whose metadata was unpacked."""
        chosen, about = meta.request is not None, bool(meta.about)
        return cls(frame.seq, frame.id, meta.step, frame.meta, node, rows, read, meta.agent_id, chosen, about)


EMPTY = Point(0, "", 0, b"", None, 0, 0)
"""What the first save of a thread builds on."""


class Cache:
    """The newest point of each thread, bounded in bytes; evicts the least recently put. May be shared between threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reset()

    def reset(self) -> None:
        """Forget everything, with a new lock: after a fork the old one may be held by a thread that no longer exists."""
        self.bytes = 0
        self._points: dict[ThreadKey, Point] = {}
        self._sizes: OrderedDict[ThreadKey, int] = OrderedDict()
        self._lock = threading.RLock()  # a signal handler that saves may come while it is held
        self.get: Callable[[ThreadKey], Point | None] = self._points.get  # the point kept for a thread

    def put(self, key: ThreadKey, point: Point) -> None:
        """Keep a point instead of the thread's previous one; evict others until all fit."""
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
            except BaseException:  # Ctrl-C in the middle: sizes and points would no longer agree
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
    """An agent checkpoint that names another checkpoint."""

    agent_id: str
    checkpoint_id: str


Records = Mapping[tuple[str, str], Any]
"""Values of records by kind and name; None removes one."""


class Ledger:
    """What happens to the records that runs keep beside a thread. The base class knows no runs and changes nothing."""

    kinds: frozenset[str] = frozenset()
    """The kinds that are its own."""

    def check(self, codec: Codec, record: Record, value: Any) -> None:
        """Raise ValueError unless a value has the shape of its kind."""

    def for_fork(self, source: Lineage, at: Point) -> Records:
        """The records that a run on a fork needs."""
        return {}

    def for_rewind(self, timeline: Lineage, frame: Frame, *, rerun_tools: bool) -> Records:
        """The records that change when a checkpoint becomes the head."""
        return {}

    def for_restore(self, timeline: Lineage, frame: Frame | None) -> list[PutRecord]:
        """Changes for the commit that makes a checkpoint the head (None: none), where runs go on as they find it."""
        return []

    def renumbered(self, timeline: Lineage, last: int) -> list[PutRecord]:
        """Changes to the records of a thread whose checkpoints get other numbers; `last` is the largest one so far."""
        return []

    def yields(self, timeline: Lineage, record: Record, given: bytes | None) -> bool:
        """Whether a record may be replaced by that of a copy of its thread (None: removed)."""
        return True

    def settled_answers(self, timeline: Lineage, answers: Mapping[str, bytes], batch: Sequence[StoreChange]) -> list[PutRecord]:
        """The answers to put into a copy: those to calls that are settled in it once `batch` is written."""
        return []

    def unneeded(self, timeline: Lineage, frames: list[Frame], drop: set[int], *, drop_newer: bool) -> list[PutRecord]:
        """Changes that remove the records that no checkpoint needs once these frames are gone."""
        return []

    def evidence(self, timeline: Lineage, frames: list[Frame], drop: set[int], head: int) -> list[PutRecord]:
        """Changes that keep what runs need to know of these frames once they are gone, whatever happens to their records."""
        return []

    def needed(self, timeline: Lineage) -> str | None:
        """The id of the checkpoint that must stay because an undo goes there; None if there is none."""
        return None

    def mend(self, timeline: Lineage) -> list[str]:
        """After damage: record an unknown outcome for calls whose entry was lost; returns what was done."""
        return []


class Above:
    """What upper rooms decide for timelines. The base class decides nothing; a vault sets its own."""

    ledger: Ledger = Ledger()

    def about(self, base_meta: bytes, node: Node) -> bytes:
        """What listings show of a state saved on top of a checkpoint with this metadata, encoded."""
        return b""

    def named(self, agents: Collection[str | None], but: Collection[ThreadKey] = ()) -> Mapping[str, frozenset[Naming]]:
        """The checkpoints that agent checkpoints name, by id, each with its namings, except those in the threads `but`."""
        return {}

    def let_go(self, gone: Mapping[ThreadKey, Collection[int] | None]) -> list[StoreChange]:
        """Changes that free deleted threads that nothing names once these checkpoints (None: all) of these threads go."""
        return []


class Engine:
    """One store with everything that its timelines share. May be shared between threads."""

    def __init__(self, store: Store, codec: Codec, retention: Retention, *, compress: bool, cache_bytes: int) -> None:
        self.store = store
        self.codec = codec
        self.retention = retention
        self.compress = compress
        self.cache = Cache(cache_bytes)
        self.above = Above()
        self.largest = STATE_TO + STATE_TO // 4
        """Maximum number of bytes of a state that is loaded."""
        self._locks: dict[int, threading.RLock] = {}
        renew_in_child(self)

    def without_cache(self) -> Engine:
        """The same engine, reading everything from the store."""
        return self._twin(self.codec, 0)

    def with_own_cache(self) -> Engine:
        """The same engine for reading many states of one thread: see `Reader.remember`."""
        return self._twin(self.codec.unlimited(), self.cache.limit)

    def _twin(self, codec: Codec, cache_bytes: int) -> Engine:
        twin = Engine(self.store, codec, self.retention, compress=self.compress, cache_bytes=cache_bytes)
        twin.above = self.above
        return twin

    def after_fork_in_child(self) -> None:
        """Forget locks and cache: the threads that held or changed them do not exist in the child process."""
        self._locks = {}
        self.cache.reset()

    def alone(self, key: ThreadKey) -> AbstractContextManager[bool]:
        """Serialise the saves of this process to one thread: in parallel they would only conflict.

        Inside `connection()` it returns False and locks nothing: the holder of the lock may be waiting for us.
        """
        if self.store.borrowed():
            return nullcontext(enter_result=False)
        stripe = hash(key) % STRIPES  # threads that share a lock only wait a little longer
        return self._locks.get(stripe) or self._locks.setdefault(stripe, threading.RLock())

    def find(self, namespace: str, checkpoint_id: str) -> tuple[ThreadKey, Frame] | None:
        """The frame of the checkpoint with an id. The store's index is not trusted: the frame it names must have that id."""
        found = self.store.find(namespace, checkpoint_id)
        frames = self.store.frames(found[0], low=found[1], high=found[1]) if found else []
        if found is None or not frames:
            return None
        if frames[0].id != checkpoint_id:
            raise CorruptionError(
                f"the index is damaged: {checkpoint_id} points to {frames[0].id}; run verify", place="index of ids"
            )
        return found[0], frames[0]

    # -- bodies ------------------------------------------------------------------------------------

    def wrap(self, payload: bytes, *, with_blobs: bool = False) -> bytes:
        """The stored body of a payload."""
        return wrap(payload, compress=self.compress, with_blobs=with_blobs, least=self.store.compress_from)

    def wrap_blobs(self, blobs: Mapping[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
        """Large values by their digest, as they are stored."""
        return tuple([(name, self.wrap(content)) for name, content in blobs.items()])

    def wrap_record(self, value: Any, *place: str) -> bytes:
        """The stored value of a record. Raises InvalidState naming the path below `place`."""
        return wrap(self.codec.encode(value, place), compress=self.compress, least=RECORD_COMPRESS_FROM)

    def keyframe(self, node: Node) -> bytes:
        """The stored body of a whole state; large values are inside, so that it needs nothing else."""
        return self.wrap(deltas.dump(deltas.whole(node)))
