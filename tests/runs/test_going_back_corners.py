"""Corners of going back: clocks, deleted and restored threads, copies of copies, edited and shortened conversations."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from addresses import Opener
from homes import Home

from savegame import (
    AgentState,
    Busy,
    CallEntry,
    InvalidInputError,
    OutcomeError,
    Paused,
    SavegameError,
    Toolbox,
    Unknown,
    Vault,
)

Script = tuple[str, dict[str, Any]]


class Desk:
    """An agent with a script, tools that note what they do, and fresh ids for every call."""

    def __init__(self, *script: Script | list[Script]) -> None:
        self.made: list[tuple[str, Any]] = []
        self.back: list[Any] = []
        self.keys: list[str] = []
        self.box = Toolbox()
        self.script = [one if isinstance(one, list) else [one] for one in script]
        self.crash: str | None = None
        """Where the process ends, once: "before" or "after" the effect, or inside the function that takes back."""
        self._ids = itertools.count()

    def add(self, name: str, **kind: Any) -> Desk:
        def tool(call: Any, n: int = 0, text: str = "") -> Any:
            self._end("before")
            self.made.append((name, n))
            self.keys.append(call.key)
            self._end("after")
            if name == "burn":
                raise ConnectionError("the line is dead")
            return {"made": name, "n": n}

        self.box.tool(name=name, **kind)(tool)
        return self

    def take_back(self, call: Any, result: Any) -> str:
        self._end("undo before")
        self.back.append(result["n"])
        self._end("undo after")
        return "taken back"

    def _end(self, where: str) -> None:
        if self.crash == where:
            self.crash = None
            raise KeyboardInterrupt

    def llm(self, messages: list[dict[str, Any]]) -> Any:
        said = sum(message["role"] == "assistant" for message in messages)
        if said >= len(self.script):
            return "Done."
        calls = [{"id": f"c{next(self._ids)}", "name": name, "arguments": given} for name, given in self.script[said]]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def work(self, vault: Vault, thread_id: str = "t", **how: Any) -> Any:
        with vault.run(thread_id, tools=self.box, agent="helper") as run:
            if not run.messages:
                run.user("Go.")
            while not run.done:
                run.tools(**how)
                run.model(self.llm)
            return run.reply

    def asked(self, vault: Vault, thread_id: str = "t", **how: Any) -> CallEntry:
        """The call that a person is asked about, and must be."""
        with pytest.raises(Paused) as paused:
            self.work(vault, thread_id, **how)
        assert paused.value.call is not None
        return paused.value.call

    def first(self, vault: Vault, thread_id: str = "t") -> str:
        """The first checkpoint of the line: the user's message."""
        return next(iter(vault.thread(thread_id).history(newest_first=False))).id


def mailing(*script: Script | list[Script], **kind: Any) -> Desk:
    return Desk(*(script or (("mail", {"n": 1}),))).add("mail", **kind)


def prune(vault: Vault) -> None:
    """Keep the head only, which is the newest then."""
    with vault.run("t") as run:
        run.save()
    vault.thread("t").prune(keep=1)


# -- what is asked, and how ------------------------------------------------------------------------


def test_the_question_says_what_was_done_with_what_and_when(vault: Vault) -> None:
    desk = mailing()
    desk.work(vault)
    done = next(vault.calls("t"))
    vault.thread("t").rewind(desk.first(vault))
    call = desk.asked(vault)
    assert call.asked is not None
    assert "mail" in call.asked
    assert "'n': 1" in call.asked
    assert done.started_at is not None
    assert f"{done.started_at:%Y-%m-%d}" in call.asked
    assert desk.made == [("mail", 1)]


def test_several_equal_calls_each_stand_for_one(vault: Vault) -> None:
    """Two were made. Of three on the new line, two are asked about, and the third is the model's own business."""
    desk = mailing(("mail", {"n": 1}), ("mail", {"n": 1}))
    desk.work(vault)
    vault.thread("t").rewind(desk.first(vault))
    desk.script = [[("mail", {"n": 1})] * 3]
    first = desk.asked(vault)
    assert vault.answer("t", first, True, reuse=True)
    second = desk.asked(vault)
    assert second.key != first.key
    assert vault.answer("t", second, True)
    assert desk.work(vault) == "Done."
    assert desk.made == [("mail", 1)] * 4


