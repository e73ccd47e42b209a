"""Replies that cannot be read for certain are refused, with the reply in the error; the run stays as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pydantic
import pytest

import savegame
from savegame import InvalidInputError, Message, Toolbox
from savegame.vault import Vault


class Block(pydantic.BaseModel):
    """A content block, as the libraries of providers return them."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class Reply(pydantic.BaseModel):
    """A reply, as the libraries of providers return them."""

    id: str = "msg_1"
    type: str = "message"
    role: str = "assistant"
    content: list[Block]
    stop_reason: str = "tool_use"


class Unreadable:
    def model_dump(self, **_: Any) -> Any:
        raise OSError("disk")


USE = {"type": "tool_use", "id": "toolu_1", "name": "refund", "input": {"order": 7}}
SAID = {"type": "text", "text": "I will refund it."}
BLOCKS = [Block(type="text", text="I will refund it."), Block(**USE)]
ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "refund", "arguments": '{"order":7}'}

READ = {
    "Anthropic, dict": {"type": "message", "role": "assistant", "content": [SAID, USE], "stop_reason": "tool_use"},
    "Anthropic, object": Reply(content=BLOCKS),
    "Anthropic, dumped": Reply(content=BLOCKS).model_dump(),
    "Anthropic, content objects": {"role": "assistant", "content": BLOCKS},
    "Anthropic, as a Message": Message.assistant([SAID, USE]),
    "OpenAI, response": {"object": "response", "output": [ITEM]},
    "OpenAI, items as content": {"role": "assistant", "content": [ITEM]},
}

UNREAD = {
    "another call listed": {
        "role": "assistant",
        "content": [USE],
        "tool_calls": [{"id": "c", "name": "refund", "arguments": {}}],
    },
    "stopped for tools": {"role": "assistant", "content": "I will refund it.", "stop_reason": "tool_use"},
    "finished for tools": {"role": "assistant", "content": "I will refund it.", "finish_reason": "tool_calls"},
    "OpenAI, old functions": {"role": "assistant", "content": None, "function_call": {"name": "refund", "arguments": "{}"}},
    "OpenAI, two choices": {"choices": [{"message": {"role": "assistant", "content": "hi"}}] * 2},
    "OpenAI, no choice": {"choices": []},
    "OpenAI, a chunk": {"choices": [{"delta": {"content": "hi"}}]},
    "OpenAI, a choice without a message": {"choices": ["hi"]},
    "OpenAI, a custom tool": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "refund", "input": "7"}}],
    },
    "OpenAI, items": [ITEM],
    "OpenAI, queued": {"object": "response", "status": "queued", "output": []},
    "OpenAI, failed": {"object": "response", "status": "failed", "output": [], "error": {"message": "no"}},
    "OpenAI, a computer call": {"object": "response", "output": [{"type": "computer_call", "call_id": "c", "action": {}}]},
    "OpenAI, a custom call": {"output": [{"type": "custom_tool_call", "call_id": "c", "name": "refund", "input": "7"}]},
    "OpenAI, an approval": {"output": [{"type": "mcp_approval_request", "id": "a", "name": "refund", "arguments": "{}"}]},
    "half a call, Anthropic": {"type": "message", "role": "assistant", "content": [SAID, USE], "stop_reason": "max_tokens"},
    "half a call, OpenAI": {
        "choices": [
            {
                "finish_reason": "length",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "refund", "arguments": '{"ord'}}],
                },
            }
        ]
    },
    "half a call, response": {
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{**ITEM, "arguments": '{"ord'}],
    },
    "an object that cannot be read": Unreadable(),
    "Bedrock": {"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": "refund", "input": {}}}]},
    "Gemini": {"role": "assistant", "content": [{"functionCall": {"name": "refund", "args": {}}}]},
    "Bedrock, whole": {"output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}}, "stopReason": "end_turn"},
    "Gemini, whole": {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}}]},
    "nothing": None,
    "a number": 7,
    "bytes": b"hi",
    "another role": {"role": "user", "content": "hi"},
    "pieces": (piece for piece in ["I ", "will"]),
    "calls in camel case": {"role": "assistant", "content": "", "toolCalls": [{"id": "c", "function": {"name": "refund"}}]},
    "LangChain, beside the message": {
        "role": "assistant",
        "content": "",
        "additional_kwargs": {"tool_calls": [{"id": "c", "function": {"name": "refund", "arguments": "{}"}}]},
    },
    "Anthropic, in lists of lists": {"role": "assistant", "content": [[SAID], [[USE]]]},
    "Anthropic, inside another part": {"role": "assistant", "content": [{"type": "group", "content": [SAID, USE]}]},
}


