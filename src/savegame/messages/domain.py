"""AgentState, Conversation, Message, Attachment, ToolCall. (Over 500 lines: public types with what they promise.)

Mutable dataclasses that are checked when created, read (`from_dict`, `from_json`) and written (`to_dict`, `to_json`), so that
everything written can be read. An error names the field by its path, `messages[3].role`. A plain dict is accepted wherever a
Message, ToolCall or Attachment is. Times are UTC. The messages for a model (`context_window`, `compact`) are computed from the
stored ones, which do not change; a tool result is included with the message that has its call, or not at all.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Self

from savegame.encoding.plain import (
    Plain,
    checked_count,
    checked_mapping,
    checked_member,
    checked_parts,
    checked_texts,
    checked_time,
    maybe,
)
from savegame.encoding.text import plain_text
from savegame.errors import InvalidInputError
from savegame.messages.blocks import TIED_TO_CALLS, kind_of
from savegame.model import checked_id, checked_text

TITLE_LENGTH: Final = 50
COMPACT_ABOVE: Final = 0.8
"""The share of its budget above which a conversation needs compaction."""
COMPACT_TO: Final = 0.6
"""The share of the budget that compaction aims at, to leave room for new messages."""

_TEXT_FIELDS: Final = frozenset({"type", "text"})

_WORKED_OUT: Final = dt.datetime.min
"""Placeholder for a missing time that follows from the others."""


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class AttachmentType(StrEnum):
    """The type of an attachment."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"
    CODE = "code"


class ToolCallStatus(StrEnum):
    """The status of a tool call."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _new_id() -> str:
    return str(uuid.uuid4())


def _rfc3339(value: dt.datetime) -> str:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _tagged(content: str | bytes) -> str | dict[str, str]:
    return content if isinstance(content, str) else {"base64": base64.b64encode(content).decode()}


@dataclass(slots=True)
class ToolCall(Plain):
    """A tool call of the assistant. A completed call has a result that is not None."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: Any = None
    status: ToolCallStatus = ToolCallStatus.PENDING
    error: str | None = None

    def __post_init__(self) -> None:
        self.id = checked_id(self.id, "id")
        self.name = checked_text(self.name, "name")
        self.arguments = checked_mapping(self.arguments, "arguments")
        self.status = checked_member(ToolCallStatus, self.status, "status")
        self.error = maybe(checked_text, self.error, "error")
        if self.status == ToolCallStatus.COMPLETED and self.result is None:
            raise InvalidInputError("result must not be None when status is completed; use '' for a tool without a result")

    def complete(self, result: Any) -> None:
        """Record the result of the call; not None."""
        if result is None:
            raise InvalidInputError("result must not be None; use '' for a tool without a result")
        self.result, self.error, self.status = result, None, ToolCallStatus.COMPLETED

    def fail(self, error: str) -> None:
        """Record why the call failed."""
        self.error, self.status = checked_text(error, "error"), ToolCallStatus.FAILED

    @classmethod
    def _renamed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        inner = data.get("function")  # some providers nest the name, and send arguments as JSON text
        known = {**data, **inner} if isinstance(inner, Mapping) else dict(data)
        if known.get("name") is None and "tool_name" in known:
            known = _from_record(known)
        if isinstance(text := known.get("arguments"), str):
            try:
                known["arguments"] = json.loads(text or "{}")
            except (ValueError, RecursionError) as error:
                raise InvalidInputError(f"arguments must be a dict or the JSON text of one: {error}") from error
        return {name: value for name, value in known.items() if name not in ("function", "type")}


