"""What a run does between calls of user code: read the conversation, journal replies and results, keep the ledger.

No user code is called here and nothing waits, so that the synchronous and the asynchronous run drive the same core. Every
write carries the epoch of the lease. Handed the Thread that it works on; touches toolbox, keys, ledger, lease, views,
lineage, domain, delta, store, model, errors.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from savegame.checkpoint import Checkpoint
from savegame.encoding import diff
from savegame.encoding.delta import Op
from savegame.encoding.tree import Node
from savegame.errors import (
    CheckpointNotFound,
    ClosedError,
    Fenced,
    InvalidInputError,
    InvalidState,
    Paused,
    UnavailableError,
    Unknown,
)
from savegame.messages.domain import Conversation, Message, Role, ToolCall, plain_messages
from savegame.model import Kind, Status, checked_id
from savegame.runs import views
from savegame.runs.keys import CALL_KEY, KeyParts, digest_of, keys_for, parts_of, read_call, unanswered
from savegame.runs.lease import Hold
from savegame.runs.ledger import (
    ANSWER,
    CALL,
    INPUT_KEY,
    JOURNALED,
    LOST,
    ROOT,
    RUN,
    STEP,
    TAKEOVERS,
    CallEntry,
    CallStatus,
    generation,
    is_journaled,
    question,
    reply_of,
)
from savegame.runs.replies import quoting, refuse_unread
from savegame.runs.toolbox import Tool, Toolbox, ToolKind
from savegame.store import PutRecord
from savegame.timeline.lineage import CHOSEN, line, messages_in, newest_mark
from savegame.timeline.policy import Event, Strategy

if TYPE_CHECKING:
    from savegame.thread import Thread

MISSING: Final = object()
_NOT_DONE: Final = {"value": MISSING}
_FEW: Final = 16

_NOTES: Final = {CallStatus.WAITING: "waiting for a person's answer"}


@dataclass(frozen=True, slots=True)
class Pending:
    """A call of the newest reply that has no answer in the conversation yet."""

    key: str
    call_id: str
    name: str
    arguments: Any
    tool: Tool | None
    wrong: str | None = None
    """Why it cannot be made, whatever tools there are: nobody can tell what it asks for."""


@dataclass(frozen=True, slots=True)
class Go:
    """A call that is to be made now."""

    pending: Pending
    tool: Tool
    entry: CallEntry
    """As it stands in the ledger, or will: with its attempt and the time at which it began."""
    spent: dict[str, Any] = field(default_factory=dict)
    """What the tool says that it cost."""

    def again(self) -> Go:
        """The same call, tried once more."""
        return replace(self, entry=replace(self.entry, attempt=self.entry.attempt + 1))


@dataclass(frozen=True, slots=True)
class Known:
    """A call whose answer is known without making it: it was made before, cannot be made, or a person refused it."""

    pending: Pending
    entry: CallEntry


class RunCore:
    """The conversation of a thread under a lease."""

    def __init__(
        self,
        thread: Thread,
        tools: Toolbox,
        hold: Hold,
        about: Callable[[Node], Mapping[str, Any]],
        now: Callable[[], dt.datetime],
        strategy: Strategy,
    ) -> None:
        self._thread, self._tools, self._hold, self._about, self._now = thread, tools, hold, about, now
        found = thread.latest()
        self.checkpoint: Checkpoint | None = found
        state = {} if found is None else found.state
        if isinstance(state, Conversation):
            state = state.to_dict()
        said = state.get("messages", []) if isinstance(state, dict) else None
        said = plain_messages(said) if isinstance(said, list) else None
        if said is None or not all(isinstance(message, dict) for message in said):
            raise InvalidInputError(f"thread {thread.id!r} holds no conversation: its state has no list of messages")
        self.state: dict[str, Any] = {name: value for name, value in state.items() if name != "messages"}
        self.messages: list[dict[str, Any]] = said
        self.status = Status("in_progress") if found is None else found.status
        self._noted: dict[str, Any] = thread.records(RUN)
        self._strategy = strategy
        self._chosen, self._chosen_at = self._last_chosen(), None if found is None else found.created_at
        self._replies = sum(message.get("role") == Role.ASSISTANT for message in self.messages)
        self._names = set(self.state)
        self._asked: set[str] = set()
        self._ledger: dict[str, CallEntry] = {}
        """Entries of the newest reply and of its earlier versions, by key."""
        self._noticed: set[str] = set()
        """Replies whose entries were read into `_ledger`: a long conversation has a long ledger."""
        self._keys: tuple[str, list[str]] | None = None
        """The newest reply, and the keys of its calls."""
        self._unkept: dict[str, CallEntry] = {}
        """Outcomes that the store could not take: they are known, so nothing is made again for them."""
        self._said_here: set[str] = set()
        """The replies of this run: nobody can have begun their calls before."""

    def _last_chosen(self) -> int:
        """How many checkpoints the strategies of this thread's runs chose so far."""
        if self.checkpoint is None:
            return 0
        found = newest_mark(self._thread._engine, self._thread._key, self.checkpoint.seq)
        return 0 if found is None else int(found[0])

    def _chooses(self, kind: Kind) -> bool:
        """Whether retention is to keep a checkpoint when it thins out: what the strategy says; always if asked for by hand."""
        if kind == Kind.MANUAL:
            return True
        iteration = self._replies + (kind == Kind.LLM_RESPONSE)
        since = None if self._chosen_at is None else abs(self._now() - self._chosen_at)  # a save may have said any time
        events = [Event.TOOL_CALL] if kind == Kind.TOOL_CALL else [Event.LLM_RESPONSE, Event.ITERATION]
        return any(self._strategy.should_save(iteration, event, since_last=since) for event in events)

    # -- what was said -----------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether there is nothing to do: the last word is the assistant's and calls nothing, or the run was ended."""
        if str.__str__(self.status) in ("halted", "failed"):
            return True
        last = self.messages[-1] if self.messages else {}
        return last.get("role") == Role.ASSISTANT and not last.get("tool_calls")

    @property
    def reply(self) -> Any:
        """The content of the newest reply; None if there is none."""
        return next((one.get("content") for one in reversed(self.messages) if one.get("role") == Role.ASSISTANT), None)

    def shown(self, **options: Any) -> list[dict[str, Any]]:
        """What a model is shown: valid for any provider, within the budget; the conversation itself stays as it is."""
        budget = options.pop("budget", None)
        if budget is None:
            budget = self.state.get("max_context_tokens")
        return views.shown(self.messages, budget=budget, notes=self.notes, **options)

    @property
    def notes(self) -> dict[str, str]:
        """What a model is told of calls that have no answer yet, by their ids, where there is more to say than nothing."""
        entries = {one.call_id: self._ledger.get(one.key) for one in self.pending()}
        return {call_id: _NOTES.get(entry.status, views.INTERRUPTED) for call_id, entry in entries.items() if entry is not None}

    def user(self, content: Any, key: str | None) -> bool:
        """Add what the user says. With a key that was there before nothing is added: False."""
        message = content if isinstance(content, (Mapping, Message)) else {"role": "user", "content": content}
        given = Message.of(message)
        if given.role in (Role.ASSISTANT, Role.TOOL):
            raise InvalidInputError(f"the user does not speak as {given.role}; run.model() and run.tools() add such messages")
        said = given.to_dict()
        if key is not None:
            if any(one.get(INPUT_KEY) == key for one in self.messages):
                return False
            said[INPUT_KEY] = key
        self._append(said, Kind.MANUAL, Status("in_progress"), [])
        return True

    def journal_reply(self, reply: Any, tokens_used: int | None, cost: float | None) -> Checkpoint:
        """Keep a model's reply before anything that it calls begins. Raises InvalidInputError for what is none."""
        reply_id = self._thread._engine.store.new_id(self._thread._key)
        spent = {"id": reply_id, "tokens_used": tokens_used, "cost": cost}
        with quoting(reply):
            refuse_unread(reply)
            try:
                made = self._append_reply(_reply(reply), **spent)
            except InvalidInputError:  # it was paid for: what of it can be kept is, and the model is told
                sayable = _sayable_reply(reply, self._thread._engine.codec.encode)
                if sayable is None:
                    raise
                made = self._append_reply(_reply(sayable), **spent)
        self._said_here.add(reply_id)
        self._ledger, self._noticed, self._keys = {}, set(), None
        return made

    def _append_reply(self, said: dict[str, Any], **details: Any) -> Checkpoint:
        _tell_apart(said.get("tool_calls", ()))
        status = Status("in_progress" if said.get("tool_calls") else "completed")
        said = said | {"id": details["id"], JOURNALED: True}
        return self._append(said, Kind.LLM_RESPONSE, status, [], **details)

    # -- tool calls --------------------------------------------------------------------------------

    def pending(self) -> list[Pending]:
        """The calls of the newest reply that nothing answers yet, in the model's order."""
        found = self._newest_reply()
        if found is None:
            return []
        place, reply = found
        calls = _calls_in(self.messages[place])
        ids = [call.get("id") for call in calls]
        answers = [one for one in self.messages[place + 1 :] if one.get("role") == Role.TOOL]
        given = {(parts_of(one.get(CALL_KEY)).slot, str(one.get("tool_call_id"))) for one in answers}
        if all(((reply, str(index), ""), str(call_id)) in given for index, call_id in enumerate(ids)):  # nothing to look up
            return []
        keys = self._keys_of(place, reply)
        return [self._pending(keys[index], calls[index]) for index in unanswered(keys, ids, answers)]

    def open_calls(self) -> list[Pending]:
        """`pending`, for a caller that will make these calls.

        Raises Unknown if a started call is no longer part of the reply because the conversation was edited.
        """
        pending = self.pending()
        place, reply = self._newest_reply() or (0, "")
        if reply and reply not in self._said_here and _calls_in(self.messages[place]):
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
        return reply_of(self.messages, lambda: self._root, self._thread._engine.codec.encode)

    # -- which call is which -----------------------------------------------------------------------

    def _keys_of(self, place: int, reply: str) -> list[str]:
        """The keys of the calls of the newest reply. An edited call is another call, with its own key."""
        if self._keys is None or self._keys[0] != reply:
            encode, calls = self._thread._engine.codec.encode, _calls_in(self.messages[place])
            digests = [read_call(call, encode).digest for call in calls]
            before = [] if reply in self._said_here else self._versions(place, reply)
            known: dict[str, str] = {}
            for name, said in before:
                again = generation(self._noted, name)
                known |= {
                    str(KeyParts(name, str(index), again)): read_call(call, encode).digest for index, call in enumerate(said)
                }
            for name in dict.fromkeys((reply, *(name for name, _ in before))):
                known |= {entry.key: digest_of(entry.name, entry.arguments, encode) for entry in self._entries(name)}
            whole = any(name == reply for name, _ in before)
            self._keys = reply, keys_for(reply, generation(self._noted, reply), digests, known, whole=whole)
        return self._keys[1]

    def _versions(self, place: int, reply: str) -> list[tuple[str, Sequence[Any]]]:
        """Earlier versions of the newest reply: the start of their keys, and their calls.

        A journaled reply has the id of its checkpoint, which has the original; if it was pruned, only the ledger knows. A
        reply from elsewhere is keyed by its calls, so each of its versions is looked up in its place along this line.
        """
        engine, key, head = self._thread._engine, self._thread._key, self.checkpoint
        if head is None or head.id == reply:
            return [(reply, _calls_in(self.messages[place]))]
        if is_journaled(self.messages[place]):
            try:
                found = engine.find(key.namespace, reply)
                said = [] if found is None else messages_in(engine, engine.point(found[0], found[1].seq, found[1]).node)
            except CheckpointNotFound:  # pruned meanwhile
                said = []
            return [(reply, _calls_in(one)) for one in said if isinstance(one, Mapping) and one.get("id") == reply]
        versions: list[tuple[str, Sequence[Any]]] = []
        for frame in line(engine, key, head.seq):
            said = messages_in(engine, engine.point(key, frame.seq, frame).node)
            found_at, name = reply_of(said[: place + 1], lambda: self._root, engine.codec.encode) or (-1, "")
            if found_at != place:
                break
            if name != reply:
                versions.append((name, _calls_in(said[place])))
        return versions

    def _entries(self, reply: str) -> list[CallEntry]:
        """The ledger entries of a reply's calls, of its newest generation."""
        self._notice(reply)
        again = generation(self._noted, reply)
        found = [(entry, parts_of(entry.key)) for entry in self._ledger.values()]
        return [entry for entry, parts in found if (parts.reply, parts.generation) == (reply, again)]

    def _notice(self, reply: str) -> None:
        if reply not in self._noticed and reply not in self._said_here:
            self._noticed.add(reply)
            found = {name: CallEntry.from_dict(name, kept) for name, kept in self._kept(CALL, f"{reply}:")}
            self._ledger = found | self._ledger

    def _lost(self, place: int, reply: str) -> CallEntry | None:
        """A started call that must not run again and is no longer part of the reply."""
        keys = self._keys_of(place, reply)
        names = dict.fromkeys(parts_of(key).reply for key in self._ledger)
        left = [entry for name in names for entry in self._entries(name) if entry.begun and entry.key not in keys]
        return next((entry for entry in left if (tool := self._tool(entry.name)) is None or _is_open(entry, tool)), None)

    @cached_property
    def _root(self) -> str:
        """Stands for this thread, and for those that are forked from it, in the keys of replies that no run has kept."""
        found = self._noted.get(ROOT)
        if found is None:
            found = os.urandom(8).hex()
            self._commit([self._record(RUN, ROOT, found)])
        return str(found)

    def _pending(self, key: str, call: Mapping[str, Any]) -> Pending:
        asked = read_call(call, self._thread._engine.codec.encode)
        tool = None if asked.wrong else self._tool(asked.name)
        return Pending(key, str(call.get("id") or key), asked.name, asked.arguments, tool, asked.wrong)

    def _tool(self, name: str) -> Tool | None:
        return next((tool for tool in self._tools if tool.name == name), None)

    def prepare(self, pending: Pending) -> Go | Known:
        """What is to be done about a call. What must be written down before it is made is written.

        Raises Paused if a person has not answered yet, Unknown if it may have been made already and must not be again,
        Fenced if the lease was lost.
        """
        self.check()
        entry = self._unkept.get(pending.key) or self._ledger.get(pending.key)
        if entry is not None and entry.settled:
            return Known(pending, entry)
        wrong = self._wrong(pending, entry)
        if wrong is not None and (entry is None or entry.status == CallStatus.WAITING):  # it was not begun
            return self._failed(pending, wrong)
        if pending.tool is None:
            assert entry is not None
            raise Unknown(f"call {pending.key} of {pending.name!r}: {wrong}; resolve it", call=self._unknown(entry))
        answer = self._answer(pending, pending.tool, entry) if pending.tool.ask else None
        refused = None if answer is None else _refusal(answer)
        if refused is not None:
            return self._failed(pending, refused)
        return self._begin(pending, pending.tool, self._ledger.get(pending.key), (answer or {}).get("comment"))

    def _kept(self, kind: str, beginning: str) -> Iterator[tuple[str, Any]]:
        """Records whose names start with `beginning`, by name."""
        thread, after = self._thread, beginning[:-1]
        while True:
            page = thread._engine.store.records(thread._key, kind, after=after, limit=_FEW)
            for record in page.items:
                if record.name.startswith(beginning):
                    yield record.name, thread._read(record)
            if page.next is None or (page.next > beginning and not page.next.startswith(beginning)):
                return
            after = page.next

    def _wrong(self, pending: Pending, entry: CallEntry | None) -> str | None:
        if pending.wrong is not None:
            return pending.wrong
        if pending.tool is None:
            names = ", ".join(sorted(tool.name for tool in self._tools)) or "(none)"
            unbegun = entry is not None or pending.key.split(":")[0] in self._said_here
            before = "" if unbegun else "; nobody knows whether it was called before the run was resumed"
            return f"there is no tool {pending.name!r}; there are: {names}{before}"
        return pending.tool.check(pending.arguments)

    def _failed(self, pending: Pending, error: str) -> Known:
        return Known(pending, self._new(pending, CallStatus.FAILED, ended_at=self._now(), error=_sayable(error)))

    def _answer(self, pending: Pending, tool: Tool, entry: CallEntry | None) -> dict[str, Any] | None:
        """What a person answered; None if the call was begun already. Raises Paused if nobody has answered yet."""
        kept: dict[str, Any] | None = dict(self._kept(ANSWER, pending.key)).get(pending.key)
        begun = entry is not None and entry.status != CallStatus.WAITING
        if begun and (kept is not None or not tool.may_run_again):
            return None
        if kept is None:
            if entry is None or begun:  # a started entry is no approval
                entry = self._new(pending, CallStatus.WAITING, asked=question(pending.name, pending.arguments))
                self._write(entry)
            raise Paused(f"call {pending.key} of {pending.name!r} waits for a person's answer", call=entry)
        return kept

    def _begin(self, pending: Pending, tool: Tool, entry: CallEntry | None, comment: str | None) -> Go:
        if entry is not None and _is_open(entry, tool):
            raise Unknown(
                f"call {pending.key} of {pending.name!r} was begun and nobody knows its outcome; find out, then "
                f"vault.resolve({self._thread.id!r}, {pending.key!r}, result)",
                call=self._unknown(entry),
            )
        attempt = 1 if entry is None else entry.attempt + 1
        begun = self._new(pending, CallStatus.STARTED, attempt=attempt, started_at=self._now(), comment=comment)
        if not tool.may_run_again:
            self._write(begun)
        return Go(pending, tool, begun)

    def _unknown(self, entry: CallEntry) -> CallEntry:
        """The entry of a call that was begun, once it is written down that nobody knows its outcome."""
        if entry.status == CallStatus.STARTED:
            entry = replace(entry, status=CallStatus.UNKNOWN)
            self._write(entry)
        return entry

    def finish(self, go: Go, result: Any) -> None:
        """Keep what a call gave. What cannot be kept is told instead; the call is not made again for that."""
        try:
            done = replace(go.entry, status=CallStatus.DONE, ended_at=self._now(), result=result, **go.spent)
            self.settle(go.pending, done)
        except (InvalidInputError, InvalidState) as error:  # nothing was written
            self.fail(replace(go, spent={}), f"it was done, but its result cannot be kept: {error}")

    def fail(self, go: Go, error: str) -> None:
        """Keep why a call failed."""
        failed = replace(go.entry, status=CallStatus.FAILED, ended_at=self._now(), error=_sayable(error), **go.spent)
        self.settle(go.pending, failed)

    def lose(self, go: Go, why: str) -> None:
        """Keep that nobody knows the outcome of a call that must not be made again. Raises Unknown."""
        entry = replace(go.entry, status=CallStatus.UNKNOWN, ended_at=self._now(), error=why, **go.spent)
        self._write(entry)
        raise Unknown(f"call {entry.key} of {entry.name!r}: {why}; find out, then resolve it", call=entry)

    def settle(self, pending: Pending, entry: CallEntry) -> None:
        """Answer a call in the conversation, and in the ledger, in one commit."""
        failed = entry.status == CallStatus.FAILED
        answer = Message.tool_result(pending.call_id, f"error: {entry.error}" if failed else entry.result)
        if failed:
            answer.metadata["is_error"] = True
        said = answer.to_dict() | {CALL_KEY: pending.key}
        known = self._ledger.get(pending.key)
        again = known is not None and known.settled  # it was paid for when it was made
        spent = {} if again else {"tokens_used": entry.tokens_used, "cost": entry.cost}
        kept = [self._record(CALL, pending.key, entry.to_dict())]
        try:
            self._append(said, Kind.TOOL_CALL, Status("in_progress"), kept, **spent)
        except UnavailableError:
            self._unkept[pending.key] = entry
            raise
        self._unkept.pop(pending.key, None)
        self._ledger[pending.key] = entry

    def _new(self, pending: Pending, status: CallStatus, **more: Any) -> CallEntry:
        arguments = pending.arguments if isinstance(pending.arguments, dict) else {"": pending.arguments}
        return CallEntry(pending.key, pending.name, status, arguments, noted_at=self._now(), **more)

    # -- other work --------------------------------------------------------------------------------

    def step(self, name: str) -> Any:
        """What a step gave before; MISSING if it was not done yet. Raises Fenced if it was not, and the lease was lost."""
        if name in self._asked:  # it may have been kept since, or taken back with a transaction: only the store knows
            found = self._thread.records(STEP).get(name, _NOT_DONE)["value"]
        else:
            self._asked.add(name)
            found = self._steps.pop(name, _NOT_DONE)["value"]
        if found is MISSING:
            self.check()
        return found

    @cached_property
    def _steps(self) -> dict[str, Any]:
        """The steps as they were at the first question. Nobody but the holder of the lease keeps any."""
        return self._thread.records(STEP)

    def keep_step(self, name: str, value: Any) -> None:
        """Keep what a step gave."""
        at = None if self.checkpoint is None else self.checkpoint.id
        kept = [self._record(STEP, name, {"value": value, "at": at})]
        if self._hold.taken_from is not None:  # it has got on
            kept.append(self._record(RUN, TAKEOVERS, None))
        self._commit(kept)

    def save(self, label: str | None, status: Status | None, resume_hint: str | None = None) -> Checkpoint:
        """A checkpoint of the state as it is now."""
        if "messages" in self.state:
            raise InvalidInputError("run.state is what is kept besides the messages; run.user() and run.model() add those")
        gone = sorted(self._names - self.state.keys())
        details = {"label": label, "resume_hint": resume_hint}
        made = self._write_state(None, self.state, gone, Kind.MANUAL, status or self.status, [], **details)
        self._names = set(self.state)
        return made

    # -- writing -----------------------------------------------------------------------------------

    def _append(
        self, said: dict[str, Any], kind: Kind, status: Status, records: Sequence[PutRecord], **details: Any
    ) -> Checkpoint:
        said = {**said, "timestamp": said.get("timestamp") or self._now()}
        newest = {"last_message_at": said["timestamp"]}
        made = self._write_state(said, newest, [], kind, status, records, **details)
        self.messages.append(said)
        self.state |= newest
        self._names |= newest.keys()
        self._replies += kind == Kind.LLM_RESPONSE
        return made

    def _write_state(
        self,
        said: dict[str, Any] | None,
        new: Mapping[str, Any],
        gone: Sequence[str],
        kind: Kind,
        status: Status,
        records: Sequence[PutRecord],
        **details: Any,
    ) -> Checkpoint:
        codec = self._thread._engine.codec
        chosen = self._chooses(kind)
        count = self._chosen + chosen

        def make(node: Node | None) -> tuple[list[Op], Node, Mapping[str, Any]]:
            appended = {} if said is None else {"messages": [said]}
            ops, after = diff.update(codec, node, append=appended, set=new, delete=list(gone))
            return ops, after, {**self._about(after), CHOSEN: [count, chosen]}

        with self._writing():
            made = self._thread._change(
                make,
                kind=kind,
                status=status,
                expect=None if self.checkpoint is None else self.checkpoint.id,
                under=self._hold.under,
                beside=records,
                asked=said,
                **details,
            )
        self.checkpoint, self.status = made, status
        if chosen:
            self._chosen, self._chosen_at = count, self._now()
        return made

    def _write(self, entry: CallEntry) -> None:
        self._commit([self._record(CALL, entry.key, entry.to_dict())])
        self._ledger[entry.key] = entry

    def _commit(self, records: list[PutRecord]) -> None:
        with self._writing():
            first, *others = records
            self._thread._engine.store.commit([first._replace(renew_us=self._hold.under[1]), *others])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self.check()
        try:
            yield
        except Fenced:
            self._hold.lost.set()
            raise

    def check(self) -> None:
        """Raise if nothing that is done from now on can be kept: then it must not be done."""
        if self._hold.over:
            raise ClosedError(f"the run on thread {self._thread.id!r} is over; enter another: vault.run({self._thread.id!r})")
        if self._hold.lost.is_set():
            raise Fenced(f"thread {self._thread.id!r}: the lease with epoch {self._hold.epoch} was lost; stop")

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """What was said and noted inside, in a transaction that fails as a whole, is forgotten again."""
        before = (list(self.messages), dict(self.state), dict(self._ledger), self.checkpoint, self.status, dict(self._unkept))
        counts = (self._replies, self._chosen, self._chosen_at, set(self._names))
        try:
            yield
        except BaseException:
            self.messages[:], self.state, self._ledger, self.checkpoint, self.status, self._unkept = before
            self._replies, self._chosen, self._chosen_at, self._names = counts
            raise

    def _record(self, kind: str, name: str, value: Any, *, absent: bool = False) -> PutRecord:
        return self._thread._record(kind, name, value, epoch=self._hold.epoch, absent=absent)


