"""Agents on the vault: each is a thread of its own; the threads that name it as their agent belong to it.

An agent checkpoint names the heads of all its threads at one moment. A restore moves those heads back in one batch, all or
none. Threads created later lose their head, so that they leave the listings; later checkpoints stay as branches. Threads
deleted since come back: they are kept as long as a checkpoint names them (`graveyard.py`). Checkpoints name threads by
hashes of their ids, so that nothing of an erased conversation remains here. Touches domain, conversations, timeline and
what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import blake3

from savegame.checkpoint import Checkpoint
from savegame.details import Details
from savegame.encoding import diff
from savegame.encoding.delta import Op
from savegame.encoding.frames import load_meta
from savegame.encoding.tree import Node, child_of, value_of
from savegame.errors import (
    AlreadyExistsError,
    CheckpointNotFound,
    ClosedError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
)
from savegame.messages.conversations import Conversations
from savegame.messages.domain import AgentState
from savegame.messages.states import (
    AGENT,
    AGENT_PREFIX,
    about_agent,
    agent_from,
    agent_in,
    agent_save,
    own_thread,
    stored_agent,
)
from savegame.model import CheckpointId, Frame, Kind, ThreadKey, ThreadRow, checked_id, checked_limit
from savegame.store import MoveHead, PutRecord, StoreChange
from savegame.timeline import deleting, derived, graveyard, pruning
from savegame.timeline.autosave import Loop, Reporting, claim, prune_automatic
from savegame.timeline.companions import DELETED, MARK, RESTORED, WITH_DELETE
from savegame.timeline.engine import Engine, Naming
from savegame.timeline.listing import listed
from savegame.timeline.timeline import Revise, Terms, Timeline
from savegame.waiting.retrying import PLANS, retried

logger = logging.getLogger("savegame")

HEADS: Final = "heads"
MANY_AGENTS: Final = 256


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent in a listing."""

    agent_id: str
    name: str
    agent_type: str
    version: int
    updated_at: dt.datetime
    head: CheckpointId

    @property
    def id(self) -> str:
        """The agent's id."""
        return self.agent_id


