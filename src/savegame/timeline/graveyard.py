"""Threads that were deleted while an agent checkpoint names them: hidden until the last such checkpoint goes.

Such a thread moves, with checkpoints and records, to a *yard*: a namespace beside its own. So listing, searching, counting
and exporting a namespace never meet it, and its id is free. If a second thread with that id is deleted while the first is
still kept, it goes to the next yard. A restore of the agent moves it back. Touches companions, lineage and below.
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
from savegame.timeline.lineage import FRAMES_AT_ONCE, Lineage

YARD: Final = "\u241fdeleted\u241f"
"""Separates a namespace from the number of one of its yards; also starts the name in links of a thread in a yard."""

YARDS: Final = "savegame:deleted"
"""The thread beside which the numbers of used yards are recorded; without checkpoints, so that no listing shows it."""


def check_namespace(namespace: str) -> None:
    """Refuse the name of a yard. Raises InvalidInputError."""
    if YARD in namespace:
        raise InvalidInputError(f"a namespace must not contain {YARD!r}, which is reserved for deleted threads; choose another")


def is_kept(key: ThreadKey) -> bool:
    """Whether this is the key of a deleted thread that is kept in a yard."""
    return YARD in key.namespace


def home(key: ThreadKey) -> ThreadKey:
    """The key of a thread outside any yard, as it was before it was deleted."""
    return key._replace(namespace=key.namespace.partition(YARD)[0])


def in_yard(key: ThreadKey, number: int) -> ThreadKey:
    """The key of a thread in a yard of its namespace."""
    return key._replace(namespace=f"{key.namespace}{YARD}{number}")


def name_of(key: ThreadKey) -> str:
    """The name of a thread in the links of others: its id, with its yard if it is in one."""
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
    """The namespaces of the yards of a namespace."""
    numbers = (record.name for record in Lineage(engine, ThreadKey(namespace, YARDS)).records(DELETED))
    return [f"{namespace}{YARD}{number}" for number in sorted(numbers, key=int)]


def free_yard(engine: Engine, keys: Collection[ThreadKey], after: int = 0) -> int:
    """The number of the first yard after `after` in which all of these keys are free."""
    number = after + 1
    while any(engine.store.thread(in_yard(key, number)) is not None for key in keys):
        number += 1
    return number


def opened(keys: Collection[ThreadKey]) -> list[PutRecord]:
    """Records that mark the yards of these keys as used."""
    numbers = {(home(key).namespace, key.namespace.partition(YARD)[2]) for key in keys if is_kept(key)}
    return [PutRecord(ThreadKey(namespace, YARDS), DELETED, number, MARK) for namespace, number in sorted(numbers)]


# -- moving ----------------------------------------------------------------------------------------


class Move(NamedTuple):
    """Changes that move a thread, in two parts: with several threads, all of them leave before any of them comes.

    `numbers` maps old numbers of checkpoints to new ones.
    """

    leave: list[StoreChange]
    come: list[StoreChange]
    numbers: dict[int, int]


def moved(thread: Lineage, row: ThreadRow, to: ThreadKey, links: Collection[str]) -> Move:
    """Plan to move a thread as it is now, with its records except those of the kinds `links`, without keyframes.

    The commit raises ConflictError if checkpoints are added meanwhile. Raises CorruptionError for a damaged thread.
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
    come += [change._replace(key=to) for change in thread.engine.above.ledger.renumbered(thread, row.last)]
    return Move(leave, come, numbers)


def _frames(thread: Lineage, row: ThreadRow) -> Iterator[Frame]:
    low = 1
    while page := thread.store.frames(thread.key, low=low, high=row.last, limit=FRAMES_AT_ONCE, deltas=True):
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
