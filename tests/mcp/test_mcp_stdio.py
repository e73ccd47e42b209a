"""The command itself: only the protocol on standard output, both generations of it, and errors before it begins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from desk import ENTRY, command, desk_at
from mcp import types

import savegame
from savegame import errors
from savegame.mcp.server import NEXT_STEPS, error_text


def run(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ENTRY, "mcp", *options], input="", capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


def message(method: str, number: int | None = None, **params: Any) -> str:
    asked = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **asked}) + "\n"


def test_standard_output_holds_nothing_but_the_protocol(tmp_path: Path) -> None:
    who = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    send = message("initialize", 1, **who) + message("notifications/initialized") + "this is no JSON\n"
    send += message("tools/call", 9, name="agent_load", arguments={"agent_id": "\ud800"})  # the SDK drops that, and goes on
    send += message("tools/call", 2, name="agent_load", arguments={"agent_id": "nobody"})
    send += message("tools/call", 3, name="no_such_tool", arguments={}) + message("tools/list", 4)
    with subprocess.Popen(
        [ENTRY, "mcp", "--store", "vault.db"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(send)
        server.stdin.flush()
        answers: dict[int, Any] = {}
        while not {1, 2, 3, 4} <= answers.keys():
            answer = json.loads(server.stdout.readline())
            answers[answer.get("id")] = answer
        server.stdin.close()
        assert server.wait(60) == 0
        assert server.stdout.read() == ""
    assert answers[1]["result"]["serverInfo"]["name"] == "savegame"
    assert answers[2]["result"]["isError"]
    assert answers[3]["error"]["code"] == types.INVALID_PARAMS
    assert len(answers[4]["result"]["tools"]) == 24


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_both_generations_of_the_protocol_are_spoken(tmp_path: Path, mode: str) -> None:
    with desk_at(command(str(tmp_path / "vault.db")), mode) as desk:
        assert desk.give("agent_list") == {"agents": [], "next": None}


def test_a_read_only_server_changes_nothing_and_makes_nothing(tmp_path: Path) -> None:
    missing = run("--read-only", "--store", "missing.db", cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (savegame.StoreNotFound.exit_code, "")
    assert "missing.db" in missing.stderr
    assert not (tmp_path / "missing.db").exists()
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        vault.save_conversation(savegame.Conversation(None, [savegame.Message.user("a needle")], id="talk"))
    with desk_at(command(str(path), "--read-only")) as desk:
        assert "conversation_save" not in desk.tools
        assert desk.give("conversation_load", conversation_id="talk")["message_count"] == 1
        assert desk.give("conversation_search", query="needle")["hits"][0]["conversation_id"] == "talk"


def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    store = str(tmp_path / "vault.db")
    with desk_at(command(store, "--namespace", "one")) as desk:
        desk.give("conversation_save", conversation_id="talk", messages=[{"role": "user", "content": "x"}])
    with desk_at(command(store, "--namespace", "two")) as desk:
        assert desk.give("conversation_list")["conversations"] == []


def test_without_the_sdk_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('not installed')\n", encoding="utf-8")
    command = [sys.executable, "-m", "savegame", "mcp", "--store", "x.db"]  # -m finds modules of this directory first
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == savegame.UnsupportedError.exit_code
    assert 'pip install "savegame[mcp]"' in " ".join(done.stderr.split())
    assert not (tmp_path / "x.db").exists()


def test_every_error_says_what_to_do_next() -> None:
    every = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, savegame.SavegameError)]
    for cls in every:
        kind, _, rest = error_text(cls("what is wrong")).partition(": ")
        assert (kind, rest.partition("\n")[0]) == (cls.kind, "what is wrong")
        assert rest.partition("\nNext: ")[2]
    assert {*savegame.SavegameError.__subclasses__()} <= NEXT_STEPS.keys(), "every branch of the tree has advice of its own"


def test_an_unknown_outcome_and_damage_name_the_checkpoint_to_look_at() -> None:
    unknown = savegame.UnavailableError("lost the reply", unknown=True, checkpoint_id="c0ffee")
    assert "c0ffee" in error_text(unknown)
    with savegame.open("memory:") as vault:
        damaged = savegame.CorruptionError("bad bytes")
        damaged.newest_sound = vault.thread("t").save({})
        assert damaged.newest_sound.id in error_text(damaged)
