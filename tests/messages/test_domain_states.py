"""One conversation, one agent, whichever verb saved it and whichever verb loads it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass, field
from typing import Any

import pytest
from addresses import Opener

import savegame
from savegame import AgentState, Attachment, AttachmentType, Conversation, Message, Role, ToolCall, ToolCallStatus
from savegame.errors import AlreadyExistsError, ConflictError, InvalidInputError
from savegame.messages.locate import find_messages
from savegame.messages.transcript import read_message
from savegame.thread import Thread
from savegame.vault import Vault

TYPES = [None, Conversation]
CALL = {"id": "c1", "name": "find", "arguments": {"n": 1}}


def a_conversation(**more: Any) -> Conversation:
    conversation = Conversation("helper", id="talk", title="Refund", tags=["vip"], **more)
    conversation.add_message(Message.user("hello refund", attachments=[Attachment("code", "a.py", "text/x-python", "print()")]))
    conversation.add_message(Message.assistant("", tool_calls=[CALL]))
    conversation.add_message(Message.tool_result("c1", {"found": [1, 2.0, None]}))
    return conversation


def saved_by(verb: str, vault: Vault, conversation: Conversation) -> None:
    match verb:
        case "save_conversation":
            vault.save_conversation(conversation)
        case "save":
            vault.thread("talk").save(conversation)
        case "typed save":
            vault.thread("talk", type=Conversation).save(conversation)
        case "update":
            vault.thread("talk", agent="helper").update(set=conversation.to_dict())
        case "update with objects":
            plain = conversation.to_dict() | {"messages": conversation.messages}
            vault.thread("talk", agent="helper", type=Conversation).update(set=plain)
        case "modify":
            vault.thread("talk", type=Conversation).modify(lambda _: conversation)
        case "autosave":
            with vault.thread("talk").autosave(lambda: conversation, dt.timedelta(hours=1)) as saving:
                pass
            assert saving.errors == ()


VERBS = ["save_conversation", "save", "typed save", "update", "update with objects", "modify", "autosave"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_conversation_is_the_same_however_it_was_saved(vault: Vault, verb: str) -> None:
    conversation = a_conversation()
    saved_by(verb, vault, conversation)
    assert vault.thread("talk").state() == conversation.to_dict()
    assert vault.load_conversation("talk") == conversation
    typed = vault.thread("talk", type=Conversation)
    head = typed.latest()
    assert head is not None
    assert typed.state() == typed.load().state == head.state == next(typed.history()).load().state == conversation
    (info,) = vault.conversations("helper")
    assert (info.id, info.title, info.message_count, info.tags) == ("talk", "Refund", 3, ("vip",))
    assert [hit.thread_id for hit in vault.search("refund")] == ["talk"]
    added = vault.add_message("talk", Message.user("more"))
    assert len(typed.state().context_window()) == 4
    assert {change.path for change in typed.diff("head~1", added)} == {("last_message_at",), ("messages", 3)}


@pytest.mark.parametrize("cls", TYPES)
def test_what_is_saved_on_top_of_a_conversation_is_listed_as_one(vault: Vault, cls: type | None) -> None:
    vault.save_agent(AgentState("helper", "Helper", "chat"))
    thread = vault.thread("talk", type=cls)
    thread.save(a_conversation())
    for changed in (
        lambda: thread.update(append={"messages": [Message.user("one")]}),
        lambda: thread.update(set={"title": "Other"}, append={"messages": [{"role": "user", "content": "two"}]}),
        lambda: thread.save({**a_conversation().to_dict(), "plan": "x"}),
    ):
        changed()
        agent = vault.load_agent("helper")
        assert agent is not None
        assert agent.active_conversations == ["talk"]
        assert vault.stats().conversations == 1
    vault.thread("talk").save({"n": 1})
    assert vault.stats().conversations == 0
    assert list(vault.conversations()) == []


@pytest.mark.requirement("A07")
def test_details_of_a_save_go_along(vault: Vault) -> None:
    saved = vault.thread("talk").save(a_conversation(), iteration=3, metadata={"user": "u1"}, label="before", tags=["t"])
    assert (saved.iteration, saved.metadata, saved.label, saved.tags) == (3, {"user": "u1"}, "before", ("t",))
    assert saved.agent_id == "helper"
    found = vault.thread("talk", type=Conversation).load("before")
    assert (found.state, found.iteration) == (a_conversation_like(found.state), 3)


def a_conversation_like(found: Conversation) -> Conversation:
    return Conversation.from_dict(found.to_dict())


def test_a_retry_with_the_same_id_saves_once(vault: Vault) -> None:
    conversation = a_conversation()
    first = vault.thread("talk").save(conversation, id="turn-1")
    assert vault.thread("talk", type=Conversation).save(conversation, id="turn-1").id == first.id
    conversation.add_message(Message.user("more"))
    with pytest.raises(AlreadyExistsError):
        vault.thread("talk").save(conversation, id="turn-1")


def test_it_goes_on_in_a_run(vault: Vault) -> None:
    vault.thread("talk", type=Conversation).save(a_conversation())
    with vault.run("talk") as run:
        run.user("thanks")
        run.model(lambda messages: f"{len(messages)} messages")
        run.state["draft"] = Message.user("not sent")
        run.save()
    found = vault.load_conversation("talk")
    assert found is not None
    assert (found.last_assistant_content(), found.title) == ("4 messages", "Refund")
    assert found.extra["draft"].keys() == {"role", "content", "id", "timestamp"}


def test_a_typed_handle_can_have_tools_run_again(vault: Vault) -> None:
    tools = savegame.Toolbox()
    made: list[int] = []

    @tools.tool
    def find(n: int) -> str:
        made.append(n)
        return "found"

    replies = iter([{"role": "assistant", "content": None, "tool_calls": [CALL]}, "done"])
    with vault.run("talk", tools=tools) as run:
        run.user("hi")
        run.model(lambda _: next(replies))
        reply = run.checkpoint
        assert reply is not None
        run.tools()
    vault.thread("talk", type=Conversation).rewind(reply.id, rerun_tools=True)
    with vault.run("talk", tools=tools) as run:
        run.tools()
    assert made == [1, 1]


# -- other writers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", TYPES)
def test_a_conversation_that_was_loaded_expects_the_head_of_then(vault: Vault, cls: type | None) -> None:
    vault.save_conversation(a_conversation())
    mine = vault.load_conversation("talk")
    assert mine is not None
    vault.add_message("talk", Message.user("by another"))
    mine.add_message(Message.user("mine"))
    with pytest.raises(ConflictError):
        vault.thread("talk", type=cls).save(mine)
    vault.thread("talk", type=cls).save(mine, force=True)
    mine.add_message(Message.user("more"))
    vault.save_conversation(mine)  # it knows what it was saved as
    vault.thread("talk", type=cls).save(mine)
    assert vault.thread("talk", type=Conversation).state() == mine


def test_a_typed_state_expects_the_head_that_it_was_read_from(vault: Vault) -> None:
    vault.save_conversation(a_conversation())
    state = vault.thread("talk", type=Conversation).state()
    vault.add_message("talk", Message.user("by another"))
    with pytest.raises(ConflictError):
        vault.save_conversation(state)


def test_an_older_state_can_be_saved_again(vault: Vault) -> None:
    """As any other state: what was not read as the head expects nothing."""
    thread = vault.thread("talk", type=Conversation)
    first = thread.save(a_conversation())
    vault.add_message("talk", Message.user("a mistake"))
    fresh = vault.thread("talk", type=Conversation)
    for old in (fresh.load(first).state, next(iter(fresh.replay([first]))).state):
        fresh.save(old, force=False)
        assert len(fresh.state().messages) == 3
        fresh = vault.thread("talk", type=Conversation)
        vault.add_message("talk", Message.user("again"))


def test_a_conversation_in_a_thread_of_another_id_is_that_threads(vault: Vault) -> None:
    conversation = a_conversation()
    vault.save_conversation(conversation)
    known = conversation.known
    vault.thread("copy", type=Conversation).save(conversation)
    assert (conversation.id, conversation.known) == ("talk", known)
    copy = vault.load_conversation("copy")
    assert copy is not None
    assert (copy.id, copy.messages) == ("copy", conversation.messages)
    assert vault.thread("copy", type=Conversation).state() == copy
    assert sorted(info.id for info in vault.conversations()) == ["copy", "talk"]


def test_a_handle_for_another_agent_is_refused(vault: Vault) -> None:
    with pytest.raises(InvalidInputError, match="opened with agent='other', but what is saved belongs to agent 'helper'"):
        vault.thread("talk", agent="other").save(a_conversation())
    with pytest.raises(InvalidInputError, match="is the thread of an agent"):
        vault.thread("agent:helper").save(a_conversation())
    vault.thread("n").save({"n": 1})
    with pytest.raises(InvalidInputError, match="thread 'n' holds no conversation"):
        vault.thread("n", type=Conversation).state()
    vault.thread("none", type=Conversation).save(None)
    assert vault.thread("none", type=Conversation).state() is None


def test_an_autosave_writes_nothing_while_nothing_changes(vault: Vault) -> None:
    conversation, agent = a_conversation(), AgentState("helper", "Helper", "chat")
    for thread, state in ((vault.thread("talk"), conversation), (vault.thread("agent:helper", type=AgentState), agent)):
        for _ in range(2):
            with thread.autosave(lambda state=state: state, dt.timedelta(hours=1)) as saving:
                pass
            assert saving.errors == ()
        assert thread.step == 1


# -- agents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [None, AgentState])
def test_an_agent_is_the_same_however_it_was_saved(vault: Vault, cls: type | None) -> None:
    agent = AgentState("helper", "Helper", "chat", custom_state={"n": 1})
    thread = vault.thread("agent:helper", type=cls)
    saved = thread.save(agent, label="first", iteration=1)
    assert (saved.label, saved.agent_id, agent.version) == ("first", "helper", 1)
    assert vault.load_agent("helper") == agent
    assert vault.thread("agent:helper", type=AgentState).state() == agent
    assert [(info.id, info.version) for info in vault.agents()] == [("helper", 1)]
    vault.save_agent(agent)
    assert agent.version == 2
    vault.thread("agent:helper", type=cls).save(agent)
    assert [(info.id, info.version) for info in vault.agents()] == [("helper", 3)]
    mark = vault.checkpoint_agent("helper", "mark")
    thread = vault.thread("agent:helper", type=cls)
    thread.update(set={("agent", "custom_state", "n"): 2})
    assert [info.id for info in vault.agents()] == ["helper"]
    assert vault.load_agent("helper").custom_state == {"n": 2}  # type: ignore[union-attr]
    assert vault.restore_agent(mark.id).custom_state == {"n": 1}


def test_an_agent_that_was_loaded_expects_to_be_as_it_was(vault: Vault) -> None:
    vault.save_agent(AgentState("helper", "Helper", "chat"))
    mine, theirs = vault.load_agent("helper"), vault.thread("agent:helper", type=AgentState).state()
    assert mine is not None
    vault.save_agent(mine)
    with pytest.raises(ConflictError, match="agent 'helper' was saved or restored"):
        vault.thread("agent:helper").save(theirs)
    with pytest.raises(ConflictError):
        vault.save_agent(theirs)
    vault.thread("agent:helper").save(theirs, force=True)


def test_an_agent_in_another_thread_is_its_plain_data(vault: Vault) -> None:
    agent = AgentState("helper", "Helper", "chat", metadata={"team": "a"})
    vault.thread("notes", type=AgentState).save(agent)
    assert vault.thread("notes").state() == agent.to_dict()
    assert vault.thread("notes", type=AgentState).state() == agent
    assert (list(vault.agents()), vault.load_agent("helper"), agent.version) == ([], None, 1)
    with pytest.raises(InvalidInputError, match="thread 'agent:other' belongs to another agent than 'helper'"):
        vault.thread("agent:other").save(agent)


# -- inside other states ---------------------------------------------------------------------------


@dataclass
class Desk:
    """A state of the user's own."""

    chat: Conversation
    messages: list[Message] = field(default_factory=list)
    call: ToolCall | None = None


