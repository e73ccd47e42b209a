"""A handle on one thread, made by `Vault.thread`. (Over 500 lines: every verb with its promise.)

A Thread is cheap: a `Timeline`, which does the work, and the head that the handle last read, saved or moved. `save` expects
that head: ConflictError if another writer moved it. No attribute does I/O. Touches messages.states, timeline and what is
below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Unpack

from savegame.checkpoint import Checkpoint
from savegame.details import Details, Draft, checked_label, checked_tags, draft
from savegame.encoding import diff
from savegame.encoding.frames import dump_note, load_note, request_digest
from savegame.encoding.plain import Plain
from savegame.encoding.tree import Shared
from savegame.errors import AlreadyExistsError, CheckpointNotFound, CorruptionError, InvalidInputError
from savegame.messages import states
from savegame.model import (
    NEW_ID,
    Frame,
    ThreadKey,
    checked_id,
    checked_limit,
    checked_or_new_id,
)
from savegame.present.diffs import Diff, changes_between
from savegame.store import ANY, MoveHead, PutNote
from savegame.timeline import deleting, derived, forks, frameworks, pruning, subjects
from savegame.timeline.autosave import Autosave
from savegame.timeline.engine import Point
from savegame.timeline.lineage import FRAMES_AT_ONCE, Ref
from savegame.timeline.timeline import Edit, Terms, Timeline, Written
from savegame.timeline.watch import Watcher, follow
from savegame.waiting.awaiting import plain_result
from savegame.waiting.retrying import PLANS, retried

logger = logging.getLogger("savegame")

LONGEST_NAME: Final = 2000
"""Maximum length of a record's name in characters."""


