"""The agent that `savegame demo` starts and kills: a run on a scripted model, and a bank that logs its payments.

It is run as a process of its own, so that the demo can really kill it. Touches vault and runs.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from pathlib import Path
from typing import Any

import savegame
from savegame.cli.demo import ORDER, PAID, SCRIPT, THREAD_ID, bank_of


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

    @tools.tool(idempotent=True)
    def refund(call: savegame.Call, cents: int) -> dict[str, int]:
        say(f"tool   refund({cents}): the bank {pay(bank, call.key)}, key …{call.key[-8:]}")
        if pause:
            time.sleep(60)
        return {"refunded": cents}

    return tools


def pay(bank: Path, key: str) -> str:
    """Pay once per key, however often it is called, and log each request on a line. Returns what the bank did."""
    lines = bank.read_text(encoding="utf-8").splitlines() if bank.exists() else []
    action = "has paid already" if f"{PAID} {key}" in lines else PAID
    with bank.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{action} {key}\n")
    return action


def run(path: Path, *, pause: bool) -> None:
    """Continue the conversation from its last saved step."""
    tools = toolbox(bank_of(path), pause=pause)
    with savegame.open(path) as vault, vault.run(THREAD_ID, agent="helper", tools=tools, lease=dt.timedelta(seconds=3)) as held:
        if held.checkpoint is not None:
            say(f"run    resumes after {held.checkpoint.step} saved steps")
        held.user(SCRIPT[0]["content"], key="click-1")
        while not held.done:
            held.tools()
            held.model(scripted_model)
            say(f"model  {held.reply}")


def run_when_free(path: Path, *, pause: bool) -> None:
    """Where the system cannot tell that the holder's process died, wait until its lease expires."""
    while True:
        try:
            run(path, pause=pause)
            return
        except savegame.Busy as busy:
            say(f"run    waits: {busy}")
            time.sleep(1)


def say(line: str) -> None:
    """Print one line for the parent process, unbuffered, in the encoding that it reads."""
    sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.flush()


if __name__ == "__main__":
    run_when_free(Path(sys.argv[1]), pause=sys.argv[2] == "pause")