def _from_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A tool record (`tool_name`, `arguments`, `result`, `success`) with our field names.

    Arguments that are not a JSON object become the single argument `arguments`. Without a result the call is pending.
    """
    known = {"id": record.get("id") or _new_id(), **{name: record[name] for name in record if name not in _OF_RECORDS}}
    success, result, given = record.get("success", True), record.get("result"), record.get("arguments")
    if not isinstance(success, bool):
        raise InvalidInputError(f"success must be True or False, not {success!r}")
    if isinstance(given, str):
        try:
            found = json.loads(given or "{}")
        except (ValueError, RecursionError):
            found = given
        given = found if isinstance(found, dict) else {"arguments": given}
    known |= {"name": record["tool_name"], "arguments": {} if given is None else given}
    if result is None:
        return known
    return known | ({"status": "completed", "result": result} if success else {"status": "failed", "error": result})


_OF_RECORDS: Final = ("id", "name", "tool_name", "arguments", "result", "success")


@dataclass(slots=True)
class Attachment(Plain):
    """A file or link of a message: its content or address. `size` is in bytes, by default that of the content."""

    attachment_type: AttachmentType
    name: str
    mime_type: str
    content: str | bytes | None = None
    url: str | None = None
    size: int | None = None
    id: str = field(default_factory=_new_id)

    _WIRE = {"content": _tagged}  # noqa: RUF012 - a ClassVar of Plain

    def __post_init__(self) -> None:
        self.attachment_type = checked_member(AttachmentType, self.attachment_type, "attachment_type")
        self.name = checked_text(self.name, "name")
        self.mime_type = checked_text(self.mime_type, "mime_type")
        if not isinstance(self.content, bytes):
            self.content = maybe(checked_text, self.content, "content")
        self.url = maybe(checked_text, self.url, "url")
        if self.size is None and self.content is not None:
            self.size = len(self.content if isinstance(self.content, bytes) else self.content.encode())
        self.size = maybe(checked_count, self.size, "size")
        self.id = checked_id(self.id, "id")

    @classmethod
    def _renamed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {"attachment_type": data.get("type"), **data}
        content = known.get("content")
        if isinstance(content, Mapping):
            try:
                known["content"] = base64.b64decode(content.get("base64", content), validate=True)
            except (TypeError, ValueError) as error:
                raise InvalidInputError('content must be text, bytes or {"base64": text}') from error
        return {name: value for name, value in known.items() if name != "type"}


@dataclass(slots=True)
class Message(Plain):
    """One message of a conversation. `content` is text or any other JSON-like value.

    A new message gets the current time. One read without a time has `timestamp` None until it is added to a conversation. A
    tool result names its call in `tool_call_id`.
    """

    role: Role
    content: Any = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    id: str = field(default_factory=_new_id)
    timestamp: dt.datetime | None = field(default_factory=_now)
    tokens: int | None = None
    attachments: list[Attachment] = field(default_factory=list)
    parent_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    _ALWAYS = frozenset({"content"})
    _UNSTATED = {"timestamp": None}  # noqa: RUF012 - a ClassVar of Plain
    _WIRE = {"timestamp": _rfc3339}  # noqa: RUF012 - a ClassVar of Plain

    def __post_init__(self) -> None:
        self.role = checked_member(Role, self.role, "role")
        if isinstance(self.content, str):
            self.content = checked_text(self.content, "content")
        self.tool_calls = checked_parts(ToolCall, self.tool_calls, "tool_calls")
        self.metadata = checked_mapping(self.metadata, "metadata")
        if self.role == Role.TOOL and self.tool_call_id is None:
            self.tool_call_id = self.metadata.get("tool_call_id")
            if self.tool_call_id is None:
                raise InvalidInputError("tool_call_id is missing: a tool result must name the call that it answers")
        self.tool_call_id = maybe(checked_id, self.tool_call_id, "tool_call_id")
        self.id = checked_id(self.id, "id")
        self.timestamp = maybe(checked_time, self.timestamp, "timestamp")
        self.tokens = maybe(checked_count, self.tokens, "tokens")
        self.attachments = checked_parts(Attachment, self.attachments, "attachments")
        self.parent_id = maybe(checked_id, self.parent_id, "parent_id")

    @classmethod
    def of(cls, message: Message | Mapping[str, Any]) -> Message:
        """A message to add, from a Message or a dict; without a time it gets the current time."""
        given = message if isinstance(message, Message) else Message.from_dict(message)
        if given.timestamp is None:
            given.timestamp = _now()
        return given

    @classmethod
    def system(cls, content: Any, **details: Any) -> Self:
        """A system message; `details` are other fields."""
        return cls(Role.SYSTEM, content, **details)

    @classmethod
    def user(cls, content: Any, **details: Any) -> Self:
        """A user message; `details` are other fields."""
        return cls(Role.USER, content, **details)

    @classmethod
    def assistant(cls, content: Any, **details: Any) -> Self:
        """An assistant message; `details` are other fields, such as `tool_calls`."""
        return cls(Role.ASSISTANT, content, **details)

    @classmethod
    def tool_result(cls, tool_call_id: str, content: Any, **details: Any) -> Self:
        """The result of a tool call; the call's id is in the metadata too."""
        metadata = {**details.pop("metadata", {}), "tool_call_id": tool_call_id}
        return cls(Role.TOOL, content, tool_call_id=tool_call_id, metadata=metadata, **details)

    @property
    def text(self) -> str:
        """The readable text: the content if it is text, else its text parts, one per line."""
        parts = self.content if isinstance(self.content, list) else [self.content]
        return "\n".join(text for part in parts if (text := _part_text(part)) is not None)

    @property
    def estimated_tokens(self) -> int:
        """`tokens` if known, else a quarter of the bytes of content and tool calls, plus one.

        Texts count as they are, other values as JSON.
        """
        if self.tokens is not None:
            return self.tokens
        texts = [self.content]
        for call in self.tool_calls:
            texts += [call.name, json_text(call.arguments) if call.arguments else None, call.result]
        return sum(map(_bytes_in, texts)) // 4 + 1

    @classmethod
    def _renamed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if "content" not in data and not data.get("tool_calls") and not data.get("attachments"):
            raise InvalidInputError("content is missing")
        return data


