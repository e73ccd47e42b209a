"""A vault as plain dicts, the model of the state machine, without deltas, stores or bytes.

`same` compares values exactly: 1, 1.0 and True differ, NaN equals NaN, and the order of dict keys counts.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import zoneinfo
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

UNKNOWN: Final = "\0unknown"
"""The expectation of a handle that has not read, saved or moved a head yet."""


class Misfit(Exception):
    """An update that does not fit the state."""


# -- exact equality --------------------------------------------------------------------------------


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal and of the same types, all the way down."""
    return bool(shape(left) == shape(right))


def shape(value: Any) -> Any:
    """A value as nested tuples of type names and texts, equal only for exactly equal values."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind is dict:
        return name, [(shape(key), shape(item)) for key, item in value.items()]
    if kind in (list, tuple):
        return name, [shape(item) for item in value]
    if kind in (set, frozenset):
        return name, sorted((shape(item) for item in value), key=repr)
    if kind in (dt.datetime, dt.time):
        return name, value.replace(tzinfo=None).isoformat(), value.fold, _zone_shape(value.tzinfo)
    if kind is decimal.Decimal:
        return name, str(value.as_tuple())
    return name, repr(value)


def _zone_shape(zone: dt.tzinfo | None) -> Any:
    if isinstance(zone, zoneinfo.ZoneInfo):
        return "zone", zone.key
    return type(zone).__qualname__, None if zone is None else zone.utcoffset(None)


# -- the model -------------------------------------------------------------------------------------


@dataclass(slots=True)
class ModelCheckpoint:
    """A checkpoint: `details` are the keywords of its save, `base` the nearest ancestor that still exists."""

    id: str
    parent_id: str | None
    base: str | None
    step: int
    state: Any
    details: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    tags: tuple[str, ...] = ()
    agent: str | None = None
    forked_from: str | None = None


@dataclass(slots=True)
class ModelThread:
    """Checkpoints by id, oldest first, and the head."""

    checkpoints: dict[str, ModelCheckpoint] = field(default_factory=dict)
    head: str | None = None

    def line(self, start: str | None = None) -> Iterator[ModelCheckpoint]:
        """A checkpoint (by default the head) and its ancestors, newest first."""
        at = self.head if start is None else start
        while at is not None:
            yield self.checkpoints[at]
            at = self.checkpoints[at].base

    def newest(self) -> list[ModelCheckpoint]:
        """All checkpoints, newest first."""
        return list(reversed(self.checkpoints.values()))

    def labelled(self, label: str) -> ModelCheckpoint | None:
        """The newest checkpoint with a label."""
        return next((point for point in self.newest() if point.label == label), None)


class ModelVault:
    """Threads by id. A thread without a checkpoint does not exist."""

    def __init__(self) -> None:
        self.threads: dict[str, ModelThread] = {}

    def thread(self, thread_id: str) -> ModelThread:
        """A thread, or an empty one, which is not added."""
        return self.threads.get(thread_id) or ModelThread()

    def owner(self, checkpoint_id: str) -> str | None:
        """The thread of a checkpoint."""
        return next((name for name, thread in self.threads.items() if checkpoint_id in thread.checkpoints), None)

    def save(
        self,
        thread_id: str,
        checkpoint_id: str,
        state: Any,
        *,
        parent: str | None = None,
        details: dict[str, Any] | None = None,
        agent: str | None = None,
    ) -> ModelCheckpoint:
        """Add a checkpoint on top of the head, or of `parent`, and make it the head."""
        thread = self.threads.setdefault(thread_id, ModelThread())
        base = parent or thread.head
        rest = dict(details or {})
        checkpoint = ModelCheckpoint(
            checkpoint_id,
            base,
            base,
            thread.checkpoints[base].step + 1 if base else 1,
            copy.deepcopy(state),
            rest,
            rest.pop("label", None),
            tuple(dict.fromkeys(rest.pop("tags", ()))),
            agent or (thread.checkpoints[base].agent if base else None),
        )
        thread.checkpoints[checkpoint_id] = checkpoint
        thread.head = checkpoint_id
        return checkpoint

    def rewind(self, thread_id: str, checkpoint_id: str, *, discard: bool) -> None:
        """Move the head; with `discard` only the new head and its ancestors stay."""
        thread = self.threads[thread_id]
        thread.head = checkpoint_id
        if discard:
            line = {point.id for point in thread.line()}
            thread.checkpoints = {name: point for name, point in thread.checkpoints.items() if name in line}

    def fork(self, thread_id: str, checkpoint_id: str, new_thread: str, new_id: str) -> None:
        """Start a new thread with a copy of a checkpoint."""
        source = self.threads[thread_id].checkpoints[checkpoint_id]
        begin = replace(source, id=new_id, parent_id=source.id, base=None, step=1, forked_from=thread_id)
        self.threads[new_thread] = ModelThread({new_id: begin}, new_id)

    def prune(self, thread_id: str, keep: int, *, include_labelled: bool) -> int:
        """Remove all but the newest `keep`, the head and, unless included, the labelled ones."""
        thread = self.thread(thread_id)
        spared = {point.id for point in thread.newest()[:keep]} | {thread.head}
        if not include_labelled:
            spared |= {point.id for point in thread.checkpoints.values() if point.label is not None}
        removed = len(thread.checkpoints.keys() - spared)
        for point in thread.checkpoints.values():
            while point.base is not None and point.base not in spared:
                point.base = thread.checkpoints[point.base].base
        thread.checkpoints = {name: point for name, point in thread.checkpoints.items() if name in spared}
        return removed

    def delete(self, thread_id: str) -> bool:
        """Delete a thread. Returns whether it existed."""
        return self.threads.pop(thread_id, None) is not None


def apply_update(
    state: Any, *, set_: dict[tuple[Any, ...], Any], append: dict[tuple[Any, ...], list[Any]], delete: Iterable[tuple[Any, ...]]
) -> Any:
    """A copy of a state after an update: sets, then appends, then deletes; creates missing dicts. Raises Misfit."""
    delete = list(delete)
    if any(path in set_ or path in append for path in delete):
        raise Misfit
    result = _apart(state)
    for path, value in set_.items():
        parent = _container(result, path, make=True)
        if type(parent) is list and path[-1] not in range(len(parent)):
            raise Misfit
        parent[path[-1]] = _apart(value)
    for path, items in append.items():
        parent = _container(result, path, make=True)
        if type(parent) is dict:
            parent.setdefault(path[-1], [])
        elif path[-1] not in range(len(parent)):
            raise Misfit
        if type(parent[path[-1]]) is not list:
            raise Misfit
        parent[path[-1]].extend(_apart(items))
    for path in delete:
        parent = _container(result, path)
        if path[-1] not in (parent if type(parent) is dict else range(len(parent))):
            raise Misfit
        del parent[path[-1]]
    return result


def _apart(value: Any) -> Any:
    """A copy in which no dict or list occurs twice: stored states have no shared objects."""
    if type(value) is dict:
        return {key: _apart(item) for key, item in value.items()}
    return [_apart(item) for item in value] if type(value) is list else copy.deepcopy(value)


def _container(state: Any, path: tuple[Any, ...], *, make: bool = False) -> Any:
    for part in path[:-1]:
        if make and type(state) is dict:
            state.setdefault(part, {})
        if (type(state) is dict and part in state) or (type(state) is list and part in range(len(state))):
            state = state[part]
        else:
            raise Misfit
    if type(state) not in (dict, list):
        raise Misfit
    return state
