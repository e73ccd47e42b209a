"""Four workers resume what a killed process left behind: python supervisor.py, or its parts separately.

    python supervisor.py begin    starts eight runs, and is killed with SIGKILL in the middle of all of them
    python supervisor.py work     a worker: resumes stale runs until none is left; start as many as you like
    python supervisor.py show     the bills: each is written exactly once

Without a part, the first runs, then four workers at once, each in its own process. All of them supervise the same vault;
a lease per thread ensures that only one of them resumes each run. Everything is stored in bills.db in the current directory, or
in another SQLite vault (--vault). The model is a script.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import savegame

RUNS = [f"meter-{number}" for number in range(8)]
LEASE = timedelta(seconds=3)  # if the system cannot say whether a process is dead, its lease has to run out first


def toolbox(worker):
    tools = savegame.Toolbox()

    @tools.tool(read_only=True)
    def read_meter(call):
        return 42

    @tools.tool(transaction=True)
    def bill(call, amount: int):
        call.db.execute("INSERT INTO app_bill VALUES (?, ?, ?)", (call.thread_id, amount, worker))
        return "billed"

    return tools


def model(messages):
    """Read the meter, write the bill, report it."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if len(results) == 2:
        return "The bill is written."
    name, arguments = ("bill", {"amount": results[0]}) if results else ("read_meter", {})
    return {"role": "assistant", "content": "", "tool_calls": [{"id": name, "name": name, "arguments": arguments}]}


def agent(vault, tools, thread_id):
    with vault.run(thread_id, tools=tools, lease=LEASE) as run:
        while not run.done:
            run.tools()
            run.model(model)
        return run.reply


def begin(vault):
    """All runs reach their first tool call; then the process kills itself."""
    with vault.connection() as db:
        db.execute("CREATE TABLE IF NOT EXISTS app_bill (thread TEXT, amount INTEGER, worker TEXT)")
    with contextlib.ExitStack() as held:
        for thread_id in RUNS:
            run = held.enter_context(vault.run(thread_id, tools=toolbox("the first"), lease=LEASE))
            run.user("Bill me.", key="contract-1")
            if run.messages[-1]["role"] == "user":
                run.model(model)
        os.kill(os.getpid(), signal.SIGKILL)


def work(vault, name):
    """One worker: resume stale runs until none is in progress."""
    tools = toolbox(name)
    while any(vault.threads(status="in_progress")):
        vault.supervise(lambda thread_id: agent(vault, tools, thread_id), once=True)
        time.sleep(0.1)


def show(vault):
    with vault.connection() as db:
        bills = list(db.execute("SELECT thread, worker FROM app_bill ORDER BY thread"))
    for thread_id, worker in bills:
        print(f"{thread_id} was carried on by {worker}")
    print("bills:", len(bills), "of different meters:", len({thread_id for thread_id, _ in bills}))


def all_parts(address):
    def start(*part):
        return subprocess.Popen([sys.executable, __file__, *part, "--vault", address])  # noqa: S603 - this file

    print("the first process ended with", start("begin").wait())
    with savegame.open(address) as vault:
        print("left behind:", len(list(vault.threads(status="in_progress"))))
        for worker in [start("work", "--name", f"worker {number}") for number in range(4)]:
            worker.wait()
        show(vault)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=["begin", "work", "show"])
    parser.add_argument("--name", default="a worker")
    parser.add_argument("--vault", default="bills.db")
    given = parser.parse_args()
    if given.part is None:
        all_parts(given.vault)
        return
    with savegame.open(given.vault) as vault:
        if given.part == "begin":
            begin(vault)
        elif given.part == "work":
            work(vault, given.name)
        else:
            show(vault)


if __name__ == "__main__":
    main()
