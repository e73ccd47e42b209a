"""Damage of every kind: it is reported with its place, never returned as data, and what is sound still loads."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

import savegame
from savegame.errors import CheckpointNotFound, CorruptionError, SavegameError, ThreadNotFound, UnavailableError
from savegame.model import ThreadKey
from savegame.store import PutKeyframe, PutRecord
from savegame.testing.faults import PATIENCE_S, flip_bit, flipped

Truth = dict[str, Any]
"""The state of every checkpoint by its id."""

LARGE = "a large value that is kept once per thread " * 300


class Sample(NamedTuple):
    path: Path
    truth: Truth
    heads: dict[str, str]


def make_sample(path: Path) -> Sample:
    """A vault with some of everything: three threads, notes, keyframes, large values, records, two namespaces."""
    truth: Truth = {}
    heads: dict[str, str] = {}
    with savegame.open(path) as vault:
        for name in ("alpha", "beta", "Ünïcode 🎲"):
            thread = vault.thread(name, agent="helper")
            for number in range(7):
                if number == 3:
                    saved = thread.update(set={"large": LARGE + name}, label=f"label {name}", tags=["t1", "t2"])
                else:
                    saved = thread.update(append={"items": [f"{name} item {number} " * 12]}, set={"number": number})
                truth[saved.id] = saved.state
            heads[name] = saved.id
            thread.fork(f"fork of {name}", at=2)
            (entry,) = vault.thread(f"fork of {name}").history()
            truth[entry.id], heads[f"fork of {name}"] = entry.load().state, entry.id
        key = ThreadKey("default", "alpha")
        vault.store.commit([PutRecord(key, "ledger", f"call {number}", b"outcome %d" % number) for number in range(3)])
        vault.store.commit([_keyframe(vault, "beta", 5)])
        vault.store.lease(key, "holder", 0)
    with savegame.open(path, namespace="other") as vault:
        vault.thread("alpha").save({"of": "another namespace"})
    return Sample(path, truth, heads)


def _keyframe(vault: savegame.Vault, name: str, seq: int) -> Any:
    timeline = vault.thread(name).timeline
    return PutKeyframe(timeline.key, seq, timeline.engine.keyframe(timeline.point(seq).node))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make_sample(tmp_path_factory.mktemp("sample") / "sample.db")


@pytest.fixture
def copy(sample: Sample, tmp_path: Path) -> Sample:
    return sample._replace(path=Path(shutil.copy(sample.path, tmp_path / "v.db")))


def sql(path: Path, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Run a statement on a file that no vault has open."""
    db = apsw.Connection(str(path))
    try:
        return db.execute(statement, values).fetchall()
    finally:
        db.close()


def attempt(work: Callable[[], Any]) -> Any:
    """The outcome, or the SavegameError; anything else that is raised fails the test."""
    try:
        return work()
    except SavegameError as error:
        return error


def nothing_wrong_comes_back(vault: savegame.Vault, sample: Sample, *, repaired: bool = False) -> int:
    """Load everything in every way: equal, or an error of ours. How many checkpoints did not load."""
    failed = 0
    for checkpoint_id, state in sample.truth.items():
        got = attempt(lambda one=checkpoint_id: vault.load(one))  # type: ignore[misc]
        if isinstance(got, SavegameError):
            failed += 1
        else:
            assert got.id == checkpoint_id
            assert got.state == state
    for name, head in sample.heads.items():
        got = attempt(vault.thread(name).latest)
        if isinstance(got, savegame.Checkpoint):
            assert got.id in sample.truth
            assert got.state == sample.truth[got.id]
            assert got.id == head or repaired
        got = attempt(lambda one=name: vault.thread(one).latest(skip_damaged=True))  # type: ignore[misc]
        if isinstance(got, savegame.Checkpoint):
            assert got.state == sample.truth[got.id]
        for entry in _entries(vault.thread(name)):
            assert entry.id in sample.truth
    return failed


def _entries(thread: savegame.Thread) -> list[savegame.Checkpoint]:
    got = attempt(lambda: list(thread.history(branches=True)))
    return [] if isinstance(got, SavegameError) else got


# -- every column ----------------------------------------------------------------------------------


