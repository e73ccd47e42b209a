"""send, inbox, unsend, stop, and why stale lists a run: words with a run, whichever process holds its thread."""

from __future__ import annotations

import datetime as dt
import subprocess

import pytest
from commands import ENTRY, PLAIN, run
from filled import model

import savegame


def test_what_is_sent_waits_until_a_run_takes_it_in(store: str) -> None:
    assert run("inbox", "gone", "-s", store).out == "no messages in the inbox\n"
    sent = run("send", "gone", "Also, the wrong colour.", "--key", "msg-77", "-s", store)
    assert (sent.code, sent.out) == (0, "sent to gone; 1 message in its inbox\n")
    again = run("send", "gone", "Also, the wrong colour.", "--key", "msg-77", "-s", store)
    assert (again.code, again.out) == (0, "gone had a message with the key msg-77 before; nothing was sent\n")
    (waiting,) = run("inbox", "gone", "-s", store).out.splitlines()
    assert waiting.split() == ["just", "now", "Also,", "the", "wrong", "colour.", "msg-77"]
    with savegame.open(store) as vault, vault.run("gone") as held:
        assert [message["content"] for message in held.messages] == ["My parcel 1017 never came.", "Also, the wrong colour."]
        assert run("send", "gone", "Hello?", "-s", store).code == 0, "a run that holds the thread does not matter"
        held.model(lambda messages: f"You wrote {len(messages)} messages.")
        assert held.reply == "You wrote 3 messages."
    assert run("inbox", "gone", "-s", store).out == "no messages in the inbox\n"


def test_a_message_comes_from_standard_input_too(on_disk: str) -> None:
    def send(given: bytes) -> subprocess.CompletedProcess[bytes]:
        command = [ENTRY, "send", "gone", "-", "-s", on_disk]
        return subprocess.run(command, input=given, env=PLAIN, capture_output=True, timeout=60, check=False)

    assert send("Zwei\nZeilen – „so“\n".encode()).returncode == 0
    wrong = send(b"\xff\xfe")
    assert (wrong.returncode, b"standard input is not UTF-8 text" in wrong.stderr) == (2, True)
    (waiting,) = run("inbox", "gone", "-s", on_disk, "--json").json
    assert waiting["content"] == "Zwei\nZeilen – „so“"


def test_a_message_is_taken_back_unless_a_run_was_quicker(store: str) -> None:
    run("send", "gone", "Never mind.", "--key", "k", "-s", store)
    assert run("unsend", "gone", "k", "-s", store).out == "took k back from gone\n"
    done = run("unsend", "gone", "k", "-s", store)
    assert (done.code, "has no message 'k' in its inbox" in done.err) == (savegame.NotFoundError.exit_code, True)
    assert not run("send", "gone", "Never mind.", "--key", "k", "--json", "-s", store).json["new"], "its key stays used"


def test_a_thread_may_begin_with_a_message(store: str) -> None:
    sent = run("send", "brand new", "Hello", "--key", "k", "-s", store)
    assert "brand new has no checkpoints yet; its first run begins with this message" in sent.out
    assert [message["key"] for message in run("inbox", "brand new", "--json", "-s", store).json] == ["k"]
    assert run("inbox", "brand newer", "-s", store).code == savegame.ThreadNotFound.exit_code
    assert {"thread_id": "brand new", "reason": "mail"}.items() <= stale_runs(store)["brand new"].items()
    assert run("send", "report", "Hello", "-s", store).code == savegame.InvalidInputError.exit_code, "no conversation"


def test_a_hostile_message_moves_no_cursor(on_disk: str) -> None:
    run("send", "gone", "\x1b[2Jred \u202egnp", "--key", "\x1b]0;k\x07", "-s", on_disk)
    for command in ("inbox", "stale"):
        shown = run(command, *(["gone"] if command == "inbox" else []), "-s", on_disk).out
        assert not {"\x1b", "\x07", "\u202e"} & set(shown), command
    assert "\\x1b[2Jred \\u202egnp" in run("inbox", "gone", "-s", on_disk).out


def stale_runs(store: str) -> dict[str, dict[str, object]]:
    return {found["thread_id"]: found for found in run("stale", "--json", "-s", store).json}


def test_stale_says_why_each_run_should_go_on(store: str) -> None:
    with savegame.open(store) as vault:
        sleep(vault, "sleeper", dt.timedelta(milliseconds=1))
        sleep(vault, "asleep", dt.timedelta(hours=6))
    run("send", "support-42", "Are you there?", "-s", store)
    found = stale_runs(store)
    assert {name: one["reason"] for name, one in found.items()} == {
        "gone": "crashed",
        "sleeper": "due",
        "support-42": "mail",
        "invoice-8": "crashed",
    }
    shown = [line.split() for line in run("stale", "-s", store).out.splitlines()]
    assert shown[0][:3] == ["thread", "agent", "why"]
    assert {line[0]: ("crashed" in line, "mail" in line, "due" in line) for line in shown[1:]} == {
        "gone": (True, False, False),
        "invoice-8": (True, False, False),
        "sleeper": (False, False, True),
        "support-42": (False, True, False),
    }


def sleep(vault: savegame.Vault, thread_id: str, duration: dt.timedelta) -> None:
    with vault.run(thread_id) as held:
        held.user("Remind me.")
        with pytest.raises(savegame.Paused):
            held.sleep(duration, name="reminder")


def test_a_run_is_stopped_from_outside(store: str) -> None:
    tools = savegame.Toolbox()

    @tools.tool
    def wire(cents: int) -> str:
        done = run("stop", "order", "the customer called", "-s", store)
        assert done.out == "order: its run was told to stop, and ends before its next call\n"
        return "wired"

    with savegame.open(store) as vault:
        with vault.run("order", tools=tools) as held:
            held.user("Pay it.")
            held.model(model)
            with pytest.raises(savegame.Stopped) as caught:
                held.tools()
        assert caught.value.reason == "the customer called"
        assert vault.info("order").status.reason is not None  # type: ignore[union-attr]
        assert [entry.result for entry in vault.calls("order")] == ["wired"], "what was done is kept"
    again = run("stop", "order", "--json", "-s", store)
    assert again.json == {"thread_id": "order", "stopped": False, "status": "halted"}


def test_a_thread_without_a_run_is_halted_at_once(store: str) -> None:
    assert run("stop", "invoice-7", "not this month", "-s", store).out == "invoice-7: halted\n"
    assert "halted: not this month" in run("ls", "-s", store).out
    (entry,) = run("calls", "invoice-7", "--json", "-s", store).json
    assert (entry["status"], "not this month" in entry["error"]) == ("failed", True)
    assert run("stop", "support-42", "-s", store).out == "support-42 was not stopped: it is completed\n"
    assert run("stop", "nobody", "-s", store).code == savegame.ThreadNotFound.exit_code
