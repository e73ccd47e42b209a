"""`savegame demo`: an agent with a scripted model on a real SQLite file, killed in the middle, carried on, rewound, forked.

Every claim that it prints is checked; if one does not hold, it says so and the command fails.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

import savegame
from savegame.changes import line_of

THREAD = "support-42"
KILL_AFTER = 4
SCRIPT: list[dict[str, Any]] = [
    {"role": "user", "content": "My parcel 1017 never came. I want my money back."},
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": "c1", "name": "find_order", "arguments": {"order": 1017}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": {"order": 1017, "cents": 4900, "state": "lost in transit"}},
    {
        "role": "assistant",
        "content": "It is lost.",
        "tool_calls": [{"id": "c2", "name": "refund", "arguments": {"cents": 4900}}],
    },
    {"role": "tool", "tool_call_id": "c2", "content": {"refunded": 4900}},
    {"role": "assistant", "content": "I have sent 49.00 back to your card. Sorry for the trouble!"},
]


class Failed(Exception):
    """Something that the demo promises did not happen."""


def play(keep: Path | None) -> int:
    """Run the whole demo; the exit code."""
    console = Console(highlight=False)
    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="savegame-demo-")))
        path = directory / "agents.db"
        if path.exists():
            raise savegame.AlreadyExistsError(f"{path}: exists already; give another directory")
        try:
            _crash(console, path)
            _carry_on(console, path)
            _time_travel(console, path)
        except (Failed, savegame.SavegameError) as error:
            console.print(f"[bold red]The demo failed:[/] {error}")
            return 1
    console.print("\n[bold green]All of it happened.[/] Next: the ten lines at the top of the README.")
    return 0


def _crash(console: Console, path: Path) -> None:
    console.print(Panel("1. An agent saves every step into [bold]agents.db[/]. In the middle it is killed with SIGKILL."))
    with _agent(path, pause=True) as agent:
        assert agent.stdout is not None
        for line in agent.stdout:
            console.print(f"   {line.rstrip()}", soft_wrap=True)
            if line.startswith(f"step {KILL_AFTER} "):
                agent.send_signal(signal.SIGKILL)
                break
        code = agent.wait(timeout=30)
    _claim(code == -signal.SIGKILL, f"the agent was killed (it ended with {code})")
    console.print("   [bold red]✗ killed[/] (SIGKILL: no clean-up code ran)\n")


def _carry_on(console: Console, path: Path) -> None:
    console.print(Panel("2. Started again, it finds its last step and carries on. Nothing is done twice."))
    with savegame.open(path) as vault:
        found = vault.thread(THREAD).latest()
        _claim(found is not None and found.step == KILL_AFTER, f"step {KILL_AFTER} is there after the kill")
        _claim(vault.verify().ok, "every byte of the file is intact")
    with _agent(path, pause=False) as agent:
        assert agent.stdout is not None
        lines = [line.rstrip() for line in agent.stdout]
        _claim(agent.wait(timeout=30) == 0, "the second agent finished")
    for line in lines:
        console.print(f"   {line}", soft_wrap=True)
    with savegame.open(path) as vault:
        state = vault.thread(THREAD).state()
    _claim(state["messages"] == SCRIPT, "the conversation is whole, each message once")
    console.print("   [bold green]✓[/] the conversation is whole, each message once\n")


def _time_travel(console: Console, path: Path) -> None:
    console.print(Panel("3. Go back to before the refund, try something else, and compare."))
    with savegame.open(path) as vault:
        thread = vault.thread(THREAD)
        finished = thread.latest()
        assert finished is not None
        thread.rewind("before refund")
        _claim(len(thread.state()["messages"]) == 3, "the state is that of before the refund")
        changed = thread.update(append={"messages": [{"role": "assistant", "content": "A new parcel is on its way."}]})
        thread.label(changed, "resend instead")
        fork = thread.fork("what-if", at="before refund")
        fork.update(append={"messages": [{"role": "assistant", "content": "May I offer you a voucher?"}]}, label="voucher")
        everything = list(thread.history(branches=True, newest_first=False))
        _claim(finished in everything, "what came after the rewind is still there, as a branch")
        difference = vault.diff(changed.id, fork.load("head").id)
        _claim(len(difference) == 1, "the two attempts differ in one message")
        console.print(_tree(thread, fork, everything))
        console.print("\n   What differs between [bold]resend instead[/] and [bold]voucher[/] (thread what-if):")
        for change in difference:
            console.print(Text("   " + line_of(change, 180)), soft_wrap=True)
        _claim(vault.verify().ok, "every byte of the file is intact")


def _tree(thread: savegame.Thread, fork: savegame.Thread, everything: list[savegame.Checkpoint]) -> Tree:
    """Checkpoints from top to bottom; a point that was continued in several ways opens into branches."""
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


def _agent(path: Path, *, pause: bool) -> subprocess.Popen[str]:
    """The agent as a process of its own."""
    command = [sys.executable, "-m", "savegame.cli.demo_agent", str(path), "pause" if pause else "run"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module


def _claim(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(f"not true: {what}")
