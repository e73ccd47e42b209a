"""Save games for AI agents: every step durable, rewindable, forkable, resumable.

import savegame
vault = savegame.open("agents.db")
thread = vault.thread("support-42")
thread.save({"messages": []})
"""

from savegame.changes import Diff
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
from savegame.opening import open_vault as open  # noqa: A004 - the public name
from savegame.policy import Retention
from savegame.thread import Thread
from savegame.vault import Stats, Vault

__all__ = [
    "MISSING",
    "AlreadyExistsError",
    "Busy",
    "Change",
    "Checkpoint",
    "CheckpointNotFound",
    "ClosedError",
    "ConflictError",
    "CorruptionError",
    "Diff",
    "Fenced",
    "InvalidInputError",
    "InvalidState",
    "Kind",
    "NotFoundError",
    "OutOfSpace",
    "OutcomeError",
    "Paused",
    "Problem",
    "Report",
    "Retention",
    "SavegameError",
    "Stats",
    "Status",
    "StoreNotFound",
    "Thread",
    "ThreadInfo",
    "ThreadNotFound",
    "UnavailableError",
    "Unknown",
    "UnsupportedError",
    "Vault",
    "open",
]
