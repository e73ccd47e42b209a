"""Tools and replies that misbehave: each has a clear outcome in the ledger, and the run goes on."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from addresses import ALL

import savegame
from savegame import CallEntry, CallStatus, InvalidInputError, Paused, Toolbox, Unknown, Vault
from savegame.testing.provider import check_messages, check_openai

SOON = dt.timedelta(milliseconds=20)


@pytest.fixture(params=ALL)
def vault(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> Iterator[Vault]:
    with savegame.open(address_of(request.param)) as opened:
        yield opened


def called(vault: Vault, tools: Toolbox, name: str = "tool", arguments: Any = None) -> CallEntry:
    """Let a model call a tool and then end; the entry of the call. What the provider gets must be what it takes."""

    def llm(messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return "I see."
        return {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": name, "arguments": arguments or {}}]}

    with vault.run("t", tools=tools) as run:
        run.user("Go on.", key="click")
        while not run.done:
            run.tools()
            check_openai(run.openai_messages())
            run.model(llm)
        assert run.reply == "I see."
    (entry,) = vault.calls("t")
    return entry


def test_a_result_that_cannot_be_kept_is_told_and_the_tool_is_not_called_again(vault: Vault) -> None:
    tools, effects = Toolbox(), []

    @tools.tool
    def tool() -> object:
        effects.append("once")
        return object()

    entry = called(vault, tools)
    assert entry.status == CallStatus.FAILED
    assert "it was done, but its result cannot be saved" in str(entry.error)
    assert effects == ["once"]


def test_what_a_tool_raises_is_told_to_the_model(vault: Vault) -> None:
    tools = Toolbox()

    @tools.tool
    def tool() -> None:
        raise ZeroDivisionError("nothing to divide by")

    entry = called(vault, tools)
    assert (entry.status, entry.error) == (CallStatus.FAILED, "ZeroDivisionError: nothing to divide by")
    assert "nothing to divide by" in vault.thread("t").state()["messages"][2]["content"]


def test_a_tool_that_reads_and_hangs_is_tried_again_and_then_fails(vault: Vault) -> None:
    tools, done, tries = Toolbox(), threading.Event(), []

    @tools.tool(read_only=True, timeout=SOON, retries=2, backoff=SOON)
    def tool() -> None:
        tries.append(1)
        done.wait()

    entry = called(vault, tools)
    done.set()
    assert entry.status == CallStatus.FAILED
    assert "did not return within 0.02 s" in str(entry.error)
    assert len(tries) == 3


def test_an_unmarked_tool_that_hangs_is_unknown_until_somebody_tells(vault: Vault) -> None:
    tools, done = Toolbox(), threading.Event()

    @tools.tool(timeout=SOON)
    def tool() -> None:
        done.wait()

    with pytest.raises(Unknown) as unknown:
        called(vault, tools)
    done.set()
    with pytest.raises(Unknown):
        called(vault, tools)
    vault.resolve("t", unknown.value.call, "it came in the end")
    entry = called(vault, tools)
    assert (entry.status, entry.result) == (CallStatus.DONE, "it came in the end")


def test_a_call_of_a_tool_that_never_was_fails_and_names_those_that_there_are(vault: Vault) -> None:
    tools = Toolbox()

    @tools.tool
    def other() -> None: ...

    entry = called(vault, tools)
    assert (entry.status, entry.error) == (CallStatus.FAILED, "tool 'tool' does not exist; available tools: other")


@pytest.mark.parametrize("arguments", [{"count": "many"}, {"cuont": 1}, {"count": 1, "more": 2}])
def test_wrong_arguments_fail_before_the_tool_is_called(vault: Vault, arguments: dict[str, Any]) -> None:
    tools, effects = Toolbox(), []

    @tools.tool
    def tool(count: int) -> None:
        effects.append(count)

    entry = called(vault, tools, arguments=arguments)
    assert entry.status == CallStatus.FAILED
    assert "count" in str(entry.error)
    assert effects == []


class Crash(BaseException):
    """The process is gone, as far as the run can see."""


def test_a_call_that_was_begun_with_a_tool_that_is_gone_since_is_unknown(vault: Vault) -> None:
    tools = Toolbox()

    @tools.tool
    def tool() -> None:
        raise Crash

    with pytest.raises(Crash):
        called(vault, tools)
    with pytest.raises(Unknown, match="tool 'tool' does not exist") as unknown:
        called(vault, Toolbox())
    vault.resolve("t", unknown.value.call, error="nobody did it")
    assert called(vault, Toolbox()).status == CallStatus.FAILED


def test_a_call_that_waits_for_a_person_with_a_tool_that_is_gone_since_fails(vault: Vault) -> None:
    tools = Toolbox()

    @tools.tool(ask=True)
    def tool() -> None: ...

    with pytest.raises(Paused):
        called(vault, tools)
    entry = called(vault, Toolbox())
    assert (entry.status, entry.error) == (CallStatus.FAILED, "tool 'tool' does not exist; available tools: (none)")


@pytest.mark.parametrize("reply", [7, {"role": "user", "content": "I am you."}, {"role": "assistant", "tool_calls": ["x"]}])
def test_a_reply_that_is_none_is_refused_and_the_model_can_be_asked_again(vault: Vault, reply: Any) -> None:
    with vault.run("t") as run:
        run.user("Hello.")
        with pytest.raises(InvalidInputError):
            run.model(lambda messages: reply)
        assert run.model(lambda messages: "Hello!") == "Hello!"
        assert run.done
    assert [message["content"] for message in vault.thread("t").state()["messages"]] == ["Hello.", "Hello!"]


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ({"name": "mail", "arguments": "{"}, "arguments must be a dict or the JSON text of one"),
        ({"name": "mail", "arguments": [1]}, "arguments must be"),
        ({"function": {"name": "mail", "arguments": "{"}}, "arguments must be a dict or the JSON text of one"),
        ({"id": "c", "arguments": {}}, "name is missing"),
        ({}, "name is missing"),
    ],
)
def test_a_call_that_nobody_can_read_is_told_to_the_model(vault: Vault, call: Any, wrong: str) -> None:
    tools = Toolbox()
    made: list[str] = []
    tools.tool(name="look")(lambda: made.append("look"))
    reply = {"role": "assistant", "content": "", "tool_calls": [call, {"name": "look", "arguments": {}}]}
    with vault.run("t", tools=tools) as run:
        run.user("Hello.")
        run.model(lambda messages: reply)
        run.tools()
        run.model(lambda messages: check_messages(messages) or "Sorry.")
    failed, done = vault.calls("t")
    assert (failed.status, done.status, made) == (CallStatus.FAILED, CallStatus.DONE, ["look"])
    assert wrong in str(failed.error)


def test_a_stored_call_that_nobody_can_read_does_not_stop_the_run(vault: Vault) -> None:
    """The conversation came from elsewhere."""
    broken = {"role": "assistant", "content": "", "tool_calls": [{"name": "mail", "arguments": "{"}, {}]}
    vault.thread("t").save({"messages": [{"role": "user", "content": "hi"}, broken]})
    with vault.run("t") as run:
        run.tools()
        assert run.model(lambda messages: "Sorry.") == "Sorry."
    assert [entry.status for entry in vault.calls("t")] == [CallStatus.FAILED] * 2


@pytest.mark.parametrize("spent", [{"tokens_used": -1}, {"tokens_used": 1.5}, {"cost": float("nan")}, {"cost": -0.5}])
def test_a_cost_that_is_none_is_told_to_the_tool(vault: Vault, spent: dict[str, Any]) -> None:
    tools = Toolbox()

    @tools.tool(read_only=True, retries=0)
    def look(call: Any) -> str:
        call.spend(**spent)
        return "seen"

    with vault.run("t", tools=tools) as run:
        run.user("Hello.")
        run.model(lambda messages: {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {}}]})
        run.tools()
        assert run.model(lambda messages: "Done.") == "Done."
    assert [entry.status for entry in vault.calls("t")] == [CallStatus.FAILED]


@pytest.mark.parametrize(
    ("usage", "error"),
    [
        (lambda reply: 1 / 0, ZeroDivisionError),
        (lambda reply: (-1, None), InvalidInputError),
        (lambda reply: (1, float("nan")), InvalidInputError),
        (lambda reply: 5, InvalidInputError),
        (lambda reply: (1, 2, 3), InvalidInputError),
        (lambda reply: {"tokens": 1, "cost": 2}, InvalidInputError),
    ],
)
def test_a_reply_is_kept_whatever_is_wrong_with_its_usage(vault: Vault, usage: Any, error: type[Exception]) -> None:
    with vault.run("t") as run:
        run.user("Hello.")
        with pytest.raises(error):
            run.model(lambda messages: "Hello!", usage=usage)
        assert run.done
        assert run.reply == "Hello!"


def test_an_error_that_cannot_say_what_it_is_has_a_name(vault: Vault) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    tools = Toolbox()

    @tools.tool(read_only=True, retries=0)
    def look() -> None:
        raise Mute

    with vault.run("t", tools=tools) as run:
        run.user("Hello.")
        run.model(lambda messages: {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {}}]})
        run.tools()
    assert [entry.error for entry in vault.calls("t")] == ["Mute"]


def test_what_was_done_beside_a_call_that_waits_or_is_lost_is_kept(vault: Vault) -> None:
    """Calls that run at once: those that came to an end have one, whatever became of the others."""
    tools, done = Toolbox(), threading.Event()

    @tools.tool
    def mail() -> str:
        return "sent"

    @tools.tool(timeout=SOON)
    def slow() -> None:
        done.wait()

    @tools.tool(ask=True)
    def wire() -> None: ...

    calls = [{"id": name, "name": name, "arguments": {}} for name in ("slow", "mail", "wire")]
    with vault.run("t", tools=tools) as run:
        run.user("Go on.")
        run.model(lambda messages: {"role": "assistant", "content": "", "tool_calls": calls})
        with pytest.raises((Unknown, Paused)):
            run.tools(at_once=True)
    done.set()
    found = {entry.name: entry.status for entry in vault.calls("t")}
    assert found == {"slow": CallStatus.UNKNOWN, "mail": CallStatus.DONE, "wire": CallStatus.WAITING}
