"""The commands as a user runs them: real processes, real exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import savegame
from bench.rounds import PLAN
from savegame.cli import demo

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "savegame", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd, check=False)


def test_the_demo_shows_every_step_and_keeps_its_file_when_asked(tmp_path: Path) -> None:
    done = run("demo", "--keep", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every step was checked" in done.stdout
    assert "killed" in done.stdout
    assert "requests to the bank: 2, keys: 1, refunds paid: 1" in done.stdout
    assert "the second refund was held back and waits for a person; refunds paid: 1" in done.stdout
    assert "refunds paid: 1, cancelled: 1" in done.stdout
    with savegame.open(tmp_path / "agents.db", read_only=True) as vault:
        thread = vault.thread("support-42")
        assert len(list(thread.history(branches=True))) == 8
        assert thread.latest().label == "resend instead"  # type: ignore[union-attr]
        assert vault.thread("what-if").latest().label == "voucher"  # type: ignore[union-attr]
        assert vault.verify().ok
        assert sorted((call.name, call.status, call.undoes is not None) for call in vault.calls("support-42")) == [
            ("find_order", "done", False),
            ("refund", "done", False),
            ("refund", "done", True),
            ("refund", "waiting", False),
        ]
    assert [line.split()[0] for line in (tmp_path / "bank.txt").read_text().splitlines()] == ["pays", "has", "cancels"]


def test_the_demo_plays_on_a_terminal_without_such_letters(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "savegame", "demo"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_demo_fails_loudly_when_something_does_not_happen(tmp_path: Path) -> None:
    """The agent's file is damaged behind the demo's back: it must not end with 0."""
    script = (
        "import sys, savegame.cli.demo as demo\n"
        "demo.SCRIPT[5] = {'role': 'assistant', 'content': 'something else'}\n"
        "sys.exit(demo.play(None))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "The demo failed" in done.stdout


def test_the_demo_notices_a_bank_that_pays_twice(tmp_path: Path) -> None:
    console, path = Console(quiet=True), tmp_path / "agents.db"
    demo._crash(console, path)
    with demo.bank_of(path).open("a") as book:
        book.write(f"{demo.PAID} another-key\n")
    with pytest.raises(demo.DemoFailed, match="paid once"):
        demo._carry_on(console, path)


def test_a_demo_that_is_broken_off_takes_its_agent_along(tmp_path: Path) -> None:
    """Else it would wait for an agent that sleeps: `savegame demo | head -7`."""
    path = tmp_path / "agents.db"
    with contextlib.suppress(BrokenPipeError), demo._agent(path, "pause") as agent:
        assert agent.stdout is not None
        next(line for line in agent.stdout if demo.PAID in line)
        raise BrokenPipeError
    assert agent.returncode == -signal.SIGKILL


def test_an_error_of_ours_is_one_line_and_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "agents.db").write_text("mine")
    done = run("demo", "--keep", str(tmp_path), cwd=tmp_path)
    assert done.returncode == savegame.AlreadyExistsError.exit_code
    assert done.stderr.startswith("savegame: ")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "agents.db").read_text() == "mine"


def test_the_demo_says_where_it_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run("demo", "--keep", str(tmp_path / "file" / "below"), cwd=tmp_path)
    assert done.returncode == savegame.InvalidInputError.exit_code
    assert done.stderr.startswith("savegame: ")
    assert "Traceback" not in done.stderr


LIKE_ANOTHER = {"memory_uncached", "padded_threads", "pg_size", "saver_dicts", "short_chats"}
"""Tasks of the benchmark that do with other sizes or settings what others do."""


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [LIKE_ANOTHER, pytest.param(set(), marks=pytest.mark.campaign)], ids=["most", "all"])
def test_the_benchmark_runs(left_out: set[str], tmp_path: Path) -> None:
    """A small run with whatever contestants are installed: figures, a picture where it can be drawn, no judgement."""
    results, names = tmp_path / "results.json", {task.name for task in PLAN}
    assert left_out < names
    only = ["--only", *sorted(names - left_out)]
    where = ["--json", str(results), "--plot", str(tmp_path / "growth.png")]
    done = run("bench", "--quick", "--rounds", "1", *only, *where, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(results.read_text())


def test_an_interrupt_while_it_starts_is_no_traceback() -> None:
    script = (
        "import sys, savegame.cli\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "savegame.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_importing_savegame_does_not_import_the_command_line() -> None:
    script = "import sys, savegame; sys.exit(any(name in sys.modules for name in ('rich', 'typer', 'savegame.cli')))"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
