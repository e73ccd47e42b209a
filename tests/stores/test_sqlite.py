"""The SQLite store: the contract, and what only it can get wrong."""

from __future__ import annotations

import dis
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import apsw
import pytest

import savegame
from savegame.errors import (
    AlreadyExistsError,
    Busy,
    ClosedError,
    ConflictError,
    CorruptionError,
    Fenced,
    InvalidInputError,
    OutOfSpace,
    SavegameError,
    UnavailableError,
    UnsupportedError,
)
from savegame.model import ThreadKey, ThreadRow
from savegame.store import ANY, Append, DeleteThread, MoveHead, PutRecord, Store, StoreChange
from savegame.stores import sqlite_file as file
from savegame.stores.sqlite import SQLiteStore
from savegame.stores.sqlite import changes as sqlite_changes
from savegame.stores.sqlite.group import Ticket
from savegame.testing import StoreContract
from savegame.testing.faults import PATIENCE_S


class TestSQLiteStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SQLiteStore(str(tmp_path / "store.db"))
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, SQLiteStore)
        store.close()
        return SQLiteStore(store.path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(str(tmp_path / "v.db"))
    yield store
    store.close()


def frame(key: ThreadKey, name: str, **more: object) -> Append:
    return Append(key, name, 0, b"meta", b"delta", **more)  # type: ignore[arg-type]


# -- errors ----------------------------------------------------------------------------------------

WANTED: list[tuple[type[apsw.Error], type[SavegameError]]] = [
    (apsw.FullError, OutOfSpace),
    (apsw.BusyError, UnavailableError),
    (apsw.ProtocolError, UnavailableError),
    (apsw.LockedError, UnavailableError),
    (apsw.InterruptError, UnavailableError),
    (apsw.NoMemError, UnavailableError),
    (apsw.CorruptError, CorruptionError),
    (apsw.ConstraintError, CorruptionError),
    (apsw.NotADBError, CorruptionError),
    (apsw.ReadOnlyError, UnsupportedError),
    (apsw.CantOpenError, UnavailableError),
    (apsw.PermissionsError, UnavailableError),
    (apsw.AuthError, UnavailableError),
    (apsw.TooBigError, UnsupportedError),
    (apsw.ConnectionClosedError, ClosedError),
    (apsw.CursorClosedError, ClosedError),
    (apsw.SQLError, CorruptionError),
    (apsw.IOError, UnavailableError),
]


def test_the_table_of_errors_is_the_one_tested_here() -> None:
    assert [(theirs, ours) for theirs, ours, _ in file._MAPPING] == WANTED


@pytest.mark.requirement("B19")
@pytest.mark.parametrize(("theirs", "ours"), WANTED, ids=lambda kind: kind.__name__)
def test_each_error_of_sqlite_becomes_ours(theirs: type[apsw.Error], ours: type[SavegameError]) -> None:
    with pytest.raises(ours) as raised, file.translated("/somewhere/v.db"):
        raise theirs("what SQLite said")
    assert type(raised.value) is ours
    assert isinstance(raised.value.__cause__, theirs)
    assert "/somewhere/v.db" in str(raised.value)
    assert "what SQLite said" in str(raised.value)


def test_every_error_that_sqlite_has_is_either_translated_or_can_only_be_a_mistake_of_ours() -> None:
    """`connection()` hands the database to users: their own mistakes reach them as apsw's errors."""
    mistakes = {
        "AbortError", "BackupError", "BindingsError", "ConnectionNotClosedError",
        "CouldntSetupError", "EmptyError", "ExecTraceAbort", "ExecutionCompleteError",
        "ExtensionLoadingError", "ForkingViolationError", "FormatError", "IncompleteExecutionError", "InternalError",
        "InvalidContextError", "JSONBError", "MismatchError", "MisuseError", "NoFTS5Error", "NoLFSError",
        "NotFoundError", "NoticeError", "RangeError", "SQLError", "SchemaChangeError",
        "ThreadingViolationError", "VFSFileClosedError", "VFSNotImplementedError",
    }  # fmt: skip
    there = {kind.__name__ for kind in vars(apsw).values() if isinstance(kind, type) and issubclass(kind, apsw.Error)} - {
        "Error"
    }
    assert there - {theirs.__name__ for theirs, _ in WANTED} <= mistakes


# -- groups ----------------------------------------------------------------------------------------


Jobs: TypeAlias = list[Ticket[Sequence[StoreChange], list[int]]]


def in_one_group(store: SQLiteStore, jobs: Sequence[Sequence[StoreChange]]) -> list[BaseException | None]:
    """Commit several jobs so that they share one transaction: a first writer is held up until all of them wait."""
    outcomes: list[BaseException | None] = [None] * len(jobs)

    def commit(number: int) -> None:
        try:
            store.commit(jobs[number])
        except (SavegameError, apsw.Error) as error:
            outcomes[number] = error

    with store.connection():
        workers = [
            threading.Thread(target=lambda: store.commit([frame(ThreadKey("lead", "lead"), f"lead {time.monotonic_ns()}")]))
        ]
        workers[0].start()
        _until(lambda: store._group._led and not store._group._queue)
        for number in range(len(jobs)):
            workers.append(threading.Thread(target=commit, args=(number,)))
            workers[-1].start()
            _until(lambda wanted=number + 1: len(store._group._queue) == wanted)  # type: ignore[misc]
    for worker in workers:
        worker.join(PATIENCE_S)
        assert not worker.is_alive()
    return outcomes


def _until(true: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if true():
            return
        time.sleep(0.001)
    raise AssertionError("waited too long")


def following(store: SQLiteStore, key: ThreadKey) -> Append:
    """What plainly comes next in a thread."""
    row = store.thread(key)
    assert row is not None
    return Append(key, store.new_id(key), row.head, b"meta", b"delta", expect=row.head_id, fresh=True)


@pytest.mark.parametrize("plain", [True, False], ids=["one change", "several"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), apsw.IOError("disk I/O error"), UnavailableError("gone")])
def test_a_save_that_fails_at_its_commit_leaves_nothing_behind(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, error: BaseException, plain: bool
) -> None:
    key = ThreadKey("n", "t")
    store.commit([frame(key, "one")])
    appended = following(store, key)
    job: list[StoreChange] = [appended] if plain else [appended, PutRecord(key, "kind", "name", b"value")]

    def fail(db: file.Connection, *_: object) -> None:
        assert db.in_transaction is not plain
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(*((sqlite_changes, "_inserted") if plain else (store._connections, "commit")), fail)
        with pytest.raises(UnavailableError if isinstance(error, Exception) else KeyboardInterrupt) as raised:
            store.commit(job)
    if plain and isinstance(error, apsw.IOError):
        assert raised.value.unknown
        assert appended.id in str(raised.value)
    assert not store._connections.writer().in_transaction
    assert store.find("n", appended.id) is None
    assert store.commit(job)[0] == 2


@pytest.mark.parametrize("plain", [True, False], ids=["one change", "several"])
def test_a_signal_handler_that_saves_inside_a_save_is_refused(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """It would wait for itself, or break the transaction that it interrupts."""
    key, other = ThreadKey("n", "t"), ThreadKey("n", "other")
    for name in (key, other):
        store.commit([frame(name, name.id)])
    refused: list[UnavailableError] = []

    def handler(*_: object) -> None:
        for attempt in (lambda: store.commit([following(store, other)]), lambda: store.lease(other, "me", 1_000_000)):
            with pytest.raises(UnavailableError, match="a write inside a write") as raised:
                attempt()
            refused.append(raised.value)

    verb = "look" if plain else "commit"
    finish = getattr(store._connections, verb)

    def interrupted(*db: file.Connection) -> None:
        signal.raise_signal(signal.SIGTERM)
        finish(*db)

    monkeypatch.setattr(store._connections, verb, interrupted)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        job = following(store, key)
        store.commit([job] if plain else [job, PutRecord(key, "kind", "name", b"value")])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(refused) == 2
    assert not any(error.unknown for error in refused)
    assert store.find("n", job.id) == (key, 2)
    assert list(store.check("n")) == []
    monkeypatch.undo()
    assert store.commit([following(store, other)]) == [2]


def test_a_signal_handler_does_not_wait_for_whom_it_interrupts(store: SQLiteStore) -> None:
    """The save that it interrupts waits in a group, whose leader waits for the file."""
    first, mine, other = (ThreadKey("n", name) for name in ("first", "mine", "other"))
    free, held = threading.Event(), threading.Event()
    refused: list[UnavailableError] = []

    def hold() -> None:
        with store.connection():
            held.set()
            assert free.wait(PATIENCE_S)

    def interrupt() -> None:
        _until(lambda: len(store._group._queue) == 1)
        os.kill(os.getpid(), signal.SIGUSR1)

    def handler(*_: object) -> None:
        try:
            for attempt in (lambda: store.commit([frame(other, "other")]), lambda: store.lease(other, "me", 1_000_000)):
                with pytest.raises(UnavailableError, match="a write inside a write") as raised:
                    attempt()
                refused.append(raised.value)
        finally:
            free.set()

    workers = [threading.Thread(target=hold), threading.Thread(target=store.commit, args=([frame(first, "first")],))]
    workers[0].start()
    assert held.wait(PATIENCE_S)
    workers[1].start()
    _until(lambda: store._group._led)
    workers.append(threading.Thread(target=interrupt))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        workers[2].start()
        assert store.commit([frame(mine, "mine")]) == [1]
    finally:
        signal.signal(signal.SIGUSR1, before)
    for worker in workers:
        worker.join(PATIENCE_S)
    assert len(refused) == 2
    assert store.find("n", "other") is None
    assert store.commit([frame(other, "other")]) == [1]


def test_a_save_that_fails_inside_a_group_leaves_nothing_behind(store: SQLiteStore) -> None:
    there, new = ThreadKey("n", "there"), ThreadKey("n", "new")
    store.commit([frame(there, "taken")])
    outcomes = in_one_group(store, [[frame(new, "taken")], [frame(ThreadKey("n", "other"), "fine")]])
    assert isinstance(outcomes[0], AlreadyExistsError)
    assert outcomes[1] is None
    assert store.thread(new) is None
    assert store.find("n", "fine") is not None


@pytest.mark.parametrize("where", ["delta", "blobs"])
def test_a_value_that_is_too_large_for_sqlite_is_the_affair_of_its_caller_alone(store: SQLiteStore, where: str) -> None:
    store._connections.writer().limit(apsw.SQLITE_LIMIT_LENGTH, 100_000)
    keys = [ThreadKey("n", name) for name in ("large", "small", "other")]
    for key in keys:
        store.commit([frame(key, key.id)])
    large, *others = [following(store, key) for key in keys]
    body = bytes(200_000)
    large = large._replace(delta=body) if where == "delta" else large._replace(blobs=((b"x", body),))
    outcomes = in_one_group(store, [[others[0]], [large], [others[1]]])
    assert isinstance(outcomes[1], UnsupportedError)
    assert [outcomes[0], outcomes[2]] == [None, None]
    assert [row.frames if row else 0 for row in map(store.thread, keys)] == [1, 2, 2]
    assert list(store.check("n")) == []


@pytest.mark.parametrize("error", [ClosedError("closed"), UnavailableError("gone", unknown=True), apsw.MisuseError("misuse")])
def test_each_of_a_group_that_fails_as_a_whole_gets_an_error_of_its_own(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Raising an error writes the traceback into it, so each caller needs a copy."""
    write = store._at_once

    def failing(changes: Sequence[StoreChange]) -> list[int]:
        if changes[0].key.namespace == "n":
            raise error
        return write(changes)

    monkeypatch.setattr(store, "_at_once", failing)
    jobs = [[PutRecord(ThreadKey("n", name), "kind", "name", b"")] for name in ("a", "b", "c")]
    outcomes = in_one_group(store, jobs)
    assert {type(outcome) for outcome in outcomes} == {type(error)}
    assert {str(outcome) for outcome in outcomes} == {str(error)}
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert {getattr(outcome, "unknown", None) for outcome in outcomes} == {getattr(error, "unknown", None)}


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 64, 65, 100, 129])
def test_a_group_of_any_size_is_written_by_one_statement(
    count: int, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [ThreadKey("n", str(number)) for number in range(count)]
    for key in keys:
        store.commit([frame(key, f"first of {key.id}")])
    group: Jobs = [Ticket([following(store, key)._replace(delta=f"of {key.id}".encode())]) for key in keys]
    monkeypatch.setattr(sqlite_changes.SQLiteTransaction, "make", None)  # which writes one after the other
    run, ran = store._connections.writer().run, []
    monkeypatch.setattr(store._connections.writer(), "run", lambda *statement: (ran.append(statement), run(*statement)))
    store._flush(group)
    assert len(ran) == 1
    assert [(pending.outcome, pending.error) for pending in group] == [([2], None)] * count
    for key, pending in zip(keys, group, strict=True):
        assert store.thread(key) == ThreadRow(key, None, 2, pending.job[0].id, 2, 0, 2, None)  # type: ignore[union-attr]
        assert store.chain(key, 2).deltas == [b"delta", f"of {key.id}".encode()]
    assert list(store.check("n")) == []


def test_a_group_with_one_that_came_too_late_is_written_without_it(store: SQLiteStore) -> None:
    """Another process was quicker in one thread, which the rows that are remembered do not tell."""
    keys = [ThreadKey("n", name) for name in ("first", "late", "last")]
    for key in keys:
        store.commit([frame(key, f"of {key.id}")])
    group: Jobs = [Ticket([following(store, key)]) for key in keys]
    other = SQLiteStore(store.path)
    other.commit([following(other, keys[1])])
    other.close()
    store._flush(group)
    assert [pending.outcome for pending in group] == [[2], None, [2]]
    assert [type(pending.error) for pending in group] == [type(None), ConflictError, type(None)]
    assert [len(store.frames(key)) for key in keys] == [2, 2, 2]
    assert list(store.check("n")) == []
    assert store.commit([following(store, keys[1])]) == [3]


@pytest.mark.parametrize("limit", ["ONE_STATEMENT", "AT_ONCE_BYTES"])
def test_a_group_that_is_too_large_for_one_statement_is_written_all_the_same(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(sqlite_changes, limit, 2)
    keys = [ThreadKey("n", str(number)) for number in range(3)]
    for key in keys:
        store.commit([frame(key, f"of {key.id}")])
    group: Jobs = [Ticket([following(store, key)]) for key in keys]
    store._flush(group)
    assert [(pending.outcome, pending.error) for pending in group] == [([2], None)] * 3
    assert list(store.check("n")) == []


def test_a_frame_that_is_in_the_way_is_damage_of_its_thread_alone(store: SQLiteStore) -> None:
    keys = [ThreadKey("n", name) for name in ("first", "damaged", "last")]
    for key in keys:
        store.commit([frame(key, f"of {key.id}")])
    with store.connection() as db:
        columns = "space, x'00', base, run, meta, meta_sum, note, note_sum, delta, delta_sum"
        db.execute(f"INSERT INTO frame SELECT (key >> 32 << 32) | 2, {columns} FROM frame WHERE id = 'of damaged'")
    for key in (keys[0], keys[2]):
        store.commit([following(store, key)])
    with pytest.raises(CorruptionError, match="frame 2 exists already"):
        store.commit([following(store, keys[1])])
    group: Jobs = [Ticket([following(store, key)]) for key in keys]
    store._flush(group)
    assert [pending.outcome for pending in group] == [[3], None, [3]]
    assert [type(pending.error) for pending in group] == [type(None), CorruptionError, type(None)]


def test_nobody_of_a_group_is_told_of_success_before_it_is_durable(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The COMMIT is interrupted, and so is telling the others."""
    group: Jobs = [Ticket([frame(ThreadKey("n", name), name)]) for name in ("one", "two")]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store._connections, "commit", interrupt)
    monkeypatch.setattr(store, "_failed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store._flush(group)
    assert [pending.outcome for pending in group] == [None, None]


def test_a_save_that_had_to_wait_renews_its_lease_from_when_it_was_written(store: SQLiteStore) -> None:
    key, ttl_us = ThreadKey("n", "t"), 2_000_000
    store.commit([frame(key, "one")])
    epoch = store.lease(key, "me", ttl_us).epoch
    store.commit([following(store, key)._replace(epoch=epoch, renew_us=ttl_us)])
    renewing = following(store, key)._replace(epoch=epoch, renew_us=ttl_us)
    other = apsw.Connection(store.path)
    other.execute("BEGIN IMMEDIATE")
    saving = threading.Thread(target=store.commit, args=([renewing],))
    saving.start()
    time.sleep(0.5)
    released = store.clock()
    other.execute("COMMIT")
    other.close()
    saving.join(PATIENCE_S)
    row = store.thread(key)
    assert row is not None
    assert row.head_id == renewing.id
    assert row.lease is not None
    assert row.lease.expires >= released + ttl_us


def test_a_record_that_is_refused_inside_a_group_prolongs_no_lease(store: SQLiteStore) -> None:
    key = ThreadKey("n", "t")
    epoch = store.lease(key, "me", 1_000_000_000).epoch
    record = PutRecord(key, "kind", "name", b"value", epoch=epoch, absent=True, renew_us=2_000_000_000)
    store.commit([record._replace(renew_us=None)])
    before = store.thread(key)
    outcomes = in_one_group(store, [[record], [frame(ThreadKey("n", "other"), "fine")]])
    assert isinstance(outcomes[0], AlreadyExistsError)
    assert outcomes[1] is None
    assert store.thread(key) == before


def test_a_batch_that_fails_inside_a_group_does_not_mix_up_namespaces(store: SQLiteStore) -> None:
    """A namespace whose first batch was rolled back has no number; the next namespace gets that number."""
    failed, fine = ThreadKey("failed", "t"), ThreadKey("fine", "t")
    outcomes = in_one_group(store, [[frame(failed, "one"), frame(failed, "one", expect=ANY)], [frame(fine, "two")]])
    assert isinstance(outcomes[0], AlreadyExistsError)
    assert outcomes[1] is None
    assert store.thread(failed) is None
    assert store.find("failed", "two") is None
    assert store.threads("failed").items == []
    store.commit([frame(failed, "three")])
    assert [row.key for row in store.threads("failed").items] == [failed]
    assert [row.key for row in store.threads("fine").items] == [fine]
    assert list(store.check("failed")) == list(store.check("fine")) == []


def test_a_change_that_cannot_be_stored_leaves_no_transaction_open(store: SQLiteStore) -> None:
    key = ThreadKey("n", "t")
    store.commit([frame(key, "one")])
    wrong = PutRecord(key, "kind", "name", "text where bytes belong")  # type: ignore[arg-type]
    with pytest.raises(Exception):  # noqa: B017 - a mistake of the caller's; what matters comes after it
        store.commit([frame(key, "two", expect=ANY), wrong])
    assert not store._connections.writer().in_transaction
    other = SQLiteStore(store.path)
    other.commit([frame(key, "three", expect=ANY)])
    other.close()
    store.commit([frame(key, "four", expect=ANY)])
    assert [one.id for one in store.frames(key)] == ["one", "three", "four"]


# -- interrupts ------------------------------------------------------------------------------------

INTERRUPTED = """
import random, signal, sys, threading
import savegame

class Interrupt(BaseException):
    pass

armed = False

def strike(*_):
    if armed:
        raise Interrupt

signal.signal(signal.SIGALRM, strike)
vault = savegame.open(sys.argv[1], durability="process")
other = savegame.open(sys.argv[1], durability="process")
chance = random.Random(int(sys.argv[2]))
saved, interrupts = [], 0
stop = threading.Event()

def beside():
    while not stop.is_set():
        try:
            vault.thread("beside").save(1, force=True)
        except savegame.UnavailableError:  # it shared a transaction with the one that was interrupted
            pass

worker = threading.Thread(target=beside, daemon=True)
if sys.argv[3] == "beside":
    worker.start()
for number in range(300):
    name = f"save {number}"
    try:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.0015))
            vault.thread("t").update(append={"items": [number]}, id=name)
            vault.thread("t").state("head~1") if number > 2 else None
            saved.append(name)
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        interrupts += 1
    if number % 20 == 0:
        other.thread("other").save(number, force=True)  # the write lock was released
        saved.append(vault.thread("t").update(append={"items": ["between"]}).id)
stop.set()
if worker.is_alive():
    worker.join()
assert interrupts > 20, interrupts
for name in saved:
    assert vault.find(name) is not None, name
assert vault.verify().ok
assert not vault.store._connections.writer().in_transaction
vault.close()
other.close()
"""


@pytest.mark.parametrize(("seed", "beside"), [(1, "alone"), (2, "alone"), (3, "beside")])
def test_an_interrupt_at_any_moment_leaves_the_vault_usable(seed: int, beside: str, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a save: no lock stays held, no transaction open, nothing acknowledged is lost."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", INTERRUPTED, str(tmp_path / "v.db"), str(seed), beside],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with savegame.open(tmp_path / "v.db") as vault:
        assert vault.verify().ok


A = ThreadKey("default", "a")


def test_what_another_process_wrote_is_noticed(tmp_path: Path) -> None:
    """A store remembers rows that it wrote; the file decides."""
    one, two = SQLiteStore(str(tmp_path / "s.db")), SQLiteStore(str(tmp_path / "s.db"))
    one.commit([Append(A, one.new_id(A), 0, b"", b"1.", fresh=True)])
    for turn in range(2, 30):
        mine, other = (one, two) if turn % 3 else (two, one)
        head = other.thread(A)
        assert head is not None
        seqs = mine.commit([Append(A, mine.new_id(A), head.head, b"", b"%d." % turn, expect=head.head_id, fresh=True)])
        assert seqs == [turn]
        with pytest.raises(ConflictError):
            other.commit([Append(A, other.new_id(A), head.head, b"", b"x.", expect=head.head_id, fresh=True)])
    two.commit([DeleteThread(A)])
    two.commit([Append(A, two.new_id(A), 0, b"", b"again", fresh=True)])
    with pytest.raises(ConflictError):
        one.commit([Append(A, one.new_id(A), 29, b"", b"x", expect=one.new_id(A), fresh=True)])
    lease = two.lease(A, "two", 60_000_000)
    row = one.thread(A)
    assert row is not None
    with pytest.raises(Busy):
        one.commit([Append(A, one.new_id(A), 1, b"", b"x", expect=row.head_id, fresh=True)])
    assert one.commit([Append(A, one.new_id(A), 1, b"", b"x", expect=row.head_id, epoch=lease.epoch, fresh=True)]) == [2]
    one.close()
    two.close()


def test_a_new_record_is_put_beside_what_another_process_left(tmp_path: Path) -> None:
    """In one statement if the remembered row is still there, else by the rules."""
    one, two = SQLiteStore(str(tmp_path / "s.db")), SQLiteStore(str(tmp_path / "s.db"))

    def put(store: SQLiteStore, name: str, **more: Any) -> None:
        assert store.commit([PutRecord(A, "kind", name, name.encode(), absent=True, **more)]) == [0]

    def names() -> list[str]:
        assert all(record.value == record.name.encode() for record in two.records(A, "kind").items)
        return [record.name for record in one.records(A, "kind").items]

    one.commit([Append(A, one.new_id(A), 0, b"", b"1.", fresh=True)])
    put(one, "a")
    row = two.thread(A)
    assert row is not None
    two.commit([Append(A, two.new_id(A), 1, b"", b"2.", expect=row.head_id, fresh=True)])
    put(one, "b")
    for store in (one, two):
        with pytest.raises(AlreadyExistsError):
            put(store, "b")
    assert names() == ["a", "b"]
    two.commit([DeleteThread(A)])
    put(one, "c")
    assert names() == ["c"]
    two.commit([DeleteThread(A)])
    two.commit([Append(A, two.new_id(A), 0, b"", b"again", fresh=True)])
    put(one, "d")
    assert names() == ["d"]
    lease = two.lease(A, "two", 60_000_000)
    with pytest.raises(Fenced):
        put(one, "e", epoch=lease.epoch + 1)
    put(one, "e", epoch=lease.epoch)
    put(one, "f")
    assert names() == ["d", "e", "f"]
    one.close()
    two.close()


def test_what_was_rolled_back_is_not_remembered(store: SQLiteStore) -> None:
    store.commit([Append(A, store.new_id(A), 0, b"", b"1.", fresh=True)])
    head = store.thread(A)
    assert head is not None

    def fail() -> None:
        with store.connection():
            store.commit([Append(A, store.new_id(A), 1, b"", b"2.", expect=head.head_id, fresh=True)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.connection() as db:
        db.execute("SAVEPOINT mine")
        store.commit([Append(A, store.new_id(A), 1, b"", b"2.", expect=head.head_id, fresh=True)])
        store.lease(A, "me", 60_000_000)
        db.execute("ROLLBACK TO mine")
        store.commit([Append(A, store.new_id(A), 1, b"", b"b.", expect=head.head_id, fresh=True)])
    assert b"".join(store.chain(A, 2).deltas) == b"1.b."
    second = store.thread(A)
    assert second is not None
    assert (second.head, second.lease) == (2, None)
    assert store.commit([Append(A, store.new_id(A), 2, b"", b"c.", expect=second.head_id, fresh=True)]) == [3]
    assert list(store.check("default")) == []


# -- Ctrl-C between any two steps --------------------------------------------------------------------


def interrupted_at_every_step(work: Callable[[], object], *modules: str) -> int:
    """Do something over and over, interrupted once, in our code or contextlib, each time one step later; how often that was.

    A step is a call: when a function begins, and after it returns, Python looks whether a signal has come.
    """
    for step in range(10_000):
        left = step

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if (module := _module(frame.f_code.co_filename)) not in modules and not module.endswith("/contextlib"):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_lasti in _after_calls(frame.f_code):
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for one such frame when tracing begins, not later
        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        if left >= 0:
            return step
    raise AssertionError("it never came to its end")


@cache
def _module(file: str) -> str:
    """The end of a file's path: what is asked at each call must cost next to nothing."""
    return "/".join(Path(file).with_suffix("").parts[-2:])


@cache
def _after_calls(code: CodeType) -> frozenset[int]:
    """Where the instructions are that come next after the beginning of a function, or after a call."""
    names = [dis.opname[op] for op in code.co_code[::2]]
    found, last = set(), ""
    for at, name in enumerate(names):
        if last == "RESUME" or (last.startswith("CALL") and "INTRINSIC" not in last):
            found.add(2 * at)
        last = last if name == "CACHE" else name
    return frozenset(found)


def test_an_interrupted_lease_does_not_stop_its_thread_from_writing(store: SQLiteStore) -> None:
    key = ThreadKey("n", "t")
    store.commit([frame(key, "one")])

    def lease() -> None:
        store.lease(key, "me", 0)
        assert not store._connections.inside

    assert interrupted_at_every_step(lease, "sqlite/connections") > 10
    assert not store._connections.inside
    store.commit([frame(key, "two", expect=ANY)])


def test_an_interrupted_save_is_there_or_not_and_the_next_one_works(store: SQLiteStore) -> None:
    """Of a single writer, and so without the group, which holds interrupts back."""
    key = ThreadKey("n", "t")
    store.commit([frame(key, "one")])
    ids: list[str] = []

    def save() -> None:
        assert not store._connections.inside
        change = following(store, key)
        ids.append(change.id)
        store.commit([change])

    assert interrupted_at_every_step(save, "sqlite/store", "sqlite/connections", "sqlite/changes") > 20
    beside = threading.Thread(target=save)
    beside.start()
    beside.join(PATIENCE_S)
    assert not beside.is_alive()
    there = [found.id for found in store.frames(key)]
    assert there[0] == "one"
    assert set(there[1:]) < set(ids)
    assert there[-2:] == ids[-2:]
    assert list(store.check("n")) == []


def test_an_interrupted_read_is_not_counted_for_ever(store: SQLiteStore) -> None:
    key = ThreadKey("n", "t")
    store.commit([frame(key, "one")])
    assert interrupted_at_every_step(lambda: store.thread(key), "sqlite/connections") > 10
    assert store._connections._reading == 0
    assert store.thread(key) is not None


def test_upkeep_is_no_part_of_a_transaction(tmp_path: Path) -> None:
    with savegame.open(tmp_path / "v.db") as vault:
        vault.thread("t").save({"n": 1})
        with vault.connection():
            vault.thread("t").save({"n": 2})
            for verb in (vault.compact, lambda: vault.backup(tmp_path / "backup.db")):
                with pytest.raises(InvalidInputError, match=r"outside connection\(\)"):
                    verb()
        assert vault.thread("t").state() == {"n": 2}
        vault.compact()


def test_an_interrupted_refusal_leaves_nothing_open_and_nothing_remembered(store: SQLiteStore) -> None:
    """The first of two changes was made, the second is refused; Ctrl-C comes while the first is taken back."""
    key = ThreadKey("n", "t")
    store.commit([frame(key, "one")])
    store.commit([frame(key, "two", expect="one"), PutRecord(key, "kind", "name", b"x")])
    moments = 0

    def refused() -> None:
        nonlocal moments
        moments += 1
        writer = store._connections._writer
        assert writer is not None
        assert not writer.in_transaction
        with pytest.raises(AlreadyExistsError):
            store.commit([MoveHead(key, 1), PutRecord(key, "kind", "name", b"y", absent=True)])

    assert interrupted_at_every_step(refused, "sqlite/store", "sqlite/connections", "sqlite/changes", "stores/rules") > 20
    assert moments > 20
    row = store.thread(key)
    assert row is not None
    assert (row.head_id, row.last) == ("two", 2)
