"""Four workers carry on what a killed process left behind: python supervisor.py. Every bill is written exactly once.

A first process begins eight runs at once and is killed with SIGKILL in the middle of all of them. Each of four workers
supervises the same vault; a lease per thread sees to it that one of them resumes each run. The model is a script.
"""

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import savegame

RUNS = [f"meter-{number}" for number in range(8)]
LEASE = timedelta(seconds=3)  # where the system does not tell that a process is gone, its lease has to run out first


def toolbox(worker, before_reading=lambda: None):
    tools = savegame.Toolbox()

    @tools.tool(read_only=True)
    def read_meter(call):
        before_reading()
        return 42

    @tools.tool(transaction=True)
    def bill(call, amount: int):
        call.db.execute("INSERT INTO app_bill VALUES (?, ?, ?)", (call.thread_id, amount, worker))
        return "billed"

    return tools


def model(messages):
    """Read the meter, write the bill, say so."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if len(results) == 2:
        return "The bill is written."
    name, arguments = ("bill", {"amount": results[0]}) if results else ("read_meter", {})
    return {"role": "assistant", "content": "", "tool_calls": [{"id": name, "name": name, "arguments": arguments}]}


def agent(vault, tools, thread_id, text=None):
    with vault.run(thread_id, tools=tools, lease=LEASE) as run:
        if text:
            run.user(text)
        while not run.done:
            run.tools()
            run.model(model)
        return run.reply


def begin_and_die(path):
    """All runs get as far as their first tool; then the process is killed, by its own hand."""
    together = threading.Barrier(len(RUNS), action=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with savegame.open(path) as vault:
        tools = toolbox("the first", together.wait)
        for thread_id in RUNS:
            threading.Thread(target=agent, args=(vault, tools, thread_id, "Bill me.")).start()
        threading.Event().wait()


def work(path, number, finished):
    """One worker: resume whatever goes stale, until it is told to stop."""
    stop = threading.Event()
    threading.Thread(target=lambda: (finished.wait(), stop.set()), daemon=True).start()
    with savegame.open(path) as vault:
        tools = toolbox(f"worker {number}")
        vault.supervise(lambda thread_id: agent(vault, tools, thread_id), poll=timedelta(milliseconds=100), stop=stop)


def main():
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "bills.db")
        with savegame.open(path) as vault, vault.connection() as db:
            db.execute("CREATE TABLE app_bill (thread TEXT, amount INTEGER, worker TEXT)")
        first = spawn.Process(target=begin_and_die, args=(path,))
        first.start()
        first.join()
        print("the first process ended with", first.exitcode)

        finished = spawn.Event()
        workers = [spawn.Process(target=work, args=(path, number, finished)) for number in range(4)]
        with savegame.open(path) as vault:
            print("left behind:", len(list(vault.threads(status="in_progress"))))
            for worker in workers:
                worker.start()
            while any(vault.threads(status="in_progress")):
                time.sleep(0.1)
            finished.set()
            for worker in workers:
                worker.join()
            with vault.connection() as db:
                bills = list(db.execute("SELECT thread, worker FROM app_bill ORDER BY thread"))
        for thread_id, worker in bills:
            print(f"{thread_id} was carried on by {worker}")
        print("bills:", len(bills), "of different meters:", len({thread_id for thread_id, _ in bills}))


if __name__ == "__main__":
    main()
