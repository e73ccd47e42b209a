"""Agents on the vault: each is a thread of its own, and what belongs to it are the threads that name it as their agent.

An agent's checkpoint names the heads of all its threads as they were at one moment. A restore moves those heads back in
one batch: whole or not at all. Threads that were begun later lose their head, so that they leave the listings; whatever
came later stays as branches. Heads are kept by their checkpoints' ids only, so that nothing of a conversation that is
erased stays behind here. Touches domain, conversations, thread and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import blake3

from savegame import delta as deltas
from savegame import upkeep
from savegame.autosave import Loop, Reporting, claim, prune_automatic
from savegame.conversations import Conversations
from savegame.domain import AgentState
from savegame.engine import Engine
from savegame.errors import (
    Busy,
    CheckpointNotFound,
    ClosedError,
    ConflictError,
    CorruptionError,
    Fenced,
    InvalidInputError,
    NotFoundError,
)
from savegame.frames import load_meta
from savegame.lineage import everything, listed, visible
from savegame.model import MAX_ID, Checkpoint, CheckpointId, Frame, Kind, ThreadKey, ThreadRow, checked_id
from savegame.store import MoveHead
from savegame.thread import TRIES, Thread
from savegame.tree import Node, child_of, value_of

logger = logging.getLogger("savegame")

PREFIX: Final = "agent:"
"""How the ids of agents' own threads begin."""

