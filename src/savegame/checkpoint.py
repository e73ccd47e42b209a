"""Checkpoint: the public form of one point of a thread, with its state or a way to load it; and its JSON form.

Checkpoints leave Python only in the form of `to_dict`, including `--json` of the command line. Values that JSON cannot express
are written as in the file store's journals: `{"$datetime": ...}`. Touches text, codec, frames, model, plain.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from savegame.details import CHECKS as DETAIL_CHECKS
from savegame.encoding.codec import Codec
from savegame.encoding.frames import PLAIN
from savegame.encoding.json_form import from_text, to_text
from savegame.encoding.plain import checked_mapping, checked_texts, checked_time, maybe
from savegame.errors import CorruptionError, InvalidInputError
from savegame.model import CheckpointId, Digest, Kind, Status, checked_id, checked_number, checked_text


class _State(Enum):
    """Placeholders for a state that was not decoded or loaded."""

    UNLOADED = 1


class Source(NamedTuple):
    """Where the state of a checkpoint comes from: how to load it, how to decode it once loaded, and the vault's codec."""

    load: Callable[[], Any] | None = None
    decode: Callable[[], Any] | None = None
    codec: Codec | None = None


class _Private:
    """The private part of a checkpoint, kept out of its fields so that `dataclasses` neither lists nor copies it."""

    __slots__ = ("_fields", "_source", "_state")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint(_Private):
    """An immutable point in a thread. `state` is available after load, latest or a save; otherwise call `load()`."""

    id: CheckpointId
    thread_id: str
    agent_id: str | None
    parent_id: CheckpointId | None
    seq: int
    step: int
    created_at: dt.datetime
    size_bytes: int
    digest: Digest
    iteration: int | None = None
    label: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    kind: str = Kind.MANUAL
    status: Status = field(default_factory=lambda: Status("in_progress"))
    tokens_used: int | None = None
    cost: float | None = None
    resume_hint: str | None = None
    forked_from: str | None = None
    external_id: str | None = None
    skipped: tuple[str, ...] = ()

    @classmethod
    def later(cls, fields: Callable[[], tuple[dict[str, Any], Source]]) -> Checkpoint:
        """A checkpoint whose fields are computed at the first access: most results of saves are never read."""
        checkpoint = object.__new__(cls)
        _set_fields(checkpoint, fields)
        return checkpoint

    def __getattr__(self, name: str) -> Any:
        if name == "_fields":
            return None
        if name not in _SLOTS:
            raise AttributeError(f"a Checkpoint has no attribute {name!r}")
        work_out = self._fields  # another thread may do the same
        if work_out is not None:
            given, source = work_out()
            whole = Checkpoint(**given)
            for slot in Checkpoint.__slots__:
                object.__setattr__(self, slot, getattr(whole, slot))
            object.__setattr__(self, "_source", source)
            object.__setattr__(self, "_fields", None)
            return getattr(self, name)
        if name in _UNSET:
            return _UNSET[name]
        return object.__getattribute__(self, name)  # which raises

    @property
    def state(self) -> Any:
        """The whole state at this point."""
        if self._state is _State.UNLOADED:
            if self._source.decode is None:
                if self._source.load:
                    raise InvalidInputError(f"checkpoint {self.id} came from a listing without its state; call .load() on it")
                raise InvalidInputError(f"checkpoint {self.id} came without its state; load it from its vault, by its id")
            found = self._source.decode()
            if self._state is _State.UNLOADED:  # else another thread was quicker: there is one state
                object.__setattr__(self, "_state", found)
        return self._state

    def load(self) -> Checkpoint:
        """This checkpoint with its state."""
        if self._source.decode is not None or self._source.load is None:
            return self
        loaded: Checkpoint = self._source.load()
        return loaded

    def _changed(self, state: Any = _State.UNLOADED, source: Source | None = None, **changes: Any) -> Checkpoint:
        """The same checkpoint with other fields, and the same state or a given one."""
        checkpoint = replace(self, **changes)
        object.__setattr__(checkpoint, "_source", self._source if source is None else source)
        object.__setattr__(checkpoint, "_state", self._state if state is _State.UNLOADED else state)
        return checkpoint

    def skipping(self, damaged: Iterable[str]) -> Checkpoint:
        """The same checkpoint, loaded instead of damaged ones with these ids."""
        return self._changed(skipped=tuple(damaged))

    def to_dict(self, state: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - the design's signature
        """This checkpoint as data for `json.dumps` and `from_dict`; with `state`, includes the state.

        Times are ISO 8601 text in UTC. Raises InvalidInputError if the state is requested but was not loaded.
        """
        codec = self._source.codec or Codec()
        written = {"metadata": value_to_json(codec, dict(self.metadata)), "reason": self.status.reason}
        found = {name: written[name] if name in written else _plain(getattr(self, name)) for name in _SHAPE}
        return {**found, "state": value_to_json(codec, self.state)} if state else found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, codec: Codec | None = None) -> Checkpoint:
        """Read what `to_dict` returned, also after a round trip through JSON. Unknown fields are ignored.

        Objects are restored if the `codec` of a vault knows their class (`codec=vault.codec`), else they become plain data.
        Raises InvalidInputError naming the field that is missing or wrong.
        """
        if not isinstance(data, Mapping):
            raise InvalidInputError(f"a Checkpoint is read from a dict, not from {type(data).__name__}")
        missing = [name for name in _REQUIRED if data.get(name) is None]
        if missing:
            raise InvalidInputError(f"{missing[0]} is missing")
        given: dict[str, Any] = {"agent_id": None, "parent_id": None}
        given |= {name: check(data[name], name) for name, check in _CHECKS.items() if data.get(name) is not None}
        given["status"] = _checked_status(data.get("status", "in_progress"), data.get("reason"))
        codec = codec or Codec()
        if data.get("metadata") is not None:
            given["metadata"] = checked_mapping(_value_at(codec, data, "metadata"), "metadata")
        checkpoint = cls(**given)
        object.__setattr__(checkpoint, "_source", Source(codec=codec))
        if "state" in data:
            object.__setattr__(checkpoint, "_state", _value_at(codec, data, "state"))
        return checkpoint

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return (self.thread_id, self.id, self.digest) == (other.thread_id, other.id, other.digest)

    def __hash__(self) -> int:
        return hash((self.thread_id, self.id))

    def __copy__(self) -> Checkpoint:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Checkpoint:
        return self._changed(deepcopy(self._state, memo), metadata=deepcopy(self.metadata, memo))

    def __getstate__(self) -> dict[str, Any]:
        """The pickled part: the fields, and the state if there is one, without the connection to the vault."""
        state = self._state if self._source.decode is None else self.state
        return {**{item.name: getattr(self, item.name) for item in fields(self)}, "_state": state}

    def __setstate__(self, stored: dict[str, Any] | list[Any]) -> None:
        if isinstance(stored, list):  # earlier versions: these fields, in this order, and sometimes more around the state
            state = stored[_LISTED if len(stored) == _LISTED + 1 else _LISTED + 2]
            stored = dict(zip(Checkpoint.__slots__, stored[:_LISTED], strict=False)) | {"_state": state}
        whole = Checkpoint(**{name: value for name, value in stored.items() if name in Checkpoint.__slots__})
        for slot in Checkpoint.__slots__:
            object.__setattr__(self, slot, getattr(whole, slot))
        object.__setattr__(self, "_state", stored["_state"])

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        return f"<Checkpoint {self.id[:12]}{name} step {self.step} of {self.thread_id!r}>"


