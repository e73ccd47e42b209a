"""What changes a vault: rewind, fork, label, prune, erase, answer, resolve. What deletes says so and asks first."""

from __future__ import annotations

from commands import run, typed

import savegame


def test_rewinding_forking_and_labelling(store: str) -> None:
    with savegame.open(store) as vault:
        old = vault.thread("support-42").load().id
    done = run("rewind", "support-42", "1", "-s", store)
    assert "2 checkpoints stay as a branch" in done.out
    assert f"undo: savegame rewind support-42 {old[:8]}\n" in done.out
    assert run("fork", "support-42", "second", "-s", store).code == 0
    assert run("fork", "support-42", "second", "-s", store).code == savegame.AlreadyExistsError.exit_code
    assert "«first» #good" in run("label", "support-42", "head", "first", "--tag", "good", "-s", store).out
    assert "no label, no tags" in run("label", "support-42", "head", "--remove", "--untag", "good", "-s", store).out
    with savegame.open(store) as vault:
        thread = vault.thread("support-42")
        assert thread.load().step == 1
        assert vault.thread("second").state() == thread.state()
        thread.rewind(old)


def test_a_dry_run_changes_nothing(store: str) -> None:
    before = run("log", "support-42", "--branches", "--json", "-s", store).out
    assert run("rewind", "support-42", "1", "--discard", "--dry-run", "-s", store).out.endswith(
        "3 checkpoints would be deleted\n"
    )
    assert run("rewind", "support-42", "1", "--dry-run", "-s", store).out.endswith("2 checkpoints would stay as a branch\n")
    assert run("prune", "support-42", "--keep", "1", "--dry-run", "-s", store).out.startswith(
        "2 checkpoints of support-42 would"
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
        assert "give --yes to do it, or --dry-run to look only" in done.err
    assert run("ls", "--json", "-s", store).out == before


def test_with_yes_it_is_done(store: str) -> None:
    assert run("rewind", "support-42", "1", "--discard", "--yes", "-s", store).out.endswith("3 checkpoints deleted\n")
    assert run("prune", "--older-than", "0s", "--yes", "--json", "-s", store).json == {"removed": 2, "done": True}
    assert run("erase", "customer-7", "--yes", "--json", "-s", store).json["threads"] == ["support-42", "what-if"]
    with savegame.open(store) as vault:
        assert [info.id for info in vault.threads()] == ["gone", "invoice-7", "invoice-8", "report"]


def test_a_person_is_asked_and_may_refuse(on_disk: str) -> None:
    refused = typed("prune", "--keep", "1", "-s", on_disk, answer="n\n")
    assert "will be deleted for good. Go on?" in refused.out
    assert refused.code == 1
    assert run("log", "support-42", "-s", on_disk).out.count("\n") == 3
    assert typed("prune", "--keep", "1", "-s", on_disk, answer="y\n").code == 0
    assert run("log", "support-42", "-s", on_disk).out.count("\n") == 2, "the labelled one stays"


def test_a_call_that_waits_is_answered_once(store: str) -> None:
    done = run("answer", "invoice-7", "--reject", "not before Friday", "-s", store)
    assert done.out == "wire of invoice-7: refused\n"
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
        ["stats", "--by", "hour"],
        ["ls", "--status", "asleep"],
        ["resolve", "invoice-8"],
    ):
        done = run(*arguments, "-s", on_disk)
        assert (done.code, done.out) == (2, ""), arguments
