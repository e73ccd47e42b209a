"""System D: agents, conversations, messages, checkpoints of an agent as a whole, search, saving by itself."""

from __future__ import annotations

import datetime as dt
import inspect
import time
from collections.abc import Callable

import pytest

from savegame import (
    AgentState,
    AlreadyExistsError,
    AttachmentType,
    CheckpointNotFound,
    Conversation,
    CorruptionError,
    InvalidInputError,
    Kind,
    Message,
    NotFoundError,
    Retention,
    Role,
    Thread,
    ThreadNotFound,
    ToolCallStatus,
    Vault,
)
from tests.reference.conftest import Opener

PATIENCE_S = 60

BUILTINS = {
    "agent_save": Vault.save_agent,
    "agent_load": Vault.load_agent,
    "agent_delete": Vault.delete_agent,
    "agent_list": Vault.agents,
    "conversation_save": Vault.save_conversation,
    "conversation_load": Vault.load_conversation,
    "conversation_delete": Vault.delete_conversation,
    "conversation_list": Vault.conversations,
    "conversation_search": Vault.search,
    "checkpoint_create": Vault.checkpoint_agent,
    "checkpoint_restore": Vault.restore_agent,
    "checkpoint_list": Vault.agent_checkpoints,
    "checkpoint_delete": Vault.delete_checkpoint,
    "persistence_stats": Vault.stats,
}
"""What the system calls its verbs, and which of ours they are."""


def an_agent(agent_id: str = "agent-1") -> AgentState:
    return AgentState(agent_id, "Test", "gpt-4")


def begun(vault: Vault, *texts: str, agent_id: str = "agent-1") -> str:
    conversation = Conversation(agent_id, [Message.user(text) for text in texts])
    vault.save_conversation(conversation)
    return conversation.id


def said(vault: Vault, conversation_id: str) -> list[str]:
    found = vault.load_conversation(conversation_id)
    return [] if found is None else [message.text for message in found.messages]


# -- types -----------------------------------------------------------------------------------------


def test_agent_state_creation() -> None:
    """D66. Id, name and type as given; the first version is 1."""
    state = AgentState("agent-1", "Test Agent", "gpt-4")
    assert (state.agent_id, state.name, state.agent_type, state.version) == ("agent-1", "Test Agent", "gpt-4", 1)


def test_agent_state_custom_state() -> None:
    """D67. A value that was set, and one that was not."""
    state = an_agent()
    state.set_state("counter", 42)
    assert state.get_state("counter") == 42
    assert state.get_state("nonexistent") is None


def test_conversation_creation() -> None:
    """D68. It has an id and an agent, no messages, and is not archived."""
    conversation = Conversation("agent-1")
    assert conversation.id
    assert (conversation.agent_id, conversation.messages, conversation.archived) == ("agent-1", [], False)


def test_conversation_add_message() -> None:
    """D69. Two were added, two are there."""
    conversation = Conversation("agent-1")
    conversation.add_message(Message.user("Hello"))
    conversation.add_message(Message.assistant("Hi there!"))
    assert conversation.message_count() == 2


def test_conversation_auto_title() -> None:
    """D70. A short text is the title."""
    conversation = Conversation("agent-1", [Message.user("What is the weather like today?")])
    conversation.auto_title()
    assert conversation.title == "What is the weather like today?"


def test_conversation_auto_title_truncation() -> None:
    """D71. A long text is cut at 50 characters, dots included, whatever alphabet it is in."""
    for text in ("This is a very long message that should be truncated when used as a title", "Ünï💾" * 20):
        conversation = Conversation("agent-1", [Message.user(text)])
        conversation.auto_title()
        assert conversation.title == text[:47] + "..."


def test_message_user() -> None:
    """D72. Role and content."""
    message = Message.user("Hello")
    assert (message.role, message.content) == (Role.USER, "Hello")


def test_message_assistant() -> None:
    """D73. Role and content."""
    message = Message.assistant("Hi there!")
    assert (message.role, message.content) == (Role.ASSISTANT, "Hi there!")


