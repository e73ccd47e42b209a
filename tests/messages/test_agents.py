"""Agents: kept by id with a version, one consistent moment in a checkpoint, restored whole or not at all."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import threading
import time
from pathlib import Path

import pytest
from addresses import Opener
from homes import Home

import savegame
from savegame import AgentState, Conversation, Message, Retention
from savegame.errors import Busy, CheckpointNotFound, ConflictError, CorruptionError, InvalidInputError, NotFoundError
from savegame.model import ThreadKey
from savegame.testing.faults import Child, Mouth
from savegame.vault import Vault


def an_agent(agent_id: str = "helper") -> AgentState:
    return AgentState(agent_id, f"the {agent_id}", "scripted")


def said(vault: Vault, conversation_id: str) -> list[str]:
    found = vault.load_conversation(conversation_id)
    return [] if found is None else [message.text for message in found.messages]


def begun(vault: Vault, agent_id: str, *texts: str) -> str:
    conversation = Conversation(agent_id)
    for text in texts:
        conversation.add_message(Message.user(text))
    vault.save_conversation(conversation)
    return conversation.id


# -- agents ----------------------------------------------------------------------------------------


@pytest.mark.requirement("D29", "D41", "D44", "D47", "D77", "D80")
def test_an_agent_comes_back_as_it_was_saved(vault: Vault) -> None:
    agent = an_agent()
    agent.set_state("answer", 42)
    vault.save_agent(agent)
    found = vault.load_agent("helper")
    assert found == agent
    assert found is not None
    assert found.get_state("answer") == 42
    assert vault.load_agent("nobody") is None


def test_a_plain_dict_is_as_good(vault: Vault) -> None:
    vault.save_agent({"agent_id": "a", "name": "A", "agent_type": "t"})
    assert vault.load_agent("a") == AgentState.from_dict(vault.load_agent("a").to_dict())  # type: ignore[union-attr]


@pytest.mark.requirement("D07", "Z37")
def test_the_version_goes_up_with_every_save(vault: Vault) -> None:
    agent = an_agent()
    for version in (1, 2, 3):
        vault.save_agent(agent)
        assert (agent.version, vault.load_agent("helper").version) == (version, version)  # type: ignore[union-attr]
    vault.save_agent(an_agent())  # a new object replaces what is there, as its id says
    assert [info.version for info in vault.agents()] == [4]


@pytest.mark.requirement("D07", "Z37")
def test_a_loaded_agent_does_not_overwrite_what_somebody_saved_since(vault: Vault) -> None:
    vault.save_agent(an_agent())
    mine, theirs = vault.load_agent("helper"), vault.load_agent("helper")
    assert mine is not None
    assert theirs is not None
    theirs.set_state("by", "them")
    vault.save_agent(theirs)
    mine.set_state("by", "me")
    with pytest.raises(ConflictError, match="was saved or restored"):
        vault.save_agent(mine)
    vault.save_agent(mine, force=True)
    assert vault.load_agent("helper").get_state("by") == "me"  # type: ignore[union-attr]


def test_a_checkpoint_in_between_is_no_conflict(vault: Vault) -> None:
    vault.save_agent(an_agent())
    mine = vault.load_agent("helper")
    assert mine is not None
    vault.checkpoint_agent("helper", "before")
    vault.save_agent(mine)


@pytest.mark.requirement("D29", "D37", "D41", "D77", "Z39")
def test_agents_are_listed_by_id_and_threads_with_such_names_are_not_taken_for_them(vault: Vault) -> None:
    for agent_id in ("b", "../a", "x.json", "é", "agent:a", "n" * 512):
        vault.save_agent(an_agent(agent_id))
    vault.thread("agent:impostor").save({"agent": "no"})
    vault.thread("zzz").save({})
    assert {info.id for info in vault.agents()} == {"b", "../a", "x.json", "é", "agent:a", "n" * 512}
    assert vault.load_agent("n" * 512) is not None
    with pytest.raises(InvalidInputError, match="does not hold agent"):
        vault.load_agent("impostor")
    with pytest.raises(InvalidInputError, match="does not hold agent"):
        vault.save_agent(an_agent("impostor"))


@pytest.mark.requirement("D05", "Z36")
def test_active_conversations_are_told_by_the_conversations(vault: Vault) -> None:
    vault.save_agent(an_agent())
    kept, archived = begun(vault, "helper", "hi"), begun(vault, "helper", "old")
    begun(vault, "somebody else", "hi")
    shelved = vault.load_conversation(archived)
    assert shelved is not None
    shelved.archived = True
    vault.save_conversation(shelved)
    assert vault.load_agent("helper").active_conversations == [kept]  # type: ignore[union-attr]


@pytest.mark.requirement("D29", "D41", "D48", "D50", "D51", "D56", "D59", "D77", "D88", "X17", "Z42")
def test_deleting_an_agent_takes_all_that_belongs_to_it(vault: Vault) -> None:
    for agent_id in ("helper", "other"):
        vault.save_agent(an_agent(agent_id))
    mine, theirs = begun(vault, "helper", "mine"), begun(vault, "other", "theirs")
    vault.thread("a plain thread", agent="helper").save({"n": 1})
    before = vault.checkpoint_agent("helper")
    later = begun(vault, "helper", "born later")
    vault.restore_agent(before.id)
    assert vault.delete_agent("helper") is True
    assert vault.delete_agent("helper") is False
    assert vault.load_agent("helper") is None
    assert [info.id for info in vault.conversations()] == [theirs]
    assert vault.store.heads(vault.namespace) == [
        (key, head) for key, head in vault.store.heads(vault.namespace) if key not in (mine, later, "a plain thread")
    ]
    assert vault.find(before.id) is None


@pytest.mark.requirement("D48", "Z42")
def test_an_agent_is_not_deleted_by_halves(vault: Vault) -> None:
    vault.save_agent(an_agent())
    ids = sorted(begun(vault, "helper", "hi") for _ in range(3))
    vault.store.lease(ThreadKey(vault.namespace, ids[1]), "a run", 60_000_000)
    with pytest.raises(Busy):
        vault.delete_agent("helper")
    assert sorted(info.id for info in vault.conversations("helper")) == ids
    assert vault.load_agent("helper") is not None


# -- checkpoints and restores ----------------------------------------------------------------------


@pytest.mark.requirement("D25a", "D25c", "D25e", "D31", "D58", "D81", "X18", "Z30", "Z38")
def test_a_restore_brings_back_one_moment(vault: Vault) -> None:
    agent = an_agent()
    vault.save_agent(agent)
    first, second = begun(vault, "helper", "one"), begun(vault, "helper", "two")
    kept = vault.checkpoint_agent("helper", "before the trip", description="for the record")
    agent.set_state("mood", "odd")
    vault.save_agent(agent)
    vault.add_message(first, {"role": "user", "content": "later"})
    third = begun(vault, "helper", "born later")

    restored = vault.restore_agent(kept.id)

    assert (restored.agent_id, restored.get_state("mood"), restored.version) == ("helper", None, 1)
    assert (said(vault, first), said(vault, second)) == (["one"], ["two"])
    assert vault.load_conversation(third) is None
    assert sorted(info.id for info in vault.conversations("helper")) == sorted((first, second))
    assert third not in [info.id for info in vault.threads()]
    branches = vault.thread(third).history(branches=True)
    assert [entry.load().state["messages"][0]["content"] for entry in branches] == ["born later"]
    assert [entry.label for entry in vault.agent_checkpoints("helper", limit=10**30)] == [None, "before the trip"]
    assert vault.verify().ok


@pytest.mark.requirement("D25e", "D43d", "D58", "X18", "Z30")
def test_a_restore_can_be_undone(vault: Vault) -> None:
    vault.save_agent(an_agent())
    first = begun(vault, "helper", "one")
    kept = vault.checkpoint_agent("helper", "start")
    vault.add_message(first, {"role": "user", "content": "later"})
    second = begun(vault, "helper", "born later")
    vault.restore_agent(kept.id)
    undo = next(vault.agent_checkpoints("helper"))
    assert undo.kind == "recovery"
    vault.restore_agent(undo.id)
    assert (said(vault, first), said(vault, second)) == (["one", "later"], ["born later"])


def test_after_a_restore_work_goes_on_and_the_other_branch_stays(vault: Vault) -> None:
    vault.save_agent(an_agent())
    first = begun(vault, "helper", "one")
    kept = vault.checkpoint_agent("helper", "start")
    vault.add_message(first, Message.user("left"))
    vault.restore_agent(kept.id)
    vault.add_message(first, Message.user("right"))
    assert said(vault, first) == ["one", "right"]
    assert [entry.step for entry in vault.thread(first).history(branches=True)] == [2, 2, 1]


@pytest.mark.requirement("D25f", "D52", "Z32")
def test_a_checkpoint_names_one_moment_while_others_write(vault: Vault) -> None:
    """Each writer adds to the left conversation, then to the right one: the right one is never ahead."""
    vault.save_agent(an_agent())
    left, right = begun(vault, "helper", "start"), begun(vault, "helper", "start")
    done, rounds = threading.Event(), []

    def write() -> None:
        while not done.is_set():
            vault.add_message(left, Message.user("x"))
            vault.add_message(right, Message.user("x"))
            rounds.append(1)

    made = [vault.checkpoint_agent("helper")]
    writer = threading.Thread(target=write)
    writer.start()
    try:
        while len(made) < 20 or len(rounds) < 20:
            made.append(vault.checkpoint_agent("helper"))
        made.append(vault.checkpoint_agent("helper"))  # all that was written may have been during the one before
    finally:
        done.set()
        writer.join()
    counts = []
    for checkpoint in made:
        heads = [vault.load(head) for head in checkpoint.load().state["heads"].values()]
        counts.append({head.thread_id: len(head.state["messages"]) for head in heads})
    assert all(0 <= count[left] - count[right] <= 1 for count in counts)
    assert counts[-1][left] > counts[0][left]


@pytest.mark.requirement("D25d", "D53", "D55", "D60")
def test_automatic_checkpoints_are_not_labelled(vault: Vault) -> None:
    """So that retention may thin them out, and they never push out a named one."""
    vault.save_agent(an_agent())
    named = vault.checkpoint_agent("helper", "by hand")
    automatic = vault.checkpoint_agent("helper", "Auto checkpoint 1", kind="automatic")
    assert (named.label, automatic.label, automatic.description) == ("by hand", None, "Auto checkpoint 1")
    assert vault.checkpoint_agent("helper", "x", kind="nightly").kind == "nightly"
    with pytest.raises(InvalidInputError, match="a kind must not be empty"):
        vault.checkpoint_agent("helper", "x", kind="")


@pytest.mark.requirement("D50", "D51", "D56", "D59", "X17")
def test_what_is_not_there_is_said_and_nothing_changes(vault: Vault) -> None:
    with pytest.raises(NotFoundError, match="Agent not found: 'nobody'"):
        vault.checkpoint_agent("nobody")
    with pytest.raises(CheckpointNotFound, match="Checkpoint not found: 'nothing'"):
        vault.restore_agent("nothing")
    saved = vault.save_agent(an_agent())
    with pytest.raises(InvalidInputError, match="was not made by checkpoint_agent"):
        vault.restore_agent(saved.id)


def test_a_conversation_that_was_erased_since_stops_the_restore_unless_told_otherwise(vault: Vault) -> None:
    vault.save_agent(an_agent())
    kept, gone = begun(vault, "helper", "kept"), begun(vault, "helper", "gone")
    checkpoint = vault.checkpoint_agent("helper")
    vault.add_message(kept, Message.user("later"))
    vault.thread(gone).attach_subject("ann")
    assert vault.erase("ann").emptied == (checkpoint.id,)
    with pytest.raises(CheckpointNotFound, match="1 of the 2 conversations"):
        vault.restore_agent(checkpoint.id)
    assert said(vault, kept) == ["kept", "later"]
    vault.restore_agent(checkpoint.id, skip_missing=True)
    assert said(vault, kept) == ["kept"]


@pytest.mark.requirement("Z30")
def test_a_held_conversation_stops_the_whole_restore(vault: Vault) -> None:
    vault.save_agent(an_agent())
    ids = [begun(vault, "helper", "one") for _ in range(3)]
    checkpoint = vault.checkpoint_agent("helper")
    for conversation_id in ids:
        vault.add_message(conversation_id, Message.user("later"))
    vault.store.lease(ThreadKey(vault.namespace, sorted(ids)[2]), "a run", 60_000_000)
    with pytest.raises(Busy):
        vault.restore_agent(checkpoint.id)
    assert [said(vault, conversation_id) for conversation_id in ids] == [["one", "later"]] * 3


@pytest.mark.requirement("D57", "D88", "Z30")
def test_a_damaged_conversation_stops_the_whole_restore(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk()
    vault.save_agent(an_agent())
    first, second = begun(vault, "helper", "one"), begun(vault, "helper", "the text that will be damaged")
    checkpoint = vault.checkpoint_agent("helper")
    for conversation_id in (first, second):
        vault.add_message(conversation_id, Message.user("later"))
    vault.close()
    path = tmp_path / "vault.db"
    data = path.read_bytes()
    assert data.count(b"will be damaged") == 1
    path.write_bytes(data.replace(b"will be damaged", b"has been damage"))
    with savegame.open(path) as again:
        with pytest.raises(CorruptionError, match="Checkpoint integrity check failed"):
            again.restore_agent(checkpoint.id)
        assert said(again, first) == ["one", "later"]


def test_namespaces_keep_agents_apart(opened: Opener) -> None:
    here = opened()
    here.save_agent(an_agent())
    if here.store.scheme == "memory":
        there = Vault(here.store, namespace="there")
    else:
        there = opened(namespace="there")
    there.save_agent(an_agent("theirs"))
    checkpoint = here.checkpoint_agent("helper")
    assert [info.id for info in there.agents()] == ["theirs"]
    assert there.load_agent("helper") is None
    with pytest.raises(CheckpointNotFound):
        there.restore_agent(checkpoint.id)
    assert there.delete_agent("helper") is False
    assert there.delete_checkpoint(checkpoint.id) is False
    assert here.load_agent("helper") is not None


# -- what checkpoints of an agent name -------------------------------------------------------------


def test_pruning_leaves_what_an_agents_checkpoint_names(vault: Vault) -> None:
    vault.save_agent(an_agent())
    chat = begun(vault, "helper", "one")
    vault.add_message(chat, Message.user("two"))
    named = vault.checkpoint_agent("helper", "here")
    for number in range(5):
        vault.add_message(chat, Message.user(str(number)))
    assert vault.thread(chat).prune(keep=1) == 5
    vault.restore_agent(named.id)
    assert said(vault, chat) == ["one", "two"]
    for checkpoint in list(vault.agent_checkpoints("helper")):
        vault.delete_checkpoint(checkpoint.id)
    vault.add_message(chat, Message.user("three"))
    assert vault.thread(chat).prune(keep=1) == 2
    assert vault.verify().ok


def test_retention_leaves_what_an_agents_checkpoint_names(opened: Opener) -> None:
    vault = opened(retention=Retention(max_checkpoints=3))
    vault.save_agent(an_agent())
    chat = begun(vault, "helper", "one")
    named = vault.checkpoint_agent("helper", "here")
    for number in range(300):
        vault.thread(chat).update(set={"scratch": str(number) * 1000})
    assert vault.stats().checkpoints < 200  # what is hidden was freed on the way
    vault.restore_agent(named.id)
    assert said(vault, chat) == ["one"]


def test_autosave_leaves_what_an_agents_checkpoint_names(vault: Vault) -> None:
    vault.save_agent(an_agent())
    thread = vault.thread("task", agent="helper")
    thread.save({"n": 0}, kind="automatic")
    named = vault.checkpoint_agent("helper", "here")
    for number in range(1, 5):
        with thread.autosave(lambda number=number: {"n": number}, dt.timedelta(hours=1), keep=1):
            pass
    vault.restore_agent(named.id)
    assert vault.thread("task").state() == {"n": 0}


# -- going back and on -----------------------------------------------------------------------------


def test_an_agent_that_was_restored_can_be_saved(vault: Vault) -> None:
    vault.save_agent(an_agent())
    named = vault.checkpoint_agent("helper", "here")
    vault.save_agent(an_agent())
    restored = vault.restore_agent(named.id)
    restored.set_state("back", True)
    vault.save_agent(restored)
    assert vault.load_agent("helper").get_state("back") is True  # type: ignore[union-attr]


def test_a_version_that_comes_round_again_is_not_taken_for_the_same(vault: Vault) -> None:
    vault.save_agent(an_agent())
    named = vault.checkpoint_agent("helper", "here")
    vault.save_agent(an_agent())
    mine = vault.load_agent("helper")
    assert mine is not None
    vault.restore_agent(named.id)
    theirs = vault.load_agent("helper")
    assert theirs is not None
    theirs.set_state("precious", 1)
    vault.save_agent(theirs)
    assert theirs.version == mine.version == 2
    with pytest.raises(ConflictError):
        vault.save_agent(mine)
    assert vault.load_agent("helper").get_state("precious") == 1  # type: ignore[union-attr]


def test_a_restore_that_fails_leaves_nothing_behind(vault: Vault) -> None:
    vault.save_agent(an_agent())
    chat = begun(vault, "helper", "one")
    named = vault.checkpoint_agent("helper", "here")
    vault.add_message(chat, Message.user("two"))
    vault.store.lease(ThreadKey(vault.namespace, chat), "a run", 60_000_000)
    for _ in range(3):
        with pytest.raises(Busy):
            vault.restore_agent(named.id)
    assert [entry.id for entry in vault.agent_checkpoints("helper")] == [named.id]


def test_skip_missing_leaves_a_conversation_whose_point_is_gone_where_it_is(vault: Vault) -> None:
    vault.save_agent(an_agent())
    chat = begun(vault, "helper", "one")
    named = vault.checkpoint_agent("helper", "here")
    vault.add_message(chat, Message.user("two"))
    vault.thread(chat).prune(keep=1, include_labelled=True)
    vault.restore_agent(named.id, skip_missing=True)
    assert said(vault, chat) == ["one", "two"]


def test_a_conversation_that_changed_its_agent_goes_back_to_the_former(vault: Vault) -> None:
    for agent_id in ("a", "b"):
        vault.save_agent(an_agent(agent_id))
    chat = begun(vault, "a", "one")
    named = vault.checkpoint_agent("a", "here")
    moved = vault.load_conversation(chat)
    assert moved is not None
    moved.agent_id = "b"
    vault.save_conversation(moved)
    assert [info.id for info in vault.conversations("b")] == [chat]
    assert vault.thread(chat).prune(keep=1) == 0  # the checkpoint of its former agent keeps it
    vault.restore_agent(named.id)
    assert ([info.id for info in vault.conversations("a")], list(vault.conversations("b"))) == ([chat], [])


def test_the_agent_goes_on_along_the_line(vault: Vault) -> None:
    """Also for a save that does not name it: checkpoints, usage and forks know whose work it is."""
    vault.save_agent(an_agent())
    chat = begun(vault, "helper", "one")
    assert vault.add_message(chat, Message.user("two")).agent_id == "helper"
    vault.thread(chat).fork("copy")
    assert sorted(info.id for info in vault.conversations("helper")) == sorted((chat, "copy"))
    assert [usage.key for usage in vault.usage(by="agent")] == ["helper"]
    vault.delete_agent("helper")
    assert list(vault.threads()) == []


def test_two_agents_never_share_a_thread(vault: Vault) -> None:
    """The id of a very long agent's thread is a hash; an agent of that name is another one."""
    vault.save_agent(an_agent("n" * 512))
    (thread,) = vault.threads()
    with pytest.raises(InvalidInputError, match="does not hold agent"):
        vault.save_agent(an_agent(thread.id.removeprefix("agent:")))
    assert vault.load_agent("n" * 512) is not None


