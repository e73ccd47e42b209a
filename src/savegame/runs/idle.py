"""Which threads that no run holds have something to do: messages came, or a sleep is over.

Threads are found by the kinds of their records, so that the others cost nothing. One that waits for a person is left alone
until that person has answered, or finished an undo. Touches inbox, boundary, ledger, interrupts, messages, timeline and what
is below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from savegame.encoding.frames import load_meta
from savegame.messages.states import messages_in
from savegame.model import ThreadKey, ThreadRow
from savegame.runs import inbox, interrupts
from savegame.runs.boundary import CLOSED, SLEEP
from savegame.runs.lease import is_gone
from savegame.runs.ledger import IGNORED, ROOT, UNDO, CallEntry, reply_of
from savegame.store import Store
from savegame.timeline.companions import ANSWER, CALL, DUE, INBOX, RUN
from savegame.timeline.timeline import Timeline

Reason = Literal["crashed", "mail", "due"]
"""Why a run is stale: its process is gone, messages wait, or its sleep is over."""


class Idle(NamedTuple):
    """What a thread that no run holds has to do, if anything, since when, and when its sleep ends."""

    reason: Reason | None = None
    until: int | None = None
    since: int | None = None


NOTHING = Idle()


def is_held(row: ThreadRow, now: int) -> bool:
    """Whether a run works on a thread."""
    return row.lease is not None and row.lease.expires > now and not is_gone(row.lease.owner)


def candidates(store: Store, namespace: str) -> list[ThreadKey]:
    """The threads that may have something to do."""
    found = {*store.threads_with(namespace, INBOX), *store.threads_with(namespace, DUE)}
    return [ThreadKey(namespace, thread_id) for thread_id in sorted(found)]


def look(thread: Timeline, row: ThreadRow, now: int) -> Idle:
    """What a thread has to do. Raises CorruptionError."""
    if is_held(row, now):
        return NOTHING
    waiting, until = inbox.read(thread), until_of(thread)
    if not waiting.mail and until is None:
        return NOTHING
    point = thread.head()
    status = load_meta(point.meta).status if point.node is not None else "in_progress"
    until = until if status == "in_progress" else None
    reason: Reason | None = None
    since = until
    ignored = _ignored(thread, status, waiting)
    if waiting.newest > ignored:
        reason, since = "mail", next(mail.sent_at for mail in waiting.mail if mail.number > ignored)
    elif until is not None and until <= now:
        reason = "due"
    if reason is not None and (is_undoing(thread) or _needs_person(thread, messages_in(thread.codec, point.node))):
        reason = None
    return Idle(reason, until, since)


def is_undoing(thread: Timeline) -> bool:
    """Whether an undo on a thread is not finished: then no run can go on."""
    return thread.named(RUN, UNDO) is not None


def until_of(thread: Timeline) -> int | None:
    """When the sleep of a thread ends; None if it does not sleep."""
    record = thread.named(DUE, SLEEP)
    return None if record is None else int(thread.read(record)["until"])


def _ignored(thread: Timeline, status: str, waiting: inbox.Inbox) -> int:
    """The newest message that does not reopen a thread: those that waited when it was ended on purpose."""
    if status in CLOSED:
        record = thread.named(RUN, IGNORED)
        return 0 if record is None else int(thread.read(record))
    return waiting.stop.mail if status == "completed" and waiting.stop is not None else 0


def _needs_person(thread: Timeline, messages: Sequence[Any]) -> bool:
    """Whether a call of the newest reply waits for a person, or a graph does."""
    root = thread.named(RUN, ROOT)
    reply = reply_of(messages, lambda: "" if root is None else str(thread.read(root)), thread.codec.encode)
    for record in thread.beginning(CALL, f"{reply[1]}:") if reply is not None and reply[1] else ():
        entry = CallEntry.from_dict(record.name, thread.read(record))
        if entry.needs_person and thread.named(ANSWER, entry.key) is None:
            return True
    return any(entry.needs_person for entry in interrupts.waiting(thread))
