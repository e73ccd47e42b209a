"""Looking after a file store: listings without missing or stale threads, backups beside writers, locks that are let go of."""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from savegame.errors import InvalidInputError, UnavailableError
from savegame.model import ThreadKey
from savegame.store import DeleteThread, PutKeyframe, PutRecord, Rewrite
from savegame.stores.file import FileStore
from savegame.stores.file.disk import directory_name
from savegame.stores.file.threads import WORTH_KEEPING
from savegame.testing.contract.helpers import A, B, C, D, E, appended, everything, grown, no_progress, row_of
from tests.stores.test_file import directory, files, journal


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(str(tmp_path / "saves"))
    yield store
    store.close()


# -- listings ----------------------------------------------------------------------------------------


def test_a_thread_is_listed_whose_first_save_was_killed_once(store: FileStore) -> None:
    """Its directory was there when the others were listed, and does not come a second time."""
    grown(store, A, 1)
    directory(store, B).mkdir()
    os.utime(directory(store).parent, (0, 0))  # long ago
    other = FileStore(store.path)
    assert other.heads("default") == store.heads("default") == [("a", "a-1")]
    grown(store, B, 1)
    for one in (store, other):
        assert one.heads("default") == [("a", "a-1"), ("b", "b-1")]
        assert [row.key for row in one.threads("default").items] == [A, B]


