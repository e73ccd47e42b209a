"""The details of a checkpoint besides its state: the list, their checks, and the draft that a save builds from them.

`Details` is the one list. A new detail is a line there, with its check; a line at the end of `Meta`, which is stored; and one
at the end of `Checkpoint`, which is public. Touches codec, frames, model, plain, errors.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypedDict, get_args, get_type_hints

from savegame.encoding.codec import Codec
from savegame.encoding.frames import dump_note
from savegame.encoding.plain import checked_time, maybe
from savegame.errors import InvalidInputError
from savegame.model import Kind, Status, checked_id, checked_number, checked_text


def checked_cost(cost: Any, name: str) -> float:
    """A cost that can be stored."""
    return float(checked_number(cost, name, whole=False))


def checked_created_at(created_at: Any, _: str) -> dt.datetime:
    """A time with a time zone. Raises InvalidInputError."""
    if not isinstance(created_at, dt.datetime) or created_at.utcoffset() is None:
        raise InvalidInputError(
            f"created_at must be a datetime with a time zone, for example datetime(2026, 1, 31, tzinfo=timezone.utc), "
            f"not {created_at!r}"
        )
    return checked_time(created_at, "created_at")


def checked_label(label: str | None) -> str | None:
    """A label that can be stored, or None."""
    return None if label is None else checked_id(label, "a label")


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags that can be stored, each once."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidInputError(f"tags must be a list of texts, not {tags!r}")
    return tuple(dict.fromkeys(checked_id(tag, "a tag") for tag in tags))


class Details(TypedDict, total=False):
    """The details of a checkpoint besides its state: optional keyword arguments of `save` and `update`."""

    label: str | None
    tags: Iterable[str]
    metadata: Mapping[str, Any] | None
    kind: str
    status: str
    iteration: Annotated[int | None, checked_number]
    tokens_used: Annotated[int | None, checked_number]
    cost: Annotated[float | None, checked_cost]
    description: Annotated[str | None, checked_text]
    resume_hint: Annotated[str | None, checked_text]
    external_id: Annotated[str | None, checked_text]
    created_at: Annotated[dt.datetime | None, checked_created_at]


Check = Callable[[Any, str], Any]
_HINTS: Final = get_type_hints(Details, include_extras=True)
CHECKS: Final[Mapping[str, Check]] = {name: get_args(hint)[1] for name, hint in _HINTS.items() if hasattr(hint, "__metadata__")}
"""The check of each detail that has one of its own, by name."""

EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)
MICROSECOND: Final = dt.timedelta(microseconds=1)


class Draft(NamedTuple):
    """The checked details of a save, by the names of Meta. Without an id the checkpoint gets a new one."""

    details: dict[str, Any]
    id: str | None = None
    note: bytes | None = None


def draft(codec: Codec, agent: str | None, given_id: str | None, details: Details) -> Draft:
    """Check the details of a save. Raises InvalidInputError naming an invalid detail, TypeError for an unknown one."""
    stored: dict[str, Any] = {} if agent is None else {"agent_id": agent}
    id = None if given_id is None else checked_id(given_id, "a checkpoint's id")  # noqa: A001 - one word per idea
    if not details:
        return Draft(stored, id)
    unknown = details.keys() - _HINTS.keys()
    if unknown:
        raise TypeError(f"a checkpoint has no detail {min(unknown)!r}; it has {', '.join(_HINTS)}")
    if "kind" in details:
        stored["kind"] = str(Kind.of(details["kind"]))
    if "status" in details:
        status = Status(details["status"])
        stored["status"] = str.__str__(status)
        stored["reason"] = maybe(checked_text, status.reason, "the reason of a status")
    for name, value in details.items():
        if value is not None and name in CHECKS:
            stored[name] = CHECKS[name](value, name)
    if "created_at" in stored:
        stored["created_us"] = int((stored.pop("created_at") - EPOCH) // MICROSECOND)
    metadata = details.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInputError(f"metadata must be a dict, not {type(metadata).__name__}")
    if metadata:
        stored["metadata"] = codec.encode(dict(metadata), ("metadata",))
    label, tags = checked_label(details.get("label")), checked_tags(() if details.get("tags") is None else details["tags"])
    return Draft(stored, id, dump_note(label, tags))
