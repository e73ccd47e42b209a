"""What `--json` prints: a TypedDict per command. Fields may be added, never removed or changed.

docs/generate.py writes the reference of the command line from these types, and tests compare real output with them.

Times are ISO 8601 in UTC, sizes are in bytes, missing values are null. Values of states that JSON cannot express are written
as in the file store's journals: `{"$datetime": ...}`.
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
from savegame.runs.inbox import InboxMessage
from savegame.runs.ledger import CallEntry
from savegame.runs.runner import StaleRun
from savegame.search.catching_up import Hit
from savegame.timeline.usage import Usage

S = TypeVar("S")


class ThreadOutput(TypedDict):
    """A thread. If its head is damaged, `damage` describes how, and only `id` is meaningful."""

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
    child_of: str | None


class CheckpointOutput(TypedDict):
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


class LogOutput(CheckpointOutput):
    """A checkpoint, and whether it is the head."""

    head: bool


class StateOutput(CheckpointOutput):
    """A checkpoint with its state: `Checkpoint.to_dict(state=True)`."""

    state: Any


class ChangeOutput(TypedDict):
    """One change: `change` is added, removed or changed; the side without a value is null."""

    change: str
    path: list[Any]
    old: Any
    new: Any


class DiffOutput(TypedDict):
    """The changes from one checkpoint to another."""

    old: CheckpointOutput
    new: CheckpointOutput
    changes: list[ChangeOutput]


class HitOutput(TypedDict):
    """A thread that matches, with its best message; the snippet marks matches with [ and ]."""

    thread_id: str
    agent_id: str | None
    checkpoint_id: str
    message: int
    role: str | None
    snippet: str
    score: float
    matches: int


class SearchOutput(TypedDict):
    """Hits, best first; `skipped` lists damaged threads, which were not searched."""

    hits: list[HitOutput]
    skipped: list[str]


class RewindOutput(TypedDict):
    """The head before and after; `left` checkpoints stay as a branch, or are deleted with --discard.

    `effects` after the new head stay in the world.
    """

    thread_id: str
    old: CheckpointOutput | None
    new: CheckpointOutput
    left: int
    discarded: bool
    done: bool
    effects: list[EffectOutput]


class ForkOutput(TypedDict):
    """A new thread and its first checkpoint; `effects` of the source after it stay in the world."""

    thread_id: str
    forked_from: str
    at: str
    checkpoint: CheckpointOutput
    effects: list[EffectOutput]


class PruneOutput(TypedDict):
    """How many checkpoints were or would be deleted, in total and by thread."""

    removed: int
    threads: dict[str, int]
    done: bool


class EraseOutput(TypedDict):
    """Threads that were or would be deleted, what could not be reached, and agent checkpoints that lost conversations."""

    subject: str
    threads: list[str]
    unreached: list[str]
    emptied: list[str]
    done: bool


class CompactOutput(TypedDict):
    """The size of the store before and after."""

    before_bytes: int
    after_bytes: int


class FileOutput(TypedDict):
    """A file that was written; `checkpoints` is null for backups, which do not count them."""

    path: str
    size_bytes: int
    checkpoints: int | None


class ImportOutput(TypedDict):
    """The number of imported checkpoints, without those imported before."""

    path: str
    checkpoints: int


class GraphImportOutput(TypedDict):
    """Imported LangGraph threads and namespaces; `failed` lists the errors of those that were not imported.

    `path` is the source, without a password.
    """

    path: str
    threads: int
    checkpoints: int
    imported: int
    failed: list[str]


class CopyOutput(TypedDict):
    """The number of copied checkpoints by namespace of the source."""

    namespaces: dict[str, int]


class MigrateOutput(TypedDict):
    """The layout version before (0: no tables) and now; null if the store has no layout version."""

    scheme: str
    found: int | None
    now: int | None


class ProblemOutput(TypedDict):
    """One damaged place."""

    thread_id: str | None
    checkpoint_id: str | None
    place: str
    message: str


class VerifyOutput(TypedDict):
    """What was checked, what is damaged, and what repair did."""

    ok: bool
    threads: int
    checkpoints: int
    problems: list[ProblemOutput]
    repaired: list[str]


class UsageOutput(TypedDict):
    """Tokens and cost of the checkpoints of one agent, day or thread."""

    key: str | None
    checkpoints: int
    threads: int
    tokens_used: int
    cost: float
    first_at: str
    last_at: str


class StatsOutput(TypedDict):
    """Counts of the namespace without `damaged` threads, sizes of the whole store; `usage` only with --by."""

    store: str
    threads: int
    checkpoints: int
    agents: int
    conversations: int
    messages: int
    damaged: int
    total_bytes: int
    sizes: dict[str, int]
    usage: list[UsageOutput]


class StaleOutput(TypedDict):
    """A run to resume; `reason` is crashed, mail or due. Only one that crashed has an owner and an expired lease.

    `since`: when the lease expired, the first message was sent, or the sleep was over.
    """

    thread_id: str
    agent_id: str | None
    owner: str | None
    expired_at: str | None
    takeovers: int
    reason: str
    since: str | None


class CallOutput(TypedDict):
    """A tool call; `status` is started, waiting, done, failed or unknown; `answered` if it waits but has its answer.

    `interrupt`: a LangGraph node asks; `name` is the node. `repeats` and `undoes` are keys of other calls: of the effect from
    before a rewind or fork that it repeats, and of the one that it takes back.
    """

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
    interrupt: bool
    repeats: str | None
    undoes: str | None
    undone_at: str | None


class EffectOutput(CallOutput):
    """What a tool did in the world; `left`: on a line that a rewind or restore left, or `made_in` the source of this fork."""

    left: bool
    made_in: str | None


class SendOutput(TypedDict):
    """A message that was sent; not `new` if the thread had one with this key before."""

    thread_id: str
    key: str | None
    new: bool


class MessageOutput(TypedDict):
    """A message that no run has taken in yet."""

    key: str
    content: Any
    sent_at: str


class UnsendOutput(TypedDict):
    """A message that was taken back."""

    thread_id: str
    key: str


class StopOutput(TypedDict):
    """Whether a thread was stopped, and the status of its head: in_progress until its live run ends."""

    thread_id: str
    stopped: bool
    status: str


class AnswerOutput(TypedDict):
    """A call that was answered or resolved."""

    thread_id: str
    call: str
    name: str


class FindingOutput(TypedDict):
    """One finding of doctor; `level` is ok, note or problem."""

    check: str
    level: str
    found: str
    advice: str | None


class DoctorOutput(TypedDict):
    """All findings of doctor; `ok` is false if one is a problem."""

    store: str
    ok: bool
    findings: list[FindingOutput]


class ErrorOutput(TypedDict):
    """An error, on standard error."""

    error: str
    message: str
    exit_code: int


class Output(NamedTuple):
    """What a command prints: one document, a list of them, or one on each line."""

    of: type
    how: str = "one"


OUTPUTS: dict[str, Output] = {
    "ls": Output(ThreadOutput, "list"),
    "log": Output(LogOutput, "list"),
    "show": Output(StateOutput),
    "diff": Output(DiffOutput),
    "tail": Output(StateOutput, "lines"),
    "search": Output(SearchOutput),
    "rewind": Output(RewindOutput),
    "fork": Output(ForkOutput),
    "label": Output(CheckpointOutput),
    "prune": Output(PruneOutput),
    "erase": Output(EraseOutput),
    "compact": Output(CompactOutput),
    "backup": Output(FileOutput),
    "export": Output(FileOutput),
    "copy": Output(CopyOutput),
    "migrate": Output(MigrateOutput),
    "import file": Output(ImportOutput),
    "import langgraph": Output(GraphImportOutput),
    "verify": Output(VerifyOutput),
    "repair": Output(VerifyOutput),
    "stats": Output(StatsOutput),
    "stale": Output(StaleOutput, "list"),
    "calls": Output(CallOutput, "list"),
    "answer": Output(AnswerOutput),
    "resolve": Output(AnswerOutput),
    "send": Output(SendOutput),
    "inbox": Output(MessageOutput, "list"),
    "unsend": Output(UnsendOutput),
    "stop": Output(StopOutput),
    "effects": Output(EffectOutput, "list"),
    "doctor": Output(DoctorOutput),
}
"""By command."""


def thread_output(info: ThreadInfo) -> ThreadOutput:
    """A thread of a listing."""
    return _fill(ThreadOutput, info, reason=info.status.reason)


def change_output(codec: Codec, change: Change) -> ChangeOutput:
    """One change between two states."""
    added, removed = change.old is MISSING, change.new is MISSING
    return {
        "change": "added" if added else "removed" if removed else "changed",
        "path": [value_to_json(codec, part) for part in change.path],
        "old": None if added else value_to_json(codec, change.old),
        "new": None if removed else value_to_json(codec, change.new),
    }


def hit_output(one: Hit) -> HitOutput:
    """A hit of a search."""
    return _fill(HitOutput, one)


def verify_output(report: Report) -> VerifyOutput:
    """The report of verify or repair."""
    return _fill(VerifyOutput, report, problems=[_fill(ProblemOutput, problem) for problem in report.problems])


def stats_output(counted: vault.Stats, store: str, used: Iterable[Usage]) -> StatsOutput:
    """Counts, sizes and usage."""
    usage = [_fill(UsageOutput, one, key=None if one.key is None else str(one.key)) for one in used]
    return _fill(StatsOutput, counted, store=store, sizes=dict(counted.sizes), usage=usage)


def stale_output(run: StaleRun) -> StaleOutput:
    """A stale run."""
    return _fill(StaleOutput, run)


def call_output(codec: Codec, thread_id: str, entry: CallEntry) -> CallOutput:
    """A tool call of a thread."""
    return _fill(CallOutput, entry, thread_id=thread_id, **_call_values(codec, entry))


def effect_output(codec: Codec, thread_id: str, entry: CallEntry) -> EffectOutput:
    """A call that took effect, or may have."""
    return _fill(EffectOutput, entry, thread_id=thread_id, **_call_values(codec, entry))


def _call_values(codec: Codec, entry: CallEntry) -> dict[str, Any]:
    return {"arguments": value_to_json(codec, dict(entry.arguments)), "result": value_to_json(codec, entry.result)}


def message_output(codec: Codec, message: InboxMessage) -> MessageOutput:
    """A message of an inbox."""
    return _fill(MessageOutput, message, content=value_to_json(codec, message.content))


def error_output(error: SavegameError) -> ErrorOutput:
    """An error by its kind, which is stable."""
    return {"error": error.kind, "message": str(error), "exit_code": error.exit_code}


def _fill(shape: type[S], found: object, **others: Any) -> S:
    """A TypedDict from the attributes of an object and from `others`, which take precedence."""
    names = shape.__annotations__
    return cast(S, {name: others[name] if name in others else _json_value(getattr(found, name)) for name in names})


def _json_value(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str.__str__(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value
