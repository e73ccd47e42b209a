"""What the tools take and give, as types: their JSON schemas are declared to clients. Touches showing, model and domain.

Everything that can be long is cut by whoever fills a shape (showing.py); nothing here looks into a vault.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from savegame.checkpoint import Checkpoint
from savegame.mcp.showing import Cut, fields
from savegame.messages.domain import AttachmentType, Role
from savegame.model import Status

MAX_LIMIT: Final = 200
ASIDE: Final = 2000
"""Characters that a listing shows of what somebody wrote beside an entry."""

NEXT: Final = "If not null there are more: call again with after set to this."
REVISION: Final = "Another text after every save. Give it as expect_revision with the next one to notice other writers."

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
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="At most so many entries; long ones may make it fewer.")]
After = Annotated[str | None, Field(description="To read on: what the answer before this one gave as next.")]
Start = Annotated[int, Field(description="Where to begin, counted from 0; negative numbers count from the end.")]

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
"""Not checked here: the vault does, and names what is wrong by its place."""

SaidMessage = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "description": "role, content, id, timestamp, ..."})]
"""One that is shown, and may be cut."""

Patch = Annotated[
    dict[str, Any] | None, Field(description="Keys to set; null removes a key, and keys that are not named stay as they are.")
]


class Deleted(BaseModel):
    """Whether there was anything to delete."""

    deleted: bool = Field(description="False if there was nothing: then nothing was changed.")


class AgentSaved(BaseModel):
    """An agent was saved."""

    agent_id: str
    version: int
    revision: str = Field(description=REVISION)
    checkpoint_id: str
    created: bool = Field(description="Whether the agent is new.")


class AgentLoaded(BaseModel):
    """An agent as it is now."""

    agent_id: str
    name: str
    agent_type: str
    version: int
    revision: str = Field(description=REVISION)
    created_at: dt.datetime
    modified_at: dt.datetime
    system_prompt: str | None
    capabilities: list[str]
    config: dict[str, Any]
    custom_state: dict[str, Any]
    metadata: dict[str, Any]
    active_conversations: list[str] = Field(description="Its conversations that are not archived.")
    thread_id: str = Field(description="The agent's own thread, for thread_history, thread_load and the like.")
    cut: list[Cut] = Field(description="What is not shown whole; its paths are for thread_load with this thread_id.")


class AgentEntry(BaseModel):
    """An agent in a list."""

    agent_id: str
    name: str
    agent_type: str
    version: int
    updated_at: dt.datetime


class AgentPage(BaseModel):
    """Agents by id."""

    agents: list[AgentEntry]
    next: str | None = Field(description=NEXT)


class ConversationSaved(BaseModel):
    """A conversation was saved."""

    conversation_id: str
    head: str = Field(description="Its newest checkpoint. Give it as expect_head with the next save to notice other writers.")
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
    start: int = Field(description="The place of the first message that is shown, from 0.")
    messages: list[SaidMessage]
    next_start: int | None = Field(description="If not null there are more messages: call again with start set to this.")
    cut: list[Cut] = Field(description="What is not shown whole; its paths are for thread_load with the conversation's id.")


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


class ConversationPage(BaseModel):
    """Conversations, that with the newest message first."""

    conversations: list[ConversationEntry]
    next: str | None = Field(description=NEXT)


class HitEntry(BaseModel):
    """A conversation that was found, or another thread with messages."""

    conversation_id: str = Field(description="Also that of a thread which conversation_load refuses: thread_load reads any.")
    agent_id: str | None
    checkpoint_id: str = Field(description="The head whose messages were searched.")
    message: int = Field(description="The place of the best message, from 0; start of conversation_load.")
    role: str | None
    snippet: str = Field(description="What was found, between [ and ].")
    score: float
    matches: int = Field(description="How many of its messages match.")


class HitPage(BaseModel):
    """What was found, best first."""

    hits: list[HitEntry]
    skipped: list[str] = Field(description="Threads that could not be read because they are damaged.")
    next: str | None = Field(description=NEXT)


class CheckpointEntry(BaseModel):
    """A checkpoint without its state."""

    id: str
    thread_id: str
    agent_id: str | None
    parent_id: str | None
    step: int = Field(description="Its place on its line, from 1.")
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
    forked_from: str | None = Field(description="The thread that this one was forked from, on its first checkpoint.")
    metadata: dict[str, Any] = Field(description="Cut if it is long.")

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> CheckpointEntry:
        """What is shown of a checkpoint; long texts beside it are cut."""
        status = checkpoint.status
        beside = {name: getattr(checkpoint, name) for name in ("description", "resume_hint", "tags", "metadata")}
        shown, _ = fields({**beside, "reason": status.reason}, ASIDE)
        same = ("id", "thread_id", "agent_id", "parent_id", "step", "created_at", "label", "tokens_used", "cost")
        return cls(
            **{name: getattr(checkpoint, name) for name in (*same, "size_bytes", "forked_from")},
            **shown,
            kind=checkpoint.kind,
            status=str.__str__(status),
        )


class CheckpointPage(BaseModel):
    """Checkpoints, newest first."""

    checkpoints: list[CheckpointEntry]
    next: str | None = Field(description=NEXT)


class History(BaseModel):
    """Checkpoints of a thread, newest first, and which of them is the head."""

    thread_id: str
    head: str | None = Field(description="Null if a restore took the head away: thread_rewind gives it one.")
    checkpoints: list[CheckpointEntry]
    next: str | None = Field(description=NEXT)


class Restored(BaseModel):
    """An agent and its conversations are back where they were."""

    agent_id: str
    version: int
    undo: str = Field(description="A checkpoint of how it was just before: checkpoint_restore with this id undoes the restore.")


class Statistics(BaseModel):
    """How much there is."""

    agents: int
    conversations: int
    messages: int
    threads: int
    checkpoints: int
    damaged: int = Field(description="Threads that are damaged and not counted.")
    total_bytes: int = Field(description="What the store takes; the search index beside it (sizes.search) comes on top.")
    sizes: dict[str, int] = Field(description="Bytes by what they are used for.")


class ChangeEntry(BaseModel):
    """One place that differs."""

    path: str = Field(description="Where, as in messages[2].content.")
    change: Literal["added", "removed", "changed"]
    old: Any = Field(description="Null if added. Cut if long.")
    new: Any = Field(description="Null if removed. Cut if long.")


class Differences(BaseModel):
    """What changed from one checkpoint to another; what stayed is left out."""

    old: str = Field(description="The id of the checkpoint that was compared from.")
    new: str = Field(description="The id of the checkpoint that was compared to.")
    changes: list[ChangeEntry]
    total: int = Field(description="How many changes there are in all.")
    next: str | None = Field(description=NEXT)


class Forked(BaseModel):
    """A new thread was made."""

    thread_id: str
    forked_from: str
    head: str = Field(description="The first checkpoint of the new thread.")


class Rewound(BaseModel):
    """The head of a thread was moved."""

    head: CheckpointEntry
    undo: str | None = Field(description="The head before: thread_rewind to this undoes it. What came after stays as a branch.")


class Labelled(BaseModel):
    """A checkpoint got another label."""

    checkpoint: CheckpointEntry
    was: str | None = Field(description="The label that it had before.")


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
    damage: str | None = Field(description="If not null the thread cannot be read, and nothing but its id is known.")


class ThreadPage(BaseModel):
    """Threads by id."""

    threads: list[ThreadEntry]
    next: str | None = Field(description=NEXT)


class StateLoaded(BaseModel):
    """The state of a thread at a checkpoint, or a part of it."""

    checkpoint: CheckpointEntry
    path: str
    value: Any = Field(description="What is at the path. Values that JSON does not have are shown as text, bytes as base64.")
    total: int | None = Field(description="How many characters, items or keys the place has; null if it is a single value.")
    next_start: int | None = Field(description="If not null there is more: call again with start set to this.")
    cut: list[Cut] = Field(description="Places inside that are not shown whole: call again with their path, start = shown.")
