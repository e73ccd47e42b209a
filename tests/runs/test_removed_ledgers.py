"""What removing checkpoints leaves in the ledger: nothing of replies that no checkpoint holds, all that one may need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from addresses import Opener

from savegame import Retention, Toolbox, Vault

made: list[str] = []
tools = Toolbox()


@tools.tool
def look(what: str) -> str:
    made.append(what)
    return f"result of {what}"


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()


def turn(vault: Vault, what: str) -> None:
    """Four checkpoints: what the user says, a reply that calls, the result, a reply. And a step."""
    asks = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "look", "arguments": {"what": what}}]}
    with vault.run("t", tools=tools) as run:
        run.user(what)
        run.model(lambda _: asks)
        run.step(f"step {what}", lambda: f"kept {what}")
        run.tools()
        run.model(lambda _: "done")


def resume(vault: Vault) -> None:
    with vault.run("t", tools=tools) as run:
        run.tools()


def ledger(vault: Vault) -> tuple[list[Any], list[str]]:
    return [call.arguments["what"] for call in vault.calls("t")], sorted(vault.thread("t").records("step"))


def test_discarded_calls_and_steps_are_gone(vault: Vault) -> None:
    turn(vault, "first")
    turn(vault, "second")
    vault.thread("t").rewind(4, discard=True)
    assert ledger(vault) == (["first"], ["step first"])
    vault.thread("t").rewind(2, discard=True)
    assert ledger(vault) == (["first"], ["step first"])
    resume(vault)
    assert made == ["first", "second"], "the outcome was there"
    vault.thread("t").rewind(1, discard=True)
    assert ledger(vault) == ([], [])
    assert vault.verify().ok


@pytest.mark.parametrize("how", ["discard", "prune", "remove"])
def test_their_bytes_leave_the_files(opened: Opener, tmp_path: Path, how: str) -> None:
    vault = opened(compress=False)
    turn(vault, "first")
    turn(vault, "SECRET")
    thread = vault.thread("t")
    branch = [found.id for found in thread.history(limit=4)]
    thread.rewind(4)
    if how == "discard":
        thread.rewind(4, discard=True)
    elif how == "prune":
        turn(vault, "third")
        thread.prune(keep=4)
    else:
        thread.remove(*branch)
    assert "SECRET" not in ledger(vault)[0]
    vault.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()] == []


def test_prune_keeps_what_a_conversation_still_holds(vault: Vault) -> None:
    for what in ("first", "second", "third"):
        turn(vault, what)
    thread = vault.thread("t")
    thread.prune(keep=3)
    assert ledger(vault) == (["first", "second", "third"], ["step first", "step second", "step third"])
    thread.rewind(10)
    resume(vault)
    assert made == ["first", "second", "third"]


def test_what_a_summary_has_replaced_goes_with_the_last_checkpoint_that_held_it(vault: Vault) -> None:
    turn(vault, "first")
    thread = vault.thread("t")
    thread.update(set={"messages": [{"role": "user", "content": "in short"}]})
    turn(vault, "second")
    thread.prune(keep=8)
    assert ledger(vault)[0] == ["first", "second"], "an earlier checkpoint still has it"
    thread.prune(keep=3)
    assert ledger(vault)[0] == ["second"]


def test_a_reply_that_was_carried_to_another_line_keeps_its_outcome(vault: Vault) -> None:
    turn(vault, "first")
    thread = vault.thread("t")
    with_call = thread.state(2)
    thread.rewind(1)
    thread.save(with_call)
    thread.save({"messages": []})
    thread.rewind("head", discard=True)
    assert ledger(vault)[0] == ["first"]
    thread.rewind(2)
    resume(vault)
    assert made == ["first"]


def test_a_reply_from_elsewhere(vault: Vault) -> None:
    asks = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "look", "arguments": {"what": "x"}}]}
    vault.thread("t").save({"messages": [{"role": "user", "content": "hi"}]})
    vault.thread("t").update(append={"messages": [asks]})
    resume(vault)
    vault.thread("t").rewind(2, discard=True)
    assert ledger(vault)[0] == ["x"]
    resume(vault)
    assert made == ["x"]
    vault.thread("t").rewind(1, discard=True)
    assert ledger(vault)[0] == []


def test_retention_leaves_the_ledger_alone(opened: Opener) -> None:
    vault = opened(retention=Retention(max_checkpoints=3))
    for number in range(12):
        turn(vault, f"{number} " + "x" * 500)
    assert len(ledger(vault)[0]) == 12
