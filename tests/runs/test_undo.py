"""`vault.undo`: effects are taken back newest first, each once, whatever fails in the middle; then the head moves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from addresses import Opener, placeholder
from world import PAY, World

import savegame
from savegame import (
    Busy,
    CallStatus,
    CheckpointNotFound,
    InvalidInputError,
    Paused,
    Stopped,
    Toolbox,
    UndoFailed,
    UndoUnfinished,
    Unknown,
    Vault,
)
from savegame.runs.lease import Hold


class Stop(BaseException):
    """A crash, for this process."""


MAIL = ("mail", {"order": 7})
PAY_7 = ("pay", 7)


def with_three(vault: Vault, **kind: Any) -> World:
    """A world with two payments, which can be taken back, and a mail, which cannot."""
    world = World(PAY, MAIL, ("pay", {"order": 8})).add(undo=True, **kind).add("mail")
    world.play(vault)
    return world


def named(entries: Any) -> list[tuple[str, int]]:
    return [(entry.name, entry.arguments["order"]) for entry in entries]


def test_effects_are_taken_back_newest_first_and_then_the_head_moves(vault: Vault) -> None:
    world = with_three(vault)
    first, second = world.keys_of()
    found = vault.undo("t", to=1, tools=world.box)
    assert (named(found.undone), named(found.left)) == ([("pay", 8), ("pay", 7)], [("mail", 7)])
    assert world.undone == [("pay", f"undo-{second}", second, "pay 8"), ("pay", f"undo-{first}", first, "pay 7")]
    assert vault.thread("t").load("head").step == 1
    assert all(entry.undone_at is not None for entry in found.undone)
    assert {entry.name: entry.undone_at is not None for entry in vault.effects("t")} == {"pay": True, "mail": False}
    assert [entry.undoes for entry in vault.calls("t")] == [None, None, None, second, first]
    assert vault.thread("t").records("run") == {}
    assert vault.verify().ok


def test_what_was_taken_back_is_made_again_and_what_stayed_is_asked_about(vault: Vault) -> None:
    world = with_three(vault)
    vault.undo("t", to=1, tools=world.box)
    waiting = world.held_back_after(vault, "pay")
    assert waiting.name == "mail"
    vault.answer("t", waiting, value=True, reuse=True)
    assert world.play(vault) == "done"
    assert len(set(world.keys_of())) == 4
    assert len(world.keys_of("mail")) == 1


def test_a_call_of_the_reply_that_one_goes_back_to_gets_a_new_key(vault: Vault) -> None:
    world = World().add(undo=True).add("mail")
    world.wanted = [[PAY, MAIL]]
    world.play(vault)
    vault.undo("t", to=2, tools=world.box)
    assert world.play(vault) == "done"
    first, again = world.keys_of()
    assert again == f"{first}:1"
    assert len(world.keys_of("mail")) == 1  # it was not taken back: its outcome is used
    vault.undo("t", to=2, tools=world.box)
    vault.thread("t").rewind(2)
    assert world.play(vault) == "done"
    assert world.keys_of() == [first, f"{first}:1", f"{first}:2"]
    assert len(world.keys_of("mail")) == 1
    vault.thread("t").fork("f", at=2)
    assert world.play(vault, "f") == "done"
    assert len(world.made) == 4


def test_a_fork_after_an_undo_leaves_the_call_to_its_source(vault: Vault) -> None:
    world = World().add(undo=True)
    world.play(vault)
    vault.undo("t", to=2, tools=world.box)
    vault.thread("t").fork("f")
    waiting = world.held_back(vault, "f")
    assert waiting.key == f"{world.keys_of()[0]}:1"


@pytest.mark.parametrize("discard", [False, True])
def test_what_was_taken_back_while_it_was_open_at_the_head_is_not_asked_about(vault: Vault, discard: bool) -> None:
    """The head lies between the reply and its answer, with a line behind it or none."""
    world = World().add(undo=True, idempotent=True)
    world.play(vault)
    vault.thread("t").rewind(2, discard=discard)
    assert named(vault.undo("t", to=1, tools=world.box).undone) == [PAY_7]
    assert next(iter(vault.effects("t"))).undone_at is not None
    assert world.play(vault) == "done"


def test_an_idempotent_call_that_is_made_again_after_an_undo_leaves_a_note(vault: Vault) -> None:
    """Its reply told of the first one already, so it cannot tell of the second one, which crashed."""
    world = World().add(undo=True, idempotent=True)
    world.play(vault)
    vault.undo("t", to=2, tools=world.box)
    reply = vault.thread("t").load("head")
    world.fails.append(KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        world.play(vault)
    assert [entry.needs(held=False) for entry in vault.calls("t")] == [None, None, None]
    vault.thread("t").rewind(1)
    assert world.held_back(vault).repeats == f"{world.keys_of()[0]}:1"
    vault.thread("t").rewind(reply)
    assert world.play(vault) == "done"
    assert world.keys_of()[1] == world.keys_of()[2], "the service sees one call"


def test_what_was_repeated_right_after_going_back_is_the_newest(vault: Vault) -> None:
    """No checkpoint lies between the rewind and the repetition."""
    world = World(PAY, ("pay", {"order": 8})).add(undo=True)
    world.play(vault)
    vault.thread("t").rewind(2, rerun_tools=True)
    with vault.run("t", tools=world.box) as run:
        run.tools()
    assert [entry.key for entry in vault.effects("t")] == world.keys_of()
    assert named(vault.undo("t", to=1, tools=world.box).undone) == [PAY_7, ("pay", 8), PAY_7]
    assert [result for _, _, _, result in world.undone] == ["pay 7", "pay 8", "pay 7"]


@pytest.mark.parametrize("copied", [False, True])
def test_what_was_begun_after_a_point_on_an_older_line_is_covered(opened: Opener, copied: bool) -> None:
    """The reply is older than the point; its call was made later, right after going back there."""
    vault = opened()
    world = World(PAY).add(undo=True)
    for _ in range(2):
        with vault.run("t", tools=world.box) as run:
            run.user("hi", key="first")
            run.model(world.llm)
        vault.thread("t").rewind(1)
    older, newer = (entry.id for entry in list(vault.thread("t").history(branches=True, newest_first=False))[1:])
    vault.thread("t").rewind(older)
    with vault.run("t", tools=world.box) as run:
        run.tools()
    vault.thread("t").rewind(newer)
    if copied:
        vault.copy_to(other := opened("other"))
        vault = other
    assert [entry.name for entry in vault.effects("t", after=newer)] == ["pay"]
    assert named(vault.undo("t", to=newer, tools=world.box).undone) == [PAY_7]
    assert next(vault.effects("t", after=newer)).undone_at is not None


def test_a_dry_run_has_the_order_of_the_real_one(vault: Vault) -> None:
    """One call was started, of the other only the reply tells."""
    world = World().add("mail").add(idempotent=True)
    world.wanted = [[MAIL, PAY]]
    world.fails.append(KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        world.play(vault)
    listed = vault.undo("t", to=1, tools=world.box, dry_run=True).left
    assert named(listed) == named(vault.undo("t", to=1, tools=world.box).left)
    assert len(listed) == 2


def test_it_covers_lines_that_were_left(vault: Vault) -> None:
    world = World().add(undo=True)
    world.play(vault)
    vault.thread("t").rewind(1)
    world.allowed(vault)
    assert [entry.left for entry in vault.effects("t")] == [True, False]
    found = vault.undo("t", to=1, tools=world.box)
    assert [entry.key for entry in found.undone] == world.keys_of()[::-1]
    assert world.play(vault) == "done"
    assert len(world.made) == 3


def test_what_was_done_before_the_point_stays_also_on_other_lines(vault: Vault) -> None:
    """The kept result of the first payment stands for the call of the line that one goes back to."""
    world = World(PAY).add(undo=True, repeat="reuse")
    world.play(vault)
    vault.thread("t").rewind(1)
    world.play(vault)
    point = vault.thread("t").load("head")
    world.wanted.append([("pay", {"order": 8})])
    with vault.run("t", tools=world.box) as run:
        run.user("again")
    world.wanted.append([("pay", {"order": 8})])
    world.play(vault)
    assert named(vault.undo("t", to=point, tools=world.box).undone) == [("pay", 8)]


def test_only_what_came_after_the_point(vault: Vault) -> None:
    world = with_three(vault)
    assert named(vault.undo("t", to=5, tools=world.box).undone) == [("pay", 8)]
    assert vault.thread("t").load("head").step == 5
    assert named(vault.undo("t", to=1, tools=world.box).undone) == [("pay", 7)]  # the other one was taken back before


def test_a_dry_run_lists_and_changes_nothing(vault: Vault) -> None:
    world = with_three(vault)
    before = vault.thread("t").load("head").id
    with vault.run("t"):
        found = vault.undo("t", to=1, tools=world.box, dry_run=True)
    assert (named(found.undone), named(found.left)) == ([("pay", 8), ("pay", 7)], [("mail", 7)])
    assert (world.undone, vault.thread("t").load("head").id) == ([], before)


def test_without_tools_everything_stays(vault: Vault) -> None:
    world = with_three(vault)
    found = vault.undo("t", to=1, tools=Toolbox())
    assert (found.undone, named(found.left)) == ((), [("pay", 8), ("mail", 7), ("pay", 7)])
    assert world.held_back(vault).repeats == world.keys_of()[0]


def test_unknown_and_failed_effects_stay(vault: Vault) -> None:
    world = World(PAY, ("pay", {"order": 8})).add(undo=True)
    world.fails = [Stop(), ValueError("no")]  # type: ignore[list-item]
    with pytest.raises(Stop):
        world.play(vault)
    found = vault.undo("t", to=1, tools=world.box)
    assert [str(entry.status) for entry in found.left] == ["started", "failed"]
    assert (found.undone, world.undone) == ((), [])


def test_an_idempotent_call_that_crashed_is_said_to_stay(vault: Vault) -> None:
    world = World().add(undo=True, idempotent=True).add("look", read_only=True)
    world.wanted = [[("look", {"order": 1}), PAY]]
    world.fails = [Stop()]  # type: ignore[list-item]
    with vault.run("t", tools=world.box) as run:
        run.user("hi", key="first")
        run.model(world.llm)
        with pytest.raises(Stop):
            run.tools()
    found = vault.undo("t", to=1, tools=world.box)
    assert [(entry.name, str(entry.status)) for entry in found.left] == [("pay", "unknown")]


def test_what_the_source_of_a_fork_made_is_the_sources_to_take_back(vault: Vault) -> None:
    world = World().add(undo=True)
    world.play(vault)
    vault.thread("t").fork("f", at=1)
    vault.thread("t").fork("g", at=2)
    for thread_id in ("f", "g"):
        found = vault.undo(thread_id, to=1, tools=world.box)
        assert ([entry.made_in for entry in found.left], found.undone) == (["t"], ())
    assert world.undone == []


# -- what fails in the middle ----------------------------------------------------------------------


def test_an_undo_that_fails_stops_there_and_is_tried_again(vault: Vault) -> None:
    world = with_three(vault)
    first, second = world.keys_of()
    vault.undo("t", to=5, tools=world.box)
    world.play(vault)
    end = vault.thread("t").load("head").id
    world.undone.clear()
    world.fails = [ConnectionError("not now")]
    with pytest.raises(UndoFailed, match=f"call {first}:?.* was not taken back|not now") as failed:
        vault.undo("t", to=1, tools=world.box)
    assert (named(failed.value.undone), named(failed.value.left)) == ([], [("pay", 8), ("mail", 7), ("pay", 7)])
    assert str(failed.value.call.status) == "failed"
    assert vault.thread("t").load("head").id == end
    found = vault.undo("t", to=1, tools=world.box)
    assert named(found.undone) == [("pay", 8), ("pay", 7)]
    again = world.keys_of()[2]
    assert [key for _, key, _, _ in world.undone] == [f"undo-{again}", f"undo-{again}", f"undo-{first}"]
    assert second != again


def unfinished(vault: Vault) -> World:
    """A world in which the second undo crashed."""
    world = with_three(vault)
    taken = 0

    def crash(call: Any, result: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == 2:
            raise Stop

    broken = Toolbox()
    broken.tool(name="pay", undo=crash)(lambda call, order: None)
    with pytest.raises(Stop):
        vault.undo("t", to=1, tools=broken)
    return world


def test_while_one_is_unfinished_nothing_else_works_on_the_thread(vault: Vault) -> None:
    world = unfinished(vault)
    point = vault.thread("t").load(1).id
    wanted = f"an undo to checkpoint {point} is not finished; finish it first with vault.undo\\('t', to='{point}'"
    for refused in (
        lambda: world.play(vault),
        lambda: vault.thread("t").rewind(1),
        lambda: vault.thread("t").rewind(2, rerun_tools=True),
        lambda: vault.thread("t").rewind(1, discard=True),
        lambda: vault.undo("t", to=2, tools=world.box),
    ):
        with pytest.raises(UndoUnfinished, match=wanted) as error:
            refused()
        assert error.value.to == point
    assert vault.thread("t").load("head").step == 8
    assert list(vault.stale()) == []


def test_a_restore_of_its_agent_waits_for_it(vault: Vault) -> None:
    world = World(PAY).add(undo=True)
    vault.save_agent(savegame.AgentState("helper", "Helper", "scripted"))
    world.play(vault)
    moment = vault.checkpoint_agent("helper", "before")
    vault.thread("t").update(set={"note": "later"})
    world.fails.append(ValueError("no"))
    with pytest.raises(UndoFailed):
        vault.undo("t", to=1, tools=world.box)
    head = vault.thread("t").latest()
    with pytest.raises(UndoUnfinished):
        vault.restore_agent(moment.id)
    assert vault.thread("t").latest() == head
    vault.undo("t", to=1, tools=world.box)
    vault.restore_agent(moment.id)
    assert vault.verify().ok


def test_a_stop_ends_it_before_its_next_effect(vault: Vault) -> None:
    with_three(vault)
    head = vault.thread("t").latest()
    taken: list[Any] = []

    def back(call: Any, result: Any) -> None:
        taken.append(result)
        if len(taken) == 1:
            assert vault.stop("t")

    stopping = Toolbox()
    stopping.tool(name="pay", undo=back)(lambda call, order: None)
    with pytest.raises(Stopped, match="1 effects were taken back") as stopped:
        vault.undo("t", to=1, tools=stopping)
    assert (taken, stopped.value.reason) == (["pay 8"], "stopped by a person")
    assert vault.thread("t").latest() == head, "it is not halted"
    with pytest.raises(UndoUnfinished):
        vault.stop("t")
    assert named(vault.undo("t", to=1, tools=stopping).undone) == [("pay", 8), PAY_7]
    assert taken == ["pay 8", "pay 7"]


def test_a_stop_that_comes_after_the_last_effect_halts_the_thread_where_it_went(vault: Vault) -> None:
    world = World(PAY).add(undo=True)
    world.play(vault)
    tools = Toolbox()
    tools.tool(name="pay", undo=lambda call, result: vault.stop("t", "enough"))(lambda call, order: None)
    vault.undo("t", to=1, tools=tools)
    assert next(entry.status.reason for entry in vault.thread("t").history()) == "enough"


@pytest.mark.parametrize("again", [False, True], ids=["once", "idempotent"])
def test_a_stop_cancels_an_asynchronous_one(opened: Opener, again: bool) -> None:
    vault, tools, log = opened(), Toolbox(), []

    async def back(call: Any, result: Any) -> str:
        log.append(call.key)
        if len(log) == 1:
            vault.stop("t")
            await asyncio.sleep(3600)
        return "taken back"

    tools.tool(name="pay", undo=back, idempotent=again)(lambda order: f"pay {order}")
    world = World(PAY)
    world.box = tools
    world.play(vault)

    async def undo() -> Any:
        async with savegame.AsyncVault(vault) as face:
            with pytest.raises(Stopped):
                await face.undo("t", to=1, tools=tools)
            if not again:
                with pytest.raises(Unknown) as unknown:
                    await face.undo("t", to=1, tools=tools)
                await face.resolve("t", unknown.value.call, "it went through")
            return await face.undo("t", to=1, tools=tools)

    assert len(asyncio.run(undo()).undone) == 1
    assert len(set(log)) == 1
    assert len(log) == (2 if again else 1)


@pytest.mark.parametrize("how", ["crashed", "failed"])
def test_a_supervisor_leaves_a_thread_with_an_unfinished_undo_alone(vault: Vault, how: str) -> None:
    """As if its process had ended, or after a failure: neither that, nor mail, makes the thread stale before it is finished."""
    world = with_three(vault)
    with vault.run("t", tools=world.box) as run:
        run.user("go on")
    world.fails.append(ValueError("no"))
    with pytest.raises(UndoFailed):
        vault.undo("t", to=1, tools=world.box)
    if how == "crashed":
        thread = vault.thread("t").timeline
        Hold(thread.store, thread.key, 60_000_000).release(stale=True)
    vault.send("t", "hello?")
    before = vault.thread("t").latest()
    resumed: list[str] = []
    for _ in range(3):
        assert vault.supervise(resumed.append, give_up_after=1, once=True) == 0
    assert (resumed, list(vault.stale()), list(vault.runs())) == ([], [], [])
    assert vault.thread("t").latest() == before
    with pytest.raises(UndoUnfinished):
        vault.stop("t")
    vault.undo("t", to=1, tools=world.box)
    assert [run.reason for run in vault.stale()] == ["mail"]
    assert vault.supervise(resumed.append, once=True) == 1


def failed(vault: Vault) -> tuple[World, str]:
    """An undo that failed in between, and the checkpoint that it goes to."""
    world = with_three(vault)
    world.fails.append(ValueError("no"))
    with pytest.raises(UndoFailed):
        vault.undo("t", to=1, tools=world.box)
    return world, vault.thread("t").load(1).id


def test_the_checkpoint_that_it_goes_to_stays(vault: Vault) -> None:
    world, point = failed(vault)
    thread = vault.thread("t")
    thread.prune(keep=1)
    thread.prune(keep=1, include_labelled=True)
    for removal in (lambda: vault.delete_checkpoint(point), lambda: thread.remove(point)):
        with pytest.raises(UndoUnfinished, match="finish it first"):
            removal()
    assert next(entry.id for entry in thread.history(newest_first=False)) == point
    vault.undo("t", to=point, tools=world.box)
    assert thread.latest() is not None
    assert vault.delete_checkpoint(point)
    assert vault.verify().ok


def test_a_copy_hears_that_it_is_finished(opened: Opener) -> None:
    vault, other = opened("a.db"), opened("b.db")
    world, point = failed(vault)
    vault.copy_to(other)
    with pytest.raises(UndoUnfinished):
        world.play(other)
    vault.undo("t", to=point, tools=world.box)
    vault.copy_to(other)
    assert [entry.undone_at is not None for entry in other.effects("t")] == [True, False, True]
    other.thread("t").rewind(point)


@pytest.mark.parametrize("kind", [{}, {"transaction": True}], ids=["plain", "transaction"])
def test_what_taking_back_cost_is_counted(in_database: Opener, kind: dict[str, Any]) -> None:
    """Also what a failed one cost, also in a copy, and once."""
    vault, other, tools, fails = in_database(), savegame.open("memory:"), Toolbox(), [ValueError("no")]

    def back(call: Any, result: Any) -> None:
        call.spend(tokens_used=10, cost=0.5)
        if fails:
            raise fails.pop()

    def pay(call: Any, order: int) -> str:
        call.spend(tokens_used=1)
        return "paid"

    tools.tool(name="pay", undo=back, **kind)(pay)
    world = World(PAY, ("pay", {"order": 8}))
    world.box = tools
    world.play(vault)
    with pytest.raises(UndoFailed):
        vault.undo("t", to=1, tools=tools)
    vault.copy_to(other)
    vault.undo("t", to=1, tools=tools)
    vault.thread("t").rewind(1, discard=True)
    vault.copy_to(other)
    for found in (vault, other):
        assert [(use.key, use.tokens_used, use.cost) for use in found.usage(by="agent")] == [("helper", 32, 1.5)]
    other.close()


def test_an_undo_of_unknown_outcome_is_resolved_by_a_person(vault: Vault) -> None:
    world = unfinished(vault)
    first, second = world.keys_of()
    for _ in range(2):
        with pytest.raises(Unknown) as unknown:
            vault.undo("t", to=1, tools=world.box)
        assert unknown.value.call.key == f"undo-{first}"
    vault.resolve("t", unknown.value.call, "it went through")
    found = vault.undo("t", to=1, tools=world.box)
    assert [entry.key for entry in found.undone] == [second, first]
    assert world.undone == []
    assert vault.thread("t").load("head").step == 1


def test_one_that_a_person_found_undone_is_tried_again(vault: Vault) -> None:
    world = unfinished(vault)
    with pytest.raises(Unknown) as unknown:
        vault.undo("t", to=1, tools=world.box)
    vault.resolve("t", unknown.value.call, error="it never arrived")
    vault.undo("t", to=1, tools=world.box)
    assert [key for _, key, _, _ in world.undone] == [f"undo-{world.keys_of()[0]}"]


def test_an_idempotent_undo_runs_again_with_the_same_key(vault: Vault) -> None:
    world = World().add(undo=True, idempotent=True, retries=0)
    world.play(vault)
    world.fails = [Stop()]  # type: ignore[list-item]
    with pytest.raises(Stop):
        vault.undo("t", to=1, tools=world.box)
    vault.undo("t", to=1, tools=world.box)
    assert [key for _, key, _, _ in world.undone] == [f"undo-{world.keys_of()[0]}"] * 2


def test_a_transaction_is_taken_back_in_one(in_database: Opener) -> None:
    vault, tools, mark = in_database(), Toolbox(), ""
    mark = placeholder(vault)
    with vault.connection() as db:
        db.execute("CREATE TABLE note (text TEXT)")
    crash = [True]

    def unwrite(call: Any, result: str) -> None:
        call.db.execute(f"DELETE FROM note WHERE text = {mark}", (result,))
        if crash.pop():
            raise Stop

    @tools.tool(transaction=True, undo=unwrite)
    def write(call: Any, order: int) -> str:
        call.db.execute(f"INSERT INTO note VALUES ({mark})", (f"note {order}",))
        return f"note {order}"

    def notes() -> int:
        with vault.connection() as db:
            return int(next(iter(db.execute("SELECT count(*) FROM note")))[0])

    world = World(("write", {"order": 7}))
    world.box = tools
    world.play(vault)
    with pytest.raises(Stop):
        vault.undo("t", to=1, tools=tools)
    assert notes() == 1
    crash.append(False)
    vault.undo("t", to=1, tools=tools)
    assert notes() == 0


def test_an_undo_gets_the_call_and_the_result(vault: Vault) -> None:
    seen: list[Any] = []
    tools = Toolbox()

    def back(call: Any, result: Any) -> Any:
        seen.append((call.name, call.arguments, call.thread_id, call.attempt, dict(result)))
        result.clear()
        return object()  # nothing that can be saved

    @tools.tool(undo=back)
    def pay(order: int) -> dict[str, int]:
        return {"order": order}

    world = World()
    world.box = tools
    world.play(vault)
    vault.undo("t", to=1, tools=tools)
    assert seen == [("pay", {"order": 7}, "t", 1, {"order": 7})]


def test_busy_while_a_run_holds_the_thread(vault: Vault) -> None:
    world = with_three(vault)
    with vault.run("t"), pytest.raises(Busy):
        vault.undo("t", to=1, tools=world.box)


def test_wrong_arguments(vault: Vault) -> None:
    world = with_three(vault)
    with pytest.raises(CheckpointNotFound):
        vault.undo("t", to="nowhere", tools=world.box)
    with pytest.raises(InvalidInputError, match="needs tools="):
        vault.undo("t", to=1, tools=None)  # type: ignore[arg-type]
    tools = Toolbox()

    async def back(call: Any, result: Any) -> None:
        """Asynchronous."""

    tools.tool(name="pay", undo=back)(lambda order: order)
    with pytest.raises(InvalidInputError, match="the undo of tool 'pay' is asynchronous"):
        vault.undo("t", to=1, tools=tools)


def test_a_removed_call_cannot_be_taken_back(vault: Vault) -> None:
    world = with_three(vault)
    vault.thread("t").rewind(1, discard=True)
    found = vault.undo("t", to=1, tools=world.box)
    assert (found.undone, len(found.left), world.undone) == ((), 3, [])


def test_an_undone_call_stays_undone_when_it_is_removed_or_copied(opened: Opener, tmp_path: Path) -> None:
    vault, other = opened("a.db"), opened("b.db")
    world = World().add(undo=True)
    world.play(vault)
    vault.copy_to(other)
    vault.undo("t", to=1, tools=world.box)
    vault.copy_to(other)
    assert [entry.undone_at is not None for entry in other.effects("t")] == [True]
    vault.thread("t").rewind(1, discard=True)
    assert [entry.undone_at is not None for entry in vault.effects("t")] == [True]
    for elsewhere in (vault, other):
        assert world.play(elsewhere) == "done"


def test_asynchronous_undo_functions_are_awaited(opened: Opener) -> None:
    vault, tools, log = opened(), Toolbox(), []

    async def cancel(call: Any, result: Any) -> None:
        await asyncio.sleep(0)
        log.append(("async", call.undoes))
        if len(log) == 2:
            raise ValueError("no")

    def cancel_plainly(call: Any, result: Any) -> None:
        log.append(("plain", call.undoes))

    tools.tool(name="pay", undo=cancel)(lambda order: f"pay {order}")
    tools.tool(name="mail", undo=cancel_plainly)(lambda order: f"mail {order}")
    world = World(PAY, MAIL, ("pay", {"order": 8}))
    world.box = tools
    world.play(vault)
    keys = [entry.key for entry in vault.effects("t")]

    async def undo() -> Any:
        async with savegame.AsyncVault(vault) as face:
            dry = await face.undo("t", to=1, tools=tools, dry_run=True)
            assert len(dry.undone) == 3
            assert [entry.key async for entry in face.effects("t")] == keys
            log.append(("wait", None)) if not log else None
            with pytest.raises(UndoFailed):
                await face.undo("t", to=1, tools=tools)
            with pytest.raises(UndoUnfinished):
                async with face.run("t", tools=tools):
                    pass
            return await face.undo("t", to=1, tools=tools)

    found = asyncio.run(undo())
    assert [entry.key for entry in found.undone] == keys[::-1]
    assert log[1:] == [("async", keys[2]), ("async", keys[2]), ("plain", keys[1]), ("async", keys[0])]


def test_paused_calls_are_no_effects(vault: Vault) -> None:
    world = World().add(undo=True, ask=True)
    with pytest.raises(Paused):
        world.play(vault)
    assert vault.undo("t", to=1, tools=world.box) == savegame.Undone()
    assert CallStatus.WAITING in {entry.status for entry in vault.calls("t")}


def test_an_unfinished_undo_is_finished_even_if_retention_hides_its_target(opened: Opener) -> None:
    vault = opened(retention=savegame.Retention(max_checkpoints=9))
    world = with_three(vault)
    point = vault.thread("t").load(2).id
    world.fails.append(ValueError("no"))
    with pytest.raises(UndoFailed):
        vault.undo("t", to=point, tools=world.box)
    for number in range(9):
        vault.thread("t").update(set={"note": number})
    with pytest.raises(CheckpointNotFound):
        vault.thread("t").load(point)
    assert vault.undo("t", to=point, tools=world.box, dry_run=True).undone
    assert named(vault.undo("t", to=point, tools=world.box).undone) == [("pay", 8), ("pay", 7)]
