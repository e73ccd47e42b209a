"""`savegame demo`: a scripted agent on a real SQLite file is killed inside a refund, resumed, rewound, undone and forked.

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
from savegame.cli.demo_agent import BEFORE, CANCELLED, PAID, SCRIPT, THREAD_ID, bank_of
from savegame.present.diffs import line_of

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
            _hold_back(console, path)
            _take_back(console, path)
            _compare(console, path)
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
    with _agent(path, "pause") as agent:
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
    with _agent(path, "run") as agent:
        _show_output(console, agent)
        _claim(agent.wait(timeout=30) == 0, "the second agent finished")
    with savegame.open(path) as vault:
        thread = vault.thread(THREAD_ID)
        _claim(_messages(thread.state()) == SCRIPT, "the conversation is complete, without duplicates")
        thread.label(3, BEFORE)
    requests = _requests(path)
    keys = {line.split()[-1] for line in requests}
    counts = (len(requests), len(keys), _count(requests, PAID))
    _claim(counts == (2, 1, 1), f"the bank got two requests with one key and paid once: {requests}")
    _check(console, f"requests to the bank: {counts[0]}, keys: {counts[1]}, refunds paid: {counts[2]}")
    _check(console, "the conversation is complete, without duplicates\n")


def _messages(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages without the marks of the run."""
    return [{name: message[name] for name in MESSAGE_FIELDS if name in message} for message in state["messages"]]


def _hold_back(console: Console, path: Path) -> None:
    console.print(Panel("3. Rewound to before the refund, the agent goes on. Its model asks for the refund a second time."))
    with savegame.open(path) as vault:
        vault.thread(THREAD_ID).rewind(BEFORE)
    with _agent(path, "run") as agent:
        _show_output(console, agent)
        _claim(agent.wait(timeout=30) == 0, "the agent stopped to ask")
    with savegame.open(path) as vault:
        waiting = [call for call in vault.calls(THREAD_ID) if call.status == "waiting"]
        _claim([call.name for call in waiting] == ["refund"], "the second refund waits for a person")
    _claim(_count(_requests(path), PAID) == 1, "the bank paid once")
    _check(console, "the second refund was held back and waits for a person; refunds paid: 1\n")


def _take_back(console: Console, path: Path) -> None:
    console.print(Panel("4. Undo takes the first refund back with the tool's own undo function, then moves to before it."))
    with _agent(path, "undo") as agent:
        _show_output(console, agent)
        _claim(agent.wait(timeout=30) == 0, "the undo finished")
    with savegame.open(path) as vault:
        undone = [effect.name for effect in vault.effects(THREAD_ID) if effect.undone_at]
        _claim(undone == ["refund"], "the refund was taken back")
        _claim(len(vault.thread(THREAD_ID).state()["messages"]) == 3, "the state is the one from before the refund")
    requests = _requests(path)
    _claim((_count(requests, PAID), _count(requests, CANCELLED)) == (1, 1), "the bank paid once and cancelled once")
    _check(console, "refunds paid: 1, cancelled: 1; the conversation is the one from before the refund\n")


def _compare(console: Console, path: Path) -> None:
    console.print(Panel("5. From there, try two alternatives, and compare them."))
    with savegame.open(path) as vault:
        thread = vault.thread(THREAD_ID)
        before = list(thread.history(branches=True, newest_first=False))
        changed = thread.update(append={"messages": [{"role": "assistant", "content": "A new parcel is on its way."}]})
        thread.label(changed, "resend instead")
        fork = thread.fork("what-if", at=BEFORE)
        fork.update(append={"messages": [{"role": "assistant", "content": "May I offer you a voucher?"}]}, label="voucher")
        everything = list(thread.history(branches=True, newest_first=False))
        _claim(everything[:-1] == before, "the checkpoints of the earlier attempts are kept as branches")
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


@contextmanager
def _agent(path: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    """The agent as a separate process, which always ends with the demo. Ctrl-C reaches only the demo."""
    command = [sys.executable, "-m", "savegame.cli.demo_agent", str(path), what]
    with subprocess.Popen(  # noqa: S603 - our own module
        command, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True
    ) as agent:
        try:
            yield agent
        finally:
            agent.kill()


def _show_output(console: Console, agent: subprocess.Popen[str]) -> None:
    assert agent.stdout is not None
    for line in agent.stdout:
        console.print(Text(f"   {line.rstrip()}"), soft_wrap=True)


def _requests(path: Path) -> list[str]:
    """What the bank was asked so far, and what it did: one line each."""
    return bank_of(path).read_text(encoding="utf-8").splitlines()


def _count(requests: list[str], action: str) -> int:
    return sum(line.startswith(action) for line in requests)


def _check(console: Console, what: str) -> None:
    console.print(f"   [bold green]✓[/] {what}")


def _claim(holds: bool, what: str) -> None:
    if not holds:
        raise DemoFailed(f"not true: {what}")
