"""One thread over a store: its checkpoints, and every change to it.

A save computes the delta against the cached tree of the head, appends one frame that expects that head, and only then
updates the cache. Keyframes are written after the save was acknowledged; failing to write one only costs time at the next
load. Touches removal, lineage, reading, engine and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final, NamedTuple

from savegame.checkpoint import Checkpoint, Source
from savegame.details import Details, Draft, draft
from savegame.encoding import delta as deltas
from savegame.encoding.codec import Codec
from savegame.encoding.delta import APPEND, Op, keyframe_due
from savegame.encoding.frames import (
    BLOB_FROM,
    DIGEST_BYTES,
    PLAIN,
    STATE_TO,
    Meta,
    details_of,
    digest,
    load_meta,
    load_note,
    metadata_of,
    request_digest,
    take_out_ops,
)
from savegame.encoding.tree import Dict, Node, Shared, size_of, to_bytes, value_of
from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    Fenced,
    InvalidState,
    SavegameError,
    ThreadNotFound,
)
from savegame.model import Frame, Kind, Status, ThreadKey, ThreadRow
from savegame.store import ANY, Append, Expect, PutKeyframe, PutRecord, StoreChange
from savegame.stores.refusals import head_moved
from savegame.timeline import removal
from savegame.timeline.engine import EMPTY, Engine, Point, Records
from savegame.timeline.lineage import Lineage, Ref
from savegame.waiting.retrying import TRIES

logger = logging.getLogger("savegame")

Restore = Callable[[Any, str, Meta], Any]
"""Converts a decoded state, given the id and the metadata of its checkpoint."""

Edited = tuple[list[Op], Node]
"""What a save writes: operations, and the state after them."""

Edit = Callable[[Node | None], Edited]
"""From the state that a save builds on (None: no state) to what it writes. May be called more than once."""

Revise = Callable[[Node | None], tuple[list[Op], Node, Mapping[str, Any]]]
"""An edit that also says what listings show of the new state."""


class Terms(NamedTuple):
    """The terms on which a checkpoint is appended.

    `expect` is the id of the expected head (None: no head, ANY: any). `base` is what it builds on instead of the head.
    `epoch` is that of a lease, which is renewed by `renew_us`. `beside` is written in the same commit.
    """

    expect: str | None = ANY
    base: Point | None = None
    epoch: int | None = None
    renew_us: int | None = None
    beside: Sequence[StoreChange] = ()


FREE: Final = Terms()
"""On top of any head."""


class Newest(NamedTuple):
    """The head of a thread and its checkpoint; an older checkpoint where damaged ones were skipped."""

    head_id: str
    checkpoint: Checkpoint


class Written(NamedTuple):
    """A saved checkpoint, with its id and step, which are known without computing its fields.

    `again` says that an earlier attempt had saved it: it may not be the head any more.
    """

    id: str
    step: int
    checkpoint: Checkpoint
    again: bool = False


class Timeline(Lineage):
    """One thread: reads, walks, resolves references, saves, moves the head, removes."""

    def __init__(self, engine: Engine, key: ThreadKey, codec: Codec | None = None, restore: Restore | None = None) -> None:
        super().__init__(engine, key, codec)
        self._restore = restore

    def at(self, key: ThreadKey) -> Timeline:
        """Another thread of the same store, decoded in the same way."""
        return Timeline(self.engine, key, self.codec, self._restore)

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoint(
        self, frame: Frame, meta: Meta | None = None, *, node: Node | None = None, shared: Shared | None = None
    ) -> Checkpoint:
        """The public checkpoint of a frame; with its state if `node` is given."""
        known = load_meta(frame.meta) if meta is None else meta
        return Checkpoint.later(lambda: self._fields(frame, known, node, shared))

    def saved(self, point: Point, note: bytes | None) -> Checkpoint:
        """The checkpoint of a point that was just saved."""

        def fields() -> tuple[dict[str, Any], Source]:
            frame = Frame(point.seq, point.id, 0, point.meta, note, None)
            return self._fields(frame, load_meta(frame.meta), point.node, None)

        return Checkpoint.later(fields)

    def _fields(self, frame: Frame, meta: Meta, node: Node | None, shared: Shared | None) -> tuple[dict[str, Any], Source]:
        label, tags = load_note(frame.note)
        found = {name: getattr(meta, name) for name in _SAME} | {
            "id": frame.id,
            "thread_id": self.id,
            "seq": frame.seq,
            "digest": meta.digest.hex(),
            "label": label,
            "tags": tags,
            "metadata": self.codec.decode(meta.metadata) if meta.metadata else {},
            "kind": Kind.of(meta.kind),
            "status": Status(meta.status, meta.reason),
        }
        decode = None if node is None else lambda: self._value(frame.id, meta, node, shared)
        return found, Source(lambda: self._load_again(frame), decode, self.codec)

    def _value(self, checkpoint_id: str, meta: Meta, node: Node, shared: Shared | None) -> Any:
        value = value_of(self.codec, node, shared)
        return value if self._restore is None else self._restore(value, checkpoint_id, meta)

    def _load_again(self, listed: Frame) -> Checkpoint:
        """An entry of a listing with its state, if it still exists: its thread may have been re-created."""
        frames = self.store.frames(self.key, low=listed.seq, high=listed.seq)
        if not frames or frames[0].id != listed.id:
            raise CheckpointNotFound(f"checkpoint not found: {listed.id!r} was deleted")
        return self.load_frame(frames[0])

    # -- loading -----------------------------------------------------------------------------------

    def latest(self, *, skip_damaged: bool = False) -> Newest | None:
        """The head with its state; None for an empty thread. `skip_damaged`: the newest sound one, with `.skipped`."""

        def read(row: ThreadRow) -> Newest:
            assert row.head_id is not None
            try:
                return Newest(row.head_id, self._load(self.frame(row.head), is_head=True))
            except CorruptionError as error:
                error.newest_sound = self.newest_sound(row, error)
                if not skip_damaged or error.newest_sound is None:
                    raise
                return Newest(row.head_id, error.newest_sound)

        return self.at_head(read)

    def load(self, ref: Ref | None = None, *, at: dt.datetime | None = None) -> Checkpoint:
        """A checkpoint with its state, by a reference or the newest `at` a time."""
        try:
            row = self.existing()
            frame = self.resolve("head" if ref is None and at is None else ref, at=at, row=row)
            return self._load(frame, is_head=row.head == frame.seq)
        except CorruptionError as error:
            with suppress(CorruptionError, ThreadNotFound):  # its row is damaged too, or it is gone
                error.newest_sound = self.newest_sound(self.existing())
            raise

    def load_frame(self, frame: Frame) -> Checkpoint:
        """The checkpoint of a frame with its state; kept in the cache if it is the head."""
        row = self.row() if self.engine.cache.limit else None
        return self._load(frame, is_head=row is not None and row.head == frame.seq)

    def _load(self, frame: Frame, *, is_head: bool) -> Checkpoint:
        point = self.point(frame.seq, frame)
        if is_head:
            self.engine.cache.put(self.key, point)
        found = self.checkpoint(frame, node=point.node)
        _ = found.state  # decoded now, so that errors are raised here and not at the first access
        logger.debug("loaded %s: thread %r step %d", frame.id, self.id, point.step)
        return found

    def newest_sound(self, row: ThreadRow, error: CorruptionError | None = None) -> Checkpoint | None:
        """The newest checkpoint of the head's line that loads, skipping what the damage makes unreadable."""
        skipped: list[str] = []
        broken = None if error is None else error.seq
        try:
            for frame in self.line(row.head):
                if broken is not None and frame.seq >= broken:
                    skipped.append(frame.id)
                    continue
                try:
                    return self.load_frame(frame).skipping(skipped)
                except CorruptionError as another:
                    skipped.append(frame.id)
                    broken = another.seq
        except CorruptionError:  # damaged metadata breaks the line, but older checkpoints may load
            return self._newest_up_to(row.head)
        return None

    def _newest_up_to(self, seq: int) -> Checkpoint | None:
        """The newest checkpoint that loads, of any line."""
        skipped: list[str] = []
        for older in range(seq, 0, -1):
            try:
                frames = self.store.frames(self.key, low=older, high=older)
            except CorruptionError as error:
                skipped += [error.checkpoint_id] if error.checkpoint_id else []
                continue
            for frame in frames:
                try:
                    return self.load_frame(frame).skipping(skipped)
                except CorruptionError:
                    skipped.append(frame.id)
        return None

    def listing(
        self, row: ThreadRow, frames: Iterable[Frame], fits: Callable[[Frame], bool], limit: int | None
    ) -> Iterator[Checkpoint]:
        """Those of `frames` that fit and that retention shows, without their states."""
        if limit == 0:
            return
        found = 0
        for frame in frames:
            if fits(frame) and self.visible(row, frame):
                yield self.checkpoint(frame)
                found += 1
                if found == limit:  # before the next frame, which might read another page
                    return

    # -- saving ------------------------------------------------------------------------------------

    def save(self, edit: Edit, draft: Draft, terms: Terms = FREE) -> Point:
        """Append what `edit` makes of the state that the checkpoint builds on. The caller holds `alone`."""
        cache, key = self.engine.cache, self.key
        base, expect = terms.base, terms.expect
        point = base or cache.get(key) or self.head()
        if base is None and terms.epoch is None and point.chosen:  # the id may be reused in a re-created thread
            point = self.head()
        for _ in range(TRIES):
            if expect != ANY and base is None and (point.id or None) != expect:
                point = self.head()
                if (point.id or None) != expect:
                    raise head_moved(key, expect, point.id or None)
            try:
                ops, node = edit(point.node)
            except Exception:
                newest = point if base is not None else self.head()
                if newest.id == point.id:
                    raise
                point = newest  # an edit that failed on the cached state may fit the newest
                continue
            wanted = expect if base is not None else (point.id or None)
            try:
                return self.append(point, ops, node, draft, terms._replace(expect=wanted))
            except CheckpointNotFound:
                newest = point if base is not None else self.head()
                if newest.seq == point.seq:
                    raise
                point = newest  # deleted and restored since: the same head has another number
            except ConflictError as error:
                if type(error) is not ConflictError or expect != ANY or base is not None:
                    raise
                point = self.head()
        raise ConflictError(f"thread {key.id!r}: other writers moved its head {TRIES} times in a row; try again")

    def append(self, base: Point, ops: list[Op], node: Node, draft: Draft, terms: Terms) -> Point:
        """Save one frame on top of `base`."""
        return self._append(base, *_packed(ops), node, draft, terms)

    def appending(self, base: Point, ops: list[Op], node: Node, draft: Draft, terms: Terms) -> Append:
        """The change that `append` would commit."""
        return self._prepare(base, *_packed(ops), node, draft, terms)[0]

    def append_items(self, append: Mapping[Any, list[Any]], draft: Draft) -> Point | None:
        """The fast path for what agents save most: items at the end of one top-level list of the head's state.

        Returns None and writes nothing in any other case: then `save` does it, or raises. The caller holds `alone`.
        """
        engine = self.engine
        base = engine.cache.get(self.key)
        if base is None or base.chosen or type(base.node) is not Dict or type(append) is not dict or len(append) != 1:
            return None
        [(name, items)] = append.items()
        if type(name) is not str or type(items) is not list:
            return None
        try:
            data = engine.codec.encode(items, depth=1)
            encoded_name, opening = deltas.append_opening(name)
        except (InvalidState, TypeError):  # it cannot be saved; TypeError: the name cannot
            return None
        node, payload = base.node.with_longer(encoded_name, data), opening + data
        if node is None:
            return None
        terms = Terms(base.id)
        try:
            if len(payload) >= BLOB_FROM:
                return self.append(base, [Op(APPEND, (name,), data)], node, draft, terms)
            return self._append(base, payload, {}, node, draft, terms)
        except (ConflictError, CheckpointNotFound) as error:
            if isinstance(error, (Busy, Fenced)):
                raise
            self.head()  # refreshes the cache for `save`
            return None

    def _append(self, base: Point, payload: bytes, blobs: dict[bytes, bytes], node: Node, draft: Draft, terms: Terms) -> Point:
        """`append` with encoded operations."""
        change, step, size, about = self._prepare(base, payload, blobs, node, draft, terms)
        seq = self.store.commit([change, *terms.beside])[0]
        rows, read, chosen = base.rows + 1, base.bytes + len(change.delta), "request" in draft.details
        point = Point(seq, change.id, step, change.meta, node, rows, read, change.agent, chosen, about)
        if keyframe_due(size, rows, read):
            point = self._write_keyframe(point, node, terms.epoch)
        self.engine.cache.put(self.key, point)
        return point

    def _prepare(
        self, base: Point, payload: bytes, blobs: dict[bytes, bytes], node: Node, draft: Draft, terms: Terms
    ) -> tuple[Append, int, int, bool]:
        """The change that saves a frame, its step, its size, and whether it says what listings show.

        Every save runs through here, so it unpacks what it needs once.
        """
        engine, store, key = self.engine, self.store, self.key
        details, chosen_id, note = draft
        expect, _, epoch, renew_us, _ = terms
        base_seq, base_id, base_step, base_meta, _, _, _, base_agent, _, base_about = base
        agent = details.get("agent_id")
        if base_agent is not None and agent is None:
            agent = base_agent
            details = {**details, "agent_id": agent}
        if base_about and "about" not in details:
            details = {**details, "about": engine.above.about(base_meta, node)}
        step, size = base_step + 1, size_of(node)
        if size > STATE_TO:
            raise InvalidState(
                f"the state would take about {size} bytes, and the limit is {STATE_TO}; keep large parts in files",
                path="",
            )
        packed = metadata_of(base_id, step, store.clock(), size, details, blobs)
        id = chosen_id or store.new_id(key)  # noqa: A001 - one word per idea
        meta = digest(base_meta[:DIGEST_BYTES], key.id, id, packed, payload) + packed
        plain = len(payload) < store.compress_from and not blobs
        body = PLAIN + payload if plain else engine.wrap(payload, with_blobs=bool(blobs))
        keep_newest, large = engine.retention.max_checkpoints, engine.wrap_blobs(blobs) if blobs else ()
        fresh = chosen_id is None
        change = Append(key, id, base_seq, meta, body, note, expect, epoch, agent, keep_newest, large, fresh, renew_us, base_id)
        return change, step, size, bool(details.get("about"))

    def _write_keyframe(self, point: Point, node: Node, epoch: int | None) -> Point:
        try:
            same = Expect(self.key, (point.seq, point.id))  # not deleted and begun again since
            self.store.commit([same, PutKeyframe(self.key, point.seq, self.engine.keyframe(node))])
            point = point._replace(rows=0, bytes=0)
            if not self.engine.retention.keeps_all:
                removal.remove_hidden(self, epoch)
        except SavegameError as error:  # the save is done; only the next load is slower, or space stays in use
            logger.warning("thread %r: after the save of %s: %s", self.id, point.id, error)
        return point

    # -- saving once -------------------------------------------------------------------------------

    def write(self, edit: Edit, draft: Draft, terms: Terms = FREE) -> Written:
        """`save`; a retry with the id of a checkpoint that is there returns that one, if it is what would be saved.

        Raises AlreadyExistsError if it is not.
        """
        try:
            point = self.save(edit, draft, terms)
        except Exception:  # an earlier attempt may have saved it: then the head has moved, or the edit does not fit any more
            found = None if draft.id is None else self._twin(edit, draft, draft.id)
            if found is None:
                raise
            return found
        return Written(point.id, point.step, self.saved(point, draft.note))

    def change(
        self,
        revise: Revise,
        details: Details | None = None,
        *,
        agent: str | None = None,
        id: str | None = None,  # noqa: A002 - one word per idea
        asked: Any = None,
        terms: Terms = FREE,
    ) -> Checkpoint:
        """For upper rooms: save what `revise` makes of the current state of the head.

        `asked` identifies the request, so that a retry with the same `id` is recognised.
        """
        drafted = draft(self.codec, agent, id, details or {})
        if id is not None:
            drafted.details["request"] = request_digest(self.codec.encode(asked))
        with self.engine.alone(self.key):
            return self.write(self.with_about(revise, drafted), drafted, terms).checkpoint

    def with_about(self, revise: Revise, drafted: Draft) -> Edit:
        """The edit of a revision; adds what listings show to the draft."""

        def edit(node: Node | None) -> Edited:
            ops, after, about = revise(node)
            drafted.details["about"] = self.codec.encode(dict(about), ("about",)) if about else b""
            return ops, after

        return edit

    def _twin(self, edit: Edit, draft: Draft, given_id: str) -> Written | None:
        """The checkpoint that already has the id, if it equals what would be saved. Raises AlreadyExistsError if not."""
        found = self.engine.find(self.key.namespace, given_id)
        if found is None:
            return None
        key, frame = found
        if key != self.key:
            raise AlreadyExistsError(f"the id {given_id!r} is taken by a checkpoint of thread {key.id!r}; choose another")
        meta = load_meta(frame.meta)
        there = self.point(frame.seq, frame)
        asked = Meta(**{"parent_id": None, "step": 0, "created_us": meta.created_us, "size_bytes": 0, **draft.details})
        same = all(getattr(meta, name) == getattr(asked, name) for name in _COMPARED)
        if meta.request is not None:
            same = same and meta.request == asked.request
        elif same:  # it was saved without id=: compare the states
            _, node = edit(self._parent(meta.parent_id).node)
            same = there.node is not None and to_bytes(node) == to_bytes(there.node)
        if not same:
            raise AlreadyExistsError(f"the id {given_id!r} is taken by a checkpoint with other content; choose another id")
        return Written(frame.id, meta.step, self.checkpoint(frame, meta, node=there.node), again=True)

    def _parent(self, parent_id: str | None) -> Point:
        found = None if parent_id is None else self.engine.find(self.key.namespace, parent_id)
        return EMPTY if found is None or found[0] != self.key else self.point(found[1].seq, found[1])

    # -- moving and records ------------------------------------------------------------------------

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        """Write changes, all or none."""
        return self.store.commit(changes)

    def put(self, kind: str, name: str, value: Any, *, epoch: int | None = None, absent: bool = False) -> PutRecord:
        """The change that sets a record, or removes it if the value is None."""
        body = None if value is None else self.engine.wrap_record(value, kind, name)
        return PutRecord(self.key, kind, name, body, epoch, absent)

    def put_all(self, records: Records, *, absent: bool = False) -> list[PutRecord]:
        """The changes that set records by kind and name, or remove those whose value is None."""
        return [self.put(kind, name, value, absent=absent) for (kind, name), value in records.items()]


def _packed(ops: list[Op]) -> tuple[bytes, dict[bytes, bytes]]:
    """Encoded operations, and the large values taken out of them."""
    payload = deltas.dump(ops)
    if len(payload) < BLOB_FROM:
        return payload, {}
    smaller, blobs = take_out_ops(ops)
    return deltas.dump(smaller), blobs


_OWN: Final = frozenset(("metadata", "kind", "status", "digest"))
_SAME: Final = tuple(item.name for item in fields(Checkpoint) if hasattr(Meta, item.name) and item.name not in _OWN)
"""The fields that a checkpoint takes unchanged from its metadata."""
_COMPARED: Final = tuple(
    {"created_us", *details_of(Meta(None, 0, 0, 0))} - {"agent_id", "forked_from", "external_id", "request", "about"}
)
"""The fields that identify a retry of a save, besides the state."""
