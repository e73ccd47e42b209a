"""What a save says besides the state: its details are checked here, before anything is written.

Touches engine, frames, model, plain, errors.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from savegame.encoding.frames import dump_note
from savegame.encoding.plain import checked_text, checked_time, maybe
from savegame.errors import InvalidInputError
from savegame.model import IN_PROGRESS, Kind, Status, checked_id, checked_number
from savegame.timeline.engine import Draft, Engine


def drafted(
    engine: Engine,
    agent: str | None,
    given_id: str | None,
    label: str | None,
    tags: Iterable[str],
    description: str | None,
    metadata: Mapping[str, Any] | None,
    kind: str,
    status: str,
    iteration: int | None,
    tokens_used: int | None,
    cost: float | None,
    resume_hint: str | None,
    external_id: str | None = None,
    created_at: dt.datetime | None = None,
) -> Draft:
    """What a save says besides the state. Raises InvalidInputError naming the detail that does not fit."""
    details: dict[str, Any] = {}
    if agent is not None:
        details["agent_id"] = agent
    if kind is not Kind.MANUAL:
        details["kind"] = str(Kind.of(kind))
    if status is not IN_PROGRESS:
        outcome = Status(status)
        details["status"] = str.__str__(outcome)
        details["reason"] = maybe(checked_text, outcome.reason, "the reason of a status")
    said = {
        "iteration": iteration,
        "tokens_used": tokens_used,
        "cost": cost,
        "description": description,
        "resume_hint": resume_hint,
        "external_id": external_id,
        "created_us": created_at,
    }
    details |= {name: _CHECKS[name](value, name) for name, value in said.items() if value is not None}
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInputError(f"metadata must be a dict, not {type(metadata).__name__}")
    if metadata:
        details["metadata"] = engine.codec.encode(dict(metadata), ("metadata",))
    note = dump_note(checked_label(label), checked_tags(tags)) if label is not None or tags else None
    return Draft(details, None if given_id is None else checked_id(given_id, "a checkpoint's id"), note)


def _checked_cost(cost: Any, name: str) -> float:
    return float(checked_number(cost, name, whole=False))


def _microseconds(created_at: Any, _: str) -> int:
    """A time as a store's clock counts, since 1970."""
    if not isinstance(created_at, dt.datetime) or created_at.utcoffset() is None:
        raise InvalidInputError(
            f"created_at must be a datetime with a time zone, for example datetime(2026, 1, 31, tzinfo=timezone.utc), "
            f"not {created_at!r}"
        )
    return int((checked_time(created_at, "created_at") - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1))


_CHECKS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "iteration": checked_number,
    "tokens_used": checked_number,
    "cost": _checked_cost,
    "description": checked_text,
    "resume_hint": checked_text,
    "external_id": checked_text,
    "created_us": _microseconds,
}


def checked_label(label: str | None) -> str | None:
    """A label that can be kept, or none."""
    return None if label is None else checked_id(label, "a label")


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags that can be kept, each once."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidInputError(f"tags must be a list of texts, not {tags!r}")
    return tuple(dict.fromkeys(checked_id(tag, "a tag") for tag in tags))
