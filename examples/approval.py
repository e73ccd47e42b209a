"""A person takes two days to agree, and no process waits: python approval.py, or its three parts separately.

    python approval.py ask       the agent wants to wire money, asks, and its process ends
    python approval.py answer    days later: a person approves, or rejects with --no; no agent is running
    python approval.py resume    the agent continues from there

Without a part, all three run one after the other, each in its own process. Everything is stored in approval.db in the
current directory, or in another vault (--vault). The model is a script.
"""

import argparse
import subprocess
import sys

import savegame

THREAD = "invoice-7"
tools = savegame.Toolbox()


@tools.tool(ask=True)
def wire(iban: str, cents: int):
    """Wire money. Unmarked, so at most once; asks a person first."""
    print("  the money is on its way to", iban)
    return "wired"


def model(messages):
    """Put your own call here."""
    last = messages[-1]
    if last["role"] == "user":
        wanted = {"id": "call_1", "name": "wire", "arguments": {"iban": "DE02 1203", "cents": 120000}}
        return {"role": "assistant", "content": "I wire the money.", "tool_calls": [wanted]}
    return "The invoice is paid." if last["content"] == "wired" else f"I could not pay it ({last['content']})."


def agent(vault, text=None, key=None):
    with vault.run(THREAD, tools=tools) as run:
        if text:
            run.user(text, key=key)
        while not run.done:
            run.tools()
            run.model(model)
        return run.reply


def ask(vault):
    try:
        print(agent(vault, "Pay invoice 7.", key="mail-1"))
    except savegame.Paused as paused:
        print("  waits for a person:", paused.call.asked)


def answer(vault, value):
    for entry in vault.calls(THREAD):
        if entry.status == "waiting":
            print("  the first answer counts:", vault.answer(THREAD, entry, value))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=["ask", "answer", "resume"])
    parser.add_argument("--no", action="store_true", help="refuse")
    parser.add_argument("--vault", default="approval.db")
    given = parser.parse_args()
    if given.part is None:
        for part in ("ask", "answer", "resume"):
            print(part, flush=True)
            command = [sys.executable, __file__, part, "--vault", given.vault, *["--no"] * given.no]
            subprocess.run(command, check=True)  # noqa: S603 - this file
        return
    with savegame.open(given.vault) as vault:
        if given.part == "ask":
            ask(vault)
        elif given.part == "answer":
            answer(vault, "not before Friday" if given.no else True)
        else:
            print(" ", agent(vault))


if __name__ == "__main__":
    main()
