"""Save games for AI agents: every step durable, rewindable, forkable, resumable.

import savegame
vault = savegame.open("agents.db")
thread = vault.thread("support-42")
thread.save({"messages": []})
"""

from savegame.aio import AsyncAgentAutosave, AsyncAutosave, AsyncThread, AsyncVault
from savegame.checkpoint import Checkpoint
from savegame.details import Details
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
    Stopped,
    StoreNotFound,
    ThreadNotFound,
    UnavailableError,
    UndoFailed,
    UndoUnfinished,
    Unknown,
    UnsupportedError,
)
from savegame.messages.agents import AgentAutosave, AgentInfo
from savegame.messages.conversations import ConversationInfo
from savegame.messages.domain import (
    AgentState,
    Attachment,
    AttachmentType,
    Conversation,
    Message,
    Role,
    ToolCall,
    ToolCallStatus,
)
from savegame.model import MISSING, Change, Kind, Problem, Report, Status, ThreadInfo
from savegame.opening import open_async
from savegame.opening import open_vault as open  # noqa: A004 - the public name
from savegame.present.diffs import Diff
from savegame.runs.arun import AsyncRun
from savegame.runs.budget import Budget
from savegame.runs.inbox import InboxMessage
from savegame.runs.ledger import CallEntry, CallStatus
from savegame.runs.run import Run
from savegame.runs.runner import RunInfo, StaleRun
from savegame.runs.toolbox import Call, Tool, Toolbox, ToolKind
from savegame.runs.undo import Undone
from savegame.search.catching_up import Hit, Hits
from savegame.thread import Thread
from savegame.timeline.autosave import Autosave
from savegame.timeline.policy import Event, Retention, Strategy
from savegame.timeline.subjects import Erased
from savegame.timeline.usage import Usage
from savegame.vault import Stats, Vault

__all__ = [
    "MISSING",
    "AgentAutosave",
    "AgentInfo",
    "AgentState",
    "AlreadyExistsError",
    "AsyncAgentAutosave",
    "AsyncAutosave",
    "AsyncRun",
    "AsyncThread",
    "AsyncVault",
    "Attachment",
    "AttachmentType",
    "Autosave",
    "Budget",
    "Busy",
    "Call",
    "CallEntry",
    "CallStatus",
    "Change",
    "Checkpoint",
    "CheckpointNotFound",
    "ClosedError",
    "ConflictError",
    "Conversation",
    "ConversationInfo",
    "CorruptionError",
    "Details",
    "Diff",
    "Erased",
    "Event",
    "Fenced",
    "Hit",
    "Hits",
    "InboxMessage",
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
    "Run",
    "RunInfo",
    "SavegameError",
    "StaleRun",
    "Stats",
    "Status",
    "Stopped",
    "StoreNotFound",
    "Strategy",
    "Thread",
    "ThreadInfo",
    "ThreadNotFound",
    "Tool",
    "ToolCall",
    "ToolCallStatus",
    "ToolKind",
    "Toolbox",
    "UnavailableError",
    "UndoFailed",
    "UndoUnfinished",
    "Undone",
    "Unknown",
    "UnsupportedError",
    "Usage",
    "Vault",
    "open",
    "open_async",
]
