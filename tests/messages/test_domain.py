"""The domain types: what is written is read back equal, what is wrong is named by its path, what is shown stays in pairs."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from savegame import AgentState, Attachment, AttachmentType, Conversation, Message, Role, ToolCall, ToolCallStatus
from savegame.encoding.codec import Codec
from savegame.errors import InvalidInputError

NOON = dt.datetime(2020, 2, 29, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


def call(name: str = "c1", **details: Any) -> ToolCall:
    return ToolCall(name, "search", {"q": "x"}, **details)


def asking(*ids: str, content: Any = None) -> Message:
    return Message.assistant(content, tool_calls=[call(name) for name in ids])


def talk(*messages: Message, **details: Any) -> Conversation:
    return Conversation(messages=list(messages), **details)


def sized(tokens: int, name: str, **details: Any) -> Message:
    return Message.user(name, tokens=tokens, **details)


def contents(messages: list[Message]) -> list[Any]:
    return [message.content for message in messages]


FULL = Conversation(
    "helper",
    [
        Message.system("Be kind."),
        Message.user(
            [{"type": "text", "text": "look"}, {"type": "image", "n": 1}],
            attachments=[
                Attachment(AttachmentType.IMAGE, "a.png", "image/png", b"\x89\0\xff"),
                Attachment(AttachmentType.FILE, "b.txt", "text/plain", "ü", url="https://example.org/b", id="b"),
            ],
            metadata={"n": 1, "f": 1.0},
            parent_id="p",
        ),
        asking("c1", "c2"),
        Message.tool_result("c1", {"found": [1, 2.5, None, True]}, tokens=7),
        Message.assistant("done", tool_calls=[call("c3", result="", status=ToolCallStatus.COMPLETED), call("c4", error="no")]),
    ],
    title="A talk",
    metadata={"user": "u1"},
    created_at=NOON,
    archived=True,
    tags=["a", "b", "a"],
    max_context_tokens=100,
)
AGENT = AgentState("a1", "Helper", "model-1", "Be kind.", ["search"], {"t": 0.5}, {"n": 42}, ["x"], NOON, version=3)


# -- written and read ------------------------------------------------------------------------------


@pytest.mark.requirement("A09", "A10", "A15", "D03a", "D03b", "D04a", "D17h", "D21a", "D21e", "D21f", "W01", "W02")
@pytest.mark.parametrize("whole", [FULL, AGENT, Conversation(), *FULL.messages], ids=lambda it: type(it).__name__)
def test_plain_data_and_json_are_read_back_equal(whole: Any) -> None:
    plain = whole.to_dict()
    assert type(whole).from_dict(plain) == whole
    assert type(whole).from_json(whole.to_json()) == whole
    assert Codec().decode(Codec().encode(plain)) == plain
    more = {**plain, "field_of_tomorrow": 1, "extra": [2]}
    assert type(whole).from_dict(more).to_dict() == more
    assert type(whole).from_json(type(whole).from_dict({**plain, "name_of": "x"}).to_json()).extra == {"name_of": "x"}


@pytest.mark.requirement("A12")
def test_a_message_has_the_shape_that_providers_use() -> None:
    shown = asking("c1").to_dict()
    made = {"id": shown["id"], "timestamp": shown["timestamp"]}
    calls = [{"id": "c1", "name": "search", "arguments": {"q": "x"}}]
    assert shown == {"role": "assistant", "content": None, "tool_calls": calls, **made}
    assert type(shown["role"]) is str


@pytest.mark.requirement("W01")
def test_json_is_compact_and_has_no_types_of_python() -> None:
    data = json.loads(FULL.to_json())
    assert data["created_at"] == "2020-02-29T12:00:00.000000Z"
    assert data["messages"][1]["attachments"][0]["content"] == {"base64": "iQD/"}
    assert b", " not in FULL.to_json()


@pytest.mark.requirement("D17a", "D17d", "X19")
def test_a_provider_message_gets_an_id_and_no_invented_time() -> None:
    read = Message.from_dict({"role": "User", "content": "hi", "tool_calls": None, "name": "unknown to us"})
    assert (read.role, read.content, read.timestamp) == (Role.USER, "hi", None)
    assert uuid.UUID(read.id).version == 4
    assert Message.from_dict(read.to_dict()) == read


@pytest.mark.requirement("D23b", "D23c")
def test_calls_are_read_in_the_nested_shape_too() -> None:
    nested = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    assert ToolCall.from_dict(nested) == call()
    assert ToolCall.from_dict({"id": "c1", "name": "now", "arguments": ""}).arguments == {}


@pytest.mark.requirement("C06b", "C06c")
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"q": "x"}', {"q": "x"}),
        ("query", {"arguments": "query"}),
        ("[1, 2]", {"arguments": "[1, 2]"}),
        ('{"q":', {"arguments": '{"q":'}),
        ("7", {"arguments": "7"}),
        ("", {}),
        (None, {}),
        ({"q": "x"}, {"q": "x"}),
    ],
)
def test_tool_records_are_read_whatever_text_their_arguments_are(text: Any, arguments: dict[str, Any]) -> None:
    record = {"tool_name": "search", "arguments": text, "result": "found it", "success": True}
    read = ToolCall.from_dict(record)
    assert (read.name, read.arguments, read.status, read.result) == ("search", arguments, "completed", "found it")
    assert ToolCall.from_dict(read.to_dict()) == read
    assert ToolCall.from_json(read.to_json()) == read
    assert read.extra == {}


@pytest.mark.requirement("C06b", "C06c", "C06d", "C06e")
def test_a_tool_record_tells_how_the_call_ended() -> None:
    record = {"tool_name": "search", "arguments": "query", "result": "no network", "success": False, "took": 3}
    failed = ToolCall.from_dict(record)
    assert (failed.status, failed.error, failed.result, failed.extra) == ("failed", "no network", None, {"took": 3})
    for success in (False, True):
        waiting = ToolCall.from_dict({"tool_name": "search", "arguments": "query", "result": None, "success": success})
        assert (waiting.status, waiting.result, waiting.error) == ("pending", None, None)
    assert ToolCall.from_dict({"tool_name": "now"}).arguments == {}
    assert failed.id != waiting.id
    message = Message.from_dict({"role": "assistant", "content": None, "tool_calls": [record]})
    assert message.tool_calls[0].error == "no network"
    for name, value, wrong in (("success", "yes", "success must be"), ("tool_name", 7, "name must be text")):
        with pytest.raises(InvalidInputError, match=wrong):
            ToolCall.from_dict({**record, name: value})


@pytest.mark.requirement("D21b")
def test_an_attachment_may_name_its_type_shortly() -> None:
    read = Attachment.from_dict({"type": "Image", "name": "n", "mime_type": "m"})
    assert (read.attachment_type, read.size) == ("image", None)


@pytest.mark.requirement("W05")
@pytest.mark.parametrize(
    "given", [NOON, "2020-02-29T12:00:00Z", "2020-02-29T13:00:00+01:00", NOON.timestamp(), int(NOON.timestamp())]
)
def test_times_are_read_from_text_and_seconds(given: Any) -> None:
    read = Message("user", "x", timestamp=given)  # type: ignore[arg-type]
    assert read.timestamp == NOON
    assert read.timestamp.utcoffset() == dt.timedelta(0)


@pytest.mark.requirement("B04", "Z64")
def test_times_before_1970_are_times() -> None:
    early = Message.user("x", timestamp=-1.5)
    assert early.timestamp == dt.datetime(1969, 12, 31, 23, 59, 58, 500000, tzinfo=dt.UTC)
    assert Message.from_json(early.to_json()) == early
    assert talk(early).last_message_at == early.timestamp


@pytest.mark.requirement("C05c", "D17c", "X21")
@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
)
def test_any_json_is_content(value: Any) -> None:
    message = Message.user(value, metadata={"value": value})
    read = Message.from_json(message.to_json())
    assert read == message
    assert repr(read.content) == repr(value), "int and float, or the order of keys, got mixed up"


# -- refused by name -------------------------------------------------------------------------------

GOOD_CALL = {"id": "c1", "name": "n", "arguments": {}}


@pytest.mark.requirement("A59", "C06e", "D23a", "E28", "E30", "W02", "X20", "Z63", "Z66")
@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}], "messages[1].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        ([{"role": "user", "content": "x", "tokens": -1}], "messages[0].tokens"),
        ([{"role": "user", "content": "x", "tokens": True}], "messages[0].tokens"),
        ([{"role": "user", "content": "x", "timestamp": "soon"}], "messages[0].timestamp"),
        ([{"role": "user", "content": "x", "timestamp": math.nan}], "messages[0].timestamp"),
        ([{"role": "user", "content": "x", "timestamp": 1e300}], "messages[0].timestamp"),
        ([{"role": "user", "content": "x", "timestamp": dt.datetime(2026, 1, 1)}], "messages[0].timestamp"),
        ([{"role": "user", "content": "x", "metadata": {1: 2}}], "messages[0].metadata's key 1"),
        ([{"role": "user", "content": "x", "id": ""}], "messages[0].id"),
        ([{"role": "assistant", "tool_calls": [GOOD_CALL, {"id": "c"}]}], "messages[0].tool_calls[1].name"),
        ([{"role": "assistant", "tool_calls": [{**GOOD_CALL, "arguments": [1]}]}], "messages[0].tool_calls[0].arguments"),
        ([{"role": "assistant", "tool_calls": [{**GOOD_CALL, "arguments": "{"}]}], "messages[0].tool_calls[0].arguments"),
        ([{"role": "assistant", "tool_calls": [{**GOOD_CALL, "status": "completed"}]}], "messages[0].tool_calls[0].result"),
        ([{"role": "assistant", "tool_calls": [{**GOOD_CALL, "status": "odd"}]}], "messages[0].tool_calls[0].status"),
        ([{"role": "user", "attachments": [{"type": "file", "name": "n"}]}], "messages[0].attachments[0].mime_type"),
        ([{"role": "user", "attachments": ["x"]}], "messages[0].attachments[0] must be"),
        ([3], "messages[0] must be"),
        ("hello", "messages must be"),
        (None, "messages is missing"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(messages: Any, path: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Conversation.from_dict({"messages": messages})
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 0},
        {"name": 1},
        {"capabilities": "search"},
        {"config": []},
        {"active_conversations": [""]},
        {"created_at": None},
    ],
)
def test_an_agent_is_checked_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        AgentState(**{"agent_id": "a", "name": "n", "agent_type": "t", **wrong})


@pytest.mark.requirement("D21c", "D21d")
@pytest.mark.parametrize("wrong", [{"size": -1}, {"content": 5}, {"content": {"base64": "?"}}, {"content": {}}])
def test_an_attachment_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        Attachment.from_dict({"type": "file", "name": "n", "mime_type": "m", **wrong})


def test_what_was_set_to_something_wrong_is_not_written() -> None:
    conversation = talk(Message.user("x"))
    conversation.messages[0].tokens = -5
    with pytest.raises(InvalidInputError, match=r"^messages\[0\]\.tokens"):
        conversation.to_dict()


@pytest.mark.requirement("W04", "W08")
@pytest.mark.parametrize(
    "content",
    [math.nan, [math.inf], (1, 2), {1}, {"a": {1: 2}}, b"x", NOON, {"a": ["\ud800"]}, {"\ud800": 1}, Role.USER.__class__],
)
def test_json_refuses_what_it_would_change(content: Any) -> None:
    with pytest.raises(InvalidInputError, match="content"):
        Message.user({"content": content}).to_json()


@pytest.mark.requirement("A09", "A10", "A15")
@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[]", b'{"role":"user","content":NaN}', b'{"role":"user","content":1e999}']
)
def test_json_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        Message.from_json(data)


def test_json_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        Message.from_json(b'{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(InvalidInputError, match="levels deep"):
        Message.user(deep).to_json()


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.requirement("A12", "C05b", "D17b", "D17i", "D18", "D19", "D72", "D73", "D74", "D75")
def test_constructors_set_the_role() -> None:
    assert [Message.system("x").role, Message.user("x").role, Message.assistant("x").role] == ["system", "user", "assistant"]
    result = Message.tool_result("c1", "found", metadata={"is_error": True})
    assert (result.role, result.tool_call_id, result.metadata) == ("tool", "c1", {"is_error": True, "tool_call_id": "c1"})
    assert Message.from_dict({"role": "Tool", "content": "x", "metadata": {"tool_call_id": "c9"}}).tool_call_id == "c9"


@pytest.mark.requirement("D20", "D22", "D24", "D84", "D86", "D87", "W03", "X19")
def test_members_are_equal_to_their_text() -> None:
    assert (Role.TOOL, AttachmentType.CODE, ToolCallStatus.RUNNING) == ("tool", "code", "running")
    assert (Role("tool"), AttachmentType("code"), ToolCallStatus("running")) == (Role.TOOL, "code", "running")
    assert len({*Role, *AttachmentType, *ToolCallStatus}) == 4 + 5 + 4


@pytest.mark.requirement("A13", "D17e")
@pytest.mark.parametrize(
    ("content", "text", "tokens"),
    [
        ("", "", 1),
        ("abcd", "abcd", 2),
        ("üü", "üü", 2),
        ([{"type": "text", "text": "ab"}, "cd"], "ab\ncd", 2),
        ([{"type": "text", "text": "ab"}, {"type": "image", "data": "wxyz"}, "cd"], "ab\ncd", 1 + (4 + 35) // 4),
        ({"text": "abcd"}, "abcd", 2),
        ({"text": "abcd", "scores": [1234] * 1000}, "abcd", 1 + (29 + 6 * 1000) // 4),
        (None, "", 1),
        (12345678, "", 3),
        (list(range(10_000)), "", 1 + (10 + 2 * 90 + 3 * 900 + 4 * 9000 + 2 * 10_000) // 4),
        ({(1, 2): 10**5000}, "", 1 + (len(hex(10**5000)) + 14) // 4),
    ],
)
def test_text_and_estimate(content: Any, text: str, tokens: int) -> None:
    message = Message.user(content)
    assert (message.text, message.estimated_tokens) == (text, tokens)
    assert Message.user(content, tokens=99).estimated_tokens == 99


@pytest.mark.requirement("D21g")
def test_an_attachment_knows_its_size() -> None:
    assert Attachment(AttachmentType.FILE, "n", "m", "ü").size == 2
    assert Attachment(AttachmentType.FILE, "n", "m", b"abc").size == 3
    assert Attachment(AttachmentType.FILE, "n", "m", "ü", size=9).size == 9


@pytest.mark.requirement("C06d", "C06e", "D23a", "D23d", "D23e", "X20", "Z63")
def test_a_call_ends_with_a_result_or_an_error() -> None:
    done = call()
    done.complete("")
    assert (done.status, done.result) == ("completed", "")
    with pytest.raises(InvalidInputError, match="result"):
        done.complete(None)
    done.fail("timeout")
    assert (done.status, done.error) == ("failed", "timeout")


# -- conversations ---------------------------------------------------------------------------------


@pytest.mark.requirement("A11", "D13a", "D13b", "D13d", "D13h", "D68")
def test_a_new_conversation_is_empty_and_yet_there() -> None:
    conversation = Conversation("helper")
    assert (conversation.agent_id, len(conversation), conversation.is_empty(), conversation.archived) == (
        "helper",
        0,
        True,
        False,
    )
    assert conversation.last_message_at == conversation.created_at
    assert conversation
    assert uuid.UUID(conversation.id).version == 4
    assert conversation.id != Conversation("helper").id
    assert Conversation("helper", id="given").id == "given"


@pytest.mark.requirement("A11", "D14", "D15", "D69")
def test_messages_are_added_as_objects_and_as_dicts() -> None:
    conversation = Conversation().with_system_prompt("Be kind.")
    conversation.push({"role": "user", "content": "hi"})
    added = conversation.add_message(Message.assistant("hello"))
    assert conversation.messages[-1] is added
    assert conversation.message_count() == 3
    assert conversation.last_assistant_content() == "hello"
    assert conversation.total_tokens() == 3 + 1 + 2
    assert all(message.timestamp for message in conversation.messages)


@pytest.mark.requirement("D13g")
def test_the_last_message_is_the_newest_by_its_own_time() -> None:
    conversation = Conversation()
    for moment in (NOON, NOON + SECOND, NOON - SECOND):
        conversation.add_message(Message.user("x", timestamp=moment))
    assert conversation.last_message_at == NOON + SECOND


def test_a_conversation_has_its_own_list_of_messages() -> None:
    messages = [Message.user("x")]
    conversation = Conversation(messages=messages)
    plain = conversation.to_dict()
    conversation.add_message(Message.user("y"))
    assert (len(messages), len(plain["messages"])) == (1, 1)


@pytest.mark.requirement("D13c", "D16", "D70", "D71", "Z31")
@pytest.mark.parametrize(
    ("said", "title"),
    [
        (["Hello there"], "Hello there"),
        (["x" * 50], "x" * 50),
        (["ü" * 51], "ü" * 47 + "..."),
        (["🎲" * 60], "🎲" * 47 + "..."),
        ([" two\r\n\n lines "], "two lines"),
        (["", " \n", "third"], "third"),
        ([""], None),
        ([], None),
    ],
)
def test_auto_title(said: list[str], title: str | None) -> None:
    conversation = talk(Message.system("Be kind."), *map(Message.user, said))
    assert conversation.auto_title() == title
    assert conversation.title == title


def test_a_title_that_was_given_stays() -> None:
    assert talk(Message.user("x"), title="Mine").auto_title() == "Mine"


@pytest.mark.requirement("C06e", "D23a", "E01g", "X20", "Z61", "Z63")
def test_unanswered_calls_and_pairing() -> None:
    conversation = talk(asking("c1", "c2"), Message.tool_result("c2", "x"))
    assert [waiting.id for waiting in conversation.unanswered_calls()] == ["c1"]
    conversation.check_pairing()
    conversation.push(asking("c2"))
    assert [waiting.id for waiting in conversation.unanswered_calls()] == ["c1", "c2"]
    conversation.push(Message.tool_result("c9", "x"))
    with pytest.raises(InvalidInputError, match=r"^messages\[3\]\.tool_call_id is 'c9'"):
        conversation.check_pairing()


# -- what a model is shown -------------------------------------------------------------------------


@pytest.mark.requirement("A14")
def test_the_window_has_the_system_first_then_the_newest_that_fit() -> None:
    late = Message.system("late", tokens=5)
    conversation = talk(sized(1, "a"), sized(9, "b"), late, sized(3, "c"), sized(2, "d"), max_context_tokens=10)
    assert contents(conversation.context_window()) == ["late", "c", "d"]
    assert contents(conversation.context_window(15)) == ["late", "c", "d"], "what is older than what did not fit stays out"
    assert contents(conversation.context_window(20)) == ["late", "a", "b", "c", "d"]
    assert contents(conversation.context_window(0)) == ["late"]
    assert len(Conversation(messages=conversation.messages).context_window()) == 5


def test_a_window_never_parts_a_result_from_its_call() -> None:
    asked = asking("c1", "c2")
    asked.tokens = 1
    conversation = talk(
        sized(1, "a"), asked, Message.tool_result("c1", "r1", tokens=1), sized(1, "between"),
        Message.tool_result("c2", "r2", tokens=1), Message.tool_result("lost", "orphan", tokens=1), sized(1, "b"),
    )  # fmt: skip
    assert contents(conversation.context_window(4)) == ["b"]
    assert contents(conversation.context_window(5)) == [None, "r1", "between", "r2", "b"]
    assert contents(conversation.context_window()) == ["a", None, "r1", "between", "r2", "b"]


def test_sliding_leaves_the_newest_that_fit_most_of_the_budget() -> None:
    conversation = talk(Message.system("s", tokens=1), *(sized(1, str(n)) for n in range(20)))
    assert contents(conversation.compact(budget=10)) == ["s", "15", "16", "17", "18", "19"]
    assert contents(conversation.compact(budget=0)) == ["s", "19"]
    assert len(conversation.compact()) == 21


def test_snipped_calls_leave_a_note() -> None:
    failed = Message.tool_result("c2", "x" * 1000, metadata={"is_error": True})
    answered = [asking("c1", "c2", content="let me see"), Message.tool_result("c1", "x" * 1000), failed]
    silent = [asking("c3"), Message.tool_result("c3", "y")]
    conversation = talk(*answered, asking("open"), *silent, Message.user("next"))
    before = conversation.to_dict()
    shown = conversation.compact("snip_tool_results", keep_recent=1)
    assert contents(shown) == ["let me see", "[tool search: ok]", "[tool search: failed]", None, "[tool search: ok]", "next"]
    assert [len(message.tool_calls) for message in shown] == [0, 0, 0, 1, 0, 0]
    assert conversation.compact("snip_tool_results", keep_recent=7) == conversation.messages
    assert conversation.to_dict() == before


@pytest.mark.parametrize(
    "content", [[{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}], {"plan": [1]}, [{"type": []}], 7]
)
def test_what_was_said_beside_snipped_calls_stays_whatever_it_is(content: Any) -> None:
    conversation = talk(asking("c1", content=content), Message.tool_result("c1", "r"), Message.user("next"))
    assert contents(conversation.compact("snip_tool_results", keep_recent=1)) == [content, "[tool search: ok]", "next"]


@pytest.mark.parametrize("content", [None, "", [], [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "c1"}]])
def test_what_is_nothing_without_its_calls_goes_with_them(content: Any) -> None:
    conversation = talk(asking("c1", content=content), Message.tool_result("c1", "r"), Message.user("next"))
    assert contents(conversation.compact("snip_tool_results", keep_recent=1)) == ["[tool search: ok]", "next"]


def test_a_summary_stands_for_what_is_older() -> None:
    conversation = talk(sized(1, "a"), Message.system("s"), asking("c1"), Message.tool_result("c1", "r"), sized(1, "b"))
    shown = conversation.compact("summarize", keep_recent=2, summary="They met.")
    assert contents(shown) == ["s", "[conversation summary]: They met.", None, "r", "b"]
    assert len(conversation.compact("summarize", keep_recent=2)) == 5
    assert len(conversation.compact("summarize", keep_recent=4, summary="x")) == 5


def test_layers_summarize_only_if_snipping_was_not_enough() -> None:
    conversation = talk(sized(50, "a"), asking("c1"), Message.tool_result("c1", "r", tokens=900), sized(1, "b"))
    layered = {"strategy": "layered", "keep_recent": 1, "summary": "They met."}
    assert contents(conversation.compact(budget=200, **layered)) == ["a", "[tool search: ok]", "b"]  # type: ignore[arg-type]
    assert contents(conversation.compact(budget=50, **layered)) == ["[conversation summary]: They met.", "b"]  # type: ignore[arg-type]
    assert conversation.needs_compaction(budget=1000)
    assert not conversation.needs_compaction(budget=2000)
    assert not conversation.needs_compaction()


def test_unknown_strategies_and_budgets_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="sliding_window, snip_tool_results, summarize, layered"):
        Conversation().compact("magic")
    with pytest.raises(InvalidInputError, match="budget"):
        Conversation().context_window(-1)


# -- agents ----------------------------------------------------------------------------------------


@pytest.mark.requirement("D02a", "D02b", "D02c", "D06a", "D07", "D66")
def test_an_agent_begins_at_version_one() -> None:
    agent = AgentState("a1", "Helper", "model-1")
    assert (agent.agent_id, agent.name, agent.agent_type, agent.version) == ("a1", "Helper", "model-1", 1)
    assert agent.modified_at == agent.created_at


@pytest.mark.requirement("D04b", "D06b", "D09", "D10", "D11", "D67")
def test_an_agents_own_state_is_set_and_asked_for() -> None:
    agent = AgentState("a1", "Helper", "model-1", created_at=NOON)
    agent.set_state("n", 42)
    assert (agent.get_state("n"), agent.get_state("missing")) == (42, None)
    assert agent.modified_at > agent.created_at


def test_what_the_vault_knows_is_not_written() -> None:
    conversation, agent = Conversation(), AgentState("a1", "Helper", "model-1")
    conversation.known, agent.known = "id", 7
    assert "known" not in conversation.to_dict().keys() | agent.to_dict().keys()
    assert Conversation.from_dict({**conversation.to_dict(), "known": "id"}).known is None


def test_calls_of_a_system_message_can_be_snipped() -> None:
    held = Message.system("s", tool_calls=[{"id": "c1", "name": "search", "arguments": {}}])
    conversation = talk(held, Message.tool_result("c1", "found"), Message.user("next"))
    assert contents(conversation.compact("snip_tool_results", keep_recent=1))[-1] == "next"


def test_tool_calls_count_as_tokens() -> None:
    for arguments in ({"text": "x" * 4000}, {"x" * 4000: None}, {"rows": [1000] * 1000}):
        call = {"id": "c", "name": "write", "arguments": arguments}
        assert Message.assistant("", tool_calls=[call]).estimated_tokens > 1000
    done = ToolCall("c", "read", {}, result=[1000] * 1000, status=ToolCallStatus.COMPLETED)
    assert Message.assistant("", tool_calls=[done]).estimated_tokens > 1000


def test_a_message_put_into_the_list_by_hand_counts_for_the_last_time() -> None:
    conversation = Conversation("helper", created_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    late = Message.user("hi")
    conversation.messages.append(late)
    assert conversation.to_dict()["last_message_at"] == late.timestamp