def test_what_somebody_else_did_since_is_not_seen_as_a_wrong_call(opened: Opener) -> None:
    """An update fits the head as it is, not as this vault remembers it."""
    mine = opened()
    theirs = Vault(mine.store)
    mine.thread("t").save({"x": 1})
    theirs.thread("t").save({"x": []}, force=True)
    assert mine.thread("t").update(append={"x": [1]}).state == {"x": [1]}


def test_a_save_that_is_rolled_back_leaves_the_object_usable(in_database: Opener) -> None:
    vault = in_database()
    agent, conversation = an_agent(), Conversation("helper")
    vault.save_agent(agent)
    vault.save_conversation(conversation)

    def save_and_fail() -> None:
        with vault.connection():
            vault.save_agent(agent)
            vault.save_conversation(conversation)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_and_fail()
    vault.save_agent(agent)
    vault.save_conversation(conversation)


@pytest.mark.requirement("Z30")
def test_a_checkpoint_restores_its_own_agent_only(home: Home) -> None:
    vault = home.open()
    vault.save_agent(an_agent())
    kept = vault.checkpoint_agent("helper")
    vault.thread("agent:helper").fork("agent:impostor", at=kept)
    forged = vault.thread("agent:impostor").latest()
    assert forged is not None
    with pytest.raises(InvalidInputError, match="nothing was restored"):
        vault.restore_agent(forged.id)


