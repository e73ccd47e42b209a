"""Copying: everything arrives once, whole, compared; again costs what is new; killed, it carries on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from addresses import ALL
from kept import filled, kept

import savegame
from savegame import Busy, ConflictError, CorruptionError, InvalidInputError, SavegameError, Toolbox
from savegame.encoding.frames import PLAIN, unwrap
from savegame.encoding.raw import pack_raw, unpack_raw
from savegame.model import Frame, ThreadKey
from savegame.store import Append, MoveHead, PutRecord, Store, StoreChange
from savegame.stores.memory import MemoryStore
from savegame.testing import same
from savegame.timeline.companions import COPIED, FORK
from savegame.transfer.copying import COPIES
from savegame.vault import Vault

Opener = Callable[..., Vault]


@pytest.fixture(params=ALL)
def target(request: pytest.FixtureRequest, address_of: Callable[..., str]) -> Iterator[Vault]:
    """An empty vault on each store, to copy to."""
    with savegame.open(address_of(request.param, "copy.db"), namespace="there", durability="process") as vault:
        yield vault


def states(vault: Vault, name: str = "t") -> list[Any]:
    return [entry.load().state for entry in vault.thread(name).history(branches=True)]


def saved(vault: Vault, count: int = 5, name: str = "t") -> savegame.Thread:
    thread = vault.thread(name)
    for number in range(count):
        thread.update(append={"l": [number]}, id=f"{name}-{number}")
    return thread


# -- what arrives ----------------------------------------------------------------------------------


def test_everything_arrives_once(opened: Opener, target: Vault) -> None:
    source = filled(opened(durability="process"))
    before = kept(source)
    assert source.copy_to(target) == sum(len(frames) for _, _, frames, _ in before.values())
    assert kept(target) == before == kept(source)
    assert target.verify().ok
    for info in source.threads():
        assert same(states(source, info.id), states(target, info.id))
    assert [info.id for info in target.threads()] == [info.id for info in source.threads()]
    assert target.thread("../chat 🎲").subjects() == ["somebody"]
    assert target.load_agent("helper") == source.load_agent("helper")
    assert target.stats().checkpoints == source.stats().checkpoints
    assert (source.copy_to(target), source.copy_to(target, full=True)) == (0, 0)
    assert kept(target) == before


@pytest.mark.parametrize("other", [None, "elsewhere.db", 5], ids=repr)
def test_what_is_no_vault_is_refused(other: Any, target: Vault) -> None:
    with pytest.raises(InvalidInputError, match="another vault"):
        target.copy_to(other)


def test_a_copy_can_be_copied_on_and_back(opened: Opener, target: Vault) -> None:
    source = opened(durability="process")
    thread = saved(source)
    source.copy_to(target)
    with savegame.open("memory:") as third:
        assert target.copy_to(third) == 5
        assert (third.copy_to(source), target.copy_to(source)) == (0, 0)
        thread.save("on")
        assert (source.copy_to(target), target.copy_to(third)) == (1, 1)
        assert kept(third) == kept(target) == kept(source)


LATER: dict[str, Callable[[Vault], object]] = {
    "a save": lambda vault: vault.thread("t").save("new"),
    "a branch that was left again": lambda vault: [vault.thread("t").save("x", parent="t-2"), vault.thread("t").rewind("t-4")],
    "a rewind": lambda vault: vault.thread("t").rewind("t-1"),
    "a label": lambda vault: vault.thread("t").label("t-1", "later"),
    "another label": lambda vault: vault.thread("t").label("t-0", "renamed"),
    "a label taken away": lambda vault: vault.thread("t").label("t-0", None),
    "a tag": lambda vault: vault.thread("t").tag("t-3", "x"),
    "a record": lambda vault: vault.thread("t").put_records({("k", "new"): 1}),
    "another record": lambda vault: vault.thread("t").put_records({("k", "n"): 2}),
    "a record taken away": lambda vault: vault.thread("t").put_records({("k", "n"): None}),
    "a subject": lambda vault: vault.thread("t").attach_subject("somebody"),
    "a fork": lambda vault: vault.thread("t").fork("fork", at="t-2"),
    "an agent's checkpoint": lambda vault: vault.checkpoint_agent("a", "now"),
    "a restored agent": lambda vault: vault.restore_agent("before"),
    "a message": lambda vault: vault.add_message("c", {"role": "user", "content": "more"}),
    "an answer, and the call": lambda vault: answered(vault),
    "a new thread": lambda vault: vault.thread("new").save(1),
    "a discarded head": lambda vault: [vault.thread("t").rewind("t-1", discard=True), vault.thread("t").save("instead")],
}


tools = Toolbox()


@tools.tool(ask=True)
def pay(cents: int) -> int:
    return cents


def answered(vault: Vault) -> None:
    assert vault.answer("asked", next(vault.calls("asked")), value=True)
    with vault.run("asked", tools=tools) as run:
        run.tools()


def with_a_call_that_waits(vault: Vault) -> None:
    asks = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "pay", "arguments": {"cents": 5}}]}
    with vault.run("asked", tools=tools) as run:
        run.user("pay")
        run.model(lambda _: asks)
        with pytest.raises(savegame.Paused):
            run.tools()


@pytest.mark.parametrize("change", LATER)
def test_what_changes_later_arrives_later(opened: Opener, change: str) -> None:
    source = opened(durability="process")
    thread = saved(source)
    thread.label("t-0", "first")
    thread.put_records({("k", "n"): 1, ("k", "kept"): 1})
    source.save_agent({"agent_id": "a", "name": "A", "agent_type": "scripted"})
    source.save_conversation({"id": "c", "agent_id": "a", "messages": []})
    moment = source.checkpoint_agent("a", "before")
    source.add_message("c", {"role": "user", "content": "since"})
    with_a_call_that_waits(source)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        if change == "a restored agent":
            source.restore_agent(moment.id)
        else:
            LATER[change](source)
        source.copy_to(target)
        ours, theirs = kept(target), kept(source)
        if change == "a discarded head":  # what the copy had, it keeps
            assert {frame[0] for frame in ours["t"][2]} > {frame[0] for frame in theirs["t"][2]}
            ours["t"], theirs["t"] = ours["t"][:2], theirs["t"][:2]
        assert ours == theirs
        assert target.verify().ok
        assert source.copy_to(target) == 0


def test_what_the_source_removes_stays_in_the_copy(opened: Opener) -> None:
    source = opened(durability="process")
    pruned = saved(source)
    saved(source, name="deleted").attach_subject("somebody")
    with savegame.open("memory:") as target:
        source.copy_to(target)
        before = states(target)
        source.erase("somebody")
        pruned.prune(keep=1)
        pruned.update(append={"l": ["on"]})
        assert source.copy_to(target) == 1
        assert states(target) == [{"l": [0, 1, 2, 3, 4, "on"]}, *before]
        assert target.thread("deleted").state() == {"l": [0, 1, 2, 3, 4]}
        assert target.erase("somebody").threads == ("deleted",)
        assert source.copy_to(target) == 0
        assert target.verify().ok


def test_what_the_copy_has_of_its_own_is_left_to_it(opened: Opener) -> None:
    source = opened(durability="process")
    thread = saved(source)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        target.thread("own").save("own")
        target.thread("t").fork("what-if")
        target.thread("t").attach_subject("known here only")
        thread.update(append={"l": ["on"]})
        assert source.copy_to(target) == 1
        assert target.thread("own").state() == "own"
        assert target.thread("t").subjects() == ["known here only"]
        assert list(target.thread("t").records(FORK)) == ["what-if"]
        assert set(target.erase("known here only").threads) == {"t", "what-if"}
        assert source.copy_to(target) == 6, "what was deleted in the copy is brought again"


@pytest.mark.parametrize("again", ["source", "middle", "leaf"])
def test_forks_that_were_deleted_in_the_copy_are_linked_again(opened: Opener, target: Vault, again: str) -> None:
    """Both halves of a link, although the thread at its other end has no news."""
    source = opened(durability="process")
    saved(source, name="source").fork("middle").fork("leaf")
    source.copy_to(target)
    target.thread(again).delete()
    source.copy_to(target)
    target.thread("source").attach_subject("somebody")
    assert target.erase("somebody").threads == ("leaf", "middle", "source")


def test_links_that_a_delete_handed_on_are_copied(opened: Opener, target: Vault) -> None:
    """To a copy that has the middle, and to one that has not."""
    source = opened(durability="process")
    saved(source, name="source").fork("middle").fork("leaf")
    source.copy_to(target)
    source.thread("middle").delete()
    source.thread("source").attach_subject("somebody")
    source.copy_to(target)
    assert target.erase("somebody").threads == ("leaf", "middle", "source")
    source.copy_to(target)
    assert target.erase("somebody").threads == ("leaf", "source")


def test_only_the_own_namespace_is_copied(opened: Opener) -> None:
    source = opened(namespace="red")
    saved(source, 2)
    saved(Vault(source.store, namespace="blue"), 3)
    with savegame.open("memory:", namespace="green") as target:
        assert source.copy_to(target) == 2
        assert Vault(target.store, namespace="blue").stats().checkpoints == 0
        assert Vault(target.store, namespace="red").stats().checkpoints == 0


def test_a_readable_store_stays_readable_and_the_others_small(tmp_path: Path) -> None:
    text = "words that compress well " * 300
    with savegame.open(tmp_path / "v.db") as source, savegame.open(f"file:{tmp_path}/copy") as readable:
        source.thread("t").save({"parts": [text[:7000] + str(number) for number in range(20)]})
        source.compact()
        source.copy_to(readable)
        assert any(b"words that compress" in path.read_bytes() for path in (tmp_path / "copy").rglob("journal.jsonl"))
        with savegame.open(tmp_path / "back.db") as back:
            readable.copy_to(back)
            assert back.stats().sizes["deltas"] < 20 * 7000 / 4
            assert kept(back) == kept(source)


# -- when the source was pruned --------------------------------------------------------------------


def pruned_by_retention(vault: Vault) -> None:
    """Retention frees when a keyframe is due: after states that share nothing."""
    short = Vault(vault.store, namespace=vault.namespace, retention=savegame.Retention(max_checkpoints=2))
    for number in range(40):
        short.thread("t").save({"l": [], "text": str(number) * 3000})


def discarded(vault: Vault) -> None:
    vault.thread("t").rewind("t-1", discard=True)
    vault.thread("t").update(append={"l": ["instead"]})


def rewound_and_pruned(vault: Vault) -> None:
    vault.thread("t").rewind("t-1")
    for word in "xyz":
        vault.thread("t").update(append={"l": [word]})
    vault.thread("t").prune(keep=2)


def went_on(vault: Vault, keep: int) -> None:
    for word in "uvwxyz":
        vault.thread("t").update(append={"l": [word]}, tags=[word])
    vault.thread("t").prune(keep=keep)


PRUNED: dict[str, Callable[[Vault], object]] = {
    "all that was copied": lambda vault: went_on(vault, 3),
    "all but the newest": lambda vault: went_on(vault, 1),
    "exactly what was copied": lambda vault: went_on(vault, 6),
    "all but a labelled one": lambda vault: [vault.thread("t").label("t-1", "kept"), went_on(vault, 2)],
    "retention": pruned_by_retention,
    "the head was removed": lambda vault: vault.thread("t").remove("t-4"),
    "discard": discarded,
    "rewind, then prune": rewound_and_pruned,
    "compacted": lambda vault: [went_on(vault, 1), vault.compact()],
    "pruned to the head, and gone back there": lambda vault: [vault.thread("t").rewind("t-0"), vault.thread("t").prune(keep=1)],
}


@pytest.mark.parametrize("how", PRUNED)
def test_a_source_that_was_pruned_is_followed(opened: Opener, how: str) -> None:
    """Time and again: the copy did nothing of its own, so what the source has counts. What it had, it keeps."""
    source = opened(durability="process")
    saved(source)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        before = {frame[0] for frame in kept(target)["t"][2]}
        PRUNED[how](source)
        for _ in range(2):
            source.copy_to(target)
            theirs, ours = kept(source)["t"], kept(target)["t"]
            assert (ours[0], ours[1], ours[3]) == (theirs[0], theirs[1], theirs[3])
            assert {frame[0] for frame in ours[2]} == before | {frame[0] for frame in theirs[2]}
            assert target.verify().ok
            for entry in source.thread("t").history(branches=True):
                there = target.thread("t").load(entry.id)
                assert (there.state, there.digest, there.tags) == (entry.load().state, entry.digest, entry.tags)
            assert source.copy_to(target) == 0
            before = {frame[0] for frame in kept(target)["t"][2]}
            went_on(source, 2)
        with savegame.open("memory:") as third:
            target.copy_to(third)
            assert kept(third) == kept(target)


def test_a_pruned_source_is_followed_on_every_pair_of_stores(opened: Opener, target: Vault) -> None:
    source = opened(durability="process")
    saved(source).fork("fork")
    source.copy_to(target)
    for _ in range(3):
        went_on(source, 2)
        source.thread("fork").save("on")
        source.thread("fork").prune(keep=1)
        assert source.copy_to(target) == 3
        assert (target.thread("t").state(), target.thread("fork").state()) == (source.thread("t").state(), "on")
    assert target.verify().ok
    assert source.copy_to(target, full=True) == 0


class Watched(MemoryStore):
    """Looks after every commit at what a reader sees."""

    seen: list[tuple[Any, ...]]

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        made = super().commit(changes)
        row = self.thread(ThreadKey("default", "t"))
        self.seen = [*getattr(self, "seen", []), (row.head_id, len(self.chain(row.key, row.head).deltas)) if row else ()]
        return made


def test_a_reader_of_the_copy_sees_the_old_or_the_new_and_never_nothing(opened: Opener) -> None:
    source = opened(durability="process")
    thread = saved(source, 3)
    store = Watched()
    target = Vault(store)
    source.copy_to(target)
    for number in range(200):
        thread.update(append={"l": [number]})
    thread.prune(keep=150)
    store.seen = []
    assert source.copy_to(target) == 150
    heads = [head for head, _ in store.seen]
    assert heads == sorted(heads, key=["t-2", thread.head].index), "one step from the old head to the new one"
    assert set(heads) == {"t-2", thread.head}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_write_it_carries_on_although_the_source_is_pruned_then(after: bool) -> None:
    """Also between the head's move and the mark, which says that it was compared."""
    died = 0
    for moment in range(1, 10**6):
        with savegame.open("memory:") as source:
            saved(source, 150)
            store = Mortal()
            target = Vault(store)
            store.left, store.after = moment, after
            try:
                source.copy_to(target)
                break
            except Killed:
                died += 1
            went_on(source, 2)
            source.copy_to(target)
            assert target.thread("t").state() == source.thread("t").state()
            assert target.verify().ok
            assert source.copy_to(target) == 0
    assert died >= 4


