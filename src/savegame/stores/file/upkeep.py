"""Sizes, checking, mending and compacting of a file store: what it does for `stats`, `verify`, `repair` and others.

Checking reads every file again, whatever is remembered. Mending never deletes: damaged lines go to `aside.jsonl` beside
their journal, as they are, and what cannot be read at all to `aside/` in the root. Touches the other modules of this store.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

from savegame.encoding.json_form import from_text
from savegame.errors import CorruptionError
from savegame.model import Problem
from savegame.stores.file.changes import ThreadChanges
from savegame.stores.file.disk import (
    ASIDE_DIRECTORY,
    ASIDE_FILE,
    JOURNAL,
    Disk,
    files_below,
    hash_in,
    hashed_in,
    is_hashed,
    name_aside,
    names_in,
    thread_directory,
)
from savegame.stores.file.ids import IdIndex, names_directory
from savegame.stores.file.journal import Journal, JournalReader, load
from savegame.stores.file.keyframes import is_sound, keyframes_of
from savegame.stores.file.threads import Threads
from savegame.stores.file.write import TORN, Writer, last_epoch, set_epoch
from savegame.stores.sums import damaged, problem


def sizes(disk: Disk, threads: Threads) -> dict[str, int]:
    """Bytes of each kind of line, of files beside the journals, and of all files."""
    found: Counter[str] = Counter(dict.fromkeys(("frames", "keyframes", "notes", "records", "blobs", "aside", "total"), 0))
    for path, about in files_below(disk.root):
        found["total"] += about.st_size
        *where, name = path.split(os.sep)
        if where[:1] == [ASIDE_DIRECTORY]:
            found["aside"] += about.st_size
        elif len(where) != 2 or not all(map(is_hashed, where)):
            continue
        elif name == JOURNAL:
            summary = threads.summary(os.path.join(disk.root, *where))
            found.update({} if summary is None else summary.sizes)
        elif name.startswith(("keyframe.", TORN, ASIDE_FILE)):
            found["keyframes" if name.startswith("keyframe.") else "aside"] += about.st_size
    return dict(found)


# -- checking --------------------------------------------------------------------------------------


def check_root(disk: Disk) -> list[Problem]:
    """What belongs to no thread."""
    try:
        last_epoch(disk)
    except CorruptionError as error:
        return [problem(error)]
    return []


def check_thread(disk: Disk, directory: str) -> list[Problem]:
    """Every line, keyframe and index entry of one thread."""
    try:
        journal = _loaded(directory)
    except CorruptionError as error:
        return [problem(error)]
    if journal is None:
        return []
    if directory != thread_directory(disk.root, journal.key):  # renamed, or made by an earlier version that was still running
        place = os.path.relpath(directory, disk.root)
        return [problem(damaged(journal.key, None, f"directory {place}: the thread is looked for in another one"))]
    bad = [f"line at byte {at.offset}" for at in journal.damage]
    bad += [f"newline at byte {at.offset + at.length - 1}" for at in journal.worn]
    found = [problem(damaged(journal.key, None, f"{what} of {JOURNAL}")) for what in bad]
    with journal.reading() as reader:
        found += [problem(error) for error in _damage_in(journal, reader)]
    found += [
        problem(damaged(journal.key, journal.entries[seq].id, f"keyframe of frame {seq}"))
        for seq, path in keyframes_of(journal).items()
        if not is_sound(journal, seq, path)
    ]
    missing = _not_in_index(disk, journal)
    return found + [problem(damaged(journal.key, name, "index of ids")) for name in missing]


def _loaded(directory: str) -> Journal | None:
    """A thread; None if a first save is not done yet. Raises CorruptionError if its journal is missing or names no thread."""
    journal = load(directory, None, None)
    if journal is None and any(not name.endswith(".new") for name in names_in(directory)):
        raise CorruptionError(
            f"{directory}: its {JOURNAL} is missing; restore it from a backup, or run repair, which sets the rest aside",
            place=JOURNAL,
        )
    return journal


def _damage_in(journal: Journal, reader: JournalReader) -> Iterator[CorruptionError]:
    """What is wrong with bodies and with what builds on what."""
    for seq, entry in sorted(journal.entries.items()):
        try:
            journal.bodies(reader, seq, "meta", "delta")
        except CorruptionError as error:
            yield error
            continue
        if entry.base and (entry.base not in journal.entries or entry.base >= seq):
            yield damaged(journal.key, entry.id, f"base {entry.base} of frame {seq}", seq)
    for places, kind in ((journal.records, "value"), (journal.blobs, "content")):
        for name, place in places.items():
            try:
                from_text(kind, reader.op(place)["text"])
            except CorruptionError:
                yield damaged(journal.key, None, f"{kind} {name!r}")


def _not_in_index(disk: Disk, journal: Journal) -> list[str]:
    space, name = os.path.split(journal.directory)
    index = IdIndex(disk, space)
    ids = [entry.id for entry in journal.entries.values() if not entry.broken]
    return [one for one in ids if not names_directory(one, name) and hash_in(name) not in index.find(one)]


# -- mending ---------------------------------------------------------------------------------------


def mend_root(disk: Disk, now: int) -> list[str]:
    """Continue with an epoch that is surely unused, where the newest one was lost."""
    if not check_root(disk):
        return []
    set_epoch(disk, now)
    return [f"the number of the newest lease was lost; the next one is {now + 1}"]


def mend_thread(disk: Disk, writer: Writer, directory: str) -> list[str]:
    """Set damaged lines and keyframes of a thread aside; its head becomes the newest frame if it was lost."""
    try:
        journal = _loaded(directory)
    except CorruptionError:
        _set_aside(disk, directory)
        return [f"{directory}: set aside as a whole: it does not say which thread it is"]
    if journal is None:
        return []
    right = thread_directory(disk.root, journal.key)
    if directory != right:
        return _mend_place(disk, writer, journal, right)
    done = []
    for seq, path in keyframes_of(journal).items():
        if not is_sound(journal, seq, path):
            os.rename(path, os.path.join(directory, f"{ASIDE_FILE}.{os.path.basename(path)}"))
            done.append(f"thread {journal.key.id!r}: set aside: keyframe of frame {seq}")
    missing = _not_in_index(disk, journal)
    if missing:
        space, name = os.path.split(directory)
        IdIndex(disk, space).add((one, name) for one in missing)
        done.append(f"thread {journal.key.id!r}: {len(missing)} ids entered in the index")
    if journal.damage or journal.worn:
        done.append(_mend_journal(writer, journal))
    return done


def _set_aside(disk: Disk, directory: str) -> None:
    lost = os.path.join(disk.root, ASIDE_DIRECTORY)
    disk.make_directory(lost)
    os.rename(directory, os.path.join(lost, f"{name_aside(directory)}-{os.urandom(4).hex()}"))
    disk.flush_names(lost)
    disk.flush_names(os.path.dirname(directory))


def _mend_place(disk: Disk, writer: Writer, journal: Journal, right: str) -> list[str]:
    """Bring a thread to the directory that it is looked for in, or set it aside if there is one already."""
    if os.path.lexists(right):
        _set_aside(disk, journal.directory)
        return [f"thread {journal.key.id!r}: was in two directories; {journal.directory} was set aside as a whole"]
    disk.rename(journal.directory, right)
    disk.flush_names(os.path.dirname(journal.directory))
    moved = f"thread {journal.key.id!r}: its directory {journal.directory} was renamed to {right}"
    return [moved, *mend_thread(disk, writer, right)]


def _mend_journal(writer: Writer, journal: Journal) -> str:
    newest = max(journal.entries, default=0)
    head = journal.row.head if journal.row.head in journal.entries else newest
    head_id = journal.entries[head].id if head else None
    journal.row = journal.row._replace(head=head, head_id=head_id, last=max(journal.row.last, newest))
    done = [f"{len(journal.damage)} damaged lines set aside"] if journal.damage else []
    done += [f"{len(journal.worn)} lines without a newline rewritten"] if journal.worn else []
    draft = ThreadChanges(journal, there=True, whole=True, aside=journal.damage)
    journal.damage = []
    writer.write([draft])
    return f"thread {journal.key.id!r}: {', '.join(done)}"


# -- compacting and copying ------------------------------------------------------------------------


def compact_thread(writer: Writer, journal: Journal | None, recode: Callable[[bytes], bytes]) -> None:
    """Rewrite a journal without what was superseded, and drop its keyframes."""
    if journal is None or journal.damage:
        return  # deleted meanwhile; or repair comes first
    draft = ThreadChanges(journal, there=True, whole=True, recode=recode, keyframes=dict.fromkeys(keyframes_of(journal)))
    writer.write([draft])


def rebuild_indexes(disk: Disk, threads: Threads) -> None:
    """Enter only ids that are there."""
    for space in threads.spaces():
        journals = [found for path in hashed_in(space) if (found := threads.journal(path)) is not None]
        IdIndex(disk, space).rebuild(
            (name, os.path.basename(journal.directory)) for journal in journals for name in journal.ids
        )
