"""Effects: calls that changed the world, and which of them going back has left behind.

Going back does not take an effect back, so nothing may repeat it silently. Nothing is noted when a head moves: whether an
effect lies on a line follows from the reply that asked for it. Records of kind EFFECT are needed only for effects whose call is
not in the ledger (`How`). Touches keys, ledger, toolbox, messages.states, lineage and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from savegame.encoding.frames import load_meta
from savegame.encoding.text import repr_text
from savegame.errors import CorruptionError, InvalidInputError, UndoUnfinished
from savegame.messages.states import ABOUT, messages_in
from savegame.model import Frame
from savegame.runs.generations import current_keys, made_again, was_taken_back
from savegame.runs.keys import CALL_KEY, Read, digest_of, parts_of, read_call, unanswered
from savegame.runs.ledger import (
    PRUNED,
    RERUN,
    ROOT,
    UNDO,
    CallEntry,
    CallStatus,
    How,
    replies_in,
    reply_in,
    reply_of,
)
from savegame.runs.toolbox import Tool, ToolKind
from savegame.timeline.companions import ANSWER, CALL, EFFECT, RUN
from savegame.timeline.lineage import Lineage

logger = logging.getLogger("savegame")

SHOWN_OUTCOME: Final = 200
"""Characters of an outcome that a question to a person quotes."""

_ALL, _OWN = "all:", "own:"
"""What a stored digest was computed from: all arguments, or the result of a tool's `same` function."""


class Effect(NamedTuple):
    """An effect; `how` it is known if its call is not in the ledger."""

    entry: CallEntry
    how: How | None = None

    @property
    def order(self) -> tuple[int, tuple[dt.datetime, int]]:
        """Sort key: the order in which effects were begun, whatever the clock said."""
        return self.entry.after or 0, self.entry.order

    @property
    def reusable(self) -> bool:
        """Whether its result is known and kept."""
        return self.entry.status == CallStatus.DONE and self.how in (None, How.CARRIED)

    def counts(self, tool: Tool) -> bool:
        """Whether it may have taken effect, as far as only its tool can tell."""
        return self.how is not How.MAYBE or (tool.kind is ToolKind.IDEMPOTENT and not tool.repeats_freely)

    def record(self, **more: Any) -> dict[str, Any]:
        """Its record of kind EFFECT, in another thread or after its call was removed."""
        return {**self.entry.to_dict(), "how": (self.how or How.CARRIED).value, **more}

    def trace(self, encode: Callable[[Any], bytes]) -> dict[str, Any]:
        """What is kept after its checkpoints were removed: no arguments, no result. About 400 bytes."""
        entry = self.entry
        bare = CallEntry(
            entry.key,
            entry.name,
            entry.status,
            attempt=entry.attempt,
            started_at=entry.started_at,
            noted_at=entry.noted_at,
            kind=entry.kind,
            same=entry.same or _ALL + digest_of(entry.name, entry.arguments, encode),
            after=entry.after,
            after_id=entry.after_id,
            repeats=entry.repeats,
            undone_at=entry.undone_at,
            made_in=entry.made_in,
        )
        return bare.to_dict() | {"how": (How.TRACE if self.how in (None, How.CARRIED) else self.how).value}


# -- which calls are the same ----------------------------------------------------------------------


def same_digest(tool: Tool, arguments: Mapping[str, Any], encode: Callable[[Any], bytes]) -> str | None:
    """The stored digest of what makes calls of a tool the same; None if that is all arguments. Raises InvalidInputError."""
    return _OWN + digest_of(tool.name, {"same": tool.same(arguments)}, encode) if tool.has_own_same else None


def is_same(effect: Effect, tool: Tool, same: str, encode: Callable[[Any], bytes]) -> bool:
    """Whether an effect is the same as a call of a tool with this digest. If that cannot be known, it is."""
    entry = effect.entry
    if entry.name != tool.name:
        return False
    known = entry.same
    if effect.how is not How.TRACE and (entry.arguments or known is None):
        try:
            known = same_digest(tool, entry.arguments, encode) or _ALL + digest_of(entry.name, entry.arguments, encode)
        except InvalidInputError:  # the tool has changed since
            known = entry.same
    return known is None or known == same or known[: len(_ALL)] != same[: len(_ALL)]


