"""The ledger of a run: what became of each tool call, kept as records beside the thread. Touches model, errors.

An entry is written before an effect that must not happen twice (`started`), when a person is asked (`waiting`), and with
the outcome, in the same commit as the message that tells the model. It holds the outcome, so that a call whose message was
rewound past is answered again without being made again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

import blake3

CALL: Final = "call"
ANSWER: Final = "answer"
STEP: Final = "step"
RUN: Final = "run"
LEDGER: Final = (CALL, ANSWER, STEP, RUN)
"""The kinds of records that a run keeps."""

GENERATION, ROOT, TAKEOVERS = "generation", "root", "takeovers"
"""Records of kind RUN: how often calls were to be made anew, what stands for the thread in keys, takeovers so far."""

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

    @property
    def settled(self) -> bool:
        """Whether its outcome is known."""
        return self.status in (CallStatus.DONE, CallStatus.FAILED)

    def to_dict(self) -> dict[str, Any]:
        """As it is kept; what is empty is left out."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "key"}
        return {name: value for name, value in plain.items() if value is not None} | {"status": self.status.value}

    @classmethod
    def from_dict(cls, key: str, kept: Mapping[str, Any]) -> CallEntry:
        """The opposite of `to_dict`."""
        known = {item.name for item in fields(cls)}
        given = {name: value for name, value in kept.items() if name in known}
        return cls(key=key, **{**given, "status": CallStatus(kept["status"])})


def reply_of(messages: Sequence[Any], root: Callable[[], str]) -> tuple[int, str] | None:
    """The place of the newest reply in a conversation, and what the keys of its calls begin with; None if there is none.

    That is its id, if a run has kept it. One that came from elsewhere is told by its thread, its place and what it says.
    """
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            if message.get(JOURNALED) is True:
                return place, str(message["id"])
            calls = message.get("tool_calls")
            told = repr((root(), place, message.get("id"), message.get("content"), calls)) if calls else ""
            return place, blake3.blake3(told.encode(errors="backslashreplace")).hexdigest(length=16)
    return None