@pytest.fixture
def made() -> list[int]:
    return []


@pytest.fixture
def tools(made: list[int]) -> Toolbox:
    box = Toolbox()

    @box.tool
    def refund(order: int) -> str:
        made.append(order)
        return "refunded"

    return box


@pytest.fixture
def vault() -> Vault:
    return savegame.open("memory:")


def refused(error: InvalidInputError, reply: Any) -> None:
    assert error.reply is reply
    assert "the reply was not saved:" in str(error)
    assert len(str(error)) < 700


@pytest.mark.parametrize("reply", READ.values(), ids=READ)
def test_calls_in_the_content_are_made(vault: Vault, tools: Toolbox, made: list[int], reply: Any) -> None:
    with vault.run("t", tools=tools) as run:
        run.user("refund order 7")
        run.model(lambda _: reply)
        assert not run.done
        run.tools()
        assert made == [7]
        assert run.messages[-1]["content"] == "refunded"


@pytest.mark.parametrize("reply", UNREAD.values(), ids=UNREAD)
def test_it_is_refused_and_the_run_is_not_done(vault: Vault, tools: Toolbox, made: list[int], reply: Any) -> None:
    with vault.run("t", tools=tools) as run:
        run.user("refund order 7")
        asked = run.checkpoint
        with pytest.raises(InvalidInputError) as caught:
            run.model(lambda _: reply)
        refused(caught.value, reply)
        run.tools()
        assert (run.done, run.checkpoint, len(run.messages), run.reply) == (False, asked, 1, None)
    assert vault.info("t").status == "in_progress"  # type: ignore[union-attr]
    with vault.run("t", tools=tools) as run:
        assert run.model(lambda _: "sorry") == "sorry"
        assert run.done
    assert made == []


@pytest.mark.parametrize("name", [name for name in UNREAD if name != "pieces"])
def test_it_is_refused_on_a_loop(tools: Toolbox, name: str) -> None:
    async def main() -> None:
        async with savegame.open_async("memory:") as vault, vault.run("t", tools=tools) as run:
            await run.user("refund order 7")

            async def llm(_: Any) -> Any:
                return UNREAD[name]

            for function in (llm, lambda _: UNREAD[name]):
                with pytest.raises(InvalidInputError) as caught:
                    await run.model(function)
                refused(caught.value, UNREAD[name])
            assert not run.done
            assert len(run.messages) == 1

    asyncio.run(main())


def test_pieces_are_refused_on_a_loop() -> None:
    async def main() -> None:
        async with savegame.open_async("memory:") as vault, vault.run("t") as run:
            await run.user("hi")

            async def llm(_: Any) -> Any:
                yield "I "

            with pytest.raises(
                InvalidInputError, match="is a generator; join the pieces and return the whole reply, or use run"
            ):
                await run.model(llm)
            with pytest.raises(InvalidInputError, match="is a generator"):
                await run.model(lambda _: (piece for piece in ["I "]))

    asyncio.run(main())


def test_the_message_says_what_was_not_read_and_what_to_do(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        parts = [{"toolUse": {"toolUseId": "1", "name": "refund", "input": {"text": "x" * 5000}}}]
        with pytest.raises(
            InvalidInputError, match=r"a content part with 'toolUse'\); list its calls as tool_calls="
        ) as caught:
            run.model(lambda _: {"role": "assistant", "content": parts})
        refused(caught.value, caught.value.reply)
        with pytest.raises(InvalidInputError, match="a reply of the SDKs of OpenAI and Anthropic, not Block; convert it in"):
            run.model(lambda _: BLOCKS[1])


def test_blocks_whose_calls_are_listed_are_taken(vault: Vault, tools: Toolbox, made: list[int]) -> None:
    """Thoughts and blocks are kept in their place, and the calls are made."""
    call = {"id": "toolu_1", "name": "refund", "arguments": {"order": 7}}
    reply = {"role": "assistant", "content": [SAID, USE], "tool_calls": [call], "stop_reason": "tool_use"}
    with vault.run("t", tools=tools) as run:
        run.user("refund order 7")
        run.model(lambda _: reply)
        run.tools()
        run.model(lambda _: {"role": "assistant", "content": [SAID], "stop_reason": "end_turn", "function_call": None})
        assert run.done
    assert made == [7]
