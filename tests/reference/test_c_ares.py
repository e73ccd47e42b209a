"""System C: sessions with messages, tool calls, partial results and a status. A session is a thread, its step the iteration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame import Checkpoint, CorruptionError, SavegameError, Status, ThreadNotFound, ToolCall, Vault
from tests.reference.conftest import Opener

SESSION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there"}],
    "tool_calls": [{"tool_name": "search", "arguments": "query", "result": "found it", "success": True}],
    "partial_results": ["partial output"],
}


def saved(vault: Vault, session: str, step: int, **details: Any) -> Checkpoint:
    state = {**SESSION, "partial_results": [f"output of step {step}"]}
    return vault.thread(session, agent="test-agent").save(state, iteration=step, id=f"{session}-{step}", **details)


def test_save_and_load(vault: Vault) -> None:
    """C26. Session, step, messages and tool calls come back."""
    saved(vault, "sess1", 0)
    loaded = vault.thread("sess1").latest()
    assert loaded is not None
    assert (loaded.thread_id, loaded.iteration) == ("sess1", 0)
    assert (len(loaded.state["messages"]), len(loaded.state["tool_calls"])) == (2, 1)


def test_load_nonexistent(vault: Vault) -> None:
    """C27. An unknown session has no latest checkpoint."""
    assert vault.thread("nonexistent").latest() is None


def test_multiple_steps(vault: Vault) -> None:
    """C28. The latest of three steps is the last one; the list has all, in order."""
    for step in range(3):
        saved(vault, "sess1", step)
    assert vault.thread("sess1").load().iteration == 2
    assert [entry.iteration for entry in vault.thread("sess1").history(newest_first=False)] == [0, 1, 2]


def test_cleanup(vault: Vault) -> None:
    """C29. After a clean-up there is no checkpoint any more."""
    for step in range(2):
        saved(vault, "sess1", step)
    thread = vault.thread("sess1")
    assert thread.has_checkpoint()
    assert thread.delete() is True
    assert not thread.has_checkpoint()
    assert vault.stats().checkpoints == 0
    assert thread.delete() is False


def test_separate_sessions(vault: Vault) -> None:
    """C30. Cleaning one leaves the others, also those whose ids begin alike."""
    sessions = ("sess1", "sess2", "sess1_2", "sess1_latest", "latest")
    for session in sessions:
        saved(vault, session, 0)
        assert vault.thread(session).has_checkpoint()
    vault.thread("sess1").delete()
    assert [vault.thread(session).has_checkpoint() for session in sessions] == [False, True, True, True, True]
    assert len(list(vault.thread("sess1_latest").history())) == 1


def test_checkpoint_status_serialization(vault: Vault) -> None:
    """C31. A failure comes back with its reason."""
    saved(vault, "sess1", 0, status="failed(OOM)")
    assert vault.thread("sess1").load().status == Status.failed("OOM")


# -- what its tests leave out ----------------------------------------------------------------------


def test_every_field_survives(on_disk: Opener) -> None:
    """C32. Also in another process's eyes."""
    vault = on_disk()
    state = {**SESSION, "tool_calls": [*SESSION["tool_calls"], {"tool_name": "wait", "result": None, "success": False}]}
    made = vault.thread("sess1", agent="test-agent").save(state, id="sess1-7", iteration=7, status="halted(it goes in circles)")
    vault.close()
    found = on_disk().thread("sess1").load()
    assert found.state == state
    assert (found.id, found.agent_id, found.thread_id, found.iteration) == ("sess1-7", "test-agent", "sess1", 7)
    assert (found.created_at, found.status) == (made.created_at, Status.halted("it goes in circles"))


def test_tool_records_are_read_as_calls(vault: Vault) -> None:
    """C06b to C06e. Their arguments are a text, JSON or not; a conversation with them is loaded, the same whenever it is."""
    (record,) = SESSION["tool_calls"]
    call = ToolCall.from_dict(record)
    assert (call.name, call.arguments, call.result, call.status) == ("search", {"arguments": "query"}, "found it", "completed")
    said = {"role": "assistant", "content": None, "tool_calls": [record, {**record, "arguments": '{"q": 1}', "success": False}]}
    vault.thread("sess1").save({**SESSION, "messages": [*SESSION["messages"], said]})
    found = vault.load_conversation("sess1")
    assert found is not None
    first, second = found.messages[-1].tool_calls
    assert (first.arguments, first.result, second.arguments, second.error) == (call.arguments, "found it", {"q": 1}, "found it")
    assert found == vault.load_conversation("sess1")


