"""Sizes, checking, mending and recoding of PostgreSQL's tables: what a store does for `stats`, `verify` and `repair`.

Functions over one connection or one transaction. Nothing is ever deleted here: damaged rows go to the table `aside`, as
they are. Touches rows, row_checks, sums, pool, changes, reading, frames, model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from savegame.encoding.frames import checksum, thread_salt
from savegame.errors import CorruptionError
from savegame.model import Problem, ThreadKey
from savegame.stores.postgres.changes import Work, tag_of
from savegame.stores.postgres.link import Link, Rows
from savegame.stores.postgres.reading import id_of, read_row
from savegame.stores.row_checks import Damage, damage_beside, frame_problems, mended_row
from savegame.stores.rows import EMPTY_ROW, Row, read_frame
from savegame.stores.rules import MAX_SEQ
from savegame.stores.sums import damaged, problem

EVERY_FRAME: Final = (1, MAX_SEQ, None, True, False)
"""Parameters of `frames_up` for all frames of a thread, without deltas."""

BODIES_AT_ONCE: Final = 50
"""How many bodies are read at a time."""


def sizes(link: Link, schema: str) -> dict[str, int]:
    """Bytes of each kind of row, of the tables with their indexes, and how many frames there are."""
    names = ("count", "deltas", "metadata", "notes", "keyframes", "records", "blobs", "aside", "total")
    found = {name: int(value) for name, value in zip(names, link.ask("sizes", schema)[0], strict=True)}
    return {**found, "frames": found["deltas"] + found["metadata"] + found["notes"]}


# -- checking --------------------------------------------------------------------------------------


def lost(link: Link, namespace: str) -> list[Problem]:
    """Rows that belong to no thread, and frames with numbers that none can have."""
    with link.snapshot():
        return [
            *(_misnumbered(thread, seq) for thread, seq in link.ask("misnumbered_frames", namespace)),
            *(
                Problem(None, None, "frame without a thread", f"frame {seq} names thread {thread!r}")
                for thread, seq in link.ask("lost_frames", namespace)
            ),
            *(
                Problem(None, None, "value without a thread", f"{damage} names thread {key.id!r}")
                for key, damage in _lost_values(link, namespace)
            ),
        ]


def _misnumbered(thread_id: str, seq: int) -> Problem:
    return Problem(thread_id, None, f"frame {seq}", f"thread {thread_id!r}: no frame can have the number {seq}")


def _lost_values(link: Link, namespace: str) -> Iterator[tuple[ThreadKey, Damage]]:
    for thread, seq, body in link.ask("lost_keyframes", namespace):
        yield ThreadKey(namespace, thread), Damage("keyframe", (seq,), body)
    for thread, digest, body in link.ask("lost_blobs", namespace):
        yield ThreadKey(namespace, thread), Damage("blob", (digest,), body)
    for thread, kind, name, value in link.ask("lost_records", namespace):
        yield ThreadKey(namespace, thread), Damage("record", (kind, name), value)


def check_page(link: Link, namespace: str, after: str) -> tuple[list[Problem], str | None]:
    """What is wrong with some threads, each read at one moment, and where to go on."""
    problems: list[Problem] = []
    threads = [columns[-1] for columns in link.ask("all_threads", namespace, after)]
    for thread_id in threads:
        with link.snapshot():
            problems += _check_thread(link, ThreadKey(namespace, thread_id))
    return problems, threads[-1] if threads else None


def check_thread(link: Link, key: ThreadKey) -> list[Problem]:
    """What is wrong with one thread."""
    with link.snapshot():
        misnumbered = link.ask("misnumbered_frames_of_thread", *key)
        return [*(_misnumbered(key.id, seq) for (seq,) in misnumbered), *_check_thread(link, key)]


def _check_thread(link: Link, key: ThreadKey) -> Iterator[Problem]:
    found, frames, deltas, *beside = link.ask_all(
        ("thread", key), ("frames_up", (*key, *EVERY_FRAME)), ("deltas", (*key, 0, BODIES_AT_ONCE)), *_first_pages(key)
    )
    if not found:
        return  # deleted meanwhile
    row = EMPTY_ROW
    try:
        row = read_row(key, found[0])
    except CorruptionError as error:
        yield problem(error)
    yield from frame_problems(key, row, frames, _pages(link, "deltas", key, deltas, 1), partial(id_of, link, key))
    for damage in _damage_beside(link, key, frames, beside):
        seq = damage.seq
        yield problem(damaged(key, None if seq is None else id_of(link, key, seq), str(damage)))


def _first_pages(key: ThreadKey) -> list[tuple[str, tuple[Any, ...]]]:
    """The questions that `_damage_beside` needs the answers of."""
    starts = (("all_keyframes", (0,)), ("all_records", ("", "")), ("all_blobs", (b"",)))
    return [(name, (*key, *start, BODIES_AT_ONCE)) for name, start in starts]


def _damage_beside(link: Link, key: ThreadKey, frames: Rows, first_pages: list[Rows]) -> Iterator[Damage]:
    keyframes, records, blobs = first_pages
    return damage_beside(
        key,
        ((columns[0], *columns[7:9]) for columns in frames if columns[7:9] != (None, None)),
        _pages(link, "all_keyframes", key, keyframes, 1),
        _pages(link, "all_records", key, records, 2),
        _pages(link, "all_blobs", key, blobs, 1),
    )


def _pages(link: Link, name: str, key: ThreadKey, page: Rows, width: int) -> Iterator[tuple[Any, ...]]:
    """All rows of a statement from its first page on; they are in the order of their first columns."""
    yield from page
    while len(page) == BODIES_AT_ONCE:
        page = link.ask(name, *key, *page[-1][:width], BODIES_AT_ONCE)
        yield from page


# -- mending ---------------------------------------------------------------------------------------


def mend_lost(work: Work, namespace: str) -> list[str]:
    """Give threads whose rows were lost new ones; set what then still belongs to none aside. Says what was done."""
    done = []
    for thread_id, seq in work.link.ask("misnumbered_frames", namespace):
        _set_frame_aside(work, ThreadKey(namespace, thread_id), seq)
        done.append(f"set aside: frame {seq} of thread {thread_id!r}, a number that none can have")
    lost = work.link.ask("lost_frames", namespace)
    for key in dict.fromkeys(ThreadKey(namespace, thread_id) for thread_id, _ in lost):
        if _has_sound_frame(work.link, key):
            work.link.tell("add_thread", *key, tag_of(key))
            done += mend(work, key)
    for thread_id, seq in work.link.ask("lost_frames", namespace):
        _set_frame_aside(work, ThreadKey(namespace, thread_id), seq)
        done.append(f"set aside: frame {seq} of thread {thread_id!r}, which does not exist")
    for key, damage in list(_lost_values(work.link, namespace)):
        _set_aside(work, key, damage)
        done.append(f"set aside: {damage}, which belonged to no thread")
    return done


def _has_sound_frame(link: Link, key: ThreadKey) -> bool:
    """Whether one of its frames was saved in this thread, and does not only name it because it is damaged."""
    for columns in link.ask("frames_up", *key, *EVERY_FRAME):
        with contextlib.suppress(CorruptionError):
            read_frame(key, (*columns[:7], None, None))
            return True
    return False


def mend(work: Work, key: ThreadKey) -> list[str]:
    """Set damaged rows beside a thread's frames aside; recount frames and find the head where its row is wrong."""
    done = []
    columns = work.link.ask("lock_thread", *key)
    if not columns:
        return []
    frames, *beside = work.link.ask_all(("frames_up", (*key, *EVERY_FRAME)), *_first_pages(key))
    for damage in list(_damage_beside(work.link, key, frames, beside)):
        _set_aside(work, key, damage)
        done.append(f"thread {key.id!r}: set aside: {damage}")
    found: Row | None = None
    with contextlib.suppress(CorruptionError):  # then it is rebuilt
        found = read_row(key, columns[0])
    row = mended_row(found, tag_of(key), *work.count_and_newest(key), partial(id_of, work.link, key))
    if row is not None:
        work.write(key, row)
        done.append(f"thread {key.id!r}: its row was rebuilt")
    return done


