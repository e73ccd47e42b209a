"""What a run may spend before the model is asked again: `Budget`, and what was spent so far.

What was spent is counted in memory as the run saves; only a run with a budget reads, once, what was spent before it. Touches
sdk_replies, frames, model and timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from savegame.encoding.frames import load_meta
from savegame.errors import InvalidInputError
from savegame.model import checked_number
from savegame.runs.sdk_replies import tokens_in, usage_of
from savegame.timeline.timeline import Timeline
from savegame.waiting.awaiting import plain_result

OVER_BUDGET: Final = "budget"
"""The first word of the reason for which a run over budget is halted."""


Usage = Callable[[Any], tuple[int | None, float | None]]
"""Returns the tokens and the cost of a reply."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for a run, in tokens, in money (`cost`, in the unit that `usage=` returns), or both.

    Counted are replies and what tools report with `call.spend`, in this run and in those that it carries on: since the thread
    was last completed, halted or failed. Once a limit is reached, the run halts before the next call of the model.
    """

    tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if self.tokens is None and self.cost is None:
            raise InvalidInputError("a Budget needs tokens=, cost= or both")
        for name, value, whole in (("tokens", self.tokens, True), ("cost", self.cost, False)):
            if value is not None and not checked_number(value, f"the budget's {name}", whole=whole):
                raise InvalidInputError(f"the budget's {name} must be more than 0")


class Expenses(NamedTuple):
    """The tokens and the money that were spent."""

    tokens: int = 0
    cost: float = 0.0

    def after(self, details: Mapping[str, Any]) -> Expenses:
        """What is spent after a checkpoint with these details."""
        return Expenses(self.tokens + (details.get("tokens_used") or 0), self.cost + (details.get("cost") or 0.0))

    def over(self, budget: Budget) -> str | None:
        """The reason to halt; None while there is something left."""
        if budget.tokens is not None and self.tokens >= budget.tokens:
            return f"{OVER_BUDGET}: {self.tokens} of {budget.tokens} tokens spent"
        if budget.cost is not None and self.cost >= budget.cost:
            return f"{OVER_BUDGET}: a cost of {self.cost:.6g} of {budget.cost:.6g} spent"
        return None


def spent_until(thread: Timeline, seq: int) -> Expenses:
    """What was spent on the line up to a checkpoint, since the work last ended. Reads the metadata of that part."""
    total = Expenses()
    for frame in thread.line(seq, page=8):
        meta = load_meta(frame.meta)
        if meta.status != "in_progress":
            break
        if meta.forked_from is None:  # the first checkpoint of a fork was paid for in its source
            total = Expenses(total.tokens + (meta.tokens_used or 0), total.cost + (meta.cost or 0.0))
    return total


def spent_by(reply: Any, usage: Usage | None) -> tuple[tuple[int | None, float | None], Exception | None]:
    """The tokens and the cost of a reply, or what is wrong with them."""
    stated = tokens_in(usage_of(reply))
    if usage is None:
        return (stated, None), None
    try:
        spending = plain_result(usage(reply), "usage", "pass an ordinary function")
        if not isinstance(spending, tuple) or len(spending) != 2:
            raise InvalidInputError(f"usage() returned {spending!r}; it must return (tokens, cost), each of which may be None")
        tokens_used, cost = spending
        if tokens_used is not None:
            checked_number(tokens_used, "tokens_used")
        if cost is not None:
            checked_number(cost, "cost", whole=False)
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything: it is raised once the reply is saved
        return (stated, None), error
    return (stated if tokens_used is None else tokens_used, cost), None
