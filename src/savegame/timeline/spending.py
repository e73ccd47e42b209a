"""What removed checkpoints cost: a record beside the thread keeps their tokens and money. Touches lineage, companions, store.

Every removal adds the cost of the removed checkpoints to the record, in the same commit; an undo, which saves no checkpoints,
adds what its calls cost. `usage` adds the record to the remaining checkpoints. Each change renames the record, so that a commit
planned from an older one conflicts (`Expect`). Forks do not get the record. Copies do: see `Carrying`.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from savegame.encoding.frames import Meta, load_meta
from savegame.errors import ConflictError
from savegame.model import Frame, Record
from savegame.store import Expect, PutRecord
from savegame.timeline.companions import SPENT
from savegame.timeline.lineage import Lineage
from savegame.waiting.retrying import PLANS

T = TypeVar("T")
RecordChange = PutRecord | Expect


class SpendingKey(NamedTuple):
    """The key of a sum: an agent's id, and a day in UTC."""

    agent: str | None
    day: dt.date


class Spent(NamedTuple):
    """Tokens and money, and the times of the first and the last spending, in microseconds since 1970."""

    tokens: int
    cost: float
    first_us: int
    last_us: int


Spending = dict[SpendingKey, Spent]


class SpentRecord(NamedTuple):
    """The content and name of a thread's record; empty if no removed checkpoint had a cost."""

    spending: Spending
    names: frozenset[str]


NOTHING_KEPT: Final = SpentRecord({}, frozenset())


def spent_by(metas: Iterable[Meta]) -> Spending:
    """The cost of checkpoints. The first one of a fork is a copy: its cost counts in the source."""
    found: Spending = {}
    for meta in metas:
        if meta.forked_from is None and (meta.tokens_used or meta.cost):
            slot = SpendingKey(meta.agent_id, meta.created_at.date())
            one = Spent(meta.tokens_used or 0, meta.cost or 0.0, meta.created_us, meta.created_us)
            found[slot] = _sum(found[slot], one) if slot in found else one
    return found


def together(a: Spending, b: Spending) -> Spending:
    """The sums of both."""
    return a | {slot: _sum(a[slot], one) if slot in a else one for slot, one in b.items()}


def _sum(a: Spent, b: Spent) -> Spent:
    return Spent(a.tokens + b.tokens, a.cost + b.cost, min(a.first_us, b.first_us), max(a.last_us, b.last_us))


def _most(a: Spending, b: Spending) -> Spending:
    """The larger amounts of both, for each slot."""
    return a | {slot: _larger(a[slot], one) if slot in a else one for slot, one in b.items()}


def _larger(a: Spent, b: Spent) -> Spent:
    return Spent(max(a.tokens, b.tokens), max(a.cost, b.cost), min(a.first_us, b.first_us), max(a.last_us, b.last_us))


def _without(a: Spending, b: Spending) -> Spending:
    """`a` minus `b`; `a` is at least as large."""
    rest = {
        slot: one._replace(tokens=one.tokens - b[slot].tokens, cost=one.cost - b[slot].cost) if slot in b else one
        for slot, one in a.items()
    }
    return {slot: one for slot, one in rest.items() if one.tokens or one.cost}


# -- the record ------------------------------------------------------------------------------------


def spent_record(thread: Lineage) -> SpentRecord:
    """The record of a thread. Raises CorruptionError."""
    found = thread.store.records(thread.key, SPENT).items
    if not found:
        return NOTHING_KEPT
    spending: Spending = {}
    for record in found:
        spending = together(spending, of_record(thread, record))
    return SpentRecord(spending, frozenset(record.name for record in found))


def of_record(thread: Lineage, record: Record) -> Spending:
    """The spending that a record holds. Raises CorruptionError."""
    rows = thread.read(record)
    return {SpendingKey(agent, dt.date.fromisoformat(day)): Spent(*amounts) for agent, day, *amounts in rows}


def removal(
    thread: Lineage, frames: Sequence[Frame], drop: set[int], *, drop_newer: bool
) -> Callable[[Sequence[bytes]], list[RecordChange]]:
    """For `Rewrite.along`: changes that add the cost of removed frames to the record, including newer ones by metadata."""
    gone = spent_by(load_meta(frame.meta) for frame in frames if frame.seq in drop)
    if not gone and not drop_newer:
        return lambda _: []
    before = spent_record(thread)  # read after the frames: another removal meanwhile is a conflict
    same = Expect(thread.key, (frames[0].seq, frames[0].id))  # not a thread re-created under this id

    def changes(newer: Sequence[bytes]) -> list[RecordChange]:
        spent = together(gone, spent_by(map(load_meta, newer)))
        return [same, *change(thread, before, together(before.spending, spent))[0]] if spent else []

    return changes