def test_so_they_do_when_all_are_made_at_once(vault: Vault) -> None:
    desk = mailing([("mail", {"n": 1})] * 2)
    desk.work(vault, at_once=True)
    vault.thread("t").rewind(desk.first(vault))
    desk.script = [[("mail", {"n": 1})] * 3]
    for _ in range(2):
        assert vault.answer("t", desk.asked(vault, at_once=True), True, reuse=True)
    assert desk.work(vault, at_once=True) == "Done."
    assert desk.made == [("mail", 1)] * 3


def test_there_is_nothing_to_reuse_for_a_call_that_was_never_made(vault: Vault) -> None:
    desk = mailing(ask=True)
    call = desk.asked(vault)
    with pytest.raises(InvalidInputError):
        vault.answer("t", call, True, reuse=True)
    assert vault.answer("t", call, True)
    desk.work(vault)
    assert desk.made == [("mail", 1)]


def test_one_answer_is_enough_for_a_tool_that_asks_anyway(vault: Vault) -> None:
    desk = mailing(ask=True)
    assert vault.answer("t", desk.asked(vault), True)
    desk.work(vault)
    vault.thread("t").rewind(desk.first(vault))
    call = desk.asked(vault)
    assert vault.answer("t", call, True)
    assert desk.work(vault) == "Done."
    assert len(desk.made) == 2


@pytest.mark.parametrize("repeat", ["ask", "reuse"])
def test_what_failed_is_asked_about_and_never_reused(vault: Vault, repeat: str) -> None:
    desk = Desk(("burn", {"n": 1})).add("burn", repeat=repeat)
    desk.work(vault)
    vault.thread("t").rewind(desk.first(vault))
    call = desk.asked(vault)
    with pytest.raises(InvalidInputError):
        vault.answer("t", call, True, reuse=True)
    assert len(desk.made) == 1


def test_what_was_refused_does_not_count(vault: Vault) -> None:
    desk = mailing(ask=True)
    assert vault.answer("t", desk.asked(vault), "not today")
    desk.work(vault)
    vault.thread("t").rewind(desk.first(vault))
    call = desk.asked(vault)
    assert call.asked is not None
    assert "already" not in call.asked
    with pytest.raises(InvalidInputError):
        vault.answer("t", call, True, reuse=True)


def test_a_result_is_reused_without_a_question_and_only_once(vault: Vault) -> None:
    desk = mailing(("mail", {"n": 1}), repeat="reuse")
    desk.work(vault)
    vault.thread("t").rewind(desk.first(vault))
    desk.script = [[("mail", {"n": 1})] * 2]
    assert desk.work(vault) == "Done."
    assert desk.made == [("mail", 1)] * 2
    results = [message["content"] for message in vault.thread("t").state()["messages"] if message["role"] == "tool"]
    assert results == [{"made": "mail", "n": 1}] * 2


def test_other_arguments_are_another_call(vault: Vault) -> None:
    desk = mailing()
    desk.work(vault)
    vault.thread("t").rewind(desk.first(vault))
    desk.script = [[("mail", {"n": 2})], [("mail", {"n": True})], [("mail", {"n": 1, "text": "new"})]]
    assert desk.work(vault) == "Done."


# -- lines -----------------------------------------------------------------------------------------


def test_going_back_forward_again_asks_no_more(vault: Vault) -> None:
    desk = mailing()
    desk.work(vault)
    thread = vault.thread("t")
    end = thread.latest()
    assert end is not None
    thread.rewind(desk.first(vault))
    desk.asked(vault)
    thread.rewind(end.id)
    desk.script.append([("mail", {"n": 1})])
    with vault.run("t", tools=desk.box) as run:
        run.user("Again.")
        run.model(desk.llm)  # the reply after "Done."
    desk.script = [[("mail", {"n": 1})]] * 4
    assert desk.work(vault) == "Done."


@pytest.mark.parametrize("how", ["discard", "prune", "remove"])
def test_removing_what_was_left_removes_no_memory_of_it(vault: Vault, how: str) -> None:
    desk = Desk(("mail", {"n": 1}), ("pay", {"n": 1}))
    desk.add("mail", repeat="reuse").add("pay", idempotent=True)
    desk.crash = None
    desk.work(vault)
    thread, first = vault.thread("t"), desk.first(vault)
    thread.rewind(first, discard=how == "discard")
    if how == "prune":
        prune(vault)
    if how == "remove":
        for entry in list(thread.history(branches=True)):
            if entry.id != first:
                vault.delete_checkpoint(entry.id)
    call = desk.asked(vault)
    assert call.name == "mail"
    with pytest.raises(InvalidInputError):  # the result is gone
        vault.answer("t", call, True, reuse=True)
    assert vault.answer("t", call, False)
    call = desk.asked(vault)
    assert call.name == "pay"
    assert vault.answer("t", call, False)
    assert desk.work(vault) == "Done."
    assert len(desk.made) == 2


