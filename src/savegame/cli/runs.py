"""`savegame stale`, `calls`, `answer` and `resolve`: runs to resume, and tool calls that need a person.

No run has to be alive for any of them: they read and write the ledger of its thread. Touches vault, printing and rendering.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterator
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from savegame.cli import json_output
from savegame.cli.printing import ago, clip, escape, one_line, print_json, print_json_list, print_lines, print_table, say, warn
from savegame.cli.rendering import entry_text, value_text
from savegame.cli.vaults import AsJson, Namespace, Store, ThreadName, command, complete_thread, get_thread, use_vault
from savegame.encoding.text import plain_text
from savegame.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError
from savegame.present.effects import call_name, offers_result
from savegame.runs.ledger import CallEntry, CallStatus
from savegame.runs.runner import StaleRun
from savegame.vault import Vault

STYLES: Final = {
    "done": "green", "failed": "red", "answered": "green",
    "waiting": "bold yellow", "unknown": "bold red", "started": "bold red",
}  # fmt: skip
NEEDS: Final = {
    "answer": (" for an answer", "answer", "--approve, or --reject WHY"),
    "value": (" for an answer", "answer", "--value JSON"),
    "repeat": (" for an answer: it was made before", "answer", "--approve, or --reject WHY"),
    "reuse": (" for an answer: it was made before", "answer", "--approve, --approve --reuse, or --reject WHY"),
    "outcome": (": the outcome is unknown", "resolve", "--result JSON, or --error TEXT"),
}
"""By what a call needs from a person: a description, the command, and its options."""

CallKey = Annotated[
    str | None,
    typer.Argument(metavar="CALL", help="Key of the call, or a unique prefix. Optional if only one call matches."),
]


def stale(store: Store = None, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """List runs to resume: they crashed, have mail, or are due after a sleep.

    No process holds them. Call your agent again for each to resume it.

    Example: savegame stale --json | jq -r '.[].thread_id'
    """
    with use_vault(store, namespace) as vault:
        if as_json:
            print_json_list(map(json_output.stale_output, vault.stale()))
            return
        columns = ("thread", "agent", "why", "since", ">takeovers", "held by")
        print_table(columns, map(_cells, vault.stale()), nothing="no stale runs", spare=("agent", ">takeovers"))


def _cells(run: StaleRun) -> tuple[str | Text, ...]:
    name = Text(clip(run.thread_id, 60), "bold")
    takeovers = str(run.takeovers) if run.damage is None else Text("✗ damaged", "bold red")
    since = "" if run.since is None else ago(run.since)
    return name, clip(run.agent_id or "", 30), run.reason, since, takeovers, clip(run.owner or "", 60)


def calls(
    thread: Annotated[
        str | None, typer.Argument(metavar="THREAD", help="Show all calls of this thread.", autocompletion=complete_thread)
    ] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List tool calls, first of all those that need a person.

    Without THREAD, lists the unsettled calls of all unfinished threads that no process is working on.

    Example: savegame calls support-42
    """
    with use_vault(store, namespace) as vault:
        held = {run.thread_id for run in vault.runs() if not run.stale}
        found = _list_open(vault, held) if thread is None else _list_all(vault, get_thread(vault, thread).id)
        if as_json:
            print_json_list(json_output.call_output(vault.codec, thread_id, entry) for thread_id, entry in found)
            return
        calls = list(found)
    settled = [_settled_line(entry) for _, entry in calls if entry.settled]
    print_lines(settled, hang=8)
    others = [(thread_id, entry, entry.needs(held=thread_id in held)) for thread_id, entry in calls if not entry.settled]
    count = Counter((thread_id, need) for thread_id, _, need in others)
    for place, (thread_id, entry, need) in enumerate(others):
        if place or settled:
            say("")
        _print_open(thread_id, entry, need, alone=count[thread_id, need] == 1)
    if not calls:
        say(("no open calls" if thread is None else "no calls", "dim"))


def _settled_line(entry: CallEntry) -> Text:
    """A call that ended: status, call, result and key."""
    status = (f"{entry.status.value:8}", STYLES.get(entry.status, ""))
    return Text.assemble(status, entry_text(entry), (f"  {one_line(entry.key)}", "dim"))


def _print_open(thread_id: str, entry: CallEntry, need: str | None, *, alone: bool) -> None:
    """Print an unsettled call: everything that a person needs to decide, and the command to enter the decision."""
    repeats = "reuse" if offers_result(entry) else "repeat" if entry.before is not None else need
    means, verb, how = NEEDS["value" if entry.interrupt else repeats or need] if need else ("", "", "")
    status = "answered" if entry.answered else entry.status.value
    name = (one_line(call_name(entry)), "bold cyan")
    say((one_line(thread_id), "bold"), "  ", name, "  ", (status, STYLES[status]), (means, "dim"), hang=4)
    if entry.asked:
        say("    ", ("asks: ", "cyan"), value_text(entry.asked, full=True).replace("\n", "\n    "), hang=4)
    for argument, value in entry.arguments.items():
        text = escape(plain_text(value, indent=2)).replace("\n", "\n    ")
        say("    ", (f"{one_line(argument)}: ", "cyan"), text, hang=4)
    decide = f"{one_line(command(verb, thread_id, *([] if alone else [entry.key])))} {how}"
    wait = "the call is running" if entry.status == CallStatus.STARTED else "call the agent again to continue"
    say((f"    {decide if need else wait}", "dim"))


