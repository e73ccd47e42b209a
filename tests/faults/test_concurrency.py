"""Several writers at once, as processes and as threads: one wins, no work is lost, no reader sees half of a write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame.errors import ClosedError, ConflictError
from savegame.testing.faults import Child, Mouth, a_state, is_whole, together
from tests.descriptors import needs_listing, open_under

PROCESSES = 8


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work(number)` in threads at once; the first error of any of them is raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    workers = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive(), "a thread is stuck"
    if errors:
        raise errors[0]


def assert_one_line(thread: savegame.Thread, count: int) -> None:
    """The history is linear and has no gap."""
    entries = list(thread.history())
    assert [entry.step for entry in entries] == list(range(count, 0, -1))
    assert [entry.parent_id for entry in entries] == [entry.id for entry in entries[1:]] + [None]
    assert len({entry.seq for entry in entries}) == count


# -- the same head ---------------------------------------------------------------------------------


def save_expecting(mouth: Mouth, path: str, who: str, rounds: int) -> None:
    with savegame.open(path) as vault:
        mouth.say("ready")
        for number in range(rounds):
            mouth.hear()
            thread = vault.thread(f"race {number}")
            head = thread.latest()
            assert head is not None
            mouth.say("read", head.id)
            mouth.hear()
            try:
                thread.save({"winner": who}, expect=head)
                mouth.say("won")
            except ConflictError as error:
                mouth.say("lost", error.expected, error.found)


@pytest.mark.requirement("Z52")
def test_two_processes_with_the_same_expected_head(path: str) -> None:
    rounds = 50
    with savegame.open(path) as vault:
        heads = [vault.thread(f"race {number}").save({"winner": None}).id for number in range(rounds)]
    with (
        savegame.open(path) as vault,
        Child(save_expecting, path, "a", rounds) as a,
        Child(save_expecting, path, "b", rounds) as b,
    ):
        assert a.next() == b.next() == ["ready"]
        for number, head in enumerate(heads):
            for child in (a, b):
                child.go()
            assert a.next() == b.next() == ["read", head]
            for child in (a, b):
                child.go()
            outcomes = {"a": a.next(), "b": b.next()}
            (winner,) = (who for who, line in outcomes.items() if line == ["won"])
            (loser,) = (line for line in outcomes.values() if line != ["won"])
            now = vault.thread(f"race {number}").latest()
            assert now is not None
            assert now.state == {"winner": winner}
            assert loser == ["lost", head, now.id]
        a.rest()
        b.rest()
        assert vault.verify().ok


# -- many processes --------------------------------------------------------------------------------


def save_many(mouth: Mouth, path: str, name: str, count: int) -> None:
    with savegame.open(path) as vault:
        mouth.say("ready")
        mouth.hear()
        thread = vault.thread(name)
        for number in range(count):
            thread.save({"name": name, "number": number})


def test_8_processes_with_200_saves_to_8_threads(path: str) -> None:
    together(save_many, [(path, f"thread {number}", 200) for number in range(PROCESSES)])
    with savegame.open(path) as vault:
        assert vault.stats().checkpoints == 1600
        for number in range(PROCESSES):
            thread = vault.thread(f"thread {number}")
            assert_one_line(thread, 200)
            for step in (1, 77, 200):
                assert thread.state(step) == {"name": f"thread {number}", "number": step - 1}
        assert vault.verify().ok


def append_many(mouth: Mouth, path: str, who: int, count: int) -> None:
    with savegame.open(path) as vault:
        mouth.say("ready")
        mouth.hear()
        thread = vault.thread("shared")
        for number in range(count):
            thread.update(append={"items": [[who, number]]})


@pytest.mark.requirement("Z52")
def test_8_processes_with_100_appends_to_one_thread(path: str) -> None:
    together(append_many, [(path, who, 100) for who in range(PROCESSES)])
    with savegame.open(path) as vault:
        thread = vault.thread("shared")
        items = thread.state()["items"]
        assert len(items) == 800
        assert sorted(items) == [[who, number] for who in range(PROCESSES) for number in range(100)]
        for who in range(PROCESSES):  # each one's own appends kept their order
            assert [number for one, number in items if one == who] == list(range(100))
        assert_one_line(thread, 800)
        assert thread.state(400) == {"items": items[:400]}
        assert vault.verify().ok


def add_one(mouth: Mouth, path: str, count: int) -> None:
    with savegame.open(path) as vault:
        mouth.say("ready")
        mouth.hear()
        for _ in range(count):
            vault.thread("counter").modify(lambda number: (number or 0) + 1)


def test_modify_counts_right_across_processes(path: str) -> None:
    together(add_one, [(path, 25)] * 4)
    with savegame.open(path) as vault:
        assert vault.thread("counter").state() == 100


# -- many threads ----------------------------------------------------------------------------------


@pytest.mark.requirement("A60")
def test_32_threads_share_flushes_and_lose_nothing(path: str) -> None:
    with savegame.open(path) as vault:

        def work(number: int) -> None:
            thread = vault.thread(f"thread {number}")
            for count in range(25):
                thread.update(append={"items": [count]})

        in_threads(work, 32)
        for number in range(32):
            assert vault.thread(f"thread {number}").state() == {"items": list(range(25))}
            assert_one_line(vault.thread(f"thread {number}"), 25)
        assert vault.verify().ok


def test_losing_a_race_inside_a_group_undoes_only_the_loser(path: str) -> None:
    with savegame.open(path) as vault:
        first = vault.thread("contested").save(0)
        outcomes: list[str] = []

        def work(number: int) -> None:
            try:
                vault.thread("contested").save(number, expect=first)
                outcomes.append("won")
            except ConflictError:
                outcomes.append("lost")
            vault.thread(f"own {number}").save(number)

        in_threads(work, 16)
        assert sorted(outcomes) == ["lost"] * 15 + ["won"]
        assert all(vault.thread(f"own {number}").state() == number for number in range(16))
        assert_one_line(vault.thread("contested"), 2)


def save_in_threads(mouth: Mouth, path: str, who: int, count: int) -> None:
    with savegame.open(path) as vault:
        mouth.say("ready")
        mouth.hear()

        def work(number: int) -> None:
            own, shared = vault.thread(f"own {who} {number}"), vault.thread("shared")
            for step in range(count):
                own.save({"step": step})
                shared.update(append={"items": [[who, number, step]]})

        in_threads(work, 4)


def test_threads_and_processes_together(path: str) -> None:
    together(save_in_threads, [(path, who, 10) for who in range(4)])
    with savegame.open(path) as vault:
        items = vault.thread("shared").state()["items"]
        assert sorted(items) == [[who, number, step] for who in range(4) for number in range(4) for step in range(10)]
        assert_one_line(vault.thread("shared"), 160)
        for who in range(4):
            for number in range(4):
                assert_one_line(vault.thread(f"own {who} {number}"), 10)
        assert vault.verify().ok


@needs_listing
def test_closing_while_threads_save(path: str, tmp_path: Path) -> None:
    """Each save is there, or raised ClosedError; afterwards nothing holds the file open."""
    for _ in range(10):
        vault = savegame.open(path)
        saved: list[str] = []

        def work(number: int, vault: savegame.Vault = vault, saved: list[str] = saved) -> None:
            try:
                while True:
                    saved.append(vault.thread(f"thread {number}").save(number, force=True).id)
            except ClosedError:
                return

        closer = threading.Timer(0.03, vault.close)
        closer.start()
        in_threads(work, 6)
        closer.join()
        assert open_under(tmp_path) == [], "a connection outlived close()"
        with savegame.open(path) as again:
            assert all(again.find(one) is not None for one in saved)


# -- readers ---------------------------------------------------------------------------------------


def write_whole_states(mouth: Mouth, path: str) -> None:
    with savegame.open(path) as vault:
        thread = vault.thread("t")
        state = a_state(0, [])
        mouth.say("ready")
        for number in range(1, 100_000):
            state = a_state(number, ([] if number % 20 == 0 else state["items"]) + [f"item {number} " * 30])
            if number % 3 or number % 20 == 0:
                thread.save(state)
            else:
                thread.update(append={"items": state["items"][-1:]}, set={"count": number, "sum": state["sum"]})
            if number % 50 == 0:
                thread.prune(keep=20)


def test_readers_never_see_half_a_save(path: str) -> None:
    savegame.open(path).close()
    with Child(write_whole_states, path) as child, savegame.open(path) as vault:
        assert child.next() == ["ready"]
        until = time.monotonic() + 2
        seen: set[Any] = set()

        def work(number: int) -> None:
            thread = vault.thread("t")
            while time.monotonic() < until or (len(seen) < 6 and time.monotonic() < until + 60):
                found = thread.latest()
                if found is not None:
                    assert is_whole(found.state)
                    assert found.step == found.state["count"]
                    seen.add(found.id)
                for entry in thread.history(limit=3):
                    loaded = vault.find(entry.id)
                    if loaded is not None:  # else it was pruned since the listing
                        assert is_whole(loaded.state)
                        assert loaded.state["count"] == entry.step

        in_threads(work, 3)
        child.lines()
    assert len(seen) > 5


# -- looking after while others write ----------------------------------------------------------------


@pytest.mark.requirement("Z52")
def test_pruners_do_not_get_into_each_others_way(path: str) -> None:
    with savegame.open(path, durability="process") as a, savegame.open(path) as b:
        for round_ in range(60):
            for number in range(12):
                state = {"round": round_, "number": number, "text": "x" * 200}
                a.thread("t").save(state, force=True, label=f"{number}" if number % 5 == 0 else None)
            at_once = threading.Barrier(2)

            def work(number: int, at_once: threading.Barrier = at_once) -> None:
                at_once.wait(60)
                (a, b)[number].thread("t").prune(keep=(6, 3)[number], include_labelled=True)

            in_threads(work, 2)
            assert b.thread("t").state() == state
            assert len(list(b.thread("t").history())) == 3
        assert b.verify().ok


def prune_and_append(mouth: Mouth, path: str) -> None:
    with savegame.open(path, durability="process") as vault:
        mouth.say("ready")
        for number in range(100_000):
            vault.thread("t").update(append={"items": [number]})
            if number % 5 == 0:
                vault.thread("t").prune(keep=8)


def test_verify_copy_and_history_while_another_process_prunes(path: str) -> None:
    with savegame.open(path) as vault, Child(prune_and_append, path) as child:
        assert child.next() == ["ready"]
        until = time.monotonic() + 2
        while time.monotonic() < until:
            report = vault.verify()
            assert report.ok, report.problems
            for entry in vault.thread("t").history():
                if (there := vault.find(entry.id)) is not None:
                    assert len(there.state["items"]) == there.step
            with savegame.open("memory:") as copy:
                vault.copy_to(copy)
                assert copy.verify().ok
        child.lines()


def test_compact_backup_and_verify_while_others_append(scheme: str, tmp_path: Path) -> None:
    path = f"{scheme}:{tmp_path}/v.db"
    with savegame.open(path) as vault, Child(append_many, path, 0, 300) as a, Child(append_many, path, 1, 300) as b:
        assert a.next() == b.next() == ["ready"]
        a.go()
        b.go()
        for number in range(3):
            vault.compact()
            assert vault.verify().ok
            vault.backup(str(tmp_path / f"copy {number}.db"))
        a.rest()
        b.rest()
        assert sorted(vault.thread("shared").state()["items"]) == [[who, number] for who in (0, 1) for number in range(300)]
        assert vault.verify().ok
    for number in range(3):
        with savegame.open(f"{scheme}:{tmp_path}/copy {number}.db") as copy:
            assert copy.verify().ok
            items = (copy.thread("shared").state() or {"items": []})["items"]
            for who in (0, 1):  # a consistent moment: no gap in what each had saved
                mine = [count for one, count in items if one == who]
                assert mine == list(range(len(mine)))
