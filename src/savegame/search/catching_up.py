"""Full-text search over messages: what is searched, how the index catches up with its store, hits.

Only the messages at the head of each thread are searched. A search first updates the index: threads whose head is not the
indexed one are read again. Saving never writes to the index. Removed data does not stay in it: after indexing a checkpoint
we check that it still exists, and removing one also removes it from the index (`removal.free`).
"""

from __future__ import annotations

import decimal
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, overload

from savegame.encoding import words
from savegame.encoding.codec import Codec
from savegame.encoding.frames import load_meta
from savegame.encoding.text import written
from savegame.encoding.tree import Node, value_of
from savegame.errors import ConflictError, CorruptionError, InvalidInputError
from savegame.index import PLACE, Entry, Found, Index, Said
from savegame.messages.locate import find_messages_node
from savegame.model import CheckpointId, ThreadKey, ThreadRow, checked_limit
from savegame.timeline.engine import Engine
from savegame.timeline.reading import Reader
from savegame.timeline.verify import Progress

logger = logging.getLogger("savegame")

WORDS: Final = "words"
SUBSTRING: Final = "substring"
MATCHES: Final = (WORDS, SUBSTRING)
"""How a query is understood: as words of a message, or as text anywhere in it."""

MANY_TERMS: Final = 64
"""Queries with more terms are searched verbatim."""

BATCH_THREADS: Final = 200
BATCH_CHARACTERS: Final = 4_000_000

SPOKEN: Final = (
    "content", "text", "parts", "reasoning", "attachments", "tool_calls", "tool_results", "function_call",
    "arguments", "input", "output", "result",
)  # fmt: skip
"""The fields of a message that are searched, in this order."""

UNSPOKEN: Final = frozenset(
    ("id", "type", "status", "mime_type", "media_type", "attachment_type", "tool_call_id", "tool_use_id", "signature")
)
"""Fields that are never searched, at any depth: identifiers for programs."""

_ENCODED: Final = re.compile(r"[A-Za-z0-9+/=_-]{512,}")
"""An encoded image or other file, not words."""

Markers = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Hit:
    """A thread that matches: the index of its best message, a snippet of that, and how many messages match.

    `score` is higher for better hits of one search, and 0 for matches inside words. `checkpoint_id` is the head whose
    messages were searched.
    """

    thread_id: str
    agent_id: str | None
    checkpoint_id: CheckpointId
    message: int
    role: str | None
    snippet: str
    score: float
    matches: int


@dataclass(frozen=True, slots=True)
class Hits(Sequence[Hit]):
    """Hits, best first. `skipped` lists threads that were not searched because their head is damaged; run `vault.verify()`."""

    hits: tuple[Hit, ...] = ()
    skipped: tuple[str, ...] = ()

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | Sequence[Hit]:
        return self.hits[place]

    def __len__(self) -> int:
        return len(self.hits)


class Query(NamedTuple):
    """What to search for. `match` is one of MATCHES, `limit` the maximum number of hits."""

    text: str
    agent: str | None
    limit: int | None
    match: str
    markers: Markers

    @classmethod
    def checked(cls, text: str, agent: str | None, limit: int | None, match: str, markers: Markers) -> Query:
        """A valid query. Raises InvalidInputError."""
        if not isinstance(text, str):
            raise InvalidInputError(f"a query must be text, not {type(text).__name__}")
        if match not in MATCHES:
            raise InvalidInputError(f"match {match!r} is unknown; one of: {', '.join(MATCHES)}")
        return cls(text, agent, checked_limit(limit), match, markers)


def search(engine: Engine, namespace: str, query: Query, progress: Progress) -> Hits:
    """Update the index, then search it. A damaged index is dropped and rebuilt."""
    index = engine.store.index()
    if query.limit == 0 or not _is_unicode(query.text):  # no message contains invalid Unicode
        return Hits()
    try:
        return _search(engine, index, namespace, query, progress)
    except CorruptionError as error:
        if error.place != PLACE:
            raise
        logger.warning("%s; rebuilding it", error)
        index.drop()
        return _search(engine, index, namespace, query, progress)