def test_message_system() -> None:
    """D74. The role."""
    assert Message.system("You are a helpful assistant.").role == Role.SYSTEM


def test_message_tool_result() -> None:
    """D75. The role, and the id of the call in the metadata as in a field of its own."""
    message = Message.tool_result("call-123", "Result: 42")
    assert message.role == Role.TOOL
    assert message.metadata["tool_call_id"] == message.tool_call_id == "call-123"


def test_checkpoint_config_default() -> None:
    """D76, X12. Saving by itself goes on every 300 seconds; how much is kept is said by a Retention, by default everything."""
    assert inspect.signature(Thread.autosave).parameters["every"].default == dt.timedelta(seconds=300)
    assert Retention().keeps_all
    assert Retention(max_checkpoints=10).keep_labelled


# -- the backend, on every store -------------------------------------------------------------------


def test_memory_backend_agent_operations(vault: Vault) -> None:
    """D77. Save, load, list, delete."""
    vault.save_agent(an_agent())
    loaded = vault.load_agent("agent-1")
    assert loaded is not None
    assert loaded.name == "Test"
    assert [info.agent_id for info in vault.agents()] == ["agent-1"]
    vault.delete_agent("agent-1")
    assert vault.load_agent("agent-1") is None


def test_memory_backend_conversation_operations(vault: Vault) -> None:
    """D78. Save, load, list by agent."""
    conversation_id = begun(vault, "Hello")
    begun(vault, "Hello", agent_id="agent-2")
    loaded = vault.load_conversation(conversation_id)
    assert loaded is not None
    assert len(loaded.messages) == 1
    assert [info.id for info in vault.conversations("agent-1")] == [conversation_id]


def test_memory_backend_search(vault: Vault) -> None:
    """D79. A word finds the conversation that has it."""
    wanted = begun(vault, "Hello world")
    begun(vault, "Goodbye universe")
    assert [hit.thread_id for hit in vault.search("world", agent="agent-1", limit=10)] == [wanted]


def test_persistence_manager_basic(vault: Vault) -> None:
    """D80. What was saved is there."""
    vault.save_agent(an_agent())
    assert vault.load_agent("agent-1") is not None


def test_persistence_manager_checkpoint(vault: Vault) -> None:
    """D81. A checkpoint of an agent has an id and is listed."""
    vault.save_agent(an_agent())
    made = vault.checkpoint_agent("agent-1", "Test checkpoint", "manual")
    assert made.id
    assert [(entry.id, entry.label) for entry in vault.agent_checkpoints("agent-1")] == [(made.id, "Test checkpoint")]


def test_persistence_manager_stats(vault: Vault) -> None:
    """D82. One agent, which is one thread with one checkpoint."""
    vault.save_agent(an_agent())
    stats = vault.stats()
    assert (stats.agents, stats.threads, stats.checkpoints) == (1, 1, 1)
    vault.save_conversation(Conversation("helper", messages=[Message.user("one"), Message.user("two")]))
    stats = vault.stats()
    assert (stats.agents, stats.conversations, stats.messages, stats.checkpoints) == (1, 1, 2, 2)
    assert stats.total_bytes > 0


def test_persistence_builtins() -> None:
    """D83, D65. Every verb of the system is there, with a line that says what it does."""
    assert len(set(BUILTINS.values())) == 14
    assert all(verb.__doc__ for verb in BUILTINS.values())


def test_message_role_equality() -> None:
    """D84. Equal to itself and to its text, not to another."""
    assert Role("user") == Role.USER == "user"
    assert Role.USER != Role.ASSISTANT


def test_checkpoint_type_equality() -> None:
    """D85. Equal to itself and to its text, not to another."""
    assert Kind("manual") == Kind.MANUAL == "manual"
    assert Kind.AUTOMATIC != Kind.MANUAL


def test_tool_call_status_equality() -> None:
    """D86. Equal to itself and to its text, not to another."""
    assert ToolCallStatus("pending") == ToolCallStatus.PENDING == "pending"
    assert ToolCallStatus.RUNNING != ToolCallStatus.COMPLETED


