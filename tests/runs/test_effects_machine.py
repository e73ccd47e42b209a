"""Random lives of threads, in memory, against a model that only knows which replies lie on a line.

The model: an effect is left if its reply is not on the head's line. Each left effect stands for one call of the same arguments;
a tool must not run for such a call before a person agreed, and a person is asked for no other reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import savegame
from savegame import CallEntry, Paused, Toolbox, Unknown
from savegame.runs.keys import parts_of


class Crash(BaseException):
    """The process ends inside a tool."""


@dataclass
class Done:
    """An effect on the world."""

    key: str
    order: int
    thread: str
    settled: bool = False
    undone: bool = False

    @property
    def reply(self) -> str:
        return parts_of(self.key).reply


@dataclass
class Life:
    """What the model knows of a thread."""

    own: list[Done] = field(default_factory=list)
    carried: list[Done] = field(default_factory=list)
    """Of the source of a fork: never on its line."""
    stood_for: list[tuple[str, str]] = field(default_factory=list)
    """Calls, each with the key of the left effect that a person was asked about for it, once that was answered."""


class Effects(RuleBasedStateMachine):
    """`repeat="ask"` with plain and idempotent tools."""

    def __init__(self) -> None:
        super().__init__()
        self.vault = savegame.open("memory:")
        self.lives = {"t0": Life()}
        self.approved: set[tuple[str, str]] = set()
        self.crashes = 0
        self.said = 0
        self.taken_back: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self.tools = Toolbox()
        self.tools.tool(name="pay", undo=self._back)(self._pay)
        self.tools.tool(name="mail", idempotent=True, undo=self._back, retries=0)(self._mail)

    def _pay(self, call: Any, order: int) -> str:
        return self._do(call, order)

    def _mail(self, call: Any, order: int) -> str:
        return self._do(call, order + 10)

    def _do(self, call: Any, order: int) -> str:
        life = self.lives[call.thread_id]
        before = next((one for one in life.own if one.key == call.key and not one.undone), None)
        if before is None:
            key = (call.thread_id, call.key)
            if key not in self.approved and self.left(call.thread_id, order):
                self.wrong.append(f"it was repeated silently: {call}, {life}")  # an error would become the tool's
            before = Done(call.key, order, call.thread_id)
            life.own.append(before)
        elif order < 10:
            self.wrong.append(f"an unmarked tool ran twice for one call: {call}")
        if self.crashes:
            self.crashes -= 1
            raise Crash
        before.settled = True
        return f"did {order}"

    def _back(self, call: Any, result: Any) -> None:
        if (call.thread_id, call.key) in self.taken_back:
            self.wrong.append(f"it was taken back twice: {call}")
        self.taken_back.append((call.thread_id, call.key))

    # -- the model ---------------------------------------------------------------------------------

    def line(self, thread_id: str, ref: Any = "head") -> set[str]:
        """The replies on a line."""
        state = self.vault.thread(thread_id).load(ref).state
        return {message["id"] for message in state["messages"] if message.get("journaled")}

    def left(self, thread_id: str, order: int | None = None, ref: Any = "head") -> list[Done]:
        life, line = self.lives[thread_id], self.line(thread_id, ref)
        answered = {key for call, key in life.stood_for if parts_of(call).reply in line}
        found = [one for one in life.own if one.reply not in line] + life.carried
        return [one for one in found if not one.undone and one.key not in answered and order in (None, one.order)]

    def open_calls(self, thread_id: str, ref: str) -> list[Done]:
        """The calls without an outcome at a checkpoint: whether they are made there is the business of this thread."""
        messages = self.vault.thread(thread_id).load(ref).state["messages"]
        last = max((at for at, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
        reply = messages[last] if last >= 0 else {}
        answered = {one.get("tool_call_id") for one in messages[last + 1 :]}
        outcomes = {call.key: call for call in self.vault.calls(thread_id) if call.settled}
        found = []
        for place, call in enumerate(reply.get("tool_calls", ())):
            keys = (f"{reply['id']}:{place}:{again}".removesuffix(":0") for again in range(100))
            key = next(key for key in keys if key not in outcomes or outcomes[key].undone_at is None)
            if call["id"] not in answered and key not in outcomes:
                found.append(Done(key, call["arguments"]["order"] + 10 * (call["name"] == "mail"), thread_id))
        return found

    def settled_here(self, call: CallEntry, thread_id: str) -> None:
        if call.repeats is not None:
            self.lives[thread_id].stood_for.append((call.key, call.repeats))

    # -- what happens ------------------------------------------------------------------------------

    @property
    def threads(self) -> list[str]:
        return [thread_id for thread_id in self.lives if self.vault.thread(thread_id).latest() is not None]

    def go_on(self, thread_id: str, replies: list[Any]) -> None:
        try:
            with self.vault.run(thread_id, tools=self.tools) as run:
                run.tools()
                for reply in replies:
                    run.model(lambda _, reply=reply: reply)
                    run.tools()
        except Paused as paused:
            call = paused.call
            order = call.arguments["order"] + 10 * (call.name == "mail")
            known = {one.key for one in self.vault.calls(thread_id)}
            may_be_begun = call.name == "mail" and call.repeats not in known  # only the kept reply tells
            assert may_be_begun or call.repeats in {one.key for one in self.left(thread_id, order)}, (
                f"it asked without a reason: {call}, {self.lives[thread_id]}"
            )
        except Unknown as unknown:
            self.vault.resolve(thread_id, unknown.call, "found out")
            key = unknown.call.key
            next(one for one in self.lives[thread_id].own if one.key == key and not one.undone).settled = True
        except Crash:
            pass

    @rule(data=st.data(), names=st.lists(st.tuples(st.sampled_from(["pay", "mail"]), st.integers(1, 2)), max_size=3))
    def works(self, data: st.DataObject, names: list[tuple[str, int]]) -> None:
        thread_id = data.draw(st.sampled_from(list(self.lives)))
        with self.vault.run(thread_id, tools=self.tools) as run:
            pending = bool(run.messages) and run.messages[-1]["role"] != "user" and not run.done
            if not pending:
                self.said += 1
                run.user(f"message {self.said}")
        self.crashes = data.draw(st.sampled_from([0, 0, 0, 1]))
        calls = [
            {"id": f"{self.said}-{n}", "name": name, "arguments": {"order": order}} for n, (name, order) in enumerate(names)
        ]
        asks = {"role": "assistant", "content": "", "tool_calls": calls}
        self.go_on(thread_id, [asks, "done"] if calls else ["done"])
        self.crashes = 0

    def waiting(self) -> list[tuple[str, CallEntry]]:
        return [
            (thread_id, call)
            for thread_id in self.threads
            for call in self.vault.calls(thread_id)
            if call.status == "waiting" and not call.answered and parts_of(call.key).reply in self.line(thread_id)
        ]

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), value=st.sampled_from(["yes", "no", "reuse"]))
    def a_person_answers(self, data: st.DataObject, value: str) -> None:
        thread_id, call = data.draw(st.sampled_from(self.waiting()))
        try:
            assert self.vault.answer(thread_id, call, value != "no", reuse=value == "reuse")
        except savegame.InvalidInputError:
            assert value == "reuse"
            return
        self.settled_here(call, thread_id)
        if value == "yes":
            self.approved.add((thread_id, call.key))
        self.go_on(thread_id, [])

    @precondition(lambda self: self.threads)
    @rule(data=st.data(), discard=st.booleans())
    def a_person_goes_back(self, data: st.DataObject, discard: bool) -> None:
        thread_id = data.draw(st.sampled_from(self.threads))
        thread = self.vault.thread(thread_id)
        point = data.draw(st.sampled_from([one.id for one in thread.history(branches=True)]))
        thread.rewind(point, discard=discard)

    @precondition(lambda self: self.threads and len(self.lives) < 4)
    @rule(data=st.data())
    def a_person_forks(self, data: st.DataObject) -> None:
        thread_id = data.draw(st.sampled_from(self.threads))
        thread, new = self.vault.thread(thread_id), f"t{len(self.lives)}"
        point = data.draw(st.sampled_from([one.id for one in thread.history(branches=True)]))
        carried = {one.key: one for one in self.left(thread_id, ref=point) + self.open_calls(thread_id, point)}
        thread.fork(new, at=point)
        self.lives[new] = Life(carried=[replace(one) for one in carried.values()])  # as it is now

    @precondition(lambda self: self.threads)
    @rule(data=st.data())
    def a_person_undoes(self, data: st.DataObject) -> None:
        thread_id = data.draw(st.sampled_from(self.threads))
        thread = self.vault.thread(thread_id)
        point = data.draw(st.sampled_from([one.id for one in thread.history(branches=True)]))
        found = self.vault.undo(thread_id, to=point, tools=self.tools)
        undone = {entry.key for entry in found.undone}
        for one in self.lives[thread_id].own:
            one.undone |= one.key in undone
        assert thread.load("head").id == point

    @invariant()
    def what_is_listed_is_what_was_done(self) -> None:
        assert not self.wrong, self.wrong
        for thread_id in self.threads:
            effects = {entry.key: entry for entry in self.vault.effects(thread_id)}
            line = self.line(thread_id)
            for one in self.lives[thread_id].own:
                if one.key in effects:
                    assert (effects[one.key].undone_at is not None) == one.undone
                    assert effects[one.key].left == (one.reply not in line)
                else:
                    assert not one.settled, "an effect was forgotten"


Effects.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestEffects = Effects.TestCase