def test_another_source_is_not_taken_for_the_former_one(opened: Opener) -> None:
    """Although both are pruned, so that neither shares anything with the copy: only the place tells them apart."""
    source, other = opened("one.db", durability="process"), opened("two.db", durability="process")
    for vault in (source, other):
        for number in range(5):
            vault.thread("t").save(number)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        for vault in (source, other):
            thread = vault.thread("t")
            for number in range(5, 12):
                thread.save([number, vault.store.path])
            thread.prune(keep=2)
        with pytest.raises(ConflictError, match="has diverged"):
            other.copy_to(target)
        assert target.thread("t").state() == 4
        assert source.copy_to(target) == 2


def forget_marks(target: Vault) -> None:
    key = ThreadKey(target.namespace, COPIES)
    names = [record.name for record in target.store.records(key, COPIED).items]
    target.store.commit([PutRecord(key, COPIED, name, None) for name in names])


def test_a_copy_without_a_mark_follows_where_the_source_tells_that_it_had_its_head(opened: Opener) -> None:
    """By a checkpoint that names it as its parent. Where nothing tells, nothing is done."""
    source = opened(durability="process")
    thread = saved(source)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        forget_marks(target)
        for number in range(5, 8):
            thread.update(append={"l": [number]})
        thread.prune(keep=3)
        assert source.copy_to(target) == 3
        assert target.thread("t").state() == thread.state()
        forget_marks(target)
        went_on(source, 2)
        with pytest.raises(ConflictError, match="another namespace"):
            source.copy_to(target)
        assert target.thread("t").state() == {"l": list(range(8))}


