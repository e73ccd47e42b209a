"""Effects after going back: nothing is repeated unless a person, or the tool's author, said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from addresses import Opener
from world import PAY, World

from savegame import (
    AgentState,
    CallStatus,
    CheckpointNotFound,
    InvalidInputError,
    Paused,
    Retention,
    Toolbox,
    Unknown,
    Vault,
)
from savegame.model import ThreadKey
from savegame.store import Store, StoreChange

MARKS: dict[str, dict[str, Any]] = {"plain": {}, "idempotent": {"idempotent": True}, "asks": {"ask": True}}


def kinds_of(vault: Vault, thread_id: str = "t") -> list[str]:
    return vault.store.kinds(ThreadKey(vault.namespace, thread_id))


# -- rewind ----------------------------------------------------------------------------------------


def test_without_the_rule_going_back_pays_twice(vault: Vault) -> None:
    """The negative control: what every rewind did before there was `repeat`."""
    world = World().add(repeat="run")
    world.play(vault)
    vault.thread("t").rewind(1)
    world.play(vault)
    assert len(set(world.keys_of())) == 2


@pytest.mark.parametrize("mark", MARKS)
def test_what_was_done_on_a_line_that_was_left_is_asked_about(vault: Vault, mark: str) -> None:
    world = World().add(**MARKS[mark])
    world.allowed(vault)
    [done] = vault.effects("t")
    vault.thread("t").rewind(1)
    waiting = world.held_back(vault)
    assert (waiting.status, waiting.repeats) == (CallStatus.WAITING, done.key)
    reply, time = done.key.partition(":")[0], done.started_at
    assert waiting.asked == (
        f"pay({{'order': 7}}). This was done on a line that was left (checkpoint {reply}) at {time:%Y-%m-%d %H:%M:%S} UTC: "
        "'pay 7'. Run it again?"
    )
    assert world.held_back(vault) == waiting  # as often as it is resumed
    assert vault.answer("t", waiting, value=True)
    assert world.play(vault) == "done"
    assert len(set(world.keys_of())) == len(world.keys_of()) == 2
    assert [entry.repeats for entry in vault.calls("t")] == [None, done.key]


def test_a_transaction_is_held_back_too(in_database: Opener) -> None:
    vault, world = in_database(), World().add(transaction=True)
    world.play(vault)
    vault.thread("t").rewind(1)
    vault.answer("t", world.held_back(vault), value=True)
    world.play(vault)
    vault.thread("t").rewind(1)
    assert world.held_back(vault).repeats == world.keys_of()[0]


@pytest.mark.parametrize("mark", [{"read_only": True}, {"idempotent": lambda order, text="": f"pay {order}"}])
def test_reads_and_tools_with_their_own_key_repeat_freely(vault: Vault, mark: dict[str, Any]) -> None:
    world = World().add(**mark)
    for _ in range(3):
        world.play(vault)
        vault.thread("t").rewind(1)
    assert len(world.made) == 3


def test_a_call_that_is_repeated_on_one_line_is_the_models_business(vault: Vault) -> None:
    world = World(PAY, PAY, PAY).add()
    world.play(vault)
    assert len(world.made) == 3
    vault.thread("t").rewind(4)  # after the second reply, before its result
    world.held_back(vault)  # the third call is left, and equal to the one that follows
    assert [effect.left for effect in vault.effects("t")] == [False, False, True]


def test_other_arguments_are_another_intention(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    vault.thread("t").rewind(1)
    world.wanted = [[("pay", {"order": 8})]]
    assert world.play(vault) == "done"
    assert len(world.made) == 2


def test_same_says_what_makes_two_calls_the_same(vault: Vault) -> None:
    world = World(("pay", {"order": 7, "text": "for you"})).add(same=lambda order, **_: order)
    world.play(vault)
    vault.thread("t").rewind(1)
    world.wanted = [[("pay", {"order": 7, "text": "as promised"})]]
    asked = world.held_back(vault).asked
    assert asked is not None
    assert "pay({'order': 7, 'text': 'for you'}), which counts as the same, was done" in asked


@pytest.mark.parametrize("same", [lambda **_: 1 / 0, lambda **_: object()])
def test_a_same_that_fails_makes_no_call(vault: Vault, same: Any) -> None:
    world = World().add(same=same)
    assert world.play(vault) == "done"
    assert world.made == []
    [entry] = vault.calls("t")
    assert (entry.status, entry.is_effect) == (CallStatus.FAILED, False)
    assert "same" in str(entry.error)


def test_each_effect_stands_for_one_call_in_order(vault: Vault) -> None:
    world = World().add()
    world.wanted = [[PAY, PAY]]
    world.play(vault)
    first, second = world.keys_of()
    vault.thread("t").rewind(1)
    world.wanted = [[PAY, PAY, PAY]]
    waiting = world.held_back(vault)
    assert waiting.repeats == first
    vault.answer("t", waiting, value=True, reuse=True)
    waiting = world.held_back(vault)
    assert waiting.repeats == second
    vault.answer("t", waiting, value=False)
    assert world.play(vault) == "done"
    assert len(world.made) == 3  # the third one is nobody's repetition
    contents = [message["content"] for message in vault.thread("t").state()["messages"]]
    assert contents[2:5] == ["pay 7", "error: a person refused", "pay 7"]


def test_what_was_answered_is_asked_about_once_on_each_line(vault: Vault) -> None:
    world = World(PAY, PAY).add()
    world.play(vault)
    vault.thread("t").rewind(1)
    world.allowed(vault)
    assert len(world.made) == 4
    world.wanted.append([PAY])
    vault.thread("t").rewind("head~1")
    assert world.play(vault) == "done"  # both effects of the first line have been answered here
    vault.thread("t").rewind(1)
    seen = []
    for _ in range(3):
        waiting = world.held_back(vault)
        seen.append(waiting.repeats)
        vault.answer("t", waiting, value=True, reuse=True)
    assert seen == world.keys_of()[:3]


def test_going_forward_again_takes_nothing_for_left(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    end = vault.thread("t").head or vault.thread("t").load("head").id
    vault.thread("t").rewind(1)
    assert [effect.left for effect in vault.effects("t")] == [True]
    vault.thread("t").rewind(end)
    assert [effect.left for effect in vault.effects("t")] == [False]
    with vault.run("t", tools=world.box) as run:
        run.user("again")
    world.wanted = [[PAY], [PAY], [PAY]]
    assert world.play(vault) == "done"
    assert len(world.made) == 2


def test_rerun_tools_counts_as_an_answer(vault: Vault) -> None:
    world = World(PAY, PAY).add()
    world.play(vault)
    thread = vault.thread("t")
    thread.rewind(1, rerun_tools=True)
    assert world.play(vault) == "done"
    assert len(world.made) == 4
    thread.rewind(1)
    world.held_back(vault)


def test_rerun_tools_at_a_reply_gives_its_calls_new_keys_and_forgives_what_followed(vault: Vault) -> None:
    world = World(PAY, PAY).add()
    world.play(vault)
    thread = vault.thread("t")
    thread.rewind(2, rerun_tools=True)
    assert world.play(vault) == "done"
    assert len(set(world.keys_of())) == 4
    thread.rewind(2)  # the newest outcome of the reply is used, and the two calls that followed are left
    assert world.held_back(vault).repeats == world.keys_of()[1]
    world.allowed(vault)
    assert len(set(world.keys_of())) == 5


def test_rerun_tools_forgives_nothing_that_was_done_before(vault: Vault) -> None:
    world = World(PAY, PAY).add()
    world.play(vault)
    vault.thread("t").rewind(1)
    world.wanted = [[("pay", {"order": 8})], [PAY]]
    held = world.held_back_after(vault, "pay")
    vault.answer("t", held, value=False)
    world.play(vault)
    vault.thread("t").rewind(3, rerun_tools=True)
    assert world.held_back(vault).repeats == held.repeats


def test_a_parent_of_ones_own_is_going_back_too(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    thread = vault.thread("t")
    thread.save(thread.load(1).state, parent=1)
    assert world.held_back(vault).repeats == world.keys_of()[0]


def test_removing_the_head_is_going_back_too(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    for _ in range(3):
        vault.thread("t").remove("head")
    assert world.held_back(vault).repeats == world.keys_of()[0]


# -- statuses --------------------------------------------------------------------------------------


class Stop(BaseException):
    """A crash, for this process."""


@pytest.mark.parametrize("repeat", ["ask", "reuse", "run"])
@pytest.mark.parametrize("status", ["done", "failed", "started", "unknown", "refused", "invalid"])
def test_repeat_by_status(vault: Vault, repeat: str, status: str) -> None:
    world = World().add(repeat=repeat, ask=status == "refused")
    if status == "refused":
        vault.answer("t", world.held_back(vault), value=False)
    if status == "invalid":
        world.wanted = [[("pay", {"order": "x"})]]
    world.fails = {"failed": [ValueError("no")], "started": [Stop()], "unknown": [Stop()]}.get(status, [])  # type: ignore[list-item]
    for _ in range(2 if status == "unknown" else 1):
        try:
            world.play(vault)
        except (Stop, Unknown):
            assert status in ("started", "unknown")
    vault.thread("t").rewind(1)
    made = len(world.made)
    counts = status not in ("refused", "invalid")
    assert len(list(vault.effects("t"))) == counts
    if not counts:
        if status == "refused":  # it asks, but for itself alone
            waiting = world.held_back(vault)
            assert (waiting.repeats, waiting.asked) == (None, "pay({'order': 7})")
        return
    if repeat == "run" or (repeat == "reuse" and status == "done"):
        assert world.play(vault) == "done"
        assert len(world.made) == made + (repeat == "run")
        *_, last = vault.calls("t")
        assert (last.status, last.repeats) == (CallStatus.DONE, world.keys_of()[0])
        assert (last.result, last.is_effect) == ("pay 7", repeat == "run")
        return
    waiting = world.held_back(vault)
    assert waiting.asked is not None
    said = {"done": "was done", "failed": "was tried"}.get(status, "was begun")
    assert said in waiting.asked
    if status != "done":
        with pytest.raises(InvalidInputError, match="no call whose result is kept"):
            vault.answer("t", waiting, value=True, reuse=True)
    assert vault.answer("t", waiting, value=True)
    assert world.play(vault) == "done"
    assert len(world.made) == made + 1


def test_reuse_goes_with_true_and_with_a_repetition(vault: Vault) -> None:
    world = World().add(ask=True)
    waiting = world.held_back(vault)
    for call, value in ((waiting, True), (waiting, "later"), ("no-such", True)):
        with pytest.raises(InvalidInputError):
            vault.answer("t", call, value, reuse=True)
    assert vault.answer("t", waiting, value=True)


def test_an_ask_tool_asks_once_for_both(vault: Vault) -> None:
    world = World().add(ask=True)
    vault.answer("t", world.held_back(vault), value=True)
    world.play(vault)
    vault.thread("t").rewind(1)
    waiting = world.held_back(vault)
    assert waiting.repeats is not None
    vault.answer("t", waiting, value=True)
    assert world.play(vault) == "done"
    assert len(world.made) == 2


def test_calls_at_once_are_matched_in_order(vault: Vault) -> None:
    world = World().add(repeat="reuse")
    world.wanted = [[PAY, PAY]]
    world.play(vault)
    vault.thread("t").rewind(1)
    world.wanted = [[PAY, PAY, PAY]]
    world.play(vault, at_once=True)
    assert len(world.made) == 3
    assert [entry.repeats for entry in vault.calls("t")][2:] == [*world.keys_of()[:2], None]


def test_a_result_that_is_gone_when_it_is_wanted_is_not_made_up(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    vault.thread("t").rewind(1)
    vault.answer("t", world.held_back(vault), value=True, reuse=True)
    vault.thread("t").prune(keep=1)
    assert world.play(vault) == "done"
    assert len(world.made) == 1
    assert "removed meanwhile" in vault.thread("t").state()["messages"][-2]["content"]


# -- a kept reply is evidence ----------------------------------------------------------------------


def test_a_kept_reply_is_evidence_for_an_idempotent_call(vault: Vault) -> None:
    world = World().add(idempotent=True)
    world.fails = [Stop()]  # type: ignore[list-item]
    with pytest.raises(Stop):
        world.play(vault)
    assert list(vault.calls("t")) == []
    vault.thread("t").rewind(1)
    [effect] = vault.effects("t")
    assert (effect.status, effect.left, effect.key) == (CallStatus.UNKNOWN, True, world.keys_of()[0])
    asked = world.held_back(vault).asked
    assert asked is not None
    assert "whether it took effect is unknown" in asked


def test_a_fork_carries_that_evidence(vault: Vault) -> None:
    world = World().add(idempotent=True)
    world.fails = [Stop()]  # type: ignore[list-item]
    with pytest.raises(Stop):
        world.play(vault)
    vault.thread("t").fork("f", at=1)
    assert world.held_back(vault, "f").repeats == world.keys_of()[0]


@pytest.mark.parametrize("goes", ["discarded", "removed"])
def test_also_when_the_reply_is_gone(vault: Vault, goes: str) -> None:
    world = World().add(idempotent=True, same=lambda order, **_: order)
    world.fails = [Stop()]  # type: ignore[list-item]
    with pytest.raises(Stop):
        world.play(vault)
    if goes == "discarded":
        vault.thread("t").rewind(1, discard=True)
    else:
        vault.thread("t").remove("head")
    assert world.held_back(vault).repeats == world.keys_of()[0]


def test_a_reply_is_no_evidence_for_tools_that_leave_a_note(vault: Vault) -> None:
    world = World().add()
    with vault.run("t", tools=world.box) as run:
        run.user("hi", key="first")
        run.model(world.llm)
    vault.thread("t").rewind(1)
    assert world.play(vault) == "done"


def test_an_unfinished_transaction_does_not_count(in_database: Opener) -> None:
    vault, world = in_database(), World().add(transaction=True)
    world.fails = [Stop()]  # type: ignore[list-item]
    with pytest.raises(Stop):
        world.play(vault)
    vault.thread("t").rewind(1)
    assert world.play(vault) == "done"


# -- forks -----------------------------------------------------------------------------------------


def test_a_fork_knows_what_its_source_did_after_its_point(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    vault.thread("t").fork("f", at=1)
    vault.thread("t").delete()
    [effect] = vault.effects("f")
    assert (effect.left, effect.made_in, effect.result) == (True, "t", "pay 7")
    waiting = world.held_back(vault, "f")
    assert waiting.asked is not None
    assert "This was done in thread 't', of which this is a fork, at" in waiting.asked
    vault.answer("f", waiting, value=True, reuse=True)
    assert world.play(vault, "f") == "done"
    assert vault.thread("f").state()["messages"][-2]["content"] == "pay 7"
    vault.thread("f").rewind(1)
    assert world.held_back(vault, "f").repeats == world.keys_of()[0]


def test_a_fork_of_a_fork_knows_it_too(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    vault.thread("t").rewind(1)
    vault.thread("t").fork("f", at=1).fork("g")
    assert world.held_back(vault, "g").repeats == world.keys_of()[0]
    world.allowed(vault, "f")
    vault.thread("f").fork("h", at=1)
    assert [(effect.made_in, effect.key) for effect in vault.effects("h")] == [
        ("t", world.keys_of()[0]), ("f", world.keys_of()[1]),
    ]  # fmt: skip


def test_a_fork_knows_of_what_its_source_has_only_a_trace(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    vault.thread("t").rewind(1, discard=True)
    vault.thread("t").fork("f").fork("g")
    for thread_id in ("f", "g"):
        assert world.held_back(vault, thread_id).repeats == world.keys_of()[0]


def test_effects_made_later_on_the_other_thread_are_unknown_to_a_fork(vault: Vault) -> None:
    world = World().add()
    with vault.run("t") as run:
        run.user("hi", key="first")
    vault.thread("t").fork("f")
    world.play(vault)
    assert world.play(vault, "f") == "done"


@pytest.mark.parametrize("mark", [{}, {"idempotent": True}, {"ask": True}])
@pytest.mark.parametrize("begun", [False, True])
def test_a_call_that_is_open_at_the_fork_stays_the_sources(vault: Vault, mark: dict[str, Any], begun: bool) -> None:
    world = World().add(**mark)
    if begun and "ask" not in mark:
        world.fails = [Stop()]  # type: ignore[list-item]
        with pytest.raises(Stop):
            world.play(vault)
    else:
        with vault.run("t", tools=world.box) as run:
            run.user("hi", key="first")
            run.model(world.llm)
            if begun:
                with pytest.raises(Paused):
                    run.tools()
    vault.thread("t").fork("f")
    waiting = world.held_back(vault, "f")
    assert waiting.asked is not None
    assert "was open in thread 't', of which this is a fork, when the fork was made" in waiting.asked
    assert vault.answer("f", waiting, value=True)
    assert world.play(vault, "f") == "done"
    assert waiting.key in world.keys_of()


def test_an_open_call_stays_the_sources_when_the_fork_discards(vault: Vault) -> None:
    world = World().add()
    world.wanted = [[PAY, ("pay", {"order": 8})]]
    with vault.run("t", tools=world.box) as run:
        run.user("hi", key="first")
        run.model(world.llm)
    vault.thread("t").fork("f")
    vault.answer("f", world.held_back(vault, "f"), value=True)
    held = world.held_back_after(vault, "pay", thread_id="f")
    vault.thread("f").rewind(1, discard=True)
    assert world.held_back(vault, "f") == held


def test_an_open_read_is_made_by_both(vault: Vault) -> None:
    world = World().add(read_only=True)
    with vault.run("t", tools=world.box) as run:
        run.user("hi", key="first")
        run.model(world.llm)
    vault.thread("t").fork("f")
    assert world.play(vault, "f") == world.play(vault) == "done"


def test_a_fork_takes_the_outcomes_of_the_newest_reply_along(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    vault.thread("t").fork("f", at=2)
    assert world.play(vault, "f") == "done"
    assert len(world.made) == 1
    assert [(effect.left, effect.made_in) for effect in vault.effects("f")] == [(False, "t")]


# -- other ways back, and other places -------------------------------------------------------------


def test_after_a_restore_of_the_agent(vault: Vault) -> None:
    world = World().add()
    vault.save_agent({"agent_id": "helper", "name": "H", "agent_type": "x"})
    with vault.run("t", agent="helper") as run:
        run.user("hi", key="first")
    moment = vault.checkpoint_agent("helper", "before")
    world.play(vault)
    vault.restore_agent(moment.id)
    assert world.held_back(vault).repeats == world.keys_of()[0]
    undo = next(vault.agent_checkpoints("helper"))
    vault.restore_agent(undo.id)
    assert [effect.left for effect in vault.effects("t")] == [False]


def test_a_conversation_that_a_restore_takes_away_still_knows(vault: Vault) -> None:
    world = World().add()
    vault.save_agent({"agent_id": "helper", "name": "H", "agent_type": "x"})
    moment = vault.checkpoint_agent("helper", "before")
    world.play(vault)
    vault.restore_agent(moment.id)
    assert world.held_back(vault).repeats == world.keys_of()[0]


def test_after_import_and_copy(opened: Opener, tmp_path: Path) -> None:
    vault, world = opened("a.db"), World().add()
    world.play(vault)
    vault.thread("t").rewind(1)
    vault.thread("t").fork("f")
    vault.export(tmp_path / "all.jsonl")
    other, third = opened("b.db"), opened("c.db")
    other.import_(tmp_path / "all.jsonl")
    vault.copy_to(third)
    for elsewhere in (other, third):
        for thread_id in ("t", "f"):
            assert world.held_back(elsewhere, thread_id).repeats == world.keys_of()[0]


@pytest.mark.parametrize("goes", ["discard", "prune", "prune_then_back"])
def test_a_trace_is_left_of_what_is_removed(vault: Vault, goes: str) -> None:
    world = World().add(repeat="reuse")
    world.play(vault)
    thread = vault.thread("t")
    if goes == "discard":
        thread.rewind(1, discard=True)
    else:
        thread.rewind(1)
        if goes == "prune_then_back":
            with vault.run("t") as run:
                run.user("other", key="other")
            thread.rewind(1)
        thread.update(set={"x": 1})
        thread.prune(keep=1)
    assert list(vault.calls("t")) == []
    assert "effect" in kinds_of(vault)
    [effect] = vault.effects("t")
    assert (effect.name, effect.status, effect.left, effect.arguments, effect.result) == ("pay", "done", True, {}, None)
    assert effect.kind == "plain"
    waiting = world.held_back(vault)  # without the result, it asks
    assert waiting.asked is not None
    assert "its result was not kept" in waiting.asked
    assert vault.verify().ok


def test_a_trace_is_small(vault: Vault) -> None:
    world = World(("pay", {"order": 7, "text": "x" * 10_000})).add()
    world.play(vault)
    vault.thread("t").rewind(1, discard=True)
    [record] = vault.store.records(ThreadKey(vault.namespace, "t"), "effect").items
    assert len(record.value) < 400


def test_retention_with_compaction_asks_nobody_on_a_line_that_was_never_left(opened: Opener) -> None:
    """Not even where neither the checkpoint of the reply nor its message is left."""
    vault, world = opened(retention=Retention(max_checkpoints=2)), World().add()
    thread = vault.thread("t")
    for _ in range(4):
        world.play(vault)
        thread.update(set={"messages": []})
        for number in range(3):
            thread.update(set={"n": number, "big": "x" * 3000 * number})
        thread.prune(keep=2)
    assert len(world.made) == 4
    assert {effect.left for effect in vault.effects("t")} == {False}


def test_a_pruned_line_that_was_left_is_not_mistaken_for_the_heads(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    thread = vault.thread("t")
    thread.rewind(1)
    for number in range(5):
        thread.update(set={"n": number})
    thread.prune(keep=2)
    assert world.held_back(vault).repeats == world.keys_of()[0]


def test_deleting_forgets_everything(vault: Vault) -> None:
    world = World().add()
    world.play(vault)
    vault.thread("t").rewind(1, discard=True)
    vault.thread("t").delete()
    assert world.play(vault) == "done"
    assert len(world.made) == 2


# -- listing ---------------------------------------------------------------------------------------


def test_effects_are_listed_in_order_after_a_point(vault: Vault) -> None:
    world = World(PAY, ("look", {"order": 7}), ("pay", {"order": 8})).add().add("look", read_only=True)
    world.play(vault)
    vault.thread("t").rewind(1)
    world.wanted = [[("pay", {"order": 9})]]
    world.play(vault)

    def found(after: Any = None) -> list[tuple[int, bool]]:
        return [(effect.arguments["order"], effect.left) for effect in vault.effects("t", after=after)]

    assert found() == found(1) == [(7, True), (8, True), (9, False)]
    assert found(2) == [(9, False)]  # what was done on the other line was done before
    assert found(3) == found("head") == []
    left = next(one for one in vault.thread("t").history(branches=True, newest_first=False) if one.step == 3)
    assert found(left.id) == [(8, True), (9, False)]
    assert list(vault.effects("none")) == []
    with pytest.raises(CheckpointNotFound):
        vault.effects("t", after="none")


def test_a_run_that_never_went_back_writes_nothing_more(vault: Vault) -> None:
    """Neither more commits than its user, reply, start, result and reply, nor more records."""
    world, commits = World().add(), []

    class Counting(type(vault.store)):  # type: ignore[misc]
        def commit(self, changes: list[StoreChange]) -> list[int]:
            commits.append(changes)
            found: list[int] = super().commit(changes)
            return found

    store: Store = vault.store
    store.__class__ = Counting
    world.play(vault)
    assert len(commits) == 5
    assert kinds_of(vault) == ["call"]


# -- the definition of a tool ----------------------------------------------------------------------


def pay(call: Any, order: int) -> str:
    return "paid"


async def later(call: Any, result: Any) -> None:
    """An asynchronous undo."""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"repeat": "never"}, "repeat must be"),
        ({"read_only": True, "repeat": "ask"}, "has no effect"),
        ({"read_only": True, "same": lambda order: order}, "has no effect"),
        ({"read_only": True, "undo": later}, "has no effect"),
        ({"idempotent": lambda order: str(order), "repeat": "ask"}, "repeats freely"),
        ({"same": 7}, "same must be a function"),
        ({"same": lambda other: other}, "by name"),
        ({"same": later}, "asynchronous"),
        ({"undo": 7}, "undo must be a function"),
        ({"undo": lambda: None}, "undo must take a call and its result"),
        ({"transaction": True, "undo": later}, "must not await"),
    ],
)
def test_contradictions_are_refused_by_name(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInputError, match=f"tool 'pay': .*{why}"):
        Toolbox().tool(**given)(pay)


def test_a_tool_with_its_own_key_may_be_undone() -> None:
    tools = Toolbox()
    tools.tool(idempotent=lambda order: str(order), undo=later)(pay)
    assert tools["pay"].undo is later
    assert tools["pay"].repeats_freely


@pytest.mark.parametrize("how", ["rewind", "delete", "restore", "fork", "copy"])
@pytest.mark.parametrize("repeated", [False, True])
def test_what_is_repeated_after_a_point_is_not_repeated_before_it(opened: Opener, how: str, repeated: bool) -> None:
    """A reply with two calls, and a rewind to the answer of the first: only the second may be made again."""
    vault = opened()
    world = World().add("mail").add()
    world.wanted = [[("mail", {"order": 7}), PAY]]
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    with vault.run("t", tools=world.box, agent="helper") as run:
        run.user("hi", key="first")
        run.model(world.llm)
    moment = vault.checkpoint_agent("helper", "before")
    world.play(vault)
    thread, name = vault.thread("t"), "t"
    user, reply, answer, *_ = list(thread.history(newest_first=False))
    thread.rewind(answer.id, rerun_tools=True)
    if repeated:
        assert world.play(vault) == "done"
        assert len(world.keys_of()) == 2
    if how == "delete":
        for entry in list(thread.history()):
            if entry.id not in (user.id, reply.id):
                vault.delete_checkpoint(entry.id)
    if how == "restore":
        vault.restore_agent(moment.id)
    if how in ("rewind", "copy"):
        thread.rewind(reply.id)
    if how == "copy":
        other = opened("other")
        vault.copy_to(other)
        vault = other
    if how == "fork":
        name = thread.fork("f", at=reply.id).id
    try:
        world.play(vault, name)
    except Paused:
        assert how == "fork"
    assert len(world.keys_of("mail")) == 1
    assert len(set(world.keys_of())) == len(world.keys_of())
    assert vault.verify().ok
