"""Parameters and answers of the tools as types, from which clients get JSON schemas.

Each entry of a list is made by its `of`, which shortens long values (excerpts.py). Nothing here reads a vault.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from savegame.checkpoint import Checkpoint
from savegame.encoding.text import format_path
from savegame.mcp.excerpts import LONGEST_PATH, Cut, cut_fields, cut_text
from savegame.messages.agents import AgentInfo
from savegame.messages.conversations import ConversationInfo
from savegame.messages.domain import AttachmentType, Role
from savegame.model import MISSING, Change, Status, ThreadInfo
from savegame.present.effects import began_at
from savegame.runs.ledger import CallEntry
from savegame.search.catching_up import Hit

MAX_LIMIT: Final = 200
BESIDE_CHARS: Final = 2000
"""Maximum characters of the free texts of an entry in a list."""

A_CHANGE: Final = 2000
"""Maximum characters of each value of a change."""

NEXT_HELP: Final = "If not null, there are more: call again with after set to this."
REVISION_HELP: Final = "Changes with every save. Pass it as expect_revision with the next save to detect other writers."

AgentId = Annotated[str, Field(description="The agent's id: any text of up to 512 characters.")]
ConversationId = Annotated[str, Field(description="The conversation's id, as conversation_list shows it.")]
ThreadId = Annotated[
    str,
    Field(description='The thread\'s id. A conversation is a thread of the same id, an agent the thread "agent:<agent_id>".'),
]
CheckpointId = Annotated[str, Field(description="The full id of a checkpoint, as checkpoint_list or thread_history shows it.")]
Ref = Annotated[
    str | int,
    Field(
        description='Names a checkpoint of the thread: its id, a unique prefix of it (6 characters or more), its label, "head",'
        ' "head~2" (two before the head), "latest" (like "head"), or a number (the step on the head\'s line).'
    ),
]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Maximum number of entries; long entries reduce it.")]
After = Annotated[str | None, Field(description="To continue a list: next of the previous answer.")]
Start = Annotated[int, Field(description="Where to start, from 0; negative numbers count from the end.")]

_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "role": {"enum": [str(role) for role in Role]},
        "content": {"description": "Text, or any other JSON value."},
        "tool_calls": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "name": {"type": "string"}, "arguments": {"type": "object"}},
                "required": ["id", "name", "arguments"],
            },
        },
        "tool_call_id": {"type": "string", "description": "In a message of role tool: the call that it answers."},
        "attachments": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "attachment_type": {"enum": [str(kind) for kind in AttachmentType]},
                    "name": {"type": "string"},
                    "mime_type": {"type": "string"},
                    "url": {"type": "string"},
                },
                "required": ["attachment_type", "name", "mime_type"],
            },
        },
        "tokens": {"type": "integer"},
        "metadata": {"type": "object"},
    },
    "required": ["role"],
}
Message = Annotated[dict[str, Any], WithJsonSchema(_MESSAGE)]
"""Not validated here: the vault does that, and its errors name the place."""

MessageExcerpt = Annotated[
    dict[str, Any], WithJsonSchema({"type": "object", "description": "role, content, id, timestamp, ..."})
]
"""A message of an answer, which may be shortened."""

Patch = Annotated[dict[str, Any] | None, Field(description="Keys to set; null removes a key; other keys do not change.")]


class Deletion(BaseModel):
    """Whether anything was deleted."""

    deleted: bool = Field(description="False if it did not exist; then nothing was changed.")


class AgentSaved(BaseModel):
    """An agent was saved."""

    agent_id: str
    version: int
    revision: str = Field(description=REVISION_HELP)
    checkpoint_id: str
    created: bool = Field(description="Whether the agent is new.")


class AgentLoaded(BaseModel):
    """An agent as it is now."""

    agent_id: str
    name: str
    agent_type: str
    version: int
    revision: str = Field(description=REVISION_HELP)
    created_at: dt.datetime
    modified_at: dt.datetime
    system_prompt: str | None
    capabilities: list[str]
    config: dict[str, Any]
    custom_state: dict[str, Any]
    metadata: dict[str, Any]
    active_conversations: list[str] = Field(description="Its conversations that are not archived.")
    thread_id: str = Field(description="The agent's own thread, for thread_history, thread_load and the like.")
    cut: list[Cut] = Field(description="Shortened values; read their paths with thread_load and this thread_id.")


def _shared(source: object, names: Iterable[str], long: Iterable[str]) -> dict[str, Any]:
    """The fields that an entry has in common with its source; the `long` ones are shortened."""
    texts, _ = cut_fields({name: getattr(source, name) for name in long}, BESIDE_CHARS)
    return {**{name: getattr(source, name) for name in names}, **texts}


class AgentEntry(BaseModel):
    """An agent in a list."""

    agent_id: str
    name: str
    agent_type: str
    version: int
    updated_at: dt.datetime

    @classmethod
    def of(cls, info: AgentInfo) -> AgentEntry:
        """The entry of an agent."""
        return cls(agent_id=info.id, **_shared(info, ("version", "updated_at"), ("name", "agent_type")))


class AgentPage(BaseModel):
    """Agents by id."""

    agents: list[AgentEntry]
    next: str | None = Field(description=NEXT_HELP)


class ConversationSaved(BaseModel):
    """A conversation was saved."""

    conversation_id: str
    head: str = Field(description="Its newest checkpoint. Pass it as expect_head with the next save to detect other writers.")
    message_count: int
    created: bool = Field(description="Whether the conversation is new.")


class ConversationLoaded(BaseModel):
    """A conversation as it is now, and some of its messages."""

    conversation_id: str
    agent_id: str | None
    title: str | None
    tags: list[str]
    archived: bool
    metadata: dict[str, Any]
    created_at: dt.datetime
    last_message_at: dt.datetime
    head: str = Field(description="Its newest checkpoint; expect_head of conversation_save.")
    message_count: int
    start: int = Field(description="Index of the first message of this answer, from 0.")
    messages: list[MessageExcerpt]
    next_start: int | None = Field(description="If not null, there are more messages: call again with start set to this.")
    cut: list[Cut] = Field(description="Shortened values; read their paths with thread_load and the conversation's id.")


class ConversationEntry(BaseModel):
    """A conversation in a list."""

    conversation_id: str
    agent_id: str | None
    title: str | None
    message_count: int
    last_message_at: dt.datetime
    archived: bool
    tags: list[str]
    head: str

    @classmethod
    def of(cls, info: ConversationInfo) -> ConversationEntry:
        """The entry of a conversation."""
        names = ("agent_id", "message_count", "last_message_at", "archived", "head")
        return cls(conversation_id=info.id, **_shared(info, names, ("title", "tags")))


class ConversationPage(BaseModel):
    """Conversations, newest message first."""

    conversations: list[ConversationEntry]
    next: str | None = Field(description=NEXT_HELP)


class HitEntry(BaseModel):
    """A conversation, or another thread with messages, that matches."""

    conversation_id: str = Field(description="May be a thread that conversation_load refuses; thread_load reads any.")
    agent_id: str | None
    checkpoint_id: str = Field(description="The head whose messages were searched.")
    message: int = Field(description="Index of the best message, from 0; start of conversation_load.")
    role: str | None
    snippet: str = Field(description="Text around the matches, which are between [ and ].")
    score: float
    matches: int = Field(description="Number of matching messages.")

    @classmethod
    def of(cls, hit: Hit) -> HitEntry:
        """The entry of a hit."""
        names = ("agent_id", "checkpoint_id", "message", "score", "matches")
        return cls(conversation_id=hit.thread_id, **_shared(hit, names, ("role", "snippet")))


class HitPage(BaseModel):
    """Hits, best first."""

    hits: list[HitEntry]
    skipped: list[str] = Field(description="Threads that were not searched because they are damaged.")
    next: str | None = Field(description=NEXT_HELP)


class CheckpointEntry(BaseModel):
    """A checkpoint without its state."""

    id: str
    thread_id: str
    agent_id: str | None
    parent_id: str | None
    step: int = Field(description="Its number on its line, from 1.")
    created_at: dt.datetime
    label: str | None
    description: str | None
    tags: list[str]
    kind: str
    status: Annotated[str, WithJsonSchema({"enum": list(Status.NAMES)})]
    reason: str | None
    tokens_used: int | None
    cost: float | None
    resume_hint: str | None
    size_bytes: int
    forked_from: str | None = Field(description="On the first checkpoint of a fork: the thread it was forked from.")
    metadata: dict[str, Any] = Field(description="Shortened if long.")

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> CheckpointEntry:
        """The entry of a checkpoint."""
        status = checkpoint.status
        beside = {name: getattr(checkpoint, name) for name in ("description", "resume_hint", "tags", "metadata")}
        texts, _ = cut_fields({**beside, "reason": status.reason}, BESIDE_CHARS)
        same = ("id", "thread_id", "agent_id", "parent_id", "step", "created_at", "label", "tokens_used", "cost")
        return cls(
            **{name: getattr(checkpoint, name) for name in (*same, "size_bytes", "forked_from")},
            **texts,
            kind=checkpoint.kind,
            status=str.__str__(status),
        )


class CheckpointPage(BaseModel):
    """Checkpoints, newest first."""

    checkpoints: list[CheckpointEntry]
    next: str | None = Field(description=NEXT_HELP)


class History(BaseModel):
    """Checkpoints of a thread, newest first, and its head."""

    thread_id: str
    head: str | None = Field(description="Null if a restore removed the head; thread_rewind sets one.")
    checkpoints: list[CheckpointEntry]
    next: str | None = Field(description=NEXT_HELP)


class EffectEntry(BaseModel):
    """A call of a tool that changed something in the world, or may have."""

    thread_id: str
    tool: str
    arguments: dict[str, Any] = Field(description="Shortened if long.")
    status: str = Field(description="done, failed; started or unknown: whether it took effect is not known.")
    result: Any = Field(description="Shortened if long.")
    error: str | None
    began_at: dt.datetime | None
    left: bool = Field(description="On a line that a rewind or restore left, and still in the world.")
    undone_at: dt.datetime | None = Field(description="When it was taken back; null if it was not.")
    made_in: str | None = Field(description="The thread that made it, if this one is a fork that only knows of it.")

    @classmethod
    def of(cls, thread_id: str, effect: CallEntry) -> EffectEntry:
        """The entry of an effect."""
        texts, _ = cut_fields({name: getattr(effect, name) for name in ("arguments", "result", "error")}, BESIDE_CHARS)
        same = {name: getattr(effect, name) for name in ("left", "undone_at", "made_in")}
        return cls(
            thread_id=thread_id, tool=effect.name, status=effect.status.value, began_at=began_at(effect), **same, **texts
        )


class EffectPage(BaseModel):
    """Effects, oldest first."""

    effects: list[EffectEntry]
    next: str | None = Field(description=NEXT_HELP)


Staying = Annotated[
    list[EffectEntry],
    Field(
        description="What tools did after that checkpoint. It stays in the world: tell the user, and do not do it again. "
        "Only a program can undo it."
    ),
]
TotalStaying = Annotated[int, Field(description="Their number; thread_effects lists those that did not fit.")]


class RestoreResult(BaseModel):
    """An agent and its conversations were restored."""

    agent_id: str
    version: int
    undo: str = Field(description="A checkpoint made just before: checkpoint_restore with this id undoes the restore.")
    effects: Staying
    total_effects: TotalStaying


class Statistics(BaseModel):
    """Counts and sizes."""

    agents: int
    conversations: int
    messages: int
    threads: int
    checkpoints: int
    damaged: int = Field(description="Damaged threads, which are not counted.")
    total_bytes: int = Field(description="Size of the store, without its search index (sizes.search).")
    sizes: dict[str, int] = Field(description="Bytes by use.")


class ChangeEntry(BaseModel):
    """One change."""

    path: str = Field(description="Where, as in messages[2].content.")
    change: Literal["added", "removed", "changed"]
    old: Any = Field(description="Null if added. Shortened if long.")
    new: Any = Field(description="Null if removed. Shortened if long.")

    @classmethod
    def of(cls, change: Change) -> ChangeEntry:
        """The entry of a change."""
        added, removed = change.old is MISSING, change.new is MISSING
        values = {"old": None if added else change.old, "new": None if removed else change.new}
        texts, _ = cut_fields(values, 2 * A_CHANGE)
        place = cut_text(format_path(change.path), LONGEST_PATH)
        return cls(path=place, change="added" if added else "removed" if removed else "changed", **texts)


class DiffResult(BaseModel):
    """The changes from one checkpoint to another."""

    old: str = Field(description="Id of the first checkpoint.")
    new: str = Field(description="Id of the second checkpoint.")
    changes: list[ChangeEntry]
    total: int = Field(description="Number of changes, on all pages.")
    folded: int = Field(description="Changed fields that only LangGraph works with; bookkeeping=true includes them.")
    next: str | None = Field(description=NEXT_HELP)


class ForkResult(BaseModel):
    """A new thread was created."""

    thread_id: str
    forked_from: str
    head: str = Field(description="The first checkpoint of the new thread.")
    effects: Staying
    total_effects: TotalStaying


class MessageSent(BaseModel):
    """A message waits in the inbox of a thread."""

    thread_id: str
    new: bool = Field(description="False if the thread had a message with this key before: nothing was sent.")


class StopResult(BaseModel):
    """A thread was stopped."""

    thread_id: str
    stopped: bool = Field(description="False if there was nothing to stop: see status.")
    status: str = Field(description="Of the thread: in_progress until a live run ends, before its next call.")


class RewindResult(BaseModel):
    """The head of a thread was moved."""

    head: CheckpointEntry
    undo: str | None = Field(
        description="The previous head: thread_rewind to it undoes this. Later checkpoints stay as a branch."
    )
    effects: Staying
    total_effects: TotalStaying


class LabelResult(BaseModel):
    """The label of a checkpoint was set or removed."""

    checkpoint: CheckpointEntry
    was: str | None = Field(description="The previous label.")


class ThreadEntry(BaseModel):
    """A thread in a list."""

    thread_id: str
    agent_id: str | None
    head: str
    step: int
    checkpoints: int
    status: str
    size_bytes: int = Field(description="Of the state at the head.")
    updated_at: dt.datetime
    forked_from: str | None
    damage: str | None = Field(description="If not null, the thread cannot be read, and only its id is known.")
    child_of: str | None = Field(description="The thread of the graph, for that of a subgraph.")
    children: list[str] = Field(description="The first threads of its subgraphs, which are not listed by themselves.")

    @classmethod
    def of(cls, info: ThreadInfo, children: list[str]) -> ThreadEntry:
        """The entry of a thread."""
        names = ("agent_id", "head", "step", "checkpoints", "size_bytes", "updated_at", "forked_from", "child_of")
        filled = _shared(info, names, ("damage",))
        return cls(thread_id=info.id, status=str.__str__(info.status), children=children, **filled)


class ThreadPage(BaseModel):
    """Threads by id."""

    threads: list[ThreadEntry]
    next: str | None = Field(description=NEXT_HELP)


class StateLoaded(BaseModel):
    """The state of a thread at a checkpoint, or a part of it."""

    checkpoint: CheckpointEntry
    path: str
    value: Any = Field(description="The value at the path. Values that JSON cannot express are texts, bytes are base64.")
    total: int | None = Field(description="Number of characters, items or keys at the path; null for a single value.")
    next_start: int | None = Field(description="If not null, there is more: call again with start set to this.")
    cut: list[Cut] = Field(description="Shortened values inside: call again with their path, and start = shown.")
