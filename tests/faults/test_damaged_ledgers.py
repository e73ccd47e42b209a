"""A damaged ledger: after a repair nothing is done twice without a question, and one thread does not stop the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from damage import spoil

import savegame
from savegame import CorruptionError, Paused, Toolbox, Unknown, Vault
from savegame.web.overview import Overview, Snapshot

made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()


def toolbox(*, crash: bool = False, **marks: Any) -> Toolbox:
    tools = Toolbox()

    @tools.tool(**marks)
    def wire(to: str) -> str:
        made.append(to)
        if crash:
            raise KeyboardInterrupt
        return f"sent {len(made)}"

    return tools


ASKS = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "wire", "arguments": {"to": "ada"}}]}


def play(vault: Vault, tools: Toolbox, thread_id: str = "t") -> Any:
    with vault.run(thread_id, tools=tools) as run:
        if not run.messages:
            run.user("pay")
        while not run.done:
            run.tools()
            run.model(lambda messages: ASKS if messages[-1]["role"] == "user" else "done")
        return run.reply


@contextlib.contextmanager
def repaired(path: str, kind: str) -> Iterator[Vault]:
    """A vault whose thread has lost its records of a kind, and that says so until it is repaired."""
    assert spoil(path, "t", kind)
    with savegame.open(path) as vault:
        with pytest.raises(CorruptionError):
            vault.thread("t").records(kind)
        assert vault.repair().ok
        yield vault


# -- after a repair --------------------------------------------------------------------------------


def test_a_call_that_was_begun_is_not_made_again_when_its_record_is_lost(path: str) -> None:
    with savegame.open(path) as vault, pytest.raises(KeyboardInterrupt):
        play(vault, toolbox(crash=True))
    with repaired(path, "call") as vault:
        with pytest.raises(Unknown, match="wire") as caught:
            play(vault, toolbox())
        assert made == ["ada"]
        assert (caught.value.call.name, dict(caught.value.call.arguments)) == ("wire", {"to": "ada"})
        vault.resolve("t", caught.value.call, "it was sent")
        assert play(vault, toolbox()) == "done"
        assert made == ["ada"]
        assert vault.repair().repaired == ()


def test_repair_names_the_calls_that_somebody_has_to_look_at(path: str) -> None:
    with savegame.open(path) as vault, pytest.raises(KeyboardInterrupt):
        play(vault, toolbox(crash=True))
    spoil(path, "t", "call")
    with savegame.open(path) as vault:
        said = vault.repair().repaired
        (call,) = vault.calls("t")
        assert f"thread 't': whether call {call.key} was made is unknown; resolve it" in said


def test_an_outcome_that_the_model_was_told_of_is_known_again(path: str) -> None:
    with savegame.open(path) as vault:
        play(vault, toolbox())
    with repaired(path, "call") as vault:
        assert [(call.status, call.result) for call in vault.calls("t")] == [("done", "sent 1")]
        vault.thread("t").rewind(2)
        assert play(vault, toolbox()) == "done"
        assert made == ["ada"]


def test_a_person_is_asked_again_whose_answer_is_lost(path: str) -> None:
    tools = toolbox(ask=True)
    with savegame.open(path) as vault:
        with pytest.raises(Paused) as caught:
            play(vault, tools)
        vault.answer("t", caught.value.call, value=True)
    with repaired(path, "answer") as vault:
        with pytest.raises(Paused):
            play(vault, tools)
        assert made == []
        assert vault.answer("t", caught.value.call, value=True)
        assert play(vault, tools) == "done"
        assert made == ["ada"]


def test_a_call_that_may_run_again_still_needs_the_answer_that_nobody_has_given(path: str) -> None:
    tools = toolbox(ask=True, idempotent=True)
    with savegame.open(path) as vault, pytest.raises(Paused):
        play(vault, tools)
    with repaired(path, "call") as vault:
        with pytest.raises(Paused) as caught:
            play(vault, tools)
        assert made == []
        assert caught.value.call is not None
        vault.answer("t", caught.value.call.key, True)
        assert play(vault, tools) == "done"
    assert made == ["ada"]


def test_calls_of_a_reply_from_elsewhere_are_not_made_again_when_nobody_knows_their_keys_any_more(path: str) -> None:
    with savegame.open(path) as vault:
        vault.save_conversation({"id": "t", "agent_id": "a", "messages": [{"role": "user", "content": "pay"}, ASKS]})
        with pytest.raises(KeyboardInterrupt):
            play(vault, toolbox(crash=True))
    with repaired(path, "run") as vault:
        with pytest.raises(Unknown):
            play(vault, toolbox())
        assert made == ["ada"]


def test_what_was_made_anew_is_not_made_once_more_when_that_it_was_is_lost(path: str) -> None:
    with savegame.open(path) as vault:
        play(vault, toolbox())
        vault.thread("t").rewind(2, rerun_tools=True)
        play(vault, toolbox())
        vault.thread("t").rewind(2)
    with repaired(path, "run") as vault:
        play(vault, toolbox())
        assert made == ["ada", "ada"]
        assert vault.thread("t").state(3)["messages"][-1]["content"] == "sent 2"


def test_calls_that_were_changed_are_told_apart_when_their_records_are_lost(path: str) -> None:
    with savegame.open(path) as vault:
        play(vault, toolbox())
        vault.thread("t").rewind(2)
        messages = vault.thread("t").state()["messages"]
        messages[-1]["tool_calls"][0]["arguments"] = {"to": "bob"}
        vault.thread("t").update(set={"messages": messages})
        with pytest.raises(KeyboardInterrupt):
            play(vault, toolbox(crash=True))
        before = {call.key: dict(call.arguments) for call in vault.calls("t")}
    with repaired(path, "call") as vault:
        assert {call.key: dict(call.arguments) for call in vault.calls("t")} == before
        assert sorted((call.arguments["to"], call.status.value) for call in vault.calls("t")) == [
            ("ada", "done"),
            ("bob", "unknown"),
        ]
        with pytest.raises(Unknown) as caught:
            play(vault, toolbox())
        assert caught.value.call is not None
        assert caught.value.call.arguments == {"to": "bob"}
        assert made == ["ada", "bob"]


# -- before one ------------------------------------------------------------------------------------


def fall_over(vault: Vault, *thread_ids: str) -> None:
    """Runs that went stale and were taken over once since."""
    for thread_id in thread_ids * 2:
        with contextlib.suppress(OSError), vault.run(thread_id) as run:
            run.user("hi", key="first")
            raise OSError


def test_a_damaged_thread_does_not_stop_the_supervisor(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with savegame.open(path) as vault:
        fall_over(vault, "hurt", "sound")
    assert spoil(path, "hurt", "run") == 1
    with savegame.open(path) as vault:
        stale = {run.thread_id: run for run in vault.stale()}
        assert stale["sound"].damage is None
        assert "hurt" not in stale or "damaged" in (stale["hurt"].damage or "")
        resumed: list[str] = []
        assert vault.supervise(resumed.append, once=True) == 1
        assert vault.supervise(resumed.append, once=True) == 1
        assert resumed == ["sound", "sound"]
        assert [record.message for record in caplog.records if "'hurt' cannot be resumed" in record.message] != []
        told = len(caplog.records)
        vault.supervise(resumed.append, once=True)
        assert len(caplog.records) == told


def settled(overview: Overview) -> Snapshot:
    while not (found := overview.snapshot()).detailed:
        time.sleep(0.01)
    return found


def test_a_damaged_thread_does_not_hide_the_calls_of_others(path: str) -> None:
    with savegame.open(path) as vault:
        for thread_id in ("hurt", "sound"):
            with pytest.raises(Paused):
                play(vault, toolbox(ask=True), thread_id)
    assert spoil(path, "hurt", "call")
    with savegame.open(path) as vault:
        overview = Overview(vault)
        try:
            found = settled(overview)
            assert [one.thread_id for one in found.open_calls] == ["sound"]
            assert overview.trouble() is None
            damage = {entry.info.id: entry.info.damage for entry in found.entries if entry.info is not None}
            assert damage["sound"] is None
            assert "damaged" in (damage["hurt"] or "")
        finally:
            overview.rest()
