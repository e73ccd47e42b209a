"""Everything again with the vault closed, opened and resumed after every single write: what is kept is all that a run needs."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGKILL

import always_resume
import pytest
from agents import Agent, Log
from always_resume import BEGUN, Again, OneWrite, installed
from broken_stores import opened

import savegame
from savegame import CallStatus, Vault

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def writes(vault: Vault, thread_id: str) -> int:
    """How many writes it took to get a thread to where it is, without those that nothing stops after."""
    thread = vault.thread(thread_id)
    answers = len(thread.records("answer"))  # each to a call that was written down as waiting
    return len(list(thread.history(limit=None))) + len(thread.records("step")) + 2 * answers


# -- the scripted agent ----------------------------------------------------------------------------


def went_through(address: str, log: Log, kind: type[Agent]) -> bool:
    """Open the vault and let the agent work; whether there was nothing left to write. No outcome is unknown meanwhile."""
    with opened(address, OneWrite) as vault:
        try:
            kind(vault, "t", log).to_the_end(lambda *words: pytest.fail(str(words)))
        except Again:
            return False
        return True


def test_an_agent_gets_to_its_end_in_a_new_vault_for_every_write(address: str, log: Log, kind: type[Agent]) -> None:
    openings = next(number for number in range(1, 100) if went_through(address, log, kind))
    with opened(address) as vault:
        assert Agent(vault, "t", log).broken_promises() == []
        assert all(call.status == CallStatus.DONE for call in vault.calls("t"))
        assert openings == writes(vault, "t") + 1


# -- the examples ----------------------------------------------------------------------------------


class Program:
    """An example that starts over as long as it writes something."""

    def __init__(self, directory: Path, name: str, address: str) -> None:
        self._directory, self._environment = directory, installed(directory)
        self._command = [sys.executable, "-W", "error", always_resume.__file__, str(EXAMPLES / name)]
        self._vault = ["--vault", f"resuming:{address}"]
        self._told: list[str] = []

    def run(self, *options: str, end: int = 0) -> str:
        """Run it until it ends as it should; all that it printed."""
        command = [*self._command, *options, *self._vault]
        done = subprocess.run(
            command, cwd=self._directory, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == end, done.stderr
        self._told += done.stderr.splitlines()
        return done.stdout

    @property
    def begun(self) -> int:
        """How often it was begun."""
        return self._told.count(BEGUN)


@pytest.fixture
def in_sqlite(tmp_path: Path) -> str:
    """Where a vault will be that can have transactions."""
    return f"sqlite:{tmp_path / 'v.db'}"


def test_the_refund_agent(in_sqlite: str, tmp_path: Path) -> None:
    program = Program(tmp_path, "refund_agent.py", in_sqlite)
    printed = program.run()
    assert printed.endswith("notes: 1\nYou have your money back, and a voucher.\n")
    assert "unknown outcome" not in printed
    effects = (tmp_path / "effects.log").read_text().splitlines()
    assert len({effect for effect in effects if effect.startswith("refund")}) == 1, "one key, however often it was asked"
    assert [effect for effect in effects if not effect.startswith("refund")] == ["mail to ada", "voucher 500"]
    with savegame.open(in_sqlite) as vault:
        assert program.begun == writes(vault, "support-42") + 1


@pytest.mark.parametrize("refusal", [(), ("--no",)], ids=["agreed", "refused"])
def test_the_approval(address: str, tmp_path: Path, refusal: tuple[str, ...]) -> None:
    program = Program(tmp_path, "approval.py", address)
    assert "waits for a person" in program.run("ask")
    program.run("answer", *refusal)
    printed = program.run("resume")
    assert ("I could not pay it" if refusal else "The invoice is paid.") in printed
    assert printed.count("the money is on its way") == (not refusal)
    with savegame.open(address) as vault:
        assert program.begun == writes(vault, "invoice-7") + 3


def test_the_research_agent(address: str, tmp_path: Path) -> None:
    program = Program(tmp_path, "research_agent.py", address)
    said = [f"what the {source} says about tides" for source in ("archive", "library", "newspaper")]
    assert f"Report of 3 sources: {'; '.join(said)}." in program.run()
    with savegame.open(address) as vault:
        assert program.begun == writes(vault, "research-1") + 1


def test_the_supervisor(in_sqlite: str, tmp_path: Path) -> None:
    program = Program(tmp_path, "supervisor.py", in_sqlite)
    program.run("begin", end=-SIGKILL)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: program.run("work", "--name", name), "abcd"))
    assert program.run("show").endswith("bills: 8 of different meters: 8\n")
    with savegame.open(in_sqlite) as vault:
        threads = list(vault.threads())
        assert {str(info.status) for info in threads} == {"completed"}
        assert program.begun == sum(writes(vault, info.id) for info in threads) + 6
