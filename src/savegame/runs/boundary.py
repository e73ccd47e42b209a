"""What a run does between two pieces of work: messages are taken in, a stop is obeyed, a sleep begins or ends.

Messages and their leaving the inbox are one commit, and so is everything that a stop changes. While a call of the newest reply
has no answer, messages wait: the stored conversation is valid for providers at every moment. Touches conversation, inbox,
ledger, timeline and what is below them.
"""

from __future__ import annotations

import datetime as dt
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NoReturn, TypeVar

from savegame.checkpoint import Checkpoint
from savegame.details import Details
from savegame.errors import ConflictError, InvalidInputError, Paused, Stopped
from savegame.model import Kind, Status
from savegame.runs import inbox
from savegame.runs.conversation import RunConversation
from savegame.runs.inbox import Inbox, Mail, StopRequest, number_name, time_of, user_message
from savegame.runs.ledger import IGNORED, INPUT_KEY
from savegame.store import Expect, PutRecord, StoreChange
from savegame.timeline.companions import DUE, INBOX, RUN, SLEPT
from savegame.waiting.retrying import PLANS, retried

logger = logging.getLogger("savegame")

T = TypeVar("T")

OVER: Final = ("completed", "halted", "failed")
"""The statuses of threads that nothing is left to do in."""

CLOSED: Final = ("halted", "failed")
"""Those that only a later message reopens."""

SLEEP: Final = "sleep"
"""The name of the one record of kind DUE."""

