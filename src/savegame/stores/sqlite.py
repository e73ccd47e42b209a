"""Threads in one SQLite file, through apsw: WAL, one writer at a time, many readers, several processes.

One connection writes, in BEGIN IMMEDIATE transactions that callers share (`_group.py`); a small pool of connections
reads (`_sqlite_connections.py`). The file itself is made and checked in `_sqlite_file.py`, damage is found and set aside
in `_sqlite_upkeep.py`, the statements are in sql/sqlite/queries.sql. Touches store, frames, _rows and those.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final

import apsw

from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
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
from savegame.frames import checksum, pack_id, thread_salt, unpack_id
from savegame.model import Chain, Frame, Lease, Page, Problem, Record, ThreadKey, ThreadRow
from savegame.store import (
    ANY,
    Append,
    Capability,
    DeleteThread,
    MoveHead,
    PutKeyframe,
    PutNote,
    PutRecord,
    Rewrite,
    Store,
    StoreChange,
)
from savegame.stores import _sqlite_file as file
from savegame.stores import _sqlite_upkeep as sqlite_upkeep
from savegame.stores._group import Group, Pending
from savegame.stores._rows import (
    EMPTY_ROW,
    SEQ_MASK,
    Row,
    blob_checksum,
    damaged,
    meta_checksum,
    read_frame,
    read_thread,
    record_checksum,
    space_checksum,
    thread_values,
)
from savegame.stores._sqlite_connections import Connections
from savegame.stores._sqlite_file import SQL, all_rows, id_of, one_row

SYNCHRONOUS: Final = {"power": 2, "process": 1}


def open_url(url: str, *, durability: str = "power", read_only: bool = False) -> SQLiteStore:
    """A store from `sqlite:PATH` or a bare path."""
    return SQLiteStore(url.removeprefix("sqlite:"), durability=durability, read_only=read_only)


class SQLiteStore(Store):
    """Keeps frames in an SQLite file. May be shared between threads; safe for several processes; survives `os.fork`."""

    scheme = "sqlite"
    capabilities: ClassVar[frozenset[Capability]] = frozenset((Capability.DURABLE, Capability.CONNECTION, Capability.BACKUP))
    width = 4

    def __init__(self, path: str, *, durability: str = "power", read_only: bool = False) -> None:
        if durability not in SYNCHRONOUS:
            raise InvalidInputError(f"durability {durability!r} is unknown; one of: {', '.join(SYNCHRONOUS)}")
        self.path = file.checked_path(path)
        self.read_only = read_only
        file.prepare(self.path, read_only=read_only)
        self._connections = Connections(self.path, read_only=read_only, synchronous=SYNCHRONOUS[durability])
        self._group: Group[Sequence[StoreChange], list[int]] = Group(self._flush)
        self._group_process = os.getpid()
        self._spaces: dict[str, int] = {}
        self._new_spaces: dict[str, int] = {}
        with self._reading():
            pass

    # -- writing -----------------------------------------------------------------------------------

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        self._check_open(writing=True)
        if self.borrowed():
            return self._inside_borrowed(changes)
        if self._group_process != os.getpid():  # in the child of a fork: who waited in the group is not here
            self._group, self._group_process = Group(self._flush), os.getpid()
        return self._group.run(changes)

    def _flush(self, group: list[Pending[Sequence[StoreChange], list[int]]]) -> None:
        """Write a group in one transaction; a change that does not fit undoes only its own caller's."""
        with self._connections.lock:
            try:
                db = self._connections.writer()
                self._new_spaces.clear()
                db.execute("BEGIN IMMEDIATE")
                for pending in group:
                    self._try(db, pending)
                if all(pending.error for pending in group):
                    self._connections.roll_back()
                    return
                self._connections.commit(db)
                self._spaces.update(self._new_spaces)
            except (apsw.Error, UnavailableError, ClosedError) as error:
                self._failed(group, error)
            except BaseException as error:  # Ctrl-C, or a mistake in a change: no transaction may stay open
                self._failed(
                    group,
                    UnavailableError(f"{self.path}: the write was interrupted ({error!r}); look, then try again", unknown=True),
                )
                raise

    def _try(self, db: apsw.Connection, pending: Pending[Sequence[StoreChange], list[int]]) -> None:
        # A single change fails before it writes; only a rewrite or several changes have something to undo.
        savepoint = len(pending.job) > 1 or any(isinstance(change, Rewrite) for change in pending.job)
        if savepoint:
            db.execute("SAVEPOINT one")
        try:
            pending.outcome = [self._apply(db, change) for change in pending.job]
        except (
            ConflictError,
            AlreadyExistsError,
            CheckpointNotFound,
            InvalidInputError,
            CorruptionError,
            UnsupportedError,
        ) as error:
            pending.error = error
            if savepoint:
                db.execute("ROLLBACK TO one")
                self._new_spaces.clear()  # a namespace that was added here is gone again, and its number free
        if savepoint:
            db.execute("RELEASE one")

    def _failed(self, group: list[Pending[Sequence[StoreChange], list[int]]], error: Exception) -> None:
        """Nothing of the group was written, unless COMMIT itself failed: then each is looked for by its id."""
        self._connections.roll_back()
        ours = (file.translate(error, self.path) if isinstance(error, apsw.Error) else None) or error
        for pending in group:
            if pending.error is None:
                pending.outcome = None
                pending.error = self._unknown(pending.job, ours) if getattr(ours, "unknown", False) else ours

    def _unknown(self, job: Sequence[StoreChange], error: Exception) -> Exception:
        """The error for a write whose COMMIT failed: how to find out whether it is there after all."""
        appended = next((change for change in job if isinstance(change, Append)), None)
        if appended is None:
            return error
        if isinstance(error.__cause__, apsw.FullError) and not self._connections.lost and self._is_absent(appended):
            return OutOfSpace(f"{self.path}: the disk is full: nothing was saved; make room and try again")
        return UnavailableError(
            f"{error}; look for it with vault.find({appended.id!r}), or save again with id={appended.id!r}, which is safe",
            unknown=True,
            checkpoint_id=appended.id,
        )

    def _is_absent(self, appended: Append) -> bool:
        try:
            return self.find(appended.key.namespace, appended.id) is None
        except (SavegameError, apsw.Error):
            return False

    # -- one change --------------------------------------------------------------------------------

    def _apply(self, db: apsw.Connection, change: StoreChange) -> int:
        make: Callable[[apsw.Connection, Any, Row], int] = _CHANGES[type(change)]
        row = self._row(db, change.key)
        if row is None:
            if not isinstance(change, (Append, PutRecord)):
                return _missing(change)
            row = EMPTY_ROW
        _check_fence(change, row, self.clock)
        return make(self, db, change, row)  # type: ignore[call-arg,arg-type]

    def _append(self, db: apsw.Connection, change: Append, row: Row) -> int:
        _check_head(change, row)
        if change.base not in (0, row.head) and not one_row(db, "frame_place", row.key(change.base)):
            raise CheckpointNotFound(f"thread {change.key.id!r} has no frame {change.base} to continue from")
        fresh, row = not row.no, self._ensure(db, change.key, row)
        seq = row.last + 1
        if seq > SEQ_MASK:
            raise UnsupportedError(f"thread {change.key.id!r} is full: it has had {SEQ_MASK} checkpoints")
        run = row.run if row.run and change.base == row.last else seq
        salt = thread_salt(*change.key)
        stored_id = pack_id(change.id)
        space = self._space(db, change.key.namespace)
        try:
            db.execute(
                SQL["add_frame"],
                (
                    row.key(seq),
                    space,
                    stored_id,
                    change.base,
                    run,
                    change.meta,
                    meta_checksum(salt, seq, change.base, run, space, stored_id, change.meta),
                    change.note,
                    None if change.note is None else checksum(change.note, salt, seq),
                    change.delta,
                    checksum(change.delta, salt, seq, change.base),
                ),
            )
        except apsw.ConstraintError as error:
            if fresh:
                db.execute(SQL["delete_thread"], (row.no,))
            raise AlreadyExistsError(f"a checkpoint with the id {change.id!r} exists already") from error
        self._put_blobs(db, change.key, row, change.blobs)
        floor = self._floor(db, row, change.keep_newest)
        row = row._replace(
            agent=change.agent or row.agent, head=seq, head_id=change.id, last=seq, floor=floor, run=run, frames=row.frames + 1
        )
        db.execute(SQL["set_thread"], thread_values(change.key, row))
        return seq

    def _floor(self, db: apsw.Connection, row: Row, keep_newest: int | None) -> int:
        if keep_newest is None or row.frames + 1 < keep_newest:
            return row.floor
        found = one_row(db, "nth_newest", row.low(), row.high(), keep_newest - 1)
        return max(row.floor, found[0] & SEQ_MASK) if found else row.floor

    def _move_head(self, db: apsw.Connection, change: MoveHead, row: Row) -> int:
        _check_head(change, row)
        found = one_row(db, "frame_place", row.key(change.seq))
        if found is None:
            raise CheckpointNotFound(f"thread {change.key.id!r} has no frame {change.seq}")
        row = row._replace(head=change.seq, head_id=unpack_id(found[2]))
        db.execute(SQL["set_thread"], thread_values(change.key, row))
        return 0

    def _put_note(self, db: apsw.Connection, change: PutNote, row: Row) -> int:
        found = one_row(db, "note", row.key(change.seq))
        if found is None:
            raise CheckpointNotFound(f"thread {change.key.id!r} has no frame {change.seq}")
        if found[0] != change.expect:
            raise ConflictError(f"thread {change.key.id!r}: somebody else changed the label or tags of frame {change.seq}")
        total = None if change.note is None else checksum(change.note, thread_salt(*change.key), change.seq)
        db.execute(SQL["set_note"], (change.note, total, row.key(change.seq)))
        return 0

    def _put_record(self, db: apsw.Connection, change: PutRecord, row: Row) -> int:
        if change.value is None:
            db.execute(SQL["delete_record"], (row.no, change.kind, change.name))
            return 0
        if change.absent and one_row(db, "record", row.no, change.kind, change.name):
            raise AlreadyExistsError(f"thread {change.key.id!r}: the record {change.kind} {change.name!r} exists already")
        row = self._ensure(db, change.key, row)
        total = record_checksum(change.key, change.kind, change.name, change.value)
        db.execute(SQL["put_record"], (row.no, change.kind, change.name, change.value, total))
        return 0

    def _put_keyframe(self, db: apsw.Connection, change: PutKeyframe, row: Row) -> int:
        if change.body is None:
            db.execute(SQL["delete_keyframe"], (row.key(change.seq),))
        else:
            total = checksum(change.body, thread_salt(*change.key), change.seq)
            db.execute(SQL["put_keyframe"], (row.key(change.seq), change.body, total))
        return 0

    def _rewrite(self, db: apsw.Connection, change: Rewrite, row: Row) -> int:
        _check_head(change, row)
        head = row.head if change.head is None else change.head
        if head in change.drop:
            raise InvalidInputError(f"thread {change.key.id!r}: its head {head} cannot be removed")
        self._put_blobs(db, change.key, row, change.new_blobs)
        for seq in change.drop:
            note = one_row(db, "note", row.key(seq))
            if note is not None and note[0] is not None and seq not in change.noted and not change.aside:
                raise ConflictError(f"thread {change.key.id!r}: somebody labelled or tagged frame {seq} meanwhile")
            self._drop(db, change, row.key(seq))
        for seq, base, delta in change.rebase:
            self._rebase(db, change.key, row, seq, base, delta)
        if change.keep_blobs is not None:
            for (digest,) in all_rows(
                db,
                "blob_digests",
                row.no,
            ):
                if digest not in change.keep_blobs:
                    db.execute(SQL["delete_blob"], (row.no, digest))
        return self._after_rewrite(db, change, row, head)

    def _rebase(self, db: apsw.Connection, key: ThreadKey, row: Row, seq: int, base: int, delta: bytes) -> None:
        found = one_row(db, "frame_meta", row.key(seq))
        if found is None or (base and one_row(db, "frame_place", row.key(base)) is None):
            raise CheckpointNotFound(f"thread {key.id!r} has no frame {base if found else seq}")
        if base >= seq:
            raise InvalidInputError(f"thread {key.id!r}: frame {seq} cannot build on the newer frame {base}")
        salt = thread_salt(*key)
        stored_id, meta, run, space = found
        total = meta_checksum(salt, seq, base, run, space, stored_id, meta)
        db.execute(SQL["rebase"], (base, total, delta, checksum(delta, salt, seq, base), row.key(seq)))

    def _after_rewrite(self, db: apsw.Connection, change: Rewrite, row: Row, head: int) -> int:
        count, newest = all_rows(db, "count_frames", row.low(), row.high())[0]
        found = one_row(db, "frame_place", row.key(head)) if head else None
        if (found is None) != (count == 0) or (head and found is None):
            raise InvalidInputError(f"thread {change.key.id!r}: its head cannot be {head or '(none)'} after that")
        last_is_there = newest is not None and newest & SEQ_MASK == row.last
        run = row.run if last_is_there else 0
        row = row._replace(head=head, head_id=unpack_id(found[2]) if found else None, frames=count, run=run)
        db.execute(SQL["set_thread"], thread_values(change.key, row))
        return 0

    def _put_blobs(self, db: apsw.Connection, key: ThreadKey, row: Row, blobs: Sequence[tuple[bytes, bytes]]) -> None:
        for digest, body in blobs:
            db.execute(SQL["put_blob"], (row.no, digest, body, blob_checksum(key, digest, body)))

    def _drop(self, db: apsw.Connection, change: Rewrite, key: int) -> None:
        if change.aside:
            db.execute(SQL["frame_aside"], (self.clock(), change.key.id, key))
        db.execute(SQL["delete_frame"], (key,))
        db.execute(SQL["delete_keyframe"], (key,))

    def _delete_thread(self, db: apsw.Connection, change: DeleteThread, row: Row) -> int:
        for name in ("delete_frames", "delete_keyframes"):
            db.execute(SQL[name], (row.low(), row.high()))
        for name in ("delete_records", "delete_blobs", "delete_thread"):
            db.execute(SQL[name], (row.no,))
        return 0

    def _ensure(self, db: apsw.Connection, key: ThreadKey, row: Row) -> Row:
        """The row of a thread, added if there is none yet."""
        if row.no:
            return row
        (no,) = all_rows(db, "add_thread", self._space(db, key.namespace, add=True), key.id)[0]
        row = row._replace(no=no)
        db.execute(SQL["set_thread"], thread_values(key, row))
        return row

    # -- leases ------------------------------------------------------------------------------------

    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        with self._writing() as db:
            row = self._ensure(db, key, self._row(db, key) or EMPTY_ROW)
            if row.owner is not None and row.expires > self.clock() and row.epoch != instead_of:
                raise Busy(f"thread {key.id!r} is held by {row.owner} (epoch {row.epoch}); wait until it is done")
            (epoch,) = all_rows(db, "next_epoch")[0]
            row = row._replace(epoch=epoch, owner=owner, expires=self.clock() + ttl_us)
            db.execute(SQL["set_thread"], thread_values(key, row))
            return Lease(epoch, owner, row.expires)

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        with self._writing() as db:
            row = self._row(db, key)
            if row is None or row.epoch != epoch or row.owner is None:
                raise Fenced(f"thread {key.id!r}: the lease with epoch {epoch} is not the newest any more; stop")
            lease = Lease(epoch, row.owner, self.clock() + ttl_us)
            row = row._replace(expires=lease.expires, owner=row.owner if ttl_us else None)
            db.execute(SQL["set_thread"], thread_values(key, row))
            return lease

    # -- reading -----------------------------------------------------------------------------------

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        with self._reading() as db:
            row = self._row(db, key)
            return None if row is None else row.public(key)

    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        with self._reading() as db:
            rows = all_rows(db, "threads", self._space(db, namespace), after or "", agent, limit + 1)
        items = [read_thread(key := ThreadKey(namespace, columns[-1]), columns).public(key) for columns in rows[:limit]]
        return Page(items, items[-1].key.id if len(rows) > limit else None)

    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - the contract's name
        with self._reading() as db:
            found = one_row(db, "find_frame", pack_id(id), self._space(db, namespace))
            return None if found is None else (ThreadKey(namespace, found[1]), found[0] & SEQ_MASK)

    def frames(
        self,
        key: ThreadKey,
        *,
        low: int = 0,
        high: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        noted: bool = False,
        deltas: bool = False,
    ) -> list[Frame]:
        with self._reading(snapshot=deltas) as db:
            row = self._row(db, key)
            if row is None:
                return []
            name = f"{'noted' if noted else 'frames'}_{'down' if newest_first else 'up'}"
            bounds = (row.key(max(low, 0)), row.key(SEQ_MASK if high is None else min(high, SEQ_MASK)))
            found = all_rows(db, name, *bounds, -1 if limit is None else limit)
            frames = [read_frame(key, columns) for columns in found]
            if not deltas:
                return frames
            return [frame._replace(delta=self._stretch(db, key, row, 0, frame.seq, frame.seq)[1][0]) for frame in frames]

    def chain(self, key: ThreadKey, seq: int, *, keyframes: bool = True, after: int = 0) -> Chain:
        with self._reading(snapshot=True) as db:
            row = self._row(db, key)
            place = None if row is None else one_row(db, "frame_place", row.key(seq))
            if row is None or place is None:
                raise CheckpointNotFound(f"thread {key.id!r} has no frame {seq}")
            parts: list[list[bytes]] = []
            while True:
                run = min(place[1], seq)
                start, body = self._start(db, key, row, run, seq, after, use=keyframes)
                base, part = self._stretch(db, key, row, start, start + 1 if start else run, seq)
                parts.append(part)
                if base in (start, 0):  # 0: a rewrite made a frame after `start` whole
                    deltas = [delta for part in reversed(parts) for delta in part]
                    return Chain(base, body if base == start else None, deltas)
                if base >= seq:
                    raise damaged(key, None, f"frame {seq} names {base} as its base", seq)
                place = one_row(db, "frame_place", row.key(base))
                if place is None:
                    raise damaged(key, None, f"frame {base} is missing", base)
                seq = base

    def _start(
        self, db: apsw.Connection, key: ThreadKey, row: Row, run: int, seq: int, after: int, *, use: bool
    ) -> tuple[int, bytes | None]:
        """Where loading may begin inside an unbroken line: after what the caller has, or at a sound keyframe."""
        if run <= after <= seq:
            return after, None
        salt = thread_salt(*key)
        found = all_rows(db, "keyframes_down", row.key(run), row.key(seq)) if use else []
        for frame_key, body, total in found:
            if checksum(body, salt, frame_key & SEQ_MASK) == total:
                return frame_key & SEQ_MASK, body
        return 0, None

    def _stretch(
        self, db: apsw.Connection, key: ThreadKey, row: Row, start: int, low: int, high: int
    ) -> tuple[int, list[bytes]]:
        """The deltas that lead up to frame `high` without a gap, each checked, and the base of the first of them.

        Frames between that are not on the way (a rewrite may have given a frame another base) are passed over.
        """
        salt = thread_salt(*key)
        before, base_of_first = start, start
        deltas: list[bytes] = []
        for frame_key, base, delta, total in all_rows(db, "deltas", row.key(low), row.key(high)):
            seq = frame_key & SEQ_MASK
            if checksum(delta, salt, seq, base) != total:
                raise damaged(key, id_of(db, frame_key), f"delta of frame {seq}", seq)
            if base != before:
                base_of_first = base
                deltas.clear()
            deltas.append(delta)
            before = seq
        if before != high:
            raise damaged(key, None, f"frame {high} is missing", high)
        return base_of_first, deltas

    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        with self._reading() as db:
            row = self._row(db, key)
            found = [] if row is None else all_rows(db, "records", row.no, kind, after, limit + 1)
        for name, value, total in found:
            if record_checksum(key, kind, name, value) != total:
                raise damaged(key, None, f"record {kind} {name!r}")
        items = [Record(kind, name, value) for name, value, _ in found[:limit]]
        return Page(items, items[-1].name if len(found) > limit else None)

    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        with self._reading() as db:
            row = self._row(db, key)
            found = None if row is None else one_row(db, "blob", row.no, digest)
        if found is None:
            return None
        if blob_checksum(key, digest, found[0]) != found[1]:
            raise damaged(key, None, f"large value {digest.hex()[:12]}")
        body: bytes = found[0]
        return body

    # -- looking after -----------------------------------------------------------------------------

    def clock(self) -> int:
        self._check_open()
        return time.time_ns() // 1000

    def sizes(self) -> dict[str, int]:
        with self._reading() as db:
            return sqlite_upkeep.sizes(db, self.path)

    def check(self, namespace: str) -> Iterator[Problem]:
        with self._reading(snapshot=True) as db:
            yield from sqlite_upkeep.check(db, namespace)

    def mend(self, namespace: str) -> list[str]:
        self._spaces.clear()
        with self._writing() as db:
            done = sqlite_upkeep.mend_places(db, namespace)
            return [*done, *sqlite_upkeep.mend(db, namespace, self._space(db, namespace), self.clock())]

    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        total = self.sizes()["count"]
        done = key = 0
        while True:
            with self._writing() as db:
                page = all_rows(
                    db,
                    "recode_page",
                    key,
                )
                if not page:
                    db.execute(SQL["drop_keyframes"])
                    break
                for key, base, delta, delta_sum, space, thread_id in page:
                    salt = thread_salt(self._space_names(db)[space], thread_id)
                    if checksum(delta, salt, key & SEQ_MASK, base) != delta_sum:
                        continue  # damaged: a new checksum would make it look sound
                    smaller = recode(delta)
                    if len(smaller) < len(delta):
                        db.execute(SQL["set_delta"], (smaller, checksum(smaller, salt, key & SEQ_MASK, base), key))
            done += len(page)
            progress(done, total)
        self._shrink()

    def _shrink(self) -> None:
        """Give free space back and empty the -wal, so that what was deleted is in no file."""
        with self._connections.lock, file.translated(self.path):
            self._connections.writer().execute("VACUUM")
            self.purge()

    def purge(self) -> bool:
        try:
            with self._connections.lock, file.translated(self.path):
                blocked, _, _ = self._connections.writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
                return not blocked
        except UnavailableError:  # what was removed is removed; its bytes leave the files when the disk has room again
            return False

    def backup(self, path: str, progress: Callable[[int, int], None]) -> None:
        target = os.path.realpath(os.fspath(path))
        if os.path.exists(target):
            raise AlreadyExistsError(f"{target}: exists already; a backup never overwrites")
        fresh = f"{target}.{uuid.uuid4().hex}.partial"  # not in the way of the next, if this one is killed
        progress(0, 1)
        try:
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            try:
                with self._reading() as db:
                    db.execute("VACUUM INTO ?", (fresh,))
                _sync_file(fresh)
                os.link(fresh, target)
            finally:
                os.unlink(fresh)
            file.sync_directory(os.path.dirname(target))
        except OSError as error:
            kind = OutOfSpace if error.errno == 28 else UnavailableError
            raise kind(f"{target}: the backup cannot be written ({error.strerror})") from error
        progress(1, 1)

    @contextlib.contextmanager
    def connection(self) -> Iterator[apsw.Connection]:
        """A transaction on the store's own connection; saves of this thread inside it commit with it."""
        self._check_open(writing=True)
        own = self._connections
        with own.lock:
            if own.borrowed_by is not None:
                yield own.writer()
                return
            with own.writing() as db:
                own.borrowed_by = threading.get_ident()
                try:
                    yield db
                finally:
                    own.borrowed_by = None

    def borrowed(self) -> bool:
        return self._connections.borrowed_by == threading.get_ident()

    def _inside_borrowed(self, changes: Sequence[StoreChange]) -> list[int]:
        """Changes made while this thread holds `connection()`: part of its transaction."""
        db = self._connections.writer()
        pending: Pending[Sequence[StoreChange], list[int]] = Pending(changes)
        with file.translated(self.path):
            self._try(db, pending)
        if pending.error is not None:
            raise pending.error
        return pending.outcome or []

    def close(self) -> None:
        self._connections.close()

    def _check_open(self, *, writing: bool = False) -> None:
        self._connections.check_open()
        if writing and self.read_only:
            raise UnsupportedError(f"{self.path}: was opened with read_only=True")

    def _reading(self, *, snapshot: bool = False) -> AbstractContextManager[apsw.Connection]:
        return self._connections.reading(snapshot=snapshot)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[apsw.Connection]:
        self._check_open(writing=True)
        with file.translated(self.path), self._connections.writing() as db:
            yield db

    def _row(self, db: apsw.Connection, key: ThreadKey) -> Row | None:
        found = one_row(db, "thread", self._space(db, key.namespace), key.id)
        return None if found is None else read_thread(key, found)

    def _space(self, db: apsw.Connection, namespace: str, *, add: bool = False) -> int:
        """The number of a namespace; 0, which nothing has, if there is none yet."""
        number = self._spaces.get(namespace) or self._new_spaces.get(namespace)
        if number is None:
            spaces = {name: no for no, name in self._space_names(db).items()}
            number = spaces.get(namespace, 0)
            if not number and add:
                number = max(spaces.values(), default=0) + 1
                db.execute(SQL["add_space"], (number, namespace, space_checksum(number, namespace)))
            if number:  # what was added in this transaction may yet be rolled back: remembered by _flush, after COMMIT
                (self._new_spaces if db.in_transaction else self._spaces)[namespace] = number
        return number

    def _space_names(self, db: apsw.Connection) -> dict[int, str]:
        rows = all_rows(db, "spaces")
        for number, name, total in rows:
            if space_checksum(number, name) != total:
                raise CorruptionError(f"{self.path}: the row of namespace {name!r} is damaged", place="namespace row")
        return {number: name for number, name, _ in rows}


