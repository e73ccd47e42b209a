"""Views of a conversation: whatever was stored, a provider accepts what it is shown, and what was stored stays as it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from savegame.errors import InvalidInputError
from savegame.messages.domain import Attachment, AttachmentType, Message, ToolCall
from savegame.messages.views import FAILED, INTERRUPTED, OPENING, anthropic_messages, closed, openai_messages, select_messages
from savegame.testing.provider import Rejected, check_anthropic, check_messages, check_openai, signed

Plain = dict[str, Any]

PNG = b"\x89PNG"
HI: Plain = {"role": "user", "content": "hi"}


def asks(*ids: Any, content: Any = None, **details: Any) -> Plain:
    calls = [{"id": name, "name": "search", "arguments": {"q": "x"}} for name in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls, **details}


def answer(name: Any, content: Any = "found", **details: Any) -> Plain:
    return {"role": "tool", "tool_call_id": name, "content": content, **details}


def says(content: Any, role: str = "assistant", **details: Any) -> Plain:
    return {"role": role, "content": content, **details}


def brief(messages: list[Plain]) -> list[Any]:
    return [(m["tool_call_id"], m["content"]) if m["role"] == "tool" else m["content"] for m in messages]


def thought(text: str = "hm", **details: Any) -> Plain:
    return {"type": "thinking", "thinking": text, **details}


def said(text: str) -> Plain:
    return {"type": "text", "text": text}


def use(name: Any) -> Plain:
    return {"type": "tool_use", "id": name, "name": "search", "input": {}}


def image(content: Any = PNG, mime_type: str = "image/png", **details: Any) -> Plain:
    return Attachment(AttachmentType.IMAGE, "a.png", mime_type, content, **details).to_dict()


# -- closed ----------------------------------------------------------------------------------------


def test_a_call_without_an_answer_gets_the_note() -> None:
    assert closed([HI, asks("a", "b"), answer("b")])[2:] == [answer("a", INTERRUPTED), answer("b")]


def test_a_note_can_be_given_for_each_call() -> None:
    view = closed([asks("a", "b", content="?")], "gone", notes={"b": "waiting for a person"})
    assert brief(view) == ["?", ("a", "gone"), ("b", "waiting for a person")]


def test_an_outcome_that_the_call_itself_holds_is_its_answer() -> None:
    done = ToolCall("a", "search", {}, result=[1], status="completed")  # type: ignore[arg-type]
    failed = ToolCall("b", "search", {}, error="no", status="failed")  # type: ignore[arg-type]
    message = Message.assistant("?", tool_calls=[done, failed]).to_dict()
    assert closed([message], notes={"a": "note"})[1:] == [answer("a", [1]), answer("b", "no", metadata={"is_error": True})]


def test_a_failure_without_a_reason_says_that_it_failed() -> None:
    call = {"id": "a", "name": "search", "arguments": {}, "status": "failed"}
    for messages in ([HI, says("?", tool_calls=[call])], [HI, asks("a"), answer("a", " ", is_error=True)]):
        assert openai_messages(messages)[2]["content"] == FAILED
        _, view = anthropic_messages(messages)
        check_anthropic(view)
        assert view[2]["content"] == [{"type": "tool_result", "tool_use_id": "a", "content": [said(FAILED)], "is_error": True}]
    assert closed([says("?", tool_calls=[call])])[1]["content"] == FAILED


def test_answers_stand_after_their_call_in_the_order_of_the_calls() -> None:
    messages = [asks("a", "b", content="?"), answer("b", 2), says("wait", "user"), says("ok"), answer("a", 1)]
    assert brief(closed(messages)) == ["?", ("a", 1), ("b", 2), "wait", "ok"]


def test_the_first_of_two_answers_counts_and_orphans_are_left_out() -> None:
    messages = [answer("a", "too early"), asks("a", content="?"), answer("a", 1), answer("a", 2), answer("z"), answer(None)]
    assert brief(closed(messages)) == ["?", ("a", 1)]


def test_an_id_that_is_used_again_is_another_call() -> None:
    messages = [asks("a", content=1), answer("a", "one"), asks("a", content=2), asks("a", content=3), answer("a", "three")]
    assert brief(closed(messages)) == [1, ("a", "one"), 2, ("a", INTERRUPTED), 3, ("a", "three")]
    assert brief(closed([*messages, answer("a", "two")]))[2:4] == [2, ("a", "two")]


def test_two_calls_of_one_message_with_one_id_or_none_are_answered_in_order() -> None:
    assert brief(closed([asks("a", "a", content="?"), answer("a", 1), answer("a", 2)])) == ["?", ("a", 1), ("a", 2)]
    assert brief(closed([asks(None, content="?"), answer(None, 1)])) == ["?", (None, 1)]


def test_what_says_nothing_is_left_out_and_what_says_something_stays() -> None:
    silent: list[Any] = [None, "", " \n", [], [{"type": "text", "text": ""}], [{"type": "thinking", "thinking": "hm"}]]
    assert closed([says(content, role) for content in silent for role in ("user", "assistant", "system")]) == []
    spoken = [says("a"), says("b"), says(0, "user"), says("s", "system"), says(None, "user", attachments=[image()])]
    assert closed(spoken) == spoken


def test_fields_that_nobody_knows_are_kept_and_the_dicts_are_new() -> None:
    messages = [asks("a", content="?", id="m", own=[1]), answer("a", own=2)]
    view = closed(messages)
    assert view == messages
    view[0]["content"] = view[1]["content"] = "changed"
    assert brief(messages) == ["?", ("a", "found")]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("text", r"messages\[1\] must be a dict"),
        ({"content": "x"}, r"messages\[1\].role None is unknown"),
        ({"role": ["user"], "content": "x"}, r"messages\[1\].role"),
        ({"role": "assistant", "tool_calls": {"id": 1}}, r"messages\[1\].tool_calls must be a list"),
        (asks(7), r"messages\[1\].tool_calls\[0\].id must be text"),
        (answer(["a"]), r"messages\[1\].tool_call_id must be text"),
    ],
)
def test_what_is_no_message_is_named_by_its_place(message: Any, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        closed([HI, message])


# -- OpenAI ----------------------------------------------------------------------------------------


def test_openai_gets_calls_as_functions_and_none_of_our_fields() -> None:
    own = {"id": "m", "timestamp": None, "metadata": {"k": 1}, "tokens": 3, "parent_id": "p", "own": 1}
    messages = [HI | own, asks("a", content="", **own), answer("a", {"n": [1, "ü"]}, **own), says("done", **own)]
    function = {"name": "search", "arguments": '{"q": "x"}'}
    assert openai_messages(messages) == [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": '{"n": [1, "ü"]}'},
        {"role": "assistant", "content": "done"},
    ]


def test_openai_sees_images_of_the_user_and_the_names_of_other_attachments() -> None:
    code = Attachment(AttachmentType.CODE, "b.py", "text/x-python", "pass").to_dict()
    attached = [image(), image(None, url="https://x.org/a.png"), image(mime_type="image/tiff"), image(None), code]
    [user, assistant] = openai_messages([says("look", "user", attachments=attached), says("as asked", attachments=[image()])])
    assert user["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}},
        {"type": "text", "text": "[attachment: a.png, image/tiff]"},
        {"type": "text", "text": "[attachment: a.png, image/png]"},
        {"type": "text", "text": "[attachment: b.py, text/x-python]"},
    ]
    assert assistant["content"] == "as asked\n[attachment: a.png, image/png]"


def test_openai_ids_that_are_too_long_or_used_twice_are_replaced_the_same_way_each_time() -> None:
    messages = [HI, asks("x" * 50, "functions.f:0", "a", "a"), answer("a", 1), asks("a", None, "x" * 50)]
    view = openai_messages(messages)
    check_openai(view)
    ids = [call["id"] for message in view for call in message.get("tool_calls", ())]
    assert ids[:3] == ["x" * 40, "functions.f:0", "a"]
    assert len(set(ids)) == len(ids)
    assert openai_messages([*messages, HI])[: len(view)] == view


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"q": 1}', {"q": 1}),
        ("", {}),
        (None, {}),
        ('{"q": ', {"arguments": '{"q": '}),
        ([1], {"arguments": [1]}),
        ({"q": float("nan")}, {"arguments": '{"q": NaN}'}),
        ({"q": 10**5000}, {"arguments": f'{{"q": "{10**5000:#x}"}}'}),
    ],
)
def test_arguments_are_an_object_whatever_the_model_gave(arguments: Any, expected: Plain) -> None:
    nested = {"id": "a", "type": "function", "function": {"name": "no such tool!", "arguments": arguments}}
    messages = [HI, says(None, tool_calls=[nested])]
    view = openai_messages(messages)
    check_openai(view)
    function = view[1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("no_such_tool_", expected)
    assert anthropic_messages(messages)[1][1]["content"][0]["input"] == expected


# -- Anthropic -------------------------------------------------------------------------------------


def test_anthropic_gets_blocks_and_the_results_in_one_user_message_before_what_the_user_says() -> None:
    messages = [HI, asks("a", "b", content="I look"), answer("b", "no", is_error=True), answer("a"), says("and?", "user"), HI]
    called = {"type": "tool_use", "name": "search", "input": {"q": "x"}}
    system, view = anthropic_messages(messages)
    check_anthropic(view)
    assert system == ""
    assert view == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I look"}, called | {"id": "a"}, called | {"id": "b"}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "found"}]},
                {"type": "tool_result", "tool_use_id": "b", "content": [said("no")], "is_error": True},
                {"type": "text", "text": "and?"},
                {"type": "text", "text": "hi"},
            ],
        },
    ]


def test_anthropic_has_one_system_text_and_the_user_begins() -> None:
    system, view = anthropic_messages([says("Be kind.", "system"), says("Hello "), says("Be brief.", "system"), says("you \n")])
    assert system == "Be kind.\n\nBe brief."
    assert [(m["role"], [block["text"] for block in m["content"]]) for m in view] == [
        ("user", [OPENING]),
        ("assistant", ["Hello ", "you"]),
    ]
    check_anthropic(view)
    check_anthropic(anthropic_messages([])[1])


def test_anthropic_ids_are_unique_and_hold_what_anthropic_allows() -> None:
    _, view = anthropic_messages([HI, asks("a.b", "a|b", "", "a_b"), answer("a|b", "second")])
    check_anthropic(view)
    assert view[1]["content"][0]["id"] == "a_b"
    assert view[2]["content"][1] == {
        "type": "tool_result",
        "tool_use_id": view[1]["content"][1]["id"],
        "content": [{"type": "text", "text": "second"}],
    }


def test_parts_of_one_provider_are_shown_to_the_other() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lG"}}
    source = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lG"}}
    mcp = {"type": "image", "mimeType": "image/gif", "data": "R0lG"}
    messages = [says([url, source, mcp, {"type": "own", "n": 1}], "user"), asks("a"), answer("a", [mcp])]
    note = {"type": "text", "text": '{"type": "own", "n": 1}'}
    assert openai_messages(messages)[0]["content"] == [url, url, url, note]
    assert openai_messages(messages)[2]["content"] == "[image]"
    _, view = anthropic_messages(messages)
    assert view[0]["content"] == [source, source, source, note]
    assert view[2]["content"][0]["content"] == [source]


def test_anthropic_sees_images_at_secure_addresses_and_none_in_errors() -> None:
    pictures = [{"type": "image_url", "image_url": {"url": f"{scheme}://x.org/a.png"}} for scheme in ("https", "http")]
    messages = [
        says(pictures, "user"),
        asks("a"),
        answer("a", [pictures[0], {"type": "document", "source": {}}], is_error=True),
    ]
    _, view = anthropic_messages(messages)
    check_anthropic(view)
    assert view[0]["content"] == [
        {"type": "image", "source": {"type": "url", "url": "https://x.org/a.png"}},
        said("[image: http://x.org/a.png]"),
    ]
    assert [block["type"] for block in view[2]["content"][0]["content"]] == ["text", "text"]
    assert openai_messages(messages)[0]["content"] == pictures


def test_parts_that_lack_what_a_provider_needs_are_shown_as_text() -> None:
    parts = [{"type": kind} for kind in ("input_audio", "file", "document", "search_result")]
    expected = "\n".join(json.dumps(part) for part in parts)
    assert openai_messages([says(parts, "user")])[0]["content"] == expected
    assert anthropic_messages([says(parts, "user")])[1][0]["content"] == [said(json.dumps(part)) for part in parts]


def thoughts_and_calls(content: list[Plain], *ids: Any) -> str:
    """What Anthropic is shown of a message: t for a thought, w for words, and the ids of calls."""
    messages = [HI, asks(*ids, content=signed(content))]
    _, view = anthropic_messages(messages)
    check_anthropic(view)
    short = {"thinking": "t", "redacted_thinking": "t", "text": "w"}
    return " ".join(short.get(block["type"]) or block["id"] for block in view[1]["content"])


def test_thoughts_are_shown_to_the_one_who_had_them_where_they_were() -> None:
    hidden = {"type": "redacted_thinking"}
    content = [thought("one"), said("I look"), use("a"), hidden, said(" "), use("b")]
    assert thoughts_and_calls(content, "a", "b") == "t w a t b"
    assert thoughts_and_calls(content, "b", "a") == "t w a t b"
    assert thoughts_and_calls([said("well"), thought(), use("a"), thought(), use("a")], "a", "a") == "w t a t a_1"
    assert openai_messages([HI, asks("a", "b", content=content)])[1]["content"] == "I look"


def test_calls_that_have_no_part_come_last_and_so_do_those_that_were_talked_over() -> None:
    assert thoughts_and_calls([thought(), said("I look")], "a", "b") == "t w a b"
    assert thoughts_and_calls([thought(), use("b")], "a", "b") == "t b a"
    assert thoughts_and_calls([thought(), use("a"), use("b"), said("so"), thought(), said("be it")], "a", "b") == "t w w a b"


def test_thoughts_that_anthropic_would_refuse_are_left_out() -> None:
    assert thoughts_and_calls([thought(), said("so"), thought()]) == "t w"
    assert thoughts_and_calls([thought(), use("lost"), thought(), use("a"), said("so")], "a") == "w a"
    unsigned = [thought(), thought(signature=""), {"type": "redacted_thinking"}, thought(None, signature="s", cache_control={})]
    _, view = anthropic_messages([HI, says([*unsigned, said("so")])])
    check_anthropic(view)
    assert view[1]["content"] == [{"type": "thinking", "thinking": "", "signature": "s"}, said("so")]


# -- what a model is shown ---------------------------------------------------------------------------


TALK = [says("Be kind.", "system"), says("one", "user", tokens=50), asks("a", tokens=10), answer("a", tokens=10, own=1), HI]


def test_everything_is_shown_without_a_budget() -> None:
    assert select_messages(TALK) == closed(TALK)


def test_a_budget_parts_no_call_from_its_result() -> None:
    assert select_messages(TALK, budget=25) == [TALK[0], *TALK[2:]]
    assert select_messages(TALK, budget=20) == [TALK[0], HI]


def test_a_late_answer_does_not_hold_what_was_said_meanwhile() -> None:
    late = [TALK[2], *(says(f"{n}", "user", tokens=30) for n in range(3)), answer("a", tokens=1)]
    assert brief(select_messages(late, budget=65)) == ["1", "2"]


def test_the_newest_is_shown_also_over_budget() -> None:
    assert select_messages([TALK[0], says("long", "user", tokens=99)], budget=5) == [TALK[0], says("long", "user", tokens=99)]


def test_old_results_become_notes_that_keep_their_other_fields() -> None:
    view = select_messages(
        [TALK[0], TALK[1], asks("a", content="I look", own=2), *TALK[3:]], strategy="snip_tool_results", keep_recent=1
    )
    assert view[2:] == [says("I look", own=2), says("[tool search: ok]", "system", own=1), HI]


def test_an_open_call_is_not_made_a_note() -> None:
    view = select_messages([asks("a"), HI], strategy="snip_tool_results", keep_recent=1, notes={"a": "waiting for a person"})
    assert view == [asks("a"), answer("a", "waiting for a person"), HI]


def test_a_summary_stands_for_what_it_replaces() -> None:
    view = select_messages(TALK, strategy="summarize", keep_recent=1, summary="They met.")
    assert view == [TALK[0], says("[conversation summary]: They met.", "system"), HI]


def test_a_strategy_that_is_unknown_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="strategy 'forget' is unknown"):
        select_messages(TALK, strategy="forget")


def test_an_option_that_is_unknown_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^bugdet: unknown; .* budget, strategy"):
        select_messages(TALK, bugdet=1)


def test_numbers_count_in_a_budget() -> None:
    history = [message for name in "abc" for message in (asks(name), answer(name, list(range(1000))))]
    assert select_messages(history, budget=100) == history[-2:]


def test_numbers_of_any_length_are_shown() -> None:
    history = [HI, asks("a"), answer("a", {"found": 10**5000})]
    assert f"{10**5000:#x}" in openai_messages(history)[-1]["content"]
    assert f"{10**5000:#x}" in anthropic_messages(history)[1][-1]["content"][0]["content"][0]["text"]


# -- any history -----------------------------------------------------------------------------------

IDS = st.sampled_from(["a", "b", "call_0", "a.b", "a_b", "", None, "x" * 41, "ü"])
JUNK = st.none() | st.booleans() | st.integers() | st.floats() | st.text("a \nü", max_size=4)
PARTS = st.sampled_from(
    [
        {"type": "text", "text": "t"},
        {"type": "text", "text": " "},
        {"type": "text"},
        {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "AA"}},
        {"type": "image", "source": {"type": "url", "url": "http://x.org/a.png"}},
        {"type": "document"},
        {"type": "thinking", "thinking": "hm"},
        {"type": "tool_use", "id": ["a"], "name": "search", "input": {}},
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "own"},
    ]
)
CONTENTS = (
    JUNK | st.lists(PARTS, max_size=3) | st.lists(JUNK, max_size=2) | st.dictionaries(st.text(max_size=2), JUNK, max_size=2)
)
ARGUMENTS = st.sampled_from([{}, {"q": 1}, "{", "[1]", '{"q": 2}', None, {"q": float("inf")}])
CALLS = st.fixed_dictionaries(
    {"id": IDS, "name": st.sampled_from(["search", "no such!", "", None]), "arguments": ARGUMENTS},
    optional={"status": st.sampled_from(["pending", "completed", "failed"]), "result": JUNK},
)
REPLIES = st.lists(st.sampled_from([said("t"), said(" "), thought(), use("a"), use("b"), use(None)]), max_size=6).map(signed)
ATTACHED = st.lists(st.sampled_from([image(), image(mime_type="image/tiff"), image(None)]), max_size=2)
MESSAGES = st.one_of(
    st.builds(says, CONTENTS, st.sampled_from(["user", "assistant", "system"]), attachments=ATTACHED),
    st.builds(says, CONTENTS | REPLIES, tool_calls=st.lists(CALLS, max_size=3)),
    st.builds(answer, IDS, CONTENTS, is_error=st.booleans(), attachments=ATTACHED),
)
HISTORIES = st.lists(MESSAGES, max_size=12)
VIEWS: list[Callable[[list[Plain]], list[Plain]]] = [
    lambda messages: messages,
    select_messages,
    lambda messages: select_messages(messages, budget=12),
    lambda messages: select_messages(messages, strategy="snip_tool_results", keep_recent=2),
    lambda messages: select_messages(messages, strategy="layered", keep_recent=2, budget=9, summary="s"),
]


@settings(max_examples=500)
@given(HISTORIES, st.sampled_from(VIEWS))
def test_providers_accept_what_they_are_shown_of_any_history(
    messages: list[Plain], view: Callable[[list[Plain]], list[Plain]]
) -> None:
    before = repr(messages)
    whole = [HI, *messages]
    check_messages(closed(view(whole)))
    check_openai(openai_messages(view(whole)))
    check_anthropic(anthropic_messages(view(messages))[1])
    assert repr(messages) == before


@given(HISTORIES)
def test_closing_a_view_again_changes_nothing(messages: list[Plain]) -> None:
    view = closed(messages)
    assert repr(closed(view)) == repr(view)


@given(HISTORIES, st.integers(0, 12))
def test_a_history_cut_anywhere_keeps_every_answer_that_it_has(messages: list[Plain], cut: int) -> None:
    first = {**asks("only"), "content": "?"}
    view = closed([first, *messages[:cut], answer("only", "late"), *messages[cut:]])
    assert view[1] == answer("only", "late")


# -- the strict provider ---------------------------------------------------------------------------

OPENAI = openai_messages([HI, asks("a", "b"), answer("a"), answer("b"), says("done")])
ANTHROPIC = anthropic_messages([HI, asks("a", "b"), answer("a"), answer("b"), says("done")])[1]


THINKING = signed([thought("one"), use("a"), thought("two"), use("b")])


def result(fields: Plain) -> list[Plain]:
    """The messages for Anthropic with other fields in a tool's result."""
    first = {"type": "tool_result", "tool_use_id": "a", **fields}
    return changed(ANTHROPIC, 2, content=[first, ANTHROPIC[2]["content"][1]])