def test_marks_of_earlier_versions_are_read(opened: Opener) -> None:
    """They do not tell where the source was."""
    source = opened(durability="process")
    saved(source)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        key = ThreadKey(target.namespace, COPIES)
        [mark] = target.store.records(key, COPIED).items
        fields = unpack_raw(unwrap(mark.value)[1])
        target.store.commit([PutRecord(key, COPIED, mark.name, PLAIN + pack_raw(fields[:5]))])
        assert source.copy_to(target) == 0
        went_on(source, 2)
        assert source.copy_to(target) == 2


def test_a_copy_that_went_on_does_not_follow_a_pruned_source(opened: Opener) -> None:
    source = opened(durability="process")
    saved(source)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        target.thread("t").update(append={"l": ["own"]})
        went_on(source, 2)
        for _ in range(2):
            with pytest.raises(ConflictError, match=r"has diverged.*another namespace") as caught:
                source.copy_to(target)
            assert "rewind" not in str(caught.value), "they have nothing in common any more"
        assert target.thread("t").state() == {"l": [0, 1, 2, 3, 4, "own"]}


# -- what does not fit -----------------------------------------------------------------------------


def test_a_thread_that_went_its_own_way_does_not_stop_the_others(opened: Opener, target: Vault) -> None:
    source = opened(durability="process")
    saved(source, name="a")
    saved(source, name="z")
    source.copy_to(target)
    target.thread("a").save("own way")
    source.thread("a").save("other way")
    source.thread("z").save("news")
    with pytest.raises(ConflictError, match=r"'a' has diverged.*another namespace.*rewind the copy to a-4") as caught:
        source.copy_to(target)
    assert "delete" not in str(caught.value)
    assert caught.value.found == target.thread("a").latest().id  # type: ignore[union-attr]
    assert (target.thread("a").state(), target.thread("z").state()) == ("own way", "news")
    other = Vault(target.store, namespace="another")
    assert source.copy_to(other) == 12, "as it says"
    target.thread("a").rewind("a-4")
    assert source.copy_to(target) == 1, "as it says, too"
    assert states(target, "a")[:2] == ["other way", "own way"]
    assert target.verify().ok