_LISTED: Final = 22
"""The number of fields in pickles of earlier versions: new ones come after these."""

_SLOTS: Final = frozenset((*Checkpoint.__slots__, *_Private.__slots__))
_UNSET: Final = {"_source": Source(), "_state": _State.UNLOADED}
"""The private part of a checkpoint that was made by hand."""

_set_fields: Final = _Private.__dict__["_fields"].__set__  # past __setattr__, which refuses; every save calls it

# -- JSON ------------------------------------------------------------------------------------------

_FIRST: Final = (
    "id", "thread_id", "agent_id", "parent_id", "seq", "step", "iteration", "created_at", "label", "description", "tags",
    "metadata", "kind", "status", "reason", "tokens_used", "cost", "resume_hint", "size_bytes", "digest", "forked_from",
    "external_id",
)  # fmt: skip
_SHAPE: Final = tuple(dict.fromkeys((*_FIRST, *(name for name in Checkpoint.__slots__ if name != "skipped"))))
"""The fields of the JSON form, in their order: all but `skipped`. `reason` is that of the status."""

_REQUIRED: Final = ("id", "thread_id", "seq", "step", "created_at", "size_bytes", "digest")


def value_to_json(codec: Codec, value: Any) -> Any:
    """A value of a state as JSON; a value that JSON cannot express becomes a dict with one key that starts with `$`."""
    return to_text("value", PLAIN + codec.encode(value))["value"]


def _value_at(codec: Codec, data: Mapping[str, Any], name: str) -> Any:
    """The inverse of `value_to_json`. Raises InvalidInputError for JSON that it cannot have returned."""
    try:
        return codec.decode(from_text("value", {"value": data[name]})[len(PLAIN) :])
    except CorruptionError as error:
        raise InvalidInputError(f"{name} is not as to_dict writes it: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str.__str__(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value


def _checked_digest(value: Any, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise InvalidInputError(f"{name} must be 64 hexadecimal digits, not {value!r}")
    return value


def _checked_status(name: Any, reason: Any) -> Status:
    try:
        return Status(name, maybe(checked_text, reason, "reason"))
    except InvalidInputError as error:
        raise InvalidInputError(f"status: {error}") from error


def _checked_kind(value: Any, name: str) -> str:
    return Kind.of(value)


def _checked_tags(value: Any, name: str) -> tuple[str, ...]:
    return tuple(checked_texts(value, name, checked_id))


_CHECKS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    **dict.fromkeys(("id", "thread_id", "agent_id", "parent_id", "label", "forked_from"), checked_id),
    **dict.fromkeys(("seq", "step", "size_bytes"), checked_number),
    **DETAIL_CHECKS,
    "created_at": checked_time,
    "digest": _checked_digest,
    "kind": _checked_kind,
    "tags": _checked_tags,
}