def calling(id: str = "a", name: str = "search", arguments: str = "{}") -> Plain:  # noqa: A002
    return says(None, tool_calls=[{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}])


def changed(messages: list[Plain], place: int, **fields: Any) -> list[Plain]:
    result = copy.deepcopy(messages)
    result[place] |= fields
    return result


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "is empty"),
        (OPENAI[:3], "end without the results of"),
        (OPENAI[:3] + OPENAI[4:], "comes before the results"),
        ([*OPENAI[:3], HI, *OPENAI[3:]], "comes before the results"),
        ([HI, *OPENAI[2:]], "answers no call"),
        ([*OPENAI[:3], OPENAI[2], *OPENAI[3:]], "answers no call"),
        (changed(OPENAI, 0, content=" "), "is blank"),
        (changed(OPENAI, 4, content=None), "is empty"),
        (changed(OPENAI, 4, tool_calls=[]), "is empty"),
        (changed(OPENAI, 2, content=None), "is not text"),
        (changed(OPENAI, 0, timestamp=1), "unknown fields"),
        (changed(OPENAI, 0, role="developer"), "role"),
        (changed(OPENAI, 4, content=[{"type": "image_url"}]), "allowed here"),
        (changed(OPENAI, 0, content=[{"type": "image_url"}]), "has no"),
        (changed(OPENAI, 0, content="\ud800"), "as JSON"),
        ([HI, asks("a"), answer("a")], "is not id, type and function"),
        ([HI, calling(id=""), answer("")], "longer than 40"),
        ([HI, calling(arguments="{"), answer("a")], "JSON of an object"),
        ([HI, calling(name="no name"), answer("a")], "is not a name"),
        ([HI, calling() | {"tool_calls": calling()["tool_calls"] * 2}, answer("a"), answer("a")], "use an id twice"),
    ],
)
def test_the_strict_openai_refuses(messages: list[Plain], reason: str) -> None:
    check_openai(OPENAI)
    with pytest.raises(Rejected, match=reason):
        check_openai(messages)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "is empty"),
        (ANTHROPIC[:2], "end without the results of"),
        (ANTHROPIC[1:], "the user begins"),
        ([ANTHROPIC[0], *ANTHROPIC], "roles alternate"),
        (changed(ANTHROPIC, 2, content=ANTHROPIC[2]["content"][:1]), "are wanted"),
        (changed(ANTHROPIC, 2, content=ANTHROPIC[2]["content"] * 2), "are wanted"),
        (changed(ANTHROPIC, 2, content=[{"type": "text", "text": "x"}, *ANTHROPIC[2]["content"]]), "before its tool results"),
        (changed(ANTHROPIC, 1, content="no calls"), "are wanted"),
        (changed(ANTHROPIC, 1, content=[ANTHROPIC[1]["content"][0]] * 2), "is used twice"),
        (changed(ANTHROPIC, 1, content=[ANTHROPIC[1]["content"][0] | {"id": "a.b"}]), "other characters"),
        (changed(ANTHROPIC, 0, content=""), "is blank"),
        (changed(ANTHROPIC, 0, content=[]), "is empty"),
        (changed(ANTHROPIC, 3, content="done "), "white space"),
        (changed(ANTHROPIC, 0, content=[{"type": "image", "source": {"type": "url", "url": "http://x.org"}}]), "not https"),
        (changed(ANTHROPIC, 0, content=[{"type": "document"}]), "has no"),
        (result({"is_error": True}), "is empty"),
        (result({"is_error": True, "content": " "}), "is blank"),
        (result({"is_error": True, "content": [{"type": "image", "source": {}}]}), "allowed here"),
        (result({"content": []}), "is empty"),
        (changed(ANTHROPIC, 3, content=signed([said("done"), thought()])), "ends with a thought"),
        (changed(ANTHROPIC, 3, content=[thought(), said("done")]), "has no"),
        (changed(ANTHROPIC, 3, content=[thought(signature=""), said("done")]), "is not signed"),
        (changed(ANTHROPIC, 3, content=[thought(signature="s", n=1), said("done")]), "unknown fields"),
        (changed(ANTHROPIC, 3, content=signed([said("done"), thought(), said("now")])[1:]), "cannot be modified"),
        (changed(ANTHROPIC, 1, content=[THINKING[0], THINKING[2], THINKING[1], THINKING[3]]), "cannot be modified"),
        (changed(ANTHROPIC, 1, content=[*THINKING, said("so")]), "does not end with a call"),
        (changed(ANTHROPIC, 3, content=[{"type": "text", "text": "x", "n": float("nan")}]), "as JSON"),
    ],
)
def test_the_strict_anthropic_refuses(messages: list[Plain], reason: str) -> None:
    check_anthropic(ANTHROPIC)
    check_anthropic(changed(ANTHROPIC, 1, content=THINKING))
    with pytest.raises(Rejected, match=reason):
        check_anthropic(messages)