def test_a_thread_that_was_deleted_and_made_anew_is_not_mixed_with_the_former(opened: Opener) -> None:
    source = opened(durability="process")
    saved(source, 3)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        source.thread("t").delete()
        source.thread("t").save("anew")
        with pytest.raises(ConflictError, match="has diverged") as caught:
            source.copy_to(target)
        assert "delete" not in str(caught.value)
        assert states(target) == [{"l": [0, 1, 2]}, {"l": [0, 1]}, {"l": [0]}]
        for number in range(9):
            source.thread("t").save(number)
        with pytest.raises(ConflictError, match="has diverged"):
            source.copy_to(target)
        assert source.copy_to(Vault(target.store, namespace="another")) == 10


def test_an_id_that_stands_for_something_else_is_refused(opened: Opener) -> None:
    source = opened(durability="process")
    source.thread("t").save("one", id="chosen")
    with savegame.open("memory:") as target:
        target.thread("other").save("two", id="chosen")
        with pytest.raises(savegame.AlreadyExistsError, match="chosen"):
            source.copy_to(target)
        assert target.thread("t").latest() is None
        target.thread("other").delete()
        target.thread("t").save("two", id="chosen")
        with pytest.raises(ConflictError, match="chosen is another one"):
            source.copy_to(target)
        assert target.thread("t").state() == "two"


