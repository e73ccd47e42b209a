"""A thread is deleted and begun again with as many checkpoints, between the plan of a write and the write itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from savegame import CheckpointNotFound, Thread, Vault
from savegame.store import PutKeyframe, Rewrite, StoreChange


def grow(thread: Thread, word: str, count: int = 4) -> list[str]:
    """Checkpoints that each set another name, and their states as text."""
    for number in range(count):
        thread.update(set={f"{word}{number}": number})
    return [str(entry.load().state) for entry in thread.history()]


def begin_again_before(vault: Vault, kind: type, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Delete and re-create the thread right before the first commit with a change of this kind; its states, once it did."""
    commit = vault.store.commit
    states: list[list[str]] = []

    def commit_later(changes: Sequence[StoreChange]) -> list[int]:
        if not states and any(isinstance(change, kind) for change in changes):
            states.append([])
            count = sum(1 for _ in vault.thread("t").history())
            vault.thread("t").delete()
            states[0] = grow(vault.thread("t"), "second", count)
        return commit(changes)

    monkeypatch.setattr(vault.store, "commit", commit_later)
    return states


def test_what_a_prune_planned_for_the_former_thread_changes_no_state_of_the_new_one(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(vault.thread("t"), "first")
    states = begin_again_before(vault, Rewrite, monkeypatch)
    vault.thread("t").prune(keep=2)
    assert [str(entry.load().state) for entry in vault.thread("t").history()] == states[0][:2]
    assert vault.verify().ok


def test_a_checkpoint_of_the_former_thread_is_not_removed_from_the_new_one(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(vault.thread("t"), "first")
    states = begin_again_before(vault, Rewrite, monkeypatch)
    with pytest.raises(CheckpointNotFound, match="removed from thread 't' meanwhile"):
        vault.thread("t").remove("head~2")
    assert [str(entry.load().state) for entry in vault.thread("t").history()] == states[0]
    assert vault.verify().ok


def test_a_keyframe_of_the_former_thread_is_not_put_into_the_new_one(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = vault.thread("t")
    states = begin_again_before(vault, PutKeyframe, monkeypatch)
    number = 0
    while not states and number < 100:
        thread.save({"text": str(number) * 4000})
        number += 1
    assert len(states[0]) == number
    assert [str(entry.load().state) for entry in vault.thread("t").history()] == states[0]
    assert vault.verify().ok
