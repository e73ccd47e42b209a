"""Effects that stay in the world when a thread goes back: every surface names them before it acts, and says how to undo them.

Surfaces cannot undo effects themselves, because tools are code. Touches vault and the ledger.
"""

from __future__ import annotations

import datetime as dt

from savegame.runs.ledger import CallEntry, CallStatus
from savegame.timeline.lineage import Ref
from savegame.vault import Vault


def staying_effects(vault: Vault, thread_id: str, after: Ref) -> list[CallEntry]:
    """The effects of a thread that were begun after a checkpoint and not undone: going back to it leaves them in the world."""
    return [entry for entry in vault.effects(thread_id, after=after) if entry.undone_at is None]


def undo_command(thread_id: str, to: str) -> str:
    """The Python call that goes back to a checkpoint and undoes the effects after it."""
    return f"vault.undo({thread_id!r}, to={to!r}, tools=tools)"


def began_at(effect: CallEntry) -> dt.datetime | None:
    """When an effect was begun, as far as known."""
    return effect.started_at or effect.noted_at or effect.ended_at


def call_name(call: CallEntry) -> str:
    """The name of a call's tool; of one that undoes another, that it does."""
    return call.name if call.undoes is None else f"undo of {call.name}"


def offers_result(call: CallEntry) -> bool:
    """Whether a waiting call repeats an effect whose result is kept, so that it can be answered with that."""
    about = call.before or {}
    return about.get("status") == CallStatus.DONE and about.get("outcome") is not None


def standing(effect: CallEntry) -> list[str]:
    """What people should know of an effect besides its result: `unknown outcome` or `failed`, `undone` or `left`."""
    words = ["failed"] if effect.status == CallStatus.FAILED else [] if effect.settled else ["unknown outcome"]
    return [*words, *(["undone"] if effect.undone_at is not None else ["left"] if effect.left else [])]
