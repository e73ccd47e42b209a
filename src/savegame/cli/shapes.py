"""What `--json` prints, one shape for each command: their fields are only ever added to. Touches vault, model, text.

A `Shape` is a TypedDict, so that the type checker holds the functions to it; the reference of the command line is written
from them, and tests hold real output against them. Times are ISO 8601 in UTC, sizes are in bytes, what is not there is
null. Values of states that JSON has no word for are written as in the file store's journals: `{"$datetime": ...}`.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple, TypedDict

from savegame.codec import Codec
from savegame.errors import SavegameError
from savegame.frames import PLAIN
from savegame.model import MISSING, Change, Checkpoint, Problem, Report, ThreadInfo
from savegame.runner import StaleRun
from savegame.runs.ledger import CallEntry
from savegame.search import Hit
from savegame.text import to_text
from savegame.usage import Usage


class Thread(TypedDict):
    """A thread. Where its head is damaged, `damage` says so and only `id` counts."""

    id: str
    agent_id: str | None
    head: str
    step: int
    checkpoints: int
    size_bytes: int
    status: str
    reason: str | None
    created_at: str
    updated_at: str
    forked_from: str | None
    damage: str | None


class Point(TypedDict):
    """A checkpoint without its state."""

    id: str
    thread_id: str
    agent_id: str | None
    parent_id: str | None
    seq: int
    step: int
    iteration: int | None
    created_at: str
    label: str | None
    description: str | None
    tags: list[str]
    metadata: dict[str, Any]
    kind: str
    status: str
    reason: str | None
    tokens_used: int | None
    cost: float | None
    resume_hint: str | None
    size_bytes: int
    digest: str
    forked_from: str | None
    external_id: str | None


class Logged(Point):
    """A checkpoint, and whether it is the head."""

    head: bool


class Shown(Point):
    """A checkpoint with its state."""

    state: Any


class Changed(TypedDict):
    """One difference: `change` is added, removed or changed; the side that has nothing there is null."""

    change: str
    path: list[Any]
    old: Any
    new: Any


class Difference(TypedDict):
    """What differs between two checkpoints."""

    old: Point
    new: Point
    changes: list[Changed]


class Found(TypedDict):
    """A thread that was found, by its best message; the words stand between [ and ]."""

    thread_id: str
    agent_id: str | None
    checkpoint_id: str
    message: int
    role: str | None
    snippet: str
    score: float
    matches: int


class Search(TypedDict):
    """Hits, best first; `skipped` are threads that are damaged."""

    hits: list[Found]
    skipped: list[str]


class Rewound(TypedDict):
    """A head that moved, or would; `left` checkpoints stay as a branch, or with --discard go."""

    thread_id: str
    old: Point | None
    new: Point
    left: int
    discarded: bool
    done: bool


class Forked(TypedDict):
    """A new thread and its first checkpoint."""

    thread_id: str
    forked_from: str
    at: str
    checkpoint: Point


class Pruned(TypedDict):
    """How many checkpoints went, or would; `threads` is how many were chosen of each thread."""

    removed: int
    threads: dict[str, int]
    done: bool


class Erased(TypedDict):
    """Which threads went, or would, and what could not be reached."""

    subject: str
    threads: list[str]
    unreached: list[str]
    done: bool


class Sizes(TypedDict):
    """The size of the store before and after."""

    before_bytes: int
    after_bytes: int


class Written(TypedDict):
    """A file that was written; `checkpoints` is null where they were not counted."""

    path: str
    size_bytes: int
    checkpoints: int | None


class Imported(TypedDict):
    """What came in; those that were there before are not counted."""

    path: str
    checkpoints: int


class ImportedGraphs(TypedDict):
    """Threads of LangGraph with their namespaces; `failed` says what did not come, and why."""

    path: str
    threads: int
    checkpoints: int
    imported: int
    failed: list[str]


class Copied(TypedDict):
    """How many checkpoints came, by namespace of the source."""

    namespaces: dict[str, int]


class Migrated(TypedDict):
    """The version of the layout that was found (0: there was none), and today's; null where layouts have no numbers."""

    scheme: str
    found: int | None
    now: int | None