def test_a_run_in_the_copy_is_not_disturbed(opened: Opener) -> None:
    source = opened(durability="process")
    thread = saved(source)
    with savegame.open("memory:") as target:
        source.copy_to(target)
        thread.save("new")
        with target.run("t"), pytest.raises(Busy):
            source.copy_to(target)
        assert target.thread("t").state() == {"l": [0, 1, 2, 3, 4]}


def test_a_damaged_thread_is_named_and_the_others_arrive(on_disk: Opener, target: Vault) -> None:
    source = on_disk(durability="process")
    for name in "abc":
        saved(source, 4, name)
    where = "id = 'b-2'"
    with source.connection() as db:
        db.execute(f"UPDATE frame SET delta = zeroblob(length(delta)) WHERE {where}")
    with pytest.raises(CorruptionError) as caught:
        source.copy_to(target)
    assert (caught.value.thread_id, caught.value.checkpoint_id, caught.value.place) == ("b", "b-2", "delta of frame 3")
    assert [info.id for info in target.threads()] == ["a", "c"]
    assert source.repair().ok
    source.copy_to(target)
    assert target.thread("b").state() == {"l": [0, 1]}
    assert target.verify().ok


class Careless(MemoryStore):
    """Keeps something else than it was given, with nothing that shows by itself."""

    careless = ""

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        return super().commit([self._spoilt(change) for change in changes])

    def frames(self, key: ThreadKey, **how: Any) -> list[Frame]:
        return [frame for frame in super().frames(key, **how) if frame.id != "t-2" or self.careless != "it is missing"]

    def _spoilt(self, change: StoreChange) -> StoreChange:
        if not isinstance(change, Append) or change.id != "t-2":
            return change
        if self.careless == "its delta":
            return change._replace(delta=change.delta.replace(b"word", b"ward"))
        if self.careless == "its digest":
            return change._replace(meta=bytes(32) + change.meta[32:])
        if self.careless == "its large value":
            return change._replace(blobs=tuple((name, body.replace(b"y", b"z")) for name, body in change.blobs))
        return change