@pytest.mark.parametrize("how", ["rewind", "discard", "prune"])
def test_a_kept_reply_is_evidence_for_an_idempotent_call(vault: Vault, how: str) -> None:
    desk = Desk(("pay", {"n": 1})).add("pay", idempotent=True)
    desk.crash = "after"
    with pytest.raises(KeyboardInterrupt):
        desk.work(vault)
    vault.thread("t").rewind(desk.first(vault), discard=how == "discard")
    if how == "prune":
        prune(vault)
    call = desk.asked(vault)
    with pytest.raises(InvalidInputError):
        vault.answer("t", call, True, reuse=True)
    assert len(desk.made) == 1


def test_an_unfinished_transaction_does_not_count(in_database: Opener) -> None:
    vault = in_database()
    desk = mailing(transaction=True)
    desk.crash = "after"
    with pytest.raises(KeyboardInterrupt):
        desk.work(vault)
    vault.thread("t").rewind(desk.first(vault))
    assert desk.work(vault) == "Done."
    vault.thread("t").rewind(desk.first(vault))
    desk.asked(vault)


def test_the_newest_checkpoint_may_be_deleted_instead(vault: Vault) -> None:
    """The head moves back by that, too."""
    desk = mailing()
    desk.work(vault)
    first = desk.first(vault)
    for entry in list(vault.thread("t").history()):
        if entry.id != first:
            vault.delete_checkpoint(entry.id)
    latest = vault.thread("t").latest()
    assert latest is not None
    assert latest.id == first
    desk.asked(vault)


# -- forks -----------------------------------------------------------------------------------------


def test_forks_of_forks_know_it_also_without_their_sources(vault: Vault) -> None:
    desk = mailing()
    desk.work(vault)
    first = desk.first(vault)
    vault.thread("t").fork("f1", at=first)
    vault.thread("t").delete()
    vault.thread("f1").fork("f2")
    vault.thread("f1").delete()
    call = desk.asked(vault, "f2")
    assert vault.answer("f2", call, True, reuse=True)
    assert desk.work(vault, "f2") == "Done."
    assert desk.made == [("mail", 1)]


@pytest.mark.parametrize("how", ["discard", "prune"])
def test_a_fork_knows_of_what_its_source_discarded(vault: Vault, how: str) -> None:
    desk = mailing()
    desk.work(vault)
    vault.thread("t").rewind(desk.first(vault), discard=how == "discard")
    if how == "prune":
        prune(vault)
    vault.thread("t").fork("f")
    desk.asked(vault, "f")


def test_two_forks_may_each_be_answered(vault: Vault) -> None:
    desk = mailing()
    desk.work(vault)
    first = desk.first(vault)
    for name in ("f1", "f2"):
        vault.thread("t").fork(name, at=first)
    assert vault.answer("f1", desk.asked(vault, "f1"), True)
    desk.work(vault, "f1")
    desk.asked(vault, "f2")
    assert len(desk.made) == 2


@pytest.mark.parametrize("crash", [None, "before", "after"])
@pytest.mark.parametrize("kind", [{}, {"idempotent": True}, {"repeat": "reuse"}], ids=["plain", "idempotent", "reuse"])
def test_a_call_that_is_open_where_a_thread_is_forked_stays_with_the_source(
    vault: Vault, crash: str | None, kind: dict[str, Any]
) -> None:
    desk = mailing(**kind)
    with vault.run("t", tools=desk.box, agent="helper") as run:
        run.user("Go.")
        run.model(desk.llm)
    desk.crash = crash
    if crash:
        with pytest.raises(KeyboardInterrupt):
            desk.work(vault)
    made = len(desk.made)
    vault.thread("t").fork("f")
    call = desk.asked(vault, "f")
    assert len(desk.made) == made
    assert vault.answer("f", call, True)
    assert desk.work(vault, "f") == "Done."
    assert len(desk.made) == made + 1


