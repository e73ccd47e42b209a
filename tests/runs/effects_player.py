"""Plays plans against real vaults: runs, crashes, goings back, answers and undos, one after the other, beside `effects_world`.

A plan is a list of moves, each a name and numbers that are taken modulo what there is to choose from: every list is a plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from effects_world import AT_MOST_ONCE, Crash, Place, Story, World, answered, base, prepare, toolbox

from savegame import (
    AgentState,
    AsyncVault,
    CallEntry,
    CallStatus,
    Checkpoint,
    CheckpointNotFound,
    ConflictError,
    InvalidInputError,
    OutcomeError,
    Paused,
    Retention,
    SavegameError,
    Stopped,
    Thread,
    Toolbox,
    Unknown,
    Vault,
)
from savegame.store import Capability, Store

Move = tuple[str, int, int, int]

THREADS: Final = 5
AGENT: Final = "helper"
MAY_END: Final = frozenset({"rewind", "fork", "restore", "carry", "prune", "remove", "delete", "stop", "send", "resolve"})
"""Moves in which the process may end; `crash` and `undo` have their own ways."""
ROUNDS: Final = 4
"""How often a person helps within one move."""


class BrokenPromise(AssertionError):
    """Something happened that must not happen."""


class Player:
    """A first vault with its threads, perhaps a second one to which they were copied, and the moves."""

    def __init__(self, store: Store, name: str, path: Path, world: World, **everywhere: Any) -> None:
        self.store, self.name, self.path, self.world, self._everywhere = store, name, path, world, everywhere
        self.places: list[Place] = [("first", "t0")]
        self.undoing: dict[Place, tuple[str, bool]] = {}
        """Where an undo is not at its end: to which checkpoint, and whether it surely had begun."""
        self.retention: Retention | None = None
        self.numbers = 0
        self.touched: set[Place] = set()
        self.stopping = False
        self._tools: dict[Place, Toolbox] = {}
        world.has_transactions = Capability.CONNECTION in store.capabilities
        prepare(self.vault("first"))
        self.vault("first").save_agent(AgentState(AGENT, "Helper", "scripted"))

    def vault(self, label: str) -> Vault:
        """A vault as another process would open it: nothing is in its cache."""
        return Vault(self.store, namespace=f"{self.name} {label}", retention=self.retention)

    def thread(self, place: Place) -> Thread:
        return self.vault(place[0]).thread(place[1])

    def tools(self, place: Place) -> Toolbox:
        if place not in self._tools:
            self._tools[place] = toolbox(self.world, self.vault(place[0]), place, **self._everywhere)
        return self._tools[place]

    def play(self, plan: Sequence[Move]) -> None:
        for name, a, b, c in plan:
            place = self.places[a % len(self.places)]
            move: Callable[[Place, int, int], None] = getattr(self, name)
            self.touched.add(place)
            self.world.fuse = c - 55 if name in MAY_END and c > 55 else 0
            with suppress(Crash):
                move(place, b, c)
            self.world.fuse = self.world.undo_fails = 0
            self.stopping = False
            self.look_into_tables()
            for one in self.places if name == "restore" else [place]:
                self.look(one)
            self.check()
        for place in self.places:
            if place in self.undoing:
                self.finish_undo(place)
            self.check_effects(place)
        for label in {label for label, _ in self.places}:
            self.world.wrong += [str(problem) for problem in self.vault(label).verify().problems]
        self.check()

    def look_into_tables(self) -> None:
        for label in sorted(self.world.unsure):
            self.world.compare(self.vault(label), label)

    def check(self) -> None:
        if self.world.wrong:
            raise BrokenPromise("\n".join(self.world.wrong))

    def look(self, place: Place) -> Story:
        story = self.world.story(place)
        story.see(self.messages(place))
        return story

    def messages(self, place: Place, ref: str | None = None) -> list[dict[str, Any]]:
        state = self.thread(place).state(ref)
        return [] if state is None else list(state["messages"])

    def checkpoints(self, place: Place, *, branches: bool = True) -> list[Checkpoint]:
        return list(self.thread(place).history(branches=branches, newest_first=False))

    # -- running -----------------------------------------------------------------------------------

    def run(self, place: Place, b: int, c: int) -> None:
        """Some replies and their calls. A person may be there to help."""
        if place in self.undoing:
            self.refused(place)
            self.finish_undo(place)
        for _ in range(ROUNDS):
            try:
                self.work(place, 1 + b % 4)
            except Paused as paused:
                if not self.ask(place, paused, c):
                    return
            except Unknown as unknown:
                if c % 2:
                    return
                self.find_out(place, unknown.call)
            except Stopped:
                return
            else:
                return

    def crash(self, place: Place, b: int, c: int) -> None:
        """A run that ends at some moment."""
        self.world.fuse = 1 + c % 24
        self.run(place, b, b)

    def work(self, place: Place, replies: int) -> None:
        vault, thread_id = self.vault(place[0]), place[1]
        with vault.run(thread_id, tools=self.tools(place), agent=AGENT) as run:
            self.entered(place, run.messages)
            self.world.moment("entered")
            if not run.messages or run.done:
                run.user("Go on.", key=self.fresh("user"))
            for _ in range(replies):
                if run.done:
                    return
                run.tools()
                self.world.moment("between")
                run.model(lambda messages: self.model(place, messages))
                self.entered(place, run.messages)

    def model(self, place: Place, messages: list[dict[str, Any]]) -> Any:
        if self.stopping:
            self.stopping = False
            assert self.vault(place[0]).stop(place[1], "enough")
        return self.world.model(place, messages)

    def entered(self, place: Place, messages: list[dict[str, Any]]) -> None:
        self.world.story(place).enter(messages)

    def fresh(self, what: str) -> str:
        self.numbers += 1
        return f"{what}-{self.numbers}"

    # -- people ------------------------------------------------------------------------------------

    def ask(self, place: Place, paused: Paused, c: int) -> bool:
        """A question was asked: was that right, and is there somebody to answer?"""
        call: Any = paused.call
        self.check_question(place, call)
        return self.react(place, call, c)

    def react(self, place: Place, call: CallEntry, c: int) -> bool:
        """Answer a question, or leave it."""
        vault, story = self.vault(place[0]), self.world.story(place)
        if c % 5 == 0:
            return False
        if c % 5 in (1, 2):
            try:
                if vault.answer(place[1], call, True):
                    story.allowed.add(call.key)
            except Crash:  # it may have been kept
                story.allowed.add(call.key)
                raise
        elif c % 5 == 3:
            if vault.answer(place[1], call, False):
                story.closed.add(call.key)
        else:
            try:
                if vault.answer(place[1], call, True, reuse=True):
                    story.closed.add(call.key)
            except InvalidInputError:  # there is no result to take
                if vault.answer(place[1], call, "no"):
                    story.closed.add(call.key)
        return True

    def answer(self, place: Place, b: int, c: int) -> None:
        waiting = [call for call in self.vault(place[0]).calls(place[1]) if call.status == CallStatus.WAITING]
        if waiting:
            self.react(place, waiting[b % len(waiting)], c)

    def resolve(self, place: Place, b: int, c: int) -> None:
        doubtful = [call for call in self.vault(place[0]).calls(place[1]) if call.begun]
        if doubtful:
            self.find_out(place, doubtful[b % len(doubtful)])

    def find_out(self, place: Place, call: CallEntry) -> None:
        """Say what really happened."""
        vault = self.vault(place[0])
        self.world.compare(vault, place[0])
        here = (one for one in self.world.effects if one.place == place or one.place[0] != place[0])  # not of a fork's source
        made = [one.serial for one in here if one.key == call.key and one.same[0] == call.name]
        taken = any(key == call.key for _, _, key in self.world.taken)
        if made or taken:
            vault.resolve(place[1], call, "taken back" if taken else {"effect": made[0]})
        else:
            vault.resolve(place[1], call, error="it did not happen")

    def check_question(self, place: Place, call: CallEntry) -> None:
        """Nobody is asked for nothing."""
        if call.name in self.world.free:
            self.world.wrong.append(f"a person was asked about {call.name} in {place}: {call.asked}")
        story = self.world.story(place)
        calls = self.vault(place[0]).calls(place[1])
        doubtful = any(one.begun and (one.name, one.arguments["item"]) == (call.name, call.arguments["item"]) for one in calls)
        doubtful |= "of which this is a fork" in str(call.asked)  # a fork may go back beyond its beginning
        if call.name != "wire" and not (story.unsure or doubtful or story.left((call.name, call.arguments["item"]))):
            self.world.wrong.append(f"a person was asked in {place} with nothing left elsewhere: {call.asked}")

    # -- going back --------------------------------------------------------------------------------

    def rewind(self, place: Place, b: int, c: int) -> None:
        found = self.checkpoints(place)
        if not found or place in self.undoing:
            return
        chosen, rerun = found[b % len(found)], c % 8 == 7
        if rerun:
            self.excuse(place, chosen.id)
        with suppress(CheckpointNotFound):
            self.thread(place).rewind(chosen.id, rerun_tools=rerun, discard=c % 8 == 6)

    def excuse(self, place: Place, ref: str) -> None:
        """What was done after a point may be done again."""
        story, there = self.world.story(place), answered(self.messages(place, ref))
        for token, same in story.known.items():
            if token not in story.undone and token not in story.permitted and base(token) not in there:
                story.excused[same] += 1

    def fork(self, place: Place, b: int, c: int) -> None:
        found = self.checkpoints(place)
        if not found or len(self.places) >= THREADS:
            return
        chosen, new = "head" if c % 2 else found[b % len(found)].id, (place[0], self.fresh("fork"))
        try:
            with suppress(CheckpointNotFound):
                self.thread(place).fork(new[1], at=chosen)
        finally:
            if self.checkpoints(new):
                self.begin_fork(place, new)

    def split(self, place: Place, b: int, c: int) -> None:
        """A run ends in the middle, a fork is made right there, and both go on."""
        with suppress(Crash):
            self.crash(place, b, c)
        self.world.fuse = 0
        self.look_into_tables()
        self.fork(place, b, 1)
        self.run(self.places[-1], 0, c)
        self.run(place, 0, c)

    def begin_fork(self, place: Place, new: Place) -> None:
        story = self.world.stories[new] = self.world.story(place).born()
        story.see(messages := self.messages(new))
        here = self.open_at(messages)
        story.presumed |= here
        for key in here:
            if not any(base(token) == key for token in story.known):
                story.known["open", key] = story.line[key]
        story.inherited = set(story.known)
        story.unsure |= place in self.undoing
        self.places.append(new)

    def open_at(self, messages: list[dict[str, Any]]) -> set[str]:
        """The calls of the newest reply without an answer."""
        story = Story()
        story.see(messages)
        return {key for key in story.line if key not in story.answered and story.line[key][0] not in self.world.free}

    def restore(self, place: Place, b: int, c: int) -> None:
        """Save the agent with all its conversations, or bring it back."""
        vault = self.vault("first")
        found = list(vault.agent_checkpoints(AGENT))
        if not found or c % 3 == 0:
            vault.checkpoint_agent(AGENT, self.fresh("moment"))
            return
        unfinished = [OutcomeError] if any(label == "first" for label, _ in self.undoing) else []
        with suppress(CheckpointNotFound, *unfinished):
            vault.restore_agent(found[b % len(found)].id, skip_missing=True)
        known = [place for place in self.world.stories if place[0] == "first"]  # deleted ones come back, and go again
        others = [place for place in self.places if place not in known]
        self.places = others + [place for place in known if self.checkpoints(place) or not self.world.stories[place].known]

    def carry(self, place: Place, b: int, c: int) -> None:
        """Everything goes to a second vault too, as a copy or in a file; again only if nothing happened there meanwhile."""
        if self.undoing or any(place in self.touched for place in self.places if place[0] == "second"):
            return
        first, second = self.vault("first"), self.vault("second")
        prepare(second)
        try:
            self.copy(first, second, as_file=b % 2 == 0)
        except ConflictError:  # the head of the copy was discarded here since
            return
        except Crash:
            self.begin_copies(second)
            raise
        self.begin_copies(second)

    def copy(self, first: Vault, second: Vault, *, as_file: bool) -> None:
        if not as_file:
            first.copy_to(second)
            return
        path = self.path / f"{self.fresh('export')}.jsonl"
        first.export(path)
        try:
            second.import_(path)
        finally:
            path.unlink()

    def begin_copies(self, second: Vault) -> None:
        there = {info.id for info in second.threads()}
        for old in [old for old in self.places if old[0] == "first" and old[1] in there]:
            new = ("second", old[1])
            self.world.stories[new] = self.world.story(old).born()
            self.places += [] if new in self.places else [new]

    # -- removing ----------------------------------------------------------------------------------

    def prune(self, place: Place, b: int, c: int) -> None:
        if place not in self.undoing and self.checkpoints(place):
            self.thread(place).prune(keep=1 + b % 3)

    def remove(self, place: Place, b: int, c: int) -> None:
        """One checkpoint: c chooses often the newest, then the head moves back."""
        found = self.checkpoints(place, branches=c % 2 == 0)
        if len(found) > 1 and place not in self.undoing:
            with suppress(InvalidInputError):
                self.vault(place[0]).delete_checkpoint(found[-1 - b % len(found) if c % 4 < 2 else -1].id)

    def delete(self, place: Place, b: int, c: int) -> None:
        """The thread, with its ledger. Its forks keep what they know; an agent's checkpoint may bring it back."""
        if len(self.places) > 1 and place not in self.undoing:
            self.places.remove(place)
            self.thread(place).delete()

    def retain(self, place: Place, b: int, c: int) -> None:
        """From now on, vaults keep little."""
        self.retention = Retention(max_checkpoints=2 + b % 4) if c % 2 else None

    # -- from outside ------------------------------------------------------------------------------

    def stop(self, place: Place, b: int, c: int) -> None:
        if place in self.undoing:
            return
        if c % 2:
            self.stopping = True
            self.run(place, b, c)
        elif self.thread(place).latest() is not None:
            self.vault(place[0]).stop(place[1], "enough")

    def send(self, place: Place, b: int, c: int) -> None:
        key = self.fresh("mail")
        assert self.vault(place[0]).send(place[1], "And this?", key=key)
        assert not self.vault(place[0]).send(place[1], "And this?", key=key)

    def begin(self, place: Place, b: int, c: int) -> None:
        """What the model is after."""
        self.world.aim = 64 * b + c

    def differ(self, place: Place, b: int, c: int) -> None:
        """The model changes its mind about what comes next."""
        self.world.variant = b % 3

    # -- undo --------------------------------------------------------------------------------------

    def undo(self, place: Place, b: int, c: int) -> None:
        """To some point of the line; functions may raise, the process may end, somebody may look first."""
        found = self.checkpoints(place, branches=False)
        if not found:
            return
        to = self.undoing[place][0] if place in self.undoing else found[b % len(found)].id
        listed = self.list_undo(place, to) if c % 3 == 0 and place not in self.undoing else None
        self.world.fuse = c // 4 if c % 4 == 1 else 0
        self.world.undo_fails = 1 if c % 4 == 2 else 0
        begin = len(self.world.taken)
        try:
            undone = self.take_back(place, to)
        except Crash:
            self.undoing[place] = (to, False)
            raise
        except CheckpointNotFound:
            return
        except OutcomeError:
            self.undoing[place] = (to, True)
            self.refused(place)
            return
        self.undoing.pop(place, None)
        if listed is not None and listed != keys_of(undone):
            self.world.wrong.append(f"dry_run of {place} to {to} listed {listed}, then it was {keys_of(undone)}")
        self.check_undone(place, to, undone, begin)

    def list_undo(self, place: Place, to: str) -> Any:
        head, taken = self.thread(place).latest(), len(self.world.taken)
        vault = self.vault(place[0])
        try:
            found = vault.undo(place[1], to=to, tools=self.tools(place), dry_run=True)
        except CheckpointNotFound:
            return None
        after = self.thread(place).latest()
        assert (head and head.id, taken) == (after and after.id, len(self.world.taken))
        return keys_of(found)

    def take_back(self, place: Place, to: str) -> Any:
        vault = self.vault(place[0])
        return vault.undo(place[1], to=to, tools=self.tools(place))

    def finish_undo(self, place: Place) -> None:
        """Call it again until it is at its end, as the next process would."""
        to, _ = self.undoing.pop(place)
        self.world.fuse = self.world.undo_fails = 0
        begin = len(self.world.taken)
        for _ in range(20):
            try:
                self.take_back(place, to)
            except Unknown as unknown:
                self.find_out(place, unknown.call)
            else:
                self.check_order(place, begin)
                return
        self.world.wrong.append(f"the undo of {place} comes to no end")

    def refused(self, place: Place) -> None:
        """While an undo is not at its end, no run begins."""
        surely = self.undoing[place][1]
        try:
            with self.vault(place[0]).run(place[1]):
                if surely:
                    self.world.wrong.append(f"{place} was entered while an undo had begun")
        except Crash:
            raise
        except SavegameError as error:
            if "undo" not in str(error):
                raise

    def check_order(self, place: Place, begin: int) -> list[int]:
        """The effects that were taken back there since, newest first."""
        self.world.compare(self.vault(place[0]), place[0])
        taken = list(dict.fromkeys(serial for where, serial, _ in self.world.taken[begin:] if where == place))
        order = [max(index for index, one in enumerate(self.world.begun) if one == serial) for serial in taken]
        if order != sorted(order, reverse=True):
            self.world.wrong.append(f"taken back in {place} in the order {taken}, begun in {self.world.begun}")
        return taken

    def check_undone(self, place: Place, to: str, undone: Any, begin: int) -> None:
        taken = self.check_order(place, begin)
        told = {call.key for call in undone.undone}
        keys = {self.world.effects[serial - 1].key for serial in taken}
        if not keys <= told:
            self.world.wrong.append(f"undo of {place} took {keys} back and told of {told}")
        head = self.thread(place).latest()
        if head is None or head.id != to:
            self.world.wrong.append(f"after the undo of {place} to {to} the head is {head}")
        story, there = self.world.story(place), answered(self.messages(place, to))
        remaining, since = {call.key for call in undone.left}, self.thread(place).load(to).created_at
        for effect in self.listed(place):
            is_after = effect.at > since and base(effect.token) not in there
            if is_after and effect.token not in story.undone and effect.key not in remaining:
                self.world.wrong.append(f"{effect} is after {to} in {place}, and neither undone nor left: {undone}")

    def listed(self, place: Place) -> Iterator[Any]:
        """The effects of a thread that no ledger may lack. An idempotent one without an answer may have no entry."""
        story = self.world.story(place)
        for effect in self.world.effects:
            sure = effect.same[0] in AT_MOST_ONCE or effect.key in story.answered
            if effect.place == place and effect.token in story.known and effect.same[0] != "coupon" and sure:
                yield effect

    def check_effects(self, place: Place) -> None:
        """`vault.effects` lists them, says which were left, and which were undone."""
        story = self.look(place)
        found = {call.key: call for call in self.vault(place[0]).effects(place[1])}
        there = answered(self.messages(place))
        for effect in self.listed(place):
            entry = found.get(effect.key)
            if entry is None:
                self.world.wrong.append(f"{effect} is not among the effects of {place}: {sorted(found)}")
            elif (entry.undone_at is not None) != (effect.token in story.undone):
                self.world.wrong.append(f"{effect} of {place}: undone_at is {entry.undone_at}")
            elif base(effect.key) in there and entry.left and base(effect.key) == effect.key:
                self.world.wrong.append(f"{effect} of {place} is on the head's line, and said to be left")
            elif base(effect.key) not in story.line and not entry.left:
                self.world.wrong.append(f"{effect} of {place} is on another line, and not said to be left")


def keys_of(undone: Any) -> tuple[list[str], list[str]]:
    return [call.key for call in undone.undone], [call.key for call in undone.left]


class AsyncPlayer(Player):
    """The same with an asynchronous vault, where it runs and undoes."""

    def work(self, place: Place, replies: int) -> None:
        asyncio.run(self._work(place, replies))

    async def _work(self, place: Place, replies: int) -> None:
        vault = self.vault(place[0])
        async with AsyncVault(vault).run(place[1], tools=self.tools(place), agent=AGENT) as run:
            self.entered(place, run.messages)
            self.world.moment("entered")
            if not run.messages or run.done:
                await run.user("Go on.", key=self.fresh("user"))
            for _ in range(replies):
                if run.done:
                    return
                await run.tools()
                self.world.moment("between")
                await run.model(lambda messages: self.model(place, messages))
                self.entered(place, run.messages)

    def take_back(self, place: Place, to: str) -> Any:
        vault = self.vault(place[0])
        return asyncio.run(AsyncVault(vault).undo(place[1], to=to, tools=self.tools(place)))