def _set_frame_aside(work: Work, key: ThreadKey, seq: int) -> None:
    for name in ("frames_aside", "drop_frames"):
        work.link.tell(name, *key, [seq])


def _set_aside(work: Work, key: ThreadKey, damage: Damage) -> None:
    work.link.tell("value_aside", *key, str(damage), damage.body)
    if damage.kind == "note":
        work.link.tell("set_note", *key, *damage.name, None, None)
    else:
        work.link.tell(f"delete_{damage.kind}", *key, *damage.name)


# -- recoding --------------------------------------------------------------------------------------


def recoded(page: Rows, recode: Callable[[bytes], bytes]) -> Rows:
    """The parameters of `set_delta` for those deltas of a page that become smaller."""
    found = []
    for namespace, thread_id, seq, base, delta, total in page:
        salt = thread_salt(namespace, thread_id)
        if checksum(delta, salt, seq, base) != total:
            continue  # damaged: a new checksum would make it look sound
        smaller = recode(delta)
        if len(smaller) < len(delta):
            found.append((namespace, thread_id, seq, base, smaller, checksum(smaller, salt, seq, base), total))
    return found


def set_deltas(work: Work, rows: Rows) -> None:
    """Write recoded deltas where they still are what was recoded."""
    for values in rows:
        work.link.tell("set_delta", *values)