def test_read_only_calls_and_own_keys_are_made_by_a_fork_without_a_question(vault: Vault) -> None:
    desk = Desk([("look", {}), ("coupon", {"n": 1})])
    desk.add("look", read_only=True).add("coupon", idempotent=lambda n, text="": f"coupon {n}")
    with vault.run("t", tools=desk.box, agent="helper") as run:
        run.user("Go.")
        run.model(desk.llm)
    vault.thread("t").fork("f")
    assert desk.work(vault, "f") == desk.work(vault) == "Done."
    vault.thread("t").rewind(desk.first(vault))
    assert desk.work(vault) == "Done."


# -- after rerun_tools -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["delete", "restore", "rewind"])
def test_what_may_be_repeated_after_a_point_is_not_repeated_before_it(vault: Vault, how: str) -> None:
    """A reply with two calls; the second may be repeated. Then the head moves back to before the answer of the first."""
    desk = mailing([("mail", {"n": 1}), ("mail", {"n": 2})])
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    with vault.run("t", tools=desk.box, agent="helper") as run:
        run.user("Go.")
        run.model(desk.llm)
    moment = vault.checkpoint_agent("helper", "before")
    desk.work(vault)
    line = list(vault.thread("t").history(newest_first=False))
    vault.thread("t").rewind(line[2].id, rerun_tools=True)
    if how == "delete":
        vault.delete_checkpoint(line[2].id)
    if how == "restore":
        vault.restore_agent(moment.id)
    if how == "rewind":
        vault.thread("t").rewind(line[1].id)
    latest = vault.thread("t").latest()
    assert latest is not None
    assert latest.id == line[1].id
    with contextlib.suppress(Paused):
        desk.work(vault)
    assert desk.made.count(("mail", 1)) == 1


# -- agents ----------------------------------------------------------------------------------------


def test_restored_conversations_know_what_was_done_since(vault: Vault) -> None:
    desk = mailing()
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    with vault.run("t", tools=desk.box, agent="helper") as run:
        run.user("Go.")
    moment = vault.checkpoint_agent("helper", "before")
    desk.work(vault)
    desk.work(vault, "later")
    vault.restore_agent(moment.id)
    desk.asked(vault)
    desk.asked(vault, "later")  # it was born after that moment, and begins again
    assert len(desk.made) == 2


def test_a_restore_that_is_taken_back_takes_its_marks_along(vault: Vault) -> None:
    desk = mailing(("mail", {"n": 1}), ("mail", {"n": 2}))
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    with vault.run("t", tools=desk.box, agent="helper") as run:
        run.user("Go.")
    moment = vault.checkpoint_agent("helper", "before")
    desk.work(vault)
    vault.restore_agent(moment.id)
    recovery = next(one for one in vault.agent_checkpoints("helper") if str(one.kind) == "recovery")
    vault.restore_agent(recovery.id)
    assert [call.left for call in vault.effects("t")] == [False, False]
    vault.restore_agent(moment.id)
    assert [call.left for call in vault.effects("t")] == [True, True]


def test_a_deleted_conversation_that_comes_back_knows_its_effects(vault: Vault) -> None:
    desk = mailing()
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    with vault.run("t", tools=desk.box, agent="helper") as run:
        run.user("Go.")
    moment = vault.checkpoint_agent("helper", "before")
    desk.work(vault)
    vault.thread("t").delete()
    vault.restore_agent(moment.id)
    desk.asked(vault)


# -- copies ----------------------------------------------------------------------------------------


def copied(source: Vault, target: Vault, path: Any, how: str) -> None:
    if how == "copy":
        source.copy_to(target)
    else:
        path.unlink(missing_ok=True)
        source.export(path)
        target.import_(path)


@pytest.mark.parametrize("how", ["copy", "file"])
def test_a_copy_is_told_of_what_was_left_since_the_last_one(opened: Opener, tmp_path: Any, how: str) -> None:
    source, target = opened("a"), opened("b")
    desk = mailing(("mail", {"n": 1}), ("mail", {"n": 2}))
    desk.work(source)
    copied(source, target, tmp_path / "x.jsonl", how)
    source.thread("t").rewind(desk.first(source))
    desk.script = [[("mail", {"n": 3})]]
    desk.work(source)
    copied(source, target, tmp_path / "x.jsonl", how)
    assert target.thread("t").state() == source.thread("t").state()
    desk.script = [[("mail", {"n": 3})], [("mail", {"n": 2})]]
    with target.run("t", tools=desk.box) as run:
        run.user("And then?")
    desk.script = [[("mail", {"n": 2})]] * 3
    call = desk.asked(target)
    assert call.arguments == {"n": 2}
    assert len(desk.made) == 3