@pytest.mark.parametrize("what", ["its delta", "its digest", "its large value", "it is missing"])
def test_what_differs_in_the_copy_is_found_and_named(opened: Opener, what: str) -> None:
    source = opened(durability="process", compress=False)
    saved(source, 2)
    source.thread("t").update(append={"l": ["word", "y" * 9000]}, id="t-2")
    saved(source, name="other")
    store = Careless()
    target = Vault(store)
    store.careless = what
    with pytest.raises(CorruptionError, match=what) as caught:
        source.copy_to(target)
    assert (caught.value.thread_id, caught.value.checkpoint_id) == ("t", "t-2")
    assert target.thread("other").state() == {"l": [0, 1, 2, 3, 4]}
    with pytest.raises(SavegameError):
        source.copy_to(target)
    store.careless = ""
    target.thread("t").delete()
    assert source.copy_to(target) == 3


def test_full_finds_what_was_changed_in_the_copy_since(opened: Opener, on_disk: Opener) -> None:
    source, target = opened(durability="process"), on_disk("copy.db")
    saved(source)
    source.copy_to(target)
    with target.connection() as db:
        db.execute("UPDATE frame SET delta = zeroblob(length(delta)) WHERE id = 't-3'")
    assert source.copy_to(target) == 0
    with pytest.raises(CorruptionError, match="t-3"):
        source.copy_to(target, full=True)


