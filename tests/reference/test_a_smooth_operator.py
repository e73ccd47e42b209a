"""System A: checkpoints of agents with a strategy, in memory, in files and in SQLite. A store's list is a thread's history."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import savegame
from savegame import Checkpoint, Conversation, Event, InvalidInputError, Strategy, Vault
from savegame.store import Store
from savegame.stores.file import FileStore
from savegame.stores.memory import MemoryStore
from savegame.stores.sqlite import SQLiteStore
from tests.reference.conftest import Opener


def a_conversation(agent_id: str) -> Conversation:
    return Conversation(agent_id, max_context_tokens=100_000).with_system_prompt("test")


def saved(vault: Vault, agent_id: str, iteration: int, **details: object) -> Checkpoint:
    state = a_conversation(agent_id).to_dict()
    return vault.thread(agent_id, agent=agent_id).save(state, iteration=iteration, **details)  # type: ignore[arg-type]


def iterations(vault: Vault, agent_id: str) -> list[int | None]:
    return [entry.iteration for entry in vault.thread(agent_id).history()]


# -- checkpoints -----------------------------------------------------------------------------------


def test_checkpoint_creation(vault: Vault) -> None:
    """A61. A checkpoint knows its agent and iteration, and has an id."""
    made = saved(vault, "agent-1", 5)
    assert (made.agent_id, made.iteration) == ("agent-1", 5)
    assert made.id


def test_checkpoint_with_metadata(vault: Vault) -> None:
    """A62. Several entries of metadata are kept."""
    saved(vault, "agent-1", 1, metadata={"phase": "execute", "bead_id": "smooth-abc"})
    found = vault.thread("agent-1").load()
    assert found.metadata == {"phase": "execute", "bead_id": "smooth-abc"}


def test_checkpoint_serialization(vault: Vault) -> None:
    """A63, A09, A10. One checkpoint goes through compact bytes and keeps everything; malformed bytes are an error."""
    made = saved(vault, "agent-1", 3, metadata={"phase": "execute"})
    data = json.dumps(made.to_dict(state=True), separators=(",", ":")).encode()
    restored = Checkpoint.from_dict(json.loads(data))
    assert (restored.agent_id, restored.iteration, restored.state) == ("agent-1", 3, made.state)
    assert (restored, restored.metadata, restored.created_at) == (made, {"phase": "execute"}, made.created_at)
    for name in ("id", "created_at", "digest"):
        with pytest.raises(InvalidInputError, match=f"{name} is missing"):
            Checkpoint.from_dict({key: value for key, value in json.loads(data).items() if key != name})


def test_a_thread_goes_to_another_store(vault: Vault, tmp_path: Path) -> None:
    """Beyond A63: exports bring whole threads."""
    made = saved(vault, "agent-1", 3)
    vault.export(tmp_path / "export")
    with savegame.open("memory:") as other:
        other.import_(tmp_path / "export")
        restored = other.load(made.id)
    assert (restored.agent_id, restored.iteration, restored.state) == ("agent-1", 3, made.state)
    assert (restored.created_at, restored.digest) == (made.created_at, made.digest)


def test_a_conversation_is_saved_with_its_iteration_and_metadata_in_one_call(vault: Vault) -> None:
    """The main job of A07 and A08; what is loaded is that conversation."""
    conversation = Conversation("agent-1", id="talk").with_system_prompt("test")
    vault.thread("talk").save(conversation, iteration=3, metadata={"phase": "execute"})
    found = vault.thread("talk", type=Conversation).load()
    assert (found.agent_id, found.iteration, found.metadata, found.state) == ("agent-1", 3, {"phase": "execute"}, conversation)


def test_the_time_of_a_checkpoint_is_now_or_given(vault: Vault) -> None:
    """A06. With parts of a second; given for histories that come from elsewhere."""
    when = dt.datetime(2020, 2, 29, 12, 30, 15, 123456, tzinfo=dt.UTC)
    assert saved(vault, "agent-1", 1).created_at > when
    saved(vault, "agent-1", 2, created_at=when)
    assert vault.thread("agent-1").load().created_at == when
    assert iterations(vault, "agent-1") == [2, 1]


def test_a_conversation_goes_through_bytes_unchanged() -> None:
    """A09, A10, A15. What is no conversation is an error."""
    conversation = a_conversation("agent-1")
    assert Conversation.from_json(conversation.to_json()) == conversation
    with pytest.raises(InvalidInputError):
        Conversation.from_json(conversation.to_json()[:-1])


def test_a_checkpoint_is_an_independent_copy(vault: Vault) -> None:
    """A03, A31. Neither what goes in nor what comes out is shared with the store."""
    state = {"messages": ["said"]}
    vault.thread("agent-1").save(state)
    state["messages"].append("leaked in")
    vault.thread("agent-1").state()["messages"].append("leaked back")
    assert vault.thread("agent-1").state() == {"messages": ["said"]}


# -- the contract, on every store ------------------------------------------------------------------


def test_memory_store_save_and_load(vault: Vault) -> None:
    """A64. The latest checkpoint of an agent is found by the agent."""
    saved(vault, "agent-1", 1)
    latest = vault.thread("agent-1").latest()
    assert latest is not None
    assert latest.agent_id == "agent-1"


def test_memory_store_load_by_id(vault: Vault) -> None:
    """A65. The id alone is enough."""
    made = saved(vault, "agent-1", 1)
    saved(vault, "agent-2", 1)
    assert vault.load(made.id).id == made.id
    assert vault.load(made.id).thread_id == "agent-1"


def test_memory_store_load_nonexistent(vault: Vault) -> None:
    """A66. What is not there is None."""
    assert vault.thread("nonexistent").latest() is None
    assert vault.find("bad-id") is None


def test_memory_store_list_ordered(vault: Vault) -> None:
    """A67. One agent's checkpoints, newest first; the order is shown here too."""
    for iteration in range(5):
        saved(vault, "agent-1", iteration)
    saved(vault, "agent-2", 0)
    assert iterations(vault, "agent-1") == [4, 3, 2, 1, 0]
    assert iterations(vault, "nobody") == []


