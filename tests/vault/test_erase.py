"""Erasing a subject: its threads, their forks, and every byte of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from savegame import Conversation, Message
from savegame.errors import Busy, InvalidInputError
from savegame.model import ThreadKey
from savegame.vault import Vault
from tests.vault.conftest import Opener


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def threads_of(vault: Vault) -> list[str]:
    return [info.id for info in vault.threads()]


def test_erase_takes_the_threads_of_a_subject_and_leaves_the_others(vault: Vault) -> None:
    for thread_id, subjects in (("a", ["ann"]), ("b", ["bob"]), ("both", ["ann", "bob"]), ("nobody", [])):
        thread = vault.thread(thread_id)
        thread.save({"n": 1})
        if subjects:
            thread.attach_subject(*subjects)
    assert vault.thread("both").subjects() == ["ann", "bob"]
    erased = vault.erase("ann")
    assert (erased.threads, erased.complete) == (("a", "both"), True)
    assert threads_of(vault) == ["b", "nobody"]
    assert vault.erase("ann").threads == ()


def test_erase_takes_what_was_forked_before_and_after(vault: Vault) -> None:
    """Also when the source, or the checkpoint that it was forked at, is gone by then."""
    source = vault.thread("source")
    source.save({"n": 1})
    early = source.fork("forked before")
    source.attach_subject("ann")
    source.fork("forked after")
    early.fork("fork of a fork")
    early.save({"n": 2})
    early.prune(keep=1)
    vault.thread("bystander").save({})
    assert vault.erase("ann").threads == ("fork of a fork", "forked after", "forked before", "source")
    assert threads_of(vault) == ["bystander"]

    again = vault.thread("again")
    again.save({"n": 1})
    again.attach_subject("ann")
    again.fork("left over")
    again.delete()
    assert vault.erase("ann").threads == ("left over",)


def test_a_fork_made_before_is_found_when_its_source_is_gone(vault: Vault) -> None:
    source = vault.thread("source")
    source.save({"n": 1})
    source.fork("fork")
    source.attach_subject("ann")
    assert vault.thread("fork").subjects() == ["ann"]
    source.delete()
    assert vault.erase("ann").threads == ("fork",)


def test_a_thread_made_anew_is_not_taken_for_the_former(vault: Vault) -> None:
    """Neither a source of the same name nor a fork of the same name."""
    for name, subject in (("t", "ann"), ("t", "bob")):
        thread = vault.thread(name)
        thread.save({"whose": subject})
        thread.attach_subject(subject)
        if subject == "ann":
            thread.fork("of ann")
            thread.delete()
    assert vault.erase("bob").threads == ("t",)
    assert threads_of(vault) == ["of ann"]
    vault.thread("of ann").fork("again")
    vault.thread("again").delete()
    vault.thread("again").save({"whose": "nobody's"})
    assert vault.erase("ann").threads == ("of ann",)
    assert threads_of(vault) == ["again"]


def test_nothing_of_it_is_left_in_the_files(on_disk: Opener, tmp_path: Path) -> None:
    """Messages, ids, large values, keyframes, records, what repair set aside, the search index, the write-ahead log."""
    vault = on_disk()
    vault.thread("kept").save({"messages": [{"role": "user", "content": "the bystander"}]})
    conversation = Conversation("helper", id="chat of Zanzibar-Quux", title="Zanzibar-Quux")
    vault.save_agent({"agent_id": "helper", "name": "Helper", "agent_type": "scripted"})
    vault.save_conversation(conversation)
    vault.add_message(conversation.id, Message.user("Zanzibar-Quux " + "x" * 10_000))
    for number in range(200):
        vault.add_message(conversation.id, Message.user(f"Zanzibar-Quux {number}"))
    thread = vault.thread(conversation.id)
    thread.put_records({("note", "Zanzibar-Quux"): "Zanzibar-Quux"})
    thread.attach_subject("Zanzibar-Quux")
    thread.label("head", "Zanzibar-Quux")
    vault.checkpoint_agent("helper")
    assert [hit.thread_id for hit in vault.search("zanzibar")] == [conversation.id]
    with vault.connection() as db:
        db.execute("UPDATE keyframe SET sum = sum + 1")
    vault.repair()
    assert b"Zanzibar-Quux" in bytes_of(tmp_path)

    assert vault.erase("Zanzibar-Quux").complete

    assert b"Zanzibar-Quux" not in bytes_of(tmp_path)
    assert b"zanzibar" not in bytes_of(tmp_path).lower()
    assert threads_of(vault) == ["agent:helper", "kept"]
    assert vault.verify().ok
    assert [hit.thread_id for hit in vault.search("bystander")] == ["kept"]


def test_a_reader_that_still_looks_is_told_of(on_disk: Opener) -> None:
    """What it holds leaves the files later; the call says so."""
    vault = on_disk()
    vault.thread("a").save({"n": 1})
    vault.thread("a").attach_subject("ann")
    other = on_disk()
    with other.store._reading(snapshot=True) as db:  # type: ignore[attr-defined]
        db.execute("SELECT count(*) FROM frame").fetchall()
        erased = vault.erase("ann")
    assert (erased.threads, erased.complete) == (("a",), False)
    assert "somebody still reads" in erased.unreached[0]


def test_a_thread_that_is_being_worked_on_is_not_erased_by_halves(vault: Vault) -> None:
    for thread_id in ("a", "b"):
        vault.thread(thread_id).save({})
        vault.thread(thread_id).attach_subject("ann")
    vault.store.lease(ThreadKey(vault.namespace, "b"), "a run", 60_000_000)
    with pytest.raises(Busy):
        vault.erase("ann")
    assert threads_of(vault) == ["a", "b"]


def test_subjects_travel_with_a_copy(opened: Opener) -> None:
    source, target = opened("one.db"), opened("two.db")
    source.thread("a").save({})
    source.thread("a").attach_subject("ann")
    source.copy_to(target)
    assert target.thread("a").subjects() == ["ann"]


@pytest.mark.parametrize("subject", ["", "a\0b", "x" * 513])
def test_a_subject_is_a_name(vault: Vault, subject: str) -> None:
    with pytest.raises(InvalidInputError):
        vault.thread("a").attach_subject(subject)
    with pytest.raises(InvalidInputError):
        vault.erase(subject)
    with pytest.raises(InvalidInputError):
        vault.thread("a").attach_subject()