class Interrupted(MemoryStore):
    """Another writer appends, and goes back again, just before a commit."""

    rival: Append | None = None

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        if self.rival is not None:
            rival, self.rival = self.rival, None
            row = self.thread(rival.key)
            super().commit([rival, MoveHead(rival.key, row.head if row else 0)])
        return super().commit(changes)


@pytest.mark.parametrize("first", [0, 2], ids=["a new thread", "a thread that goes on"])
def test_somebody_who_appends_and_goes_back_meanwhile_is_noticed(first: int) -> None:
    with savegame.open("memory:") as source:
        store = Interrupted()
        target = Vault(store)
        saved(source, first)
        source.copy_to(target)
        before = kept(target)
        for number in range(2, 5):
            source.thread("t").update(append={"l": [number]})
        stranger = source.rooms.engine.store.frames(ThreadKey("default", "t"), deltas=True)[0]
        store.rival = Append(ThreadKey("default", "t"), "stranger", 0, stranger.meta, stranger.delta or b"")
        with pytest.raises(ConflictError, match="changed in the copy meanwhile"):
            source.copy_to(target)
        assert [frame[0] for frame in kept(target)["t"][2]] == [
            frame[0] for _, _, frames, _ in before.values() for frame in frames
        ] + ["stranger"]
        assert source.copy_to(target) == 3
        assert target.thread("t").state() == source.thread("t").state()


class Busily(MemoryStore):
    """Something else happens just before a large value is read."""

    meanwhile: Callable[[], object] | None = None

    def blob(self, key: ThreadKey, digest: bytes) -> bytes | None:
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return super().blob(key, digest)


def test_a_large_value_that_is_pruned_meanwhile_is_no_damage() -> None:
    store = Busily()
    source = Vault(store)
    thread = saved(source, 3)
    thread.save({"large": "x" * 9000})
    thread.save({"small": 1})
    with savegame.open("memory:") as target:
        store.meanwhile = lambda: thread.prune(keep=1)
        source.copy_to(target)
        assert target.thread("t").state() == {"small": 1}
        assert target.verify().ok


# -- killed ----------------------------------------------------------------------------------------


class Killed(Exception):
    """The process is gone."""


class Mortal(MemoryStore):
    """Dies at a commit, before or after it took place."""

    left = 10**9
    after = False

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        self.left -= 1
        if not self.left and not self.after:
            raise Killed
        made = super().commit(changes)
        if not self.left:
            raise Killed
        return made


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_write_it_carries_on(after: bool) -> None:
    with savegame.open("memory:") as source:
        filled(source)
        saved(source, 150, "long")
        wanted = kept(source)
        total = sum(len(frames) for _, _, frames, _ in wanted.values())
        store, died = Mortal(), 0
        store.after = after
        whole = Vault(store)
        for moment in range(1, 10**6):
            store = Mortal()
            store.left, store.after = moment, after
            whole = Vault(store)
            try:
                source.copy_to(whole)
                break
            except Killed:
                died += 1
            for info in whole.threads():
                assert kept(whole)[info.id] == wanted[info.id], "no reader ever sees half of a thread"
            came = sum(len(frames) for _, _, frames, _ in kept(whole).values())
            assert source.copy_to(whole) == total - came
            assert kept(whole) == wanted
            assert whole.verify().ok
        assert died > 8


def test_a_head_moves_only_when_all_is_there() -> None:
    with savegame.open("memory:") as source:
        thread = saved(source, 3)
        store = Mortal()
        target = Vault(store)
        source.copy_to(target)
        for number in range(200):
            thread.update(append={"l": [number]})
        store.left = 3
        with pytest.raises(Killed):
            source.copy_to(target)
        assert target.thread("t").state() == {"l": [0, 1, 2]}
        assert source.copy_to(target) == 200 - 128
        assert target.thread("t").state() == thread.state()


