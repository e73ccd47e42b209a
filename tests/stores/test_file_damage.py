"""Damaged and missing parts of a file store: told of, mended without losing a byte that could be kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from savegame.errors import CorruptionError, Fenced
from savegame.store import DeleteThread, MoveHead, PutKeyframe, PutRecord
from savegame.stores.file import FileStore
from savegame.testing.contract.helpers import MINUTE, A, B, appended, everything, grown, state
from savegame.testing.faults import flip_bit
from tests.stores.test_file import directory, files, journal


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(str(tmp_path / "saves"))
    yield store
    store.close()


def newlines(path: Path) -> list[int]:
    return [at for at, byte in enumerate(path.read_bytes()) if byte == ord("\n")]


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("which", [0, 1, 2, -2, -1])
def test_a_flipped_bit_in_a_newline_loses_nothing_and_is_told(store: FileStore, which: int, bit: int) -> None:
    """Also in the last one, which makes the line look unfinished, and in the first, without which the thread is unknown."""
    grown(store, A, 3)
    store.commit([PutRecord(A, "kind", "name", b"value"), MoveHead(A, 2)])
    whole = everything(store, A)
    at = newlines(journal(store))[which]
    flip_bit(journal(store), at * 8 + bit)
    for then in ("mend", "write"):
        other = FileStore(f"{store.path} {then}")
        store.backup(other.path, lambda done, total: None)
        assert everything(other, A) == whole
        assert [problem.place for problem in other.check("default")] == [f"newline at byte {at} of journal.jsonl"]
        if then == "mend":
            assert other.mend("default") == ["thread 'a': 1 lines without a newline rewritten"]
            assert everything(other, A) == whole
        else:
            assert other.commit([appended(A, 4, 2)]) == [4]
            assert state(other, A, 4) == b"1.2.4."
        assert list(other.check("default")) == []
        assert everything(FileStore(other.path), A) == everything(other, A)


def test_damage_after_a_damaged_newline_is_told_apart_from_it(store: FileStore) -> None:
    grown(store, A, 4)
    flip_bit(journal(store), newlines(journal(store))[2] * 8)  # between frames 2 and 3
    flip_bit(journal(store), journal(store).read_bytes().index(b"bWV0YSAz") * 8)  # the metadata of frame 3
    other = FileStore(store.path)
    assert state(other, A, 2) == b"1.2."
    with pytest.raises(CorruptionError, match="line of frame 3"):
        other.chain(A, 3)


@pytest.mark.parametrize("number", [b"7", b"4"], ids=["of a later frame", "of an earlier frame"])
def test_a_frame_whose_number_is_damaged_is_set_aside_not_lost(store: FileStore, number: bytes) -> None:
    """The frame that really has that number does not take its place for good."""
    grown(store, A, 8)
    before = journal(store).read_bytes()
    line = next(line for line in before.splitlines() if b'{"save":5,' in line).replace(b'{"save":5,', b'{"save":%s,' % number)
    journal(store).write_bytes(before.replace(b'{"save":5,', b'{"save":%s,' % number))
    other = FileStore(store.path)
    with pytest.raises(CorruptionError, match="line at byte"):
        other.find("default", "a-5")
    assert other.mend("default") == ["thread 'a': 1 damaged lines set aside"]
    assert line in (directory(store) / "aside.jsonl").read_bytes()
    assert other.find("default", "a-5") is None
    assert [frame.seq for frame in other.frames(A)] == [1, 2, 3, 4, 6, 7, 8]


def test_an_epoch_is_not_given_again_when_the_file_that_tells_it_is_lost(store: FileStore) -> None:
    """Not for a thread that knows its newest one, and not for one that was deleted since."""
    first, second = store.lease(A, "slow", 1), store.lease(B, "slow", 1)
    store.commit([DeleteThread(B)])
    (Path(store.path) / "epoch").unlink()
    for key, old in ((A, first), (B, second)):
        assert store.lease(key, "me", MINUTE).epoch > max(first.epoch, second.epoch)
        with pytest.raises(Fenced):
            store.commit([PutRecord(key, "kind", "name", b"late", epoch=old.epoch)])


def test_a_clock_that_was_set_back_gives_no_epoch_of_the_thread_again(tmp_path: Path) -> None:
    now = [1_000_000]
    store = FileStore(str(tmp_path / "saves"), clock=lambda: now[0])
    old = store.lease(A, "slow", 1)
    (tmp_path / "saves" / "epoch").unlink()
    now[0] = 5
    assert store.lease(A, "me", MINUTE, instead_of=old.epoch).epoch > old.epoch


def test_a_missing_journal_is_told_and_what_is_left_is_set_aside(store: FileStore) -> None:
    grown(store, A, 2)
    store.commit([PutKeyframe(A, 2, b"1.2.")])
    (keyframe,) = directory(store).glob("keyframe.*")
    journal(store).unlink()
    other = FileStore(store.path)
    (problem,) = other.check("default")
    assert "is missing; restore it from a backup" in problem.message
    other.mend("default")
    assert list(other.check("default")) == []
    assert [path.read_bytes()[-4:] for path in Path(store.path, "aside").rglob(keyframe.name)] == [b"1.2."]


def test_a_first_save_that_was_killed_is_no_damage(store: FileStore) -> None:
    grown(store, A, 1)
    directory(store, B).mkdir()
    (directory(store, B) / "journal.new").write_bytes(b'{"thread":"b"')
    assert list(store.check("default")) == []


def lose(store: FileStore) -> None:
    """Damage the first line of a thread so that it cannot be identified, and have it set aside."""
    for mark in (b'"thread"', b'"namespace"'):
        flip_bit(journal(store), journal(store).read_bytes().index(mark) * 8)
    other = FileStore(store.path)
    assert "set aside as a whole" in other.mend("default")[0]
    other.close()


def test_what_was_set_aside_as_a_whole_counts_as_such(store: FileStore) -> None:
    grown(store, A, 3)
    grown(store, B, 1)
    size = journal(store).stat().st_size
    lose(store)
    sizes = FileStore(store.path).sizes()
    assert (sizes["aside"], sizes["total"]) == (size, sum(map(len, files(Path(store.path)).values())))


def test_a_delete_reaches_what_was_set_aside_as_a_whole(store: FileStore) -> None:
    """Of that thread only, whether or not there is one again."""
    for again in (False, True):
        grown(store, A, 1)
        grown(store, B, 1)
        lose(store)
        if again:
            store.commit([appended(A, 1, id="again")])
        store.commit([DeleteThread(B)])
        assert len(list(Path(store.path, "aside").iterdir())) == 1
        store.commit([DeleteThread(A)])
        assert [name for name, content in files(Path(store.path)).items() if b"a-1" in content] == []


def test_what_an_interrupted_delete_left_is_no_thread(store: FileStore) -> None:
    grown(store, A, 1)
    grown(store, B, 1)
    trash = Path(store.path, "trash")
    trash.mkdir()
    directory(store).rename(trash / ("0" * 32))
    reader = FileStore(store.path, read_only=True)
    assert reader.sizes()["frames"] == FileStore(store.path).sizes()["frames"] > 0
    assert reader.heads("default") == [("b", "b-1")]


def test_torn_tails_are_never_written_over(store: FileStore) -> None:
    """Also if an older one was removed by hand."""
    grown(store, A, 1)
    for number, tail in enumerate((b"first", b"second", b"third"), 1):
        if number == 3:
            (directory(store) / "torn-1").unlink()
        with journal(store).open("ab") as file:
            file.write(tail)
        store.commit([appended(A, number + 1, number)])
    assert {path.name: path.read_bytes() for path in directory(store).glob("torn-*")} == {
        "torn-2": b"second",
        "torn-3": b"third",
    }


@pytest.mark.requirement("E25", "E33c")
def test_a_line_without_its_sum_is_reported_with_a_reason(store: FileStore) -> None:
    grown(store, A, 2)
    first, *rest, last = journal(store).read_bytes().splitlines(keepends=True)
    journal(store).write_bytes(b"".join((first, *rest, last[: last.index(b',"sum":')] + b"}\n")))
    (problem,) = FileStore(store.path).check("default")
    assert (problem.thread_id, problem.checkpoint_id, problem.place) == ("a", "a-2", "line of frame 2")
    assert "checkpoint a-2 is damaged" in problem.message