# -- conversations that were changed ---------------------------------------------------------------


def test_an_effect_of_a_reply_that_was_summarised_is_not_left(vault: Vault) -> None:
    """The conversation was shortened; that is not going back."""
    desk = mailing()
    desk.work(vault)
    thread = vault.thread("t")
    thread.update(set={"messages": [{"role": "user", "content": "In short: a mail was sent. Send another."}]})
    assert [call.left for call in vault.effects("t")] == [False]
    assert desk.work(vault) == "Done."  # asked for again on the same line: the model's business
    assert len(desk.made) == 2


def test_an_effect_of_a_summarised_reply_is_left_after_a_rewind(vault: Vault) -> None:
    desk = mailing()
    desk.work(vault)
    thread, first = vault.thread("t"), desk.first(vault)
    thread.update(set={"messages": [{"role": "user", "content": "In short: a mail was sent."}]})
    thread.rewind(first)
    desk.asked(vault)


# -- undo ------------------------------------------------------------------------------------------


def undoing(*script: Script | list[Script], **kind: Any) -> Desk:
    desk = Desk(*(script or (("ship", {"n": 1}), ("ship", {"n": 2}), ("ship", {"n": 3}))))
    return desk.add("ship", undo=desk.take_back, **kind)


def test_the_newest_is_undone_first_whatever_the_clock_says(home: Home) -> None:
    """It went back an hour between every two effects."""
    now = itertools.count(2_000_000_000_000_000, -3_600_000_000)
    at = [next(now)]
    vault = home.with_clock(lambda: at[0])
    desk = undoing()
    with vault.run("t", tools=desk.box) as run:
        run.user("Go.")
        while not run.done:
            run.tools()
            run.model(desk.llm)
            at[0] = next(now)
    undone = vault.undo("t", to=desk.first(vault), tools=desk.box)
    assert desk.back == [3, 2, 1]
    assert [call.arguments["n"] for call in undone.undone] == [3, 2, 1]


def test_a_call_that_was_repeated_right_after_going_back_is_the_newest(vault: Vault) -> None:
    """No checkpoint lies between the rewind and the repetition."""
    desk = undoing(("ship", {"n": 1}), ("ship", {"n": 2}))
    desk.work(vault)
    line = list(vault.thread("t").history(newest_first=False))
    vault.thread("t").rewind(line[1].id, rerun_tools=True)
    with vault.run("t", tools=desk.box) as run:
        run.tools()
    vault.undo("t", to=line[0].id, tools=desk.box)
    assert desk.made == [("ship", 1), ("ship", 2), ("ship", 1)]
    assert desk.back == [1, 2, 1]


def test_what_was_begun_after_a_point_on_an_older_line_is_undone_too(vault: Vault) -> None:
    desk = undoing(("ship", {"n": 1}))
    thread, replies = vault.thread("t"), []
    for _ in range(2):
        with vault.run("t", tools=desk.box) as run:
            if not run.messages:
                run.user("Go.")
            run.model(desk.llm)
            assert run.checkpoint is not None
            replies.append(run.checkpoint.id)
        thread.rewind(desk.first(vault))
    thread.rewind(replies[0])
    with vault.run("t", tools=desk.box) as run:
        run.tools()
    thread.rewind(replies[1])
    assert [call.name for call in vault.effects("t", after=replies[1])] == ["ship"]
    vault.undo("t", to=replies[1], tools=desk.box)
    assert desk.back == [1]


def test_left_lines_and_the_head_s_line_are_undone_together(vault: Vault) -> None:
    desk = undoing(("ship", {"n": 1}))
    desk.work(vault)
    first = desk.first(vault)
    vault.thread("t").rewind(first)
    desk.script = [[("ship", {"n": 2})]]
    desk.work(vault)
    undone = vault.undo("t", to=first, tools=desk.box)
    assert desk.back == [2, 1]
    assert undone.left == ()
    assert vault.undo("t", to=first, tools=desk.box).undone == ()
    assert desk.back == [2, 1]
    desk.script = [[("ship", {"n": 1}), ("ship", {"n": 2})]]
    assert desk.work(vault) == "Done."  # what was undone is not asked about


