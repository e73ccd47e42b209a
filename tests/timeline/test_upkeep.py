"""Keyframes, damage, verify and repair, compact, copies, own tables, namespaces, opening and closing."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from addresses import IN_DATABASES
from homes import IN_FILES, Home

import savegame
from savegame import (
    AgentState,
    AlreadyExistsError,
    CheckpointNotFound,
    ClosedError,
    ConflictError,
    Conversation,
    CorruptionError,
    InvalidInputError,
    Message,
    SavegameError,
    StoreNotFound,
    ThreadNotFound,
    UnsupportedError,
)
from savegame.model import ThreadKey
from savegame.store import PutKeyframe, PutRecord
from savegame.stores.sqlite import changes as sqlite_changes
from savegame.testing import same
from savegame.thread import Thread
from savegame.vault import Vault

Opener = Callable[..., Vault]
KEY = ThreadKey("default", "t")


def states(thread: Thread, **how: Any) -> list[Any]:
    return [cp.load().state for cp in thread.history(**how)]


def grown(vault: Vault, count: int, name: str = "t", **details: Any) -> Thread:
    thread = vault.thread(name)
    for number in range(1, count + 1):
        thread.update(append={"l": [number]}, set={"pad": "x" * 50}, id=f"{name}-{number}", **details)
    return thread


def put_keyframe(vault: Vault, seq: int) -> None:
    timeline = vault.thread(KEY.id).timeline
    vault.store.commit([PutKeyframe(KEY, seq, timeline.engine.keyframe(timeline.point(seq).node))])


def damage(vault: Vault, table: str, column: str, where: str = "1") -> None:
    """Flip one bit of one stored value, through the vault's own connection."""
    with vault.connection() as db:
        (value,) = db.execute(f"SELECT {column} FROM {table} WHERE {where} LIMIT 1").fetchall()[0]
        other: Any
        if isinstance(value, int):
            other = value ^ 1
        elif isinstance(value, bytes):
            other = value[:-1] + bytes((value[-1] ^ 1,))
        elif isinstance(value, str):
            other = value[:-1] + chr(ord(value[-1]) ^ 1)
        else:
            other = "x" if column == "owner" else 1
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {where} AND {column} IS ?", (other, value))


def frame(seq: int) -> str:
    return f"key & 4294967295 = {seq}"


# -- keyframes -------------------------------------------------------------------------------------


def test_keyframes_appear_and_are_derived(opened: Opener) -> None:
    vault = opened(durability="process")
    thread = vault.thread("t")
    wanted = []
    for number in range(150):
        state = {"number": number, "content": os.urandom(600).hex()}
        wanted.append(state)
        thread.save(state)
    assert vault.stats().sizes["keyframes"] > 0
    cold = Vault(vault.store, cache_bytes=0).thread("t")
    assert states(cold, newest_first=False) == wanted
    for seq in range(1, 151):
        vault.store.commit([PutKeyframe(KEY, seq, None)])
    assert vault.stats().sizes["keyframes"] == 0
    assert states(cold, newest_first=False) == wanted
    assert vault.verify().ok


def test_loading_is_bounded_by_keyframes(opened: Opener) -> None:
    """Not a number of milliseconds but of rows: what a cold load reads is bounded, whatever came before."""
    vault = opened(durability="process")
    thread = vault.thread("t")
    for number in range(1200):
        thread.save({"number": number, "content": os.urandom(100).hex()})
    row = vault.store.thread(KEY)
    assert row is not None
    for seq in (row.head, 1000, 700, 500):
        assert len(vault.store.chain(KEY, seq).deltas) < 400


