"""Removing from a thread that others write to all the time: bounded work, counted in attempts; nothing of theirs is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from savegame import CheckpointNotFound, ConflictError, Thread, Toolbox
from savegame.model import Chain, ThreadKey
from savegame.store import Rewrite, StoreChange
from savegame.stores.memory import MemoryStore
from savegame.timeline.lineage import FRAMES_AT_ONCE
from savegame.vault import Vault
from savegame.waiting.retrying import PLANS

Opener = Callable[..., Vault]

LARGE = "a large text, " * 800
PATIENCE_S = 120


class Busy:
    """A writer that appends to a thread without a pause, and a store that lets it get in before every removal."""

    def __init__(self, vault: Vault, name: str = "t") -> None:
        self.vault, self.name = vault, name
        self.attempts = 0
        self.saved: list[str] = []
        self.meanwhile = 0
        self._commit = vault.store.commit
        self._stop = threading.Event()
        self._moved = threading.Condition()

    @contextmanager
    def writing(self) -> Iterator[Busy]:
        self.vault.store.commit = self._after_two_more  # type: ignore[method-assign]
        writer = threading.Thread(target=self._append)
        writer.start()
        try:
            self._wait_for_two_more()
            yield self
        finally:
            self._stop.set()
            writer.join(PATIENCE_S)
            self.vault.store.commit = self._commit  # type: ignore[method-assign]
        assert not writer.is_alive()

    def _append(self) -> None:
        thread = self.vault.thread(self.name)
        for number in count():
            if self._stop.is_set():
                return
            made = thread.update(append={"l": [f"more {number}"]}, set={"large": f"{LARGE} {number // 3}"})
            with self._moved:
                self.saved.append(made.id)
                self._moved.notify_all()

    def _wait_for_two_more(self) -> None:
        with self._moved:
            before = len(self.saved)
            assert self._moved.wait_for(lambda: len(self.saved) >= before + 2, PATIENCE_S)

    def _after_two_more(self, changes: Sequence[StoreChange]) -> list[int]:
        if any(isinstance(change, Rewrite) for change in changes):
            self.attempts += 1
            self.meanwhile = len(self.saved) + 1  # the next one may have been read already
            self._wait_for_two_more()
        return self._commit(changes)


def grown(vault: Vault, number: int) -> Thread:
    thread = vault.thread("t")
    for turn in range(number):
        thread.update(append={"l": [turn]}, set={"large": f"{LARGE} {turn // 2}"})
    return thread


REMOVALS: dict[str, tuple[Callable[[Vault, Thread], object], int]] = {
    "prune": (lambda vault, thread: thread.prune(keep=5), 1),
    "prune the vault": (lambda vault, thread: vault.prune(keep=5), 1),
    "remove": (lambda vault, thread: thread.remove(3, 7, "head~2"), 2),
    "remove the head": (lambda vault, thread: thread.remove("head"), 2),
    "delete a checkpoint": (lambda vault, thread: vault.delete_checkpoint(thread.load(4).id), 1),
    "discard": (lambda vault, thread: thread.rewind(6, discard=True), 1),
}


@pytest.mark.parametrize("verb", REMOVALS)
def test_appends_do_not_make_a_removal_start_again(vault: Vault, verb: str) -> None:
    """Once more at most: where the newest checkpoint goes, the next one builds on it, and is given another base."""
    act, most = REMOVALS[verb]
    thread = grown(vault, 20)
    old = [found.id for found in thread.history()]
    with Busy(vault).writing() as busy:
        act(vault, thread)
    assert busy.attempts <= most
    left = {found.id for found in thread.history(branches=True)}
    assert not left.issuperset(old) or verb == "remove the head"
    if verb != "discard":
        assert left.issuperset(busy.saved[busy.meanwhile :])
        assert thread.state()["l"][-1].startswith("more")
    assert all(found.load().state["large"].startswith(LARGE) for found in thread.history(branches=True))
    assert vault.verify().ok


def test_a_discard_takes_what_comes_meanwhile(opened: Opener) -> None:
    """All that was saved before it is gone; all that was saved after it is on top of what it went back to."""
    vault = opened()
    thread = grown(vault, 10)
    kept = [found.id for found in thread.history()][-4:]
    with Busy(vault).writing() as busy:
        before = list(busy.saved)
        thread.rewind(kept[0], discard=True)
    assert busy.attempts == 1
    left = [found.id for found in thread.history(branches=True)]
    assert left[-4:] == kept
    assert not set(left).intersection(before)
    assert [found.id for found in thread.history()] == left, "no branch is left"


def test_a_label_that_is_given_meanwhile_still_counts(vault: Vault) -> None:
    thread = grown(vault, 6)
    labelled = thread.load(2).id
    commit = vault.store.commit

    def label_first(changes: Sequence[StoreChange]) -> list[int]:
        if any(isinstance(change, Rewrite) for change in changes):
            vault.store.commit = commit  # type: ignore[method-assign]
            vault.thread("t").label(labelled, "wanted")
        return commit(changes)

    vault.store.commit = label_first  # type: ignore[method-assign]
    assert thread.prune(keep=1) == 4
    assert thread.load("wanted").id == labelled


def test_what_a_run_begins_meanwhile_keeps_its_ledger(vault: Vault) -> None:
    """Replies and calls that came after the thread was read are not taken for what nothing needs any more."""
    tools = Toolbox()

    @tools.tool(idempotent=True)
    def pay(call: Any, cents: int) -> int:
        return cents

    def turn(number: int) -> None:
        asks = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "pay", "arguments": {"cents": number}}]}
        with vault.run("t", tools=tools) as run:
            run.user(f"pay {number}")
            run.model(lambda _: asks)
            run.tools()

    for number in range(3):
        turn(number)
    thread = vault.thread("t")
    frames = vault.store.frames

    def turn_first(*args: Any, **how: Any) -> Any:
        found = frames(*args, **how)
        vault.store.frames = frames  # type: ignore[method-assign]
        turn(3)
        return found

    vault.store.frames = turn_first  # type: ignore[method-assign]
    assert thread.prune(keep=1)
    assert [entry.result for entry in vault.calls("t")] == [0, 1, 2, 3]
    assert len(thread.state()["messages"]) == 12


def test_two_that_remove_at_once_lose_no_large_value() -> None:
    """The second to come plans again: what it says of large values is of before the first came."""
    store = MemoryStore()
    vault = Vault(store)
    thread = grown(vault, 12)
    commit = store.commit

    def prune_first(changes: Sequence[StoreChange]) -> list[int]:
        if any(isinstance(change, Rewrite) for change in changes):
            store.commit = commit  # type: ignore[method-assign]
            Vault(store).thread("t").remove(6, 10)
        return commit(changes)

    store.commit = prune_first  # type: ignore[method-assign]
    assert thread.remove(3, 8) == 2
    assert [found.load().state["l"] for found in thread.history(newest_first=False)] == [
        list(range(step)) for step in (1, 2, 4, 5, 7, 9, 11, 12)
    ]
    assert vault.verify().ok


def test_a_removal_between_two_pages_of_another_one_cuts_nothing_off() -> None:
    """The second page tells that a frame is gone on which, by the first page, another one is built."""
    store = MemoryStore()
    vault = Vault(store)
    thread = vault.thread("t")
    for number in range(FRAMES_AT_ONCE + 50):
        thread.update(append={"l": [number]})
    at_the_edge, before_it = thread.load(50).id, thread.load(49).id
    frames = store.frames

    def remove_after_a_page(*args: Any, **how: Any) -> Any:
        found = frames(*args, **how)
        if how.get("limit") == FRAMES_AT_ONCE:
            store.frames = frames  # type: ignore[method-assign]
            Vault(store).thread("t").remove(at_the_edge)
        return found

    store.frames = remove_after_a_page  # type: ignore[method-assign]
    assert thread.remove(before_it) == 1
    assert vault.verify().ok
    assert thread.load(51).state == {"l": list(range(51))}


def test_a_thread_that_is_branched_from_over_and_over_gives_up_in_the_end() -> None:
    """With an error that says so, after a bounded number of attempts."""

    class Stubborn(MemoryStore):
        attempts = 0

        def commit(self, changes: Sequence[StoreChange]) -> list[int]:
            if any(isinstance(change, Rewrite) for change in changes):
                self.attempts += 1
                vault.thread("t").update(append={"l": ["branch"]}, parent=first)
            return super().commit(changes)

    store = Stubborn()
    vault = Vault(store)
    thread = grown(vault, 3)
    first = thread.load(1).id
    with pytest.raises(ConflictError, match=f"gave up after {PLANS} attempts"):
        thread.remove(first)
    assert store.attempts == PLANS


APPENDS = """
import sys
import savegame
thread = savegame.open(sys.argv[1], durability="process").thread("t")
print("ready", flush=True)
while True:
    thread.update(append={"l": ["more"]})
