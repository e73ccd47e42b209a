"""The agent that `savegame demo` starts and kills: a run on a scripted model, and a bank that counts what it does."""

from __future__ import annotations

import datetime as dt
import sys
import time
from pathlib import Path
from typing import Any

import savegame
from savegame.cli.demo import ORDER, PAID, SCRIPT, THREAD, bank_of


def scripted_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What a model would say next."""
    return SCRIPT[len(messages)]


def toolbox(bank: Path, *, pause: bool) -> savegame.Toolbox:
    """The agent's tools. With `pause`, the refund never comes back, so that the demo can kill it in there."""
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
    """What a payment service does: it pays once for each key, however often it is asked. A line for each time."""
    lines = bank.read_text(encoding="utf-8").splitlines() if bank.exists() else []
    does = "has paid already" if f"{PAID} {key}" in lines else PAID
    with bank.open("a", encoding="utf-8") as book:
        book.write(f"{does} {key}\n")
    return does


def run(path: Path, *, pause: bool) -> None:
    """Carry the conversation on from wherever it is."""
    tools = toolbox(bank_of(path), pause=pause)
    with savegame.open(path) as vault, vault.run(THREAD, agent="helper", tools=tools, lease=dt.timedelta(seconds=3)) as held:
        if held.checkpoint is not None:
            say(f"run    finds {held.checkpoint.step} saved steps, carries on")
        held.user(SCRIPT[0]["content"], key="click-1")
        while not held.done:
            held.tools()
            held.model(scripted_model)
            say(f"model  {held.reply}")


def run_when_free(path: Path, *, pause: bool) -> None:
    """Where the system does not tell that the holder's process is gone, its lease has to run out first."""
    while True:
        try:
            run(path, pause=pause)
            return
        except savegame.Busy as busy:
            say(f"run    waits: {busy}")
            time.sleep(1)


def say(line: str) -> None:
    """One line for whoever started us, at once, in the encoding that it reads."""
    sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.flush()


if __name__ == "__main__":
    run_when_free(Path(sys.argv[1]), pause=sys.argv[2] == "pause")
