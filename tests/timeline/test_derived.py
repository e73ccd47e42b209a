"""What derives from a thread goes with it: child threads with a delete, forks and copies with an erase too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import Opener
from hypothesis import given
from hypothesis import strategies as st

import savegame
from savegame.errors import Busy, ThreadNotFound
from savegame.messages.domain import AgentState
from savegame.model import ThreadKey
from savegame.store import PutRecord
from savegame.stores.memory import MemoryStore
from savegame.timeline.companions import CHILD, MARK, PARENT
from savegame.timeline.graveyard import YARDS, yards
from savegame.timeline.subjects import Erased
from savegame.vault import Vault
from tests.timeline.test_erase import Meanwhile, bytes_of, threads_of

SECRET = "Zanzibar-Quux"


def everything_in(vault: Vault) -> list[str]:
    """Every thread of which anything is left, checkpoints or not."""
    return [thread_id for thread_id, _ in vault.store.heads(vault.namespace)]


def nested(vault: Vault, name: str = "p") -> None:
    """A thread with a child, whose child has only records, as adapters make them."""
    vault.thread(f"{name}/c", child_of=name).save({"text": SECRET})
    vault.thread(f"{name}/c/c", child_of=f"{name}/c").put_records({("writes", "w"): SECRET})
    vault.thread(name).save({"text": SECRET})


def copied(vault: Vault, name: str, copy: str) -> None:
    for part in ("", "/c"):
        parent = copy if part else None
        vault.thread(copy + part, copy_of=name + part, child_of=parent).save({"text": SECRET})


def test_a_delete_takes_child_threads_along(vault: Vault) -> None:
    nested(vault)
    vault.thread("p/other").save({"of": "somebody else"})
    assert vault.thread("p").delete()
    assert everything_in(vault) == ["p/other"]


def test_a_child_that_is_deleted_leaves_its_parent(vault: Vault) -> None:
    nested(vault)
    assert vault.thread("p/c").delete()
    assert everything_in(vault) == ["p"]
    assert vault.thread("p").records(CHILD) == {}


def test_an_agent_and_a_conversation_take_child_threads_along(vault: Vault) -> None:
    vault.save_agent({"agent_id": "helper", "name": "Helper", "agent_type": "scripted"})
    for name in ("one", "two"):
        vault.save_conversation({"agent_id": "helper", "id": name, "messages": []})
        nested(vault, name)
    assert vault.delete_conversation("one")
    assert everything_in(vault) == ["agent:helper", "two", "two/c", "two/c/c"]
    assert vault.delete_agent("helper")
    assert everything_in(vault) == []


def test_an_erase_takes_children_forks_copies_and_their_children(vault: Vault) -> None:
    nested(vault)
    copied(vault, "p", "copy")
    vault.thread("p").fork("fork")
    vault.thread("p/c").fork("fork of the child")
    nested(vault, "fork")
    vault.thread("copy").fork("fork of the copy")
    vault.thread("bystander").save({})
    wanted = tuple(sorted(set(everything_in(vault)) - {"bystander"}))
    assert len(wanted) == 10
    vault.thread("p").attach_subject("ann")
    assert all(vault.thread(name).subjects() == ["ann"] for name in wanted)
    assert vault.erase("ann", dry_run=True) == Erased(wanted, ())
    assert vault.erase("ann") == Erased(wanted, ())
    assert everything_in(vault) == ["bystander"]


def test_what_is_made_after_the_subject_was_attached_has_it(vault: Vault) -> None:
    vault.thread("p").save({})
    vault.thread("p").attach_subject("ann")
    nested(vault)
    copied(vault, "p", "copy")
    assert {vault.thread(name).subjects()[0] for name in everything_in(vault)} == {"ann"}


def test_a_delete_leaves_forks_and_copies_which_still_derive_from_what_it_derived_from(vault: Vault) -> None:
    """By way of a child and its parent, too."""
    vault.thread("a").save({"text": SECRET})
    vault.thread("a").fork("p")
    nested(vault)
    copied(vault, "p", "copy")
    vault.thread("p/c").fork("fork of the child")
    vault.thread("p").delete()
    assert everything_in(vault) == ["a", "copy", "copy/c", "fork of the child"]
    vault.thread("a").attach_subject("ann")
    assert vault.erase("ann") == Erased(("a", "copy", "copy/c", "fork of the child"), ())


def test_what_a_child_derives_from_is_not_taken_with_it(vault: Vault) -> None:
    nested(vault)
    vault.thread("p/c").attach_subject("ann")
    assert vault.erase("ann") == Erased(("p/c", "p/c/c"), ())
    assert everything_in(vault) == ["p"]


def test_an_id_that_is_used_again_is_nobodys_child(vault: Vault) -> None:
    """Neither with the parent of before made again, nor if it is given another parent."""
    nested(vault)
    vault.thread("p").delete()
    vault.thread("p").save({"text": "another"})
    vault.thread("p/c").save({"text": "of somebody else"})
    vault.thread("p/c/c", child_of="q").save({"text": "of q"})
    vault.thread("p").attach_subject("ann")
    assert vault.erase("ann") == Erased(("p",), ())
    assert everything_in(vault) == ["p/c", "p/c/c", "q"]
    vault.thread("q").delete()
    assert everything_in(vault) == ["p/c"]


def test_a_child_is_linked_whatever_is_written_first(vault: Vault) -> None:
    for number, write in enumerate(
        (
            lambda child: child.save({}),
            lambda child: child.update(set={"n": 1}),
            lambda child: child.modify(lambda state: 1),
            lambda child: child.put_records({("k", "n"): 1}),
        )
    ):
        write(vault.thread(f"c{number}", child_of="p"))
    assert list(vault.thread("p").records(CHILD)) == ["c0", "c1", "c2", "c3"]
    assert all(vault.thread(f"c{number}").records(PARENT) == {"p": True} for number in range(4))


def test_a_copy_of_what_is_not_there_is_refused(vault: Vault) -> None:
    with pytest.raises(ThreadNotFound, match="'a', the source to record for 'b'"):
        vault.thread("b", copy_of="a").save({})
    assert everything_in(vault) == []


def test_a_child_that_is_being_worked_on_is_not_deleted_by_halves(vault: Vault) -> None:
    nested(vault)
    vault.store.lease(ThreadKey(vault.namespace, "p/c"), "a run", 60_000_000)
    with pytest.raises(Busy):
        vault.thread("p").delete()
    assert everything_in(vault) == ["p", "p/c", "p/c/c"]


def test_nothing_of_it_is_left_in_the_files(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk(compress=False)
    vault.thread("kept").save({})
    nested(vault, f"id of {SECRET}")
    copied(vault, f"id of {SECRET}", "copy")
    vault.thread(f"id of {SECRET}").attach_subject("ann")
    assert vault.erase("ann").complete
    assert SECRET.encode() not in bytes_of(tmp_path)
    assert vault.verify().ok


RACES: dict[str, tuple[Callable[[Vault], object], Callable[[Vault], object], list[str]]] = {
    "a child is begun while its parent is deleted": (
        lambda vault: vault.thread("p").delete(),
        lambda vault: vault.thread("new", child_of="p").save({}),
        [],
    ),
    "the parent is deleted while records of a child are put": (
        lambda vault: vault.thread("p/c", child_of="p").put_records({("k", "n"): 1}),
        lambda vault: vault.thread("p").delete(),
        ["p", "p/c"],
    ),
    "the parent is deleted while a child is saved": (
        lambda vault: vault.thread("p/c", child_of="p").save({}, force=True),
        lambda vault: vault.thread("p").delete(),
        ["p", "p/c"],
    ),
    "a child is begun while a subject is attached": (
        lambda vault: vault.thread("p").attach_subject("ann"),
        lambda vault: vault.thread("new", child_of="p").save({}),
        ["new", "p", "p/c", "p/c/c"],
    ),
    "a subject is attached while a child is begun": (
        lambda vault: vault.thread("new", child_of="p").save({}),
        lambda vault: vault.thread("p").attach_subject("ann"),
        ["new", "p", "p/c", "p/c/c"],
    ),
}


@pytest.mark.parametrize("race", RACES)
def test_whatever_happens_meanwhile(race: str) -> None:
    act, other, wanted = RACES[race]
    store = Meanwhile()
    vault = Vault(store)
    nested(vault)
    store.act = lambda: other(vault)
    act(vault)
    assert everything_in(vault) == wanted
    if "attached" in race:
        assert {tuple(vault.thread(name).subjects()) for name in wanted} == {("ann",)}
    vault.thread("p").delete()
    assert everything_in(vault) == [], "what is there is linked"


def test_links_travel_with_copies_and_exports(opened: Opener, tmp_path: Path) -> None:
    source, copy, imported = opened("one.db"), opened("two.db"), opened("three.db")
    nested(source)
    copied(source, "p", "copy")
    wanted = everything_in(source)
    source.copy_to(copy)
    source.export(tmp_path / "all.jsonl")
    imported.import_(tmp_path / "all.jsonl")
    for vault in (copy, imported):
        assert everything_in(vault)[:5] == wanted
        vault.thread("p").attach_subject("ann")
        assert vault.erase("ann") == Erased(tuple(wanted), ())
    copy.thread("p/c").delete()
    source.copy_to(copy)
    assert copy.thread("p").records(CHILD) == {"p/c": True}


def test_an_export_of_a_thread_includes_its_children(opened: Opener, tmp_path: Path) -> None:
    source, target = opened("one.db"), opened("two.db")
    nested(source)
    source.export(tmp_path / "some.jsonl", threads=["p"])
    target.import_(tmp_path / "some.jsonl")
    target.thread("p").attach_subject("ann")
    assert target.erase("ann").threads == ("p", "p/c", "p/c/c")


def test_half_a_link_says_which_child_cannot_be_followed(opened: Opener) -> None:
    """Parts of exports that earlier versions made have such links."""
    target = opened("two.db")
    target.thread("p").save({})
    target.store.commit([PutRecord(ThreadKey("default", "p"), CHILD, "p/c", MARK)])
    target.thread("p/c").save({"of": "somebody else, perhaps"})
    target.thread("p").attach_subject("ann")
    erased = target.erase("ann")
    assert (erased.threads, erased.complete) == (("p",), False)
    assert erased.unreached[0].startswith("thread 'p/c' was a child of an erased thread")


def test_a_damaged_link_is_said_and_keeps_nobody_from_deleting(on_disk: Opener, caplog: pytest.LogCaptureFixture) -> None:
    vault = on_disk()
    nested(vault)
    with vault.connection() as db:
        db.execute("UPDATE record SET sum = sum + 1 WHERE kind = 'child of' AND name = 'p'")
    assert vault.thread("p").delete()
    assert threads_of(vault) == ["p/c"]
    assert "'p': its child threads cannot be read" in caplog.text


def test_in_the_other_colour(tmp_path: Path) -> None:
    async def erased() -> tuple[Erased, bool, list[str]]:
        async with savegame.open_async(tmp_path / "vault.db") as vault:
            for name in ("p", "q"):
                await vault.thread(name).save({"text": SECRET})
                await vault.thread(f"{name}/c", child_of=name).save({"text": SECRET})
            await vault.thread("copy", copy_of="p").save({"text": SECRET})
            await vault.thread("p").attach_subject("ann")
            found = await vault.erase("ann")
            return found, await vault.thread("q").delete(), [info.id async for info in vault.threads()]

    assert asyncio.run(erased()) == (Erased(("copy", "p", "p/c"), ()), True, [])


# -- any order of it -------------------------------------------------------------------------------

NAMES = "abcdef"
pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(lambda pair: pair[0] != pair[1])
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["fork", "copy", "child"]), pairs),
        st.tuples(st.just("delete"), st.sampled_from(NAMES[1:]).map(lambda name: (name, ""))),
    ),
    max_size=14,
)


class Model:
    """Which threads hold data that began in "a", told by where the data came from and by nothing that is stored."""

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.secret: dict[str, bool] = {}
        self.parent: dict[str, str] = {}
        self.begin("a", secret=True)

    def begin(self, name: str, *, secret: bool) -> None:
        if name not in self.secret:
            self.secret[name] = secret
            self.vault.thread(name).save({"text": SECRET if secret else "harmless"})

    def step(self, verb: str, one: str, other: str) -> None:
        if verb == "delete":
            self.delete(one)
            return
        self.begin(one, secret=False)
        if other in self.secret:
            return
        self.secret[other] = self.secret[one]
        if verb == "fork":
            self.vault.thread(one).fork(other)
            return
        if verb == "child":
            self.parent[other] = one
        self.vault.thread(other, **{f"{verb}_of": one}).save(self.vault.thread(one).state())

    def delete(self, name: str) -> None:
        assert self.vault.thread(name).delete() == (name in self.secret)
        gone = {name} & self.secret.keys()
        while more := {child for child, parent in self.parent.items() if parent in gone} - gone:
            gone |= more
        for one in gone:
            del self.secret[one]
            self.parent.pop(one, None)


@given(steps)
def test_whatever_was_forked_copied_and_deleted_an_erase_reaches_every_trace(taken: list[tuple[str, tuple[str, str]]]) -> None:
    vault = Vault(MemoryStore())
    model = Model(vault)
    for verb, pair in taken:
        model.step(verb, *pair)
    vault.thread("a").attach_subject("ann")
    erased = vault.erase("ann")
    assert erased == Erased(tuple(sorted(name for name, secret in model.secret.items() if secret)), ())
    left = [vault.thread(name).state() for name in everything_in(vault)]
    assert all(state == {"text": "harmless"} for state in left)


moments = st.tuples(st.sampled_from(["checkpoint", "restore", "forget"]), st.integers(0, 9).map(lambda n: (str(n), "")))


def moment(vault: Vault) -> dict[str, object]:
    return {name: vault.thread(name).state() for name in NAMES if vault.thread(name).latest() is not None}


@given(st.lists(st.one_of(steps.map(lambda taken: taken[:3]), moments.map(lambda one: [one])), max_size=10))
def test_with_checkpoints_of_an_agent_that_bring_back_what_was_deleted(taken: list[list[tuple[str, tuple[str, str]]]]) -> None:
    """Each brings its moment back, whatever was deleted and re-created since; and an erase reaches what they keep."""
    vault = Vault(MemoryStore())
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    vault.thread("a", agent="helper").save({"text": SECRET})
    made: dict[str, dict[str, object]] = {}
    for number, (verb, (one, other)) in enumerate(step for part in taken for step in part):
        source, now = vault.thread(one).latest(), moment(vault)
        chosen = list(made)[int(one) % len(made)] if one.isdecimal() and made else ""
        match verb:
            case "checkpoint":
                made[vault.checkpoint_agent("helper").id] = now
            case "restore" if chosen:
                vault.restore_agent(chosen)
                assert moment(vault) == made[chosen]
                made[next(vault.agent_checkpoints("helper")).id] = now
            case "forget" if chosen:
                assert vault.delete_checkpoint(chosen)
                del made[chosen]
            case "delete":
                vault.thread(one).delete()
            case "fork" | "copy" | "child" if source is not None and not list(vault.thread(other).history(branches=True)):
                if verb == "fork":
                    vault.thread(one).fork(other)
                else:
                    vault.thread(other, agent="helper", **{f"{verb}_of": one}).save(source.state | {"n": number})
    assert vault.verify().ok
    vault.thread("a").attach_subject("ann")
    erased = vault.erase("ann")
    assert (erased.complete, erased.emptied) == (True, tuple(sorted(made)))
    spaces = [vault.namespace, *yards(vault.rooms.engine, vault.namespace)]
    left = {name for space in spaces for name, _ in vault.store.heads(space) if name in NAMES}
    assert left == set(), "all of them began in a"
    vault.delete_agent("helper")
    assert vault.store.heads(vault.namespace) in ([], [(YARDS, None)])
