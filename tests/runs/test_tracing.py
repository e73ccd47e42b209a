"""Spans of runs, with OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import savegame
from savegame import Paused, Toolbox, Unknown, Vault

SECRET = "the launch code is 0000"


@pytest.fixture(scope="module")
def collected() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def spans(collected: InMemorySpanExporter) -> InMemorySpanExporter:
    collected.clear()
    return collected


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def only(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = named(spans, name)
    return found


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_under(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    return child.parent is not None and child.parent.span_id == parent.context.span_id


def calling(*names: str, **arguments: Any) -> dict[str, Any]:
    calls = [{"id": f"call_{name}", "name": name, "arguments": arguments} for name in names]
    return {"role": "assistant", "content": SECRET, "tool_calls": calls}


def ask(vault: Vault, tools: Toolbox, first: Any, *, at_once: bool = False) -> None:
    """A run whose model says `first`, and then that it is done."""
    with vault.run("support-42", agent="helper", tools=tools) as run:
        if not run.messages:
            run.user(SECRET)
        while not run.done:
            run.tools(at_once=at_once)
            run.model(lambda messages: first if len(messages) == 1 else "done")


@pytest.fixture
def tools() -> Toolbox:
    box = Toolbox()

    @box.tool(read_only=True)
    def look(text: str = "") -> str:
        """Look something up."""
        with trace.get_tracer("a test").start_as_current_span("the user's own"):
            return SECRET

    @box.tool
    def broken() -> None:
        """Never works."""
        raise ValueError(SECRET)

    return box


def test_model_tools_and_saves_are_under_the_run(vault: Vault, tools: Toolbox, spans: InMemorySpanExporter) -> None:
    ask(vault, tools, calling("look"))
    run = only(spans, "invoke_agent helper")
    saves = named(spans, "save")
    for span in (*named(spans, "chat"), only(spans, "execute_tool look"), *saves):
        assert is_under(span, run)
    assert [told(span)["savegame.checkpoint.kind"] for span in saves] == [
        "manual",
        "llm_response",
        "tool_call",
        "llm_response",
    ]


@pytest.mark.parametrize("at_once", [False, True])
def test_spans_of_a_tool_are_under_its_call(at_once: bool, vault: Vault, tools: Toolbox, spans: InMemorySpanExporter) -> None:
    ask(vault, tools, calling("look"), at_once=at_once)
    assert is_under(only(spans, "the user's own"), only(spans, "execute_tool look"))
    assert is_under(only(spans, "execute_tool look"), only(spans, "invoke_agent helper"))


def test_attributes_are_those_of_the_conventions(vault: Vault, tools: Toolbox, spans: InMemorySpanExporter) -> None:
    ask(vault, tools, calling("look") | {"usage": {"prompt_tokens": 12, "completion_tokens": 3}})
    assert told(only(spans, "invoke_agent helper")) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "support-42",
        "gen_ai.agent.id": "helper",
        "gen_ai.agent.name": "helper",
    }
    (call,) = vault.calls("support-42")
    assert told(only(spans, "execute_tool look")) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.conversation.id": "support-42",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_look",
        "savegame.call.key": call.key,
    }
    first, second = named(spans, "chat")
    assert first.kind == trace.SpanKind.CLIENT
    assert told(first) == told(second) | {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3}
    assert told(second) == {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "support-42"}


def test_a_tool_that_fails_is_an_error_and_the_run_is_none(vault: Vault, tools: Toolbox, spans: InMemorySpanExporter) -> None:
    ask(vault, tools, calling("broken"))
    call = only(spans, "execute_tool broken")
    assert call.status.status_code == trace.StatusCode.ERROR
    assert told(call)["error.type"] == "ValueError"
    assert only(spans, "invoke_agent helper").status.status_code == trace.StatusCode.UNSET


def test_a_model_that_fails_is_an_error_of_the_run_too(vault: Vault, tools: Toolbox, spans: InMemorySpanExporter) -> None:
    def down(messages: list[dict[str, Any]]) -> str:
        raise ConnectionError(SECRET)

    def work() -> None:
        with vault.run("support-42", tools=tools) as run:
            run.user(SECRET)
            run.model(down)

    with pytest.raises(ConnectionError):
        work()
    for span in (only(spans, "chat"), only(spans, "invoke_agent")):
        assert span.status.status_code == trace.StatusCode.ERROR
        assert told(span)["error.type"] == "ConnectionError"


def test_retries_are_one_span(vault: Vault, spans: InMemorySpanExporter) -> None:
    box, tries = Toolbox(), []

    @box.tool(read_only=True, retries=2, backoff=dt.timedelta(milliseconds=1))
    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError(SECRET)
        return "at last"

    ask(vault, box, calling("flaky"))
    assert len(tries) == 3
    assert only(spans, "execute_tool flaky").status.status_code == trace.StatusCode.UNSET


def test_a_timeout_is_told_as_one(vault: Vault, spans: InMemorySpanExporter) -> None:
    box, end = Toolbox(), threading.Event()

    @box.tool(timeout=dt.timedelta(milliseconds=20))
    def hang() -> None:
        end.wait(60)

    with pytest.raises(Unknown):
        ask(vault, box, calling("hang"))
    end.set()
    assert told(only(spans, "execute_tool hang"))["error.type"] == "timeout"
    assert told(only(spans, "invoke_agent helper"))["error.type"] == "savegame.errors.Unknown"


def test_a_transaction_is_a_tool_call_like_others(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    box = Toolbox()

    @box.tool(transaction=True)
    def note(call: savegame.Call) -> None:
        raise KeyError(SECRET)

    with savegame.open(tmp_path / "vault.db") as vault:
        ask(vault, box, calling("note"))
    assert told(only(spans, "execute_tool note"))["error.type"] == "KeyError"


def test_waiting_for_a_person_is_no_error_and_the_resumed_run_a_new_span(vault: Vault, spans: InMemorySpanExporter) -> None:
    box = Toolbox()

    @box.tool(ask=True)
    def wire() -> str:
        return "wired"

    with pytest.raises(Paused) as paused:
        ask(vault, box, calling("wire"))
    assert not named(spans, "execute_tool wire")
    vault.answer("support-42", paused.value.call, value=True)
    ask(vault, box, calling("wire"))
    first, second = named(spans, "invoke_agent helper")
    assert first.context is not None
    assert second.context is not None
    assert first.status.status_code == trace.StatusCode.UNSET
    assert first.context.trace_id != second.context.trace_id
    assert told(first)["gen_ai.conversation.id"] == told(second)["gen_ai.conversation.id"] == "support-42"
    assert is_under(only(spans, "execute_tool wire"), second)


def test_no_span_tells_what_was_said(vault: Vault, tools: Toolbox, spans: InMemorySpanExporter) -> None:
    def work() -> None:
        with vault.run("support-42") as run:
            run.state["note"] = SECRET
            run.save(label=SECRET)
            run.halt(SECRET)
            raise ValueError(SECRET)

    ask(vault, tools, calling("look", text=SECRET))
    with pytest.raises(ValueError, match="launch"):
        work()
    found = spans.get_finished_spans()
    assert len(found) > 6
    assert not [span.name for span in found if "launch code" in span.to_json()]


@pytest.mark.parametrize("at_once", [False, True])
def test_an_asynchronous_run_has_the_same_spans(at_once: bool, tmp_path: Path, spans: InMemorySpanExporter) -> None:
    box = Toolbox()

    @box.tool(read_only=True)
    async def awaited() -> str:
        with trace.get_tracer("a test").start_as_current_span("awaited's own"):
            return "found"

    @box.tool(read_only=True)
    def plain() -> str:
        with trace.get_tracer("a test").start_as_current_span("plain's own"):
            return "found"

    async def model(messages: list[dict[str, Any]]) -> Any:
        return calling("awaited", "plain") if len(messages) == 1 else "done"

    async def main() -> None:
        async with savegame.open_async(tmp_path / "vault.db") as vault:
            async with vault.run("support-42", agent="helper", tools=box) as run:
                await run.user(SECRET)
                while not run.done:
                    await run.tools(at_once=at_once)
                    await run.model(model)
            assert not trace.get_current_span().get_span_context().is_valid

    asyncio.run(main())
    run = only(spans, "invoke_agent helper")
    for name in ("awaited", "plain"):
        assert is_under(only(spans, f"execute_tool {name}"), run)
        assert is_under(only(spans, f"{name}'s own"), only(spans, f"execute_tool {name}"))
    assert len(named(spans, "chat")) == 2
    assert all(is_under(span, run) for span in (*named(spans, "chat"), *named(spans, "save")))
    assert len(named(spans, "save")) == 5


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
import savegame
tools = savegame.Toolbox()

@tools.tool
def broken():
    raise ValueError("no")

call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "broken", "arguments": {}}]}
with savegame.open("memory:") as vault, vault.run("t", tools=tools) as run:
    run.user("hello")
    run.model(lambda messages: call)
    run.tools()
    run.model(lambda messages: "done")
    print(run.reply, sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_without_the_api_a_run_is_as_before() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "done ['opentelemetry']", done.stderr


def test_opening_a_vault_does_not_import_the_api() -> None:
    script = "import sys, savegame; savegame.open('memory:').close(); print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_stream_is_a_chat_that_is_not_current_between_its_pieces(vault: Vault, spans: InMemorySpanExporter) -> None:
    def llm(_: Any) -> Any:
        for piece in ("It ", "is."):
            with trace.get_tracer("a test").start_as_current_span("the model's own"):
                yield piece
        yield {"role": "assistant", "content": "It is.", "usage": {"input_tokens": 12, "output_tokens": 3}}

    with vault.run("support-42") as run:
        run.user(SECRET)
        for _ in run.stream(lambda _: ["It ", "is."]):
            with trace.get_tracer("a test").start_as_current_span("the reader's own"):
                pass
        run.user(SECRET)
        assert run.model(lambda _: "yes") == "yes"
        run.user(SECRET)
        assert list(run.stream(llm)) == ["It ", "is."]
    first, _, last = named(spans, "chat")
    run_span = only(spans, "invoke_agent")
    for span in (first, *named(spans, "the reader's own")):
        assert is_under(span, run_span)
    for span in named(spans, "the model's own"):
        assert is_under(span, last)
    assert told(last) == told(first) | {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3}


def test_a_stream_that_is_cut_is_an_error(vault: Vault, spans: InMemorySpanExporter) -> None:
    def broken(_: Any) -> Any:
        yield "It "
        raise ValueError(SECRET)

    with vault.run("support-42") as run:
        run.user(SECRET)
        for _ in run.stream(lambda _: ["It ", "is."]):
            break
        with pytest.raises(ValueError, match="0000"):
            list(run.stream(broken))
    left, failed = named(spans, "chat")
    assert (told(left)["error.type"], told(failed)["error.type"]) == ("GeneratorExit", "ValueError")
    assert failed.status.status_code == left.status.status_code == trace.StatusCode.ERROR
    assert failed.status.description is None
    assert not failed.events


def test_an_asynchronous_stream_is_one_chat(spans: InMemorySpanExporter) -> None:
    async def llm(_: Any) -> Any:
        yield "It "
        await asyncio.sleep(0)
        yield "is."

    async def main() -> None:
        async with savegame.open_async("memory:") as vault, vault.run("support-42") as run:
            await run.user(SECRET)
            assert [piece async for piece in run.stream(llm)] == ["It ", "is."]
            await run.user(SECRET)
            async for _ in run.stream(llm):
                break
            await asyncio.sleep(0)

    asyncio.run(main())
    run = only(spans, "invoke_agent")
    assert [told(span).get("error.type") for span in named(spans, "chat")] == [None, "GeneratorExit"]
    assert all(is_under(span, run) for span in named(spans, "chat"))
