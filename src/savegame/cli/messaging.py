"""`savegame send`, `inbox`, `unsend` and `stop`: talk to a run, whichever process holds its thread, or to its next one.

A thread may have mail before it has a checkpoint, so `send`, `inbox` and `unsend` take any id. Touches vault and printing.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from savegame.cli import json_output
from savegame.cli.printing import ago, escape, one_line, plural, print_json, print_json_list, say
from savegame.cli.rendering import value_text
from savegame.cli.vaults import AsJson, Namespace, Store, ThreadName, command, get_thread, use_vault
from savegame.errors import InvalidInputError, NotFoundError


def send(
    thread: ThreadName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message of the user; - reads it from standard input.")],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Your id for this message; a thread takes each key only once.")
    ] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Send a message to a thread, even while a run holds it.

    The run takes it in before it asks the model again. Without one, savegame stale lists the thread until a run takes it in.

    Example: savegame send support-42 "Also, the wrong colour." --key msg-77
    """
    content = _read_input() if text == "-" else text
    with use_vault(store, namespace, change=True) as vault:
        new = vault.send(thread, content, key=key)
        waiting = len(list(vault.inbox(thread)))
        is_known = vault.info(thread) is not None
    if as_json:
        print_json({"thread_id": thread, "key": key, "new": new})
    elif new:
        say(f"sent to {one_line(thread)}; {plural(waiting, 'message')} in its inbox")
        if not is_known:
            say((f"{one_line(thread)} has no checkpoints yet; its first run begins with this message", "dim"))
    else:
        say(f"{one_line(thread)} had a message with the key {one_line(key)} before; nothing was sent")


def _read_input() -> str:
    """Standard input as text, without its last newline."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"standard input is not UTF-8 text ({error}); send text") from error


def inbox(
    thread: ThreadName,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List the messages that were sent to a thread and that no run has taken in yet.

    Example: savegame inbox support-42
    """
    with use_vault(store, namespace) as vault:
        found = list(vault.inbox(thread))
        if not found:
            get_thread(vault, thread, whole=True)  # raises if the id is misspelt
        if as_json:
            print_json_list(json_output.message_output(vault.codec, message) for message in found)
            return
    for message in found:
        text = escape(value_text(message.content, full=True)).replace("\n", "\n    ")
        say((f"{ago(message.sent_at):12}", "dim"), text, (f"  {one_line(message.key)}", "dim"), hang=4)
    if not found:
        say(("no messages in the inbox", "dim"))


def unsend(
    thread: ThreadName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the message, as savegame inbox shows it.")],
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Take a message back that no run has taken in yet.

    Its key stays used.

    Example: savegame unsend support-42 msg-77
    """
    with use_vault(store, namespace, change=True) as vault:
        if not vault.unsend(thread, key):
            raise NotFoundError(
                f"thread {thread!r} has no message {key!r} in its inbox: a run took it in, or it was never sent; "
                f"list them with {command('inbox', thread)}"
            )
    if as_json:
        print_json({"thread_id": thread, "key": key})
    else:
        say(f"took {one_line(key)} back from {one_line(thread)}")


def stop(
    thread: ThreadName,
    reason: Annotated[
        str, typer.Argument(metavar="REASON", help="Why; the model gets it for calls that were not made.")
    ] = "stopped from the command line",
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Stop the run of a thread.

    A live run keeps the results that it has, and ends before its next call. Otherwise the thread is halted at once. Only a
    later message opens it again.

    Example: savegame stop support-42 "the customer called"
    """
    with use_vault(store, namespace, change=True) as vault:
        name = get_thread(vault, thread, whole=True).id
        stopped = vault.stop(name, reason)
        found = vault.info(name)
    status = "in_progress" if found is None else str.__str__(found.status)
    if as_json:
        print_json({"thread_id": name, "stopped": stopped, "status": status})
    elif not stopped:
        say(f"{one_line(name)} was not stopped: it is {status.replace('_', ' ')}")
    elif status == "in_progress":
        say(f"{one_line(name)}: its run was told to stop, and ends before its next call")
    else:
        say(f"{one_line(name)}: {status}")