# -- helpers ---------------------------------------------------------------------------------------

_CHANGES: Final[dict[type, Callable[..., int]]] = {
    Append: SQLiteStore._append,
    MoveHead: SQLiteStore._move_head,
    PutNote: SQLiteStore._put_note,
    PutRecord: SQLiteStore._put_record,
    PutKeyframe: SQLiteStore._put_keyframe,
    Rewrite: SQLiteStore._rewrite,
    DeleteThread: SQLiteStore._delete_thread,
}


def _missing(change: StoreChange) -> int:
    """A change to a thread that is not there: nothing to do, or nothing to find."""
    if isinstance(change, (PutKeyframe, DeleteThread)):
        return 0
    raise CheckpointNotFound(f"thread {change.key.id!r} has no checkpoints")


def _check_fence(change: StoreChange, row: Row, clock: Callable[[], int]) -> None:
    epoch = getattr(change, "epoch", None)
    if epoch is not None and epoch != row.epoch:
        raise Fenced(f"thread {change.key.id!r}: the lease with epoch {epoch} was lost to epoch {row.epoch}; stop")
    heads = isinstance(change, (Append, MoveHead, Rewrite, DeleteThread))
    if epoch is None and heads and row.owner is not None and row.expires > clock():
        raise Busy(f"thread {change.key.id!r} is held by {row.owner} (epoch {row.epoch}); wait until its run is done")


def _check_head(change: Append | MoveHead | Rewrite, row: Row) -> None:
    if change.expect not in (ANY, row.head_id):
        raise ConflictError(
            f"thread {change.key.id!r}: the head is {row.head_id or '(none)'}, expected {change.expect or '(none)'}; "
            f"read it again and retry",
            expected=change.expect,
            found=row.head_id,
        )


def _sync_file(path: str) -> None:
    """Flush a finished copy that no connection has open."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
