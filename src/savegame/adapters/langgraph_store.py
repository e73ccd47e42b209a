"""LangGraph's long-term memory on a vault: `builder.compile(store=SavegameStore(vault))`.

Needs `pip install "savegame[langgraph]"`; import it from `savegame.adapters.langgraph`. A namespace is a thread of the vault.
Here is what LangGraph asks for: operations in batches, time to live, in both colours; an awaited batch is one hop to a worker,
and one more before texts are embedded. Threads are in `_langgraph_memory`, reads in `_langgraph_reading`, filters and scores in
`_langgraph_matching`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final, Literal

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    validate_op_namespace,
)

from savegame.adapters._langgraph_matching import pack_vector
from savegame.adapters._langgraph_memory import Memories, MemoryChange, Namespace, Put
from savegame.adapters._langgraph_reading import MemoryReads
from savegame.aio import AsyncVault
from savegame.errors import ClosedError, InvalidInputError, SavegameError, UnsupportedError
from savegame.vault import Vault

logger = logging.getLogger("savegame")

SWEEP_MINUTES: Final = 5
"""Time between two sweeps if nothing else is configured, as in LangGraph's stores."""

Vectors = dict[tuple[Namespace, str], dict[str, bytes]]
"""Vectors by namespace and key of their item, and the path of their text."""

Missing = tuple[tuple[Namespace, str], str, str]
"""A text without a vector: namespace and key of its item, its path, the text."""


