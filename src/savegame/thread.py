"""A handle on one thread: save, load, walk, move, note, remove. Made by `Vault.thread`.

A Thread is cheap. It remembers the head that it last read, saved or moved, and `save` expects that head: if somebody else
moved it, ConflictError. No attribute does I/O. Touches engine, lineage, upkeep and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from savegame.checkpoint import Checkpoint, Source
from savegame.encoding import diff
from savegame.encoding.delta import Op, whole
from savegame.encoding.frames import Meta, details_of, dump_note, load_meta, load_note, request_digest, wrap
from savegame.encoding.plain import Plain
from savegame.encoding.tree import Node, Shared, to_bytes, value_of
from savegame.errors import (
    AlreadyExistsError,
    CheckpointNotFound,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    ThreadNotFound,
)
from savegame.messages import states
from savegame.model import (
    IN_PROGRESS,
    NEW_ID,
    Frame,
    Kind,
    Record,
    Status,
    ThreadKey,
    ThreadRow,
    checked_id,
    checked_limit,
    checked_or_new_id,
)
from savegame.present.diffs import Diff, changes_between
from savegame.runs.ledger import CALL, GENERATION, ROOT, RUN, STEP, for_fork, generation, generation_made, reply_of
from savegame.store import ANY, MoveHead, PutNote, PutRecord, StoreChange
from savegame.timeline import companions, deleting, derived, lineage, pruning, subjects, upkeep
from savegame.timeline.autosave import Autosave
from savegame.timeline.details import checked_label, checked_tags, drafted
from savegame.timeline.engine import EMPTY, Draft, Engine, Point
from savegame.timeline.lineage import Ref
from savegame.timeline.watch import Watcher, follow
from savegame.waiting.awaiting import plain_result
from savegame.waiting.retrying import PLANS, TRIES, retried

logger = logging.getLogger("savegame")

RECORD_COMPRESS_FROM: Final = 512
LONGEST_NAME: Final = 2000
"""Of a record, in characters."""
_NOTHING: Final[tuple[()]] = ()  # what is not this very object goes the long way, and comes to the same
_NOTHING_KNOWN: Final = ANY


class Thread:
    """One line of work: a tree of checkpoints with one head. A handle is not meant to be shared between threads."""

    def __init__(
        self,
        engine: Engine,
        key: ThreadKey,
        agent: str | None,
        type: type | None,  # noqa: A002
        foreign: Callable[[str, bytes], Any] | None = None,
        origins: Mapping[str, ThreadKey] | None = None,
    ) -> None:
        self._engine = engine
        self._origins = origins
        self._codec = engine.codec if foreign is None else engine.codec.reading(foreign)
        self._key = key
        self._type = type
        self._known: str | None = _NOTHING_KNOWN
        self._step: int | None = None
        self._draft = partial(drafted, engine, agent)
        self._nothing_said = Draft({} if agent is None else {"agent_id": agent})

    def __repr__(self) -> str:
        return f"<Thread {self.id!r}>" if self._step is None else f"<Thread {self.id!r} step {self._step}>"

    @property
    def id(self) -> str:
        """The thread's id."""
        return self._key.id

    @property
    def head(self) -> str | None:
        """The id of the head that this handle last read, saved or moved; None if it knows of none."""
        return None if self._known == _NOTHING_KNOWN else self._known

    @property
    def step(self) -> int | None:
        """The step of that head; 0 if the thread was seen to be empty, None if this handle knows nothing of it yet."""
        return self._step

    # -- saving ------------------------------------------------------------------------------------

    def save(
        self,
        state: Any,
        *,
        label: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = Kind.MANUAL,
        status: str = IN_PROGRESS,
        iteration: int | None = None,
        tokens_used: int | None = None,
        cost: float | None = None,
        resume_hint: str | None = None,
        id: str | None = None,  # noqa: A002 - the design's name
        external_id: str | None = None,
        parent: Ref | None = None,
        expect: Checkpoint | str | None = None,
        force: bool = False,
        created_at: dt.datetime | None = None,
    ) -> Checkpoint:
        """Save a whole state; only what changed is written. Raises ConflictError if the head is not the expected one.

        A Conversation is saved as by `save_conversation`, under this thread's id; an AgentState in its own thread as by
        `save_agent`. Where this handle expects no head, the one that the object was loaded from is expected. `created_at`, a
        time with a zone, is for histories that come from elsewhere: ages count from it, the order stays the store's.
        """
        draft = self._draft(
            id,
            label,
            tags,
            description,
            metadata,
            kind,
            status,
            iteration,
            tokens_used,
            cost,
            resume_hint,
            external_id,
            created_at,
        )
        kept = states.kept(self._engine.codec, self.id, state, force=force) if isinstance(state, Plain) else None
        if id is not None:
            draft.details["request"] = request_digest(self._engine.codec.encode(state if kept is None else kept.plain))
        with self._engine.alone(self._key) as alone:  # an autosave of this handle may be moving the head that we expect
            otherwise = ANY if force or parent is not None else self._known
            wanted = otherwise if expect is None else _id_of(expect)
            if kept is None:
                return self._append(lambda node: diff.difference(self._engine.codec, node, state), draft, parent, wanted)
            self._name_agent(draft, kept)
            free = wanted == ANY and not force and parent is None
            expected = kept.expect if free and kept.expect is not None else wanted
            saved = self._append(self._with_about(kept.make, draft), draft, parent, expected)
            kept.acknowledge(saved.id if alone else None)
            return saved

    def _name_agent(self, draft: Draft, kept: states.Kept) -> None:
        """Let a save belong to the agent that its object names. Raises InvalidInputError if this handle names another."""
        if kept.agent_id is not None and draft.details.setdefault("agent_id", kept.agent_id) != kept.agent_id:
            raise InvalidInputError(
                f"thread {self.id!r} was opened with agent={draft.details['agent_id']!r}, but what is saved belongs to agent "
                f"{kept.agent_id!r}; open the thread without agent=, or change agent_id"
            )

    def update(
        self,
        *,
        append: Mapping[Any, list[Any]] | None = None,
        set: Mapping[Any, Any] | None = None,  # noqa: A002 - the design's name
        delete: Iterable[Any] = _NOTHING,
        label: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = _NOTHING,
        metadata: Mapping[str, Any] | None = None,
        kind: str = Kind.MANUAL,
        status: str = IN_PROGRESS,
        iteration: int | None = None,
        tokens_used: int | None = None,
        cost: float | None = None,
        resume_hint: str | None = None,
        id: str | None = None,  # noqa: A002 - the design's name
        external_id: str | None = None,
        parent: Ref | None = None,
        expect: Checkpoint | str | None = None,
        force: bool = False,
        created_at: dt.datetime | None = None,
    ) -> Checkpoint:
        """Change the head's state as it is: set and delete places, append to lists. Costs what the change costs.

        `created_at` is that of `save`.
        """
        if (  # what agents do most: append, and say nothing about it
            append
            and not set
            and delete is _NOTHING
            and label is None
            and description is None
            and tags is _NOTHING
            and metadata is None
            and kind is Kind.MANUAL
            and status is IN_PROGRESS
            and iteration is None
            and tokens_used is None
            and cost is None
            and resume_hint is None
            and id is None
            and external_id is None
            and created_at is None
            and parent is None
            and expect is None
        ):
            with self._engine.alone(self._key) as alone:
                point = self._engine.append_items(self._key, append, self._nothing_said) if alone else None
                if point is not None:
                    self._known, self._step = point.id, point.step
            if point is not None:
                return self._saved(point, None)
        draft = self._draft(
            id,
            label,
            tags,
            description,
            metadata,
            kind,
            status,
            iteration,
            tokens_used,
            cost,
            resume_hint,
            external_id,
            created_at,
        )
        wanted = ANY if expect is None else _id_of(expect)
        for what, given in (("append", append), ("set", set)):
            if given is not None and not isinstance(given, Mapping):
                raise InvalidInputError(f"{what} takes a dict of places, not {given!r}")
        if not isinstance(delete, Iterable):
            raise InvalidInputError(f"delete takes a list of places, not {delete!r}")
        gone = [delete] if isinstance(delete, str) else list(delete)
        if id is not None:
            in_order = gone if isinstance(delete, Sequence) else sorted(gone, key=repr)  # a set has another order elsewhere
            asked = [list((append or {}).items()), list((set or {}).items()), in_order]
            draft.details["request"] = request_digest(self._engine.codec.encode(asked, depth=-3))
        make = partial(diff.update, self._engine.codec, append=append or {}, set=set or {}, delete=gone)
        return self._append(make, draft, parent, wanted)

    def modify(self, change: Callable[[Any], Any], **details: Any) -> Checkpoint:
        """Read, `change(state)`, save; done again whenever somebody else was quicker. None means an empty thread."""
        if "tags" in details:
            details["tags"] = checked_tags(details["tags"])  # what can be read only once has to last for every attempt

        def attempt() -> Checkpoint:
            found = self.latest()
            state = plain_result(change(None if found is None else found.state), "the function that changes the state")
            return self.save(state, **details)

        return retried(attempt, moved=details.get("expect") is None)

    def _change(
        self,
        make: Callable[[Node | None], states.Made],
        *,
        asked: Any = None,
        label: str | None = None,
        description: str | None = None,
        kind: str = Kind.MANUAL,
        status: str = IN_PROGRESS,
        tokens_used: int | None = None,
        cost: float | None = None,
        resume_hint: str | None = None,
        id: str | None = None,  # noqa: A002 - the design's name
        expect: str | None = ANY,
        under: tuple[int, int] | None = None,
        beside: Sequence[StoreChange] = (),
    ) -> Checkpoint:
        """For the rooms above: append what `make` makes of the head's state as it is: operations, new state, what it is about.

        `asked` is what the caller wants, by which a retry with the same `id` is told from something else. `under` is the
        epoch of a lease, and for how many microseconds to prolong it. `beside` is written in the same commit.
        """
        draft = self._draft(id, label, (), description, None, kind, status, None, tokens_used, cost, resume_hint)
        if id is not None:
            draft.details["request"] = request_digest(self._engine.codec.encode(asked))

        return self._append(self._with_about(make, draft), draft, None, expect, beside, under)

    def _with_about(
        self, make: Callable[[Node | None], states.Made], draft: Draft
    ) -> Callable[[Node | None], tuple[list[Op], Node]]:
        def made(node: Node | None) -> tuple[list[Op], Node]:
            ops, after, about = make(node)
            draft.details["about"] = self._engine.codec.encode(dict(about), ("about",)) if about else b""
            return ops, after

        return made

    def _append(
        self,
        make: Callable[[Node | None], tuple[list[Op], Node]],
        draft: Draft,
        parent: Ref | None,
        expect: str | None,
        beside: Sequence[StoreChange] = (),
        under: tuple[int, int] | None = None,
    ) -> Checkpoint:
        if draft.id is not None:
            twin = self._twin(make, draft, draft.id)
            if twin is not None:
                return twin
        base = None if parent is None else self._point(self._resolve(parent))
        if self._origins:
            make, beside = self._tied(make, beside)
        # An autosave of this handle looks at both, the head and what we know of it.
        with self._engine.alone(self._key) as alone:
            try:
                epoch, renew_us = under or (None, None)
                point = self._engine.save(
                    self._key, make, draft, expect=expect, base=base, epoch=epoch, renew_us=renew_us, beside=beside
                )
            except AlreadyExistsError:  # somebody saved the same id between our look and our commit
                twin = None if draft.id is None else self._twin(make, draft, draft.id)
                if twin is None:
                    raise
                return twin
            # Inside connection() the save may yet be rolled back: then nothing is known of the head.
            self._known = point.id if alone else _NOTHING_KNOWN
            self._step = point.step if alone else None
        return self._saved(point, draft.note)

    def _tied(
        self, make: Callable[[Node | None], tuple[list[Op], Node]], beside: Sequence[StoreChange]
    ) -> tuple[Callable[[Node | None], tuple[list[Op], Node]], Sequence[StoreChange]]:
        """The same, with what makes the thread derive from others: looked at again with every attempt to save."""
        with_ties: list[StoreChange] = []

        def made(node: Node | None) -> tuple[list[Op], Node]:
            with_ties[:] = [*beside, *derived.ties(self._engine, self._key, self._origins or {})]
            return make(node)

        return made, with_ties

    def _saved(self, point: Point, note: bytes | None) -> Checkpoint:
        """What a save gives back."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("saved %s: thread %r step %d", point.id, self._key.id, point.step)

        def fields() -> tuple[dict[str, Any], Source]:
            frame = Frame(point.seq, point.id, 0, point.meta, note, None)
            return self._fields(frame, load_meta(frame.meta), point.node, None)

        return Checkpoint.later(fields)

    def _twin(
        self,
        make: Callable[[Node | None], tuple[list[Op], Node]],
        draft: Draft,
        id: str,  # noqa: A002 - one word per idea
    ) -> Checkpoint | None:
        """The checkpoint that has the id already, if it is what would be saved now; AlreadyExistsError if it is not."""
        found = self._engine.find(self._key.namespace, id)
        if found is None:
            return None
        key, frame = found
        if key != self._key:
            raise AlreadyExistsError(f"the id {id!r} is taken by a checkpoint of thread {key.id!r}; choose another")
        meta = load_meta(frame.meta)
        there = self._point(frame)
        texts = ("kind", "status", "reason", "description", "resume_hint")
        fixed = (*texts, "iteration", "tokens_used", "cost", "metadata", "created_us")
        asked = Meta(**{"parent_id": None, "step": 0, "created_us": meta.created_us, "size_bytes": 0, **draft.details})
        same = all(getattr(meta, name) == getattr(asked, name) for name in fixed)
        if meta.request is not None:
            same = same and meta.request == asked.request
        elif same:  # it was saved without id=: what would be saved now is compared with what is there
            _, node = make(self._parent_of(meta.parent_id).node)
            same = there.node is not None and to_bytes(node) == to_bytes(there.node)
        if not same:
            raise AlreadyExistsError(f"the id {id!r} is taken by a checkpoint with other content; choose another id")
        row = self._engine.store.thread(key)
        if row is not None and row.head_id == id:
            self._known, self._step = id, meta.step
        return self._checkpoint(frame, meta, node=there.node)

    def _parent_of(self, parent_id: str | None) -> Point:
        found = None if parent_id is None else self._engine.find(self._key.namespace, parent_id)
        return EMPTY if found is None or found[0] != self._key else self._point(found[1])

    # -- loading -----------------------------------------------------------------------------------

    def latest(self, *, skip_damaged: bool = False) -> Checkpoint | None:
        """The head with its state; None for an empty thread. `skip_damaged`: the newest sound one, with `.skipped`."""
        seen: ThreadRow | None = None
        for _ in range(TRIES):
            row = self._engine.store.thread(self._key)
            if row is None or not row.head:
                self._known, self._step = None, 0
                return None
            try:
                found = self._load_head(row, seen)
            except CorruptionError as error:
                error.newest_sound = self._newest_sound(row, error)
                if not skip_damaged or error.newest_sound is None:
                    raise
                found = error.newest_sound
            if found is not None:
                self._known, self._step = row.head_id, found.step
                return found
            seen = row
        raise ConflictError(f"thread {self.id!r}: {TRIES} times its head moved and was removed while it was loaded; try again")

    def _load_head(self, row: ThreadRow, seen: ThreadRow | None) -> Checkpoint | None:
        """The head that a row names; None if it is not there, and was not yet missing when the row was last `seen`."""
        try:
            return self._load_seq(row.head, head=row.head)
        except CheckpointNotFound as error:
            self._engine.refuse_missing_head(row, seen, error)
            return None

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint that loads; damage is no reason to raise here, `latest` tells of it."""
        try:
            return self.latest(skip_damaged=True) is not None
        except CorruptionError:
            return False

    def load(self, ref: Ref | None = None, *, at: dt.datetime | None = None) -> Checkpoint:
        """A checkpoint with its state: by id, unique prefix, label, `head~n`, step, or the newest `at` a time."""
        try:
            frame = self._resolve("head" if ref is None and at is None else ref, at=at)
            return self._load_seq(frame.seq, frame)
        except CorruptionError as error:
            with suppress(CorruptionError, ThreadNotFound):  # its row is damaged too, or it is gone: there is none
                error.newest_sound = self._newest_sound(lineage.existing(self._engine, self._key))
            raise

    def state(self, ref: Ref | None = None, *, at: dt.datetime | None = None) -> Any:
        """The state at a reference; without one that of the head, None for an empty thread."""
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
        """Checkpoints without their states: the head's line, or with `branches` all. `before` leaves newer ones out."""
        checked_limit(limit)
        row = self._engine.store.thread(self._key)
        if row is None or not row.frames:
            return
        start = None if before is None else self._resolve(before)
        if branches:
            high = None if start is None else start.seq - 1
            frames = lineage.everything(self._engine, self._key, high=high, newest_first=newest_first)
        else:
            page = min(lineage.PAGE, limit or lineage.PAGE)
            frames = lineage.line(self._engine, self._key, row.head if start is None else start.base, page=page)
            frames = frames if newest_first else reversed(list(frames))
        found = 0
        for frame in frames:
            if found == limit:
                return
            name, tags = load_note(frame.note)
            fits = (tag is None or tag in tags) and (label is None or name == label)
            if fits and lineage.visible(self._engine, row, frame):
                yield self._checkpoint(frame)
                found += 1

    def noted(self) -> Iterator[Checkpoint]:
        """Checkpoints that have a label or tags, without their states, newest first, those of branches too."""
        row = self._engine.store.thread(self._key)
        frames = [] if row is None else self._engine.store.frames(self._key, newest_first=True, noted=True)
        return (self._checkpoint(frame) for frame in frames if row is not None and lineage.visible(self._engine, row, frame))

    def replay(self, entries: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
        """Entries of a listing with their states, oldest first: a state that builds on the one before costs its delta.

        Items of lists that these states have in common are the same objects.
        """
        shared: Shared = {}
        wanted = sorted((entry.seq, entry.id) for entry in entries)
        frames = list(self._engine.frames(self._key, [seq for seq, _ in wanted]))
        for frame, (_, id) in zip(frames, wanted, strict=True):  # noqa: A001 - one word per idea
            if frame.id != id:
                raise CheckpointNotFound(f"checkpoint not found: {id!r} is not in thread {self.id!r}")
        for frame, point in self._engine.points(self._key, frames):
            yield states.without_expectation(self._checkpoint(frame, node=point.node, shared=shared))

    def diff(self, a: Ref, b: Ref) -> Diff:
        """What changed from one checkpoint to another: iterable of (path, old, new); printed, one line per change."""
        return changes_between(self._engine.codec, self.load(a).state, self.load(b).state)

    # -- moving ------------------------------------------------------------------------------------

    def rewind(
        self, ref: Ref, *, discard: bool = False, rerun_tools: bool = False, expect: Checkpoint | str | None = None
    ) -> Checkpoint:
        """Make another checkpoint the head. What came after stays as a branch; `discard` deletes all but its ancestors.

        A run that goes on from there takes the results of tool calls that were made already, unless `rerun_tools`: then
        they are new calls, with new keys. With `expect`, raises ConflictError if the head is another one by now; None is any.
        """
        wanted = ANY if expect is None else _id_of(expect)

        def attempt() -> Checkpoint:
            row = lineage.existing(self._engine, self._key)
            frame = self._resolve(ref)
            found = self._load_seq(frame.seq, frame)  # what does not load must not become the head
            moved = discard and pruning.discard_all_but(self._engine, self._key, frame, expect=wanted)
            head = row.head_id if discard and wanted == ANY else wanted  # what was saved meanwhile has to be discarded too
            changes: list[StoreChange] = [] if moved else [MoveHead(self._key, frame.seq, head, agent=found.agent_id)]
            self._engine.store.commit([*changes, *self._made_anew(frame, rerun_tools)])
            return found

        found = retried(attempt, gone=True, moved=wanted == ANY, tries=PLANS)
        logger.info("rewound thread %r to %s%s", self.id, found.id, ", discarding the rest" if discard else "")
        self._known, self._step = found.id, found.step
        return found

    def _made_anew(self, frame: Frame, rerun_tools: bool) -> list[PutRecord]:  # noqa: FBT001 - the public name
        """What a run has to know that goes on from a state: whether the calls of its newest reply are to be made anew.

        If not, their newest outcomes are taken: also where they were once to be made anew, and then were not.
        """
        if RUN not in self._engine.store.kinds(self._key) and not rerun_tools:
            return []
        said = lineage.messages_in(self._engine, self._point(frame).node)
        kept = self.records(RUN)
        reply = reply_of(said, lambda: str(kept.get(ROOT, "")), self._engine.codec.encode)
        if reply is None:
            return []
        before = generation(kept, reply[1])
        made = generation_made(name for name in self.records(CALL) if name.startswith(f"{reply[1]}:")) if before else 0
        wanted = before + 1 if rerun_tools else made
        return [] if wanted == before else [self._record(RUN, GENERATION + reply[1], wanted or None)]

    def fork(self, id: str = NEW_ID, *, at: Ref | None = None) -> Thread:  # noqa: A002 - the design's name
        """A new thread that begins with a copy of one checkpoint and needs nothing of this one. Refuses an existing thread.

        Without an id it gets one of its own.
        """
        key = ThreadKey(self._key.namespace, checked_or_new_id(id))
        return retried(partial(self._fork, key, "head" if at is None else at), tries=PLANS)

    def _fork(self, key: ThreadKey, at: Ref) -> Thread:
        """`fork`, once. ConflictError if somebody makes the thread meanwhile, or the source is not what it was."""
        there = self._engine.store.thread(key)
        if there is not None and there.frames:
            raise AlreadyExistsError(f"thread {key.id!r} exists already; choose another id for the fork")
        frame = self._resolve(at)
        meta = load_meta(frame.meta)
        point = self._engine.point(self._key, frame.seq, frame)
        assert point.node is not None
        draft = Draft(details_of(meta) | {"forked_from": self.id}, None, frame.note)
        made = Thread(self._engine, key, meta.agent_id, self._type)
        made._codec = self._codec
        start = EMPTY._replace(id=point.id, meta=point.meta)
        beside = [*derived.inherited(self._engine, self._key, frame, key), *self._ledger_for(made, point)]
        begun = self._engine.append(key, start, whole(point.node), point.node, draft, expect=None, beside=beside)
        logger.info("forked thread %r at %s as %r", self.id, frame.id, key.id)
        made._known, made._step = begun.id, 1
        return made

    def _ledger_for(self, fork: Thread, point: Point) -> list[PutRecord]:
        """What of the ledger a run on a fork needs."""
        assert point.node is not None
        kept: dict[str, dict[str, Any]] = {
            kind: self.records(kind)
            for kind in self._engine.store.kinds(self._key)
            if companions.policy_of(kind).fork is companions.Way.LEDGER
        }
        said = lineage.messages_in(self._engine, point.node) if kept else []
        before = {frame.id for frame in lineage.line(self._engine, self._key, point.seq)} if STEP in kept else set()
        wanted = for_fork(kept, said, before, self._engine.codec.encode)
        return [fork._record(kind, name, value) for kind, records in wanted.items() for name, value in records.items()]

    # -- notes -------------------------------------------------------------------------------------

    def label(self, ref: Ref, name: str | None) -> Checkpoint:
        """Give a checkpoint a label, or take it away with None."""
        name = checked_label(name)
        return self.note(ref, lambda _, tags: (name, tags))

    def tag(self, ref: Ref, *tags: str) -> Checkpoint:
        """Add tags to a checkpoint."""
        added = checked_tags(tags)
        return self.note(ref, lambda label, old: (label, (*old, *added)))

    def untag(self, ref: Ref, *tags: str) -> Checkpoint:
        """Take tags away from a checkpoint; those that it does not have do not matter."""
        return self.note(ref, lambda label, old: (label, tuple(tag for tag in old if tag not in tags)))

    def note(self, ref: Ref, change: Callable[[str | None, tuple[str, ...]], tuple[str | None, Iterable[str]]]) -> Checkpoint:
        """Change label and tags of a checkpoint at once: `change(label, tags)` gives both, again if others were quicker."""

        def attempt() -> Checkpoint:
            frame = self._resolve(ref)
            changed = plain_result(
                change(*load_note(frame.note)), "the function that changes a note", "pass an ordinary function"
            )
            if not isinstance(changed, (tuple, list)) or len(changed) != 2:
                raise InvalidInputError(f"what changes a note gives a label and tags, not {changed!r}")
            label, tags = changed
            note = dump_note(checked_label(label), checked_tags(tags))
            self._engine.store.commit([PutNote(self._key, frame.seq, note, frame.note)])
            return self._checkpoint(frame._replace(note=note))

        return retried(attempt)

    # -- records -----------------------------------------------------------------------------------

    def records(self, kind: str) -> dict[str, Any]:
        """The records of one kind beside this thread, by name. Raises CorruptionError for what is not of its kind's shape."""
        found = upkeep.records(self._engine, self._key, checked_id(kind, "a record's kind"))
        return {record.name: self._read(record) for record in found}

    def _read(self, record: Record) -> Any:
        return companions.read(self._codec, self._key, record)

    def put_records(self, records: Mapping[tuple[str, str], Any]) -> None:
        """Set records by (kind, name), all or none; a value of None removes one."""
        for place in records:
            if not isinstance(place, tuple) or len(place) != 2:
                raise InvalidInputError(f"a record is put by (kind, name), not by {place!r}")
            checked_id(place[0], "a record's kind")
            checked_id(place[1], "a record's name", LONGEST_NAME)
        changes = [self._record(kind, name, value) for (kind, name), value in records.items()]
        if not self._origins:
            self._engine.store.commit(changes)
            return
        origins = self._origins
        retried(lambda: self._engine.store.commit([*derived.held(self._engine, self._key, origins), *changes]), tries=PLANS)

    def _record(self, kind: str, name: str, value: Any, *, epoch: int | None = None, absent: bool = False) -> PutRecord:
        data = None if value is None else self._engine.codec.encode(value, (kind, name))
        body = None if data is None else wrap(data, compress=self._engine.compress, least=RECORD_COMPRESS_FROM)
        return PutRecord(self._key, kind, name, body, epoch, absent)

    def attach_subject(self, *names: str) -> None:
        """Say that this thread holds data of these subjects (people, customers): `vault.erase(subject)` will take it."""
        subjects.attach(self._engine, self._key, names)

    def subjects(self) -> list[str]:
        """The subjects whose data this thread holds, by name."""
        return subjects.subjects_of(self._engine, self._key)

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, *refs: Ref) -> int:
        """Delete single checkpoints, the head too; the number removed.

        Then the nearest of its ancestors that is left becomes the head, or else the newest checkpoint that is left.
        """
        removed = pruning.remove(self._engine, self._key, refs)
        if removed and self.head is not None and self._engine.find(self._key.namespace, self.head) is None:
            self._known, self._step = _NOTHING_KNOWN, None
        return removed

    def prune(
        self,
        *,
        keep: int | None = None,
        older_than: dt.timedelta | None = None,
        include_labelled: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Delete old checkpoints; the number removed. The head, the newest `keep`, younger and labelled ones stay.

        So do those that a checkpoint of its agent names. `include_labelled` deletes both. With `dry_run`, nothing is
        deleted: the number is that of those that would be.
        """
        removed = pruning.prune(
            self._engine, self._key, keep=keep, older_than=older_than, include_labelled=include_labelled, dry_run=dry_run
        )
        logger.debug("pruned %d checkpoints of thread %r%s", removed, self.id, " (dry run)" if dry_run else "")
        return removed

    def prunable(
        self, *, keep: int | None = None, older_than: dt.timedelta | None = None, include_labelled: bool = False
    ) -> list[Checkpoint]:
        """What `prune` with the same arguments would delete now, without states, newest first."""
        rule = partial(pruning.prunable, keep=keep, older_than=older_than, include_labelled=include_labelled)
        return [self._checkpoint(frame) for frame in rule(self._engine, self._key)]

    def delete(self) -> bool:
        """Delete the thread with everything beside it and its child threads, all or none. True if there was one.

        If a checkpoint of an agent names it, a restore of that brings it back; its bytes are freed with the last such one.
        """
        found = deleting.delete(self._engine, [self._key]).threads
        self._known, self._step = _NOTHING_KNOWN, None
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
        """Save what `get_state()` gives, at once and then `every` so often, in a background thread, through this handle.

        A context manager; `stop()` ends it too. What has not changed is not saved. With `keep`, only the newest so many
        automatic checkpoints stay, and labelled ones. Errors are logged, handed to `on_error` and kept; a ConflictError
        among them until this handle reads the thread again. Raises AlreadyExistsError while another one runs.
        """
        details = {"description": description, "tags": tags, "metadata": metadata}
        return Autosave(self, self._engine, self._key, get_state, every=every, keep=keep, on_error=on_error, **details)

    def watch(
        self,
        *,
        since: Ref | None = None,
        poll: dt.timedelta = dt.timedelta(milliseconds=200),
        timeout: dt.timedelta | None = None,
    ) -> Iterator[Checkpoint]:
        """New checkpoints without their states as anybody saves them, branches too, oldest first; waits for more.

        New are those after `since`, or after the newest there is at the time of the call. Ends after `timeout` without
        any, else never; raises ClosedError when the vault is closed. A thread that is deleted is waited for.
        """
        return follow(Watcher(self._engine, self._key, since, self._checkpoint), poll, timeout)

    # -- helpers -----------------------------------------------------------------------------------

    def _resolve(self, ref: Ref | None, *, at: dt.datetime | None = None) -> Frame:
        return lineage.resolve(self._engine, self._key, ref, at=at)

    def _point(self, frame: Frame) -> Point:
        return self._engine.point(self._key, frame.seq, frame)

    def _load_seq(self, seq: int, frame: Frame | None = None, *, head: int | None = None) -> Checkpoint:
        """A checkpoint with its state; kept in the cache if it is the head (as far as the caller knows, if it says so)."""
        as_head = head is not None
        frame = frame or self._engine.frame(self._key, seq)
        point = self._point(frame)
        if head is None:
            row = self._engine.store.thread(self._key) if self._engine.cache.limit else None
            head = None if row is None else row.head
        if head == seq:
            self._engine.cache.put(self._key, point)
        found = self._checkpoint(frame, node=point.node)
        _ = found.state  # decoded now: what does not decode is reported here, not at the first look
        logger.debug("loaded %s: thread %r step %d", frame.id, self.id, point.step)
        return found if as_head else states.without_expectation(found)

    def _load_again(self, listed: Frame) -> Checkpoint:
        """An entry of a listing with its state, if it is still there: its thread may have been deleted and made anew."""
        frames = self._engine.store.frames(self._key, low=listed.seq, high=listed.seq)
        if not frames or frames[0].id != listed.id:
            raise CheckpointNotFound(f"checkpoint not found: {listed.id!r} was deleted")
        return self._load_seq(listed.seq, frames[0])

    def _newest_sound(self, row: ThreadRow, error: CorruptionError | None = None) -> Checkpoint | None:
        """The newest checkpoint of the head's line that loads, passing over what damage of the head makes unreadable."""
        skipped: list[str] = []
        broken = None if error is None else error.seq
        try:
            for frame in lineage.line(self._engine, self._key, row.head):
                if broken is not None and frame.seq >= broken:
                    skipped.append(frame.id)
                    continue
                try:
                    return self._load_seq(frame.seq, frame)._changed(skipped=tuple(skipped))
                except CorruptionError as another:
                    skipped.append(frame.id)
                    broken = another.seq
        except CorruptionError:  # metadata on the way is damaged: the line is lost, but not what is older
            return self._newest_up_to(row.head)
        return None

    def _newest_up_to(self, seq: int) -> Checkpoint | None:
        """The newest checkpoint that loads, of whichever line."""
        skipped: list[str] = []
        for older in range(seq, 0, -1):
            try:
                frames = self._engine.store.frames(self._key, low=older, high=older)
            except CorruptionError as error:
                skipped += [error.checkpoint_id] if error.checkpoint_id else []
                continue
            for frame in frames:
                try:
                    return self._load_seq(frame.seq, frame)._changed(skipped=tuple(skipped))
                except CorruptionError:
                    skipped.append(frame.id)
        return None

    def _checkpoint(
        self, frame: Frame, meta: Meta | None = None, *, node: Node | None = None, shared: Shared | None = None
    ) -> Checkpoint:
        known = load_meta(frame.meta) if meta is None else meta
        return Checkpoint.later(lambda: self._fields(frame, known, node, shared))

    def _fields(self, frame: Frame, meta: Meta, node: Node | None, shared: Shared | None) -> tuple[dict[str, Any], Source]:
        label, tags = load_note(frame.note)
        fields = {
            "id": frame.id,
            "thread_id": self.id,
            "agent_id": meta.agent_id,
            "parent_id": meta.parent_id,
            "seq": frame.seq,
            "step": meta.step,
            "created_at": meta.created_at,
            "size_bytes": meta.size_bytes,
            "digest": meta.digest.hex(),
            "iteration": meta.iteration,
            "label": label,
            "description": meta.description,
            "tags": tags,
            "metadata": self._codec.decode(meta.metadata) if meta.metadata else {},
            "kind": Kind.of(meta.kind),
            "status": Status(meta.status, meta.reason),
            "tokens_used": meta.tokens_used,
            "cost": meta.cost,
            "resume_hint": meta.resume_hint,
            "forked_from": meta.forked_from,
            "external_id": meta.external_id,
        }
        decode = None if node is None else lambda: self._value(frame.id, meta, node, shared)
        return fields, Source(lambda: self._load_again(frame), decode, self._codec)

    def _value(self, checkpoint_id: str, meta: Meta, node: Node, shared: Shared | None) -> Any:
        value = value_of(self._codec, node, shared)
        if self._type is None:
            return value
        if issubclass(self._type, Plain):
            return states.restored(self._type, value, self.id, checkpoint_id, meta)
        return self._codec.restore(self._type, value)


def _id_of(expect: Checkpoint | str) -> str:
    return expect.id if isinstance(expect, Checkpoint) else checked_id(expect, "an expected checkpoint's id")
