"""What changes a vault: rewind, fork, label, prune, erase, answer, resolve. What deletes says so and asks first."""

from __future__ import annotations

import re
import shlex
import signal

import pytest
from commands import run, typed
from filled import model, wait_for_person

import savegame
from savegame.cli.vaults import _option_words, _vault_options, command
from savegame.model import ThreadKey
from savegame.store import DeleteThread


def test_rewinding_forking_and_labelling(store: str) -> None:
    with savegame.open(store) as vault:
        old = vault.thread("support-42").load().id
    done = run("rewind", "support-42", "1", "-s", store)
    assert "2 checkpoints stay as a branch" in done.out
    assert f"undo: savegame rewind support-42 {old[:8]} --store " in done.out
    assert run("fork", "support-42", "second", "-s", store).code == 0
    assert run("fork", "support-42", "second", "-s", store).code == savegame.AlreadyExistsError.exit_code
    assert "«first» #good" in run("label", "support-42", "head", "first", "--tag", "good", "-s", store).out
    assert "no label, no tags" in run("label", "support-42", "head", "--remove", "--untag", "good", "-s", store).out
    with savegame.open(store) as vault:
        thread = vault.thread("support-42")
        assert thread.load().step == 1
        assert vault.thread("second").state() == thread.state()
        thread.rewind(old)


def test_a_hint_can_be_typed_as_it_is(on_disk: str) -> None:
    with savegame.open(on_disk, namespace="my work") as vault:
        for number in range(2):
            vault.thread("it's two words").save(number)
    done = run("rewind", "it's two words", "1", "-s", on_disk, "--namespace", "my work")
    _, *undo = shlex.split(done.out.splitlines()[-1].removeprefix("undo: "))
    assert run(*undo).code == 0
    assert run("show", "it's two words", "-s", on_disk, "--namespace", "my work", "--json").json["step"] == 2
    assert "--store" not in run("rewind", "support-42", "1", SAVEGAME_STORE=on_disk).out, "it is there already"


def test_a_hint_tells_no_secret() -> None:
    _vault_options.set(_option_words("postgresql://me:secret@localhost/agents", "default"))
    assert command("ls") == "savegame ls --store URL"


def test_a_dry_run_changes_nothing(store: str) -> None:
    before = run("log", "support-42", "--branches", "--json", "-s", store).out
    assert run("rewind", "support-42", "1", "--discard", "--dry-run", "-s", store).out.endswith(
        "3 checkpoints would be deleted\n"
    )
    assert run("rewind", "support-42", "1", "--dry-run", "-s", store).out.endswith("2 checkpoints would stay as a branch\n")
    assert run("prune", "support-42", "--keep", "1", "--dry-run", "-s", store).out.endswith(
        "2 checkpoints of support-42 would be deleted\n"
    )
    assert run("erase", "customer-7", "--dry-run", "-s", store).out.split()[:2] == ["support-42", "what-if"]
    assert run("log", "support-42", "--branches", "--json", "-s", store).out == before


def test_nobody_to_ask_is_no_consent(store: str) -> None:
    before = run("ls", "--json", "-s", store).out
    for arguments in (
        ["prune", "--keep", "1"],
        ["erase", "customer-7"],
        ["rewind", "support-42", "1", "--discard"],
    ):
        done = run(*arguments, "-s", store)
        assert done.code == savegame.InvalidInputError.exit_code
        assert "pass --yes to confirm or --dry-run to preview" in done.err
    assert run("ls", "--json", "-s", store).out == before


def test_with_yes_it_is_done(store: str) -> None:
    assert run("rewind", "support-42", "1", "--discard", "--yes", "-s", store).out.endswith("3 checkpoints deleted\n")
    assert run("prune", "--older-than", "0s", "--yes", "--json", "-s", store).json == {
        "removed": 2,
        "threads": {"invoice-7": 1, "invoice-8": 1},
        "done": True,
    }
    assert run("erase", "customer-7", "--yes", "--json", "-s", store).json["threads"] == ["support-42", "what-if"]
    with savegame.open(store) as vault:
        assert [info.id for info in vault.threads()] == ["gone", "invoice-7", "invoice-8", "report"]


def test_erase_finds_forks_of_forks_and_says_what_it_cannot_follow(store: str) -> None:
    with savegame.open(store) as vault:
        thread = vault.thread("chat")
        thread.save({"text": "secret"})
        for name in ("middle", "leaf"):
            thread = thread.fork(name)
        vault.thread("middle").delete()
        vault.thread("chat").fork("cut").fork("cut off")
        vault.store.commit([DeleteThread(ThreadKey("default", "cut"))])  # as earlier versions deleted
        vault.thread("chat").attach_subject("customer-8")
    look = run("erase", "customer-8", "--dry-run", "-s", store)
    assert look.out.split() == ["chat", "leaf", "2", "threads", "of", "customer-8", "would", "be", "deleted"]
    assert "not erased: thread 'cut off' was forked from 'cut'" in look.err
    done = run("erase", "customer-8", "--yes", "--json", "-s", store).json
    assert (done["threads"], len(done["unreached"])) == (["chat", "leaf"], 1)
    assert run("erase", "customer-8", "--yes", "--json", "-s", store).json["threads"] == []


