"""The agent that `savegame demo` starts and kills: an own loop on a scripted model, saved at every step."""

from __future__ import annotations

import sys
import time
from typing import Any

import savegame
from savegame.cli.demo import KILL_AFTER, SCRIPT, THREAD


def scripted_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What a model, a tool or a user would say next."""
    return SCRIPT[len(messages)]


def run(path: str, *, pause: bool) -> None:
    """Carry the conversation on from wherever it is, one saved step per message."""
    with savegame.open(path) as vault:
        thread = vault.thread(THREAD, agent="helper")
        messages = (thread.state() or {"messages": []})["messages"]
        if messages:
            say(f"found {len(messages)} messages, carrying on")
        while len(messages) < len(SCRIPT):
            message = scripted_model(messages)
            what = f"{message['role']}: {message['content']}"
            label = "before refund" if len(messages) == 2 else None
            saved = thread.update(append={"messages": [message]}, label=label)
            messages.append(message)
            say(f"step {saved.step} saved  {what}")
            if pause and saved.step == KILL_AFTER:
                time.sleep(60)


def say(line: str) -> None:
    """One line for whoever started us, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(sys.argv[1], pause=sys.argv[2] == "pause")