def change(thread: Lineage, before: SpentRecord, new: Spending) -> tuple[list[RecordChange], SpentRecord]:
    """Changes that replace the record, failing if another writer changed it; and the record afterwards."""
    if new == before.spending:
        return [], before
    in_order = sorted(new.items(), key=lambda item: (item[0].day, item[0].agent or ""))
    rows = [[slot.agent, slot.day.isoformat(), *spent] for slot, spent in in_order]
    name, value = os.urandom(8).hex(), thread.engine.wrap(thread.engine.codec.encode(rows))
    changes: list[RecordChange] = [
        Expect(thread.key, kind=SPENT, names=before.names),
        *(PutRecord(thread.key, SPENT, former, None) for former in sorted(before.names)),
        PutRecord(thread.key, SPENT, name, value),
    ]
    return changes, SpentRecord(new, frozenset((name,)))


def beside(thread: Lineage, agent: str | None, tokens: int | None, cost: float | None) -> list[RecordChange]:
    """Changes that add to the record what was spent now without a checkpoint."""
    if not tokens and not cost:
        return []
    now = thread.store.clock()
    day = (dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=now)).date()
    before = spent_record(thread)
    new = together(before.spending, {SpendingKey(agent, day): Spent(tokens or 0, cost or 0.0, now, now)})
    return change(thread, before, new)[0]


def steadily(thread: Lineage, read: Callable[[], T]) -> tuple[Spending, T]:
    """The record, and what `read` returns for the thread's checkpoints, consistently: no removal happened in between.

    Raises ConflictError if other writers keep removing checkpoints.
    """
    before = spent_record(thread)
    for _ in range(PLANS):
        found = read()
        after = spent_record(thread)
        if after == before:
            return after.spending, found
        before = after
    raise ConflictError(f"thread {thread.id!r} keeps being pruned while its usage is read; try again later")


def _total(thread: Lineage, high: int | None = None) -> Spending:
    """The cost of a thread, including removed checkpoints, but not those after `high`."""
    return together(*steadily(thread, lambda: _of_frames(thread, high)))


def _of_frames(thread: Lineage, high: int | None = None) -> Spending:
    return spent_by(load_meta(frame.meta) for frame in thread.everything(high=high))


# -- copies ----------------------------------------------------------------------------------------


class Carrying:
    """Keeps the record of a copy right while checkpoints are copied to it.

    In the end the spending of the copy, by agent and day, is at least that of the source, that of the copy before plus new
    checkpoints, and that of its checkpoints. So a checkpoint removed on either side counts once, and copying again changes
    nothing. Every batch that adds checkpoints must include `changes`.
    """

    def __init__(self, thread: Lineage, source: Callable[[], Spending], *, needed: bool) -> None:
        self._thread = thread
        self._kept = self._first = spent_record(thread)
        self._needed = needed or bool(self._kept.spending)
        self._source = source() if self._needed else {}
        self._there = _of_frames(thread) if self._needed else {}
        self._spent = together(self._there, self._kept.spending)

    @classmethod
    def from_thread(cls, thread: Lineage, source: Lineage, last: int) -> Carrying:
        """From a thread of another store, up to a frame."""
        return cls(thread, lambda: _total(source, last), needed=bool(spent_record(source).spending))

    def bring(self, meta: bytes, *, is_new: bool) -> None:
        """Count a checkpoint of the next batch; `is_new` if the copy cannot have had it before."""
        if self._needed:
            spent = spent_by([load_meta(meta)])
            self._there = together(self._there, spent)
            self._spent = together(self._spent, spent) if is_new else self._spent

    def changes(self, *, is_last: bool = False) -> list[RecordChange]:
        """Changes for the next batch; the last one includes what else the source has spent."""
        if not self._needed:
            return []
        self._spent = _most(self._spent, self._there)
        total = _most(self._spent, self._source) if is_last else self._spent
        return self._become(_without(total, self._there))

    def undo(self) -> list[RecordChange]:
        """Changes for the commit that removes again everything that was copied."""
        return self._become(self._first.spending)

    def _become(self, new: Spending) -> list[RecordChange]:
        changes, self._kept = change(self._thread, self._kept, new)
        return changes
