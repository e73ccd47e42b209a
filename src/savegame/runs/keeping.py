"""What happens to a run's records when its thread is forked, rewound, copied, pruned or repaired.

The timeline carries records by their policies (`companions.py`) and asks here where it takes reading the ledger. The vault
sets `RunLedger` on the engine. Touches ledger, keys, messages.states, lineage and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from savegame.encoding.codec import Codec
from savegame.encoding.frames import load_meta
from savegame.encoding.tree import Node, Shared
from savegame.errors import CorruptionError
from savegame.messages.states import ABOUT, messages_in
from savegame.model import Frame, Record
from savegame.runs import ledger
from savegame.runs.effects import Effect, LedgerView, left_open, refuse_unfinished
from savegame.runs.generations import GENERATION, generation, newest_outcomes, repeating
from savegame.runs.keys import CALL_KEY, digest_of
from savegame.runs.ledger import (
    LEDGER,
    PRUNED,
    RERUN,
    ROOT,
    UNDO,
    CallEntry,
    CallStatus,
    How,
    for_fork,
    is_journaled,
    is_settled,
    replies_in,
    reply_in,
    reply_of,
    stand_ins,
)
from savegame.store import PutRecord, StoreChange
from savegame.timeline import companions
from savegame.timeline.companions import ANSWER, CALL, EFFECT, RUN, SLEPT, STEP
from savegame.timeline.engine import Ledger, Point, Records
from savegame.timeline.lineage import CHOSEN, Lineage

logger = logging.getLogger("savegame")


class RunLedger(Ledger):
    """`Ledger`, for the records that runs keep."""

    kinds = frozenset(LEDGER)

    def check(self, codec: Codec, record: Record, value: Any) -> None:
        """`Ledger.check`."""
        ledger.check(record.kind, record.name, value, codec.encode)

    def for_fork(self, source: Lineage, at: Point) -> Records:
        """`Ledger.for_fork`: also the effects off the line of the fork's point. An open call stays the source's."""
        fork_policy = companions.Way.LEDGER
        messages = _messages(source, at.node)
        has_ledger = any(companions.policy_of(kind).fork is fork_policy for kind in source.kinds())
        if not has_ledger and ABOUT not in source.about(load_meta(at.meta)) and not _may_be_open(messages):
            return {}
        view, encode = LedgerView(source), source.engine.codec.encode
        line = view.line(at.seq, messages)
        _, reply = reply_of(messages, lambda: view.root, encode) or (-1, None)
        open_calls = {entry.key: Effect(entry, How.OPEN) for entry in view.open_calls(messages) if not entry.settled}
        by_kind = {kind: source.values(kind) for kind in (CALL, ANSWER, STEP, SLEPT, RUN)}
        wanted = for_fork(by_kind, source.id, reply, line.ids, open_calls.keys())
        left = {effect.entry.key: effect for effect in view.left(line)}
        wanted[EFFECT] = {
            key: effect.record(made_in=effect.entry.made_in or source.id, after=None)
            for key, effect in (left | open_calls).items()
        }
        return {(kind, name): value for kind, records in wanted.items() for name, value in records.items()}

    def for_rewind(self, timeline: Lineage, frame: Frame, *, rerun_tools: bool) -> Records:
        """`Ledger.for_rewind`: whether to repeat the calls of the newest reply, and the effects after it.

        If not, their newest outcomes are used, even if a repetition was once requested but never made.
        """
        markers = timeline.values(RUN)
        refuse_unfinished(timeline.id, markers)
        return records_for_rewind(timeline, frame, markers, rerun_tools=rerun_tools)

    def for_restore(self, timeline: Lineage, frame: Frame | None) -> list[PutRecord]:
        """`Ledger.for_restore`."""
        refuse_unfinished(timeline.id, timeline.values(RUN))
        wrap = timeline.engine.wrap_record
        keys = ((effect.entry.key, effect.record()) for effect in left_open(timeline, frame))
        return [PutRecord(timeline.key, EFFECT, key, wrap(value, EFFECT, key)) for key, value in keys]

    def renumbered(self, timeline: Lineage, last: int) -> list[PutRecord]:
        """`Ledger.renumbered`: what is known only by an old number counts as off every line from now on, and asks."""
        if not {CALL, EFFECT} & set(timeline.kinds()):
            return []
        newest = max(last, int(timeline.values(RUN).get(PRUNED, 0)))
        return [PutRecord(timeline.key, RUN, PRUNED, timeline.engine.wrap_record(newest, RUN, PRUNED))]

    def yields(self, timeline: Lineage, record: Record, given: bytes | None) -> bool:
        """`Ledger.yields`."""
        kind, name, _ = record
        if kind not in LEDGER:
            return True
        calls = (call.name for call in timeline.records(CALL))
        there, new = (None if one is None else timeline.read(record._replace(value=one)) for one in (record.value, given))
        return ledger.gives_way(kind, name, there, new, calls, timeline.engine.codec.encode)

    def settled_answers(self, timeline: Lineage, answers: Mapping[str, bytes], batch: Sequence[StoreChange]) -> list[PutRecord]:
        """`Ledger.settled_answers`.

        As with forks, an answer to an unsettled call stays in the source: otherwise one approval would allow the call in the
        source and in every copy.
        """
        wanted = answers.keys() - timeline.names(ANSWER) if answers else set()
        calls = {call.name: call.value for call in (timeline.records(CALL) if wanted else ()) if call.name in wanted}
        for change in batch:
            if isinstance(change, PutRecord) and change.kind == CALL and change.name in wanted and change.value is not None:
                calls[change.name] = change.value
        known = [name for name, value in calls.items() if is_settled(timeline.read(Record(CALL, name, value)))]
        for name in known:
            timeline.read(Record(ANSWER, name, answers[name]))  # raises if it is malformed
        return [PutRecord(timeline.key, ANSWER, name, answers[name]) for name in known]

    def unneeded(self, timeline: Lineage, frames: list[Frame], drop: set[int], *, drop_newer: bool) -> list[PutRecord]:
        """`Ledger.unneeded`: calls and answers whose reply is in no remaining checkpoint; steps and sleeps on removed lines."""
        try:
            calls = [record for kind in (CALL, ANSWER) for record in timeline.records(kind)]
            steps = [(step, timeline.read(step).get("at")) for kind in (STEP, SLEPT) for step in timeline.records(kind)]
            dead = _dead(frames, drop) if steps else set()
            left = [frame for frame in frames if frame.seq not in drop]
            if (
                not drop_newer
            ):  # a reply is saved before its calls are recorded, so this sees the replies of all calls read above
                left += timeline.everything(low=max(frame.seq for frame in frames) + 1, newest_first=False)
            gone = {reply_in(record.name) for record in calls}
            root = str(timeline.values(RUN).get(ROOT, ""))
            for messages in _conversations(timeline, left) if gone else ():
                gone -= {reply for _, reply in replies_in(messages, lambda: root, timeline.engine.codec.encode)}
                if not gone:
                    break
        except CorruptionError as error:
            logger.warning("thread %r keeps its whole ledger: a state that may need it is damaged: %s", timeline.id, error)
            return []
        unneeded = [record for record in calls if reply_in(record.name) in gone]
        dropped = [*unneeded, *(step for step, at in steps if at in dead)]
        traces = _traces(
            timeline, [Effect(entry) for entry in _entries(timeline, unneeded) if entry.is_effect or entry.repeats]
        )
        return [*(PutRecord(timeline.key, record.kind, record.name, None) for record in dropped), *traces]

    def evidence(self, timeline: Lineage, frames: list[Frame], drop: set[int], head: int) -> list[PutRecord]:
        """`Ledger.evidence`: how far lines that were left are removed, and the calls that only their replies tell of."""
        bases = {frame.seq: frame.base for frame in frames}
        line, seq = set(), head
        while seq in bases:
            line.add(seq)
            seq = bases[seq]
        off = drop - line
        kinds = timeline.kinds() if off else []
        row = timeline.row()
        ends = {seq for seq in bases if seq not in bases.values()} | ({row.head} if row is not None else set())
        leaves = [frame for frame in frames if frame.seq in off & ends]
        if not off or not (set(kinds) & {CALL, EFFECT} or any(ABOUT in timeline.about(load_meta(one.meta)) for one in leaves)):
            return []
        view = LedgerView(timeline)
        newest = max(max(off), int(view.markers.get(PRUNED, 0)))
        body = timeline.engine.wrap_record(newest, RUN, PRUNED)
        return [*_traces(timeline, view.unnoted(leaves, view.line(head))), PutRecord(timeline.key, RUN, PRUNED, body)]

    def needed(self, timeline: Lineage) -> str | None:
        """`Ledger.needed`."""
        record = timeline.named(RUN, UNDO)
        return None if record is None else str(timeline.read(record)["to"])

    def mend(self, timeline: Lineage) -> list[str]:
        """`Ledger.mend`."""
        records = {kind: timeline.values(kind) for kind in LEDGER}
        engine, row = timeline.engine, timeline.row()
        head = None if row is None else row.head
        root = records[RUN].get(ROOT) or os.urandom(8).hex()
        now = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=timeline.store.clock())
        encode = engine.codec.encode
        asked = {name: digest_of(value["name"], value["arguments"], encode) for name, value in records[CALL].items()}
        new: dict[tuple[str, str], Any] = {}
        shared: Shared = {}
        for frame, point in timeline.points(list(timeline.everything(newest_first=False))):
            messages = _messages(timeline, point.node, shared)
            place, reply = reply_of(messages, lambda: root, encode) or (0, "")
            if reply and (
                is_journaled(messages[place]) or (frame.seq == head and any(records.values()))
            ):  # else no run worked on it
                known = {name: digest for name, digest in asked.items() if name.startswith(f"{reply}:")}
                found = stand_ins(records, messages, place, reply, now, known, encode)
                new |= {
                    at: value
                    for at, value in found.items()
                    if at not in new or ledger.gives_way(*at, new[at], value, (), encode)
                }
                asked |= {
                    name: digest_of(new[CALL, name]["name"], new[CALL, name]["arguments"], encode)
                    for kind, name in found
                    if kind == CALL
                }
        if not new:
            return []
        new[RUN, ROOT] = root
        changes = [PutRecord(timeline.key, *place, engine.wrap_record(value, *place)) for place, value in new.items()]
        timeline.store.commit(changes)
        lost = [name for (kind, name), value in new.items() if kind == CALL and value["status"] == CallStatus.UNKNOWN]
        return [f"thread {timeline.id!r}: whether call {name} was made is unknown; resolve it" for name in lost]


def records_for_rewind(timeline: Lineage, frame: Frame, markers: Mapping[str, Any], *, rerun_tools: bool) -> Records:
    """`Ledger.for_rewind`, given the records of kind RUN, whatever undo is under way."""
    new: dict[tuple[str, str], Any] = {(EFFECT, effect.entry.key): effect.record() for effect in left_open(timeline, frame)}
    if not markers and not rerun_tools:
        return new
    allowed = _allowed(timeline, frame) if rerun_tools else None
    if allowed or RERUN + frame.id in markers:
        new[RUN, RERUN + frame.id] = allowed or None
    messages = _messages(timeline, timeline.point(frame.seq, frame).node)
    reply = reply_of(messages, lambda: str(markers.get(ROOT, "")), timeline.engine.codec.encode)
    if reply is None:
        return new
    before = generation(markers, reply[1])
    calls = {name: value for name, value in timeline.values(CALL).items() if name.startswith(f"{reply[1]}:")}
    given = {str(one.get(CALL_KEY)) for one in messages if isinstance(one, Mapping)}
    answered = [key for key in given if reply_in(key) == reply[1]]
    wanted = repeating(before + 1, answered) if rerun_tools else newest_outcomes(calls) if before else None
    return new if wanted == markers.get(GENERATION + reply[1]) else new | {(RUN, GENERATION + reply[1]): wanted}


def _messages(timeline: Lineage, node: Node | None, shared: Shared | None = None) -> list[Any]:
    return messages_in(timeline.engine.codec, node, shared)


def _may_be_open(messages: list[Any]) -> bool:
    """Whether the newest reply may have calls without an answer, at a glance."""
    place = next((at for at in range(len(messages) - 1, -1, -1) if _role(messages[at]) == "assistant"), None)
    calls = () if place is None else messages[place].get("tool_calls") or ()
    answered = {one.get("tool_call_id") for one in messages if _role(one) == "tool"}
    return any(isinstance(call, Mapping) and call.get("id") not in answered for call in calls)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _allowed(timeline: Lineage, frame: Frame) -> list[str]:
    """The effects after a checkpoint, by key, which may be repeated from there."""
    view = LedgerView(timeline)
    line = view.line(frame.seq)
    return sorted(effect.entry.key for effect in view.left(line) if line.is_after(effect))


def _entries(timeline: Lineage, records: list[Record]) -> Iterator[CallEntry]:
    calls = (record for record in records if record.kind == CALL)
    return (CallEntry.from_dict(record.name, timeline.read(record)) for record in calls)


def _traces(timeline: Lineage, effects: list[Effect]) -> list[PutRecord]:
    """Records of kind EFFECT for calls that are removed with their checkpoints."""
    traces = {effect.entry.key: effect.trace(timeline.engine.codec.encode) for effect in effects}
    wrap = timeline.engine.wrap_record
    return [PutRecord(timeline.key, EFFECT, key, wrap(value, EFFECT, key)) for key, value in traces.items()]


def _dead(frames: list[Frame], drop: set[int]) -> set[str]:
    """The ids of removed frames that no remaining frame builds on."""
    alive: set[int] = set()
    for frame in reversed(frames):
        if frame.seq not in drop or frame.seq in alive:
            alive |= {frame.seq, frame.base}
    return {frame.id for frame in frames if frame.seq not in alive}


def _conversations(timeline: Lineage, frames: list[Frame]) -> Iterator[list[Any]]:
    """Conversations that together contain every message of these checkpoints, newest first, without reading every state.

    A run only adds to the conversation that it continues; other writers may have removed messages.
    """
    ids = {frame.seq: frame.id for frame in frames}
    metas = [(frame.base, load_meta(frame.meta)) for frame in frames]
    held = {base for base, meta in metas if meta.parent_id == ids.get(base) and CHOSEN in timeline.about(meta)}
    for frame in reversed(frames):
        if frame.seq not in held:
            yield _messages(timeline, timeline.point(frame.seq, frame).node)