# -- which effects lie where -----------------------------------------------------------------------


class LedgerView:
    """The ledger of a thread, read once, to tell which effects lie on which of its lines."""

    def __init__(self, thread: Lineage) -> None:
        self.thread = thread
        self.calls = {name: CallEntry.from_dict(name, value) for name, value in thread.values(CALL).items()}
        self.markers = thread.values(RUN)
        self.records = {
            name: Effect(CallEntry.from_dict(name, {"arguments": {}, **value}), How(value["how"]))
            for name, value in thread.values(EFFECT).items()
        }
        self.frames = {frame.seq: frame for frame in thread.everything()}
        self.seqs: dict[str | None, int] = {frame.id: seq for seq, frame in self.frames.items()}

    @property
    def root(self) -> str:
        """The name of the thread in the keys of replies that no run journaled."""
        return str(self.markers.get(ROOT, ""))

    @cached_property
    def _approved(self) -> frozenset[str]:
        return frozenset(name for name, answer in self.thread.values(ANSWER).items() if answer["value"] is True)

    def line(self, seq: int, messages: Sequence[Any] | None = None) -> LineView:
        """The line of a checkpoint, by its number (0: none), with its messages if they are known."""
        return LineView(self, seq, messages)

    def effects(self, line: LineView) -> list[Effect]:
        """All effects that the thread knows of, in order; those without a ledger entry only where they are off this line."""
        here = {key: Effect(entry) for key, entry in self.calls.items() if entry.is_effect}
        beside = {key: effect for key, effect in self.records.items() if effect.how is not How.TRACE or effect.entry.is_effect}
        maybe = {effect.entry.key: effect for effect in self.kept_replies(line.leaves()) if not line.has(effect.entry)}
        return sorted({**maybe, **beside, **here}.values(), key=lambda effect: effect.order)

    def left(self, line: LineView) -> list[Effect]:
        """The effects off a line that nothing on it stands for yet, in order."""
        others = [entry for entry in self.calls.values() if line.has(entry)]
        others += [one.entry for one in self.records.values() if one.how is How.TRACE and line.has_effect(one)]
        settled = [entry for entry in others if entry.settled or entry.begun]
        done = {entry.repeats for entry in settled} | {entry.key for entry in settled}
        allowed = {key for name, keys in self.markers.items() if line.allows(name) for key in keys}
        return [
            effect
            for effect in self.effects(line)
            if effect.entry.undone_at is None and effect.entry.key not in done | allowed and not line.has_effect(effect)
        ]

    # -- kept replies ------------------------------------------------------------------------------

    def kept_replies(self, leaves: Collection[Frame]) -> Iterator[Effect]:
        """Calls of the newest replies of these checkpoints that may have been begun without a note in the ledger."""
        for frame in leaves:
            meta = load_meta(frame.meta)
            if meta.status != "completed" and ABOUT in self.thread.about(meta):
                try:
                    messages = messages_in(self.thread.engine.codec, self.thread.point(frame.seq, frame).node)
                except CorruptionError as error:
                    logger.warning(
                        "thread %r: what was called at checkpoint %s is unknown: %s", self.thread.id, frame.id, error
                    )
                    continue
                for entry in self.open_calls(messages):
                    if self.may_be_begun(entry.key):
                        yield Effect(replace(entry, after=frame.seq), How.MAYBE)

    def unnoted(self, leaves: Collection[Frame], line: LineView) -> list[Effect]:
        """Those of kept replies that lie off a line, and that no record of kind EFFECT tells of."""
        found = (effect for effect in self.kept_replies(leaves) if effect.entry.key not in self.records)
        return [effect for effect in found if not line.has(effect.entry)]

    def may_be_begun(self, key: str) -> bool:
        """Whether a call without an outcome may have been begun without a note, as far as the ledger tells."""
        if was_taken_back(key, self.calls.get):
            return False
        entry = self.calls.get(key)
        return entry is None or (entry.status == CallStatus.WAITING and key in self._approved)

    def open_calls(self, messages: Sequence[Any]) -> Iterator[CallEntry]:
        """The calls of the newest reply of a conversation that have no answer in it, with what the ledger says of them."""
        encode = self.thread.engine.codec.encode
        place, reply = reply_of(messages, lambda: self.root, encode) or (-1, "")
        calls = [call for call in messages[place].get("tool_calls") or () if isinstance(call, Mapping)] if reply else []
        if not calls:
            return
        asked = [read_call(call, encode) for call in calls]
        known = {
            key: digest_of(entry.name, entry.arguments, encode) for key, entry in self.calls.items() if reply_in(key) == reply
        }
        keys = current_keys(self.markers, reply, [one.digest for one in asked], known)
        answers = [one for one in messages[place + 1 :] if isinstance(one, Mapping) and one.get("role") == "tool"]
        for index in unanswered(keys, [call.get("id") for call in calls], answers):
            if asked[index].wrong is None:
                key = made_again(keys[index], self.calls.get)
                yield self.calls.get(key) or _unnoted(key, asked[index], messages[place].get("timestamp"))

    def plausible(self, effects: Sequence[Effect]) -> list[Effect]:
        """Effects without those calls of kept replies whose tool, by its other calls, would have left a note."""
        kinds = {entry.name: entry.kind for entry in self.calls.values() if entry.kind is not None}
        return [
            effect
            for effect in effects
            if effect.how is not How.MAYBE or kinds.get(effect.entry.name, ToolKind.IDEMPOTENT) == ToolKind.IDEMPOTENT
        ]


