"""A call that was changed after the model made it is another call: with its own approval, key, entry and result."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from addresses import Opener

from savegame import Paused, Toolbox, Unknown, Vault

Edit = Callable[[Vault, Callable[[list[dict[str, Any]]], None]], None]

KINDS: dict[str, dict[str, Any]] = {"unmarked": {}, "idempotent": {"idempotent": True}, "read_only": {"read_only": True}}


class Bank:
    """Tools that note what they did, and a model that asks for what it is given."""

    def __init__(self, **marks: Any) -> None:
        self.made: list[tuple[str, str]] = []
        self.crash_at: str | None = None
        self.tools = Toolbox()
        self.tools.tool(**marks)(self.wire)
        self.tools.tool(self.mail)

    def wire(self, call: Any, iban: Any = "") -> str:
        """Send money."""
        self.made.append((str(iban), call.key))
        if self.crash_at == iban:
            self.crash_at = None
            raise KeyboardInterrupt
        return f"sent to {iban}"

    def mail(self, call: Any, iban: Any = "") -> str:
        """Write about it."""
        return self.wire(call, f"mail {iban}")

    @property
    def effects(self) -> list[str]:
        return [iban for iban, _ in self.made]

    def play(self, vault: Vault, *calls: Any, thread_id: str = "t") -> Any:
        asks = {"role": "assistant", "content": "", "tool_calls": [asked(iban, place) for place, iban in enumerate(calls)]}
        with vault.run(thread_id, tools=self.tools) as run:
            if not run.messages:
                run.user("pay")
            while not run.done:
                run.tools()
                run.model(lambda messages: "done" if messages[-1]["role"] == "tool" else asks)
            return run.reply

    def paused(self, vault: Vault, *calls: Any) -> Any:
        with pytest.raises(Paused) as caught:
            self.play(vault, *calls)
        assert caught.value.call is not None
        return caught.value.call

    def crash(self, vault: Vault, *calls: Any, at: str) -> None:
        self.crash_at = at
        with pytest.raises(KeyboardInterrupt):
            self.play(vault, *calls)

    def unknown(self, vault: Vault) -> Any:
        with pytest.raises(Unknown) as caught:
            self.play(vault)
        assert caught.value.call is not None
        return caught.value.call


def asked(iban: Any, place: int = 0, name: str = "wire") -> dict[str, Any]:
    return {"id": f"c{place}", "name": name, "arguments": {"iban": iban}}


def calls_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of the newest reply."""
    return next(message["tool_calls"] for message in reversed(messages) if message.get("tool_calls"))


def change_to(iban: Any, place: int = 0) -> Callable[[list[dict[str, Any]]], None]:
    def change(messages: list[dict[str, Any]]) -> None:
        calls_of(messages)[place]["arguments"] = {"iban": iban}

    return change


def by_update(vault: Vault, change: Callable[[list[dict[str, Any]]], None]) -> None:
    messages = copy.deepcopy(vault.thread("t").state()["messages"])
    change(messages)
    vault.thread("t").update(set={"messages": messages})


def by_conversation(vault: Vault, change: Callable[[list[dict[str, Any]]], None]) -> None:
    conversation = vault.load_conversation("t")
    assert conversation is not None
    plain = conversation.to_dict()
    change(plain["messages"])
    vault.save_conversation(plain, force=True)


edits = pytest.mark.parametrize("edit", [by_update, by_conversation])


def results(vault: Vault) -> list[Any]:
    return [message["content"] for message in vault.thread("t").state()["messages"] if message["role"] == "tool"]


def ledger(vault: Vault) -> list[tuple[Any, str]]:
    return [(call.arguments["iban"], call.status.value) for call in vault.calls("t")]


# -- approvals -------------------------------------------------------------------------------------


@edits
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["edit", "answer"])
def test_an_approval_is_for_what_was_shown(vault: Vault, edit: Edit, kind: str, first: str) -> None:
    bank = Bank(ask=True, **KINDS[kind])
    shown = bank.paused(vault, "GOOD")
    if first == "edit":
        edit(vault, change_to("EVIL"))
    assert vault.answer("t", shown, value=True)
    if first == "answer":
        edit(vault, change_to("EVIL"))
    other = bank.paused(vault)
    assert bank.made == []
    assert (other.asked, other.key != shown.key) == ("wire({'iban': 'EVIL'})", True)
    assert ledger(vault) == [("GOOD", "waiting"), ("EVIL", "waiting")]
    assert [call.answered for call in vault.calls("t")] == [True, False]
    assert vault.answer("t", other, value=True)
    assert bank.play(vault) == "done"
    assert bank.made == [("EVIL", other.key)]
    assert ledger(vault) == [("GOOD", "waiting"), ("EVIL", "done")]