def restore_for_ever(mouth: Mouth, url: str, one: str, other: str) -> None:
    with savegame.open(url, durability="process") as vault:
        for checkpoint_id in itertools.cycle((one, other)):
            vault.restore_agent(checkpoint_id)
            mouth.say("restored")


@pytest.mark.requirement("Z30")
def test_a_restore_that_is_killed_happened_or_not(lasting: Home) -> None:
    vault = lasting.open()
    vault.save_agent(an_agent())
    names = [begun(vault, "helper", "one") for _ in range(30)]
    short = vault.checkpoint_agent("helper").id
    for name in names:
        vault.add_message(name, Message.user("more"))
    long = vault.checkpoint_agent("helper").id
    for _ in range(6):
        with Child(restore_for_ever, lasting.url, short, long) as child:
            child.next()
            time.sleep(random.uniform(0, 0.03))
        reader = lasting.open()
        assert [said(reader, name) for name in names] in ([["one"]] * 30, [["one", "more"]] * 30)
    assert lasting.open().verify().ok


@pytest.mark.requirement("D08", "D34", "D36", "D88")
def test_agents_conversations_and_checkpoints_are_there_after_a_restart(lasting: Home) -> None:
    vault = lasting.open()
    agent = AgentState("helper", "Test", "gpt-4", "Be kind.", ["search"], metadata={"k": "v"})
    agent.config = {f"option {number}": number / 2 for number in reversed(range(50))}
    agent.set_state("counter", 42)
    vault.save_agent(agent)
    conversation_id = begun(vault, "helper", "Hello")
    checkpoint = vault.checkpoint_agent("helper", "before")
    lasting.close()
    again = lasting.open()
    loaded = again.load_agent("helper")
    assert loaded is not None
    assert loaded.active_conversations == [conversation_id]
    loaded.active_conversations = []
    assert (loaded, list(loaded.config)) == (agent, list(agent.config))
    assert said(again, conversation_id) == ["Hello"]
    assert again.restore_agent(checkpoint.id).get_state("counter") == 42