def test_erase_says_which_checkpoints_of_agents_it_emptied(store: str) -> None:
    with savegame.open(store) as vault:
        vault.save_agent({"agent_id": "helper", "name": "Helper", "agent_type": "scripted"})
        vault.save_conversation({"id": "chat", "agent_id": "helper", "messages": []})
        named = vault.checkpoint_agent("helper", "here")
        vault.thread("chat").attach_subject("customer-8")
        vault.delete_conversation("chat")
    look = run("erase", "customer-8", "--dry-run", "-s", store)
    assert f"agent checkpoints that would lose conversations: {named.id}" in " ".join(look.out.split())
    assert run("erase", "customer-8", "--yes", "--json", "-s", store).json == {
        "subject": "customer-8",
        "threads": ["chat"],
        "unreached": [],
        "emptied": [named.id],
        "done": True,
    }


def test_a_person_is_asked_and_may_refuse(on_disk: str) -> None:
    refused = typed("prune", "--keep", "1", "-s", on_disk, answer="n\n")
    assert "will be deleted for good. Continue?" in refused.out
    assert refused.code == 1
    assert run("log", "support-42", "-s", on_disk).out.count("\n") == 3
    assert typed("prune", "--keep", "1", "-s", on_disk, answer="y\n").code == 0
    assert run("log", "support-42", "-s", on_disk).out.count("\n") == 2, "the labelled one stays"


def test_what_goes_is_shown_before_it_is_gone(store: str) -> None:
    def rows(shown: str) -> list[list[str]]:
        return [line.split() for line in shown.splitlines()]

    every = rows(run("prune", "--keep", "1", "--include-labelled", "--dry-run", "-s", store).out)
    assert [row[:3] for row in every[:2]] == [["thread", "delete", "steps"], ["invoice-7", "1", "1"]]
    assert ["support-42", "3", "1", "to", "3"] in [row[:5] for row in every]
    one = rows(run("prune", "support-42", "--keep", "1", "--dry-run", "-s", store).out)
    assert [row[1:3] for row in one[:-1]] == [["step", "3"], ["step", "1"]], "the labelled one stays"
    assert "#risky" in one[0]
    refused = run("rewind", "support-42", "1", "--discard", "-s", store)
    assert [row[1:3] for row in rows(refused.out)] == [["step", "3"], ["step", "3"], ["step", "2"]]


def test_a_rewind_is_told_once_it_has_happened(on_disk: str) -> None:
    assert "← head" not in run("rewind", "support-42", "1", "--discard", "-s", on_disk).out, "not confirmed"
    with savegame.open(on_disk) as vault, vault.run("support-42"):
        busy = run("rewind", "support-42", "1", "-s", on_disk)
        assert (busy.code, busy.out) == (savegame.Busy.exit_code, "")
    assert "step 1" in run("rewind", "support-42", "1", "-s", on_disk).out.partition("← head")[0]


@pytest.mark.parametrize(
    "arguments",
    [["prune", "--keep", "1"], ["prune", "support-42", "--keep", "1"], ["erase", "customer-7"],
     ["rewind", "support-42", "1", "--discard"]],
)  # fmt: skip
def test_only_what_was_confirmed_is_done(on_disk: str, arguments: list[str]) -> None:
    def change(_: object) -> None:
        with savegame.open(on_disk) as vault:
            vault.thread("support-42").update(set={"late": True})
            vault.thread("support-42").fork("another")

    done = typed(*arguments, "-s", on_disk, answer="y\n", meanwhile=change)
    assert done.code == savegame.ConflictError.exit_code, done.out
    with savegame.open(on_disk) as vault:
        assert len(list(vault.thread("support-42").history(branches=True))) == 5


def test_what_was_too_young_when_it_was_shown_is_not_a_change(on_disk: str) -> None:
    def save(_: object) -> None:
        with savegame.open(on_disk) as vault:
            vault.thread("report").save(["more"])
            vault.thread("report").save(["and more"])

    assert typed("prune", "--older-than", "0s", "-s", on_disk, answer="y\n", meanwhile=save).code in (0, 5)
    with savegame.open(on_disk) as vault:
        assert len(list(vault.thread("report").history())) >= 2, "what was not listed is not deleted"


def test_an_interrupted_question_is_an_interruption(on_disk: str) -> None:
    done = typed("prune", "--keep", "1", "-s", on_disk, meanwhile=lambda process: process.send_signal(signal.SIGINT))
    assert done.code == 130


def test_label_and_tags_change_together_or_not_at_all(store: str) -> None:
    before = run("log", "support-42", "--json", "-s", store).out
    done = run("label", "support-42", "1", "x" * 600, "--tag", "new", "-s", store)
    assert done.code == savegame.InvalidInputError.exit_code
    assert run("label", "support-42", "1", "fine", "--untag", "risky", "--tag", "", "-s", store).code == done.code
    assert run("log", "support-42", "--json", "-s", store).out == before


