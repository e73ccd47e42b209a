"""The primitives of the rules on journals: checked against the index in memory, then said as lines to be written.

A `Draft` collects the lines of one thread in one commit. Most changes only add lines; after a Rewrite the journal is
rewritten, and after a DeleteThread it begins a new life. Changes are made to the index at once, so that later ones of a
commit see them: when a commit fails, its threads are forgotten and read again.
Touches rules, model, journal, lines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from savegame.encoding.json_form import from_text, to_text
from savegame.model import Frame, Lease, ThreadKey, ThreadRow
from savegame.store import Append
from savegame.stores.file.journal import Journal, JournalFrame, JournalReader, new_journal
from savegame.stores.file.lines import Op, Place, first_line, save_op
from savegame.stores.file.threads import Threads
from savegame.stores.rules import Blobs, Pin, Transaction


@dataclass(slots=True)
class ThreadChanges:
    """What a commit does to one thread."""

    journal: Journal
    there: bool
    """Whether the thread has a directory."""
    lines: list[Place] = field(default_factory=list)
    whole: bool = False
    """Whether the journal has to be rewritten."""
    gone: bool = False
    reborn: bool = False
    """Whether it was deleted on the way: nothing beside the journal stays."""
    keyframes: dict[int, bytes | None] = field(default_factory=dict)
    aside: list[Place] = field(default_factory=list)
    """Lines of the old journal that are kept elsewhere."""
    new_ids: list[str] = field(default_factory=list)
    recode: Callable[[bytes], bytes] | None = None
    """What every delta becomes on the way."""

    @property
    def exists(self) -> bool:
        """Whether there is a thread, with what was drafted so far."""
        return bool(self.lines) or (self.there and not self.gone)

    def say(self, op: Op) -> None:
        """Add a line."""
        place = Place(op=op)
        self.lines.append(place)  # first: an interrupt here must show that the index may have changed
        self.gone = False
        self.journal.apply(op, place)


class FileTransaction(Transaction):
    """One commit in the making, as drafts of the threads that it looks at."""

    def __init__(self, threads: Threads, clock: Callable[[], int], next_epoch: Callable[[int, int], int]) -> None:
        self._threads = threads
        self._clock = clock
        self._next_epoch = next_epoch
        self.drafts: dict[ThreadKey, ThreadChanges] = {}

    def _draft(self, key: ThreadKey) -> ThreadChanges:
        if key not in self.drafts:
            found = self._threads.look(key)
            self.drafts[key] = ThreadChanges(found or new_journal(key, self._threads.directory(key)), there=found is not None)
        return self.drafts[key]

    def _journal(self, key: ThreadKey) -> Journal:
        return self._draft(key).journal

    def now(self) -> int:
        return self._clock()

    def next_epoch(self, newest: int) -> int:
        return self._next_epoch(newest, self._clock())

    # -- threads -----------------------------------------------------------------------------------

    def row(self, key: ThreadKey) -> ThreadRow | None:
        draft = self._draft(key)
        return draft.journal.row if draft.exists else None

    def add_thread(self, key: ThreadKey) -> ThreadRow:
        return self._journal(key).row  # its first line makes it

    def put_row(self, row: ThreadRow) -> None:
        draft = self._draft(row.key)
        before = draft.journal.row
        if not draft.whole and (row.head, row.agent) != (before.head, before.agent):
            draft.say({"head": row.head} | ({} if row.agent == before.agent else {"agent": row.agent}))
        self._put_lease(draft, row.lease)
        draft.journal.row = row

    def _put_lease(self, draft: ThreadChanges, lease: Lease | None) -> None:
        if lease is not None and lease != draft.journal.row.lease:
            draft.say(_lease_op(lease))

    def delete_thread(self, key: ThreadKey) -> None:
        draft = self._draft(key)
        draft.reborn = True
        if draft.exists:
            draft.journal = new_journal(key, draft.journal.directory)
            draft.lines, draft.aside, draft.keyframes, draft.new_ids = [], [], {}, []
            draft.whole = draft.gone = True

    # -- frames ------------------------------------------------------------------------------------

    def pins(self, key: ThreadKey, seqs: Collection[int]) -> dict[int, Pin]:
        entries = self._journal(key).entries
        return {seq: Pin(entries[seq].id, entries[seq].note) for seq in seqs if seq in entries}

    def frames_after(self, key: ThreadKey, seq: int) -> list[Frame]:
        journal = self._journal(key)
        with journal.reading() as reader:
            return [journal.frame(reader, number, delta=True) for number in sorted(journal.entries) if number > seq]

    def nth_newest(self, key: ThreadKey, number: int) -> int | None:
        journal = self._journal(key)
        seqs = (seq for seq in range(journal.row.last, 0, -1) if seq in journal.entries)
        return next(islice(seqs, number, None), None)

    def count(self, key: ThreadKey) -> int:
        return len(self._journal(key).entries)

    def is_taken(self, change: Append) -> bool:
        key, name = change.key, change.id
        if change.fresh:
            return name in self._journal(key).ids
        drafts = [draft.journal for its, draft in self.drafts.items() if its.namespace == key.namespace]
        others = (found for found in self._threads.may_have(key.namespace, name) if found.key not in self.drafts)
        return any(name in journal.ids for journal in (*drafts, *others))

    def add_frame(self, row: ThreadRow, frame: Frame) -> None:
        draft = self._draft(row.key)
        before = draft.journal.row
        if row.agent != before.agent:  # a line of its own: damage to a save does not hide whose it is
            draft.say({"head": before.head, "agent": row.agent})
        draft.say(save_op(frame, row.floor if row.floor > before.floor else 0))
        self._put_lease(draft, row.lease)
        draft.new_ids.append(frame.id)

    def put_note(self, key: ThreadKey, seq: int, note: bytes | None) -> None:
        self._draft(key).say({"note": seq, "text": None if note is None else to_text("note", note)})

    def rebase(self, key: ThreadKey, frames: Sequence[tuple[int, int, bytes]]) -> None:
        draft = self._draft(key)
        draft.whole = True
        entries = draft.journal.entries
        with draft.journal.reading() as reader:
            for seq, base, delta in frames:
                op = reader.op(entries[seq].place) | {"base": base, "delta": to_text("delta", delta)}
                entries[seq] = entries[seq]._replace(base=base, place=Place(op=op))

    def drop_frames(self, key: ThreadKey, seqs: Sequence[int], *, aside: bool) -> None:
        draft = self._draft(key)
        draft.whole = True
        for seq in seqs:
            entry = draft.journal.entries.pop(seq, None)
            if entry is not None:
                draft.aside += [entry.place] if aside else []
                draft.journal.ids.pop(entry.id, None)
                draft.keyframes[seq] = None

    # -- keyframes, records, blobs -----------------------------------------------------------------

    def put_keyframe(self, key: ThreadKey, seq: int, body: bytes | None) -> None:
        draft = self._draft(key)
        if seq in draft.journal.entries:
            draft.keyframes[seq] = body

    def has_record(self, key: ThreadKey, kind: str, name: str) -> bool:
        return (kind, name) in self._journal(key).records

    def record_names(self, key: ThreadKey, kind: str) -> Iterable[str]:
        return (name for its, name in self._journal(key).records if its == kind)

    def put_record(self, key: ThreadKey, kind: str, name: str, value: bytes | None) -> None:
        draft = self._draft(key)
        if value is not None or (kind, name) in draft.journal.records:
            text = None if value is None else to_text("value", value)
            draft.say({"record": name, "kind": kind, "text": text})

    def put_blobs(self, key: ThreadKey, blobs: Blobs) -> None:
        draft = self._draft(key)
        for digest, content in blobs:
            if digest not in draft.journal.blobs:
                draft.say({"large": digest.hex(), "text": to_text("content", content)})

    def keep_blobs(self, key: ThreadKey, digests: Collection[bytes], *, aside: bool) -> None:
        draft = self._draft(key)
        draft.whole = True
        for digest in [digest for digest in draft.journal.blobs if digest not in digests]:
            place = draft.journal.blobs.pop(digest)
            draft.aside += [place] if aside else []


def current_lines(journal: Journal, reader: JournalReader, recode: Callable[[bytes], bytes] | None) -> Iterator[Op | bytes]:
    """The lines of a journal without those that were superseded; a damaged line of a frame stays as it is."""
    row = journal.row
    yield first_line(journal.key, journal.life)
    for place in journal.blobs.values():
        yield reader.op(place)
    for _, entry in sorted(journal.entries.items()):
        yield reader.raw(entry.place) if entry.broken else _frame_now(reader.op(entry.place), entry, recode)
    for place in journal.records.values():
        yield reader.op(place)
    if row.lease:
        yield _lease_op(row.lease)
    if row.last:
        yield {"head": row.head, "last": row.last, "floor": row.floor} | ({} if row.agent is None else {"agent": row.agent})


def _frame_now(op: Op, entry: JournalFrame, recode: Callable[[bytes], bytes] | None) -> Op:
    front = {"save": op["save"], "id": op["id"], "base": entry.base}
    if entry.note is not None:
        front["note"] = to_text("note", entry.note)
    op = front | {name: value for name, value in op.items() if name not in (*front, "note")}
    return op if recode is None else op | {"delta": to_text("delta", recode(from_text("delta", op["delta"])))}


def _lease_op(lease: Lease) -> Op:
    return {"lease": lease.epoch, "owner": lease.owner, "expires": lease.expires}
