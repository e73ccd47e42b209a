"""The ledger of a run: what became of each tool call, kept as records beside the thread. Touches keys.

An entry is written before an effect that must not happen twice (`started`), when a person is asked (`waiting`), and with
the outcome, in the same commit as the message that tells the model. It holds the outcome, so that a call whose message was
rewound past is answered again without being made again.

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

from savegame.runs.keys import CALL_KEY, digest_of, keys_for, parts_of, read_call
from savegame.timeline.companions import ANSWER, CALL, RUN, STEP

LEDGER: Final = (CALL, ANSWER, STEP, RUN)
"""The kinds of records that a run keeps."""

GENERATION, ROOT, TAKEOVERS = "generation:", "root", "takeovers"
"""Records of kind RUN: how often the calls of a reply, whose id follows, were to be made anew; what stands for the thread in
keys; takeovers so far."""

Records = Mapping[str, Mapping[str, Any]]
"""Records of a thread by kind and name."""

JOURNALED: Final = "journaled"
"""The field of a reply that a run has kept, under the id that it has."""
INPUT_KEY: Final = "input_key"
"""The field of a message for the key that the user's words came with."""
MARKS: Final = frozenset((JOURNALED, CALL_KEY, INPUT_KEY))
"""Fields of messages that only runs write, and go by."""

LOST: Final = "what was written down of it was damaged"
"""Why nobody knows the outcome of a call whose record a repair set aside."""


class CallStatus(StrEnum):
    """How far a tool call is."""

    STARTED = "started"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


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
    """What a person is asked, while the call waits."""
    comment: str | None = None
    """What a person said who answered."""
    noted_at: dt.datetime | None = None
    """When it was written down first: the ledger is in this order."""
    answered: bool = False
    """Whether a person has answered while it waits: it goes on when its run does. Not kept here, but as the answer."""

    @property
    def order(self) -> tuple[dt.datetime, int]:
        """Sorts a ledger: by time, and within a reply by the model's order."""
        noted = self.noted_at or self.started_at or self.ended_at or dt.datetime.min.replace(tzinfo=dt.UTC)
        return noted, int(parts_of(self.key).place)

    @property
    def settled(self) -> bool:
        """Whether its outcome is known."""
        return self.status in (CallStatus.DONE, CallStatus.FAILED)

    @property
    def begun(self) -> bool:
        """Whether it was started and its outcome is not known: it may have taken effect."""
        return self.status in (CallStatus.STARTED, CallStatus.UNKNOWN)

    @property
    def needs_person(self) -> bool:
        """Whether nobody but a person can say how it goes on: it waits for an answer, or its outcome is not known."""
        return self.needs(held=True) is not None

    def needs(self, *, held: bool) -> Literal["answer", "outcome"] | None:
        """What a person has to give for it to go on: an answer, or its outcome, which nobody knows; None if nothing.

        `held`: a live run holds the thread, which still makes a call that is started.
        """
        if self.status == CallStatus.WAITING:
            return None if self.answered else "answer"
        return "outcome" if self.status == CallStatus.UNKNOWN or (self.status == CallStatus.STARTED and not held) else None

    def to_dict(self) -> dict[str, Any]:
        """As it is kept; what is empty is left out."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("key", "answered")}
        return {name: value for name, value in plain.items() if value is not None} | {"status": self.status.value}

    @classmethod
    def from_dict(cls, key: str, kept: Mapping[str, Any]) -> CallEntry:
        """The opposite of `to_dict`."""
        known = {item.name for item in fields(cls)}
        given = {name: value for name, value in kept.items() if name in known}
        return cls(key=key, **{**given, "status": CallStatus(kept["status"])})


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
    if value["status"] not in tuple(CallStatus):
        return f"status {value['status']!r:.40} is unknown"
    return next(
        (f"{field} cannot be {value[field]!r:.40}" for field, fits in _FITS.items() if not fits(value.get(field))), None
    )


def _wrong_run(name: str, value: Any) -> str | None:
    if name == ROOT:
        return None if isinstance(value, str) else "the root is not text"
    if name.startswith(GENERATION):
        return None if _is_count(value) else "a generation is a number"
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


_CHECKS: Final = {CALL: _wrong_call, ANSWER: _wrong_answer, STEP: _wrong_step, RUN: _wrong_run}

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
}
"""The types of an entry's fields; `result`, `error` and `comment` may be anything."""


# -- replies ---------------------------------------------------------------------------------------


def reply_of(messages: Sequence[Any], root: Callable[[], str], encode: Callable[[Any], bytes]) -> tuple[int, str] | None:
    """The place of the newest reply in a conversation, and what the keys of its calls begin with; None if there is none.

    That is its id, if a run has kept it. One that came from elsewhere is told by its thread, its place and what it calls:
    not by its id or words, which may yet be given or changed by whoever saves the conversation.
    """
    return next(replies_in(messages, root, encode), None)


