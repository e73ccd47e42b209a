"""Agents that want the same again whenever somebody goes back, a world in which their effects are counted, and what must hold.

What is allowed is worked out here from the promises alone (docs/guides/going-back.md), with nothing but the tools' own notes,
the conversations and what people said; ledgers are not read for it. The words: an *intention* is a call in a reply that was
saved. The *line* of a thread is its conversation at the head. A thread *knows* of an effect if it made it, or came from a
thread that knew of it by then. A *permission* is an answer True, or a rewind with rerun_tools.

    Of equal effects that a thread knows of, not undone and made without permission, there are never more
    than intentions on its line, at the moment when one of them is made there. What was undone may be made again.

Because each effect on a line that was left stands for one intention on this one, k left effects and n intentions make
max(k, n) effects if nobody says anything.
"""

from __future__ import annotations

import copy
import datetime as dt
import itertools
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from addresses import placeholder

from savegame import Toolbox, Vault
from savegame.store import Capability
from savegame.testing.provider import check_messages

Same = tuple[str, int]
"""What makes two calls equal: the tool and the item; a text beside it is new each time."""
Place = tuple[str, str]
"""A vault and a thread in it."""

FREE: Final = frozenset({"look", "coupon", "ping"})
"""Those that may repeat as they like: it only reads, has a key function of its own, is marked repeat="run"."""
AT_MOST_ONCE: Final = frozenset({"mail", "ship", "wire", "burn", "keep"})
TABLES: Final = ("done", "taken")
"""Where the transaction tool has its effects, and those that were taken back."""


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Story:
    """What one thread knows, as the promises say."""

    known: dict[Hashable, Same] = field(default_factory=dict)
    """Effects by what tells them apart; also those that an open call of the source, when this was forked, may have or get."""
    permitted: set[Hashable] = field(default_factory=set)
    undone: set[Hashable] = field(default_factory=set)
    asked: dict[str, Same] = field(default_factory=dict)
    """Every intention on any of its lines, by its key."""
    line: dict[str, Same] = field(default_factory=dict)
    """Those on the line of the head."""
    answered: set[str] = field(default_factory=set)
    excused: Counter[Same] = field(default_factory=Counter)
    """Effects that may be repeated because of rerun_tools."""
    allowed: set[str] = field(default_factory=set)
    """Keys of calls that a person let run."""
    closed: set[str] = field(default_factory=set)
    """Keys of calls that a person refused, or answered with the kept result."""
    spoken: set[str] = field(default_factory=set)
    """Keys of calls that a person let run, or not, where this came from."""
    unsure: bool = False
    """Whether it was forked while an undo of the source was not at its end: what that has done is not written down yet."""
    presumed: set[str] = field(default_factory=set)
    """Keys of calls that were open where this was forked."""
    inherited: set[Hashable] = field(default_factory=set)
    """Effects that it knew of when it was forked: a new conversation in it, after a restore, is not about them."""

    def born(self) -> Story:
        """The story of a fork or copy: it knows the same, and nobody has said anything there."""
        spoken = self.spoken | self.allowed | self.closed
        return replace(copy.deepcopy(self), allowed=set(), closed=set(), spoken=spoken)

    def see(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Look at the conversation of the head; empty, it is another one than the source's."""
        if not messages:
            self.known = {token: same for token, same in self.known.items() if token not in self.inherited}
        self.line = dict(intentions(messages))
        self.asked |= self.line
        self.answered |= answered(messages)

    def enter(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Look at it as a model does, to whom a call without an answer is shown with one."""
        self.line = dict(intentions(messages))
        self.asked |= self.line

    def counts(self, token: Hashable) -> bool:
        """Whether an effect is one that nobody has agreed to: of an open call, until somebody has said something about it."""
        if isinstance(token, tuple) and token[0] == "open":
            return token[1] not in self.allowed | self.closed | self.spoken
        return token not in self.undone and token not in self.permitted

    def left(self, same: Same) -> int:
        """How many effects of another line may be there for an intention on this one to stand for."""
        gone = {base(token) for token in self.undone} - {base(token) for token in self.known if token not in self.undone}
        elsewhere = {key for key, one in self.asked.items() if one == same and key not in self.line and key not in gone}
        again = {token for token, one in self.known.items() if one == same and token not in self.undone}
        return len(elsewhere) + len(self.presumed) + (len(again) > sum(one == same for one in self.line.values()))


def intentions(messages: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, Same]]:
    for message in messages:
        for index, call in enumerate(message.get("tool_calls") or ()):
            yield f"{message['id']}:{index}", (call["name"], call["arguments"]["item"])


def answered(messages: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys of the intentions with an answer in a conversation."""
    found, keys = set(), {}
    for message in messages:
        for index, call in enumerate(message.get("tool_calls") or ()):
            keys[call["id"]] = f"{message['id']}:{index}"
        if message["role"] == "tool" and message["tool_call_id"] in keys:
            found.add(keys[message["tool_call_id"]])
    return found


def base(token: Hashable) -> str:
    """The key of the intention behind an effect: that of a repetition has more behind it."""
    key = token[-1] if isinstance(token, tuple) else token
    return ":".join(str(key).split(":")[:2])


@dataclass(frozen=True)
class Effect:
    serial: int
    place: Place
    key: str
    same: Same
    token: Hashable
    at: dt.datetime


class World:
    """Everything that happened outside of the vaults."""

    def __init__(self, *, free: frozenset[str] = FREE) -> None:
        self.free = free
        self.stories: dict[Place, Story] = {}
        self.effects: list[Effect] = []
        self.begun: list[int] = []
        """The effects in the order in which they were begun; an idempotent one, each time."""
        self.invoked: Counter[tuple[Place, str, str]] = Counter()
        self.taken: list[tuple[Place, int, str]] = []
        """What was taken back: where, the effect, and under which key."""
        self.wrong: list[str] = []
        """Every broken promise."""
        self.fuse = 0
        """The process ends at this moment from now; 0 for never."""
        self.undo_fails = 0
        """How often the next functions that take back raise."""
        self.unsure: set[str] = set()
        """Vaults in which transactions may have been rolled back."""
        self.aim = self.variant = 0
        self._fresh = itertools.count(1)

    def moment(self, name: str = "") -> None:
        """A moment at which a process may end. A lease is held by this one: nobody could take it over before its time."""
        if self.fuse and not name.endswith(("lease", "renewal")):
            self.fuse -= 1
            if not self.fuse:
                raise Crash(name)

    def story(self, place: Place) -> Story:
        return self.stories.setdefault(place, Story())

    # -- the model ---------------------------------------------------------------------------------

    def model(self, place: Place, messages: list[dict[str, Any]]) -> Any:
        """The same intentions at the same point of any line, with fresh ids and texts."""
        check_messages(messages)
        self.moment("in the model")
        said = sum(message["role"] == "assistant" for message in messages)
        script = random.Random(f"{self.aim} {self.variant} {said}")
        if said % 4 == 3:
            return f"That was part {said}."
        names = [name for name in TOOLS if name != "note" or self.has_transactions]
        calls = [self._call(script.choice(names), script.randrange(2)) for _ in range(script.choice((1, 1, 2, 3)))]
        return {"role": "assistant", "content": f"part {said}", "tool_calls": calls}

    has_transactions = True

    def _call(self, name: str, item: int) -> dict[str, Any]:
        number = next(self._fresh)
        more = {"text": f"text {number}"} if name in WITH_TEXT else {}
        return {"id": f"c{number}", "name": name, "arguments": {"item": item, **more}}

    # -- effects -----------------------------------------------------------------------------------

    def take_effect(self, place: Place, call: Any, item: int) -> dict[str, int]:
        """What a tool does."""
        self.invoked[place, call.name, call.key] += 1
        if call.name in AT_MOST_ONCE and self.invoked[place, call.name, call.key] > 1:
            self.wrong.append(f"{call.name} was called again with its key {call.key} in {place}")
        self.moment(f"before the effect of {call.name}")
        same, story = (call.name, item), self.story(place)
        token: Hashable = call.key if call.name == "pay" else (place, call.key)
        known = next((one for one in self.effects if one.token == token), None)
        if known is None or call.name != "pay":
            known = Effect(len(self.effects) + 1, place, call.key, same, token, dt.datetime.now(dt.UTC))
            self.effects.append(known)
        self.begun.append(known.serial)
        self._check(story, known)
        self.moment(f"after the effect of {call.name}")
        return {"effect": known.serial}

    def _check(self, story: Story, effect: Effect) -> None:
        if base(effect.key) in {base(key) for key in story.closed} and effect.key in story.closed:
            self.wrong.append(f"{effect} was refused, or answered with the kept result")
        is_new = effect.token not in story.known
        story.known[effect.token] = effect.same
        if effect.key in story.allowed:
            story.permitted.add(effect.token)
        if effect.same[0] in self.free or not is_new or effect.token in story.permitted:
            return
        if effect.same[0] == "wire":
            self.wrong.append(f"{effect}: nobody agreed")
        silent = [token for token, same in story.known.items() if same == effect.same and story.counts(token)]
        wanted = sum(same == effect.same for same in story.line.values())
        again = sum(story.known.get(token) == effect.same for token in story.permitted & story.undone)
        if len(silent) > wanted + again + story.excused[effect.same]:
            self.wrong.append(f"{effect}: made {len(silent)} times ({silent}) for {wanted} intentions on its line")

    def compare(self, vault: Vault, label: str) -> None:
        """Look which effects of transactions in a vault are there. The others were rolled back."""
        if label not in self.unsure:
            return
        self.unsure.discard(label)
        done, taken = rows(vault)
        self.wrong += [f"effect {serial} has {times} rows" for serial, times in done.items() if times > 1]
        self.wrong += [f"effect {serial} was taken back {times} times" for serial, times in taken.items() if times > 1]
        for effect in [one for one in self.effects if one.same[0] == "note" and one.place[0] == label]:
            if effect.serial not in done:
                self.effects[effect.serial - 1] = replace(effect, same=("", 0), token=effect.serial)
                for story in self.stories.values():
                    story.known.pop(effect.token, None)
                    story.permitted.discard(effect.token)
                self.invoked[effect.place, "note", effect.key] -= 1
        for one in [one for one in self.taken if one[0][0] == label and self.effects[one[1] - 1].same[0] == "note"]:
            if one[1] not in taken:
                self.taken.remove(one)
                self.story(one[0]).undone.discard(self.effects[one[1] - 1].token)

    # -- taking back -------------------------------------------------------------------------------

    def take_back(self, place: Place, call: Any, result: dict[str, int]) -> str:
        """What the undo= of a tool does."""
        self.moment("before it is taken back")
        if self.undo_fails:
            self.undo_fails -= 1
            raise ConnectionError("not now")
        effect, story = self.effects[result["effect"] - 1], self.story(place)
        before = {key for where, serial, key in self.taken if (where, serial) == (place, effect.serial)}
        again = call.key in before and effect.same[0] == "pay"
        if effect.token in story.undone and not again:
            self.wrong.append(f"{effect} was taken back again in {place}, as {call.key} after {before}")
        if effect.token not in story.known:
            self.wrong.append(f"{effect} was taken back in {place}, which does not know of it")
        self.taken.append((place, effect.serial, call.key))
        story.undone.add(effect.token)
        self.moment("after it was taken back")
        return "taken back"


WITH_TEXT: Final = frozenset({"mail", "keep", "wire"})
TOOLS: Final = ("look", "pay", "pay", "coupon", "mail", "mail", "ship", "ship", "wire", "keep", "ping", "burn", "note")


def toolbox(world: World, vault: Vault, place: Place, **everywhere: Any) -> Toolbox:
    """A tool of each kind. `everywhere` is passed for each of them, instead of what they say of repeating."""
    tools = Toolbox()

    def look(item: int) -> int:
        return item

    def act(call: Any, item: int) -> Any:
        return world.take_effect(place, call, item)

    def write(call: Any, item: int, text: str) -> Any:
        return world.take_effect(place, call, item)

    def burn(call: Any, item: int) -> Any:
        """Fails, before its effect or after it."""
        if item:
            world.take_effect(place, call, item)
        raise ConnectionError("the line is dead")

    same: Any = {"same": lambda item, **_: item}
    undo: Any = {"undo": lambda call, result: world.take_back(place, call, result)}
    tools.tool(name="look", read_only=True)(look)
    tools.tool(name="coupon", idempotent=lambda item: f"coupon {item}")(act)
    tools.tool(name="pay", idempotent=True, retries=0, **undo, **everywhere)(act)
    tools.tool(name="mail", **same, **everywhere)(write)
    tools.tool(name="ship", **undo, **everywhere)(act)
    tools.tool(name="wire", ask=True, **same, **everywhere)(write)
    tools.tool(name="keep", **same, **({"repeat": "reuse"} | everywhere))(write)
    tools.tool(name="ping", repeat="run")(act)
    tools.tool(name="burn", **everywhere)(burn)
    if Capability.CONNECTION in vault.store.capabilities:
        add_note(tools, world, vault, place, **everywhere)
    return tools


def add_note(tools: Toolbox, world: World, vault: Vault, place: Place, **everywhere: Any) -> None:
    """The tool whose effect is in the vault's own database."""
    mark = placeholder(vault)

    def note(call: Any, item: int) -> Any:
        world.unsure.add(place[0])
        result = world.take_effect(place, call, item)
        call.db.execute(f"INSERT INTO done VALUES ({mark}, {mark})", (vault.namespace, result["effect"]))
        return result

    def erase(call: Any, result: Any) -> Any:
        world.unsure.add(place[0])
        call.db.execute(f"INSERT INTO taken VALUES ({mark}, {mark})", (vault.namespace, result["effect"]))
        return world.take_back(place, call, result)

    tools.tool(transaction=True, undo=erase, **everywhere)(note)


def prepare(vault: Vault) -> None:
    """Make our tables, where the store can have some."""
    if Capability.CONNECTION in vault.store.capabilities:
        with vault.connection() as db:
            for table in TABLES:
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} (vault TEXT, serial INTEGER)")


def rows(vault: Vault) -> list[Counter[int]]:
    """The serials of the effects in each of our tables."""
    mark = placeholder(vault)
    with vault.connection() as db:
        found = [db.execute(f"SELECT serial FROM {table} WHERE vault = {mark}", (vault.namespace,)) for table in TABLES]
        return [Counter(int(row[0]) for row in one.fetchall()) for one in found]
