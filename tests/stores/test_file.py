"""The file store: the contract, and what only it can get wrong."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import savegame
from savegame.errors import (
    AlreadyExistsError,
    ClosedError,
    CorruptionError,
    InvalidInputError,
    OutOfSpace,
    StoreNotFound,
    UnavailableError,
    UnsupportedError,
)
from savegame.model import ThreadKey
from savegame.store import DeleteThread, MoveHead, PutKeyframe, PutNote, PutRecord, Rewrite, Store
from savegame.stores.file import FileStore, disk
from savegame.stores.file.disk import Disk, directory_name, hashed, is_hashed, thread_directory
from savegame.stores.file.threads import WORTH_KEEPING
from savegame.stores.file.write import _dump_batch
from savegame.testing import StoreContract
from savegame.testing.contract.helpers import A, B, C, D, appended, everything, grown, state
from savegame.testing.faults import PATIENCE_S, flip_bit, run_with_fault, why_no_strace


class TestFileStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = FileStore(str(tmp_path / "store"))
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, FileStore)
        store.close()
        return FileStore(store.path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "saves"


@pytest.fixture
def store(root: Path) -> Iterator[FileStore]:
    store = FileStore(str(root))
    yield store
    store.close()


def directory(store: FileStore, key: ThreadKey = A) -> Path:
    return Path(thread_directory(store.path, key))


def journal(store: FileStore, key: ThreadKey = A) -> Path:
    return directory(store, key) / "journal.jsonl"


def lines(store: FileStore, key: ThreadKey = A) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal(store, key).read_text().splitlines()]


def files(root: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# -- what a person finds -----------------------------------------------------------------------------


@pytest.mark.requirement("A42", "A73")
def test_a_journal_can_be_read(root: Path) -> None:
    with savegame.open(f"file:{root}") as vault:
        thread = vault.thread("support/42", agent="helper")
        thread.save({"messages": ["hello"]}, label="begin")
        thread.update(append={"messages": ["wörld", ("a", "tuple")]})
        assert isinstance(vault.store, FileStore)
        first, owner, save, update = lines(vault.store, ThreadKey("default", "support/42"))
    assert (first["thread"], first["namespace"], first["format"]) == ("support/42", "default", 1)
    assert (owner["head"], owner["agent"]) == (0, "helper")
    assert (save["save"], save["base"], save["note"]["label"]) == (1, 0, "begin")
    assert save["delta"] == [["set", [], {"messages": ["hello"]}]]
    assert update["delta"] == [["append", ["messages"], ["wörld", {"$tuple": ["a", "tuple"]}]]]
    assert update["meta"]["parent_id"] == save["id"]


def test_saves_only_ever_add_to_a_journal(store: FileStore) -> None:
    """So that `tail -f` shows each of them, once."""
    grown(store, A, 1)
    for number, change in enumerate(
        [appended(A, 2, 1), MoveHead(A, 1), PutNote(A, 1, b"n", None), PutRecord(A, "k", "n", b"v")]
    ):
        before, inode = journal(store).read_bytes(), journal(store).stat().st_ino
        store.commit([change])
        assert journal(store).read_bytes().startswith(before)
        assert (len(lines(store)), journal(store).stat().st_ino) == (number + 3, inode)


def test_nothing_in_a_readable_vault_is_compressed(root: Path) -> None:
    """Not by saving, nor by compacting."""
    with savegame.open(f"file:{root}") as vault:
        vault.thread("t").save({"text": "needle " * 1000, "large": "haystack " * 10_000})
        vault.compact()
        assert isinstance(vault.store, FileStore)
        text = journal(vault.store, ThreadKey("default", "t")).read_text()
    assert "needle needle" in text
    assert "haystack haystack" in text
    assert "base64" not in text


@pytest.mark.requirement("Z55")
def test_names_are_hashes_and_everything_is_private(store: FileStore, root: Path) -> None:
    old = os.umask(0)
    try:
        store.commit(
            [appended(ThreadKey("../n", "../../x"), 1, id="/etc/x"), PutKeyframe(ThreadKey("../n", "../../x"), 1, b"k")]
        )
    finally:
        os.umask(old)
    found = list(root.rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} | {stat.S_IMODE(root.stat().st_mode)} == {
        0o700
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
    assert directory(store, ThreadKey("../n", "../../x")).is_relative_to(root)


# -- opening -----------------------------------------------------------------------------------------


@pytest.mark.requirement("A39", "A41", "A43", "A44", "A78", "D35", "E05", "E08", "E31", "E33f", "X16")
def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b" / "saves"
    store = FileStore(str(root))
    assert (store.thread(A), store.heads("default"), store.sizes()["total"], list(store.check("default"))) == (None, [], 0, [])
    assert list(tmp_path.iterdir()) == []
    grown(store, A, 1)
    assert root.is_dir()


def a_file(root: Path) -> None:
    root.write_text("dear diary")


def a_directory_of_somebody(root: Path) -> None:
    root.mkdir()
    (root / "theirs.txt").write_text("kept")


def a_newer_format(root: Path) -> None:
    root.mkdir()
    (root / "savegame.json").write_text('{"format": 999}')


def a_broken_marker(root: Path) -> None:
    root.mkdir()
    (root / "savegame.json").write_text("{}")


@pytest.mark.requirement("C10", "C34", "E10", "X25", "Z54")
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("make", [a_file, a_directory_of_somebody, a_newer_format, a_broken_marker])
def test_what_is_not_ours_is_refused_and_stays_as_it_is(make: Callable[[Path], None], read_only: bool, root: Path) -> None:
    make(root)
    before = files(root.parent)
    with pytest.raises(UnsupportedError, match=str(root)):
        savegame.open(f"file:{root}", read_only=read_only)
    assert files(root.parent) == before


def test_a_directory_whose_making_was_interrupted_is_ours(root: Path) -> None:
    root.mkdir()
    (root / "savegame.json.0123").write_text("{")
    (root / "lock").touch()
    grown(FileStore(str(root)), A, 1)


@pytest.mark.parametrize("path", ["", "nul\0", "\udcff"])
def test_paths_that_no_directory_can_have(path: str) -> None:
    with pytest.raises(InvalidInputError):
        FileStore(path)
    with pytest.raises(InvalidInputError, match="durability"):
        FileStore("x", durability="none")


def test_reading_only(store: FileStore, root: Path) -> None:
    with pytest.raises(StoreNotFound):
        FileStore(str(root), read_only=True)
    grown(store, A, 2)
    reader = FileStore(str(root), read_only=True)
    assert state(reader, A, 2) == b"1.2."
    store.commit([appended(A, 3, 2)])
    before = files(root)
    assert state(reader, A, 3) == b"1.2.3."
    with pytest.raises(UnsupportedError, match="read_only"):
        reader.commit([appended(A, 4, 3)])
    assert files(root) == before


@pytest.mark.requirement("Z60")
def test_a_symbolic_link_inside_is_refused(store: FileStore, root: Path, tmp_path: Path) -> None:
    grown(store, A, 1)
    grown(store, B, 1)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(directory(store, A), elsewhere)
    directory(store, A).symlink_to(elsewhere)
    journal(store, B).unlink()
    journal(store, B).symlink_to(elsewhere / "journal.jsonl")
    before = files(elsewhere)
    for key in (A, B):
        with pytest.raises(UnsupportedError, match=r"remove it|move it away"):
            FileStore(str(root)).commit([appended(key, 2)])
    assert files(elsewhere) == before


# -- several at once ---------------------------------------------------------------------------------


def test_what_another_store_wrote_is_noticed(store: FileStore, root: Path) -> None:
    """Appends, rewrites with whichever inode, deletes: the file decides."""
    other = FileStore(str(root))
    grown(store, A, 3)
    for number in range(4, 40):
        assert other.commit([appended(A, number, number - 1, id=other.new_id(A), fresh=True)]) == [number]
        store.commit([Rewrite(A, drop=(number - 3,), rebase=((number - 2, 0, b"."),))])
        assert [frame.seq for frame in other.frames(A)] == [number - 2, number - 1, number]
        assert everything(other, A) == everything(store, A)
    other.commit([DeleteThread(A)])
    assert store.thread(A) is None
    grown(other, A, 1)
    assert everything(other, A) == everything(store, A)


def test_a_directory_that_was_taken_away_under_a_store_is_made_anew(store: FileStore, root: Path) -> None:
    grown(store, A, 2)
    shutil.rmtree(root)
    assert store.thread(A) is None
    grown(store, A, 1)
    assert state(FileStore(str(root)), A, 1) == b"1."


def test_reading_between_writers_that_keep_dying_ends(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a reader has finished an interrupted batch, the next one is there."""
    grown(store, A, 1)
    finish = store._writer.finish

    def leave_one() -> None:
        Path(store._batch).write_bytes(_dump_batch([]))

    def finish_and_find_the_next() -> None:
        finish()
        leave_one()

    monkeypatch.setattr(store._writer, "finish", finish_and_find_the_next)
    leave_one()
    with pytest.raises(UnavailableError, match="keep being interrupted"):
        store.thread(A)
    monkeypatch.undo()
    assert store.thread(A) is not None


