"""The real SDKs of OpenAI and Anthropic against a scripted API: whole replies, and the streams of the guide."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scripted_api import ScriptedAPI, serving

import savegame
from savegame import Run, Toolbox
from savegame.testing.provider import check_anthropic, check_openai

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "models.md"
SAID, DONE = "I will refund it.", "It is refunded."
THOUGHT = {"type": "thinking", "thinking": "It is lost.", "signature": "EqQB"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}


def message(*content: Any, stop_reason: str = "end_turn") -> dict[str, Any]:
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": None}
    return about | {"content": list(content), "stop_reason": stop_reason, "usage": usage}


def completion(finish_reason: str = "stop", **given: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "refusal": None, **given}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def response(*output: Any) -> dict[str, Any]:
    usage = {"input_tokens": 30, "output_tokens": 5, "total_tokens": 35}
    usage["input_tokens_details"] = {"cached_tokens": 20, "cache_write_tokens": 0}  # type: ignore[assignment]
    usage["output_tokens_details"] = {"reasoning_tokens": 0}  # type: ignore[assignment]
    about = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "error": None}
    return about | {"output": list(output), "usage": usage, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}


def item(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{len(text)}", "role": "assistant", "status": "completed", "content": content}


TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "refund", "input": {"order": 7}}
FUNCTION = {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"order": 7}'}}
ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "refund", "arguments": '{"order": 7}'}


class Service(NamedTuple):
    """One API: how its SDK is called in both colours, its stream in the guide, and a script with a call and an end."""

    client: Callable[[str, bool], Any]
    ask: Callable[[Any, Any], Any]
    stream: str
    request: dict[str, Any]
    replies: list[dict[str, Any]]


def _anthropic(url: str, is_async: bool) -> Any:
    anthropic = pytest.importorskip("anthropic")
    return (anthropic.AsyncAnthropic if is_async else anthropic.Anthropic)(api_key="k", base_url=url, max_retries=0)


def _openai(url: str, is_async: bool) -> Any:
    openai = pytest.importorskip("openai")
    return (openai.AsyncOpenAI if is_async else openai.OpenAI)(api_key="k", base_url=f"{url}/v1", max_retries=0)


def ask_anthropic(client: Any, run: Any) -> Any:
    system, messages = run.anthropic_messages()
    return client.messages.create(model="m", max_tokens=9, system=system, messages=messages)


SERVICES = {
    "Anthropic": Service(
        _anthropic,
        ask_anthropic,
        "anthropic_stream",
        {"model": "m", "max_tokens": 9},
        [
            message(THOUGHT, {"type": "text", "text": SAID}, TOOL_USE, stop_reason="tool_use"),
            message({"type": "text", "text": DONE, "citations": None}),
        ],
    ),
    "completions": Service(
        _openai,
        lambda client, run: client.chat.completions.create(model="m", messages=run.openai_messages()),
        "completion_stream",
        {"model": "m"},
        [completion("tool_calls", content=SAID, tool_calls=[FUNCTION]), completion(content=DONE)],
    ),
    "responses": Service(
        _openai,
        lambda client, run: client.responses.create(model="m", input=run.openai_input()),
        "response_stream",
        {"model": "m"},
        [response(REASONING, item(SAID), ITEM), response(item(DONE))],
    ),
}


@pytest.fixture
def api() -> Iterator[ScriptedAPI]:
    with serving() as found:
        yield found


@pytest.fixture(params=SERVICES.values(), ids=SERVICES.keys())
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.param
    return found


@pytest.fixture
def tools() -> Toolbox:
    box = Toolbox()

    @box.tool
    def refund(order: int) -> str:
        return f"refunded {order}"

    return box


def guide() -> dict[str, Any]:
    """The functions that the guide shows for streams."""
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "_stream(client" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def check_end(run: Any, asked: dict[str, Any]) -> None:
    """What the second request showed to the model is what the first reply said, in its place."""
    assert run.done
    assert run.reply == DONE
    shown = asked.get("messages") or asked["input"]
    if "input" in asked:
        assert [one["type"] for one in shown[1:]] == ["reasoning", "message", "function_call", "function_call_output"]
        assert shown[1] == REASONING
        assert shown[3] | {"arguments": None} == ITEM | {"arguments": None}
        assert json.loads(shown[3]["arguments"]) == {"order": 7}
        assert shown[4] == {"type": "function_call_output", "call_id": "call_1", "output": "refunded 7"}
    elif "max_tokens" in asked:
        check_anthropic(shown)
        assert shown[1]["content"] == [THOUGHT, {"type": "text", "text": SAID}, TOOL_USE]
    else:
        check_openai(shown)
        assert shown[1] == {"role": "assistant", "content": SAID, "tool_calls": [FUNCTION]}


def test_whole_replies(service: Service, api: ScriptedAPI, tools: Toolbox) -> None:
    api.replies = list(service.replies)
    with service.client(api.url, False) as client, savegame.open("memory:") as vault, vault.run("t", tools=tools) as run:
        run.user("refund order 7")
        assert run.model(lambda _: service.ask(client, run)) == SAID
        assert run.checkpoint is not None
        assert run.checkpoint.tokens_used == 35
        run.tools()
        run.model(lambda _: service.ask(client, run))
        check_end(run, api.asked[1])
        assert [entry.result for entry in vault.calls("t")] == ["refunded 7"]


def test_whole_replies_on_a_loop(service: Service, api: ScriptedAPI, tools: Toolbox) -> None:
    api.replies = list(service.replies)

    async def main() -> None:
        async with (
            service.client(api.url, True) as client,
            savegame.open_async("memory:") as vault,
            vault.run("t", tools=tools) as run,
        ):
            await run.user("refund order 7")
            assert await run.model(lambda _: service.ask(client, run)) == SAID
            await run.tools()
            await run.model(lambda _: service.ask(client, run))
            check_end(run, api.asked[1])

    asyncio.run(main())


def stream(run: Run, llm: Any) -> list[str]:
    return list(run.stream(llm))


def test_streams_of_the_guide(service: Service, api: ScriptedAPI, tools: Toolbox) -> None:
    api.replies = list(service.replies)
    with service.client(api.url, False) as client, savegame.open("memory:") as vault, vault.run("t", tools=tools) as run:
        run.user("refund order 7")
        llm = guide()[service.stream](client, run, **service.request)
        assert stream(run, llm) == ["I ", "will ", "refund ", "it."]
        assert run.reply == SAID
        assert run.checkpoint is not None
        assert run.checkpoint.tokens_used == 35
        run.tools()
        assert "".join(stream(run, llm)) == DONE
        check_end(run, api.asked[1])


def test_streams_of_the_guide_on_a_loop(service: Service, api: ScriptedAPI, tools: Toolbox) -> None:
    """An ordinary generator is read in a thread."""
    api.replies = list(service.replies)

    async def main() -> None:
        async with savegame.open_async("memory:") as vault, vault.run("t", tools=tools) as run:
            with service.client(api.url, False) as client:
                await run.user("refund order 7")
                llm = guide()[service.stream](client, run, **service.request)
                assert [piece async for piece in run.stream(llm)] == ["I ", "will ", "refund ", "it."]
                await run.tools()
                assert [piece async for piece in run.stream(llm)] == ["It ", "is ", "refunded."]
                check_end(run, api.asked[1])

    asyncio.run(main())


def test_an_asynchronous_stream(api: ScriptedAPI, tools: Toolbox) -> None:
    api.replies = list(SERVICES["Anthropic"].replies)

    async def main() -> None:
        async with (
            _anthropic(api.url, True) as client,
            savegame.open_async("memory:") as vault,
            vault.run("t", tools=tools) as run,
        ):

            async def llm(_: Any) -> Any:
                system, messages = run.anthropic_messages()
                async with client.messages.stream(model="m", max_tokens=9, system=system, messages=messages) as stream:
                    async for piece in stream.text_stream:
                        yield piece
                    yield await stream.get_final_message()

            await run.user("refund order 7")
            assert "".join([piece async for piece in run.stream(llm)]) == SAID
            await run.tools()
            assert "".join([piece async for piece in run.stream(llm)]) == DONE
            check_end(run, api.asked[1])

    asyncio.run(main())


def test_the_stream_of_an_sdk_itself_is_refused(api: ScriptedAPI) -> None:
    """Its pieces are not text: an error says so, and the connection is closed."""
    api.replies = [completion(content=DONE), completion(content=DONE), message({"type": "text", "text": DONE})]
    with savegame.open("memory:") as vault, vault.run("t") as run:
        run.user("hi")
        with _openai(api.url, False) as client:
            chunks = client.chat.completions.create(model="m", messages=run.openai_messages(), stream=True)
            with pytest.raises(savegame.InvalidInputError, match=r"only a piece of one; run.stream takes the pieces of text"):
                list(run.stream(lambda _: chunks))
            whole = client.chat.completions.create(model="m", messages=run.openai_messages(), stream=True)
            with pytest.raises(savegame.InvalidInputError, match=r"not Stream; convert it .*, or use run.stream"):
                run.model(lambda _: whole)
            whole.close()
        with _anthropic(api.url, False) as client:
            events = client.messages.create(model="m", max_tokens=9, messages=run.anthropic_messages()[1], stream=True)
            with pytest.raises(savegame.InvalidInputError, match=r"a model's reply must be text, .* not RawMessageStartEvent"):
                list(run.stream(lambda _: events))
        assert not run.done
        assert len(run.messages) == 1