def test_a_damaged_keyframe_is_passed_over(on_disk: Opener) -> None:
    vault = on_disk(cache_bytes=0)
    thread = grown(vault, 10)
    put_keyframe(vault, 4)
    put_keyframe(vault, 8)
    wanted = states(thread)
    damage(vault, "keyframe", "body", frame(8))
    assert states(thread) == wanted
    report = vault.verify()
    assert not report.ok
    assert [(problem.thread_id, problem.place) for problem in report.problems] == [("t", "keyframe of frame 8")]
    done = vault.repair()
    assert done.ok
    assert done.repaired
    assert vault.verify().ok
    assert states(thread) == wanted


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.requirement("B18", "B43", "C21", "C37")
def test_a_damaged_delta(on_disk: Opener) -> None:
    vault = on_disk(cache_bytes=0)
    thread = grown(vault, 6)
    damage(vault, "frame", "delta", frame(4))
    acts: list[Callable[[], object]] = [thread.latest, thread.load, lambda: thread.load(4), lambda: thread.load(5)]
    for act in acts:
        with pytest.raises(CorruptionError) as caught:
            act()
        error = caught.value
        assert (error.thread_id, error.checkpoint_id) == ("t", "t-4")
        assert "frame 4" in (error.place or "")
        assert error.newest_sound is not None
        assert (error.newest_sound.id, error.newest_sound.state["l"]) == ("t-3", [1, 2, 3])
    assert thread.load(3).state["l"] == [1, 2, 3]
    found = thread.latest(skip_damaged=True)
    assert found is not None
    assert (found.id, found.skipped) == ("t-3", ("t-6", "t-5", "t-4"))
    assert [cp.step for cp in thread.history()] == [6, 5, 4, 3, 2, 1]
    with pytest.raises(CorruptionError):
        thread.update(append={"l": [7]})
    report = vault.verify()
    assert ("t", "t-4", "delta of frame 4") in [(p.thread_id, p.checkpoint_id, p.place) for p in report.problems]
    thread.rewind(3)
    thread.update(append={"l": ["on"]})
    assert thread.state()["l"] == [1, 2, 3, "on"]


def test_a_keyframe_behind_the_damage_saves_what_came_after(on_disk: Opener) -> None:
    vault = on_disk(cache_bytes=0)
    thread = grown(vault, 8)
    put_keyframe(vault, 5)
    damage(vault, "frame", "delta", frame(3))
    assert thread.state()["l"] == list(range(1, 9))
    with pytest.raises(CorruptionError):
        thread.load(4)
    assert not vault.verify().ok
    done = vault.repair()
    assert done.ok, done.problems
    assert [cp.step for cp in thread.history(branches=True)] == [8, 7, 6, 5, 2, 1]
    assert [len(state["l"]) for state in states(thread, branches=True)] == [8, 7, 6, 5, 2, 1]
    assert vault.verify().ok
    assert vault.stats().sizes["aside"] > 0


def test_the_metadata_of_the_head_is_damaged(on_disk: Opener) -> None:
    vault = on_disk(cache_bytes=0)
    thread = grown(vault, 5)
    damage(vault, "frame", "meta", frame(5))
    with pytest.raises(CorruptionError) as caught:
        thread.latest()
    assert caught.value.newest_sound is not None
    assert caught.value.newest_sound.id == "t-4"
    found = thread.latest(skip_damaged=True)
    assert found is not None
    assert (found.id, found.skipped) == ("t-4", ("t-5",))
    assert thread.load("t-2").state["l"] == [1, 2]
    done = vault.repair()
    assert done.ok, done.problems
    latest = thread.latest()
    assert latest is not None
    assert latest.id == "t-4"


def test_two_neighbours_are_damaged(on_disk: Opener) -> None:
    vault = on_disk(cache_bytes=0)
    thread = grown(vault, 8)
    put_keyframe(vault, 3)
    put_keyframe(vault, 5)
    damage(vault, "frame", "delta", frame(4))
    damage(vault, "frame", "delta", frame(5))
    done = vault.repair()
    assert done.ok, done.problems
    left = [cp.step for cp in thread.history(branches=True)]
    assert set(left) >= {8, 7, 6, 3, 2, 1}
    assert [len(state["l"]) for state in states(thread, branches=True)] == left
    warm = on_disk()
    warm.thread("t").rewind("t-3")
    assert [len(state["l"]) for state in states(warm.thread("t"), branches=True)] == left
    assert warm.verify().ok


COLUMNS = {
    "frame": ("space", "id", "base", "run", "meta", "meta_sum", "note", "note_sum", "delta", "delta_sum"),
    "thread": ("space", "id", "agent", "head", "head_id", "last", "floor", "run", "count", "epoch", "owner", "expires", "sum"),
    "keyframe": ("key", "body", "sum"),
    "blob": ("thread", "digest", "body", "sum"),
    "record": ("thread", "kind", "name", "value", "sum"),
    "namespace": ("name",),
}


@pytest.mark.parametrize("place", [f"{table}.{column}" for table, columns in COLUMNS.items() for column in columns])
def test_a_flipped_bit_in_any_column_is_reported(on_disk: Opener, place: str) -> None:
    vault = on_disk(cache_bytes=0, durability="process")
    thread = vault.thread("t", agent="ag")
    for number in range(3):
        thread.save({"n": number, "big": "y" * 9000}, label=f"label {number}")
    put_keyframe(vault, 2)
    vault.store.commit([PutRecord(KEY, "kind", "name", b"value")])
    assert vault.verify().ok
    table, column = place.split(".")
    damage(vault, table, column, frame(2) if table == "frame" else "1")
    vault.close()
    again = on_disk(cache_bytes=0)
    assert not again.verify().ok
    found = again.thread("t")
    for step, state in ((1, {"n": 0}), (2, {"n": 1}), (3, {"n": 2})):
        with contextlib.suppress(SavegameError):
            assert found.load(step).state == {**state, "big": "y" * 9000}, "damaged bytes were returned"
    done = again.repair()
    assert done.ok, done.problems
    for entry in found.history(branches=True):
        assert entry.load().state["big"] == "y" * 9000


