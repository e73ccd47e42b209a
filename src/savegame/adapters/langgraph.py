"""LangGraph on a vault: `graph.compile(checkpointer=SavegameSaver(vault))`. (Over 500 lines: LangGraph asks for one class.)

Needs `pip install "savegame[langgraph]"`.
A LangGraph thread is a thread of the vault, each of its subgraph namespaces a child thread. The state of a checkpoint is
LangGraph's dict with every item of a list or dict channel as a separate leaf: plain data unchanged, other values as
LangGraph's serializer wrote them. So a growing `messages` channel costs only what is new, and is readable without LangGraph.
Pending writes are records of the thread.
"""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import ormsgpack

from savegame.aio import AsyncVault
from savegame.checkpoint import Checkpoint as Saved
from savegame.details import Details, Draft, draft
from savegame.encoding import diff
from savegame.encoding.foreign import Foreign
from savegame.encoding.tree import child_of
from savegame.errors import (
    AlreadyExistsError,
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    ThreadNotFound,
    UnsupportedError,
)
from savegame.model import checked_limit
from savegame.runs.interrupts import with_answers
from savegame.store import ANY, MoveHead
from savegame.thread import Thread
from savegame.timeline.companions import CHILD, LEFT, PARENT, WRITES
from savegame.timeline.derived import NOTED, tying
from savegame.timeline.engine import EMPTY
from savegame.timeline.timeline import Edit, Terms
from savegame.vault import Vault

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
        get_checkpoint_metadata,
        writes_sort_key,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from savegame.adapters._langgraph_async import PAGE, AsyncMethods
    from savegame.adapters._langgraph_details import GraphDetails
    from savegame.adapters._langgraph_messages import read_message
    from savegame.adapters._langgraph_places import GraphPlace
    from savegame.adapters._langgraph_slices import Hashes, has_grown, hash_slices, is_plain, is_simple
    from savegame.adapters.langgraph_store import SavegameStore as SavegameStore
except ImportError as error:
    raise UnsupportedError('LangGraph is not installed: pip install "savegame[langgraph]"') from error

with contextlib.suppress(ImportError):  # the checkpoint package may be installed alone
    from langgraph._internal import _serde

    # Graphs pass the types of their schemas to a saver only if this is set. Serializers that allow all types, such as
    # those of the stock savers, ignore them, so nothing changes for these.
    setattr(_serde, "STRICT_MSGPACK_ENABLED", True)  # noqa: B010 - not exported; there is no other way

REMEMBERED: Final = 1024
_OURS: Final = ("thread_id", "checkpoint_ns", "parent_id")
"""Fields of a state besides LangGraph's checkpoint."""

_KINDS: Final = frozenset(("msgpack", "null", "bytes", "bytearray"))
"""Formats of LangGraph's default serializer. Its older ones could name any callable, and are refused."""


class LastPut(NamedTuple):
    """What was last put at a place: enough to find the changes of the next checkpoint without reading it back."""

    external_id: str
    fields: frozenset[str]
    channels: frozenset[str]
    versions: dict[str, Any]
    hashes: dict[str, Hashes]
    """For list channels: their length and the hashes of their slices."""