def test_domain_objects_inside_a_state_are_kept_as_plain_data(vault: Vault) -> None:
    call = ToolCall("c1", "find", {"n": 1}, status=ToolCallStatus.RUNNING)
    thread = vault.thread("desk")
    thread.save({"chat": a_conversation(), "messages": [Message(Role.USER, "hi", extra={"name": "Ann"})], "call": call})
    state = thread.state()
    assert state["chat"] == a_conversation_like(Conversation.from_dict(state["chat"])).to_dict()
    assert state["call"] == call.to_dict()
    assert state["messages"][0].keys() == {"role", "content", "id", "timestamp", "name"}
    found = vault.load_conversation("desk")
    assert found is not None
    assert (found.messages[0].text, found.messages[0].extra) == ("hi", {"name": "Ann"})


def test_classes_that_name_domain_types_get_objects_back(vault: Vault) -> None:
    desk = Desk(a_conversation(), [Message(Role.USER, "hi", extra={"name": "Ann"})], ToolCall("c1", "find", {}))
    desk.chat.known = "never written"
    thread = vault.thread("desk", type=Desk)
    thread.save(desk)
    thread.update(append={"messages": [Message.user("more")], ("chat", "messages"): [{"role": "user", "content": "plain"}]})
    found = thread.state()
    assert (found.call, found.messages[0], found.messages[1].text) == (desk.call, desk.messages[0], "more")
    assert found.chat.messages[:3] == desk.chat.messages
    assert len(found.chat.context_window()) == 4
    assert found.chat.known is None
    # Where such a class is registered, conversations are read and run as everywhere else.
    vault.save_conversation(a_conversation())
    vault.thread("talk").update(append={"messages": [Message.user("more")]})
    with vault.run("talk") as run:
        assert [message["role"] for message in run.messages] == ["user", "assistant", "tool", "user"]
        run.model(lambda _: "done")
    assert len(vault.load_conversation("talk").messages) == 5  # type: ignore[union-attr, arg-type]
    assert [read_message(message).role for message in find_messages(vault.thread("talk").state()) or ()][3:] == [
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    "value",
    [Message.user("hi"), ToolCall("c", "find", {}), Attachment(AttachmentType.CODE, "a.py", "text/x-python", "x")],
    ids=lambda value: type(value).__name__,
)
def test_any_domain_type_can_be_the_type_of_a_thread(vault: Vault, value: Any) -> None:
    vault.thread("one", type=type(value)).save(value)
    assert vault.thread("one").state() == value.to_dict()
    assert vault.thread("one", type=type(value)).state() == value