class Trouble(TypedDict):
    """One thing that is damaged."""

    thread_id: str | None
    checkpoint_id: str | None
    place: str
    message: str


class Checked(TypedDict):
    """What was read, what is damaged, and what repair did about it."""

    ok: bool
    threads: int
    checkpoints: int
    problems: list[Trouble]
    repaired: list[str]


class Used(TypedDict):
    """What the checkpoints of one agent or of one day cost."""

    key: str | None
    checkpoints: int
    threads: int
    tokens_used: int
    cost: float
    first_at: str
    last_at: str


class Stats(TypedDict):
    """Counts of the namespace, sizes of the whole store; `usage` with --by."""

    store: str
    threads: int
    checkpoints: int
    agents: int
    conversations: int
    messages: int
    total_bytes: int
    sizes: dict[str, int]
    usage: list[Used]


class Stale(TypedDict):
    """A run that nobody holds any more although it is not done."""

    thread_id: str
    agent_id: str | None
    owner: str
    expired_at: str
    takeovers: int


class Called(TypedDict):
    """A tool call; `status` is started, waiting, done, failed or unknown; `answered` while it waits and has an answer."""

    thread_id: str
    key: str
    name: str
    status: str
    arguments: dict[str, Any]
    attempt: int
    started_at: str | None
    ended_at: str | None
    result: Any
    error: str | None
    asked: str | None
    comment: str | None
    answered: bool


class Answered(TypedDict):
    """A call that a person answered, or whose outcome a person found out."""

    thread_id: str
    call: str
    name: str


class Advice(TypedDict):
    """One thing that doctor looked at; `level` is ok, note or problem."""

    check: str
    level: str
    found: str
    advice: str | None


class Doctor(TypedDict):
    """Everything that doctor looked at; `ok` unless something is a problem."""

    store: str
    ok: bool
    findings: list[Advice]


class Failure(TypedDict):
    """An error, on standard error."""

    error: str
    message: str
    exit_code: int


class Shape(NamedTuple):
    """What a command prints: one document, a list of them, or one on each line."""

    of: type
    how: str = "one"


SHAPES: dict[str, Shape] = {
    "ls": Shape(Thread, "list"),
    "log": Shape(Logged, "list"),
    "show": Shape(Shown),
    "diff": Shape(Difference),
    "tail": Shape(Shown, "lines"),
    "search": Shape(Search),
    "rewind": Shape(Rewound),
    "fork": Shape(Forked),
    "label": Shape(Point),
    "prune": Shape(Pruned),
    "erase": Shape(Erased),
    "compact": Shape(Sizes),
    "backup": Shape(Written),
    "export": Shape(Written),
    "copy": Shape(Copied),
    "migrate": Shape(Migrated),
    "import file": Shape(Imported),
    "import langgraph": Shape(ImportedGraphs),
    "verify": Shape(Checked),
    "repair": Shape(Checked),
    "stats": Shape(Stats),
    "stale": Shape(Stale, "list"),
    "calls": Shape(Called, "list"),
    "answer": Shape(Answered),
    "resolve": Shape(Answered),
    "doctor": Shape(Doctor),
}
"""By command."""


def plain(codec: Codec, value: Any) -> Any:
    """A value of a state as JSON, what JSON has no word for as a dict with one key that begins with `$`."""
    return to_text("value", PLAIN + codec.encode(value))["value"]


def thread(info: ThreadInfo) -> Thread:
    """A thread as a listing shows it."""
    return {
        "id": info.id,
        "agent_id": info.agent_id,
        "head": info.head,
        "step": info.step,
        "checkpoints": info.checkpoints,
        "size_bytes": info.size_bytes,
        "status": str.__str__(info.status),
        "reason": info.status.reason,
        "created_at": _time(info.created_at),
        "updated_at": _time(info.updated_at),
        "forked_from": info.forked_from,
        "damage": info.damage,
    }


