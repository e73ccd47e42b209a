"""The agent that `savegame demo` starts and kills: a run on a scripted model, and a bank that logs its payments.

It is run as a process of its own, so that the demo can really kill it. Touches vault and runs.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import savegame

THREAD_ID, BEFORE = "support-42", "before refund"
PAID, CANCELLED = "pays", "cancels"
ORDER = {"order": 1017, "cents": 4900, "state": "lost in transit"}
SCRIPT: list[dict[str, Any]] = [
    {"role": "user", "content": "My parcel 1017 never came. I want my money back."},
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": "c1", "name": "find_order", "arguments": {"order": 1017}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": ORDER},
    {
        "role": "assistant",
        "content": "It is lost.",
        "tool_calls": [{"id": "c2", "name": "refund", "arguments": {"cents": 4900}}],
    },
    {"role": "tool", "tool_call_id": "c2", "content": {"refunded": 4900}},
    {"role": "assistant", "content": "I have sent 49.00 back to your card. Sorry for the trouble!"},
]


def scripted_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The next reply of the script."""
    return SCRIPT[len(messages)]


def toolbox(bank: Path, *, pause: bool) -> savegame.Toolbox:
    """The agent's tools. With `pause` the refund never returns, so that the demo can kill the agent inside it."""
    tools = savegame.Toolbox()

    @tools.tool(read_only=True)
    def find_order(order: int) -> dict[str, Any]:
        say(f"tool   find_order({order})")
        return {**ORDER, "order": order}

    def cancel_refund(call: savegame.Call, result: dict[str, int]) -> None:
        say(f"undo   refund({result['refunded']}): the bank {ask_bank(bank, CANCELLED, call.key)}")

    @tools.tool(idempotent=True, undo=cancel_refund)
    def refund(call: savegame.Call, cents: int) -> dict[str, int]:
        say(f"tool   refund({cents}): the bank {ask_bank(bank, PAID, call.key)}, key …{call.key[-8:]}")
        if pause:
            time.sleep(60)
        return {"refunded": cents}

    return tools


def ask_bank(bank: Path, action: str, key: str) -> str:
    """Pay or cancel once per key, however often it is called, and log each request on a line. Returns what the bank did."""
    lines = bank.read_text(encoding="utf-8").splitlines() if bank.exists() else []
    outcome = "has done so already" if f"{action} {key}" in lines else action
    with bank.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{outcome} {key}\n")
    return outcome


def bank_of(path: Path) -> Path:
    """The bank's ledger: a plain file outside the vault, like any other external system."""
    return path.with_name("bank.txt")


def run(path: Path, *, pause: bool) -> None:
    """Continue the conversation from its last saved step."""
    tools = toolbox(bank_of(path), pause=pause)
    with savegame.open(path) as vault, vault.run(THREAD_ID, agent="helper", tools=tools, lease=dt.timedelta(seconds=3)) as held:
        if held.checkpoint is not None:
            say(f"run    resumes after {held.checkpoint.step} saved steps")
        held.user(SCRIPT[0]["content"], key="click-1")
        try:
            while not held.done:
                held.tools()
                held.model(scripted_model)
                say(f"model  {held.reply}")
        except savegame.Paused as paused:
            say(f"run    asks a person: {paused.call.asked if paused.call else paused}")


def undo(path: Path) -> None:
    """Take back what was done after the moment before the refund, and go back to it."""
    with savegame.open(path) as vault:
        vault.undo(THREAD_ID, to=BEFORE, tools=toolbox(bank_of(path), pause=False))


def when_free(work: Callable[[], None]) -> None:
    """Where the system cannot tell that the holder's process died, wait until its lease expires."""
    while True:
        try:
            work()
            return
        except savegame.Busy as busy:
            say(f"run    waits: {busy}")
            time.sleep(1)


def say(line: str) -> None:
    """Print one line for the parent process, unbuffered, in the encoding that it reads."""
    sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.flush()


if __name__ == "__main__":
    vault_path = Path(sys.argv[1])
    when_free(partial(undo, vault_path) if sys.argv[2] == "undo" else partial(run, vault_path, pause=sys.argv[2] == "pause"))
