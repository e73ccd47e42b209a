"""Defects of the threads, steps, forks and rewinds of system B that must not be here, by number."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import time
from dataclasses import dataclass

import pytest
from test_defects import Home, a_disk, a_home, a_lasting_one, in_threads  # noqa: F401 - fixtures

import savegame
from savegame import (
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    InvalidState,
    Kind,
    Retention,
    Strategy,
    Thread,
    ThreadNotFound,
)
from savegame.model import ThreadKey
from savegame.testing.faults import Child, Mouth


def steps(thread: Thread, *, branches: bool = False) -> list[int]:
    return [entry.step for entry in thread.history(branches=branches)]


def test_z11_tags_and_metadata_are_stored(home: Home) -> None:
    thread = home.open().thread("t")
    thread.save({"n": 1}, tags=["risky", "first"], metadata={"user": "u1"})
    thread.update(set={"n": 2}, tags=["risky"], metadata={"user": "u2"})
    thread.save({"n": 3})
    found = list(home.open().thread("t").history(tag="risky", newest_first=False))
    assert [(entry.tags, entry.metadata) for entry in found] == [
        (("risky", "first"), {"user": "u1"}),
        (("risky",), {"user": "u2"}),
    ]


def test_z12_steps_go_on_after_a_restart(home: Home) -> None:
    for number in range(3):
        home.open().thread("t").save({"n": number})
    again = home.open().thread("t")
    assert (again.head, again.step) == (None, None)  # not 0: nothing was read yet
    assert [info.step for info in home.open().threads()] == [3]
    assert again.save({"n": 3}).step == again.step == 4
    assert home.open().thread("t").latest().step == 4
    assert steps(again) == [4, 3, 2, 1]


def test_z13_retention_by_age_and_kinds_and_strategies_work(home: Home) -> None:
    now = [1_700_000_000_000_000]
    store = home.with_clock(lambda: now[0]).store
    thread = savegame.Vault(store, retention=Retention(ttl=dt.timedelta(hours=1))).thread("t")
    for kind in Kind:
        thread.save({"kind": kind}, kind=kind)
    assert {entry.kind for entry in thread.history()} == set(Kind)
    now[0] += 2 * 3_600_000_000
    assert [entry.kind for entry in thread.history()] == [list(Kind)[-1]]
    with pytest.raises(InvalidState) as refused:
        thread.save({"a": [object()]})
    assert "a" in refused.value.path
    assert Strategy.interval(60).should_save(1, "iteration", since_last=dt.timedelta(seconds=61))
    assert not Strategy.interval(60).should_save(1, "iteration", since_last=dt.timedelta(seconds=59))


@pytest.mark.parametrize("disk", ["sqlite"], indirect=True)  # a journal is there to be read: it is never compressed
def test_z13_compress_compresses(disk: Home) -> None:
    for thread_id, compress in (("plain", False), ("packed", True)):
        disk.open(compress=compress).thread(thread_id).save({"text": f"{thread_id} as it stands, " * 300})
    disk.close()
    stored = b"".join(path.read_bytes() for path in disk.files())
    assert stored.count(b"plain as it stands, ") == 300
    assert stored.count(b"packed as it stands, ") < 2


def test_z14_a_parent_that_cannot_be_read_stops_the_save(lasting: Home) -> None:
    thread = lasting.open().thread("t")
    thread.save({"text": "the one before"}, id="parent")
    lasting.damage(b"the one before")
    vault = lasting.open()
    with pytest.raises(CorruptionError):
        vault.thread("t").save({"text": "the one after"})
    row = vault.store.thread(ThreadKey(vault.namespace, "t"))
    assert row is not None
    assert (row.head_id, row.frames) == ("parent", 1)


def test_z15_saves_at_once_make_one_line(home: Home) -> None:
    home.open().thread("t").save({"n": []})
    in_threads(lambda who: [home.open().thread("t").update(append={"n": [who]}) for _ in range(6)], 6)
    thread = home.open().thread("t")
    line = list(thread.history(newest_first=False, branches=True))
    assert [entry.step for entry in line] == list(range(1, 38))
    assert [entry.parent_id for entry in line[1:]] == [entry.id for entry in line[:-1]]


def test_z15_a_save_that_failed_takes_no_step(home: Home) -> None:
    thread = home.open().thread("t")
    thread.save({"n": 1})
    with pytest.raises(InvalidState):
        thread.save({"n": object()})
    with pytest.raises(ConflictError):
        thread.save({"n": 2}, expect="another")
    assert thread.save({"n": 2}).step == 2


def test_z16_limits_keep_the_head_and_what_has_a_label(home: Home) -> None:
    for wrong in (0, -1):
        with pytest.raises(InvalidInputError):
            Retention(max_checkpoints=wrong)
        with pytest.raises(InvalidInputError):
            home.open().thread("t").prune(keep=wrong)
    thread = home.open(retention=Retention(max_checkpoints=2)).thread("t")
    thread.save({"n": 1}, label="by hand")
    for number in range(2, 7):
        thread.save({"n": number}, kind="automatic")
    assert steps(thread) == [6, 5, 1]
    everything = home.open().thread("t")
    everything.prune(keep=2)
    assert [entry.load().state["n"] for entry in everything.history()] == [6, 5, 1]  # the line holds, whatever is gone


@dataclass
class Narrow:
    n: int


def test_z17_a_fork_keeps_its_lineage_and_everything_else(home: Home) -> None:
    vault = home.open()
    source = vault.thread("source")
    saved = source.save({"n": 1, "unknown": [1, 2]}, label="here", tags=["a"], metadata={"k": "v"})
    vault.thread("source", type=Narrow).fork("copy", at="here")
    found = vault.thread("copy").load()
    assert (found.parent_id, found.forked_from, found.state) == (saved.id, "source", {"n": 1, "unknown": [1, 2]})
    assert (found.label, found.tags, found.metadata) == ("here", ("a",), {"k": "v"})
    with pytest.raises(savegame.AlreadyExistsError):
        source.fork("copy")
    assert steps(vault.thread("copy")) == [1]


def test_z18_a_rewind_can_be_taken_back(home: Home) -> None:
    thread = home.open().thread("t")
    for number in range(1, 6):
        thread.save({"n": number}, id=f"{number}")
    thread.rewind("2")
    assert (thread.state(), steps(thread), steps(thread, branches=True)) == ({"n": 2}, [2, 1], [5, 4, 3, 2, 1])
    thread.rewind("5")
    assert steps(thread) == [5, 4, 3, 2, 1]
    with pytest.raises(ThreadNotFound):
        home.open().thread("unknown").rewind("1")
    with pytest.raises(CheckpointNotFound):
        thread.rewind("unknown")


def discard_for_ever(mouth: Mouth, url: str) -> None:
    with savegame.open(url, durability="process") as vault:
        for number in itertools.count():
            thread = vault.thread(f"{number}")
            for step in range(12):
                thread.save({"step": step})
            mouth.say(number)
            thread.rewind(3, discard=True)


def test_z18_a_discard_that_is_killed_leaves_no_gap(lasting: Home) -> None:
    for _ in range(6):
        with Child(discard_for_ever, lasting.url) as child:
            while child.next()[0] < 1:
                pass
            time.sleep(random.uniform(0, 0.02))
        vault = lasting.open()
        lines = [steps(vault.thread(info.id), branches=True) for info in vault.threads()]
        assert all(line == list(range(len(line), 0, -1)) for line in lines)
        assert sorted(lines, key=len)[0] in ([3, 2, 1], [2, 1], [1])
        assert vault.verify().ok
        for info in vault.threads():
            vault.thread(info.id).delete()


def test_z19_a_label_means_the_newest(home: Home) -> None:
    thread = home.open().thread("t")
    for number in (1, 2, 3):
        thread.save({"n": number}, label="draft" if number < 3 else None)
    assert thread.load("draft").state == {"n": 2}
    assert [entry.step for entry in thread.history(label="draft")] == [2, 1]


def test_z20_a_checkpoint_belongs_to_the_thread_it_is_saved_to(home: Home) -> None:
    vault = home.open()
    theirs = vault.thread("theirs").save({"n": 1})
    mine = vault.thread("mine")
    assert mine.save({"n": 2}, metadata={"thread_id": "theirs"}).thread_id == "mine"
    with pytest.raises(CheckpointNotFound):
        mine.save({"n": 3}, parent=theirs)
    with pytest.raises(CheckpointNotFound):
        mine.rewind(theirs)
    assert steps(vault.thread("theirs")) == steps(mine) == [1]


def test_z21_single_checkpoints_are_deleted_and_counted(home: Home) -> None:
    vault = home.open()
    thread = vault.thread("t")
    for number in (1, 2, 3):
        thread.save({"n": number}, id=f"{number}")
    assert [info.checkpoints for info in vault.threads()] == [3]
    assert thread.remove("2") == 1
    assert (vault.delete_checkpoint("1"), vault.delete_checkpoint("1")) == (True, False)
    assert ([info.checkpoints for info in vault.threads()], vault.stats().checkpoints) == ([1], 1)
    assert thread.state() == {"n": 3}


def test_z22_a_thread_exists_while_it_has_a_checkpoint(home: Home) -> None:
    vault = home.open()
    for name in ("c", "a", "b"):
        vault.thread(name).save({})
    assert [info.id for info in vault.threads()] == ["a", "b", "c"]
    vault.thread("b").remove("head")
    vault.thread("only looked at").latest()
    assert [info.id for info in vault.threads()] == ["a", "c"]
    assert vault.thread("b").latest() is None
    with pytest.raises(ThreadNotFound):
        vault.thread("b").load()


def test_z23_a_state_that_cannot_be_kept_has_no_size(home: Home) -> None:
    thread = home.open().thread("t")
    with pytest.raises(InvalidState, match="lone surrogate"):
        thread.save({"text": "\ud800"})
    assert thread.latest() is None
    small, large = thread.save({"text": "x"}), thread.save({"text": "x" * 1000})
    assert 0 < small.size_bytes < 1000 <= large.size_bytes
