"""System B: threads of steps with fork, rewind and labels. Its states are typed: here a dataclass that is given back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from savegame import AlreadyExistsError, Checkpoint, CheckpointNotFound, InvalidState, Retention, Thread, ThreadNotFound, Vault
from tests.reference.conftest import Opener


@dataclass
class State:
    messages: list[str] = field(default_factory=list)
    counter: int = 0


def thread_of(vault: Vault, thread_id: str = "thread1") -> Thread:
    return vault.thread(thread_id, type=State)


def five_saved(thread: Thread) -> list[Checkpoint]:
    return [thread.save(State([f"msg{number}"], number)) for number in range(5)]


def steps(thread: Thread) -> list[int]:
    return [entry.step for entry in thread.history(newest_first=False)]


def test_save_and_load_checkpoint(vault: Vault) -> None:
    """B57. The state comes back equal; the first step is 1."""
    state = State(["hello"], 1)
    made = thread_of(vault).save(state)
    loaded = thread_of(vault).load(made.id)
    assert (loaded.state, loaded.step) == (state, 1)


def test_a_checkpoint_with_its_typed_state_is_serialisable(vault: Vault) -> None:
    """B13. Metadata and state go through JSON; the state is of its class again where that is known."""
    made = thread_of(vault).save(State(["hello"], 1), label="start")
    data = json.loads(json.dumps(made.to_dict(state=True)))
    read = Checkpoint.from_dict(data, codec=vault.codec)
    assert (read, read.state, read.label, read.step) == (made, State(["hello"], 1), "start", 1)
    assert Checkpoint.from_dict(data).state == {"messages": ["hello"], "counter": 1}


def test_load_latest(vault: Vault) -> None:
    """B58. The second of two."""
    thread = thread_of(vault)
    thread.save(State(["first"], 1))
    thread.save(State(["second"], 2))
    latest = thread_of(vault).load()
    assert (latest.state, latest.step) == (State(["second"], 2), 2)


def test_checkpoint_history(vault: Vault) -> None:
    """B59. Three steps in order, although the state never changed."""
    thread = thread_of(vault)
    for _ in range(3):
        thread.save(State())
    assert steps(thread) == [1, 2, 3]


def test_fork_thread(vault: Vault) -> None:
    """B60. The fork begins with the state of its source."""
    state = State(["original"], 5)
    made = thread_of(vault).save(state)
    thread_of(vault).fork("thread2", at=made.id)
    assert thread_of(vault, "thread2").state() == state


def test_rewind(vault: Vault) -> None:
    """B61. Back to the third of five: a history of three, whose latest is that one. What came after is a branch."""
    thread = thread_of(vault)
    thread.rewind(five_saved(thread)[2].id)
    assert len(steps(thread)) == 3
    assert thread_of(vault).state().counter == 2
    assert len(list(thread.history(branches=True))) == 5


def test_max_checkpoints_cleanup(opened: Opener) -> None:
    """B62. Of five, the newest three stay."""
    thread = thread_of(opened(retention=Retention(max_checkpoints=3)))
    for _ in range(5):
        thread.save(State())
    assert steps(thread) == [3, 4, 5]


def test_delete_thread(vault: Vault) -> None:
    """B63. Nothing is left."""
    thread = thread_of(vault)
    thread.save(State())
    thread.save(State())
    thread.delete()
    assert list(thread.history()) == []


def test_list_threads(vault: Vault) -> None:
    """B64. Three threads, by id."""
    for thread_id in ("thread1", "thread3", "thread2"):
        thread_of(vault, thread_id).save(State())
    assert [info.id for info in vault.threads()] == ["thread1", "thread2", "thread3"]


def test_current_step(vault: Vault) -> None:
    """B65. None, one, two."""
    thread = thread_of(vault)
    thread.latest()
    assert thread.step == 0
    thread.save(State())
    assert thread.step == 1
    thread.save(State())
    assert thread.step == 2
    fresh = thread_of(vault)
    assert (fresh.step, vault.info(thread.id).step) == (None, 2)  # type: ignore[union-attr]
    fresh.latest()
    assert fresh.step == 2


def test_checkpoint_with_label(vault: Vault) -> None:
    """B66. Found by its label."""
    thread_of(vault).save(State(), label="important")
    assert thread_of(vault).load("important").label == "important"


def test_parent_chain(vault: Vault) -> None:
    """B67. Each names the one before it."""
    thread = thread_of(vault)
    first, second, _ = [thread.save(State()).id for _ in range(3)]
    assert [entry.parent_id for entry in thread.history(newest_first=False)] == [None, first, second]


# -- what its tests leave out ----------------------------------------------------------------------


def test_steps_survive_a_restart(on_disk: Opener) -> None:
    """B39, B53. The next step follows the last one that is stored."""
    vault = on_disk()
    five_saved(thread_of(vault))
    vault.close()
    thread = thread_of(on_disk())
    assert thread.load().step == 5
    assert thread.save(State()).step == 6


def test_a_state_that_cannot_be_kept_leaves_the_steps_alone(vault: Vault) -> None:
    """B38, B20. The error names the place; nothing was saved."""
    thread = thread_of(vault)
    thread.save(State())
    with pytest.raises(InvalidState) as caught:
        thread.save({"messages": [object()]})
    assert caught.value.path == "messages[0]"
    assert (thread.step, steps(thread)) == (1, [1])


def test_what_is_unknown_is_told_apart(vault: Vault) -> None:
    """B22, B30. An unknown thread, an unknown id, and an id of another thread."""
    made = thread_of(vault).save(State())
    thread_of(vault, "thread2").save(State())
    with pytest.raises(ThreadNotFound):
        thread_of(vault, "nobody").load(made.id)
    with pytest.raises(CheckpointNotFound):
        thread_of(vault).load("unknown")
    with pytest.raises(CheckpointNotFound):
        thread_of(vault, "thread2").load(made.id)


def test_deleting_what_is_not_there_succeeds(vault: Vault) -> None:
    """B25 to B27. And says that there was nothing."""
    assert thread_of(vault).delete() is False
    assert vault.delete_checkpoint("unknown") is False
    assert list(thread_of(vault).history()) == []


def test_a_deleted_thread_begins_anew(vault: Vault) -> None:
    """B52, X27. Its steps too, and until then it is not listed."""
    thread = thread_of(vault)
    thread.save(State())
    thread.delete()
    assert list(vault.threads()) == []
    assert thread.save(State()).step == 1


def test_tags_and_metadata_are_stored_and_found(vault: Vault) -> None:
    """B50, B56. Oldest first if asked so; another tag finds nothing."""
    thread = thread_of(vault)
    for number in range(3):
        thread.save(State(), tags=["even", "x"] if number % 2 == 0 else ["odd"], metadata={"number": str(number)})
    even = thread.history(tag="even", newest_first=False)
    assert [(entry.tags, entry.metadata["number"]) for entry in even] == [(("even", "x"), "0"), (("even", "x"), "2")]
    assert list(thread.history(tag="eve")) == []


def test_of_two_equal_labels_the_newest_is_meant(vault: Vault) -> None:
    """B51 corrected. The listing shows both."""
    thread = thread_of(vault)
    for counter in (1, 2):
        thread.save(State(counter=counter), label="again")
    assert thread.load("again").state.counter == 2
    assert [entry.step for entry in thread.history(label="again")] == [2, 1]


def test_a_fork_keeps_its_lineage_and_refuses_an_existing_thread(vault: Vault) -> None:
    """B46 corrected. Parent, label and tags come along; the source stays as it was."""
    thread = thread_of(vault)
    made = thread.save(State(counter=1), label="start", tags=["t"], metadata={"k": "v"})
    begun = thread.fork("thread2").load()
    assert (begun.parent_id, begun.forked_from, begun.step) == (made.id, "thread1", 1)
    assert (begun.label, begun.tags, begun.metadata) == ("start", ("t",), {"k": "v"})
    with pytest.raises(AlreadyExistsError):
        thread.fork("thread2")
    assert steps(thread) == [1]
    thread.delete()
    assert thread_of(vault, "thread2").state() == State(counter=1)


def test_after_a_rewind_steps_go_on_from_there(vault: Vault) -> None:
    """B47, B49. Rewinding to the latest changes nothing; `discard` deletes what came after, in one go."""
    thread = thread_of(vault)
    made = five_saved(thread)
    thread.rewind(made[4].id, discard=True)
    assert steps(thread) == [1, 2, 3, 4, 5]
    thread.rewind(made[2].id, discard=True)
    assert [entry.step for entry in thread.history(branches=True)] == [3, 2, 1]
    assert thread.save(State()).step == 4


def test_rewinding_to_what_is_unknown_changes_nothing(vault: Vault) -> None:
    """B48. A thread and a checkpoint are told apart here too."""
    thread = thread_of(vault)
    five_saved(thread)
    with pytest.raises(CheckpointNotFound):
        thread.rewind("unknown")
    with pytest.raises(ThreadNotFound):
        thread_of(vault, "nobody").rewind("unknown")
    assert steps(thread) == [1, 2, 3, 4, 5]


def test_retention_spares_the_labelled_and_the_newest(opened: Opener) -> None:
    """B42 corrected, X13. Automatic clean-up never takes what somebody named, nor what was just saved."""
    thread = thread_of(opened(retention=Retention(max_checkpoints=1)))
    thread.save(State(counter=1), label="keep me")
    for counter in (2, 3):
        thread.save(State(counter=counter))
    assert steps(thread) == [1, 3]
    assert thread.load("keep me").state.counter == 1


def test_the_size_of_a_state_is_told_without_it(vault: Vault) -> None:
    """B09, B24. A listing has no states, but it knows that a larger one is larger."""
    thread = thread_of(vault)
    thread.save(State(["short"]))
    thread.save(State(["long" * 1000]))
    sizes = [entry.size_bytes for entry in thread.history(newest_first=False)]
    assert 0 < sizes[0] < 4000 < sizes[1]


def test_what_happens_is_logged(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    """B55. Debug for saves, loads and prunes with thread, id and step; info for forks, rewinds and deletes."""
    caplog.set_level("DEBUG", "savegame")
    thread = vault.thread("t")
    thread.save({"n": 0})
    first = thread.save({"n": 1})
    thread.save({"n": 2})
    thread.load(first.id)
    thread.prune(keep=2)
    thread.rewind(first.id)
    thread.fork("copy")
    thread.delete()
    logged = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "savegame"]
    for level, begins in (
        ("DEBUG", f"saved {first.id}: thread 't' step 2"),
        ("DEBUG", f"loaded {first.id}: thread 't' step 2"),
        ("INFO", f"rewound thread 't' to {first.id}"),
        ("DEBUG", "pruned 1 checkpoints of thread 't'"),
        ("INFO", f"forked thread 't' at {first.id} as 'copy'"),
        ("INFO", "deleted thread 't'"),
    ):
        assert any(found == level and message.startswith(begins) for found, message in logged), (level, begins, logged)
