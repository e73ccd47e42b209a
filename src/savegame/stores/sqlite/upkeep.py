"""Sizes, checking, mending, recoding and backup of an SQLite file: what a store does for `stats`, `verify`, `repair`, …

Functions over one connection, inside the caller's transaction. Nothing is ever deleted here: damaged rows go to the
table `aside`, as they are. Touches rows, row_checks, sums, sqlite_file, model.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import apsw

from savegame.encoding.frames import checksum, thread_salt
from savegame.errors import AlreadyExistsError, CorruptionError, of_system
from savegame.model import Problem, ThreadKey
from savegame.stores.row_checks import Damage, damage_beside, frame_problems, mended_row
from savegame.stores.rows import EMPTY_ROW, Row, check_order, read_thread, thread_values
from savegame.stores.rules import MAX_SEQ
from savegame.stores.sqlite.changes import MOST_THREADS, space_names
from savegame.stores.sqlite_file import SQL, Connection, all_rows, beside, id_of, one_row, sync_directory
from savegame.stores.sums import damaged, problem, space_checksum


def sizes(db: Connection, path: str) -> dict[str, int]:
    """Bytes of each kind of row, of the files, and how many frames there are."""
    names = ("count", "deltas", "metadata", "notes", "keyframes", "records", "blobs", "aside")
    found = {name: int(value) for name, value in zip(names, all_rows(db, "sizes")[0], strict=True)}
    found["frames"] = found["deltas"] + found["metadata"] + found["notes"]
    found["file"] = os.stat(path).st_size
    found["wal"] = os.stat(path + "-wal").st_size if os.path.exists(path + "-wal") else 0
    return {**found, "total": found["file"] + found["wal"]}


# -- checking --------------------------------------------------------------------------------------


def check(db: Connection, namespace: str) -> Iterator[Problem]:
    """Every row of a namespace against its checksum, rows without a thread, and SQLite's own check of the file."""
    for (line,) in db.execute("PRAGMA integrity_check(100)").fetchall():
        if line != "ok":
            yield Problem(None, None, "database file", str(line))
    names = {}
    for number, name, total in all_rows(db, "spaces"):
        names[number] = name
        if space_checksum(number, name) != total:
            yield Problem(None, None, "namespace row", f"the row of namespace {name!r} is damaged")
    if all_rows(db, "last_number")[0][0] >= MOST_THREADS:
        yield Problem(None, None, "number of the newest thread", "no thread can have a larger one")
    for (key,) in all_rows(db, "orphans"):
        yield Problem(None, None, "frame without a thread", f"frame {key & MAX_SEQ} names thread number {key >> 32}")
    for (what,) in all_rows(db, "lost_values"):
        yield Problem(None, None, "value without a thread", str(what))
    space = next((number for number, name in names.items() if name == namespace), 0)
    for *columns, owner, thread_id in all_rows(db, "foreign_threads", space):
        key = ThreadKey(namespace, thread_id)
        if _fits(key, columns) or owner not in names:  # else it is for those of its own namespace to find
            yield problem(damaged(key, None, "thread row: it names another namespace"))
    for row_columns in all_rows(db, "all_threads", space):
        yield from _check_thread(db, ThreadKey(namespace, row_columns[-1]), row_columns)


def check_thread(db: Connection, key: ThreadKey) -> Iterator[Problem]:
    """Every row of one thread against its checksum; nothing if there is none."""
    for number, name, total in all_rows(db, "spaces"):
        if name == key.namespace:
            if space_checksum(number, name) != total:
                yield Problem(None, None, "namespace row", f"the row of namespace {name!r} is damaged")
            found = one_row(db, "thread", number, key.id)
            if found is not None:
                yield from _check_thread(db, key, found)


def _check_thread(db: Connection, key: ThreadKey, columns: tuple[Any, ...]) -> Iterator[Problem]:
    row = EMPTY_ROW._replace(no=columns[0])
    try:
        row = read_thread(key, columns)
    except CorruptionError as error:
        yield problem(error)
    if not 0 < row.no <= MOST_THREADS:
        return
    deltas = ((frame_key & MAX_SEQ, *rest) for frame_key, *rest in db.execute(SQL["deltas"], (row.low(), row.high())))
    frames = all_rows(db, "frames_up", row.low(), row.high(), -1)
    yield from frame_problems(key, row, frames, deltas, partial(_id_of, db, row))
    for damage in _damage_beside(db, key, row):
        seq = damage.seq
        yield problem(damaged(key, None if seq is None else _id_of(db, row, seq), str(damage)))