def test_attachment_type_equality() -> None:
    """D87. Equal to itself and to its text, not to another."""
    assert AttachmentType("image") == AttachmentType.IMAGE == "image"
    assert AttachmentType.AUDIO != AttachmentType.VIDEO


# -- D88: what its tests leave out -----------------------------------------------------------------


def test_agents_conversations_and_checkpoints_are_there_after_a_restart(on_disk: Opener) -> None:
    """D34, D36. With everything that the objects hold, and maps of many keys in the order that they had."""
    vault = on_disk()
    agent = AgentState("agent-1", "Test", "gpt-4", "Be kind.", ["search"], metadata={"k": "v"})
    agent.config = {f"option {number}": number / 2 for number in reversed(range(50))}
    agent.set_state("counter", 42)
    vault.save_agent(agent)
    conversation_id = begun(vault, "Hello")
    made = vault.checkpoint_agent("agent-1", "before")
    vault.close()
    again = on_disk()
    loaded = again.load_agent("agent-1")
    assert loaded is not None
    assert loaded.active_conversations == [conversation_id]
    loaded.active_conversations = []
    assert (loaded, list(loaded.config)) == (agent, list(agent.config))
    assert said(again, conversation_id) == ["Hello"]
    assert again.restore_agent(made.id).get_state("counter") == 42


def test_restore_brings_back_the_agent_and_all_its_conversations(vault: Vault) -> None:
    """D58, X18. What was begun since is not listed any more; nothing is lost, and the restore can be undone."""
    agent = an_agent()
    vault.save_agent(agent)
    first = begun(vault, "one")
    made = vault.checkpoint_agent("agent-1", "before", "pre_operation")
    agent.set_state("mood", "odd")
    vault.save_agent(agent)
    vault.add_message(first, Message.user("two"))
    second = begun(vault, "later")
    assert vault.restore_agent(made.id).agent_id == "agent-1"
    assert (said(vault, first), said(vault, second)) == (["one"], [])
    assert vault.load_agent("agent-1").get_state("mood") is None  # type: ignore[union-attr]
    undo = next(vault.agent_checkpoints("agent-1"))
    assert undo.kind == Kind.RECOVERY
    vault.restore_agent(undo.id)
    assert (said(vault, first), said(vault, second)) == (["one", "two"], ["later"])


def test_restore_of_what_is_damaged_changes_nothing(on_disk: Opener, damage: Callable[[str], None]) -> None:
    """D57. The whole restore is refused, also when one conversation of several is damaged."""
    vault = on_disk()
    vault.save_agent(an_agent())
    whole, broken = begun(vault, "whole"), begun(vault, "what is about to be damaged")
    made = vault.checkpoint_agent("agent-1", "before")
    vault.add_message(whole, Message.user("later"))
    vault.close()
    damage("about to be damaged")
    again = on_disk()
    with pytest.raises(CorruptionError, match="Checkpoint integrity check failed"):
        again.restore_agent(made.id)
    assert said(again, whole) == ["whole", "later"]
    with pytest.raises(CorruptionError):
        again.load_conversation(broken)


def test_a_restore_to_what_was_pruned_since_says_so_and_changes_nothing(vault: Vault) -> None:
    """D58. What an agent's checkpoint names stays when pruning, unless everything is to go."""
    vault.save_agent(an_agent())
    pruned, kept = begun(vault, "one"), begun(vault, "two")
    made = vault.checkpoint_agent("agent-1", "before")
    for conversation_id in (pruned, kept):
        vault.add_message(conversation_id, Message.user("later"))
    assert vault.thread(kept).prune(keep=1) == 0
    assert vault.thread(pruned).prune(keep=1, include_labelled=True) == 1
    with pytest.raises(CheckpointNotFound, match="1 of the 2 conversations"):
        vault.restore_agent(made.id)
    assert (said(vault, pruned), said(vault, kept)) == (["one", "later"], ["two", "later"])


