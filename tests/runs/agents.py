"""A scripted agent with a tool of each kind, and what must be true of its effects however often it was killed.

Effects outside of the vault go to a log of one line each, which a killed process leaves behind.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from addresses import placeholder
from broken_stores import Fate, Moment, Mortal, nothing, opened

from savegame import CallEntry, Paused, Toolbox, Unknown, Vault
from savegame.messages.views import INTERRUPTED
from savegame.runs.ledger import CallStatus
from savegame.runs.run import Run
from savegame.store import Capability
from savegame.testing.faults import Child, Mouth
from savegame.testing.provider import check_messages, check_openai

LEASE = dt.timedelta(seconds=30)
REPLY = "All is well."
PLAIN = ("mail", "wire")


def around(*names: str) -> set[str]:
    """The moments before and after some things."""
    return {f"{when} {name}" for when in ("before", "after") for name in names}


EFFECTS = around("the effect of refund", "the effect of mail", "the effect of wire")
WRITES = around("lease", "checkpoint", "checkpoint and done", "started", "waiting", "answer", "release")
EVERYWHERE = EFFECTS | WRITES | {"inside the model", "inside find_order"}
TRANSACTIONS = around("transaction", "the effect of note")


def moments_at(address: str) -> set[str]:
    """The names of the moments of a run that nothing happens to."""
    return EVERYWHERE if address.startswith("file") else EVERYWHERE | TRANSACTIONS


@dataclass(frozen=True)
class Log:
    """The effects of all runs on the world, in order."""

    path: Path

    def add(self, *effect: str) -> None:
        """One line, in one write, at the end."""
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, json.dumps(effect).encode() + b"\n")
        os.close(handle)

    def keys(self, thread_id: str, name: str) -> list[str]:
        """The keys under which a tool took effect for a thread."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [key for thread, tool, key in map(json.loads, lines) if (thread, tool) == (thread_id, name)]


@dataclass(frozen=True)
class Agent:
    """The agent of one thread. `moment` is called wherever something may happen to it."""

    vault: Vault
    thread_id: str
    log: Log
    moment: Moment = nothing
    lease: dt.timedelta = LEASE
    asks: bool = True
    at_once: bool = False

    def work(self) -> str:
        """Run until the model has answered: "ran", or "finished" if it had answered before."""
        with self.vault.run(self.thread_id, tools=self.tools(), lease=self.lease) as run:
            run.user("Where is my order?", key="click")
            if run.done:
                return "finished"
            while not run.done:
                run.tools(at_once=self.at_once)
                self.ask_model(run)
            assert run.reply == REPLY
            return "ran"

    def ask_model(self, run: Run) -> None:
        """One reply of the script, from a provider that is as strict as the real ones."""
        check_openai(run.openai_messages())
        run.model(self._reply)

    def to_the_end(self, say: Callable[..., None]) -> None:
        """Work, with a person beside it who approves what is asked and looks up unknown outcomes."""
        while True:
            try:
                self.work()
            except Paused as paused:
                self.vault.answer(self.thread_id, paused.call, True)
            except Unknown as unknown:
                say("unknown", self.thread_id, unknown.call.name)
                self.vault.resolve(self.thread_id, unknown.call, **self._found_out(unknown.call))
            else:
                return

    def _found_out(self, call: CallEntry) -> dict[str, str]:
        done = self.log.keys(self.thread_id, call.name)
        return {"result": "it was done"} if done else {"error": "it was not done"}

    def _reply(self, messages: list[dict[str, Any]]) -> Any:
        check_messages(messages)
        assert not any(message["content"] == INTERRUPTED for message in messages)
        said = sum(message["role"] == "assistant" for message in messages)
        self.moment("inside the model")
        replies = list(self._script())
        return replies[said]

    def _script(self) -> Iterator[Any]:
        yield _calls(find_order={"order": 7}, refund={"order": 7, "cents": 100})
        if self._transactions:
            yield _calls(note={"text": "refunded"})
        yield _calls(mail={"to": "a@example.org"}, find_order={"order": 7})
        if self.asks:
            yield _calls(wire={"iban": "DE00"})
        yield REPLY

    @property
    def _transactions(self) -> bool:
        return Capability.CONNECTION in self.vault.store.capabilities

    def tools(self) -> Toolbox:
        """One tool of each kind that the store can have."""
        tools = Toolbox()

        @tools.tool(read_only=True)
        @self._in_colour
        def find_order(order: int) -> dict[str, Any]:
            self.moment("inside find_order")
            return {"order": order, "is": "lost"}

        @tools.tool(idempotent=True)
        def refund(call: Any, order: int, cents: int) -> str:
            return self._take_effect("refund", call.key)

        @tools.tool
        @self._in_colour
        def mail(call: Any, to: str) -> str:
            return self._take_effect("mail", call.key)

        @tools.tool(ask=True)
        def wire(call: Any, iban: str) -> str:
            return self._take_effect("wire", call.key)

        if self._transactions:
            mark = placeholder(self.vault)

            @tools.tool(transaction=True)
            def note(call: Any, text: str) -> str:
                self.moment("before the effect of note")
                call.db.execute(f"INSERT INTO notes VALUES ({mark}, {mark})", (self.thread_id, call.key))
                self.moment("after the effect of note")
                return text

        return tools

    def _in_colour(self, tool: Callable[..., Any]) -> Callable[..., Any]:
        """A tool as this kind of agent has it."""
        return tool

    def _take_effect(self, name: str, key: str) -> str:
        self.moment(f"before the effect of {name}")
        self.log.add(self.thread_id, name, key)
        self.moment(f"after the effect of {name}")
        return "done"

    def broken_promises(self, *, crashed: bool = True) -> list[str]:
        """What is not as it should be after the end. Without a crash, every effect took place once."""
        state = self.vault.thread(self.thread_id).state()
        check_messages(state["messages"])
        assert state["messages"][-1]["content"] == REPLY
        calls = [call for message in state["messages"] for call in message.get("tool_calls", ())]
        entries = list(self.vault.calls(self.thread_id))
        assert sorted(entry.name for entry in entries) == sorted(call["name"] for call in calls)
        return [found for entry in entries if (found := self._broken(entry, crashed))]

    def _broken(self, entry: CallEntry, crashed: bool) -> str | None:
        if not entry.settled:
            return f"{entry.name} is {entry.status}"
        if entry.name == "find_order":
            return None
        keys = self._noted() if entry.name == "note" else self.log.keys(self.thread_id, entry.name)
        if set(keys) - {entry.key}:
            return f"{entry.name} took effect under other keys: {keys}"
        wanted = int(entry.status == CallStatus.DONE)
        again = crashed and entry.name == "refund" and len(keys) >= wanted
        return None if again or len(keys) == wanted else f"{entry.name} is {entry.status} and took effect {len(keys)} times"

    def _noted(self) -> list[str]:
        with self.vault.store.connection() as db:
            return [
                key
                for (key,) in db.execute(f"SELECT key FROM notes WHERE thread = {placeholder(self.vault)}", (self.thread_id,))
            ]