def _damage_beside(db: Connection, key: ThreadKey, row: Row) -> Iterator[Damage]:
    notes = ((frame_key & MAX_SEQ, note, total) for frame_key, note, total in all_rows(db, "notes", row.low(), row.high()))
    found = db.execute(SQL["keyframes_down"], (row.low(), row.high()))
    keyframes = ((frame_key & MAX_SEQ, body, total) for frame_key, body, total in found)
    records, blobs = (db.execute(SQL[name], (row.no,)) for name in ("all_records", "all_blobs"))
    return damage_beside(key, notes, keyframes, records, blobs)


def _id_of(db: Connection, row: Row, seq: int) -> str | None:
    return id_of(db, row.key(seq))


# -- mending ---------------------------------------------------------------------------------------


def mend_places(db: Connection, namespace: str) -> list[str]:
    """Put the row of a namespace right, and threads that strayed from it, where their checksums show what they were."""
    done: list[str] = []
    if all_rows(db, "last_number")[0][0] >= MOST_THREADS:
        db.execute(SQL["set_last_number"], (MOST_THREADS,))
        done.append("the number of the newest thread was put right")
    _mend_numbers(db, done)
    numbers = [number for (number,) in all_rows(db, "thread_spaces")]
    for number, name, total in all_rows(db, "spaces"):
        if space_checksum(number, name) != total:
            right = next((no for no in (number, *numbers) if space_checksum(no, namespace) == total), None)
            threads = all_rows(db, "all_threads", number)
            if right is None and (name == namespace or any(_fits(ThreadKey(namespace, row[-1]), row) for row in threads)):
                right = number  # then its sum is damaged, or its name and its sum
            if right is not None:
                db.execute(SQL["set_space"], (right, namespace, space_checksum(right, namespace), number))
                done.append(f"namespace {namespace!r}: its row was put right")
    space = next((number for number, name, _ in all_rows(db, "spaces") if name == namespace), 0)
    for *columns, _, thread_id in all_rows(db, "foreign_threads", space):
        if not _fits(ThreadKey(namespace, thread_id), columns):
            continue
        if one_row(db, "thread", space, thread_id) is None:
            db.execute(SQL["set_thread_space"], (space, columns[0]))
            done.append(f"thread {thread_id!r}: was in another namespace, brought back")
        else:  # it was created again meanwhile
            done.append(
                f"thread {thread_id!r}: left in another namespace, its name is taken; fork and delete that one, then repair"
            )
    return done


def _mend_numbers(db: Connection, done: list[str]) -> None:
    """Restore damaged numbers of threads, in all namespaces, from the numbers that their frames have."""
    lost = [number for (number,) in all_rows(db, "lost_numbers")]
    names = {number: name for number, name, _ in all_rows(db, "spaces")}
    threads = all_rows(db, "foreign_threads", 0)
    taken = {*lost, *(columns[0] for columns in threads)}
    (newest,) = all_rows(db, "last_number")[0]
    for *columns, space, thread_id in threads:
        key = ThreadKey(names.get(space, ""), thread_id)
        if not _fits(key, columns):
            right = next((number for number in lost if _fits(key, (number, *columns[1:]))), None)
            if right is None and not 0 < columns[0] <= newest:  # never used: a number of its own, and a rebuilt row
                right = next(number for number in count(1) if number not in taken)
            if right is not None:
                db.execute(SQL["set_thread_no"], (right, columns[0]))
                taken.add(right)
                done.append(f"thread {thread_id!r}: its number was put right")


def _fits(key: ThreadKey, columns: Sequence[Any]) -> bool:
    """Whether the row of a thread is sound as that of this one."""
    try:
        read_thread(key, tuple(columns))
    except CorruptionError:
        return False
    return True


