"""The examples of runs keep their word: killed inside each tool, started again, refused by a person."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import savegame

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(directory: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *options]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)


def effects(directory: Path) -> list[str]:
    log = directory / "effects.log"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


@pytest.mark.parametrize("tool", ["find_order", "refund", "note", "mail", "give_voucher"])
def test_the_refund_agent_killed_inside_a_tool_does_nothing_twice(tool: str, tmp_path: Path) -> None:
    assert run(tmp_path, "refund_agent.py", "--die-in", tool).returncode == -signal.SIGKILL
    again = run(tmp_path, "refund_agent.py")
    assert again.returncode == 0, again.stderr
    assert "notes: 1\nYou have your money back, and a voucher." in again.stdout
    assert ("unknown outcome:" in again.stdout) == (tool in ("mail", "give_voucher"))
    found = effects(tmp_path)
    refunds = [line for line in found if line.startswith("refund")]
    assert len(refunds) == (2 if tool == "refund" else 1)
    assert len(set(refunds)) == 1, "the key is the same the second time"
    assert [line.split()[0] for line in found if line not in refunds] == ["mail", "voucher"]


def test_a_finished_refund_agent_does_nothing_when_it_is_started_again(tmp_path: Path) -> None:
    first, second = run(tmp_path, "refund_agent.py"), run(tmp_path, "refund_agent.py")
    assert first.returncode == second.returncode == 0
    assert first.stdout.endswith(second.stdout), "the second one asks no one"
    assert len(effects(tmp_path)) == 3


@pytest.mark.parametrize(
    ("options", "said"), [((), "The invoice is paid."), (("--no",), "a person refused: not before Friday")]
)
def test_an_approval_needs_no_process_in_between(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    parts = {part: run(tmp_path, "approval.py", part, *options).stdout for part in ("ask", "answer", "resume")}
    assert "waits for a person: wire(" in parts["ask"]
    assert parts["answer"] == "  the first answer counts: True\n"
    assert said in parts["resume"]
    assert ("the money is on its way" in parts["resume"]) == (not options)


def test_a_supervised_vault_has_every_bill_once_however_often_it_is_begun(tmp_path: Path) -> None:
    first, second = run(tmp_path, "supervisor.py"), run(tmp_path, "supervisor.py")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "left behind: 8\n" in first.stdout
    assert "left behind: 0\n" in second.stdout
    assert first.stdout.splitlines()[2:] == second.stdout.splitlines()[2:]
    assert second.stdout.endswith("bills: 8 of different meters: 8\n")


def test_a_finished_research_agent_asks_no_source_again(tmp_path: Path) -> None:
    first, second = (run(tmp_path, "research_agent.py", "--vault", "research.db") for _ in range(2))
    assert first.stdout.count("is ready") == 3
    assert first.stdout.endswith(second.stdout)
    assert second.stdout.startswith("Report of 3 sources: what the archive says")


def test_a_chat_goes_on_when_its_worker_is_killed_and_stops_when_stop_is_pressed(tmp_path: Path) -> None:
    done = run(tmp_path, "chat_service.py")
    assert done.returncode == 0, done.stderr
    assert "sent twice, new: [True, False]\n" in done.stdout
    assert "user: Where is my order 1017 ?\n  assistant: Let me look.\n  tool: {'order': 1017" in done.stdout
    assert "user: Are you there?\n  assistant: Order 1017 is lost in transit. You said: Are you there?" in done.stdout
    assert done.stdout.endswith("stop pressed: {'stopped': True}\nthe chat is halted: the user pressed stop\n")
    with savegame.open(tmp_path / "chats.db") as vault:
        (chat,) = vault.threads()
        messages = vault.thread(chat.id).state()["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "assistant", "user"]
        assert vault.verify().ok
