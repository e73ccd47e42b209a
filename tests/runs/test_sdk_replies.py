"""What APIs return is kept whole and goes back in its place; other APIs get texts and calls; why a model stopped counts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from faces import Face, entered, look
from hypothesis import given, settings
from hypothesis import strategies as st

import savegame
from savegame import InvalidInputError, Message, Toolbox
from savegame.messages.input_items import input_items
from savegame.messages.transcript import read_message
from savegame.messages.views import anthropic_messages, openai_messages, select_messages
from savegame.runs.sdk_replies import read_reply, tokens_in
from savegame.testing.provider import check_anthropic, check_openai, check_openai_input, signed

Plain = dict[str, Any]
USAGE = {"input_tokens": 10, "output_tokens": 5}


@pytest.fixture
def address(tmp_path: Path) -> Path:
    return tmp_path / "vault.db"


@pytest.fixture
def tools() -> Toolbox:
    box = Toolbox()

    @box.tool(idempotent=True)
    def search(q: str) -> str:
        return f"found {q}"

    return box


def message(*content: Plain, stop_reason: str = "end_turn", **more: Any) -> Plain:
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None, "usage": USAGE}
    return {**about, "content": list(content), "stop_reason": stop_reason, **more}


def response(*output: Plain, **more: Any) -> Plain:
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": list(output), **more}


def completion(finish_reason: str = "stop", **given: Any) -> Plain:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **given}, "finish_reason": finish_reason}]}


def text(said: str = "It is lost.", **more: Any) -> Plain:
    return {"type": "text", "text": said, **more}


# -- round trips -----------------------------------------------------------------------------------

TEXTS = st.sampled_from(["a", "It is lost.", "é\n\nü", "{}"])
BLOCKS = st.one_of(
    st.builds(text, TEXTS),
    st.just({"type": "thinking", "thinking": "hm"}),
    st.just({"type": "redacted_thinking"}),
    st.just({"type": "tool_use", "name": "search"}),
    st.just({"type": "server_tool_use", "name": "web_search", "input": {"query": "x"}}),
)


def as_sent(blocks: list[Plain]) -> list[Plain]:
    """Blocks as Anthropic sends them: signed, with ids, each server tool followed by its result, calls last."""
    found: list[Plain] = []
    for number, block in enumerate(sorted(blocks, key=lambda block: block["type"] == "tool_use")):
        name = f"id_{number}"
        if block["type"] == "tool_use":
            found.append({**block, "id": name, "input": {"q": name}})
        elif block["type"] == "server_tool_use":
            result = {
                "type": "web_search_tool_result",
                "tool_use_id": name,
                "content": [{"type": "web_search_result", "url": "u"}],
            }
            found += [{**block, "id": name}, result]
        else:
            found.append(block)
    return signed(found)


def played(*replies: Any) -> list[Plain]:
    """The stored messages of a run whose model gives these replies."""
    box = Toolbox()

    @box.tool(idempotent=True)
    def search(q: str) -> str:
        return f"found {q}"

    with savegame.open("memory:") as vault, vault.run("t", tools=box) as run:
        run.user("hi")
        for reply in replies:
            run.model(lambda _, reply=reply: reply)
            run.tools()
        found: list[Plain] = vault.thread("t").state()["messages"]
        return found


@settings(max_examples=60, deadline=None)
@given(st.lists(BLOCKS, min_size=1, max_size=6))
def test_blocks_of_anthropic_go_back_in_their_place(blocks: list[Plain]) -> None:
    sent = as_sent(blocks)
    stored = played(message(*copy.deepcopy(sent), stop_reason="tool_use" if sent[-1]["type"] == "tool_use" else "end_turn"))
    stored.append({"role": "user", "content": "go on"})
    _, view = anthropic_messages(stored)
    check_anthropic(view)
    spoken = [block for block in sent if block["type"] not in ("thinking", "redacted_thinking")]
    end = len(sent) if not spoken else 1 + max(n for n, block in enumerate(sent) if block in spoken)
    assert (view[1]["content"] if spoken else []) == (sent[:end] if spoken else [])
    check_openai(openai_messages(stored))
    check_openai_input(input_items(stored))
    for options in ({"strategy": "snip_tool_results", "keep_recent": 1}, {"budget": 1}, {"budget": 60}):
        selected = select_messages(stored, **options)  # type: ignore[arg-type]
        check_anthropic(anthropic_messages(selected)[1])
        check_openai(openai_messages(selected))
        check_openai_input(input_items(selected))


ITEMS = st.one_of(
    st.builds(lambda said: {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}, TEXTS),
    st.just({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}),
    st.just({"type": "function_call", "name": "search"}),
    st.just({"type": "web_search_call", "action": {"type": "search", "query": "x"}}),
)


def as_output(items: list[Plain]) -> list[Plain]:
    """Items as OpenAI sends them: with ids, and something after each reasoning."""
    found = []
    for number, item in enumerate([*items, {"type": "function_call", "name": "search"}]):
        more: Plain = {"id": f"it_{number}", "status": "completed"}
        if item["type"] == "function_call":
            more |= {"call_id": f"call_{number}", "arguments": f'{{"q": "{number}"}}'}
        if item["type"] == "message":
            more["content"] = [{**part, "annotations": []} for part in item["content"]]
        found.append({**item, **more})
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(ITEMS, max_size=6))
def test_items_of_responses_go_back_in_their_place(items: list[Plain]) -> None:
    sent = as_output(items)
    stored = played(response(*copy.deepcopy(sent)))
    view = input_items(stored)
    check_openai_input(view)
    assert view[1 : len(sent) + 1] == sent
    stored.append({"role": "user", "content": "go on"})
    check_anthropic(anthropic_messages(stored)[1])
    check_openai(openai_messages(stored))
    for options in ({"strategy": "snip_tool_results", "keep_recent": 1}, {"budget": 1}, {"budget": 60}):
        selected = select_messages(stored, **options)  # type: ignore[arg-type]
        check_openai_input(input_items(selected))
        check_anthropic(anthropic_messages(selected)[1])


def test_an_edited_call_goes_back_edited_and_without_a_call_nothing_is_tied_to_it() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "search", "arguments": '{"q": "x"}'}
    said = {"type": "message", "id": "m_1", "role": "assistant", "content": [{"type": "output_text", "text": "Look."}]}
    stored = played(response(reasoning, said, call))
    stored[1]["tool_calls"][0]["arguments"] = {"q": "edited"}
    assert input_items(stored)[3] == {**call, "arguments": '{"q": "edited"}'}
    without = [{name: value for name, value in one.items() if name != "tool_calls"} for one in stored[:2]]
    assert input_items(without)[1:] == [{"role": "assistant", "content": "Look."}]


def test_a_refusal_among_the_items_goes_back_as_one() -> None:
    item = {"type": "message", "id": "m_1", "role": "assistant", "status": "completed"}
    sent = {**item, "content": [{"type": "refusal", "refusal": "I cannot."}]}
    stored = played(response(sent))
    assert input_items(stored)[1] == sent
    assert anthropic_messages([*stored, {"role": "user", "content": "?"}])[1][1]["content"] == [text("I cannot.")]


def test_citations_go_back_to_anthropic_only() -> None:
    cited = text(citations=[{"type": "web_search_result_location", "url": "u", "encrypted_index": "E"}])
    stored = [*played(message(text("So: "), cited)), {"role": "user", "content": "thanks"}]
    assert anthropic_messages(stored)[1][1]["content"] == [text("So: "), cited]
    assert openai_messages(stored)[1]["content"] == "So: \nIt is lost."


def test_fields_of_compatible_apis_go_back_with_the_calls() -> None:
    """Gemini signs calls, OpenRouter and DeepSeek want their reasoning back."""
    function = {"name": "search", "arguments": '{"q": "x"}'}
    extra = {"google": {"thought_signature": "S"}}
    call = {"id": "c1", "type": "function", "function": function, "extra_content": extra}
    details = [{"type": "reasoning.encrypted", "data": "E"}]
    stored = played(
        completion("tool_calls", content=None, tool_calls=[call], reasoning_details=details, reasoning_content="hm")
    )
    view = openai_messages(stored)[1]
    assert (view["tool_calls"], view["reasoning_details"], view["reasoning_content"]) == ([call], details, "hm")
    check_anthropic(anthropic_messages(stored)[1])


def test_what_people_see_of_it() -> None:
    summary = [{"type": "summary_text", "text": "It was lost."}]
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "search", "arguments": '{"q": "x"}'}
    found = read_message(played(response(reasoning, call))[1])
    assert found.parts == ["It was lost."]
    assert [one.name for one in found.calls] == ["search"]


# -- what a reply says -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (message(text()), "It is lost."),
        (message(text("It "), text("is "), text("lost.")), "It is lost."),
        (
            message(text("Look."), {"type": "server_tool_use", "id": "s", "name": "x", "input": {}}, text("Lost.")),
            "Look.\nLost.",
        ),
        (message(), ""),
        (completion(content="It is lost."), "It is lost."),
        (completion(content=None, refusal="I cannot."), "I cannot."),
        (response(), ""),
        ({"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}, None),
        ({"role": "assistant", "content": {"answer": 7}}, {"answer": 7}),
        ({"role": "assistant", "content": [1, 2]}, [1, 2]),
    ],
)
def test_what_a_reply_says(face: type[Face], address: Path, reply: Any, says: Any) -> None:
    with entered(face, address) as one:
        one.user("hi")
        assert one.model(reply) == says
        assert one.run.reply == says
        assert one.run.done


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"total_tokens": 9, "prompt_tokens": 1, "completion_tokens": 2}, 9),
        ({"input_tokens": 1, "output_tokens": 2}, 3),
        ({"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 400}, 433),
        ({"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": None}, 3),
        ({"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}, 3),
        ({"output_tokens": 2}, 2),
        ({"total_tokens": True, "input_tokens": -1, "output_tokens": 2.5}, None),
        ({}, None),
        (None, None),
    ],
)
def test_tokens(usage: Any, tokens: int | None) -> None:
    assert tokens_in(usage) == tokens


def test_usage_says_otherwise(face: type[Face], address: Path) -> None:
    for spent, tokens in (((7, 0.5), 7), ((None, 0.5), 15), ((0, 0.5), 0)):
        with entered(face, address) as one:
            one.user("hi")
            one.model(message(text()), usage=lambda _, spent=spent: spent)
            assert (one.run.checkpoint.tokens_used, one.run.checkpoint.cost) == (tokens, 0.5)
    assert look(address, lambda vault: [row.tokens_used for row in vault.usage(by="thread")]) == [22]


# -- why the model stopped -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (message(text(), stop_reason="max_tokens"), "max_tokens"),
        (message(text(), stop_reason="model_context_window_exceeded"), "model_context_window_exceeded"),
        (message(stop_reason="refusal"), "refusal"),
        (completion("length", content="It is"), "length"),
        (completion("content_filter", content=""), "content_filter"),
        (completion(content=None, refusal="I cannot."), "refusal"),
        (response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}), "max_output_tokens"),
    ],
)
def test_a_reply_that_was_cut_off_or_refused_is_kept_and_says_why(
    face: type[Face], address: Path, reply: Any, reason: str
) -> None:
    with entered(face, address) as one:
        one.user("hi")
        one.model(reply)
        assert one.run.done
        one.user("try again")
        stored = look(address, lambda vault: vault.thread("t").state()["messages"])
        assert stored[1]["stop_reason"] == reason
        check_anthropic(one.run.anthropic_messages()[1])
        check_openai(one.run.openai_messages())
        check_openai_input(one.run.openai_input())


def test_a_paused_turn_goes_on(face: type[Face], address: Path) -> None:
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    with entered(face, address) as one:
        one.user("where is it?")
        one.model(message(search, stop_reason="pause_turn"))
        assert not one.run.done
        assert str(one.run.checkpoint.status) == "in_progress"
    with entered(face, address) as one:
        one.tools()
        assert not one.run.done
        assert one.run.anthropic_messages()[1][-1] == {"role": "assistant", "content": [search]}
        shown: list[Any] = []
        one.stream(one.source([message(result, text())], shown))
        assert shown[0][-1]["content"] == [search]
        assert one.run.done
        assert one.run.anthropic_messages()[1][-1] == {"role": "assistant", "content": [search, result, text()]}


def test_a_paused_turn_that_the_user_interrupts(face: type[Face], address: Path) -> None:
    """What the server tool did not end cannot be shown any more, and neither can the thought beside it."""
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    for thread, content, rest in (
        ("a", [search], []),
        ("b", [text("Look."), *signed([text("Look."), {"type": "thinking", "thinking": "hm"}])[1:], search], [text("Look.")]),
    ):
        with entered(face, address, thread) as one:
            one.user("where is it?")
            one.model(message(*content, stop_reason="pause_turn"))
            one.user("never mind")
            view = one.run.anthropic_messages()[1]
            check_anthropic(view)
            assert [each["content"] for each in view if each["role"] == "assistant"] == [rest] * bool(rest)


def test_a_call_that_cannot_be_read_is_answered_with_an_error(face: type[Face], address: Path, tools: Toolbox) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": '}}
    with entered(face, address, tools=tools) as one:
        one.user("hi")
        one.model(completion("tool_calls", content=None, tool_calls=[call]))
        one.tools()
        assert "the call cannot be read" in one.run.messages[-1]["content"]


def test_texts_that_cannot_be_stored_are_escaped(face: type[Face], address: Path) -> None:
    with entered(face, address) as one:
        one.user("hi")
        thought = {"type": "thinking", "thinking": "a\ud800", "signature": "S"}
        one.model(message(thought, text("b\udfff")))
        assert one.run.reply == "b\\udfff"


# -- conversations written by others ---------------------------------------------------------------

USE = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "x"}}


@pytest.mark.parametrize(
    "part", [USE, {"type": "function_call", "id": "f", "call_id": "toolu_1", "name": "search", "arguments": "{}"}]
)
def test_calls_in_a_content_that_others_stored_are_refused_on_entering(face: type[Face], address: Path, part: Plain) -> None:
    def add(vault: Any) -> None:
        vault.save_conversation({"id": "t", "messages": [{"role": "user", "content": "hi"}]})
        vault.add_message("t", Message.assistant([text(), part]))

    look(address, add)
    refusal = (
        rf"thread 't': its newest reply asks for a call in its content only \({part['type']} 'toolu_1' of 'search'\); list"
    )
    with pytest.raises(InvalidInputError, match=refusal), entered(face, address):
        pass
    assert look(address, lambda vault: vault.info("t").status) == "in_progress"
    assert look(address, lambda vault: list(vault.stale())) == []

    def repair(thread: Any) -> None:
        state = thread.state()
        state["messages"][-1]["tool_calls"] = [{"id": "toolu_1", "name": "search", "arguments": {"q": "x"}}]
        thread.save(state)

    look(address, lambda vault: repair(vault.thread("t")))
    box = Toolbox()
    made = []
    box.tool(lambda q: made.append(q) or "found", name="search")  # type: ignore[func-returns-value, call-overload]
    with entered(face, address, tools=box) as one:
        assert not one.run.done
        one.tools()
    assert made == ["x"]


def test_a_supervisor_gives_up_on_such_a_thread(address: Path) -> None:
    def resume(thread: str) -> None:
        with vault.run(thread):
            raise AssertionError("it was entered")

    def crash() -> None:
        with vault.run("t") as run:
            run.user("hi")
            raise KeyboardInterrupt

    with savegame.open(address) as vault:
        with pytest.raises(KeyboardInterrupt):
            crash()
        vault.thread("t").update(append={"messages": [{"role": "assistant", "content": [USE]}]})
        for _ in range(4):
            vault.supervise(resume, once=True)
        info = vault.info("t")
        assert info is not None
        assert str(info.status) == "failed"
        assert (info.status.reason or "").startswith("stuck")
        assert list(vault.stale()) == []


def test_older_calls_in_a_content_do_not_matter(face: type[Face], address: Path) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"}
    written = [("user", "hi"), ("assistant", [USE]), ("user", [result]), ("assistant", "It is lost.")]
    messages = [{"role": role, "content": content} for role, content in written]
    look(address, lambda vault: vault.thread("t").save({"messages": messages}))
    with entered(face, address) as one:
        assert one.run.done
        one.user("thanks")
        check_anthropic(one.run.anthropic_messages()[1])


NAMES = st.sampled_from([
    "role", "content", "tool_calls", "choices", "message", "output", "object", "type", "text", "item", "stop_reason", "status",
    "id", "call_id", "name", "arguments", "input", "function", "refusal", "usage", "error", "incomplete_details", "api",
    "delta", "finish_reason", "signature", "thinking", "summary", "annotations", "total_tokens", "custom",
])  # fmt: skip
WORDS = st.sampled_from([
    "assistant", "message", "text", "tool_use", "function_call", "output_text", "refusal", "reasoning", "thinking", "response",
    "incomplete", "max_tokens", "pause_turn", "custom", "server_tool_use", "anthropic", "openai-responses", "{", "{}", "\ud800",
])  # fmt: skip
ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=5)),
    max_leaves=12,
)
SHAPES = st.one_of(
    st.builds(
        lambda more, content: {"role": "assistant", **more, "content": content}, st.dictionaries(NAMES, ANY, max_size=4), ANY
    ),
    st.builds(lambda content: message(*content), st.lists(st.dictionaries(NAMES, ANY, max_size=4), max_size=3)),
    st.builds(lambda output: response(*output), st.lists(st.dictionaries(NAMES, ANY, max_size=4), max_size=3)),
    st.builds(
        lambda given: {"choices": [{"message": {"role": "assistant", **given}}]}, st.dictionaries(NAMES, ANY, max_size=4)
    ),
    st.dictionaries(NAMES, ANY, max_size=4),
    ANY,
)


@settings(max_examples=300, deadline=None)
@given(SHAPES)
def test_whatever_it_is_it_is_kept_or_in_the_error(reply: Any) -> None:
    with savegame.open("memory:") as vault, vault.run("t") as run:
        run.user("hi")
        refusal: InvalidInputError | None = None
        try:
            run.model(lambda _: reply)
        except InvalidInputError as error:
            refusal = error
        if refusal is not None:
            assert refusal.reply is reply
            assert not run.done
            return
        run.tools()
        check_anthropic(run.anthropic_messages()[1])
        run.openai_messages()
        run.openai_input()
        assert run.checkpoint is not None
    with savegame.open("memory:") as vault, vault.run("t") as run:
        run.user("hi")
        list(run.stream(lambda _: [reply]))


def test_what_is_no_reply_is_left_alone() -> None:
    for given_reply in ("text", 7, None, [USE], object):
        assert read_reply(given_reply) is given_reply