class Batch:
    """The operations of one call. Of several puts to one place, the last one counts. Raises InvalidNamespaceError."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = list(ops)
        self.puts: dict[Namespace, dict[str, PutOp]] = defaultdict(dict)
        self.queries: list[str] = []
        for op in self.ops:
            if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):
                raise InvalidInputError(f"a batch has get, put, search and list operations, not {op!r}")
            validate_op_namespace(op)
            if isinstance(op, GetOp | PutOp):
                _check_place(op)
            if isinstance(op, PutOp):
                self.puts[tuple(op.namespace)][op.key] = op
            elif isinstance(op, SearchOp) and op.query and op.query not in self.queries:
                self.queries.append(op.query)


def _check_place(op: GetOp | PutOp) -> None:
    if not op.namespace:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    if not isinstance(op.key, str) or any("\ud800" <= character <= "\udfff" for character in op.key):
        raise InvalidInputError(f"a key must be text in valid Unicode, not {op.key!r}")
    if isinstance(op, PutOp) and not isinstance(op.value, Mapping | None):
        raise InvalidInputError(f"a value must be a dict, or None to delete the item, not {type(op.value).__name__}")


class SavegameStore(BaseStore):
    """Keeps items by namespace and key, for agents and graphs to remember. Sync and async; may be shared between threads.

    `index` is LangGraph's: `dims`, `embed`, `fields`; it adds search by meaning, exact, by cosine. Without it, `query` searches
    words. `ttl` is LangGraph's too: `default_ttl`, `refresh_on_read`, `omit_expired`, `sweep_interval_minutes`.
    """

    supports_ttl = True

    def __init__(self, vault: Vault, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> None:
        self.vault = vault
        self._memories = Memories(vault)
        self._aio = AsyncVault(self._memories.vault)
        self.ttl_config = ttl
        self.index_config = None if index is None else index.copy()
        options: Mapping[str, Any] = index or {}
        if options.get("distance_type", "cosine") != "cosine":
            raise UnsupportedError(f"distance_type {options['distance_type']!r} is not supported; leave it out for cosine")
        self.embeddings = None if index is None else ensure_embeddings(options.get("embed"))
        fields = options.get("fields") or options.get("text_fields") or ["$"]
        self._fields: list[str] = [fields] if isinstance(fields, str) else list(fields)
        self._dims: int | None = options.get("dims")
        self._sweeper: threading.Thread | None = None
        self._stop = threading.Event()

    # -- batches -----------------------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: reads see what was stored before, whatever their order; the puts of one namespace are one commit."""
        batch = Batch(ops)
        if self.embeddings is None:
            return self._run(batch, {}, {})
        queries = {query: self._packed([self.embeddings.embed_query(query)])[0] for query in batch.queries}
        known, missing = self._vectors(batch)
        texts = list(dict.fromkeys(text for _, _, text in missing))
        fresh = self._packed(self.embeddings.embed_documents(texts), texts) if texts else []
        return self._run(batch, queries, _completed(known, missing, dict(zip(texts, fresh, strict=True))))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch`, awaited."""
        batch = Batch(ops)
        if self.embeddings is None:
            return await self._aio.call(lambda _: self._run(batch, {}, {}))
        found = await asyncio.gather(*map(self.embeddings.aembed_query, batch.queries))
        queries = dict(zip(batch.queries, self._packed(found), strict=True))
        known, missing = await self._aio.call(lambda _: self._vectors(batch)) if batch.puts else ({}, [])
        texts = list(dict.fromkeys(text for _, _, text in missing))
        fresh = self._packed(await self.embeddings.aembed_documents(texts), texts) if texts else []
        vectors = _completed(known, missing, dict(zip(texts, fresh, strict=True)))
        return await self._aio.call(lambda _: self._run(batch, queries, vectors))

    def _run(self, batch: Batch, queries: Mapping[str, bytes], vectors: Vectors) -> list[Result]:
        """All reads, then all writes."""
        reading = MemoryReads(self._memories, self.ttl_config, None if self.embeddings is None else queries)
        results: list[Result] = []
        for op in batch.ops:
            if isinstance(op, GetOp):
                results.append(reading.get(op))
            elif isinstance(op, SearchOp):
                results.append(reading.search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(reading.names(op))
            else:
                results.append(None)
        puts = {
            namespace: {key: self._put(op, vectors.get((namespace, key), {})) for key, op in ops.items()}
            for namespace, ops in batch.puts.items()
        }
        if len(puts) > 1:  # refuse all before the first is stored
            for changes in puts.values():
                self._memories.check(changes)
        for namespace in dict.fromkeys([*puts, *reading.refresh]):
            changes, refresh = puts.get(namespace, {}), reading.refresh.get(namespace, set())
            known = None if refresh or any(changes.values()) else reading.memory(namespace)
            if known is None or any(key in known for key in changes):  # deleting what does not exist changes nothing
                self._memories.change(namespace, MemoryChange(changes, refresh))
        return results

    def _put(self, op: PutOp, vectors: Mapping[str, bytes]) -> Put | None:
        return None if op.value is None else Put(dict(op.value), op.ttl, vectors)

    # -- vectors -----------------------------------------------------------------------------------

    def _vectors(self, batch: Batch) -> tuple[Vectors, list[Missing]]:
        """The vectors that the items of a batch have already, and the place, path and text of each that is missing."""
        known: Vectors = {}
        missing = []
        for namespace, ops in batch.puts.items():
            memory = self._memories.read(namespace)
            for key, op in ops.items():
                texts = {} if op.value is None else dict(self._texts(op.value, op.index))
                before = memory.get(key) if texts else None
                vectors = {} if before is None else memory.vectors_of(key, before)
                former = dict(self._texts(before.value, op.index)) if before is not None and vectors else {}
                size = next(iter(vectors.values()), b"") if self._dims is None else bytes(4 * self._dims)
                place = (namespace, key)
                known[place] = {
                    path: vectors[path]
                    for path, text in texts.items()
                    if path in vectors and former.get(path) == text and len(vectors[path]) == len(size)
                }
                missing += [(place, path, text) for path, text in texts.items() if path not in known[place]]
        return known, missing

    def _texts(self, value: Mapping[str, Any], index: Literal[False] | list[str] | None) -> Iterator[tuple[str, str]]:
        """The texts of a value that are searched by meaning, by path; several at one path are numbered."""
        for field in self._fields if index is None else index or ():
            texts = get_text_at_path(value, field)
            yield from ((f"{field}.{number}" if len(texts) > 1 else field, text) for number, text in enumerate(texts))

    def _packed(self, vectors: list[list[float]], texts: list[str] | None = None) -> list[bytes]:
        if texts is not None and len(vectors) != len(texts):
            raise InvalidInputError(f"the embedding function returned {len(vectors)} vectors for {len(texts)} texts")
        return [pack_vector(vector, self._dims) for vector in vectors]

    # -- time to live ------------------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Delete the items that have expired, in all namespaces. Returns their number."""
        now = self._memories.now()
        return sum(
            self._memories.change(memory.namespace, MemoryChange(sweep=True))
            for memory in self._memories.below(())
            if any(item.expired(now) for _, item in memory.items())
        )

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep in a background thread, once per interval. Cancelling the result stops it, as `stop_ttl_sweeper` does."""
        done: Future[None] = Future()
        if not self.ttl_config:
            done.set_result(None)
            return done
        done.add_done_callback(lambda future: self._stop.set() if future.cancelled() else None)
        if self._sweeper is None or not self._sweeper.is_alive():
            minutes = sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes") or SWEEP_MINUTES
            self._stop = threading.Event()
            work = (done, self._stop, minutes * 60)
            self._sweeper = threading.Thread(target=self._sweep, args=work, name="savegame-ttl", daemon=True)
            self._sweeper.start()
        return done

    def _sweep(self, done: Future[None], stop: threading.Event, seconds: float) -> None:
        while not stop.wait(seconds):
            try:
                logger.debug("swept %d expired items", self.sweep_ttl())
            except ClosedError:  # nothing is left to sweep
                break
            except SavegameError:
                logger.exception("expired items were not swept; the next sweep will try again")
        if not done.cancelled():
            done.set_result(None)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper; waits up to `timeout` seconds, None: until it has stopped. Returns whether it has."""
        self._stop.set()
        if self._sweeper is None:
            return True
        self._sweeper.join(timeout)
        return not self._sweeper.is_alive()


def _completed(known: Vectors, missing: list[Missing], fresh: Mapping[str, bytes]) -> Vectors:
    """All vectors of the items of a batch, given those of the missing texts."""
    for place, path, text in missing:
        known[place][path] = fresh[text]
    return known
