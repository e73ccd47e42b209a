"""Interrupts of LangGraph's graphs: what waits for a person, and answers to it. Data only, so LangGraph is not needed.

A graph that stopped to ask has a pending write with the question at its newest checkpoint, in the thread of the (sub)graph
whose task asked; each graph around it repeats the question. They are listed once, for the outermost thread. An answer is one
more record among those writes, which the saver shows to the graph as LangGraph's own record of an answer. Touches ledger,
derived, companions and what is below them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from savegame.encoding.foreign import Foreign
from savegame.encoding.frames import Meta, load_meta
from savegame.encoding.text import written
from savegame.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError, UnsupportedError
from savegame.model import Status
from savegame.runs.ledger import CallEntry, CallStatus
from savegame.store import Expect, PutRecord, StoreChange
from savegame.timeline.companions import CHILD, PARENT, WRITES
from savegame.timeline.derived import linked
from savegame.timeline.lineage import Lineage
from savegame.waiting.retrying import retried

INTERRUPT: Final = "__interrupt__"
RESUME: Final = "__resume__"
ERROR: Final = "__error__"
_CONTROL: Final = (INTERRUPT, RESUME, ERROR, "__error_source_node__", "__scheduled__")
"""Channels that say how a task fares; a write to any other means that it has ended."""

_NO_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""Stands for the caller of the graph, whose `Command(resume=...)` is kept under it."""

_PULL: Final = "~__pregel_pull, "
"""Stands before the node's name in the path of a task."""

ANSWERED: Final = 1_000_000
"""Answers of `vault.answer` have this number plus that of the answers that the task had before."""

Write = tuple[int, str, str, Any]
"""A pending write: its number, task, channel and value."""


@dataclass(slots=True)
class _Task:
    """What a task of the newest checkpoint wrote."""

    id: str
    path: str
    asked: list[Any] = field(default_factory=list)
    resumed: Any = field(default_factory=list)
    """The answers that it got so far."""
    answers: set[int] = field(default_factory=set)
    """The numbers of those that it will get."""
    error: Any = None
    ended: bool = False

    @property
    def node(self) -> str:
        """The name of its node, as far as its path tells."""
        return self.path.rpartition(_PULL)[2].partition(",")[0] if _PULL in self.path else "interrupt"

    @property
    def answered(self) -> bool:
        """Whether it has an answer that it did not read yet."""
        return isinstance(self.resumed, list) and len(self.resumed) in self.answers


class _Head(NamedTuple):
    """The newest checkpoint of a graph, with its tasks."""

    thread: Lineage
    kind: str
    created_at: dt.datetime
    tasks: dict[str, _Task]
    names: frozenset[str]
    """Of the records."""

    @property
    def commanded(self) -> list[Any]:
        """The answer that the caller gave, if any."""
        return list(self.tasks[_NO_TASK].resumed) if _NO_TASK in self.tasks else []

    def open(self) -> Iterator[tuple[_Task, str, Any]]:
        """The interrupts of tasks that have not ended: the task, the interrupt's id, and its value."""
        for task in sorted(self.tasks.values(), key=lambda task: task.path):
            for one in () if task.ended else task.asked:
                known = one if isinstance(one, Mapping) else {"value": one}
                yield task, str(known.get("id") or task.id), known.get("value")


class _Waiting(NamedTuple):
    """An interrupt: its entry, and the tasks that have it, that of the innermost subgraph first."""

    entry: CallEntry
    held: list[tuple[_Head, _Task]]


def waiting(thread: Lineage) -> list[CallEntry]:
    """The interrupts of a graph and its subgraphs that wait, or were answered but not resumed; none for a subgraph itself."""
    found = [one.entry for one in _waiting(thread)]
    return [] if found and thread.names(PARENT) else found


def graph_status(thread: Lineage, meta: Meta) -> Status:
    """The status of a head: halted while an interrupt waits, failed if a task did, else what was saved with it."""
    saved = Status(meta.status, meta.reason)
    try:
        head = _head(thread, meta) if meta.external_id is not None and saved == "in_progress" else None
    except CorruptionError:  # `waiting` raises it
        return saved
    if head is None:
        return saved
    failed = [task for task in head.tasks.values() if task.error is not None and not task.ended]
    errors = [f"{task.node} failed" if isinstance(task.error, Foreign) else written(task.error) for task in failed]
    if errors:
        return Status.failed(min(errors, key=lambda text: "Cancelled" in text))  # other tasks are cancelled when one fails
    if head.commanded:  # only the task that asked tells whether it got this answer
        open_ = [found.held[-1][1].node for found in _waiting_at(head) if not found.entry.answered]
    else:
        open_ = [task.node for task, key, _ in head.open() if not task.answered and _mark(key) not in head.names]
    return Status.halted(f"{open_[0]} waits for a person") if open_ else saved


def answer(thread: Lineage, key: str, value: Any, comment: str | None) -> bool:
    """Keep the answer to an interrupt for its graph. Returns False if it has one; raises NotFoundError if it does not wait."""
    parents = linked(thread, PARENT)
    root = thread.at(parents[0]) if parents else thread

    def attempt() -> bool:
        found = next((one for one in _waiting(root) if one.entry.key == key), None)
        if found is None:
            raise NotFoundError(
                f"thread {root.id!r} has no call {key!r}, or its graph has gone on; vault.calls({root.id!r}) lists what waits"
            )
        if comment is not None:
            raise InvalidInputError("a graph gets only the answer to its interrupt; put the comment into it")
        return not found.entry.answered and _keep(found, value)

    return retried(attempt)