@pytest.mark.parametrize("status", ["in_progress", "completed", "halted(loop)", "failed((nested) parentheses)"])
def test_every_status_survives(vault: Vault, status: str) -> None:
    """C33. And tells finished sessions from those to carry on with."""
    saved(vault, "sess1", 0, status=status)
    found = vault.thread("sess1").load().status
    assert repr(found) == status
    assert [info.id for info in vault.threads(status=status)] == ["sess1"]
    assert [info.id for info in vault.threads(status="in_progress")] == (["sess1"] if status == "in_progress" else [])


@pytest.mark.parametrize("address", ["{}/vault.db", "file:{}", "file:{}/vault"])
def test_a_file_in_the_way_is_an_error(tmp_path: Path, address: str) -> None:
    """C34. It is not a directory, and stays as it is."""
    path = tmp_path / "in the way"
    path.write_text("somebody's")
    with pytest.raises(SavegameError, match="in the way"):
        savegame.open(address.format(path))
    assert path.read_text() == "somebody's"


def test_a_damaged_latest_is_an_error_that_names_the_newest_sound_one(on_disk: Opener, damage: Callable[[str], None]) -> None:
    """C35, X08. Whoever asks for it gets the sound one, and is told what was passed over."""
    vault = on_disk()
    for step in range(3):
        saved(vault, "sess1", step)
    vault.close()
    damage("output of step 2")
    thread = on_disk().thread("sess1")
    with pytest.raises(CorruptionError) as caught:
        thread.latest()
    assert caught.value.newest_sound is not None
    assert caught.value.newest_sound.iteration == 1
    found = thread.latest(skip_damaged=True)
    assert found is not None
    assert (found.iteration, found.skipped) == (1, ("sess1-2",))
    assert thread.has_checkpoint()


def test_a_session_of_which_nothing_loads_has_no_checkpoint(on_disk: Opener, damage: Callable[[str], None]) -> None:
    """C24, X23. It never raises; `latest` does."""
    vault = on_disk()
    saved(vault, "sess1", 0)
    vault.close()
    damage("output of step 0")
    thread = on_disk().thread("sess1")
    assert not thread.has_checkpoint()
    with pytest.raises(CorruptionError):
        thread.latest(skip_damaged=True)


def test_when_the_latest_is_gone_the_one_before_it_is_the_latest(vault: Vault) -> None:
    """C36, X27. There is no pointer that could lead nowhere; when the last one is gone, so is the session."""
    for step in range(2):
        saved(vault, "sess1", step)
    assert vault.delete_checkpoint("sess1-1")
    assert vault.thread("sess1").load().iteration == 0
    assert vault.delete_checkpoint("sess1-0")
    assert vault.thread("sess1").latest() is None
    assert list(vault.threads()) == []


def test_a_damaged_entry_is_reported_and_never_hides_the_sound_ones(on_disk: Opener, damage: Callable[[str], None]) -> None:
    """C37, X08. It is not skipped silently: `verify` names it, loading it is an error; `repair` sets it aside."""
    vault = on_disk()
    for number, name in enumerate(("first", "second")):
        vault.thread("sess1").save(f"the {name} state, whole", id=f"sess1-{number}")
    vault.close()
    damage("the second state")
    again = on_disk()
    with pytest.raises(CorruptionError):
        again.thread("sess1").load("sess1-1")
    assert again.thread("sess1").load("sess1-0").state == "the first state, whole"
    problems = again.verify().problems
    assert {(problem.thread_id, problem.checkpoint_id) for problem in problems} == {("sess1", "sess1-1")}
    assert again.repair().ok
    assert [entry.id for entry in again.thread("sess1").history()] == ["sess1-0"]


def test_an_unknown_session_has_no_checkpoint(vault: Vault) -> None:
    """C38. Nor does asking make one."""
    assert not vault.thread("nonexistent").has_checkpoint()
    with pytest.raises(ThreadNotFound):
        vault.thread("nonexistent").load()
    assert list(vault.threads()) == []


def test_the_latest_is_what_was_saved_last(vault: Vault) -> None:
    """C19, X06. Not the highest step."""
    saved(vault, "sess1", 5)
    saved(vault, "sess1", 2)
    assert vault.thread("sess1").load().iteration == 2


def test_a_step_that_is_saved_twice_is_one_checkpoint(vault: Vault) -> None:
    """C12, X07. With other content it is refused, and the first one stays."""
    assert saved(vault, "sess1", 0) == saved(vault, "sess1", 0)
    with pytest.raises(savegame.AlreadyExistsError):
        vault.thread("sess1").save("something else", id="sess1-0")
    assert [entry.id for entry in vault.thread("sess1").history()] == ["sess1-0"]
