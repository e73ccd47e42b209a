"""Which call is which: the key of a call, what it asks for, and what answers it. Pure; touches domain, errors.

A key is the reply and the index of the call in it, which does not change as the conversation goes on. But conversations can
be edited, so a key alone does not say what was approved or done: an edited call gets its own key, which ends with a digest of
its name and arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import blake3

from savegame.errors import InvalidInputError, InvalidState
from savegame.messages.domain import ToolCall

CALL_KEY: Final = "call_key"
"""The field of a message that answers a call, for its key."""


class KeyParts(NamedTuple):
    """The parts of the key of a call."""

    reply: str
    place: str
    generation: int = 0
    digest: str = ""
    """Of name and arguments, for an edited call."""

    def __str__(self) -> str:
        more = [str(self.generation), self.digest] if self.digest else [str(self.generation)] if self.generation else []
        return ":".join([self.reply, self.place, *more])

    @property
    def slot(self) -> tuple[str, str, str]:
        """The key without the generation: equal for a call and its reruns."""
        return self.reply, self.place, self.digest


_KEY: Final = re.compile(r"([^:]+):([0-9]{1,9})(?::([0-9]{1,9})(?::([0-9a-f]{32}))?)?")


def parts_of(key: Any) -> KeyParts:
    """Parse a key; text that is not a key becomes the `reply`."""
    found = _KEY.fullmatch(key) if isinstance(key, str) else None
    if found is None:
        return KeyParts(str(key), "0")
    reply, place, again, digest = found.groups()
    return KeyParts(reply, place, int(again or 0), digest or "")


def digest_of(name: str, arguments: Any, encode: Callable[[Any], bytes]) -> str:
    """A digest of what a call asks for. The order of dict keys does not matter, the type of each value does."""
    given = arguments if isinstance(arguments, Mapping) else {"": arguments}
    return blake3.blake3(encode([name, _in_order(dict(given), encode)])).hexdigest(length=16)


def _in_order(value: Any, encode: Callable[[Any], bytes]) -> Any:
    if type(value) is dict:
        return {key: _in_order(value[key], encode) for key in sorted(value, key=encode)}
    return type(value)(_in_order(item, encode) for item in value) if type(value) in (list, tuple) else value


class Read(NamedTuple):
    """What a call in a conversation asks for, in any provider's form."""

    name: str
    arguments: Any
    digest: str
    wrong: str | None = None
    """Why the call is unreadable; its arguments are then kept as given."""


def read_call(call: Any, encode: Callable[[Any], bytes]) -> Read:
    """Normalise a call. Never raises: an unreadable call says why in `wrong`."""
    given: Mapping[str, Any] = call if isinstance(call, Mapping) else {}
    try:
        asked = ToolCall.from_dict({"id": "-", "arguments": {}, **given})
        return Read(asked.name, asked.arguments, digest_of(asked.name, asked.arguments, encode))
    except (InvalidInputError, InvalidState) as error:
        inner = given.get("function")
        spelled = {**inner, **given} if isinstance(inner, Mapping) else {"name": inner, **given}
        name, arguments = str(spelled.get("name") or "?"), spelled.get("arguments")
        return Read(name, arguments, digest_of(name, arguments, encode), f"the call cannot be read: {error}")


def keys_for(reply: str, again: int, digests: Sequence[str], known: Mapping[str, str], *, whole: bool) -> list[str]:
    """The key of each call of a reply, given the digests of its calls.

    `known` maps keys to the digests of ledger entries and of earlier versions of the reply. A call has the key of its place,
    unless another call is known there; then the key of an equal call, which was moved; else its own key with its digest.
    `whole`: `known` has every call of the original reply, so a place that it lacks was added later.
    """
    places = [KeyParts(reply, str(index), again) for index in range(len(digests))]
    keys = {index: str(place) for index, place in enumerate(places) if known.get(str(place)) == digests[index]}
    free = [key for key in known if key not in keys.values()]
    for index, place in enumerate(places):
        if index not in keys:
            moved = next((key for key in free if known[key] == digests[index]), None)
            is_new = moved is None and str(place) not in known and not whole
            keys[index] = moved or str(place if is_new else place._replace(digest=digests[index]))
            free = [key for key in free if key != moved]
    return [keys[index] for index in range(len(digests))]


def unanswered(keys: Sequence[str], ids: Sequence[Any], answers: Sequence[Mapping[str, Any]]) -> list[int]:
    """The indices of the calls, with these keys and ids, that no message answers.

    An answer matches by the key that a run gave it, or by the call's id if that key belongs to none of the calls: so an edited
    call with a result in the conversation stays answered.
    """
    slots = [parts_of(key).slot for key in keys]
    given = [parts_of(one.get(CALL_KEY)).slot for one in answers]
    others = {str(one.get("tool_call_id")) for one, slot in zip(answers, given, strict=True) if slot not in slots}
    return [
        place
        for place, (key, slot, call_id) in enumerate(zip(keys, slots, ids, strict=True))
        if slot not in given and str(call_id or key) not in others
    ]


def calls_in(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls of a message; a malformed call becomes an empty dict."""
    return [call if isinstance(call, Mapping) else {} for call in message.get("tool_calls") or ()]