def _keep(found: _Waiting, value: Any) -> bool:
    at, task = found.held[0]
    if not isinstance(task.resumed, list):
        raise UnsupportedError(
            f"thread {at.thread.id!r}: earlier answers of {task.node!r} cannot be read here, because their serializer is "
            "another one; answer by resuming the graph with Command(resume=...)"
        )
    number = len(task.resumed)
    changes: list[StoreChange] = [
        Expect(at.thread.key, kind=at.kind, names=at.names),
        _record(at, f"{task.id} answer {number}", [task.id, task.path, [[ANSWERED + number, RESUME, value]]], absent=True),
    ]
    others = {head.thread.key: (head, other) for head, other in found.held[1:]}
    changes += [_record(head, _mark(found.entry.key), [other.id, other.path, []]) for head, other in others.values()]
    try:
        at.thread.store.commit(changes)
    except AlreadyExistsError:
        return False
    return True


def _record(head: _Head, name: str, value: Any, *, absent: bool = False) -> PutRecord:
    body = head.thread.engine.wrap_record(value, head.kind, name)
    return PutRecord(head.thread.key, head.kind, name, body, absent=absent)


def _mark(key: str) -> str:
    """The name of the record, beside the graphs around the one that asked, that says that its interrupt was answered."""
    return f"answered {key}"


# -- for the saver ---------------------------------------------------------------------------------


def with_answers(writes: Sequence[Write]) -> list[tuple[str, str, Any]]:
    """Pending writes as a graph reads them: all answers of a task in one write, as LangGraph keeps them."""
    answers = {(task, number - ANSWERED): value for number, task, _, value in writes if number >= ANSWERED}
    plain = [(task, channel, value) for number, task, channel, value in writes if number < ANSWERED]
    if not answers:
        return plain
    before = {task: value if isinstance(value, list) else [value] for task, channel, value in plain if channel == RESUME}
    next_ = {(task, len(before.get(task, ()))) for task, _ in answers} & answers.keys()  # the others were read already
    new = {task: [*before.get(task, ()), answers[task, number]] for task, number in next_}
    old = [write for write in plain if write[1] != RESUME or write[0] not in new]
    return old + [(task, RESUME, value) for task, value in new.items()]


# -- reading ---------------------------------------------------------------------------------------


def _waiting(root: Lineage) -> Iterator[_Waiting]:
    head = _newest(root) if any(kind.startswith(WRITES) for kind in root.kinds()) else None
    return iter(()) if head is None else _waiting_at(head)


def _waiting_at(head: _Head) -> Iterator[_Waiting]:
    done: set[str] = set()
    for outer, key, value in head.open():
        if key not in done:
            done.add(key)
            held = _holders(head, outer, key)
            at, task = held[0]
            commanded = isinstance(task.resumed, list) and any(one not in task.resumed for one in head.commanded)
            answered = task.answered or commanded
            yield _Waiting(_entry(key, value, task, at.created_at, answered=answered), held)


def _holders(head: _Head, outer: _Task, key: str) -> list[tuple[_Head, _Task]]:
    """The tasks with an interrupt, that of the innermost subgraph first, and in it the one that others called."""
    names = head.thread.names(CHILD)
    inside = [name for name in names if outer.id in name] or names
    children = sorted(linked(head.thread, CHILD, inside), key=lambda child: len(child.id), reverse=True)
    heads = [*(_newest(head.thread.at(child)) for child in children), head]
    return [
        (one, task)
        for one in heads
        if one is not None
        for task, its, _ in sorted(one.open(), key=lambda found: len(found[0].path), reverse=True)
        if its == key
    ]


def _newest(thread: Lineage) -> _Head | None:
    row = thread.row()
    frame = None if row is None or not row.head else thread.store.head_frames([row])[0]
    return None if frame is None else _head(thread, load_meta(frame.meta))


def _head(thread: Lineage, meta: Meta) -> _Head | None:
    """The tasks of a checkpoint; None if LangGraph did not make it, or nothing was written for it."""
    if meta.external_id is None:
        return None
    kind = WRITES + meta.external_id
    records = thread.values(kind)
    tasks: dict[str, _Task] = {}
    for task_id, path, writes in records.values():
        task = tasks.setdefault(task_id, _Task(task_id, path))
        for number, channel, value in writes:
            if number >= ANSWERED:
                task.answers.add(number - ANSWERED)
            elif channel == INTERRUPT:
                task.asked = _listed(value)
            elif channel == RESUME:
                task.resumed = [value] if task_id == _NO_TASK else value if isinstance(value, Foreign) else _listed(value)
            elif channel == ERROR:
                task.error = value
            task.ended |= channel not in _CONTROL
    return _Head(thread, kind, meta.created_at, tasks, frozenset(records)) if records else None


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _entry(key: str, value: Any, task: _Task, created_at: dt.datetime, *, answered: bool) -> CallEntry:
    """An interrupt as a call: a text is the question itself, the fields of a dict are the arguments."""
    if isinstance(value, Foreign):
        value = f"(a question in the format {value.kind!r}, which only the graph reads)"
    named = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    return CallEntry(
        key,
        task.node,
        CallStatus.WAITING,
        {} if isinstance(value, str) else dict(value) if named else {"value": value},
        asked=value if isinstance(value, str) else None,
        noted_at=created_at,
        answered=answered,
        interrupt=True,
    )