def test_what_is_changed_back_has_the_approval_that_it_got(vault: Vault) -> None:
    bank = Bank(ask=True)
    shown = bank.paused(vault, "GOOD")
    vault.answer("t", shown, value=True)
    by_update(vault, change_to("EVIL"))
    bank.paused(vault)
    by_update(vault, change_to("GOOD"))
    assert bank.play(vault) == "done"
    assert bank.made == [("GOOD", shown.key)]


def test_a_refusal_is_for_what_was_shown_too(vault: Vault) -> None:
    bank = Bank(ask=True)
    vault.answer("t", bank.paused(vault, "GOOD"), value=False)
    by_update(vault, change_to("OTHER"))
    vault.answer("t", bank.paused(vault), value=True)
    bank.play(vault)
    assert bank.effects == ["OTHER"]


def test_another_tool_with_the_same_arguments_is_another_call(vault: Vault) -> None:
    bank = Bank(ask=True)
    vault.answer("t", bank.paused(vault, "GOOD"), value=True)
    by_update(vault, lambda messages: calls_of(messages)[0].update(name="mail"))
    bank.play(vault)
    assert bank.effects == ["mail GOOD"], "which asks no person"
    assert [(call.name, call.status.value) for call in vault.calls("t")] == [("wire", "waiting"), ("mail", "done")]


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), ("1", 1), ([1, 2], [2, 1]), ({"a": None}, {})])
def test_values_of_other_types_are_other_arguments(vault: Vault, before: Any, after: Any) -> None:
    bank = Bank(ask=True)
    vault.answer("t", bank.paused(vault, before), value=True)
    by_update(vault, change_to(after))
    assert bank.paused(vault).arguments == {"iban": after}
    assert bank.made == []


SAME: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "other order": lambda call: {**call, "arguments": {"iban": {"b": [{"d": 4, "c": 3}], "a": 1}}},
    "as JSON": lambda call: {**call, "arguments": '{"iban": {"b": [{"d": 4, "c": 3}], "a": 1}}'},
    "as OpenAI nests it": lambda call: {
        "id": call["id"],
        "type": "function",
        "function": {"name": "wire", "arguments": '{"iban":{"a":1,"b":[{"c":3,"d":4}]}}'},
    },
    "another id": lambda call: {**call, "id": "other"},
}


@pytest.mark.parametrize("how", SAME)
def test_the_same_in_another_form_is_the_same_call(vault: Vault, how: str) -> None:
    bank = Bank(ask=True)
    shown = bank.paused(vault, {"a": 1, "b": [{"c": 3, "d": 4}]})
    vault.answer("t", shown, value=True)

    def change(messages: list[dict[str, Any]]) -> None:
        calls = calls_of(messages)
        calls[0] = SAME[how](calls[0])

    by_update(vault, change)
    assert bank.play(vault) == "done"
    assert [key for _, key in bank.made] == [shown.key]


# -- results and keys ------------------------------------------------------------------------------


@edits
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_was_changed_after_going_back_is_made(vault: Vault, edit: Edit, kind: str) -> None:
    bank = Bank(**KINDS[kind])
    bank.play(vault, "first")
    vault.thread("t").rewind(2)
    edit(vault, change_to("second"))
    bank.play(vault)
    assert bank.effects == ["first", "second"]
    assert results(vault) == ["sent to second"]
    assert len({key for _, key in bank.made}) == 2
    assert ledger(vault) == [("first", "done"), ("second", "done")]
    vault.thread("t").rewind(2)
    bank.play(vault)
    assert results(vault) == ["sent to first"]
    vault.thread("t").rewind(2)
    edit(vault, change_to("second"))
    bank.play(vault)
    assert (bank.effects, results(vault)) == (["first", "second"], ["sent to second"])


def test_a_changed_transaction_is_made(in_database: Opener) -> None:
    vault = in_database()
    bank = Bank(transaction=True)
    bank.play(vault, "first")
    vault.thread("t").rewind(2)
    by_update(vault, change_to("second"))
    bank.play(vault)
    assert bank.effects == ["first", "second"]
    assert results(vault) == ["sent to second"]


