"""Threads in a PostgreSQL database, through psycopg: many processes and machines, any number of them writing.

An append that continues a row that is remembered is one statement and one round trip; everything else is a transaction
that locks the rows of its threads. Both are in `changes.py`, reading in `reading.py`. How a write is carried to its end
when connections break is in `work.py` and `saving.py`, the connections are in `pool.py`, the tables in `schema.py`.
Touches store, rules, rows and those.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from savegame.errors import CorruptionError, InvalidInputError
from savegame.index import Index
from savegame.model import Chain, Frame, Lease, Page, Problem, Record, ThreadKey, ThreadRow
from savegame.store import SOUGHT, Capability, Store, StoreChange
from savegame.stores.fts import FtsIndex
from savegame.stores.postgres import upkeep
from savegame.stores.postgres.link import Link, Rows
from savegame.stores.postgres.listen import WATCHED_S, Listener
from savegame.stores.postgres.pool import Pool
from savegame.stores.postgres.reading import FRAME_COLUMNS, ChainReader, NotAtOnce, find, read_frames, read_row
from savegame.stores.postgres.saving import Saving
from savegame.stores.postgres.schema import checked_schema, prepare, quoted, statements
from savegame.stores.postgres.search import PostgresIndex
from savegame.stores.postgres.work import Task, Workings
from savegame.stores.refusals import no_checkpoint, read_only
from savegame.stores.rows import FrameRange, read_frame, record_page, sound_blob, thread_page, whole_chain
from savegame.stores.rules import renew_lease, take_lease
from savegame.waiting.undoing import on_failure

T = TypeVar("T")

OURS = ("schema", "deadline", "connections")
CONNECTIONS = 16
DEADLINE_S = 30.0
REWRITTEN_BYTES = 256 << 20
"""Up to this size `compact` returns space to the disk: tables are locked while they are rewritten, and larger ones
for too long. Those only get room for what comes next."""

LONGEST_DEADLINE_S = 1800.0
"""Half of the time for which it can be found out whether a write landed."""


def open_url(url: str, *, durability: str = "power", read_only: bool = False) -> PostgresStore:
    """A store from `postgresql://user@host:5432/database?schema=savegame&deadline=30&connections=16`.

    Everything else in the URL is libpq's: several hosts, sslmode, target_session_attrs.
    """
    address, _, query = url.partition("?")
    given = [part.partition("=") for part in query.split("&") if part]
    ours = {name: unquote(value) for name, _, value in given if name in OURS}
    others = "&".join("".join(part) for part in given if part[0] not in OURS)  # as they are: libpq decodes them
    try:
        options: dict[str, Any] = {"schema": ours.get("schema", "savegame")}
        options |= {
            "deadline": float(ours.get("deadline", DEADLINE_S)),
            "connections": int(ours.get("connections", CONNECTIONS)),
        }
    except ValueError as error:
        raise InvalidInputError("deadline= and connections= in a PostgreSQL URL are numbers") from error
    address = re.sub(r"^postgres:", "postgresql:", address)
    return PostgresStore(f"{address}?{others}" if others else address, durability=durability, read_only=read_only, **options)


class PostgresStore(Store):
    """Keeps frames in a schema of a PostgreSQL database. May be shared between threads; survives `os.fork`.

    `deadline` is for how many seconds an operation is tried again when the server does not answer.
    """

    scheme = "postgresql"
    capabilities: ClassVar[frozenset[Capability]] = frozenset((Capability.DURABLE, Capability.CONNECTION, Capability.SEARCH))
    width = CONNECTIONS
    compress_from = 512  # bytes that travel and are flushed elsewhere cost more than zstd

    def __init__(
        self,
        url: str,
        *,
        schema: str = "savegame",
        durability: str = "power",
        read_only: bool = False,
        deadline: float = DEADLINE_S,
        connections: int = CONNECTIONS,
    ) -> None:
        if not (0 < deadline <= LONGEST_DEADLINE_S and connections > 1):
            raise InvalidInputError(f"deadline= must be above 0, at most {LONGEST_DEADLINE_S:g}, and connections= at least 2")
        self.read_only = read_only
        self.schema = checked_schema(schema)
        conninfo, self.path = libpq_address(url, read_only=read_only)
        pool = Pool(conninfo, self.path, statements(schema, durable=durability == "power"), connections)
        self._work = Workings(pool, deadline, f"{quoted(schema)}.epoch")
        self._committed = self._work.committed
        self._saving = Saving(self._work)
        self._listener = Listener(pool)
        self._index = FtsIndex() if read_only else PostgresIndex(self._work, schema)
        pool.after_fork = self._listener.begin_life

        def look(link: Link) -> None:
            self.layout = prepare(link, schema, self.path, read_only=read_only)
            self._work.clock.learn(link.ask("clock")[0][0])

        with on_failure(pool.close):
            self._work.read(look)

    # -- writing -----------------------------------------------------------------------------------

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        self._check_open(writing=True)
        return self._saving.commit(changes)

    def new_id(self, key: ThreadKey) -> str:
        return self._committed.new_id(key)

    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        self._check_open(writing=True)
        return self._work.write(Task([key], lambda work: take_lease(work, key, owner, ttl_us, instead_of), [key]))

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        self._check_open(writing=True)
        return self._work.write(Task([key], lambda work: renew_lease(work, key, epoch, ttl_us)))

    # -- reading -----------------------------------------------------------------------------------

    def thread(self, key: ThreadKey) -> ThreadRow | None:
        found = self._ask("thread", *key)
        if not found:
            return None
        row = read_row(key, found[0])
        if not self.borrowed():
            self._committed.remember({key: row})
        return row.public(key)

    def threads(
        self, namespace: str, *, after: str | None = None, limit: int = 100, agent: str | None = None
    ) -> Page[ThreadRow]:
        if agent is None:
            rows = self._ask("threads", namespace, after or "", limit + 1)
        else:
            rows = self._ask("threads_of_agent", namespace, agent, after or "", limit + 1)
        found = [read_row(key := ThreadKey(namespace, columns[-1]), columns).public(key) for columns in rows]
        return thread_page(found, limit)

    def heads(self, namespace: str, *, agent: str | None = None) -> list[tuple[str, str | None]]:
        rows = self._ask("heads", namespace) if agent is None else self._ask("heads_of_agent", namespace, agent)
        return [(id, head_id) for id, head_id in rows]  # noqa: A001 - one word per idea

    def find(self, namespace: str, id: str) -> tuple[ThreadKey, int] | None:  # noqa: A002 - the contract's name
        return self._read(lambda link: find(link, namespace, id))

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
        return self._read(lambda link: read_frames(link, key, FrameRange(low, high, limit, newest_first, noted, deltas)))

    def head_frames(self, rows: Sequence[ThreadRow]) -> list[Frame | None]:
        spaces, ids = [row.key.namespace for row in rows], [row.key.id for row in rows]
        found = self._ask("head_frames", spaces, ids, [row.head for row in rows])
        frames = {
            key: read_frame(key, columns[:FRAME_COLUMNS]) for columns in found for key in [ThreadKey(*columns[FRAME_COLUMNS:])]
        }
        return [frames.get(row.key) for row in rows]

    def fingerprints(self, keys: Sequence[ThreadKey]) -> list[bytes]:
        wanted = ([key.namespace for key in keys], [key.id for key in keys])
        rows, notes, records = self._read(
            lambda link: link.ask_all(*((name, wanted) for name in ("some_threads", "note_sums", "record_sums")))
        )
        prints = {}
        beside = _by_thread(notes), _by_thread(records)
        for columns in rows:
            key = ThreadKey(*columns[-2:])
            with contextlib.suppress(CorruptionError):
                row = read_row(key, columns).public(key)
                prints[key] = row.fingerprint(*(found[key] for found in beside))
        return [prints.get(key, b"") for key in keys]

    def chain(self, key: ThreadKey, seq: int, *, after: int = 0, meta: bytes | None = None) -> Chain:
        def read(link: Link, *, once: bool) -> Chain | None:
            return whole_chain(key, seq, ChainReader(link, key, (seq, meta), after, once=once).stretch)

        def read_in_snapshot(link: Link) -> Chain | None:
            with link.snapshot():
                return read(link, once=False)

        try:
            found = self._read(lambda link: read(link, once=not self.borrowed()))
        except NotAtOnce:
            found = self._read(read_in_snapshot)
        if found is None:
            raise no_checkpoint(key, seq)
        return found

    def unbroken(self, key: ThreadKey, seq: int) -> int:
        found = self._ask("frame_run", *key, seq)
        if not found:
            raise no_checkpoint(key, seq)
        return int(found[0][0])

    def records(self, key: ThreadKey, kind: str, *, after: str = "", limit: int = 1000) -> Page[Record]:
        return record_page(key, kind, self._ask("records", *key, kind, after, limit + 1), limit)

    def kinds(self, key: ThreadKey) -> list[str]:
        return [kind for (kind,) in self._ask("kinds", *key)]

    def threads_with(self, namespace: str, kind: str) -> list[str]:
        return [thread for (thread,) in self._ask("threads_sought" if kind in SOUGHT else "threads_with", namespace, kind)]

    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        found = self._ask("blob", *key, digest)
        return sound_blob(key, digest, found[0] if found else None)

    # -- looking after -----------------------------------------------------------------------------

    def clock(self) -> int:
        self._check_open()
        return self._work.clock.now()

    def sizes(self) -> dict[str, int]:
        return self._read(lambda link: upkeep.sizes(link, quoted(self.schema)), hurried=False)

    def check(self, namespace: str, thread_id: str | None = None) -> Iterator[Problem]:
        self._check_open()
        if thread_id is None:
            return self._check(namespace)
        key = ThreadKey(namespace, thread_id)
        return iter(self._read(partial(upkeep.check_thread, key=key), hurried=False))

    def _check(self, namespace: str) -> Iterator[Problem]:
        yield from self._read(lambda link: upkeep.lost(link, namespace), hurried=False)
        after: str | None = ""
        while after is not None:
            page, after = self._read(partial(upkeep.check_page, namespace=namespace, after=after), hurried=False)
            yield from page

    def mend(self, namespace: str) -> list[str]:
        self._check_open(writing=True)
        done = self._work.write(Task([], partial(upkeep.mend_lost, namespace=namespace), hurried=False))
        for thread_id, _ in self.heads(namespace):
            key = ThreadKey(namespace, thread_id)
            done += self._work.write(Task([], partial(upkeep.mend, key=key), hurried=False))
        return done

    def compact(self, recode: Callable[[bytes], bytes], progress: Callable[[int, int], None]) -> None:
        self._check_open(writing=True)
        if self.borrowed():
            raise InvalidInputError("compact() cannot be part of a transaction; leave connection() first")
        total = self.sizes()["count"]
        done, place = 0, ("", "", 0)
        while True:
            page = self._ask("recode_page", *place)
            if not page:
                break
            smaller = upkeep.recoded(page, recode)
            if smaller:
                self._work.write(Task([], partial(upkeep.set_deltas, rows=smaller), hurried=False))
            done, place = done + len(page), page[-1][:3]
            progress(min(done, total), total)
        self._work.write(Task([], lambda work: work.link.tell("drop_all_keyframes"), marked=False, hurried=False))
        small = self.sizes()["total"] <= REWRITTEN_BYTES
        self._read(lambda link: link.tell("rewrite_tables" if small else "vacuum"), hurried=False)

    def index(self) -> Index:
        self._check_open()
        return self._index

    def connection(self) -> AbstractContextManager[Link]:
        """A transaction on a connection of the block's own; saves of this thread inside it commit with it.

        A block inside another one is a part of it, undone by itself if it is left by an exception. Raises TransactionFailed,
        on leaving, if the block spoilt or ended its transaction.
        """
        self._check_open(writing=True)
        return self._work.connection()

    def borrowed(self) -> bool:
        return self._work.borrowed() is not None

    def await_change(self, key: ThreadKey, seconds: float) -> None:
        self._check_open()
        due = not self.read_only and not self.borrowed() and self._listener.is_due(key)
        if due and self._ask("watch", *key, int(WATCHED_S * 1_000_000)):
            self._listener.announce(key)
        self._listener.wait(seconds)

    def close(self) -> None:
        self._work.pool.close()
        self._listener.close()
        self._index.close()

    def _check_open(self, *, writing: bool = False) -> None:
        self._work.pool.check_open()
        if writing and self.read_only:
            raise read_only(self.path)

    def _read(self, job: Callable[[Link], T], *, hurried: bool = True) -> T:
        self._check_open()
        return self._work.read(job, hurried=hurried)

    def _ask(self, name: str, *values: Any) -> Rows:
        return self._read(lambda link: link.ask(name, *values))


def _by_thread(rows: Rows) -> defaultdict[ThreadKey, list[tuple[Any, ...]]]:
    """Rows that begin with namespace and thread, by those."""
    found: defaultdict[ThreadKey, list[tuple[Any, ...]]] = defaultdict(list)
    for namespace, thread_id, *columns in rows:
        found[ThreadKey(namespace, thread_id)].append(tuple(columns))
    return found


def libpq_address(url: str, *, read_only: bool) -> tuple[str, str]:
    """What libpq takes, and how errors name the database: without a password."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        raise InvalidInputError(
            "this is not a PostgreSQL URL that libpq can read; it looks like postgresql://user@host:5432/database"
        ) from None  # its text may hold the password
    if "," in str(given.get("host", "")) and not read_only:
        given.setdefault("target_session_attrs", "read-write")
    given.setdefault("fallback_application_name", "savegame")
    where = "".join(str(given[name]) + mark for name, mark in (("user", "@"), ("host", "")) if given.get(name))
    port = f":{given['port']}" if given.get("port") else ""
    return make_conninfo("", **{**given, "client_encoding": "utf8"}), f"postgresql://{where}{port}/{given.get('dbname') or ''}"
