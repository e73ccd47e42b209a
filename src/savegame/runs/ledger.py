"""The ledger of a run: the status and outcome of each tool call, as records beside the thread. Touches keys.

An entry is written before an effect that must not happen twice (`started`), when a person is asked (`waiting`), and with the
outcome, in the same commit as the message for the model. Because it has the outcome, a call whose message was undone by a
rewind is answered again without being repeated.

A call whose name or arguments differ from its entry is another call, with its own key, approval and result (`keys.py`). So
the name and arguments of an entry never change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Literal

import blake3

from savegame.runs.generations import GENERATION, current_keys, newest_generation, newest_outcomes, number_of, was_taken_back
from savegame.runs.keys import CALL_KEY, digest_of, parts_of, read_call
from savegame.runs.toolbox import Tool, ToolKind
from savegame.timeline.companions import ANSWER, CALL, EFFECT, RUN, SLEPT, STEP

LEDGER: Final = (CALL, ANSWER, STEP, SLEPT, RUN, EFFECT)
"""The kinds of records that a run keeps."""

ROOT, TAKEOVERS, IGNORED = "root", "takeovers", "ignored"
"""Records of kind RUN: the name of the thread in keys; takeovers so far; the newest message that waited when the run was
ended on purpose, and does not reopen it."""
RERUN, PRUNED, UNDO = "rerun:", "pruned", "undo"
"""Records of kind RUN: the effects that may be repeated after a checkpoint, whose id follows; the largest number of a removed
checkpoint that was not on the head's line; the undo that is under way."""

UNDONE: Final = "undo-"
"""The start of the key of a call that takes back the call whose key follows."""

Records = Mapping[str, Mapping[str, Any]]
"""Records of a thread by kind and name."""

JOURNALED: Final = "journaled"
"""The field that marks a reply as saved by a run under its id."""
INPUT_KEY: Final = "input_key"
"""The field of a user message for its key."""
MARKS: Final = frozenset((JOURNALED, CALL_KEY, INPUT_KEY))
"""Fields of messages that only runs write and rely on."""

LOST: Final = "what was written down of it was damaged"
"""The error of a call whose outcome is unknown because a repair set its record aside."""


class CallStatus(StrEnum):
    """The status of a tool call."""

    STARTED = "started"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


class How(StrEnum):
    """How an effect is known of whose call is not in the ledger, by its record of kind EFFECT."""

    TRACE = "trace"
    """Its call was removed with its checkpoints; no arguments and no result are kept."""
    CARRIED = "carried"
    """The source of this fork made it after the fork's point."""
    OPEN = "open"
    """It had no outcome when the fork was made, so it belongs to the source."""
    MAYBE = "maybe"
    """Nothing but the reply with the call was kept: begun if the tool runs again after a crash without a note."""


_BESIDE: Final = frozenset(("key", "answered", "interrupt", "left"))
"""Fields of an entry that are not stored in its record."""


