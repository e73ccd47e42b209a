"""Defects of the strategies and the three stores of system A that must not be here, by number."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
from test_defects import Home, a_disk, a_home, a_lasting_one  # noqa: F401 - fixtures

import savegame
from savegame import Conversation, Event, InvalidInputError, Message, Retention, Strategy, Vault
from savegame.model import ThreadKey
from savegame.store import Rewrite, StoreChange
from savegame.stores.memory import MemoryStore


def test_z07_every_n_saves_once_in_an_iteration() -> None:
    events = [(number, event) for number in range(1, 7) for event in ("llm_response", "tool_call", "tool_call", "iteration")]
    saved = [number for number, event in events if Strategy.every(3).should_save(number, event)]
    assert saved == [3, 6]


def test_z08_every_n_needs_a_number_and_begins_after_some_work() -> None:
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(InvalidInputError):
            Strategy.every(wrong)  # type: ignore[arg-type]
    assert not any(Strategy.every(1).should_save(0, event) for event in Event)


def test_z09_a_prune_counts_what_it_removed(home: Home) -> None:
    vault = home.open()
    for number in range(20):
        vault.thread("t").save({"n": number})
    assert vault.thread("t").prune(keep=2) == 18
    assert [entry.step for entry in vault.thread("t").history()] == [20, 19]
    assert (home.open().thread("t").prune(keep=2), home.open().thread("t").prune(keep=30)) == (0, 0)


class Overtaken(MemoryStore):
    """Lets somebody else go first, once, when something is to be removed."""

    others: Callable[[], object] | None = None

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        if self.others and any(isinstance(change, Rewrite) for change in changes):
            others, self.others = self.others, None
            others()
        return super().commit(changes)


def test_z09_nothing_is_counted_twice() -> None:
    store = Overtaken()
    for number in range(20):
        Vault(store).thread("t").save({"n": number})
    counts: list[int] = []
    store.others = lambda: counts.append(Vault(store).thread("t").prune(keep=4))
    counts.append(Vault(store).thread("t").prune(keep=2))
    assert sum(counts) == 18


def test_z10_no_agent_overwrites_another_ones_checkpoint(home: Home) -> None:
    vault = home.open()
    vault.thread("mine", agent="me").save({"whose": "mine"}, id="one")
    with pytest.raises(savegame.AlreadyExistsError, match="'mine'"):
        vault.thread("theirs", agent="them").save({"whose": "theirs"}, id="one")
    assert (vault.load("one").agent_id, vault.load("one").state) == ("me", {"whose": "mine"})
    assert vault.load("one").metadata == {}


@pytest.mark.parametrize("disk", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
def test_z10_what_the_database_promises_is_stated(disk: Home, durability: str, synchronous: int) -> None:
    with disk.open(durability=durability).connection() as db:
        assert db.execute("PRAGMA synchronous").fetchall() == [(synchronous,)]
        assert db.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        nullable = db.execute("SELECT name FROM pragma_table_info('frame') WHERE NOT \"notnull\" AND NOT pk").fetchall()
        assert {name for (name,) in nullable} == {"space", "note", "note_sum"}
        assert db.execute("SELECT count(*) FROM pragma_foreign_key_list('frame')").fetchall() == [(0,)]


def test_z60_an_id_leads_to_one_checkpoint(home: Home) -> None:
    vault, other = home.open(), home.open(namespace="other")
    for tenant in (vault, other):
        tenant.thread(tenant.namespace).save({"of": tenant.namespace}, id="one")
    assert (vault.load("one").state, other.load("one").state) == ({"of": "default"}, {"of": "other"})
    copy = vault.thread("default").fork("copy")
    assert copy.head != "one"
    assert vault.load("one").thread_id == "default"


@pytest.mark.parametrize("disk", ["file"], indirect=True)
def test_z60_a_link_to_a_thread_is_refused_by_name(disk: Home) -> None:
    disk.open().thread("t").save({"n": 1}, id="one")
    disk.close()
    (journal,) = disk.path.rglob("journal.jsonl")
    os.symlink(journal.parent, journal.parent.with_name("f" * 32))
    vault = disk.open()
    assert vault.load("one").thread_id == "t"
    with pytest.raises(savegame.UnsupportedError, match="symbolic link"):
        list(vault.threads())


def test_z61_a_new_process_goes_on_where_the_old_one_was(home: Home) -> None:
    home.open().thread("t", agent="helper").save({"n": 1}, iteration=41, status="in_progress")
    vault = home.open(retention=Retention(max_checkpoints=2))
    thread = vault.thread("t")
    found = thread.latest()
    assert found is not None
    assert (found.agent_id, found.iteration) == ("helper", 41)
    for number in (42, 43):
        thread.save({"n": number}, iteration=number)
    assert [entry.iteration for entry in thread.history()] == [43, 42]  # retention needs nobody to call it
    assert [info.agent_id for info in vault.threads()] == ["helper"]


def test_z61_a_save_that_fails_raises(home: Home) -> None:
    vault = home.open()
    vault.store.lease(ThreadKey(vault.namespace, "t"), "somebody", 60_000_000)
    with pytest.raises(savegame.Busy):
        vault.thread("t").save({"n": 1})
    assert vault.thread("t").latest() is None


def test_z61_a_call_without_its_result_is_told(home: Home) -> None:
    vault = home.open()
    conversation = Conversation("helper", messages=[Message.user("refund me")])
    conversation.add_message(Message.assistant("", tool_calls=[{"id": "c1", "name": "refund", "arguments": {}}]))
    vault.save_conversation(conversation)
    found = home.open().load_conversation(conversation.id)
    assert found is not None
    assert [call.id for call in found.unanswered_calls()] == ["c1"]
    vault.add_message(conversation.id, Message.tool_result("c1", "done"))
    found = home.open().load_conversation(conversation.id)
    assert found is not None
    assert found.unanswered_calls() == []
