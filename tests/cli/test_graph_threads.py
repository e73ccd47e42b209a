"""LangGraph threads on the command line: what people look for in them, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from commands import run
from graphs import chat, config, human, team, trip

import savegame
from savegame.vault import Vault


@pytest.fixture
def address(address_of: Callable[..., str]) -> str:
    return address_of("sqlite")


@pytest.fixture
def vault(address: str) -> Iterator[Vault]:
    with savegame.open(address) as opened:
        yield opened


def test_log_names_nodes_and_shows_the_newest_message(vault: Vault, address: str) -> None:
    chat(vault).invoke(human("Where is it?"), config("t"))
    for more in ((), ("--graph",)):
        last, middle, first = run("log", "t", *more, "--store", address).out.splitlines()
        assert " model " in last
        assert last.endswith("← head ✓ completed 10 tokens, $0.2500 assistant: You said: Where is it?")
        assert middle.endswith("user: Where is it?")
        assert first.endswith(" input")


def test_log_of_a_conversation_is_as_it_was(vault: Vault, address: str) -> None:
    vault.thread("t").update(append={"messages": [{"role": "user", "content": "hello"}]})
    assert "hello" not in run("log", "t", "--store", address).out


def test_diff_shows_messages_and_counts_the_rest(vault: Vault, address: str) -> None:
    chat(vault).invoke(human("Where is it?"), config("t"))
    shown = run("diff", "t", "--store", address).out.splitlines()[2:]
    assert shown[0] == "+ channel_values.messages[1]  assistant  You said: Where is it?"
    assert shown[1] == "1 change"
    assert shown[2].startswith("+ ")
    assert shown[2].endswith(" bookkeeping fields; --all shows them")
    whole = run("diff", "t", "--all", "--store", address).out
    for field in ("ts", "parent_id", "channel_versions", "versions_seen", "channel_values['branch:to:model']"):
        assert f" {field}" in whole
        assert f" {field}" not in "\n".join(shown)
    assert "bookkeeping" not in whole
    changes = run("diff", "t", "--store", address, "--json").json["changes"]
    assert ["ts"] in [change["path"] for change in changes], "programs get everything"


def test_show_is_a_conversation_and_the_other_channels(vault: Vault, address: str) -> None:
    chat(vault).invoke(human("Where is it?"), config("t"))
    trip(vault).invoke({"log": ["packed"]}, config("asks"))
    shown = run("show", "t", "--store", address).out
    assert "      user  Where is it?\n assistant  You said: Where is it?\n+ " in shown
    assert "versions_seen" not in shown
    assert "versions_seen" in run("show", "t", "--full", "--store", address).out
    shown = run("show", "asks", "--store", address).out
    assert "halted: ask waits for a person" in shown
    assert "    └── log\n        └── 0  packed\n+ " in shown


def test_threads_of_subgraphs_are_below_their_graph(vault: Vault, address: str) -> None:
    team(vault).invoke({"log": []}, config("t"))
    vault.thread("t-other").save(1)
    vault.thread("a").save(1)
    names = [
        line[:40].split("  ")[0] if line[0] != " " else line.split()[:2]
        for line in run("ls", "--store", address).out.splitlines()
    ]
    below = names.pop(3)
    assert names == ["thread", "a", "t", "t-other"]
    assert below[0] == "└"
    assert below[1].startswith("helper:")
    assert len(below[1]) == len("helper:") + 8
    found = {one["id"]: one["child_of"] for one in run("ls", "--store", address, "--json").json}
    (child,) = (name for name, parent in found.items() if parent == "t")
    assert run("log", child, "--store", address).code == 0
    alone = run("ls", "--status", "halted", "-n", "1", "--store", address).out
    assert "└" not in alone


def test_calls_lists_what_a_graph_asks_and_answer_answers_it(vault: Vault, address: str) -> None:
    graph = trip(vault)
    graph.invoke({"log": []}, config("t"))
    shown = run("calls", "--store", address).out
    assert shown.startswith("t  ask  waiting for an answer\n    question: where to?\n")
    assert shown.rstrip().endswith("--value JSON")
    done = run("answer", "t", "--store", address, "--value", "Rome")
    assert done.code == 2
    assert "--value is not JSON" in done.err
    assert run("answer", "t", "--store", address, "--value", '"Rome"').out == "ask of t: answered\n"
    again = run("answer", "t", "--store", address, "--value", '"Bonn"')
    assert again.code == 4
    assert "already answered" in again.err
    assert "call the agent again to continue" in run("calls", "--store", address).out
    graph.invoke(None, config("t"))
    assert "asks: when?" in run("calls", "t", "--store", address).out
    assert run("answer", "t", "--store", address, "--reject", "never").code == 0
    assert graph.invoke(None, config("t")) == {"log": ["Rome never", "booked"]}
    assert run("calls", "--store", address).out == "no open calls\n"
    gone = run("answer", "t", "--store", address, "--approve")
    assert gone.code == 3
    assert "no call that is waiting" in gone.err


def test_a_value_is_for_interrupts_alone(vault: Vault, address: str) -> None:
    tools = savegame.Toolbox()

    @tools.tool(ask=True)
    def pay(cents: int) -> str:
        return "paid"

    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "pay", "arguments": {"cents": 1}}]}
    with pytest.raises(savegame.Paused), vault.run("invoice", tools=tools) as held:  # noqa: PT012 - the run pauses inside
        held.user("pay")
        held.model(lambda messages: reply)
        held.tools()
    refused = run("answer", "invoice", "--store", address, "--value", "true")
    assert refused.code == 2
    assert "is a tool call; pass --approve or --reject WHY" in refused.err
    assert run("answer", "invoice", "--store", address, "--value", "true", "--approve").code == 2
