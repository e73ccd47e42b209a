"""Conversations and agents as states of threads: how they are stored, read back, and summarised for listings.

A conversation is stored as plain data. An agent is stored in its own thread, under `agent`, with a revision beside its
fields; in any other thread it is plain data too. `Thread.save`, a typed handle, `save_conversation` and `save_agent` all go
through here and store the same. Touches domain, views, diff, tree and what is below them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import blake3

from savegame.checkpoint import Checkpoint
from savegame.encoding import diff
from savegame.encoding.classes import fields_of
from savegame.encoding.codec import Codec
from savegame.encoding.delta import Op
from savegame.encoding.frames import Meta, load_meta
from savegame.encoding.plain import Plain, checked_texts, checked_time
from savegame.encoding.tree import Node, Shared, child_of, count_of, value_of
from savegame.errors import ConflictError, InvalidInputError
from savegame.messages.domain import AgentState, Conversation, plain_messages
from savegame.messages.views import readable_call
from savegame.model import MAX_ID, checked_text

T = TypeVar("T")
Made = tuple[list[Op], Node, Mapping[str, Any]]
"""What a save writes: operations, the new state, and what listings show of it."""

ABOUT: Final = "conversation"
AGENT: Final = "agent"
REVISION: Final = "revision"
"""A random text beside the fields of a stored agent, new with every save; a version can come back with a restore."""

AGENT_PREFIX: Final = "agent:"
"""Prefix of the ids of agents' own threads, refused for conversations."""


def own_thread(agent_id: str) -> str:
    """The id of an agent's own thread: readable, unless it would be too long."""
    named = AGENT_PREFIX + agent_id
    return named if len(named) <= MAX_ID else AGENT_PREFIX + blake3.blake3(agent_id.encode()).hexdigest()


# -- saving ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class DomainSave:
    """A domain object to save as the state of a thread."""

    plain: dict[str, Any]
    """The requested state, by which a retry is recognised."""
    make: Callable[[Node | None], Made]
    acknowledge: Callable[[str | None], None]
    """Called after the save with the id of the checkpoint, or None if it may still be rolled back."""
    is_in: Callable[[Node | None], bool]
    """Whether a state already equals it."""
    agent_id: str | None = None
    expect: str | None = None
    """The head that the object was read from; None if unknown."""


def domain_save(codec: Codec, thread_id: str, state: Any, *, force: bool = False) -> DomainSave | None:
    """How a Conversation or AgentState is saved as the state of a thread; None for every other state."""
    if isinstance(state, Conversation):
        return _conversation_save(codec, thread_id, state)
    if isinstance(state, AgentState):
        own = thread_id == own_thread(state.agent_id)
        if not own and thread_id.startswith(AGENT_PREFIX):
            raise InvalidInputError(f"thread {thread_id!r} belongs to another agent than {state.agent_id!r}; use save_agent")
        return agent_save(codec, state, force=force) if own else _whole_save(codec, state.to_dict())
    return None


def holds(codec: Codec, thread_id: str, node: Node | None, state: Any) -> bool:
    """Whether a stored state equals this one, so that there is nothing to save."""
    found = domain_save(codec, thread_id, state)
    return not diff.difference(codec, node, state)[0] if found is None else found.is_in(node)


def _whole_save(codec: Codec, plain: dict[str, Any]) -> DomainSave:
    def make(node: Node | None) -> Made:
        return *diff.difference(codec, node, plain), {}

    return DomainSave(plain, make, lambda _: None, lambda node: not diff.difference(codec, node, plain)[0])


def _conversation_save(codec: Codec, thread_id: str, given: Conversation) -> DomainSave:
    refuse_agents_thread(thread_id)
    own = given.id == thread_id
    whole = _whole_save(codec, given.to_dict() | {"id": thread_id})  # a conversation is found by its thread

    def make(node: Node | None) -> Made:
        ops, after, _ = whole.make(node)
        return ops, after, {ABOUT: about_conversation(codec, after)}

    def acknowledge(checkpoint_id: str | None) -> None:
        if own:
            given.known = checkpoint_id

    return DomainSave(whole.plain, make, acknowledge, whole.is_in, given.agent_id, given.known if own else None)


