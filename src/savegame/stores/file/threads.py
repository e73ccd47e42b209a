"""The threads of a store as this process knows them: indexes of journals, bounded in number, and rows for listings.

Nothing here is trusted for longer than the files stay as they were: a directory is listed again when its time of change
moves, a journal is read on when its size does. Touches directory, disk, ids, journal, listing.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from savegame.model import ThreadKey, ThreadRow
from savegame.store import SOUGHT
from savegame.stores.directory import SETTLED_NS
from savegame.stores.file.disk import JOURNAL, Disk, directory_in, hashed, hashed_in, names_in, thread_directory
from savegame.stores.file.ids import IdIndex, prefix_in
from savegame.stores.file.journal import Journal, Signature, load, signature_at
from savegame.stores.file.listing import LISTING, Summary, read_listing, write_listing

MOST_THINGS: Final = 200_000
"""How many frames, records and large values are remembered the places of."""

WORTH_KEEPING: Final = 256
"""How many threads must have been read, or written to, before a listing is kept of them."""


@dataclass(slots=True)
class Space:
    """The threads of a namespace: the names of their directories, sorted; once needed, (id, name) in order of ids."""

    directory: str
    changed: int = 0
    names: list[str] = field(default_factory=list)
    order: list[tuple[str, str]] | None = None


class Threads:
    """What is known of the threads below a root. Its user holds the store's lock."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._journals: OrderedDict[str, tuple[Journal, int]] = OrderedDict()
        self._weight = 0
        self._summaries: dict[str, Summary] = {}
        self._spaces: dict[str, Space] = {}
        self._news: Counter[str] = Counter()
        """How many summaries changed in each namespace since its listing was kept."""

    def directory(self, key: ThreadKey) -> str:
        """Where a thread is or would be."""
        return thread_directory(self._disk.root, key)

    def look(self, key: ThreadKey) -> Journal | None:
        """The journal of a thread as it is now. Raises CorruptionError if it is damaged as a whole."""
        journal = self.journal(self.directory(key), key)
        return None if journal is None else journal.check()

    def journal(self, directory: str, key: ThreadKey | None = None) -> Journal | None:
        """The journal in a directory as it is now, damaged or not."""
        journal = load(directory, self._released(directory), key)
        if journal is None:
            self._summaries.pop(directory, None)
            return None
        self.keep(journal)
        return journal

    def keep(self, journal: Journal) -> None:
        """Remember a journal instead of what was known of its thread; forget others until all fit."""
        self._released(journal.directory)
        self._journals[journal.directory] = journal, journal.weight
        self._weight += journal.weight
        known = self._summaries.get(journal.directory)
        if known is None or known.signature != journal.signature:
            self._news[os.path.dirname(journal.directory)] += 1
            sought = frozenset(kind for kind, _ in journal.records if kind in SOUGHT)
            found = Summary(journal.signature, journal.row, dict(journal.sizes), sound=not journal.damage, sought=sought)
            self._summaries[journal.directory] = found
        while self._weight > MOST_THINGS and len(self._journals) > 1:
            self._weight -= self._journals.popitem(last=False)[1][1]

    def forget(self, directory: str) -> None:
        """Remember nothing of a thread."""
        self._released(directory)
        self._summaries.pop(directory, None)

    def _released(self, directory: str) -> Journal | None:
        known, weight = self._journals.pop(directory, (None, 0))
        self._weight -= weight
        return known

    # -- listings ----------------------------------------------------------------------------------

    def rows(self, namespace: str, after: str | None = None, *, checked: bool = True) -> Iterator[ThreadRow]:
        """The row of every thread, by id. If `checked`, raises CorruptionError for one that is damaged as a whole."""
        space = self._space(self.space(namespace))
        order = self._ordered(space)
        for _, name in order[0 if after is None else bisect_right(order, (after, "~")) :]:
            summary = self.summary(os.path.join(space.directory, name))
            if summary is None:
                continue
            if checked and not summary.sound:
                self.look(summary.row.key)
            yield summary.row

    def sought(self, namespace: str, kind: str) -> Iterator[str]:
        """The ids of the threads with records of a kind of SOUGHT, in order. Damaged ones count by what can be read."""
        space = self._space(self.space(namespace))
        for thread_id, name in self._ordered(space):
            directory = os.path.join(space.directory, name)
            summary = self.summary(directory)
            if summary is not None and summary.sought is None:
                self.forget(directory)
                summary = self.summary(directory)
            if summary is not None and kind in (summary.sought or ()):
                yield thread_id

    def summary(self, directory: str) -> Summary | None:
        """What listings need of the thread in a directory; None if it is gone."""
        known = self._summaries.get(directory)
        if known is None or known.signature != _signature_in(directory):
            self.journal(directory)
        return self._summaries.get(directory)

    def space(self, namespace: str) -> str:
        """The directory of a namespace."""
        return directory_in(self._disk.root, namespace)

    def threads_of(self, namespace: str) -> list[str]:
        """The directory of every thread of a namespace, also where it has two directories: none of them is overlooked."""
        spaces = {self.space(namespace), os.path.join(self._disk.root, hashed(namespace))}
        return [path for space in sorted(spaces) for path in hashed_in(space)]

    def spaces(self) -> list[str]:
        """The directory of every namespace."""
        return hashed_in(self._disk.root)

    def may_have(self, namespace: str, checkpoint_id: str) -> Iterator[Journal]:
        """The threads in which a checkpoint may be."""
        space = self.space(namespace)
        names = self._space(space).names
        beginnings = (prefix_in(checkpoint_id), *IdIndex(self._disk, space).find(checkpoint_id))
        found = (names[bisect_left(names, begin) : bisect_right(names, f"{begin}~")] for begin in beginnings)
        for name in dict.fromkeys(chain.from_iterable(found)):
            journal = self.journal(os.path.join(space, name))
            if journal is not None:
                yield journal.check()

    def _space(self, directory: str) -> Space:
        try:
            changed = os.stat(directory).st_mtime_ns
        except FileNotFoundError:
            return Space(directory)
        known = self._spaces.get(directory)
        if known is None or known.changed != changed:
            if known is None:
                self._summaries = read_listing(directory) | self._summaries
            names = [os.path.basename(path) for path in hashed_in(directory)]
            known = Space(directory, changed if time.time_ns() - changed > SETTLED_NS else 0, names)
            self._spaces[directory] = known
        return known

    def _ordered(self, space: Space) -> list[tuple[str, str]]:
        if space.order is not None:
            return space.order
        paths = ((name, os.path.join(space.directory, name)) for name in space.names)
        found = ((name, self._summaries.get(path) or self.summary(path)) for name, path in paths)
        every = sorted((summary.row.key.id, name) for name, summary in found if summary is not None)
        order = list(dict(every).items())  # of a thread in two directories, the one that it is looked for in comes last
        if len(every) == len(space.names):  # else a first save is not done yet, and nothing here changes when it is
            space.order = order
        return order

    def keep_listings(self) -> None:
        """Write down what is known of namespaces that there is news of, as far as it still holds."""
        for space, count in self._news.items():
            if count >= WORTH_KEEPING:
                known = [(path, one) for path, one in self._summaries.items() if os.path.dirname(path) == space]
                write_listing(space, [(path, one) for path, one in known if one.signature == _signature_in(path)])
                self._news[space] = 0

    def unlist(self, space: str) -> None:
        """Remove the listing of a namespace, before something of it goes; the next one is written again."""
        names = [name for name in names_in(space) if name.startswith(LISTING)]
        if LISTING in names:
            self._summaries = read_listing(space) | self._summaries
            self._news[space] = WORTH_KEEPING
        for name in names:
            self._disk.remove(os.path.join(space, name))


def _signature_in(directory: str) -> Signature | None:
    return signature_at(os.path.join(directory, JOURNAL))