class LineView:
    """A checkpoint and its ancestors: which calls lie on it."""

    def __init__(self, view: LedgerView, seq: int, messages: Sequence[Any] | None) -> None:
        self._view, self._top = view, seq
        self._given = messages
        self._seqs: set[int] = set()
        while seq in view.frames:
            self._seqs.add(seq)
            seq = view.frames[seq].base
        self.ids = {view.frames[seq].id for seq in self._seqs}
        """The ids of its checkpoints."""

    @cached_property
    def _messages(self) -> Sequence[Any]:
        if self._given is not None or self._top not in self._view.frames:
            return self._given or ()
        thread = self._view.thread
        return messages_in(thread.engine.codec, thread.point(self._top, self._view.frames[self._top]).node)

    @cached_property
    def _replies(self) -> set[str]:
        encode = self._view.thread.engine.codec.encode
        return {reply for _, reply in replies_in(self._messages, lambda: self._view.root, encode)}

    @cached_property
    def _answered(self) -> set[Any]:
        return {message.get(CALL_KEY) for message in self._messages if isinstance(message, Mapping)}

    @cached_property
    def _last_off(self) -> int:
        """The largest number of a checkpoint off this line, as far as is known."""
        off = max((seq for seq in self._view.frames if seq not in self._seqs), default=0)
        return max(off, int(self._view.markers.get(PRUNED, 0)))

    def has(self, entry: CallEntry) -> bool:
        """Whether the reply of a call lies on this line.

        If neither its checkpoint nor its message is left, the call lies here only if nothing that was ever off this line can
        have followed it.
        """
        reply = reply_in(entry.key)
        if reply in self.ids or reply in self._replies:
            return True
        number = entry.after or 1
        return reply not in self._view.seqs and self._last_off < number <= self._top and self._is_old(number, entry)

    def _is_old(self, number: int, entry: CallEntry) -> bool:
        """Whether the checkpoint of this line with that number is older than a call; not so if the numbers changed since."""
        before = max((seq for seq in self._seqs if seq <= number), default=0)
        begun = entry.started_at or entry.noted_at
        if not before or begun is None:
            return not before
        return load_meta(self._view.frames[before].meta).created_us <= begun.timestamp() * 1_000_000

    def has_effect(self, effect: Effect) -> bool:
        """Whether an effect was made on this line; what a fork only knows of its source was not."""
        return (effect.how is None or effect.entry.made_in is None) and self.has(effect.entry)

    def is_after(self, effect: Effect) -> bool:
        """Whether an effect was begun after the last checkpoint of this line was saved, on whichever line."""
        entry, reply = effect.entry, reply_in(effect.entry.key)
        if self.has_effect(effect):
            return entry.key not in self._answered and reply in self._replies
        if effect.how is not None and entry.made_in is not None:  # before the fork did anything
            return self._top == min(self._view.frames, default=0)
        known = [seq for one in (reply, entry.after_id) if (seq := self._view.seqs.get(one)) is not None]
        begun = max(known, default=entry.after)
        return begun is None or begun >= self._top

    def allows(self, marker: str) -> bool:
        """Whether a record says, by its name, which effects may be repeated after a checkpoint of this line."""
        return marker.startswith(RERUN) and marker.removeprefix(RERUN) in self.ids

    def leaves(self) -> list[Frame]:
        """The newest checkpoints of all other lines."""
        bases = {frame.base for frame in self._view.frames.values()}
        return [frame for seq, frame in self._view.frames.items() if seq not in self._seqs and seq not in bases]


