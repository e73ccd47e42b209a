"""Importing or copying an older ledger over a newer one: what is known of an effect stays known, a rewind stays done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from addresses import Opener

import savegame
from savegame import Paused, Toolbox, Vault

ASKS = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "wire", "arguments": {}}]}


class Agent:
    """Asks before it wires, and counts what it did."""

    def __init__(self) -> None:
        self.made = 0
        self.tools = Toolbox()
        self.tools.tool(ask=True)(self.wire)

    def wire(self) -> str:
        self.made += 1
        return "sent"

    def play(self, vault: Vault) -> Any:
        with vault.run("t", tools=self.tools) as run:
            if not run.messages:
                run.user("pay")
            run.step("once", lambda: self.made)
            while not run.done:
                run.tools()
                run.model(lambda messages: ASKS if messages[-1]["role"] == "user" else "done")

    def begin(self, vault: Vault) -> None:
        with pytest.raises(Paused):
            self.play(vault)

    def go_on(self, vault: Vault) -> None:
        assert vault.answer("t", next(vault.calls("t")), value=True)
        self.play(vault)


def known(vault: Vault) -> tuple[Any, ...]:
    """What a ledger says, and where its thread is."""
    statuses = [call.status.value for call in vault.calls("t")]
    records = {kind: vault.thread("t").records(kind) for kind in ("answer", "step", "run")}
    latest = vault.thread("t").latest()
    return statuses, records, latest and latest.step


def test_an_older_export_neither_undoes_a_rewind_nor_forgets_an_outcome(vault: Vault, tmp_path: Path) -> None:
    agent = Agent()
    agent.begin(vault)
    vault.export(tmp_path / "old.jsonl")
    agent.go_on(vault)
    for step in (1, 2):
        vault.thread("t").rewind(step)
        before = known(vault)
        assert vault.import_(tmp_path / "old.jsonl") == 0
        assert known(vault) == before
        assert (before[0], before[2]) == (["done"], step)
        vault.thread("t").rewind(next(iter(vault.thread("t").history(branches=True))))
    vault.thread("t").rewind(2)
    agent.play(vault)
    assert agent.made == 1


def test_an_export_with_something_new_does_not_forget_an_outcome(opened: Opener, tmp_path: Path) -> None:
    vault, other = opened("a.db"), opened("b.db")
    agent = Agent()
    agent.begin(vault)
    vault.copy_to(other)
    vault.thread("t").update(set={"new": True})
    vault.export(tmp_path / "later.jsonl")
    agent.go_on(other)
    other.thread("t").rewind(2)
    assert other.import_(tmp_path / "later.jsonl") == 1
    assert [call.status.value for call in other.calls("t")] == ["done"]
    assert other.thread("t").state()["new"] is True
    agent.play(other)
    assert agent.made == 1


def test_an_older_source_neither_undoes_a_rewind_nor_forgets_an_outcome(opened: Opener) -> None:
    source, copy = opened("a.db"), opened("b.db")
    agent = Agent()
    agent.begin(source)
    source.copy_to(copy)
    agent.go_on(copy)
    reply = copy.thread("t").load(2)
    for full in (False, True, False):
        copy.thread("t").rewind(1)
        before = known(copy)
        assert before[2] == 1
        assert source.copy_to(copy, full=full) == 0
        assert source.copy_to(copy, full=full) == 0
        assert known(copy) == before
        copy.thread("t").rewind(reply)
        assert source.copy_to(copy, full=full) == 0
        assert known(copy) == (*before[:2], 2)
    agent.play(copy)
    assert agent.made == 1


def test_a_source_that_never_made_the_call_does_not_take_it_out_of_the_copy(opened: Opener) -> None:
    source, copy = opened("a.db"), opened("b.db")
    agent = Agent()
    with source.run("t", tools=agent.tools) as run:
        run.user("pay")
        run.model(lambda _: ASKS)
    source.copy_to(copy)
    with pytest.raises(Paused):
        agent.play(copy)
    agent.go_on(copy)
    copy.thread("t").rewind(2)
    source.thread("t").update(set={"new": True})
    assert source.copy_to(copy) == 1
    assert copy.thread("t").state()["new"] is True
    agent.play(copy)
    assert agent.made == 1


def test_outcomes_of_the_source_still_arrive(opened: Opener, tmp_path: Path) -> None:
    source, copy, imported = opened("a.db"), opened("b.db"), opened("c.db")
    agent = Agent()
    agent.begin(source)
    source.copy_to(copy)
    source.export(tmp_path / "1.jsonl")
    imported.import_(tmp_path / "1.jsonl")
    agent.go_on(source)
    source.copy_to(copy)
    source.export(tmp_path / "2.jsonl")
    imported.import_(tmp_path / "2.jsonl")
    assert known(imported) == known(copy) == known(source)
    source.thread("t").rewind(2, rerun_tools=True)
    source.copy_to(copy)
    assert known(copy) == known(source)
    source.thread("t").rewind(2)
    source.copy_to(copy)
    assert known(copy) == known(source)
    with savegame.open("memory:") as third:
        copy.copy_to(third)
        assert known(third) == known(source)
