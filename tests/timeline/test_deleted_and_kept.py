"""A thread that was deleted while an agent's checkpoint names it: gone for everybody, until that checkpoint is restored."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import Opener

import savegame
from savegame import AgentState, Conversation, Erased, Message, Retention
from savegame.errors import AlreadyExistsError, Busy, CheckpointNotFound, InvalidInputError, NotFoundError
from savegame.model import ThreadKey
from savegame.timeline.companions import CHILD
from savegame.timeline.graveyard import YARDS, yards
from savegame.vault import Vault
from tests.timeline.test_erase import bytes_of

SECRET = "Zanzibar-Quux"


def begun(vault: Vault, *names: str, agent: str = "helper") -> None:
    """An agent with conversations that hold something of every kind."""
    vault.save_agent(AgentState(agent, agent, "scripted"))
    for name in names:
        vault.save_conversation(Conversation(agent, id=name, messages=[Message.user(f"{SECRET} in {name}")]))
        vault.add_message(name, Message.assistant(f"{SECRET} " + "x" * 9000), id=f"chosen in {name}")
        thread = vault.thread(name)
        thread.tag("head", "important")
        thread.save({**thread.state(), "branch": True}, parent=1, label="a branch", tokens_used=5)
        thread.rewind(f"chosen in {name}")
        vault.add_message(name, Message.user("Fine."))
        thread.put_records({("note", "n"): SECRET})


def kept(vault: Vault) -> list[str]:
    """The threads that are deleted and kept."""
    spaces = yards(vault.rooms.engine, vault.namespace)
    return [thread_id for space in spaces for thread_id, _ in vault.store.heads(space)]


def shown(vault: Vault, name: str = "chat") -> object:
    """What a user sees of a thread."""
    thread = vault.thread(name)
    entries = [(entry.id, entry.step, entry.label, entry.tags, entry.digest) for entry in thread.history(branches=True)]
    states = [entry.load().state for entry in thread.history(branches=True)]
    return thread.state(), entries, states, [entry.id for entry in thread.history()], thread.records("note")


def test_it_is_gone(vault: Vault, opened: Opener, tmp_path: Path) -> None:
    begun(vault, "chat", "other")
    named = vault.checkpoint_agent("helper", "here")
    head = vault.thread("chat").latest()
    assert head is not None
    vault.thread("chat").attach_subject("ann")
    assert vault.delete_conversation("chat") is True
    assert kept(vault) == ["chat"]

    thread = vault.thread("chat")
    assert (thread.latest(), thread.state(), thread.step) == (None, None, 0)
    assert list(thread.history(branches=True)) == list(thread.noted()) == thread.subjects() == []
    assert thread.records("note") == {}
    for ref in (head.id, "a branch", 1, "head"):
        with pytest.raises(NotFoundError):
            thread.load(ref)
    with pytest.raises(CheckpointNotFound):
        vault.load(head.id)
    assert vault.find(head.id) is None
    assert vault.delete_checkpoint(head.id) is False
    assert [info.id for info in vault.threads()] == ["agent:helper", "other"]
    assert [info.id for info in vault.conversations()] == ["other"]
    assert vault.info("chat") is None
    assert [hit.thread_id for hit in vault.search(SECRET)] == ["other"]
    stats = vault.stats()
    assert (stats.threads, stats.conversations, stats.checkpoints) == (2, 1, 6)
    assert sum(usage.tokens_used for usage in vault.usage()) == 5
    report = vault.verify()
    assert (report.ok, report.threads, report.checkpoints) == (True, 2, 6)
    assert list(vault.runs()) == list(vault.stale()) == []
    assert thread.delete() is False
    other = opened("other.db")
    vault.copy_to(other)
    vault.export(tmp_path / "all.jsonl")
    told = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["thread"] for line in told if "thread" in line] == ["agent:helper", "other"]
    assert [thread_id for thread_id, _ in other.store.heads(other.namespace) if thread_id[:9] != "savegame:"] == [
        "agent:helper",
        "other",
    ]
    assert vault.restore_agent(named.id).agent_id == "helper"


@pytest.mark.requirement("D25f", "D58")
def test_a_restore_brings_it_back(vault: Vault) -> None:
    begun(vault, "chat", "other")
    before = shown(vault)
    named = vault.checkpoint_agent("helper", "here")
    vault.add_message("chat", Message.user("later"))
    vault.delete_conversation("chat")
    vault.delete_conversation("other")
    vault.restore_agent(named.id)
    assert sorted(info.id for info in vault.conversations("helper")) == ["chat", "other"]
    state, entries, _, line, records = shown(vault)  # type: ignore[misc]
    assert (state, line, records) == (before[0], before[3], before[4])  # type: ignore[index]
    assert [entry for entry in entries if entry in before[1]] == before[1]  # type: ignore[index]
    assert len(entries) == len(before[1]) + 1, "what came later is a branch"  # type: ignore[index]
    vault.add_message("chat", Message.user("and on"))
    assert [hit.thread_id for hit in vault.search("and on")] == ["chat"]
    assert kept(vault) == []
    assert vault.verify().ok


def test_what_no_checkpoint_names_is_freed_at_once(vault: Vault) -> None:
    begun(vault, "chat", "later", "plain")
    vault.thread("chat").delete()
    vault.checkpoint_agent("helper", "here")
    vault.save_conversation(Conversation("helper", id="later still"))
    vault.thread("no agent").save({})
    for name in ("later still", "no agent"):
        vault.thread(name).delete()
    assert kept(vault) == []
    vault.thread("later").delete()
    assert kept(vault) == ["later"]


def prune(vault: Vault) -> None:
    vault.thread("agent:helper").prune(keep=1, include_labelled=True)


def discard(vault: Vault) -> None:
    vault.thread("agent:helper").rewind(1, discard=True)


def thin(vault: Vault) -> None:
    with vault.autosave_agents(["helper"], every=dt.timedelta(hours=1), keep=1):
        pass


def keep_few(vault: Vault) -> None:
    few = Vault(vault.store, retention=Retention(max_checkpoints=1, keep_labelled=False))
    for number in range(300):
        few.thread("agent:helper").update(set={("agent", "scratch"): str(number) * 1000})


FREEING: dict[str, Callable[[Vault], object]] = {
    "delete_checkpoint": lambda vault: [vault.delete_checkpoint(entry.id) for entry in list(vault.agent_checkpoints("helper"))],
    "prune": prune,
    "discard": discard,
    "delete_agent": lambda vault: vault.delete_agent("helper"),
    "delete the thread": lambda vault: vault.thread("agent:helper").delete(),
    "thinned out": thin,
    "retention": keep_few,
}


@pytest.mark.parametrize("way", FREEING)
def test_it_is_freed_with_the_last_checkpoint_that_names_it(opened: Opener, tmp_path: Path, way: str) -> None:
    vault = opened()
    begun(vault, "chat")
    first = vault.checkpoint_agent("helper", "here", kind="automatic")
    vault.checkpoint_agent("helper", "again", kind="automatic")
    vault.search(SECRET)
    vault.delete_conversation("chat")
    vault.delete_checkpoint(first.id)
    assert kept(vault) == ["chat"]
    vault.save_agent(AgentState("helper", "helper", "scripted"))
    FREEING[way](vault)
    assert kept(vault) == []
    if vault.store.scheme in ("sqlite", "file"):
        assert SECRET.encode() not in bytes_of(tmp_path)
    assert vault.verify().ok


def test_every_agent_that_it_had_keeps_it(vault: Vault) -> None:
    begun(vault, "chat")
    vault.checkpoint_agent("helper", "of the first")
    begun(vault, agent="second")
    vault.thread("chat", agent="second").update(set={"title": "handed over"})
    named = vault.checkpoint_agent("second", "of the second")
    vault.delete_conversation("chat")
    vault.delete_agent("helper")
    assert kept(vault) == ["chat"]
    vault.restore_agent(named.id)
    assert [info.title for info in vault.conversations("second")] == ["handed over"]
    vault.delete_agent("second")
    assert kept(vault) == []


def test_an_agent_that_goes_leaves_what_another_one_names(vault: Vault) -> None:
    begun(vault, "chat")
    named = vault.checkpoint_agent("helper", "here")
    begun(vault, agent="second")
    vault.thread("chat", agent="second").update(set={"title": "handed over"})
    assert vault.delete_agent("second")
    assert kept(vault) == ["chat"]
    vault.restore_agent(named.id)
    assert [info.id for info in vault.conversations("helper")] == ["chat"]


def test_its_id_is_free(vault: Vault) -> None:
    """A new thread begins; a restore changes both for one another, and undoing that changes them back."""
    begun(vault, "chat")
    old = shown(vault)
    named = vault.checkpoint_agent("helper", "here")
    vault.delete_conversation("chat")
    begun(vault, "chat")
    new = shown(vault)
    assert [(entry.seq, entry.step) for entry in vault.thread("chat").history(newest_first=False)] == [(1, 1), (2, 2), (4, 3)]
    vault.restore_agent(named.id)
    assert shown(vault) == old
    assert kept(vault) == ["chat"]
    vault.restore_agent(next(vault.agent_checkpoints("helper")).id)
    assert shown(vault) == new
    vault.delete_conversation("chat")
    assert sorted(kept(vault)) == ["chat", "chat"], "both, with the same ids of checkpoints"
    vault.restore_agent(named.id)
    assert shown(vault) == old
    assert vault.verify().ok
    vault.delete_agent("helper")
    assert kept(vault) == []


def test_a_thread_of_somebody_else_under_that_id_is_kept_when_it_is_pushed_out(vault: Vault) -> None:
    begun(vault, "chat")
    named = vault.checkpoint_agent("helper", "here")
    vault.delete_conversation("chat")
    vault.thread("chat").save({"of": "somebody else"})
    vault.restore_agent(named.id)
    assert vault.thread("chat").state() != {"of": "somebody else"}
    vault.restore_agent(next(vault.agent_checkpoints("helper")).id)
    assert vault.thread("chat").state() == {"of": "somebody else"}


def test_a_restore_that_is_undone_deletes_again(vault: Vault) -> None:
    begun(vault, "chat")
    named = vault.checkpoint_agent("helper", "here")
    vault.delete_conversation("chat")
    vault.restore_agent(named.id)
    undo = next(vault.agent_checkpoints("helper"))
    vault.add_message("chat", Message.user("in between"))
    vault.restore_agent(undo.id)
    assert kept(vault) == ["chat"]
    assert list(vault.thread("chat").history(branches=True)) == []
    vault.restore_agent(next(vault.agent_checkpoints("helper")).id)
    assert vault.load_conversation("chat").messages[-1].text == "in between"  # type: ignore[union-attr]
    vault.thread("chat").delete()
    for entry in list(vault.agent_checkpoints("helper")):
        vault.delete_checkpoint(entry.id)
    assert kept(vault) == []


def test_child_threads_go_and_come_back_with_it(vault: Vault) -> None:
    begun(vault, "chat")
    vault.thread("chat/c", child_of="chat").save({"text": SECRET})
    vault.thread("chat/c/c", child_of="chat/c").put_records({("writes", "w"): SECRET})
    named = vault.checkpoint_agent("helper", "here")
    vault.thread("chat").delete()
    assert kept(vault) == ["chat", "chat/c", "chat/c/c"]
    vault.thread("chat").save({"another": True})
    vault.thread("chat/c", child_of="chat").save({"another": True})
    vault.restore_agent(named.id)
    assert vault.thread("chat/c").state() == {"text": SECRET}
    assert vault.thread("chat/c/c").records("writes") == {"w": SECRET}
    assert kept(vault) == ["chat", "chat/c"]
    assert list(vault.thread("chat").records(CHILD)) == ["chat/c"]
    vault.thread("chat").delete()
    assert sorted(kept(vault)) == ["chat", "chat", "chat/c", "chat/c", "chat/c/c"]
    vault.delete_agent("helper")
    assert kept(vault) == []


def test_a_child_that_is_named_stays_when_its_parent_goes(vault: Vault) -> None:
    begun(vault, "chat")
    vault.thread("top").save({})
    vault.thread("chat", child_of="top").update(set={"title": "a child"})
    named = vault.checkpoint_agent("helper", "here")
    vault.thread("top").delete()
    assert kept(vault) == ["chat"]
    vault.restore_agent(named.id)
    assert vault.load_conversation("chat") is not None
    assert [info.id for info in vault.threads()] == ["agent:helper", "chat"]


def test_an_erase_frees_it_and_says_which_checkpoints_it_emptied(opened: Opener, tmp_path: Path) -> None:
    vault = opened()
    begun(vault, "chat", "gone", "other")
    first, second = vault.checkpoint_agent("helper", "first"), vault.checkpoint_agent("helper", "second")
    for name in ("chat", "gone"):
        vault.thread(name).attach_subject("ann")
    vault.delete_conversation("gone")
    third = vault.checkpoint_agent("helper", "third")
    vault.delete_conversation("other")
    emptied = tuple(sorted((first.id, second.id, third.id)))
    assert vault.erase("ann", dry_run=True) == Erased(("chat", "gone"), (), emptied)
    assert vault.erase("ann") == Erased(("chat", "gone"), (), emptied)
    assert kept(vault) == ["other"]
    with pytest.raises(CheckpointNotFound, match="2 of the 3 conversations"):
        vault.restore_agent(second.id)
    vault.restore_agent(second.id, skip_missing=True)
    assert [info.id for info in vault.conversations()] == ["other"]
    vault.delete_agent("helper")
    if vault.store.scheme in ("sqlite", "file"):
        assert SECRET.encode() not in bytes_of(tmp_path)
    assert vault.erase("ann") == Erased((), ())


def test_links_lead_through_it(vault: Vault) -> None:
    """A subject that is attached later reaches it, and what derives from it; so does one by way of what is freed."""
    vault.thread("source").save({"text": SECRET})
    vault.thread("source").fork("chat")
    begun(vault)
    vault.thread("chat", agent="helper").update(set={"n": 1})
    vault.thread("chat").fork("fork")
    named = vault.checkpoint_agent("helper", "here")
    vault.thread("chat").delete()
    vault.thread("source").attach_subject("ann")
    assert vault.thread("fork").subjects() == ["ann"]
    assert vault.erase("ann", dry_run=True).threads == ("chat", "fork", "source")
    vault.restore_agent(named.id)
    assert vault.thread("chat").subjects() == ["ann"]
    assert vault.erase("ann", dry_run=True).threads == ("chat", "fork", "source")
    vault.thread("chat").delete()
    vault.delete_agent("helper")
    assert vault.erase("ann") == Erased(("source",), ()), "the fork was the agent's, too"


def test_a_fork_of_what_was_freed_is_reached(vault: Vault) -> None:
    vault.thread("source").save({"text": SECRET})
    vault.thread("source").fork("chat")
    vault.thread("chat").fork("fork")
    begun(vault)
    vault.thread("chat", agent="helper").update(set={"n": 1})
    named = vault.checkpoint_agent("helper", "here")
    vault.thread("chat").delete()
    vault.delete_checkpoint(named.id)
    assert kept(vault) == []
    vault.thread("source").attach_subject("ann")
    assert vault.erase("ann") == Erased(("fork", "source"), ())


def test_an_id_that_a_user_chose_again_is_in_nobodys_way(vault: Vault) -> None:
    begun(vault)
    heads = {}
    for name in ("first", "second"):
        vault.thread(name, agent="helper").save({"of": name}, id="chosen")
        heads[name] = vault.thread(name).save({"of": name, "n": 2}).id
        vault.checkpoint_agent("helper", name)
        assert vault.thread(name).delete()
    assert kept(vault) == ["first", "second"]
    for entry in list(vault.agent_checkpoints("helper")):
        vault.restore_agent(entry.id)
        assert [vault.load(heads[str(entry.label)]).state["of"]] == [entry.label]
        vault.thread(str(entry.label)).delete()
    vault.thread("third").save({}, id="chosen")
    with pytest.raises(AlreadyExistsError, match=r"cannot come back, nothing was changed: .*'chosen'"):
        vault.restore_agent(entry.id)
    assert vault.delete_checkpoint("chosen")
    vault.restore_agent(entry.id)


def test_who_works_on_it_is_not_disturbed(vault: Vault) -> None:
    begun(vault, "chat")
    named = vault.checkpoint_agent("helper", "here")
    key = ThreadKey(vault.namespace, "chat")
    lease = vault.store.lease(key, "a run", 60_000_000)
    with pytest.raises(Busy):
        vault.delete_conversation("chat")
    assert kept(vault) == []
    vault.store.renew(key, lease.epoch, 0)
    vault.delete_conversation("chat")
    vault.thread("chat").save({})
    vault.store.lease(key, "a run", 60_000_000)
    with pytest.raises(Busy):
        vault.restore_agent(named.id)
    assert vault.thread("chat").state() == {}


def test_what_retention_hides_stays_hidden(opened: Opener) -> None:
    vault = opened(retention=Retention(max_checkpoints=3))
    begun(vault)
    thread = vault.thread("chat", agent="helper")
    for number in range(6):
        thread.save({"n": number})
    named = vault.checkpoint_agent("helper", "here")
    before = [entry.id for entry in thread.history(branches=True)]
    assert len(before) == 3
    thread.delete()
    vault.restore_agent(named.id)
    assert [entry.id for entry in vault.thread("chat").history(branches=True)] == before


def test_damage_is_reported_and_stops_nobody(on_disk: Opener, caplog: pytest.LogCaptureFixture) -> None:
    vault = on_disk(cache_bytes=0)
    begun(vault, "chat", "other")
    named = vault.checkpoint_agent("helper", "here")
    vault.delete_conversation("chat")
    key = vault.store.find(yards(vault.rooms.engine, "default")[0], "chosen in chat")
    assert key is not None
    with vault.connection() as db:
        db.execute("UPDATE frame SET delta_sum = delta_sum + 1 WHERE id = 'chosen in chat'")
        db.execute("UPDATE frame SET delta_sum = delta_sum + 1 WHERE id = 'chosen in other'")
    problems = vault.verify().problems
    assert any(problem.thread_id == "chat" and "of a deleted thread" in problem.place for problem in problems)
    with pytest.raises(savegame.CorruptionError, match="nothing was changed"):
        vault.restore_agent(named.id)
    assert vault.delete_conversation("other") is True
    assert "'other' was deleted without a copy for its agents' checkpoints" in caplog.text
    assert kept(vault) == ["chat"]
    assert vault.repair().repaired
    assert vault.verify().ok
    assert vault.delete_agent("helper")
    assert kept(vault) == []


def test_in_the_other_colour(tmp_path: Path) -> None:
    async def brought_back() -> tuple[bool, object, list[str]]:
        async with savegame.open_async(tmp_path / "vault.db") as vault:
            await vault.save_agent(AgentState("helper", "helper", "scripted"))
            await vault.save_conversation(Conversation("helper", id="chat", messages=[Message.user("hi")]))
            named = await vault.checkpoint_agent("helper", "here")
            deleted = await vault.delete_conversation("chat")
            gone = await vault.load_conversation("chat")
            await vault.restore_agent(named.id)
            return deleted, gone, [info.id async for info in vault.conversations()]

    assert asyncio.run(brought_back()) == (True, None, ["chat"])


def test_no_vault_can_be_opened_on_what_is_kept() -> None:
    with pytest.raises(InvalidInputError, match="reserved for deleted threads"):
        savegame.open("memory:", namespace="default␟deleted␟1")


def test_no_listing_shows_what_notes_that_something_is_kept(vault: Vault) -> None:
    begun(vault, "chat")
    vault.checkpoint_agent("helper", "here")
    vault.delete_conversation("chat")
    assert YARDS not in [info.id for info in vault.threads()]
    assert vault.stats().threads == 1
