"""Imports the threads of LangGraph's stock SqliteSaver and PostgresSaver into a vault: `import_threads(source, vault)`.

Prints nothing. The source is only read (`_langgraph_sources.py`), each thread as at one moment. No object in it is loaded:
values are copied as the bytes that LangGraph's serializer wrote. Each thread is checked completely before any of it is
saved, saved oldest first, then read back and compared. Existing checkpoints are skipped, so a killed import can be run
again.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, cast

from savegame.adapters._langgraph_details import GraphDetails
from savegame.adapters._langgraph_messages import open_value
from savegame.adapters._langgraph_places import GraphPlace
from savegame.adapters._langgraph_sources import SEALED, OldCheckpoint, ThreadSource, Write, open_source, place_name
from savegame.adapters.langgraph import SavegameSaver
from savegame.checkpoint import Checkpoint as Saved
from savegame.details import Details
from savegame.encoding.foreign import Foreign
from savegame.errors import (
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    InvalidState,
    SavegameError,
    ThreadNotFound,
    UnsupportedError,
)
from savegame.messages.locate import JOIN, SENDS
from savegame.thread import Thread
from savegame.vault import Vault

PHASES: Final = 3
"""Each checkpoint is checked, saved and compared."""

_OF_ONE_THREAD: Final = (CorruptionError, UnsupportedError, ConflictError, InvalidInputError)
"""Errors of one thread, which do not stop the import of the others."""

_Progress = Callable[[int, int], None]


class ImportOutcome(NamedTuple):
    """The result for one thread or subgraph namespace; with an error, do not use it."""

    place: GraphPlace
    checkpoints: int
    new: int
    error: SavegameError | None


def import_threads(
    source: str | os.PathLike[str], vault: Vault, progress: _Progress = lambda done, total: None
) -> Iterator[ImportOutcome]:
    """Import all threads of a SqliteSaver file or of the PostgresSaver database at a postgresql:// address.

    Yields an outcome per thread and namespace. Calls `progress(done, total)`. Raises StoreNotFound or UnsupportedError if
    the source is neither, UnavailableError if it or the vault cannot be read.
    """
    with open_source(source) as old:
        threads = old.threads()
        work = _WorkCounter(PHASES * sum(count for _, count in threads), progress)
        mover = _Mover(old, vault, work)
        for thread_id, expected in threads:
            work.begin(PHASES * expected)
            for place, count in reversed(old.places(thread_id)):  # subgraphs first: what they spent is counted there
                try:
                    outcome = ImportOutcome(place, count, mover.move(place), None)
                except _OF_ONE_THREAD as error:
                    outcome = ImportOutcome(place, count, 0, error)
                yield outcome
        work.begin(0)


class _WorkCounter:
    """Counts the steps of one thread after another, and reports progress. A thread may have grown since it was counted."""

    def __init__(self, total: int, progress: _Progress) -> None:
        self._done = self._goal = 0
        self._total = total
        self._progress = progress

    def begin(self, steps: int) -> None:
        """The next thread, with this number of steps."""
        self._done, self._goal = self._goal, self._goal + steps
        self._progress(self._done, self._total)

    def step(self) -> None:
        self._done = min(self._done + 1, self._goal)
        self._progress(self._done, self._total)


class _Mover:
    """Imports places of a source into a vault."""

    def __init__(self, old: ThreadSource, vault: Vault, work: _WorkCounter) -> None:
        self._old = old
        self._vault = vault
        self._work = work
        self._saver = SavegameSaver(vault, serde=SEALED)
        self._details = GraphDetails()
        self._versions: tuple[GraphPlace, str, Mapping[str, Any]] | None = None
        """The place and id of the checkpoint that was put last, and the versions of its channels."""

    def move(self, place: GraphPlace) -> int:
        """Import one place and compare it. Returns the number of new checkpoints."""
        thread = self._vault.thread(
            place.id, foreign=lambda kind, data: SEALED.loads_typed((kind, data)), child_of=place.parent
        )
        wanted = self._old.ids(place)
        saved = [entry.external_id for entry in thread.history(branches=True)]
        gone_on = bool(saved) and saved[0] not in wanted  # what is only older was pruned in the source
        there = set(saved)
        new = [external_id for external_id in wanted if external_id not in there]
        if new and (gone_on or new != wanted[-len(new) :]):
            raise ConflictError(
                f"{self._old.name}: {place_name(place)}: the vault and the old {self._old.kind} have diverged "
                f"(continued or pruned in the vault, and continued in the {self._old.kind}); import into another store"
            )
        for external_id in new:
            self._old.read(place, external_id)  # so that a thread with a damaged row is not imported at all
            self._work.step()
        for external_id in new:
            try:
                self._put(thread, place, external_id, there)
            except InvalidState as error:
                raise UnsupportedError(f"{self._old.name}: {place_name(place, external_id)}: {error}") from error
            there.add(external_id)
            self._work.step()
        self._compare(place, set(wanted), set(wanted) - set(new), gone_on=gone_on)
        return len(new)

    def _put(self, thread: Thread, place: GraphPlace, external_id: str, there: set[str | None]) -> None:
        """Save a checkpoint after its writes, so that an existing checkpoint has all of them."""
        found = self._old.read(place, external_id)
        self._put_writes(place, external_id, found.writes)
        details: Details = {
            "external_id": external_id,
            "metadata": found.metadata,
            "created_at": _time_of(found.checkpoint),
            **self._described(place, external_id, found),
        }
        parent = place.checkpoint(found.parent) if found.parent and found.parent in there else None
        thread.save(self._state(place, found), id=place.checkpoint(external_id), parent=parent, force=True, **details)

    def _described(self, place: GraphPlace, external_id: str, found: OldCheckpoint) -> Details:
        """The kind, status, tokens and cost that the saver would have written, read without loading objects."""
        values, versions = found.checkpoint["channel_values"], found.checkpoint["channel_versions"]
        before = self._versions[2] if self._versions is not None and self._versions[:2] == (place, found.parent) else {}
        changed = {name for name in values if name not in before or before[name] != versions.get(name)}
        opened = {name for name in values if name in changed or name == SENDS or name.startswith(JOIN)}
        shown = {name: _open(value) if name in opened else value for name, value in values.items()}
        checkpoint = cast(Any, {**found.checkpoint, "channel_values": shown})
        self._versions = place, external_id, versions
        load = partial(self._shown, place, found.parent)
        return self._details.of(place, found.parent, checkpoint, cast(Any, found.metadata), changed, load)

    def _shown(self, place: GraphPlace, external_id: str | None) -> Saved | None:
        """A checkpoint that was imported before, as the details need it."""
        thread = self._vault.thread(place.id, foreign=_open_leaf, child_of=place.parent)
        try:
            return None if external_id is None else thread.load(place.checkpoint(external_id))
        except (CheckpointNotFound, ThreadNotFound):  # the source has pruned it
            return None

    def _state(self, place: GraphPlace, found: OldCheckpoint) -> dict[str, Any]:
        """The state of a checkpoint. Large numbers, which PostgresSaver stores as JSON, are no values of the serializer."""
        values = found.checkpoint["channel_values"]
        large = {channel: value for channel, value in values.items() if type(value) is int and not -(2**63) <= value < 2**64}
        others = {channel: value for channel, value in values.items() if channel not in large}
        state = self._saver.full_state(place, found.parent, cast(Any, {**found.checkpoint, "channel_values": others}), {})
        state["channel_values"] |= large
        return state

    def _put_writes(self, place: GraphPlace, external_id: str, writes: list[Write]) -> None:
        """Put the writes of each task with their old numbers.

        A saver numbers writes by their position, but stores special ones under negative numbers. So each missing number
        belonged to a special write, and any of these can fill the gap.
        """
        config = place.config(external_id)
        for (path, task), group in groupby(writes, key=lambda write: (write.task_path, write.task_id)):
            numbered = {write.number: (write.channel, write.value) for write in group}
            special = [write for number, write in numbered.items() if number < 0]
            last = max(numbered)
            if special:
                self._saver.put_writes(config, special, task, path)
            if last >= 0:
                filled = [numbered.get(number, special[0] if special else None) for number in range(last + 1)]
                self._saver.put_writes(config, [write for write in filled if write is not None], task, path)

    def _compare(self, place: GraphPlace, wanted: set[str], before: set[str], *, gone_on: bool) -> None:
        """Read everything back as a graph would. Raises CorruptionError for the first checkpoint that differs."""
        left = set(wanted)
        for found in self._saver.list(place.config(None)):
            external_id = found.checkpoint["id"]
            if external_id not in left:
                continue
            left.discard(external_id)
            old = self._old.read(place, external_id)
            parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
            pruned = external_id in before and old.parent is None and parent not in wanted
            pairs: list[tuple[str, Any, Any]] = [
                ("the metadata", old.metadata, dict(found.metadata)),
                ("the parent", parent if pruned else old.parent, parent),
                *((key, old.checkpoint.get(key), value) for key, value in found.checkpoint.items()),
                ("its parts", sorted(old.checkpoint), sorted(found.checkpoint)),
            ]
            differs = [what for what, a, b in pairs if not _same(a, b)]
            writes = [[write.task_id, write.channel, write.value] for write in old.writes if write.number >= 0 or not gone_on]
            if not gone_on and external_id in before and not _among(writes, found.pending_writes, more=True):
                self._put_writes(place, external_id, old.writes)  # the source has new writes since the last import
                found = self._saver.get_tuple(found.config) or found
            if not _among(writes, found.pending_writes, more=external_id in before):
                differs.append("the pending writes")
            if differs:
                raise CorruptionError(
                    f"{place_name(place, external_id)}: the imported checkpoint differs from {self._old.name} in "
                    f"{', '.join(differs)}; do not use this thread of the vault, and import into another store"
                )
            self._work.step()
        if left:
            raise CorruptionError(f"{place_name(place, min(left))}: cannot be read back; import into another store")


def _open(value: Any) -> Any:
    """What the details of a checkpoint depend on in a sealed value."""
    return value if isinstance(value, int) else _open_leaf(*SEALED.dumps_typed(value))


def _open_leaf(kind: str, data: bytes) -> Any:
    return open_value(data) if kind == "msgpack" else Foreign(kind, data)


def _time_of(checkpoint: Mapping[str, Any]) -> dt.datetime | None:
    """When LangGraph made a checkpoint; None if the time or its zone is unknown."""
    try:
        time = dt.datetime.fromisoformat(checkpoint["ts"])
        return time.astimezone(dt.UTC) if time.tzinfo is not None else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _among(wanted: Sequence[Any], found: Sequence[Any] | None, *, more: bool) -> bool:
    """Whether all wanted writes were found, in order; with `more`, others may be between them."""
    found = found or ()
    if not more and len(wanted) != len(found):
        return False
    rest = iter(found)
    return all(any(_same(write, list(other)) for other in rest) for write in wanted)


def _same(a: Any, b: Any) -> bool:
    """Whether two sealed values are equal and of the same types; the order of dict keys does not matter."""
    try:
        if SEALED.dumps_typed(a) == SEALED.dumps_typed(b):
            return True
    except TypeError:  # whole numbers of more than 64 bits, in JSON
        pass
    if type(a) is not type(b):
        return False
    if type(a) is dict:
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if type(a) is list:
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is int and a == b
