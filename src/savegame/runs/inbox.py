"""The inbox of a thread: messages that wait until a run takes them in, and the request to stop the run that works now.

Each is a record beside the thread, so that leaving one there needs no lease. The name of a message is its number: the
time in microseconds, or one more than the number before it, so that the order survives clocks that jump. Every key that was
ever sent has a record of its own, which makes each count once. Touches ledger, messages, timeline and what is below them.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from savegame.encoding.tree import Dict, Node, child_of, count_of, open_node
from savegame.errors import AlreadyExistsError, InvalidInputError
from savegame.messages.domain import Message, Role
from savegame.messages.states import messages_in, no_conversation
from savegame.runs.ledger import INPUT_KEY
from savegame.store import Expect
from savegame.timeline.companions import INBOX, SENT
from savegame.timeline.timeline import Timeline
from savegame.waiting.retrying import TRIES, gave_up, retried

STOP: Final = "stop"
"""The name of the record that asks a run to stop; the names of messages are digits."""


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message that no run has taken in yet. `key` is the one it was sent with, or a random one."""

    key: str
    content: Any
    sent_at: dt.datetime


class Mail(NamedTuple):
    """A message in an inbox, by its number."""

    number: int
    key: str
    content: Any
    sent_at: int


class StopRequest(NamedTuple):
    """Asks the run with an epoch to stop. `mail` is the number of the newest message at that moment, 0 for none."""

    epoch: int
    reason: str
    mail: int


class Inbox(NamedTuple):
    """What is in an inbox, and the names of all its records."""

    mail: list[Mail]
    stop: StopRequest | None
    names: frozenset[str]

    @property
    def newest(self) -> int:
        """The number of the newest message; 0 if there is none."""
        return self.mail[-1].number if self.mail else 0


def time_of(clock_us: int) -> dt.datetime:
    """The time of a store's clock as a datetime."""
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=clock_us)


def user_message(content: Any) -> dict[str, Any]:
    """A user's or system's message from its content, or from a whole one. Raises InvalidInputError for other roles."""
    message = content if isinstance(content, (Mapping, Message)) else {"role": "user", "content": content}
    given = Message.of(message)
    if given.role in (Role.ASSISTANT, Role.TOOL):
        raise InvalidInputError(f"only run.model() and run.tools() add {given.role} messages; add those of users")
    return given.to_dict()


def read(thread: Timeline) -> Inbox:
    """What waits in the inbox of a thread, in order."""
    mail: list[Mail] = []
    stop: StopRequest | None = None
    names: list[str] = []
    for record in thread.records(INBOX):
        names.append(record.name)
        value = thread.read(record)
        if record.name == STOP:
            stop = StopRequest(value["epoch"], value["reason"], value["mail"])
        elif record.name.isdecimal():
            mail.append(Mail(int(record.name), value["key"], value["content"], value["sent_at"]))
    return Inbox(mail, stop, frozenset(names))


def read_stop(thread: Timeline) -> StopRequest | None:
    """The request to stop a run, without reading messages."""
    record = thread.named(INBOX, STOP)
    value = None if record is None else thread.read(record)
    return None if value is None else StopRequest(value["epoch"], value["reason"], value["mail"])


def number_name(number: int) -> str:
    """The name of the record of a message: such names are in the order of their numbers."""
    return f"{number:020d}"


def messages(thread: Timeline) -> Iterator[InboxMessage]:
    """`Vault.inbox`."""
    return iter([InboxMessage(mail.key, mail.content, time_of(mail.sent_at)) for mail in read(thread).mail])


def send(thread: Timeline, content: Any, key: str | None) -> bool:
    """`Vault.send`. Expects nothing of the thread, so that no run and no other sender stands in the way."""
    plain = user_message(content)
    stored = plain if isinstance(content, (Mapping, Message)) else content
    if not _is_new(thread, key):
        return False
    sent_at = thread.store.clock()
    value = {"key": os.urandom(16).hex() if key is None else key, "content": stored, "sent_at": sent_at}
    number = sent_at
    for _ in range(TRIES):
        number = max(number, _newest(thread, number) + 1)
        changes = [thread.put(INBOX, number_name(number), value, absent=True)]
        changes += [] if key is None else [thread.put(SENT, key, True, absent=True)]  # noqa: FBT003 - its value
        try:
            thread.commit(changes)
        except AlreadyExistsError as error:  # another sender took the number, or sent the same message
            last = error
            if key is not None and thread.named(SENT, key) is not None:
                return False
        else:
            return True
    raise gave_up(last, TRIES) from last


def _newest(thread: Timeline, number: int) -> int:
    """The number of the newest message from a number on; 0 if there is none."""
    after = number_name(number - 1)
    found = 0
    while True:
        page = thread.store.records(thread.key, INBOX, after=after)
        found = max([found, *(int(record.name) for record in page.items if record.name.isdecimal())])
        if page.next is None:
            return found
        after = page.next


def _is_new(thread: Timeline, key: str | None) -> bool:
    """Whether a key was never sent and is not on the head's line. Raises InvalidInputError if it holds no conversation."""
    if key is not None and thread.named(SENT, key) is not None:
        return False
    node = thread.head().node
    if node is not None and not _may_hold_messages(node):
        raise no_conversation(thread.id)
    return key is None or not any(one.get(INPUT_KEY) == key for one in messages_in(thread.codec, node) if type(one) is dict)


def _may_hold_messages(node: Node) -> bool:
    found = child_of(node, "messages")
    return isinstance(open_node(node), Dict) if found is None else count_of(found) is not None


def unsend(thread: Timeline, key: str) -> bool:
    """`Vault.unsend`."""

    def attempt() -> bool:
        found = read(thread)
        gone = [number_name(mail.number) for mail in found.mail if mail.key == key]
        if not gone:
            return False
        same = Expect(thread.key, kind=INBOX, names=found.names)
        thread.commit([same, *(thread.put(INBOX, name, None) for name in gone)])
        return True

    return retried(attempt)
