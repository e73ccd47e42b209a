"""What a save says besides the state: its details are checked here, before anything is written.

Touches engine, frames, model, plain, errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from savegame.engine import Draft, Engine
from savegame.errors import InvalidInputError
from savegame.frames import Meta, dump_note
from savegame.model import Kind, Status, checked_id, checked_number
from savegame.plain import checked_text


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
) -> Draft:
    """The details of a save. Raises InvalidInputError naming the one that does not fit."""
    outcome = Status(status)
    meta = Meta(None, 0, engine.store.clock(), 0, str.__str__(Kind.of(kind)), str.__str__(outcome), outcome.reason)
    meta.agent_id = agent
    if outcome.reason is not None:
        meta.reason = checked_text(outcome.reason, "the reason of a status")
    if iteration is not None:
        meta.iteration = checked_number(iteration, "iteration")
    if tokens_used is not None:
        meta.tokens_used = checked_number(tokens_used, "tokens_used")
    if cost is not None:
        meta.cost = float(checked_number(cost, "cost", whole=False))
    if description is not None:
        meta.description = checked_text(description, "description")
    if resume_hint is not None:
        meta.resume_hint = checked_text(resume_hint, "resume_hint")
    if metadata:
        meta.metadata = engine.codec.encode(dict(metadata), ("metadata",))
    note = dump_note(checked_label(label), checked_tags(tags)) if label is not None or tags else None
    return Draft(meta, None if given_id is None else checked_id(given_id, "a checkpoint's id"), note)


def checked_label(label: str | None) -> str | None:
    """A label that can be kept, or none."""
    return None if label is None else checked_id(label, "a label")


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags that can be kept, each once."""
    if isinstance(tags, str):
        raise InvalidInputError(f"tags must be a list of texts, not the text {tags!r}")
    return tuple(dict.fromkeys(checked_id(tag, "a tag") for tag in tags))
