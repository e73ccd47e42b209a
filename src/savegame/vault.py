"""What users hold: a Vault over one engine and one store. Its threads are in `thread.py`.

Touches thread, engine, lineage, upkeep and what is below them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from savegame import lineage, upkeep
from savegame.changes import Diff, changes_between
from savegame.codec import Codec, Upcast
from savegame.engine import Engine
from savegame.errors import (
    CheckpointNotFound,
    InvalidInputError,
    NotFoundError,
)
from savegame.frames import load_meta, load_note, recode
from savegame.model import (
    Checkpoint,
    CheckpointId,
    Report,
    Status,
    ThreadInfo,
    ThreadKey,
    ThreadRow,
    checked_id,
)
from savegame.policy import Retention
from savegame.store import Store
from savegame.thread import Thread

DEFAULT_CACHE: Final = 64 * 1024 * 1024


def _quiet(done: int, total: int) -> None:
    """Progress that nobody wants to see."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one namespace and true sizes of the whole store, in bytes."""

    threads: int
    checkpoints: int
    sizes: Mapping[str, int]
    cache_bytes: int

    @property
    def total_bytes(self) -> int:
        """What the store takes on disk, or in memory for a memory store."""
        return self.sizes["total"]


class Vault:
    """Threads, checkpoints and their upkeep over one store. May be shared between threads."""

    def __init__(
        self,
        store: Store,
        *,
        namespace: str = "default",
        retention: Retention | None = None,
        compress: bool = True,
        cache_bytes: int = DEFAULT_CACHE,
    ) -> None:
        self.store = store
        self.namespace = checked_id(namespace, "the namespace")
        self.codec = Codec()
        if cache_bytes < 0:
            raise InvalidInputError(f"cache_bytes must not be negative, not {cache_bytes}")
        self._engine = Engine(store, self.codec, retention or Retention(), compress=compress, cache_bytes=cache_bytes)
        self._engine.after_keyframe = upkeep.free_hidden

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store. A second call does nothing."""
        self.store.close()

    def thread(
        self,
        id: str,  # noqa: A002 - the design's names
        *,
        agent: str | None = None,
        type: type | None = None,  # noqa: A002
        foreign: Callable[[str, bytes], Any] | None = None,
    ) -> Thread:
        """A handle on a thread, which need not exist yet. With `type`, states come back as objects of that class.

        `foreign` is for adapters: how leaves that a framework serialised come back; else they are shown as plain data.
        """
        if agent is not None:
            checked_id(agent, "the agent's id")
        if type is not None and not self.codec.knows(type):
            self.codec.register(type)
        return Thread(self._engine, ThreadKey(self.namespace, checked_id(id, "a thread's id")), agent, type, foreign)

    def register(self, cls: type, *, schema_version: int = 1, upcast: Upcast | None = None, name: str | None = None) -> None:
        """Let objects of a class be given back as objects; `upcast(fields, version)` brings older ones to its shape."""
        self.codec.register(cls, schema_version=schema_version, upcast=upcast, name=name)

    # -- finding -----------------------------------------------------------------------------------

    def threads(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        tag: str | None = None,
        limit: int | None = 100,
        after: str | None = None,
    ) -> Iterator[ThreadInfo]:
        """Threads by id, pages underneath; `after` continues behind an id. `status` is that of the head."""
        wanted = None if status is None else Status(status)
        found = 0
        while limit is None or found < limit:
            page = self.store.threads(self.namespace, after=after, limit=100, agent=agent)
            for row in page.items:
                info = self._info(row)
                if info is None:
                    continue
                fits = wanted is None or info.status == (wanted if wanted.reason is not None else str.__str__(wanted))
                if fits and (tag is None or self._has_tag(row.key, tag)):
                    yield info
                    found += 1
                    if found == limit:
                        return
            if page.next is None:
                return
            after = page.next

    def _info(self, row: ThreadRow) -> ThreadInfo | None:
        """What a listing shows of a thread; None if it was deleted meanwhile."""
        frames = [*self.store.frames(row.key, low=row.head, high=row.head), *self.store.frames(row.key, limit=1)]
        if len(frames) < 2:
            return None
        head, first = (load_meta(frame.meta) for frame in frames)
        return ThreadInfo(
            row.key.id,
            row.agent,
            CheckpointId(row.head_id or ""),
            head.step,
            row.frames,
            head.size_bytes,
            Status(head.status, head.reason),
            first.created_at,
            head.created_at,
            first.forked_from,
        )

    def _has_tag(self, key: ThreadKey, tag: str) -> bool:
        return any(tag in load_note(frame.note)[1] for frame in self.store.frames(key, noted=True))

    def find(self, id: str) -> Checkpoint | None:  # noqa: A002 - the design's name
        """The checkpoint with this id, with its state, in whichever thread; None if there is none."""
        found = self._engine.find(self.namespace, checked_id(id, "a checkpoint's id"))
        if found is None:
            return None
        key, _ = found
        try:
            frame = lineage.resolve(self._engine, key, id)
            return Thread(self._engine, key, None, None)._load_seq(frame.seq, frame)
        except NotFoundError:  # hidden by retention, or deleted between the two looks
            return None

    def load(self, id: str) -> Checkpoint:  # noqa: A002 - the design's name
        """Like `find`, but raises CheckpointNotFound."""
        found = self.find(id)
        if found is None:
            raise CheckpointNotFound(f"checkpoint not found: {id!r}")
        return found

    def diff(self, a: str, b: str) -> Diff:
        """What changed between two checkpoints, of whichever threads, by their ids."""
        return changes_between(self.codec, self.load(a).state, self.load(b).state)

    # -- looking after -----------------------------------------------------------------------------

    def stats(self) -> Stats:
        """How much there is."""
        rows = list(upkeep.thread_rows(self._engine, self.namespace))
        return Stats(sum(row.head > 0 for row in rows), sum(row.frames for row in rows), self.store.sizes(), self._engine.cache.bytes)

    def verify(self, progress: Callable[[int, int], None] = _quiet) -> Report:
        """Read every byte of this namespace and say what is damaged."""
        return upkeep.verify(self._engine, self.namespace, progress)

    def repair(self, progress: Callable[[int, int], None] = _quiet) -> Report:
        """Set what is damaged aside, never deleting it; keep what can be kept; say what was done."""
        return upkeep.repair(self._engine, self.namespace, progress)

    def prune(
        self,
        *,
        keep: int | None = None,
        older_than: dt.timedelta | None = None,
        include_labelled: bool = False,
        progress: Callable[[int, int], None] = _quiet,
    ) -> int:
        """`Thread.prune` for every thread; the number removed."""
        rows = list(upkeep.thread_rows(self._engine, self.namespace))
        removed = 0
        for done, row in enumerate(rows, 1):
            thread = Thread(self._engine, row.key, None, None)
            removed += thread.prune(keep=keep, older_than=older_than, include_labelled=include_labelled)
            progress(done, len(rows))
        return removed

    def compact(self, progress: Callable[[int, int], None] = _quiet) -> None:
        """Make the store as small as it can be; every checkpoint stays."""
        self.store.compact(recode, progress)

    def backup(self, path: str, progress: Callable[[int, int], None] = _quiet) -> None:
        """Copy the store to a new file while others write; the copy opens like any other."""
        self.store.backup(path, progress)

    def copy_to(self, other: Vault, progress: Callable[[int, int], None] = _quiet) -> int:
        """Copy every thread to another vault, ids and digests unchanged; the number of checkpoints copied.

        What is there already is passed over, so a second call brings only what is new.
        """
        return upkeep.copy(self._engine, other._engine, self.namespace, other.namespace, progress)

    def connection(self) -> AbstractContextManager[Any]:
        """A transaction on the store's own database: the only way to keep own tables in the same file."""
        return self.store.connection()