@edits
def test_an_idempotent_call_that_crashed_has_another_key_when_it_was_changed(vault: Vault, edit: Edit) -> None:
    bank = Bank(idempotent=True)
    bank.crash(vault, "first", at="first")
    assert list(vault.calls("t")) == []
    edit(vault, change_to("second"))
    bank.crash(vault, at="second")
    bank.play(vault)
    (_, first), (_, second), (_, again) = bank.made
    assert first != second == again
    assert second.startswith(first)


def test_a_key_stays_when_only_another_call_was_changed(vault: Vault) -> None:
    bank = Bank(idempotent=True)
    bank.crash(vault, "a", "b", at="a")
    by_update(vault, change_to("c", 1))
    bank.play(vault)
    assert [(iban, key.count(":")) for iban, key in bank.made] == [("a", 1), ("a", 1), ("c", 3)]
    assert bank.made[0] == bank.made[1]


def test_calls_that_are_to_be_made_anew_have_new_keys_also_when_changed(vault: Vault) -> None:
    bank = Bank()
    bank.play(vault, "first")
    vault.thread("t").rewind(2, rerun_tools=True)
    by_update(vault, change_to("second"))
    bank.play(vault)
    vault.thread("t").rewind(2, rerun_tools=True)
    bank.play(vault)
    assert bank.effects == ["first", "second", "first"]
    assert len({key for _, key in bank.made}) == 3
    vault.thread("t").rewind(2)
    bank.play(vault)
    assert bank.effects == ["first", "second", "first"]


def test_a_changed_call_on_a_fork_is_another_one_there_and_the_source_keeps_its_own(vault: Vault) -> None:
    bank = Bank(ask=True)
    shown = bank.paused(vault, "GOOD")
    vault.answer("t", shown, value=True)
    bank.play(vault)
    fork = vault.thread("t").fork("fork", at=2)
    messages = fork.state()["messages"]
    calls_of(messages)[0]["arguments"] = {"iban": "EVIL"}
    fork.update(set={"messages": messages})
    with pytest.raises(Paused) as caught:
        bank.play(vault, thread_id="fork")
    assert caught.value.call is not None
    assert caught.value.call.arguments == {"iban": "EVIL"}
    assert bank.effects == ["GOOD"]
    vault.thread("t").fork("same", at=2)
    assert bank.play(vault, thread_id="same") == "done"
    assert bank.effects == ["GOOD"]


def test_an_answer_in_the_conversation_stands_for_a_call_that_was_changed_since(vault: Vault) -> None:
    """Blackening what was said makes nothing happen."""
    bank = Bank()
    bank.play(vault, "secret")
    vault.thread("t").rewind(3)
    by_update(vault, change_to("***"))
    assert bank.play(vault) == "done"
    assert bank.effects == ["secret"]


# -- what may have happened ------------------------------------------------------------------------


@edits
def test_what_was_begun_is_not_forgotten_when_the_call_is_changed(vault: Vault, edit: Edit) -> None:
    bank = Bank()
    bank.crash(vault, "first", at="first")
    edit(vault, change_to("second"))
    for _ in range(2):
        begun = bank.unknown(vault)
        assert (begun.arguments, begun.status.value) == ({"iban": "first"}, "unknown")
    assert bank.effects == ["first"]
    vault.resolve("t", begun, "it was sent")
    bank.play(vault)
    assert bank.effects == ["first", "second"]
    assert ledger(vault) == [("first", "done"), ("second", "done")]
    assert results(vault) == ["sent to second"]


@pytest.mark.parametrize("tool", ["read_only", "idempotent"])
def test_what_was_begun_is_not_forgotten_when_a_tool_is_named_that_may_run_again(vault: Vault, tool: str) -> None:
    bank = Bank()
    bank.tools.tool(name="look", **KINDS[tool])(bank.wire)
    bank.crash(vault, "first", at="first")
    by_update(vault, lambda messages: calls_of(messages)[0].update(name="look"))
    assert bank.unknown(vault).name == "wire"


def test_what_was_begun_is_not_forgotten_when_the_call_is_taken_out(vault: Vault) -> None:
    bank = Bank()
    bank.crash(vault, "a", "b", at="b")
    by_update(vault, lambda messages: calls_of(messages).pop(1))
    assert bank.unknown(vault).arguments == {"iban": "b"}
    assert bank.effects == ["a", "b"]


def test_an_answer_to_a_call_that_was_taken_out_answers_no_other(vault: Vault) -> None:
    bank = Bank(idempotent=True)
    bank.crash(vault, "a", "b", at="b")
    by_update(vault, lambda messages: calls_of(messages).pop(0))
    bank.play(vault)
    assert bank.effects == ["a", "b", "b"]
    assert bank.made[1] == bank.made[2]