def test_a_first_save_that_fails_leaves_no_directory(store: FileStore) -> None:
    grown(store, A, 1)
    too_long = appended(B, 1, delta=bytes(3 << 20))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        for changes in ([too_long], [appended(C, 1), too_long]):
            with pytest.raises(UnavailableError):
                store.commit(changes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not directory(store, B).exists()
    assert not directory(store, C).exists()
    store.commit([appended(C, 1), too_long])
    assert [name for name, _ in store.heads("default")] == ["a", "b", "c"]


def test_a_deleted_thread_is_in_no_listing(tmp_path: Path) -> None:
    """Not in the one that is kept, not in half of one, and no cache writes the thread down again."""
    root = tmp_path / "saves"
    space = root / directory_name("default")
    keys = [ThreadKey("default", f"secret {number}") for number in range(3)]
    store = FileStore(str(root), durability="process")
    for key in [*keys, *(ThreadKey("default", f"{number:04}") for number in range(WORTH_KEEPING))]:
        store.commit([appended(key, 1, id=store.new_id(key), agent=key.id)])
    store.heads("default")
    (space / "listing.json.0123").write_bytes((space / "listing.json").read_bytes()[:-10])  # a writer was killed
    late = FileStore(str(root), durability="process")
    late.heads("default")
    for number in range(WORTH_KEEPING):  # so that it has something to write down
        late.commit([appended(ThreadKey("default", f"{number:04}"), 2, 1)])
    other = FileStore(str(root), durability="process")
    other.commit([DeleteThread(keys[0])])
    other.commit([DeleteThread(keys[1]), DeleteThread(keys[2]), appended(keys[2], 1, id="anew")])
    late.close()
    other.heads("default")
    other.close()
    store.heads("default")
    store.close()
    assert [name for name, content in files(root).items() if b"secret 0" in content or b"secret 1" in content] == []
    assert (space / "listing.json").read_bytes().count(b"secret 2") == 1
    assert len(FileStore(str(root)).heads("default")) == WORTH_KEEPING + 1


# -- backups -----------------------------------------------------------------------------------------


def needed(root: Path) -> dict[str, bytes]:
    return {name: content for name, content in files(root).items() if name != "lock"}


def test_others_write_while_a_backup_is_made(store: FileStore, tmp_path: Path) -> None:
    """In every way that there is; the copy is the store at its end, byte for byte."""
    for key in (A, B, C, D):
        grown(store, key, 3)
        store.commit([PutKeyframe(key, 2, b"1.2."), PutRecord(key, "kind", "name", b"value")])
    with journal(store, D).open("ab") as file:
        file.write(b"torn")
    other = FileStore(store.path)
    once: list[Callable[[], object]] = [
        lambda: other.commit([appended(A, 4, 3), PutRecord(A, "kind", "name", b"another")]),
        lambda: other.commit([Rewrite(B, drop=(1, 2), rebase=((3, 0, b"1.2.3."),))]),
        lambda: other.commit([DeleteThread(C)]),
        lambda: other.commit([appended(D, 4, 3), appended(E, 1), PutKeyframe(E, 1, b"1.")]),
        lambda: other.lease(A, "me", 1),
        lambda: other.commit([PutKeyframe(A, 2, None), PutKeyframe(A, 3, b"1.2.3.")]),
    ]

    def meanwhile(done: int, total: int) -> None:
        for _ in range(2 if done >= total - 2 else 0):
            once.pop(0)()

    store.backup(str(tmp_path / "copy"), meanwhile)
    assert once == []
    assert needed(tmp_path / "copy") == needed(Path(store.path))
    assert not directory(FileStore(str(tmp_path / "copy")), C).exists()
    assert other.commit([appended(A, 5, 4)]) == [5]


def test_a_backup_is_of_one_moment(store: FileStore, tmp_path: Path) -> None:
    grown(store, A, 1)
    grown(store, B, 1)
    stop = threading.Event()

    def alternate() -> None:
        writer = FileStore(store.path, durability="process")
        number = 1
        while not stop.wait(0.001):  # so that another process can get the lock
            number += 1
            writer.commit([appended(A, number, number - 1, id=writer.new_id(A), fresh=True)])
            writer.commit([appended(B, number, number - 1, id=writer.new_id(B), fresh=True)])
            if number % 7 == 0:
                writer.commit([Rewrite(key, drop=(number - 1,), rebase=((number, number - 2, b"x"),)) for key in (A, B)])
        writer.close()

    working = threading.Thread(target=alternate)
    working.start()
    try:
        for number in range(5):
            store.backup(str(tmp_path / f"{number}"), no_progress)
    finally:
        stop.set()
        working.join()
    for number in range(5):
        copy = FileStore(str(tmp_path / f"{number}"))
        assert row_of(copy, A).last - row_of(copy, B).last in (0, 1)
        assert list(copy.check("default")) == []
        assert everything(copy, A)
        copy.close()


def test_a_backup_passes_over_what_is_no_file(store: FileStore, tmp_path: Path) -> None:
    grown(store, A, 1)
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    theirs.chmod(0o644)
    for place in (Path(store.path), directory(store)):
        (place / "link").symlink_to(theirs)
        os.mkfifo(place / "pipe")
    store.backup(str(tmp_path / "copy"), no_progress)
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o644
    assert {path.name for path in (tmp_path / "copy").rglob("*")} & {"link", "pipe"} == set()


def test_a_backup_does_not_lie_in_the_store_itself(store: FileStore) -> None:
    grown(store, A, 1)
    before = files(Path(store.path))
    with pytest.raises(InvalidInputError, match="outside"):
        store.backup(f"{store.path}/copy", no_progress)
    assert files(Path(store.path)) == before


def test_an_error_of_the_callers_own_is_not_one_of_the_disk(store: FileStore, tmp_path: Path) -> None:
    grown(store, A, 1)

    def broken(done: int, total: int) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        store.backup(str(tmp_path / "copy"), broken)
    assert [path.name for path in tmp_path.iterdir()] == ["saves"]


# -- locks and errors --------------------------------------------------------------------------------


def test_an_interrupt_while_unlocking_lets_go_of_the_lock(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting process gets the lock before this process's next operation."""
    grown(store, A, 1)
    flock = fcntl.flock

    def interrupted(handle: int, how: int) -> None:
        if how == fcntl.LOCK_UN:
            raise KeyboardInterrupt
        flock(handle, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.commit([appended(A, 2, 1)])
    with (Path(store.path) / "lock").open() as lock:
        flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert store.commit([appended(A, 3, 2)]) == [3]


def test_a_write_inside_a_write_is_refused(store: FileStore) -> None:
    """By a signal handler, say: the lines of the two would be mixed."""
    grown(store, A, 1)

    def write(delta: bytes) -> bytes:
        store.commit([appended(A, 2, 1)])
        return delta

    with pytest.raises(UnavailableError, match="inside a write"):
        store.compact(write, no_progress)
    assert store.commit([appended(A, 2, 1)]) == [2]
