"""Defects of the agents, conversations and automatic checkpoints of system D that must not be here, by number."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import threading
import time
from typing import Any

import pytest
from test_defects import IN_FILES, ROOT, Home, a_disk, a_home, a_lasting_one, in_threads  # noqa: F401 - fixtures

import savegame
from savegame import (
    AgentState,
    AlreadyExistsError,
    Busy,
    ConflictError,
    Conversation,
    CorruptionError,
    InvalidInputError,
    InvalidState,
    Message,
    Vault,
)
from savegame.model import ThreadKey
from savegame.testing.faults import Child, Mouth

OFTEN = dt.timedelta(milliseconds=1)
HOUR = dt.timedelta(hours=1)
PATIENCE_S = 60.0


def begin(vault: Vault, agent_id: str = "helper", *conversations: str) -> AgentState:
    """An agent with conversations of one message each, which says the conversation's id."""
    agent = AgentState(agent_id, agent_id, "scripted")
    vault.save_agent(agent)
    for conversation_id in conversations:
        vault.save_conversation(Conversation(agent_id, id=conversation_id, messages=[Message.user(f"I am {conversation_id}")]))
    return agent


def lengths(vault: Vault, *conversations: str) -> list[int]:
    found = [vault.load_conversation(conversation_id) for conversation_id in conversations]
    return [0 if conversation is None else len(conversation) for conversation in found]


# -- sums ------------------------------------------------------------------------------------------


def test_z28_a_digest_is_a_strong_one(home: Home) -> None:
    saved = home.open().thread("t").save({"n": 1})
    assert len(bytes.fromhex(saved.digest)) == 32
    source = "".join(path.read_text(encoding="utf-8").lower() for path in (ROOT / "src").rglob("*.py"))
    assert "md5" not in source


def test_z29_the_order_of_keys_breaks_no_sum(home: Home) -> None:
    vault = home.open()
    orders = [dict.fromkeys(keys, math.nan) for keys in itertools.permutations("abc")]
    agent = begin(vault)
    agent.custom_state.update({f"{number}": order for number, order in enumerate(orders)})
    vault.save_agent(agent)
    kept = vault.checkpoint_agent("helper")
    again = home.open(cache_bytes=0)
    assert again.verify().ok
    found = again.restore_agent(kept.id)
    assert [list(found.get_state(f"{number}")) for number in range(6)] == [list(order) for order in orders]
    assert math.isnan(found.get_state("0")["a"])


def test_z30_a_restore_is_one_moment_and_can_be_undone(home: Home) -> None:
    vault = home.open()
    begin(vault, "helper", "one", "two")
    kept = vault.checkpoint_agent("helper", "before")
    vault.add_message("one", Message.user("later"))
    vault.save_conversation(Conversation("helper", id="born later"))
    vault.restore_agent(kept.id)
    assert sorted(info.id for info in vault.conversations("helper")) == ["one", "two"]
    assert lengths(vault, "one", "two", "born later") == [1, 1, 0]
    undo = next(vault.agent_checkpoints("helper"))
    assert undo.kind == "recovery"
    vault.restore_agent(undo.id)
    assert lengths(vault, "one", "two") == [2, 1]
    assert vault.load_conversation("born later") is not None


def test_z30_a_restore_that_cannot_be_finished_is_not_begun(home: Home) -> None:
    names = ["c1", "c2", "c3"]
    vault = home.open()
    begin(vault, "helper", *names)
    kept = vault.checkpoint_agent("helper")
    for name in names:
        vault.add_message(name, Message.user("more"))
    vault.store.lease(ThreadKey(vault.namespace, "c3"), "a run", 60_000_000)
    with pytest.raises(Busy):
        vault.restore_agent(kept.id)
    assert lengths(vault, *names) == [2, 2, 2]


def test_z30_a_checkpoint_restores_its_own_agent_only(home: Home) -> None:
    vault = home.open()
    begin(vault, "helper")
    kept = vault.checkpoint_agent("helper")
    vault.thread("agent:helper").fork("agent:impostor", at=kept)
    forged = vault.thread("agent:impostor").latest()
    assert forged is not None
    with pytest.raises(InvalidInputError, match="nothing was restored"):
        vault.restore_agent(forged.id)


def test_z30_the_sums_cover_the_description_too(lasting: Home) -> None:
    vault = lasting.open()
    begin(vault)
    kept = vault.checkpoint_agent("helper", description="why it was made")
    lasting.damage(b"why it was made")
    vault = lasting.open()
    assert not vault.verify().ok
    with pytest.raises(CorruptionError):
        vault.restore_agent(kept.id)


def restore_for_ever(mouth: Mouth, url: str, one: str, other: str) -> None:
    with savegame.open(url, durability="process") as vault:
        for checkpoint_id in itertools.cycle((one, other)):
            vault.restore_agent(checkpoint_id)
            mouth.say("restored")


