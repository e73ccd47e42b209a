"""What to keep and when to save, as pure decisions. Touches model and errors.

A `Retention` hides and frees checkpoints, a `Strategy` says when a run or an autosave saves. Neither reads a clock or a store:
callers pass what they know.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from savegame.errors import InvalidInputError
from savegame.model import checked_duration


class Event(StrEnum):
    """What an agent's loop has just done. Its value is also the kind of a checkpoint saved because of it."""

    TOOL_CALL = "tool_call"
    LLM_RESPONSE = "llm_response"
    ITERATION = "iteration"


@dataclass(frozen=True, slots=True)
class Strategy:
    """When a loop saves: `after_tool_call` (the default), `after_llm_response`, `every(n)`, `interval(seconds)`, `never`.

    `Strategy("every(3)")` reads what `str(Strategy.every(3))` writes.
    """

    name: str = "after_tool_call"
    amount: int | float | None = None

    after_tool_call: ClassVar[Strategy]
    after_llm_response: ClassVar[Strategy]
    never: ClassVar[Strategy]

    def __post_init__(self) -> None:
        written = re.fullmatch(r"(every|interval)\((.+)\)", str(self.name)) if self.amount is None else None
        if written:
            object.__setattr__(self, "name", written[1])
            object.__setattr__(self, "amount", _amount(written[2]))
        if self.name == "every":
            if type(self.amount) is not int or self.amount < 1:
                raise InvalidInputError(f"every(n) needs a whole number of iterations, at least 1, not {self.amount!r}")
        elif self.name == "interval":
            if type(self.amount) not in (int, float) or not 0 < self.amount < math.inf:  # type: ignore[operator]
                raise InvalidInputError(f"interval(seconds) needs a number of seconds above 0, not {self.amount!r}")
        elif self.name not in _AFTER or self.amount is not None:
            raise InvalidInputError(
                f"strategy {str(self)!r} is unknown; "
                "one of: after_tool_call, after_llm_response, every(n), interval(seconds), never"
            )

    def __str__(self) -> str:
        return self.name if self.amount is None else f"{self.name}({self.amount})"

    @classmethod
    def every(cls, n: int) -> Strategy:
        """Save at the end of every n-th iteration, whatever happened in it."""
        return cls("every", n)

    @classmethod
    def interval(cls, seconds: float) -> Strategy:
        """Save at the first event, and at each event at least that long after the last save."""
        return cls("interval", seconds)

    def should_save(self, iteration: int, event: str, *, since_last: dt.timedelta | None = None) -> bool:
        """Whether to save now: `event` has just happened in this iteration (counted from 1; 0 is before any work).

        `since_last` is how long ago the last save was, for `interval`; None means that there was none.
        """
        happened = _event(event)
        if self.name == "every":
            return happened is Event.ITERATION and iteration > 0 and iteration % (self.amount or 1) == 0
        if self.name == "interval":
            return since_last is None or since_last.total_seconds() >= (self.amount or 0)
        return happened is _AFTER[self.name]


_AFTER: Final = {"after_tool_call": Event.TOOL_CALL, "after_llm_response": Event.LLM_RESPONSE, "never": None}

Strategy.after_tool_call = Strategy()
Strategy.after_llm_response = Strategy("after_llm_response")
Strategy.never = Strategy("never")


def _amount(text: str) -> float | None:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return None


def _event(text: str) -> Event:
    try:
        return Event(text)
    except ValueError as error:
        raise InvalidInputError(f"event {text!r} is unknown; one of: {', '.join(Event)}") from error


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of each thread to keep: the newest `max_checkpoints`, nothing older than `ttl`; the head always stays.

    The default keeps everything. Labelled checkpoints are kept in addition, unless `keep_labelled=False`.
    """

    max_checkpoints: int | None = None
    ttl: dt.timedelta | None = None
    keep_labelled: bool = True

    def __post_init__(self) -> None:
        most = self.max_checkpoints
        if most is not None and (type(most) is not int or not 1 <= most <= sys.maxsize):
            raise InvalidInputError(f"max_checkpoints must be from 1 to {sys.maxsize}, not {most!r}: the head always stays")
        if self.ttl is not None:
            checked_duration(self.ttl, "ttl")

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever hidden."""
        return self.max_checkpoints is None and self.ttl is None

    def hides(self, *, below_floor: bool, labelled: bool, created_us: int, now_us: int) -> bool:
        """Whether a checkpoint that is not the head is hidden. `below_floor`: newer ones fill `max_checkpoints`."""
        if labelled and self.keep_labelled:
            return False
        expired = self.ttl is not None and created_us < now_us - self.ttl // dt.timedelta(microseconds=1)
        return expired or (self.max_checkpoints is not None and below_floor)


def spared_by_prune(
    rank: int, created_us: int, *, labelled: bool, keep: int | None, cutoff_us: int | None, include_labelled: bool
) -> bool:
    """Whether an explicit prune spares a checkpoint: it removes one only if every given rule does. `rank` 0 is the newest."""
    if labelled and not include_labelled:
        return True
    return (keep is not None and rank < keep) or (cutoff_us is not None and created_us >= cutoff_us)