class Thread:
    """A tree of checkpoints with one head. Do not share a handle between threads of a program."""

    def __init__(self, timeline: Timeline, agent: str | None = None, origins: Mapping[str, ThreadKey] | None = None) -> None:
        self._timeline = timeline
        self._agent = agent
        self._origins = origins or {}
        self._bare = Draft({} if agent is None else {"agent_id": agent})
        self._head: str | None = None
        self._step: int | None = None

    def __repr__(self) -> str:
        return f"<Thread {self.id!r}>" if self._step is None else f"<Thread {self.id!r} step {self._step}>"

    @property
    def id(self) -> str:
        """The thread's id."""
        return self._timeline.id

    @property
    def timeline(self) -> Timeline:
        """The thread itself, without the expected head: for code that works below handles."""
        return self._timeline

    @property
    def head(self) -> str | None:
        """The id of the head that this handle last read, saved or moved; None if it knows none."""
        return self._head

    @property
    def step(self) -> int | None:
        """The step of that head; 0 if the thread was empty, None if this handle has not read it yet."""
        return self._step

    def __copy__(self) -> Thread:
        """Another handle on the same thread that expects the same head."""
        twin = Thread.__new__(Thread)
        twin.__dict__.update(self.__dict__)
        return twin

    def _learn(self, head_id: str | None, step: int | None) -> None:
        self._head, self._step = head_id, step

    def _forget(self) -> None:
        self._learn(None, None)

    # -- saving ------------------------------------------------------------------------------------

    def save(
        self,
        state: Any,
        *,
        id: str | None = None,  # noqa: A002 - the design's name
        parent: Ref | None = None,
        expect: Checkpoint | str | None = None,
        force: bool = False,
        **details: Unpack[Details],
    ) -> Checkpoint:
        """Save a whole state; writes only what changed. Raises ConflictError if the head is not the expected one.

        `details` describe the checkpoint: label, tags, metadata, status, tokens_used and the rest of `Details`. A Conversation
        is saved as by `save_conversation`, under this thread's id; an AgentState in its own thread as by `save_agent`. If this
        handle expects no head, the head that the object was loaded from is expected. `created_at`, a time with a zone, is for
        imported histories: ages count from it, the order stays the store's.
        """
        engine = self._timeline.engine
        drafted = draft(engine.codec, self._agent, id, details)
        domain = states.domain_save(engine.codec, self.id, state, force=force) if isinstance(state, Plain) else None
        if id is not None:
            drafted.details["request"] = request_digest(engine.codec.encode(state if domain is None else domain.plain))
        with engine.alone(self._timeline.key) as alone:  # an autosave of this handle may be moving the expected head
            free = ANY if force or parent is not None or self._step is None else self._head
            wanted = free if expect is None else _id_of(expect)
            if domain is None:
                return self._write(lambda node: diff.difference(engine.codec, node, state), drafted, parent, wanted)
            self._name_agent(drafted, domain)
            unbound = wanted == ANY and not force and parent is None
            expected = domain.expect if unbound and domain.expect is not None else wanted
            saved = self._write(self._timeline.with_about(domain.make, drafted), drafted, parent, expected)
            domain.acknowledge(saved.id if alone else None)
            return saved

    def _name_agent(self, drafted: Draft, domain: states.DomainSave) -> None:
        """Assign a save to the agent that its object names. Raises InvalidInputError if this handle names another."""
        if domain.agent_id is not None and drafted.details.setdefault("agent_id", domain.agent_id) != domain.agent_id:
            raise InvalidInputError(
                f"thread {self.id!r} was opened with agent={drafted.details['agent_id']!r}, but what is saved belongs to agent "
                f"{domain.agent_id!r}; open the thread without agent=, or change agent_id"
            )

    def update(
        self,
        *,
        append: Mapping[Any, list[Any]] | None = None,
        set: Mapping[Any, Any] | None = None,  # noqa: A002 - the design's name
        delete: Iterable[Any] = (),
        id: str | None = None,  # noqa: A002 - the design's name
        parent: Ref | None = None,
        expect: Checkpoint | str | None = None,
        force: bool = False,
        **details: Unpack[Details],
    ) -> Checkpoint:
        """Change the current state of the head: set and delete places, append to lists. Costs what the change costs.

        `force` has no effect here: no head is expected unless `expect` names one. `created_at` is that of `save`.
        """
        timeline = self._timeline
        plain = id is None and parent is None and expect is None
        if append and plain and delete == () and not (set or details):  # what agents do most
            with timeline.engine.alone(timeline.key) as alone:
                point = timeline.append_items(append, self._bare) if alone else None
                if point is not None:
                    self._head, self._step = point.id, point.step
                    return self._saved(point)
        drafted = draft(timeline.engine.codec, self._agent, id, details)
        wanted = ANY if expect is None else _id_of(expect)
        for what, given in (("append", append), ("set", set)):
            if given is not None and not isinstance(given, Mapping):
                raise InvalidInputError(f"{what} must be a dict of places, not {given!r}")
        if not isinstance(delete, Iterable):
            raise InvalidInputError(f"delete must be a list of places, not {delete!r}")
        gone = [delete] if isinstance(delete, str) else list(delete)
        if id is not None:
            in_order = (
                gone if isinstance(delete, Sequence) else sorted(gone, key=repr)
            )  # the order of a set differs between processes
            asked = [list((append or {}).items()), list((set or {}).items()), in_order]
            drafted.details["request"] = request_digest(timeline.engine.codec.encode(asked, depth=-3))
        edit = partial(diff.update, timeline.engine.codec, append=append or {}, set=set or {}, delete=gone)
        return self._write(edit, drafted, parent, wanted)

    def modify(self, change: Callable[[Any], Any], **details: Any) -> Checkpoint:
        """Read, `change(state)`, save; repeated if another writer was faster. The state of an empty thread is None."""
        if "tags" in details:
            details["tags"] = checked_tags(details["tags"])  # an iterator must last for every attempt

        def attempt() -> Checkpoint:
            found = self.latest()
            state = plain_result(change(None if found is None else found.state), "the function that changes the state")
            return self.save(state, **details)

        return retried(attempt, moved=details.get("expect") is None)

    def _write(self, edit: Edit, drafted: Draft, parent: Ref | None, expect: str | None) -> Checkpoint:
        timeline = self._timeline
        base = None if parent is None else self._point(timeline.resolve(parent))
        edit, beside = derived.tying(timeline, self._origins, edit)
        with timeline.engine.alone(timeline.key) as alone:  # an autosave of this handle looks at head and expectation
            saved = timeline.write(edit, drafted, Terms(expect, base, beside=beside))
            if not saved.again or self._is_head(saved):
                # Inside connection() the save may still be rolled back: then the head is unknown.
                self._learn(saved.id, saved.step) if alone else self._forget()
        self._log_saved(saved)
        return saved.checkpoint

    def _is_head(self, saved: Written) -> bool:
        """Whether a checkpoint, which may come from an earlier attempt, is still the head."""
        row = self._timeline.row()
        return row is not None and row.head_id == saved.id

    def _saved(self, point: Point) -> Checkpoint:
        self._log_saved(point)
        return self._timeline.saved(point, None)

    def _log_saved(self, saved: Point | Written) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("saved %s: thread %r step %d", saved.id, self.id, saved.step)

    # -- loading -----------------------------------------------------------------------------------

    def latest(self, *, skip_damaged: bool = False) -> Checkpoint | None:
        """The head with its state; None for an empty thread. `skip_damaged`: the newest sound one, with `.skipped`."""
        found = self._timeline.latest(skip_damaged=skip_damaged)
        if found is None:
            self._learn(None, 0)
            return None
        self._learn(found.head_id, found.checkpoint.step)
        return found.checkpoint

    def has_checkpoint(self) -> bool:
        """Whether a checkpoint loads. Does not raise for damage; `latest` does."""
        try:
            return self.latest(skip_damaged=True) is not None
        except CorruptionError:
            return False

    def load(self, ref: Ref | None = None, *, at: dt.datetime | None = None) -> Checkpoint:
        """A checkpoint with its state: by id, unique prefix, label, `head~n` or step, or the newest `at` a time."""
        return states.without_expectation(self._timeline.load(ref, at=at))

    def state(self, ref: Ref | None = None, *, at: dt.datetime | None = None) -> Any:
        """The state at a reference, by default at the head; None for an empty thread."""
        if ref is None and at is None:
            found = self.latest()
            return None if found is None else found.state
        return self.load(ref, at=at).state

    def history(
        self,
        *,
        newest_first: bool = True,
        limit: int | None = None,
        before: Ref | None = None,
        tag: str | None = None,
        label: str | None = None,
        branches: bool = False,
    ) -> Iterator[Checkpoint]:
        """Checkpoints without their states: the head's line, or with `branches` all. `before` excludes newer ones."""
        checked_limit(limit)
        timeline = self._timeline
        row = timeline.row()
        if row is None or not row.frames:
            return
        start = None if before is None else timeline.resolve(before, row=row)
        if branches:
            high = None if start is None else start.seq - 1
            frames: Iterable[Frame] = timeline.everything(high=high, newest_first=newest_first)
        else:
            frames = timeline.line(row.head if start is None else start.base, page=min(FRAMES_AT_ONCE, limit or FRAMES_AT_ONCE))
            frames = frames if newest_first else reversed(list(frames))

        def fits(frame: Frame) -> bool:
            name, tags = load_note(frame.note)
            return (tag is None or tag in tags) and (label is None or name == label)

        yield from timeline.listing(row, frames, fits, limit)

    def noted(self) -> Iterator[Checkpoint]:
        """Checkpoints with a label or tags, without their states, newest first, including branches."""
        timeline = self._timeline
        row = timeline.row()
        if row is not None:
            frames = timeline.store.frames(timeline.key, newest_first=True, noted=True)
            yield from timeline.listing(row, frames, lambda _: True, None)

    def replay(self, entries: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
        """Entries of a listing with their states, oldest first: a state that builds on the previous one costs its delta.

        List items that these states share are the same objects.
        """
        shared: Shared = {}
        wanted = sorted((entry.seq, entry.id) for entry in entries)
        frames = list(self._timeline.frames([seq for seq, _ in wanted]))
        for frame, (_, wanted_id) in zip(frames, wanted, strict=True):
            if frame.id != wanted_id:
                raise CheckpointNotFound(f"checkpoint not found: {wanted_id!r} is not in thread {self.id!r}")
        for frame, point in self._timeline.points(frames):
            yield states.without_expectation(self._timeline.checkpoint(frame, node=point.node, shared=shared))

    def diff(self, a: Ref, b: Ref) -> Diff:
        """What changed from one checkpoint to another: iterable of (path, old, new); printed, one line per change."""
        return changes_between(self._timeline.engine.codec, self.load(a).state, self.load(b).state)

    # -- moving ------------------------------------------------------------------------------------

    def rewind(
        self, ref: Ref, *, discard: bool = False, rerun_tools: bool = False, expect: Checkpoint | str | None = None
    ) -> Checkpoint:
        """Make another checkpoint the head. Later ones stay as a branch; `discard` deletes all but its ancestors.

        A run that continues from there uses the results of tool calls already made, unless `rerun_tools`: then they are new
        calls, with new keys. With `expect`, raises ConflictError if the head is another one by now; None accepts any.
        """
        wanted = ANY if expect is None else _id_of(expect)
        timeline, ledger = self._timeline, self._timeline.engine.above.ledger

        def attempt() -> Checkpoint:
            row = timeline.existing()
            frame = timeline.resolve(ref, row=row)
            found = timeline.load_frame(frame)  # a checkpoint that does not load must not become the head
            records = ledger.for_rewind(timeline, frame, rerun_tools=rerun_tools)
            beside = frameworks.going_back(timeline, frame) if frame.seq != row.head else []
            moved = discard and pruning.discard_all_but(timeline, frame, expect=wanted, beside=beside)
            head = row.head_id if discard and wanted == ANY else wanted  # saves made meanwhile must be discarded too
            move = MoveHead(timeline.key, frame.seq, head, agent=found.agent_id)
            timeline.commit([*([] if moved else [move, *beside]), *timeline.put_all(records)])
            if discard:
                pruning.discard_children(timeline, frame)
            return states.without_expectation(found)

        found = retried(attempt, gone=True, moved=wanted == ANY, tries=PLANS)
        logger.info("rewound thread %r to %s%s", self.id, found.id, ", discarding the rest" if discard else "")
        self._learn(found.id, found.step)
        return found

    def fork(self, id: str = NEW_ID, *, at: Ref | None = None) -> Thread:  # noqa: A002 - the design's name
        """A new, independent thread that begins with a copy of one checkpoint. Raises AlreadyExistsError for an existing one.

        Without `id` it gets a new id.
        """
        key = ThreadKey(self._timeline.key.namespace, checked_or_new_id(id))
        return retried(partial(self._fork, key, "head" if at is None else at), tries=PLANS)

    def _fork(self, key: ThreadKey, at: Ref) -> Thread:
        """One attempt of `fork`. Raises ConflictError if the thread was created, or the source changed, meanwhile."""
        source = self._timeline
        there = source.at(key).row()
        if there is not None and there.frames:
            raise AlreadyExistsError(f"thread {key.id!r} already exists; choose another id for the fork")
        frame = source.resolve(at)
        begun = forks.fork(source, frame, key)
        logger.info("forked thread %r at %s as %r", self.id, frame.id, key.id)
        fork = Thread(source.at(key), begun.agent)
        fork._learn(begun.id, begun.step)
        return fork

    # -- notes -------------------------------------------------------------------------------------

    def label(self, ref: Ref, name: str | None) -> Checkpoint:
        """Give a checkpoint a label, or remove it with None."""
        name = checked_label(name)
        return self.note(ref, lambda _, tags: (name, tags))

    def tag(self, ref: Ref, *tags: str) -> Checkpoint:
        """Add tags to a checkpoint."""
        added = checked_tags(tags)
        return self.note(ref, lambda label, old: (label, (*old, *added)))

    def untag(self, ref: Ref, *tags: str) -> Checkpoint:
        """Remove tags from a checkpoint; tags that it does not have are ignored."""
        return self.note(ref, lambda label, old: (label, tuple(tag for tag in old if tag not in tags)))

    def note(self, ref: Ref, change: Callable[[str | None, tuple[str, ...]], tuple[str | None, Iterable[str]]]) -> Checkpoint:
        """Change label and tags of a checkpoint at once: `change(label, tags)` returns both; retried on conflict."""
        timeline = self._timeline

        def attempt() -> Checkpoint:
            frame = timeline.resolve(ref)
            changed = plain_result(
                change(*load_note(frame.note)), "the function that changes a note", "pass an ordinary function"
            )
            if not isinstance(changed, (tuple, list)) or len(changed) != 2:
                raise InvalidInputError(f"the function that changes a note must return a label and tags, not {changed!r}")
            label, tags = changed
            note = dump_note(checked_label(label), checked_tags(tags))
            timeline.commit([PutNote(timeline.key, frame.seq, note, frame.note)])
            return timeline.checkpoint(frame._replace(note=note))

        return retried(attempt)

    # -- records -----------------------------------------------------------------------------------

    def records(self, kind: str) -> dict[str, Any]:
        """The records of one kind beside this thread, by name. Raises CorruptionError for a malformed one."""
        found = self._timeline.records(checked_id(kind, "a record's kind"))
        return {record.name: self._timeline.read(record) for record in found}

    def put_records(self, records: Mapping[tuple[str, str], Any], *, absent: bool = False) -> None:
        """Set records by (kind, name), all or none; a value of None removes one.

        With `absent`, raises AlreadyExistsError if one of them exists.
        """
        for place in records:
            if not isinstance(place, tuple) or len(place) != 2:
                raise InvalidInputError(f"a record is set by (kind, name), not by {place!r}")
            checked_id(place[0], "a record's kind")
            checked_id(place[1], "a record's name", LONGEST_NAME)
        timeline, changes = self._timeline, self._timeline.put_all(records, absent=absent)
        if not self._origins:
            timeline.commit(changes)
            return
        retried(lambda: timeline.commit([*derived.held(timeline, self._origins), *changes]), tries=PLANS)

    def attach_subject(self, *names: str) -> None:
        """Record that this thread holds data of these subjects (people, customers): `vault.erase(subject)` deletes it."""
        subjects.attach(self._timeline, names)

    def subjects(self) -> list[str]:
        """The subjects whose data this thread holds, sorted."""
        return subjects.subjects_of(self._timeline)

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, *refs: Ref) -> int:
        """Delete single checkpoints; returns the number removed.

        If the head is deleted, its nearest remaining ancestor becomes the head, or else the newest remaining checkpoint.
        """
        timeline = self._timeline
        removed = pruning.remove(timeline, refs)
        if removed and self.head is not None and timeline.engine.find(timeline.key.namespace, self.head) is None:
            self._forget()
        return removed

    def prune(
        self,
        *,
        keep: int | None = None,
        older_than: dt.timedelta | None = None,
        include_labelled: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Delete old checkpoints; returns the number removed. The head, the newest `keep`, younger and labelled ones stay.

        So do those that an agent checkpoint names. `include_labelled` deletes both. With `dry_run`, nothing is deleted: returns
        the number that would be.
        """
        rule = pruning.Rule.checked(keep, older_than, include_labelled=include_labelled)
        removed = pruning.prune(self._timeline, rule, dry_run=dry_run)
        logger.debug("pruned %d checkpoints of thread %r%s", removed, self.id, " (dry run)" if dry_run else "")
        return removed

    def prunable(
        self, *, keep: int | None = None, older_than: dt.timedelta | None = None, include_labelled: bool = False
    ) -> list[Checkpoint]:
        """What `prune` with the same arguments would delete now, without states, newest first."""
        rule = pruning.Rule.checked(keep, older_than, include_labelled=include_labelled)
        return [self._timeline.checkpoint(frame) for frame in pruning.prunable(self._timeline, rule)]

    def delete(self) -> bool:
        """Delete the thread with its records and child threads, all or none. Returns False if it did not exist.

        If an agent checkpoint names it, restoring that brings it back; its bytes are freed with the last such checkpoint.
        """
        found = deleting.delete(self._timeline.engine, [self._timeline.key]).threads
        self._forget()
        logger.info("deleted thread %r", self.id)
        return found > 0

    # -- going on by itself ------------------------------------------------------------------------

    def autosave(
        self,
        get_state: Callable[[], Any],
        every: dt.timedelta = dt.timedelta(minutes=5),
        *,
        keep: int | None = None,
        on_error: Callable[[Exception], object] | None = None,
        description: str = "Automatic checkpoint",
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Autosave:
        """Save what `get_state()` returns, at once and then once per interval, in a background thread, through this handle.

        A context manager; `stop()` ends it too. An unchanged state is not saved. With `keep`, only that many of the newest
        automatic checkpoints stay, and labelled ones. Errors are logged, passed to `on_error` and collected; ConflictError
        repeats until this handle reads the thread again. Raises AlreadyExistsError while another one runs.
        """
        details = {"description": description, "tags": tags, "metadata": metadata}
        return Autosave(self, states.holds, get_state, every=every, keep=keep, on_error=on_error, **details)

    def watch(
        self,
        *,
        since: Ref | None = None,
        poll: dt.timedelta = dt.timedelta(milliseconds=200),
        timeout: dt.timedelta | None = None,
    ) -> Iterator[Checkpoint]:
        """New checkpoints from any writer, without their states, including branches, oldest first; waits for more.

        New are those after `since`, or after the newest one at the time of the call. Ends after `timeout` without any, else
        never; raises ClosedError when the vault is closed. If the thread is deleted, waits for it to be re-created.
        """
        return follow(Watcher(self._timeline, since), poll, timeout)

    def _point(self, frame: Frame) -> Point:
        return self._timeline.point(frame.seq, frame)


def _id_of(expect: Checkpoint | str) -> str:
    return expect.id if isinstance(expect, Checkpoint) else checked_id(expect, "an expected checkpoint's id")
