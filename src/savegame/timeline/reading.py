"""From frames to states: one thread's frames by number, the state at each, its large values and records.

A state is the nearest sound keyframe plus the deltas after it, or a cached state plus the deltas since. The store verifies
the checksums of everything that is read. Touches engine, companions, frames, delta, tree, model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from savegame.encoding import delta as deltas
from savegame.encoding.codec import Codec
from savegame.encoding.frames import PLAIN, WITH_BLOBS, load_meta, put_back_ops, unwrap
from savegame.encoding.tree import Editing, Node, size_of
from savegame.errors import CheckpointNotFound, ConflictError, CorruptionError, ThreadNotFound
from savegame.model import Chain, Frame, Record, ThreadKey, ThreadRow
from savegame.timeline import companions
from savegame.timeline.engine import EMPTY, Engine, Point
from savegame.waiting.retrying import TRIES

T = TypeVar("T")

STRETCH: Final = 64
"""Maximum number of neighbouring frames in one read when states are read one after the other."""

_FEW: Final = 16
"""Records in one read of a few names."""

STRETCH_BYTES: Final = 1 << 20
"""After a stretch with more than this, frames are read one by one again."""


class LargeValueMissing(CorruptionError):
    """A delta names a large value that its thread does not have: lost, or removed with the delta since that was read."""


class Reader:
    """One thread over a store, for reading. Cheap to make; holds no data of the thread."""

    def __init__(self, engine: Engine, key: ThreadKey, codec: Codec | None = None) -> None:
        self.engine = engine
        self.store = engine.store
        self.key = key
        self.codec = codec or engine.codec
        """How values are decoded."""

    @property
    def id(self) -> str:
        """The thread's id."""
        return self.key.id

    # -- rows and records --------------------------------------------------------------------------

    def row(self) -> ThreadRow | None:
        """The thread's row; None if nothing was written to it."""
        return self.store.thread(self.key)

    def existing(self) -> ThreadRow:
        """The row of a thread that has a checkpoint, with or without a head. Raises ThreadNotFound."""
        row = self.row()
        if row is None or not row.frames:
            raise ThreadNotFound(f"thread not found: {self.id!r} has no checkpoints")
        return row

    def kinds(self) -> list[str]:
        """The kinds of records beside the thread."""
        return self.store.kinds(self.key)

    def records(self, kind: str) -> Iterator[Record]:
        """Every record of a kind, read in pages."""
        page = self.store.records(self.key, kind)
        while True:
            yield from page.items
            if page.next is None:
                return
            page = self.store.records(self.key, kind, after=page.next)

    def names(self, kind: str) -> frozenset[str]:
        """The names of the records of a kind."""
        return frozenset(record.name for record in self.records(kind))

    def read(self, record: Record) -> Any:
        """The value of a record. Raises CorruptionError if it has the wrong shape for its kind."""
        return companions.read(self.engine, self.codec, self.key, record)

    def values(self, kind: str) -> dict[str, Any]:
        """The values of the records of a kind, by name. Raises CorruptionError."""
        return {record.name: self.read(record) for record in self.records(kind)}

    def beginning(self, kind: str, start: str) -> Iterator[Record]:
        """The records of a kind whose names begin with a text, by name. Reads few others."""
        after = _before(start)
        while True:
            page = self.store.records(self.key, kind, after=after, limit=_FEW)
            yield from (record for record in page.items if record.name.startswith(start))
            if page.next is None or (page.next > start and not page.next.startswith(start)):
                return
            after = page.next

    def named(self, kind: str, name: str) -> Record | None:
        """One record; None if it does not exist."""
        first = next(self.beginning(kind, name), None)
        return first if first is not None and first.name == name else None

    def large_value(self, name: bytes) -> bytes:
        """A large value by its digest."""
        body = self.store.blob(self.key, name)
        if body is None:
            place = f"large value {name.hex()[:12]}"
            raise LargeValueMissing(f"a large value ({name.hex()[:12]}) is missing", place=place)
        return unwrap(body)[1]

    # -- frames ------------------------------------------------------------------------------------

    def frame(self, seq: int, *, delta: bool = False) -> Frame:
        """One frame; without its delta unless asked for. Raises CheckpointNotFound."""
        found = self.store.frames(self.key, low=seq, high=seq, deltas=delta)
        if not found:
            raise CheckpointNotFound(f"thread {self.id!r} has no frame {seq}")
        return found[0]

    def frames(self, seqs: Sequence[int]) -> Iterator[Frame]:
        """Some frames without their deltas, by sequence numbers in order. Raises CheckpointNotFound."""
        read: dict[int, Frame] = {}
        for seq in seqs:
            if seq not in read:
                last = seqs[bisect_left(seqs, seq + STRETCH) - 1]
                read = self._stretch(seq, last)
            if seq not in read:
                raise CheckpointNotFound(f"thread {self.id!r} has no frame {seq}")
            yield read[seq]

    def _stretch(self, low: int, high: int, *, with_deltas: bool = False) -> dict[int, Frame]:
        """Neighbouring frames by number; only the first if one of them is damaged."""
        try:
            found = self.store.frames(self.key, low=low, high=high, deltas=with_deltas)
        except CorruptionError:
            found = self.store.frames(self.key, low=low, high=low, deltas=with_deltas)
        return {frame.seq: frame for frame in found}

    # -- states ------------------------------------------------------------------------------------

    def head(self) -> Point:
        """The current head with its state; EMPTY if there is none."""
        point = self.at_head(lambda row: self.point(row.head))
        if point is None:
            return EMPTY
        self.engine.cache.put(self.key, point)
        return point

    def at_head(self, read: Callable[[ThreadRow], T]) -> T | None:
        """What `read` returns for the thread's row; None if it has no head. Retries while others move and remove the head."""
        seen: ThreadRow | None = None
        for _ in range(TRIES):
            row = self.row()
            if row is None or row.head_id is None:
                return None
            try:
                return read(row)
            except CheckpointNotFound as error:
                if seen is not None and row.head_id == seen.head_id:  # not pruned meanwhile, so it is missing
                    raise CorruptionError(
                        f"thread {self.id!r}: its head {row.head_id} is missing; run verify, then repair or restore a backup",
                        thread_id=self.id,
                        checkpoint_id=row.head_id,
                        place=f"frame {row.head} is missing",
                        seq=row.head,
                    ) from error
                seen = row
        raise ConflictError(f"thread {self.id!r}: its head was moved and removed {TRIES} times while it was read; try again")

    def point(self, seq: int, frame: Frame | None = None) -> Point:
        """The checkpoint with a sequence number, with its state. Raises CheckpointNotFound, CorruptionError."""
        cached = self.engine.cache.get(self.key)
        if frame is None:
            frame = self.frame(seq)
        meta = load_meta(frame.meta)
        if cached is not None and cached.meta == frame.meta:  # the number differs after a delete and a restore
            return cached if cached.seq == seq else cached._replace(seq=seq)
        if cached is not None and not self._still_there(cached, below=seq):
            cached = None
        try:
            chain, node = self._state_at(frame, cached)
        except CorruptionError as error:
            raise self._located(error, frame) from error
        begun = cached if cached and chain.keyframe_seq == cached.seq and chain.keyframe is None else EMPTY
        rows, read = begun.rows + len(chain.deltas), begun.bytes + sum(map(len, chain.deltas))
        return Point.at(frame, meta, node, rows, read)

    def _state_at(self, frame: Frame, cached: Point | None) -> tuple[Chain, Node | None]:
        """The chain of a frame and the state that it makes. Both are read again if others rewrote the frame meanwhile."""
        after = cached.seq if cached else 0
        chain = self.store.chain(self.key, frame.seq, after=after, meta=frame.meta)
        for _ in range(TRIES):
            try:
                return chain, self._replay(chain, cached)
            except LargeValueMissing:
                before, chain = chain, self.store.chain(self.key, frame.seq, after=after, meta=frame.meta)
                if chain == before:
                    raise
        raise ConflictError(f"thread {self.id!r}: {frame.id} was rewritten {TRIES} times while it was loaded; try again")

    def remember(self, seq: int, frame: Frame | None = None) -> Node:
        """The state of a checkpoint, cached even if it is not the head: for `Engine.with_own_cache`."""
        point = self.point(seq, frame)
        self.engine.cache.put(self.key, point)
        assert point.node is not None
        return point.node

    def points(self, frames: list[Frame]) -> Iterator[tuple[Frame, Point]]:
        """Checkpoints with their states, in the given order (oldest first); each is derived from an earlier one if possible."""
        node: Node | None = None
        before = 0
        read: dict[int, Frame] = {}
        stretch = 1
        for place, frame in enumerate(frames):
            if before and frame.base == before:
                if frame.seq not in read:
                    last = max(other.seq for other in frames[place : place + stretch] if other.seq < frame.seq + stretch)
                    read = self._stretch(frame.seq, last, with_deltas=True)
                    small = sum(len(other.delta or b"") for other in read.values()) < STRETCH_BYTES
                    stretch = min(2 * stretch, STRETCH) if small else 1
                stored = read.pop(frame.seq, None)
                if stored is None or stored.meta != frame.meta:
                    raise CheckpointNotFound(f"checkpoint not found: {frame.id!r} was deleted")
                try:
                    if stored.base == before:
                        node = deltas.apply_stored(node, deltas.parse(self._payload(stored.delta or b"")))
                    else:  # rebased meanwhile
                        node = self.point(frame.seq).node
                except LargeValueMissing:  # removed meanwhile, with the delta or with the checkpoint
                    node = self.point(frame.seq, stored).node
                except CorruptionError as error:
                    raise self._located(error, frame) from error
                point = Point.at(frame, load_meta(frame.meta), node, 0, 0)
            else:
                point = self.point(frame.seq, frame)
            node, before = point.node, frame.seq
            yield frame, point

    def _still_there(self, cached: Point, *, below: int) -> bool:
        """Whether loading may start at a cached point: its thread was not re-created meanwhile."""
        found = self.store.frames(self.key, low=cached.seq, high=cached.seq) if 0 < cached.seq < below else []
        return bool(found) and found[0].meta == cached.meta

    def _replay(self, chain: Chain, cached: Point | None) -> Node | None:
        largest = self.engine.largest
        if chain.keyframe is None and chain.keyframe_seq:
            assert cached is not None
            editing = Editing(cached.node)
            for body in chain.deltas:
                deltas.make_stored(editing, deltas.parse(self._payload(body)))
                deltas.refuse_large(0 if editing.node is None else size_of(editing.node), largest)
            return editing.node
        bodies = chain.deltas if chain.keyframe is None else [chain.keyframe, *chain.deltas]
        if all(body.startswith(PLAIN) for body in bodies):  # nothing compressed: it cannot grow beyond what was read
            return deltas.replay(bodies, skip=len(PLAIN))
        plain = (body if body.startswith(PLAIN) else PLAIN + self._payload(body) for body in bodies)
        return deltas.replay(plain, skip=len(PLAIN), most=largest)

    def _payload(self, body: bytes) -> bytes:
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
                content = contents[name] = self.large_value(name)
            size += len(content)
            deltas.refuse_large(size, self.engine.largest)  # one value may be used in many places
            return content

        return deltas.dump(put_back_ops(deltas.parse(payload), fetch))

    def _located(self, error: CorruptionError, frame: Frame) -> CorruptionError:
        """The same error naming thread and checkpoint."""
        own = (error.thread_id, error.checkpoint_id) == (self.id, frame.id)
        return CorruptionError(
            str(error) if own else f"thread {self.id!r}: checkpoint {frame.id} cannot be loaded: {error}",
            thread_id=self.id,
            checkpoint_id=error.checkpoint_id or frame.id,
            place=error.place or f"state of frame {frame.seq}",
            seq=error.seq,
        )


def _before(name: str) -> str:
    """A name that few others lie between and this one."""
    last = ord(name[-1]) - 1
    if last < 1:
        return name[:-1]
    return name[:-1] + chr(0xD7FF if 0xD800 <= last <= 0xDFFF else last) + "\U0010ffff" * 4