def _search(engine: Engine, index: Index, namespace: str, query: Query, progress: Progress) -> Hits:
    skipped = _catch_up(engine, index, namespace, query.agent, progress)
    agent, most = query.agent, -1 if query.limit is None else query.limit
    terms = words.terms_of(query.text) if query.match == WORDS else []
    found = index.find(namespace, terms, agent=agent, limit=most) if 0 < len(terms) <= MANY_TERMS else []
    if found:
        snippet = partial(words.snippet, pattern=words.pattern_of(terms), markers=query.markers)
    else:
        text = query.text.strip() if query.match == WORDS else query.text
        found = index.contains(namespace, text, agent=agent, limit=most)
        snippet = partial(words.snippet, pattern=words.literal_pattern(text), markers=query.markers, exact=True)
    return Hits(tuple(_hit(one, snippet(one.text)) for one in found), tuple(skipped))


def _hit(found: Found, snippet: str) -> Hit:
    head = CheckpointId(found.head)
    return Hit(found.thread_id, found.agent_id, head, found.message, found.role, snippet, found.score, found.matches)


# -- catching up -----------------------------------------------------------------------------------


def _catch_up(engine: Engine, index: Index, namespace: str, agent: str | None, progress: Progress) -> list[str]:
    """Index what has changed, in durable batches. Returns the threads that cannot be read."""
    heads = dict(engine.store.heads(namespace, agent=agent))
    known = index.heads(namespace, agent=agent)
    gone = [ThreadKey(namespace, thread_id) for thread_id in known if heads.get(thread_id) is None]
    if gone:
        index.forget(dict.fromkeys(gone))
    stale = [ThreadKey(namespace, thread_id) for thread_id, head in heads.items() if head and known.get(thread_id) != head]
    skipped: list[str] = []
    done = 0
    for batch in _batches(_entries(engine, stale, skipped)):
        index.put(batch)
        # Checkpoints may have been removed between reading and indexing them.
        lost = [entry.key for entry in batch if engine.store.find(namespace, entry.head) is None]
        if lost:
            index.forget(dict.fromkeys(lost))
        done += len(batch)
        progress(done + len(skipped), len(stale))
    return skipped


def _batches(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += sum(len(message.text) for message in entry.messages)
        if len(batch) == BATCH_THREADS or size > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _entries(engine: Engine, keys: list[ThreadKey], skipped: list[str]) -> Iterator[Entry]:
    reader = engine.without_cache()  # saves need the cache more
    for key in keys:
        try:
            entry = _entry(Reader(reader, key))
        except CorruptionError as error:
            logger.warning("thread %r is not searched: %s", key.id, error)
            skipped.append(key.id)
            continue
        if entry is not None:
            yield entry


def _entry(thread: Reader) -> Entry | None:
    def read(row: ThreadRow) -> Entry:
        frame = thread.frame(row.head)
        texts = list(map(extract_text, read_messages(thread.point(row.head, frame).node)))
        return Entry(thread.key, frame.id, row.agent, load_meta(frame.meta).created_us, texts)

    try:
        return thread.at_head(read)
    except ConflictError as error:
        logger.warning("thread %r is not searched: %s", thread.id, error)
        return None


# -- what is searched ------------------------------------------------------------------------------


def read_messages(state: Node | None) -> list[Any]:
    """The messages of an encoded state as plain data: objects by their fields, a framework's leaves by their contents."""
    found = find_messages_node(state)
    messages: list[Any] = [] if found is None else value_of(Codec(), found)
    return messages


def extract_text(message: Any) -> Said:
    """The role and the searchable text of a message, with the arguments and results of tools."""
    if not isinstance(message, Mapping):
        return Said(None, _joined(message))
    role = message.get("role", message.get("type"))
    spoken = [message[name] for name in SPOKEN if name in message]
    return Said(role if isinstance(role, str) else None, _joined(spoken))


def _joined(value: Any) -> str:
    text = _ENCODED.sub(" ", "\n".join(_texts(value)))
    return text if _is_unicode(text) else text.encode(errors="replace").decode()


def _texts(value: Any) -> Iterator[str]:
    """All texts and numbers inside a value, in order, at any depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += reversed([child for name, child in value.items() if name not in UNSPOKEN])
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += reversed(list(value))
        elif isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool):
            yield written(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
