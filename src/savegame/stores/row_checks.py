"""Which rows of a thread are damaged, and what a thread's row should be: what SQLite and PostgreSQL have in common.

Functions over rows that the caller has read; nothing is written here. Touches rows, sums, frames, model, errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from savegame.encoding.frames import checksum, thread_salt
from savegame.errors import CorruptionError
from savegame.model import Problem, ThreadKey
from savegame.stores.rows import EMPTY_ROW, Row, read_frame
from savegame.stores.rules import MAX_SEQ
from savegame.stores.sums import blob_checksum, damaged, problem, record_checksum

IdOf = Callable[[int], str | None]


class Damage(NamedTuple):
    """A damaged row beside a thread's frames: which kind, what it is found by, and its bytes."""

    kind: str
    name: tuple[Any, ...]
    body: bytes | None

    @property
    def seq(self) -> int | None:
        """The frame that it belongs to."""
        return self.name[0] if self.kind in ("note", "keyframe") else None

    def __str__(self) -> str:
        if self.kind == "record":
            return f"record {self.name[0]} {self.name[1]!r}"
        if self.kind == "blob":
            return f"large value {self.name[0].hex()[:12]}"
        return f"{'label and tags' if self.kind == 'note' else 'keyframe'} of frame {self.name[0]}"


def frame_problems(
    key: ThreadKey, row: Row, frames: Iterable[tuple[Any, ...]], deltas: Iterable[tuple[Any, ...]], id_of: IdOf
) -> Iterator[Problem]:
    """What is wrong with a thread's frames: `frames` as `read_frame` takes them, `deltas` as (number, base, delta, sum)."""
    salt = thread_salt(*key)
    seen: set[int] = set()
    for columns in frames:
        seen.add(columns[0] & MAX_SEQ)
        try:
            read_frame(key, (*columns[:7], None, None))
        except CorruptionError as error:
            yield problem(error)
    for seq, base, delta, total in deltas:
        if checksum(delta, salt, seq, base) != total:
            yield problem(damaged(key, id_of(seq), f"delta of frame {seq}"))
        elif base and (base not in seen or base >= seq):
            yield problem(damaged(key, id_of(seq), f"base {base} of frame {seq}"))
    if row.frames != len(seen) or (row.head and row.head not in seen):
        yield problem(damaged(key, None, "thread row: head or count"))


def damage_beside(
    key: ThreadKey,
    notes: Iterable[tuple[int, bytes | None, int | None]],
    keyframes: Iterable[tuple[int, bytes, int]],
    records: Iterable[tuple[str, str, bytes, int]],
    blobs: Iterable[tuple[bytes, bytes, int]],
) -> Iterator[Damage]:
    """What is damaged beside a thread's frames; each row as what it is found by, its bytes and their sum."""
    salt = thread_salt(*key)
    for kind, rows in (("note", notes), ("keyframe", keyframes)):
        for seq, body, total in rows:
            if body is None or checksum(body, salt, seq) != total:
                yield Damage(kind, (seq,), body)
    for kind, name, value, total in records:
        if record_checksum(key, kind, name, value) != total:
            yield Damage("record", (kind, name), value)
    for digest, body, total in blobs:
        if blob_checksum(key, digest, body) != total:
            yield Damage("blob", (digest,), body)


def mended_row(row: Row | None, number: int, count: int, newest: int, id_of: IdOf) -> Row | None:
    """The row that a thread should have, whose own is `row` (None: damaged); None if that is right already."""
    if row is None:
        row, head = EMPTY_ROW._replace(no=number), newest
    else:
        head = row.head if not row.head or id_of(row.head) is not None else newest
        if (head, count) == (row.head, row.frames) and row.last >= newest:
            return None
    head_id = id_of(head) if head else None
    return row._replace(head=head, head_id=head_id, last=max(row.last, newest), frames=count, run=0)
