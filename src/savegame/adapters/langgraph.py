"""LangGraph on a vault: `graph.compile(checkpointer=SavegameSaver(vault))`. Needs `pip install "savegame[langgraph]"`.

A LangGraph thread is a thread of the vault, and each subgraph namespace of it a child thread. A checkpoint's state is
LangGraph's own dict with every item of a list or dict channel as a leaf of its own: plain data as it is, everything else
as LangGraph's serializer wrote it. So a growing `messages` channel costs what is new, and people without LangGraph can
read it. Pending writes are records beside the thread. Touches the vault, aio, derived, beside, foreign,
errors and `_langgraph_messages.py`; never a store.
"""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import blake3
import ormsgpack

from savegame.aio import AsyncVault
from savegame.checkpoint import Checkpoint as Saved
from savegame.encoding.foreign import Foreign
from savegame.errors import (
    AlreadyExistsError,
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    ThreadNotFound,
    UnsupportedError,
)
from savegame.model import Kind, checked_limit
from savegame.thread import Thread
from savegame.timeline.companions import CHILD
from savegame.timeline.derived import NOTED, SEPARATOR, framework_id, unescaped
from savegame.vault import Vault

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
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
    from pydantic import BaseModel

    from savegame.adapters._langgraph_messages import message
except ImportError as error:
    raise UnsupportedError('LangGraph is not installed: pip install "savegame[langgraph]"') from error

with contextlib.suppress(ImportError):  # there may be the checkpoint package alone
    from langgraph._internal import _serde

    # Graphs tell a saver which types their schemas name only if this is set; by default it is not. Serializers that allow
    # everything, as those of the stock savers do, do not listen: nothing changes for them.
    setattr(_serde, "STRICT_MSGPACK_ENABLED", True)  # noqa: B010 - not exported, and there is no other way to ask

SLICE: Final = 64
"""Items of a list channel that are compared at once."""

PAGE: Final = 50
REMEMBERED: Final = 1024
_OURS: Final = ("thread_id", "checkpoint_ns", "parent_id")
"""What a state holds besides LangGraph's checkpoint."""

_KINDS: Final = frozenset(("msgpack", "null", "bytes", "bytearray"))
"""What LangGraph's default serializer writes; its older forms could name any callable and are not read."""

_EXACT: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


