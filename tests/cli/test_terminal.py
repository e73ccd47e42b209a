"""On a terminal: colours, bars, nothing that stored text can do to it. In a pipe: none of that."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from commands import ENTRY, PLAIN, run, typed

import savegame
from savegame.cli.printing import json_text, one_line
from savegame.model import ThreadKey

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202egnp.exe\u2066a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\u061ch\u206ai\ufff9j"
ESCAPES = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u206f\ufff9-\ufffb]|\x1b(?!\\[[0-9;]*m)")


@pytest.fixture
def evil(on_disk: str) -> str:
    """A vault in which every text that can be stored holds control characters."""
    with savegame.open(on_disk) as vault:
        thread = vault.thread(f"evil {EVIL}", agent=EVIL)
        state = {
            "messages": [{"role": EVIL, "content": f"word {EVIL}", "tool_calls": [{"name": EVIL, "arguments": {EVIL: EVIL}}]}]
        }
        details = {"description": EVIL, "resume_hint": EVIL, "metadata": {EVIL: EVIL}, "external_id": EVIL}
        thread.save(state | {EVIL: [EVIL]}, label=EVIL, tags=[EVIL], status=f"failed({EVIL})", **details)
        thread.save({EVIL: f"{EVIL}\n2"}, label=EVIL)
        thread.save(state | {EVIL: f"{EVIL}\n3"})
        thread.attach_subject(EVIL)
    return on_disk


COMMANDS = (
    ["ls"],
    ["log", "evil"],
    ["log", "evil", "--graph"],
    ["show", "evil", "1"],
    ["show", "evil", "2", "--full"],
    ["diff", "evil", "1", "2"],
    ["diff", "evil", "2", "3"],
    ["tail", "evil"],
    ["search", "word"],
    ["stats", "--by", "agent"],
    ["erase", EVIL, "--dry-run"],
    ["show", EVIL],
)


def test_stored_text_stays_text(evil: str) -> None:
    for arguments in COMMANDS:
        done = run(*arguments, "-s", evil)
        assert not ESCAPES.search(done.out + done.err), arguments
        assert "\\x1b" in done.out + done.err, arguments
    for arguments in (["show", "evil", "1"], ["ls"], ["log", "evil"], ["diff", "evil", "1", "2"], ["tail", "evil"]):
        assert not ESCAPES.search(run(*arguments, "--json", "-s", evil).out), arguments


def test_a_line_of_json_is_a_line_for_every_reader(evil: str) -> None:
    lines = run("tail", "evil", "--json", "-s", evil).out
    assert lines.splitlines() == lines.removesuffix("\n").split("\n")
    assert [json.loads(line)["label"] for line in lines.splitlines()].count(EVIL) == 2


def test_stored_text_in_a_warning_stays_text(evil: str) -> None:
    with savegame.open(evil) as vault, vault.connection() as db:
        db.execute("UPDATE thread SET sum = sum + 1 WHERE id LIKE 'evil%'")
    done = run("stats", "--by", "agent", "-s", evil)
    assert "left out" in done.err
    assert not ESCAPES.search(done.err)


def test_stored_text_stays_text_on_a_terminal(evil: str) -> None:
    for arguments in (["ls"], ["show", "evil", "1"], ["search", "word"]):
        shown = typed(*arguments, "-s", evil).out.replace("\r\n", "\n")
        assert "\x1b[" in shown, "colours"
        assert not ESCAPES.search(re.sub("\x1b\\[\\?25[hl]|\x1b\\[[0-9]*[AK]|\r(?=\x1b)", "", shown)), arguments


def test_colours_for_people_only(on_disk: str) -> None:
    assert "\x1b[" in typed("log", "support-42", "--graph", "-s", on_disk).out
    assert "\x1b[" not in run("log", "support-42", "--graph", "-s", on_disk).out
    assert "\x1b[" not in run("log", "support-42", "-s", on_disk, NO_COLOR="1").out


def test_only_the_lanes_of_a_drawn_tree_are_blue(on_disk: str) -> None:
    shown = typed("log", "support-42", "--graph", "-s", on_disk).out
    assert "\x1b[34m●" in shown
    assert not re.search("\x1b\\[34m[^\x1b]*manual", shown)


def test_a_narrow_terminal_shows_status_and_age(on_disk: str) -> None:
    shown = on_terminal(44, "ls", "-s", on_disk)
    assert shown[0].split() == ["thread", "last", "activity", "status"]
    assert re.fullmatch(r"support-42 +just now +✓ completed", shown[-2].strip())
    assert max(map(len, shown)) <= 44


def on_terminal(width: int, *arguments: object) -> list[str]:
    shown = typed(*arguments, COLUMNS=str(width)).out.splitlines()
    return [re.sub("\x1b\\[[0-9;]*m", "", line).rstrip() for line in shown]


def test_what_is_wrapped_goes_on_below_where_it_began(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        vault.thread("long").save({"messages": [{"role": "user", "content": "one two three four five six seven eight"}]})
    shown = on_terminal(34, "show", "long", "-s", on_disk)
    assert shown[-2:] == ["      user  one two three four", "            five six seven eight"]
    assert "      user  one two three four five six seven eight\n" in run("show", "long", "-s", on_disk, COLUMNS="34").out


def test_a_narrow_terminal_is_told_less_of_a_checkpoint(on_disk: str) -> None:
    assert re.fullmatch(r"\w{8}  3   just now    ← head ✓ completed", on_terminal(44, "log", "support-42", "-s", on_disk)[0])
    drawn = on_terminal(30, "log", "support-42", "--graph", "-s", on_disk)
    assert max(map(len, drawn)) <= 30, "a drawn tree is cut, so that its lanes stay whole"


def test_calls_that_ended_are_a_line_each(on_disk: str) -> None:
    run("resolve", "invoice-8", "--result", '"wired"', "-s", on_disk)
    (shown,) = run("calls", "invoice-8", "-s", on_disk).out.splitlines()
    assert re.fullmatch(r"done    wire\(cents=4900\) = wired  \w{32}:0", shown)


def test_a_bar_for_people_only(on_disk: str) -> None:
    assert "verifying" in typed("verify", "-s", on_disk).out
    done = run("verify", "-s", on_disk)
    assert (done.out.startswith("✓ intact"), done.err) == (True, "")


def test_nothing_is_cut_in_a_pipe(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        thread = vault.thread("n" * 200, agent="a" * 200)
        thread.save(1, label="l" * 200)
        thread.fork("fork")
        vault.store.lease(ThreadKey(vault.namespace, thread.id), "somebody", 1)
    assert f"{'n' * 200}  {'a' * 200}" in run("ls", "-s", on_disk, COLUMNS="40").out
    assert f"{'n' * 200}  {'a' * 200}" in run("stale", "-s", on_disk, COLUMNS="40").out
    assert f"«{'l' * 200}» forked from {'n' * 200}" in run("log", "fork", "-s", on_disk, COLUMNS="40").out


def test_a_reader_that_goes_away_is_no_error(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        thread = vault.thread("many")
        for number in range(2000):
            thread.save(number)
    command = f"{ENTRY} log many -s {on_disk} | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, env=PLAIN, check=False)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"], ["verify"], ["--help"]], ids=" ".join)
def test_a_reader_that_is_gone_is_no_error(on_disk: str, arguments: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [ENTRY, *arguments]
    environment = PLAIN | {"SAVEGAME_STORE": on_disk, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60, env=environment, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk that is there without root: Linux")
@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"], ["verify"], ["--help"]], ids=" ".join)
def test_output_that_finds_no_room_is_an_error_in_one_line(on_disk: str, arguments: list[str]) -> None:
    environment = PLAIN | {"SAVEGAME_STORE": on_disk, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [ENTRY, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment, check=False
        )
    assert done.returncode == 1
    assert "standard output: No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_closed_output_is_no_error(on_disk: str) -> None:
    for arguments in ("ls", "ls --json", "--version"):
        command = f"{ENTRY} {arguments} >&-"
        environment = PLAIN | {"SAVEGAME_STORE": on_disk}
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, env=environment, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_such_letters_gets_escapes(on_disk: str) -> None:
    done = run("log", "support-42", "--graph", "-s", on_disk, PYTHONIOENCODING="ascii")
    assert done.code == 0
    assert "\\u25cf" in done.out


def test_escapes() -> None:
    assert one_line("a\tb\nc\x1b\u202e") == "a b⏎c\\x1b\\u202e"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("a\u2028b\u2029c\x85") == "a\\u2028b\\u2029c\\x85"
    assert json_text({"a": "\x9b\u202eü"}) == '{"a": "\\u009b\\u202eü"}'
