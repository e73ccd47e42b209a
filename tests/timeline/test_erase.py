"""Erasing a subject: its threads, their forks, and every byte of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from addresses import Opener

import savegame
from savegame import Conversation, Message
from savegame.errors import Busy, InvalidInputError, ThreadNotFound
from savegame.model import ThreadKey
from savegame.store import DeleteThread, PutRecord, StoreChange
from savegame.stores.memory import MemoryStore
from savegame.timeline.companions import FORK, MARK, SOURCE
from savegame.timeline.subjects import ROUNDS, Erased
from savegame.vault import Vault


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


def family(vault: Vault, *names: str) -> None:
    """Threads that were forked one from the other, and a bystander."""
    thread = vault.thread(names[0])
    thread.save({"text": "secret"})
    for name in names[1:]:
        thread = thread.fork(name)
    vault.thread("bystander").save({})


WHEN = ("before the forks", "before the delete", "after the delete")


@pytest.mark.parametrize("attached", WHEN)
@pytest.mark.parametrize("deleted", ["b", "c", "bc", "cb", "bcd"])
def test_forks_of_forks_are_found_when_what_is_between_is_gone(vault: Vault, deleted: str, attached: str) -> None:
    """A deleted thread hands its links on, one after the other in any order."""
    vault.thread("a").save({"text": "secret"})
    if attached == "before the forks":
        vault.thread("a").attach_subject("ann")
    family(vault, *"abcde")
    vault.thread("b" if "b" not in deleted else "e").fork("f")
    if attached == "before the delete":
        vault.thread("a").attach_subject("ann")
    for name in deleted:
        vault.thread(name).delete()
    if attached == "after the delete":
        vault.thread("a").attach_subject("ann")
    wanted = tuple(sorted(set("abcdef") - set(deleted)))
    assert vault.thread("e").subjects() == ["ann"]
    assert vault.erase("ann", dry_run=True) == Erased(wanted, ())
    assert vault.erase("ann") == Erased(wanted, ())
    assert threads_of(vault) == ["bystander"]


def test_an_agent_that_is_deleted_hands_the_links_of_its_threads_on(vault: Vault) -> None:
    """Also through several of its threads at once."""
    source = vault.thread("a")
    source.save({"text": "secret"})
    vault.save_agent({"agent_id": "helper", "name": "Helper", "agent_type": "scripted"})
    for name, before in (("b", "a"), ("c", "b")):
        vault.thread(before).fork(name)
        vault.thread(name, agent="helper").save({"text": "more"})
    vault.thread("c").fork("d")
    vault.thread("d", agent="other").save({"text": "secret still"})
    assert vault.delete_agent("helper")
    source.attach_subject("ann")
    assert vault.erase("ann").threads == ("a", "d")


def test_what_is_forked_from_a_fork_is_no_source_of_it(vault: Vault) -> None:
    """Links are handed on downwards only: neither the source nor its other forks are a fork's."""
    family(vault, *"abc")
    vault.thread("a").fork("other")
    vault.thread("b").delete()
    vault.thread("c").attach_subject("ann")
    assert vault.erase("ann").threads == ("c",)
    assert threads_of(vault) == ["a", "bystander", "other"]


@pytest.mark.parametrize("again", "abc")
def test_an_id_that_is_used_again_has_none_of_the_links(vault: Vault, again: str) -> None:
    """The new thread neither derives from anything nor does anything derive from it; what did before still does."""
    family(vault, *"abcd")
    vault.thread(again).delete()
    vault.thread(again).save({"text": "of somebody else"})
    vault.thread(again).attach_subject("bob")
    assert vault.erase("bob", dry_run=True).threads == (again,)
    first = min(set("abc") - {again})
    vault.thread(first).attach_subject("ann")
    assert vault.erase("ann").threads == tuple(sorted(set("abcd") - {again} - ({"a"} if first != "a" else set())))
    assert again in threads_of(vault)


def test_nothing_that_stays_names_what_was_deleted(on_disk: Opener, tmp_path: Path) -> None:
    """Neither its source nor its forks; erased by itself or deleted."""
    vault = on_disk(compress=False)
    family(vault, "source", "Zanzibar-Quux", "leaf")
    vault.thread("source").fork("Zanzibar-Erased").attach_subject("ann")
    vault.thread("leaf").prune(keep=1)
    vault.thread("Zanzibar-Quux").delete()
    vault.erase("ann")
    vault.thread("leaf").save({})
    vault.thread("leaf").prune(keep=1)
    assert vault.compact() is None
    assert b"Zanzibar" not in bytes_of(tmp_path)
    assert vault.verify().ok