def replies_in(messages: Sequence[Any], root: Callable[[], str], encode: Callable[[Any], bytes]) -> Iterator[tuple[int, str]]:
    """What `reply_of` says, for every reply in a conversation, newest first."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            if is_journaled(message):
                yield place, str(message["id"])
                continue
            told = [_asked(call) for call in message.get("tool_calls") or ()]
            yield place, blake3.blake3(encode([root(), place, told]) if told else b"").hexdigest(length=16)


def is_journaled(message: Mapping[str, Any]) -> bool:
    """Whether a reply was kept by a run, under the id that it has."""
    given = message.get("id")
    return message.get(JOURNALED) is True and isinstance(given, str) and ":" not in given


def _asked(call: Any) -> Any:
    """What a call asks for, without what may be added to it later."""
    return [call.get("name"), call.get("arguments"), call.get("function")] if isinstance(call, Mapping) else call


def generation(run: Mapping[str, Any], reply: str) -> int:
    """How often the calls of a reply were to be made anew, by the records of kind RUN: 0 if never."""
    return int(run.get(GENERATION + reply, 0))


def generation_made(calls: Iterable[str]) -> int:
    """The newest generation of which one of these calls of a reply was begun, by their keys."""
    return max((parts_of(key).generation for key in calls), default=0)


# -- what goes along -------------------------------------------------------------------------------


def for_fork(kept: Records, messages: Sequence[Any], before: Collection[str], encode: Callable[[Any], bytes]) -> Records:
    """What of a ledger a run on a fork needs: steps, inputs, and the calls of the reply that may not be settled yet.

    `messages` is the conversation at the fork, `before` the ids of the checkpoints that led there.
    """
    reply = reply_of(messages, lambda: str(kept.get(RUN, {}).get(ROOT, "")), encode)
    calls = {name: value for name, value in kept.get(CALL, {}).items() if reply and name.startswith(f"{reply[1]}:")}
    again = generation_made(calls)
    known = {name for name, value in calls.items() if is_settled(value)}
    return {
        CALL: calls,
        ANSWER: {name: value for name, value in kept.get(ANSWER, {}).items() if name in known},  # else it is asked anew
        STEP: {name: value for name, value in kept.get(STEP, {}).items() if value.get("at") in {None, *before}},
        RUN: {name: value for name, value in kept.get(RUN, {}).items() if name == ROOT}
        | ({GENERATION + reply[1]: again} if reply and again else {}),
    }


_FAR: Final = (CallStatus.WAITING, CallStatus.STARTED, CallStatus.UNKNOWN, CallStatus.FAILED, CallStatus.DONE)
"""What is known of a call, from least to most."""


def gives_way(kind: str, name: str, there: Any, given: Any, calls: Iterable[str], encode: Callable[[Any], bytes]) -> bool:
    """Whether a record may become what a copy of its thread says of it (None: nothing), which may be older.

    What is known of an effect stays known, and so do answers and steps. An entry never becomes that of another call: a person
    may have approved what it says. `calls` are the keys of the calls that are there.
    """
    if kind == CALL:
        if given is None or is_settled(there) or not _is_same(there, given, encode):
            return False
        return _FAR.index(CallStatus(given["status"])) >= _FAR.index(CallStatus(there["status"]))
    if kind == RUN and name.startswith(GENERATION):
        reply = name.removeprefix(GENERATION)
        return generation_made(key for key in calls if key.startswith(f"{reply}:")) <= int(given or 0)
    return kind == RUN and name == TAKEOVERS


def is_settled(call: Mapping[str, Any]) -> bool:
    """Whether the outcome of a call is known, by its record."""
    return call["status"] in (CallStatus.DONE, CallStatus.FAILED)


def _is_same(there: Mapping[str, Any], given: Mapping[str, Any], encode: Callable[[Any], bytes]) -> bool:
    one, other = (digest_of(call["name"], call.get("arguments", {}), encode) for call in (there, given))
    return one == other


def stand_ins(
    kept: Records,
    messages: Sequence[Any],
    place: int,
    reply: str,
    now: dt.datetime,
    known: Mapping[str, str],
    encode: Callable[[Any], bytes],
) -> dict[tuple[str, str], Any]:
    """Records for the newest reply of a conversation, some of whose own may have been lost, by kind and name.

    A call without an entry has the outcome that the model was told of; if there is none, nobody knows whether it was made.
    `known` are digests of what calls ask for, by key: see `keys_for`.
    """
    made = generation_made(name for name in kept.get(CALL, {}) if name.startswith(f"{reply}:"))
    again = generation(kept.get(RUN, {}), reply) or made
    new: dict[tuple[str, str], Any] = {(RUN, GENERATION + reply): again} if again else {}
    told = [message for message in messages[place + 1 :] if isinstance(message, Mapping)]
    calls = messages[place].get("tool_calls") or ()
    asked = [read_call(call, encode) for call in calls]
    keys = keys_for(reply, again, [one.digest for one in asked], known, whole=False)
    for key, call, one in zip(keys, calls, asked, strict=True):
        if one.wrong is not None:  # nobody can read it, so nobody made it
            continue
        answer = next((message for message in told if str(call.get("id") or key) == message.get("tool_call_id")), None)
        if answer is None or answer.get(CALL_KEY) == key:  # else somebody else made it
            new[CALL, key] = CallEntry(key, one.name, arguments=one.arguments, noted_at=now, **_told(answer)).to_dict()
    return {(kind, name): value for (kind, name), value in new.items() if name not in kept.get(kind, {})}


def _told(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """What an answer in the conversation says of the outcome of its call."""
    if answer is None:
        return {"status": CallStatus.UNKNOWN, "error": LOST}
    if (answer.get("metadata") or {}).get("is_error"):
        return {"status": CallStatus.FAILED, "error": str(answer["content"]).removeprefix("error: ")}
    return {"status": CallStatus.DONE, "result": answer["content"]}