SUMMARY: Final = "agent"
HEADS: Final = "heads"


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent as a listing shows it."""

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
        self._engine = engine
        self._namespace = namespace
        self._conversations = conversations

    # -- agents ------------------------------------------------------------------------------------

    def save(self, agent: AgentState | Mapping[str, Any], *, force: bool) -> Checkpoint:
        """`Vault.save_agent`."""
        given = agent if isinstance(agent, AgentState) else AgentState.from_dict(agent)
        known = None if force else given.known
        body = given.to_dict()
        body.pop("active_conversations", None)  # told by the conversations themselves
        codec = self._engine.codec

        def make(node: Node | None) -> tuple[list[deltas.Op], Node, Mapping[str, Any]]:
            stored = self._stored_version(given.agent_id, node)
            if known not in (None, stored):
                raise ConflictError(
                    f"agent {given.agent_id!r} has version {stored}, not {known}: somebody saved it; load it, then try again",
                    expected=str(known),
                    found=str(stored),
                )
            body["version"] = max(stored + 1, given.version)
            ops, after = deltas.update(codec, node, append={}, set={SUMMARY: body}, delete=[])
            return ops, after, {SUMMARY: _summary_of(body)}

        saved = self._thread(given.agent_id)._change(make)
        given.known = given.version = body["version"]
        return saved

    def _stored_version(self, agent_id: str, node: Node | None) -> int:
        if node is None:
            return 0
        agent = child_of(node, SUMMARY)
        version = None if agent is None else child_of(agent, "version")
        if version is None:
            raise InvalidInputError(f"thread {own_thread(agent_id)!r} holds no agent; delete it, or choose another agent's id")
        return int(value_of(self._engine.codec, version))

    def load(self, agent_id: str) -> AgentState | None:
        """`Vault.load_agent`."""
        found = self._thread(agent_id).latest()
        if found is None:
            return None
        return self._agent_from(found)

    def _agent_from(self, found: Checkpoint) -> AgentState:
        agent = AgentState.from_dict(_state_of(found)[SUMMARY])
        agent.known = agent.version
        open_ones = self._conversations.every(agent=agent.agent_id, archived=False)
        agent.active_conversations = sorted(info.id for info in open_ones)
        return agent

    def delete(self, agent_id: str) -> bool:
        """`Vault.delete_agent`."""
        keys = [ThreadKey(self._namespace, thread_id) for thread_id, _ in self._heads(agent_id)]
        own = self._key(agent_id)
        return upkeep.delete(self._engine, keys if own in keys else [*keys, own]).threads > 0

    def every(self) -> Iterator[AgentInfo]:
        """`Vault.agents`."""
        for thread_id, _, head, damage in listed(self._engine, self._namespace, after=PREFIX):
            if not thread_id.startswith(PREFIX):
                return
            info = None if head is None else self._info(head)
            if info is not None:
                yield info
            if damage is not None:
                logger.warning("thread %r is left out of the agents: %s", thread_id, damage)

    def _info(self, frame: Frame) -> AgentInfo | None:
        """What a listing shows; None for a thread of somebody else's with such an id."""
        meta = load_meta(frame.meta)
        summary = self._metadata(frame).get(SUMMARY)
        if not isinstance(summary, dict) or meta.agent_id is None:
            return None
        return AgentInfo(
            meta.agent_id,
            summary["name"],
            summary["agent_type"],
            summary["version"],
            meta.created_at,
            CheckpointId(frame.id),
        )

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoint(self, agent_id: str, name: str | None, kind: str, description: str | None) -> Checkpoint:
        """`Vault.checkpoint_agent`."""
        return self._snapshot(agent_id, name, kind, description)[0]

    def _snapshot(
        self, agent_id: str, name: str | None, kind: str, description: str | None
    ) -> tuple[Checkpoint, dict[str, str | None]]:
        """A new checkpoint, and the heads of the agent's threads at the same moment, by thread."""
        own = own_thread(checked_id(agent_id, "the agent's id"))
        automatic = Kind.of(kind) == Kind.AUTOMATIC  # never labelled, so that retention may thin them out
        for _ in range(TRIES):
            heads = dict(self._heads(agent_id))
            before = heads.pop(own, None)
            if before is None:
                raise NotFoundError(f"Agent not found: {agent_id!r}; save_agent begins one")
            named = [head for head in heads.values() if head]
            try:
                made = self._thread(agent_id)._change(
                    partial(self._with_heads, agent_id, named),
                    label=None if automatic else name,
                    description=name if automatic and description is None else description,
                    kind=kind,
                    expect=before,
                )
            except (Busy, Fenced):
                raise
            except ConflictError as error:
                last = error
                continue
            return made, heads
        raise last

    def _with_heads(
        self, agent_id: str, named: list[str], node: Node | None
    ) -> tuple[list[deltas.Op], Node, Mapping[str, Any]]:
        agent = None if node is None else child_of(node, SUMMARY)
        if node is None or agent is None:
            raise NotFoundError(f"Agent not found: {agent_id!r}; save_agent begins one")
        ops, after = deltas.update(self._engine.codec, node, append={}, set={HEADS: named}, delete=[])
        summary = _summary_of(value_of(self._engine.codec, agent))
        return ops, after, {SUMMARY: summary, HEADS: len(named)}

    def checkpoint_changed(self, agent_id: str, keep: int | None) -> bool:
        """An automatic checkpoint, unless nothing changed since the last one, or there is no such agent."""
        key = self._key(agent_id)
        heads = dict(self._heads(agent_id))
        own = heads.pop(key.id, None)
        if own is None:
            return False
        found = self._thread(agent_id).load(own)
        if HEADS in found.metadata and _state_of(found)[HEADS] == [head for head in heads.values() if head]:
            return False
        now = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=self._engine.store.clock())
        self.checkpoint(agent_id, f"Auto checkpoint {now:%Y-%m-%d %H:%M:%S}", Kind.AUTOMATIC, None)
        if keep is not None:
            prune_automatic(self._engine, key, keep)
        return True

    def checkpoints(self, agent_id: str, limit: int | None) -> Iterator[Checkpoint]:
        """`Vault.agent_checkpoints`."""
        found = 0
        for entry in self._thread(agent_id).history(branches=True):
            if found == limit:
                return
            if HEADS in entry.metadata:
                yield entry
                found += 1

    def pinned(self, row: ThreadRow) -> set[str]:
        """What the checkpoints of a thread's agent name; those of other threads are among it."""
        own = None if row.agent is None else self._key(row.agent)
        if own is None or own == row.key:
            return set()
        named = [frame for frame in reversed(list(everything(self._engine, own))) if HEADS in self._metadata(frame)]
        agent_row = self._engine.store.thread(own)
        shown = [frame for frame in named if agent_row is not None and visible(self._engine, agent_row, frame)]
        nodes = (child_of(point.node, HEADS) for _, point in self._engine.points(own, shown) if point.node is not None)
        return {head for node in nodes if node is not None for head in value_of(self._engine.codec, node)}

    def _metadata(self, frame: Frame) -> dict[str, Any]:
        packed = load_meta(frame.meta).metadata
        found: dict[str, Any] = self._engine.codec.decode(packed) if packed else {}
        return found

    # -- restoring ---------------------------------------------------------------------------------

    def restore(self, checkpoint_id: str, *, skip_missing: bool) -> AgentState:
        """`Vault.restore_agent`."""
        try:
            key, frame, found = self._find(checkpoint_id)
            agent_id, wanted = self._wanted(key, found)
            for _ in range(TRIES):
                targets = self._targets(found.id, wanted, skip_missing=skip_missing)
                undo = f"before the restore of {checkpoint_id}"
                safety, heads = self._snapshot(agent_id, None, Kind.RECOVERY, undo)
                changes = [MoveHead(key, frame.seq, safety.id), *self._moves(heads, targets)]
                try:
                    self._engine.store.commit(changes)
                except (Busy, Fenced):
                    raise
                except ConflictError as error:
                    last = error
                    continue
                return self._agent_from(found)
        except CorruptionError as error:
            error.args = (f"Checkpoint integrity check failed, nothing was changed: {error}",)
            raise
        raise last

    def _find(self, checkpoint_id: str) -> tuple[ThreadKey, Frame, Checkpoint]:
        found = self._engine.find(self._namespace, checked_id(checkpoint_id, "a checkpoint's id"))
        if found is None:
            raise CheckpointNotFound(f"Checkpoint not found: {checkpoint_id!r}; agent_checkpoints() lists them")
        key, frame = found
        return key, frame, Thread(self._engine, key, None, None).load(frame.id)

    def _wanted(self, key: ThreadKey, found: Checkpoint) -> tuple[str, list[str]]:
        """The agent of a checkpoint, and the heads that it names."""
        state = _state_of(found)
        if HEADS not in found.metadata:
            raise InvalidInputError(f"checkpoint {found.id} was not made by checkpoint_agent; thread.rewind() goes back to it")
        agent_id = str(state[SUMMARY]["agent_id"])
        if self._key(agent_id) != key:
            raise InvalidInputError(f"checkpoint {found.id} is of agent {agent_id!r} but in thread {key.id!r}: not restored")
        return agent_id, state[HEADS]

    def _targets(self, checkpoint_id: str, wanted: list[str], *, skip_missing: bool) -> dict[ThreadKey, Frame]:
        """Where every head has to go. What does not load must not become a head."""
        targets: dict[ThreadKey, Frame] = {}
        missing = []
        for head_id in wanted:
            found = self._engine.find(self._namespace, head_id)
            if found is None:
                missing.append(head_id)
                continue
            self._engine.point(found[0], found[1].seq, found[1])
            targets[found[0]] = found[1]
        if missing and not skip_missing:
            raise CheckpointNotFound(
                f"{len(missing)} of the {len(wanted)} conversations that checkpoint {checkpoint_id} names were deleted or "
                f"pruned since (the first: {missing[0]}); skip_missing=True restores the others"
            )
        return targets

    def _moves(self, heads: dict[str, str | None], targets: dict[ThreadKey, Frame]) -> Iterator[MoveHead]:
        for key, frame in targets.items():
            row = None if key.id in heads else self._engine.store.thread(key)  # it may have another agent by now
            head_id = heads.get(key.id) if row is None else row.head_id
            if head_id != frame.id:
                yield MoveHead(key, frame.seq, head_id)
        for thread_id, head_id in heads.items():
            key = ThreadKey(self._namespace, thread_id)
            if key not in targets and head_id is not None:
                yield MoveHead(key, 0, head_id)

    # -- helpers -----------------------------------------------------------------------------------

    def _heads(self, agent_id: str) -> list[tuple[str, str | None]]:
        return self._engine.store.heads(self._namespace, agent=checked_id(agent_id, "the agent's id"))

    def _key(self, agent_id: str) -> ThreadKey:
        return ThreadKey(self._namespace, own_thread(checked_id(agent_id, "the agent's id")))

    def _thread(self, agent_id: str) -> Thread:
        return Thread(self._engine, self._key(agent_id), agent_id, None)