class Meanwhile(MemoryStore):
    """Something else happens between what a verb has read and its commit, once."""

    act: Callable[[], object] | None = None

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        act, self.act = self.act, None
        if act is not None:
            act()
        return super().commit(changes)


def fork_what_goes(vault: Vault) -> None:
    with pytest.raises(ThreadNotFound):
        vault.thread("b").fork("new")


RACES: dict[str, tuple[Callable[[Vault], object], Callable[[Vault], object], str]] = {
    "forked while it is deleted": (
        lambda vault: vault.thread("b").delete(),
        lambda vault: vault.thread("b").fork("new"),
        "acd new",
    ),
    "its source is deleted, too": (
        lambda vault: vault.thread("c").delete(),
        lambda vault: vault.thread("b").delete(),
        "ad",
    ),
    "its fork is deleted, too": (
        lambda vault: vault.thread("b").delete(),
        lambda vault: vault.thread("c").delete(),
        "ad",
    ),
    "its source is re-created": (
        lambda vault: vault.thread("c").delete(),
        lambda vault: [vault.thread("b").delete(), vault.thread("b").save("another")],
        "ad",
    ),
    "its fork is re-created": (
        lambda vault: vault.thread("b").delete(),
        lambda vault: [vault.thread("c").delete(), vault.thread("c").save("another")],
        "ad",
    ),
    "deleted while it is forked": (
        lambda vault: fork_what_goes(vault),
        lambda vault: vault.thread("b").delete(),
        "acd",
    ),
    "re-created while it is forked": (
        lambda vault: vault.thread("b").fork("new"),
        lambda vault: [vault.thread("b").delete(), vault.thread("b").save("another")],
        "acd",
    ),
    "forked while a subject is attached": (
        lambda vault: vault.thread("a").attach_subject("ann"),
        lambda vault: vault.thread("d").fork("new"),
        "abcd new",
    ),
    "a subject is attached while it is forked": (
        lambda vault: vault.thread("d").fork("new"),
        lambda vault: vault.thread("a").attach_subject("ann"),
        "abcd new",
    ),
    "a fork is deleted while a subject is attached": (
        lambda vault: vault.thread("a").attach_subject("ann"),
        lambda vault: vault.thread("d").delete(),
        "abc",
    ),
}


@pytest.mark.parametrize("race", RACES)
def test_whoever_forks_attaches_or_deletes_meanwhile(race: str) -> None:
    act, other, wanted = RACES[race]
    store = Meanwhile()
    vault = Vault(store)
    family(vault, *"abcd")
    store.act = lambda: other(vault)
    act(vault)
    subjects = {thread_id: vault.thread(thread_id).subjects() for thread_id, _ in store.heads(vault.namespace)}
    vault.thread("a").attach_subject("ann")
    names = wanted.split()
    family_of_ann = tuple(sorted([*names[0], *names[1:]]))
    if "attached" in race:
        assert {name for name, found in subjects.items() if found} == set(family_of_ann)
    assert vault.erase("ann", dry_run=True).threads == family_of_ann
    assert {name for name, _ in store.heads(vault.namespace)} <= {"a", "b", "c", "d", "new", "bystander"}
    vault.thread("a").delete()
    assert vault.erase("ann").threads == family_of_ann[1:], "subjects were handed down, too"


def test_a_fork_that_is_made_while_its_source_is_erased_goes_too() -> None:
    store = Meanwhile()
    vault = Vault(store)
    family(vault, *"abc")
    vault.thread("a").attach_subject("ann")
    store.act = lambda: vault.thread("c").fork("new")
    assert vault.erase("ann").threads == ("a", "b", "c", "new")
    assert threads_of(vault) == ["bystander"]


def test_threads_that_keep_being_begun_are_told_of() -> None:
    class Restless(MemoryStore):
        begun = 0

        def commit(self, changes: Sequence[StoreChange]) -> list[int]:
            made = super().commit(changes)
            if any(isinstance(change, DeleteThread) for change in changes):
                self.begun += 1
                vault.thread(f"again {self.begun}").attach_subject("ann")
            return made

    store = Restless()
    vault = Vault(store)
    family(vault, "a")
    vault.thread("a").attach_subject("ann")
    erased = vault.erase("ann")
    assert "keep appearing" in erased.unreached[0]
    assert store.begun == len(erased.threads) == ROUNDS


def deleted_without_handing_on(vault: Vault, name: str) -> None:
    """As earlier versions did."""
    vault.store.commit([DeleteThread(ThreadKey(vault.namespace, name))])


