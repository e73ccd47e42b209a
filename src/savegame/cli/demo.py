"""`savegame demo`: a scripted agent on a real SQLite file is killed inside a tool, resumed, rewound and forked.

The demo checks every claim that it prints, and fails if one does not hold.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

import savegame
from savegame.present.diffs import line_of

THREAD_ID = "support-42"
PAID = "pays"
ORDER = {"order": 1017, "cents": 4900, "state": "lost in transit"}
SCRIPT: list[dict[str, Any]] = [
    {"role": "user", "content": "My parcel 1017 never came. I want my money back."},
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": "c1", "name": "find_order", "arguments": {"order": 1017}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": ORDER},
    {
        "role": "assistant",
        "content": "It is lost.",
        "tool_calls": [{"id": "c2", "name": "refund", "arguments": {"cents": 4900}}],
    },
    {"role": "tool", "tool_call_id": "c2", "content": {"refunded": 4900}},
    {"role": "assistant", "content": "I have sent 49.00 back to your card. Sorry for the trouble!"},
]
MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id")


class DemoFailed(Exception):
    """A promise of the demo did not hold."""


def play(keep: Path | None) -> int:
    """Run the whole demo and return the exit code."""
    console = Console(highlight=False)
    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="savegame-demo-")))
        path = directory / "agents.db"
        for file in (path, bank_of(path)):
            if file.exists():
                raise savegame.AlreadyExistsError(f"{file} exists already; choose another directory with --keep")
        _create_vault(path)
        try:
            _crash(console, path)
            _carry_on(console, path)
            _time_travel(console, path)
        except (DemoFailed, savegame.SavegameError) as error:
            console.print(f"[bold red]The demo failed:[/] {error}")
            return 1
    console.print(
        "\n[bold green]Every step was checked.[/] Next:", "the ten lines at the top of the README." if keep is None else ""
    )
    for look in ("log support-42 --graph", "ui") if keep is not None else ():
        console.print(Text(f"   savegame {look} --store {shlex.quote(str(path))}", "cyan"), soft_wrap=True)
    return 0


def _create_vault(path: Path) -> None:
    """Create the vault, so that an unusable directory fails here and not inside the agent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise savegame.InvalidInputError(f"cannot create {path.parent} ({error.strerror}); choose another directory") from error
    savegame.open(path).close()


def _crash(console: Console, path: Path) -> None:
    console.print(Panel("1. An agent saves every step to [bold]agents.db[/]. During a refund it is killed with SIGKILL."))
    with _agent(path, pause=True) as agent:
        assert agent.stdout is not None
        for line in agent.stdout:
            console.print(f"   {line.rstrip()}", soft_wrap=True)
            if f"the bank {PAID}" in line:
                agent.send_signal(signal.SIGKILL)
                break
        code = agent.wait(timeout=30)
    _claim(code == -signal.SIGKILL, f"the agent was killed (it ended with {code})")
    console.print("   [bold red]✗ killed[/] (the bank has paid, and the agent could not record it)\n")


def _carry_on(console: Console, path: Path) -> None:
    console.print(Panel("2. Restarted, it finds the refund without a result and retries it with the same idempotency key."))
    with savegame.open(path) as vault:
        found = vault.thread(THREAD_ID).latest()
        _claim(found is not None and _messages(found.state) == SCRIPT[:4], "the reply that asks for the refund was saved")
        _claim(vault.verify().ok, "every byte of the file is intact")
    with _agent(path, pause=False) as agent:
        assert agent.stdout is not None
        for line in agent.stdout:
            console.print(f"   {line.rstrip()}", soft_wrap=True)
        _claim(agent.wait(timeout=30) == 0, "the second agent finished")
    with savegame.open(path) as vault:
        thread = vault.thread(THREAD_ID)
        _claim(_messages(thread.state()) == SCRIPT, "the conversation is complete, without duplicates")
        thread.label(3, "before refund")
    requests = bank_of(path).read_text(encoding="utf-8").splitlines()
    payments = [line for line in requests if line.startswith(PAID)]
    keys = {line.split()[-1] for line in requests}
    counts = (len(requests), len(keys), len(payments))
    _claim(counts == (2, 1, 1), f"the bank got two requests with one key and paid once: {requests}")
    console.print(f"   [bold green]✓[/] requests to the bank: {counts[0]}, keys: {counts[1]}, refunds paid: {counts[2]}")
    console.print("   [bold green]✓[/] the conversation is complete, without duplicates\n")