class Agents:
    """The agents of one namespace. Made by the vault, whose verbs these are."""

    def __init__(self, engine: Engine, namespace: str, conversations: Conversations) -> None:
        self.engine = engine
        self._namespace = namespace
        self._conversations = conversations
        self._named: dict[ThreadKey, tuple[ThreadRow, dict[str, frozenset[Naming]]]] = {}

    # -- agents ------------------------------------------------------------------------------------

    def save(self, agent: AgentState | Mapping[str, Any], *, force: bool) -> Checkpoint:
        """`Vault.save_agent`."""
        given = agent if isinstance(agent, AgentState) else AgentState.from_dict(agent)
        save = agent_save(self.engine.codec, given, force=force)
        checkpoint = self._change(given.agent_id, save.make)
        save.acknowledge(None if self.engine.store.borrowed() else checkpoint.id)
        return checkpoint

    def load(self, agent_id: str) -> AgentState | None:
        """`Vault.load_agent`."""
        newest = self._thread(agent_id).latest()
        return None if newest is None else self._agent_from(agent_id, newest.checkpoint)

    def _agent_from(self, agent_id: str, found: Checkpoint) -> AgentState:
        agent = agent_from(AgentState, agent_in(agent_id, found.state))
        theirs = self._conversations.infos(agent_id, read=False)
        agent.active_conversations = [info.id for info in theirs if not info.archived]
        return agent

    def delete(self, agent_id: str) -> bool:
        """`Vault.delete_agent`."""
        deleted = 0
        for _ in range(PLANS):
            keys = [ThreadKey(self._namespace, thread_id) for thread_id, _ in self._heads(agent_id)]
            if not keys:
                return deleted > 0
            deleted += deleting.delete(self.engine, keys).threads  # threads created meanwhile are next
        raise ConflictError(f"agent {agent_id!r}: new threads of it keep appearing; stop their writers, then delete it again")

    def every(self) -> Iterator[AgentInfo]:
        """`Vault.agents`."""
        for thread_id, _, head, damage in listed(self.engine, self._namespace, after=AGENT_PREFIX):
            if not thread_id.startswith(AGENT_PREFIX):
                return
            info = None if head is None else self._info(head)
            if info is not None:
                yield info
            if damage is not None:
                logger.warning("thread %r is left out of the agents: %s", thread_id, damage)

    def _info(self, frame: Frame) -> AgentInfo | None:
        """The entry of a listing; None if the thread only has an id like that of an agent."""
        meta, about = load_meta(frame.meta), self._about(frame).get(AGENT)
        if about is None:
            return None
        return AgentInfo(**about, updated_at=meta.created_at, head=CheckpointId(frame.id))

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoint(self, agent_id: str, name: str | None, kind: str, description: str | None) -> Checkpoint:
        """`Vault.checkpoint_agent`."""
        automatic = Kind.of(kind) == Kind.AUTOMATIC  # never labelled, so that retention may thin them out

        def attempt() -> Checkpoint:
            before, heads = self._moment(agent_id)
            details = Details(
                label=None if automatic else name,
                description=name if automatic and description is None else description,
                kind=kind,
            )
            new = self._change(agent_id, partial(self._with_heads, agent_id, heads), details, terms=Terms(before))
            self._refuse_pruned(agent_id, heads, new)
            return new

        return retried(attempt)

    def _moment(self, agent_id: str) -> tuple[str, dict[str, str | None]]:
        """The head of the agent's own thread, and the heads of its other threads, all at one moment."""
        heads = dict(self._heads(agent_id))
        own = heads.pop(own_thread(agent_id), None)
        if own is None:
            raise NotFoundError(f"Agent not found: {agent_id!r}; save_agent creates one")
        return own, heads

    def _with_heads(
        self, agent_id: str, heads: dict[str, str | None], node: Node | None
    ) -> tuple[list[Op], Node, Mapping[str, Any]]:
        assert node is not None
        stored = stored_agent(self.engine.codec, agent_id, node)
        named = {_mark(thread_id): head for thread_id, head in heads.items() if head}
        ops, after = diff.update(self.engine.codec, node, append={}, set={HEADS: named}, delete=[])
        return ops, after, {AGENT: about_agent(stored), HEADS: len(named)}

    def _refuse_pruned(self, agent_id: str, heads: dict[str, str | None], checkpoint: Checkpoint) -> None:
        """Remove a new checkpoint and raise ConflictError if a head that it names was pruned before it was written."""
        now = dict(self._heads(agent_id))
        moved = [head for thread_id, head in heads.items() if head and now.get(thread_id) != head]
        if any(self.engine.store.find(self._namespace, head) is None for head in moved):
            pruning.remove(self._thread(agent_id), [checkpoint])
            raise ConflictError(f"agent {agent_id!r}: a conversation was pruned while its checkpoint was made; try again")

    def checkpoint_changed(self, agent_id: str, keep: int | None) -> bool:
        """Make an automatic checkpoint, unless nothing changed since the last one or the agent does not exist."""
        try:
            own, heads = self._moment(agent_id)
        except NotFoundError:
            return False
        thread = self._thread(agent_id)
        found = self.engine.find(self._namespace, own)
        if found is not None and HEADS in self._about(found[1]):
            named = thread.load(own).state[HEADS]
            if named == {_mark(thread_id): head for thread_id, head in heads.items() if head}:
                return False
        now = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=self.engine.store.clock())
        self.checkpoint(agent_id, f"Auto checkpoint {now:%Y-%m-%d %H:%M:%S}", Kind.AUTOMATIC, None)
        if keep is not None:
            prune_automatic(thread, keep)
        return True

    def checkpoints(self, agent_id: str, limit: int | None) -> Iterator[Checkpoint]:
        """`Vault.agent_checkpoints`."""
        thread = self._thread(agent_id)
        return (thread.checkpoint(frame) for frame in islice(self._naming(agent_id), checked_limit(limit)))

    def _naming(self, agent_id: str) -> Iterator[Frame]:
        """The frames of an agent's own thread that name heads, newest first."""
        thread = self._thread(agent_id)
        row = thread.row()
        for frame in thread.everything():
            if row is not None and HEADS in self._about(frame) and thread.visible(row, frame):
                yield frame

    # -- what checkpoints name ---------------------------------------------------------------------

    def named(self, agents: Collection[str | None], but: Collection[ThreadKey] = ()) -> Mapping[str, frozenset[Naming]]:
        """`Above.named`."""
        owners = [agent_id for agent_id in agents if agent_id is not None and self.key(agent_id) not in but]
        found: dict[str, frozenset[Naming]] = {}
        for agent_id in owners:
            for head, namings in self._named_by(agent_id).items():
                found[head] = found.get(head, frozenset()) | namings
        return found

    def _named_by(self, agent_id: str) -> Mapping[str, frozenset[Naming]]:
        key = self.key(agent_id)
        row = self.engine.store.thread(key)
        if row is None:
            return {}
        if key not in self._named or self._named[key][0] != row:
            found: dict[str, set[Naming]] = {}
            for frame, heads in self._heads_in(key, list(self._naming(agent_id))):
                for head in heads:
                    found.setdefault(head, set()).add(Naming(agent_id, frame.id))
            if len(self._named) > MANY_AGENTS:
                self._named.clear()
            self._named[key] = row, {head: frozenset(namings) for head, namings in found.items()}
        return self._named[key][1]

    def _heads_in(self, key: ThreadKey, frames: list[Frame]) -> Iterator[tuple[Frame, Collection[str]]]:
        """The heads that frames, given newest first, name."""
        for frame, point in Timeline(self.engine, key).points(frames[::-1]):
            node = None if point.node is None else child_of(point.node, HEADS)
            if node is not None:
                yield frame, value_of(self.engine.codec, node).values()

    def let_go(self, gone: Mapping[ThreadKey, Collection[int] | None]) -> list[StoreChange]:
        """`Above.let_go`. Damage is logged; then nothing is freed until an agent is deleted."""
        own = {key: seqs for key, seqs in gone.items() if key.id.startswith(AGENT_PREFIX)}
        yards = graveyard.yards(self.engine, self._namespace) if own else []
        try:
            free = self._unnamed(own, yards) if yards else set()
        except CorruptionError as error:
            logger.warning("deleted threads that no agent checkpoint needs may remain: %s", error)
            return []
        return deleting.plan_deletion(self.engine, free, {}, {}, []).changes if free else []

    def _unnamed(self, gone: Mapping[ThreadKey, Collection[int] | None], yards: list[str]) -> set[ThreadKey]:
        """The deleted threads that only these agent checkpoints name, and their child threads."""
        whole = [key for key, seqs in gone.items() if seqs is None]
        parts = {
            key: [frame for frame in Timeline(self.engine, key).everything() if frame.seq in seqs]
            for key, seqs in gone.items()
            if seqs is not None
        }
        going = {frame.id for frames in parts.values() for frame in frames}

        def is_named(key: ThreadKey) -> bool:
            found = deleting.namings(self.engine, key, but=whole)
            return any(naming.checkpoint_id not in going for naming in found)

        deleted = self._deleted_threads(yards) if whole else self._deleted_for(parts, yards)
        family = derived.with_children(self.engine, [key for key in deleted if not is_named(key)], deleted=True)
        still = [key for key in family if is_named(key)]
        return family.keys() - derived.with_children(self.engine, still, deleted=True).keys()

    def _deleted_threads(self, yards: list[str]) -> list[ThreadKey]:
        """The deleted threads that are kept for agents."""
        keys = (ThreadKey(yard, thread_id) for yard in yards for thread_id, _ in self.engine.store.heads(yard))
        return [key for key in keys if Timeline(self.engine, key).names(DELETED)]

    def _deleted_for(self, parts: Mapping[ThreadKey, list[Frame]], yards: list[str]) -> set[ThreadKey]:
        """The deleted threads that these agent checkpoints name."""
        naming = {key: [frame for frame in frames if HEADS in self._about(frame)] for key, frames in parts.items()}
        heads = {head for key, frames in naming.items() for _, named in self._heads_in(key, frames) for head in named}
        found = (self.engine.store.find(yard, head) for head in heads for yard in yards)
        return {at[0] for at in found if at is not None}

    def _about(self, frame: Frame) -> dict[str, Any]:
        packed = load_meta(frame.meta).about
        found: dict[str, Any] = self.engine.codec.decode(packed) if packed else {}
        return found

    # -- restoring ---------------------------------------------------------------------------------

    def restore(self, checkpoint_id: str, *, skip_missing: bool) -> AgentState:
        """`Vault.restore_agent`."""
        try:
            agent_id, key, frame, found = self._find(checkpoint_id)
            loaded: set[tuple[ThreadKey, bytes]] = set()  # not to load a busy conversation again in every attempt
            moved = retried(partial(self._restore, agent_id, key, frame, found, loaded, skip_missing=skip_missing))
        except CorruptionError as error:
            error.args = (f"Checkpoint integrity check failed, nothing was changed: {error}",)
            raise
        except AlreadyExistsError as error:  # a user chose an id in a deleted thread, and again elsewhere
            error.args = (f"a deleted conversation cannot come back, nothing was changed: {error}; delete that one first",)
            raise
        for changed in moved:
            self.engine.cache.forget(changed)
        return self._agent_from(agent_id, found)

    def _find(self, checkpoint_id: str) -> tuple[str, ThreadKey, Frame, Checkpoint]:
        """A checkpoint made by `checkpoint_agent`, with its agent and place."""
        at = self.engine.find(self._namespace, checked_id(checkpoint_id, "a checkpoint's id"))
        if at is None:
            raise CheckpointNotFound(f"Checkpoint not found: {checkpoint_id!r}; agent_checkpoints() lists them")
        key, frame = at
        about = self._about(frame)
        if HEADS not in about:
            raise InvalidInputError(f"checkpoint {frame.id} was not made by checkpoint_agent; thread.rewind() goes back to it")
        agent_id = about[AGENT]["agent_id"]
        if self.key(agent_id) != key:
            raise InvalidInputError(
                f"checkpoint {frame.id} in thread {key.id!r} names agent {agent_id!r}; nothing was restored"
            )
        return agent_id, key, frame, Timeline(self.engine, key).load(frame.id)

    def _restore(
        self,
        agent_id: str,
        key: ThreadKey,
        frame: Frame,
        found: Checkpoint,
        loaded: set[tuple[ThreadKey, bytes]],
        *,
        skip_missing: bool,
    ) -> list[ThreadKey]:
        """Save an undo point and move all heads, in one commit. Returns the changed threads."""
        agent_in(agent_id, found.state)
        wanted: dict[str, str] = found.state[HEADS]
        targets = self._targets(found.id, wanted, loaded, skip_missing=skip_missing)
        before, heads = self._moment(agent_id)
        deleted = {at: targets.pop(at) for at in list(targets) if at.namespace != self._namespace}
        later = [ThreadKey(self._namespace, thread_id) for thread_id in heads if _mark(thread_id) not in wanted]
        again = [at for at in later if found.id in Timeline(self.engine, at).names(RESTORED)]
        undo = self.engine.store.new_id(key)
        back, gone = self._exchanged(deleted, again, agent_id, undo) if deleted or again else ([], {})
        staying = {thread_id: head for thread_id, head in heads.items() if thread_id not in gone}
        moves = [MoveHead(key, frame.seq, undo), *self._moves(staying, wanted, targets)]
        details = Details(kind=Kind.RECOVERY, description=f"before the restore of {found.id}")
        note = self.engine.above.ledger.for_restore
        noted = (note(Timeline(self.engine, move.key), targets.get(move.key)) for move in moves[1:])
        terms = Terms(before, beside=[*moves, *back, *chain(*noted)])
        self._change(agent_id, partial(self._with_heads, agent_id, heads | gone), details, id=undo, terms=terms)
        return [*{move.key for move in moves}, *{change.key for change in back}]

    def _targets(
        self, checkpoint_id: str, wanted: dict[str, str], loaded: set[tuple[ThreadKey, bytes]], *, skip_missing: bool
    ) -> dict[ThreadKey, Frame]:
        """The frame for each head. Every one must load to become a head; `loaded` are those already checked."""
        targets: dict[ThreadKey, Frame] = {}
        missing = []
        for mark, head_id in wanted.items():
            found = self.engine.find(self._namespace, head_id) or self._deleted(mark, head_id)
            if found is None:
                missing.append(head_id)
                continue
            if (found[0], found[1].meta) not in loaded:
                Timeline(self.engine, found[0]).point(found[1].seq, found[1])
                loaded.add((found[0], found[1].meta))
            targets[found[0]] = found[1]
        if missing and not skip_missing:
            raise CheckpointNotFound(
                f"{len(missing)} of the {len(wanted)} conversations that checkpoint {checkpoint_id} names have been erased "
                f"or pruned (the first: {missing[0]}); skip_missing=True restores the others"
            )
        return targets

    def _deleted(self, mark: str, head_id: str) -> tuple[ThreadKey, Frame] | None:
        """A checkpoint in a deleted thread that is kept."""
        found = (self.engine.find(yard, head_id) for yard in graveyard.yards(self.engine, self._namespace))
        return next((at for at in found if at is not None and _mark(at[0].id) == mark), None)

    def _exchanged(
        self, deleted: dict[ThreadKey, Frame], again: list[ThreadKey], agent_id: str, undo: str
    ) -> tuple[list[StoreChange], dict[str, str | None]]:
        """Plan to move deleted threads back with their child threads and heads, and to delete others again.

        Child threads of this agent that its checkpoint does not name were created later: they get no head. Threads created
        since under the ids of those that come back are deleted, too. All deleted ones are kept for the undo point: they are
        returned by id, with the checkpoint that it must name.
        """
        homes = {at: graveyard.home(at) for at in derived.family(self.engine, deleted, WITH_DELETE, self._goes_along)}
        rows = {at: self.engine.store.thread(at) for at in homes.values()}
        taken = [at for at, row in rows.items() if row is not None and row.frames]
        leaving = derived.with_children(self.engine, [*again, *taken])
        yard = graveyard.free_yard(self.engine, leaving)
        moves = homes | {at: graveyard.in_yard(at, yard) for at in leaving}
        plan = deleting.plan_deletion(self.engine, (), moves, dict.fromkeys(leaving, frozenset([agent_id])), [])
        heads = [
            MoveHead(homes[at], plan.numbers[at][frame.seq], agent=load_meta(frame.meta).agent_id)
            for at, frame in deleted.items()
        ]
        along = {at: self.engine.store.thread(at) for at in homes.keys() - deleted.keys()}
        heads += [MoveHead(homes[at], 0) for at, row in along.items() if row is not None and row.head and row.agent == agent_id]
        marks = [PutRecord(homes[at], RESTORED, undo, MARK) for at in deleted]
        return [*plan.changes, *heads, *marks], {at.id: self._newest(at) for at in leaving}

    def _goes_along(self, child: ThreadKey) -> bool:
        """Whether a child was deleted with its parent, and not by itself."""
        return graveyard.is_kept(child) and not Timeline(self.engine, child).names(DELETED)

    def _newest(self, key: ThreadKey) -> str | None:
        """The head of a thread, else its newest checkpoint: naming it keeps the whole thread."""
        row = self.engine.store.thread(key)
        newest = self.engine.store.frames(key, limit=1, newest_first=True)
        return row.head_id if row is not None and row.head_id else newest[0].id if newest else None

    def _moves(
        self, heads: dict[str, str | None], wanted: dict[str, str], targets: dict[ThreadKey, Frame]
    ) -> Iterator[MoveHead]:
        for key, frame in targets.items():
            row = None if key.id in heads else self.engine.store.thread(key)  # it may have another agent by now
            head_id = heads.get(key.id) if row is None else row.head_id
            if head_id != frame.id or row is not None:
                yield MoveHead(key, frame.seq, head_id, agent=load_meta(frame.meta).agent_id)
        for thread_id, head_id in heads.items():
            if head_id is not None and _mark(thread_id) not in wanted:
                yield MoveHead(ThreadKey(self._namespace, thread_id), 0, head_id)

    # -- helpers -----------------------------------------------------------------------------------

    def _heads(self, agent_id: str) -> list[tuple[str, str | None]]:
        return self.engine.store.heads(self._namespace, agent=checked_id(agent_id, "the agent's id"))

    def key(self, agent_id: str) -> ThreadKey:
        """The key of an agent's own thread."""
        return ThreadKey(self._namespace, own_thread(checked_id(agent_id, "the agent's id")))

    def _thread(self, agent_id: str) -> Timeline:
        return Timeline(self.engine, self.key(agent_id))

    def _change(self, agent_id: str, revise: Revise, details: Details | None = None, **how: Any) -> Checkpoint:
        return self._thread(agent_id).change(revise, details, agent=agent_id, **how)