class AgentSaves(Reporting):
    """Automatic checkpoints of agents, all in turn; who waits between them, and how, is for a subclass."""

    def __init__(
        self,
        agents: Agents,
        agent_ids: Iterable[str],
        *,
        every: dt.timedelta,
        keep: int | None,
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        self._agents = agents
        self._ids = sorted({checked_id(agent_id, "the agent's id") for agent_id in agent_ids})
        super().__init__(f"agents {', '.join(self._ids)}", every, keep, on_error)
        claim(agents._engine, [agents._key(agent_id) for agent_id in self._ids], self)

    def _save_all(self) -> bool:
        """Checkpoint each agent that exists and changed. False if there is nothing left to save to."""
        for agent_id in self._ids:
            try:
                self.saved += self._agents.checkpoint_changed(agent_id, self._keep)
            except ClosedError as error:
                self._report(error)
                return False
            except Exception as error:  # noqa: BLE001 - nobody is there to catch it: it is reported, and the others follow
                self._report(error)
        return True


class AgentAutosave(AgentSaves, Loop):
    """A background thread that checkpoints agents by itself: until `stop()`, the end of its `with` block, or of the program."""

    def __init__(self, agents: Agents, agent_ids: Iterable[str], **how: Any) -> None:
        super().__init__(agents, agent_ids, **how)
        self._begin()

    def _tick(self) -> bool:
        return self._save_all()


def own_thread(agent_id: str) -> str:
    """The id of an agent's own thread: readable, unless that would be too long."""
    named = PREFIX + agent_id
    return named if len(named) <= MAX_ID else PREFIX + blake3.blake3(agent_id.encode()).hexdigest()


def _state_of(found: Checkpoint) -> dict[str, Any]:
    """The state of an agent's checkpoint. Raises InvalidInputError for that of something else."""
    if not isinstance(found.state, dict) or not isinstance(found.state.get(SUMMARY), dict):
        raise InvalidInputError(f"thread {found.thread_id!r} holds no agent")
    return found.state


def _summary_of(agent: dict[str, Any]) -> dict[str, Any]:
    return {name: agent[name] for name in ("name", "agent_type", "version")}