def test_a_fork_inside_an_operation_refuses_in_the_child(store: FileStore) -> None:
    grown(store, A, 1)
    statuses: list[int] = []

    def fork(delta: bytes) -> bytes:
        pid = os.fork()
        if pid == 0:
            try:
                store.thread(A)
            except ClosedError:
                os._exit(7)
            os._exit(8)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return delta

    store.compact(fork, lambda done, total: None)
    assert set(statuses) == {7}
    assert store.commit([appended(A, 2, 1)]) == [2]


# -- torn tails and damage ---------------------------------------------------------------------------


@pytest.mark.requirement("C13", "C18", "E13", "Z25")
@pytest.mark.parametrize(
    "then", [appended(A, 3, 2), Rewrite(A, drop=(1,), rebase=((2, 0, b"1.2."),))], ids=["append", "rewrite"]
)
def test_a_torn_tail_is_set_aside_and_reported(then: Any, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(str(root))
    grown(store, A, 2)
    with journal(store).open("ab") as file:
        file.write(b'{"save":3,"id":"a-3","ba')
    store = FileStore(str(root))
    assert state(store, A, 2) == b"1.2."
    assert list(store.check("default")) == []
    with caplog.at_level(logging.WARNING, "savegame"):
        store.commit([then])
    assert "24 bytes of an unfinished write were set aside" in caplog.text
    assert (directory(store) / "torn-1").read_bytes() == b'{"save":3,"id":"a-3","ba'
    assert journal(store).read_bytes().endswith(b"}\n")
    assert list(store.check("default")) == []


@pytest.mark.requirement("C13", "C18", "E13", "Z25")
def test_a_commit_that_was_written_in_part_counts_as_nothing(store: FileStore, root: Path) -> None:
    """However many of its bytes reached the file."""
    grown(store, A, 1)
    whole = journal(store).read_bytes()
    store.commit([appended(A, 2, 1, blobs=((b"x", b"blob"),)), PutRecord(A, "kind", "name", b"value"), MoveHead(A, 1)])
    added = journal(store).read_bytes()[len(whole) :]
    assert added.count(b"\n") == 4
    before = whole
    for size in [*range(0, len(added), 7), len(added) - 1]:
        journal(store).write_bytes(before + added[:size])
        other = FileStore(str(root))
        assert [frame.seq for frame in other.frames(A)] == [1]
        assert (other.blob(A, b"x"), other.records(A, "kind").items) == (None, [])
    assert other.commit([appended(A, 3, 1)]) == [2]


def damage(path: Path, mark: bytes) -> None:
    """Flip a bit where a text stands."""
    flip_bit(path, path.read_bytes().index(mark) * 8)


def test_a_damaged_frame_is_named_and_the_others_load(store: FileStore, root: Path) -> None:
    grown(store, A, 4)
    store.commit([appended(A, 5, 2), PutKeyframe(A, 4, b"1.2.3.4.")])
    damage(journal(store), b"bWV0YSAz")  # the metadata of frame 3
    other = FileStore(str(root))
    assert (state(other, A, 2), state(other, A, 4), state(other, A, 5)) == (b"1.2.", b"1.2.3.4.", b"1.2.5.")
    other.commit([PutKeyframe(A, 4, None)])
    for read in (lambda: other.chain(A, 3), lambda: other.frames(A), lambda: other.chain(A, 4)):
        with pytest.raises(CorruptionError) as caught:
            read()
        assert (caught.value.thread_id, caught.value.checkpoint_id, caught.value.seq) == ("a", "a-3", 3)
    (problem,) = other.check("default")
    assert (problem.thread_id, problem.checkpoint_id, problem.place) == ("a", "a-3", "line of frame 3")
    other.commit([Rewrite(A, drop=(3,), rebase=((4, 2, b"3.4."),), aside=True)])
    assert list(other.check("default")) == []
    assert b'"id":"a-3"' in (directory(store) / "aside.jsonl").read_bytes()


@pytest.mark.parametrize("mark", [b'"head":1', b'"record":"name"', b'"note":2', b'"thread":"a"'])
def test_a_damaged_line_about_the_thread_stops_it_until_it_is_mended(mark: bytes, store: FileStore, root: Path) -> None:
    """Its content is unknown, so nothing is reported about the thread that may be wrong."""
    grown(store, A, 2)
    store.commit([PutNote(A, 2, b"note", None)])
    store.commit([PutRecord(A, "kind", "name", b"value")])
    store.commit([MoveHead(A, 1)])
    damage(journal(store), mark[1:])
    line = next(line for line in journal(store).read_bytes().splitlines(keepends=True) if mark[2:] in line)
    other = FileStore(str(root))
    with pytest.raises(CorruptionError, match="line at byte"):
        other.thread(A)
    with pytest.raises(CorruptionError):
        other.commit([appended(A, 3, 2)])
    assert [problem.thread_id for problem in other.check("default")] == ["a"] or mark == b'"thread":"a"'
    assert other.mend("default")
    aside = [content for name, content in files(root).items() if "aside" in name]
    assert any(line in content for content in aside)
    assert list(other.check("default")) == []
    assert other.commit([appended(A, 3)]) in ([3], [1])


def test_a_damaged_thread_does_not_keep_the_others_from_being_read(store: FileStore, root: Path) -> None:
    """It is listed with an error, every time; the others are found, written and told of."""
    own = store.new_id(B)
    grown(store, A, 2)
    grown(store, B, 1)
    store.commit([appended(B, 2, 1, id=own, fresh=True), MoveHead(A, 1)])
    damage(journal(store), b'"head"')
    other = FileStore(str(root))
    for _ in range(2):
        with pytest.raises(CorruptionError, match="'a'"):
            other.threads("default")
        assert other.heads("default") == [("a", "a-2"), ("b", own)]
    assert other.find("default", own) == (B, 2)
    assert other.commit([appended(B, 3, 2, id="b" * 32)]) == [3]


def test_lines_that_changed_places_are_damage(store: FileStore, root: Path) -> None:
    grown(store, A, 9)
    content = journal(store).read_bytes().splitlines(keepends=True)
    content[3], content[4] = content[4], content[3]
    journal(store).write_bytes(b"".join(content))
    assert len(list(FileStore(str(root)).check("default"))) > 1


def test_a_journal_of_another_thread_is_not_taken_for_ones_own(store: FileStore, root: Path) -> None:
    grown(store, A, 2)
    grown(store, B, 3)
    shutil.copy(journal(store, B), journal(store, A))
    with pytest.raises(CorruptionError):
        FileStore(str(root)).thread(A)


def test_a_flipped_bit_is_reported_or_changes_nothing(store: FileStore, root: Path, tmp_path: Path) -> None:
    """Anywhere in any file; and what was flipped can be mended."""
    chance = random.Random(7)
    for key in (A, B):
        grown(store, key, 3)
        store.commit([appended(key, 4, 3, note=b"note", blobs=((b"x", b"blob"),)), PutRecord(key, "kind", "name", b"value")])
        store.commit([PutKeyframe(key, 3, b"1.2.3."), MoveHead(key, 2)])
    store.lease(B, "me", 1000)
    store.close()
    whole = [everything(FileStore(str(root)), key) for key in (A, B)]
    names = [path for path in root.rglob("*") if path.is_file() and path.name not in ("savegame.json", "lock")]
    for number in range(120):
        copy = tmp_path / f"copy {number}"
        shutil.copytree(root, copy)
        path = copy / chance.choice(names).relative_to(root)
        flip_bit(path, chance.randrange(path.stat().st_size * 8))
        damaged = FileStore(str(copy))
        problems = list(damaged.check("default"))
        for key, wanted in zip((A, B), whole, strict=True):
            try:
                assert everything(damaged, key) == wanted or problems
            except CorruptionError:
                assert problems
        damaged.mend("default")
        left = [problem for problem in damaged.check("default") if not problem.place.startswith(("line of frame", "base"))]
        assert left == []
        damaged.close()
        shutil.rmtree(copy)


def test_a_damaged_keyframe_is_passed_over_and_reported(store: FileStore, root: Path) -> None:
    grown(store, A, 3)
    store.commit([PutKeyframe(A, 2, b"1.2.")])
    (keyframe,) = directory(store).glob("keyframe.*")
    flip_bit(keyframe, 100)
    assert store.chain(A, 3) == (0, None, [b"1.", b"2.", b"3."])
    assert [problem.place for problem in store.check("default")] == ["keyframe of frame 2"]
    assert len(store.mend("default")) == 1
    assert list(store.check("default")) == []


def test_keyframes_may_be_taken_away(store: FileStore) -> None:
    grown(store, A, 3)
    store.commit([PutKeyframe(A, 2, b"1.2.")])
    for keyframe in directory(store).glob("keyframe.*"):
        keyframe.unlink()
    assert store.chain(A, 3) == (0, None, [b"1.", b"2.", b"3."])
    assert list(store.check("default")) == []


def test_a_lost_epoch_is_never_given_again(store: FileStore, root: Path) -> None:
    lease = store.lease(A, "me", 1)
    store.commit([DeleteThread(A, epoch=lease.epoch)])
    flip_bit(root / "epoch", 0)
    with pytest.raises(CorruptionError, match="epoch"):
        store.lease(A, "me", 1)
    assert [problem.place for problem in store.check("default")] == ["epoch"]
    store.mend("default")
    assert store.lease(A, "me", 1).epoch > lease.epoch


# -- ids ---------------------------------------------------------------------------------------------


def test_only_ids_that_do_not_tell_their_thread_need_the_index(store: FileStore, root: Path) -> None:
    own = store.new_id(A)
    store.commit([appended(A, 1, id=own, fresh=True)])
    assert not (root / directory_name("default") / "ids").exists()
    store.commit([appended(A, 2, 1, id="chosen"), appended(A, 3, 2, id=store.new_id(B), fresh=True)])
    assert sum(len(path.read_bytes().splitlines()) for path in (root / directory_name("default") / "ids").iterdir()) == 2
    assert [store.find("default", name) for name in (own, "chosen")] == [(A, 1), (A, 2)]


def test_an_index_that_was_lost_is_reported_and_built_anew(store: FileStore, root: Path) -> None:
    store.commit([appended(A, 1, id="chosen")])
    shutil.rmtree(root / directory_name("default") / "ids")
    assert [(problem.checkpoint_id, problem.place) for problem in store.check("default")] == [("chosen", "index of ids")]
    store.mend("default")
    assert list(store.check("default")) == []
    with pytest.raises(AlreadyExistsError):
        store.commit([appended(B, 1, id="chosen")])


def test_half_an_index_entry_is_written_over(store: FileStore, root: Path) -> None:
    store.commit([appended(A, 1, id="first")])
    (shard,) = (root / directory_name("default") / "ids").iterdir()
    shard.write_bytes(shard.read_bytes()[:-10])
    store.mend("default")
    assert store.find("default", "first") == (A, 1)
    assert len(shard.read_bytes()) == 75


# -- names of directories --------------------------------------------------------------------------


@pytest.mark.requirement("Z01")
@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("support-42", "-support-42"),
        ("Support 42", "-Support-42"),
        ("a/b", "-a-b"),
        ("../../etc/passwd", "-etc-passwd"),
        ("..", ""),
        (".hidden", "-hidden"),
        ("-rf", "-rf"),
        ("a..b...c", "-a.b.c"),
        ("a - b", "-a-b"),
        ("Zoë", "-Zo"),
        ("退款", ""),
        ("CON", "-CON"),
        ("a\nb\t*?[x]$(y)`", "-a-b-x-y"),
        ("x" * 512, "-" + "x" * 40),
        ("x" * 39 + " y", "-" + "x" * 39),
        ("user_1.chat", "-user_1.chat"),
    ],
)
def test_a_directory_can_be_recognised(store: FileStore, root: Path, name: str, readable: str) -> None:
    key = ThreadKey("default", name)
    store.commit([appended(key, 1)])
    (found,) = root.glob("*/*/journal.jsonl")
    assert found.parent.name == hashed(name) + readable
    assert found.parent.parent.name == hashed("default") + "-default"
    assert (store.heads("default"), list(store.check("default"))) == ([(name, f"{name}-1")], [])
    assert FileStore(str(root)).thread(key) is not None
    assert json.loads((root / "savegame.json").read_text())["format"] == 2