@pytest.mark.parametrize("again", [False, True], ids=["gone", "re-created"])
def test_what_cannot_be_followed_is_said(vault: Vault, again: bool) -> None:
    """A thread whose source was deleted by an earlier version may hold the same data, or not: there is no way to know."""
    family(vault, *"abcd")
    deleted_without_handing_on(vault, "b")
    if again:
        vault.thread("b").save("of somebody else")
        vault.thread("b").fork("of b")
    vault.thread("a").attach_subject("ann")
    for dry_run in (True, False):
        erased = vault.erase("ann", dry_run=dry_run)
        assert (erased.threads, len(erased.unreached), erased.complete) == (("a",), 1, False)
        assert "thread 'c' was forked from 'b', which is gone" in erased.unreached[0]
    vault.thread("c").attach_subject("ann")
    assert vault.erase("ann") == Erased(("c", "d"), ())


def test_links_that_earlier_versions_wrote_are_handed_on(vault: Vault) -> None:
    """They are the same records: only who deletes has to be new."""
    for name in "abc":
        vault.thread(name).save({"text": "secret"})
    links = [("b", SOURCE, "a"), ("a", FORK, "b"), ("c", SOURCE, "b"), ("b", FORK, "c")]
    vault.store.commit([PutRecord(ThreadKey(vault.namespace, thread), kind, name, MARK) for thread, kind, name in links])
    vault.thread("b").delete()
    vault.thread("a").attach_subject("ann")
    assert vault.erase("ann").threads == ("a", "c")


def test_a_damaged_link_is_said_and_keeps_nobody_from_deleting(on_disk: Opener, caplog: pytest.LogCaptureFixture) -> None:
    vault = on_disk()
    family(vault, *"abc")
    with vault.connection() as db:
        db.execute("UPDATE record SET sum = sum + 1 WHERE kind = 'forked from' AND name = 'b'")
    assert vault.thread("b").delete()
    assert threads_of(vault) == ["a", "bystander", "c"]
    assert "'b': the list of its forks cannot be read" in caplog.text


KILLED = """
import os, sys
import savegame
vault = savegame.open(sys.argv[1])
purge = type(vault.store).purge
type(vault.store).purge = lambda store: os._exit(9)
vault.erase("ann")
"""


def test_killed_between_the_delete_and_the_freeing_the_next_call_frees(on_disk: Opener, tmp_path: Path) -> None:
    """Bytes in the files and words in the search index are gone then, although no thread is left to find."""
    with on_disk() as vault:
        family(vault, "a", "b")
        vault.thread("a").save({"messages": [{"role": "user", "content": "Zanzibar-Quux"}]})
        vault.thread("a").attach_subject("ann")
        assert len(list(vault.search("zanzibar"))) == 1
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "vault.db")], timeout=60, check=False)
    assert done.returncode == 9
    vault = on_disk()
    assert threads_of(vault) == ["bystander"]
    assert b"zanzibar" in bytes_of(tmp_path).lower()
    assert vault.erase("ann") == Erased((), ())
    assert b"zanzibar" not in bytes_of(tmp_path).lower()


def test_links_travel_with_an_export(opened: Opener, tmp_path: Path) -> None:
    """Those that were handed on, and those of a fork that was deleted here and is imported again."""
    source, target = opened("one.db"), opened("two.db")
    family(source, *"abc")
    source.export(tmp_path / "before.jsonl")
    source.thread("b").delete()
    source.export(tmp_path / "after.jsonl")
    target.import_(tmp_path / "after.jsonl")
    target.thread("a").attach_subject("ann")
    assert target.erase("ann", dry_run=True).threads == ("a", "c")
    assert source.import_(tmp_path / "before.jsonl") == 1
    source.thread("a").attach_subject("ann")
    assert source.erase("ann").threads == ("a", "b", "c")


def test_a_part_of_an_export_tells_what_cannot_be_followed(opened: Opener, tmp_path: Path) -> None:
    source, target = opened("one.db"), opened("two.db")
    family(source, *"abc")
    source.export(tmp_path / "some.jsonl", threads=["a", "c"])
    target.import_(tmp_path / "some.jsonl")
    target.thread("a").attach_subject("ann")
    erased = target.erase("ann")
    assert (erased.threads, erased.complete) == (("a",), False)


def test_grand_forks_are_found_in_the_other_colour(tmp_path: Path) -> None:
    async def erased() -> tuple[Erased, Erased]:
        async with savegame.open_async(tmp_path / "vault.db") as vault:
            await vault.thread("a").save({"text": "secret"})
            middle = await vault.thread("a").fork("b")
            await middle.fork("c")
            await middle.delete()
            await vault.thread("a").attach_subject("ann")
            return await vault.erase("ann", dry_run=True), await vault.erase("ann")

    assert asyncio.run(erased()) == (Erased(("a", "c"), ()), Erased(("a", "c"), ()))


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
    assert "a reader is still active" in erased.unreached[0]


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