def cells(path: Path) -> Iterator[tuple[str, str, str]]:
    """Every (table, column, primary key) of our tables."""
    for (table,) in sql(path, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"):
        columns = sql(path, "SELECT name, pk FROM pragma_table_info(?)", (table,))
        for column, _ in columns:
            yield table, column, ", ".join(name for name, place in columns if place)


COLUMNS = {
    "blob": "no thread digest body sum",
    "frame": "key space id base run meta meta_sum note note_sum delta delta_sum",
    "keyframe": "key body sum",
    "namespace": "no name sum",
    "record": "no thread kind name value sum",
    "setting": "name value",
    "thread": "no space id agent head head_id last floor run count epoch owner expires version sum",
}


def test_the_columns_tested_here_are_all_there_are(sample: Sample) -> None:
    there: dict[str, list[str]] = {}
    for table, column, _ in cells(sample.path):
        there.setdefault(table, []).append(column)
    there.pop("aside")
    assert {table: " ".join(columns) for table, columns in there.items()} == COLUMNS


UNSEEN = {
    ("blob", "no"): "a number that nothing refers to",
    ("record", "no"): "a number that nothing refers to",
    ("setting", "name"): "not a row of anybody's data",
    ("setting", "value"): "not a row of anybody's data",
}


@pytest.mark.requirement("E20")
@pytest.mark.parametrize(("table", "column"), [(table, column) for table, names in COLUMNS.items() for column in names.split()])
def test_a_flipped_bit_in_any_column_is_reported(table: str, column: str, sample: Sample, tmp_path: Path) -> None:
    chance = random.Random(f"{table} {column}")
    tried = 0
    rows = sql(sample.path, f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL")[0][0]
    for row in chance.sample(range(rows), min(rows, 6)):
        path = Path(shutil.copy(sample.path, tmp_path / f"{row}.db"))
        if not damage(path, table, column, row, chance):
            continue
        tried += 1
        with savegame.open(path) as vault:
            nothing_wrong_comes_back(vault, sample)
            problems = vault.verify().problems
            nothing_wrong_comes_back(vault, sample)
        with savegame.open(path, namespace="other") as vault:  # the row may be one of the other namespace's
            assert attempt(vault.thread("alpha").state) in ({"of": "another namespace"}, None) or vault.verify().problems
            problems += vault.verify().problems
        if (table, column) not in UNSEEN:
            assert problems, f"verify did not notice a changed {table}.{column}"
    assert tried or (table, column) == ("thread", "owner"), "nothing was changed"


def damage(path: Path, table: str, column: str, row: int, chance: random.Random) -> bool:
    """Flip a bit in one cell. False if no other value fits there."""
    selected = f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL LIMIT 1 OFFSET ?"
    if table in ("record", "setting"):  # tables without a rowid
        selected = selected.replace("rowid", "name")
    key, value = sql(path, selected, (row,))[0]
    which = "name" if table in ("record", "setting") else "rowid"
    for _ in range(20):
        try:
            sql(
                path,
                f"UPDATE {table} SET {column} = ? WHERE {which} = ? AND {column} = ?",
                (flipped(value, chance), key, value),
            )
            return True
        except apsw.ConstraintError:
            continue
    return False


PLACES = [
    ("frame", "delta", "delta of frame"),
    ("frame", "delta_sum", "delta of frame"),
    ("frame", "meta", "metadata of frame"),
    ("frame", "meta_sum", "metadata of frame"),
    ("frame", "note", "label and tags of frame"),
    ("keyframe", "body", "keyframe of frame"),
    ("record", "value", "record "),
    ("blob", "body", "large value"),
    ("thread", "head", "thread row"),
    ("thread", "sum", "thread row"),
]


@pytest.mark.requirement("E25")
@pytest.mark.parametrize(("table", "column", "place"), PLACES)
def test_damage_names_thread_checkpoint_and_place(table: str, column: str, place: str, copy: Sample) -> None:
    chance = random.Random(7)
    rows = sql(copy.path, f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL")[0][0]
    assert damage(copy.path, table, column, chance.randrange(rows) if table != "thread" else 0, chance)
    with savegame.open(copy.path) as vault:
        found = [problem for problem in vault.verify().problems if place in problem.place]
        assert found
        assert found[0].thread_id in copy.heads
        if table == "frame":
            assert found[0].checkpoint_id in copy.truth
            assert found[0].checkpoint_id in str(found[0])
            if column != "note":
                error = attempt(lambda: vault.load(found[0].checkpoint_id or ""))
                assert isinstance(error, CorruptionError)
                assert (error.thread_id, error.checkpoint_id) == (found[0].thread_id, found[0].checkpoint_id)
                assert place in (error.place or "")


def test_sound_checkpoints_before_and_beside_the_damage_still_load(copy: Sample) -> None:
    ids = [one for one, state in copy.truth.items() if "alpha item 0" in str(state) and "number" in state][:7]
    sql(copy.path, "UPDATE frame SET delta = zeroblob(length(delta)) WHERE id = ?", (bytes.fromhex(ids[4]),))
    with savegame.open(copy.path) as vault:
        for before in ids[:4]:
            assert vault.load(before).state == copy.truth[before]
        for after in ids[4:]:
            error = attempt(lambda one=after: vault.load(one))  # type: ignore[misc]
            assert isinstance(error, CorruptionError)
            assert error.newest_sound is None or error.newest_sound.id == ids[3]
        for name, head in copy.heads.items():
            if name != "alpha":
                assert vault.load(head).state == copy.truth[head]
        error = attempt(vault.thread("alpha").latest)
        assert isinstance(error, CorruptionError)
        assert error.newest_sound is not None
        assert error.newest_sound.id == ids[3]
        sound = vault.thread("alpha").latest(skip_damaged=True)
        assert sound is not None
        assert (sound.id, sound.skipped) == (ids[3], tuple(reversed(ids[4:7])))


# -- repair ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "column"), [(table, column) for table, column, _ in PLACES])
def test_repair_sets_aside_and_leaves_a_sound_vault(table: str, column: str, copy: Sample) -> None:
    chance = random.Random(11)
    rows = sql(copy.path, f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL")[0][0]
    before = _bodies(copy.path, table, column)
    for row in {0, rows // 2}:
        damage(copy.path, table, column, row, chance)
    damaged = _bodies(copy.path, table, column)
    with savegame.open(copy.path) as vault:
        assert not vault.verify().ok
        done = vault.repair()
        assert done.ok, done.problems
        assert done.repaired
        assert vault.verify().ok
        nothing_wrong_comes_back(vault, copy, repaired=True)
        for name in copy.heads:
            vault.thread(name).update(set={"after": "the repair"}, force=True)
        assert vault.verify().ok
    if table != "thread":
        aside = {value for row in sql(copy.path, "SELECT body, note, meta FROM aside") for value in row if value is not None}
        assert aside, "repair set nothing aside"
        for changed in damaged - before:  # the damaged bytes themselves are kept
            assert changed in aside


def _bodies(path: Path, table: str, column: str) -> set[Any]:
    """The values of a damaged column that holds bytes; nothing for a damaged sum."""
    if column not in ("delta", "meta", "note", "body", "value"):
        return set()
    return {value for (value,) in sql(path, f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")}


def test_verify_looks_into_the_other_threads_when_the_row_of_one_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with savegame.open(path) as vault:
        for name in ("sound", "damaged"):
            vault.thread(name).save(1)
    sql(path, "UPDATE thread SET count = count + 1 WHERE id = ?", ("damaged",))
    with savegame.open(path) as vault:
        report = vault.verify()
        assert {problem.thread_id for problem in report.problems} == {"damaged"}
        assert (report.threads, report.checkpoints) == (1, 1)
        counted = vault.stats()
        assert (counted.threads, counted.checkpoints, counted.damaged) == (1, 1, 1)


@pytest.mark.parametrize("column", ["meta", "delta"])
def test_states_one_after_the_other_are_not_held_up_by_damage_beside_them(column: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with savegame.open(path) as vault:
        thread = vault.thread("t")
        for number in range(6):
            thread.update(append={"n": [number]}, id=f"main-{number}")
        thread.save({"n": "beside"}, id="beside", parent="main-5")
        thread.rewind("main-5")
        for number in range(6, 12):
            thread.update(append={"n": [number]}, id=f"main-{number}")
    assert damage(path, "frame", column, 6, random.Random(1))
    with savegame.open(path) as vault:
        thread = vault.thread("t")
        line = list(thread.history(newest_first=False))
        assert [point.state["n"] for point in thread.replay(line)] == [list(range(number + 1)) for number in range(12)]
        with pytest.raises(CorruptionError):
            thread.load("beside")


def test_repair_twice_changes_nothing_more(copy: Sample) -> None:
    sql(copy.path, "UPDATE frame SET delta = zeroblob(length(delta)) WHERE key IN (SELECT key FROM frame LIMIT 2 OFFSET 3)")
    with savegame.open(copy.path) as vault:
        assert vault.repair().ok
        rows = sql(copy.path, "SELECT count(*) FROM aside")
        assert vault.repair().repaired == ()
        assert sql(copy.path, "SELECT count(*) FROM aside") == rows


def test_compact_does_not_make_damage_look_sound(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        saved = vault.thread("t").save({"text": "a text that compresses well " * 20})
    (delta,) = sql(path, "SELECT delta FROM frame")[0]
    assert b"compresses" in delta
    sql(path, "UPDATE frame SET delta = ?", (delta.replace(b"compresses", b"compresseS", 1),))
    with savegame.open(path) as vault:
        attempt(vault.compact)
        assert isinstance(attempt(lambda: vault.load(saved.id)), CorruptionError)
        assert isinstance(attempt(vault.thread("t").latest), CorruptionError)
        assert not vault.verify().ok


def test_pruning_and_copying_do_not_make_damage_look_sound(copy: Sample, tmp_path: Path) -> None:
    (key,) = sql(copy.path, "SELECT key FROM frame ORDER BY key LIMIT 1 OFFSET 4")[0]
    (delta,) = sql(copy.path, "SELECT delta FROM frame WHERE key = ?", (key,))[0]
    sql(copy.path, "UPDATE frame SET delta = ? WHERE key = ?", (delta.replace(b"alpha", b"alphA", 1), key))
    with savegame.open(copy.path) as vault, savegame.open(tmp_path / "copy.db") as other:
        attempt(lambda: vault.thread("alpha").prune(keep=2, include_labelled=True))
        attempt(lambda: vault.copy_to(other))
        for one in (vault, other):
            nothing_wrong_comes_back(one, copy, repaired=True)


def test_a_row_that_vanished_is_noticed(copy: Sample) -> None:
    sql(copy.path, "DELETE FROM frame WHERE key = (SELECT key FROM frame ORDER BY key LIMIT 1 OFFSET 3)")
    with savegame.open(copy.path) as vault:
        nothing_wrong_comes_back(vault, copy)
        assert not vault.verify().ok
        assert vault.repair().ok
        nothing_wrong_comes_back(vault, copy, repaired=True)


def test_two_rows_that_changed_places_are_noticed(copy: Sample) -> None:
    """Each row is sound by itself, but not where it stands."""
    (one, a, s), (two, b, t) = sql(copy.path, "SELECT key, delta, delta_sum FROM frame ORDER BY key LIMIT 2 OFFSET 4")
    sql(copy.path, "UPDATE frame SET delta = ?, delta_sum = ? WHERE key = ?", (b, t, one))
    sql(copy.path, "UPDATE frame SET delta = ?, delta_sum = ? WHERE key = ?", (a, s, two))
    with savegame.open(copy.path) as vault:
        nothing_wrong_comes_back(vault, copy)
        assert not vault.verify().ok


# -- the file --------------------------------------------------------------------------------------


def flip_the_file(sample: Sample, directory: Path, flips: int, seed: int) -> dict[str, int]:
    """Flip single bits of copies of the file; nothing wrong ever comes back, every error is ours."""
    chance = random.Random(seed)
    size = sample.path.stat().st_size * 8
    figures = {"flips": flips, "refused": 0, "failed_loads": 0, "verify_not_ok": 0}
    path = directory / "flipped.db"
    for _ in range(flips):
        for suffix in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        shutil.copy(sample.path, path)
        bit = chance.randrange(size)
        flip_bit(path, bit)
        try:
            try:
                vault = savegame.open(path)
            except SavegameError:
                figures["refused"] += 1
                continue
            with vault:
                failed = nothing_wrong_comes_back(vault, sample)
                report = attempt(vault.verify)
                figures["failed_loads"] += bool(failed)
                figures["verify_not_ok"] += isinstance(report, SavegameError) or not report.ok
                if failed:
                    assert isinstance(report, SavegameError) or not report.ok, "verify calls a vault sound that does not load"
        except Exception as error:
            raise AssertionError(f"flip of bit {bit} (page {bit // 8 // 8192 + 1}, byte {bit // 8 % 8192})") from error
    return figures


def test_random_bit_flips_of_the_file(sample: Sample, tmp_path: Path) -> None:
    figures = flip_the_file(sample, tmp_path, 400, 1)
    print(figures)
    assert figures["verify_not_ok"]


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_random_bit_flips_of_the_file_10000(sample: Sample, tmp_path: Path) -> None:
    print(flip_the_file(sample, tmp_path, 10_000, random.randrange(1 << 30)))


def use_everything(vault: savegame.Vault, sample: Sample) -> None:
    for name in sample.heads:
        attempt(lambda one=name: vault.thread(one).update(set={"more": 1}))  # type: ignore[misc]
    attempt(lambda: vault.thread("alpha").prune(keep=2))
    attempt(lambda: vault.thread("beta").rewind("head~2"))
    attempt(vault.compact)
    attempt(lambda: vault.backup(f"{sample.path}.backup {random.random()}"))
    attempt(vault.stats)
    attempt(vault.repair)
    attempt(vault.verify)
    attempt(lambda: list(vault.threads(tag="t1")))
    attempt(vault.thread("alpha").delete)


def test_saving_repairing_and_pruning_a_damaged_file_raise_only_our_errors(sample: Sample, tmp_path: Path) -> None:
    chance = random.Random(5)
    size = sample.path.stat().st_size * 8
    for number in range(150):
        path = Path(shutil.copy(sample.path, tmp_path / f"{number}.db"))
        for _ in range(4):
            flip_bit(path, chance.randrange(size))
        try:
            vault = savegame.open(path)
        except SavegameError:
            continue
        with vault:
            use_everything(vault, sample)
        for left in tmp_path.glob(f"{number}.db*"):
            left.unlink()


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(keep: float, copy: Sample) -> None:
    with copy.path.open("r+b") as file:
        file.truncate(int(copy.path.stat().st_size * keep))
    try:
        vault = savegame.open(copy.path)
    except SavegameError:
        return
    with vault:
        failed = nothing_wrong_comes_back(vault, copy)
        if keep:
            report = attempt(vault.verify)
            assert failed == 0 or isinstance(report, SavegameError) or not report.ok
        else:
            assert failed == len(copy.truth)  # an empty file is a new vault: nothing is there, nothing is invented


@pytest.mark.parametrize("garbage", [b"", b"x", b"not a wal" * 2000, bytes(40000), b"\x37\x7f\x06\x82" + b"\1" * 50000])
def test_garbage_beside_the_file(garbage: bytes, copy: Sample) -> None:
    Path(f"{copy.path}-wal").write_bytes(garbage)
    Path(f"{copy.path}-shm").write_bytes(garbage[:32768])
    with savegame.open(copy.path) as vault:
        assert nothing_wrong_comes_back(vault, copy) == 0
        assert vault.verify().ok
        vault.thread("alpha").update(set={"more": 1})
        assert vault.verify().ok


@pytest.mark.requirement("C13", "C18", "E13", "Z25")
def test_a_damaged_wal_gives_older_states_or_errors(sample: Sample, tmp_path: Path) -> None:
    """What a killed process left in the -wal may be cut off by damage there; what comes back was saved as it is."""
    script = (
        "import os, sys, savegame\n"
        "vault = savegame.open(sys.argv[1])\n"
        "for number in range(10): vault.thread('t').save({'number': number, 'same': number, 'text': 'y' * 3000})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = tmp_path / "v.db"
    subprocess.run([sys.executable, "-c", script, str(path)], timeout=PATIENCE_S, check=False)
    wal = Path(f"{path}-wal")
    whole = wal.read_bytes()
    assert len(whole) > 10 * 3000
    chance = random.Random(3)
    for number in range(60):
        target = tmp_path / f"{number}.db"
        shutil.copy(path, target)
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        Path(f"{target}-wal").write_bytes(data)
        with savegame.open(target) as vault:
            state = vault.thread("t").state()
            assert state is None or state["number"] == state["same"]
            assert vault.verify().ok
            vault.thread("t").save({"number": 99, "same": 99})
            assert vault.verify().ok


# -- files taken away under an open vault --------------------------------------------------------------

OTHER = "import sys, savegame; v = savegame.open(sys.argv[1]); v.thread('t').update(append={'items': ['other']}); v.close()"


def other_process(path: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", OTHER, str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode == 0


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("with_another", [False, True])
def test_a_file_taken_away_under_an_open_vault_is_noticed(suffix: str, with_another: bool, tmp_path: Path) -> None:
    """Either the next save raises, or everything that was acknowledged from then on is there; reopening always works."""
    path = tmp_path / "v.db"
    vault = savegame.open(path)
    vault.thread("t").save({"items": []})
    Path(f"{path}{suffix}").unlink()
    acknowledged: list[str] = []
    noticed: list[SavegameError] = []
    for number in range(3):
        try:
            vault.thread("t").update(append={"items": [f"{number}"]})
            acknowledged.append(f"{number}")
        except SavegameError as error:
            noticed.append(error)
        if with_another and other_process(path):
            acknowledged.append("other")
    vault.close()
    with savegame.open(path) as again:
        assert again.verify().ok
        items = (again.thread("t").state() or {"items": []})["items"]
        assert all(items.count(one) >= acknowledged.count(one) for one in acknowledged), (items, acknowledged, noticed)
        again.thread("t").update(append={"items": ["afterwards"]})
    if suffix == "-wal":
        assert noticed
        assert isinstance(noticed[0], UnavailableError)
        assert noticed[0].unknown


def test_a_moved_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    vault = savegame.open(path)
    vault.thread("t").save(1)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").rename(tmp_path / f"moved.db{suffix}")
    with pytest.raises(SavegameError):
        vault.thread("t").save(2)
    vault.close()
    with savegame.open(tmp_path / "moved.db") as moved:
        assert moved.thread("t").state() in (1, 2)
        assert moved.verify().ok


@pytest.mark.parametrize("take_away", [shutil.rmtree, lambda path: path.rename(path.with_name("elsewhere"))])
def test_a_directory_taken_away_under_an_open_vault_is_noticed(take_away: Callable[[Path], object], tmp_path: Path) -> None:
    directory = tmp_path / "saves"
    with savegame.open(directory / "v.db") as vault:
        thread = vault.thread("t")
        thread.save({"number": 1})
        take_away(directory)
        with pytest.raises(UnavailableError, match="removed, moved or replaced") as raised:
            thread.save({"number": 2})
        assert raised.value.unknown
        assert raised.value.checkpoint_id


def test_a_directory_further_up_that_is_moved_under_an_open_vault_is_noticed(tmp_path: Path) -> None:
    above = tmp_path / "above"
    with savegame.open(above / "saves" / "v.db") as vault:
        thread = vault.thread("t")
        for number in range(3):
            thread.save({"number": number})
        above.rename(tmp_path / "elsewhere")
        with pytest.raises(UnavailableError, match="removed, moved or replaced"):
            save_for(thread, PATIENCE_S)


def save_for(thread: savegame.Thread, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        thread.save({"at": time.monotonic()})


def test_a_text_that_is_none_leaves_no_reader_in_the_way(tmp_path: Path) -> None:
    """Its row is half read when that is noticed: neither a backup nor the emptying of the -wal may wait for the rest."""
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        vault.thread("sound").save({"number": 1})
        vault.thread("damaged").save({"number": 1})
    sql(path, "UPDATE thread SET agent = CAST(x'ff' AS TEXT) WHERE id = 'damaged'")
    with savegame.open(path) as vault:
        vault.thread("sound").update(set={"number": 2})
        with pytest.raises(CorruptionError):
            vault.thread("damaged").load()
        assert vault.store.purge()
        vault.backup(tmp_path / "backup.db")


def test_find_and_load_do_not_trust_the_index(tmp_path: Path) -> None:
    """A checkpoint is what its own row says, not what an index says that it is."""
    path = tmp_path / "chosen.db"
    one, two = "1" * 32, "2" * 32  # chosen ids do not tell their place: they are in the index
    with savegame.open(path) as vault:
        vault.thread("t").save("first", id=one)
        vault.thread("t").save("second", id=two)
    (root,) = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'frame_by_id'")[0]
    (size,) = sql(path, "PRAGMA page_size")[0]
    data = bytearray(path.read_bytes())
    start = (root - 1) * size
    page = bytes(data[start : start + size])
    a, b = page.find(bytes.fromhex(one)), page.find(bytes.fromhex(two))
    assert a > 0
    assert b > 0
    # After the id an entry holds the key of its row (the namespace's number, 1, takes no bytes): each gets the other's.
    one_key, two_key = page[a + 16 : a + 22], page[b + 16 : b + 22]
    assert (one_key[:5], one_key[5], two_key[5]) == (two_key[:5], 1, 2)
    data[start + a + 16 : start + a + 22], data[start + b + 16 : start + b + 22] = two_key, one_key
    path.write_bytes(data)
    with savegame.open(path) as vault:
        for checkpoint_id in (one, two):
            got = attempt(lambda wanted=checkpoint_id: vault.load(wanted))  # type: ignore[misc]
            assert isinstance(got, (CorruptionError, CheckpointNotFound, ThreadNotFound)) or got.id == checkpoint_id
        assert not vault.verify().ok


# -- sound beside damaged --------------------------------------------------------------------------


def test_the_newest_sound_checkpoint_is_the_head_if_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        thread = vault.thread("branched")
        two = [thread.save({"n": number}) for number in (1, 2)][1]
        branch = thread.save({"n": 3})
        thread.rewind(two)
        thread.save({"n": 4})
        for number in range(30):
            vault.thread("long").save({"x": random.Random(number).randbytes(3000), "n": number})
        keyframed = [key & 0xFFFFFFFF for (key,) in vault.store._connections.writer().execute("SELECT key FROM keyframe")]  # type: ignore[attr-defined]
        assert any(5 < seq <= 30 for seq in keyframed)
    sql(path, "UPDATE frame SET delta_sum = delta_sum + 1 WHERE key IN (1 << 32 | 3, 2 << 32 | 5)")
    with savegame.open(path) as vault:
        for load, head in (
            (lambda: vault.thread("branched").load(branch.id), {"n": 4}),
            (lambda: vault.load(branch.id), {"n": 4}),
            (lambda: vault.thread("long").load(5), vault.thread("long").state()),
        ):
            with pytest.raises(CorruptionError) as raised:
                load()
            assert raised.value.newest_sound is not None
            assert raised.value.newest_sound.state == head


def test_the_newest_sound_checkpoint_is_named_also_where_the_damage_is_met_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        saved = [vault.thread("t").save({"n": number}) for number in (1, 2)]
    sql(path, "UPDATE frame SET meta_sum = meta_sum + 1 WHERE key & 4294967295 = 2")
    with savegame.open(path) as vault:
        assert vault.thread("t").load("head~1").id == saved[0].id  # found without reading what is damaged
        for ref in ("head", 1, saved[1].id):
            with pytest.raises(CorruptionError) as raised:
                vault.thread("t").load(ref)
            assert raised.value.newest_sound is not None
            assert raised.value.newest_sound.id == saved[0].id


@pytest.mark.parametrize("column", ["note_sum", "meta_sum"])
def test_labels_prefixes_and_tags_lead_past_damage(column: str, tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        thread = vault.thread("t")
        saved = [thread.save({"n": number}, label=f"label {number}", tags=[f"tag {number}"]) for number in range(4)]
        vault.thread("other").save({}, tags=["tag 2"])
    sql(path, f"UPDATE frame SET {column} = {column} + 1 WHERE key = 1 << 32 | 2")
    with savegame.open(path) as vault:
        thread = vault.thread("t")
        assert thread.load("label 2").id == saved[2].id
        assert thread.load(saved[2].id[:12]).id == saved[2].id
        assert [info.id for info in vault.threads(tag="tag 2")] == ["other", "t"]
        assert [info.id for info in vault.threads(tag="tag 1")] == []
        with pytest.raises(CorruptionError):
            thread.load("label 1")


@pytest.mark.parametrize(("damage", "place"), [("note = NULL", 2), ("note_sum = 5", 1)])
def test_a_note_that_is_gone_is_noticed_and_costs_only_itself(damage: str, place: int, tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        saved = [vault.thread("t").save(number, label="second" if number == 2 else None) for number in (1, 2, 3)]
    sql(path, f"UPDATE frame SET {damage} WHERE key = (1 << 32) + {place}")
    with savegame.open(path) as vault:
        assert [(problem.checkpoint_id, problem.place) for problem in vault.verify().problems] == [
            (saved[place - 1].id, f"label and tags of frame {place}")
        ]
        with pytest.raises(CorruptionError, match=saved[place - 1].id):
            list(vault.thread("t").history())
        assert vault.repair().ok
        assert [entry.load().state for entry in vault.thread("t").history()] == [3, 2, 1]


def set_loosely(path: Path, table: str, change: str) -> None:
    """Change a table past its STRICT, as a damaged header of a row does: columns are of another type then."""
    strict, loose = ("TEXT NOT NULL", "ANY NOT NULL") if table == "thread" else ("BLOB", "ANY")
    layout = sql(path, "SELECT sql FROM sqlite_schema WHERE name = ?", (table,))[0][0]
    for text, then in ((layout.replace(strict, loose), f"UPDATE {table} SET {change}"), (layout, "SELECT 1")):
        db = apsw.Connection(str(path))
        db.pragma("writable_schema", 1)
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (text, table))
        db.close()
        sql(path, then)


@pytest.mark.parametrize("change", ["meta = 'text', note = NULL", "meta = 'text'"])
def test_a_column_of_another_type_is_damage_to_whoever_writes_beside_it(change: str, tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        for number in (1, 2, 3):
            vault.thread("t").save({"text": "x" * 500 * number}, label=f"label {number}")
    set_loosely(path, "frame", f"{change} WHERE key = (1 << 32) + 2")
    with savegame.open(path) as vault:
        assert not vault.verify().ok
        with pytest.raises(CorruptionError):
            vault.compact()
        assert vault.repair().ok
        assert [entry.load().state["text"] for entry in vault.thread("t").history()] == ["x" * 1500, "x" * 500]
        vault.compact()
        assert vault.verify().ok


def test_an_id_that_is_no_text_any_more_does_not_stop_the_others(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        for name in ("a", "b", "c"):
            vault.thread(name).save(name)
    set_loosely(path, "thread", "id = CAST(id AS BLOB) WHERE no = 2")
    with savegame.open(path) as vault:
        assert not vault.verify().ok
        assert [info.id for info in vault.threads(after="a")] == ["c"]
        assert [vault.thread(name).state() for name in ("a", "c")] == ["a", "c"]


def two_namespaces(path: Path) -> None:
    for name in ("default", "other"):
        with savegame.open(path, namespace=name) as vault:
            vault.thread("t").save({"of": name})


def test_damage_of_another_namespace_is_its_own_affair(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    two_namespaces(path)
    sql(path, "UPDATE namespace SET sum = sum + 1 WHERE name = 'other'")
    sql(path, "UPDATE thread SET version = version + 1 WHERE space = 2")
    with savegame.open(path) as vault:
        assert vault.thread("t").state() == {"of": "default"}
        vault.thread("t").save({"of": "default", "again": True})
        assert [(problem.thread_id, problem.place) for problem in vault.verify().problems] == [(None, "namespace row")]
        vault.compact()
    with savegame.open(path, namespace="other") as vault:
        with pytest.raises(CorruptionError, match="namespace"):
            vault.thread("t").latest()
        vault.repair()
        assert vault.thread("t").state() == {"of": "other"}
        assert vault.verify().ok


@pytest.mark.parametrize("column", ["name", "sum"])
def test_the_row_of_a_namespace_is_put_right_by_what_is_in_it(column: str, tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    two_namespaces(path)
    sql(path, f"UPDATE namespace SET {column} = {'name || 1' if column == 'name' else 'sum + 1'} WHERE no = 1")
    with savegame.open(path) as vault:
        with pytest.raises(CorruptionError):
            vault.thread("t").save({"must": "not be a new namespace"})
        vault.repair()
        assert vault.thread("t").state() == {"of": "default"}
        assert vault.verify().ok


def test_what_was_set_aside_in_one_namespace_stays_when_its_twin_is_deleted_in_another(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    two_namespaces(path)
    with savegame.open(path) as vault:
        vault.store.commit([PutRecord(ThreadKey("default", "t"), "kind", "name", b"value")])
    sql(path, "UPDATE record SET sum = sum + 1")
    with savegame.open(path) as vault:
        vault.repair()
    with savegame.open(path, namespace="other") as vault:
        vault.thread("t").delete()
    assert sql(path, "SELECT count(*) FROM aside") == [(1,)]
    with savegame.open(path) as vault:
        vault.thread("t").delete()
    assert sql(path, "SELECT count(*) FROM aside") == [(0,)]


@pytest.mark.parametrize("number", [9, 0, -1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("namespace", ["default", "other"])
def test_a_thread_gets_its_number_back(number: int, namespace: str, tmp_path: Path) -> None:
    """Its frames, records and large values are under it; a repair of any namespace finds them."""
    path = tmp_path / "v.db"
    two_namespaces(path)
    with savegame.open(path) as vault:
        vault.thread("t").save({"large": "x" * 10_000})
        vault.thread("t").put_records({("kind", "name"): 1})
    sql(path, f"UPDATE thread SET no = {number} WHERE no = 1")
    with savegame.open(path) as vault, pytest.raises(CorruptionError):
        vault.thread("t").latest()
    with savegame.open(path, namespace=namespace) as vault:
        assert not vault.verify().ok
        assert "thread 't': its number was put right" in vault.repair().repaired
        assert vault.verify().ok
    with savegame.open(path) as vault:
        assert vault.verify().ok
        assert [entry.load().state for entry in vault.thread("t").history()] == [{"large": "x" * 10_000}, {"of": "default"}]
        assert vault.thread("t").records("kind") == {"name": 1}
        assert vault.thread("new").save({"is": "new"}).step == 1
        assert sql(path, "SELECT count(*) FROM aside") == [(0,)]


@pytest.mark.parametrize("number", [9, 0, 2**31 - 1, 2**31, 2**63 - 1, -(2**63)])
def test_a_thread_whose_number_nobody_can_tell_begins_anew(number: int, tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    two_namespaces(path)
    sql(path, f"UPDATE thread SET no = {number}, sum = sum + 1 WHERE no = 1")
    with savegame.open(path) as vault:
        assert not vault.verify().ok
        vault.repair()
        assert vault.verify().ok
        assert vault.thread("t").state() is None
        vault.thread("t").save({"again": True})
        assert vault.thread("t").state() == {"again": True}
        vault.thread("new").save({"is": "new"})
        assert sql(path, "SELECT what, seq FROM aside") == [("frame", 1)]
    with savegame.open(path, namespace="other") as vault:
        assert vault.thread("t").state() == {"of": "other"}


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**38 + 1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("damage", ["thread SET no = {} WHERE no = 1", "sqlite_sequence SET seq = {}"])
def test_no_thread_gets_a_number_that_none_can_have(damage: str, number: int, tmp_path: Path) -> None:
    """It would be saved where no lookup finds it, or among the frames of another."""
    path = tmp_path / "v.db"
    two_namespaces(path)
    sql(path, f"UPDATE {damage.format(number)}")
    with savegame.open(path) as vault:
        with pytest.raises(CorruptionError, match="run repair"):
            vault.thread("new").save({"is": "new"})
        assert not vault.verify().ok
        vault.repair()
        assert vault.verify().ok
        vault.thread("new").save({"is": "new"})
        assert vault.thread("new").state() == {"is": "new"}
        assert vault.thread("t").state() == {"of": "default"}


@pytest.mark.parametrize("damage", ["SET value = 0", "SET value = -(1 << 62)", f"SET value = {2**63 - 1}", "SET name = 'epoc'"])
def test_epochs_grow_whatever_becomes_of_the_newest(damage: str, tmp_path: Path) -> None:
    path, key = tmp_path / "v.db", ThreadKey("default", "t")
    with savegame.open(path) as vault:
        vault.thread("t").save(1)
        epochs = [vault.store.lease(key, "holder", 0).epoch for _ in range(3)]
    sql(path, f"UPDATE setting {damage}")
    with savegame.open(path) as vault:
        epochs += [vault.store.lease(key, "holder", 0).epoch for _ in range(3)]
    assert sorted(set(epochs)) == epochs


def test_a_page_that_stands_in_two_places(tmp_path: Path) -> None:
    """Frames are then out of order, and a listing tells of others than a look at each."""
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        for number in range(40):
            vault.thread("t").update(append={"items": [f"{number} " * 200]})
    whole = path.read_bytes()
    size, pages = 4096, len(whole) // 4096
    for place, other in itertools.permutations(range(1, pages), 2):
        if abs(place - other) > 3:
            continue
        path.write_bytes(whole[: place * size] + whole[other * size : (other + 1) * size] + whole[(place + 1) * size :])
        opened = attempt(lambda: savegame.open(path))
        if isinstance(opened, SavegameError):
            continue
        with opened as vault:
            assert isinstance(attempt(vault.thread("t").latest), savegame.Checkpoint | SavegameError | None)
            attempt(lambda: list(vault.thread("t").history()))
            attempt(vault.compact)
            attempt(vault.thread("t").latest)
            attempt(lambda: vault.thread("t").save({"more": 1}))
            vault.verify()
            attempt(vault.repair)
            attempt(vault.thread("t").latest)
            vault.verify()


@pytest.mark.parametrize("number", [0, 99, 2**31 - 1, -1])
def test_a_keyframe_of_no_thread_is_noticed(number: int, tmp_path: Path) -> None:
    """It holds a whole state, and would outlive its thread."""
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        vault.thread("t").save({"n": 1})
        vault.store.commit([_keyframe(vault, "t", 1)])
    sql(path, f"UPDATE keyframe SET key = ({number} << 32) + 1")
    with savegame.open(path) as vault:
        assert [problem.message for problem in vault.verify().problems] == ["keyframe of frame 1"]
        assert vault.repair().ok
        assert vault.thread("t").state() == {"n": 1}
    assert sql(path, "SELECT what FROM aside") == [("keyframe of frame 1",)]


def test_a_thread_that_strayed_comes_back_when_its_name_is_free(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    two_namespaces(path)
    sql(path, "UPDATE thread SET space = 99 WHERE no = 1")
    with savegame.open(path) as vault:
        vault.thread("t").save({"begun": "anew"})
        report = vault.repair()
        assert [(problem.thread_id, problem.place) for problem in report.problems] == [
            ("t", "thread row: it names another namespace")
        ]
        assert "its name is taken" in report.repaired[0]
        assert vault.thread("t").state() == {"begun": "anew"}
        vault.thread("t").fork("anew")
        vault.thread("t").delete()
        assert vault.repair().ok
        assert vault.thread("t").state() == {"of": "default"}
        assert vault.thread("anew").state() == {"begun": "anew"}


def test_compact_passes_over_a_thread_of_no_namespace(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    two_namespaces(path)
    sql(path, "UPDATE thread SET space = 99 WHERE no = 1")
    with savegame.open(path) as vault:
        vault.compact()
        assert [problem.thread_id for problem in vault.verify().problems] == ["t"]
        vault.repair()
        assert vault.thread("t").state() == {"of": "default"}