# -- what it costs ---------------------------------------------------------------------------------


class Counting(MemoryStore):
    """Counts the calls that are made to it, and the frames that it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in Store.__abstractmethods__ or name == "fingerprints":
            self.calls[name] += 1
        return super().__getattribute__(name)

    def fingerprints(self, keys: Sequence[ThreadKey]) -> list[bytes]:
        before = self.calls.copy()
        found = super().fingerprints(keys)
        self.calls = before  # other stores do it in one statement
        return found

    def frames(self, key: ThreadKey, **how: Any) -> list[Frame]:
        found = super().frames(key, **how)
        self.calls["frames given"] += len(found)
        return found

    def made(self, act: Callable[[], object]) -> int:
        """How many calls something takes."""
        self.calls.clear()
        act()
        return sum(count for name, count in self.calls.items() if name != "frames given")


def test_again_costs_what_is_new_over_ten_thousand_threads() -> None:
    source, target = Counting(), Counting()
    vault, other = Vault(source), Vault(target)
    for number in range(10_000):
        vault.thread(f"{number:05}").save({"number": number})
    assert vault.copy_to(other) == 10_000

    def both() -> tuple[int, int]:
        target.calls.clear()
        return source.made(lambda: vault.copy_to(other)), sum(target.calls.values())

    nothing = both()
    assert max(nothing) < 60
    for number in range(3):
        vault.thread(f"{number * 3000:05}").update(set={"more": 1})
    vault.thread("00007").label("head", "later")
    source_calls, target_calls = both()
    assert source_calls < nothing[0] + 4 * 15
    assert target_calls < nothing[1] + 4 * 20
    assert other.thread("00007").latest().label == "later"  # type: ignore[union-attr]
    assert other.stats().checkpoints == 10_003


def test_again_reads_what_is_new_of_a_long_thread() -> None:
    source, target = Counting(), Counting()
    vault, other = Vault(source), Vault(target)
    thread = saved(vault, 3000)
    vault.copy_to(other)
    thread.update(append={"l": ["new"]})
    thread.save({"l": ["branch"]}, parent="t-1000")
    source.made(lambda: vault.copy_to(other))
    target.calls.clear()
    assert source.calls["frames given"] < 12
    assert kept(other) == kept(vault)


def test_fingerprints_tell_of_every_change(opened: Opener) -> None:
    vault = opened(durability="process")
    thread = saved(vault)
    saved(vault, name="other")
    keys = [ThreadKey("default", name) for name in ("t", "other", "missing")]
    seen = [vault.store.fingerprints(keys)]
    assert seen[0][2] == b""
    changes: list[Callable[[], object]] = [
        lambda: thread.update(append={"l": ["x"]}),
        lambda: thread.rewind("t-2"),
        lambda: thread.label("t-0", "x"),
        lambda: thread.label("t-0", "y"),
        lambda: thread.label("t-0", None),
        lambda: thread.put_records({("k", "n"): 1}),
        lambda: thread.put_records({("k", "n"): 2}),
        lambda: thread.put_records({("k", "n"): None, ("k", "m"): 2}),
        lambda: vault.thread("t", agent="a").save(1),
    ]
    for change in changes:
        change()
        found = vault.store.fingerprints(keys)
        assert found[0] != seen[-1][0], "another one after every change"
        assert found[1:] == seen[0][1:]
        assert vault.store.fingerprints(keys) == found
        seen.append(found)


def test_progress_counts_threads(opened: Opener) -> None:
    source = opened(durability="process")
    for number in range(4):
        source.thread(f"{number}").save(number)
    with savegame.open("memory:") as target:
        for _ in range(2):
            told: list[tuple[int, int]] = []
            source.copy_to(target, lambda done, total, told=told: told.append((done, total)))  # type: ignore[misc]
            assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