def test_calls_that_were_moved_are_the_same(vault: Vault) -> None:
    bank = Bank(ask=True)
    vault.answer("t", bank.paused(vault, "a", "b", "c"), value=True)
    vault.answer("t", bank.paused(vault), value=True)
    assert bank.effects == ["a"]
    by_update(vault, lambda messages: calls_of(messages).reverse())
    last = bank.paused(vault)
    assert (last.arguments, last.key.count(":")) == ({"iban": "c"}, 1)
    vault.answer("t", last, value=True)
    bank.play(vault)
    assert bank.effects == ["a", "c", "b"]


def test_equal_calls_are_each_made_once(vault: Vault) -> None:
    bank = Bank()
    bank.play(vault, "x", "x")
    vault.thread("t").rewind(2)
    by_update(vault, lambda messages: calls_of(messages).append(asked("x", 9)))
    bank.play(vault)
    assert bank.effects == ["x", "x", "x"]
    assert len({key for _, key in bank.made}) == 3


# -- replies from elsewhere ------------------------------------------------------------------------


def from_elsewhere(vault: Vault, *ibans: str) -> None:
    reply = {"role": "assistant", "content": "", "tool_calls": [asked(iban, place) for place, iban in enumerate(ibans)]}
    vault.thread("t").save({"messages": [{"role": "user", "content": "pay"}, reply]})


@edits
def test_a_reply_from_elsewhere_that_was_changed_needs_its_own_approval(vault: Vault, edit: Edit) -> None:
    bank = Bank(ask=True)
    from_elsewhere(vault, "GOOD")
    vault.answer("t", bank.paused(vault), value=True)
    edit(vault, change_to("EVIL"))
    assert bank.paused(vault).arguments == {"iban": "EVIL"}
    assert bank.made == []


@edits
def test_what_was_begun_for_a_reply_from_elsewhere_is_not_forgotten(vault: Vault, edit: Edit) -> None:
    bank = Bank()
    from_elsewhere(vault, "first")
    bank.crash(vault, at="first")
    edit(vault, change_to("second"))
    begun = bank.unknown(vault)
    assert begun.arguments == {"iban": "first"}
    vault.resolve("t", begun, error="it was not sent")
    bank.play(vault)
    assert bank.effects == ["first", "second"]


@edits
def test_the_other_calls_of_a_reply_from_elsewhere_stay_what_they_were(vault: Vault, edit: Edit) -> None:
    bank = Bank(idempotent=True)
    from_elsewhere(vault, "a", "b", "c")
    bank.crash(vault, at="b")
    edit(vault, change_to("d", 2))
    bank.play(vault)
    assert bank.effects == ["a", "b", "b", "d"]
    assert bank.made[1] == bank.made[2]
    assert results(vault) == ["sent to a", "sent to b", "sent to d"]


@pytest.mark.parametrize("gone", ["journaled", "id", "both"])
def test_a_reply_that_lost_the_marks_of_its_run_still_calls_what_it_called(vault: Vault, gone: str) -> None:
    bank = Bank()
    bank.crash(vault, "first", at="first")

    def change(messages: list[dict[str, Any]]) -> None:
        for name in ("journaled", "id") if gone == "both" else (gone,):
            del messages[-1][name]

    by_update(vault, change)
    assert bank.unknown(vault).arguments == {"iban": "first"}
    assert bank.effects == ["first"]


# -- what cannot be read ---------------------------------------------------------------------------


def test_a_call_that_nobody_could_read_is_made_once_it_can_be(vault: Vault) -> None:
    bank = Bank()
    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "c0", "name": "wire", "arguments": "{nonsense"}]}
    with vault.run("t", tools=bank.tools) as run:
        run.user("pay")
        run.model(lambda _: reply)
        run.tools()
    vault.thread("t").rewind(2)
    by_update(vault, lambda messages: calls_of(messages)[0].update(arguments={}))
    bank.play(vault)
    assert bank.effects == [""]
    assert results(vault) == ["sent to "]


def test_arguments_that_cannot_be_kept_are_told_to_the_model(vault: Vault) -> None:
    bank = Bank()
    call = {"id": "c", "name": "wire", "arguments": '{"iban": "\\ud800"}'}
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    vault.thread("t").save({"messages": [{"role": "user", "content": "pay"}, reply]})
    assert bank.play(vault) == "done"
    assert bank.made == []
    assert "cannot be read" in results(vault)[0]
