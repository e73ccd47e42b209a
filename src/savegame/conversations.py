"""Conversations on the vault: each is a thread whose state is the conversation as plain data.

What a listing shows (title, number of messages, last message, archived, tags) is in the metadata of every checkpoint that
is made here, so that listing reads no states; for a head that was saved by other means it is read from the state.
Touches domain, thread and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from savegame import delta as deltas
from savegame.domain import Conversation, Message
from savegame.engine import Engine
from savegame.errors import CorruptionError, InvalidInputError, ThreadNotFound
from savegame.frames import load_meta
from savegame.lineage import listed
from savegame.model import Checkpoint, CheckpointId, Frame, ThreadKey, ThreadRow, checked_id
from savegame.thread import Thread
from savegame.tree import Node, child_of, count_of, value_of

logger = logging.getLogger("savegame")

SUMMARY: Final = "conversation"
PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """A conversation as a listing shows it."""

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
        thread = self._thread(given.id, given.agent_id)
        saved = thread.save(
            given.to_dict(), metadata={SUMMARY: _summary_of(given)}, expect=None if force else given.known, force=force
        )
        given.known = saved.id
        return saved

    def load(self, conversation_id: str) -> Conversation | None:
        """`Vault.load_conversation`."""
        found = self._thread(conversation_id).latest()
        if found is None:
            return None
        return conversation_from(found)

    def add_message(self, conversation_id: str, message: Message | Mapping[str, Any], given_id: str | None) -> Checkpoint:
        """`Vault.add_message`."""
        added = Message.of(message)
        codec = self._engine.codec

        def make(node: Node | None) -> tuple[list[deltas.Op], Node, Mapping[str, Any]]:
            if node is None:
                raise ThreadNotFound(f"Conversation not found: {conversation_id!r}; save_conversation begins one")
            before = _peek(self._engine, node, "last_message_at")
            latest = max((time for time in (before, added.timestamp) if isinstance(time, dt.datetime)), default=None)
            new = {"last_message_at": latest} if latest is not None else {}
            ops, after = deltas.update(codec, node, append={"messages": [added.to_dict()]}, set=new, delete=[])
            return ops, after, {SUMMARY: self._summary_in(after)}

        return self._thread(conversation_id)._change(make, asked=added.to_dict(), id=given_id)

    def delete(self, conversation_id: str) -> bool:
        """`Vault.delete_conversation`."""
        return self._thread(conversation_id).delete()

    def every(
        self,
        *,
        agent: str | None = None,
        tag: str | None = None,
        archived: bool | None = None,
        limit: int | None = None,
    ) -> Iterator[ConversationInfo]:
        """`Vault.conversations`."""
        if limit is not None and limit < 0:
            raise InvalidInputError(f"limit must not be negative, not {limit}")
        found = [info for info in self.infos(agent) if (tag is None or tag in info.tags) and archived in (None, info.archived)]
        found.sort(key=lambda info: info.last_message_at, reverse=True)
        return iter(found if limit is None else found[:limit])

    def infos(self, agent: str | None, *, read: bool = True) -> Iterator[ConversationInfo]:
        """By id. Without `read`, those are left out whose head was not saved as a conversation, since its state would tell."""
        for thread_id, row, head, damage in listed(self._engine, self._namespace, agent=agent, page=PAGE):
            try:
                info = None if row is None or head is None else self._info(row, head, read=read)
            except CorruptionError as error:
                info, damage = None, error
            if info is not None:
                yield info
            if damage is not None:
                logger.warning("thread %r is left out of the conversations: %s", thread_id, damage)

    def _info(self, row: ThreadRow, frame: Frame, *, read: bool) -> ConversationInfo | None:
        """What a listing shows of a thread; None if it holds no conversation, as those that a framework keeps."""
        meta = load_meta(frame.meta)
        summary = self._engine.codec.decode(meta.metadata).get(SUMMARY) if meta.metadata else None
        if not isinstance(summary, dict):
            node = self._engine.point(row.key, row.head, frame).node if read and meta.external_id is None else None
            summary = None if node is None else self._summary_in(node)
        if summary is None:
            return None
        return ConversationInfo(
            row.key.id,
            row.agent,
            summary.get("title"),
            summary.get("messages", 0),
            summary.get("created_at", meta.created_at),
            summary.get("last_message_at", meta.created_at),
            summary.get("archived", False),
            tuple(summary.get("tags", ())),
            CheckpointId(frame.id),
        )

    def _summary_in(self, node: Node) -> dict[str, Any] | None:
        """The summary of a state that is a conversation, opened no further than needed; None if it is none."""
        messages = child_of(node, "messages")
        count = None if messages is None else count_of(messages)
        if count is None:
            return None
        names = ("title", "created_at", "last_message_at", "archived", "tags")
        return _brief({"messages": count} | {name: _peek(self._engine, node, name) for name in names})

    def _thread(self, conversation_id: str, agent: str | None = None) -> Thread:
        key = ThreadKey(self._namespace, checked_id(conversation_id, "a conversation's id"))
        return Thread(self._engine, key, agent, None)


def conversation_from(found: Checkpoint) -> Conversation:
    """The conversation that a checkpoint's state is. Raises InvalidInputError if it is none."""
    if not isinstance(found.state, dict) or not isinstance(found.state.get("messages"), list):
        raise InvalidInputError(f"thread {found.thread_id!r} holds no conversation: its state has no list of messages")
    given = {"agent_id": found.agent_id, "created_at": found.created_at, **found.state, "id": found.thread_id}
    conversation = Conversation.from_dict(given)
    conversation.known = found.id
    return conversation


def _summary_of(conversation: Conversation) -> dict[str, Any]:
    return _brief(
        {
            "messages": conversation.message_count(),
            "title": conversation.title,
            "created_at": conversation.created_at,
            "last_message_at": conversation.last_message_at,
            "archived": conversation.archived,
            "tags": list(conversation.tags),
        }
    )


def _brief(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if value}


def _peek(engine: Engine, node: Node, name: str) -> Any:
    child = child_of(node, name)
    return None if child is None else value_of(engine.codec, child)