@dataclass(slots=True)
class Conversation(Plain):
    """Messages in order. `max_context_tokens` is the budget for the messages that a model gets.

    `last_message_at` is the time of the newest message, or else that of the conversation.
    """

    agent_id: str | None = None
    messages: list[Message] = field(default_factory=list)
    title: str | None = None
    id: str = field(default_factory=_new_id)
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: dt.datetime = field(default_factory=_now)
    last_message_at: dt.datetime = _WORKED_OUT
    archived: bool = False
    tags: list[str] = field(default_factory=list)
    max_context_tokens: int | None = None
    known: str | None = field(default=None, init=False, compare=False, repr=False)
    """For the vault: the id of the checkpoint that this was read from or saved as. Never written."""

    _ALWAYS = frozenset({"messages"})
    _WIRE = {"created_at": _rfc3339, "last_message_at": _rfc3339}  # noqa: RUF012 - a ClassVar of Plain

    def __post_init__(self) -> None:
        self.agent_id = maybe(checked_id, self.agent_id, "agent_id")
        self.messages = checked_parts(Message, self.messages, "messages")
        self.title = maybe(checked_text, self.title, "title")
        self.id = checked_id(self.id, "id")
        self.metadata = checked_mapping(self.metadata, "metadata")
        self.created_at = checked_time(self.created_at, "created_at")
        said_at = [message.timestamp for message in self.messages if message.timestamp]
        if self.last_message_at is _WORKED_OUT:
            self.last_message_at = max(said_at, default=self.created_at)
        self.last_message_at = max([checked_time(self.last_message_at, "last_message_at"), *said_at])
        if not isinstance(self.archived, bool):
            raise InvalidInputError(f"archived must be True or False, not {self.archived!r}")
        self.tags = checked_texts(self.tags, "tags")
        self.max_context_tokens = maybe(checked_count, self.max_context_tokens, "max_context_tokens")

    def add_message(self, message: Message | Mapping[str, Any]) -> Message:
        """Append a message and return it; without a time it gets the current time."""
        added = Message.of(message)
        assert added.timestamp is not None
        self.last_message_at = max(self.last_message_at, added.timestamp) if self.messages else added.timestamp
        self.messages.append(added)
        return added

    push = add_message

    def with_system_prompt(self, text: str) -> Self:
        """Append a system message. Returns the conversation."""
        self.add_message(Message.system(text))
        return self

    def message_count(self) -> int:
        """Number of messages."""
        return len(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True  # an empty conversation is not a missing one: `load_conversation(id) or Conversation()` must keep it

    def is_empty(self) -> bool:
        """Whether the conversation has no messages."""
        return not self.messages

    def total_tokens(self) -> int:
        """The estimated tokens of all messages."""
        return _tokens(self.messages)

    def last_assistant_content(self) -> Any:
        """The content of the newest assistant message, or None."""
        return next((message.content for message in reversed(self.messages) if message.role == Role.ASSISTANT), None)

    def auto_title(self) -> str | None:
        """Set a missing title from the first user message with text; at most 50 characters."""
        if self.title is None:
            lines = (_one_line(message.text) for message in self.messages if message.role == Role.USER)
            found = next(filter(None, lines), None)
            if found is not None and len(found) > TITLE_LENGTH:
                found = found[: TITLE_LENGTH - 3] + "..."
            self.title = found
        return self.title

    def unanswered_calls(self) -> list[ToolCall]:
        """The calls without a later tool result, in order."""
        waiting: dict[str | None, ToolCall] = {}
        for message in self.messages:
            if message.role == Role.TOOL:
                waiting.pop(message.tool_call_id, None)
            waiting.update((call.id, call) for call in message.tool_calls)
        return list(waiting.values())

    def check_pairing(self) -> None:
        """Raise InvalidInputError if a tool result answers a call that no earlier message makes."""
        for place, call in _answers(self.messages):
            if call is None:
                unknown = self.messages[place].tool_call_id
                raise InvalidInputError(
                    f"messages[{place}].tool_call_id is {unknown!r}, but no earlier message makes that call"
                )

    def context_window(self, budget: int | None = None) -> list[Message]:
        """The messages for a model: the system messages, then the newest others that fit the budget, in order.

        System messages are always included, even over budget. `budget` counts tokens; None means `max_context_tokens`.
        """
        limit = self._limit(budget)
        systems, units = _split(self.messages)
        return systems + _flat(units if limit is None else _newest_within(units, limit - _tokens(systems)))

    def needs_compaction(self, budget: int | None = None) -> bool:
        """Whether the messages take more than 80 % of the budget."""
        limit = self._limit(budget)
        return limit is not None and self.total_tokens() > limit * COMPACT_ABOVE

    def compact(
        self, strategy: str = "sliding_window", *, budget: int | None = None, keep_recent: int = 10, summary: str | None = None
    ) -> list[Message]:
        """The messages of a long conversation for a model; system messages come first and always stay.

        `sliding_window` keeps the newest messages that fit 60 % of the budget, at least the very newest.

        `snip_tool_results` replaces tool calls before the newest `keep_recent` messages by one-line notes of their outcomes.

        `summarize` replaces all messages before the newest `keep_recent` by your `summary`; without one, nothing changes.

        `layered` snips, then summarizes if the result still exceeds 60 % of the budget.
        """
        if strategy not in _STRATEGIES:
            raise InvalidInputError(f"strategy {strategy!r} is unknown; one of: {', '.join(_STRATEGIES)}")
        limit = self._limit(budget)
        target = None if limit is None else int(limit * COMPACT_TO)
        keep = checked_count(keep_recent, "keep_recent")
        return _STRATEGIES[strategy](self.messages, target, keep, maybe(checked_text, summary, "summary"))

    def _limit(self, budget: int | None) -> int | None:
        return self.max_context_tokens if budget is None else checked_count(budget, "budget")

    @classmethod
    def _renamed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if data.get("messages") is None:
            raise InvalidInputError("messages is missing")
        return data


@dataclass(slots=True)
class AgentState(Plain):
    """The state of an agent besides its conversations. `version` counts from 1; only saving increases it."""

    agent_id: str
    name: str
    agent_type: str
    system_prompt: str | None = None
    capabilities: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    custom_state: dict[str, Any] = field(default_factory=dict)
    active_conversations: list[str] = field(default_factory=list)
    created_at: dt.datetime = field(default_factory=_now)
    modified_at: dt.datetime = _WORKED_OUT
    version: int = 1
    metadata: dict[str, Any] = field(default_factory=dict)
    known: str | None = field(default=None, init=False, compare=False, repr=False)
    """For the vault: the version that this was read or saved as. Never written."""

    _ALWAYS = frozenset({"version"})
    _WIRE = {"created_at": _rfc3339, "modified_at": _rfc3339}  # noqa: RUF012 - a ClassVar of Plain

    def __post_init__(self) -> None:
        self.agent_id = checked_id(self.agent_id, "agent_id")
        self.name = checked_text(self.name, "name")
        self.agent_type = checked_text(self.agent_type, "agent_type")
        self.system_prompt = maybe(checked_text, self.system_prompt, "system_prompt")
        self.capabilities = checked_texts(self.capabilities, "capabilities")
        self.config = checked_mapping(self.config, "config")
        self.custom_state = checked_mapping(self.custom_state, "custom_state")
        self.active_conversations = checked_texts(self.active_conversations, "active_conversations", checked_id)
        self.created_at = checked_time(self.created_at, "created_at")
        if self.modified_at is _WORKED_OUT:
            self.modified_at = self.created_at
        self.modified_at = checked_time(self.modified_at, "modified_at")
        self.version = checked_count(self.version, "version", least=1)
        self.metadata = checked_mapping(self.metadata, "metadata")

    def touch(self) -> None:
        """Set `modified_at` to now."""
        self.modified_at = _now()

    def set_state(self, key: str, value: Any) -> None:
        """Set a value of the agent's own state."""
        self.custom_state[checked_text(key, "key")] = value
        self.touch()

    def get_state(self, key: str) -> Any:
        """A value of the agent's own state, or None."""
        return self.custom_state.get(key)


def plain_messages(messages: list[Any]) -> list[Any]:
    """The messages of a state as plain data, even for a program that registers Message and loads objects."""
    return [message.to_dict() if isinstance(message, Message) else message for message in messages]


# -- what a model is shown -------------------------------------------------------------------------

Unit = list[Message]
"""Messages that belong together: a call, its results, and the messages between them."""


def _answers(messages: Sequence[Message]) -> Iterator[tuple[int, int | None]]:
    """The place of each tool result, and that of the message with its call; None if no earlier one has it."""
    holders: dict[str | None, int] = {}
    for place, message in enumerate(messages):
        if message.role == Role.TOOL:
            yield place, holders.get(message.tool_call_id)
        holders.update((call.id, place) for call in message.tool_calls)


def _split(messages: Sequence[Message]) -> tuple[list[Message], list[Unit]]:
    """The system messages, and the others in units, without tool results whose call is missing."""
    orphans = {place for place, call in _answers(messages) if call is None}
    others = [m for place, m in enumerate(messages) if m.role != Role.SYSTEM and place not in orphans]
    return [m for m in messages if m.role == Role.SYSTEM], _units(others)


def _units(messages: Sequence[Message]) -> list[Unit]:
    joined: set[int] = set()
    for place, call in _answers(messages):
        joined.update(() if call is None else range(call + 1, place + 1))
    units: list[Unit] = []
    for place, message in enumerate(messages):
        if place in joined:
            units[-1].append(message)
        else:
            units.append([message])
    return units


def _flat(units: Iterable[Unit]) -> list[Message]:
    return [message for unit in units for message in unit]


def _tokens(messages: Iterable[Message]) -> int:
    return sum(message.estimated_tokens for message in messages)


def _newest_within(units: list[Unit], room: int) -> list[Unit]:
    """The newest units that fit; stops at the first that does not, so that there are no gaps."""
    first = len(units)
    while first and (room := room - _tokens(units[first - 1])) >= 0:
        first -= 1
    return units[first:]


def _first_recent(units: list[Unit], keep: int) -> int:
    """The index of the first unit of the newest `keep` messages."""
    first, count = len(units), 0
    while first and count < keep:
        first -= 1
        count += len(units[first])
    return first


def _sliding_window(messages: list[Message], target: int | None, _keep: int, _summary: str | None) -> list[Message]:
    systems, units = _split(messages)
    if target is not None:
        units = _newest_within(units, target - _tokens(systems)) or units[-1:]
    return systems + _flat(units)


def _snip_tool_results(messages: list[Message], _target: int | None, keep: int, _summary: str | None) -> list[Message]:
    systems, units = _split(messages)
    first = _first_recent(units, keep)
    return systems + _flat([*map(_snipped, units[:first]), *units[first:]])


def _summarize(messages: list[Message], _target: int | None, keep: int, summary: str | None) -> list[Message]:
    systems, units = _split(messages)
    first = _first_recent(units, keep)
    if summary is None or not first:
        return systems + _flat(units)
    return [*systems, Message.system(f"[conversation summary]: {summary}"), *_flat(units[first:])]


def _layered(messages: list[Message], target: int | None, keep: int, summary: str | None) -> list[Message]:
    snipped = _snip_tool_results(messages, target, keep, summary)
    if summary is None or target is None or _tokens(snipped) <= target:
        return snipped
    return _summarize(messages, target, keep, summary)


_STRATEGIES: Final[Mapping[str, Callable[[list[Message], int | None, int, str | None], list[Message]]]] = {
    "sliding_window": _sliding_window,
    "snip_tool_results": _snip_tool_results,
    "summarize": _summarize,
    "layered": _layered,
}


def _snipped(unit: Unit) -> Unit:
    """A unit without its calls, with a note for each result; unchanged while a call is unanswered."""
    calls: dict[str | None, ToolCall] = {call.id: call for message in unit for call in message.tool_calls}
    if not calls.keys() <= {message.tool_call_id for message in unit}:
        return unit
    return [_without_calls(message, calls) for message in unit if not message.tool_calls or _says_something(message)]


def _without_calls(message: Message, calls: Mapping[str | None, ToolCall]) -> Message:
    if message.role == Role.TOOL:
        call = calls.get(message.tool_call_id)  # None if a system message makes it, which is kept apart
        failed = message.metadata.get("is_error") or (call is not None and call.status == ToolCallStatus.FAILED)
        note = f"[tool {'result' if call is None else call.name}: {'failed' if failed else 'ok'}]"
        return Message.system(note, id=message.id, timestamp=message.timestamp)
    return replace(message, tool_calls=[], tokens=None) if message.tool_calls else message


def _part_text(part: Any) -> str | None:
    """The text of one part of a content, if it has one."""
    if isinstance(part, Mapping) and part.get("type", "text") == "text":
        part = part.get("text")
    return part if isinstance(part, str) else None


def _says_something(message: Message) -> bool:
    """Whether a message has content besides its calls."""
    parts = message.content if isinstance(message.content, list) else [message.content]
    others = [part for part in parts if part is not None and _part_text(part) is None and not _is_of_calls(part)]
    return bool(message.text or others or message.attachments)


def _is_of_calls(part: Any) -> bool:
    return kind_of(part) in TIED_TO_CALLS


def json_text(value: Any) -> str:
    """A value as text for a model: JSON if possible."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # keys or numbers that JSON lacks, or nested too deeply
        return plain_text(value)


def _bytes_in(value: Any) -> int:
    """The size of texts and pure text parts, plus that of everything else as JSON."""
    if value is None:
        return 0
    texts: list[str] = []
    others: list[Any] = []
    for part in value if isinstance(value, list) else [value]:
        text = _part_text(part) if not isinstance(part, Mapping) or part.keys() <= _TEXT_FIELDS else None
        if text is None:
            others.append(part)
        else:
            texts.append(text)
    if others:
        texts.append(json_text(others if isinstance(value, list) else value))
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)


def _one_line(text: str) -> str:
    return " ".join(line for part in text.splitlines() if (line := part.strip()))