def _is_open(entry: CallEntry, tool: Tool) -> bool:
    """Whether a call was begun, and must not be made again before somebody has found out what became of it."""
    if entry.status == CallStatus.UNKNOWN and tool.kind is ToolKind.TRANSACTION:
        return entry.error != LOST  # it ended its own transaction
    return entry.begun and not tool.may_run_again


def _calls_in(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls of a message of the conversation, whatever they are."""
    return [call if isinstance(call, Mapping) else {} for call in message.get("tool_calls") or ()]


def _refusal(answer: Mapping[str, Any]) -> str | None:
    """What a model is told of a person's answer; None if that lets the call go on."""
    value = answer["value"]
    if value is True:
        return None
    why = value if value not in (False, None) else answer.get("comment")
    return "a person refused" if why is None else f"a person refused: {why}"


def _reply(given: Any) -> dict[str, Any]:
    """A model's reply as it is kept. Calls that nobody can read are kept as they are: the model is told what is wrong."""
    reply = {"role": "assistant", "content": given} if isinstance(given, str) else given
    calls = _calls_of(reply)
    try:
        message = reply if isinstance(reply, Message) else Message.from_dict(reply)
    except InvalidInputError:
        if not calls:
            raise
        said = _reply({"content": None, **reply, "tool_calls": []})
        return said | {"tool_calls": [_kept_call(call, number) for number, call in enumerate(calls)]}
    if message.role != Role.ASSISTANT:
        raise InvalidInputError(f"a model's reply has the role assistant, not {message.role}")
    return message.to_dict()


def _kept_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A call with an id that can be kept; if nobody can read it, otherwise as it was given."""
    given = call.get("id")
    try:
        named = {**call, "id": checked_id(given, "a call's id")}
    except InvalidInputError:
        named = {**call, "id": f"call-{number}"} | ({"given_id": _sayable(str(given))} if given else {})
    try:
        return ToolCall.from_dict({"arguments": {}, **named}).to_dict()
    except InvalidInputError:
        return named


def _calls_of(reply: Any) -> list[Mapping[str, Any]]:
    """The calls of a reply, if they are a list of such."""
    calls = reply.get("tool_calls") if isinstance(reply, Mapping) else None
    return calls if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls) else []


def _sayable_reply(reply: Any, encode: Callable[[Any], bytes]) -> Any:
    """A reply whose texts can be kept, and calls that cannot, as calls that nobody can read; None if it is as it was."""
    if isinstance(reply, str):
        return None if (text := _sayable(reply)) == reply else text
    given = reply.to_dict() if isinstance(reply, Message) else reply
    if not isinstance(given, Mapping):
        return None
    texts = {name: _sayable(value) if isinstance(value, str) else value for name, value in given.items()}
    calls = [_sayable_call(call, encode) for call in _calls_of(given)]
    said = {**texts, "tool_calls": calls} if calls else texts
    return None if said == given else said


def _sayable_call(call: Mapping[str, Any], encode: Callable[[Any], bytes]) -> Mapping[str, Any]:
    try:
        encode(dict(call))
        encode(_kept_call(call, 0))
    except InvalidState as error:
        inner = call.get("function")
        named = {**call, **inner} if isinstance(inner, Mapping) else call
        told = {name: _sayable(str(named[name])) for name in ("id", "name") if named.get(name)}
        return {**told, "arguments": f"(they could not be kept: {error})"}
    return call


def _tell_apart(calls: Sequence[dict[str, Any]]) -> None:
    """Give calls of one reply that came with the same id ids of their own: each is made, and answered."""
    taken = {call["id"] for call in calls}
    seen: set[str] = set()
    for call in calls:
        if call["id"] in seen:
            call["id"] = next(new for new in (f"{call['id']}-{number}" for number in itertools.count(2)) if new not in taken)
            taken.add(call["id"])
        seen.add(call["id"])


def _sayable(error: str) -> str:
    """A text that can be kept, whatever a tool put into its error."""
    return error.encode("utf-8", "backslashreplace").decode()