def test_compact_does_not_make_damage_good(on_disk: Opener) -> None:
    vault = on_disk(cache_bytes=0)
    thread = vault.thread("t")
    thread.save({"x": "hello world " * 50})
    with vault.connection() as db:
        ((delta,),) = db.execute("SELECT delta FROM frame").fetchall()
        db.execute("UPDATE frame SET delta = ?", (delta.replace(b"world", b"wOrld", 1),))
    with pytest.raises(CorruptionError):
        thread.state()
    with contextlib.suppress(CorruptionError):
        vault.compact()
    with pytest.raises(CorruptionError):
        thread.state()


@pytest.mark.parametrize("discard", [False, True])
def test_rewinding_to_what_does_not_load_changes_nothing(on_disk: Opener, discard: bool) -> None:
    vault = on_disk(cache_bytes=0)
    thread = grown(vault, 8)
    put_keyframe(vault, 6)
    damage(vault, "frame", "delta", frame(3))
    assert len(thread.state()["l"]) == 8
    with pytest.raises(CorruptionError):
        thread.rewind(3, discard=discard)
    assert [cp.step for cp in thread.history()] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert len(vault.thread("t").state()["l"]) == 8


def test_removing_around_damage_loses_nothing_sound(on_disk: Opener) -> None:
    vault = on_disk(cache_bytes=0)
    thread = grown(vault, 8)
    damage(vault, "frame", "delta", frame(3))
    with contextlib.suppress(CorruptionError):
        thread.prune(keep=4)
    assert thread.load("t-2").state["l"] == [1, 2]
    assert thread.delete()
    assert vault.verify().ok


def test_a_missing_large_value(on_disk: Opener) -> None:
    vault = on_disk(cache_bytes=0)
    thread = vault.thread("t")
    thread.save({"n": 1})
    thread.save({"n": 2, "big": "y" * 9000}, id="with-big")
    put_keyframe(vault, 2)
    with vault.connection() as db:
        db.execute("DELETE FROM blob")
    assert thread.load("head").state["n"] == 2  # the keyframe holds it
    assert not vault.verify().ok
    vault.store.commit([PutKeyframe(KEY, 2, None)])
    with pytest.raises(CorruptionError) as caught:
        thread.latest()
    assert caught.value.checkpoint_id == "with-big"
    assert caught.value.newest_sound is not None
    assert caught.value.newest_sound.state == {"n": 1}


def test_repair_of_a_sound_vault_does_nothing(vault: Vault) -> None:
    thread = grown(vault, 5)
    before = vault.stats().sizes
    report = vault.repair()
    assert (report.ok, report.repaired) == (True, ())
    assert vault.stats().sizes == before
    assert len(states(thread)) == 5


@pytest.mark.requirement("E24", "E33b")
def test_verify_reports_progress(vault: Vault) -> None:
    for name in "abc":
        vault.thread(name).save(1)
    seen: list[tuple[int, int]] = []
    report = vault.verify(progress=lambda done, total: seen.append((done, total)))
    assert (report.ok, bool(report), report.threads, report.checkpoints, seen) == (True, True, 3, 3, [(1, 3), (2, 3), (3, 3)])


@pytest.mark.requirement("E24")
def test_one_thread_is_verified_alone(vault: Vault) -> None:
    for name in "abc":
        grown(vault, 3, name)
    seen: list[tuple[int, int]] = []
    report = vault.verify("b", lambda done, total: seen.append((done, total)))
    assert (report.ok, report.threads, report.checkpoints, seen) == (True, 1, 3, [(1, 1)])
    vault.thread("c").put_records({("spent", "x"): "not of this shape"})
    assert [vault.verify(name).ok for name in "abc"] == [True, True, False]
    assert [(problem.thread_id, problem.place) for problem in vault.verify("c").problems] == [("c", "record spent x")]
    with pytest.raises(ThreadNotFound):
        vault.verify("d")
    with pytest.raises(InvalidInputError):
        vault.verify("")
    for name in "ab":
        vault.thread(name).delete()
    with pytest.raises(ThreadNotFound):
        vault.verify("a")
    other = Vault(vault.store, namespace="other")
    with pytest.raises(ThreadNotFound):
        other.verify("c")


