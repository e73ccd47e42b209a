"""Conversations on the vault: each is a thread whose state is the conversation as plain data.

What a listing shows (title, number of messages, last message, archived, tags) is in the metadata of every checkpoint saved
here, so that listing reads no states; for a head saved by other means it is read from the state. Saving keeps other fields
of a state. Touches domain, states, timeline and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from savegame.checkpoint import Checkpoint
from savegame.encoding import diff
from savegame.encoding.delta import Op
from savegame.encoding.frames import load_meta
from savegame.encoding.plain import checked_time
from savegame.encoding.tree import Node, child_of, count_of
from savegame.errors import CorruptionError, ThreadNotFound
from savegame.messages.domain import Conversation, Message
from savegame.messages.states import (
    ABOUT,
    AGENT_PREFIX,
    about_conversation,
    no_conversation,
    peek,
    refuse_agents_thread,
    restorer,
)
from savegame.model import CheckpointId, Frame, ThreadKey, ThreadRow, checked_id, checked_limit
from savegame.store import ANY
from savegame.timeline import deleting
from savegame.timeline.engine import Engine
from savegame.timeline.listing import listed
from savegame.timeline.timeline import Terms, Timeline

logger = logging.getLogger("savegame")

LISTED_AT_ONCE: Final = 1000

INTERNAL: Final = frozenset({"extra", "known"})
"""Fields that are never written. A state with all fields and these was saved by an earlier version."""
FIELDS: Final = frozenset(field.name for field in fields(Conversation)) - INTERNAL


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """A conversation in a listing."""

    id: str
    agent_id: str | None
    title: str | None
    message_count: int
    created_at: dt.datetime
    last_message_at: dt.datetime
    archived: bool
    tags: tuple[str, ...]
    head: CheckpointId


class Conversations:
    """The conversations of one namespace. Made by the vault, whose verbs these are."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self._engine = engine
        self._namespace = namespace

    def save(self, conversation: Conversation | Mapping[str, Any], *, force: bool) -> Checkpoint:
        """`Vault.save_conversation`."""
        given = conversation if isinstance(conversation, Conversation) else Conversation.from_dict(conversation)
        plain = given.to_dict()
        codec = self._engine.codec

        def make(node: Node | None) -> tuple[list[Op], Node, Mapping[str, Any]]:
            if node is None:
                ops, after = diff.difference(codec, None, plain)
            else:
                self._refuse_other(given.id, node)
                there = {name for name in (*FIELDS, *INTERNAL) if child_of(node, name) is not None}
                gone = (there if there >= FIELDS | INTERNAL else there & FIELDS) - plain.keys()
                ops, after = diff.update(codec, node, append={}, set=plain, delete=sorted(gone))
            return ops, after, self.about(after)

        expect = ANY if force or given.known is None else given.known
        saved = self._thread(given.id).change(make, agent=given.agent_id, terms=Terms(expect))
        given.known = None if self._engine.store.borrowed() else saved.id
        return saved

    def load(self, conversation_id: str) -> Conversation | None:
        """`Vault.load_conversation`."""
        newest = self._thread(conversation_id, restore=True).latest()
        state = None if newest is None else newest.checkpoint.state
        if newest is not None and not isinstance(state, Conversation):
            raise no_conversation(conversation_id)
        return state

    def add_message(self, conversation_id: str, message: Message | Mapping[str, Any], given_id: str | None) -> Checkpoint:
        """`Vault.add_message`."""
        added = Message.of(message)
        plain = added.to_dict()
        codec = self._engine.codec

        def make(node: Node | None) -> tuple[list[Op], Node, Mapping[str, Any]]:
            if node is None:
                raise ThreadNotFound(f"Conversation not found: {conversation_id!r}; save_conversation creates one")
            self._refuse_other(conversation_id, node)
            before = peek(codec, node, "last_message_at", checked_time)
            newest = max(time for time in (before, added.timestamp) if time is not None)
            ops, after = diff.update(codec, node, append={"messages": [plain]}, set={"last_message_at": newest}, delete=[])
            return ops, after, self.about(after)

        return self._thread(conversation_id).change(make, asked=_without_own_marks(plain), id=given_id)

    def delete(self, conversation_id: str) -> bool:
        """`Vault.delete_conversation`."""
        return deleting.delete(self._engine, [self._thread(conversation_id).key]).threads > 0

    def every(
        self,
        *,
        agent: str | None = None,
        tag: str | None = None,
        archived: bool | None = None,
        limit: int | None = None,
    ) -> Iterator[ConversationInfo]:
        """`Vault.conversations`."""
        checked_limit(limit)
        found = [info for info in self.infos(agent) if (tag is None or tag in info.tags) and archived in (None, info.archived)]
        found.sort(key=lambda info: info.last_message_at, reverse=True)
        return iter(found if limit is None else found[:limit])

    def infos(self, agent: str | None, *, read: bool = True) -> Iterator[ConversationInfo]:
        """Conversations by id. Without `read`, only those whose head was saved as a conversation: no state is read."""
        wanted = None if agent is None else checked_id(agent, "the agent's id")
        for thread_id, row, head, damage in listed(self._engine, self._namespace, agent=wanted, page=LISTED_AT_ONCE):
            try:
                info = None if row is None or head is None else self._info(row, head, read=read)
            except CorruptionError as error:
                info, damage = None, error
            if info is not None:
                yield info
            if damage is not None:
                logger.warning("thread %r is left out of the conversations: %s", thread_id, damage)

    def _info(self, row: ThreadRow, frame: Frame, *, read: bool) -> ConversationInfo | None:
        """The entry of a listing; None if the thread holds no conversation, like those of a framework."""
        meta = load_meta(frame.meta)
        about = self._engine.codec.decode(meta.about).get(ABOUT) if meta.about else None
        if about is None and read and meta.external_id is None and not row.key.id.startswith(AGENT_PREFIX):
            node = Timeline(self._engine, row.key).point(row.head, frame).node
            about = None if node is None else about_conversation(self._engine.codec, node)
        if about is None:
            return None
        return ConversationInfo(
            row.key.id,
            row.agent,
            about.get("title"),
            about.get("messages", 0),
            about.get("created_at", meta.created_at),
            about.get("last_message_at", meta.created_at),
            about.get("archived", False),
            tuple(about.get("tags", ())),
            CheckpointId(frame.id),
        )

    def about(self, node: Node) -> dict[str, Any]:
        """The metadata of a conversation checkpoint for listings."""
        return {ABOUT: about_conversation(self._engine.codec, node)}

    def _refuse_other(self, conversation_id: str, node: Node) -> None:
        messages = child_of(node, "messages")
        if messages is None or count_of(messages) is None:
            raise no_conversation(conversation_id)

    def _thread(self, conversation_id: str, *, restore: bool = False) -> Timeline:
        key = ThreadKey(self._namespace, checked_id(conversation_id, "a conversation's id"))
        refuse_agents_thread(conversation_id)
        restored = restorer(self._engine.codec, conversation_id, Conversation) if restore else None
        return Timeline(self._engine, key, restore=restored)


def _without_own_marks(message: dict[str, Any]) -> dict[str, Any]:
    """A message without its generated ids and time, which differ when the request is retried."""
    asked = {name: value for name, value in message.items() if name not in ("id", "timestamp")}
    if "attachments" in asked:
        asked["attachments"] = [_without_own_marks(attachment) for attachment in asked["attachments"]]
    return asked
