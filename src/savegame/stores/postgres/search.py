"""An index in tables beside the store's own, by tsvector: `PostgresIndex(work, schema)`.

The tables are made when something is first put into them, and dropped when their mark says that they are of another
version. Text is cut into words here, not by the server, so that it needs no extension and finds the same as SQLite. Who
writes locks the rows of threads in order, and what else belongs to a thread only afterwards: no writers wait in a circle.
The statements are in sql/postgres/search.sql. Touches index, words, errors, work and pool.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from savegame.encoding.words import Term, words_of
from savegame.errors import CorruptionError, UnavailableError, UnsupportedError
from savegame.index import Entry, Found, Index, Said, damaged, rearranged
from savegame.model import ThreadKey
from savegame.stores.postgres.changes import Work
from savegame.stores.postgres.link import Link, Rows
from savegame.stores.postgres.work import Task, Workings

T = TypeVar("T")

TABLE_COMMENT: Final = "savegame search index, version 1"
"""Of the tables and of how text is cut into words: after a change of either, every index is rebuilt."""

TABLES: Final = ("search_thread", "search_message", "search_piece")

THREADS_AT_ONCE: Final = 50
"""Threads whose messages are read at a time."""

MOST_LETTERS: Final = 500
"""Of a word; longer ones are cut. This and what follows keeps clear of the limits of a tsvector."""

MOST_WORDS: Final = 16_000
MOST_BYTES: Final = 500_000
MOST_TIMES: Final = 250
"""How often one word may be in a tsvector."""

LONGEST_PHRASE: Final = 64
"""A longer one is not looked for by words. Pieces of one text have all but one of this many words in common."""


class PostgresIndex(Index):
    """Words in three tables of a schema. Inside `connection()`, part of its transaction."""

    def __init__(self, work: Workings, schema: str) -> None:
        self._work = work
        self._schema = schema
        self._lock = zlib.crc32(f"savegame search {schema}".encode())

    def heads(self, namespace: str, *, agent: str | None = None) -> dict[str, str]:
        def read(link: Link) -> dict[str, str]:
            return dict(link.ask("search_heads", namespace, agent)) if self._is_there(link) else {}

        return self._read(read)

    def put(self, entries: Iterable[Entry]) -> None:
        wanted = {entry.key: entry for entry in entries}
        with self._watched():
            if wanted and not self._work.read(self._is_there):
                self._make()
            if wanted:
                self._write(partial(_put, entries=wanted))

    def forget(self, heads: Mapping[ThreadKey, str | None]) -> None:
        def job(work: Work) -> None:
            if heads and self._is_there(work.link):
                _forget(work, heads)

        try:
            with self._watched():
                self._write(job)
        except CorruptionError:
            self.drop()

    def find(self, namespace: str, terms: Sequence[Term], *, agent: str | None = None, limit: int = 20) -> list[Found]:
        asked = [words for words in map(_asked, terms) if words]
        if not asked or any(len(words) > LONGEST_PHRASE for words in asked):
            return []
        each = [" <-> ".join(words) for words in asked]
        every = " & ".join(f"({one})" for one in each)
        values = (namespace, every, f"{_space(namespace)} & {every}", each, agent, None if limit < 0 else limit)

        def read(link: Link) -> list[Found]:
            return [_found(*row) for row in link.ask("search_find", *values)] if self._is_there(link) else []

        return self._read(read)

    def contains(self, namespace: str, text: str, *, agent: str | None = None, limit: int = 20) -> list[Found]:
        def read(link: Link) -> list[Found]:
            with link.snapshot():
                return _containing(link, namespace, text.casefold(), agent, limit) if self._is_there(link) else []

        return self._read(read)

    def size(self) -> int:
        return sum(size for _, _, size in self._work.read(lambda link: link.ask("search_tables", self._schema)))

    def drop(self) -> None:
        def job(work: Work) -> None:
            work.link.tell("lock_layout", self._lock)
            with contextlib.suppress(CorruptionError):  # which is why it is dropped
                self._is_there(work.link)
            work.link.tell("search_drop")

        self._write(job)

    def close(self) -> None:
        """Nothing is held: connections are the store's."""

    # -- the tables --------------------------------------------------------------------------------

    def _is_there(self, link: Link) -> bool:
        """Whether the tables are made. Raises CorruptionError if they are not whole or of another version."""
        marks = {name: mark for name, mark, _ in link.ask("search_tables", self._schema)}
        if not marks:
            return False
        for name, mark in marks.items():
            if not mark.startswith(TABLE_COMMENT.rstrip("0123456789")):
                raise UnsupportedError(
                    f"{self._where}: expected a table of the search index, found another one named {name}; nothing changed, "
                    f"rename it or choose another schema="
                )
        if marks != dict.fromkeys(TABLES, TABLE_COMMENT):
            raise damaged(self._where, f"it has {marks}")
        return True

    def _make(self) -> None:
        """Create the tables, unless another process has meanwhile."""

        def job(work: Work) -> None:
            work.link.tell("lock_layout", self._lock)
            if not self._is_there(work.link):
                for name in work.link.sql:
                    if name.startswith("search_make_"):
                        work.link.tell(name)

        try:
            self._write(job)
        except UnavailableError as error:
            if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise
            raise UnavailableError(
                f"{self._where}: the right to create the tables of the search index is missing; as the owner: GRANT CREATE ON "
                f"SCHEMA s TO u, or search once and then GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA s TO u "
                f"(s: the schema, u: the user)"
            ) from error

    @property
    def _where(self) -> str:
        return self._work.pool.where

    def _read(self, job: Callable[[Link], T]) -> T:
        with self._watched():
            return self._work.read(job, hurried=False)  # reading every message takes its time

    def _write(self, job: Callable[[Work], None]) -> None:
        """Do it in a transaction; a second time, which does no harm, if the outcome is unknown."""
        self._work.write(Task([], job, marked=False, hurried=False))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """What the server finds wrong with the tables is damage of the index."""
        try:
            yield
        except CorruptionError as error:
            if isinstance(error.__cause__, psycopg.Error):
                raise damaged(self._where, error.__cause__) from error
            raise