@pytest.mark.requirement("Z01")
@given(st.text(min_size=1, max_size=512))
def test_a_readable_name_is_safe(name: str) -> None:
    made = directory_name(name)
    assert made[:32] == hashed(name)
    assert is_hashed(made)
    assert re.fullmatch(r"(?:-[A-Za-z0-9_][A-Za-z0-9_.-]{0,39})?", made[32:])
    assert ".." not in made
    assert not made.endswith((".", "-"))


Earlier = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Earlier:
    """Directories are made as the version before did, which knows format 1."""

    @contextlib.contextmanager
    def patched() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "directory_name", hashed)
            patch.setattr(disk, "DIRECTORY_FORMAT", 1)
            yield

    return patched


def format_of(root: Path) -> int:
    return int(json.loads((root / "savegame.json").read_text())["format"])


def names(root: Path) -> list[str]:
    return sorted(os.path.relpath(path.parent, root) for path in root.glob("*/*/journal.jsonl"))


def test_a_directory_of_an_earlier_version_stays_as_it_is(root: Path, earlier: Earlier) -> None:
    with earlier():
        store = FileStore(str(root))
        store.commit([appended(A, 1, id="chosen"), appended(B, 1)])
        store.close()
    space = hashed("default")
    store = FileStore(str(root))
    store.commit([appended(A, 2, 1)])
    store.commit([appended(A, 3, 2), appended(B, 2, 1)])
    store.commit([PutKeyframe(A, 2, b"1.2."), PutRecord(B, "kind", "name", b"value")])
    assert (names(root), format_of(root)) == (sorted([f"{space}/{hashed('a')}", f"{space}/{hashed('b')}"]), 1)
    with earlier():
        assert FileStore(str(root)).heads("default") == [("a", "a-3"), ("b", "b-2")]
    store.commit([appended(C, 1, id="also chosen")])
    assert (f"{space}/{hashed('c')}-c" in names(root), len(names(root)), format_of(root)) == (True, 3, 2)
    with earlier(), pytest.raises(UnsupportedError, match="format 2, this savegame knows up to 1"):
        FileStore(str(root))
    assert [store.find("default", name) for name in ("chosen", "also chosen")] == [(A, 1), (C, 1)]
    store.commit([DeleteThread(A)])
    store.commit([DeleteThread(B), appended(B, 1)])
    store.commit([appended(A, 1)])
    assert names(root) == sorted([f"{space}/{hashed('a')}-a", f"{space}/{hashed('b')}", f"{space}/{hashed('c')}-c"])
    assert list(store.check("default")) == []