def point(codec: Codec, found: Checkpoint) -> Point:
    """A checkpoint without its state."""
    return {
        "id": found.id,
        "thread_id": found.thread_id,
        "agent_id": found.agent_id,
        "parent_id": found.parent_id,
        "seq": found.seq,
        "step": found.step,
        "iteration": found.iteration,
        "created_at": _time(found.created_at),
        "label": found.label,
        "description": found.description,
        "tags": list(found.tags),
        "metadata": plain(codec, dict(found.metadata)),
        "kind": found.kind.value,
        "status": str.__str__(found.status),
        "reason": found.status.reason,
        "tokens_used": found.tokens_used,
        "cost": found.cost,
        "resume_hint": found.resume_hint,
        "size_bytes": found.size_bytes,
        "digest": found.digest,
        "forked_from": found.forked_from,
        "external_id": found.external_id,
    }


def shown(codec: Codec, found: Checkpoint) -> Shown:
    """A checkpoint with its state."""
    return {**point(codec, found), "state": plain(codec, found.state)}


def changed(codec: Codec, change: Change) -> Changed:
    """One difference between two states."""
    added, removed = change.old is MISSING, change.new is MISSING
    return {
        "change": "added" if added else "removed" if removed else "changed",
        "path": [plain(codec, part) for part in change.path],
        "old": None if added else plain(codec, change.old),
        "new": None if removed else plain(codec, change.new),
    }


def hit(one: Hit) -> Found:
    """A hit of a search."""
    return {
        "thread_id": one.thread_id,
        "agent_id": one.agent_id,
        "checkpoint_id": one.checkpoint_id,
        "message": one.message,
        "role": one.role,
        "snippet": one.snippet,
        "score": one.score,
        "matches": one.matches,
    }


def checked(report: Report) -> Checked:
    """What verify or repair found."""
    return {
        "ok": report.ok,
        "threads": report.threads,
        "checkpoints": report.checkpoints,
        "problems": [_trouble(problem) for problem in report.problems],
        "repaired": list(report.repaired),
    }


def _trouble(problem: Problem) -> Trouble:
    return {
        "thread_id": problem.thread_id,
        "checkpoint_id": problem.checkpoint_id,
        "place": problem.place,
        "message": problem.message,
    }


def used(usage: Usage) -> Used:
    """What one agent or one day cost."""
    return {
        "key": None if usage.key is None else str(usage.key),
        "checkpoints": usage.checkpoints,
        "threads": usage.threads,
        "tokens_used": usage.tokens_used,
        "cost": usage.cost,
        "first_at": _time(usage.first_at),
        "last_at": _time(usage.last_at),
    }


def stale(run: StaleRun) -> Stale:
    """A run that went stale."""
    return {
        "thread_id": run.thread_id,
        "agent_id": run.agent_id,
        "owner": run.owner,
        "expired_at": _time(run.expired_at),
        "takeovers": run.takeovers,
    }


def called(codec: Codec, thread_id: str, entry: CallEntry) -> Called:
    """A call in the ledger of a thread."""
    return {
        "thread_id": thread_id,
        "key": entry.key,
        "name": entry.name,
        "status": entry.status.value,
        "arguments": plain(codec, dict(entry.arguments)),
        "attempt": entry.attempt,
        "started_at": None if entry.started_at is None else _time(entry.started_at),
        "ended_at": None if entry.ended_at is None else _time(entry.ended_at),
        "result": plain(codec, entry.result),
        "error": entry.error,
        "asked": entry.asked,
        "comment": entry.comment,
        "answered": entry.answered,
    }


def failure(error: SavegameError) -> Failure:
    """An error by its kind, which is stable."""
    return {"error": error.kind, "message": str(error), "exit_code": error.exit_code}


def _time(moment: dt.datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