class AgentSaves(Reporting):
    """Automatic checkpoints of agents, one after the other. A subclass decides how to wait between them."""

    def __init__(
        self,
        agents: Agents,
        agent_ids: Iterable[str],
        *,
        every: dt.timedelta,
        keep: int | None,
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        if isinstance(agent_ids, str):
            raise InvalidInputError(f"agent_ids must be a list of agent ids, not the text {agent_ids!r}")
        self._agents = agents
        self._ids = sorted({checked_id(agent_id, "the agent's id") for agent_id in agent_ids})
        super().__init__(f"agents {', '.join(self._ids)}", every, keep, on_error)
        claim(agents.engine, [agents.key(agent_id) for agent_id in self._ids], self)

    def _save_all(self) -> bool:
        """Checkpoint each agent that exists and changed. False if the vault is closed."""
        for agent_id in self._ids:
            try:
                self.saved += self._agents.checkpoint_changed(agent_id, self._keep)
            except ClosedError as error:
                self._report(error)
                return False
            except Exception as error:  # noqa: BLE001 - no caller can catch it: it is reported, and the others follow
                self._report(error)
        return True


class AgentAutosave(AgentSaves, Loop):
    """A background thread that checkpoints agents until `stop()`, the end of its `with` block, or of the program."""

    def __init__(self, agents: Agents, agent_ids: Iterable[str], **how: Any) -> None:
        super().__init__(agents, agent_ids, **how)
        self._begin()

    def _tick(self) -> bool:
        return self._save_all()


def _mark(thread_id: str) -> str:
    """The name of a thread in agent checkpoints, which must not reveal the id of an erased thread."""
    return blake3.blake3(thread_id.encode()).hexdigest(length=8)
