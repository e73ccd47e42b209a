"""The reads of a batch on LangGraph's long-term memory: get, search, list. All see what was stored before the batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, repeat, takewhile
from typing import Any, NamedTuple

from langgraph.store.base import GetOp, Item, ListNamespacesOp, SearchItem, SearchOp, TTLConfig

from savegame.adapters._langgraph_matching import cosines, fits, matches, score_words
from savegame.adapters._langgraph_memory import Memories, Memory, Namespace, Stored


class FoundItem(NamedTuple):
    """An item that a search looks at."""

    memory: Memory
    key: str
    item: Stored

    def fields(self) -> dict[str, Any]:
        """The fields of LangGraph's item."""
        return {"namespace": self.memory.namespace, "key": self.key, **_common(self.item)}


class MemoryReads:
    """Reads each namespace once, so that the results agree; `refresh` collects the items whose life a read prolongs.

    `queries` are the vectors of the texts that are searched for; None if there is no index.
    """

    def __init__(self, memories: Memories, ttl: TTLConfig | None, queries: Mapping[str, bytes] | None) -> None:
        self._memories = memories
        self._queries = queries
        self._refreshes = ttl is not None and bool(ttl.get("refresh_on_read"))
        self._omits = ttl is not None and bool(ttl.get("omit_expired"))
        self._read: dict[Namespace, Memory] = {}
        self._now = memories.now()
        self.refresh: dict[Namespace, set[str]] = defaultdict(set)

    def memory(self, namespace: Namespace) -> Memory:
        """The items of a namespace."""
        if namespace not in self._read:
            self._read[namespace] = self._memories.read(namespace)
        return self._read[namespace]

    def get(self, op: GetOp) -> Item | None:
        """One item; None if it does not exist."""
        memory = self.memory(tuple(op.namespace))
        item = memory.get(op.key)
        if item is None or self._hidden(item):
            return None
        self._note(memory.namespace, op.key, item, wanted=op.refresh_ttl)
        return Item(namespace=memory.namespace, key=op.key, **_common(item))

    def search(self, op: SearchOp) -> list[SearchItem]:
        """The items below a prefix that pass the filter: best matches first, then the others, newest first."""
        memories = [self._read.setdefault(one.namespace, one) for one in self._memories.below(tuple(op.namespace_prefix))]
        newest = merge(*map(self._fitting, memories, repeat(op)), key=lambda one: one.item.updated_at, reverse=True)
        wanted = slice(op.offset, op.offset + op.limit)
        if op.query:
            found = list(newest)
            scores = self._scores(op.query, found)
            best = sorted(range(len(found)), key=lambda place: -2 if (score := scores[place]) is None else score, reverse=True)
            page = [(found[place], scores[place]) for place in best[wanted]]
        else:
            page = [(one, None) for one in list(islice(newest, wanted.stop))[wanted]]
        for one, _ in page:
            self._note(one.memory.namespace, one.key, one.item, wanted=op.refresh_ttl)
        return [SearchItem(**one.fields(), score=score) for one, score in page]

    def _fitting(self, memory: Memory, op: SearchOp) -> Iterator[FoundItem]:
        """The items of a namespace that a search considers, last put first."""
        for key, item in memory.items():
            if not self._hidden(item) and fits(item.value, op.filter):
                yield FoundItem(memory, key, item)

    def names(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        """The namespaces that have items and meet all conditions, cut off at `max_depth`, in order."""
        conditions = op.match_conditions or ()
        starts = [tuple(condition.path) for condition in conditions if condition.match_type == "prefix"]
        prefix = max((tuple(takewhile(lambda label: label != "*", path)) for path in starts), key=len, default=())
        if self._omits:
            memories = self._memories.below(prefix)
            names = [one.namespace for one in memories if not all(self._hidden(item) for _, item in one.items())]
        else:
            names = list(self._memories.names(prefix))
        found = {name[: op.max_depth] for name in names if all(matches(name, condition) for condition in conditions)}
        return sorted(found)[op.offset : op.offset + op.limit]

    def _scores(self, text: str, found: Sequence[FoundItem]) -> list[float | None]:
        if self._queries is None:
            return score_words(text, [one.item.value for one in found])
        query = self._queries[text]
        stored = {one.memory.namespace: one.memory.vectors() for one in {one.memory.namespace: one for one in found}.values()}
        places: list[int] = []
        vectors: list[bytes] = []
        for place, (memory, key, item) in enumerate(found):
            put_at, own = stored[memory.namespace].get(key, (None, {}))
            fitting = [vector for vector in own.values() if len(vector) == len(query)] if put_at == item.updated_at else []
            vectors += fitting
            places += [place] * len(fitting)
        scores: list[float | None] = [None] * len(found)
        for place, score in zip(places, cosines(query, vectors), strict=True):
            best = scores[place]
            scores[place] = score if best is None else max(best, score)
        return scores

    def _hidden(self, item: Stored) -> bool:
        return self._omits and item.expired(self._now)

    def _note(self, namespace: Namespace, key: str, item: Stored, *, wanted: bool) -> None:
        """Take note of a read that prolongs the life of an item."""
        if wanted and self._refreshes and item.ttl is not None:
            self.refresh[namespace].add(key)


def _common(item: Stored) -> dict[str, Any]:
    return {"value": item.value, "created_at": item.created_at, "updated_at": item.updated_at}
