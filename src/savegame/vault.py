"""What users hold: a Vault over one store. Threads are in `thread.py`. (Over 500 lines: every verb with its promise.)

Touches thread, agents, runs, search, transfer and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from inspect import isclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from savegame.checkpoint import Checkpoint
from savegame.encoding.classes import Upcast
from savegame.encoding.codec import Codec
from savegame.encoding.frames import load_meta, load_note, recode
from savegame.encoding.plain import Plain, maybe
from savegame.encoding.tree import Node
from savegame.errors import (
    Busy,
    CheckpointNotFound,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
)
from savegame.messages import states
from savegame.messages.agents import AgentAutosave, AgentInfo, Agents
from savegame.messages.conversations import ConversationInfo, Conversations
from savegame.messages.domain import AgentState, Conversation, Message
from savegame.model import (
    NEW_ID,
    CheckpointId,
    Kind,
    Report,
    Status,
    ThreadInfo,
    ThreadKey,
    ThreadRow,
    checked_id,
    checked_limit,
    checked_number,
    checked_or_new_id,
    checked_path,
    checked_text,
)
from savegame.present.diffs import Diff, changes_between
from savegame.runs.budget import Budget
from savegame.runs.inbox import InboxMessage
from savegame.runs.interrupts import graph_status
from savegame.runs.keeping import RunLedger
from savegame.runs.ledger import CallEntry
from savegame.runs.run import Run
from savegame.runs.runner import RunInfo, Runner, StaleRun
from savegame.runs.toolbox import Toolbox
from savegame.runs.undo import Undone, UndoRun
from savegame.search.catching_up import Hits, Query, search
from savegame.store import Capability, Store, StoreChange
from savegame.thread import Thread
from savegame.timeline import graveyard, pruning, subjects
from savegame.timeline.companions import PARENT, SOURCE
from savegame.timeline.derived import parent_of
from savegame.timeline.engine import Above, Engine, Naming
from savegame.timeline.lineage import Ref
from savegame.timeline.listing import Listed, listed, thread_rows
from savegame.timeline.policy import Retention, Strategy
from savegame.timeline.repair import repair
from savegame.timeline.subjects import Erased
from savegame.timeline.timeline import Timeline
from savegame.timeline.usage import Usage, usage
from savegame.timeline.verify import ignore, verify
from savegame.transfer import copying, exporting, importing

logger = logging.getLogger("savegame")

DEFAULT_CACHE: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one namespace and actual sizes of the whole store in bytes; `total` excludes the search index."""

    threads: int
    checkpoints: int
    agents: int
    conversations: int
    """Threads whose head was saved as a conversation: no states are read for this."""
    messages: int
    """The messages of those."""
    sizes: Mapping[str, int]
    cache_bytes: int
    damaged: int = 0
    """Threads that are damaged so that nothing of them is in these counts."""

    @property
    def total_bytes(self) -> int:
        """The size of the store on disk, or in memory for a memory store."""
        return self.sizes["total"]


def check_options(namespace: str, retention: Retention | None, cache_bytes: int) -> None:
    """Refuse invalid options before opening the store, which may create one."""
    graveyard.check_namespace(checked_id(namespace, "the namespace"))
    if retention is not None and not isinstance(retention, Retention):
        raise InvalidInputError(f"retention must be a Retention, for example Retention(max_checkpoints=100), not {retention!r}")
    checked_number(cache_bytes, "cache_bytes")


R = TypeVar("R")


class Rooms(NamedTuple):
    """The working parts of a vault."""

    engine: Engine
    conversations: Conversations
    agents: Agents
    runner: Runner

    def driver(self, make: Callable[..., R], agent: str | None, budget: Budget | None) -> Callable[..., R]:
        """Makes a run with this budget that shows the model the agent's system prompt."""
        if budget is not None and not isinstance(budget, Budget):
            raise InvalidInputError(f"budget must be a Budget(tokens=…, cost=…), not {type(budget).__name__}")
        load = None if agent is None else partial(self.agents.load, agent)

        def driver(*given: Any) -> R:
            return make(*given, budget=budget, load_agent=load)

        return driver


