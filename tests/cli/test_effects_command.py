"""What tools did in the world: listed, named before a thread goes back or forks, and not repeated without an answer."""

from __future__ import annotations

from typing import Any

import pytest
from commands import Done, run, typed

import savegame

made: list[int] = []
tools = savegame.Toolbox()


@tools.tool
def refund(cents: int) -> str:
    made.append(cents)
    return f"refunded {cents}"


def model(messages: list[dict[str, Any]]) -> Any:
    """Asks for the same refund whenever a user speaks, under a fresh id."""
    if messages[-1]["role"] == "tool":
        return "done"
    return {"role": "assistant", "tool_calls": [{"id": f"c{len(made)}", "name": "refund", "arguments": {"cents": 4900}}]}


def pay(vault: savegame.Vault, thread_id: str, text: str | None = "Refund me.") -> Any:
    with vault.run(thread_id, tools=tools) as held:
        if text:
            held.user(text)
        while not held.done:
            held.tools()
            held.model(model)
        return held.reply


@pytest.fixture
def paid(on_disk: str) -> str:
    """A thread whose run refunded after its first checkpoint, which has the label "asked"."""
    made.clear()
    with savegame.open(on_disk) as vault:
        vault.thread("order").save({"messages": [{"role": "user", "content": "Hello"}]}, label="asked")
        pay(vault, "order")
    return on_disk


def effects(store: str, *arguments: object) -> list[dict[str, Any]]:
    return list(run("effects", *arguments, "--json", "-s", store).json)


def head(store: str) -> str:
    return str(run("show", "order", "-s", store, "--json").json["id"])


def test_effects_are_listed_with_what_became_of_them(paid: str) -> None:
    (one,) = run("effects", "order", "-s", paid).out.splitlines()
    assert one.split()[:4] == ["just", "now", "refund(cents=4900)", "="]
    assert "refunded 4900" in one
    assert run("effects", "order", "--after", "head", "-s", paid).out == "no effects after this checkpoint\n"
    assert run("effects", "support-42", "-s", paid).out == "no effects\n"
    assert run("effects", "order", "--after", "nothing", "-s", paid).code == savegame.CheckpointNotFound.exit_code
    assert [(one["name"], one["left"], one["undone_at"]) for one in effects(paid, "order")] == [("refund", False, None)]
    run("rewind", "order", "asked", "-s", paid)
    assert [one["left"] for one in effects(paid, "order", "--after", "asked")] == [True]
    assert run("effects", "order", "-s", paid).out.count("  left") == 1


def names_the_refund(done: Done) -> bool:
    shown = " ".join(done.out.split())
    return (
        "1 effect after this point stays in the world:" in shown
        and "refund(cents=4900)" in shown
        and "vault.undo('order'" in shown
    )


def test_a_rewind_names_what_stays_in_the_world_first(paid: str) -> None:
    before = head(paid)
    look = run("rewind", "order", "asked", "--dry-run", "-s", paid)
    assert names_the_refund(look)
    assert head(paid) == before
    done = run("rewind", "order", "asked", "-s", paid)
    assert (done.code, names_the_refund(done)) == (0, True), "nothing is lost, so a script is not asked"
    assert done.out.index("stays in the world") < done.out.index("← head")
    assert "A run asks before it makes one of these calls again" in done.out
    back = run("rewind", "order", before, "--json", "-s", paid).json
    assert back["effects"] == [], "forward again, they are on the line"
    again = run("rewind", "order", "asked", "--json", "-s", paid).json
    assert [(one["name"], one["arguments"]) for one in again["effects"]] == [("refund", {"cents": 4900})]


def test_on_a_terminal_a_person_is_asked_if_something_stays(paid: str) -> None:
    before = head(paid)
    refused = typed("rewind", "order", "asked", "-s", paid, answer="n\n")
    assert "1 effect will stay in the world. Continue? [y/N]" in refused.out
    assert (refused.code, head(paid)) == (1, before)
    assert typed("rewind", "order", "asked", "-s", paid, answer="y\n").code == 0
    assert head(paid) != before
    assert typed("rewind", "order", before, "-s", paid).code == 0, "nothing to ask about"
    assert "[y/N]" not in typed("rewind", "order", "asked", "--yes", "-s", paid).out
    both = typed("rewind", "order", "asked", "--discard", "-s", paid, answer="y\n")
    assert both.out.count("[y/N]") == 1


def test_rerunning_counts_as_the_answer(paid: str) -> None:
    done = run("rewind", "order", "asked", "--rerun-tools", "-s", paid)
    assert "--rerun-tools counts as your answer" in done.out
    with savegame.open(paid) as vault:
        assert pay(vault, "order") == "done"
    assert made == [4900, 4900]