class SavegameSaver(AsyncMethods):
    """Stores LangGraph's checkpoints in a vault, synchronously and asynchronously. Thread-safe.

    Only classes on LangGraph's safe list, in the graph's own schemas and in `allow` are loaded as objects; others are loaded
    as the data inside. Another `serde` has its own rules.
    """

    def __init__(self, vault: Vault, *, serde: SerializerProtocol | None = None, allow: Iterable[type] = ()) -> None:
        strict = JsonPlusSerializer(allowed_msgpack_modules=[(cls.__module__, cls.__name__) for cls in allow] or None)
        super().__init__(serde=serde or strict)
        self._stock = isinstance(self.serde, JsonPlusSerializer)
        self._own = serde is None
        self.vault = vault
        self._aio = AsyncVault(vault)
        self._latest: OrderedDict[GraphPlace, LastPut] = OrderedDict()
        self._chosen: OrderedDict[tuple[GraphPlace, str], None] = OrderedDict()
        self._started: OrderedDict[tuple[GraphPlace, str], None] = OrderedDict()
        self._empty: OrderedDict[GraphPlace, None] = OrderedDict()
        self._threads: OrderedDict[GraphPlace, Thread] = OrderedDict()
        self._details = GraphDetails()

    # -- putting -----------------------------------------------------------------------------------

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Save a checkpoint after the one in the config; writes only what changed.

        Raises ConflictError if another saver has continued from there. A checkpoint that was requested by its id, or that this
        saver itself has continued from, gets a branch; but of two runs that found the same newest one, one raises.
        """
        place, external_id = GraphPlace.of(config), checkpoint["id"]
        parent = config["configurable"].get("checkpoint_id")
        thread = self._written(place)
        known = self._last_put(place, thread, parent) if parent else None
        codec = thread.timeline.codec
        details: Details = {
            "external_id": external_id,
            "metadata": {key: self._leaf(value) for key, value in get_checkpoint_metadata(config, metadata).items()},
        }
        details |= self._details.of(place, parent, checkpoint, metadata, new_versions, lambda: self._loaded(place, parent))
        drafted = draft(codec, None, place.checkpoint(external_id), details)
        copy = metadata.get("source") == "fork"  # a sibling of a checkpoint, made on purpose
        try:
            if known is None:
                hashes = self._begin(thread, place, parent, checkpoint, drafted, alone=not copy)
            else:
                branch = copy or (place, known.external_id) in self._chosen
                changes, hashes = self._changes(known, checkpoint, new_versions)
                edit = partial(diff.update, codec, **changes)
                self._continue(thread, place, known.external_id, edit, drafted, branch=branch)
        except AlreadyExistsError:
            if self._is_same_put(place, config, checkpoint, metadata):  # a retry after a lost reply
                return place.config(external_id)
            raise
        values = frozenset(checkpoint["channel_values"])
        self._remember(place, LastPut(external_id, frozenset(checkpoint), values, dict(checkpoint["channel_versions"]), hashes))
        return place.config(external_id)

    def _begin(
        self, thread: Thread, place: GraphPlace, parent: str | None, checkpoint: Checkpoint, drafted: Draft, *, alone: bool
    ) -> dict[str, Hashes]:
        """Save a checkpoint without a parent in the vault; returns the hashes of its lists.

        A saver that has seen the thread empty expects it to be still empty, unless it may have siblings.
        """
        hashes: dict[str, Hashes] = {}
        whole = self.full_state(place, parent, checkpoint, hashes)
        timeline, expect = thread.timeline, None if alone and place in self._empty and parent is None else ANY
        before = timeline.head().node
        if before is not None and child_of(before, "channel_values") is None:
            raise InvalidInputError(f"thread {thread.id!r} is not a LangGraph thread; choose another thread_id")
        try:
            edit = partial(diff.difference, timeline.codec, value=whole)
            self._write(thread, place, edit, drafted, Terms(expect, None if alone else EMPTY))
        except ConflictError as error:
            if type(error) is not ConflictError:
                raise
            raise ConflictError(
                f"thread {place.id!r} was empty, and another writer has started it; read it again and retry", found=error.found
            ) from error
        return hashes

    def _write(self, thread: Thread, place: GraphPlace, edit: Edit, drafted: Draft, terms: Terms) -> Saved:
        timeline = thread.timeline
        origins = {PARENT: timeline.key._replace(id=place.parent)} if place.parent else {}
        edit, beside = tying(timeline, origins, edit)
        with timeline.engine.alone(timeline.key):
            return timeline.write(edit, drafted, terms._replace(beside=beside)).checkpoint

    def _is_same_put(
        self, place: GraphPlace, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> bool:
        """Whether the stored checkpoint with this id equals the one that is being put."""
        thread = self._thread(place, self._revive())
        saved = self._find(thread, place, checkpoint["id"])
        found = None if saved is None else self._tuple(thread, place, saved)
        given = (checkpoint, get_checkpoint_metadata(config, metadata))
        return found is not None and (found.checkpoint, found.metadata) == tuple(map(self._round_trip, given))

    def _round_trip(self, value: Any) -> Any:
        return self.serde.loads_typed(self.serde.dumps_typed(value))

    def full_state(
        self, place: GraphPlace, parent: str | None, checkpoint: Checkpoint, hashes: dict[str, Hashes]
    ) -> dict[str, Any]:
        """The state of a checkpoint in the vault; adds the hashes of its lists to `hashes`. For the importer."""
        values = checkpoint["channel_values"]
        for channel, value in values.items():
            seen = hash_slices(value, None)
            if seen is not None:
                hashes[channel] = seen
        state = {"thread_id": place.thread_id, "checkpoint_ns": place.namespace, "parent_id": parent}
        fields = {key: self._leaves(value) for key, value in checkpoint.items() if key != "channel_values"}
        return {**state, **fields, "channel_values": {channel: self._leaves(value) for channel, value in values.items()}}

    def _continue(self, thread: Thread, place: GraphPlace, parent: str, edit: Edit, drafted: Draft, *, branch: bool) -> None:
        """Save on top of a checkpoint: as the new head, or as a branch."""
        base = place.checkpoint(parent)
        if not branch:
            try:
                self._write(thread, place, edit, drafted, Terms(base))
                return
            except ConflictError as error:
                last = self._latest.get(place)
                own = last is not None and error.found == place.checkpoint(last.external_id)
                if type(error) is not ConflictError or not own or (place, parent) in self._started:
                    raise
        frame = thread.timeline.resolve(base)
        self._write(thread, place, edit, drafted, Terms(base=thread.timeline.point(frame.seq, frame)))

    def _changes(
        self, known: LastPut, checkpoint: Checkpoint, new_versions: ChannelVersions
    ) -> tuple[dict[str, Any], dict[str, Hashes]]:
        """The arguments of an update that makes a checkpoint from the last put, and the hashes of its lists."""
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        hashes = {channel: seen for channel, seen in known.hashes.items() if channel in values}
        append: dict[Any, list[Any]] = {}
        change: dict[Any, Any] = {"parent_id": known.external_id}
        change |= {key: self._leaves(value) for key, value in checkpoint.items() if key != "channel_values"}
        for channel, value in values.items():
            same_version = channel in versions and known.versions.get(channel) == versions[channel]
            if channel in known.channels and channel not in new_versions and same_version:
                continue
            path = ("channel_values", channel)
            before = hashes.pop(channel, None)
            seen = hash_slices(value, before)
            if seen is not None:
                hashes[channel] = seen
            if before is not None and seen is not None and has_grown(before, seen):
                new = [self._leaf(item) for item in value[before[0] :]]
                append |= {path: new} if new else {}
            else:
                change[path] = self._leaves(value)
        gone: list[Any] = [("channel_values", channel) for channel in known.channels if channel not in values]
        gone += [field for field in known.fields if field not in checkpoint]
        return {"append": append, "set": change, "delete": gone}, hashes

    def _last_put(self, place: GraphPlace, thread: Thread, parent: str) -> LastPut | None:
        """The parent of a new checkpoint, remembered or read back; None if it does not exist."""
        known = self._latest.get(place)
        if known is not None and known.external_id == parent:
            return known
        found = self._find(thread, place, parent)
        if found is None:
            return None
        state = found.state
        fields = frozenset(state) - frozenset(_OURS)
        return LastPut(parent, fields, frozenset(state["channel_values"]), dict(state["channel_versions"]), {})

    def _leaves(self, value: Any) -> Any:
        """A value with each item of a list, or of a dict with text keys, as a separate leaf."""
        if type(value) is list:
            return [self._leaf(item) for item in value]
        if type(value) is dict and all(type(key) is str for key in value):
            return {key: self._leaf(item) for key, item in value.items()}
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        """A value as LangGraph's serializer writes it: plain data if possible, otherwise a foreign leaf."""
        if self._stock and is_simple(value):  # another serializer may encrypt it
            return value
        kind, data = self.serde.dumps_typed(value)
        return ormsgpack.Fragment(data) if kind == "msgpack" and is_plain(data) else Foreign(kind, bytes(data))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Store the writes of a task for a checkpoint. Existing writes stay, except special ones, which are replaced."""
        place, kind = GraphPlace.of(config), _writes_kind(config["configurable"]["checkpoint_id"])
        thread = self._written(place)
        plain = {number: write for number, write in enumerate(writes) if write[0] not in WRITES_IDX_MAP}
        special = {WRITES_IDX_MAP[channel]: (channel, value) for channel, value in writes if channel in WRITES_IDX_MAP}
        records = {
            (kind, f"{task_id} {index}"): self._task_record(task_id, task_path, {index: special[index]}) for index in special
        }
        if plain and not records:
            with contextlib.suppress(AlreadyExistsError):  # looking first would cost every other call
                return thread.put_records({(kind, task_id): self._task_record(task_id, task_path, plain)}, absent=True)
        if plain:
            new, old = self._task_record(task_id, task_path, plain), thread.records(kind).get(task_id)
            if old is not None:
                new[2] = old[2] + [write for write in new[2] if write[0] not in {existing[0] for existing in old[2]}]
            records[kind, task_id] = new
        if records:
            thread.put_records(records)
        return None

    def _task_record(self, task_id: str, task_path: str, writes: Mapping[int, tuple[str, Any]]) -> list[Any]:
        """The record of the writes of one task."""
        return [task_id, task_path, [[index, channel, self._leaf(value)] for index, (channel, value) in writes.items()]]

    # -- reading -----------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint with the id in the config, or the newest one; with its pending writes in order."""
        place = GraphPlace.of(config)
        thread = self._thread(place, self._revive())
        wanted = config["configurable"].get("checkpoint_id")
        found = self._find(thread, place, wanted) if wanted else thread.latest()
        if not wanted and found is None:
            self._empty[place] = None
            _bound(self._empty)
        elif not wanted:
            self._empty.pop(place, None)
        if found is None or not place.owns(found):
            return None
        if wanted:
            self._choose(place, thread, found)
        else:
            self._chosen.pop((place, cast(str, found.external_id)), None)
            self._started[place, cast(str, found.external_id)] = None
            _bound(self._started)
        return self._tuple(thread, place, found)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints that match the config, `filter` and `before`, newest first; equal messages are decoded once."""
        wanted = config["configurable"].get("checkpoint_id") if config else None
        newest = before["configurable"].get("checkpoint_id") if before else None
        shared: dict[tuple[str, bytes], Any] = {}
        left = checked_limit(limit)
        for place in self._places(config):
            thread = self._thread(place, self._revive(shared))
            entries = (
                entry
                for entry in self._own_checkpoints(thread, place)
                if (wanted is None or entry.external_id == wanted)
                and (newest is None or cast(str, entry.external_id) < newest)
                and all(entry.metadata.get(key) == value for key, value in (filter or {}).items())
            )
            while left is None or left > 0:
                page = list(islice(entries, PAGE if left is None else min(PAGE, left)))
                left = None if left is None else left - len(page)
                replayed = newest is not None and limit == 1  # so a replayed graph asks where its subgraph goes on
                if not page:
                    if replayed:  # it begins again, beside what there is
                        self._empty.pop(place, None)
                    break
                if replayed:
                    self._choose(place, thread, page[0])
                yield from [self._tuple(thread, place, found) for found in thread.replay(page)][::-1]

    def _choose(self, place: GraphPlace, thread: Thread, found: Saved) -> None:
        """Take note that a checkpoint was asked for: if it is not the newest, the next put there starts a branch."""
        row = thread.timeline.row()
        self._chosen.pop((place, cast(str, found.external_id)), None)
        if row is None or row.head_id != found.id:
            self._chosen[place, cast(str, found.external_id)] = None
            _bound(self._chosen)

    def _tuple(self, thread: Thread, place: GraphPlace, found: Saved) -> CheckpointTuple:
        state = found.state
        checkpoint = cast(Checkpoint, {key: value for key, value in state.items() if key not in _OURS})
        parent = None if found.forked_from else state["parent_id"]  # the history of a fork begins with its first checkpoint
        return CheckpointTuple(
            place.config(checkpoint["id"]),
            checkpoint,
            cast(CheckpointMetadata, dict(found.metadata)),
            place.config(parent) if parent else None,
            _in_order(thread.records(_writes_kind(checkpoint["id"]))),
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes to each channel before a checkpoint since its value was last stored, and that value."""
        place = GraphPlace.of(config)
        thread = self._thread(place, self._revive())
        wanted = config["configurable"].get("checkpoint_id")
        target = self._find(thread, place, wanted) if wanted else thread.latest()
        writes: dict[str, list[Any]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        parent = None if target is None else target.state["parent_id"]
        ancestors = iter(thread.history(before=target.id)) if target is not None else iter(())
        successor = None if target is None else target.id
        while parent and len(seeds) < len(writes):
            page = list(islice(ancestors, PAGE))
            if not page:
                break
            for found in list(thread.replay(page))[::-1]:
                if found.external_id != parent or len(seeds) == len(writes):
                    continue  # not an ancestor in LangGraph's sense
                left = thread.records(f"{LEFT}{parent} {successor}")  # if a rewind undid this line
                for write in reversed(_in_order(left or thread.records(_writes_kind(parent)))):
                    if write[1] in writes and write[1] not in seeds:
                        writes[write[1]].append(write)
                values = found.state["channel_values"]
                seeds |= {channel: values[channel] for channel in writes if channel in values and channel not in seeds}
                parent, successor = found.state["parent_id"], found.id
        missing = set(writes).difference(seeds).intersection(_delta_channels(target)) if parent else ()
        if missing:
            raise CorruptionError(
                f"thread {thread.id!r}: channel {min(missing)!r} cannot be rebuilt: checkpoint {parent!r}, which it needs, was "
                "removed; continue from an older checkpoint or a backup",
                thread_id=thread.id,
            )
        return {
            channel: cast(
                DeltaChannelHistory,
                {"writes": writes[channel][::-1], **({"seed": seeds[channel]} if channel in seeds else {})},
            )
            for channel in channels
        }

    # -- removing and copying ----------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces and pending writes, all or nothing."""
        root = GraphPlace(str(thread_id), "")
        places = list(self._places(root.config(None), everything=True))
        self._thread(root, Foreign).delete()
        for place in places:
            self._forget(place)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs in all threads, with their pending writes."""
        runs = set(run_ids)
        for place in self._places(None) if runs else ():
            thread = self._thread(place, Foreign)
            self._remove(
                place, thread, [entry for entry in self._own_checkpoints(thread, place) if entry.metadata.get("run_id") in runs]
            )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint of each namespace (and what its delta channels need), or with "delete" none.

        Threads whose newest checkpoint was not saved by LangGraph are not pruned.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInputError(f'strategy {strategy!r} is unknown; one of: "keep_latest", "delete"')
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for place in self._places(GraphPlace(str(thread_id), "").config(None), everything=True):
                thread = self._thread(place, Foreign)
                newest = thread.latest()
                if newest is not None and place.owns(newest):
                    keep = {newest.id, *self._delta_ancestors(thread, place, newest)}
                    self._remove(
                        place, thread, [entry for entry in self._own_checkpoints(thread, place) if entry.id not in keep]
                    )

    def _own_checkpoints(self, thread: Thread, place: GraphPlace) -> Iterator[Saved]:
        """The checkpoints of a thread that LangGraph made, with branches, newest first."""
        return (entry for entry in thread.history(branches=True) if place.owns(entry))

    def _delta_ancestors(self, thread: Thread, place: GraphPlace, newest: Saved) -> Iterator[str]:
        """The ancestors from which the delta channels of a checkpoint are rebuilt."""
        missing = _delta_channels(newest)
        ancestors = (entry for entry in thread.history(before=newest.id) if place.owns(entry))
        while missing and (page := list(islice(ancestors, PAGE))):
            for found in list(thread.replay(page))[::-1]:
                if missing:
                    yield found.id
                    missing -= set(found.state["channel_values"])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints, namespaces and pending writes of a thread; erasing the source also erases the copy."""
        for place in self._places(GraphPlace(str(source_thread_id), "").config(None), everything=True):
            source, target = self._thread(place, Foreign), GraphPlace(str(target_thread_id), place.namespace)
            copy = self.vault.thread(target.id, foreign=Foreign, child_of=target.parent, copy_of=place.id)
            copied: dict[str, Saved] = {}
            for found in source.replay(self._own_checkpoints(source, place)):
                state = {**found.state, "thread_id": target.thread_id}
                details: Details = {
                    "external_id": found.external_id,
                    "kind": found.kind,
                    "status": found.status,
                    "metadata": found.metadata,
                }
                new_id, parent = target.checkpoint(cast(str, found.external_id)), copied.get(found.parent_id or "")
                if parent is None and copied:  # a copy of the first one, which stands beside it
                    drafted = draft(copy.timeline.codec, None, new_id, details)
                    edit = partial(diff.difference, copy.timeline.codec, value=state)
                    copied[found.id] = self._write(copy, target, edit, drafted, Terms(base=EMPTY))
                else:
                    copied[found.id] = copy.save(state, id=new_id, force=True, parent=parent, **details)
            if copied:
                row = source.timeline.row()
                head = copied.get(row.head_id) if row is not None and row.head_id is not None else None
                copy.timeline.commit([MoveHead(copy.timeline.key, 0 if head is None else head.seq)])
                copy.put_records(dict(self._copied_writes(source, copied)))

    def _copied_writes(self, source: Thread, copied: Mapping[str, Saved]) -> Iterator[tuple[tuple[str, str], Any]]:
        """The pending writes of a thread as records of its copy, by kind and name."""
        for kind in source.timeline.kinds():
            external_id, _, successor = kind.removeprefix(LEFT).partition(" ")
            if kind.startswith(LEFT) and successor in copied:
                yield from (
                    ((f"{LEFT}{external_id} {copied[successor].id}", name), value)
                    for name, value in source.records(kind).items()
                )
            elif kind.startswith(WRITES):
                yield from (((kind, name), value) for name, value in source.records(kind).items())

    def _remove(self, place: GraphPlace, thread: Thread, entries: Sequence[Saved]) -> None:
        if entries:
            thread.remove(*[entry.id for entry in entries])
            self._forget(place)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Whole numbers; for threads imported from a stock saver, texts in that saver's format."""
        if not isinstance(current, str):
            return 1 if current is None else current + 1
        return f"{int(current.split('.')[0]) + 1:032}.{random.random():016}"  # noqa: S311 - LangGraph's format, no secret

    # -- helpers -----------------------------------------------------------------------------------

    def _thread(self, place: GraphPlace, foreign: Callable[[str, bytes], Any]) -> Thread:
        return self.vault.thread(place.id, foreign=foreign, child_of=place.parent)

    def _written(self, place: GraphPlace) -> Thread:
        """The thread of a place to write to, with undecoded leaves: never used for its expected head."""
        thread = self._threads.get(place)
        if thread is None:
            thread = self._threads[place] = self._thread(place, Foreign)
            _bound(self._threads)
        return thread

    def _find(self, thread: Thread, place: GraphPlace, external_id: str) -> Saved | None:
        try:
            return thread.load(place.checkpoint(external_id))
        except (CheckpointNotFound, ThreadNotFound):
            return None

    def _loaded(self, place: GraphPlace, external_id: str | None) -> Saved | None:
        """A checkpoint with the objects in its state; None if it does not exist."""
        return None if external_id is None else self._find(self._thread(place, self._revive()), place, external_id)

    def _revive(self, shared: dict[tuple[str, bytes], Any] | None = None) -> Callable[[str, bytes], Any]:
        """A decoder of leaves; with `shared`, equal leaves become the same object.

        Formats that the serializer never writes mean damage or an attack, and are refused.
        """
        loads, own = self.serde.loads_typed, self._own
        ours = self._stock and not cast(JsonPlusSerializer, self.serde).pickle_fallback

        def revive(kind: str, data: bytes) -> Any:
            if ours and kind not in _KINDS:
                raise CorruptionError(f"a stored value has the format {kind!r}, which this saver never writes; it was not read")
            message = read_message(data) if own and kind == "msgpack" else None
            return loads((kind, data)) if message is None else message

        def revive_once(kind: str, data: bytes) -> Any:
            if (kind, data) not in cache:
                cache[kind, data] = revive(kind, data)
            return cache[kind, data]

        cache = {} if shared is None else shared
        return revive if shared is None else revive_once

    def _places(self, config: RunnableConfig | None, *, everything: bool = False) -> Iterator[GraphPlace]:
        """The places of a config: one, all of a thread, or all of the vault."""
        if config is None:
            for info in self.vault.threads(limit=None):
                yield GraphPlace.from_id(info.id)
            return
        place = GraphPlace.of(config)
        if "checkpoint_ns" in config["configurable"] and not everything:
            yield place
            return
        root = GraphPlace(place.thread_id, "")
        thread = self._thread(root, Foreign)
        children = {GraphPlace.from_id(child) for child in thread.records(CHILD)}
        noted = {GraphPlace(root.thread_id, name) for name in thread.records(NOTED)}
        yield from sorted(one for one in children | noted if one.thread_id == root.thread_id and one.namespace)
        yield root

    def _remember(self, place: GraphPlace, known: LastPut) -> None:
        self._latest.pop(place, None)
        self._latest[place] = known
        _bound(self._latest)

    def _forget(self, place: GraphPlace) -> None:
        self._latest.pop(place, None)
        self._empty.pop(place, None)


def _bound(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)


def _writes_kind(external_id: str) -> str:
    return f"{WRITES}{external_id}"


def _in_order(records: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """The pending writes in records of tasks, as LangGraph orders them."""
    writes = sorted(
        (
            (writes_sort_key(task_path, task_id, index), (index, task_id, channel, value))
            for task_id, task_path, written in records.values()
            for index, channel, value in written
        ),
        key=lambda write: write[0],
    )
    return with_answers([write for _, write in writes])


def _delta_channels(found: Saved | None) -> set[str]:
    """The channels of a checkpoint that are rebuilt from its ancestors."""
    if found is None:
        return set()
    return set(found.metadata.get("counters_since_delta_snapshot") or {}) - set(found.state["channel_values"])