# -- what earlier versions stored ------------------------------------------------------------------


def fields_with_internals(value: Any) -> Any:
    """What earlier versions stored of an object without `type=`: every field, `extra` and `known` among them."""
    if dataclasses.is_dataclass(value):
        return {item.name: fields_with_internals(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, list):
        return [fields_with_internals(item) for item in value]
    return value.value if isinstance(value, (Role, AttachmentType, ToolCallStatus)) else value


def stored_with_internals(vault: Vault, thread_id: str, value: Any) -> Thread:
    thread = vault.thread(thread_id, agent="helper")
    thread.save(fields_with_internals(value))
    return thread


def stored_as_object(vault: Vault, thread_id: str, value: Any) -> Thread:
    """What earlier versions stored with `type=`: objects by the name of their class, with every field."""
    stand_ins: dict[type, type] = {}

    def stand_in(part: Any) -> Any:
        if not dataclasses.is_dataclass(part):
            return [stand_in(item) for item in part] if isinstance(part, list) else fields_with_internals(part)
        cls = type(part)
        names = [item.name for item in dataclasses.fields(part)]
        if cls not in stand_ins:
            stand_ins[cls] = dataclasses.make_dataclass(f"Old{cls.__name__}", names)
            vault.register(stand_ins[cls], name=cls.__name__)
        return stand_ins[cls](**{name: stand_in(getattr(part, name)) for name in names})

    thread = vault.thread(thread_id, agent="helper")
    thread.save(stand_in(value))
    return thread


@pytest.mark.parametrize("store", [stored_with_internals, stored_as_object])
@pytest.mark.parametrize("registered", [False, True])
def test_what_earlier_versions_stored_is_that_conversation(opened: Opener, store: Any, registered: bool) -> None:
    conversation = a_conversation(extra={"plan": "x"})
    conversation.known = "a checkpoint's id"
    writer = opened()
    store(writer, "talk", conversation)
    vault = Vault(writer.store)  # where nothing is registered
    if registered:
        vault.register(Desk)
    typed = vault.thread("talk", type=Conversation)
    assert vault.load_conversation("talk") == typed.state() == conversation
    assert [(info.id, info.message_count) for info in vault.conversations("helper")] == [("talk", 3)]
    vault.add_message("talk", Message.user("more"))
    assert len(typed.state().context_window()) == 4
    with vault.run("talk") as run:
        run.model(lambda messages: f"{len(messages)} messages")
    found = vault.load_conversation("talk")
    assert found is not None
    assert (found.last_assistant_content(), found.extra) == ("4 messages", {"plan": "x"})
    found.title = None
    vault.save_conversation(found)
    assert vault.load_conversation("talk") == found
    vault.thread("talk").save(found)
    assert vault.load_conversation("talk") == found
    assert not vault.thread("talk").state().keys() & {"extra", "known", "title"}


@pytest.mark.parametrize("store", [stored_with_internals, stored_as_object])
def test_an_agent_that_an_earlier_version_kept_as_an_object_is_that_agent(on_disk: Opener, store: Any) -> None:
    agent = AgentState("helper", "Helper", "chat", custom_state={"n": 1}, version=4)
    with on_disk() as writer:
        store(writer, "agent:helper", agent)
    vault = on_disk()
    assert vault.thread("agent:helper", type=AgentState).state() == vault.load_agent("helper") == agent
    found = vault.load_agent("helper")
    assert found is not None
    vault.save_agent(found)
    assert (found.version, vault.load_agent("helper")) == (5, found)
    assert vault.thread("agent:helper").state().keys() == {"agent"}
    assert [info.id for info in vault.agents()] == ["helper"]
