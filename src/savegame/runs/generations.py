"""How often the calls of a reply are made: a repetition that was allowed, or that follows an undo, has a key of its own.

A rewind with `rerun_tools` gives all calls of the newest reply the next generation, except those that its checkpoint has
answers to: their outcomes stay known, even if the head moves back further by other means. Pure; touches keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from savegame.runs.keys import keys_for, parts_of

GENERATION: Final = "generation:"
"""Records of kind RUN: how often the calls of a reply, whose id follows, should be repeated, and which of them should not."""


def generation(run: Mapping[str, Any], reply: str) -> int:
    """How often the calls of a reply should be repeated, by the records of kind RUN; 0 if never."""
    return number_of(run.get(GENERATION + reply))


def number_of(value: Any) -> int:
    """The generation in such a record, or in none."""
    return int(value["number"] if isinstance(value, Mapping) else value or 0)


def repeating(number: int, others: Iterable[str]) -> Any:
    """The record of kind RUN for the generation of a reply; `others` are the keys of its calls that are not repeated."""
    keys = sorted(others)
    return {"number": number, "kept": keys} if number and keys else number or None


def newest_outcomes(calls: Mapping[str, Mapping[str, Any]]) -> Any:
    """That record for the newest outcome of each of these calls of a reply, by their records."""
    again = newest_generation(calls)
    newest = {parts.slot: parts for parts in sorted(map(parts_of, calls), key=lambda parts: parts.generation)}
    return repeating(again, (str(parts) for parts in newest.values() if parts.generation < again))


def current_keys(
    run: Mapping[str, Any], reply: str, digests: Sequence[str], known: Mapping[str, str], *, whole: bool = False
) -> list[str]:
    """`keys_for` by the records of kind RUN, also for calls that are not to be repeated."""
    value = run.get(GENERATION + reply)
    others = {parts_of(key).slot: key for key in (value["kept"] if isinstance(value, Mapping) else ())}
    keys = keys_for(reply, number_of(value), digests, known, whole=whole)
    return [others.get(parts_of(key).slot, key) for key in keys]


def newest_generation(calls: Mapping[str, Mapping[str, Any]]) -> int:
    """The newest generation of these calls of a reply, by their records; not counting those made again after an undo."""
    keys = [parts_of(key) for key in calls]
    before = [calls.get(str(key._replace(generation=key.generation - 1)), {}) for key in keys]
    again = [key.generation for key, former in zip(keys, before, strict=True) if former.get("undone_at") is None]
    return max(again, default=0)


def made_again(key: str, calls: Callable[[str], Any]) -> str:
    """The key under which a call is made again if it was taken back; `calls` returns entries by key."""
    while (entry := calls(key)) is not None and entry.undone_at is not None:
        parts = parts_of(key)
        key = str(parts._replace(generation=parts.generation + 1))
    return key


def was_taken_back(key: str, calls: Callable[[str], Any]) -> bool:
    """Whether a call is made again under this key because it was taken back."""
    parts = parts_of(key)
    former = calls(str(parts._replace(generation=parts.generation - 1))) if parts.generation else None
    return former is not None and former.undone_at is not None