class Place(NamedTuple):
    """A LangGraph thread and a checkpoint namespace in it ("" for the graph itself)."""

    thread_id: str
    namespace: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Place:
        """The place that a config names. Raises InvalidInputError."""
        found = config.get("configurable", {})
        if "thread_id" not in found:
            raise InvalidInputError('the config names no thread; give {"configurable": {"thread_id": "..."}}')
        return cls(str(found["thread_id"]), found.get("checkpoint_ns") or "")

    @classmethod
    def from_id(cls, thread_id: str) -> Place:
        """The opposite of `id`."""
        root, _, namespace = thread_id.partition(SEPARATOR)
        return cls(unescaped(root), namespace)

    @property
    def root(self) -> str:
        """The id of the vault's thread for the graph itself."""
        return self.thread_id.replace("\u241b", "\u241b0").replace(SEPARATOR, "\u241b1")

    @property
    def id(self) -> str:
        """The id of the vault's thread."""
        return f"{self.root}{SEPARATOR}{self.namespace}" if self.namespace else self.root

    @property
    def parent(self) -> str | None:
        """The id of the vault's thread that this one is a child of."""
        return self.root if self.namespace else None

    def checkpoint(self, external_id: str) -> str:
        """Our id for a checkpoint of LangGraph's: the same for the same, so that a retry is found out."""
        return framework_id(self.thread_id, self.namespace, external_id)

    def made(self, found: Saved) -> bool:
        """Whether a checkpoint is one of LangGraph's, and of this place."""
        return found.external_id is not None and found.id == self.checkpoint(found.external_id)

    def config(self, external_id: str | None) -> RunnableConfig:
        """The config that names a checkpoint here."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.namespace,
                **({} if external_id is None else {"checkpoint_id": external_id}),
            }
        }


class Known(NamedTuple):
    """What was put last at a place: enough to see what the next checkpoint changes without reading it back."""

    external_id: str
    fields: frozenset[str]
    channels: frozenset[str]
    versions: dict[str, Any]
    faces: dict[str, tuple[int, list[bytes]]]
    """For list channels: how many items there were, and a hash of each slice of them."""


class SavegameSaver(BaseCheckpointSaver[Any]):
    """Keeps LangGraph's checkpoints in a vault, in both colours. May be shared between threads.

    Only classes on LangGraph's safe list, those that the graph's own schemas name, and those in `allow` come back as
    objects; everything else comes back as the data inside. Another `serde` makes its own rules.
    """

    def __init__(self, vault: Vault, *, serde: SerializerProtocol | None = None, allow: Iterable[type] = ()) -> None:
        strict = JsonPlusSerializer(allowed_msgpack_modules=[(cls.__module__, cls.__name__) for cls in allow] or None)
        super().__init__(serde=serde or strict)
        self._stock = isinstance(self.serde, JsonPlusSerializer)
        self._own = serde is None
        self.vault = vault
        self._aio = AsyncVault(vault)
        self._latest: OrderedDict[Place, Known] = OrderedDict()
        self._chosen: OrderedDict[tuple[Place, str], None] = OrderedDict()
        self._empty: OrderedDict[Place, None] = OrderedDict()

    # -- putting -----------------------------------------------------------------------------------

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Save a checkpoint on top of the one that the config names; only what changed is written.

        Raises ConflictError if somebody else has gone on from there meanwhile, unless that checkpoint was asked for by
        its id: then it is a branch.
        """
        place, external_id = Place.of(config), checkpoint["id"]
        parent = config["configurable"].get("checkpoint_id")
        thread = self._thread(place, Foreign)
        known = self._known(place, thread, parent) if parent else None
        details: dict[str, Any] = {
            "id": place.checkpoint(external_id),
            "external_id": external_id,
            "kind": Kind.ITERATION,
            "metadata": {key: self._leaf(value) for key, value in get_checkpoint_metadata(config, metadata).items()},
        }
        try:
            if known is None:
                faces = self._begin(thread, place, parent, checkpoint, details)
            else:
                branch = (place, known.external_id) in self._chosen
                base = place.checkpoint(known.external_id)
                details |= {"parent": base, "force": True} if branch else {"expect": base}
                faces = self._update(thread, known, parent, checkpoint, new_versions, details)
        except AlreadyExistsError:
            if self._is_there(place, config, checkpoint, metadata):  # a retry, after a reply that was lost
                return place.config(external_id)
            raise
        values = frozenset(checkpoint["channel_values"])
        self._remember(place, Known(external_id, frozenset(checkpoint), values, dict(checkpoint["channel_versions"]), faces))
        return place.config(external_id)

    def _begin(
        self, thread: Thread, place: Place, parent: str | None, checkpoint: Checkpoint, details: dict[str, Any]
    ) -> dict[str, tuple[int, list[bytes]]]:
        """Save a checkpoint that continues none that is here; gives the faces of its lists.

        Who has looked and found the thread empty expects it to be so still.
        """
        faces: dict[str, tuple[int, list[bytes]]] = {}
        whole = self._whole(place, parent, checkpoint, faces)
        if place in self._empty and parent is None:
            found = thread.latest()
            if found is not None and found.id != details["id"]:
                raise ConflictError(
                    f"thread {place.id!r} was empty and has been begun by somebody else meanwhile; read it again and retry",
                    found=found.id,
                )
            thread.save(whole, **details)
        else:
            thread.save(whole, force=True, **details)
        return faces

    def _is_there(self, place: Place, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> bool:
        """Whether the checkpoint with this id is the one that is being put."""
        thread = self._thread(place, self._revive())
        saved = self._find(thread, place, checkpoint["id"])
        found = None if saved is None else self._tuple(thread, place, saved)
        given = (checkpoint, get_checkpoint_metadata(config, metadata))
        return found is not None and (found.checkpoint, found.metadata) == tuple(map(self._round_trip, given))

    def _round_trip(self, value: Any) -> Any:
        return self.serde.loads_typed(self.serde.dumps_typed(value))

    def _whole(
        self, place: Place, parent: str | None, checkpoint: Checkpoint, faces: dict[str, tuple[int, list[bytes]]]
    ) -> dict[str, Any]:
        values = checkpoint["channel_values"]
        for channel, value in values.items():
            seen = _faces(value, None)
            if seen is not None:
                faces[channel] = seen
        state = {"thread_id": place.thread_id, "checkpoint_ns": place.namespace, "parent_id": parent}
        fields = {key: self._leaves(value) for key, value in checkpoint.items() if key != "channel_values"}
        return {**state, **fields, "channel_values": {channel: self._leaves(value) for channel, value in values.items()}}

    def _update(
        self,
        thread: Thread,
        known: Known,
        parent: str | None,
        checkpoint: Checkpoint,
        new_versions: ChannelVersions,
        details: dict[str, Any],
    ) -> dict[str, tuple[int, list[bytes]]]:
        """Save what differs from what was put before; gives the faces of its lists."""
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        faces = {channel: seen for channel, seen in known.faces.items() if channel in values}
        append: dict[Any, list[Any]] = {}
        change: dict[Any, Any] = {"parent_id": parent}
        change |= {key: self._leaves(value) for key, value in checkpoint.items() if key != "channel_values"}
        for channel, value in values.items():
            same_version = channel in versions and known.versions.get(channel) == versions[channel]
            if channel in known.channels and channel not in new_versions and same_version:
                continue
            path = ("channel_values", channel)
            before = faces.pop(channel, None)
            seen = _faces(value, before)
            if seen is not None:
                faces[channel] = seen
            if before is not None and seen is not None and _grew(before, seen):
                new = [self._leaf(item) for item in value[before[0] :]]
                append |= {path: new} if new else {}
            else:
                change[path] = self._leaves(value)
        gone: list[Any] = [("channel_values", channel) for channel in known.channels if channel not in values]
        gone += [field for field in known.fields if field not in checkpoint]
        thread.update(append=append, set=change, delete=gone, **details)
        return faces

    def _known(self, place: Place, thread: Thread, parent: str) -> Known | None:
        """What the parent of a new checkpoint holds, remembered or read back; None if there is no such checkpoint."""
        known = self._latest.get(place)
        if known is not None and known.external_id == parent:
            return known
        found = self._find(thread, place, parent)
        if found is None:
            return None
        state = found.state
        fields = frozenset(state) - frozenset(_OURS)
        return Known(parent, fields, frozenset(state["channel_values"]), dict(state["channel_versions"]), {})

    def _leaves(self, value: Any) -> Any:
        """A value with each item of a list, or of a dict with text keys, as a leaf of its own."""
        if type(value) is list:
            return [self._leaf(item) for item in value]
        if type(value) is dict and all(type(key) is str for key in value):
            return {key: self._leaf(item) for key, item in value.items()}
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        """A value as LangGraph's serializer writes it: as plain data where it is that, else as a foreign leaf."""
        if self._stock and _is_simple(value):  # another serializer may encrypt it
            return value
        kind, data = self.serde.dumps_typed(value)
        return ormsgpack.Fragment(data) if kind == "msgpack" and _is_plain(data) else Foreign(kind, bytes(data))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Keep what a task wrote beside a checkpoint. A write that is there already stays, unless it is a special one."""
        place, kind = Place.of(config), _writes_kind(config["configurable"]["checkpoint_id"])
        thread = self._thread(place, Foreign)
        plain = {number: write for number, write in enumerate(writes) if write[0] not in WRITES_IDX_MAP}
        special = {WRITES_IDX_MAP[channel]: (channel, value) for channel, value in writes if channel in WRITES_IDX_MAP}
        records = {
            (kind, f"{task_id} {index}"): self._written(task_id, task_path, {index: special[index]}) for index in special
        }
        if plain:
            there = thread.records(kind).get(task_id)
            new = self._written(task_id, task_path, plain)
            if there is not None:
                new[2] = there[2] + [write for write in new[2] if write[0] not in {kept[0] for kept in there[2]}]
            records[kind, task_id] = new
        if records:
            thread.put_records(records)

    def _written(self, task_id: str, task_path: str, writes: Mapping[int, tuple[str, Any]]) -> list[Any]:
        """The record of what one task wrote."""
        return [task_id, task_path, [[index, channel, self._leaf(value)] for index, (channel, value) in writes.items()]]

    # -- reading -----------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names by its id, else the newest; with its pending writes in order."""
        place = Place.of(config)
        thread = self._thread(place, self._revive())
        wanted = config["configurable"].get("checkpoint_id")
        heads = [entry.id for entry in thread.history(limit=1)] if wanted else []
        found = self._find(thread, place, wanted) if wanted else thread.latest()
        if not wanted and found is None:
            self._empty[place] = None
            _bound(self._empty)
        elif not wanted:
            self._empty.pop(place, None)
        if found is None or not place.made(found):
            return None
        if wanted and found.id not in heads:  # somebody goes back on purpose: what is put on top is a branch
            self._chosen[place, wanted] = None
            _bound(self._chosen)
        else:
            self._chosen.pop((place, cast(str, found.external_id)), None)
        return self._tuple(thread, place, found)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first, that fit metadata, `before` and the config; equal messages are decoded once."""
        wanted = config["configurable"].get("checkpoint_id") if config else None
        newest = before["configurable"].get("checkpoint_id") if before else None
        shared: dict[tuple[str, bytes], Any] = {}
        left = checked_limit(limit)
        for place in self._places(config):
            thread = self._thread(place, self._revive(shared))
            entries = (
                entry
                for entry in self._made(thread, place)
                if (wanted is None or entry.external_id == wanted)
                and (newest is None or cast(str, entry.external_id) < newest)
                and all(entry.metadata.get(key) == value for key, value in (filter or {}).items())
            )
            while left is None or left > 0:
                page = list(islice(entries, PAGE if left is None else min(PAGE, left)))
                left = None if left is None else left - len(page)
                if not page:
                    break
                yield from [self._tuple(thread, place, found) for found in thread.replay(page)][::-1]

    def _tuple(self, thread: Thread, place: Place, found: Saved) -> CheckpointTuple:
        state = found.state
        checkpoint = cast(Checkpoint, {key: value for key, value in state.items() if key not in _OURS})
        parent = state["parent_id"]
        writes = sorted(
            (
                (writes_sort_key(task_path, task_id, index), task_id, channel, value)
                for task_id, task_path, written in thread.records(_writes_kind(checkpoint["id"])).values()
                for index, channel, value in written
            ),
            key=lambda write: write[0],
        )
        return CheckpointTuple(
            place.config(checkpoint["id"]),
            checkpoint,
            cast(CheckpointMetadata, dict(found.metadata)),
            place.config(parent) if parent else None,
            [(task_id, channel, value) for _, task_id, channel, value in writes],
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What each channel got on the way to a checkpoint since its value was last stored, and that value."""
        place = Place.of(config)
        thread = self._thread(place, self._revive())
        wanted = config["configurable"].get("checkpoint_id")
        target = self._find(thread, place, wanted) if wanted else thread.latest()
        writes: dict[str, list[Any]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        parent = None if target is None else target.state["parent_id"]
        ancestors = iter(thread.history(before=target.id)) if target is not None else iter(())
        while parent and len(seeds) < len(writes):
            page = list(islice(ancestors, PAGE))
            if not page:
                break
            for found in list(thread.replay(page))[::-1]:
                if found.external_id != parent or len(seeds) == len(writes):
                    continue  # not on the way that LangGraph went
                item = self._tuple(thread, place, found)
                for write in reversed(item.pending_writes or []):
                    if write[1] in writes and write[1] not in seeds:
                        writes[write[1]].append(write)
                values = item.checkpoint["channel_values"]
                seeds |= {channel: values[channel] for channel in writes if channel in values and channel not in seeds}
                parent = found.state["parent_id"]
        return {
            channel: cast(
                DeltaChannelHistory,
                {"writes": writes[channel][::-1], **({"seed": seeds[channel]} if channel in seeds else {})},
            )
            for channel in channels
        }

    # -- removing and copying ----------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces and pending writes, all or none."""
        root = Place(str(thread_id), "")
        places = list(self._places(root.config(None), everything=True))
        self._thread(root, Foreign).delete()
        for place in places:
            self._forget(place)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs made, in every thread, with their pending writes."""
        runs = set(run_ids)
        for place in self._places(None) if runs else ():
            thread = self._thread(place, Foreign)
            self._remove(place, thread, [entry for entry in self._made(thread, place) if entry.metadata.get("run_id") in runs])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint of each namespace (and what its delta channels need), or with "delete" none.

        What others than LangGraph saved last stays as it is, with all that is below it.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInputError(f'strategy {strategy!r} is unknown; one of: "keep_latest", "delete"')
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for place in self._places(Place(str(thread_id), "").config(None), everything=True):
                thread = self._thread(place, Foreign)
                newest = thread.latest()
                if newest is not None and place.made(newest):
                    keep = {newest.id, *self._needed(thread, place, newest)}
                    self._remove(place, thread, [entry for entry in self._made(thread, place) if entry.id not in keep])

    def _made(self, thread: Thread, place: Place) -> Iterator[Saved]:
        """The checkpoints of a thread that LangGraph made, branches too, newest first."""
        return (entry for entry in thread.history(branches=True) if place.made(entry))

    def _needed(self, thread: Thread, place: Place, newest: Saved) -> Iterator[str]:
        """The ancestors from which the delta channels of a checkpoint are rebuilt."""
        missing = set(newest.metadata.get("counters_since_delta_snapshot") or {}) - set(newest.state["channel_values"])
        ancestors = (entry for entry in thread.history(before=newest.id) if place.made(entry))
        while missing and (page := list(islice(ancestors, PAGE))):
            for found in list(thread.replay(page))[::-1]:
                if missing:
                    yield found.id
                    missing -= set(found.state["channel_values"])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy every checkpoint, namespace and pending write of a thread to another, which erasing the first erases."""
        for place in self._places(Place(str(source_thread_id), "").config(None), everything=True):
            source, target = self._thread(place, Foreign), Place(str(target_thread_id), place.namespace)
            copy = self.vault.thread(target.id, foreign=Foreign, child_of=target.parent, copy_of=place.id)
            for found in source.replay(self._made(source, place)):
                state = {**found.state, "thread_id": target.thread_id}
                parent = target.checkpoint(state["parent_id"]) if state["parent_id"] else None
                external_id = cast(str, found.external_id)
                copy.save(
                    state,
                    id=target.checkpoint(external_id),
                    external_id=external_id,
                    kind=found.kind,
                    metadata=found.metadata,
                    force=True,
                    parent=parent if parent is not None and self.vault.find(parent) is not None else None,
                )
                kind = _writes_kind(external_id)
                writes = {(kind, name): value for name, value in source.records(kind).items()}
                if writes:
                    copy.put_records(writes)

    def _remove(self, place: Place, thread: Thread, entries: Sequence[Saved]) -> None:
        if entries:
            thread.remove(*[entry.id for entry in entries])
            self._forget(place)
            kinds = [_writes_kind(cast(str, entry.external_id)) for entry in entries]
            records = {(kind, name): None for kind in kinds for name in thread.records(kind)}
            if records:
                thread.put_records(records)

    # -- both colours --------------------------------------------------------------------------------

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """`put`, awaited."""
        return await self._aio.call(lambda _: self.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, awaited."""
        await self._aio.call(lambda _: self.put_writes(config, writes, task_id, task_path))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, awaited."""
        return await self._aio.call(lambda _: self.get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, awaited page by page."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while page := await self._aio.call(lambda _: list(islice(found, PAGE))):
            for item in page:
                yield item

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, awaited."""
        await self._aio.call(lambda _: self.delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, awaited."""
        await self._aio.call(lambda _: self.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, awaited."""
        await self._aio.call(lambda _: self.copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, awaited."""
        await self._aio.call(lambda _: self.prune(thread_ids, strategy=strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, awaited."""
        return await self._aio.call(lambda _: self.get_delta_channel_history(config=config, channels=channels))

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Whole numbers; where a thread was imported from a stock saver, texts as that saver makes them."""
        if not isinstance(current, str):
            return 1 if current is None else current + 1
        return f"{int(current.split('.')[0]) + 1:032}.{random.random():016}"  # noqa: S311 - LangGraph's form, no secret

    # -- helpers -----------------------------------------------------------------------------------

    def _thread(self, place: Place, foreign: Callable[[str, bytes], Any]) -> Thread:
        return self.vault.thread(place.id, foreign=foreign, child_of=place.parent)

    def _find(self, thread: Thread, place: Place, external_id: str) -> Saved | None:
        try:
            return thread.load(place.checkpoint(external_id))
        except (CheckpointNotFound, ThreadNotFound):
            return None

    def _revive(self, shared: dict[tuple[str, bytes], Any] | None = None) -> Callable[[str, bytes], Any]:
        """How leaves become objects; with `shared`, equal ones become the same object.

        What the serializer can never have written is damage, or an attack, and is not touched.
        """
        loads, own = self.serde.loads_typed, self._own
        ours = self._stock and not cast(JsonPlusSerializer, self.serde).pickle_fallback

        def revive(kind: str, data: bytes) -> Any:
            if ours and kind not in _KINDS:
                raise CorruptionError(
                    f"a stored value claims to be {kind!r}, which this saver never writes; it was not touched"
                )
            found = message(data) if own and kind == "msgpack" else None
            return loads((kind, data)) if found is None else found

        def revive_once(kind: str, data: bytes) -> Any:
            if (kind, data) not in kept:
                kept[kind, data] = revive(kind, data)
            return kept[kind, data]

        kept = {} if shared is None else shared
        return revive if shared is None else revive_once

    def _places(self, config: RunnableConfig | None, *, everything: bool = False) -> Iterator[Place]:
        """The places that a config means: one, all of a thread, or all there are."""
        if config is None:
            for info in self.vault.threads(limit=None):
                yield Place.from_id(info.id)
            return
        place = Place.of(config)
        if "checkpoint_ns" in config["configurable"] and not everything:
            yield place
            return
        root = Place(place.thread_id, "")
        thread = self._thread(root, Foreign)
        children = {Place.from_id(child) for child in thread.records(CHILD)}
        noted = {Place(root.thread_id, name) for name in thread.records(NOTED)}
        yield from sorted(one for one in children | noted if one.thread_id == root.thread_id and one.namespace)
        yield root

    def _remember(self, place: Place, known: Known) -> None:
        self._latest.pop(place, None)
        self._latest[place] = known
        _bound(self._latest)

    def _forget(self, place: Place) -> None:
        self._latest.pop(place, None)
        self._empty.pop(place, None)


def _bound(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)


def _writes_kind(external_id: str) -> str:
    return f"writes {external_id}"


def _is_simple(value: Any) -> bool:
    """Whether LangGraph's serializer and our codec are sure to do the same with a value."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return value is None or type(value) in (bool, float) or (type(value) is str and value.isascii())


def _is_plain(data: bytes) -> bool:
    """Whether encoded data has nothing but what everybody decodes in the same way."""
    try:
        ormsgpack.unpackb(data)
    except ValueError:
        return False
    return True


def _faces(value: Any, before: tuple[int, list[bytes]] | None) -> tuple[int, list[bytes]] | None:
    """The length of a list and a hash of each slice; None for what cannot be compared without serialising it.

    Where it is longer than it was, the slice in which it ended then is hashed as far as it went too, at the end.
    """
    if type(value) is not list:
        return None
    try:
        faces = [_face(value[at : at + SLICE]) for at in range(0, len(value), SLICE)]
        if before is not None and before[0] % SLICE and len(value) > before[0]:
            start = before[0] - before[0] % SLICE
            faces.append(_face(value[start : before[0]]))
    except (TypeError, ormsgpack.MsgpackEncodeError):
        return None
    return len(value), faces


def _grew(before: tuple[int, list[bytes]], after: tuple[int, list[bytes]]) -> bool:
    """Whether a list is what it was, perhaps with more at the end."""
    count, faces = before
    if after[0] < count:
        return False
    whole, rest = divmod(count, SLICE)
    if faces[:whole] != after[1][:whole]:
        return False
    return not rest or faces[whole] == after[1][-1 if after[0] > count else whole]


def _face(items: list[Any]) -> bytes:
    return blake3.blake3(ormsgpack.packb(items, _shown, _EXACT)).digest(length=16)


def _shown(value: Any) -> Any:
    """A model by its class and fields, which is all that LangGraph's serializer keeps of it. TypeError for others."""
    if isinstance(value, BaseModel):
        return [type(value).__module__, type(value).__qualname__, value.__dict__, value.__pydantic_extra__]
    raise TypeError(f"{type(value).__qualname__} has to be serialised to be compared")
