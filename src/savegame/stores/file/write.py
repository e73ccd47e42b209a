"""Writing a commit: one line at the end of one journal, or whole journals that are renamed into place together.

The order of writes and flushes is what makes a commit happen whole or not at all, whenever the process is killed or the
power goes: see `docs/decisions/0012-file-store.md`. An error before the moment of truth leaves nothing behind; one after it
says that the outcome is unknown. Touches changes, disk, ids, journal, keyframes, threads.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Final

from savegame.errors import CorruptionError, SavegameError, UnavailableError
from savegame.stores.file.changes import ThreadChanges, current_lines
from savegame.stores.file.disk import (
    ASIDE_DIRECTORY,
    ASIDE_FILE,
    FRESH,
    JOURNAL,
    Disk,
    copied,
    is_hashed,
    is_readable,
    name_aside,
    names_in,
    opened,
    raise_format,
    read_at,
    read_file,
    write_at,
)
from savegame.stores.file.ids import IdIndex
from savegame.stores.file.journal import Journal, signature_of
from savegame.stores.file.keyframes import clear_strangers, put_keyframe
from savegame.stores.file.lines import dump_commit, dump_journal, first_line
from savegame.stores.file.threads import Threads
from savegame.waiting.undoing import on_failure

logger = logging.getLogger("savegame")

BATCH: Final = "batch"
EPOCH_FILE: Final = "epoch"
TORN: Final = "torn-"


class Writer:
    """Writes below a root. Its user holds the store's lock, alone."""

    def __init__(self, disk: Disk, threads: Threads) -> None:
        self._disk = disk
        self._threads = threads
        self._suspects: set[str] = set()
        """Directories of journals whose flush failed: they are rewritten before anything is added."""
        self._batch = os.path.join(disk.root, BATCH)

    def write(self, drafts: Iterable[ThreadChanges]) -> None:
        """Make everything that the drafts say durable, whole or not at all; keyframes follow, if they can."""
        drafts = list(drafts)
        changed = [draft for draft in drafts if draft.lines or (draft.whole and draft.there)]
        if any(not draft.there and is_readable(draft.journal.directory) for draft in changed):
            raise_format(self._disk)
        self._enter_ids(changed)
        for space in {os.path.dirname(draft.journal.directory) for draft in changed if draft.reborn}:
            self._threads.unlist(space)
        if len(changed) == 1:
            self._write_one(changed[0])
        elif changed:
            self._write_together(changed)
        self._put_keyframes(drafts, needed=not changed)
        self._clear_lost([draft.journal.directory for draft in drafts if draft.reborn], needed=not changed)

    # -- one thread --------------------------------------------------------------------------------

    def _write_one(self, draft: ThreadChanges) -> None:
        directory = draft.journal.directory
        added = draft.lines and draft.there and not draft.whole
        if added and not self._needs_rewriting(draft.journal) and not _is_linked(directory):
            self._append(draft)
            return
        with on_failure(lambda: self._take_back([draft])):
            if draft.gone:
                self._disk.throw_away(directory)
            else:
                self._prepare(draft)
                os.replace(os.path.join(directory, FRESH), os.path.join(directory, JOURNAL))
        try:
            self._disk.flush_names(os.path.dirname(directory) if draft.gone else directory)
        except OSError as error:
            raise _unknown(draft, error) from error
        self._replaced(draft)

    def _needs_rewriting(self, journal: Journal) -> bool:
        """Whether nothing may be added to a journal: as long as its first line stays, nothing else in it ever changes."""
        return bool(journal.torn() or journal.worn) or journal.directory in self._suspects

    def _append(self, draft: ThreadChanges) -> None:
        journal = draft.journal
        data = dump_commit(draft.lines, journal.key, journal.end)
        with opened(os.path.join(journal.directory, JOURNAL), write=True) as handle:
            try:
                write_at(handle, journal.end, data)
            except BaseException:
                with suppress(OSError):  # what is left of it is a torn tail, which the next writer sets aside
                    os.ftruncate(handle, journal.end)
                raise
            try:
                self._disk.flush(handle)
            except OSError as error:
                self._suspects.add(journal.directory)
                with suppress(OSError):  # so that no commit builds on what may not be on the disk
                    os.ftruncate(handle, journal.end)
                raise _unknown(draft, error) from error
            journal.signature = signature_of(handle)
        journal.end += len(data)
        for place in draft.lines:
            journal.count(place.op or {}, place.length)
            place.op = None
        self._threads.keep(journal)

    def _keep_tail(self, journal: Journal, handle: int) -> None:
        """Set a torn tail aside, as it is: a write that was interrupted before it was acknowledged."""
        numbers = [name.removeprefix(TORN) for name in names_in(journal.directory) if name.startswith(TORN)]
        newest = max((int(number) for number in numbers if number.isdecimal()), default=0)
        path = os.path.join(journal.directory, f"{TORN}{newest + 1}")
        self._disk.put(path, read_at(handle, journal.end, journal.torn()))
        logger.warning("thread %r: %d bytes of an unfinished write were set aside: %s", journal.key.id, journal.torn(), path)

    # -- whole journals ----------------------------------------------------------------------------

    def _prepare(self, draft: ThreadChanges) -> None:
        """Write the journal of a thread as it will be, beside the one that it has."""
        journal = draft.journal
        self._disk.make_directory(journal.directory)
        with journal.reading() as reader:
            if journal.torn():
                self._keep_tail(journal, reader.handle())
            if draft.aside:
                self._add_aside(journal.directory, b"".join(map(reader.raw, draft.aside)))
            if draft.whole or (draft.there and self._needs_rewriting(journal)):
                parts = dump_journal(current_lines(journal, reader, draft.recode), journal.key)
            elif draft.there:
                parts = chain(copied(reader.handle(), journal.end), [dump_commit(draft.lines, journal.key, journal.end)])
            else:
                ops = (place.op or {} for place in draft.lines)
                parts = dump_journal(chain([first_line(journal.key, journal.life)], ops), journal.key)
            self._disk.write_fresh(os.path.join(journal.directory, FRESH), parts)

    def _add_aside(self, directory: str, lines: bytes) -> None:
        path = os.path.join(directory, ASIDE_FILE)
        with opened(path, write=True, make=True) as handle:
            write_at(handle, os.fstat(handle).st_size, lines)
            self._disk.flush(handle)
        self._disk.flush_names(directory)

    def _replaced(self, draft: ThreadChanges) -> None:
        """A thread has another journal now, or none: what belonged to the former one goes, now or later."""
        directory = draft.journal.directory
        self._suspects.discard(directory)
        self._threads.forget(directory)
        try:
            if draft.reborn:
                for name in names_in(directory):
                    if name != JOURNAL:
                        self._disk.remove(os.path.join(directory, name))
            clear_strangers(self._disk, draft.journal)
        except OSError as error:  # the commit is done
            logger.warning("%s: what is not needed any more could not be removed: %s", directory, error)
        self.empty_trash()

    def _clear_lost(self, directories: list[str], *, needed: bool) -> None:
        """Throw away what repair set aside of deleted threads without knowing whose it was."""
        lost = os.path.join(self._disk.root, ASIDE_DIRECTORY)
        ours = tuple(f"{name_aside(directory)}-" for directory in directories)
        found = [os.path.join(lost, name) for name in names_in(lost) if name.startswith(ours)] if ours else []
        if not found:
            return
        try:
            for path in found:
                self._disk.throw_away(path)
            self._disk.flush_names(lost)
        except OSError as error:
            if needed:
                raise
            logger.warning("%s: what was set aside could not be removed: %s", lost, error)
        self.empty_trash()

    def empty_trash(self) -> bool:
        """Free the space of what was deleted. Returns False if some of it could not be removed yet."""
        try:
            self._disk.empty_trash()
        except OSError as error:
            logger.warning("%s: what was deleted could not be removed yet: %s", self._disk.root, error)
            return False
        return True

    # -- several threads ---------------------------------------------------------------------------

    def _write_together(self, drafts: list[ThreadChanges]) -> None:
        written = [draft for draft in drafts if not draft.gone]
        try:
            for draft in written:
                self._prepare(draft)
            if len(written) < len(drafts):
                self._disk.make_trash()
            self._disk.write_fresh(f"{self._batch}.new", [_dump_batch(drafts)])
            os.replace(f"{self._batch}.new", self._batch)
        except BaseException:
            if not os.path.lexists(self._batch):
                self._take_back(written)
            raise
        try:
            self._disk.flush_names(self._disk.root)
            self.finish()
        except OSError as error:
            raise _unknown(drafts[0], error) from error
        for draft in drafts:
            self._replaced(draft)

    def _take_back(self, drafts: list[ThreadChanges]) -> None:
        """Remove what was prepared for a commit that will not happen."""
        for draft in drafts:
            with suppress(OSError):
                self._disk.remove(os.path.join(draft.journal.directory, FRESH))
                if not draft.there:
                    os.rmdir(draft.journal.directory)
        with suppress(OSError):
            self._disk.remove(f"{self._batch}.new")
            self._disk.empty_trash()

    def finish(self) -> None:
        """Finish a commit to several threads that was interrupted. What was done of it is not done again."""
        data = read_file(self._batch)
        if data is None:
            return
        replace, remove = _parse_batch(data, self._batch)
        for names in remove:
            directory = os.path.join(self._disk.root, *names)
            self._disk.throw_away(directory)
            self._disk.flush_names(os.path.dirname(directory))
        for names in replace:
            directory = os.path.join(self._disk.root, *names)
            with suppress(FileNotFoundError):
                self._disk.rename(os.path.join(directory, FRESH), os.path.join(directory, JOURNAL))
        self._disk.remove(self._batch)
        self._disk.flush_names(self._disk.root)
        self.empty_trash()

    # -- beside ------------------------------------------------------------------------------------

    def _enter_ids(self, drafts: list[ThreadChanges]) -> None:
        spaces: dict[str, list[tuple[str, str]]] = {}
        for draft in drafts:
            space, name = os.path.split(draft.journal.directory)
            spaces.setdefault(space, []).extend((checkpoint_id, name) for checkpoint_id in draft.new_ids)
        for space, entries in spaces.items():
            IdIndex(self._disk, space).add(entries)

    def _put_keyframes(self, drafts: list[ThreadChanges], *, needed: bool) -> None:
        for draft in drafts:
            for seq, body in draft.keyframes.items():
                try:
                    put_keyframe(self._disk, draft.journal, seq, body)
                except OSError as error:
                    if needed:
                        raise
                    logger.warning("thread %r: a keyframe could not be written: %s", draft.journal.key.id, error)

    def next_epoch(self, held: int, now: int) -> int:
        """A number larger than any before, durable before it is returned; `held` is the thread's newest."""
        newest = last_epoch(self._disk)
        epoch = max(now if newest is None else newest, held) + 1  # the clock: there were never that many, lost or not
        set_epoch(self._disk, epoch)
        return epoch


