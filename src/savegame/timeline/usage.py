"""What work cost: tokens and money of the checkpoints of a namespace, added up by agent, by day or by thread.

Reads metadata only, page by page, never a state. Touches spending, lineage and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from savegame.encoding.frames import load_meta
from savegame.errors import CorruptionError, InvalidInputError
from savegame.model import ThreadKey
from savegame.timeline import spending
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import Lineage
from savegame.timeline.listing import thread_keys
from savegame.timeline.spending import Spending, SpendingKey

logger = logging.getLogger("savegame")

Key = str | dt.date | None

KEYS: Final[dict[str, Callable[[ThreadKey, SpendingKey], Key]]] = {
    "agent": lambda thread, slot: slot.agent,
    "day": lambda thread, slot: slot.day,
    "thread": lambda thread, slot: thread.id,
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums for one agent (`key` is its id; None: without one), one day (its date in UTC) or one thread (its id).

    Tokens and cost include those of checkpoints that were removed since; `checkpoints` and `state_bytes` do not.
    """

    key: str | dt.date | None
    checkpoints: int
    tokens_used: int
    cost: float
    threads: int
    first_at: dt.datetime
    last_at: dt.datetime
    state_bytes: int = 0
    """Bytes that the states of these checkpoints would take if each were stored whole."""


def usage(engine: Engine, namespace: str, by: str) -> list[Usage]:
    """Usage by "agent", "day" or "thread", in the order of the keys, None last."""
    if by not in KEYS:
        raise InvalidInputError(f"usage by {by!r} is unknown; one of: {', '.join(KEYS)}")
    found: dict[Key, Usage] = {}
    damaged: list[str] = []
    for key in thread_keys(engine, namespace):
        try:
            used = _of_thread(Lineage(engine, key), by)
        except CorruptionError:
            damaged.append(key.id)
            continue
        for one in used.values():
            _add(found, one)
    if damaged:
        logger.warning("the usage leaves out damaged threads: %s; run verify", ", ".join(sorted(damaged)))
    return sorted(found.values(), key=lambda usage: (usage.key is None, usage.key))


def _of_thread(thread: Lineage, by: str) -> dict[Key, Usage]:
    """Checkpoints that are shown, and what others cost that retention hides or that were removed."""
    record, (found, hidden) = spending.steadily(thread, lambda: _of_checkpoints(thread, by))
    for slot, spent in spending.together(record, hidden).items():
        times = _at(spent.first_us), _at(spent.last_us)
        _add(found, Usage(KEYS[by](thread.key, slot), 0, spent.tokens, spent.cost, 0, *times))
    return {key: replace(one, threads=1) for key, one in found.items()}


def _of_checkpoints(thread: Lineage, by: str) -> tuple[dict[Key, Usage], Spending]:
    row = thread.row()
    found: dict[Key, Usage] = {}
    hidden: Spending = {}
    for frame in () if row is None else thread.everything(newest_first=False):
        meta = load_meta(frame.meta)
        if row is None or not thread.visible(row, frame):
            hidden = spending.together(hidden, spending.spent_by([meta]))
            continue
        # What a fork begins with is a copy: its tokens were used once, where it was copied from.
        spent = (0, 0.0) if meta.forked_from is not None else (meta.tokens_used or 0, meta.cost or 0.0)
        key = KEYS[by](thread.key, SpendingKey(meta.agent_id, meta.created_at.date()))
        _add(found, Usage(key, 1, *spent, 0, meta.created_at, meta.created_at, meta.size_bytes))
    return found, hidden


def _at(us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=us)


def _add(found: dict[Key, Usage], one: Usage) -> None:
    found[one.key] = _sum(found[one.key], one) if one.key in found else one


def _sum(a: Usage, b: Usage) -> Usage:
    return Usage(
        a.key,
        a.checkpoints + b.checkpoints,
        a.tokens_used + b.tokens_used,
        a.cost + b.cost,
        a.threads + b.threads,
        min(a.first_at, b.first_at),
        max(a.last_at, b.last_at),
        a.state_bytes + b.state_bytes,
    )
