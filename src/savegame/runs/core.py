"""What a run does between calls of user code: which calls are pending, what to do about each, and what to record.

No user code is called here and nothing waits, so that the synchronous and the asynchronous run drive the same core. Touches
journal, toolbox, keys, ledger, replies, messages, timeline and what is below them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Unpack

from savegame.checkpoint import Checkpoint
from savegame.details import Details
from savegame.errors import (
    CheckpointNotFound,
    InvalidInputError,
    InvalidState,
    Paused,
    UnavailableError,
    Unknown,
)
from savegame.messages import views
from savegame.messages.blocks import PAUSED_TURN, STOP_REASON
from savegame.messages.domain import Role
from savegame.messages.states import messages_in
from savegame.model import Frame, Kind, Status
from savegame.runs.boundary import RunBoundary
from savegame.runs.conversation import answer_message
from savegame.runs.effects import Effect, LeftEffects, facts, key_of, refuse_unfinished, tried_before_crash
from savegame.runs.generations import current_keys, generation, made_again
from savegame.runs.keys import CALL_KEY, KeyParts, calls_in, digest_of, parts_of, read_call, unanswered
from savegame.runs.lease import Hold
from savegame.runs.ledger import (
    JOURNALED,
    ROOT,
    CallEntry,
    CallStatus,
    is_journaled,
    is_open,
    leaves_note,
    question,
    refusal,
    reply_of,
)
from savegame.runs.replies import as_reply, number_twins, quoting, refuse_unread, storable_reply, storable_text
from savegame.runs.sdk_replies import read_reply
from savegame.runs.toolbox import Repeat, Tool, Toolbox
from savegame.store import StoreChange
from savegame.timeline.companions import ANSWER, CALL, RUN
from savegame.timeline.policy import Strategy
from savegame.timeline.timeline import Timeline

_NOTES: Final = {CallStatus.WAITING: "waiting for a person's answer"}


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call of the newest reply that has no answer in the conversation yet."""

    key: str
    call_id: str
    name: str
    arguments: Any
    tool: Tool | None
    wrong: str | None = None
    """Why it cannot be made with any tools: what it asks for is unreadable."""