def _unnoted(key: str, asked: Read, time: Any) -> CallEntry:
    noted_at = time if isinstance(time, dt.datetime) and time.tzinfo is not None else None
    arguments = asked.arguments if isinstance(asked.arguments, dict) else {"": asked.arguments}
    return CallEntry(key, asked.name, CallStatus.UNKNOWN, arguments, noted_at=noted_at)


# -- for runs and verbs ----------------------------------------------------------------------------


class LeftEffects:
    """The effects that going back has left behind, for one run on the head. Each stands for one call, in order."""

    def __init__(self, thread: Lineage, messages: Sequence[Any]) -> None:
        self._thread, self._messages = thread, messages
        self._claimed: dict[str, str] = {}
        """Effects by key, each with the call that stands for it."""

    @cached_property
    def _left(self) -> list[Effect]:
        """What nothing on this line stands for yet. Costs three small reads if the thread never went back."""
        thread, row = self._thread, self._thread.row()
        if row is None or not row.frames:
            return []
        straight = row.frames == row.last == row.head and thread.store.unbroken(thread.key, row.head) <= 1
        if straight and EFFECT not in thread.kinds():
            return []
        view = LedgerView(thread)
        return view.left(view.line(row.head, self._messages))

    def match(
        self, key: str, arguments: Mapping[str, Any], tool: Tool, ledger: Mapping[str, CallEntry]
    ) -> tuple[str | None, Effect | None]:
        """The digest to store with a call, and the effect that it would repeat.

        `ledger` has the entries of the same reply. Raises InvalidInputError if the tool's `same` function fails.
        """
        encode, entry = self._thread.engine.codec.encode, ledger.get(key)
        same = same_digest(tool, arguments, encode)
        begun = entry is not None and entry.status != CallStatus.WAITING
        if tool.repeats_freely or begun or not self._left:
            return same, None
        whole = same or _ALL + digest_of(tool.name, arguments, encode)
        others = {one.repeats for one in ledger.values() if one.key != key}
        fitting = [
            effect
            for effect in self._left
            if self._claimed.get(effect.entry.key, key) == key and effect.entry.key not in others
            if effect.entry.key == key or (effect.counts(tool) and is_same(effect, tool, whole, encode))
        ]
        asked_about = key if entry is None else entry.repeats or key  # an open call of a fork stands for itself
        first = [effect for effect in fitting if effect.entry.key == asked_about]
        effect = next(iter(first or fitting), None)
        if effect is not None:
            self._claimed[effect.entry.key] = key
        return same, effect


def key_of(effect: Effect | None) -> str | None:
    """The key of the call of an effect."""
    return None if effect is None else effect.entry.key


