"""SIGKILL at every moment of an undo: around each write, inside each undo function. Another process finishes it."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from addresses import placeholder
from agents import Log, around
from broken_stores import Fate, Moment, Mortal, nothing, opened

import savegame
from savegame import Toolbox, Undone, Unknown, Vault
from savegame.store import Capability
from savegame.testing.faults import Child, Mouth

CALLS = ("refund", "mail", "note", "wire")
WRITES = around("lease", "run", "started", "done and done", "MoveHead and run", "release")
INSIDE = around("the undo of refund", "the undo of mail")
IN_DATABASES = around("transaction", "the undo of note")


class Person:
    """Made everything on a thread, and takes it back."""

    def __init__(self, vault: Vault, thread_id: str, log: Log, moment: Moment = nothing) -> None:
        self.vault, self.thread_id, self.log, self.moment = vault, thread_id, log, moment
        self.tools = Toolbox()
        self.tools.tool(name="refund", idempotent=True, undo=partial(self._back, "refund"))(lambda: "refunded")
        self.tools.tool(name="mail", undo=partial(self._back, "mail"))(lambda: "mailed")
        self.tools.tool(name="wire")(lambda: "wired")
        if self.transactions:
            self.tools.tool(name="note", transaction=True, undo=self._unwrite)(self._write)

    @property
    def transactions(self) -> bool:
        return Capability.CONNECTION in self.vault.store.capabilities

    def _sql(self, verb: str) -> str:
        return verb.replace("?", placeholder(self.vault))

    def _write(self, call: Any) -> str:
        call.db.execute(self._sql("INSERT INTO notes VALUES (?, 'x')"), (self.thread_id,))
        return "noted"

    def _unwrite(self, call: Any, result: str) -> None:
        assert result == "noted"
        self.moment("before the undo of note")
        call.db.execute(self._sql("DELETE FROM notes WHERE thread = ?"), (self.thread_id,))
        self.moment("after the undo of note")

    def _back(self, name: str, call: Any, result: str) -> None:
        assert result == f"{name}ed"
        self.moment(f"before the undo of {name}")
        self.log.add(self.thread_id, name, call.key)
        self.moment(f"after the undo of {name}")

    def work(self) -> None:
        """One call of each tool, in one reply."""
        names = [name for name in CALLS if name in self.tools]
        reply = {"role": "assistant", "content": "", "tool_calls": [{"id": n, "name": n, "arguments": {}} for n in names]}
        with self.vault.run(self.thread_id, tools=self.tools) as run:
            run.user("Do it.")
            run.model(lambda _: reply)
            run.tools()
            run.model(lambda _: "done")

    def undo(self) -> Undone:
        return self.vault.undo(self.thread_id, to=1, tools=self.tools)

    def to_the_end(self) -> tuple[Undone, list[str]]:
        """Undo, looking up what is unknown; what is known in the end, and which calls were unknown."""
        unknown = []
        while True:
            try:
                return self.undo(), unknown
            except Unknown as error:
                unknown.append(error.call.name)
                done = self.log.keys(self.thread_id, error.call.name)
                self.vault.resolve(self.thread_id, error.call, "done", error=None if done else "it was not done")


class AsyncPerson(Person):
    """The same in an asynchronous program."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        mail = self.tools["mail"].undo
        assert mail is not None

        async def back(call: Any, result: Any) -> None:
            await asyncio.sleep(0)
            mail(call, result)

        others = self.tools
        self.tools = Toolbox()
        self.tools.tool(name="mail", undo=back)(lambda: "mailed")
        for tool in others:
            if tool.name != "mail":
                marks = {"idempotent": tool.kind == "idempotent", "transaction": tool.kind == "transaction"}
                self.tools.tool(name=tool.name, undo=tool.undo, **marks)(tool.function)

    def undo(self) -> Undone:
        async def awaited() -> Undone:
            return await savegame.AsyncVault(self.vault).undo(self.thread_id, to=1, tools=self.tools)

        return asyncio.run(awaited())


def die_at_each(mouth: Mouth, address: str, log: Log, kind: Callable[..., Person]) -> None:
    """What a child does: fork processes that die in an undo, each one moment later, until one comes to its end."""
    for deadly in range(1, 100):
        child = os.fork()
        if not child:
            try:
                with opened(address, Mortal) as vault:
                    person = kind(vault, f"killed {deadly}", log)
                    person.work()
                    person.moment = vault.store.moment = Fate(mouth, deadly).moment  # type: ignore[attr-defined]
                    person.undo()
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the exit code tells
                traceback.print_exc()
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            assert status == 0, f"it ended with {status} at moment {deadly}"
            mouth.say("finished", str(deadly))
            return


@pytest.mark.parametrize("kind", [Person, AsyncPerson], ids=["sync", "async"])
def test_an_undo_that_was_killed_at_any_moment_is_finished_by_another_process(
    address: str, log: Log, kind: type[Person]
) -> None:
    with Child(die_at_each, address, log, kind) as child:
        ends = child.rest()
    assert ends[-1][0] == "finished"
    wanted = WRITES | INSIDE | (set() if address.startswith("file") else IN_DATABASES)
    assert {end[1] for end in ends} >= wanted
    with opened(address) as vault:
        for number, (_, moment) in enumerate(ends[:-1], 1):
            person = kind(vault, f"killed {number}", log)
            found, unknown = person.to_the_end()
            names = [entry.name for entry in found.undone]
            if names:  # else it had ended, and its undo was a second one
                assert names == [name for name in ("note", "mail", "refund") if name in person.tools], moment
            assert [entry.name for entry in found.left] == ["wire"]
            assert unknown in ([], ["mail"]), moment
            keys = {name: log.keys(person.thread_id, name) for name in ("mail", "refund")}
            [mail] = keys["mail"]
            effects = list(vault.effects(person.thread_id))
            assert {mail, *keys["refund"]} == {f"undo-{entry.key}" for entry in effects if entry.name in keys}
            assert vault.thread(person.thread_id).load("head").step == 1, moment
            assert vault.thread(person.thread_id).records("run") == {}
            assert {entry.name for entry in effects if entry.undone_at} == {tool.name for tool in person.tools if tool.undo}
        if Capability.CONNECTION in vault.store.capabilities:
            with vault.connection() as db:
                left = {thread for (thread,) in db.execute("SELECT thread FROM notes")}
            assert left == set()
