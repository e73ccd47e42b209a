"""A vault with a bit of everything."""

from __future__ import annotations

from typing import Any

import pytest

import savegame
from savegame.model import ThreadKey

USER = {"role": "user", "content": "My parcel 1017 never came."}
CALL = {"id": "c1", "name": "wire", "arguments": {"cents": 4900}}


def fill(address: str) -> None:
    """Threads with branches, notes, a fork, another agent, a subject, two runs that need a person, one that is stale."""
    with savegame.open(address) as vault:
        chat = vault.thread("support-42", agent="helper")
        chat.save({"messages": [USER], "plan": {"steps": ["look", "refund"]}}, tokens_used=120, cost=0.25)
        chat.update(append={"messages": [{"role": "assistant", "content": "Let me look.\nOne moment."}]}, label="before refund")
        chat.update(append={"messages": [{"role": "assistant", "content": "I refund it."}]}, tags=["risky"])
        chat.rewind("before refund")
        chat.update(append={"messages": [{"role": "assistant", "content": "A new one is on its way."}]}, status="completed")
        chat.attach_subject("customer-7")
        chat.fork("what-if", at="before refund")
        vault.thread("report", agent="writer").save(["a", "list"])
        wait_for_person(vault, "invoice-7")
        lose_outcome(vault, "invoice-8")
        vault.thread("gone").save({"messages": [USER]})
        vault.store.lease(ThreadKey(vault.namespace, "gone"), "somebody", 1)


def model(messages: list[dict[str, Any]]) -> Any:
    return {"role": "assistant", "content": "I wire it.", "tool_calls": [CALL]} if len(messages) == 1 else "done"


def pay(vault: savegame.Vault, thread_id: str, tools: savegame.Toolbox) -> None:
    with vault.run(thread_id, tools=tools) as run:
        run.user("Pay it.")
        run.model(model)
        run.tools()


def wait_for_person(vault: savegame.Vault, thread_id: str) -> None:
    tools = savegame.Toolbox()

    @tools.tool(ask=True)
    def wire(cents: int) -> str:
        return f"wired {cents}"

    with pytest.raises(savegame.Paused):
        pay(vault, thread_id, tools)


def lose_outcome(vault: savegame.Vault, thread_id: str) -> None:
    """A call that was interrupted in the middle: whether the money went is unknown."""
    tools = savegame.Toolbox()

    @tools.tool
    def wire(cents: int) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pay(vault, thread_id, tools)