def test_an_undone_call_of_the_reply_at_the_point_is_made_again_and_its_neighbour_is_not(vault: Vault) -> None:
    """One reply, two calls; `to` is the reply itself. `mail` cannot be undone and must not be repeated silently."""
    desk = undoing([("ship", {"n": 1}), ("mail", {"n": 1})]).add("mail")
    desk.work(vault)
    reply = list(vault.thread("t").history(newest_first=False))[1].id
    undone = vault.undo("t", to=reply, tools=desk.box)
    assert [call.name for call in undone.left] == ["mail"]
    with contextlib.suppress(Paused):
        desk.work(vault)
    assert desk.made.count(("mail", 1)) == 1
    assert desk.made.count(("ship", 1)) == 2
    assert len(set(desk.keys)) == len(desk.keys)


def test_an_undone_call_that_was_open_at_the_head_is_not_asked_about(vault: Vault) -> None:
    """The head lies between the reply and the answer, after a rewind. The call was made once, and taken back."""
    desk = Desk(("pay", {"n": 1}))
    desk.add("pay", idempotent=True, undo=desk.take_back)
    desk.work(vault)
    vault.thread("t").rewind(list(vault.thread("t").history(newest_first=False))[1].id)
    vault.undo("t", to=desk.first(vault), tools=desk.box)
    assert desk.back == [1]
    assert desk.work(vault) == "Done."


@pytest.mark.parametrize("where", ["undo before", "undo after"])
@pytest.mark.parametrize("kind", [{}, {"idempotent": True}], ids=["plain", "idempotent"])
def test_an_undo_that_was_cut_off_goes_on(vault: Vault, where: str, kind: dict[str, Any]) -> None:
    desk = undoing(**kind)
    desk.work(vault)
    first = desk.first(vault)
    desk.crash = where
    with pytest.raises(KeyboardInterrupt):
        vault.undo("t", to=first, tools=desk.box)
    with pytest.raises(SavegameError, match="undo"):
        desk.work(vault)
    with pytest.raises(SavegameError, match="undo"):
        vault.thread("t").rewind(first)
    if not kind:
        with pytest.raises(Unknown) as unknown:
            vault.undo("t", to=first, tools=desk.box)
        vault.resolve("t", unknown.value.call, *(["taken back"] if desk.back else []), **({} if desk.back else {"error": "no"}))
    undone = vault.undo("t", to=first, tools=desk.box)
    assert desk.back == ([3, 3, 2, 1] if kind and where == "undo after" else [3, 2, 1])
    assert undone.left == ()
    assert all(call.undone_at for call in vault.effects("t"))
    assert desk.work(vault) == "Done."


@pytest.mark.parametrize("how", ["prune", "delete"])
def test_the_target_of_an_unfinished_undo_is_not_lost(vault: Vault, how: str) -> None:
    """Else the thread is neither undone nor run ever again."""
    desk = undoing()
    desk.work(vault)
    first = desk.first(vault)
    desk.crash = "undo before"
    with pytest.raises(KeyboardInterrupt):
        vault.undo("t", to=first, tools=desk.box)
    with contextlib.suppress(SavegameError):
        if how == "prune":
            vault.thread("t").prune(keep=1)
        else:
            vault.delete_checkpoint(first)
    undo = next(call for call in vault.calls("t") if call.begun)
    vault.resolve("t", undo, error="no")
    vault.undo("t", to=first, tools=desk.box)
    assert desk.back == [3, 2, 1]


def test_one_that_raises_stops_the_undo_and_is_tried_again(vault: Vault) -> None:
    desk = undoing()
    failing = [2]

    def take_back(call: Any, result: Any) -> None:
        if result["n"] in failing:
            failing.clear()
            raise ConnectionError("not now")
        desk.take_back(call, result)

    desk.box = Toolbox()
    desk.add("ship", undo=take_back)
    desk.work(vault)
    head = vault.thread("t").latest()
    with pytest.raises(OutcomeError):
        vault.undo("t", to=desk.first(vault), tools=desk.box)
    assert desk.back == [3]
    assert vault.thread("t").latest() == head
    vault.undo("t", to=desk.first(vault), tools=desk.box)
    assert desk.back == [3, 2, 1]


