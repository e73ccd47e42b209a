"""An agent loop that can be killed at any moment and started again: python own_loop.py [--pause SECONDS].

It saves every step to agents.db in the current directory. Kill it during a pause, run it again, and it continues.
The model is a script; put your own call in its place.
"""

import argparse
import time

import savegame

SCRIPT = [
    {"role": "user", "content": "My parcel 1017 never came."},
    {"role": "assistant", "content": "Let me look.", "tool": "find_order"},
    {"role": "tool", "content": "lost in transit"},
    {"role": "assistant", "content": "It is lost.", "tool": "refund"},
    {"role": "tool", "content": "refunded 49.00"},
    {"role": "assistant", "content": "I sent 49.00 back."},
]


def next_message(messages, key):
    """What the user, the model or a tool says next; `key` is the same after a restart, for services that can use one."""
    return SCRIPT[len(messages)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    pause = parser.parse_args().pause
    with savegame.open("agents.db") as vault:
        thread = vault.thread("support-42", agent="helper")
        messages = (thread.state() or {"messages": []})["messages"]
        if messages:
            print("carrying on after step", thread.step)
        while len(messages) < len(SCRIPT):
            message = next_message(messages, key=thread.head)
            done = len(messages) + 1 == len(SCRIPT)
            saved = thread.update(append={"messages": [message]}, status="completed" if done else "in_progress")
            messages.append(message)
            print(f"step {saved.step}: {message['role']}: {message['content']}")
            time.sleep(pause)
        print("done:", thread.latest().status)


if __name__ == "__main__":
    main()