@dataclass(frozen=True, slots=True)
class CallEntry:
    """One tool call in the ledger. `key` is stable: the journaled reply and the place of the call in it.

    The key of an edited call also has a digest of its name and arguments.
    """

    key: str
    name: str
    status: CallStatus
    arguments: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 0
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    result: Any = None
    error: str | None = None
    tokens_used: int | None = None
    cost: float | None = None
    asked: str | None = None
    """The question to a person while the call waits."""
    comment: str | None = None
    """The comment of the person who answered."""
    noted_at: dt.datetime | None = None
    """When it was first recorded; the ledger is in this order."""
    answered: bool = False
    """Whether a person has answered a waiting call: it continues with its run. Stored as the answer, not here."""
    interrupt: bool = False
    """Whether a LangGraph node asks instead of a tool call; its answer may be any value. Stored by LangGraph, not here."""
    kind: str | None = None
    """The kind of the tool, once the call was begun."""
    same: str | None = None
    """A digest of what makes it the same as another call, unless that is all its arguments."""
    after: int | None = None
    """The number of the thread's newest checkpoint when it was begun."""
    after_id: str | None = None
    """The id of that checkpoint if, after going back, it was not the head."""
    repeats: str | None = None
    """The key of the effect on a line that was left which this call repeats, or whose result it reuses."""
    before: Mapping[str, Any] | None = None
    """What the question to a person says of that effect."""
    undoes: str | None = None
    """The key of the call that this one takes back."""
    undone_at: dt.datetime | None = None
    """When the call was taken back."""
    made_in: str | None = None
    """The thread that made it, if this thread is a fork that only knows of it."""
    left: bool = False
    """Whether it was made on a line that was left. Computed by `Vault.effects`, not stored."""

    @property
    def order(self) -> tuple[dt.datetime, int]:
        """Sort key of a ledger: by time, and within a reply in the model's order."""
        noted = self.noted_at or self.started_at or self.ended_at or dt.datetime.min.replace(tzinfo=dt.UTC)
        return noted, int(parts_of(self.key).place)

    @property
    def is_effect(self) -> bool:
        """Whether it was begun and may have changed the world. Entries of earlier versions do not tell the kind of tool."""
        if self.undoes is not None or (self.repeats is not None and not self.attempt) or self.kind == ToolKind.READ_ONLY:
            return False
        return self.begun or self.status == CallStatus.DONE or (self.status == CallStatus.FAILED and self.attempt > 0)

    @property
    def settled(self) -> bool:
        """Whether its outcome is known."""
        return self.status in (CallStatus.DONE, CallStatus.FAILED)

    @property
    def begun(self) -> bool:
        """Whether it was started and its outcome is unknown: it may have taken effect."""
        return self.status in (CallStatus.STARTED, CallStatus.UNKNOWN)

    @property
    def needs_person(self) -> bool:
        """Whether it needs a person to continue: it waits for an answer, or its outcome is unknown."""
        return self.needs(held=True) is not None

    def needs(self, *, held: bool) -> Literal["answer", "outcome"] | None:
        """What it needs from a person to continue: an answer, or its unknown outcome; None if nothing.

        `held`: a live run holds the thread, and may still be making a started call.
        """
        if self.status == CallStatus.WAITING:
            return None if self.answered else "answer"
        ended = self.status == CallStatus.STARTED and not held and self.kind != ToolKind.IDEMPOTENT  # else a run makes it
        return "outcome" if self.status == CallStatus.UNKNOWN or ended else None

    def to_dict(self) -> dict[str, Any]:
        """The stored form, without empty fields."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _BESIDE}
        return {name: value for name, value in plain.items() if value is not None} | {"status": self.status.value}

    @classmethod
    def from_dict(cls, key: str, stored: Mapping[str, Any]) -> CallEntry:
        """The opposite of `to_dict`. What a person is asked is the call itself, whatever an imported record says."""
        known = {item.name for item in fields(cls)} - _BESIDE
        given = {name: value for name, value in stored.items() if name in known}
        if given.get("asked") is not None:
            given["asked"] = question(given["name"], given.get("arguments", {}), given.get("before"))
        return cls(key=key, **{**given, "status": CallStatus(stored["status"])})


def question(name: str, arguments: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """What a person is asked about a call; `before` describes the effect on a line that was left which it repeats."""
    asked = f"{name}({arguments})"
    if before is None:
        return asked
    source, line, time, known = (before.get(field) for field in ("made_in", "line", "time", "arguments"))
    place = f" in thread {source!r}, of which this is a fork," if source else " on a line that was left"
    place += f" (checkpoint {line})" if line else ""
    when = f" at {time:%Y-%m-%d %H:%M:%S} UTC" if isinstance(time, dt.datetime) else ""
    what = "This" if known is None or known == arguments else f"{name}({known}), which counts as the same,"
    outcome = f": {before['outcome']}" if before.get("outcome") is not None else ""
    done = {
        CallStatus.DONE: f"was done{place}{when}{outcome or ', and its result was not kept'}",
        CallStatus.FAILED: f"was tried{place}{when} and failed{outcome}",
        CallStatus.WAITING: f"was open{place} when the fork was made, and may be done there",
    }.get(before["status"], f"was begun{place}{when}, and whether it took effect is unknown")
    return f"{asked}. {what} {done}. Run it again?"


def refusal(answer: Mapping[str, Any]) -> str | None:
    """The error for the model if a person refused; None if they agreed."""
    value = answer["value"]
    if value is True:
        return None
    why = value if value not in (False, None) else answer.get("comment")
    return "a person refused" if why is None else f"a person refused: {why}"


def is_open(entry: CallEntry, tool: Tool) -> bool:
    """Whether a call was started and must not be made again before its outcome is known."""
    if entry.status == CallStatus.UNKNOWN and tool.kind is ToolKind.TRANSACTION:
        return entry.error != LOST  # it ended its own transaction
    return entry.begun and not tool.may_run_again


# -- shapes ----------------------------------------------------------------------------------------


def check(kind: str, name: str, value: Any, encode: Callable[[Any], bytes]) -> None:
    """Raise ValueError unless a ledger record has the shape of its kind. Unknown fields and names pass."""
    wrong = _CHECKS[kind](name, value) if kind in _CHECKS else None
    if wrong is None and kind == CALL and (digest := parts_of(name).digest):
        wrong = None if digest_of(value["name"], value["arguments"], encode) == digest else "its key is that of another call"
    if wrong is not None:
        raise ValueError(wrong)


def _wrong_call(_: str, value: Any) -> str | None:
    if not _is_named(value, "name", "status", "arguments"):
        return "name, status or arguments are missing"
    return _wrong_fields(value)


def _wrong_effect(_: str, value: Any) -> str | None:
    if not _is_named(value, "name", "status", "how") or value["how"] not in tuple(How):
        return "name or status are missing, or how it is known"
    return _wrong_fields({"arguments": {}, **value})


def _wrong_fields(value: Mapping[str, Any]) -> str | None:
    if value["status"] not in tuple(CallStatus):
        return f"status {value['status']!r:.40} is unknown"
    return next(
        (f"{field} cannot be {value[field]!r:.40}" for field, fits in _FITS.items() if not fits(value.get(field))), None
    )


def _wrong_run(name: str, value: Any) -> str | None:
    if name == ROOT:
        return None if isinstance(value, str) else "the root is not text"
    if name.startswith(GENERATION):
        is_known = isinstance(value, dict) and _is_count(value.get("number")) and _are_texts(value.get("kept"))
        return None if _is_count(value) or is_known else "a generation is a number, perhaps with keys"
    if name == IGNORED:
        return None if _is_count(value) else "the number of a message is a number"
    if name == PRUNED:
        return None if _is_count(value) else "the newest of the removed checkpoints is a number"
    if name.startswith(RERUN):
        return None if _are_texts(value) else "calls to repeat are a list of keys"
    if name == UNDO:
        fits = _is_named(value, "to", "skip") and isinstance(value["to"], str) and _are_texts(value["skip"])
        return None if fits else "an undo names a checkpoint, and keys"
    if name != TAKEOVERS:
        return None
    fits = _is_named(value, "count", "head") and _is_count(value["count"]) and _is_text(value["head"])
    return None if fits else "takeovers are a count and a head"


def _wrong_step(_: str, value: Any) -> str | None:
    return None if _is_named(value, "value") and _is_text(value.get("at")) else "a step is a value, and where it was kept"


def _wrong_answer(_: str, value: Any) -> str | None:
    return None if _is_named(value, "value") else "an answer has a value"


def _is_named(value: Any, *names: str) -> bool:
    return isinstance(value, dict) and all(name in value for name in names)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, dt.datetime) and value.tzinfo is not None)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


_CHECKS: Final = {
    CALL: _wrong_call,
    ANSWER: _wrong_answer,
    STEP: _wrong_step,
    SLEPT: _wrong_step,
    RUN: _wrong_run,
    EFFECT: _wrong_effect,
}

_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "name": lambda value: isinstance(value, str),
    "arguments": lambda value: isinstance(value, dict) and all(isinstance(name, str) for name in value),
    "attempt": lambda value: value is None or _is_count(value),
    "asked": _is_text,
    "tokens_used": lambda value: value is None or _is_count(value),
    "cost": lambda value: value is None or type(value) in (int, float),
    "started_at": _is_time,
    "ended_at": _is_time,
    "noted_at": _is_time,
    "undone_at": _is_time,
    **dict.fromkeys(("kind", "same", "repeats", "undoes", "made_in", "after_id"), _is_text),
    "after": lambda value: value is None or _is_count(value),
    "before": lambda value: value is None or (_is_named(value, "status") and value["status"] in tuple(CallStatus)),
}
"""The types of an entry's fields; `result`, `error` and `comment` may be anything."""


