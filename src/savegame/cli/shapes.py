"""What `--json` prints, one shape for each command: their fields are only ever added to. Touches vault, model, text.

A `Shape` is a TypedDict; the reference of the command line is written from them, and tests hold real output against them.
Times are ISO 8601 in UTC, sizes are in bytes, what is not there is null. Values of states that JSON has no word for are
written as in the file store's journals: `{"$datetime": ...}`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

from savegame import vault
from savegame.checkpoint import value_to_json
from savegame.encoding.codec import Codec
from savegame.errors import SavegameError
from savegame.model import MISSING, Change, Report, ThreadInfo
from savegame.runs.ledger import CallEntry
from savegame.runs.runner import StaleRun
from savegame.search.catching_up import Hit
from savegame.timeline.usage import Usage

S = TypeVar("S")


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
    """A checkpoint without its state: `Checkpoint.to_dict()`."""

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
    """A checkpoint with its state: `Checkpoint.to_dict(state=True)`."""

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
    """Which threads went, or would, what could not be reached, and which checkpoints of agents lost something of it."""

    subject: str
    threads: list[str]
    unreached: list[str]
    emptied: list[str]
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
    """Counts of the namespace without threads that are too `damaged` to count, sizes of the whole store; `usage` with --by."""

    store: str
    threads: int
    checkpoints: int
    agents: int
    conversations: int
    messages: int
    damaged: int
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


def thread(info: ThreadInfo) -> Thread:
    """A thread as a listing shows it."""
    return _made(Thread, info, reason=info.status.reason)


def changed(codec: Codec, change: Change) -> Changed:
    """One difference between two states."""
    added, removed = change.old is MISSING, change.new is MISSING
    return {
        "change": "added" if added else "removed" if removed else "changed",
        "path": [value_to_json(codec, part) for part in change.path],
        "old": None if added else value_to_json(codec, change.old),
        "new": None if removed else value_to_json(codec, change.new),
    }


def hit(one: Hit) -> Found:
    """A hit of a search."""
    return _made(Found, one)


def checked(report: Report) -> Checked:
    """What verify or repair found."""
    return _made(Checked, report, problems=[_made(Trouble, problem) for problem in report.problems])


def stats(counted: vault.Stats, store: str, used: Iterable[Usage]) -> Stats:
    """How much there is, and what it cost."""
    usage = [_made(Used, one, key=None if one.key is None else str(one.key)) for one in used]
    return _made(Stats, counted, store=store, sizes=dict(counted.sizes), usage=usage)


def stale(run: StaleRun) -> Stale:
    """A run that went stale."""
    return _made(Stale, run)


def called(codec: Codec, thread_id: str, entry: CallEntry) -> Called:
    """A call in the ledger of a thread."""
    values = {"arguments": value_to_json(codec, dict(entry.arguments)), "result": value_to_json(codec, entry.result)}
    return _made(Called, entry, thread_id=thread_id, **values)


def failure(error: SavegameError) -> Failure:
    """An error by its kind, which is stable."""
    return {"error": error.kind, "message": str(error), "exit_code": error.exit_code}


def _made(shape: type[S], found: object, **others: Any) -> S:
    """A shape of what an object has under the same names, and of others."""
    names = shape.__annotations__
    return cast(S, {name: others[name] if name in others else _said(getattr(found, name)) for name in names})


def _said(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str.__str__(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value
