"""An agent with every kind of tool: python refund_agent.py [--die-in TOOL]. Run it again after a crash: it continues.

It stores everything in refunds.db in the current directory, or in another SQLite vault (--vault). With --die-in the process is
killed inside that tool, right after its effect and before the result is saved: the worst moment. The model is a script.
"""

import argparse
import os
import signal

import savegame

tools = savegame.Toolbox()
die_in = None


def effect(text):
    """An effect that cannot be undone, represented by a line in effects.log."""
    with open("effects.log", "a", encoding="utf-8") as log:
        log.write(text + "\n")


def maybe_die(name):
    if die_in == name:
        os.kill(os.getpid(), signal.SIGKILL)


@tools.tool(read_only=True)
def find_order(order: int):
    """Look an order up."""
    maybe_die("find_order")
    return {"order": order, "cents": 4900, "state": "lost in transit"}


@tools.tool(idempotent=True)
def refund(call, order: int, cents: int):
    """Send money back."""
    effect(f"refund {order} key={call.key}")  # a payment service pays once per key
    maybe_die("refund")
    return "refunded"


@tools.tool(transaction=True)
def note(call, text: str):
    """Write into the customer's file."""
    call.db.execute("INSERT INTO app_note VALUES (?, ?)", (call.thread_id, text))  # commits together with the result
    maybe_die("note")
    return "noted"


@tools.tool
def mail(to: str, text: str):
    """Send a mail."""
    effect(f"mail to {to}")
    maybe_die("mail")
    return "sent"


@tools.tool(ask=True)
def give_voucher(cents: int):
    """Give a voucher, if a person agrees."""
    effect(f"voucher {cents}")
    maybe_die("give_voucher")
    return "given"


def call(name, **arguments):
    return {"id": f"call_{name}", "name": name, "arguments": arguments}


SCRIPT = [
    {"role": "assistant", "content": "Let me look.", "tool_calls": [call("find_order", order=1017)]},
    {
        "role": "assistant",
        "content": "It is lost.",
        "tool_calls": [call("refund", order=1017, cents=4900), call("note", text="1017: refunded")],
    },
    {
        "role": "assistant",
        "content": "I tell you by mail, and ask for a voucher.",
        "tool_calls": [call("mail", to="ada", text="49.00 are on their way"), call("give_voucher", cents=500)],
    },
    "You have your money back, and a voucher.",
]


def model(messages):
    """Put your own call here. It gets the whole conversation, with every tool call answered."""
    return SCRIPT[sum(message["role"] == "assistant" for message in messages)]


def agent(vault, thread_id, text=None, key=None):
    with vault.run(thread_id, agent="helper", tools=tools) as run:
        if text:
            run.user(text, key=key)
        while not run.done:
            run.tools()
            run.model(model)
        return run.reply


def main():
    global die_in
    parser = argparse.ArgumentParser()
    parser.add_argument("--die-in", choices=[tool.name for tool in tools])
    parser.add_argument("--vault", default="refunds.db")
    given = parser.parse_args()
    die_in = given.die_in
    with savegame.open(given.vault) as vault:
        with vault.connection() as db:
            db.execute("CREATE TABLE IF NOT EXISTS app_note (thread TEXT, text TEXT)")
        while True:
            try:
                reply = agent(vault, "support-42", "My parcel 1017 never came.", key="webhook-9001")
                break
            except savegame.Paused as paused:  # a person would decide here; see approval.py
                print("a person agrees to", paused.call.asked)
                vault.answer("support-42", paused.call, value=True)
            except savegame.Unknown as unknown:  # a person would check the outbox here
                print("unknown outcome:", unknown.call.name)
                vault.resolve("support-42", unknown.call, "it was sent before the crash")
        for entry in sorted(vault.calls("support-42"), key=lambda entry: entry.ended_at):
            print(f"{entry.name:13} {entry.status}, attempt {entry.attempt}: {entry.result}")
        with vault.connection() as db:
            print("notes:", db.execute("SELECT count(*) FROM app_note").get)
        print(reply)


if __name__ == "__main__":
    main()
