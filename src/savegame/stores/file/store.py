"""Threads as readable journals in a directory: one file of JSON lines per thread, for `less`, `grep` and `tail -f`.

A save appends one line and flushes once. What has to change more than one file, or what is already written, is prepared
beside and renamed into place (`write.py`). One lock around the store keeps processes apart (`lock.py`). The index of a
thread lives in memory and follows the file (`journal.py`, `threads.py`); the primitives of the rules are in `changes.py`,
maintenance in `upkeep.py` and `copy.py`. Touches store, rules and those.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import ClassVar, Final

from savegame.encoding.json_form import from_text
from savegame.errors import CorruptionError, InvalidInputError, SavegameError, UnavailableError
from savegame.model import Chain, Frame, Page, Problem, Record, ThreadKey, ThreadRow
from savegame.store import SOUGHT, Capability, line_start
from savegame.stores.file import upkeep
from savegame.stores.file.changes import FileTransaction
from savegame.stores.file.copy import backup
from savegame.stores.file.disk import SEARCH, Disk, checked_root, hashed, hashed_in, make_root, translated
from savegame.stores.file.ids import new_id
from savegame.stores.file.journal import Journal, JournalReader, new_journal
from savegame.stores.file.keyframes import keyframes_of, read_keyframe
from savegame.stores.file.lock import Lock
from savegame.stores.file.threads import Threads
from savegame.stores.file.write import BATCH, Writer
from savegame.stores.fts import FtsIndex
from savegame.stores.refusals import no_checkpoint, read_only
from savegame.stores.rules import RuledStore
from savegame.stores.sums import damaged
from savegame.waiting.retrying import OPENINGS

logger = logging.getLogger("savegame")

DURABILITY: Final = {"power": True, "process": False}


def open_url(url: str, *, durability: str = "power", read_only: bool = False) -> FileStore:
    """A store from `file:DIRECTORY`."""
    return FileStore(url.removeprefix("file:"), durability=durability, read_only=read_only)


class FileStore(RuledStore):
    """Keeps threads in a directory of their own. May be shared between threads and processes; survives `os.fork`.

    Nothing is created before the first write. `clock` returns microseconds since 1970.
    """

    scheme = "file"
    capabilities: ClassVar[frozenset[Capability]] = frozenset((Capability.DURABLE, Capability.BACKUP, Capability.SEARCH))
    readable = True

    def __init__(
        self, path: str, *, durability: str = "power", read_only: bool = False, clock: Callable[[], int] | None = None
    ) -> None:
        if durability not in DURABILITY:
            raise InvalidInputError(f"durability {durability!r} is unknown; one of: {', '.join(DURABILITY)}")
        self.path = checked_root(path, read_only=read_only)
        self.read_only = read_only
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._disk = Disk(self.path, flush=DURABILITY[durability])
        self._lock = Lock(self.path, None if read_only else lambda: make_root(self._disk))
        self._threads = Threads(self._disk)
        self._writer = Writer(self._disk, self._threads)
        self._batch = os.path.join(self.path, BATCH)
        self._index = FtsIndex(os.path.join(self.path, SEARCH), read_only=read_only)

    # -- writing -----------------------------------------------------------------------------------

    def new_id(self, key: ThreadKey) -> str:
        return new_id(hashed(key.id))

    @contextmanager
    def transaction(self) -> Iterator[FileTransaction]:
        """A commit: what is changed inside is written at the end, or forgotten if anything fails."""
        with self._alone():
            transaction = FileTransaction(self._threads, self._clock, self._writer.next_epoch)
            try:
                yield transaction
                self._writer.write(transaction.drafts.values())
            except BaseException:
                for draft in transaction.drafts.values():
                    if draft.lines or draft.whole:
                        self._threads.forget(draft.journal.directory)
                raise

    # -- reading -----------------------------------------------------------------------------------

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        with self._reading():
            journal = self._threads.look(key)
            return None if journal is None else journal.row.public()

    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        with self._reading():
            rows = (row.public() for row in self._threads.rows(namespace, after) if row.head and agent in (None, row.agent))
            items = list(islice(rows, limit + 1))
            self._keep_listings()
        return Page(items[:limit], items[limit - 1].key.id if len(items) > limit else None)

    def heads(self, namespace: str, *, agent: str | None = None) -> list[tuple[str, str | None]]:
        with self._reading():
            found = [
                (row.key.id, row.head_id) for row in self._threads.rows(namespace, checked=False) if agent in (None, row.agent)
            ]
            self._keep_listings()
            return found

    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - the contract's name
        with self._reading():
            for journal in self._threads.may_have(namespace, id):
                if id in journal.ids:
                    return journal.key, journal.ids[id]
            return None

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
        with self._bodies(key) as (journal, reader):
            last = journal.row.last
            seqs = range(max(low, 1), min(last if high is None else high, last) + 1)
            there = (seq for seq in (reversed(seqs) if newest_first else seqs) if seq in journal.entries)
            wanted = islice((seq for seq in there if not noted or journal.entries[seq].note is not None), limit)
            return [journal.frame(reader, seq, delta=deltas) for seq in wanted]

    def chain(self, key: ThreadKey, seq: int, *, after: int = 0, meta: bytes | None = None) -> Chain:
        with self._bodies(key) as (journal, reader):
            if seq not in journal.entries or (meta is not None and journal.bodies(reader, seq, "meta") != [meta]):
                raise no_checkpoint(key, seq)
            there = keyframes_of(journal)
            deltas: list[bytes] = []
            at = seq
            while at and at != after:
                body = _sound_keyframe(journal, at, there[at]) if at in there else None
                if body is not None:
                    return Chain(at, body, deltas[::-1])
                entry = journal.entries[at]
                deltas += journal.bodies(reader, at, "delta")
                if entry.base and (entry.base not in journal.entries or entry.base >= at):
                    raise damaged(key, entry.id, f"frame {entry.base}, which frame {at} builds on", at)
                at = entry.base
            return Chain(at, None, deltas[::-1])

    def unbroken(self, key: ThreadKey, seq: int) -> int:
        with self._bodies(key) as (journal, _):
            entries = journal.entries
            if seq not in entries:
                raise no_checkpoint(key, seq)
            return line_start(lambda number: entries[number].base if number in entries else None, seq)

    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        with self._bodies(key) as (journal, reader):
            places = journal.records
            names = sorted(name for its, name in places if its == kind and name > after)
            items = [Record(kind, name, from_text("value", reader.op(places[kind, name])["text"])) for name in names[:limit]]
        return Page(items, items[-1].name if len(names) > limit else None)

    def kinds(self, key: ThreadKey) -> list[str]:
        with self._bodies(key) as (journal, _):
            return sorted({kind for kind, _ in journal.records})

    def threads_with(self, namespace: str, kind: str) -> list[str]:
        if kind not in SOUGHT:
            return super().threads_with(namespace, kind)
        with self._reading():
            found = list(self._threads.sought(namespace, kind))
            self._keep_listings()
            return found

    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        with self._bodies(key) as (journal, reader):
            place = journal.blobs.get(digest)
            return None if place is None else from_text("content", reader.op(place)["text"])

    # -- looking after -----------------------------------------------------------------------------

    def clock(self) -> int:
        self._lock.check_open()
        return self._clock()

    def sizes(self) -> dict[str, int]:
        with self._reading():
            return upkeep.sizes(self._disk, self._threads)

    def check(self, namespace: str, thread_id: str | None = None) -> Iterator[Problem]:
        with self._reading():
            if thread_id is None:
                directories, problems = self._threads.threads_of(namespace), upkeep.check_root(self._disk)
            else:
                directories, problems = [self._threads.directory(ThreadKey(namespace, thread_id))], []
        yield from problems
        for directory in directories:  # one at a time, so that others can write meanwhile
            with self._reading():
                problems = upkeep.check_thread(self._disk, directory)
            yield from problems

    def mend(self, namespace: str) -> list[str]:
        with self._alone():
            done = upkeep.mend_root(self._disk, self.clock())
            for directory in self._threads.threads_of(namespace):
                self._threads.forget(directory)
                done += upkeep.mend_thread(self._disk, self._writer, directory)
            return done

    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        with self._alone():
            directories = [path for space in self._threads.spaces() for path in hashed_in(space)]
        for done, directory in enumerate(directories, 1):
            with self._alone():
                upkeep.compact_thread(self._writer, self._threads.journal(directory), recode)
            progress(done, len(directories))
        with self._alone():
            upkeep.rebuild_indexes(self._disk, self._threads)

    def backup(self, path: str, progress: Callable[[int, int], None]) -> None:
        self._lock.check_open()
        backup(self.path, os.path.realpath(os.fspath(path)), self._reading, progress)

    def purge(self) -> bool:
        with self._alone():
            return self._writer.empty_trash()

    def index(self) -> FtsIndex:
        self._lock.check_open()
        if not self.read_only:
            with self._alone():
                pass  # makes the directory that the index lies in
        return self._index

    def close(self) -> None:
        if not self.read_only:
            with suppress(SavegameError), self._reading():  # only time is lost without it
                self._keep_listings()
        self._lock.close()
        self._index.close()

    def _keep_listings(self) -> None:
        if not self.read_only:
            self._threads.keep_listings()

    # -- locks -------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other writer or reader; a commit that was left unfinished is finished first."""
        if self.read_only:
            self._lock.check_open()
            raise read_only(self.path)
        with translated(self.path), self._lock.held(alone=True):
            self._writer.finish()
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """No writer: everything is read in one snapshot."""
        for _ in range(OPENINGS):
            with translated(self.path), self._lock.held(alone=False):
                if not os.path.lexists(self._batch):
                    yield
                    return
            if self.read_only:
                raise UnavailableError(
                    f"{self.path}: a change to several threads was interrupted; open it once for writing, which finishes it"
                )
            with self._alone():
                pass
        raise UnavailableError(f"{self.path}: changes to several threads keep being interrupted; retry once their writers run")

    @contextmanager
    def _bodies(self, key: ThreadKey) -> Iterator[tuple[Journal, JournalReader]]:
        """A thread, empty if there is none, and what reads its lines."""
        with self._reading():
            journal = self._threads.look(key) or new_journal(key, self._threads.directory(key))
            with journal.reading() as reader:
                yield journal, reader


def _sound_keyframe(journal: Journal, seq: int, path: str) -> bytes | None:
    """A keyframe, unless it is damaged: then reading goes round it."""
    try:
        return read_keyframe(journal, seq, path)
    except CorruptionError as error:
        logger.warning("%s", error)
        return None