class _Above(Above):
    """What agents and runs decide for timelines."""

    ledger = RunLedger()

    def __init__(self, codec: Codec, agents: Agents) -> None:
        self._codec, self._agents = codec, agents

    def about(self, base_meta: bytes, node: Node) -> bytes:
        """`Above.about`."""
        return states.carried(self._codec, base_meta, node)

    def named(self, agents: Collection[str | None], but: Collection[ThreadKey] = ()) -> Mapping[str, frozenset[Naming]]:
        """`Above.named`."""
        return self._agents.named(agents, but)

    def let_go(self, gone: Mapping[ThreadKey, Collection[int] | None]) -> list[StoreChange]:
        """`Above.let_go`."""
        return self._agents.let_go(gone)


class Vault:
    """Threads and checkpoints over one store, and their maintenance. May be shared between threads."""

    def __init__(
        self,
        store: Store,
        *,
        namespace: str = "default",
        retention: Retention | None = None,
        compress: bool = True,
        cache_bytes: int = DEFAULT_CACHE,
    ) -> None:
        check_options(namespace, retention, cache_bytes)
        self.store = store
        self.namespace = checked_id(namespace, "the namespace")
        self.codec = Codec()
        compress = compress and not store.readable
        engine = Engine(store, self.codec, retention or Retention(), compress=compress, cache_bytes=cache_bytes)
        conversations = Conversations(engine, self.namespace)
        agents = Agents(engine, self.namespace, conversations)
        engine.above = _Above(self.codec, agents)
        self.rooms = Rooms(engine, conversations, agents, Runner(engine, self.namespace))
        """What the verbs stand on: for code beside this class, not for users."""

    def __repr__(self) -> str:
        where = self.store.path or f"{self.store.scheme}:"
        return f"<Vault {where!r}>" if self.namespace == "default" else f"<Vault {where!r} namespace {self.namespace!r}>"

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and empty the cache. A second call does nothing."""
        self.store.close()
        self.rooms.engine.cache.clear()

    def thread(
        self,
        id: str = NEW_ID,  # noqa: A002 - the design's names
        *,
        agent: str | None = None,
        type: type | None = None,  # noqa: A002
        foreign: Callable[[str, bytes], Any] | None = None,
        child_of: str | None = None,
        copy_of: str | None = None,
    ) -> Thread:
        """A handle on a thread, which need not exist yet; without an id on a new one. With `type`, states are of that class.

        With `type=Conversation`, every thread that `load_conversation` can read is loaded as a conversation.

        The others are for adapters. `foreign`: how to decode leaves that a framework serialised; otherwise they are shown as
        plain data. `child_of`: the parent thread; deleting it deletes this one. `copy_of`: the thread that this one is copied
        from; erasing it erases this one.
        """
        if agent is not None:
            checked_id(agent, "the agent's id")
        if type is not None and not self.codec.knows(type) and not (isclass(type) and issubclass(type, Plain)):
            self.codec.register(type)
        key = ThreadKey(self.namespace, checked_or_new_id(id))
        origins = {
            kind: ThreadKey(self.namespace, checked_id(origin, "a thread's id"))
            for kind, origin in ((PARENT, child_of), (SOURCE, copy_of))
            if origin is not None
        }
        codec = self.codec if foreign is None else self.codec.reading(foreign)
        restore = None if type is None else states.restorer(codec, key.id, type)
        return Thread(Timeline(self.rooms.engine, key, codec, restore), agent, origins)

    def register(self, cls: type, *, schema_version: int = 1, upcast: Upcast | None = None, name: str | None = None) -> None:
        """Load objects of a class as objects; `upcast(fields, version)` converts fields of older versions."""
        self.codec.register(cls, schema_version=schema_version, upcast=upcast, name=name)

    # -- finding -----------------------------------------------------------------------------------

    def threads(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[ThreadInfo]:
        """Threads by id, all unless there is a `limit`; `after` continues after an id. `status` is that of the head.

        A thread with a damaged head is listed with `damage`, unless filtered by status or tag.
        """
        wanted = None if status is None else Status(status)
        agent = None if agent is None else checked_id(agent, "the agent's id")
        after = maybe(checked_text, after, "after")
        threads = listed(self.rooms.engine, self.namespace, agent=agent, after=after)
        infos = ((self._info(thread), thread.row) for thread in threads)
        found = (info for info, row in infos if info is not None and self._fits(info, row, wanted, tag))
        return islice(found, checked_limit(limit))

    def info(self, thread_id: str) -> ThreadInfo | None:
        """The entry of `threads` for one thread; None if it has no head."""
        key = ThreadKey(self.namespace, checked_id(thread_id, "a thread's id"))
        try:
            row = self.store.thread(key)
            head = None if row is None or not row.head else self.store.head_frames([row])[0]
        except CorruptionError as error:
            return ThreadInfo.damaged(thread_id, str(error))
        return None if row is None or head is None else self._info(Listed(thread_id, row, head))

    def fingerprints(self) -> dict[str, bytes]:
        """A few bytes for every thread, which change with its checkpoints, head, notes and records.

        Quick: for programs that derive something from every thread and want to re-read only changed ones. Compare only
        fingerprints of the same vault; that of a damaged thread is empty.
        """
        ids = [thread_id for thread_id, _ in self.store.heads(self.namespace)]
        marks = self.store.fingerprints([ThreadKey(self.namespace, thread_id) for thread_id in ids])
        return dict(zip(ids, marks, strict=True))

    def _fits(self, info: ThreadInfo, row: ThreadRow | None, wanted: Status | None, tag: str | None) -> bool:
        if info.damage is not None or row is None:
            return wanted is None and tag is None
        right = wanted is None or info.status == (wanted if wanted.reason is not None else str.__str__(wanted))
        return right and (tag is None or self._has_tag(row, tag))

    def _info(self, listed: Listed) -> ThreadInfo | None:
        """The entry of a listing; None if the thread was deleted meanwhile."""
        if listed.row is None or listed.head is None:
            return ThreadInfo.damaged(listed.id, str(listed.damage))
        row = listed.row
        try:
            frames = [listed.head, *self.store.frames(row.key, limit=1)]
        except CorruptionError as error:
            return ThreadInfo.damaged(listed.id, str(error))
        if len(frames) < 2:
            return None
        head, first = (load_meta(frame.meta) for frame in frames)
        return ThreadInfo(
            row.key.id,
            row.agent,
            CheckpointId(row.head_id or ""),
            head.step,
            self._timeline(row.key).count_visible(row),
            head.size_bytes,
            graph_status(self._timeline(row.key), head),
            first.created_at,
            head.created_at,
            first.forked_from,
            child_of=None if head.external_id is None else parent_of(self._timeline(row.key)),  # only frameworks have children
        )

    def _has_tag(self, row: ThreadRow, tag: str) -> bool:
        try:
            return bool(self._timeline(row.key).fitting(row, lambda frame: tag in load_note(frame.note)[1], noted=True))
        except CorruptionError:  # whether it had one is unknown; verify reports it
            return False

    def _timeline(self, key: ThreadKey) -> Timeline:
        return Timeline(self.rooms.engine, key)

    def find(self, id: str) -> Checkpoint | None:  # noqa: A002 - the design's name
        """The checkpoint with this id, of any thread, with its state; None if it does not exist."""
        found = self.rooms.engine.find(self.namespace, checked_id(id, "a checkpoint's id"))
        if found is None:
            return None
        key, _ = found
        try:
            return states.without_expectation(self._timeline(key).load(id))
        except NotFoundError:  # hidden by retention, or deleted between the two reads
            return None

    def load(self, id: str) -> Checkpoint:  # noqa: A002 - the design's name
        """Like `find`, but raises CheckpointNotFound."""
        found = self.find(id)
        if found is None:
            raise CheckpointNotFound(f"checkpoint not found: {id!r}; thread.history() lists those of a thread")
        return found

    def diff(self, a: str, b: str) -> Diff:
        """What changed between two checkpoints, of any threads, by their ids."""
        return changes_between(self.codec, self.load(a).state, self.load(b).state)

    def search(
        self,
        query: str,
        *,
        agent: str | None = None,
        limit: int | None = 20,
        match: str = "words",
        markers: tuple[str, str] = ("[", "]"),
        progress: Callable[[int, int], None] = ignore,
    ) -> Hits:
        """Threads by the words of their messages, best first; indexes new messages first.

        A message matches if each word of the query is one of its words or the start of one; "quoted words" must be adjacent.
        If no message matches, the query is searched as text, inside words too. With `match="substring"` it always is: every
        thread with a message that contains the query, ignoring case, newest first. An empty query finds every thread with a
        message.
        """
        wanted = None if agent is None else checked_id(agent, "the agent's id")
        return search(self.rooms.engine, self.namespace, Query.checked(query, wanted, limit, match, markers), progress)

    def drop_search_index(self) -> None:
        """Remove the search index beside the store; the next search rebuilds it."""
        self.store.index().drop()

    # -- agents and conversations ------------------------------------------------------------------

    def save_agent(self, agent: AgentState | Mapping[str, Any], *, force: bool = False) -> Checkpoint:
        """Save an agent by its id; its version increases by one.

        Raises ConflictError if a loaded agent was saved by another writer since; `force` saves it anyway.
        """
        return self.rooms.agents.save(agent, force=force)

    def load_agent(self, agent_id: str) -> AgentState | None:
        """The agent with this id; None if it does not exist."""
        return self.rooms.agents.load(agent_id)

    def delete_agent(self, agent_id: str) -> bool:
        """Delete an agent with its conversations, all its other threads and their child threads, all or none.

        Returns False if nothing existed.
        """
        return self.rooms.agents.delete(agent_id)

    def agents(self) -> Iterator[AgentInfo]:
        """Agents by id, without their states, read in pages."""
        return self.rooms.agents.every()

    def save_conversation(self, conversation: Conversation | Mapping[str, Any], *, force: bool = False) -> Checkpoint:
        """Save a whole conversation by its id; writes only what changed.

        Raises ConflictError if a loaded conversation was changed by another writer since; `force` saves it anyway.
        """
        return self.rooms.conversations.save(conversation, force=force)

    def load_conversation(self, conversation_id: str) -> Conversation | None:
        """The conversation with this id, or any thread whose state has a list of messages; None if it does not exist."""
        return self.rooms.conversations.load(conversation_id)

    def add_message(
        self,
        conversation_id: str,
        message: Message | Mapping[str, Any],
        *,
        id: str | None = None,  # noqa: A002 - the design's name
    ) -> Checkpoint:
        """Append one message, also with concurrent writers; writes only that message. `id` makes a retry safe, as in `save`.

        Raises ThreadNotFound if the conversation does not exist.
        """
        return self.rooms.conversations.add_message(conversation_id, message, id)

    def delete_conversation(self, conversation_id: str) -> bool:
        """Delete a conversation with its records and child threads. Returns False if it did not exist."""
        return self.rooms.conversations.delete(conversation_id)

    def conversations(
        self,
        agent: str | None = None,
        *,
        tag: str | None = None,
        archived: bool | None = None,
        limit: int | None = None,
    ) -> Iterator[ConversationInfo]:
        """Conversations of one agent or all, without their messages, sorted by newest message first."""
        return self.rooms.conversations.every(agent=agent, tag=tag, archived=archived, limit=limit)

    def checkpoint_agent(
        self,
        agent_id: str,
        name: str | None = None,
        kind: str = Kind.MANUAL,
        *,
        description: str | None = None,
    ) -> Checkpoint:
        """Save an agent and the heads of all its conversations at this moment as a checkpoint with the label `name`.

        Raises NotFoundError if the agent does not exist.
        """
        return self.rooms.agents.checkpoint(agent_id, name, kind, description)

    def autosave_agents(
        self,
        agent_ids: Iterable[str],
        every: dt.timedelta = dt.timedelta(minutes=5),
        *,
        keep: int | None = None,
        on_error: Callable[[Exception], object] | None = None,
    ) -> AgentAutosave:
        """Checkpoint these agents automatically, at once and then at the interval `every`, in a background thread.

        A context manager; `stop()` ends it too. Agents that do not exist or have not changed are skipped. With `keep`, only
        that many of the newest automatic checkpoints of each stay. Errors are logged, passed to `on_error` and collected.
        Raises AlreadyExistsError while another one runs for one of them.
        """
        return AgentAutosave(self.rooms.agents, agent_ids, every=every, keep=keep, on_error=on_error)

    def agent_checkpoints(self, agent_id: str, *, limit: int | None = None) -> Iterator[Checkpoint]:
        """The checkpoints of `checkpoint_agent`, and the undo points of `restore_agent`, newest first."""
        return self.rooms.agents.checkpoints(agent_id, limit)

    def restore_agent(self, checkpoint_id: str, *, skip_missing: bool = False) -> AgentState:
        """Move an agent and all its conversations back to a checkpoint, all or none. Returns the agent.

        Later checkpoints stay as branches; conversations created later leave the listings, and deleted ones come back. A
        checkpoint of kind recovery is made first: restoring it undoes this. Conversations that were erased or pruned since
        raise CheckpointNotFound, unless `skip_missing`.
        """
        return self.rooms.agents.restore(checkpoint_id, skip_missing=skip_missing)

    def delete_checkpoint(self, id: str) -> bool:  # noqa: A002 - the design's name
        """Delete one checkpoint, of any thread. Returns False if it did not exist."""
        found = self.rooms.engine.find(self.namespace, checked_id(id, "a checkpoint's id"))
        try:
            return found is not None and pruning.remove(self._timeline(found[0]), [id]) > 0
        except NotFoundError:  # hidden by retention, or deleted meanwhile
            return False

    # -- runs --------------------------------------------------------------------------------------

    def run(
        self,
        thread_id: str,
        *,
        agent: str | None = None,
        tools: Toolbox | None = None,
        strategy: Strategy | str | None = None,
        lease: dt.timedelta = dt.timedelta(seconds=30),
        budget: Budget | None = None,
    ) -> AbstractContextManager[Run]:
        """Work on a thread under a lease: `with vault.run("support-42", tools=tools) as run:`. Call it again to resume.

        Raises Busy if another process or thread holds the lease. A holder whose process on this machine has ended is replaced
        at once, others after their lease expired. While it is held, other writers cannot move the head. Every reply and result
        is saved at once; `strategy` chooses those that the vault's retention keeps longest (default: those after tool calls).
        With a `budget` the run halts once that much is spent. The model is shown the system prompt of the `agent`.
        """
        driver = self.rooms.driver(Run, agent, budget)
        return self.rooms.runner.run(thread_id, agent, tools, lease, driver, strategy=strategy)

    def calls(self, thread_id: str) -> Iterator[CallEntry]:
        """The ledger of a thread: the status and outcome of each tool call, then the interrupts of its LangGraph graph.

        Those of subgraphs are listed with the outermost graph.
        """
        return self.rooms.runner.calls(thread_id)

    def effects(self, thread_id: str, *, after: Ref | None = None) -> Iterator[CallEntry]:
        """The calls that may have changed the world, in order: those begun after a checkpoint, or all.

        They may be on the head's line or, with `left` set, on lines that were left; `undone_at` says when one was taken back. A
        fork lists, with `made_in` set, what its source had done elsewhere when the fork was made.
        """
        return self.rooms.runner.effects(thread_id, after)

    def undo(self, thread_id: str, *, to: Ref, tools: Toolbox, dry_run: bool = False) -> Undone:
        """Take back what was done after a checkpoint, newest first, by the `undo` functions of the tools; then move the head.

        Covers the head's line and lines that were left. Calls without `undo` or without a kept result stay, and are in `left`.
        Raises UndoFailed, or Unknown, where one cannot be taken back, and Busy while a run holds the thread. Call it again to
        continue: nothing is taken back twice. Until it has finished, runs, rewinds and restores raise UndoUnfinished. With
        `dry_run`, nothing is done: the result lists what would be.
        """
        runner = self.rooms.runner
        if dry_run:
            return runner.plan_undo(thread_id, to, tools)
        with runner.undo(thread_id, to, tools, UndoRun) as undoing:
            return undoing.undo()

    def answer(
        self, thread_id: str, call: str | CallEntry, value: Any, *, comment: str | None = None, reuse: bool = False
    ) -> bool:
        """Answer a call that waits for a person: True allows it, anything else refuses it and becomes its error for the model.

        If the call repeats one on a line that was left, True with `reuse` answers it with the kept result, without running it.
        A `comment` stays in the ledger. The first answer wins: returns False if there was one, or the call does not wait. No
        process needs to be running. An interrupt of a LangGraph graph, by its id, returns `value` when the graph is invoked
        again with None; raises NotFoundError if the graph has gone on.
        """
        return self.rooms.runner.answer(thread_id, call, value, comment, reuse=reuse)

    def resolve(
        self,
        thread_id: str,
        call: str | CallEntry,
        result: Any = None,
        *,
        error: str | None = None,
    ) -> None:
        """Record the outcome of a call whose outcome is unknown: its result, or its error."""
        self.rooms.runner.resolve(thread_id, call, result, error, dt.timedelta(seconds=30))

    def send(self, thread_id: str, content: Any, key: str | None = None) -> bool:
        """Leave a user message for a thread, also while a run works on it: its next look into the inbox takes it in.

        If none works on it, the thread is stale until one does. Returns False if the thread had the `key` (a webhook's id, a
        click) before: each counts once for ever. A thread that does not exist begins with the message. Order is kept per
        sender. Raises InvalidInputError if the thread holds no conversation.
        """
        return self.rooms.runner.send(thread_id, content, key)

    def inbox(self, thread_id: str) -> Iterator[InboxMessage]:
        """The messages of `send` that no run has taken in yet, in order."""
        return self.rooms.runner.inbox(thread_id)

    def unsend(self, thread_id: str, key: str) -> bool:
        """Take a message back. Returns False if it is not in the inbox (any more). Its key stays used."""
        return self.rooms.runner.unsend(thread_id, key)

    def stop(self, thread_id: str, reason: str = "stopped by a person") -> bool:
        """Stop the run of a thread: it halts before it begins another call, keeps what is known, and raises Stopped.

        If no run holds the thread, it is halted at once. Only a later message reopens it. Returns False if it had ended
        already. An undo stops before its next effect and is unfinished then. Raises ThreadNotFound if the thread does not
        exist, and UndoUnfinished if nothing is live there but an undo is unfinished.
        """
        return self.rooms.runner.stop(thread_id, reason)

    def stale(self) -> Iterator[StaleRun]:
        """Runs that no process holds and that should go on: they crashed, messages came, or a sleep is over."""
        return self.rooms.runner.stale()

    def runs(self) -> Iterator[RunInfo]:
        """Runs that are held by a process, and those of `stale`."""
        return self.rooms.runner.runs()

    def supervise(
        self,
        resume: Callable[[str], Any],
        *,
        poll: dt.timedelta = dt.timedelta(seconds=1),
        give_up_after: int = 3,
        stop: threading.Event | None = None,
        once: bool = False,
    ) -> int:
        """Call `resume(thread_id)` for every run that goes stale, until `stop` is set. Returns the number of completed calls.

        Waits `poll` between two looks, or until the next sleep is over. A run taken over `give_up_after` times without progress
        is marked as failed ("stuck: ..."). With `once`, only runs that are stale now are resumed.
        """
        return self.rooms.runner.supervise(resume, poll=poll, give_up_after=give_up_after, stop=stop, once=once)

    def erase(self, subject: str, *, dry_run: bool = False) -> Erased:
        """Delete every thread of a subject, its child threads, and all forks and copies of them.

        The result lists what it could not reach. With `dry_run`, nothing is deleted: `threads` are those that would be.
        """
        return subjects.erase(self.rooms.engine, self.namespace, subject, dry_run=dry_run)

    # -- looking after -----------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Counts of this namespace, and sizes of the store."""
        damaged: set[str] = set()
        rows = list(thread_rows(self.rooms.engine, self.namespace, damaged))
        conversations = list(self.rooms.conversations.infos(None, read=False))
        return Stats(
            threads=sum(row.head > 0 for row in rows),
            checkpoints=sum(self._timeline(row.key).count_visible(row) for row in rows),
            agents=sum(1 for _ in self.agents()),
            conversations=len(conversations),
            messages=sum(info.message_count for info in conversations),
            sizes=self._sizes(),
            cache_bytes=self.rooms.engine.cache.bytes,
            damaged=len(damaged),
        )

    def usage(self, *, by: str = "agent") -> list[Usage]:
        """Tokens and cost by "agent", by "day" (UTC) or by "thread", in the order of the keys.

        `tokens_used` and `cost` of a checkpoint are for that checkpoint alone, not up to it. Branches count, and so do
        checkpoints that were pruned, discarded or hidden by retention; deleting a thread removes its usage. Damaged threads are
        left out and logged.
        """
        return usage(self.rooms.engine, self.namespace, by)

    def _sizes(self) -> dict[str, int]:
        found = self.store.sizes()
        return {**found, "search": self.store.index().size()} if Capability.SEARCH in self.store.capabilities else found

    def verify(self, thread_id: str | None = None, progress: Callable[[int, int], None] = ignore) -> Report:
        """Read every byte of this namespace, or of one thread, and report damage.

        Includes deleted threads that are kept. Checking one thread reads only that thread, and nothing that threads share.
        Raises ThreadNotFound if the thread does not exist.
        """
        wanted = None if thread_id is None else checked_id(thread_id, "a thread's id")
        return verify(self.rooms.engine, self.namespace, progress, wanted)

    def repair(self, progress: Callable[[int, int], None] = ignore) -> Report:
        """Set damaged data aside without deleting it, keep what can be recovered, and report what was done."""
        return repair(self.rooms.engine, self.namespace, progress)

    def prune(
        self,
        *,
        keep: int | None = None,
        older_than: dt.timedelta | None = None,
        include_labelled: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int], None] = ignore,
    ) -> int:
        """`Thread.prune` for every thread. Returns the number removed; damaged threads raise CorruptionError at the end.

        Threads held by a live run are skipped and logged; a `dry_run` counts them.
        """
        ids = [thread_id for thread_id, _ in self.store.heads(self.namespace)]
        removed, damage = 0, []
        for done, thread_id in enumerate(ids, 1):
            thread = self.thread(thread_id)
            try:
                removed += thread.prune(keep=keep, older_than=older_than, include_labelled=include_labelled, dry_run=dry_run)
            except CorruptionError as error:
                damage.append(error)
            except Busy as error:
                logger.info("not pruned: %s", error)
            progress(done, len(ids))
        if damage:
            raise damage[0]
        return removed

    def compact(self, progress: Callable[[int, int], None] = ignore) -> None:
        """Make the store as small as possible; every checkpoint stays."""
        self.store.compact(bytes if self.store.readable else recode, progress)

    def backup(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] = ignore) -> None:
        """Copy the store to a new file while others write; the copy opens like any other store."""
        self.store.backup(checked_path(path), progress)

    def copy_to(self, other: Vault, progress: Callable[[int, int], None] = ignore, *, full: bool = False) -> int:
        """Copy every thread to another vault, with the same ids and digests. Returns the number of copied checkpoints.

        The copy is read back and compared with the source: CorruptionError names what differs. A second call copies and
        compares only what is new, and continues a killed copy; `full` compares everything again. Threads that are damaged, or
        have diverged in the copy (ConflictError), raise when all others are done.
        """
        if not isinstance(other, Vault):
            raise InvalidInputError(f"copy_to needs another vault that is open, not {other!r}")
        return copying.copy(self.rooms.engine, other.rooms.engine, self.namespace, other.namespace, progress, full=full)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        threads: Sequence[str] | None = None,
        agent: str | None = None,
        progress: Callable[[int, int], None] = ignore,
    ) -> int:
        """Write all threads, those named, or those of an agent to a new file of JSON lines. Returns their checkpoint count.

        The checkpoints of each thread are those of one moment; others may write meanwhile. The file appears whole and flushed,
        or not at all.
        """
        return exporting.export(
            self.rooms.engine, self.namespace, checked_path(path), threads=threads, agent=agent, progress=progress
        )

    def import_(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] = ignore) -> int:
        """Import every thread of a file of `export`, with the same ids and digests. Returns the number of imported checkpoints.

        Existing checkpoints are skipped; call it again to continue an interrupted import. The whole file is checked first: a
        damaged file, or a thread that has diverged here (ConflictError), changes nothing.
        """
        return importing.import_file(self.rooms.engine, self.namespace, checked_path(path), progress)

    def connection(self) -> AbstractContextManager[Any]:
        """A transaction on the store's own database: the only way to keep your own tables in the same file.

        A nested one is a savepoint: an exception rolls back only that part. Raises TransactionFailed at the end of the block if
        a failed statement was ignored, or if the block ended the transaction itself (`unknown`).
        """
        return self.store.connection()