def test_nothing_is_made_that_an_earlier_version_would_not_find_before_it_is_kept_out(
    root: Path, earlier: Earlier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with earlier():
        grown(FileStore(str(root)), A, 1)
    store = FileStore(str(root))
    before = sorted(root.rglob("*"))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "put", full)
        with pytest.raises(OutOfSpace):
            store.commit([appended(B, 1, id="chosen")])
        with pytest.raises(OutOfSpace):
            store.commit([appended(B, 1), appended(ThreadKey("other", "c"), 1)])
    assert (sorted(root.rglob("*")), format_of(root)) == (before, 1)
    store.commit([appended(B, 1)])
    assert format_of(root) == 2


def test_a_store_that_became_a_newer_one_gets_no_new_thread(store: FileStore, root: Path) -> None:
    grown(store, A, 1)
    marker = root / "savegame.json"
    marker.write_text(marker.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(UnsupportedError, match="newer"):
        store.commit([appended(B, 1)])
    assert len(names(root)) == 1


def test_a_directory_that_was_renamed_is_reported_and_brought_back(store: FileStore, root: Path) -> None:
    grown(store, A, 2)
    store.commit([appended(A, 3, 2, id="chosen")])
    right = directory(store)
    right.rename(right.with_name(right.name + "-mine"))
    assert [problem.thread_id for problem in store.check("default")] == ["a"]
    assert "renamed" in store.mend("default")[0]
    assert (list(store.check("default")), store.find("default", "chosen"), right.exists()) == ([], (A, 3), True)


@pytest.mark.parametrize("whole", [False, True], ids=["thread", "namespace"])
def test_what_an_earlier_version_makes_that_still_runs_is_found(root: Path, earlier: Earlier, whole: bool) -> None:
    """It does not look at the format again, and believes that there is no such thread."""
    with earlier():
        old = FileStore(str(root))
        if not whole:
            grown(old, D, 1)
    store = FileStore(str(root))
    grown(store, A, 2)
    with earlier():
        old.commit([appended(A, 1, delta=b"other", id="other"), appended(B, 1)])
    assert store.heads("default") == [("a", "a-2"), *([] if whole else [("b", "b-1"), ("d", "d-1")])]
    problems = list(store.check("default"))
    assert {problem.thread_id for problem in problems} == ({"a", "b"} if whole else {"a"})
    assert all("directory" in problem.place for problem in problems)
    store.mend("default")
    assert list(store.check("default")) == []
    assert [name for name, _ in store.heads("default")] == (["a", "b"] if whole else ["a", "b", "d"])
    assert state(store, A, 2) == b"1.2."
    (aside,) = (root / "aside").iterdir()
    assert aside.name.startswith(f"{hashed('default')}-{hashed('a')}-")
    store.commit([DeleteThread(A)])
    assert not any((root / "aside").iterdir())


# -- listings ----------------------------------------------------------------------------------------


def test_a_listing_is_kept_and_never_trusted_for_too_long(root: Path) -> None:
    store = FileStore(str(root), durability="process")
    keys = [ThreadKey("default", f"{number:04}") for number in range(WORTH_KEEPING + 10)]
    for key in keys:
        store.commit([appended(key, 1, agent=key.id[-1])])
    store.lease(keys[3], "me", 60_000_000)
    rows = store.threads("default", limit=1000)
    store.close()
    kept = root / directory_name("default") / "listing.json"
    assert FileStore(str(root)).threads("default", limit=1000) == rows
    other = FileStore(str(root), durability="process")
    other.commit([appended(keys[7], 2, 1)])
    other.commit([DeleteThread(keys[8])])
    third = FileStore(str(root))
    assert third.heads("default")[7:9] == [("0007", "0007-2"), ("0009", "0009-1")]
    kept.write_bytes(kept.read_bytes()[:-100])
    assert FileStore(str(root)).threads("default", limit=1000) == third.threads("default", limit=1000)


# -- removing ----------------------------------------------------------------------------------------


@pytest.mark.requirement("A48", "A76")
def test_what_is_removed_is_in_no_file(store: FileStore, root: Path) -> None:
    """A rewrite, a delete, and a delete with a new beginning in one commit."""
    for key in (A, B, C):
        secret = appended(key, 1, delta=b"secret %s" % key.id.encode(), note=b"secret", blobs=((b"x", b"secret"),))
        store.commit([secret, PutRecord(key, "kind", "name", b"secret"), PutKeyframe(key, 1, b"secret")])
        store.commit([appended(key, 2), PutRecord(key, "kind", "name", None)])
    store.commit([Rewrite(A, drop=(1,), noted=frozenset((1,)), keep_blobs=frozenset())])
    store.commit([DeleteThread(B)])
    store.commit([DeleteThread(C), appended(C, 9)])
    assert [name for name, content in files(root).items() if b"secret" in content or b"c2VjcmV0" in content] == []
    assert not directory(store, B).exists()
    assert [path.name for path in directory(store, C).iterdir()] == ["journal.jsonl"]


def test_compacting_leaves_out_what_was_superseded(store: FileStore) -> None:
    grown(store, A, 2)
    for number in range(20):
        store.commit([PutRecord(A, "kind", "name", b"%d" % number)])
        store.commit([MoveHead(A, number % 2 + 1)])
    before = everything(store, A)
    store.compact(bytes, lambda done, total: None)
    assert len(lines(store)) == 5
    assert everything(store, A) == before


@pytest.mark.requirement("E06", "E12", "E15", "Z45")
def test_a_backup_is_a_store_like_any_other(store: FileStore, tmp_path: Path) -> None:
    grown(store, A, 3)
    store.commit([PutKeyframe(A, 2, b"1.2.")])
    store.backup(str(tmp_path / "copy"), lambda done, total: None)
    with pytest.raises(AlreadyExistsError, match="copy"):
        store.backup(str(tmp_path / "copy"), lambda done, total: None)
    store.commit([appended(A, 4, 3)])
    copy = FileStore(str(tmp_path / "copy"))
    assert state(copy, A, 3) == b"1.2.3."
    assert list(copy.check("default")) == []
    assert copy.commit([appended(A, 4, 3)]) == [4]


# -- several threads in one commit -------------------------------------------------------------------

HEADS_BACK = """
import sys
from savegame.model import ThreadKey
from savegame.store import Append, DeleteThread, MoveHead, PutRecord
from savegame.stores.file import FileStore

store = FileStore(sys.argv[1])
keys = [ThreadKey("default", name) for name in "abc"]
store.commit(
    [MoveHead(key, 1) for key in keys]
    + [PutRecord(keys[0], "kind", "name", b"value"), DeleteThread(ThreadKey("default", "d"))]
    + [Append(ThreadKey("default", "e"), "e-1", 0, b"", b"1.")]
)
print('["done"]')
"""


def is_done(store: FileStore) -> bool:
    """Whether the commit of HEADS_BACK happened; it must have happened whole or not at all."""
    done = ([("a", "a-1"), ("b", "b-1"), ("c", "c-1"), ("e", "e-1")], 1)
    undone = ([("a", "a-2"), ("b", "b-2"), ("c", "c-2"), ("d", "d-2")], 0)
    found = (store.heads("default"), len(store.records(A, "kind").items))
    assert found in (done, undone)
    return found == done


@pytest.mark.skipif(why_no_strace() is not None, reason=why_no_strace() or "")
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "fsync", "rename", "unlink", "mkdir", "rmdir"])
def test_a_commit_to_several_threads_that_is_killed_at_any_moment_is_whole_or_absent(call: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEADS_BACK)
    outcomes = []
    for when in range(1, 40):
        root = tmp_path / f"saves {when}"
        store = FileStore(str(root))
        for name in "abcd":
            grown(store, ThreadKey("default", name), 2)
        places = [root, root / "batch", root / "batch.new", root / "trash", root / directory_name("default")]
        for name in "abcde":
            own = directory(store, ThreadKey("default", name))
            places += [own, own / "journal.jsonl", own / "journal.new"]
        said, _ = run_with_fault(
            [str(script), str(root)],
            call=call,
            error="EIO:signal=KILL",
            when=str(when),
            files=[str(place) for place in places],
            log=tmp_path / "strace.log",
        )
        if said:
            break  # there were fewer calls
        with contextlib.suppress(UnavailableError):  # who may not write cannot finish it, but is told
            is_done(FileStore(str(root), read_only=True))
        outcomes.append(is_done(store))
        assert is_done(FileStore(str(root))) == outcomes[-1]
        assert list(store.check("default")) == []
        assert store.commit([appended(A, 3, 1)]) == [3]
        assert not (root / "batch").exists()
    assert outcomes == sorted(outcomes)
    assert outcomes