def test_what_is_unknown_is_named(vault: Vault) -> None:
    """D50, D51, D56, D59. With the texts of the system; deleting succeeds."""
    with pytest.raises(ThreadNotFound, match="Conversation not found"):
        vault.add_message("nothing", Message.user("hi"))
    with pytest.raises(NotFoundError, match="Agent not found"):
        vault.checkpoint_agent("nobody", "before")
    with pytest.raises(CheckpointNotFound, match="Checkpoint not found"):
        vault.restore_agent("nothing")
    assert (vault.delete_agent("nobody"), vault.delete_conversation("nothing"), vault.delete_checkpoint("nothing")) == (
        False,
    ) * 3


def test_automatic_checkpoints_never_push_out_named_ones(opened: Opener) -> None:
    """D60 corrected. The newest stay, of them and of what was just made one always."""
    vault = opened(retention=Retention(max_checkpoints=3))
    vault.save_agent(an_agent())
    named = vault.checkpoint_agent("agent-1", "by hand")
    automatic = [vault.checkpoint_agent("agent-1", f"Auto checkpoint {number}", "automatic") for number in range(10)]
    kept = [entry.id for entry in vault.agent_checkpoints("agent-1")]
    assert kept == [automatic[9].id, automatic[8].id, automatic[7].id, named.id]


def test_an_agent_is_deleted_with_all_that_belongs_to_it(vault: Vault) -> None:
    """D48. Its conversations and checkpoints too; other agents keep theirs."""
    for agent_id in ("agent-1", "agent-2"):
        vault.save_agent(an_agent(agent_id))
        begun(vault, "Hello", agent_id=agent_id)
        vault.checkpoint_agent(agent_id, "before")
    assert vault.delete_agent("agent-1") is True
    assert [info.id for info in vault.agents()] == ["agent-2"]
    assert [info.agent_id for info in vault.conversations()] == ["agent-2"]
    assert list(vault.agent_checkpoints("agent-1")) == []
    assert len(list(vault.agent_checkpoints("agent-2"))) == 1


def test_search_is_for_one_agent_whatever_the_case_and_up_to_a_limit(vault: Vault) -> None:
    """D32. Parts of words are found too; an empty query finds every conversation with a message, a limit of 0 none."""
    mine = {begun(vault, "Hello World"), begun(vault, "unworldly")}
    begun(vault, "world", agent_id="agent-2")
    assert {hit.thread_id for hit in vault.search("HELLO", agent="agent-1")} < mine
    assert [hit.snippet for hit in vault.search("nworl", agent="agent-1")] == ["u[nworl]dly"]
    assert {hit.thread_id for hit in vault.search("WORLD", agent="agent-1", match="substring")} == mine
    assert {hit.thread_id for hit in vault.search("", agent="agent-1")} == mine
    assert [len(vault.search("", agent="agent-1", limit=limit)) for limit in (0, 1)] == [0, 1]


def test_saving_by_itself_begins_at_once_and_ends_with_stop(vault: Vault) -> None:
    """D61 to D63. Nothing is written while nothing changes, nor after the end."""
    looks: list[dict[str, list[str]]] = []

    def look() -> dict[str, list[str]]:
        looks.append({"messages": ["Hello"]})
        return looks[-1]

    with vault.thread("chat", agent="agent-1").autosave(look, dt.timedelta(milliseconds=1)) as autosave:
        deadline = time.monotonic() + PATIENCE_S
        while len(looks) < 3:
            assert time.monotonic() < deadline, "it does not go on"
            time.sleep(0.001)
    (entry,) = vault.thread("chat").history()
    assert (entry.kind, entry.description) == (Kind.AUTOMATIC, "Automatic checkpoint")
    assert (autosave.running, autosave.saved, autosave.errors) == (False, 1, ())
    assert entry.load().state == {"messages": ["Hello"]}


def test_saving_by_itself_needs_time_in_between_and_takes_no_second_loop(vault: Vault) -> None:
    """D43b, D61 corrected."""
    thread = vault.thread("chat")
    with pytest.raises(InvalidInputError, match="every must be longer than zero"):
        thread.autosave(dict, dt.timedelta(0))
    with thread.autosave(dict), pytest.raises(AlreadyExistsError, match="already has a running autosave"):
        vault.thread("chat").autosave(dict)