def _is_linked(directory: str) -> bool:
    """Whether the journal has a second name, as in a snapshot of hard links (`cp -al`), which must stay as it is."""
    return os.stat(os.path.join(directory, JOURNAL)).st_nlink > 1


def last_epoch(disk: Disk) -> int | None:
    """The newest epoch; None if there was none, or its file is missing. Raises CorruptionError."""
    path = os.path.join(disk.root, EPOCH_FILE)
    data = read_file(path)
    if data is None:
        return None
    text, _, total = data.strip().partition(b" ")
    if total != b"%08x" % zlib.crc32(text):
        raise CorruptionError(f"{path}: is damaged; run repair", place=EPOCH_FILE)
    return int(text)


def set_epoch(disk: Disk, epoch: int) -> None:
    """Remember the newest epoch."""
    text = b"%d" % epoch
    disk.put(os.path.join(disk.root, EPOCH_FILE), b"%s %08x\n" % (text, zlib.crc32(text)))


def _unknown(draft: ThreadChanges, error: OSError) -> SavegameError:
    """The error for a write that may or may not have happened: how to find out."""
    name = draft.new_ids[0] if draft.new_ids else None
    look = f"look for it with vault.find({name!r}), or save again with id={name!r}, which is safe" if name else "read it back"
    return UnavailableError(
        f"{draft.journal.directory}: the write may or may not have happened ({error.strerror}); {look}",
        unknown=True,
        checkpoint_id=name,
    )


def _dump_batch(drafts: list[ThreadChanges]) -> bytes:
    names = [(draft.journal.directory.split(os.sep)[-2:], draft.gone) for draft in drafts]
    text = json.dumps(
        {"replace": [at for at, gone in names if not gone], "remove": [at for at, gone in names if gone]}
    ).encode()
    return b"%s\n%08x\n" % (text, zlib.crc32(text))


def _parse_batch(data: bytes, path: str) -> tuple[list[list[str]], list[list[str]]]:
    text, _, total = data.rstrip(b"\n").partition(b"\n")
    if total != b"%08x" % zlib.crc32(text):
        raise CorruptionError(f"{path}: is damaged; restore a backup", place=BATCH)
    found = json.loads(text)
    if not all(is_hashed(name) for names in (*found["replace"], *found["remove"]) for name in names):
        raise CorruptionError(f"{path}: names files that savegame did not create; restore a backup", place=BATCH)
    return found["replace"], found["remove"]