def test_memory_store_prune(vault: Vault) -> None:
    """A68. Of ten, the newest three stay."""
    for iteration in range(10):
        saved(vault, "agent-1", iteration)
    assert vault.thread("agent-1").prune(keep=3) == 7
    assert iterations(vault, "agent-1") == [9, 8, 7]


def test_memory_store_prune_different_agents(vault: Vault) -> None:
    """A69. Pruning one agent leaves the other alone."""
    for iteration in range(5):
        saved(vault, "agent-1", iteration)
        saved(vault, "agent-2", iteration)
    vault.thread("agent-1").prune(keep=2)
    assert (len(iterations(vault, "agent-1")), len(iterations(vault, "agent-2"))) == (2, 5)


def test_what_prune_does_at_the_edges(vault: Vault) -> None:
    """A30 with X13: keeping more than there is removes none, and so does an unknown agent; keeping none is refused."""
    saved(vault, "agent-1", 1)
    assert vault.thread("agent-1").prune(keep=2**63) == 0
    assert vault.thread("nobody").prune(keep=1) == 0
    with pytest.raises(InvalidInputError, match="keep must be at least 1"):
        vault.thread("agent-1").prune(keep=0)
    assert iterations(vault, "agent-1") == [1]


TICKS = itertools.count(10**15, -(10**6))


class BackwardsSQLite(SQLiteStore):
    """Its clock runs backwards, a second at every look."""

    def clock(self) -> int:
        return next(TICKS)


BACKWARDS: dict[str, Callable[[str], Store]] = {
    "memory": lambda _: MemoryStore(clock=lambda: next(TICKS)),
    "sqlite": BackwardsSQLite,
    "file": lambda path: FileStore(path, clock=lambda: next(TICKS)),
}


@pytest.mark.parametrize("store", BACKWARDS)
def test_order_is_that_of_saving_whatever_the_clock_says(store: str, tmp_path: Path) -> None:
    """A28, A35 with X06: the latest is the first of the list, and pruning keeps the same."""
    with Vault(BACKWARDS[store](str(tmp_path / "vault"))) as vault:
        times = [saved(vault, "agent-1", iteration).created_at for iteration in range(10)]
        assert times == sorted(times, reverse=True)
        assert len(set(times)) == 10
        assert iterations(vault, "agent-1") == list(reversed(range(10)))
        vault.thread("agent-1").prune(keep=3)
        assert (iterations(vault, "agent-1"), vault.thread("agent-1").load().iteration) == ([9, 8, 7], 9)


