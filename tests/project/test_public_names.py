"""The public names: they only grow."""

from __future__ import annotations

import pytest

import savegame

SINCE_0_1 = {
    "AgentAutosave", "AgentInfo", "AgentState", "AlreadyExistsError", "AsyncAgentAutosave", "AsyncAutosave", "AsyncRun",
    "AsyncThread", "AsyncVault", "Attachment", "AttachmentType", "Autosave", "Busy", "Call", "CallEntry", "CallStatus",
    "Change", "Checkpoint", "CheckpointNotFound", "ClosedError", "ConflictError", "Conversation", "ConversationInfo",
    "CorruptionError", "Diff", "Erased", "Event", "Fenced", "Hit", "Hits", "InvalidInputError", "InvalidState", "Kind",
    "MISSING", "Message", "NotFoundError", "OutOfSpace", "OutcomeError", "Paused", "Problem", "Report", "Retention", "Role",
    "Run", "RunInfo", "SavegameError", "StaleRun", "Stats", "Status", "StoreNotFound", "Strategy", "Thread", "ThreadInfo",
    "ThreadNotFound", "Tool", "ToolCall", "ToolCallStatus", "ToolKind", "Toolbox", "UnavailableError", "Unknown",
    "UnsupportedError", "Usage", "Vault", "open", "open_async",
}  # fmt: skip


def test_no_name_was_taken_away() -> None:
    assert set(savegame.__all__) >= SINCE_0_1


def test_every_name_is_there_and_nothing_else_is_public() -> None:
    for name in savegame.__all__:
        assert hasattr(savegame, name)
    modules = {name for name, value in vars(savegame).items() if type(value).__name__ == "module"}
    public = {name for name in vars(savegame) if not name.startswith("_")} - modules
    assert public == set(savegame.__all__)


@pytest.mark.requirement("E04", "X17")
def test_kinds_of_errors_are_stable_and_distinct() -> None:
    errors = [
        value for value in vars(savegame).values() if isinstance(value, type) and issubclass(value, savegame.SavegameError)
    ]
    kinds = [error.kind for error in errors]
    assert len(set(kinds)) == len(kinds)
    assert all(2 <= error.exit_code < 64 for error in errors if error is not savegame.SavegameError)