def mend(db: Connection, namespace: str, space: int, now: int) -> list[str]:
    """Set damaged rows beside the frames aside; recount frames and find heads where a thread's row is wrong."""
    done: list[str] = []
    for (what,) in all_rows(db, "lost_values"):
        done.append(f"set aside: {what}, which belonged to no thread")
    for kind in ("blobs", "records", "keyframes"):
        db.execute(SQL[f"lost_{kind}_aside"], (now,))
        db.execute(SQL[f"delete_lost_{kind}"])
    for (frame_key,) in all_rows(db, "orphans"):
        db.execute(SQL["frame_aside"], (now, None, frame_key))
        db.execute(SQL["delete_frame"], (frame_key,))
        done.append(f"set aside: frame {frame_key & MAX_SEQ} of thread number {frame_key >> 32}, which does not exist")
    for columns in all_rows(db, "all_threads", space):
        key = ThreadKey(namespace, columns[-1])
        row = EMPTY_ROW._replace(no=columns[0])
        for damage in list(_damage_beside(db, key, row)):
            db.execute(SQL["value_aside"], (now, space, key.id, str(damage), damage.body))
            _take_out(db, row, damage)
            done.append(f"thread {key.id!r}: set aside: {damage}")
        done += _mend_row(db, key, columns, now)
    return done


def _take_out(db: Connection, row: Row, damage: Damage) -> None:
    if damage.kind == "note":
        with contextlib.suppress(apsw.ConstraintError):  # other columns are damaged too: the frame is set aside as a whole
            db.execute(SQL["set_note"], (None, None, row.key(damage.name[0])))
    elif damage.kind == "keyframe":
        db.execute(SQL["delete_keyframe"], (row.key(damage.name[0]),))
    else:
        db.execute(SQL[f"delete_{damage.kind}"], (row.no, *damage.name))


def _mend_row(db: Connection, key: ThreadKey, columns: tuple[Any, ...], now: int) -> list[str]:
    empty = EMPTY_ROW._replace(no=columns[0])
    count, newest = all_rows(db, "count_frames", empty.low(), empty.high())[0]
    try:
        found = read_thread(key, columns)
    except CorruptionError:
        found = None
    row = mended_row(found, empty.no, count, newest & MAX_SEQ if count else 0, partial(_id_of, db, empty))
    if row is None:
        return []
    row = row._replace(version=now)  # larger than any that is remembered, whatever a damaged row says
    db.execute(SQL["set_thread"], thread_values(key, row))
    db.execute(SQL["set_agent"], (row.agent, row.no, row.agent))
    return [f"thread {key.id!r}: its row was rebuilt"]


# -- recoding and copying --------------------------------------------------------------------------


def recode_page(db: Connection, after: int, recode: Callable[[bytes], bytes]) -> tuple[int, int]:
    """Recode some deltas that become smaller; returns how many were looked at, and the key of the last one.

    After the last page, keyframes are dropped.
    """
    page = all_rows(db, "recode_page", after)
    if not page:
        db.run(SQL["drop_keyframes"])
    check_order("frames", [after, *(columns[0] for columns in page)])
    names = space_names(db)
    for key, base, delta, delta_sum, space, thread_id in page:
        salt = thread_salt(names.get(space, ""), thread_id)
        if checksum(delta, salt, key & MAX_SEQ, base) != delta_sum:
            continue  # damaged: a new checksum would make it look sound
        smaller = recode(delta)
        if len(smaller) < len(delta):
            db.run(SQL["set_delta"], (smaller, checksum(smaller, salt, key & MAX_SEQ, base), key))
    return len(page), page[-1][0] if page else after


def backup(db: Connection, target: str) -> None:
    """Copy the database to a new file. Raises AlreadyExistsError."""
    if os.path.exists(target):
        raise AlreadyExistsError(f"{target}: exists already; a backup never overwrites")
    fresh = beside(target)  # not in the way of the next, if this one is killed
    try:
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            db.execute("VACUUM INTO ?", (fresh,))
            _sync_file(fresh)
            os.link(fresh, target)
        finally:
            for leftover in (fresh, f"{fresh}-journal"):  # which SQLite leaves when the disk is full
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(leftover)
        sync_directory(os.path.dirname(target))
    except OSError as error:
        raise of_system(error, f"{target}: the backup cannot be written", "make room, or choose another place") from error


def _sync_file(path: str) -> None:
    """Flush a finished copy that no connection has open."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