def test_z30_a_restore_that_is_killed_happened_or_not(lasting: Home) -> None:
    names = [f"c{number}" for number in range(30)]
    vault = lasting.open()
    begin(vault, "helper", *names)
    short = vault.checkpoint_agent("helper").id
    for name in names:
        vault.add_message(name, Message.user("more"))
    long = vault.checkpoint_agent("helper").id
    for _ in range(6):
        with Child(restore_for_ever, lasting.url, short, long) as child:
            child.next()
            time.sleep(random.uniform(0, 0.03))
        assert lengths(lasting.open(), *names) in ([1] * 30, [2] * 30)
    assert lasting.open().verify().ok


@pytest.mark.parametrize(
    ("texts", "title"),
    [
        (["😀" * 60], "😀" * 47 + "..."),
        (["é" * 50], "é" * 50),
        (["two\nlines"], "two lines"),
        (["", " \n", "the first that says something"], "the first that says something"),
        ([""], None),
    ],
)
def test_z31_a_title_is_one_line_of_whole_characters(texts: list[str], title: str | None) -> None:
    conversation = Conversation("helper", messages=[Message.user(text) for text in texts])
    assert conversation.auto_title() == title


def test_z32_a_checkpoint_names_one_moment(home: Home) -> None:
    """Whoever writes adds to the left conversation, then to the right one: the right one is never ahead."""
    vault = home.open()
    begin(vault, "helper", "left", *(f"middle {number}" for number in range(60)), "right")
    done = threading.Event()

    def write() -> None:
        try:
            for _ in range(60):
                vault.add_message("left", Message.user("x"))
                vault.add_message("right", Message.user("x"))
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    made = []
    while not done.is_set():
        made.append(vault.checkpoint_agent("helper"))
    writer.join()
    left, right = ({entry.id: entry.step for entry in vault.thread(name).history()} for name in ("left", "right"))
    assert (len(left), len(right)) == (61, 61)
    for checkpoint in made:
        heads = checkpoint.load().state["heads"]
        ahead = sum(left.get(head, 0) for head in heads) - sum(right.get(head, 0) for head in heads)
        assert 0 <= ahead <= 1


# -- automatic checkpoints -------------------------------------------------------------------------


