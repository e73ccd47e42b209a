"""An agent that asks for the same thing again with fresh ids, and the world in which it leaves effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from savegame import CallEntry, Paused, Toolbox, Vault
from savegame.testing.provider import check_messages

Asked = tuple[str, dict[str, Any]]
PAY: Asked = ("pay", {"order": 7})


class World:
    """Tools that note what they did, and a model that asks for `wanted`, whatever was said before it went back."""

    def __init__(self, *wanted: Asked) -> None:
        self.wanted: list[Sequence[Asked]] = [[one] for one in wanted or (PAY,)]
        self.made: list[tuple[str, str]] = []
        self.undone: list[tuple[str, str, str | None, Any]] = []
        self.box = Toolbox()
        self.fails: list[Exception] = []
        self._ids = 0

    def add(self, name: str = "pay", *, undo: bool = False, **kind: Any) -> World:
        """A tool; `undo`: it can be taken back."""

        def tool(call: Any, order: int, text: str = "") -> str:
            self.made.append((name, call.key))
            if self.fails:
                raise self.fails.pop()
            return f"{name} {order}"

        def back(call: Any, result: Any) -> str:
            self.undone.append((name, call.key, call.undoes, result))
            if self.fails:
                raise self.fails.pop()
            return "taken back"

        self.box.tool(name=name, undo=back if undo else None, **kind)(tool)
        return self

    def keys_of(self, name: str = "pay") -> list[str]:
        """The keys under which a tool took effect."""
        return [key for tool, key in self.made if tool == name]

    def llm(self, messages: list[dict[str, Any]]) -> Any:
        check_messages(messages)
        replies = sum(message["role"] == "assistant" for message in messages)
        if replies == len(self.wanted):
            return "done"
        self._ids += 1
        calls = [
            {"id": f"c{self._ids}-{place}", "name": name, "arguments": given}
            for place, (name, given) in enumerate(self.wanted[replies])
        ]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def play(self, vault: Vault, thread_id: str = "t", **how: Any) -> Any:
        """The loop of every agent."""
        with vault.run(thread_id, tools=self.box, agent="helper") as run:
            run.user("hi", key="first")
            while not run.done:
                run.tools(**how)
                run.model(self.llm)
            return run.reply

    def held_back(self, vault: Vault, thread_id: str = "t", **how: Any) -> CallEntry:
        """Play until a person is asked; the call that waits."""
        before = list(self.made)
        try:
            self.play(vault, thread_id, **how)
        except Paused as paused:
            entry: CallEntry = paused.call
            assert self.made == before
            return entry
        raise AssertionError(f"nothing was held back; {self.made}")

    def allowed(self, vault: Vault, thread_id: str = "t", **answer: Any) -> Any:
        """Play with a person beside it who allows everything."""
        while True:
            try:
                return self.play(vault, thread_id)
            except Paused as paused:
                vault.answer(thread_id, paused.call, True, **answer)

    def held_back_after(self, vault: Vault, *names: str, thread_id: str = "t") -> CallEntry:
        """Play until a person is asked, after these tools were called; the call that waits."""
        made = len(self.made)
        try:
            self.play(vault, thread_id)
        except Paused as paused:
            entry: CallEntry = paused.call
            assert [name for name, _ in self.made[made:]] == list(names)
            return entry
        raise AssertionError(f"nothing was held back; {self.made}")
