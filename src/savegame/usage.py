"""What work cost: tokens and money of the checkpoints of a namespace, added up by agent or by day.

Reads metadata only, page by page, never a state. Touches upkeep, lineage and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import dataclass

from savegame.engine import Engine
from savegame.errors import CorruptionError, InvalidInputError
from savegame.frames import Meta, load_meta
from savegame.lineage import everything, visible
from savegame.model import ThreadRow
from savegame.upkeep import thread_rows

logger = logging.getLogger("savegame")

Key = str | dt.date | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over the checkpoints of one agent (`key` is its id; None: without one) or of one day (`key` is its date in UTC)."""

    key: str | dt.date | None
    checkpoints: int
    tokens_used: int
    cost: float
    threads: int
    first_at: dt.datetime
    last_at: dt.datetime
    state_bytes: int = 0
    """What the states of these checkpoints would take if each were kept whole."""


def usage(engine: Engine, namespace: str, by: str) -> list[Usage]:
    """Usage by "agent" or by "day", in the order of the keys, None last."""
    if by not in ("agent", "day"):
        raise InvalidInputError(f"usage by {by!r} is unknown; one of: agent, day")
    found: dict[Key, Usage] = {}
    damaged: set[str] = set()
    for row in thread_rows(engine, namespace, damaged):
        try:
            used = _of_thread(engine, row, by)
        except CorruptionError:
            damaged.add(row.key.id)
            continue
        for key, one in used.items():
            found[key] = _sum(found[key], one) if key in found else one
    if damaged:
        logger.warning("damaged threads are left out of the usage: %s; verify says more", ", ".join(sorted(damaged)))
    return sorted(found.values(), key=lambda usage: (usage.key is None, usage.key))


def _of_thread(engine: Engine, row: ThreadRow, by: str) -> dict[Key, Usage]:
    found: dict[Key, Usage] = {}
    for frame in everything(engine, row.key, newest_first=False):
        if visible(engine, row, frame):
            meta = load_meta(frame.meta)
            key = meta.agent_id if by == "agent" else meta.created_at.date()
            one = _of(meta, key, threads=0 if key in found else 1)
            found[key] = _sum(found[key], one) if key in found else one
    return found


def _of(meta: Meta, key: Key, *, threads: int) -> Usage:
    # What a fork begins with is a copy: its tokens were used once, where it was copied from.
    spent = (0, 0.0) if meta.forked_from is not None else (meta.tokens_used or 0, meta.cost or 0.0)
    return Usage(key, 1, *spent, threads, meta.created_at, meta.created_at, meta.size_bytes)


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