# -- rows ------------------------------------------------------------------------------------------


def _put(work: Work, entries: Mapping[ThreadKey, Entry]) -> None:
    link = work.link
    threads = ((*key, entry.agent, entry.head, entry.updated_us) for key, entry in entries.items())
    link.tell("search_put_threads", *_columns(threads))
    there: defaultdict[ThreadKey, Rows] = defaultdict(list)
    for namespace, thread_id, *message in link.ask("search_messages", *_columns(entries)):
        there[ThreadKey(namespace, thread_id)].append(tuple(message))
    rows: defaultdict[str, Rows] = defaultdict(list)
    for key, entry in entries.items():
        for name, row in _replaced(key, there[key], entry.messages):
            rows[name].append(row)
    for name, found in rows.items():
        link.tell(name, *_columns(found))


def _replaced(key: ThreadKey, there: Rows, messages: Sequence[Said]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """What makes the messages of a thread those: names of statements, each with one row of values."""
    digests = [_digest(message) for message in messages]
    moved, new, left = rearranged(there, digests)
    for number in left:
        yield "search_delete_messages", (*key, number)
        yield "search_delete_pieces", (*key, number)
    for number, place in moved:
        yield "search_move_messages", (*key, number, place)
    for number, place in enumerate(new, max((row[0] for row in there), default=0) + 1):
        role, text = messages[place]
        vectors = _vectors(key.namespace, text)
        columns = (digests[place], None if role is None else _bytes(role), _bytes(text))
        yield "search_put_messages", (*key, number, place, *columns, vectors[0] if len(vectors) == 1 else None)
        for piece, vector in enumerate(vectors if len(vectors) > 1 else ()):
            yield "search_put_pieces", (*key, number, piece, vector)


def _forget(work: Work, heads: Mapping[ThreadKey, str | None]) -> None:
    doomed = work.link.ask("search_lock_threads", *_columns((*key, head) for key, head in heads.items()))
    for name in ("pieces", "messages", "threads") if doomed else ():
        work.link.tell(f"search_forget_{name}", *_columns(doomed))


def _containing(link: Link, namespace: str, wanted: str, agent: str | None, limit: int) -> list[Found]:
    found: list[Found] = []
    threads = link.ask("search_newest_threads", namespace, agent)
    for start in range(0, len(threads), THREADS_AT_ONCE):
        page = threads[start : start + THREADS_AT_ONCE]
        texts: defaultdict[str, list[tuple[int, bytes | None, bytes]]] = defaultdict(list)
        for thread_id, place, role, text in link.ask("search_texts", namespace, [row[0] for row in page]):
            if wanted in _text(text).casefold():
                texts[thread_id].append((place, role, text))
        for row in page:
            if len(found) == limit:
                return found
            if matches := texts[row[0]]:
                found.append(_found(*row, *matches[0], 0.0, len(matches)))
    return found


def _found(thread_id: str, agent: str | None, head: str, place: int, role: bytes | None, text: bytes, *more: Any) -> Found:
    return Found(thread_id, agent, head, place, None if role is None else _text(role), _text(text), *more)


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any] | None]:
    """Rows as the arrays that statements take; None for one without a value, which `unnest` fills up.

    Nulls alone have no type and would travel as text, where `array_nulls = off` makes words of them.
    """
    columns = (list(column) for column in zip(*rows, strict=True))
    return [column if any(value is not None for value in column) else None for column in columns]