def _calls(**calls: dict[str, Any]) -> dict[str, Any]:
    """A reply that calls tools; providers number them from the start in each."""
    made = [{"id": f"call_{place}", "name": name, "arguments": given} for place, (name, given) in enumerate(calls.items())]
    return {"role": "assistant", "content": "", "tool_calls": made}


def prepare(address: str) -> str:
    """Make the vault, with a table for the transactions of the agent; its address."""
    with opened(address) as vault:
        if Capability.CONNECTION in vault.store.capabilities:
            with vault.store.connection() as db:
                db.execute("CREATE TABLE notes (thread TEXT, key TEXT)")
    return address


def carry_on(
    mouth: Mouth,
    address: str,
    thread_ids: Sequence[str],
    log: Log,
    deadly: int | str = 0,
    endless: str = "",
    lease: dt.timedelta = LEASE,
    broken: tuple[type[Any], ...] = (),
    *,
    at_once: bool = False,
    kind: type[Agent] = Agent,
) -> None:
    """What a child does: run the agents of some threads to their end, unless it dies first."""
    fate = Fate(mouth, deadly, endless)
    with opened(address, Mortal, *broken) as vault:
        vault.store.moment = fate.moment  # type: ignore[attr-defined]
        for thread_id in thread_ids:
            kind(vault, thread_id, log, fate.moment, lease, at_once=at_once).to_the_end(mouth.say)
    mouth.say("finished")


def die_at_each(
    mouth: Mouth, address: str, moments: Sequence[int | str], log: Log, at_once: bool, kind: type[Agent] = Agent
) -> None:
    """What a child does: fork processes that die, each at one of the moments, until one comes to its end."""
    for deadly in moments:
        child = os.fork()
        if not child:
            _exit_after(partial(carry_on, mouth, address, [f"killed {deadly}"], log, deadly, at_once=at_once, kind=kind))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            assert status == 0, f"it ended with {status} at moment {deadly}"
            return


def _exit_after(work: Callable[[], None]) -> NoReturn:
    try:
        work()
    except BaseException:  # noqa: BLE001 - the exit code tells
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def killed(address: str, thread_id: str, log: Log, *fate: Any, kind: type[Agent] = Agent) -> str | None:
    """Run an agent in a child that dies; where it died, or None if it came to its end."""
    with Child(partial(carry_on, kind=kind), address, [thread_id], log, *fate) as child:
        while (line := child.next())[0] == "unknown":
            pass
    return line[1] if line[0] == "dies" else None


def finished(address: str, thread_ids: Sequence[str], log: Log, *fate: Any, kind: type[Agent] = Agent) -> list[tuple[str, str]]:
    """Finish runs in a new process; the threads and names of calls whose outcome it could not know."""
    with Child(partial(carry_on, kind=kind), address, thread_ids, log, *fate) as child:
        *unknown, end = child.rest()
    assert end == ["finished"]
    return [(thread_id, name) for _, thread_id, name in unknown]


def in_doubt(address: str, thread_ids: Iterable[str]) -> list[tuple[str, str]]:
    """The calls that must not be made twice and were begun, with nothing known of their end."""
    with opened(address) as vault:
        calls = [(thread_id, call) for thread_id in thread_ids for call in vault.calls(thread_id) if call.name in PLAIN]
        return [(thread_id, call.name) for thread_id, call in calls if call.status == CallStatus.STARTED]


def broken_promises(address: str, thread_ids: Iterable[str], log: Log, *, crashed: bool = True) -> list[str]:
    """What is not as it should be after runs ended."""
    with opened(address) as vault:
        return [one for name in thread_ids for one in Agent(vault, name, log).broken_promises(crashed=crashed)]