class Source:
    """A state that a test changes; `asked` is set whenever an autosave takes it."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.asked = threading.Semaphore(0)

    def __call__(self) -> Any:
        state = self.state
        self.asked.release()
        if isinstance(state, Exception):
            raise state
        return state

    def wait(self, times: int = 3) -> None:
        """Until it was asked for so often from now on: whatever began before has ended."""
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(times):
            assert self.asked.acquire(timeout=PATIENCE_S)


def test_z33_automatic_checkpoints_are_few_and_all_different(home: Home) -> None:
    thread = home.open().thread("t")
    thread.save({"n": -1})
    source = Source({"n": 0})
    with thread.autosave(source, OFTEN, keep=2) as autosave:
        for number in range(5):
            source.state = {"n": number}
            source.wait()
    assert (autosave.saved, autosave.errors) == (5, ())
    assert [entry.load().state["n"] for entry in thread.history()] == [4, 3, -1]


def test_z34_automatic_checkpoints_hide_no_error(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Exception] = []
    thread = home.open().thread("t")
    source = Source({"n": object()})
    with thread.autosave(source, OFTEN, on_error=told.append) as autosave:
        source.wait()
        assert thread.latest() is None
        source.state = OSError("the listing failed")
        source.wait()
        source.state = {"n": 1}
        source.wait()
    assert {type(error) for error in autosave.errors} == {type(error) for error in told} == {InvalidState, OSError}
    assert "an automatic save failed" in caplog.text
    assert [entry.load().state for entry in thread.history()] == [{"n": 1}]


def test_z35_an_autosave_is_one_loop_that_ends_when_told(home: Home) -> None:
    vault = home.open()
    thread = vault.thread("t")
    with pytest.raises(InvalidInputError):
        thread.autosave(lambda: 1, dt.timedelta(0))
    source = Source(0)
    autosave = thread.autosave(source, HOUR)
    with pytest.raises(AlreadyExistsError, match="already has a running autosave"):
        vault.thread("t").autosave(source, OFTEN)
    assert source.asked.acquire(timeout=PATIENCE_S)
    source.state = 1
    autosave.stop()  # within the hour, and without one save more
    assert not autosave.running
    assert thread.state() == 0
    with thread.autosave(source, OFTEN) as again:
        source.wait()
    assert (again.saved, thread.state()) == (1, 1)


def test_z35_an_autosave_ends_with_its_vault(lasting: Home) -> None:
    vault = lasting.open()
    source = Source(0)
    autosave = vault.thread("t").autosave(source, OFTEN)
    source.wait()
    vault.close()
    autosave._worker.join(PATIENCE_S)
    assert not autosave.running
    assert isinstance(autosave.last_error, savegame.ClosedError)


# -- agents and conversations ----------------------------------------------------------------------


def test_z36_active_conversations_are_those_that_are_open(home: Home) -> None:
    vault = home.open()
    agent = begin(vault, "helper", "one", "two")
    agent.active_conversations = ["made up"]
    vault.save_agent(agent)
    vault.save_conversation(Conversation("helper", id="shelved", archived=True))
    vault.delete_conversation("one")
    found = vault.load_agent("helper")
    assert found is not None
    assert found.active_conversations == ["two"]


def test_z37_a_version_is_raised_and_checked(home: Home) -> None:
    vault = home.open()
    begin(vault)
    mine, theirs = vault.load_agent("helper"), home.open().load_agent("helper")
    assert mine is not None
    assert theirs is not None
    vault.save_agent(theirs)
    assert theirs.version == 2
    with pytest.raises(ConflictError, match="was saved or restored"):
        vault.save_agent(mine)


def test_z38_checkpoints_of_an_agent_are_listed_newest_first_and_can_be_looked_at(home: Home) -> None:
    vault = home.with_clock(lambda: 1_700_000_000_000_000)
    agent = begin(vault)
    for number in range(4):
        agent.set_state("n", number)
        vault.save_agent(agent)
        vault.checkpoint_agent("helper", f"number {number}")
    found = list(vault.agent_checkpoints("helper"))
    assert [entry.label for entry in found] == ["number 3", "number 2", "number 1", "number 0"]
    assert found[0].load().state["agent"]["custom_state"] == {"n": 3}


def test_z39_ids_are_listed_as_they_are(home: Home) -> None:
    vault = home.open()
    names = ["x", "x.json", "x.json.json", ".json"]
    for name in names:
        begin(vault, name, f"of {name}")
    assert [info.id for info in vault.agents()] == sorted(names)
    assert [[info.id for info in vault.conversations(name)] for name in names] == [[f"of {name}"] for name in names]


def test_z40_one_agents_listing_reads_nothing_of_others(lasting: Home) -> None:
    vault = lasting.open()
    begin(vault, "mine", "one")
    begin(vault, "theirs", "two")
    lasting.damage(b"I am two")
    vault = lasting.open()
    assert [(info.id, info.message_count) for info in vault.conversations("mine")] == [("one", 1)]
    assert [hit.thread_id for hit in vault.search("I am", agent="mine")] == ["one"]
    assert vault.checkpoint_agent("mine").step == 2


def test_z41_statistics_are_the_same_everywhere_and_true(home: Home) -> None:
    vault = home.open()
    begin(vault, "helper", "one")
    vault.save_conversation(Conversation("never saved", id="orphan"))
    vault.checkpoint_agent("helper")
    stats = vault.stats()
    assert (stats.threads, stats.checkpoints, stats.agents, stats.conversations, stats.messages) == (3, 4, 1, 2, 1)
    before = stats.total_bytes
    vault.add_message("one", Message.user("x" * 100_000))
    assert vault.stats().total_bytes > before
    if home.store in IN_FILES:
        shared = [path for path in home.files() if path.name.endswith("-shm")]  # memory that processes share, not data
        assert vault.stats().total_bytes == sum(path.stat().st_size for path in home.files() if path not in shared)


def test_z42_an_agent_is_deleted_whole(disk: Home) -> None:
    vault = disk.open()
    begin(vault, "helper", "one", "two")
    vault.checkpoint_agent("helper")
    disk.damage(b"I am two")
    vault = disk.open()
    vault.store.lease(ThreadKey(vault.namespace, "one"), "a run", 60_000_000)
    with pytest.raises(Busy):
        vault.delete_agent("helper")
    assert lengths(vault, "one") == [1]
    held = vault.store.thread(ThreadKey(vault.namespace, "one"))
    assert held is not None
    assert held.lease is not None
    vault.store.renew(held.key, held.lease.epoch, 0)
    assert vault.delete_agent("helper")
    assert (vault.stats().threads, list(vault.agents()), list(vault.conversations())) == (0, [], [])
    disk.close()
    stored = b"".join(path.read_bytes() for path in disk.files())
    assert b"I am one" not in stored
    assert b"I am tw" not in stored


def test_z43_messages_added_at_once_are_all_there(home: Home) -> None:
    vault = home.open()
    begin(vault, "helper", "c")
    in_threads(lambda who: [home.open().add_message("c", Message.user(f"{who}")) for _ in range(8)], 4)
    assert lengths(vault, "c") == [33]
    said = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    vault.add_message("c", Message.user("from the future", timestamp=said))
    vault.add_message("c", Message.user("now"))
    assert [info.last_message_at for info in vault.conversations()] == [said]


def test_z64_a_clock_before_1970_is_a_clock(home: Home) -> None:
    vault = home.with_clock(lambda: -1_000_000)
    vault.thread("t").save({"n": 1})
    assert vault.thread("t").load().created_at == dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    assert Message.user("x", timestamp=-1).timestamp == dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