@dataclass(frozen=True, slots=True)
class Go:
    """A call to make now."""

    pending: PendingCall
    tool: Tool
    entry: CallEntry
    """Its present or future ledger entry, with the attempt and the start time."""
    spent: dict[str, Any] = field(default_factory=dict)
    """The cost that the tool reported."""

    def again(self) -> Go:
        """The same call for the next attempt."""
        return replace(self, entry=replace(self.entry, attempt=self.entry.attempt + 1))


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A call whose answer is known without making it: it was made before, cannot be made, or a person refused it."""

    pending: PendingCall
    entry: CallEntry


class RunCore(RunBoundary):
    """The conversation of a thread under a lease, and the calls of its newest reply."""

    def __init__(
        self,
        thread: Timeline,
        tools: Toolbox,
        hold: Hold,
        strategy: Strategy,
        agent: str | None = None,
        *,
        undoing_to: str | None = None,
    ) -> None:
        super().__init__(thread, hold, strategy, agent)
        refuse_unfinished(thread.id, self._noted, undoing_to)
        self._tools = tools
        self._ledger: dict[str, CallEntry] = {}
        """Entries of the newest reply and of its earlier versions, by key."""
        self._noticed: set[str] = set()
        """Replies whose entries are in `_ledger`: reading the whole ledger of a long conversation would be slow."""
        self._keys: tuple[str, list[str]] | None = None
        """The newest reply, and the keys of its calls."""
        self._unkept: dict[str, CallEntry] = {}
        """Known outcomes that the store could not take yet: these calls are not made again."""
        self._said_here: set[str] = set()
        """The replies of this run: no other run can have started their calls."""
        self._tried: dict[str, CallEntry] = {}
        """Calls of this run that may run again, of which nothing is recorded before they end."""
        self._left = LeftEffects(thread, self.messages)

    # -- the conversation --------------------------------------------------------------------------

    def select_messages(self, system: str | None, **options: Any) -> list[dict[str, Any]]:
        """The messages for a model: valid for any provider, within the budget. The conversation does not change.

        `system` comes first, unless the conversation has the same system message.
        """
        budget = options.pop("budget", None)
        if budget is None:
            budget = self.state.get("max_context_tokens")
        prompt = {"role": Role.SYSTEM.value, "content": system}
        is_new = system and not any(one.get("role") == Role.SYSTEM and one.get("content") == system for one in self.messages)
        messages = [prompt, *self.messages] if is_new else self.messages
        return views.select_messages(messages, budget=budget, notes=self.notes, **options)

    @property
    def notes(self) -> dict[str, str]:
        """Texts for the model in place of missing answers, by call id, for calls with a ledger entry."""
        entries = {one.call_id: self._ledger.get(one.key) for one in self.pending()}
        return {call_id: _NOTES.get(entry.status, views.INTERRUPTED) for call_id, entry in entries.items() if entry is not None}

    def journal_reply(self, reply: Any, tokens_used: int | None, cost: float | None) -> Checkpoint:
        """Save a model's reply before any of its calls starts. Raises InvalidInputError if it is not a reply."""
        reply_id = self._thread.store.new_id(self._thread.key)
        spent = Details(tokens_used=tokens_used, cost=cost)
        with quoting(reply):
            given = read_reply(reply)
            refuse_unread(given)
            try:
                checkpoint = self._append_reply(as_reply(given), reply_id, **spent)
            except InvalidInputError:  # it was paid for: save what can be saved, and tell the model about the rest
                storable = storable_reply(given, self._thread.codec.encode)
                if storable is None:
                    raise
                checkpoint = self._append_reply(as_reply(storable), reply_id, **spent)
        self._said_here.add(reply_id)
        self._ledger, self._noticed, self._keys = {}, set(), None
        return checkpoint

    def _append_reply(self, reply: dict[str, Any], reply_id: str, **spent: Unpack[Details]) -> Checkpoint:
        number_twins(reply.get("tool_calls", ()))
        goes_on = reply.get("tool_calls") or reply.get(STOP_REASON) == PAUSED_TURN
        spent |= {"kind": Kind.LLM_RESPONSE, "status": "in_progress" if goes_on else "completed"}
        return self._append(reply | {"id": reply_id, JOURNALED: True}, id=reply_id, **spent)

    # -- tool calls --------------------------------------------------------------------------------

    def pending(self) -> list[PendingCall]:
        """The calls of the newest reply without an answer, in the model's order."""
        found = self._newest_reply()
        if found is None:
            return []
        place, reply = found
        calls = calls_in(self.messages[place])
        ids = [call.get("id") for call in calls]
        answers = [one for one in self.messages[place + 1 :] if one.get("role") == Role.TOOL]
        given = {(parts_of(one.get(CALL_KEY)).slot, str(one.get("tool_call_id"))) for one in answers}
        if all(((reply, str(index), ""), str(call_id)) in given for index, call_id in enumerate(ids)):  # nothing to look up
            return []
        keys = self._keys_of(place, reply)
        return [self._pending(keys[index], calls[index]) for index in unanswered(keys, ids, answers)]

    def open_calls(self) -> list[PendingCall]:
        """Like `pending`, for a caller that will make these calls.

        Raises Unknown if a started call is no longer part of the reply because the conversation was edited.
        """
        pending = self.pending()
        place, reply = self._newest_reply() or (0, "")
        if reply and reply not in self._said_here and calls_in(self.messages[place]):
            self._notice(reply)
            lost = self._lost(place, reply) if any(entry.begun for entry in self._ledger.values()) else None
            if lost is not None:
                raise Unknown(
                    f"call {lost.key} of {lost.name!r} was started, then edited out of the conversation, and its outcome is "
                    f"unknown; find out, then vault.resolve({self._thread.id!r}, {lost.key!r}, result)",
                    call=self._unknown(lost),
                )
        return pending

    def _newest_reply(self) -> tuple[int, str] | None:
        return reply_of(self.messages, lambda: self._root, self._thread.codec.encode)

    # -- which call is which -----------------------------------------------------------------------

    def _keys_of(self, place: int, reply: str) -> list[str]:
        """The keys of the calls of the newest reply. An edited call is another call, with its own key."""
        if self._keys is None or self._keys[0] != reply:
            encode, calls = self._thread.codec.encode, calls_in(self.messages[place])
            digests = [read_call(call, encode).digest for call in calls]
            before = [] if reply in self._said_here else self._versions(place, reply)
            known: dict[str, str] = {}
            for name, earlier in before:
                again = generation(self._noted, name)
                known |= {
                    str(KeyParts(name, str(index), again)): read_call(call, encode).digest for index, call in enumerate(earlier)
                }
            for name in dict.fromkeys((reply, *(name for name, _ in before))):
                known |= {entry.key: digest_of(entry.name, entry.arguments, encode) for entry in self._entries(name)}
            whole = any(name == reply for name, _ in before)
            keys = current_keys(self._noted, reply, digests, known, whole=whole)
            self._keys = reply, [made_again(key, self._ledger.get) for key in keys]
        return self._keys[1]

    def _versions(self, place: int, reply: str) -> list[tuple[str, Sequence[Any]]]:
        """Earlier versions of the newest reply: the start of their keys, and their calls.

        A journaled reply has the id of its checkpoint, which has the original; if that was pruned, only the ledger is left. A
        reply from elsewhere is keyed by its calls, so its versions are looked up at its place along this line.
        """
        thread, head = self._thread, self.checkpoint
        if head is None or head.id == reply:
            return [(reply, calls_in(self.messages[place]))]
        if is_journaled(self.messages[place]):
            try:
                found = thread.engine.find(thread.key.namespace, reply)
                messages = [] if found is None else self._messages_at(thread.at(found[0]), found[1])
            except CheckpointNotFound:  # pruned meanwhile
                messages = []
            return [(reply, calls_in(one)) for one in messages if isinstance(one, Mapping) and one.get("id") == reply]
        versions: list[tuple[str, Sequence[Any]]] = []
        for frame in thread.line(head.seq):
            messages = self._messages_at(thread, frame)
            found_at, name = reply_of(messages[: place + 1], lambda: self._root, thread.codec.encode) or (-1, "")
            if found_at != place:
                break
            if name != reply:
                versions.append((name, calls_in(messages[place])))
        return versions

    def _messages_at(self, thread: Timeline, frame: Frame) -> list[Any]:
        return messages_in(thread.codec, thread.point(frame.seq, frame).node)

    def _entries(self, reply: str) -> list[CallEntry]:
        """The ledger entries of a reply's calls, of its newest generation."""
        self._notice(reply)
        again = generation(self._noted, reply)
        found = [(entry, parts_of(entry.key)) for entry in self._ledger.values()]
        return [entry for entry, parts in found if (parts.reply, parts.generation) == (reply, again)]

    def _notice(self, reply: str) -> None:
        if reply not in self._noticed and reply not in self._said_here:
            self._noticed.add(reply)
            records = self._thread.beginning(CALL, f"{reply}:")
            found = {record.name: CallEntry.from_dict(record.name, self._thread.read(record)) for record in records}
            self._ledger = found | self._ledger

    def _lost(self, place: int, reply: str) -> CallEntry | None:
        """A started call that must not run again and is no longer part of the reply."""
        keys = self._keys_of(place, reply)
        names = dict.fromkeys(parts_of(key).reply for key in self._ledger)
        older = {name: generation(self._noted, name) for name in names}
        found = [(entry, parts_of(entry.key)) for entry in self._ledger.values() if entry.begun and entry.key not in keys]
        left = [entry for entry, parts in found if parts.generation >= older[parts.reply]]
        return next((entry for entry in left if (tool := self._tool(entry.name)) is None or is_open(entry, tool)), None)

    @cached_property
    def _newest(self) -> Frame | None:
        return next(iter(self._thread.store.frames(self._thread.key, limit=1, newest_first=True)), None)

    def _begun_after(self) -> dict[str, Any]:
        """The thread's newest checkpoint; after going back, that is not the head."""
        head, newest = self.checkpoint, self._newest
        is_older = newest is not None and (head is None or head.seq < newest.seq)
        return {"after": newest.seq, "after_id": newest.id} if newest and is_older else {"after": head.seq if head else 0}

    @cached_property
    def _root(self) -> str:
        """Represents this thread and its forks in the keys of replies that no run journaled."""
        found = self._noted.get(ROOT)
        if found is None:
            found = os.urandom(8).hex()
            self._commit([self._record(RUN, ROOT, found)])
        return str(found)

    def _pending(self, key: str, call: Mapping[str, Any]) -> PendingCall:
        asked = read_call(call, self._thread.codec.encode)
        tool = None if asked.wrong else self._tool(asked.name)
        return PendingCall(key, str(call.get("id") or key), asked.name, asked.arguments, tool, asked.wrong)

    def _tool(self, name: str) -> Tool | None:
        return next((tool for tool in self._tools if tool.name == name), None)

    def prepare(self, pending: PendingCall) -> Go | KnownCall:
        """Decide what to do about a call, and record what must be recorded before it is made.

        Raises Paused if a person has not answered yet, Unknown if it may have been made and must not be made again, Fenced if
        the lease was lost.
        """
        self.check()
        entry = self._unkept.get(pending.key) or self._ledger.get(pending.key)
        if entry is not None and entry.settled:
            return KnownCall(pending, entry)
        wrong = self._wrong(pending, entry)
        if wrong is not None and (entry is None or entry.status == CallStatus.WAITING):  # it was not started
            return self._failed(pending, wrong)
        if pending.tool is None:
            assert entry is not None
            raise Unknown(f"call {pending.key} of {pending.name!r}: {wrong}; resolve it", call=self._unknown(entry))
        try:
            same, effect = self._left.match(pending.key, pending.arguments, pending.tool, self._ledger)
        except InvalidInputError as error:  # what makes it the same as another call cannot be computed
            return self._failed(pending, str(error))
        if effect is not None and effect.reusable and pending.tool.repeat is Repeat.REUSE:
            return self._reuse(pending, effect)
        answer = self._answer(pending, pending.tool, entry, effect)
        refused = None if answer is None else refusal(answer)
        if refused is not None:
            return self._failed(pending, refused, effect)
        if answer is not None and answer.get("reuse"):
            return self._reuse(pending, effect)
        begun = self._ledger.get(pending.key)
        return self._begin(
            pending, pending.tool, begun, same=same, repeats=key_of(effect), comment=(answer or {}).get("comment")
        )

    def _reuse(self, pending: PendingCall, effect: Effect | None) -> KnownCall:
        if effect is None or not effect.reusable:
            return self._failed(pending, "a person chose the kept result, but it was removed meanwhile", effect)
        done = self._new(pending, CallStatus.DONE, ended_at=self._now(), result=effect.entry.result, repeats=key_of(effect))
        return KnownCall(pending, done)

    def _wrong(self, pending: PendingCall, entry: CallEntry | None) -> str | None:
        if pending.wrong is not None:
            return pending.wrong
        if pending.tool is None:
            names = ", ".join(sorted(tool.name for tool in self._tools)) or "(none)"
            unbegun = entry is not None or pending.key.split(":")[0] in self._said_here
            before = "" if unbegun else "; whether it was called before the run was resumed is unknown"
            return f"tool {pending.name!r} does not exist; available tools: {names}{before}"
        return pending.tool.check(pending.arguments)

    def _failed(self, pending: PendingCall, error: str, effect: Effect | None = None) -> KnownCall:
        given = {"ended_at": self._now(), "error": storable_text(error), "repeats": key_of(effect)}
        return KnownCall(pending, self._new(pending, CallStatus.FAILED, **given))

    def _answer(
        self, pending: PendingCall, tool: Tool, entry: CallEntry | None, effect: Effect | None
    ) -> dict[str, Any] | None:
        """A person's answer; None if none is needed, or the call was already started. Raises Paused if it is missing."""
        begun = entry is not None and entry.status != CallStatus.WAITING
        asks = tool.ask or (effect is not None and tool.repeat is not Repeat.RUN)
        if not asks and (entry is None or begun):
            return None
        given = self._thread.named(ANSWER, pending.key)
        answer: dict[str, Any] | None = None if given is None else self._thread.read(given)
        if begun and (answer is not None or not tool.may_run_again):
            return None
        if answer is None and asks:
            if entry is None or begun or entry.repeats != key_of(effect):  # a started entry is not an approval
                before = None if effect is None else facts(effect, self._thread, pending.arguments)
                asked = question(pending.name, pending.arguments, before)
                entry = self._new(pending, CallStatus.WAITING, asked=asked, repeats=key_of(effect), before=before)
                self._write(entry)
            why = "" if entry.before is None else f": {entry.asked}"
            raise Paused(f"call {pending.key} of {pending.name!r} waits for a person's answer{why}", call=entry)
        return answer

    def _begin(self, pending: PendingCall, tool: Tool, entry: CallEntry | None, **more: Any) -> Go:
        if entry is not None and is_open(entry, tool):
            raise Unknown(
                f"call {pending.key} of {pending.name!r} was started and its outcome is unknown; find out, then "
                f"vault.resolve({self._thread.id!r}, {pending.key!r}, result)",
                call=self._unknown(entry),
            )
        attempt = 1 if entry is None else entry.attempt + 1
        about = {"attempt": attempt, "started_at": self._now(), "kind": tool.kind.value, **self._begun_after()}
        begun = self._tried[pending.key] = self._new(pending, CallStatus.STARTED, **about, **more)
        if leaves_note(tool, pending.key, self._ledger.get):
            self._write(begun)
        return Go(pending, tool, begun)

    def _unknown(self, entry: CallEntry) -> CallEntry:
        """The entry of a started call, after recording that its outcome is unknown."""
        if entry.status == CallStatus.STARTED:
            entry = replace(entry, status=CallStatus.UNKNOWN)
            self._write(entry)
        return entry

    def finish(self, go: Go, result: Any) -> None:
        """Record the result of a call, or an error if it cannot be saved; the call is not repeated for that."""
        try:
            done = replace(go.entry, status=CallStatus.DONE, ended_at=self._now(), result=result, **go.spent)
            self.settle(go.pending, done)
        except (InvalidInputError, InvalidState) as error:  # nothing was written
            self.fail(replace(go, spent={}), f"it was done, but its result cannot be saved: {error}")

    def fail(self, go: Go, error: str) -> None:
        """Record why a call failed."""
        failed = replace(go.entry, status=CallStatus.FAILED, ended_at=self._now(), error=storable_text(error), **go.spent)
        self.settle(go.pending, failed)

    def lose(self, go: Go, why: str) -> None:
        """Record that the outcome of a call that must not be repeated is unknown. Raises Unknown."""
        entry = replace(go.entry, status=CallStatus.UNKNOWN, ended_at=self._now(), error=why, **go.spent)
        self._write(entry)
        raise Unknown(f"call {entry.key} of {entry.name!r}: {why}; find out, then resolve it", call=entry)

    def cut_short(self, go: Go, why: str) -> None:
        """Keep what is known of a call that was cancelled because the run is stopped: it may have taken effect."""
        if go.tool.may_run_again:
            self._tried[go.pending.key] = go.entry
        else:
            self._write(replace(go.entry, status=CallStatus.UNKNOWN, ended_at=self._now(), error=why, **go.spent))

    def settle(self, pending: PendingCall, entry: CallEntry) -> None:
        """Answer a call in the conversation and in the ledger, in one commit."""
        message = answer_message(entry, pending.call_id)
        known = self._ledger.get(pending.key)
        again = known is not None and known.settled  # its cost was counted when it was made
        details = Details(kind=Kind.TOOL_CALL, status="in_progress")
        if not again:
            details |= {"tokens_used": entry.tokens_used, "cost": entry.cost}
        records = [self._record(CALL, pending.key, entry.to_dict())]
        try:
            self._append(message, records, **details)
        except UnavailableError:
            self._unkept[pending.key] = entry
            raise
        self._unkept.pop(pending.key, None)
        self._ledger[pending.key] = entry

    def _waits_for_tools(self) -> bool:
        return bool(self.pending())

    def _save_stop(self, reason: str, beside: Sequence[StoreChange]) -> Checkpoint:
        """Known results are kept, calls that were not begun fail, and those whose outcome is unknown stay so."""
        found = [(pending, entry) for pending in self.pending() if (entry := self._at_stop(pending, reason)) is not None]
        records = [self._record(CALL, entry.key, entry.to_dict()) for _, entry in found]
        paid = [entry for _, entry in found if entry.key in self._unkept]
        costs = [entry.cost for entry in paid if entry.cost is not None]
        tokens = [entry.tokens_used for entry in paid if entry.tokens_used is not None]
        details = Details(kind=Kind.MANUAL, status=Status.halted(reason))
        details |= {"tokens_used": sum(tokens) if tokens else None, "cost": sum(costs) if costs else None}
        answers = [answer_message(entry, pending.call_id) for pending, entry in found]
        checkpoint = self._append_all(answers, [*records, *beside], **details)
        self._ledger |= {entry.key: entry for _, entry in found}
        self._unkept.clear()
        return checkpoint

    def _at_stop(self, pending: PendingCall, reason: str) -> CallEntry | None:
        """The entry with which a call ends because the run is stopped; None if it was begun and its outcome is unknown."""
        entry = self._unkept.get(pending.key) or self._ledger.get(pending.key)
        if entry is not None and (entry.settled or entry.begun):
            return entry if entry.settled else None
        error = f"the run was stopped before this call had a result: {reason}"
        ended: dict[str, Any] = {"status": CallStatus.FAILED, "ended_at": self._now(), "error": storable_text(error)}
        if pending.key in self._tried:
            return replace(self._tried[pending.key], **ended)
        new = self._new(pending, **ended)
        crashed = self._hold.taken_from is not None and parts_of(pending.key).reply not in self._said_here
        return tried_before_crash(new, pending.tool, self._thread) if crashed and pending.wrong is None else new

    def _new(self, pending: PendingCall, status: CallStatus, **more: Any) -> CallEntry:
        arguments = pending.arguments if isinstance(pending.arguments, dict) else {"": pending.arguments}
        return CallEntry(pending.key, pending.name, status, arguments, noted_at=self._now(), **more)

    def _write(self, entry: CallEntry) -> None:
        self._commit([self._record(CALL, entry.key, entry.to_dict())])
        self._ledger[entry.key] = entry

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Restore what is in memory if the block, a transaction that fails as a whole, raises."""
        before = (list(self.messages), dict(self.state), dict(self._ledger), self.checkpoint, self.status, dict(self._unkept))
        counts = (self._replies, self._chosen, self._chosen_at, set(self._names), self.spent)
        try:
            yield
        except BaseException:  # also an interrupt rolls the transaction back
            self.messages[:], self.state, self._ledger, self.checkpoint, self.status, self._unkept = before
            self._replies, self._chosen, self._chosen_at, self._names, self.spent = counts
            raise