def agent_save(codec: Codec, given: AgentState, *, force: bool) -> DomainSave:
    """How an agent is saved in its own thread; its version increases by one."""
    plain = given.to_dict()
    plain.pop("active_conversations", None)  # computed from the conversations
    body = plain | {REVISION: os.urandom(8).hex()}
    known = None if force else given.known

    def make(node: Node | None) -> Made:
        stored = {} if node is None else stored_agent(codec, given.agent_id, node)
        if known not in (None, stored.get(REVISION)):
            raise ConflictError(
                f"agent {given.agent_id!r} was saved or restored since it was loaded; load it, then try again",
                expected=known,
                found=stored.get(REVISION),
            )
        body["version"] = max(stored.get("version", 0) + 1, given.version)
        if node is None or child_of(node, AGENT) is None:
            ops, after = diff.difference(codec, node, {AGENT: body})
        else:
            ops, after = diff.update(codec, node, append={}, set={AGENT: body}, delete=[])
        return ops, after, {AGENT: about_agent(body)}

    def acknowledge(checkpoint_id: str | None) -> None:
        given.version = body["version"]
        given.known = None if checkpoint_id is None else body[REVISION]

    def is_in(node: Node | None) -> bool:
        stored = {} if node is None else stored_agent(codec, given.agent_id, node)
        marks = {"version", REVISION}
        return {name: stored[name] for name in stored if name not in marks} == {
            name: plain[name] for name in plain if name not in marks
        }

    return DomainSave(plain, make, acknowledge, is_in, given.agent_id)


def refuse_agents_thread(conversation_id: str) -> None:
    """Raise InvalidInputError for an id that names the own thread of an agent."""
    if conversation_id.startswith(AGENT_PREFIX):
        raise InvalidInputError(f"{conversation_id!r} is the thread of an agent, not a conversation; choose another id")


# -- loading ---------------------------------------------------------------------------------------


def restorer(codec: Codec, thread_id: str, cls: type) -> Callable[[Any, str, Meta], Any]:
    """A function from a decoded state, the checkpoint's id and its metadata to an object of a class."""

    def restore(value: Any, checkpoint_id: str, meta: Meta) -> Any:
        if issubclass(cls, Plain):
            return restored(cls, value, thread_id, checkpoint_id, meta)
        return codec.restore(cls, value)

    return restore


def restored(cls: type[Plain], value: Any, thread_id: str, checkpoint_id: str, meta: Meta) -> Any:
    """A stored state as an object of a domain type; a value without fields (None, a number) is returned unchanged.

    Raises InvalidInputError for data that does not fit.
    """
    found = value if type(value) is dict else fields_of(value)
    if found is None:
        return value
    if issubclass(cls, Conversation):
        return _conversation(cls, found, thread_id, checkpoint_id, meta)
    stored = found.get(AGENT)
    if issubclass(cls, AgentState) and isinstance(stored, dict) and thread_id == own_thread(str(stored.get("agent_id"))):
        return agent_from(cls, stored)
    return cls.from_dict(found)


def _conversation(
    cls: type[Conversation], found: dict[str, Any], thread_id: str, checkpoint_id: str, meta: Meta
) -> Conversation:
    messages = found.get("messages")
    if not isinstance(messages, list):
        raise no_conversation(thread_id)
    given = found | {
        "agent_id": found.get("agent_id") or meta.agent_id,
        "created_at": found.get("created_at") or meta.created_at,
        "id": thread_id,
        "messages": [_readable(_named(thread_id, *place)) for place in enumerate(messages)],
    }
    conversation = cls.from_dict(given)
    conversation.known = checkpoint_id
    return conversation


def agent_from(cls: type[AgentState], stored: dict[str, Any]) -> AgentState:
    """An agent from the state of its own thread, without its conversations."""
    agent = cls.from_dict({name: value for name, value in stored.items() if name != REVISION})
    agent.known = stored.get(REVISION)
    return agent


def without_expectation(found: Checkpoint) -> Checkpoint:
    """Clear the expected head of a checkpoint's state, for checkpoints that were not read as the head."""
    if isinstance(found.state, (Conversation, AgentState)):
        found.state.known = None
    return found


