"""Rewind, fork and compare: python time_travel.py."""

import tempfile
from pathlib import Path

import savegame


def say(thread, role, content, **details):
    return thread.update(append={"messages": [{"role": role, "content": content}]}, **details)


def main():
    with tempfile.TemporaryDirectory() as directory, savegame.open(Path(directory) / "agents.db") as vault:
        thread = vault.thread("support-42")
        say(thread, "user", "My parcel never came.")
        say(thread, "tool", "lost in transit", label="before refund")
        say(thread, "assistant", "I sent 49.00 back.", label="refunded")

        thread.rewind("before refund")  # the refund stays, as a branch
        say(thread, "assistant", "A new parcel is on its way.", label="resent")

        fork = thread.fork("what-if", at="before refund")  # a thread of its own
        say(fork, "assistant", "May I offer you a voucher?")

        for checkpoint in thread.history(branches=True, newest_first=False):
            head = " <- head" if checkpoint.id == thread.head else ""
            print(f"step {checkpoint.step}  {checkpoint.label or ''}{head}")
        print("\nrefunded and resent:")
        print(thread.diff("refunded", "resent"))
        print("\nresent and what-if:")
        print(vault.diff(thread.head, fork.head))


if __name__ == "__main__":
    main()
