"""watch: every new checkpoint once, in order, whichever process saved it."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

import pytest
from addresses import Opener

from savegame import CheckpointNotFound, ClosedError, InvalidInputError, Retention, Thread, Vault

NOW = dt.timedelta(0)
SHORT = dt.timedelta(milliseconds=1)
PATIENCE = dt.timedelta(minutes=1)


def seen(thread: Thread, **how: Any) -> list[int]:
    """The steps of what a watch shows without waiting."""
    return [cp.step for cp in thread.watch(timeout=NOW, **how)]


def test_old_checkpoints_are_not_new(vault: Vault) -> None:
    thread = vault.thread("t")
    assert seen(thread) == []
    thread.save(1)
    assert seen(thread) == []


def test_new_is_what_comes_after_the_call_not_after_the_first_look(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save(1)
    watching = thread.watch(timeout=NOW)
    for number in (2, 3):
        vault.thread("t").save(number)
    assert [(cp.step, cp.load().state) for cp in watching] == [(2, 2), (3, 3)]


def test_it_shows_metadata_only(vault: Vault) -> None:
    thread = vault.thread("t")
    watching = thread.watch(timeout=NOW)
    made = thread.save({"n": 1}, label="x", tags=["y"])
    (found,) = watching
    assert (found, found.label, found.tags) == (made, "x", ("y",))
    with pytest.raises(InvalidInputError, match="listing"):
        _ = found.state


def test_it_waits_for_what_another_vault_saves(in_database: Opener) -> None:
    here, there = in_database(), in_database()
    go_on = threading.Event()

    def save() -> None:
        for number in range(20):
            assert go_on.wait(PATIENCE.total_seconds())
            go_on.clear()
            there.thread("t").save(number)

    saving = threading.Thread(target=save)
    saving.start()
    found = []
    watching = here.thread("t").watch(since=None, poll=SHORT, timeout=PATIENCE)  # before the first save, to see that one too
    go_on.set()
    for cp in watching:
        found.append(cp.load().state)
        go_on.set()
        if len(found) == 19:
            break
    saving.join()
    assert found == list(range(19))


def test_since_continues_after_a_checkpoint_or_what_names_it(vault: Vault) -> None:
    thread = vault.thread("t")
    made = [thread.save(number, label=f"number {number}") for number in range(5)]
    for since in (made[1], made[1].id, "number 1", "head~3", 2):
        assert seen(thread, since=since) == [3, 4, 5]


def test_since_may_have_been_pruned(vault: Vault) -> None:
    thread = vault.thread("t")
    made = [thread.save(number) for number in range(5)]
    thread.prune(keep=2)
    assert seen(thread, since=made[1]) == [4, 5]
    with pytest.raises(CheckpointNotFound):
        thread.watch(since=made[1].id)


def test_since_must_be_of_this_thread(vault: Vault) -> None:
    other = vault.thread("other").save(1)
    vault.thread("t").save(1)
    with pytest.raises(InvalidInputError, match="belongs to another thread than 't'"):
        vault.thread("t").watch(since=other)
    with pytest.raises(CheckpointNotFound):
        vault.thread("t").watch(since=other.id)


def test_branches_are_shown_and_a_moved_head_is_not(vault: Vault) -> None:
    thread = vault.thread("t")
    first = thread.save(1)
    watching = thread.watch(timeout=NOW)
    second = thread.save(2)
    thread.rewind(first)
    branch = thread.save(3)
    thread.rewind(second)
    assert list(watching) == [second, branch]
    assert seen(thread, since=branch) == []


def test_more_than_a_page(vault: Vault) -> None:
    thread = vault.thread("t")
    first = thread.save(0)
    for number in range(600):
        thread.save(number)
    assert seen(thread, since=first) == list(range(2, 602))


def test_what_retention_hides_is_not_shown(opened: Opener) -> None:
    thread = opened(retention=Retention(max_checkpoints=2)).thread("t")
    first = thread.save(0)
    for number in range(5):
        thread.save(number)
    assert seen(thread, since=first) == [5, 6]


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("looked", [True, False], ids=["seen gone", "gone unseen"])
def test_a_deleted_thread_is_waited_for(vault: Vault, before: int, looked: bool) -> None:
    """Its sequence numbers start again at 1."""
    thread = vault.thread("t")
    first = thread.save(0)
    watching = thread.watch(since=first, poll=SHORT, timeout=PATIENCE)
    shown = [thread.save(number) for number in range(before)]
    assert [next(watching) for _ in shown] == shown
    thread.delete()
    if looked:
        maker = threading.Timer(0.05, lambda: vault.thread("t").save("new"))
        maker.start()
        assert next(watching).load().state == "new"
        maker.join()
    else:
        made = [vault.thread("t").save(f"new {number}") for number in range(3)]
        assert [next(watching) for _ in made] == made


def test_a_thread_that_was_made_anew_before_the_first_look_is_new(vault: Vault) -> None:
    vault.thread("t").save(0)
    watching = vault.thread("t").watch(timeout=NOW)
    vault.thread("t").delete()
    made = [vault.thread("t").save(number) for number in range(2)]
    assert list(watching) == made


def test_a_closed_vault_ends_it_with_an_error(opened: Opener) -> None:
    vault = opened()
    watching = vault.thread("t").watch(poll=SHORT)
    threading.Timer(0.05, vault.close).start()
    with pytest.raises(ClosedError):
        next(watching)


@pytest.mark.parametrize("wrong", [{"poll": NOW}, {"poll": -SHORT}, {"timeout": -SHORT}])
def test_what_makes_no_sense_is_refused_at_once(vault: Vault, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        vault.thread("t").watch(**wrong)