# -- replies ---------------------------------------------------------------------------------------


def reply_of(messages: Sequence[Any], root: Callable[[], str], encode: Callable[[Any], bytes]) -> tuple[int, str] | None:
    """The place of the newest reply in a conversation, and the start of the keys of its calls; None if there is no reply.

    That is the reply's id if a run saved it. A reply from elsewhere is identified by its thread, its place and its calls, not
    by its id or text, which may still change when the conversation is saved.
    """
    return next(replies_in(messages, root, encode), None)


def replies_in(messages: Sequence[Any], root: Callable[[], str], encode: Callable[[Any], bytes]) -> Iterator[tuple[int, str]]:
    """The result of `reply_of` for every reply in a conversation, newest first."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            if is_journaled(message):
                yield place, str(message["id"])
                continue
            calls = [_asked(call) for call in message.get("tool_calls") or ()]
            yield place, blake3.blake3(encode([root(), place, calls]) if calls else b"").hexdigest(length=16)


def is_journaled(message: Mapping[str, Any]) -> bool:
    """Whether a run saved a reply under its id."""
    given = message.get("id")
    return message.get(JOURNALED) is True and isinstance(given, str) and ":" not in given


def _asked(call: Any) -> Any:
    """What a call asks for, without fields that may be added later."""
    return [call.get("name"), call.get("arguments"), call.get("function")] if isinstance(call, Mapping) else call


def leaves_note(tool: Tool, key: str, calls: Callable[[str], Any]) -> bool:
    """Whether a call is recorded before it runs: if it must not run twice, or its reply tells of an undone one already."""
    return not tool.may_run_again or (tool.kind is ToolKind.IDEMPOTENT and was_taken_back(key, calls))


def reply_in(key: str) -> str:
    """The reply in the key of a call, an answer or an undo."""
    return key.removeprefix(UNDONE).partition(":")[0]


# -- what goes along -------------------------------------------------------------------------------


def for_fork(
    records: Records, source: str, reply: str | None, before: Collection[str], keys: Collection[str]
) -> dict[str, dict[str, Any]]:
    """The part of a ledger that a run on a fork needs: steps, sleeps, and the settled and waiting calls of the newest reply.

    `before` are the ids of the ancestors of the fork's point, `keys` those of its open calls.
    """
    calls = {name: value for name, value in records.get(CALL, {}).items() if reply and name.startswith(f"{reply}:")}
    again = newest_outcomes(calls)
    known = {name: value for name, value in calls.items() if is_settled(value)}
    known_of = {"status": CallStatus.WAITING.value, "made_in": source}
    own = {
        name: {**value, "repeats": name, "before": known_of}
        for name, value in calls.items()
        if name in keys and value["status"] == CallStatus.WAITING
    }
    return {
        CALL: {name: {"made_in": source, **value, "after": None} for name, value in known.items()} | own,
        ANSWER: {name: value for name, value in records.get(ANSWER, {}).items() if name in known},  # else it is asked again
        **{
            kind: {name: value for name, value in records.get(kind, {}).items() if value.get("at") in {None, *before}}
            for kind in (STEP, SLEPT)
        },
        RUN: {name: value for name, value in records.get(RUN, {}).items() if name == ROOT}
        | ({GENERATION + reply: again} if reply and again else {}),
    }


_FAR: Final = (CallStatus.WAITING, CallStatus.STARTED, CallStatus.UNKNOWN, CallStatus.FAILED, CallStatus.DONE)
"""Statuses by how much they say about the outcome, least first."""


def gives_way(kind: str, name: str, there: Any, given: Any, calls: Iterable[str], encode: Callable[[Any], bytes]) -> bool:
    """Whether a record may be replaced by that of a copy of its thread (None: removed), which may be older.

    Known outcomes stay, and so do answers and steps. An entry never becomes that of another call: a person may have approved
    it. `calls` are the keys of the existing calls.
    """
    if kind == CALL:
        if given is None or not _is_same(there, given, encode):
            return False
        if is_settled(there):  # only that it was taken back is news
            return given["status"] == there["status"] and there.get("undone_at") is None and given.get("undone_at") is not None
        return _FAR.index(CallStatus(given["status"])) >= _FAR.index(CallStatus(there["status"]))
    if kind == RUN and name.startswith(GENERATION):
        reply = name.removeprefix(GENERATION)
        return newest_generation({key: {} for key in calls if key.startswith(f"{reply}:")}) <= number_of(given)
    return kind == RUN and name in (TAKEOVERS, IGNORED, UNDO)


def is_settled(call: Mapping[str, Any]) -> bool:
    """Whether the outcome of a call is known, by its record."""
    return call["status"] in (CallStatus.DONE, CallStatus.FAILED)


def _is_same(there: Mapping[str, Any], given: Mapping[str, Any], encode: Callable[[Any], bytes]) -> bool:
    one, other = (digest_of(call["name"], call.get("arguments", {}), encode) for call in (there, given))
    return one == other


def stand_ins(
    records: Records,
    messages: Sequence[Any],
    place: int,
    reply: str,
    now: dt.datetime,
    known: Mapping[str, str],
    encode: Callable[[Any], bytes],
) -> dict[tuple[str, str], Any]:
    """Replacements for lost records of the newest reply of a conversation, by kind and name.

    A call without an entry gets the outcome in its answer; without an answer, an unknown outcome. `known` are digests of what
    calls ask for, by key: see `keys_for`.
    """
    newest = newest_outcomes({name: value for name, value in records.get(CALL, {}).items() if name.startswith(f"{reply}:")})
    run = {GENERATION + reply: newest} | dict(records.get(RUN, {}))
    new: dict[tuple[str, str], Any] = {(RUN, GENERATION + reply): newest} if newest else {}
    answers = [message for message in messages[place + 1 :] if isinstance(message, Mapping)]
    calls = messages[place].get("tool_calls") or ()
    asked = [read_call(call, encode) for call in calls]
    keys = current_keys(run, reply, [one.digest for one in asked], known)
    for key, call, one in zip(keys, calls, asked, strict=True):
        if one.wrong is not None:  # unreadable, so it was not made
            continue
        answer = next((message for message in answers if str(call.get("id") or key) == message.get("tool_call_id")), None)
        if answer is None or answer.get(CALL_KEY) == key:  # else another call made it
            new[CALL, key] = CallEntry(key, one.name, arguments=one.arguments, noted_at=now, **_answer_fields(answer)).to_dict()
    return {(kind, name): value for (kind, name), value in new.items() if name not in records.get(kind, {})}


def _answer_fields(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """The outcome of a call according to its answer in the conversation."""
    if answer is None:
        return {"status": CallStatus.UNKNOWN, "error": LOST}
    if (answer.get("metadata") or {}).get("is_error"):
        return {"status": CallStatus.FAILED, "error": str(answer["content"]).removeprefix("error: ")}
    return {"status": CallStatus.DONE, "result": answer["content"]}