def _digest(message: Said) -> bytes:
    role = "-" if message.role is None else f"+{message.role}"
    return hashlib.blake2b(_bytes(f"{len(role)} {role}{message.text}"), digest_size=16).digest()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(stored: bytes) -> str:
    return stored.decode(errors="surrogatepass")


# -- words -----------------------------------------------------------------------------------------


def _vectors(namespace: str, text: str) -> list[str]:
    """Text as PostgreSQL's tsvector, in as many pieces as it takes; each has a word for the namespace too."""
    words = [word[:MOST_LETTERS] for word in words_of(text)]
    return [f"{_space(namespace)} {_vector(piece)}" for piece in _pieces(words)]


def _vector(words: Sequence[str]) -> str:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for place, word in enumerate(words, 1):
        places[word].append(str(place))
    return " ".join(f"'{word}':{','.join(numbers)}" for word, numbers in places.items())


def _pieces(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """Stretches that each fit into a tsvector; every phrase is whole in one of them."""
    start = 0
    while (end := _reach(words, start)) < len(words):
        yield words[start:end]
        start = end - LONGEST_PHRASE + 1
    yield words[start:]


def _reach(words: Sequence[str], start: int) -> int:
    """How far a tsvector reaches that begins with this word."""
    if len(words) - start <= MOST_TIMES:
        return len(words)
    times: Counter[str] = Counter()
    size = 0
    last = min(start + MOST_WORDS, len(words))
    for place in range(start, last):
        word = words[place]
        times[word] += 1
        size += 4 * len(word)
        if times[word] > MOST_TIMES or size > MOST_BYTES:
            return place
    return last


def _asked(term: Term) -> list[str]:
    """The words of a term for a tsquery. Each is quoted and has no signs, so that nothing in it is syntax."""
    words = [f"'{word[:MOST_LETTERS]}'" for word in words_of(term.text)]
    # `c++` is a word c, not the beginning of any word.
    if words and term.open and term.text.strip("\0 ")[-1].isalnum():
        words[-1] += ":*"
    return words


def _space(namespace: str) -> str:
    """A word that only texts of a namespace have: no text has one with this sign."""
    return f"'@{hashlib.blake2b(namespace.encode(), digest_size=8).hexdigest()}'"
