"""Taking effects back: each after a checkpoint by its tool's `undo` function, newest first; then the head moves there.

An undo is a run of its own under the lease. It is a call with an entry in the ledger, so the kind of its tool decides after a
crash what may run again; what is undone stays so. While a record names its target, no run works on the thread. As in runs, the
core decides and records, and the two drivers only call user code. Touches core, run, arun, effects, keeping, lease, ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from savegame.checkpoint import Checkpoint
from savegame.encoding.frames import load_meta
from savegame.errors import InvalidInputError, InvalidState, Stopped, UndoFailed
from savegame.model import Frame
from savegame.runs import inbox
from savegame.runs.arun import AsyncRun
from savegame.runs.core import Go, PendingCall, RunCore
from savegame.runs.effects import Effect, effects_after
from savegame.runs.keeping import records_for_rewind
from savegame.runs.lease import Hold
from savegame.runs.ledger import UNDO, UNDONE, CallEntry, CallStatus
from savegame.runs.run import Run
from savegame.runs.toolbox import Toolbox
from savegame.store import MoveHead
from savegame.timeline import frameworks, spending
from savegame.timeline.companions import CALL, RUN
from savegame.timeline.lineage import Lineage, Ref
from savegame.timeline.policy import Strategy
from savegame.timeline.timeline import Timeline
from savegame.waiting.awaiting import refuse_asynchronous
from savegame.waiting.retrying import PLANS, retried


@dataclass(frozen=True, slots=True)
class Undone:
    """What `vault.undo` did, newest first: `undone` was taken back, `left` stays in the world."""

    undone: tuple[CallEntry, ...] = ()
    left: tuple[CallEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """The effects after a checkpoint, newest first: those that can be taken back, those that were, and the others."""

    undoable: list[CallEntry]
    undone: list[CallEntry]
    left: list[CallEntry]


def undo_target(thread: Timeline, to: Ref) -> Frame:
    """The checkpoint to which an undo goes. That of an unfinished one is found by its id even if retention hides it since."""
    known = thread.values(RUN).get(UNDO)
    if known is not None and known["to"] == (to.id if isinstance(to, Checkpoint) else to):
        found = thread.engine.find(thread.key.namespace, known["to"])
        if found is not None and found[0] == thread.key:
            return found[1]
    return thread.resolve(to)


def plan_undo(thread: Timeline, frame: Frame, tools: Toolbox) -> UndoPlan:
    """What an undo to a checkpoint would do. Only a call that is done, and whose result is kept, can be taken back here."""
    plan = UndoPlan([], [], [])
    for effect in reversed(effects_after(thread, frame, open_too=True)):
        entry = effect.entry
        tool = next((tool for tool in tools if tool.name == entry.name), None)
        if entry.undone_at is not None:
            plan.undone.append(entry)
        elif tool is not None and not effect.counts(tool):
            continue
        elif tool is not None and tool.undo is not None and _can_be_undone(effect):
            plan.undoable.append(entry)
        else:
            plan.left.append(entry)
    return plan


def _can_be_undone(effect: Effect) -> bool:
    return effect.how is None and effect.entry.made_in is None and effect.entry.status == CallStatus.DONE


def refuse_unsuitable(tools: Any, *, awaits: bool) -> None:
    """Raise InvalidInputError unless this is a Toolbox whose undo functions can be called. `awaits`: asynchronous ones too."""
    if not isinstance(tools, Toolbox):
        raise InvalidInputError(f"undo needs tools=, a Toolbox with the tools that have undo=, not {type(tools).__name__}")
    for tool in tools:
        if tool.undo is not None and not awaits:
            refuse_asynchronous(tool.undo, f"the undo of tool {tool.name!r}", "open the vault with savegame.open_async")


class UndoCore(RunCore):
    """The effects after a checkpoint, under a lease, and what is recorded of taking them back."""

    def __init__(self, thread: Timeline, tools: Toolbox, hold: Hold, frame: Frame) -> None:
        thread.load_frame(frame)  # a checkpoint that does not load must not become the head
        super().__init__(thread, tools, hold, Strategy("never"), undoing_to=frame.id)
        self._frame = frame
        self._plan = plan_undo(thread, frame, tools)
        entries = ((key, value) for key, value in thread.values(CALL).items() if key.startswith(UNDONE))
        self._ledger = {key: CallEntry.from_dict(key, value) for key, value in entries}
        known = self._noted.get(UNDO)
        skip = [entry.key for entry in self._plan.undone] if known is None else known["skip"]
        self._undone = [entry for entry in self._plan.undone if entry.key not in skip]
        """What this undo, or an earlier attempt of it, has taken back, newest first."""
        if known is None and self._plan.undoable:
            self._commit([self._record(RUN, UNDO, {"to": frame.id, "skip": skip})])

    @property
    def undoable(self) -> list[CallEntry]:
        """What is to be taken back, newest first."""
        return list(self._plan.undoable)

    def prepare_undo(self, effect: CallEntry) -> Go:
        """The call that takes an effect back, recorded if it must not run twice. Raises Unknown if it may have been made.

        Raises Stopped if the undo was stopped: what was taken back stays so, and the undo is unfinished.
        """
        self.check()
        self._refuse_stopped()
        tool = self._tools[effect.name].for_undo(effect.result)
        pending = PendingCall(UNDONE + effect.key, UNDONE + effect.key, effect.name, dict(effect.arguments), tool)
        return self._begin(pending, tool, self._ledger.get(pending.key), undoes=effect.key)

    def finish(self, go: Go, result: Any) -> None:
        """Record that an effect was taken back; a result that cannot be saved is left out."""
        done = replace(go.entry, status=CallStatus.DONE, ended_at=self._now(), **go.spent)
        try:
            self.settle(go.pending, replace(done, result=result))
        except InvalidState:  # nothing was written
            self.settle(go.pending, done)

    def settle(self, pending: PendingCall, entry: CallEntry) -> None:
        """Record the outcome and its cost, in one commit with the entry of the call that was taken back."""
        records = [self._record(CALL, key, value) for key, value in undo_records(self._thread, entry).items()]
        agent = None if self.checkpoint is None else self.checkpoint.agent_id

        def attempt() -> None:  # a prune meanwhile adds to what the thread has spent
            self._commit([*spending.beside(self._thread, agent, entry.tokens_used, entry.cost), *records])

        retried(attempt, tries=PLANS)
        self._ledger[entry.key] = entry

    def refuse_failed(self, effect: CallEntry) -> None:
        """Raise UndoFailed if an effect could not be taken back."""
        entry = self._ledger.get(UNDONE + effect.key)
        if entry is not None and entry.status == CallStatus.DONE:
            self._undone.append(replace(effect, undone_at=entry.ended_at))
            return
        if entry is None or not entry.settled:  # it was cut short
            self._refuse_stopped()
        assert entry is not None
        done = {one.key for one in self._undone}
        left = [one for one in self._plan.undoable if one.key not in done] + self._plan.left
        raise UndoFailed(
            f"thread {self._thread.id!r}: call {effect.key} of {effect.name!r} was not taken back: {entry.error}; "
            f"{len(done)} of {len(done) + len(left)} effects were; to continue, call "
            f"vault.undo({self._thread.id!r}, to={self._frame.id!r}, tools=tools) again",
            call=entry,
            undone=_newest_first(self._undone),
            left=_newest_first(left),
        )

    def _refuse_stopped(self) -> None:
        request = inbox.read_stop(self._thread)
        if request is not None and self._is_mine(request):
            raise Stopped(
                f"thread {self._thread.id!r}: the undo was stopped: {request.reason}; {len(self._undone)} effects were taken "
                f"back; to continue, call vault.undo({self._thread.id!r}, to={self._frame.id!r}, tools=tools) again",
                reason=request.reason,
            )

    def go_back(self) -> Undone:
        """Move the head and end the undo, in one commit."""
        thread, frame, row = self._thread, self._frame, self._thread.existing()
        records = records_for_rewind(thread, frame, self._noted, rerun_tools=False)
        move = MoveHead(thread.key, frame.seq, row.head_id, self._hold.epoch, load_meta(frame.meta).agent_id)
        beside = frameworks.going_back(thread, frame) if frame.seq != row.head else []
        ended = [self._record(kind, name, value) for (kind, name), value in {**records, (RUN, UNDO): None}.items()]
        with self._writing():
            thread.commit([move, *beside, *ended])
        return Undone(_newest_first(self._undone), _newest_first(self._plan.left))


def _newest_first(entries: list[CallEntry]) -> tuple[CallEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: Effect(entry).order, reverse=True))


def undo_records(thread: Lineage, entry: CallEntry) -> dict[str, dict[str, Any]]:
    """The records of kind CALL for the outcome of an undo: its own, and if it is done that of the call that it took back."""
    found = {entry.key: entry.to_dict()}
    if entry.undoes is not None and entry.status == CallStatus.DONE:
        effect = thread.values(CALL).get(entry.undoes)
        found |= {} if effect is None else {entry.undoes: {**effect, "undone_at": entry.ended_at}}
    return found


class UndoRun(Run):
    """The driver of an undo."""

    def undo(self) -> Undone:
        """Take every effect back, then move the head."""
        core = self._core
        assert isinstance(core, UndoCore)
        for effect in core.undoable:
            self._settle(core.prepare_undo(effect))
            core.refuse_failed(effect)
        return core.go_back()


class AsyncUndoRun(AsyncRun):
    """The driver of an undo whose functions may be asynchronous."""

    async def undo(self) -> Undone:
        """`UndoRun.undo`."""
        core = self._core
        assert isinstance(core, UndoCore)
        for effect in core.undoable:
            await self._settle(await self._do(core.prepare_undo, effect))
            core.refuse_failed(effect)
        return await self._do(core.go_back)