def test_a_call_that_was_answered_is_shown_so(store: str) -> None:
    asked = run("calls", "-s", store).out
    assert "invoice-7  wire  waiting for an answer\n" in asked
    assert re.search("    savegame answer invoice-7 --store .+ --approve, or --reject WHY\n", asked)
    assert re.search("    savegame resolve invoice-8 --store .+ --result JSON, or --error TEXT\n", asked)
    assert run("answer", "invoice-7", "--approve", "-s", store).code == 0
    assert "invoice-7  wire  answered\n" in run("calls", "-s", store).out
    (entry,) = run("calls", "invoice-7", "--json", "-s", store).json
    assert (entry["status"], entry["answered"]) == ("waiting", True)


def test_of_several_calls_each_is_named_by_its_key(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        thread = vault.thread("invoice-7")
        thread.rewind(1)
        thread.save({"messages": []})
        wait_for_person(vault, "invoice-7")
    keys = [call["key"] for call in run("calls", "invoice-7", "--json", "-s", on_disk).json]
    shown = run("calls", "invoice-7", "-s", on_disk).out
    assert len(keys) == 2
    assert all(f"savegame answer invoice-7 {key} --store {on_disk} --approve" in shown for key in keys)


def test_what_is_approved_is_what_was_shown(store: str) -> None:
    (shown,) = run("calls", "invoice-7", "--json", "-s", store).json
    assert run("answer", "invoice-7", "--approve", "-s", store).code == 0
    with savegame.open(store) as vault:
        messages = vault.thread("invoice-7").state()["messages"]
        messages[-1]["tool_calls"][0]["arguments"] = {"cents": 999_999}
        vault.thread("invoice-7").update(set={"messages": messages})
        with pytest.raises(savegame.Paused), vault.run("invoice-7", tools=tools(ask=True)) as held:
            held.tools()
    first, other = run("calls", "invoice-7", "--json", "-s", store).json
    assert (first["key"], first["arguments"], first["answered"]) == (shown["key"], shown["arguments"], True)
    assert (other["arguments"], other["answered"]) == ({"cents": 999_999}, False)
    done = run("answer", "invoice-7", "--reject", "too much", "--json", "-s", store)
    assert done.json["call"] == other["key"]


def test_a_call_that_is_being_made_needs_nobody(on_disk: str) -> None:
    box = savegame.Toolbox()

    @box.tool
    def wire(cents: int) -> str:
        listed = [call["thread_id"] for call in run("calls", "--json", "-s", on_disk).json]
        return "listed" if "invoice-9" in listed else "not listed"

    with savegame.open(on_disk) as vault, vault.run("invoice-9", tools=box) as held:
        held.user("Pay it.")
        held.model(model)
        held.tools()
        assert held.messages[-1]["content"] == "not listed"


def test_a_call_that_waits_is_answered_once(store: str) -> None:
    done = run("answer", "invoice-7", "--reject", "not before Friday", "-s", store)
    assert done.out == "wire of invoice-7: rejected\n"
    assert run("answer", "invoice-7", "--approve", "-s", store).code == savegame.AlreadyExistsError.exit_code
    assert run("answer", "invoice-8", "--approve", "-s", store).code == savegame.NotFoundError.exit_code
    assert run("answer", "invoice-7", "-s", store).code == savegame.InvalidInputError.exit_code
    with savegame.open(store) as vault, vault.run("invoice-7", tools=tools(ask=True)) as held:
        held.tools()
        assert "not before Friday" in held.messages[-1]["content"]


def test_an_outcome_that_nobody_knew_is_told(store: str) -> None:
    key = run("calls", "invoice-8", "--json", "-s", store).json[0]["key"]
    assert run("resolve", "invoice-8", key[:8], "--result", "no json", "-s", store).code == 2
    assert run("resolve", "invoice-8", key[:8], "--result", '"wired"', "-s", store).out == "wire of invoice-8: resolved\n"
    assert run("resolve", "invoice-8", key, "--result", "1", "-s", store).code == savegame.InvalidInputError.exit_code
    with savegame.open(store) as vault, vault.run("invoice-8", tools=tools()) as held:
        held.tools()
        assert held.messages[-1]["content"] == "wired"


def tools(*, ask: bool = False) -> savegame.Toolbox:
    box = savegame.Toolbox()

    @box.tool(ask=ask)
    def wire(cents: int) -> str:
        raise AssertionError("it must not be called")

    return box


def test_what_makes_no_sense_is_refused(on_disk: str) -> None:
    for arguments in (
        ["label", "support-42", "head"],
        ["label", "support-42", "head", "name", "--remove"],
        ["prune"],
        ["prune", "--keep", "0"],
        ["prune", "--older-than", "soon"],
        ["prune", "--older-than", "999999999w"],
        ["stats", "--by", "hour"],
        ["search", "parcel", "--match", "prefix"],
        ["ls", "--status", "asleep"],
        ["resolve", "invoice-8"],
    ):
        done = run(*arguments, "-s", on_disk)
        assert (done.code, done.out) == (2, ""), arguments
        assert not re.search(r"\w=[, ]", done.err), "this is no Python"