def _messages(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages without the marks of the run."""
    return [{name: message[name] for name in MESSAGE_FIELDS if name in message} for message in state["messages"]]


def _time_travel(console: Console, path: Path) -> None:
    console.print(Panel("3. Rewind to before the refund, try two alternatives, and compare them."))
    with savegame.open(path) as vault:
        thread = vault.thread(THREAD_ID)
        finished = thread.latest()
        assert finished is not None
        thread.rewind("before refund")
        _claim(len(thread.state()["messages"]) == 3, "the state is the one from before the refund")
        changed = thread.update(append={"messages": [{"role": "assistant", "content": "A new parcel is on its way."}]})
        thread.label(changed, "resend instead")
        fork = thread.fork("what-if", at="before refund")
        fork.update(append={"messages": [{"role": "assistant", "content": "May I offer you a voucher?"}]}, label="voucher")
        everything = list(thread.history(branches=True, newest_first=False))
        _claim(finished in everything, "the checkpoints after the rewind are kept as a branch")
        difference = vault.diff(changed.id, fork.load("head").id)
        _claim(len(difference) == 1, "the two attempts differ in one message")
        console.print(_build_tree(thread, fork, everything))
        console.print("\n   Changes from [bold]resend instead[/] to [bold]voucher[/] (thread what-if):")
        for change in difference:
            console.print(Text("   " + line_of(change, 180)), soft_wrap=True)
        _claim(vault.verify().ok, "every byte of the file is intact")


def _build_tree(thread: savegame.Thread, fork: savegame.Thread, everything: list[savegame.Checkpoint]) -> Tree:
    """Checkpoints from top to bottom; one with several children opens into branches."""
    root = Tree(f"thread [bold]{thread.id}[/]")
    first = next(fork.history(newest_first=False))

    def grow(tree: Tree, checkpoint: savegame.Checkpoint) -> None:
        here = tree.add(_describe(checkpoint, is_head=checkpoint.id == thread.head))
        children = [other for other in everything if other.parent_id == checkpoint.id]
        splits = len(children) > 1 or checkpoint.id == first.parent_id
        for child in children:
            grow(here.add("[dim]branch[/]") if splits else tree, child)
        if checkpoint.id == first.parent_id:
            branch = here.add(f"[cyan]forked as thread [bold]{fork.id}[/][/]")
            for point in fork.history(newest_first=False):
                branch.add(_describe(point, is_head=point.id == fork.head))

    grow(root, everything[0])
    return root


def _describe(checkpoint: savegame.Checkpoint, *, is_head: bool) -> Text:
    text = Text.assemble((f"step {checkpoint.step} ", "bold"), (checkpoint.id[:8], "dim"), f"  {_last_message(checkpoint)}")
    if checkpoint.label:
        text.append(f"  «{checkpoint.label}»", style="yellow")
    if is_head:
        text.append("  ← head", style="bold green")
    return text


def _last_message(checkpoint: savegame.Checkpoint) -> str:
    message = checkpoint.load().state["messages"][-1]
    text = f"{message['role']}: {message['content']}"
    return text if len(text) <= 36 else f"{text[:35]}…"


def bank_of(path: Path) -> Path:
    """The bank's ledger: a plain file outside the vault, like any other external system."""
    return path.with_name("bank.txt")


@contextmanager
def _agent(path: Path, *, pause: bool) -> Iterator[subprocess.Popen[str]]:
    """The agent as a separate process, which always ends with the demo. Ctrl-C reaches only the demo."""
    command = [sys.executable, "-m", "savegame.cli.demo_agent", str(path), "pause" if pause else "run"]
    with subprocess.Popen(  # noqa: S603 - our own module
        command, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True
    ) as agent:
        try:
            yield agent
        finally:
            agent.kill()


def _claim(holds: bool, what: str) -> None:
    if not holds:
        raise DemoFailed(f"not true: {what}")