# -- interrupts --------------------------------------------------------------------------------------

INTERRUPTED = """
import random, signal, sys
from savegame.store import Append, PutRecord
from savegame.stores.file import FileStore
from savegame.testing.contract.helpers import A, everything

class Interrupt(BaseException):
    pass

armed = False

def strike(*_):
    if armed:
        raise Interrupt

signal.signal(signal.SIGALRM, strike)
store = FileStore(sys.argv[1], durability="process")
chance = random.Random(int(sys.argv[2]))
saved, interrupts = [], 0
for number in range(400):
    row = store.thread(A)
    try:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, 0.0005))
            store.commit([Append(A, f"id {number}", row.head if row else 0, b"", b"x"), PutRecord(A, "kind", f"{number}", b"")])
            saved.append(f"id {number}")
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        interrupts += 1
assert interrupts > 20, interrupts
assert everything(store, A) == everything(FileStore(sys.argv[1]), A)
assert {frame.id for frame in store.frames(A)} >= set(saved)
assert list(store.check("default")) == []
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_interrupt_at_any_moment_leaves_the_store_usable(seed: int, root: Path) -> None:
    """Ctrl-C in the middle of a commit: what returned is there, the index in memory is what the file says."""
    script = [sys.executable, "-X", "faulthandler", "-c", INTERRUPTED, str(root), str(seed)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_snapshot_of_hard_links_stays_as_it_is(tmp_path: Path) -> None:
    with savegame.open(f"file:{tmp_path}/live") as vault:
        vault.thread("t").save({"items": [1]})
        subprocess.run(["cp", "-al", tmp_path / "live", tmp_path / "snapshot"], check=True)
        vault.thread("t").update(append={"items": [2]})
        vault.thread("t").update(append={"items": [3]})
        with savegame.open(f"file:{tmp_path}/snapshot") as snapshot:
            assert snapshot.thread("t").state() == {"items": [1]}
            snapshot.thread("t").update(append={"items": ["other"]})
            assert snapshot.verify().ok
        assert vault.thread("t").state() == {"items": [1, 2, 3]}
        assert vault.verify().ok