def test_concurrent_saves_are_all_kept(opened: Opener) -> None:
    """A24, A87: fifty saves by ten threads at once, to one agent and to many."""
    vault = opened(durability="process")

    def save_five(worker: int) -> None:
        for iteration in range(5):
            vault.thread("shared").update(append={"by": [worker]}, iteration=iteration)
            saved(vault, f"agent-{worker}", iteration)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(save_five, range(10)))
    assert sorted(vault.thread("shared").state()["by"]) == sorted(list(range(10)) * 5)
    assert [entry.step for entry in vault.thread("shared").history()] == list(range(50, 0, -1))
    assert all(iterations(vault, f"agent-{worker}") == [4, 3, 2, 1, 0] for worker in range(10))


# -- strategy --------------------------------------------------------------------------------------


def test_strategy_every_n() -> None:
    """A70. Every third iteration."""
    strategy = Strategy.every(3)
    assert [strategy.should_save(iteration, Event.ITERATION) for iteration in (1, 2, 3, 6)] == [False, False, True, True]


def test_strategy_after_tool_call() -> None:
    """A71. After a tool call, not after a response."""
    assert Strategy.after_tool_call.should_save(1, Event.TOOL_CALL)
    assert not Strategy.after_tool_call.should_save(1, Event.LLM_RESPONSE)


def test_strategy_never() -> None:
    """A72. After nothing."""
    assert not any(Strategy.never.should_save(1, event) for event in Event)


def test_strategy_after_llm_response() -> None:
    """A20. After a response, not after a tool call."""
    assert Strategy.after_llm_response.should_save(1, Event.LLM_RESPONSE)
    assert not Strategy.after_llm_response.should_save(1, Event.TOOL_CALL)
    assert not Strategy.after_llm_response.should_save(1, Event.ITERATION)


def test_strategy_default() -> None:
    """A17. After a tool call."""
    assert Strategy() == Strategy.after_tool_call


def test_strategy_every_n_saves_once_per_iteration_and_not_before_any() -> None:
    """A22, A23 corrected: other events do not count, iteration 0 is no work yet, every(0) is refused."""
    assert [event for event in Event if Strategy.every(1).should_save(4, event)] == [Event.ITERATION]
    assert not Strategy.every(3).should_save(0, Event.ITERATION)
    with pytest.raises(InvalidInputError, match="at least 1"):
        Strategy.every(0)


# -- files -----------------------------------------------------------------------------------------


def test_file_store_save_creates_file(in_files: Vault, tmp_path: Path) -> None:
    """A73. After a save there is a file that names the checkpoint and its agent, for people to read."""
    made = saved(in_files, "agent-1", 1)
    texts = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("journal.jsonl")]
    assert len(texts) == 1
    assert made.id in texts[0]
    assert "agent-1" in texts[0]


def test_file_store_load_roundtrip(in_files: Vault) -> None:
    """A74. Id, agent and iteration are kept."""
    made = saved(in_files, "agent-1", 42)
    found = in_files.load(made.id)
    assert (found.id, found.agent_id, found.iteration) == (made.id, "agent-1", 42)


def test_file_store_list_scans_directory(in_files: Vault, tmp_path: Path) -> None:
    """A75. One agent's checkpoints, also for whoever opens the directory later."""
    for iteration in range(5):
        saved(in_files, "agent-1", iteration)
    saved(in_files, "agent-2", 0)
    in_files.close()
    with savegame.open(f"file:{tmp_path}/vault") as again:
        assert iterations(again, "agent-1") == [4, 3, 2, 1, 0]


def test_file_store_prune_deletes_old(in_files: Vault, tmp_path: Path) -> None:
    """A76. Of ten, three stay; the others are in no file any more."""
    ids = [saved(in_files, "agent-1", iteration).id for iteration in range(10)]
    assert in_files.thread("agent-1").prune(keep=3) == 7
    assert iterations(in_files, "agent-1") == [9, 8, 7]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert [made.encode() in written for made in ids[:6] + ids[7:]] == [False] * 6 + [True] * 3