"""


def test_another_process_that_appends_all_the_time(in_database: Opener, address_of: Callable[..., str]) -> None:
    vault = in_database(durability="process")
    grown(vault, 30)
    where = vault.store.path if vault.store.scheme == "sqlite" else address_of("postgres", "vault.db")
    attempts = 0
    commit = vault.store.commit

    def counted(changes: Sequence[StoreChange]) -> list[int]:
        nonlocal attempts
        attempts += any(isinstance(change, Rewrite) for change in changes)
        return commit(changes)

    vault.store.commit = counted  # type: ignore[method-assign]
    with subprocess.Popen([sys.executable, "-c", APPENDS, where], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            removed = [vault.thread("t").prune(keep=4) for _ in range(20)]
        finally:
            writer.kill()
    assert attempts == sum(number > 0 for number in removed)
    assert vault.verify().ok


@pytest.mark.parametrize("place", [1, 3], ids=["the loaded one goes", "its base goes"])
def test_what_is_removed_while_its_large_values_are_read_is_no_damage(opened: Opener, place: int) -> None:
    """One load is as of one moment: a prune between its reads removes a large value, but never one that is needed."""
    vault = opened(cache_bytes=0)
    thread, store = vault.thread("t"), vault.store
    steps = [thread.save({"large": f"{LARGE} {number}", "step": number}) for number in range(4)]
    blob = store.blob

    def prune_first(key: ThreadKey, digest: bytes) -> bytes | None:
        store.blob = blob  # type: ignore[method-assign]
        assert thread.prune(keep=1) == 3
        return blob(key, digest)

    store.blob = prune_first  # type: ignore[method-assign]
    if place == 1:
        with pytest.raises(CheckpointNotFound):
            thread.load(steps[1].id)
    else:
        assert thread.load(steps[3].id).state["step"] == 3
    assert store.blob == blob


def test_a_thread_that_is_made_again_while_it_is_read_is_not_mixed_up(opened: Opener) -> None:
    """A state never comes with the details of another life of its thread."""
    vault = opened(cache_bytes=0)
    thread, store = vault.thread("t"), vault.store
    thread.save("old", description="old")
    chain = store.chain

    def make_again(key: ThreadKey, seq: int, **options: Any) -> Chain:
        store.chain = chain  # type: ignore[method-assign]
        thread.delete()
        thread.save("new", description="new")
        return chain(key, seq, **options)

    store.chain = make_again  # type: ignore[method-assign]
    latest = vault.thread("t").latest()
    assert latest is not None
    assert (latest.state, latest.description) == ("new", "new")
