"""latest, load, state, history, references, rewind, fork, diff, labels and tags, listings across threads."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from homes import Home

import savegame
from savegame import AlreadyExistsError, CheckpointNotFound, ConflictError, InvalidInputError, NotFoundError, ThreadNotFound
from savegame.store import ANY, DeleteThread, MoveHead
from savegame.stores.memory import MemoryStore
from savegame.testing.faults import Child, Mouth
from savegame.thread import Thread
from savegame.timeline.timeline import Timeline
from savegame.vault import Vault
from savegame.waiting.retrying import LOOKS, retried


def five(vault: Vault, name: str = "t") -> Thread:
    thread = vault.thread(name)
    for number in range(1, 6):
        thread.save({"n": number}, id=f"{name}-checkpoint-{number}")
    return thread


def steps(thread: Thread, **how: Any) -> list[int]:
    return [cp.step for cp in thread.history(**how)]


# -- references ------------------------------------------------------------------------------------


def test_references(vault: Vault) -> None:
    thread = five(vault)
    thread.label("head~1", "blue")
    for ref, step in (
        ("t-checkpoint-2", 2),
        ("head", 5),
        ("head~0", 5),
        ("head~4", 1),
        ("blue", 4),
        (3, 3),
        (thread.load(2), 2),
    ):
        assert thread.load(ref).step == step
        assert thread.state(ref) == {"n": step}
    for missing in ("nope", "head~5", 0, 6, -1, "Blue", "", "HEAD", "head~", "head~-1", "t-che", "head~1 ", 10**30):
        with pytest.raises(CheckpointNotFound):
            thread.load(missing)
    for wrong in (True, 1.5, None, b"x", ["head"]):
        with pytest.raises((InvalidInputError, CheckpointNotFound)):
            thread.rewind(wrong)  # type: ignore[arg-type]
    assert thread.load().step == 5
    with pytest.raises(InvalidInputError, match="ambiguous"):
        thread.load("t-checkpoint-")
    with pytest.raises(NotFoundError):
        thread.load("\ud800abcdef")


@pytest.mark.requirement("E03")
def test_prefixes(vault: Vault) -> None:
    thread = vault.thread("t")
    cps = [thread.save(number) for number in range(5)]
    for cp in cps:
        assert thread.load(cp.id[:6]).id == cp.id
        with pytest.raises(CheckpointNotFound):
            thread.load(cp.id[:5])
        assert thread.load(cp.id).id == cp.id


@pytest.mark.requirement("B07", "B51", "B66", "Z19")
def test_labels_newest_wins_and_come_before_prefixes(vault: Vault) -> None:
    thread = vault.thread("t")
    one = thread.save(1, label="x")
    two = thread.save(2, label="x")
    thread.save(3, label=one.id[:8])
    assert thread.load("x").id == two.id
    assert thread.load(one.id[:8]).step == 3
    assert thread.load(one.id).step == 1
    thread.label(two, None)
    assert thread.load("x").id == one.id


def test_steps_are_places_on_the_heads_line(vault: Vault) -> None:
    thread = five(vault)
    thread.rewind(2)
    branch = thread.save({"n": "branch"})
    assert branch.step == 3
    assert thread.load(3).id == branch.id
    with pytest.raises(CheckpointNotFound):
        thread.load(4)
    assert thread.load("t-checkpoint-4").state == {"n": 4}


def test_the_newest_at_a_time() -> None:
    now = [1_000_000_000_000_000]
    with Vault(MemoryStore(clock=lambda: now[0])) as vault:
        thread = vault.thread("t")
        for number in range(1, 4):
            now[0] += 1_000_000
            thread.save(number)
        moment = thread.load(2).created_at
        assert thread.state(at=moment) == 2
        assert thread.state(at=moment + dt.timedelta(microseconds=999_999)) == 2
        assert thread.state(at=moment - dt.timedelta(microseconds=1)) == 1
        assert thread.load(at=moment.astimezone(dt.timezone(dt.timedelta(hours=5)))).step == 2
        assert thread.state(at=dt.datetime.max.replace(tzinfo=dt.UTC)) == 3
        with pytest.raises(CheckpointNotFound):
            thread.load(at=dt.datetime(1990, 1, 1, tzinfo=dt.UTC))
        with pytest.raises(InvalidInputError, match="zone"):
            thread.load(at=dt.datetime(2024, 1, 1))
        with pytest.raises(InvalidInputError, match="not both"):
            thread.load(1, at=moment)


@pytest.mark.requirement("A30", "B16", "B17", "B22", "B23", "B25", "B26", "B27", "B28", "B30", "B48", "C38", "X03", "X05")
@pytest.mark.requirement("X27", "Z22")
def test_a_thread_that_does_not_exist(vault: Vault) -> None:
    thread = vault.thread("nothing")
    acts: list[Callable[[], object]] = [
        lambda: thread.load("head"),
        lambda: thread.load(1),
        lambda: thread.rewind("head"),
        lambda: thread.fork("other"),
        lambda: thread.label("head", "x"),
        lambda: thread.tag("head", "x"),
        lambda: thread.diff(1, 2),
        lambda: thread.save(1, parent="head"),
    ]
    for act in acts:
        with pytest.raises(ThreadNotFound):
            act()
    assert (thread.state(), thread.latest(), list(thread.history()), thread.prune(keep=1), thread.delete()) == (
        None,
        None,
        [],
        0,
        False,
    )
    assert list(vault.threads()) == []


# -- history ---------------------------------------------------------------------------------------


@pytest.mark.requirement("A28", "A57", "A67", "A82", "B06", "B08", "B10", "B45", "B50", "B56", "B59", "C20", "C28", "E02c")
@pytest.mark.requirement("E22", "X01", "Z11")
def test_history(vault: Vault) -> None:
    thread = five(vault)
    thread.tag(2, "red")
    thread.tag(4, "red", "blue")
    thread.label(3, "mark")
    assert steps(thread) == [5, 4, 3, 2, 1]
    assert steps(thread, newest_first=False) == [1, 2, 3, 4, 5]
    assert steps(thread, limit=2) == [5, 4]
    assert steps(thread, limit=2, newest_first=False) == [1, 2]
    assert steps(thread, limit=0) == []
    assert steps(thread, limit=10**30) == steps(thread)
    assert steps(thread, before=3) == [2, 1]
    assert steps(thread, before=3, newest_first=False) == [1, 2]
    assert steps(thread, before="mark", limit=1) == [2]
    assert steps(thread, before=1) == []
    assert steps(thread, tag="red") == [4, 2]
    assert steps(thread, tag="red", limit=1) == [4]
    assert steps(thread, label="mark") == [3]
    assert steps(thread, tag="nope") == []
    with pytest.raises(CheckpointNotFound):
        list(thread.history(before="nope"))


def test_pages_of_a_long_history(vault: Vault) -> None:
    thread = vault.thread("t")
    for number in range(600):
        thread.update(append={"l": [number]})
    assert steps(thread) == list(range(600, 0, -1))
    assert steps(thread, branches=True, newest_first=False) == list(range(1, 601))
    seen: list[int] = []
    before: Any = None
    while page := list(thread.history(limit=70, before=before)):
        seen += [cp.step for cp in page]
        before = page[-1]
    assert seen == list(range(600, 0, -1))
    assert thread.load("head~555").step == 45
    assert thread.load(45).state == {"l": list(range(45))}
    assert vault.verify().ok


@pytest.mark.requirement("B09", "B14", "B24", "D25i", "E02a", "E02b", "X02", "Z23")
def test_history_is_metadata_only(vault: Vault) -> None:
    thread = five(vault)
    entry = next(iter(thread.history()))
    large = vault.thread("large").save({"n": "x" * 1000})
    assert 0 < entry.size_bytes < 1000 <= next(vault.thread("large").history()).size_bytes == large.size_bytes
    with pytest.raises(InvalidInputError, match="load"):
        _ = entry.state
    assert entry.load().state == {"n": 5}
    assert entry.load() == entry
    assert thread.load(5).load().state == {"n": 5}


def test_an_entry_of_a_deleted_thread_does_not_load_another(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save("old")
    entry = next(iter(thread.history()))
    thread.delete()
    thread.save("new")
    with pytest.raises(NotFoundError):
        entry.load()


def test_branches(vault: Vault) -> None:
    thread = five(vault)
    thread.rewind(2)
    thread.save({"n": "b"}, id="branch")
    assert [cp.id for cp in thread.history()] == ["branch", "t-checkpoint-2", "t-checkpoint-1"]
    every = [cp.id for cp in thread.history(branches=True)]
    assert every == ["branch", *(f"t-checkpoint-{number}" for number in (5, 4, 3, 2, 1))]
    assert [cp.id for cp in thread.history(branches=True, before="t-checkpoint-4")] == every[3:]
    assert [cp.id for cp in thread.history(branches=True, newest_first=False, limit=2)] == every[:-3:-1]


# -- rewind ----------------------------------------------------------------------------------------


@pytest.mark.requirement("B47", "B48", "B49", "B61", "X18", "Z18")
def test_rewind(vault: Vault) -> None:
    thread = five(vault)
    found = thread.rewind(3)
    assert (found.step, found.state, thread.head, thread.step) == (3, {"n": 3}, "t-checkpoint-3", 3)
    assert vault.thread("t").state() == {"n": 3}
    assert steps(thread) == [3, 2, 1]
    assert steps(thread, branches=True) == [5, 4, 3, 2, 1]
    assert thread.rewind("t-checkpoint-5").step == 5
    assert thread.rewind("head").step == 5
    assert thread.rewind("head~1").step == 4
    assert thread.save({"n": "new"}).step == 5
    with pytest.raises(CheckpointNotFound):
        thread.rewind("nope")


@pytest.mark.requirement("B47", "B49")
def test_rewind_and_discard(vault: Vault) -> None:
    thread = five(vault)
    thread.rewind(2)
    thread.save({"n": "branch"}, id="branch", label="kept?")
    thread.rewind("t-checkpoint-4", discard=True)
    assert [cp.id for cp in thread.history(branches=True)] == [f"t-checkpoint-{number}" for number in (4, 3, 2, 1)]
    assert vault.find("branch") is None
    assert thread.save({"n": "new"}, id="branch").step == 5
    assert thread.rewind("head", discard=True).step == 5
    assert len(list(thread.history(branches=True))) == 5
    assert [cp.load().state["n"] for cp in thread.history()] == ["new", 4, 3, 2, 1]
    assert vault.verify().ok


@pytest.mark.parametrize("discard", [False, True])
def test_a_rewind_that_expects_a_head_moves_no_other(vault: Vault, discard: bool) -> None:
    thread = five(vault)
    seen = next(thread.history(limit=1))
    thread.update(set={"n": 6}, id="since")
    with pytest.raises(ConflictError) as caught:
        thread.rewind(2, discard=discard, expect=seen)
    assert (caught.value.expected, caught.value.found) == (seen.id, "since")
    assert steps(vault.thread("t"), branches=True) == [6, 5, 4, 3, 2, 1]
    assert thread.rewind(2, discard=discard, expect="since").step == 2
    assert steps(vault.thread("t"), branches=True) == ([2, 1] if discard else [6, 5, 4, 3, 2, 1])


def test_what_is_not_there_is_not_looked_for_a_thousand_times() -> None:
    looks = []

    def attempt() -> None:
        looks.append(1)
        raise CheckpointNotFound("nothing")

    with pytest.raises(CheckpointNotFound):
        retried(attempt, gone=True)
    assert len(looks) == LOOKS


# -- replay ----------------------------------------------------------------------------------------


def test_states_one_after_the_other_across_branches(vault: Vault) -> None:
    thread = vault.thread("t")
    for number in range(40):
        thread.update(append={"n": [number]}, id=f"main-{number}")
        thread.save({"n": [-number]}, id=f"beside-{number}", parent=f"main-{number}")
        thread.rewind(f"main-{number}")
    line = list(thread.history(newest_first=False))
    assert [point.state["n"] for point in thread.replay(line)] == [list(range(number + 1)) for number in range(40)]
    chosen = [line[3], line[4], line[20], line[39]]
    assert [len(point.state["n"]) for point in thread.replay(chosen)] == [4, 5, 21, 40]
    thread.remove("beside-7", "main-39")
    with pytest.raises(CheckpointNotFound):
        list(thread.replay(line))


# -- fork ------------------------------------------------------------------------------------------


@pytest.mark.requirement("B46", "B60", "X24", "Z17")
def test_fork(vault: Vault) -> None:
    thread = vault.thread("t", agent="helper")
    for number in range(1, 4):
        thread.save(
            {"n": number, "big": "x" * 20_000}, label=f"l{number}", tags=["a"], metadata={"m": number}, iteration=number
        )
    fork = thread.fork("what-if", at=2)
    assert (fork.id, fork.step) == ("what-if", 1)
    (begin,) = fork.history()
    assert (begin.id, begin.step, begin.forked_from, begin.parent_id) == (fork.head, 1, "t", thread.load(2).id)
    assert (begin.label, begin.tags, begin.metadata, begin.iteration) == ("l2", ("a",), {"m": 2}, 2)
    assert begin.id != thread.load(2).id
    fork.save({"n": "forked"})
    assert thread.state() == {"n": 3, "big": "x" * 20_000}
    with pytest.raises(AlreadyExistsError):
        thread.fork("what-if")
    with pytest.raises(AlreadyExistsError):
        thread.fork("t")
    again = fork.fork("again")
    assert vault.thread("again").state() == {"n": "forked"}
    assert next(iter(again.history())).forked_from == "what-if"
    thread.delete()
    assert [cp.load().state["n"] for cp in fork.history()] == ["forked", 2]
    assert fork.state(1) == {"n": 2, "big": "x" * 20_000}
    assert vault.verify().ok
    infos = {info.id: info.forked_from for info in vault.threads()}
    assert infos == {"what-if": "t", "again": "what-if"}


def test_threads_and_forks_without_an_id_get_one(vault: Vault) -> None:
    thread, other = vault.thread(), vault.thread()
    thread.save({"n": 1})
    forks = [thread.fork(), thread.fork(at=1)]
    assert len({thread.id, other.id, *(fork.id for fork in forks)}) == 4
    assert vault.thread(thread.id).state() == vault.thread(forks[1].id).state() == {"n": 1}
    assert vault.thread(other.id).state() is None


# -- notes -----------------------------------------------------------------------------------------


@pytest.mark.requirement("B08", "B12")
def test_labels_and_tags(vault: Vault) -> None:
    thread = five(vault)
    digest = thread.load(2).digest
    assert thread.label(2, "two").label == "two"
    assert thread.tag("two", "a", "b", "a").tags == ("a", "b")
    assert thread.tag(2, "c", "a").tags == ("a", "b", "c")
    assert thread.untag(2, "b", "missing").tags == ("a", "c")
    assert thread.label("two", "deux").tags == ("a", "c")
    found = thread.load("deux")
    assert (found.step, found.label, found.tags, found.digest) == (2, "deux", ("a", "c"), digest)
    assert thread.label(2, None).label is None
    assert thread.untag(2, "a", "c").tags == ()
    assert thread.tag(2).tags == ()
    assert thread.latest() == thread.load("t-checkpoint-5")
    acts: list[Callable[[], object]] = [
        lambda: thread.label(2, ""),
        lambda: thread.tag(2, ""),
        lambda: thread.tag(2, 5),  # type: ignore[arg-type]
        lambda: thread.label(2, "\0"),
    ]
    for act in acts:
        with pytest.raises(InvalidInputError):
            act()


@pytest.mark.parametrize("given", [None, "ab", ("label",), {"label": ["tag"]}, (5, []), ("label", "tag")], ids=repr)
def test_a_note_that_is_no_label_and_tags_changes_nothing(given: Any, vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save(1, label="before", tags=["a"])
    with pytest.raises(InvalidInputError):
        thread.note("head", lambda label, tags: given)
    found = thread.load("head")
    assert (found.label, found.tags) == ("before", ("a",))


def test_a_note_does_not_move_anything(vault: Vault) -> None:
    one, other = five(vault), vault.thread("t")
    other.label(1, "first")
    one.save({"n": 6})
    assert one.step == 6


# -- diff ------------------------------------------------------------------------------------------


def test_diff(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"plan": ["a", "b"], "files": {"x": 1, "y": 2}, "same": "z" * 10_000})
    thread.update(append={"plan": ["c"]}, set={("files", "y"): 3}, delete=[("files", "x")])
    assert str(thread.diff(1, 2)) == "+ plan[2] = 'c'\n- files.x = 1\n~ files.y: 2 -> 3"
    assert [change.path for change in thread.diff(1, "head")] == [("plan", 2), ("files", "x"), ("files", "y")]
    assert str(thread.diff(2, 2)) == "no changes"
    other = thread.fork("other", at=1)
    other.update(set={"n": 1})
    assert other.head is not None
    assert str(vault.diff(thread.load(1).id, other.head)) == "+ n = 1"
    with pytest.raises(CheckpointNotFound):
        vault.diff("nope", other.head)


# -- across threads --------------------------------------------------------------------------------


@pytest.mark.requirement("B27", "B28", "B54", "B64", "Z21")
def test_threads(vault: Vault) -> None:
    for number in range(250):
        vault.thread(f"t{number:03}", agent="even" if number % 2 == 0 else "odd").save({"n": number})
    vault.thread("t007").save(1, status="completed", tags=["x"])
    vault.thread("t007").save(1, status="failed(broke)")
    vault.thread("t009").save(1, status="failed(other)")
    assert [info.id for info in vault.threads()] == [f"t{number:03}" for number in range(250)]
    assert [info.id for info in vault.threads(after="t200", limit=3)] == ["t201", "t202", "t203"]
    assert [info.id for info in vault.threads(agent="odd", limit=2)] == ["t001", "t003"]
    assert len(list(vault.threads(agent="odd", limit=None))) == 125
    assert [info.id for info in vault.threads(tag="x")] == ["t007"]
    assert list(vault.threads(status="completed")) == []
    assert [info.id for info in vault.threads(status="failed")] == ["t007", "t009"]
    assert [info.id for info in vault.threads(status="failed(other)")] == ["t009"]
    assert list(vault.threads(limit=0)) == []
    assert len(list(vault.threads(limit=10**30))) == 250
    assert list(vault.threads(agent="nobody")) == []
    with pytest.raises(InvalidInputError):
        list(vault.threads(status="nonsense"))
    for wrong in (5, b"t200", ["t200"], "\ud800"):
        with pytest.raises(InvalidInputError):
            list(vault.threads(after=wrong))  # type: ignore[arg-type]
    assert len(list(vault.threads(after="", limit=None))) == 250
    info = next(iter(vault.threads(tag="x")))
    assert (info.head, info.step, info.checkpoints, info.agent_id) == (vault.thread("t007").load("head").id, 3, 3, "odd")
    assert info.created_at <= info.updated_at


def test_threads_that_go_while_they_are_listed(vault: Vault) -> None:
    for name in "abcde":
        vault.thread(name).save(1)
    listing = vault.threads()
    assert next(listing).id == "a"
    vault.thread("b").delete()
    vault.thread("d").delete()
    assert [info.id for info in listing] == ["c", "e"]


@pytest.mark.requirement("A27", "A56", "A65", "A66", "A81", "A85", "B16", "B17", "B22", "B30", "X04", "Z60")
def test_find_and_load_across_threads(vault: Vault) -> None:
    five(vault, "one")
    five(vault, "two")
    found = vault.find("two-checkpoint-3")
    assert found is not None
    assert (found.thread_id, found.state) == ("two", {"n": 3})
    assert vault.load("one-checkpoint-1").thread_id == "one"
    assert vault.find("nope") is None
    with pytest.raises(CheckpointNotFound):
        vault.load("nope")
    with pytest.raises(CheckpointNotFound):
        vault.thread("one").load("two-checkpoint-3")
    for wrong in ("", "\ud800", 5, None):
        with pytest.raises(InvalidInputError):
            vault.find(wrong)  # type: ignore[arg-type]


# -- while others remove ---------------------------------------------------------------------------


def test_states_one_after_the_other_are_right_though_one_between_is_removed(vault: Vault) -> None:
    thread = vault.thread("t")
    saved = [thread.update(append={"list": [f"{number} " * 100]}) for number in range(6)]
    replayed = thread.replay(list(thread.history()))
    first = [next(replayed), next(replayed)]
    vault.thread("t").remove(saved[1].id)
    for found in [*first, *replayed]:
        assert found.state == {"list": [f"{number} " * 100 for number in range(found.step)]}


def test_entries_of_another_thread_are_not_replayed(vault: Vault) -> None:
    mine, other = five(vault), five(vault, "other")
    with pytest.raises(CheckpointNotFound, match="not in thread 't'"):
        list(mine.replay(other.history()))


def test_a_history_goes_on_behind_what_is_pruned_meanwhile(vault: Vault) -> None:
    thread = vault.thread("t")
    for number in range(300):
        thread.update(set={"n": number})
    thread.label(1, "first")
    walk = thread.history()
    newest = [next(walk) for _ in range(256)]
    vault.thread("t").prune(keep=5)
    rest = list(walk)
    assert [entry.label for entry in rest] == ["first"]
    assert len({entry.id for entry in [*newest, *rest]}) == 257


@pytest.mark.parametrize("happens", ["deleted", "without a head"])
def test_a_thread_that_goes_away_during_a_look_is_empty(happens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault(MemoryStore())
    thread = five(vault)
    key = thread.timeline.key
    frame = Timeline.frame
    left = 1

    def gone(self: Timeline, *args: Any, **options: Any) -> Any:
        nonlocal left
        if left:
            left = 0
            change = DeleteThread(key) if happens == "deleted" else MoveHead(key, 0, ANY)
            vault.store.commit([change])
            raise CheckpointNotFound("gone")
        return frame(self, *args, **options)

    monkeypatch.setattr(Timeline, "frame", gone)
    assert thread.latest() is None
    assert thread.head is None


def test_a_fork_reads_what_its_parent_can_read(vault: Vault) -> None:
    five(vault)
    thread = vault.thread("t", foreign=lambda kind, data: (kind, data))
    assert thread.fork("f").timeline.codec is thread.timeline.codec


def test_a_listing_refuses_what_no_thread_can_be_called(vault: Vault) -> None:
    vault.thread("t").save(1)
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        vault.threads(after="\ud800")
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        vault.thread("t").records("\ud800")


@pytest.mark.requirement("A45", "A46", "A51", "A75", "A79", "B39", "B53", "B65", "D28", "D46", "Z12")
def test_steps_go_on_after_a_restart(home: Home) -> None:
    for number in range(3):
        home.open().thread("t").save({"n": number})
    again = home.open().thread("t")
    assert (again.head, again.step) == (None, None)  # not 0: nothing was read yet
    assert [info.step for info in home.open().threads()] == [3]
    assert again.save({"n": 3}).step == again.step == 4
    assert home.open().thread("t").latest().step == 4
    assert steps(again) == [4, 3, 2, 1]


@pytest.mark.requirement("E18", "E23", "Z48")
@pytest.mark.parametrize("place", ["plain", "with [a-z]*?"])
def test_ids_are_no_patterns(home: Home, place: str) -> None:
    home = Home(home.store, home.path / place, home.url)
    vault = home.open()
    ids = ["b", "a_b", "*", "?", "[ab]", "[!x]", "a*"]
    for name in ids:
        vault.thread(name).save({"of": name}, id=f"{name}.1")
    assert vault.find("?.1") == vault.load("?.1")
    assert vault.thread("*").delete()
    assert vault.delete_checkpoint("[ab].1")
    assert [info.id for info in vault.threads()] == sorted(set(ids) - {"*", "[ab]"})
    assert vault.load("b.1").state == {"of": "b"}
    home.close()


def work_on(mouth: Mouth, url: str) -> None:
    vault = savegame.open(url)
    for session in ("one", "two", "done"):
        vault.thread(session).save({"n": 1}, status="in_progress", iteration=7)
    vault.thread("done").save({"n": 2}, status="completed", force=True)
    mouth.say("working")
    mouth.hear()


@pytest.mark.requirement("E26", "E27", "Z51")
def test_every_session_that_was_killed_is_found(lasting: Home) -> None:
    with Child(work_on, lasting.url) as child:
        assert child.next() == ["working"]
    vault = lasting.open()
    unfinished = list(vault.threads(status="in_progress"))
    assert [info.id for info in unfinished] == ["one", "two"]
    assert [vault.load(info.head).iteration for info in unfinished] == [7, 7]


@pytest.mark.requirement("C09a", "C09b", "C09c", "C09e", "C33", "Z62")
def test_finished_work_is_not_offered_for_recovery(home: Home) -> None:
    vault = home.open()
    for status in ("in_progress", "completed", "failed(OOM)", "halted((nested) loop)"):
        vault.thread(status).save({"n": 1})
        vault.thread(status).save({"n": 2}, status=status, force=True)
    assert [info.id for info in vault.threads(status="in_progress")] == ["in_progress"]
    done = home.open().thread("completed").latest()
    assert done is not None
    assert done.status == "completed"
    reasons = [[info.status.reason for info in vault.threads(status=status)] for status in ("failed", "halted")]
    assert reasons == [["OOM"], ["(nested) loop"]]


@pytest.mark.requirement("E19", "Z50")
def test_the_newest_is_told_by_no_time_of_a_file(disk: Home, tmp_path: Path) -> None:
    thread = disk.open().thread("t")
    for number in range(4):
        thread.save({"n": number}, id=f"{number}")
    thread.remove("3")
    assert thread.state() == {"n": 2}
    disk.close()
    copy = Home(disk.store, tmp_path / "copy")
    shutil.copytree(disk.path, copy.path)
    for age, path in enumerate(copy.files()):
        os.utime(path, (age, age))
    vault = copy.open()
    newest = vault.thread("t").latest()
    assert newest is not None
    assert (newest.id, newest.thread_id) == ("2", "t")
    assert {entry.id: vault.load(entry.id).id for entry in vault.thread("t").history()} == {"2": "2", "1": "1", "0": "0"}
    copy.close()


@pytest.mark.requirement("B55")
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


FLOATS = [130.65331632653061, 1e-05, 1e16, 0.1 + 0.2, 5e-324, -0.0]


@pytest.mark.requirement(
    "C02", "C07", "C32", "E01a", "E01b", "E01e", "E01f", "E01g", "E01h", "E01i", "E01j", "E01k", "E24", "E33b"
)
@pytest.mark.requirement("E33e", "Z61", "Z65")
def test_what_was_saved_is_there_after_a_restart(lasting: Home) -> None:
    """Every detail, and numbers to the last bit."""
    state = {"calls": [{"id": "c1", "arguments": {"amount": FLOATS[0]}}], "floats": FLOATS}
    details = {"iteration": 41, "tokens_used": 2**40, "cost": FLOATS[0], "resume_hint": "ask the bank first"}
    saved = lasting.open().thread("t", agent="helper").save(state, kind="tool_call", status="halted(loop)", **details)  # type: ignore[arg-type]
    lasting.close()
    vault = lasting.open()
    found = vault.thread("t").load()
    assert (found, found.state, repr(found.status)) == (saved, state, "halted(loop)")
    assert [number.hex() for number in found.state["floats"]] == [number.hex() for number in FLOATS]
    assert {name: getattr(found, name) for name in details} == details
    assert (found.agent_id, found.kind, found.created_at) == ("helper", "tool_call", saved.created_at)
    assert vault.verify().ok