def stored_agent(codec: Codec, agent_id: str, node: Node) -> dict[str, Any]:
    """`agent_in` for an encoded state; decodes only the agent."""
    child = child_of(node, AGENT)
    return agent_in(agent_id, value_of(codec, node) if child is None else {AGENT: value_of(codec, child)})


def agent_in(agent_id: str, state: Any) -> dict[str, Any]:
    """The agent in the state of its own thread. Raises InvalidInputError if the state is not that agent."""
    whole = state if isinstance(state, dict) else fields_of(state) or {}
    stored = whole.get(AGENT)
    if AGENT not in whole and "agent_type" in whole:  # an earlier `Thread.save` stored agents like other objects
        stored = {REVISION: "", **whole}
    if not isinstance(stored, dict) or stored.get("agent_id") != agent_id or REVISION not in stored:
        raise InvalidInputError(f"thread {own_thread(agent_id)!r} does not hold agent {agent_id!r}; choose another agent id")
    return stored


def no_conversation(thread_id: str) -> InvalidInputError:
    """The error for a thread that holds no conversation."""
    return InvalidInputError(f"thread {thread_id!r} holds no conversation: its state has no list of messages")


def _named(conversation_id: str, place: int, message: Any) -> Any:
    """A message with an id; a missing one is derived from its place, so that saving the conversation again changes nothing."""
    if not isinstance(message, Mapping) or "id" in message:
        return message
    return {**message, "id": blake3.blake3(f"{place} {conversation_id}".encode()).hexdigest(length=16)}


def _readable(message: Any) -> Any:
    """A message whose calls can all be read; runs store unreadable calls as the model wrote them."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        return message
    return {**message, "tool_calls": [readable_call(call, f"call-{place}") for place, call in enumerate(calls)]}


def messages_in(codec: Codec, node: Node | None, shared: Shared | None = None) -> list[Any]:
    """The messages of a state as plain data; empty if it is not a conversation."""
    messages = None if node is None else child_of(node, "messages")
    return [] if messages is None or count_of(messages) is None else plain_messages(value_of(codec, messages, shared))


# -- listings --------------------------------------------------------------------------------------


def carried(codec: Codec, base_meta: bytes, node: Node) -> bytes:
    """What listings show of a state, encoded, if its parent has that too; empty if it is no longer of that type."""
    before = codec.decode(load_meta(base_meta).about)
    conversation = about_conversation(codec, node) if before.get(ABOUT) is not None else None
    stored = child_of(node, AGENT) if before.get(AGENT) is not None else None
    about: dict[str, Any] = {} if conversation is None else {ABOUT: conversation}
    if stored is not None:
        agent = value_of(codec, stored)
        about |= {AGENT: about_agent(agent)} if _is_agent(agent) else {}
    return codec.encode(about) if about else b""


def about_conversation(codec: Codec, node: Node) -> dict[str, Any] | None:
    """What listings show of a state, decoding only what is needed; None if it is not a conversation."""
    messages = child_of(node, "messages")
    count = None if messages is None else count_of(messages)
    if count is None:
        return None
    about = {
        "messages": count,
        "title": peek(codec, node, "title", checked_text),
        "created_at": peek(codec, node, "created_at", checked_time),
        "last_message_at": peek(codec, node, "last_message_at", checked_time),
        "archived": peek(codec, node, "archived", lambda value, _: value is True),
        "tags": peek(codec, node, "tags", checked_texts),
    }
    return {name: value for name, value in about.items() if value}


def peek(codec: Codec, node: Node, name: str, check: Callable[[Any, str], T]) -> T | None:
    """A field of a state; None if it is missing or invalid."""
    child = child_of(node, name)
    try:
        return None if child is None else check(value_of(codec, child), name)
    except InvalidInputError:
        return None


_LISTED: Final = ("agent_id", "name", "agent_type", "version")


def about_agent(agent: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an agent checkpoint for listings."""
    return {name: agent[name] for name in _LISTED}


def _is_agent(stored: Any) -> bool:
    return isinstance(stored, dict) and all(name in stored for name in (*_LISTED, REVISION))
