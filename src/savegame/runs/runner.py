"""Runs on the vault: starting one, its ledger, answers and outcomes from people, and resuming stale runs.

Touches core, run, ledger, lease, timeline and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
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
from savegame.model import Status, ThreadKey, ThreadRow, checked_duration, checked_id, checked_text
from savegame.runs import idle, inbox, interrupts, stopping, tracing
from savegame.runs.core import RunCore
from savegame.runs.effects import effects_after, has_kept_result
from savegame.runs.idle import Reason, is_held
from savegame.runs.inbox import InboxMessage, time_of
from savegame.runs.lease import Hold
from savegame.runs.ledger import TAKEOVERS, CallEntry, CallStatus
from savegame.runs.run import refuse_what_cannot_run
from savegame.runs.stopping import briefly, leave
from savegame.runs.toolbox import Toolbox
from savegame.runs.undo import UndoCore, Undone, plan_undo, refuse_unsuitable, undo_records, undo_target
from savegame.store import Store
from savegame.timeline.companions import ANSWER, CALL, RUN
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import Ref
from savegame.timeline.listing import listed
from savegame.timeline.policy import Strategy
from savegame.timeline.timeline import Timeline
from savegame.waiting.awaiting import plain_result, refuse_asynchronous
from savegame.waiting.undoing import on_failure

R = TypeVar("R")

logger = logging.getLogger("savegame")

_MICROSECOND: Final = dt.timedelta(microseconds=1)
OVERDUE_S: Final = 1.0
"""Seconds until the next look for a sleep that ended since the last one, or whose thread a run holds."""
LONGEST_LEASE: Final = dt.timedelta(days=365)


@dataclass(frozen=True, slots=True)
class StaleRun:
    """A run that no process holds, and that should go on. `takeovers` counts those since its last progress.

    `reason`: its process "crashed", it has "mail" that came since it paused or ended, or a sleep is over: "due". Only of one
    that crashed there is an owner, and when the lease expired. If its records are damaged, `damage` says how: it cannot be
    resumed before a repair.
    """

    thread_id: str
    agent_id: str | None
    owner: str | None
    expired_at: dt.datetime | None
    takeovers: int
    damage: str | None = None
    reason: Reason = "crashed"
    since: dt.datetime | None = None
    """When its lease expired, the first message was sent, or its sleep was over."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """An unfinished run. `stale`: no process holds it, so it should be resumed. `takeovers` since its last progress.

    `reason` says why it is stale, as in StaleRun: only of one that is held or crashed there is an owner, and when its lease
    expires. If its records are damaged, `damage` says how: it cannot be resumed before a repair.
    """

    thread_id: str
    agent_id: str | None
    owner: str | None
    expires_at: dt.datetime | None
    stale: bool
    takeovers: int
    damage: str | None = None
    reason: Reason | None = None
    since: dt.datetime | None = None
    """Of a stale one: when its lease expired, the first message was sent, or its sleep was over."""


class Resumable(NamedTuple):
    """The runs to resume now, and in how many seconds the next sleep ends (None: there is none)."""

    runs: list[StaleRun]
    next_s: float | None


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
            core.refuse_unlisted()
            to_resume = True  # unless it ends normally or with a question to a person
            core.enter()
            # an asynchronous driver starts in a worker, but its span must start on the loop, which does that itself
            with nullcontext() if awaits else tracing.run(thread.id, agent):
                yield driver(core, hold, self._engine.store, thread.id)
            to_resume = False
        except OutcomeError:
            to_resume = False
            raise
        finally:
            leave(thread, hold, stale=to_resume)

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
        with briefly(thread) as hold:  # no run may be making it meanwhile
            entry = self._call(thread, key)
            if entry.settled or entry.status == CallStatus.WAITING:
                raise InvalidInputError(f"call {key!r} is {entry.status}: there is nothing to resolve")
            status = CallStatus.DONE if error is None else CallStatus.FAILED
            known = replace(entry, status=status, ended_at=self._now(), result=result, error=error)
            records = undo_records(thread, known)
            thread.commit([thread.put(CALL, name, value, epoch=hold.epoch) for name, value in records.items()])

    # -- from outside ------------------------------------------------------------------------------

    def send(self, thread_id: str, content: Any, key: str | None) -> bool:
        """`Vault.send`."""
        return inbox.send(self._thread(thread_id), content, None if key is None else checked_id(key, "a key"))

    def inbox(self, thread_id: str) -> Iterator[InboxMessage]:
        """`Vault.inbox`."""
        return inbox.messages(self._thread(thread_id))

    def unsend(self, thread_id: str, key: str) -> bool:
        """`Vault.unsend`."""
        return inbox.unsend(self._thread(thread_id), checked_id(key, "a key"))

    def stop(self, thread_id: str, reason: str) -> bool:
        """`Vault.stop`."""
        thread = self._thread(thread_id)
        if not checked_text(reason, "the reason"):
            raise InvalidInputError('a stop needs a reason, for example vault.stop(thread_id, "the user pressed stop")')
        return stopping.stop(thread, reason)

    @contextmanager
    def undo(
        self, thread_id: str, to: Ref, tools: Toolbox, driver: Callable[[RunCore, Hold, Store, str], R], *, awaits: bool = False
    ) -> Iterator[R]:
        """`Vault.undo`: the driver under the lease. `awaits`: it can call asynchronous functions."""
        refuse_unsuitable(tools, awaits=awaits)
        thread = self._thread(thread_id)
        frame = undo_target(thread, to)
        hold = Hold(self._engine.store, thread.key, stopping.MOMENT_US)
        with on_failure(hold.release):  # nothing resumes it by itself: the person who goes back decides what follows
            yield driver(UndoCore(thread, tools, hold, frame), hold, self._engine.store, thread.id)
        leave(thread, hold, stale=False)

    def plan_undo(self, thread_id: str, to: Ref, tools: Toolbox, *, awaits: bool = False) -> Undone:
        """`Vault.undo` with `dry_run`."""
        refuse_unsuitable(tools, awaits=awaits)
        thread = self._thread(thread_id)
        plan = plan_undo(thread, undo_target(thread, to), tools)
        return Undone(tuple(plan.undoable), tuple(plan.left))

    # -- resuming ----------------------------------------------------------------------------------

    def stale(self) -> Iterator[StaleRun]:
        """`Vault.stale`."""
        return (_as_stale(run) for run in self.runs() if run.stale)

    def runs(self) -> Iterator[RunInfo]:
        """`Vault.runs`."""
        return (run for run, _ in self._runs() if run is not None)

    def _runs(self) -> Iterator[tuple[RunInfo | None, int | None]]:
        """Every unfinished run, and threads that sleep, each with the end of its sleep."""
        now = self._engine.store.clock()
        known = set()
        for row in self._unfinished():
            lease = row.lease
            if lease is not None and lease.expires:
                known.add(row.key.id)
                stale = not is_held(row, now)
                if stale and self._is_undoing(row.key.id):
                    continue
                takeovers, damage = self._counted(row.key.id)
                reason: Reason | None = "crashed" if stale else None
                expires = time_of(lease.expires)
                yield (
                    RunInfo(
                        row.key.id,
                        row.agent,
                        lease.owner,
                        expires,
                        stale,
                        takeovers,
                        damage,
                        reason,
                        expires if stale else None,
                    ),
                    None,
                )
        for key in idle.candidates(self._engine.store, self._namespace):
            if key.id not in known:
                yield self._idle(key, now)

    def _idle(self, key: ThreadKey, now: int) -> tuple[RunInfo | None, int | None]:
        """A thread with messages or a sleep: the run that should go on now, if any, and the end of its sleep."""
        try:
            row = self._engine.store.thread(key)
            found = idle.NOTHING if row is None else idle.look(self._thread(key.id), row, now)
        except CorruptionError as error:
            self._log(key.id, error)
            return RunInfo(key.id, None, None, None, stale=True, takeovers=0, damage=str(error), reason="mail"), None
        if row is None or found.reason is None:
            return None, found.until
        since = None if found.since is None else time_of(found.since)
        return RunInfo(key.id, row.agent, None, None, stale=True, takeovers=0, reason=found.reason, since=since), found.until

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
            work = self.work(give_up_after, patient=not once)
            resumed += sum(self._resume(resume, run) for run in work.runs)
            if once:
                return resumed
            (stop or threading.Event()).wait(pause_s(work, poll))
        return resumed

    def work(self, give_up_after: int, *, patient: bool) -> Resumable:
        """The runs to resume now, without damaged and stuck ones; stuck ones are marked as failed.

        `patient`: return nothing if the store is unavailable, instead of raising.
        """
        try:
            found = list(self._runs())
        except UnavailableError as error:
            if not patient:
                raise
            logger.warning("nothing can be resumed at the moment: %s", error)
            return Resumable([], None)
        sound = [_as_stale(run) for run, _ in found if run is not None and run.stale and run.damage is None]
        for run in sound:
            if run.takeovers >= give_up_after:
                self._give_up(run)
        now = self._engine.store.clock()
        sleeping = [until - now for run, until in found if until is not None and run is None]
        next_s = min((left / 1_000_000 if left > 0 else OVERDUE_S for left in sleeping), default=None)
        return Resumable([run for run in sound if run.takeovers < give_up_after], next_s)

    def begin(self, run: StaleRun) -> int | None:
        """The epoch of the newest lease, before a run is resumed; None if another process was quicker."""
        if run.reason != "crashed" and self._idle(self._thread(run.thread_id).key, self._engine.store.clock())[0] is None:
            return None
        return self.epoch(run.thread_id)

    def _resume(self, resume: Callable[[str], Any], run: StaleRun) -> bool:
        before = self.begin(run)
        if before is None:
            return False
        try:
            ended = resume(run.thread_id)
        except Exception as error:  # noqa: BLE001 - the caller's function: whatever it raises is logged
            self.not_resumed(run, before, error)
            return False
        plain_result(ended, "resume")
        return True

    def not_resumed(self, run: StaleRun, before: int, error: Exception) -> None:
        """Log why; if the epoch is still `before`, the run was not even started: count a takeover without progress.

        Only of one that crashed: messages and the time are no fault of the run.
        """
        thread_id = run.thread_id
        if isinstance(error, (Busy, OutcomeError)):  # another process was quicker, or it waits for a person
            logger.info("resuming thread %r stopped before its end: %s", thread_id, error)
            return
        logger.error("thread %r could not be resumed", thread_id, exc_info=error)
        try:
            if run.reason == "crashed" and self.epoch(thread_id) == before:
                self._count_attempt(thread_id)
        except CorruptionError as damage:  # it is no longer due
            self._log(thread_id, damage)

    def _count_attempt(self, thread_id: str) -> None:
        thread = self._thread(thread_id)
        with suppress(Busy), briefly(thread) as hold:
            self._count_takeover(thread, hold)

    def epoch(self, thread_id: str) -> int:
        """The epoch of the newest lease on a thread; 0 if there was none."""
        row = self._engine.store.thread(ThreadKey(self._namespace, thread_id))
        return 0 if row is None or row.lease is None else row.lease.epoch

    def _give_up(self, run: StaleRun) -> None:
        """Mark a run as stuck, so that it is not resumed automatically any more."""
        thread = self._thread(run.thread_id)
        try:
            with briefly(thread) as hold:
                self._count_takeover(thread, hold)
                core = RunCore(thread, Toolbox(), hold, Strategy("after_tool_call"))
                if core.done or self._takeovers(run.thread_id) <= run.takeovers:  # ours counts too; fewer means progress
                    hold.release(stale=not core.done)
                    return
                core.save(None, Status.failed(f"stuck: taken over {run.takeovers} times without progress"))
                hold.release()
        except Busy:
            return
        except SavegameError:
            logger.exception("thread %r is stuck, and that could not be recorded", run.thread_id)
            return
        logger.warning("thread %r is stuck: taken over %d times without progress", run.thread_id, run.takeovers)

    def _is_undoing(self, thread_id: str) -> bool:
        """Whether an undo crashed: a person finishes it, and no run can go on before."""
        try:
            return idle.is_undoing(self._thread(thread_id))
        except CorruptionError:  # `_counted` says so
            return False

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


def pause_s(work: Resumable, poll: dt.timedelta) -> float:
    """For how many seconds a supervisor waits before it looks for work again."""
    longest = poll.total_seconds()
    return longest if work.next_s is None else min(longest, work.next_s)


def _as_stale(run: RunInfo) -> StaleRun:
    assert run.reason is not None
    return StaleRun(run.thread_id, run.agent_id, run.owner, run.expires_at, run.takeovers, run.damage, run.reason, run.since)
