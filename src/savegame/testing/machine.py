"""A Hypothesis machine that compares a real vault with a plain model. (Over 500 lines: its rules and checks share one state.)

    class MyMachine(VaultMachine):
        def make_vault(self): ...             # a new, empty vault
        def reopen(self, vault): ...          # the same data, opened again; None if the data ends with the vault

    TestMyVault = MyMachine.TestCase

Both must be equal after each step. Each thread is used through two handles, so that one is often behind. States are also
compared through a second vault without a cache. Needs hypothesis.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from savegame.checkpoint import Checkpoint
from savegame.errors import AlreadyExistsError, CheckpointNotFound, ConflictError, InvalidInputError, ThreadNotFound
from savegame.opening import open_vault
from savegame.store import PutKeyframe
from savegame.testing import strategies
from savegame.testing.model import UNKNOWN, Misfit, ModelCheckpoint, ModelThread, ModelVault, apply_update, same
from savegame.thread import Thread
from savegame.vault import Vault

THREADS: Final = ("support-42", "../../x", "🎲")
LABELS: Final = ("before refund", "latest", "a/b")
TAGS: Final = ("risky", "head", "ü")
AGENTS: Final = (None, "helper")
PLAIN_DETAILS: Final = ("description", "iteration", "tokens_used", "cost", "resume_hint", "metadata", "kind", "status")

threads = st.sampled_from(THREADS)
sides = st.sampled_from((0, 1))
details = st.fixed_dictionaries(
    {},
    optional={
        "label": st.sampled_from(LABELS),
        "tags": st.lists(st.sampled_from(TAGS), max_size=3),
        "description": st.text(max_size=20),
        "metadata": st.dictionaries(st.text(max_size=5), strategies.values(max_leaves=3), max_size=2),
        "kind": st.sampled_from(("manual", "automatic", "pre_operation", "recovery", "tool_call", "llm_response", "iteration")),
        "status": st.sampled_from(("in_progress", "completed", "failed(it broke)", "halted()", "halted(a loop)", "failed")),
        "iteration": st.integers(0, 2**63 - 1),
        "tokens_used": st.integers(0, 10_000),
        "cost": st.floats(0, 1e9),
        "resume_hint": st.text(max_size=20),
    },
)


class VaultMachine(RuleBasedStateMachine):
    """Saves, rewinds, forks, annotates, removes and maintains, through two handles per thread."""

    keyframes: ClassVar[bool] = True
    """Whether to put keyframes anywhere by hand; they are derived data, so nothing may change."""

    def make_vault(self) -> Vault:
        """A new, empty vault. Called once per run; `close` is called at its end."""
        raise NotImplementedError

    def reopen(self, vault: Vault) -> Vault | None:
        """Close a vault and open its data again; return None, without closing it, if the data would be lost."""
        return None

    # -- life --------------------------------------------------------------------------------------

    def __init__(self) -> None:
        super().__init__()
        self.model = ModelVault()
        self.touched: set[str] = set()
        self.handles: dict[tuple[str, int], Thread] = {}
        self.known: dict[tuple[str, int], str | None] = {}
        self.seen: dict[str, tuple[Any, ...]] = {}
        """The immutable parts of each checkpoint when it was first seen."""

    @initialize()
    def begin(self) -> None:
        """Open the vault."""
        self.vault = self.make_vault()

    def teardown(self) -> None:
        """Check everything again, and every byte."""
        if not hasattr(self, "vault"):
            return
        try:
            self.check_everything()
        finally:
            self.vault.close()

    @property
    def cold(self) -> Vault:
        """The same store without a cache."""
        return Vault(self.vault.store, namespace=self.vault.namespace, cache_bytes=0)

    def handle(self, thread_id: str, side: int) -> Thread:
        """One of the two handles on a thread."""
        place = (thread_id, side)
        if place not in self.handles:
            self.handles[place] = self.vault.thread(thread_id, agent=AGENTS[side])
            self.known[place] = UNKNOWN
        return self.handles[place]

    @contextmanager
    def conflict(self, expected: str | None, found: str | None) -> Iterator[None]:
        """The block must raise ConflictError with these heads."""
        try:
            yield
        except ConflictError as error:
            assert type(error) is ConflictError
            assert (error.expected, error.found) == (expected, found)
        else:
            raise AssertionError(f"expected {expected}, found {found}, but it was saved")

    @contextmanager
    def refused(self, kind: type[Exception]) -> Iterator[None]:
        """The block must raise exactly this class."""
        try:
            yield
        except kind as error:
            assert type(error) is kind, error
        else:
            raise AssertionError(f"{kind.__name__} was not raised")

    # -- saving ------------------------------------------------------------------------------------

    def draw_state(self, data: st.DataObject, thread_id: str) -> Any:
        """A state: often the head's with small changes, sometimes unchanged."""
        thread = self.model.thread(thread_id)
        if thread.head is None:
            return data.draw(strategies.states(), label="state")
        before = thread.checkpoints[thread.head].state
        return data.draw(st.just(before) | strategies.edits(before) | strategies.edits(before), label="state")

    def saved(
        self, place: tuple[str, int], checkpoint: Checkpoint, state: Any, *, parent: str | None = None, keywords: dict[str, Any]
    ) -> None:
        """Record a save in the model, and check the returned checkpoint."""
        thread_id, side = place
        for seen in (checkpoint.id, f"seq {checkpoint.id}"):  # an id may be reused after its checkpoint was deleted
            self.seen.pop(seen, None)
        point = self.model.save(thread_id, checkpoint.id, state, parent=parent, details=keywords, agent=AGENTS[side])
        self.known[place] = checkpoint.id
        self.touched.add(thread_id)
        self.check_checkpoint(checkpoint, thread_id, point)
        assert same(checkpoint.state, state)
        assert (self.handles[place].head, self.handles[place].step) == (checkpoint.id, point.step)

    @rule(data=st.data(), thread_id=threads, side=sides, keywords=details)
    def save(self, data: st.DataObject, thread_id: str, side: int, keywords: dict[str, Any]) -> None:
        """Save a whole state; refused if the handle is behind."""
        place = (thread_id, side)
        handle = self.handle(*place)
        state = self.draw_state(data, thread_id)
        given = copy.deepcopy(state)
        head, known = self.model.thread(thread_id).head, self.known[place]
        if known in (UNKNOWN, head):
            self.saved(place, handle.save(given, **keywords), state, keywords=keywords)
            _scribble(given)
            return
        with self.conflict(known, head):
            handle.save(given, **keywords)
        self.touched.add(thread_id)

    @rule(data=st.data(), thread_id=threads, side=sides, keywords=details)
    def save_by_force(self, data: st.DataObject, thread_id: str, side: int, keywords: dict[str, Any]) -> None:
        """Save on top of any head."""
        place = (thread_id, side)
        handle = self.handle(*place)
        state = self.draw_state(data, thread_id)
        self.saved(place, handle.save(state, force=True, **keywords), state, keywords=keywords)

    @rule(data=st.data(), thread_id=threads, side=sides, keywords=details, relative=st.booleans())
    def save_expecting(
        self, data: st.DataObject, thread_id: str, side: int, keywords: dict[str, Any], *, relative: bool
    ) -> None:
        """Save or update with an expectation of the caller."""
        place = (thread_id, side)
        handle = self.handle(*place)
        thread = self.model.thread(thread_id)
        named = data.draw(st.sampled_from([*thread.checkpoints, "no such checkpoint"]), label="expect")
        assume(not relative or thread.head is None or type(thread.checkpoints[thread.head].state) is dict)

        def act() -> tuple[Checkpoint, Any]:
            if not relative:
                state = self.draw_state(data, thread_id)
                return handle.save(state, expect=named, **keywords), state
            before = thread.checkpoints[thread.head].state if thread.head else {}
            return handle.update(set={"expected": 1}, expect=named, **keywords), before | {"expected": 1}

        if named != thread.head:
            with self.conflict(named, thread.head):
                act()
            return
        self.saved(place, *act(), keywords=keywords)

    @rule(data=st.data(), thread_id=threads, side=sides, keywords=details)
    def save_on_a_parent(self, data: st.DataObject, thread_id: str, side: int, keywords: dict[str, Any]) -> None:
        """Start a branch at an older checkpoint, which becomes the head."""
        place = (thread_id, side)
        point = self.draw_point(data, thread_id)
        handle = self.handle(*place)
        state = data.draw(strategies.edits(point.state), label="state")
        self.saved(place, handle.save(state, parent=point.id, **keywords), state, parent=point.id, keywords=keywords)

    @rule(data=st.data(), thread_id=threads, side=sides, keywords=details)
    def save_with_an_id(self, data: st.DataObject, thread_id: str, side: int, keywords: dict[str, Any]) -> None:
        """A retry with the same id returns the same checkpoint; other content is refused."""
        place = (thread_id, side)
        handle = self.handle(*place)
        own = data.draw(strategies.ids(), label="id")
        owner = self.model.owner(own)
        state = self.draw_state(data, thread_id)
        if owner is not None:
            taken = self.model.threads[owner].checkpoints[own]
            if owner != thread_id or not same(taken.state, state):
                with self.refused(AlreadyExistsError):
                    handle.save(state, id=own, force=True, **keywords)
            return
        checkpoint = handle.save(state, id=own, force=True, **keywords)
        assert checkpoint.id == own
        self.saved(place, checkpoint, state, keywords=keywords)
        again = self.vault.thread(thread_id, agent=AGENTS[side]).save(state, id=own, **keywords)
        assert (again.id, again.seq, again.digest) == (checkpoint.id, checkpoint.seq, checkpoint.digest)
        with self.refused(AlreadyExistsError):
            handle.save({"quite": ["other", own]}, id=own, **keywords)

    @rule(data=st.data(), thread_id=threads, side=sides, keywords=details)
    def update(self, data: st.DataObject, thread_id: str, side: int, keywords: dict[str, Any]) -> None:
        """Relative changes apply to the current head; changes that do not fit are refused, and nothing is saved."""
        place = (thread_id, side)
        handle = self.handle(*place)
        thread = self.model.thread(thread_id)
        before = thread.checkpoints[thread.head].state if thread.head else {}
        places = st.sampled_from(sorted(_places(before), key=len)) if _places(before) else st.just(("fresh",))
        somewhere = places | st.tuples(st.text(max_size=4))
        small = strategies.values(max_leaves=4, large=True)
        change: dict[str, Any] = {
            "set": data.draw(st.dictionaries(somewhere, small, max_size=2), label="set"),
            "append": data.draw(st.dictionaries(somewhere, st.lists(small, max_size=3), max_size=2), label="append"),
            "delete": data.draw(st.lists(somewhere, max_size=2), label="delete"),
        }
        try:
            after = apply_update(before, set_=change["set"], append=change["append"], delete=change["delete"])
        except Misfit:
            with self.refused(InvalidInputError):
                handle.update(**change, **keywords)
            self.touched.add(thread_id)
            return
        self.saved(place, handle.update(**copy.deepcopy(change), **keywords), after, keywords=keywords)

    @rule(thread_id=threads, side=sides, message=strategies.messages())
    def append(self, thread_id: str, side: int, message: Any) -> None:
        """Append one message, the common step of an agent."""
        place = (thread_id, side)
        thread = self.model.thread(thread_id)
        before = thread.checkpoints[thread.head].state if thread.head else {}
        assume(type(before) is dict and type(before.get("messages", [])) is list)
        after = {**before, "messages": [*before.get("messages", []), message]}
        self.saved(place, self.handle(*place).update(append={"messages": [message]}), after, keywords={})

    @rule(thread_id=threads, side=sides)
    def modify(self, thread_id: str, side: int) -> None:
        """Read, change, save, even if the handle is behind."""
        place = (thread_id, side)
        thread = self.model.thread(thread_id)
        before = thread.checkpoints[thread.head].state if thread.head else None
        seen: list[Any] = []

        def change(state: Any) -> Any:
            seen.append(copy.deepcopy(state))
            return {"was": state}

        checkpoint = self.handle(*place).modify(change)
        assert len(seen) == 1
        assert same(seen[0], before)
        self.saved(place, checkpoint, {"was": before}, keywords={})

    # -- reading -----------------------------------------------------------------------------------

    @rule(thread_id=threads, side=sides)
    def read(self, thread_id: str, side: int) -> None:
        """A handle remembers the head that it read."""
        place = (thread_id, side)
        handle = self.handle(*place)
        head = self.model.thread(thread_id).head
        found = handle.latest()
        assert (None if found is None else found.id) == head
        if found is not None:
            _scribble(found.state)
        self.known[place] = head

    @rule(thread_id=threads, side=sides)
    def read_state(self, thread_id: str, side: int) -> None:
        """`state()` counts as reading too."""
        place = (thread_id, side)
        thread = self.model.thread(thread_id)
        assert same(self.handle(*place).state(), thread.checkpoints[thread.head].state if thread.head else None)
        self.known[place] = thread.head

    # -- moving and removing -----------------------------------------------------------------------

    def draw_point(self, data: st.DataObject, thread_id: str) -> ModelCheckpoint:
        """Any checkpoint of a thread."""
        thread = self.model.thread(thread_id)
        assume(thread.head is not None)
        return thread.checkpoints[data.draw(st.sampled_from(list(thread.checkpoints)), label="checkpoint")]

    @rule(data=st.data(), thread_id=threads, side=sides, discard=st.booleans())
    def rewind(self, data: st.DataObject, thread_id: str, side: int, *, discard: bool) -> None:
        """Move the head; later checkpoints stay as a branch or are deleted."""
        place = (thread_id, side)
        point = self.draw_point(data, thread_id)
        found = self.handle(*place).rewind(point.id, discard=discard)
        self.model.rewind(thread_id, point.id, discard=discard)
        self.known[place] = point.id
        self.touched.add(thread_id)
        self.check_checkpoint(found, thread_id, point)
        assert same(found.state, point.state)

    @rule(data=st.data(), thread_id=threads, new=threads | st.sampled_from(("what-if", "a/b")))
    def fork(self, data: st.DataObject, thread_id: str, new: str) -> None:
        """Start a new thread that is independent of the old one; an existing thread is refused."""
        point = self.draw_point(data, thread_id)
        thread = self.vault.thread(thread_id)
        if self.model.thread(new).head is not None:
            with self.refused(AlreadyExistsError):
                thread.fork(new, at=point.id)
            return
        forked = thread.fork(new, at=point.id)
        assert forked.head is not None
        self.model.fork(thread_id, point.id, new, forked.head)
        self.handles[new, 0], self.known[new, 0] = forked, forked.head
        self.touched |= {thread_id, new}
        # The handle of a fork works for the agent of its source checkpoint.
        self.handles[new, 0] = self.vault.thread(new, agent=AGENTS[0])
        self.known[new, 0] = UNKNOWN

    @rule(data=st.data(), thread_id=threads, name=st.none() | st.sampled_from(LABELS), tags=st.lists(st.sampled_from(TAGS)))
    def annotate(self, data: st.DataObject, thread_id: str, name: str | None, tags: list[str]) -> None:
        """Change labels and tags; nothing else changes."""
        point = self.draw_point(data, thread_id)
        thread = self.vault.thread(thread_id)
        match data.draw(st.sampled_from(("label", "tag", "untag")), label="what"):
            case "label":
                thread.label(point.id, name)
                point.label = name
            case "tag":
                thread.tag(point.id, *tags)
                point.tags = tuple(dict.fromkeys((*point.tags, *tags)))
            case _:
                thread.untag(point.id, *tags)
                point.tags = tuple(tag for tag in point.tags if tag not in tags)
        self.touched.add(thread_id)

    @rule(thread_id=threads, keep=st.integers(1, 6), include_labelled=st.booleans())
    def prune(self, thread_id: str, keep: int, *, include_labelled: bool) -> None:
        """Prune; the other checkpoints keep their states."""
        removed = self.vault.thread(thread_id).prune(keep=keep, include_labelled=include_labelled)
        assert removed == self.model.prune(thread_id, keep, include_labelled=include_labelled)
        self.touched.add(thread_id)

    @rule(thread_id=threads, side=sides)
    def delete(self, thread_id: str, side: int) -> None:
        """Delete a thread; the handle then expects nothing."""
        place = (thread_id, side)
        assert self.handle(*place).delete() == self.model.delete(thread_id)
        self.known[place] = UNKNOWN
        self.touched.add(thread_id)

    # -- maintenance -------------------------------------------------------------------------------

    @rule(data=st.data(), thread_id=threads)
    def keyframe(self, data: st.DataObject, thread_id: str) -> None:
        """Put or remove a keyframe anywhere: it is derived data."""
        assume(self.keyframes)
        point = self.draw_point(data, thread_id)
        thread = self.vault.thread(thread_id)
        found = thread.timeline.point(thread.load(point.id).seq)
        assert found.node is not None
        body = thread.timeline.engine.keyframe(found.node) if data.draw(st.booleans(), label="put") else None
        self.vault.store.commit([PutKeyframe(thread.timeline.key, found.seq, body)])
        self.touched.add(thread_id)

    @rule()
    def compact(self) -> None:
        """Compact; nothing else changes."""
        self.vault.compact()
        self.check_everything()

    @rule()
    def open_again(self) -> None:
        """Reopen; saved data exists, and handles start again."""
        fresh = self.reopen(self.vault)
        assume(fresh is not None)
        assert fresh is not None
        self.vault = fresh
        self.handles.clear()
        self.known.clear()
        self.check_everything()

    @rule()
    def copy(self) -> None:
        """A copy is equal, including digests, and a second copy adds nothing."""
        with open_vault("memory:", namespace="copied") as target:
            total = sum(len(thread.checkpoints) for thread in self.model.threads.values())
            assert self.vault.copy_to(target) == total
            assert self.vault.copy_to(target) == 0
            for thread_id in self.model.threads:
                self.check_thread(target, thread_id, order=False)
            assert target.verify().ok, target.verify().problems

    # -- equality ----------------------------------------------------------------------------------

    @invariant()
    def equal(self) -> None:
        """Threads that the last step touched are equal, and no other thread appeared or disappeared."""
        for thread_id in self.touched:
            self.check_thread(self.vault, thread_id)
            self.check_states(self.cold, thread_id)
        self.touched.clear()
        if hasattr(self, "vault"):
            listed = {info.id: (info.head, info.checkpoints, info.step) for info in self.vault.threads(limit=None)}
            assert listed == {
                name: (thread.head, len(thread.checkpoints), thread.checkpoints[thread.head or ""].step)
                for name, thread in self.model.threads.items()
            }

    def check_everything(self) -> None:
        """Check all threads, and every byte."""
        for thread_id in {*THREADS, *self.model.threads}:
            self.check_thread(self.vault, thread_id)
            self.check_states(self.cold, thread_id)
        report = self.vault.verify()
        assert report.ok, report.problems
        assert report.threads == len(self.model.threads)
        stats = self.vault.stats()
        assert stats.threads == len(self.model.threads)
        assert stats.checkpoints == sum(len(thread.checkpoints) for thread in self.model.threads.values())

    def check_thread(self, vault: Vault, thread_id: str, *, order: bool = True) -> None:
        """Check listings, metadata, references and states of one thread."""
        thread = vault.thread(thread_id)
        model = self.model.thread(thread_id)
        line = list(model.line())
        assert [entry.id for entry in thread.history()] == [point.id for point in line]
        assert [entry.id for entry in thread.history(newest_first=False)] == [point.id for point in reversed(line)]
        assert [entry.id for entry in thread.history(limit=2)] == [point.id for point in line[:2]]
        entries = list(thread.history(branches=True))
        assert [entry.id for entry in entries] == [point.id for point in model.newest()]
        assert [entry.seq for entry in entries] == sorted((entry.seq for entry in entries), reverse=True)
        for entry in entries:
            self.check_checkpoint(entry, thread_id, model.checkpoints[entry.id], order=order)
        self.check_states(vault, thread_id)
        self.check_references(thread, model, line)

    def check_states(self, vault: Vault, thread_id: str) -> None:
        """Check all states of a thread, through its listing and its head."""
        thread = vault.thread(thread_id)
        model = self.model.thread(thread_id)
        for entry in thread.history(branches=True):
            found = entry.load()
            if not same(found.state, model.checkpoints[entry.id].state):
                note(f"thread {thread_id!r} checkpoint {entry.id} has\n{found.state!r}")
                note(f"and should have\n{model.checkpoints[entry.id].state!r}")
                raise AssertionError("a state differs from what was saved")
        latest = thread.latest()
        assert (latest and latest.id) == model.head
        if latest is not None:
            assert same(latest.state, model.checkpoints[latest.id].state)

    def check_checkpoint(self, found: Checkpoint, thread_id: str, point: ModelCheckpoint, *, order: bool = True) -> None:
        """Check all metadata of one checkpoint; immutable parts must be unchanged."""
        assert (found.id, found.thread_id, found.parent_id, found.step) == (point.id, thread_id, point.parent_id, point.step)
        assert (found.label, found.tags) == (point.label, point.tags)
        assert (found.agent_id, found.forked_from) == (point.agent, point.forked_from)
        given = {"metadata": {}, "kind": "manual", "status": "in_progress"} | point.details
        for name in PLAIN_DETAILS:
            value = getattr(found, name)
            text = repr(value) if name == "status" else str(value) if name == "kind" else value
            wanted = given.get(name)
            assert same(text, wanted), (name, text, wanted)
        fixed = (found.digest, found.created_at, found.size_bytes)
        assert self.seen.setdefault(found.id, fixed) == fixed
        if order:
            assert self.seen.setdefault(f"seq {found.id}", (found.seq,)) == (found.seq,)

    def check_references(self, thread: Thread, model: ModelThread, line: list[ModelCheckpoint]) -> None:
        """Check that ids, prefixes, labels, steps and `head~n` resolve correctly."""
        if model.head is None:
            with self.refused(ThreadNotFound):
                thread.load("head")
            return
        references: dict[str | int, str] = {name: name for name in model.checkpoints}  # a full id comes before all else
        for back, point in enumerate(line):
            references.setdefault(f"head~{back}", point.id)
            references[point.step] = point.id
        references.setdefault("head", model.head)
        for reference, wanted_id in references.items():
            assert thread.load(reference).id == wanted_id
        nowhere: tuple[str | int, ...] = (f"head~{len(line)}", line[0].step + 1, 0, "no such thing", "ffff")
        for missing in (reference for reference in nowhere if reference not in references):
            with self.refused(CheckpointNotFound):
                thread.load(missing)
        for name in model.checkpoints:
            generated = len(name) == 32 and len([other for other in model.checkpoints if other.startswith(name[:8])]) == 1
            if generated and model.labelled(name[:8]) is None:
                assert thread.load(name[:8]).id == name
        for label in LABELS:
            wanted = model.labelled(label)
            if wanted is not None and label not in model.checkpoints:
                assert thread.load(label).id == wanted.id
            on_line = [point.id for point in line if point.label == label]
            assert [entry.id for entry in thread.history(label=label)] == on_line
        for tag in TAGS:
            assert [entry.id for entry in thread.history(tag=tag)] == [point.id for point in line if tag in point.tags]


def _places(state: Any) -> list[tuple[Any, ...]]:
    """Paths into a state, at most three levels down."""
    found: list[tuple[Any, ...]] = []
    level: list[tuple[tuple[Any, ...], Any]] = [((), state)]
    for _ in range(3):
        below = []
        for path, value in level:
            parts = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
            below += [((*path, name), child) for name, child in parts]
        found += [path for path, _ in below]
        level = below
    return found


def _scribble(value: Any) -> None:
    """Change an object in place, which must not affect the vault."""
    if type(value) is dict:
        for child in value.values():
            _scribble(child)
        value.clear()
    elif type(value) is list:
        for child in value:
            _scribble(child)
        value.append("scribbled")
    elif type(value) is set:
        value.add("scribbled")
