"""The conversation of a thread under a lease: read once, then every message, state and step is saved on top of it.

Every write carries the epoch of the lease, and whether the run's strategy chose it. Touches lease, ledger, messages,
timeline and what is below them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, Unpack

from savegame.checkpoint import Checkpoint
from savegame.details import Details
from savegame.encoding import diff
from savegame.encoding.delta import Op
from savegame.encoding.tree import Node
from savegame.errors import ClosedError, Fenced, InvalidInputError
from savegame.messages.blocks import PAUSED_TURN, STOP_REASON, spoken, unlisted_call
from savegame.messages.domain import Conversation, Message, Role, plain_messages
from savegame.messages.states import ABOUT, about_conversation
from savegame.model import Kind, Status
from savegame.runs.budget import Expenses, spent_until
from savegame.runs.inbox import time_of
from savegame.runs.keys import CALL_KEY
from savegame.runs.lease import Hold
from savegame.runs.ledger import TAKEOVERS, CallEntry, CallStatus
from savegame.store import PutRecord, StoreChange
from savegame.timeline.companions import RUN, STEP
from savegame.timeline.lineage import CHOSEN
from savegame.timeline.policy import Event, Strategy
from savegame.timeline.timeline import Terms, Timeline

NO_RESULT: Final = object()
_NOT_DONE: Final = {"value": NO_RESULT}


class RunConversation:
    """The conversation of a thread; all writes of a run go through here."""

    def __init__(self, thread: Timeline, hold: Hold, strategy: Strategy, agent: str | None) -> None:
        self._thread, self._hold, self._strategy, self._agent = thread, hold, strategy, agent
        newest = thread.latest()
        self.checkpoint = found = None if newest is None else newest.checkpoint
        state = {} if found is None else found.state
        if isinstance(state, Conversation):
            state = state.to_dict()
        messages = state.get("messages", []) if isinstance(state, dict) else None
        messages = plain_messages(messages) if isinstance(messages, list) else None
        if messages is None or not all(isinstance(message, dict) for message in messages):
            raise InvalidInputError(f"thread {thread.id!r} holds no conversation: its state has no list of messages")
        self.state: dict[str, Any] = {name: value for name, value in state.items() if name != "messages"}
        self.messages: list[dict[str, Any]] = messages
        self.status = Status("in_progress") if found is None else found.status
        self._noted: dict[str, Any] = thread.values(RUN)
        self._chosen, self._chosen_at = self._last_chosen(), None if found is None else found.created_at
        self._replies = sum(message.get("role") == Role.ASSISTANT for message in self.messages)
        self._names = set(self.state)
        self._asked: set[str] = set()
        self.spent = Expenses()
        """Since the work last ended, or since the run was entered if it has no budget."""

    def count_spent(self) -> None:
        """Also count what was spent before this run: a resumed run has what its budget left."""
        if self.checkpoint is not None:
            self.spent = spent_until(self._thread, self.checkpoint.seq)

    def _now(self) -> dt.datetime:
        return time_of(self._thread.store.clock())

    def _last_chosen(self) -> int:
        """Number of checkpoints that the strategies of this thread's runs have chosen so far."""
        if self.checkpoint is None:
            return 0
        found = self._thread.newest_mark(self.checkpoint.seq)
        return 0 if found is None else int(found[0])

    def _chooses(self, kind: str) -> bool:
        """Whether retention should keep a checkpoint: as the strategy decides; always for manual saves."""
        if kind == Kind.MANUAL:
            return True
        iteration = self._replies + (kind == Kind.LLM_RESPONSE)
        since = None if self._chosen_at is None else abs(self._now() - self._chosen_at)  # a save may have given any time
        events = [Event.TOOL_CALL] if kind == Kind.TOOL_CALL else [Event.LLM_RESPONSE, Event.ITERATION]
        return any(self._strategy.should_save(iteration, event, since_last=since) for event in events)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: the last message is an assistant's without calls, or the run was ended."""
        if str.__str__(self.status) in ("halted", "failed"):
            return True
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != Role.ASSISTANT or last.get("tool_calls") or last.get(STOP_REASON) == PAUSED_TURN:
            return False
        return unlisted_call(last) is None

    @property
    def reply(self) -> Any:
        """What the newest reply says; None if there is none."""
        return next((spoken(one.get("content")) for one in self._newest_replies()), None)

    def refuse_unlisted(self) -> None:
        """Raise InvalidInputError if the newest reply, written by others, has a call that no run would make."""
        unlisted = next((unlisted_call(one) for one in self._newest_replies()), None)
        if unlisted is not None:
            raise InvalidInputError(
                f"thread {self._thread.id!r}: its newest reply asks for a call in its content only ({unlisted}); list calls "
                f"as tool_calls=[{{'id', 'name', 'arguments'}}] of that message, and results as messages with the role 'tool'"
            )

    def _newest_replies(self) -> Iterator[dict[str, Any]]:
        return (one for one in reversed(self.messages) if one.get("role") == Role.ASSISTANT)

    # -- saving ------------------------------------------------------------------------------------

    def save(self, label: str | None, status: Status | None, resume_hint: str | None = None) -> Checkpoint:
        """Save a checkpoint of the current state."""
        return self._save(Details(label=label, status=status or self.status, resume_hint=resume_hint))

    def _save(self, details: Details, beside: Sequence[StoreChange] = ()) -> Checkpoint:
        if "messages" in self.state:
            raise InvalidInputError("run.state must not contain messages; add them with run.user() and run.model()")
        gone = sorted(self._names - self.state.keys())
        details |= {"kind": Kind.MANUAL}
        checkpoint = self._write_state([], self.state, gone, beside, **details)
        self._names = set(self.state)
        return checkpoint

    def _append(
        self,
        message: dict[str, Any],
        beside: Sequence[StoreChange] = (),
        *,
        id: str | None = None,  # noqa: A002 - one word per idea
        **details: Unpack[Details],
    ) -> Checkpoint:
        return self._append_all([message], beside, id=id, **details)

    def _append_all(
        self,
        messages: Sequence[dict[str, Any]],
        beside: Sequence[StoreChange] = (),
        *,
        id: str | None = None,  # noqa: A002 - one word per idea
        **details: Unpack[Details],
    ) -> Checkpoint:
        """Save messages, and other changes, in one commit and one checkpoint."""
        messages = [{**message, "timestamp": message.get("timestamp") or self._now()} for message in messages]
        newest = {"last_message_at": messages[-1]["timestamp"]} if messages else {}
        checkpoint = self._write_state(messages, newest, [], beside, id=id, **details)
        self.messages += messages
        self.state |= newest
        self._names |= newest.keys()
        self._replies += details["kind"] == Kind.LLM_RESPONSE
        return checkpoint

    def _write_state(
        self,
        messages: Sequence[dict[str, Any]],
        new: Mapping[str, Any],
        gone: Sequence[str],
        beside: Sequence[StoreChange] = (),
        *,
        id: str | None = None,  # noqa: A002 - one word per idea
        **details: Unpack[Details],
    ) -> Checkpoint:
        codec = self._thread.codec
        chosen = self._chooses(details["kind"])
        count = self._chosen + chosen

        def make(node: Node | None) -> tuple[list[Op], Node, Mapping[str, Any]]:
            appended = {"messages": list(messages)} if messages else {}
            ops, after = diff.update(codec, node, append=appended, set=new, delete=list(gone))
            return ops, after, {ABOUT: about_conversation(codec, after), CHOSEN: [count, chosen]}

        with self._writing():
            expect = None if self.checkpoint is None else self.checkpoint.id
            terms = Terms(expect, None, *self._hold.under, beside)
            asked = messages[0] if len(messages) == 1 else list(messages)
            checkpoint = self._thread.change(make, details, agent=self._agent, id=id, asked=asked, terms=terms)
        self.checkpoint, self.status = checkpoint, Status(details["status"])
        self.spent = self.spent.after(details)
        if chosen:
            self._chosen, self._chosen_at = count, self._now()
        return checkpoint

    # -- steps -------------------------------------------------------------------------------------

    def step(self, name: str) -> Any:
        """The recorded result of a step, or NO_RESULT. Raises Fenced if it is missing and the lease was lost."""
        if name in self._asked:  # it may have been recorded since, or rolled back with a transaction: ask the store
            found = self._thread.values(STEP).get(name, _NOT_DONE)["value"]
        else:
            self._asked.add(name)
            found = self._steps.pop(name, _NOT_DONE)["value"]
        if found is NO_RESULT:
            self.check()
        return found

    @cached_property
    def _steps(self) -> dict[str, Any]:
        """The steps at the first access. Only the holder of the lease records any."""
        return self._thread.values(STEP)

    def keep_step(self, name: str, value: Any) -> None:
        """Record the result of a step."""
        at = None if self.checkpoint is None else self.checkpoint.id
        records = [self._record(STEP, name, {"value": value, "at": at})]
        if self._hold.taken_from is not None:  # it made progress
            records.append(self._record(RUN, TAKEOVERS, None))
        self._commit(records)

    # -- under the lease ---------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if further work could not be saved, and so must not be done."""
        if self._hold.over:
            raise ClosedError(f"the run on thread {self._thread.id!r} has ended; resume with vault.run({self._thread.id!r})")
        if self._hold.lost.is_set():
            raise Fenced(f"thread {self._thread.id!r}: the lease with epoch {self._hold.epoch} was lost; stop")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self.check()
        try:
            yield
        except Fenced:
            self._hold.lost.set()
            raise

    def _commit(self, changes: Sequence[StoreChange]) -> None:
        """Write changes, of which the last is to a record."""
        with self._writing():
            *others, last = changes
            assert isinstance(last, PutRecord)
            self._thread.commit([*others, last._replace(renew_us=self._hold.under[1])])

    def _record(self, kind: str, name: str, value: Any, *, absent: bool = False) -> PutRecord:
        return self._thread.put(kind, name, value, epoch=self._hold.epoch, absent=absent)


def answer_message(entry: CallEntry, call_id: str) -> dict[str, Any]:
    """The message that answers a settled call."""
    failed = entry.status == CallStatus.FAILED
    answer = Message.tool_result(call_id, f"error: {entry.error}" if failed else entry.result)
    if failed:
        answer.metadata["is_error"] = True
    return answer.to_dict() | {CALL_KEY: entry.key}
