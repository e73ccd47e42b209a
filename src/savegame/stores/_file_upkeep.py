"""Sizes, checking, mending, compacting and copying of a file store: what it does for `stats`, `verify`, `repair` and others.

Checking reads every file anew, whatever is remembered. Mending never deletes: damaged lines go to `aside.jsonl` beside
their journal, as they are, and what cannot be read at all to `aside/` in the root. Touches _file_*.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from savegame.errors import AlreadyExistsError, CorruptionError
from savegame.model import Problem
from savegame.stores._file_changes import Draft
from savegame.stores._file_disk import ASIDE, JOURNAL, LOCK, MARKER, SEARCH, TRASH, Disk, hashed_in
from savegame.stores._file_ids import Index, tells
from savegame.stores._file_journal import Journal, Reader, load
from savegame.stores._file_keyframes import is_sound, keyframes_of
from savegame.stores._file_listing import LISTING
from savegame.stores._file_threads import Threads
from savegame.stores._file_write import BATCH, Writer, last_epoch, set_epoch
from savegame.stores._rows import damaged, problem
from savegame.text import from_text

LOST: Final = "aside"
_DERIVED: Final = (LISTING, SEARCH, f"{MARKER}.")
"""How names begin that a copy does without; somebody may be writing them at any time."""


def sizes(disk: Disk, threads: Threads) -> dict[str, int]:
    """Bytes of each kind of line, of files beside the journals, and of all files."""
    found: Counter[str] = Counter(dict.fromkeys(("frames", "keyframes", "notes", "records", "blobs", "aside", "total"), 0))
    for path, size in _files(disk.root):
        found["total"] += size
        name = os.path.basename(path)
        if name == JOURNAL:
            summary = threads.summary(os.path.dirname(path))
            found.update({} if summary is None else summary.sizes)
        elif name.startswith(("keyframe.", "torn-", ASIDE)):
            found["keyframes" if name.startswith("keyframe.") else "aside"] += size
    return dict(found)


def _files(directory: str) -> Iterator[tuple[str, int]]:
    """Every file below a directory with its size; what vanishes meanwhile is passed over."""
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                yield os.path.join(path, name), os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue


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
        journal = load(directory, None, None)
    except CorruptionError as error:
        return [problem(error)]
    if journal is None:
        return []
    found = [problem(damaged(journal.key, None, f"line at byte {at.offset} of {JOURNAL}")) for at in journal.damage]
    with journal.reading() as reader:
        found += [problem(error) for error in _damage_in(journal, reader)]
    found += [
        problem(damaged(journal.key, journal.entries[seq].id, f"keyframe of frame {seq}"))
        for seq, path in keyframes_of(journal).items()
        if not is_sound(journal, seq, path)
    ]
    missing = _not_in_index(disk, journal)
    return found + [problem(damaged(journal.key, name, "index of ids")) for name in missing]


def _damage_in(journal: Journal, reader: Reader) -> Iterator[CorruptionError]:
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
    index = Index(disk, space)
    ids = [entry.id for entry in journal.entries.values() if not entry.broken]
    return [one for one in ids if not tells(one, name) and name not in index.find(one)]


# -- mending ---------------------------------------------------------------------------------------


def mend_root(disk: Disk, now: int) -> list[str]:
    """Go on with an epoch that nobody can have, where nobody knows the newest one."""
    if not check_root(disk):
        return []
    set_epoch(disk, now)
    return [f"the number of the newest lease was lost; the next one is {now + 1}"]


def mend_thread(disk: Disk, writer: Writer, directory: str) -> list[str]:
    """Set damaged lines and keyframes of a thread aside; its head becomes the newest frame if nobody knows it."""
    try:
        journal = load(directory, None, None)
    except CorruptionError:
        lost = os.path.join(disk.root, LOST)
        disk.make_directory(lost)
        os.rename(directory, os.path.join(lost, "-".join((*directory.split(os.sep)[-2:], os.urandom(4).hex()))))
        disk.flush_names(lost)
        disk.flush_names(os.path.dirname(directory))
        return [f"{directory}: set aside as a whole: nobody knows which thread it is"]
    if journal is None:
        return []
    done = []
    for seq, path in keyframes_of(journal).items():
        if not is_sound(journal, seq, path):
            os.rename(path, os.path.join(directory, f"{ASIDE}.{os.path.basename(path)}"))
            done.append(f"thread {journal.key.id!r}: set aside: keyframe of frame {seq}")
    missing = _not_in_index(disk, journal)
    if missing:
        space, name = os.path.split(directory)
        Index(disk, space).add((one, name) for one in missing)
        done.append(f"thread {journal.key.id!r}: {len(missing)} ids entered in the index")
    if journal.damage:
        done.append(_mend_journal(writer, journal))
    return done


def _mend_journal(writer: Writer, journal: Journal) -> str:
    newest = max(journal.entries, default=0)
    head = journal.row.head if journal.row.head in journal.entries else newest
    head_id = journal.entries[head].id if head else None
    journal.row = journal.row._replace(head=head, head_id=head_id, last=max(journal.row.last, newest))
    count = len(journal.damage)
    draft = Draft(journal, there=True, whole=True, aside=journal.damage)
    journal.damage = []
    writer.write([draft])
    return f"thread {journal.key.id!r}: {count} damaged lines set aside"


# -- compacting and copying ------------------------------------------------------------------------


def compact_thread(writer: Writer, journal: Journal | None, recode: Callable[[bytes], bytes]) -> None:
    """Write a journal anew without what was superseded, and drop its keyframes."""
    if journal is None or journal.damage:
        return  # deleted meanwhile; or repair comes first
    draft = Draft(journal, there=True, whole=True, recode=recode, keyframes=dict.fromkeys(keyframes_of(journal)))
    writer.write([draft])


def rebuild_indexes(disk: Disk, threads: Threads) -> None:
    """Enter only ids that are there."""
    for space in threads.spaces():
        journals = [found for path in hashed_in(space) if (found := threads.journal(path)) is not None]
        Index(disk, space).rebuild((name, os.path.basename(journal.directory)) for journal in journals for name in journal.ids)


def backup(disk: Disk, target: str, progress: Callable[[int, int], None]) -> None:
    """Copy every file to a new directory, flushed, under another name until all are there."""
    if os.path.lexists(target):
        raise AlreadyExistsError(f"{target}: exists already; a backup never overwrites")
    fresh = f"{target}.{os.urandom(8).hex()}.partial"  # not in the way of the next, if this one is killed
    files = [path for path, _ in _files(disk.root) if _is_needed(os.path.relpath(path, disk.root))]
    copy = Disk(fresh, flush=True)
    try:
        copy.make_directory(fresh)
        for done, path in enumerate(files, 1):
            place = os.path.join(fresh, os.path.relpath(path, disk.root))
            copy.make_directory(os.path.dirname(place))
            shutil.copyfile(path, place, follow_symlinks=False)
            os.chmod(place, 0o600)
            with open(place, "rb+") as handle:
                copy.flush(handle.fileno())
            progress(done, len(files))
        for directory, _, _ in os.walk(fresh):
            copy.flush_names(directory)
        os.rename(fresh, target)
        copy.flush_names(os.path.dirname(target))
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _is_needed(path: str) -> bool:
    name = os.path.basename(path)
    return (
        path not in (LOCK, BATCH) and not path.startswith(TRASH) and not name.startswith(_DERIVED) and not name.endswith(".new")
    )