# -- compact, stats, backup, copies ----------------------------------------------------------------


def test_compact(opened: Opener) -> None:
    vault = opened(durability="process")
    thread = grown(vault, 200)
    for number in range(100):
        thread.save({"l": [number] * 500, "text": f"All work and no play {number} " * 20})
    wanted = states(thread)
    digests = [cp.digest for cp in thread.history()]
    before = vault.stats()
    vault.compact()
    after = vault.stats()
    assert vault.store.readable or after.sizes["frames"] < 50_000  # it would be 130,000 without compression
    assert after.total_bytes < before.total_bytes
    assert (after.checkpoints, after.threads) == (before.checkpoints, before.threads)
    assert states(Vault(vault.store, cache_bytes=0).thread("t")) == wanted
    assert [cp.digest for cp in thread.history()] == digests
    assert vault.verify().ok
    thread.update(append={"l": ["on"]})
    assert thread.state()["l"][-1] == "on"


@pytest.mark.requirement("D33")
def test_stats(vault: Vault) -> None:
    assert (vault.stats().threads, vault.stats().checkpoints) == (0, 0)
    grown(vault, 3, "a")
    grown(vault, 2, "b")
    stats = vault.stats()
    assert (stats.threads, stats.checkpoints) == (2, 5)
    assert stats.total_bytes >= stats.sizes["frames"] > 0
    assert stats.cache_bytes > 0


