"""An agent in the world: messages come while it works, it sleeps, and it is stopped. Killed at any moment, and resumed.

Also senders that send everything twice, a process that resumes what is stale, and what must be true of the conversation.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agents import Agent
from broken_stores import Fate, Mortal, Stopping, opened

from savegame import Fenced, Paused, Stopped, Toolbox, Vault
from savegame.runs.ledger import INPUT_KEY
from savegame.testing.faults import Mouth
from savegame.testing.provider import check_messages

NAP = dt.timedelta(milliseconds=20)
LOOK = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "look", "arguments": {}}]}


@dataclass(frozen=True)
class WorldAgent(Agent):
    """Gets one message, sleeps, gets another while it works, ends; gets a third one and is stopped."""

    def to_the_end(self, say: Callable[..., None]) -> None:
        for number in ("one", "three"):
            self.vault.send(self.thread_id, number, key=number)
            self._drive()

    def _drive(self) -> None:
        while True:
            try:
                with self.vault.run(self.thread_id, tools=self.tools(), lease=self.lease) as run:
                    while not run.done:
                        run.tools()
                        run.sleep(NAP, name="nap")
                        run.model(self._answer)
                    return
            except Paused:
                time.sleep(NAP.total_seconds())
            except Stopped:
                return

    def tools(self) -> Toolbox:
        tools = Toolbox()

        @tools.tool(read_only=True)
        def look() -> str:
            self.moment("inside look")
            return "seen"

        return tools

    def _answer(self, messages: list[dict[str, Any]]) -> Any:
        check_messages(messages)
        self.moment("inside the model")
        heard = [message["content"] for message in messages if message["role"] == "user"]
        if heard[-1] == "two":
            return "over"
        if heard[-1] == "three":
            self.vault.stop(self.thread_id, "enough")
        else:
            self.vault.send(self.thread_id, "two", key="two")
        return LOOK

    def broken_promises(self, *, crashed: bool = True) -> list[str]:
        """What is not as it should be after the end."""
        wrong = broken_conversation(self.vault, self.thread_id)
        thread = self.vault.thread(self.thread_id)
        newest = thread.latest()
        assert newest is not None
        heard = [message["content"] for message in newest.state["messages"] if message["role"] == "user"]
        if heard != ["one", "two", "three"]:
            wrong.append(f"it heard {heard}")
        if repr(newest.status) != "halted(enough)":
            wrong.append(f"it is {newest.status!r}")
        left = [(kind, name) for kind in ("inbox", "due") for name in thread.timeline.names(kind)]
        if left and left != [("inbox", "stop")]:  # of a run that was killed after it was asked to
            wrong.append(f"left: {left}")
        if [run.thread_id for run in self.vault.stale() if run.thread_id == self.thread_id]:
            wrong.append("it is stale")
        return wrong


def broken_conversation(vault: Vault, thread_id: str) -> list[str]:
    """What no provider would take, at any checkpoint: something else between calls and their answers."""
    wrong = []
    for checkpoint in vault.thread(thread_id).history(branches=True):
        open_calls = 0
        for message in checkpoint.load().state["messages"]:
            if open_calls and message["role"] != "tool":
                wrong.append(f"{message['content']!r} stands between calls and answers at step {checkpoint.step}")
            open_calls += len(message.get("tool_calls", ())) if message["role"] == "assistant" else -(message["role"] == "tool")
    keys = [message[INPUT_KEY] for message in vault.thread(thread_id).state()["messages"] if INPUT_KEY in message]
    return wrong + [f"{key} came twice" for key in set(keys) if keys.count(key) > 1]


# -- many senders ----------------------------------------------------------------------------------


def send_each_twice(mouth: Mouth, address: str, sender: str, count: int) -> None:
    """What a child does: send messages, every one twice."""
    with opened(address) as vault:
        mouth.say("ready")
        mouth.hear()
        for number in range(count):
            for is_new in (True, False):
                assert vault.send("t", f"{sender} {number}", key=f"{sender}-{number}") == is_new
            time.sleep(0.05)  # so that runs come between
    mouth.say("sent")


def answer_all(mouth: Mouth, address: str, count: int, deadly: int) -> None:
    """What a child does: run the thread whenever it is stale, until everything was answered, unless it dies first."""
    fate = Fate(mouth, deadly)
    with opened(address, Mortal) as vault:
        vault.store.moment = fate.moment  # type: ignore[attr-defined]

        def llm(messages: list[dict[str, Any]]) -> Any:
            check_messages(messages)
            return LOOK if messages[-1]["role"] == "user" else "well"

        tools = Toolbox()

        @tools.tool(read_only=True)
        def look() -> str:
            return "seen"

        while True:
            for _ in vault.stale():
                with vault.run("t", tools=tools) as run:
                    while not run.done:
                        run.tools()
                        run.model(llm)
            thread = vault.thread("t").latest()
            if thread is not None and sum(INPUT_KEY in message for message in thread.state["messages"]) == count:
                mouth.say("finished")
                return
            time.sleep(0.005)


# -- a holder that is frozen -----------------------------------------------------------------------


def freeze(mouth: Mouth, address: str, lease: dt.timedelta) -> None:
    """What a child does: hold the thread, stop itself inside the model, and tell what its next write met."""
    with opened(address, Stopping) as vault:
        store: Any = vault.store

        def llm(_: Any) -> str:
            store.stop(mouth)
            return "too late"

        try:
            with vault.run("t", lease=lease) as run:
                run.user("hi")
                run.model(llm)
        except Fenced:
            mouth.say("fenced")
        except Stopped:
            mouth.say("stopped")