def test_a_fork_names_what_stays_in_the_world(paid: str) -> None:
    refused = typed("fork", "order", "second", "--at", "asked", "-s", paid, answer="n\n")
    assert (refused.code, names_the_refund(refused)) == (1, True)
    assert run("show", "second", "-s", paid).code == savegame.ThreadNotFound.exit_code
    done = run("fork", "order", "second", "--at", "asked", "-s", paid)
    assert (done.code, names_the_refund(done)) == (0, True)
    assert [one["name"] for one in run("fork", "order", "third", "--at", "asked", "--json", "-s", paid).json["effects"]] == [
        "refund"
    ]
    assert run("fork", "order", "fourth", "--json", "-s", paid).json["effects"] == []
    assert [(one["left"], one["made_in"]) for one in effects(paid, "second")] == [(True, "order")]
    assert run("effects", "second", "-s", paid).out.count("  left  in order  ") == 1


def test_an_undo_is_listed_and_its_thread_waits_until_it_is_finished(on_disk: str) -> None:
    box = savegame.Toolbox()

    def cancel(call: savegame.Call, result: str) -> str:
        raise KeyboardInterrupt

    @box.tool(undo=cancel)
    def book(flight: str) -> str:
        return f"booked {flight}"

    asked = {"role": "assistant", "tool_calls": [{"id": "c", "name": "book", "arguments": {"flight": "X1"}}]}
    with savegame.open(on_disk) as vault:
        with vault.run("trip", tools=box) as held:
            held.user("Book it.")
            held.model(lambda _: asked)
            held.tools()
        with pytest.raises(KeyboardInterrupt):
            vault.undo("trip", to=1, tools=box)
        done = run("rewind", "trip", "1", "--yes", "-s", on_disk)
        assert (done.code, "vault.undo('trip'" in done.err) == (savegame.OutcomeError.exit_code, True)
        assert "trip  undo of book  " in run("calls", "-s", on_disk).out
        (key,) = (one["key"] for one in run("calls", "trip", "--json", "-s", on_disk).json if one["undoes"])
        done = run("resolve", "trip", key, "--result", '"cancelled"', "-s", on_disk)
        assert done.out == "undo of book of trip: resolved\n"
        vault.undo("trip", to=1, tools=box)
    assert "  undone  " in run("effects", "trip", "-s", on_disk).out
    assert [one["undone_at"] is not None for one in effects(on_disk, "trip")] == [True]


@pytest.mark.parametrize(("how", "times"), [(["--approve"], 2), (["--approve", "--reuse"], 1), (["--reject", "no"], 1)])
def test_a_repeated_effect_waits_for_an_answer(paid: str, how: list[str], times: int) -> None:
    run("rewind", "order", "asked", "-s", paid)
    with savegame.open(paid) as vault:
        with pytest.raises(savegame.Paused):
            pay(vault, "order")
        shown = run("calls", "-s", paid).out
        assert "order  refund  waiting for an answer: it was made before" in shown
        assert "--approve, --approve --reuse, or --reject WHY" in shown
        assert "refunded 4900" in shown, "the question says what was done"
        assert run("answer", "order", "--reuse", "-s", paid).code == savegame.InvalidInputError.exit_code
        assert run("answer", "order", *how, "-s", paid).code == 0
        assert pay(vault, "order", None) == "done"
        assert len(made) == times
        answer = next(m for m in reversed(vault.thread("order").state()["messages"]) if m["role"] == "tool")
        assert ("refunded 4900" in str(answer["content"])) == (how[0] == "--approve")


def test_a_call_that_was_not_made_before_has_no_result_to_reuse(paid: str) -> None:
    done = run("answer", "invoice-7", "--approve", "--reuse", "-s", paid)
    assert done.code == savegame.InvalidInputError.exit_code
    assert run("answer", "invoice-7", "--approve", "-s", paid).code == 0


def test_hostile_arguments_move_no_cursor(on_disk: str) -> None:
    box = savegame.Toolbox()

    @box.tool
    def note(text: str) -> str:
        return text

    hostile = "\x1b[2J\u202egnp\nnext"
    asked = {"role": "assistant", "tool_calls": [{"id": "c", "name": "note", "arguments": {"text": hostile}}]}
    with savegame.open(on_disk) as vault, vault.run("odd", tools=box) as held:
        held.user("Note it.")
        held.model(lambda _: asked)
        held.tools()
    for command in (["effects", "odd"], ["rewind", "odd", "1", "--dry-run"]):
        shown = run(*command, "-s", on_disk).out
        assert not {"\x1b", "\u202e"} & set(shown), command
        assert "\\x1b[2J" in shown
