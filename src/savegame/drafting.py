"""What a save says besides the state: its details are checked here, before anything is written.

Touches engine, frames, model, plain, errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from savegame.engine import Draft, Engine
from savegame.errors import InvalidInputError
from savegame.frames import dump_note
from savegame.model import IN_PROGRESS, Kind, Status, checked_id, checked_number
from savegame.plain import checked_text, maybe


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
    if iteration is not None:
        details["iteration"] = checked_number(iteration, "iteration")
    if tokens_used is not None:
        details["tokens_used"] = checked_number(tokens_used, "tokens_used")
    if cost is not None:
        details["cost"] = float(checked_number(cost, "cost", whole=False))
    if description is not None:
        details["description"] = checked_text(description, "description")
    if resume_hint is not None:
        details["resume_hint"] = checked_text(resume_hint, "resume_hint")
    if external_id is not None:
        details["external_id"] = checked_text(external_id, "external_id")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInputError(f"metadata must be a dict, not {type(metadata).__name__}")
    if metadata:
        details["metadata"] = engine.codec.encode(dict(metadata), ("metadata",))
    note = dump_note(checked_label(label), checked_tags(tags)) if label is not None or tags else None
    return Draft(details, None if given_id is None else checked_id(given_id, "a checkpoint's id"), note)


def checked_label(label: str | None) -> str | None:
    """A label that can be kept, or none."""
    return None if label is None else checked_id(label, "a label")


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags that can be kept, each once."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidInputError(f"tags must be a list of texts, not {tags!r}")
    return tuple(dict.fromkeys(checked_id(tag, "a tag") for tag in tags))
