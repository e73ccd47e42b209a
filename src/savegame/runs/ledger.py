"""The ledger of a run: what became of each tool call, kept as records beside the thread. Touches model, errors.

An entry is written before an effect that must not happen twice (`started`), when a person is asked (`waiting`), and with
the outcome, in the same commit as the message that tells the model. It holds the outcome, so that a call whose message was
rewound past is answered again without being made again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Literal

import blake3

CALL: Final = "call"
ANSWER: Final = "answer"
STEP: Final = "step"
RUN: Final = "run"
LEDGER: Final = (CALL, ANSWER, STEP, RUN)
"""The kinds of records that a run keeps."""

GENERATION, ROOT, TAKEOVERS = "generation:", "root", "takeovers"
"""Records of kind RUN: how often the calls of a reply, whose id follows, were to be made anew; what stands for the thread in
keys; takeovers so far."""

Records = Mapping[str, Mapping[str, Any]]
"""Records of a thread by kind and name."""

JOURNALED: Final = "journaled"
"""The field of a reply that a run has kept, under the id that it has."""


class CallStatus(StrEnum):
    """How far a tool call is."""

    STARTED = "started"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CallEntry:
    """One tool call in the ledger. `key` is stable: the journaled reply and the place of the call in it."""

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
        place = self.key.split(":")[1:2]
        return noted, int(place[0]) if place and place[0].isdecimal() else 0

    @property
    def settled(self) -> bool:
        """Whether its outcome is known."""
        return self.status in (CallStatus.DONE, CallStatus.FAILED)

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


def reply_of(messages: Sequence[Any], root: Callable[[], str], encode: Callable[[Any], bytes]) -> tuple[int, str] | None:
    """The place of the newest reply in a conversation, and what the keys of its calls begin with; None if there is none.

    That is its id, if a run has kept it. One that came from elsewhere is told by its thread, its place and what it calls:
    not by its id or words, which may yet be given or changed by whoever saves the conversation.
    """
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            if message.get(JOURNALED) is True and "id" in message:
                return place, str(message["id"])
            told = [_asked(call) for call in message.get("tool_calls") or ()]
            return place, blake3.blake3(encode([root(), place, told]) if told else b"").hexdigest(length=16)
    return None


def _asked(call: Any) -> Any:
    """What a call asks for, without what may be added to it later."""
    return [call.get("name"), call.get("arguments"), call.get("function")] if isinstance(call, Mapping) else call


def generation(run: Mapping[str, Any], reply: str) -> int:
    """How often the calls of a reply were to be made anew, by the records of kind RUN: 0 if never."""
    return int(run.get(GENERATION + reply, 0))


def generation_made(calls: Iterable[str]) -> int:
    """The newest generation of which one of these calls of a reply was begun, by their keys."""
    return max((int(key.split(":")[2]) for key in calls if key.count(":") == 2), default=0)


def for_fork(kept: Records, messages: Sequence[Any], before: Collection[str], encode: Callable[[Any], bytes]) -> Records:
    """What of a ledger a run on a fork needs: steps, inputs, and the calls of the reply that may not be settled yet.

    `messages` is the conversation at the fork, `before` the ids of the checkpoints that led there.
    """
    reply = reply_of(messages, lambda: str(kept.get(RUN, {}).get(ROOT, "")), encode)
    calls = {name: value for name, value in kept.get(CALL, {}).items() if reply and name.startswith(f"{reply[1]}:")}
    again = generation_made(calls)
    known = {name for name, value in calls.items() if value["status"] in (CallStatus.DONE, CallStatus.FAILED)}
    return {
        CALL: calls,
        ANSWER: {name: value for name, value in kept.get(ANSWER, {}).items() if name in known},  # else it is asked anew
        STEP: {name: value for name, value in kept.get(STEP, {}).items() if value.get("at") in {None, *before}},
        RUN: {name: value for name, value in kept.get(RUN, {}).items() if name == ROOT}
        | ({GENERATION + reply[1]: again} if reply and again else {}),
    }