def effects_after(thread: Lineage, frame: Frame | None, *, open_too: bool = False) -> list[Effect]:
    """The effects begun after a checkpoint, or all, in order; entries off the head's line have `left` set.

    `open_too`: also calls at the head without an outcome, which only their tools can tell from effects.
    """
    row = thread.row()
    if row is None:
        return []
    view = LedgerView(thread)
    line = view.line(row.head)
    found = view.effects(line)
    if open_too and row.head in view.frames:
        known = {effect.entry.key for effect in found}
        found += [effect for effect in view.kept_replies([view.frames[row.head]]) if effect.entry.key not in known]
        found.sort(key=lambda effect: effect.order)
    if frame is not None:
        before = view.line(frame.seq)
        found = [effect for effect in found if before.is_after(effect)]
    return [effect._replace(entry=replace(effect.entry, left=not line.has_effect(effect))) for effect in view.plausible(found)]


def left_open(thread: Lineage, frame: Frame | None) -> list[Effect]:
    """The calls without a note that are left if the head moves to a checkpoint, and that nothing would tell of afterwards.

    That is so where others build on the head: later, it cannot be seen that it was the head again. Else `leaves` tells.
    """
    row = thread.row()
    if row is None or row.head in (0, row.last) or all(one.base != row.head for one in thread.everything(low=row.head + 1)):
        return []
    view = LedgerView(thread)
    line = view.line(0 if frame is None else frame.seq)
    return view.unnoted([view.frames[row.head]], line)


def tried_before_crash(entry: CallEntry, tool: Tool | None, thread: Lineage) -> CallEntry:
    """The entry of a call that ends after a crash: as tried, unless its tool, or other calls of it, tell that it was not.

    Only idempotent tools, and those that only read, leave no note before they run.
    """
    view = LedgerView(thread)
    kind = (
        tool.kind.value
        if tool
        else next((one.kind for one in view.calls.values() if one.name == entry.name and one.kind), None)
    )
    if kind in (ToolKind.PLAIN, ToolKind.TRANSACTION) or not view.may_be_begun(entry.key):
        return entry
    row, same = thread.row(), None
    with suppress(InvalidInputError):  # then all arguments count
        same = None if tool is None else same_digest(tool, entry.arguments, thread.engine.codec.encode)
    return replace(entry, attempt=1, kind=kind, same=same, after=0 if row is None else row.last)


def has_kept_result(thread: Lineage, key: str | None) -> bool:
    """Whether the call with this key is done, here or in the source of this fork, and its result is kept."""
    if key is None:
        return False
    view = LedgerView(thread)
    effect = Effect(view.calls[key]) if key in view.calls else view.records.get(key)
    return effect is not None and effect.reusable


def facts(effect: Effect, thread: Lineage, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What the question to a person about a call with these arguments says of an effect: see `ledger.question`."""
    entry = effect.entry
    text = repr_text(entry.result) if effect.reusable else entry.error if entry.status == CallStatus.FAILED else None
    reply = parts_of(entry.key).reply
    line = None if entry.made_in or thread.engine.find(thread.key.namespace, reply) is None else reply
    about = {
        "status": (CallStatus.WAITING if effect.how is How.OPEN else entry.status).value,
        "time": entry.started_at or entry.noted_at,
        "outcome": text if text is None or len(text) <= SHOWN_OUTCOME else text[: SHOWN_OUTCOME - 1] + "…",
        "line": line,
        "made_in": entry.made_in,
        "arguments": dict(entry.arguments) if entry.arguments and entry.arguments != arguments else None,
    }
    return {name: value for name, value in about.items() if value is not None}


def refuse_unfinished(thread_id: str, markers: Mapping[str, Any], to: str | None = None) -> None:
    """Raise UndoUnfinished if an undo is under way, by the records of kind RUN, unless it goes to the checkpoint `to`."""
    known = markers.get(UNDO)
    if known is not None and known["to"] != to:
        raise UndoUnfinished(
            f"thread {thread_id!r}: an undo to checkpoint {known['to']} is not finished; finish it first with "
            f"vault.undo({thread_id!r}, to={known['to']!r}, tools=tools)",
            to=known["to"],
        )