def test_a_dry_run_changes_nothing_and_lists_what_the_undo_does(vault: Vault) -> None:
    desk = undoing([("ship", {"n": 1}), ("mail", {"n": 1})]).add("mail")
    desk.work(vault)
    first, head = desk.first(vault), vault.thread("t").latest()
    with vault.run("t"):
        listed = vault.undo("t", to=first, tools=desk.box, dry_run=True)
        with pytest.raises(Busy):
            vault.undo("t", to=first, tools=desk.box)
    assert vault.thread("t").latest() == head
    assert desk.back == []
    undone = vault.undo("t", to=first, tools=desk.box)
    for one, other in ((listed.undone, undone.undone), (listed.left, undone.left)):
        assert [call.key for call in one] == [call.key for call in other]


def test_so_it_does_for_a_call_of_which_only_its_reply_tells(vault: Vault) -> None:
    desk = undoing(("mail", {"n": 1}), ("pay", {"n": 1})).add("mail").add("pay", idempotent=True)
    desk.crash = None
    with vault.run("t", tools=desk.box) as run:
        run.user("Go.")
        run.model(desk.llm)
        run.tools()
        run.model(desk.llm)
        desk.crash = "after"
        with pytest.raises(KeyboardInterrupt):
            run.tools()
    first = desk.first(vault)
    listed = vault.undo("t", to=first, tools=desk.box, dry_run=True)
    undone = vault.undo("t", to=first, tools=desk.box)
    assert [call.name for call in listed.left] == [call.name for call in undone.left] == ["pay", "mail"]


def test_so_it_does_for_a_started_call_beside_it(vault: Vault) -> None:
    desk = Desk([("mail", {"n": 1}), ("pay", {"n": 1})]).add("mail").add("pay", idempotent=True)
    desk.crash = "after"
    with pytest.raises(KeyboardInterrupt):
        desk.work(vault)
    first = desk.first(vault)
    listed = vault.undo("t", to=first, tools=desk.box, dry_run=True)
    undone = vault.undo("t", to=first, tools=desk.box)
    assert [call.name for call in listed.left] == [call.name for call in undone.left]


def test_what_has_no_tool_any_more_is_left(vault: Vault) -> None:
    desk = undoing()
    desk.work(vault)
    undone = vault.undo("t", to=desk.first(vault), tools=Toolbox())
    assert (undone.undone, len(undone.left)) == ((), 3)
    desk.asked(vault)


def test_a_fork_does_not_take_back_what_its_source_did_twice(vault: Vault) -> None:
    desk = undoing(("ship", {"n": 1}))
    desk.work(vault)
    first = desk.first(vault)
    vault.thread("t").fork("f", at=first)
    vault.undo("f", to="head", tools=desk.box)
    vault.undo("t", to=first, tools=desk.box)
    assert desk.back == [1]


def test_effects_after_a_point_are_listed_in_order_with_what_became_of_them(vault: Vault) -> None:
    desk = undoing(("ship", {"n": 1}), ("ship", {"n": 2}), [("look", {}), ("ship", {"n": 3})]).add("look", read_only=True)
    desk.work(vault)
    line = list(vault.thread("t").history(newest_first=False))
    assert [call.arguments["n"] for call in vault.effects("t")] == [1, 2, 3]
    assert [call.arguments["n"] for call in vault.effects("t", after=line[2].id)] == [2, 3]
    vault.thread("t").rewind(line[2].id)
    assert [call.left for call in vault.effects("t")] == [False, True, True]
    vault.undo("t", to=line[0].id, tools=desk.box)
    assert all(call.undone_at for call in vault.effects("t"))


@pytest.mark.parametrize("how", ["restore", "copy"])
def test_what_was_pruned_is_not_taken_for_a_part_of_a_line_whose_numbers_changed(opened: Opener, how: str) -> None:
    """A thread that is deleted and restored, or copied, counts its checkpoints anew; effects have the old numbers."""
    desk = mailing(*(("mail", {"n": n}) for n in range(3))).add("look", read_only=True)
    vault, other = opened(), opened(namespace="other")
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    with vault.run("t", tools=desk.box, agent="helper") as run:
        run.user("Go.")
    moment, first = vault.checkpoint_agent("helper", "before"), desk.first(vault)
    desk.work(vault)
    vault.thread("t").prune(keep=1)
    if how == "restore":
        vault.thread("t").delete()
        vault.restore_agent(moment.id)
    else:
        vault.copy_to(other)
        other.thread("t").rewind(first)
    desk.script = [*([("look", {"n": n})] for n in range(8)), [("mail", {"n": 1})]]
    desk.asked(vault if how == "restore" else other)
    assert desk.made.count(("mail", 1)) == 1
