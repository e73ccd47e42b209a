"""What listings say of LangGraph's checkpoints: which nodes made one, whether the graph has ended, what it spent.

All of it comes from what LangGraph passes to `put` and from what was put before, so it costs no write; a read only if another
process made the checkpoint before. Details of the newest checkpoint of each place are remembered: a retry gets the same ones.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage

from savegame.adapters._langgraph_places import GraphPlace
from savegame.checkpoint import Checkpoint as Saved
from savegame.details import Details
from savegame.messages.locate import BRANCH, JOIN, SENDS, START
from savegame.model import MAX_KIND, Kind
from savegame.runs.interrupts import INTERRUPT

if TYPE_CHECKING:
    from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

PLACES: Final = 1024
"""How many places, and threads, are remembered."""

_GIVEN: Final = ("input", "fork", START)
"""Kinds of checkpoints whose messages the graph did not make."""


class _Last(NamedTuple):
    """The newest checkpoint of a place: the nodes that had run, those that will by `Send`, and what was said of it."""

    id: str
    seen: dict[str, dict[str, Any]]
    sends: tuple[str, ...]
    messages: set[str]
    """All that were there so far."""
    ends: dict[str, tuple[int, str]]
    """The length of each list of messages, and the id of its last one: a list that only grew is read from there."""
    details: Details


_UNKNOWN: Final[Details] = {}
"""The details of checkpoints that this process did not put."""


class GraphDetails:
    """The details of the checkpoints that one saver puts. Thread-safe."""

    def __init__(self) -> None:
        self._last: OrderedDict[GraphPlace, _Last] = OrderedDict()
        self._counted: OrderedDict[str, set[str]] = OrderedDict()
        """Messages by thread with its subgraphs: those that a subgraph returns were counted there."""
        self._lock = threading.Lock()

    def of(
        self,
        place: GraphPlace,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        changed: Collection[str],
        load: Callable[[], Saved | None],
    ) -> Details:
        """The kind, status, tokens and cost of a checkpoint with these `changed` channels; `load` loads its parent."""
        values = checkpoint["channel_values"]
        last = self._last.get(place)
        if last is not None and last.id == checkpoint["id"]:
            return last.details
        if last is None or last.id != parent:
            changed, last = values.keys(), _last(load() if metadata.get("source") not in _GIVEN else None)
        kind = _kind(metadata.get("source"), checkpoint, last)
        details: Details = {"kind": kind}
        if kind != "input" and has_ended(checkpoint):
            details["status"] = "completed"
        present = dict(_answers({channel: values[channel] for channel in changed if channel in values}, last.ends))
        with self._lock:
            counted = self._counted.setdefault(place.thread_id, set())
            if last.details is _UNKNOWN:  # another process put it, and whatever it has was counted then
                counted |= last.messages
            new = present.keys() - last.messages - counted if kind not in _GIVEN else set()
            counted |= new
            details |= _spent([present[one] for one in new])
            last.messages.update(present)
            copied = {node: dict(versions) for node, versions in checkpoint["versions_seen"].items()}
            self._last[place] = _Last(checkpoint["id"], copied, _sends(values), last.messages, last.ends, details)
            self._last.move_to_end(place)
            self._counted.move_to_end(place.thread_id)
            for kept in (self._last, self._counted):
                while len(kept) > PLACES:
                    kept.popitem(last=False)
        return details


def _last(found: Saved | None) -> _Last:
    """What is to know of a checkpoint that was not put here, or that is missing."""
    if found is None:
        return _Last("", {}, (), set(), {}, _UNKNOWN)
    values, ends = found.state["channel_values"], dict[str, tuple[int, str]]()
    messages = set(dict(_answers(values, ends)))
    return _Last(found.external_id or "", found.state["versions_seen"], _sends(values), messages, ends, _UNKNOWN)


def _kind(source: str | None, checkpoint: Checkpoint, before: _Last) -> str:
    """The source of a checkpoint, or the nodes that ran since the one before."""
    if source != "loop":
        return source or Kind.ITERATION
    seen = checkpoint["versions_seen"].items()
    ran = [node for node, versions in seen if versions and versions != before.seen.get(node) and node != INTERRUPT]
    names = list(dict.fromkeys([*ran, *before.sends]))
    text = "+".join([name for name in names if name != START] or names) or Kind.ITERATION
    return text if len(text) <= MAX_KIND else f"{text[: MAX_KIND - 1]}…"


def _sends(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The nodes that a checkpoint's `Send`s start."""
    found = values.get(SENDS)
    return tuple(one.node for one in found if hasattr(one, "node")) if isinstance(found, list) else ()


def has_ended(checkpoint: Checkpoint) -> bool:
    """Whether no node is to run next, as far as a checkpoint tells: False for graphs that trigger nodes by other channels."""
    if any(_triggers(channel, value) for channel, value in checkpoint["channel_values"].items()):
        return False
    triggers = {channel for node, seen in checkpoint["versions_seen"].items() if node != INTERRUPT for channel in seen}
    return bool(triggers) and all(channel == START or channel.startswith((BRANCH, JOIN)) for channel in triggers)


def _triggers(channel: str, value: Any) -> bool:
    """Whether a channel that has a value starts a node."""
    if channel.startswith(JOIN):  # it has the names of the nodes that came so far; with `defer`, and something else
        came = value[0] if isinstance(value, tuple | list) and value else value
        awaited = channel.removeprefix(JOIN).rpartition(":")[0]
        return isinstance(came, (set, frozenset)) and len("+".join(map(str, came))) == len(awaited)
    return channel == START or channel.startswith(BRANCH) or (channel == SENDS and bool(value))


def _answers(values: Mapping[str, Any], ends: dict[str, tuple[int, str]]) -> Iterator[tuple[str, AIMessage]]:
    """The messages in lists that say what they used, each with an id, or its place if it has none; updates `ends`."""
    for channel, value in values.items():
        if type(value) is list and value:
            count, last = ends.pop(channel, (0, ""))
            start = count if 0 < count <= len(value) and getattr(value[count - 1], "id", None) == last else 0
            for place, item in enumerate(value[start:], start):
                if isinstance(item, AIMessage) and item.usage_metadata is not None:
                    yield item.id or f"{channel} {place}", item
            if isinstance(value[-1], BaseMessage) and value[-1].id:
                ends[channel] = (len(value), value[-1].id)


def _spent(messages: Collection[AIMessage]) -> Details:
    """The tokens and cost of messages, where they are known."""
    tokens = [found for message in messages for found in _numbers(message.usage_metadata, "total_tokens")]
    costs = [cost for message in messages for cost in _costs(message)]
    spent: Details = {"tokens_used": int(sum(tokens))} if tokens else {}
    return spent | {"cost": math.fsum(costs)} if costs else spent


def _costs(message: AIMessage) -> list[float]:
    """The cost of a message, which some providers write beside the tokens; at most one."""
    beside = message.response_metadata
    places = (message.usage_metadata, beside, beside.get("token_usage"), beside.get("usage"))
    return [cost for place in places for name in ("cost", "total_cost") for cost in _numbers(place, name)][:1]


def _numbers(place: Any, name: str) -> list[float]:
    """A number of a mapping that can be stored, if it is there."""
    found = place.get(name) if isinstance(place, Mapping) else None
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return []
    return [found] if 0 <= found < 2**53 else []  # which is false for NaN