_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)
_LAST: Final = dt.datetime.max.replace(tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


class RunBoundary(RunConversation):
    """A conversation under a lease that hears of the world: its inbox, a stop, and the time."""

    @cached_property
    def _asleep(self) -> dict[str, Any] | None:
        """The sleep that has not ended yet: only the holder of the lease changes it."""
        record = self._thread.named(DUE, SLEEP)
        return None if record is None else dict(self._thread.read(record))

    @abstractmethod
    def _waits_for_tools(self) -> bool:
        """Whether a call of the newest reply has no answer."""

    @abstractmethod
    def _save_stop(self, reason: str, beside: Sequence[StoreChange]) -> Checkpoint:
        """Answer the calls that were not begun and halt the thread, with other changes, in one commit."""

    # -- messages ----------------------------------------------------------------------------------

    def enter(self) -> None:
        """Begin: end a sleep that is over, and take in messages. A stop of an earlier run counts no more."""
        if self._asleep is not None and self._asleep["until"] <= self._thread.store.clock():
            self._wake()
        self.look()

    def look(self) -> int:
        """Take in what waits in the inbox; returns the number of messages. Raises Stopped if this run was stopped."""
        self.check()
        return self._if_quiet(self._take_in) or 0

    def _if_quiet(self, work: Callable[[], T]) -> T | None:
        """The result of something that expects the inbox as it was read; None if others keep writing to it."""
        try:
            return retried(work, tries=PLANS)
        except ConflictError as error:
            if type(error) is not ConflictError:
                raise
            logger.info("thread %r: messages come too quickly to be taken in now: %s", self._thread.id, error)
            return None

    def _take_in(self, *, falls_asleep: str | None = None) -> int:
        found = inbox.read(self._thread)
        if self._is_mine(found.stop):
            self.obey(found)
        mail = self._ready(found)
        old = [] if found.stop is None else [inbox.STOP]
        if not mail and not old:
            return 0
        new = self._unknown_messages(mail)
        changes = self._out_of_inbox(found, [*old, *(number_name(one.number) for one in mail)])
        if new:
            self._append_user(new, changes, falls_asleep)
        else:
            self._commit(changes)
        return len(new)

    def _append_user(
        self, messages: Sequence[dict[str, Any]], beside: Sequence[StoreChange] = (), falls_asleep: str | None = None
    ) -> None:
        """Add messages of users, which end a sleep."""
        changes = [*beside, *self._waking(falls_asleep)]
        self._append_all(messages, changes, kind=Kind.MANUAL, status="in_progress")
        self._asleep = None

    def _ready(self, found: Inbox) -> list[Mail]:
        """The messages to take in now: none while calls have no answer, or if all are older than the end of the run."""
        if not found.mail or self._waits_for_tools():
            return []
        is_ended = str.__str__(self.status) in CLOSED
        return [] if is_ended and found.newest <= int(self._noted.get(IGNORED, 0)) else found.mail

    def _unknown_messages(self, mail: Sequence[Mail]) -> list[dict[str, Any]]:
        """The messages whose keys are not in the conversation yet."""
        known = {one.get(INPUT_KEY) for one in self.messages}
        new: dict[str, dict[str, Any]] = {}
        for one in mail:
            if one.key not in known and one.key not in new:
                sent = {} if isinstance(one.content, Mapping) else {"timestamp": time_of(one.sent_at)}
                new[one.key] = user_message(one.content) | sent | {INPUT_KEY: one.key}
        return list(new.values())

    def _out_of_inbox(self, found: Inbox, names: Sequence[str]) -> list[StoreChange]:
        """Remove records from the inbox if it is still as it was found: a message may have been taken back."""
        return [
            Expect(self._thread.key, kind=INBOX, names=found.names),
            *(self._record(INBOX, name, None) for name in names),
        ]

    def user(self, content: Any, key: str | None) -> bool:
        """Add a user message, after those that wait. Returns False if its key is already in the conversation or waits."""
        message = user_message(content)
        if key is not None:
            if any(one.get(INPUT_KEY) == key for one in self.messages):
                return False
            message[INPUT_KEY] = key
        added = self._if_quiet(partial(self._add, message, key))
        if added is None:
            self._append_user([message])
        return added is not False

    def _add(self, message: dict[str, Any], key: str | None) -> bool:
        found = inbox.read(self._thread)
        if key is not None and any(one.key == key for one in found.mail):
            self.look()
            return False
        mail = [] if self._waits_for_tools() else found.mail  # this message reopens the thread for all of them
        changes = self._out_of_inbox(found, [number_name(one.number) for one in mail]) if mail else []
        self._append_user([*self._unknown_messages(mail), message], changes)
        return True

    # -- stopping ----------------------------------------------------------------------------------

    def is_stopped(self) -> bool:
        """Whether this run was asked to stop. Changes nothing, so that any thread may call it."""
        return self._is_mine(inbox.read_stop(self._thread))

    def _is_mine(self, stop: StopRequest | None) -> bool:
        return stop is not None and stop.epoch == self._hold.epoch

    def obey(self, found: Inbox) -> NoReturn:
        """Halt the thread, unless it has ended by itself, and raise Stopped."""
        assert found.stop is not None
        reason = found.stop.reason
        if str.__str__(self.status) in OVER:
            self._commit([self._record(INBOX, inbox.STOP, None)])
        else:
            self.stop(reason, found)
        raise Stopped(f"thread {self._thread.id!r}: the run was stopped: {reason}", reason=reason)

    def stop(self, reason: str, found: Inbox | None = None) -> None:
        """Halt the thread: in one commit with the answers to calls that were not begun."""
        found = found or inbox.read(self._thread)
        old = [] if found.stop is None else [self._record(INBOX, inbox.STOP, None)]
        self._save_stop(reason, [*old, *self._ending(found)])
        self._ended(found)

    def save(self, label: str | None, status: Status | None, resume_hint: str | None = None) -> Checkpoint:
        """Save a checkpoint; a status that ends the run ends its sleep, and messages that wait do not reopen it."""
        if status is None or str.__str__(status) not in CLOSED:
            return super().save(label, status, resume_hint)
        found = inbox.read(self._thread)
        checkpoint = self._save(Details(label=label, status=status, resume_hint=resume_hint), self._ending(found))
        self._ended(found)
        return checkpoint

    def _ending(self, found: Inbox) -> list[PutRecord]:
        """What goes along with the end of a run: it is remembered which messages waited, and there is no sleep any more."""
        ignored = [self._record(RUN, IGNORED, found.newest)] if found.mail else []
        return [*ignored, *([] if self._asleep is None else [self._record(DUE, SLEEP, None)])]

    def _ended(self, found: Inbox) -> None:
        self._asleep = None
        if found.mail:
            self._noted[IGNORED] = found.newest

    # -- sleeping ----------------------------------------------------------------------------------

    def sleep(self, name: str, duration: dt.timedelta | None, when: dt.datetime | None = None) -> None:
        """Return if this sleep is over, or a message ends it. Otherwise record it, release the lease and raise Paused."""
        self.check()
        if self._thread.named(SLEPT, name) is not None:
            return
        if self._if_quiet(partial(self._take_in, falls_asleep=name)) or self._is_over(name):
            return
        now = self._thread.store.clock()
        due = self._asleep
        if due is None or due["name"] != name:
            due = {"until": _moment(now, duration, when), "name": name}
            if due["until"] <= now:
                return
            self._commit([self._record(DUE, SLEEP, due)])
            self._asleep = due
        until = due["until"]
        self._hold.release()
        raise Paused(f"thread {self._thread.id!r} sleeps until {time_of(until).isoformat()} ({name})", until=time_of(until))

    def _is_over(self, name: str) -> bool:
        """Whether the sleep with a name that was begun before ends now: it is due, or messages wait for tools."""
        if self._asleep is None or self._asleep["name"] != name:
            return False
        is_due = self._asleep["until"] <= self._thread.store.clock()
        if is_due or inbox.read(self._thread).mail:
            self._wake()
            return True
        return False

    def _wake(self) -> None:
        self._commit(self._waking())
        self._asleep = None

    def _waking(self, falls_asleep: str | None = None) -> list[PutRecord]:
        """The changes that end a sleep, and keep the one from beginning whose name is given."""
        at = None if self.checkpoint is None else self.checkpoint.id
        names = [] if self._asleep is None else [self._asleep["name"]]
        names += [falls_asleep] if falls_asleep is not None and falls_asleep not in names else []
        gone = [] if self._asleep is None else [self._record(DUE, SLEEP, None)]
        return [*gone, *(self._record(SLEPT, name, {"value": True, "at": at}) for name in names)]


def _moment(now: int, duration: dt.timedelta | None, when: dt.datetime | None) -> int:
    """When a sleep ends, by the store's clock."""
    until = now + duration // _MICROSECOND if duration is not None else 0
    until = until if when is None else (when - _EPOCH) // _MICROSECOND
    if until > (_LAST - _EPOCH) // _MICROSECOND:
        raise InvalidInputError(f"a sleep of {duration} would end after the year 9999")
    return until


def checked_moment(when: object) -> dt.datetime:
    """A datetime with a zone. Raises InvalidInputError."""
    if not isinstance(when, dt.datetime) or when.tzinfo is None:
        raise InvalidInputError(
            f"a time needs a zone, for example datetime.now(timezone.utc) + timedelta(days=1), not {when!r}"
        )
    return when


def checked_pause(duration: object) -> dt.timedelta:
    """A timedelta, which may be negative. Raises InvalidInputError."""
    if not isinstance(duration, dt.timedelta):
        raise InvalidInputError(f"a duration is a timedelta, for example timedelta(hours=6), not {duration!r}")
    return duration
