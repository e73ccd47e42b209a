"""Save games for AI agents: every step durable, rewindable, forkable, resumable.

import savegame
vault = savegame.open("agents.db")
thread = vault.thread("support-42")
thread.save({"messages": []})
"""

from savegame.agents import AgentInfo
from savegame.aio import AsyncAutosave, AsyncThread, AsyncVault
from savegame.autosave import Autosave
from savegame.changes import Diff
from savegame.conversations import ConversationInfo
from savegame.domain import (
    AgentState,
    Attachment,
    AttachmentType,
    Conversation,
    Message,
    Role,
    ToolCall,
    ToolCallStatus,
)
from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ClosedError,
    ConflictError,
    CorruptionError,
    Fenced,
    InvalidInputError,
    InvalidState,
    NotFoundError,
    OutcomeError,
    OutOfSpace,
    Paused,
    SavegameError,
    StoreNotFound,
    ThreadNotFound,
    UnavailableError,
    Unknown,
    UnsupportedError,
)
from savegame.model import MISSING, Change, Checkpoint, Kind, Problem, Report, Status, ThreadInfo
from savegame.opening import open_async
from savegame.opening import open_vault as open  # noqa: A004 - the public name
from savegame.policy import Event, Retention, Strategy
from savegame.search import Hit, Hits
from savegame.subjects import Erased
from savegame.thread import Thread
from savegame.usage import Usage
from savegame.vault import Stats, Vault

__all__ = [
    "MISSING",
    "AgentInfo",
    "AgentState",
    "AlreadyExistsError",
    "AsyncAutosave",
    "AsyncThread",
    "AsyncVault",
    "Attachment",
    "AttachmentType",
    "Autosave",
    "Busy",
    "Change",
    "Checkpoint",
    "CheckpointNotFound",
    "ClosedError",
    "ConflictError",
    "Conversation",
    "ConversationInfo",
    "CorruptionError",
    "Diff",
    "Erased",
    "Event",
    "Fenced",
    "Hit",
    "Hits",
    "InvalidInputError",
    "InvalidState",
    "Kind",
    "Message",
    "NotFoundError",
    "OutOfSpace",
    "OutcomeError",
    "Paused",
    "Problem",
    "Report",
    "Retention",
    "Role",
    "SavegameError",
    "Stats",
    "Status",
    "StoreNotFound",
    "Strategy",
    "Thread",
    "ThreadInfo",
    "ThreadNotFound",
    "ToolCall",
    "ToolCallStatus",
    "UnavailableError",
    "Unknown",
    "UnsupportedError",
    "Usage",
    "Vault",
    "open",
    "open_async",
]