def test_file_store_nested_agent_dirs(in_files: Vault, tmp_path: Path) -> None:
    """A77. A directory for each, wherever an id would like to lead."""
    for agent_id in ("agent-a", "agent-b", "../agent-c", "a/b"):
        saved(in_files, agent_id, 1)
    assert len({path.parent for path in tmp_path.rglob("journal.jsonl")}) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["vault"]


def test_a_file_store_makes_nothing_before_the_first_save(in_files: Vault, tmp_path: Path) -> None:
    """A39, A43, A44, X16. What is missing is not an error for whoever looks."""
    assert (in_files.thread("agent-1").latest(), in_files.find("bad-id"), iterations(in_files, "agent-1")) == (None, None, [])
    assert list(tmp_path.iterdir()) == []


def test_file_store_missing_dir_created(tmp_path: Path) -> None:
    """A78. Missing directories are made, three levels of them."""
    with savegame.open(f"file:{tmp_path}/deep/nested/store") as vault:
        saved(vault, "agent-1", 1)
        assert iterations(vault, "agent-1") == [1]
    assert (tmp_path / "deep" / "nested" / "store").is_dir()


# -- SQLite ----------------------------------------------------------------------------------------


def test_sqlite_open_creates_schema(tmp_path: Path) -> None:
    """A79, A51. A new file is ready for use, and so is an old one."""
    for iteration in (1, 2):
        with savegame.open(tmp_path / "test.db") as vault:
            saved(vault, "agent-1", iteration)
            assert iterations(vault, "agent-1") == list(range(iteration, 0, -1))


def test_sqlite_save_load_latest_roundtrip(in_sqlite: Vault) -> None:
    """A80. Agent and iteration are kept."""
    saved(in_sqlite, "agent-1", 5)
    latest = in_sqlite.thread("agent-1").load()
    assert (latest.agent_id, latest.iteration) == ("agent-1", 5)


def test_sqlite_load_by_id(in_sqlite: Vault) -> None:
    """A81. The id alone is enough."""
    made = saved(in_sqlite, "agent-1", 1)
    found = in_sqlite.load(made.id)
    assert (found.id, found.agent_id) == (made.id, "agent-1")


def test_sqlite_list_newest_first(in_sqlite: Vault) -> None:
    """A82. Newest first, with times to the microsecond that come back as they were, without the other agent's."""
    times = [saved(in_sqlite, "agent-1", iteration).created_at for iteration in range(5)]
    saved(in_sqlite, "agent-2", 0)
    listed = list(in_sqlite.thread("agent-1").history())
    assert [entry.iteration for entry in listed] == [4, 3, 2, 1, 0]
    assert [entry.created_at for entry in listed] == times[::-1]


def test_sqlite_prune_keeps_n(in_sqlite: Vault) -> None:
    """A83. Of ten, the newest three stay."""
    for iteration in range(10):
        saved(in_sqlite, "agent-1", iteration)
    assert in_sqlite.thread("agent-1").prune(keep=3) == 7
    assert iterations(in_sqlite, "agent-1") == [9, 8, 7]


def test_sqlite_prune_isolates_agents(in_sqlite: Vault) -> None:
    """A84. Pruning one agent leaves the other alone."""
    for iteration in range(5):
        saved(in_sqlite, "agent-1", iteration)
        saved(in_sqlite, "agent-2", iteration)
    in_sqlite.thread("agent-1").prune(keep=2)
    assert (len(iterations(in_sqlite, "agent-1")), len(iterations(in_sqlite, "agent-2"))) == (2, 5)


def test_sqlite_nonexistent_returns_none(in_sqlite: Vault) -> None:
    """A85. What is not there is None."""
    assert in_sqlite.thread("nonexistent").latest() is None
    assert in_sqlite.find("bad-id") is None


def test_sqlite_in_memory_works() -> None:
    """A86. Without a file there is the memory store; each one is private."""
    with savegame.open("memory:") as vault, savegame.open("memory:") as other:
        saved(vault, "mem-agent", 7)
        assert vault.thread("mem-agent").load().iteration == 7
        assert other.thread("mem-agent").latest() is None


def test_sqlite_concurrent_saves(in_sqlite: Vault) -> None:
    """A87. Fifty saves, fifty checkpoints."""
    for iteration in range(50):
        saved(in_sqlite, "agent-1", iteration)
    assert len(iterations(in_sqlite, "agent-1")) == 50