def _list_all(vault: Vault, thread_id: str) -> Iterator[tuple[str, CallEntry]]:
    return ((thread_id, entry) for entry in vault.calls(thread_id))


def _list_open(vault: Vault, held: Container[str]) -> Iterator[tuple[str, CallEntry]]:
    """Unsettled calls, without those that a live run is making, and all interrupts."""
    for info in vault.threads():
        if info.status == "completed" or info.damage is not None:
            continue
        try:
            found = vault.calls(info.id)
        except CorruptionError as error:  # list the others
            warn(f"skipped {one_line(info.id)}, which is damaged: {one_line(error)}")
            continue
        for entry in found:
            if (entry.interrupt or info.status == "in_progress") and (entry.answered or entry.needs(held=info.id in held)):
                yield info.id, entry


def answer(
    thread: ThreadName,
    call: CallKey = None,
    approve: Annotated[bool, typer.Option("--approve", help="Approve the call.")] = False,
    reject: Annotated[str | None, typer.Option(metavar="WHY", help="Reject the call; the model gets the reason.")] = None,
    value: Annotated[
        str | None, typer.Option(metavar="JSON", help="Answer to the interrupt of a LangGraph graph: what interrupt() returns.")
    ] = None,
    reuse: Annotated[
        bool,
        typer.Option("--reuse", help="With --approve, of a call that was made before: use the kept result, do not repeat it."),
    ] = False,
    comment: Annotated[str | None, typer.Option(metavar="TEXT", help="Comment to record with the approval.")] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Approve or reject a tool call that waits for a person, or answer the interrupt of a graph.

    The first answer counts. No process needs to be running; the agent continues when it is called again.

    Example: savegame answer invoice-7 --reject "not before Friday"
    """
    if approve + (reject is not None) + (value is not None) != 1:
        raise InvalidInputError("pass one of --approve, --reject WHY and --value JSON")
    if reuse and not approve:
        raise InvalidInputError("--reuse approves a call with its kept result; pass --approve --reuse")
    given = _parse_json(value, "--value") if value is not None else True if reject is None else reject or False
    with use_vault(store, namespace, change=True) as vault:
        name = get_thread(vault, thread, whole=True).id
        entry = _choose_call(vault, name, call, (CallStatus.WAITING,))
        if value is not None and not entry.interrupt:
            raise InvalidInputError(f"{entry.name!r} is a tool call; pass --approve or --reject WHY")
        if not vault.answer(name, entry, given, comment=comment, reuse=reuse):
            raise AlreadyExistsError(f"call {entry.key} of {entry.name!r} was already answered; the first answer counts")
    approved = "approved with the kept result" if reuse else "approved"
    what = "answered" if value is not None else "rejected" if reject is not None else approved
    _print_decision(name, entry, what, as_json=as_json)


def resolve(
    thread: ThreadName,
    call: CallKey = None,
    result: Annotated[str | None, typer.Option(metavar="JSON", help="The call took effect: its result, as JSON.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The call failed or never happened: the error that the model gets.")
    ] = None,
    store: Store = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Record the outcome of a call that crashed in the middle.

    Find out whether the call took effect, record it here, and the run can continue.

    Example: savegame resolve support-42 --result '{"refunded": 4900}'
    """
    if (result is None) == (error is None):
        raise InvalidInputError("pass either --result JSON or --error TEXT")
    value = None if result is None else _parse_json(result, "--result")
    with use_vault(store, namespace, change=True) as vault:
        name = get_thread(vault, thread, whole=True).id
        entry = _choose_call(vault, name, call, (CallStatus.UNKNOWN, CallStatus.STARTED))
        vault.resolve(name, entry, value, error=error)
    _print_decision(name, entry, "resolved", as_json=as_json)


def _parse_json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{option} is not JSON ({error}); quote a string: {option} '\"done\"'") from error


def _choose_call(vault: Vault, thread_id: str, key: str | None, statuses: tuple[CallStatus, ...]) -> CallEntry:
    """The call with this key or key prefix; without a key, the only one with such a status.

    Raises NotFoundError, and InvalidInputError if several match.
    """
    entries = list(vault.calls(thread_id))
    if key is not None:
        found = [entry for entry in entries if entry.key == key] or [entry for entry in entries if entry.key.startswith(key)]
    else:
        found = [entry for entry in entries if entry.status in statuses]
        found = [entry for entry in found if not entry.answered] or found
    if len(found) == 1:
        return found[0]
    if not found:
        missing = f"call {key!r}" if key is not None else f"call that is {' or '.join(statuses)}"
        raise NotFoundError(f"thread {thread_id!r} has no {missing}; list its calls with {command('calls', thread_id)}")
    several = ", ".join(f"{entry.key} ({entry.name})" for entry in found[:5])
    raise InvalidInputError(f"several calls match: {several}; pass the key of one, or a longer prefix")


def _print_decision(thread_id: str, entry: CallEntry, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"thread_id": thread_id, "call": entry.key, "name": entry.name})
    else:
        say((one_line(call_name(entry)), "bold"), f" of {one_line(thread_id)}: {what}")
