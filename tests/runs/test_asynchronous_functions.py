"""Asynchronous functions in synchronous code are refused with the next step, and no coroutine is left behind."""

from __future__ import annotations

import datetime as dt
import gc
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import savegame
from savegame import InvalidInputError, Toolbox
from savegame.vault import Vault

NEXT = r"open the vault with savegame\.open_async, or pass an ordinary function"

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(params=["memory:", "sqlite"])
def vault(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Vault]:
    with savegame.open("memory:" if request.param == "memory:" else tmp_path / "vault.db") as opened:
        yield opened
    gc.collect()  # what was never awaited warns now, and a warning is an error


async def later(*_: Any, **__: Any) -> str:
    return "hello"


def hidden(*given: Any, **named: Any) -> Any:
    """Asynchronous, but only its result tells."""
    return later(*given, **named)


@pytest.mark.parametrize("function", [later, hidden])
def test_a_model(vault: Vault, function: Any) -> None:
    with vault.run("t") as run:
        run.user("hi")
        with pytest.raises(InvalidInputError, match=f"the model's function is asynchronous: it returned a coroutine, .*{NEXT}"):
            run.model(function)
        assert not run.done
        with pytest.raises(InvalidInputError, match="usage is asynchronous"):
            run.model(lambda _: "hello", usage=function)
        assert run.done  # it was kept, as whatever is wrong with its usage


@pytest.mark.parametrize("function", [later, hidden])
def test_a_step(vault: Vault, function: Any) -> None:
    with vault.run("t") as run:
        with pytest.raises(InvalidInputError, match=f"the function of step 'look' is asynchronous: .*{NEXT}"):
            run.step("look", function)
        assert run.step("look", lambda: 7) == 7
        with pytest.raises(InvalidInputError, match="generator"):
            run.step("pieces", lambda: (n for n in (1, 2)))


def test_tools(vault: Vault) -> None:
    tools = Toolbox()

    @tools.tool
    def find(order: int) -> Any:
        return later(order)

    @tools.tool(read_only=True, timeout=dt.timedelta(minutes=1), backoff=dt.timedelta(microseconds=1))
    def look(order: int) -> Any:
        return later(order)

    if vault.store.scheme == "sqlite":

        @tools.tool(transaction=True)
        def note(call: Any, order: int) -> Any:
            return later(call, order)

    calls = [{"id": tool.name, "name": tool.name, "arguments": {"order": 7}} for tool in tools]
    with vault.run("t", tools=tools) as run:
        run.user("hi")
        run.model(lambda _: {"role": "assistant", "content": "", "tool_calls": calls})
        run.tools()
        told = {one["tool_call_id"]: one["content"] for one in run.messages if one["role"] == "tool"}
    assert len(told) == len(calls)
    for name, content in told.items():
        assert f"tool '{name}' is asynchronous: it returned a coroutine, which cannot be awaited here; " in content
    assert "open the vault with savegame.open_async" in told["find"]
    with pytest.raises(InvalidInputError, match="the function that returns its key is asynchronous"):
        tools.tool(idempotent=later, name="pay")(find)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [later, hidden])
def test_functions_that_make_states_and_notes(vault: Vault, function: Any, caplog: pytest.LogCaptureFixture) -> None:
    thread = vault.thread("t")
    with pytest.raises(InvalidInputError, match=f"the function that changes the state is asynchronous: .*{NEXT}"):
        thread.modify(function)
    with (
        caplog.at_level(logging.CRITICAL),
        thread.autosave(function, dt.timedelta(hours=1), on_error=function) as saving,
    ):
        pass
    assert "get_state is asynchronous" in str(saving.last_error)
    assert thread.latest() is None
    thread.save(1)
    with pytest.raises(InvalidInputError, match="the function that changes a note is asynchronous"):
        thread.note("head", function)


def test_a_supervisor(vault: Vault) -> None:
    with pytest.raises(InvalidInputError, match=f"resume is asynchronous and .*{NEXT}"):
        vault.supervise(later, once=True)
    with suppress(ZeroDivisionError), vault.run("t") as run:
        run.user("hi")
        raise ZeroDivisionError
    with pytest.raises(InvalidInputError, match=f"resume is asynchronous: .*{NEXT}"):
        vault.supervise(hidden, once=True)
