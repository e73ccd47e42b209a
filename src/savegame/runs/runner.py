"""Runs on the vault: starting one, its ledger, answers and outcomes from people, and resuming stale runs.

Touches core, run, ledger, lease, timeline and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from savegame.encoding.frames import load_meta
from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    OutcomeError,
    SavegameError,
    UnavailableError,
)
from savegame.model import Status, ThreadKey, ThreadRow, checked_duration, checked_id
from savegame.runs import interrupts, tracing
from savegame.runs.conversation import time_of
from savegame.runs.core import RunCore
from savegame.runs.effects import effects_after, has_kept_result
from savegame.runs.lease import Hold, is_gone
from savegame.runs.ledger import TAKEOVERS, CallEntry, CallStatus
from savegame.runs.run import refuse_what_cannot_run
from savegame.runs.toolbox import Toolbox
from savegame.runs.undo import UndoCore, Undone, plan_undo, refuse_unsuitable, undo_records
from savegame.store import Store
from savegame.timeline.companions import ANSWER, CALL, RUN
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import Ref
from savegame.timeline.listing import listed
from savegame.timeline.policy import Strategy
from savegame.timeline.timeline import Timeline
from savegame.waiting.awaiting import plain_result, refuse_asynchronous

R = TypeVar("R")

logger = logging.getLogger("savegame")

_MICROSECOND: Final = dt.timedelta(microseconds=1)
_MOMENT: Final = 30_000_000
"""Microseconds for which a lease is taken to write a single record."""
LONGEST_LEASE: Final = dt.timedelta(days=365)


@dataclass(frozen=True, slots=True)
class StaleRun:
    """An unfinished run that no process holds any more. `takeovers` counts those since its last progress.

    If its records are damaged, `damage` says how: it cannot be resumed before a repair.
    """

    thread_id: str
    agent_id: str | None
    owner: str
    expired_at: dt.datetime
    takeovers: int
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """An unfinished run. `stale`: no process holds it, so it should be resumed. `takeovers` since its last progress.

    If its records are damaged, `damage` says how: it cannot be resumed before a repair.
    """

    thread_id: str
    agent_id: str | None
    owner: str
    expires_at: dt.datetime
    stale: bool
    takeovers: int
    damage: str | None = None


class _Bare(NamedTuple):
    """A run without user code."""

    core: RunCore
    hold: Hold
    store: Store
    thread_id: str


class Runner:
    """The runs of one namespace. Made by the vault, whose verbs these are."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self._engine, self._namespace = engine, namespace
        self._logged: set[str] = set()
        """Damage that was already logged: a supervisor would find it every second."""

    @contextmanager
    def run(
        self,
        thread_id: str,
        agent: str | None,
        tools: Toolbox | None,
        lease: dt.timedelta,
        driver: Callable[[RunCore, Hold, Store, str], R],
        *,
        strategy: Strategy | str | None = None,
        awaits: bool = False,
    ) -> Iterator[R]:
        """`Vault.run`. `awaits`: the driver can call asynchronous tools."""
        if checked_duration(lease, "lease") > LONGEST_LEASE:
            raise InvalidInputError(f"lease must be at most {LONGEST_LEASE.days} days: a run renews its lease until it ends")
        policy = strategy if isinstance(strategy, Strategy) else Strategy(strategy or "after_tool_call")
        thread = self._thread(thread_id)
        if agent is not None:
            checked_id(agent, "the agent's id")
        if tools is not None and not isinstance(tools, Toolbox):
            raise InvalidInputError(f"tools must be a Toolbox, not {type(tools).__name__}; add functions with its @tool")
        box = Toolbox() if tools is None else tools
        refuse_what_cannot_run(self._engine.store, box, awaits=awaits)
        hold = Hold(self._engine.store, thread.key, lease // _MICROSECOND)
        to_resume = hold.taken_from is not None  # if it cannot be started, nothing changes
        try:
            self._count_takeover(thread, hold)
            core = RunCore(thread, box, hold, policy, agent)
            to_resume = True  # unless it ends normally or with a question to a person
            # an asynchronous driver starts in a worker, but its span must start on the loop, which does that itself
            with nullcontext() if awaits else tracing.run(thread.id, agent):
                yield driver(core, hold, self._engine.store, thread.id)
            to_resume = False
        except OutcomeError:
            to_resume = False
            raise
        finally:
            hold.release(stale=to_resume)

    def _count_takeover(self, thread: Timeline, hold: Hold) -> None:
        """Record how often a run was taken over since its last progress."""
        if hold.taken_from is None:
            return
        row = thread.row()
        head = None if row is None else row.head_id
        before = thread.values(RUN).get(TAKEOVERS, {})
        count = before["count"] + 1 if before.get("head") == head and before else 1
        thread.commit([thread.put(RUN, TAKEOVERS, {"count": count, "head": head}, epoch=hold.epoch)])

    # -- the ledger --------------------------------------------------------------------------------

    def calls(self, thread_id: str) -> Iterator[CallEntry]:
        """`Vault.calls`."""
        thread = self._thread(thread_id)
        entries = sorted(
            (CallEntry.from_dict(*record) for record in thread.values(CALL).items()), key=lambda entry: entry.order
        )
        waiting = {entry.key for entry in entries if entry.status == CallStatus.WAITING}
        answered = waiting & thread.values(ANSWER).keys() if waiting else waiting
        entered = (replace(entry, answered=entry.key in answered) for entry in entries)
        return chain(entered, interrupts.waiting(thread))

    def _call(self, thread: Timeline, key: str) -> CallEntry:
        fields = thread.values(CALL).get(key)
        if fields is None:
            raise NotFoundError(f"thread {thread.id!r} has no call {key!r}; vault.calls({thread.id!r}) lists them")
        return CallEntry.from_dict(key, fields)

    def effects(self, thread_id: str, after: Ref | None) -> Iterator[CallEntry]:
        """`Vault.effects`."""
        thread = self._thread(thread_id)
        frame = None if after is None else thread.resolve(after)
        return (effect.entry for effect in effects_after(thread, frame))

    def answer(
        self, thread_id: str, call: str | CallEntry, value: Any, comment: str | None = None, *, reuse: bool = False
    ) -> bool:
        """`Vault.answer`."""
        thread = self._thread(thread_id)
        key = call.key if isinstance(call, CallEntry) else checked_id(call, "a call's key")
        if reuse and value is not True:
            raise InvalidInputError(f"reuse=True goes with the answer True, not {value!r}; leave it out to refuse a call")
        if key not in thread.names(CALL):
            if reuse:
                raise InvalidInputError(
                    f"thread {thread.id!r}: {key!r} is not a tool call that repeats another one; leave out reuse="
                )
            return interrupts.answer(thread, key, value, comment)
        entry = self._call(thread, key)
        if entry.status != CallStatus.WAITING:
            return False
        if reuse and not has_kept_result(thread, entry.repeats):
            raise InvalidInputError(f"call {key!r} repeats no call whose result is kept; answer without reuse=")
        try:
            about = {"comment": comment, "reuse": reuse or None}
            fields = {"value": value} | {name: given for name, given in about.items() if given is not None}
            thread.commit([thread.put(ANSWER, key, fields, absent=True)])
        except AlreadyExistsError:
            return False
        return True

    def resolve(self, thread_id: str, call: str | CallEntry, result: Any, error: str | None, lease: dt.timedelta) -> None:
        """`Vault.resolve`."""
        thread = self._thread(thread_id)
        key = call.key if isinstance(call, CallEntry) else checked_id(call, "a call's key")
        self._call(thread, key)
        hold = Hold(self._engine.store, thread.key, lease // _MICROSECOND)  # no run may be making it meanwhile
        try:
            entry = self._call(thread, key)
            if entry.settled or entry.status == CallStatus.WAITING:
                raise InvalidInputError(f"call {key!r} is {entry.status}: there is nothing to resolve")
            status = CallStatus.DONE if error is None else CallStatus.FAILED
            known = replace(entry, status=status, ended_at=self._now(), result=result, error=error)
            records = undo_records(thread, known)
            thread.commit([thread.put(CALL, name, value, epoch=hold.epoch) for name, value in records.items()])
        finally:
            hold.release(stale=hold.taken_from is not None)  # a stale run must still be resumed

    @contextmanager
    def undo(
        self, thread_id: str, to: Ref, tools: Toolbox, driver: Callable[[RunCore, Hold, Store, str], R], *, awaits: bool = False
    ) -> Iterator[R]:
        """`Vault.undo`: the driver under the lease. `awaits`: it can call asynchronous functions."""
        refuse_unsuitable(tools, awaits=awaits)
        thread = self._thread(thread_id)
        frame = thread.resolve(to)
        hold = Hold(self._engine.store, thread.key, _MOMENT)
        try:
            yield driver(UndoCore(thread, tools, hold, frame), hold, self._engine.store, thread.id)
        finally:
            hold.release()  # nothing resumes it by itself: the person who goes back decides what follows

    def plan_undo(self, thread_id: str, to: Ref, tools: Toolbox, *, awaits: bool = False) -> Undone:
        """`Vault.undo` with `dry_run`."""
        refuse_unsuitable(tools, awaits=awaits)
        thread = self._thread(thread_id)
        plan = plan_undo(thread, thread.resolve(to), tools)
        return Undone(tuple(plan.undoable), tuple(plan.left))

    # -- resuming ----------------------------------------------------------------------------------

    def stale(self) -> Iterator[StaleRun]:
        """`Vault.stale`."""
        for run in self.runs():
            if run.stale:
                yield StaleRun(run.thread_id, run.agent_id, run.owner, run.expires_at, run.takeovers, run.damage)

    def runs(self) -> Iterator[RunInfo]:
        """`Vault.runs`."""
        now = self._engine.store.clock()
        for row in self._unfinished():
            lease = row.lease
            if lease is not None and lease.expires:
                stale = lease.expires <= now or is_gone(lease.owner)
                takeovers, damage = self._counted(row.key.id)
                yield RunInfo(row.key.id, row.agent, lease.owner, time_of(lease.expires), stale, takeovers, damage)

    def _unfinished(self) -> Iterator[ThreadRow]:
        """Threads in progress, and those without a checkpoint: a run may have recorded steps there."""
        for found in listed(self._engine, self._namespace):
            if found.damage is not None:
                self._log(found.id, found.damage)
            if found.row is not None and found.head is not None and load_meta(found.head.meta).status == "in_progress":
                yield found.row
        for thread_id, head_id in self._engine.store.heads(self._namespace):
            try:
                row = self._engine.store.thread(ThreadKey(self._namespace, thread_id)) if head_id is None else None
            except CorruptionError as error:
                self._log(thread_id, error)
                continue
            if row is not None and not row.head:
                yield row

    def _log(self, thread_id: str, error: CorruptionError) -> None:
        """Log, once, the damage of a thread whose runs cannot be listed or resumed."""
        if f"{thread_id} {error}" not in self._logged:
            self._logged.add(f"{thread_id} {error}")
            logger.error("thread %r cannot be resumed before a repair: %s", thread_id, error)

    def supervise(
        self,
        resume: Callable[[str], Any],
        *,
        poll: dt.timedelta,
        give_up_after: int,
        stop: threading.Event | None,
        once: bool,
    ) -> int:
        """`Vault.supervise`."""
        checked_duration(poll, "poll")
        refuse_asynchronous(resume, "resume")
        resumed = 0
        while stop is None or not stop.is_set():
            resumed += sum(self._resume(resume, run.thread_id) for run in self.due(give_up_after, patient=not once))
            if once:
                return resumed
            (stop or threading.Event()).wait(poll.total_seconds())
        return resumed

    def due(self, give_up_after: int, *, patient: bool) -> list[StaleRun]:
        """The runs to resume now, without damaged and stuck ones; stuck ones are marked as failed.

        `patient`: return nothing if the store is unavailable, instead of raising.
        """
        try:
            found = list(self.stale())
        except UnavailableError as error:
            if not patient:
                raise
            logger.warning("nothing can be resumed at the moment: %s", error)
            return []
        sound = [run for run in found if run.damage is None]
        for run in sound:
            if run.takeovers >= give_up_after:
                self._give_up(run)
        return [run for run in sound if run.takeovers < give_up_after]

    def _resume(self, resume: Callable[[str], Any], thread_id: str) -> bool:
        before = self.epoch(thread_id)
        try:
            ended = resume(thread_id)
        except Exception as error:  # noqa: BLE001 - the caller's function: whatever it raises is logged
            self.not_resumed(thread_id, before, error)
            return False
        plain_result(ended, "resume")
        return True

    def not_resumed(self, thread_id: str, before: int, error: Exception) -> None:
        """Log why; if the epoch is still `before`, the run was not even started: count a takeover without progress."""
        if isinstance(error, (Busy, OutcomeError)):  # another process was quicker, or it waits for a person
            logger.info("resuming thread %r stopped before its end: %s", thread_id, error)
            return
        logger.error("thread %r could not be resumed", thread_id, exc_info=error)
        try:
            if self.epoch(thread_id) == before:
                self._count_attempt(thread_id)
        except CorruptionError as damage:  # it is no longer due
            self._log(thread_id, damage)

    def _count_attempt(self, thread_id: str) -> None:
        thread = self._thread(thread_id)
        try:
            hold = Hold(self._engine.store, thread.key, _MOMENT)
        except Busy:
            return
        try:
            self._count_takeover(thread, hold)
        finally:
            hold.release(stale=True)

    def epoch(self, thread_id: str) -> int:
        """The epoch of the newest lease on a thread; 0 if there was none."""
        row = self._engine.store.thread(ThreadKey(self._namespace, thread_id))
        return 0 if row is None or row.lease is None else row.lease.epoch

    def _give_up(self, run: StaleRun) -> None:
        """Mark a run as stuck, so that it is not resumed automatically any more."""
        try:
            with self.run(run.thread_id, None, None, dt.timedelta(seconds=30), _Bare) as held:
                if held.core.done or self._takeovers(run.thread_id) <= run.takeovers:  # ours counts too; fewer means progress
                    held.hold.release(stale=not held.core.done)
                    return
                held.core.save(None, Status.failed(f"stuck: taken over {run.takeovers} times without progress"))
        except Busy:
            return
        except SavegameError:
            logger.exception("thread %r is stuck, and that could not be recorded", run.thread_id)
            return
        logger.warning("thread %r is stuck: taken over %d times without progress", run.thread_id, run.takeovers)

    def _counted(self, thread_id: str) -> tuple[int, str | None]:
        """The number of takeovers, and the damage that prevents reading it."""
        try:
            return self._takeovers(thread_id), None
        except CorruptionError as error:
            self._log(thread_id, error)
            return 0, str(error)

    def _takeovers(self, thread_id: str) -> int:
        """How often a run was taken over since its last progress."""
        thread = self._thread(thread_id)
        row = thread.row()
        takeovers = thread.values(RUN).get(TAKEOVERS, {})
        return int(takeovers["count"]) if row is not None and takeovers and takeovers["head"] == row.head_id else 0

    # -- helpers -----------------------------------------------------------------------------------

    def _thread(self, thread_id: str) -> Timeline:
        return Timeline(self._engine, ThreadKey(self._namespace, checked_id(thread_id, "a thread's id")))

    def _now(self) -> dt.datetime:
        return time_of(self._engine.store.clock())
