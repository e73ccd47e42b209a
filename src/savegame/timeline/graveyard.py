"""Threads that were deleted while a checkpoint of an agent names them: out of sight until the last such checkpoint goes.

Such a thread is moved, checkpoints and records, to a *yard*: a namespace beside its own. So nothing that lists, searches,
counts, exports or finds anything in a namespace meets it, and its id is free. A second thread of that id that is deleted while
the first is still kept goes to the next yard. A restore of the agent moves it back. Touches companions, lineage and below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from savegame.encoding.frames import load_meta, references
from savegame.errors import ConflictError, InvalidInputError
from savegame.model import Frame, ThreadKey, ThreadRow
from savegame.store import Append, DeleteThread, MoveHead, PutRecord, StoreChange
from savegame.timeline.companions import DELETED, MARK
from savegame.timeline.engine import Engine
from savegame.timeline.lineage import PAGE, Lineage

YARD: Final = "\u241fdeleted\u241f"
"""Stands between a namespace and the number of a yard of it; begins what stands for a thread there in links."""

YARDS: Final = "savegame:deleted"
"""The thread beside which the numbers of the yards in use are kept; it has no checkpoints, so that no listing shows it."""


def check_namespace(namespace: str) -> None:
    """Refuse the name of a yard. Raises InvalidInputError."""
    if YARD in namespace:
        raise InvalidInputError(f"a namespace must not contain {YARD!r}, which is reserved for deleted threads; choose another")


def is_kept(key: ThreadKey) -> bool:
    """Whether this is where a thread is that was deleted."""
    return YARD in key.namespace


def home(key: ThreadKey) -> ThreadKey:
    """Where a thread is, or was before it was deleted."""
    return key._replace(namespace=key.namespace.partition(YARD)[0])


def in_yard(key: ThreadKey, number: int) -> ThreadKey:
    """Where a thread is in a yard of its namespace."""
    return key._replace(namespace=f"{key.namespace}{YARD}{number}")


def name_of(key: ThreadKey) -> str:
    """What stands for a thread in the links of others: its id, or where it is kept."""
    _, deleted, number = key.namespace.partition(YARD)
    return f"{YARD}{number} {key.id}" if deleted else key.id


def named_by(key: ThreadKey, name: str) -> ThreadKey:
    """The thread that a link of another one names: the opposite of `name_of`."""
    beside = home(key)
    if not name.startswith(YARD):
        return beside._replace(id=name)
    number, _, thread_id = name.removeprefix(YARD).partition(" ")
    return ThreadKey(f"{beside.namespace}{YARD}{number}", thread_id)


def yards(engine: Engine, namespace: str) -> list[str]:
    """The namespaces in which threads of this one may be kept."""
    numbers = (record.name for record in Lineage(engine, ThreadKey(namespace, YARDS)).records(DELETED))
    return [f"{namespace}{YARD}{number}" for number in sorted(numbers, key=int)]


def free_yard(engine: Engine, keys: Collection[ThreadKey], after: int = 0) -> int:
    """The number of the first yard, after one, that has room for all of these threads."""
    number = after + 1
    while any(engine.store.thread(in_yard(key, number)) is not None for key in keys):
        number += 1
    return number


def opened(keys: Collection[ThreadKey]) -> list[PutRecord]:
    """Notes which yards are in use, for threads that come to be there."""
    numbers = {(home(key).namespace, key.namespace.partition(YARD)[2]) for key in keys if is_kept(key)}
    return [PutRecord(ThreadKey(namespace, YARDS), DELETED, number, MARK) for namespace, number in sorted(numbers)]


# -- moving ----------------------------------------------------------------------------------------


class Move(NamedTuple):
    """What moves a thread, in two parts: everything that goes, of all threads that move, goes before anything comes.

    `numbers` are those that the checkpoints get.
    """

    leave: list[StoreChange]
    come: list[StoreChange]
    numbers: dict[int, int]


def moved(thread: Lineage, row: ThreadRow, to: ThreadKey, links: Collection[str]) -> Move:
    """Moves a thread with everything beside it but keyframes and records of the kinds `links`, as it is now.

    Refused, as a conflict, if checkpoints come meanwhile. Raises CorruptionError if not all of it can be read.
    """
    frames = list(_frames(thread, row))
    numbers = {0: 0} | {frame.seq: number for number, frame in enumerate(frames, 1)}
    come: list[StoreChange] = []
    large: set[bytes] = set()
    before = None
    for frame in frames:
        new = [name for name in references(frame.delta or b"") if name not in large]
        large.update(new)
        visible = sum(other.seq >= row.floor for other in frames) if row.floor and frame is frames[-1] else None
        come.append(
            Append(
                to,
                frame.id,
                _number(row, numbers, frame),
                frame.meta,
                frame.delta or b"",
                frame.note,
                before,
                agent=row.agent,
                keep_newest=visible or None,
                blobs=tuple((name, _large_value(thread, name)) for name in new),
                fresh=load_meta(frame.meta).request is None,
            )
        )
        before = frame.id
    leave: list[StoreChange] = [DeleteThread(thread.key)]
    if frames:
        leave.insert(0, MoveHead(thread.key, row.head, row.head_id))
        come.append(MoveHead(to, _number(row, numbers, frames[-1], row.head), before))
    kinds = [kind for kind in thread.kinds() if kind not in {*links, DELETED}]
    come += [PutRecord(to, *record) for kind in kinds for record in thread.records(kind)]
    return Move(leave, come, numbers)


def _frames(thread: Lineage, row: ThreadRow) -> Iterator[Frame]:
    low = 1
    while page := thread.store.frames(thread.key, low=low, high=row.last, limit=PAGE, deltas=True):
        yield from page
        low = page[-1].seq + 1


def _number(row: ThreadRow, numbers: dict[int, int], frame: Frame, seq: int | None = None) -> int:
    wanted = frame.base if seq is None else seq
    if wanted not in numbers:
        raise _changed(row.key)
    return numbers[wanted]


def _large_value(thread: Lineage, name: bytes) -> bytes:
    body = thread.store.blob(thread.key, name)
    if body is None:
        raise _changed(thread.key)
    return body


def _changed(key: ThreadKey) -> ConflictError:
    return ConflictError(f"thread {key.id!r}: another writer removed checkpoints meanwhile; try again")