@pytest.mark.requirement("E06", "E12", "E15", "Z45")
def test_backup(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk(durability="process")
    thread = grown(vault, 50)
    stop = threading.Event()

    def write() -> None:
        handle = vault.thread("busy")
        while not stop.is_set():
            handle.update(append={"l": [1]}, set={"n": len((handle.state() or {}).get("l", [])) + 1})

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for number in range(5):
        vault.backup(str(tmp_path / f"backup{number}.db"))
    stop.set()
    writer.join(30)
    for number in range(5):
        path = tmp_path / f"backup{number}.db"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with savegame.open(path) as copy:
            assert copy.verify().ok
            assert states(copy.thread("t")) == states(thread)
            for cp in copy.thread("busy").history(limit=3):
                state = cp.load().state
                assert state["n"] == len(state["l"])
            copy.thread("t").update(append={"l": ["mine"]})
    with pytest.raises(AlreadyExistsError):
        vault.backup(str(tmp_path / "backup0.db"))
    with pytest.raises(AlreadyExistsError):
        vault.backup(str(tmp_path / "vault.db"))
    with pytest.raises(SavegameError):
        vault.backup(str(tmp_path / "no such directory" / "b.db"))
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("path", [None, 5, b"copy", "a\0b", "\ud800"], ids=ascii)
def test_what_is_no_path_is_refused(path: Any, vault: Vault) -> None:
    for verb in (vault.backup, vault.export, vault.import_):
        with pytest.raises(InvalidInputError, match=r"a path is text|no file can be named"):
            verb(path)


def test_a_memory_vault_has_no_backup(tmp_path: Path) -> None:
    with savegame.open("memory:") as vault, pytest.raises(UnsupportedError, match="savegame copy, or copy_to"):
        vault.backup(str(tmp_path / "b.db"))


def test_copies_are_incremental(opened: Opener, tmp_path: Path) -> None:
    source = opened()
    thread = grown(source, 5, tags=["x"])
    thread.save({"big": "y" * 20_000}, id="with big")
    thread.rewind(3)
    thread.update(append={"l": ["branch"]}, id="branch")
    source.thread("other", agent="ag").save(1)
    with savegame.open(tmp_path / "copy.db", namespace="there") as target:
        assert source.copy_to(target) == 8
        assert source.copy_to(target) == 0
        copied = target.thread("t")

        def equal() -> None:
            for how in ({}, {"branches": True}):
                left, right = list(thread.history(**how)), list(copied.history(**how))  # type: ignore[arg-type]
                assert [(cp.id, cp.digest, cp.parent_id, cp.step, cp.label, cp.tags, cp.created_at) for cp in left] == [
                    (cp.id, cp.digest, cp.parent_id, cp.step, cp.label, cp.tags, cp.created_at) for cp in right
                ]
                assert same([cp.load().state for cp in left], [cp.load().state for cp in right])
            assert target.verify().ok

        equal()
        thread.update(append={"l": ["more"]})
        thread.label(1, "noted later")
        thread.untag(2, "x")
        assert source.copy_to(target) == 1
        equal()
        thread.rewind("t-5")
        assert source.copy_to(target) == 0
        equal()
        thread.rewind("with big")
        thread.save({"big": "y" * 20_000, "n": 1})
        assert source.copy_to(target) == 1
        equal()
        copied.save("own way")
        with pytest.raises(ConflictError, match="has diverged"):
            source.copy_to(target)
        assert [info.agent_id for info in target.threads()] == ["ag", None]


def test_a_pruned_vault_is_copied(opened: Opener) -> None:
    source = opened()
    thread = grown(source, 10)
    thread.save({"big": "y" * 20_000, "l": [0]})
    thread.save({"big": "y" * 20_000, "l": [1]})
    thread.prune(keep=1)
    thread.save({"big": "y" * 20_000, "l": [2]})
    with savegame.open("memory:", cache_bytes=0) as target:
        assert source.copy_to(target) == 2
        assert same(states(target.thread("t")), states(thread))
        assert target.verify().ok


# -- own tables ------------------------------------------------------------------------------------


def test_own_tables_commit_with_a_save(in_database: Opener) -> None:
    vault = in_database()
    thread = vault.thread("t")
    thread.save({"n": 0})
    with vault.connection() as db:
        db.execute("CREATE TABLE mine (x INTEGER)")
        db.execute("INSERT INTO mine VALUES (1)")
        thread.save({"n": 1})
        assert thread.state() == {"n": 1}
        assert vault.thread("other").save(5).step == 1
        assert vault.thread("other").state() == 5
    with vault.connection() as db:
        assert db.execute("SELECT x FROM mine").fetchall() == [(1,)]
    again = in_database()
    assert again.thread("t").state() == {"n": 1}
    assert again.verify().ok


def test_own_tables_roll_back_with_a_save(in_database: Opener) -> None:
    vault = in_database()
    thread = vault.thread("t")
    thread.save({"n": 0})
    with vault.connection() as db:
        db.execute("CREATE TABLE mine (x INTEGER)")
    with pytest.raises(ZeroDivisionError), vault.connection() as db:  # noqa: PT012 - the block is what is rolled back
        db.execute("INSERT INTO mine VALUES (1)")
        thread.save({"n": 1})
        vault.thread("born inside").save(1)
        raise ZeroDivisionError
    with vault.connection() as db:
        assert db.execute("SELECT count(*) FROM mine").fetchall() == [(0,)]
    assert vault.thread("t").state() == {"n": 0}
    assert vault.thread("born inside").latest() is None
    vault.thread("t").update(set={"after": 1})
    assert vault.thread("t").state() == {"n": 0, "after": 1}
    assert [cp.step for cp in vault.thread("t").history(branches=True)] == [2, 1]
    assert vault.thread("born inside").save(2).step == 1
    assert vault.verify().ok


def test_a_refused_save_inside_undoes_only_itself(in_database: Opener) -> None:
    vault = in_database()
    thread = vault.thread("t")
    first = thread.save({"n": 0})
    with vault.connection() as db:
        db.execute("CREATE TABLE mine (x INTEGER)")
        with pytest.raises(ConflictError):
            thread.save({"n": 1}, expect="something else")
        thread.save({"n": 2}, expect=first)
    assert thread.state() == {"n": 2}


@pytest.mark.parametrize("namespace", ["default", "new"])
def test_what_a_savepoint_took_back_is_not_remembered(in_database: Opener, namespace: str) -> None:
    vault = in_database()
    vault.thread("first").save(0)
    vault = in_database(namespace=namespace)
    with vault.connection() as db:
        db.execute("SAVEPOINT mine")
        vault.thread("a").save({"who": "a"})
        assert vault.thread("a").state() == {"who": "a"}
        db.execute("ROLLBACK TO mine")
        assert vault.thread("a").state() is None
        db.execute("RELEASE mine")
    vault.thread("b").save({"who": "b"})
    vault.thread("a").update(set={"more": 1})
    for other in (vault, in_database(namespace=namespace)):
        assert (other.thread("a").state(), other.thread("b").state()) == ({"more": 1}, {"who": "b"})
        assert other.verify().ok


def test_a_save_on_top_of_what_a_savepoint_took_back_is_made_on_what_is_there(in_database: Opener) -> None:
    vault, other = in_database(), in_database()
    thread = vault.thread("t")
    thread.save({"log": ["one"]})
    with vault.connection() as db:
        db.execute("SAVEPOINT mine")
        thread.update(append={"log": ["taken back"]})
        db.execute("ROLLBACK TO mine")
        db.execute("RELEASE mine")
    other.thread("t").update(append={"log": ["theirs"]})
    assert thread.update(append={"log": ["ours"]}).state == {"log": ["one", "theirs", "ours"]}
    assert other.thread("t").state() == {"log": ["one", "theirs", "ours"]}
    assert other.verify().ok


def test_a_statement_that_a_user_leaves_unread_ends_with_the_block(on_disk: Opener) -> None:
    """The second statement of the text was not reached: it never happens."""
    vault = on_disk()
    thread = vault.thread("t")
    with vault.connection() as db:
        db.execute("CREATE TABLE app_a (x INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO app_a VALUES (1), (2), (3)")
    thread.save({"n": 0})
    with vault.connection() as db:
        unread = db.execute("SELECT x FROM app_a; UPDATE app_a SET x = x + 10 RETURNING x")
        assert [next(unread) for _ in range(3)] == [(1,), (2,), (3,)]
    thread.save({"n": 1})
    with pytest.raises(apsw.CursorClosedError):
        next(unread)
    thread.save({"n": 2})
    with on_disk() as other:
        assert other.thread("t").state() == {"n": 2}
        with other.connection() as db:
            assert db.execute("SELECT x FROM app_a").fetchall() == [(1,), (2,), (3,)]


def test_a_save_that_fails_inside_is_undone_by_itself_whatever_it_failed_of(
    on_disk: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite cannot keep a value, or a handler raises in the middle: the block goes on, and commits."""
    vault = on_disk(compress=False)
    vault.thread("t").save({"n": 0})
    with vault.connection() as db:
        limit = db.limit(apsw.SQLITE_LIMIT_LENGTH, 100_000)
        with pytest.raises(UnsupportedError):
            vault.thread("t").save({"n": 1, "large": list(range(100_000))})
        db.limit(apsw.SQLITE_LIMIT_LENGTH, limit)
        with monkeypatch.context() as patch:
            patch.setitem(sqlite_changes.SQL, "append", "a mistake")
            with pytest.raises(CorruptionError):
                vault.thread("t").save({"n": 2})
        assert vault.thread("t").state() == {"n": 0}
        vault.thread("other").save({"n": 3})
    assert [vault.thread(name).state() for name in ("t", "other")] == [{"n": 0}, {"n": 3}]
    assert vault.verify().ok


@pytest.mark.parametrize("verb", ["prune", "delete", "rewind", "label", "fork", "verify", "stats", "history"])
def test_every_verb_works_inside(in_database: Opener, verb: str) -> None:
    vault = in_database()
    thread = grown(vault, 5)
    acts: dict[str, Callable[[], object]] = {
        "prune": lambda: thread.prune(keep=2),
        "delete": lambda: thread.delete(),
        "rewind": lambda: thread.rewind(2, discard=True),
        "label": lambda: thread.label(1, "x"),
        "fork": lambda: thread.fork("other"),
        "verify": lambda: vault.verify(),
        "stats": lambda: vault.stats(),
        "history": lambda: list(thread.history()),
    }
    with vault.connection() as db:
        db.execute("CREATE TABLE mine (x INTEGER)")
        acts[verb]()
    assert vault.verify().ok
    assert len(list(thread.history(branches=True))) == {"prune": 2, "delete": 0, "rewind": 2}.get(verb, 5)


INSIDE_AND_OUTSIDE = """
import os, sys, threading
import savegame

vault = savegame.open(sys.argv[1], durability="process")
vault.thread("t").save({})
done = threading.Event()

def outside():
    handle = vault.thread("t")
    while not done.is_set():
        handle.update(set={"outside": 1})

def inside():
    for number in range(50):
        with vault.connection():
            vault.thread("t").update(set={"inside": number})
    done.set()

threads = [threading.Thread(target=act, daemon=True) for act in (outside, inside)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(20)
if not done.is_set():
    print("a deadlock: connection() and a save of the same thread wait for each other", flush=True)
    os._exit(1)
assert vault.thread("t").state()["inside"] == 49
"""


@pytest.mark.parametrize("store", IN_DATABASES)
def test_saves_inside_and_outside_do_not_wait_for_each_other_for_ever(store: str, address_of: Callable[..., str]) -> None:
    """In a process of its own, because what is feared is that it hangs."""
    command = [sys.executable, "-c", INSIDE_AND_OUTSIDE, address_of(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_memory_vault_has_no_connection() -> None:
    with savegame.open("memory:") as vault, pytest.raises(UnsupportedError), vault.connection():
        pass


# -- Ctrl-C ----------------------------------------------------------------------------------------


INTERRUPTED = """
import random, signal, sys
import savegame

def interrupt(*_):
    raise KeyboardInterrupt

vault = savegame.open(sys.argv[1], durability="process")
thread = vault.thread("t")
thread.save({"l": []})
signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(5)
tried = returned = 0
for round_ in range(150):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.003))
        while True:
            tried += 1
            thread.update(append={"l": [tried]})
            returned += 1
    except KeyboardInterrupt:
        pass
    vault.thread("t").update(set={"round": round_})
state = vault.thread("t").state()
assert state["round"] == 149
assert returned <= len(state["l"]) <= tried
assert state["l"] == sorted(set(state["l"]))
assert savegame.vault.Vault(vault.store, cache_bytes=0).thread("t").state() == state
assert vault.verify().ok
"""


@pytest.mark.parametrize("store", ["memory", *IN_DATABASES])
def test_an_interrupted_save_happened_or_not_and_the_vault_goes_on(store: str, address_of: Callable[..., str]) -> None:
    """In a process of its own, because what is feared is that it hangs."""
    url = address_of(store)
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, url], capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr


# -- opening and closing ---------------------------------------------------------------------------


def test_namespaces_do_not_see_each_other(in_database: Opener) -> None:
    one, other = in_database(namespace="one"), in_database(namespace="other")
    first = one.thread("t").save("one", id="same-id", label="mark")
    second = other.thread("t").save("other", id="same-id", label="mark")
    assert (one.thread("t").state(), other.thread("t").state()) == ("one", "other")
    assert (one.load("same-id").state, other.load("same-id").state) == ("one", "other")
    assert first.digest != second.digest
    one.thread("only").save(1, id="only-one")
    assert other.find("only-one") is None
    assert [info.id for info in other.threads()] == ["t"]
    assert (one.stats().threads, other.stats().threads) == (2, 1)
    assert one.verify().threads == 2
    other.prune(keep=1)
    other.thread("t").delete()
    assert one.thread("t").state() == "one"
    assert in_database().stats().threads == 0
    with pytest.raises(InvalidInputError):
        in_database(namespace="")


def test_namespaces_of_one_memory_store() -> None:
    with savegame.open("memory:") as vault:
        other = Vault(vault.store, namespace="other")
        vault.thread("t").save(1, id="x")
        other.thread("t").save(2, id="x")
        assert (vault.thread("t").state(), other.thread("t").state()) == (1, 2)
        assert other.copy_to(Vault(vault.store, namespace="third")) == 1
        other.thread("t").delete()
        assert vault.load("x").state == 1
        assert Vault(vault.store, namespace="third").load("x").state == 2


def test_read_only(on_disk: Opener, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        on_disk(read_only=True)
    assert list(tmp_path.iterdir()) == []
    writer = on_disk()
    thread = grown(writer, 3)
    reader = on_disk(read_only=True)
    assert states(reader.thread("t")) == states(thread)
    acts: list[Callable[[], object]] = [
        lambda: reader.thread("t").save(1),
        lambda: reader.thread("t").update(set={"a": 1}),
        lambda: reader.thread("t").rewind(1),
        lambda: reader.thread("t").fork("x"),
        lambda: reader.thread("t").label(1, "x"),
        lambda: reader.thread("t").prune(keep=1),
        lambda: reader.thread("t").delete(),
        lambda: reader.compact(),
    ]
    for act in acts:
        with pytest.raises(UnsupportedError, match="read"):
            act()
    thread.save("more")
    assert reader.thread("t").state() == "more"
    assert len(list(reader.thread("t").history())) == 4
    assert reader.verify().ok
    writer.close()
    assert reader.thread("t").state() == "more"


@pytest.mark.requirement("B35")
@pytest.mark.parametrize(
    "options", [{"cache_bytes": 0}, {"compress": False}, {"durability": "process"}, {"cache_bytes": 3000}], ids=repr
)
def test_options_change_nothing_that_is_seen(opened: Opener, options: dict[str, Any]) -> None:
    vault = opened(**options)
    thread = vault.thread("t")
    wanted = []
    for number in range(40):
        state = {"n": number, "l": list(range(number)), "text": "All work and no play " * 400, "id": os.urandom(500).hex()}
        wanted.append(state)
        thread.save(state)
    thread.rewind(20)
    thread.update(append={"l": ["branch"]})
    assert states(thread, branches=True, newest_first=False)[:-1] == wanted
    assert vault.stats().cache_bytes <= options.get("cache_bytes", 64 * 1024 * 1024)
    assert vault.verify().ok


def test_the_cache_is_bounded(opened: Opener) -> None:
    vault = opened(cache_bytes=200_000, durability="process")
    for number in range(300):
        vault.thread(f"t{number}").save({"text": os.urandom(1000).hex()})
        assert vault.stats().cache_bytes <= 200_000 if number % 50 == 0 else True
    assert 0 < vault.stats().cache_bytes <= 200_000


@pytest.mark.parametrize("wrong", [{"durability": "none"}, {"cache_bytes": -1}, {"namespace": "\0"}], ids=repr)
def test_wrong_options(opened: Opener, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        opened(**wrong)


@pytest.mark.parametrize("url", ["", "postgresql://user@[::1", "nonsense:x", "memory:x"])
def test_wrong_addresses(url: str) -> None:
    with pytest.raises(SavegameError):
        savegame.open(url)


def test_a_closed_vault(vault: Vault) -> None:
    thread = grown(vault, 2)
    entry = next(iter(thread.history()))
    loaded = thread.load(1)
    vault.close()
    vault.close()
    acts: list[Callable[[], object]] = [
        lambda: thread.save(1),
        lambda: thread.update(set={"a": 1}),
        lambda: thread.latest(),
        lambda: thread.load(1),
        lambda: list(thread.history()),
        lambda: list(vault.threads()),
        lambda: vault.find("x"),
        lambda: vault.verify(),
        lambda: vault.stats(),
        lambda: vault.compact(),
        lambda: thread.delete(),
        lambda: thread.prune(keep=1),
        lambda: entry.load(),
        lambda: vault.thread("fresh").save(1),
    ]
    for act in acts:
        with pytest.raises(ClosedError):
            act()
    assert loaded.state["l"] == [1]


@pytest.mark.requirement("E08", "E33f", "Z55")
def test_files_and_directories_are_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "vault.db"
    with savegame.open(path) as vault:
        vault.thread("../../x").save(1)
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} <= {"vault.db", "vault.db-wal", "vault.db-shm"}


@pytest.mark.requirement("C13", "E14", "Z47")
def test_two_vaults_on_the_same_data(in_database: Opener) -> None:
    one, other = in_database(), in_database()
    left, right = one.thread("t"), other.thread("t")
    left.save({"l": [1]})
    for number in range(2, 12):
        (left if number % 2 else right).update(append={"l": [number]})
    assert left.state() == right.state() == {"l": list(range(1, 12))}
    left.rewind(5)
    assert right.state() == {"l": [1, 2, 3, 4, 5]}
    right.delete()
    assert left.latest() is None
    right.save("anew")
    assert left.state() == "anew"
    right.save("second")
    right.rewind(1, discard=True)
    right.save("third")
    assert left.state() == "third"
    with pytest.raises(CheckpointNotFound):
        left.load("head~2")
    left.prune(keep=1)
    right.update(parent="head", set={}) if isinstance(right.state(), dict) else right.save("fourth")
    assert left.state() == "fourth"
    one.compact()
    assert right.state() == "fourth"
    assert one.verify().ok


@pytest.mark.requirement("B33", "Z13")
@pytest.mark.parametrize("disk", ["sqlite"], indirect=True)  # a journal is there to be read: it is never compressed
def test_compress_compresses(disk: Home) -> None:
    for thread_id, compress in (("plain", False), ("packed", True)):
        disk.open(compress=compress).thread(thread_id).save({"text": f"{thread_id} as it stands, " * 300})
    disk.close()
    stored = b"".join(path.read_bytes() for path in disk.files())
    assert stored.count(b"plain as it stands, ") == 300
    assert stored.count(b"packed as it stands, ") < 2


@pytest.mark.requirement("D27a", "D27b", "D27c", "D27d", "D27e", "D40", "D64", "D82", "Z41")
def test_statistics_are_the_same_everywhere_and_true(home: Home) -> None:
    vault = home.open()
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    for agent_id, name, messages in (("helper", "one", [Message.user("I am one")]), ("never saved", "orphan", [])):
        vault.save_conversation(Conversation(agent_id, id=name, messages=messages))
    vault.checkpoint_agent("helper")
    stats = vault.stats()
    assert (stats.threads, stats.checkpoints, stats.agents, stats.conversations, stats.messages) == (3, 4, 1, 2, 1)
    before = stats.total_bytes
    vault.add_message("one", Message.user("x" * 100_000))
    assert vault.stats().total_bytes > before
    if home.store in IN_FILES:
        shared = [path for path in home.files() if path.name.endswith("-shm")]  # memory that processes share, not data
        assert vault.stats().total_bytes == sum(path.stat().st_size for path in home.files() if path not in shared)
