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
from savegame.messages.states import messages_in
from savegame.model import Frame, Record
from savegame.runs import ledger
from savegame.runs.keys import digest_of
from savegame.runs.ledger import (
    GENERATION,
    LEDGER,
    ROOT,
    CallStatus,
    for_fork,
    generation,
    is_journaled,
    is_settled,
    newest_generation,
    replies_in,
    reply_of,
    stand_ins,
)
from savegame.store import PutRecord, StoreChange
from savegame.timeline import companions
from savegame.timeline.companions import ANSWER, CALL, RUN, SLEPT, STEP
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
        """`Ledger.for_fork`."""
        fork_policy = companions.Way.LEDGER
        kinds = [kind for kind in source.kinds() if companions.policy_of(kind).fork is fork_policy]
        if not kinds:
            return {}
        by_kind = {kind: source.values(kind) for kind in kinds}
        before = {frame.id for frame in source.line(at.seq)} if by_kind.keys() & {STEP, SLEPT} else set()
        wanted = for_fork(by_kind, _messages(source, at.node), before, source.engine.codec.encode)
        return {(kind, name): value for kind, records in wanted.items() for name, value in records.items()}

    def for_rewind(self, timeline: Lineage, frame: Frame, *, rerun_tools: bool) -> Records:
        """`Ledger.for_rewind`: whether to repeat the calls of the newest reply.

        If not, their newest outcomes are used, even if a repetition was once requested but never made.
        """
        if RUN not in timeline.kinds() and not rerun_tools:
            return {}
        markers = timeline.values(RUN)
        messages = _messages(timeline, timeline.point(frame.seq, frame).node)
        reply = reply_of(messages, lambda: str(markers.get(ROOT, "")), timeline.engine.codec.encode)
        if reply is None:
            return {}
        before = generation(markers, reply[1])
        newest = newest_generation(name for name in timeline.values(CALL) if name.startswith(f"{reply[1]}:")) if before else 0
        wanted = before + 1 if rerun_tools else newest
        return {} if wanted == before else {(RUN, GENERATION + reply[1]): wanted or None}

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
            gone = {_reply(record) for record in calls}
            root = str(timeline.values(RUN).get(ROOT, ""))
            for messages in _conversations(timeline, left) if gone else ():
                gone -= {reply for _, reply in replies_in(messages, lambda: root, timeline.engine.codec.encode)}
                if not gone:
                    break
        except CorruptionError as error:
            logger.warning("thread %r keeps its whole ledger: a state that may need it is damaged: %s", timeline.id, error)
            return []
        unneeded = [record for record in calls if _reply(record) in gone] + [step for step, at in steps if at in dead]
        return [PutRecord(timeline.key, record.kind, record.name, None) for record in unneeded]

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


def _messages(timeline: Lineage, node: Node | None, shared: Shared | None = None) -> list[Any]:
    return messages_in(timeline.engine.codec, node, shared)


def _reply(record: Record) -> str:
    """The reply in the key of a call or answer."""
    return record.name.partition(":")[0]


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
