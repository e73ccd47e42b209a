"""What people see of a vault: ls, log, show, diff, tail, search, stats; and how they name threads and checkpoints."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import ENTRY, PLAIN, run, typed

import savegame


def test_people_see_threads_history_conversation_and_changes(store: str) -> None:
    listed = run("ls", "--agent", "helper", "-s", store).out.splitlines()
    assert listed[0].split() == ["thread", "agent", "steps", "saved", "state", "last", "activity", "status"]
    assert [line.split()[:4] for line in listed[1:]] == [
        ["support-42", "helper", "3", "4"],
        ["what-if", "helper", "1", "1"],
    ]
    assert "✓ completed" in listed[1]
    drawn = run("log", "supp", "--graph", "-s", store).out.splitlines()
    assert [line[:4].rstrip() for line in drawn] == ["●", "│ ●", "├─╯", "●", "●"]
    assert "← head" in drawn[0]
    assert "#risky" in drawn[1]
    assert "«before refund»" in drawn[3]
    assert "120 tokens, $0.2500" in drawn[4]
    shown = run("show", "support-42", "before refund", "-s", store).out
    assert " assistant  Let me look.\n            One moment.\n" in shown
    assert "└── plan\n" in shown
    assert "A new one" not in shown
    changed = run("diff", "support-42", "1", "-s", store).out.splitlines()
    assert changed[2] == "+ messages[1]  assistant  Let me look. One moment."
    assert changed[-1] == "2 changes"


def test_people_see_what_was_said_what_was_found_and_how_much_there_is(store: str) -> None:
    told = run("tail", "support-42", "-n", "2", "-s", store).out.splitlines()
    assert [line.strip() for line in told[1::2]] == ["assistant  I refund it.", "assistant  A new one is on its way."]
    found = run("search", "parcel", "-s", store).out
    assert "support-42  message 1  user\n    My [parcel] 1017 never came.\n" in found
    assert "support-42  message 1  user\n    My p[arce]l" in run("search", "arce", "--match", "substring", "-s", store).out
    assert run("search", "nobody said this", "-s", store).out.startswith("no messages found; only the messages at the head")
    counted = run("stats", "--by", "agent", "-s", store).out
    assert "  6 threads   11 checkpoints   2 conversations with " in counted, "those of the two runs"
    assert [line.split()[:4] for line in counted.splitlines() if line.startswith("helper")] == [["helper", "5", "2", "120"]]
    by_thread = run("stats", "--by", "thread", "-s", store).out
    assert [line.split()[:4] for line in by_thread.splitlines() if "120" in line] == [["support-42", "4", "1", "120"]]


def test_messages_are_counted_where_there_are_conversations(tmp_path: Path) -> None:
    with savegame.open(tmp_path / "a.db") as vault:
        vault.thread("other").save({"messages": [{"role": "user", "content": "Hello"}]})
    assert "  1 thread   1 checkpoint\n" in run("stats", "-s", tmp_path / "a.db").out
    with savegame.open(tmp_path / "a.db") as vault:
        vault.save_conversation({"id": "talk", "agent_id": "helper", "messages": [{"role": "user", "content": "Hello"}]})
    assert "   1 conversation with 1 message\n" in run("stats", "-s", tmp_path / "a.db").out


def test_whoever_approves_a_call_sees_all_of_it(on_disk: str) -> None:
    box = savegame.Toolbox()
    to = {"account": "DE" * 100, "lines": [f"line {number}" for number in range(30)]}

    @box.tool(ask=True)
    def wire(to: dict[str, Any]) -> str:
        return "wired"

    def pay(vault: savegame.Vault) -> None:
        with vault.run("long", tools=box) as held:
            held.user("Pay it.")
            held.model(lambda _: {"role": "assistant", "tool_calls": [{"id": "c", "name": "wire", "arguments": {"to": to}}]})
            held.tools()

    with savegame.open(on_disk) as vault, pytest.raises(savegame.Paused):
        pay(vault)
    shown = re.sub(r"\s", "", typed("calls", "-s", on_disk, COLUMNS="80").out)
    assert "DE" * 100 in shown
    assert "line29" in shown


def test_a_checkpoint_has_many_names(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        entries = {entry.step: entry.id for entry in vault.thread("support-42").history()}
        vault.thread("report").label("head", "7")
    for name in (entries[2], entries[2][:6], "before refund", "head~1", "2"):
        assert run("show", "support-42", name, "-s", on_disk, "--json").json["id"] == entries[2], name
    assert run("show", entries[2], "-s", on_disk, "--json").json["thread_id"] == "support-42"
    assert run("show", "support-42", "latest", "-s", on_disk, "--json").json["id"] == entries[3]
    assert run("show", "report", "7", "-s", on_disk, "--json").json["step"] == 1, "a label comes before a step"
    fork = run("show", "what-if", "-s", on_disk, "--json").json["id"]
    assert run("diff", entries[2], fork, "-s", on_disk, "--json").json["changes"] == []
    for name in ("4", "head~9", entries[2][:5], "before"):
        done = run("show", "support-42", name, "-s", on_disk)
        hint = f"list its checkpoints with savegame log support-42 --store {on_disk}\n"
        assert (done.code, done.err.endswith(hint)) == (3, True), name


def test_a_thread_is_named_by_a_unique_beginning_where_nothing_changes(on_disk: str) -> None:
    assert run("show", "w", "-s", on_disk, "--json").json["thread_id"] == "what-if"
    done = run("show", "invoice", "-s", on_disk)
    assert (done.code, done.err) == (
        2,
        "savegame: thread id 'invoice' is ambiguous: 'invoice-7', 'invoice-8'; pass a longer prefix\n",
    )
    done = run("rewind", "w", "head", "-s", on_disk)
    assert (done.code, "pass its full id: 'what-if'" in done.err) == (3, True)


def test_a_thread_is_followed_live(store: str) -> None:
    command = [ENTRY, "tail", "support-42", "-f", "-n", "1", "--json", "-s", store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=PLAIN) as process, savegame.open(store) as vault:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["step"] == 3
        for number in (4, 5):
            vault.thread("support-42").save({"number": number})
            found = json.loads(process.stdout.readline())
            assert (found["step"], found["state"]) == (number, {"number": number})
        process.send_signal(2)
        assert process.wait(60) == 130


def test_long_and_multiline_texts_are_cut_unless_all_is_asked_for(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        long = vault.thread("long")
        long.save({"text": "\n".join(f"line {number}" for number in range(40)), "list": list(range(40))})
        long.update(set={"text": "\n".join(f"line {number}" if number != 20 else "another" for number in range(40))})
    assert "… 28 more" in run("show", "long", "-s", on_disk).out
    assert "39" in run("show", "long", "--full", "-s", on_disk).out
    changed = run("diff", "long", "-s", on_disk).out.splitlines()
    assert changed[2] == "~ text"
    assert [line.strip() for line in changed[4:-1]] == ["line 18", "line 19", "-line 20", "+another", "line 21", "line 22"]


def test_a_damaged_branch_does_not_hide_the_thread(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        thread = vault.thread("tree")
        for number in range(3):
            thread.save({"messages": [f"said {number}"]})
        thread.rewind(2)
        with vault.connection() as db:
            db.execute("UPDATE frame SET meta = zeroblob(length(meta)) WHERE key = (SELECT max(key) FROM frame)")
    for command in (["show", "tree"], ["show", "tree", "head"], ["diff", "tree"], ["log", "tree"]):
        assert run(*command, "-s", on_disk).code == 0, command
    for command in (["log", "tree", "--graph"], ["tail", "tree"]):
        done = run(*command, "-s", on_disk)
        assert (done.code, sum("step" in line for line in done.out.splitlines())) == (0, 2), command
        assert f"showing the head's line without branches; run savegame verify --store {on_disk}" in done.err
        assert run(*command, "--json", "-s", on_disk).code == savegame.CorruptionError.exit_code, "programs get all or nothing"


def test_nothing_there_is_said(tmp_path: object) -> None:
    address = f"sqlite:{tmp_path}/empty.db"
    savegame.open(address).close()
    assert run("ls", "-s", address).out == "no threads\n"
    assert run("ls", "-s", address, "--json").json == []
    assert run("stale", "-s", address).out == "no stale runs\n"
    assert run("calls", "-s", address).out == "no open calls\n"


@pytest.mark.parametrize("command", ["ls", "ls --recent", "log long", "log long --graph", "tail long", "search needle"])
def test_more_than_there_can_be_is_everything(tmp_path: Path, command: str) -> None:
    with savegame.open(tmp_path / "a.db") as vault:
        vault.thread("long").save({"messages": [{"role": "user", "content": "needle"}]})
    done = run(*command.split(), "-n", "9" * 30, "-s", tmp_path / "a.db")
    assert (done.code, done.err) == (0, "")
    assert done.out


@pytest.mark.parametrize("command", ["show long", "show long --full", "diff long", "tail long", "search needle", "log long"])
def test_numbers_of_any_length_are_shown(tmp_path: Path, command: str) -> None:
    with savegame.open(tmp_path / "a.db") as vault:
        for number in (0, 10**5000):
            calls = [{"id": "c", "name": "t", "arguments": arguments} for arguments in (number, {number: number})]
            said = {"role": "user", "content": ["needle", number], "tool_calls": calls}
            vault.thread("long").save({"messages": [said], "n": {number: number, (number,): {number}}})
    done = run(*command.split(), "-s", tmp_path / "a.db")
    assert (done.code, done.err) == (0, "")
    assert run(*command.split(), *([] if "full" in command else ["--json"]), "-s", tmp_path / "a.db").code == 0
    if "show" in command:
        assert hex(10**5000)[:50] in done.out
